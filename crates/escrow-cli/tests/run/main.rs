//! `escrow run` as its users, and its enemies, meet it: real namespaces, real terminals, real kills; as root and as an
//! ordinary user.
//!
//! | file | promise |
//! |---|---|
//! | `work` | the usual work of programs gives inside what it gives outside, and the original waits for the commit |
//! | `terminal` | keys, signals, the size of the window and the exit status pass through |
//! | `jobs` | a shell outside sees a job like any other; a shell inside has jobs of its own |
//! | `attacks` | what a hostile command tries, and what comes of it |
//! | `attacks_descriptors` | the same, for descriptors that leave the namespace, or that come in by mistake |
//! | `attacks_expected` | the same, for sandboxes that are changed between diff and commit |
//! | `attacks_files` | the same, for files that are meant to mislead the diff or the commit |
//! | `attacks_root` | the same, for what only root could reach |
//! | `groups` | files of other groups and users: what can be changed inside, what is said of the rest |
//! | `library` | a program that uses only the library passes every gate |
//! | `life` | if the process dies takes the rest with it, at every stage |
//! | `join` | one namespace for a plan, however many commands there are |
//! | `judged` | what is released is what was validated, the process that comes meanwhile or dies |
//! | `ask` | what may be asked from inside, and what may not |
//! | `moments` | checkpoints and restores while commands are inside |
//! | `options` | each option does what it says, and the exit status is the right one |
//! | `running` | a run that is under way; and proof that nothing is left of it |
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod ask;
mod attacks;
mod attacks_descriptors;
mod attacks_expected;
mod attacks_files;
mod attacks_root;
mod groups;
mod jobs;
mod join;
mod judged;
mod library;
mod life;
mod moments;
mod options;
mod running;
mod terminal;
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

/// A line that runs a script inside.
fn inside(line: &str, script: &str) -> Vec<OsString> {
    let mut all = words(line);
    all.extend(["--", "sh", "-c", script].map(OsString::from));
    all
}

/// The kind of the error of a line that must fail with `code`.
#[track_caller]
fn fails_as(cli: &Cli, line: &str, code: i32) -> String {
    let outcome = cli.run([words("--json"), words(line)].concat());
    let text = outcome.stdout_text();
    assert_eq!(outcome.status, code, "{line}: {text}");
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
    let kind = document["error"]["kind"].as_str().expect("a kind");
    kind.to_owned()
}
