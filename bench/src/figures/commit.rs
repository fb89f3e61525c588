//! What it costs to release a hundred changes, beside the tools that bring one tree to the state of another.

use std::path::Path;
use std::time::Duration;

use super::sizes;
use crate::bench::{Bench, Escrow, command, time};
use crate::changes::{apply, apply_to_overlay, paths};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::{Tree, git};

pub(crate) fn figures(bench: &Bench) -> Section {
    let mut rows = Vec::new();
    for files in sizes(bench) {
        let tree = Tree::new(bench, *files);
        let [copied, overlaid] =
            ["copy", "overlay"].map(|name| bench.escrow(&format!("commit-{name}-{files}")));
        let (target, source) = (
            tree.copy(bench, "commit-to"),
            tree.copy(bench, "commit-from"),
        );
        apply(&tree, &source);
        let back = tree.copy(bench, "commit-back");
        let repository = tree.repository(bench, "commit-git");
        let arms = vec![
            Arm::new("`escrow commit`, copy", |_| {
                release(bench, &copied, &tree, "filesystem_copy")
            }),
            Arm::new("`escrow commit`, overlay", |_| {
                release(bench, &overlaid, &tree, "overlay")
            }),
            Arm::new("`cp`, `rm`, `sync -f` of what is known", |_| {
                bench.settle();
                let took = bring(&tree, &source, &target);
                bring(&tree, &back, &target);
                took
            }),
            Arm::new("`git commit`, `merge --ff-only`", |_| {
                bench.settle();
                merge(&tree, &repository)
            }),
        ];
        let times = in_turns(bench.rounds(true), arms);
        for ours in &times[..2] {
            for other in &times[2..] {
                rows.push(Row::times(tree.title(), ours, other, None));
            }
        }
    }
    Section {
        title: "The commit of 100 changes",
        note: "The whole command, from the diff to the last durable record; then it is undone, and the next round begins anew. \
            `cp` is told which paths to bring, compares nothing and keeps no way back; git finds the changes and stores them in \
            its own form, and makes nothing durable.\n"
            .to_owned(),
        rows,
    }
}

/// Commits the changes in a new plan, and takes them back; how long the commit took.
fn release(bench: &Bench, escrow: &Escrow, tree: &Tree, strategy: &str) -> Duration {
    escrow.create("p", &tree.path, strategy);
    match strategy {
        "overlay" => apply_to_overlay(tree, &escrow.area()),
        _ => apply(tree, &escrow.area().join("copy/tree")),
    }
    bench.settle();
    let took = escrow.time(&["commit", "p"]);
    escrow.time(&["undo", "p"]);
    escrow.cleanup("p");
    took
}

/// Brings the hundred paths of one tree to another, in one go, and waits until they are on disk.
fn bring(tree: &Tree, from: &Path, to: &Path) -> Duration {
    const SCRIPT: &str = "cd \"$1\"; shift; to=$1; shift; keep=; \
        for path; do if [ -e \"$path\" ]; then keep=\"$keep $path\"; else rm -f \"$to/$path\"; fi; done; \
        cp -p --parents -t \"$to\" $keep; sync -f \"$to\"";
    let mut sh = command("sh", &["-euc", SCRIPT, "bring"], &[from, to]);
    time(sh.args(paths(tree)), &[0])
}

fn merge(tree: &Tree, repository: &Path) -> Duration {
    let run = |words: &[&str]| time(&mut git(repository, words), &[0]);
    run(&["checkout", "-q", "-B", "work", "main"]);
    apply(tree, repository);
    let took = run(&["add", "-A"]) + run(&["commit", "-q", "-m", "work"]);
    run(&["checkout", "-q", "main"]);
    let took = took + run(&["merge", "-q", "--ff-only", "work"]);
    run(&["reset", "-q", "--hard", "HEAD~1"]);
    took
}
