//! A SQLite database: its sandbox, the diff of its rows and the commit of a few of them, beside SQLite's own tools.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bench::{Bench, Escrow, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::thousands;

/// How many rows are changed.
const CHANGED: usize = 1000;

/// A database with so many rows.
struct Table {
    rows: usize,
    path: PathBuf,
}

fn sqlite(at: &Path, statements: &str) -> Duration {
    let mut sqlite3 = command("sqlite3", &["-batch", "-bail"], &[at]);
    time(sqlite3.arg(statements), &[0])
}

impl Table {
    fn new(bench: &Bench, rows: usize) -> Self {
        let path = bench.dir(&format!("rows-{rows}")).join("app.db");
        let fill = format!(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, price REAL, note TEXT);
             WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT INTO t SELECT i, 'name ' || i, i * 1.5, hex(randomblob(16)) FROM n"
        );
        sqlite(&path, &fill);
        Self { rows, path }
    }

    fn title(&self) -> String {
        format!("{} rows", thousands(self.rows))
    }

    /// Changes a thousand rows, spread over all of them.
    fn change(&self, at: &Path) {
        let step = self.rows / CHANGED;
        sqlite(
            at,
            &format!("UPDATE t SET note = 'changed', price = price + 1 WHERE id % {step} = 0"),
        );
    }

    /// A sandbox with the changes.
    fn worked_on(&self, escrow: &Escrow) {
        escrow.create("p", &self.path, "snapshot");
        self.change(&escrow.area().join("db/app.db"));
    }
}

pub(crate) fn figures(bench: &Bench) -> Section {
    let sizes = match bench.quick {
        true => [10_000, 100_000],
        false => [100_000, 1_000_000],
    };
    let [small, large] = sizes.map(|rows| Table::new(bench, rows));
    let mut rows = snapshot(bench, &large);
    rows.extend(diff(bench, &large));
    rows.extend(commit(bench, &small, &large));
    Section {
        title: "A SQLite database",
        note: "`plan create`, `diff` and `commit` are the whole commands. `.backup` and `cp` make one copy, where a sandbox has \
            two: what the original was, and what is worked on. `sqldiff` compares the same two databases. For the commit, \
            `sqldiff` is run and `sqlite3` runs what it says, in one transaction: it merges nothing and keeps no way back. A \
            thousand rows are changed, spread over all of them.\n"
            .to_owned(),
        rows,
    }
}

fn snapshot(bench: &Bench, table: &Table) -> Vec<Row> {
    let escrow = bench.escrow("sqlite-create");
    let fresh = |what: &str, round: usize| {
        bench.settle();
        bench.fresh(&format!("{what}-{round}.db"))
    };
    let synced = |to: &Path| time(&mut command("sync", &["-f"], &[to]), &[0]);
    let arms = vec![
        Arm::new("`plan create`", |_| {
            bench.settle();
            let took = escrow.create("p", &table.path, "snapshot");
            escrow.cleanup("p");
            took
        }),
        Arm::new("`sqlite3 .backup; sync -f`", |round| {
            let to = fresh("backup", round);
            let line = format!(".backup '{}'", to.display());
            sqlite(&table.path, &line) + synced(&to)
        }),
        Arm::new("`cp; sync -f`", |round| {
            let to = fresh("cp", round);
            time(&mut command("cp", &[], &[&table.path, &to]), &[0]) + synced(&to)
        }),
    ];
    let times = in_turns(bench.rounds(true), arms);
    let row = |other: usize| Row::times(table.title(), &times[0], &times[other], None);
    vec![row(1), row(2)]
}

fn diff(bench: &Bench, table: &Table) -> Vec<Row> {
    let escrow = bench.escrow("sqlite-diff");
    table.worked_on(&escrow);
    let copy = escrow.area().join("db/app.db");
    let arms = vec![
        Arm::new("`escrow diff`", |_| {
            bench.settle();
            escrow.time(&["diff", "p"])
        }),
        Arm::new("`sqldiff`", |_| {
            bench.settle();
            time(&mut command("sqldiff", &[], &[&table.path, &copy]), &[0])
        }),
    ];
    let times = in_turns(bench.rounds(true), arms);
    escrow.cleanup("p");
    vec![Row::times(
        format!("{} changed of {}", thousands(CHANGED), table.title()),
        &times[0],
        &times[1],
        Some(1.0),
    )]
}

fn commit(bench: &Bench, small: &Table, large: &Table) -> Vec<Row> {
    let release = |escrow: &Escrow, table: &Table| {
        table.worked_on(escrow);
        bench.settle();
        let took = escrow.time(&["commit", "p"]);
        escrow.time(&["undo", "p"]);
        escrow.cleanup("p");
        took
    };
    let changed = bench.fresh("changed.db");
    let target = bench.fresh("target.db");
    for to in [&changed, &target] {
        time(&mut command("cp", &[], &[&large.path, to]), &[0]);
    }
    large.change(&changed);
    let [few, many] = ["few", "many"].map(|name| bench.escrow(&format!("sqlite-{name}")));
    let arms = vec![
        Arm::new("`escrow commit`", |_| release(&many, large)),
        Arm::new("`escrow commit`", |_| release(&few, small)),
        Arm::new("`sqldiff | sqlite3`", |_| {
            bench.settle();
            let script = "(echo 'BEGIN;'; sqldiff \"$1\" \"$2\"; echo 'COMMIT;') | sqlite3 -bail \"$1\"; sync -f \"$1\"";
            let mut bring = command("sh", &["-euc", script, "bring"], &[&target, &changed]);
            let took = time(&mut bring, &[0]);
            time(&mut command("cp", &[], &[&large.path, &target]), &[0]);
            took
        }),
    ];
    let times = in_turns(bench.rounds(true), arms);
    let of = |table: &Table| format!("{} changed of {}", thousands(CHANGED), table.title());
    vec![
        Row::times(of(large), &times[0], &times[2], None),
        Row::times(
            format!("{}, beside of {}", of(large), small.title()),
            &times[0],
            &times[1],
            None,
        ),
    ]
}
