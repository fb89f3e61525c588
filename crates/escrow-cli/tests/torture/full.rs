//! File systems that are really full: ext4 with blocks of 1 and of 4 KiB, XFS and Btrfs, filled to every size of the last
//! megabyte, with the home and the originals on them.
//!
//! Whatever comes next:
//!
//! - no command is ended by a signal, and a command that fails says why;
//! - what frees space succeeds: `recover`, `rollback`, `cleanup`, `gc`;
//! - what is said is true: every original is old or every one is new, as the exit code says;
//! - when there is room again, `recover` and `cleanup` succeed, and nothing is left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::fs::FallocateFlags;

use crate::next_world::said;
use crate::sweep;
use crate::*;

const SCENARIO: Scenario = Scenario::tiny(&[Copy, Overlay]);
const SNAPSHOTS: Scenario = Scenario::tiny(&[Snapshot, Overlay]);
/// The last part of the disk, which is freed again byte by byte.
const LAST: u64 = 1024 * 1024;

/// A file system to be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4Small,
    Ext4,
    Xfs,
    Btrfs,
    /// The same with snapshots.
    Snapshots,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Ext4Small,
        Self::Ext4,
        Self::Xfs,
        Self::Btrfs,
        Self::Snapshots,
    ];

    fn scenario(self) -> &'static Scenario {
        match self {
            Self::Snapshots => &SNAPSHOTS,
            _ => &SCENARIO,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ext4Small => "ext4 with blocks of 1 KiB",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Snapshots => "btrfs with snapshots",
        }
    }

    fn block(self) -> u64 {
        match self {
            Self::Ext4Small => 1024,
            _ => 4096,
        }
    }

    /// None, after recording the skip, for an ordinary user.
    fn make(self) -> Option<LoopFs> {
        match self {
            Self::Ext4Small => LoopFs::with_mkfs_args(Fs::Ext4, 16, &["-b", "1024"]),
            Self::Ext4 => LoopFs::new(Fs::Ext4, 16),
            Self::Xfs => LoopFs::new(Fs::Xfs, 300),
            Self::Btrfs | Self::Snapshots => LoopFs::new(Fs::Btrfs, 128),
        }
    }
}

/// A command on the full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Recover,
    Rollback,
    Cleanup,
    Gc,
    Undo,
    Commit,
    Status,
    Diff,
}

impl Act {
    const ALL: [Self; 8] = [
        Self::Recover,
        Self::Rollback,
        Self::Cleanup,
        Self::Gc,
        Self::Undo,
        Self::Commit,
        Self::Status,
        Self::Diff,
    ];

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Recover => &["recover"],
            Self::Rollback => &["rollback", PLAN, "--yes"],
            Self::Cleanup => &["cleanup", PLAN, "--yes"],
            Self::Gc => &["gc"],
            Self::Undo => &["undo", PLAN, "--yes"],
            Self::Commit => &["commit", PLAN, "--yes"],
            Self::Status => &["status"],
            Self::Diff => &["diff", PLAN],
        }
    }

    /// What is done before the disk is filled.
    fn before(self) -> Lead {
        match self {
            Self::Recover => Lead::Killed,
            Self::Undo | Self::Gc => Lead::Committed,
            _ => Lead::Ready,
        }
    }

    fn frees(self) -> bool {
        matches!(
            self,
            Self::Recover | Self::Rollback | Self::Cleanup | Self::Gc
        )
    }
}

/// Where the plan is when the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    Ready,
    Committed,
    /// A commit was killed between its renames.
    Killed,
}

impl Lead {
    const ALL: [Self; 3] = [Self::Ready, Self::Committed, Self::Killed];
}

/// One command with so many bytes free.
#[derive(Debug, Clone, Copy)]
struct Trial {
    act: Act,
    free: u64,
}

/// A file system with a plan on it, and disks on which it is full.
struct Machine {
    kind: Kind,
    subject: Subject,
    // After the subject, whose paths lie in it.
    fs: LoopFs,
}

impl Machine {
    fn new(kind: Kind, bug: Option<&'static str>) -> Option<Self> {
        let fs = kind.make()?;
        let world = World::under(fs.path());
        let subject = Subject::within(kind.scenario(), &world).bugged(bug);
        // It goes with the image.
        std::mem::forget(world);
        Some(Self { kind, subject, fs })
    }

    /// Does what comes before, and fills the disk to the last byte.
    fn fill(&mut self, lead: Lead, killed: u64) -> Result<Disk, String> {
        match lead {
            Lead::Ready => {}
            Lead::Committed => {
                let outcome = self.subject.cli.run(Verb::Commit.words());
                if outcome.status != 0 {
                    return Err(format!("commit before {}", said(&outcome)));
                }
            }
            Lead::Killed => {
                stepper(&self.subject, Verb::Commit, None).fault(killed, Fault::Kill);
            }
        }
        self.fill_files().map_err(|error| error.to_string())?;
        Ok(self.fs.disk_at_rest())
    }

    fn fill_files(&self) -> std::io::Result<()> {
        let full = |error: &std::io::Error| error.raw_os_error() == Some(28);
        let filler = File::create(self.filler())?;
        let (mut size, mut piece) = (0, 64 * LAST);
        while piece >= self.kind.block() {
            match rustix::fs::fallocate(&filler, FallocateFlags::empty(), size, piece) {
                Ok(()) => size += piece,
                Err(error) if full(&error.into()) => piece /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        filler.sync_all()?;
        // The last of what file systems keep for names and small files.
        let names = self.fs.path().join("names");
        fs::create_dir(&names).or_else(|error| match full(&error) {
            true => Ok(()),
            false => Err(error),
        })?;
        for number in 0..20_000 {
            let small = vec![b'x'; 1500];
            match fs::write(names.join(number.to_string()), small) {
                Ok(()) => {}
                Err(error) if full(&error) || error.raw_os_error() == Some(2) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.fs.path().join("filler")
    }

    /// Gives so many bytes back.
    fn free(&self, bytes: u64) -> std::io::Result<()> {
        let filler = File::options().write(true).open(self.filler())?;
        let size = filler.metadata()?.len();
        filler.set_len(size.saturating_sub(bytes))?;
        filler.sync_all()
    }

    /// Removes everything that fills it.
    fn empty(&self) -> std::io::Result<()> {
        fs::remove_file(self.filler())?;
        let names = self.fs.path().join("names");
        match names.exists() {
            true => fs::remove_dir_all(names),
            false => Ok(()),
        }
    }

    fn run(&mut self, start: &Disk, trial: Trial) -> Verdict {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.fs.boot(start);
            self.free(trial.free).map_err(|error| error.to_string())?;
            self.check(trial)
        }));
        let wrong = match done {
            Ok(answer) => answer.err(),
            Err(panic) => Some(words(&*panic)),
        };
        let name = format!(
            "{}, {} bytes free: {:?}",
            self.kind.name(),
            trial.free,
            trial.act
        );
        verdict
            .wrong
            .extend(wrong.map(|wrong| format!("{name}: {wrong}")));
        verdict.hit = Some(Step::named("full"));
        verdict
    }

    /// Runs the command, and checks everything that must hold.
    fn check(&self, trial: Trial) -> Result<(), String> {
        let Trial { act, free } = trial;
        let status = self.command(act, act.frees())?;
        // Where something is full, what frees space is the next thing that is typed.
        let cleaned = (free / self.kind.block()).is_multiple_of(2);
        if cleaned {
            self.command(Act::Cleanup, true)?;
        }
        self.empty().map_err(|error| format!("no room: {error}"))?;
        self.command(Act::Recover, true)?;
        let found = side(&self.subject);
        if let Side::Torn(what) = &found {
            return Err(format!("TORN: {what}"));
        }
        let wanted = match (act, status) {
            (Act::Recover, _) | (_, 5) => None,
            (Act::Commit, 0) => Some(Side::New),
            (Act::Undo, 0) => Some(Side::Old),
            (Act::Undo | Act::Gc, _) => Some(Side::New),
            _ => Some(Side::Old),
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            let (is, said) = (found.word(), wanted.word());
            return Err(format!("it is {is}, but it was said to be {said}"));
        }
        if !cleaned {
            self.go_on(act, status, &found)?;
            self.command(Act::Cleanup, true)?;
        }
        self.command(Act::Gc, true)?;
        nothing_left(&self.subject)
    }

    /// With room again: what was discarded is gone, what was not is released.
    fn go_on(&self, act: Act, status: i32, found: &Side) -> Result<(), String> {
        let wanted = match (act, status) {
            (Act::Rollback, 0) => Side::Old,
            (Act::Cleanup, 0) | (Act::Undo | Act::Gc, _) => return Ok(()),
            _ if *found == Side::New => return Ok(()),
            _ => Side::New,
        };
        self.command(Act::Commit, true)?;
        let found = side(&self.subject);
        match found == wanted {
            true => Ok(()),
            false => Err(format!("a commit with room made it {found:?}")),
        }
    }

    /// Runs a command; its exit code.
    fn command(&self, act: Act, must: bool) -> Result<i32, String> {
        let outcome = self.subject.cli.run(act.words());
        let told = || format!("{act:?} {}", said(&outcome));
        match outcome.status {
            0 => Ok(0),
            1..=5 if must => Err(told()),
            1..=5 if outcome.stderr.is_empty() => Err(format!("{} without a word", told())),
            status @ 1..=5 => Ok(status),
            _ => Err(told()),
        }
    }
}

/// Every command with every size, on one file system.
fn on(kind: Kind, killed: u64, form: Form) -> Option<Figures> {
    let mut figures = Figures::default();
    for lead in Lead::ALL {
        let mut machine = Machine::new(kind, None)?;
        let start = match machine.fill(lead, killed) {
            Ok(start) => start,
            Err(error) => {
                figures.wrong.push(format!("{}: {error}", kind.name()));
                continue;
            }
        };
        let sizes: Vec<u64> = (0..=LAST / kind.block())
            .map(|blocks| blocks * kind.block())
            .collect();
        let mut trials = Vec::new();
        for (place, act) in Act::ALL.into_iter().enumerate() {
            if act.before() != lead {
                continue;
            }
            // Other sizes for each command, most of them small; the fullest disk for all.
            let few = usize::try_from(LAST / 16 / kind.block()).unwrap_or(1);
            let (small, large) = sizes.split_at(few);
            let chosen = match form.is_long() {
                true => sizes.clone(),
                false => [
                    &small[..1],
                    &sweep::thin(&small[1 + place..], 1),
                    &large[large.len() * place / Act::ALL.len()..][..1],
                ]
                .concat(),
            };
            figures.planned += sizes.len();
            trials.extend(chosen.into_iter().map(|free| Trial { act, free }));
        }
        let trials = match form.is_long() {
            true => sweep::spread(trials),
            false => trials,
        };
        let (planned, until) = (figures.planned, form.part(Lead::ALL.len()).until());
        figures.add(sweep::each_here(&trials, until, |trial| {
            (kind.name().to_owned(), machine.run(&start, *trial))
        }));
        figures.planned = planned;
    }
    Some(figures)
}

/// The call at which the commit is killed that is recovered: between its renames.
fn killed() -> u64 {
    let commit = Point::kill(SCENARIO, Before::Nothing, Verb::Commit, 1);
    let telling = telling(&commit.calls());
    telling.get(3).copied().unwrap_or(1)
}

/// The same on every file system; none where there is no root.
pub(crate) fn fills(form: Form) -> Option<Figures> {
    let killed = killed();
    crate::power::on_each(&Kind::ALL, |kind| on(kind, killed, form))
}

/// Whether a seeded bug shows on a full disk.
pub(crate) fn finds(bug: &'static str) -> Option<(String, usize)> {
    let mut tried = 0;
    for kind in [Kind::Ext4, Kind::Ext4Small] {
        let mut machine = Machine::new(kind, Some(bug))?;
        let start = machine.fill(Lead::Ready, 0).ok()?;
        for free in [0, 4096, 16_384, 65_536] {
            for act in [Act::Rollback, Act::Cleanup] {
                tried += 1;
                let verdict = machine.run(&start, Trial { act, free });
                if let Some(wrong) = verdict.wrong.first() {
                    return Some((wrong.clone(), tried));
                }
            }
        }
    }
    None
}

// rule C12, C17, P6
#[test]
fn what_frees_space_succeeds_on_a_full_disk() {
    need!(require_stepper());
    if let Some(figures) = fills(Form::Bounded) {
        figures.settle("full disks", 80);
    }
}
