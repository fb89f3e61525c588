//! One word for each thing: what the command line prints, and what it takes.

use crate::review::Tmux;
use crate::*;

/// What a terminal shows of a command.
#[track_caller]
fn shown(cli: &Cli, line: &str, end: &str) -> String {
    let terminal = Terminal::new(60, 200);
    let mut child = terminal.start(cli.command(line));
    terminal.expect(end);
    child.wait().expect("it ends");
    terminal.text()
}

/// The word after `label` on its line.
#[track_caller]
fn after<'a>(text: &'a str, label: &str) -> &'a str {
    let (_, rest) = text.split_once(label).expect("it is there");
    rest.split_whitespace().next().expect("a word")
}

#[test]
fn a_side_of_a_conflict_is_the_sandbox_or_the_original() {
    as_user_too();
    for (words, text) in [
        (["sandbox", "ours"], "inside\n"),
        (["original", "theirs"], "outside\n"),
    ] {
        for word in words {
            let (world, cli) = planned_app("auto");
            put(&cli, "try app a.txt", "inside\n");
            write(world.at("app/a.txt"), "outside\n");
            let refused = cli.fails("commit try", 4);
            has(
                &refused,
                ["`escrow commit try --on-conflict sandbox`", "`original`"],
            );
            lacks(&refused, ["ours", "theirs"]);
            let done = cli.ok(format!("commit try --on-conflict {word}"));
            has(&done, [words[0]]);
            lacks(&done, [words[1]]);
            assert_eq!(read(world.at("app/a.txt")), text, "{word}");
        }
    }
}

#[test]
fn a_digest_is_short_on_a_terminal() {
    as_user_too();
    let (_world, cli) = planned_app("auto");
    put(&cli, "try app a.txt", "new\n");
    let digest = json(&cli, "diff try")["digest"].to_string();
    let digest = digest.trim_matches('"');
    let whole = cli.expect("diff try", 0).stderr_text();
    assert_eq!(after(&whole, "digest: "), digest);
    let short = format!("{}…", &digest[..12]);
    assert_eq!(
        after(&shown(&cli, "diff try", "digest: "), "digest: "),
        short
    );
    let said = shown(&cli, "commit try --dry-run", "nothing was changed");
    assert_eq!(after(&said, "digest: "), short);
    let said = shown(&cli, "diff -v try", &digest[60..]);
    assert_eq!(after(&said, "digest: "), digest);
    // What a terminal showed is no digest.
    let refused = cli.fails(["commit", "try", "--expect", &short], 2);
    has(&refused, ["only the beginning", "`escrow diff -v try`"]);
    let said = shown(&cli, "commit try --yes", "undo with");
    assert!(after(&said, "log: ").ends_with('…'), "{said}");
}

#[test]
fn the_question_after_a_run_leads_to_a_review() {
    as_user_too();
    let (world, cli) = planned_app("auto");
    put(&cli, "try app a.txt", "new\n");
    put(&cli, "try app b.txt", "more\n");
    let screen = Tmux::start(&world, &cli, "run --plan try -- true");
    let question = "[d]iff [v]review [c]ommit [k]eep [x]discard [?]";
    let send = |keys: &[&str]| screen.tmux(&[&["send-keys"], keys].concat());
    // What is typed before the question is there is no answer to it.
    let asked = || {
        let start = Instant::now();
        while !screen
            .tmux(&["capture-pane", "-p"])
            .trim_end()
            .ends_with(question)
        {
            assert!(start.elapsed() < Duration::from_secs(60), "it never asks");
            thread::sleep(Duration::from_millis(30));
        }
    };
    asked();
    // Who leaves the review is asked again, and so is who commits a part.
    send(&["v", "Enter"]);
    screen.shows(["0 of 2 marked"]);
    send(&["q"]);
    screen.shows(["nothing was committed"]);
    asked();
    send(&["v", "Enter"]);
    screen.shows(["0 of 2 marked"]);
    send(&["Space", "c"]);
    screen.shows(["Commit 1 of 2 changes?"]);
    send(&["y"]);
    screen.shows(["`escrow commit try` commits the rest"]);
    asked();
    send(&["v", "Enter"]);
    screen.shows(["0 of 1 marked"]);
    send(&["a", "c"]);
    screen.shows(["Commit 1 of 1 changes?"]);
    screen.last(&["y"]);
    assert_eq!(read(world.at("app/a.txt")), "new\n");
    assert_eq!(read(world.at("app/b.txt")), "more\n");
    assert_eq!(json(&cli, "plan show try")["state"], "committed");
}

/// `release` was a second word for the act, and `ours` and `theirs` were words for the sides.
#[test]
fn the_help_says_commit() {
    let reference = read(repository().join("docs/cli-reference.md")).to_lowercase();
    for word in reference.split(|c: char| !c.is_alphanumeric()) {
        let is_old = word.starts_with("releas") || ["ours", "theirs"].contains(&word);
        assert!(!is_old, "{word}");
    }
}

/// The files below a directory whose names end so.
fn below(at: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(at).expect("it is there") {
        let path = entry.expect("it can be read").path();
        match path.is_dir() {
            true => found.extend(below(&path, end)),
            false if path.to_string_lossy().ends_with(end) => found.push(path),
            false => {}
        }
    }
    found
}

/// Whatever is told to type, in messages and in the documentation, is a command with options that it has.
#[test]
fn every_hint_is_a_command_with_its_options() {
    // For what is started by Escrow itself.
    const OWN: [&str; 5] = ["answer", "holder", "inside", "reference", "help"];
    let reference = read(repository().join("docs/cli-reference.md"));
    let sections: Vec<(&str, &str)> = reference
        .split("\n## ")
        .filter_map(|section| section.split_once('\n'))
        .collect();
    let section = |command: &str| sections.iter().find(|(name, _)| *name == command);
    let (_, top) = section("escrow").expect("it is documented");
    let mut files = below(&repository().join("docs"), ".md");
    for part in ["crates/escrow/src", "crates/escrow-cli/src"] {
        files.extend(below(&repository().join(part), ".rs"));
    }
    let (mut hints, mut wrong) = (0, Vec::new());
    for file in files {
        let text = read(&file);
        for (at, _) in text.match_indices("`escrow ") {
            let Some((hint, _)) = text[at + 1..].split_once('`') else {
                continue;
            };
            let words: Vec<&str> = hint.split_whitespace().collect();
            // A string that is put together is no line to type.
            if hint.len() > 200 || hint.contains('"') || OWN.contains(&words[1]) {
                continue;
            }
            hints += 1;
            let prefixes = (1..=words.len()).rev().map(|n| (n, words[..n].join(" ")));
            let mut known = prefixes.filter_map(|(n, name)| Some((n, section(&name)?.1)));
            let (n, options) = known.next().unwrap_or((1, *top));
            let is_option = |word: &&&str| word.starts_with("--") && word.len() > 2;
            let own = words[n..].iter().take_while(|word| **word != "--");
            let unknown = own.filter(is_option).find(|word| {
                let name = word.trim_start_matches('-');
                let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '-');
                let option = format!("--{}", &name[..end.unwrap_or(name.len())]);
                !options.contains(&option) && !top.contains(&option)
            });
            let is_command = n > 1 || words[1].starts_with('-') || words[1].starts_with('{');
            if unknown.is_some() || !is_command {
                wrong.push(format!("{}: {hint}", file.display()));
            }
        }
    }
    assert!(hints > 250, "{hints}");
    assert_eq!(wrong, [""; 0]);
}
