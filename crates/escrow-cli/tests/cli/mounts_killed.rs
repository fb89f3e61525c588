//! An original that is a mount point has the commit's area in it. Killed at any call that touches the root, its own time is
//! given back.

use std::time::SystemTime;

use crate::*;

fn stamp(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let times = fs::FileTimes::new().set_modified(time);
    let file = File::open(path).expect("it can be opened");
    file.set_times(times).expect("its times can be set");
}

/// The mount point with what it holds at first.
fn furnish(at: &Path) -> Sig {
    fs::create_dir_all(at.join("d")).expect("there is room");
    for name in ["data", "d/x", "d/y"] {
        write(at.join(name), "old\n");
        stamp(&at.join(name), 1_000_000_001);
    }
    stamp(&at.join("d"), 1_000_000_002);
    stamp(at, 1_000_000_003);
    signature(at)
}

/// A plan that changes what is named: of it only `d/x` if it is to be released in part.
fn plan(at: &Path) -> (World, Cli) {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    cli.ok(format!(
        "plan create try --resource {} --strategy filesystem_copy",
        at.display()
    ));
    let sandbox = PathBuf::from(cli.ok("path try mnt").trim_end());
    for name in ["d/x", "data"] {
        write(sandbox.join(name), "newer\n");
        stamp(&sandbox.join(name), 1_100_000_001);
    }
    stamp(&sandbox.join("d"), 1_000_000_002);
    stamp(&sandbox, 1_000_000_003);
    (world, cli)
}

/// Whether a call touches the root of the mount, or what is noted of it.
fn is_near(step: &Step, at: &Path, home: &Path) -> bool {
    let of = |path: &PathBuf| {
        let near = path.as_path() == at || path.parent() == Some(at);
        near || path.starts_with(home.join("times"))
    };
    [&step.path, &step.to].into_iter().flatten().any(of)
}

fn sweep(kind: Fs, before: &[&str], line: &str) {
    let mounted = need!(LoopFs::new(kind, 16));
    need!(require_stepper());
    let at = mounted.path();
    let first = furnish(at);
    let run_before = |cli: &Cli| before.iter().for_each(|line| drop(cli.ok(line)));
    // The two states between which the line goes, and the calls that touch the root on the way.
    let (world, cli) = plan(at);
    run_before(&cli);
    let old = signature_without_areas(at);
    let counted = cli.stepper(line).record().run();
    assert_eq!(
        counted.outcome.status,
        0,
        "{}",
        counted.outcome.stderr_text()
    );
    let new = signature_without_areas(at);
    assert_eq!(
        old[&b""[..]].mtime,
        new[&b""[..]].mtime,
        "nothing in it comes or goes"
    );
    let steps = &counted.steps;
    let near = |n: &usize| {
        let here = &steps[n.saturating_sub(1)..=*n];
        here.iter().any(|step| is_near(step, at, &world.home()))
    };
    let points: Vec<usize> = (1..steps.len()).filter(near).collect();
    assert!(!points.is_empty(), "{line}: the root is never touched");
    drop((world, cli));
    for n in points {
        reset(at);
        let got = differences(&first, &furnish(at), &Ignore::default());
        assert_eq!(got, [""; 0]);
        let (_world, cli) = plan(at);
        run_before(&cli);
        let n = n as u64 + 1;
        let run = cli.stepper(line).fault(n, Fault::Kill);
        let how = format!("{kind:?}: {before:?}, {line}: killed at {n}: {:?}", run.hit);
        cli.ok("recover");
        let found = signature_without_areas(at);
        let olds = differences(&old, &found, &Ignore::default());
        let news = differences(&new, &found, &Ignore::default());
        assert!(
            olds.is_empty() || news.is_empty(),
            "{how}: {olds:#?} {news:#?}"
        );
        assert_eq!(json(&cli, "status")["unfinished"], value!([]), "{how}");
        let root = found[&b""[..]].mtime;
        cli.ok("cleanup try");
        let last = signature(at);
        assert_eq!(last[&b""[..]].mtime, root, "{how}: cleaned up");
        assert!(
            !last.keys().any(|path| is_area(path)),
            "{how}: something is left"
        );
    }
}

fn is_area(path: &[u8]) -> bool {
    path.starts_with(b".escrow-")
}

/// The tree but for what is kept in it for undo.
fn signature_without_areas(at: &Path) -> Sig {
    let mut sig = signature(at);
    sig.retain(|path, _| !is_area(path));
    // Of a part, the times of directories come as they come.
    sig.entry(b"d".to_vec()).and_modify(|d| d.mtime = (0, 0));
    sig
}

fn reset(at: &Path) {
    for entry in fs::read_dir(at).expect("it can be listed") {
        let path = entry.expect("an entry").path();
        if path.ends_with("lost+found") {
            continue;
        }
        match path.is_dir() {
            true => fs::remove_dir_all(&path).expect("it goes"),
            false => remove(&path),
        }
    }
}

const PART: &str = "commit try --only d/x";

// rule F1, C3
#[test]
fn a_killed_commit_gives_a_mount_point_its_time_back() {
    sweep(Fs::Ext4, &[], "commit try");
}

// rule F1, C3
#[test]
fn a_killed_part_gives_a_mount_point_its_time_back() {
    sweep(Fs::Ext4, &[], PART);
}

// rule F1, C3
#[test]
fn a_killed_undo_gives_a_mount_point_its_time_back() {
    sweep(Fs::Ext4, &["commit try"], "undo try");
    sweep(Fs::Ext4, &[PART], "undo try");
}

// rule F1, C3
#[test]
fn a_killed_cleanup_gives_a_mount_point_its_time_back() {
    sweep(Fs::Ext4, &["commit try"], "cleanup try");
}
