//! Skipping in the open: a test that cannot run says so, is counted, and fails in CI.

use std::fs::OpenOptions;
use std::io::Write;

/// Records that the running test cannot run here.
///
/// Writes `SKIPPED: <test>: <reason>` to the real standard error (past libtest's capture), and appends the same line
/// to the file that `ESCROW_SKIP_LOG` names.
///
/// # Panics
/// When `CI` is `true`: there, a skip is a failure. Also when the skip log cannot be written.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    record(&format!("SKIPPED: {test}: {reason}"));
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        panic!("a skip is a failure in CI: {test}: {reason}");
    }
}

/// Shows one line and adds it to the skip log.
pub(crate) fn record(line: &str) {
    let line = format!("{line}\n");
    // Nothing can be said about a closed standard error.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("ESCROW_SKIP_LOG") {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&log)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| {
                panic!("cannot append to the skip log {}: {error}", log.display())
            });
    }
}

/// Whether this process has the effective user id 0.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What a test cannot go on without: whether it is there, or the thing itself.
pub trait Needed {
    /// The thing.
    type Thing;
    /// None where it is not there.
    fn thing(self) -> Option<Self::Thing>;
}

impl Needed for bool {
    type Thing = ();
    fn thing(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Needed for Option<T> {
    type Thing = T;
    fn thing(self) -> Self {
        self
    }
}

/// What is needed, or the end of the test, which has said what is missing: `need!(require_root("mounts"));`.
#[macro_export]
macro_rules! need {
    ($what:expr) => {
        match $crate::skip::Needed::thing($what) {
            Some(thing) => thing,
            None => return,
        }
    };
}

/// True for root; otherwise records the skip and returns false.
pub fn require_root(why: &str) -> bool {
    if is_root() {
        return true;
    }
    skip(&format!("needs root: {why}"));
    false
}
