//! Runs where no namespaces can be had: in a copy, confined by Landlock and a filter of system calls. The machine is made to forbid
//! them for real: to an ordinary user by the setting, to root by taking `CAP_SYS_ADMIN`.

use std::process::{Command, Output};

use crate::*;

/// Starts a program that can make no namespaces.
fn forbidding() -> [&'static str; 5] {
    let user = "exec unshare --map-current-user --keep-caps sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; \
        exec setpriv --ambient-caps=-all --inh-caps=-all \"$@\"' sh \"$@\"";
    let root = "exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\"";
    let script = if is_root() { root } else { user };
    ["sh", "-eu", "-c", script, "sh"]
}

fn forbidden(cli: &Cli, args: impl Words) -> Command {
    cli.behind(&forbidding(), args)
}

fn output(cli: &Cli, args: impl Words) -> Output {
    forbidden(cli, args).output().expect("there is a shell")
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// What a line that must succeed says on both streams.
#[track_caller]
fn succeeds(cli: &Cli, args: impl Words) -> (String, String) {
    let output = output(cli, args);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    (out, err)
}

/// What a line that must fail says on standard error.
#[track_caller]
fn refused(cli: &Cli, args: impl Words) -> String {
    let output = output(cli, args);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(125), "{out}{err}");
    err
}

/// A world whose home directory holds a key and a tool.
fn lived_in() -> (World, Cli, PathBuf) {
    let (world, cli) = world();
    let home = world.dir("user-home");
    fs::create_dir_all(home.join(".ssh")).expect("it is ours");
    fs::create_dir_all(home.join(".local/bin")).expect("it is ours");
    write(home.join(".ssh/id_ed25519"), "KEY\n");
    write(
        home.join(".gitconfig"),
        "[user]\n name = Ann\n email = ann@example.org\n[safe]\n directory = *\n",
    );
    write(
        home.join(".local/bin/tool"),
        "#!/bin/sh\necho from the tool\n",
    );
    chmod(home.join(".local/bin/tool"), 0o755);
    (world, cli, home)
}

/// The first minute on a machine that forbids namespaces: run, look, commit.
#[test]
fn a_command_runs_in_a_copy_and_its_changes_are_committed() {
    as_user_too();
    let (world, cli, _home) = lived_in();
    let (out, err) = succeeds(
        &cli,
        inside(
            "run",
            "echo x > new; rm a.txt; ~/.local/bin/tool; cd src; pwd",
        ),
    );
    assert!(out.starts_with("from the tool\n"), "{out}");
    let copy = out
        .lines()
        .last()
        .expect("a directory")
        .strip_suffix("/src");
    let copy = copy.expect("it is in the copy");
    assert_ne!(Path::new(copy), world.at("app"));
    let line = err
        .lines()
        .find(|line| line.contains("running in a copy at"));
    let line = line.expect("it is said");
    has(
        line,
        [
            copy,
            "Landlock",
            "not protected",
            "network: host",
            "escrow doctor --fix",
        ],
    );
    assert!(world.at("app/a.txt").exists() && !world.at("app/new").exists());
    let (listed, _) = succeeds(&cli, "diff --name-status");
    assert_eq!(listed, "D\ta.txt\nA\tnew\n");
    succeeds(&cli, "commit");
    assert!(!world.at("app/a.txt").exists());
    assert_eq!(read(world.at("app/new")), "x\n");
    let left = fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    let left: Vec<_> = left.flatten().map(|one| one.file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with("scratch-copied")),
        "{left:?}"
    );
}

/// Each attempt works outside, so it is the walls that refuse it inside.
// rule S1
#[test]
fn what_a_copy_protects_is_out_of_reach() {
    as_user_too();
    let (world, cli, home) = lived_in();
    crate::attacks::compile(&world.at("app"), "connect", crate::attacks::CONNECT);
    let socket = home.join("agent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("it is ours");
    let mut sleeper = Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("it starts");
    let (app, home, state) = (world.at("app"), home.display().to_string(), world.home());
    let (app, state, pid) = (
        app.display().to_string(),
        state.display().to_string(),
        sleeper.id(),
    );
    let attempts = [
        format!("cat {home}/.ssh/id_ed25519"),
        format!("ls {home}"),
        format!("echo evil > {app}/a.txt"),
        format!("echo evil >> {home}/.gitconfig"),
        "echo evil >> ~/.gitconfig".to_owned(),
        format!("mv a.txt {app}/evil"),
        format!("ln {app}/a.txt hard && echo evil > hard"),
        format!("ln -s {app}/a.txt soft && echo evil > soft"),
        format!("truncate -s 0 {app}/a.txt"),
        format!("rm {app}/a.txt"),
        format!("mkdir {app}/evil"),
        format!("ls {state}"),
        format!("cat {state}/state.db"),
        format!("echo evil > {state}/evil"),
        "echo evil > /tmp/escrow-copied-evil".to_owned(),
        "echo evil > /var/tmp/escrow-copied-evil".to_owned(),
        "echo evil > /dev/shm/escrow-copied-evil".to_owned(),
        "cat /etc/shadow".to_owned(),
        format!("./connect {home}/agent.sock"),
        format!("kill -0 {pid}"),
        format!("kill {pid}"),
        format!("cat /proc/{pid}/environ | grep ."),
        format!("ls /proc/{pid}/root/"),
        format!("prlimit --pid {pid} --cpu=1"),
        "prlimit --pid $PPID --cpu=1".to_owned(),
        "unshare -Ur true".to_owned(),
        "escrow-as-such plan list".to_owned(),
    ];
    for attempt in &attempts {
        let script = format!("{{ {attempt}; }} >/dev/null 2>&1 && echo reached || echo refused");
        let (out, err) = succeeds(&cli, inside("run --rollback --new", &script));
        assert_eq!(out, "refused\n", "{attempt}: {err}");
    }
    // A control: what a command needs works.
    let script = "cat a.txt && echo y > $TMPDIR/y && echo z > ~/z && cat /proc/self/status > /dev/null && sleep 9 & kill $!; echo did";
    let (out, _) = succeeds(&cli, inside("run --rollback --new", script));
    assert!(out.contains("did\n"), "{out}");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\n");
    assert!(
        sleeper.try_wait().expect("it is ours").is_none(),
        "it was not reached"
    );
    sleeper.kill().expect("it is ours");
    sleeper.wait().expect("it ends");
}

/// What a command leaves behind ends with it, also when it hid from its group, and when the run is killed.
#[test]
fn nothing_outlives_a_run_in_a_copy() {
    as_user_too();
    let (world, cli, _home) = lived_in();
    let mark = format!("77{}", std::process::id());
    let left = || {
        let found = Command::new("pgrep")
            .args(["-fc", &format!("^sleep {mark}")])
            .output()
            .expect("it is installed")
            .stdout;
        let count = String::from_utf8_lossy(&found).trim().parse::<u32>();
        count.expect("a number")
    };
    let script = format!(
        "(setsid sleep {mark} &) ; (setsid sh -c 'sleep {mark} & sleep {mark}' &); sleep 0.2"
    );
    succeeds(&cli, inside("run --new", &script));
    assert_eq!(left(), 0);
    let script = format!("(setsid sleep {mark} &) ; touch begun; exec sleep {mark}");
    let mut run = forbidden(&cli, inside("run --new", &script))
        .spawn()
        .expect("it starts");
    let start = std::time::Instant::now();
    while left() < 2 {
        assert!(start.elapsed() < PATIENCE, "it begins");
        thread::sleep(Duration::from_millis(5));
    }
    run.kill().expect("it is ours");
    run.wait().expect("it ends");
    while left() > 0 {
        assert!(start.elapsed() < PATIENCE, "it ends");
        thread::sleep(Duration::from_millis(5));
    }
    drop(world);
}

/// A git checkout is a copy with a git directory of its own: commits made inside are released, and the original's is not touched.
// rule G1
#[test]
fn a_git_checkout_works_in_a_copy() {
    as_user_too();
    let (world, cli, _home) = lived_in();
    let app = world.at("app");
    sh(
        &app,
        "git init -q -b main && git -c user.name=n -c user.email=e@e add -A && git -c user.name=n -c user.email=e@e commit -qm first",
    );
    let script = "echo x > new && git add new && git commit -qm second && git log --format=%s && git status --short";
    let (out, err) = succeeds(&cli, inside("run", script));
    assert_eq!(out, "second\nfirst\n", "{err}");
    lacks(&err, ["alternate"]);
    let log = |dir: &Path| sh(dir, "git log --format=%s main");
    assert_eq!(log(&app), "first\n");
    let (out, _) = succeeds(
        &cli,
        inside("run", "git log --format=%s -1; git checkout -q -b other"),
    );
    assert_eq!(out, "second\n");
    succeeds(&cli, "commit");
    assert_eq!(log(&app), "second\nfirst\n");
    assert_eq!(read(app.join("new")), "x\n");
}

/// Nothing is weakened silently: what this mode does not have is refused by name, and nothing of the plan is left.
// rule S6
#[test]
fn walls_that_a_copy_does_not_have_are_refused_by_name() {
    as_user_too();
    let (world, cli, home) = lived_in();
    for (options, named) in [
        ("--network allow:example.org", "allow:example.org"),
        ("--hide src", "--hide"),
        ("--allow-userns", "--allow-userns"),
    ] {
        let said = refused(
            &cli,
            inside(&format!("run --new {options}"), "echo x > reached"),
        );
        has(
            &said,
            [
                "user namespaces are not available here",
                named,
                "escrow doctor --fix",
            ],
        );
        lacks(&said, ["--unconfined"]);
    }
    let (none, _) = succeeds(&cli, "plan list --json");
    lacks(&none, ["\"open\"", "\"creating\""]);
    // A copy of a directory holds the credentials that lie in it.
    let tool = home.join(".cargo");
    fs::create_dir_all(&tool).expect("it is ours");
    write(tool.join("credentials.toml"), "KEY\n");
    let line = format!("run --new -r {}", tool.display());
    let said = refused(&cli, inside(&line, "true"));
    has(&said, ["credentials.toml", "cannot be hidden"]);
    let said = refused(
        &cli,
        inside("run --new --strategy none", "echo x > reached"),
    );
    has(&said, ["no copy"]);
    assert!(!world.at("app/reached").exists());
    cli.ok("plan create layers --resource . --strategy overlay");
    let said = refused(&cli, inside("run --plan layers", "true"));
    has(&said, ["layers", "--new"]);
    let script = "import socket\nfor f in socket.AF_INET, socket.AF_INET6, socket.AF_UNIX:\n  try: socket.socket(f); print('open')\n  except PermissionError: print('closed')\n";
    write(world.at("app/sockets.py"), script);
    let (out, err) = succeeds(
        &cli,
        inside(
            "run --new --rollback --network none",
            "/usr/bin/python3 sockets.py",
        ),
    );
    assert_eq!(out, "closed\nclosed\nclosed\n");
    has(&err, ["network: none"]);
    let (out, _) = succeeds(
        &cli,
        inside("run --new --rollback", "/usr/bin/python3 sockets.py"),
    );
    assert_eq!(out, "open\nopen\nclosed\n");
}

/// Limits hold here too.
#[test]
fn limits_hold_in_a_copy() {
    as_user_too();
    let (_world, cli, _home) = lived_in();
    for (options, script) in [
        ("--timeout 300ms", "sleep 100"),
        ("--disk 1M", "head -c 3000000 /dev/zero > $TMPDIR/big"),
        ("--pids 20", "for n in $(seq 60); do sleep 100 & done; wait"),
    ] {
        let start = std::time::Instant::now();
        let output = output(
            &cli,
            inside(&format!("run --new --rollback {options}"), script),
        );
        let (_, err) = texts(&output);
        assert!(!output.status.success(), "{options}: {err}");
        assert!(start.elapsed() < PATIENCE, "{options}");
    }
}

/// The mode is chosen only where namespaces are forbidden; `doctor` says which one it is, and how to have the other.
#[test]
fn doctor_says_how_a_run_is_confined_and_how_to_have_more() {
    as_user_too();
    let (_world, cli, _home) = lived_in();
    let outcome = cli.expect(inside("run --new --rollback", "pwd"), 0);
    lacks(&outcome.stderr_text(), ["running in a copy"]);
    let mode = |text: &str| {
        let document: Value = serde_json::from_str(text).expect("one document");
        document["run"]["mode"].as_str().expect("a mode").to_owned()
    };
    assert_eq!(mode(&cli.ok("doctor --json")), "namespaces");
    assert_eq!(mode(&succeeds(&cli, "doctor --json").0), "copy");
    let (text, _) = succeeds(&cli, "doctor");
    has(&text, ["escrow run works in a copy", "escrow doctor --fix"]);
    let (fix, _) = succeeds(&cli, "doctor --fix");
    if !is_root() {
        has(
            &fix,
            [
                "sudo sysctl user.max_user_namespaces=10000",
                "/etc/sysctl.d/",
            ],
        );
    }
    assert!(!fix.is_empty());
    assert_eq!(cli.ok("doctor --fix"), "");
}
