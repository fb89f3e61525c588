//! How much memory the engine takes for a large tree: measured in a process of its own, which does only that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use escrow::event::Unobserved;
use escrow::internals::fs::Dir;
use escrow::internals::fs::content::Reflinks;
use escrow::internals::fs::copy::copy_tree;
use escrow::internals::fs::manifest::Manifest;

use crate::bench::own_binary;
use crate::report::print;

/// The hidden command that copies a tree and writes its manifest.
pub(crate) const COPY: &str = "memory-copy";
/// The hidden command that only loads a manifest.
pub(crate) const LOAD: &str = "memory-load";

/// Copies `from` into the empty directory `to`; prints entries and peak memory.
pub(crate) fn copy(from: &Path, to: &Path, manifest: &Path) {
    let open = |path| Dir::open(path).unwrap_or_else(|error| panic!("{error}"));
    let (made, _) = copy_tree(&open(from), &open(to), Reflinks::never(), &[], &Unobserved)
        .unwrap_or_else(|error| panic!("{error}: {}", error.cause));
    let file = File::create(manifest).expect("the world can be written to");
    let mut file = BufWriter::new(file);
    made.write(&mut file)
        .and_then(|()| file.flush())
        .expect("a manifest can be written");
    tell(&made);
}

/// Loads a manifest; prints entries and peak memory.
pub(crate) fn load(manifest: &Path) {
    let file = File::open(manifest).expect("the manifest was written before");
    let manifest = Manifest::read(&file).expect("the manifest is whole");
    tell(&manifest);
}

fn tell(manifest: &Manifest) {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let peak = peak_in(&status).expect("the kernel tells the peak");
    print(&format!("{} {peak}", manifest.len()));
}

/// The most memory that a process ever had, in KiB; one that has ended says nothing.
fn peak_in(status: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a command took.
pub(crate) struct Spent {
    /// From start to end.
    pub(crate) time: Duration,
    /// The most memory it ever had.
    pub(crate) mib: f64,
}

/// Runs a command, which must succeed, and looks at its peak until it ends.
pub(crate) fn spend(command: &mut Command) -> Spent {
    const OFTEN: Duration = Duration::from_millis(2);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let (path, mut peak) = (format!("/proc/{}/status", child.id()), 0);
    let status = loop {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        peak = peak_in(&status).unwrap_or(0).max(peak);
        match child.try_wait().expect("it is our child") {
            Some(status) => break status,
            None => std::thread::sleep(OFTEN),
        }
    };
    let time = start.elapsed();
    assert!(status.success(), "{command:?} ended with {status}");
    Spent {
        time,
        mib: f64::from(peak) / 1024.0,
    }
}

/// What a measured process said of itself.
pub(crate) struct Peak {
    /// Entries of its manifest.
    pub(crate) entries: usize,
    /// The most memory it ever had.
    pub(crate) mib: f64,
}

/// Runs this program again with a hidden command.
pub(crate) fn peak_of(word: &str, paths: &[&Path]) -> Peak {
    let mut child = Command::new(own_binary());
    let output = child
        .arg(word)
        .args(paths)
        .output()
        .expect("this program runs, so it runs again");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{word} failed: {stderr}");
    let mut numbers = stdout.split_whitespace().map(|word| {
        word.parse::<u32>()
            .unwrap_or_else(|_| panic!("{word:?} is no number"))
    });
    let mut next = || numbers.next().expect("it prints two numbers");
    Peak {
        entries: next() as usize,
        mib: f64::from(next()) / 1024.0,
    }
}
