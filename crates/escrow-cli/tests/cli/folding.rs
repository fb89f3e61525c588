//! Checkpoints can be taken for ever: layers that nothing distinguishes any more become one, and no process sees it.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    cli.ok(words("plan create try --resource . --strategy overlay"));
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
fn whatever_was_done_looks_the_same_when_layers_were_folded() {
    let test = "folding::whatever_was_done_looks_the_same_when_layers_were_folded";
    rerun_test_as_user_with(test, &[&binary()]);
    let (world, cli) = planned(3);
    let (mut most, mut kept) = (0, String::new());
    for round in 1..=54_u64 {
        let edited = run(&cli, "try", &format!("{}{SIGNATURE}", edits(round)));
        most = most.max(layers(&world));
        if round <= 28 {
            // These stay apart, so later ones are folded a few at a time.
            cli.ok(words(&format!("checkpoint create try -m {round}-th")));
            if round == 20 {
                kept = edited;
            }
            continue;
        }
        let diff = cli.ok(words("--json diff try"));
        same(&edited, &look(&cli, "try"), &format!("round {round}"));
        let now = cli.ok(words("--json diff try"));
        assert_eq!(diff, now, "round {round}: the diff, with all it tells");
        cli.ok(words("commit try --dry-run"));
    }
    assert!(most > 32 && most < 42, "{most} layers at most");
    let last = look(&cli, "try");
    let restored = json(&cli, "restore try 20-th");
    same(&kept, &look(&cli, "try"), "back to what was kept by name");
    let before = restored["before"].as_str().expect("an id");
    cli.ok(words(&format!("restore try {before}")));
    same(&last, &look(&cli, "try"), "and forth");
    cli.ok(words("commit try"));
    cli.ok(words("undo try"));
    cli.ok(words("cleanup try"));
    let left = std::fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    assert_eq!(left.count(), 0);
}

/// What a path of the original became, and that it was there, is known after folding as before.
#[test]
fn what_came_from_the_original_is_still_known_to_have_come_from_it() {
    let (world, cli) = planned(1);
    let app = world.path().join("app");
    for name in ["edited", "replaced", "dir/inside", "gone"] {
        let path = app.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        std::fs::write(path, "old\n").expect("there is room");
    }
    cli.ok(words("plan create two --resource . --strategy overlay"));
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
    for round in 0..40 {
        run(
            &cli,
            "two",
            &format!("echo {round} > round; echo {round} >> own"),
        );
    }
    assert!(layers(&world) < 36);
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
fn a_checkpoint_that_folds_is_killed_or_fails() {
    rerun_test_as_user_with(
        "folding::a_checkpoint_that_folds_is_killed_or_fails",
        &[&binary()],
    );
    if !require_stepper() {
        return;
    }
    let (world, cli) = planned(2);
    for round in 0..31 {
        run(&cli, "try", &format!("{}echo {round} > last", edits(round)));
    }
    let shown = run(&cli, "try", &format!("echo end > last\n{SIGNATURE}"));
    let (home, kept) = (world.home(), world.path().join("kept"));
    copy(&home, &kept);
    let before = layers(&world);
    let line = "checkpoint create try -m other";
    let calls = cli.stepper(words(line)).run().calls;
    assert!(layers(&world) < before, "{before} layers: some are folded");
    let points = if is_root() { 16 } else { 6 };
    for fault in [Fault::Kill, Fault::Once(28)] {
        for n in (1..=calls).step_by((calls / points).max(1) as usize) {
            copy(&kept, &home);
            let stepped = cli.stepper(words(line)).fault(n, fault);
            let Some(hit) = stepped.hit else { break };
            let how = format!("{fault:?} at call {n} of {calls}, {hit}");
            same(&shown, &look(&cli, "try"), &how);
            cli.ok(words("checkpoint create try -m after"));
            same(&shown, &look(&cli, "try"), &how);
            cli.ok(words("restore try after"));
            same(&shown, &look(&cli, "try"), &how);
            // What was not folded then is folded by a later one that has something to keep.
            for word in ["more", "again", "once more"] {
                run(&cli, "try", &format!("echo {word} > last"));
            }
            assert!(layers(&world) < 16, "{how}: {} layers", layers(&world));
        }
    }
}

/// At as many layers as checkpoints may make, the process that made them, a user can still go back, fork and work.
// rule R2, R5
#[test]
fn as_many_checkpoints_as_there_may_be_keep_nobody_from_going_back() {
    let test = "folding::as_many_checkpoints_as_there_may_be_keep_nobody_from_going_back";
    rerun_test_as_user_with(test, &[&binary()]);
    // Once is enough: the engine's tests count the layers as root.
    if is_root() {
        return;
    }
    let (_world, cli) = planned(20);
    let write = |plan: &str, text: &str| {
        let line = words(&format!("write {plan} app f"));
        cli.clone().stdin(text).ok(line);
    };
    let mut last = 0;
    let said = loop {
        write("try", &format!("{last}\n"));
        let made = cli.run(words(&format!("checkpoint create try -m n{last}")));
        if made.status != 0 {
            break made.stderr_text();
        }
        last += 1;
    };
    assert_eq!(last, 399, "{said}");
    assert!(
        said.contains("400 layers") && said.contains("delete checkpoints"),
        "{said}"
    );
    // Without a checkpoint before it, which is said.
    let mut line = words("run --plan try -- sh -c");
    line.push("cat f; echo worked > f".into());
    let ran = cli.run(line);
    assert_eq!((ran.status, ran.stdout_text()), (0, "399\n".to_owned()));
    let said = ran.stderr_text();
    assert!(
        said.contains("no checkpoint was taken before the command"),
        "{said}"
    );
    cli.ok(words("plan fork try first"));
    cli.ok(words("plan fork try second --at n7"));
    assert_eq!(run(&cli, "first", "cat f"), "worked\n");
    assert_eq!(run(&cli, "second", "cat f"), "7\n");
    for to in ["n398", "n1", "n397"] {
        write("try", "other\n");
        let restored = json(&cli, &format!("restore try {to}"));
        let before = restored["before"]
            .as_str()
            .expect("where it was")
            .to_owned();
        assert_eq!(run(&cli, "try", "cat f"), format!("{}\n", &to[1..]));
        cli.ok(words(&format!("restore try {before}")));
        assert_eq!(run(&cli, "try", "cat f"), "other\n");
    }
    for number in 200..300 {
        cli.ok(words(&format!("checkpoint delete try n{number}")));
    }
    cli.ok(words("restore try n398"));
    cli.ok(words("checkpoint create try -m room"));
}
