//! A home that was moved, or is seen at another path: every plan goes on, and every commit can be undone.

use crate::checkpoints::run;
use crate::*;

/// A world whose plans are open, forked, committed and committed in part, one each.
fn busy_world(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let cli = cli.cwd(world.at("app"));
    let plan = |name: &str| {
        cli.ok(format!(
            "plan create {name} --resource . --strategy {strategy}"
        ));
    };
    plan("released");
    run(&cli, "released", "echo released > r; rm src/main.rs");
    cli.ok("commit released");
    plan("open");
    run(&cli, "open", "echo first > f");
    cli.ok("checkpoint create open -m first");
    run(&cli, "open", "echo second > f");
    cli.ok("plan fork open forked --at first");
    run(&cli, "forked", "echo third > g");
    plan("parts");
    run(&cli, "parts", "echo part > p; echo rest > q");
    cli.ok("commit parts --only p");
    (world, cli)
}

fn read(cli: &Cli, plan: &str, path: &str) -> String {
    cli.ok(format!("read {plan} app {path}"))
}

// rule P3, R1
#[test]
fn a_moved_home_keeps_its_plans_and_its_undo_data() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = busy_world(strategy);
        let moved = world.at("another home\\home");
        fs::rename(world.home(), &moved).expect("one file system");
        let cli = cli.env("ESCROW_HOME", &moved);
        assert_eq!(read(&cli, "open", "f"), "second\n", "{strategy}");
        assert_eq!(read(&cli, "forked", "f"), "first\n", "{strategy}");
        assert_eq!(read(&cli, "forked", "g"), "third\n", "{strategy}");
        cli.ok("restore open first");
        assert_eq!(read(&cli, "open", "f"), "first\n", "{strategy}");
        run(&cli, "forked", "echo fourth > g");
        cli.ok("checkpoint create forked -m second");

        // Nothing of it is taken for leftovers of something else.
        let garbage = json(&cli, "gc --dry-run");
        assert!(!garbage.to_string().contains("unknown"), "{garbage}");

        cli.ok("undo parts");
        let listed = cli.ok("diff parts --name-status");
        assert_eq!(listed, "A\tp\nA\tq\n", "{strategy}");
        let before = signature(&world.at("app"));
        cli.ok("commit forked");
        cli.ok("undo forked");
        unchanged(&before, world.at("app"));
        cli.ok("undo released");
        let source = fs::read_to_string(world.at("app/src/main.rs"));
        assert_eq!(source.expect("it is back"), "fn main() {}\n", "{strategy}");
        for plan in ["open", "parts", "forked", "released"] {
            cli.ok(format!("cleanup {plan} --yes"));
        }
        cli.ok("gc --older-than 0s");
        let left = names(moved.join("sandboxes"));
        let kept = left.iter().filter(|name| name.starts_with("sbx_"));
        assert_eq!(kept.count(), 0, "{strategy}: {left:?}");
        let old = world.at("escrow-home");
        assert!(!old.exists(), "{strategy}: the old place is made again");
    }
}
