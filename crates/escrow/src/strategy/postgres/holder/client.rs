//! One client of a holder: what it sends goes to the one connection, what comes back goes to it. It has the connection
//! from its first message until the server is ready again, and through its own transaction, which is a savepoint.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::super::super::error::{ENDED_INSIDE, OUT_OF_STEP};
use super::super::connect::{PgError, PgResult, raise};
use super::super::lexer::is_certain;
use super::super::sql::{self, Statement};
use super::super::wire::{self, Frame, Incoming};
use super::backend::{Backend, Settings, Turn, Unavailable, WORK};
use super::exchange::{Exchange, Form, with_hint};
use super::statements::{Closing, Prepared, Renamed, ReplacedPortal, UNNAMED};
use super::{Holder, extended};

/// How long a client waits for another one's transaction.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How much is gathered before it is written.
pub(super) const GATHERED: usize = 32 * 1024;

/// Carries out what is checked at the end of a transaction, and puts each constraint back to how it begins: those of tables that were
/// written. By name, since what is set for all also holds for constraints that are made later; where a name is also one of a
/// constraint that is never late, it waits for the commit.
const CHECK_LATE: &str = "DO $escrow$ DECLARE late pg_catalog.text; later pg_catalog.text; written pg_catalog.oid[] := ARRAY(\
    SELECT relation FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'relation' \
    AND mode NOT IN ('AccessShareLock', 'RowShareLock')); BEGIN \
    SELECT pg_catalog.string_agg(DISTINCT o.name, ', '), pg_catalog.string_agg(DISTINCT o.name, ', ') FILTER (WHERE o.condeferred) \
    INTO late, later FROM (SELECT pg_catalog.format('%I.%I', n.nspname, c.conname) AS name, c.condeferred \
    FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_namespace n ON n.oid = c.connamespace \
    WHERE c.condeferrable AND (c.conrelid = ANY (written) OR c.confrelid = ANY (written)) \
    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint d \
    WHERE d.conname = c.conname AND d.connamespace = c.connamespace AND NOT d.condeferrable)) o; \
    IF late IS NOT NULL THEN EXECUTE pg_catalog.format('SET CONSTRAINTS %s IMMEDIATE', late); END IF; \
    IF later IS NOT NULL THEN EXECUTE pg_catalog.format('SET CONSTRAINTS %s DEFERRED', later); END IF; END $escrow$; ";

/// What a client's own transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transaction {
    /// There is none, and no savepoint.
    None,
    /// That of one message exchange.
    Implicit,
    /// One that it began.
    Explicit,
}

/// Why a client is served no longer.
pub(super) enum Ended {
    /// It went, or its link broke.
    Gone,
    /// The link to the server broke.
    Lost(PgError),
}

impl From<PgError> for Ended {
    fn from(error: PgError) -> Self {
        Self::Lost(error)
    }
}

pub(super) type Served<T> = Result<T, Ended>;

/// What came of something that was sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// The server reported an error.
    pub(super) failed: bool,
    /// The client's savepoint was released with it.
    pub(super) released: bool,
}

pub(super) struct Client<'h> {
    pub(super) holder: &'h Holder,
    pub(super) id: u32,
    pub(super) stream: UnixStream,
    pub(super) incoming: Incoming,
    pub(super) out: Vec<u8>,
    pub(super) transaction: Transaction,
    /// Whether its savepoint is there, or on its way: it is made together with the first statement.
    pub(super) open: bool,
    pub(super) settings: Settings,
    /// Those it began with, to which a `RESET` returns.
    pub(super) began_with: Settings,
    /// Names that were set in the current transaction, for the session and for the transaction.
    pub(super) set: Vec<(Option<String>, bool)>,
    pub(super) statements: HashMap<Vec<u8>, Prepared>,
    pub(super) portals: HashMap<Vec<u8>, Statement>,
    /// Names whose statement is being prepared; `None`: of one that was there before.
    pub(super) parsing: VecDeque<Option<Vec<u8>>>,
    /// What messages of the exchange deallocate, whose answer is not known yet.
    pub(super) deallocated: Vec<(Vec<u8>, Prepared)>,
    /// Portals that messages of the exchange replace or close, from the first on of which the server has not said that it did.
    pub(super) replaced: VecDeque<ReplacedPortal>,
    /// What is being closed.
    pub(super) closing: VecDeque<Closing>,
    /// Whether a portal was made that has a name.
    pub(super) portal_named: bool,
    /// Whether there is a portal of its own that has none: the server may have one of ours.
    pub(super) portal_unnamed: bool,
    /// The text that is carried out has another name in it.
    pub(super) renamed: Option<Renamed>,
    /// How many characters of its query are before the part of it that is carried out.
    pub(super) before: isize,
    /// Its query has several statements, which are one transaction.
    pub(super) several: bool,
    /// Whether a statement of it was of another kind than those that read and write rows.
    pub(super) odd: bool,
    /// Another client had the connection before, and may have left cursors (a function opens some that end with a transaction) and values
    /// of sequences.
    pub(super) others: bool,
    /// What says that its last statement is done, and is not sent yet.
    pub(super) completed: Option<Frame>,
    /// It went: nothing is sent to it any more.
    pub(super) gone: bool,
}

impl<'h> Client<'h> {
    /// Serves it until it goes; whatever it had open is taken back.
    pub(super) fn serve(&mut self) {
        let mut turn = None;
        let ended = self.messages(&mut turn);
        let lost = |ended: &Served<()>| match ended {
            Err(Ended::Lost(error)) => Some(error.to_string()),
            _ => None,
        };
        if let Some(why) = lost(&ended) {
            let hint = match &turn {
                // What is held is as it was.
                None => "connect again",
                Some(_) if [ENDED_INSIDE, OUT_OF_STEP].contains(&why.as_str()) => {
                    "`escrow rollback` begins anew"
                }
                Some(_) => {
                    "the database took everything back that was done in the sandbox; `escrow rollback` begins anew"
                }
            };
            self.send(&wire::error_frame("FATAL", "57P01", &why, Some(hint)));
            match self.flush() {
                // It is told if it is still there.
                Ok(()) | Err(_) => {}
            }
        }
        // On a connection that is lost nothing is asked any more.
        let tidied = match &ended {
            Err(Ended::Lost(_)) if turn.is_some() => Ok(()),
            _ => self.leave(turn.as_mut()),
        };
        if let Some((why, turn)) = lost(&ended).or_else(|| lost(&tidied)).zip(turn.as_mut()) {
            turn.lose(&why);
        }
    }

    fn messages(&mut self, turn: &mut Option<Turn<'h>>) -> Served<()> {
        loop {
            self.flush()?;
            let Some(frame) = self.next()? else {
                return Ok(());
            };
            match frame.kind {
                b'X' => return Ok(()),
                // What is left of a copy that failed.
                b'd' | b'c' | b'f' => continue,
                b'S' if turn.is_none() => {
                    self.ready();
                    continue;
                }
                _ => {}
            }
            if turn.is_none() {
                match self.take_turn()? {
                    Some(taken) => *turn = Some(taken),
                    None => {
                        self.refuse_exchange(frame.kind)?;
                        continue;
                    }
                }
            }
            if let Some(owned) = turn.as_mut() {
                let backend = owned.backend()?;
                match frame.kind {
                    b'Q' | b'F' => self.simple_message(backend, &frame)?,
                    _ => extended::exchange(self, backend, frame)?,
                }
            }
            if self.transaction == Transaction::None {
                *turn = None;
            }
        }
    }

    /// Waits for the connection; says so where it cannot be had.
    fn take_turn(&mut self) -> Served<Option<Turn<'h>>> {
        let holder = self.holder;
        let why = match holder.turns.take(self.id, PATIENCE) {
            Ok(mut turn) => {
                let backend = turn.backend()?;
                if backend.prepared.is_none() {
                    backend.turns += 1;
                    self.others |= backend.last.replace(self.id) != Some(self.id);
                    backend.apply(&self.settings)?;
                    return Ok(Some(turn));
                }
                let hint =
                    "it is being committed; try again when `escrow status` says that it is over";
                wire::error_frame(
                    "ERROR",
                    "55000",
                    "the sandbox cannot be used now",
                    Some(hint),
                )
            }
            Err(Unavailable::Busy) => {
                let hint = "the clients of a sandbox take turns: end the transaction of the other one first";
                let text =
                    "another client of the sandbox is in a transaction, and did not end it in time";
                wire::error_frame("ERROR", "55P03", text, Some(hint))
            }
            Err(Unavailable::Lost(why)) => return Err(Ended::Lost(PgError::link(why))),
        };
        self.send(&why);
        Ok(None)
    }

    /// After an error that came instead of a turn: what belongs to the same exchange is passed over.
    fn refuse_exchange(&mut self, kind: u8) -> Served<()> {
        if !matches!(kind, b'Q' | b'F') {
            self.flush()?;
            loop {
                match self.next()? {
                    Some(frame) if frame.kind == b'S' => break,
                    Some(_) => {}
                    None => return Err(Ended::Gone),
                }
            }
        }
        self.ready();
        Ok(())
    }

    /// The next message, if all of it has come. One that the server would not take ends the client, as it would there.
    pub(super) fn next_buffered(&mut self) -> Served<Option<Frame>> {
        match self.incoming.next() {
            Ok(Some(frame)) if frame.body.len() > longest(frame.kind) => Err(Ended::Gone),
            Ok(frame) => Ok(frame),
            Err(_) => Err(Ended::Gone),
        }
    }

    /// The next message; `None` when the client is gone.
    pub(super) fn next(&mut self) -> Served<Option<Frame>> {
        loop {
            if let Some(frame) = self.next_buffered()? {
                return Ok(Some(frame));
            }
            match self.incoming.fill(&mut self.stream) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) => return Err(Ended::Gone),
            }
        }
    }

    pub(super) fn send(&mut self, frame: &Frame) {
        if let Some(completed) = self.completed.take() {
            completed.put(&mut self.out);
        }
        frame.put(&mut self.out);
    }

    /// Says that a statement is done, unless the end of its transaction fails before anything else is said.
    pub(super) fn complete_later(&mut self, frame: Frame) {
        if let Some(completed) = self.completed.replace(frame) {
            completed.put(&mut self.out);
        }
    }

    pub(super) fn flush(&mut self) -> Served<()> {
        let written = match self.gone {
            true => Ok(()),
            false => self.stream.write_all(&self.out),
        };
        self.out.clear();
        self.out.shrink_to(GATHERED * 2);
        written.map_err(|_| Ended::Gone)
    }

    /// Says that the next message may come.
    pub(super) fn ready(&mut self) {
        self.send(&Frame::new(b'Z', vec![b'I']));
    }

    pub(super) fn complete(&mut self, tag: &str) {
        let mut body = tag.as_bytes().to_vec();
        body.push(0);
        self.send(&Frame::new(b'C', body));
    }

    /// Carries out a message after which no `Sync` comes.
    pub(super) fn simple_message(&mut self, backend: &mut Backend, frame: &Frame) -> Served<()> {
        match frame.kind {
            b'Q' => self.simple(backend, &frame.body),
            _ => self.function(backend, frame),
        }
    }

    /// Carries out the statements of a text. One that reads in one way only, and has nothing in it that is carried out here, goes to
    /// the server as it is.
    fn simple(&mut self, backend: &mut Backend, body: &[u8]) -> Served<()> {
        let text = wire::text(body).map_or(body, |(text, _)| text);
        let parts = sql::statements(text, backend.reading());
        self.forget_unnamed(!parts.is_empty());
        (self.several, self.renamed) = (parts.len() > 1, None);
        let mut answered = Answered::default();
        if parts.is_empty() {
            self.send(&Frame::new(b'I', Vec::new()));
        } else if is_certain(text) && parts.iter().all(|(_, kind)| kind.is_plain()) {
            parts.iter().for_each(|(_, kind)| self.note(kind));
            answered = self.piece(backend, text, parts.len() == 1)?;
        } else {
            if self.several && parts.iter().any(|(_, kind)| !kind.is_plain()) {
                answered = extended::read(self, backend, text)?;
            }
            let mut counted = 0;
            for (part, kind) in &parts {
                if answered.failed {
                    break;
                }
                let at = part.as_ptr() as usize - text.as_ptr() as usize;
                self.before += String::from_utf8_lossy(&text[counted..at]).chars().count() as isize;
                counted = at;
                answered = self.one(backend, part, kind, parts.len() == 1)?;
            }
        }
        (self.several, self.before) = (false, 0);
        self.end_exchange(backend, answered)
    }

    /// Carries out one statement.
    fn one(
        &mut self,
        backend: &mut Backend,
        text: &[u8],
        kind: &Statement,
        last: bool,
    ) -> Served<Answered> {
        if kind.is_control() {
            return self.control(backend, kind);
        }
        self.note(kind);
        if *kind == Statement::InTransaction(sql::CONSTRAINTS)
            && self.transaction != Transaction::Explicit
            && !self.several
        {
            let text = "SET CONSTRAINTS can only be used in transaction blocks";
            self.send(&wire::error_frame("WARNING", "25P01", text, None));
        }
        let own = self.rewritten(text, kind);
        let text = own.as_deref().unwrap_or(text);
        let answered = match is_certain(text) {
            true => self.piece(backend, text, last)?,
            false => extended::statement(self, backend, text, kind.may_copy(), last)?,
        };
        if let Statement::Deallocate(Some(one)) = kind
            && !answered.failed
        {
            self.statements.remove(one.name.as_bytes());
        }
        Ok(answered)
    }

    /// Sends a query, in the client's savepoint, and passes on what comes back. Where nothing comes after it in an exchange of its
    /// own, the savepoint is released with it.
    fn piece(&mut self, backend: &mut Backend, text: &[u8], last: bool) -> Served<Answered> {
        let mut exchange = Exchange::new(self, Form::Query);
        wire::put_query(&mut exchange.out, text);
        if last && self.ends_with_it(backend) {
            exchange.release(self);
        }
        self.relay(backend, exchange)
    }

    /// A call of a function by its number.
    fn function(&mut self, backend: &mut Backend, frame: &Frame) -> Served<()> {
        let mut exchange = Exchange::new(self, Form::Query);
        frame.put(&mut exchange.out);
        let answered = self.relay(backend, exchange)?;
        self.end_exchange(backend, answered)
    }

    /// Whether the last statement of an exchange of its own takes the savepoint with it.
    pub(super) fn ends_with_it(&self, backend: &Backend) -> bool {
        self.transaction == Transaction::Implicit && self.may_release(backend)
    }

    /// Whether the savepoint can be released together with the last statement: nothing is to be looked at in between.
    pub(super) fn may_release(&self, backend: &Backend) -> bool {
        !self.odd && !backend.deferrable && self.set.is_empty() && backend.connection.status == b'T'
    }

    /// Carries out what begins or ends a transaction, or forgets everything that was prepared.
    pub(super) fn control(&mut self, backend: &mut Backend, kind: &Statement) -> Served<Answered> {
        match kind {
            // The server says that its transaction failed.
            Statement::Begin(_) | Statement::Deallocate(_) if backend.connection.status == b'E' => {
                return self.piece(backend, b"SELECT 1", false);
            }
            Statement::Begin(modes) => {
                if self.transaction == Transaction::Explicit {
                    let text = "there is already a transaction in progress";
                    self.send(&wire::error_frame("WARNING", "25001", text, None));
                }
                let set = match (modes.serializable, modes.read_only) {
                    (true, _) => "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                    (_, Some(true)) => "SET TRANSACTION READ ONLY",
                    _ => "",
                };
                if !set.is_empty() {
                    self.begin_work(backend)?;
                    if let Err(error) = backend.connection.query(set) {
                        return self.say(error);
                    }
                }
                self.transaction = Transaction::Explicit;
                self.complete(match modes.started {
                    true => "START TRANSACTION",
                    false => "BEGIN",
                });
            }
            Statement::Deallocate(_) => {
                // The one without a name stays.
                self.forget_statements(backend, |name| name.is_empty() || name == UNNAMED)?;
                self.complete("DEALLOCATE ALL");
            }
            Statement::Commit { chain } | Statement::Rollback { chain } => {
                let wanted = matches!(kind, Statement::Commit { .. });
                let explicit = self.transaction == Transaction::Explicit;
                if *chain && !explicit {
                    let word = if wanted { "COMMIT" } else { "ROLLBACK" };
                    let text = format!("{word} AND CHAIN can only be used in transaction blocks");
                    return self.piece(backend, raise("25P01", &text, None).as_bytes(), false);
                }
                if !explicit {
                    let text = "there is no transaction in progress";
                    self.send(&wire::error_frame("WARNING", "25P01", text, None));
                }
                let keeps = wanted && backend.connection.status != b'E';
                let kept = match self.transaction {
                    Transaction::None => Answered::default(),
                    _ => self.end_transaction(backend, keeps)?,
                };
                if kept.failed {
                    return Ok(kept);
                }
                if *chain {
                    self.transaction = Transaction::Explicit;
                }
                self.complete(match keeps || (wanted && !explicit) {
                    true => "COMMIT",
                    false => "ROLLBACK",
                });
            }
            _ => {}
        }
        Ok(Answered::default())
    }

    /// Makes the client's savepoint, where something of ours needs it before the first statement.
    pub(super) fn begin_work(&mut self, backend: &mut Backend) -> Served<()> {
        if !self.open {
            self.holder.turns.opening();
            let mut sql = String::new();
            for left in self.left_by_others() {
                sql.extend([left, "; "]);
            }
            sql.push_str(&format!("SAVEPOINT {WORK}"));
            backend.connection.query(&sql)?;
            self.open = true;
            if self.transaction == Transaction::None {
                self.transaction = Transaction::Implicit;
            }
        }
        Ok(())
    }

    /// What takes away what another client left in the session; it is sent once. Who asks for the last value of a sequence must not get one that
    /// another client took.
    pub(super) fn left_by_others(&mut self) -> &'static [&'static str] {
        match std::mem::take(&mut self.others) {
            true => &["CLOSE ALL", "DISCARD SEQUENCES"],
            false => &[],
        }
    }

    /// Tells the client an error that answered a statement of ours.
    fn say(&mut self, error: PgError) -> Served<Answered> {
        if error.code.is_none() {
            return Err(Ended::Lost(error));
        }
        // Where it happened is a place in the statement of ours.
        let told = |(letter, _): &&(u8, String)| !b"Wpq".contains(letter);
        let fields: Vec<_> = error.fields.iter().filter(told).cloned().collect();
        let frame = Frame::new(b'E', wire::fields_body(&fields));
        self.send(&with_hint(frame));
        Ok(Answered {
            failed: true,
            released: false,
        })
    }

    /// Ends the client's savepoint: keeps what was done in it, or takes it back.
    fn end_transaction(&mut self, backend: &mut Backend, keeps: bool) -> Served<Answered> {
        if !self.open {
            self.over();
            return Ok(Answered::default());
        }
        let told = (!self.set.is_empty()).then(|| backend.connection.parameters.clone());
        let ended = match keeps {
            true => self.keep(backend),
            false => backend.connection.take_back(WORK),
        };
        let failed = match ended {
            Ok(()) => Answered::default(),
            Err(error) => {
                if self.transaction == Transaction::Implicit {
                    self.completed = None;
                }
                let failed = self.say(error)?;
                backend.connection.take_back(WORK)?;
                // Also what was set in it.
                backend.applied = None;
                failed
            }
        };
        self.over();
        for (name, value) in told.iter().flat_map(|_| &backend.connection.parameters) {
            if told.as_ref().and_then(|told| told.get(name)) != Some(value) {
                self.send(&wire::parameter(name, value));
            }
        }
        Ok(failed)
    }

    /// Releases the client's savepoint. Constraints that are checked at the end of a transaction are checked first: while a check is
    /// pending, its table could not be altered. Settings are read and set in the savepoint: what fails there, by a limit of time that the
    /// client set, takes nothing else with it.
    fn keep(&mut self, backend: &mut Backend) -> PgResult<()> {
        let mut sql = String::new();
        if backend.deferrable {
            sql.push_str(CHECK_LATE);
        }
        if self.has_portals() {
            sql.push_str("CLOSE ALL; ");
        }
        let mut settings = None;
        if !self.set.is_empty() {
            backend.connection.query(&sql)?;
            sql.clear();
            settings = Some(self.new_settings(backend)?);
        }
        sql.push_str(&format!("RELEASE SAVEPOINT {WORK}"));
        backend.connection.query(&sql)?;
        self.settings = settings.unwrap_or_else(|| std::mem::take(&mut self.settings));
        Ok(())
    }

    /// Whether cursors may be open that end with the transaction.
    pub(super) fn has_portals(&self) -> bool {
        self.transaction == Transaction::Explicit || self.portal_named
    }

    /// Notes that the client's savepoint is gone.
    pub(super) fn over(&mut self) {
        (self.transaction, self.open) = (Transaction::None, false);
        (self.portal_named, self.portal_unnamed, self.odd) = (false, false, false);
        self.portals.clear();
        self.set.clear();
    }

    /// Notes that the client's savepoint was released with what was sent.
    pub(super) fn released(&mut self, backend: &mut Backend) -> PgResult<()> {
        // A function changed a setting.
        if !self.set.is_empty() {
            self.settings = self.new_settings(backend)?;
        }
        self.over();
        Ok(())
    }

    /// Ends an exchange: the savepoint of an exchange of its own goes, and the client learns how it stands.
    pub(super) fn end_exchange(&mut self, backend: &mut Backend, answered: Answered) -> Served<()> {
        self.deallocated.clear();
        self.replaced.clear();
        if answered.released {
            self.released(backend)?;
        } else if self.transaction == Transaction::Implicit {
            self.end_transaction(backend, !answered.failed)?;
        }
        let status = match self.transaction {
            Transaction::Explicit => backend.connection.status,
            _ => b'I',
        };
        self.send(&Frame::new(b'Z', vec![status]));
        self.flush()
    }

    /// Sends something and passes on what comes back until the server is ready. While the server takes a copy in, what the client
    /// sends is passed on.
    fn relay(&mut self, backend: &mut Backend, mut exchange: Exchange) -> Served<Answered> {
        let run = exchange.run(self, backend);
        let answered = exchange.answered;
        exchange.unless_broken(backend, run)?;
        Ok(answered)
    }

    /// Takes back what a client that goes left open.
    fn leave(&mut self, turn: Option<&mut Turn<'h>>) -> Served<()> {
        self.gone = true;
        let mut own = None;
        let turn = match turn {
            Some(turn) => turn,
            None if self.statements.is_empty() => return Ok(()),
            None => match self.holder.turns.take(self.id, PATIENCE) {
                Ok(taken) => own.insert(taken),
                Err(_) => return Ok(()),
            },
        };
        let Ok(backend) = turn.backend() else {
            return Ok(());
        };
        if let Some(exchange) = backend.unfinished.take() {
            self.holder.cancel_work_of(self.id);
            if exchange.run_out(self, backend)?.released {
                self.released(backend)?;
            }
        }
        if backend.prepared.is_none() && self.transaction != Transaction::None {
            self.end_transaction(backend, false)?;
        }
        self.forget_statements(backend, |_| false)
    }
}

/// How long a message may be: the server ends the connection after a longer one.
fn longest(kind: u8) -> usize {
    match kind {
        b'C' | b'D' | b'E' | b'H' | b'S' | b'X' | b'c' | b'f' => 9_900,
        _ => usize::MAX,
    }
}
