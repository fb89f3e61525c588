//! Plans and an editor at work on one directory at once, at random: no edit is lost, every conflict is
//! reported, no process waits for ever.
//!
//! Every write carries a token of its own, so whatever lies in the original tells who wrote it. An edit may vanish only
//! under a later edit, or under a commit whose sandbox was made after it or whose user chose the sandbox's version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use escrow::error::{Error, Kind};
use escrow::event::Unobserved;
use escrow::manager::Manager;
use escrow::model::ChangeKind;
use escrow::strategy::OnConflict;
use escrow_testkit::World;
use escrow_testkit::model::Rng;

use crate::commit_support::{OURS, PLAIN, THEIRS, request, told, unfinished};
use crate::property::Shown;
use crate::support::{at, open, sh};

const HISTORIES: u64 = 20;
/// Edited by a rename: for these nothing may be lost.
const RENAMED: [&str; 5] = ["r0", "r1", "d/r2", "d/r3", "d/e/r4"];
/// Edited in place: a write that meets the commit of its file may land in the version that is kept.
const IN_PLACE: [&str; 3] = ["i0", "d/i1", "d/e/i2"];
/// Longer than any honest history.
const LIMIT: Duration = Duration::from_secs(120);

/// From when to when.
#[derive(Debug, Clone, Copy)]
struct Span(Instant, Instant);

impl Span {
    fn of<T>(work: impl FnOnce() -> T) -> (Self, T) {
        let start = Instant::now();
        let answer = work();
        (Self(start, Instant::now()), answer)
    }

    fn ended_before(&self, other: &Self) -> bool {
        self.1 < other.0
    }
}

/// One edit, and what was read just before it.
#[derive(Debug, Clone)]
struct Edit {
    path: &'static str,
    token: String,
    span: Span,
    found: Option<String>,
    looked: Span,
}

/// How a commit ended.
#[derive(Debug, Clone)]
enum End {
    /// With these paths in conflict, where a side was chosen.
    Done(BTreeSet<String>),
    Refused(BTreeSet<String>),
    /// Another process was quicker while it was applied.
    TakenBack,
}

/// One plan.
#[derive(Debug, Clone)]
struct Story {
    name: String,
    made: Span,
    /// What it wrote where; `None` where it deleted.
    writes: BTreeMap<&'static str, Option<String>>,
    /// Where a layer saw nothing below and took a new file: whatever was before that is not its business.
    fresh: BTreeMap<&'static str, Span>,
    choice: OnConflict,
    commit: Span,
    end: End,
    undo: Option<Span>,
}

impl Story {
    fn is_done(&self) -> bool {
        matches!(self.end, End::Done(_))
    }

    /// Whether the commit put something at the path.
    fn touches(&self, path: &str) -> bool {
        match (&self.end, self.choice) {
            (End::Done(conflicts), OnConflict::Theirs) if conflicts.contains(path) => false,
            (End::Done(_), _) => self.writes.contains_key(path),
            _ => false,
        }
    }
}

#[derive(Default)]
struct Log {
    edits: Mutex<Vec<Edit>>,
    stories: Mutex<Vec<Story>>,
    /// Tokens that a report says are kept somewhere.
    kept: Mutex<BTreeSet<String>>,
}

fn token_at(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Edits the original until it is reported to stop.
fn edit(original: &Path, aside: &Path, mut rng: Rng, log: &Log, stop: &mpsc::Receiver<()>) {
    for number in 0.. {
        let in_place = rng.one_in(3);
        let path = match in_place {
            true => rng.pick(&IN_PLACE),
            false => rng.pick(&RENAMED),
        };
        let (file, token) = (original.join(path), format!("edit-{number}-{path}"));
        let (looked, found) = Span::of(|| token_at(&file));
        let (span, ()) = Span::of(|| match in_place {
            true => {
                let opened = fs::OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .create(true)
                    .open(&file);
                let mut file = opened.expect("its directory stays");
                file.write_all(token.as_bytes()).expect("there is room");
            }
            false => {
                fs::write(aside, &token).expect("there is room");
                fs::rename(aside, &file).expect("its directory stays");
            }
        });
        let edit = Edit {
            path,
            token,
            span,
            found,
            looked,
        };
        log.edits
            .lock()
            .expect("no thread panics with it")
            .push(edit);
        let pause = Duration::from_micros(rng.next_u64() % 12_000);
        if !matches!(
            stop.recv_timeout(pause),
            Err(mpsc::RecvTimeoutError::Timeout)
        ) {
            return;
        }
    }
}

/// One plan from its beginning to its end.
fn plan(manager: &mut Manager, original: &Path, name: &str, rng: &mut Rng, log: &Log) {
    let strategy = rng.pick(&["filesystem_copy", "overlay", "copy_on_write"]);
    let typed = [original.as_os_str().to_owned()];
    let (made, view) = loop {
        let create =
            || manager.create_plan(Some(name), original, &typed, Some(strategy), &Unobserved);
        match Span::of(create) {
            (made, Ok(view)) => break (made, view),
            // The directory ceased to be a resource when another plan ended just now.
            (_, Err(error)) if error.kind() == Kind::Busy => {}
            (_, Err(error)) => panic!("{name}: {}", told(&error)),
        }
    };
    let (plan, resource) = (view.plan, view.sandboxes[0].resource.clone());
    let (mut writes, mut fresh) = (BTreeMap::new(), BTreeMap::new());
    for number in 0..1 + rng.below(3) {
        let path = match rng.one_in(3) {
            true => rng.pick(&IN_PLACE),
            false => rng.pick(&RENAMED),
        };
        // A layer gives no path to delete in.
        if rng.one_in(4) && strategy != "overlay" {
            let access = manager.access(&plan, &resource, None);
            let tree = access.expect("a copy gives a path").cwd;
            let tree = tree.expect("a copy gives a path").as_path().to_owned();
            // Where nothing is, nothing is deleted.
            if fs::remove_file(tree.join(path)).is_ok() {
                writes.insert(path, None);
            }
            continue;
        }
        let token = format!("plan-{name}-{number}-{path}");
        let write = || manager.write(&plan, &resource, &at(path), &mut token.as_bytes());
        let (wrote, written) = Span::of(write);
        let kind = written.unwrap_or_else(|error| panic!("{name}: {}", told(&error)));
        if kind.kind == ChangeKind::Added && strategy == "overlay" {
            fresh.entry(path).or_insert(wrote);
        }
        writes.insert(path, Some(token));
        std::thread::sleep(Duration::from_micros(rng.next_u64() % 6_000));
    }
    let terms = rng.pick(&[PLAIN, PLAIN, PLAIN, OURS, THEIRS]);
    let (commit, answer) = Span::of(|| manager.commit(&plan, &request(terms), &Unobserved));
    let paths = |conflicts: &mut dyn Iterator<Item = String>| conflicts.collect::<BTreeSet<_>>();
    let end = match answer {
        Ok(released) => {
            // An editor may be in the middle of writing a file in place; then that is reported.
            let mut left = released.left;
            left.retain(|(_, why)| !why.contains("still had it open for writing"));
            assert_eq!(left, [], "{name}");
            let found = &released.preview.members[0].conflicts;
            End::Done(paths(&mut found.iter().map(|one| one.path.to_string())))
        }
        Err(Error::Conflicts { conflicts, .. }) => End::Refused(paths(
            &mut conflicts.iter().map(|(_, one)| one.path.to_string()),
        )),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Conflict, "{name}: {}", told(&error));
            note_kept(&error, log);
            End::TakenBack
        }
    };
    let mut story = Story {
        name: name.to_owned(),
        made,
        writes,
        fresh,
        choice: terms.on_conflict,
        commit,
        end,
        undo: None,
    };
    if story.is_done() && rng.one_in(3) {
        std::thread::sleep(Duration::from_micros(rng.next_u64() % 6_000));
        let (undo, answer) = Span::of(|| manager.undo(&plan, &Unobserved));
        match answer {
            // Another process was quicker than the undo: what he wrote is kept, and named.
            Ok(undone) => {
                let tokens = undone
                    .kept
                    .iter()
                    .filter_map(|(_, _, at)| token_at(at.as_path()));
                log.kept
                    .lock()
                    .expect("no thread panics with it")
                    .extend(tokens);
                story.undo = Some(undo);
            }
            Err(Error::Conflicts { .. }) => {}
            Err(error @ Error::CommitFailed { .. }) => {
                note_kept(&error, log);
                story.undo = Some(undo);
            }
            Err(error) => panic!("{name}: {}", told(&error)),
        }
    }
    log.stories
        .lock()
        .expect("no thread panics with it")
        .push(story);
    if rng.one_in(3) {
        let cleaned = manager.cleanup(&plan, false);
        cleaned.unwrap_or_else(|error| panic!("{name}: {}", told(&error)));
    }
}

fn note_kept(error: &Error, log: &Log) {
    let Error::CommitFailed { kept, open, .. } = error else {
        return;
    };
    assert!(!open, "{}", told(error));
    let tokens = kept.iter().filter_map(|(_, _, at)| token_at(at.as_path()));
    log.kept
        .lock()
        .expect("no thread panics with it")
        .extend(tokens);
}

/// What is wrong with a history.
struct Judge<'a> {
    edits: &'a [Edit],
    stories: &'a [Story],
    kept: &'a BTreeSet<String>,
    wrong: Vec<String>,
}

impl Judge<'_> {
    /// What lay at a path when another process looked, behind the edits before it.
    fn look(&mut self, path: &str, found: Option<&str>, looked: Span, before: &[Edit]) {
        let last = before.iter().rev().find(|edit| edit.path == path);
        let since = last.map(|edit| edit.span);
        let base = format!("base-{path}");
        let expected = last.map_or(base.as_str(), |edit| edit.token.as_str());
        if found == Some(expected) || self.kept.contains(expected) {
            return;
        }
        // Another process's commit may have replaced it: one that knew it, or was reported to.
        let may = |story: &&Story| {
            let after = since.is_none_or(|since| story.commit.1 > since.0);
            let knew = since.is_none_or(|since| story.made.1 > since.0);
            let begun = story.commit.0 < looked.1;
            // A write in place that meets the commit lands in the version that is kept.
            let met = IN_PLACE.contains(&path)
                && since.is_some_and(|since| {
                    !since.ended_before(&story.commit) && !story.commit.ended_before(&since)
                });
            let forced = story.choice == OnConflict::Ours;
            // One that was taken back may be seen while it stands.
            let stood = matches!(story.end, End::TakenBack) && story.commit.1 > looked.0;
            let touches = story.touches(path) || (stood && story.writes.contains_key(path));
            touches && begun && after && (knew || forced || met)
        };
        let by = |story: &&Story| story.writes[path].as_deref() == found;
        if self.stories.iter().filter(may).any(|story| by(&story)) {
            return;
        }
        // It was replaced by right, and then another commit was undone: what that one had taken away is back.
        let put_back = |story: &Story| {
            let late = |undo: Span| undo.0 < looked.1 && since.is_none_or(|since| undo.1 > since.0);
            story.touches(path) && story.undo.is_some_and(late)
        };
        let known = |token: &str| {
            let mut earlier = before.iter().filter(|edit| edit.path == path);
            token == base || earlier.any(|edit| edit.token == token)
        };
        let replaced = self.stories.iter().filter(may).count() > 0;
        if replaced && self.stories.iter().any(put_back) && found.is_some_and(known) {
            return;
        }
        let met = |story: &Story| {
            let touched = story.touches(path) || matches!(story.end, End::TakenBack);
            let near = |span: &Span| {
                since.is_some_and(|since| !since.ended_before(span) && !span.ended_before(&since))
            };
            touched && (near(&story.commit) || story.undo.as_ref().is_some_and(near))
        };
        if IN_PLACE.contains(&path) && self.stories.iter().any(met) {
            return;
        }
        self.wrong.push(format!(
            "{path} holds {found:?}, and nobody had a right to replace '{expected}'"
        ));
    }

    /// Every change of others between the making of a sandbox and its commit must be told, and
    /// nothing else.
    fn conflicts(&mut self, story: &Story) {
        let told = match &story.end {
            End::Done(conflicts) | End::Refused(conflicts) => conflicts,
            End::TakenBack => return,
        };
        for path in story.writes.keys() {
            let since = story.fresh.get(path).unwrap_or(&story.made);
            let window = Span(since.1, story.commit.0);
            let wide = Span(story.made.0, story.commit.1);
            let inside = |span: &Span| span.0 > window.0 && span.1 < window.1;
            let near = |span: &Span| !span.ended_before(&wide) && !wide.ended_before(span);
            let edits = self.edits.iter().filter(|edit| edit.path == *path);
            // What was set aside is not in the original.
            let stands = |edit: &&Edit| !self.kept.contains(&edit.token);
            let standing: Vec<Span> = edits.clone().filter(stands).map(|edit| edit.span).collect();
            let edits: Vec<Span> = edits.map(|edit| edit.span).collect();
            let others = self.stories.iter().filter(|other| other.name != story.name);
            let others: Vec<&Story> = others.filter(|other| other.touches(path)).collect();
            // What was put back in time is no change.
            let stays = |other: &&&Story| {
                let back = other.undo.is_some_and(|undo| undo.0 < window.1);
                inside(&other.commit) && !back
            };
            // What both sides deleted is gone, whatever became of it in between.
            let gone = story.writes[path].is_none()
                && others
                    .iter()
                    .any(|other| other.writes[path].is_none() && other.commit.0 < wide.1);
            let must =
                !gone && (standing.iter().any(inside) || others.iter().any(|other| stays(&other)));
            let moved =
                |other: &&Story| near(&other.commit) || other.undo.as_ref().is_some_and(near);
            let may = edits.iter().any(near) || others.iter().any(moved);
            match told.contains(*path) {
                false if must => self.wrong.push(format!(
                    "{}: nothing was told of {path}, which others changed",
                    story.name
                )),
                true if !may => self.wrong.push(format!(
                    "{}: {path} is called a conflict, and nobody changed it",
                    story.name
                )),
                _ => {}
            }
        }
        for path in told
            .iter()
            .filter(|path| !story.writes.contains_key(path.as_str()))
        {
            self.wrong
                .push(format!("{}: {path} was never changed in it", story.name));
        }
    }
}

fn authorize(log: Log, original: &Path) -> Vec<String> {
    let edits = log.edits.into_inner().expect("no thread panicked");
    let stories = log.stories.into_inner().expect("no thread panicked");
    let kept = log.kept.into_inner().expect("no thread panicked");
    let mut judge = Judge {
        edits: &edits,
        stories: &stories,
        kept: &kept,
        wrong: Vec::new(),
    };
    for (number, edit) in edits.iter().enumerate() {
        judge.look(
            edit.path,
            edit.found.as_deref(),
            edit.looked,
            &edits[..number],
        );
    }
    let now = Span(Instant::now(), Instant::now());
    for path in RENAMED.iter().chain(&IN_PLACE) {
        let found = token_at(&original.join(path));
        judge.look(path, found.as_deref(), now, &edits);
    }
    for story in &stories {
        judge.conflicts(story);
    }
    if !judge.wrong.is_empty() {
        for story in &stories {
            judge.wrong.push(format!("  {story:?}"));
        }
        for edit in &edits {
            judge.wrong.push(format!("  {edit:?}"));
        }
    }
    judge.wrong
}

fn history(seed: u64) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let world = World::on_disk();
    let original: PathBuf = world.dir("original");
    sh(&original, "mkdir -p d/e");
    for path in RENAMED.iter().chain(&IN_PLACE) {
        fs::write(original.join(path), format!("base-{path}")).expect("there is room");
    }
    let log = Log::default();
    let workers = 2 + rng.below(3);
    let (ended, has_ended) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        let (log, original, aside) = (&log, &original, world.path().join("aside"));
        let editor = Rng::new(rng.next_u64());
        let editing = scope.spawn(move || edit(original, &aside, editor, log, &stopped));
        for worker in 0..workers {
            let mut rng = Rng::new(rng.next_u64());
            let (home, ended) = (world.home(), ended.clone());
            scope.spawn(move || {
                let mut manager = open(&home);
                for round in 0..2 {
                    let name = format!("w{worker}r{round}");
                    plan(&mut manager, original, &name, &mut rng, log);
                }
                ended.send(()).expect("the test waits for it");
            });
        }
        drop(ended);
        for _ in 0..workers {
            let answer = has_ended.recv_timeout(LIMIT);
            assert!(
                answer != Err(mpsc::RecvTimeoutError::Timeout),
                "somebody waits for ever"
            );
        }
        drop(stop);
        editing.join().expect("the editor works alone");
    });
    assert_eq!(unfinished(&open(&world.home())), [""; 0]);
    authorize(log, &original)
}

fn histories(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let _shown = Shown("a history", seed);
        let wrong = history(seed);
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}

// rule C1, C14, C15
#[test]
fn nothing_is_lost_in_these() {
    histories(0..HISTORIES / 2);
}

// rule C1, C14, C15
#[test]
fn nothing_is_lost_in_those() {
    histories(HISTORIES / 2..HISTORIES);
}
