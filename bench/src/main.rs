//! Whole operations of Escrow, measured beside the tools people use today.
//!
//! `cargo run --release -p escrow-bench` measures everything and writes `docs/benchmarks.md`; with `-- --quick` it takes
//! smaller trees and fewer rounds, and only prints. Names of sections (`-- many`) measure those alone, and only print.
//!
//! Promise: every time is taken beside another one, in turns, in the same run; what comes out worse than its goal is
//! written down as such.

mod bench;
mod changes;
mod figures;
mod machine;
mod measure;
mod memory;
mod report;
mod tree;

use std::path::Path;

use bench::Bench;
use report::{Report, print};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        [memory::COPY, from, to, manifest] => {
            memory::copy(Path::new(from), Path::new(to), Path::new(manifest));
        }
        [memory::LOAD, manifest] => memory::load(Path::new(manifest)),
        ["--quick", names @ ..] => run(true, names),
        names => run(false, names),
    }
}

/// Measures the sections of these names, or all of them.
fn run(quick: bool, names: &[&str]) {
    let known = figures::ALL.map(|(name, _)| name);
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        panic!(
            "there is no section '{unknown}'; the only option is --quick, the sections are {known:?}"
        );
    }
    let bench = Bench::new(quick);
    let mut report = Report::new(machine::describe(&bench.ground()), quick);
    for (name, section) in figures::ALL {
        if names.is_empty() || names.contains(&name) {
            report.add(section(&bench));
        }
    }
    let text = report.finish();
    if quick || !names.is_empty() {
        print("Not written to docs/benchmarks.md: this was not all of it.");
        return;
    }
    std::fs::write(PAGE, text).unwrap_or_else(|error| panic!("cannot write {PAGE}: {error}"));
}
