//! What is measured. Each function makes what it needs; the world takes all of it away at the end.

mod commit;
mod copy;
mod diff;
mod end;
mod git;
mod large;
mod lookup;
mod many;
mod memory;
mod overlay;
mod postgres;
mod run;
mod sqlite;

use crate::bench::Bench;
use crate::report::Section;

/// A kind of figures.
pub(crate) type Figures = fn(&Bench) -> Section;

/// All of them with their names, in the order of the report.
pub(crate) const ALL: [(&str, Figures); 14] = [
    ("copy", copy::figures),
    ("overlay", overlay::figures),
    ("unchanged", diff::unchanged),
    ("changed", diff::changed),
    ("commit", commit::figures),
    ("git", git::figures),
    ("sqlite", sqlite::figures),
    ("postgres", postgres::figures),
    ("run", run::figures),
    ("lookup", lookup::figures),
    ("many", many::figures),
    ("memory", memory::figures),
    ("large", large::figures),
    ("end", end::figures),
];

/// The smaller tree.
pub(crate) const SMALL: usize = 10_000;

/// The larger one.
pub(crate) const LARGE: usize = 100_000;

/// The sizes that times are taken at.
pub(crate) fn sizes(bench: &Bench) -> &'static [usize] {
    match bench.quick {
        true => &[SMALL],
        false => &[SMALL, LARGE],
    }
}
