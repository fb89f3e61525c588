//! `escrow hook`: the events of real clients, as they were recorded (`hooks_recorded/`, with other paths), and what becomes of them.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use serde_json::json;

use crate::*;

const CLAUDE: &str = include_str!("hooks_recorded/claude.json");
const CODEX: &str = include_str!("hooks_recorded/codex.json");

/// The plan of the recorded session of each client.
const PLAN: &str = "claude-8c4041a2ac2c";
const CODEX_PLAN: &str = "codex-f4fe7ab89122";

/// An agent that works in `app`.
struct Agent {
    world: World,
    cli: Cli,
    client: &'static str,
}

impl Agent {
    fn new(client: &'static str) -> Self {
        let (world, cli) = world();
        Self { world, cli, client }
    }

    /// A recorded event, as if it had come from here.
    fn recorded(&self, event: &str) -> Value {
        let all = match self.client {
            "claude" => CLAUDE,
            _ => CODEX,
        };
        let app = self.world.at("app").display().to_string();
        let all: Value = serde_json::from_str(&all.replace("/APP", &app)).expect("JSON");
        assert!(all[event].is_object(), "{event} was not recorded");
        all[event].clone()
    }

    /// A recorded tool call with another input.
    fn call(&self, tool: &str, input: Value) -> Value {
        let mut event = self.recorded("Bash");
        event["tool_name"] = json!(tool);
        event["tool_input"] = input;
        event
    }

    fn send(&self, event: impl std::fmt::Display) -> Outcome {
        let cli = self.cli.clone().stdin(event.to_string());
        cli.expect(format!("hook {}", self.client), 0)
    }

    /// The answer that the client reads; null without one.
    fn answer(&self, event: impl std::fmt::Display) -> Value {
        let text = self.send(event).stdout_text();
        match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_str(&text).expect("one JSON document"),
        }
    }

    /// The input that the client uses instead.
    #[track_caller]
    fn updated(&self, event: impl std::fmt::Display) -> Value {
        let answer = self.answer(event);
        let output = &answer["hookSpecificOutput"];
        assert_eq!(output["hookEventName"], "PreToolUse", "{answer}");
        assert_eq!(output["permissionDecision"], "allow", "{answer}");
        output["updatedInput"].clone()
    }

    /// Why a call is denied.
    #[track_caller]
    fn denied(&self, event: impl std::fmt::Display) -> String {
        reason(&self.send(event))
    }

    /// Runs an updated command as the client does: by a shell in its own directory.
    fn shell(&self, input: &Value) -> std::process::Output {
        let line = input["command"].as_str().expect("a command");
        let mut all = self.cli.command("status");
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", line]).env_clear();
        shell.current_dir(self.world.at("app")).stdin(Stdio::null());
        for (name, value) in all.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        all.stdin(Stdio::null());
        shell.output().expect("a shell")
    }

    /// The path of a file in the sandbox of `app`.
    fn shown(&self, plan: &str, path: &str) -> PathBuf {
        let tree = self.cli.ok(format!("path {plan} app -q"));
        let tree = Path::new(tree.trim_end());
        match path {
            "" => tree.to_owned(),
            path => tree.join(path),
        }
    }
}

/// Why an answer denies.
#[track_caller]
fn reason(outcome: &Outcome) -> String {
    let answer: Value = serde_json::from_slice(&outcome.stdout).expect("one JSON document");
    let output = &answer["hookSpecificOutput"];
    assert_eq!(output["hookEventName"], "PreToolUse", "{answer}");
    assert_eq!(output["permissionDecision"], "deny", "{answer}");
    assert!(output["updatedInput"].is_null());
    let why = output["permissionDecisionReason"].as_str();
    why.expect("a reason").to_owned()
}

#[test]
fn a_command_runs_in_the_plan_of_the_session() {
    as_user_too();
    let agent = Agent::new("claude");
    let updated = agent.updated(agent.recorded("Bash"));
    // The other fields are repeated, since the answer replaces all of them.
    assert_eq!(updated["description"], "x");
    let ran = agent.shell(&updated);
    let app = agent.world.at("app").display().to_string();
    let listed = "a.txt\nlink\nsrc\n";
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        format!("{app}\n{listed}")
    );
    let odd = "printf '%s|' \"$0\" 'it'\\''s' \"a\\\"b\" é '$HOME' `echo x`; echo e >&2; echo new > made; exit 7";
    let ran = agent.shell(&agent.updated(agent.call("Bash", json!({"command": odd}))));
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "bash|it's|a\"b|é|$HOME|x|"
    );
    assert_eq!(ran.status.code(), Some(7));
    has(&String::from_utf8_lossy(&ran.stderr), ["e\n"]);
    lacks(&String::from_utf8_lossy(&ran.stderr), ["not passed"]);
    // A script may begin with a dash.
    let ran = agent.shell(&agent.updated(agent.call("Bash", json!({"command": "--help"}))));
    assert_eq!(ran.status.code(), Some(127));
    assert!(!agent.world.at("app/made").exists());
    has(
        &agent.cli.ok(format!("diff {PLAN} --name-status")),
        ["A\tmade"],
    );
    let monitor = agent.updated(agent.recorded("Monitor"));
    assert_eq!(monitor["timeout_ms"], 300_000);
    assert_eq!(agent.shell(&monitor).stdout, b"hi\n");
}

#[test]
fn file_tools_get_the_paths_of_the_sandbox() {
    as_user_too();
    let agent = Agent::new("claude");
    let app = agent.world.at("app");
    let written = agent.updated(agent.recorded("Write"));
    let file = agent.shown(PLAN, "c.txt");
    assert_eq!(
        written,
        json!({"file_path": file, "content": "from-write\n"})
    );
    write(&file, "from-write\n");
    let edited = agent.updated(agent.recorded("Edit"));
    assert_eq!(edited["file_path"], json!(agent.shown(PLAN, "a.txt")));
    assert_eq!(edited["replace_all"], false);
    let same = |tool: &str, input: Value, field: &str, to: &str| {
        let updated = agent.updated(agent.call(tool, input));
        assert_eq!(
            updated[field],
            json!(agent.shown(PLAN, to)),
            "{tool} {updated}"
        );
    };
    // A command sees what a tool wrote, also by the path that the tool printed.
    let line = format!("cat {} c.txt", file.display());
    let ran = agent.shell(&agent.updated(agent.call("Bash", json!({"command": line}))));
    assert_eq!(ran.stdout, b"from-write\nfrom-write\n");
    same(
        "Read",
        json!({"file_path": "src/../src/main.rs"}),
        "file_path",
        "src/main.rs",
    );
    same(
        "Read",
        json!({"file_path": app.join("link")}),
        "file_path",
        "a.txt",
    );
    same("Read", json!({"file_path": file}), "file_path", "c.txt");
    same(
        "NotebookEdit",
        json!({"notebook_path": app.join("n.ipynb")}),
        "notebook_path",
        "n.ipynb",
    );
    same("SomeNewTool", json!({"path": "new"}), "path", "new");
    let both = agent.call(
        "SomeNewTool",
        json!({"path": "new", "file_path": "/etc/hostname"}),
    );
    agent.denied(both);
    same("Grep", json!({"pattern": "one"}), "path", "");
    same("Glob", json!({"pattern": "**/*.rs"}), "path", "");
    let pattern = format!("{}/src/**/*.rs", app.display());
    same(
        "Glob",
        json!({"pattern": pattern}),
        "pattern",
        "src/**/*.rs",
    );
    assert!(!app.join("c.txt").exists());
    // Elsewhere the client decides about reading, and writing is denied.
    for event in [
        agent.call("Read", json!({"file_path": "/etc/hostname"})),
        agent.call("Glob", json!({"pattern": "/etc/*.conf"})),
        agent.call("mcp__files__write", json!({"path": app.join("a.txt")})),
        agent.call("WebFetch", json!({"url": "https://example.com"})),
        agent.recorded("Agent"),
    ] {
        assert_eq!(agent.answer(&event), Value::Null, "{event}");
    }
    let outside = agent.world.at("outside.txt");
    let why = agent.denied(agent.call("Write", json!({"file_path": outside, "content": ""})));
    has(
        &why,
        [
            "outside.txt",
            "in no resource",
            PLAN,
            "(app)",
            "`escrow sandbox create",
        ],
    );
}

#[test]
fn a_link_does_not_lead_a_file_tool_out_of_the_sandbox() {
    as_user_too();
    let agent = Agent::new("claude");
    agent.send(agent.recorded("SessionStart"));
    write(agent.world.at("secret"), "s");
    let link = |name: &str, to: &Path| symlink(to, agent.shown(PLAN, name)).unwrap();
    link("out", &agent.world.at("secret"));
    link("up", Path::new(".."));
    link("away", &agent.world.at("nothing-yet"));
    link("loop", Path::new("loop"));
    for (path, why) in [
        ("out", "leads out of the sandbox"),
        ("up/secret", "leads out of the sandbox"),
        ("away", "leads out of the sandbox"),
        ("loop/x", "too many links"),
    ] {
        for tool in ["Read", "Write"] {
            has(
                &agent.denied(agent.call(tool, json!({"file_path": path}))),
                [why],
            );
        }
    }
    // An absolute link to the original means the sandbox, as it does inside.
    link("own", &agent.world.at("app/src"));
    let updated = agent.updated(agent.call("Write", json!({"file_path": "own/new"})));
    assert_eq!(updated["file_path"], json!(agent.shown(PLAN, "src/new")));
}

// rule A4
#[test]
fn a_hook_that_fails_denies() {
    as_user_too();
    let agent = Agent::new("claude");
    let without = |field: &str| {
        let mut event = agent.recorded("Bash");
        event.as_object_mut().unwrap().remove(field);
        event
    };
    let with = |field: &str, value: Value| {
        let mut event = agent.recorded("Bash");
        event[field] = value;
        event
    };
    for text in ["", "{", "[]", "{\"tool_input\": 1}", "\u{0}"] {
        agent.denied(text);
    }
    for event in [
        // The home directory of the user lies there.
        with("cwd", json!(agent.world.path())),
        without("hook_event_name"),
        without("tool_name"),
        without("session_id"),
        without("cwd"),
        with("session_id", json!("../..")),
        with("cwd", json!("/nowhere/at/all")),
        with("cwd", json!("app")),
        with("tool_input", json!({"command": "a\u{0}b"})),
        with("tool_input", json!({"command": 7})),
        with("tool_input", json!({"command": []})),
        with("tool_input", json!({})),
        agent.call("PowerShell", json!({"command": "ls"})),
        agent.call("Write", json!({"file_path": ["a.txt"]})),
    ] {
        agent.denied(event);
    }
    // A project's settings can set variables for its hooks: one that says that this is a run proves nothing.
    let event = agent.recorded("Bash").to_string();
    let claimed = agent
        .cli
        .clone()
        .env("ESCROW_SOCKET", agent.world.at("none"));
    has(
        &reason(&claimed.stdin(&event).expect("hook claude", 0)),
        ["ESCROW_SOCKET"],
    );
    write(agent.world.at("state"), "no directory");
    let broken = agent
        .cli
        .clone()
        .env("ESCROW_HOME", agent.world.at("state"));
    reason(&broken.stdin(&event).expect("hook claude", 0));
    let wrong = agent
        .cli
        .clone()
        .env("ESCROW_CONFIG", agent.world.at("none.yaml"));
    reason(&wrong.stdin(&event).expect("hook claude", 0));
    // Nothing ends the input, so nothing but the time limit ends the answer.
    let mut command = agent.cli.command("hook claude --timeout 1s");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut late = command.spawn().unwrap();
    let held = late.stdin.take();
    let late = late.wait_with_output().unwrap();
    drop(held);
    assert_eq!(late.status.code(), Some(2));
    has(
        &String::from_utf8_lossy(&late.stdout),
        ["\"permissionDecision\":\"deny\""],
    );
    has(
        &String::from_utf8_lossy(&late.stderr),
        ["no answer within 1 s"],
    );
    // An agent whose name or option is unknown to this version is denied by the status.
    agent.cli.expect("hook other", 2);
}

// rule A4
#[test]
fn what_the_policy_denies_the_agent_is_denied_to_its_tools() {
    as_user_too();
    let agent = Agent::new("claude");
    write(
        agent.world.at("app/escrow.yaml"),
        "policy:\n  mode: enforce\n  rules:\n  - {allow: [create, read, write, diff, run, checkpoint, restore, cleanup], principal: \"*\", scope: \"*\"}\n  \
         - {deny: [write], principal: \"agent*\", scope: \"app:src/**\"}\n",
    );
    let why = agent.denied(agent.call("Write", json!({"file_path": "src/main.rs"})));
    has(&why, ["write of app:src/main.rs is denied"]);
    agent.updated(agent.call("Read", json!({"file_path": "src/main.rs"})));
    agent.updated(agent.recorded("Write"));
}

#[test]
fn events_of_a_session_fail_without_stopping_the_agent() {
    as_user_too();
    let agent = Agent::new("claude");
    for event in ["SessionStart", "UserPromptSubmit", "Stop", "SessionEnd"] {
        let mut event = agent.recorded(event);
        event["cwd"] = json!("/nowhere/at/all");
        let ended = agent.send(event);
        assert_eq!(ended.stdout_text(), "");
        has(&ended.stderr_text(), ["/nowhere/at/all"]);
    }
    let mut event = agent.recorded("WorktreeCreate");
    event["cwd"] = json!("/nowhere/at/all");
    agent
        .cli
        .clone()
        .stdin(event.to_string())
        .fails("hook claude", 2);
    // A failure of a worktree's creation stops it, one of an unknown event nothing.
    assert_eq!(
        agent.answer(json!({"hook_event_name": "Invented", "cwd": "/"})),
        Value::Null
    );
}

#[test]
fn a_session_has_one_plan_with_a_checkpoint_before_each_prompt() {
    as_user_too();
    let agent = Agent::new("claude");
    let started = agent.answer(agent.recorded("SessionStart"));
    let told = started["hookSpecificOutput"]["additionalContext"].as_str();
    has(told.expect("a context"), [PLAN, "`escrow commit"]);
    let transcript = agent.world.at("transcript.jsonl");
    let prompt = |id: &str, text: &str| {
        let mut event = agent.recorded("UserPromptSubmit");
        event["prompt"] = json!(text);
        event["prompt_id"] = json!(id);
        event["transcript_path"] = json!(transcript);
        assert_eq!(agent.answer(event), Value::Null);
        let all = std::fs::read_to_string(&transcript).unwrap_or_default();
        write(&transcript, format!("{all}{{\"promptId\":\"{id}\"}}\n"));
    };
    let labels = || {
        let all = json(&agent.cli, &format!("checkpoint list {PLAN}"));
        let all = list(&all["checkpoints"]).iter();
        let labels = all.filter_map(|one| one["label"].as_str());
        labels.map(str::to_owned).collect::<Vec<_>>()
    };
    let bash = |script: &str| {
        let input = agent.updated(agent.call("Bash", json!({"command": script})));
        agent.shell(&input)
    };
    // Nothing changed yet, so there is nothing to keep; nor before the third prompt.
    prompt("p1", "first");
    assert!(labels().is_empty());
    bash("echo two > a.txt");
    prompt("p2", "second\nline");
    bash("cat a.txt");
    prompt("p3", "third");
    write(agent.shown(PLAN, "a.txt"), "three\n");
    prompt("p4", "fourth");
    let session = "10129392-446f-4097-a6b9-8c4041a2ac2c";
    let label =
        |text: &str, turn| format!("before_prompt: {text} (session {session}, turn {turn})");
    assert_eq!(labels(), [label("second\\x0aline", 2), label("fourth", 4)]);
    let back = agent
        .cli
        .run(["restore", PLAN, &label("second\\x0aline", 2)]);
    has(
        &back.stderr_text(),
        [&format!("rewind the session {session} to before turn 2")],
    );
    assert_eq!(bash("cat a.txt").stdout, b"two\n");
    // The label alone makes no such checkpoint.
    let label = "before_prompt: x (session y, turn 9)";
    agent.cli.ok(["checkpoint", "create", PLAN, "-m", label]);
    lacks(
        &agent.cli.run(["restore", PLAN, label]).stderr_text(),
        ["rewind"],
    );
    let stop = agent.answer(agent.recorded("Stop"));
    let said = stop["systemMessage"].as_str().expect("a message");
    has(
        said,
        ["app: 1 modified", &format!("`escrow commit {PLAN}`")],
    );
    agent.send(agent.recorded("SessionEnd"));
    agent.cli.ok(format!("commit {PLAN} --yes"));
    // A session that goes on after a commit has another plan.
    bash("echo four > a.txt");
    has(
        &agent.cli.ok(format!("diff {PLAN}-2 --name-status")),
        ["M\ta.txt"],
    );
    // After a rollback it goes on in the plan, which is used again, also where only a file tool writes.
    agent.cli.ok(format!("rollback {PLAN}-2 --yes"));
    let file = agent.updated(agent.recorded("Write"))["file_path"].clone();
    write(file.as_str().unwrap(), "five\n");
    has(
        &agent.cli.ok(format!("diff {PLAN}-2 --name-status")),
        ["A\tc.txt"],
    );
    agent.cli.ok(format!("commit {PLAN}-2 --yes"));
    let app = agent.world.at("app");
    assert_eq!(std::fs::read(app.join("a.txt")).unwrap(), b"two\n");
    assert_eq!(std::fs::read(app.join("c.txt")).unwrap(), b"five\n");
}

#[test]
fn a_session_in_which_nothing_changed_leaves_no_plan() {
    as_user_too();
    let agent = Agent::new("claude");
    agent.send(agent.recorded("SessionStart"));
    agent.shell(&agent.updated(agent.recorded("Bash")));
    agent.send(agent.recorded("SessionEnd"));
    assert_eq!(agent.cli.ok("plan list -q"), "");
    agent.send(agent.recorded("SessionEnd"));
}

#[test]
fn parallel_calls_of_a_session_share_a_plan() {
    as_user_too();
    let agent = Agent::new("claude");
    let event = agent.recorded("Write").to_string();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let calls = (0..6).map(|_| scope.spawn(|| agent.updated(&event)));
        let calls: Vec<_> = calls.collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|one| *one == answers[0]));
    assert_eq!(
        json(&agent.cli, "plan list")["plans"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_worktree_is_a_plan_that_stays_while_it_holds_work() {
    as_user_too();
    let agent = Agent::new("claude");
    let create = |name: &str| {
        let mut event = agent.recorded("WorktreeCreate");
        event["name"] = json!(name);
        let made = agent.send(event);
        has(&made.stderr_text(), ["a copy of all files"]);
        PathBuf::from(made.stdout_text().trim_end())
    };
    let remove = |path: &Path| {
        let mut event = agent.recorded("SessionEnd");
        event["hook_event_name"] = json!("WorktreeRemove");
        event["worktree_path"] = json!(path);
        agent.send(event).stderr_text()
    };
    let path = create("try");
    assert_eq!(path, agent.shown("claude-worktree-try", ""));
    // The session moves there: its commands and tools work in this plan, by its paths or by those of the original.
    let there = |tool: &str, input: Value| {
        let mut event = agent.call(tool, input);
        event["cwd"] = json!(path);
        agent.updated(event)
    };
    let line = format!("pwd; echo new > {}/made", path.display());
    let ran = agent.shell(&there("Bash", json!({"command": line})));
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout).trim_end(),
        agent.world.at("app").display().to_string()
    );
    for named in [path.join("made"), agent.world.at("app/made"), "made".into()] {
        assert_eq!(
            there("Read", json!({"file_path": named}))["file_path"],
            json!(path.join("made"))
        );
    }
    assert_eq!(
        json(&agent.cli, "plan list")["plans"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    has(
        &remove(&path),
        ["claude-worktree-try holds changes and stays"],
    );
    assert_eq!(create("try"), path);
    agent.cli.ok("rollback claude-worktree-try --yes");
    let again = there("Write", json!({"file_path": "again", "content": ""}));
    write(again["file_path"].as_str().unwrap(), "");
    let other = create("other/name");
    assert_eq!(remove(&other), "");
    assert!(!other.exists());
    // A worktree whose remove hook never came.
    let lost = create("lost");
    has(
        &agent.cli.run("gc").stderr_text(),
        ["claude-worktree-lost, which is open"],
    );
    assert!(lost.exists());
    let collected = agent.cli.expect("gc --older-than 0s", 0).stderr_text();
    has(&collected, ["removed the unused plan claude-worktree-lost"]);
    lacks(&collected, ["plan claude-worktree-try of"]);
    assert!(!lost.exists() && path.join("again").exists());
    // A directory whose plan is over is no place to begin a plan.
    agent.cli.ok("cleanup claude-worktree-try --yes");
    std::fs::create_dir_all(&path).unwrap();
    let mut event = agent.recorded("Bash");
    event["cwd"] = json!(path);
    has(&agent.denied(event), ["a sandbox whose plan is over"]);
    std::fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
}

#[test]
fn codex_is_answered_too() {
    as_user_too();
    let agent = Agent::new("codex");
    agent.send(agent.recorded("SessionStart"));
    let ran = agent.shell(&agent.updated(agent.recorded("Bash")));
    let app = agent.world.at("app").display().to_string();
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        format!("{app}\none\ntwo\n")
    );
    let image = agent.updated(agent.recorded("view_image"));
    assert_eq!(image["path"], json!(agent.shown(CODEX_PLAN, "a.txt")));
    let words = agent.call("Bash", json!({"command": ["bash", "-lc", "echo \"$0\""]}));
    let words = agent.updated(words)["command"].clone();
    let words: Vec<String> = serde_json::from_value(words).expect("words");
    assert_eq!(
        words[words.len() - 4..],
        ["--", "bash", "-lc", "echo \"$0\""]
    );
    let patched = agent.updated(agent.recorded("apply_patch"));
    let file = agent.shown(CODEX_PLAN, "patched.txt");
    let header = format!("*** Add File: {}\n+hello\n", file.display());
    has(patched["command"].as_str().unwrap(), [&header]);
    let patch = |text: &str| agent.call("apply_patch", json!({"command": text}));
    let outside = agent.world.at("outside").display().to_string();
    for line in [
        format!("*** Add File: {outside}"),
        "*** Update File: a.txt\n*** Move to: ../b".to_owned(),
        "  *** Add File: a.txt".to_owned(),
        "*** New Header: a.txt".to_owned(),
    ] {
        agent.denied(patch(&format!("*** Begin Patch\n{line}\n*** End Patch")));
    }
}

#[test]
fn inside_a_run_a_hook_lets_everything_through() {
    as_user_too();
    let agent = Agent::new("claude");
    let event = agent.world.at("app/event");
    write(&event, agent.recorded("Bash").to_string());
    let program = agent
        .cli
        .command("status")
        .get_program()
        .display()
        .to_string();
    let copied = agent.world.at("app/program");
    std::fs::copy(program, copied).unwrap();
    let line = "./program hook claude < event; echo $?";
    let answered = agent.cli.expect(inside("run --new", line), 0);
    assert_eq!(answered.stdout_text(), "0\n");
}

#[test]
fn setup_enters_the_hooks_and_takes_them_out_exactly() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("conf");
    let cli = cli.env("CLAUDE_CONFIG_DIR", &home).env("CODEX_HOME", &home);
    let settings = home.join("settings.json");
    let own = "{\n\t\"hooks\": {\n\t\t\"PreToolUse\": [{\"matcher\": \"Bash\",\"hooks\":[]}]\n\t},\n\t\"n\": 1.50\n}";
    write(&settings, own);
    let shown = cli.expect("agent setup claude", 0);
    has(&shown.stderr_text(), ["has other hooks for tool calls"]);
    let shown = shown.stdout_text();
    has(
        &shown,
        ["+\t\t\t\t\t\t\"command\": \"escrow hook claude || exit 2\","],
    );
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), own);
    cli.ok("agent setup claude --write");
    let text = std::fs::read_to_string(&settings).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    let of = |event: &str, at: usize| written["hooks"][event][at]["hooks"][0]["command"].clone();
    assert_eq!(written["hooks"]["PreToolUse"][0]["matcher"], "Bash");
    assert_eq!(of("PreToolUse", 1), "escrow hook claude || exit 2");
    // No other event may stop the user's work.
    for event in ["SessionStart", "Stop", "WorktreeCreate"] {
        assert_eq!(of(event, 0), "escrow hook claude");
    }
    let again = cli.expect("agent setup claude --write", 0);
    has(&again.stderr_text(), ["has the hooks already"]);
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), text);
    cli.ok("agent setup codex --write");
    has(
        &cli.run("uninstall").stderr_text(),
        ["hooks of claude", "hooks of codex"],
    );
    cli.ok("agent setup claude --remove");
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), own);
    cli.ok("agent setup claude --write");
    cli.ok("uninstall --purge --yes");
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), own);
    assert!(!home.join("hooks.json").exists());
    for bad in ["{\"hooks\": [}", "[]", "{\"hooks\": 1}"] {
        write(&settings, bad);
        has(
            &cli.fails("agent setup claude --write", 1),
            ["was not changed"],
        );
        assert_eq!(std::fs::read_to_string(&settings).unwrap(), bad);
    }
}
