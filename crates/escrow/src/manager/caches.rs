//! Caches of tools: what package managers download stays for the next command of the project, in layers of Escrow's own
//! over the real caches. Those are read, and never written.
//!
//! One namespace has a cache at a time; another one of the same project does without. A validation has none.

use std::path::Path;
use std::time::Duration;

use super::sessions::NamespaceEntry;
use super::{Manager, SandboxView};
use crate::error::{Result, chain};
use crate::fs::caches::{self, StoredCache};
use crate::model::text::Location;
use crate::model::{CachePolicy, Shape};
use crate::run::RunSpec;
use crate::run::spec::CacheLayer;
use crate::store::Plan;

/// The directory of the caches that all projects share.
const SHARED: &str = "shared";

/// How long a cache stays that no command uses.
pub(super) const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A cache of a tool.
struct ToolCache {
    name: &'static str,
    /// Where it is, in the home directory.
    path: &'static str,
    /// Whether the tool compares what it takes out with a hash: only then may other projects have put it in.
    verified: bool,
}

const fn cache(name: &'static str, path: &'static str, verified: bool) -> ToolCache {
    ToolCache {
        name,
        path,
        verified,
    }
}

/// Those that are known.
const KNOWN: &[ToolCache] = &[
    cache("npm", ".npm/_cacache", true),
    cache("pnpm", ".local/share/pnpm/store", true),
    cache("yarn", ".cache/yarn", false),
    cache("pip", ".cache/pip", false),
    cache("uv", ".cache/uv", false),
    cache("cargo-registry", ".cargo/registry", false),
    cache("cargo-git", ".cargo/git", false),
    cache("go", "go/pkg/mod", false),
    cache("maven", ".m2/repository", false),
    cache("gradle", ".gradle/caches", false),
];

impl Manager {
    /// Gives the namespace that is about to be built the caches that the home directory has, and that no other one has now.
    pub(super) fn take_caches(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        spec: &mut RunSpec,
        entry: &mut NamespaceEntry,
    ) -> Result<()> {
        let policy = self.settings_of(plan)?.run.caches.unwrap_or_default();
        let home = spec.scratch.as_ref().map(|(home, _)| home.clone());
        let home = home.filter(|_| spec.look.scratch && policy != CachePolicy::None);
        let (Some(home), Some(_)) = (home, entry.build()) else {
            return Ok(());
        };
        let (project, now) = (project_of(plan, views), self.options.origin.now());
        for known in KNOWN {
            let at = home.as_path().join(known.path);
            let apart = |other: &Location| {
                !other.as_path().starts_with(&at) && !at.starts_with(other.as_path())
            };
            let mut others = views.iter().map(|view| &view.resource.at);
            let links = spec.covered.links.iter().map(|link| &link.path);
            let paths = spec.covered.paths.iter().chain(links);
            let mut covered = paths.chain(&spec.look.writable);
            if !caches::is_own_dir(&at) || !others.all(apart) || !covered.all(apart) {
                continue;
            }
            let project = match policy == CachePolicy::Shared && known.verified {
                true => SHARED,
                false => &project,
            };
            match caches::take(&self.home, (project, known.name), &at, now.as_second()) {
                Ok(Some((layers, lock))) => spec.caches.push(CacheLayer {
                    at: Location::from(at),
                    layers,
                    lock: entry.hold(lock),
                }),
                Ok(None) => {}
                // The command can do without.
                Err(error) => {
                    let (name, why) = (known.name, chain(&error));
                    self.notice(format!("what {name} downloads is not kept: {why}"));
                }
            }
        }
        Ok(())
    }

    /// Every cache that is on disk.
    pub(super) fn stored_caches(&self) -> Result<Vec<StoredCache>> {
        Ok(caches::stored(&self.home)?)
    }

    /// How many caches of tools there are, and the bytes that they take on disk.
    pub fn caches_disk(&self) -> Result<(usize, u64)> {
        let all = self.stored_caches()?;
        let bytes = all.iter().map(|one| caches::measured(&one.path));
        Ok((all.len(), bytes.sum()))
    }

    /// Removes a cache; says whether it could: not where a command has it.
    pub(super) fn remove_cache(&self, path: &Path) -> Result<bool> {
        Ok(caches::remove_cache(&self.home, path)?)
    }
}

/// A name for the project of a plan: that of its first directory, and a few letters of what its whole path is.
fn project_of(plan: &Plan, views: &[SandboxView]) -> String {
    let trees = views
        .iter()
        .filter(|view| view.resource.shape == Shape::Tree);
    let first = trees.map(|view| &view.resource.at).next();
    let at = first.unwrap_or(&plan.directory);
    let name = at.as_path().file_name().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.to_string_lossy().chars().take(40).map(plain).collect();
    let hash = blake3::hash(at.as_bytes()).to_hex();
    format!("{name}-{}", &hash[..16])
}
