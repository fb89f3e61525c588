//! Checkpoints as users meet them: back to exactly what was there, and forth again; attempts side by side.

use escrow_testkit::states::{AFTER, BEFORE, SIGNATURE, same};

use crate::*;

pub(crate) const STRATEGIES: [&str; 3] = ["overlay", "filesystem_copy", "copy_on_write"];

pub(crate) fn run(cli: &Cli, plan: &str, script: &str) -> String {
    let mut line = words(&format!("-q run --plan {plan} -- sh -c"));
    line.push(OsString::from(script));
    cli.ok(line)
}

pub(crate) fn look(cli: &Cli, plan: &str) -> String {
    run(cli, plan, SIGNATURE)
}

pub(crate) fn planned(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let cli = cli.cwd(world.at("app"));
    cli.plan("try", ".", strategy);
    (world, cli)
}

pub(crate) fn create(cli: &Cli, label: &str) -> String {
    let made = json(cli, &format!("checkpoint create try -m {label}"));
    made["checkpoint_id"].as_str().expect("an id").to_owned()
}

// rule R1, R2, R3, R5
#[test]
fn a_restore_is_exact_and_can_be_taken_back() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let original = signature(&world.at("app"));
        let shows = |wanted: &str, what: &str| {
            same(wanted, &look(&cli, "try"), &format!("{strategy}: {what}"));
        };
        let fresh = look(&cli, "try");
        let nothing = create(&cli, "nothing");
        run(&cli, "try", BEFORE);
        let before = look(&cli, "try");
        let first = create(&cli, "first");
        run(&cli, "try", AFTER);
        let after = look(&cli, "try");
        assert_ne!(before, after);
        let since = cli.ok("diff try --since first --name-status");
        has(&since, ["A\tlater\n", "T\tsrc\n"]);
        let restored = json(&cli, "restore try first");
        assert_eq!(restored["success"], true);
        assert_eq!(restored["checkpoint_id"], *first);
        let files = list(&restored["restored_files"]);
        assert!(files.contains(&Value::from("app:later")), "{restored}");
        shows(&before, "back");
        assert_eq!(cli.ok("diff try --since first --name-status"), "");
        let was = restored["before"].as_str().expect("an id");
        cli.ok(format!("restore try {was}"));
        shows(&after, "forth");
        // From there to the first, and to where nothing was done.
        cli.ok(format!("restore try {first}"));
        shows(&before, "back again");
        cli.ok(format!("restore try {nothing}"));
        shows(&fresh, "to the beginning");
        assert_eq!(cli.ok("diff try --name-status"), "");
        let between = cli.ok("diff try --since nothing --until first --name-status");
        assert!(between.contains("A\tdir/deep/er/file\n"), "{between}");
        unchanged(&original, world.at("app"));
        // What is restored is what is committed.
        cli.ok("restore try first");
        cli.ok("commit try");
        assert_eq!(
            read(world.at("app/dir/deep/er/file")),
            "deep
"
        );
        cli.ok("undo try");
        unchanged(&original, world.at("app"));
        cli.ok("cleanup try");
        assert_eq!(world.areas(), [""; 0], "{strategy}");
    }
}

// rule R1
#[test]
fn a_thousand_files_come_back() {
    for strategy in STRATEGIES {
        let (_world, cli) = planned(strategy);
        let make = "mkdir t; cd t; seq 1000 | xargs -n 500 sh -c 'for n; do echo $n > f$n; done' -";
        run(&cli, "try", make);
        let before = look(&cli, "try");
        create(&cli, "many");
        run(&cli, "try", "rm -r t; echo gone > t");
        cli.ok("restore try many");
        same(&before, &look(&cli, "try"), strategy);
    }
}

// rule R5, P9
#[test]
fn checkpoints_are_listed_shown_and_deleted() {
    for strategy in STRATEGIES {
        let (_world, cli) = planned(strategy);
        put(&cli, "try app f", "one\n");
        let first = create(&cli, "first");
        put(&cli, "try app f", "two\n");
        let second = create(&cli, "second");
        let listed = json(&cli, "checkpoint list try");
        assert_eq!(column(&listed["checkpoints"], "label"), ["first", "second"]);
        let shown = cli.ok("checkpoint show try first");
        assert!(shown.contains("1 modified"), "{shown}");
        cli.ok("checkpoint delete try first");
        cli.fails("restore try first", 1);
        let short = &first[..first.len() - 1];
        cli.fails(format!("restore try {short}"), 1);
        // What the other one needs is still there.
        put(&cli, "try app f", "three\n");
        cli.ok(format!("restore try {second}"));
        assert_eq!(cli.ok("read try app f"), "two\n");
        let log = cli.ok("log try");
        has(&log, ["checkpoint try", "second"]);
    }
}

/// Automatic ones are kept to a number; those that the user asked for are not among them.
// rule R5
#[test]
fn old_automatic_checkpoints_go_and_named_ones_stay() {
    let (_world, cli) = planned("overlay");
    run(&cli, "try", "echo 0 > f");
    create(&cli, "mine");
    for n in 1..25 {
        run(&cli, "try", &format!("echo {n} > f"));
    }
    let listed = json(&cli, "checkpoint list try");
    let all = list(&listed["checkpoints"]);
    let automatic = all.iter().filter(|one| one["reason"] == "before_run");
    assert_eq!(automatic.count(), 20);
    cli.ok("restore try mine");
    assert_eq!(cli.ok("read try app f"), "0\n");
    // A command that changes nothing leaves no further one.
    let before = all.len();
    run(&cli, "try", "true");
    run(&cli, "try", "true");
    let listed = json(&cli, "checkpoint list try");
    let after = list(&listed["checkpoints"]).len();
    assert!(after <= before + 1, "{listed}");
}

#[test]
fn a_command_that_fails_leaves_a_checkpoint() {
    let (_world, cli) = planned("overlay");
    run(&cli, "try", "echo whole > f");
    let outcome = cli.run("run --plan try -- sh -c exit\\ 3");
    assert_ne!(outcome.status, 0);
    let listed = json(&cli, "checkpoint list try");
    assert!(listed.to_string().contains("before_run"), "{listed}");
}

#[test]
fn without_isolation_there_is_nothing_to_return_to() {
    let (_world, cli) = planned_app("none");
    let said = cli.fails("checkpoint create try", 1);
    assert!(said.contains("nothing is isolated"), "{said}");
}

// rule R4
#[test]
fn all_sandboxes_return_together() {
    let (world, cli) = world();
    write(world.dir("data").join("f"), "data\n");
    write(world.at("data/g"), "data\n");
    cli.ok("resource add one --type fs-directory --at ./app --strategy overlay");
    cli.ok("resource add two --type fs-directory --at ./data --strategy filesystem_copy");
    cli.ok("plan create try --resource one --resource two");
    put(&cli, "try one f", "a\n");
    put(&cli, "try two f", "a\n");
    cli.ok("checkpoint create try -m both");
    put(&cli, "try one f", "b\n");
    put(&cli, "try two f", "b\n");
    cli.ok("restore try both");
    for resource in ["one", "two"] {
        assert_eq!(cli.ok(format!("read try {resource} f")), "a\n");
    }
    // One whose first version is gone stops all of them, with nothing done.
    put(&cli, "try one f", "c\n");
    cli.ok("rollback try");
    cli.ok("checkpoint create try -m clean");
    put(&cli, "try one f", "d\n");
    put(&cli, "try two f", "d\n");
    put(&cli, "try two g", "d\n");
    write(world.at("data/g"), "by somebody else\n");
    let said = cli.fails("restore try clean", 4);
    has(&said, ["two", "another program changed it"]);
    for resource in ["one", "two"] {
        assert_eq!(cli.ok(format!("read try {resource} f")), "d\n");
    }
}

/// A copy that a rollback replaced is returned to, where the original still has what the checkpoint did not keep.
// rule R1
#[test]
fn a_checkpoint_of_a_copy_that_was_made_anew_is_not_always_lost() {
    let (world, cli) = planned("filesystem_copy");
    put(&cli, "try app f", "one\n");
    create(&cli, "first");
    // Where the original moved on, a rollback copies it as it is now.
    put(&cli, "try app a.txt", "x\n");
    create(&cli, "both");
    write(world.at("app/a.txt"), "by somebody else\n");
    cli.ok("rollback try");
    let said = cli.fails("restore try first", 4);
    assert!(said.contains("another program changed it"), "{said}");
    assert_eq!(cli.ok("diff try --name-status"), "");
    cli.ok("restore try both");
    assert_eq!(cli.ok("read try app a.txt"), "x\n");
    cli.ok("rollback try");
    create(&cli, "second");
    put(&cli, "try app f", "two\n");
    cli.ok("restore try second");
    assert_eq!(cli.ok("diff try --name-status"), "");
}

/// However few are kept, both ends of a restore are.
// rule R2, R5
#[test]
fn a_restore_keeps_where_it_came_from_and_where_it_went() {
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let config = "sandbox: { checkpoint: { auto: [before_run], keep: 1 } }\n";
        write(world.at("escrow.yaml"), config);
        cli.trust();
        run(&cli, "try", "echo 1 > f");
        run(&cli, "try", "echo 2 > f");
        let listed = json(&cli, "checkpoint list try");
        let oldest = listed["checkpoints"][0]["checkpoint_id"].clone();
        let oldest = oldest.as_str().expect("there is one");
        let restored = json(&cli, &format!("restore try {oldest}"));
        assert_eq!(cli.ok("read try app f"), "1\n", "{strategy}");
        let before = restored["before"].as_str().expect("an id");
        cli.ok(format!("restore try {before}"));
        assert_eq!(cli.ok("read try app f"), "2\n", "{strategy}");
    }
}

/// Those that the user did not ask for: as many as the configuration says, and where the last restore came from.
// rule R2, R5
#[test]
fn as_many_are_kept_as_the_configuration_says() {
    let (world, cli) = planned("overlay");
    let keep = |number: u32| {
        let config = format!("sandbox: {{ checkpoint: {{ keep: {number} }} }}\n");
        write(world.at("escrow.yaml"), config);
        cli.trust();
    };
    let reasons = || -> Vec<String> {
        let listed = json(&cli, "checkpoint list try");
        let listed = list(&listed["checkpoints"]).iter();
        let reason = |one: &Value| one["reason"].as_str().unwrap_or("asked").to_owned();
        listed.map(reason).collect()
    };
    let work = |number: u32| drop(run(&cli, "try", &format!("echo {number} > f")));
    work(0);
    work(1);
    work(2);
    assert_eq!(reasons(), ["before_run"; 2]);
    keep(0);
    work(3);
    assert_eq!(reasons(), [""; 0], "none");
    create(&cli, "mine");
    work(4);
    let restored = json(&cli, "restore try mine");
    work(5);
    work(6);
    assert_eq!(reasons(), ["asked", "before_restore"]);
    let before = restored["before"].as_str().expect("an id");
    cli.ok(format!("restore try {before}"));
    assert_eq!(cli.ok("read try app f"), "4\n", "it can be taken back");
    // Where it went stays with the restore that went there, and goes with the next.
    assert_eq!(reasons(), ["asked", "before_restore", "before_restore"]);
    work(7);
    assert_eq!(reasons(), ["asked", "before_restore"]);
    keep(2);
    (8..12).for_each(work);
    let kept = ["asked", "before_restore", "before_run", "before_run"];
    assert_eq!(reasons(), kept);
    // Nothing happened since the last one: where a restore comes from is one of its own all the same.
    work(12);
    run(&cli, "try", "true");
    let restored = json(&cli, "restore try mine");
    (13..17).for_each(work);
    assert_eq!(reasons(), kept);
    let before = restored["before"].as_str().expect("an id");
    cli.ok(format!("restore try {before}"));
    assert_eq!(cli.ok("read try app f"), "12\n");
}

/// Deleting one of two checkpoints of the same snapshot leaves the other one whole.
// rule R5
#[test]
fn a_checkpoint_outlives_another_one_of_the_same_state() {
    for strategy in STRATEGIES {
        let (_world, cli) = planned(strategy);
        put(&cli, "try app f", "one\n");
        create(&cli, "first");
        put(&cli, "try app f", "two\n");
        create(&cli, "second");
        cli.ok("checkpoint delete try second");
        create(&cli, "third");
        cli.ok("restore try first");
        cli.ok("restore try third");
        assert_eq!(cli.ok("read try app f"), "two\n", "{strategy}");
    }
}

/// Who is inside may label checkpoints too: an id means itself, and what means two of them means none.
// rule S6
#[test]
fn a_label_never_stands_in_for_another_checkpoint() {
    let (_world, cli) = planned("overlay");
    run(&cli, "try", "echo good > f");
    let good = create(&cli, "good");
    run(&cli, "try", "echo evil > f");
    for label in [&good, "good"] {
        cli.ok(format!(
            "--principal agent checkpoint create try -m {label}"
        ));
    }
    let said = cli.fails("restore try good", 1);
    assert!(said.contains("more than one checkpoint 'good'"), "{said}");
    cli.ok(format!("restore try {good}"));
    assert_eq!(cli.ok("read try app f"), "good\n");
    // The beginning of an id that is another one's label means both.
    let short = &good[..good.len() - 2];
    create(&cli, short);
    cli.fails(format!("restore try {short}"), 1);
}

/// `c` begins every id, and so means none of them; as a label it means one checkpoint.
#[test]
fn a_label_that_begins_every_id_is_a_label() {
    let (_world, cli) = planned("overlay");
    for label in ["c", "chk_", "other"] {
        run(&cli, "try", &format!("echo {label} > f"));
        create(&cli, label);
    }
    for label in ["c", "chk_", "other"] {
        cli.ok(format!("restore try {label}"));
        assert_eq!(cli.ok("read try app f"), format!("{label}\n"));
    }
    let said = cli.fails("restore try chk", 1);
    assert!(said.contains("more than one checkpoint 'chk'"), "{said}");
}
