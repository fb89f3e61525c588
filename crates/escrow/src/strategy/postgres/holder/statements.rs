//! What a client prepared, and the names of it: on the server each begins with the number of the client, in messages and in SQL, so two clients
//! never meet. What is known here may be more than the server has, never less: it is the server that says what there is.

use std::io::Write;

use super::super::connect::{PgError, raise};
use super::super::lexer::is_certain;
use super::super::sql::{self, Statement};
use super::super::wire;
use super::backend::Backend;
use super::client::{Client, Served, Transaction};

/// What the statement without a name is also noted under, until the client goes: no name has a zero.
pub(super) const UNNAMED: &[u8] = b"\0";

/// The longest name that a server takes; it cuts longer ones.
const LONGEST_NAME: usize = 63;

/// What a client prepared under a name of its own.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    /// The name on the server.
    pub(super) name: String,
    pub(super) kind: Statement,
}

/// A name that stands for another one in the text that was sent.
pub(super) struct Renamed {
    pub(super) name: String,
    pub(super) server: String,
    /// So much longer the text is.
    pub(super) longer: isize,
}

/// Something that the server was asked to close.
pub(super) enum Closing {
    /// A statement of ours, of which the client does not hear.
    Own,
    /// By the client: a portal, or a statement that is not known.
    Client,
    /// By the client: a statement of this name, and whether it is still being prepared.
    Statement(Vec<u8>, Prepared, bool),
}

/// A portal that the server was asked to replace or to close.
pub(super) struct ReplacedPortal {
    name: Vec<u8>,
    /// Whether another one takes its place, which the server confirms.
    binds: bool,
    /// Whether it may have copied.
    copied: bool,
    /// Whether the client had a portal without a name.
    unnamed: bool,
}

impl Client<'_> {
    /// What every name of a statement that this client prepared begins with on the server.
    pub(super) fn prefix(&self) -> String {
        format!("{}{}_", sql::OWN, self.id)
    }

    /// The name of a statement on the server. It is plain in every encoding: what closes it is sent in that of another client. No name in SQL
    /// becomes that of the statement without one.
    pub(super) fn server_name(&self, name: &[u8]) -> String {
        let mut own = self.prefix();
        let plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        match std::str::from_utf8(name).ok() {
            Some("") => drop(own.pop()),
            Some(name)
                if name.bytes().all(|byte| plain(&byte))
                    && own.len() + name.len() <= LONGEST_NAME =>
            {
                own.push_str(name);
            }
            _ => own.push_str(&blake3::hash(name).to_hex()[..32]),
        }
        own
    }

    /// What is sent to the server instead of a statement, if it is not the statement itself.
    pub(super) fn rewritten(&mut self, text: &[u8], kind: &Statement) -> Option<Vec<u8>> {
        let explicit = self.transaction == Transaction::Explicit;
        self.renamed = None;
        match kind {
            // The server itself says it, so that everything that follows is as after any error.
            Statement::Refused(code, message, hint) => {
                Some(raise(code, message, Some(hint)).into_bytes())
            }
            Statement::InTransaction(sql::CURSOR) if self.several => {
                self.portal_named = true;
                None
            }
            Statement::InTransaction(sql::LOCK) if self.several => None,
            Statement::InTransaction(sql::CONSTRAINTS) => None,
            Statement::InTransaction(what) if !explicit => {
                let text = format!("{what} can only be used in transaction blocks");
                Some(raise("25P01", &text, None).into_bytes())
            }
            // PREPARE takes nothing else. A message of the protocol does, and EXECUTE of that ends servers.
            Statement::Execute(one)
                if self
                    .statements
                    .get(one.name.as_bytes())
                    .is_some_and(|known| known.kind != Statement::Rows) =>
            {
                let text =
                    "EXECUTE of what neither reads nor writes rows is not possible in a sandbox";
                Some(raise("0A000", text, Some("send the statement itself")).into_bytes())
            }
            Statement::Prepare(one)
            | Statement::Execute(one)
            | Statement::Deallocate(Some(one)) => {
                // A server takes no empty name. Where a text can be read in several ways, only what comes first in it is certain.
                if one.name.is_empty() || one.deep && !is_certain(text) {
                    return None;
                }
                let server = self.server_name(one.name.as_bytes());
                let (before, after) = (&text[..one.place.start], &text[one.place.end..]);
                let own = [before, server.as_bytes(), after].concat();
                let was = String::from_utf8_lossy(&text[one.place.clone()])
                    .chars()
                    .count();
                self.renamed = Some(Renamed {
                    longer: server.len() as isize - was as isize,
                    name: one.name.clone(),
                    server,
                });
                Some(own)
            }
            // What is not kept waiting needs no limit.
            _ if kind.is_timeout() => Some(b"SET escrow.timeout TO ''".to_vec()),
            // What is held gives at least as much isolation.
            Statement::SetTransaction(modes) if !modes.serializable => {
                let mut text = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ".to_owned();
                text.push_str(match modes.read_only {
                    Some(true) => ", READ ONLY",
                    Some(false) => ", READ WRITE",
                    None => "",
                });
                Some(text.into_bytes())
            }
            _ => None,
        }
    }

    /// Notes what outlives a statement: a setting, or what it prepares, which goes with the client.
    pub(super) fn note(&mut self, kind: &Statement) {
        self.odd |= *kind != Statement::Rows;
        match kind {
            Statement::Setting { local, name } => self.set.push((name.clone(), *local)),
            // Where the server refuses it, it is closed all the same when the client goes.
            Statement::Prepare(one) => {
                let prepared = self.prepared(one.name.as_bytes(), Statement::Rows);
                self.statements
                    .entry(one.name.clone().into_bytes())
                    .or_insert(prepared);
            }
            // Whatever its functions set.
            Statement::Execute(_) => self.set.push((None, false)),
            _ => {}
        }
    }

    pub(super) fn prepared(&self, name: &[u8], kind: Statement) -> Prepared {
        let name = self.server_name(name);
        Prepared { name, kind }
    }

    /// Forgets what a portal carries out, since another one takes its place or it is closed: unless that fails.
    pub(super) fn replace_portal(&mut self, portal: &[u8], binds: bool) {
        let copied = self.portals.remove(portal).is_some();
        self.replaced.push_back(ReplacedPortal {
            name: portal.to_vec(),
            binds,
            copied,
            unnamed: self.portal_unnamed,
        });
    }

    /// Notes that the server made the next portal: an error does not bring back what was in its place, nor what was closed before.
    pub(super) fn bound(&mut self) {
        let confirmed = self.replaced.iter().position(|one| one.binds);
        self.replaced
            .drain(..confirmed.map_or(0, |place| place + 1));
    }

    /// A query takes the statement without a name with it, and one that is not empty the portal.
    pub(super) fn forget_unnamed(&mut self, portal: bool) {
        self.statements.remove(b"".as_slice());
        if portal {
            self.portals.remove(b"".as_slice());
            self.portal_unnamed = false;
        }
    }

    /// Forgets what the client prepared, and is not to stay.
    pub(super) fn forget_statements(
        &mut self,
        backend: &mut Backend,
        stays: impl Fn(&[u8]) -> bool,
    ) -> Served<()> {
        let mut out = Vec::new();
        self.statements.retain(|name, one| {
            let stays = stays(name);
            if !stays {
                wire::put(&mut out, b'C', &wire::close_body(one.name.as_bytes()));
            }
            stays
        });
        if out.is_empty() {
            return Ok(());
        }
        wire::put(&mut out, b'S', b"");
        backend
            .connection
            .link
            .write_all(&out)
            .map_err(PgError::from)?;
        loop {
            let frame = backend.connection.next()?;
            match frame.kind {
                b'Z' => break,
                // Outside of every savepoint.
                b'E' => return Err(PgError::said(&frame.body).into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// After an error nothing of what was being prepared is there, everything that was being closed still is, and no portal can be
    /// carried out: of those that begin or end a transaction the server says it.
    pub(super) fn forget_parsing(&mut self) {
        for kind in self.portals.values_mut().filter(|kind| kind.is_control()) {
            *kind = Statement::Other;
        }
        // The server may still have those before, which may copy.
        if let Some(first) = self.replaced.front() {
            // One that could not be made is not the client's: the server may have one of ours, or one that a query left when it failed, and
            // carrying that out ends servers.
            self.portal_unnamed = first.unnamed;
        }
        for one in self.replaced.drain(..).filter(|one| one.copied) {
            self.portals.entry(one.name).or_insert(Statement::Other);
        }
        for name in self.parsing.drain(..).flatten() {
            self.statements.remove(&name);
        }
        // The server may still have the one before.
        if let Some(unnamed) = self.statements.get_mut(b"".as_slice()) {
            unnamed.kind = Statement::Other;
        }
        for (name, known) in self.deallocated.drain(..) {
            self.statements.entry(name).or_insert(known);
        }
        for closing in self.closing.drain(..) {
            if let Closing::Statement(name, known, false) = closing {
                self.statements.entry(name).or_insert(known);
            }
        }
    }

    /// Notes that the server prepared the next of what is being prepared: an error takes it away no more, also where it is to be closed.
    pub(super) fn parsed(&mut self) {
        let parsed = self.parsing.pop_front().flatten();
        let closing = self.closing.iter_mut().find_map(|one| match one {
            Closing::Statement(name, _, parsing) if Some(&*name) == parsed.as_ref() => {
                Some(parsing)
            }
            _ => None,
        });
        if let Some(parsing) = closing {
            *parsing = false;
        }
    }
}
