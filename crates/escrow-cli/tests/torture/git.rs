//! Git checkouts under faults: alone, and with a directory in one plan. What must come out is made by the same work with
//! git alone, in a plain clone; dates are fixed, so that even the names of commits must be the same.
//!
//! Besides what holds for all (`tool`), `git fsck` finds nothing; and after `cleanup` no lock, reference, pack that nothing
//! names, or temporary file is left in the user's repository.

use std::sync::LazyLock;

use crate::errors::{EACCES, EIO};
use crate::power::on_each;
use crate::tool::{Scene, Tool, ToolVerb, cut, points};
use crate::unlinks::UNLINKS;
use crate::*;

const VERBS: &[ToolVerb] = &[
    ToolVerb::Commit,
    ToolVerb::Undo,
    ToolVerb::Merge,
    ToolVerb::Create,
    ToolVerb::Rollback,
    ToolVerb::Cleanup,
    ToolVerb::Checkpoint,
    ToolVerb::Restore,
];

/// Dates that are always the same.
const DATES: [(&str, &str); 2] = [
    ("GIT_AUTHOR_DATE", "1500000000 +0000"),
    ("GIT_COMMITTER_DATE", "1500000000 +0000"),
];

const SET_UP: &str =
    "git init -q -b main . && git config user.name U && git config user.email u@example.org
    mkdir src && echo one > src/a && echo two > b && echo three > gone && seq 1 9 > lines && echo '*.o' > .gitignore
    git add -A && git commit -qm first && git branch other && git tag old
    echo dirty >> b && echo staged > s && git add s && echo plain > u && echo object > x.o";

const WORK: &str =
    "set -e; echo agent >> src/a; sed -i 1s/.*/agent/ lines; git rm -q gone; mkdir new; echo new > new/f; git add new
    git commit -q -m work src/a lines gone new/f; echo later > new/l; git add new/l; echo loose > loose";

/// What the user does meanwhile, where histories are merged: a file is merged by lines.
const USER: &str = "sed -i 9s/.*/user/ lines; git commit -q --only -m user lines";

const NOTES: &str = "echo old > note; echo gone > drop";
const NOTES_WORK: &str = "echo new > note; rm drop; echo added > more";

/// Everything of a checkout and of the notes beside it that is promised to be old or new; reflogs are not.
const LOOK: &str = "cd app; git for-each-ref --format='%(objectname) %(refname)' refs/heads refs/tags refs/stash
    git symbolic-ref HEAD; git rev-parse HEAD^{tree}; git log --format=%s; git ls-files -s; git status --porcelain=v2 --ignored
    cat .git/config; ls .git/hooks; find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
    cd ../notes; find . -type f -print0 | sort -z | xargs -0 sha256sum";

fn shell(dir: &Path, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(dir).envs(DATES);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    output_of(command.env("GIT_OPTIONAL_LOCKS", "0"))
}

/// A checkout, and whether the notes beside it are a member too.
#[derive(Debug, Clone, Copy)]
struct Checkout {
    mixed: bool,
}

/// What may come out.
struct GitSides {
    old: String,
    new: String,
}

/// Found out with git alone; by whether the notes change too.
fn sides(mixed: bool) -> &'static GitSides {
    static SIDES: LazyLock<[GitSides; 2]> = LazyLock::new(|| {
        [false, true].map(|mixed| {
            let world = World::new();
            furnish(world.path());
            let old = shell(world.path(), LOOK);
            shell(&world.at("app"), WORK);
            if mixed {
                shell(&world.at("notes"), NOTES_WORK);
            }
            let new = shell(world.path(), LOOK);
            GitSides { old, new }
        })
    });
    &SIDES[usize::from(mixed)]
}

fn furnish(root: &Path) {
    for (name, script) in [("app", SET_UP), ("notes", NOTES)] {
        fs::create_dir(root.join(name)).expect("a directory");
        shell(&root.join(name), script);
    }
}

/// What a command inside says of the checkout.
const STATE: &str = "git log --format=%s -1; git status --short; git fsck 2>&1 | grep -v '^dangling\\|^notice' || true";

impl Checkout {
    fn inside(scene: &Scene<Self>, script: &str) -> String {
        let mut line = escrow_testkit::cli::words("run --plan t -- sh -c");
        line.push(OsString::from(script));
        scene.cli.ok(line)
    }

    fn merged(scene: &Scene<Self>, now: &str) -> Result<Side, String> {
        let app = scene.root.join("app");
        let log = shell(&app, "git log --format=%s");
        let status = shell(&app, "git status --short");
        let notes = shell(&scene.root, "cat notes/note");
        let subjects: BTreeSet<&str> = log.lines().collect();
        let new = subjects.contains("work");
        let wanted = match new {
            true => " M b\nA  new/l\nA  s\n?? loose\n?? u\n",
            false => " M b\nA  s\n?? u\n",
        };
        let note = if new && scene.tool.mixed {
            "new\n"
        } else {
            "old\n"
        };
        let first = if new { "agent" } else { "1" };
        let lines = format!("{first}\n2\n3\n4\n5\n6\n7\n8\nuser\n");
        let merged = shell(&app, "cat lines") == lines;
        let holds = subjects.contains("user") && status == wanted && notes == note && merged;
        match holds {
            true if new => Ok(Side::New),
            true => Ok(Side::Old),
            false => Err(format!("neither old nor merged: {status}{now}")),
        }
    }
}

impl Tool for Checkout {
    fn name(self) -> String {
        let what = if self.mixed { "git+directory" } else { "git" };
        what.to_owned()
    }

    fn members(self) -> &'static str {
        match self.mixed {
            true => "-r app -r notes",
            false => "-r app",
        }
    }

    fn furnish(self, world: &World) -> Cli {
        furnish(world.path());
        let mut cli = Cli::new(world, &binary()).cwd(world.at("app"));
        for (name, value) in DATES {
            cli = cli.env(name, value);
        }
        cli.ok("resource add app --type git-checkout --at .");
        cli.ok("resource add notes --type fs-directory --at ../notes");
        cli
    }

    fn work(scene: &Scene<Self>) {
        Self::inside(scene, WORK);
        if scene.tool.mixed {
            Self::inside(scene, &format!("cd ../notes; {NOTES_WORK}"));
        }
    }

    fn then(scene: &Scene<Self>, verb: ToolVerb) -> i64 {
        match verb {
            ToolVerb::Merge => drop(shell(&scene.root.join("app"), USER)),
            ToolVerb::Restore => {
                scene.cli.ok("checkpoint create t -m here");
                let more = "echo more > more; git add -A; git commit -qm more; git stash list";
                Self::inside(scene, more);
            }
            _ => {}
        }
        0
    }

    fn side(scene: &Scene<Self>, verb: ToolVerb) -> Result<Side, String> {
        let now = shell(&scene.root, LOOK);
        let GitSides { old, new } = sides(scene.tool.mixed);
        match now {
            // The names of merge commits are not known before: files, index and subjects are.
            now if verb == ToolVerb::Merge => Self::merged(scene, &now),
            now if now == *old => Ok(Side::Old),
            now if now == *new => Ok(Side::New),
            now => Err(format!(
                "neither old nor new: {}",
                first_difference(old, new, &now)
            )),
        }
    }

    /// The sandbox holds all of its work, what it had before, or what came after the checkpoint.
    fn holds_work(scene: &Scene<Self>, verb: ToolVerb) -> Result<bool, String> {
        let said = Self::inside(scene, STATE);
        match (verb, said.as_str()) {
            (ToolVerb::Restore, "more\n") => Ok(false),
            (ToolVerb::Create | ToolVerb::Rollback, "first\n M b\nA  s\n?? u\n") => Ok(false),
            (
                ToolVerb::Checkpoint | ToolVerb::Restore | ToolVerb::Rollback,
                "work\n M b\nA  new/l\nA  s\n?? loose\n?? u\n",
            ) => Ok(verb != ToolVerb::Rollback),
            _ => Err(format!("the sandbox is torn: {said}")),
        }
    }

    fn nothing_left(scene: &Scene<Self>) -> Result<(), String> {
        let app = scene.root.join("app");
        let left = shell(
            &app,
            "find .git -name '*.lock' -o -name 'tmp_*' -o -path '*refs/escrow*' -o -name '*.keep'; git for-each-ref refs/escrow
             git fsck --strict 2>&1 | grep -v '^dangling\\|^notice' || true",
        );
        if !left.is_empty() {
            return Err(format!("left in the repository: {left}"));
        }
        let used = shell(&app, "git reflog --all").contains("escrow: ");
        let packs = fs::read_dir(app.join(".git/objects/pack")).map_or(0, Iterator::count);
        if !used && packs > 0 {
            return Err("a pack is left that nothing names".to_owned());
        }
        let areas = fs::read_dir(scene.root.join("escrow-home/sandboxes"));
        match areas.map_or(0, Iterator::count) {
            0 => Ok(()),
            areas => Err(format!("{areas} areas are left in the home")),
        }
    }
}

/// The first line that neither of two texts has.
fn first_difference(old: &str, new: &str, now: &str) -> String {
    let known: BTreeSet<&str> = old.lines().chain(new.lines()).collect();
    let odd: Vec<&str> = now.lines().filter(|line| !known.contains(line)).collect();
    let lines: BTreeSet<&str> = now.lines().collect();
    let of = |text: &str| text.lines().filter(|line| !lines.contains(line)).count();
    format!(
        "lines of neither: {odd:?}; {} of old and {} of new are missing",
        of(old),
        of(new)
    )
}

/// With the directory, and in the long form without it.
fn checkouts(form: Form) -> Vec<(Checkout, &'static [ToolVerb])> {
    let mixes: &[bool] = match form {
        Form::Bounded => &[true],
        Form::Long(_) => &[false, true],
    };
    let each = mixes.iter();
    each.map(|&mixed| (Checkout { mixed }, VERBS)).collect()
}

/// Kills at every call.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(points(&checkouts(form), &[Fault::Kill], None), 30)
}

/// Errors at every call.
pub(crate) fn errors(form: Form) -> Figures {
    let faults = crate::tool::errors(form);
    form.run(points(&checkouts(form), &faults, None), 16)
}

/// Every removal fails once: git itself leaves a lock then.
pub(crate) fn removals(form: Form) -> Figures {
    let faults = [Fault::Once(EIO), Fault::Once(EACCES)];
    form.run(points(&checkouts(form), &faults, Some(UNLINKS)), 8)
}

/// Power cuts; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    on_each(&Fs::ALL, |fs| {
        let mut figures = Figures::default();
        let verbs: &[ToolVerb] = match form.is_long() {
            true => &[
                ToolVerb::Commit,
                ToolVerb::Undo,
                ToolVerb::Create,
                ToolVerb::Rollback,
                ToolVerb::Cleanup,
            ],
            false => &[ToolVerb::Commit, ToolVerb::Undo],
        };
        let mixed = fs != Fs::Xfs;
        for &verb in verbs {
            let (fresh, form) = (verb == ToolVerb::Commit, form.part(verbs.len()));
            figures.add(cut(fs, Checkout { mixed }, verb, fresh, (form, 3))?);
        }
        Some(figures)
    })
}

// rule C1, C3
#[test]
fn git_killed_anywhere() {
    need!(require_stepper());
    kills(Form::Bounded).settle("git: kills", 25);
}

// rule C4
#[test]
fn git_with_errors_anywhere() {
    need!(require_stepper());
    errors(Form::Bounded).settle("git: errors", 12);
}

// rule C3
#[test]
fn git_when_the_power_is_cut() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("git: power cuts on ext4, xfs and btrfs", 18);
    }
}
