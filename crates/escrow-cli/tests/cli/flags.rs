//! Flags of files and directories (`chattr`): a changed file keeps those of its old version, and what is immutable or
//! append-only is refused before anything happens.

use crate::*;

fn chattr(flags: &str, path: &Path) {
    let set = Command::new("chattr").arg(flags).arg(path).status();
    assert!(set.is_ok_and(|status| status.success()), "{flags} {path:?}");
}

fn flags(sig: &Sig, path: &str) -> u32 {
    sig[path.as_bytes()].flags
}

const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;
const SYNC: u32 = 0x08;
const NOCOW: u32 = 0x0080_0000;

/// An original with flags, in a world of its own on this file system.
fn furnish(root: &Path, kind: Fs) {
    fs::create_dir_all(root.join("d")).expect("there is room");
    if kind == Fs::Btrfs {
        fs::create_dir(root.join("raw")).expect("there is room");
        chattr("+C", &root.join("raw"));
        write(root.join("raw/f"), "old\n");
    }
    for name in ["in-place", "by-rename", "untouched", "mode", "d/f"] {
        write(root.join(name), "old\n");
    }
    chattr("+dA", &root.join("in-place"));
    chattr("+dAS", &root.join("by-rename"));
    chattr("+A", &root.join("mode"));
    chattr("+d", &root.join("d"));
    chattr("+A", &root.join("d/f"));
}

const EDITS: &str = "echo new > in-place; echo new > t; mv t by-rename; chmod 600 mode; echo new > d/f; \
                     echo new > d/new; mkdir d/sub; echo new > d/sub/new; \
                     if test -d raw; then echo new > t; mv t raw/f; echo new > raw/new; fi";

/// What the commit is to leave: what there was keeps its flags, what is new has those of its directory.
fn check(sig: &Sig, kind: Fs, how: &str) {
    let all = |path| flags(sig, path) & (NODUMP | NOATIME | SYNC);
    assert_eq!(all("in-place"), NODUMP | NOATIME, "{how}");
    assert_eq!(all("by-rename"), NODUMP | NOATIME | SYNC, "{how}");
    assert_eq!((all("mode"), all("untouched")), (NOATIME, 0), "{how}");
    assert_eq!((all("d"), all("d/f")), (NODUMP, NOATIME), "{how}");
    if kind == Fs::Ext4 {
        assert_eq!(all("d/new"), NODUMP, "{how}");
        assert_eq!((all("d/sub"), all("d/sub/new")), (NODUMP, NODUMP), "{how}");
    }
    if kind == Fs::Btrfs {
        assert_eq!(flags(sig, "raw/f") & NOCOW, NOCOW, "{how}");
        assert_eq!(flags(sig, "raw/new") & NOCOW, NOCOW, "{how}");
    }
}

fn goes_through(kind: Fs, mounted: &LoopFs, user: bool, keeps: bool) {
    for strategy in ["overlay", "filesystem_copy", "copy_on_write"] {
        let how = format!("{kind:?}, {strategy}, user: {user}, kept apart: {keeps}");
        let world = World::under(mounted.path());
        let root = world.dir("app");
        furnish(&root, kind);
        let mut cli = Cli::new(&world, &binary());
        if user {
            let given = Command::new("chown")
                .args(["-R", &format!("{UID}:{GID}")])
                .arg(world.path())
                .status();
            assert!(given.is_ok_and(|status| status.success()));
            cli = cli.user();
        }
        if keeps {
            let config = "sandbox:\n  cleanup: manual\n";
            write(world.at("escrow.yaml"), config);
        }
        let before = signature(&root);
        cli.plan("try", "./app", strategy);
        cli.clone()
            .cwd(&root)
            .ok(inside("-q run --plan try", EDITS));
        cli.ok("commit try");
        check(&signature(&root), kind, &how);
        cli.ok("undo try");
        let found = differences(&before, &signature(&root), &Ignore::default());
        assert!(found.is_empty(), "{how}: {found:#?}");
        cli.ok("cleanup try");
    }
}

// rule F1
#[test]
fn a_changed_file_keeps_its_flags() {
    for kind in Fs::ALL {
        let mounted = need!(LoopFs::new(kind, 64));
        goes_through(kind, &mounted, false, false);
        goes_through(kind, &mounted, true, false);
        goes_through(kind, &mounted, false, true);
    }
}

// rule C2, F1
#[test]
fn what_is_immutable_or_append_only_is_refused_before_anything_happens() {
    need!(require_root("makes files immutable"));
    let mounted = need!(LoopFs::new(Fs::Ext4, 64));
    for (flag, fixed, edit) in [
        ("i", "f", "echo new > f"),
        ("a", "f", "rm -f f; echo new > f"),
        ("i", "d", "echo new > d/g"),
        ("i", "d/g", "rm -r d"),
        ("a", "d", "echo new > d/h"),
    ] {
        let world = World::under(mounted.path());
        let root = world.dir("app");
        fs::create_dir(root.join("d")).expect("there is room");
        for name in ["a", "f", "d/g"] {
            write(root.join(name), "old\n");
        }
        chattr(&format!("+{flag}"), &root.join(fixed));
        let before = signature(&root);
        let cli = Cli::new(&world, &binary());
        cli.ok("plan create try --resource ./app --strategy filesystem_copy");
        // A copy can be worked in.
        cli.clone().cwd(&root).ok(inside(
            "-q run --plan try",
            &format!("echo new > a; {edit}"),
        ));
        let said = cli.fails("commit try", 3);
        assert!(said.contains("immutable or append-only"), "{edit}: {said}");
        assert!(said.contains("chattr -i -a"), "{edit}: {said}");
        let found = differences(&before, &signature(&root), &Ignore::default());
        assert!(found.is_empty(), "{edit}: {found:#?}");
        chattr(&format!("-{flag}"), &root.join(fixed));
        cli.ok("commit try --on-conflict sandbox");
        assert_eq!(read(root.join("a")), "new\n");
    }
}
