//! Attacks of group A: paths and names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use escrow::error::{Error, Kind};
use escrow::manager::Manager;
use escrow::model::{ChangeKind, ResourcePath};
use escrow::strategy::StrategyError;
use escrow_testkit::need;
use escrow_testkit::signature::signature;
use escrow_testkit::skip::require_root;
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::zoo::NAMES;
use escrow_testkit::{Mounted, World};

use crate::attacks_c::{patch, socket};
use crate::support::{
    ALL, COPIES, ISOLATING, Sandboxed, ask_root, assert_swept, assert_untouched, at, directory,
    given, open, options, run_as_user_asking, sh,
};

/// No path inside a resource, however it is made.
fn are_refused(typed: &[&str]) {
    for typed in typed {
        let error = ResourcePath::parse(typed.as_bytes()).expect_err(typed);
        assert!(error.to_string().contains(typed), "{error}");
        let json = serde_json::json!(typed);
        assert!(
            serde_json::from_value::<ResourcePath>(json).is_err(),
            "{typed}"
        );
    }
}

// rule S1
#[test]
fn a1_a_path_that_climbs_out() {
    rerun_test_as_user("attacks_a::a1_a_path_that_climbs_out");
    are_refused(&["../x", "..", "../../etc/passwd", "./../x"]);
}

// rule S1
#[test]
fn a2_a_path_that_climbs_out_half_way() {
    rerun_test_as_user("attacks_a::a2_a_path_that_climbs_out_half_way");
    are_refused(&[
        "a/../../x",
        "a/..",
        "a/b/../../../x",
        "a//..//x",
        "a/./../b",
    ]);
}

// rule S1
#[test]
fn a3_an_absolute_path() {
    rerun_test_as_user("attacks_a::a3_an_absolute_path");
    are_refused(&["/etc/passwd", "/", "//x"]);
}

fn add(manager: &Manager, path: &Path) -> Result<(), Error> {
    manager.add_resource(&directory("thing", path)).map(drop)
}

// rule S1
#[test]
fn a5_a_resource_that_is_too_much() {
    rerun_test_as_user("attacks_a::a5_a_resource_that_is_too_much");
    let world = World::new();
    let home = world.dir("users/me");
    world.dir("users/me/project");
    let mut options = options(&world.home());
    options.user_home = Some(home.clone());
    let manager = Manager::open(options).expect("it opens");
    std::os::unix::fs::symlink(&home, world.path().join("link")).expect("a link can be made");
    std::os::unix::fs::symlink("/", world.path().join("top")).expect("a link can be made");
    let too_much: [PathBuf; 12] = [
        "".into(),
        "/".into(),
        "//".into(),
        "/.".into(),
        home.clone(),
        home.join("."),
        world.path().join("link"),
        world.path().join("top"),
        world.dir("users"),
        world.path().to_owned(),
        home.join("project/.."),
        world.home().join("sandboxes"),
    ];
    for path in &too_much {
        let error = add(&manager, path).expect_err(&path.display().to_string());
        assert_eq!(error.kind(), Kind::Usage, "{}: {error}", path.display());
        assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    }
    for typed in ["..", "/", "/.", "../me", "project/..", "./", "./."] {
        let error = manager.take_resource(OsStr::new(typed), &home);
        let forbidden = matches!(error, Err(Error::Forbidden { .. }));
        assert!(forbidden, "{typed}: {error:?}");
    }
    let error = manager.take_resource(OsStr::new(""), &home);
    assert!(error.is_err(), "an empty text: {error:?}");
    assert!(manager.resources().expect("they can be listed").is_empty());
    add(&manager, &home.join("project")).expect("a directory in the home is fine");
}

/// Every odd name is read, written, shown and discarded byte for byte.
// rule F5, S4
#[test]
fn a7_names_that_break_shells() {
    rerun_test_as_user("attacks_a::a7_names_that_break_shells");
    let world = World::odd();
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        for name in NAMES {
            let name = OsStr::from_bytes(name);
            std::fs::write(original.join(name), name.as_bytes()).expect("any name is a name");
            let below = original.join("dirs").join(name);
            std::fs::create_dir_all(&below).expect("any name is a name");
            std::fs::write(below.join(name), "below").expect("any name is a name");
        }
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for name in NAMES {
            let below = [b"dirs/", *name, b"/", name].concat();
            assert_eq!(sandbox.read(name).expect("it is there"), *name);
            assert_eq!(sandbox.read(&below).expect("it is there"), b"below");
            let kind = sandbox.write(name, b"other").expect("it can be written");
            assert_eq!(kind, ChangeKind::Modified);
            let new = sandbox.write([&below[..], b".new"].concat(), b"new");
            assert_eq!(new.expect("it can be written"), ChangeKind::Added);
            assert_eq!(sandbox.read(name).expect("it was written"), b"other");
        }
        if strategy != "none" {
            let diff = sandbox.diff();
            assert_eq!(diff.len(), 2 * NAMES.len(), "{strategy}");
            assert!(NAMES.iter().all(|name| diff[*name] == ChangeKind::Modified));
            sandbox.rollback();
            assert_eq!(sandbox.listing(), [""; 0]);
            assert_untouched(&before, &original);
        }
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

/// Bytes that no text has survive, and what is shown is text that leads back to them.
// rule F5
#[test]
fn a8_names_that_are_no_text() {
    rerun_test_as_user("attacks_a::a8_names_that_are_no_text");
    let world = World::new();
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let names: Vec<&[u8]> = every.chunks(100).collect();
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for name in &names {
            sandbox.write(name, name).expect("bytes are a name");
            let shown = at(name).to_string();
            let back = serde_json::to_string(&shown).expect("a text is JSON");
            let back: ResourcePath = serde_json::from_str(&back).expect("it is a path");
            assert_eq!(back.as_bytes(), *name);
            assert_eq!(sandbox.read(name).expect("it is there"), *name);
        }
        let mut sorted: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        sorted.sort();
        let listed: Vec<Vec<u8>> = sandbox.diff().into_keys().collect();
        assert_eq!(listed, sorted, "{strategy}");
        sandbox.cleanup();
    }
}

// rule F5
#[test]
fn a9_names_that_look_alike() {
    rerun_test_as_user("attacks_a::a9_names_that_look_alike");
    let alike: [&[u8]; 5] = [
        b"Case",
        b"case",
        b"CASE",
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
    ];
    let world = World::new();
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        for name in alike {
            std::fs::write(original.join(OsStr::from_bytes(name)), name).expect("it is a name");
        }
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        for name in alike {
            assert_eq!(sandbox.read(name).expect("each is there"), name);
        }
        if strategy != "none" {
            let another = sandbox.write("cASE", b"one more");
            another.expect("it is another name");
            assert_eq!(sandbox.listing(), ["A cASE"]);
        }
        sandbox.cleanup();
    }
}

fn is_plain(text: &str) -> bool {
    let hostile = |c: char| c.is_control() || ('\u{200e}'..='\u{202e}').contains(&c);
    !text.replace(['\n', '\t'], "").chars().any(hostile)
}

/// Whatever is shown of a name, no terminal takes it for an order.
// rule F5
#[test]
fn a11_names_that_talk_to_terminals() {
    rerun_test_as_user("attacks_a::a11_names_that_talk_to_terminals");
    let evil = "\u{1b}[31mred\u{7}\r\u{202e}gpj";
    let world = World::new();
    for strategy in ISOLATING {
        let original = world.dir(format!("original-{strategy}"));
        let dir = original.join(evil);
        std::fs::create_dir(&dir).expect("it is a name");
        std::fs::write(dir.join("file"), "text\n").expect("there is room");
        sh(&dir, "mkfifo pipe");
        socket(&dir, evil);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let mut shown = sandbox.sandbox().warnings.join("\n");
        if strategy != "overlay" {
            assert!(shown.contains("\\x1b[31mred"), "{shown}");
        }
        for path in [format!("{evil}/file"), format!("{evil}{evil}")] {
            sandbox.write(path, b"other\n").expect("it is a file");
        }
        for path in ["/none", "/pipe", ""].map(|end| format!("{evil}{end}")) {
            let error = sandbox.read(&path).expect_err("it is no file");
            shown += &format!("{error}\n{}\n", error.hints().join("\n"));
        }
        shown += &patch(&sandbox);
        assert!(is_plain(&shown), "{strategy}: {}", shown.escape_debug());
        sandbox.cleanup();
    }
    let manager = open(&world.home());
    for answer in [
        manager.resource(evil).map(drop),
        manager.resolve_plan(Some(evil), world.path()).map(drop),
        add(&manager, &world.path().join(evil)),
    ] {
        let error = answer.expect_err("there is no such thing");
        assert!(is_plain(&error.to_string()), "{error:?}");
    }
}

pub(crate) fn bind(what: &Path, at: &Path) -> Mounted {
    Mounted::new([OsStr::new("--bind"), what.as_os_str()], at)
}

/// A sandbox of a tree in which a directory and a file are mounted over, by `mount`.
fn over_mounts(home: &Path, original: &Path, strategy: &str, mount: impl Fn()) {
    // An overlay cannot be had over mounts; but they may come later.
    if strategy != "overlay" {
        mount();
    }
    let sandbox = Sandboxed::new(home, original, strategy);
    if strategy == "overlay" {
        mount();
    }
    let made = sandbox.sandbox();
    assert_eq!(made.reference.strategy_name, strategy, "{}", made.message);
    let warnings = made.warnings;
    if COPIES.contains(&strategy) {
        for path in ["d/mnt", "covered"] {
            let named = warnings.iter().any(|text| text.contains(path));
            assert!(named, "{warnings:?}");
        }
        assert!(!sandbox.tree().join("d/mnt/inside").exists());
        assert!(!sandbox.tree().join("covered").exists());
    }
    assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
    for path in ["d/mnt/inside", "covered"] {
        let error = sandbox.read(path).expect_err("it is not in the sandbox");
        let outside = matches!(
            error,
            Error::Strategy(StrategyError::Leaves { .. } | StrategyError::NotThere { .. })
        );
        assert!(outside, "{strategy}: {path}: {error}");
    }
    if !COPIES.contains(&strategy) {
        for path in ["d/mnt/inside", "d/mnt/new", "d/mnt/deep/er"] {
            let kind = sandbox.write(path, b"x").map_err(|error| error.kind());
            assert_eq!(kind, Err(Kind::Denied), "{strategy}: {path} leads out");
        }
    }
    let beside = sandbox.write("d/under", b"changed");
    beside.expect("beside it is fine");
    if strategy != "none" {
        assert_eq!(sandbox.listing(), ["M d/under"], "{strategy}");
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
    }
    sandbox.cleanup();
    assert_swept(home);
}

/// What is mounted in the tree is no part of it: it is left out, and named.
// rule S1
#[test]
fn a14_a_mount_point_in_the_tree() {
    if let Some(place) = given() {
        let world = World::new();
        for strategy in ALL {
            let original = place.join(strategy);
            over_mounts(&world.home(), &original, strategy, || {
                ask_root(&place, strategy);
            });
        }
        return;
    }
    need!(require_root("a bind mount"));
    let world = World::new();
    let elsewhere = world.dir("elsewhere");
    build(&elsewhere, "inside \"not of it\"\nfile \"from elsewhere\"");
    let outside = signature(&elsewhere);
    let mount = |original: &Path| {
        let file = bind(&elsewhere.join("file"), &original.join("covered"));
        [bind(&elsewhere, &original.join("d/mnt")), file]
    };
    let originals = |place: &str| {
        let place = world.dir(place);
        for strategy in ALL {
            let text = "d/mnt/\nd/under \"under\"\ncovered \"covered\"\nplain \"plain\"";
            build(&world.dir(place.join(strategy)), text);
        }
        place
    };
    let own = originals("own");
    for strategy in ALL {
        let (original, mounted) = (own.join(strategy), std::cell::OnceCell::new());
        over_mounts(&world.home(), &original, strategy, || {
            mounted.get_or_init(|| mount(&original));
        });
    }
    let (theirs, mut mounted) = (originals("theirs"), Vec::new());
    let test = "attacks_a::a14_a_mount_point_in_the_tree";
    run_as_user_asking(test, &theirs, |strategy| {
        mounted.push(mount(&theirs.join(strategy)));
    });
    drop(mounted);
    assert_untouched(&outside, &elsewhere);
}
