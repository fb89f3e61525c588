//! Going back: an undo is not stopped by what does not matter, loses nothing, and leaves the plan open with its changes; a
//! rollback can be undone.

use crate::sqlite::{inner, planned, sql};
use crate::support::*;
use crate::*;

/// A plan of a directory `app` with a commit of text files, a new directory, a link and deletions.
fn committed(strategy: &str) -> (World, Cli) {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let app = world.dir("app");
    fs::write(app.join("m.py"), "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n").expect("there is room");
    fs::write(app.join("one"), "one\n").expect("there is room");
    fs::create_dir(app.join("old")).expect("there is room");
    fs::write(app.join("old/x"), "x\n").expect("there is room");
    cli.ok(format!(
        "plan create try --resource ./app --strategy {strategy}"
    ));
    let edits = "cd ../app && sed -i 's/a = 1/a = 10/' m.py && echo two > one && chmod 755 one && rm -r old && \
                 mkdir -p new/deep && echo 1 > new/1 && echo 2 > new/deep/2 && ln -s 1 new/link";
    let mut line = words("-q run --plan try -- sh -euc");
    line.push(edits.into());
    cli.clone().cwd(world.path().join("app")).ok(line);
    cli.ok("commit try");
    (world, cli)
}

fn shown(cli: &Cli, plan: &str) -> Vec<String> {
    let diff = json(cli, &format!("diff {plan}"));
    let changes = list(&diff["resources"][0]["changes"]);
    let one = |change: &Value| {
        let text = |key: &str| change[key].as_str().expect("a text").to_owned();
        format!("{} {}", text("kind"), text("path"))
    };
    changes.iter().map(one).collect()
}

const ALL: [&str; 8] = [
    "modified m.py",
    "added new",
    "added new/1",
    "added new/deep",
    "added new/deep/2",
    "added new/link",
    "deleted old",
    "deleted old/x",
];

const STRATEGIES: [&str; 2] = ["overlay", "filesystem_copy"];

// rule C20, P5
#[test]
fn an_undone_plan_is_open_again_with_its_changes() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = committed(strategy);
        let after = snapshot(&world.at("app"));
        let undone = json(&cli, "undo try");
        assert_eq!(undone["success"], true);
        assert_eq!(undone["open"], true, "{undone}");
        assert!(world.at("app/old/x").exists() && !world.at("app/new").exists());
        let mut all: Vec<String> = ALL.map(str::to_owned).to_vec();
        all.push("modified one".to_owned());
        let mut found = shown(&cli, "try");
        all.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, all, "{strategy}");
        // Once more around: the same comes out, and the sandbox shares nothing with the original.
        cli.ok("commit try");
        assert_eq!(snapshot(&world.at("app")), after, "{strategy}");
        cli.ok("undo try");
        fs::write(world.at("app/m.py"), "mine\n").expect("there is room");
        assert!(
            cli.ok("read try app m.py").starts_with("a = 10"),
            "{strategy}"
        );
        cli.ok("cleanup try");
        assert_eq!(world.areas(), [""; 0]);
    }
}

/// What is in a directory: paths with modes and contents.
fn snapshot(at: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![at.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("it is there") {
            let path = entry.expect("it can be read").path();
            let meta = fs::symlink_metadata(&path).expect("it is there");
            let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
            let content = match meta.is_file() {
                true => fs::read_to_string(&path).expect("a text"),
                false => String::new(),
            };
            found.push(format!("{} {mode:o} {content:?}", path.display()));
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort_unstable();
    found
}

// rule C20
#[test]
fn what_others_put_into_a_new_directory_stays_there() {
    for strategy in STRATEGIES {
        let (world, cli) = committed(strategy);
        fs::write(world.at("app/new/deep/mine"), "mine\n").expect("there is room");
        fs::remove_file(world.at("app/new/1")).expect("it is there");
        let undone = json(&cli, "undo try");
        let stays = list(&undone["stays"]);
        assert_eq!(stays.len(), 1, "{undone}");
        assert_eq!(stays[0]["path"], "new/deep/mine");
        let left = fs::read_dir(world.at("app/new/deep")).expect("it stays");
        assert_eq!(left.count(), 1, "{strategy}");
        assert!(!world.at("app/new/link").exists() && world.at("app/old/x").exists());
        let found = shown(&cli, "try");
        assert!(found.contains(&"added new/deep/2".to_owned()), "{found:?}");
        // What was deleted before the undo is no change of the plan any more.
        assert!(!found.contains(&"added new/1".to_owned()), "{found:?}");
        cli.ok("commit try");
        assert!(world.at("app/new/deep/mine").exists() && world.at("app/new/deep/2").exists());
    }
}

// rule C20, C15
#[test]
fn files_that_git_ignores_never_stop_an_undo() {
    as_user_too();
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let app = world.dir("app");
    let git = |args: &str| {
        let ran = std::process::Command::new("git")
            .args(args.split(' '))
            .current_dir(&app)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .expect("git is installed");
        assert!(ran.status.success(), "git {args}: {ran:?}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    git("init -q -b main .");
    git("config user.email a@example.org");
    git("config user.name A");
    fs::write(app.join(".gitignore"), "__pycache__/\n*.log\n").expect("there is room");
    fs::write(app.join("m.py"), "a = 1\n").expect("there is room");
    git("add .");
    git("commit -qm one");
    let here = cli.clone().cwd(&app);
    here.ok(inside(
        "-q run",
        "echo 'a = 2' > m.py && mkdir -p p/__pycache__ && echo 1 > p/m.py && echo c > p/__pycache__/m.pyc && \
         echo l > run.log && git add . && git commit -qm two",
    ));
    here.ok("commit");
    // What a test run leaves: a touched cache, a new cache file, a longer log, a removed cache file.
    fs::write(app.join("p/__pycache__/m.pyc"), "changed").expect("there is room");
    fs::write(app.join("p/__pycache__/n.pyc"), "new").expect("there is room");
    fs::write(app.join("run.log"), "l\nmore\n").expect("there is room");
    let undone = json(&here, "undo");
    let mut stays = column(&undone["stays"], "path");
    stays.sort_unstable();
    assert_eq!(
        stays,
        ["p/__pycache__/m.pyc", "p/__pycache__/n.pyc", "run.log"]
    );
    assert_eq!(git("log --format=%s"), "one\n");
    assert_eq!(git("status --porcelain"), "");
    assert!(!app.join("p/m.py").exists());
    // The private history is where it was: the same commit arrives again.
    assert_eq!(here.ok("run -q -- git log --format=%s"), "two\none\n");
    assert_eq!(here.ok("run -q -- git status --porcelain"), "");
    here.ok("commit");
    assert_eq!(git("log --format=%s"), "two\none\n");
    assert_eq!(git("status --porcelain"), "");
}

// rule C20, C15
#[test]
fn a_choice_settles_what_was_changed_since() {
    let newer = "a = 10\nb = 2\nc = 3\nd = 4\ne = 50\n";
    for (choice, m, one, in_plan) in [
        (
            "original",
            newer,
            "mine\n",
            &["modified m.py", "modified one"][..0],
        ),
        (
            "sandbox",
            "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n",
            "one\n",
            &["modified m.py", "modified one"],
        ),
    ] {
        let (world, cli) = committed("overlay");
        fs::write(world.at("app/m.py"), newer).expect("there is room");
        fs::write(world.at("app/one"), "mine\n").expect("there is room");
        let refused = failed(&cli, "undo try", 4);
        let mut paths = column(&refused["conflicts"], "path");
        paths.sort_unstable();
        assert_eq!(paths, ["m.py", "one"]);
        let hints = refused["error"]["hints"].to_string();
        assert!(hints.contains("escrow undo try --on-conflict"), "{hints}");
        // A dry run says the same and changes nothing.
        cli.ok(format!("undo try --on-conflict {choice} --dry-run"));
        assert!(world.at("app/new").exists());
        cli.ok(format!("undo try --on-conflict {choice}"));
        let read = |name: &str| fs::read_to_string(world.at(name)).expect("it is there");
        assert_eq!(read("app/m.py"), m, "{choice}");
        assert_eq!(read("app/one"), one, "{choice}");
        let found = shown(&cli, "try");
        for path in ["modified m.py", "modified one"] {
            assert_eq!(
                found.contains(&path.to_owned()),
                in_plan.contains(&path),
                "{choice} {found:?}"
            );
        }
        // Nothing that was written since is lost: what went out of the original is in the plan.
        if choice == "sandbox" {
            assert_eq!(cli.ok("read try app one"), "mine\n");
        }
    }
}

// rule C15
#[test]
fn an_undo_merges_text_and_says_what_cannot_be_merged() {
    let (world, cli) = committed("overlay");
    let newer = "a = 10\nb = 2\nc = 3\nd = 4\ne = 50\n";
    fs::write(world.at("app/m.py"), newer).expect("there is room");
    fs::write(world.at("app/one"), "mine\n").expect("there is room");
    let refused = failed(&cli, "undo try --on-conflict merge", 4);
    assert_eq!(column(&refused["conflicts"], "path"), ["one"]);
    assert!(
        refused["conflicts"]
            .to_string()
            .contains("cannot be merged")
    );
    // A part goes back alone, and the rest can be undone later.
    cli.ok("undo try --on-conflict merge --only m.py");
    let read = |name: &str| fs::read_to_string(world.at(name)).expect("it is there");
    assert_eq!(read("app/m.py"), "a = 1\nb = 2\nc = 3\nd = 4\ne = 50\n");
    assert!(world.at("app/new/deep/2").exists());
    assert_eq!(shown(&cli, "try"), ["modified m.py"]);
    assert_eq!(cli.ok("read try app m.py"), newer);
    cli.ok("undo try --on-conflict original");
    assert_eq!(read("app/one"), "mine\n");
    assert!(!world.at("app/new").exists() && world.at("app/old/x").exists());
    let mut all = ALL.to_vec();
    all.sort_unstable();
    let mut found = shown(&cli, "try");
    found.sort_unstable();
    assert_eq!(found, all);
    cli.fails("undo try", 4);
}

// rule C20, P5
#[test]
fn a_rollback_can_be_undone() {
    as_user_too();
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let app = world.dir("app");
    fs::write(app.join("f"), "one\n").expect("there is room");
    let here = cli.clone().cwd(&app);
    // A plan that `run` made ends, and comes back as it was.
    here.ok(inside("-q run", "echo two > f && echo n > new"));
    here.ok("rollback");
    assert_eq!(json(&here, "status")["plans"], value!([]));
    let listed = json(&here, "plan list");
    assert_eq!(listed["plans"][0]["state"], "rolled_back", "{listed}");
    here.ok("gc");
    let undone = json(&here, "undo");
    assert_eq!(undone["plan"], "app");
    assert_eq!(shown(&here, "app"), ["modified f", "added new"]);
    // Until it is freed.
    here.ok("rollback");
    here.ok("gc --older-than 0s");
    here.fails("undo", 1);
    assert_eq!(world.areas(), [""; 0]);
    // Any other can be worked in again, and what was discarded comes back all the same.
    for strategy in STRATEGIES {
        here.ok(format!(
            "plan create {strategy} --resource . --strategy {strategy}"
        ));
        put(&here, &format!("{strategy} app f"), "three\n");
        here.ok(format!("rollback {strategy}"));
        assert_eq!(shown(&here, strategy), [""; 0]);
        here.ok(format!("undo {strategy}"));
        assert_eq!(shown(&here, strategy), ["modified f"]);
        here.ok(format!("cleanup {strategy}"));
    }
    assert_eq!(world.areas(), [""; 0]);
}

// rule C20
#[test]
fn the_last_commit_or_rollback_of_a_directory_is_undone_first() {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let app = world.dir("app");
    fs::write(app.join("f"), "one\n").expect("there is room");
    let here = cli.clone().cwd(&app);
    here.ok(inside("-q run", "echo two > f"));
    here.ok("commit");
    here.ok(inside("-q run --new", "echo three > f"));
    let plan = json(&here, "status")["plans"][0]["name"].clone();
    here.ok("rollback");
    assert_eq!(json(&here, "undo")["plan"], plan);
    assert_eq!(json(&here, "undo")["plan"], "app");
    assert_eq!(
        fs::read_to_string(app.join("f")).expect("it is there"),
        "one\n"
    );
    let refused = here.fails("rollback nothing", 1);
    assert!(refused.contains("nothing"), "{refused}");
}

// rule C3, C20
#[test]
fn an_undo_that_is_killed_anywhere_loses_no_change() {
    let before = committed("overlay");
    let calls: &[&str] = &["renameat2", "linkat", "fsync", "pwrite64"];
    drop(before);
    for n in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144] {
        let (world, cli) = committed("overlay");
        let run = cli.stepper("undo try").only(calls).fault(n, Fault::Kill);
        if run.hit.is_none() {
            break;
        }
        cli.ok("recover");
        let state = json(&cli, "plan show try")["state"].clone();
        if state != "open" {
            cli.ok("undo try");
        }
        assert!(!world.at("app/new").exists(), "killed at {n}");
        let mut found = shown(&cli, "try");
        found.sort_unstable();
        let mut all: Vec<String> = ALL.map(str::to_owned).to_vec();
        all.push("modified one".to_owned());
        all.sort_unstable();
        assert_eq!(found, all, "killed at {n}");
        cli.ok("cleanup try");
        assert_eq!(world.areas(), [""; 0]);
    }
}

// rule C20
#[test]
fn an_undone_plan_of_a_database_holds_its_rows_again() {
    let table =
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'one'), (2, 'two')";
    let (world, cli, at) = planned(table);
    let all = "SELECT group_concat(id || v, ' ') FROM t";
    sql(
        &inner(&cli),
        "UPDATE t SET v = 'uno' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (3, 'tre'); \
         ALTER TABLE t ADD COLUMN w DEFAULT 'w'; CREATE TABLE u (x); INSERT INTO u VALUES (1)",
    );
    let inside = sql(&inner(&cli), ".dump");
    for _ in 0..2 {
        cli.ok("commit try");
        assert_eq!(sql(&at, all), "1uno 3tre");
        let undone = json(&cli, "undo try");
        assert_eq!(undone["open"], true, "{undone}");
        assert_eq!(sql(&at, all), "1one 2two");
        assert_eq!(sql(&inner(&cli), ".dump"), inside);
    }
    // The same of a rollback.
    cli.ok("rollback try");
    assert_eq!(sql(&inner(&cli), all), "1one 2two");
    cli.ok("undo try");
    assert_eq!(sql(&inner(&cli), ".dump"), inside);
    cli.ok("cleanup try");
    assert_eq!(world.areas(), [""; 0]);
}
