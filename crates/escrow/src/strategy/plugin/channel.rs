//! Calls to a program: JSON-RPC 2.0, one message a line, one call at a time, each with a time limit.
//!
//! An answer must belong to the call that is under way: one to an earlier call, a second one, or anything that is no message is a
//! fault, after which the process is ended. Notifications are passed on.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{PluginFault, shown};
use super::process::{LONGEST, Process, Received};
use crate::event::Observer;

/// How long a program has to give a call up once it is told to.
const GRACE: Duration = Duration::from_secs(2);

/// How many messages of one call are passed on to the user.
const NOTICES: u64 = 20;

/// How often the caller is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// An error that a program answered with.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct WireError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Value,
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// The program says so; it goes on.
    Answered(WireError),
    /// The program can be asked nothing more.
    Broken(PluginFault),
}

/// Anything that a program writes.
#[derive(Deserialize)]
struct Message {
    jsonrpc: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    method: Option<Value>,
    #[serde(default)]
    params: Value,
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    error: Option<WireError>,
}

/// A key that is there, also with `null`.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// What a line means for the call that is under way.
enum Meaning {
    Result(Value),
    Error(WireError),
    Notification,
}

/// A program and the number of the last call.
pub(super) struct Channel {
    pub(super) process: Process,
    last: u64,
}

impl Channel {
    pub(super) fn new(process: Process) -> Self {
        Self { process, last: 0 }
    }

    /// Calls a method.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: &Value,
        limit: Duration,
        observer: &dyn Observer,
    ) -> Result<Value, CallFailure> {
        self.last += 1;
        let request =
            json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        let line = request.to_string();
        if line.len() > LONGEST {
            return Err(CallFailure::Answered(WireError {
                message: format!("what it would be sent has more than {LONGEST} bytes"),
                data: json!({"kind": "unsupported"}),
                ..WireError::default()
            }));
        }
        self.send(line);
        let mut notices = 0;
        let answer = self.answer(limit, observer, &mut notices);
        if notices > NOTICES {
            let more = notices - NOTICES;
            observer.notice(format!("{more} more messages of its program are left out"));
        }
        answer
    }

    /// Waits for the answer to the call that was sent last.
    fn answer(
        &mut self,
        limit: Duration,
        observer: &dyn Observer,
        notices: &mut u64,
    ) -> Result<Value, CallFailure> {
        let started = Instant::now();
        // Set once it was told to give up, to why.
        let mut given_up: Option<(Instant, PluginFault)> = None;
        loop {
            if given_up.is_none() {
                let why = match observer.is_cancelled() {
                    true => Some(PluginFault::Cancelled),
                    false => (started.elapsed() >= limit).then_some(PluginFault::TooLate(limit)),
                };
                given_up = why.map(|why| {
                    let cancel =
                        json!({"jsonrpc": "2.0", "method": "cancel", "params": {"id": self.last}});
                    self.send(cancel.to_string());
                    (Instant::now() + GRACE, why)
                });
            }
            if let Some((until, why)) = &given_up
                && Instant::now() >= *until
            {
                return Err(CallFailure::Broken(why.clone()));
            }
            let within = match given_up {
                Some(_) => LOOK,
                None => LOOK.min(limit.saturating_sub(started.elapsed())),
            };
            let received = match self.process.receive(within.max(Duration::from_millis(1))) {
                // A child may hold its output open.
                Ok(None) if self.process.has_ended() => {
                    match self.process.receive(Duration::from_millis(100)) {
                        Ok(Some(received)) => received,
                        Ok(None) | Err(()) => {
                            return Err(CallFailure::Broken(PluginFault::Ended(None)));
                        }
                    }
                }
                Ok(None) => continue,
                Ok(Some(received)) => received,
                Err(()) => return Err(CallFailure::Broken(PluginFault::Ended(None))),
            };
            match meaning(self.last, received, observer, notices).map_err(CallFailure::Broken)? {
                Meaning::Notification => {}
                Meaning::Result(result) => return Ok(result),
                Meaning::Error(error) => return Err(CallFailure::Answered(error)),
            }
        }
    }

    fn send(&self, mut line: String) {
        line.push('\n');
        self.process.send(line.into_bytes());
    }
}

/// What a line means while call `last` is under way.
fn meaning(
    last: u64,
    received: Received,
    observer: &dyn Observer,
    notices: &mut u64,
) -> Result<Meaning, PluginFault> {
    let broken = |what: String| Err(PluginFault::Protocol(what));
    let line = match received {
        Received::Line(line) => line,
        Received::TooLong => {
            return broken(format!("it wrote a line of more than {LONGEST} bytes"));
        }
        Received::Half(line) => {
            let line = shown(&line);
            return broken(format!("it ended in the middle of a line: {line}"));
        }
    };
    let Ok(message) = serde_json::from_slice::<Message>(&line) else {
        let line = shown(&line);
        return broken(format!(
            "it wrote something that is no message on its standard output: {line}"
        ));
    };
    if message.jsonrpc != Some(json!("2.0")) {
        return broken(format!("a message is not JSON-RPC 2.0: {}", shown(&line)));
    }
    if let Some(method) = &message.method {
        if message.id.is_some() {
            return broken(format!("it calls a method of the engine: {}", shown(&line)));
        }
        notify(method, &message.params, observer, notices);
        return Ok(Meaning::Notification);
    }
    if message.id != Some(json!(last)) {
        let said = message.id.unwrap_or_default().to_string();
        let said = shown(said.as_bytes());
        return broken(format!(
            "it answered call {said} while call {} was under way",
            last
        ));
    }
    match (message.result, message.error) {
        (Some(result), None) => Ok(Meaning::Result(result)),
        (None, Some(error)) => Ok(Meaning::Error(error)),
        _ => broken(format!(
            "an answer has neither a result nor an error, or both: {}",
            shown(&line)
        )),
    }
}

/// Passes on what a program says beside its answers, the first messages of a call; what is not known is ignored.
fn notify(method: &Value, params: &Value, observer: &dyn Observer, notices: &mut u64) {
    let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default();
    match method.as_str() {
        Some("log") if matches!(text("level"), "warning" | "error") => {
            *notices += 1;
            if *notices <= NOTICES {
                observer.notice(shown(text("message").as_bytes()));
            }
        }
        Some("progress") => {
            let number = |key: &str| params.get(key).and_then(Value::as_u64).unwrap_or_default();
            observer.copied(number("entries"), number("bytes"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::Handshake;
    use super::super::wire::WireChange;
    use super::*;
    use crate::event::Unobserved;
    use crate::model::Change;

    /// A generator of numbers, the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }
    }

    const SEEDS: &[&str] = &[
        r#"{"jsonrpc":"2.0","id":7,"result":{"changes":[{"path":"a","kind":"added"}]}}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{"protocol_version":1,"methods":["create"],"capabilities":{"exposes":"path"}}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"no","data":{"kind":"not_there","path":"a"}}}"#,
        r#"{"jsonrpc":"2.0","method":"log","params":{"level":"warning","message":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"progress","params":{"entries":1,"bytes":-1}}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":null}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{"content":{"base64":"YQ=="}}}"#,
    ];

    /// One of the seeds, with bytes changed, added, removed, doubled or put elsewhere.
    fn mutated(numbers: &mut Numbers) -> Vec<u8> {
        let mut line = SEEDS[numbers.below(SEEDS.len())].as_bytes().to_vec();
        for _ in 0..numbers.below(6) {
            let at = numbers.below(line.len().max(1));
            let byte = numbers.next() as u8;
            match numbers.below(5) {
                0 if at < line.len() => line[at] = byte,
                1 => line.insert(at.min(line.len()), byte),
                2 if at < line.len() => drop(line.remove(at)),
                3 => line.truncate(at),
                _ => {
                    let piece: Vec<u8> = line.iter().skip(at).take(9).copied().collect();
                    let to = numbers.below(line.len() + 1);
                    line.splice(to..to, piece);
                }
            }
        }
        line
    }

    // rule X1, X4
    #[test]
    fn a_hundred_thousand_mutated_messages_are_answers_or_faults() {
        let mut numbers = Numbers(0x5eed_1234_5678_9abc);
        let (mut answers, mut faults) = (0, 0);
        for _ in 0..100_000 {
            let line = mutated(&mut numbers);
            match meaning(7, Received::Line(line), &Unobserved, &mut 0) {
                Ok(Meaning::Result(result)) => {
                    answers += 1;
                    // Whatever it is, it is read or refused.
                    match Handshake::read(&result) {
                        Ok(_) | Err(_) => {}
                    }
                    if let Ok(change) = serde_json::from_value::<WireChange>(result) {
                        drop(Change::from(change));
                    }
                }
                Ok(Meaning::Error(_) | Meaning::Notification) => answers += 1,
                Err(PluginFault::Protocol(what)) => {
                    faults += 1;
                    assert!(what.len() < 2000 && !what.contains('\u{1b}'), "{what}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(answers > 1000 && faults > 1000, "{answers} {faults}");
    }
}
