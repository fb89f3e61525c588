//! `escrow run` as its users, and its enemies, meet it: real namespaces, real terminals, real kills; as root and as an
//! ordinary user.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod agent_homes;
mod agent_planted;
mod agents;
mod ask;
mod attacks;
mod attacks_descriptors;
mod attacks_expected;
mod attacks_files;
mod attacks_hidden;
mod attacks_kernel;
mod attacks_root;
mod attacks_secrets;
mod attacks_streams;
mod attacks_suite;
mod caches;
mod checkpoints;
mod copied;
mod flow;
mod git;
mod git_attacks;
mod git_base;
mod git_databases;
mod git_default;
mod git_history;
mod git_kinds;
mod git_meanwhile;
mod git_merge;
mod git_places;
mod git_signature;
mod git_traps;
mod git_uncommitted;
mod git_undo;
mod git_unseen;
mod git_work;
mod groups;
mod helpers_killed;
mod hooks;
mod inject;
mod jobs;
mod join;
mod library;
mod life;
mod limits;
mod mounts;
mod network;
mod network_own;
mod opened;
mod options;
mod running;
mod snapshots;
mod summary;
mod terminal;
mod validation;
mod work;

use escrow_testkit::prelude::*;
use escrow_testkit::user::rerun_as_user;
use running::{PATIENCE, Running, WAIT, assert_clean, assert_quiet, assert_soon_quiet};
use running::{await_process, processes};

/// Both ways in which the sandbox of a directory can be shown inside: as layers, and as a directory.
const STRATEGIES: [&str; 2] = ["overlay", "filesystem_copy"];

/// The program under test.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_escrow"))
}

/// Runs the test as an ordinary user too.
fn as_user_too() {
    rerun_as_user(&[&binary()]);
}

/// A world that is not in `/tmp`, which is private inside: what lies beside its `app` can be seen there.
fn world() -> (World, Cli) {
    furnish(World::under(Path::new("/var/tmp")))
}

/// A small `app`, in which the program is run.
fn furnish(world: World) -> (World, Cli) {
    let app = world.dir("app");
    tree::build(
        &app,
        "a.txt 0640 \"one\\ntwo\\n\"\nsrc/ 0750\nsrc/main.rs \"fn main() {}\\n\"\nlink -> a.txt\n",
    );
    let cli = Cli::new(&world, &binary()).cwd(&app);
    (world, cli)
}

/// The same with a plan `try` of it.
fn planned(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    cli.plan("try", ".", strategy);
    (world, cli)
}

/// A line that runs a script inside.
fn inside(line: &str, script: &str) -> Vec<OsString> {
    let mut all = words(line);
    all.extend(["--", "sh", "-c", script].map(OsString::from));
    all
}

/// The same for a plan.
fn in_plan(plan: &str, script: &str) -> Vec<OsString> {
    inside(&format!("run --plan {plan}"), script)
}

/// The same for the plan `try`.
fn in_try(script: &str) -> Vec<OsString> {
    in_plan("try", script)
}

/// The kind of the error of a line that must fail with `code`.
#[track_caller]
fn fails_as(cli: &Cli, line: &str, code: i32) -> String {
    let outcome = cli.expect(format!("--json {line}"), code);
    let document: Value = serde_json::from_slice(&outcome.stdout).expect("one document");
    document["error"]["kind"]
        .as_str()
        .expect("a kind")
        .to_owned()
}
