//! Which plan a command takes that names none, and which one a name means: never another than the user was shown.

use crate::*;

/// What a terminal showed of a command, which was given these answers and ended with a text, and its exit status.
#[track_caller]
fn typed(cli: &Cli, line: &str, answers: &[(&str, &str)], end: &str) -> (String, Option<i32>) {
    let terminal = Terminal::new(40, 160);
    let mut child = terminal.start(cli.command(line));
    for (question, answer) in answers {
        terminal.expect(question);
        terminal.send(format!("{answer}\n"));
    }
    terminal.expect(end);
    let ended = child.wait().expect("it ends");
    (terminal.text(), ended.code())
}

#[test]
fn several_open_plans_of_a_directory_are_never_guessed() {
    as_user_too();
    let (world, cli) = world();
    let here = cli.clone().cwd(world.at("app"));
    here.ok("plan create first --resource .");
    here.ok("plan create second --resource .");
    put(&here, "first . new", "of the first\n");
    put(&here, "second . new", "of the second\n");
    for line in [
        "diff",
        "commit",
        "rollback",
        "cleanup",
        "plan show",
        "checkpoint create",
        "review",
        "diff --patch a.txt",
        "run -- touch new",
        "run --commit -- touch new",
        "commit --yes",
    ] {
        let refused = here.expect(line, 2).stderr_text();
        has(&refused, ["2 plans are open in", "second, first"]);
    }
    let refused = here.expect("run -- touch new", 2).stderr_text();
    has(&refused, ["`escrow run --plan NAME`", "`--new`"]);
    let error = failed(&here, "commit", 2);
    assert_eq!(
        error["error"]["details"]["plans"],
        value!(["second", "first"])
    );
    assert!(!world.at("app/new").exists());
    has(&here.ok("diff first --patch"), ["+of the first"]);
    // On a terminal the user chooses, and what is no answer is asked again.
    let (said, status) = typed(
        &here,
        "diff",
        &[("Which one", "third"), ("Which one", "first")],
        "digest:",
    );
    assert_eq!(status, Some(0), "{said}");
    has(&said, ["first  made", "second  made", "plan first"]);
    let (said, status) = typed(&here, "rollback", &[("Which one", "")], "error:");
    assert_eq!(status, Some(2), "{said}");
    has(&here.ok("diff second --patch"), ["+of the second"]);
    // A plan that is nearer needs no name.
    fs::create_dir(world.at("app/src/deep")).expect("it can be made");
    let deep = cli.clone().cwd(world.at("app/src/deep"));
    deep.ok("plan create deep --resource .");
    assert_eq!(json(&deep, "plan show")["name"], "deep");
    here.ok("rollback first --yes");
    here.ok("cleanup first");
    assert_eq!(json(&here, "plan show")["name"], "second");
}

#[test]
fn a_name_means_one_plan() {
    as_user_too();
    let (world, cli) = world();
    let here = cli.clone().cwd(world.at("app"));
    let names = |n: &str| format!("echo {n} > {n}");
    here.ok(inside("run --commit", &names("one")));
    let second = here.expect(inside("run --commit", &names("two")), 0);
    has(&second.stderr_text(), ["escrow undo app-2"]);
    // What was released last is another plan than the first, which its own name still undoes.
    here.ok("undo app");
    assert!(!world.at("app/one").exists() && world.at("app/two").exists());
    here.ok("commit app");
    // A new plan takes the name; the older one is told its other one, and undone by that.
    let made = here.expect("plan create app --resource .", 0);
    let told = "the plan 'app' that was committed is called 'app-3' now: `escrow undo app-3`";
    has(&made.stderr_text(), [told]);
    has(&here.fails("undo app", 4), ["no commit to undo"]);
    has(&here.fails("plan rename app app-2", 4), ["exists already"]);
    // The beginning of a name is another name.
    has(&here.fails("undo app-", 2), ["could be any of 2 plans"]);
    assert!(world.at("app/one").exists() && world.at("app/two").exists());
    here.ok("undo app-3");
    assert!(!world.at("app/one").exists() && world.at("app/two").exists());
    here.ok("undo app-2");
    assert!(!world.at("app/one").exists() && !world.at("app/two").exists());
}

#[test]
fn a_run_commits_nothing_older_unasked() {
    as_user_too();
    let (world, cli) = world();
    let here = cli.clone().cwd(world.at("app"));
    here.ok(inside("run", "echo older > older"));
    for line in ["run --commit -- touch newer", "--json run --commit -- true"] {
        let refused = here.expect(line, 2);
        let said = format!("{}{}", refused.stderr_text(), refused.stdout_text());
        has(
            &said,
            ["app holds changes from before", "--new", "escrow diff app"],
        );
    }
    assert!(!world.at("app/older").exists());
    assert_eq!(here.ok("diff app --name-status"), "A\tolder\n");
    let line = "run --commit -- touch newer";
    let (said, status) = typed(&here, line, &[("from before", "n")], "error:");
    assert_eq!(status, Some(2), "{said}");
    assert_eq!(here.ok("diff app --name-status"), "A\tolder\n");
    // A plan of its own releases what it did.
    here.ok("run --new --commit -- touch own");
    assert!(world.at("app/own").exists() && !world.at("app/older").exists());
    let (said, status) = typed(&here, line, &[("from before", "y")], "undo with");
    assert_eq!(status, Some(0), "{said}");
    assert!(world.at("app/older").exists() && world.at("app/newer").exists());
    // An empty plan holds nothing older; one that was named is meant with all it holds.
    here.ok("run -- touch again");
    here.ok("run --plan app-3 --commit -- touch last");
    assert!(world.at("app/again").exists() && world.at("app/last").exists());
    here.ok("plan create empty --resource .");
    here.ok("run --commit -- touch more");
    assert!(world.at("app/more").exists());
}
