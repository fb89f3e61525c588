//! Sandboxes of directories as snapshots of btrfs: as root and as an ordinary user, who owns the subvolume.

use crate::cost::{assert_same_cost, original, working};
use crate::faults::{EIO, sweep};
use crate::*;

/// Who works, and what the mount lets ordinary users do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    /// May take snapshots of the own subvolume, and delete none.
    User,
    /// May delete them too.
    Deleter,
}

const EVERYONE: [Who; 3] = [Who::Root, Who::User, Who::Deleter];

/// A world in a subvolume of one's own, on a btrfs.
struct Scene {
    cli: Cli,
    world: World,
    // Last: unmounted after the world is gone.
    fs: LoopFs,
}

impl Scene {
    fn new(who: Who) -> Option<Self> {
        let fs = LoopFs::new(Fs::Btrfs, 192)?;
        sh(fs.path(), "btrfs -q subvolume create own; chmod 755 own");
        if who != Who::Root {
            sh(fs.path(), &format!("chown {UID}:{GID} own"));
        }
        if who == Who::Deleter {
            sh(fs.path(), "mount -o remount,user_subvol_rm_allowed .");
        }
        let world = World::under(&fs.path().join("own"));
        let cli = Cli::new(&world, &binary());
        let cli = match who {
            Who::Root => cli,
            _ => {
                world.chown_to_user();
                cli.user()
            }
        };
        Some(Self { cli, world, fs })
    }

    /// With a small directory `app`.
    fn furnished(who: Who) -> Option<Self> {
        let scene = Self::new(who)?;
        let app = scene.world.dir("app");
        tree::build(
            &app,
            "a.txt 0640 \"one\\ntwo\\n\"\nsrc/ 0750\nsrc/main.rs \"fn main() {}\\n\"\nlink -> a.txt\n\
             pair-a \"pair\\n\"\npair-b = pair-a\nclosed/ 0000\n",
        );
        if who != Who::Root {
            scene.world.chown_to_user();
        }
        Some(scene)
    }

    /// Every subvolume there is, but for the one that is worked in.
    fn subvolumes(&self) -> Vec<String> {
        let listed = sh(
            self.fs.path(),
            "list=$(btrfs subvolume list .); printf %s \"$list\" | sed /ballast/d",
        );
        let path = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
        let all = listed.lines().map(path);
        all.filter(|path| path != "own").collect()
    }

    /// Works in the sandbox of `app` as who works there would.
    fn work(&self, who: Who, script: &str) {
        let path = copy_of(&self.cli, "try", "app");
        assert!(path.ends_with("app"), "{}", path.display());
        match who {
            Who::Root => sh(&path, script),
            _ => sh(
                &path,
                &format!("setpriv --reuid={UID} --regid={GID} --clear-groups sh -euc '{script}'"),
            ),
        };
    }
}

// rule P1, P6, T1
#[test]
fn snapshots_keep_their_contract_and_leave_no_subvolume() {
    for who in EVERYONE {
        let scene = need!(Scene::new(who));
        let report = json(&scene.cli, "strategy check snapshot");
        assert_eq!(report["conforms"], true, "{who:?}: {report}");
        assert!(list(&report["checks"]).len() >= 29, "{report}");
        assert_eq!(scene.subvolumes(), [""; 0], "{who:?}");
    }
}

// rule R1, R5, C1, C14, P6
#[test]
fn a_snapshot_lives_and_goes() {
    for who in EVERYONE {
        let scene = need!(Scene::furnished(who));
        let (cli, app) = (&scene.cli, scene.world.at("app"));
        let before = signature(&app);
        let made = json(cli, "plan create try --resource ./app --strategy snapshot");
        let message = made["sandboxes"][0]["message"].as_str().expect("a text");
        assert!(message.starts_with("a snapshot of the subvolume"), "{made}");
        let diff = |options: &str| cli.ok(format!("diff try --name-status {options}"));
        assert_eq!(diff(""), "", "{who:?}");
        scene.work(who, "echo three >> a.txt; rm -r src; mkdir -p new/dir; echo x > new/dir/x; ln pair-a pair-c");
        put(cli, "try app put/it", "put\n");
        let first = "M\ta.txt\nA\tnew\nA\tnew/dir\nA\tnew/dir/x\nA\tpair-c\nA\tput\nA\tput/it\nD\tsrc\nD\tsrc/main.rs\n";
        assert_eq!(diff(""), first, "{who:?}");
        cli.ok("checkpoint create try -m A");
        scene.work(
            who,
            "echo four > a.txt; rm -r new put; chmod 600 pair-b; touch -d @1 link",
        );
        let second = "M\ta.txt\nD\tnew\nD\tnew/dir\nD\tnew/dir/x\nP\tpair-a\nP\tpair-b\nP\tpair-c\nD\tput\nD\tput/it\n";
        assert_eq!(diff("--since A"), second, "{who:?}");
        cli.ok("checkpoint create try -m B");
        cli.ok("restore try A");
        assert_eq!(diff(""), first, "{who:?}");
        cli.ok("restore try B");
        assert_eq!(diff("--since A"), second, "{who:?}");
        cli.ok("restore try A");
        // A fork has a life of its own.
        cli.ok("plan fork try other --at B");
        assert_eq!(cli.ok("read other app a.txt"), "four\n");
        put(cli, "other app a.txt", "of the fork\n");
        assert_eq!(cli.ok("read try app a.txt"), "one\ntwo\nthree\n");
        cli.ok("cleanup other --yes");
        assert_same(&before, &signature(&app), &Ignore::default());
        cli.ok("commit try");
        assert_eq!(read(app.join("a.txt")), "one\ntwo\nthree\n", "{who:?}");
        assert_eq!(read(app.join("new/dir/x")), "x\n");
        assert!(!app.join("src").exists());
        let inode = |name: &str| {
            app.join(name)
                .symlink_metadata()
                .expect("it is there")
                .ino()
        };
        assert_eq!(inode("pair-a"), inode("pair-c"), "{who:?}");
        cli.ok("undo try");
        assert_same(&before, &signature(&app), &Ignore::default());
        // What is discarded is gone, and the next one begins as the original is.
        cli.ok("cleanup try --yes");
        cli.plan("try", "./app", "snapshot");
        scene.work(who, "rm a.txt");
        cli.ok("rollback try");
        assert_eq!(diff(""), "", "{who:?}");
        assert_eq!(cli.ok("read try app a.txt"), "one\ntwo\n");
        // Subvolumes that were made in it, and closed, go too.
        let make = "btrfs -q subvolume create shut; chmod 0 shut; btrfs -q subvolume create frozen; \
            touch frozen/x; chmod 555 frozen; btrfs property set frozen ro true";
        scene.work(who, make);
        cli.ok("cleanup try --yes");
        cli.ok("gc");
        assert_eq!(scene.world.areas(), [""; 0], "{who:?}");
        assert_eq!(scene.subvolumes(), [""; 0], "{who:?}");
    }
}

/// What another process changes meanwhile is a conflict, and a rollback takes it over.
// rule C15, F6
#[test]
fn an_original_that_moves_on_is_noticed_by_its_snapshot() {
    let scene = need!(Scene::furnished(Who::Root));
    let (cli, app) = (&scene.cli, scene.world.at("app"));
    cli.plan("try", "./app", "snapshot");
    put(cli, "try app a.txt", "mine\n");
    write(app.join("src/other.rs"), "theirs\n");
    cli.ok("commit try --dry-run");
    let strict = failed(cli, "commit try --base strict", 4);
    assert!(strict.to_string().contains("src/other.rs"), "{strict}");
    sh(
        &app,
        "touch -r a.txt keep; echo theirs > a.txt; touch -r keep a.txt; rm keep",
    );
    let refused = failed(cli, "commit try", 4);
    assert!(
        refused.to_string().contains("changed there and here"),
        "{refused}"
    );
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    assert_eq!(cli.ok("read try app a.txt"), "theirs\n");
    put(cli, "try app a.txt", "mine\n");
    cli.ok("commit try");
    assert_eq!(read(app.join("a.txt")), "mine\n");
    assert_eq!(read(app.join("src/other.rs")), "theirs\n");
}

/// A part is released, and the rest stays, also after a return to a checkpoint.
#[test]
fn a_part_of_a_snapshot_is_released() {
    let scene = need!(Scene::furnished(Who::Root));
    let (cli, app) = (&scene.cli, scene.world.at("app"));
    cli.plan("try", "./app", "snapshot");
    put(cli, "try app a.txt", "mine\n");
    put(cli, "try app b.txt", "rest\n");
    cli.ok("commit try --exclude b.txt");
    cli.ok("checkpoint create try -m A");
    assert_eq!(read(app.join("a.txt")), "mine\n");
    assert_eq!(cli.ok("diff try --name-status"), "A\tb.txt\n");
    put(cli, "try app b.txt", "more\n");
    cli.ok("restore try A");
    assert_eq!(cli.ok("diff try --name-status"), "A\tb.txt\n");
    cli.ok("commit try");
    assert_eq!(read(app.join("b.txt")), "rest\n");
    assert_eq!(scene.subvolumes(), [""; 0]);
}

fn probe<'a>(doctor: &'a Value, strategy: &str) -> &'a Value {
    let mut all = list(&doctor["strategies"]).iter();
    let found = all.find(|one| one["name"] == strategy);
    found.unwrap_or_else(|| panic!("no {strategy}: {doctor}"))
}

// rule S8
#[test]
fn auto_takes_a_snapshot_where_it_works_and_doctor_says_why() {
    // Where a user may not delete subvolumes, a layer is better.
    for (who, auto) in [
        (Who::Root, "snapshot"),
        (Who::User, "overlay"),
        (Who::Deleter, "snapshot"),
    ] {
        let scene = need!(Scene::furnished(who));
        let doctor = json(&scene.cli, "doctor app");
        assert_eq!(doctor["auto"], auto, "{who:?}: {doctor}");
        assert_eq!(
            probe(&doctor, "snapshot")["works"],
            true,
            "{who:?}: {doctor}"
        );
        let plan = json(&scene.cli, "plan create try --resource ./app");
        assert_eq!(plan["sandboxes"][0]["strategy"], auto, "{who:?}: {plan}");
        let said = plan.to_string();
        assert_eq!(
            said.contains("user_subvol_rm_allowed"),
            who == Who::User,
            "{plan}"
        );
        scene.cli.ok("cleanup try --yes");
        // In a subvolume of another user there is none to be had.
        if who == Who::User {
            sh(scene.fs.path(), "chown 0:0 own");
            let doctor = json(&scene.cli, "doctor app");
            let probe = probe(&doctor, "snapshot");
            assert_eq!(probe["works"], false, "{doctor}");
            assert!(
                probe["reason"]
                    .to_string()
                    .contains("belongs to another user"),
                "{doctor}"
            );
            let refused = failed(
                &scene.cli,
                "plan create no --resource ./app --strategy snapshot",
                1,
            );
            assert!(
                refused.to_string().contains("belongs to another user"),
                "{refused}"
            );
        }
    }
    let (_world, cli) = world();
    let refused = cli.run("strategy check snapshot").stderr_text();
    assert!(refused.contains("btrfs"), "{refused}");
    let elsewhere = json(&cli, "doctor app");
    let probe = probe(&elsewhere, "snapshot");
    assert_eq!(probe["works"], false, "{elsewhere}");
    assert!(probe["reason"].to_string().contains("btrfs"), "{elsewhere}");
}

/// Of a subvolume that lies in the original nothing is in its snapshot, which is said, and nothing happens to it.
#[test]
fn a_nested_subvolume_is_named_and_left_alone() {
    let scene = need!(Scene::furnished(Who::Root));
    let (cli, app) = (&scene.cli, scene.world.at("app"));
    sh(
        &app,
        "btrfs -q subvolume create src/nested; echo kept > src/nested/f",
    );
    // One that lies elsewhere in the same subvolume is none of this directory's business.
    sh(scene.world.path(), "btrfs -q subvolume create elsewhere");
    let automatic = json(cli, "plan create layered --resource ./app");
    assert_eq!(
        automatic["sandboxes"][0]["strategy"], "overlay",
        "{automatic}"
    );
    assert!(
        automatic
            .to_string()
            .contains("'src/nested' is a subvolume"),
        "{automatic}"
    );
    cli.ok("cleanup layered --yes");
    let made = json(cli, "plan create try --resource ./app --strategy snapshot");
    assert!(
        made.to_string().contains("'src/nested' is a subvolume"),
        "{made}"
    );
    assert!(!made.to_string().contains("elsewhere"), "{made}");
    let path = copy_of(cli, "try", "app");
    assert_eq!(names(path.join("src/nested")), [""; 0]);
    put(cli, "try app src/main.rs", "new\n");
    assert_eq!(cli.ok("diff try --name-status"), "M\tsrc/main.rs\n");
    cli.ok("checkpoint create try -m A");
    cli.ok("restore try A");
    fs::remove_dir(path.join("src/nested")).expect("it is empty");
    assert_eq!(
        cli.ok("diff try --name-status"),
        "M\tsrc/main.rs\nD\tsrc/nested\n"
    );
    let refused = failed(cli, "commit try", 4);
    assert!(refused.to_string().contains("src/nested"), "{refused}");
    cli.ok("restore try A");
    cli.ok("commit try");
    assert_eq!(read(app.join("src/main.rs")), "new\n");
    assert_eq!(read(app.join("src/nested/f")), "kept\n");
    // One that is made inside is committed as a directory, and no checkpoint claims to keep it.
    cli.plan("more", "./app", "snapshot");
    let path = copy_of(cli, "more", "app");
    sh(&path, "btrfs -q subvolume create sub; echo inner > sub/f");
    let refused = failed(cli, "checkpoint create more", 1);
    assert!(
        refused.to_string().contains("'sub' was made a subvolume"),
        "{refused}"
    );
    assert_eq!(cli.ok("diff more --name-status"), "A\tsub\nA\tsub/f\n");
    cli.ok("commit more");
    assert_eq!(read(app.join("sub/f")), "inner\n");
    let left = scene.subvolumes();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// The original is a subvolume itself, and the state lies on another file system: the area is beside it.
// rule S3
#[test]
fn an_original_that_is_a_subvolume() {
    let fs = need!(LoopFs::new(Fs::Btrfs, 192));
    let there = World::under(fs.path());
    sh(
        there.path(),
        "btrfs -q subvolume create app; echo old > app/f; mkdir app/dir",
    );
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    let before = signature(&there.at("app"));
    let plan = json(&cli, "plan create try --resource ./app");
    assert_eq!(plan["sandboxes"][0]["strategy"], "snapshot", "{plan}");
    put(&cli, "try app f", "new\n");
    put(&cli, "try app dir/g", "g\n");
    cli.ok("checkpoint create try -m A");
    put(&cli, "try app f", "newer\n");
    cli.ok("restore try A");
    assert_same(&before, &signature(&there.at("app")), &Ignore::default());
    cli.ok("commit try");
    assert_eq!(read(there.at("app/f")), "new\n");
    // What the first left for undo in the original is no part of the next.
    cli.plan("next", "./app", "snapshot");
    put(&cli, "next app h", "h\n");
    assert_eq!(cli.ok("diff next --name-status"), "A\th\n");
    cli.ok("rollback next");
    cli.ok("cleanup next --yes");
    cli.ok("undo try");
    assert_same(&before, &signature(&there.at("app")), &Ignore::default());
    cli.ok("cleanup try --yes");
    assert_eq!(names(there.path()), ["app"]);
    let left = sh(
        fs.path(),
        "list=$(btrfs subvolume list .); printf %s \"$list\" | sed /ballast/d",
    );
    assert_eq!(left.lines().count(), 1, "{left}");
}

/// A user who may not delete subvolumes gets no snapshot that could never be removed.
#[test]
fn a_snapshot_that_could_not_be_removed_is_not_taken() {
    let scene = need!(Scene::furnished(Who::User));
    let (cli, own) = (&scene.cli, scene.fs.path().join("own"));
    sh(&own, "mkdir roots; echo x > roots/file");
    let line = "plan create try --resource ./app --strategy snapshot";
    let refused = failed(cli, line, 1);
    assert!(refused.to_string().contains("'roots/file'"), "{refused}");
    assert_eq!(scene.subvolumes(), [""; 0]);
    // An empty directory of another user can be removed.
    sh(&own, "rm roots/file");
    cli.ok(line);
    cli.ok("cleanup try --yes");
    assert_eq!(scene.subvolumes(), [""; 0]);
}

/// Made, discarded and removed, each killed and met by errors at some of its calls.
// rule C4, C5, P6
#[test]
fn a_snapshot_is_interrupted() {
    let fs = need!(LoopFs::new(Fs::Btrfs, 256));
    sh(
        fs.path(),
        &format!("btrfs -q subvolume create own; chown {UID}:{GID} own"),
    );
    let bare = |user: bool| {
        let world = World::under(&fs.path().join("own"));
        tree::build(
            &world.dir("app"),
            "a.txt \"old\\n\"\ndir/\ndir/b \"b\\n\"\n",
        );
        world.chown_to_user();
        let cli = Cli::new(&world, &binary());
        match user {
            true => (world, cli.user()),
            false => (world, cli),
        }
    };
    let made = |user: bool| {
        let (world, cli) = bare(user);
        cli.plan("try", "./app", "snapshot");
        put(&cli, "try app a.txt", "new\n");
        (world, cli)
    };
    let goes_on = |world: &World, cli: &Cli, how: &str| {
        cli.run("recover");
        let status = json(cli, "status");
        assert_eq!(status["unfinished"], value!([]), "{how}");
        for plan in list(&status["plans"]) {
            let name = plan["name"].as_str().expect("a name");
            let text = cli.ok(format!("read {name} app a.txt"));
            assert!(["old\n", "new\n"].contains(&&*text), "{how}: {text}");
            cli.ok(format!("cleanup {name} --yes"));
        }
        assert_eq!(read(world.at("app/a.txt")), "old\n", "{how}");
        cli.ok("gc");
        assert_eq!(world.areas(), [""; 0], "{how}");
        let name = world.path().file_name().unwrap_or_default();
        let left = sh(
            fs.path(),
            "list=$(btrfs subvolume list .); printf %s \"$list\" | sed /ballast/d",
        );
        assert!(!left.contains(&*name.to_string_lossy()), "{how}: {left}");
    };
    let faults = [Fault::Kill, Fault::Once(EIO)];
    let create = "plan create try --resource ./app --strategy snapshot";
    sweep(|| bare(false), create, &faults, goes_on);
    sweep(|| made(false), "rollback try", &faults, goes_on);
    sweep(|| made(true), "cleanup try --yes", &faults, goes_on);
}

/// Calls of making a sandbox, a checkpoint and a return to it, with so many files in the original.
fn costs(files: usize) -> Option<[usize; 3]> {
    let scene = Scene::new(Who::Root)?;
    let cli = &scene.cli;
    original(&scene.world, "original", files);
    cli.ok("plan create p");
    let lines = [
        "sandbox create p original --strategy snapshot",
        "checkpoint create p -m A",
        "restore p A",
    ];
    let costs = lines.map(|line| working(&cli.trace(line)));
    // A diff opens no file that was not touched.
    put(cli, "p original new", "new\n");
    let diff = cli.trace("diff p --name-status");
    let opened = diff.file_opens_below(scene.world.path());
    let of_a_tree = |line: &&String| {
        ["base", "work"].map(|tree| line.contains(&format!("/{tree}/"))) != [false; 2]
    };
    let opened: Vec<_> = opened.iter().filter(of_a_tree).collect();
    assert!(
        opened.iter().all(|line| line.contains("/new")),
        "{opened:?}"
    );
    Some(costs)
}

#[test]
fn a_snapshot_of_fifty_times_the_files_costs_the_same() {
    let (Some(small), Some(large)) = (costs(100), costs(5_000)) else {
        return;
    };
    for (what, (small, large)) in ["create", "checkpoint", "restore"]
        .into_iter()
        .zip(small.into_iter().zip(large))
    {
        assert_same_cost(what, small, large);
    }
}
