//! The zoo stands everywhere, and a world takes all of it away again.

use std::time::SystemTime;

use escrow_testkit::signature::Kind;
use escrow_testkit::world::remove_tree;
use escrow_testkit::zoo::{NAMES, zoo};

use crate::*;

// rule T3
#[test]
fn a_world_removes_what_is_deep_and_locked() {
    rerun_as_user(&[]);
    let world = World::odd();
    zoo(&world.dir("zoo"));
    // 3,000 levels, nested from the namespace out: more than handles, far more than PATH_MAX.
    let part = vec!["deep"; 300].join("/");
    let nest = format!("rm -rf c; mkdir -p c/{part}; mv top c/{part}/; mv c top");
    sh(
        world.path(),
        &format!("mkdir top; mkdir -m 0 top/in; for i in 1 2 3 4 5 6 7 8 9 10; do {nest}; done"),
    );
    sh(
        world.path(),
        "mkdir -p locked/deep; chmod 000 locked/deep locked",
    );
    if is_root() {
        let sig = signature(world.path());
        assert_eq!(
            sig.keys().map(Vec::len).max(),
            Some("top/".len() * 11 + 3000 * "deep/".len() + 2)
        );
    }
    let path = world.path().to_owned();
    drop(world);
    assert!(!path.exists() && !path.parent().expect("an odd world has a top").exists());
}

fn check_zoo(dir: &Path) -> Sig {
    let facts = zoo(dir);
    let sig = signature(dir);
    for path in &facts.skipped_by_rule {
        let kind = sig[path.as_os_str().as_encoded_bytes()].kind;
        assert!(
            matches!(kind, Kind::Socket | Kind::CharDevice | Kind::BlockDevice),
            "{}",
            path.display()
        );
    }
    assert_eq!(facts.skipped_by_rule.len(), if is_root() { 3 } else { 1 });
    assert!(facts.acls, "no ACLs in {}", dir.display());
    let mut times = BTreeMap::new();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    for (path, entry) in &sig {
        let name = entry.link_group.as_ref().unwrap_or(path);
        let twin = times.insert(entry.mtime, name.clone());
        assert!(
            twin.is_none_or(|twin| twin == *name),
            "two entries share a time: {}",
            path.escape_ascii()
        );
        let old = u64::try_from(entry.mtime.0).is_ok_and(|time| now.abs_diff(time) > 86_400)
            || entry.mtime.0 < 0;
        assert!(old, "the time of {} is new", path.escape_ascii());
    }
    assert_eq!(sig[&b"time-1960"[..]].mtime, (-315_619_200, 123_456_789));
    assert_eq!(sig[&b"time-2100"[..]].mtime, (4_102_444_800, 987_654_321));
    assert_eq!(
        sig[&b"sizes/sparse-64m"[..]].data.last(),
        Some(&(64 << 20, (64 << 20) + 6))
    );
    assert_eq!(sig[&b"sizes/hole-in-the-middle"[..]].data.len(), 2);
    assert_eq!(sig[&b"sizes/all-hole"[..]].data, []);
    assert_eq!(
        sig[&b"links/other/relative-hard-linked"[..]]
            .link_group
            .as_deref(),
        Some(&b"links/other/relative-hard-linked"[..])
    );
    assert_eq!(
        sig[&b"attributes/dir"[..]].xattrs[&b"user.escrow.big"[..]].len(),
        3000
    );
    assert!(
        sig[&b"attributes/acl-dir"[..]]
            .xattrs
            .contains_key(&b"system.posix_acl_default"[..])
    );
    assert!(
        sig.keys()
            .any(|path| path.len() > 6000 && path.ends_with(b"/bottom"))
    );
    assert_eq!(
        sig.keys()
            .filter(|path| path.starts_with(b"names/"))
            .count(),
        NAMES.len() + 1
    );
    assert_same(&sig, &signature(dir), &Ignore::default());
    sig
}

// rule T4
#[test]
fn the_zoo_stands_for_root_and_user() {
    rerun_as_user(&[]);
    let world = World::odd();
    check_zoo(&world.dir("zoo"));
}

#[test]
fn the_zoo_stands_on_each_file_system() {
    for kind in Fs::ALL {
        let fs = need!(LoopFs::new(kind, 64));
        let world = World::under(fs.path());
        assert_ne!(
            world.path().metadata().expect("a world").dev(),
            Path::new("/").metadata().expect("a root").dev()
        );
        check_zoo(&world.dir("zoo"));
        let mount = fs.path().to_owned();
        drop((world, fs));
        assert!(!mount.exists(), "{kind:?} left {}", mount.display());
        let mounts = read("/proc/thread-self/mountinfo");
        assert!(
            !mounts.contains(mount.to_str().expect("plain")),
            "{kind:?} is still mounted"
        );
    }
}

#[test]
fn removing_follows_no_link() {
    let world = World::new();
    tree::build(world.path(), "keep/me \"x\"\nbad/");
    symlink(world.at("keep"), world.at("bad/link"));
    remove_tree(&world.at("bad"));
    assert_eq!(tree::render(world.path()), "keep/\nkeep/me \"x\"\n");
    assert_eq!(mode(world.path()), 0o755);
}
