//! Another process changes the original while it is being copied. The observer stands in for them: it is
//! reported every entry, so it can act between two of them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::internals::fs::content::Reflinks;
use escrow::internals::fs::copy::copy_tree;
use escrow::internals::fs::{Cause, Dir, FsError};
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::tree::{build, render};

use crate::support::OnCopied;

/// Copies, and does `act` when the first entry was copied.
fn copy(from: &Path, to: &Path, act: impl Fn() + Sync) -> Result<(), FsError> {
    let done = AtomicBool::new(false);
    let meddler = OnCopied(|_| {
        if !done.swap(true, Ordering::SeqCst) {
            act();
        }
    });
    let (from, to) = (Dir::open(from)?, Dir::open(to)?);
    copy_tree(&from, &to, Reflinks::never(), &[], &meddler)?;
    assert!(done.load(Ordering::SeqCst), "nothing was changed meanwhile");
    Ok(())
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
    let links = "link1 \"OLD\"\nlink2 = link1\nlink3 = link1\n";
    for (text, replaced) in [
        (format!("a \"first\"\n{links}"), "link1"),
        (links.to_owned(), "link2"),
    ] {
        let world = World::new();
        let (from, to) = (world.dir("from"), world.dir("to"));
        build(&from, &text);
        let new = world.path().join("new");
        fs::write(&new, "NEW").expect("it can be written");
        let act = || fs::rename(&new, from.join(replaced)).expect("it can be moved");
        copy(&from, &to, act).expect("it can be copied");
        assert_same(&signature(&from), &signature(&to), &MOVED);
    }
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
