//! A plan obeys the configuration it was made under, wherever a command is typed and whatever became of
//! the file.

use std::fs;
use std::path::Path;

use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::{binary, furnish, json, json_error, words, world};

fn write(directory: &Path, text: &str) {
    fs::write(directory.join("escrow.yaml"), text).expect("there is room");
}

fn as_user(test: &str) {
    rerun_test_as_user_with(&format!("trust_plans::{test}"), &[&binary()]);
}

const PROTECTED: &str = "resources: {app: {at: app}, hidden: {at: app/secret}}\npolicy:\n  mode: enforce\n  rules:\n    \
    - {allow: [create, read, write, diff, commit, cleanup, rollback, checkpoint, run, undo], principal: '*', scope: '*'}\n    \
    - {deny: [commit], principal: '*', scope: hidden}\n";

fn protected(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    world.dir("app/secret");
    write(world.path(), PROTECTED);
    let line = format!("plan create try --resource ./app --strategy {strategy}");
    cli.ok(words(&line));
    cli.clone()
        .stdin("x\n")
        .ok(words("write try app secret/new"));
    (world, cli)
}

/// Item 13: `cd /; escrow commit` escaped the project's configuration.
// rule S6
#[test]
fn a_plan_obeys_its_configuration_from_anywhere() {
    as_user("a_plan_obeys_its_configuration_from_anywhere");
    let (world, cli) = protected("overlay");
    let elsewhere = world.dir("elsewhere");
    write(&elsewhere, "policy: {mode: local}\n");
    let away = cli.clone().cwd(&elsewhere);
    away.trust();
    let root = cli.clone().cwd("/");
    let null = cli.clone().env("ESCROW_CONFIG", "/dev/null");
    let denied = |what: &str| {
        for cli in [&cli, &away, &root, &null] {
            let told = cli.fails(words("commit try"), 3);
            assert!(told.contains("may not commit"), "{what}: {told}");
        }
    };
    denied("as it was");
    // A fork is made under the same.
    root.ok(words("plan fork try forked"));
    root.fails(words("commit forked"), 3);
    root.ok(words("cleanup forked"));
    // Whoever changes the file afterwards can only tighten.
    for text in [
        "policy: {mode: local}\n",
        "{}\n",
        "policy: {mode: enforce, rules: []}\n",
    ] {
        write(world.path(), text);
        denied(text);
    }
    fs::remove_file(world.path().join("escrow.yaml")).expect("it is there");
    denied("without a file");
    assert!(!world.path().join("app/secret/new").exists());
    // What the user saw and trusts counts instead.
    write(world.path(), "resources: {app: {at: app}}\n");
    denied("not trusted yet");
    cli.trust();
    root.ok(words("commit try"));
    assert!(world.path().join("app/secret/new").exists());
}

/// What was tightened after the plan was made counts too.
#[test]
fn what_was_tightened_since_counts_from_anywhere() {
    as_user("what_was_tightened_since_counts_from_anywhere");
    let (world, cli) = world();
    write(world.path(), "resources: {app: {at: app}}\n");
    cli.ok(words("plan create try --resource app"));
    cli.clone().stdin("x\n").ok(words("write try app secret"));
    write(
        world.path(),
        "resources: {app: {at: app}}\npolicy:\n  mode: enforce\n  rules:\n    - {allow: [commit, diff], principal: '*', scope: '*'}\n    \
         - {deny: [commit], principal: '*', scope: 'app:secret'}\n",
    );
    cli.fails(words("commit try"), 3);
    cli.clone().cwd("/").fails(words("commit try"), 3);
}

/// A plan that released a configuration that makes no sense could be neither undone nor removed, from
/// anywhere.
#[test]
fn a_file_that_makes_no_sense_does_not_stop_undo_and_cleanup() {
    let (world, cli) = world();
    let app = world.dir("app");
    let deny = "policy:\n  mode: enforce\n  rules:\n    - {allow: [create, write, commit, diff, undo, cleanup], principal: '*', scope: '*'}\n    \
        - {deny: [commit], principal: '*', scope: 'app:secret'}\n";
    write(&app, deny);
    let here = cli.clone().cwd(&app);
    let away = cli.clone().cwd("/");
    let null = here.clone().env("ESCROW_CONFIG", "/dev/null");
    for cli in [&away, &null] {
        here.ok(words("plan create try --resource ."));
        let broken = "polciy: {}\n";
        here.clone()
            .stdin(broken)
            .ok(words("write try app escrow.yaml"));
        here.ok(words("plan create denied --resource ."));
        here.clone()
            .stdin("x\n")
            .ok(words("write denied app secret"));
        here.ok(words("commit try"));
        let told = json_error(&here, "undo try --yes", 2).to_string();
        assert!(told.contains("--config /dev/null"), "{told}");
        // What is kept counts.
        cli.fails(words("commit denied"), 3);
        let told = json(cli, "cleanup denied --yes");
        assert!(
            told["notices"].to_string().contains("mend the file"),
            "{told}"
        );
        let told = json(cli, "undo try --yes");
        assert!(
            told["notices"].to_string().contains("mend the file"),
            "{told}"
        );
        assert_eq!(
            fs::read_to_string(app.join("escrow.yaml")).expect("it is back"),
            deny
        );
        here.ok(words("cleanup try --yes"));
    }
}

/// Validations that counted when the plan was made run from anywhere, also when the file lost them.
#[test]
fn validations_run_from_anywhere() {
    as_user("validations_run_from_anywhere");
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    write(
        world.path(),
        "run: {env: {COLOUR: blue}}\nvalidate: [[test, '!', -e, app/bad]]\n",
    );
    cli.trust();
    cli.ok(words("plan create try --resource ./app"));
    cli.clone().stdin("x\n").ok(words("write try app bad"));
    let away = cli.clone().cwd(world.dir("away"));
    let stopped = |what: &str| {
        for cli in [&cli, &away] {
            let told = cli.fails(words("commit try"), 1);
            assert!(
                told.contains("the validation `test ! -e app/bad`"),
                "{what}: {told}"
            );
        }
    };
    stopped("as it was");
    let colour = [
        words("-q run --plan try -- sh -c"),
        vec!["echo $COLOUR".into()],
    ]
    .concat();
    assert_eq!(away.ok(&colour), "blue\n");
    write(world.path(), "{}\n");
    stopped("changed");
    fs::remove_file(world.path().join("escrow.yaml")).expect("it is there");
    stopped("gone");
    // Trusted no more, its commands do not run, and that is said.
    cli.ok(words("trust --remove escrow.yaml"));
    let told = json(&away, "commit try");
    assert!(told["notices"].to_string().contains("validate"), "{told}");
}

/// Item 13: `cd "$(escrow path …)"; escrow commit` obeyed the agent's version.
#[test]
fn a_configuration_in_a_sandbox_never_counts() {
    as_user("a_configuration_in_a_sandbox_never_counts");
    for beside in [false, true] {
        let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
        let memory = World::under(Path::new("/dev/shm"));
        let cli = match beside {
            // The area lies beside its original then.
            true => cli.env("ESCROW_HOME", memory.home()),
            false => cli,
        };
        world.dir("app/secret");
        write(world.path(), PROTECTED);
        cli.ok(words(
            "plan create try --resource ./app --strategy filesystem_copy",
        ));
        let path = cli.ok(words("path try app"));
        let sandbox = Path::new(path.trim());
        assert_eq!(path.contains("/.escrow-"), beside, "{path}");
        fs::write(sandbox.join("secret/new"), "x").expect("it is ours");
        for text in [
            "policy: {mode: local}\n",
            "resources: {hidden: {at: src}}\n",
            "nonsense",
        ] {
            write(sandbox, text);
            let inside = cli.clone().cwd(sandbox.join("src"));
            let told = inside.fails(words("commit"), 3);
            assert!(told.contains("it is inside a sandbox"), "{beside}: {told}");
        }
        let inside = cli.clone().cwd(sandbox);
        let told = inside.fails(words("trust escrow.yaml"), 2);
        assert!(told.contains("inside a sandbox"), "{told}");
        assert!(!world.path().join("app/secret/new").exists());
    }
}

/// How long a commit can be undone is said by the configuration that its plan was made under; a tree can
/// only make it longer.
#[test]
fn undo_is_kept_as_the_plans_configuration_says() {
    for (keep, trusted, users, goes) in [
        ("0s", false, "7d", false),
        ("0s", true, "7d", true),
        // What is typed elsewhere follows the plan, too.
        ("4w", false, "0s", false),
    ] {
        let (world, cli) = world();
        let text = |keep: &str| format!("sandbox: {{undo: {{keep: {keep}}}}}\n");
        write(world.path(), &text(keep));
        if trusted {
            cli.trust();
        }
        cli.ok(words("plan create try --resource ./app"));
        cli.clone().stdin("x\n").ok(words("write try app new"));
        cli.ok(words("commit try"));
        write(&world.dir("user-home/.config/escrow"), &text(users));
        let gone = json(&cli.clone().cwd("/"), "gc --dry-run");
        let gone = gone["removed"].as_array().expect("a list");
        assert_eq!(!gone.is_empty(), goes, "{keep} {trusted}: {gone:?}");
    }
}
