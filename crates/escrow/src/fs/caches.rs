//! Caches of tools on disk: one directory for each project and tool, with a lock and the layer over the real cache.
//!
//! ```text
//! $ESCROW_HOME/caches/<project>/<tool>/lock    who has it; when it was measured
//!                                      upper/  what was downloaded
//!                                      work/   the kernel's own
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::state_dir::{self, Lock, room};
use super::{Dir, Result, Stamp, layering, remove, usage};
use crate::model::view::Layers;

/// Where they lie in the state directory.
const PLACE: &[u8] = b"caches";

/// The lock of a cache, and when it was measured.
const LOCK: &[u8] = b"lock";

/// Where the layer is.
const UPPER: &[u8] = b"upper";

/// A cache that takes more than this is begun anew.
const MOST: u64 = 5 << 30;

/// After so many seconds a cache is measured again.
const MEASURED: i64 = 24 * 60 * 60;

/// A cache that is on disk.
#[derive(Debug, Clone)]
pub struct StoredCache {
    /// Where it is.
    pub path: PathBuf,
    /// When a command began last that had it.
    pub used: Stamp,
}

/// Whether there is a directory of this user at a path, without a link on the way: that would lead elsewhere.
pub fn is_own_dir(at: &Path) -> bool {
    let own = |meta: super::meta::Meta| meta.uid == rustix::process::geteuid().as_raw();
    let real = Dir::open(at).and_then(|dir| dir.meta());
    real.is_ok_and(own) && state_dir::canonical(at).is_ok_and(|real| real == at)
}

/// Takes the cache of a tool over the real one at `at`; `None` where another namespace has it.
pub fn take(
    home: &Dir,
    (project, tool): (&str, &str),
    at: &Path,
    now: i64,
) -> Result<Option<(Layers, Lock)>> {
    let all = room(home, PLACE)?;
    let area = room(&room(&all, project.as_bytes())?, tool.as_bytes())?;
    let Some(lock) = Lock::take(&area, LOCK, false, Duration::ZERO)? else {
        return Ok(None);
    };
    // Measuring looks at every file, so it is not done each time.
    let noted = Lock::noted(&area, LOCK)?.trim().parse().ok();
    let measured = match noted {
        Some(measured) if now - measured < MEASURED => measured,
        _ => {
            if usage::measure(&area, UPPER)?.private > MOST {
                remove::remove(&area, UPPER)?;
            }
            now
        }
    };
    // Writing on it says when it was used.
    lock.note(&format!("{measured}\n"))?;
    Ok(Some((layering::over_cache(&area, at)?, lock)))
}

/// Every cache that is on disk.
pub fn stored(home: &Dir) -> Result<Vec<StoredCache>> {
    let dirs = |dir: &Dir| -> Result<Vec<Dir>> {
        let entries = dir.entries()?.into_iter();
        let dirs = entries.filter(|entry| entry.meta.is_dir());
        dirs.map(|entry| dir.subdir(&entry.name)).collect()
    };
    let all = match home.subdir(PLACE) {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        all => all?,
    };
    let mut found = Vec::new();
    for project in dirs(&all)? {
        for cache in dirs(&project)? {
            let lock = cache.stat(LOCK)?;
            found.push(StoredCache {
                path: cache.path().to_owned(),
                used: lock.unwrap_or(cache.meta()?).mtime,
            });
        }
    }
    Ok(found)
}

/// The bytes that a cache takes on disk.
pub fn measured(path: &Path) -> u64 {
    let measured = Dir::open(path).and_then(|dir| usage::measure(&dir, UPPER));
    measured.unwrap_or_default().private
}

/// Removes a cache; says whether it could: not where a namespace has it.
pub fn remove_cache(home: &Dir, path: &Path) -> Result<bool> {
    let Some((parent, name)) = path.parent().zip(path.file_name()) else {
        return Ok(false);
    };
    let (project, name) = (Dir::open(parent)?, name.as_encoded_bytes());
    let area = project.subdir(name)?;
    let Some(_lock) = Lock::take(&area, LOCK, false, Duration::ZERO)? else {
        return Ok(false);
    };
    remove::remove(&project, name)?;
    // With its last cache a project goes.
    let project = parent.file_name().unwrap_or_default();
    match home
        .subdir(PLACE)
        .and_then(|all| all.remove_dir(project.as_encoded_bytes()))
    {
        Ok(()) | Err(_) => Ok(true),
    }
}
