//! Checkpoint, restore, fork and garbage collection: killed at every call, failing at every call, with torn writes,
//! failing syncs, and the power cut.
//!
//! The plan has two rounds of changes with a checkpoint between them. After each fault:
//!
//! - `recover` succeeds, and finds nothing to do the second time; the originals are as they were;
//! - every sandbox of the plan shows the second round, or, after a restore, every one shows the first; and what the
//!   program said is true;
//! - the checkpoint can be restored, exactly, and so can what was kept by the verb;
//! - a fork is whole and exact, or cannot be used; it outlives the plan it came from;
//! - garbage collection spares every plan that is open and every area that another lives on, and in the end takes what
//!   is over;
//! - after `cleanup` nothing is left.

use crate::checkpoints_world::{CHILD, FIRST, Inside, Shows, TENANT};
use crate::errors::{ALL, EIO, SOME};
use crate::*;
use crate::{power, snapshots, sweep};

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Checkpoint,
    Restore,
    /// From where the plan is.
    Fork,
    /// From its checkpoint.
    ForkAt,
    Gc,
}

const OTHER: &str = "other";
const AGAIN: &str = "again";

impl Act {
    pub(crate) const EVERY: [Self; 5] = [
        Self::Checkpoint,
        Self::Restore,
        Self::Fork,
        Self::ForkAt,
        Self::Gc,
    ];

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Checkpoint => &["checkpoint", "create", PLAN, "-m", OTHER],
            Self::Restore => &["restore", PLAN, FIRST],
            Self::Fork => &["plan", "fork", PLAN, OTHER],
            Self::ForkAt => &["plan", "fork", PLAN, OTHER, "--at", FIRST],
            Self::Gc => &["gc"],
        }
    }

    /// What a fork of this kind shows, and where it begins.
    fn forked(self) -> Option<(Shows, Option<&'static str>)> {
        match self {
            Self::Fork => Some((Shows::Second, None)),
            Self::ForkAt => Some((Shows::First, Some(FIRST))),
            _ => None,
        }
    }
}

/// One fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    scenario: Scenario,
    act: Act,
    n: u64,
    fault: Fault,
    only: Option<&'static [&'static str]>,
    bug: Option<&'static str>,
    /// The power was cut: what was never synced in a sandbox may be lost, and is done again.
    dark: bool,
}

impl Turn {
    pub(crate) fn kill(scenario: Scenario, act: Act) -> Self {
        Self {
            scenario,
            act,
            n: 1,
            fault: Fault::Kill,
            only: None,
            bug: None,
            dark: false,
        }
    }

    /// The same with another fault.
    pub(crate) fn with(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    fn name(&self, hit: Option<&Step>) -> String {
        let (what, fault) = (format!("{:?}", self.act), (self.n, self.fault));
        sweep::name(&self.scenario, &what, self.bug, fault, hit)
    }

    fn subject(&self) -> Result<Subject, String> {
        let subject = Subject::new(&self.scenario).bugged(self.bug);
        self.lead_up(&subject)?;
        Ok(subject)
    }

    fn lead_up(&self, subject: &Subject) -> Result<(), String> {
        let inside = Inside::new(subject, self.scenario);
        inside.lead_up()?;
        match self.act {
            Act::Gc => inside.litter(),
            _ => Ok(()),
        }
    }

    fn stepper(&self, subject: &Subject) -> Stepper {
        let stepper = subject.cli.stepper(self.act.words());
        match self.only {
            Some(names) => stepper.only(names),
            None => stepper,
        }
    }

    /// The calls of the verb, when nothing goes wrong.
    fn calls(&self) -> u64 {
        let subject = self
            .subject()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name(None)));
        sweep::calls(self.stepper(&subject), &self.name(None))
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let subject = self.subject()?;
        let mut stepper = self.stepper(&subject);
        if self.only == Some(SYNCS) {
            stepper = stepper.record();
        }
        let run = stepper.fault(self.n, self.fault);
        verdict.hit.clone_from(&run.hit);
        let tried = match self.only {
            Some(SYNCS) => no_sync_again(&subject, &run, (self.n, self.fault)),
            _ => Ok(()),
        };
        tried
            .and_then(|()| self.judge(&subject, &run))
            .map_err(|error| {
                let (status, said) = (run.outcome.status, run.outcome.stderr_text());
                format!("{error} [it ended with {status}: {said}]")
            })
    }

    /// Checks everything that must hold after a run.
    fn judge(&self, subject: &Subject, run: &Run) -> Result<(), String> {
        let inside = Inside::new(subject, self.scenario);
        let status = run.outcome.status;
        let first = inside.recover()?;
        if first > 0 && status == 0 {
            return Err("it was said to be over, but had to be recovered".to_owned());
        }
        if inside.recover()? > 0 {
            return Err("the second recover had something to do".to_owned());
        }
        let originals = side(subject);
        if originals != Side::Old {
            return Err(format!("the originals are {originals:?}"));
        }
        if self.dark {
            self.judge_kept(&inside, status)?;
        }
        let found = self.state(&inside)?;
        let wanted = match (self.act, status) {
            (Act::Restore, 0) => Some(Shows::First),
            (Act::Restore, -9 | 5) => None,
            (_, -9 | 0..=5) => Some(Shows::Second),
            (_, other) => return Err(format!("the exit code {other} says nothing")),
        };
        if wanted.is_some_and(|wanted| wanted != found) {
            return Err(format!("it shows the {found:?} round after {status}"));
        }
        if !self.dark {
            self.judge_kept(&inside, status)?;
        }
        self.judge_fork(&inside, status)?;
        self.judge_garbage(&inside, status)?;
        self.go_back(&inside, found)?;
        inside.clean_all()?;
        nothing_left(subject)
    }

    /// Which round the plan shows. After a power cut what was never synced is done again, unless it is at the first.
    fn state(&self, inside: &Inside<'_>) -> Result<Shows, String> {
        match inside.shows(PLAN) {
            Ok(found) => Ok(found),
            Err(error) if !self.dark => Err(error),
            Err(error) => {
                inside
                    .add_again()
                    .map_err(|again| format!("{error}; and {again}"))?;
                inside.shows(PLAN)
            }
        }
    }

    /// A checkpoint that was announced is there, and one that is there is exact, whatever becomes of the sandbox.
    fn judge_kept(&self, inside: &Inside<'_>, status: i32) -> Result<(), String> {
        if self.act != Act::Checkpoint {
            return Ok(());
        }
        match inside.labelled(OTHER)? {
            None if status == 0 => Err("the checkpoint was announced, and is not there".to_owned()),
            None => Ok(()),
            Some(kept) => {
                inside.restore(&kept)?;
                match inside.shows(PLAN)? {
                    Shows::Second => Ok(()),
                    Shows::First => Err("the new checkpoint shows the first round".to_owned()),
                }
            }
        }
    }

    fn judge_fork(&self, inside: &Inside<'_>, status: i32) -> Result<(), String> {
        let Some((wanted, at)) = self.act.forked() else {
            return Ok(());
        };
        let exact = |name: &str| match inside.shows(name)? {
            found if found == wanted => Ok(()),
            found => Err(format!("the fork {name} shows the {found:?} round")),
        };
        let whole = inside.is_whole(OTHER)?;
        if whole {
            exact(OTHER)?;
        } else if status == 0 {
            return Err("the fork was announced, and is not there".to_owned());
        } else if inside.open(OTHER).is_some() {
            inside.cleanup(OTHER)?;
        }
        inside.fork(PLAN, AGAIN, at)?;
        inside.gc()?;
        exact(AGAIN)
    }

    fn judge_garbage(&self, inside: &Inside<'_>, status: i32) -> Result<(), String> {
        if self.act != Act::Gc {
            return Ok(());
        }
        let spared = || {
            for (plan, wanted) in [(CHILD, Shows::First), (TENANT, Shows::Second)] {
                let found = inside.shows(plan)?;
                if found != wanted {
                    return Err(format!("{plan} shows the {found:?} round"));
                }
            }
            Ok(())
        };
        let left = inside.garbage()?;
        // That something went is not made durable: it is found again.
        if status == 0 && self.fault == Fault::Kill && !self.dark && !left.is_empty() {
            return Err(format!("it was said to be over, and left {left:?}"));
        }
        inside.gc()?;
        let left = inside.garbage()?;
        if !left.is_empty() {
            return Err(format!("a second gc left {left:?}"));
        }
        spared()
    }

    /// The checkpoint can be returned to, and so can where a restore began; what a fork began on stays.
    fn go_back(&self, inside: &Inside<'_>, found: Shows) -> Result<(), String> {
        let to = |label: &str, kept| -> Result<Shows, String> {
            let kept = kept?;
            inside.restore(&Option::ok_or(
                kept,
                format!("there is no checkpoint {label}"),
            )?)?;
            inside.shows(PLAN)
        };
        if self.act == Act::Restore
            && found == Shows::First
            && to("before the restore", inside.before_restore())? != Shows::Second
        {
            return Err("what was kept before the restore is not the second round".to_owned());
        }
        if to(FIRST, inside.labelled(FIRST))? != Shows::First {
            return Err("the checkpoint is not the first round".to_owned());
        }
        if let Some((wanted, _)) = self.act.forked() {
            inside.cleanup(PLAN)?;
            inside.gc()?;
            if inside.shows(AGAIN)? != wanted {
                return Err("the fork moved with the plan that it came from".to_owned());
            }
        }
        Ok(())
    }
}

impl Trial for Turn {
    fn plan(&self) -> String {
        self.scenario.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |hit| self.name(hit))
    }
}

/// A mix of both kinds: in full, and as small as it can be.
const FULL: Scenario = Scenario::full(&[Copy, Overlay]);
const TINY: Scenario = Scenario::tiny(&[Copy, Overlay]);

fn scenarios(form: Form) -> Vec<Scenario> {
    match form.is_long() {
        false => vec![FULL],
        true => vec![
            FULL,
            Scenario::full(&[Copy]),
            Scenario::full(&[Cow]),
            Scenario::full(&[Overlay]),
            Scenario::full(&[Cow, Overlay, Copy]),
        ],
    }
}

pub(crate) fn every(plain: Turn) -> impl Iterator<Item = Turn> {
    (1..=plain.calls()).map(move |n| Turn { n, ..plain })
}

/// Each verb killed at every call, and with every write half done.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(turns(form), 64)
}

pub(crate) fn turns(form: Form) -> Vec<Turn> {
    let mut turns = Vec::new();
    for scenario in scenarios(form) {
        for act in Act::EVERY {
            let plain = Turn::kill(scenario, act);
            turns.extend(every(plain));
            turns.extend(every(Turn {
                fault: Fault::Tear,
                only: Some(WRITES),
                ..plain
            }));
        }
    }
    turns
}

/// Each verb with an error at every call.
pub(crate) fn errors(form: Form) -> Figures {
    let mut turns = Vec::new();
    for act in Act::EVERY {
        let faults: &[Fault] = match form.is_long() {
            true => &ALL,
            false => &SOME,
        };
        let plain = Turn::kill(TINY, act);
        for turn in every(plain) {
            turns.extend(faults.iter().map(|fault| Turn {
                fault: *fault,
                ..turn
            }));
        }
        for turn in every(Turn {
            only: Some(SYNCS),
            ..plain
        }) {
            let once = [Fault::Once(EIO), Fault::Forever(EIO)];
            turns.extend(once.map(|fault| Turn { fault, ..turn }));
        }
    }
    form.run(turns, 48)
}

/// Each verb with the power cut, on one file system.
fn cuts_on(fs: Fs, form: Form) -> Option<Figures> {
    let scenario = match fs {
        Fs::Ext4 => Scenario::full(&[Copy, Overlay]),
        Fs::Xfs => Scenario::full(&[Cow, Overlay]),
        Fs::Btrfs => Scenario::full(&[Snapshot, Overlay]),
    };
    let _ground = match fs {
        Fs::Btrfs => Some(snapshots::Ground::new()?),
        _ => None,
    };
    let mut figures = Figures::default();
    let form = form.part(Act::EVERY.len() + 2);
    for act in Act::EVERY {
        let plain = Turn {
            dark: true,
            ..Turn::kill(scenario, act)
        };
        figures.add(cut(fs, plain, form)?);
    }
    // A copy syncs the whole file system, which would hide what layers fail to sync.
    let layers = Scenario::full(&[Overlay]);
    for act in [Act::Checkpoint, Act::Restore] {
        let plain = Turn {
            dark: true,
            ..Turn::kill(layers, act)
        };
        figures.add(cut(fs, plain, form)?);
    }
    Some(figures)
}

/// One verb with the power cut at some calls, first right after its end.
fn cut(fs: Fs, plain: Turn, form: Form) -> Option<Figures> {
    let mut machine = power::Machine::new(fs, &plain.scenario, plain.bug)?;
    let mut figures = Figures::default();
    let start = match machine.ready(|subject| plain.lead_up(subject)) {
        Ok(start) => start,
        Err(error) => {
            figures.wrong.push(error);
            return Some(figures);
        }
    };
    let calls = plain.calls();
    let name = format!("{} on {}", plain.scenario.name(), power::word(fs));
    Some(form.cuts(calls, 2, |n| {
        let turn = Turn { n, ..plain };
        let mut verdict = machine.cut(
            &start,
            turn.n,
            |subject| Inside::new(subject, turn.scenario).add_again(),
            |subject| turn.stepper(subject),
            |subject, run| turn.judge(subject, run),
        );
        for wrong in &mut verdict.wrong {
            *wrong = format!("{name}: {}: {wrong}", turn.name(verdict.hit.as_ref()));
        }
        (name.clone(), verdict)
    }))
}

/// The same on every file system; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    power::on_each(&Fs::ALL, |fs| cuts_on(fs, form))
}

/// Whether a seeded bug shows when a verb is killed at some call.
pub(crate) fn finds(act: Act, bug: &'static str) -> Option<(String, usize)> {
    let plain = Turn {
        bug: Some(bug),
        ..Turn::kill(TINY, act)
    };
    sweep::first_wrong(&sweep::spread(every(plain).collect()))
}

/// Whether one shows when the power is cut.
pub(crate) fn finds_dark(act: Act, bug: &'static str) -> Option<(String, usize)> {
    let mut tried = 0;
    for fs in [Fs::Ext4, Fs::Btrfs, Fs::Xfs] {
        let plain = Turn {
            bug: Some(bug),
            dark: true,
            ..Turn::kill(TINY, act)
        };
        let figures = cut(fs, plain, Form::Bounded)?;
        tried += figures.points;
        if let Some(wrong) = figures.wrong.first() {
            return Some((wrong.clone(), tried));
        }
    }
    None
}

#[test]
fn checkpoint_restore_fork_and_gc_killed() {
    need!(require_stepper());
    kills(Form::Bounded).settle("checkpoint, restore, fork and gc, killed", 62);
}

#[test]
fn checkpoint_restore_fork_and_gc_meet_errors() {
    need!(require_stepper());
    errors(Form::Bounded).settle("checkpoint, restore, fork and gc, errors", 46);
}

#[test]
fn the_power_is_cut_in_checkpoint_restore_fork_and_gc() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("checkpoint, restore, fork and gc, power cuts", 55);
    }
}
