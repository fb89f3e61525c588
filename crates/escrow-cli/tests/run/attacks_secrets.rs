//! What a command reads that it has no business with: credentials in the home directory and in the environment, files of the
//! machine, homes of others.

use crate::*;

/// What a careful person would not hand to an unknown agent, in a home directory.
const SECRETS: &str = ".ssh/id_ed25519 .aws/credentials .gnupg/private-keys-v1.d/key .netrc .config/gh/hosts.yml \
    .config/google-chrome/Default/Cookies .mozilla/firefox/x/logins.json .config/gcloud/credentials.db .kube/config \
    .docker/config.json .npmrc .pypirc .cargo/credentials.toml .git-credentials .claude.json .claude/.credentials.json \
    .codex/auth.json .gemini/oauth_creds.json";

/// A home directory full of them, and what is not one of them.
fn home(world: &World) -> PathBuf {
    let home = world.dir("user-home");
    for name in SECRETS.split_whitespace().chain([
        ".config/nvim/settings",
        ".cargo/config.toml",
        ".claude/settings.json",
    ]) {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        write(path, "precious\n");
    }
    // A link, as people have it who keep such files elsewhere.
    sh(
        &home,
        "mkdir elsewhere; mv .aws elsewhere/aws; ln -s elsewhere/aws .aws",
    );
    home
}

/// Reads everything that can be read, and says what holds a secret.
const READ: &str =
    "grep -Rls precious $HOME 2>/dev/null | sed \"s|^$HOME/||\" | sort | tr '\\n' ' '";

// attack D22
#[test]
fn d22_credentials_in_the_home_directory_were_read() {
    as_user_too();
    let (world, cli) = world();
    let home = home(&world);
    let before = signature(&home);
    let cli = cli.env("HOME", &home);
    let harmless = ".cargo/config.toml .claude/settings.json .config/nvim/settings ";
    for line in ["run --rollback", "run --rollback --no-scratch"] {
        cli.says(inside(line, READ), harmless);
    }
    // A directory is empty, a file is not there, and both can be used as if nothing had ever been; links lead to nothing either.
    let use_them =
        "ls -A ~/.ssh/ ~/.aws/ ~/elsewhere/aws/; cat ~/.netrc ~/.npmrc 2>/dev/null; mkdir -p ~/.ssh
        echo x > ~/.ssh/known_hosts && cat ~/.ssh/known_hosts; echo y > ~/.netrc && cat ~/.netrc
        rm ~/.npmrc && echo z > ~/.npmrc && cat ~/.npmrc; umount ~/.ssh 2>/dev/null && echo changed
        mv ~/.config ~/moved 2>/dev/null; cat ~/moved/gh/* ~/.config/gh/* 2>/dev/null; true";
    let said = cli.ok(inside("run --rollback", use_them));
    let path = |name: &str| home.join(name).display().to_string();
    let listed = format!(
        "{}/:\n\n{}/:\n\n{}/:\nx\ny\nz\n",
        path(".aws"),
        path(".ssh"),
        path("elsewhere/aws")
    );
    let mut found: Vec<&str> = said.lines().collect();
    let mut expected: Vec<&str> = listed.lines().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{said}");
    unchanged(&before, &home);
    assert_quiet(&world);
}

#[test]
fn what_is_shown_can_be_read_and_what_is_hidden_more_cannot() {
    as_user_too();
    let (world, cli) = world();
    let home = home(&world);
    let cli = cli
        .env("HOME", &home)
        .env("ESCROW_SHOWN", home.join(".ssh/id_ed25519"));
    let line = "run --rollback --show $ESCROW_SHOWN --hide ../user-home/.config/nvim";
    let line = line.replace(
        "$ESCROW_SHOWN",
        &home.join(".ssh/id_ed25519").display().to_string(),
    );
    cli.says(
        inside(&line, READ),
        ".cargo/config.toml .claude/settings.json .ssh/id_ed25519 ",
    );
    cli.says(
        inside(
            &line,
            "(echo x > $ESCROW_SHOWN; rm $ESCROW_SHOWN) 2>/dev/null; ls ~/.ssh",
        ),
        "id_ed25519\n",
    );
    // A file of the tree may hide, and show only what is trusted.
    let rules = "run: {show: [~/.kube], hide: [~/.config/nvim, ../user-home/.cargo]}\n";
    write(world.at("app/escrow.yaml"), rules);
    let outcome = cli.run(inside("run --new --rollback", READ));
    assert_eq!(
        outcome.stdout_text(),
        ".claude/settings.json ",
        "{}",
        outcome.stderr_text()
    );
    has(&outcome.stderr_text(), ["run.show", "escrow trust"]);
    cli.trust();
    cli.says(
        inside("run --new --rollback", READ),
        ".claude/settings.json .kube/config ",
    );
    write(world.at("app/escrow.yaml"), "run: {hide: [..]}\n");
    let outcome = cli.expect(inside("run --new", "true"), 125);
    has(&outcome.stderr_text(), ["cannot be hidden", "resource"]);
    assert_quiet(&world);
}

/// One's own credentials, and those of no other.
#[test]
fn an_agent_finds_its_own_credentials() {
    as_user_too();
    let (world, cli) = world();
    let home = home(&world);
    let bin = world.dir("bin");
    let script = format!("#!/bin/sh\n{READ}; echo; env | grep -c 'API_KEY=precious'\n");
    for name in ["claude", "codex"] {
        write(bin.join(name), &script);
        sh(&bin, &format!("chmod +x {name}"));
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let cli = cli.env("HOME", &home).env("PATH", path);
    let cli = cli
        .env("ANTHROPIC_API_KEY", "precious")
        .env("OPENAI_API_KEY", "precious");
    let cli = cli.env("GITHUB_TOKEN", "precious");
    let usual = ".cargo/config.toml .claude/settings.json .config/nvim/settings ";
    let claude = ".cargo/config.toml .claude.json .claude/.credentials.json .claude/settings.json .config/nvim/settings \n1\n";
    let said = cli.says("run --rollback -- claude", claude).stderr_text();
    has(&said, ["GITHUB_TOKEN", "OPENAI_API_KEY", "run.env.pass"]);
    lacks(&said, ["ANTHROPIC_API_KEY", "precious"]);
    let codex = usual.replace(".config", ".codex/auth.json .config") + "\n1\n";
    cli.says("run --rollback -- codex", codex.clone());
    cli.says(inside("run --rollback --agent codex", &script), codex);
    cli.says(
        "run --rollback --agent none -- claude",
        format!("{usual}\n0\n"),
    );
}

/// Names that no list has, and secrets under names that one has.
// attack D23
#[test]
fn d23_secrets_of_the_environment_were_passed_on() {
    as_user_too();
    let (world, cli) = world();
    let url = "postgres://ann:precious@db/app";
    let token = format!("ghp_{}", "0".repeat(36));
    let cli = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "DB_PASSWORD",
        "my_api_key",
        "CARGO_REGISTRY_TOKEN",
    ]
    .iter()
    .fold(cli, |cli, name| cli.env(name, "precious"));
    let cli = cli
        .env("PIP_INDEX_URL", url)
        .env("ESCROW_INNOCENT", token)
        .env("CARGO_KEPT", "yes")
        .env("UNKNOWN", "precious");
    let script = "env | grep -c 'precious\\|ghp_'; echo $CARGO_KEPT";
    let said = cli.says(inside("run -v", script), "0\nyes\n").stderr_text();
    let named = [
        "not passed: ",
        "UNKNOWN",
        "PIP_INDEX_URL",
        "ESCROW_INNOCENT",
        "-e NAME",
        "run.env.pass",
    ];
    has(&said, named);
    cli.says(
        inside("run -e DB_PASSWORD=precious -e UNKNOWN", script),
        "2\nyes\n",
    );
    let outcome = cli.run(inside("--json run --rollback --new", "true"));
    let document: Value = serde_json::from_slice(&outcome.stdout).expect("one document");
    let named = document["not_passed"].to_string();
    has(&named, ["\"UNKNOWN\"", "\"CARGO_REGISTRY_TOKEN\""]);
    lacks(&named, ["precious", "CARGO_KEPT", "SSH_AUTH_SOCK"]);
    // A list adds to what is passed, a star alone adds no secret; a file of the tree passes nothing.
    write(
        world.at("app/escrow.yaml"),
        "run: {env: {pass: [GITHUB_*], SET: here}}\n",
    );
    cli.says(inside("run --new --rollback", script), "0\nyes\n");
    cli.trust();
    let script =
        "env | grep -c 'precious\\|ghp_'; echo $CARGO_KEPT $SET; env | grep -c ^UNKNOWN=; :";
    cli.says(inside("run --new --rollback", script), "1\nyes here\n0\n");
    write(world.at("app/escrow.yaml"), "run: {env: {pass: ['*']}}\n");
    cli.trust();
    cli.says(inside("run --new --rollback", script), "1\nyes\n1\n");
}

/// Root could read the passwords of everyone, and everything that users keep.
// attack D24
#[test]
fn d24_passwords_and_homes_of_others_were_read() {
    as_user_too();
    let (world, cli) = world();
    let script = "cat /etc/shadow /etc/shadow- /etc/gshadow 2>/dev/null | grep -c .
        ls -A /home /root 2>/dev/null | grep -v \"^$(basename \"$HOME\")$\\|^/\\|^$\" | grep -c evil-test";
    cli.says(inside("run", script), "0\n0\n");
    if !is_root() {
        return;
    }
    assert!(
        !read("/etc/shadow").is_empty(),
        "the test can find what it looks for"
    );
    // In a mount namespace of its own, in which others have homes, and the user a home among them.
    let setup =
        "mount -t tmpfs none /home; cd /home; mkdir -p ann/project bob; echo precious > bob/file
        echo precious > ann/file; cd ann/project; echo x > a; HOME=/home/$OWN exec \"$0\" \"$@\"";
    let script = "cd /home; grep -rls precious .; ls ann/project; ls; cd ann/project; echo y > a && echo z > ~/f && cat ~/f";
    for (own, line, expected) in [
        ("ann", "run --rollback", "./ann/file\na\nann\nz\n"),
        ("bob", "run --rollback", "./bob/file\na\nann\nbob\nz\n"),
        ("ann", "run --rollback --no-scratch", "./ann/file\na\nann\n"),
    ] {
        let outer = ["unshare", "-m", "sh", "-euc", setup];
        let mut command = cli.behind(&outer, inside(line, script));
        command
            .env("OWN", own)
            .env("ESCROW_HOME", world.dir("state"));
        let output = command.output().expect("there is an unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{own}: {said}"
        );
    }
}

/// The state at its usual place, where another one is in use: the sandboxes of other plans and their log lie in it.
#[test]
fn another_state_of_the_user_could_be_read() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user-home");
    let usual = world.dir("user-home/.local/share/escrow");
    let moved = world.dir("data/escrow");
    for dir in [&usual, &moved] {
        write(dir.join("state.db"), "secret");
    }
    let script = format!(
        "cat {} {} 2>/dev/null; ls {} {}; echo end",
        usual.join("state.db").display(),
        moved.join("state.db").display(),
        usual.display(),
        moved.display()
    );
    let cli = cli
        .env("HOME", &home)
        .env("XDG_DATA_HOME", world.at("data"));
    let said = cli.ok(inside("run --new --rollback", &script));
    lacks(&said, ["secret", "state.db"]);
    has(&said, ["end"]);
    assert_quiet(&world);
}
