//! SQLite databases under faults, with a directory in one plan: by rows and with a table that is brought over as a whole, with
//! a rollback journal and with a log. What is there is told by `sqlite3`.
//!
//! After each fault `recover` succeeds, and finds nothing the second time; database and directory are old, or both are
//! new; what another process wrote meanwhile is there; what the program said is true; the next verbs work; and after
//! `cleanup` nothing lies beside the database, and nothing in the home.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::power::{on_each, word};
use crate::sqlite_histories::{history, raced};
use crate::sweep::{each, each_here, spread, thin};
use crate::*;

/// What is interrupted, and what was done before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DbVerb {
    Create,
    Checkpoint,
    Restore,
    Rollback,
    Commit,
    Undo,
    Cleanup,
}

impl DbVerb {
    const ALL: [Self; 7] = [
        Self::Commit,
        Self::Undo,
        Self::Create,
        Self::Checkpoint,
        Self::Restore,
        Self::Rollback,
        Self::Cleanup,
    ];

    fn line(self) -> &'static str {
        match self {
            Self::Create => "plan create t -r db -r notes",
            Self::Checkpoint => "checkpoint create t",
            Self::Restore => "restore t here --yes",
            Self::Rollback => "rollback t --yes",
            Self::Commit => "commit t --yes",
            Self::Undo => "undo t --yes",
            Self::Cleanup => "cleanup t --yes",
        }
    }
}

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

    fn name(self) -> String {
        let mode = if self.log { "log" } else { "journal" };
        let what = if self.whole { "tables" } else { "rows" };
        let held = if self.held { ", held" } else { "" };
        format!("sqlite {what}, {mode}{held}")
    }

    fn work(self) -> &'static str {
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

struct DbWorld {
    cli: Cli,
    root: PathBuf,
    kind: DbKind,
    _world: Option<World>,
}

impl DbWorld {
    fn new(kind: DbKind) -> Self {
        Self::within(World::new(), kind)
    }

    fn within(world: World, kind: DbKind) -> Self {
        let root = world.path().to_owned();
        let mode = if kind.log { "wal" } else { "delete" };
        let made = format!(
            "mkdir data notes; echo old > notes/note; echo gone > notes/drop
             sqlite3 data/app.db \"PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, v, n);
             INSERT INTO t VALUES (1, 'old', 0), (2, 'goes', 0)\""
        );
        support::sh(&root, &made);
        let cli = Cli::new(&world, &binary()).cwd(root.clone());
        let strategy = match kind.held {
            true => "transaction_rollback",
            false => "snapshot",
        };
        cli.ok(format!(
            "resource add db --type sqlite --at data/app.db --strategy {strategy}"
        ));
        cli.ok("resource add notes --type fs-directory --at notes");
        Self {
            cli,
            root,
            kind,
            _world: Some(world),
        }
    }

    fn sh(&self, script: &str) -> String {
        let out = support::sh(&self.root, script);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Statements in the sandbox.
    fn inside(&self, statements: &str) {
        if self.kind.held {
            for statement in statements.split("; ") {
                self.cli.ok(["sql", "t", "db", statement]);
            }
            return;
        }
        let copy = self.cli.ok("path t db");
        let sql = format!(
            "sqlite3 -batch -bail '{}' \"{statements}\"",
            copy.trim_end()
        );
        self.sh(&sql);
    }

    /// What an agent does.
    fn work(&self) {
        self.inside(self.kind.work());
        for (name, content) in [("note", "new\n"), ("more", "added\n")] {
            let typed = self.cli.clone().stdin(content);
            typed.ok(format!("write t notes {name}"));
        }
    }

    /// Another process changes a column that the sandbox leaves alone; where a table is brought over as a whole, it
    /// would contradict, and a held transaction keeps it off.
    fn others(&self) -> i64 {
        if self.kind.whole || self.kind.held {
            return 0;
        }
        self.sh("sqlite3 data/app.db 'UPDATE t SET n = 7 WHERE id = 1'");
        7
    }

    /// Everything before the verb; what another process wrote.
    fn lead_up(&self, verb: DbVerb) -> i64 {
        if verb == DbVerb::Create {
            return 0;
        }
        self.cli.ok(DbVerb::Create.line());
        self.work();
        match verb {
            DbVerb::Commit => return self.others(),
            DbVerb::Undo => {
                let theirs = self.others();
                self.cli.ok("commit t --yes");
                return theirs;
            }
            DbVerb::Restore => {
                self.cli.ok("checkpoint create t -m here");
                self.inside("DELETE FROM t");
            }
            _ => {}
        }
        0
    }

    fn side(&self, theirs: i64) -> Result<Side, String> {
        let now = self.sh(LOOK);
        match self.kind.sides(theirs) {
            [old, _] if now == old => Ok(Side::Old),
            [_, new] if now == new => Ok(Side::New),
            _ => Err(format!("neither old nor new: {now}")),
        }
    }

    /// Everything that must hold after a fault; `dark` says that the power was cut, so that work which was not released
    /// may be gone.
    fn judge(&self, verb: DbVerb, theirs: i64, status: i32, dark: bool) -> Result<(), String> {
        let ok = |line: &str| {
            let done = self.cli.run(line);
            match done.status {
                0 => Ok(done.stdout_text() + &done.stderr_text()),
                other => Err(format!(
                    "`{line}` ended with {other}: {}",
                    done.stderr_text()
                )),
            }
        };
        ok("recover")?;
        let again = ok("recover")?;
        if !again.contains("nothing to recover") {
            return Err(format!("the second recover found something: {again}"));
        }
        let side = self.side(theirs)?;
        let (done, undone) = match verb {
            DbVerb::Undo => (Side::Old, Side::New),
            DbVerb::Commit => (Side::New, Side::Old),
            _ => (Side::Old, Side::Old),
        };
        match status {
            0 if side != done => {
                return Err(format!("it said that it is done, and is {}", side.word()));
            }
            1..=4 if side != undone => {
                return Err(format!(
                    "it said that it failed ({status}), and is {}",
                    side.word()
                ));
            }
            _ => {}
        }
        self.go_on(verb, &side, theirs, dark, &ok)?;
        let left = self.sh("ls data; ls escrow-home/sandboxes 2>/dev/null || true");
        match left == "app.db\n" {
            true => Ok(()),
            false => Err(format!("left: {left}")),
        }
    }

    /// The next verbs.
    fn go_on(
        &self,
        verb: DbVerb,
        side: &Side,
        theirs: i64,
        dark: bool,
        ok: &impl Fn(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let shown = self.cli.run("--json plan show t");
        let state: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        let open = shown.status == 0 && state["state"] == "open";
        let is = |wanted: Side| match self.side(theirs)? {
            side if side == wanted => Ok(()),
            side => Err(format!("{} instead of {}", side.word(), wanted.word())),
        };
        match (verb, side) {
            (DbVerb::Commit | DbVerb::Undo, Side::New) => drop(ok("undo t --yes")?),
            (DbVerb::Commit, _) if open && !dark => {
                ok("commit t --yes")?;
                is(Side::New)?;
                ok("undo t --yes")?;
            }
            (DbVerb::Checkpoint, _) if open && !dark => {
                ok("commit t --yes")?;
                is(Side::New)?;
                ok("undo t --yes")?;
            }
            (DbVerb::Restore, _) if open && !dark => {
                // All of its work, or none of its rows: never a mixture.
                let rows = self.cli.ok("read t db t").lines().count();
                if rows == 2 {
                    ok("commit t --yes")?;
                    is(Side::New)?;
                    ok("undo t --yes")?;
                } else if rows != 0 {
                    return Err(format!("the sandbox is torn: {rows} rows"));
                }
            }
            (DbVerb::Create | DbVerb::Rollback, _) if open && !dark => {
                let found = self.cli.ok("--json diff t");
                let found: Value = serde_json::from_str(&found).unwrap_or_default();
                let members = found["resources"].as_array().into_iter().flatten();
                let changes: usize = members
                    .map(|one| one["changes"].as_array().map_or(0, Vec::len))
                    .sum();
                if verb == DbVerb::Create && changes > 0 {
                    return Err(format!("the sandbox is torn: {changes} changes"));
                }
            }
            _ => {}
        }
        if shown.status == 0 {
            ok("cleanup t --yes")?;
        }
        ok("gc --older-than 0s")?;
        is(Side::Old)
    }
}

/// One fault.
#[derive(Debug, Clone, Copy)]
struct DbPoint {
    kind: DbKind,
    verb: DbVerb,
    n: u64,
    fault: Fault,
}

/// What came of something that may panic.
fn told(done: std::thread::Result<Result<(), String>>) -> Option<String> {
    match done {
        Ok(answer) => answer.err(),
        Err(panic) => Some(words(&*panic)),
    }
}

impl Trial for DbPoint {
    fn plan(&self) -> String {
        format!("{} {:?}", self.kind.name(), self.verb)
    }

    fn run(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let world = DbWorld::new(self.kind);
            let theirs = world.lead_up(self.verb);
            let run = world
                .cli
                .stepper(self.verb.line())
                .fault(self.n, self.fault);
            verdict.hit.clone_from(&run.hit);
            let status = run.outcome.status;
            let judged = world.judge(self.verb, theirs, status, false);
            judged.map_err(|error| {
                let said = run.outcome.stderr_text();
                format!("{error} (it ended with {status}: {said})")
            })
        }));
        let call = verdict.hit.as_ref().map(Step::to_string);
        let (name, n, fault) = (self.plan(), self.n, self.fault);
        let wrong = told(done).map(|wrong| format!("{name}: {fault:?} at {n} ({call:?}): {wrong}"));
        verdict.wrong.extend(wrong);
        verdict
    }
}

/// Every point with these faults.
fn points(faults: &[Fault], form: Form) -> Vec<DbPoint> {
    let verbs: &[DbVerb] = match form.is_long() {
        true => &DbVerb::ALL,
        false => &[DbVerb::Commit, DbVerb::Undo, DbVerb::Restore],
    };
    let kinds: &[DbKind] = match form.is_long() {
        true => &DbKind::ALL,
        false => &[
            DbKind::new(false, false),
            DbKind::new(true, true),
            DbKind::held(false, true),
        ],
    };
    let mut all = Vec::new();
    for &kind in kinds {
        for &verb in verbs {
            // A program that is stepped is waited for with all its children, and the holder outlives it.
            if kind.held && verb == DbVerb::Create {
                continue;
            }
            let world = DbWorld::new(kind);
            world.lead_up(verb);
            let calls = sweep::calls(world.cli.stepper(verb.line()), verb.line());
            let point = |n: u64, fault: Fault| DbPoint {
                kind,
                verb,
                n,
                fault,
            };
            all.extend((1..=calls).flat_map(|n| faults.iter().map(move |fault| point(n, *fault))));
        }
    }
    all
}

/// Kills at every call, and torn writes.
pub(crate) fn kills(form: Form) -> Figures {
    form.run(points(&[Fault::Kill, Fault::Tear], form), 18)
}

/// Errors at every call.
pub(crate) fn errors(form: Form) -> Figures {
    let mut faults = vec![Fault::Once(errors::EIO), Fault::Forever(28)];
    if form.is_long() {
        faults.extend([Fault::Forever(30), Fault::Once(24), Fault::Once(4)]);
    }
    form.run(points(&faults, form), 12)
}

/// Power cuts in a commit and its undo; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    on_each(&Fs::ALL, |fs| {
        let mut figures = Figures::default();
        for verb in [DbVerb::Commit, DbVerb::Undo] {
            let kind = DbKind::new(verb == DbVerb::Undo, fs == Fs::Xfs);
            figures.add(cut(fs, verb, kind, form.part(2))?);
        }
        Some(figures)
    })
}

fn cut(fs: Fs, verb: DbVerb, kind: DbKind, form: Form) -> Option<Figures> {
    let mut disk = LoopFs::new(fs, 96)?;
    let mut world = DbWorld::within(World::under(disk.path()), kind);
    // It goes with the image.
    std::mem::forget(world._world.take());
    let theirs = world.lead_up(verb);
    let start = disk.disk_at_rest();
    let all = sweep::calls(world.cli.stepper(verb.line()), verb.line());
    let mut chosen: Vec<u64> = match form {
        Form::Bounded => thin(&(1..=all).collect::<Vec<_>>(), 1),
        Form::Long(_) => spread((1..=all).collect()),
    };
    // Well beyond the last call, which is not always the same.
    chosen.insert(0, all + 100);
    let planned = chosen.len();
    let figures = each_here(&chosen, form.until(), |&n| {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            disk.boot(&start);
            let mut cut = None;
            let stepper = world.cli.stepper(verb.line());
            let run = stepper.stop_at(n, |_| cut = Some(disk.disk_now()));
            let cut = cut.unwrap_or_else(|| disk.disk_now());
            disk.boot(&cut);
            verdict.hit.clone_from(&run.hit);
            world.judge(verb, theirs, run.outcome.status, true)
        }));
        let call = verdict.hit.as_ref().map(Step::to_string);
        let name = format!("{} {verb:?} on {}", kind.name(), word(fs));
        let wrong = told(done).map(|wrong| format!("{name}: cut at {n} ({call:?}): {wrong}"));
        verdict.wrong.extend(wrong);
        // The cut after the end counts too.
        verdict.hit.get_or_insert(Step::named("exit"));
        (name, verdict)
    });
    Some(Figures { planned, ..figures })
}

/// Random histories, each checked in every step.
fn seeds(form: Form, name: &str, count: u64, one: fn(u64)) -> Figures {
    let all: Vec<u64> = (1000..1000 + count).collect();
    let figures = each(&all, form.until(), |seed| {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| one(*seed)));
        verdict.wrong.extend(told(done.map(Ok)));
        verdict.hit = Some(Step::named("history"));
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
    if require_stepper() {
        kills(Form::Bounded).settle("sqlite: kills", 15);
    }
}

// rule C4, C6, C12, Q3
#[test]
fn sqlite_with_errors_anywhere() {
    if require_stepper() {
        errors(Form::Bounded).settle("sqlite: errors", 10);
    }
}

// rule C3
#[test]
fn sqlite_when_the_power_is_cut() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("sqlite: power cuts on ext4, xfs and btrfs", 12);
    }
}
