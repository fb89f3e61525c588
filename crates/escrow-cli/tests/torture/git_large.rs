//! A repository of 50,000 files and 2,000 commits: work in it, released and taken back, and killed on the way.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::sweep::{each_here, thin};
use crate::*;

/// What `git fast-import` reads: so many files in directories of a hundred, then a commit for each change of one.
fn stream(files: usize, commits: usize) -> String {
    let mut text = String::from("feature done\n");
    let put = |text: &mut String, line: std::fmt::Arguments<'_>| {
        text.write_fmt(line)
            .expect("writing to a String cannot fail");
    };
    for commit in 1..=commits {
        let when = 1_500_000_000 + commit;
        let message = format!("commit {commit}");
        put(
            &mut text,
            format_args!(
                "commit refs/heads/main\nmark :{commit}\ncommitter U <u@example.org> {when} +0000\ndata {}\n{message}\n",
                message.len()
            ),
        );
        if commit > 1 {
            put(&mut text, format_args!("from :{}\n", commit - 1));
        }
        let changed: Vec<usize> = match commit {
            1 => (0..files).collect(),
            _ => vec![commit * 7919 % files],
        };
        for file in changed {
            let content = format!("file {file} of commit {commit}\n");
            put(
                &mut text,
                format_args!(
                    "M 100644 inline d{:03}/f{file:05}\ndata {}\n{content}",
                    file / 100,
                    content.len()
                ),
            );
        }
    }
    text + "done\n"
}

/// The repository, checked out.
fn repository(app: &Path, files: usize, commits: usize) {
    sh(
        app,
        "git init -q -b main .; git config user.name U; git config user.email u@example.org",
    );
    let mut import = Command::new("git")
        .args(["fast-import", "--quiet"])
        .current_dir(app)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a git");
    let input = import.stdin.take();
    let written = input.map(|mut input| input.write_all(stream(files, commits).as_bytes()));
    assert!(matches!(written, Some(Ok(()))), "git reads it");
    assert!(import.wait().expect("a child").success());
    // Files as young as the index would be read again, and stored again, by the first git that looks.
    sh(
        app,
        "git reset -q --hard; find d* -type f -exec touch -d @1500000000 {} +; git update-index -q --refresh",
    );
}

/// Every round has commits of its own: objects that an earlier one left would make a commit take fewer calls.
const WORK: &str = "set -e; export GIT_AUTHOR_DATE=\"$ROUND +0000\" GIT_COMMITTER_DATE=\"$ROUND +0000\"; for n in 1 2 3; do echo $n >> d001/f00100; git rm -q d002/f0020$n; git commit -qam work$n; done
    git mv d003/f00300 moved; echo new > d004/new; git add d004/new; git commit -qm moved; echo loose > loose
    test $(git rev-list --count HEAD) -gt 4; git log --oneline -- d001/f00100 | head -1; git status --short";

const LOOK: &str =
    "git rev-parse HEAD HEAD^{tree}; git status --porcelain; git ls-files -s | sha256sum";

/// Commits and undos, killed at some of their calls, in one repository of this size after the other.
pub(crate) fn kills(form: Form) -> Figures {
    let (files, commits, most) = match form {
        Form::Bounded => (2_000, 50, 4),
        Form::Long(_) => (50_000, 2_000, 60),
    };
    let world = World::new();
    let app = world.dir("app");
    repository(&app, files, commits);
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    let old = sh(&app, LOOK);
    let prepare = |round: u64| {
        cli.ok("plan create t -r app");
        let round = format!("ROUND={}", 1_600_000_000 + round);
        let line = ["run", "--plan", "t", "-e", &round, "--", "sh", "-c", WORK];
        cli.ok(line);
    };
    prepare(0);
    let all: Vec<u64> = (1..=sweep::calls(cli.stepper("commit t --yes"), "commit")).collect();
    let new = sh(&app, LOOK);
    let back = || -> Result<(), String> {
        cli.ok("undo t --yes");
        cli.ok("cleanup t --yes");
        match sh(&app, LOOK) {
            now if now == old => Ok(()),
            now => Err(format!("not as before: {now}")),
        }
    };
    let mut figures = Figures::default();
    figures.wrong.extend(back().err());
    let chosen = thin(&all, most);
    let found = each_here(&chosen, form.until(), |&n| {
        let attempt = |verdict: &mut Verdict| {
            prepare(n);
            let run = cli.stepper("commit t --yes").fault(n, Fault::Kill);
            verdict.hit.clone_from(&run.hit);
            cli.ok("recover");
            let now = sh(&app, LOOK);
            // The commit itself has the date of its round; tree, status and index are those of every round.
            let released = |now: &str| now.lines().skip(1).eq(new.lines().skip(1));
            if now == old {
                cli.ok("commit t --yes");
            }
            match sh(&app, LOOK) {
                now if released(&now) => back(),
                now => Err(format!("neither old nor new: {now}")),
            }
        };
        let verdict = Verdict::of(attempt, |_| format!("large repository: killed at {n}"));
        ("a large repository".to_owned(), verdict)
    });
    figures.add(found);
    let fsck = sh(
        &app,
        "git fsck --strict 2>&1 | grep -v '^dangling\\|^notice' || true; find .git -name '*.lock'",
    );
    if !fsck.is_empty() {
        figures.wrong.push(fsck);
    }
    figures.planned = chosen.len();
    figures
}

#[test]
fn a_repository_with_a_past() {
    need!(require_stepper());
    kills(Form::Bounded).settle("git: a large repository", 4);
}
