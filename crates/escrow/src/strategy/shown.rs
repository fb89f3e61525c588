//! What is committed is what was shown, also where something outside may still write files of the sandbox.
//!
//! Such a sandbox has a mark ([`exposure`]). A diff of it leaves a record of every change it showed, by a digest
//! of metadata and contents. A commit makes the same digests, refuses where they differ from the record, and
//! stages only what has the digest that it has just made. The record goes with whatever changes the sandbox
//! through the engine.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree;
use super::tree_commit::Versions;
use crate::fs::exposure::{self, SHOWN};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, Meta};
use crate::model::{Change, Conflict, EntryKind, ResourcePath};
use crate::seeded;

/// One version of an entry, in short: equal prints, equal versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Print {
    /// Of its metadata, and the target of a link.
    looks: String,
    /// Of the bytes of a file; `None` where its own user may not read them.
    pub(super) content: Option<String>,
}

/// Every changed path, and the sandbox's version of it; `None` where it has none.
#[derive(Debug, Clone, Default)]
pub struct Prints(BTreeMap<ResourcePath, Option<Print>>);

impl Prints {
    /// The version at a path, if there is one.
    pub(super) fn get(&self, path: &ResourcePath) -> Option<&Print> {
        self.0.get(path)?.as_ref()
    }
}

/// A sandbox that is looked at.
pub(super) struct Looked<'a> {
    pub(super) area: &'a Dir,
    pub(super) root: &'a dyn Versions,
    /// The attributes of an entry as its user sees them.
    pub(super) visible: fn(Xattrs) -> Xattrs,
}

/// Whether something outside may still write files of the sandbox in this area.
pub(super) fn is_exposed(area: &Dir) -> Result<bool> {
    Ok(!seeded::bug("exposed-files-linked") && exposure::is_exposed(area)?)
}

impl Looked<'_> {
    /// Records what is about to be shown, where another process may change it afterwards.
    pub(super) fn record(&self, changes: &[Change]) -> Result<()> {
        // Where native tools were given the path, they are who changes it.
        match is_exposed(self.area)? && !exposure::is_given_out(self.area)? {
            true => write(self.area, &self.prints(changes)?),
            false => Ok(()),
        }
    }

    /// What would be committed, where another process may change it until then, and where that is not what
    /// was shown.
    pub(super) fn compare(&self, changes: &[Change]) -> Result<(Option<Prints>, Vec<Conflict>)> {
        if !is_exposed(self.area)? {
            return Ok((None, Vec::new()));
        }
        let now = self.prints(changes)?;
        let mut conflicts = Vec::new();
        let shown = read(self.area)?.filter(|_| !seeded::bug("shown-not-compared"));
        if let Some(mut shown) = shown {
            let mut differs: Vec<&ResourcePath> = Vec::new();
            for (path, print) in &now.0 {
                if shown.0.remove(path).as_ref() != Some(print) {
                    differs.push(path);
                }
            }
            differs.extend(shown.0.keys());
            for path in differs {
                let change = changes.iter().find(|change| change.path == *path);
                conflicts.push(Conflict {
                    path: path.clone(),
                    what: "the sandbox's own version changed since it was last shown, though no command was \
                        inside; look again with `escrow diff`"
                        .to_owned(),
                    ours: change.and_then(|change| change.new.clone()),
                    theirs: change.and_then(|change| change.old.clone()),
                });
            }
        }
        Ok((Some(now), conflicts))
    }

    fn prints(&self, changes: &[Change]) -> Result<Prints> {
        let print = |change: &Change| Ok((change.path.clone(), self.print(change)?));
        let prints: Result<_> = changes.iter().map(print).collect();
        Ok(Prints(prints?))
    }

    fn print(&self, change: &Change) -> Result<Option<Print>> {
        let path = &change.path;
        let meta = match change.new {
            Some(_) => self.root.meta(path)?,
            None => None,
        };
        let Some(meta) = meta else { return Ok(None) };
        if meta.is_dir() {
            let attributes = tree::xattrs_of(&self.root.dir(path)?)?;
            return Ok(Some(self.of(&meta, attributes, &[], None)));
        }
        let (dir, name) = self.root.parent(path)?;
        let target = match meta.kind {
            EntryKind::Symlink => dir.read_link(name)?,
            _ => Vec::new(),
        };
        let attributes = tree::xattrs_if_open(&dir, name)?.unwrap_or_default();
        let content = match meta.kind {
            EntryKind::File => content(&dir, name)?,
            _ => None,
        };
        Ok(Some(self.of(&meta, attributes, &target, content)))
    }

    /// The print of an entry with this metadata, attributes, target and content.
    pub(super) fn of(
        &self,
        meta: &Meta,
        attributes: Xattrs,
        target: &[u8],
        content: Option<String>,
    ) -> Print {
        let mut looks = blake3::Hasher::new();
        let size = match meta.kind {
            EntryKind::File => meta.size,
            _ => 0,
        };
        let word = meta.kind.word().as_bytes();
        let mode = meta.mode.to_le_bytes();
        let owner = [meta.uid.to_le_bytes(), meta.gid.to_le_bytes()].concat();
        let attributes = xattr::digest(&(self.visible)(attributes));
        for part in [
            word,
            &mode,
            &owner,
            &size.to_le_bytes(),
            &attributes,
            target,
        ] {
            looks.update(&(part.len() as u64).to_le_bytes());
            looks.update(part);
        }
        Print {
            looks: looks.finalize().to_hex().to_string(),
            content,
        }
    }
}

/// The digest of the bytes of a file; `None` where this user may not read it.
pub(super) fn content(dir: &Dir, name: &[u8]) -> Result<Option<String>> {
    let (mut file, _) = match dir.file(name) {
        Err(error) if error.is(Errno::ACCESS) => return Ok(None),
        file => file?,
    };
    let mut hasher = blake3::Hasher::new();
    match std::io::copy(&mut file, &mut hasher) {
        Ok(_) => Ok(Some(hasher.finalize().to_hex().to_string())),
        Err(error) => Err(failed(dir, "read", name, &error)),
    }
}

fn failed(dir: &Dir, action: &'static str, name: &[u8], error: &std::io::Error) -> StrategyError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    dir.error(action, name, Cause::Os(errno)).into()
}

/// Like the mark, the record is of no use after the next boot, and is not synced.
fn write(area: &Dir, prints: &Prints) -> Result<()> {
    let all: Vec<(&ResourcePath, &Option<Print>)> = prints.0.iter().collect();
    let text = serde_json::to_vec(&all).expect("paths and digests are JSON");
    // Several may look at once; each puts a whole record in place.
    let draft = format!("shown-{}", uuid::Uuid::now_v7().simple()).into_bytes();
    let mut file = area.create(&draft, 0o600)?;
    let written = file.write_all(&text);
    let put = match written {
        Ok(()) => area
            .rename(&draft, area, SHOWN)
            .map_err(StrategyError::from),
        Err(error) => Err(failed(area, "write", &draft, &error)),
    };
    match put {
        Ok(()) => Ok(()),
        // The first error is the one to tell; what stays goes with the area.
        Err(error) => match area.unlink(&draft) {
            Ok(()) | Err(_) => Err(error),
        },
    }
}

/// What was shown last; `None` where nothing was since the sandbox changed.
fn read(area: &Dir) -> Result<Option<Prints>> {
    let (mut file, _) = match area.file(SHOWN) {
        Err(error) if error.is_absent() => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    let read = file.read_to_end(&mut text);
    read.map_err(|error| failed(area, "read", SHOWN, &error))?;
    let all: Vec<(ResourcePath, Option<Print>)> =
        serde_json::from_slice(&text).map_err(|error| StrategyError::Damaged {
            what: format!("the record of what was shown cannot be read ({error})"),
        })?;
    Ok(Some(Prints(all.into_iter().collect())))
}
