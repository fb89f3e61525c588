//! The end of a sandbox: its changes discarded, or all of it removed.

use std::path::PathBuf;
use std::time::Duration;

use super::SMALL;
use crate::bench::{Bench, command, time};
use crate::changes::{apply, apply_to_overlay};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::{Tree, git};

pub(crate) fn figures(bench: &Bench) -> Section {
    let tree = Tree::new(bench, SMALL);
    let mut rows = rollback(bench, &tree);
    rows.push(cleanup(bench, &tree));
    Section {
        title: "Rollback and cleanup",
        note: "10,000 files. A rollback discards the 100 changes and is durable; `git` resets a repository of the same files \
            (`reset --hard`, `clean -fd`) and is not. A cleanup is compared with `rm -rf` of a copy of the same tree.\n"
            .to_owned(),
        rows,
    }
}

fn rollback(bench: &Bench, tree: &Tree) -> Vec<Row> {
    let (copied, overlaid) = (bench.escrow("back-copy"), bench.escrow("back-overlay"));
    copied.create("p", &tree.path, "filesystem_copy");
    overlaid.create("p", &tree.path, "overlay");
    let repository = tree.repository(bench, "back-git");
    let undo = |escrow: &crate::bench::Escrow| -> Duration {
        bench.settle();
        escrow.time(&["rollback", "--yes", "p"])
    };
    let arms = vec![
        Arm::new("`rollback`, copy", |_| {
            apply(tree, &copied.area().join("copy/tree"));
            undo(&copied)
        }),
        Arm::new("`rollback`, overlay", |_| {
            apply_to_overlay(tree, &overlaid.area());
            undo(&overlaid)
        }),
        Arm::new("`git reset; git clean`", |_| {
            apply(tree, &repository);
            bench.settle();
            time(&mut git(&repository, &["reset", "-q", "--hard"]), &[0])
                + time(&mut git(&repository, &["clean", "-qfd"]), &[0])
        }),
    ];
    let times = in_turns(bench.rounds(false), arms);
    for escrow in [&copied, &overlaid] {
        assert_eq!(escrow.changes("p"), 0, "every change was discarded");
    }
    let row = |at: usize| Row::times("100 changes discarded", &times[at], &times[2], None);
    vec![row(0), row(1)]
}

fn cleanup(bench: &Bench, tree: &Tree) -> Row {
    let escrow = bench.escrow("cleanup");
    let rounds = bench.rounds(true);
    // Made beforehand: a deletion makes whatever is made after it slow.
    let copies: Vec<PathBuf> = (0..=rounds)
        .map(|round| {
            escrow.create(&format!("p{round}"), &tree.path, "filesystem_copy");
            tree.copy(bench, &format!("removed-{round}"))
        })
        .collect();
    let arms = vec![
        Arm::new("`cleanup`", |round| {
            bench.settle();
            escrow.cleanup(&format!("p{round}"))
        }),
        Arm::new("`rm -rf`", |round| {
            bench.settle();
            time(&mut command("rm", &["-rf", "--"], &[&copies[round]]), &[0])
        }),
    ];
    let times = in_turns(rounds, arms);
    Row::times("a copy removed", &times[0], &times[1], None)
}
