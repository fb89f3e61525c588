//! Hunks of a text file: some of them can be released, and the others stay in the sandbox.

use std::collections::BTreeSet;
use std::ops::Range;

/// Larger texts are neither merged nor released by hunks.
pub const LARGEST_TEXT: u64 = 1 << 20;
/// Texts of more lines neither: comparing them could take long.
const MOST_LINES: usize = 20_000;

/// Whether these bytes are a text of which lines can be chosen.
pub fn is_divisible(text: &[u8]) -> bool {
    let lines = text.split(|byte| *byte == b'\n').count();
    text.len() as u64 <= LARGEST_TEXT && lines <= MOST_LINES && !text.contains(&0)
}

/// The lines of a text, each with its end: a line feed and nothing else, as for every tool that reads patches.
pub fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// The lines of the original that a hunk replaces, and those of the sandbox that it puts there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HunkRange {
    /// Of the original's version.
    pub old: Range<usize>,
    /// Of the sandbox's.
    pub new: Range<usize>,
}

/// Hunks that are to be released, bound to the two versions that they were chosen from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenHunks {
    from: [blake3::Hash; 2],
    hunks: Vec<HunkRange>,
}

impl ChosenHunks {
    /// Some hunks between these versions, in their order.
    pub fn new(old: &[u8], new: &[u8], hunks: Vec<HunkRange>) -> Self {
        let from = [blake3::hash(old), blake3::hash(new)];
        Self { from, hunks }
    }

    /// Those of them with these numbers.
    pub fn only(&self, numbers: &BTreeSet<usize>) -> Self {
        let all = self.hunks.iter().enumerate();
        let chosen = all.filter(|(number, _)| numbers.contains(number));
        Self {
            from: self.from,
            hunks: chosen.map(|(_, hunk)| hunk.clone()).collect(),
        }
    }

    /// The original's version with the hunks that were chosen; `None` where either version is not what they were chosen from.
    pub fn applied(&self, old: &[u8], new: &[u8]) -> Option<Vec<u8>> {
        if self.from != [blake3::hash(old), blake3::hash(new)] {
            return None;
        }
        let (old, new) = (lines(old), lines(new));
        let (mut text, mut at) = (Vec::new(), 0);
        for hunk in &self.hunks {
            text.extend(old.get(at..hunk.old.start)?.concat());
            text.extend(new.get(hunk.new.clone())?.concat());
            at = hunk.old.end;
        }
        text.extend(old.get(at..)?.concat());
        Some(text)
    }
}
