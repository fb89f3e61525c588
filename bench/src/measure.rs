//! Times of several things, taken in turns, so that whatever else the machine does hits all of them alike.

use std::time::Duration;

/// One thing that is measured. It takes its own time, so that what comes before and after is not in it.
pub(crate) struct Arm<'a> {
    name: &'a str,
    run: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Arm<'a> {
    /// Something with a name, which is reported the number of the round.
    pub(crate) fn new(name: &'a str, run: impl FnMut(usize) -> Duration + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// The times of one arm, in the order of the rounds.
pub(crate) struct Times {
    /// What was measured.
    pub(crate) name: String,
    all: Vec<Duration>,
}

/// Runs every arm once without counting it, then in so many rounds; each round begins with another arm.
pub(crate) fn in_turns(rounds: usize, mut arms: Vec<Arm<'_>>) -> Vec<Times> {
    let mut times: Vec<Times> = arms
        .iter()
        .map(|arm| Times {
            name: arm.name.to_owned(),
            all: vec![Duration::ZERO; rounds],
        })
        .collect();
    let count = arms.len();
    for round in 0..=rounds {
        for turn in 0..count {
            let at = (round + turn) % count;
            let took = (arms[at].run)(round);
            if let Some(counted) = round.checked_sub(1) {
                times[at].all[counted] = took;
            }
        }
    }
    times
}

impl Times {
    /// The time in the middle.
    pub(crate) fn median(&self) -> Duration {
        let mut sorted = self.all.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }

    /// The shortest time.
    pub(crate) fn min(&self) -> Duration {
        self.all.iter().min().copied().unwrap_or_default()
    }

    /// How many times as long as `other`: the middle of the ratios of each round, and the ratio of the shortest times.
    pub(crate) fn ratio(&self, other: &Self) -> (f64, f64) {
        let divide = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        let mut ratios: Vec<f64> = self
            .all
            .iter()
            .zip(&other.all)
            .map(|(own, other)| divide(*own, *other))
            .collect();
        ratios.sort_unstable_by(f64::total_cmp);
        (ratios[ratios.len() / 2], divide(self.min(), other.min()))
    }
}
