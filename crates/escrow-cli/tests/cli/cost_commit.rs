//! What a commit costs, counted in system calls: as much as the change, whatever the size of the tree.

use escrow_testkit::strace::Counts;

use crate::cost::{cli, name, original};
use crate::*;

const CHANGES: usize = 100;

/// Commits a hundred changes in a tree of so many files, and says what that took.
fn commit(files: usize, strategy: &str) -> (Counts, PathBuf, World) {
    let world = World::new();
    let root = original(&world, "original", files);
    let cli = cli(&world);
    cli.plan("p", "./original", strategy);
    // Spread over as many directories in either tree.
    let changes = (0..CHANGES).map(|change| {
        let path = name((change % 10) * 100 + change / 10);
        (path, format!("changed {change:06}"))
    });
    match strategy {
        "overlay" => {
            let line = |(path, text)| format!("echo {text} > {path}\n");
            let script: String = changes.map(line).collect();
            let inside = inside("-q run --plan p", &script);
            cli.clone().cwd(&root).ok(inside);
        }
        // What a program has just written in a copy is read once more.
        _ => changes.for_each(|(path, text)| put(&cli, &format!("p original {path}"), text + "\n")),
    }
    let counts = cli.trace("commit p");
    let said = String::from_utf8_lossy(&counts.output.stderr).into_owned();
    assert!(counts.output.status.success(), "{said}");
    (counts, root, world)
}

/// The files below a directory whose content was read or copied, each as often as it was.
fn contents_moved(counts: &Counts, below: &Path) -> Vec<String> {
    let below = below.to_string_lossy().into_owned();
    let moves = [
        "read(",
        "pread64(",
        "readv(",
        "preadv(",
        "copy_file_range(",
        "sendfile(",
        "FICLONE",
    ];
    counts
        .lines
        .iter()
        .filter(|line| moves.iter().any(|call| line.contains(call)))
        // What the state store keeps may name a path; it is no content of it.
        .filter(|line| line.contains(&below) && !line.contains("/state.db"))
        .cloned()
        .collect()
}

/// On the same file system an overlay is committed by links.
#[track_caller]
fn assert_no_content_copied(counts: &Counts, root: &Path, world: &World) {
    // The new bytes differ in size from the old ones, so not even the diff has to read them.
    for place in [root, &world.home().join("sandboxes")] {
        let mut moved = contents_moved(counts, place);
        // Which layers there are is no content, and neither is what the commit needs to know.
        let known = ["/now>", "/intent>", "/finished>"];
        moved.retain(|line| !known.iter().any(|name| line.contains(name)));
        // A new text is read once, for an undo that merges: to its end, which is another call.
        let texts = moved.extract_if(.., |line| line.contains(".undo/stage/"));
        assert!(texts.count() <= 2 * CHANGES, "{}", place.display());
        assert_eq!(moved, Vec::<String>::new(), "{}", place.display());
    }
    assert_eq!(counts.count("copy_file_range"), 0);
    let links = counts.count("linkat");
    assert!(links >= CHANGES, "{links} files were staged as links");
}

// rule C11
#[test]
fn a_commit_touches_as_many_paths_in_ten_times_the_files_and_copies_no_content() {
    let (small, root, world) = commit(1000, "overlay");
    let touched_small = small.touching(&root);
    assert_no_content_copied(&small, &root, &world);
    let (large, root, _world) = commit(10_000, "overlay");
    let touched_large = large.touching(&root);
    assert!(touched_small >= CHANGES, "{touched_small}");
    let slack = 40.max(touched_small / 20);
    assert!(
        touched_small.abs_diff(touched_large) <= slack,
        "{touched_small} calls name the original of 1,000 files, {touched_large} that of 10,000"
    );
    assert!(
        touched_large <= 32 * CHANGES,
        "{touched_large} calls name the original for {CHANGES} changes"
    );
    // Ten changes in each directory: it is opened once for each thing that is done in it, not once for each change.
    let opened = large.count("openat2");
    let holds = opened <= 8 * CHANGES;
    assert!(holds, "{opened} calls open something for {CHANGES} changes");
}

// rule C11
#[test]
fn a_copy_is_committed_at_the_cost_of_the_change_too() {
    let (counts, root, world) = commit(1000, "filesystem_copy");
    let moved = contents_moved(&counts, &root);
    assert_eq!(moved, Vec::<String>::new());
    let sandboxes = contents_moved(&counts, &world.home().join("sandboxes"));
    let trees: Vec<&String> = sandboxes
        .iter()
        .filter(|line| line.contains("/tree/"))
        .collect();
    assert_eq!(trees, Vec::<&String>::new(), "no file of the copy is read");
}

// rule C13
#[test]
fn a_commit_without_changes_touches_nothing() {
    let world = World::new();
    let root = original(&world, "original", 200);
    let cli = cli(&world);
    cli.ok("plan create p --resource ./original --strategy filesystem_copy");
    let before = signature(&root);
    let counts = cli.trace("commit p");
    assert!(counts.output.status.success());
    for call in ["renameat2", "linkat", "symlinkat"] {
        assert_eq!(counts.count(call), 0, "{call}");
    }
    unchanged(&before, &root);
    cli.ok("undo p");
    unchanged(&before, &root);
}

/// How often everything on a file system, the state, and the log of our own moves are made durable.
fn syncs(counts: &Counts) -> [usize; 3] {
    let said = String::from_utf8_lossy(&counts.output.stderr);
    assert!(counts.output.status.success(), "{said}");
    let lines = |call: &str, of: &str| {
        let is = |line: &&String| line.contains(call) && line.contains(of);
        counts.lines.iter().filter(is).count()
    };
    let state = lines("fsync(", "/state.db") + lines("fdatasync(", "/state.db");
    [lines("syncfs(", ""), state, lines("fsync(", "/memory")]
}

/// Creates, commits and undoes a plan of so many resources.
fn of_members(members: usize) -> [[usize; 3]; 3] {
    let world = World::new();
    let cli = cli(&world);
    let mut line = "plan create p --strategy overlay".to_owned();
    for member in 0..members {
        original(&world, &format!("r{member}"), 2);
        line += &format!(" --resource ./r{member}");
    }
    let mut created = syncs(&cli.trace(&line));
    // A directory that was no resource yet is recorded by itself.
    created[1] -= members;
    for member in 0..members {
        put(&cli, &format!("p r{member} {}", name(0)), "changed\n");
    }
    let committed = syncs(&cli.trace("commit p"));
    let mut undone = syncs(&cli.trace("undo p"));
    // Each member of an undo syncs its file system, which is clean by then.
    undone[0] = 0;
    [created, committed, undone]
}

// rule C11
#[test]
fn many_members_are_synced_and_recorded_as_one() {
    assert_eq!(of_members(2), of_members(6));
}
