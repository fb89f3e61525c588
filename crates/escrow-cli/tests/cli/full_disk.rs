//! A full disk is an error like any other: named, with nothing left behind and nothing lost.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::{Cli, Fs, LoopFs, World};

use crate::{binary, json, words};

/// Leaves about `spare` bytes free below `base`.
fn fill(base: &Path, spare: usize) {
    let mut filler = File::create(base.join("filler")).expect("it can be written");
    let block = vec![7u8; 64 * 1024];
    let mut written = 0;
    while filler.write_all(&block).is_ok() {
        written += block.len();
    }
    let length = written.saturating_sub(spare) as u64;
    filler.set_len(length).expect("a file can shrink");
    filler.sync_all().expect("it fits");
}

fn left_in(home: &Path) -> usize {
    std::fs::read_dir(home.join("sandboxes"))
        .expect("it is there")
        .count()
}

// rule F1, P6
#[test]
fn a_copy_that_does_not_fit_leaves_nothing() {
    for kind in Fs::ALL {
        let Some(fs) = LoopFs::new(kind, 160) else {
            return;
        };
        let world = World::under(fs.path());
        let app = world.dir("app");
        // Small ones: the kernel itself shares the contents of large ones on xfs and btrfs.
        for number in 0..400 {
            let path = app.join(format!("f{number}"));
            std::fs::write(path, vec![number as u8; 60_000]).expect("it fits");
        }
        let cli = Cli::new(&world, &binary());
        cli.ok(words(
            "plan create before --resource ./app --strategy overlay",
        ));
        let before = signature(&app);
        fill(world.path(), 2_000_000);
        let error = cli.fails(
            words("plan create try --resource ./app --strategy filesystem_copy"),
            1,
        );
        assert!(
            error.contains("No space left on device"),
            "{kind:?}: {error}"
        );
        assert!(error.contains("hint: free some space"), "{kind:?}: {error}");
        assert_eq!(left_in(&world.home()), 1, "{kind:?}");
        let plans = json(&cli, "plan list");
        assert_eq!(
            plans["plans"].as_array().map(Vec::len),
            Some(1),
            "{kind:?}: {plans}"
        );
        // A write that does not fit leaves the old content, and goes through once there is room.
        let large = vec![b'x'; 6_000_000];
        cli.clone()
            .stdin(&large)
            .fails(words("write before app f1"), 1);
        assert_eq!(cli.ok(words("diff before --name-status")), "", "{kind:?}");
        std::fs::remove_file(world.path().join("filler")).expect("it is there");
        cli.clone().stdin(&large).ok(words("write before app f1"));
        assert_eq!(
            cli.ok(words("diff before --name-status")),
            "M\tf1\n",
            "{kind:?}"
        );
        cli.ok(words(
            "plan create try --resource ./app --strategy filesystem_copy",
        ));
        assert_eq!(cli.ok(words("diff try --name-status")), "", "{kind:?}");
        assert_same(&before, &signature(&app), &Ignore::default());
    }
}

/// Files need inodes, not only bytes.
#[test]
fn a_copy_without_inodes_leaves_nothing() {
    let Some(fs) = LoopFs::with_mkfs_args(Fs::Ext4, 64, &["-N", "256"]) else {
        return;
    };
    let world = World::under(fs.path());
    let app = world.dir("app");
    for number in 0..150 {
        std::fs::write(app.join(format!("f{number}")), "x").expect("it fits");
    }
    let cli = Cli::new(&world, &binary());
    let error = cli.fails(
        words("plan create try --resource ./app --strategy filesystem_copy"),
        1,
    );
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(left_in(&world.home()), 0);
    cli.ok(words("plan create try --resource ./app --strategy overlay"));
}
