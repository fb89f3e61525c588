//! What was done before costs nothing: neither the log, nor plans that are over, nor checkpoints, counted in system calls and in steps
//! of the store, which follow from the rows that it reads.

use crate::cost::{cli, working};
use crate::sqlite::sql;
use crate::*;

/// A plan with a change and a checkpoint.
fn worked() -> (World, Cli) {
    let world = World::new();
    write(world.dir("app").join("f"), "old\n");
    let escrow = cli(&world).cwd(world.path().join("app"));
    escrow.ok("plan create p --resource . --strategy overlay");
    put(&escrow, "p app f", "new\n");
    escrow.ok("checkpoint create p -m one");
    put(&escrow, "p app g", "new\n");
    (world, escrow)
}

/// 200,000 entries of the log, 300 plans that are over, 500 checkpoints.
const HISTORY: &str = "
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
    INSERT INTO event (position, kind, operation_id, plan_id, body, hash)
    SELECT (SELECT count FROM event_head) + 2 * i - 1 + ended, CASE ended WHEN 0 THEN 'begin' ELSE 'end' END,
           'op_' || i, NULL, '{}', zeroblob(32)
    FROM n, (SELECT 0 AS ended UNION SELECT 1);
    UPDATE event_head SET count = count + 200000;

    CREATE TEMP TABLE plans AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
    SELECT i, substr(id, 1, length(id) - 4) || printf('%04d', i) AS new, id AS old FROM n, plan;
    INSERT OR IGNORE INTO plan (id, name, state, directory, created_at)
    SELECT new, 'old' || i, 'cleaned_up', directory, created_at FROM plans JOIN plan ON id = old;
    INSERT OR IGNORE INTO sandbox (id, plan_id, resource_id, requested, strategy, state, area, metadata, message, warnings, reasons, created_at)
    SELECT substr(id, 1, length(id) - 4) || printf('%04d', i), new, resource_id, requested, strategy, 'cleaned_up', area, metadata,
           message, warnings, reasons, created_at
    FROM plans JOIN sandbox ON plan_id = old;

    CREATE TEMP TABLE kept AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
    SELECT i, substr(id, 1, length(id) - 4) || printf('%04d', i) AS new, id AS old FROM n, checkpoint;
    INSERT OR IGNORE INTO checkpoint (id, plan_id, label, reason, created_at, base)
    SELECT new, plan_id, 'kept' || i, reason, created_at, base FROM kept JOIN checkpoint ON id = old;
    INSERT OR IGNORE INTO checkpoint_member SELECT new, sandbox_id, moment FROM kept JOIN checkpoint_member ON checkpoint_id = old;";

/// What an `escrow` command costs: system calls, and steps of the store.
fn cost(world: &World, escrow: &Cli, line: &str) -> [usize; 2] {
    let at = world.path().join("steps");
    let counted = escrow
        .clone()
        .env("ESCROW_COUNT_STEPS", &at)
        .stdin("more\n");
    let calls = working(&counted.trace(line));
    let steps = fs::read_to_string(&at).expect("they were counted");
    remove(&at);
    let steps = steps
        .lines()
        .map(|one| one.parse::<usize>().expect("a number"));
    [calls, steps.sum()]
}

#[test]
fn what_was_done_before_costs_nothing() {
    let (none, fresh) = worked();
    let (many, grown) = worked();
    sql(&many.home().join("state.db"), HISTORY);
    let mut more = Vec::new();
    for line in [
        "status",
        "diff p",
        "diff",
        "diff p --since one",
        "read p app f",
        "write p app f",
        "plan show p",
        "checkpoint create p -m two",
        "plan rename p q",
        "plan rename q p",
        "restore p one",
        "commit p --dry-run",
        "recover",
        "plan create next --resource .",
        "write next app h",
        "commit next -m done",
        "undo next",
        "cleanup next --yes",
    ] {
        let ([calls, steps], [grown_calls, grown_steps]) =
            (cost(&none, &fresh, line), cost(&many, &grown, line));
        let most = |small: usize| small + small / 20;
        // Each checkpoint says what of the layers is still needed.
        let needed = line.starts_with("restore");
        if grown_calls > most(calls) + 40 {
            more.push(format!("{line}: {calls} calls, then {grown_calls}"));
        }
        if !needed && grown_steps > most(steps) {
            more.push(format!("{line}: {steps} steps, then {grown_steps}"));
        }
    }
    assert!(more.is_empty(), "{more:#?}");
}

// Each checkpoint is a layer, and everything that is done asks each of them.
#[test]
fn a_diff_after_many_checkpoints_costs_no_more_than_after_some() {
    let world = World::new();
    write(world.dir("app").join("f"), "old\n");
    let escrow = cli(&world);
    escrow.plan("p", "app", "overlay");
    let lines = ["diff p", "read p app f", "write p app f"];
    let costs = || lines.map(|line| working(&escrow.clone().stdin("more\n").trace(line)));
    let mut after = Vec::new();
    for number in 0..100 {
        put(&escrow, "p app f", format!("{number}\n"));
        escrow.ok(format!("checkpoint create p -m n{number}"));
        if [29, 99].contains(&number) {
            after.push(costs());
        }
    }
    assert_eq!(escrow.ok("diff p --name-status"), "M\tf\n");
    for (line, (some, many)) in lines.iter().zip(after[0].iter().zip(after[1])) {
        assert!(many <= *some, "{line}: {some} calls, then {many}");
    }
    // Every one of them can be returned to.
    for number in [3, 31, 32, 64, 98] {
        escrow.ok(format!("restore p n{number}"));
        assert_eq!(escrow.ok("read p app f"), format!("{number}\n"));
    }
}
