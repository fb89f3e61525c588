//! A full copy, beside `cp -a`.

use std::path::Path;
use std::time::{Duration, Instant};

use escrow::event::Unobserved;
use escrow::internals::fs::Dir;
use escrow::internals::fs::content::Reflinks;
use escrow::internals::fs::copy::copy_tree;

use super::sizes;
use crate::bench::{Bench, command, time};
use crate::measure::{Arm, Times, in_turns};
use crate::report::{Row, Section};
use crate::tree::Tree;

pub(crate) fn figures(bench: &Bench) -> Section {
    let rows = sizes(bench)
        .iter()
        .flat_map(|files| of_tree(bench, &Tree::new(bench, *files)))
        .collect();
    Section {
        title: "A full copy",
        note: "Files of 4 KiB on average, forty in a directory. `copy_tree` is the engine's copy: it keeps all that \
            `cp -a` keeps and makes the manifest of both trees in the same pass, but like `cp` it does not wait for the \
            disk. `plan create` is the whole command: it opens the state, copies, writes the manifest, and waits until \
            everything is on disk (`syncfs`), so its equal is `cp -a` followed by `sync -f`. For \
            minutes after many files were deleted, ext4 makes each new file there up to ten times as slow, whoever makes \
            it; so as root all of this runs on a new file system. On one in use the times scatter, and \
            the goals below were missed there by some runs.\n"
            .to_owned(),
        rows,
    }
}

fn of_tree(bench: &Bench, tree: &Tree) -> Vec<Row> {
    let escrow = bench.escrow(&format!("copy-{}", tree.files));
    let new = |arm: &str, round: usize| {
        bench.settle();
        bench.fresh(&format!("{arm}-{}-{round}", tree.files))
    };
    let arms = vec![
        Arm::new("`cp -a`", |round| cp(tree, &new("cp", round))),
        Arm::new("`cp -a; sync -f`", |round| {
            let to = new("synced", round);
            cp(tree, &to) + time(&mut command("sync", &["-f"], &[&to]), &[0])
        }),
        Arm::new("`copy_tree`", |round| engine(tree, &new("engine", round))),
        Arm::new("`plan create`", |round| {
            bench.settle();
            let plan = format!("p-{}-{round}", tree.files);
            escrow.create(&plan, &tree.path, "filesystem_copy")
        }),
    ];
    let times = in_turns(bench.rounds(tree.files > super::SMALL), arms);
    let [cp, synced, engine, command] = &times[..] else {
        panic!("there are as many times as arms")
    };
    let row = |ours: &Times, other: &Times, goal| Row::times(tree.title(), ours, other, goal);
    vec![
        row(engine, cp, Some(1.0)),
        row(command, synced, Some(1.0)),
        row(command, cp, None),
    ]
}

fn cp(tree: &Tree, to: &Path) -> Duration {
    time(&mut command("cp", &["-a", "--"], &[&tree.path, to]), &[0])
}

/// The bare copy, in this process.
fn engine(tree: &Tree, to: &Path) -> Duration {
    let open = |path: &Path| Dir::open(path).unwrap_or_else(|error| panic!("{error}"));
    let start = Instant::now();
    std::fs::create_dir(to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    let (manifest, report) = copy_tree(
        &open(&tree.path),
        &open(to),
        Reflinks::never(),
        &[],
        &Unobserved,
    )
    .unwrap_or_else(|error| panic!("{error}: {}", error.cause));
    let took = start.elapsed();
    assert_eq!(report.copied, tree.files as u64, "every file was copied");
    drop(manifest);
    took
}
