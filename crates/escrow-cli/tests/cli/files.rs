//! Resources that are one file: every verb works on it, and nothing of the directory that holds it is
//! touched.

use std::io::{BufRead, BufReader, Write};

use crate::*;

/// A directory with a file in it that has everything a file can have, and with a neighbour.
pub(crate) fn world() -> (World, Cli, PathBuf) {
    let world = World::new();
    let docs = world.dir("docs");
    write(docs.join("notes.txt"), "one\n");
    chmod(docs.join("notes.txt"), 0o640);
    write(docs.join("neighbour"), "not yours\n");
    tool(
        "setfattr",
        &["-n", "user.colour", "-v", "blue"],
        &docs.join("notes.txt"),
    );
    tool(
        "touch",
        &["-d", "2001-02-03T04:05:06.789Z"],
        &docs.join("notes.txt"),
    );
    let cli = Cli::new(&world, &binary());
    (world, cli, docs)
}

pub(crate) fn tool(program: &str, arguments: &[&str], path: &Path) {
    let status = Command::new(program).args(arguments).arg(path).status();
    assert!(status.is_ok_and(|status| status.success()), "{program}");
}

fn attribute(path: &Path) -> Vec<u8> {
    let read = Command::new("getfattr")
        .args(["--only-values", "-n", "user.colour"])
        .arg(path)
        .output();
    read.expect("getfattr starts").stdout
}

pub(crate) fn text(path: &Path) -> String {
    read(path)
}

pub(crate) fn put(cli: &Cli, resource: &str, content: &str) {
    cli.clone()
        .stdin(content)
        .ok(format!("write try {resource} ."));
}

/// Where native tools find the file of the sandbox.
fn sandboxed(cli: &Cli, resource: &str) -> PathBuf {
    let path = cli.run(["path", "try", resource]).stdout;
    PathBuf::from(OsStr::from_bytes(path.trim_ascii_end()))
}

// rule C1, C13, F1, F8, P4, P6, R1
#[test]
fn a_file_goes_through_every_verb() {
    as_user_too();
    for strategy in ["copy_on_write", "filesystem_copy"] {
        let (_world, cli, docs) = world();
        let notes = docs.join("notes.txt");
        let plan = json(
            &cli,
            &format!("plan create try --resource docs/notes.txt --strategy {strategy}"),
        );
        let sandbox = &plan["sandboxes"][0];
        assert_eq!(sandbox["type"], "fs-file", "what stands there decides");
        assert_eq!(sandbox["strategy"], strategy);
        let again = json(&cli, "sandbox create try notes.txt");
        assert_eq!(again["created"], false);
        for field in ["sandbox_id", "sandbox_path", "strategy", "message"] {
            assert_eq!(again[field], sandbox[field], "{field}");
        }

        let expected = value!([]);
        assert_eq!(json(&cli, "diff try")["resources"][0]["changes"], expected);
        for path in ["notes.txt", "."] {
            let read = json(&cli, &format!("read try notes.txt {path}"));
            let wanted = value!({"path": "notes.txt", "size": 4, "content": "one\n"});
            assert_eq!(read, wanted);
        }
        put(&cli, "notes.txt", "two\n");
        let kept = json(&cli, "checkpoint create try -m two");
        let fields = ["checkpoint_id", "plan_id", "timestamp", "label"];
        assert!(fields.iter().all(|field| !kept[field].is_null()), "{kept}");
        assert_eq!(kept["message"], "kept 1 sandbox");
        let held = kept["snapshot_path"].as_str().expect("a directory");
        assert!(std::path::Path::new(held).is_dir(), "{kept}");
        write(sandboxed(&cli, "docs/notes.txt"), "three\n");
        let found = cli.ok("diff try --since two --name-status");
        assert_eq!(found, "M\tnotes.txt\n");
        let back = json(&cli, "restore try two");
        assert_eq!(back["success"], true);
        assert_eq!(back["restored_files"], value!(["notes.txt:notes.txt"]));
        assert_eq!(cli.ok("read try notes.txt ."), "two\n");
        cli.ok("rollback try");
        assert_eq!(cli.ok("read try notes.txt ."), "one\n");
        assert_eq!(cli.ok("diff try --name-status"), "");

        put(&cli, "notes.txt", "new\n");
        assert_eq!(text(&notes), "one\n", "the original is untouched");
        let patch = cli.ok("diff try --patch");
        assert!(patch.contains("-one\n+new\n"), "{patch}");
        cli.ok("commit try");
        assert_eq!((text(&notes), mode(&notes)), ("new\n".to_owned(), 0o640));
        assert_eq!(attribute(&notes), b"blue");
        assert_eq!(names(&docs), ["neighbour", "notes.txt"], "and nothing else");
        cli.ok("undo try");
        let old = fs::metadata(&notes).expect("it is there");
        assert_eq!((text(&notes), mode(&notes)), ("one\n".to_owned(), 0o640));
        assert_eq!((old.mtime(), old.mtime_nsec()), (981_173_106, 789_000_000));
        assert_eq!(attribute(&notes), b"blue");
        cli.ok("cleanup try");
        assert_eq!(names(&docs), ["neighbour", "notes.txt"]);
        assert_eq!(text(&docs.join("neighbour")), "not yours\n");
    }
}

// rule C16, C10
#[test]
fn a_deletion_is_a_change_and_can_be_undone() {
    as_user_too();
    let (_world, cli, docs) = world();
    cli.ok("plan create try --resource docs/notes.txt");
    remove(sandboxed(&cli, "notes.txt"));
    assert_eq!(cli.ok("diff try --name-status"), "D\tnotes.txt\n");
    let told = cli.fails("run --plan try -- true", 125);
    assert!(told.contains("a file that was deleted"), "{told}");
    cli.ok("commit try");
    assert_eq!(names(&docs), ["neighbour"]);
    // By its path it is known also now.
    cli.ok("undo try");
    assert_eq!(text(&docs.join("notes.txt")), "one\n");
}

// rule C6, S1
#[test]
fn only_a_file_can_take_its_place_and_nothing_beside_it_is_committed() {
    as_user_too();
    let (_world, cli, docs) = world();
    cli.ok("plan create try --resource docs/notes.txt");
    let file = sandboxed(&cli, "notes.txt");
    for verb in ["read", "write"] {
        for path in ["neighbour", "notes.txt/x", "new"] {
            let error = json_error(&cli, &format!("{verb} try notes.txt {path}"), 2);
            assert_eq!(error["kind"], "usage", "{verb} {path}");
        }
        json_error(&cli, &format!("{verb} try notes.txt ../neighbour"), 2);
    }
    write(&file, "two\n");
    let swap = file.with_file_name(".notes.txt.swp");
    write(&swap, "a draft");
    assert_eq!(cli.ok("diff try --name-status"), "M\tnotes.txt\n");
    let told = cli.fails("commit try", 3);
    has(&told, [".notes.txt.swp", "beside it"]);
    assert_eq!(text(&docs.join("notes.txt")), "one\n");
    assert_eq!(text(&swap), "a draft", "nothing is lost");
    remove(&swap);

    remove(&file);
    fs::create_dir(&file).expect("made");
    assert_eq!(cli.ok("diff try --name-status"), "T\tnotes.txt\n");
    let told = cli.fails("commit try", 3);
    assert!(told.contains("the resource is one file"), "{told}");
    fs::remove_dir(&file).expect("removed");
    symlink("/etc/passwd", &file);
    cli.fails("commit try", 3);
    let holds = cli.run("read try notes.txt .").status != 0;
    assert!(holds, "links are not followed");
    cli.ok("rollback try");
    assert_eq!(cli.ok("read try notes.txt ."), "one\n");
    assert_eq!(text(&docs.join("notes.txt")), "one\n");
}

// rule C15
#[test]
fn another_version_is_a_conflict() {
    as_user_too();
    for (theirs, strict) in [(true, false), (false, false), (true, true)] {
        let (_world, cli, docs) = world();
        let notes = docs.join("notes.txt");
        cli.ok("plan create try --resource docs/notes.txt");
        if !strict {
            put(&cli, "notes.txt", "ours\n");
        }
        // What happens to its neighbours belongs to no checkpoint conflict.
        write(docs.join("neighbour"), "changed\n");
        write(docs.join("another"), "new\n");
        let base = if strict { " --base strict" } else { "" };
        match theirs {
            true => write(&notes, "theirs\n"),
            false => remove(&notes),
        }
        let refused = cli.expect(format!("--json commit try{base}"), 4);
        let told: Value = serde_json::from_slice(&refused.stdout).expect("JSON");
        let conflicts = list(&told["conflicts"]);
        let paths: Vec<&Value> = conflicts.iter().map(|one| &one["path"]).collect();
        assert_eq!(paths, [&value!("notes.txt")], "{told}");
        if !strict {
            cli.ok("commit try --on-conflict sandbox");
            assert_eq!(text(&notes), "ours\n");
        }
    }
}

// rule C1, C8
#[test]
fn a_file_and_a_directory_are_committed_together_or_not_at_all() {
    as_user_too();
    let (world, cli, docs) = world();
    let app = world.dir("app");
    write(app.join("a.txt"), "a\n");
    cli.ok("plan create try --resource docs/notes.txt --resource ./app");
    put(&cli, "notes.txt", "two\n");
    cli.clone().stdin("b\n").ok("write try app a.txt");
    write(docs.join("notes.txt"), "theirs\n");
    cli.fails("commit try", 4);
    assert_eq!(text(&app.join("a.txt")), "a\n");
    cli.ok("commit try --on-conflict sandbox");
    let both = || (text(&app.join("a.txt")), text(&docs.join("notes.txt")));
    assert_eq!(both(), ("b\n".to_owned(), "two\n".to_owned()));
    cli.ok("undo try");
    assert_eq!(both(), ("a\n".to_owned(), "theirs\n".to_owned()));
}

/// Two files of one directory share its lock, and a directory that holds a file cannot be taken with it
/// unless one is the other's parent.
// rule C8, C14
#[test]
fn files_lie_in_directories_and_beside_each_other() {
    let (_world, cli, docs) = world();
    cli.ok("plan create both --resource docs/notes.txt --resource docs/neighbour");
    for name in ["notes.txt", "neighbour"] {
        cli.clone()
            .stdin("both\n")
            .ok(format!("write both {name} {name}"));
    }
    cli.ok("commit both");
    assert_eq!(text(&docs.join("neighbour")), "both\n");
    cli.ok("cleanup both");

    let line = "plan create try --resource ./docs --resource docs/notes.txt";
    let error = json_error(&cli, line, 4);
    assert_eq!(error["kind"], "conflict");
    cli.ok("resource add docs --at ./docs");
    cli.ok("resource add notes --at docs/notes.txt --parent docs");
    for strategy in ["filesystem_copy", "overlay"] {
        cli.plan("try", "docs", strategy);
        cli.ok("sandbox create try notes");
        let error = json_error(&cli, "read try docs notes.txt", 2);
        assert_eq!(error["kind"], "usage", "it belongs to the other");
        let script = "cat docs/notes.txt; echo inside > docs/notes.txt; echo more > docs/more";
        let ran = cli.ok(inside("run --plan try", script));
        assert_eq!(ran, "both\n", "{strategy}");
        assert_eq!(text(&docs.join("notes.txt")), "both\n");
        let diff = json(&cli, "diff try");
        let paths = |at: usize| diff["resources"][at]["changes"][0]["path"].clone();
        let expected = (value!("more"), value!("notes.txt"));
        assert_eq!((paths(0), paths(1)), expected, "{diff}");
        assert_eq!(list(&diff["resources"][0]["changes"]).len(), 1);
        cli.ok("commit try");
        assert_eq!(text(&docs.join("notes.txt")), "inside\n");
        cli.ok("undo try");
        cli.ok("cleanup try");
        assert_eq!(names(&docs), ["neighbour", "notes.txt"], "{strategy}");
    }
}

#[test]
fn a_file_can_share_the_sandbox_of_its_directory() {
    let (_world, cli, docs) = world();
    cli.ok("resource add docs --at ./docs");
    cli.ok("resource add notes --at docs/notes.txt --parent docs --strategy inherit");
    cli.ok("plan create try --resource docs --strategy filesystem_copy");
    assert_eq!(cli.ok("read try notes ."), "one\n");
    put(&cli, "notes", "two\n");
    cli.clone().stdin("x").ok("write try docs other");
    let expected = "M\tnotes.txt\n";
    assert_eq!(cli.ok("diff try --resource notes --name-status"), expected);
    let error = json_error(&cli, "read try notes neighbour", 2);
    assert_eq!(error["kind"], "usage", "its neighbours are not its own");
    assert!(sandboxed(&cli, "notes").ends_with("notes.txt"));
    cli.ok("commit try");
    assert_eq!(text(&docs.join("notes.txt")), "two\n");
}

/// A link that is given as location stands for what it leads to; a further name keeps the old content.
// rule F2, F3
#[test]
fn links_to_a_file() {
    as_user_too();
    let (world, cli, docs) = world();
    let (link, hard) = (world.at("link"), docs.join("hard"));
    symlink("docs/notes.txt", &link);
    fs::hard_link(docs.join("notes.txt"), &hard).expect("made");
    let plan = json(&cli, "plan create try --resource ./link");
    let original = docs.join("notes.txt");
    assert_eq!(plan["sandboxes"][0]["original"], value!(original));
    put(&cli, "notes.txt", "two\n");
    put(&cli, "./link", "three\n");
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    put(&cli, "notes.txt", "three\n");
    cli.ok("commit try");
    let expected = ("three\n".to_owned(), "one\n".to_owned());
    assert_eq!((text(&original), text(&hard)), expected);
    assert!(link.is_symlink());
    cli.ok("undo try");
    let inode = |path: &Path| fs::metadata(path).expect("it is there").ino();
    assert_eq!(inode(&original), inode(&hard), "one file again");
}

// rule F7
#[test]
fn privileges_of_a_file_are_dropped() {
    as_user_too();
    let (_world, cli, docs) = world();
    cli.ok("plan create try --resource docs/notes.txt");
    let file = sandboxed(&cli, "notes.txt");
    write(&file, "#!/bin/sh\n");
    chmod(&file, 0o6755);
    let told = cli.run("commit try").stderr_text();
    assert!(told.contains("setuid and setgid dropped"), "{told}");
    let mode = fs::metadata(docs.join("notes.txt")).expect("there").mode();
    assert_eq!(mode & 0o7777, 0o755);
}

/// Its owner may replace a file in a directory that is closed to writing, as with any directory of a
/// resource; what belongs to others is refused before anything happens.
// rule C2
#[test]
fn a_directory_that_is_closed_to_writing() {
    as_user_too();
    let (_world, cli, docs) = world();
    chmod(&docs, 0o555);
    cli.ok("plan create try --resource docs/notes.txt");
    put(&cli, "notes.txt", "two\n");
    cli.ok("commit try");
    assert_eq!(text(&docs.join("notes.txt")), "two\n");
    let mode = || fs::metadata(&docs).expect("it is there").mode() & 0o7777;
    assert_eq!(mode(), 0o555, "closed again");
    cli.ok("undo try");
    let expected = ("one\n", 0o555);
    assert_eq!((text(&docs.join("notes.txt")).as_str(), mode()), expected);
    let hosts = json(&cli, "plan create hosts --resource /etc/passwd");
    assert_eq!(hosts["sandboxes"][0]["type"], "fs-file");
    if !is_root() {
        cli.clone().stdin("x").ok("write hosts passwd .");
        cli.fails("commit hosts", 1);
    }
    cli.ok("cleanup hosts");
}

/// Inside, the file lies at its own path and is written in place. It is a mount of its own, so nothing can
/// be put in its place there, and from outside no process replaces it meanwhile.
#[test]
fn a_command_sees_the_file_at_its_path() {
    as_user_too();
    for (strategy, isolated) in [("copy_on_write", true), ("none", false)] {
        let (_world, cli, docs) = world();
        let line = format!("plan create try --resource docs/notes.txt --strategy {strategy}");
        cli.ok(&line);
        let script = "echo more >> docs/notes.txt; cat docs/notes.txt; \
            echo x > docs/neighbour; echo x > docs/new; mv docs/new docs/notes.txt; \
            rm docs/notes.txt; true";
        cli.says(inside("run --plan try", script), "one\nmore\n");
        assert_eq!(names(&docs), ["neighbour", "notes.txt"]);
        assert_eq!(text(&docs.join("neighbour")), "not yours\n");
        assert_eq!(cli.ok("read try notes.txt ."), "one\nmore\n");
        let expected = if isolated { "one\n" } else { "one\nmore\n" };
        assert_eq!(text(&docs.join("notes.txt")), expected);
    }
    let (_world, cli, _docs) = world();
    cli.ok("plan create try --resource docs/notes.txt");
    let script = "echo ready; read word; echo $word >> docs/notes.txt";
    let mut inside = cli
        .command(inside("run --plan try", script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    BufReader::new(inside.stdout.as_mut().expect("piped"))
        .read_line(&mut said)
        .expect("it says something");
    assert_eq!(said, "ready\n");
    for line in ["write try notes.txt .", "path try notes.txt"] {
        assert_eq!(json_error(&cli, line, 1)["kind"], "busy", "{line}");
    }
    assert_eq!(cli.ok("read try notes.txt ."), "one\n");
    let mut input = inside.stdin.take().expect("piped");
    input.write_all(b"later\n").expect("it listens");
    drop(input);
    assert!(inside.wait().expect("it ends").success());
    assert_eq!(cli.ok("read try notes.txt ."), "one\nlater\n");
    put(&cli, "notes.txt", "now\n");
}
