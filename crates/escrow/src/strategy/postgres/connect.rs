//! A connection to a server: over a Unix socket, TCP or TLS, with a password by SCRAM, MD5 or in the clear, and simple
//! queries with their rows. No error says a password.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use postgres_protocol::authentication::{
    md5_hash,
    sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;

use super::super::error::OUT_OF_STEP;
use super::location::{Server, SslMode};
use super::tls::TlsStream;
use super::wire::{self, Frame, Incoming};

/// The number of the protocol that is spoken.
pub(super) const PROTOCOL: i32 = 196_608;

/// The number by which a client asks that another one's query be cancelled.
pub(super) const CANCEL: i32 = 80_877_102;

/// The number by which a client asks for an encrypted link.
const ENCRYPT: i32 = 80_877_103;

/// How long the engine waits for an answer to one of its own short statements.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// With what connections of the engine begin, whatever the role or the database has as its own: no statement of it is limited in time, and what it
/// prepares belongs to the user that it connects as.
pub(super) const OWN_OPTIONS: &str = "-c statement_timeout=0 -c role=none";

/// What went wrong, in the server's words where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{message}{}{}", .detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default(), .code.as_ref().map(|code| format!(" [SQLSTATE {code}]")).unwrap_or_default())]
pub(super) struct PgError {
    /// The SQLSTATE; none where the server was not reached.
    pub(super) code: Option<String>,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    /// Everything that the server said of it.
    #[serde(skip)]
    pub(super) fields: Vec<(u8, String)>,
}

impl PgError {
    /// One that the server did not say.
    pub(super) fn link(message: impl Into<String>) -> Self {
        Self {
            code: None,
            message: message.into(),
            detail: None,
            fields: Vec::new(),
        }
    }

    /// What the server said.
    pub(super) fn said(body: &[u8]) -> Self {
        let fields = wire::fields(body);
        let of = |letter: u8| fields.iter().find(|(one, _)| *one == letter);
        let text = |letter| of(letter).map(|(_, value)| value.clone());
        Self {
            code: text(b'C'),
            message: text(b'M').unwrap_or_else(|| "the server said no more".to_owned()),
            detail: text(b'D'),
            fields,
        }
    }

    pub(super) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

impl From<io::Error> for PgError {
    fn from(error: io::Error) -> Self {
        Self::link(format!("the link to the server failed: {error}"))
    }
}

pub(super) type PgResult<T> = Result<T, PgError>;

/// A row of texts.
pub(super) type Row = Vec<Option<String>>;

/// What a statement gave: the columns with the numbers of their types, the rows, and what was done.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) columns: Vec<(String, u32)>,
    pub(super) rows: Vec<Vec<Option<Vec<u8>>>>,
    pub(super) tag: String,
}

/// A stream of one kind or the other.
pub(super) enum Link {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
}

impl Link {
    fn open(server: &Server, encrypt: bool) -> PgResult<Self> {
        let limit = Duration::from_secs(server.connect_timeout);
        let fail = |error: io::Error| {
            PgError::link(format!("cannot connect to {}: {error}", server.describe()))
        };
        if let Some(path) = server.socket() {
            let stream = UnixStream::connect(path).map_err(fail)?;
            stream.set_read_timeout(Some(limit))?;
            return Ok(Self::Unix(stream));
        }
        let stream = tcp(server, limit).map_err(fail)?;
        if !encrypt {
            return Ok(Self::Tcp(stream));
        }
        match (Self::encrypted(stream, server), server.sslmode) {
            // One that would be encrypted is preferred, and no more.
            (Err(_), SslMode::Prefer) => tcp(server, limit).map(Self::Tcp).map_err(fail),
            (opened, _) => opened,
        }
    }

    fn encrypted(mut stream: TcpStream, server: &Server) -> PgResult<Self> {
        let mut ask = Vec::new();
        wire::put_unmarked(&mut ask, &ENCRYPT.to_be_bytes());
        stream.write_all(&ask)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        match &answer {
            b"S" => Ok(Self::Tls(Box::new(TlsStream::open(stream, server)?))),
            b"N" if server.sslmode == SslMode::Prefer => Ok(Self::Tcp(stream)),
            b"N" => Err(PgError::link(format!(
                "cannot connect to {}: sslmode asks for an encrypted link, and the server has ssl = off",
                server.describe()
            ))),
            _ => Err(unexpected()),
        }
    }

    /// Whether no other user can read what goes over it.
    fn is_private(&self) -> bool {
        matches!(self, Self::Unix(_) | Self::Tls(_))
    }

    /// Sends what can be sent without waiting, and returns how much was taken.
    pub(super) fn send_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Self::Tls(stream) = self {
            return stream.send_now(bytes);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::send(self.as_fd(), bytes, flags)?)
    }

    /// Whether something was taken that is not sent yet.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_unsent())
    }

    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(limit),
            Self::Tcp(stream) => stream.set_read_timeout(limit),
            Self::Tls(stream) => stream.socket.set_read_timeout(limit),
        }
    }
}

impl Read for Link {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(to),
            Self::Tcp(stream) => stream.read(to),
            Self::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Link {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
            Self::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.socket.as_fd(),
        }
    }
}

fn tcp(server: &Server, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in (server.host.as_str(), server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, limit) {
            Ok(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection to a server, on which one thing happens at a time.
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) incoming: Incoming,
    /// What the server reports of its settings.
    pub(super) parameters: BTreeMap<String, String>,
    /// By which a query is cancelled.
    pub(super) key: (i32, i32),
    /// The status of the transaction at the last word of the server: `I`, `T` or `E`.
    pub(super) status: u8,
}

impl Connection {
    /// Connects. `options` are set for the session beside those of the server's URL.
    pub(super) fn open(server: &Server, password: Option<&str>, options: &str) -> PgResult<Self> {
        let own = [
            ("application_name", "escrow"),
            ("client_encoding", "UTF8"),
            ("options", options),
        ];
        Self::open_for(server, password, &own)
    }

    /// The same with the parameters of a client.
    pub(super) fn open_for(
        server: &Server,
        password: Option<&str>,
        parameters: &[(&str, &str)],
    ) -> PgResult<Self> {
        // A server may take only the one kind of link or only the other (28000); libpq tries both too.
        let first = server.sslmode.encrypts_first();
        match Self::open_as(server, password, parameters, first) {
            Err(error) if error.is("28000") && server.sslmode.may_try_both() => {
                Self::open_as(server, password, parameters, !first)
            }
            opened => opened,
        }
    }

    fn open_as(
        server: &Server,
        password: Option<&str>,
        parameters: &[(&str, &str)],
        encrypt: bool,
    ) -> PgResult<Self> {
        let mut this = Self {
            link: Link::open(server, encrypt)?,
            incoming: Incoming::default(),
            parameters: BTreeMap::new(),
            key: (0, 0),
            status: b'I',
        };
        let is_options = |(name, _): &&(&str, &str)| *name == "options";
        let options = parameters.iter().find(is_options).map(|(_, value)| *value);
        let of_server = server.options.as_deref().unwrap_or_default();
        let all = [of_server, options.unwrap_or_default()].join(" ");
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        let own = [
            ("user", server.user.as_str()),
            ("database", &server.database),
            ("options", all.trim()),
        ];
        let others = parameters.iter().filter(|one| !is_options(one)).copied();
        for (name, value) in own.into_iter().chain(others) {
            for text in [name, value] {
                body.extend(text.bytes().filter(|byte| *byte != 0));
                body.push(0);
            }
        }
        body.push(0);
        let mut start = Vec::new();
        wire::put_unmarked(&mut start, &body);
        this.link.write_all(&start)?;
        this.authenticate(server, password)
            .map_err(|error| PgError {
                message: format!("cannot connect to {}: {}", server.describe(), error.message),
                ..error
            })?;
        this.link.set_read_timeout(None)?;
        Ok(this)
    }

    /// No answer is waited for longer than this.
    pub(super) fn with_limit(self, limit: Duration) -> PgResult<Self> {
        self.link.set_read_timeout(Some(limit))?;
        Ok(self)
    }

    fn authenticate(&mut self, server: &Server, password: Option<&str>) -> PgResult<()> {
        let missing = || {
            PgError::link(
                "the server asks for a password, and there is none in PGPASSWORD or in the password file (~/.pgpass)",
            )
        };
        let open = || {
            PgError::link(
                "the server asks for a password in a form that can be read on the way, and the link is not encrypted; let it use \
                 scram-sha-256, or connect through a Unix socket or a tunnel",
            )
        };
        let mut scram: Option<ScramSha256> = None;
        loop {
            let frame = self.next()?;
            let (word, rest) = match (frame.kind, frame.body.split_at_checked(4)) {
                (b'E', _) => return Err(PgError::said(&frame.body)),
                (b'R', Some((word, rest))) => (i32_of(word), rest),
                (b'K', _) => {
                    let body = &frame.body;
                    let at = |from: usize| body.get(from..from + 4).map_or(0, i32_of);
                    self.key = (at(0), at(4));
                    continue;
                }
                (b'Z', _) => return Ok(()),
                _ => continue,
            };
            let answer = match word {
                // A server that was to prove that it knows the password, and did not, is not the one that is meant.
                0 if scram.is_some() => return Err(unexpected()),
                0 => continue,
                3 | 5 if !self.link.is_private() => return Err(open()),
                3 => zero_ended(password.ok_or_else(missing)?.as_bytes()),
                5 => {
                    let salt = rest.first_chunk::<4>().copied().unwrap_or_default();
                    let password = password.ok_or_else(missing)?;
                    let hash = md5_hash(server.user.as_bytes(), password.as_bytes(), salt);
                    zero_ended(hash.as_bytes())
                }
                10 => {
                    let mut offered = rest.split(|byte| *byte == 0);
                    if !offered.any(|name| name == SCRAM_SHA_256.as_bytes()) {
                        return Err(PgError::link(
                            "the server asks for an unknown kind of login",
                        ));
                    }
                    let password = password.ok_or_else(missing)?;
                    let binding = ChannelBinding::unsupported();
                    let one = scram.insert(ScramSha256::new(password.as_bytes(), binding));
                    let first = one.message();
                    let mut body = zero_ended(SCRAM_SHA_256.as_bytes());
                    body.extend((first.len() as i32).to_be_bytes());
                    body.extend(first);
                    body
                }
                11 => {
                    let one = scram.as_mut().ok_or_else(unexpected)?;
                    one.update(rest).map_err(|_| unexpected())?;
                    one.message().to_vec()
                }
                12 => {
                    let mut one = scram.take().ok_or_else(unexpected)?;
                    one.finish(rest).map_err(|_| unexpected())?;
                    continue;
                }
                _ => {
                    return Err(PgError::link(
                        "the server asks for an unsupported kind of login",
                    ));
                }
            };
            let mut out = Vec::new();
            wire::put(&mut out, b'p', &answer);
            self.link.write_all(&out)?;
        }
    }

    /// The next frame that is not only said by the way; the connection notes what the server reports.
    pub(super) fn next(&mut self) -> PgResult<Frame> {
        loop {
            if let Some(frame) = self.incoming.next()? {
                self.note(&frame);
                match frame.kind {
                    b'S' | b'N' | b'A' => continue,
                    _ => return Ok(frame),
                }
            }
            match self.incoming.fill(&mut self.link) {
                Ok(true) => {}
                Ok(false) => return Err(PgError::link("the server closed the connection")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(PgError::link("the server did not answer in time"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Notes what the server reports.
    pub(super) fn note(&mut self, frame: &Frame) {
        match frame.kind {
            b'S' => {
                if let Some((name, rest)) = wire::text(&frame.body)
                    && let Some((value, _)) = wire::text(rest)
                {
                    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    self.parameters.insert(text(name), text(value));
                }
            }
            b'Z' => self.status = frame.body.first().copied().unwrap_or(b'I'),
            _ => {}
        }
    }

    /// Carries out a simple query; the rows of all its statements, as texts.
    pub(super) fn query(&mut self, sql: &str) -> PgResult<Vec<Row>> {
        let mut rows = Vec::new();
        self.each_row(sql, |row| {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            rows.push(row.iter().map(|value| value.map(text)).collect());
            Ok(())
        })?;
        Ok(rows)
    }

    /// The one value that a query gives.
    pub(super) fn value(&mut self, sql: &str) -> PgResult<Option<String>> {
        let rows = self.query(sql)?;
        Ok(rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next())
            .flatten())
    }

    /// Carries out one statement, and gives everything it says.
    pub(super) fn run(&mut self, sql: &str) -> PgResult<Ran> {
        self.link.write_all(&wire::query(sql))?;
        let (mut ran, mut failed) = (Ran::default(), None);
        loop {
            let frame = self.next()?;
            match frame.kind {
                b'E' => failed = failed.or(Some(PgError::said(&frame.body))),
                b'T' => ran.columns = wire::described(&frame.body).ok_or_else(unexpected)?,
                b'D' => {
                    let row = wire::columns(&frame.body).ok_or_else(unexpected)?;
                    let row = row.into_iter().map(|value| value.map(<[u8]>::to_vec));
                    ran.rows.push(row.collect());
                }
                b'C' => {
                    let tag = wire::text(&frame.body).map_or(&[][..], |(tag, _)| tag);
                    ran.tag = String::from_utf8_lossy(tag).into_owned();
                }
                b'G' => self.link.write_all(b"f\0\0\0\x05\0")?,
                b'H' => {
                    failed = failed.or(Some(PgError::link(
                        "a copy is for a client: `escrow path` gives the URL",
                    )))
                }
                b'Z' => return failed.map_or(Ok(ran), Err),
                _ => {}
            }
        }
    }

    /// Carries out a simple query and gives its rows one by one.
    pub(super) fn each_row(
        &mut self,
        sql: &str,
        mut each: impl FnMut(&[Option<&[u8]>]) -> PgResult<()>,
    ) -> PgResult<()> {
        self.ask(sql)?;
        let mut failed = None;
        while let Some(frame) = self.next_row()? {
            if failed.is_none() {
                let row = wire::columns(&frame.body).ok_or_else(unexpected)?;
                failed = each(&row).err();
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes what the server says by itself; anything else answers nothing that was asked, and no answer can be trusted then.
    pub(super) fn settle(&mut self) -> PgResult<()> {
        loop {
            let mut said = [PollFd::new(&self.link, PollFlags::IN)];
            let spoke = poll(&mut said, Some(&Timespec::default())).map_err(io::Error::from)?;
            // A server that ends at once says so, and closes the connection behind that.
            match spoke > 0 && !self.incoming.fill(&mut self.link)? {
                true => return Err(PgError::link("the server closed the connection")),
                false if spoke == 0 => break,
                false => {}
            }
        }
        while let Some(frame) = self.incoming.next()? {
            match frame.kind {
                b'S' | b'N' | b'A' => self.note(&frame),
                // It ended the session.
                b'E' => return Err(PgError::said(&frame.body)),
                _ => return Err(PgError::link(OUT_OF_STEP)),
            }
        }
        match self.incoming.peek() {
            None | Some(b'S' | b'N' | b'A' | b'E') => Ok(()),
            Some(_) => Err(PgError::link(OUT_OF_STEP)),
        }
    }

    /// Takes back everything since a savepoint, and the savepoint: once more, where a late cancel or a limit of time met the first attempt.
    pub(super) fn take_back(&mut self, savepoint: &str) -> PgResult<()> {
        let back = format!("ROLLBACK TO SAVEPOINT {savepoint}; RELEASE SAVEPOINT {savepoint}");
        let taken = self.run(&back);
        let taken = match taken {
            Err(error) if error.is("57014") => self.run(&back),
            taken => taken,
        };
        match taken?.tag.as_str() {
            "RELEASE" => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Sends a query, whose rows are then read one by one.
    pub(super) fn ask(&mut self, sql: &str) -> PgResult<()> {
        Ok(self.link.write_all(&wire::query(sql))?)
    }

    /// The next row of the query that was sent. After the last one, or an error, another can be sent.
    pub(super) fn next_row(&mut self) -> PgResult<Option<Frame>> {
        let mut failed = None;
        loop {
            let frame = self.next()?;
            match frame.kind {
                b'E' => failed = failed.or(Some(PgError::said(&frame.body))),
                b'D' if failed.is_none() => return Ok(Some(frame)),
                b'Z' => return failed.map_or(Ok(None), Err),
                // Nothing of ours copies in.
                b'G' => self.link.write_all(b"f\0\0\0\x05\0")?,
                _ => {}
            }
        }
    }
}

/// Asks a server to cancel what another connection does.
pub(super) fn cancel(server: &Server, key: (i32, i32)) -> PgResult<()> {
    let mut link = Link::open(server, server.sslmode.encrypts_first())?;
    let mut body = CANCEL.to_be_bytes().to_vec();
    body.extend(key.0.to_be_bytes());
    body.extend(key.1.to_be_bytes());
    let mut out = Vec::new();
    wire::put_unmarked(&mut out, &body);
    link.write_all(&out)?;
    // The server closes the link when it is done.
    let mut rest = Vec::new();
    link.read_to_end(&mut rest)?;
    Ok(())
}

pub(super) fn unexpected() -> PgError {
    PgError::link("the server gave an answer that was not understood")
}

fn i32_of(bytes: &[u8]) -> i32 {
    bytes
        .first_chunk::<4>()
        .map_or(0, |four| i32::from_be_bytes(*four))
}

fn zero_ended(bytes: &[u8]) -> Vec<u8> {
    let mut all: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
    all.push(0);
    all
}

/// A text as SQL takes it, whatever the server makes of backslashes, and in which encoding ever it reads (rule S4).
pub(super) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.is_ascii() && !quoted.contains('\\') {
        return format!("'{quoted}'");
    }
    let escaped = quoted.chars().map(|one| match one {
        '\\' => "\\\\".to_owned(),
        one if one.is_ascii() => one.to_string(),
        one => format!("\\U{:08x}", u32::from(one)),
    });
    format!("E'{}'", escaped.collect::<String>())
}

/// What an error has as its schema that the server says for us.
pub(super) const REFUSED: &str = "escrow";

/// A statement by which the server says an error.
pub(super) fn raise(code: &str, message: &str, hint: Option<&str>) -> String {
    let hint = hint.map_or_else(String::new, |hint| format!(", HINT = {}", literal(hint)));
    let (code, message) = (literal(code), literal(message));
    let body = format!(
        "BEGIN RAISE EXCEPTION USING ERRCODE = {code}, MESSAGE = {message}, SCHEMA = '{REFUSED}'{hint}; END"
    );
    format!("DO {}", literal(&body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Connects to a server that answers the first message with these bytes, and the next ones with nothing; returns the error and
    /// what else the server was sent.
    fn against(answer: &'static [u8]) -> (PgError, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("it has an address").port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("it speaks first");
            let mut first = vec![0; u32::from_be_bytes(length) as usize - 4];
            stream.read_exact(&mut first).expect("it speaks first");
            stream.write_all(answer).expect("it listens");
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("it ends");
            rest
        });
        let url = format!("postgres://u@127.0.0.1:{port}/d?connect_timeout=1&sslmode=disable");
        let env = BTreeMap::new();
        let to = super::super::location::resolve(&url, &env).expect("a URL");
        let opened = Connection::open(&to, Some("s3cret"), "");
        let limited = opened.and_then(|one| one.with_limit(Duration::from_millis(100)));
        let error = limited.and_then(|mut one| one.value("SELECT 1"));
        (error.expect_err("refused"), server.join().expect("it ends"))
    }

    // rule Q6
    #[test]
    fn a_password_is_not_sent_where_others_can_read_it() {
        for ask in [&b"R\0\0\0\x08\0\0\0\x03"[..], b"R\0\0\0\x0c\0\0\0\x05salt"] {
            let (error, sent) = against(ask);
            assert!(error.message.contains("not encrypted"), "{error}");
            assert_eq!(sent, b"");
        }
    }

    // rule Q6
    #[test]
    fn a_server_that_does_not_prove_itself_is_refused() {
        let ask = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
        let (error, _) = against(ask);
        assert!(error.message.contains("not understood"), "{error}");
    }

    #[test]
    fn a_silent_server_is_not_waited_for() {
        // Neither at once nor after the login.
        for answer in [&b""[..], b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"] {
            let (error, _) = against(answer);
            assert!(error.message.contains("did not answer in time"), "{error}");
        }
    }
}
