//! Overlay's marks, found where the kernel or an attacker put them: read as the kernel reads them, never followed.

use escrow::error::Kind;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::user::rerun_test_as_user;

use crate::commit_support::holds;
use crate::overlay::{BASE, assert_agrees, fresh, original};
use crate::support::{Sandboxed, assert_swept, assert_untouched, rows, sh};

/// Empty files marked as whiteouts in the upper layer: whatever this kernel makes of them, the engine does too.
// rule T1
#[test]
fn whiteouts_by_attribute() {
    rerun_test_as_user("marks::whiteouts_by_attribute");
    let mark = "setfattr -n user.overlay.whiteout -v y";
    let scripts = [
        format!(": > file; {mark} file"),
        format!(": > file; {mark} file; setfattr -n user.overlay.opaque -v x ."),
        format!("mkdir b; : > b/one; {mark} b/one"),
        format!("mkdir b; setfattr -n user.overlay.opaque -v x b; : > b/one; {mark} b/one"),
        format!("mkdir b; setfattr -n user.overlay.opaque -v y b; : > b/one; {mark} b/one"),
        format!(": > nothing; {mark} nothing"),
        format!("printf 'not empty' > file; {mark} file"),
        format!(": > a; {mark} a"),
        format!("mkdir b; {mark} b"),
    ];
    agree_on_uppers(&scripts);
}

fn agree_on_uppers(scripts: &[String]) {
    let world = World::new();
    let sandbox = fresh(&world, "original");
    for script in scripts {
        sh(sandbox.upper(), script);
        assert_agrees(&sandbox, script);
        // By name, past any listing.
        for name in ["file", "b/one", "nothing", "a/f"] {
            let look = format!("if [ -f {name} ]; then cat {name}; else printf none; fi");
            let shown = sandbox.mounted(|mount| mount.run(&look)).stdout;
            let read = sandbox.read(name).unwrap_or_else(|_| b"none".to_vec());
            assert_eq!(read, shown, "{name} after {script}");
        }
        sandbox.rollback();
    }
    sandbox.cleanup();
    assert_swept(&world.home());
}

/// Other marks that are harmless: the engine reads them as the kernel does.
// rule T1
#[test]
fn odd_but_harmless_marks() {
    rerun_test_as_user("marks::odd_but_harmless_marks");
    let set = |mark: &str| format!("mkdir b; chmod 755 b; setfattr -n user.overlay.{mark} b");
    agree_on_uppers(&[
        set("opaque -v y"),
        set("opaque -v x"),
        set("opaque -v n"),
        set("opaque -v yes"),
        set("origin -v 0x00fb21"),
        set("impure -v y"),
        set("nlink -v U+1"),
        set("upper -v 0x00"),
        set("unknown -v 1"),
        "cp -a ../../../../../original/file file; chmod 640 file; setfattr -n user.overlay.opaque -v y file"
            .to_owned(),
    ]);
}

/// The same in the original: what a mount does not show, the engine does not either.
// rule T1
#[test]
fn whiteouts_by_attribute_in_the_original() {
    let world = World::new();
    let original = original(&world, "original", BASE);
    sh(
        &original,
        ": > w; : > b/w; : > v; for f in w b/w; do setfattr -n user.overlay.whiteout -v y $f; done",
    );
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    for name in ["w", "b/w", "v"] {
        let look = format!("if [ -e {name} ]; then printf there; else printf none; fi");
        let shown = sandbox.mounted(|mount| mount.run(&look)).stdout;
        let found = ["none", "there"][usize::from(sandbox.read(name).is_ok())];
        assert_eq!(found, String::from_utf8_lossy(&shown), "{name}");
    }
    sandbox.cleanup();
}

/// Attributes of the overlay's own names, set by a user, are kept apart from the marks.
// rule F1
#[test]
fn escaped_attributes() {
    rerun_test_as_user("marks::escaped_attributes");
    let world = World::new();
    let sandbox = fresh(&world, "original");
    sandbox.native("setfattr -n user.overlay.opaque -v y a; setfattr -n user.overlay.x -v 7 file");
    assert_agrees(&sandbox, "set through the mount");
    assert_eq!(sandbox.listing(), ["P a", "P file"]);
    sandbox.write("file", b"new").expect("it is a file");
    sandbox.write("a/new", b"new").expect("it is a directory");
    assert_agrees(&sandbox, "written since");
    let kept = sandbox.mounted(|mount| mount.run("getfattr --only-values -n user.overlay.x file"));
    assert_eq!(kept.stdout, b"7");
    sandbox.native("setfattr -x user.overlay.opaque a; setfattr -x user.overlay.x file");
    assert_eq!(sandbox.listing(), ["A a/new", "M file"]);
    sandbox.cleanup();
}

/// An original that was an upper layer itself once, marks and all.
// rule T1
#[test]
fn marks_in_the_original() {
    rerun_test_as_user("marks::marks_in_the_original");
    let world = World::new();
    for (number, script) in [
        "setfattr -n user.overlay.opaque -v y a",
        "setfattr -n user.overlay.redirect -v /b a",
        "setfattr -n user.overlay.overlay.x -v 3 file; setfattr -n user.overlay.overlay.y -v 3 b",
        "setfattr -n user.overlay.impure -v y .; setfattr -n user.overlay.origin -v 0x00fb b",
    ]
    .iter()
    .enumerate()
    {
        let original = original(&world, &format!("marked-{number}"), BASE);
        sh(&original, script);
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
        assert_agrees(&sandbox, script);
        assert_eq!(sandbox.listing(), [""; 0], "{script}");
        for path in ["a/new", "b/one", "file"] {
            sandbox.write(path, b"1").expect("it can be written");
        }
        assert_agrees(&sandbox, script);
        let changed = ["A a/new", "M b/one", "M file"];
        assert_eq!(sandbox.listing(), changed, "{script}");
        assert_untouched(&before, &original);
        sandbox.cleanup();
    }
}

/// Marks that would lead elsewhere are refused or ignored; what they point to is never shown.
// rule S1
#[test]
fn c7_forged_marks_are_not_followed() {
    rerun_test_as_user("marks::c7_forged_marks_are_not_followed");
    let world = World::new();
    let secret = world.dir("outside");
    std::fs::write(secret.join("secret"), "secret of another").expect("the world is writable");
    for [script, path, never] in rows(
        "
mkdir a; setfattr -n user.overlay.redirect -v /b a | a/one | one
mkdir n; setfattr -n user.overlay.redirect -v b n | n/one | one
mkdir n; setfattr -n user.overlay.redirect -v ../outside n | n/secret | secret of another
: > n; truncate -s 3 n; setfattr -n user.overlay.metacopy -v '' n; setfattr -n user.overlay.redirect -v /b/one n
    | n | one
truncate -s 4 file; setfattr -n user.overlay.metacopy -v '' file | file | file
",
    ) {
        let sandbox = fresh(&world, "original");
        sh(sandbox.upper(), &script);
        match sandbox.read(&path).map_err(|error| error.kind()) {
            Ok(bytes) => assert_ne!(bytes, never.as_bytes(), "{script}"),
            Err(kind) => assert!(matches!(kind, Kind::Denied | Kind::NotFound), "{script}"),
        }
        match sandbox.try_diff() {
            Ok(diff) => assert!(path == "n" || path == "file" || !diff.contains_key(path.as_bytes())),
            Err(error) => assert_eq!(error.kind(), Kind::Denied, "{script}: {error}"),
        }
        // Writing below it goes nowhere else either.
        drop(sandbox.write(&path, b"written"));
        holds(&sandbox.original, "is b/one one", &script);
        holds(&secret, "is secret 'secret of another'", &script);
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{script}");
        sandbox.cleanup();
        sh(world.path(), "rm -r original");
    }
}
