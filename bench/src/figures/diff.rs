//! What changed, beside the tools that find it out today.

use std::path::Path;
use std::time::Duration;

use super::sizes;
use crate::bench::{Bench, Escrow, command, time};
use crate::changes::{CHANGES, apply, apply_to_overlay};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::{Tree, git};

pub(crate) fn unchanged(bench: &Bench) -> Section {
    let mut rows = Vec::new();
    for files in sizes(bench) {
        let tree = Tree::new(bench, *files);
        let escrow = bench.escrow(&format!("unchanged-{files}"));
        escrow.create("p", &tree.path, "filesystem_copy");
        assert_eq!(escrow.changes("p"), 0, "nothing was changed");
        rows.push(opened(&escrow, &tree));
        let (copy, repository) = (
            tree.copy(bench, "unchanged-copy"),
            tree.repository(bench, "unchanged-git"),
        );
        let arms = vec![
            Arm::new("`escrow diff`", |_| escrow.time(&["diff", "p"])),
            Arm::new("`git status`", |_| git_status(&repository)),
            Arm::new("`diff -rq`", |_| diff_rq(&tree, &copy, 0)),
        ];
        let times = in_turns(bench.rounds(false), arms);
        rows.push(Row::times(tree.title(), &times[0], &times[1], None));
        rows.push(Row::times(tree.title(), &times[0], &times[2], None));
    }
    Section {
        title: "The diff of an unchanged copy",
        note: "A `filesystem_copy` sandbox in which nothing was done. `git status` looks at a repository of the same \
            files; `diff -rq` compares the original with a copy made by `cp -a`, and reads both.\n"
            .to_owned(),
        rows,
    }
}

/// How many files are opened to find out that nothing changed.
fn opened(escrow: &Escrow, tree: &Tree) -> Row {
    let counts = escrow.cli.trace(["diff", "p"]);
    assert!(counts.output.status.success(), "the diff succeeds");
    let opens = counts.file_opens_below(&tree.path).len()
        + counts
            .file_opens_below(&escrow.area().join("copy/tree"))
            .len();
    Row::counted(
        format!("{}, files opened", tree.title()),
        opens.to_string(),
        "",
        None,
        "0",
        Some(opens == 0),
    )
}

pub(crate) fn changed(bench: &Bench) -> Section {
    let mut rows = Vec::new();
    for files in sizes(bench) {
        let tree = Tree::new(bench, *files);
        let [copied, overlaid] = ["copy", "overlay"]
            .map(|strategy| bench.escrow(&format!("changed-{strategy}-{files}")));
        copied.create("p", &tree.path, "filesystem_copy");
        apply(&tree, &copied.area().join("copy/tree"));
        overlaid.create("p", &tree.path, "overlay");
        apply_to_overlay(&tree, &overlaid.area());
        let (copy, repository) = (
            tree.copy(bench, "changed-copy"),
            tree.repository(bench, "changed-git"),
        );
        apply(&tree, &copy);
        apply(&tree, &repository);
        for escrow in [&copied, &overlaid] {
            assert_eq!(escrow.changes("p"), CHANGES, "every change is found");
        }
        let arms = vec![
            Arm::new("`escrow diff`, copy", |_| copied.time(&["diff", "p"])),
            Arm::new("`escrow diff`, overlay", |_| overlaid.time(&["diff", "p"])),
            Arm::new("`git status`", |_| git_status(&repository)),
            Arm::new("`diff -rq`", |_| diff_rq(&tree, &copy, 1)),
        ];
        let times = in_turns(bench.rounds(false), arms);
        for ours in &times[..2] {
            for other in &times[2..] {
                rows.push(Row::times(tree.title(), ours, other, None));
            }
        }
    }
    Section {
        title: "The diff of 100 changes",
        note: "50 files modified, 30 added, 20 deleted, in different directories. In the overlay sandbox the kernel made \
            them, through a mount.\n"
            .to_owned(),
        rows,
    }
}

fn git_status(repository: &Path) -> Duration {
    time(&mut git(repository, &["status", "--porcelain"]), &[0])
}

fn diff_rq(tree: &Tree, copy: &Path, status: i32) -> Duration {
    time(
        &mut command("diff", &["-rq", "--"], &[&tree.path, copy]),
        &[status],
    )
}
