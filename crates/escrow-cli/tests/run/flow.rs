//! Which plan and which resources a command gets that names neither, and what it answers to programs.

use crate::*;

/// The names of the plans that are open.
#[track_caller]
fn open(cli: &Cli) -> String {
    let status = json(cli, "status");
    let names = list(&status["plans"])
        .iter()
        .map(|plan| plan["name"].as_str());
    names
        .map(|name| name.expect("a name"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_command_goes_on_in_the_open_plan_of_its_directory() {
    as_user_too();
    let (world, cli) = world();
    cli.ok(inside("run", "echo new > b.txt"));
    let second = cli.expect("run -- cat b.txt", 0);
    assert_eq!(second.stdout_text(), "new\n");
    has(&second.stderr_text(), ["in the open plan app", "--new"]);
    // Also from below, and without `--`.
    assert_eq!(
        cli.run_in(world.at("app/src"), "run cat ../b.txt")
            .stdout_text(),
        "new\n"
    );
    assert_eq!(open(&cli), "app");
    // A plan of its own sees nothing of it, and ends by itself.
    cli.fails("run --new -- cat b.txt", 1);
    cli.ok("run --new --rollback -- touch c.txt");
    cli.ok("gc --older-than 0s");
    cli.fails("run --strategy overlay -- cat b.txt", 1);
    assert_eq!(open(&cli), "app");
    // What was there before is not discarded with what the command did.
    let refused = cli.expect("run --rollback -- true", 2).stderr_text();
    has(
        &refused,
        ["the open plan app holds changes", "--new", "--plan app"],
    );
    cli.ok(inside("run --plan app --commit", "echo more > c.txt"));
    assert_eq!(open(&cli), "");
    assert!(world.at("app/b.txt").exists() && world.at("app/c.txt").exists());
    cli.ok("cleanup app");
    assert_clean(&world);
}

#[test]
fn a_command_below_the_top_of_a_project_gets_the_project() {
    as_user_too();
    let (world, cli) = world();
    let top = world.at("app");
    for (mark, here) in [
        ("package.json", "src"),
        (".hg/store", "src/deep"),
        ("escrow.yaml", "src"),
    ] {
        sh(
            &top,
            &format!("mkdir -p src/deep $(dirname {mark}); touch {mark}"),
        );
        let ended = cli.run_in(
            top.join(here),
            inside("run", "pwd; touch /new; touch $OLDPWD/../x ../x"),
        );
        assert!(
            ended.stdout_text().ends_with(&format!("/app/{here}\n")),
            "{mark}: {}",
            ended.stdout_text()
        );
        has(
            &ended.stderr_text(),
            ["in the new plan app of", "app: 1 added"],
        );
        cli.ok("rollback app");
        cli.ok("cleanup app");
        sh(
            &top,
            &format!("rm -r {}", mark.split('/').next().expect("a name")),
        );
    }
    // A package lies in a checkout; the home directory and what is above it are no project.
    sh(
        &top,
        "mkdir .jj; touch src/Cargo.toml; touch ../package.json; mkdir -p ../user-home; touch ../user-home/package.json; mkdir ../user-home/x",
    );
    has(
        &cli.run_in(top.join("src"), "run -- touch x").stderr_text(),
        ["of ", "/app\n"],
    );
    let home = cli
        .run_in(world.at("user-home/x"), "run -- touch y")
        .stderr_text();
    has(&home, ["x: 1 added"]);
    lacks(&home, ["in the new plan"]);
}

#[test]
fn a_command_gets_the_resources_that_the_project_declares() {
    as_user_too();
    let (world, cli) = world();
    world.dir("data");
    world.dir("other");
    let text = "resources:\n  code: {at: src}\n  data: {at: ../data}\n";
    sh(world.at("app"), &format!("printf '{text}' > escrow.yaml"));
    let script = "touch src/new ../data/new; touch new";
    // What leads out of its directory counts after the file is trusted.
    let ended = cli.expect(inside("run", script), 1).stderr_text();
    has(
        &ended,
        [
            "'data' of the configuration is left out",
            "escrow trust",
            "code: 1 added",
        ],
    );
    cli.trust();
    let ended = cli.expect(inside("run --new", script), 1).stderr_text();
    has(&ended, ["code: 1 added", "data: 1 added", "Read-only"]);
    cli.ok([
        "resource",
        "add",
        "other",
        "--at",
        world.at("other").to_str().expect("UTF-8"),
    ]);
    let ended = cli.run("run --all -- touch ../other/new").stderr_text();
    has(
        &ended,
        ["code: no changes", "data: no changes", "other: 1 added"],
    );
}

#[test]
fn a_program_gets_one_document_and_the_command_keeps_its_streams() {
    as_user_too();
    let (world, cli) = world();
    let script = "echo out; echo err >&2; echo x > b.txt; touch ~/cache; exit";
    let ended = cli.expect(inside("--json run", &format!("{script} 7")), 7);
    has(&ended.stderr_text(), ["out\n", "err\n"]);
    let answer: Value = serde_json::from_str(&ended.stdout_text()).expect("one document");
    assert_eq!(
        keys(&answer),
        "agents changes conflicts denied exit_status hidden not_passed outcome plan plan_id scratch"
    );
    let change = &answer["changes"][0];
    let found = [&answer["plan"], &answer["exit_status"], &answer["outcome"]];
    assert_eq!(
        found,
        [
            &serde_json::json!("app"),
            &serde_json::json!(7),
            &serde_json::json!("kept")
        ]
    );
    assert_eq!(
        [&change["resource"], &change["path"], &change["kind"]],
        ["app", "b.txt", "added"]
    );
    assert_eq!(answer["scratch"][0]["path"], "cache");
    assert_eq!(answer["denied"], value!([]));
    let line = format!("--json run --new --rollback -e E={}", binary().display());
    let ended = cli.run(inside(&line, "$E commit"));
    let answer: Value = serde_json::from_str(&ended.stdout_text()).expect("one document");
    let denied = &answer["denied"][0];
    assert_eq!(
        [&denied["target"], &denied["principal"]],
        ["commit", "agent"]
    );
    // The report is the same document, and the streams are left alone.
    let report = world.at("app/../report.json");
    let line = "run --new --commit --report ../report.json";
    let ended = cli.expect(inside(line, "echo out; echo other > b.txt"), 0);
    assert_eq!(ended.stdout_text(), "out\n");
    let answer: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("a document");
    assert_eq!(
        [&answer["exit_status"], &answer["outcome"]],
        [&serde_json::json!(0), &serde_json::json!("committed")]
    );
    // A commit that fails tells both what the command did and why.
    let refused = cli.expect(
        "--json run --plan app --commit --report ../report.json -- true",
        125,
    );
    let refused: Value = serde_json::from_str(&refused.stdout_text()).expect("one document");
    assert_eq!(
        [
            &refused["plan"],
            &refused["exit_status"],
            &refused["committed"]
        ],
        [
            &serde_json::json!("app"),
            &serde_json::json!(0),
            &serde_json::json!(false)
        ]
    );
    assert_eq!(
        [&refused["error"]["kind"], &refused["conflicts"][0]["path"]],
        ["conflict", "b.txt"]
    );
    let written: Value =
        serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("a document");
    assert_eq!(written, refused);
    cli.fails("run --report /no/such/report -- touch never", 2);
    // What fails before the command begins is in the report too, and a report that cannot be written hides nothing.
    let none = cli.expect(
        "--json run --plan none --report ../report.json -- true",
        125,
    );
    let written = std::fs::read_to_string(&report).expect("a report");
    assert_eq!(written, none.stdout_text());
    has(&written, ["no plan 'none'"]);
    let full = cli.expect(inside("run --new --report /dev/full", "exit 7"), 7);
    has(&full.stderr_text(), ["cannot write the report '/dev/full'"]);
    let full = cli.fails("run --plan none --report /dev/full -- true", 125);
    has(
        &full,
        ["no plan 'none'", "cannot write the report '/dev/full'"],
    );
    has(
        &cli.fails("run --new --report /dev/full -- true", 125),
        ["cannot write the report '/dev/full'"],
    );
}

#[test]
fn a_command_begins_where_it_is_told_and_a_shell_is_a_command() {
    as_user_too();
    let (world, cli) = world();
    let away = cli.clone().cwd(world.dir("away"));
    let said = away.ok(inside("run -C ../app -e WORD=here", "pwd; echo $WORD"));
    assert!(said.ends_with("/app\nhere\n"), "{said}");
    has(
        &away.fails("run -C ../none -- true", 2),
        ["cannot go to the directory '../none'"],
    );
    let shell = cli
        .clone()
        .env("SHELL", "/bin/sh")
        .stdin("pwd; touch by-shell\n");
    let ended = shell.expect("shell", 0);
    assert!(ended.stdout_text().ends_with("/app\n"));
    has(&ended.stderr_text(), ["app: 1 added"]);
}

#[test]
fn a_diff_of_paths_shows_what_changed_there() {
    as_user_too();
    let (world, cli) = world();
    cli.ok(inside(
        "run",
        "echo x > a.txt; echo y > src/new; mkdir src/deep; echo z > src/deep/z; rm link",
    ));
    cli.says(
        "diff --name-only",
        "a.txt\nlink\nsrc/deep\nsrc/deep/z\nsrc/new\n",
    );
    cli.says("diff app src/deep --name-only", "src/deep\nsrc/deep/z\n");
    cli.says("diff --name-only link ./src/new", "link\nsrc/new\n");
    let below = cli.run_in(world.at("app/src"), "diff --name-only deep ../a.txt");
    assert_eq!(below.stdout_text(), "a.txt\nsrc/deep\nsrc/deep/z\n");
    has(&below.stderr_text(), ["plan app"]);
    has(&cli.ok("diff --patch a.txt"), ["a/a.txt"]);
    lacks(&cli.ok("diff --patch a.txt"), ["src/new"]);
    cli.says("diff --name-only src/main.rs", "");
    has(&cli.fails("diff tpyo", 1), ["no plan 'tpyo'"]);
    // A path is not the plan whose name begins so; an id that is wrong is not taken for a path.
    std::fs::create_dir(world.at("app/ap")).expect("there is room");
    cli.says("diff --name-only ap", "");
    has(
        &cli.fails("diff plan_01nothing", 1),
        ["no plan 'plan_01nothing'"],
    );
    // The digest is that of everything.
    assert!(json(&cli, "diff app src")["digest"].is_null());
}

/// A server inside writes on and on: what it has is released as of one point in time, it goes on, and what was released is no
/// conflict the next time.
// rule C15
#[test]
fn what_a_running_command_has_is_released_again_and_again() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        cli.plan("try", ".", strategy);
        // Both files get the same number, with a pause in between that others can see.
        let serve = "i=0; while :; do i=$((i+1)); echo $i > n; mv n one; sleep 0.02; echo $i > n; mv n two; done";
        let server = Running::start(cli.command(in_try(serve)));
        let app = world.at("app");
        let number = |name: &str| {
            let text = fs::read_to_string(app.join(name)).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or(0)
        };
        let mut last = 0;
        for round in 0..3 {
            while json(&cli, "diff try")["resources"][0]["changes"] == value!([]) {
                thread::sleep(Duration::from_millis(20));
            }
            let told = json(&cli, "commit try --live -m again");
            assert_eq!(told["committed"], true, "{strategy} {round}: {told}");
            let (one, two) = (number("one"), number("two"));
            assert!(one == two || one == two + 1, "{strategy}: {one} {two}");
            assert!(one > last, "{strategy} {round}: {one} {last}");
            last = one;
        }
        // Without it nothing is released while it runs; what another process changes is a conflict as ever.
        has(
            &cli.fails("commit try", 1),
            ["commit try --live", "plan stop try"],
        );
        fs::write(app.join("one"), "mine\n").expect("it can be written");
        while json(&cli, "diff try")["resources"][0]["changes"] == value!([]) {
            thread::sleep(Duration::from_millis(20));
        }
        cli.fails("commit try --live", 4);
        assert_eq!(read(app.join("one")), "mine\n");
        // The plan of each running command is named, and the command can be ended.
        has(&cli.ok("status"), [" in plan try by process"]);
        assert_eq!(json(&cli, "plan stop try")["stopped"], true);
        assert_ne!(server.end().status, 0);
        assert_eq!(json(&cli, "plan stop try")["stopped"], false);
        cli.ok("commit try --on-conflict sandbox");
        assert!(number("one") >= last, "{strategy}");
        cli.ok("undo try");
        assert_eq!(read(app.join("one")), "mine\n", "{strategy}");
        cli.ok("plan delete try");
        assert_clean(&world);
    }
}

/// What a running command deletes and moves in directories that were released meanwhile is deleted and moved: for it, for the
/// next command, in the diff and in the original. What another process adds there stays.
// rule C15
#[test]
fn what_was_released_from_a_running_command_can_be_deleted_and_moved() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy", "git_worktree"] {
        let (world, cli) = world();
        let app = world.at("app");
        if strategy == "git_worktree" {
            let init =
                "git init -q . && git config user.name U && git config user.email u@example.org";
            sh(
                &app,
                &format!("{init} && git add . && git commit -qm first"),
            );
        }
        let auto = "sandbox: { checkpoint: { auto: [before_commit] } }\n";
        fs::write(world.at("escrow.yaml"), auto).expect("it can be written");
        cli.trust();
        cli.plan("try", ".", strategy);
        cli.ok(in_try("mkdir -p new/before; echo 0 > new/before/a"));
        cli.ok("checkpoint create try");
        let make = "mkdir -p new/deep gone; echo a > new/x; echo b > new/deep/y; echo c > gone/c; echo m > new/m; echo d > new/before/d; touch ready";
        let change = "rm new/x gone/c; rm -r new/deep new/before/d; rmdir gone; mv new/m new/z; mkdir new/late; echo e > new/late/e";
        let script = format!("{make}; until [ -e go ]; do sleep 0.02; done; {change}; rm go");
        let server = Running::start(cli.command(in_try(&script)));
        while !cli.ok("diff try --name-only").contains("ready") {
            thread::sleep(Duration::from_millis(20));
        }
        let told = cli.expect("commit try --live", 0).stderr_text();
        has(&told, ["no checkpoint was taken before the commit"]);
        assert_eq!(read(app.join("new/deep/y")), "b\n", "{strategy}");
        fs::write(app.join("new/theirs"), "t\n").expect("it can be written");
        put(&cli, "try app go", "");
        assert_eq!(server.end().status, 0, "{strategy}");
        let found = "find new gone -type f ! -name theirs";
        let left = "new/before/a\nnew/late/e\nnew/z\n";
        let seen = cli.ok(in_try(&format!("{found} | sort")));
        assert_eq!(seen, left, "{strategy}");
        let told = cli.ok("diff try --name-status");
        has(
            &told,
            ["D\tnew/x", "D\tnew/deep/y", "D\tgone", "D\tnew/before/d"],
        );
        lacks(&told, ["theirs"]);
        cli.ok("commit try");
        for gone in ["new/x", "new/deep", "new/m", "new/before/d", "gone"] {
            assert!(!app.join(gone).exists(), "{strategy}: {gone}");
        }
        for there in ["new/theirs", "new/z", "new/late/e", "new/before/a"] {
            assert!(app.join(there).exists(), "{strategy}: {there}");
        }
        cli.ok("undo try");
        assert_eq!(read(app.join("new/deep/y")), "b\n", "{strategy}");
    }
}

#[test]
fn a_plan_gets_another_name_and_a_directory_sees_its_own_plans() {
    as_user_too();
    let (world, cli) = world();
    cli.plan("try", ".", "overlay");
    put(&cli, "try app b.txt", "new\n");
    cli.ok("plan create other --resource .");
    has(
        &cli.fails("plan rename try other", 4),
        ["'other'", "already"],
    );
    cli.fails("plan rename try a/b", 2);
    assert_eq!(json(&cli, "plan rename try better")["name"], "better");
    has(&cli.fails("diff try", 1), ["no plan 'try'"]);
    let away = cli.clone().cwd(world.dir("away"));
    away.ok("plan create far --resource .");
    let near = cli.expect("status", 0);
    has(&near.stdout_text(), ["plan better", "plan other"]);
    lacks(&near.stdout_text(), ["plan far"]);
    has(
        &near.stderr_text(),
        ["1 open plan elsewhere", "status --all"],
    );
    let far = away.expect("status", 0);
    has(&far.stdout_text(), ["plan far"]);
    lacks(&far.stdout_text(), ["plan better"]);
    has(&away.ok("status --all"), ["plan far", "plan better"]);
    let plans = json(&away, "status")["plans"].clone();
    assert_eq!(plans[0]["name"], "far");
    assert_eq!(
        (&plans[0]["here"], &plans[1]["here"]),
        (&value!(true), &value!(false))
    );
    cli.ok("commit better");
    assert_eq!(read(world.at("app/b.txt")), "new\n");
    cli.ok("plan delete other");
}

/// `escrow diff --scratch` was to be typed of a plan that had gone with the command.
#[test]
fn what_a_run_tells_to_type_can_be_typed() {
    as_user_too();
    let (_world, cli) = world();
    let cli = cli.env("SOME_TOKEN", "precious");
    for line in ["run", "run --rollback", "run --commit"] {
        let said = cli
            .expect(inside(line, "echo x > ~/cache"), 0)
            .stderr_text();
        has(&said, ["in the home directory, never committed: 1 added"]);
        lacks(&said, ["diff --scratch"]);
    }
    assert_eq!(open(&cli), "");
    let script = "echo x > ~/cache; echo y > b.txt";
    let said = cli.expect(inside("run", script), 0).stderr_text();
    has(
        &said,
        ["`escrow diff --scratch app", "not passed: ", "SOME_TOKEN"],
    );
    let listed = cli.ok("diff --scratch --name-status");
    has(&listed, ["cache"]);
    // What a command does not get is said once a plan, and stands in each document.
    let said = cli.expect(inside("run", script), 0).stderr_text();
    lacks(&said, ["not passed"]);
    let document = json(&cli, "run -- true");
    has(&document["not_passed"].to_string(), ["SOME_TOKEN"]);
}
