//! What a command says leads on: to a project, to a checkpoint, back out of a shell, to the other plan.

use crate::*;

#[test]
fn a_run_in_the_home_directory_says_where_to_go() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user");
    world.dir("user/project");
    let at_home = cli.clone().env("HOME", &home).cwd(&home);
    let said = at_home.fails("run -- true", 125);
    has(
        &said,
        [
            "is no project",
            "home directory",
            "go into a project",
            "escrow run -C PROJECT",
        ],
    );
    let said = cli.clone().cwd("/").fails("run -- true", 125);
    has(&said, ["'/' is no project", "go into a project"]);
    at_home.ok("run -C project -- true");
    // A path that was typed is refused as such.
    has(
        &at_home.fails("run --resource . -- true", 125),
        ["cannot be a resource"],
    );
}

#[test]
fn resources_without_a_name_are_listed_while_a_plan_is_open() {
    as_user_too();
    let (world, cli) = world();
    cli.ok([
        "resource",
        "add",
        "named",
        "--at",
        "app/src",
        "--type",
        "fs-directory",
    ]);
    for name in ["one", "two", "three"] {
        let here = cli.clone().cwd(world.dir(name));
        here.ok("run --commit -- touch new");
    }
    assert_eq!(
        column(&json(&cli, "resource list")["resources"], "name"),
        ["named"]
    );
    let here = cli.clone().cwd(world.at("one"));
    here.ok("run -- touch newer");
    assert_eq!(
        column(&json(&cli, "resource list")["resources"], "name"),
        ["named", "one"]
    );
    has(&cli.ok("resource list"), ["named", "one"]);
}

#[test]
fn status_and_the_list_of_plans_say_the_same() {
    as_user_too();
    let (world, cli) = world();
    let here = cli.clone().cwd(world.at("app"));
    for (plan, end) in [
        ("a", "commit a"),
        ("b", "rollback b"),
        ("c", "cleanup c"),
        ("d", "diff d"),
    ] {
        here.ok(format!("plan create {plan} --resource ."));
        put(&here, &format!("{plan} . {plan}"), "new\n");
        here.ok(end);
    }
    here.ok("run --rollback --new -- touch e");
    let (status, list) = (here.ok("status"), here.expect("plan list", 0));
    for (plan, state) in [
        ("a", "committed, can be undone"),
        ("app", "rolled back, can be undone"),
    ] {
        has(&status, [&format!("plan {plan}  {state}")[..]]);
        let line = list.stdout_text();
        let line = line
            .lines()
            .find(|line| line.starts_with(&format!("{plan} ")));
        has(line.expect("it is listed"), [state]);
    }
    lacks(&status, ["plan c"]);
    lacks(&list.stdout_text(), ["\nc "]);
    has(
        &list.stderr_text(),
        ["1 plan that was cleaned up", "`escrow plan list -v`"],
    );
    has(&here.ok("plan list -v"), ["\nc ", "cleaned up"]);
    // What has no undo any more is said so by both.
    here.ok("gc --older-than 0s");
    lacks(&here.ok("status"), ["can be undone"]);
    lacks(&here.ok("plan list -v"), ["can be undone"]);
}

#[test]
fn a_restore_without_a_checkpoint_lists_them() {
    as_user_too();
    let (_world, cli) = planned_app("auto");
    has(
        &cli.expect("restore", 0).stderr_text(),
        ["the plan try has no checkpoints"],
    );
    let said = cli.expect("checkpoint create try -m first", 0);
    has(&said.stderr_text(), ["`escrow restore try first` returns"]);
    put(&cli, "try app a.txt", "new\n");
    cli.ok(["checkpoint", "create", "try", "-m", "the second"]);
    for line in ["restore", "restore try"] {
        let said = cli.expect(line, 0);
        has(&said.stdout_text(), ["first", "the second"]);
        has(
            &said.stderr_text(),
            ["`escrow restore try 'the second'` returns"],
        );
    }
    assert_eq!(cli.ok("read try app a.txt"), "new\n");
    cli.ok("restore try first");
    assert_eq!(cli.ok("read try app a.txt"), "one\ntwo\nthree\n");
    // A label that several have is not what to type.
    let said = cli
        .expect("checkpoint create try -m first", 0)
        .stderr_text();
    has(&said, ["`escrow restore try chk_"]);
}

#[test]
fn two_plans_are_compared() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        write(world.at("app/left"), "left\n");
        write(world.at("app/right"), "right\n");
        cli.plan("one", "./app", strategy);
        put(&cli, "one app same", "same\n");
        put(&cli, "one app a.txt", "one\n");
        cli.ok("plan fork one two");
        put(&cli, "one app both", "first\n");
        put(&cli, "two app both", "other\n");
        put(&cli, "two app a.txt", "one\nmore\n");
        put(&cli, "one app only/one", "1\n");
        put(&cli, "two app only/two", "2\n");
        cli.ok("rollback two --only same");
        let listed = cli.ok("diff one --against two --name-status");
        assert_eq!(
            listed, "M\ta.txt\nM\tboth\nA\tonly/one\nD\tonly/two\nA\tsame\n",
            "{strategy}"
        );
        let patch = cli.ok("diff one --against two --patch");
        has(&patch, ["-other\n+first", "-more", "+same", "-2", "+1"]);
        lacks(&patch, ["three", "left"]);
        let patch = cli.ok("diff two both --against one --patch");
        has(&patch, ["-first\n+other"]);
        has(
            &cli.ok("diff one --against two"),
            ["added     same", "modified  both"],
        );
        let document = json(&cli, "diff one --against two");
        assert_eq!(document["digest"], Value::Null);
        assert_eq!(
            column(&document["resources"][0]["changes"], "path").len(),
            5
        );
        assert_eq!(cli.ok("diff one --against one --name-status"), "");
        cli.fails("diff one --against nobody", 1);
    }
}

#[test]
fn rows_of_two_plans_are_compared() {
    let (world, cli) = world();
    let at = world.at("shop.db");
    sh(
        world.path(),
        "python3 - <<'E'\nimport sqlite3\nc = sqlite3.connect('shop.db')\nc.executescript(\"CREATE TABLE t (id INTEGER PRIMARY KEY, a, b); INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)\")\nE",
    );
    assert!(at.exists());
    for (plan, statements) in [
        (
            "one",
            [
                "UPDATE t SET a = 10 WHERE id = 1",
                "DELETE FROM t WHERE id = 2",
            ],
        ),
        (
            "two",
            [
                "UPDATE t SET b = 20 WHERE id = 1",
                "INSERT INTO t VALUES (4, 4, 4)",
            ],
        ),
    ] {
        cli.ok(format!("plan create {plan} --resource shop.db"));
        for statement in statements {
            cli.ok(["sql", plan, "shop.db", statement]);
        }
    }
    let document = json(&cli, "diff one --against two");
    let rows: Vec<_> = list(&document["resources"][0]["changes"])
        .iter()
        .map(|row| {
            (
                row["kind"].clone(),
                row["before"].clone(),
                row["after"].clone(),
            )
        })
        .collect();
    assert_eq!(rows.len(), 3, "{document}");
    assert_eq!(rows[0].1, value!({"a": 1, "b": 20}));
    assert_eq!(rows[0].2, value!({"a": 10, "b": 1}));
    assert_eq!([&rows[1].0, &rows[2].0], ["deleted", "deleted"]);
}

#[test]
fn a_shell_says_that_it_is_inside() {
    as_user_too();
    let (world, cli) = planned_app("auto");
    for shell in ["/bin/bash", "/bin/dash"] {
        let terminal = Terminal::new(24, 200);
        let at = cli
            .clone()
            .env("SHELL", shell)
            .env("TERM", "xterm")
            .cwd(world.at("app"));
        let mut child = terminal.start(at.command("shell --plan try"));
        terminal.expect("(escrow try) ");
        terminal.talk(
            "echo in''side; echo \"<$ESCROW_SHELL_RC>\"\n",
            &["inside", "<>", "(escrow try) "],
        );
        if shell.ends_with("bash") {
            has(&terminal.text(), ["\x1b]0;escrow try\x07"]);
        }
        terminal.send("exit 3\n");
        assert_eq!(
            child.wait().expect("it ends").code(),
            Some(3),
            "{shell}: {}",
            terminal.text()
        );
    }
    // What is piped into a shell is read by it alone.
    let piped = cli
        .clone()
        .env("SHELL", "/bin/bash")
        .stdin("echo $0 $PS1\n");
    let said = piped.expect("shell --plan try", 0);
    assert_eq!(said.stdout_text(), "/bin/bash\n");
}

#[test]
fn a_checkout_whose_git_directory_went_says_what_to_type() {
    as_user_too();
    let (world, cli) = world();
    let app = world.at("app");
    sh(
        &app,
        "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first",
    );
    let here = cli.clone().cwd(&app);
    here.ok("plan create try --resource .");
    put(&here, "try . a.txt", "new\n");
    fs::rename(app.join(".git"), world.at("git")).expect("it can be moved");
    for (line, status) in [("diff", 1), ("commit", 1), ("run -- true", 125)] {
        let said = here.fails(line, status);
        has(
            &said,
            [
                "/app/.git' is gone",
                "put the original back",
                "`escrow cleanup try`",
            ],
        );
        lacks(&said, ["alternate object path"]);
    }
    fs::rename(world.at("git"), app.join(".git")).expect("it can be moved");
    here.ok("commit try");
    assert_eq!(read(app.join("a.txt")), "new\n");
    // Inside, a command can only try.
    here.expect(
        inside("run", "echo more >> a.txt; rm -rf .git 2>/dev/null; true"),
        0,
    );
    let said = here.fails("commit", 1);
    has(
        &said,
        [
            "cannot commit this history",
            "`escrow diff app --patch`",
            "`escrow rollback app`",
        ],
    );
    let patch = here.ok("diff app --patch a.txt");
    has(&patch, ["+more"]);
    here.ok("rollback app");
}
