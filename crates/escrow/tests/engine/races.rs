//! Another process changes the original while it is being copied. The observer stands in for them: it is
//! reported every entry, so it can act between two of them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::event::{Observer, Unobserved};
use escrow::internals::fs::content::Reflinks;
use escrow::internals::fs::copy::copy_tree;
use escrow::internals::fs::{Cause, Dir};
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::tree::{build, render};

/// Does `act` when the first entry was copied.
struct Meddler<F> {
    done: AtomicBool,
    act: F,
}

impl<F: Fn() + Sync> Observer for Meddler<F> {
    fn copied(&self, _entries: u64, _bytes: u64) {
        if !self.done.swap(true, Ordering::SeqCst) {
            (self.act)();
        }
    }
}

fn copy(
    from: &Path,
    to: &Path,
    act: impl Fn() + Sync,
) -> Result<Vec<String>, escrow::internals::fs::FsError> {
    let meddler = Meddler {
        done: AtomicBool::new(false),
        act,
    };
    let (from, to) = (Dir::open(from)?, Dir::open(to)?);
    let (_, report) = copy_tree(&from, &to, Reflinks::never(), &[], &meddler)?;
    assert!(meddler.done.into_inner(), "nobody meddled");
    Ok(report.warnings())
}

/// The directory got a new time when it was changed.
const MOVED: Ignore = Ignore {
    times: true,
    owners: false,
    hole_map: false,
    special: false,
};

/// Found by a hostile reader: the other name of the inode was given the new file's content.
// rule F3
#[test]
fn a_name_of_a_hard_link_is_replaced_while_it_is_copied() {
    let world = World::new();
    let (from, to) = (world.dir("from"), world.dir("to"));
    build(
        &from,
        "a \"first\"\nlink1 \"OLD\"\nlink2 = link1\nlink3 = link1\n",
    );
    fs::write(world.path().join("new"), "NEW").expect("it can be written");
    let act = || fs::rename(world.path().join("new"), from.join("link1")).expect("it can be moved");
    copy(&from, &to, act).expect("it can be copied");
    assert_same(&signature(&from), &signature(&to), &MOVED);
}

#[test]
fn a_later_name_of_a_hard_link_is_replaced_while_it_is_copied() {
    let world = World::new();
    let (from, to) = (world.dir("from"), world.dir("to"));
    build(&from, "link1 \"OLD\"\nlink2 = link1\nlink3 = link1\n");
    fs::write(world.path().join("new"), "NEW").expect("it can be written");
    let act = || fs::rename(world.path().join("new"), from.join("link2")).expect("it can be moved");
    copy(&from, &to, act).expect("it can be copied");
    assert_same(&signature(&from), &signature(&to), &MOVED);
}

#[test]
fn a_file_that_goes_while_its_directory_is_copied_is_not_there() {
    let world = World::new();
    let (from, to) = (world.dir("from"), world.dir("to"));
    build(&from, "a \"a\"\nb \"b\"\nc \"c\"\n");
    let act = || fs::remove_file(from.join("b")).expect("it is there");
    copy(&from, &to, act).expect("it can be copied");
    assert_eq!(render(&to), render(&from));
}

/// A directory that is moved out of the tree is not half copied.
#[test]
fn a_directory_that_goes_while_it_is_copied_is_refused() {
    let world = World::new();
    let (from, to) = (world.dir("from"), world.dir("to"));
    build(&from, "a \"a\"\ndir/x \"x\"\n");
    let act = || fs::rename(from.join("dir"), world.path().join("away")).expect("it is there");
    let error = copy(&from, &to, act).expect_err("it is not whole");
    assert_eq!(error.cause, Cause::Vanished);
    assert!(error.path.to_string().ends_with("from/dir"), "{error}");
}

#[test]
fn nobody_meddles() {
    let world = World::new();
    let (from, to) = (world.dir("from"), world.dir("to"));
    build(&from, "a \"a\"\nb = a\ndir/x \"x\"\n");
    let (source, target) = (
        Dir::open(&from).expect("it is there"),
        Dir::open(&to).expect("it is there"),
    );
    let (manifest, report) = copy_tree(&source, &target, Reflinks::wanted(), &[], &Unobserved)
        .expect("it can be copied");
    assert_eq!((manifest.len(), report.entries), (5, 4));
    assert_same(&signature(&from), &signature(&to), &Ignore::default());
}
