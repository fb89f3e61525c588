//! What is measured. Each function makes what it needs; the world takes all of it away at the end.

mod commit;
mod copy;
mod diff;
mod end;
mod memory;
mod overlay;
mod run;

use crate::bench::Bench;
use crate::report::Section;

/// A kind of figures.
pub(crate) type Figures = fn(&Bench) -> Section;

/// All of them, in the order of the report.
pub(crate) const ALL: [Figures; 8] = [
    copy::figures,
    overlay::figures,
    diff::unchanged,
    diff::changed,
    commit::figures,
    run::figures,
    memory::figures,
    end::figures,
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
