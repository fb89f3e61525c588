//! A full disk is an error like any other: named, with nothing left behind and nothing lost.

use std::io::Write;

use crate::sqlite::sql;
use crate::*;

/// Leaves about `spare` bytes free below `base`.
fn fill(base: &Path, spare: usize) {
    let mut filler = File::create(base.join("filler")).expect("it can be written");
    let block = vec![7u8; 64 * 1024];
    let mut written = 0;
    while filler.write_all(&block).is_ok() {
        written += block.len();
    }
    let length = written.saturating_sub(spare) as u64;
    filler.set_len(length).expect("a file can shrink");
    filler.sync_all().expect("it fits");
}

fn left_in(home: &Path) -> usize {
    names(home.join("sandboxes")).len()
}

// rule F1, P6
#[test]
fn a_copy_that_does_not_fit_leaves_nothing() {
    for kind in Fs::ALL {
        let fs = need!(LoopFs::new(kind, 160));
        let world = World::under(fs.path());
        let app = world.dir("app");
        // Small ones: the kernel itself shares the contents of large ones on xfs and btrfs.
        for number in 0..400 {
            let path = app.join(format!("f{number}"));
            write(path, vec![number as u8; 60_000]);
        }
        let cli = Cli::new(&world, &binary());
        cli.ok("plan create before --resource ./app --strategy overlay");
        let before = signature(&app);
        fill(world.path(), 2_000_000);
        let line = "plan create try --resource ./app --strategy filesystem_copy";
        let error = cli.fails(line, 1);
        let holds = error.contains("No space left on device");
        assert!(holds, "{kind:?}: {error}");
        assert!(error.contains("hint: free some space"), "{kind:?}: {error}");
        assert_eq!(left_in(&world.home()), 1, "{kind:?}");
        let plans = json(&cli, "plan list");
        assert_eq!(list(&plans["plans"]).len(), 1, "{kind:?}: {plans}");
        // A write that does not fit leaves the old content, and goes through once there is room.
        let large = vec![b'x'; 6_000_000];
        cli.clone().stdin(&large).fails("write before app f1", 1);
        assert_eq!(cli.ok("diff before --name-status"), "", "{kind:?}");
        remove(world.at("filler"));
        put(&cli, "before app f1", &large);
        assert_eq!(cli.ok("diff before --name-status"), "M\tf1\n", "{kind:?}");
        cli.ok("plan create try --resource ./app --strategy filesystem_copy");
        assert_eq!(cli.ok("diff try --name-status"), "", "{kind:?}");
        unchanged(&before, &app);
    }
}

/// Files need inodes, not only bytes.
#[test]
fn a_copy_without_inodes_leaves_nothing() {
    let fs = need!(LoopFs::with_mkfs_args(Fs::Ext4, 64, &["-N", "256"]));
    let world = World::under(fs.path());
    let app = world.dir("app");
    for number in 0..150 {
        write(app.join(format!("f{number}")), "x");
    }
    let cli = Cli::new(&world, &binary());
    let line = "plan create try --resource ./app --strategy filesystem_copy";
    let error = cli.fails(line, 1);
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(left_in(&world.home()), 0);
    cli.ok("plan create try --resource ./app --strategy overlay");
}

/// The kinds that differ in what a write to a full one needs; ext4 with small blocks has holes where others have none.
const KINDS: [(Fs, &[&str]); 4] = [
    (Fs::Ext4, &["-b", "1024"]),
    (Fs::Ext4, &[]),
    (Fs::Xfs, &[]),
    (Fs::Btrfs, &[]),
];

/// Two open plans, and two that were committed.
fn furnished(world: &World, home: &Path) -> Cli {
    let cli = Cli::new(world, &binary()).env("ESCROW_HOME", home);
    for name in ["a", "b", "c", "d"] {
        let dir = world.dir(name);
        for number in 0..4 {
            write(dir.join(format!("f{number}")), "old\n".repeat(700));
        }
        cli.ok(format!(
            "plan create p{name} --resource ./{name} --strategy overlay"
        ));
        let write = cli.clone().stdin("new\n".repeat(900));
        write.ok(format!("write p{name} {name} f0"));
        write.ok(format!("write p{name} {name} g"));
    }
    cli.ok("commit pa");
    cli.ok("commit pd");
    cli
}

/// Leaves `spare` bytes at the end of a file that takes everything else.
fn fill_exactly(base: &Path, spare: u64) {
    use std::os::unix::fs::FileExt;
    let filler = File::create(base.join("filler")).expect("it can be written");
    let mut length = 0u64;
    for size in [1 << 20, 64 * 1024, 4096, 1024, 4096, 1024] {
        let block = vec![7u8; size];
        while let Ok(written) = filler.write_at(&block, length) {
            length += written as u64;
            // What was promised may not be kept.
            if written < size || (size <= 4096 && filler.sync_all().is_err()) {
                break;
            }
        }
    }
    if spare > 0 {
        filler.set_len(length - spare).expect("a file can shrink");
        filler.sync_all().expect("it fits");
    }
}

/// What gives space back works at every size, and what it says is true.
fn gives_space_back(cli: &Cli, world: &World, home: &Path, how: &str) {
    let read = |path: &str| read(world.at(path));
    let lines = "status; diff pb; checkpoint create pb; rollback pb; undo pa; recover; cleanup pc --yes; \
        gc --max-size 0; cleanup pb --yes; cleanup pa --yes; log --verify";
    for line in lines.split("; ") {
        let outcome = cli.run(line);
        let said = outcome.stderr_text();
        // A checkpoint takes space, so it may be refused; nothing ends by a signal.
        let fine = match line.starts_with("checkpoint") {
            true => outcome.status == 0 || outcome.status == 1,
            false => outcome.status == 0,
        };
        assert!(fine, "{how}: {line}: {}: {said}", outcome.status);
    }
    assert_eq!(read("a/f0"), "old\n".repeat(700), "{how}");
    assert!(!world.at("a/g").exists(), "{how}");
    assert_eq!(read("d/f0"), "new\n".repeat(900), "{how}");
    assert_eq!(read("b/f0"), "old\n".repeat(700), "{how}");
    assert_eq!(left_in(home), 0, "{how}");
    let mut beside = names(world.path());
    beside.retain(|name| name.starts_with(".escrow-"));
    assert_eq!(beside, [""; 0], "{how}");
}

// rule P6, C12
#[test]
fn what_frees_space_failed_on_a_full_disk() {
    for ((kind, args), some) in KINDS.into_iter().zip([5000, 40_000, 5000, 40_000]) {
        for spare in [0, some] {
            let fs = need!(LoopFs::with_mkfs_args(kind, 24, args));
            let world = World::under(fs.path());
            let cli = furnished(&world, &world.home());
            fill_exactly(world.path(), spare);
            gives_space_back(
                &cli,
                &world,
                &world.home(),
                &format!("{kind:?} {args:?}, {spare} free"),
            );
        }
    }
}

#[test]
fn what_frees_space_failed_without_inodes() {
    let fs = need!(LoopFs::with_mkfs_args(Fs::Ext4, 24, &["-N", "400"]));
    let world = World::under(fs.path());
    let cli = furnished(&world, &world.home());
    let many = world.dir("many");
    for number in 0.. {
        if File::create(many.join(number.to_string())).is_err() {
            break;
        }
    }
    gives_space_back(&cli, &world, &world.home(), "no inode free");
}

// The ballast lies on the file system of the state: it is of no use where the areas lie.
#[test]
fn what_frees_space_failed_where_only_the_areas_lie() {
    for (kind, args) in KINDS {
        let fs = need!(LoopFs::with_mkfs_args(kind, 24, args));
        let (world, elsewhere) = (World::under(fs.path()), World::new());
        let home = elsewhere.dir("home");
        let cli = furnished(&world, &home);
        fill_exactly(world.path(), 0);
        gives_space_back(
            &cli,
            &world,
            &home,
            &format!("{kind:?} {args:?}, the state elsewhere"),
        );
    }
}

/// The same with the ballast left where it is: the test above would notice.
#[test]
fn a_ballast_that_is_kept_shows() {
    let fs = need!(LoopFs::with_mkfs_args(Fs::Ext4, 24, &["-b", "1024"]));
    let world = World::under(fs.path());
    let cli = furnished(&world, &world.home());
    fill_exactly(world.path(), 5000);
    let kept = cli.clone().env("ESCROW_SEEDED_BUG", "ballast-kept");
    let said = kept.fails("cleanup pc --yes", 1);
    assert!(said.contains("disk of the state is full"), "{said}");
    cli.ok("cleanup pc --yes");
}

#[test]
fn cleanup_needed_room_on_a_full_disk() {
    let fs = need!(LoopFs::new(Fs::Ext4, 32));
    let world = World::under(fs.path());
    write(world.dir("app").join("file"), [7; 100_000]);
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    cli.ok("plan create other --resource ./app --strategy filesystem_copy");
    put(&cli, "try app file", "x");
    let script = "cat /dev/zero > filler 2>/dev/null || :; sync -f filler";
    sh(world.path(), script);
    cli.ok("diff try");
    cli.ok("cleanup try");
    cli.ok("cleanup other");
    assert_eq!(world.areas(), [""; 0]);
    // With room again, the bytes for the next time are reserved.
    remove(world.at("filler"));
    cli.ok("status");
    assert!(world.home().join("ballast").exists());
}

/// A plan of a copy of six million bytes, all of which a rollback has to copy anew, with a million left.
fn to_copy_anew(world: &World, change: &str) -> (Cli, PathBuf) {
    let app = world.dir("app");
    let script = "for n in $(seq 100); do head -c 60000 /dev/zero > f$n; done";
    sh(&app, script);
    let cli = Cli::new(world, &binary());
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let path = copy_of(&cli, "try", "app");
    // What was touched here and changed there makes it a whole new copy.
    sh(&path, "touch f1");
    sh(&app, change);
    sh(
        world.path(),
        "head -c 100M /dev/zero > filler 2>/dev/null || :; truncate -s -1M filler; sync -f .",
    );
    let area = path.ancestors().nth(2).expect("the area").to_owned();
    (cli, area)
}

// rule P6
#[test]
fn a_rollback_that_failed_left_half_a_copy() {
    let fs = need!(LoopFs::new(Fs::Ext4, 32));
    let world = World::under(fs.path());
    let grown = "echo changed > f1; head -c 3000000 /dev/zero > large";
    let (cli, area) = to_copy_anew(&world, grown);
    let error = cli.fails("rollback try", 5);
    assert!(error.contains("No space left"), "{error}");
    // It was decided, and goes on as soon as there is room; until then nothing of it can be committed.
    cli.fails("commit try", 5);
    sh(world.path(), "rm filler");
    cli.ok("recover");
    assert_eq!(cli.ok("diff try --name-status"), "");
    assert!(!area.join("copy.new").exists());
}

// rule P6
#[test]
fn a_rollback_needed_room_for_a_second_copy() {
    let fs = need!(LoopFs::new(Fs::Ext4, 32));
    let world = World::under(fs.path());
    let (cli, area) = to_copy_anew(&world, "echo changed > f1");
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    assert!(!area.join("copy.new").exists());
}

/// What is reserved, in bytes.
fn ballast(world: &World) -> u64 {
    let at = world.home().join("ballast");
    let size = |name: &String| fs::metadata(at.join(name)).expect("it is there").len();
    names(&at).iter().map(size).sum()
}

/// A plan of a copied file and one of a database, both larger than what will be left, and changed as a whole.
fn large_ones(world: &World) -> Cli {
    write(world.dir("app").join("big"), vec![1; 600_000]);
    let of = |blob: &str| format!("hex(zeroblob(450)) || {blob}");
    let numbers = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)";
    let rows = format!(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); {numbers} INSERT INTO t SELECT i, {} FROM n",
        of("'old'")
    );
    sql(&world.path().join("shop.db"), &rows);
    let cli = Cli::new(world, &binary());
    cli.ok("plan create files --resource ./app --strategy filesystem_copy");
    cli.ok("plan create rows --resource ./shop.db");
    put(&cli, "files app big", vec![2; 600_000]);
    let update = format!("UPDATE t SET v = {}", of("'new'"));
    cli.ok(["sql", "rows", "shop.db", &update]);
    cli
}

// rule P6, C12
#[test]
fn plans_of_copies_and_databases_were_stuck_on_a_full_disk() {
    // Without room, and with just enough to stage a database, but not to write it.
    for (kind, args, spare) in [
        (Fs::Ext4, &[][..], 0),
        (Fs::Ext4, &[], 128 << 10),
        (Fs::Ext4, &[], 1_400_000),
        (Fs::Btrfs, &["-M"], 0),
    ] {
        let fs = need!(LoopFs::with_mkfs_args(kind, 24, args));
        let world = World::under(fs.path());
        let cli = large_ones(&world);
        fill_exactly(world.path(), spare);
        let how = format!("{kind:?} {args:?}, {spare} free");
        let takes = ["commit rows", "write files app big"].into_iter();
        // What btrfs keeps for itself may do for these.
        for line in takes.filter(|_| kind == Fs::Ext4) {
            // The ballast is not for what takes room.
            let outcome = cli.clone().stdin(vec![3; 3_000_000]).run(line);
            let said = outcome.stderr_text();
            assert_eq!(outcome.status, 1, "{how}: {line}: {said}");
            assert!(ballast(&world) >= 400 << 10, "{how}: {line}: {said}");
            let unfinished = json(&cli, "status")["unfinished"].clone();
            assert_eq!(unfinished, value!([]), "{how}: {line}: {said}");
        }
        for line in [
            "rollback files",
            "rollback rows",
            "recover",
            "gc",
            "log --verify",
        ] {
            let outcome = cli.run(line);
            let said = outcome.stderr_text();
            assert_eq!(outcome.status, 0, "{how}: {line}: {said}");
            assert!(ballast(&world) >= 400 << 10, "{how}: {line}: {said}");
        }
        for plan in ["files", "rows"] {
            assert_eq!(cli.ok(["diff", plan, "--name-status"]), "", "{how}");
            cli.ok(["cleanup", plan, "--yes"]);
            assert!(ballast(&world) >= 512 << 10, "{how}: {plan}");
        }
        assert_eq!(left_in(&world.home()), 0, "{how}");
    }
}

/// A `write` in the middle of its input.
fn writing(cli: &Cli) -> Child {
    let mut command = cli.command("write try app a.txt");
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut writing = command.spawn().expect("it starts");
    let stdin = writing.stdin.as_mut().expect("it is piped");
    // Longer than a pipe: some of it was read, so the operation has begun.
    stdin.write_all(&vec![b'x'; 200_000]).expect("it reads");
    writing
}

// Memory that is mapped from a file of the state cannot be written then: the kernel sends a signal.
#[test]
fn a_file_system_that_was_shut_down_was_a_bus_error() {
    let fs = need!(LoopFs::new(Fs::Xfs, 300));
    let (_world, cli) = furnish(World::under(fs.path()));
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let struck = writing(&cli);
    sh(fs.path(), &format!("kill -BUS {}", struck.id()));
    let output = struck.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    has(&said, ["error: ", "(SIGBUS)", "hint: `escrow recover`"]);
    cli.ok("recover");
    let cut_off = writing(&cli);
    sh(fs.path(), "sync -f . && xfs_io -x -c shutdown .");
    let output = cut_off.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 5)), "{output:?}");
    assert!(said.starts_with("error: "), "{said}");
}
