//! SQLite databases under faults, with a directory in one plan: by rows and with a table that is brought over as a whole, with
//! a rollback journal and with a log. What is there is told by `sqlite3`.
//!
//! Besides what holds for all (`tool`), what another process wrote meanwhile is there; and after `cleanup` nothing lies
//! beside the database.

use crate::power::on_each;
use crate::sqlite_histories::{history, raced};
use crate::sweep::each;
use crate::tool::{Scene, Tool, ToolVerb, cut, points};
use crate::*;

const VERBS: &[ToolVerb] = &[
    ToolVerb::Commit,
    ToolVerb::Undo,
    ToolVerb::Checkpoint,
    ToolVerb::Restore,
    ToolVerb::Rollback,
    ToolVerb::Cleanup,
    ToolVerb::Create,
];

/// How the database is, and what is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DbKind {
    log: bool,
    whole: bool,
    /// Whether it is a held transaction instead of a copy.
    held: bool,
}

impl DbKind {
    const ALL: [Self; 8] = [
        Self::new(false, false),
        Self::new(true, false),
        Self::new(false, true),
        Self::new(true, true),
        Self::held(false, false),
        Self::held(true, false),
        Self::held(false, true),
        Self::held(true, true),
    ];

    const fn new(log: bool, whole: bool) -> Self {
        let held = false;
        Self { log, whole, held }
    }

    const fn held(log: bool, whole: bool) -> Self {
        let held = true;
        Self { log, whole, held }
    }

    fn statements(self) -> &'static str {
        match self.whole {
            false => {
                "UPDATE t SET v = 'new' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (3, 'comes', 0)"
            }
            true => {
                "ALTER TABLE t ADD COLUMN w DEFAULT 'w'; UPDATE t SET v = 'new'; CREATE TABLE u (x); INSERT INTO u VALUES (1)"
            }
        }
    }

    /// What `LOOK` says of the old state, and of the new; `theirs` is what another process wrote.
    fn sides(self, theirs: i64) -> [String; 2] {
        let old = format!("1|old|{theirs}\n2|goes|0\n");
        let new = match self.whole {
            false => format!("1|new|{theirs}\n3|comes|0\n"),
            true => "1|new|0|w\n2|new|0|w\n".to_owned(),
        };
        [
            format!("ok\n{old}old\ngone\n"),
            format!("ok\n{new}new\ngone\nadded\n"),
        ]
    }
}

const LOOK: &str =
    "sqlite3 -batch -bail data/app.db 'PRAGMA integrity_check; SELECT * FROM t'; cat notes/note
    cat notes/drop notes/more 2>/dev/null || true";

fn sh(scene: &Scene<DbKind>, script: &str) -> String {
    escrow_testkit::files::sh(&scene.root, script)
}

/// Statements in the sandbox.
fn inside(scene: &Scene<DbKind>, statements: &str) {
    if scene.tool.held {
        for statement in statements.split("; ") {
            scene.cli.ok(["sql", "t", "db", statement]);
        }
        return;
    }
    let copy = scene.cli.ok("path t db");
    let copy = copy.trim_end();
    sh(
        scene,
        &format!("sqlite3 -batch -bail '{copy}' \"{statements}\""),
    );
}

impl Tool for DbKind {
    fn name(self) -> String {
        let mode = if self.log { "log" } else { "journal" };
        let what = if self.whole { "tables" } else { "rows" };
        let held = if self.held { ", held" } else { "" };
        format!("sqlite {what}, {mode}{held}")
    }

    fn members(self) -> &'static str {
        "-r db -r notes"
    }

    fn furnish(self, world: &World) -> Cli {
        let mode = if self.log { "wal" } else { "delete" };
        let made = format!(
            "mkdir data notes; echo old > notes/note; echo gone > notes/drop
             sqlite3 data/app.db \"PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, v, n);
             INSERT INTO t VALUES (1, 'old', 0), (2, 'goes', 0)\""
        );
        support::sh(world.path(), &made);
        let cli = Cli::new(world, &binary());
        let strategy = match self.held {
            true => "transaction_rollback",
            false => "snapshot",
        };
        cli.ok(format!(
            "resource add db --type sqlite --at data/app.db --strategy {strategy}"
        ));
        cli.ok("resource add notes --type fs-directory --at notes");
        cli
    }

    fn work(scene: &Scene<Self>) {
        inside(scene, scene.tool.statements());
        for (name, content) in [("note", "new\n"), ("more", "added\n")] {
            put(&scene.cli, &format!("t notes {name}"), content);
        }
    }

    /// Another process changes a column that the sandbox leaves alone; where a table is brought over as a whole, it
    /// would contradict, and a held transaction keeps it off.
    fn then(scene: &Scene<Self>, verb: ToolVerb) -> i64 {
        match verb {
            ToolVerb::Commit | ToolVerb::Undo if !scene.tool.whole && !scene.tool.held => {
                sh(
                    scene,
                    "sqlite3 data/app.db 'UPDATE t SET n = 7 WHERE id = 1'",
                );
                return 7;
            }
            ToolVerb::Restore => {
                scene.cli.ok("checkpoint create t -m here");
                inside(scene, "DELETE FROM t");
            }
            _ => {}
        }
        0
    }

    fn side(scene: &Scene<Self>, _verb: ToolVerb) -> Result<Side, String> {
        let now = sh(scene, LOOK);
        match scene.tool.sides(scene.theirs) {
            [old, _] if now == old => Ok(Side::Old),
            [_, new] if now == new => Ok(Side::New),
            _ => Err(format!("neither old nor new: {now}")),
        }
    }

    fn holds_work(scene: &Scene<Self>, verb: ToolVerb) -> Result<bool, String> {
        match verb {
            ToolVerb::Restore => match scene.cli.ok("read t db t").lines().count() {
                // All of its work, or none of its rows: never a mixture.
                2 => Ok(true),
                0 => Ok(false),
                rows => Err(format!("the sandbox is torn: {rows} rows")),
            },
            ToolVerb::Create | ToolVerb::Rollback => {
                let found = json(&scene.cli, "diff t");
                let members = list(&found["resources"]).iter();
                let changes: usize = members.map(|one| list(&one["changes"]).len()).sum();
                match verb == ToolVerb::Create && changes > 0 {
                    true => Err(format!("the sandbox is torn: {changes} changes")),
                    false => Ok(false),
                }
            }
            _ => Ok(true),
        }
    }

    fn nothing_left(scene: &Scene<Self>) -> Result<(), String> {
        let left = sh(
            scene,
            "ls data; ls escrow-home/sandboxes 2>/dev/null || true",
        );
        match left == "app.db\n" {
            true => Ok(()),
            false => Err(format!("left: {left}")),
        }
    }
}

/// The kinds, each with the verbs that are interrupted.
fn kinds(form: Form) -> Vec<(DbKind, &'static [ToolVerb])> {
    const FEW: &[ToolVerb] = &[ToolVerb::Commit, ToolVerb::Undo, ToolVerb::Restore];
    let kinds: &[DbKind] = match form.is_long() {
        true => &DbKind::ALL,
        false => &[
            DbKind::new(false, false),
            DbKind::new(true, true),
            DbKind::held(false, true),
        ],
    };
    let verbs = |kind: &DbKind| match form.is_long() {
        // A program that is stepped is waited for with all its children, and the holder outlives it.
        true if kind.held => &VERBS[..VERBS.len() - 1],
        true => VERBS,
        false => FEW,
    };
    kinds.iter().map(|kind| (*kind, verbs(kind))).collect()
}

/// Kills at every call, and torn writes.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(points(&kinds(form), &[Fault::Kill, Fault::Tear], None), 18)
}

/// Errors at every call.
pub(crate) fn errors(form: Form) -> Figures {
    form.run(points(&kinds(form), &crate::tool::errors(form), None), 12)
}

/// Power cuts in a commit and its undo; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    on_each(&Fs::ALL, |fs| {
        let mut figures = Figures::default();
        for verb in [ToolVerb::Commit, ToolVerb::Undo] {
            let kind = DbKind::new(verb == ToolVerb::Undo, fs == Fs::Xfs);
            figures.add(cut(fs, kind, verb, false, (form.part(2), 1))?);
        }
        Some(figures)
    })
}

/// Random histories, each checked in every step.
fn seeds(form: Form, name: &str, count: u64, one: fn(u64)) -> Figures {
    let all: Vec<u64> = (1000..1000 + count).collect();
    let figures = each(&all, form.until(), |seed| {
        let attempt = |verdict: &mut Verdict| {
            verdict.hit = Some(Step::named("history"));
            one(*seed);
            Ok(())
        };
        let verdict = Verdict::of(attempt, |_| format!("{name} {seed}"));
        (name.to_owned(), verdict)
    });
    let planned = all.len();
    Figures { planned, ..figures }
}

/// Histories of both sides, compared with a model and with `sqldiff`.
pub(crate) fn histories(form: Form) -> Figures {
    seeds(form, "sqlite histories", 10_000, history)
}

/// Histories with a writer that never rests.
pub(crate) fn races(form: Form) -> Figures {
    seeds(form, "sqlite races", 1_000, raced)
}

// rule C1, C3, Q8
#[test]
fn sqlite_killed_anywhere() {
    need!(require_stepper());
    kills(Form::Bounded).settle("sqlite: kills", 15);
}

// rule C4, C6, C12, Q3
#[test]
fn sqlite_with_errors_anywhere() {
    need!(require_stepper());
    errors(Form::Bounded).settle("sqlite: errors", 10);
}

// rule C3
#[test]
fn sqlite_when_the_power_is_cut() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("sqlite: power cuts on ext4, xfs and btrfs", 12);
    }
}
