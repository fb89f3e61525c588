//! An open session with the sandbox of a database.

use std::io::Read;

use super::super::error::{Result, StrategyError};
use super::super::holder::{no_checkpoint, unexpected};
use super::super::sql::version_digests;
use super::super::{
    Access, Intent, Mount, PrepareRequest, Preview, PreviewNote, PreviewOptions, QueryResult,
    RestoreRequest, Sandbox, Snapshot, StagedCommit, tree, unsupported,
};
use super::connect::{ANSWERS_WITHIN, Connection, OWN_OPTIONS, PgError, PgResult};
use super::content;
use super::control::{Answer, CLIENTS_DIR, Changes, PORT, Request};
use super::holder::requests::CHECKPOINTS;
use super::location::Server;
use super::{
    HeldIntent, HeldMetadata, HeldSnapshot, Host, NAME, RestoreIntent, ask_holder, end_holder,
    failed, no_snapshots, start_holder, worked_on,
};
use crate::event::Observer;
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, Conflict, DiffView, ResourcePath};

/// The SQLSTATEs of a transaction that another one kept from being carried out.
const CONFLICTS: [&str; 2] = ["40001", "40P01"];

pub(super) struct HeldSession {
    /// The strategy of the sandbox.
    pub(super) strategy: &'static str,
    pub(super) metadata: HeldMetadata,
    /// How the names of its prepared transactions begin.
    pub(super) gid: String,
    pub(super) host: Host,
}

impl HeldSession {
    fn ask(&self, request: &Request, what: &str) -> Result<Answer> {
        ask_holder(&self.metadata.area, request, what)
    }

    fn changes(&self) -> Result<Changes> {
        match self.ask(&Request::Changes, "compare")? {
            Answer::Changes(changes) => Ok(changes),
            _ => Err(unexpected()),
        }
    }

    /// Whether it could be committed, as one of so many: the number of the transaction, and how often clients had worked in it.
    fn check(&self, of: u64) -> Result<(Option<String>, u64)> {
        match self.ask(&Request::Check { of }, "keep what the sandbox changed")? {
            Answer::Fit { xid, turns } => Ok((xid, turns)),
            _ => Err(unexpected()),
        }
    }

    /// The URL of the sandbox, with its socket in a directory.
    fn url(&self, directory: &str) -> String {
        let server = &self.metadata.server;
        let (database, user) = (encode(&server.database), encode(&server.user));
        format!(
            "postgresql:///{database}?host={}&port={PORT}&user={user}",
            encode(directory)
        )
    }
}

/// Has the server keep, also over a crash, that the number of a transaction is taken: it would give it to another one
/// otherwise, and its outcome would be taken for that of ours (rule C19).
pub(super) fn keep_number(server: &Server, password: Option<&str>) -> Result<()> {
    let sql = "SET synchronous_commit = on; SELECT pg_catalog.pg_logical_emit_message(true, 'escrow', '')";
    let kept = Connection::open(server, password, OWN_OPTIONS)
        .and_then(|connection| connection.with_limit(ANSWERS_WITHIN))
        .and_then(|mut connection| connection.query(sql));
    kept.map(drop)
        .map_err(|error| failed("keep the number of the transaction", &error))
}

/// Whether the server has room for so many more prepared transactions. Where one of a plan finds none, the others are taken back, and what
/// cannot be made again is lost (rule Q3).
pub(super) fn check_room(connection: &mut Connection, needed: u64) -> PgResult<()> {
    let room = "SELECT pg_catalog.current_setting('max_prepared_transactions')::pg_catalog.int8 - pg_catalog.count(*) \
                FROM pg_catalog.pg_prepared_xacts";
    let room = connection.value(room)?.unwrap_or_default();
    match room.parse::<i64>().is_ok_and(|room| room >= needed as i64) {
        true => Ok(()),
        false => Err(refused(
            &format!(
                "the server has room for {room} more prepared transactions (max_prepared_transactions), and the commit needs {needed}"
            ),
            "nothing was changed; commit again when others have ended theirs (pg_prepared_xacts), or give the server more",
        )),
    }
}

/// What the server would refuse too late.
pub(super) fn refused(message: &str, detail: &str) -> PgError {
    PgError {
        code: Some("0A000".to_owned()),
        message: message.to_owned(),
        detail: Some(detail.to_owned()),
        fields: Vec::new(),
    }
}

fn savepoint_of(snapshot: &Snapshot) -> Result<String> {
    let snapshot: HeldSnapshot = tree::parse(&snapshot.0, "the snapshot")?;
    Ok(snapshot.savepoint)
}

/// A text as a part of a URL.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

impl Sandbox for HeldSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        content::read(&self.metadata, path)
    }

    fn write(&self, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
        content::write(&self.metadata, path, bytes)
    }

    fn query(&self, statement: &str, read_only: bool) -> Result<QueryResult> {
        content::query(&self.metadata, self.strategy, statement, read_only)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        if from.or(to).is_some() {
            return Err(no_snapshots("compare with a checkpoint"));
        }
        Ok(DiffView::new(self.changes()?.changes))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        Ok(version_digests(changes))
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        match self.ask(&Request::Rollback, "take the changes back") {
            Ok(_) => Ok("took the transaction back, and began another one".to_owned()),
            Err(StrategyError::HolderGone { .. }) => {
                end_holder(&self.metadata.area)?;
                start_holder(&self.host, &self.metadata.server, &self.metadata.area)?;
                Ok("the transaction was gone; began another one".to_owned())
            }
            Err(error) => Err(error),
        }
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        match self.ask(&Request::Checkpoint, "be kept")? {
            Answer::Kept(name) => Ok(Snapshot(tree::stored(&HeldSnapshot { savepoint: name }))),
            Answer::Full => {
                let why = format!(
                    "it has {CHECKPOINTS} already, and many savepoints in one transaction slow the whole server down; \
                     return to an earlier one, commit, or roll back"
                );
                Err(unsupported(NAME, "take another checkpoint", &why))
            }
            _ => Err(unexpected()),
        }
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let names = keep.iter().map(savepoint_of).collect::<Result<_>>()?;
        match self.ask(&Request::Retain(names), "forget checkpoints") {
            // What cannot be released now goes with the next ones, or with the transaction.
            Ok(_) | Err(StrategyError::HolderGone { .. } | StrategyError::ClientBusy) => {
                Ok(keep.to_vec())
            }
            Err(error) => Err(error),
        }
    }

    fn preview(&self, _options: &PreviewOptions) -> Result<Preview> {
        let changes = self.changes()?;
        let conflicts = match self.check(1) {
            Ok(_) => Vec::new(),
            Err(StrategyError::Server {
                code: Some(code),
                said,
                ..
            }) if CONFLICTS.contains(&code.as_str()) => {
                vec![Conflict::of(ResourcePath::root(), &said)]
            }
            Err(error) => return Err(error),
        };
        let note = |(table, what): (String, String)| PreviewNote {
            path: super::super::sql::table_item(&table),
            what,
        };
        Ok(Preview {
            diff: DiffView::new(changes.changes).into(),
            conflicts,
            notes: changes.notes.into_iter().map(note).collect(),
            ..Preview::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        // What is deferred may write, so the number is known once that ran.
        let (xid, checked) = self.check(self.metadata.server.shared_by(request.promised))?;
        let shown = request.preview.released(request.on_conflict);
        // A client may have worked on since.
        let Changes { changes, turns, .. } = self.changes()?;
        if checked != turns || DiffView::new(changes) != *shown {
            return Err(worked_on());
        }
        let digests = match request.digests {
            true => self.digests(&shown.changes)?,
            false => Vec::new(),
        };
        if xid.is_some() {
            let server = &self.metadata.server;
            let password = super::location::password(server, &self.host.variables);
            keep_number(server, password.as_deref())?;
        }
        let prepares = self.metadata.prepares;
        let number = xid.as_deref().unwrap_or("0");
        let intent = HeldIntent {
            server: self.metadata.server.clone(),
            area: self.metadata.area.clone(),
            gid: prepares.then(|| format!("{}_{number}", self.gid)),
            xid,
            turns,
        };
        Ok(StagedCommit {
            intent: Intent(tree::stored(&intent)),
            digests,
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let savepoint = savepoint_of(request.to)?;
        match self.ask(&Request::Knows(savepoint.clone()), "find the checkpoint")? {
            Answer::Done => Ok(Intent(tree::stored(&RestoreIntent {
                area: self.metadata.area.clone(),
                savepoint,
            }))),
            _ => Err(no_checkpoint()),
        }
    }

    fn access(&self) -> Result<Access> {
        let HeldMetadata {
            area,
            inside,
            env,
            server,
            ..
        } = &self.metadata;
        let directory = area.as_path().join(CLIENTS_DIR);
        let own = [
            (env.as_str(), self.url(inside)),
            ("PGHOST", inside.clone()),
            ("PGPORT", PORT.to_string()),
            ("PGUSER", server.user.clone()),
            ("PGDATABASE", server.database.clone()),
        ];
        Ok(Access {
            mounts: vec![Mount {
                at: Location::from_bytes(inside.as_bytes()),
                view: View::ReadOnly(Location::from(directory.as_path())),
                area: None,
            }],
            env: own
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            cwd: None,
            url: Some(self.url(&directory.to_string_lossy())),
        })
    }
}
