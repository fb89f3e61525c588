//! A zoo of odd metadata, copied, wrecked and restored: nothing differs but what the rules name.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use escrow::internals::fs::manifest::Manifest;
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, Sig, assert_same, differences, signature};
use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::tree::build;
use escrow_testkit::user::{UID, rerun_test_as_user};
use escrow_testkit::zoo::{ZooFacts, zoo};
use escrow_testkit::{Fs, LoopFs, World};

use crate::support::{
    COPIES, Sandboxed, assert_swept, assert_untouched, given, names, run_as_user_with, sh,
};

/// Sockets and devices are not copied (rule F4); everything else is.
const BY_RULE: Ignore = Ignore {
    times: false,
    owners: false,
    hole_map: false,
    special: true,
};

/// Changes of every kind, hard links among them: the tree has to be copied anew.
const WRECK_ALL: &str = r#"
rm -rf names deep beyond-path-max
printf more >> links/hard-1
rm links/other/relative-hard-linked
rm special/fifo; printf 'a file now' > special/fifo
chmod 0123 sizes/one; chmod 0700 sizes
printf new > 'new
file'; mkdir -p new/dir; ln -s nowhere new/link; mkfifo new/fifo
rm sizes/exact-block; mkdir sizes/exact-block; printf in > sizes/exact-block/inside
rm -rf empty; printf 'no directory' > empty
setfattr -n user.escrow.new -v 1 attributes/dir
setfattr -x user.escrow.small attributes/file
setfacl -b attributes/acl-dir
chmod 0000 modes/dir-0700; chmod 0 modes
chmod 0711 .
"#;

/// Changes that can be taken back one by one.
const WRECK_SOME: &str = r#"
printf 'other text' > sizes/one
rm sizes/hole-at-the-end sizes/sparse-64m
rm -rf names-dirs/case deep/d01/d02/d03
rm sizes/exact-block; mkdir sizes/exact-block; printf in > sizes/exact-block/inside
rm -rf empty; printf 'no directory' > empty
rm links/broken; ln -s elsewhere links/broken
rm special/fifo
mkdir -m 0 modes/closed
chmod 0755 modes/file-4755; chmod 0711 modes/dir-0700
setfattr -n user.escrow.new -v 1 attributes/dir
setfattr -x user.escrow.small attributes/dir
setfattr -x user.escrow.small attributes/file
setfacl -b attributes/acl-dir
chmod u+w modes/dir-0555; printf x > modes/dir-0555/new; chmod 0555 modes/dir-0555
"#;

fn assert_like_original(before: &Sig, tree: &Path, when: &str) {
    let found = differences(before, &signature(tree), &BY_RULE);
    assert!(found.is_empty(), "{when}:\n{}", found.join("\n"));
}

fn assert_warned(facts: &ZooFacts, warnings: &[String]) {
    for path in &facts.skipped_by_rule {
        let path = path.to_str().expect("special files have plain names");
        let named = warnings.iter().any(|warning| warning.contains(path));
        assert!(named, "nothing is said of {path}: {warnings:?}");
    }
    let skipped = facts.skipped_by_rule.len();
    assert_eq!(
        warnings.len(),
        skipped,
        "nothing else is lost: {warnings:?}"
    );
}

fn faithful(world: &World, strategy: &str) -> String {
    let original = world.dir(format!("zoo-{strategy}"));
    let facts = zoo(&original);
    let before = signature(&original);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    let made = sandbox.sandbox();
    let tree = sandbox.tree();
    assert_like_original(&before, &tree, "a fresh copy");
    assert_warned(&facts, &made.warnings);
    assert_eq!(sandbox.listing(), [""; 0]);
    for script in [WRECK_ALL, WRECK_SOME] {
        sh(&tree, script);
        // To the process that cannot read all of it any more, it can still be given back.
        if is_root() {
            assert_ne!(sandbox.listing(), [""; 0]);
        }
        sandbox.rollback();
        let tree = sandbox.tree();
        assert_like_original(&before, &tree, "after the rollback");
        assert_eq!(sandbox.listing(), [""; 0]);
    }
    assert_untouched(&before, &original);
    sandbox.cleanup();
    assert_swept(&world.home());
    made.message
}

// rule F1, F2, F3, F4, F5, S4
#[test]
fn zoo_below_an_odd_path() {
    rerun_test_as_user("metadata::zoo_below_an_odd_path");
    let world = World::odd();
    faithful(&world, "filesystem_copy");
    let message = faithful(&world, "copy_on_write");
    assert!(message.contains("copied in full"), "{message}");
}

fn zoo_on(kind: Fs) {
    let fs = need!(LoopFs::new(kind, 300));
    let world = World::under(fs.path());
    faithful(&world, "filesystem_copy");
    let message = faithful(&world, "copy_on_write");
    assert!(message.contains("share their contents"), "{message}");
    assert!(!message.contains("copied"), "{message}");
    shares(&world);
}

/// The blocks of a copied file are those of the original.
fn shares(world: &World) {
    let original = world.dir("shared");
    let content: Vec<u8> = (0..1u32 << 20).flat_map(u32::to_le_bytes).collect();
    std::fs::write(original.join("large"), content).expect("there is room for 4 MiB");
    let sandbox = Sandboxed::new(&world.home(), &original, "copy_on_write");
    let extents = sh(sandbox.tree(), "filefrag -v large");
    assert!(extents.contains("shared"), "{extents}");
    sandbox.cleanup();
}

// rule F1, F2, F3, F4
#[test]
fn zoo_on_xfs() {
    zoo_on(Fs::Xfs);
}

// rule F1, F2, F3, F4
#[test]
fn zoo_on_btrfs() {
    zoo_on(Fs::Btrfs);
}

/// Has files of another owner and group copied by the test user, who cannot give files away.
// rule F1
#[test]
fn owners_stay_where_that_is_permitted() {
    if let Some(original) = given() {
        let world = World::new();
        for strategy in COPIES {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            let owners = Ignore {
                owners: true,
                ..Ignore::default()
            };
            assert_same(&signature(&original), &signature(&sandbox.tree()), &owners);
            let copy = std::fs::metadata(sandbox.tree().join("theirs")).expect("it was copied");
            assert_eq!(copy.uid(), UID);
            assert_eq!(sandbox.listing(), [""; 0]);
            sh(sandbox.tree(), "printf mine > theirs; rm -r dir");
            sandbox.rollback();
            assert_same(&signature(&original), &signature(&sandbox.tree()), &owners);
            assert_eq!(sandbox.listing(), [""; 0], "after the rollback");
            sandbox.cleanup();
        }
        return;
    }
    need!(require_root("files of another owner"));
    let world = World::new();
    let original = world.dir("foreign");
    build(
        &original,
        "theirs 0644 \"of another\"\ndir/file 0664 \"below\"\nlink -> dir",
    );
    sh(
        &original,
        "chown -h 12345:23456 theirs dir dir/file link; touch -hd 2001-02-03 link dir .",
    );
    let before = signature(&original);
    run_as_user_with("metadata::owners_stay_where_that_is_permitted", &original);
    assert_untouched(&before, &original);
}

/// Holes that the number of blocks does not betray: other blocks belong to the file as well.
// rule F3
#[test]
fn holes_stay_holes_beside_other_blocks() {
    let world = World::new();
    let original = world.dir("original");
    sh(
        &original,
        "truncate -s 4096 first; printf '%04096d' 7 >> first
         for n in 1 2 3; do setfattr -n user.$n -v $(printf '%0900d' 1) first; done
         truncate -s 1048576 ahead; printf tail >> ahead; fallocate -n -o 2097152 -l 2097152 ahead
         sync -f .",
    );
    let before = signature(&original);
    for strategy in COPIES {
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
        sandbox.cleanup();
    }
}

/// What a rollback gives back is the tree that was copied, also where a difference is none that a
/// diff would list: times, and names that were one file.
// rule F1, F3
#[test]
fn rollback_restores_what_a_diff_does_not_list() {
    let world = World::new();
    let original = world.dir("original");
    build(
        &original,
        "one \"linked\"\ntwo = one\nold \"old\"\ndir/in \"in\"\nother \"x\"",
    );
    sh(
        &original,
        "find . -exec touch -hd '1991-01-02 03:04:05.000000006' {} +",
    );
    let before = signature(&original);
    for (strategy, more) in [
        ("filesystem_copy", ":"),
        ("copy_on_write", ":"),
        ("filesystem_copy", "printf y > other"),
    ] {
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sh(
            sandbox.tree(),
            &format!("cp one new; mv -f new one; touch old dir; {more}"),
        );
        sandbox.rollback();
        assert_like_original(&before, &sandbox.tree(), more);
        sandbox.cleanup();
    }
}

fn manifest_of(sandbox: &Sandboxed) -> PathBuf {
    sandbox.area().join("copy/manifest")
}

// rule P3
#[test]
fn every_damaged_byte_of_a_manifest_is_refused() {
    let world = World::new();
    let original = world.dir("original");
    build(&original, "a \"1\"\nd/b 0600 \"22\"\nl -> a\nh = a");
    let sandbox = Sandboxed::new(&world.home(), &original, "filesystem_copy");
    let path = manifest_of(&sandbox);
    let good = std::fs::read(&path).expect("the manifest is a file");
    let again = Manifest::read(&File::open(&path).expect("it opens")).expect("it is whole");
    let mut written = Vec::new();
    again.write(&mut written).expect("memory takes it");
    assert!(written == good, "read and written again it is the same");
    let damaged = world.path().join("damaged");
    let refused = |bytes: &[u8]| {
        let mut file = File::create(&damaged).expect("the world is writable");
        file.write_all(bytes).expect("there is room");
        Manifest::read(&File::open(&damaged).expect("it opens")).is_err()
    };
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(refused(&bytes), "byte {at} of {} was flipped", good.len());
    }
    for length in 0..good.len() {
        assert!(refused(&good[..length]), "cut to {length} bytes");
    }
    assert!(refused(&[&good[..], b"\0"].concat()), "one byte more");
    sandbox.cleanup();
}

/// A sandbox whose record is damaged says so, and can still be removed.
// rule P6
#[test]
fn a_damaged_sandbox_is_told_and_cleaned_up() {
    let world = World::new();
    let original = world.dir("original");
    build(&original, "a \"1\"");
    let before = signature(&original);
    let sandbox = Sandboxed::new(&world.home(), &original, "filesystem_copy");
    std::fs::write(manifest_of(&sandbox), b"nonsense").expect("the area is this user's");
    let error = sandbox.try_diff().expect_err("the record is gone");
    assert!(error.to_string().contains("damaged"), "{error}");
    sandbox.cleanup();
    assert_swept(&world.home());
    assert_untouched(&before, &original);
}

/// The area is private, and its name cannot be guessed.
// rule S3
#[test]
fn areas_are_private() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "filesystem_copy");
    let mode = |path: &Path| {
        let meta = std::fs::symlink_metadata(path).expect("it is there");
        meta.permissions().mode() & 0o7777
    };
    assert_eq!(mode(&sandbox.area()), 0o700);
    assert_eq!(mode(&world.home().join("sandboxes")), 0o700);
    let [name] = &names(&world.home().join("sandboxes"))[..] else {
        panic!("one sandbox has one area");
    };
    assert!(name.starts_with("sbx_") && name.len() > 20, "{name}");
    sandbox.cleanup();
}
