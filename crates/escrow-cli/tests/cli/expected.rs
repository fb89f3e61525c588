//! The digest of a diff, and `commit --expect`: exactly that is released, or nothing.

use crate::*;

const STRATEGIES: [&str; 3] = ["filesystem_copy", "copy_on_write", "overlay"];

/// Changes of every kind.
const WORK: &str = "echo new > a.txt; chmod 0604 a.txt; mkdir -m 0711 n; echo 1 > n/1; ln n/1 n/2; chmod 4755 n/1
    ln -sfn nowhere link; mkfifo -m 0640 pipe; rm -r src; mkdir -m 0700 src; touch 'odd name'; chmod 0705 .
    echo x > gone; rm gone";

/// A plan of `app` with this strategy, in which a script was run.
fn worked_in(strategy: &str, script: &str) -> (World, Cli) {
    let (world, cli) = planned_app(strategy);
    run(&world, &cli, script);
    (world, cli)
}

fn run(world: &World, cli: &Cli, script: &str) {
    let line = inside("-q run --plan try", &format!("set -eu; {script}"));
    cli.clone().cwd(world.at("app")).ok(line);
}

fn digest(cli: &Cli, line: &str) -> String {
    let document = json(cli, line);
    document["digest"].as_str().expect("it has one").to_owned()
}

fn expect(cli: &Cli, digest: &str) -> String {
    cli.ok(format!("commit try --expect {digest}"))
}

fn refuse(cli: &Cli, line: &str) -> Value {
    let document = failed(cli, line, 4);
    assert_eq!(document["error"]["kind"], "conflict");
    assert_eq!(document["committed"], false);
    document
}

// rule C11
#[test]
fn the_digest_is_the_same_for_every_strategy_and_is_what_is_released() {
    as_user_too();
    let mut all = Vec::new();
    for strategy in STRATEGIES {
        let (world, cli) = worked_in(strategy, WORK);
        let found = digest(&cli, "diff try");
        assert_eq!(digest(&cli, "--principal agent diff try --patch"), found);
        assert_eq!(digest(&cli, "commit try --dry-run"), found);
        let text = cli.run("diff try").stderr_text();
        assert!(text.contains(&format!("digest: {found}\n")), "{text}");
        expect(&cli, &found);
        let mode = |path: &str| mode(world.at("app").join(path));
        // What a commit drops is no part of it.
        let expected = (0o755, 0o604, 0o705);
        assert_eq!((mode("n/1"), mode("a.txt"), mode(".")), expected);
        all.push(found);
    }
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
}

#[test]
fn whatever_would_be_released_is_part_of_the_digest() {
    as_user_too();
    let (world, cli) = worked_in("overlay", "echo one > f; ln -s a s; mkdir d");
    let mut seen = vec![digest(&cli, "diff try")];
    for script in [
        "echo two > f",
        "chmod 0600 f",
        "ln -sfn b s",
        "chmod 0700 d",
        "mv f g",
        "rm s",
        "mkdir e",
        "rm a.txt",
        "python3 -c 'import os; os.setxattr(\"g\", \"user.one\", b\"1\")'",
    ] {
        run(&world, &cli, script);
        let found = digest(&cli, "diff try");
        assert!(!seen.contains(&found), "{script}");
        refuse(
            &cli,
            &format!("commit try --expect {}", seen[seen.len() - 1]),
        );
        seen.push(found);
    }
    // Neither times nor inodes are.
    run(&world, &cli, "cp -a g h; mv h g; touch -d 2001-01-01 g d .");
    assert_eq!(digest(&cli, "diff try"), seen[seen.len() - 1]);
    let said = expect(&cli, &seen[seen.len() - 1]);
    assert!(said.contains("committed"), "{said}");
}

#[test]
fn what_was_expected_of_a_part_is_what_a_dry_run_of_it_says() {
    as_user_too();
    let (world, cli) = worked_in("overlay", "echo 1 > one; mkdir d; echo 2 > d/two");
    let (whole, part) = (digest(&cli, "diff try"), "commit try --only d/**");
    let found = digest(&cli, &format!("{part} --dry-run"));
    assert_ne!(found, whole);
    refuse(&cli, &format!("{part} --expect {whole}"));
    refuse(&cli, &format!("{part} --dry-run --expect {whole}"));
    refuse(&cli, &format!("commit try --expect {found}"));
    // An answer that is none, of a script that failed.
    refuse(&cli, "commit try --expect=");
    refuse(&cli, "commit try --expect null");
    cli.ok(format!("{part} --expect {found}"));
    assert!(world.at("app/d/two").exists());
    assert!(!world.at("app/one").exists());
    let rest = digest(&cli, "diff try");
    expect(&cli, &rest);
}

#[test]
fn forms_that_read_no_content_have_no_digest() {
    let (_world, cli) = worked_in("filesystem_copy", "echo 1 > one");
    cli.ok("checkpoint create try -m one");
    for line in ["diff try --name-status", "diff try --since one"] {
        assert_eq!(json(&cli, line)["digest"], Value::Null, "{line}");
        let text = cli.run(line).stderr_text();
        assert!(!text.contains("digest"), "{text}");
    }
}

/// The digest of what its own user may not read changes with its content.
#[test]
fn a_file_that_its_own_user_may_not_read_has_a_digest() {
    as_user_too();
    let (world, cli) = worked_in("overlay", "echo 1 > one; chmod 0 one");
    let first = digest(&cli, "diff try");
    run(&world, &cli, "chmod 600 one; echo 2 > one; chmod 0 one");
    let refused = refuse(&cli, &format!("commit try --expect {first}"));
    let second = digest(&cli, "diff try");
    assert_eq!(refused["error"]["details"]["digest"], second);
    assert!(!world.at("app/one").exists());
    cli.ok(format!("commit try --expect {second}"));
}

/// What was staged and refused was taken back through the original, although nothing had been done there.
// rule C2
#[test]
fn a_commit_that_is_refused_after_staging_changes_no_original() {
    need!(require_stepper());
    for strategy in STRATEGIES {
        let (world, cli) = worked_in(strategy, WORK);
        let app = world.at("app");
        let line = words(&format!("commit try --expect {}", "0".repeat(64)));
        let run = cli.stepper(&line).record().run();
        assert_eq!(run.outcome.status, 4, "{}", run.outcome.stderr_text());
        let inside = |path: &Option<PathBuf>| path.as_ref().is_some_and(|at| at.starts_with(&app));
        let mut touched = run.steps.iter();
        let touched = touched.find(|step| inside(&step.path) || inside(&step.to));
        let touched = touched.map(ToString::to_string);
        assert_eq!(touched, None, "{strategy}");
    }
}
