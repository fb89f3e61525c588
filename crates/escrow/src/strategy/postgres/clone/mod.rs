//! `snapshot` for PostgreSQL: clones of a database on its own server, compared and released row by row.
//!
//! ```text
//! escrow_<id>_base     the original as it was when the sandbox was made; never written
//! escrow_<id>_work     the sandbox
//! escrow_<id>_c<N>     checkpoints
//! <area>/clones        which server they are on; written before the first of them is made
//! <area>/origin.sql, base.sql, c<N>.sql    the definitions of the original then, and of those
//! <area>/pg, control   the sockets of a process that passes clients on to the sandbox
//! ```
//!
//! A commit is staged in its area ([`plan`]), and made in one transaction of the original ([`release`]), which is prepared when it is
//! promised, and settled as that of `transaction_rollback`: by its number.

mod databases;
mod plan;
mod programs;
mod refused;
mod release;
mod rows;
mod schema;
mod sequences;
mod session;
mod unplanned;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::databases::{BASE, Databases, Original, WORK, connected};
use self::plan::{NUMBER, OpenPlan, ReleaseIntent, UNDO_NUMBER};
use self::programs::Programs;
use self::release::Release;
use self::schema::Schema;
use self::session::CloneSession;
use super::super::error::{Result, StrategyError};
use super::super::{
    Capabilities, CreateRequest, Created, Exposes, FinishedCommit, Intent, Outcome, Probe,
    RollbackReport, Sandbox, Session, Strategy, Target, tree, unsupported,
};
use super::connect::{Connection, PgError, PgResult, literal};
use super::control::HolderSpec;
use super::location::Server;
use super::{
    HeldIntent, HeldMetadata, HeldTransaction, Host, PAUSE, SharedHost, end_holder, failed, major,
};
use crate::event::Observer;
use crate::fs::{Dir, atomic_file, owned};
use crate::model::text::Location;
use crate::model::{Conflict, PlanId, ResourceId, ResourcePath, SandboxRef};

const NAME: &str = "snapshot";

/// How long the server may take to end a connection that was closed.
const MOMENT: Duration = Duration::from_millis(300);

/// Which server the clones of an area are on.
const CLONES: &str = "clones";

/// The definitions of the original, as its own dump has them: what a dump says of an expression may differ once it was restored.
const ORIGIN: &str = "origin";

/// Where a commit is staged that has no area of its own.
const RELEASE: &[u8] = b"release";

/// How much the definitions of a database may be.
const MOST: u64 = 1 << 30;

/// The strategy.
pub(in crate::strategy) struct Clones {
    held: HeldTransaction,
}

/// What is known of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CloneMetadata {
    /// The original, and how clients reach the sandbox.
    held: HeldMetadata,
    /// The number of the original on its server, which no other one gets.
    original: String,
    /// The version of the server.
    version: u32,
}

/// What a return to a checkpoint needs: which clone becomes the sandbox, and which one brings it back.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RestoreIntent {
    server: Server,
    plan: PlanId,
    resource: ResourceId,
    to: String,
    from: String,
}

fn as_restore(intent: &Intent) -> Option<RestoreIntent> {
    serde_json::from_value(intent.0.clone()).ok()
}

/// How the sandbox of a clone reaches its server.
pub(super) fn held_of(sandbox: &SandboxRef) -> Result<HeldMetadata> {
    Ok(tree::metadata::<CloneMetadata>(sandbox)?.held)
}

/// Who is connected to a database and stays so: a connection that was closed, such as one of ours, is gone after a moment.
fn staying(admin: &mut Connection, database: &str) -> PgResult<String> {
    let until = Instant::now() + MOMENT;
    loop {
        let who = connected(admin, database)?;
        if who.is_empty() || Instant::now() > until {
            return Ok(who);
        }
        std::thread::sleep(PAUSE);
    }
}

impl Clones {
    pub(in crate::strategy) fn new(host: SharedHost) -> Self {
        Self {
            held: HeldTransaction::new(host),
        }
    }

    fn restore(&self, intent: &RestoreIntent, part: &str) -> Result<()> {
        let RestoreIntent {
            server,
            plan,
            resource,
            ..
        } = intent;
        let databases = Databases::new(&self.held.host(), server, *plan, *resource);
        let mut admin = databases.admin()?;
        databases.copy(&mut admin, &databases.name(part), WORK)
    }

    /// Makes the first clone: by the server's own means where no client is connected to the original, else by a dump of one state of
    /// it. Says how, and the definitions of the original then.
    fn clone_original(
        &self,
        databases: &Databases,
        admin: &mut Connection,
        version: u32,
    ) -> Result<(&'static str, String)> {
        let original = &databases.original;
        let (server, programs) = (&original.server, Programs { original, version });
        let mut looked = original.look(server)?;
        let refused = refused::found(&mut looked).map_err(|error| failed("be cloned", &error))?;
        drop(looked);
        if let Some((what, _)) = refused {
            let why = format!("it {what}; the strategy transaction_rollback takes it as it is");
            return Err(unsupported(NAME, "clone this database", &why));
        }
        let here = admin.value("SELECT pg_catalog.current_database()");
        let here = here.map_err(|error| failed("be cloned", &error))?;
        let who = staying(admin, &server.database);
        let who = who.map_err(|error| failed("be cloned", &error))?;
        if who.is_empty() && here.as_ref() != Some(&server.database) {
            match databases.copy(admin, &server.database, BASE) {
                Ok(()) => {
                    let same = programs.definitions(&databases.at(BASE))?;
                    return Ok(("cloned the database", same));
                }
                // A client connected meanwhile, or the role may read the database and is not its owner.
                Err(StrategyError::Server {
                    code: Some(code), ..
                }) if code == "55006" || code == "42501" => {}
                Err(error) => return Err(error),
            }
        }
        let before = programs.definitions(server)?;
        databases.create_empty(admin, BASE)?;
        let brought = programs.bring_over(server, &databases.at(BASE));
        brought.map_err(|error| match error {
            // Without them the server copies it as it is.
            StrategyError::Server { what, code, said } => StrategyError::Server {
                what,
                code,
                said: said + &who,
            },
            error => error,
        })?;
        if Schema::read(&programs.definitions(server)?) != Schema::read(&before) {
            let text = "its definitions were changed meanwhile; try again";
            return Err(failed("be cloned", &PgError::link(text)));
        }
        Ok((
            "dumped one state of the database, and restored it in a clone",
            before,
        ))
    }

    /// A commit that was staged, and the original.
    fn opened(&self, intent: &Intent) -> Result<(OpenPlan, Original)> {
        let plan = OpenPlan::read(intent)?;
        let original = Original::new(&self.held.host(), &plan.intent.server);
        check_original(&original, &plan.intent.original)?;
        Ok((plan, original))
    }

    /// Whether a commit was carried out that cannot be taken back, and then whether it changed nothing: one that nothing promised is staged
    /// in the sandbox, which goes when it was carried out.
    fn is_final(intent: &Intent) -> Result<Option<bool>> {
        let intent: ReleaseIntent = tree::parse(&intent.0, "the intent")?;
        let area = Dir::open(intent.area.as_path());
        let is_final = intent.gid.is_none() && area.is_err_and(|error| error.is_absent());
        Ok(is_final.then_some(intent.empty))
    }

    /// Commits what was prepared. What was taken back on the server by hand is made once more: it was decided, and nothing of it is lost.
    fn commit_prepared(&self, held: &HeldIntent, gid: &str, forward: &Release<'_>) -> Result<()> {
        let Err(error) = self.held.settle(held, gid, true) else {
            return Ok(());
        };
        let status = held.xid.as_ref().map(|xid| self.held.status_of(held, xid));
        match status.transpose() {
            Ok(Some((Some(status), _))) if status == "aborted" => {
                forward.carry_out("COMMIT").map(drop)
            }
            // What the server says of the commit tells more than that it could not be asked again.
            Ok(_) | Err(_) => Err(error),
        }
    }

    /// Lets clients into the sandbox of a commit that came to nothing.
    fn reopen(&self, plan: &OpenPlan) {
        let ReleaseIntent {
            server,
            of,
            sandbox,
            ..
        } = &plan.intent;
        let host = self.held.host();
        let databases = Databases::new(&host, server, of.0, of.1);
        serve_again(&host, &databases, sandbox);
    }

    /// Whether a transaction of a commit was carried out.
    fn settled(&self, plan: &OpenPlan, of: &[u8]) -> Result<Outcome> {
        let held = plan.held(of)?;
        match held.xid {
            None => Ok(Outcome::NotDone),
            Some(_) => self.held.outcome(&Intent(tree::stored(&held))),
        }
    }
}

/// Has a process pass clients on to the clone, if none does.
fn serve(host: &Host, databases: &Databases, area: &Location) -> Result<()> {
    let spec = HolderSpec {
        server: databases.at(WORK),
        password: databases.original.password.clone(),
        area: area.as_path().to_owned(),
        passes: Some(databases.original.server.database.clone()),
    };
    super::serve(host, &spec)
}

/// The same after a commit that came to nothing. Where it fails, who connects next tries again.
fn serve_again(host: &Host, databases: &Databases, area: &Location) {
    match serve(host, databases, area) {
        Ok(()) | Err(_) => {}
    }
}

fn stays() -> StrategyError {
    let why = "it changed definitions, or its server prepares no transactions; write the old values in another plan";
    unsupported(NAME, "undo this commit", why)
}

/// The file with the definitions of a clone.
fn definitions_of(part: &str) -> String {
    format!("{part}.sql")
}

impl Strategy for Clones {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            promises: true,
            live: false,
            exposes: Exposes::Url,
            strength: 6,
            ..Capabilities::PRIVATE
        }
    }

    fn capabilities_of(&self, sandbox: &SandboxRef) -> Capabilities {
        let known = tree::metadata::<CloneMetadata>(sandbox);
        let prepares = known.is_ok_and(|one| one.held.prepares);
        Capabilities {
            prepares,
            undoes: prepares,
            promises: prepares,
            ..self.capabilities()
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let probe = self.held.probe(target, area);
        if !probe.works || area.is_none() {
            return probe;
        }
        let looked = self.held.server(target).and_then(|server| {
            let mut connection = self.held.connect(&server).map_err(|error| error.to_string())?;
            let version = version_of(&connection);
            for name in ["pg_dump", "psql"] {
                programs::find(name, version)?;
            }
            let may = "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user";
            match connection.value(may).map_err(|error| error.to_string())?.as_deref() {
                Some("t") => Ok(()),
                _ => Err(format!(
                    "the role {} may not create databases (ALTER ROLE … CREATEDB)",
                    server.user
                )),
            }
        });
        match looked {
            Ok(()) => probe,
            Err(why) => Probe {
                remember: probe.remember,
                ..Probe::no(why)
            },
        }
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let mut held = self.held.metadata(NAME, request)?;
        let (host, server) = (self.held.host(), held.server.clone());
        let dir = Dir::open(held.area.as_path())?;
        let known = serde_json::to_vec(&server).expect("names and numbers are JSON");
        atomic_file::create(&dir, CLONES.as_bytes(), &known)?;
        let resource = request.target.resource_id;
        let databases = Databases::new(&host, &server, request.plan_id, resource);
        let mut admin = databases.admin()?;
        let original = format!(
            "SELECT oid FROM pg_catalog.pg_database WHERE datname = {}",
            literal(&server.database)
        );
        let mut ask = |sql: &str| {
            admin
                .value(sql)
                .map_err(|error| failed("be cloned", &error))
        };
        let original = ask(&original)?.unwrap_or_default();
        held.prepares = ask("SHOW max_prepared_transactions")?.as_deref() != Some("0");
        let version = version_of(&admin);
        let (message, from, definitions) = match request.from {
            None => {
                let (message, origin) = self.clone_original(&databases, &mut admin, version)?;
                let programs = Programs {
                    original: &databases.original,
                    version,
                };
                let base = programs.definitions(&databases.at(BASE))?;
                let texts = [origin, base].map(String::into_bytes);
                (message, databases.name(BASE), texts)
            }
            Some((other, snapshot)) => {
                let metadata: CloneMetadata = tree::metadata(other)?;
                let there = Databases::new(&host, &server, other.plan_id, other.resource_id);
                databases.copy(&mut admin, &there.name(BASE), BASE)?;
                let area = metadata.held.area.as_path();
                let read = |part| owned::read_named(&area.join(definitions_of(part)), MOST);
                let from = there.name(&session::part_of(snapshot)?);
                let message = "cloned the other sandbox's database";
                (message, from, [read(ORIGIN)?, read(BASE)?])
            }
        };
        databases.copy(&mut admin, &from, WORK)?;
        drop(admin);
        for (part, text) in [ORIGIN, BASE].iter().zip(&definitions) {
            atomic_file::create(&dir, definitions_of(part).as_bytes(), text)?;
        }
        let warnings = match held.prepares {
            true => Vec::new(),
            false => vec![super::control::NOT_PREPARED.to_owned()],
        };
        let metadata = CloneMetadata {
            held,
            original,
            version,
        };
        let message = message.to_owned();
        Ok(tree::created(NAME, request, &metadata, message, warnings))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let metadata: CloneMetadata = tree::metadata(sandbox)?;
        let host = self.held.host();
        let (plan, resource) = (sandbox.plan_id, sandbox.resource_id);
        let databases = Databases::new(&host, &metadata.held.server, plan, resource);
        if session != Session::Shared {
            check_original(&databases.original, &metadata.original)?;
        }
        let ids = (plan, resource);
        Ok(Box::new(CloneSession::new(metadata, databases, host, ids)))
    }

    fn promise(&self, intent: &Intent) -> Result<()> {
        let (plan, original) = self.opened(intent)?;
        let Some(gid) = &plan.intent.gid else {
            return Ok(());
        };
        let end = format!("PREPARE TRANSACTION {}", literal(gid));
        let promised = release(&plan, &original, false).carry_out(&end);
        promised.map(drop).inspect_err(|_| self.reopen(&plan))
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        if let Some(restore) = as_restore(intent) {
            return self.restore(&restore, &restore.to);
        }
        let (plan, original) = self.opened(intent)?;
        let forward = release(&plan, &original, false);
        let (held, outcome) = (plan.held(NUMBER)?, self.settled(&plan, NUMBER)?);
        if outcome == Outcome::Unknown {
            let text = "the outcome of its transaction is unknown to the server";
            return Err(failed("commit", &PgError::link(text)));
        }
        // Before the rows are seen, so that no other client is given a number that they have. Who holds a sequence may wait for what is
        // prepared here, so that is not waited for: [`finish`](Strategy::finish) moves it on.
        let moved = forward.move_on()?;
        match (&held.gid, outcome) {
            (_, Outcome::Done) => Ok(()),
            (Some(gid), _) if held.xid.is_some() => self.commit_prepared(&held, gid, &forward),
            _ => {
                let moved = moved.map_err(|error| failed("move its sequences on", &error));
                let done = moved.and_then(|()| forward.carry_out("COMMIT"));
                done.map(drop).inspect_err(|_| self.reopen(&plan))
            }
        }
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        let mut report = RollbackReport::default();
        if let Some(restore) = as_restore(intent) {
            return self.restore(&restore, &restore.from).map(|()| report);
        }
        match Self::is_final(intent)? {
            // A commit of nothing is taken back by nothing (rule C13).
            Some(true) => return Ok(report),
            Some(false) => return Err(stays()),
            None => {}
        }
        let (plan, original) = self.opened(intent)?;
        let held = plan.held(NUMBER)?;
        let done = self.settled(&plan, NUMBER)?;
        match (&held.gid, done) {
            // What the transaction held is still in the clone.
            (gid, Outcome::NotDone) => {
                if let (Some(gid), Some(_)) = (gid, &held.xid) {
                    self.held.settle(&held, gid, false)?;
                }
                self.reopen(&plan);
                Ok(report)
            }
            (Some(_), Outcome::Done) if plan.plan.ddl.is_empty() => {
                if self.settled(&plan, UNDO_NUMBER)? != Outcome::Done {
                    let at = Location::from_bytes(original.server.describe().as_bytes());
                    let skipped = release(&plan, &original, true).carry_out("COMMIT")?;
                    report
                        .kept
                        .extend(skipped.into_iter().map(|path| (path, at.clone())));
                }
                plan.rows
                    .iter()
                    .for_each(|row| report.paths.add(&plan.path(row)));
                Ok(report)
            }
            _ => Err(stays()),
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        match as_restore(intent) {
            Some(_) => Ok(Outcome::NotDone),
            None if Self::is_final(intent)?.is_some() => Ok(Outcome::Done),
            None => self.settled(&OpenPlan::read(intent)?, NUMBER),
        }
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        if as_restore(intent).is_some() {
            return Ok(Vec::new());
        }
        if let Some(empty) = Self::is_final(intent)? {
            if empty {
                return Ok(Vec::new());
            }
            let what = "its server prepares no transactions, so this commit stays; write the old values in another plan";
            return Ok(vec![Conflict::of(ResourcePath::root(), what)]);
        }
        let (plan, original) = self.opened(intent)?;
        release(&plan, &original, true).conflicts()
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let plan = OpenPlan::read(&intent);
        // Without a promise it is staged in the sandbox, which is gone, and its sequences were moved on before.
        if let Some(plan) = plan.ok().filter(|plan| plan.intent.gid.is_some()) {
            let original = Original::new(&self.held.host(), &plan.intent.server);
            let moved = release(&plan, &original, false).move_on()?;
            moved.map_err(|error| failed("move its sequences on", &error))?;
        }
        let notes = Vec::new();
        Ok(FinishedCommit { intent, notes })
    }

    fn cleanup(&self, sandbox: &SandboxRef, _: &Target, area: Option<&Path>) -> Result<()> {
        let (server, area) = match sandbox.metadata.is_null() {
            false => {
                let metadata: CloneMetadata = tree::metadata(sandbox)?;
                (metadata.held.server, metadata.held.area)
            }
            true => match area.and_then(begun) {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
        end_holder(&area)?;
        let (plan, resource) = (sandbox.plan_id, sandbox.resource_id);
        let databases = Databases::new(&self.held.host(), &server, plan, resource);
        let parts = parts_of(area.as_path())?;
        let known: Vec<String> = parts.iter().map(|part| databases.name(part)).collect();
        databases.drop_all_but(&mut databases.admin()?, &[], &known)
    }
}

fn release<'p>(plan: &'p OpenPlan, original: &'p Original, back: bool) -> Release<'p> {
    Release {
        plan,
        original,
        back,
    }
}

/// The clones that a sandbox may have: a checkpoint has a file in its area.
fn parts_of(area: &Path) -> Result<Vec<String>> {
    let mut parts = [BASE, WORK, session::SHAPE].map(str::to_owned).to_vec();
    let dir = match Dir::open(area) {
        Err(error) if error.is_absent() => return Ok(parts),
        dir => dir?,
    };
    for name in dir.names()? {
        let name = String::from_utf8_lossy(&name);
        parts.extend(name.strip_suffix(".sql").map(str::to_owned));
    }
    Ok(parts)
}

/// The server on which the clones of an area may have been begun.
fn begun(area: &Path) -> Option<(Server, Location)> {
    let text = owned::read_named(&area.join(CLONES), MOST).ok()?;
    Some((serde_json::from_slice(&text).ok()?, Location::from(area)))
}

fn version_of(connection: &Connection) -> u32 {
    let version = connection.parameters.get("server_version");
    version.map_or(0, |text| major(text))
}

/// Refuses where the original is gone, or another database has its name.
fn check_original(of: &Original, known: &str) -> Result<()> {
    let original = Location::from_bytes(of.server.describe().as_bytes());
    let sql =
        "SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()";
    let opened = Connection::open(&of.server, of.password.as_deref(), "");
    match opened.and_then(|mut connection| connection.value(sql)) {
        Ok(Some(number)) if number == known => Ok(()),
        Ok(_) => Err(StrategyError::Replaced { original }),
        Err(error) if error.is("3D000") => Err(StrategyError::Gone { original }),
        Err(error) => Err(failed("be reached", &error)),
    }
}
