//! What the tests of the commit share: short ways to commit and undo, and what must hold afterwards.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use escrow::commit::{CommitTerms, RecoveredPlan, UndoReport};
use escrow::error::{Error, Result};
use escrow::event::{Observer, Unobserved};
use escrow::manager::{CommitReport, CommitRequest, Manager};
use escrow::strategy::OnConflict;
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, Kind, Sig, differences, signature};

use crate::support::{OnCopied, Sandboxed, chain, names, sh};

/// Nothing is resolved, nothing is let pass.
pub(crate) const PLAIN: CommitTerms = CommitTerms {
    on_conflict: OnConflict::Abort,
    merge: false,
    strict: false,
    allow_partial: false,
};
/// The sandbox's version counts.
pub(crate) const OURS: CommitTerms = CommitTerms {
    on_conflict: OnConflict::Ours,
    ..PLAIN
};
/// The original's version counts.
pub(crate) const THEIRS: CommitTerms = CommitTerms {
    on_conflict: OnConflict::Theirs,
    ..PLAIN
};
/// Whatever moved is a conflict.
pub(crate) const STRICT: CommitTerms = CommitTerms {
    strict: true,
    ..PLAIN
};
/// What cannot be undone may be more than one.
pub(crate) const PARTIAL: CommitTerms = CommitTerms {
    allow_partial: true,
    ..PLAIN
};

/// A request without a message.
pub(crate) fn request(terms: CommitTerms) -> CommitRequest<'static> {
    CommitRequest {
        terms,
        ..CommitRequest::default()
    }
}

impl Sandboxed {
    pub(crate) fn commit(&self) -> Result<CommitReport> {
        self.commit_with(PLAIN, &Unobserved)
    }

    pub(crate) fn commit_with(
        &self,
        terms: CommitTerms,
        observer: &dyn Observer,
    ) -> Result<CommitReport> {
        self.manager.commit(&self.plan, &request(terms), observer)
    }

    /// Commits, or fails the test with every word of the error.
    #[track_caller]
    pub(crate) fn committed(&self) -> CommitReport {
        let released = self.commit().must("cannot commit");
        assert_eq!(released.left, [], "every sandbox can be removed");
        released
    }

    pub(crate) fn undo(&self) -> Result<UndoReport> {
        self.manager.undo(&self.plan, &Unobserved)
    }

    #[track_caller]
    pub(crate) fn undone(&self) -> UndoReport {
        self.undo().must("cannot undo")
    }

    /// What the sandbox shows to those who work in it.
    pub(crate) fn view(&self) -> Sig {
        if self.sandbox().reference.strategy_name != "overlay" {
            return signature(&self.tree());
        }
        let world = World::new();
        let shown = world.path().join("merged");
        self.mounted(|mount| mount.snapshot_merged_to(&shown));
        signature(&shown)
    }

    /// What the original is to be once the sandbox, as it is now, was committed into it.
    pub(crate) fn promised(&self) -> Sig {
        let changed: Vec<Vec<u8>> = self.diff().into_keys().collect();
        promised(&signature(&self.original), self.view(), &changed)
    }
}

fn parent(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or(Vec::new(), |slash| path[..slash].to_vec())
}

/// The original after a commit: of what the diff names, the sandbox's version; the rest as it was.
/// The time of a directory is the sandbox's where names came or went in it, that of a file wherever it was written.
pub(crate) fn promised(before: &Sig, mut sandbox: Sig, changed: &[Vec<u8>]) -> Sig {
    for (path, entry) in &mut sandbox {
        let same = !changed.contains(path);
        let still = |one: &Vec<u8>| one.is_empty() || parent(one) != *path;
        if let Some(old) = before.get(path).filter(|_| same) {
            let touched = match old.kind {
                Kind::Dir => !changed.iter().all(still),
                Kind::File => !changed.is_empty(),
                _ => false,
            };
            let mtime = entry.mtime;
            let group = entry.link_group.clone();
            *entry = old.clone();
            entry.link_group = group;
            if touched {
                entry.mtime = mtime;
            }
        }
    }
    sandbox
}

/// An error with its causes and its hints.
pub(crate) fn told(error: &Error) -> String {
    let conflicts = match error {
        Error::Conflicts { conflicts, .. } => format!("{conflicts:?} "),
        _ => String::new(),
    };
    format!("{} {conflicts}{:?}", chain(error), error.hints())
}

/// What must succeed.
pub(crate) trait Must<T> {
    /// Its value, or a failure of the test with every word of the error.
    fn must(self, when: &str) -> T;
}

impl<T> Must<T> for Result<T> {
    #[track_caller]
    fn must(self, when: &str) -> T {
        self.unwrap_or_else(|error| panic!("{when}: {}", told(&error)))
    }
}

/// Gives up when so many entries were moved.
pub(crate) struct GivesUp(pub(crate) AtomicI64);

impl Observer for GivesUp {
    fn copied(&self, entries: u64, _bytes: u64) {
        let entries = i64::try_from(entries).expect("a few");
        self.0.fetch_sub(entries, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= 0
    }
}

/// Where a refused commit, or undo, found conflicts.
#[track_caller]
pub(crate) fn conflict_paths<T>(answer: Result<T>) -> Vec<String> {
    match answer {
        Err(Error::Conflicts { conflicts, .. }) => conflicts
            .iter()
            .map(|(_, conflict)| conflict.path.to_string())
            .collect(),
        Err(error) => panic!("no conflict, but {}", told(&error)),
        Ok(_) => Vec::new(),
    }
}

/// Panics unless a tree is this one, to the times of its directories.
#[track_caller]
pub(crate) fn assert_tree(expected: &Sig, root: &Path, when: &str) {
    let found = differences(expected, &signature(root), &Ignore::default());
    assert!(
        found.is_empty(),
        "{when} (expected, found):\n{}",
        found.join("\n")
    );
}

/// Inode and ctime of every entry: nothing can be done to one without moving it.
pub(crate) fn stamps(root: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = path
            .symlink_metadata()
            .expect("no other process works here");
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).expect("the test may read it");
            open.extend(entries.map(|entry| entry.expect("it can be listed").path()));
        }
        let stamp = (meta.ino(), meta.ctime(), meta.ctime_nsec());
        found.insert(path, stamp);
    }
    found
}

/// Panics unless every inode of a tree has all its names in it: nothing is shared with a sandbox.
#[track_caller]
pub(crate) fn assert_shares_nothing(root: &Path) {
    let mut names: BTreeMap<u64, (u64, u64, PathBuf)> = BTreeMap::new();
    for path in stamps(root).into_keys() {
        let meta = path.symlink_metadata().expect("it was there just now");
        if !meta.is_dir() {
            let known = names
                .entry(meta.ino())
                .or_insert((meta.nlink(), 0, path.clone()));
            known.1 += 1;
        }
    }
    let shared: Vec<_> = names
        .values()
        .filter(|(links, found, _)| links != found)
        .collect();
    assert!(
        shared.is_empty(),
        "names outside (links, found): {shared:?}"
    );
}

/// The plans whose commit, or undo, has not ended.
pub(crate) fn unfinished(manager: &Manager) -> Vec<String> {
    let status = manager.status().expect("looking is always possible");
    status.unfinished.into_iter().map(|one| one.plan).collect()
}

/// Recovers every plan there is to recover.
///
/// A program that another test starts just now has temporarily everything open that we have, a
/// lock that we gave back among it: the process that holds that counts as alive.
pub(crate) fn recovered(manager: &Manager) -> Vec<(String, Result<RecoveredPlan>)> {
    let wanted = unfinished(manager).len();
    let mut answers: Vec<(String, Result<RecoveredPlan>)> = Vec::new();
    wait_for("every lock is free", || {
        for (plan, answer) in manager.recover().expect("it can be asked") {
            answers.retain(|(known, _)| *known != plan);
            answers.push((plan, answer));
        }
        answers.len() == wanted
    });
    answers
}

/// The areas that lie in a home, sandboxes and commits alike.
pub(crate) fn areas(home: &Path) -> Vec<String> {
    names(&home.join("sandboxes"))
}

/// What scripts that assert may say: `is FILES TEXT`, `mode PATH MODE`, `leads LINK TARGET`, `no PATH`.
const WORDS: &str = r#"
is() { test "$(cat $1)" = "$2"; }
mode() { test "$(stat -c %a $1)" = "$2"; }
leads() { test "$(readlink $1)" = "$2"; }
no() { test ! -e "$1"; }
"#;

/// Asserts by shell, with what it says.
#[track_caller]
pub(crate) fn holds(dir: &Path, script: &str, when: &str) {
    let output = Command::new("sh")
        .args(["-eu", "-c", &format!("{WORDS}{script}")])
        .current_dir(dir)
        .output()
        .expect("sh starts");
    let listing = sh(dir, "find . -printf '%p %y %#m %s %l\\n' | sort");
    assert!(
        output.status.success(),
        "{when}: {script}\n{}{}in\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        listing
    );
}

const CHILD: &str = "ESCROW_TEST_COMMIT_CHILD";

/// Starts one test of this binary as another process, with a world and a word of what to do there.
pub(crate) fn start_child(test: &str, world: &Path, word: &str) -> Child {
    let exe = std::env::current_exe().expect("a test knows its own executable");
    Command::new(exe)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{word}:{}", world.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test starts")
}

/// The word and the world, in a process that [`start_child`] started.
pub(crate) fn child() -> Option<(String, PathBuf)> {
    let told = std::env::var(CHILD).ok()?;
    let (word, world) = told.split_once(':').expect("it was put together so");
    Some((word.to_owned(), PathBuf::from(world)))
}

/// An observer that says when so many entries were moved, and then waits to be killed.
pub(crate) fn halting(after: u64, world: &Path) -> impl Observer + use<> {
    let (seen, marker) = (AtomicU64::new(0), world.join("marker"));
    OnCopied(move |entries| {
        let before = seen.fetch_add(entries, Ordering::SeqCst);
        if before + entries >= after {
            // By one of the threads that halt: the next child must not find a marker of this one.
            if before < after {
                std::fs::write(&marker, "now").expect("the world is writable");
            }
            loop {
                std::thread::park();
            }
        }
    })
}

/// Starts a child that halts; returns it once it has said that it did.
#[track_caller]
pub(crate) fn start_halting(test: &str, world: &Path, word: &str) -> Child {
    let mut child = start_child(test, world, word);
    let marker = world.join("marker");
    wait_for("the child comes so far", || {
        marker.exists() || child.try_wait().expect("it is our child").is_some()
    });
    if std::fs::remove_file(&marker).is_err() {
        let output = child.wait_with_output().expect("it is our child");
        panic!(
            "{word}: it ended by itself: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    child
}

/// Ends a child at once.
pub(crate) fn kill(mut child: Child) {
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
}

/// Waits for children that must succeed; all have ended before one is judged.
#[track_caller]
pub(crate) fn all_succeed(children: Vec<Child>) {
    let ended = children.into_iter().map(Child::wait_with_output);
    for output in ended.collect::<Vec<_>>() {
        let output = output.expect("it is our child");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
}

/// Runs `work` while an operation in another thread is paused at one of its entries.
pub(crate) fn during<T: Send>(
    after: u64,
    operation: impl FnOnce(&dyn Observer) -> T + Send,
    work: impl FnOnce(),
) -> T {
    let (began, has_begun) = mpsc::channel();
    let (go, gone_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let operating = scope.spawn(move || {
            let state = Mutex::new((after, began, gone_on));
            let pause = |entries: u64| {
                let mut state = state.lock().expect("no thread panics with it");
                let left = state.0.saturating_sub(entries);
                if state.0 > 0 && left == 0 {
                    state.1.send(()).expect("the test waits for it");
                    // Fails when the test is over.
                    let _ = state.2.recv();
                }
                state.0 = left;
            };
            operation(&OnCopied(pause))
        });
        let begun = has_begun.recv_timeout(Duration::from_secs(60));
        if begun.is_ok() {
            work();
        }
        drop(go);
        let answer = operating.join().expect("no panic");
        begun.expect("it came so far");
        answer
    })
}

/// Waits until something is there.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
