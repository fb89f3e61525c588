//! A plan with a member that is not isolated: what others keep, discard and return to goes on without it.

use crate::*;

/// A directory in a sandbox and one that is written in place, both written.
fn mixed() -> (World, Cli) {
    let (world, cli) = world();
    write(world.dir("open").join("f"), "old\n");
    cli.ok("resource add app --type fs-directory --at ./app");
    cli.ok("resource add open --type fs-directory --at ./open --strategy none");
    cli.ok("plan create try --resource app --resource open");
    for name in ["app", "open"] {
        put(&cli, &format!("try {name} f"), "first\n");
    }
    (world, cli)
}

// rule C10, C17
#[test]
fn a_rollback_does_not_stop_at_a_member_without_isolation() {
    as_user_too();
    let (world, cli) = mixed();
    let done = json(&cli, "rollback try");
    let told = done["resources"].to_string();
    has(&told, ["irreversible: nothing was isolated", "open"]);
    assert_eq!(cli.run("read try app f").status, 1);
    assert_eq!(read(world.at("open/f")), "first\n");
    // The changes of the other one come back, and it is committed with them.
    cli.ok("undo try");
    assert_eq!(cli.ok("read try app f"), "first\n");
    cli.ok("rollback try --only app:f --yes");
    assert_eq!(cli.run("read try app f").status, 1);
    cli.ok("cleanup try --yes");
    // A plan of such members alone refuses.
    cli.ok("plan create alone --resource open");
    let said = cli.fails("rollback alone", 1);
    has(&said, ["what was written is already in the original"]);
}

// rule R4, C10
#[test]
fn beside_a_member_without_isolation_the_others_return_where_they_are_named() {
    as_user_too();
    let (world, cli) = mixed();
    let made = cli.expect("checkpoint create try -m first", 0);
    has(
        &made.stderr_text(),
        ["'open' is not in the checkpoint: nothing is isolated"],
    );
    for name in ["app", "open"] {
        put(&cli, &format!("try {name} f"), "second\n");
    }
    let said = cli.fails("restore try first", 1);
    has(
        &said,
        [
            "the sandbox of 'open' cannot return to a checkpoint",
            " --resource app`",
        ],
    );
    assert_eq!(cli.ok("read try app f"), "second\n");
    let hint = said.split('`').nth(1).expect("a command");
    cli.ok(hint.strip_prefix("escrow ").expect("of escrow"));
    assert_eq!(cli.ok("read try app f"), "first\n");
    assert_eq!(read(world.at("open/f")), "second\n");
    has(
        &cli.fails("restore try first --resource other", 1),
        ["other", "app, open"],
    );
    has(&cli.ok("checkpoint show try first"), ["app: as it is now"]);
    let forked = cli.expect("plan fork try other", 0);
    has(&forked.stderr_text(), ["'open' is not in the fork"]);
    cli.ok("commit other --yes");
    assert_eq!(read(world.at("app/f")), "first\n");
}
