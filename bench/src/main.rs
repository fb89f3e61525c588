//! Whole operations of Escrow, measured beside the tools people use today.
//!
//! `cargo run --release -p escrow-bench` measures everything and writes `docs/benchmarks.md`; with `-- --quick` it takes
//! smaller trees and fewer rounds, and only prints.
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
        [] => run(false),
        ["--quick"] => run(true),
        [memory::COPY, from, to, manifest] => {
            memory::copy(Path::new(from), Path::new(to), Path::new(manifest));
        }
        [memory::LOAD, manifest] => memory::load(Path::new(manifest)),
        _ => panic!("the only option is --quick"),
    }
}

fn run(quick: bool) {
    let bench = Bench::new(quick);
    let mut report = Report::new(machine::describe(&bench.ground()), quick);
    for section in figures::ALL {
        report.add(section(&bench));
    }
    let text = report.finish();
    if quick {
        print("Not written to docs/benchmarks.md: this was the quick form.");
        return;
    }
    std::fs::write(PAGE, text).unwrap_or_else(|error| panic!("cannot write {PAGE}: {error}"));
}
