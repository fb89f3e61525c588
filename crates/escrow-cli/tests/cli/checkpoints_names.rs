//! Files of several names in copies: what was one file at a checkpoint is one file again, whichever of its names
//! were moved, removed or left alone since.

use escrow_testkit::states::{SIGNATURE, same};

use crate::checkpoints::{create, run};
use crate::*;

const COPIES: [&str; 2] = ["filesystem_copy", "copy_on_write"];

/// Which names are one file.
const GROUPS: &str = r#"find . -type f -links +1 -printf '%i %p\n' | sort |
    awk '{names[$1] = names[$1] " " $2} END {for (one in names) print names[one]}' | sort"#;

/// `d/x`, `e/hard` and `z/third` are one file of the original; `f/own` is one of its own.
fn linked(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let app = world.at("app");
    for name in ["d", "e", "f", "z"] {
        fs::create_dir(app.join(name)).expect("it is new");
    }
    write(app.join("d/x"), "one file\n");
    write(app.join("f/own"), "own\n");
    for other in ["e/hard", "z/third"] {
        fs::hard_link(app.join("d/x"), app.join(other)).expect("one file system");
    }
    let cli = cli.cwd(&app);
    cli.plan("try", ".", strategy);
    (world, cli)
}

/// What is done before the checkpoint, and after it.
const WAYS: [(&str, &str); 13] = [
    // Moved with its directory, which moves no time of its own; then that is gone, moved, exchanged.
    ("mv d d2", "rm -r d2"),
    ("mv d d2", "mv d2 d3"),
    ("mv d d2", "mv d2 d"),
    ("mv d d2", "rm e/hard"),
    ("mv d d2", "rm d2/x; echo other > d2/x"),
    ("mv d d2", "mv e e2; mv z z2"),
    ("mv d d2; mv e e2; mv z z2", "rm -r d2 e2 z2"),
    // Nothing was done yet.
    ("true", "mv d d2"),
    ("true", "mv e d/e; rm z/third"),
    ("true", "rm -r d; mkdir d; ln e/hard d/y"),
    // Names that the sandbox gave.
    ("ln f/own f/second; mkdir g; ln f/own g/third", "mv g g2"),
    ("ln f/own f/second; ln d/x f/fourth", "rm f/own f/fourth"),
    ("echo more >> d/x; mv d d2", "mv d2 d3; rm e/hard"),
];

// rule R1, F3
#[test]
fn what_was_one_file_is_one_file_again() {
    as_user_too();
    // Each way with one of them: what they do with names is the same. Some as an ordinary user too.
    let step = if is_root() { 1 } else { 3 };
    for ((before, after), strategy) in WAYS.iter().step_by(step).zip(COPIES.iter().cycle()) {
        let how = format!("{strategy}: {before}; then {after}");
        let (_world, cli) = linked(strategy);
        let after_this =
            |plan: &str, script: &str| run(&cli, plan, &format!("{script}\n{GROUPS}\n{SIGNATURE}"));
        let look = |plan: &str| after_this(plan, "true");
        let then = after_this("try", before);
        let listed = cli.ok("diff try --name-status");
        create(&cli, "here");
        let later = after_this("try", after);
        create(&cli, "later");
        for (to, state) in [("here", &then), ("later", &later), ("here", &then)] {
            cli.ok(format!("restore try {to}"));
            same(state, &look("try"), &format!("{how}: {to}"));
        }
        assert_eq!(cli.ok("diff try --name-status"), listed, "{how}");
        cli.ok("restore try later");
        cli.ok("plan fork try other --at here");
        same(&then, &look("other"), &format!("{how}: the fork"));
        assert_eq!(cli.ok("diff other --name-status"), listed, "{how}");
    }
}
