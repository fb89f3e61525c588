//! After a commit the original is the tree that the sandbox was, to the last attribute; after an undo, what it was before.

use std::path::Path;

use escrow::error::Error;
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, Sig, assert_same, differences, signature};
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::zoo::zoo;
use escrow_testkit::{Fs, LoopFs, World};

use crate::commit_support::{Must, areas, assert_shares_nothing, assert_tree, stamps};
use crate::overlay::original;
use crate::support::{COPIES, ISOLATING, Sandboxed, assert_swept, each, names, sh, try_all};

/// Nothing of a layer or of a sandbox is in the original.
#[track_caller]
pub(crate) fn assert_clean(original: &Path) {
    assert_shares_nothing(original);
    for script in [
        "getfattr -R -h -m '^(user|trusted)\\.overlay\\.' . 2>&1 || true",
        "find . -type c -size 0 -name '*' -printf '%p %D\\n' | head",
    ] {
        assert_eq!(sh(original, script), "");
    }
}

/// Commits a sandbox and undoes it; the original is what it must be each time.
#[track_caller]
pub(crate) fn there_and_back(sandbox: &Sandboxed, when: &str) {
    let original = sandbox.original.as_path();
    let before = signature(original);
    let promised = sandbox.promised();
    let released = sandbox.commit().must(when);
    assert_eq!(released.left, [], "{when}");
    assert_tree(&promised, original, &format!("committed, {when}"));
    sandbox.undo().must(&format!("undo, {when}"));
    assert_tree(&before, original, &format!("undone, {when}"));
    assert_clean(original);
    sandbox.cleanup();
    assert_tree(&before, original, &format!("cleaned up, {when}"));
}

/// Changes among everything odd; what belongs to another owner stays out of it.
const ZOO_EDITS: &str = r#"
printf 'other text' > sizes/one
rm sizes/hole-at-the-end
printf tail >> sizes/sparse-64m
rm -rf names-dirs/case deep/d01/d02/d03 beyond-path-max
mv names renamed
rm sizes/exact-block; mkdir sizes/exact-block; printf in > sizes/exact-block/inside
rm -rf empty; printf 'no directory' > empty
rm links/broken; ln -s elsewhere links/broken
rm links/self; mkfifo -m 0620 links/self
rm special/fifo; ln -s nowhere special/fifo
setfattr -n user.escrow.new -v 1 attributes/dir
setfattr -x user.escrow.small attributes/dir
setfattr -x user.escrow.small attributes/file
setfacl -b attributes/acl-dir
setfacl -m u:12345:r attributes/file
chmod 0711 modes/dir-0700
chmod u+w modes/dir-0555; printf x > modes/dir-0555/new; chmod 0555 modes/dir-0555
mkdir -p 'new
dir/deep'; printf x > 'new
dir/deep/-rf'; truncate -s 3000000 'new
dir/hole'; ln 'new
dir/hole' 'new
dir/other name'
chmod 0711 .
touch -d '2003-03-03 03:03:03.33 UTC' sizes attributes .
"#;

fn zoo_of(world: &World, strategy: &str, prune: &str, script: &str, ignored: &Ignore) {
    let original = world.dir(format!("zoo-{strategy}"));
    zoo(&original);
    sh(&original, prune);
    let before = signature(&original);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(script);
    let promised = sandbox.promised();
    sandbox.committed();
    // Sockets and devices are in the original, and not in a copy.
    let found = differences(&signature(&original), &promised, ignored);
    let found = found.join("\n");
    assert!(found.is_empty(), "{strategy} (found, expected):\n{found}");
    sandbox.undone();
    assert_tree(&before, &original, &format!("{strategy}, undone"));
    sandbox.cleanup();
    assert_tree(&before, &original, &format!("{strategy}, cleaned up"));
}

const SPECIAL: Ignore = Ignore {
    times: false,
    owners: false,
    hole_map: false,
    special: true,
};

// rule C16, F1, F2, F3, F4, F5
#[test]
fn a_zoo() {
    rerun_test_as_user("commit_trees::a_zoo");
    let world = World::odd();
    for strategy in COPIES {
        zoo_of(&world, strategy, ":", ZOO_EDITS, &SPECIAL);
    }
    assert_swept(&world.home());
}

/// Under a mount cp(1) looks at the result, so nothing that it cannot copy is changed.
// rule C16, F1, F2, F5, T1
#[test]
fn a_zoo_under_an_overlay() {
    let world = World::odd();
    let prune = "rm -rf beyond-path-max owned-* attributes/trusted* attributes/acl-* \
                 special/*-* modes/file-0000 modes/capable";
    let script = ZOO_EDITS.replace(" beyond-path-max", "");
    let script = script.replace("setfacl", ":");
    let holes = Ignore {
        hole_map: true,
        ..SPECIAL
    };
    zoo_of(&world, "overlay", prune, &script, &holes);
    assert_clean(&world.path().join("zoo-overlay"));
}

/// Every kind of thing becomes every other kind.
// rule C16
#[test]
fn a_path_changes_its_kind() {
    rerun_test_as_user("commit_trees::a_path_changes_its_kind");
    let kinds = ["file", "dir", "full", "link", "fifo"];
    let make = |kind: &str, path: &str| match kind {
        "file" => format!("printf 'file of {path}' > {path}; chmod 0640 {path}\n"),
        "dir" => format!("mkdir -m 0750 {path}\n"),
        "full" => format!("mkdir -m 0711 {path}; printf x > {path}/x; mkdir {path}/y\n"),
        "link" => format!("ln -s target-{path} {path}\n"),
        _ => format!("mkfifo -m 0620 {path}\n"),
    };
    let (mut base, mut script) = (String::new(), String::new());
    for from in kinds {
        for to in kinds.iter().filter(|to| **to != from) {
            let path = format!("{from}-to-{to}");
            base.push_str(&make(from, &path));
            script.push_str(&format!("rm -r {path}; {}", make(to, &path)));
        }
    }
    let world = World::new();
    for strategy in ISOLATING {
        let original = original(&world, strategy, "");
        sh(&original, &base);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(&script);
        there_and_back(&sandbox, strategy);
    }
    assert_swept(&world.home());
}

/// What an ordinary user closed to writing, and what is done in it.
const CLOSED: &[(&str, &str)] = &[
    // The owner can commit into what was closed, and it stays closed.
    (
        "ro/sub/file \"old\"\nro/gone/x \"x\"\nro/here \"here\"\nro/ 0555\nro/sub/ 0500\nro/gone/ 0500",
        "chmod u+w ro ro/sub ro/gone; printf new > ro/sub/file; rm -r ro/gone; printf x > ro/n; \
         mkdir -p ro/new/deep; printf y > ro/new/deep/z; ln -s here ro/link; \
         chmod 0500 ro/new/deep ro/sub; chmod 0555 ro/new ro; \
         mkdir top; printf x > top/x; mkdir top/none; chmod 0500 top/none; chmod 0500 top",
    ),
    // A new directory that is closed, with another name for an old file in it.
    (
        "file \"file\"\nd/x \"x\"",
        "mkdir -p n/m d/new; ln file n/m/l; ln file d/new/l; ln file d/l; \
         touch -d '2004-04-04 04:04:04.44 UTC' n/m d/new n d; chmod 0555 n/m d/new",
    ),
];

// rule F1, F3
#[test]
fn directories_that_are_closed_to_writing() {
    rerun_test_as_user("commit_trees::directories_that_are_closed_to_writing");
    for (text, script) in CLOSED {
        for (strategy, world, sandbox) in each(&ISOLATING, text) {
            sandbox.native(script);
            there_and_back(&sandbox, strategy);
            assert_swept(&world.home());
        }
    }
}

/// Names that were linked in the sandbox are linked in the original, new and old ones alike; directories count by themselves.
// rule F3, C16
#[test]
fn hard_links_and_directories() {
    let scripts = [
        "ln file added",
        "ln file added; ln file b/added",
        "mkdir n; ln file n/added; ln file n/again; printf x > n/other",
        "ln file added; chmod 0600 file",
        "rm b/one; ln file b/one",
        "rm -r b; ln file b",
        "printf more >> h1",
        "chmod 0600 h1",
        "rm h1 h2",
        "mv h1 b/x; mv h2 b/y",
        "rm h1; ln h2 h1",
        "rm h1; printf new > h1; ln h1 h3; ln h1 b/h4",
        "mv h1 b/h1; ln b/h1 h9",
        "printf x > n1; ln n1 n2; mkdir n; ln n1 n/n3",
        "rm b/*; rmdir hollow; mkdir -p new/empty/too; rm -r nest; mkdir nest",
    ];
    let text = "file 0640 \"file\"\nb/one \"one\"\nh1 \"hard\"\nh2 = h1\nhollow/\nnest/in/side/";
    try_all(&ISOLATING, &scripts, |strategy, script| {
        let world = World::new();
        let original = original(&world, "original", text);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(script);
        there_and_back(&sandbox, script);
    });
}

/// What lies in an original, without what the engine keeps there.
fn without_areas(root: &Path) -> Sig {
    let mut found = signature(root);
    found.retain(|path, _| !path.starts_with(b".escrow-"));
    found
}

/// An original that is the root of its file system: the commit lies in it, and leaves no trace.
// rule C2, C12, F1
#[test]
fn the_root_of_a_file_system() {
    let fs = need!(LoopFs::new(Fs::Ext4, 16));
    let world = World::new();
    let original = fs.path();
    sh(original, "rmdir lost+found");
    build(original, "file \"old\"\nd/x \"x\"");
    let before = signature(original);
    for strategy in COPIES {
        let sandbox = Sandboxed::new(&world.home(), original, strategy);
        let beside = Sandboxed::new(&world.home(), original, "overlay");
        sandbox.native("printf new > file; rm -r d; mkdir n; printf y > n/y");
        let promised = sandbox.promised();
        sandbox.committed();
        assert_same(&promised, &without_areas(original), &Ignore::default());
        // No other process takes what is kept for undo along.
        assert_eq!(beside.listing(), [""; 0]);
        let after = Sandboxed::new(&world.home(), original, "filesystem_copy");
        sh(after.tree(), "rm -rf .escrow-*");
        assert_eq!(names(&after.tree()), ["file", "n"]);
        assert_eq!(after.listing(), [""; 0], "no change of the sandbox");
        beside.cleanup();
        after.cleanup();
        sandbox.undone();
        assert_tree(&before, original, &format!("{strategy}, undone"));
        sandbox.cleanup();
        assert_tree(&before, original, &format!("{strategy}, cleaned up"));
        // More than there is room for is refused before anything is done.
        let sandbox = Sandboxed::new(&world.home(), original, strategy);
        sandbox.native("printf new > file; head -c 20000000 /dev/urandom > large");
        let stamped = stamps(original);
        let Err(Error::NoSpace { needed, free, .. }) = sandbox.commit() else {
            panic!("{strategy}: there is no room");
        };
        assert!(needed > free && needed >= 20_000_000, "{needed} {free}");
        assert_eq!(stamps(original), stamped, "{strategy}");
        sandbox.cleanup();
        assert_tree(&before, original, strategy);
    }
    assert_eq!(areas(&world.home()), [""; 0]);
}
