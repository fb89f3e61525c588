//! Some hunks of a file are released: the original has its own version with them, and the others stay in the sandbox.

use std::collections::BTreeSet;
use std::fs;

use escrow::Escrow;
use escrow::diff::FileHunks;
use escrow::error::{Kind, Result};
use escrow::event::Unobserved;
use escrow::manager::CommitReport;
use escrow::policy::select::{ReleasePattern, ReleaseSelection};
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, differences, signature};

use crate::commit_support::{OURS, PLAIN, assert_shares_nothing, request, told};
use crate::overlay::original;
use crate::support::{Sandboxed, plan_of};

/// A text with four places that differ: one begins it, one is replaced, one goes, one has the end without a line feed.
/// `new` says of which the sandbox's version is taken.
fn text(new: u32) -> String {
    let blocks = [
        ("", "first\n"),
        ("old\n", "new\nand more\n"),
        ("goes\n", ""),
        ("the\nend\n", "the end"),
    ];
    let mut text = String::new();
    for (number, (old, changed)) in blocks.into_iter().enumerate() {
        let taken = new & (1 << number) != 0;
        text.push_str(if taken { changed } else { old });
        if number < 3 {
            text.extend((0..9).map(|line| format!("{number} {line}\n")));
        }
    }
    text
}

/// What the sandbox has.
const ALL: u32 = 0b1111;

impl Sandboxed {
    /// The hunks of the file that is changed.
    fn hunks(&self) -> FileHunks {
        let found = self.manager.diff(&self.plan, None).expect("a diff");
        let one = &found.resources[0];
        let contents = self.manager.contents(&found, &one.view);
        let contents = contents.expect("both can be read");
        let hunks = FileHunks::of(&one.diff.changes[0], &contents).expect("it can be read");
        hunks.expect("it is a text")
    }

    fn release(&self, selection: &ReleaseSelection) -> Result<CommitReport> {
        let request = request(OURS);
        self.manager
            .commit_part(&self.plan, &request, selection, &Unobserved)
    }
}

/// These hunks of the file `f` of a sandbox.
fn chosen(
    of: &Sandboxed,
    hunks: &FileHunks,
    numbers: impl Iterator<Item = usize>,
) -> ReleaseSelection {
    let found = of.manager.diff(&of.plan, None).expect("a diff");
    let path = found.resources[0].diff.changes[0].path.clone();
    let name = &of.resource.name;
    let mut selection = ReleaseSelection {
        only: vec![ReleasePattern::exact(name, &path)],
        ..ReleaseSelection::default()
    };
    let numbers: BTreeSet<usize> = numbers.collect();
    let files = selection.hunks.entry(name.clone()).or_default();
    files.insert(path, hunks.choose(&numbers));
    selection
}

fn begun(world: &World, strategy: &str) -> Sandboxed {
    let original = original(world, "o", "");
    fs::write(original.join("f"), text(0)).expect("there is room");
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(&format!("printf '{}' > f", text(ALL)));
    sandbox
}

// rules C1, C6, F8
#[test]
fn any_hunks_of_a_file_are_released_and_exactly_the_others_stay() {
    for strategy in ["filesystem_copy", "overlay"] {
        let world = World::new();
        let sandbox = begun(&world, strategy);
        let f = sandbox.original.join("f");
        let before = signature(&sandbox.original);
        for some in [0b0001, 0b0110, 0b1000, 0b1011] {
            let when = format!("{strategy}: {some:04b}");
            let hunks = sandbox.hunks();
            assert_eq!(hunks.texts.len(), 4, "{when}");
            let numbers = (0..4).filter(|number| some & (1 << number) != 0);
            let released = sandbox.release(&chosen(&sandbox, &hunks, numbers));
            let released = released.unwrap_or_else(|error| panic!("{when}: {}", told(&error)));
            assert_eq!(released.preview.left(), 1, "{when}");
            assert_eq!(
                fs::read_to_string(&f).expect("it is there"),
                text(some),
                "{when}"
            );
            assert_shares_nothing(&sandbox.original);
            // The others, one by one; then there is nothing left.
            let left = sandbox.hunks().texts.len();
            assert_eq!(left, 4 - some.count_ones() as usize, "{when}");
            for rest in (1..left).rev() {
                let hunks = sandbox.hunks();
                let first = chosen(&sandbox, &hunks, 0..1);
                let released = sandbox.release(&first);
                released.unwrap_or_else(|error| panic!("{when}: {}", told(&error)));
                assert_eq!(sandbox.hunks().texts.len(), rest, "{when}");
            }
            for _ in 0..left {
                sandbox.undone();
            }
            let changed = differences(&before, &signature(&sandbox.original), &Ignore::default());
            assert_eq!(changed, Vec::<String>::new(), "{when}");
        }
        let hunks = sandbox.hunks();
        let some = chosen(&sandbox, &hunks, 1..3);
        sandbox.release(&some).expect("it can be released");
        sandbox.committed();
        assert_eq!(
            fs::read_to_string(&f).expect("it is there"),
            text(ALL),
            "{strategy}"
        );
    }
}

/// Nothing is released of a file of which either version is not the one that was shown, nor of what is more than a text.
// rules C5, C15
#[test]
fn hunks_are_released_only_of_what_they_were_chosen_from() {
    for strategy in ["filesystem_copy", "overlay"] {
        let cases = [
            ("echo later >> f", "", Kind::Conflict),
            ("", "echo later >> f", Kind::Conflict),
            ("chmod 0600 f", "", Kind::Unsupported),
            ("ln f other", "", Kind::Unsupported),
            ("rm f", "", Kind::Unsupported),
            ("rm f; mkdir f", "", Kind::Unsupported),
        ];
        for (inside, outside, kind) in cases {
            let when = format!("{strategy}: {inside} {outside}");
            let world = World::new();
            let sandbox = begun(&world, strategy);
            let hunks = sandbox.hunks();
            let some = chosen(&sandbox, &hunks, 0..1);
            sandbox.native(inside);
            crate::support::sh(&sandbox.original, outside);
            let before = signature(&sandbox.original);
            let preview = sandbox
                .manager
                .preview_part(&sandbox.plan, PLAIN, &some, true);
            assert_eq!(preview.expect_err(&when).kind(), kind, "{when}");
            let refused = sandbox.release(&some).expect_err(&when);
            assert_eq!(refused.kind(), kind, "{when}: {}", told(&refused));
            let changed = differences(&before, &signature(&sandbox.original), &Ignore::default());
            assert_eq!(changed, Vec::<String>::new(), "{when}");
        }
    }
}

/// No validation sees what some hunks leave of a file.
// rule C5
#[test]
fn where_something_is_validated_no_hunks_are_released() {
    let world = World::new();
    let original = original(&world, "o", "");
    fs::write(original.join("f"), text(0)).expect("there is room");
    let config = world.path().join("escrow.yaml");
    fs::write(&config, "validate: [['true']]\n").expect("there is room");
    let builder = Escrow::builder().home(world.home()).config(&config);
    let manager = builder.open().expect("it opens");
    let view = plan_of(&manager, None, &[&original], "filesystem_copy");
    let sandbox = Sandboxed {
        manager,
        plan: view.plan,
        resource: view.sandboxes[0].resource.clone(),
        original,
    };
    sandbox.native(&format!("printf '{}' > f", text(ALL)));
    let some = chosen(&sandbox, &sandbox.hunks(), 0..1);
    let refused = sandbox.release(&some).expect_err("it is validated");
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(told(&refused).contains("validated"), "{}", told(&refused));
    let now = fs::read_to_string(sandbox.original.join("f"));
    assert_eq!(now.expect("it is there"), text(0));
}
