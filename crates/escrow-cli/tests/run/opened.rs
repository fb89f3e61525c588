//! `escrow open` and `escrow mount`: a sandbox of any strategy as a directory, for programs that nothing confines.

use rustix::process::Signal;

use crate::*;

/// A world with a plan of each strategy in turn, beside an empty directory `look`.
fn planned(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    world.dir("look");
    let cli = cli.cwd(world.path());
    cli.plan("try", "./app", strategy);
    (world, cli)
}

fn mount(script: &str) -> Vec<OsString> {
    inside("mount --plan try look", script)
}

#[test]
fn a_program_finds_a_sandbox_of_any_strategy_at_a_directory_and_is_not_confined() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let before = signature(&world.at("app"));
        let script = "cat look/a.txt; echo three >> look/a.txt; rm look/link; echo new > look/src/n; \
            test \"$PWD\" = \"$(pwd -P)\"; cat app/a.txt; echo real > outside; exit 7";
        let outcome = cli.run(mount(script));
        let said = outcome.stderr_text();
        assert_eq!(outcome.stdout_text(), "one\ntwo\none\ntwo\n", "{said}");
        assert_eq!(outcome.status, 7);
        has(
            &said,
            ["app: 1 added, 1 modified, 1 deleted", "escrow diff try"],
        );
        unchanged(&before, world.at("app"));
        assert_eq!(
            fs::read_dir(world.at("look")).expect("it is there").count(),
            0
        );
        assert_eq!(read(world.at("outside")), "real\n");
        assert_quiet(&world);
        let found = cli.ok("diff try --name-status");
        assert_eq!(found, "M\ta.txt\nD\tlink\nA\tsrc/n\n", "{strategy}");
        let document = json(&cli, "mount --plan try look --json -- echo words");
        assert_eq!(
            (&document["exit_status"], &document["plan"]),
            (&0.into(), &"try".into())
        );
        assert_eq!(list(&document["changes"]).len(), 3);
        cli.ok("commit try");
        assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    }
}

/// The history that an editor shows, and writes, is the private one.
#[test]
fn git_works_where_a_checkout_is_mounted_and_leaves_the_repository_alone() {
    as_user_too();
    let (world, cli) = world();
    world.dir("look");
    let app = world.at("app");
    sh(
        &app,
        "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm one",
    );
    let cli = cli.cwd(world.path());
    cli.plan("try", "./app", "git_worktree");
    let before = signature(&app.join(".git/refs"));
    let script = "cd look; test -z \"$(git status --porcelain)\"; echo x > a.txt; \
        git -c user.name=a -c user.email=a@b commit -qam two; git log --format=%s";
    assert_eq!(cli.ok(mount(script)), "two\none\n");
    unchanged(&before, app.join(".git/refs"));
    cli.ok("commit try");
    sh(&app, "test \"$(git log --format=%s | head -n 1)\" = two");
}

#[test]
fn a_sandbox_that_is_open_is_in_use_until_its_program_ends_however_that_is() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let open = Running::ready(cli.command(mount(&format!("echo x > look/x; {WAIT}"))));
    // Where nothing confines, a command that is to be confined has no place; and the other way round.
    has(
        &cli.fails("run --plan try -- true", 125),
        ["nothing confines it"],
    );
    has(
        &cli.fails("mount --plan try look -- true", 125),
        ["runs inside"],
    );
    has(&cli.fails("commit try", 1), ["runs inside"]);
    let refused = cli.clone().stdin("y").fails("write try app y", 1);
    has(&refused, ["runs inside"]);
    assert_eq!(cli.ok("diff try --name-status"), "A\tx\n");
    open.signal(Signal::KILL);
    drop(open);
    assert_soon_quiet(&world);
    let inside = Running::ready(cli.command(in_try(WAIT)));
    has(
        &cli.fails("mount --plan try look -- true", 125),
        ["runs inside"],
    );
    assert_eq!(inside.finish().status, 0);
    cli.ok(mount("test -e look/x; rm look/x"));
    assert_eq!(cli.ok("diff try --name-status"), "");
}

#[test]
fn an_editor_is_opened_on_the_path_of_the_sandbox() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let editor = "f() { echo edited > \"$1/a.txt\"; echo \"$1\"; }; f";
        let shown = cli.clone().env("EDITOR", editor).ok("open try");
        let shown = Path::new(shown.trim_end());
        match strategy {
            "overlay" => assert!(!shown.exists(), "{shown:?}"),
            _ => assert_eq!(read(shown.join("a.txt")), "edited\n"),
        }
        assert_eq!(cli.ok("diff try --name-status"), "M\ta.txt\n");
        assert_eq!(read(world.at("app/a.txt")), "one\ntwo\n");
        let quiet = cli.clone().env("VISUAL", "exit 3;").env("EDITOR", "false");
        quiet.fails("open try app", 3);
        assert_quiet(&world);
    }
    // One file is opened itself.
    let (_world, cli) = world();
    cli.ok("resource add one --type fs-file --at a.txt");
    cli.ok("plan create file --resource one");
    cli.clone()
        .env("EDITOR", "sed -i s/one/three/")
        .ok("open file");
    assert_eq!(cli.ok("read file one a.txt"), "three\ntwo\n");
}

#[test]
fn what_cannot_be_mounted_is_refused_with_the_reason() {
    let (world, cli) = planned("overlay");
    has(
        &cli.fails("mount --plan try app -- true", 125),
        ["is not empty"],
    );
    has(&cli.fails("mount --plan try none -- true", 125), ["none"]);
    sh(
        world.path(),
        "sqlite3 db 'create table t (a integer primary key)'; echo f > f",
    );
    cli.ok("resource add db --type sqlite --at db");
    cli.ok("resource add f --type fs-file --at f");
    cli.ok("plan create many --resource db --resource f");
    has(
        &cli.fails("mount --plan many look -- true", 2),
        ["name the one"],
    );
    let refused = |name: &str| cli.fails(format!("mount --plan many -r {name} look -- true"), 125);
    has(&refused("db"), ["it is a database", "escrow path"]);
    has(&refused("f"), ["it is one file", "escrow path"]);
    cli.fails("mount --plan try look -- not-a-program", 127);
    // Who may not do anything may not do this: nothing would confine it.
    let agent = "policy:\n  mode: enforce\n  rules:\n    - { allow: [run, diff], principal: 'agent*', scope: '*' }\n";
    write(world.at("escrow.yaml"), agent);
    cli.trust();
    let denied = cli.fails("mount --plan try --principal agent look -- true", 125);
    has(&denied, ["admin"]);
}
