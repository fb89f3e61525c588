//! A network of the plan's own: other hosts are reached as before, and nothing of this machine is.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use escrow_testkit::namespace::own_mounts;

use crate::*;

/// The address of another host, on which the servers of [`HOST`] run.
const OTHER: &str = "10.77.0.2";

/// The address of the machine under test beside its loopback.
const OWN: &str = "10.77.0.1";

/// A further one: the kernel sends from the first one to it.
const SECOND: &str = "10.77.0.3";

/// Echoes by TCP (7000) and UDP (7001), and answers for `echo.test` (53). On 7002 no connection is taken for a while: the kernel
/// answers none beyond those that fill the queue.
const HOST: &str = r#"
import socket, threading, time
def serve(work):
    threading.Thread(target=work, daemon=True).start()
def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
def tcp(port, wait=0):
    listener = socket.create_server(("10.77.0.2", port), backlog=0 if wait else 64)
    def work():
        if wait:
            fills = [socket.create_connection(("10.77.0.2", port))]
            while True:
                time.sleep(wait)
                first, _ = listener.accept()
                serve(lambda: echo(first))
        while True:
            stream, _ = listener.accept()
            serve(lambda: echo(stream))
    serve(work)
def udp():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("10.77.0.2", 7001))
    def work():
        while True:
            data, peer = sock.recvfrom(65536)
            sock.sendto(data, peer)
    serve(work)
def names():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("10.77.0.2", 53))
    def work():
        while True:
            data, peer = sock.recvfrom(512)
            end = data.index(b"\0", 12) + 5
            is_a = data[end - 3] == 1
            count = b"\0\1" if is_a else b"\0\0"
            answer = data[:2] + b"\x81\x80\0\1" + count + b"\0\0\0\0" + data[12:end]
            if is_a:
                answer += b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton("10.77.0.2")
            sock.sendto(answer, peer)
    serve(work)
def wakes():
    listener = socket.create_server(("10.77.0.2", 7004), backlog=0)
    def work():
        while True:
            fill = socket.create_connection(("10.77.0.2", 7004))
            time.sleep(4)
            listener.listen(64)
            listener.accept()
            for _ in range(12):
                stream, _ = listener.accept()
                serve(lambda stream=stream: echo(stream))
            listener.listen(0)
    serve(work)
tcp(7000); tcp(7002, 1.2); wakes(); udp(); names()
print("ready", flush=True)
while True: time.sleep(1000)
"#;

/// Says of each word what came of it: `tcp:ADDRESS:PORT`, `udp:…`, `blind:…` without a connection, `late:…` without waiting in the call.
const CLIENT: &str = r#"
import errno, select, socket, sys
for word in sys.argv[1:]:
    kind, rest = word.split(":", 1)
    host, port = rest.rsplit(":", 1)
    port = int(port)
    stream = kind in ("tcp", "late")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
    sock.settimeout(20 if kind != "blind" else 1)
    try:
        if kind == "blind":
            sock.sendto(b"hello", (host, port))
        elif kind == "late":
            sock.setblocking(False)
            code = sock.connect_ex((host, port))
            if code not in (0, errno.EINPROGRESS): raise OSError(code, "")
            select.select([], [sock], [], 20)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code: raise OSError(code, "")
            sock.settimeout(20)
        else:
            sock.connect((host, port))
        if kind != "blind":
            assert sock.getpeername()[1] == port, sock.getpeername()
            sock.sendall(b"hello")
        print(word, sock.recv(5).decode(), flush=True)
    except TimeoutError:
        print(word, "timeout", flush=True)
    except OSError as error:
        print(word, errno.errorcode.get(error.errno, error), flush=True)
"#;

/// This machine with a cable to another host, in network namespaces of the test. Root makes it; what it starts is in it.
struct Machine {
    other: Child,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let ended = self.other.kill().and_then(|()| self.other.wait());
        ended.expect("it is ours");
    }
}

/// Puts this thread, and what it starts, into such a machine; for an ordinary user that was done by root.
fn machine(world: &World) -> Option<Machine> {
    if !is_root() {
        return None;
    }
    own_mounts();
    #[expect(unsafe_code, reason = "rustix has no safe form")]
    // SAFETY: a network namespace harms no memory; the test that runs on this thread alone depends on it.
    let alone = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    alone.expect("root may have one");
    let names = world.path().join("resolv.conf");
    fs::write(&names, format!("nameserver {OTHER}\n")).expect("it is written");
    let names = names.to_str().expect("a plain path");
    sh(
        world.path(),
        &format!("mount --bind {names} $(readlink -f /etc/resolv.conf)"),
    );
    let mut other = Command::new("unshare");
    let other = other
        .args(["-n", "/usr/bin/python3", "-c"])
        .arg(format!("import sys; sys.stdin.readline()\n{HOST}"));
    let other = other.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.process_group(0).spawn().expect("it starts");
    let pid = other.id();
    sh(
        world.path(),
        &format!(
            "while [ $(readlink /proc/self/ns/net) = $(readlink /proc/{pid}/ns/net) ]; do sleep 0.01; done
            ip link set lo up
            ip link add cable type veth peer name cable netns {pid}
            ip addr add {OWN}/24 dev cable; ip addr add {SECOND}/24 dev cable; ip link set cable up
            nsenter -t {pid} -n sh -c 'ip link set lo up; ip addr add {OTHER}/24 dev cable; ip link set cable up'
            ip route add default via {OTHER}"
        ),
    );
    drop(other.stdin.take());
    let mut line = String::new();
    let said = other.stdout.take().expect("a pipe");
    BufReader::new(said)
        .read_line(&mut line)
        .expect("it says it");
    assert_eq!(line, "ready\n");
    Some(Machine { other })
}

/// Runs the client inside for these words.
#[track_caller]
fn met(cli: &Cli, network: &str, words_met: &[&str]) -> (Vec<String>, String) {
    let mut line = words("run --new");
    if !network.is_empty() {
        line.extend(["--network", network].map(OsString::from));
    }
    line.extend(["--", "/usr/bin/python3", "-c", CLIENT].map(OsString::from));
    line.extend(words_met.iter().map(OsString::from));
    let outcome = cli.expect(line, 0);
    let text = outcome.stdout_text();
    (
        text.lines().map(str::to_owned).collect(),
        outcome.stderr_text(),
    )
}

/// A server on all addresses of this machine that counts who connects; it echoes nothing.
fn counting() -> (u16, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port is free");
    let port = listener.local_addr().expect("it has one").port();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counts = std::sync::Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(1..) = (&stream).read(&mut buffer) {
                    std::io::Write::write_all(&mut &stream, b"machine").expect("it is there");
                }
            });
        }
    });
    (port, count)
}

// attack D44
#[test]
fn d44_other_hosts_are_reached_and_nothing_of_this_machine() {
    let (world, cli) = world();
    let _machine = machine(&world);
    as_user_too();
    let (port, count) = counting();
    let lo = format!("tcp:127.0.0.1:{port}");
    let own = format!("tcp:{OWN}:{port}");
    let second = format!("tcp:{SECOND}:{port}");
    let all = [
        "tcp:10.77.0.2:7000",
        "tcp:echo.test:7000",
        "late:10.77.0.2:7000",
        "late:10.77.0.2:7002",
        "udp:10.77.0.2:7001",
        "udp:echo.test:7001",
        "tcp:10.77.0.2:7999",
        "late:10.77.0.2:7999",
        "blind:10.77.0.2:7003",
        "tcp:169.254.169.254:80",
        "tcp:::ffff:10.77.0.2:7000",
        &lo,
        &own,
        &second,
    ];
    let (said, report) = met(&cli, "", &all);
    let expected = [
        "tcp:10.77.0.2:7000 hello".to_owned(),
        "tcp:echo.test:7000 hello".to_owned(),
        "late:10.77.0.2:7000 hello".to_owned(),
        "late:10.77.0.2:7002 hello".to_owned(),
        "udp:10.77.0.2:7001 hello".to_owned(),
        "udp:echo.test:7001 hello".to_owned(),
        "tcp:10.77.0.2:7999 ECONNREFUSED".to_owned(),
        "late:10.77.0.2:7999 ECONNREFUSED".to_owned(),
        // Where no connection was asked for, nothing leads on; name servers are the exception.
        "blind:10.77.0.2:7003 timeout".to_owned(),
        "tcp:169.254.169.254:80 ENETUNREACH".to_owned(),
        "tcp:::ffff:10.77.0.2:7000 hello".to_owned(),
        format!("{lo} ECONNREFUSED"),
        format!("{own} ENETUNREACH"),
        format!("{second} ENETUNREACH"),
    ];
    assert_eq!(said, expected, "{report}");
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0);
    for line in [
        format!("denied: localhost:{port}: "),
        format!("`--network own,allow:localhost:{port}` reaches it, or make it a resource"),
        format!("denied: {OWN}:{port}: it is an address of this machine"),
        "denied: 169.254.169.254:80: ".to_owned(),
    ] {
        assert!(report.contains(&line), "{line}\n{report}");
    }
    // As the report says.
    let allowed = format!("own,allow:localhost:{port},{OWN}:{port}");
    let (said, report) = met(&cli, &allowed, &[&lo, &own, "tcp:10.77.0.2:7000"]);
    let hello = |word: &str| format!("{word} machi");
    assert_eq!(
        said,
        [
            hello(&lo),
            hello(&own),
            "tcp:10.77.0.2:7000 hello".to_owned()
        ]
    );
    assert!(!report.contains("denied"), "{report}");
    // The control: with the machine's network there is no wall.
    let (said, _) = met(&cli, "host", &[&lo]);
    assert_eq!(said, [hello(&lo)]);
}

/// Connects many times at once to a server that answers late; says how many got an answer.
const MANY: &str = r#"
import socket, threading
done = []
def one():
    with socket.create_connection(("10.77.0.2", 7004), timeout=60) as sock:
        sock.sendall(b"hello")
        done.append(sock.recv(5))
all = [threading.Thread(target=one) for _ in range(12)]
for one in all: one.start()
for one in all: one.join()
print(done.count(b"hello"))
"#;

// Each that came second was refused, although the server was there.
#[test]
fn many_connections_wait_for_a_late_server_together() {
    let (world, cli) = world();
    let _machine = machine(&world);
    as_user_too();
    let mut line = words("run --new -- /usr/bin/python3 -c");
    line.push(MANY.into());
    assert_eq!(cli.ok(line), "12\n");
}

/// Connects to the first address, while another thread changes it to the second one in memory, and the descriptor.
const RACE: &str = r#"
import ctypes, os, socket, struct, sys, threading
libc = ctypes.CDLL(None)
def packed(host, port):
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(host))
good, bad = packed("10.77.0.2", 7000), packed(sys.argv[1], int(sys.argv[2]))
address = ctypes.create_string_buffer(good, 16)
over = False
def change():
    while not over:
        address[0:16] = bad
        address[0:16] = good
threading.Thread(target=change, daemon=True).start()
done = 0
for _ in range(12):
    one = socket.socket()
    one.setblocking(False)
    libc.connect(one.fileno(), address, 16)
    one.close()
    done += 1
over = True
print(done)
"#;

// attack D45
// What is looked at is not what the kernel reads a moment later.
#[test]
fn d45_no_race_for_an_address_leads_to_this_machine() {
    let (world, cli) = world();
    let _machine = machine(&world);
    as_user_too();
    let (port, count) = counting();
    for address in ["127.0.0.1", OWN] {
        let mut line = words("run --new -- /usr/bin/python3 -c");
        line.extend([RACE, address, &port.to_string()].map(OsString::from));
        assert_eq!(cli.ok(line), "12\n");
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// A server of one connection at a time on a port of the loopback.
const SERVER: &str = "import socket, sys
listener = socket.create_server(('127.0.0.1', 3000))
print('ready', flush=True)
while True:
    stream, _ = listener.accept()
    stream.sendall(sys.argv[1].encode()); stream.close()";

/// A command in a new plan that serves, ready to be asked.
fn server(cli: &Cli, options: &str, name: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut line = words(&format!("plan create {name} --resource ."));
    cli.ok(std::mem::take(&mut line));
    let mut line = words(&format!(
        "run --plan {name} {options} -- /usr/bin/python3 -c"
    ));
    line.extend([SERVER, name].map(OsString::from));
    let mut command = cli.command(line);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    said.read_line(&mut text).expect("it says it");
    assert_eq!(text, "ready\n");
    (child, said)
}

fn end(mut child: Child) {
    sh(Path::new("/"), &format!("kill -TERM {}", child.id()));
    child.wait().expect("it ends");
}

/// What a server of this machine's loopback says.
fn heard(port: u16) -> String {
    let mut text = String::new();
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    (&stream).read_to_string(&mut text).expect("it answers");
    text
}

// Two plans with the same server collided: `EADDRINUSE`.
#[test]
fn two_plans_serve_the_same_port_and_publish_it() {
    as_user_too();
    let (_world, cli) = world();
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.local_addr().expect("it has one").port()
    };
    let (one, two) = (free(), free());
    let (first, _said) = server(&cli, &format!("--publish 3000:{one}"), "first");
    let (second, _said) = server(&cli, &format!("--publish 3000:{two}"), "second");
    assert_eq!(
        (heard(one), heard(two)),
        ("first".to_owned(), "second".to_owned())
    );
    // Those inside see their own.
    let ask = "exec 3<>/dev/tcp/127.0.0.1/3000; cat <&3";
    let asked = |plan: &str| {
        let mut line = words(&format!("run --plan {plan} -- bash -c"));
        line.push(ask.into());
        cli.ok(line)
    };
    assert_eq!(
        (asked("first"), asked("second")),
        ("first".to_owned(), "second".to_owned())
    );
    let taken = cli.fails(
        inside(&format!("run --new --publish 3000:{one}"), "true"),
        125,
    );
    assert!(taken.contains(&format!("cannot publish port {one}")));
    end(first);
    end(second);
    assert!(TcpStream::connect(("127.0.0.1", one)).is_err());
    let line = format!("run --new --network host --publish {one}");
    let useless = cli.fails(inside(&line, "true"), 125);
    assert!(useless.contains("has the network of this machine"));
    cli.expect("run --new --publish 0 -- true", 2);
}

/// Connects its standard input, which is a socket, to another address.
const ANEW: &str = r#"
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None)
def packed(family, host, port):
    return struct.pack("=HH4s8x", family, socket.htons(port), socket.inet_aton(host))
libc.connect(0, packed(socket.AF_UNSPEC, "0.0.0.0", 0), 16)
done = libc.connect(0, packed(socket.AF_INET, "127.0.0.1", int(sys.argv[1])), 16)
print("reached" if done == 0 else "refused")
"#;

// attack D46
#[test]
fn d46_a_socket_on_a_standard_stream_leads_nowhere_else() {
    as_user_too();
    let (_world, cli) = world();
    let (port, count) = counting();
    for network in ["own", "none"] {
        let before = count.load(std::sync::atomic::Ordering::SeqCst);
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut line = words(&format!(
            "run --new --network {network} -- /usr/bin/python3 -c"
        ));
        line.extend([ANEW, &port.to_string()].map(OsString::from));
        let mut command = cli.command(line);
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(stream)));
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            said,
            "refused\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), before + 1);
    }
}

// What one command of a plan opened for all ended with it: names, and services of this machine.
#[test]
fn the_end_of_one_command_takes_nothing_from_another() {
    let (world, cli) = world();
    let _machine = machine(&world);
    as_user_too();
    let (port, _) = counting();
    let network = format!("own,allow:localhost:{port}");
    cli.ok("plan create try --resource .");
    let first =
        Running::ready(cli.command(inside(&format!("run --plan try --network {network}"), WAIT)));
    let script = format!("{CLIENT}\nprint(sys.stdin.readline())\n");
    let script = format!("{script}exec({CLIENT:?})");
    let mut line = words(&format!(
        "run --plan try --network {network} -- /usr/bin/python3 -c"
    ));
    let (lo, far) = (format!("tcp:localhost:{port}"), "udp:echo.test:7001");
    line.extend([script.as_str(), &lo, far].map(OsString::from));
    let mut command = cli.command(line);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut second = command.spawn().expect("it starts");
    let mut said = BufReader::new(second.stdout.take().expect("a pipe"));
    let mut next = || {
        let mut line = String::new();
        said.read_line(&mut line).expect("it says it");
        line
    };
    let expected = [format!("{lo} machi\n"), format!("{far} hello\n")];
    assert_eq!([next(), next()], expected);
    assert_eq!(first.finish().status, 0);
    let mut stdin = second.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, b"go\n").expect("it reads");
    assert_eq!(next(), "go\n");
    assert_eq!(next(), "\n");
    assert_eq!([next(), next()], expected);
    assert!(second.wait().expect("it ends").success());
}

// Where a network of its own cannot be had, a run goes on with this machine's, and says so; unless it was asked for.
#[test]
fn without_network_namespaces_the_machines_is_used_and_said() {
    as_user_too();
    let (_world, cli) = world();
    // In a user namespace that may have none.
    let run = |network: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Ur", "sh", "-c"]);
        command
            .arg("echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"")
            .arg("sh");
        let inner = cli.command(inside(&format!("run --new {network}"), "echo ran"));
        command.arg(inner.get_program()).args(inner.get_args());
        let variables = inner.get_envs();
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(inner.get_current_dir().expect("one was set"));
        command.output().expect("it starts")
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fallen = run("");
    let said = text(&fallen.stderr);
    assert_eq!(text(&fallen.stdout), "ran\n", "{said}");
    assert!(
        said.contains("the command has the network of this machine, its loopback included"),
        "{said}"
    );
    let refused = run("--network own");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("--network host"), "{said}");
}

// An untrusted file of the tree cannot open what is closed where nothing is said.
#[test]
fn a_tree_cannot_ask_for_the_machines_network() {
    as_user_too();
    let (world, cli) = world();
    let app = world.at("app");
    let (port, count) = counting();
    let word = format!("tcp:127.0.0.1:{port}");
    for network in ["host", "{own: ['localhost:1-']}", "nonsense"] {
        fs::write(
            app.join("escrow.yaml"),
            format!("run: {{network: {network}}}\n"),
        )
        .expect("it is written");
        let mut line = words("run --new -- /usr/bin/python3 -c");
        line.extend([CLIENT, &word].map(OsString::from));
        let outcome = cli.run(line);
        match network {
            "host" => assert_eq!(outcome.stdout_text(), format!("{word} ECONNREFUSED\n")),
            _ => assert_eq!(outcome.status, 2, "{}", outcome.stderr_text()),
        }
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0);
    fs::write(
        app.join("escrow.yaml"),
        format!("run: {{network: {{own: ['localhost:{port}']}}}}\n"),
    )
    .expect("it is written");
    cli.ok("trust --yes");
    let (said, _) = met(&cli, "", &[&word]);
    assert_eq!(said, [format!("{word} machi")]);
}
