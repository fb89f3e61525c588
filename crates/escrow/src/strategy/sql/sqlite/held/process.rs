//! The process that holds a transaction of a SQLite database, and does in it what the engine asks for.
//!
//! Nothing of it reaches the file before it is committed, however much it is: others read the rows as they were, and none of them
//! can write. When the process dies SQLite takes everything back.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::NAME;
use super::wire::{Answer, HeldSpec, Refusal, Request};
use crate::fs::{Dir, remove};
use crate::model::{DiffView, ResourceId, SystemIdSource};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::holder::{self, CONTROL};
use crate::strategy::sql::sqlite::connect::{Database, Use};
use crate::strategy::sql::sqlite::diff::Difference;
use crate::strategy::sql::sqlite::merge::{Merged, Versions, merge};
use crate::strategy::sql::sqlite::plan::{self, BEGUN, DONE, OpenPlan};
use crate::strategy::sql::sqlite::references::newly_broken;
use crate::strategy::sql::sqlite::schema::Schema;
use crate::strategy::sql::sqlite::{apply, content, full_text, wording};
use crate::strategy::{Intent, Preview, QueryResult, RollbackReport, unsupported};

/// The savepoint at which nothing was changed yet.
const BASE: &str = "escrow_base";

/// How long a connection that was made may say nothing.
const SILENCE: Duration = Duration::from_secs(10);

/// The longest request.
const LONGEST: u64 = 1 << 30;

/// Settings that may be given a value in a statement: those that a commit carries over, and those that only look.
const PERMITTED: [&str; 12] = [
    "user_version",
    "application_id",
    "defer_foreign_keys",
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_xinfo",
];

struct Held {
    spec: HeldSpec,
    database: Database,
    /// What no other holder is called.
    name: String,
    began: Instant,
    /// How often something was done in it.
    turns: u64,
    /// Their names, and when they were taken.
    checkpoints: Vec<(String, u64)>,
    /// Why no transaction is held any more.
    ended: String,
}

/// Becomes the holder of a transaction, if it is one of these that is asked for.
pub(in crate::strategy) fn hold(text: &str) -> Option<std::result::Result<(), String>> {
    let spec: HeldSpec = serde_json::from_str(text).ok()?;
    Some(serve(spec))
}

fn serve(spec: HeldSpec) -> std::result::Result<(), String> {
    holder::stand_alone()?;
    let area = spec.area.as_path().to_owned();
    let (said, begun) = match Held::begin(spec) {
        Ok(begun) => (Answer::Done, Some(begun)),
        Err(error) => (Answer::Refused(error.into()), None),
    };
    holder::report(&said)?;
    let Some((mut held, control)) = begun else {
        return Ok(());
    };
    holder::serve(&area, &control, |stream| held.answer(stream));
    Ok(())
}

impl Held {
    fn begin(spec: HeldSpec) -> Result<(Self, UnixListener)> {
        let database = Database::open(spec.database.as_path(), Use::Work)?;
        // What is decided survives a power cut. Changed pages stay in memory: written early they would lock readers out.
        for setting in ["synchronous = EXTRA", "cache_spill = OFF"] {
            database.run("set the connection up", &format!("PRAGMA {setting}"))?;
        }
        let mut held = Self {
            database,
            name: ResourceId::new(&SystemIdSource).to_string(),
            began: Instant::now(),
            turns: 0,
            checkpoints: Vec::new(),
            ended: String::new(),
            spec,
        };
        held.begin_anew()?;
        let area = held.spec.area.as_path();
        remove::remove(&Dir::open(area)?, CONTROL.as_bytes())?;
        let listening = holder::listen(area, CONTROL);
        let control = listening.map_err(|said| held.refused("hold a transaction", said))?;
        Ok((held, control))
    }

    fn begin_anew(&mut self) -> Result<()> {
        let what = "begin a transaction";
        self.database.run(what, "BEGIN IMMEDIATE")?;
        self.database.run(what, &format!("SAVEPOINT {BASE}"))?;
        self.began = Instant::now();
        self.turns += 1;
        self.checkpoints.clear();
        Ok(())
    }

    fn refused(&self, what: &str, said: String) -> StrategyError {
        StrategyError::Database {
            at: self.spec.database.clone(),
            what: what.to_owned(),
            said,
        }
    }

    fn is_held(&self) -> bool {
        !self.database.sql.is_autocommit()
    }

    /// What the state of the transaction is told by.
    fn state(&self) -> String {
        format!("{}-{}", self.name, self.turns)
    }

    /// Answers one request; says whether that was the last.
    fn answer(&mut self, mut stream: &UnixStream) -> bool {
        match stream.set_read_timeout(Some(SILENCE)) {
            Ok(()) | Err(_) => {}
        }
        let Some(request) = holder::read_request(stream, LONGEST) else {
            return false;
        };
        let ends = request == Request::End;
        let answer = match self.carry_out(request) {
            Ok(answer) => answer,
            Err(StrategyError::HolderGone { why }) => Answer::NotHeld(why),
            Err(error) => Answer::Refused(Refusal::from(error)),
        };
        let text = serde_json::to_vec(&answer).unwrap_or_default();
        match stream.write_all(&text) {
            // A process that is gone asks again.
            Ok(()) | Err(_) => {}
        }
        ends
    }

    fn carry_out(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::End => Ok(Answer::Done),
            Request::Undo(plan) => self.undo(&plan).map(Answer::Undone),
            Request::Rollback => self.roll_back().map(|()| Answer::Done),
            _ if !self.is_held() => Ok(Answer::NotHeld(self.ended.clone())),
            Request::Status => Ok(Answer::Status {
                age: self.began.elapsed().as_secs(),
                checkpoints: self.checkpoints.len(),
            }),
            Request::Query {
                statement,
                read_only,
            } => self.query(&statement, read_only).map(Answer::Rows),
            Request::Read(path) => {
                let mut text = String::new();
                let read = content::read(&self.database, &path)?.read_to_string(&mut text);
                read.map_err(|error| self.refused("read", error.to_string()))?;
                Ok(Answer::Text(text))
            }
            Request::Write(path, text) => {
                self.turns += 1;
                let written = content::write(&self.database, &path, &mut text.as_bytes());
                self.noticing(written).map(Answer::Written)
            }
            Request::Preview => {
                let (found, merged) = self.compared(|_, _| Ok(()))?;
                Ok(Answer::Preview(Box::new(Preview {
                    diff: DiffView::new(found.changes()).into(),
                    conflicts: [merged.conflicts, merged.broken].concat(),
                    notes: merged.notes,
                    ..Preview::default()
                })))
            }
            Request::Prepare(area) => self.prepare(&area),
            Request::Commit { state, .. } if state != self.state() => Ok(Answer::Moved),
            Request::Commit { plan, .. } => self.commit(&plan),
            Request::Checkpoint => self.checkpoint().map(Answer::Kept),
            Request::Knows(name) => Ok(self
                .place_of(&name)
                .map_or(Answer::Unknown, |_| Answer::Done)),
            Request::Restore(name) => self.restore(&name),
            Request::Retain(names) => self.retain(&names).map(|()| Answer::Done),
        }
    }

    /// Runs one statement, which leaves the transaction as it is.
    fn query(&mut self, statement: &str, read_only: bool) -> Result<QueryResult> {
        self.turns += u64::from(!read_only);
        let denied = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&denied);
        let guard = move |context: AuthContext<'_>| match is_permitted(&context.action) {
            true => Authorization::Allow,
            false => {
                seen.store(true, Ordering::SeqCst);
                Authorization::Deny
            }
        };
        let what = "run the statement";
        self.database.refuse_writes(read_only)?;
        let set = self.database.sql.authorizer(Some(guard));
        set.map_err(self.database.failed(what))?;
        let found = content::query(&self.database, statement);
        let none: Option<fn(AuthContext<'_>) -> Authorization> = None;
        let set = self.database.sql.authorizer(none);
        set.map_err(self.database.failed(what))?;
        // The connection goes on, and writes what is committed.
        self.database.refuse_writes(false)?;
        if denied.load(Ordering::SeqCst) {
            let why = "transactions, savepoints, attached databases, temporary objects and settings belong to the connection that holds \
                       the sandbox's transaction, and SQLite cannot make a virtual table again once its transaction was taken back: use the \
                       strategy `snapshot` for these";
            return Err(unsupported(NAME, what, why));
        }
        self.noticing(found)
    }

    /// Takes note where what was done ended the transaction.
    fn noticing<T>(&mut self, done: Result<T>) -> Result<T> {
        if self.is_held() {
            return done;
        }
        let said = done.err().map(|error| format!(" ({error})"));
        self.ended = format!("a statement rolled it back{}", said.unwrap_or_default());
        Err(StrategyError::HolderGone {
            why: self.ended.clone(),
        })
    }

    /// What was changed: the rows as they were are those that every other connection sees.
    fn compared(
        &self,
        also: impl FnOnce(&Database, &Merged) -> Result<()>,
    ) -> Result<(Difference, Merged)> {
        let base = Database::open(self.spec.database.as_path(), Use::Read)?;
        let work = &self.database;
        let versions = Versions {
            base: &base,
            work,
            sandbox: work,
            original: &base,
        };
        base.transaction(false, || {
            let found = Difference::between(&base, work)?;
            let mut merged = merge(&versions, &found, &HashSet::new())?;
            full_text::check(work, &mut merged)?;
            also(&base, &merged)?;
            Ok((found, merged))
        })
    }

    fn prepare(&self, area: &crate::model::text::Location) -> Result<Answer> {
        let (found, merged) = self.compared(|base, merged| {
            let schemas = (Schema::read(base)?, Schema::read(&self.database)?);
            // SQLite checks what is deferred when the transaction ends.
            let (was, is) = ((base, &schemas.0), (&self.database, &schemas.1));
            if let Some((table, parent)) = newly_broken(was, is)? {
                let said = format!("a row of {table} refers to no row of {parent}");
                return Err(self.refused("commit", said));
            }
            wording::check(NAME, &merged.plan, (&schemas.0, &schemas.1))?;
            let whole = &merged.plan.whole;
            let new = whole.iter().filter_map(|swap| swap.after.as_ref());
            if !merged.plan.stages_rows() {
                return Ok(());
            }
            apply::stage_tables(&self.database, &area.as_path().join(plan::NEW), new)?;
            let old = whole.iter().filter_map(|swap| swap.before.as_ref());
            apply::stage_tables(base, &area.as_path().join(plan::OLD), old)
        })?;
        let mut conflicts = merged.conflicts.into_iter().chain(merged.broken);
        if let Some(one) = conflicts.next() {
            return Err(StrategyError::Moved {
                path: one.path,
                what: one.what,
            });
        }
        let database = self.spec.database.as_path();
        Ok(Answer::Prepared {
            plan: plan::write(database, area.as_path(), merged.plan, &merged.rows)?,
            changes: found.changes(),
            state: self.state(),
        })
    }

    /// Makes what a plan says of the rows as they were, in the transaction: what is released is what was shown, and what an undo
    /// takes back. The lock is kept all the time.
    fn make(&mut self, plan: &OpenPlan) -> Result<Vec<u8>> {
        let made = self.set_apart(true).and_then(|()| {
            let back = format!("ROLLBACK TO {BASE}");
            self.database.run("begin anew", &back)?;
            apply::remake(plan, &self.database)
        });
        let together = self.set_apart(false);
        self.checkpoints.clear();
        made.and_then(|mark| together.map(|()| mark))
            .map_err(|error| {
                self.ended = format!("what it changed could not be made again ({error})");
                let said = error.to_string();
                match self.database.run("roll back", "ROLLBACK") {
                    Ok(()) | Err(_) => StrategyError::TakenBack { code: None, said },
                }
            })
    }

    /// Neither triggers nor references act while rows are brought over, since both have acted.
    fn set_apart(&self, apart: bool) -> Result<()> {
        let sql = &self.database.sql;
        let set = sql
            .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, !apart)
            .and_then(|_| sql.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, !apart));
        set.map(drop)
            .map_err(self.database.failed("set the connection up"))
    }

    fn commit(&mut self, intent: &Intent) -> Result<Answer> {
        let Some(plan) = OpenPlan::read(intent)? else {
            return Ok(Answer::Done);
        };
        let mark = self.make(&plan)?;
        plan.mark(BEGUN, &mark)?;
        let done = self.database.run("commit", "COMMIT");
        match done {
            Ok(()) => {
                self.ended = "it was committed".to_owned();
                plan.mark(DONE, b"")?;
                Ok(Answer::Done)
            }
            // Such as while another process reads: it can be tried again.
            Err(error) if self.is_held() => {
                plan.unmark(BEGUN)?;
                Err(error)
            }
            // Whether it was committed is told by the rows.
            Err(error) => {
                self.ended = error.to_string();
                Ok(Answer::NotHeld(self.ended.clone()))
            }
        }
    }

    fn undo(&mut self, intent: &Intent) -> Result<RollbackReport> {
        let Some(plan) = OpenPlan::read(intent)? else {
            return Ok(RollbackReport::default());
        };
        if !plan.is_marked(BEGUN)? {
            return Ok(RollbackReport::default());
        }
        if self.is_held() {
            // An earlier undo made the changes again.
            self.database.run("roll back", "ROLLBACK")?;
        }
        let mut report = apply::undo(&plan)?;
        if let Err(error) = self.begin_anew().and_then(|()| self.make(&plan)) {
            let what = "the commit was taken back, and what the sandbox had changed could not be made again";
            report.lost.push(format!("{what}: {error}"));
        }
        Ok(report)
    }

    fn roll_back(&mut self) -> Result<()> {
        if !self.is_held() {
            return self.begin_anew();
        }
        self.turns += 1;
        self.checkpoints.clear();
        let what = "take the changes back";
        self.database.run(what, &format!("ROLLBACK TO {BASE}"))
    }

    fn place_of(&self, name: &str) -> Option<usize> {
        self.checkpoints.iter().position(|(one, _)| one == name)
    }

    /// Keeps it as it is: by a savepoint, or by the newest one where nothing happened since.
    fn checkpoint(&mut self) -> Result<String> {
        if let Some((name, turns)) = self.checkpoints.last()
            && *turns == self.turns
        {
            return Ok(name.clone());
        }
        self.turns += 1;
        let name = self.state();
        self.database
            .run("keep a checkpoint", &format!("SAVEPOINT \"{name}\""))?;
        self.checkpoints.push((name.clone(), self.turns));
        Ok(name)
    }

    /// Returns to a checkpoint, which stays; those after it are gone.
    fn restore(&mut self, name: &str) -> Result<Answer> {
        let Some(place) = self.place_of(name) else {
            return Ok(Answer::Unknown);
        };
        let back = format!("ROLLBACK TO \"{name}\"");
        self.database.run("return to a checkpoint", &back)?;
        self.turns += 1;
        self.checkpoints.truncate(place + 1);
        self.checkpoints[place].1 = self.turns;
        Ok(Answer::Done)
    }

    /// Releases what can be: a savepoint goes only with all that were made after it.
    fn retain(&mut self, names: &[String]) -> Result<()> {
        let needed = |(name, _): &(String, u64)| names.contains(name);
        let keep = self.checkpoints.iter().rposition(needed);
        let keep = keep.map_or(0, |newest| newest + 1);
        if let Some((name, _)) = self.checkpoints.get(keep) {
            let release = format!("RELEASE \"{name}\"");
            self.database.run("forget a checkpoint", &release)?;
            self.checkpoints.truncate(keep);
        }
        Ok(())
    }
}

/// Whether a statement may do this on the connection that holds the transaction.
fn is_permitted(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::DropVtable { .. } => false,
        AuthAction::Pragma {
            pragma_name,
            pragma_value: Some(_),
        } => PERMITTED
            .iter()
            .any(|one| one.eq_ignore_ascii_case(pragma_name)),
        _ => true,
    }
}
