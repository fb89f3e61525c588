//! Forks of plans, those that mix copies and layers among them: exactly what was there, and each on its own from then on.

use escrow_testkit::states::{AFTER, BEFORE, same};

use crate::checkpoints::{STRATEGIES, create, look, planned, run};
use crate::*;

const COPIES: [&str; 2] = ["filesystem_copy", "copy_on_write"];

fn tree(cli: &Cli, plan: &str) -> PathBuf {
    PathBuf::from(cli.ok(format!("path {plan} app")).trim_end())
}

/// Now, at an earlier snapshot, and where nothing was done yet: contents, modes, attributes, links, times.
// rule R1, F1, F3
#[test]
fn a_fork_of_a_copy_is_exact() {
    as_user_too();
    for strategy in COPIES {
        let (world, cli) = planned(strategy);
        let original = signature(&world.at("app"));
        let fresh = signature(&tree(&cli, "try"));
        create(&cli, "nothing");
        run(&cli, "try", BEFORE);
        let before = signature(&tree(&cli, "try"));
        let listed = cli.ok("diff try --name-status");
        create(&cli, "first");
        run(&cli, "try", AFTER);
        let after = signature(&tree(&cli, "try"));
        for (fork, at, expected) in [
            ("now", "", &after),
            ("then", "--at first", &before),
            ("start", "--at nothing", &fresh),
        ] {
            cli.ok(format!("plan fork try {fork} {at}"));
            unchanged(expected, tree(&cli, fork));
        }
        assert_eq!(cli.ok("diff then --name-status"), listed);
        assert_eq!(cli.ok("diff start --name-status"), "");
        let same_changes = cli.ok("diff try --name-status");
        assert_eq!(cli.ok("diff now --name-status"), same_changes);
        // A fork keeps and returns as any other.
        let there = look(&cli, "then");
        create_in(&cli, "then", "mine");
        run(&cli, "then", AFTER);
        cli.ok("restore then mine");
        same(&there, &look(&cli, "then"), strategy);
        // Nothing of one can be changed through the other.
        unchanged(&after, tree(&cli, "try"));
        let now = signature(&world.at("app"));
        assert_same(&original, &now, &Ignore::default());
        for plan in ["try", "now", "then", "start"] {
            cli.ok(format!("cleanup {plan}"));
        }
        assert_eq!(world.areas(), [""; 0]);
    }
}

fn create_in(cli: &Cli, plan: &str, label: &str) {
    cli.ok(format!("checkpoint create {plan} -m {label}"));
}

#[test]
fn a_fork_goes_its_own_way() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        run(&cli, "try", "echo base > f; rm link; mkdir d; echo d > d/d");
        create(&cli, "here");
        run(&cli, "try", "echo first > f");
        cli.ok("plan fork try second --at here");
        cli.ok("plan fork try third");
        assert_eq!(cli.ok("read second app f"), "base\n");
        assert_eq!(cli.ok("read third app f"), "first\n");
        let edit = "echo second > f; echo more > d/more; rm d/d";
        run(&cli, "second", edit);
        run(&cli, "third", "echo third > g; echo changed > a.txt");
        assert_eq!(cli.ok("read try app f"), "first\n");
        let listed = cli.ok("diff second --name-status");
        assert_eq!(listed, "A\td\nA\td/more\nA\tf\nD\tlink\n");
        // What they began on stays, whatever the other plan releases.
        cli.ok("checkpoint delete try here");
        cli.ok("rollback try");
        cli.ok("checkpoint create try -m later");
        assert_eq!(cli.ok("read second app f"), "second\n");
        assert_eq!(cli.ok("read third app d/d"), "d\n");
        // Forks of forks, and checkpoints in them.
        cli.ok("plan fork second fourth");
        cli.ok("checkpoint create fourth -m in-fourth");
        run(&cli, "fourth", "rm -r d");
        assert_eq!(cli.ok("read second app d/more"), "more\n");
        cli.ok("restore fourth in-fourth");
        assert_eq!(cli.ok("read fourth app d/more"), "more\n");
        // The one they came from goes; they stay.
        cli.ok("cleanup try");
        for (plan, f) in [
            ("second", "second\n"),
            ("third", "first\n"),
            ("fourth", "second\n"),
        ] {
            assert_eq!(cli.ok(format!("read {plan} app f")), f);
            assert!(run(&cli, plan, "cat f").starts_with(f));
        }
        cli.ok("commit second");
        let app = world.at("app");
        let released = |name: &str| read(app.join(name));
        assert_eq!([released("f"), released("d/more")], ["second\n", "more\n"]);
        // Nothing that others live on became the original's.
        let shared = fs::metadata(app.join("f")).expect("committed");
        assert_eq!(MetadataExt::nlink(&shared), 1);
        // The later one finds what overlaps, measured by what the first plan began on.
        let outcome = cli.run("commit third");
        assert_eq!(outcome.status, 4, "{strategy}");
        let said = outcome.stdout_text() + &outcome.stderr_text();
        assert!(said.contains("app:f"), "{strategy}: {said}");
        assert!(!said.contains("app:a.txt"), "{strategy}: {said}");
        cli.ok("undo second");
        cli.ok("commit third");
        assert_eq!(released("a.txt"), "changed\n", "{strategy}");
        for plan in ["second", "third", "fourth"] {
            cli.ok(format!("cleanup {plan}"));
        }
        assert_eq!(world.areas(), [""; 0]);
    }
}

/// Another process changed the original after the first plan copied it, before the fork was made: that is a
/// conflict for both.
// rule C15
#[test]
fn a_fork_measures_the_original_by_what_the_first_plan_copied() {
    for strategy in COPIES {
        let (world, cli) = planned(strategy);
        let theirs = world.at("app/a.txt");
        write(&theirs, "by somebody else\n");
        cli.ok("plan fork try second");
        assert_eq!(cli.ok("read second app a.txt"), "one\ntwo\nthree\n");
        assert_eq!(cli.ok("diff second --name-status"), "");
        put(&cli, "second app a.txt", "ours\n");
        let outcome = cli.run("commit second");
        assert_eq!(outcome.status, 4, "{strategy}");
        let kept = read(&theirs);
        assert_eq!(kept, "by somebody else\n");
    }
}

/// What a fork at an earlier snapshot would have to take from the original is not there any more: refused, and
/// nothing of the fork stays.
#[test]
fn a_fork_whose_first_version_is_gone_is_refused() {
    let (world, cli) = planned("filesystem_copy");
    create(&cli, "clean");
    put(&cli, "try app a.txt", "ours\n");
    write(world.at("app/a.txt"), "by somebody else\n");
    let said = cli.fails("plan fork try second --at clean", 4);
    has(&said, ["a.txt", "another program changed it"]);
    cli.fails("read second app a.txt", 1);
    assert_eq!(cli.ok("read try app a.txt"), "ours\n");
    cli.ok("plan fork try third");
    assert_eq!(cli.ok("read third app a.txt"), "ours\n");
}

// rule R4
#[test]
fn a_plan_of_copies_and_layers_forks_as_one() {
    as_user_too();
    let (world, cli) = world();
    write(world.dir("data").join("f"), "data\n");
    for (name, at, strategy) in [
        ("one", "app", "overlay"),
        ("two", "data", "filesystem_copy"),
    ] {
        cli.ok(format!(
            "resource add {name} --type fs-directory --at ./{at} --strategy {strategy}"
        ));
    }
    cli.ok("plan create try --resource one --resource two");
    let write = |plan: &str, text: &str| {
        for resource in ["one", "two"] {
            put(&cli, &format!("{plan} {resource} f"), text);
        }
    };
    let holds = |plan: &str, text: &str| {
        for resource in ["one", "two"] {
            let found = cli.ok(format!("read {plan} {resource} f"));
            assert_eq!(found, text, "{plan} {resource}");
        }
    };
    write("try", "a\n");
    create(&cli, "both");
    write("try", "b\n");
    cli.ok("plan fork try old --at both");
    cli.ok("plan fork try new");
    write("old", "old\n");
    holds("try", "b\n");
    holds("old", "old\n");
    holds("new", "b\n");
    cli.ok("commit old");
    assert_eq!(cli.run("commit new").status, 4);
    for plan in ["try", "old", "new"] {
        cli.ok(format!("cleanup {plan}"));
    }
    assert_eq!(world.areas(), [""; 0]);
}

#[test]
fn without_isolation_there_is_nothing_to_fork() {
    let (_world, cli) = planned_app("none");
    let said = cli.fails("plan fork try other", 1);
    assert!(said.contains("nothing is isolated"), "{said}");
    let listed = json(&cli, "plan list").to_string();
    assert!(!listed.contains("other"), "{listed}");
}

/// Where the file system can share contents, a fork takes no room for them.
#[test]
fn a_fork_shares_contents_where_the_file_system_can() {
    for kind in [Fs::Btrfs, Fs::Xfs] {
        let fs = need!(LoopFs::new(kind, 300));
        let (_world, cli) = furnish(World::under(fs.path()));
        cli.ok("plan create try --resource ./app --strategy copy_on_write");
        let forked = json(&cli, "plan fork try other");
        let message = forked["sandboxes"][0]["message"].to_string();
        has(&message, ["2 files share their contents"]);
        let trees = ["try", "other"].map(|plan| signature(&tree(&cli, plan)));
        assert_same(&trees[0], &trees[1], &Ignore::default());
    }
}

/// If the process dies while forking leaves a plan that no process can use by mistake.
#[test]
fn a_fork_that_was_never_finished_is_refused_and_goes() {
    need!(require_stepper());
    let line = "plan fork try other";
    let (_world, cli) = planned("filesystem_copy");
    let calls = cli.stepper(line).run().calls;
    let mut half = 0;
    for n in (1..=calls).step_by(calls as usize / 8) {
        let (world, cli) = planned("filesystem_copy");
        cli.stepper(line).fault(n, Fault::Kill);
        let outcome = cli.run("diff other");
        if outcome.stderr_text().contains("never finished") {
            half += 1;
            assert_eq!(outcome.status, 5);
            let said = outcome.stderr_text();
            assert!(said.contains("`escrow recover`"), "{said}");
            // It is no plan to make a sandbox in, and what is left of it goes.
            let said = cli.fails("sandbox create other app", 1);
            assert!(said.contains("it can be created again"), "{said}");
            cli.ok(line);
            cli.ok("cleanup other");
        }
        cli.run("cleanup other");
        cli.ok("cleanup try");
        assert_eq!(world.areas(), [""; 0]);
    }
    assert!(half > 0, "no kill left half a fork");
}

/// A fork holds another process's work from its first snapshot on, so there is a way back from the first command in it.
// rule R5
#[test]
fn what_a_fork_begins_with_is_kept_before_a_command_runs() {
    for strategy in STRATEGIES {
        let (_world, cli) = planned(strategy);
        run(&cli, "try", "echo work > work");
        cli.ok("plan fork try second");
        run(&cli, "second", "rm work");
        let kept = json(&cli, "checkpoint list second");
        let kept = &kept["checkpoints"][0];
        assert_eq!(kept["reason"], "before_run", "{strategy}");
        let id = kept["checkpoint_id"].as_str().expect("an id");
        cli.ok(format!("restore second {id}"));
        assert_eq!(cli.ok("read second app work"), "work\n");
    }
}
