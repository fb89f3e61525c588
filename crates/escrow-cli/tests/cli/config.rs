//! The configuration as users meet it: where it is found, what it changes, how it is begun.

use crate::*;

fn write(directory: &Path, text: &str) {
    fs::write(directory.join("escrow.yaml"), text).expect("the configuration can be written");
}

/// The strategy that a plan of `app` asked for.
#[track_caller]
fn requested(cli: &Cli, line: &str) -> String {
    let plan = json(cli, line);
    let requested = plan["sandboxes"][0]["requested"].as_str();
    let requested = requested.expect("a sandbox was made").to_owned();
    let name = plan["name"].as_str().expect("a plan has a name");
    cli.ok(["cleanup", name]);
    requested
}

const MAKE: &str = "plan create try --resource ./app";

// rule P7
#[test]
fn the_nearest_configuration_counts_and_what_is_typed_wins() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user-home/.config/escrow");
    write(&home, "sandbox: {strategy: copy_on_write}\n");
    assert_eq!(requested(&cli, MAKE), "copy_on_write", "the user's own");
    let elsewhere = world.dir("xdg/escrow");
    write(&elsewhere, "sandbox: {strategy: none}\n");
    let xdg = cli.clone().env("XDG_CONFIG_HOME", world.dir("xdg"));
    assert_eq!(requested(&xdg, MAKE), "none");
    let relative = cli.clone().env("XDG_CONFIG_HOME", "xdg");
    assert_eq!(
        requested(&relative, MAKE),
        "copy_on_write",
        "a relative one is no place"
    );

    write(world.path(), "sandbox: {strategy: filesystem_copy}\n");
    assert_eq!(requested(&cli, MAKE), "filesystem_copy", "the project's");
    let below = cli.clone().cwd(world.dir("app/src"));
    let main = "plan create try --resource ../../app";
    assert_eq!(requested(&below, main), "filesystem_copy", "upward");

    let named = world.dir("named").join("other.yaml");
    fs::write(&named, "sandbox: {strategy: overlay}\n").expect("it can be written");
    let by_variable = cli.clone().env("ESCROW_CONFIG", &named);
    assert_eq!(requested(&by_variable, MAKE), "overlay");
    let typed = format!("--config escrow.yaml {MAKE}");
    assert_eq!(requested(&by_variable, &typed), "filesystem_copy", "typed");

    let by_variable = cli.clone().env("ESCROW_SANDBOX_STRATEGY", "none");
    assert_eq!(requested(&by_variable, MAKE), "none", "the variable wins");
    let typed = format!("{MAKE} --strategy overlay");
    assert_eq!(
        requested(&by_variable, &typed),
        "overlay",
        "the command line wins"
    );
    let said = cli.run("-v plan list").stderr_text();
    assert!(said.contains("escrow.yaml"), "{said}");
}

#[test]
fn a_bad_configuration_stops_everything_that_needs_one() {
    let (world, cli) = world();
    write(world.path(), "sandbox:\n  strateg: overlay\n");
    for line in [MAKE, "plan list", "commit", "run -- true", "type list"] {
        let error = json_error(&cli, line, 2);
        assert_eq!(error["kind"], "usage", "{line}");
        let details = &error["details"];
        assert_eq!(keys(details), "column file key line", "{line}");
        assert_eq!(details["key"], "sandbox.strateg");
        let expected = (&value!(2), &value!(3));
        assert_eq!((&details["line"], &details["column"]), expected);
        let file = details["file"].as_str().unwrap_or_default();
        assert!(Path::new(file).is_absolute(), "{file}");
        assert!(file.ends_with("/escrow.yaml"), "{file}");
        assert_eq!(error["hints"][0], "did you mean 'strategy'?");
    }
    let told = cli.fails("plan list", 2);
    has(&told, ["escrow.yaml:2:3: sandbox.strateg: "]);
    assert_eq!(names(world.home()), [""; 0], "nothing was changed");
    // These do not look at it.
    for line in "--help; help run; completions bash; man run; reference".split("; ") {
        cli.ok(line);
    }
    let good = world.dir("good");
    write(&good, "{}");
    cli.ok("type validate good/escrow.yaml");
}

#[test]
fn a_strategy_of_ones_own_stops_only_who_uses_it() {
    let (world, cli) = world();
    let declared = "sandbox: {strategy: mine, custom_strategies: {mine: {command: [x]}}}\n";
    for text in [declared, "sandbox: {strategy: 'my.module:Class'}\n"] {
        write(world.path(), text);
        cli.trust();
        cli.ok("plan list");
        let error = json_error(&cli, MAKE, 1);
        assert_eq!(error["kind"], "failed");
        assert_eq!(
            requested(&cli, &format!("{MAKE} --strategy overlay")),
            "overlay"
        );
    }
    // A type that takes nothing that is found by itself wants a name.
    let text = "resource_types: [{name: t, strategies: [none]}]\n";
    write(world.path(), text);
    cli.ok("resource add x --at app --type t");
    let error = json_error(&cli, "plan create try --resource x", 1);
    assert!(error["message"].to_string().contains("name one"), "{error}");
    assert_eq!(
        requested(&cli, "plan create try --resource x --strategy none"),
        "none"
    );
}

#[test]
fn a_configuration_that_cannot_be_read_is_told() {
    let (world, cli) = world();
    for line in ["--config nowhere.yaml plan list", "--config app plan list"] {
        let error = json_error(&cli, line, 2);
        assert_eq!(error["kind"], "usage", "{line}");
    }
    // What stands there must not be waited for.
    fs::create_dir(world.at("escrow.yaml")).expect("nothing is there");
    json_error(&cli, "plan list", 2);
    fs::remove_dir(world.at("escrow.yaml")).expect("it is empty");
    sh(world.path(), "mkfifo escrow.yaml");
    let error = json_error(&cli, "plan list", 2);
    let told = error["message"].to_string();
    assert!(told.contains("not a file"), "{told}");
    remove(world.at("escrow.yaml"));
    fs::write(world.at("escrow.yaml"), vec![b'#'; 1024 * 1024 + 1]).expect("it can be written");
    json_error(&cli, "plan list", 2);
    // Named, it may be a pipe, or nothing at all.
    cli.ok("--config /dev/null plan list");
}

/// What is there and cannot be read may hold a policy, so it does not count as nothing.
// rule S6
#[test]
fn a_configuration_that_is_there_and_leads_nowhere_is_told() {
    let (world, cli) = world();
    let link = world.at("escrow.yaml");
    symlink("gone.yaml", &link);
    // In a tree no link counts, wherever it leads.
    for target in ["gone.yaml", "there.yaml"] {
        crate::write(
            world.at("there.yaml"),
            "policy: {mode: enforce}
",
        );
        remove(&link);
        symlink(target, &link);
        let told = json(&cli, "plan list")["notices"].to_string();
        assert!(told.contains("does not count: it is a link"), "{told}");
    }
    let told = cli.run("plan list").stderr_text();
    assert!(told.contains("warning: the configuration"), "{told}");
    cli.ok("--config /dev/null plan list");
    remove(link);
    let told = cli.run("plan list").stderr_text();
    assert!(!told.contains("warning"), "{told}");
    // The user's own: the file, its directory, or the directory of all configurations.
    for (at, to) in [
        ("xdg/escrow/escrow.yaml", "gone"),
        ("xdg/escrow", "gone"),
        ("xdg", "gone/deep"),
    ] {
        let (world, cli) = self::world();
        let xdg = cli.env("XDG_CONFIG_HOME", world.at("xdg"));
        xdg.ok("plan list");
        let link = world.at(at);
        let above = link.parent().expect("it lies in something");
        fs::create_dir_all(above).expect("there is room");
        symlink(to, &link);
        let error = json_error(&xdg, "plan list", 2);
        let hints = error["hints"].to_string();
        assert!(hints.contains("is a broken link"), "{at}: {hints}");
    }
}

/// The user's own configuration cannot be passed over because it is closed.
// rule S6
#[test]
fn a_users_own_configuration_that_is_closed_is_told() {
    as_user_too();
    if is_root() {
        return;
    }
    let (world, cli) = world();
    let directory = world.dir("xdg/escrow");
    write(&directory, "policy: {mode: enforce}\n");
    let cli = cli.env("XDG_CONFIG_HOME", world.at("xdg"));
    let mode = |mode| chmod(&directory, mode);
    cli.fails(MAKE, 3);
    mode(0o000);
    let error = json_error(&cli, MAKE, 2);
    mode(0o700);
    let told = error["message"].to_string();
    assert!(told.contains("Permission denied"), "{told}");
}

#[test]
fn a_directory_above_that_is_closed_is_passed_over() {
    need!(require_root("a directory of another user"));
    let (world, cli) = world();
    let inner = world.dir("closed/inner");
    write(world.path(), "sandbox: {strategy: filesystem_copy}\n");
    chmod(world.at("closed"), 0o700);
    let cli = cli.user().cwd(&inner);
    let said = cli.expect("-v plan list", 0);
    has(&said.stderr_text(), ["escrow.yaml"]);
    // What one may see but not read is reported.
    chmod(world.at("escrow.yaml"), 0o600);
    let error = json_error(&cli, "plan list", 2);
    has(&error["message"].to_string(), ["Permission denied"]);
}

#[test]
fn resources_are_known_by_their_names() {
    let (world, cli) = world();
    world.dir("data dir");
    write(
        world.path(),
        "resource_types:\n  - {name: tree, sandbox_strategy: filesystem_copy}\n\
         resources:\n  project: {at: app, strategy: overlay}\n  \
         src: {at: app/src, parent: project, strategy: inherit}\n  data: {type: tree, at: data dir}\n  \
         db: {type: postgres, at: .}\n",
    );
    let below = cli.clone().cwd(world.dir("app/src"));
    let plan = json(&below, "plan create one --resource project --resource data");
    let sandboxes = list(&plan["sandboxes"]);
    let made: Vec<_> = sandboxes
        .iter()
        .map(|one| (one["resource"].as_str(), one["requested"].as_str()))
        .collect();
    let expected = [("project", "overlay"), ("data", "filesystem_copy")];
    assert_eq!(made, expected.map(|(a, b)| (Some(a), Some(b))));
    assert_eq!(json(&cli, "resource show data")["type"], "tree");
    // Its path means the same, and so does a child that shares the sandbox.
    json(&cli, "plan create two --resource app");
    let made = json(&cli, "sandbox create two src");
    let wanted = (&value!("project"), &value!(false));
    assert_eq!((&made["resource"], &made["created"]), wanted);
    put(&cli, "two src main.rs", "new");
    assert!(cli.ok("diff two --name-status").contains("src/main.rs"));
    // Also before it is used.
    let all = json(&cli, "resource list");
    let db = list(&all["resources"])
        .iter()
        .find(|one| one["name"] == "db")
        .expect("it is listed");
    let expected = (&value!(null), &value!("auto"));
    assert_eq!((&db["id"], &db["strategy"]), expected);
    assert_eq!(db, &json(&cli, "resource show db"));
    // What cannot be of its type says so, and what is not there names what is.
    let error = json_error(&cli, "plan create x --resource db", 2);
    assert_eq!(error["kind"], "usage");
    world.dir("later");
    let later = cli.clone().env("ESCROW_CONFIG", world.at("later.yaml"));
    let text = "resources: {later: {at: later}}\n";
    fs::write(world.at("later.yaml"), text).expect("it can be written");
    let told = later.fails("read one later x", 1);
    assert!(told.contains("has no sandbox of 'later'"), "{told}");
    let error = json_error(&cli, "plan create x --resource projct", 1);
    assert!(error["hints"].to_string().contains("project"), "{error}");
    // A contradiction is reported.
    write(world.path(), "resources: {project: {at: data dir}}\n");
    let error = json_error(&cli, "plan create x --resource project", 4);
    assert_eq!(error["kind"], "conflict");
    let told = error["message"].to_string();
    has(&told, ["of type fs-directory with the strategy overlay"]);
    assert_eq!(list(&json(&cli, "plan list")["plans"]).len(), 2);
}

#[test]
fn run_takes_its_defaults_from_the_configuration() {
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let out = world.dir("out");
    write(
        world.path(),
        "run:\n  writable: [out]\n  network: none\n  scratch: false\n  env: {COLOUR: blue, SIZE: small}\n",
    );
    let cli = cli.cwd(world.dir("app"));
    cli.trust();
    let run =
        |options: &str, text: &str| cli.run(inside(&format!("-q run --rollback {options}"), text));
    let told = run("--env SIZE=large", "echo $COLOUR $SIZE").stdout_text();
    assert_eq!(told, "blue large\n", "the command line wins");
    assert_eq!(run("", "touch ../out/real").status, 0);
    assert!(out.join("real").exists());
    let found = run("--writable ../out/real", "touch ../out/other").status;
    assert_ne!(found, 0);
    assert!(!out.join("other").exists(), "the command line wins");
    assert_ne!(run("", "touch ~/x").status, 0, "there is no layer");
    let got = run("--scratch", "touch ~/x").status;
    assert_eq!(got, 0, "the command line wins");
    let found = run("--scratch --no-scratch", "touch ~/x").status;
    assert_ne!(found, 0, "the last counts");
    assert!(!world.at("user-home/x").exists());
    let devices = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; readlink /proc/self/ns/net";
    let outside = fs::read_link("/proc/self/ns/net").expect("it is there");
    let outside = outside.to_string_lossy().into_owned();
    let told = run("", devices).stdout_text();
    assert!(told.starts_with("lo\n"), "{told}");
    assert!(!told.contains(&outside), "{told}");
    let told = run("--network host", devices).stdout_text();
    assert!(told.contains(&outside), "{told}");
    // A path that cannot be opened up is refused as if it was typed.
    write(world.path(), "run: {writable: [app]}\n");
    cli.trust();
    let refused = run("", "true");
    assert_eq!(refused.status, 125, "{}", refused.stderr_text());
}

#[test]
fn types_are_listed_shown_and_checked() {
    let (world, cli) = world();
    write(
        world.path(),
        "resource_types:\n  - {name: tree, description: ours, sandbox_strategy: overlay, strategies: [overlay, none]}\n",
    );
    let all = json(&cli, "type list");
    assert_eq!(keys(&all), "types");
    let names = column(&all["types"], "name");
    let known = "fs-directory fs-mount fs-file git-checkout sqlite postgres tree";
    assert_eq!(names.join(" "), known);
    let types = list(&all["types"]);
    let usable: Vec<&str> = types
        .iter()
        .filter(|one| one["supported"] == true)
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(usable.join(" "), known);
    let tree = json(&cli, "type show tree");
    assert_eq!(
        tree,
        value!({"name": "tree", "description": "ours", "extends": "fs-directory", "strategy": "overlay",
                "strategies": ["overlay", "none"], "supported": true})
    );
    assert_eq!(json_error(&cli, "type show teapot", 2)["kind"], "usage");
    has(&cli.ok("type show postgres"), ["transaction_rollback"]);

    let valid = json(&cli, "type validate escrow.yaml");
    let wanted = value!({"file": "escrow.yaml", "valid": true, "types": ["tree"], "resources": []});
    assert_eq!(valid, wanted);
    let bad = world.dir("bad");
    let text = "resource_types:\n  - {name: t, sandbox_strategy: overly}\n";
    write(&bad, text);
    let error = json_error(&cli, "type validate bad/escrow.yaml", 2);
    assert_eq!(
        error["details"],
        value!({"file": "bad/escrow.yaml", "line": 2, "column": 33, "key": "resource_types[0].sandbox_strategy"})
    );
    assert_eq!(error["hints"][0], "did you mean 'overlay'?");
    let told = cli.fails("type validate bad/escrow.yaml", 2);
    assert!(told.starts_with("error: bad/escrow.yaml:2:33: "), "{told}");
    // The strategies of a type are kept to, and its default is taken.
    assert_eq!(
        json_error(
            &cli,
            "resource add x --at app --type tree --strategy filesystem_copy",
            2
        )["kind"],
        "usage"
    );
    assert_eq!(
        json_error(&cli, "resource add x --at app --type postgres", 2)["kind"],
        "usage"
    );
    cli.ok("resource add x --at app --type tree");
    assert_eq!(requested(&cli, "plan create try --resource x"), "overlay");
}

#[test]
fn init_writes_what_can_be_used_at_once() {
    for world in [World::new(), World::odd()] {
        let (world, cli) = furnish(world);
        for name in [&b"app"[..], b"with space", b"odd \xff name: [x]"] {
            let directory = world.dir(OsStr::from_bytes(name));
            let cli = cli.clone().cwd(&directory);
            let begun = json(&cli, "init");
            assert_eq!(keys(&begun), "file resources");
            let resource = &begun["resources"][0];
            assert_eq!(keys(resource), "at name type");
            let name = resource["name"].as_str().expect("it has a name");
            cli.ok("type validate escrow.yaml");
            cli.ok(["run", "--commit", "--resource", name, "--", "touch", "made"]);
            assert!(directory.join("made").exists());
            let shown = json(&cli, &format!("resource show {name}"));
            assert_eq!(shown["type"], "fs-directory");
        }
    }
}

#[test]
fn init_writes_over_nothing_unless_told() {
    let (world, cli) = world();
    let app = world.dir("app");
    world.dir("app/.git");
    let cli = cli.cwd(&app);
    write(&app, "sandbox: [\n");
    assert_eq!(json_error(&cli, "init", 4)["kind"], "conflict");
    let read = || read(app.join("escrow.yaml"));
    assert_eq!(read(), "sandbox: [\n");
    let told = cli.ok("init --force");
    assert!(told.contains("wrote escrow.yaml"), "{told}");
    assert!(read().contains("type: git-checkout"), "{}", read());
    cli.ok("type validate escrow.yaml");
    // A link is not followed.
    remove(app.join("escrow.yaml"));
    symlink("target", app.join("escrow.yaml"));
    assert_eq!(json_error(&cli, "init", 4)["kind"], "conflict");
    cli.ok("init --force");
    assert!(!app.join("target").exists());
}

/// Who names no type means what stands there, as on the command line.
#[test]
fn a_resource_without_a_type_is_what_stands_there() {
    let (world, cli) = world();
    let text = "resources:\n  tree: { at: app }\n  page: { at: page.txt, strategy: filesystem_copy }\n  later: { at: nothing }\n";
    write(world.path(), text);
    fs::write(world.at("page.txt"), "one\n").expect("there is room");
    let type_of = |name: &str| json(&cli, &format!("resource show {name}"))["type"].clone();
    for _ in ["before it is used", "and after"] {
        assert_eq!(type_of("tree"), "fs-directory");
        assert_eq!(type_of("page"), "fs-file");
        assert_eq!(type_of("later"), Value::Null);
        let listed = cli.ok("resource list");
        assert!(listed.contains("unknown"), "{listed}");
        if cli.run("plan show try").status != 0 {
            cli.ok("plan create try --resource tree --resource page");
        }
    }
    put(&cli, "try page page.txt", "two\n");
    cli.ok("commit try");
    let page = fs::read_to_string(world.at("page.txt"));
    assert_eq!(page.expect("it is there"), "two\n");
    let said = cli.fails("plan create other --resource later", 1);
    assert!(said.contains("nothing"), "{said}");
    // What stands there may not take the strategy.
    let text = "resources:\n  page: { at: page.txt, strategy: overlay }\n";
    write(world.path(), text);
    cli.ok("cleanup try");
    let said = cli.fails("plan create other --resource page", 2);
    has(&said, ["overlay", "fs-file"]);
}

// rule P8
#[test]
fn types_in_files_of_their_own_belong_to_the_configuration() {
    as_user_too();
    let (world, cli) = world();
    let file = |name: &str, text: &str| fs::write(world.at(name), text).expect("there is room");
    world.dir("types");
    let main = "resource_types: [types/*.yaml, {name: inline, extends: other}]\n\
        resources: {app: {at: app, type: other, options: {part: 3}}}\nrun: {env: {A: b}}\n";
    file("escrow.yaml", main);
    let filed = "name: filed\nsandbox_strategy: filesystem_copy\noptions: {properties: {part: {type: integer}}, additionalProperties: false}\n";
    file("types/a.yaml", filed);
    file("types/b.yaml", "- {name: other, extends: filed}");
    let shown = json(&cli, "type show inline");
    assert_eq!(shown["extends"], "other", "{shown}");
    assert_eq!(shown["strategy"], "filesystem_copy", "{shown}");
    assert_eq!(shown["options"]["additionalProperties"], false, "{shown}");
    cli.says(
        "type validate types/a.yaml",
        "types/a.yaml is valid\n  types  filed\n",
    );
    let valid = "escrow.yaml is valid\n  types  filed other inline\n  resources  app\n";
    cli.says("type validate escrow.yaml", valid);
    // The names are those of the schema for this project.
    let schema = json(&cli, "type schema").to_string();
    has(&schema, ["\"filed\"", "\"inline\"", "\"overlay\""]);
    assert_eq!(cli.ok("type schema").lines().next(), Some("{"));
    // Trust is for all of it, and a plan keeps all of it.
    has(&cli.run("trust").stderr_text(), ["filesystem_copy"]);
    cli.trust();
    let made = json(&cli, "plan create p --resource app");
    assert_eq!(
        made["sandboxes"][0]["strategy"], "filesystem_copy",
        "{made}"
    );
    file("types/a.yaml", &filed.replace("integer", "number"));
    assert_eq!(json(&cli, "trust --yes")["changed"], true);
    sh(world.path(), "mv types elsewhere");
    has(
        &cli.fails("status", 2),
        ["escrow.yaml:1:", "resource_types[0]", "types"],
    );
    cli.clone().cwd("/").ok("diff p");
    sh(world.path(), "mv elsewhere types");
    // What is wrong is named where it stands.
    for (name, text, told) in [
        (
            "types/c.yaml",
            "name: c\nsandbox_strateg: overlay\n",
            "types/c.yaml:2:1: sandbox_strateg: there is no key",
        ),
        (
            "types/c.yaml",
            "- name: c\n  sandbox_strategy: overly\n",
            "types/c.yaml:2:21: [0].sandbox_strategy: there is no strategy 'overly'",
        ),
        (
            "types/c.yaml",
            "name: c\nextends: nothing\n",
            "types/c.yaml:2:10: extends: there is no resource type 'nothing'",
        ),
        (
            "types/c.yaml",
            "name: filed\n",
            "types/c.yaml:1:7: name: there is a type 'filed' already",
        ),
        (
            "types/c.yaml",
            "{name: c, options: {properties: {a: {pattern: x}}}}",
            "types/c.yaml:1:47: options.properties.a.pattern: the keyword",
        ),
        ("types/c.yaml", "17", "types/c.yaml"),
        (
            "escrow.yaml",
            &main.replace("part: 3", "part: x"),
            "escrow.yaml:2:57: resources.app.options.part: it must be of type number",
        ),
        (
            "escrow.yaml",
            &main.replace("part: 3", "prt: 3"),
            "resources.app.options.prt: there is no option 'prt'",
        ),
        (
            "escrow.yaml",
            &main.replace("types/*", "../*"),
            "resource_types[0]: '../*.yaml' is no path in the directory",
        ),
        (
            "escrow.yaml",
            &main.replace("types/*", "types/z*"),
            "no file is named 'types/z*.yaml'",
        ),
        (
            "escrow.yaml",
            "#@types 3 x\n{}\n",
            "a line cannot begin with '#@types '",
        ),
    ] {
        let before = fs::read_to_string(world.at(name)).ok();
        file(name, text);
        has(&cli.fails("status", 2), [told]);
        match before {
            Some(before) => file(name, &before),
            None => remove(world.at(name)),
        }
    }
    symlink("a.yaml", world.at("types/c.yaml"));
    has(
        &cli.fails("status", 2),
        ["types/c.yaml' cannot be used: it is a link"],
    );
}

/// At a pipe with a name one would wait for ever for a process that writes; a pipe of the shell has one.
// attack D29; rule S5
#[test]
fn d29_a_named_pipe_kept_a_command_waiting() {
    as_user_too();
    let (world, cli) = world();
    cli.ok("plan create try");
    sh(world.path(), "mkfifo pipe");
    for line in ["--config pipe status", "type validate pipe"] {
        let said = cli.fails(line, 2);
        assert!(said.contains("named pipe"), "{said}");
    }
    let mut command = cli.behind(
        &["bash", "-c", "\"$0\" \"$@\" <(echo 'run: {network: none}')"],
        words("type validate"),
    );
    assert!(command.status().expect("there is bash").success());
    let home = world.home();
    let locks: Vec<_> = fs::read_dir(home.join("locks"))
        .expect("there are locks")
        .collect();
    for lock in locks {
        let lock = lock.expect("it can be listed").path();
        remove(&lock);
        sh(&home, &format!("mkfifo {}", lock.display()));
    }
    let said = cli.fails("cleanup try", 1);
    assert!(said.contains("not a regular file"), "{said}");
    // A link in the place of the store leads to one that another process chose.
    sh(&home, "mv state.db elsewhere; ln -s elsewhere state.db");
    let said = cli.fails("plan list", 1);
    assert!(said.contains("not a regular file"), "{said}");
}
