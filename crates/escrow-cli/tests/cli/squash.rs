//! Checkpoints can be taken for ever: layers that nothing distinguishes any more become one, and no process sees it.

use std::path::{Path, PathBuf};
use std::process::Command;

use escrow::{Escrow, ResourcePath, Unobserved};
use escrow_testkit::need;
use escrow_testkit::skip::is_root;
use escrow_testkit::states::{SIGNATURE, same};
use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::checkpoints::{look, run};
use crate::{binary, json, words, world};

/// A plan whose automatic checkpoints go soon.
fn planned(keep: usize) -> (World, Cli) {
    let (world, cli) = world();
    let config = format!("sandbox: {{ checkpoint: {{ auto: [before_run], keep: {keep} }} }}\n");
    std::fs::write(world.path().join("escrow.yaml"), config).expect("there is room");
    let cli = cli.cwd(world.path().join("app"));
    cli.trust();
    cli.ok("plan create try --resource . --strategy overlay");
    (world, cli)
}

fn area(world: &World) -> PathBuf {
    let areas = std::fs::read_dir(world.home().join("sandboxes")).expect("there is one");
    let mut areas = areas.map(|area| area.expect("it can be listed").path());
    areas
        .find(|area| area.join("layers").exists())
        .expect("an overlay")
}

fn layers(world: &World) -> usize {
    let layers = std::fs::read_dir(area(world).join("layers"));
    layers.expect("an overlay has layers").count()
}

/// A few things that happen to files, other ones for each number.
fn edits(round: u64) -> String {
    let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    const DIRS: [&str; 6] = ["src", "new", "new/deep", "made", "src/own", "."];
    let mut script = String::new();
    for _ in 0..4 {
        let (dir, other) = (DIRS[next(6) as usize], DIRS[next(6) as usize]);
        let (file, second) = (next(4), next(4));
        let at = format!("{dir}/f{file}");
        script += &match next(16) {
            0 | 1 => format!("mkdir -p {dir} && echo {round} > {at}"),
            2 => format!("echo {round} >> {at}"),
            3 => format!("rm -rf {at}"),
            4 => format!("rm -rf new; mkdir new; echo {round} > new/f{file}"),
            5 => format!("mv {at} {other}/f{second}"),
            6 => format!("rm -f {other}/f{second}; ln {at} {other}/f{second}"),
            7 => format!("chmod 0{}40 {at}; chmod 07{file}0 {dir}", 4 + file % 4),
            8 => format!("setfattr -n user.round -v {round} {at} {dir}"),
            9 => format!("rm -rf {at}; mkdir {at}; echo {round} > {at}/in"),
            10 => format!("rm -rf {at}; ln -s f{second} {at}"),
            11 => "rm -rf src; mkdir src; echo again > src/main.rs".to_owned(),
            12 => format!("echo {round} >> a.txt; touch -d @{}.5 {dir}", 1000 + round),
            13 => format!("rm -rf made; mkdir -p made/{file}/empty; mkfifo made/pipe"),
            14 => format!("rm -f a.txt; echo {round} > a.txt; chmod 0400 a.txt"),
            _ => format!("mv new moved{file}; rm -rf moved{second}"),
        };
        script += " 2>/dev/null || :\n";
    }
    script
}

// rule R1, R5
#[test]
fn whatever_was_done_looks_the_same_when_layers_were_squashed() {
    let test = "squash::whatever_was_done_looks_the_same_when_layers_were_squashed";
    rerun_test_as_user_with(test, &[&binary()]);
    let (world, cli) = planned(3);
    let (mut most, mut kept) = (0, String::new());
    for round in 1..=54_u64 {
        let edited = run(&cli, "try", &format!("{}{SIGNATURE}", edits(round)));
        most = most.max(layers(&world));
        if round <= 20 {
            // These stay apart.
            cli.ok(format!("checkpoint create try -m {round}-th"));
            if round == 20 {
                kept = edited;
            }
            continue;
        }
        let diff = cli.ok("--json diff try");
        same(&edited, &look(&cli, "try"), &format!("round {round}"));
        let now = cli.ok("--json diff try");
        assert_eq!(diff, now, "round {round}: the diff, with all it tells");
        cli.ok("commit try --dry-run");
    }
    assert!(most > 34 && most < 46, "{most} layers at most");
    let left = layers(&world);
    assert!(left < most, "{left} layers: some were squashed");
    let last = look(&cli, "try");
    let restored = json(&cli, "restore try 20-th");
    same(&kept, &look(&cli, "try"), "back to what was kept by name");
    let before = restored["before"].as_str().expect("an id");
    cli.ok(format!("restore try {before}"));
    same(&last, &look(&cli, "try"), "and forth");
    cli.ok("commit try");
    cli.ok("undo try");
    cli.ok("cleanup try");
    let left = std::fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    assert_eq!(left.count(), 0);
}

/// What a path of the original became, and that it was there, is known after squashing as before.
#[test]
fn what_came_from_the_original_is_still_known_to_have_come_from_it() {
    let (world, cli) = planned(1);
    let app = world.path().join("app");
    for name in ["edited", "replaced", "dir/inside", "gone"] {
        let path = app.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        std::fs::write(path, "old\n").expect("there is room");
    }
    cli.ok("plan create two --resource . --strategy overlay");
    run(
        &cli,
        "two",
        "echo 1 >> edited; echo 1 >> replaced; touch dir/new; echo new > own",
    );
    run(
        &cli,
        "two",
        "rm replaced; echo 2 > replaced; chmod 0400 replaced; echo 2 >> own",
    );
    run(
        &cli,
        "two",
        "rm -r dir; mkdir dir; echo 3 > dir/inside; echo 3 >> edited; rm gone",
    );
    for round in 0..20 {
        run(
            &cli,
            "two",
            &format!("echo {round} > round; echo {round} >> own"),
        );
    }
    assert!(layers(&world) < 22);
    // Another process deletes what the plan works on, and touches the directory.
    for name in ["edited", "replaced"] {
        std::fs::remove_file(app.join(name)).expect("it is there");
    }
    std::fs::remove_dir_all(app.join("dir")).expect("it is there");
    std::fs::write(app.join("other"), "").expect("there is room");
    let refused = cli.run([words("--json"), words("commit two")].concat());
    assert_eq!(refused.status, 4, "{}", refused.stdout_text());
    let text = refused.stdout_text();
    for name in ["\"edited\"", "\"replaced\"", "\"dir\""] {
        assert!(text.contains(name), "{name} was there: {text}");
    }
    assert!(!text.contains("\"own\""), "it is the plan's own: {text}");
    assert!(!text.contains("\"round\""), "it is the plan's own: {text}");
}

/// Puts a home back as it was kept. The kernel closes its own directories to everyone.
fn copy(from: &Path, to: &Path) {
    const SCRIPT: &str = r#"
        for at in "$1" "$2"; do test ! -e "$at" || chmod -R u+rwX "$at"/sandboxes/*/work; done
        rm -rf -- "$2"; cp -a -- "$1" "$2""#;
    let mut shell = Command::new("sh");
    let status = shell
        .args(["-euc", SCRIPT, "copy"])
        .args([from, to])
        .status();
    assert!(status.expect("a shell").success(), "{}", to.display());
}

// rule C3, R3
#[test]
fn a_squash_is_killed_or_fails() {
    rerun_test_as_user_with("squash::a_squash_is_killed_or_fails", &[&binary()]);
    need!(require_stepper());
    let (world, cli) = planned(0);
    for round in 0..18 {
        run(&cli, "try", &format!("{}echo {round} > last", edits(round)));
        cli.ok(format!("checkpoint create try -m n{round}"));
    }
    for round in 1..16 {
        cli.ok(format!("checkpoint delete try n{round}"));
    }
    let shown = run(&cli, "try", &format!("echo end > last\n{SIGNATURE}"));
    let (home, kept) = (world.home(), world.path().join("kept"));
    copy(&home, &kept);
    // With this one, as many layers can be saved as are worth it.
    let line = "checkpoint delete try n16";
    let calls = cli.stepper(words(line)).run().calls;
    assert_eq!(layers(&world), 3, "of n0, of n17, and the one in use");
    let points = match std::env::var_os("ESCROW_TORTURE") {
        Some(_) => calls,
        None if is_root() => 20,
        None => 6,
    };
    for fault in [Fault::Kill, Fault::Once(28)] {
        let points = (1..=calls).step_by((calls / points).max(1) as usize);
        for (turn, n) in points.enumerate() {
            copy(&kept, &home);
            let stepped = cli.stepper(words(line)).fault(n, fault);
            let Some(hit) = stepped.hit else { break };
            let how = format!("{fault:?} at call {n} of {calls}, {hit}");
            if turn % 2 == 0 {
                // Before anything else could finish what was begun.
                let restored = json(&cli, "restore try n17");
                let before = restored["before"].as_str().expect("where it was");
                cli.ok(format!("restore try {before}"));
            }
            same(&shown, &look(&cli, "try"), &how);
            cli.ok("checkpoint create try -m after");
            for name in ["n0", "n17", "after"] {
                cli.ok(format!("restore try {name}"));
            }
            same(&shown, &look(&cli, "try"), &how);
            // One that was killed early enough is still to be deleted.
            cli.run(words(line));
            run(&cli, "try", "echo more > last");
            cli.ok("checkpoint delete try after");
            assert!(layers(&world) < 8, "{how}: {} layers", layers(&world));
        }
    }
}

/// With as many checkpoints as a kernel mounts layers, and more, a user can still work, fork and go back.
// rule R2, R5
#[test]
fn any_number_of_checkpoints_keeps_nobody_from_going_back() {
    let test = "squash::any_number_of_checkpoints_keeps_nobody_from_going_back";
    rerun_test_as_user_with(test, &[&binary()]);
    // Once is enough: the engine's tests count the layers as root.
    if is_root() {
        return;
    }
    let (world, cli) = world();
    let cli = cli.cwd(world.path().join("app"));
    cli.ok("plan create try --resource . --strategy overlay");
    let names = run(&cli, "try", "echo one > one; ln one two; stat -c %h one");
    assert_eq!(names, "2\n");
    // A process for each would take minutes.
    let escrow = Escrow::builder().home(world.home()).open();
    let escrow = escrow.expect("it opens");
    let plan = escrow.resolve_plan(Some("try"), &world.path().join("app"));
    let plan = plan.expect("it is there");
    let view = escrow.view(plan.clone()).expect("it can be shown");
    let path = ResourcePath::parse(b"f").expect("a path");
    for number in 0..404 {
        let text = format!("{number}\n");
        let resource = &view.sandboxes[0].resource;
        let written = escrow.write(&plan, resource, &path, &mut text.as_bytes());
        written.expect("it can be written");
        let kept = escrow.create_checkpoint(&plan, Some(&format!("n{number}")), &Unobserved);
        kept.expect("there is always room");
    }
    let write = |plan: &str, text: &str| {
        let line = words(&format!("write {plan} app f"));
        cli.clone().stdin(text).ok(line);
    };
    let worked = run(&cli, "try", "cat f; stat -c %h f one; echo worked > f");
    assert_eq!(worked, "403\n1\n2\n");
    cli.ok("plan fork try first");
    cli.ok("plan fork try second --at n7");
    cli.ok("plan fork try third --at n398");
    assert_eq!(run(&cli, "first", "cat f"), "worked\n");
    assert_eq!(run(&cli, "second", "cat f"), "7\n");
    assert_eq!(run(&cli, "third", "cat f"), "398\n");
    for to in ["n398", "n1", "n403"] {
        write("try", "other\n");
        let restored = json(&cli, &format!("restore try {to}"));
        let before = restored["before"].as_str().expect("where it was");
        assert_eq!(run(&cli, "try", "cat f"), format!("{}\n", &to[1..]));
        cli.ok(format!("restore try {before}"));
        assert_eq!(run(&cli, "try", "cat f"), "other\n");
    }
}
