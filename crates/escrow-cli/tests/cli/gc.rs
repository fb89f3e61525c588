//! Garbage: what is finished goes, what is open stays, whatever happens in between.

use escrow::manager::{Manager, ManagerOptions};
use escrow::model::{CleanupPolicy, PlanId, Retention, SandboxId, SystemIdSource};
use escrow_testkit::user::as_user;

use crate::*;

fn sandboxes(world: &World) -> Vec<String> {
    names(world.home().join("sandboxes"))
}

fn write(cli: &Cli, plan: &str, text: &str) {
    put(cli, &format!("{plan} app a.txt"), text);
}

/// A plan that is open, with a change in it.
fn open(cli: &Cli, plan: &str) {
    cli.ok(format!("plan create {plan} --resource ./app"));
    write(cli, plan, &format!("{plan}\n"));
}

/// A plan that was committed.
fn committed(cli: &Cli, plan: &str) {
    open(cli, plan);
    cli.ok(format!("commit {plan} --on-conflict sandbox"));
}

/// What a power cut may bring back of a plan that was cleaned up.
fn over(world: &World, cli: &Cli, plan: &str) -> PathBuf {
    open(cli, plan);
    let area = area(world, cli, plan);
    cli.ok(format!("cleanup {plan} --yes"));
    make(area)
}

fn make(dir: impl AsRef<Path>) -> PathBuf {
    let dir = dir.as_ref().to_owned();
    fs::create_dir(&dir).expect("nobody has the name");
    fs::write(dir.join("x"), "lost\n").expect("it is ours");
    dir
}

fn kinds(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|one| one["kind"].as_str().expect("a word"))
        .collect()
}

#[test]
fn open_plans_are_named_and_left_alone() {
    let (world, cli) = world();
    cli.ok("plan create empty --resource ./app");
    open(&cli, "try");
    let before = signature(&world.home().join("sandboxes"));
    for line in ["gc", "gc --max-size 0", "gc --older-than 0s"] {
        let done = json(&cli, line);
        assert_eq!(keys(&done), "dry_run failed freed kept removed");
        assert_eq!(done["removed"], value!([]), "{line}");
        assert_eq!(kinds(&done["kept"]), ["open", "open"], "{line}");
        let kept = &done["kept"][1];
        assert_eq!(keys(kept), "bytes kind path plan why");
        assert_eq!(kept["plan"], "try");
        assert!(kept["bytes"].as_u64().expect("a number") > 0);
        unchanged(&before, world.home().join("sandboxes"));
    }
    assert_eq!(cli.ok("read try app a.txt"), "try\n");
    let said = cli.run("gc").stderr_text();
    has(&said, ["kept plan try, which is open  "]);
    has(&said, ["`escrow cleanup PLAN`"]);
}

#[test]
fn undo_data_stays_for_its_time_and_goes_when_there_is_no_room_for_it() {
    let (world, cli) = world();
    committed(&cli, "one");
    committed(&cli, "two");
    let done = json(&cli, "gc");
    assert_eq!(done["removed"], value!([]));
    assert_eq!(kinds(&done["kept"]), ["undo", "undo"]);
    assert_eq!(sandboxes(&world).len(), 2);
    // The oldest first, and no more than needed.
    let said = cli.run("gc").stderr_text();
    for plan in ["one", "two"] {
        let kept = format!("kept undo data of {plan}  ");
        let line = said.lines().find(|line| line.starts_with(&kept));
        let line = line.unwrap_or_else(|| panic!("what stays is named: {said}"));
        assert!(line.ends_with(": its retention time is not over"), "{line}");
    }
    let all = list(&done["kept"]);
    let bytes = all.iter().map(|one| one["bytes"].as_u64().expect("bytes"));
    let most = bytes.sum::<u64>() - 1;
    let done = json(&cli, &format!("gc --max-size {most}"));
    assert_eq!(kinds(&done["removed"]), ["undo"]);
    assert_eq!(done["removed"][0]["plan"], "one");
    assert_eq!(done["freed"], done["removed"][0]["bytes"]);
    let one = json(&cli, "plan show one");
    assert_eq!(one["state"], "cleaned_up");
    let refused = cli.fails("undo one", 4);
    assert!(refused.contains("no commit to undo"), "{refused}");
    cli.ok("undo two");
    let app = world.at("app/a.txt");
    assert_eq!(read(app), "one\n");
    cli.ok("cleanup two");
    json(&cli, "gc");
    assert_eq!(sandboxes(&world), [""; 0]);
    assert_eq!(names(world.home().join("locks")), [""; 0]);
    assert_eq!(json(&cli, "status")["finished"], value!([]));
}

#[test]
fn a_dry_run_says_what_would_go_and_removes_nothing() {
    let (world, cli) = world();
    committed(&cli, "done");
    open(&cli, "try");
    over(&world, &cli, "gone");
    let before = signature(&world.home().join("sandboxes"));
    let log = json(&cli, "log");
    let told = json(&cli, "gc --dry-run --max-size 0");
    assert_eq!(told["dry_run"], true);
    assert_eq!(kinds(&told["removed"]), ["undo", "orphan"]);
    unchanged(&before, world.home().join("sandboxes"));
    assert_eq!(json(&cli, "log"), log);
    let text = cli.ok("gc --dry-run --max-size 0");
    assert!(text.starts_with("would remove undo of done  "), "{text}");
    let done = json(&cli, "gc --max-size 0");
    assert_eq!(done["removed"], told["removed"]);
    assert_eq!(done["kept"], told["kept"]);
    assert_eq!(json(&cli, "gc --max-size 0")["removed"], value!([]));
}

#[test]
fn what_is_known_to_be_over_goes_and_what_no_record_tells_of_stays() {
    let (world, cli) = world();
    let home = world.home();
    open(&cli, "try");
    cli.ok("plan create old --resource ./app");
    let old = area(&world, &cli, "old");
    cli.ok("cleanup old");
    let (sandbox, plan) = (
        SandboxId::new(&SystemIdSource),
        PlanId::new(&SystemIdSource),
    );
    let hidden = old.file_name().expect("a name").to_string_lossy();
    let orphans = [
        // Of a plan that was cleaned up, as a power cut may bring them back.
        make(&old),
        make(home.join(format!("sandboxes/{hidden}.undo"))),
        make(home.join("sandboxes/scratch-x-0")),
    ];
    // No record has these.
    let unknown = [
        make(home.join(format!("sandboxes/{sandbox}"))),
        make(home.join(format!("sandboxes/{sandbox}.undo"))),
        make(home.join(format!("sandboxes/{plan}.scratch"))),
    ];
    // Where only an earlier home on another file system can have put them.
    let elsewhere = [
        make(world.at(format!(".escrow-{hidden}.undo"))),
        make(world.at(format!("app/.escrow-{hidden}.undo"))),
    ];
    let lock = home.join(format!("locks/{plan}"));
    fs::write(&lock, "").expect("it is ours");
    // What may be another home's, and what is no area at all.
    let kept = [
        make(world.at(format!(".escrow-{sandbox}"))),
        make(world.at(".escrow-notes")),
        make(home.join("sandboxes/notes")),
    ];
    let status = json(&cli, "status");
    assert_eq!(keys(&status["orphans"][0]), "kind path plan");
    let named = status["orphans"].to_string();
    for path in orphans.iter().chain(&unknown) {
        let path = path.to_str().expect("a plain path");
        assert!(named.contains(path), "{path}: {named}");
    }
    let text = cli.ok("status");
    assert!(text.contains("orphan: "), "{text}");
    let done = json(&cli, "gc");
    for path in orphans.iter().chain(&elsewhere).chain([&lock]) {
        assert!(!path.exists(), "{}: {done:#}", path.display());
    }
    for path in kept.iter().chain(&unknown) {
        assert!(path.exists(), "{}: {done:#}", path.display());
    }
    assert_eq!(kinds(&done["failed"]), [""; 0]);
    let stays: Vec<&str> = kinds(&done["kept"]);
    assert_eq!(stays.iter().filter(|kind| **kind == "unknown").count(), 5);
    assert_eq!(json(&cli, "gc")["removed"], value!([]));
    assert_eq!(cli.ok("read try app a.txt"), "try\n");
}

// What lies in the home is found wherever the home is, also there and back again.
#[test]
fn a_home_that_was_moved_loses_nothing() {
    let (world, cli) = world();
    open(&cli, "try");
    committed(&cli, "done");
    let (home, moved) = (world.home(), world.at("moved"));
    fs::rename(&home, &moved).expect("it is ours");
    let elsewhere = cli.clone().env("ESCROW_HOME", &moved);
    let told = json(&elsewhere, "gc");
    assert_eq!(told["removed"], value!([]), "{told:#}");
    assert_eq!(kinds(&told["kept"]), ["open", "undo"], "{told:#}");
    assert_eq!(elsewhere.ok("read try app a.txt"), "try\n");
    fs::rename(&moved, &home).expect("nobody made it again");
    assert_eq!(cli.ok("read try app a.txt"), "try\n");
    cli.ok("undo done");
    cli.ok("commit try");
}

#[test]
fn what_an_undo_set_aside_stays_until_its_plan_is_named() {
    let (world, cli) = world();
    committed(&cli, "done");
    let mut aside = area(&world, &cli, "done").into_os_string();
    aside.push(".undo.kept-com_x");
    let aside = make(aside);
    cli.ok("undo done");
    let done = json(&cli, "gc --max-size 0");
    assert_eq!(kinds(&done["kept"]), ["open", "aside"]);
    assert!(aside.exists());
    let id = json(&cli, "plan show done")["id"].clone();
    cli.ok(format!("cleanup {} --yes", id.as_str().expect("an id")));
    assert!(!aside.exists());
}

#[test]
fn amounts_that_make_no_sense_are_refused() {
    let (_world, cli) = world();
    for line in [
        "gc --older-than 7",
        "gc --older-than soon",
        "gc --max-size 1X",
    ] {
        let said = cli.fails(line, 2);
        assert!(said.contains("write "), "{line}: {said}");
    }
}

// rule C17
#[test]
fn one_that_cannot_be_removed_does_not_stop_the_others() {
    need!(require_stepper());
    let line = words("--json gc --max-size 0");
    let (world, cli) = world();
    committed(&cli, "one");
    committed(&cli, "two");
    let removals = cli.stepper(&line).only(&["unlinkat"]);
    let run = removals.fault(1, Fault::Once(5));
    assert_eq!(run.outcome.status, 1, "{}", run.outcome.stdout_text());
    let told: Value = serde_json::from_str(&run.outcome.stdout_text()).expect("one document");
    assert_eq!(kinds(&told["failed"]), ["undo"]);
    assert_eq!(told["failed"][0]["plan"], "one");
    assert_eq!(kinds(&told["removed"]), ["undo"]);
    assert_eq!(told["removed"][0]["plan"], "two");
    let done = json(&cli, "gc");
    assert_eq!(kinds(&done["removed"]), ["orphan"]);
    assert_eq!(sandboxes(&world), [""; 0]);
}

// A commit may be prepared for a sandbox that goes, and finished where sandboxes stay: then nothing is shared either.
#[test]
fn a_sandbox_shares_nothing_whatever_the_policy_of_who_recovers() {
    need!(require_stepper());
    let line = words("commit try");
    let mut seen = 0;
    for n in (1..).step_by(3) {
        let (world, cli) = world();
        open(&cli, "try");
        if cli.stepper(&line).fault(n, Fault::Kill).hit.is_none() {
            break;
        }
        let unfinished = json(&cli, "status")["unfinished"][0]["phase"].clone();
        if unfinished != "decided" && unfinished != "applied" {
            continue;
        }
        seen += 1;
        let manual = Retention {
            cleanup: CleanupPolicy::Manual,
            ..Retention::default()
        };
        let options = ManagerOptions {
            keep: manual,
            ..ManagerOptions::new(world.home())
        };
        let manager = Manager::open(options).expect("it opens on a used home");
        let recovered = manager.recover().expect("it can look");
        assert!(recovered.iter().all(|(_, answer)| answer.is_ok()), "{n}");
        let file = world.at("app/a.txt");
        let meta = fs::metadata(&file).expect("it is there");
        assert_eq!((meta.len(), meta.nlink()), (4, 1), "{n}");
        cli.ok("undo try");
    }
    assert!(seen > 2, "the commit was never found half way");
}

/// A world with an open plan, one that was committed, one that was undone, and orphans.
fn garden() -> (World, Cli) {
    let (world, cli) = world();
    open(&cli, "try");
    committed(&cli, "done");
    let here = cli.clone().cwd(world.at("app"));
    here.ok(inside("-q run --new", "echo aside > a.txt"));
    here.ok("rollback app");
    let plan = PlanId::new(&SystemIdSource);
    over(&world, &cli, "gone");
    fs::write(world.home().join(format!("locks/{plan}")), "").expect("it is ours");
    (world, cli)
}

/// After a gc that went wrong: status tells the truth, the open plan is whole, and another gc finishes.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    let ok = |line: &str| {
        let outcome = cli.run([words("--json"), words(line)].concat());
        let said = [outcome.stdout_text(), outcome.stderr_text()];
        assert_eq!(outcome.status, 0, "{how}: {line}: {said:?}");
        serde_json::from_str::<Value>(&outcome.stdout_text()).expect("one document")
    };
    let app = world.at("app/a.txt");
    let original = || read(&app);
    assert_eq!(original(), "done\n", "{how}");
    let status = ok("status");
    assert_eq!(status["plans"][0]["name"], "try", "{how}");
    assert_eq!(status["unfinished"], value!([]), "{how}");
    // A plan that says that it is committed can be undone, or says that it cannot.
    let state = ok("plan show done")["state"].clone();
    let kept = ok("gc --dry-run")["kept"].clone();
    if list(&kept)
        .iter()
        .any(|one| one["kind"] == "undo" && one["plan"] == "done")
    {
        assert_eq!(state, "committed", "{how}");
    }
    assert_eq!(ok("gc --max-size 0")["failed"], value!([]), "{how}");
    assert_eq!(ok("gc --max-size 0")["removed"], value!([]), "{how}");
    assert_eq!(ok("status")["orphans"], value!([]), "{how}");
    assert_eq!(ok("status")["finished"], value!([]), "{how}");
    assert_eq!(sandboxes(world).len(), 1, "{how}: the open plan alone");
    assert_eq!(names(world.home().join("locks")).len(), 1, "{how}");
    assert_eq!(original(), "done\n", "{how}");
    let read = cli.ok("read try app a.txt");
    assert_eq!(read, "try\n", "{how}: nothing unreleased is lost");
    cli.ok("commit try --on-conflict sandbox");
    assert_eq!(original(), "try\n", "{how}");
}

fn sweep(fault: Fault, stride: usize) {
    let (template, cli) = garden();
    let line = words("gc --max-size 0");
    let all = cli.stepper(&line).run();
    assert_eq!(all.outcome.status, 0, "{}", all.outcome.stderr_text());
    goes_on(&template, &cli, "undisturbed");
    drop(template);
    for n in (1..=all.calls).step_by(stride) {
        let (world, cli) = garden();
        let run = cli.stepper(&line).fault(n, fault);
        let Some(hit) = run.hit else { break };
        let how = format!("call {n}, {hit}, {fault:?}");
        if run.outcome.status == 0 {
            let left = &json(&cli, "gc --max-size 0 --dry-run")["removed"];
            assert_eq!(left, &value!([]), "{how}: it said that all went well");
        }
        goes_on(&world, &cli, &how);
    }
}

// rule P6, C17
#[test]
fn a_gc_is_killed_here_and_there() {
    // As root, `torture` does it.
    if as_ordinary_user() && require_stepper() {
        sweep(Fault::Kill, 9);
    }
}

// rule C17
#[test]
fn a_gc_meets_an_error_here_and_there() {
    need!(require_stepper());
    sweep(Fault::Once(5), 13);
    sweep(Fault::Forever(28), 17);
}

#[test]
fn what_a_killed_probe_left_was_never_swept() {
    let (world, cli) = world();
    cli.ok("status");
    let sandboxes = world.home().join("sandboxes");
    for left in ["scratch-old/original", "probe-old/upper"] {
        fs::create_dir_all(sandboxes.join(left)).expect("it can be made");
    }
    cli.ok("strategy check none");
    cli.ok("doctor app");
    assert_eq!(entries(&sandboxes), 0);
}

#[test]
fn doctor_swept_what_belongs_to_others() {
    let fs = need!(LoopFs::new(Fs::Ext4, 16));
    sh(
        fs.path(),
        &format!(
            "chmod 1777 .; mkdir app .escrow-probe-mine; touch .escrow-probe-mine/data; chown -R {UID} .escrow-probe-mine"
        ),
    );
    let world = World::new();
    let cli = Cli::new(&world, &binary()).cwd(fs.path());
    cli.ok("doctor app");
    assert!(fs.path().join(".escrow-probe-mine/data").exists());
    output_of(as_user("ls").arg(fs.path()));
}
