//! What things cost, counted and never timed: system calls, files opened, memory at its peak.

use std::io::{BufWriter, Write};

use escrow::internals::fs::manifest::{Manifest, ManifestBuilder, ManifestRecord, NewEntry};
use escrow::internals::fs::{Meta, Stamp};
use escrow::model::EntryKind;
use escrow_testkit::strace::Counts;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::*;

const FILES_IN_A_DIRECTORY: usize = 100;

pub(crate) fn cli(world: &World) -> Cli {
    Cli::new(world, &crate::binary())
}

pub(crate) fn name(file: usize) -> String {
    format!("d{:04}/file-{file:06}", file / FILES_IN_A_DIRECTORY)
}

/// The directory `name` with so many small files, a hundred in each directory.
pub(crate) fn original(world: &World, name_of_root: &str, files: usize) -> PathBuf {
    let root = world.dir(name_of_root);
    for file in 0..files {
        let path = root.join(name(file));
        if file % FILES_IN_A_DIRECTORY == 0 {
            fs::create_dir(path.parent().expect("it lies in one")).expect("nothing is there");
        }
        write(
            &path,
            format!(
                "file {file:06}
"
            ),
        );
    }
    root
}

/// Calls but those by which threads wait and memory grows, which depend on the day.
pub(crate) fn working(counts: &Counts) -> usize {
    let said = String::from_utf8_lossy(&counts.output.stderr);
    assert!(counts.output.status.success(), "{said}");
    let idle = "futex sched_yield mmap munmap brk mremap madvise".split(' ');
    counts.total - idle.map(|name| counts.count(name)).sum::<usize>()
}

/// Equal but for what threads and memory allocation add by chance.
#[track_caller]
pub(crate) fn assert_same_cost(what: &str, small: usize, large: usize) {
    let close = small.abs_diff(large) <= 40.max(small / 20);
    assert!(close, "{what}: {small} calls, then {large}");
}

/// What `escrow sandbox create` of an overlay does for a tree of so many files: all calls, and those that name the
/// original.
fn overlay_creation(files: usize) -> (usize, usize) {
    let world = World::new();
    let original = original(&world, "original", files);
    let escrow = cli(&world);
    escrow.ok("plan create p");
    let counts = escrow.trace("sandbox create p original --strategy overlay");
    (working(&counts), counts.touching(&original))
}

// The caller what is open does not wait for every file to be looked at.
#[test]
fn status_costs_the_same_for_any_size_of_sandbox_unless_it_measures() {
    let cost = |files: usize, line: &[&str]| {
        let world = World::new();
        let root = original(&world, "app", files);
        let escrow = cli(&world);
        let root = root.display();
        escrow.ok(format!(
            "plan create p --strategy filesystem_copy --resource {root}"
        ));
        working(&escrow.trace(line))
    };
    let (small, large) = (cost(100, &["status"]), cost(1000, &["status"]));
    assert_same_cost("status", small, large);
    assert!(cost(1000, &["status", "--disk"]) > large + 1000);
}

#[test]
fn an_overlay_sandbox_of_a_hundred_times_the_files_costs_the_same() {
    let (small, small_touching) = overlay_creation(100);
    let (large, large_touching) = overlay_creation(10_000);
    assert_same_cost("creating an overlay", small, large);
    assert!(small_touching > 0, "the original is looked at");
    assert_eq!(
        small_touching, large_touching,
        "calls that name the original"
    );
}

/// A plan `p` with a copy of 2,000 files; the copy's root.
fn copied(world: &World) -> (Cli, PathBuf, PathBuf) {
    let original = original(world, "original", 2000);
    let escrow = cli(world);
    escrow.plan("p", "original", "filesystem_copy");
    let tree = PathBuf::from(escrow.ok(["path", "p", "original"]).trim_end());
    let holds = tree.join(name(1999)).is_file();
    assert!(holds, "{} is the copy", tree.display());
    (escrow, original, tree)
}

// rule F6, F8
#[test]
fn an_unchanged_copy_is_compared_without_opening_a_file() {
    let world = World::new();
    let (escrow, original, tree) = copied(&world);
    let counts = escrow.trace(["diff", "--name-status", "p"]);
    working(&counts);
    assert_eq!(String::from_utf8_lossy(&counts.output.stdout), "");
    assert_eq!(counts.file_opens_below(&tree), [""; 0]);
    assert_eq!(counts.file_opens_below(&original), [""; 0]);
    // The count can see opens at all: the manifest is one.
    assert!(!counts.file_opens_below(&world.home()).is_empty());
}

// rule F6
#[test]
fn a_change_that_keeps_size_and_mtime_is_found_and_nothing_else_is_opened() {
    let world = World::new();
    let (escrow, original, tree) = copied(&world);
    let changed = tree.join(name(777));
    let before = fs::metadata(&changed).expect("it was copied");
    let mut other = fs::read(&changed).expect("it can be read");
    other.reverse();
    write(&changed, other);
    set_mtime(&changed, before.mtime(), before.mtime_nsec());
    let after = fs::metadata(&changed).expect("it is there");
    let wanted = (after.len(), after.mtime(), after.mtime_nsec());
    assert_eq!((before.len(), before.mtime(), before.mtime_nsec()), wanted);

    let counts = escrow.trace(["diff", "--name-status", "p"]);
    working(&counts);
    let expected = format!("M\t{}\n", name(777));
    assert_eq!(String::from_utf8_lossy(&counts.output.stdout), expected);
    for root in [&tree, &original] {
        let opened = counts.file_opens_below(root);
        let shown = format!("<{}>", root.join(name(777)).display());
        assert!(
            !opened.is_empty() && opened.iter().all(|line| line.ends_with(&shown)),
            "not only {shown}: {opened:#?}"
        );
    }
}

fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
        .unwrap_or_else(|error| panic!("cannot set the times of {}: {error}", path.display()));
}

/// The calls of a diff of 100 changes in an overlay over so many files.
fn overlay_diff(files: usize) -> usize {
    let world = World::new();
    let lower = original(&world, "original", files);
    let escrow = cli(&world);
    escrow.plan("p", "original", "overlay");
    let area = paths(world.home().join("sandboxes")).remove(0);
    let mount = OverlayMount {
        lower: &lower,
        upper: &area.join("layers/0"),
        work: &area.join("work"),
        xattr: XattrKind::User,
    };
    let change = |change: usize| {
        let name = name(change * 10);
        match change % 10 {
            0..5 => format!("echo changed >> {name}\n"),
            5..8 => format!("echo added > {name}.new\n"),
            _ => format!("rm {name}\n"),
        }
    };
    mount.run(&(0..100).map(change).collect::<String>());
    let counts = escrow.trace(["diff", "--name-status", "p"]);
    let listed = String::from_utf8_lossy(&counts.output.stdout);
    assert_eq!(listed.lines().count(), 100, "{listed}");
    working(&counts)
}

#[test]
fn the_diff_of_an_overlay_costs_what_was_changed_and_not_what_lies_below() {
    assert_same_cost("100 changes", overlay_diff(1000), overlay_diff(10_000));
}

const MILLION: usize = 1_000_000;
const FILE: &str = "ESCROW_TEST_MANIFEST_FILE";
const MOST_KIB: u64 = 300 * 1024;

#[test]
fn a_manifest_of_a_million_files_takes_less_than_300_mib() {
    if let Some(file) = std::env::var_os(FILE) {
        write_million(Path::new(&file));
        read_million(Path::new(&file));
        return tell_peak();
    }
    let world = World::new();
    let peak = peak_of_child(&world.at("manifest"));
    assert!(peak < MOST_KIB, "{} MiB", peak / 1024);
    // Less than the records alone would mean that nothing was done.
    assert!(peak > 50 * 1024, "only {} MiB", peak / 1024);
}

/// Runs this test again in a process of its own; the most memory it ever had, in KiB.
fn peak_of_child(file: &Path) -> u64 {
    let test = "cost::a_manifest_of_a_million_files_takes_less_than_300_mib";
    let me = std::env::current_exe().expect("a running program has a file");
    let mut child = Command::new(me);
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let said = output_of(child.env(FILE, file));
    let peak = said.lines().find_map(|line| line.split_once("VmHWM:"));
    let peak = peak.and_then(|(_, rest)| rest.split_whitespace().next());
    let peak = peak.and_then(|kib| kib.parse().ok());
    peak.unwrap_or_else(|| panic!("it tells no peak: {said}"))
}

#[expect(clippy::print_stdout, reason = "a child tells its parent")]
fn tell_peak() {
    let status = read("/proc/self/status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    println!("\n{}", line.expect("the kernel tells the peak"));
}

/// What the kernel would say of the entry with this number.
fn meta(kind: EntryKind, number: usize) -> Meta {
    let stamp = Stamp {
        sec: 1_700_000_000 + number as i64,
        nsec: 123_456_789,
    };
    Meta {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        size: number as u64,
        nlink: 1,
        dev: 259,
        ino: 7_000_000 + number as u64,
        rdev: 0,
        blocks: 8,
        mtime: stamp,
        atime: stamp,
        ctime: stamp,
        born: stamp,
        mount: 42,
        fixed: false,
    }
}

fn entry(kind: EntryKind, number: usize, name: String) -> NewEntry {
    NewEntry {
        name: name.into_bytes().into_boxed_slice(),
        target: Vec::new(),
        record: ManifestRecord::of(&meta(kind, number)),
    }
}

/// Fills a manifest as a copy does: a directory at a time, 10,000 of them with a hundred files each.
fn write_million(file: &Path) {
    let directories = MILLION / FILES_IN_A_DIRECTORY;
    let builder = ManifestBuilder::new(ManifestRecord::of(&meta(EntryKind::Directory, 0)));
    let children = (0..directories)
        .map(|number| {
            entry(
                EntryKind::Directory,
                number,
                format!("component-{number:05}"),
            )
        })
        .collect();
    let first = builder
        .add(Manifest::ROOT, children)
        .expect("ten thousand entries fit");
    for directory in 0..directories {
        let files = (0..FILES_IN_A_DIRECTORY)
            .map(|at| directory * FILES_IN_A_DIRECTORY + at)
            .map(|number| {
                entry(
                    EntryKind::File,
                    number,
                    format!("realistic-name-{number:07}.rs"),
                )
            })
            .collect();
        let parent = first + u32::try_from(directory).expect("there are ten thousand");
        builder.add(parent, files).expect("a million entries fit");
    }
    let manifest = builder.finish();
    let mut to = BufWriter::new(File::create_new(file).expect("the world is empty"));
    manifest
        .write(&mut to)
        .and_then(|()| to.flush())
        .expect("the manifest can be written");
    assert_million(&manifest);
}

fn read_million(file: &Path) {
    let file = File::open(file).expect("the step before wrote it");
    let manifest = Manifest::read(&file).expect("it is whole");
    assert_million(&manifest);
}

fn assert_million(manifest: &Manifest) {
    assert_eq!(manifest.len(), 1 + MILLION / FILES_IN_A_DIRECTORY + MILLION);
    let last = u32::try_from(manifest.len() - 1).expect("it is about a million");
    assert_eq!(manifest.name(last), b"realistic-name-0999999.rs");
    assert_eq!(manifest.record(last).size, 999_999);
}

/// What `plan create` of a checkout with so many files does: all calls of all processes, git's included.
fn checkout_creation(files: usize) -> usize {
    let world = World::new();
    let app = original(&world, "app", files);
    sh(
        &app,
        "git init -q -b main .; git config gc.auto 0; git config maintenance.auto false; git add -A; git -c user.name=U -c user.email=u@e commit -qm all; git status -s",
    );
    let escrow = cli(&world);
    escrow.ok("resource add app --type git-checkout --at app");
    let counts = escrow.trace("plan create p -r app");
    let said = String::from_utf8_lossy(&counts.output.stdout).into_owned();
    assert!(said.contains("private git directory"), "{said}");
    working(&counts)
}

#[test]
fn a_git_checkout_of_a_hundred_times_the_files_costs_the_same() {
    let (small, large) = (checkout_creation(100), checkout_creation(10_000));
    assert_same_cost("creating a sandbox of a checkout", small, large);
}

/// The end of a command looks at a copy once: for its summary, and for what a merge would begin from.
#[test]
fn the_end_of_a_command_looks_at_a_copy_once() {
    let cost = |files: usize| {
        let world = World::under(Path::new("/var/tmp"));
        original(&world, "app", files);
        let escrow = cli(&world);
        escrow.plan("p", "./app", "filesystem_copy");
        // Looks at files alone: on a busy machine one run waits more often than another.
        let looks = |line| {
            let counts = escrow.trace(line);
            working(&counts);
            let looks = ["statx", "newfstatat", "getdents64"];
            looks.map(|name| counts.count(name)).iter().sum::<usize>()
        };
        (looks("run --plan p -- true"), looks("diff p"))
    };
    let (few, many) = (cost(200), cost(1200));
    let (run, diff) = (many.0.saturating_sub(few.0), many.1 - few.1);
    assert!(diff >= 1000, "it looks at each of them: {diff}");
    assert!(run < diff * 3 / 2, "{run} looks of a run, {diff} of a diff");
}
