//! Clients of a clone, or of a database that nothing isolates: each has a connection of its own to the server, to that one database,
//! whatever it asks for. Everything is passed on as it comes, but, in a clone, for statements that concern more than the
//! database: the server itself refuses those.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::super::connect::{self, Connection, PgError, raise};
use super::super::reaching_out::reaches_out;
use super::super::wire::{self, Frame, Incoming};
use super::Holder;
use super::startup::check_named;

/// What to do with a statement that is refused.
const HINT: &str = "do it outside of the sandbox; a text that only looks like such a statement is sent as a parameter";

/// How much is kept for a side that does not read.
const KEPT: usize = 1 << 20;

/// How much is read at once: a whole record of TLS fits.
const CHUNK: usize = 64 * 1024;

/// Serves a client that said what it wants.
pub(super) fn serve(
    holder: &Holder,
    mut stream: UnixStream,
    incoming: Incoming,
    parameters: &BTreeMap<String, String>,
) {
    let (mut down, server) = match begin(holder, parameters) {
        Ok((server, welcome)) => (welcome, Some(server)),
        Err(refusal) => (wire_of(&refusal), None),
    };
    let Some(server) = server else {
        match stream.write_all(&down) {
            // It is told if it is still there.
            Ok(()) | Err(_) => return,
        }
    };
    // A clone has another name than the database that clients ask for.
    let isolated = holder.passes.as_ref() != Some(&holder.server.database);
    match pass(&mut stream, incoming, server, &mut down, isolated) {
        // Whichever side ended, the other sees that its connection is closed.
        Ok(()) | Err(_) => {}
    }
}

fn wire_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.put(&mut bytes);
    bytes
}

/// Connects for a client; with what it is told then.
fn begin(
    holder: &Holder,
    parameters: &BTreeMap<String, String>,
) -> Result<(Connection, Vec<u8>), Frame> {
    check_named(holder, parameters)?;
    let own = |(name, _): &(&str, &str)| !matches!(*name, "user" | "database");
    let wanted: Vec<(&str, &str)> = parameters
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(own)
        .filter(|(name, _)| !name.starts_with("_pq_."))
        .collect();
    let opened = Connection::open_for(&holder.server, holder.password.as_deref(), &wanted);
    let server = opened.map_err(|error: PgError| {
        let code = error.code.as_deref().unwrap_or("57P01");
        wire::error_frame("FATAL", code, &error.message, None)
    })?;
    let mut told = wire_of(&Frame::new(b'R', 0_i32.to_be_bytes().to_vec()));
    for (name, value) in &server.parameters {
        wire::parameter(name, value).put(&mut told);
    }
    let mut key = server.key.0.to_be_bytes().to_vec();
    key.extend(server.key.1.to_be_bytes());
    Frame::new(b'K', key).put(&mut told);
    Frame::new(b'Z', b"I".to_vec()).put(&mut told);
    Ok((server, told))
}

/// Passes on what either side says, until one of them ends. Neither waits for the other to read.
fn pass(
    client: &mut UnixStream,
    mut incoming: Incoming,
    mut server: Connection,
    down: &mut Vec<u8>,
    isolated: bool,
) -> std::io::Result<()> {
    let (mut up, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    loop {
        while let Some(frame) = incoming.next()? {
            let frame = if isolated { checked(frame) } else { frame };
            frame.put(&mut up);
        }
        let flag = |yes: bool, flag: PollFlags| if yes { flag } else { PollFlags::empty() };
        let unsent = !up.is_empty() || server.link.is_unsent();
        let wants_client =
            flag(up.len() < KEPT, PollFlags::IN) | flag(!down.is_empty(), PollFlags::OUT);
        let wants_server = flag(down.len() < KEPT, PollFlags::IN) | flag(unsent, PollFlags::OUT);
        let mut fds = [
            PollFd::new(&*client, wants_client),
            PollFd::new(&server.link, wants_server),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (of_client, of_server) = (fds[0].revents(), fds[1].revents());
        let ended = PollFlags::HUP | PollFlags::ERR;
        if of_server.intersects((PollFlags::IN | ended) & (wants_server | ended)) {
            match server.link.read(&mut chunk)? {
                0 => {
                    // Its last words are told.
                    return client.write_all(down);
                }
                count => down.extend_from_slice(&chunk[..count]),
            }
        }
        if of_server.contains(PollFlags::OUT) {
            match server.link.send_now(&up) {
                Ok(count) => drop(up.drain(..count)),
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if of_client.intersects(PollFlags::IN | ended) && !incoming.fill(client)? {
            return Ok(());
        }
        if of_client.contains(PollFlags::OUT) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&*client, down, flags).map_err(std::io::Error::from) {
                Ok(count) => drop(down.drain(..count)),
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_early(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A message as it is passed on: in the place of a statement that concerns more than the database, one that fails.
fn checked(frame: Frame) -> Frame {
    let (before, rest) = match frame.kind {
        b'Q' => (0, &frame.body[..]),
        b'P' => match wire::text(&frame.body) {
            Some((name, rest)) => (name.len() + 1, rest),
            None => return frame,
        },
        _ => return frame,
    };
    let Some((sql, after)) = wire::text(rest) else {
        return frame;
    };
    let Some(what) = reaches_out(sql) else {
        return frame;
    };
    let message = format!("{what} is not possible in a sandbox: it reaches beyond the database");
    let refusal = raise("0A000", &message, Some(HINT));
    let body = [
        &frame.body[..before],
        refusal.as_bytes(),
        b"\0".as_slice(),
        after,
    ];
    Frame::new(frame.kind, body.concat())
}

/// Cancels what a client has running: it knows the number and the secret of its connection from the server itself.
pub(super) fn cancel(holder: &Holder, body: &[u8]) {
    let word = |from: usize| {
        let bytes = body.get(from..from + 4);
        let bytes = bytes.and_then(|four| four.first_chunk::<4>());
        bytes.map_or(0, |four| i32::from_be_bytes(*four))
    };
    match connect::cancel(&holder.server, (word(0), word(4))) {
        // As with a server: who cancels is told nothing.
        Ok(()) | Err(_) => {}
    }
}
