//! The hundred changes: 50 files modified, 30 added, 20 deleted, spread over the whole tree.

use std::fmt::Write;
use std::path::Path;

use escrow_testkit::{OverlayMount, XattrKind};

use crate::bench::{command, time};
use crate::tree::{Tree, name};

/// How many there are.
pub(crate) const CHANGES: usize = 100;

/// A script that makes them in the directory it runs in.
fn script(tree: &Tree) -> String {
    let mut script = String::new();
    for change in 0..CHANGES {
        let name = name(change * (tree.files / CHANGES));
        match change % 10 {
            0..5 => writeln!(script, "echo changed >> {name}"),
            5..8 => writeln!(script, "echo added > {name}.new"),
            _ => writeln!(script, "rm {name}"),
        }
        .expect("writing to a String cannot fail");
    }
    script
}

/// The paths they are made at.
pub(crate) fn paths(tree: &Tree) -> Vec<String> {
    let path = |change: usize| {
        let name = name(change * (tree.files / CHANGES));
        match change % 10 {
            5..8 => format!("{name}.new"),
            _ => name,
        }
    };
    (0..CHANGES).map(path).collect()
}

/// Makes them in a tree that is there.
pub(crate) fn apply(tree: &Tree, at: &Path) {
    let mut sh = command("sh", &["-euc", &script(tree)], &[]);
    time(sh.current_dir(at), &[0]);
}

/// Makes them in an overlay sandbox, through a real mount: the kernel writes the layer.
pub(crate) fn apply_to_overlay(tree: &Tree, area: &Path) {
    // A sandbox has one layer as long as no process took a checkpoint, and a new one after a rollback.
    let layers = std::fs::read_dir(area.join("layers")).expect("there is a layer");
    let layers = layers.map(|layer| layer.expect("it can be listed").path());
    let [layer] = &layers.collect::<Vec<_>>()[..] else {
        panic!("one layer takes the changes");
    };
    let mount = OverlayMount {
        lower: &tree.path,
        upper: layer,
        work: &area.join("work"),
        xattr: XattrKind::User,
    };
    mount.run(&script(tree));
}
