//! A protected path is protected by every name it has, also before its resource was ever used.

use crate::*;

/// A configuration that names `app` and protects a part of it; nothing was ever done with it.
fn configured(resources: &str, denied: &str) -> (World, Cli) {
    let (world, cli) = world();
    let text = enforce(
        &format!("resources: {resources}\n"),
        &format!("allow {ALL} * *; {denied}"),
    );
    write(world.dir("work").join("escrow.yaml"), text);
    let text = "safe\n";
    write(world.dir("work/app/.github/workflows").join("ci.yml"), text);
    let cli = cli.cwd(world.dir("work"));
    (world, cli)
}

const PROTECT: &str = "deny [write, commit] * app:.github/**";

/// Makes a plan of `resource`, changes something in it, and asks for the release.
#[track_caller]
fn denied(cli: &Cli, resource: &str, script: &str) {
    for strategy in ["filesystem_copy", "copy_on_write"] {
        cli.plan("q", resource, strategy);
        cli.ok(inside("run --plan q", script));
        for line in ["commit q --yes", "commit q --dry-run"] {
            let said = cli.run(line);
            assert_eq!(
                said.status,
                3,
                "{resource}: {script}: {}",
                said.stderr_text()
            );
        }
        cli.ok("cleanup q --yes");
    }
}

// rule S6
#[test]
fn a_declared_resource_is_protected_before_it_is_used() {
    let (world, cli) = configured("{ app: { at: app } }", PROTECT);
    let file = world.at("work/app/.github/workflows/ci.yml");
    let evil = format!("echo EVIL >> '{}'", file.display());
    let all_resources =
        "./app/.github; app/.github/workflows; app/.github/workflows/ci.yml; .; app";
    for resource in all_resources.split("; ") {
        denied(&cli, resource, &evil);
        assert_eq!(read(&file), "safe\n", "{resource}");
    }
    let said = cli.run(inside("run -r app/.github --commit", evil.as_str()));
    assert_ne!(said.status, 0, "{}", said.stderr_text());
    // Under another name it is the same.
    cli.ok("cleanup --yes");
    cli.ok("resource add other --at app");
    denied(&cli, "other", &evil);
    assert_eq!(read(&file), "safe\n");
    for scope in ["other:.github/x", "app:.github/x"] {
        assert_eq!(
            cli.run(format!("access check --action commit --scope {scope}"))
                .status,
            3,
            "{scope}"
        );
    }
    // What is not protected is released.
    cli.ok("plan create q --resource other");
    put(&cli, "q other plain", "x\n");
    cli.ok("commit q --yes");
}

/// A directory that leads to a protected path can be closed, or opened to others, without a change of that path.
// rule S6
#[test]
fn a_protected_paths_parent_could_be_closed() {
    as_user_too();
    let protect = "deny [write, commit] * app:.github/workflows/**";
    let (world, cli) = configured("{ app: { at: app } }", protect);
    let before = signature(&world.at("work/app"));
    for script in [
        "chmod 000 app/.github",
        "chmod 0777 app/.github",
        "chmod 000 app",
    ] {
        for resource in ["app", "./app/.github", "."] {
            // Of a plan of the directory below, the one above is no part.
            if resource.ends_with(".github") && script.ends_with("app") {
                continue;
            }
            denied(&cli, resource, script);
        }
    }
    unchanged(&before, world.at("work/app"));
    // One that leads to nothing protected can be.
    cli.plan("q", "app", "filesystem_copy");
    cli.ok(inside(
        "run --plan q",
        "mkdir app/other && chmod 0711 app/other",
    ));
    cli.ok("commit q --yes");
}

/// What is declared may not be there yet: who makes it makes what is protected.
// rule S6
#[test]
fn what_is_declared_is_protected_before_it_is_there() {
    let resources = "{ app: { at: new/deep/app }, page: { at: pages/one.txt } }";
    let (world, cli) = configured(resources, PROTECT);
    let script = "mkdir -p new/deep/app/.github && echo x > new/deep/app/.github/ci";
    denied(&cli, ".", script);
    assert!(!world.at("work/new").exists());
    let page = "deny [commit] * page:one.txt";
    let (world, cli) = configured(resources, page);
    denied(&cli, ".", "mkdir pages && echo x > pages/one.txt");
    world.dir("work/pages");
    denied(&cli, "pages", "echo x > pages/one.txt");
    assert!(!world.at("work/pages/one.txt").exists());
}

/// Links on the way lead to the same, and a process that changes one of them changes what is protected.
// rule S6
#[test]
fn a_declared_path_may_lead_through_links() {
    let (world, cli) = configured("{ app: { at: ways/current/app } }", PROTECT);
    world.dir("work/releases/one/app/.github");
    world.dir("work/releases/two/app/.github");
    symlink("one", world.at("work/releases/latest"));
    world.dir("work/ways");
    let link = world.at("work/ways/current");
    symlink("../releases/latest", &link);
    denied(&cli, ".", "echo x > releases/one/app/.github/ci");
    let script = "echo x > releases/one/app/.github/ci";
    denied(&cli, "releases/one/app/.github", script);
    denied(&cli, "ways", "ln -sfn ../releases/two ways/current");
    denied(&cli, "releases", "ln -sfn two releases/latest");
    denied(
        &cli,
        ".",
        "rm ways/current; mkdir -p ways/current/app/.github; touch ways/current/app/.github/ci",
    );
    // What is not on the way is not concerned.
    cli.ok("plan create q --resource releases");
    cli.ok(inside(
        "run --plan q",
        "ln -s two releases/other; echo x > releases/two/app/.github/ci",
    ));
    cli.ok("commit q --yes");
    assert_eq!(
        fs::read_link(link).expect("it is there"),
        Path::new("../releases/latest")
    );
}

/// A directory above a resource that becomes a link takes the resource elsewhere.
// rule S6
#[test]
fn a_link_above_a_resource_does_not_lead_around_its_protection() {
    let (world, cli) = configured("{ app: { at: x/app } }", PROTECT);
    world.dir("work/x/app/src");
    let script = "mkdir -p y/app/.github; touch y/app/.github/ci; rm -r x; ln -s y x";
    denied(&cli, ".", script);
    assert!(world.at("work/x/app/src").is_dir());
}

/// A directory that happens to be called like a declared resource does not get its permissions.
// rule S6
#[test]
fn a_declared_name_is_not_free_for_others() {
    let (world, cli) = configured("{ app: { at: app } }", PROTECT);
    let rules = "allow [create, read, write, diff, run, cleanup] * *; allow [commit] * app";
    let rules = enforce(
        "resources: { app: { at: app } }
",
        rules,
    );
    write(world.dir("work").join("escrow.yaml"), rules);
    world.dir("work/elsewhere/app");
    denied(&cli, "elsewhere/app", "touch elsewhere/app/evil");
    assert!(!world.at("work/elsewhere/app/evil").exists());
}

/// An undo is checked by the same names as the commit, although its resource was forgotten with it.
// rule S6
#[test]
fn an_undo_is_authorized_by_every_name() {
    let undo = "deny [undo] * app";
    let (world, cli) = configured("{ app: { at: app } }", undo);
    cli.ok("plan create q --resource app/.github");
    cli.ok(inside("run --plan q", "touch app/.github/new"));
    cli.ok("commit q --yes");
    cli.fails("undo q --yes", 3);
    assert!(world.at("work/app/.github/new").exists());
}
