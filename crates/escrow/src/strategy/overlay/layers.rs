//! The two layers of an overlay, read and written as the kernel reads and writes them, without a
//! mount.
//!
//! What stands in the upper layer hides what stands in the lower one, except that directories
//! merge. A *whiteout* (a character device 0:0, or an empty file with the attribute
//! `user.overlay.whiteout`) hides a name; an *opaque* directory (`user.overlay.opaque` = `y`)
//! merges with nothing. `redirect` and `metacopy` marks are refused, never followed: sandboxes
//! are mounted with `userxattr`, where the kernel makes none and refuses them too.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use crate::fs::xattr::{self, Digest, Xattrs};
use crate::fs::{Cause, Dir, Handle, Meta, remove};
use crate::model::{EntryKind, Field, ResourcePath};

const WHITEOUT: &str = "user.overlay.whiteout";
const OPAQUE: &str = "user.overlay.opaque";
/// Marks that would lead elsewhere.
const REFUSED: [&str; 2] = ["user.overlay.redirect", "user.overlay.metacopy"];
/// A user's own attributes of these names are stored with the prefix doubled.
const ESCAPED: &[u8] = b"user.overlay.overlay.";
const OWN: &[u8] = b"user.overlay.";
/// What another, privileged kind of overlay would use; no user's data either.
const FOREIGN: &[u8] = b"trusted.overlay.";

/// What an entry of the upper layer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It is what it looks like.
    Plain,
    /// The name does not exist, whatever the lower layer has.
    Whiteout,
    /// A directory that hides the lower one of its name.
    Opaque,
}

/// How we made a directory of the upper layer that stands for one of the original. Remembered on
/// the directory itself, under a name that the kernel hides: it, and not the live original, says
/// whether the sandbox changed the directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Looks {
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) xattrs: Digest,
}

const LOOKS: &[u8] = b"user.overlay.escrow";

impl Looks {
    /// How a directory looks now.
    pub(super) fn of(dir: &Dir) -> Result<Self> {
        let meta = dir.meta()?;
        let attributes = xattr::read(&Handle::of(dir))
            .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
        Ok(Self {
            mode: meta.mode,
            owner: (meta.uid, meta.gid),
            xattrs: xattr::digest(&visible(attributes)),
        })
    }

    /// Writes them down on the directory.
    pub(super) fn remember(&self, dir: &Dir) -> Result<()> {
        let text = serde_json::to_vec(self).expect("numbers are JSON");
        xattr::set(&Handle::of(dir), LOOKS, &text)
            .map_err(|errno| dir.error("mark", b"", Cause::Os(errno)).into())
    }

    /// What was written down; `None` on a directory that the kernel copied up, or that is new.
    pub(super) fn remembered(dir: &Dir) -> Result<Option<Self>> {
        let text = xattr::get(&Handle::of(dir), LOOKS)
            .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// In what `now` differs.
    pub(super) fn differences(&self, now: &Self) -> Vec<Field> {
        let fields = [
            (now.mode != self.mode, Field::Mode),
            (now.owner != self.owner, Field::Owner),
            (now.xattrs != self.xattrs, Field::Xattrs),
        ];
        let differing = fields.into_iter().filter(|(differs, _)| *differs);
        differing.map(|(_, field)| field).collect()
    }
}

/// What stands at `name` in the lower layer, as the kernel sees it: whiteouts count there too.
pub(super) fn lower_stat(dir: &Dir, name: &[u8]) -> Result<Option<Meta>> {
    match dir.stat(name)? {
        Some(meta) if is_hidden(dir, name, &meta)? => Ok(None),
        meta => Ok(meta),
    }
}

/// Whether an entry of the lower layer is a whiteout.
pub(super) fn is_hidden(dir: &Dir, name: &[u8], meta: &Meta) -> Result<bool> {
    if !meta.is_file() || meta.size > 0 {
        return Ok(meta.is_whiteout());
    }
    let mark = xattr::get(&dir.handle(name)?, WHITEOUT.as_bytes());
    match mark {
        Err(Errno::ACCESS) => Ok(false),
        mark => Ok(mark
            .map_err(|errno| dir.error("read the attributes of", name, Cause::Os(errno)))?
            .is_some()),
    }
}

/// What the marks on an entry of the upper layer mean.
pub(super) fn mark(dir: &Dir, name: &[u8], meta: &Meta, path: &ResourcePath) -> Result<Mark> {
    if meta.is_whiteout() {
        return Ok(Mark::Whiteout);
    }
    if !matches!(meta.kind, EntryKind::File | EntryKind::Directory) {
        // No other kind of entry can carry such an attribute.
        return Ok(Mark::Plain);
    }
    let handle = dir.handle(name)?;
    let get = |attribute: &str| match xattr::get(&handle, attribute.as_bytes()) {
        // Closed to its own user, so it cannot be looked into either; what is in it counts as
        // changed.
        Err(Errno::ACCESS) => Ok(None),
        answer => {
            answer.map_err(|errno| dir.error("read the attributes of", name, Cause::Os(errno)))
        }
    };
    for refused in REFUSED {
        if get(refused)?.is_some() {
            return Err(StrategyError::ForgedMark {
                path: path.clone(),
                mark: refused,
            });
        }
    }
    match meta.kind {
        EntryKind::File if meta.size == 0 && get(WHITEOUT)?.is_some() => Ok(Mark::Whiteout),
        EntryKind::Directory if get(OPAQUE)?.as_deref() == Some(b"y") => Ok(Mark::Opaque),
        _ => Ok(Mark::Plain),
    }
}

/// The attributes of an entry of either layer as they are seen through the overlay.
pub(super) fn visible(attributes: Xattrs) -> Xattrs {
    let mut seen: Xattrs = attributes
        .into_iter()
        .filter_map(|(name, value)| {
            if let Some(rest) = name.strip_prefix(ESCAPED) {
                return Some(([OWN, rest].concat(), value));
            }
            let hidden = name.starts_with(OWN) || name.starts_with(FOREIGN);
            (!hidden).then_some((name, value))
        })
        .collect();
    seen.sort_unstable();
    seen
}

/// The same, on their way into the upper layer.
pub(super) fn stored(attributes: Xattrs) -> Xattrs {
    let store = |(name, value): (Vec<u8>, Vec<u8>)| match name.strip_prefix(OWN) {
        Some(rest) => ([ESCAPED, rest].concat(), value),
        None => (name, value),
    };
    visible(attributes).into_iter().map(store).collect()
}

/// Where a path is found.
pub(super) enum Found {
    /// Nowhere.
    Nothing,
    /// In the upper layer, in this directory.
    Upper(Dir, Meta),
    /// In the lower layer, in this directory.
    Lower(Dir, Meta),
}

/// A directory as the overlay shows it: from one layer or from both.
pub(super) struct Merged {
    upper: Option<Dir>,
    lower: Option<Dir>,
}

impl Merged {
    /// The root of the overlay.
    pub(super) fn root(upper: &Dir, lower: &Dir) -> Result<Self> {
        Ok(Self {
            upper: Some(upper.again()?),
            lower: Some(lower.again()?),
        })
    }

    /// What stands at `name`, and how it is marked.
    fn look(&self, name: &[u8], path: &ResourcePath) -> Result<(Found, Mark)> {
        if let Some(upper) = &self.upper
            && let Some(meta) = upper.stat(name)?
        {
            let mark = mark(upper, name, &meta, path)?;
            return Ok(match mark {
                Mark::Whiteout => (Found::Nothing, mark),
                _ => (Found::Upper(upper.again()?, meta), mark),
            });
        }
        if let Some(lower) = &self.lower
            && let Some(meta) = lower_stat(lower, name)?
        {
            return Ok((Found::Lower(lower.again()?, meta), Mark::Plain));
        }
        Ok((Found::Nothing, Mark::Plain))
    }

    /// The directory `name` in this one, as the overlay shows it; `None` where none is.
    fn enter(&self, name: &[u8], path: &ResourcePath) -> Result<Option<Self>> {
        let (found, mark) = self.look(name, path)?;
        let (upper, meta) = match found {
            Found::Nothing => return Ok(None),
            Found::Upper(dir, meta) => (Some(dir), meta),
            Found::Lower(_, meta) => (None, meta),
        };
        if !meta.is_dir() {
            return Err(not_a_directory(path, &meta));
        }
        let upper = upper.map(|dir| dir.subdir(name)).transpose()?;
        let lower = match &self.lower {
            Some(lower) if mark != Mark::Opaque => match lower_stat(lower, name)? {
                Some(meta) if meta.is_dir() => Some(lower.subdir(name)),
                _ => None,
            },
            _ => None,
        };
        let lower = lower
            .transpose()
            .map_err(|error| tree::explain(path, error))?;
        Ok(Some(Self { upper, lower }))
    }
}

fn not_a_directory(path: &ResourcePath, meta: &Meta) -> StrategyError {
    let kind = meta.kind.word();
    match meta.kind {
        EntryKind::Symlink => StrategyError::Leaves {
            path: path.clone(),
            source: crate::fs::FsError {
                action: "go through",
                path: crate::model::text::Location::from_bytes(path.as_bytes()),
                cause: Cause::Link,
            },
        },
        _ => StrategyError::InTheWay {
            path: path.clone(),
            kind,
        },
    }
}

/// Finds `path` the way the kernel would.
pub(super) fn find(upper: &Dir, lower: &Dir, path: &ResourcePath) -> Result<Found> {
    let Some((parent, name)) = path.split() else {
        return Ok(Found::Upper(upper.again()?, upper.meta()?));
    };
    let mut here = Merged::root(upper, lower)?;
    let mut walked = ResourcePath::root();
    for part in parent.parts() {
        walked = walked.join(part);
        match here.enter(part, &walked) {
            Ok(Some(below)) => here = below,
            // Below a file there is nothing.
            Ok(None) | Err(StrategyError::InTheWay { .. }) => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        }
    }
    Ok(here.look(name, path)?.0)
}

/// The directory at `path` in the upper layer, copied up or made with all above it.
pub(super) fn make_upper(
    upper: &Dir,
    lower: &Dir,
    stage: &Dir,
    path: &ResourcePath,
) -> Result<Dir> {
    let mut here = Merged::root(upper, lower)?;
    let mut walked = ResourcePath::root();
    // Directories that stay open to their owner until all below them is there.
    let mut closing: Vec<(Dir, u16)> = Vec::new();
    for part in path.parts() {
        walked = walked.join(part);
        let missing = || StrategyError::NotThere {
            path: walked.clone(),
        };
        let parent = here.upper.as_ref().ok_or_else(missing)?.again()?;
        here = match here.enter(part, &walked)? {
            Some(Merged {
                upper: None,
                lower: Some(lower),
            }) => {
                let mode = parent.meta()?.mode;
                if mode & 0o700 != 0o700 {
                    set_mode(&parent, mode | 0o700)?;
                    closing.push((parent.again()?, mode));
                }
                let dir = copy_up(&parent, stage, part, &lower)?;
                closing.push((dir.again()?, lower.meta()?.mode));
                Merged {
                    upper: Some(dir),
                    lower: Some(lower),
                }
            }
            Some(merged) => merged,
            None => Merged {
                upper: Some(make_new(&parent, stage, part)?),
                lower: None,
            },
        };
    }
    for (dir, mode) in closing.iter().rev() {
        set_mode(dir, *mode)?;
    }
    here.upper
        .ok_or_else(|| StrategyError::NotThere { path: path.clone() })
}

fn set_mode(dir: &Dir, mode: u16) -> Result<()> {
    if dir.meta()?.mode == mode {
        return Ok(());
    }
    Handle::of(dir)
        .set_mode(mode)
        .map_err(|errno| dir.error("set the mode of", b"", Cause::Os(errno)).into())
}

/// A directory of the lower layer in the upper one: the same metadata, merging with it, but open
/// to its owner for now.
fn copy_up(parent: &Dir, stage: &Dir, name: &[u8], lower: &Dir) -> Result<Dir> {
    let attributes = xattr::read(&Handle::of(lower))
        .map_err(|errno| lower.error("read the attributes of", b"", Cause::Os(errno)))?;
    remove::remove(stage, name)?;
    stage.make_dir(name, 0o700)?;
    let copy = stage.subdir(name)?;
    let mut looks = lower.meta()?;
    looks.mode |= 0o700;
    if !dress(&copy, &looks, attributes)?.is_empty() {
        // A copy without them would count as a change that nobody made.
        return Err(lower
            .error("keep the attributes of", b"", Cause::Os(Errno::PERM))
            .into());
    }
    let mode = lower.meta()?.mode;
    Looks {
        mode,
        ..Looks::of(&copy)?
    }
    .remember(&copy)?;
    stage.rename(name, parent, name)?;
    Ok(parent.subdir(name)?)
}

/// A directory that the lower layer does not have, or that was deleted and comes back empty.
fn make_new(parent: &Dir, stage: &Dir, name: &[u8]) -> Result<Dir> {
    match parent.stat(name)? {
        None => parent.make_dir(name, 0o777)?,
        // A whiteout stands there: what it hides must stay hidden.
        Some(_) => {
            remove::remove(stage, name)?;
            stage.make_dir(name, 0o777)?;
            let dir = stage.subdir(name)?;
            xattr::set(&Handle::of(&dir), OPAQUE.as_bytes(), b"y")
                .map_err(|errno| dir.error("mark as opaque", b"", Cause::Os(errno)))?;
            stage.exchange(name, parent, name)?;
            stage.unlink(name)?;
        }
    }
    Ok(parent.subdir(name)?)
}

/// Gives a directory of the upper layer the looks of the lower one it stands for. Returns the
/// attributes that this user or this file system cannot keep.
pub(super) fn dress(upper: &Dir, model: &Meta, attributes: Xattrs) -> Result<Vec<Vec<u8>>> {
    Handle::of(upper)
        .dress(model, &stored(attributes))
        .map_err(|errno| {
            upper
                .error("set the metadata of", b"", Cause::Os(errno))
                .into()
        })
}
