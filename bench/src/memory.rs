//! How much memory the engine takes for a large tree: measured in a process of its own, which does only that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use escrow::event::Unobserved;
use escrow::fs::Dir;
use escrow::fs::content::Reflinks;
use escrow::fs::copy::copy_tree;
use escrow::fs::manifest::Manifest;

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
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .expect("the kernel tells the peak");
    print(&format!("{} {peak}", manifest.len()));
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
