//! How much is done: the bounded form of `make test`, or the long one of `make torture`.

use crate::sweep;
use crate::*;

/// How far a sweep goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// What fits into every run of the tests.
    Bounded,
    /// As far as the time goes that the sweep may take.
    Long(Duration),
}

impl Form {
    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::Long(_))
    }

    /// The same for one of so many parts, which share the time.
    pub(crate) fn part(self, parts: usize) -> Self {
        let parts = u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
        match self {
            Self::Bounded => Self::Bounded,
            Self::Long(time) => Self::Long(time / parts),
        }
    }

    /// When a sweep that begins now ends at the latest.
    pub(crate) fn until(self) -> Option<Instant> {
        match self {
            Self::Bounded => None,
            Self::Long(time) => Some(Instant::now() + time),
        }
    }

    /// Runs at most `bounded` of the points, evenly chosen; in the long form as many as there is time for.
    pub(crate) fn run(self, points: Vec<impl Trial>, bounded: usize) -> Figures {
        let planned = points.len();
        let points = match self {
            Self::Bounded => sweep::some(points, bounded),
            Self::Long(_) => sweep::spread(points),
        };
        let figures = sweep::points(&points, self.until());
        Figures { planned, ..figures }
    }

    /// Cuts the power at most so many times, evenly, first right after the end; in the long form at every call.
    pub(crate) fn cuts(
        self,
        calls: u64,
        bounded: usize,
        mut cut: impl FnMut(u64) -> (String, Verdict),
    ) -> Figures {
        let all: Vec<u64> = (1..=calls).collect();
        let planned = all.len() + 1;
        let mut chosen = match self {
            Self::Bounded => sweep::thin(&all, bounded),
            Self::Long(_) => sweep::spread(all),
        };
        // Well beyond the last call, which is not always the same.
        chosen.insert(0, calls + 100);
        let figures = sweep::each_here(&chosen, self.until(), |n| cut(*n));
        Figures { planned, ..figures }
    }
}
