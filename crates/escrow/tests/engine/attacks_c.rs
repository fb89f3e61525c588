//! Attacks of group C: kinds of files and metadata.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::diff;
use escrow::error::Error;
use escrow::strategy::StrategyError;
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::{Fs, LoopFs, World};
use rustix::fs::XattrFlags;

use crate::commit_support::{Must, all_succeed, child, start_child};
use crate::support::{
    ALL, COPIES, ISOLATING, Sandboxed, assert_swept, assert_untouched, chain, given, open,
    run_as_user_with, sh,
};

/// A diff as text, which must not wait for anything either.
pub(crate) fn patch(sandbox: &Sandboxed) -> String {
    let manager = &sandbox.manager;
    let diffs = manager.diff(&sandbox.plan, None).must("it can be compared");
    let one = &diffs.resources[0];
    let contents = manager
        .contents(&diffs, &one.view)
        .must("both sides are there");
    let mut text = Vec::new();
    diff::name_status(&one.diff, &Default::default(), &mut text).expect("memory takes it");
    diff::patch(
        &one.diff,
        &contents,
        &diff::PatchOptions::default(),
        &mut text,
    )
    .expect("memory takes it");
    String::from_utf8(text).expect("what is shown is text")
}

/// Neither read nor written, and reported by its kind.
#[track_caller]
pub(crate) fn assert_no_file(sandbox: &Sandboxed, path: &str, expected: &str) {
    let (read, write) = (sandbox.read(path), sandbox.write(path, b"x"));
    for error in [read.err(), write.err()] {
        let kind = match &error {
            Some(Error::Strategy(StrategyError::NotAFile { kind, .. })) => kind.as_str(),
            _ => "something else",
        };
        assert_eq!(kind, expected, "{path}: {error:?}");
    }
}

// rule F4
#[test]
fn c1_a_named_pipe() {
    rerun_test_as_user("attacks_c::c1_a_named_pipe");
    let world = World::new();
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "pipe | 0620\nd/pipe |\nfile \"file\"");
        sh(&original, "touch -d 1990-01-01 pipe d/pipe file d .");
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for path in ["pipe", "d/pipe"] {
            assert_no_file(&sandbox, path, "named pipe");
        }
        assert!(sandbox.write("pipe/below", b"x").is_err());
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        assert_untouched(&before, &original);
        if strategy == "none" {
            sandbox.cleanup();
            continue;
        }
        if COPIES.contains(&strategy) {
            assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        }
        sandbox
            .native("mkfifo new; rm file; mkfifo file; rm pipe; printf x > pipe; chmod 600 d/pipe");
        let changed = ["P d/pipe", "T file", "A new", "T pipe"];
        assert_eq!(sandbox.listing(), changed, "{strategy}");
        assert!(patch(&sandbox).contains("new"));
        assert!(sandbox.read("new").is_err() && sandbox.read("file").is_err());
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

pub(crate) fn socket(dir: &Path, name: &str) {
    let open = File::open(dir).expect("it is a directory");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
    drop(UnixListener::bind(format!("/proc/self/fd/{fd}/{name}")).expect("a socket can be made"));
}

// rule F4
#[test]
fn c2_a_socket_or_a_device() {
    rerun_test_as_user("attacks_c::c2_a_socket_or_a_device");
    let world = World::new();
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "d/file \"file\"");
        socket(&original.join("d"), "sock");
        if is_root() {
            sh(&original, "mknod -m 640 null c 1 3; mknod d/loop b 7 0");
        }
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let warnings = sandbox.sandbox().warnings;
        if COPIES.contains(&strategy) {
            let named = warnings.iter().any(|text| text.contains("'d/sock'"));
            let expected = if is_root() { 3 } else { 1 };
            assert!(named && warnings.len() == expected, "{warnings:?}");
            let special = Ignore {
                special: true,
                ..Ignore::default()
            };
            assert_same(&before, &signature(&sandbox.tree()), &special);
        }
        assert_eq!(
            sandbox.listing(),
            [""; 0],
            "{strategy}: left out is no change"
        );
        for path in ["d/sock", "null", "d/loop"] {
            assert!(sandbox.read(path).is_err(), "{strategy}: {path}");
        }
        if COPIES.contains(&strategy) {
            socket(&sandbox.tree(), "new");
            assert_eq!(sandbox.listing(), ["A new"], "{strategy}");
            sandbox.rollback();
        }
        sandbox.native("rm d/file");
        assert_eq!(sandbox.listing(), ["D d/file"], "{strategy}");
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        assert_untouched(&before, &original);
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("cannot set {name} on {}: {error}", path.display()));
}

/// Attributes as large as the kernel takes them, and access control lists.
// rule F1
#[test]
fn c9_large_attributes_and_acls() {
    if let Some(place) = given() {
        return keep_attributes(&World::under(&place));
    }
    let fs = need!(LoopFs::new(Fs::Xfs, 300));
    keep_attributes(&World::under(fs.path()));
    let world = World::under(fs.path());
    let place = world.dir("theirs");
    world.chown_to_user();
    run_as_user_with("attacks_c::c9_large_attributes_and_acls", &place);
}

fn keep_attributes(world: &World) {
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        let text = "file 0640 \"file\"\ndir/below \"below\"\nacl \"acl\"";
        build(&original, text);
        for path in [&original, &original.join("file"), &original.join("dir")] {
            set_xattr(path, "user.large", &[7; 65536]);
            // Others do not see these.
            if is_root() {
                set_xattr(path, "trusted.mark", b"trusted\0");
            }
        }
        sh(
            &original,
            "setfacl -m u:12345:rw-,g:23456:r-- acl; setfacl -m u:12345:r-x dir
             setfacl -d -m u:12345:rwx dir; setfacl -d -m g:54:rwx .; touch -d 1980-01-01 file dir .",
        );
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        assert_eq!(sandbox.sandbox().warnings, [""; 0], "{strategy}");
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        for path in ["file", "acl", "dir/new"] {
            sandbox.write(path, b"new").expect("it can be written");
        }
        let changed = ["M acl", "A dir/new", "M file"];
        assert_eq!(sandbox.listing(), changed, "{strategy}");
        if COPIES.contains(&strategy) {
            let now = signature(&sandbox.tree());
            for path in [&b"file"[..], b"acl", b"dir", b""] {
                assert_eq!(now[path].xattrs, before[path].xattrs, "{strategy}");
            }
            sandbox.rollback();
            assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        }
        assert_untouched(&before, &original);
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

// rule F1
#[test]
fn c10_times_at_the_edges() {
    rerun_test_as_user("attacks_c::c10_times_at_the_edges");
    let world = World::new();
    let times = [
        ("1901", "1901-12-14 20:45:52.000000001 UTC"),
        ("1969", "1969-12-31 23:59:59.999999999 UTC"),
        ("2038", "2038-01-19 03:14:08.000000001 UTC"),
        ("2200", "2200-02-28 01:02:03.123456789 UTC"),
    ];
    for strategy in COPIES {
        let original = world.dir(format!("original-{strategy}"));
        for (name, time) in times {
            let script = format!(
                "mkdir d{name}; printf x > d{name}/file; ln -s file d{name}/link
                 touch -hd '{time}' d{name}/file d{name}/link d{name}"
            );
            sh(&original, &script);
        }
        sh(&original, "touch -d '1933-03-03 03:03:03.000000003 UTC' .");
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        sandbox.native("printf y > d1901/file; rm d2200/link; rm -r d1969; mkdir d2038/new");
        sandbox.rollback();
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        assert_untouched(&before, &original);
        sandbox.cleanup();
    }
}

// rule F3
#[test]
fn c11_holes() {
    rerun_test_as_user("attacks_c::c11_holes");
    let world = World::new();
    for strategy in COPIES {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "sparse @hole 67108864 \"6bytes\"");
        // As much as a file of this kind of file system can seem to have.
        sh(
            &original,
            "truncate -s 16T huge || truncate -s 17592186040320 huge; sync -f .",
        );
        let size = |path: &Path| {
            let meta = fs::metadata(path).expect("it is there");
            (meta.size(), meta.blocks())
        };
        assert!(size(&original.join("huge")).0 > 1 << 43);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for name in ["sparse", "huge"] {
            let copied = size(&sandbox.tree().join(name));
            assert_eq!(copied, size(&original.join(name)), "{name}");
        }
        assert_eq!(sandbox.listing(), [""; 0]);
        sandbox.cleanup();
    }
}

/// So many bytes this process has read by now.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("the kernel counts");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|count| count.parse().ok())
        .expect("rchar is a number")
}

/// Two files of holes are compared without reading what is not there. Run alone: reads are counted.
// rule F3, F6
#[test]
fn c11_holes_are_not_read() {
    let Some(_) = child() else {
        let test = "attacks_c::c11_holes_are_not_read";
        rerun_test_as_user(test);
        return all_succeed(vec![start_child(test, Path::new("/"), "alone")]);
    };
    let world = World::new();
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "hole @hole 2147483648 \"tail\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native("touch hole");
        let before = bytes_read();
        assert_eq!(sandbox.listing(), [""; 0]);
        let read = bytes_read() - before;
        assert!(read < 1 << 28, "{strategy}: {read} bytes were read");
        sandbox.cleanup();
    }
}

// rule F3
#[test]
fn c12_groups_of_hard_links() {
    rerun_test_as_user("attacks_c::c12_groups_of_hard_links");
    let world = World::new();
    for strategy in COPIES {
        let original = world.dir(format!("original-{strategy}"));
        build(
            &original,
            "a \"one\"\nd/b = a\nd/e/c = a\nx \"two\"\ny = x\nl -> a\nalone \"alone\"",
        );
        sh(
            &original,
            "ln -P l d/l2; ln alone ../outside; touch -hd 1986-06-06 a x l alone d d/e .",
        );
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let tree = sandbox.tree();
        assert_same(&before, &signature(&tree), &Ignore::default());
        sh(&tree, "printf more >> d/e/c");
        assert_eq!(sandbox.listing(), ["M a", "M d/b", "M d/e/c"]);
        sandbox.rollback();
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        sandbox.write("d/b", b"parted").expect("it is a file");
        assert_eq!(sandbox.listing(), ["M d/b"]);
        sandbox.rollback();
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        sandbox.native("rm a; rm d/l2; ln x a");
        sandbox.rollback();
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        assert_untouched(&before, &original);
        sandbox.cleanup();
        fs::remove_file(world.path().join("outside")).expect("it was made above");
    }
}

/// A file that is rewritten all the time, with one byte throughout at each snapshot.
// rule F6
#[test]
fn c14_a_file_that_changes_while_it_is_copied() {
    rerun_test_as_user("attacks_c::c14_a_file_that_changes_while_it_is_copied");
    let world = World::new();
    for (strategy, size) in [("filesystem_copy", 3 << 20), ("copy_on_write", 40_000)] {
        let original = world.dir(format!("original-{strategy}"));
        let path = original.join("restless");
        fs::write(&path, vec![b'a'; size]).expect("there is room");
        let stop = AtomicBool::new(false);
        let (mut copied, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = File::options().write(true).open(&path).expect("it is ours");
                let mut byte = b'a';
                while !stop.load(Ordering::Relaxed) {
                    byte = if byte == b'z' { b'a' } else { byte + 1 };
                    file.write_all_at(&vec![byte; size], 0)
                        .expect("there is room");
                    // With its old time each time: only the kernel's own clock tells.
                    let old = rustix::fs::Timespec {
                        tv_sec: 7,
                        tv_nsec: 7,
                    };
                    let times = rustix::fs::Timestamps {
                        last_access: old,
                        last_modification: old,
                    };
                    rustix::fs::futimens(&file, &times).expect("it is ours");
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
            });
            let mut faults = Vec::new();
            for turn in 0..12 {
                match Sandboxed::attempt(&world.home(), &original, strategy) {
                    Ok(sandbox) => {
                        copied += 1;
                        let bytes = sandbox.read("restless").expect("it was copied");
                        if bytes.len() != size || bytes.iter().any(|byte| *byte != bytes[0]) {
                            faults.push(format!("a mixture was copied in turn {turn}"));
                        }
                        sandbox.cleanup();
                    }
                    Err(error) => {
                        refused += 1;
                        let text = chain(&error);
                        if !(text.contains("restless") && text.contains("changing")) {
                            faults.push(text);
                        }
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(faults.is_empty(), "{strategy}: {faults:?}");
        });
        assert_eq!(copied + refused, 12);
        assert_swept(&world.home());
    }
}

/// What an ordinary user cannot read cannot be copied: refused by name, and nothing stays. What only its own modes close to
/// its owner can.
// rule F1
#[test]
fn c15_what_cannot_be_read() {
    if let Some(original) = given() {
        let world = World::new();
        for strategy in COPIES {
            let answer = Sandboxed::attempt(&world.home(), &original, strategy);
            if !original.ends_with("refused") {
                let sandbox = answer.unwrap_or_else(|error| panic!("{}", chain(&error)));
                assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
                sandbox.cleanup();
                continue;
            }
            let error = answer.err().expect("it cannot be copied");
            assert!(error.to_string().contains("d/culprit"), "{error}");
            assert!(chain(&error).contains("ermission"), "{}", chain(&error));
            assert_swept(&world.home());
            let manager = open(&world.home());
            assert!(manager.plans().expect("they can be listed").is_empty());
        }
        return;
    }
    need!(require_root("files of another owner"));
    for text in [
        "a \"a\"\nd/culprit 0000 \"secret\"",
        "a \"a\"\nd/culprit/ 0000",
        "a \"a\"\nd/culprit/f \"f\"\nd/culprit/ 0600",
    ] {
        for (name, owner) in [
            ("taken", "54321:54321"),
            ("refused", "0:0"),
            ("refused", "54321:12345"),
        ] {
            let world = World::new();
            let original = world.dir(name);
            build(&original, text);
            sh(
                &original,
                &format!("chown -R 54321:54321 .; chown {owner} d/culprit"),
            );
            let before = signature(&original);
            run_as_user_with("attacks_c::c15_what_cannot_be_read", &original);
            assert_untouched(&before, &original);
        }
    }
}
