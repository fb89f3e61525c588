//! Files of other groups and users that an ordinary user may change outside: an overlay can change those whose group can be
//! mapped; for the rest `auto` takes a copy, and what does not work is said.

use crate::*;

/// A group that the test user is a member of.
const SHARED: u32 = 61005;
/// One that the user is no member of.
const OTHER: u32 = 61006;
/// Another user.
const STRANGER: u32 = 61007;

/// The account files of a machine that knows the test user and grants groups.
fn granting(lines: &str) -> [(&'static str, String); 2] {
    let passwd = format!("root:x:0:0::/:/bin/sh\ntester:x:{UID}:{GID}::/:/bin/sh\n");
    [("/etc/passwd", passwd), ("/etc/subgid", lines.to_owned())]
}

fn on(cli: &Cli, files: &[(&'static str, String)]) -> Cli {
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, &**text)).collect();
    cli.clone().machine(&files)
}

/// An `app` of the test user, and the program as that user, who is a member of `SHARED`. On a machine that grants nothing.
fn user_world(script: &str) -> Option<(World, Cli)> {
    if !require_root("files of other groups and users") {
        return None;
    }
    let (world, cli) = world();
    world.chown_to_user();
    sh(world.at("app"), script);
    let cli = cli.user().groups(&[SHARED]);
    let cli = on(&cli, &granting(""));
    Some((world, cli))
}

/// `shared.txt` and the directory `team`, which hands its group down, belong to the user and to `SHARED`.
fn shared_files() -> String {
    format!(
        "echo one > shared.txt; mkdir team; echo one > team/deep.txt; chown -R {UID}:{SHARED} shared.txt team;
         chmod 0664 shared.txt team/deep.txt; chmod 2775 team"
    )
}

fn has_helper() -> bool {
    let there = Path::new("/usr/bin/newgidmap").exists();
    if !there {
        skip("needs newgidmap (package uidmap)");
    }
    there
}

fn overlay(doctor: &Value) -> &Value {
    let all = list(&doctor["strategies"]);
    let found = all.iter().find(|one| one["name"] == "overlay");
    found.expect("overlay is listed")
}

fn is_copy(strategy: &Value) -> bool {
    ["copy_on_write", "filesystem_copy"]
        .map(Value::from)
        .contains(strategy)
}

/// Owner, group and mode of a file.
fn looks(path: &Path) -> (u32, u32, u32) {
    let meta = path.symlink_metadata();
    let meta = meta.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

// rule S8, F1
#[test]
fn files_of_a_foreign_group_could_not_be_changed_inside() {
    let (world, cli) = need!(user_world(&shared_files()));
    let app = world.at("app");
    let doctor = json(&cli, "doctor");
    assert!(is_copy(&doctor["auto"]), "{doctor}");
    let verdict = overlay(&doctor);
    assert_eq!(verdict["works"], true, "{verdict}");
    let limit = verdict["limit"].as_str().expect("it has a limit");
    has(&limit, [&format!("group {SHARED}")]);
    has(&limit, [&format!("{UID}:{SHARED}:1 in /etc/subgid")]);

    let script = "echo two >> shared.txt && echo two >> team/deep.txt && echo new > team/new.txt && chmod 0660 shared.txt";
    let outcome = cli.run(inside("run", script));
    let said = outcome.stderr_text();
    assert_eq!(outcome.status, 0, "{said}");
    assert!(said.contains("was taken instead of overlay"), "{said}");
    let plan = json(&cli, "plan show app");
    let sandbox = &plan["sandboxes"][0];
    assert!(is_copy(&sandbox["strategy"]), "{plan}");
    let reasons = sandbox["reasons"].to_string();
    assert!(reasons.contains("overlay works with a limit"), "{plan}");
    assert_eq!(read(app.join("shared.txt")), "one\n");

    cli.ok("commit app");
    assert_eq!(read(app.join("shared.txt")), "one\ntwo\n");
    assert_eq!(looks(&app.join("shared.txt")), (UID, SHARED, 0o660));
    assert_eq!(looks(&app.join("team/deep.txt")), (UID, SHARED, 0o664));
    assert_eq!(looks(&app.join("team/new.txt")).1, SHARED);
    assert_quiet(&world);
}

// What is said of one directory is not said of another on the same disk, in whatever order they are asked for.
// rule S8
#[test]
fn a_limit_was_remembered_for_the_whole_disk() {
    let (world, cli) = need!(user_world(&shared_files()));
    let script = format!("mkdir own; echo one > own/f; chown -R {UID}:{GID} own");
    sh(world.path(), &script);
    let cli = cli.cwd(world.path());
    for (name, line) in [
        ("first", "-r ./app -r ./own"),
        ("second", "-r ./own -r ./app"),
    ] {
        let plan = json(&cli, &format!("plan create {name} {line}"));
        let strategy = |resource: &str| {
            let all = list(&plan["sandboxes"]);
            let found = all.iter().find(|one| one["resource"] == resource);
            found.expect("it has a sandbox")["strategy"].clone()
        };
        assert_eq!(strategy("own"), "overlay", "{plan}");
        assert!(is_copy(&strategy("app")), "{plan}");
        cli.ok(["cleanup", name]);
    }
}

// rule F1
#[test]
fn an_overlay_by_name_says_what_will_not_work() {
    let (world, cli) = need!(user_world(&shared_files()));
    let app = world.at("app");
    let outcome = cli.run(inside(
        "run --strategy overlay",
        "echo own >> a.txt; echo two >> shared.txt",
    ));
    let said = outcome.stderr_text();
    assert_ne!(outcome.status, 0, "{said}");
    let limit = "commands inside cannot change";
    assert!(said.contains(&format!("warning: app: {limit}")), "{said}");
    let holds = said.contains(&format!("the sandbox of app: {limit}"));
    assert!(holds, "said again when the command failed: {said}");
    assert_eq!(
        json(&cli, "plan show app")["sandboxes"][0]["strategy"],
        "overlay"
    );
    // Written from outside it can be changed all the same, and keeps the group.
    put(&cli, "app app shared.txt", "three\n");
    let expected = "M\ta.txt\nM\tshared.txt\n";
    assert_eq!(cli.ok("diff app --name-status"), expected);
    let wanted = "three\n";
    assert_eq!(cli.ok(in_plan("app", "cat shared.txt")), wanted);
    cli.ok("commit app");
    assert_eq!(read(app.join("shared.txt")), "three\n");
    assert_eq!(looks(&app.join("shared.txt")), (UID, SHARED, 0o664));
    cli.ok("undo app");
    assert_eq!(read(app.join("shared.txt")), "one\n");
    assert_quiet(&world);
}

// What the user may change is asked of the kernel: a group, every process, or an access control list may permit
// it. What lies in a directory that cannot be copied up is as much out of reach; what the user may not change
// anyway is no limit.
#[test]
fn whatever_permits_a_change_counts_and_nothing_else() {
    let (theirs, ours) = (format!("{STRANGER}:{OTHER}"), format!("{UID}:{GID}"));
    let (grouped, odd) = (format!("{STRANGER}:{SHARED}"), format!("{UID}:{OTHER}"));
    let (list, above) = ("setfacl -m u:54321:rw x/f", "chown 61007:61006 x");
    let cases = [
        ("by a group", "664", &grouped, "", true),
        ("by everybody", "646", &theirs, "", true),
        ("by a list", "640", &theirs, list, true),
        ("as its owner", "400", &odd, "", true),
        ("in another's directory", "600", &ours, above, true),
        ("not at all", "644", &theirs, "", false),
        ("to others only", "660", &theirs, "", false),
        ("as usual", "600", &ours, "", false),
    ];
    for (what, mode, owner, more, limited) in cases {
        let Some((_world, cli)) = user_world(&format!(
            "mkdir x; chown {UID}:{GID} x; echo one > x/f; chown {owner} x/f; chmod {mode} x/f; {more}"
        )) else {
            return;
        };
        let doctor = json(&cli, "doctor");
        let limit = overlay(&doctor)["limit"].to_string();
        assert_eq!(
            limit.contains("cannot change 'x/f'"),
            limited,
            "{what}: {limit}"
        );
        assert_eq!(doctor["auto"] == "overlay", !limited, "{what}: {doctor}");
        // What was said is true.
        let changed = cli.run(inside(
            "run --strategy overlay --rollback",
            "echo two >> x/f || chmod 0600 x/f",
        ));
        let permitted = limited || what == "as usual";
        assert_eq!(
            changed.status == 0,
            permitted && !limited,
            "{what}: {}",
            changed.stderr_text()
        );
    }
}

// rule F1
#[test]
fn a_granted_group_is_mapped_and_its_files_can_be_changed() {
    let (world, cli) = need!(user_world(&shared_files()));
    need!(has_helper());
    let app = world.at("app");
    // Beside the one group a usual range, in which nothing is; overlapping lines and the own group do no harm.
    let lines =
        format!("tester:{SHARED}:1\n{UID}:{SHARED}:1\ntester:100000:65536\ntester:{GID}:1\n");
    let cli = on(&cli, &granting(&lines));
    let doctor = json(&cli, "doctor");
    assert_eq!(doctor["auto"], "overlay", "{doctor}");
    assert_eq!(overlay(&doctor)["limit"], Value::Null, "{doctor}");
    assert_eq!(doctor["run"]["works"], true, "{doctor}");

    let first =
        Running::ready(cli.command(inside("run", &format!("echo two >> shared.txt; {WAIT}"))));
    // A second command joins the first one's namespaces, which have the same map.
    let script = "echo two >> team/deep.txt; echo new > team/new.txt; chmod 0660 shared.txt; stat -c %g shared.txt";
    let joined = cli.expect(in_plan("app", script), 0);
    assert_eq!(joined.stdout_text(), format!("{SHARED}\n"));
    assert_eq!(first.finish().status, 0);
    let plan = json(&cli, "plan show app");
    assert_eq!(plan["sandboxes"][0]["strategy"], "overlay", "{plan}");
    assert_eq!(plan["sandboxes"][0]["warnings"], value!([]));
    let expected = "M\tshared.txt\nM\tteam/deep.txt\nA\tteam/new.txt\n";
    assert_eq!(cli.ok("diff app --name-status"), expected);
    cli.ok("commit app");
    assert_eq!(looks(&app.join("shared.txt")), (UID, SHARED, 0o660));
    assert_eq!(looks(&app.join("team/deep.txt")), (UID, SHARED, 0o664));
    assert_eq!(looks(&app.join("team/new.txt")).1, SHARED);
    cli.ok("undo app");
    assert_eq!(read(app.join("shared.txt")), "one\n");
    assert_eq!(looks(&app.join("shared.txt")), (UID, SHARED, 0o664));
    assert_quiet(&world);
}

// More ids are known inside, but the command has no capability, so it can become none of them and reach nothing by them.
#[test]
fn a_mapped_group_gives_the_command_nothing() {
    let Some((world, cli)) = user_world(&format!(
        "echo secret > theirs; chown {STRANGER}:{OTHER} theirs; chmod 0640 theirs; echo own > mine; chown {UID}:{GID} mine"
    )) else {
        return;
    };
    need!(has_helper());
    let cli = on(
        &cli,
        &granting(&format!("tester:{SHARED}:1\ntester:{OTHER}:1\n")),
    );
    let said = cli.ok(inside("run --strategy overlay --allow-userns --rollback", &format!(
        "cat /proc/self/setgroups; grep -E '^(Groups|Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status
         tr -s ' ' < /proc/self/gid_map
         try() {{ if \"$@\" 2> /dev/null; then echo \"GOT $*\"; fi; }}
         try cat theirs; try chgrp {OTHER} mine; try setpriv --regid={OTHER} cat theirs
         try setpriv --groups={OTHER} cat theirs; try setpriv --clear-groups true
         try unshare -U setpriv --regid={OTHER} cat theirs; try newgidmap $$ {OTHER} {OTHER} 1
         try chgrp {SHARED} mine"
    )));
    let none = "0000000000000000";
    let expected = format!(
        "deny\nGroups:\t{SHARED} \nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\n \
         {GID} {GID} 1\n {SHARED} {SHARED} 1\n {OTHER} {OTHER} 1\nGOT chgrp {SHARED} mine\n"
    );
    // A group of the user's own can be given, as outside; nothing else can be had.
    assert_eq!(said, expected);
    assert_quiet(&world);
}

// rule S5
#[test]
fn a_helper_that_refuses_or_hangs_costs_the_groups_only() {
    let (world, cli) = need!(user_world("true"));
    need!(has_helper());
    let grant = ("/etc/subgid", format!("{UID}:{SHARED}:1\n"));
    let unknown = ("/etc/passwd", "root:x:0:0::/:/bin/sh\n".to_owned());
    let hangs = (
        "/usr/bin/newgidmap",
        "#!/bin/sh\nexec sleep 1000\n".to_owned(),
    );
    for (files, why) in [
        ([grant.clone(), unknown], "user name"),
        ([grant, hangs], "did not end within"),
    ] {
        let cli = on(&cli, &files);
        let outcome = cli.run(inside(
            "run --strategy overlay --rollback",
            "echo two >> a.txt; cat a.txt",
        ));
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, 0, "{said}");
        assert_eq!(outcome.stdout_text(), "one\ntwo\ntwo\n");
        has(&said, ["/etc/subgid grants you are not mapped inside"]);
        assert!(said.contains(why), "{said}");
        assert_quiet(&world);
    }
}

/// Systems that grant groups to every user, and have no helper, heard of it at every run.
#[test]
fn a_helper_that_is_not_installed_is_told_only_where_it_matters() {
    let (_world, plain) = need!(user_world("true"));
    need!(has_helper());
    let [passwd, subgid] = granting(&format!("tester:{SHARED}:1\n"));
    let machine = [passwd, subgid, ("/usr/bin/newgidmap", String::new())];
    let line = inside("run --strategy overlay --rollback", "echo two >> a.txt");
    let outcome = on(&plain, &machine).run(line);
    let said = outcome.stderr_text();
    assert_eq!(outcome.status, 0, "{said}");
    lacks(&said, ["subgid", "newgidmap"]);
    let (_world, shared) = need!(user_world(&shared_files()));
    let doctor = json(&on(&shared, &machine), "doctor");
    let limit = overlay(&doctor)["limit"].to_string();
    assert!(limit.contains("newgidmap is not installed"), "{limit}");
}

#[test]
fn a_grant_that_cannot_be_used_is_told_before() {
    let (_world, cli) = need!(user_world(&shared_files()));
    need!(has_helper());
    let refuses = "#!/bin/sh\necho 'newgidmap: not today' >&2\nexit 1\n".to_owned();
    let [passwd, subgid] = granting(&format!("tester:{SHARED}:1\n"));
    let cli = on(&cli, &[passwd, subgid, ("/usr/bin/newgidmap", refuses)]);
    let doctor = json(&cli, "doctor");
    assert!(is_copy(&doctor["auto"]), "{doctor}");
    let limit = overlay(&doctor)["limit"].to_string();
    has(&limit, ["cannot be mapped: newgidmap: not today"]);
}

// Making an overlay costs the same for any size, so not everything is looked at; a command that failed is
// reported more.
#[test]
fn what_was_not_looked_at_is_explained_when_a_command_failed() {
    let Some((world, cli)) = user_world(&format!(
        "for n in $(seq 400); do : > f$n; done; mkdir deep; echo one > deep/f; chown -R {UID}:{GID} .; chown {UID}:{OTHER} deep/f"
    )) else {
        return;
    };
    let doctor = json(&cli, "doctor");
    assert_eq!(doctor["auto"], "overlay", "{doctor}");
    let works = cli.expect(inside("run", "echo two >> f1"), 0);
    lacks(&works.stderr_text(), ["EOVERFLOW"]);
    let failed = cli.run(inside("run", "echo two >> deep/f"));
    let said = failed.stderr_text();
    assert_ne!(failed.status, 0, "{said}");
    has(&said, ["commands inside cannot change 'deep/f'"]);
    cli.ok("cleanup app");
    assert_clean(&world);
}

#[test]
fn root_changes_files_of_any_group_inside() {
    need!(require_root("files of other groups and users"));
    let (world, cli) = world();
    let app = world.at("app");
    sh(
        &app,
        &format!(
            "{}; chown {STRANGER}:{OTHER} a.txt; chmod 0666 a.txt team/deep.txt",
            shared_files()
        ),
    );
    let doctor = json(&cli, "doctor");
    assert_eq!(doctor["auto"], "overlay", "{doctor}");
    assert_eq!(overlay(&doctor)["limit"], Value::Null, "{doctor}");
    cli.ok(inside(
        "run",
        "echo three >> a.txt; echo two >> team/deep.txt",
    ));
    let committed = json(&cli, "commit app");
    let expected = value!([]);
    assert_eq!(committed["resources"][0]["notes"], expected, "{committed}");
    assert_eq!(looks(&app.join("a.txt")), (STRANGER, OTHER, 0o666));
    assert_eq!(looks(&app.join("team/deep.txt")), (UID, SHARED, 0o666));
}

// The time of a directory can be set by its owner only. A commit into another user's directory failed there, and so did
// taking it back: the plan could neither be committed nor recovered nor removed.
// rule C4, F1
#[test]
fn a_commit_into_a_directory_of_another_user_could_never_be_finished() {
    let script = format!(
        "mkdir theirs; echo one > theirs/f; echo one > theirs/g; echo one > both; chown -R {STRANGER}:{SHARED} theirs
         chmod 0775 theirs; chmod 0664 theirs/f; chmod 0666 theirs/g; chown {STRANGER}:{OTHER} theirs/g both; chmod 0666 both"
    );
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = need!(user_world(&script));
        let app = world.at("app");
        let look = |name: &str| looks(&app.join(name));
        cli.plan("p", ".", strategy);
        for file in ["theirs/f", "theirs/g", "theirs/new", "both"] {
            cli.clone().stdin("two\n").ok(["write", "p", "app", file]);
        }
        let shown = json(&cli, "commit p --dry-run");
        let note = shown["resources"][0]["notes"][0].to_string();
        let expected = format!("its owner {STRANGER} and group {OTHER} are not kept");
        assert!(note.contains(&expected), "{strategy}: {shown}");
        assert!(note.contains("2 more"), "{strategy}: {shown}");
        cli.ok("commit p");
        // The new versions belong to who made them, and to the old group where that may be set.
        assert_eq!(look("theirs/f"), (UID, SHARED, 0o664), "{strategy}");
        assert_eq!(look("theirs/g"), (UID, GID, 0o666), "{strategy}");
        assert_eq!(look("both"), (UID, GID, 0o666), "{strategy}");
        assert_eq!(read(app.join("theirs/new")), "two\n");
        assert_eq!(look("theirs"), (STRANGER, SHARED, 0o775), "{strategy}");
        cli.ok("undo p");
        assert_eq!(look("theirs/f"), (STRANGER, SHARED, 0o664), "{strategy}");
        assert_eq!(look("both"), (STRANGER, OTHER, 0o666), "{strategy}");
        assert_eq!(read(app.join("theirs/f")), "one\n");
        assert!(!app.join("theirs/new").exists());
        cli.ok("cleanup p");
        assert_clean(&world);
    }
}
