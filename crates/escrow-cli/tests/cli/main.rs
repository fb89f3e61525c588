//! The command line as its users meet it: real processes, real files, as root and as an ordinary
//! user.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod access;
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
mod cost_commit;
mod cost_moments;
mod documents;
mod expected;
mod faults;
mod files;
mod files_faults;
mod files_judged;
mod flags;
mod folding;
mod forks;
mod full_disk;
mod gc;
mod intents;
mod interrupted;
mod judged;
mod log;
mod lost;
mod many;
mod metadata;
mod mounts;
mod mounts_killed;
mod moved_home;
mod odd_places;
mod output;
mod parts;
mod parts_faults;
mod plans;
mod protected;
mod recovery;
mod review;
mod support;
mod trust;
mod trust_plans;
mod verbs;
mod whole_faults;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use escrow_testkit::skip::is_root;
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World, tree};

/// The program under test.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_escrow"))
}

/// Whether this is an ordinary user. Root runs the test again as one, and has nothing else to do.
#[track_caller]
fn as_ordinary_user(test: &str) -> bool {
    rerun_test_as_user_with(test, &[&binary()]);
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

fn furnish(world: World) -> (World, Cli) {
    let app = world.dir("app");
    tree::build(
        &app,
        "a.txt 0640 \"one\\ntwo\\nthree\\n\"\nsrc/ 0750\nsrc/main.rs \"fn main() {}\\n\"\nlink -> a.txt\n",
    );
    let cli = Cli::new(&world, &binary());
    (world, cli)
}

/// Words of a command line.
fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

/// Runs a line that must succeed and gives its JSON.
#[track_caller]
fn json(cli: &Cli, line: &str) -> serde_json::Value {
    let text = cli.ok([words("--json"), words(line)].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
}

/// Runs a line that must fail with `code` and gives the error of its JSON.
#[track_caller]
fn json_error(cli: &Cli, line: &str, code: i32) -> serde_json::Value {
    let outcome = cli.run([words("--json"), words(line)].concat());
    let text = outcome.stdout_text();
    assert_eq!(
        outcome.status,
        code,
        "{line}: {text}{}",
        outcome.stderr_text()
    );
    assert_eq!(
        outcome.stderr_text(),
        "",
        "{line}: with --json everything is on stdout"
    );
    let document: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
    assert_eq!(keys(&document), ["error"]);
    assert_eq!(
        keys(&document["error"]),
        ["details", "hints", "kind", "message"]
    );
    document["error"].clone()
}

/// The keys of an object, sorted.
fn keys(value: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}
