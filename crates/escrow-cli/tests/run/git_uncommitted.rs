//! Both sides edit a file of a checkout, and at least one of them did not commit: what a merge makes of it, and what it says
//! where it cannot merge.

use crate::git::{assert_sound, git, repository};
use crate::*;

const LINES: &str = "seq 1 9 > src/a; git commit -qm lines src/a";
const MERGED: &str = "agent\n2\n3\n4\n5\n6\n7\n8\nuser\n";
const AGENT: &str = "sed -i 1s/.*/agent/ src/a";
const USER: &str = "sed -i 9s/.*/user/ src/a";

// rule C15
#[test]
fn uncommitted_edits_of_a_checkout_are_merged_as_in_any_directory() {
    as_user_too();
    let committed = |edit: &str| format!("{edit}; git commit -qm work src/a");
    for (agent, user, status) in [
        (AGENT.to_owned(), USER.to_owned(), " M src/a"),
        (committed(AGENT), USER.to_owned(), " M src/a"),
        (AGENT.to_owned(), committed(USER), " M src/a"),
        (committed(AGENT), committed(USER), ""),
    ] {
        let (_world, cli, app) = repository();
        sh(&app, LINES);
        cli.ok("plan create t -r app");
        cli.ok(in_plan("t", &agent));
        sh(&app, &user);
        let before = git(&app, "status --short");
        let head = git(&app, "rev-parse HEAD");
        cli.ok("commit t --yes --on-conflict merge");
        assert_eq!(read(app.join("src/a")), MERGED, "{agent} {user}");
        let now = git(&app, "status --short -- src");
        assert_eq!(now.trim_end(), status, "{agent} {user}");
        assert_sound(&app);
        cli.ok("undo t --yes");
        assert_eq!(read(app.join("src/a")), "1\n2\n3\n4\n5\n6\n7\n8\nuser\n");
        assert_eq!(git(&app, "rev-parse HEAD"), head);
        assert_eq!(git(&app, "status --short"), before);
    }
}

/// The user edits the file before a version of it could be kept. That git has one proves nothing: the file may have had
/// another text when the sandbox was made.
// rule C15
#[test]
fn an_edit_during_the_first_run_is_not_merged_from_a_guess() {
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    cli.ok("plan create t -r app");
    let script = format!("{AGENT}; echo ready; read line; exit 0");
    let running = Running::ready(cli.command(in_plan("t", &script)));
    sh(&app, USER);
    assert_eq!(running.finish().status, 0);
    let failed = cli.run("commit t --yes --on-conflict merge");
    assert_eq!(failed.status, 4);
    let said = failed.stderr_text() + &failed.stdout_text();
    has(
        &said,
        ["app:src/a", "no version from before both changes was kept"],
    );
    lacks(&said, ["`merge`"]);
}

/// A clean tree of a commit has the version that both began from, whenever the user edits.
// rule C15
#[test]
fn a_clean_tree_is_merged_with_what_is_not_committed() {
    let world = crate::git::world();
    let (cli, app) = crate::git_base::based(&world, "HEAD");
    sh(&app, LINES);
    cli.ok("plan create t -r app");
    let script = format!("cd app; {AGENT}; echo ready; read line; exit 0");
    let running = Running::ready(cli.command(in_plan("t", &script)));
    sh(&app, USER);
    assert_eq!(running.finish().status, 0);
    cli.ok("commit t --yes --on-conflict merge");
    assert_eq!(read(app.join("src/a")), MERGED);
}

/// Each path says why it is not merged, and nobody is told to try the same again.
// rule C15
#[test]
fn what_is_not_merged_in_a_checkout_says_why() {
    as_user_too();
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    sh(
        &app,
        "cp src/a same; cp src/a gone; cp src/a both; git add same gone both; git commit -qm more same gone both",
    );
    cli.ok("plan create t -r app");
    let agent = "for f in same src/a; do sed -i 1s/.*/agent/ $f; done; echo agent >> gone
        sed -i 5s/.*/agent/ both; git commit -qm agent both; echo agent > new; git add new";
    cli.ok(in_plan("t", agent));
    sh(
        &app,
        "sed -i 1s/.*/user/ same; rm gone; sed -i 9s/.*/user/ src/a; sed -i 5s/.*/user/ both; git commit -qm user both; echo user > new",
    );
    let failed = cli.run("commit t --yes --on-conflict merge");
    assert_eq!(failed.status, 4);
    let said = failed.stderr_text() + &failed.stdout_text();
    let why = |path: &str| {
        let name = format!("app:{path} ");
        let line = said.lines().find(|line| line.contains(&name));
        line.unwrap_or_else(|| panic!("{path} is not in: {said}"))
            .to_owned()
    };
    has(&why("same"), ["both changed the same lines"]);
    has(
        &why("gone"),
        [
            "deleted there",
            "only a file that was changed on both sides can be merged",
        ],
    );
    has(
        &why("new"),
        ["no version from before both changes was kept"],
    );
    has(
        &why("both"),
        ["both sides committed changes to the same lines"],
    );
    lacks(&said, ["app:src/a", "`merge`"]);
    // Without it nothing is said of merging a path, and the hint names it.
    let failed = cli.run("commit t --yes");
    assert_eq!(failed.status, 4);
    let said = failed.stderr_text() + &failed.stdout_text();
    has(&said, ["app:src/a", "`merge`"]);
    lacks(&said, ["only a file"]);
}
