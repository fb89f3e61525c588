//! What the strategies that fail on purpose, which the tests of the engine share, need from their surroundings.

use std::process::Output;

use crate::*;

pub(crate) use crate::subject::options;

/// Runs a line of shell, which must succeed.
pub(crate) fn sh(dir: &Path, script: &str) -> Output {
    let output = Command::new("sh")
        .args(["-eu", "-c", script])
        .current_dir(dir)
        .output()
        .expect("sh starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    output
}
