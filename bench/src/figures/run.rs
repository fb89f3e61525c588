//! What it costs to start a command inside, beside the kernel's own mechanisms alone.

use escrow_testkit::strace::{Spec, count_syscalls};

use super::LARGE;
use super::overlay::working;
use crate::bench::{Bench, Escrow, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::Tree;

/// The walls that `bwrap` has too: namespaces, a read-only root, private `/dev`, `/proc`, `/tmp` and home, no capabilities. It has no
/// filter of its own, no Landlock and no layers.
const WALLS: &str = "--unshare-user --unshare-pid --unshare-ipc --unshare-cgroup-try --ro-bind / / --dev /dev --proc /proc \
    --tmpfs /tmp --tmpfs /run --cap-drop ALL --die-with-parent --new-session";

/// `escrow run` and `bwrap`: their times, and the calls of one of each. Nothing where `bwrap` is not installed.
fn beside_bwrap(bench: &Bench, escrow: &Escrow, tree: &Tree) -> Vec<Row> {
    let at = tree.path.to_string_lossy().into_owned();
    let mut words: Vec<&str> = WALLS.split_whitespace().collect();
    words.extend(["--bind", &at, &at, "true"]);
    if command("bwrap", &["--version"], &[]).output().is_err() {
        let (ours, beside) = ("`escrow run -- true`", "`bwrap`: not installed");
        return vec![Row::counted(tree.title(), ours, beside, None, "", None)];
    }
    let times = in_turns(
        bench.rounds(false),
        vec![
            Arm::new("`escrow run --plan p -- true`", |_| {
                escrow.time(&["run", "--plan", "p", "--", "true"])
            }),
            Arm::new("`bwrap` with its walls, `true`", |_| {
                time(&mut command("bwrap", &words, &[]), &[0])
            }),
        ],
    );
    let ours = working(&escrow.cli.trace(["run", "--plan", "p", "--", "true"]));
    let theirs = working(&count_syscalls(&Spec::new("bwrap").args(&words)));
    vec![
        Row::times(tree.title(), &times[0], &times[1], None),
        Row::counted(
            "system calls",
            format!("`escrow run --plan p -- true`: {ours}"),
            format!("`bwrap` with its walls, `true`: {theirs}"),
            Some(ours as f64 / theirs as f64),
            "",
            None,
        ),
    ]
}

pub(crate) fn figures(bench: &Bench) -> Section {
    let tree = Tree::new(bench, LARGE);
    let escrow = bench.escrow("run");
    escrow.create("p", &tree.path, "overlay");
    let layers = ["upper", "work", "merged"].map(|name| bench.dir(&format!("bare/{name}")));
    const SCRIPT: &str = "mount -t overlay overlay -o \"userxattr,lowerdir=$1,upperdir=$2,workdir=$3\" \"$4\"; \
        exec true";
    let walk = format!("find {} -type f -size -1 -quit", tree.path.display());
    let bare = |script: &str| {
        let words = ["-Urm", "sh", "-euc", script, "mount"];
        let paths = [&*tree.path, &layers[0], &layers[1], &layers[2]];
        time(&mut command("unshare", &words, &paths), &[0])
    };
    let starts = vec![
        Arm::new("`escrow run --plan p -- true`", |_| {
            escrow.time(&["run", "--plan", "p", "--", "true"])
        }),
        Arm::new("`unshare -Urm true`", |_| {
            time(&mut command("unshare", &["-Urm", "true"], &[]), &[0])
        }),
        Arm::new("`unshare -Urm`, `mount` an overlay, `true`", |_| {
            bare(SCRIPT)
        }),
    ];
    let times = in_turns(bench.rounds(false), starts);
    let mut rows = vec![
        Row::times(tree.title(), &times[0], &times[1], None),
        Row::times(tree.title(), &times[0], &times[2], None),
    ];
    rows.extend(beside_bwrap(bench, &escrow, &tree));
    let inside = format!(
        "mount -t overlay overlay -o \"userxattr,lowerdir=$1,upperdir=$2,workdir=$3\" \"$4\"; \
        mount --bind \"$4\" \"$1\"; {walk}"
    );
    let walks = vec![
        Arm::new("`find` in `escrow run`", |_| {
            escrow.time(&["run", "--plan", "p", "--", "sh", "-c", &walk])
        }),
        Arm::new("`find` in a bare overlay", |_| bare(&inside)),
    ];
    let times = in_turns(bench.rounds(false), walks);
    rows.push(Row::times(tree.title(), &times[0], &times[1], None));
    Section {
        title: "A command inside",
        note: "`escrow run` also opens the state, takes the locks, builds `/dev`, `/proc` and the home layer, records the run \
            durably, and shows the diff at the end; the others only mount. `bwrap` has namespaces, \
            a read-only root, private `/dev`, `/proc` and `/tmp`, and no capabilities; no layers, no filter of system calls, no Landlock. `find` looks at every file of the tree.\n"
            .to_owned(),
        rows,
    }
}
