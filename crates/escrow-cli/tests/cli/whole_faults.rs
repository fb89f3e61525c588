//! Verbs of a plan that are interrupted, and what they say: all members or none, and everything can go on.

use crate::faults::{EIO, sweep};
use crate::*;

const NAMES: [&str; 3] = ["one", "two", "three"];
const CREATE: &str = "plan create try --resource one --resource two --resource three";

/// Three resources, in layers and copied.
fn resources() -> (World, Cli) {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    for (name, strategy) in NAMES.iter().zip(["overlay", "filesystem_copy", "overlay"]) {
        write(world.dir(name).join("f"), "old\n");
        cli.ok(format!(
            "resource add {name} --type fs-directory --at ./{name} --strategy {strategy}"
        ));
    }
    (world, cli)
}

fn change_all(cli: &Cli) {
    for name in NAMES {
        put(cli, &format!("try {name} f"), "new\n");
    }
}

/// A plan of the three in which each is changed.
fn changed() -> (World, Cli) {
    let (world, cli) = resources();
    cli.ok(CREATE);
    change_all(&cli);
    (world, cli)
}

fn originals(world: &World) -> [String; 3] {
    NAMES.map(|name| read(world.at(name).join("f")))
}

/// Nothing is left half way, and everything can be removed.
fn goes_on(world: &World, cli: &Cli) -> Result<(), String> {
    let recovered = cli.run("recover");
    if recovered.status != 0 {
        return Err(recovered.stderr_text());
    }
    let unfinished = &json(cli, "status")["unfinished"];
    if *unfinished != value!([]) {
        return Err(unfinished.to_string());
    }
    let listed = json(cli, "plan list");
    for plan in list(&listed["plans"]) {
        let id = plan["id"].as_str().expect("an id");
        cli.ok(format!("cleanup {id}"));
    }
    // Killed before it is recorded, a plan leaves its lock.
    cli.ok("gc");
    let left = |room: &str| names(world.home().join(room)).len();
    match left("sandboxes") + left("locks") {
        0 => Ok(()),
        left => Err(format!("{left} things are left in the home")),
    }
}

/// What `run` makes for directories that no plan has is whole or nothing, too.
// rule C1
#[test]
fn a_run_that_is_killed_while_it_begins_a_plan_leaves_no_part_of_one() {
    let line = "-q run --resource ./one --resource ./two -- true";
    sweep(resources, line, &[Fault::Kill], |world, cli, how| {
        for plan in list(&json(cli, "plan list")["plans"]) {
            let whole = plan["state"] != "open" || list(&plan["sandboxes"]).len() == 2;
            assert!(whole, "{how}: an open plan without all sandboxes: {plan}");
        }
        assert_eq!(goes_on(world, cli), Ok(()), "{how}");
    });
}

/// Lets every removal of a line fail.
fn without_removals(cli: &Cli, line: &str) -> (i32, String) {
    let run = cli.stepper(line).only(&["unlinkat", "rmdir", "unlink"]);
    let outcome = run.fault(1, Fault::Forever(EIO)).outcome;
    (outcome.status, outcome.stderr_text())
}

// rule P6
#[test]
fn a_plan_that_is_being_removed_says_so_to_every_verb() {
    need!(require_stepper());
    let (world, cli) = changed();
    cli.ok("checkpoint create try -m kept");
    assert_eq!(without_removals(&cli, "cleanup try").0, 1);
    assert_eq!(json(&cli, "plan show try")["state"], "removing");
    let unfinished = &json(&cli, "status")["unfinished"][0];
    let wanted = (&"try".into(), &"cleanup".into());
    assert_eq!((&unfinished["plan"], &unfinished["what"]), wanted);
    let lines = "diff try; read try one f; write try one f; path try one; run --plan try -- true; \
        commit try; commit try --dry-run; rollback try; undo try; checkpoint create try; \
        restore try kept; plan fork try other; sandbox create try one";
    for line in lines.split("; ") {
        let (status, said) = without_removals(&cli, line);
        let expected = if line.starts_with("run") { 125 } else { 5 };
        assert_eq!(status, expected, "{line}: {said}");
        let holds = said.contains("the plan 'try' is being removed");
        assert!(holds, "{line}: {said}");
        assert!(said.contains("`escrow cleanup try`"), "{line}: {said}");
    }
    assert_eq!(originals(&world), ["old\n"; 3]);
    // Its name is free, and what is left of it goes with the next command.
    cli.ok(CREATE);
    assert_eq!(json(&cli, "status")["unfinished"], value!([]));
    assert_eq!(goes_on(&world, &cli), Ok(()));
}

// rule C10, C17
#[test]
fn a_rollback_that_fails_in_the_middle_says_what_is_still_to_be_discarded() {
    need!(require_stepper());
    // The layers are put to use by a rename, after those of the checkpoint that keeps them: the first that stops the rollback is
    // that of the first sandbox.
    let interrupted = |n: u64| {
        let (world, cli) = changed();
        let rollback = cli
            .stepper("rollback try")
            .only(&["renameat2", "renameat", "rename"]);
        let outcome = rollback.fault(n, Fault::Once(EIO)).outcome;
        (world, cli, outcome)
    };
    let found = (1..40)
        .map(interrupted)
        .find(|(.., outcome)| outcome.status == 5);
    let (world, cli, outcome) = found.expect("a sandbox is not discarded");
    let said = outcome.stderr_text();
    has(&said, ["the plan 'try' is not wholly rolled back: one: "]);
    has(&said, ["discarded: two, three"]);
    let said = cli.fails("diff try", 5);
    has(&said, ["a rollback of the plan 'try' was interrupted"]);
    assert_eq!(json(&cli, "status")["unfinished"][0]["what"], "rollback");
    let recovered = json(&cli, "recover");
    assert_eq!(recovered["recovered"][0]["what"], "rollback");
    let diff = cli.ok("diff try --name-status");
    assert_eq!(diff, "# one\n# two\n# three\n");
    assert_eq!(goes_on(&world, &cli), Ok(()));
}

// rule C10
#[test]
fn a_rollback_with_a_member_that_cannot_discards_the_others() {
    let (world, cli) = resources();
    let line = "resource add open --type fs-directory --at ./open --strategy none";
    world.dir("open");
    cli.ok(line);
    cli.ok("plan create try --resource one --resource two --resource three --resource open");
    change_all(&cli);
    let said = cli.ok("rollback try");
    assert!(said.contains("nothing was isolated"), "{said}");
    for name in NAMES {
        assert_eq!(cli.ok(format!("read try {name} f")), "old\n");
    }
    cli.ok("undo try");
    for name in NAMES {
        assert_eq!(cli.ok(format!("read try {name} f")), "new\n");
    }
    assert_eq!(goes_on(&world, &cli), Ok(()));
}

/// A plan that another process is just making has its name already.
// rule C14
#[test]
fn a_name_that_was_being_taken_was_tried_for_ever() {
    let (world, cli) = resources();
    let many = world.dir("many");
    for number in 0..3000 {
        write(many.join(number.to_string()), "x");
    }
    let cli = cli.cwd(&many);
    let create = "plan create --resource . --strategy filesystem_copy";
    let mut first = cli.start(create);
    let process = rustix::process::Pid::from_child(&first);
    let send = |signal| rustix::process::kill_process(process, signal).expect("it is ours");
    let sandboxes = world.home().join("sandboxes");
    let started = || fs::read_dir(&sandboxes).is_ok_and(|mut areas| areas.next().is_some());
    while !started() {
        assert_eq!(first.try_wait().expect("it is ours"), None);
        thread::sleep(Duration::from_millis(1));
    }
    send(rustix::process::Signal::STOP);
    let made = json(&cli, create)["name"].clone();
    let named = cli.fails(format!("{create} many"), 4);
    send(rustix::process::Signal::CONT);
    assert!(first.wait().expect("it is ours").success());
    assert_ne!(made, "many");
    assert!(named.contains("'many'"), "{named}");
    let plans = json(&cli, "plan list")["plans"].clone();
    assert_eq!(list(&plans).len(), 2, "{plans}");
}
