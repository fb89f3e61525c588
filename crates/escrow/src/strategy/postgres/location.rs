//! Where a PostgreSQL database is, said as users of libpq say it: a URL, then a service file, then `PG…` variables,
//! then what is usual. What comes out names host, port, user and database, and never a password: that is looked up where
//! a connection is made, in `PGPASSWORD`, the service file and the password file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::tls::TlsFiles;
use crate::fs::owned;

/// Where the server of a Debian machine listens, and where everyone else's does.
const SOCKET_DIRS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The largest password or service file that is read.
const MOST: u64 = 1 << 20;

/// What the caller's environment says.
pub(super) type Variables = BTreeMap<String, String>;

/// A database of a server, as it was found: enough for another process to reach the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Server {
    /// A directory with a socket, if it begins with a slash; else a name or an address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) sslmode: SslMode,
    #[serde(default)]
    pub(super) tls: TlsFiles,
    /// What is set for the session, as `-c name=value`.
    pub(super) options: Option<String>,
    /// Seconds.
    pub(super) connect_timeout: u64,
    /// The service it was found by, whose file may have its password.
    #[serde(default)]
    pub(super) service: Option<String>,
}

/// Whether the link is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    /// Whether an encrypted link is asked for, or tried first.
    pub(super) fn encrypts_first(self) -> bool {
        !matches!(self, Self::Disable | Self::Allow)
    }

    /// Whether either kind of link will do.
    pub(super) fn may_try_both(self) -> bool {
        matches!(self, Self::Allow | Self::Prefer)
    }
}

impl Server {
    /// The socket, where there is one.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        let name = format!(".s.PGSQL.{}", self.port);
        self.host
            .starts_with('/')
            .then(|| Path::new(&self.host).join(name))
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let Self { host, port, .. } = self;
        format!(
            "database {} as {} at {host}:{port}",
            self.database, self.user
        )
    }
}

/// Refuses a URL that cannot be stored or cannot be read. Never repeats a password.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    Parsed::read(url).map(drop)
}

/// The name of the database in a URL, or of its host, to call a resource by.
pub(crate) fn name_of(url: &str) -> Option<String> {
    let parsed = Parsed::read(url).ok()?;
    let of = |key: &str| parsed.0.get(key).cloned();
    of("dbname").or_else(|| of("service"))
}

/// What a URL says, by the names of libpq.
struct Parsed(BTreeMap<String, String>);

/// The parameters that mean something here; others that libpq knows and that change nothing for us are passed by.
const KNOWN: [&str; 12] = [
    "host",
    "port",
    "user",
    "dbname",
    "service",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "options",
    "connect_timeout",
];

const PASSED_BY: [&str; 6] = [
    "application_name",
    "fallback_application_name",
    "client_encoding",
    "keepalives",
    "gssencmode",
    "target_session_attrs",
];

impl Parsed {
    fn read(url: &str) -> Result<Self, String> {
        let rest = url
            .strip_prefix("postgresql://")
            .or_else(|| url.strip_prefix("postgres://"))
            .ok_or("a PostgreSQL URL begins with postgres:// or postgresql://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (account, place) = match authority.rsplit_once('@') {
            Some((account, place)) => (Some(account), place),
            None => (None, authority),
        };
        let mut said = BTreeMap::new();
        let secret = "a URL with a password would be stored and shown: leave the password out, and put it into ~/.pgpass, \
                      or set PGPASSWORD";
        if let Some(account) = account {
            if account.contains(':') {
                return Err(secret.to_owned());
            }
            said.insert("user".to_owned(), decode(account)?);
        }
        if place.contains(',') {
            return Err("several hosts in one URL are not supported: name the one".to_owned());
        }
        let (host, port) = match place.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => place.split_once(':').unwrap_or((place, "")),
        };
        // What is not written as a URL has it may be a part of a password: it is not repeated.
        if database.contains('@') {
            return Err("the URL has an '@' behind its host: '/', '?' and '@' in a name are written %2F, %3F and %40, and a \
                        password is left out"
                .to_owned());
        }
        if !port.is_empty() && port.parse::<u16>().is_err() {
            return Err("the port in the URL is no number: an IPv6 address has brackets around it, and a password is left out".to_owned());
        }
        for (key, value) in [("host", host), ("port", port), ("dbname", database)] {
            if !value.is_empty() {
                said.insert(key.to_owned(), decode(value)?);
            }
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = decode(key)?;
            if key.contains("password") || key == "passfile" {
                return Err(secret.to_owned());
            }
            if KNOWN.contains(&key.as_str()) {
                said.insert(key, decode(value)?);
            } else if !PASSED_BY.contains(&key.as_str()) {
                let is_word = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                return Err(match is_word {
                    true => format!("the URL has the parameter '{key}', which is not supported"),
                    false => "behind its '?' the URL has what is no parameter".to_owned(),
                });
            }
        }
        said.retain(|_, value| !value.is_empty());
        Ok(Self(said))
    }
}

/// Percent signs resolved.
fn decode(text: &str) -> Result<String, String> {
    let wrong = || "the URL has a '%' that is followed by no two hexadecimal digits".to_owned();
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.filter(|byte| *byte != 0).ok_or_else(wrong)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the URL is not UTF-8".to_owned())
}

/// Resolves a URL to one database.
pub(super) fn resolve(url: &str, env: &Variables) -> Result<Server, String> {
    let mut said = Parsed::read(url)?.0;
    let service = said
        .remove("service")
        .or_else(|| env.get("PGSERVICE").cloned());
    if let Some(service) = &service {
        for (key, value) in service_settings(service, env)? {
            said.entry(key).or_insert(value);
        }
    }
    let variables = [
        ("host", "PGHOST"),
        ("port", "PGPORT"),
        ("user", "PGUSER"),
        ("dbname", "PGDATABASE"),
        ("sslmode", "PGSSLMODE"),
        ("sslrootcert", "PGSSLROOTCERT"),
        ("sslcert", "PGSSLCERT"),
        ("sslkey", "PGSSLKEY"),
        ("channel_binding", "PGCHANNELBINDING"),
        ("options", "PGOPTIONS"),
        ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ];
    for (key, variable) in variables {
        if let Some(value) = env.get(variable).filter(|value| !value.is_empty()) {
            said.entry(key.to_owned()).or_insert_with(|| value.clone());
        }
    }
    let port = said.remove("port").unwrap_or_else(|| "5432".to_owned());
    let port: u16 = port.parse().map_err(|_| format!("'{port}' is no port"))?;
    let user = said.remove("user").or_else(own_name);
    let user = user.ok_or("the URL names no user, and this process has no user name: add one")?;
    // As for libpq: whom everybody trusts may name any host, so the host is checked.
    let anyone = said.get("sslrootcert").is_some_and(|file| file == "system");
    let sslmode = match said.remove("sslmode").as_deref() {
        None if anyone => SslMode::VerifyFull,
        Some(mode) if anyone && mode != "verify-full" => {
            return Err(format!(
                "sslmode={mode} is too weak for sslrootcert=system: use verify-full"
            ));
        }
        None | Some("prefer") => SslMode::Prefer,
        Some("disable") => SslMode::Disable,
        Some("allow") => SslMode::Allow,
        Some("require") => SslMode::Require,
        Some("verify-ca") => SslMode::VerifyCa,
        Some("verify-full") => SslMode::VerifyFull,
        Some(other) => return Err(format!("'{other}' is no sslmode")),
    };
    if said.remove("channel_binding").as_deref() == Some("require") {
        return Err(
            "channel_binding=require is not supported: leave it out, or use sslmode=verify-full"
                .to_owned(),
        );
    }
    let home = env.get("HOME").map(Path::new);
    let tls = TlsFiles::find(|parameter| said.remove(parameter), home)?;
    let timeout = said.remove("connect_timeout");
    let timeout = timeout.and_then(|text| text.parse().ok()).unwrap_or(0);
    Ok(Server {
        host: said.remove("host").unwrap_or_else(|| usual_host(port)),
        port,
        database: said.remove("dbname").unwrap_or_else(|| user.clone()),
        user,
        sslmode,
        tls,
        options: said.remove("options"),
        connect_timeout: if timeout == 0 { 15 } else { timeout },
        service,
    })
}

fn own_name() -> Option<String> {
    crate::fs::accounts::user_name(rustix::process::geteuid().as_raw())
}

/// The directory of the local socket.
fn usual_host(port: u16) -> String {
    let there = |dir: &&&str| {
        crate::fs::Dir::look(&Path::new(dir).join(format!(".s.PGSQL.{port}"))).is_ok()
    };
    let found = SOCKET_DIRS.iter().find(there).unwrap_or(&SOCKET_DIRS[0]);
    (*found).to_owned()
}

/// The path of a file that a variable names, or that is in the home directory.
fn file_of(env: &Variables, variable: &str, usual: &str) -> Option<PathBuf> {
    let named = env.get(variable).filter(|value| !value.is_empty());
    let home = || env.get("HOME").map(|home| Path::new(home).join(usual));
    named.map(PathBuf::from).or_else(home)
}

/// What a service file says of a service.
fn service_settings(service: &str, env: &Variables) -> Result<Vec<(String, String)>, String> {
    let own = file_of(env, "PGSERVICEFILE", ".pg_service.conf");
    let system = env.get("PGSYSCONFDIR").map(PathBuf::from);
    let system = system.unwrap_or_else(|| PathBuf::from("/etc/postgresql-common"));
    for file in own.into_iter().chain([system.join("pg_service.conf")]) {
        let Ok(text) = owned::read_named(&file, MOST) else {
            continue;
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut lines = text.lines().map(str::trim);
        if !lines.any(|line| line == format!("[{service}]")) {
            continue;
        }
        let lines = lines.take_while(|line| !line.starts_with('['));
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once('='));
        let pairs = pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
        return Ok(pairs.collect());
    }
    Err(format!("there is no service '{service}' in a service file"))
}

/// The password of a user of a database, if there is one.
pub(super) fn password(server: &Server, env: &Variables) -> Option<String> {
    let set = env.get("PGPASSWORD").filter(|value| !value.is_empty());
    if let Some(password) = set {
        return Some(password.clone());
    }
    if let Some(service) = &server.service
        && let Ok(settings) = service_settings(service, env)
        && let Some((_, password)) = settings.into_iter().find(|(key, _)| key == "password")
    {
        return Some(password);
    }
    let file = file_of(env, "PGPASSFILE", ".pgpass")?;
    // As libpq: what others can read holds no secret.
    let meta = crate::fs::Dir::look(&file).ok()?;
    if meta.mode & 0o077 != 0 {
        return None;
    }
    let text = owned::read_named(&file, MOST).ok()?;
    find_password(&String::from_utf8_lossy(&text), server)
}

fn find_password(text: &str, server: &Server) -> Option<String> {
    let local = SOCKET_DIRS.contains(&server.host.as_str());
    let port = server.port.to_string();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let fields = split_line(line);
        let [host, wanted_port, database, user, password] = &fields[..] else {
            continue;
        };
        let is = |field: &str, value: &str| field == "*" || field == value;
        let here = is(host, &server.host) || (local && host == "localhost");
        if here
            && is(wanted_port, &port)
            && is(database, &server.database)
            && is(user, &server.user)
        {
            return Some(password.clone()).filter(|password| !password.is_empty());
        }
    }
    None
}

/// The fields of a line of the password file.
fn split_line(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(next) = chars.next() {
        let last = fields.len() - 1;
        match next {
            '\\' => fields[last].extend(chars.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields[last].push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str, env: &[(&str, &str)]) -> Server {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        resolve(url, &env.collect()).expect("it can be resolved")
    }

    #[test]
    fn urls_mean_what_they_mean_to_libpq() {
        let one = found("postgresql://ann@db.example:6543/shop?sslmode=disable", &[]);
        assert_eq!(
            (&*one.host, one.port, &*one.user, &*one.database),
            ("db.example", 6543, "ann", "shop")
        );
        let socket = found("postgres://%2Fvar%2Flib%2Fpg/shop?user=a%20b&port=7", &[]);
        assert_eq!(
            socket.socket(),
            Some(PathBuf::from("/var/lib/pg/.s.PGSQL.7"))
        );
        assert_eq!(socket.user, "a b");
        let host = found("postgres:///shop?host=/run/x&user=u", &[("PGHOST", "/no")]);
        assert_eq!(host.host, "/run/x");
        let all = [
            ("PGHOST", "h"),
            ("PGPORT", "9"),
            ("PGUSER", "u"),
            ("PGDATABASE", "d"),
        ];
        let env = found("postgres://", &all);
        assert_eq!(
            (&*env.host, env.port, &*env.user, &*env.database),
            ("h", 9, "u", "d")
        );
        assert_eq!(found("postgres://u@[::1]:5/d", &[]).host, "::1");
    }

    // rule Q6
    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for url in [
            "postgres://u:s3cret@h/d",
            "postgres://h/d?user=u&password=s3cret",
            "postgresql://u:s3cret@/d?host=/x",
        ] {
            let why = check_url(url).expect_err("refused");
            assert!(why.contains(".pgpass") && !why.contains("s3cret"), "{why}");
        }
    }

    #[test]
    fn the_password_file_is_read_as_libpq_reads_it() {
        let server = found("postgres://ann@db:5/shop", &[]);
        let text = "# all\nother:*:*:*:no\ndb:5:shop:ann:a\\:b\\\\c:d\n*:*:*:*:later\n";
        assert_eq!(
            find_password(text, &server).as_deref(),
            Some("a:b\\c:d"),
            "the rest of a line is the password"
        );
        assert_eq!(find_password("db:5:shop:bob:x", &server), None);
    }
}
