//! The name that a TLS client asks a server for, read from the first record it sends. Nothing of TLS is changed.

use std::io::Read;
use std::net::TcpStream;

/// The longest record.
const RECORD: usize = 5 + (1 << 14);

/// It began like TLS and did not go on like it, or is none where it must be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// Reads what a client sends first, and the name in it. What is no TLS has none, unless it must be TLS; neither has a client that
/// asks for none. Other records of TLS come first only to hide the greeting from a reader like this one.
pub(super) fn greeting(
    mut client: &TcpStream,
    mut read: Vec<u8>,
    must: bool,
) -> Result<(Vec<u8>, Option<String>), Unreadable> {
    let mut buffer = [0; 4096];
    while !is_complete(&read) {
        match client.read(&mut buffer) {
            // Nothing more comes, and what is not complete says nothing to a server.
            Ok(0) | Err(_) => return Ok((read, None)),
            Ok(length) => read.extend_from_slice(&buffer[..length]),
        }
    }
    let name = asked_name(&read, must)?;
    Ok((read, name))
}

fn asked_name(read: &[u8], must: bool) -> Result<Option<String>, Unreadable> {
    match read.first() {
        Some(0x16) => server_name(read),
        Some(first) if must || (0x14..=0x18).contains(first) => Err(Unreadable),
        _ => Ok(None),
    }
}

/// Whether there is enough to tell.
fn is_complete(read: &[u8]) -> bool {
    match read {
        [] => false,
        [0x16, _, _, high, low, rest @ ..] => {
            rest.len() >= usize::from(u16::from_be_bytes([*high, *low])) || read.len() >= RECORD
        }
        [first, ..] => *first != 0x16,
    }
}

/// The name in a greeting, which must lie in one record: one that is split could hide it.
fn server_name(record: &[u8]) -> Result<Option<String>, Unreadable> {
    let parse = || {
        let mut record = Bytes(record);
        record.take(3)?;
        let mut hello = record.list(2)?;
        if hello.take(1)? != [1] {
            return None;
        }
        let mut hello = hello.list(3)?;
        // Version and random number, session, ciphers, compressions.
        hello.take(2 + 32)?;
        hello.list(1)?;
        hello.list(2)?;
        hello.list(1)?;
        if hello.0.is_empty() {
            return Some(None);
        }
        let mut extensions = hello.list(2)?;
        let mut found = None;
        while !extensions.0.is_empty() {
            let kind = extensions.take(2)?;
            let mut body = extensions.list(2)?;
            if kind != [0, 0] {
                continue;
            }
            let mut names = body.list(2)?;
            let (kind, name) = (names.take(1)?, names.list(2)?);
            // A server might choose another one than we would.
            if kind != [0] || !names.0.is_empty() || found.is_some() {
                return None;
            }
            found = Some(String::from_utf8(name.0.to_vec()).ok()?);
        }
        Some(found)
    };
    parse().ok_or(Unreadable)
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Bytes that come behind their number, which has so many bytes.
    fn list(&mut self, width: usize) -> Option<Self> {
        let number = self.take(width)?;
        let number = number
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        self.take(number).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A greeting with these extensions.
    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat();
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut record = vec![0x16, 3, 1];
        record.extend((body.len() as u16 + 4).to_be_bytes());
        record.extend([1, 0]);
        record.extend((body.len() as u16).to_be_bytes());
        record.extend(body);
        record
    }

    fn name(name: &[u8]) -> Vec<u8> {
        let length = name.len() as u8;
        [&[0, 0, 0, length + 5, 0, length + 3, 0, 0, length], name].concat()
    }

    #[test]
    fn the_name_of_a_greeting_is_found_and_broken_ones_are_refused() {
        let other = [0, 43, 0, 3, 2, 3, 4];
        let whole = hello(&[&other[..], &name(b"a.example")].concat());
        assert_eq!(server_name(&whole), Ok(Some("a.example".to_owned())));
        assert_eq!(server_name(&hello(&other)), Ok(None));
        assert!(is_complete(&whole) && !is_complete(&whole[..whole.len() - 1]));
        for end in 6..whole.len() {
            assert_eq!(server_name(&whole[..end]), Err(Unreadable), "{end}");
        }
        // Split over two records, or with two names.
        let mut split = whole.clone();
        split[4] -= 3;
        assert_eq!(server_name(&split), Err(Unreadable));
        let twice = [name(b"a.example"), name(b"b.example")].concat();
        assert_eq!(server_name(&hello(&twice)), Err(Unreadable));
        assert!(is_complete(b"SSH-2.0"));
        assert_eq!(asked_name(b"SSH-2.0", false), Ok(None));
        assert_eq!(asked_name(b"GET / HTTP/1.1", true), Err(Unreadable));
        let warned = [&[0x15, 3, 1, 0, 2, 1, 0x5a], &whole[..]].concat();
        assert_eq!(asked_name(&warned, false), Err(Unreadable));
    }
}
