//! What it costs to start a command inside, beside the kernel's own mechanisms alone.

use super::LARGE;
use crate::bench::{Bench, command, time};
use crate::measure::{Arm, in_turns};
use crate::report::{Row, Section};
use crate::tree::Tree;

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
            durably, and shows the diff at the end; the others only mount. `find` looks at every file of the tree.\n"
            .to_owned(),
        rows,
    }
}
