//! Agents and tools that would make sandboxes of their own, and servers that a command leaves behind.

use crate::*;

const HINT: &str = "a user namespace of its own was refused";

#[test]
fn a_command_that_fails_for_lack_of_namespaces_is_told_so() {
    as_user_too();
    for strategy in STRATEGIES {
        let (_world, cli) = planned(strategy);
        let failed = cli.expect("run --plan try -- unshare -Ur true", 1);
        has(&failed.stderr_text(), [HINT, "`escrow run --allow-userns`"]);
        let failed = cli.expect(in_try("bash -c 'unshare -U true & wait'; exit 7"), 7);
        assert_eq!(failed.stderr_text().matches(HINT).count(), 1);
        // What does without is not told, nor is what fails for another reason.
        let fine = cli.expect(in_try("unshare -Ur true || true"), 0);
        lacks(&fine.stderr_text(), [HINT]);
        lacks(&cli.expect(in_try("exit 7"), 7).stderr_text(), [HINT]);
        let document = cli.expect("--json run --plan try -- unshare -Ur true", 1);
        has(&document.stdout_text(), [HINT]);
    }
}

/// Stands in for the agent: says with which words it was started.
const CODEX: &str = "#!/bin/sh\nprintf '%s|' \"$@\"\n";

// Codex runs every command of the model in bubblewrap, unless it is told not to.
#[test]
fn codex_makes_no_sandbox_inside_ours() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let program = world.dir("bin").join("codex");
    write(&program, CODEX);
    sh(world.at("bin"), "chmod +x codex; cp codex other");
    let at = program.display().to_string();
    let started = |line: &str| cli.ok(line);
    let off = "-c|sandbox_mode=\"danger-full-access\"|";
    let run = "run --plan try";
    assert_eq!(
        started(&format!("{run} -- {at} exec hello")),
        format!("{off}exec|hello|")
    );
    for words in [
        "exec --sandbox read-only x",
        "-s read-only",
        "--full-auto",
        "-c sandbox_mode=x",
    ] {
        let own = format!("{}|", words.replace(' ', "|"));
        assert_eq!(started(&format!("{run} -- {at} {words}")), own);
    }
    for options in ["--agent none", "--allow-userns"] {
        assert_eq!(started(&format!("{run} {options} -- {at} x")), "x|");
    }
    let other = world.at("bin/other").display().to_string();
    assert_eq!(started(&format!("{run} --agent codex -- {other} x")), "x|");
}

#[test]
fn the_end_of_a_run_names_what_still_listened() {
    as_user_too();
    let (_world, cli) = planned("overlay");
    let server = "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\nopen('port', 'w').write(str(s.getsockname()[1]))\ntime.sleep(600)\n";
    let script =
        format!("/usr/bin/python3 -c \"{server}\" & until test -s port; do :; done; cat port");
    let ended = cli.expect(in_try(&script), 0);
    let port = ended.stdout_text();
    let said = ended.stderr_text();
    has(
        &said,
        [&format!(
            "still listening when the command ended, and ended with it: python3 on port {port};"
        )],
    );
    // What has ended before listens no more.
    let script = format!(
        "rm port; /usr/bin/python3 -c \"{server}\" & until test -s port; do :; done; kill $!; wait"
    );
    lacks(&cli.run(in_try(&script)).stderr_text(), ["still listening"]);
}
