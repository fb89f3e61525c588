//! Two steps: any verb is interrupted by a kill, an error or a power cut, and then any other verb comes next.
//!
//! After the second verb:
//!
//! - every original holds the same, and it is what a plan of the model may have released;
//! - success is success: a commit that succeeds has released every member that the plan had, a command that was run saw
//!   the same round of changes in every sandbox, a fork holds what the plan held;
//! - a refusal is allowed only while something is interrupted, changes nothing, and says something;
//! - `recover` succeeds, and finds nothing to do the second time; from then on nothing is refused that the plan allows;
//! - after `cleanup` and `gc` nothing is left, and the log holds.

use crate::errors::EIO;
use crate::life::{Content, PlanLife, PlanVerb};
use crate::next_world::{FORKED, NextWorld, OTHER, RAN, WRITTEN, said};
use crate::*;
use crate::{power, sweep};

/// One interrupted verb, and the one after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    scenario: Scenario,
    first: PlanVerb,
    /// For `recover`: the call at which the commit before it was killed.
    commit_killed: u64,
    n: u64,
    fault: Fault,
    next: PlanVerb,
    bug: Option<&'static str>,
    /// The power was cut: what a command wrote inside just before may be lost.
    dark: bool,
}

/// What is known while the steps go on.
struct Course<'a> {
    world: NextWorld<'a>,
    /// The plan that the next verb is about.
    target: &'static str,
    possible: Vec<PlanLife>,
    /// Something is interrupted, so that a verb may be refused.
    interrupted: bool,
    /// Added files that a commit releases, and those that it may release.
    required: Vec<String>,
    allowed: Vec<String>,
    /// The added files hold all of what was written.
    whole: bool,
}

impl Pair {
    fn new(scenario: Scenario, first: PlanVerb, next: PlanVerb) -> Self {
        Self {
            scenario,
            first,
            commit_killed: 0,
            n: 1,
            fault: Fault::Kill,
            next,
            bug: None,
            dark: false,
        }
    }

    fn name(&self, hit: Option<&Step>) -> String {
        let what = format!("{}, then {}", self.first.name(), self.next.name());
        sweep::name(&self.scenario, &what, self.bug, (self.n, self.fault), hit)
    }

    fn subject(&self) -> Result<Subject, String> {
        let subject = Subject::new(&self.scenario).bugged(self.bug);
        self.lead_up(&subject)?;
        Ok(subject)
    }

    fn lead_up(&self, subject: &Subject) -> Result<(), String> {
        let world = NextWorld::new(subject, self.scenario);
        world.lead_up(self.first)?;
        if self.first == PlanVerb::Recover {
            let commit = world.stepper(PlanVerb::Commit);
            commit.fault(self.commit_killed, Fault::Kill);
        }
        Ok(())
    }

    /// The calls of the interrupted verb, when nothing goes wrong.
    fn calls(&self) -> u64 {
        let subject = self
            .subject()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name(None)));
        let world = NextWorld::new(&subject, self.scenario);
        sweep::calls(world.stepper(self.first), &self.name(None))
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let subject = self.subject()?;
        let world = NextWorld::new(&subject, self.scenario);
        let run = world.stepper(self.first).fault(self.n, self.fault);
        verdict.hit.clone_from(&run.hit);
        self.check(&subject, &run)
    }

    /// Does what comes next, and checks everything that must hold.
    fn check(&self, subject: &Subject, run: &Run) -> Result<(), String> {
        let mut course = self.course(subject, run.outcome.status)?;
        let mut told = vec![format!("{} {}", self.first.name(), said(&run.outcome))];
        course
            .go(self, &mut told)
            .map_err(|error| format!("{error} [{}]", told.join("] [")))
    }

    /// What is known after the interrupted verb ended with this status.
    fn course<'a>(&self, subject: &'a Subject, status: i32) -> Result<Course<'a>, String> {
        if !matches!(status, -9 | 0..=5) && self.first != PlanVerb::Run {
            return Err(format!("the exit code {status} says nothing"));
        }
        let open = PlanLife::Open(Content::Second);
        let committed = PlanLife::Committed(Content::Second);
        // A fork has a plan of its own; which of the two comes next depends on the call.
        let forked = self.first == PlanVerb::Fork && self.n.is_multiple_of(2);
        let target = match forked || self.first == PlanVerb::Create {
            true => OTHER,
            false => PLAN,
        };
        let possible = match self.first {
            PlanVerb::Fork if forked && status == 0 => vec![open],
            PlanVerb::Fork if forked => vec![PlanLife::Absent, PlanLife::Unusable, open],
            PlanVerb::Create => self.first.ended(PlanLife::Absent, status),
            PlanVerb::Undo => self.first.ended(committed, status),
            PlanVerb::Recover => vec![open, committed],
            _ => self.first.ended(open, status),
        };
        let all = |name: &str| -> Vec<String> {
            let labels = LABELS.iter().take(subject.members.len());
            labels.map(|label| format!("{label}/{name}")).collect()
        };
        let allowed = match self.first {
            PlanVerb::Write => vec![format!("{}/{WRITTEN}", LABELS[0])],
            PlanVerb::Run => all(RAN),
            _ => Vec::new(),
        };
        Ok(Course {
            world: NextWorld::new(subject, self.scenario),
            target,
            possible,
            interrupted: status != 0,
            required: match status == 0 && !self.dark {
                true => allowed.clone(),
                false => Vec::new(),
            },
            allowed,
            whole: self.first != PlanVerb::Run && !self.dark,
        })
    }
}

impl Course<'_> {
    fn go(&mut self, pair: &Pair, told: &mut Vec<String>) -> Result<(), String> {
        let next = pair.next;
        // A new plan has nothing to release yet.
        let early = matches!(next, PlanVerb::Commit | PlanVerb::Fork | PlanVerb::Run);
        let create = pair.first == PlanVerb::Create;
        if create && early {
            self.write_all()?;
        }
        let outcome = self.world.run(next, self.target);
        told.push(format!("{} {}", next.name(), said(&outcome)));
        self.take(next, &outcome)?;
        if self.world.recover()? > 0 && outcome.status == 0 && self.changes(next) {
            return Err("it succeeded, and yet something had to be recovered".to_owned());
        }
        if self.world.recover()? > 0 {
            return Err("the second recover had something to do".to_owned());
        }
        self.interrupted = false;
        self.observe()?;
        if create && !early {
            self.write_all()?;
        }
        let forked = next == PlanVerb::Fork && outcome.status == 0;
        let probe = match forked {
            true => FORKED,
            false => self.target,
        };
        let mut outcome = self.world.run(PlanVerb::Commit, probe);
        told.push(format!("commit of {probe} afterwards {}", said(&outcome)));
        // A sandbox that was never finished is made anew, as the refusal says.
        if pair.first == PlanVerb::Sandbox && outcome.status == 5 {
            let again = self.world.run(PlanVerb::Sandbox, probe);
            told.push(format!("sandbox create again {}", said(&again)));
            outcome = self.world.run(PlanVerb::Commit, probe);
        }
        self.take(PlanVerb::Commit, &outcome)?;
        self.observe()?;
        if outcome.status == 0 && pair.n.is_multiple_of(3) {
            let outcome = self.world.run(PlanVerb::Undo, probe);
            told.push(format!("undo of {probe} afterwards {}", said(&outcome)));
            self.take(PlanVerb::Undo, &outcome)?;
            self.observe()?;
        }
        if pair.n.is_multiple_of(4) {
            self.world.must(&["log", "--verify"])?;
        }
        self.world.clean_all()
    }

    /// Verbs that recover what is interrupted before they do anything.
    fn changes(&self, verb: PlanVerb) -> bool {
        !matches!(verb, PlanVerb::Recover)
    }

    /// Takes in how a verb ended that met no fault.
    fn take(&mut self, verb: PlanVerb, outcome: &Outcome) -> Result<(), String> {
        let known = outcome.status;
        let done: Vec<PlanLife> = self
            .possible
            .iter()
            .filter_map(|plan| verb.done(*plan))
            .collect();
        if known != 0 {
            let silent = outcome.stderr.is_empty();
            // The other plan, a new one or a fork, has none of the checkpoints of this one, and a sandbox that was made
            // since is in none of them.
            let unknown = self.target == OTHER || self.world.beside().exists();
            let nothing_kept = verb == PlanVerb::Restore && unknown;
            let legal = done.len() == self.possible.len() && !nothing_kept;
            return match (known, legal && !self.interrupted) {
                (1..=5 | 125, _) if silent => Err("it failed without a word".to_owned()),
                (1..=5 | 125, false) => Ok(()),
                (1..=5 | 125, true) => Err(format!("{} {}", verb.name(), said(outcome))),
                (other, _) => Err(format!("the exit code {other} says nothing")),
            };
        }
        if done.is_empty() {
            return Err(format!(
                "{} succeeded, although the plan is {:?}",
                verb.name(),
                self.possible
            ));
        }
        if verb == PlanVerb::Run {
            let seen = self.world.seen(outcome)?;
            self.possible.retain(|plan| plan.sandboxes() == Some(seen));
            let labels = LABELS.iter().take(self.world.subject.members.len());
            let ran: Vec<String> = labels.map(|label| format!("{label}/{RAN}")).collect();
            self.allowed.extend(ran.clone());
            self.required.extend(ran);
            return match self.possible.is_empty() {
                true => Err(format!("a command inside saw {seen:?}")),
                false => Ok(()),
            };
        }
        if matches!(verb, PlanVerb::Rollback | PlanVerb::Restore) {
            self.required.clear();
            self.allowed.clear();
        }
        self.possible = done;
        Ok(())
    }

    /// Looks at the originals: what they hold must be possible.
    fn observe(&mut self) -> Result<(), String> {
        let originals = self.world.originals()?;
        self.possible.retain(|plan| plan.originals() == originals);
        if self.possible.is_empty() {
            return Err(format!("the originals hold {originals:?}"));
        }
        let extras = self.world.extras(self.whole)?;
        let released =
            |plan: &PlanLife| matches!(plan, PlanLife::Committed(_) | PlanLife::Removed(_));
        if let Some(unknown) = extras.iter().find(|one| !self.allowed.contains(one)) {
            return Err(format!("{unknown} was released, and nothing wrote it"));
        }
        let missing = self.required.iter().find(|one| !extras.contains(one));
        match missing {
            Some(_) if extras.is_empty() && !self.possible.iter().all(released) => Ok(()),
            Some(_) if extras.is_empty() && self.removed_unreleased() => Ok(()),
            Some(missing) => Err(format!("TORN: {missing} was not released; {extras:?} were")),
            None if !extras.is_empty() && !self.possible.iter().any(released) => {
                Err(format!("{extras:?} are there, and nothing was committed"))
            }
            None => Ok(()),
        }
    }

    /// The plan may have been removed without having been committed.
    fn removed_unreleased(&self) -> bool {
        let removed = |plan: &PlanLife| matches!(plan, PlanLife::Removed(Content::Base));
        self.possible.iter().any(removed)
    }

    /// Gives every sandbox of a new plan a change.
    fn write_all(&mut self) -> Result<(), String> {
        if self.world.write_all(self.target)? {
            self.possible.retain(PlanLife::is_open);
            let labels = LABELS.iter().take(self.world.subject.members.len());
            self.required = labels.map(|label| format!("{label}/{WRITTEN}")).collect();
            self.allowed.clone_from(&self.required);
            return match self.possible.is_empty() {
                true => Err("a plan that cannot be there was written to".to_owned()),
                false => Ok(()),
            };
        }
        match self.possible.iter().all(PlanLife::is_open) && !self.interrupted {
            true => Err("nothing can be written to a plan that is open".to_owned()),
            false => Ok(()),
        }
    }
}

impl Trial for Pair {
    fn plan(&self) -> String {
        self.scenario.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |hit| self.name(hit))
    }
}

const TINY: Scenario = Scenario::tiny(&[Copy, Overlay, Copy]);

fn scenarios(form: Form) -> Vec<Scenario> {
    match form.is_long() {
        false => vec![TINY],
        true => vec![
            TINY,
            Scenario::tiny(&[Overlay, Cow]),
            Scenario::full(&[Copy, Overlay]),
        ],
    }
}

/// Calls at which a commit is killed before its recovery is: one after the decision, one at the end.
fn commits_killed(scenario: Scenario) -> Vec<u64> {
    let commit = Point::kill(scenario, Before::Nothing, Verb::Commit, 1);
    let telling = telling(&commit.calls());
    let chosen = [telling.get(2), telling.last()];
    chosen.into_iter().flatten().copied().collect()
}

/// Every verb that is interrupted in a scenario, and the number of its calls.
fn firsts(scenario: Scenario, bug: Option<&'static str>) -> Vec<(Pair, u64)> {
    let mut found = Vec::new();
    for first in PlanVerb::FIRST {
        let plain = Pair {
            bug,
            ..Pair::new(scenario, first, PlanVerb::Commit)
        };
        let plains = match first {
            PlanVerb::Recover => commits_killed(scenario)
                .into_iter()
                .map(|commit_killed| Pair {
                    commit_killed,
                    ..plain
                })
                .collect(),
            _ => vec![plain],
        };
        for plain in plains {
            let only = std::env::var("ESCROW_TORTURE_FIRST").ok();
            if only.is_none_or(|only| only == first.name()) {
                found.push((plain, plain.calls()));
            }
        }
    }
    found
}

/// Every pair of verbs, the first killed at every call.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(killed_pairs(form), 135)
}

pub(crate) fn killed_pairs(form: Form) -> Vec<impl Trial> {
    let mut pairs = Vec::new();
    for scenario in scenarios(form) {
        for (plain, calls) in firsts(scenario, None) {
            for n in 1..=calls {
                for next in PlanVerb::NEXT {
                    pairs.push(Pair { n, next, ..plain });
                }
            }
        }
    }
    pairs
}

/// Every pair of verbs, the first with an error at every call, once, and from there on.
pub(crate) fn errors(form: Form) -> Figures {
    let mut pairs = Vec::new();
    for (plain, calls) in firsts(TINY, None) {
        for n in 1..=calls {
            for next in PlanVerb::NEXT {
                for fault in [Fault::Once(EIO), Fault::Forever(EIO)] {
                    pairs.push(Pair {
                        n,
                        next,
                        fault,
                        ..plain
                    });
                }
            }
        }
    }
    form.run(pairs, 72)
}

/// Every pair of verbs, the power cut in the first, on one file system.
fn cuts_on(fs: Fs, firsts: &[(Pair, u64)], form: Form) -> Option<Figures> {
    let mut figures = Figures::default();
    for (place, (plain, calls)) in firsts.iter().enumerate() {
        let plain = Pair {
            dark: true,
            ..*plain
        };
        let mut all = Vec::new();
        // Well beyond the last call: a cut right after the end.
        for n in (1..=*calls).chain([calls + 100]) {
            all.extend(PlanVerb::NEXT.map(|next| Pair { n, next, ..plain }));
        }
        figures.planned += all.len();
        let chosen = match form {
            // Another call, and another verb next, for each verb and file system.
            Form::Bounded => {
                let before = 3 * place + Fs::ALL.iter().position(|one| *one == fs).unwrap_or(0);
                let spread = sweep::spread(all).into_iter();
                spread.skip(before).take(1).collect()
            }
            Form::Long(_) => sweep::spread(all),
        };
        let mut machine = power::Machine::new(fs, &plain.scenario, None)?;
        let start = match machine.ready(|subject| plain.lead_up(subject)) {
            Ok(start) => start,
            Err(error) => {
                figures.wrong.push(error);
                continue;
            }
        };
        let name = format!("{} on {}", plain.scenario.name(), power::word(fs));
        let planned = figures.planned;
        let until = form.part(firsts.len()).until();
        figures.add(sweep::each_here(&chosen, until, |pair| {
            let mut verdict = machine.cut(
                &start,
                pair.n,
                |_| Ok(()),
                |subject| NextWorld::new(subject, pair.scenario).stepper(pair.first),
                |subject, run| pair.check(subject, run),
            );
            for wrong in &mut verdict.wrong {
                *wrong = format!(
                    "{name}: power cut: {}: {wrong}",
                    pair.name(verdict.hit.as_ref())
                );
            }
            (name.clone(), verdict)
        }));
        figures.planned = planned;
    }
    Some(figures)
}

/// The same on every file system; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    let firsts = firsts(TINY, None);
    power::on_each(&Fs::ALL, |fs| cuts_on(fs, &firsts, form))
}

/// Whether a seeded bug shows when a verb is killed, or fails, and a commit comes next.
pub(crate) fn finds(first: PlanVerb, bug: &'static str) -> Option<(String, usize)> {
    let plain = Pair {
        bug: Some(bug),
        ..Pair::new(TINY, first, PlanVerb::Commit)
    };
    let mut pairs = Vec::new();
    for n in 1..=plain.calls() {
        for fault in [Fault::Kill, Fault::Once(EIO)] {
            pairs.push(Pair { n, fault, ..plain });
        }
    }
    sweep::first_wrong(&sweep::spread(pairs))
}

// rule C1, C3, C6, C10, P6
#[test]
fn any_verb_after_any_verb_that_was_killed() {
    need!(require_stepper());
    kills(Form::Bounded).settle("any verb killed, then any verb", 130);
}

// rule C1, C4, C6, C10
#[test]
fn any_verb_after_any_verb_that_met_an_error() {
    need!(require_stepper());
    // A point whose call did not come, since the run made fewer, does not count.
    errors(Form::Bounded).settle("any verb with an error, then any verb", 64);
}

// rule C1, C3
#[test]
fn any_verb_after_a_power_cut_in_any_verb() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("any verb, the power cut, then any verb", 38);
    }
}
