//! A message exchange: what a client sends on its way to the server, and what comes back on its way to the client.

use std::io::ErrorKind::{Interrupted, WouldBlock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::super::connect::PgError;
use super::super::sql;
use super::super::wire;
use super::backend::Backend;
use super::client::{Answered, Client, Ended, GATHERED, Served, with_hint};

/// A message exchange on its way.
#[derive(Default)]
pub(super) struct Exchange {
    /// What is still to be sent to the server.
    pub(super) out: Vec<u8>,
    /// How many answers are not for the client.
    pub(super) hidden: usize,
    /// The server takes a copy in, or did.
    pub(super) copying: bool,
    /// The server is ready.
    pub(super) ready: bool,
    pub(super) answered: Answered,
    /// It is one of several messages that end with a `Sync`.
    extended: bool,
    /// The message was sent after which the server says that it is ready.
    pub(super) synced: bool,
    /// The client is looked at too, since it may send more.
    pub(super) listens: bool,
}

impl Exchange {
    pub(super) fn new(out: Vec<u8>, hidden: usize, extended: bool) -> Self {
        Self {
            out,
            hidden,
            extended,
            synced: !extended,
            ..Self::default()
        }
    }

    /// What is said where it stops in the middle: if only the client is gone, the rest can be run out.
    pub(super) fn broken(self, backend: &mut Backend, ended: Ended) -> Ended {
        if matches!(ended, Ended::Gone) {
            backend.unfinished = Some(self);
        }
        ended
    }

    /// Brings what a client left in the middle to its end.
    pub(super) fn run_out(mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        self.listens = false;
        if !self.synced {
            wire::put(&mut self.out, b'S', b"");
        }
        let mut told = false;
        while !self.ready {
            if self.copying && !told {
                wire::put(&mut self.out, b'f', b"the client is gone\0");
                // The one before was taken for a part of the copy.
                if self.extended {
                    wire::put(&mut self.out, b'S', b"");
                }
                told = true;
            }
            self.step(client, backend)?;
        }
        Ok(())
    }

    /// Sends and receives what can be without waiting for one of two that wait for each other.
    pub(super) fn step(&mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        self.receive(client, backend)?;
        if self.ready {
            return Ok(());
        }
        client.flush()?;
        let writes = match self.out.is_empty() && !backend.connection.link.is_unsent() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        let mut fds = vec![PollFd::new(&backend.connection.link, writes)];
        if (self.listens || self.copying) && !client.gone {
            fds.push(PollFd::new(&client.stream, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(lost(errno)),
        }
        let server = fds[0].revents();
        let speaks = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if server.contains(PollFlags::OUT) {
            match backend.connection.link.send_now(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => {}
                Err(error) => return Err(Ended::Lost(error.into())),
            }
        }
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
            if self.copying {
                self.pass_copy(client)?;
            }
        }
        Ok(())
    }

    /// Passes on what the server said.
    fn receive(&mut self, client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
        while !self.ready {
            let frame = backend.connection.incoming.next().map_err(PgError::from)?;
            let Some(frame) = frame else {
                return Ok(());
            };
            backend.connection.note(&frame);
            if self.hidden > 0 {
                match frame.kind {
                    b'Z' => self.hidden -= 1,
                    b'E' => return Err(Ended::Lost(PgError::said(&frame.body))),
                    _ => {}
                }
                continue;
            }
            match frame.kind {
                b'Z' => {
                    self.ready = true;
                    continue;
                }
                b'E' => {
                    self.answered.failed = true;
                    client.send(&with_hint(frame));
                    client.forget_parsing();
                    continue;
                }
                b'G' => {
                    self.copying = true;
                    client.send(&frame);
                    self.pass_copy(client)?;
                    continue;
                }
                b'C' if frame.body == b"PREPARE\0" => drop(client.parsing.pop_front()),
                b'C' => {
                    backend.deferrable |= sql::may_defer(&frame.body);
                    client.wrote |= !sql::only_looked(&frame.body);
                }
                b'S' => client.set.push((None, false)),
                b'1' => drop(client.parsing.pop_front()),
                b'3' if client.closing.pop_front() == Some(true) => continue,
                _ => {}
            }
            client.send(&frame);
            if client.out.len() > GATHERED {
                client.flush()?;
            }
        }
        Ok(())
    }

    /// Passes on what a client sends for a copy.
    fn pass_copy(&mut self, client: &mut Client<'_>) -> Served<()> {
        loop {
            match client.incoming.peek() {
                Some(b'd' | b'c' | b'f' | b'H') => {}
                Some(b'S') if self.extended => {}
                _ => return Ok(()),
            }
            match client.incoming.next() {
                Ok(Some(frame)) => frame.put(&mut self.out),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Ended::Gone),
            }
        }
    }
}

fn lost(errno: Errno) -> Ended {
    Ended::Lost(std::io::Error::from(errno).into())
}
