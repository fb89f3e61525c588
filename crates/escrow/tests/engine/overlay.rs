//! Layers as the kernel makes and reads them: what the engine shows is what a real mount shows.

use escrow::model::ChangeKind;
use escrow_testkit::World;
use escrow_testkit::model::Model;
use escrow_testkit::signature::{Sig, signature};
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::{OverlayMount, XattrKind};

use crate::commit_support::Must;
use crate::property::{assert_reads, expected};
use crate::support::{Sandboxed, assert_swept, assert_untouched, rows, sh};

pub(crate) const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
b/one "one"
b/two 0640 "two"
file 0640 "file"
h1 "hard"
h2 = h1
link -> file
dirlink -> a
empty/
"#;

pub(crate) fn original(world: &World, name: &str, text: &str) -> std::path::PathBuf {
    let original = world.dir(name);
    build(&original, text);
    sh(
        &original,
        "find . -exec touch -hd '1995-05-06 07:08:09.123' {} +",
    );
    original
}

/// What a mount of these layers shows: all that can be looked at, and the attributes of directories.
fn merged(mount: &OverlayMount<'_>) -> (Model, Sig) {
    let world = World::new();
    let shown = world.path().join("merged");
    // A name may be listed that no process finds.
    let script = format!(
        "cp -a ./. {0}/ 2> /dev/null || test -d {0}",
        shown.display()
    );
    std::fs::create_dir(&shown).expect("the world is writable");
    mount.run(&script);
    (Model::read_from(&shown), signature(&shown))
}

/// Panics unless the engine's diff and reads are those of a mount. Returns what the mount shows.
#[track_caller]
pub(crate) fn assert_agrees(sandbox: &Sandboxed, when: &str) -> Model {
    let world = World::new();
    let (base, base_sig) = merged(&OverlayMount {
        lower: &sandbox.original,
        upper: &world.dir("upper"),
        work: &world.dir("work"),
        xattr: XattrKind::User,
    });
    let (now, now_sig) = sandbox.mounted(|mount| merged(&mount));
    let mut changes = expected(&base, &now);
    for (path, entry) in now_sig.iter().filter(|(path, _)| !path.is_empty()) {
        let differs = base_sig
            .get(path)
            .is_some_and(|old| old.kind == entry.kind && old.xattrs != entry.xattrs);
        if differs {
            changes
                .entry(path.clone())
                .or_insert(ChangeKind::ModeChanged);
        }
    }
    assert_eq!(sandbox.diff(), changes, "{when}");
    assert_reads(sandbox, &now, &base);
    now
}

pub(crate) fn fresh(world: &World, name: &str) -> Sandboxed {
    let original = original(world, name, BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let made = sandbox.sandbox();
    assert_eq!(made.reference.strategy_name, "overlay", "{}", made.message);
    sandbox
}

/// Runs each script in a mount; the diff is the listing, and everything agrees with the kernel.
fn each_script(scripts: Vec<[String; 2]>) {
    let world = World::new();
    let sandbox = fresh(&world, "original");
    let before = signature(&sandbox.original);
    for [script, listing] in scripts {
        sandbox.native(&script);
        assert_agrees(&sandbox, &script);
        assert_eq!(sandbox.listing().join(", "), listing, "{script}");
        assert_untouched(&before, &sandbox.original);
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "after the rollback of {script}");
        assert_agrees(&sandbox, "rolled back");
    }
    sandbox.cleanup();
    assert_swept(&world.home());
}

/// What is done under the mount, and what differs then.
const LAYERS: &str = "
rm -r a; mkdir a | D a/f, D a/sub, D a/sub/deep
rm -r a; mkdir a; printf new > a/n | D a/f, A a/n, D a/sub, D a/sub/deep
rm -r a; mkdir -p a/sub; printf deep > a/sub/deep | D a/f
rm -r a; printf x > a | T a, D a/f, D a/sub, D a/sub/deep
rm -r a; ln -s b a | T a, D a/f, D a/sub, D a/sub/deep
rm file; mkdir file; printf y > file/in | T file, A file/in
rm file; ln -s b file | T file
mv b c | D b, D b/one, D b/two, A c, A c/one, A c/two
mv a/sub b/sub | D a/sub, D a/sub/deep, A b/sub, A b/sub/deep
mv a x; mv b a; mv x b | D a/f, A a/one, D a/sub, D a/sub/deep, A a/two, A b/f, D b/one, A b/sub, A b/sub/deep, D b/two
printf more >> h1 | M h1
ln h1 h3; printf more >> h3 | M h1, A h3
ln file file2 | A file2
rm h1 | D h1
rm link; ln -s a link | M link
rm -r empty | D empty
mkdir -p n/e/w; rmdir n/e/w | A n, A n/e
chmod 0751 b; chmod 0600 b/two | P b, P b/two
setfattr -n user.mark -v 1 b; setfattr -n user.mark -v 2 file | P b, P file
";

// rule F6, T1
#[test]
fn layers_made_by_the_kernel() {
    rerun_test_as_user("overlay::layers_made_by_the_kernel");
    each_script(rows(LAYERS));
}

/// What makes the kernel copy something up, and no difference.
const TOUCHES: &str = "\
: >> file
touch file a b/one; touch -h link
chmod 0600 file; chmod 0640 file; chmod 0700 a; chmod 0755 a
printf file > file
dd if=file of=file conv=notrunc status=none
setfattr -n user.x -v 1 file; setfattr -x user.x file
setfattr -n user.x -v 1 a; setfattr -x user.x a
rm -r empty; mkdir empty
rm file; printf file > file; chmod 0640 file
rm link; ln -s file link
mv file x; mv x file; mkdir n; rmdir n
mv a x; mv x a
ln h1 h3; rm h3
cat file a/f; ls -lR; find . -print0 | xargs -0 getfattr -d
chmod 0700 .; chmod 0755 .; touch .";

/// A copy-up without a difference is no change.
// rule F8
#[test]
fn touching_is_no_change() {
    rerun_test_as_user("overlay::touching_is_no_change");
    let script = |line: &str| [line.to_owned(), String::new()];
    each_script(TOUCHES.lines().map(script).collect());
}

/// What the kernel does first, and what the engine writes then.
const TURNS: &str = "
: | new
: | new dirs/deep/er/file
: | file
: | a/f
: | a/sub/beside
rm -r a | a/again
rm -r a | a/sub/deep
rm -r a; mkdir a | a/sub/x
rm file | file
rm file | file/now/below
rm -r b; printf x > b | b
rm -r b; mkdir b; rmdir b | b/one
rm file; mkdir file | file/in
rm a/sub/deep; touch a | a/sub/deep
mv b c; rm -r c | c/one
: >> h1 | h1
";

/// What the engine writes, the kernel reads; and both may take turns.
// rule F1, T1
#[test]
fn layers_made_by_the_engine() {
    rerun_test_as_user("overlay::layers_made_by_the_engine");
    let world = World::new();
    let sandbox = fresh(&world, "original");
    let before = signature(&sandbox.original);
    for [script, path] in rows::<2>(TURNS) {
        sandbox.native(&script);
        let when = format!("{path} written after {script}");
        sandbox.write(&path, b"by the engine\n").must(&when);
        let shown = assert_agrees(&sandbox, &when);
        assert!(shown.nodes.contains_key(path.as_bytes()), "{path}");
        assert_eq!(sandbox.read(&path).must(&when), b"by the engine\n");
        sandbox.native(&format!("test \"$(cat '{path}')\" = 'by the engine'"));
        sandbox.native(&format!(
            "printf 'by the kernel' >> '{path}'; rm -rf '{path}.gone'"
        ));
        assert_agrees(&sandbox, &format!("{path} appended to after {script}"));
        assert_untouched(&before, &sandbox.original);
        sandbox.rollback();
    }
    sandbox.cleanup();
    assert_swept(&world.home());
}

/// What a deleted directory held does not come back with a new one of its name.
// rule F6
#[test]
fn a_deleted_directory_stays_empty() {
    let world = World::new();
    let sandbox = fresh(&world, "original");
    sandbox.native("rm -r a");
    sandbox
        .write("a/new", b"new")
        .expect("it can be made again");
    assert_eq!(
        sandbox.listing(),
        ["D a/f", "A a/new", "D a/sub", "D a/sub/deep"]
    );
    let listed = sandbox.mounted(|mount| mount.run("ls -A a"));
    assert_eq!(listed.stdout, b"new\n");
    sandbox.cleanup();
}

/// The root of the original counts as well: its mode, its attributes.
// rule F1, F8
#[test]
fn the_root_directory() {
    rerun_test_as_user("overlay::the_root_directory");
    let world = World::new();
    let original = original(&world, "original", BASE);
    sh(
        &original,
        "setfattr -n user.root -v odd .; chmod 01751 .; touch -d 1988-08-08 .",
    );
    let before = signature(&original);
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    assert_eq!(sandbox.listing(), [""; 0]);
    let look = "stat -c '%a %Y' .; getfattr --only-values -n user.root .";
    let own = sh(&original, look);
    let shows_own = || {
        let shown = sandbox.mounted(|mount| mount.run(look)).stdout;
        assert_eq!(String::from_utf8_lossy(&shown), own);
    };
    shows_own();
    sandbox.native("chmod 0700 .");
    assert_eq!(sandbox.listing(), ["P "]);
    sandbox.native("chmod 01751 .; setfattr -n user.root -v other .");
    assert_eq!(sandbox.listing(), ["P "]);
    sandbox.rollback();
    assert_eq!(sandbox.listing(), [""; 0]);
    shows_own();
    assert_untouched(&before, &original);
    // The original is live: what is changed there is no change of the sandbox.
    sh(
        &original,
        "chmod 0711 .; setfattr -n user.root -v changed .",
    );
    assert_eq!(sandbox.listing(), [""; 0]);
    sandbox.cleanup();
}

/// The kernel leaves a directory of mode 000 in its working directory.
// rule P6
#[test]
fn what_a_mount_leaves_is_removed() {
    rerun_test_as_user("overlay::what_a_mount_leaves_is_removed");
    let world = World::new();
    let sandbox = fresh(&world, "original");
    sandbox.native("rm -r a; printf x > file; mkdir -m 0 closed");
    let left = sandbox.area().join("work/work");
    assert!(left.is_dir(), "the kernel made its own directory");
    sandbox.rollback();
    assert!(
        !left.exists(),
        "a new layer begins with an empty work directory"
    );
    sandbox.native("rm -r b; mkdir -m 0 closed");
    sandbox.cleanup();
    assert_swept(&world.home());
}
