//! The checker notices what differs; trees render as they were built.

use escrow_testkit::signature::Kind;

use crate::*;

const TREE: &str = r#"
a/
a/one.txt "first\n"
a/two.txt = a/one.txt
bytes-\xff "\x00\x01"
empty
fifo |
hole @hole 1048576 "tail"
link -> a/one.txt
locked/ 0500
locked/in 0400 "x"
space\x20in\x20name/ 0700
tool 0755 "\#!/bin/sh\n"
"#;

#[test]
fn a_tree_renders_as_it_was_built() {
    rerun_as_user(&[]);
    let world = World::odd();
    let text = TREE.replace("\\#", "#");
    tree::build(world.path(), &text);
    assert_eq!(tree::render(world.path()), text.trim_start());
}

/// Each edit must be noticed, and where it can be ignored, be ignored.
#[test]
fn a_signature_notices_each_kind_of_difference() {
    let text = TREE.replace("\\#", "#");
    let all = Ignore {
        times: true,
        owners: true,
        hole_map: true,
        special: true,
    };
    let times = Ignore {
        times: true,
        ..Ignore::default()
    };
    let holes = Ignore {
        hole_map: true,
        ..Ignore::default()
    };
    let tail = "printf Tail | dd of=hole bs=1 seek=1048576 conv=notrunc status=none";
    let zeros = "dd if=/dev/zero of=hole bs=65536 count=1 conv=notrunc status=none";
    let time = "2001-01-01T00:00:00.000000007Z";
    let touch = |what: &str| format!("touch -h -d {time} {what}");
    // what is done, what the one line must say, what hides it
    let cases: [(&str, &str, Option<Ignore>); 15] = [
        (tail, "hole: content: ", None),
        ("printf more >> tool", "tool: size: 10, 14", None),
        ("chmod 0711 tool", "tool: mode: 0755, 0711", None),
        ("chmod u+s tool", "tool: mode: 0755, 4755", None),
        (&touch("empty"), "empty: mtime: ", Some(times)),
        (&touch("link"), "link: mtime: ", Some(times)),
        (&touch("."), ".: mtime: ", Some(times)),
        (
            "ln -sfn a/two.txt link",
            "link: target: \"a/one.txt\", \"a/two.txt\"",
            None,
        ),
        (
            "cp -a a/two.txt t; mv t a/two.txt",
            "a/two.txt: hard link of: \"a/one.txt\", none",
            None,
        ),
        ("ln tool tool2", "tool2: only in b (File)", None),
        ("rm fifo", "fifo: missing in b (Fifo)", None),
        ("rm empty; mkdir empty", "empty: kind: File, Dir", None),
        (
            "setfattr -n user.k -v 1 a",
            "a: xattr user.k: none, \"1\"",
            None,
        ),
        (
            "setfacl -m u:12345:r tool",
            "tool: xattr system.posix_acl_access: none",
            None,
        ),
        (
            zeros,
            "hole: data extents: [(1048576, 1048580)], [(0, 65536), (1048576, 1048580)]",
            Some(holes),
        ),
    ];
    let world = World::new();
    let before = world.dir("a");
    tree::build(&before, &text);
    for (number, (script, expected, hidden_by)) in cases.iter().enumerate() {
        let after = world.at(format!("b{number}"));
        sh(
            world.path(),
            &format!("cp -a --sparse=always a {}", after.display()),
        );
        let old = signature(&after);
        assert_same(&signature(&before), &old, &Ignore::default());
        sh(&after, script);
        let new = signature(&after);
        let strict = differences(&old, &new, &Ignore::default());
        assert!(
            strict.iter().any(|line| line.starts_with(expected)),
            "{script}: {expected:?} not in {strict:#?}"
        );
        let lax = differences(&old, &new, &hidden_by.unwrap_or(all));
        let still = lax.iter().any(|line| line.starts_with(expected));
        assert_eq!(still, hidden_by.is_none(), "{script}: {lax:#?}");
    }
}

#[test]
fn a_signature_tells_owners_and_devices() {
    need!(require_root("chown and mknod"));
    let world = World::new();
    let dir = world.dir("a");
    write(dir.join("f"), "x");
    sh(&dir, "mknod dev c 1 3");
    let old = signature(&dir);
    assert_eq!(
        (old[&b"dev"[..]].kind, old[&b"dev"[..]].rdev),
        (Kind::CharDevice, (1, 3))
    );
    chown(dir.join("f"), 12345, 23456);
    sh(&dir, "rm dev");
    let new = signature(&dir);
    let ignoring = |owners, special| Ignore {
        owners,
        special,
        times: true,
        hole_map: false,
    };
    assert_eq!(
        differences(&old, &new, &ignoring(false, false)),
        [
            "dev: missing in b (CharDevice)",
            "f: owner: 0:0, 12345:23456"
        ]
    );
    assert_eq!(differences(&old, &new, &ignoring(true, true)), [""; 0]);
    sh(&dir, "mknod dev c 1 5");
    let line = "dev: device: (1, 3), (1, 5)".to_owned();
    assert!(differences(&old, &signature(&dir), &ignoring(true, true)).contains(&line));
}

#[test]
fn an_ordinary_user_gets_what_may_be_read_and_nothing_hangs() {
    rerun_as_user(&[]);
    let world = World::new();
    tree::build(
        world.path(),
        "d/in \"x\"\nd/ 0000\nf 0000 \"secret\"\nlisted/in\nlisted/ 0400\np |",
    );
    let sig = signature(world.path());
    assert_eq!(sig.contains_key(&b"d/in"[..]), is_root());
    assert_eq!(
        format!("{:?}", sig[&b"f"[..]].content) == "Some(unreadable)",
        !is_root()
    );
    assert_eq!(
        format!("{:?}", sig[&b"listed"[..]].content) == "Some(unreadable)",
        !is_root()
    );
}
