//! A state store that lost its records in place: emptied, removed, replaced by an older copy, or without its log.
//!
//! Whatever command comes next, none is ended by a signal, one that fails says why, and work that was never released
//! stays on disk. It may be moved, never removed.

use crate::next_world::said;
use crate::sweep;
use crate::*;

const SCENARIO: Scenario = Scenario::tiny(&[Copy, Overlay]);
/// Work in a sandbox that was made after the older copy.
const LATE: &str = "work in a late sandbox\n";

/// What happened to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// `state.db` has no bytes.
    Emptied,
    /// `state.db` has no bytes; what lies beside it is as it was.
    EmptiedAlone,
    Removed,
    /// A copy from before the plan is put back.
    BeforePlan,
    /// A copy from before the last sandbox of the plan is put back.
    BeforeSandbox,
    /// A process was killed, and what SQLite had not yet moved into `state.db` is lost.
    LogLost,
}

impl Damage {
    const ALL: [Self; 6] = [
        Self::Emptied,
        Self::EmptiedAlone,
        Self::Removed,
        Self::BeforePlan,
        Self::BeforeSandbox,
        Self::LogLost,
    ];
}

/// The command that comes first after the damage; all the others follow.
const COMMANDS: [&[&str]; 7] = [
    &["gc"],
    &["recover"],
    &["status"],
    &["plan", "create", "anew", "-r", "originals/A"],
    &["-q", "run", "--plan", PLAN, "--", "true"],
    &["gc", "--older-than", "0s"],
    &["gc", "--max-size", "0"],
];

/// One damage, and the command after it.
#[derive(Debug, Clone, Copy)]
struct Loss {
    damage: Damage,
    first: usize,
    bug: Option<&'static str>,
}

impl Loss {
    fn name(&self) -> String {
        let bug = self
            .bug
            .map_or_else(String::new, |bug| format!(" with {bug}"));
        let first = COMMANDS[self.first].join(" ");
        format!("{:?}, then {first}{bug}", self.damage)
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let world = World::new();
        let home = world.home();
        let cli = Cli::new(&world, &crate::binary());
        // A store that has seen something, so that an older copy is not an empty one.
        let early = world.dir("early");
        let early = early.display().to_string();
        cli.ok(["plan", "create", "early", "-r", &early]);
        cli.ok(["cleanup", "early", "--yes"]);
        let backup = world.at("backup.db");
        let keep = || copy(&home.join("state.db"), &backup);
        keep()?;
        let subject = Subject::within(&SCENARIO, &world).bugged(self.bug);
        let mut work: Vec<String> = LABELS
            .iter()
            .take(subject.members.len())
            .map(|label| format!("new and longer content of {label}\n"))
            .collect();
        if matches!(self.damage, Damage::BeforeSandbox | Damage::LogLost) {
            keep()?;
            late(&world, &subject, self.damage)?;
            work.push(LATE.to_owned());
        }
        self.damage(&home, &backup)?;
        verdict.hit = Some(Step::named("damage"));
        // What a sandbox holds is counted once it is known where all of it lies.
        let missing = |when: &str| match lost(world.path(), &subject.place, &work) {
            Some(text) => Err(format!("{when} no file holds {text:?} any more")),
            None => Ok(()),
        };
        missing("before anything was run")?;
        let others = COMMANDS.iter().cycle().skip(self.first);
        for words in others.take(COMMANDS.len()) {
            let outcome = subject.cli.run(*words);
            let told = format!("`{}` {}", words.join(" "), said(&outcome));
            match outcome.status {
                0..=5 | 125 => {}
                _ => return Err(told),
            }
            if outcome.status != 0 && outcome.stderr.is_empty() {
                return Err(format!("{told} without a word"));
            }
            missing(&format!("after {told}"))?;
        }
        Ok(())
    }

    fn damage(&self, home: &Path, backup: &Path) -> Result<(), String> {
        let store = home.join("state.db");
        let done = match self.damage {
            Damage::EmptiedAlone => fs::write(&store, ""),
            Damage::Emptied => fs::write(&store, "").and_then(|()| without_sidecars(home)),
            Damage::Removed => fs::remove_file(&store).and_then(|()| without_sidecars(home)),
            Damage::LogLost => without_sidecars(home),
            Damage::BeforePlan | Damage::BeforeSandbox => {
                return without_sidecars(home)
                    .map_err(|error| error.to_string())
                    .and_then(|()| copy(backup, &store));
            }
        };
        done.map_err(|error| error.to_string())
    }
}

/// In place, so that the file stays the same one.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::read(from)
        .and_then(|bytes| fs::write(to, bytes))
        .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

/// Removes what SQLite keeps beside the store.
fn without_sidecars(home: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(home)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("state.db-") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Gives the plan another sandbox, and works in it.
fn late(world: &World, subject: &Subject, damage: Damage) -> Result<(), String> {
    let beside = world.dir("beside");
    fs::write(beside.join("late.txt"), "base\n").map_err(|error| error.to_string())?;
    let place = beside.display().to_string();
    let words = [
        "sandbox",
        "create",
        PLAN,
        &place,
        "--strategy",
        "filesystem_copy",
    ];
    if damage == Damage::LogLost {
        // Killed when all is recorded, and before SQLite has moved it into the store.
        let moved = |step: &Step| step.name == "pwrite64" && step.ends("/state.db");
        let create = subject.cli.stepper(words).about(moved);
        create.fault(1, Fault::Kill);
    } else {
        let outcome = subject.cli.run(words);
        if outcome.status != 0 {
            return Err(format!("sandbox create {}", said(&outcome)));
        }
    }
    let sandboxes = files(&subject.home.join("sandboxes"));
    let found = sandboxes.iter().find(|path| path.ends_with("late.txt"));
    let found = found.ok_or("the late sandbox is not there")?;
    fs::write(found, LATE).map_err(|error| error.to_string())
}

/// The first text that no file holds outside the originals.
fn lost(top: &Path, originals: &Path, work: &[String]) -> Option<String> {
    let held: Vec<String> = files(top)
        .iter()
        .filter(|path| !path.starts_with(originals))
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    work.iter().find(|text| !held.contains(text)).cloned()
}

/// Every file below a directory.
fn files(top: &Path) -> Vec<PathBuf> {
    let (mut pending, mut found) = (vec![top.to_owned()], Vec::new());
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

impl Trial for Loss {
    fn plan(&self) -> String {
        SCENARIO.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |_| self.name())
    }
}

fn every(bug: Option<&'static str>) -> Vec<Loss> {
    let mut all = Vec::new();
    for damage in Damage::ALL {
        all.extend((0..COMMANDS.len()).map(|first| Loss { damage, first, bug }));
    }
    all
}

/// Every damage, every command first.
pub(crate) fn losses(form: Form) -> Figures {
    form.run(every(None), 42)
}

/// Whether a seeded bug shows.
pub(crate) fn finds(bug: &'static str) -> Option<(String, usize)> {
    sweep::first_wrong(&every(Some(bug)))
}

// rule P6, C6
#[test]
fn work_that_was_never_released_outlives_a_damaged_store() {
    need!(require_stepper());
    losses(Form::Bounded).settle("damaged stores", 40);
}
