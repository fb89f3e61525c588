//! A commit whose sandbox cannot be removed: nothing of it stays shared with the original, and undo survives whatever
//! becomes of the rest.

use std::fs::OpenOptions;
use std::io::Write;

use crate::*;

const EIO: i32 = 5;
const NOSPC: i32 = 28;
const EROFS: i32 = 30;

const REMOVES: &[&str] = &["unlinkat", "unlink", "rmdir"];

/// A plan with changed, added, linked and removed files, and a new directory, in a sandbox of this kind.
fn scene(strategy: &str) -> (World, Cli, Sig) {
    let world = World::new();
    let app = world.dir("app");
    for name in ["f", "gone", "same"] {
        write(app.join(name), format!("{name}: old\n"));
    }
    fs::create_dir(app.join("kept")).expect("there is room");
    write(app.join("kept/f"), "old\n");
    let touch = "touch -h -d '1999-01-02 03:04:05.678' f gone same kept/f kept .";
    sh(&app, touch);
    let before = signature(&app);
    let cli = Cli::new(&world, &binary());
    cli.plan("try", "./app", strategy);
    let edits = "echo new >> f; rm gone; echo g > g; ln g g2; ln -s nowhere l; \
                 mkdir -p d/e; echo x > d/e/x; ln d/e/x d/y; echo new > kept/f; \
                 touch -h -d '2001-02-03 04:05:06.789' f g l d/e/x d/e d kept/f kept .";
    cli.clone().cwd(&app).ok(inside("-q run --plan try", edits));
    (world, cli, before)
}

/// Every file in what is left of the sandboxes, not of what is kept for undo.
fn left_in(world: &World) -> Vec<PathBuf> {
    let mut found = below(world.home().join("sandboxes"));
    found.retain(|path| !path.to_string_lossy().contains(".undo") && !is_dir(path));
    found
}

fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

fn inodes(root: &Path) -> Vec<u64> {
    let mut found = below(root);
    found.retain(|path| !is_dir(path));
    let inode = |path: &PathBuf| path.symlink_metadata().expect("it is there").ino();
    found.iter().map(inode).collect()
}

/// Nothing is shared; what is written into the rest of the sandbox stays there; after gc the commit is undone exactly.
#[track_caller]
fn stands_apart(world: &World, cli: &Cli, before: &Sig, new: &Sig, how: &str) {
    let app = world.at("app");
    let assert_is = |wanted: &Sig, when: &str| {
        let found = differences(wanted, &signature(&app), &Ignore::default());
        assert!(found.is_empty(), "{how}: {when}: {found:#?}");
    };
    assert_is(new, "committed");
    let ours = inodes(&app);
    for path in left_in(world) {
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let holds = !ours.contains(&meta.ino());
        assert!(holds, "{how}: shares {}", path.display());
        // What the kernel notes for itself is nobody's.
        let own = !path.to_string_lossy().contains("/incompat/volatile");
        if meta.is_file() && own {
            let opened = OpenOptions::new().append(true).open(&path);
            let mut file = opened.expect("its own user may write it");
            file.write_all(b"stray\n").expect("there is room");
        }
    }
    assert_is(new, "after stray writes");
    cli.ok("gc");
    assert_is(new, "after gc");
    assert_eq!(left_in(world), Vec::<PathBuf>::new(), "{how}");
    cli.ok("undo try");
    assert_is(before, "undone");
    cli.ok("cleanup try");
}

/// A commit, of whose calls those count that remove something in the sandbox.
fn removing(cli: &Cli) -> Stepper {
    cli.stepper("commit try").about(|step| {
        let path = step.path.as_ref().map(|path| path.to_string_lossy());
        let in_sandbox = path.is_some_and(|path| {
            path.contains("/escrow-home/sandboxes/") && !path.contains(".undo")
        });
        REMOVES.contains(&step.name) && in_sandbox
    })
}

/// How many such calls there are, and the new state.
fn removals(strategy: &str) -> (u64, Sig) {
    let (world, cli, _) = scene(strategy);
    let counted = removing(&cli).run();
    assert_eq!(
        counted.outcome.status,
        0,
        "{}",
        counted.outcome.stderr_text()
    );
    assert!(counted.calls > 5, "{}", counted.calls);
    (counted.calls, signature(&world.at("app")))
}

// rule C7, C1
#[test]
fn a_sandbox_that_cannot_be_removed_shares_nothing() {
    as_user_too();
    need!(require_stepper());
    for strategy in ["filesystem_copy", "overlay"] {
        let (last, new) = removals(strategy);
        let faults = [
            (1, Fault::Forever(EIO)),
            (1, Fault::Once(EROFS)),
            (2, Fault::Once(EIO)),
            (last / 2, Fault::Forever(EROFS)),
            (last, Fault::Once(EIO)),
        ];
        for (n, fault) in faults {
            let (world, cli, before) = scene(strategy);
            let run = removing(&cli).only(REMOVES).fault(n, fault);
            let how = format!("{strategy}: {fault:?} at {n}, {:?}", run.hit);
            assert_eq!(
                run.outcome.status,
                0,
                "{how}: {}",
                run.outcome.stderr_text()
            );
            assert!(
                !left_in(&world).is_empty() || n != 1,
                "{how}: nothing is left"
            );
            stands_apart(&world, &cli, &before, &new, &how);
        }
    }
}

/// So many files that several threads look at them: those that stay are copied, and all are taken back.
// rule C7, C1
#[test]
fn many_files_of_a_sandbox_that_cannot_be_removed_are_not_shared() {
    let world = World::new();
    let app = world.dir("app");
    let make = "mkdir -p d/e a; touch d/e/x; for n in $(seq 400); do echo old > d/e/$n; echo old > a/$n; done";
    sh(&app, make);
    let before = signature(&app);
    let cli = Cli::new(&world, &binary());
    cli.plan("try", "./app", "overlay");
    let edits = "for n in $(seq 399); do echo new > d/e/$n; echo new > a/$n; done; echo x > d/e/x; \
                 ln d/e/1 d/e/one; ln a/1 a/one; rm a/400 d/e/400";
    cli.clone().cwd(&app).ok(inside("-q run --plan try", edits));
    let held = need!(Stuck::new(&world));
    cli.ok("commit try");
    drop(held);
    assert!(left_in(&world).len() > 390);
    let new = signature(&app);
    for name in ["a/1", "a/one", "a/77", "d/e/one", "d/e/399"] {
        assert_eq!(read(app.join(name)), "new\n", "{name}");
    }
    let marks = "getfattr -R -d -m - . 2>/dev/null | grep -c overlay || :";
    assert_eq!(sh(&app, marks).trim(), "0");
    stands_apart(&world, &cli, &before, &new, "many");
}

/// The removal fails, and so does what comes after it: the commit is not over, says so, and is gone on with.
// rule C3, C17
#[test]
fn a_commit_that_cannot_let_go_of_its_sandbox_is_not_over() {
    need!(require_stepper());
    for strategy in ["filesystem_copy", "overlay"] {
        let (_, new) = removals(strategy);
        for (n, errno) in [(1, NOSPC), (1, EIO), (4, EROFS)] {
            let (world, cli, before) = scene(strategy);
            let run = removing(&cli).fault(n, Fault::Forever(errno));
            let how = format!("{strategy}: {errno} for ever at removal {n}");
            let said = run.outcome.stderr_text();
            assert_eq!(run.outcome.status, 5, "{how}: {said}");
            assert!(said.contains("hold the new state"), "{how}: {said}");
            assert_eq!(
                json(&cli, "recover")["recovered"][0]["side"],
                "new",
                "{how}"
            );
            stands_apart(&world, &cli, &before, &new, &how);
        }
    }
}

/// The removal fails and the process is killed at any call after it.
// rule C3
#[test]
fn a_commit_that_lets_go_of_its_sandbox_is_killed() {
    need!(require_stepper());
    let (template, cli, _) = scene("overlay");
    let held = need!(Stuck::new(&template));
    let counted = cli.stepper("commit try").run();
    assert_eq!(
        counted.outcome.status,
        0,
        "{}",
        counted.outcome.stderr_text()
    );
    let (new, calls) = (signature(&template.path().join("app")), counted.calls);
    drop(held);
    for n in (calls / 2..=calls).step_by(3) {
        let (world, cli, before) = scene("overlay");
        let held = Stuck::new(&world);
        let run = cli.stepper("commit try").fault(n, Fault::Kill);
        let how = format!("killed at {n} of {calls}, {:?}", run.hit);
        cli.run("recover");
        drop(held);
        if json(&cli, "plan show try")["state"] == "open" {
            cli.ok("commit try");
        }
        stands_apart(&world, &cli, &before, &new, &how);
    }
}

/// A directory of the sandbox is immutable: nothing in it can be removed meanwhile, whatever fails or not.
struct Stuck(PathBuf);

impl Stuck {
    fn new(world: &World) -> Option<Self> {
        if !require_root("makes a directory immutable") {
            return None;
        }
        let files = left_in(world);
        let file = files.iter().find(|path| path.ends_with("d/e/x"));
        let stuck = Self(
            file.and_then(|file| file.parent())
                .expect("it is there")
                .to_owned(),
        );
        assert!(stuck.set("+i"), "no immutable directories here");
        Some(stuck)
    }

    fn set(&self, flag: &str) -> bool {
        let set = Command::new("chattr").arg(flag).arg(&self.0).status();
        set.is_ok_and(|status| status.success())
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        assert!(self.set("-i") || thread::panicking());
    }
}
