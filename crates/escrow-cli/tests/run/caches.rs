//! Caches of package managers: what a command downloads is there for the next one of its project, and never in the real cache.

use crate::*;

/// A world whose user has caches of two tools, and something in one of them.
fn with_caches() -> (World, Cli) {
    let (world, cli) = world();
    let home = world.dir("user-home");
    sh(
        &home,
        "mkdir -p .npm/_cacache .cache/pip; echo real > .npm/_cacache/real; echo x > .cache/other",
    );
    (world, cli)
}

/// What lies in the caches of Escrow, below the directories of the projects.
fn stored(world: &World) -> String {
    sh(
        world.home(),
        "cd caches 2>/dev/null && find . -path '*/upper/*' | sed 's,[^/]*/[^/]*/,,' | sort | tr '\\n' ' ' || true",
    )
}

const DOWNLOAD: &str = "cat ~/.npm/_cacache/real; echo new > ~/.npm/_cacache/new; echo changed > ~/.npm/_cacache/real; \
    mkdir ~/.cache/pip/http; echo w > ~/.cache/pip/http/wheel; echo y > ~/.cache/other";
const LOOK: &str = "cat ~/.npm/_cacache/real ~/.npm/_cacache/new ~/.cache/pip/http/wheel ~/.cache/other 2>&1 | sed 's/.*No such.*/-/'";

#[test]
fn what_a_tool_downloads_stays_with_the_project() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = with_caches();
        let first = format!("run --strategy {strategy} --rollback");
        let ended = cli.expect(inside(&first, DOWNLOAD), 0);
        assert_eq!(ended.stdout_text(), "real\n");
        // What a cache took is no part of what goes with the plan.
        has(&ended.stderr_text(), ["~/.cache/other  2 B"]);
        lacks(&ended.stderr_text(), ["_cacache", "pip"]);
        let ended = cli.expect(inside("run --new --rollback", LOOK), 0);
        assert_eq!(ended.stdout_text(), "changed\nnew\nw\nx\n");
        sh(
            world.at("user-home"),
            "test $(cat .npm/_cacache/real) = real; test \"$(find .npm .cache -type f | sort | tr '\\n' ' ')\" = '.cache/other .npm/_cacache/real '",
        );
        // Another project has its own.
        let other = world.dir("other");
        let ended = cli.run_in(&other, inside("run --rollback", LOOK));
        assert_eq!(ended.stdout_text(), "real\n-\n-\nx\n");
        // A validation trusts nothing of it.
        write(
            world.at("app/escrow.yaml"),
            "validate: ['test ! -e ~/.npm/_cacache/new']\n",
        );
        cli.trust();
        cli.ok(inside("run --new --commit", "echo z > z"));
    }
}

#[test]
fn the_configuration_says_whose_the_caches_are() {
    as_user_too();
    let (world, cli) = with_caches();
    let own = world.dir("user-home/.config/escrow");
    write(own.join("escrow.yaml"), "run: {caches: shared}\n");
    cli.ok(inside("run --rollback", DOWNLOAD));
    let other = world.dir("other");
    // Only what its tool compares with a hash.
    let ended = cli.run_in(&other, inside("run --rollback", LOOK));
    assert_eq!(ended.stdout_text(), "changed\nnew\n-\nx\n");
    write(own.join("escrow.yaml"), "run: {caches: none}\n");
    let ended = cli.expect(inside("run --rollback", LOOK), 0);
    assert_eq!(ended.stdout_text(), "real\n-\n-\nx\n");
    // A file in a tree gets no more by it than the user gives.
    write(world.at("app/escrow.yaml"), "run: {caches: shared}\n");
    let ended = cli.expect(inside("run --rollback", LOOK), 0);
    assert_eq!(ended.stdout_text(), "real\n-\n-\nx\n");
    has(&ended.stderr_text(), ["run.caches"]);
    write(own.join("escrow.yaml"), "run: {caches: some}\n");
    cli.fails("status", 2);
}

#[test]
fn one_namespace_has_a_cache_at_a_time() {
    as_user_too();
    let (world, cli) = with_caches();
    cli.plan("try", ".", "overlay");
    let script = format!("echo one > ~/.npm/_cacache/one; {WAIT}");
    let running = Running::ready(cli.command(in_try(&script)));
    let ended = cli.expect(
        inside(
            "run --new --rollback",
            "cat ~/.npm/_cacache/one || echo none; echo two > ~/.npm/_cacache/two",
        ),
        0,
    );
    assert_eq!(ended.stdout_text(), "none\n");
    // One that joins has what is there.
    let joined = cli.expect(in_try("cat ~/.npm/_cacache/one"), 0);
    assert_eq!(joined.stdout_text(), "one\n");
    cli.ok("gc --older-than 0s");
    assert_eq!(running.finish().status, 0);
    assert_eq!(stored(&world), "npm/upper/one ");
}

#[test]
fn caches_are_measured_and_collected() {
    as_user_too();
    let (world, cli) = with_caches();
    assert!(!cli.ok("status --disk").contains("cache"));
    cli.ok(inside("run --rollback", DOWNLOAD));
    has(&cli.ok("status --disk"), ["2 caches of tools: "]);
    let caches = &json(&cli, "status --disk")["caches"];
    assert_eq!(caches["count"], value!(2), "{caches}");
    assert!(caches["bytes"].as_u64() > Some(0), "{caches}");
    assert_eq!(json(&cli, "status")["caches"], Value::Null);
    // They stay for thirty days after they were used.
    cli.ok("gc");
    assert_eq!(
        stored(&world),
        "npm/upper/new npm/upper/real pip/upper/http pip/upper/http/wheel "
    );
    sh(world.home(), "touch -d '31 days ago' caches/*/npm/lock");
    has(&cli.ok("gc"), ["removed cache"]);
    assert_eq!(stored(&world), "pip/upper/http pip/upper/http/wheel ");
    cli.ok("gc --older-than 0s");
    assert_eq!(stored(&world), "");
    assert!(
        !world.home().join("caches").exists() || sh(world.home().join("caches"), "ls").is_empty()
    );
    cli.ok(inside("run --rollback", "cat ~/.npm/_cacache/real"));
}
