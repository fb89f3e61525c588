//! An overlay sandbox costs the same whatever lies below it.

use std::path::Path;
use std::process::Command;

use escrow_testkit::strace::Counts;

use super::LARGE;
use crate::bench::{Bench, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::{Tree, thousands};

pub(crate) fn figures(bench: &Bench) -> Section {
    let trees = [1000, LARGE].map(|files| Tree::new(bench, files));
    let [small, large] = [&trees[0], &trees[1]].map(|tree| calls(bench, tree));
    let ratio = large as f64 / small as f64;
    let mut rows = vec![Row::counted(
        "system calls of `plan create`",
        format!("{}: {}", trees[1].title(), thousands(large)),
        format!("{}: {}", trees[0].title(), thousands(small)),
        Some(ratio),
        "the same",
        Some((0.95..=1.05).contains(&ratio)),
    )];
    rows.extend(trees.iter().map(|tree| times(bench, tree)));
    Section {
        title: "An overlay sandbox",
        note: "`plan create --strategy overlay`, the whole command. It tries for real whether the kernel mounts the \
            original here, and records everything durably in SQLite; `unshare` and `mount` only mount. System calls are \
            counted by `strace`, those that wait for threads (`futex`, `sched_yield`) left out.\n"
            .to_owned(),
        rows,
    }
}

fn calls(bench: &Bench, tree: &Tree) -> usize {
    let escrow = bench.escrow(&format!("calls-{}", tree.files));
    let mut args: Vec<&std::ffi::OsStr> = ["plan", "create", "p", "--strategy", "overlay", "-r"]
        .map(std::ffi::OsStr::new)
        .into();
    args.push(tree.path.as_os_str());
    let counts = escrow.cli.trace(args);
    assert!(
        counts.output.status.success(),
        "{}",
        String::from_utf8_lossy(&counts.output.stderr)
    );
    working(&counts)
}

/// Calls that do something.
pub(super) fn working(counts: &Counts) -> usize {
    counts.total - counts.count("futex") - counts.count("sched_yield")
}

fn times(bench: &Bench, tree: &Tree) -> Row {
    let escrow = bench.escrow(&format!("overlay-{}", tree.files));
    let layers = ["upper", "work", "merged"].map(|name| bench.dir(&format!("plain/{name}")));
    let arms = vec![
        Arm::new("`plan create`", |_| {
            bench.settle();
            let took = escrow.create("p", &tree.path, "overlay");
            escrow.cleanup("p");
            took
        }),
        Arm::new("`unshare -Urm mount`", |_| {
            bench.settle();
            time(&mut mount(&tree.path, &layers), &[0])
        }),
    ];
    let times = in_turns(bench.rounds(false) * 2 - 1, arms);
    Row::times(tree.title(), &times[0], &times[1], None)
}

fn mount(lower: &Path, [upper, work, merged]: &[std::path::PathBuf; 3]) -> Command {
    const SCRIPT: &str =
        "mount -t overlay overlay -o \"userxattr,lowerdir=$1,upperdir=$2,workdir=$3\" \"$4\"";
    let words = ["-Urm", "sh", "-euc", SCRIPT, "mount"];
    command("unshare", &words, &[lower, upper, work, merged])
}
