//! Before a release: what will run later is shown apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use escrow_testkit::model::Rng;

use crate::faults::sweep_by;
use crate::*;

#[test]
fn what_will_run_later_is_listed_apart_with_its_reason() {
    as_user_too();
    let (_world, cli) = planned_app("filesystem_copy");
    for path in [".git/hooks/pre-commit", ".github/workflows/ci.yml", "notes"] {
        put(&cli, &format!("try app {path}"), "echo gotcha\n");
    }
    let copy = cli.ok("path try app");
    let copy = Path::new(copy.trim_end());
    let script = copy.join("start");
    write(&script, "#!/bin/sh\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("it is ours");
    let expected = value!([
        {"resource": "app", "path": ".git/hooks/pre-commit", "why": "a git hook"},
        {"resource": "app", "path": ".github/workflows/ci.yml", "why": "a CI service runs it"},
        {"resource": "app", "path": "start", "why": "a new executable file"},
    ]);
    assert_eq!(json(&cli, "commit try --dry-run")["runs_later"], expected);
    let text = "runs later  app:.git/hooks/pre-commit  a git hook\n\
                runs later  app:.github/workflows/ci.yml  a CI service runs it\n\
                runs later  app:start  a new executable file\n";
    let shown = cli.ok("commit try --dry-run");
    assert!(shown.ends_with(text), "{shown}");
    assert_eq!(json(&cli, "commit try")["runs_later"], expected);
}

#[test]
fn a_commit_of_plain_files_lists_nothing_that_runs() {
    let (_world, cli) = planned_app("auto");
    put(&cli, "try app a.txt", "uno\n");
    assert_eq!(json(&cli, "commit try --dry-run")["runs_later"], value!([]));
    let done = cli.ok("commit try");
    assert!(!done.contains("runs later"), "{done}");
}

/// What an install leaves: a directory with much in it, and what lies beside it.
const INSTALL: &str = "mkdir node_modules; echo '{}' > package.json; mkdir -p .husky; echo x > .husky/pre-push
    for n in $(seq 40); do mkdir node_modules/p$n; echo '{}' > node_modules/p$n/package.json; echo x > node_modules/p$n/index.js; done";

#[test]
fn a_directory_that_is_new_as_a_whole_is_one_line() {
    as_user_too();
    let (world, cli) = planned_app("filesystem_copy");
    let sandbox = PathBuf::from(cli.ok("path try app").trim_end());
    sh(&sandbox, INSTALL);
    write(sandbox.join("a.txt"), "one\nand\nmore\n");
    let shown = cli.ok("diff try");
    has(
        &shown,
        [
            "added     node_modules/  80 files, 200 B\n",
            "added     package.json  +1 -0, 3 B\n",
            "modified  a.txt  +2 -2, ",
        ],
    );
    assert!(!shown.contains("index.js"), "{shown}");
    // What is ignored is counted.
    let rules = "git init -q .; printf 'node_modules/\\n' > .gitignore";
    sh(world.at("app"), rules);
    let shown = cli.ok("diff try");
    has(
        &shown,
        ["app: 2 added, 1 modified\n  80 ignored by git: node_modules\n"],
    );
    assert_eq!(shown.matches("node_modules").count(), 1, "{shown}");
    sh(world.at("app"), "rm -r .git .gitignore");
    has(
        &cli.ok("diff try --all"),
        ["node_modules/p7/index.js  +1 -0"],
    );
    // Data is complete.
    assert!(
        cli.ok("diff try --name-status")
            .contains("node_modules/p7/index.js")
    );
    let all = json(&cli, "diff try");
    assert_eq!(list(&all["resources"][0]["changes"]).len(), 125);
    // What the next command of git runs comes first; packages are counted.
    let said = cli.ok("commit try --dry-run");
    let later: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("runs later"))
        .collect();
    assert_eq!(
        later,
        [
            "runs later  app:.husky/pre-push  a git hook",
            "runs later  app:node_modules/  40 files in a new directory, the first: a package manager runs the scripts it names, and those of what it fetches",
            "runs later  app:package.json  a package manager runs the scripts it names, and those of what it fetches",
        ]
    );
    let all = json(&cli, "commit try --dry-run");
    assert_eq!(list(&all["runs_later"]).len(), 42);
    assert_eq!(
        cli.ok("-v commit try --dry-run")
            .matches("runs later")
            .count(),
        42
    );
    // The same where it goes.
    cli.ok("commit try --yes");
    cli.plan("gone", "./app", "overlay");
    cli.ok(inside("run --plan gone", "rm -r app/node_modules"));
    let shown = cli.ok("diff gone");
    has(&shown, ["deleted   node_modules/  80 files, 200 B\n"]);
    assert!(!shown.contains("index.js"), "{shown}");
    drop(world);
}

/// A name, a content, a mode and whether it is a link, at random.
fn scatter(rng: &mut Rng, at: &Path) {
    let names = [
        "f",
        "dir/f",
        "dir/sub/f",
        "with space",
        "quo\"te",
        "ta\tb",
        "-dash",
        "ümlaut",
        "new\nline",
    ];
    let name = rng.pick(&names);
    let path = at.join(format!("{name}{}", rng.below(3)));
    if fs::symlink_metadata(&path).is_ok_and(|found| rng.below(4) == 0 || found.is_symlink()) {
        remove(&path);
    }
    fs::create_dir_all(path.parent().expect("it lies in one")).expect("a directory");
    if fs::symlink_metadata(&path).is_err() && rng.below(4) == 0 {
        symlink(["a", "dir/f", "nowhere/at all"][rng.below(3)], &path);
        return;
    }
    let mut text = String::new();
    for _ in 0..rng.below(12) {
        text.push_str(
            [
                "one\n",
                "two\r\n",
                "three  \n",
                "\n",
                "+ plus\n",
                "--- a/x\n",
                "@@ -1 +1 @@\n",
            ][rng.below(7)],
        );
    }
    if rng.below(3) == 0 {
        text.push_str("no end");
    }
    write(&path, &text);
    let mode = [0o644, 0o755][rng.below(2)];
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        .expect("it is ours");
}

/// Links to other places, empty files, a mode alone, files that become links, lines without an end.
#[test]
fn every_patch_is_taken_by_git_and_by_patch() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let (world, cli) = world();
        let app = world.dir("tree");
        (0..14).for_each(|_| scatter(&mut rng, &app));
        cli.plan("try", "./tree", "filesystem_copy");
        let sandbox = PathBuf::from(cli.ok("path try tree").trim_end());
        (0..10).for_each(|_| scatter(&mut rng, &sandbox));
        let unified = rng.below(5);
        let patch = cli.run(format!("diff try --patch -U {unified}")).stdout;
        write(world.at("given"), &patch);
        for tool in [
            "git apply -p1 --unidiff-zero",
            "patch -p1 --quiet --no-backup-if-mismatch",
        ] {
            let copy = world.dir(tool.split(' ').next().expect("a word"));
            sh(world.path(), &format!("cp -a tree/. '{}'", copy.display()));
            sh(
                &copy,
                &format!("{tool} < ../given >&2 || {{ cat ../given >&2; exit 1; }}"),
            );
            // A patch knows no directories.
            let list = "find . ! -type d -printf '%p %M %l ' -exec sh -c 'test -L \"$1\" || sha256sum < \"$1\"' sh {} \\; -printf '\\n' | sort";
            assert_eq!(
                sh(&copy, list),
                sh(&sandbox, list),
                "{seed}, {tool}:\n{}",
                String::from_utf8_lossy(&patch)
            );
        }
    }
}

/// What is in a tree, as a patch knows it: no directories.
const LIST: &str = "find . ! -type d -printf '%p %M %l ' -exec sh -c 'test -L \"$1\" || sha256sum < \"$1\"' sh {} \\; -printf '\\n' | sort";

/// Binary files of all sizes, and files that were moved or copied and changed, there and back.
#[test]
fn a_binary_patch_with_renames_is_taken_by_git() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let (world, cli) = world();
        let tree = world.dir("tree");
        let bytes = |rng: &mut Rng| {
            let size = rng.pick(&[0, 1, 3, 52, 53, 5000, 70_000]);
            (0..size).map(|_| rng.below(7) as u8).collect::<Vec<u8>>()
        };
        (0..10).for_each(|_| scatter(&mut rng, &tree));
        for name in ["bin a", "bin b", "dir/bin"] {
            fs::create_dir_all(tree.join("dir")).expect("a directory");
            write(tree.join(name), bytes(&mut rng));
        }
        cli.plan("try", "./tree", "filesystem_copy");
        let sandbox = PathBuf::from(cli.ok("path try tree").trim_end());
        (0..4).for_each(|_| scatter(&mut rng, &sandbox));
        write(sandbox.join("bin a"), bytes(&mut rng));
        sh(
            &sandbox,
            "mv 'bin b' 'dir/moved b'; cp dir/bin dir/copy; rm dir/bin",
        );
        write(sandbox.join("new bin"), bytes(&mut rng));
        let files = sh(
            &sandbox,
            "find . -type f ! -name '*bin*' | sort | head -n 3",
        );
        for (number, file) in files.lines().enumerate() {
            if number > 0 && sandbox.join(file).exists() {
                sh(
                    &sandbox,
                    &format!("mv '{file}' 'moved {number}'; echo more >> 'moved {number}'"),
                );
            }
        }
        // A binary file that was only moved needs no bytes.
        let plain = cli.run("diff try --patch -M").stdout;
        let plain = String::from_utf8_lossy(&plain);
        let moved = |line: &&str| line.starts_with("Binary files") && line.contains("moved b");
        assert_eq!(plain.lines().find(moved), None);
        let patch = cli.run("diff try --binary -M").stdout;
        write(world.at("given"), &patch);
        let copy = world.dir("copy");
        sh(world.path(), "cp -a tree/. copy");
        let before = sh(&copy, LIST);
        // What becomes a link, or was one, goes and comes in one patch, which git does not take back.
        let typed = String::from_utf8_lossy(&patch).contains("file mode 120000");
        for (way, expected) in [("", sh(&sandbox, LIST)), ("-R", before)] {
            if typed && way == "-R" {
                continue;
            }
            let line = format!(
                "git apply {way} -p1 < ../given >&2 || {{ head -c 9000 ../given >&2; exit 1; }}"
            );
            sh(&copy, &line);
            assert_eq!(sh(&copy, LIST), expected, "{seed} {way}");
        }
    }
}

#[test]
fn what_was_moved_or_copied_is_named_and_words_are_marked() {
    as_user_too();
    let (world, cli) = world();
    let lines = |words: &str| {
        words
            .split(' ')
            .map(|word| format!("{word}\n"))
            .collect::<String>()
    };
    let tree = world.dir("tree");
    write(tree.join("a"), lines("a1 a2 a3 a4 a5 a6"));
    write(tree.join("b"), lines("b1 b2 b3 b4 b5 b6"));
    write(tree.join("c"), lines("c1 c2 c3 c4 c5 c6"));
    write(tree.join("d"), "one two three\n");
    cli.plan("try", "./tree", "overlay");
    let script = "cd tree; mv a moved; mkdir sub; mv b sub/b; echo more >> sub/b; cp c copy; echo x > c; echo 'one zwei three' > d";
    cli.ok(["run", "--plan", "try", "--", "sh", "-c", script]);
    let shown = cli.ok("diff try");
    has(
        &shown,
        [
            "renamed   a → moved  100% the same\n",
            "renamed   b → sub/b  78% the same\n",
            "copied    c → copy  100% the same\n",
        ],
    );
    lacks(&shown, ["  deleted  "]);
    let plain = cli.ok("diff try --name-status");
    has(&plain, ["D\ta\n", "A\tmoved\n"]);
    let named = cli.ok("diff try -M --name-status");
    has(
        &named,
        ["R100\ta\tmoved\n", "R078\tb\tsub/b\n", "C100\tc\tcopy\n"],
    );
    lacks(&named, ["D\t"]);
    let patch = cli.ok("diff try -M --patch");
    has(&patch, ["rename from a\nrename to moved\n", "+more\n"]);
    let renames = json(&cli, "diff try -M")["resources"][0]["renames"].clone();
    assert_eq!(renames[1]["to"]["path"], "moved", "{renames}");
    has(
        &cli.ok("diff try --word-diff d"),
        ["one [-two-]{+zwei+} three\n"],
    );
    lacks(&patch, ["\x1b"]);
    has(
        &cli.ok("diff try --patch --color always"),
        ["\x1b[32m+more"],
    );
}

#[test]
fn a_terminal_shows_a_diff_through_the_pager_of_git() {
    as_user_too();
    let (_world, cli) = world();
    cli.plan("try", "./app", "overlay");
    put(&cli, "try app a.txt", "new \x1b[31mred\n");
    let paged = |term: &str, pager: &str, line: &str| {
        let terminal = Terminal::new(24, 100);
        let cli = cli.clone().env("TERM", term).env("GIT_PAGER", pager);
        let mut child = terminal.start(cli.command(line));
        assert!(
            child.wait().expect("it ends").success(),
            "{}",
            terminal.text()
        );
        // What the program wrote may still be on its way to the screen.
        terminal.expect(match (line, pager) {
            ("diff try --patch", "head -n 1") => "diff --git",
            ("diff try --patch" | "diff try", _) => "digest: ",
            _ => "\n",
        });
        terminal.text()
    };
    let pager = "sed 's/^/paged: /'";
    let shown = paged("xterm", pager, "diff try --patch");
    // Colours are kept, and what others wrote is escaped.
    has(
        &shown,
        ["paged: ", "\x1b[32m+new \\x1b[31mred", "paged: digest: "],
    );
    has(&paged("xterm", pager, "log"), ["paged: "]);
    for (term, pager, line) in [
        ("dumb", pager, "diff try"),
        ("xterm", "cat", "diff try"),
        ("xterm", pager, "--json diff try"),
        ("xterm", pager, "status"),
    ] {
        lacks(&paged(term, pager, line), ["paged: "]);
    }
    // One that ends early has read enough; one that is not there hides nothing that went wrong.
    paged("xterm", "head -n 1", "diff try --patch");
    let piped = cli.clone().env("TERM", "xterm").env("GIT_PAGER", pager);
    lacks(&piped.ok("diff try"), ["paged: "]);
}

/// A terminal that keeps a whole screen.
pub(crate) struct Tmux(PathBuf);

impl Tmux {
    pub(crate) fn start(world: &World, cli: &Cli, line: &str) -> Self {
        // The server of the one before may still be about to end.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let socket = world.at(format!("tmux{number}"));
        let at = socket.to_str().expect("a plain path").to_owned();
        let outer = [
            "tmux",
            "-u",
            "-S",
            &at,
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "160",
            "-y",
            "30",
        ];
        let mut started = cli.behind(&outer, line);
        output_of(started.env("TERM", "xterm").env("LC_ALL", "C.UTF-8"));
        Self(socket)
    }

    pub(crate) fn tmux(&self, args: &[&str]) -> String {
        let out = Command::new("tmux")
            .arg("-S")
            .arg(&self.0)
            .args(args)
            .output();
        String::from_utf8_lossy(&out.expect("tmux is installed").stdout).into_owned()
    }

    /// Waits until the screen has all of these.
    #[track_caller]
    pub(crate) fn shows<const N: usize>(&self, texts: [&str; N]) {
        let start = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if texts.iter().all(|text| screen.contains(text)) {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{texts:?}: {screen}"
            );
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Types these, and waits until the program has ended.
    pub(crate) fn last(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
        while !self.tmux(&["list-sessions"]).is_empty() {
            thread::sleep(Duration::from_millis(30));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn a_review_releases_exactly_what_was_marked_and_shown() {
    as_user_too();
    let (world, cli) = world();
    let app = world.dir("app");
    write(app.join("both"), "base\n");
    cli.plan("try", "./app", "overlay");
    put(&cli, "try app both", "ours\n");
    put(&cli, "try app new/[x]*", "starred\n");
    let long = format!("\tother{}end\n", " ".repeat(300));
    put(&cli, "try app new/y", &long);
    write(app.join("both"), "theirs\n");
    // Without a terminal it is a listing.
    has(&cli.ok("review try"), ["modified  both", "added     new/y"]);
    let screen = Tmux::start(&world, &cli, "review try -m chosen");
    // The conflict is shown with both versions.
    screen.shows([
        "plan try",
        "[ ] M both  conflict",
        "[ ] A new/[x]*",
        "the original: changed there and here",
        "theirs",
        "the sandbox",
        "ours",
    ]);
    screen.tmux(&["send-keys", "j"]);
    screen.shows(["+starred"]);
    screen.tmux(&["send-keys", "Space"]);
    // What does not fit into a line is seen in the next.
    screen.shows([
        "[x] A new/[x]*",
        "1 of 3 marked",
        " new/y ",
        "+       other",
        "end",
    ]);
    screen.tmux(&["send-keys", "c"]);
    screen.shows(["Commit 1 of 3 changes?"]);
    // What changes while it is looked at is not released.
    put(&cli, "try app new/[x]*", "worse\n");
    screen.last(&["y"]);
    assert!(!app.join("new").exists());
    let screen = Tmux::start(&world, &cli, "review try -m chosen");
    screen.shows(["[ ] A new/[x]*"]);
    screen.tmux(&["send-keys", "j", "Space", "r"]);
    screen.shows(["Commit 1 of 3 changes?"]);
    screen.last(&["y"]);
    assert_eq!(read(app.join("new/[x]*")), "worse\n");
    assert!(!app.join("new/y").exists());
    assert_eq!(read(app.join("both")), "theirs\n");
    has(&cli.ok("log try"), ["chosen"]);
    // A conflict that is marked is one; leaving changes nothing.
    let screen = Tmux::start(&world, &cli, "review try");
    screen.shows(["[ ] M both  conflict"]);
    screen.tmux(&["send-keys", "a", "r"]);
    screen.shows(["Commit 2 of 2 changes?"]);
    screen.last(&["y"]);
    assert_eq!(read(app.join("both")), "theirs\n");
    let screen = Tmux::start(&world, &cli, "review try --on-conflict sandbox");
    screen.shows(["[ ] M both"]);
    screen.tmux(&["send-keys", "a"]);
    screen.shows(["2 of 2 marked"]);
    screen.last(&["q"]);
    assert_eq!(read(app.join("both")), "theirs\n");
    let screen = Tmux::start(&world, &cli, "review try --on-conflict sandbox");
    screen.shows(["[ ] M both"]);
    screen.tmux(&["send-keys", "a", "r"]);
    screen.shows(["Commit 2 of 2"]);
    screen.last(&["y"]);
    assert_eq!(read(app.join("both")), "ours\n");
    assert_eq!(json(&cli, "status")["plans"], value!([]));
}

/// Thirty lines, of which these are changed.
fn thirty(changed: &[usize]) -> String {
    let line = |number: usize| match changed.contains(&number) {
        true => format!("changed {number}\n"),
        false => format!("{number}\n"),
    };
    (1..=30).map(line).collect()
}

// rules C1, C6, C15
#[test]
fn a_review_releases_single_hunks_of_a_file() {
    as_user_too();
    let strategies: &[&str] = match is_root() {
        true => &["filesystem_copy"],
        false => &["overlay", "git_worktree"],
    };
    for &strategy in strategies {
        let (world, cli) = world();
        let app = world.at("app");
        let f = app.join("f");
        write(&f, thirty(&[]));
        chmod(&f, 0o640);
        let init = "git init -q .; git add .; git -c user.name=t -c user.email=t@t commit -qm base";
        if strategy == "git_worktree" {
            sh(&app, init);
        }
        cli.plan("try", "./app", strategy);
        put(&cli, "try app f", thirty(&[2, 15, 27]));
        put(&cli, "try app new", "fresh\n");
        let screen = Tmux::start(&world, &cli, "review try");
        screen.shows(["[ ] M f", "[ ] @@ -1,5 +1,5 @@", "tab: hunks"]);
        screen.tmux(&["send-keys", "Tab"]);
        screen.shows(["hunk 1 of 3"]);
        screen.tmux(&["send-keys", "Space", "j", "Space", "k", "k"]);
        screen.shows([
            "[~] M f",
            "hunk 1 of 3",
            "[x] @@ -1,5",
            "[ ] @@ -12,7",
            "[x] @@ -24,7",
        ]);
        screen.tmux(&["send-keys", "c"]);
        screen.shows(["Commit 1 of 2 changes, 1 of them in part?"]);
        // What was shown is what is released, or nothing.
        put(&cli, "try app f", thirty(&[2, 15, 28]));
        screen.last(&["y"]);
        assert_eq!(read(&f), thirty(&[]), "{strategy}");
        let screen = Tmux::start(&world, &cli, "review try");
        screen.shows(["[ ] M f", "tab: hunks"]);
        screen.tmux(&["send-keys", "Tab", "Space", "j", "Space", "r"]);
        screen.shows(["Commit 1 of 2 changes, 1 of them in part?"]);
        screen.last(&["y"]);
        assert_eq!(read(&f), thirty(&[2, 28]), "{strategy}");
        assert_eq!(mode(&f), 0o640, "{strategy}");
        assert_eq!(cli.ok("read try app f"), thirty(&[2, 15, 28]), "{strategy}");
        assert_eq!(cli.ok("diff try --name-status"), "M\tf\nA\tnew\n");
        let rest = cli.ok("diff try --patch f");
        has(&rest, ["-15\n+changed 15\n"]);
        lacks(&rest, ["changed 2"]);
        // The last hunk of a file is all of it.
        let screen = Tmux::start(&world, &cli, "review try");
        screen.shows(["[ ] M f", "[ ] @@ -12,7"]);
        screen.tmux(&["send-keys", "Tab", "Space", "r"]);
        screen.shows(["[x] M f", "Commit 1 of 2 changes?"]);
        screen.last(&["y"]);
        assert_eq!(read(&f), thirty(&[2, 15, 28]), "{strategy}");
        assert_eq!(cli.ok("diff try --name-status"), "A\tnew\n");
        for left in [&[2, 28][..], &[]] {
            cli.ok("undo try");
            assert_eq!(read(&f), thirty(left), "{strategy}");
        }
        cli.ok("commit try");
        assert_eq!(read(&f), thirty(&[2, 15, 28]), "{strategy}");
        if strategy == "git_worktree" {
            // A branch does not move without all of the files that were committed.
            sh(&app, init);
            cli.plan("two", "./app", strategy);
            let script = "cd app; sed -i 's/changed //' f; git -c user.name=t -c user.email=t@t commit -qam inside";
            cli.ok(inside("run --plan two", script));
            let screen = Tmux::start(&world, &cli, "review two");
            screen.shows(["[ ] M .git/"]);
            screen.tmux(&["send-keys", "a", "j", "j", "j", "Tab", "Space", "r"]);
            screen.shows(["[~] M f", "in part?"]);
            screen.last(&["y"]);
            assert_eq!(read(&f), thirty(&[2, 15, 28]));
            cli.ok("commit two");
            assert_eq!(read(&f), thirty(&[]));
        }
    }
}

/// Starts a program in a terminal of its own, whose keys are the standard input.
const IN_A_TERMINAL: &[&str] = &[
    "python3",
    "-Bc",
    "import os, pty, sys; ended = pty.spawn(['sh', '-c', 'stty rows 30 cols 120; exec \"$@\"', 'sh'] + sys.argv[1:]); sys.exit(os.waitstatus_to_exitcode(ended))",
];

// rules C1, C3
#[test]
fn a_release_of_hunks_is_killed() {
    if !as_ordinary_user() || !require_stepper() {
        return;
    }
    let scene = || {
        let (world, cli) = world();
        let cli = cli.env("TERM", "xterm");
        write(world.at("app/f"), thirty(&[]));
        cli.plan("try", "./app", "overlay");
        put(&cli, "try app f", thirty(&[2, 15, 28]));
        (world, cli)
    };
    let stepper = |cli: &Cli| {
        let review = cli.behind(IN_A_TERMINAL, "review try");
        Stepper::new(review).stdin("\t ry")
    };
    let seen = |world: &World, cli: &Cli| {
        let hunks = cli.ok("diff try --patch").matches("@@ -").count();
        (read(world.at("app/f")), hunks)
    };
    let old = (thirty(&[]), 3);
    let sides = [false, true].map(|_| std::cell::Cell::new(false));
    sweep_by(
        scene,
        "review try",
        stepper,
        &[Fault::Kill],
        |world, cli, how| {
            cli.ok("recover");
            let found = seen(world, cli);
            let new = found == (thirty(&[2]), 2);
            assert!(new || found == old, "{how}: {found:?}");
            sides[usize::from(new)].set(true);
            assert_eq!(cli.ok("read try app f"), thirty(&[2, 15, 28]), "{how}");
            if new {
                cli.ok("undo try");
                assert_eq!(seen(world, cli), old, "{how}");
            }
            cli.ok("commit try");
            assert_eq!(read(world.at("app/f")), thirty(&[2, 15, 28]), "{how}");
        },
    );
    assert!(sides.iter().all(std::cell::Cell::get), "{sides:?}");
    let (_world, cli) = scene();
    let said = stepper(&cli).run().outcome.stdout_text();
    let next = [
        "`escrow commit try` commits the rest",
        "undo with `escrow undo try`",
    ];
    has(&said, next);
}

/// What is new has no hunks, and where something is validated files are released as they were validated.
// rule C5
#[test]
fn a_review_offers_no_hunks_of_what_is_released_as_a_whole() {
    let (world, cli) = world();
    write(world.at("app/f"), thirty(&[]));
    let cli = cli.cwd(world.at("app"));
    cli.plan("try", ".", "overlay");
    put(&cli, "try app f", thirty(&[2, 28]));
    put(&cli, "try app new", "fresh\n");
    let screen = Tmux::start(&world, &cli, "review try");
    screen.shows(["tab: hunks"]);
    screen.tmux(&["send-keys", "j", "Tab", "Space"]);
    screen.shows(["+fresh", "[x] A new", "1 of 2 marked"]);
    lacks(&screen.tmux(&["capture-pane", "-p"]), ["hunk"]);
    screen.last(&["q"]);
    write(world.at("escrow.yaml"), "validate: [['true']]\n");
    cli.trust();
    let screen = Tmux::start(&world, &cli, "review try");
    screen.shows(["+changed 28"]);
    lacks(&screen.tmux(&["capture-pane", "-p"]), ["hunk"]);
    screen.tmux(&["send-keys", "Tab", "Space", "r"]);
    screen.shows(["Commit 1 of 2 changes?"]);
    screen.last(&["y"]);
    assert_eq!(read(world.at("app/f")), thirty(&[2, 28]));
}

#[test]
fn what_git_ignores_is_one_row_of_a_review() {
    as_user_too();
    let (world, cli) = world();
    let app = world.at("app");
    sh(&app, "git init -q .; echo '*.log' > .gitignore");
    cli.plan("try", "./app", "overlay");
    cli.ok(inside("run --plan try", "cd app; touch x.log y.log z"));
    let screen = Tmux::start(&world, &cli, "review try");
    screen.shows(["[ ] A z", "[ ] 2 ignored by git: x.log, y.log"]);
    screen.tmux(&["send-keys", "j", "Space", "r"]);
    screen.shows(["A y.log", "Commit 1 of 2 changes?"]);
    screen.last(&["y"]);
    assert!(app.join("x.log").exists() && app.join("y.log").exists() && !app.join("z").exists());
}
