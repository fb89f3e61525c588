//! A git sandbox costs the same whatever is checked out; beside it what git has for the same purpose.

use std::path::Path;
use std::time::Duration;

use super::LARGE;
use crate::bench::{Bench, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::{Tree, git, thousands};

pub(crate) fn figures(bench: &Bench) -> Section {
    let trees = [1000, LARGE].map(|files| Tree::new(bench, files));
    let [small, large] = [&trees[0], &trees[1]].map(|tree| {
        let name = format!("checkout-{}", tree.files);
        (tree, tree.repository(bench, &name))
    });
    let [few, many] = [&small, &large].map(|(tree, at)| calls(bench, tree, at));
    let ratio = many as f64 / few as f64;
    let mut rows = vec![Row::counted(
        "system calls of `plan create`",
        format!("{}: {}", large.0.title(), thousands(many)),
        format!("{}: {}", small.0.title(), thousands(few)),
        Some(ratio),
        "the same",
        Some((0.95..=1.05).contains(&ratio)),
    )];
    for (tree, at) in [&small, &large] {
        rows.extend(times(bench, tree, at));
    }
    Section {
        title: "A sandbox of a git checkout",
        note: "`plan create` with a private history, the whole command; `git worktree add` and `git clone --shared` of the \
            same repository, which write every file and know nothing of what is not committed. System calls of all \
            processes are counted by `strace`, those that wait for threads left out.\n"
            .to_owned(),
        rows,
    }
}

fn calls(bench: &Bench, tree: &Tree, at: &Path) -> usize {
    let escrow = bench.escrow(&format!("git-calls-{}", tree.files));
    let mut command = vec!["plan", "create", "p", "--strategy", "git_worktree", "-r"];
    let path = at.display().to_string();
    command.push(&path);
    let counts = escrow.cli.trace(command);
    let said = String::from_utf8_lossy(&counts.output.stderr);
    assert!(counts.output.status.success(), "{said}");
    counts.total - counts.count("futex") - counts.count("sched_yield")
}

fn times(bench: &Bench, tree: &Tree, at: &Path) -> Vec<Row> {
    let escrow = bench.escrow(&format!("git-{}", tree.files));
    let fresh = |what: &str, round: usize| bench.fresh(&format!("{what}-{}-{round}", tree.files));
    let take = |words: &[&str], to: &Path| -> Duration {
        let mut all = git(at, words);
        all.arg(to);
        time(&mut all, &[0])
    };
    let arms = vec![
        Arm::new("`plan create`", |_| {
            bench.settle();
            let took = escrow.create("p", at, "git_worktree");
            escrow.cleanup("p");
            took
        }),
        Arm::new("`git worktree add`", |round| {
            bench.settle();
            take(
                &["worktree", "add", "-q", "--detach"],
                &fresh("worktree", round),
            )
        }),
        Arm::new("`git clone --shared`", |round| {
            bench.settle();
            let mut clone = command("git", &["clone", "-q", "--shared"], &[at]);
            clone.arg(fresh("clone", round));
            time(&mut clone, &[0])
        }),
    ];
    let times = in_turns(bench.rounds(true), arms);
    let row = |other: usize| Row::times(tree.title(), &times[0], &times[other], None);
    vec![row(1), row(2)]
}
