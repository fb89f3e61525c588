//! How a client of a holder begins: what it asks for, what it is told, and how it cancels.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use super::super::connect::{CANCEL, PgError};
use super::super::sql::{SESSION_USER, TIMEOUTS};
use super::super::wire::{self, Frame, Incoming};
use super::Holder;
use super::backend::{Settings, Unavailable};
use super::client::{Client, PATIENCE, Transaction};
use super::pass;

/// The numbers by which a client asks for encryption, which a private socket does not need.
const ENCRYPTIONS: [i32; 2] = [80_877_103, 80_877_104];

/// Serves a client from its first word.
pub(super) fn welcome(holder: &Holder, mut stream: UnixStream) {
    let mut incoming = Incoming::default();
    let parameters = loop {
        let body = match incoming.next_unmarked() {
            Ok(Some(body)) => body,
            Ok(None) => match incoming.fill(&mut stream) {
                Ok(true) => continue,
                _ => return,
            },
            Err(_) => return,
        };
        let Some((code, rest)) = body.split_first_chunk::<4>() else {
            return;
        };
        match i32::from_be_bytes(*code) {
            code if ENCRYPTIONS.contains(&code) => {
                if stream.write_all(b"N").is_err() {
                    return;
                }
            }
            CANCEL if holder.passes.is_some() => return pass::cancel(holder, rest),
            CANCEL => return cancel(holder, rest),
            code if code >> 16 == 3 => break read_parameters(rest),
            _ => return,
        }
    };
    if holder.passes.is_some() {
        return pass::serve(holder, stream, incoming, &parameters);
    }
    let id = holder.clients.fetch_add(1, Ordering::SeqCst) + 1;
    let mut client = Client {
        holder,
        id,
        stream,
        incoming,
        out: Vec::new(),
        transaction: Transaction::None,
        open: false,
        settings: Settings::new(),
        began_with: Settings::new(),
        odd: false,
        set: Vec::new(),
        statements: HashMap::new(),
        portals: HashMap::new(),
        parsing: VecDeque::new(),
        deallocated: Vec::new(),
        replaced: VecDeque::new(),
        closing: VecDeque::new(),
        portal_named: false,
        portal_unnamed: false,
        renamed: None,
        others: true,
        before: 0,
        several: false,
        completed: None,
        gone: false,
    };
    match begin(&mut client, &parameters) {
        Ok(()) => client.serve(),
        Err(refusal) => {
            client.send(&refusal);
            match client.flush() {
                // It is told if it is still there.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

fn read_parameters(mut rest: &[u8]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, after)) = wire::text(rest).filter(|(name, _)| !name.is_empty()) {
        let Some((value, after)) = wire::text(after) else {
            break;
        };
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        found.insert(text(name), text(value));
        rest = after;
    }
    found
}

fn fatal(code: &str, text: &str, hint: Option<&str>) -> Frame {
    wire::error_frame("FATAL", code, text, hint)
}

/// Refuses a client that names another database, or another user.
pub(super) fn check_named(
    holder: &Holder,
    parameters: &BTreeMap<String, String>,
) -> Result<(), Frame> {
    let server = &holder.server;
    let user = parameters.get("user").cloned().unwrap_or_default();
    let (database, own) = (
        parameters.get("database").unwrap_or(&user),
        holder.passes.as_ref().unwrap_or(&server.database),
    );
    if database != own {
        let text = format!("database \"{database}\" is not in this sandbox, which is of \"{own}\"");
        return Err(fatal("3D000", &text, None));
    }
    if user != server.user {
        let text = format!(
            "this sandbox works as user \"{}\", not as \"{user}\"",
            server.user
        );
        return Err(fatal("28000", &text, Some("use SET ROLE for another one")));
    }
    if parameters.contains_key("replication") {
        return Err(fatal("0A000", "a sandbox cannot be replicated", None));
    }
    Ok(())
}

/// Gives a client its settings, and tells it everything that a server tells.
fn begin(client: &mut Client<'_>, parameters: &BTreeMap<String, String>) -> Result<(), Frame> {
    check_named(client.holder, parameters)?;
    let mut wanted = Settings::new();
    for (name, value) in parameters {
        match name.as_str() {
            "user" | "database" => {}
            "options" => wanted.extend(read_options(value)),
            name if name.starts_with("_pq_.") => {}
            name => drop(wanted.insert(name.to_owned(), value.clone())),
        }
    }
    let is_name = |name: &String| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
        !name.is_empty() && name.bytes().all(plain) && !name.eq_ignore_ascii_case(SESSION_USER)
    };
    wanted.retain(|name, _| !TIMEOUTS.contains(&name.to_ascii_lowercase().as_str()));
    if let Some(name) = wanted.keys().find(|name| !is_name(name)) {
        let text = format!("the parameter \"{name}\" cannot be set in a sandbox");
        return Err(fatal("42704", &text, None));
    }
    let told = |error: PgError| {
        fatal(
            error.code.as_deref().unwrap_or("57P01"),
            &error.message,
            None,
        )
    };
    let mut turn = client
        .holder
        .turns
        .take(client.id, PATIENCE)
        .map_err(|why| match why {
            Unavailable::Busy => fatal(
                "55P03",
                "another client of the sandbox did not end its transaction in time",
                None,
            ),
            Unavailable::Lost(why) => fatal("57P01", &why, Some("`escrow rollback` begins anew")),
        })?;
    let backend = turn.backend().map_err(told)?;
    if backend.prepared.is_some() {
        return Err(fatal("57P03", "the sandbox is being committed", None));
    }
    backend.apply(&wanted).map_err(told)?;
    (client.settings, client.began_with) = (wanted.clone(), wanted);
    client.send(&Frame::new(b'R', 0_i32.to_be_bytes().to_vec()));
    for (name, value) in &backend.connection.parameters {
        client.send(&wire::parameter(name, value));
    }
    let mut key = client.id.to_be_bytes().to_vec();
    key.extend(client.holder.secret_of(client.id).to_be_bytes());
    client.send(&Frame::new(b'K', key));
    client.ready();
    Ok(())
}

/// What `-c name=value` and `--name=value` set.
fn read_options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        let last = words.len() - 1;
        match next {
            '\\' => words[last].extend(chars.next()),
            ' ' => words.push(String::new()),
            other => words[last].push(other),
        }
    }
    let words = words
        .iter()
        .filter(|word| !word.is_empty() && *word != "-c");
    let pairs = words.filter_map(|word| {
        let word = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix("-c"))
            .unwrap_or(word);
        word.split_once('=')
    });
    pairs
        .map(|(name, value)| (name.replace('-', "_"), value.to_owned()))
        .collect()
}

/// Cancels what a client has running, if it says its secret.
fn cancel(holder: &Holder, body: &[u8]) {
    let word = |from: usize| {
        let bytes = body
            .get(from..from + 4)
            .and_then(|four| four.first_chunk::<4>());
        bytes.map_or(0, |four| u32::from_be_bytes(*four))
    };
    let (client, secret) = (word(0), word(4));
    if client == 0 || secret != holder.secret_of(client) {
        return;
    }
    holder.cancel_work_of(client);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_the_server_reads_them() {
        let found = read_options("-c a=1  --b-c=x\\ y -cd=2");
        let wanted = [("a", "1"), ("b_c", "x y"), ("d", "2")];
        assert_eq!(found, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
