//! A plan obeys the configuration it was made under, wherever a command is typed and whatever became of
//! the file.

use crate::*;

fn write(directory: &Path, text: &str) {
    fs::write(directory.join("escrow.yaml"), text).expect("there is room");
}

fn rules() -> String {
    let most = "[create, read, write, diff, commit, cleanup, rollback, checkpoint, run, undo]";
    let resources = "resources: {app: {at: app}, hidden: {at: app/secret}}\n";
    enforce(
        resources,
        &format!("allow {most} * *; deny [commit] * hidden"),
    )
}

fn protected(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    world.dir("app/secret");
    write(world.path(), &rules());
    cli.plan("try", "./app", strategy);
    put(&cli, "try app secret/new", "x\n");
    (world, cli)
}

/// Item 13: `cd /; escrow commit` escaped the project's configuration.
// rule S6
#[test]
fn a_plan_obeys_its_configuration_from_anywhere() {
    as_user_too();
    let (world, cli) = protected("overlay");
    let elsewhere = world.dir("elsewhere");
    write(&elsewhere, "policy: {mode: local}\n");
    let away = cli.clone().cwd(&elsewhere);
    away.trust();
    let root = cli.clone().cwd("/");
    let null = cli.clone().env("ESCROW_CONFIG", "/dev/null");
    let denied = |what: &str| {
        for cli in [&cli, &away, &root, &null] {
            let told = cli.fails("commit try", 3);
            assert!(told.contains("may not commit"), "{what}: {told}");
        }
    };
    denied("as it was");
    // A fork is made under the same.
    root.ok("plan fork try forked");
    root.fails("commit forked", 3);
    root.ok("cleanup forked");
    // A process that changes the file afterwards can only tighten.
    for text in [
        "policy: {mode: local}\n",
        "{}\n",
        "policy: {mode: enforce, rules: []}\n",
    ] {
        write(world.path(), text);
        denied(text);
    }
    remove(world.at("escrow.yaml"));
    denied("without a file");
    assert!(!world.at("app/secret/new").exists());
    // What the user saw and trusts counts instead.
    write(world.path(), "resources: {app: {at: app}}\n");
    denied("not trusted yet");
    cli.trust();
    root.ok("commit try");
    assert!(world.at("app/secret/new").exists());
}

/// What was tightened after the plan was made counts too.
#[test]
fn what_was_tightened_since_counts_from_anywhere() {
    as_user_too();
    let (world, cli) = world();
    write(world.path(), "resources: {app: {at: app}}\n");
    cli.ok("plan create try --resource app");
    put(&cli, "try app secret", "x\n");
    let rules = "allow [commit, diff] * *; deny [commit] * app:secret";
    write(
        world.path(),
        &enforce("resources: {app: {at: app}}\n", rules),
    );
    cli.fails("commit try", 3);
    cli.clone().cwd("/").fails("commit try", 3);
}

/// A plan that released a configuration that makes no sense could be neither undone nor removed, first from
/// anywhere, then in the directory itself.
// rule C17
#[test]
fn a_file_that_makes_no_sense_does_not_stop_what_frees_and_repairs() {
    as_user_too();
    let (world, cli) = world();
    let app = world.dir("app");
    let most = "[create, write, commit, diff, undo, rollback, cleanup]";
    let deny = &enforce("", &format!("allow {most} * *; deny [commit] * app:secret"));
    write(&app, deny);
    let here = cli.clone().cwd(&app);
    let null = here.clone().env("ESCROW_CONFIG", "/dev/null");
    for cli in [&cli.clone().cwd("/"), &null, &here] {
        here.ok("plan create try --resource .");
        put(&here, "try app escrow.yaml", "polciy: {}\n");
        here.ok("plan create denied --resource .");
        put(&here, "denied app secret", "x\n");
        here.ok("commit try");
        // Nothing else is done without it.
        let told = json_error(&here, "commit denied", 2).to_string();
        assert!(told.contains("--config /dev/null"), "{told}");
        null.fails("commit denied", 3);
        for line in ["rollback denied", "cleanup denied --yes", "undo try --yes"] {
            let told = json(cli, line)["notices"].to_string();
            assert_eq!(told.matches("polciy").count(), 2, "{line}: {told}");
            assert!(told.contains("fix"), "{line}: {told}");
        }
        assert_eq!(read(app.join("escrow.yaml")), *deny);
        here.ok("cleanup try --yes");
        write(&app, "polciy: {}\n");
        for line in ["recover", "gc"] {
            let told = json(&here, line)["notices"].to_string();
            assert!(told.contains("polciy"), "{line}: {told}");
        }
        here.fails("status", 2);
        write(&app, deny);
    }
}

/// Validations that counted when the plan was made run from anywhere, also when the file lost them.
#[test]
fn validations_run_from_anywhere() {
    as_user_too();
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let content = "run: {env: {COLOUR: blue}}\nvalidate: [[test, '!', -e, app/bad]]\n";
    write(world.path(), content);
    cli.trust();
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app bad", "x\n");
    let away = cli.clone().cwd(world.dir("away"));
    let stopped = |what: &str| {
        for cli in [&cli, &away] {
            let told = cli.fails("commit try", 1);
            let holds = told.contains("the validation `test ! -e app/bad`");
            assert!(holds, "{what}: {told}");
        }
    };
    stopped("as it was");
    let refused = |cli: &Cli, what: &str| {
        for line in ["commit try", "commit try --dry-run"] {
            let told = cli.fails(line, 3);
            let fine = told.contains("changed since it was trusted");
            assert!(fine, "{what}: {told}");
            assert!(told.contains("escrow trust '"), "{what}: {told}");
        }
    };
    let colour = inside("-q run --plan try", "echo $COLOUR");
    assert_eq!(away.ok(&colour), "blue\n");
    // A process that changes the file must not switch the validation off, nor exchange it.
    for text in ["{}\n", "validate: ['true']\n"] {
        write(world.path(), text);
        for cli in [&cli, &away] {
            refused(cli, text);
        }
    }
    let log = json(&cli, "log try").to_string();
    assert!(log.contains("changed since it was trusted"), "{log}");
    remove(world.at("escrow.yaml"));
    stopped("gone");
    // Trusted no more, its commands do not run, and that is said.
    cli.ok("trust --remove escrow.yaml");
    let told = json(&away, "commit try");
    assert!(told["notices"].to_string().contains("validate"), "{told}");
}

/// Item 13: `cd "$(escrow path …)"; escrow commit` obeyed the agent's version.
#[test]
fn a_configuration_in_a_sandbox_never_counts() {
    as_user_too();
    for beside in [false, true] {
        let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
        let memory = World::under(Path::new("/dev/shm"));
        let cli = match beside {
            // The area lies beside its original then.
            true => cli.env("ESCROW_HOME", memory.home()),
            false => cli,
        };
        world.dir("app/secret");
        write(world.path(), &rules());
        cli.ok("plan create try --resource ./app --strategy filesystem_copy");
        let sandbox = &copy_of(&cli, "try", "app");
        let path = sandbox.display().to_string();
        assert_eq!(path.contains("/.escrow-"), beside, "{path}");
        fs::write(sandbox.join("secret/new"), "x").expect("it is ours");
        for text in [
            "policy: {mode: local}\n",
            "resources: {hidden: {at: src}}\n",
            "nonsense",
        ] {
            write(sandbox, text);
            let inside = cli.clone().cwd(sandbox.join("src"));
            let told = inside.fails("commit", 3);
            assert!(told.contains("it is inside a sandbox"), "{beside}: {told}");
        }
        let inside = cli.clone().cwd(sandbox);
        let told = inside.fails("trust escrow.yaml", 2);
        assert!(told.contains("inside a sandbox"), "{told}");
        assert!(!world.at("app/secret/new").exists());
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
        cli.ok("plan create try --resource ./app");
        put(&cli, "try app new", "x\n");
        cli.ok("commit try");
        write(&world.dir("user-home/.config/escrow"), &text(users));
        let gone = json(&cli.clone().cwd("/"), "gc --dry-run");
        let gone = list(&gone["removed"]);
        assert_eq!(!gone.is_empty(), goes, "{keep} {trusted}: {gone:?}");
    }
}

/// A commit went through without the validation that was trusted, where the file was changed, covered or removed
/// before the plan was made, or others could write it.
// rule S6
#[test]
fn a_trusted_validation_cannot_be_switched_off() {
    as_user_too();
    let trusted = "validate: [[test, '!', -e, app/bad]]\n";
    let change = |world: &World, how: &str| {
        let file = world.at("escrow.yaml");
        match how {
            "changed" => write(world.path(), "{}\n"),
            "added" => write(world.path(), "validate: ['true']\n"),
            "removed" => remove(&file),
            "covered" => write(&world.dir("app"), "{}\n"),
            _ => chmod(&file, 0o666),
        }
    };
    for (how, why, goes_on) in [
        ("changed", "changed since it was trusted", "trust --yes"),
        ("added", "changed since it was trusted", "trust --yes"),
        (
            "removed",
            "is trusted, but is not there",
            "trust --remove escrow.yaml",
        ),
        (
            "covered",
            "which lies nearer, is not",
            "trust app/escrow.yaml --yes",
        ),
        (
            "opened",
            "others may write it",
            "trust --remove escrow.yaml",
        ),
    ] {
        let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
        write(world.path(), if how == "added" { "{}\n" } else { trusted });
        cli.trust();
        change(&world, how);
        cli.ok("plan create try --resource ./app");
        put(&cli, "try app bad", "x\n");
        for cli in [&cli, &cli.clone().cwd("/")] {
            let told = cli.fails("commit try", 3);
            assert!(told.contains(why), "{how}: {told}");
        }
        let told = cli.fails("run --plan try --commit -- touch app/ran", 125);
        assert!(told.contains(why), "{how}: {told}");
        assert!(!world.at("app/bad").exists());
        assert!(!cli.ok("diff try").contains("ran"));
        // By the user's own decision it goes on.
        cli.ok(goes_on);
        cli.ok("commit try");
        assert!(world.at("app/bad").exists(), "{how}");
    }
}

/// That a validation of a file that was never trusted does not run was said after the commit.
#[test]
fn what_does_not_count_is_said_before_the_work_begins() {
    as_user_too();
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let text = "run: {env: {A: b}}\nsandbox: {cleanup: on_terminal}\nvalidate: ['false']\n";
    write(world.path(), text);
    let script = "echo begun >&2; echo new > app/new";
    let line = inside("run --resource ./app --commit", script);
    let told = cli.expect(line, 0).stderr_text();
    let (before, _) = told.split_once("begun").expect("it ran");
    for key in ["run.env (", "sandbox.cleanup (", "validate ("] {
        assert_eq!(before.matches(key).count(), 1, "{key}: {told}");
        assert_eq!(told.matches(key).count(), 1, "{key}: {told}");
    }
    assert!(world.at("app/new").exists());
    cli.ok("plan create try --resource ./app");
    let told = cli.run("commit try").stderr_text();
    assert!(told.contains("validate ("), "{told}");
}

/// A plan made above a project, or with a resource of another one, was not bound to the project's file.
// rule S6
#[test]
fn a_plan_made_elsewhere_is_bound_to_the_projects_file() {
    as_user_too();
    let rules = "allow [create, read, write, diff, commit, cleanup] * *; deny [commit] * *:secret";
    let text = enforce(
        "sandbox: {strategy: filesystem_copy}
",
        rules,
    );
    for line in [
        "plan create try --resource app",
        "plan create try --resource other --resource app",
        "plan create try",
    ] {
        let (world, cli) = world();
        world.dir("other");
        write(&world.dir("app"), &text);
        let made = json(&cli, line);
        if !line.contains("app") {
            cli.ok("sandbox create try app");
        }
        let first = line == "plan create try --resource app";
        let strategy = &made["sandboxes"][0]["strategy"];
        assert_eq!(strategy == "filesystem_copy", first, "{made}");
        put(&cli, "try app secret", "x\n");
        for cli in [&cli, &cli.clone().cwd("/")] {
            let told = cli.fails("commit try", 3);
            assert!(told.contains("may not commit"), "{line}: {told}");
        }
        remove(world.at("app/escrow.yaml"));
        let status = cli.run("commit try").status;
        // Of other projects the policy counts as it is now.
        assert_eq!(status, if first { 3 } else { 0 }, "{line}");
    }
}

/// A plan that was made under no file took everything of a trusted file it was used from.
#[test]
fn a_plan_made_under_no_file_takes_nothing_from_elsewhere() {
    as_user_too();
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    cli.ok("plan create try --resource ./app");
    let elsewhere = world.dir("elsewhere");
    let loose = "run: {env: {COLOUR: blue}, writable: [keys]}\nvalidate: ['false']\n";
    world.dir("keys");
    let colour = "echo \"[$COLOUR]\"; echo x > ../app/new; ! touch ../keys/one";
    let colour = inside("-q run --plan try", colour);
    let away = cli.clone().cwd(&elsewhere);
    write(&elsewhere, loose);
    away.trust();
    assert_eq!(away.run(&colour).stdout_text(), "[]\n");
    // But what it denies is denied.
    write(&elsewhere, "policy: {mode: enforce}\n");
    away.fails("commit try", 3);
    remove(elsewhere.join("escrow.yaml"));
    // A file that appears in its own place counts as one that changed does.
    write(world.path(), loose);
    assert_eq!(away.run(&colour).stdout_text(), "[]\n");
    cli.trust();
    assert_eq!(away.run(&colour).stdout_text(), "[blue]\n");
    away.fails("commit try", 1);
    cli.ok("trust --remove");
    away.ok("commit try");
}

/// A process that made a plan in a cloned tree could not get rid of it, where the tree's policy denied that.
// rule S6
#[test]
fn a_tree_cannot_keep_the_user_from_removing_a_plan() {
    as_user_too();
    let (world, cli) = world();
    let app = world.dir("app");
    let rules = "allow [create, write, commit, admin] * *";
    write(&app, &enforce("", rules));
    let cli = cli.cwd(&app);
    for name in ["one", "two", "done"] {
        cli.ok(format!("plan create {name} --resource ."));
    }
    put(&cli, "one app new", "x\n");
    put(&cli, "done app done", "x\n");
    cli.ok("commit done");
    let agent = |line: &str| format!("--principal agent {line}");
    // Only who made it, and only this.
    for line in ["rollback one", "cleanup one --yes"] {
        cli.fails(agent(line), 3);
    }
    let gc = |line: &str| json(&cli, line)["removed"].to_string();
    let held = gc(&agent("gc --max-size 0"));
    assert_eq!(held, "[]");
    cli.fails("undo done --yes", 3);
    assert!(gc("gc --max-size 0").contains("undo"));
    cli.ok("rollback one");
    cli.ok("cleanup one --yes");
    // What the user trusts, and the user's own policy, still count.
    cli.trust();
    cli.fails("cleanup two --yes", 3);
    cli.fails("gc", 3);
    cli.ok("trust --remove");
    let rules = "allow [create] * *";
    write(&world.dir("user-home/.config/escrow"), &enforce("", rules));
    cli.fails("cleanup two --yes", 3);
    cli.fails("gc", 3);
}

/// Where one policy restricts, a denial did not name its file.
// rule S6
#[test]
fn every_denial_names_the_file_and_the_rule() {
    let (world, cli) = world();
    let rules = "allow [create, write] * *; deny [write] * app:secret";
    write(world.path(), &enforce("", rules));
    cli.ok("plan create try --resource ./app");
    let file = format!("(in '{}/escrow.yaml')", world.path().display());
    has(&cli.fails("write try app secret", 3), ["rule 2 says"]);
    has(&cli.fails("write try app secret", 3), [&file]);
    has(&cli.fails("commit try", 3), ["no rule permits it", &file]);
    let log = json(&cli, "log try").to_string();
    assert!(log.contains(&file), "{log}");
}
