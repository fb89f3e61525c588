//! Many points at once, and the figures.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::*;

/// One thing that goes wrong, and what is found after it.
pub(crate) trait Trial: Clone + Sync {
    /// The plan that it happens to.
    fn plan(&self) -> String;
    /// Lets it happen.
    fn run(&self) -> Verdict;
}

/// What a sweep found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Figures {
    /// Faults that were really met.
    pub(crate) points: usize,
    /// Those that were tried, met or not.
    pub(crate) tried: usize,
    /// How many there are to try; 0 where there is no end.
    pub(crate) planned: usize,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
    pub(crate) took: Duration,
    /// Points of each scenario.
    pub(crate) scenarios: BTreeMap<String, usize>,
}

impl Figures {
    pub(crate) fn add(&mut self, other: Self) {
        self.points += other.points;
        self.tried += other.tried;
        self.planned += other.planned;
        self.wrong.extend(other.wrong);
        self.took += other.took;
        for (name, count) in other.scenarios {
            *self.scenarios.entry(name).or_default() += count;
        }
    }

    /// Says in one line what was done, and fails if anything was wrong or too little was done.
    #[track_caller]
    pub(crate) fn settle(&self, sweep: &str, least: usize) {
        say(&format!(
            "torture: {sweep}: {} points, {} violations, {} scenarios, {:.1} s",
            self.points,
            self.wrong.len(),
            self.scenarios.len(),
            self.took.as_secs_f64()
        ));
        assert!(
            self.wrong.is_empty(),
            "{sweep}: {} violations:\n{}",
            self.wrong.len(),
            self.wrong.join("\n\n")
        );
        let holds = self.points >= least;
        assert!(holds, "{sweep}: {} points, not {least}", self.points);
    }
}

/// Writes a line past the test harness, as skips are.
pub(crate) fn say(line: &str) {
    // Nothing can be said about a closed standard error.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// After so many findings a sweep has said enough.
const ENOUGH: usize = 25;

/// How many worlds are worked in at once. A part of the time is waiting for the clock, so more than processors.
fn workers() -> usize {
    2 * thread::available_parallelism().map_or(2, usize::from)
}

impl Figures {
    fn take(&mut self, name: String, verdict: Verdict) {
        for wrong in &verdict.wrong {
            say(&format!("torture: WRONG: {wrong}"));
        }
        self.tried += 1;
        if verdict.hit.is_some() {
            self.points += 1;
            *self.scenarios.entry(name).or_default() += 1;
        }
        self.wrong.extend(verdict.wrong);
    }
}

/// Does `work` for every one, several at once.
pub(crate) fn each<T: Sync>(
    all: &[T],
    until: Option<Instant>,
    work: impl Fn(&T) -> (String, Verdict) + Sync,
) -> Figures {
    let started = Instant::now();
    let (next, figures) = (AtomicUsize::new(0), Mutex::new(Figures::default()));
    thread::scope(|scope| {
        for _ in 0..workers().min(all.len()) {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if until.is_some_and(|until| Instant::now() > until) {
                        return;
                    }
                    let (name, verdict) = work(one);
                    let mut figures = figures.lock().unwrap_or_else(PoisonError::into_inner);
                    figures.take(name, verdict);
                    if figures.wrong.len() >= ENOUGH {
                        next.store(all.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut figures = figures.into_inner().unwrap_or_else(PoisonError::into_inner);
    figures.took = started.elapsed();
    figures
}

/// The same, one after the other.
pub(crate) fn each_here<T>(
    all: &[T],
    until: Option<Instant>,
    mut work: impl FnMut(&T) -> (String, Verdict),
) -> Figures {
    let started = Instant::now();
    let mut figures = Figures::default();
    for one in all {
        let late = until.is_some_and(|until| Instant::now() > until);
        if late || figures.wrong.len() >= ENOUGH {
            break;
        }
        let (name, verdict) = work(one);
        figures.take(name, verdict);
    }
    figures.took = started.elapsed();
    figures
}

/// Runs points until one finds something: that, and how many were run.
pub(crate) fn first_wrong(all: &[impl Trial]) -> Option<(String, usize)> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..workers().min(all.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = all.get(number) else { return };
                    if let Some(wrong) = point.run().wrong.into_iter().next() {
                        next.store(all.len(), Ordering::Relaxed);
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.get_or_insert((wrong, number + 1));
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The same points in another order, in which every beginning is spread over all of them.
pub(crate) fn spread<T>(all: Vec<T>) -> Vec<T> {
    let mut numbered: Vec<(u64, T)> = (0_u64..)
        .map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .zip(all)
        .collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, one)| one).collect()
}

/// At most so many of them, spread over all. Unlike [`thin`], it meets whatever comes at every few of them.
pub(crate) fn some<T>(all: Vec<T>, most: usize) -> Vec<T> {
    let mut chosen = spread(all);
    chosen.truncate(most);
    chosen
}

/// At most so many of them, evenly.
pub(crate) fn thin<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    if all.len() <= most {
        return all.to_vec();
    }
    (0..most)
        .map(|number| all[number * all.len() / most].clone())
        .collect()
}

/// Runs every point.
pub(crate) fn points(all: &[impl Trial], until: Option<Instant>) -> Figures {
    each(all, until, |trial| (trial.plan(), trial.run()))
}

/// What a fault is called.
pub(crate) fn name(
    scenario: &Scenario,
    what: &str,
    bug: Option<&str>,
    (n, fault): (u64, Fault),
    hit: Option<&Step>,
) -> String {
    let call = hit.map_or_else(|| "never reached".to_owned(), Step::to_string);
    let bug = bug.map_or_else(String::new, |bug| format!(" with {bug}"));
    let scenario = scenario.name();
    format!("{scenario}: {what}{bug}: {fault:?} at call {n} ({call})")
}

/// The calls of a program, when nothing goes wrong.
pub(crate) fn calls(stepper: Stepper, name: &str) -> u64 {
    let run = stepper.run();
    let said = run.outcome.stderr_text();
    assert_eq!(run.outcome.status, 0, "{name}: {said}");
    run.calls
}
