//! Strategies that are programs: a program without the SDK keeps the contract, and whatever it does wrong, the engine stays up, the
//! plan is recoverable and nothing is left running.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use escrow::error::{Error, Result};
use escrow::event::Unobserved;
use escrow::internals::store::Plan;
use escrow::manager::{Manager, ManagerOptions};
use escrow::model::PlanState;
use escrow::strategy::conformance::{run, run_killed};
use escrow::strategy::registry::RegistryError;
use escrow_testkit::World;
use escrow_testkit::stepper::Fault;
use serde_json::{Value, json};

use crate::commit_support::Must;
use crate::mixed_sweep::{self, TwoMembers};
use crate::support::{at, options};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugins/hostile.py");

/// The document that the program keeps.
fn document(place: &Path) -> PathBuf {
    place.join("document")
}

/// Declares the program, with these options, and a directory beside its document.
fn declare(place: &Path, options: &Value) {
    let config = json!({
        "sandbox": {"custom_strategies": {"doc": {
            "command": ["python3", "-S", "-E", PROGRAM, place], "options": options,
            "timeout": {"*": "60s", "rollback": "1s"},
        }}},
        "resource_types": [{"name": "document", "location": "opaque", "sandbox_strategy": "doc"}],
        "resources": {
            "app": {"at": "app"},
            "document": {"type": "document", "at": document(place)},
        },
    });
    std::fs::write(place.join("escrow.yaml"), config.to_string()).expect("there is room");
}

fn manager(place: &Path) -> Manager {
    let mut options = ManagerOptions {
        environment: std::env::vars_os().collect(),
        ..options(&place.join("home"))
    };
    options.sources.directory = Some(place.to_owned());
    options.sources.named = Some(place.join("escrow.yaml"));
    Manager::open(options).expect("it opens on a fresh or used home")
}

/// A directory and a document in one plan.
struct Mixed {
    place: PathBuf,
    manager: Manager,
    plan: Plan,
}

impl TwoMembers for Mixed {
    fn new(place: &Path) -> Self {
        let mixed = Self::begin(place, &json!({})).expect("both can be sandboxed");
        mixed.write("new").expect("both can be written");
        mixed
    }

    fn again(place: &Path) -> Self {
        let manager = manager(place);
        let plan = manager.resolve_plan(Some("mixed"), Path::new("/"));
        Self {
            place: place.to_owned(),
            manager,
            plan: plan.expect("it is known"),
        }
    }

    fn originals(&self) -> [String; 2] {
        let file = std::fs::read_to_string(self.place.join("app/file")).expect("it is there");
        let text = std::fs::read_to_string(document(&self.place)).expect("it is there");
        let value: Value = serde_json::from_str(&text).expect("it is whole");
        [file, value["key"].as_str().expect("it is text").to_owned()]
    }

    fn parts(&self) -> (&Manager, &Plan) {
        (&self.manager, &self.plan)
    }
}

impl Mixed {
    fn begin(place: &Path, options: &Value) -> Result<Self> {
        std::fs::create_dir_all(place.join("app")).expect("there is room");
        std::fs::write(place.join("app/file"), "old").expect("there is room");
        std::fs::write(document(place), r#"{"key": "old"}"#).expect("there is room");
        declare(place, options);
        let manager = manager(place);
        let typed = ["app", "document"].map(OsString::from);
        let view = manager.create_plan(Some("mixed"), place, &typed, None, &Unobserved)?;
        let (place, plan) = (place.to_owned(), view.plan);
        Ok(Self {
            place,
            manager,
            plan,
        })
    }

    fn write(&self, text: &str) -> Result<()> {
        for (name, path) in [("app", "file"), ("document", "key")] {
            let resource = self.manager.resource(name)?;
            (self.manager).write(&self.plan, &resource, &at(path), &mut text.as_bytes())?;
        }
        Ok(())
    }

    fn read(&self) -> Result<String> {
        let resource = self.manager.resource("document")?;
        let mut text = String::new();
        let mut content = self.manager.read(&self.plan, &resource, &at("key"))?;
        content.read_to_string(&mut text).expect("it is text");
        Ok(text)
    }
}

/// How many copies of the document there are.
fn copies(place: &Path) -> usize {
    let all = std::fs::read_dir(place).expect("it is there").flatten();
    let copy = |name: &str| name.starts_with("document.");
    all.filter(|one| copy(&one.file_name().to_string_lossy()))
        .count()
}

/// The processes that belong to a place, and their children.
fn running(place: &Path) -> Vec<String> {
    let place = place.display().to_string();
    let all = std::fs::read_dir("/proc").expect("it is there").flatten();
    let lines = all.filter_map(|one| std::fs::read_to_string(one.path().join("cmdline")).ok());
    lines
        .filter(|line| line.contains("hostile.py") && line.contains(&place))
        .collect()
}

/// Whether a child has no command line any more and has not ended yet: it gives up its memory before its files.
fn child_is_ending() -> bool {
    let all = std::fs::read_dir("/proc").expect("it is there").flatten();
    let read = |one: &std::fs::DirEntry, name: &str| std::fs::read(one.path().join(name)).ok();
    let bare = all.filter(|one| read(one, "cmdline").is_some_and(|line| line.is_empty()));
    let stats = bare.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok());
    let own = std::process::id().to_string();
    stats
        .filter_map(|stat| Some(stat.rsplit_once(") ")?.1.to_owned()))
        .any(|rest| {
            let mut fields = rest.split(' ');
            fields.next() != Some("Z") && fields.next() == Some(&own)
        })
}

// rule P1, X4
#[test]
fn a_program_without_the_sdk_keeps_the_contract_also_when_it_is_killed() {
    let world = World::new();
    declare(world.path(), &json!({}));
    let manager = manager(world.path());
    let one = manager.registry().named("doc").expect("it is declared");
    let strategy = one.ready().expect("it can be started");
    let fixture = one.fixture(world.path()).expect("it makes originals");
    let mut found = run(&**strategy, &fixture).problems();
    found.extend(run_killed(one, &fixture, &[1]).problems());
    assert_eq!(found, Vec::<String>::new());
    drop((fixture, manager));
    assert_eq!(running(world.path()), Vec::<String>::new());
}

/// What both sides write is what the schema beside the protocol says.
// rule X4
#[test]
fn every_message_of_both_sides_is_in_the_schema() {
    let world = World::new();
    let notes = world.path().join("messages");
    declare(world.path(), &json!({"record": notes}));
    let manager = manager(world.path());
    let one = manager.registry().named("doc").expect("it is declared");
    let strategy = one.ready().expect("it can be started");
    let fixture = one.fixture(world.path()).expect("it makes originals");
    let found = run(&**strategy, &fixture).problems();
    assert_eq!(found, Vec::<String>::new());
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/spec/plugin-protocol.schema.json"
    );
    let text = std::fs::read_to_string(file).expect("it is there");
    let schema: Value = serde_json::from_str(&text).expect("it is JSON");
    let part = |name: &str| {
        let mut part = schema.clone();
        part.as_object_mut().expect("a schema").remove("oneOf");
        part["$ref"] = json!(format!("#/$defs/{name}"));
        jsonschema::validator_for(&part).expect("a schema")
    };
    let (mut parts, mut asked) = (std::collections::BTreeMap::new(), Vec::new());
    let mut method = String::new();
    let messages = std::fs::read_to_string(&notes).expect("they were noted");
    let mut check = |name: String, message: &Value| {
        let validator = parts.entry(name.clone()).or_insert_with(|| part(&name));
        let faults = validator.iter_errors(message).map(|one| one.to_string());
        let faults: Vec<String> = faults.collect();
        assert!(faults.is_empty(), "{name}: {message}: {faults:?}");
    };
    for line in messages.lines() {
        let (side, message): (String, Value) = serde_json::from_str(line).expect("a message");
        check(side, &message);
        match message["method"].as_str() {
            Some(called) => called.clone_into(&mut method),
            None if message.get("result").is_some() => {
                check(format!("{method}.result"), &message["result"]);
                asked.push(method.clone());
            }
            None => {}
        }
    }
    for verb in escrow::strategy::registry::VERBS {
        let answered = asked.iter().any(|one| one == verb);
        assert!(answered, "{verb} was never answered");
    }
}

// rule C1, R4, X3
#[test]
fn a_directory_and_a_program_are_one_plan() {
    let world = World::new();
    let methods = ["prepare", "undo", "preview", "finish", "check_undo"];
    let told = json!({"methods": methods, "needs": "its options"});
    let mixed = Mixed::begin(world.path(), &told).expect("both can be sandboxed");
    mixed.write("new").expect("both can be written");
    let manager = &mixed.manager;
    let first = manager.create_checkpoint(&mixed.plan, Some("first"), &Unobserved);
    let first = first.expect("both can be kept");
    mixed.write("later").expect("both can be written");
    let restored = manager.restore(&mixed.plan, &first, &Unobserved);
    restored.expect("both can return");
    assert_eq!(mixed.read().expect("it is there"), "new");
    assert_eq!(mixed.originals(), ["old", "old"]);
    mixed.commit().expect("nothing is in the way");
    assert_eq!(mixed.originals(), ["new", "new"]);
    assert_eq!(copies(world.path()), 0, "the sandbox was not cleaned up");
    drop(mixed);
    let mixed = Mixed::again(world.path());
    // Nothing was asked of it yet, so it does not run.
    mixed.manager.status().expect("it can be looked at");
    let names = mixed.manager.registry().names();
    assert!(names.contains(&"doc".to_owned()), "{names:?}");
    let undone = mixed.manager.undo(&mixed.plan, &Unobserved);
    undone.expect("both can be undone");
    assert_eq!(mixed.originals(), ["old", "old"]);
    drop(mixed);
    assert_eq!(running(world.path()), Vec::<String>::new());
}

// rule X3
#[test]
fn a_program_is_not_started_by_what_does_not_need_it() {
    let world = World::new();
    let mark = world.path().join("started");
    let told = json!({"verb": "initialize", "mode": "exit", "once": mark});
    std::fs::create_dir_all(world.path().join("app")).expect("there is room");
    declare(world.path(), &told);
    let manager = manager(world.path());
    manager.status().expect("it can be looked at");
    manager.resources().expect("they can be listed");
    let typed = [OsString::from("app")];
    let made = manager.create_plan(Some("p"), world.path(), &typed, None, &Unobserved);
    let plan = made.expect("a directory needs no program").plan;
    drop(manager.diff(&plan, None).expect("it can be compared"));
    manager.cleanup(&plan, false).expect("it can be removed");
    assert!(!mark.exists(), "it was started");
    manager
        .registry()
        .get("doc")
        .err()
        .expect("it ends at once");
    assert!(mark.exists());
    drop(manager);
    // Nor by looking at a plan in which it has a sandbox.
    let world = World::new();
    let mark = world.path().join("started");
    drop(Mixed::new(world.path()));
    declare(
        world.path(),
        &json!({"verb": "initialize", "mode": "exit", "once": mark}),
    );
    let mixed = Mixed::again(world.path());
    let view = mixed.manager.view(mixed.plan.clone()).must("it is there");
    assert_eq!(view.sandboxes.len(), 2);
    for one in &view.sandboxes {
        assert_eq!(mixed.manager.remarks(one), Vec::<String>::new());
        mixed.manager.path_of(one).must("it may have one");
    }
    assert!(!mark.exists(), "it was started");
}

/// Keeps what is to be known.
#[derive(Default)]
struct Notices(std::sync::Mutex<Vec<String>>);

impl escrow::event::Observer for Notices {
    fn copied(&self, _: u64, _: u64) {}

    fn notice(&self, what: String) {
        self.0.lock().expect("no thread panicked").push(what);
    }
}

// rule X1
#[test]
fn a_flood_of_messages_is_cut_and_counted() {
    let world = World::new();
    drop(Mixed::new(world.path()));
    declare(
        world.path(),
        &json!({"verb": "rollback", "mode": "log_flood"}),
    );
    let (mixed, notices) = (Mixed::again(world.path()), Notices::default());
    let done = mixed.manager.rollback(&mixed.plan, &notices);
    done.must("it says much, and does it");
    let told = notices.0.into_inner().expect("no thread panicked");
    assert_eq!(told.len(), 21, "{told:?}");
    assert!(told[19].contains("warning 19"), "{told:?}");
    assert!(told[20].contains("980 more messages"), "{told:?}");
}

// rule X1, X2, P2
#[test]
fn what_a_program_says_of_itself_is_checked() {
    let world = World::new();
    for (told, wanted) in [
        (
            json!({"lacks": ["diff", "cleanup"]}),
            "it lacks diff, cleanup",
        ),
        (json!({"version": 2}), "speaks version 2"),
        (
            json!({"methods": [], "capabilities": {"undoes": true}}),
            "claims `undoes`",
        ),
        (json!({"capabilities": {"fast": true}}), "fast"),
        (json!({"verb": "initialize", "mode": "exit"}), "it ends now"),
        (
            json!({"verb": "initialize", "mode": "rubbish"}),
            "no message",
        ),
    ] {
        declare(world.path(), &told);
        let manager = manager(world.path());
        let error = manager.registry().get("doc").err().expect("it is refused");
        let text = error.to_string();
        assert!(
            text.contains("'doc'") && text.contains(wanted),
            "{told}: {text}"
        );
    }
    let missing = json!({"sandbox": {"custom_strategies": {
        "doc": {"command": ["/nowhere/to be found"]}}}});
    let file = world.path().join("escrow.yaml");
    std::fs::write(&file, missing.to_string()).expect("there is room");
    let manager = manager(world.path());
    let error = manager.registry().get("doc").err().expect("it is missing");
    assert!(matches!(error, RegistryError::Program(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("/nowhere/to be found") && text.contains("No such file"),
        "{text}"
    );
}

/// What a program does wrong in `commit`, and what the error says of it.
const WRONG: &[(&str, &str)] = &[
    (
        "exit",
        "it ended (exit status: 3); its last line on stderr: it ends now",
    ),
    ("rubbish", "no message"),
    ("print", "no message on its standard output: hello"),
    ("array", "no message"),
    ("binary", "no message"),
    ("wrong_id", "while call"),
    ("text_id", "while call"),
    ("no_version", "not JSON-RPC 2.0"),
    ("both", "or both"),
    ("neither", "neither a result nor an error"),
    ("request", "calls a method of the engine"),
    ("half", "in the middle of a line"),
    ("huge", "more than 16777216 bytes"),
    ("error", r"it does not want to\x1b[2J"),
    ("stderr_flood", "the end of the flood"),
    ("children", "it ended (exit status: 5)"),
];

// rule X1, C4, C6
#[test]
fn whatever_a_program_does_wrong_in_a_commit_nothing_is_half_done() {
    for (mode, wanted) in WRONG {
        let world = World::new();
        let note = world.path().join("child");
        let mixed = Mixed::new(world.path());
        drop(mixed);
        // Once: the undo that follows finds it well again.
        let once = world.path().join("once");
        declare(
            world.path(),
            &json!({"verb": "commit", "mode": mode, "note": note, "once": once}),
        );
        let mixed = Mixed::again(world.path());
        let error = mixed.commit().expect_err("its program fails");
        let text = escrow::error::chain(&error);
        assert!(
            text.contains("'doc'") && text.contains(wanted),
            "{mode}: {text}"
        );
        assert_eq!(mixed.originals(), ["old", "old"], "{mode}");
        assert_eq!(mixed.read().must(mode), "new", "{mode}");
        mixed.commit().must(mode);
        assert_eq!(mixed.originals(), ["new", "new"], "{mode}");
        drop(mixed);
        assert_eq!(running(world.path()), Vec::<String>::new(), "{mode}");
        if *mode == "children" {
            let child = std::fs::read_to_string(&note).expect("it started one");
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
            let ended = stat.is_err() || stat.is_ok_and(|stat| stat.contains(" Z "));
            assert!(ended, "its child {child} still runs");
        }
    }
}

// rule X1, S5
#[test]
fn a_program_that_hangs_is_ended_at_its_time_limit_and_started_again() {
    let world = World::new();
    let once = world.path().join("once");
    drop(Mixed::new(world.path()));
    declare(
        world.path(),
        &json!({"verb": "rollback", "mode": "hang", "once": once}),
    );
    let mixed = Mixed::again(world.path());
    let error = mixed.manager.rollback(&mixed.plan, &Unobserved);
    let error = escrow::error::chain(&error.expect_err("it hangs"));
    assert!(error.contains("did not answer within 1 s"), "{error}");
    mixed.manager.recover().must("recover");
    let mixed = Mixed {
        plan: Mixed::again(world.path()).plan,
        ..mixed
    };
    mixed
        .manager
        .rollback(&mixed.plan, &Unobserved)
        .must("again");
    assert_eq!(mixed.read().must("read"), "old");
    drop(mixed);
    assert_eq!(running(world.path()), Vec::<String>::new());
}

// rule X1
#[test]
fn a_program_that_ends_after_an_answer_or_answers_twice_harms_one_call_at_most() {
    for mode in ["leaves", "twice"] {
        let world = World::new();
        drop(Mixed::new(world.path()));
        declare(world.path(), &json!({"verb": "read", "mode": mode}));
        let mixed = Mixed::again(world.path());
        assert_eq!(mixed.read().must(mode), "new");
        // It may be noticed only by the next call, which then says so.
        let settle = || {
            while mode == "leaves" && (!running(world.path()).is_empty() || child_is_ending()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        settle();
        match mixed.read() {
            Ok(text) => assert_eq!((text.as_str(), mode), ("new", "leaves")),
            Err(error) => assert!(error.to_string().contains("while call"), "{mode}: {error}"),
        }
        settle();
        assert_eq!(mixed.read().must(mode), "new");
    }
}

// rule X1, C17
#[test]
fn a_program_that_ends_in_any_method_leaves_a_plan_that_can_be_removed() {
    for verb in [
        "create", "read", "write", "preview", "prepare", "commit", "undo", "cleanup",
    ] {
        let world = World::new();
        let told = json!({"verb": verb, "mode": "exit"});
        let failed = match verb {
            "create" => Mixed::begin(world.path(), &told).map(drop),
            "undo" => {
                Mixed::new(world.path()).commit().must(verb);
                declare(world.path(), &told);
                let mixed = Mixed::again(world.path());
                mixed.manager.undo(&mixed.plan, &Unobserved).map(drop)
            }
            _ => {
                drop(Mixed::new(world.path()));
                declare(world.path(), &told);
                let mixed = Mixed::again(world.path());
                let work = || {
                    mixed.read()?;
                    mixed.write("again")?;
                    match verb {
                        "cleanup" => mixed.manager.cleanup(&mixed.plan, false).map(drop),
                        _ => mixed.commit(),
                    }
                };
                work()
            }
        };
        let error = escrow::error::chain(&failed.expect_err("its program ends"));
        assert!(error.contains("it ends now"), "{verb}: {error}");
        declare(world.path(), &json!({}));
        let manager = manager(world.path());
        manager.recover().must(verb);
        if let Ok(plan) = manager.resolve_plan(Some("mixed"), Path::new("/"))
            && plan.state != PlanState::CleanedUp
        {
            manager.cleanup(&plan, false).must(verb);
        }
        assert_eq!(copies(world.path()), 0, "{verb}");
    }
}

// rule C8, C9, C19
#[test]
fn a_program_without_prepare_and_undo_is_the_irreversible_member() {
    let world = World::new();
    let plain = json!({"methods": []});
    let mixed = Mixed::begin(world.path(), &plain).expect("both can be sandboxed");
    mixed.write("new").expect("both can be written");
    drop(mixed);
    // Whatever error it answers with, nothing was done: the directory is taken back.
    for mode in ["refuse", "error"] {
        declare(
            world.path(),
            &json!({"methods": [], "verb": "commit", "mode": mode}),
        );
        let mixed = Mixed::again(world.path());
        mixed.commit().expect_err("it does not want to");
        assert_eq!(mixed.originals(), ["old", "old"], "{mode}");
    }
    // It dies: a person settles it, and what did not happen is taken back everywhere.
    for mode in ["exit", "half"] {
        let world = World::new();
        let mixed = Mixed::begin(world.path(), &plain).expect("both can be sandboxed");
        mixed.write("new").expect("both can be written");
        drop(mixed);
        declare(
            world.path(),
            &json!({"methods": [], "verb": "commit", "mode": mode}),
        );
        let mixed = Mixed::again(world.path());
        let error = mixed.commit().expect_err("it ends");
        assert!(matches!(error, Error::Forward { .. }), "{mode}: {error}");
        drop(mixed);
        declare(world.path(), &plain);
        let mixed = Mixed::again(world.path());
        let settled = [("document".to_owned(), escrow::strategy::Outcome::NotDone)];
        mixed
            .manager
            .recover_settled(&settled.into())
            .must("settled");
        assert_eq!(mixed.originals(), ["old", "old"], "{mode}");
        mixed.commit().must("nothing is in the way any more");
        assert_eq!(mixed.originals(), ["new", "new"], "{mode}");
    }
}

/// Not a test of its own: what the sweeps below let go wrong.
#[test]
fn stepped() {
    mixed_sweep::stepped::<Mixed>();
}

fn sweep(verb: &str, fault: Fault, stride: u64) {
    mixed_sweep::sweep::<Mixed>("plugin::stepped", verb, fault, stride);
}

// rule C1, C3, X1
#[test]
fn a_commit_with_a_program_is_never_mixed_wherever_both_are_killed() {
    sweep("commit", Fault::Kill, 29);
}

// rule C1, C4, X1
#[test]
fn a_commit_with_a_program_is_never_mixed_whatever_call_fails() {
    sweep("commit", Fault::Once(28), 31);
}

// rule C3, X1
#[test]
fn an_undo_with_a_program_is_never_mixed_wherever_both_are_killed() {
    sweep("undo", Fault::Kill, 37);
}
