//! Frames of the PostgreSQL protocol: a type byte, a length, and what follows. Reads them from a stream whole, whatever
//! pieces they arrive in, and builds the few that are written here. Nothing is interpreted.

use std::io::{self, Read};

/// The longest frame that is taken: PostgreSQL's own limit of one value.
const LONGEST: usize = 1 << 30;

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// A frame: its type and what follows the length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

impl Frame {
    pub(super) fn new(kind: u8, body: Vec<u8>) -> Self {
        Self { kind, body }
    }

    /// Appends it as it goes over the wire.
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        put(to, self.kind, &self.body);
    }
}

/// Appends a frame.
pub(super) fn put(to: &mut Vec<u8>, kind: u8, body: &[u8]) {
    to.push(kind);
    put_unmarked(to, body);
}

/// Appends a frame without a type, as the first one of a client is.
pub(super) fn put_unmarked(to: &mut Vec<u8>, body: &[u8]) {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(body);
}

/// A simple query.
pub(super) fn query(sql: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(sql.len() + 6);
    put_query(&mut out, sql.as_bytes());
    out
}

/// Appends a simple query.
pub(super) fn put_query(to: &mut Vec<u8>, sql: &[u8]) {
    let mut body = sql.to_vec();
    body.push(0);
    put(to, b'Q', &body);
}

/// Says what a setting is.
pub(super) fn parameter(name: &str, value: &str) -> Frame {
    let mut body = Vec::new();
    for text in [name, value] {
        body.extend(text.bytes());
        body.push(0);
    }
    Frame::new(b'S', body)
}

/// What closes a statement.
pub(super) fn close_body(name: &[u8]) -> Vec<u8> {
    let mut body = vec![b'S'];
    body.extend_from_slice(name);
    body.push(0);
    body
}

/// Appends the preparation of the unnamed statement, without parameters.
pub(super) fn put_parse(to: &mut Vec<u8>, sql: &[u8]) {
    put(to, b'P', &[b"\0", sql, b"\0\0\0"].concat());
}

/// Appends a statement that leaves the answer to what follows: the server sends nothing before that.
pub(super) fn put_statement(to: &mut Vec<u8>, sql: &str) {
    put_parse(to, sql.as_bytes());
    put(to, b'B', &[0; 8]);
    put(to, b'E', &[0; 5]);
}

/// Appends that the unnamed statement is carried out, and its columns are said first.
pub(super) fn put_described(to: &mut Vec<u8>) {
    put(to, b'B', &[0; 8]);
    put(to, b'D', b"P\0");
    put(to, b'E', &[0; 5]);
}

/// What was read and not taken yet.
#[derive(Default)]
pub(super) struct Incoming {
    /// Room for what is read; it is filled as far as `end`.
    bytes: Vec<u8>,
    taken: usize,
    end: usize,
}

impl Incoming {
    /// Reads what is there; `false` at the end of the stream.
    pub(super) fn fill(&mut self, from: &mut impl Read) -> io::Result<bool> {
        if self.taken == self.end {
            (self.taken, self.end) = (0, 0);
            // An idle holder keeps no large buffer.
            self.bytes.truncate(CHUNK);
            self.bytes.shrink_to(CHUNK);
        } else if self.taken > CHUNK {
            self.bytes.copy_within(self.taken..self.end, 0);
            (self.taken, self.end) = (0, self.end - self.taken);
        }
        // Room is made where little is left, since all of it is written to first.
        if self.bytes.len() < self.end + CHUNK / 2 {
            self.bytes.resize(self.end + CHUNK, 0);
        }
        loop {
            match from.read(&mut self.bytes[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
            }
        }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..self.end]
    }

    /// The type of the next frame, of which more may be to come.
    pub(super) fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    /// The next frame, if all of it is there.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame>> {
        self.take(1)
    }

    /// The next frame without a type.
    pub(super) fn next_unmarked(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.take(0)?.map(|frame| frame.body))
    }

    fn take(&mut self, marked: usize) -> io::Result<Option<Frame>> {
        let rest = self.rest();
        let Some(head) = rest.get(..marked + 4) else {
            return Ok(None);
        };
        let mut length = [0; 4];
        length.copy_from_slice(&head[marked..]);
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=LONGEST).contains(&length) {
            let text = "a frame of an impossible length";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let Some(body) = rest.get(marked + 4..marked + length) else {
            return Ok(None);
        };
        let frame = Frame::new(if marked == 1 { head[0] } else { 0 }, body.to_vec());
        self.taken += marked + length;
        Ok(Some(frame))
    }
}

/// A text up to its NUL, and what follows.
pub(super) fn text(from: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = from.iter().position(|byte| *byte == 0)?;
    Some((&from[..end], &from[end + 1..]))
}

/// The fields of an error or a notice, by their letters.
pub(super) fn fields(mut body: &[u8]) -> Vec<(u8, String)> {
    let mut fields = Vec::new();
    while let [letter, rest @ ..] = body {
        let Some((value, after)) = text(rest).filter(|_| *letter != 0) else {
            break;
        };
        fields.push((*letter, String::from_utf8_lossy(value).into_owned()));
        body = after;
    }
    fields
}

/// The same fields of an error, each as `told` has it; `None` leaves one out. What is not touched stays in the encoding of the client.
pub(super) fn told_fields(mut body: &[u8], told: impl Fn(u8, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut own = Vec::with_capacity(body.len());
    while let [letter, rest @ ..] = body {
        let Some((value, after)) = text(rest).filter(|_| *letter != 0) else {
            break;
        };
        if let Some(value) = told(*letter, value) {
            own.push(*letter);
            own.extend(value);
            own.push(0);
        }
        body = after;
    }
    own.push(0);
    own
}

/// The body of an error or a notice.
pub(super) fn fields_body(fields: &[(u8, String)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (letter, value) in fields {
        body.push(*letter);
        body.extend(value.bytes().filter(|byte| *byte != 0));
        body.push(0);
    }
    body.push(0);
    body
}

/// An error as the server would say it.
pub(super) fn error_frame(severity: &str, code: &str, message: &str, hint: Option<&str>) -> Frame {
    let kind = if severity == "WARNING" { b'N' } else { b'E' };
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', code.to_owned()),
        (b'M', message.to_owned()),
    ];
    fields.extend(hint.map(|hint| (b'H', hint.to_owned())));
    Frame::new(kind, fields_body(&fields))
}

/// The names of the columns that follow, and the numbers of their types.
pub(super) fn described(body: &[u8]) -> Option<Vec<(String, u32)>> {
    let (count, mut rest) = body.split_at_checked(2)?;
    let count = u16::from_be_bytes([count[0], count[1]]);
    let mut found = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (name, after) = text(rest)?;
        let (about, after) = after.split_at_checked(18)?;
        let kind = u32::from_be_bytes([about[6], about[7], about[8], about[9]]);
        found.push((String::from_utf8_lossy(name).into_owned(), kind));
        rest = after;
    }
    Some(found)
}

/// The columns of a row.
pub(super) fn columns(body: &[u8]) -> Option<Vec<Option<&[u8]>>> {
    let (count, mut rest) = body.split_at_checked(2)?;
    let count = u16::from_be_bytes([count[0], count[1]]);
    let mut columns = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (length, after) = rest.split_at_checked(4)?;
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        rest = after;
        if length < 0 {
            columns.push(None);
            continue;
        }
        let (value, after) = rest.split_at_checked(length as usize)?;
        columns.push(Some(value));
        rest = after;
    }
    Some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_whatever_pieces_they_arrive_in() {
        let mut bytes = query("select 1");
        error_frame("ERROR", "25001", "no", Some("hint")).put(&mut bytes);
        let mut incoming = Incoming::default();
        let mut found = Vec::new();
        for byte in &bytes {
            assert!(incoming.fill(&mut &[*byte][..]).expect("read"));
            found.extend(incoming.next().expect("valid"));
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].body, b"select 1\0");
        let fields = fields(&found[1].body);
        assert_eq!(fields[4], (b'H', "hint".to_owned()));
        assert!(!incoming.fill(&mut &b""[..]).expect("read"));
    }

    #[test]
    fn an_impossible_length_is_refused() {
        for length in [0_u32, 3, u32::MAX] {
            let mut bytes = vec![b'Q'];
            bytes.extend(length.to_be_bytes());
            let mut incoming = Incoming::default();
            incoming.fill(&mut &bytes[..]).expect("read");
            assert!(incoming.next().is_err(), "{length}");
        }
    }
}
