//! The command line as its users meet it: real processes, real files, as root and as an ordinary
//! user.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod access;
mod apart;
mod both_sides;
mod checkpoints;
mod checkpoints_faults;
mod checkpoints_names;
mod checkpoints_touched;
mod closed;
mod closed_dirs;
mod commits;
mod commits_places;
mod commits_shared;
mod config;
mod conflicts;
mod conformance;
mod contract;
mod cost;
mod cost_checkpoints;
mod cost_commit;
mod cost_history;
mod discard_parts;
mod documents;
mod expected;
mod faults;
mod files;
mod files_accepted;
mod files_faults;
mod flags;
mod forks;
mod full_disk;
mod gc;
mod hostile_sizes;
mod intents;
mod interrupted;
mod leads;
mod log;
mod lost;
mod many;
mod merges;
mod metadata;
mod mounts;
mod mounts_killed;
mod moved_home;
mod odd_places;
mod output;
mod parts;
mod plans;
mod plugins;
mod plugins_plain;
mod postgres;
mod postgres_attacks;
mod postgres_clones;
mod postgres_clones_attacks;
mod postgres_clones_forms;
mod postgres_clones_limits;
mod postgres_clones_rows;
mod postgres_contract;
mod postgres_exchanges;
mod postgres_faults;
mod postgres_kept;
mod postgres_names;
mod postgres_old;
mod postgres_random;
mod postgres_traps;
mod postgres_unseen;
mod postgres_work;
mod protected;
mod recovery;
mod review;
mod snapshots;
mod sqlite;
mod sqlite_altered;
mod sqlite_attacks;
mod sqlite_bad;
mod sqlite_clients;
mod sqlite_definitions;
mod sqlite_full_text;
mod sqlite_held;
mod sqlite_in_trees;
mod sqlite_names;
mod sqlite_references;
mod sqlite_shown;
mod sqlite_torn;
mod sqlite_undo;
mod squash;
mod support;
mod trust;
mod trust_plans;
mod undo;
mod undo_copies;
mod undo_newer;
mod uninstall;
mod validation;
mod verbs;
mod which_plan;
mod whole_faults;
mod words;

use escrow_testkit::prelude::*;
use escrow_testkit::user::rerun_as_user;
use support::*;

/// The program under test.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_escrow"))
}

/// Runs the test as an ordinary user too.
fn as_user_too() {
    rerun_as_user(&[&binary()]);
}

/// Whether this is an ordinary user. Root runs the test again as one, and has nothing else to do.
fn as_ordinary_user() -> bool {
    as_user_too();
    !is_root()
}

/// The top of the repository.
fn repository() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates
        .and_then(Path::parent)
        .expect("the crate lies in crates/")
        .to_owned()
}

/// A world with a small directory `app` in it.
fn world() -> (World, Cli) {
    furnish(World::new())
}

/// The same with a plan `try` of `app`.
fn planned_app(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    cli.plan("try", "./app", strategy);
    (world, cli)
}

/// A plan `try` of two resources, `one` in layers and `two` copied, with these files written into each.
fn planned_both(files: [(&str, &str); 2]) -> (World, Cli) {
    let (world, cli) = world();
    world.dir("data");
    cli.ok("resource add one --type fs-directory --at ./app --strategy overlay");
    cli.ok("resource add two --type fs-directory --at ./data --strategy filesystem_copy");
    cli.ok("plan create try --resource one --resource two");
    for resource in ["one", "two"] {
        for (path, text) in files {
            put(&cli, &format!("try {resource} {path}"), text);
        }
    }
    (world, cli)
}

fn furnish(world: World) -> (World, Cli) {
    let app = world.dir("app");
    tree::build(
        &app,
        "a.txt 0640 \"one\\ntwo\\nthree\\n\"\nsrc/ 0750\nsrc/main.rs \"fn main() {}\\n\"\nlink -> a.txt\n",
    );
    let cli = Cli::new(&world, &binary());
    (world, cli)
}
