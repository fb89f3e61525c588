//! Credentials that the proxy adds to requests: the server gets them, and the command never does.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::*;

const SECRET: &str = "sk-real-5f2c71e09ab4d863";

/// A server by TLS that notes what it was sent in files beside the sandbox, and answers with a hash of the body.
const SERVER: &str = r#"
import hashlib, http.server, ssl, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with open("seen", "a") as seen:
            print(self.command, self.path, [self.headers.get_all(name) for name in ("x-api-key", "authorization")], file=seen)
        text = hashlib.sha256(body).hexdigest().encode() + b"\n" + b"x" * int(self.path.split("=")[-1] if "=" in self.path else 0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("leaf.pem", "leaf.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Server {
    fn start(dir: PathBuf) -> Self {
        sh(
            &dir,
            "exec 2>/dev/null; key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'; \
             openssl req -x509 $key -days 2 -subj /CN=authority -keyout ca.key -out ca.pem; \
             openssl req $key -subj /CN=localhost -keyout leaf.key -out leaf.csr; \
             echo subjectAltName=DNS:localhost > names; \
             openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out leaf.pem; touch seen",
        );
        let mut server = Command::new("/usr/bin/python3");
        let server = server.args(["-c", SERVER]).current_dir(&dir);
        let mut child = server
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut line = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said)
            .read_line(&mut line)
            .expect("it says its port");
        let port = line.trim().parse().expect("a port");
        Self { child, port, dir }
    }

    /// What it was sent since it was last asked.
    fn seen(&self) -> String {
        let seen = read(self.dir.join("seen"));
        write(self.dir.join("seen"), "");
        seen
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.expect("it is ours");
    }
}

/// A project that injects a key from a variable for a server.
fn scene() -> (World, Cli, Server) {
    let (world, cli) = world();
    let server = Server::start(world.dir("server"));
    let config = format!(
        "run:\n  network: {{allow: [\"localhost:{0}\"]}}\n  inject:\n  - {{host: \"localhost:{0}\", header: x-api-key, from: \"env:SERVICE_API_KEY\"}}\n",
        server.port
    );
    write(world.at("app/escrow.yaml"), config);
    let authority = server.dir.join("ca.pem");
    let cli = cli
        .env("SERVICE_API_KEY", SECRET)
        .env("SSL_CERT_FILE", authority);
    (world, cli, server)
}

/// Every place where what a run keeps lies.
fn kept_of(world: &World) -> String {
    let state = world.home();
    let found = sh(&state, &format!("grep -rlF -e {SECRET} . || true"));
    found.to_string()
}

// rule Q6
#[test]
fn a_server_gets_the_credential_and_the_command_does_not() {
    as_user_too();
    let (world, cli, server) = scene();
    cli.ok("trust --yes");
    let url = format!("https://localhost:{}", server.port);
    // The script itself is in a command line.
    let pattern = SECRET.replace("real", "rea[l]");
    let script = format!(
        "echo $SERVICE_API_KEY; head -c 3000000 /dev/zero > big; \
         curl -sS {url}/one -H 'X-API-Key: inside' -H \"x-api-key: $SERVICE_API_KEY\"; \
         curl -sS {url}/two --data-binary @big; \
         curl -sS {url}/three -H 'Transfer-Encoding: chunked' --data-binary @big; \
         curl -sS '{url}/size=2000000' | wc -c; \
         curl -sS {url}/four {url}/five; \
         /usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}/six\").status)'; \
         cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /dev/escrow/* 2>/dev/null | grep -ac -e '{pattern}'; \
         env | grep -c -e '{pattern}'"
    );
    let outcome = cli.run(inside("--json run --new --report report.json", &script));
    let said = outcome.stderr_text();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n";
    let big = sh(
        world.path(),
        "head -c 3000000 /dev/zero | sha256sum | cut -d' ' -f1",
    );
    let expected =
        format!("added-outside-by-escrow\n{empty}{big}{big}2000065\n{empty}{empty}200\n0\n0\n");
    assert!(said.starts_with(&expected), "{said}");
    let seen = server.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 7, "{seen}");
    for line in lines {
        let end = format!("[['{SECRET}'], None]");
        assert!(line.ends_with(&end), "{line}");
    }
    let document = String::from_utf8_lossy(&outcome.stdout).into_owned();
    lacks(&document, [SECRET, "\"SERVICE_API_KEY\""]);
    lacks(&said, [SECRET]);
    let log = cli.ok("log --json");
    lacks(&log, [SECRET]);
    assert_eq!(kept_of(&world), "");
}

/// A client that knows nothing of the variables of the proxy, and node, which has a list of its own.
#[test]
fn node_trusts_the_authority_of_the_run() {
    as_user_too();
    let (_world, cli, server) = scene();
    cli.ok("trust --yes");
    let script = format!(
        "const tls = require('tls'), http = require('http'), url = new URL(process.env.https_proxy); \
        http.request({{host: url.hostname, port: url.port, method: 'CONNECT', path: 'localhost:{0}'}}).on('connect', (_, socket) => {{ \
        const s = tls.connect({{socket, servername: 'localhost'}}, () => {{ console.log(s.authorized); s.write('GET /node HTTP/1.1\\r\\nHost: localhost:{0}\\r\\n\\r\\n'); }}); \
        s.on('data', (d) => {{ console.log(String(d).split('\\r\\n')[0]); s.end(); }}); }}).end()",
        server.port
    );
    let mut line = words("-q run --new --rollback -- node -e");
    line.push(script.into());
    assert_eq!(cli.ok(line), "true\nHTTP/1.1 200 OK\n");
    has(&server.seen(), [SECRET]);
}

/// What loosens needs trust: the author of a tree could have the user's key sent anywhere.
// rule S6
#[test]
fn the_configuration_of_a_tree_injects_nothing_unless_it_is_trusted() {
    as_user_too();
    let (world, cli, server) = scene();
    let script = format!(
        "curl -sS https://localhost:{}/untrusted --cacert {}",
        server.port,
        server.dir.join("ca.pem").display()
    );
    let network = format!(
        "run --new --rollback --network allow:localhost:{}",
        server.port
    );
    let outcome = cli.expect(inside(&network, &script), 0);
    has(&outcome.stderr_text(), ["run.inject"]);
    has(&server.seen(), ["/untrusted [None, None]"]);
    let shown = cli.expect("trust", 2).stderr_text();
    let shown = shown + &cli.ok("trust --yes");
    has(&shown, ["SERVICE_API_KEY", "localhost"]);
    drop(world);
}

/// A credential goes to the host that was named, if its certificate is one that this machine trusts, and to no other.
// rule S6
#[test]
fn a_credential_is_sent_to_no_other_server() {
    as_user_too();
    let (world, cli, server) = scene();
    let other = Server::start(world.dir("other"));
    let config = read(world.at("app/escrow.yaml"));
    let both = format!(
        "[\"localhost:{}\", \"localhost:{}\"]",
        server.port, other.port
    );
    let config = config.replace(&format!("[\"localhost:{}\"]", server.port), &both);
    write(world.at("app/escrow.yaml"), &config);
    cli.ok("trust --yes");
    let (one, two) = (server.port, other.port);
    let script = format!(
        "curl -sS --cacert {}/ca.pem https://localhost:{two}/other | head -c 3; \
         curl -sS https://localhost:{one}/host -H 'Host: localhost:{two}'; \
         curl -sS https://localhost:{one}/smuggled -H 'Host:' -H ' Host: x'; \
         curl -sS -X TRACE https://localhost:{one}/trace; \
         curl -sS https://localhost:{one}/good | head -c 3",
        other.dir.display()
    );
    // Beside a project, what may be a key is hidden by its name.
    let show = format!(
        "-q run --new --rollback --show {}/ca.pem",
        other.dir.display()
    );
    let out = cli.ok(inside(&show, &script));
    let refused = "escrow: no request that a credential is added to\n";
    assert_eq!(out, format!("e3b{}e3b", refused.repeat(3)));
    assert_eq!(other.seen(), "GET /other [None, None]\n");
    assert_eq!(server.seen(), format!("GET /good [['{SECRET}'], None]\n"));
    // The server has a certificate that this machine does not trust.
    let authority = other.dir.join("ca.pem");
    let cli = cli.env("SSL_CERT_FILE", authority);
    let script =
        format!("curl -sS -o /dev/null -w '%{{http_code}}' https://localhost:{one}/untrusted");
    assert_eq!(cli.ok(inside("-q run --new --rollback", &script)), "502");
    assert_eq!(server.seen(), "");
}

#[test]
fn a_credential_that_cannot_be_added_is_refused_by_name() {
    as_user_too();
    let (world, cli, server) = scene();
    cli.ok("trust --yes");
    for options in ["--network host", "--network allow:example.org"] {
        let outcome = cli.expect(inside(&format!("run --new {options}"), "true"), 125);
        has(
            &outcome.stderr_text(),
            [
                "cannot inject a credential for localhost",
                "--network allow:",
            ],
        );
        lacks(&outcome.stderr_text(), [SECRET]);
    }
    // Without a network there is nothing to be added to.
    assert_eq!(
        cli.ok(inside(
            "-q run --new --rollback --network none",
            "echo $SERVICE_API_KEY"
        )),
        "added-outside-by-escrow\n"
    );
    let broken = cli
        .clone()
        .env("SERVICE_API_KEY", format!("{SECRET}\nX: y"));
    let said = broken
        .expect(inside("run --new", "true"), 125)
        .stderr_text();
    has(&said, ["cannot be a header"]);
    lacks(&said, [SECRET]);
    let said = cli.expect(
        inside(&format!("run --new -e OTHER=x{SECRET}"), "true"),
        125,
    );
    has(&said.stderr_text(), ["would find it in the variable OTHER"]);
    lacks(&said.stderr_text(), [SECRET]);
    // From a file, which commands do not see, and in a format.
    let home = world.dir("user-home");
    write(home.join("key"), format!("{SECRET}\n"));
    let config = format!(
        "run:\n  network: {{allow: [\"localhost:{0}\"]}}\n  inject:\n  - {{host: \"localhost:{0}\", header: Authorization, from: \"file:~/key\", format: \"Bearer {{}}\"}}\n",
        server.port
    );
    write(world.at("app/escrow.yaml"), config);
    cli.ok("trust --yes");
    let script = format!(
        "curl -sS https://localhost:{}/file | head -c 3; cat ~/key",
        server.port
    );
    let outcome = cli.run(inside("-q run --new --rollback", &script));
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert_eq!(said, "e3b");
    assert_eq!(
        server.seen(),
        format!("GET /file [None, ['Bearer {SECRET}']]\n")
    );
}
