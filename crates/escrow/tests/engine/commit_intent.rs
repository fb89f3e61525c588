//! What a commit needs, as earlier versions kept it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use escrow::internals::store::Store;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use serde_json::{Value, json};

use crate::commit_support::assert_tree;
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed};

fn stamp(sec: i64, nsec: i64) -> Value {
    json!({"sec": sec, "nsec": nsec})
}

fn born(time: SystemTime) -> Value {
    let since = time.duration_since(UNIX_EPOCH).expect("made after 1970");
    json!({"sec": since.as_secs(), "nsec": since.subsec_nanos()})
}

/// An entry as a journal of an earlier version describes it.
fn seen(path: &Path) -> Value {
    let meta = path.symlink_metadata().expect("it is there");
    let kind = if meta.is_dir() { "directory" } else { "file" };
    json!({
        "kind": kind,
        "ino": meta.ino(),
        "born": born(meta.created().expect("the file system tells it")),
        "size": meta.len(),
        "mtime": stamp(meta.mtime(), meta.mtime_nsec()),
        "ctime": stamp(meta.ctime(), meta.ctime_nsec()),
        "mode": meta.mode() & 0o7777,
        "owner": [meta.uid(), meta.gid()],
    })
}

fn looks(path: &Path) -> Value {
    let meta = path.symlink_metadata().expect("it is there");
    json!({
        "mode": meta.mode() & 0o7777,
        "owner": [meta.uid(), meta.gid()],
        "mtime": stamp(meta.mtime(), meta.mtime_nsec()),
        "xattrs": null,
    })
}

// rule C3, P3
#[test]
fn a_commit_that_an_earlier_version_made_is_undone() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(
            &world,
            "app",
            "b/one \"one\"\nfile \"file\"\ngone \"gone\"\n",
        );
        let (before, root) = (signature(&original), looks(&original));
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native("printf ours > file; rm gone; mkdir -p n/deep; printf x > n/deep/x");
        sandbox.committed();

        let store = Store::open(&world.home().join("state.db")).expect("it is there");
        let journal = store.journal_of(sandbox.plan.id).expect("it can be read");
        let journal = journal.expect("a commit was made");
        let text = journal.members[0].intent.as_deref().expect("it has one");
        let reference: Value = serde_json::from_str(text).expect("it is JSON");
        assert!(text.len() < 2000, "the journal holds a reference: {text}");
        let area = journal.members[0].area.as_path();
        for file in ["intent", "finished"] {
            std::fs::remove_file(area.join(file)).expect("this version has it there");
        }
        let (slot, at) = (
            |number: &str| seen(&area.join("stage").join(number)),
            |path: &str| seen(&original.join(path)),
        );
        let step = |path: &str, number: u32, old: Value, new: Value, below: Value| json!({"path": path, "slot": number, "old": old, "old_below": [], "new": new, "below": below});
        let inline = json!({
            "original": reference["original"],
            "area": reference["area"],
            "steps": [
                step("file", 0, slot("0"), at("file"), json!([])),
                step("gone", 1, slot("1"), json!(null), json!([])),
                step("n", 2, json!(null), at("n"), json!([
                    ["n/deep", at("n/deep")],
                    ["n/deep/x", at("n/deep/x")],
                ])),
            ],
            "links": [],
            "directories": [{
                "path": ".",
                "seen": seen(&original),
                "before": root,
                "after": looks(&original),
            }],
            "linked": ["file", "n/deep/x"],
            "marked": [],
            "finished": true,
        });
        let mut journal = journal;
        journal.members[0].intent = Some(inline.to_string());
        let stored = store.put_intents(&journal);
        stored.expect("the state can be written");
        drop(store);

        let undone = sandbox.undone();
        let paths: Vec<String> = undone.paths[0].1.first().map(ToString::to_string).collect();
        assert_eq!(paths, ["file", "gone", "n", "n/deep", "n/deep/x"]);
        assert_tree(&before, &original, strategy);
    }
}
