//! A state that lost its records in place is damage: told, with nothing changed, and nothing taken for an orphan.

use crate::sqlite::Waiting;
use crate::*;

/// A plan that is open, with a change in it.
fn open(cli: &Cli, plan: &str) {
    cli.ok(format!("plan create {plan} --resource ./app"));
    put(cli, &format!("{plan} app a.txt"), "unreleased\n");
}

fn state(world: &World) -> PathBuf {
    world.home().join("state.db")
}

/// Every command is refused with 5, says what to do, and changes nothing; the areas can still be named.
#[track_caller]
fn is_damage(world: &World, cli: &Cli, why: &str) {
    let areas = world.home().join("sandboxes");
    let before = (signature(&areas), fs::read(state(world)).ok());
    let lines = "gc; gc --max-size 0; status; plan list; diff try; cleanup try --yes; recover; \
        plan create new --resource ./app";
    for line in lines.split("; ") {
        let said = cli.fails(line, 5);
        assert!(said.contains("lost records"), "{line}: {said}");
        assert!(said.contains(why), "{line}: {said}");
        assert!(said.contains("nothing was changed"), "{line}: {said}");
        assert!(said.contains("`escrow gc --orphans`"), "{line}: {said}");
    }
    let named = cli.expect("--json gc --orphans", 5);
    let named: Value = serde_json::from_str(&named.stdout_text()).expect("one document");
    let orphans = &named["error"]["details"]["orphans"];
    assert_eq!(keys(&orphans[0]), "bytes changed made path what why");
    assert_eq!(orphans[0]["what"], "sandbox", "{orphans:#}");
    let told = cli.run("gc --orphans");
    has(&told.stdout_text(), ["/sandboxes/sbx_"]);
    unchanged(&before.0, &areas);
    let holds = before.1 == fs::read(state(world)).ok();
    assert!(holds, "the state is as it was");
}

#[test]
fn a_state_that_was_emptied_or_removed_is_damage() {
    let (world, cli) = world();
    open(&cli, "try");
    let kept = fs::read(state(&world)).expect("it is there");
    write(state(&world), "");
    is_damage(&world, &cli, "it is empty or missing");
    remove(state(&world));
    is_damage(&world, &cli, "it is empty or missing");
    // Also where nothing counts the areas, as in a home of an earlier version.
    let counted = world.home().join("generation");
    let count = fs::read(&counted).expect("areas are counted");
    remove(&counted);
    is_damage(&world, &cli, "it is empty or missing");
    // Put back, everything goes on.
    write(state(&world), kept);
    write(counted, count);
    assert_eq!(cli.ok("read try app a.txt"), "unreleased\n");
    cli.ok("commit try");
}

/// What is removed unseen is said to be.
// rule S7
#[test]
fn a_cleanup_says_that_it_could_not_look() {
    let (world, cli) = world();
    open(&cli, "try");
    write(area(&world, &cli, "try").join("now"), "");
    let ended = cli.expect("cleanup try --yes", 0);
    has(
        &ended.stderr_text(),
        ["could not be looked at: ", "which layers"],
    );
}

#[test]
fn an_older_state_put_back_is_damage() {
    let (world, cli) = world();
    open(&cli, "old");
    let older = fs::read(state(&world)).expect("it is there");
    open(&cli, "try");
    let newer = fs::read(state(&world)).expect("it is there");
    let area = area(&world, &cli, "try");
    write(state(&world), &older);
    is_damage(&world, &cli, "it is older than the areas beside it");
    // A process that goes on with it says so, and still loses nothing.
    remove(world.home().join("generation"));
    let done = json(&cli, "gc --max-size 0");
    assert!(area.is_dir(), "{done:#}");
    let holds = done["kept"].to_string().contains("it has no record");
    assert!(holds, "{done:#}");
    let named = json(&cli, "gc --orphans");
    assert_eq!(keys(&named), "orphans");
    assert_eq!(named["orphans"][0]["path"], area.to_str().expect("plain"));
    // A later store with other records takes nothing of it away either.
    open(&cli, "third");
    write(state(&world), newer);
    let third = json(&cli, "gc --max-size 0");
    let fine = third["kept"].to_string().contains("it has no record");
    assert!(fine, "{third:#}");
}

#[test]
fn a_commit_since_makes_a_state_older_too() {
    let (world, cli) = world();
    open(&cli, "other");
    open(&cli, "try");
    let older = fs::read(state(&world)).expect("it is there");
    cli.ok("commit try");
    write(state(&world), older);
    is_damage(&world, &cli, "it is older than the areas beside it");
}

#[test]
fn a_state_without_its_write_ahead_log_is_damage() {
    let (world, cli) = world();
    open(&cli, "old");
    let home = world.home();
    // A reader keeps the log from being put into the file.
    let reader = Waiting::new(READER, &home.join("state.db"));
    open(&cli, "try");
    let lost = world.dir("copy");
    fs::copy(home.join("state.db"), lost.join("state.db")).expect("it can be copied");
    assert!(home.join("state.db-wal").exists(), "the log is in use");
    reader.end();
    cli.ok("status");
    assert!(!home.join("state.db-wal").exists(), "nobody uses it");
    fs::copy(lost.join("state.db"), state(&world)).expect("it is ours");
    is_damage(&world, &cli, "its write-ahead log");
}

/// Holds the state open, in the middle of a look at it.
const READER: &str = "import sqlite3,sys\nc=sqlite3.connect(sys.argv[1],isolation_level=None)\n\
    c.execute('begin')\nc.execute('select count(*) from plan').fetchall()\nprint('held',flush=True)\nsys.stdin.read()";

#[test]
fn another_state_is_damage() {
    let (world, cli) = world();
    open(&cli, "try");
    let elsewhere = world.dir("elsewhere");
    let other = cli.clone().env("ESCROW_HOME", &elsewhere);
    for plan in ["a", "b", "c"] {
        open(&other, plan);
    }
    fs::copy(elsewhere.join("state.db"), state(&world)).expect("it is ours");
    is_damage(&world, &cli, "it is not the state that made the areas");
}

#[test]
fn an_area_that_no_record_tells_of_goes_only_by_its_name() {
    let (world, cli) = world();
    open(&cli, "try");
    let known = area(&world, &cli, "try");
    let stray = world.home().join("sandboxes/notes");
    fs::create_dir(&stray).expect("it is ours");
    write(stray.join("x"), "work\n");
    for line in ["gc", "gc --max-size 0"] {
        cli.ok(line);
        assert!(stray.is_dir(), "{line}");
    }
    // What a record describes cannot be named, and then nothing goes.
    let said = cli.fails(
        format!(
            "gc --orphans --remove {} {}",
            stray.display(),
            known.display()
        ),
        1,
    );
    assert!(said.contains("nothing was removed"), "{said}");
    assert!(stray.is_dir() && known.is_dir());
    cli.fails(
        format!("gc --orphans --remove {}", world.at("app").display()),
        1,
    );
    cli.fails(format!("gc --remove {}", stray.display()), 2);
    let line = format!("gc --orphans --remove {}", stray.display());
    let would = json(&cli, &format!("{line} --dry-run"));
    assert!(stray.is_dir());
    let done = json(&cli, &line);
    assert_eq!(done["removed"], would["removed"]);
    assert_eq!(done["removed"][0]["path"], stray.to_str().expect("plain"));
    assert!(!stray.exists() && known.is_dir());
    assert_eq!(json(&cli, "gc --orphans")["orphans"], value!([]));
    assert_eq!(cli.ok("read try app a.txt"), "unreleased\n");
}

/// Without the fix the work is gone, and no process is reported.
#[test]
fn the_bug_that_takes_unknown_areas_shows() {
    let (world, cli) = world();
    open(&cli, "try");
    let area = area(&world, &cli, "try");
    write(state(&world), "");
    let seeded = Cli::new(&world, &binary()).env("ESCROW_SEEDED_BUG", "gc-takes-unknown");
    seeded.ok("gc");
    assert!(!area.exists());
}
