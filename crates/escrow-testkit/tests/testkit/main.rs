//! The testkit's own tests: a checker that notices nothing would make every other test worthless.
#![allow(
    clippy::disallowed_methods,
    reason = "std::fs is banned in the engine; this is the checker beside it"
)]

mod checker;
mod model;
mod powercut;
mod running;
mod stepper;
mod zoos;

use std::path::Path;
use std::process::Command;

fn sh(dir: &Path, script: &str) {
    let output = Command::new("sh")
        .args(["-eu", "-c", script])
        .current_dir(dir)
        .output()
        .expect("sh starts");
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
