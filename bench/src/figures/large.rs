//! The memory and the time that a large commit and its undo take, beside the renames alone and beside git.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use escrow_testkit::{OverlayMount, XattrKind};

use crate::bench::{Bench, Escrow, command, time};
use crate::memory::{Spent, spend};
use crate::report::{Row, Section};
use crate::tree::{Tree, git, name, thousands};

const GOAL_MIB: f64 = 200.0;

/// What is done to every file of the tree.
#[derive(Clone, Copy)]
enum Kind {
    Added,
    Modified,
    Deleted,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Added, Self::Modified, Self::Deleted];

    fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
        }
    }

    /// A shell script that does it in the directory it runs in.
    fn script(self, files: usize) -> String {
        let lines: Vec<String> = (0..files)
            .map(|file| match self {
                Self::Added => format!("echo added > {}.new", name(file)),
                Self::Modified => format!("echo modified > {}", name(file)),
                Self::Deleted => name(file),
            })
            .collect();
        match self {
            Self::Deleted => format!("xargs rm <<'END'\n{}\nEND\n", lines.join("\n")),
            _ => lines.join("\n"),
        }
    }
}

pub(crate) fn figures(bench: &Bench) -> Section {
    let files = if bench.quick { 20_000 } else { 200_000 };
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let renames = renames(bench, kind, files);
        let git = with_git(bench, kind, files);
        for strategy in ["overlay", "filesystem_copy"] {
            rows.extend(measure(bench, strategy, kind, files, renames, &git));
        }
    }
    Section {
        title: "Large commits",
        note: format!(
            "Every one of {0} files changes, or as many are added, in one plan; each figure is of one run. *Renames* is a bare loop \
            that moves as many files to another directory and back, halved, and a sync of the file system: what a commit and an undo \
            cannot do without. git adds and commits the same change. Peaks are what the kernel says of the process (`VmHWM`). The \
            state is what `state.db` grew by: after the commit, after the undo, and after `escrow gc`.\n",
            thousands(files)
        ),
        rows,
    }
}

fn measure(
    bench: &Bench,
    strategy: &str,
    kind: Kind,
    files: usize,
    renames: Duration,
    git: &Spent,
) -> Vec<Row> {
    let label = format!("large-{strategy}-{}", kind.word());
    let tree = Tree::filled(bench, &label, files);
    let escrow = bench.escrow(&label);
    let before = state_size(&escrow);
    escrow.create("p", &tree.path, strategy);
    let script = bench.fresh(&format!("{label}.sh"));
    std::fs::write(&script, kind.script(files)).expect("the world can be written to");
    change(&tree, &escrow.area(), strategy, &script);
    bench.settle();
    let commit = spend(&mut escrow.cli.command(["commit", "--yes", "p"]));
    let after_commit = state_size(&escrow);
    bench.settle();
    let undo = spend(&mut escrow.cli.command(["undo", "--yes", "p"]));
    let after_undo = state_size(&escrow);
    escrow.time(&["gc", "--older-than", "0s"]);
    let after_gc = state_size(&escrow);
    let what = |verb: &str| format!("{strategy}, {} {}: {verb}", thousands(files), kind.word());
    let memory = |verb: &str, ours: &Spent| {
        Row::counted(
            format!("{}, peak", what(verb)),
            format!("{:.0} MiB", ours.mib),
            format!("`git add`, `git commit`: {:.0} MiB", git.mib),
            Some(ours.mib / git.mib),
            "< 200 MiB",
            Some(ours.mib < GOAL_MIB),
        )
    };
    let took = |verb: &str, ours: &Spent| {
        Row::counted(
            format!("{}, time", what(verb)),
            format!("{:.1} s", ours.time.as_secs_f64()),
            format!(
                "renames: {:.1} s; `git add`, `git commit`: {:.1} s",
                renames.as_secs_f64(),
                git.time.as_secs_f64()
            ),
            Some(ours.time.as_secs_f64() / renames.as_secs_f64()),
            "",
            None,
        )
    };
    let grown = |size: u64| size.saturating_sub(before) >> 10;
    let small = 512;
    vec![
        memory("commit", &commit),
        took("commit", &commit),
        memory("undo", &undo),
        took("undo", &undo),
        Row::counted(
            what("state"),
            format!("{} KiB after gc", grown(after_gc)),
            format!(
                "{} KiB after the commit, {} KiB after the undo",
                grown(after_commit),
                grown(after_undo)
            ),
            None,
            "< 512 KiB",
            Some(grown(after_gc) < small),
        ),
    ]
}

fn state_size(escrow: &Escrow) -> u64 {
    let size = std::fs::metadata(escrow.state());
    size.expect("the program made it").len()
}

/// Makes the changes in a sandbox: those of an overlay through a real mount.
fn change(tree: &Tree, area: &Path, strategy: &str, script: &Path) {
    let run = |at: &Path| {
        let mut sh = command("sh", &["-eu"], &[script]);
        time(sh.current_dir(at), &[0]);
    };
    if strategy != "overlay" {
        return run(&area.join("copy/tree"));
    }
    let layers = std::fs::read_dir(area.join("layers")).expect("there is a layer");
    let layer = layers
        .map(|layer| layer.expect("it can be listed").path())
        .next()
        .expect("one layer takes the changes");
    let mount = OverlayMount {
        lower: &tree.path,
        upper: &layer,
        work: &area.join("work"),
        xattr: XattrKind::User,
    };
    mount.run(&format!("sh -eu '{}'", script.display()));
}

/// How long the renames of such a commit take by themselves.
fn renames(bench: &Bench, kind: Kind, files: usize) -> Duration {
    let tree = Tree::filled(bench, &format!("large-renames-{}", kind.word()), files);
    let to = bench.fresh(&format!("large-aside-{}", kind.word()));
    std::fs::create_dir(&to).expect("the world can be written to");
    let places = |file: usize| -> (PathBuf, PathBuf) {
        (tree.path.join(name(file)), to.join(file.to_string()))
    };
    bench.settle();
    let start = Instant::now();
    for file in 0..files {
        let (from, to) = places(file);
        std::fs::rename(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    for file in 0..files {
        let (to, from) = places(file);
        std::fs::rename(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    bench.settle();
    start.elapsed() / 2
}

/// The same change, committed by git.
fn with_git(bench: &Bench, kind: Kind, files: usize) -> Spent {
    let tree = Tree::filled(bench, &format!("large-git-{}", kind.word()), files);
    let run = |words: &[&str]| spend(&mut git(&tree.path, words));
    run(&["init", "-q", "-b", "main"]);
    run(&["add", "-A"]);
    run(&["commit", "-q", "-m", "all"]);
    let script = bench.fresh(&format!("large-git-{}.sh", kind.word()));
    std::fs::write(&script, kind.script(files)).expect("the world can be written to");
    let mut sh = command("sh", &["-eu"], &[&script]);
    time(sh.current_dir(&tree.path), &[0]);
    bench.settle();
    let (added, committed) = (run(&["add", "-A"]), run(&["commit", "-q", "-m", "work"]));
    Spent {
        time: added.time + committed.time,
        mib: added.mib.max(committed.mib),
    }
}
