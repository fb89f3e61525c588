//! An encrypted link to a server, with what libpq means by `sslmode`, `sslrootcert`, `sslcert` and `sslkey`.
//!
//! `verify-ca` and `verify-full` ask for a certificate that one in `sslrootcert` signed, or that is itself in it; `verify-full` also
//! for one that names the host. `require` asks for the same as `verify-ca` where there is such a file, and for encryption alone where
//! there is none; `prefer` and `allow` never look at the certificate.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::SendFlags;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use serde::{Deserialize, Serialize};

use super::connect::{PgError, PgResult};
use super::location::{Server, SslMode};
use crate::fs::{Dir, owned};

/// The largest file of certificates that is read.
const MOST: u64 = 8 << 20;

/// Where distributions keep the certificates that they trust: `sslrootcert=system`.
const SYSTEM: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// The files of an encrypted link, as absolute paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TlsFiles {
    /// The certificates that are trusted.
    pub(super) root: Option<PathBuf>,
    /// The client's own certificate, and its key.
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl TlsFiles {
    /// The files that are named, or the usual ones of the home directory that are there.
    pub(super) fn find(
        mut named: impl FnMut(&str) -> Option<String>,
        home: Option<&Path>,
    ) -> Result<Self, String> {
        let there = |path: &&Path| Dir::look(path).is_ok();
        let mut file = |parameter: &str, usual: &str| match named(parameter).as_deref() {
            Some("system") if parameter == "sslrootcert" => {
                let found = SYSTEM.iter().map(Path::new).find(there);
                let found = found.ok_or("this system has no file of trusted certificates");
                Ok(Some(found?.to_owned()))
            }
            Some(path) if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
            Some(path) => Err(format!(
                "{parameter} is '{path}': give an absolute path, since the connection outlives the directory"
            )),
            None => {
                let usual = home.map(|home| home.join(".postgresql").join(usual));
                Ok(usual.filter(|path| there(&path.as_path())))
            }
        };
        Ok(Self {
            root: file("sslrootcert", "root.crt")?,
            cert: file("sslcert", "postgresql.crt")?,
            key: file("sslkey", "postgresql.key")?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    owned::read_named(path, MOST).map_err(|error| error.to_string())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(format!("'{}' holds no certificate (PEM)", path.display())),
    }
}

/// A private key, which others cannot read; one of root's may be read by a group, as libpq permits.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let meta = Dir::look(path).map_err(|error| error.to_string())?;
    let others = if meta.uid == 0 { 0o037 } else { 0o077 };
    if meta.is_file() && meta.mode & others != 0 {
        return Err(format!(
            "others can read the private key '{}': chmod 600",
            path.display()
        ));
    }
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| format!("'{}' holds no private key (PEM): {error}", path.display()))
}

/// How the certificate of a server is looked at.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None: it is not looked at.
    trusted: Option<(RootCertStore, Vec<CertificateDer<'static>>)>,
    names_host: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((roots, listed)) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        // One that signed itself, as servers of one's own have it.
        if !listed.contains(certificate) {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, others, now, algorithms)?;
        }
        if self.names_host {
            verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

fn config(server: &Server) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusted = match (server.sslmode, &server.tls.root) {
        (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
            return Err(
                "sslmode asks for a certificate that can be checked, and there is none to check it by: set sslrootcert \
                 (or have ~/.postgresql/root.crt, or say sslrootcert=system)"
                    .to_owned(),
            );
        }
        (SslMode::Disable | SslMode::Allow | SslMode::Prefer, _) | (_, None) => None,
        (_, Some(root)) => {
            let listed = certificates(root)?;
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(listed.iter().cloned());
            Some((roots, listed))
        }
    };
    let verifier = Verifier {
        provider: Arc::clone(&provider),
        trusted,
        names_host: server.sslmode == SslMode::VerifyFull,
    };
    let text = |error: rustls::Error| error.to_string();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match (&server.tls.cert, &server.tls.key) {
        (Some(cert), Some(key)) => config
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(text),
        (Some(cert), None) => Err(format!("there is no sslkey for '{}'", cert.display())),
        (None, _) => Ok(config.with_no_client_auth()),
    }
}

/// An encrypted stream.
pub(super) struct TlsStream {
    session: ClientConnection,
    pub(super) socket: TcpStream,
}

/// Writes what goes out without waiting.
struct WithoutWaiting<'s>(&'s TcpStream);

impl Write for WithoutWaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::send(self.0, bytes, flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsStream {
    /// Agrees with a server that said that it speaks TLS.
    pub(super) fn open(mut socket: TcpStream, server: &Server) -> PgResult<Self> {
        let fail = |why: String| {
            PgError::link(format!(
                "cannot make an encrypted link to {}: {why}",
                server.describe()
            ))
        };
        let name = ServerName::try_from(server.host.clone());
        let name =
            name.map_err(|_| fail("its host is no name that a certificate has".to_owned()))?;
        let config = Arc::new(config(server).map_err(fail)?);
        let session = ClientConnection::new(config, name);
        let mut session = session.map_err(|error| fail(error.to_string()))?;
        while session.is_handshaking() {
            let agreed = session.complete_io(&mut socket);
            agreed.map_err(|error| fail(explained(&error)))?;
        }
        Ok(Self { session, socket })
    }

    /// Sends what can be sent without waiting, and returns how much was taken.
    pub(super) fn send_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What was taken before goes first.
        let taken = match self.is_unsent() {
            true => 0,
            false => self.session.writer().write(bytes)?,
        };
        while self.is_unsent() {
            match self.session.write_tls(&mut WithoutWaiting(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Whether something was taken that is not sent yet.
    pub(super) fn is_unsent(&self) -> bool {
        self.session.wants_write()
    }
}

/// Why there is no agreement, in words for people.
fn explained(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "the server's certificate is of another host (sslmode=verify-full)".to_owned(),
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("no certificate of sslrootcert signed the server's for now: {why:?}")
        }
        _ => error.to_string(),
    }
}

/// Gives everything that is decrypted at once where there is room for a whole record, so that who waits for the socket misses nothing.
impl Read for TlsStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                answer => return answer,
            }
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            let read = self.session.process_new_packets();
            read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.is_unsent() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}
