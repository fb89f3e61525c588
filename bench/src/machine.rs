//! What kind of machine this is, without saying which one.

use std::path::Path;
use std::process::Command;

/// Cores, kernel, file system, user and day, as a paragraph.
pub(crate) fn describe(ground: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    // Numbers only: what follows them names the process that built it.
    let kernel = kernel.split('-').next().unwrap_or_default();
    let user = match escrow_testkit::skip::is_root() {
        true => "root",
        false => "an ordinary user",
    };
    format!(
        "Machine: {cores} cores, Linux {kernel}, {ground}, as {user}, {}.\n",
        said("date", &["-u", "+%Y-%m-%d"]),
    )
}

/// The kind of file system at `path`.
pub(crate) fn file_system(path: &Path) -> String {
    let path = path.to_str().expect("the harness chose a plain path");
    let name = said("stat", &["--file-system", "--format=%T", "--", path]);
    match name.as_str() {
        // All three have one magic number; today it is the last.
        "ext2/ext3" => "ext4".to_owned(),
        _ => name,
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The load of the last minute.
pub(crate) fn load() -> String {
    let load = read("/proc/loadavg");
    load.split(' ').next().unwrap_or_default().to_owned()
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().to_owned()
}
