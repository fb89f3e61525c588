//! Members that other programs work in, checkouts and databases, each with a directory in one plan `t`, under faults.
//!
//! After each fault `recover` succeeds, and finds nothing the second time; all members are old, or all are new; what
//! the program said is true; the next verbs work; and after `cleanup` nothing is left.

use std::fmt::Debug;

use crate::errors::EIO;
use crate::power::word;
use crate::sweep;
use crate::*;

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolVerb {
    Create,
    Checkpoint,
    Restore,
    Rollback,
    Commit,
    /// A commit of what was changed on both sides.
    Merge,
    Undo,
    Cleanup,
}

/// One kind of member.
pub(crate) trait Tool: std::marker::Copy + Debug + Sync {
    fn name(self) -> String;
    /// The members, as options of `plan create`.
    fn members(self) -> &'static str;
    /// Makes the originals, and declares them.
    fn furnish(self, world: &World) -> Cli;
    /// What is done in the sandboxes.
    fn work(scene: &Scene<Self>);
    /// What comes between that and the verb: what another process wrote, for `side`.
    fn then(scene: &Scene<Self>, verb: ToolVerb) -> i64;
    /// Which side all members are on.
    fn side(scene: &Scene<Self>, verb: ToolVerb) -> Result<Side, String>;
    /// Whether the sandboxes hold all of the work after a verb that releases nothing. An error where they are torn.
    fn holds_work(scene: &Scene<Self>, verb: ToolVerb) -> Result<bool, String>;
    /// What else must hold when all is cleaned up.
    fn nothing_left(scene: &Scene<Self>) -> Result<(), String>;
}

/// A world of one.
pub(crate) struct Scene<T> {
    pub(crate) tool: T,
    pub(crate) cli: Cli,
    pub(crate) root: PathBuf,
    /// What another process wrote.
    pub(crate) theirs: i64,
    world: Option<World>,
}

impl<T: Tool> Scene<T> {
    fn within(tool: T, world: World) -> Self {
        Self {
            tool,
            cli: tool.furnish(&world),
            root: world.path().to_owned(),
            theirs: 0,
            world: Some(world),
        }
    }

    /// One in which the verb is about to be run.
    fn ready(tool: T, verb: ToolVerb) -> Self {
        let mut scene = Self::within(tool, World::new());
        scene.lead_up(verb);
        scene
    }

    pub(crate) fn line(&self, verb: ToolVerb) -> String {
        match verb {
            ToolVerb::Create => format!("plan create t {}", self.tool.members()),
            ToolVerb::Checkpoint => "checkpoint create t".to_owned(),
            ToolVerb::Restore => "restore t here --yes".to_owned(),
            ToolVerb::Rollback => "rollback t --yes".to_owned(),
            ToolVerb::Commit | ToolVerb::Merge => "commit t --yes".to_owned(),
            ToolVerb::Undo => "undo t --yes".to_owned(),
            ToolVerb::Cleanup => "cleanup t --yes".to_owned(),
        }
    }

    fn lead_up(&mut self, verb: ToolVerb) {
        if verb != ToolVerb::Create {
            self.cli.ok(self.line(ToolVerb::Create));
            self.work(verb);
        }
    }

    fn work(&mut self, verb: ToolVerb) {
        T::work(self);
        self.theirs = T::then(self, verb);
        if verb == ToolVerb::Undo {
            self.cli.ok("commit t --yes");
        }
    }

    fn stepper(&self, verb: ToolVerb, only: Option<&'static [&'static str]>) -> Stepper {
        let stepper = self.cli.stepper(self.line(verb));
        match only {
            Some(names) => stepper.only(names),
            None => stepper,
        }
    }

    fn ok(&self, line: &str) -> Result<String, String> {
        let done = self.cli.run(line);
        let said = done.stderr_text();
        match done.status {
            0 => Ok(done.stdout_text() + &said),
            other => Err(format!("`{line}` ended with {other}: {said}")),
        }
    }

    /// Everything that must hold after a fault; `dark` says that the power was cut, so that work which was not released
    /// may be gone.
    fn judge(&self, verb: ToolVerb, status: i32, dark: bool) -> Result<(), String> {
        self.ok("recover")?;
        let again = self.ok("recover")?;
        if !again.contains("nothing to recover") {
            return Err(format!("the second recover found something: {again}"));
        }
        let side = T::side(self, verb)?;
        let (done, undone) = match verb {
            ToolVerb::Undo => (Side::Old, Side::New),
            ToolVerb::Commit | ToolVerb::Merge => (Side::New, Side::Old),
            _ => (Side::Old, Side::Old),
        };
        let is = side.word();
        match status {
            0 if side != done => return Err(format!("it said that it is done, and is {is}")),
            1..=4 if side != undone => {
                return Err(format!("it said that it failed ({status}), and is {is}"));
            }
            _ => {}
        }
        self.go_on(verb, &side, dark)?;
        T::nothing_left(self)
    }

    fn is(&self, verb: ToolVerb, wanted: &Side) -> Result<(), String> {
        match T::side(self, verb)? {
            side if side == *wanted => Ok(()),
            side => Err(format!("{} instead of {}", side.word(), wanted.word())),
        }
    }

    /// The next verbs.
    fn go_on(&self, verb: ToolVerb, side: &Side, dark: bool) -> Result<(), String> {
        let shown = self.cli.run("--json plan show t");
        let state: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        let open = shown.status == 0 && state["state"] == "open";
        let released = *side == Side::New;
        let can_be_released = !released
            && open
            && !dark
            && match verb {
                ToolVerb::Commit | ToolVerb::Merge => true,
                ToolVerb::Undo | ToolVerb::Cleanup => false,
                _ => T::holds_work(self, verb)?,
            };
        if can_be_released {
            self.ok("commit t --yes")?;
            self.is(verb, &Side::New)?;
        }
        if released || can_be_released {
            self.ok("undo t --yes")?;
            self.is(verb, &Side::Old)?;
        }
        if shown.status == 0 {
            self.ok("cleanup t --yes")?;
        }
        // Undo data of what was taken back goes too.
        self.ok("gc --older-than 0s")?;
        self.is(verb, &Side::Old)
    }
}

/// One fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolPoint<T> {
    tool: T,
    verb: ToolVerb,
    n: u64,
    fault: Fault,
    /// The calls that count; all where there is none.
    only: Option<&'static [&'static str]>,
}

impl<T: Tool> Trial for ToolPoint<T> {
    fn plan(&self) -> String {
        format!("{} {:?}", self.tool.name(), self.verb)
    }

    fn run(&self) -> Verdict {
        let attempt = |verdict: &mut Verdict| {
            let scene = Scene::ready(self.tool, self.verb);
            let run = scene
                .stepper(self.verb, self.only)
                .fault(self.n, self.fault);
            verdict.hit.clone_from(&run.hit);
            let (status, said) = (run.outcome.status, run.outcome.stderr_text());
            let judged = scene.judge(self.verb, status, false);
            judged.map_err(|error| format!("{error} (it ended with {status}: {said})"))
        };
        Verdict::of(attempt, |hit| {
            let (plan, fault, n) = (self.plan(), self.fault, self.n);
            format!("{plan}: {fault:?} at {n} ({:?})", hit.map(Step::to_string))
        })
    }
}

/// Every point of these verbs with these faults, at calls of these names.
pub(crate) fn points<T: Tool>(
    tools: &[(T, &[ToolVerb])],
    faults: &[Fault],
    only: Option<&'static [&'static str]>,
) -> Vec<ToolPoint<T>> {
    let mut all = Vec::new();
    for &(tool, verbs) in tools {
        for &verb in verbs {
            let scene = Scene::ready(tool, verb);
            let calls = sweep::calls(scene.stepper(verb, only), &scene.line(verb));
            let point = |n: u64, fault: Fault| ToolPoint {
                tool,
                verb,
                n,
                fault,
                only,
            };
            all.extend((1..=calls).flat_map(|n| faults.iter().map(move |fault| point(n, *fault))));
        }
    }
    all
}

const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EMFILE: i32 = 24;
const EINTR: i32 = 4;

/// The errors that calls meet.
pub(crate) fn errors(form: Form) -> Vec<Fault> {
    let mut faults = vec![Fault::Once(EIO), Fault::Forever(ENOSPC)];
    if form.is_long() {
        let more = [
            Fault::Forever(EROFS),
            Fault::Once(EMFILE),
            Fault::Once(EINTR),
        ];
        faults.extend(more);
    }
    faults
}

/// Power cuts on one file system, at so many calls in the bounded form, and after the end. Where it is `fresh`, what was
/// done in the sandboxes is on no disk yet when the verb begins.
pub(crate) fn cut<T: Tool>(
    fs: Fs,
    tool: T,
    verb: ToolVerb,
    fresh: bool,
    (form, most): (Form, usize),
) -> Option<Figures> {
    let mut disk = LoopFs::new(fs, 96)?;
    let mut scene = Scene::within(tool, World::under(disk.path()));
    // It goes with the image.
    std::mem::forget(scene.world.take());
    match fresh {
        true => drop(scene.cli.ok(scene.line(ToolVerb::Create))),
        false => scene.lead_up(verb),
    }
    let start = disk.disk_at_rest();
    if fresh {
        scene.work(verb);
    }
    let calls = sweep::calls(scene.stepper(verb, None), &scene.line(verb));
    let name = format!("{} {verb:?} on {}", tool.name(), word(fs));
    Some(form.cuts(calls, most, |n| {
        let attempt = |verdict: &mut Verdict| {
            disk.boot(&start);
            if fresh {
                scene.work(verb);
            }
            let mut cut = None;
            let stepper = scene.stepper(verb, None);
            let run = stepper.stop_at(n, |_| cut = Some(disk.disk_now()));
            let cut = cut.unwrap_or_else(|| disk.disk_now());
            disk.boot(&cut);
            verdict.hit.clone_from(&run.hit);
            scene.judge(verb, run.outcome.status, true)
        };
        let mut verdict = Verdict::of(attempt, |hit| {
            format!("{name}: cut at {n} ({:?})", hit.map(Step::to_string))
        });
        // The cut after the end counts too.
        verdict.hit.get_or_insert(Step::named("exit"));
        (name.clone(), verdict)
    }))
}
