//! Messages of the extended protocol: prepared statements get names that no other client has, and what begins or ends a
//! transaction is carried out here. Everything up to a `Sync` is one exchange.

use std::io::Write;

use super::super::connect::PgError;
use super::super::lexer::Reading;
use super::super::sql::{self, Statement};
use super::super::wire::{self, Frame};
use super::backend::Backend;
use super::client::{Answered, Client, Ended, Served, Transaction};
use super::exchange::{Exchange, Form, NONE, STAND_IN, is_of_copy};
use super::statements::{Closing, UNNAMED};

/// The savepoint in which a text is read that is carried out in parts.
const READ: &str = "escrow_read";

/// The function of the server that says that a text has several statements, once it has read all of it.
const SEVERAL: &str = "exec_parse_message";

/// What is prepared on the server instead of what is carried out here: it has no result, and fails where it is carried out.
fn stand_in(kind: &Statement) -> Vec<u8> {
    let what = match kind {
        // The server takes it also in a transaction that failed.
        Statement::Commit { .. } | Statement::Rollback { .. } => "ROLLBACK TO",
        _ => "RELEASE",
    };
    format!("{what} SAVEPOINT {STAND_IN}").into_bytes()
}

/// The portal that a message means; one that the server does not have, where the client has none without a name.
fn portal_of<'n>(client: &Client<'_>, portal: &'n [u8]) -> &'n [u8] {
    match portal.is_empty() && !client.portal_unnamed {
        true => NONE.as_bytes(),
        false => portal,
    }
}

/// Messages that are not processed further while the server has so much to take.
const ENOUGH: usize = 1 << 20;

/// What to do after a message.
enum Next {
    Go,
    /// The client waits for the answer.
    End,
    /// This is to be carried out here.
    Control(Statement),
    /// It is a message of its own, after which no `Sync` comes.
    Simple(Frame),
}

/// Carries out messages up to a `Sync`, beginning with `first`.
pub(super) fn exchange(client: &mut Client<'_>, backend: &mut Backend, first: Frame) -> Served<()> {
    let mut exchange = Exchange::over();
    let run = messages(client, backend, &mut exchange, first);
    exchange.unless_broken(backend, run)
}

/// Lets the server read a text that is carried out in parts, and do no more: of one that it cannot read nothing is carried out.
pub(super) fn read(
    client: &mut Client<'_>,
    backend: &mut Backend,
    text: &[u8],
) -> Served<Answered> {
    client.begin_work(backend)?;
    let failed = backend.connection.status == b'E';
    let mut out = Vec::new();
    if !failed {
        wire::put_statement(&mut out, &format!("SAVEPOINT {READ}"));
    }
    wire::put_parse(&mut out, text);
    wire::put(&mut out, b'S', b"");
    let connection = &mut backend.connection;
    connection.link.write_all(&out).map_err(PgError::from)?;
    let mut answered = Answered::default();
    loop {
        let frame = connection.next()?;
        match frame.kind {
            b'Z' => break,
            b'E' if !wire::fields(&frame.body).contains(&(b'R', SEVERAL.to_owned())) => {
                answered.failed = true;
                client.send(&frame);
            }
            _ => {}
        }
    }
    match (answered.failed, failed) {
        (true, _) => client.forget_parsing(),
        (false, true) => {}
        (false, false) => connection.take_back(READ)?,
    }
    Ok(answered)
}

/// Carries out one statement of a query as a prepared one: a text in which the server reads several is refused by it, and nothing in it is
/// carried out. After its end nothing more comes where it is the `last` one.
pub(super) fn statement(
    client: &mut Client<'_>,
    backend: &mut Backend,
    text: &[u8],
    copies: bool,
    last: bool,
) -> Served<Answered> {
    let mut exchange = Exchange::new(client, Form::Statement);
    wire::put_parse(&mut exchange.out, text);
    wire::put_described(&mut exchange.out);
    (exchange.executes, exchange.may_copy) = (1, copies);
    let run = carried_out(client, backend, &mut exchange, last);
    let answered = exchange.answered;
    exchange.unless_broken(backend, run)?;
    Ok(answered)
}

fn carried_out(
    client: &mut Client<'_>,
    backend: &mut Backend,
    exchange: &mut Exchange,
    last: bool,
) -> Served<()> {
    if exchange.may_copy {
        // The server passes over a `Sync` in a copy.
        wire::put(&mut exchange.out, b'H', b"");
        while exchange.awaits_copy() || exchange.copying {
            exchange.step(client, backend)?;
        }
    } else if last && client.ends_with_it(backend) {
        exchange.release(client);
    }
    finish(client, backend, exchange)
}

fn messages(
    client: &mut Client<'_>,
    backend: &mut Backend,
    exchange: &mut Exchange,
    first: Frame,
) -> Served<()> {
    let mut next = Some(first);
    loop {
        if let Some(frame) = next.take() {
            // After an error the server passes over everything up to the `Sync`.
            if exchange.answered.failed && !matches!(frame.kind, b'S' | b'Q' | b'F' | b'X') {
                next = client.next_buffered()?;
                continue;
            }
            if exchange.ready && !matches!(frame.kind, b'S' | b'Q' | b'F') {
                *exchange = Exchange::new(client, Form::Messages);
                exchange.listens = true;
            }
            match forward(client, exchange, frame)? {
                Next::Go => {}
                Next::End => {
                    if !exchange.ready && client.ends_with_it(backend) {
                        exchange.release(client);
                    }
                    finish(client, backend, exchange)?;
                    return client.end_exchange(backend, exchange.answered);
                }
                Next::Simple(frame) => {
                    finish(client, backend, exchange)?;
                    return match exchange.answered.failed {
                        true => skip(client, backend),
                        false => client.simple_message(backend, &frame),
                    };
                }
                Next::Control(control) => {
                    if !carry_out(client, backend, exchange, &control)? {
                        return skip(client, backend);
                    }
                }
            }
        } else if exchange.ready {
            client.flush()?;
            next = Some(client.next()?.ok_or(Ended::Gone)?);
            continue;
        } else {
            exchange.step(client, backend)?;
        }
        if exchange.out.len() < ENOUGH && !exchange.awaits_copy() {
            next = client.next_buffered()?;
        }
    }
}

/// Waits until the server is ready.
fn finish(client: &mut Client<'_>, backend: &mut Backend, exchange: &mut Exchange) -> Served<()> {
    if !exchange.ready {
        wire::put(&mut exchange.out, b'S', b"");
        (exchange.synced, exchange.listens) = (true, false);
    }
    exchange.run(client, backend)
}

/// Carries out what is not for the server, once everything before it is done. `false`: something failed, and the rest of
/// the exchange is passed over. What follows before the `Sync` is another transaction of the exchange.
fn carry_out(
    client: &mut Client<'_>,
    backend: &mut Backend,
    exchange: &mut Exchange,
    control: &Statement,
) -> Served<bool> {
    let commits = matches!(control, Statement::Commit { chain: false });
    if commits && client.transaction == Transaction::Explicit && client.may_release(backend) {
        exchange.release(client);
    }
    finish(client, backend, exchange)?;
    let answered = std::mem::replace(exchange, Exchange::over()).answered;
    if answered.failed {
        return Ok(false);
    }
    if answered.released {
        client.released(backend)?;
        client.complete("COMMIT");
        return Ok(true);
    }
    Ok(!client.control(backend, control)?.failed)
}

/// Passes over everything up to the `Sync`, after an error.
fn skip(client: &mut Client<'_>, backend: &mut Backend) -> Served<()> {
    client.flush()?;
    loop {
        match client.next()? {
            Some(frame) if frame.kind == b'S' => break,
            Some(_) => {}
            None => return Err(Ended::Gone),
        }
    }
    let failed = Answered {
        failed: true,
        released: false,
    };
    client.end_exchange(backend, failed)
}

/// Sends one message on, with the names that the server knows.
fn forward(client: &mut Client<'_>, exchange: &mut Exchange, frame: Frame) -> Served<Next> {
    if exchange.copying && is_of_copy(frame.kind) {
        exchange.copied(&frame);
        return Ok(Next::Go);
    }
    if exchange.copying {
        exchange.break_off();
    }
    let out = &mut exchange.out;
    let body = &frame.body[..];
    let malformed = || Ended::Gone;
    match frame.kind {
        b'S' => return Ok(Next::End),
        b'P' => {
            let (name, rest) = wire::text(body).ok_or_else(malformed)?;
            let (text, types) = wire::text(rest).ok_or_else(malformed)?;
            parse(client, out, name, text, types);
        }
        b'B' => {
            let (portal, rest) = wire::text(body).ok_or_else(malformed)?;
            let (name, rest) = wire::text(rest).ok_or_else(malformed)?;
            client.replace_portal(portal, true);
            let server = name_of(client, name);
            match client.statements.get(name).map(|known| known.kind.clone()) {
                Some(kind) if kind.is_control() => {
                    drop(client.portals.insert(portal.to_vec(), kind));
                }
                Some(kind) => {
                    client.note(&kind);
                    if kind != Statement::Rows {
                        client.portals.insert(portal.to_vec(), kind);
                    }
                }
                None => {}
            }
            match portal.is_empty() {
                true => client.portal_unnamed = true,
                false => client.portal_named = true,
            }
            let mut new = portal.to_vec();
            new.push(0);
            new.extend(server);
            new.push(0);
            new.extend_from_slice(rest);
            wire::put(out, b'B', &new);
        }
        b'D' | b'C' if body.first() == Some(&b'S') => {
            let (name, _) = wire::text(&body[1..]).ok_or_else(malformed)?;
            wire::put(out, frame.kind, &wire::close_body(&name_of(client, name)));
            if frame.kind == b'C' {
                let known = client.statements.remove_entry(name);
                client.closing.push_back(match known {
                    Some((name, known)) => {
                        let parsing = client.parsing.iter().flatten().any(|one| *one == name);
                        Closing::Statement(name, known, parsing)
                    }
                    None => Closing::Client,
                });
            }
        }
        b'D' | b'C' if body.first() == Some(&b'P') => {
            let (portal, _) = wire::text(&body[1..]).ok_or_else(malformed)?;
            wire::put(
                out,
                frame.kind,
                &[b"P", portal_of(client, portal), b"\0"].concat(),
            );
            if frame.kind == b'C' {
                client.replace_portal(portal, false);
                client.portal_unnamed &= !portal.is_empty();
                client.closing.push_back(Closing::Client);
            }
        }
        b'E' => {
            let (portal, rest) = wire::text(body).ok_or_else(malformed)?;
            let known = client.portals.get_mut(portal);
            if let Some(control) = known.filter(|kind| kind.is_control()) {
                // The second time the server fails.
                let control = std::mem::replace(control, Statement::Other);
                return Ok(Next::Control(control));
            }
            if let Some(Statement::Deallocate(Some(one))) = client.portals.get(portal)
                && let Some((name, mut known)) = client.statements.remove_entry(one.name.as_bytes())
            {
                // If it is not done, it is what it was; if it is, another one may have its name.
                if known.kind != Statement::Rows {
                    known.kind = Statement::Other;
                }
                client.deallocated.push((name, known));
            }
            // Whatever does not certainly read or write rows.
            let copies = client.portals.contains_key(portal);
            wire::put(
                out,
                b'E',
                &[portal_of(client, portal), b"\0", rest].concat(),
            );
            exchange.executes += 1;
            exchange.may_copy = copies;
            if copies {
                exchange.portal = portal.to_vec();
                wire::put(out, b'H', b"");
            }
        }
        b'H' | b'd' | b'c' | b'f' => frame.put(out),
        b'X' => return Err(Ended::Gone),
        // It ends an exchange that has no `Sync`: asyncpg prepares so, and copies then.
        b'Q' | b'F' => return Ok(Next::Simple(frame)),
        _ => return Err(Ended::Gone),
    }
    Ok(Next::Go)
}

/// The name of a statement on the server; one that it does not have, for one that the client does not have.
fn name_of(client: &Client<'_>, name: &[u8]) -> Vec<u8> {
    match client.statements.get(name) {
        Some(known) => known.name.clone().into_bytes(),
        None => [NONE.as_bytes(), name].concat(),
    }
}

fn parse(client: &mut Client<'_>, out: &mut Vec<u8>, name: &[u8], text: &[u8], types: &[u8]) {
    let mut parts = sql::statements(text, Reading::USUAL);
    let (part, kind) = match parts.is_empty() {
        true => (text, Statement::Other),
        false => parts.remove(0),
    };
    // Several are the server's to refuse. It may read one where several are read here: what that begins with counts.
    client.renamed = None;
    let several = !parts.is_empty() && !kind.is_plain();
    let text = match (several, kind.is_control()) {
        (true, _) => b"SELECT; SELECT".to_vec(),
        (_, true) => stand_in(&kind),
        _ => {
            let own = client.rewritten(part, &kind);
            own.unwrap_or_else(|| text.to_vec())
        }
    };
    let server = client.server_name(name);
    let fresh = !client.statements.contains_key(name);
    if name.is_empty() {
        // It replaces the one before. Whatever becomes of it, it is closed when the client goes.
        wire::put(out, b'C', &wire::close_body(server.as_bytes()));
        client.closing.push_back(Closing::Own);
        let kept = client.prepared(name, Statement::Other);
        client.statements.insert(UNNAMED.to_vec(), kept);
    }
    match client.statements.get_mut(name).filter(|_| !name.is_empty()) {
        // The server refuses it, unless the one that is known here is gone there: then it may copy.
        Some(known) if known.kind == Statement::Rows && kind != Statement::Rows => {
            known.kind = Statement::Other;
        }
        Some(_) => {}
        None => {
            let prepared = client.prepared(name, kind);
            client.statements.insert(name.to_vec(), prepared);
        }
    }
    // Of one that is there already an error takes nothing away.
    client.parsing.push_back(fresh.then(|| name.to_vec()));
    let mut body = server.into_bytes();
    body.push(0);
    body.extend_from_slice(&text);
    body.push(0);
    body.extend_from_slice(types);
    wire::put(out, b'P', &body);
}
