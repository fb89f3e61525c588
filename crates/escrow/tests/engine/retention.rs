//! When workspaces go: with the commit, with whatever ends the work, or only when another process asks.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use escrow::manager::{Manager, ManagerOptions};
use escrow::model::{CleanupPolicy, PlanState, Retention, SandboxState};
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::{World, tree};

use crate::support::{ISOLATING, Sandboxed, options};

/// A sandbox of `app` in a home whose workspaces go as `cleanup` says.
fn kept(world: &World, strategy: &str, cleanup: CleanupPolicy) -> Sandboxed {
    let app = world.dir("app");
    tree::build(
        &app,
        "a \"old\\n\"\nb \"stays\\n\"\nbin/run 0755 \"#!/bin/sh\\n\"\n",
    );
    let mut sandboxed = Sandboxed::new(&world.home(), &app, strategy);
    sandboxed.manager = manager(&world.home(), cleanup);
    sandboxed.native("echo new > a; echo more > c; ln c d; rm b; mkdir sub; echo x > sub/x");
    sandboxed
}

fn manager(home: &Path, cleanup: CleanupPolicy) -> Manager {
    let keep = Retention {
        cleanup,
        ..Retention::default()
    };
    let options = ManagerOptions {
        keep,
        ..options(home)
    };
    Manager::open(options).expect("it opens on a used home")
}

fn names(path: &Path) -> usize {
    let meta = std::fs::metadata(path).expect("it is there");
    usize::try_from(meta.nlink()).expect("a small number")
}

// A workspace that stays must not be the original under another name.
#[test]
fn with_manual_the_workspace_stays_and_shares_nothing_with_the_original() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandboxed = kept(&world, strategy, CleanupPolicy::Manual);
        let (area, before) = (sandboxed.area(), signature(&sandboxed.original));
        let promised = sandboxed.promised();
        sandboxed.committed();
        assert_eq!(
            sandboxed.state_of_plan(),
            PlanState::Committed,
            "{strategy}"
        );
        assert_eq!(sandboxed.state(), SandboxState::Committed, "{strategy}");
        let app = &sandboxed.original;
        assert_same(&promised, &signature(app), &Ignore::default());
        assert_eq!(names(&app.join("a")), 1, "{strategy}");
        assert_eq!(names(&app.join("c")), 2, "{strategy}: c and d are one file");
        // Who still works in it reaches the original no more.
        let inside = match strategy {
            "overlay" => area.join("layers/0"),
            _ => area.join("copy/tree"),
        };
        std::fs::write(inside.join("a"), "late\n").expect("it is still there");
        let read = std::fs::read_to_string(app.join("a")).expect("it is there");
        assert_eq!(read, "new\n", "{strategy}");
        sandboxed.undone();
        assert_same(&before, &signature(app), &Ignore::default());
        assert_eq!(sandboxed.state(), SandboxState::Active, "{strategy}");
        sandboxed.cleanup();
        assert!(!area.exists(), "{strategy}");
    }
}

#[test]
fn with_on_terminal_a_rollback_ends_the_plan() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandboxed = kept(&world, strategy, CleanupPolicy::OnTerminal);
        let (area, before) = (sandboxed.area(), signature(&sandboxed.original));
        sandboxed.rollback();
        assert!(!area.exists(), "{strategy}");
        assert_eq!(
            sandboxed.state_of_plan(),
            PlanState::CleanedUp,
            "{strategy}"
        );
        assert_same(&before, &signature(&sandboxed.original), &Ignore::default());
        let world = World::new();
        let sandboxed = kept(&world, strategy, CleanupPolicy::OnTerminal);
        let area = sandboxed.area();
        sandboxed.committed();
        assert!(!area.exists(), "{strategy}");
        sandboxed.undone();
    }
}

#[test]
fn with_the_others_a_rolled_back_workspace_can_be_worked_in_again() {
    for cleanup in [CleanupPolicy::OnCommit, CleanupPolicy::Manual] {
        let world = World::new();
        let sandboxed = kept(&world, "filesystem_copy", cleanup);
        sandboxed.rollback();
        assert_eq!(sandboxed.state_of_plan(), PlanState::Open, "{cleanup}");
        sandboxed.write("a", b"again\n").expect("it is usable");
    }
}
