//! The conformance suite: the checks that define a strategy; every built-in, wrapper and plugin passes them.
//!
//! Each check gets a fresh [`Case`] from a [`Fixture`], one for each kind of resource, so that the
//! same promises are asked of a directory today and of a database later. Where strategies may
//! differ, the check asks their [`Capabilities`](super::Capabilities) and holds them to the
//! answer.
//! `escrow strategy check NAME` runs the same checks.

mod checkpoints;
mod checks;
mod database;
mod fixture_dir;
mod killed;
mod parts;
mod paths;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

pub use database::SqliteFixture;
pub use fixture_dir::FixtureDir;
pub use killed::{MOMENTS, run_killed};
pub use paths::{DirectoryFixture, FileFixture};

use super::{Access, Probe, Strategy, Target};
use crate::model::ResourcePath;

/// Where cases come from.
pub trait Fixture {
    /// A new original with an empty area beside it; both are gone when the case is dropped.
    fn fresh(&self) -> Result<Box<dyn Case>, String>;
}

/// One original, made for one check.
pub trait Case {
    /// The original.
    fn target(&self) -> Target;
    /// Where the original lies, with areas for strategies that need some.
    fn room(&self) -> Option<&FixtureDir> {
        None
    }
    /// An empty private directory for the sandbox.
    fn area(&self) -> Option<&Path> {
        self.room().map(FixtureDir::area)
    }
    /// What lies in that directory.
    fn area_entries(&self) -> Result<usize, String> {
        self.room().map_or(Ok(0), FixtureDir::area_entries)
    }
    /// Another empty private directory for a commit of it, on the file system of the original.
    fn commit_area(&self) -> Result<Option<PathBuf>, String> {
        self.room().map_or(Ok(None), FixtureDir::commit_area)
    }
    /// Removes every such directory, as is done when a commit is given up.
    fn clear_commit_areas(&self) -> Result<(), String> {
        self.room().map_or(Ok(()), FixtureDir::clear_commit_areas)
    }
    /// Something that is in the original, and its content.
    fn known(&self) -> (ResourcePath, Vec<u8>);
    /// Something that is not in it, and that could be written; `None` where there is room for one thing only.
    fn absent(&self) -> Option<ResourcePath>;
    /// The paths that writing `absent` creates on the way, outermost first.
    fn on_the_way(&self) -> Vec<ResourcePath> {
        Vec::new()
    }
    /// Paths that exist but cannot be read or written as content.
    fn obstacles(&self) -> Vec<ResourcePath> {
        Vec::new()
    }
    /// Paths that would lead out of the original if they were followed.
    fn ways_out(&self) -> Vec<ResourcePath> {
        Vec::new()
    }
    /// Everything about the original that a strategy must leave alone, as text.
    fn fingerprint(&self) -> Result<String, String>;
    /// What users see of the original beside content, entry by entry: what a commit changes and an undo
    /// brings back, unlike what no program can set.
    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String>;
    /// Everything that can be read in the original, with its content.
    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String>;
    /// Puts another original in the place of this one; says whether there can be such a thing.
    fn replace_original(&self) -> Result<bool, String>;
    /// Puts `content` at `path` in the original, as another program would.
    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Result<(), String>;
    /// Whether its sandboxes keep other programs from changing the original.
    fn is_locked(&self) -> bool {
        false
    }
    /// Works through what the strategy gave as a native tool would: puts `content` at `path`.
    fn work_through(
        &self,
        access: &Access,
        path: &ResourcePath,
        content: &[u8],
    ) -> Result<(), String>;
    /// These bytes as what an item holds; of a file they are its content.
    fn encode(&self, _path: &ResourcePath, content: &[u8]) -> Vec<u8> {
        content.to_vec()
    }
    /// The bytes in what an item holds.
    fn decode(&self, content: Vec<u8>) -> Result<Vec<u8>, String> {
        Ok(content)
    }
}

/// One promise, and how it was broken if it was.
#[derive(Debug)]
pub struct ConformanceCheck {
    /// The promise.
    pub name: &'static str,
    /// What is wrong; `None` if it was kept.
    pub problem: Option<String>,
}

/// How a strategy did.
#[derive(Debug)]
pub struct ConformanceReport {
    /// Its name.
    pub strategy: String,
    /// Every promise.
    pub checks: Vec<ConformanceCheck>,
}

impl ConformanceReport {
    /// The promises that were broken, as text; empty if none was.
    pub fn problems(&self) -> Vec<String> {
        let problem = |check: &ConformanceCheck| {
            let problem = check.problem.as_ref()?;
            Some(format!("{}: {}: {problem}", self.strategy, check.name))
        };
        self.checks.iter().filter_map(problem).collect()
    }
}

/// What a strategy says of a case: of one that does not work here nothing can be asked.
pub fn probe(strategy: &dyn Strategy, fixture: &dyn Fixture) -> Result<Probe, String> {
    let case = fixture
        .fresh()
        .map_err(|why| format!("could not set up a case: {why}"))?;
    Ok(strategy.probe(&case.target(), case.area()))
}

/// Asks every promise of a strategy. A panic breaks a promise too.
pub fn run(strategy: &dyn Strategy, fixture: &dyn Fixture) -> ConformanceReport {
    let one = |(name, check): &(&'static str, checks::CheckFn)| {
        let asked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let case = fixture
                .fresh()
                .map_err(|why| format!("could not set up a case: {why}"))?;
            check(strategy, &*case)
        }));
        let problem = match asked {
            Ok(answer) => answer.err(),
            Err(_) => Some("it panicked".to_owned()),
        };
        ConformanceCheck { name, problem }
    };
    ConformanceReport {
        strategy: strategy.name().to_owned(),
        checks: checks::ALL.iter().map(one).collect(),
    }
}
