//! A message exchange: what a client sends on its way to the server, and what comes back on its way to the client.

use std::io::ErrorKind::{Interrupted, WouldBlock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::super::super::error::{ENDED_INSIDE, OUT_OF_STEP};
use super::super::connect::{PgError, REFUSED};
use super::super::sql;
use super::super::wire::{self, Frame};
use super::backend::Backend;
use super::client::{Answered, Client, Ended, GATHERED, Served, Transaction};
use super::statements::{Closing, UNNAMED};

/// What the server answers to what takes away what another client left.
const LEFT: [&[u8]; 2] = [b"CLOSE CURSOR ALL\0", b"DISCARD SEQUENCES\0"];

/// What the server answers to what closes a savepoint.
const CLOSED: [&[u8]; 2] = [b"CLOSE CURSOR ALL\0", b"RELEASE\0"];

/// What the server answers to nothing that a client may send to it.
const ENDINGS: [&[u8]; 3] = [b"COMMIT\0", b"BEGIN\0", b"PREPARE TRANSACTION\0"];

/// No statement and no portal has a name that begins so.
pub(super) const NONE: &str = "escrow_none_";

/// No savepoint has this name: what is carried out here has a portal on the server that looks for it.
pub(super) const STAND_IN: &str = "escrow_none";

/// Whether a message belongs to a copy.
pub(super) fn is_of_copy(kind: u8) -> bool {
    matches!(kind, b'd' | b'c' | b'f' | b'H' | b'S')
}

fn out_of_step() -> Ended {
    Ended::Lost(PgError::link(OUT_OF_STEP))
}

/// How an exchange goes over the wire on both sides.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The client's query, or a call of a function, as it is.
    #[default]
    Query,
    /// One statement of a query, which the server is given as a prepared one: it takes one statement there and no more.
    Statement,
    /// Messages of the client that end with a `Sync`.
    Messages,
}

/// A message exchange on its way.
#[derive(Default)]
pub(super) struct Exchange {
    /// What is still to be sent to the server.
    pub(super) out: Vec<u8>,
    /// The answer to come is that to the savepoint, and not for the client.
    opening: bool,
    /// The release of the savepoint was sent too.
    releases: bool,
    /// The answer to come is that to the release.
    releasing: bool,
    /// How often the server will say that it is ready.
    awaited: usize,
    /// The server takes a copy in.
    pub(super) copying: bool,
    /// How many statements of the client were sent to be carried out, and not answered yet.
    pub(super) executes: usize,
    /// The portal of the last of them that may take a copy in.
    pub(super) portal: Vec<u8>,
    /// The last of them may take a copy in. Nothing more is sent until that is known: the server passes over a `Sync` in a copy.
    pub(super) may_copy: bool,
    /// The server is ready.
    pub(super) ready: bool,
    pub(super) answered: Answered,
    form: Form,
    /// The message was sent after which the server says that it is ready.
    pub(super) synced: bool,
    /// The client is looked at too, since it may send more.
    pub(super) listens: bool,
}

impl Exchange {
    /// Begins one, in the savepoint of the client, which is made with it where there is none.
    pub(super) fn new(client: &mut Client<'_>, form: Form) -> Self {
        let mut this = Self {
            opening: !client.open,
            awaited: 1,
            form,
            synced: form == Form::Query,
            ..Self::default()
        };
        if this.opening {
            client.holder.turns.opening();
            for left in client.left_by_others() {
                wire::put_statement(&mut this.out, left);
            }
            wire::put_statement(&mut this.out, "SAVEPOINT escrow_work");
        }
        client.open = true;
        if client.transaction == Transaction::None {
            client.transaction = Transaction::Implicit;
        }
        this
    }

    /// One in which there is nothing to wait for.
    pub(super) fn over() -> Self {
        Self {
            ready: true,
            ..Self::default()
        }
    }

    /// Lets the savepoint go with what was put, unless that fails.
    pub(super) fn release(&mut self, client: &mut Client<'_>) {
        if self.form != Form::Query {
            // The answer to this says where the client's answers end.
            wire::put(&mut self.out, b'C', &wire::close_body(NONE.as_bytes()));
            client.closing.push_back(Closing::Own);
        }
        if client.has_portals() {
            wire::put_statement(&mut self.out, "CLOSE ALL");
        }
        wire::put_statement(&mut self.out, "RELEASE SAVEPOINT escrow_work");
        self.releases = true;
        if self.form == Form::Query {
            wire::put(&mut self.out, b'S', b"");
            self.awaited += 1;
        }
    }

    /// Keeps what stopped in the middle: if only the client is gone, the rest can be run out.
    pub(super) fn unless_broken(self, backend: &mut Backend, run: Served<()>) -> Served<()> {
        if matches!(run, Err(Ended::Gone)) && !self.ready {
            backend.unfinished = Some(self);
        }
        run
    }

    /// Sends and receives until the server is ready.
    pub(super) fn run(&mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        while !self.ready {
            self.step(client, backend)?;
        }
        Ok(())
    }

    /// Brings what a client left in the middle to its end.
    pub(super) fn run_out(
        mut self,
        client: &mut Client<'_>,
        backend: &mut Backend,
    ) -> Served<Answered> {
        self.listens = false;
        while !self.ready {
            if std::mem::take(&mut self.copying) {
                wire::put(&mut self.out, b'f', b"the client is gone\0");
            }
            // The server would pass over one in a copy, and wait for another.
            if !self.synced && !self.awaits_copy() {
                wire::put(&mut self.out, b'S', b"");
                self.synced = true;
            }
            self.step(client, backend)?;
        }
        Ok(self.answered)
    }

    /// Sends and receives what can be without waiting for one of two that wait for each other.
    pub(super) fn step(&mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        let awaited = self.awaits_copy();
        self.receive(client, backend)?;
        // What the client sent meanwhile can go on.
        if self.ready || awaited && !self.awaits_copy() {
            return Ok(());
        }
        // The server waits for a copy that nobody sends any more.
        if client.gone && self.copying {
            return Ok(());
        }
        // Of the release alone it need not hear early.
        if !(self.releases && self.form == Form::Query && self.awaited == 1) {
            client.flush()?;
        }
        let link = &mut backend.connection.link;
        if !self.out.is_empty() || link.is_unsent() {
            match link.send_now(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => {}
                Err(error) => return Err(Ended::Lost(error.into())),
            }
        }
        let (server, speaks) = self.wait(client, backend)?;
        if server.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let connection = &mut backend.connection;
            match connection.incoming.fill(&mut connection.link) {
                Ok(true) => {}
                Ok(false) => {
                    self.receive(client, backend)?;
                    let text = "the server closed the connection";
                    return Err(Ended::Lost(PgError::link(text)));
                }
                Err(error) => return Err(Ended::Lost(error.into())),
            }
        }
        if speaks {
            match client.incoming.fill(&mut client.stream) {
                Ok(true) => {}
                Ok(false) | Err(_) => return Err(Ended::Gone),
            }
            self.pass_copy(client)?;
        }
        Ok(())
    }

    /// Waits until the server can be read from or written to, or the client says something. One that is gone is always noticed: what it asked for
    /// may take for ever, and others wait.
    fn wait(&self, client: &Client<'_>, backend: &Backend) -> Served<(PollFlags, bool)> {
        let link = &backend.connection.link;
        let unsent = !self.out.is_empty() || link.is_unsent();
        let listens = (self.listens || self.copying) && !self.awaits_copy();
        let writes = match unsent {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut fds = vec![PollFd::new(link, writes)];
        if !client.gone {
            let speaks = match listens {
                true => PollFlags::IN,
                false => PollFlags::empty(),
            };
            fds.push(PollFd::new(&client.stream, speaks));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Ended::Lost(std::io::Error::from(errno).into())),
        }
        let server = fds[0].revents();
        let said = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
        // What the server has said already goes first.
        if !listens && server.is_empty() && said.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Err(Ended::Gone);
        }
        Ok((server, listens && !said.is_empty()))
    }

    /// Passes on what the server said.
    fn receive(&mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        while !self.ready {
            let frame = backend.connection.incoming.next().map_err(PgError::from)?;
            let Some(frame) = frame else {
                return Ok(());
            };
            backend.connection.note(&frame);
            match frame.kind {
                b'E' if self.opening => {
                    let error = PgError::said(&frame.body);
                    let held = !error.is("25P01");
                    return Err(Ended::Lost(match held {
                        true => error,
                        false => PgError::link(ENDED_INSIDE),
                    }));
                }
                b'1' | b'2' if self.opening => continue,
                b'C' if self.opening && LEFT.contains(&&frame.body[..]) => continue,
                b'C' if self.opening && frame.body == b"SAVEPOINT\0" => {
                    self.opening = false;
                    continue;
                }
                b'1' | b'2' | b'3' if self.releasing => continue,
                // A client that sent a query hears of its results alone.
                b'1' | b'2' | b'n' if self.form == Form::Statement => continue,
                b'C' if self.releasing && CLOSED.contains(&&frame.body[..]) => continue,
                b'C' if self.opening || self.releasing => return Err(out_of_step()),
                b'Z' if backend.connection.status == b'I' => {
                    return Err(Ended::Lost(PgError::link(ENDED_INSIDE)));
                }
                b'Z' => {
                    self.awaited = self.awaited.saturating_sub(1);
                    self.ready = self.awaited == 0;
                    // Nothing was said before its question was sent; only what was left of a copy that failed is not asked for any more.
                    let unsent = self.form != Form::Query && !self.out.is_empty();
                    if self.ready && (unsent || !self.synced || self.opening) {
                        return Err(out_of_step());
                    }
                    self.releasing = !self.ready;
                    self.answered.released = self.releases && !self.answered.failed;
                    continue;
                }
                // The statement failed, and so the release.
                b'E' if self.answered.failed => continue,
                b'E' => {
                    (self.answered.failed, self.copying) = (true, false);
                    let frame = self.as_named(&frame, client);
                    client.send(&with_hint(frame));
                    client.forget_parsing();
                    continue;
                }
                // It comes of a statement that copies, and nothing was sent after that.
                b'G' if self.releases || self.form != Form::Query && !self.may_copy => {
                    return Err(out_of_step());
                }
                b'G' => {
                    (self.copying, self.may_copy) = (true, false);
                    client.send(&frame);
                    self.pass_copy(client)?;
                    continue;
                }
                b'I' | b's' => self.executes = self.executes.saturating_sub(1),
                // What ends and begins the held transaction in one is not told by its state.
                b'C' if ENDINGS.contains(&&frame.body[..]) => {
                    return Err(Ended::Lost(PgError::link(ENDED_INSIDE)));
                }
                b'C' => {
                    self.executes = self.executes.saturating_sub(1);
                    backend.deferrable |= sql::may_defer(&frame.body);
                }
                b'S' => client.set.push((None, false)),
                b'1' => client.parsed(),
                b'2' => client.bound(),
                b'3' => match client.closing.pop_front() {
                    Some(Closing::Own) => {
                        self.releasing = self.releases && client.closing.is_empty();
                        continue;
                    }
                    Some(Closing::Client | Closing::Statement(..)) => {}
                    None => return Err(out_of_step()),
                },
                _ => {}
            }
            // Of the last statement of a query it is known only when its transaction has ended.
            match frame.kind == b'C' && self.form != Form::Messages {
                true => client.complete_later(frame),
                false => client.send(&frame),
            }
            if client.out.len() > GATHERED {
                client.flush()?;
            }
        }
        Ok(())
    }

    /// Whether it is not known yet if the server takes a copy in.
    pub(super) fn awaits_copy(&self) -> bool {
        self.may_copy && self.executes > 0 && !self.answered.failed && !self.ready
    }

    /// Passes on what a client sends for a copy. Messages of the extended protocol come by themselves.
    fn pass_copy(&mut self, client: &mut Client<'_>) -> Served<()> {
        while self.copying && self.form != Form::Messages && !client.gone {
            if client.incoming.peek().is_some_and(|kind| !is_of_copy(kind)) {
                self.break_off();
                return Ok(());
            }
            match client.next_buffered()? {
                Some(frame) => self.copied(&frame),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends on one message of a copy.
    pub(super) fn copied(&mut self, frame: &Frame) {
        match frame.kind {
            // The server passes over these in a copy.
            b'H' | b'S' => return,
            b'c' | b'f' => self.copying = false,
            _ => {}
        }
        frame.put(&mut self.out);
    }

    /// The same error, about the names that the client gave its statements, and places in the text that it sent: those are known of a query.
    fn as_named(&self, frame: &Frame, client: &Client<'_>) -> Frame {
        let error = PgError::said(&frame.body);
        let code = error.code.as_deref().unwrap_or_default();
        let refused = error.fields.contains(&(b's', REFUSED.to_owned()));
        // It was carried out here before, or an error took it away.
        let spent = code == "3B001" && error.message.contains(STAND_IN);
        let renamed = client
            .renamed
            .as_ref()
            .filter(|_| self.form != Form::Messages);
        let named = renamed.is_some() || matches!(code, "08P01" | "26000" | "34000" | "42P05");
        let body = wire::told_fields(&frame.body, |letter, text| {
            let own = match letter {
                b'W' | b's' if refused => return None,
                b'C' if spent => "55000".to_owned(),
                b'M' if spent => {
                    let portal = String::from_utf8_lossy(&self.portal);
                    format!("portal \"{portal}\" cannot be run")
                }
                b'M' if named => as_client_named(text, client, code == "26000"),
                b'P' if self.form != Form::Messages => {
                    let longer = renamed.map_or(0, |one| one.longer);
                    let place = String::from_utf8_lossy(text).parse::<isize>();
                    (place.unwrap_or_default() + client.before - longer)
                        .max(1)
                        .to_string()
                }
                _ => return Some(text.to_vec()),
            };
            Some(own.into_bytes())
        });
        Frame::new(b'E', body)
    }

    /// Ends a copy in which something else was said: the server would end the connection.
    pub(super) fn break_off(&mut self) {
        wire::put(
            &mut self.out,
            b'f',
            b"another message came during the copy\0",
        );
        self.copying = false;
    }
}

/// What to do where the server refuses something in a transaction.
const HINT: &str = "a sandbox is one held transaction; do this outside of it, on a connection of your own to the original";

/// The same text, with the names that the client gave its statements; where one has no name, the server may say that.
fn as_client_named(text: &[u8], client: &Client<'_>, says_unnamed: bool) -> String {
    let mut text = String::from_utf8_lossy(text).replace(NONE, "");
    if let Some(one) = &client.renamed {
        text = text.replace(&format!("\"{}\"", one.server), &format!("\"{}\"", one.name));
    }
    for (name, known) in client
        .statements
        .iter()
        .filter(|(name, _)| *name != UNNAMED)
    {
        let name = String::from_utf8_lossy(name);
        text = text.replace(&format!("\"{}\"", known.name), &format!("\"{name}\""));
    }
    let unnamed = client.server_name(b"");
    let text = text.replace(&format!("\"{unnamed}\""), "\"\"");
    // One that is being closed.
    let text = text.replace(&client.prefix(), "");
    match says_unnamed {
        true => text.replace("prepared statement \"\"", "unnamed prepared statement"),
        false => text,
    }
}

/// The same error, with what to do where the server does not say it.
pub(super) fn with_hint(frame: Frame) -> Frame {
    let mut fields = wire::fields(&frame.body);
    let is = |letter: u8, value: &str| {
        fields
            .iter()
            .any(|(one, text)| *one == letter && text == value)
    };
    let hinted = fields.iter().any(|(letter, _)| *letter == b'H');
    if hinted || !is(b'C', "25001") {
        return frame;
    }
    fields.push((b'H', HINT.to_owned()));
    Frame::new(b'E', wire::fields_body(&fields))
}
