//! Every strategy keeps its contract on every file system where it behaves differently, as root
//! and as an ordinary user.

use crate::*;

const STRATEGIES: [&str; 5] = [
    "copy_on_write",
    "filesystem_copy",
    "overlay",
    "git_worktree",
    "none",
];

/// Asks strategies for their contract with originals and areas below `base`.
fn keep_their_contract(base: &Path, strategies: &[&str]) {
    let ask = |world: &World, cli: &Cli, who: &str| {
        let cli = cli.clone().env("ESCROW_HOME", world.home());
        for strategy in strategies {
            let report = json(&cli, &format!("strategy check {strategy}"));
            let checks = list(&report["checks"]);
            let names = checks.iter().filter_map(|check| check["name"].as_str());
            let (files, directories): (Vec<&str>, Vec<&str>) =
                names.partition(|name| name.starts_with("one file: "));
            assert!(directories.len() >= 29, "{who}: {report}");
            let files_too = !["overlay", "git_worktree"].contains(strategy);
            assert_eq!(!files.is_empty(), files_too, "{who}: {report}");
            for names in [directories, files]
                .iter()
                .filter(|names| !names.is_empty())
            {
                let parts = names.iter().filter(|name| name.contains("a part ")).count();
                assert!(parts >= 5, "{who}: {report}");
            }
            assert_eq!(
                report["conforms"],
                true,
                "{who} in {}: {report}",
                base.display()
            );
        }
        assert_eq!(world.areas(), [""; 0], "{who}: cases stay behind");
    };
    let world = World::under(base);
    let cli = Cli::new(&world, &binary());
    ask(&world, &cli, "the first user");
    if is_root() {
        let world = World::under(base);
        let cli = Cli::new(&world, &binary()).user();
        ask(&world, &cli, "the ordinary user");
    }
}

fn on(kind: Fs) {
    let fs = need!(LoopFs::new(kind, 64));
    keep_their_contract(fs.path(), &STRATEGIES);
}

/// Where no layer can be had, a private history is kept over a copy.
#[test]
fn a_history_over_a_copy_keeps_the_contract() {
    need!(require_root("a mount"));
    let world = World::new();
    let base = world.dir("ram");
    let ram = Mounted::new(["-t", "ramfs", "ramfs"], &base);
    fs::set_permissions(&base, PermissionsExt::from_mode(0o777)).expect("it is ours");
    keep_their_contract(&base, &["git_worktree"]);
    drop(ram);
}

/// Who is not root can make no file system, and asks on the one that is there.
// rule P1, P6, S8, T1
#[test]
fn strategies_keep_their_contract_on_ext4() {
    match is_root() {
        true => on(Fs::Ext4),
        false => keep_their_contract(&std::env::temp_dir(), &STRATEGIES),
    }
}

#[test]
fn strategies_keep_their_contract_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn strategies_keep_their_contract_on_btrfs() {
    on(Fs::Btrfs);
}

/// What `auto` takes, and what `copy_on_write` says of itself, on each file system.
#[test]
fn probes_tell_file_systems_apart() {
    for (kind, shares) in [(Fs::Ext4, false), (Fs::Xfs, true), (Fs::Btrfs, true)] {
        let fs = need!(LoopFs::new(kind, 64));
        let world = World::under(fs.path());
        let app = world.dir("app");
        write(app.join("file"), [7; 9000]);
        let cli = Cli::new(&world, &binary());
        let doctor = json(&cli, "doctor app");
        let cow = doctor["strategies"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["name"] == "copy_on_write"));
        assert_eq!(
            cow.map(|cow| cow["works"].clone()),
            Some(shares.into()),
            "{kind:?}: {doctor}"
        );
        let line = "plan create try --resource ./app --strategy copy_on_write";
        let plan = json(&cli, line);
        let message = plan["sandboxes"][0]["message"]
            .as_str()
            .expect("a text")
            .to_owned();
        let expected = match shares {
            true => "1 file shares its contents with the original",
            false => "this file system cannot share contents: 1 file was copied in full",
        };
        assert_eq!(message, expected, "{kind:?}");
    }
}

/// With the state on another file system the area lies beside the original, and goes with it.
// rule S3, P6
#[test]
fn an_area_lies_on_the_file_system_of_its_original() {
    let fs = need!(LoopFs::new(Fs::Ext4, 64));
    let there = World::under(fs.path());
    let app = there.dir("app");
    write(app.join("file"), "x");
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    let plain = STRATEGIES.into_iter().filter(|one| *one != "git_worktree");
    for strategy in plain {
        let line = format!("plan create try --resource ./app --strategy {strategy}");
        json(&cli, &line);
        let hidden = |name: &&String| name.starts_with(".escrow-sbx_");
        assert_eq!(names(there.path()).iter().filter(hidden).count(), 1);
        json(&cli, "cleanup try");
        assert_eq!(names(there.path()), ["app"], "{strategy}");
    }
    // The root of a file system has nothing beside it: the area is with the state.
    let root = json(&cli, &format!("doctor {}", fs.path().display()));
    assert!(
        root["area_reason"]
            .as_str()
            .is_some_and(|why| why.contains("root of a file system")),
        "{root}"
    );
}
