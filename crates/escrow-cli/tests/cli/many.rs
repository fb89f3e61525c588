//! A home with many plans answers as one with few does: what a command does not show costs it nothing, counted in
//! files opened, never timed.

use escrow_testkit::strace::Counts;

use crate::*;

/// So many plans, each with a sandbox of a directory of its own, a change and a checkpoint.
fn home(plans: usize, strategy: &str) -> (World, Cli) {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    for plan in 0..plans {
        world.dir(format!("dir{plan}"));
        cli.ok(format!(
            "plan create p{plan} --resource ./dir{plan} --strategy {strategy}"
        ));
        put(&cli, &format!("p{plan} dir{plan} file"), "text\n");
        cli.ok(format!("checkpoint create p{plan}"));
    }
    (world, cli)
}

/// How often something was opened, directories among it.
fn opens(counts: &Counts) -> usize {
    let holds = counts.output.status.success();
    assert!(holds, "{}", String::from_utf8_lossy(&counts.output.stderr));
    ["open", "openat", "openat2"]
        .iter()
        .map(|name| counts.count(name))
        .sum()
}

fn compare(strategy: &str, lines: &[&str]) {
    let ((_few_world, few), (_many_world, many)) = (home(4, strategy), home(32, strategy));
    for line in lines {
        let (small, large) = (few.trace(line), many.trace(line));
        let shown = String::from_utf8_lossy(&large.output.stdout);
        assert!(!shown.is_empty(), "{line} tells something");
        let (small, large) = (opens(&small), opens(&large));
        assert_eq!(small, large, "{strategy}: files opened by {line}");
    }
}

#[test]
fn what_is_listed_is_not_opened() {
    let lines = [
        "plan list",
        "--json plan list",
        "status",
        "--json status",
        "log",
        "--json log",
        "log p3",
        "checkpoint list p3",
        "diff --name-status p3",
    ];
    compare("overlay", &lines);
}

#[test]
fn copies_that_are_listed_are_not_opened() {
    compare("filesystem_copy", &["plan list", "status", "log"]);
}

// Entries of other plans are not read to find those of one, however long the log is.
#[test]
fn the_log_of_a_plan_does_not_read_that_of_the_others() {
    let read = |others: usize| {
        let (_world, cli) = home(2, "overlay");
        for _ in 0..others {
            cli.ok(format!("checkpoint create p1 -m {}", "x".repeat(400)));
        }
        let counts = cli.trace("log p0");
        opens(&counts);
        let text = String::from_utf8_lossy(&counts.output.stdout).into_owned();
        (counts.count("pread64"), text.lines().count())
    };
    let ((few, lines), (many, same)) = (read(1), read(80));
    assert_eq!(lines, same, "the same is told");
    assert!(many <= few + 4, "{few} pages read, then {many}");
}
