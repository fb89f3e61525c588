//! A network that is a list of hosts: those are reached through the proxy, nothing else is, and what was denied is told.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::attacks::{Scene, compile};
use crate::*;

/// A server of HTTP on this machine's loopback that answers with what it was sent; ends with the test.
fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has one").port();
    let answer = |stream: TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut head = Vec::new();
        while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
            head.push(line);
        }
        let body = head.join("\n");
        let length = body.len();
        write!(
            &stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    port
}

/// The same by TLS, with a certificate that it signed itself.
const TLS_SERVER: &str = r#"
import http.server, ssl, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"secure")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct TlsServer {
    child: Child,
    port: u16,
}

impl TlsServer {
    fn start(directory: &Path) -> Self {
        sh(
            directory,
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
             -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem 2>/dev/null",
        );
        let mut server = Command::new("/usr/bin/python3");
        let server = server.args(["-c", TLS_SERVER]).current_dir(directory);
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
        Self { child, port }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.expect("it is ours");
    }
}

/// Says for each URL what the proxy, or the server behind it, answered.
const CLIENT: &str = r#"
import os, socket, ssl, sys, urllib.error, urllib.request
for name in ["http_proxy", "HTTPS_PROXY", "all_proxy"]:
    assert os.environ[name].startswith("http://127.0.0.1:"), name
trusted = ssl.create_default_context(cafile="cert.pem")
for url in sys.argv[1:]:
    try:
        answer = urllib.request.urlopen(url, context=trusted, timeout=20)
        print(answer.status, *answer.read().decode().split("\n")[:2], sep=" | ")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip(), sep=" | ")
    except OSError as error:
        print(error)
"#;

/// The lines that a command with this network printed, and its document.
#[track_caller]
fn outcome(cli: &Cli, network: &str, command: &[&str]) -> (Vec<String>, Value) {
    let line = format!("--json run --plan try --network allow:{network} --");
    let mut all = words(&line);
    all.extend(command.iter().map(OsString::from));
    let outcome = cli.run(all);
    let said = outcome.stderr_text();
    let document: Value = serde_json::from_slice(&outcome.stdout).expect(&said);
    (said.lines().map(str::to_owned).collect(), document)
}

/// The denied hosts of a document, each with its port.
fn denied(document: &Value) -> Vec<String> {
    let text = |one: &Value| format!("{}:{}", one["host"].as_str().expect("a host"), one["port"]);
    list(&document["denied"]).iter().map(text).collect()
}

// attack D33; rule S7
#[test]
fn d33_a_list_of_hosts_is_the_whole_network() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let app = world.at("app");
    let tls = TlsServer::start(&app);
    let (plain, other, tls) = (echo_server(), echo_server(), tls.port);
    let network =
        format!("127.0.0.1:{plain},localhost:{plain},localhost:{tls},127.1:{plain},169.254.43518");
    let urls = [
        format!("http://127.0.0.1:{plain}/a?b"),
        format!("http://localhost:{plain}/"),
        format!("https://localhost:{tls}/"),
        format!("http://127.0.0.1:{other}/"),
        "http://denied.example/".to_owned(),
        "https://denied.example/".to_owned(),
        // Names that lead to addresses which the list does not have: this machine, and the services of a cloud.
        "http://169.254.43518/".to_owned(),
        format!("http://127.1:{plain}/"),
    ];
    let mut command = vec!["/usr/bin/python3", "-c", CLIENT];
    command.extend(urls.iter().map(String::as_str));
    let (said, document) = outcome(&cli, &network, &command);
    let expected = [
        format!("200 | GET /a?b HTTP/1.1 | Host: 127.0.0.1:{plain}"),
        format!("200 | GET / HTTP/1.1 | Host: localhost:{plain}"),
        "200 | secure".to_owned(),
        format!("403 | escrow: 127.0.0.1:{other} is denied: it is not in the list of permitted hosts"),
        "403 | escrow: denied.example:80 is denied: it is not in the list of permitted hosts".to_owned(),
        "<urlopen error Tunnel connection failed: 403 Forbidden>".to_owned(),
        "403 | escrow: 169.254.43518:80 is denied: it leads to 169.254.169.254, which is not public and not in the list itself".to_owned(),
        format!("200 | GET / HTTP/1.1 | Host: 127.1:{plain}"),
    ];
    assert_eq!(said[..expected.len()], expected, "{said:#?}");
    let expected = [
        format!("127.0.0.1:{other}"),
        "169.254.43518:80".to_owned(),
        "denied.example:80".to_owned(),
        "denied.example:443".to_owned(),
    ];
    assert_eq!(denied(&document), expected);
    let log = cli.ok("log");
    has(&log, ["denied.example:443", &expected[0]]);
    assert_quiet(&world);
}

// attack D33
#[test]
fn d33_nothing_goes_around_the_proxy_or_through_it_in_disguise() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let app = world.at("app");
    let server = TlsServer::start(&app);
    let (plain, tls) = (echo_server(), server.port);
    let network = format!("localhost:{plain},localhost:{tls}");
    let script = r#"
import os, socket, ssl, sys, threading
plain, tls = int(sys.argv[1]), int(sys.argv[2])
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
def ask(text):
    stream = socket.create_connection(proxy, 20)
    try:
        stream.sendall(text)
        stream.shutdown(socket.SHUT_WR)
        return stream.recv(12).decode()
    except OSError as error:
        return type(error).__name__
# Directly: the loopback is its own, and there is no other device.
for target in [("127.0.0.1", plain), ("192.0.2.1", 80)]:
    try:
        socket.create_connection(target, 20)
        print("reached", target)
    except OSError as error:
        print(type(error).__name__)
# What listens inside can be reached.
inner = socket.create_server(("127.0.0.1", 0))
socket.create_connection(inner.getsockname(), 20)
print("inner")
# No request that a proxy answers, or one that hides another.
for text in [b"GET / HTTP/1.1\r\n\r\n", b"CONNECT localhost HTTP/1.1\r\n\r\n", b"\x00" * 100, b"A" * 70000,
             b"GET http://localhost:%d/ HTTP/1.1\r\nX: 1\n\nGET http://evil/\r\n\r\n" % plain,
             b"GET\t/\tHTTP/1.1\nHost:evil\n\nX http://localhost:%d/ HTTP/1.1\r\n\r\n" % plain,
             b"GET http://localhost:%d/ HTTP/1.1\r\nHost\x0b: evil\r\n\r\n" % plain,
             b"GET http://a@localhost:%d/ HTTP/1.1\r\n\r\n" % plain, b"GET http://lo\xffcalhost/ HTTP/1.1\r\n\r\n",
             b"POST http://localhost:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % plain,
             b"POST http://localhost:%d/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx" % plain,
             b"POST http://localhost:%d/ HTTP/1.1\r\nContent-Length: +1\r\n\r\nx" % plain]:
    print(ask(text) in ("HTTP/1.1 400", "ConnectionResetError", "BrokenPipeError"))
# The name in TLS must be permitted too, and stand in one record.
def tunnel():
    stream = socket.create_connection(proxy, 20)
    stream.sendall(b"CONNECT localhost:%d HTTP/1.1\r\n\r\n" % tls)
    assert stream.recv(1000).startswith(b"HTTP/1.1 200"), "no tunnel"
    return stream
def greet(name, split):
    stream = tunnel()
    context = ssl.create_default_context(cafile="cert.pem")
    context.check_hostname = False
    if split:
        sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
        try: context.wrap_bio(received, sent, server_hostname=name).do_handshake()
        except ssl.SSLWantReadError: pass
        hello = sent.read()[5:]
        for part in [hello[:40], hello[40:]]:
            stream.sendall(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part)
        return len(stream.recv(1000)) > 0
    try:
        return context.wrap_socket(stream, server_hostname=name).version() is not None
    except OSError:
        return False
print(greet("localhost", False), greet("other.example", False), greet("localhost", True))
# A warning before the greeting would hide it.
warned = tunnel()
warned.sendall(b"\x15\x03\x01\x00\x02\x01\x5a")
print(warned.recv(1000) == b"")
# More connections than there may be: the rest is turned away, and the proxy goes on.
many = [socket.create_connection(proxy, 20) for _ in range(300)]
answers = [one.recv(12) for one in many[-20:]]
print(answers.count(b"HTTP/1.1 503") > 0)
for one in many: one.close()
"#;
    let (plain_text, tls_text) = (plain.to_string(), tls.to_string());
    let command = ["/usr/bin/python3", "-c", script, &plain_text, &tls_text];
    let (said, document) = outcome(&cli, &network, &command);
    let mut expected = vec!["ConnectionRefusedError", "OSError", "inner"];
    expected.extend(["True"; 12]);
    expected.extend(["True False False", "True", "True"]);
    assert_eq!(said[..expected.len()], expected, "{said:#?}");
    assert_eq!(denied(&document), [format!("localhost:{tls}")]);
    assert_eq!(document["denied"][0]["count"], 3);
    assert_quiet(&world);
}

#[test]
fn curl_and_a_second_command_find_the_same_network() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let plain = echo_server();
    let network = format!("localhost:{plain}");
    let line = format!("run --plan try --network allow:{network}");
    let running = Running::ready(cli.command(inside(&line, WAIT)));
    let script = format!(
        "curl -sS http://localhost:{plain}/x | head -1; curl -s -o /dev/null -w '%{{http_code}}' http://no.example/"
    );
    let outcome = cli.expect(in_try(&script), 0);
    assert_eq!(outcome.stdout_text(), "GET /x HTTP/1.1\n403");
    has(
        &outcome.stderr_text(),
        ["denied: no.example:80: it is not in the list"],
    );
    let refused = cli.fails(inside("run --plan try --network none", "true"), 125);
    has(&refused, [&format!("its network is allow:{network}")]);
    assert_eq!(running.finish().status, 0);
    for line in ["allow:", "allow:http://x", "allow:*", "some"] {
        cli.expect(format!("run --plan try --network {line} -- true"), 2);
    }
    // What validates has the hosts that are declared for it, and no others.
    write(
        world.at("app/escrow.yaml"),
        format!(
            "validate: [{{command: 'curl -sSf http://localhost:{plain}/ && ! curl -sf http://no.example/', network: {{allow: ['localhost:{plain}']}}}}]\n"
        ),
    );
    cli.trust();
    cli.ok(in_try("echo x > new"));
    let outcome = cli.expect("commit try", 0);
    has(
        &outcome.stderr_text(),
        ["the validation was denied no.example:80"],
    );
    assert_quiet(&world);
}

/// Opens a socket to the host of a virtual machine, also as programs of 32 bits do.
const VSOCK: &str = r#"
static void tried(const char *name, long answer) {
    if (answer >= 0 || (errno != EPERM && errno != ENOSYS)) puts(name);
}
int main(void) {
    tried("vsock", socket(40, SOCK_STREAM, 0));
#ifdef __x86_64__
    uint32_t *arguments = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    arguments[0] = 40;
    arguments[1] = SOCK_STREAM;
    long answer, calls[] = {102, 359}, first[] = {1, 40}, second[] = {(long)arguments, SOCK_STREAM};
    for (int n = 0; n < 2; n++) {
        __asm__ volatile("int $0x80" : "=a"(answer) : "a"(calls[n]), "b"(first[n]), "c"(second[n]), "d"(0L) : "memory");
        errno = -answer;
        tried("vsock of 32 bits", answer < 0 ? -1 : answer);
    }
#endif
    return socket(AF_INET, SOCK_STREAM, 0) < 0 || socket(AF_UNIX, SOCK_STREAM, 0) < 0;
}
"#;

/// Sockets between a virtual machine and its host belong to no network namespace: without a network the host was reached.
// attack D40
#[test]
fn d40_the_host_of_a_virtual_machine_was_reached_without_a_network() {
    as_user_too();
    let (world, cli) = world();
    compile(&world.at("app"), "vsock", VSOCK);
    cli.plan("try", ".", "overlay");
    for network in ["none", "allow:example.org"] {
        let line = format!("run --plan try --network {network} -- ./vsock");
        assert_eq!(cli.says(line, "").status, 0);
    }
    // Whoever joins is in the same network.
    let first = cli.command(inside("run --plan try --network none", WAIT));
    let running = Running::ready(first);
    cli.says("run --plan try -- ./vsock", "");
    running.finish();
    let bare = Command::new(world.at("app/vsock")).output();
    let said = String::from_utf8_lossy(&bare.expect("it starts").stdout).into_owned();
    has(&said, ["vsock\n"]);
}

/// A socket that has a name among files is reached from every network namespace.
// attack D42
#[test]
fn d42_a_service_was_reached_by_a_socket_among_files_without_a_network() {
    as_user_too();
    let scene = Scene::with("overlay", |app| {
        compile(app, "connect", crate::attacks::CONNECT);
    });
    let path = scene.world.dir("service").join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("there is room");
    let path = path.to_str().expect("it is text");
    let script = format!("./connect {path} && echo reached");
    let expect = |options: &str, expected: &str| {
        let line = format!("run --new --rollback {options}");
        scene.cli.says(inside(&line, &script), expected);
    };
    expect("--network none", "");
    expect("--network allow:example.org", "");
    expect(&format!("--network none --show {path}"), "reached\n");
    // Services of this machine belong to its network.
    expect("--network host", "reached\n");
    scene.unharmed();
}

/// What followed the head of a plain request was a second one, for a host that was never compared with the list.
// attack D33
#[test]
fn d33_a_second_request_followed_the_first_one() {
    use std::io::Read;
    as_user_too();
    let (_world, cli) = planned("overlay");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has one").port();
    let got = thread::spawn(move || {
        let take = |stream: std::io::Result<TcpStream>| {
            let mut all = String::new();
            let mut stream = stream.expect("it connects");
            stream.read_to_string(&mut all).expect("it is text");
            all
        };
        listener.incoming().take(2).map(take).collect::<Vec<_>>()
    });
    let script = r#"
import os, socket, sys
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
second = b"GET /second HTTP/1.1\r\nHost: evil.example\r\n\r\n"
for head in [b"GET http://localhost:%s/ HTTP/1.1\r\n\r\n", b"POST http://localhost:%s/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"]:
    stream = socket.create_connection(proxy, 20)
    stream.sendall(head % sys.argv[1].encode() + second)
    stream.sendall(second)
    stream.shutdown(socket.SHUT_WR)
    stream.recv(1000)
"#;
    let port_text = port.to_string();
    let command = ["/usr/bin/python3", "-c", script, &port_text];
    outcome(&cli, &format!("localhost:{port}"), &command);
    let got = got.join().expect("both came");
    for text in &got {
        lacks(text, ["second", "evil"]);
    }
    assert!(got[0].starts_with("GET / HTTP/1.1") && got[1].ends_with("\r\n\r\nbody"));
}
