//! Attacks of group B: links and races.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use escrow::error::{Error, Kind};
use escrow::internals::fs::{Dir, Resolver, remove};
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;
use rustix::fs::{CWD, RenameFlags};

use crate::attacks_c::assert_no_file;
use crate::support::{
    ALL, COPIES, ISOLATING, OnCopied, Sandboxed, assert_swept, assert_untouched, at, names, open,
    sh,
};

/// Refused because it would lead out.
#[track_caller]
fn assert_denied<T>(answer: Result<T, Error>, what: &str) {
    match answer {
        Ok(_) => panic!("{what} was done"),
        Err(error) => assert_eq!(error.kind(), Kind::Denied, "{what}: {error}"),
    }
}

// rule S1, S2, F2
#[test]
fn b1_a_link_that_leads_out() {
    rerun_test_as_user("attacks_b::b1_a_link_that_leads_out");
    let world = World::new();
    let outside = world.dir("outside");
    build(&outside, "secret 0604 \"secret\"\ndir/deep \"deep\"");
    let before = signature(&outside);
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        build(
            &original,
            "d/out -> ../../outside\nd/file -> ../../outside/secret\nin -> d\nplain \"plain\"",
        );
        symlink(&outside, original.join("absolute")).expect("a link can be made");
        let links = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for path in [
            "d/out/secret",
            "d/out/dir/deep",
            "absolute/secret",
            "in/file",
        ] {
            assert_denied(sandbox.read(path), path);
            assert_denied(sandbox.write(path, b"written"), path);
        }
        for path in ["d/out/new", "absolute/new/er", "d/out/dir/new"] {
            assert_denied(sandbox.write(path, b"written"), path);
        }
        // A link is reported by its kind, whichever strategy is asked.
        for path in ["d/file", "d/out", "in"] {
            assert_no_file(&sandbox, path, "symbolic link");
        }
        assert_untouched(&before, &outside);
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        assert_untouched(&links, &original);
        if strategy != "none" {
            sandbox.native("test \"$(readlink d/out)\" = ../../outside; rm d/out; mkdir d/out; printf x > d/out/y");
            assert_eq!(sandbox.listing(), ["T d/out", "A d/out/y"]);
            sandbox.rollback();
            sandbox.native("test \"$(readlink d/out)\" = ../../outside");
            assert_untouched(&links, &original);
        }
        sandbox.cleanup();
        assert_untouched(&before, &outside);
    }
    assert_swept(&world.home());
}

/// Swaps two names again and again until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn new(a: PathBuf, b: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                // Fails while one of the two is away; then it tries again.
                let _ = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the swapper does not panic");
        }
    }
}

fn content(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text)
        .expect("an open file can be read");
    text
}

/// The check that everyone writes first: look whether it is a directory, then open by name.
fn naive(tree: &Path) -> Option<String> {
    let dir = tree.join("d");
    if !fs::symlink_metadata(&dir).ok()?.is_dir() {
        return None;
    }
    File::open(dir.join("f")).ok().map(content)
}

// rule S2
#[test]
fn b3_a_directory_exchanged_with_a_link() {
    rerun_test_as_user("attacks_b::b3_a_directory_exchanged_with_a_link");
    const OPENS: u64 = 20_000;
    let world = World::new();
    let (tree, outside) = (world.dir("tree"), world.dir("outside"));
    build(&tree, "d/f \"inside\"\nd/sub/f \"inside\"\nl -> ../outside");
    build(&outside, "f \"outside\"\nsub/f \"outside\"");
    let _swapper = Swapper::new(tree.join("d"), tree.join("l"));
    let forbidden = fs::metadata(&outside).expect("it is there").ino();
    let (mut opened, mut refused) = (0u64, 0u64);
    for resolver in [Resolver::Kernel, Resolver::Checked] {
        let root = Dir::open_with(&tree, resolver).expect("the tree is there");
        let (d, f, deep) = (at("d"), at("d/f"), at("d/sub/f"));
        for turn in 0..OPENS {
            let landed = match turn % 4 {
                0 => root
                    .dir(&d)
                    .map(|dir| dir.meta().expect("it is open").ino == forbidden),
                1 => root
                    .file_path(&f)
                    .map(|(file, _)| content(file) != "inside"),
                2 => root
                    .file_path(&deep)
                    .map(|(file, _)| content(file) != "inside"),
                _ => root
                    .subdir(b"d")
                    .map(|dir| dir.meta().expect("it is open").ino == forbidden),
            };
            match landed {
                Ok(outside) => {
                    assert!(!outside, "{resolver:?} landed outside in turn {turn}");
                    opened += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert_eq!(opened + refused, 2 * OPENS);
    let raced = opened > 0 && refused > 0;
    assert!(raced, "{opened} opened, {refused} refused: no race");
    // The race is real: the process that checks first and opens then is caught by it.
    let start = Instant::now();
    let mut tries = 0u64;
    while naive(&tree).as_deref() != Some("outside") {
        tries += 1;
        let waits = start.elapsed() < Duration::from_secs(60);
        assert!(waits, "{tries} naive opens, none outside");
    }
}

// rule S2
#[test]
fn b4_a_directory_moved_out_while_it_is_walked() {
    rerun_test_as_user("attacks_b::b4_a_directory_moved_out_while_it_is_walked");
    let world = World::new();
    for strategy in COPIES {
        let original = world.dir(format!("original-{strategy}"));
        build(
            &original,
            "0 \"copied first\"\nd/a/b/c \"deep\"\nd/a/f \"f\"\nd/x \"x\"",
        );
        let (from, to) = (
            original.join("d"),
            world.path().join(format!("moved-{strategy}")),
        );
        // When the first file of the tree was copied.
        let moved = OnceLock::new();
        let observer = OnCopied(|_| {
            moved.get_or_init(|| fs::rename(&from, &to).expect("it can be moved"));
        });
        let manager = open(&world.home());
        let typed = [original.as_os_str().to_owned()];
        let answer = manager.create_plan(None, &original, &typed, Some(strategy), &observer);
        let error = answer.expect_err("the tree was torn while it was copied");
        assert!(error.to_string().contains("/d"), "{error}");
        assert_swept(&world.home());
        assert!(manager.plans().expect("they can be listed").is_empty());
        assert_eq!(names(&to), ["a", "x"]);
    }
}

// rule F2
#[test]
fn b5_links_that_lead_nowhere() {
    rerun_test_as_user("attacks_b::b5_links_that_lead_nowhere");
    let world = World::new();
    let long = "t".repeat(1000);
    let text = format!("broken -> no/such/thing\na -> b\nb -> a\nself -> self\nlong -> {long}");
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, &text);
        sh(
            &original,
            "touch -hd '1977-07-07 07:07:07.7' broken a b self long .",
        );
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        for path in ["broken", "a", "self", "long", "a/x"] {
            assert!(sandbox.read(path).is_err(), "{path}");
        }
        sandbox.native("rm broken; ln -s other broken; touch -h a");
        assert_eq!(sandbox.listing(), ["M broken"]);
        sandbox.native("rm long");
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0]);
        sandbox.native(&format!(
            "test \"$(readlink long)\" = {long}; test \"$(readlink self)\" = self"
        ));
        assert_untouched(&before, &original);
        sandbox.cleanup();
    }
}

/// Links of the kernel's own, which lead to whatever a process has open.
// rule S1
#[test]
fn b7_the_way_out_through_proc() {
    rerun_test_as_user("attacks_b::b7_the_way_out_through_proc");
    let world = World::new();
    let kept = File::open(world.path()).expect("the world is there");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&kept);
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        build(
            &original,
            &format!(
                "fd -> /proc/self/fd/{fd}\nroot -> /proc/self/root\ncwd -> /proc/self/cwd\nproc -> /proc/self\nplain \"x\""
            ),
        );
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for path in [
            "fd/escrow-home/state.db",
            "root/etc/hostname",
            "cwd/Cargo.toml",
            "proc/status",
        ] {
            assert_denied(sandbox.read(path), path);
        }
        for path in ["fd/caught", "root/tmp/caught", "proc/fd/1"] {
            assert_denied(sandbox.write(path, b"caught"), path);
        }
        assert!(!world.path().join("caught").exists());
        sandbox.cleanup();
    }
}

/// A tree is removed while a name in it is exchanged with a link: nothing outside changes.
// rule S2
#[test]
fn b12_a_removal_that_is_raced() {
    rerun_test_as_user("attacks_b::b12_a_removal_that_is_raced");
    let world = World::new();
    let victim = world.path().join("victim");
    fs::write(&victim, "victim").expect("the world is writable");
    let (room, held) = (world.dir("room"), world.dir("held"));
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o604)).expect("it is ours");
    let meta = || {
        let meta = fs::metadata(&victim).expect("it is there");
        (meta.mode() & 0o7777, meta.mtime_nsec(), meta.ctime_nsec())
    };
    let before = meta();
    let parent = Dir::open(&room).expect("it is there");
    let _swapper = Swapper::new(room.join("x/d"), room.join("x/l"));
    for turn in 0..2_000 {
        // Made apart, then moved in at once, so that the removal meets both.
        let made = held.join("x");
        fs::create_dir(&made).expect("it is free");
        symlink(&victim, made.join("l")).expect("it is free");
        fs::create_dir(made.join("d")).expect("it is free");
        fs::set_permissions(made.join("d"), fs::Permissions::from_mode(0o000)).expect("it is ours");
        fs::rename(&made, room.join("x")).expect("nothing is there");
        for _ in 0..100 {
            // It may fail in the race; then it is tried again.
            if remove::remove(&parent, b"x").is_ok() {
                break;
            }
        }
        assert_eq!(meta(), before, "a file outside was changed in turn {turn}");
    }
    assert_eq!(fs::read(&victim).expect("it is there"), b"victim");
}

/// A file is written while it is exchanged with a link: nothing outside changes.
// rule S2
#[test]
fn b12_a_write_that_is_raced() {
    rerun_test_as_user("attacks_b::b12_a_write_that_is_raced");
    let world = World::new();
    let victim = world.path().join("victim");
    fs::write(&victim, "victim").expect("the world is writable");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o604)).expect("it is ours");
    let stamp = || {
        fs::metadata(&victim)
            .map(|meta| (meta.mode(), meta.ctime_nsec()))
            .expect("there")
    };
    let untouched = stamp();
    for strategy in ["filesystem_copy", "none"] {
        let original = world.dir(format!("original-{strategy}"));
        build(
            &original,
            "f 0751 \"file\"\nd/g \"file\"\nl -> ../victim\nout -> ..",
        );
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let tree = sandbox.tree();
        symlink(&victim, tree.join("v")).expect("it is free");
        let _file = Swapper::new(tree.join("f"), tree.join("v"));
        let _dir = Swapper::new(tree.join("d"), tree.join("out"));
        let mut done = 0;
        for turn in 0..100 {
            for path in ["f", "d/g", "d/victim"] {
                let text = format!("turn {turn}");
                done += u32::from(sandbox.write(path, text.as_bytes()).is_ok());
            }
            assert_eq!(stamp(), untouched, "{strategy}: changed outside");
        }
        assert!(done > 0, "{strategy}: the race was never won");
    }
    assert_eq!(fs::read(&victim).expect("it is there"), b"victim");
    let manager = open(&world.home());
    for view in manager.plans().expect("they can be listed") {
        manager
            .cleanup(&view.plan, false)
            .expect("they can be removed");
    }
}
