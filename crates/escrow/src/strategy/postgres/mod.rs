//! `transaction_rollback` for PostgreSQL: a transaction that a holder process keeps open between commands.
//!
//! The area of a sandbox holds two sockets of its holder: `pg/.s.PGSQL.5432`, to which any client connects, and `control`, on
//! which the engine asks. The metadata says which database it is and never a password. When the holder dies, the server
//! takes everything back, and the sandbox says so.
//!
//! A commit is prepared on the server (`PREPARE TRANSACTION`) once its intent is stored, and carried out by `COMMIT PREPARED`, by
//! any process. `txid_status` of the transaction's number settles what a lost link left open (rule C19). Where the server
//! lets nothing be prepared, the commit is one plain `COMMIT` of the holder.

mod clone;
mod connect;
mod content;
mod control;
mod direct;
pub(crate) mod holder;
mod lexer;
pub(crate) mod location;
mod reaching_out;
mod session;
mod sql;
mod tls;
mod triggers;
mod wire;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(super) use self::clone::Clones;
use self::connect::{ANSWERS_WITHIN, Connection, OWN_OPTIONS, PgError, PgResult, literal};
use self::control::{Answer, CLIENTS, HolderSpec, LONGEST_PATH, Request, Status, ask};
pub(super) use self::direct::Direct;
use self::location::{Server, Variables};
use super::error::{Result, StrategyError};
use super::holder::{max_age, no_checkpoint};
use super::sql::env_name;
use super::{
    Capabilities, Checkpoints, CreateRequest, Created, Exposes, Intent, Outcome, Probe, Remember,
    RollbackReport, Sandbox, Session, Strategy, Target, TargetLocation, tree, unsupported,
};
use crate::event::Observer;
use crate::model::text::{Location, escape};
use crate::model::{Conflict, SandboxRef};

const NAME: &str = "transaction_rollback";

/// The oldest server with everything that is used here.
const OLDEST: u32 = 12;

/// How long the server may take to notice that a connection is gone.
const NOTICED: Duration = Duration::from_secs(20);

/// How often that is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// What the strategy takes from its caller: the program that becomes a holder, and the environment with `PG…`.
#[derive(Default, Clone)]
pub(super) struct Host {
    pub(super) helper: PathBuf,
    pub(super) variables: Variables,
}

impl Host {
    pub(super) fn new(helper: &Path, environment: &[(OsString, OsString)]) -> Self {
        let text = |text: &OsString| text.to_str().map(str::to_owned);
        let pairs = environment.iter();
        let pairs = pairs.filter_map(|(name, value)| Some((text(name)?, text(value)?)));
        Self {
            helper: helper.to_owned(),
            variables: pairs
                .filter(|(name, _)| name.starts_with("PG") || name == "HOME")
                .collect(),
        }
    }
}

/// The host of a process, which is known once its engine is open.
pub(super) type SharedHost = Arc<RwLock<Host>>;

/// The strategy.
pub(super) struct HeldTransaction {
    host: SharedHost,
}

/// What is known of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct HeldMetadata {
    server: Server,
    area: Location,
    /// The directory of the socket inside `escrow run`.
    inside: String,
    /// The variable with the URL inside.
    env: String,
    /// Whether the server lets transactions be prepared.
    prepares: bool,
    /// How old, in seconds, its transaction may become before that is said.
    max_age: u64,
}

impl Server {
    /// How many of these sandboxes, this one included, are of databases of the same server.
    fn shared_by(&self, sandboxes: &[SandboxRef]) -> u64 {
        let server = |one: &SandboxRef| {
            let held = tree::metadata::<HeldMetadata>(one);
            let held = held.or_else(|_| clone::held_of(one));
            held.is_ok_and(|held| (&held.server.host, held.server.port) == (&self.host, self.port))
        };
        let count = sandboxes.iter().filter(|one| server(one)).count();
        count.max(1) as u64
    }
}

/// What a commit needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct HeldIntent {
    server: Server,
    area: Location,
    /// The number of the transaction; none where nothing was changed.
    xid: Option<String>,
    /// Under which name it is prepared; none where nothing can be.
    gid: Option<String>,
    /// How often clients had worked in the sandbox when it was compared: nothing else is committed.
    turns: u64,
}

/// A checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct HeldSnapshot {
    savepoint: String,
}

/// What a return to a checkpoint needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RestoreIntent {
    area: Location,
    savepoint: String,
}

/// The return to a checkpoint that an intent is, if it is one.
fn as_restore(intent: &Intent) -> Option<RestoreIntent> {
    serde_json::from_value(intent.0.clone()).ok()
}

impl HeldTransaction {
    pub(super) fn new(host: SharedHost) -> Self {
        Self { host }
    }

    fn host(&self) -> Host {
        let host = self.host.read();
        host.map(|host| host.clone()).unwrap_or_default()
    }

    fn server(&self, target: &Target) -> std::result::Result<Server, String> {
        match &target.location {
            TargetLocation::Url(url) => location::resolve(url, &self.host().variables),
            _ => Err("it is reached through no URL".to_owned()),
        }
    }

    /// What is known of a sandbox that is begun; a holder that a crashed process left in its area ends.
    fn metadata(&self, strategy: &str, request: &CreateRequest<'_>) -> Result<HeldMetadata> {
        let target = request.target;
        let server = self.server(target);
        let server = server.map_err(|why| failed("find the database", &PgError::link(why)))?;
        let refuse = |why: &str| Err(unsupported(strategy, "make a sandbox", why));
        let Some(area) = request.area else {
            return refuse("it needs an area");
        };
        let longest = area.join(CLIENTS).as_os_str().len();
        if longest > LONGEST_PATH {
            return refuse(&format!(
                "the path of its socket has {longest} bytes, of which a Unix socket takes {LONGEST_PATH}; set ESCROW_HOME to a \
                 shorter path"
            ));
        }
        let metadata = HeldMetadata {
            server,
            area: Location::from(area),
            inside: format!("/run/escrow/{}", target.name),
            env: env_name(strategy, target)?.unwrap_or_else(|| "DATABASE_URL".to_owned()),
            prepares: false,
            max_age: max_age(strategy, target)?,
        };
        end_holder(&metadata.area)?;
        Ok(metadata)
    }

    /// A connection of this process itself.
    fn connect(&self, server: &Server) -> std::result::Result<Connection, PgError> {
        let password = location::password(server, &self.host().variables);
        Connection::open(server, password.as_deref(), OWN_OPTIONS)?.with_limit(ANSWERS_WITHIN)
    }
}

fn failed(what: &str, error: &PgError) -> StrategyError {
    StrategyError::Server {
        what: what.to_owned(),
        code: error.code.clone(),
        said: error.to_string(),
    }
}

/// Asks the holder of a sandbox; says what happened where it has none any more.
fn ask_holder(area: &Location, request: &Request, what: &str) -> Result<Answer> {
    let lost = |why: String| StrategyError::HolderGone { why };
    match ask(area.as_path(), request) {
        Ok(Answer::Failed(error)) => Err(failed(what, &error)),
        Ok(Answer::TakenBack(error)) => Err(StrategyError::TakenBack {
            code: error.code.clone(),
            said: error.to_string(),
        }),
        Ok(Answer::Lost(why)) => Err(lost(why)),
        Ok(Answer::Busy) => Err(StrategyError::ClientBusy),
        Ok(Answer::Moved) => Err(worked_on()),
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.into()),
    }
}

/// Starts a holder, and waits until it holds its transaction.
fn start_holder(host: &Host, server: &Server, area: &Location) -> Result<Status> {
    let spec = HolderSpec {
        server: server.clone(),
        password: location::password(server, &host.variables),
        area: area.as_path().to_owned(),
        passes: None,
    };
    start(host, &spec)
}

fn start(host: &Host, spec: &HolderSpec) -> Result<Status> {
    let what = "begin a transaction";
    let broken = |why: String| failed(what, &PgError::link(why));
    let spec = serde_json::to_vec(spec).map_err(|error| broken(error.to_string()))?;
    let holds = |said: &str| matches!(serde_json::from_str(said), Ok(Answer::Status(_)));
    let said = super::holder::start(&host.helper, &spec, holds).map_err(broken)?;
    let answer = serde_json::from_str(&said);
    match answer {
        Ok(Answer::Status(status)) => Ok(status),
        Ok(Answer::Failed(error)) => Err(failed(what, &error)),
        _ => Err(broken("the holder ended without a word".to_owned())),
    }
}

/// Has a process pass clients on to a database, if none does. It keeps nothing, and ends with the sandbox.
fn serve(host: &Host, spec: &HolderSpec) -> Result<()> {
    match ask(&spec.area, &Request::Status) {
        Ok(_) => Ok(()),
        Err(_) => start(host, spec).map(drop),
    }
}

/// The prepared transactions of the server, whoever's, for people: they outlive a restart, hold locks, and keep the server from starting
/// with `max_prepared_transactions = 0`. None is touched.
fn waiting(connection: &mut Connection) -> PgResult<String> {
    let sql = "SELECT gid, owner, database, pg_catalog.date_trunc('minute', prepared)::pg_catalog.text, pg_catalog.count(*) OVER () \
               FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 3";
    let rows = connection.query(sql)?;
    let text =
        |row: &[Option<String>], at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let Some(count) = rows.first().map(|row| text(row, 4)) else {
        return Ok(String::new());
    };
    let one = |row: &Vec<Option<String>>| {
        let gid = escape(text(row, 0).as_bytes());
        format!(
            "'{gid}' of {} in {} since {}",
            text(row, 1),
            text(row, 2),
            text(row, 3)
        )
    };
    let first: Vec<String> = rows.iter().map(one).collect();
    Ok(format!(
        "; prepared transactions wait there ({count}), hold locks, and outlive a restart: {}",
        first.join(", ")
    ))
}

/// The number of a version such as `15.4 (Debian)`.
fn major(version: &str) -> u32 {
    let digits = version.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

impl Strategy for HeldTransaction {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            undoes: false,
            promises: true,
            survives: false,
            retryable: false,
            reopens: false,
            checkpoints: Checkpoints::Linear,
            exposes: Exposes::Url,
            strength: 2,
            ..Capabilities::PRIVATE
        }
    }

    fn capabilities_of(&self, sandbox: &SandboxRef) -> Capabilities {
        let prepares = tree::metadata::<HeldMetadata>(sandbox).is_ok_and(|one| one.prepares);
        Capabilities {
            prepares,
            ..self.capabilities()
        }
    }

    fn remarks(&self, sandbox: &SandboxRef) -> Vec<String> {
        let Ok(metadata) = tree::metadata::<HeldMetadata>(sandbox) else {
            return Vec::new();
        };
        let asked = ask_holder(&metadata.area, &Request::Status, "say how it stands");
        let status = match asked {
            Ok(Answer::Status(status)) => status,
            Ok(_) => return Vec::new(),
            Err(error) => return vec![error.to_string()],
        };
        let mut remark = super::holder::open_for(status.age);
        if status.locks > 0 {
            remark.push_str(&format!(
                ", and holds locks on {} tables and indexes",
                status.locks
            ));
        }
        if status.checkpoints > 0 {
            remark.push_str(&format!(", with {} checkpoints", status.checkpoints));
        }
        if status.age > metadata.max_age {
            remark.push_str(
                ": that is long, and meanwhile the server cleans nothing up and others wait for its locks; commit it or \
                 roll it back",
            );
        }
        vec![remark]
    }

    fn gone(&self, sandbox: &SandboxRef) -> Option<String> {
        let metadata = tree::metadata::<HeldMetadata>(sandbox).ok()?;
        match ask_holder(&metadata.area, &Request::Status, "say how it stands") {
            Err(error @ StrategyError::HolderGone { .. }) => Some(error.to_string()),
            _ => None,
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let never = |probe: Probe| Probe {
            remember: Remember::Never,
            ..probe
        };
        if area.is_none() {
            return never(Probe::yes("a sandbox exists"));
        }
        let looked = self.server(target).and_then(|server| {
            let mut connection = self.connect(&server).map_err(|error| error.to_string())?;
            let version = connection
                .parameters
                .get("server_version")
                .cloned()
                .unwrap_or_default();
            if major(&version) < OLDEST {
                return Err(format!(
                    "the server is version {version}; {OLDEST} or newer is needed"
                ));
            }
            if connection
                .parameters
                .get("in_hot_standby")
                .is_some_and(|on| on == "on")
            {
                return Err("the server is a standby, on which nothing can be changed".to_owned());
            }
            let asked = connection.value("SHOW max_prepared_transactions");
            let prepared = asked.map_err(|error| error.to_string())?;
            let waiting = waiting(&mut connection).map_err(|error| error.to_string())?;
            Ok((
                format!("PostgreSQL {version}{waiting}"),
                prepared.as_deref() == Some("0"),
            ))
        });
        never(match looked {
            Err(why) => Probe::no(why),
            Ok((version, off)) => Probe {
                limit: off.then(|| control::NOT_PREPARED.to_owned()),
                ..Probe::yes(version)
            },
        })
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        if request.from.is_some() {
            return Err(no_snapshots("be forked"));
        }
        let mut metadata = self.metadata(NAME, request)?;
        let (server, area) = (&metadata.server, &metadata.area);
        let status = start_holder(&self.host(), server, area)?;
        let message = format!("a transaction of {}", server.describe());
        metadata.prepares = status.max_prepared > 0;
        Ok(tree::created(
            NAME,
            request,
            &metadata,
            message,
            status.warnings,
        ))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        _session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let metadata: HeldMetadata = tree::metadata(sandbox)?;
        let gid = format!("escrow_{}_{}", sandbox.plan_id, sandbox.resource_id);
        let host = self.host();
        let session = session::HeldSession {
            strategy: NAME,
            metadata,
            gid,
            host,
        };
        Ok(Box::new(session))
    }

    fn promise(&self, intent: &Intent) -> Result<()> {
        let intent: HeldIntent = tree::parse(&intent.0, "the intent")?;
        let (Some(gid), turns) = (intent.gid, intent.turns) else {
            return Ok(());
        };
        let what = "prepare the transaction";
        ask_holder(&intent.area, &Request::Prepare { gid, turns }, what).map(drop)
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        if let Some(restore) = as_restore(intent) {
            let request = Request::Restore(restore.savepoint);
            return match ask_holder(&restore.area, &request, "return to the checkpoint")? {
                Answer::Done => Ok(()),
                _ => Err(no_checkpoint()),
            };
        }
        let intent: HeldIntent = tree::parse(&intent.0, "the intent")?;
        let what = "commit";
        match &intent.gid {
            None if intent.xid.is_none() => Ok(()),
            None => {
                let turns = intent.turns;
                ask_holder(&intent.area, &Request::Commit { turns }, what).map(drop)
            }
            Some(gid) => self.settle(&intent, gid, true).map(drop),
        }
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        // Such a member comes last, so nothing is taken back once it was carried out.
        if as_restore(intent).is_some() {
            return Ok(RollbackReport::default());
        }
        let held: HeldIntent = tree::parse(&intent.0, "the intent")?;
        match &held.gid {
            // Nothing was prepared, and the holder still holds it.
            None if self.outcome(intent)? == Outcome::Done && held.xid.is_some() => {
                Err(committed())
            }
            None => Ok(RollbackReport::default()),
            Some(gid) => {
                let lost = match self.settle(&held, gid, false)? {
                    true => Vec::new(),
                    false => vec![format!(
                        "the transaction of {} was taken back, and its changes could not be made again: they are lost",
                        held.server.describe()
                    )],
                };
                Ok(RollbackReport {
                    lost,
                    ..RollbackReport::default()
                })
            }
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        if as_restore(intent).is_some() {
            return Ok(Outcome::NotDone);
        }
        let intent: HeldIntent = tree::parse(&intent.0, "the intent")?;
        let Some(xid) = &intent.xid else {
            return Ok(Outcome::Done);
        };
        // A server notices only after a while that a connection is gone.
        let until = Instant::now() + NOTICED;
        loop {
            let (found, alive) = self.status_of(&intent, xid)?;
            return Ok(match found.as_deref() {
                Some("committed") => Outcome::Done,
                Some("aborted") => Outcome::NotDone,
                Some("in progress") if intent.gid.is_some() || alive => Outcome::NotDone,
                Some("in progress") if Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                _ => Outcome::Unknown,
            });
        }
    }

    fn check_undo(&self, _intent: &Intent) -> Result<Vec<Conflict>> {
        // To take only the other members back would leave a mixture.
        let what = "a committed transaction stays committed; write the old values in another plan";
        let root = crate::model::ResourcePath::root();
        Ok(vec![Conflict::of(root, what)])
    }

    fn cleanup(&self, sandbox: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // The holder of one that was only begun ends when its area goes.
        if sandbox.metadata.is_null() {
            return Ok(());
        }
        let metadata: HeldMetadata = tree::metadata(sandbox)?;
        end_holder(&metadata.area)
    }
}

impl HeldTransaction {
    /// Commits what was prepared, or takes it back: through the holder where there is one, else by a connection of this
    /// process. What is done already is done. `false`: the changes are lost. A transaction that is still being prepared is
    /// waited for: it would be forgotten otherwise (rule Q8).
    fn settle(&self, intent: &HeldIntent, gid: &str, commit: bool) -> Result<bool> {
        let until = Instant::now() + NOTICED;
        loop {
            if !commit && self.is_held(intent) {
                return Ok(true);
            }
            match self.try_settle(intent, gid, commit)? {
                Settled::Done => return Ok(true),
                Settled::Lost => return Ok(false),
                Settled::InProgress if Instant::now() < until => std::thread::sleep(PAUSE),
                Settled::InProgress => {
                    let text = format!("transaction '{gid}' is still in progress on the server");
                    return Err(failed(what_of(commit), &PgError::link(text)));
                }
            }
        }
    }

    /// Whether the holder still holds what was never prepared.
    fn is_held(&self, intent: &HeldIntent) -> bool {
        let asked = ask(intent.area.as_path(), &Request::Status);
        matches!(asked, Ok(Answer::Status(status)) if status.xid.is_some() && status.xid == intent.xid)
    }

    fn try_settle(&self, intent: &HeldIntent, gid: &str, commit: bool) -> Result<Settled> {
        let finish = Request::Finish {
            gid: gid.to_owned(),
            commit,
        };
        match ask(intent.area.as_path(), &finish) {
            Ok(Answer::Done) => return Ok(Settled::Done),
            Ok(Answer::Dropped) => return Ok(Settled::Lost),
            _ => {}
        }
        let fail = |error: PgError| failed(what_of(commit), &error);
        let mut connection = self.connect(&intent.server).map_err(fail)?;
        let word = if commit { "COMMIT" } else { "ROLLBACK" };
        let said = connection.query(&format!("{word} PREPARED {}", literal(gid)));
        match said {
            Ok(_) if commit => return Ok(Settled::Done),
            Ok(_) => return Ok(Settled::Lost),
            // There is none of this name: it was settled, or never prepared.
            Err(error) if error.is("42704") => {}
            // It is being prepared, or settled by another process.
            Err(error) if error.is("55000") => return Ok(Settled::InProgress),
            Err(error) => return Err(fail(error)),
        }
        let Some(xid) = &intent.xid else {
            return Ok(Settled::Done);
        };
        let found = txid_status(&mut connection, xid).map_err(fail)?;
        match (commit, found.as_deref()) {
            (true, Some("committed")) => Ok(Settled::Done),
            (false, Some("committed")) => Err(committed()),
            (false, Some("aborted") | None) => Ok(Settled::Lost),
            (_, Some("in progress")) => Ok(Settled::InProgress),
            (_, found) => {
                let found = found.unwrap_or("unknown to the server");
                let text = format!(
                    "transaction '{gid}' is not prepared any more, and its outcome is: {found}"
                );
                Err(fail(PgError::link(text)))
            }
        }
    }

    /// What the server says of a transaction, and whether its holder is there.
    fn status_of(&self, intent: &HeldIntent, xid: &str) -> Result<(Option<String>, bool)> {
        let what = "find the outcome of the transaction";
        if let Ok(Answer::Rows(rows)) =
            ask(intent.area.as_path(), &Request::Outcome(xid.to_owned()))
        {
            let found = rows.into_iter().next();
            return Ok((found.and_then(|row| row.into_iter().next()).flatten(), true));
        }
        let connected = self.connect(&intent.server);
        let mut connection = connected.map_err(|error| failed(what, &error))?;
        let found = txid_status(&mut connection, xid).map_err(|error| failed(what, &error))?;
        Ok((found, false))
    }
}

/// What came of a prepared transaction.
enum Settled {
    /// What was asked for; one that was taken back is held again, with all its changes.
    Done,
    /// It was taken back, and its changes are gone.
    Lost,
    /// It is neither.
    InProgress,
}

fn what_of(commit: bool) -> &'static str {
    match commit {
        true => "commit the prepared transaction",
        false => "take the prepared transaction back",
    }
}

/// What the server says of a transaction by its number.
fn txid_status(
    connection: &mut Connection,
    xid: &str,
) -> std::result::Result<Option<String>, PgError> {
    connection.value(&format!("SELECT pg_catalog.txid_status({})", literal(xid)))
}

/// Something would be committed that was not compared.
fn worked_on() -> StrategyError {
    StrategyError::Moved {
        path: crate::model::ResourcePath::root(),
        what: "a client worked in the sandbox while it was being committed".to_owned(),
    }
}

fn committed() -> StrategyError {
    let why = "a committed transaction stays committed; write the old values in another plan";
    unsupported(NAME, "undo a commit", why)
}

fn no_snapshots(what: &str) -> StrategyError {
    let why = "a held transaction shows no earlier state beside the present one; another plan of the same database begins beside it";
    unsupported(NAME, what, why)
}

/// Ends the holder of an area, if there is one, and waits until it is gone.
fn end_holder(area: &Location) -> Result<()> {
    let ended = super::holder::end(area.as_path(), || {
        match ask(area.as_path(), &Request::End) {
            // One that is gone has ended.
            Ok(_) | Err(_) => {}
        }
    });
    match ended? {
        true => Ok(()),
        false => Err(failed("end the holder", &PgError::link("it still runs"))),
    }
}
