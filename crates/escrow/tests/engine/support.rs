//! What the tests share: a manager on a home of its own, and one sandbox with short ways to use it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use escrow::config::ConfigError;
use escrow::error::Result;
use escrow::event::{Observer, Unobserved};
use escrow::internals::store::{Plan, Resource, SandboxRecord};
use escrow::manager::{Manager, ManagerOptions, NewResource, PlanView};
use escrow::model::text::Location;
use escrow::model::{ChangeKind, PlanState, ResourcePath, SandboxState};
use escrow::policy::Policy;
pub(crate) use escrow_testkit::files::sh;
use escrow_testkit::namespace::own_mounts;
use escrow_testkit::signature::{Ignore, differences, signature};
use escrow_testkit::user::{GID, UID, as_user};
use escrow_testkit::{OverlayMount, World, XattrKind};

/// Every strategy that keeps the original untouched.
pub(crate) const ISOLATING: [&str; 3] = ["filesystem_copy", "copy_on_write", "overlay"];
/// Every strategy there is.
pub(crate) const ALL: [&str; 4] = ["filesystem_copy", "copy_on_write", "overlay", "none"];
/// The strategies that copy.
pub(crate) const COPIES: [&str; 2] = ["filesystem_copy", "copy_on_write"];

/// What a manager on `home` is opened with.
pub(crate) fn options(home: &Path) -> ManagerOptions {
    ManagerOptions {
        principal: "engine-tests".to_owned(),
        patience: Duration::from_secs(120),
        ..ManagerOptions::new(home)
    }
}

/// A manager on `home`.
pub(crate) fn open(home: &Path) -> Manager {
    Manager::open(options(home)).expect("a manager opens on a fresh or used home")
}

/// Reads a policy as a configuration has it.
pub(crate) fn read_policy(policy: &serde_json::Value) -> std::result::Result<Policy, ConfigError> {
    let text = serde_json::json!({ "policy": policy }).to_string();
    escrow::config::read_policy(text.as_bytes(), Path::new("escrow.yaml"))
}

/// A manager that waits for no process.
pub(crate) fn impatient(home: &Path) -> Manager {
    let mut options = options(home);
    options.patience = Duration::from_millis(50);
    Manager::open(options).expect("it opens beside others")
}

/// The rows of a table, a line each, cut into cells at ` | `. A line that begins with `|` goes on with the row before it, one
/// that begins with `#` is a remark.
pub(crate) fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let joined = table.replace("\n    | ", " | ");
    let lines = joined.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &str| {
        let cells: Vec<String> = line
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect();
        cells
            .try_into()
            .unwrap_or_else(|_| panic!("not {N} cells: {line}"))
    };
    lines.map(row).collect()
}

/// Tries every row with every strategy, also behind one that failed, and then names all that failed.
#[track_caller]
pub(crate) fn try_all<T: std::fmt::Debug>(
    strategies: &[&'static str],
    rows: &[T],
    work: impl Fn(&'static str, &T),
) {
    let mut failed = Vec::new();
    for strategy in strategies {
        for row in rows {
            let tried = std::panic::AssertUnwindSafe(|| work(strategy, row));
            if let Err(panic) = std::panic::catch_unwind(tried) {
                let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                failed.push(format!("{strategy}: {row:?}: {said}"));
            }
        }
    }
    let (count, told) = (failed.len(), failed.join("\n\n"));
    assert!(failed.is_empty(), "{count} rows failed:\n\n{told}");
}

/// A world of its own for each strategy, with a sandbox of a directory that holds `text`.
pub(crate) fn each<'a>(
    strategies: &'a [&'static str],
    text: &'a str,
) -> impl Iterator<Item = (&'static str, World, Sandboxed)> + 'a {
    strategies.iter().map(move |strategy| {
        let world = World::new();
        let original = crate::overlay::original(&world, "original", text);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        (*strategy, world, sandbox)
    })
}

/// An observer that is told of every entry, and never gives up.
pub(crate) struct OnCopied<F>(pub(crate) F);

impl<F: Fn(u64) + Sync> Observer for OnCopied<F> {
    fn copied(&self, entries: u64, _bytes: u64) {
        (self.0)(entries);
    }
}

/// A directory that can be added as a resource.
pub(crate) fn directory<'a>(name: &'a str, at: &'a Path) -> NewResource<'a> {
    NewResource {
        name,
        kind: Some("fs-directory"),
        at,
        parent: None,
        strategy: None,
        allow_root: false,
    }
}

/// A plan of these directories, made in the first one's parent.
#[track_caller]
pub(crate) fn plan_of(
    manager: &Manager,
    name: Option<&str>,
    originals: &[&Path],
    strategy: &str,
) -> PlanView {
    let typed: Vec<_> = originals
        .iter()
        .map(|path| path.as_os_str().to_owned())
        .collect();
    let place = originals[0].parent().expect("it has one");
    let made = manager.create_plan(name, place, &typed, Some(strategy), &Unobserved);
    made.unwrap_or_else(|error| panic!("cannot make a plan: {}", chain(&error)))
}

/// A plan without resources.
pub(crate) fn empty_plan(manager: &Manager, name: &str) -> Plan {
    let made = manager.create_plan(Some(name), Path::new("/"), &[], None, &Unobserved);
    made.expect("a plan needs no resource").plan
}

/// A path inside a resource.
pub(crate) fn at(path: impl AsRef<[u8]>) -> ResourcePath {
    ResourcePath::parse(path.as_ref()).expect("the path of a test is valid")
}

/// One sandbox of one directory.
pub(crate) struct Sandboxed {
    pub(crate) manager: Manager,
    pub(crate) plan: Plan,
    pub(crate) resource: Resource,
    pub(crate) original: PathBuf,
}

impl Sandboxed {
    /// Makes a plan with one sandbox of `original`, a directory or a file.
    pub(crate) fn new(home: &Path, original: &Path, strategy: &str) -> Self {
        Self::attempt(home, original, strategy).unwrap_or_else(|error| {
            panic!("cannot make a sandbox by {strategy}: {}", chain(&error))
        })
    }

    /// The same under a name.
    pub(crate) fn named(home: &Path, name: &str, original: &Path, strategy: &str) -> Self {
        let manager = open(home);
        let view = plan_of(&manager, Some(name), &[original], strategy);
        let (resource, original) = (view.sandboxes[0].resource.clone(), original.to_owned());
        Self {
            manager,
            plan: view.plan,
            resource,
            original,
        }
    }

    /// The same, where it may fail.
    pub(crate) fn attempt(home: &Path, original: &Path, strategy: &str) -> Result<Self> {
        let manager = open(home);
        let typed = [original.as_os_str().to_owned()];
        let of_a_file = original.parent().filter(|_| original.is_file());
        let directory = of_a_file.unwrap_or(original);
        let view = manager.create_plan(None, directory, &typed, Some(strategy), &Unobserved)?;
        let resource = view.sandboxes[0].resource.clone();
        Ok(Self {
            manager,
            plan: view.plan,
            resource,
            original: original.to_owned(),
        })
    }

    /// The record of the sandbox.
    pub(crate) fn sandbox(&self) -> SandboxRecord {
        let view = self
            .manager
            .view(self.plan.clone())
            .expect("the plan can be shown");
        view.sandboxes[0].sandbox.clone()
    }

    pub(crate) fn state_of_plan(&self) -> PlanState {
        let plans = self.manager.plans().expect("they can be listed");
        let ours = plans.iter().find(|view| view.plan.id == self.plan.id);
        ours.expect("it is known").plan.state
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.sandbox().state
    }

    /// Where the sandbox lies on disk.
    pub(crate) fn area(&self) -> PathBuf {
        self.sandbox().area.as_path().to_owned()
    }

    /// The directory that native tools work in.
    pub(crate) fn tree(&self) -> PathBuf {
        let access = self.manager.access(&self.plan, &self.resource, None);
        let path = access.expect("a copy gives a path").cwd;
        path.expect("a copy gives a path").as_path().to_owned()
    }

    /// The layer of an overlay sandbox that takes its changes: the newest.
    pub(crate) fn upper(&self) -> PathBuf {
        let layers = self.area().join("layers");
        let entries = std::fs::read_dir(&layers).expect("an overlay has layers");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.expect("it can be listed").file_name();
            name.to_string_lossy().parse::<u32>().expect("a number")
        };
        let newest = entries.map(name).max().expect("there is one");
        layers.join(newest.to_string())
    }

    /// A real mount of an overlay sandbox.
    pub(crate) fn mounted<T>(&self, work: impl FnOnce(OverlayMount<'_>) -> T) -> T {
        let area = self.area();
        work(OverlayMount {
            lower: &self.original,
            upper: &self.upper(),
            work: &area.join("work"),
            xattr: XattrKind::User,
        })
    }

    /// Runs a script in the sandbox the way its users do: in its path, or under a mount.
    pub(crate) fn native(&self, script: &str) {
        if self.sandbox().reference.strategy_name == "overlay" {
            self.mounted(|mount| mount.run(script));
        } else {
            sh(self.tree(), script);
        }
    }

    /// All bytes of a file of the sandbox.
    pub(crate) fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.manager
            .read(&self.plan, &self.resource, &at(path))?
            .read_to_end(&mut bytes)
            .expect("an opened file can be read");
        Ok(bytes)
    }

    pub(crate) fn write(&self, path: impl AsRef<[u8]>, content: &[u8]) -> Result<ChangeKind> {
        let (plan, resource) = (&self.plan, &self.resource);
        let written = self
            .manager
            .write(plan, resource, &at(path), &mut &*content);
        written.map(|change| change.kind)
    }

    /// The changes by path.
    pub(crate) fn try_diff(&self) -> Result<BTreeMap<Vec<u8>, ChangeKind>> {
        let diffs = self.manager.diff(&self.plan, Some(&self.resource))?;
        let changes = diffs.resources[0].diff.changes.iter();
        Ok(changes
            .map(|change| (change.path.as_bytes().to_vec(), change.kind))
            .collect())
    }

    pub(crate) fn diff(&self) -> BTreeMap<Vec<u8>, ChangeKind> {
        self.try_diff()
            .unwrap_or_else(|error| panic!("cannot diff: {}", chain(&error)))
    }

    /// The changes as a listing: a letter and the escaped path each.
    pub(crate) fn listing(&self) -> Vec<String> {
        let line = |(path, kind): (&Vec<u8>, &ChangeKind)| {
            format!("{} {}", kind.letter(), Location::from_bytes(path))
        };
        self.diff().iter().map(line).collect()
    }

    pub(crate) fn rollback(&self) {
        self.manager
            .rollback(&self.plan, &Unobserved)
            .unwrap_or_else(|error| panic!("cannot roll back: {} {:?}", error, error.hints()));
    }

    pub(crate) fn cleanup(&self) {
        self.manager
            .cleanup(&self.plan, false)
            .unwrap_or_else(|error| panic!("cannot clean up: {} {:?}", error, error.hints()));
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    escrow::error::chain(error)
}

/// Runs one test of this binary again as the test user, who is [`given`] a directory of root's making.
pub(crate) fn run_as_user_with(test: &str, directory: &Path) {
    let world = World::new();
    let exe = std::env::current_exe().expect("a test knows its own executable");
    let copy = world.dir("bin").join("test");
    // By another process: what this one has open for writing, a fork elsewhere may keep open.
    let copied = Command::new("cp").arg(exe).arg(&copy).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "there is room for the executable"
    );
    let own = World::new();
    let private = own.dir("t");
    own.chown_to_user();
    let output = as_user(copy)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .current_dir(&private)
        .env("TMPDIR", &private)
        .env("HOME", &private)
        .env(GIVEN, directory)
        .output()
        .expect("setpriv starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && stdout.contains(" 1 passed;"),
        "{test} failed as user: {}\n{stdout}\n{stderr}",
        output.status
    );
}

const GIVEN: &str = "ESCROW_TEST_GIVEN";

/// [`run_as_user_with`] a directory of that user's, and does meanwhile, among mounts of this thread's own, what the test asks
/// for by [`ask_root`].
pub(crate) fn run_as_user_asking(test: &str, directory: &Path, mut answer: impl FnMut(&str)) {
    sh(directory, &format!("chown -R {UID}:{GID} ."));
    own_mounts();
    let asked = directory.join(ASKED);
    std::thread::scope(|scope| {
        let user = scope.spawn(|| run_as_user_with(test, directory));
        while !user.is_finished() {
            if let Ok(word) = std::fs::read_to_string(&asked) {
                answer(&word);
                std::fs::remove_file(&asked).expect("root may");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

const ASKED: &str = "asked";

/// Has root do something, and waits until that is done.
pub(crate) fn ask_root(directory: &Path, word: &str) {
    let (asked, draft) = (directory.join(ASKED), directory.join("draft"));
    std::fs::write(&draft, word)
        .and_then(|()| std::fs::rename(&draft, &asked))
        .expect("it is this user's");
    while asked.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The directory that [`run_as_user_with`] handed over.
pub(crate) fn given() -> Option<PathBuf> {
    std::env::var_os(GIVEN).map(PathBuf::from)
}

/// The names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()))
        .map(|entry| {
            let name = entry.expect("a listed entry can be read").file_name();
            name.to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    names
}

/// Panics when `home` still has anything of a sandbox.
#[track_caller]
pub(crate) fn assert_swept(home: &Path) {
    for part in ["sandboxes", "locks"] {
        assert_eq!(names(&home.join(part)), [""; 0], "left in {part}");
    }
}

/// In what a tree differs from what it was, its times included.
#[track_caller]
pub(crate) fn assert_untouched(before: &escrow_testkit::signature::Sig, root: &Path) {
    let found = differences(before, &signature(root), &Ignore::default());
    assert!(
        found.is_empty(),
        "the original changed:\n{}",
        found.join("\n")
    );
}
