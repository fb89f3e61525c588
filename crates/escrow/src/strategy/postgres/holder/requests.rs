//! What the engine has a holder do with its transaction.

use std::time::Duration;

use super::super::super::error::ENDED_INSIDE;
use super::super::super::sql::identifier;
use super::super::connect::{Connection, PgError, PgResult, literal};
use super::super::control::{Answer, Request, Status};
use super::super::session::{check_room, refused};
use super::backend::{Backend, LIMIT, Turn, Unavailable, own_settings};
use super::redo::Redo;
use super::{Holder, PATIENCE, changes};
use crate::model::Change;

/// The number under which the engine itself waits for its turn; no client has it.
const ENGINE: u32 = 0;

/// How long a question that is asked by the way waits.
const GLANCE: Duration = Duration::from_millis(500);

/// How many checkpoints there may be at once: with more than 64 subtransactions in one transaction a whole server becomes slow.
pub(in crate::strategy::postgres) const CHECKPOINTS: usize = 32;

/// Lets every constraint wait again that begins so.
pub(super) const AS_BEGUN: &str = "DO $escrow$ DECLARE later pg_catalog.text; BEGIN \
    SELECT pg_catalog.string_agg(DISTINCT pg_catalog.format('%I.%I', n.nspname, c.conname), ', ') INTO later \
    FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace WHERE c.condeferred \
    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint d \
    WHERE d.conname = c.conname AND d.connamespace = c.connamespace AND NOT d.condeferrable); \
    IF later IS NOT NULL THEN EXECUTE pg_catalog.format('SET CONSTRAINTS %s DEFERRED', later); END IF; END $escrow$";

/// Fails with 55006 where a trigger still waits for the end of the transaction, on tables that were written: altering a table is refused
/// then. Each one is altered in a block that is taken back. What belongs to another role cannot be asked about.
const WAITS_AGAIN: &str = "DO $escrow$ DECLARE written pg_catalog.text; BEGIN \
    FOR written IN SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_trigger t \
    JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_locks l ON l.relation = c.oid AND l.locktype = 'relation' AND l.pid = pg_catalog.pg_backend_pid() \
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') \
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid AND p.pronamespace <> 'pg_catalog'::pg_catalog.regnamespace \
    WHERE t.tgdeferrable AND pg_catalog.pg_has_role(c.relowner, 'USAGE') LOOP BEGIN \
    PERFORM pg_catalog.set_config('lock_timeout', '5s', true); \
    EXECUTE pg_catalog.format('ALTER TABLE %s RESET (autovacuum_enabled)', written); RAISE EXCEPTION USING ERRCODE = 'ESCRW'; \
    EXCEPTION WHEN SQLSTATE 'ESCRW' THEN NULL; END; END LOOP; END $escrow$";

/// A foreign table that the transaction used, with what its server is reached by: connected to another server, a transaction cannot be prepared.
/// Files are no servers, and without a handler nothing is reached.
const LOOKED_INTO: &str = "SELECT l.relation::pg_catalog.regclass, p.prosrc FROM pg_catalog.pg_locks l \
    JOIN pg_catalog.pg_foreign_table t ON t.ftrelid = l.relation JOIN pg_catalog.pg_foreign_server s ON s.oid = t.ftserver \
    JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw JOIN pg_catalog.pg_proc p ON p.oid = w.fdwhandler \
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND p.prosrc <> 'file_fdw_handler' \
    AND l.mode IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock') ORDER BY p.prosrc = 'postgres_fdw_handler' LIMIT 1";

/// The function that lists the connections of `postgres_fdw`, where there is one.
const CONNECTIONS: &str = "SELECT pg_catalog.format('%I.%I', n.nspname, p.proname) FROM pg_catalog.pg_proc p \
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
    WHERE p.prosrc = 'postgres_fdw_get_connections' AND l.lanname = 'c' AND p.pronargs = 0 LIMIT 1";

/// The foreign table by which the transaction is connected to another server. A view on one, or a plan, takes the same lock and connects to none.
fn looked_into(connection: &mut Connection) -> PgResult<Option<String>> {
    let used = connection.query(LOOKED_INTO)?.into_iter().next();
    let mut used = used.into_iter().flatten();
    let (Some(Some(table)), Some(handler)) = (used.next(), used.next()) else {
        return Ok(None);
    };
    if handler.as_deref() == Some("postgres_fdw_handler")
        && let Some(list) = connection.value(CONNECTIONS)?
    {
        let any = format!("SELECT EXISTS (SELECT FROM {list}())");
        let any = connection.value(&any)?;
        return Ok(Some(table).filter(|_| any.as_deref() == Some("t")));
    }
    Ok(Some(table))
}

/// Carries a request out.
pub(super) fn carry_out(holder: &Holder, request: Request) -> Answer {
    if holder.passes.is_some() {
        return Answer::Done;
    }
    if let (Request::Rollback, Some(_)) = (&request, holder.turns.lost()) {
        return match Backend::open(&holder.server, holder.password.as_deref()) {
            Ok(backend) => {
                holder.turns.start(backend);
                Answer::Done
            }
            Err(error) => Answer::Failed(error),
        };
    }
    let patience = match request {
        Request::Status | Request::End => GLANCE,
        _ => PATIENCE,
    };
    let mut turn = match holder.turns.take(ENGINE, patience) {
        Ok(turn) => turn,
        Err(_) if request == Request::End => {
            // The server would go on with it, and keep its locks.
            holder.cancel_work();
            return Answer::Done;
        }
        Err(Unavailable::Busy) => return Answer::Busy,
        Err(Unavailable::Lost(why)) => return Answer::Lost(why),
    };
    let answer = turn.backend().and_then(|backend| {
        let answer = one(holder, backend, request)?;
        // What is held has to be held after whatever was asked.
        match backend.prepared.is_none() && backend.connection.status == b'I' {
            true => Err(PgError::link(ENDED_INSIDE)),
            false => Ok(answer),
        }
    });
    match answer {
        Ok(answer) => answer,
        // The server said it; without its words the link is broken.
        Err(error) if error.code.is_some() && !is_fatal(&error) => Answer::Failed(error),
        Err(error) => {
            let why = error.to_string();
            turn.lose(&why);
            Answer::Lost(why)
        }
    }
}

/// Whether the server ends the connection after such an error.
fn is_fatal(error: &PgError) -> bool {
    let code = error.code.as_deref().unwrap_or_default();
    code.starts_with("57P") || code.starts_with("08")
}

fn one(holder: &Holder, backend: &mut Backend, request: Request) -> PgResult<Answer> {
    let held = backend.prepared.is_none();
    match request {
        Request::Status => status_of(holder, backend).map(Answer::Status),
        Request::End => {
            if held {
                backend.connection.query("ROLLBACK")?;
            }
            backend.base.query("ROLLBACK")?;
            backend.prepared = Some(String::new());
            Ok(Answer::Done)
        }
        Request::Finish { gid, commit } => finish(backend, &gid, commit),
        Request::Rollback => roll_back(backend).map(|()| Answer::Done),
        Request::Outcome(xid) => {
            let sql = format!("SELECT pg_catalog.txid_status({})", literal(&xid));
            backend.base.query(&sql).map(Answer::Rows)
        }
        _ if !held => Ok(Answer::Failed(PgError::link(
            "the transaction of the sandbox is prepared already",
        ))),
        Request::Changes => {
            let compared = compared(backend)?;
            Ok(Answer::Changes(compared.changes.clone()))
        }
        Request::Prepare { turns, .. } | Request::Commit { turns } if turns != backend.turns => {
            Ok(Answer::Moved)
        }
        Request::Checkpoint => checkpoint(holder, backend),
        Request::Knows(name) => Ok(match place_of(backend, &name) {
            Some(_) => Answer::Done,
            None => Answer::Unknown,
        }),
        Request::Restore(name) => restore(backend, &name),
        Request::Retain(names) => retain(backend, &names),
        Request::Check { of } => {
            let shown = compared(backend)?.changes.changes.clone();
            if holder.max_prepared > 0 {
                check_room(&mut backend.base, of)?;
            }
            let xid = looking(backend, |backend| check(backend, holder.max_prepared))?;
            fire_late(backend, &shown)?;
            let turns = backend.turns;
            Ok(Answer::Fit { xid, turns })
        }
        Request::Prepare { gid, .. } => {
            let sql = format!("PREPARE TRANSACTION {}", literal(&gid));
            end_transaction(backend, &sql, gid)
        }
        Request::Commit { .. } => end_transaction(backend, "COMMIT", String::new()),
    }
}

fn savepoint(name: &str) -> String {
    identifier(&format!("escrow_checkpoint_{name}"))
}

fn place_of(backend: &Backend, name: &str) -> Option<usize> {
    backend.checkpoints.iter().position(|(one, _)| one == name)
}

/// Keeps it as it is: by a savepoint, or by the newest one where nothing happened since.
fn checkpoint(holder: &Holder, backend: &mut Backend) -> PgResult<Answer> {
    if let Some((name, turns)) = backend.checkpoints.last()
        && *turns == backend.turns
    {
        return Ok(Answer::Kept(name.clone()));
    }
    if backend.checkpoints.len() >= CHECKPOINTS {
        return Ok(Answer::Full);
    }
    backend.taken += 1;
    let name = format!("{:08x}_{}", holder.secret_of(ENGINE), backend.taken);
    let sql = format!("SAVEPOINT {}", savepoint(&name));
    backend.connection.query(&sql)?;
    backend.checkpoints.push((name.clone(), backend.turns));
    Ok(Answer::Kept(name))
}

/// Returns to a checkpoint, which stays; those after it are gone.
fn restore(backend: &mut Backend, name: &str) -> PgResult<Answer> {
    let Some(place) = place_of(backend, name) else {
        return Ok(Answer::Unknown);
    };
    let sql = format!("ROLLBACK TO SAVEPOINT {}", savepoint(name));
    // What was set since then goes too.
    (backend.applied, backend.compared) = (None, None);
    backend.connection.query(&sql)?;
    backend.turns += 1;
    backend.checkpoints.truncate(place + 1);
    backend.checkpoints[place].1 = backend.turns;
    Ok(Answer::Done)
}

/// Releases what can be: a savepoint goes only with all that were made after it.
fn retain(backend: &mut Backend, names: &[String]) -> PgResult<Answer> {
    let needed = |(name, _): &(String, u64)| names.contains(name);
    let keep = backend.checkpoints.iter().rposition(needed);
    let keep = keep.map_or(0, |newest| newest + 1);
    if let Some((name, _)) = backend.checkpoints.get(keep) {
        let sql = format!("RELEASE SAVEPOINT {}", savepoint(name));
        backend.connection.query(&sql)?;
        backend.checkpoints.truncate(keep);
    }
    Ok(Answer::Done)
}

/// What was changed; compared once for as long as no client works on.
fn compared(backend: &mut Backend) -> PgResult<&Redo> {
    if !matches!(&backend.compared, Some((turns, _)) if *turns == backend.turns) {
        let mut found = looking(backend, changes::changes)?;
        found.changes.turns = backend.turns;
        backend.compared = Some((backend.turns, found));
    }
    let found = backend.compared.as_ref().map(|(_, found)| found);
    found.ok_or_else(|| PgError::link("nothing was compared"))
}

/// Does something with the engine's own settings that leaves nothing behind.
fn looking<T>(
    backend: &mut Backend,
    look: impl FnOnce(&mut Backend) -> PgResult<T>,
) -> PgResult<T> {
    backend.apply_own()?;
    let (look_at, begin) = ("escrow_look", "SAVEPOINT escrow_look");
    backend.connection.query(&format!("{begin}; {LIMIT}"))?;
    backend.base.query(begin)?;
    let found = look(backend);
    backend.connection.take_back(look_at)?;
    backend.base.take_back(look_at)?;
    found
}

/// The number of the transaction on the server, if it changed anything.
pub(super) fn xid(backend: &mut Backend) -> PgResult<Option<String>> {
    backend
        .connection
        .value("SELECT pg_catalog.txid_current_if_assigned()")
}

/// Whether a prepare would succeed: a failing one would take everything back (rule C2).
fn check(backend: &mut Backend, max_prepared: u64) -> PgResult<Option<String>> {
    let xid = xid(backend)?;
    if max_prepared > 0
        && let Some(table) = looked_into(&mut backend.connection)?
    {
        return Err(refused(
            &format!(
                "the sandbox used the foreign table {table}, and such a transaction cannot be prepared"
            ),
            "nothing was changed; `escrow rollback` begins anew: read foreign tables outside of the sandbox",
        ));
    }
    if backend
        .connection
        .value("SELECT pg_catalog.pg_my_temp_schema()")?
        .as_deref()
        != Some("0")
    {
        return Err(refused(
            "the sandbox used temporary objects, and such a transaction cannot be prepared",
            "a function made them, or a search_path that has pg_temp in it; `escrow rollback` begins anew",
        ));
    }
    // A cursor WITH HOLD, which a function can declare, would fail it. SET CONSTRAINTS runs triggers, which can.
    backend
        .connection
        .query("SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL")?;
    Ok(xid)
}

/// Carries out what waits for the end of the transaction, so that its end does nothing that was not shown (rule C11).
fn fire_late(backend: &mut Backend, shown: &[Change]) -> PgResult<()> {
    let some = "SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE condeferrable)";
    if backend.connection.value(some)?.as_deref() != Some("t") {
        return Ok(());
    }
    backend.deferrable = true;
    let fire = format!(
        "SAVEPOINT escrow_late; SET CONSTRAINTS ALL IMMEDIATE; {WAITS_AGAIN}; {AS_BEGUN}; RELEASE SAVEPOINT escrow_late"
    );
    if let Err(error) = backend.connection.query(&fire) {
        backend.connection.take_back("escrow_late")?;
        return Err(match error.is("55006") {
            true => refused(
                &format!(
                    "a trigger waits for the end of the transaction again ({})",
                    error.message
                ),
                "what it would write there cannot be shown before; let it do its work when it first runs",
            ),
            false => error,
        });
    }
    backend.compared = None;
    if compared(backend)?.changes.changes != shown {
        backend.turns += 1;
        return Err(refused(
            "triggers that waited for the end of the transaction changed more than was shown",
            "`escrow diff` shows it now",
        ));
    }
    Ok(())
}

/// Ends the transaction as a whole, by a prepare or a commit. A server that refuses took everything back: the changes are
/// made again where that is possible, and the answer says where it is not.
fn end_transaction(backend: &mut Backend, sql: &str, becomes: String) -> PgResult<Answer> {
    if backend.connection.status != b'T' {
        return Err(PgError::link("no transaction is held"));
    }
    compared(backend)?;
    // A client that came since has its own, under which the server might refuse.
    backend.apply(&own_settings())?;
    let error = match backend.connection.query(sql) {
        Ok(_) if backend.connection.status == b'I' => {
            backend.prepared = Some(becomes);
            return Ok(Answer::Done);
        }
        Ok(_) => return Err(PgError::link("the server did not end the transaction")),
        // Without its words the link is broken, and with it the transaction.
        Err(error) if error.code.is_none() || is_fatal(&error) => return Err(error),
        Err(error) => error,
    };
    let redone = begin_with_redo(backend)?;
    // The process that asked takes back what it knows by this name, and is told what became of it.
    if !becomes.is_empty() {
        backend.dropped = Some((becomes, redone.clone()));
    }
    Ok(match redone {
        Answer::Dropped => Answer::TakenBack(error),
        _ => Answer::Failed(error),
    })
}

/// Takes everything back, also what was prepared and is known to no journal any more, and begins anew.
fn roll_back(backend: &mut Backend) -> PgResult<()> {
    if let Some(gid) = backend.prepared.clone().filter(|gid| !gid.is_empty()) {
        let sql = format!("ROLLBACK PREPARED {}", literal(&gid));
        match backend.connection.query(&sql) {
            Ok(_) => {}
            // Another process settled it.
            Err(error) if error.is("42704") => {}
            Err(error) => return Err(error),
        }
    }
    backend.begin_anew()
}

/// Begins another transaction, and makes the changes of the last one again, as far as that is possible.
fn begin_with_redo(backend: &mut Backend) -> PgResult<Answer> {
    let redo = backend.compared.take();
    backend.applied = None;
    backend.begin()?;
    backend.turns += 1;
    match redo {
        Some((_, redo)) if redo.replay(backend)? => Ok(Answer::Done),
        _ => Ok(Answer::Dropped),
    }
}

fn finish(backend: &mut Backend, gid: &str, commit: bool) -> PgResult<Answer> {
    match &backend.dropped {
        // It was taken back before, and the process that asked was not told.
        Some((known, answer)) if known == gid && !commit => return Ok(answer.clone()),
        _ => {}
    }
    if backend.prepared.as_deref() != Some(gid) {
        return Ok(Answer::Failed(PgError::link(
            "the holder prepared nothing of this name",
        )));
    }
    let word = if commit { "COMMIT" } else { "ROLLBACK" };
    backend
        .connection
        .query(&format!("{word} PREPARED {}", literal(gid)))?;
    if commit {
        return Ok(Answer::Done);
    }
    let answer = begin_with_redo(backend)?;
    backend.dropped = Some((gid.to_owned(), answer.clone()));
    Ok(answer)
}

/// How a holder stands.
pub(super) fn status(holder: &Holder) -> PgResult<Status> {
    if holder.passes.is_some() {
        return Ok(Status::default());
    }
    let taken: Result<Turn<'_>, _> = holder.turns.take(ENGINE, PATIENCE);
    let mut turn = taken.map_err(|_| PgError::link("the connection cannot be had"))?;
    status_of(holder, turn.backend()?)
}

fn status_of(holder: &Holder, backend: &mut Backend) -> PgResult<Status> {
    let (mut id, mut locks) = (None, None);
    if backend.prepared.is_none() {
        id = xid(backend)?;
        let count = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() \
                     AND locktype OPERATOR(pg_catalog.=) 'relation' AND mode OPERATOR(pg_catalog.<>) 'AccessShareLock'";
        locks = backend.connection.value(count)?;
    }
    Ok(Status {
        age: backend.began.elapsed().as_secs(),
        xid: id,
        checkpoints: backend.checkpoints.len(),
        locks: locks.and_then(|count| count.parse().ok()).unwrap_or(0),
        max_prepared: holder.max_prepared,
        warnings: holder.warnings.clone(),
    })
}

/// What a person should know before working in such a sandbox.
pub(super) fn warnings(backend: &mut Backend, max_prepared: u64) -> PgResult<Vec<String>> {
    let mut warnings = Vec::new();
    let notifies = "SELECT p.oid::pg_catalog.regproc::pg_catalog.text FROM pg_catalog.pg_proc p \
                    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
                    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND p.prosrc ~* '\\m(pg_notify|notify)\\M' \
                    UNION ALL SELECT 'rule ' || rulename || ' on ' || ev_class::pg_catalog.regclass::pg_catalog.text FROM pg_catalog.pg_rewrite \
                    WHERE ev_type <> '1' AND pg_catalog.pg_get_ruledef(oid) ~* '\\m(pg_notify|notify)\\M' ORDER BY 1 LIMIT 4";
    let names: Vec<String> = backend
        .connection
        .query(notifies)?
        .into_iter()
        .flat_map(|row| row.into_iter().flatten())
        .collect();
    if !names.is_empty() {
        warnings.push(format!(
            "functions or rules use NOTIFY ({}): where one of them runs in the sandbox, the server refuses to prepare its \
             transaction, and the changes are lost",
            names.join(", ")
        ));
    }
    if max_prepared == 0 {
        warnings.push(super::super::control::NOT_PREPARED.to_owned());
    }
    Ok(warnings)
}
