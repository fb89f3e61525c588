//! What may be asked from inside, and what may not; and bytes on the socket that are no question.

use crate::attacks::compile;
use crate::*;

/// A plan `try`, and the program where those inside can run it, as `$ESCROW_E`.
fn set_up() -> (World, Cli) {
    let (world, cli) = world();
    let program = cli.command("status").get_program().to_owned();
    let bin = world.dir("bin");
    let copy = bin.join("escrow");
    fs::copy(program, &copy).expect("there is room");
    cli.ok("plan create try --resource .");
    (world, cli.env("ESCROW_E", copy))
}

#[test]
fn status_and_diff_are_answered() {
    as_user_too();
    let (world, cli) = set_up();
    let ask = |line: &str| cli.run(in_try(&format!("echo x > f; $ESCROW_E {line}")));
    assert_eq!(ask("diff --name-status").stdout_text(), "A\tf\n");
    let lines = "diff; diff --stat; diff --patch; diff -p; diff try --name-status; --json diff; \
        diff --json; diff --scratch; -q diff; diff -v; diff -r app; \
        diff --resource=app --patch; diff tr";
    for line in lines.split("; ") {
        let (inside, outside) = (ask(line), cli.run(line));
        assert_eq!(inside.stdout_text(), outside.stdout_text(), "{line}");
        assert_eq!(inside.status, 0, "{line}: {}", inside.stderr_text());
    }
    let said = ask("status");
    assert!(said.stdout_text().contains("try"), "{}", said.stdout_text());
    let told: Value = serde_json::from_str(&ask("status --json").stdout_text()).expect("JSON");
    assert_eq!(told["name"], "try");
    assert_quiet(&world);
}

#[test]
fn everything_else_is_refused() {
    as_user_too();
    let (world, cli) = set_up();
    cli.ok("plan create other --resource ../bin");
    cli.ok(in_try("echo x > f"));
    let refused: Vec<&str> =
        "commit; commit try; commit --yes; cleanup; cleanup try; write app a.txt; \
        write try app a.txt; rollback; undo try; recover; run -- true; \
        run --plan try --unconfined -- true; plan create more; plan list; plan show other; \
        resource list; read try app a.txt; path try app; log; diff other; diff oth; \
        diff --resource bin; diff --resource /etc; diff --resource .; \
        diff --resource ../bin; --home /tmp diff; --principal user:root diff; \
        diff --config escrow.yaml; --config=/dev/null status; status --home=/tmp; \
        restore other chk; restore try chk --principal=user:root; checkpoint create other; \
        checkpoint create -m x --home /tmp; checkpoint list other; \
        checkpoint show other chk; checkpoint delete one; checkpoint delete other chk; \
        checkpoint delete --config=x chk; plan fork; gc; doctor; init; \
        strategy check overlay; type validate escrow.yaml; \
        access check --action commit --scope app; log --verify"
            .split("; ")
            .collect();
    let script: String = refused
        .iter()
        .map(|line| format!("$ESCROW_E {line} </dev/null >/dev/null 2>&1; echo $?\n"))
        .collect();
    let said = cli.ok(in_try(&script));
    for (line, status) in refused.iter().zip(said.lines()) {
        assert_eq!(status, "3", "{line}");
    }
    let log = json(&cli, "log try");
    let denied = list(&log["operations"]).iter();
    let denied = denied.filter(|one| one["outcome"] == "denied" && one["principal"] == "agent");
    let targets: Vec<&str> = denied.filter_map(|one| one["target"].as_str()).collect();
    assert_eq!(targets, refused, "every denial is in the log");
    assert_eq!(said.lines().count(), refused.len());
    let words_of = "$ESCROW_E diff \"$(printf '\\377\\376')\" 2>&1; echo $?; $ESCROW_E commit 2>&1";
    let said = cli.run(in_try(words_of));
    has(&said.stdout_text(), ["only `escrow status`"]);
    assert_eq!(said.status, 3);
    assert!(!world.at("app/f").exists());
    assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
    assert_eq!(cli.ok("diff other --name-status"), "");
    assert_quiet(&world);
}

/// Whatever form a question has outside, it has inside too.
#[test]
fn every_form_of_what_is_answered_works() {
    as_user_too();
    let (world, cli) = set_up();
    let script = "set -e
        $ESCROW_E -q status; $ESCROW_E status -v; $ESCROW_E status --disk
        $ESCROW_E status --disk --json > /dev/null
        $ESCROW_E checkpoint create -q; $ESCROW_E checkpoint create -v
        $ESCROW_E checkpoint create -mone; echo x > f; $ESCROW_E checkpoint create --message=two
        $ESCROW_E checkpoint create --message=--home; $ESCROW_E checkpoint create try -m three
        $ESCROW_E checkpoint list -v; $ESCROW_E checkpoint show one; $ESCROW_E checkpoint show try two -q
        $ESCROW_E diff --since one --until two --name-status > /dev/null
        $ESCROW_E diff --since=two --name-status > /dev/null
        $ESCROW_E restore one -q; $ESCROW_E restore try two --json > /dev/null; $ESCROW_E restore -v one";
    cli.ok(in_try(script));
    let labels = json(&cli, "checkpoint list try");
    let labels = list(&labels["checkpoints"]).iter();
    let labels: Vec<&str> = labels.filter_map(|one| one["label"].as_str()).collect();
    assert_eq!(
        labels,
        ["one", "two", "--home", "three"],
        "a word that looks like an option is a label"
    );
    // What was restored last holds no file; what was written before is in the checkpoint that was taken first.
    assert_eq!(cli.ok("diff try --name-status"), "");
    let log = json(&cli, "log try");
    let by = |action: &str| {
        let all = list(&log["operations"]).iter();
        let ours = all.filter(|one| one["action"] == action);
        let done = ours.filter(|one| one["outcome"] == "done" && one["principal"] == "agent");
        done.count()
    };
    assert_eq!([by("checkpoint"), by("restore")], [6, 3]);
    cli.ok("restore try two");
    let script =
        "$ESCROW_E diff --since one --until two --name-status; $ESCROW_E status --disk --json";
    let said = cli.ok(in_try(script));
    let rest = said.strip_prefix("A\tf\n").expect("what changed between");
    let told: Value = serde_json::from_str(rest).expect("JSON");
    assert!(told["disk"]["private"].as_u64().is_some(), "{told}");
    assert_quiet(&world);
}

/// A refusal is one document where that was asked for, with nothing beside it; and who is checked is `agent`.
// rules S6, S7
#[test]
fn refusals_have_the_form_that_was_asked_for() {
    as_user_too();
    let (world, cli) = set_up();
    let ask = |line: &str| cli.run(in_try(&format!("$ESCROW_E {line}")));
    for line in [
        "commit --json",
        "--json diff other",
        "status --json --home /",
    ] {
        let outcome = ask(line);
        assert_eq!(outcome.status, 3, "{line}");
        let told: Value = serde_json::from_str(&outcome.stdout_text()).expect("one document");
        assert_eq!(told["error"]["kind"], "denied", "{line}");
        let message = told["error"]["message"].as_str().expect("a reason");
        assert!(message.contains("inside a run"), "{line}: {message}");
        let said = outcome.stderr_text();
        assert!(!said.contains("inside a run"), "{line}: {said}");
    }
    let outcome = ask("commit");
    assert_eq!(outcome.stdout_text(), "");
    let said = outcome.stderr_text();
    assert!(said.starts_with("error: inside a run only"), "{said}");
    let app = world.at("app");
    let policy = "policy:\n  mode: enforce\n  rules:\n  - {allow: [run, diff, create], principal: 'user:*', scope: '*'}\n  \
        - {allow: [diff], principal: agent, scope: '*'}\n";
    write(app.join("escrow.yaml"), policy);
    for (line, status) in [
        ("diff -q", 0),
        ("checkpoint create -mx --json", 3),
        ("checkpoint delete x -q --json", 3),
    ] {
        assert_eq!(ask(line).status, status, "{line}");
    }
    let said = ask("checkpoint create -mx --json").stdout_text();
    let told: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(told["error"]["details"]["principal"], "agent", "{told}");
    assert_quiet(&world);
}

/// Without the socket, the program inside has a state of its own, which belongs to no checkpoint.
#[test]
fn without_the_socket_there_is_nothing_to_ask() {
    as_user_too();
    let (world, cli) = set_up();
    let outcome = cli.run(in_try(&format!(
        "unset ESCROW_SOCKET; export ESCROW_HOME={0}; echo x > f; $ESCROW_E status; $ESCROW_E commit try; $ESCROW_E --home {0} cleanup try; echo $?",
        world.home().display()
    )));
    lacks(&outcome.stdout_text(), ["try"]);
    assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
    assert!(!world.at("app/f").exists());
    assert_quiet(&world);
}

/// A patch that is larger than any buffer on the way.
#[test]
fn a_long_answer_arrives_whole() {
    as_user_too();
    let (_world, cli) = set_up();
    let script = "i=0; while [ $i -lt 40000 ]; do echo \"line $i of many, each of them different\"; i=$((i+1)); done > long
        $ESCROW_E diff --patch";
    let said = cli.ok(in_try(script));
    assert!(said.len() > 1_000_000);
    assert_eq!(said, cli.ok("diff try --patch"));
}

#[test]
fn hostile_bytes_do_not_hurt_the_supervisor() {
    as_user_too();
    let (world, cli) = set_up();
    compile(&world.dir("bin"), "hostile", HOSTILE);
    let script = "echo x > f; ../bin/hostile; $ESCROW_E diff --name-status; exit 6";
    let outcome = cli.says(in_try(script), "A\tf\n");
    assert_eq!(outcome.status, 6);
    // One who asks, never reads the answer and never goes away holds no process up at the end.
    let script = "../bin/hostile silent & sleep 0.5; echo ready; read nothing || :";
    let running = Running::ready(cli.command(in_try(script)));
    let start = Instant::now();
    assert_eq!(running.finish().status, 0);
    assert!(start.elapsed() < PATIENCE);
    assert_quiet(&world);
}

const HOSTILE: &str = r#"
static int reach(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, getenv("ESCROW_SOCKET"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) exit(1);
    return fd;
}
static void send_all(const char *bytes, size_t length) {
    int fd = reach();
    char answer[4096];
    while (length > 0) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0) break;
        bytes += sent; length -= sent;
    }
    shutdown(fd, SHUT_WR);
    while (read(fd, answer, sizeof answer) > 0) {}
    close(fd);
}
int main(int argc, char **argv) {
    if (argc > 1) {
        for (int n = 0; n < 20; n++) reach();
        pause();
    }
    size_t large = 3 << 20;
    char *bytes = malloc(large);
    memset(bytes, 'x', large);
    send_all("", 0);
    send_all("\n", 1);
    send_all("\0\0\0\n", 4);
    send_all("\xff\xfe\n", 3);
    send_all("{}\n", 3);
    send_all("{\"words\":[1,2]}\n", 16);
    send_all("{\"words\":[]}\n", 13);
    send_all("{\"words\":[\"diff\",\"--patch\"", 26);
    send_all("{\"words\":[\"diff\",\"\\u0000\"]}\n", 28);
    send_all("{\"words\":[\"commit\",\"try\"]}\n{\"words\":[\"commit\"]}\n", 48);
    send_all(bytes, large);
    memset(bytes, '[', large);
    send_all(bytes, large);
    srand(7);
    for (int n = 0; n < 50; n++) {
        for (int i = 0; i < 500; i++) bytes[i] = rand();
        send_all(bytes, 500);
    }
    /* Questions whose answer nobody waits for. */
    for (int n = 0; n < 5; n++) {
        int fd = reach();
        send(fd, "{\"words\":[\"diff\",\"--patch\"]}\n", 29, MSG_NOSIGNAL);
        close(fd);
    }
    return 0;
}
"#;

/// Each command has a socket of its own, so that it is answered the process that else has ended.
#[test]
fn a_second_command_can_ask_too() {
    as_user_too();
    let (world, cli) = set_up();
    let first = Running::ready(cli.command(in_try(WAIT)));
    let said = cli.ok(in_try("echo x > f; $ESCROW_E diff --name-status"));
    assert_eq!(said, "A\tf\n");
    first.finish();
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\n");
}

/// Those who ask slowly, or ask for much, neither keep others waiting nor fill the memory of the supervisor.
// attack D28
#[test]
fn d28_a_flood_of_questions_kept_one_waiting() {
    as_user_too();
    let (world, cli) = set_up();
    compile(&world.at("bin"), "flood", FLOOD);
    // Half of the places are taken by those who never say anything.
    let script = "../bin/flood 8 & sleep 0.3; start=$(date +%s); $ESCROW_E status > /dev/null && echo answered; \
        test $(($(date +%s) - start)) -lt 40 && echo soon";
    cli.says(in_try(script), "answered\nsoon\n");
}

/// Opens so many connections, says nothing, and opens another one for each that ends.
const FLOOD: &str = r#"
#include <poll.h>
int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    struct pollfd all[64];
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, getenv("ESCROW_SOCKET"));
    for (int n = 0; n < count; n++) all[n].fd = -1, all[n].events = POLLIN;
    for (;;) {
        for (int n = 0; n < count; n++) {
            if (all[n].fd >= 0 && !all[n].revents) continue;
            close(all[n].fd);
            all[n].fd = socket(AF_UNIX, SOCK_STREAM, 0);
            connect(all[n].fd, (struct sockaddr *)&at, sizeof at);
            all[n].revents = 0;
        }
        poll(all, count, 1000);
    }
}
"#;

/// The processes of ours that answer in this world.
fn answering(world: &World) -> Vec<u32> {
    let all = processes(world).into_iter();
    let all = all.filter(|line| line.contains(" --principal agent ") && line.contains(" answer "));
    let number = |line: String| line.split([' ', ':']).nth(1)?.parse().ok();
    all.filter_map(number).collect()
}

/// Stops a process that answers, so that it goes on for ever; returns it.
fn stop_one_that_answers(world: &World) -> u32 {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for pid in answering(world) {
            let process = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a number");
            if rustix::process::kill_process(process, rustix::process::Signal::STOP).is_err() {
                continue;
            }
            thread::sleep(Duration::from_millis(20));
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            if status.contains("State:\tT") {
                return pid;
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no process answers");
}

const ASK_ALWAYS: &str = "echo ready; while :; do $ESCROW_E diff > /dev/null; done";

/// A question about 15 TiB of hole kept the lock of the plan and a processor for hours after the command had ended.
// rules S5, D2
#[test]
fn what_answers_ends_with_the_command_that_asked() {
    as_user_too();
    let (world, cli) = set_up();
    let line = "run --plan try --timeout 2s --memory 500M";
    let running = Running::ready(cli.command(inside(line, ASK_ALWAYS)));
    let pid = stop_one_that_answers(&world);
    if is_root() {
        let group = read(format!("/proc/{pid}/cgroup"));
        has(&group, ["escrow-run-"]);
    }
    assert_eq!(running.end().status, 124);
    assert_eq!(answering(&world), Vec::<u32>::new());
    cli.ok("commit try");
    cli.ok("cleanup try");
    assert_quiet(&world);
}

// rules S5, D2
#[test]
fn what_answers_ends_with_a_supervisor_that_is_killed() {
    as_user_too();
    let (world, cli) = set_up();
    let mut running = Running::ready(cli.command(in_try(ASK_ALWAYS)));
    stop_one_that_answers(&world);
    running.signal(rustix::process::Signal::KILL);
    running.gone();
    let until = Instant::now() + PATIENCE;
    while !answering(&world).is_empty() {
        assert!(Instant::now() < until, "it is still there");
        thread::sleep(Duration::from_millis(5));
    }
    assert_soon_quiet(&world);
    cli.ok("rollback try");
}

/// Six checkpoints of a command that was limited to 50 MB took 242 MB.
// attack H9
#[test]
fn what_checkpoints_keep_counts_for_the_limit_of_the_disk() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = set_up();
        cli.plan("other", ".", strategy);
        let script = |ask: &str| {
            format!(
                "for n in 1 2 3 4 5 6; do head -c 3000000 /dev/urandom > f; {ask}; done; sleep $SLEEP"
            )
        };
        let run = |sleep: &str, ask: &str| {
            let line = format!("run --plan other --disk 8M -e SLEEP={sleep}");
            cli.run(inside(&line, &script(ask)))
        };
        let outcome = run("60", "$ESCROW_E checkpoint create > /dev/null");
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, 137, "{strategy}: {said}");
        has(&said, ["its limit of 8388608 bytes on disk"]);
        // What is kept from before does not count.
        let outcome = run("3", "true");
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, 0, "{strategy}: {said}");
        cli.ok("cleanup other");
        cli.ok("cleanup try");
        assert_quiet(&world);
    }
}

// rule S5
#[test]
fn checkpoints_from_inside_have_a_rate() {
    as_user_too();
    let (world, cli) = set_up();
    let script = "for n in $(seq 33); do $ESCROW_E checkpoint create -q > /dev/null 2> ../why; done; cat ../why";
    let script = script.replace("../why", "/tmp/why");
    let said = cli.ok(in_try(&script));
    has(
        &said,
        ["no further checkpoint", "30 were taken within a minute"],
    );
    let all = json(&cli, "checkpoint list try");
    assert_eq!(list(&all["checkpoints"]).len(), 30);
    // Outside there is none.
    cli.ok("checkpoint create try");
    assert_quiet(&world);
}
