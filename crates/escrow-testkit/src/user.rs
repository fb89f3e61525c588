//! The ordinary user of the tests: a numeric id without an entry in passwd, and everything again as that user.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;
use crate::skip::{is_root, record};
use crate::world::World;

/// The test user's id.
pub const UID: u32 = 54321;
/// The test user's group.
pub const GID: u32 = 54321;
/// Where [`rerun_test_as_user_with`] has put the binaries under test.
pub(crate) const BINARIES: &str = "ESCROW_TEST_BIN_DIR";

/// A command that runs `program` as the test user, with no groups and a `HOME` in which nothing can be made.
///
/// Only root can start it. When it is started by the test user already (see [`rerun_test_as_user`]), or by any other
/// ordinary user, `program` is run as it is.
pub fn as_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={UID}"))
            .arg(format!("--regid={GID}"))
            .arg("--clear-groups")
            .arg("--");
        command.arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env("HOME", "/nonexistent");
    command
}

/// Whether this process is a test that [`rerun_test_as_user`] has started.
pub fn is_rerun() -> bool {
    std::env::var_os("ESCROW_TEST_AS_USER").is_some_and(|value| value == "1")
}

/// Runs the named test (its full path, as `--exact` wants it) of this test binary again as the test user.
///
/// Does nothing for an ordinary user: there, the test is already run by one. So a test begins with
/// `rerun_test_as_user("name");` and goes on with what holds for both.
///
/// # Panics
/// Unless exactly this one test has run and passed; with everything it wrote.
pub fn rerun_test_as_user(test_name: &str) {
    rerun_test_as_user_with(test_name, &[]);
}

/// [`rerun_test_as_user_with`] for the running test, which is named by its thread, or by `--exact`.
pub fn rerun_as_user(binaries: &[&Path]) {
    let thread = std::thread::current();
    let named = || {
        let mut args = std::env::args().skip(1).collect::<Vec<_>>();
        let exact = args.iter().any(|arg| arg == "--exact");
        args.retain(|arg| !arg.starts_with('-'));
        args.first().cloned().filter(|_| exact)
    };
    let name = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => named().expect("with one thread for all tests, name the test: --exact NAME"),
    };
    rerun_test_as_user_with(&name, binaries);
}

/// [`rerun_test_as_user`], with copies of `binaries` where that user can run them; `Cli::new` finds them by file name.
pub fn rerun_test_as_user_with(test_name: &str, binaries: &[&Path]) {
    if !is_root() {
        return;
    }
    // Beside the build, or near it: executables are large, and a second name costs nothing.
    let world = World::on_disk();
    let exe = std::env::current_exe().expect("a test knows its own executable");
    let copy = copy_executable(&exe, &world.dir("test"));
    let bin = world.dir("bin");
    for binary in binaries {
        copy_executable(binary, &bin);
    }
    let tmp = World::new();
    let private = tmp.dir("t");
    tmp.chown_to_user();
    let mut command = as_user(copy);
    command.args(["--exact", test_name, "--nocapture", "--test-threads=1"]);
    command
        .current_dir(&private)
        .env("TMPDIR", &private)
        .env("HOME", &private)
        .env(BINARIES, &bin);
    // The log may be out of that user's reach: its skips are entered below.
    command
        .env("ESCROW_TEST_AS_USER", "1")
        .env_remove("ESCROW_SKIP_LOG");
    let output = process::run(command, b"");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    for line in stderr.lines().filter(|line| line.starts_with("SKIPPED: ")) {
        record(&format!("{line} (as the test user, in {test_name})"));
    }
    assert!(
        output.status.success() && stdout.contains(" 1 passed;"),
        "{test_name} failed as user {UID}: {}\nstderr: {stderr}\nstdout: {stdout}",
        output.status,
    );
}

/// Puts an executable into `dir`, for everyone to run: a second name of the same file, or a copy on another file system.
pub(crate) fn copy_executable(from: &Path, dir: &Path) -> PathBuf {
    let name: OsString = from
        .file_name()
        .unwrap_or_else(|| panic!("{} names no file", from.display()))
        .to_owned();
    let to = dir.join(name);
    // Debug builds are large, and several hundred tests do this.
    let real = from.canonicalize().unwrap_or_else(|_| from.to_owned());
    let open_to_all = real
        .metadata()
        .is_ok_and(|meta| meta.permissions().mode() & 0o555 == 0o555);
    if open_to_all && std::fs::hard_link(&real, &to).is_ok() {
        return to;
    }
    // By a child: a fork of another test would inherit a file that this process has open for writing, and running it
    // would fail with "Text file busy".
    let status = Command::new("install")
        .args(["-m", "0755", "--"])
        .args([from, &to])
        .status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "cannot copy {} to {}: {status:?}",
        from.display(),
        to.display()
    );
    to
}
