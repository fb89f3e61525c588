//! An S3 server of the tests, on loopback, from the package moto; ended when dropped. It keeps what it answered for, also when it is killed. What a bucket
//! holds is asked over plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

/// The Python that has what is needed: the one on the search path, or that of `scripts/install-deps.sh`.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [
        PathBuf::from("python3"),
        root.join("target/s3-python/bin/python3"),
    ];
    let has = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import boto3, moto.moto_server.werkzeug_app"]);
        let output = command.stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = places.into_iter().find(has);
    found.expect("Python has no boto3 and moto; scripts/install-deps.sh installs them")
}

/// A server.
#[derive(Debug)]
pub struct S3 {
    child: Mutex<Child>,
    /// Its address, as in `http://127.0.0.1:1234`.
    pub address: String,
    python: PathBuf,
    /// What it keeps.
    directory: tempfile::TempDir,
}

/// Starts the program; the address that it says.
fn start(python: &Path, directory: &Path, port: Option<&str>) -> (Child, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/s3_server.py");
    let mut command = Command::new(python);
    command.arg(script).arg(directory).args(port);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
    let output = child.stdout.take().expect("it is piped");
    let mut address = String::new();
    let read = BufReader::new(output).read_line(&mut address);
    read.expect("it says its address");
    let address = address.trim_end().to_owned();
    assert!(address.starts_with("http://"), "it did not start");
    (child, address)
}

impl S3 {
    /// Starts one.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let python = python();
        let directory = tempfile::tempdir().expect("there is room");
        let (child, address) = start(&python, directory.path(), None);
        Self {
            child: Mutex::new(child),
            address,
            python,
            directory,
        }
    }

    /// Kills it at its `at`-th request from now on, before the request is carried out, or `after` it was and before it is answered.
    pub fn dies(&self, at: u64, how: &str) {
        let path = format!("/__die?at={at}&how={how}");
        assert_eq!(self.ask("GET", &path, "").0, 200);
    }

    /// How many requests there were since the last time that it was asked, or was to die.
    pub fn count(&self) -> u64 {
        let (_, count) = self.ask("GET", "/__count", "");
        count.parse().expect("a number")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("no thread panics with it")
    }

    /// Whether it is dead.
    pub fn is_dead(&self) -> bool {
        let ended = self.child().try_wait().expect("it can be waited for");
        ended.is_some()
    }

    /// Starts it again where it was, once it is dead.
    pub fn restart(&self) {
        self.child().wait().expect("it can be waited for");
        let port = self.address.rsplit(':').next();
        let (child, address) = start(&self.python, self.directory.path(), port);
        assert_eq!(address, self.address);
        *self.child() = child;
    }

    /// The search path on which `python3` is one that has boto3.
    pub fn path(&self) -> std::ffi::OsString {
        let own = self.python.parent().filter(|place| place.is_absolute());
        let before = std::env::var_os("PATH").unwrap_or_default();
        let all = own
            .map(Path::to_owned)
            .into_iter()
            .chain(std::env::split_paths(&before));
        std::env::join_paths(all).expect("no path has a colon")
    }

    /// Sends a request; the status and the body of the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let host = self.address.trim_start_matches("http://");
        let mut link = TcpStream::connect(host).expect("it listens");
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: AWS test:test\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        link.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        link.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Makes a bucket that keeps versions.
    pub fn bucket(&self, name: &str) {
        let enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        for (path, body) in [
            (format!("/{name}"), ""),
            (format!("/{name}?versioning"), enabled),
        ] {
            assert_eq!(self.ask("PUT", &path, body).0, 200, "{path}");
        }
    }

    /// Puts an object there.
    pub fn put(&self, bucket: &str, key: &str, content: &str) {
        let path = format!("/{bucket}/{key}");
        assert_eq!(self.ask("PUT", &path, content).0, 200, "{path}");
    }

    /// The content of an object; `None` where there is none.
    pub fn get(&self, bucket: &str, key: &str) -> Option<String> {
        let (status, body) = self.ask("GET", &format!("/{bucket}/{key}"), "");
        assert!([200, 404].contains(&status), "{status}: {body}");
        (status == 200).then_some(body)
    }

    /// How many versions, and delete markers, there are below a prefix.
    pub fn versions(&self, bucket: &str, prefix: &str) -> usize {
        let (_, body) = self.ask("GET", &format!("/{bucket}?versions&prefix={prefix}"), "");
        body.matches("<VersionId>").count()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It is this one's alone.
        self.child().kill().expect("it can be ended");
        self.child().wait().expect("it can be waited for");
    }
}
