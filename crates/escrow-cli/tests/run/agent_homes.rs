//! Coding agents in a run: what they keep is there the next time, their logins are refreshed outside, and nothing that they plant
//! leaves the run. Stand-ins read and write the files of the real agents, each in its way.

use rustix::process::Signal;

use crate::*;

const STAND_IN: &str = include_str!("stand_in.py");

/// Every agent that is known, and whether it has a login in a file.
pub(crate) const AGENTS: [(&str, Option<&str>); 10] = [
    ("claude", Some(".claude/.credentials.json")),
    ("codex", Some(".codex/auth.json")),
    ("gemini", Some(".gemini/oauth_creds.json")),
    ("opencode", Some(".local/share/opencode/auth.json")),
    ("aider", None),
    ("copilot", Some(".copilot/auth.json")),
    ("goose", None),
    ("qwen", Some(".qwen/oauth_creds.json")),
    ("cline", Some(".cline/data/secrets.json")),
    ("crush", None),
];

/// A world in which every agent is installed.
pub(crate) fn with_agents() -> (World, Cli) {
    let (world, cli) = world();
    world.dir("user-home");
    let bin = world.dir("bin");
    for (name, _) in AGENTS {
        write(bin.join(name), STAND_IN);
    }
    sh(&bin, "chmod +x *");
    let path = std::env::var("PATH").expect("there is one");
    let cli = cli.env("PATH", format!("{}:{path}", bin.display()));
    (world, cli)
}

/// Every file of the home directory and its content, in one text.
pub(crate) fn home_files(world: &World) -> String {
    sh(
        world.at("user-home"),
        "find . -type f -not -name '*.db*' | sort | while read -r f; do echo \"== $f\"; cat \"$f\"; echo; done",
    )
}

// rule A1
#[test]
fn sessions_stay_and_logins_are_refreshed_for_every_agent() {
    as_user_too();
    let (world, cli) = with_agents();
    for (name, login) in AGENTS {
        if let Some(login) = login {
            let login = world.at("user-home").join(login);
            fs::create_dir_all(login.parent().expect("it has one")).expect("there is room");
            write(&login, "{\"token\": \"first\"}");
        }
        let first = format!("run --new --rollback -- {name} remember=walrus login refresh=second");
        let ended = cli.expect(first.as_str(), 0);
        let expected = if login.is_some() {
            "{\"token\": \"first\"}\n"
        } else {
            "-\n"
        };
        assert_eq!(ended.stdout_text(), expected, "{name}");
        // In another plan of another project.
        let other = world.dir("other");
        let again = format!("run --new --rollback -- {name} recall login");
        let ended = cli.run_in(&other, again.as_str());
        assert_eq!(ended.status, 0, "{name}: {}", ended.stderr_text());
        let said = ended.stdout_text();
        assert!(said.contains("walrus"), "{name}: {said}");
        if let Some(login) = login {
            assert!(
                said.ends_with("{\"token\": \"second\"}\n"),
                "{name}: {said}"
            );
            let real = world.at("user-home").join(login);
            assert_eq!(read(&real), "{\"token\": \"second\"}", "{name}");
        }
    }
    // Nothing else of it is outside.
    lacks(&home_files(&world), ["walrus"]);
    assert_clean(&world);
}

#[test]
fn sessions_of_before_are_taken_over_once() {
    as_user_too();
    let (world, cli) = with_agents();
    sh(
        world.at("user-home"),
        "mkdir -p .claude/projects/p .codex/sessions/2026; echo yesterday > .claude/projects/p/s.jsonl; echo older > .claude/history.jsonl; \
         echo before > .codex/sessions/2026/s.jsonl; sqlite3 .codex/state_5.sqlite \"pragma journal_mode=wal; create table t (w); \
         insert into t values ('from-the-database')\" > log",
    );
    let said = cli.ok("run --new --rollback -- claude recall remember=today");
    assert_eq!(said, "yesterday\nolder\n");
    let said = cli.ok("run --new --rollback -- claude recall");
    assert_eq!(said, "yesterday\ntoday\nolder\ntoday\n");
    assert_eq!(
        read(world.at("user-home/.claude/projects/p/s.jsonl")),
        "yesterday\n"
    );
    let said = cli.ok("run --new --rollback -- codex recall");
    assert_eq!(said, "before\nfrom-the-database\n");
    // A home of its own begins empty, and ends with the plan.
    let said = cli.ok("run --new --rollback --agent-home fresh -- claude recall remember=nowhere");
    assert_eq!(said, "-\n-\n");
    let dir = world.dir("kept-home");
    let line = format!(
        "run --new --rollback --agent-home {} -- claude",
        dir.display()
    );
    cli.ok(format!("{line} remember=elsewhere"));
    assert_eq!(cli.ok(format!("{line} recall")), "elsewhere\nelsewhere\n");
    let said = cli.ok("run --new --rollback -- claude recall");
    assert_eq!(said, "yesterday\ntoday\nolder\ntoday\n");
}

// rule A1
#[test]
fn two_runs_share_a_home_and_a_login() {
    as_user_too();
    let (world, cli) = with_agents();
    for (name, login) in [
        ("claude", ".claude/.credentials.json"),
        ("codex", ".codex/auth.json"),
    ] {
        let login = world.at("user-home").join(login);
        fs::create_dir_all(login.parent().expect("it has one")).expect("there is room");
        write(&login, "{\"token\": \"first\"}");
        let mut first = Running::ready(cli.command([
            "run",
            "--new",
            "--",
            name,
            "remember=one",
            &format!("sh={WAIT}"),
            "login",
        ]));
        let other = world.dir("other");
        let ended = cli.run_in(
            &other,
            format!("run --new --rollback -- {name} recall refresh=second").as_str(),
        );
        assert_eq!(ended.status, 0, "{}", ended.stderr_text());
        has(&ended.stdout_text(), ["one"]);
        // The first one sees what the second one refreshed, and does not undo it.
        first.type_line("");
        assert_eq!(first.line(), "{\"token\": \"second\"}");
        assert_eq!(first.finish().status, 0);
        assert_eq!(read(&login), "{\"token\": \"second\"}", "{name}");
    }
}

// rule A1
#[test]
fn a_run_that_is_killed_loses_no_session_and_no_login() {
    as_user_too();
    let (world, cli) = with_agents();
    let real = world.at("user-home/.codex/auth.json");
    fs::create_dir_all(real.parent().expect("it has one")).expect("there is room");
    write(&real, "{\"token\": \"first\"}");
    let words = [
        "run",
        "--new",
        "--",
        "codex",
        "remember=kept",
        "refresh=second",
        &format!("sh={WAIT}"),
    ];
    let mut run = Running::ready(cli.command(words));
    run.signal(Signal::KILL);
    run.gone();
    assert_soon_quiet(&world);
    assert_eq!(read(&real), "{\"token\": \"first\"}");
    // The next run of the agent brings it out.
    let next = cli.expect("run --new --rollback -- codex recall login", 0);
    has(&next.stdout_text(), ["kept", "second"]);
    has(
        &next.stderr_text(),
        ["~/.codex/auth.json has the login of an earlier run now"],
    );
    assert_eq!(read(&real), "{\"token\": \"second\"}");
    // Other ends: interrupted twice, the terminal closed.
    for signals in [&[Signal::INT, Signal::INT][..], &[Signal::HUP]] {
        let words = [
            "run",
            "--new",
            "--",
            "codex",
            "remember=more",
            &format!("sh={WAIT}"),
        ];
        let mut run = Running::ready(cli.command(words));
        signals.iter().for_each(|signal| run.signal(*signal));
        run.gone();
        assert_soon_quiet(&world);
    }
    let said = cli.ok("run --new --rollback -- codex recall");
    assert_eq!(said.matches("more").count(), 4, "{said}");
    // What stands in the layer of the plan that was killed goes with it, and is taken over before.
    let words = [
        "run",
        "--new",
        "--",
        "claude",
        "refresh=third",
        &format!("sh={WAIT}"),
    ];
    let mut run = Running::ready(cli.command(words));
    run.signal(Signal::KILL);
    run.gone();
    assert_soon_quiet(&world);
    for plan in list(&json(&cli, "plan list")["plans"]) {
        cli.ok(format!(
            "cleanup {} --yes",
            plan["name"].as_str().expect("a name")
        ));
    }
    assert_eq!(
        read(world.at("user-home/.claude/.credentials.json")),
        "{\"token\": \"third\"}"
    );
}

// rule A1
// attack D49
#[test]
fn what_a_command_makes_of_an_agent_home_stops_no_later_run() {
    as_user_too();
    let (world, cli) = with_agents();
    let real = world.at("user-home/.codex/auth.json");
    fs::create_dir_all(real.parent().expect("it has one")).expect("there is room");
    write(&real, "{\"token\": \"first\"}");
    write(world.at("user-home/.claude.json"), "{\"userID\": \"u1\"}");
    for spoil in [
        "cd /dev/agents/codex; for f in $(ls -A); do rm -rf $f; mkdir $f; touch $f/x; done; mkdir .codex%history.jsonl",
        "cd /dev/agents/codex; for f in $(ls -A); do rm -rf $f; mkfifo $f; done",
        "cd /dev/agents/codex; for f in $(ls -A); do rm -rf $f; ln -s /etc/passwd $f; done",
        "cd /dev/agents/codex; for f in $(ls -A | grep -v sqlite); do rm -rf $f; head -c 2000000 /dev/zero > $f; done",
        "cd ~/.codex/sessions; mkdir -p a/b; ln -s / a/root; mkfifo a/pipe; chmod 0 a/b a; rm -rf ~/.codex/auth.json; mkdir ~/.codex/auth.json",
        "rm -rf ~/.codex/history.jsonl; mkdir -p ~/.codex/history.jsonl/x; rm ~/.claude.json; mkdir ~/.claude.json",
    ] {
        let spoil = format!("sh={spoil}");
        for agent in ["codex", "claude"] {
            let spoil = spoil.replace("codex", agent);
            cli.run(["run", "--new", "--rollback", "--", agent, &spoil]);
            let ended = cli.expect(
                format!("run --new --rollback -- {agent} remember=again recall"),
                0,
            );
            has(&ended.stdout_text(), ["again"]);
            lacks(&ended.stderr_text(), ["cannot be used"]);
        }
        assert_eq!(
            cli.ok("run --new --rollback -- codex login"),
            "{\"token\": \"first\"}\n"
        );
        assert_eq!(read(&real), "{\"token\": \"first\"}");
        assert_eq!(
            read(world.at("user-home/.claude.json")),
            "{\"userID\": \"u1\"}"
        );
    }
    cli.ok("gc");
    cli.ok("uninstall --purge --yes");
}

#[test]
fn a_database_moves_with_its_log_or_not_at_all() {
    as_user_too();
    let (world, cli) = with_agents();
    cli.ok("run --new --rollback -- codex remember=walrus");
    let replace = "import os, sqlite3; p = os.path.expanduser('~/.codex/state_5.sqlite'); os.unlink(p); d = sqlite3.connect(p); \
        d.execute('pragma journal_mode=wal'); d.execute('create table t (w)'); d.execute('insert into t values (1)'); d.commit(); os._exit(0)";
    let script = world.at("bin/replace.py");
    write(&script, replace);
    cli.expect(
        [
            "run",
            "--new",
            "--rollback",
            "--",
            "codex",
            &format!("sh=/usr/bin/python3 {}", script.display()),
        ],
        0,
    );
    assert_eq!(
        cli.ok("run --new --rollback -- codex recall"),
        "walrus\nwalrus\n"
    );
}

#[test]
fn a_plan_whose_commands_spoiled_the_home_goes_on_without_sessions() {
    as_user_too();
    let (world, cli) = with_agents();
    for spoil in [
        "ln -s /usr ~/.claude",
        "touch ~/.claude",
        "mkdir ~/.claude; ln -s .. ~/.claude/projects",
        "mkdir -p ~/.claude/.credentials.json",
    ] {
        write(world.at("app/new"), spoil);
        cli.ok(inside(
            "run --new",
            &format!("rm -rf ~/.claude; {spoil}; echo 1 > new"),
        ));
        cli.expect("run -- claude words", 0);
        cli.ok("rollback");
    }
}

#[test]
fn an_agent_home_of_ones_own_is_a_directory_for_that() {
    as_user_too();
    let (world, cli) = with_agents();
    let taken = world.dir("taken");
    write(taken.join("taxes"), "mine\n");
    let user_home = world.at("user-home");
    for dir in [
        &taken,
        &user_home,
        &world.at("app"),
        &world.home().to_path_buf(),
        &taken.join("taxes"),
    ] {
        let line = format!("run --new --agent-home {} -- claude words", dir.display());
        assert_ne!(cli.run(line.as_str()).status, 0, "{}", dir.display());
    }
    assert_eq!(names(&taken), ["taxes"]);
    // A program of the project gets no login by its name.
    sh(world.at("app"), "cp ../bin/claude claude");
    assert_eq!(
        cli.ok("run --new --rollback -- ./claude env=IS_SANDBOX"),
        "unset\n"
    );
    assert_eq!(
        cli.ok("run --new --rollback --agent claude -- ./claude env=IS_SANDBOX"),
        "1\n"
    );
}

#[test]
fn odd_homes_stop_no_run() {
    as_user_too();
    let (world, cli) = with_agents();
    let home = world.at("user-home");
    for odd in [
        "rm -rf .claude; touch .claude",
        "rm -rf .claude; mkdir .claude; touch .claude/projects; mkdir .claude/history.jsonl",
        "rm -rf .claude*; echo '[]' > .claude.json; mkdir -p .claude/.credentials.json",
        "rm -rf .claude*; mkdir dotfiles; ln -s dotfiles .claude; ln -s dotfiles/c.json .claude.json; echo '{}' > dotfiles/c.json",
    ] {
        sh(&home, odd);
        let before = sh(&home, "find . | sort; cat .claude.json 2>/dev/null || :");
        cli.expect("run --new --rollback -- claude words", 0);
        let after = sh(&home, "find . | sort; cat .claude.json 2>/dev/null || :");
        assert_eq!(after, before, "{odd}");
    }
    // Through links of the home directory everything is kept all the same.
    cli.ok("run --new --rollback -- claude remember=through");
    assert_eq!(
        cli.ok("run --new --rollback -- claude recall"),
        "through\nthrough\n"
    );
}

// attack D50
#[test]
fn an_agent_is_recognized_however_it_is_started() {
    as_user_too();
    let (world, cli) = with_agents();
    let script = world.at("bin/my-agent");
    write(&script, "#!/bin/sh\nexec claude \"$@\"\n");
    // A script in the project could name any agent.
    write(world.at("app/mine"), "#!/bin/sh\nexec claude \"$@\"\n");
    sh(world.at("app"), "chmod +x mine ../bin/my-agent");
    let set = |line: &str| {
        let said = cli.ok(format!("run --new --rollback {line}"));
        said.trim().to_owned()
    };
    for line in [
        "-- claude env=IS_SANDBOX",
        "-- env -u FOO claude env=IS_SANDBOX",
        "-- nice -n 1 timeout 60 claude env=IS_SANDBOX",
        "-- my-agent env=IS_SANDBOX",
        "--agent claude -- ./mine env=IS_SANDBOX",
    ] {
        assert_eq!(set(line), "1", "{line}");
    }
    let shell = cli.ok([
        "run",
        "--new",
        "--rollback",
        "--",
        "sh",
        "-c",
        "cd . && claude env=IS_SANDBOX",
    ]);
    assert_eq!(shell, "1\n");
    for line in [
        "-- ./mine env=IS_SANDBOX",
        "--agent none -- claude env=IS_SANDBOX",
        "--agent codex -- claude env=IS_SANDBOX",
    ] {
        assert_eq!(set(line), "unset", "{line}");
    }
    assert_eq!(fails_as(&cli, "run --agent clade -- true", 125), "usage");
}

#[test]
fn an_agent_does_not_ask_and_gets_its_variables() {
    as_user_too();
    let (world, cli) = with_agents();
    let cli = cli
        .env("ANTHROPIC_API_KEY", "k1")
        .env("MY_PROVIDER", "k2")
        .env("OTHER_TOKEN", "k3");
    sh(
        world.at("user-home"),
        "mkdir .codex; printf '[model_providers.x]\\nenv_key = \"MY_PROVIDER\"\\n' > .codex/config.toml",
    );
    let said = cli.ok("run --new --rollback -- claude words env=ANTHROPIC_API_KEY env=OTHER_TOKEN");
    has(
        &said,
        ["--dangerously-skip-permissions --settings", "k1\nunset\n"],
    );
    let said = cli.ok("run --new --rollback -- codex env=MY_PROVIDER env=ANTHROPIC_API_KEY");
    assert_eq!(said, "k2\nunset\n");
    let said =
        cli.ok("run --new --rollback -- opencode env=ANTHROPIC_API_KEY env=OPENCODE_PERMISSION");
    assert_eq!(said, "k1\n{\"*\":\"allow\"}\n");
    // What the user says goes before what the preset says.
    let said = cli.ok("run --new --rollback -e IS_SANDBOX=0 -- claude --permission-mode plan words env=IS_SANDBOX");
    assert_eq!(said, "--permission-mode plan words env=IS_SANDBOX\n0\n");
    let config = world.dir("user-home/.config/escrow");
    write(
        config.join("escrow.yaml"),
        "agents:\n  claude:\n    flags: []\n    variables: [OTHER_TOKEN]\n  mine:\n    programs: [goose2]\n    state: [.mine/]\n",
    );
    let said = cli.ok("run --new --rollback -- claude words env=OTHER_TOKEN env=IS_SANDBOX");
    assert_eq!(said, "words env=OTHER_TOKEN env=IS_SANDBOX\nk3\n1\n");
    write(
        world.at("bin/goose2"),
        "#!/bin/sh\nmkdir -p ~/.mine; echo x >> ~/.mine/s; cat ~/.mine/s\n",
    );
    sh(world.at("bin"), "chmod +x goose2");
    assert_eq!(cli.ok("run --new --rollback -- goose2"), "x\n");
    assert_eq!(cli.ok("run --new --rollback -- goose2"), "x\nx\n");
}

#[test]
fn a_file_of_a_tree_says_nothing_of_agents() {
    as_user_too();
    let (world, cli) = with_agents();
    write(
        world.at("app/escrow.yaml"),
        "agents: {claude: {variables: [OTHER_TOKEN]}}\n",
    );
    let cli = cli.env("OTHER_TOKEN", "k3");
    let line = "run --new --rollback -- claude env=OTHER_TOKEN";
    assert_eq!(cli.ok(line), "unset\n");
    cli.trust();
    assert_eq!(cli.ok(line), "unset\n");
    // A file that the user names counts.
    let named = world.at("mine.yaml");
    write(
        &named,
        "agents: {claude: {variables: [OTHER_TOKEN], flags: []}}\n",
    );
    let line = format!(
        "--config {} run --new --rollback -- claude words env=OTHER_TOKEN",
        named.display()
    );
    assert_eq!(cli.ok(line), "words env=OTHER_TOKEN\nk3\n");
    for bad in [
        "{x/y: {}}",
        "{x: {state: [../up]}}",
        "{x: {state: [/etc]}}",
        "{x: {hosts: ['a b']}}",
        "{none: {}}",
    ] {
        write(&named, format!("agents: {bad}\n"));
        let line = format!("--config {} plan list", named.display());
        assert_eq!(fails_as(&cli, &line, 2), "usage", "{bad}");
    }
}

#[test]
fn the_network_of_a_preset_is_its_hosts() {
    as_user_too();
    let (_world, cli) = with_agents();
    let said = cli.ok("run --new --rollback --network preset -- claude env=https_proxy");
    has(&said, ["http://"]);
    assert_eq!(
        fails_as(&cli, "run --new --network preset -- true", 125),
        "usage"
    );
    let document = json(&cli, "agent show claude");
    has(
        &document["preset"]["hosts"].to_string(),
        ["api.anthropic.com"],
    );
}

#[test]
fn agents_are_listed_and_measured_and_their_homes_go_when_they_are_not_used() {
    as_user_too();
    let (world, cli) = with_agents();
    cli.ok("run --new --rollback -- claude remember=here");
    let all = json(&cli, "agent list");
    assert_eq!(list(&all["agents"]).len(), AGENTS.len());
    let claude = list(&all["agents"])
        .iter()
        .find(|one| one["name"] == "claude")
        .expect("it is listed");
    assert_eq!(claude["installed"], true);
    assert!(claude["home_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    let disk = json(&cli, "status --disk");
    assert_eq!(disk["agents"][0]["name"], "claude");
    has(&cli.ok("status --disk"), ["sessions of claude: "]);
    for line in ["gc", "gc --older-than 0s", "gc --max-size 0"] {
        cli.ok(line);
        assert_eq!(
            cli.ok("run --new --rollback -- claude recall"),
            "here\nhere\n",
            "{line}"
        );
    }
    sh(world.home(), "touch -d '-100 days' agents/claude/used");
    cli.ok("gc");
    assert_eq!(cli.ok("run --new --rollback -- claude recall"), "-\n-\n");
    assert_eq!(fails_as(&cli, "agent show nobody", 1), "not_found");
    cli.ok("uninstall --purge --yes");
    sh(world.home(), "test ! -e agents && test ! -e state.db");
}

#[test]
fn a_moved_directory_of_an_agent_is_found() {
    as_user_too();
    let (world, cli) = with_agents();
    let moved = world.dir("user-home/.config/claude");
    write(moved.join(".claude.json"), "{\"userID\": \"u1\"}");
    let cli = cli.env("CLAUDE_CONFIG_DIR", moved.display().to_string());
    let write_there = "sh=mkdir -p $CLAUDE_CONFIG_DIR/projects/p; echo there >> $CLAUDE_CONFIG_DIR/projects/p/s; \
        grep -c u1 $CLAUDE_CONFIG_DIR/.claude.json; cat $CLAUDE_CONFIG_DIR/projects/p/s; echo x > $CLAUDE_CONFIG_DIR/settings.json";
    let first = cli.expect(
        ["run", "--new", "--rollback", "--", "claude", write_there],
        0,
    );
    assert_eq!(first.stdout_text(), "1\nthere\n");
    has(
        &first.stderr_text(),
        ["wanted to change ~/.config/claude/settings.json: added"],
    );
    let again = cli.ok(["run", "--new", "--rollback", "--", "claude", write_there]);
    assert_eq!(again, "1\nthere\nthere\n");
}

#[test]
fn many_variables_are_counted_once() {
    as_user_too();
    let (_world, mut cli) = with_agents();
    for number in 0..9 {
        cli = cli.env(format!("SECRET_TOKEN_{number}"), "x");
    }
    let first = cli.expect("run --new -- touch a", 0).stderr_text();
    let said = first
        .lines()
        .find(|line| line.contains("not passed"))
        .expect("it is said");
    has(said, [" variables (`-v` names them; pass with `-e NAME`"]);
    lacks(&first, ["SECRET_TOKEN_3"]);
    lacks(
        &cli.expect("run -- touch b", 0).stderr_text(),
        ["not passed"],
    );
    has(
        &cli.expect("run -v -- touch c", 0).stderr_text(),
        ["SECRET_TOKEN_3"],
    );
}
