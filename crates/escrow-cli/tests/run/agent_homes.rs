//! Coding agents in a run: what they keep is there the next time, their logins are refreshed outside, and nothing that they plant
//! leaves the run. Stand-ins read and write the files of the real agents, each in its way.

use crate::*;

const STAND_IN: &str = include_str!("stand_in.py");

/// Every agent that is known, and whether it has a login in a file.
const AGENTS: [(&str, Option<&str>); 10] = [
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
fn with_agents() -> (World, Cli) {
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

/// Every file of the home directory with what is in it, in one text.
fn home_files(world: &World) -> String {
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

// rule A1, A3
#[test]
fn what_is_planted_is_named_and_kept_out() {
    as_user_too();
    let (world, cli) = with_agents();
    let before = home_files(&world);
    for (name, _) in AGENTS {
        let run = format!("run --new --rollback -- {name} plant={{\"evil\":1}}");
        let ended = cli.expect(run.as_str(), 0);
        has(
            &ended.stderr_text(),
            [
                &format!("attention {name} wanted to change ~/."),
                "; kept out",
                &format!("`escrow agent diff {name}`"),
            ],
        );
        let shown = cli.ok(format!("agent diff {name}"));
        has(&shown, ["+{\"evil\":1}"]);
    }
    assert_eq!(home_files(&world), before);
    // The next run of the agent, elsewhere, does not see it.
    let said = cli.ok([
        "run",
        "--new",
        "--rollback",
        "--",
        "claude",
        "sh=ls -A ~/.claude",
    ]);
    lacks(&said, ["settings.json"]);
}

// rule A1, A3
#[test]
fn what_is_planted_by_any_command_is_named() {
    as_user_too();
    let (world, cli) = with_agents();
    write(world.at("user-home/.bashrc"), "# mine\n");
    let plant = "echo 'alias ls=evil' >> ~/.bashrc; mkdir -p ~/.codex ~/.config/autostart; echo x > ~/.codex/hooks.json; \
        echo x > ~/.config/autostart/x.desktop; echo 'export X=1' > .envrc; mkdir .claude; echo '{}' > .claude/settings.json; \
        echo obey > AGENTS.md";
    let ended = cli.expect(inside("run --new", plant), 0);
    let said = ended.stderr_text();
    has(
        &said,
        [
            "attention ~/.bashrc is kept out: a shell",
            "attention ~/.codex/hooks.json is kept out: a coding agent runs or obeys it",
            "attention ~/.config/autostart/x.desktop is kept out",
            ".envrc",
            ".claude/settings.json",
            "AGENTS.md",
        ],
    );
    assert_eq!(read(world.at("user-home/.bashrc")), "# mine\n");
    let shown = cli.ok("commit --dry-run");
    has(&shown, ["a coding agent runs or obeys it", "AGENTS.md"]);
}

#[test]
fn what_an_agent_wanted_can_be_taken_over_or_forgotten() {
    as_user_too();
    let (world, cli) = with_agents();
    let real = world.at("user-home/.claude/settings.json");
    sh(
        world.at("user-home"),
        "mkdir .claude; echo '{\"theme\": \"dark\"}' > .claude/settings.json; chmod 640 .claude/settings.json",
    );
    let plant = "mkdir -p ~/.claude/skills/a; echo skill > ~/.claude/skills/a/SKILL.md; echo tool > ~/.claude/skills/a/tool; \
        echo '{\"theme\": \"dark\", \"hooks\": {\"SessionStart\": [1]}}' > ~/.claude/settings.json";
    let ended = cli.expect(
        [
            "run",
            "--new",
            "--rollback",
            "--json",
            "--",
            "claude",
            &format!("sh={plant}"),
        ],
        0,
    );
    let document: Value = serde_json::from_slice(&ended.stdout).expect("one document");
    let wanted = &document["agents"][0]["wanted"];
    assert_eq!(wanted[0]["path"], "~/.claude/settings.json");
    assert_eq!(wanted[0]["summary"], "+1 hook SessionStart");
    assert_eq!(list(wanted).len(), 3);
    let all = json(&cli, "agent diff claude");
    assert_eq!(keys(&all["changes"][0]), "diff path plan summary");
    // A directory is taken over with everything in it.
    cli.ok("agent accept claude ~/.claude/skills/a");
    assert_eq!(
        read(world.at("user-home/.claude/skills/a/SKILL.md")),
        "skill\n"
    );
    assert_eq!(read(world.at("user-home/.claude/skills/a/tool")), "tool\n");
    // One that the user changed meanwhile is not overwritten.
    write(&real, "{\"theme\": \"light\"}");
    assert_eq!(
        fails_as(&cli, "agent accept claude ~/.claude/settings.json", 4),
        "conflict"
    );
    assert_eq!(read(&real), "{\"theme\": \"light\"}");
    cli.ok("agent accept claude ~/.claude/settings.json --drop");
    assert_eq!(
        fails_as(&cli, "agent accept claude ~/.claude/settings.json", 1),
        "not_found"
    );
    assert_eq!(list(&json(&cli, "agent diff claude")["changes"]).len(), 0);
    // An agent itself takes nothing over.
    let denied = cli.run("--principal agent --json agent accept claude x");
    assert_ne!(denied.status, 0);
}

#[test]
fn a_file_that_is_state_and_configuration_goes_by_key() {
    as_user_too();
    let (world, cli) = with_agents();
    let real = world.at("user-home/.claude.json");
    write(
        &real,
        "{\"userID\": \"u1\", \"mcpServers\": {\"mine\": {}}}",
    );
    let change = "import json, os; p = os.path.expanduser('~/.claude.json'); d = json.load(open(p)); \
        print(sorted(d), d['projects'][os.getcwd()]); d['userID'] = 'u2'; d['odd'] = 7; d['mcpServers']['evil'] = {'command': 'x'}; \
        open(p + '.tmp', 'w').write(json.dumps(d)); os.rename(p + '.tmp', p)";
    let script = world.at("bin/change.py");
    write(&script, change);
    let run = format!("sh=/usr/bin/python3 {}", script.display());
    let ended = cli.expect(["run", "--new", "--rollback", "--", "claude", &run], 0);
    has(
        &ended.stdout_text(),
        ["hasCompletedOnboarding", "'hasTrustDialogAccepted': True"],
    );
    has(
        &ended.stderr_text(),
        ["wanted to change ~/.claude.json: MCP server evil; kept out"],
    );
    let now: Value = serde_json::from_str(&read(&real)).expect("it is JSON");
    assert_eq!(
        now,
        serde_json::json!({"userID": "u2", "mcpServers": {"mine": {}}})
    );
    // What is unknown is there the next time; what executes is not.
    let ended = cli.expect(
        [
            "run",
            "--new",
            "--rollback",
            "--",
            "claude",
            "sh=cat ~/.claude.json",
        ],
        0,
    );
    has(&ended.stdout_text(), ["\"odd\": 7", "\"mine\""]);
    lacks(&ended.stdout_text(), ["evil"]);
    cli.ok("agent accept claude ~/.claude.json");
    let now: Value = serde_json::from_str(&read(&real)).expect("it is JSON");
    assert_eq!(
        now["mcpServers"],
        serde_json::json!({"mine": {}, "evil": {"command": "x"}})
    );
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

#[test]
fn a_login_that_does_not_parse_leaves_the_real_one() {
    as_user_too();
    let (world, cli) = with_agents();
    let real = world.at("user-home/.gemini/oauth_creds.json");
    fs::create_dir_all(real.parent().expect("it has one")).expect("there is room");
    write(&real, "{\"token\": \"first\"}");
    for broken in ["", "{", "[]", "7"] {
        let broken = format!("sh=printf '%s' '{broken}' > ~/.gemini/oauth_creds.json");
        let ended = cli.expect(["run", "--new", "--rollback", "--", "gemini", &broken], 0);
        has(
            &ended.stderr_text(),
            ["gemini left no login that parses: ~/.gemini/oauth_creds.json stays as it was"],
        );
        assert_eq!(read(&real), "{\"token\": \"first\"}");
    }
    let odd = "sh=rm ~/.gemini/oauth_creds.json; mkfifo ~/.gemini/oauth_creds.json";
    cli.expect(["run", "--new", "--rollback", "--", "gemini", odd], 0);
    assert_eq!(
        cli.ok("run --new --rollback -- gemini login"),
        "{\"token\": \"first\"}\n"
    );
    // A logout outside is one inside.
    fs::remove_file(&real).expect("it is there");
    assert_eq!(cli.ok("run --new --rollback -- gemini login"), "-\n");
    // A login that is made inside is there outside.
    cli.ok("run --new --rollback -- claude refresh=made");
    assert_eq!(
        read(world.at("user-home/.claude/.credentials.json")),
        "{\"token\": \"made\"}"
    );
    sh(
        world.at("user-home"),
        "test $(stat -c %a .claude/.credentials.json) = 600",
    );
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
    run.signal(rustix::process::Signal::KILL);
    run.gone();
    assert_soon_quiet(&world);
    assert_eq!(read(&real), "{\"token\": \"first\"}");
    // The next run of the agent brings it out.
    let said = cli.ok("run --new --rollback -- codex recall login");
    has(&said, ["kept", "second"]);
    assert_eq!(read(&real), "{\"token\": \"second\"}");
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
    run.signal(rustix::process::Signal::KILL);
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

#[test]
fn an_agent_is_recognized_however_it_is_started() {
    as_user_too();
    let (world, cli) = with_agents();
    let script = world.at("bin/my-agent");
    write(&script, "#!/bin/sh\nexec claude \"$@\"\n");
    // One that lies in the project could name any agent.
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
fn what_programs_execute_is_not_made_writable_by_one_word() {
    as_user_too();
    let (world, cli) = with_agents();
    sh(
        world.at("user-home"),
        "mkdir -p .claude/skills .ssh .config/systemd/user .codex notes; touch .bashrc .gitconfig .claude/settings.json .claude.json",
    );
    let home = world.at("user-home").display().to_string();
    for path in [
        ".claude",
        ".claude/skills",
        ".claude/settings.json",
        ".claude.json",
        ".codex",
        ".bashrc",
        ".ssh",
        ".gitconfig",
        ".config",
        ".config/systemd/user",
        "",
    ] {
        let at = format!("{home}/{path}");
        let line = format!("run --new --writable {at} -- true");
        assert_eq!(fails_as(&cli, &line, 125), "usage", "{path}");
        let refused = cli.run(line.as_str()).stderr_text();
        has(
            &refused,
            ["cannot be made writable", "`--writable-anyway PATH`"],
        );
    }
    cli.ok(format!(
        "run --new --rollback --writable {home}/notes -- touch {home}/notes/a"
    ));
    let anyway =
        format!("run --new --rollback --writable {home}/.claude --writable-anyway {home}/.claude");
    cli.ok(format!("{anyway} -- touch {home}/.claude/settings.json"));
    cli.ok(format!(
        "run --new --rollback --writable-anyway {home}/.bashrc -- true"
    ));
    assert!(world.at("user-home/.claude/settings.json").exists());
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
