//! What Escrow keeps can be removed, by itself and by who owns it.

use crate::*;

/// Plans of every kind of state: open, committed, rolled back, and one with an area beside its original.
fn used() -> (World, Cli) {
    let (world, cli) = planned_app("overlay");
    put(&cli, "try app a.txt", "new\n");
    cli.ok("plan create copy --resource ./app --strategy filesystem_copy");
    put(&cli, "copy app b", "new\n");
    cli.ok("checkpoint create copy");
    cli.ok("commit copy");
    (world, cli)
}

#[test]
fn nothing_is_left_after_an_uninstall() {
    as_user_too();
    let (world, cli) = used();
    let before = signature(&world.at("app"));
    let said = cli.ok("uninstall");
    has(&said, ["escrow uninstall --purge", "never committed"]);
    let refused = cli.fails("uninstall --purge", 2);
    has(&refused, ["hint: `escrow uninstall`", "--purge --yes"]);
    assert!(world.home().join("state.db").exists());
    write(world.home().join("notes"), "mine");
    let purged = cli.run("uninstall --purge --yes");
    assert_eq!(purged.status, 0, "{}", purged.stderr_text());
    has(
        &crate::sqlite::talk(&purged),
        ["notes' stays", "the program is yours"],
    );
    assert_eq!(names(world.home()), ["notes"]);
    remove(world.home().join("notes"));
    unchanged(&before, world.at("app"));
    // Begun anew, and over again.
    cli.ok("plan create next --resource ./app");
    let document = json(&cli, "uninstall --purge --yes");
    assert_eq!(document["purged"], true);
    assert_eq!(document["plans"], 1);
    assert!(!world.path().join("escrow-home").exists());
}
