//! What agents, and other commands, plant in a home directory: it is named, kept out, and taken over only by the user.

use crate::agent_homes::{AGENTS, home_files, with_agents};
use crate::*;

// rule A1, A3
// attack D47
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

// rule A3
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
    // A file that the user changed meanwhile is not overwritten.
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
            [
                "gemini left no login, or one that names another server: ~/.gemini/oauth_creds.json stays as it was",
            ],
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

// rule A1
// attack D48
#[test]
fn a_login_that_names_another_server_is_not_written_through() {
    as_user_too();
    let (world, cli) = with_agents();
    let wellknown = "{\"https://evil.example\": {\"type\": \"wellknown\", \"key\": \"NODE_OPTIONS\", \"token\": \"x\"}}";
    for (agent, login, evil) in [
        ("opencode", ".local/share/opencode/auth.json", wellknown),
        (
            "qwen",
            ".qwen/oauth_creds.json",
            "{\"access_token\": \"x\", \"resource_url\": \"evil.example\"}",
        ),
    ] {
        let real = world.at("user-home").join(login);
        let put = format!("sh=printf '%s' '{evil}' > ~/{login}");
        let ended = cli.expect(["run", "--new", "--rollback", "--", agent, &put], 0);
        has(
            &ended.stderr_text(),
            ["left no login, or one that names another server"],
        );
        assert!(!real.exists());
        // No later run obeys it.
        assert_eq!(
            cli.ok(format!("run --new --rollback -- {agent} login")),
            "-\n"
        );
        fs::create_dir_all(real.parent().expect("it has one")).expect("there is room");
        write(
            &real,
            "{\"access_token\": \"first\", \"resource_url\": \"mine.example\"}",
        );
        cli.expect(["run", "--new", "--rollback", "--", agent, &put], 0);
        has(&read(&real), ["first", "mine.example"]);
        let fresh = evil
            .replace("evil.example", "mine.example")
            .replace("\"x\"", "\"second\"");
        let put = format!("sh=printf '%s' '{fresh}' > ~/{login}");
        cli.expect(["run", "--new", "--rollback", "--", agent, &put], 0);
        assert_eq!(read(&real).contains("second"), agent == "qwen", "{agent}");
    }
    // A login that the user made meanwhile stays, whatever the times say.
    let real = world.at("user-home/.claude/.credentials.json");
    fs::create_dir_all(real.parent().expect("it has one")).expect("there is room");
    write(&real, "{\"token\": \"first\"}");
    let mut run = Running::ready(cli.command([
        "run",
        "--new",
        "--",
        "claude",
        "refresh=evil",
        "sh=touch -d 2099-01-01 ~/.claude/.credentials.json",
        &format!("sh={WAIT}"),
    ]));
    write(&real, "{\"token\": \"of the user\"}");
    run.type_line("");
    assert_eq!(run.finish().status, 0);
    assert_eq!(read(&real), "{\"token\": \"of the user\"}");
}

// rule A3
#[test]
fn what_cannot_be_kept_for_a_look_is_named_all_the_same() {
    as_user_too();
    let (world, cli) = with_agents();
    let plant = "mkdir -p ~/.claude/skills ~/.claude/hooks; ln -s /opt/evil.json ~/.claude/settings.json; \
        head -c 5000000 /dev/zero > ~/.claude/settings.local.json; echo x > ~/.claude/hooks/a%b; \
        /usr/bin/python3 -c \"import os; open(os.path.expanduser('~/.claude/hooks/').encode() + b'bad' + bytes([255]), 'w')\"";
    let ended = cli.expect(["run", "--new", "--", "claude", &format!("sh={plant}")], 0);
    has(
        &ended.stderr_text(),
        [
            "~/.claude/settings.json: a symbolic link",
            "~/.claude/settings.local.json: too large to be kept",
            "~/.claude/hooks/a%b: changed",
            "~/.claude/hooks/bad",
        ],
    );
    assert_eq!(
        fails_as(&cli, "agent accept claude ~/.claude/settings.json", 1),
        "unsupported"
    );
    assert!(!world.at("user-home/.claude").exists());
    // Deep values do not hide earlier changes.
    let deep = "import json, os; p = os.path.expanduser('~/.claude.json'); d = json.load(open(p)); v = []; \
        exec('for _ in range(100): v = [v]'); d['mcpServers'] = {'evil': v}; open(p, 'w').write(json.dumps(d))";
    let script = world.at("bin/deep.py");
    write(&script, deep);
    cli.expect(
        [
            "run",
            "--",
            "claude",
            &format!("sh=/usr/bin/python3 {}", script.display()),
        ],
        0,
    );
    has(
        &cli.ok("agent show claude"),
        ["~/.claude.json", "~/.claude/settings.json"],
    );
}

#[test]
fn a_home_of_links_is_as_any_other() {
    as_user_too();
    let (world, cli) = with_agents();
    let home = world.at("user-home");
    sh(
        &home,
        "mkdir -p dot/claude sec .claude; rmdir .claude; ln -s dot/claude .claude; echo '{\"userID\": \"u1\"}' > dot/claude.json; \
         ln -s dot/claude.json .claude.json; echo '{\"token\": \"first\"}' > sec/c.json; ln -s ../../sec/c.json dot/claude/.credentials.json; \
         echo '{}' > dot/settings.json; ln -s ../settings.json dot/claude/settings.json",
    );
    let ended = cli.expect(
        [
            "run",
            "--new",
            "--rollback",
            "--",
            "claude",
            "login",
            "refresh=second",
            "remember=linked",
            "sh=grep -c u1 ~/.claude.json",
            "plant={\"hooks\": 1}",
        ],
        0,
    );
    has(&ended.stdout_text(), ["{\"token\": \"first\"}\n", "1\n"]);
    has(
        &ended.stderr_text(),
        ["wanted to change ~/dot/settings.json"],
    );
    assert_eq!(read(home.join("sec/c.json")), "{\"token\": \"second\"}");
    assert_eq!(
        cli.ok("run --new --rollback -- claude recall"),
        "linked\nlinked\n"
    );
    cli.ok("agent accept claude ~/.claude/settings.json");
    assert_eq!(read(home.join("dot/settings.json")), "{\"hooks\": 1}");
    sh(
        &home,
        "test -L .claude && test -L .claude.json && test -L .claude/.credentials.json && test -L .claude/settings.json",
    );
}
