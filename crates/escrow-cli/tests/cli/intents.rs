//! What a commit needs lies in its area, and is acted on only as it was written.

use crate::*;

/// A way to spoil a file of records, and its name.
type Spoiler = (&'static str, fn(&mut Vec<u8>));

const SPOILT: [Spoiler; 4] = [
    ("flipped", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }),
    ("cut short", |bytes| bytes.truncate(bytes.len() * 2 / 3)),
    ("longer", |bytes| bytes.push(b'e')),
    ("empty", |bytes| bytes.clear()),
];

/// The file of this name in the only commit area of the world.
fn in_the_area(world: &World, name: &str) -> PathBuf {
    let areas = paths(world.home().join("sandboxes")).into_iter();
    let mut found = areas
        .map(|area| area.join(name))
        .filter(|path| path.exists());
    let path = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "one commit has an area");
    path
}

/// Spoils a file in every way; nothing may be done with it, by any of these commands.
fn refused(cli: &Cli, original: &Path, file: &Path, lines: &[&str]) {
    let (right, before) = (fs::read(file).expect("it is ours"), signature(original));
    for (how, spoil) in SPOILT {
        let mut bytes = right.clone();
        spoil(&mut bytes);
        write(file, &bytes);
        for line in lines {
            let told = failed(cli, line, 5).to_string();
            assert!(told.contains("is damaged"), "{how}: {told}");
            unchanged(&before, original);
        }
    }
    write(file, &right);
}

fn changed_world() -> (World, Cli, PathBuf) {
    let (world, cli) = world();
    let original = world.at("app");
    write(original.join("second"), "old\n");
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app second", "new\n");
    put(&cli, "try app third", "new\n");
    (world, cli, original)
}

// rule C3
// attack G3
#[test]
fn an_altered_intent_is_never_acted_on() {
    as_user_too();
    need!(require_stepper());
    let (world, cli, original) = changed_world();
    let commit = cli.stepper("commit try").only(&["renameat2"]);
    let run = commit.fault(2, Fault::Kill);
    assert!(run.hit.is_some(), "two paths are put in place");
    let file = in_the_area(&world, "intent");
    refused(&cli, &original, &file, &["recover"]);
    let told = json(&cli, "recover");
    assert_eq!(told["recovered"][0]["side"], "new", "{told}");
    assert_eq!(read(original.join("third")), "new\n");
}

/// Given up, what a commit replaced is set aside and named: it may be all that is left of the old versions.
// rule C6
#[test]
fn what_a_commit_that_is_given_up_had_replaced_went_with_it() {
    need!(require_stepper());
    for lost in [false, true] {
        let (world, cli, original) = changed_world();
        let commit = cli.stepper("commit try").only(&["renameat2"]);
        assert!(commit.fault(2, Fault::Kill).hit.is_some());
        let before = signature(&original);
        let file = in_the_area(&world, "intent");
        match lost {
            true => remove(&file),
            false => write(&file, "other"),
        }
        for line in ["recover", "cleanup try"] {
            let told = failed(&cli, line, 5).to_string();
            assert!(told.contains("is damaged"), "{line}: {told}");
            unchanged(&before, &original);
        }
        let outcome = cli.run("cleanup try --forget");
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, 0, "{said}");
        assert!(said.contains(".kept-given-up"), "{said}");
        let kept = in_the_area(&world, "stage");
        assert!(
            holds(
                &kept, "old
"
            ),
            "lost {lost}: {said}"
        );
    }
}

// rule C3
// attack G3
#[test]
fn an_altered_intent_is_never_undone_from() {
    let (world, cli, original) = changed_world();
    let before = signature(&original);
    cli.ok("commit try");
    let file = in_the_area(&world, "finished");
    refused(&cli, &original, &file, &["undo try"]);
    cli.ok("undo try");
    unchanged(&before, &original);
}

/// What others do with a further name of a kept file is no forgery.
// rule C1
#[test]
fn a_kept_version_that_is_linked_elsewhere_can_be_restored() {
    let (world, cli) = world();
    let original = world.at("app");
    let store = world.dir("store");
    sh(
        &original,
        "mkdir -p venv/lib; echo one > venv/lib/one; echo two > venv/lib/two; ln venv/lib/one venv/lib/two ../store",
    );
    let before = sh(&original, "find venv | sort; cat venv/lib/*");
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    sh(copy_of(&cli, "try", "app"), "rm -r venv");
    cli.ok("commit try");
    // The times of these files move.
    sh(&store, "rm one; ln two three");
    cli.ok("undo try");
    assert_eq!(sh(&original, "find venv | sort; cat venv/lib/*"), before);
}

/// Old versions are what they were, or nothing is undone: contents written behind the back with size and time kept, files in a directory
/// that the commit had removed, names that were added to it.
// attack D34
#[test]
fn d34_forged_undo_data_was_restored_as_true() {
    as_user_too();
    let (world, cli) = world();
    let original = world.at("app");
    write(original.join("second"), "old\n");
    sh(&original, "mkdir -p dir/deep; echo old > dir/deep/f");
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let copy = copy_of(&cli, "try", "app");
    sh(&copy, "echo new > second; rm -r dir");
    let before = signature(&original);
    cli.ok("commit try");
    let stage = in_the_area(&world, "stage");
    let in_stage = |line: &str| {
        sh(
            &stage,
            &line.replace("$AREA", stage.to_str().expect("text")),
        )
    };
    let second = in_stage("grep -l old $(find . -maxdepth 1 -type f)");
    let second = second.trim();
    let committed = signature(&original);
    for (forge, mend) in [
        // The time is set back, and the size is the same.
        (
            format!("touch -r {second} t; echo bad > {second}; touch -r t {second}; rm t"),
            "",
        ),
        (format!("chmod u+s {second}"), ""),
        ("f=$(echo */deep/f); echo evil > $f".to_owned(), ""),
        (
            "d=$(dirname $(dirname */deep/f)); echo x > $d/deep/added".to_owned(),
            "rm */deep/added",
        ),
    ] {
        in_stage(&forge);
        let told = failed(&cli, "undo try", 4).to_string();
        let kept = stage.to_str().expect("text");
        has(
            &told,
            [
                "its old version was changed since the commit",
                kept,
                "`fuser`",
            ],
        );
        unchanged(&committed, &original);
        if !mend.is_empty() {
            in_stage(mend);
        }
    }
    assert_ne!(before, committed);
}

/// What the store says is no reason to remove a directory that is no area, or another sandbox's.
// attack D35
#[test]
fn d35_gc_removed_any_path_that_was_put_into_the_state() {
    as_user_too();
    let (world, cli) = world();
    let victim = world.dir("victim");
    write(victim.join("precious"), "kept\n");
    let before = signature(&victim);
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    put(&cli, "try app second", "new\n");
    cli.ok("commit try");
    cli.ok("plan create open --resource ./app --strategy filesystem_copy");
    let at = victim.display();
    for table in ["sandbox", "journal_member"] {
        sh(
            world.home(),
            &format!("sqlite3 state.db \"update {table} set area = cast('{at}' as blob)\""),
        );
    }
    for line in [
        "undo try",
        "gc --older-than 0s",
        "cleanup try",
        "cleanup open",
        "recover",
        "gc --older-than 0s",
    ] {
        let outcome = cli.run(line);
        unchanged(&before, &victim);
        if line.starts_with("cleanup open") || line.starts_with("undo") {
            assert_ne!(outcome.status, 0, "{line}: {}", outcome.stderr_text());
        }
    }
}

#[test]
fn the_state_is_small_again_after_gc() {
    let (world, cli) = world();
    let original = world.dir("many");
    for number in 0..2000 {
        write(original.join(format!("file-{number}")), "old\n");
    }
    let state = || {
        fs::metadata(world.home().join("state.db"))
            .expect("it is there")
            .len()
    };
    cli.ok("plan create try --resource ./many --strategy filesystem_copy");
    let before = state();
    let copy = copy_of(&cli, "try", "many");
    for number in 0..2000 {
        write(copy.join(format!("file-{number}")), "new\n");
    }
    cli.ok("commit try");
    let grown = state().saturating_sub(before);
    assert!(grown < 64 << 10, "the journal grew by {grown} bytes");
    cli.ok("undo try");
    cli.ok("gc --older-than 0s");
    let grown = state().saturating_sub(before);
    assert!(grown < 64 << 10, "the state stays {grown} bytes larger");
}
