//! Credentials that a command never holds: for some hosts of its list the proxy ends TLS itself and adds a header to each request.
//!
//! The authority whose certificate the command trusts is made for one run, for these hosts alone, and its key never leaves this process.
//! The server is verified as any client of this machine would. HTTP/1.1 only, and one request for each connection, so that nothing
//! behind the head of a request has to be understood.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::ask::left;
use super::proxy::is_token;
use super::spec::RunSpec;
use super::supervise::{RunError, at};
use crate::model::network::host_and_port;
use crate::model::text::Location;

/// How long agreeing with one side, and the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// The longest head of a request.
const HEAD: usize = 64 * 1024;

/// How long the certificates are valid: a command may run for weeks.
const VALID: Duration = Duration::from_secs(90 * 24 * 3600);

/// How far the clock of a client may be behind.
const EARLIER: Duration = Duration::from_secs(3600);

/// Where distributions keep the certificates that they trust.
pub(crate) const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Variables that name a file of trusted certificates.
const VARIABLES: &str = "SSL_CERT_FILE NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO AWS_CA_BUNDLE PIP_CERT \
    CARGO_HTTP_CAINFO DENO_CERT GRPC_DEFAULT_SSL_ROOTS_FILE_PATH HTTPLIB2_CA_CERTS NIX_SSL_CERT_FILE";

/// A header for a host, with a value that is never shown.
#[derive(Clone)]
pub(crate) struct InjectedHeader {
    /// The host.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
    /// The name of the header.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: String,
}

/// Adds headers to the requests for some hosts.
pub(crate) struct Injector {
    headers: Vec<InjectedHeader>,
    servers: Vec<(String, Arc<ServerConfig>)>,
    client: Arc<ClientConfig>,
    /// The certificate that the command is to trust.
    pub(crate) authority: String,
}

impl fmt::Debug for Injector {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Injector").finish_non_exhaustive()
    }
}

impl Injector {
    /// Makes the authority and its certificates; servers are verified by `roots` (PEM).
    pub(crate) fn new(headers: Vec<InjectedHeader>, roots: &[u8]) -> Result<Self, String> {
        let mut names: Vec<String> = headers.iter().map(|one| one.host.clone()).collect();
        names.sort();
        names.dedup();
        let made = |error: rcgen::Error| format!("cannot make a certificate: {error}");
        let (authority, issuer) = authority(&names).map_err(made)?;
        let mut servers = Vec::new();
        for name in names {
            let (certificate, key) = leaf(&name, &issuer).map_err(made)?;
            let chain = vec![certificate, authority.der().clone()];
            servers.push((name, Arc::new(server_config(chain, key).map_err(text)?)));
        }
        let mut store = RootCertStore::empty();
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(roots).collect();
        let roots = roots.map_err(|_| "the file of trusted certificates is not PEM")?;
        store.add_parsable_certificates(roots);
        Ok(Self {
            client: Arc::new(client_config(store).map_err(text)?),
            authority: authority.pem(),
            headers,
            servers,
        })
    }

    /// Whether requests for a host get a header.
    pub(super) fn has(&self, host: &str, port: u16) -> bool {
        let mut all = self.headers.iter();
        all.any(|one| one.host == host && one.port == port)
    }

    /// Serves one connection, of which the client has sent `first` already.
    pub(super) fn serve(
        &self,
        (host, port): (&str, u16),
        (client, first): (&TcpStream, Vec<u8>),
        server: &TcpStream,
    ) -> io::Result<()> {
        let config = self.servers.iter().find(|(name, _)| name == host);
        let (_, config) = config.ok_or(io::ErrorKind::NotFound)?;
        let mine = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut client = Side::new(Connection::Server(mine), client, first);
        let until = Instant::now() + PATIENCE;
        let head = client.read_head(until)?;
        let Some(head) = self.rewrite(&head, host, port) else {
            return client.refuse(
                "400 Bad Request",
                "no request that a credential is added to",
            );
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mine = ClientConnection::new(Arc::clone(&self.client), name);
        let mine = mine.map_err(io::Error::other)?;
        let mut server = Side::new(Connection::Client(mine), server, Vec::new());
        if let Err(error) = server.agree(Instant::now() + PATIENCE) {
            return client.refuse("502 Bad Gateway", &format!("{host}: {error}"));
        }
        server.tls.writer().write_all(&head)?;
        relay(&mut client, &mut server)
    }

    /// The head of a request with the headers of its host, and without any that it had by these names; `None` where it is not
    /// certain that the server reads it in the same way.
    fn rewrite(&self, head: &[u8], host: &str, port: u16) -> Option<Vec<u8>> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let first = lines.next()?;
        let words: Vec<&str> = first.split(' ').collect();
        let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else {
            return None;
        };
        // What a server sends back to a TRACE is the request, with the credential.
        let is_plain = |text: &str| !text.contains(['\r', '\n', '\0']);
        if !is_token(method) || method == "TRACE" || !target.starts_with('/') || !is_plain(target) {
            return None;
        }
        let own = || {
            let all = self.headers.iter();
            all.filter(|one| one.host == host && one.port == port)
        };
        let (mut made, mut hosts) = (format!("{first}\r\n"), 0);
        for line in lines {
            let (name, value) = line.split_once(':')?;
            // A line that continues another one begins with a space.
            if !is_token(name) || !is_plain(value) {
                return None;
            }
            if name.eq_ignore_ascii_case("host") {
                hosts += 1;
                let (asked, at) = host_and_port(value.trim())?;
                if asked != host || at.unwrap_or(443) != port {
                    return None;
                }
            }
            let ours = own().any(|one| one.name.eq_ignore_ascii_case(name));
            let hop = ["connection", "keep-alive", "upgrade"];
            if !ours && !hop.iter().any(|one| one.eq_ignore_ascii_case(name)) {
                made.push_str(line);
                made.push_str("\r\n");
            }
        }
        for InjectedHeader { name, value, .. } in own() {
            made.push_str(&format!("{name}: {value}\r\n"));
        }
        made.push_str("Connection: close\r\n\r\n");
        (hosts == 1).then(|| made.into_bytes())
    }
}

fn text(error: rustls::Error) -> String {
    error.to_string()
}

fn params(names: Vec<String>, common: &str) -> Result<CertificateParams, rcgen::Error> {
    #[expect(
        clippy::disallowed_methods,
        reason = "certificates are compared with the clock of this machine by programs that know no other"
    )]
    let now = SystemTime::now();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, common);
    params.not_before = (now - EARLIER).into();
    params.not_after = (now + VALID).into();
    Ok(params)
}

fn authority(
    names: &[String],
) -> Result<(rcgen::Certificate, Issuer<'static, KeyPair>), rcgen::Error> {
    let mut params = params(Vec::new(), "Escrow, for one run")?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let names = names.iter().cloned().map(GeneralSubtree::DnsName);
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.collect(),
        excluded_subtrees: Vec::new(),
    });
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate, Issuer::new(params, key)))
}

fn leaf(
    name: &str,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
    let mut params = params(vec![name.to_owned()], name)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((certificate.der().clone(), key.into()))
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn client_config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// One end of a connection, in which this process speaks TLS.
struct Side<'s> {
    tls: Connection,
    socket: &'s TcpStream,
    /// What was read of the socket before.
    first: Vec<u8>,
    /// What it said, and was not passed on.
    pending: Vec<u8>,
    /// Whether it says nothing more.
    ended: bool,
    /// Whether it is gone, too.
    gone: bool,
    /// Whether it knows that the other side says nothing more.
    told: bool,
}

impl<'s> Side<'s> {
    fn new(tls: Connection, socket: &'s TcpStream, first: Vec<u8>) -> Self {
        Self {
            tls,
            socket,
            first,
            pending: Vec::new(),
            ended: false,
            gone: false,
            told: false,
        }
    }

    /// Reads once.
    fn take(&mut self) -> io::Result<()> {
        let length = match self.first.is_empty() {
            true => self.tls.read_tls(&mut self.socket)?,
            false => {
                let length = self.tls.read_tls(&mut &self.first[..])?;
                self.first.drain(..length);
                length
            }
        };
        let state = self.tls.process_new_packets().map_err(|error| {
            // The other side is told why, if it still listens.
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) | Err(_) => io::Error::new(io::ErrorKind::InvalidData, error),
            }
        })?;
        let mut said = vec![0; state.plaintext_bytes_to_read()];
        self.tls.reader().read_exact(&mut said)?;
        self.pending.append(&mut said);
        self.gone = length == 0;
        self.ended = self.gone || state.peer_has_closed();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> io::Result<()> {
        self.flush()?;
        self.socket.set_read_timeout(Some(left(until)?))?;
        match self.take() {
            Ok(()) if self.ended => Err(io::ErrorKind::UnexpectedEof.into()),
            taken => taken,
        }
    }

    fn agree(&mut self, until: Instant) -> io::Result<()> {
        self.socket.set_write_timeout(Some(PATIENCE))?;
        while self.tls.is_handshaking() {
            self.wait(until)?;
        }
        self.flush()
    }

    /// The head of a request, without the empty line.
    fn read_head(&mut self, until: Instant) -> io::Result<Vec<u8>> {
        self.agree(until)?;
        loop {
            let end = self.pending.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let rest = self.pending.split_off(end + 4);
                let mut head = std::mem::replace(&mut self.pending, rest);
                head.truncate(end);
                return Ok(head);
            }
            if self.pending.len() > HEAD {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.wait(until)?;
        }
    }

    fn refuse(&mut self, status: &str, why: &str) -> io::Result<()> {
        let body = format!("escrow: {why}\n");
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        self.tls.writer().write_all((head + &body).as_bytes())?;
        self.tls.send_close_notify();
        self.flush()
    }

    /// What is waited for; nothing where that is nothing.
    fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.pending.is_empty() && !self.ended);
        flags.set(PollFlags::OUT, self.tls.wants_write());
        flags
    }
}

/// Passes on what either side says until the server has ended, or the client is gone.
fn relay(client: &mut Side<'_>, server: &mut Side<'_>) -> io::Result<()> {
    client.socket.set_nonblocking(true)?;
    server.socket.set_nonblocking(true)?;
    loop {
        let upwards = pass(client, server)?;
        let downwards = pass(server, client)?;
        let is_over = server.ended && server.pending.is_empty() && !client.tls.wants_write();
        if is_over || client.gone {
            return Ok(());
        }
        if upwards || downwards {
            continue;
        }
        let sides = [&*client, &*server].into_iter();
        let sides = sides.filter(|side| !side.interest().is_empty());
        let mut ready: Vec<PollFd<'_>> = sides
            .map(|side| PollFd::new(side.socket, side.interest()))
            .collect();
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Passes on what there is; whether that was anything.
fn pass(from: &mut Side<'_>, to: &mut Side<'_>) -> io::Result<bool> {
    let mut moved = false;
    if from.pending.is_empty() && !from.ended {
        moved |= unless_waiting(from.take())?;
    }
    if !from.pending.is_empty() {
        let length = to.tls.writer().write(&from.pending)?;
        from.pending.drain(..length);
        moved |= length > 0;
    }
    if from.ended && from.pending.is_empty() && !to.told {
        to.tls.send_close_notify();
        (to.told, moved) = (true, true);
    }
    let wanted = to.tls.wants_write();
    let sent = unless_waiting(to.flush())?;
    Ok(moved || (wanted && sent))
}

/// Whether something was done at once.
fn unless_waiting(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads a file of a credential, or of certificates.
pub(crate) fn read_named(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    crate::fs::owned::read_named(path, most).map_err(|error| error.to_string())
}

/// Where the certificates lie that a command trusts.
pub(super) fn bundle(spec: &RunSpec) -> Option<Location> {
    spec.authority.as_ref()?;
    let mut path = spec.socket.as_bytes().to_vec();
    path.extend(b".pem");
    Some(Location::from_bytes(&path))
}

/// Writes, in the namespace, the certificates that the command trusted before and that of the authority into one file, and names it to
/// the command by the usual variables.
pub(super) fn trust(spec: &mut RunSpec) -> Result<(), RunError> {
    let (Some(path), Some(authority)) = (bundle(spec), spec.authority.clone()) else {
        return Ok(());
    };
    let variable = |name: &str| {
        let mut all = spec.environment.iter();
        let found = all.find(|(known, _)| known.as_bytes() == name.as_bytes());
        found.map(|(_, value)| value.as_path().to_owned())
    };
    let usual = SYSTEM.iter().map(PathBuf::from);
    let read = |path: &PathBuf| read_named(path, 8 << 20).ok();
    let base = variable("SSL_CERT_FILE").into_iter().chain(usual);
    let base = base.filter_map(|path| read(&path)).next();
    let more = variable("NODE_EXTRA_CA_CERTS").and_then(|path| read(&path));
    let mut all = Vec::new();
    for part in [base, more, Some(authority.into_bytes())]
        .into_iter()
        .flatten()
    {
        all.extend(part);
        all.push(b'\n');
    }
    let step = "write the certificates that the command trusts";
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(path.as_path(), flags, Mode::from_raw_mode(0o444)).map_err(at(step))?;
    let written = std::fs::File::from(file).write_all(&all);
    written.map_err(super::at_io(step))?;
    for name in VARIABLES.split_whitespace() {
        let name = Location::from_bytes(name.as_bytes());
        spec.environment.retain(|(known, _)| *known != name);
        spec.environment.push((name, path.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(head: &str) -> Option<String> {
        let header = InjectedHeader {
            host: "api.example.org".to_owned(),
            port: 443,
            name: "x-api-key".to_owned(),
            value: "SECRET".to_owned(),
        };
        let injector = Injector::new(vec![header], b"").expect("certificates can be made");
        assert!(!format!("{injector:?}").contains("SECRET"));
        let made = injector.rewrite(head.as_bytes(), "api.example.org", 443)?;
        Some(String::from_utf8(made).expect("it is text"))
    }

    #[test]
    fn a_header_takes_the_place_of_those_by_its_name() {
        let head = "POST /v1 HTTP/1.1\r\nHost: API.example.org\r\nX-Api-Key: inside\r\nConnection: keep-alive\r\nx-api-KEY: two";
        let made = rewritten(head).expect("it is a request");
        assert_eq!(
            made,
            "POST /v1 HTTP/1.1\r\nHost: API.example.org\r\nx-api-key: SECRET\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn what_a_server_may_read_otherwise_gets_no_credential() {
        for head in [
            "GET / HTTP/1.1",
            "GET / HTTP/1.1\r\nHost: other.example.org",
            "GET / HTTP/1.1\r\nHost: api.example.org:444",
            "GET / HTTP/1.1\r\nHost: api.example.org\r\nHost: api.example.org",
            "GET / HTTP/1.1\r\nHost: api.example.org\r\n folded: x",
            "GET / HTTP/1.1\r\nHost: api.example.org\r\nX-Api-Key : x",
            "GET / HTTP/1.1\r\nHost: api.example.org\r\nX: a\nHost: b",
            "GET https://other.example.org/ HTTP/1.1\r\nHost: api.example.org",
            "TRACE / HTTP/1.1\r\nHost: api.example.org",
            "GET / HTTP/2.0\r\nHost: api.example.org",
            "GET /\r\nHost: api.example.org",
        ] {
            assert_eq!(rewritten(head), None, "{head}");
        }
    }
}
