//! The log as users meet it: complete, one document, and such that meddling is seen.

use escrow::internals::fs::process::ProcessIdentity;
use escrow::internals::store::{Operation, Store};
use escrow::model::{IdSource, OperationId, PlanId, SystemIdSource};

use crate::*;

/// Puts other bytes of the same length in the place of some in the state store, while no process has it open.
fn meddle(world: &World, from: &[u8], to: &[u8]) {
    let file = world.home().join("state.db");
    let mut bytes = fs::read(&file).expect("it is there");
    let places: Vec<usize> = (0..bytes.len().saturating_sub(from.len()))
        .filter(|at| bytes[*at..].starts_with(from))
        .collect();
    assert!(!places.is_empty(), "there is something to change");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    fs::write(file, bytes).expect("it is ours");
}

fn write(cli: &Cli, file: &str) -> Child {
    let mut child = cli
        .command(format!("write try app {file}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    drop(child.stdin.take());
    child
}

#[track_caller]
fn valid(cli: &Cli) -> u64 {
    let seen = json(cli, "log --verify");
    assert_eq!(keys(&seen), "entries fault head valid");
    let expected = (&value!(true), &Value::Null);
    assert_eq!((&seen["valid"], &seen["fault"]), expected);
    seen["entries"].as_u64().expect("a number")
}

// rule S7
#[test]
fn what_was_changed_afterwards_is_named() {
    let (world, cli) = planned_app("auto");
    let someone = cli.clone().env("ESCROW_PRINCIPAL", "user:mallory");
    put(&someone, "try app evil", "x\n");
    cli.ok("rollback try --yes");
    assert_eq!(valid(&cli), 8);
    let told = cli.ok("log --verify");
    assert!(told.starts_with("the log is intact: 8 entries"), "{told}");
    meddle(&world, b"user:mallory", b"user:nothing");
    let outcome = cli.expect("log --verify", 1);
    let told = outcome.stderr_text();
    assert!(told.contains("entry 5 (op_"), "{told}");
    let outcome = cli.run("--json log --verify");
    let seen: Value = serde_json::from_str(&outcome.stdout_text()).expect("one document");
    assert_eq!((outcome.status, outcome.stderr_text().as_str()), (1, ""));
    let expected = (&value!(false), &value!(4));
    assert_eq!((&seen["valid"], &seen["entries"]), expected);
    assert_eq!(keys(&seen["fault"]), "entry operation_id what");
    assert_eq!(seen["fault"]["entry"], 5);
}

// rule S7
#[test]
fn what_was_done_is_told_with_its_resources_and_paths() {
    let (_world, cli) = world();
    assert_eq!(json(&cli, "log"), value!({"operations": []}));
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app new", "x\n");
    cli.ok("commit try --yes");
    let log = json(&cli, "log try");
    let operations = list(&log["operations"]);
    let commit = operations.last().expect("something was done");
    assert_eq!(commit["action"], "commit");
    assert_eq!(commit["resources"], value!(["app"]));
    assert_eq!(commit["paths"], value!(["app:new"]));
    assert_eq!(commit["path_count"], 1);
    assert!(commit["duration_ms"].is_u64() && commit["reason"].is_null());
    let told = cli.ok("log");
    let line = told.lines().find(|line| line.contains("commit try"));
    let line = line.expect("it is told");
    assert!(line.contains("on app") && line.ends_with("s"), "{line}");
}

/// An undo changes originals as a commit does, and tells the same paths.
// rule S7
#[test]
fn an_undo_and_a_restore_say_on_what() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        fs::create_dir_all(world.at("app/old/deep")).expect("there is room");
        fs::write(world.at("app/old/deep/x"), "x").expect("there is room");
        cli.plan("try", "./app", strategy);
        cli.ok("checkpoint create try -m first");
        let script = "mkdir -p app/d/e; echo 1 > app/d/e/f; rm -r app/old; echo 2 >> app/a.txt; chmod 700 app/src";
        let run = || cli.ok(inside("run --plan try", script));
        run();
        cli.ok("restore try first");
        run();
        cli.ok("commit try --yes");
        cli.ok("undo try --yes");
        let log = json(&cli, "log try");
        let operations = list(&log["operations"]);
        let of = |action: &str| {
            let mut all = operations.iter();
            all.find(|one| one["action"] == action).expect("it is told")
        };
        let (commit, undo) = (of("commit"), of("undo"));
        assert_eq!(undo["resources"], value!(["app"]), "{strategy}");
        assert_eq!(undo["paths"], commit["paths"], "{strategy}");
        assert_eq!(undo["path_count"], commit["path_count"], "{strategy}");
        assert!(undo["path_count"].as_u64() >= Some(8), "{undo}");
        // What a restore brings back is not compared unless another process asks.
        assert_eq!(of("restore")["resources"], value!(["app"]), "{strategy}");
        valid(&cli);
    }
}

// rule S7
#[test]
fn processes_that_write_at_once_keep_one_chain() {
    let (_world, cli) = planned_app("auto");
    let before = valid(&cli);
    let writers: Vec<Child> = (0..8).map(|one| write(&cli, &format!("f{one}"))).collect();
    for mut writer in writers {
        assert!(writer.wait().is_ok_and(|status| status.success()));
    }
    assert_eq!(valid(&cli), before + 16);
}

// rule S7
#[test]
fn a_killed_process_leaves_a_chain_that_is_right() {
    let (_world, cli) = planned_app("auto");
    for wait in 0..24 {
        let mut writer = write(&cli, "killed");
        thread::sleep(Duration::from_millis(wait));
        writer.kill().expect("it is ours");
        writer.wait().expect("it ends");
        valid(&cli);
    }
    cli.ok("rollback try --yes");
    valid(&cli);
}

/// Whatever another process says who is not us stays in the line that it belongs to.
// rules P9, S7
#[test]
fn foreign_text_cannot_forge_a_log_line() {
    const FORGED: &str = "a line of its own";
    let (_world, cli) = world();
    let said = format!("x\r\n{FORGED}\u{1b}[2J\u{2028}\ty");
    let with = |line: &str| {
        let mut all = words(line);
        all.push(said.clone().into());
        all
    };
    cli.ok("plan create try --resource ./app");
    let mut shown = vec![cli.ok(with("checkpoint create try -m"))];
    cli.run(with("run --plan try -- true"));
    let who = cli.clone().env("ESCROW_PRINCIPAL", &said);
    who.run("checkpoint create try");
    for line in ["plan show", "path try"] {
        shown.push(cli.run(with(line)).stderr_text());
    }
    shown.push(cli.ok(with("restore try")));
    shown.push(cli.ok(with("checkpoint show try")));
    shown.push(cli.ok("checkpoint list try"));
    shown.push(cli.ok(with("checkpoint delete try")));
    put(&cli, "try app new.txt", "new\n");
    cli.ok(with("commit try --yes -m"));
    let log = cli.ok("log");
    assert!(log.contains("x\\x0d\\x0aa line"), "it is told: {log}");
    shown.push(log);
    for text in &shown {
        let forged = text
            .lines()
            .find(|line| line.trim_start().starts_with(FORGED));
        assert_eq!(forged, None, "{text}");
        let control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(control, None, "{text:?}");
    }
    let log = json(&cli, "log");
    let messages = list(&log["operations"]).iter();
    let kept = messages
        .filter(|one| one["message"] == value!(said))
        .count();
    assert_eq!(kept, 2, "as it was said: {log}");
}

/// If the process dies before there is a plan leaves nothing to clean up, and no process is sent after another one.
// rule S7, P6
#[test]
fn an_operation_that_died_before_its_plan_was_there_is_ended() {
    let (world, cli) = world();
    cli.ok("plan create f10b --resource ./app");
    let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
    let owner = ProcessIdentity::of(child.id())
        .expect("it can be seen")
        .expect("it runs");
    let begin = |plan: Option<PlanId>, action: &str, target: &str| {
        let operation = Operation {
            id: OperationId::new(&SystemIdSource),
            principal: "user:someone".to_owned(),
            action: action.to_owned(),
            plan_id: plan,
            target: target.to_owned(),
            owner: owner.clone(),
            started_at: SystemIdSource.now(),
            message: None,
            resources: Vec::new(),
        };
        let store = Store::open(&world.home().join("state.db")).expect("it is there");
        store.begin(&operation).expect("there is room");
    };
    let plan = json(&cli, "plan show f10b")["id"].clone();
    let plan: PlanId = plan.as_str().and_then(|id| id.parse().ok()).expect("an id");
    begin(Some(PlanId::new(&SystemIdSource)), "plan create", "f10");
    begin(None, "resource add", "x");
    begin(Some(plan), "fork", "f10b");
    let outcomes = || -> Vec<String> {
        let log = json(&cli, "log");
        let all = list(&log["operations"]).iter();
        let theirs = all.filter(|one| one["principal"] == "user:someone");
        theirs.map(|one| one["outcome"].to_string()).collect()
    };
    // While it lives, no process ends it.
    cli.ok("plan create other");
    assert_eq!(outcomes(), ["\"running\""; 3]);
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
    let said = cli.run("status");
    let told = format!("{}{}", said.stdout_text(), said.stderr_text());
    has(&told, ["interrupted: plan create of f10 "]);
    has(&told, ["it belongs to no open plan"]);
    has(&told, ["`escrow cleanup f10b`"]);
    assert!(!told.contains("cleanup f10`"), "{told}");
    let operations = json(&cli, "status")["operations"].clone();
    let plans: Vec<&Value> = operations
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["plan"])
        .collect();
    assert_eq!(plans, [&Value::Null, &Value::Null, &value!("f10b")]);
    // A process that changes anything ends it.
    cli.ok("plan create third");
    assert_eq!(outcomes(), ["\"interrupted\""; 3]);
    assert_eq!(json(&cli, "status")["operations"], value!([]));
    valid(&cli);
}

/// Who cuts the end off, and sets what is kept apart to fit, leaves a chain that is whole.
// attack D30; rule S7
#[test]
fn d30_the_end_of_the_log_was_cut_off() {
    as_user_too();
    let (world, cli) = world();
    cli.ok("plan create try");
    cli.ok("plan create more");
    let check = json(&cli, "log --verify");
    let expect = format!(
        "{}:{}",
        check["entries"],
        check["head"].as_str().expect("a hash")
    );
    cli.ok(format!("log --verify --expect {expect}"));
    // A commit says where the log ends, for those who keep it.
    let told = json(&cli, "commit try");
    let head = told["log_head"].as_str().expect("a head");
    cli.ok(format!("log --verify --expect {head}"));
    cli.ok("plan create another");
    cli.ok(format!("log --verify --expect {expect}"));
    let cut = "DELETE FROM event WHERE position > 2;
        DELETE FROM running;
        UPDATE event_head SET count = 2, hash = (SELECT hash FROM event WHERE position = 2)";
    sh(world.home(), &format!("sqlite3 state.db '{cut}'"));
    cli.ok("log --verify");
    let said = cli.fails(format!("log --verify --expect {expect}"), 1);
    assert!(said.contains("cut off"), "{said}");
    cli.fails("log --verify --expect 2:xyz", 2);
}
