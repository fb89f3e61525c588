//! What is written, and where: patches, JSON, errors, and streams that cannot be written to.

use crate::*;

#[test]
fn a_bare_carriage_return_broke_the_patch() {
    let (world, cli) = world();
    let app = world.at("app");
    write(app.join("cr"), "one\rtwo\r\nthree\n");
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app cr", "one\rTWO\r\nthree\n");
    write(world.at("p"), cli.run("diff try --patch").stdout);
    sh(&app, "patch -p1 --quiet --binary < ../p");
    assert_eq!(
        fs::read(app.join("cr")).expect("it is there"),
        b"one\rTWO\r\nthree\n"
    );
}

#[test]
fn a_patch_broke_off_when_the_original_was_gone() {
    let (world, cli) = planned_app("filesystem_copy");
    let path = cli.ok("path try app");
    remove(Path::new(path.trim_end()).join("a.txt"));
    write(Path::new(path.trim_end()).join("z"), "z\n");
    remove(world.at("app/a.txt"));
    let patch = cli.ok("diff try --patch");
    has(&patch, ["# the original's version is gone: a.txt", "+z"]);
}

#[test]
fn lost_output_was_a_success() {
    let (_world, cli) = planned_app("auto");
    for line in "plan list; --json status; read try app a.txt; diff try; reference".split("; ") {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let output = cli.command(line).stdout(full).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert_eq!(
            said.matches("cannot write the output").count(),
            1,
            "{line}: {said}"
        );
    }
}

// What was done is done, whether its report can be read or not.
#[test]
fn a_commit_whose_report_was_lost_was_a_failure() {
    as_user_too();
    let (_world, cli) = world();
    for (line, done) in [
        ("resource add app --type fs-directory --at ./app", true),
        ("plan create try --resource app", true),
        ("--json checkpoint create try", true),
        ("diff try", false),
        ("commit try --dry-run", false),
        ("commit try", true),
        ("--json undo try", true),
        ("rollback try", true),
        ("log", false),
    ] {
        if line.starts_with("diff") {
            put(&cli, "try app a.txt", "changed\n");
        }
        let full = File::options().write(true).open("/dev/full");
        let mut command = cli.command(line);
        command.stdout(full.expect("it is there"));
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let (code, how) = match done {
            true => (0, "warning: cannot write the output"),
            false => (1, "error: cannot write the output"),
        };
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert_eq!(said.matches(how).count(), 1, "{line}: {said}");
    }
}

#[test]
fn a_backslash_in_a_path_was_doubled_in_json() {
    let world = World::new();
    let inside = world.dir("we\\ird");
    world.dir("we\\ird/app");
    let cli = Cli::new(&world, &binary())
        .cwd(&inside)
        .env("ESCROW_HOME", inside.join("home"));
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let path = json(&cli, "path try app")["path"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(Path::new(&path).is_dir(), "{path}");
}

#[test]
fn a_forgotten_word_was_blamed_on_the_plan() {
    let (world, cli) = planned_app("auto");
    let elsewhere = cli.clone().cwd(world.dir("elsewhere"));
    for (cli, line) in [
        (&cli, "read try app"),
        (&elsewhere, "path try"),
        (&elsewhere, "write try app"),
    ] {
        let error = cli.fails(line, 2);
        let holds = error.contains("'try' is a plan; an argument after it is missing");
        assert!(holds, "{line}: {error}");
    }
}

#[test]
fn stderr_that_cannot_be_written_was_a_panic() {
    let (_world, cli) = world();
    for (line, code) in [
        ("diff nope", 1),
        ("plan create try --resource ./app", 0),
        ("frobnicate", 2),
    ] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let status = cli
            .command(line)
            .stderr(full)
            .stdout(Stdio::null())
            .status();
        assert_eq!(status.expect("it starts").code(), Some(code), "{line}");
    }
}

#[test]
fn quiet_was_not_quiet() {
    let (_world, cli) = world();
    for line in [
        "-q plan create try --resource ./app",
        "-q rollback try",
        "-q cleanup try",
    ] {
        let outcome = cli.run(line);
        let found = (outcome.status, outcome.stdout_text(), outcome.stderr_text());
        assert_eq!(found, (0, String::new(), String::new()), "{line}");
    }
}

#[test]
fn a_plan_that_is_no_text_was_taken_as_left_out() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let (_world, cli) = planned_app("auto");
    let line = [
        OsStr::new("write"),
        OsStr::from_bytes(b"\xff\xfe"),
        OsStr::new("app"),
        OsStr::new("f"),
    ];
    cli.fails(line, 1);
    assert_eq!(cli.ok("diff try --name-status"), "");
}

/// A control of eight bits, a mark of direction or a soft hyphen in a file or a name changed what the terminal showed.
#[test]
fn what_is_read_on_a_terminal_is_escaped_and_in_a_pipe_is_not() {
    let world = World::new();
    let text = "a\u{9b}31mred\u{202e}turned soft\u{ad}hyphen\n";
    let app = world.dir("app");
    let cli = Cli::new(&world, &binary());
    write(app.join("a"), "x");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app").trim_end());
    write(inside.join("a"), text);
    write(inside.join("n\u{ad}\u{9b}m"), "x");
    assert_eq!(cli.ok("read try app a"), text);
    for line in ["read try app a", "read try app a --json", "diff try --json"] {
        let terminal = Terminal::new(24, 200);
        let mut child = terminal.start(cli.command(line));
        assert!(child.wait().expect("it ends").success());
        // Behind all that was written before.
        let mut command = std::process::Command::new("echo");
        command.arg("THE END");
        let mut child = terminal.start(command);
        assert!(child.wait().expect("it ends").success());
        let shown = terminal.expect("THE END").replace("THE END", "");
        lacks(&shown, ["\u{9b}", "\u{202e}", "\u{ad}"]);
        assert!(!shown.trim().is_empty(), "{line}");
        let piped: Option<Value> = serde_json::from_str(&cli.ok(line)).ok();
        if let Some(piped) = piped {
            let again: Value = serde_json::from_str(&shown).expect("the same document");
            assert_eq!(again, piped, "{line}");
        }
    }
}

/// A zero byte made a script binary, of which nothing was shown.
#[test]
fn a_zero_byte_hides_no_line_of_what_was_text() {
    let world = World::new();
    let app = world.dir("app");
    let cli = Cli::new(&world, &binary());
    write(app.join("run.sh"), "#!/bin/sh\necho one\n");
    write(app.join("large"), "text\n");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app").trim_end());
    write(inside.join("run.sh"), "#!/bin/sh\necho evil\n#\0\n");
    write(inside.join("large"), [0; 4000]);
    let patch = cli.ok("diff try --patch");
    has(
        &patch,
        [
            "# was text, and has zero bytes now; escaped: run.sh\n",
            "# - echo one\n# + echo evil\n# + #\\x00\n",
            "# was text: large\n",
            "Binary files a/run.sh and b/run.sh differ",
        ],
    );
}

// rule S3
#[test]
fn doctor_says_where_everybody_could_exchange_the_state() {
    let world = World::new();
    let open = world.dir("open");
    let cli = Cli::new(&world, &binary()).env("ESCROW_HOME", open.join("home"));
    for (mode, said) in [(0o777, true), (0o1777, false), (0o755, false)] {
        chmod(&open, mode);
        let told = cli.expect("doctor", 0).stderr_text();
        assert_eq!(
            told.contains("everybody may exchange"),
            said,
            "{mode:o}: {told}"
        );
        let document = json(&cli, "doctor");
        assert_eq!(document["notices"].is_array(), said, "{document}");
    }
}

/// A file whose name has a Cyrillic letter stood beside the one that it looks like, and nothing told them apart.
#[test]
fn a_name_that_looks_like_another_one_is_marked() {
    let world = World::new();
    let app = world.dir("app");
    let cli = Cli::new(&world, &binary());
    write(app.join("app.py"), "x");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app").trim_end());
    write(inside.join("\u{430}pp.py"), "x");
    write(inside.join("отчет.txt"), "x");
    let said = cli.expect("diff try", 0).stderr_text();
    has(
        &said,
        ["look-alike  app:\u{430}pp.py", "looks like 'app.py'"],
    );
    lacks(&said, ["отчет"]);
}
