//! Git checkouts under faults: alone, and with a directory in one plan. What must come out is made by the same work with
//! git alone, in a plain clone; dates are fixed, so that even the names of commits must be the same.
//!
//! After each fault `recover` succeeds, and finds nothing the second time; both members are old, or both are new; what
//! the program said is true; the next verbs work; `git fsck` finds nothing; and after `cleanup` no lock, reference, pack
//! that nothing names, or temporary file is left in the user's repository, and nothing in the home.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use crate::errors::{EACCES, EIO};
use crate::power::{on_each, word};
use crate::sweep::{each_here, spread, thin};
use crate::unlinks::UNLINKS;
use crate::*;

/// What is interrupted, and what was done before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitVerb {
    Create,
    Checkpoint,
    Restore,
    Rollback,
    Commit,
    Merge,
    Undo,
    Cleanup,
}

impl GitVerb {
    const ALL: [Self; 8] = [
        Self::Commit,
        Self::Undo,
        Self::Merge,
        Self::Create,
        Self::Rollback,
        Self::Cleanup,
        Self::Checkpoint,
        Self::Restore,
    ];

    /// The line; `mixed` says whether the directory is a member too.
    fn line(self, mixed: bool) -> &'static str {
        match (self, mixed) {
            (Self::Create, false) => "plan create t -r app",
            (Self::Create, true) => "plan create t -r app -r notes",
            (Self::Checkpoint, _) => "checkpoint create t",
            (Self::Restore, _) => "restore t here",
            (Self::Rollback, _) => "rollback t --yes",
            (Self::Commit | Self::Merge, _) => "commit t --yes",
            (Self::Undo, _) => "undo t --yes",
            (Self::Cleanup, _) => "cleanup t --yes",
        }
    }

    /// Whether the new state may come out of it.
    fn releases(self) -> bool {
        matches!(self, Self::Commit | Self::Merge | Self::Undo)
    }
}

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
    let output = Command::new("sh")
        .args(["-euc", script])
        .envs(DATES)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .current_dir(dir)
        .output()
        .expect("there is a shell");
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {failed}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A checkout, notes beside it, and a plan.
struct GitWorld {
    cli: Cli,
    root: PathBuf,
    mixed: bool,
    _world: Option<World>,
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
            shell(&world.path().join("app"), WORK);
            if mixed {
                shell(&world.path().join("notes"), NOTES_WORK);
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

impl GitWorld {
    fn new(mixed: bool) -> Self {
        Self::within(World::new(), mixed)
    }

    fn within(world: World, mixed: bool) -> Self {
        let root = world.path().to_owned();
        furnish(&root);
        let mut cli = Cli::new(&world, &binary()).cwd(root.join("app"));
        for (name, value) in DATES {
            cli = cli.env(name, value);
        }
        cli.ok("resource add app --type git-checkout --at .");
        cli.ok("resource add notes --type fs-directory --at ../notes");
        Self {
            cli,
            root,
            mixed,
            _world: Some(world),
        }
    }

    /// The sandbox, and what an agent does in it.
    fn create(&self) {
        self.cli.ok(GitVerb::Create.line(self.mixed));
    }

    fn work(&self) {
        self.inside(WORK);
        if self.mixed {
            self.inside(&format!("cd ../notes; {NOTES_WORK}"));
        }
    }

    fn inside(&self, script: &str) -> String {
        let mut line = words_of("run --plan t -- sh -c");
        line.push(OsString::from(script));
        self.cli.ok(line)
    }

    /// Everything before the verb.
    fn lead_up(&self, verb: GitVerb) {
        if verb == GitVerb::Create {
            return;
        }
        self.create();
        self.work();
        match verb {
            GitVerb::Undo => drop(self.cli.ok("commit t --yes")),
            GitVerb::Merge => drop(shell(&self.root.join("app"), USER)),
            GitVerb::Restore => {
                self.cli.ok("checkpoint create t -m here");
                self.inside("echo more > more; git add -A; git commit -qm more; git stash list");
            }
            _ => {}
        }
    }

    /// Which side everything is on.
    fn side(&self, verb: GitVerb) -> Result<Side, String> {
        let now = shell(&self.root, LOOK);
        let GitSides { old, new } = sides(self.mixed);
        if verb == GitVerb::Merge {
            // The names of merge commits are not known before: files, index and subjects are.
            return self.merged(&now);
        }
        match now {
            now if now == *old => Ok(Side::Old),
            now if now == *new => Ok(Side::New),
            now => Err(format!(
                "neither old nor new: {}",
                first_difference(old, new, &now)
            )),
        }
    }

    fn merged(&self, now: &str) -> Result<Side, String> {
        let app = self.root.join("app");
        let log = shell(&app, "git log --format=%s");
        let status = shell(&app, "git status --short");
        let notes = shell(&self.root, "cat notes/note");
        let subjects: BTreeSet<&str> = log.lines().collect();
        let new = subjects.contains("work");
        let wanted = match new {
            true => " M b\nA  new/l\nA  s\n?? loose\n?? u\n",
            false => " M b\nA  s\n?? u\n",
        };
        let note = if new && self.mixed { "new\n" } else { "old\n" };
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

    /// What is left in the repository and in the home after everything is cleaned up.
    fn nothing_left(&self) -> Result<(), String> {
        let app = self.root.join("app");
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
        let areas = fs::read_dir(self.cli_home().join("sandboxes")).map_or(0, Iterator::count);
        match areas {
            0 => Ok(()),
            areas => Err(format!("{areas} areas are left in the home")),
        }
    }

    fn cli_home(&self) -> PathBuf {
        self.root.join("escrow-home")
    }

    /// Everything that must hold after a fault; `dark` says that the power was cut, so that work which was not released may be gone.
    fn judge(&self, verb: GitVerb, status: i32, dark: bool) -> Result<(), String> {
        let ok = |line: &str| {
            let done = self.cli.run(line);
            match done.status {
                0 => Ok(done.stdout_text() + &done.stderr_text()),
                other => Err(format!(
                    "`{line}` ended with {other}: {}",
                    done.stderr_text()
                )),
            }
        };
        ok("recover")?;
        let again = ok("recover")?;
        if !again.contains("nothing to recover") {
            return Err(format!("the second recover found something: {again}"));
        }
        let side = self.side(verb)?;
        let done = match verb {
            GitVerb::Undo => Side::Old,
            _ if verb.releases() => Side::New,
            _ => Side::Old,
        };
        let undone = match verb {
            GitVerb::Undo => Side::New,
            _ => Side::Old,
        };
        match status {
            0 if side != done => {
                return Err(format!("it said that it is done, and is {}", side.word()));
            }
            1..=4 if side != undone => {
                return Err(format!(
                    "it said that it failed ({status}), and is {}",
                    side.word()
                ));
            }
            _ => {}
        }
        self.go_on(verb, &side, dark, &ok)?;
        self.nothing_left()
    }

    /// The next verbs.
    fn go_on(
        &self,
        verb: GitVerb,
        side: &Side,
        dark: bool,
        ok: &impl Fn(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let shown = self.cli.run("--json plan show t");
        let state: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        let open = shown.status == 0 && state["state"] == "open";
        let is = |wanted: Side| match self.side(verb)? {
            side if side == wanted => Ok(()),
            side => Err(format!("{} instead of {}", side.word(), wanted.word())),
        };
        match (verb, side) {
            (GitVerb::Commit | GitVerb::Merge, Side::New) => {
                ok("undo t --yes")?;
                is(Side::Old)?;
            }
            (GitVerb::Undo, Side::New) => {
                ok("undo t --yes")?;
                is(Side::Old)?;
            }
            (GitVerb::Commit | GitVerb::Merge, _) if open && !dark => {
                ok("commit t --yes")?;
                is(Side::New)?;
                ok("undo t --yes")?;
                is(Side::Old)?;
            }
            (GitVerb::Checkpoint | GitVerb::Restore, _) if open && !dark => {
                // The sandbox holds all of its work, or what it had at the checkpoint.
                let said = self.inside("git log --format=%s -1; git status --short; git fsck 2>&1 | grep -v '^dangling\\|^notice' || true");
                let work = "work\n M b\nA  new/l\nA  s\n?? loose\n?? u\n";
                if said != work && !(verb == GitVerb::Restore && said == "more\n") {
                    return Err(format!("the sandbox is torn: {said}"));
                }
                if said == work {
                    ok("commit t --yes")?;
                    is(Side::New)?;
                    ok("undo t --yes")?;
                    is(Side::Old)?;
                }
            }
            (GitVerb::Create | GitVerb::Rollback, _) if open && !dark => {
                let said = self.inside("git log --format=%s -1; git status --short; git fsck 2>&1 | grep -v '^dangling\\|^notice' || true");
                let fresh = "first\n M b\nA  s\n?? u\n";
                let worked = "work\n M b\nA  new/l\nA  s\n?? loose\n?? u\n";
                if said != fresh && !(verb == GitVerb::Rollback && said == worked) {
                    return Err(format!("the sandbox is torn: {said}"));
                }
            }
            _ => {}
        }
        if shown.status == 0 {
            ok("cleanup t --yes")?;
        }
        // Undo data of what was taken back goes too.
        ok("gc --older-than 0s")?;
        is(Side::Old)
    }
}

fn words_of(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
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

/// One fault.
#[derive(Debug, Clone, Copy)]
struct GitPoint {
    verb: GitVerb,
    mixed: bool,
    n: u64,
    fault: Fault,
    /// The calls that count; all where there is none.
    only: Option<&'static [&'static str]>,
}

impl GitPoint {
    fn name(&self) -> String {
        let what = if self.mixed { "git+directory" } else { "git" };
        format!("{what} {:?}", self.verb)
    }
}

impl Trial for GitPoint {
    fn plan(&self) -> String {
        self.name()
    }

    fn run(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let world = GitWorld::new(self.mixed);
            world.lead_up(self.verb);
            let stepper = stepper(&world, self.verb, self.only);
            let run = stepper.fault(self.n, self.fault);
            verdict.hit.clone_from(&run.hit);
            let status = run.outcome.status;
            world.judge(self.verb, status, false).map_err(|error| {
                format!(
                    "{error} (it ended with {status}: {})",
                    run.outcome.stderr_text()
                )
            })
        }));
        let wrong = match done {
            Ok(answer) => answer.err(),
            Err(panic) => Some(words(&*panic)),
        };
        let call = verdict.hit.as_ref().map(Step::to_string);
        let (name, n, fault) = (self.name(), self.n, self.fault);
        let told = wrong.map(|wrong| format!("{name}: {fault:?} at {n} ({call:?}): {wrong}"));
        verdict.wrong.extend(told);
        verdict
    }
}

fn stepper(world: &GitWorld, verb: GitVerb, only: Option<&'static [&'static str]>) -> Stepper {
    let stepper = world.cli.stepper(verb.line(world.mixed));
    match only {
        Some(names) => stepper.only(names),
        None => stepper,
    }
}

/// Every point of these verbs with these faults, at calls of these names.
fn points(
    faults: &[Fault],
    only: Option<&'static [&'static str]>,
    mixes: &[bool],
) -> Vec<GitPoint> {
    let mut all = Vec::new();
    for &mixed in mixes {
        for verb in GitVerb::ALL {
            let world = GitWorld::new(mixed);
            world.lead_up(verb);
            let calls = sweep::calls(stepper(&world, verb, only), verb.line(mixed));
            for n in 1..=calls {
                let of = |&fault: &Fault| GitPoint {
                    verb,
                    mixed,
                    n,
                    fault,
                    only,
                };
                all.extend(faults.iter().map(of));
            }
        }
    }
    all
}

/// Whether the directory is a member too.
fn mixes(form: Form) -> &'static [bool] {
    match form {
        Form::Bounded => &[true],
        Form::Long(_) => &[false, true],
    }
}

/// Kills at every call.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(points(&[Fault::Kill], None, mixes(form)), 30)
}

const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EMFILE: i32 = 24;
const EINTR: i32 = 4;

/// Errors at every call.
pub(crate) fn errors(form: Form) -> Figures {
    let mut faults = vec![Fault::Once(EIO), Fault::Forever(ENOSPC)];
    if form.is_long() {
        faults.extend([
            Fault::Forever(EROFS),
            Fault::Once(EMFILE),
            Fault::Once(EINTR),
        ]);
    }
    form.run(points(&faults, None, mixes(form)), 16)
}

/// Every removal fails once: git itself leaves a lock then.
pub(crate) fn removals(form: Form) -> Figures {
    let faults = [Fault::Once(EIO), Fault::Once(EACCES)];
    form.run(points(&faults, Some(UNLINKS), mixes(form)), 8)
}

/// Power cuts; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    on_each(&Fs::ALL, |fs| {
        let mut figures = Figures::default();
        let verbs: &[GitVerb] = match form.is_long() {
            true => &[
                GitVerb::Commit,
                GitVerb::Undo,
                GitVerb::Create,
                GitVerb::Rollback,
                GitVerb::Cleanup,
            ],
            false => &[GitVerb::Commit, GitVerb::Undo],
        };
        let mixed = fs != Fs::Xfs;
        for &verb in verbs {
            figures.add(cut(fs, verb, mixed, form.part(verbs.len()))?);
        }
        Some(figures)
    })
}

/// Cuts on one file system. What the agent did is on no disk yet when the commit begins.
fn cut(kind: Fs, verb: GitVerb, mixed: bool, form: Form) -> Option<Figures> {
    let mut disk = LoopFs::new(kind, 96)?;
    let mut world = GitWorld::within(World::under(disk.path()), mixed);
    // It goes with the image.
    std::mem::forget(world._world.take());
    let fresh = verb == GitVerb::Commit;
    match fresh {
        true => world.create(),
        false => world.lead_up(verb),
    }
    let start = disk.disk_at_rest();
    let ready = |world: &GitWorld| {
        if fresh {
            world.work();
        }
    };
    ready(&world);
    let all = sweep::calls(world.cli.stepper(verb.line(mixed)), verb.line(mixed));
    let mut chosen: Vec<u64> = match form {
        Form::Bounded => thin(&(1..=all).collect::<Vec<_>>(), 3),
        Form::Long(_) => spread((1..=all).collect()),
    };
    // Well beyond the last call, which is not always the same.
    chosen.insert(0, all + 100);
    let planned = usize::try_from(all).unwrap_or(usize::MAX) + 1;
    let figures = each_here(&chosen, form.until(), |&n| {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            disk.boot(&start);
            ready(&world);
            let mut cut = None;
            let stepper = world.cli.stepper(verb.line(mixed));
            let run = stepper.stop_at(n, |_| cut = Some(disk.disk_now()));
            let cut = cut.unwrap_or_else(|| disk.disk_now());
            disk.boot(&cut);
            verdict.hit.clone_from(&run.hit);
            world.judge(verb, run.outcome.status, true)
        }));
        let wrong = match done {
            Ok(answer) => answer.err(),
            Err(panic) => Some(words(&*panic)),
        };
        let call = verdict.hit.as_ref().map(Step::to_string);
        let name = format!(
            "{verb:?} on {}{}",
            word(kind),
            if mixed { " with a directory" } else { "" }
        );
        let told = wrong.map(|wrong| format!("git {name}: cut at {n} ({call:?}): {wrong}"));
        verdict.wrong.extend(told);
        // The cut after the end counts too.
        verdict.hit.get_or_insert(Step::named("exit"));
        (name, verdict)
    });
    Some(Figures { planned, ..figures })
}

// rule C1, C3
#[test]
fn git_killed_anywhere() {
    if require_stepper() {
        kills(Form::Bounded).settle("git: kills", 25);
    }
}

// rule C4
#[test]
fn git_with_errors_anywhere() {
    if require_stepper() {
        errors(Form::Bounded).settle("git: errors", 12);
    }
}

// rule C3
#[test]
fn git_when_the_power_is_cut() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("git: power cuts on ext4, xfs and btrfs", 18);
    }
}
