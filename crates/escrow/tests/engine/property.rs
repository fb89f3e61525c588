//! Random edits on a sandbox beside a plain model in memory: diff, read, rollback, commit and undo agree with it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use escrow::error::Error;
use escrow::model::ChangeKind;
use escrow::strategy::StrategyError;
use escrow_testkit::World;
use escrow_testkit::model::{Edit, ExpectedKind, Model, Node, Rng};
use escrow_testkit::signature::signature;
use escrow_testkit::text::show;
use escrow_testkit::user::{is_rerun, rerun_test_as_user};

use crate::commit_trees::{assert_clean, there_and_back};
use crate::support::{Sandboxed, assert_swept, assert_untouched, sh};

const BASE_EDITS: usize = 40;
const EDITS: usize = 16;

fn cases() -> u64 {
    // The ordinary user meets other seeds, so that both together see more.
    if is_rerun() { 6 } else { 14 }
}

fn seed(case: u64) -> u64 {
    if is_rerun() { 1_000_000 + case } else { case }
}

/// Edits that the model accepted, and the script that does the same.
pub(crate) fn edits(rng: &mut Rng, model: &mut Model, count: usize) -> String {
    let mut script = String::new();
    let mut done = 0;
    while done < count {
        let edit = Edit::random(rng, model);
        if model.apply(&edit) {
            script.push_str(&edit.to_shell());
            script.push('\n');
            done += 1;
        }
    }
    script
}

/// Makes the tree of a model, with times that no test run makes.
pub(crate) fn build(root: &Path, model: &Model) {
    let mut script = String::from("umask 022\n");
    let mut modes = String::new();
    for (path, node) in &model.nodes {
        let mut make = |edit: Edit| {
            script.push_str(&edit.to_shell());
            script.push('\n');
        };
        let mut chmod = |mode: u32| {
            let path = path.clone();
            modes.push_str(&Edit::Chmod { path, mode }.to_shell());
            modes.push('\n');
        };
        let path = path.clone();
        match node {
            Node::Dir { mode } => {
                chmod(*mode);
                make(Edit::MkDir { path });
            }
            Node::Link { target } => make(Edit::Symlink {
                path,
                target: target.clone(),
            }),
            Node::File {
                content,
                mode,
                xattr,
            } => {
                chmod(*mode);
                make(Edit::WriteFile {
                    path: path.clone(),
                    content: content.clone(),
                });
                for (name, value) in xattr {
                    make(Edit::SetXattr {
                        path: path.clone(),
                        name: String::from_utf8(name.clone()).expect("a name from a list"),
                        value: value.clone(),
                    });
                }
            }
        }
    }
    script.push_str(&modes);
    script.push_str("find . -exec touch -h -d '1999-09-09 09:09:09.123456789 UTC' {} +\n");
    sh(root, &script);
}

pub(crate) fn expected(old: &Model, new: &Model) -> BTreeMap<Vec<u8>, ChangeKind> {
    let kind = |kind| match kind {
        ExpectedKind::Added => ChangeKind::Added,
        ExpectedKind::Modified => ChangeKind::Modified,
        ExpectedKind::Deleted => ChangeKind::Deleted,
        ExpectedKind::TypeChanged => ChangeKind::TypeChanged,
        ExpectedKind::ModeChanged => ChangeKind::ModeChanged,
    };
    let changes = Model::diff(old, new).into_iter();
    changes.map(|(path, found)| (path, kind(found))).collect()
}

/// Reads everything that `model` has, and nothing else of `known`.
pub(crate) fn assert_reads(sandbox: &Sandboxed, model: &Model, known: &Model) {
    for (path, node) in &model.nodes {
        let answer = sandbox.read(path);
        match (node, answer) {
            (Node::File { content, .. }, Ok(bytes)) => {
                assert_eq!(bytes, *content, "{}", show(path));
            }
            (Node::File { .. }, Err(error)) => panic!("cannot read {}: {error}", show(path)),
            (_, Err(Error::Strategy(StrategyError::NotAFile { .. }))) => {}
            (Node::Link { .. }, Err(Error::Strategy(StrategyError::Leaves { .. }))) => {}
            (_, answer) => panic!("{} is no file, and yet {:?}", show(path), answer.map(drop)),
        }
    }
    let gone = known
        .nodes
        .keys()
        .filter(|path| !model.nodes.contains_key(*path));
    for path in gone {
        let below_file = parents(path).any(|parent| {
            matches!(
                model.nodes.get(parent),
                Some(Node::File { .. } | Node::Link { .. })
            )
        });
        match sandbox.read(path) {
            Err(Error::Strategy(StrategyError::NotThere { .. })) => {}
            // A file or a link stands where a directory was: there is no way through it.
            Err(Error::Strategy(StrategyError::NotAFile { .. } | StrategyError::Leaves { .. }))
                if below_file => {}
            answer => panic!("{} is gone, and yet {:?}", show(path), answer.map(drop)),
        }
    }
}

fn parents(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

fn one_case(world: &World, strategy: &str, seed: u64) {
    let mut rng = Rng::new(seed);
    let original = world.dir(format!("original-{seed}"));
    let mut base = Model::new();
    edits(&mut rng, &mut base, BASE_EDITS);
    build(&original, &base);
    assert_eq!(Model::read_from(&original), base, "the base is the model");
    let before = signature(&original);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    let made = sandbox.sandbox();
    assert_eq!(made.reference.strategy_name, strategy, "{}", made.message);
    assert_eq!(sandbox.diff(), BTreeMap::new(), "a fresh sandbox is equal");
    for round in ["first", "second"] {
        let mut now = base.clone();
        let script = edits(&mut rng, &mut now, EDITS);
        sandbox.native(&script);
        assert_eq!(
            sandbox.diff(),
            expected(&base, &now),
            "{round} round, after\n{script}"
        );
        assert_reads(&sandbox, &now, &base);
        assert_untouched(&before, &original);
        sandbox.rollback();
        assert_eq!(sandbox.diff(), BTreeMap::new(), "{round} rollback");
        assert_reads(&sandbox, &base, &now);
        assert_untouched(&before, &original);
    }
    // Then it is committed and undone, and committed for good.
    let mut now = base.clone();
    let script = edits(&mut rng, &mut now, EDITS);
    sandbox.native(&script);
    there_and_back(&sandbox, &script);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(&script);
    sandbox.committed();
    assert_eq!(Model::read_from(&original), now, "after\n{script}");
    sandbox.cleanup();
    assert_clean(&original);
}

/// Tells the seed of a case that fails.
pub(crate) struct Shown<'a>(pub(crate) &'a str, pub(crate) u64);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let line = format!("{} failed with the seed {}\n", self.0, self.1);
            // Nothing can be said about a closed standard error.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

fn agrees_with_the_model(strategy: &str) {
    let world = World::on_disk();
    for case in 0..cases() {
        let seed = seed(case);
        let _shown = Shown(strategy, seed);
        one_case(&world, strategy, seed);
    }
    assert_swept(&world.home());
}

// rule F6, F8, P5, C1, C16, F1
#[test]
fn filesystem_copy() {
    rerun_test_as_user("property::filesystem_copy");
    agrees_with_the_model("filesystem_copy");
}

// rule F6, F8, C1, C16, F1
#[test]
fn copy_on_write() {
    rerun_test_as_user("property::copy_on_write");
    agrees_with_the_model("copy_on_write");
}

// rule F6, F8, T1, C1, C16, F1
#[test]
fn overlay() {
    rerun_test_as_user("property::overlay");
    agrees_with_the_model("overlay");
}
