//! The one connection of a holder, and the transaction on it. Clients take turns: who has it has it alone, in the order
//! in which they asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::super::connect::{Connection, OWN_OPTIONS, PgError, PgResult, literal};
use super::super::control::Answer;
use super::super::lexer::{Backslashes, Reading};
use super::super::location::Server;
use super::super::sql::SESSION_USER;
use super::exchange::Exchange;
use super::redo::Redo;

/// By when a server has made the savepoint that it was sent. A cancel that met it there would take back everything.
const MADE: Duration = Duration::from_millis(200);

/// Settings of a session that differ from those it began with.
pub(super) type Settings = BTreeMap<String, String>;

/// The setting that limits how long a statement may take, those of the holder too.
pub(super) const STATEMENT_TIMEOUT: &str = "statement_timeout";

/// The savepoint in which a client works.
pub(super) const WORK: &str = "escrow_work";

/// Set from outside of every transaction, so that no `RESET ALL` takes it back: the server must not end a transaction
/// because nothing happens in it. What a server does not know yet, an older one, is left out.
const OPTIONS: [&str; 3] = [
    "-c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0 -c transaction_timeout=0",
    "-c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0",
    "-c lock_timeout=0 -c idle_in_transaction_session_timeout=0",
];

/// The same for the connection that only looks: it waits for no lock of the transaction that it is compared with, and shows
/// values as that does when it is compared.
const BASE_OPTIONS: &str = "-c lock_timeout=2000 -c search_path= \
                            -c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=3 \
                            -c bytea_output=hex";

/// How long the engine itself waits for a lock in the transaction, inside a savepoint of its own: a client waits as long as
/// it likes, but who holds the lock may wait for the engine.
pub(super) const LIMIT: &str = "SET LOCAL lock_timeout = '5s'";

/// The settings with which the engine itself looks into the transaction.
pub(super) fn own_settings() -> Settings {
    let pairs = [
        ("search_path", ""),
        ("DateStyle", "ISO"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
        ("extra_float_digits", "3"),
        ("bytea_output", "hex"),
        (STATEMENT_TIMEOUT, "0"),
        ("role", "none"),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.into_iter().collect()
}

/// The limit of time and the role with which a session begins.
fn begins_with(connection: &mut Connection) -> PgResult<(u128, String)> {
    let sql = "SELECT setting, pg_catalog.current_setting('role') FROM pg_catalog.pg_settings \
               WHERE name OPERATOR(pg_catalog.=) 'statement_timeout'";
    let mut values = connection.query(sql)?.into_iter().flatten().flatten();
    let limit = values.next().and_then(|text| text.parse().ok());
    let role = values.next().unwrap_or_else(|| "none".to_owned());
    Ok((limit.unwrap_or(0), role))
}

/// The connection and what is known of its transaction.
pub(super) struct Backend {
    pub(super) connection: Connection,
    /// The client that had it last.
    pub(super) last: Option<u32>,
    /// What was set for the client that had it last; `None`: that is not known.
    pub(super) applied: Option<Settings>,
    /// Whether a constraint may be checked as late as at the end of a transaction.
    pub(super) deferrable: bool,
    /// The role that a session begins with: `none`, or one that its user has as a setting.
    role: String,
    /// Sees the database as it was when the transaction began. It gave its snapshot to the transaction: one that
    /// gives its own away cannot be prepared.
    pub(super) base: Connection,
    /// When it began.
    pub(super) began: Instant,
    /// The checkpoints, each a savepoint inside the one before, and how often clients had worked in it.
    pub(super) checkpoints: Vec<(String, u64)>,
    /// How many checkpoints there were, also of transactions that are over.
    pub(super) taken: u64,
    /// How often clients worked in it.
    pub(super) turns: u64,
    /// What was changed when clients had worked in it so often.
    pub(super) compared: Option<(u64, Redo)>,
    /// The name under which the transaction was prepared; then nothing is held.
    pub(super) prepared: Option<String>,
    /// What was last prepared and taken back, and what came of it.
    pub(super) dropped: Option<(String, Answer)>,
    /// What a client that is gone left in the middle.
    pub(super) unfinished: Option<Exchange>,
}

impl Backend {
    /// Connects and begins.
    pub(super) fn open(server: &Server, password: Option<&str>) -> PgResult<Self> {
        let mut options = OPTIONS[0];
        let mut opened = Connection::open(server, password, options);
        for fewer in &OPTIONS[1..] {
            if opened.as_ref().is_err_and(|error| error.is("42704")) {
                options = fewer;
                opened = Connection::open(server, password, options);
            }
        }
        let base = format!("{options} {OWN_OPTIONS} {BASE_OPTIONS}");
        let mut connection = opened?;
        let mut begins = begins_with(&mut connection);
        let short = match &begins {
            Ok((limit, _)) => (1..MADE.as_millis()).contains(limit),
            Err(error) => error.is("57014"),
        };
        if short {
            // As one that a client sets.
            let options = format!("{options} -c {STATEMENT_TIMEOUT}={}", MADE.as_millis());
            connection = Connection::open(server, password, &options)?;
            begins = begins_with(&mut connection);
        }
        let mut this = Self {
            connection,
            role: begins?.1,
            base: Connection::open(server, password, &base)?,
            last: None,
            applied: None,
            deferrable: true,
            began: Instant::now(),
            checkpoints: Vec::new(),
            taken: 0,
            turns: 0,
            compared: None,
            prepared: None,
            dropped: None,
            unfinished: None,
        };
        this.begin()?;
        Ok(this)
    }

    /// Begins a transaction that sees one state of the database, and lets other connections see it.
    pub(super) fn begin(&mut self) -> PgResult<()> {
        self.base
            .query("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        let snapshot = self.base.value("SELECT pg_catalog.pg_export_snapshot()")?;
        let snapshot = literal(&snapshot.unwrap_or_default());
        self.connection.query(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE; SET TRANSACTION SNAPSHOT {snapshot}"
        ))?;
        self.apply_own()?;
        let deferrable = "SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE condeferrable)";
        self.deferrable = self.connection.value(deferrable)?.as_deref() == Some("t");
        (self.began, self.prepared) = (Instant::now(), None);
        self.checkpoints.clear();
        Ok(())
    }

    /// Takes everything back and begins anew.
    pub(super) fn begin_anew(&mut self) -> PgResult<()> {
        self.connection.query("ROLLBACK")?;
        // What was set in the transaction went with it.
        (self.applied, self.compared) = (None, None);
        self.begin()
    }

    /// Gives the session the settings of the engine, whatever a client made of those that are known.
    pub(super) fn apply_own(&mut self) -> PgResult<()> {
        self.applied = None;
        self.apply(&own_settings())
    }

    /// Gives the session the settings of a client.
    pub(super) fn apply(&mut self, wanted: &Settings) -> PgResult<()> {
        if self.applied.as_ref() == Some(wanted) {
            return Ok(());
        }
        let mut sql =
            "CLOSE ALL; SAVEPOINT escrow_set; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL;"
                .to_owned();
        // With these two other names, or other rights, could be meant.
        let (last, others): (Vec<_>, Vec<_>) = wanted
            .iter()
            .partition(|(name, _)| matches!(name.as_str(), "role" | "search_path"));
        for (name, value) in others.into_iter().chain(last.into_iter().rev()) {
            let limits = name.eq_ignore_ascii_case(STATEMENT_TIMEOUT);
            let (name, value) = (literal(name), literal(value));
            let mut set = format!("pg_catalog.set_config({name}, {value}, false)");
            if limits {
                // Under a shorter limit the savepoint of the next statement might fail, and with it everything.
                set = format!(
                    "pg_catalog.set_config({name}, CASE WHEN {set} OPERATOR(pg_catalog.<>) '0' THEN (SELECT CASE \
                     WHEN setting::pg_catalog.int4 OPERATOR(pg_catalog.<) {least} THEN '{least}' ELSE setting END \
                     FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) 'statement_timeout') ELSE '0' END, false)",
                    least = MADE.as_millis()
                );
            }
            sql.push_str(&format!("SELECT {set};"));
        }
        sql.push_str("RELEASE SAVEPOINT escrow_set");
        if let Err(error) = self.connection.query(&sql) {
            self.connection.take_back("escrow_set")?;
            return Err(error);
        }
        self.applied = Some(wanted.clone());
        Ok(())
    }

    /// How the server reads a text.
    pub(super) fn reading(&self) -> Reading {
        let strings = self
            .connection
            .parameters
            .get("standard_conforming_strings");
        match strings.is_some_and(|value| value == "on") {
            true => Reading::USUAL,
            false => Reading {
                backslashes: Backslashes::Everywhere,
                ..Reading::USUAL
            },
        }
    }

    /// The settings as they are; of those that no list shows, these.
    pub(super) fn settings(&mut self, also: &[String]) -> PgResult<Settings> {
        // No function of a client, and in no encoding of a client.
        let coded = |value: &str| {
            format!("pg_catalog.encode(pg_catalog.convert_to({value}, 'UTF8'), 'hex')")
        };
        let mut sql = format!(
            "SELECT name, {} FROM pg_catalog.pg_settings WHERE source OPERATOR(pg_catalog.=) 'session' \
             UNION ALL SELECT 'role', {}",
            coded("setting"),
            coded("pg_catalog.current_setting('role')")
        );
        for name in also {
            let name = literal(name);
            let value = coded(&format!("pg_catalog.current_setting({name}, true)"));
            sql.push_str(&format!(" UNION ALL SELECT {name}, {value}"));
        }
        let rows = self.connection.query(&sql)?;
        let pairs = rows.into_iter().filter_map(|row| {
            let mut values = row.into_iter().flatten();
            let (name, coded) = (values.next()?, values.next()?);
            let digits = coded.as_bytes().chunks_exact(2);
            let byte = |two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
            let bytes: Option<Vec<u8>> = digits.map(byte).collect();
            Some((name, String::from_utf8_lossy(&bytes?).into_owned()))
        });
        // The modes of a transaction are no settings of a session.
        let kept = |(name, value): &(String, String)| match name.as_str() {
            "role" => *value != self.role,
            SESSION_USER => false,
            name => !name.starts_with("transaction_"),
        };
        Ok(pairs.filter(kept).collect())
    }
}

/// Why the connection cannot be had.
#[derive(Debug, Clone)]
pub(super) enum Unavailable {
    /// Another client has it, and did not give it back in time.
    Busy,
    /// It is gone, and with it everything that was done in it.
    Lost(String),
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Thread)>,
    next: u64,
    backend: Option<Box<Backend>>,
    owner: Option<u32>,
    lost: Option<String>,
    /// By which what runs on it is cancelled.
    key: Option<(i32, i32)>,
    /// How many are asking the server to cancel what runs on it.
    cancels: usize,
    /// When the turn began.
    began: Option<Instant>,
    /// When the server was last sent a savepoint in it.
    opened: Option<Instant>,
}

/// Tells the first of those who wait to look.
fn call(queue: MutexGuard<'_, Queue>) {
    let first = queue.waiting.front().map(|(_, first)| first.clone());
    drop(queue);
    if let Some(first) = first {
        first.unpark();
    }
}

/// Where the connection is while no client has it, and who waits for it.
#[derive(Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
}

impl Turns {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the connection there for the first time.
    pub(super) fn start(&self, backend: Backend) {
        let mut queue = self.queue();
        queue.key = Some(backend.connection.key);
        queue.backend = Some(Box::new(backend));
        queue.lost = None;
    }

    /// Waits for the connection, for so long.
    pub(super) fn take(&self, who: u32, limit: Duration) -> Result<Turn<'_>, Unavailable> {
        let until = Instant::now() + limit;
        let mut queue = self.queue();
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.push_back((ticket, thread::current()));
        loop {
            let first = queue.waiting.front().map(|(first, _)| *first) == Some(ticket);
            if let Some(why) = queue.lost.clone() {
                queue.waiting.retain(|(one, _)| *one != ticket);
                call(queue);
                return Err(Unavailable::Lost(why));
            }
            // What was asked of the server for one turn must not meet the next.
            if first
                && queue.cancels == 0
                && let Some(backend) = queue.backend.take()
            {
                queue.waiting.pop_front();
                queue.owner = Some(who);
                (queue.began, queue.opened) = (Some(Instant::now()), None);
                drop(queue);
                let mut turn = Turn {
                    turns: self,
                    backend: Some(backend),
                };
                let settled = turn
                    .backend()
                    .and_then(|backend| backend.connection.settle());
                let Err(error) = settled else {
                    return Ok(turn);
                };
                turn.lose(&error.to_string());
                return Err(Unavailable::Lost(error.to_string()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                queue.waiting.retain(|(one, _)| *one != ticket);
                call(queue);
                return Err(Unavailable::Busy);
            }
            drop(queue);
            thread::park_timeout(left);
            queue = self.queue();
        }
    }

    /// Notes that the server is sent the savepoint of whoever has the connection.
    pub(super) fn opening(&self) {
        self.queue().opened = Some(Instant::now());
    }

    /// Lets `cancel` ask the server to stop what runs on the connection, if this client has it; nobody gets it meanwhile. What the server is
    /// sent first in a turn, and the savepoint, are not met.
    pub(super) fn cancelling(&self, who: u32, cancel: impl FnOnce((i32, i32))) {
        let mut queue = self.queue();
        let (began, mut asked) = (queue.began, queue.opened);
        let key = loop {
            if queue.owner != Some(who)
                || queue.began != began
                || asked.is_some_and(|asked| Some(asked) != queue.opened)
            {
                return;
            }
            asked = queue.opened;
            let since = asked.or(began).map_or(MADE, |when| when.elapsed());
            let left = MADE.saturating_sub(since);
            if left.is_zero() {
                break queue.key;
            }
            drop(queue);
            thread::sleep(left);
            queue = self.queue();
        };
        let Some(key) = key else {
            return;
        };
        queue.cancels += 1;
        drop(queue);
        cancel(key);
        let mut queue = self.queue();
        queue.cancels -= 1;
        call(queue);
    }

    /// By which what runs on the connection is cancelled.
    pub(super) fn key(&self) -> Option<(i32, i32)> {
        self.queue().key
    }

    /// Why it is gone, if it is.
    pub(super) fn lost(&self) -> Option<String> {
        self.queue().lost.clone()
    }
}

/// The connection, for as long as a client has it. One that panics, or whose link broke, does not give it back.
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    backend: Option<Box<Backend>>,
}

impl Turn<'_> {
    /// The connection.
    pub(super) fn backend(&mut self) -> PgResult<&mut Backend> {
        self.backend
            .as_deref_mut()
            .ok_or_else(|| PgError::link("the connection to the server is gone"))
    }

    /// The link broke: no client gets it any more, and all are told.
    pub(super) fn lose(&mut self, why: &str) {
        self.backend = None;
        let mut queue = self.turns.queue();
        queue.lost.get_or_insert_with(|| why.to_owned());
        call(queue);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.turns.queue();
        queue.owner = None;
        let backend = self.backend.take().filter(|_| !std::thread::panicking());
        match backend {
            // What failed outside of every savepoint cannot go on.
            Some(backend) if backend.prepared.is_none() && backend.connection.status == b'E' => {
                let why = "a statement failed outside of every savepoint";
                queue.lost.get_or_insert_with(|| why.to_owned());
            }
            Some(backend) => queue.backend = Some(backend),
            None => {
                let why = "an internal error ended the session";
                queue.lost.get_or_insert_with(|| why.to_owned());
            }
        }
        call(queue);
    }
}
