//! Owners, modes, attributes, access lists and links: what a sandbox takes from its original, and a commit from it.

use crate::*;

#[test]
fn groups_and_access_lists_from_above_the_area_got_into_copies() {
    let (world, cli) = world();
    let above = world.dir("above");
    let grant = if is_root() {
        "chgrp 4242 above; chmod g+s above;"
    } else {
        ""
    };
    let script = format!("{grant} setfacl -d -m u:4243:rwx above");
    sh(world.path(), &script);
    let cli = cli.env("ESCROW_HOME", above.join("home"));
    for strategy in ["filesystem_copy", "overlay"] {
        cli.plan(strategy, "./app", strategy);
        cli.clone()
            .stdin("x")
            .ok(["write", strategy, "app", "src/new"]);
        let listed = cli.ok(["diff", strategy, "--name-status"]);
        assert_eq!(listed, "A\tsrc/new\n", "{strategy}");
    }
    let copy = copy_of(&cli, "filesystem_copy", "app").join("a.txt");
    let copy = fs::metadata(copy).expect("it is there");
    let original = fs::metadata(world.at("app/a.txt")).expect("it is there");
    assert_eq!((copy.gid(), copy.mode()), (original.gid(), original.mode()));
}

#[test]
fn a_new_file_did_not_inherit_from_its_directory() {
    let (world, cli) = world();
    let app = world.at("app");
    let script = "mkdir shared; chmod 2775 shared; setfacl -d -m u:4243:rw shared";
    sh(&app, script);
    if is_root() {
        sh(&app, "chgrp 4242 shared; chmod g+s shared");
    }
    sh(&app, "echo x > shared/native");
    let acl = |file: &Path| output_of(Command::new("getfacl").arg("-cn").arg(file));
    let native = app.join("shared/native");
    for strategy in ["filesystem_copy", "overlay", "none"] {
        cli.plan(strategy, "./app", strategy);
        let name = format!("new-{strategy}");
        cli.clone()
            .stdin("x")
            .ok(["write", strategy, "app", &format!("shared/{name}")]);
        let root = match strategy {
            "none" => app.clone(),
            "overlay" => area(&world, &cli, strategy).join("layers/0"),
            _ => area(&world, &cli, strategy).join("copy/tree"),
        };
        let made = root.join("shared").join(name);
        assert_eq!(acl(&made), acl(&native), "{strategy}");
        let gid = |file: &Path| fs::metadata(file).expect("it is there").gid();
        assert_eq!(gid(&made), gid(&native), "{strategy}");
    }
}

#[test]
fn a_directory_copied_up_inherited_a_list_that_its_original_has_not() {
    let (world, cli) = world();
    let app = world.at("app");
    let script = "mkdir -p a/b; setfacl -d -m u:4243:rwx a; touch a/b/f";
    sh(&app, script);
    cli.ok("plan create try --resource ./app --strategy overlay");
    put(&cli, "try app a/b/f", "x");
    let upper = area(&world, &cli, "try").join("layers/0");
    let script = "getfacl -cn a | grep -q default:user:4243; ! getfacl -cn a/b | grep -q 4243";
    sh(&upper, script);
    assert_eq!(cli.ok("diff try --name-status"), "M\ta/b/f\n");
}

#[test]
fn a_users_own_hidden_directory_was_left_out_for_its_name() {
    let (world, cli) = world();
    let script = "mkdir .escrow-notes; echo mine > .escrow-notes/file";
    sh(world.at("app"), script);
    let line = "plan create try --resource ./app --strategy filesystem_copy";
    let plan = json(&cli, line);
    assert_eq!(plan["sandboxes"][0]["warnings"], value!([]));
    assert_eq!(cli.ok("read try app .escrow-notes/file"), "mine\n");
}

// rule F3
#[test]
fn a_commit_of_a_hard_link_alone_could_not_be_undone() {
    let (world, cli) = planned_app("filesystem_copy");
    sh(copy_of(&cli, "try", "app"), "ln a.txt b.txt");
    cli.ok("commit try");
    let (a, b) = (world.at("app/a.txt"), world.at("app/b.txt"));
    let ino = |path: &Path| fs::metadata(path).expect("it is there").ino();
    assert_eq!(ino(&a), ino(&b));
    cli.ok("undo try");
    assert!(!b.exists());
    assert_eq!(read(&a), "one\ntwo\nthree\n");
    assert_eq!(fs::metadata(&a).expect("it is there").nlink(), 1);
}

// rule F1, F3
#[test]
fn a_new_directory_with_a_hard_link_lost_its_time() {
    let (world, cli) = planned_app("filesystem_copy");
    sh(
        copy_of(&cli, "try", "app"),
        "mkdir d d/e; ln a.txt d/e/b; echo x > d/own; touch -d 2001-02-03T04:05:06.7 d/e d",
    );
    cli.ok("commit try");
    let d = world.at("app/d");
    assert_eq!(read(d.join("e/b")), "one\ntwo\nthree\n");
    for dir in [&d, &d.join("e")] {
        let meta = fs::metadata(dir).expect("it is there");
        let time = (meta.mtime(), meta.mtime_nsec());
        assert_eq!(time, (981_173_106, 700_000_000), "{}", dir.display());
    }
    cli.ok("undo try");
    assert!(!d.exists());
}

// rule F7
#[test]
fn setuid_below_a_new_directory_was_released() {
    let (world, cli) = planned_app("filesystem_copy");
    let script = "mkdir -p bin/deep; echo x > bin/deep/tool; chmod 4755 bin/deep/tool";
    sh(copy_of(&cli, "try", "app"), script);
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), ["bin/deep/tool: setuid dropped"]);
    assert_eq!(mode(world.at("app/bin/deep/tool")), 0o755);
}

// rule F7
#[test]
fn setuid_was_released_to_another_owner() {
    need!(require_root("files of other users"));
    let (world, cli) = world();
    let tool = world.at("app/tool");
    let script = "echo x > tool; chown 65534 tool; chmod 4755 tool";
    sh(world.at("app"), script);
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let copy = copy_of(&cli, "try", "app");
    assert_eq!(mode(copy.join("tool")), 0o4755);
    sh(&copy, "chown 0 tool; chmod 4755 tool");
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), ["tool: setuid dropped"]);
    let meta = fs::metadata(&tool).expect("it is there");
    assert_eq!((meta.uid(), mode(&tool)), (0, 0o755));
    cli.ok("undo try");
    let meta = fs::metadata(&tool).expect("it is there");
    assert_eq!((meta.uid(), mode(&tool)), (65534, 0o4755));
}

// rule F7
#[test]
fn a_hard_link_to_a_setuid_file_was_said_to_lose_it() {
    let (world, cli) = world();
    sh(world.at("app"), "echo x > tool; chmod 4755 tool");
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    sh(copy_of(&cli, "try", "app"), "ln tool other");
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), [""; 0]);
    assert_eq!(mode(world.at("app/tool")), 0o4755);
    assert_eq!(mode(world.at("app/other")), 0o4755);
}

#[test]
fn a_read_only_root_had_no_overlay() {
    need!(as_ordinary_user());
    let (world, cli) = world();
    let app = world.at("app");
    sh(&app, "chmod 555 .");
    let plan = json(&cli, "plan create try --resource ./app");
    assert_eq!(plan["sandboxes"][0]["strategy"], "overlay", "{plan}");
    put(&cli, "try app src/new", "x");
    assert_eq!(cli.ok("diff try --name-status"), "A\tsrc/new\n");
    cli.clone().stdin("x").fails("write try app new", 1);
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    sh(&app, "chmod 755 .");
}

#[test]
fn attributes_of_read_only_files_were_lost() {
    need!(as_ordinary_user());
    let (world, cli) = world();
    let app = world.at("app");
    sh(
        &app,
        "setfattr -n user.a -v b a.txt; chmod 444 a.txt; setfattr -n user.d -v e src; chmod 555 src",
    );
    let line = "plan create copy --resource ./app --strategy filesystem_copy";
    let plan = json(&cli, line);
    assert_eq!(plan["sandboxes"][0]["warnings"], value!([]));
    let script = "chmod 755 src; rm -r src; getfattr -n user.a a.txt > /dev/null";
    sh(copy_of(&cli, "copy", "app"), script);
    cli.ok("rollback copy");
    assert_eq!(cli.ok("diff copy --name-status"), "");
    cli.ok("plan create over --resource ./app --strategy overlay");
    put(&cli, "over app a.txt", "new");
    assert_eq!(cli.ok("diff over --name-status"), "M\ta.txt\n");
    sh(&app, "chmod 755 src");
}

#[test]
fn a_failed_write_left_directories_open() {
    need!(as_ordinary_user());
    let (world, cli) = world();
    sh(world.at("app"), "mkdir -p ro/sub; chmod 555 ro/sub ro");
    cli.ok("plan create try --resource ./app --strategy overlay");
    for path in ["ro/new/f", "ro/sub/f", "ro/sub/new/f"] {
        cli.fails(["write", "try", "app", path], 1);
        assert_eq!(cli.ok("diff try --name-status"), "", "{path}");
    }
    sh(world.at("app"), "chmod 755 ro");
}

#[test]
fn a_rollback_copied_everything_anew_because_of_one_hard_link() {
    let (world, cli) = world();
    sh(
        world.path().join("app"),
        "echo one > f; ln f g; echo other > h",
    );
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = cli.ok("path try app");
    let tree = Path::new(path.trim_end());
    let inode = |name: &str| fs::metadata(tree.join(name)).expect("it is there").ino();
    let untouched = inode("h");
    sh(tree, "echo more >> f; rm g; ln f k");
    let said = cli.ok("rollback try");
    assert_eq!(said, "app: its changes were discarded\n");
    assert_eq!(cli.ok("diff try --name-status"), "");
    assert_eq!((inode("f"), inode("h")), (inode("g"), untouched));
    assert!(!tree.join("k").exists());
}

#[test]
fn a_touched_file_lost_its_capabilities_by_a_rollback() {
    need!(require_root("file capabilities"));
    let (world, cli) = world();
    let script = "cp /bin/true prog; chown 1000:1000 prog; setcap cap_net_raw+ep prog";
    sh(world.at("app"), script);
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let copy = copy_of(&cli, "try", "app");
    sh(&copy, "touch prog");
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    sh(&copy, "getcap prog | grep -q cap_net_raw");
}
