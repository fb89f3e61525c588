//! `commit --on-conflict merge`: text files that both sides changed, line by line, and never a marker.

use escrow_testkit::model::Rng;

use crate::*;

/// A text of some lines, and edits of it.
fn edited(rng: &mut Rng, text: &str, edits: usize) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..edits {
        let at = rng.below(lines.len() + 1);
        match rng.below(3) {
            0 => lines.insert(at, format!("new {}", rng.below(4))),
            1 if at < lines.len() => drop(lines.remove(at)),
            _ if at < lines.len() => lines[at] = format!("other {}", rng.below(4)),
            _ => {}
        }
    }
    lines.join("\n") + if rng.one_in(6) { "" } else { "\n" }
}

/// What git makes of them; `None` where it does not know.
fn merged_by_git(world: &World, texts: [&str; 3]) -> Option<String> {
    let [base, ours, theirs] = ["base", "ours", "theirs"].map(|name| world.at(name));
    for (path, text) in [&base, &ours, &theirs].into_iter().zip(texts) {
        write(path, text);
    }
    let mut git = Command::new("git");
    git.args(["merge-file", "-p"]).args([&ours, &base, &theirs]);
    let out = git.output().expect("git is installed");
    let text = String::from_utf8(out.stdout).expect("it is a text");
    (out.status.code() == Some(0)).then_some(text)
}

/// Everything that merges cleanly is what git makes of it, whichever way the sandbox was written; the others are conflicts.
// rule C15
#[test]
fn random_texts_are_merged_as_git_does_or_not_at_all() {
    const FILES: usize = 120;
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let app = world.at("app");
        let mut rng = Rng::new(17);
        let base = (0..FILES).map(|_| {
            let lines = (0..rng.below(9)).map(|_| format!("line {}\n", rng.below(6)));
            lines.collect::<String>()
        });
        let base: Vec<String> = base.collect();
        let name = |number: usize| format!("f{number}");
        for (number, text) in base.iter().enumerate() {
            write(app.join(name(number)), text);
        }
        cli.plan("try", "./app", strategy);
        let mut all = Vec::new();
        for (number, base) in base.iter().enumerate() {
            let (few, more) = (1 + rng.below(2), 1 + rng.below(2));
            let (ours, theirs) = (edited(&mut rng, base, few), edited(&mut rng, base, more));
            write(world.dir("in").join(name(number)), &ours);
            all.push((base.clone(), ours, theirs));
        }
        cli.ok("run --plan try --writable in -- cp -r in/. app");
        for (number, (_, _, theirs)) in all.iter().enumerate() {
            write(app.join(name(number)), theirs);
        }
        let told = cli.run("--json commit try --dry-run --on-conflict merge");
        let told: Value = serde_json::from_str(&told.stdout_text()).expect("one document");
        let paths = |list: &Value| -> BTreeSet<String> {
            let list = list.as_array().expect("a list").iter();
            list.map(|one| one["path"].as_str().expect("a path").to_owned())
                .collect()
        };
        let merged = paths(&told["resources"][0]["merged"]);
        let conflicts = paths(&told["conflicts"]);
        let mut clean = 0;
        for (number, (base, ours, theirs)) in all.iter().enumerate() {
            let name = name(number);
            let git = merged_by_git(&world, [base, ours, theirs]);
            if conflicts.contains(&name) {
                // Both sides have what the original has: nothing is left to choose.
                write(world.dir("settled").join(&name), theirs);
                continue;
            }
            clean += usize::from(merged.contains(&name));
            let git = git.unwrap_or_else(|| panic!("{strategy} {base:?} {ours:?} {theirs:?}"));
            write(world.dir("expected").join(&name), &git);
        }
        assert!(clean > 20 && conflicts.len() > 20, "{clean} {conflicts:?}");
        cli.ok("run --plan try --writable settled -- cp -r settled/. app");
        cli.ok("commit try --on-conflict merge");
        for name in fs::read_dir(world.at("expected")).expect("some were merged") {
            let name = name.expect("it can be read").file_name();
            let expected = read(world.at("expected").join(&name));
            assert_eq!(read(app.join(&name)), expected, "{strategy} {name:?}");
        }
        cli.ok("undo try");
        for (number, (_, _, theirs)) in all.iter().enumerate() {
            assert_eq!(read(app.join(name(number))), *theirs, "{strategy}");
        }
    }
}

/// What cannot be merged stays a conflict with the reason, nothing of the commit happens, and no marker appears anywhere.
// rule C15
#[test]
fn what_cannot_be_merged_stays_a_conflict() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let app = world.at("app");
        let files = ["same", "late", "bin", "mode", "fine"];
        for name in files {
            write(app.join(name), "1\n2\n3\n4\n5\n");
        }
        cli.plan("try", "./app", strategy);
        // The version before was gone when the sandbox changed it.
        write(app.join("late"), "one\n2\n3\n4\n5\n");
        put(&cli, "try app late", "1\n2\n3\n4\nfive\n");
        put(&cli, "try app same", "1\nours\n3\n4\n5\n");
        put(&cli, "try app bin", b"1\n2\n3\n4\n\0\n");
        put(&cli, "try app mode", "1\n2\n3\n4\nfive\n");
        put(&cli, "try app fine", "1\n2\n3\n4\nfive\n");
        write(app.join("same"), "1\ntheirs\n3\n4\n5\n");
        for name in ["bin", "mode", "fine"] {
            write(app.join(name), "one\n2\n3\n4\n5\n");
        }
        chmod(app.join("mode"), 0o755);
        chmod(app.join("fine"), 0o644);
        let before = signature(&app);
        let told = failed(&cli, "commit try --on-conflict merge", 4);
        let why = |name: &str| {
            let all = list(&told["conflicts"]).iter();
            let mut found = all.filter(|one| one["path"] == *name);
            let found = found.next().map(|one| one["what"].as_str().unwrap_or(""));
            found.unwrap_or("none").to_owned()
        };
        assert!(why("same").contains("the same lines"), "{told}");
        assert!(why("late").contains("no version"), "{strategy} {told}");
        assert!(why("bin").contains("no text"), "{told}");
        assert!(why("mode").contains("mode, owner"), "{told}");
        assert_eq!(why("fine"), "none", "{told}");
        assert_same(&before, &signature(&app), &Ignore::default());
        // A part does not merge: what stays in the sandbox would take back what the original brought.
        let told = failed(&cli, "commit try --only fine --on-conflict merge", 4);
        assert!(told.to_string().contains("without merging"), "{told}");
        // What was shown is what is released.
        chmod(app.join("mode"), 0o644);
        for name in ["same", "late", "bin", "mode"] {
            put(
                &cli,
                &format!("try app {name}"),
                fs::read(app.join(name)).expect("it is there"),
            );
        }
        let line = "commit try --on-conflict merge";
        let shown = json(&cli, &format!("{line} --dry-run"));
        write(app.join("fine"), "one\n2\nthree\n4\n5\n");
        let digest = shown["digest"].as_str().expect("a digest");
        failed(&cli, &format!("{line} --expect {digest}"), 4);
        let digest = json(&cli, &format!("{line} --dry-run"))["digest"].clone();
        let digest = digest.as_str().expect("a digest");
        cli.ok(format!("{line} --expect {digest}"));
        assert_eq!(
            read(app.join("fine")),
            "one\n2\nthree\n4\nfive\n",
            "{strategy}"
        );
        assert_eq!(mode(app.join("fine")), 0o644, "{strategy}");
    }
}

/// A fork merges what was changed before it began, and a rollback forgets what was kept.
// rule C15
#[test]
fn a_fork_has_what_its_changes_began_from() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let f = world.at("app/f");
        write(&f, "1\n2\n3\n4\n5\n");
        cli.plan("try", "./app", strategy);
        put(&cli, "try app f", "1\n2\n3\n4\nfive\n");
        cli.ok("plan fork try second");
        write(&f, "one\n2\n3\n4\n5\n");
        cli.ok("commit second --on-conflict merge");
        assert_eq!(read(&f), "one\n2\n3\n4\nfive\n", "{strategy}");
        cli.ok("rollback try");
        put(&cli, "try app f", "one\n2\n3\n4\n5\n");
        write(&f, "one\n2\n3\n4\nV\n");
        failed(&cli, "commit try --on-conflict merge", 4);
        assert_eq!(read(&f), "one\n2\n3\n4\nV\n", "{strategy}");
    }
}

/// A file that a restore, or a fork at a checkpoint, gave back is merged only from the version that it was changed from since.
// rule C15
#[test]
fn what_was_given_back_is_not_merged_from_an_earlier_version() {
    for forked in [false, true] {
        let (world, cli) = world();
        let f = world.at("app/f");
        let first = "1\n2\n3\n4\n5\n";
        write(&f, first);
        cli.plan("try", "./app", "overlay");
        cli.ok("checkpoint create try -m c0");
        put(&cli, "try app f", "1\n2\n3\n4\nfive\n");
        write(&f, "one\n2\n3\n4\n5\n");
        let (line, plan) = match forked {
            true => ("plan fork try second --at c0", "second"),
            false => ("restore try c0", "try"),
        };
        cli.ok(line);
        let text = cli.ok(format!("read {plan} app f"));
        put(&cli, &format!("{plan} app f"), text.replace('3', "three"));
        // What was changed there is taken back there: it stays so.
        write(&f, first);
        failed(&cli, &format!("commit {plan} --on-conflict merge"), 4);
        assert_eq!(read(&f), first, "{line}");
    }
}

/// What is kept of a sandbox for merges has an end.
#[test]
fn no_more_is_kept_to_merge_from_than_fits() {
    let (world, cli) = world();
    let line = format!("{}\n", "x".repeat(1022));
    for number in 0..70 {
        write(
            world.at("app").join(format!("f{number}")),
            line.repeat(1000),
        );
    }
    cli.plan("try", "./app", "overlay");
    let work = "for f in app/f*; do echo y >> $f; done";
    cli.ok(inside("run --plan try", work));
    let kept = du(&world, "bases");
    assert!(kept > 32 << 20 && kept <= (64 << 20) + 70 * 32, "{kept}");
}

/// Bytes in the files of all directories of this name in the state.
fn du(world: &World, name: &str) -> u64 {
    let mut find = Command::new("find");
    find.arg(world.path());
    find.args(["-path", &format!("*/{name}/*"), "-printf", "%s\n"]);
    let found = find.output().expect("there is a find").stdout;
    let found = String::from_utf8(found).expect("numbers");
    found
        .lines()
        .map(|size| size.parse::<u64>().expect("a number"))
        .sum()
}
