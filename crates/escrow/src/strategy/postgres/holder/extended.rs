//! Messages of the extended protocol: prepared statements get names that no other client has, and what begins or ends a
//! transaction is carried out here. Everything up to a `Sync` is one exchange.

use super::super::lexer::Reading;
use super::super::sql::{self, Statement};
use super::super::wire::{self, Frame};
use super::backend::Backend;
use super::client::{Answered, Client, Closing, Ended, Prepared, Served, Transaction};
use super::exchange::{Exchange, Form, is_of_copy};

/// What is prepared on the server instead of what is carried out here: it has no result, and the server takes it also in a
/// transaction that failed. It is never carried out.
const STAND_IN: &[u8] = b"ROLLBACK TO SAVEPOINT escrow_none";

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
            client.portals.remove(portal);
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
            client.portal_named |= !portal.is_empty();
            let mut new = portal.to_vec();
            new.push(0);
            new.extend(name_of(client, name));
            new.push(0);
            new.extend_from_slice(rest);
            wire::put(out, b'B', &new);
        }
        b'D' | b'C' if body.first() == Some(&b'S') => {
            let (name, _) = wire::text(&body[1..]).ok_or_else(malformed)?;
            wire::put(out, frame.kind, &wire::close_body(&name_of(client, name)));
            if frame.kind == b'C' {
                let known = client.statements.remove_entry(name);
                client.closing.push_back(Closing::Client(known));
            }
        }
        b'C' => {
            client.closing.push_back(Closing::Client(None));
            frame.put(out);
        }
        b'E' => {
            let (portal, _) = wire::text(body).ok_or_else(malformed)?;
            if let Some(control) = client.portals.get(portal).filter(|kind| kind.is_control()) {
                return Ok(Next::Control(control.clone()));
            }
            // Whatever does not certainly read or write rows.
            let copies = client.portals.contains_key(portal);
            frame.put(out);
            exchange.executes += 1;
            exchange.may_copy = copies;
            if copies {
                wire::put(out, b'H', b"");
            }
        }
        b'D' | b'H' | b'd' | b'c' | b'f' => frame.put(out),
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
        Some(known) => known.name.clone(),
        None => format!("escrow_{}_none", client.id).into_bytes(),
    }
}

fn parse(client: &mut Client<'_>, out: &mut Vec<u8>, name: &[u8], text: &[u8], types: &[u8]) {
    let mut parts = sql::statements(text, Reading::USUAL);
    let kind = match parts.is_empty() {
        true => Statement::Other,
        false => parts.remove(0).1,
    };
    // Several are the server's to refuse. It may read one where several are read here: what that begins with counts.
    let kind = match parts.is_empty() || kind.is_plain() {
        true => kind,
        false => {
            let text = "cannot insert multiple commands into a prepared statement".to_owned();
            Statement::Refused("42601", text, "send each statement by itself")
        }
    };
    let text = match kind.is_control() {
        true => STAND_IN.to_vec(),
        false => client.rewritten(&kind).unwrap_or_else(|| text.to_vec()),
    };
    let known = client.statements.get(name).map(|one| one.name.clone());
    let server = match (&known, name.is_empty()) {
        // The server refuses a name that is taken.
        (Some(known), false) => known.clone(),
        (_, true) => {
            let own = format!("escrow_{}_0", client.id).into_bytes();
            wire::put(out, b'C', &wire::close_body(&own));
            client.closing.push_back(Closing::Own);
            own
        }
        (None, false) => {
            client.named += 1;
            format!("escrow_{}_{}", client.id, client.named).into_bytes()
        }
    };
    match client.statements.get_mut(name).filter(|_| !name.is_empty()) {
        // The server refuses it, unless the one that is known here is gone there: then it may copy.
        Some(known) if known.kind == Statement::Rows && kind != Statement::Rows => {
            known.kind = Statement::Other;
        }
        Some(_) => {}
        None => {
            let prepared = Prepared {
                name: server.clone(),
                kind,
            };
            client.statements.insert(name.to_vec(), prepared);
        }
    }
    // Of one that is there already an error takes nothing away.
    let fresh = known.is_none() || name.is_empty();
    client.parsing.push_back(if fresh {
        name.to_vec()
    } else {
        Vec::from(*b"\0")
    });
    let mut body = server;
    body.push(0);
    body.extend_from_slice(&text);
    body.push(0);
    body.extend_from_slice(types);
    wire::put(out, b'P', &body);
}
