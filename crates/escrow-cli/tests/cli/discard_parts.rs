//! `rollback --only`: some paths are as in the originals again, in all sandboxes or in none, and the rest stays.

use crate::faults::sweep;
use crate::*;

/// Changes of every kind, in a plan of each strategy.
const WORK: &str = "echo 2 > a.txt; echo n > new; mkdir -p d/e; echo x > d/e/x; echo y > d/y; rm src/main.rs; \
    echo lib > src/lib.rs; rm link; rm -r old; rm -r again; mkdir again; echo 2 > again/f";

fn scene(strategy: &str) -> (World, Cli) {
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    tree::build(
        &world.at("app"),
        "old/ 0755\nold/one \"1\\n\"\nold/two \"2\\n\"\nagain/ 0755\nagain/f \"1\\n\"\nagain/g \"1\\n\"\n",
    );
    cli.plan("try", "./app", strategy);
    let cli = cli.cwd(world.at("app"));
    cli.ok(inside("-q run --plan try", WORK));
    (world, cli)
}

const ALL: &str = "M\ta.txt\nM\tagain/f\nD\tagain/g\nA\td\nA\td/e\nA\td/e/x\nA\td/y\nD\tlink\nA\tnew\n\
    D\told\nD\told/one\nD\told/two\nA\tsrc/lib.rs\nD\tsrc/main.rs\n";

fn without(lines: &[&str]) -> String {
    let stays = |line: &&str| !lines.contains(&&line[2..]);
    ALL.split_inclusive('\n')
        .filter(|line| stays(&line.trim_end()))
        .collect()
}

#[test]
fn some_paths_are_given_back_and_the_rest_stays() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = scene(strategy);
        let list = || cli.ok("diff try --name-status");
        assert_eq!(list(), ALL, "{strategy}");
        // What is under a new directory goes, and the directory stays for the rest of it.
        let said = cli.ok("rollback try --only a.txt --only d/e --only app:src/main.rs --yes");
        has(
            &said,
            ["app: discarded 4 of its changes", "escrow restore try"],
        );
        assert_eq!(
            list(),
            without(&["a.txt", "d/e", "d/e/x", "src/main.rs"]),
            "{strategy}"
        );
        let shown = cli.ok(inside(
            "-q run --plan try",
            "cat a.txt src/main.rs new d/y; test ! -e d/e",
        ));
        assert_eq!(shown, "one\ntwo\nthree\nfn main() {}\nn\ny\n");
        cli.ok("rollback try --only old --yes");
        let rest = without(&[
            "a.txt",
            "d/e",
            "d/e/x",
            "src/main.rs",
            "old",
            "old/one",
            "old/two",
        ]);
        assert_eq!(list(), rest, "{strategy}");
        // One that was made anew is given back as a whole.
        cli.ok("rollback try --only again --yes");
        let rest = rest.replace("M\tagain/f\nD\tagain/g\n", "");
        assert_eq!(list(), rest, "{strategy}");
        // Where it was is a checkpoint.
        let before = said
            .split("restore try ")
            .nth(1)
            .and_then(|rest| rest.split('`').next());
        cli.ok(format!("restore try {}", before.expect("it is named")));
        assert_eq!(list(), ALL, "{strategy}");
        has(
            &cli.fails("rollback try --only nothing --yes", 2),
            ["nothing"],
        );
        cli.ok("commit try");
        assert_eq!(read(world.at("app/again/f")), "2\n");
    }
}

/// What was given back follows the original again, and is no conflict.
#[test]
fn a_path_that_was_given_back_is_the_originals() {
    let (world, cli) = scene("overlay");
    cli.ok("rollback try --only a.txt --yes");
    write(world.at("app/a.txt"), "theirs\n");
    assert_eq!(cli.ok("read try app a.txt"), "theirs\n");
    cli.ok("commit try");
    assert_eq!(read(world.at("app/a.txt")), "theirs\n");
}

#[test]
fn what_cannot_be_given_back_alone_is_refused_and_nothing_is_done() {
    let (world, cli) = scene("overlay");
    for path in ["again/g", "old/one"] {
        let refused = cli.fails(format!("rollback try --only {path} --yes"), 1);
        has(
            &refused,
            [
                path.split_once('/').expect("two names").0,
                "name the directory",
            ],
        );
    }
    assert_eq!(cli.ok("diff try --name-status"), ALL);
    sh(
        world.path(),
        "sqlite3 db 'create table t (a integer primary key)'",
    );
    let cli = cli.cwd(world.path());
    cli.ok("resource add db --type sqlite --at db");
    cli.ok("plan create rows --resource db");
    cli.ok(["sql", "rows", "db", "insert into t values (1)"]);
    has(
        &cli.fails("rollback rows --only t --yes", 1),
        ["as a whole"],
    );
}

/// A checkout gives files back; its history stays.
#[test]
fn files_of_a_checkout_are_given_back_and_its_history_stays() {
    as_user_too();
    let (world, cli) = furnish(World::under(Path::new("/var/tmp")));
    let app = world.at("app");
    let commit = "git -c user.name=a -c user.email=a@b commit -q";
    sh(
        &app,
        &format!("git init -q . && git add -A && {commit} -m one"),
    );
    cli.plan("try", "./app", "git_worktree");
    let cli = cli.cwd(&app);
    let work = format!("echo 2 > src/main.rs; {commit} -am two; echo 3 > a.txt; echo n > n");
    cli.ok(inside("-q run --plan try", &work));
    has(&cli.fails("rollback try --only .git --yes", 1), ["history"]);
    cli.ok("rollback try --only a.txt --yes");
    let shown = cli.ok(inside(
        "-q run --plan try",
        "git status --porcelain; git log --format=%s; cat n",
    ));
    assert_eq!(shown, "?? n\ntwo\none\nn\n");
}

/// Two resources, one in layers and one copied, each with two changes.
fn both() -> (World, Cli) {
    planned_both([("f", "x\n"), ("g", "x\n")])
}

// rule R3, R4
#[test]
fn giving_back_is_killed() {
    need!(as_ordinary_user());
    sweep(
        both,
        "rollback try --only f --yes",
        &[Fault::Kill],
        |world, cli, how| {
            cli.run("recover");
            let found = cli.ok("diff try --name-status");
            let either = [
                "# one\nA\tf\nA\tg\n# two\nA\tf\nA\tg\n",
                "# one\nA\tg\n# two\nA\tg\n",
            ];
            assert!(either.contains(&&*found), "{how}: {found}");
            assert_eq!(json(cli, "status")["unfinished"], value!([]), "{how}");
            cli.ok("commit try");
            assert_eq!(
                world.at("app/f").exists(),
                world.at("data/f").exists(),
                "{how}"
            );
            cli.ok("cleanup try");
            assert_eq!(world.areas(), [""; 0], "{how}");
        },
    );
}
