//! What checkpoint, restore and fork cost, counted in system calls. With layers: the same, whatever the size of the
//! tree and of what was changed before. With copies: one look at each entry, and work only for what changed.

use escrow_testkit::strace::Counts;

use crate::cost::{assert_same_cost, cli, original, working};
use crate::*;

const FILES: usize = 2_000;

const LINES: [&str; 3] = [
    "checkpoint create p -m second",
    "restore p first",
    "plan fork p other --at first",
];

/// A plan over so many files, with so many changes before the checkpoint `first` and ten after it.
fn scene(strategy: &str, files: usize, changes: usize) -> (World, Cli) {
    let world = World::new();
    original(&world, "original", files);
    let cli = cli(&world);
    let text = "sandbox: { checkpoint: { auto: [] } }\n";
    write(world.at("escrow.yaml"), text);
    cli.trust();
    cli.plan("p", "./original", strategy);
    let run = |script: String| {
        cli.clone()
            .cwd(world.at("original"))
            .ok(inside("-q run --plan p", &script));
    };
    run(format!(
        "mkdir new; cd new; seq {changes} | xargs -n 500 sh -c 'for n; do echo $n > $n; done' -"
    ));
    cli.ok("checkpoint create p -m first");
    run("mkdir later; cd later; for n in 1 2 3 4 5 6 7 8 9 10; do echo $n > $n; done".to_owned());
    (world, cli)
}

/// Each of the lines, one after the other.
fn costs(strategy: &str, files: usize, changes: usize) -> Vec<usize> {
    let (_world, cli) = scene(strategy, files, changes);
    let cost = |line: &&str| working(&cli.trace(line));
    LINES.iter().map(cost).collect()
}

// rule C11
#[test]
fn checkpoints_of_layers_cost_the_same_for_any_tree_and_any_earlier_change() {
    let small = costs("overlay", 100, 10);
    let wide = costs("overlay", FILES, 10);
    let changed = costs("overlay", 100, FILES);
    for (at, line) in LINES.into_iter().enumerate() {
        let [small, wide, changed] = [&small, &wide, &changed].map(|costs| costs[at]);
        tell(&format!("overlay: {line}: {small}, {wide}, {changed}"));
        assert_same_cost(line, small, wide);
        assert_same_cost(line, small, changed);
    }
}

/// How often files are opened, read, written, linked, renamed, copied or removed below a directory; and how often
/// entries are looked at.
fn work_and_looks(counts: &Counts, below: &Path) -> (usize, usize) {
    let below = below.to_string_lossy().into_owned();
    let works = [
        "read(",
        "pread64(",
        "write(",
        "pwrite64(",
        "copy_file_range(",
        "ioctl(",
        "linkat(",
        "symlinkat(",
        "renameat",
        "unlinkat(",
        "mkdirat(",
        "fchmod",
        "fchown",
        "utimensat(",
        "setxattr",
        "O_CREAT",
        "O_TMPFILE",
    ];
    let looks = ["statx(", "newfstatat(", "fstat("];
    let mut found = (0, 0);
    for line in counts.lines.iter().filter(|line| line.contains(&below)) {
        found.0 += usize::from(works.iter().any(|call| line.contains(call)));
        found.1 += usize::from(looks.iter().any(|call| line.starts_with(call)));
    }
    found
}

fn areas(world: &World) -> PathBuf {
    world.home().join("sandboxes")
}

/// What another process reads who measures.
fn tell(line: &str) {
    use std::io::Write;
    if std::env::var_os("ESCROW_TELL_COSTS").is_some() {
        // Nothing can be said about a closed standard error.
        let _ = std::io::stderr().write_all(format!("cost: {line}\n").as_bytes());
    }
}

// rule C11
#[test]
fn checkpoints_of_copies_look_once_at_each_entry_and_work_for_what_changed() {
    let cost = |files: usize| {
        let (world, cli) = scene("filesystem_copy", files, 10);
        let cost = |line: &&str| {
            let counts = cli.trace(line);
            working(&counts);
            let opened = counts.file_opens_below(&world.at("original"));
            assert_eq!(opened, [""; 0], "{line} opens files of the original");
            work_and_looks(&counts, &areas(&world))
        };
        LINES[..2].iter().map(cost).collect::<Vec<_>>()
    };
    let (small, large) = (cost(100), cost(FILES));
    for ((line, small), large) in LINES.iter().zip(small).zip(large) {
        tell(&format!(
            "copy: {line}: work {} and {}, looks {} and {}",
            small.0, large.0, small.1, large.1
        ));
        assert_same_cost(line, small.0, large.0);
        // One look at each entry of the tree, and a few at each directory and at what changed.
        let most = small.1 + FILES + FILES / 20 + 40;
        assert!(
            large.1 <= most,
            "{line}: {} looks at first, {} later",
            small.1,
            large.1
        );
    }
}
