//! Several processes on one home, some of them killed; and stores that are not ours.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use escrow::error::{Error, Kind};
use escrow::event::{Observer, Unobserved};
use escrow::internals::store::StoreError;
use escrow::manager::Manager;
use escrow::model::SandboxState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::tree::build;

use crate::overlay::{BASE, original};
use crate::support::{assert_swept, assert_untouched, at, open, options};

const WORLD: &str = "ESCROW_TEST_WORLD";
const MOMENT: &str = "ESCROW_TEST_MOMENT";

/// Starts one test of this binary as another process, with a world to work in.
fn start(test: &str, world: &Path, snapshot: u64) -> Child {
    let exe = std::env::current_exe().expect("a test knows its own executable");
    Command::new(exe)
        .args(["--exact", test, "--nocapture"])
        .env(WORLD, world)
        .env(MOMENT, snapshot.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test starts")
}

fn told(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.into_string().expect("worlds have plain names"))
}

/// Says when so many entries were copied, and then waits for its end.
struct Halting {
    snapshot: u64,
    copied: AtomicU64,
    marker: std::path::PathBuf,
}

impl Observer for Halting {
    fn copied(&self, entries: u64, _bytes: u64) {
        if self.copied.fetch_add(entries, Ordering::SeqCst) + entries >= self.snapshot {
            fs::write(&self.marker, "now").expect("the world is writable");
            loop {
                std::thread::park();
            }
        }
    }
}

/// Does nothing by itself: the process that others start and kill.
#[test]
fn child_that_is_killed() {
    let (Some(world), Some(snapshot)) = (told(WORLD), told(MOMENT)) else {
        return;
    };
    let world = Path::new(&world);
    let observer = Halting {
        snapshot: snapshot.parse().expect("a number was handed over"),
        copied: AtomicU64::new(0),
        marker: world.join("marker"),
    };
    let typed = [world.join("original").into_os_string()];
    open(&world.join("escrow-home"))
        .create_plan(
            Some("killed"),
            world,
            &typed,
            Some("filesystem_copy"),
            &observer,
        )
        .expect("it is killed before it ends");
}

fn kill_while_it_copies(world: &World, snapshot: u64) {
    let marker = world.path().join("marker");
    let mut child = start("processes::child_that_is_killed", world.path(), snapshot);
    let start = Instant::now();
    while !marker.exists() {
        let ended = child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the child ended by itself: {ended:?}");
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().expect("it is our child");
            panic!("the child never came so far");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    fs::remove_file(&marker).expect("it was made");
}

// rule P3, P4, P6
#[test]
fn a_create_that_is_killed() {
    let world = World::new();
    let original = world.dir("original");
    for number in 0..300 {
        build(
            &original,
            &format!("d{}/f{number} \"{number}\"", number % 20),
        );
    }
    let before = signature(&original);
    for (turn, snapshot) in [1, 20, 150, 299].into_iter().enumerate() {
        kill_while_it_copies(&world, snapshot);
        let manager = open(&world.home());
        let status = manager.status().expect("it can be shown");
        assert!(
            status.running.iter().all(|one| !one.alive),
            "its process has ended"
        );
        assert!(!status.running.is_empty(), "what was interrupted is shown");
        assert!(status.plans.is_empty(), "it cannot be used");
        let unfinished = &status.unfinished[..];
        assert_eq!(unfinished.len(), 1, "{unfinished:?}");
        assert_eq!(unfinished[0].plan, "killed");
        let plan = manager
            .resolve_plan(Some("killed"), world.path())
            .expect("it is recorded");
        let views = manager
            .view(plan.clone())
            .expect("it is recorded")
            .sandboxes;
        let view = &views[0];
        assert_eq!(view.sandbox.state, SandboxState::Pending);
        let error = manager.read(&plan, &view.resource, &at("d1/f1")).err();
        let error = error.expect("it was never finished");
        assert_eq!(error.kind(), Kind::RecoveryNeeded, "{error}");
        match turn % 2 {
            // What changes something removes it first.
            0 => drop(
                manager
                    .create_sandbox(&plan, &view.resource, Some("filesystem_copy"), &Unobserved)
                    .expect_err("the plan is gone"),
            ),
            _ => drop(manager.recover().expect("it can be removed")),
        }
        assert_swept(&world.home());
        assert_untouched(&before, &original);
        let status = manager.status().expect("it can be shown");
        assert!(status.running.is_empty() && status.unfinished.is_empty());
        let gone = manager.resolve_plan(Some("killed"), world.path());
        assert!(gone.is_err(), "as if it had never been");
    }
}

/// Does nothing by itself: one of many processes that use a home at once.
#[test]
fn child_that_makes_plans() {
    let (Some(world), Some(number)) = (told(WORLD), told(MOMENT)) else {
        return;
    };
    let world = Path::new(&world);
    let typed = [world.join("original").into_os_string()];
    for turn in 0..4 {
        let strategy = if turn % 2 == 0 {
            "overlay"
        } else {
            "filesystem_copy"
        };
        let manager = open(&world.join("escrow-home"));
        let view = manager
            .create_plan(None, world, &typed, Some(strategy), &Unobserved)
            .expect("there is room for all");
        let (plan, resource) = (&view.plan, &view.sandboxes[0].resource);
        let text = format!("by {number} in {turn}");
        manager
            .write(plan, resource, &at("file"), &mut text.as_bytes())
            .expect("it can be written");
        let mut read = String::new();
        std::io::Read::read_to_string(
            &mut manager
                .read(plan, resource, &at("file"))
                .expect("it was written"),
            &mut read,
        )
        .expect("it can be read");
        assert_eq!(read, text, "nobody else writes here");
        assert_eq!(
            manager.diff(plan, None).expect("it differs").resources[0]
                .diff
                .changes
                .len(),
            1
        );
        if turn < 2 {
            manager.cleanup(plan, false).expect("it can be removed");
        }
    }
}

// rule P3, P4
#[test]
fn many_processes_at_once() {
    const PROCESSES: u64 = 8;
    let world = World::new();
    let original = original(&world, "original", BASE);
    let before = signature(&original);
    let children: Vec<Child> = (0..PROCESSES)
        .map(|number| start("processes::child_that_makes_plans", world.path(), number))
        .collect();
    // All have ended before one is checked: no process works in a world that is gone.
    let outputs: Vec<_> = children
        .into_iter()
        .map(|child| child.wait_with_output().expect("it is our child"))
        .collect();
    for output in outputs {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
    let manager = open(&world.home());
    let plans = manager.plans().expect("they can be listed");
    assert_eq!(plans.len() as u64, 4 * PROCESSES);
    let live = manager.status().expect("it can be shown");
    assert_eq!(live.plans.len() as u64, 2 * PROCESSES);
    assert!(live.running.is_empty());
    let mut plan_names: Vec<&str> = live
        .plans
        .iter()
        .map(|view| view.plan.name.as_str())
        .collect();
    plan_names.sort_unstable();
    plan_names.dedup();
    assert_eq!(
        plan_names.len() as u64,
        2 * PROCESSES,
        "open plans have names of their own"
    );
    assert_eq!(
        manager.resources().expect("they can be listed").len(),
        1,
        "it is one directory"
    );
    let store = rusqlite::Connection::open(world.home().join("state.db")).expect("it is SQLite");
    let whole: String = store
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("it answers");
    assert_eq!(whole, "ok");
    drop(store);
    for view in &live.plans {
        manager
            .cleanup(&view.plan, false)
            .expect("it can be removed");
    }
    assert_swept(&world.home());
    assert_untouched(&before, &original);
}

/// A store in a home, made by `make`; what a manager says to it, and whether it left it alone.
fn refused(make: impl FnOnce(&Path)) -> (StoreError, bool) {
    let world = World::new();
    let file = world.home().join("state.db");
    make(&file);
    let before = fs::read(&file).expect("it was made");
    let error = match Manager::open(options(&world.home())) {
        Ok(_) => panic!("a store that is not ours was taken"),
        Err(Error::Store(error)) => error,
        Err(other) => panic!("another error: {other}"),
    };
    (error, fs::read(&file).expect("it is there") == before)
}

fn sqlite(file: &Path, statements: &str) {
    let store = rusqlite::Connection::open(file).expect("a database can be made");
    store
        .execute_batch(statements)
        .expect("the statements are right");
    store.close().expect("it can be closed");
}

/// A store of ours, with another version in its header.
fn with_version(file: &Path, version: i32) {
    drop(open(file.parent().expect("it lies in a home")));
    let mut bytes = fs::read(file).expect("it was made");
    bytes[60..64].copy_from_slice(&version.to_be_bytes());
    fs::write(file, bytes).expect("the home is ours");
}

// rule P3
#[test]
fn a_newer_store_is_refused() {
    let (error, untouched) = refused(|file| with_version(file, 99));
    assert!(
        matches!(error, StoreError::Newer { found: 99, .. }),
        "{error}"
    );
    assert!(untouched, "it is left as it was");
    let error = Error::from(error);
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("newer"), "{error}");
}

// rule P3
#[test]
fn a_store_of_no_version_is_refused() {
    let (error, _) = refused(|file| with_version(file, -7));
    assert!(!error.to_string().is_empty());
}

// rule P3
#[test]
fn a_foreign_store_is_refused() {
    let table = "CREATE TABLE mine (x); INSERT INTO mine VALUES (1);";
    for version in [0, 1] {
        let (error, untouched) =
            refused(|file| sqlite(file, &format!("PRAGMA user_version={version}; {table}")));
        assert!(
            matches!(error, StoreError::Foreign { .. }),
            "version {version}: {error}"
        );
        assert!(untouched, "version {version}: it is left as it was");
    }
    let (error, untouched) = refused(|file| {
        fs::write(file, "no database at all, and longer than a header of SQLite would be; 100 bytes, say, or a few more")
            .expect("the home is ours");
    });
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert!(untouched, "it is left as it was");
}

/// Its number says one thing and its tables another: what is wrong is reported, and where, instead of a statement.
// rule P3
#[test]
fn a_store_whose_tables_are_others_is_refused_in_words() {
    let header = "PRAGMA application_id=1702060914; PRAGMA user_version=6;";
    let (error, _) = refused(|file| sqlite(file, &format!("{header} CREATE TABLE mine (x);")));
    let StoreError::OtherTables { path, what } = &error else {
        panic!("{error}");
    };
    let said = error.to_string();
    assert!(
        said.contains(&path.to_string()) && said.contains(what),
        "{said}"
    );
    assert!(what.starts_with("no such table"), "{what}");
    let error = Error::from(error);
    assert!(error.hints()[0].contains("--home"), "{:?}", error.hints());
}
