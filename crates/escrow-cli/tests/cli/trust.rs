//! A tree cannot configure its own jail: what a found configuration may say, who may have written it,
//! and `escrow trust`.

use crate::*;

fn write(directory: &Path, text: &str) {
    fs::write(directory.join("escrow.yaml"), text).expect("there is room");
}

/// The test user in the world of root, with a state of its own.
fn as_other(world: &World) -> Cli {
    let cli = Cli::new(world, &binary());
    cli.env("ESCROW_HOME", world.dir("their-state")).user()
}

const LOOSE: &str = "sandbox: {strategy: none}\nrun: {writable: [../keys], network: host, env: {TRICK: played}}\n\
    policy: {mode: local}\nvalidate: ['touch ../keys/validated']\n";

/// Item 13: an `escrow.yaml` of a cloned repository was obeyed silently, and replaced the user's own
/// enforced policy.
// rule S6
#[test]
fn a_tree_does_not_configure_its_own_jail() {
    as_user_too();
    // `run` has a /tmp of its own.
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let (app, keys) = (world.dir("app"), world.dir("keys"));
    write(&app, LOOSE);
    let own = world.dir("user-home/.config/escrow");
    let rules = "allow [create, read, write, diff, run, checkpoint, restore, rollback, cleanup, commit, \
        admin] * *; deny [commit] agent* *";
    write(&own, &enforce("run: {network: none}\n", rules));
    let cli = cli.cwd(&app);
    let attack = "echo x > ../keys/authorized; echo x > released; echo \"trick=$TRICK\"; tail -n +3 /proc/net/dev | cut -d: -f1";
    let outcome = cli.run(inside("run", attack));
    let (said, told) = (outcome.stdout_text(), outcome.stderr_text());
    assert!(said.contains("trick=\n"), "{said}{told}");
    let devices: Vec<&str> = said.lines().skip(1).map(str::trim).collect();
    assert_eq!(devices, ["lo"], "{told}");
    assert!(!keys.join("authorized").exists(), "{told}");
    assert!(!app.join("released").exists(), "{told}");
    for key in ["run.writable", "run.network", "run.env", "sandbox.strategy"] {
        assert_eq!(told.matches(key).count(), 1, "{key}: {told}");
    }
    has(&told, ["is not trusted", "`escrow trust '"]);
    // In the document too, and only where a key would have been used.
    let plan = json(&cli, "plan create other --resource . --strategy overlay");
    assert_eq!(plan["notices"], Value::Null, "{plan}");
    put(&cli, "other app more", "x\n");
    // The user's policy counts, whatever the tree says.
    cli.fails("--principal agent commit other", 3);
    let done = json(&cli, "commit other");
    assert!(done["notices"].to_string().contains("validate"), "{done}");
    assert!(!keys.join("validated").exists());

    // Trusted it counts, but for what relaxes the policy of the user.
    cli.trust();
    let outcome = cli.run(inside("run --resource . --strategy overlay", attack));
    let (said, told) = (outcome.stdout_text(), outcome.stderr_text());
    assert!(keys.join("authorized").exists(), "{told}");
    assert!(said.contains("trick=played\n"), "{said}{told}");
    assert!(
        said.lines().count() > 2 || !is_root(),
        "the network: {said}"
    );
    assert!(!told.contains("does not count"), "{told}");
    let plan = json(&cli, "plan create none --resource .");
    assert_eq!(plan["sandboxes"][0]["strategy"], "none", "{plan}");
    cli.fails("--principal agent commit none", 3);
    // One byte more, and it is another file.
    write(&app, &format!("{LOOSE}# more\n"));
    let outcome = cli.run(inside("run --new --rollback", "echo \"trick=$TRICK\""));
    assert!(outcome.stdout_text().contains("trick=\n"));
    assert!(outcome.stderr_text().contains("run.env"));
}

/// Each of these says no, and no process below can say yes instead.
// rule S6
#[test]
fn no_file_relaxes_the_policy_of_the_user_or_of_the_system() {
    as_user_too();
    let (world, cli) = world();
    let own = world.dir("user-home/.config/escrow");
    let policy = |deny: &str| enforce("", &format!("allow {ALL} * *; deny [{deny}] * *"));
    write(&own, &policy("gc"));
    let ask = |action: &str| format!("access check --principal me --action {action} --scope *");
    let may = |cli: &Cli, action: &str| cli.run(ask(action)).status == 0;
    assert!(may(&cli, "undo") && !may(&cli, "gc"));
    // What the tree denies is denied as well, trusted or not.
    write(world.path(), &policy("undo"));
    assert!(!may(&cli, "undo") && !may(&cli, "gc") && may(&cli, "commit"));
    let told = cli.run(ask("undo")).stdout_text();
    has(&told, [&format!("in '{}", world.path().display())]);
    for text in ["policy: {mode: local}\n", "{}\n"] {
        write(world.path(), text);
        assert!(may(&cli, "undo") && !may(&cli, "gc"), "{text}");
        cli.trust();
        assert!(!may(&cli, "gc"), "{text}");
        let named = cli.clone().env("ESCROW_CONFIG", "escrow.yaml");
        assert!(!may(&named, "gc"), "{text}");
    }
    assert!(!may(&cli.clone().env("ESCROW_CONFIG", "/dev/null"), "gc"));
    cli.fails("--config /dev/null gc", 3);
    // A policy that cannot be read denies everything, also what the user's permits.
    write(world.path(), "policy: {mode: enfroce}\n");
    assert!(!may(&cli, "undo"));
    cli.ok("trust --list");
}

/// The system's file counts for everyone, and must be root's.
#[test]
fn the_policy_of_the_system_always_counts() {
    need!(require_root("another /etc"));
    let (world, cli) = world();
    let etc = world.dir("etc/escrow");
    let rules = "allow [create, cleanup] * *";
    write(&etc, &enforce("", rules));
    write(world.path(), "policy: {mode: local}\n");
    cli.trust();
    // In a mount namespace of its own.
    let etc_of = world.dir("etc").display().to_string();
    let under = |cli: &Cli, line: &str| {
        let mount = "mount --bind \"$0\" /etc; exec \"$@\"";
        let outer = ["unshare", "-m", "sh", "-euc", mount, &etc_of];
        let output = cli.behind(&outer, line).output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    let denied = "access check --principal me --action commit --scope *";
    for cli in [cli.clone(), as_other(&world)] {
        cli.ok(denied);
        for line in [denied, "--config /dev/null gc"] {
            let (status, told) = under(&cli, line);
            assert_eq!(status, Some(3), "{line}: {told}");
        }
    }
    chown(etc.join("escrow.yaml"), UID, 0);
    let (status, told) = under(&cli, denied);
    assert_eq!(status, Some(2), "{told}");
    assert!(told.contains("does not belong to root"), "{told}");
}

/// Item 13: root in another process's directory obeyed that another process.
#[test]
fn what_others_can_have_written_never_counts() {
    need!(require_root("files of other users"));
    let (world, root) = world();
    let user = as_other(&world);
    let directory = world.dir("shared");
    write(&directory, "policy: {mode: enforce}\n");
    let file = directory.join("escrow.yaml");
    let line = "access check --principal me --action gc --scope *";
    let check = |who: &Cli, counts: bool, why: &str| {
        let cli = who.clone().cwd(&directory);
        let outcome = cli.run(line);
        let told = outcome.stderr_text();
        assert_eq!(outcome.status, if counts { 3 } else { 0 }, "{why}: {told}");
        assert_eq!(told.contains("does not count"), !counts, "{why}: {told}");
        assert_eq!(told.contains(why), !counts, "{why}: {told}");
    };
    // What it denies counts; that is all.
    let tightens = |why: &str| {
        let cli = user.clone().cwd(&directory);
        let told = cli.fails(line, 3);
        assert!(told.contains("only what tightens counts"), "{why}: {told}");
        assert!(told.contains(why) && told.contains("chmod go-w"), "{told}");
        let told = cli.fails("trust --yes", 2);
        assert!(told.contains("cannot be trusted"), "{why}: {told}");
    };
    check(&root, true, "root's own");
    check(&user, true, "root's");
    chown(&file, UID, GID);
    check(&root, false, "belongs to another user");
    check(&user, true, "the user's own");
    chown(&file, UID + 1, GID + 1);
    check(&user, false, "belongs to another user");
    chown(&file, UID, GID);
    chmod(&file, 0o664);
    check(&user, true, "a group of one's own");
    chown(&file, UID, GID + 1);
    tightens("others may write it");
    chown(&file, UID, GID);
    chmod(&file, 0o646);
    tightens("others may write it");
    chmod(&file, 0o644);
    chmod(&directory, 0o777);
    tightens("others may write '");
    chown(&file, UID + 1, GID);
    check(&user, false, "belongs to another user");
    chown(&file, UID, GID);
    chmod(&directory, 0o1777);
    check(&user, true, "a sticky directory");
    chmod(&directory, 0o755);
    chown(&directory, UID + 1, GID + 1);
    check(&user, false, "which it lies in, belongs to another user");
    // To trust it is refused as well; to name it is the user's own decision.
    let told = user.fails("trust shared/escrow.yaml", 2);
    assert!(told.contains("cannot be trusted"), "{told}");
    let named = user.clone().env("ESCROW_CONFIG", &file);
    named.fails(line, 3);
    // The user's own configuration is not root's.
    chown(&directory, 0, 0);
    remove(&file);
    let home = world.dir("user-home/.config/escrow");
    write(&home, "policy: {mode: enforce}\n");
    chown(home.join("escrow.yaml"), UID, GID);
    check(&root, false, "belongs to another user");
    check(&user, true, "the user's own");
    // What others can write would be lost with its policy, so it is an error.
    chmod(home.join("escrow.yaml"), 0o666);
    let told = user.fails(line, 2);
    assert!(told.contains("chmod go-w"), "{told}");
}

/// A file of the user in a directory of a team was passed over, with what it denies. What it loosens does
/// not count, also if it was trusted before.
// rule S6
#[test]
fn what_a_group_may_write_only_tightens() {
    as_user_too();
    let (world, cli) = world();
    let rules =
        "allow [create, read, write, diff, commit, cleanup, admin] * *; deny [write] * *:secret";
    write(world.path(), &enforce("sandbox: {strategy: none}\n", rules));
    cli.trust();
    let strategy = |cli: &Cli, line: &str| {
        let made = json(cli, line);
        let told = made["notices"].to_string();
        let only = told.contains("only what tightens counts");
        (made["sandboxes"][0]["strategy"] == "none", only)
    };
    let made = strategy(&cli, "plan create one --resource ./app");
    assert_eq!(made, (true, false));
    cli.ok("cleanup one --yes");
    let file = world.at("escrow.yaml");
    chmod(&file, 0o666);
    let made = strategy(&cli, "plan create two --resource ./app");
    assert_eq!(made, (false, true));
    // From anywhere, also for a plan.
    for cli in [&cli, &cli.clone().cwd("/")] {
        has(&cli.fails("write two app secret", 3), ["chmod go-w"]);
    }
    assert_eq!(json(&cli, "trust --remove")["removed"], true);
    cli.fails("trust --yes", 2);
}

/// A name is a permission where a policy permits by name: a tree cannot take it.
#[test]
fn a_tree_does_not_take_a_name_that_a_policy_permits() {
    as_user_too();
    let (world, cli) = world();
    let own = world.dir("user-home/.config/escrow");
    let rules = "allow [create, write, read, diff, cleanup, admin] * *; allow [commit] * scratch";
    write(&own, &enforce("", rules));
    let text = "resources: {scratch: {at: app}, fine: {at: app/src}}\n";
    write(world.path(), text);
    let error = json_error(&cli, "plan create one --resource scratch", 3);
    let told = error.to_string();
    has(&told, ["resources.scratch", "escrow trust"]);
    // By its path it is any directory, with a name of its own.
    cli.ok("plan create one --resource app");
    put(&cli, "one app new", "x\n");
    cli.fails("commit one", 3);
    cli.ok("cleanup one");
    // Any other name could escape a rule.
    let told = json_error(&cli, "plan create two --resource fine", 3).to_string();
    assert!(told.contains("resources.fine"), "{told}");
    cli.trust();
    cli.ok("plan create three --resource scratch");
    put(&cli, "three scratch new", "x\n");
    cli.ok("commit three");
}

/// A rule that denies by name was escaped by a file in the tree that gave the directory another name, or
/// its name to something else.
// rule S6
#[test]
fn a_tree_does_not_rename_itself_out_of_a_policy() {
    let trees = "{zzz: {at: .}}; {app: {at: src}}; {s: {at: secret}, zzz: {at: .}}; \
        {app: {at: secret}, zzz: {at: .}}";
    for resources in trees.split("; ") {
        let (world, cli) = world();
        write(
            &world.dir("user-home/.config/escrow"),
            "policy:\n  mode: enforce\n  rules:\n    - {allow: [create, write, read, diff, run, commit, cleanup, admin], principal: '*', scope: '*'}\n    \
             - {deny: [write, commit], principal: '*', scope: 'app:secret/**'}\n",
        );
        let app = world.dir("app");
        world.dir("app/secret");
        write(&app, &format!("resources: {resources}\n"));
        let cli = cli.cwd(&app);
        let line = "plan create one --resource . --strategy filesystem_copy";
        let made = json(&cli, line);
        assert_eq!(made["sandboxes"][0]["resource"], "app", "{made}");
        let renames = resources.contains("zzz");
        let told = made["notices"].to_string();
        assert_eq!(told.contains("resources.zzz"), renames, "{made}");
        cli.fails("write one app secret/new", 3);
        let copy = copy_of(&cli, "one", "app");
        fs::write(copy.join("secret/new"), "x").expect("it is ours");
        cli.fails("commit one", 3);
        assert!(!app.join("secret/new").exists(), "{resources}");
        // By a name that does not count nothing is made.
        if renames {
            let told = json_error(&cli, "plan create two --resource zzz", 3).to_string();
            assert!(told.contains("resources.zzz"), "{told}");
        }
    }
}

/// What the tree itself denies by a name of its own is denied, also where the name does not count.
#[test]
fn a_name_that_does_not_count_still_tightens() {
    let (world, cli) = world();
    let most = "allow [create, write, read, diff, commit, cleanup, admin] * *";
    let own = world.dir("user-home/.config/escrow");
    write(&own, &enforce("", &format!("{most}; deny [gc] * other")));
    world.dir("app/secret");
    let hidden = "resources: {hidden: {at: app/secret}}
";
    let rules = format!("{most}; deny [write] * hidden");
    write(world.path(), &enforce(hidden, &rules));
    cli.ok("plan create one --resource ./app");
    put(&cli, "one app fine", "x\n");
    cli.fails("write one app secret/new", 3);
}

/// What is asked for by its name is made as the file says, or not at all.
#[test]
fn a_resource_that_would_not_isolate_or_lies_elsewhere_needs_trust() {
    as_user_too();
    let (world, cli) = world();
    let app = world.dir("app");
    world.dir("outside");
    world.dir("app/sub");
    symlink("../outside", app.join("way-out"));
    write(
        &app,
        "resource_types: [{name: bare, sandbox_strategy: none}]\nresources:\n  \
         open: {at: src, strategy: none}\n  typed: {at: src, type: bare}\n  program: {at: src, strategy: 'm:C'}\n  \
         far: {at: ../outside}\n  linked: {at: way-out}\n  good: {at: sub, strategy: overlay}\n",
    );
    let cli = cli.cwd(&app);
    for (name, key) in [
        ("open", "resources.open.strategy"),
        ("typed", "resources.typed.type"),
        ("program", "resources.program.strategy"),
        ("far", "resources.far.at"),
        ("linked", "resources.linked.at"),
    ] {
        let error = json_error(&cli, &format!("plan create one --resource {name}"), 3);
        let told = error.to_string();
        assert!(told.contains(key), "{name}: {told}");
        assert!(told.contains("escrow trust"), "{name}: {told}");
    }
    cli.ok("plan create good --resource good");
    cli.ok("cleanup good");
    let told = json(&cli, "plan create one --resource src");
    assert_ne!(told["sandboxes"][0]["strategy"], "none", "{told}");
    let holds = told["notices"]
        .to_string()
        .contains("resources.open.strategy");
    assert!(holds, "{told}");
    cli.ok("cleanup one");
    cli.trust();
    let made = json(&cli, "plan create one --resource open");
    assert_eq!(made["sandboxes"][0]["strategy"], "none");
    cli.ok("plan create two --resource far");
}

// rule S7
#[test]
fn trust_is_shown_listed_and_taken_back() {
    as_user_too();
    let (world, cli) = world();
    let error = json_error(&cli, "trust", 1);
    assert_eq!(error["kind"], "not_found");
    write(world.path(), "run: {env: {A: b}}\n");
    let file = world.at("escrow.yaml");
    let below = cli.clone().cwd(world.dir("app/src"));
    let told = json(&below, "trust --yes");
    assert_eq!(told["file"], file.to_str().expect("it is text"));
    let expected = (&true.into(), &false.into());
    assert_eq!((&told["trusted"], &told["changed"]), expected);
    assert_eq!(told["loosens"][0]["key"], "run.env");
    write(world.path(), "run: {env: {A: c}}\n");
    let told = json(&cli, "trust escrow.yaml --yes");
    assert_eq!(told["changed"], true);
    let diff = told["diff"].as_str().expect("a difference");
    has(&diff, ["-run: {env: {A: b}}", "+run: {env: {A: c}}"]);
    let listed = json(&cli, "trust --list");
    assert_eq!(list(&listed["files"]).len(), 1, "{listed}");
    // The content that was trusted before is not trusted any more.
    write(world.path(), "run: {env: {A: b}}\n");
    let told = json(&cli, "trust --yes");
    assert_eq!(told["changed"], true, "{told}");
    assert!(cli.ok("trust --list").contains("escrow.yaml"));
    // Also when it is gone.
    remove(&file);
    assert_eq!(json(&cli, "trust --remove escrow.yaml")["removed"], true);
    assert_eq!(json(&cli, "trust --remove escrow.yaml")["removed"], false);
    assert_eq!(list(&json(&cli, "trust --list")["files"]).len(), 0);
    let log = json(&cli, "log").to_string();
    has(&log, ["\"trust\"", "\"distrust\""]);
    // What makes no sense, and what is a link, is not trusted.
    write(world.path(), "sandbx: {}\n");
    json_error(&cli, "trust", 2);
    remove(&file);
    symlink("app/a.txt", &file);
    let told = cli.fails("trust escrow.yaml", 2);
    assert!(told.contains("it is a link"), "{told}");
    cli.ok("log --verify");
}

/// Who may not do anything may not trust.
#[test]
fn trust_is_permitted_to_who_may_do_anything() {
    let (world, cli) = world();
    let own = world.dir("user-home/.config/escrow");
    let rules = "allow [admin] user:* *";
    write(&own, &enforce("", rules));
    let text = "run: {env: {A: b}}\npolicy: {mode: enforce}\n";
    write(world.path(), text);
    cli.fails("--principal agent trust --yes", 3);
    // The file itself has no say in it.
    cli.trust();
}

/// Of seven commands five were shown, and of programs and variables the names only.
// rule S7
#[test]
fn trust_shows_everything_that_would_count() {
    let (world, cli) = world();
    let text = "run:\n  writable: [../p1, ../p2, ../p3, ../p4, ../p5, ../p6]\n  env: {LD_PRELOAD: /evil.so, TWO: \"a\\eb\"}\n\
        validate: [v1, v2, v3, v4, v5, [v6, 'a b']]\n\
        sandbox: {custom_strategies: {mine: {command: [/evil, now]}}}\n# the end \u{202e}\n";
    write(world.path(), text);
    let shown = cli.run("trust").stderr_text();
    for expected in [
        "../p6",
        "LD_PRELOAD=/evil.so",
        "TWO=a\\x1bb",
        "v6 'a b'",
        "mine: /evil now",
        "| # the end \\xe2\\x80\\xae",
    ] {
        let expected = match expected.strip_prefix("../") {
            Some(name) => format!("/{name}\n"),
            None => expected.to_owned(),
        };
        assert!(shown.contains(&expected), "{expected}: {shown}");
    }
    let told = json(&cli, "trust --yes");
    let loosens = told["loosens"].to_string();
    for expected in ["LD_PRELOAD=/evil.so", "v6 'a b'", "mine: /evil now", "/p6"] {
        assert!(loosens.contains(expected), "{expected}: {told}");
    }
    assert_eq!(told["content"][0], "run:", "{told}");
    // From then on the difference says it.
    write(world.path(), &format!("{text}# more\n"));
    let shown = cli.run("trust").stderr_text();
    assert!(shown.contains("+# more"), "{shown}");
    assert!(!shown.contains("all of it:"), "{shown}");
}

/// Without a terminal no process was asked, and the file was trusted all the same.
// rule S7
#[test]
fn trust_without_a_terminal_needs_yes() {
    let (world, cli) = world();
    write(world.path(), "run: {env: {A: b}}\n");
    let told = cli.fails("trust", 2);
    has(&told, ["not trusted", "--yes"]);
    let told = json_error(&cli, "trust", 2).to_string();
    assert!(told.contains("not trusted"), "{told}");
    let listed = json(&cli, "trust --list");
    assert_eq!(list(&listed["files"]).len(), 0);
    assert!(!json(&cli, "log").to_string().contains("\"trust\""));
    // Nor where a terminal is there, but the answer is a document.
    let terminal = Terminal::new(24, 200);
    let mut child = terminal.start(cli.command("--json trust"));
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
    cli.trust();
    // What is trusted already needs no answer.
    assert_eq!(json(&cli, "trust")["trusted"], true);
}

#[test]
fn trust_asks_on_a_terminal() {
    let (world, cli) = world();
    write(world.path(), "run: {env: {A: b}}\n");
    for (answer, status) in [("n\n", 1), ("y\n", 0)] {
        let terminal = Terminal::new(24, 200);
        let mut child = terminal.start(cli.command("trust"));
        terminal.expect("with this content? [y/N]");
        assert!(terminal.text().contains("run.env"), "{}", terminal.text());
        terminal.send(answer);
        let ended = child.wait().expect("it ends");
        assert_eq!(ended.code(), Some(status), "{}", terminal.text());
        let listed = json(&cli, "trust --list");
        let many = listed["files"].as_array().map(Vec::len);
        assert_eq!(many, Some(usize::from(status == 0)));
    }
}
