//! The whole story by the library alone: a plan over a directory, a write, a command, checkpoints, a policy and a
//! validation that stop a commit, the commit, and undo.
//!
//! ```text
//! cargo build -p escrow-cli
//! cargo run -p escrow --example library -- DIRECTORY target/debug/escrow
//! ```
//!
//! The second word is the helper program, through which commands are run; this program need not be `escrow`.
#![allow(
    clippy::disallowed_methods,
    reason = "it looks at the real files as its user would"
)]

use std::error::Error as StdError;
use std::fs;
use std::path::Path;

use escrow::{CommitRequest, Error, Escrow, Plan, Resource, ResourcePath, RunRequest, Unobserved};

/// Only the developer may commit, and no process may commit below `ci`. Notes must not speak of bugs.
const CONFIGURATION: &str = "
policy:
  mode: enforce
  rules:
    - { allow: [create, read, write, diff, run, checkpoint, restore], principal: '*', scope: '*' }
    - { allow: [commit, undo, cleanup], principal: developer, scope: '*' }
    - { deny: [commit], principal: '*', scope: 'project:ci/**' }
validate:
  - '! grep bug project/notes.txt'
";

type Outcome<T> = Result<T, Box<dyn StdError>>;

/// Tells the story in an empty directory.
pub(crate) fn story(directory: &Path, helper: &Path) -> Outcome<()> {
    let project = directory.join("project");
    fs::create_dir(&project)?;
    fs::write(project.join("old.txt"), "old\n")?;
    let configuration = directory.join("escrow.yaml");
    fs::write(&configuration, CONFIGURATION)?;
    let open = |principal: &str| {
        let escrow = Escrow::builder().home(directory.join("state"));
        let escrow = escrow.config(&configuration).helper(helper);
        escrow.principal(principal).open()
    };
    let agent = open("agent:one")?;

    // The agent works in a sandbox of the project.
    let made = agent.create_plan(
        Some("try"),
        directory,
        &["project".into()],
        None,
        &Unobserved,
    )?;
    let (plan, resource) = (&made.plan, &made.sandboxes[0].resource);
    write(&agent, plan, resource, "notes.txt", "all is well\n")?;
    let script = "echo built > out.txt && rm old.txt";
    let ended = agent.run(plan, &RunRequest::new(["sh", "-c", script], &project))?;
    assert_eq!(ended.exit.status(), 0);
    let good = agent.create_checkpoint(plan, Some("good"), &Unobserved)?;
    assert_eq!(changes(&agent, plan)?, ["notes.txt", "old.txt", "out.txt"]);
    assert!(project.join("old.txt").exists() && !project.join("out.txt").exists());

    // It may not release what it did.
    let request = CommitRequest {
        message: Some("notes, and a build"),
        ..CommitRequest::default()
    };
    let refused = agent.commit(plan, &request, &Unobserved);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");

    // The developer may, but not what a validation refuses, and not below `ci`.
    let developer = open("developer")?;
    write(&developer, plan, resource, "notes.txt", "a bug\n")?;
    let refused = developer.commit(plan, &request, &Unobserved);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    developer.restore(plan, &good, &Unobserved)?;
    write(&developer, plan, resource, "ci/deploy", "rm -rf /\n")?;
    let refused = developer.commit(plan, &request, &Unobserved);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    developer.restore(plan, &good, &Unobserved)?;
    assert!(project.join("old.txt").exists() && !project.join("notes.txt").exists());

    // All of it, or nothing.
    let released = developer.commit(plan, &request, &Unobserved)?;
    assert!(released.left.is_empty());
    assert_eq!(
        fs::read_to_string(project.join("notes.txt"))?,
        "all is well\n"
    );
    assert!(!project.join("old.txt").exists() && project.join("out.txt").exists());

    // And back.
    let committed = developer.resolve_committed(Some("try"), directory)?;
    let undone = developer.undo(&committed, &Unobserved)?;
    assert_eq!(undone.resources.len(), 1);
    assert_eq!(fs::read_to_string(project.join("old.txt"))?, "old\n");
    assert!(!project.join("notes.txt").exists() && !project.join("out.txt").exists());

    // Everything that was done or denied is in the log.
    let log = developer.log(None)?;
    let denied = log.iter().filter(|one| one.outcome == "denied").count();
    let failed = log.iter().filter(|one| one.outcome == "failed").count();
    assert_eq!((denied, failed), (2, 1));
    assert_eq!(developer.check_log(None)?.fault, None);
    Ok(())
}

fn write(escrow: &Escrow, plan: &Plan, resource: &Resource, path: &str, text: &str) -> Outcome<()> {
    let path = ResourcePath::parse(path.as_bytes())?;
    escrow.write(plan, resource, &path, &mut text.as_bytes())?;
    Ok(())
}

fn changes(escrow: &Escrow, plan: &Plan) -> Outcome<Vec<String>> {
    let found = escrow.diff(plan, None)?;
    let all = found.resources.iter().flat_map(|one| &one.diff.changes);
    Ok(all.map(|change| change.path.to_string()).collect())
}

/// Runs the story in a directory of the caller's.
#[allow(dead_code, reason = "the story is also told by a test")]
fn main() -> Outcome<()> {
    let mut words = std::env::args_os().skip(1);
    let (Some(directory), Some(helper)) = (words.next(), words.next()) else {
        return Err("usage: library DIRECTORY HELPER".into());
    };
    story(Path::new(&directory), Path::new(&helper))
}
