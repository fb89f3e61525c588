//! Reads and writes overlay layers as the kernel does, without a mount. A *whiteout* (a character device 0:0,
//! or an empty file with the attribute `user.overlay.whiteout`) hides a name; an *opaque* directory
//! (`user.overlay.opaque` = `y`) merges with nothing. `redirect` and `metacopy` marks are refused, never
//! followed: sandboxes are mounted with `userxattr`, where the kernel makes none and refuses them too.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::stack::{LayerStack, StackedDir};
use crate::fs::state_dir;
use crate::fs::xattr::{self, Digest, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta, remove};
use crate::model::{ChangedField, EntryKind, ResourcePath};

const WHITEOUT: &str = "user.overlay.whiteout";
pub(super) const OPAQUE: &str = "user.overlay.opaque";
/// Marks that would lead elsewhere.
const REFUSED: [&str; 2] = ["user.overlay.redirect", "user.overlay.metacopy"];
/// A user's own attributes of these names are stored with the prefix doubled.
const ESCAPED: &[u8] = b"user.overlay.overlay.";
const OWN: &[u8] = b"user.overlay.";

/// What an entry of the upper layer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerMark {
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
pub(super) struct LayerDirMetadata {
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) xattrs: Digest,
}

pub(super) const LOOKS: &[u8] = b"user.overlay.escrow";

impl LayerDirMetadata {
    /// How a directory looks now.
    pub(super) fn of(dir: &Dir) -> Result<Self> {
        let meta = dir.meta()?;
        let attributes = tree::xattrs_of(dir)?;
        Ok(Self {
            mode: meta.mode,
            owner: (meta.uid, meta.gid),
            xattrs: xattr::digest(&visible(attributes)),
        })
    }

    /// How they are written down.
    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers are JSON")
    }

    /// Writes them down on the directory.
    pub(super) fn remember(&self, dir: &Dir) -> Result<()> {
        xattr::set(&EntryHandle::of(dir), LOOKS, &self.text())
            .map_err(|errno| dir.error("mark", b"", Cause::Os(errno)).into())
    }

    /// What was written down; `None` on a directory that the kernel copied up, or that is new.
    pub(super) fn remembered(dir: &Dir) -> Result<Option<Self>> {
        let text = xattr::get(&EntryHandle::of(dir), LOOKS)
            .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// In what `now` differs.
    pub(super) fn differences(&self, now: &Self) -> Vec<ChangedField> {
        let fields = [
            (now.mode != self.mode, ChangedField::Mode),
            (now.owner != self.owner, ChangedField::Owner),
            (now.xattrs != self.xattrs, ChangedField::Xattrs),
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
    let mark = xattr::get_at(dir, name, WHITEOUT.as_bytes());
    match mark {
        Err(Errno::ACCESS) => Ok(false),
        mark => Ok(mark
            .map_err(|errno| dir.error("read the attributes of", name, Cause::Os(errno)))?
            .is_some()),
    }
}

/// Whether the kernel copied a directory up from the lower layer.
pub(super) fn is_copied(dir: &Dir) -> Result<bool> {
    has(dir, b"user.overlay.origin")
}

/// Whether a directory hides the lower one of its name.
pub(super) fn is_opaque(dir: &Dir) -> Result<bool> {
    has(dir, OPAQUE.as_bytes())
}

fn has(dir: &Dir, mark: &[u8]) -> Result<bool> {
    let found = xattr::get(&EntryHandle::of(dir), mark)
        .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
    Ok(found.is_some())
}

/// The directory at `path` in the lower layer; `None` where there is none.
pub(super) fn parent_below(lower: &Dir, path: &ResourcePath) -> Result<Option<Meta>> {
    match lower.dir(path) {
        Ok(dir) => Ok(Some(dir.meta()?)),
        Err(error) if error.is_absent() || error.leaves() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the marks on an entry of the upper layer mean.
pub(super) fn mark(dir: &Dir, name: &[u8], meta: &Meta, path: &ResourcePath) -> Result<LayerMark> {
    if meta.is_whiteout() {
        return Ok(LayerMark::Whiteout);
    }
    if !matches!(meta.kind, EntryKind::File | EntryKind::Directory) {
        // No other kind of entry can carry such an attribute.
        return Ok(LayerMark::Plain);
    }
    let fail = |errno| dir.error("read the attributes of", name, Cause::Os(errno));
    let names = xattr::names_at(dir, name).map_err(fail)?;
    let has = |attribute: &str| names.iter().any(|name| name == attribute.as_bytes());
    if let Some(mark) = REFUSED.into_iter().find(|refused| has(refused)) {
        let path = path.clone();
        let mark = mark.to_owned();
        return Err(StrategyError::ForgedMark { path, mark });
    }
    match meta.kind {
        EntryKind::File if meta.size == 0 && has(WHITEOUT) => Ok(LayerMark::Whiteout),
        EntryKind::Directory if has(OPAQUE) => {
            let value = xattr::get_at(dir, name, OPAQUE.as_bytes()).map_err(fail)?;
            Ok(match value.as_deref() {
                Some(b"y") => LayerMark::Opaque,
                _ => LayerMark::Plain,
            })
        }
        _ => Ok(LayerMark::Plain),
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
            (!name.starts_with(OWN)).then_some((name, value))
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
pub(super) enum LayerEntry {
    /// Nowhere.
    Nothing,
    /// In the upper layer, in this directory.
    Upper(Dir, Meta),
    /// In the lower layer, in this directory.
    Lower(Dir, Meta),
}

/// A directory as the overlay shows it: from the layers, from the original, or from both.
pub(super) struct MergedDir<'a> {
    stack: &'a LayerStack,
    upper: StackedDir,
    lower: Option<Dir>,
}

impl<'a> MergedDir<'a> {
    /// The root of the overlay.
    pub(super) fn root(stack: &'a LayerStack, lower: &Dir) -> Result<Self> {
        Ok(Self {
            stack,
            upper: stack.root()?,
            lower: Some(lower.again()),
        })
    }

    /// What stands at `name`.
    fn look(&self, name: &[u8], path: &ResourcePath) -> Result<LayerEntry> {
        if let Some(standing) = self.upper.look(name, path)? {
            return Ok(match standing.mark {
                LayerMark::Whiteout => LayerEntry::Nothing,
                _ => LayerEntry::Upper(self.upper.dirs[standing.at].again(), standing.meta),
            });
        }
        if let Some(lower) = &self.lower
            && let Some(meta) = lower_stat(lower, name)?
        {
            return Ok(LayerEntry::Lower(lower.again(), meta));
        }
        Ok(LayerEntry::Nothing)
    }

    /// The directory `name` in this one, as the overlay shows it; `None` where none is.
    fn enter(&self, name: &[u8], path: &ResourcePath) -> Result<Option<Self>> {
        let refuse = |meta: &Meta| Err(not_a_directory(path, meta));
        let (numbers, hides) = match self.upper.look(name, path)? {
            Some(standing) if standing.mark == LayerMark::Whiteout => return Ok(None),
            Some(standing) if !standing.meta.is_dir() => return refuse(&standing.meta),
            Some(standing) => self.upper.below(name, path, (standing.at, standing.mark))?,
            None => (Vec::new(), false),
        };
        let below = match &self.lower {
            Some(lower) if !hides => lower_stat(lower, name)?.map(|meta| (lower, meta)),
            _ => None,
        };
        let lower = match below {
            Some((lower, meta)) if meta.is_dir() => {
                let dir = lower.subdir(name);
                Some(dir.map_err(|error| tree::explain(path, error))?)
            }
            Some((_, meta)) if numbers.is_empty() => return refuse(&meta),
            _ => None,
        };
        if numbers.is_empty() && lower.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            stack: self.stack,
            upper: self.stack.level(path, numbers)?,
            lower,
        }))
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
            kind: kind.to_owned(),
        },
    }
}

/// Finds `path` the way the kernel would.
pub(super) fn find(upper: &LayerStack, lower: &Dir, path: &ResourcePath) -> Result<LayerEntry> {
    let Some((parent, name)) = path.split() else {
        return Ok(LayerEntry::Upper(upper.top().again(), upper.top().meta()?));
    };
    let mut here = MergedDir::root(upper, lower)?;
    let mut walked = ResourcePath::root();
    for part in parent.parts() {
        walked = walked.join(part);
        match here.enter(part, &walked) {
            Ok(Some(below)) => here = below,
            // Below a file there is nothing.
            Ok(None) | Err(StrategyError::InTheWay { .. }) => return Ok(LayerEntry::Nothing),
            Err(error) => return Err(error),
        }
    }
    here.look(name, path)
}

/// A directory that the topmost layer lacks: its name, what it is copied from, and what is known of the
/// original's.
struct MissingDir {
    name: Vec<u8>,
    from: Dir,
    looks: OriginalDir,
}

/// What is known of the original's directory.
enum OriginalDir {
    /// It is what is copied.
    Copied,
    /// A layer below remembers it, or has nothing to remember.
    Remembered(Option<LayerDirMetadata>),
}

/// The directory at `path` in the topmost layer, copied up or made with all above it.
pub(super) fn make_upper(
    upper: &LayerStack,
    lower: &Dir,
    stage: &Dir,
    path: &ResourcePath,
) -> Result<Dir> {
    let mut here = MergedDir::root(upper, lower)?;
    let mut to = upper.top().again();
    let mut walked = ResourcePath::root();
    // Directories that are not in the topmost layer: a run of them, in the middle.
    let mut missing: Vec<MissingDir> = Vec::new();
    let mut parts = path.parts().peekable();
    while let Some(part) = parts.peek() {
        walked = walked.join(part);
        let Some(below) = here.enter(part, &walked)? else {
            break;
        };
        match (below.upper.dirs.first(), &below.lower) {
            (Some(dir), _) if below.upper.numbers[0] == 0 => to = dir.again(),
            (Some(dir), _) => missing.push(MissingDir {
                name: part.to_vec(),
                from: dir.again(),
                looks: OriginalDir::Remembered(below.upper.remembered()?),
            }),
            (None, Some(dir)) => missing.push(MissingDir {
                name: part.to_vec(),
                from: dir.again(),
                looks: OriginalDir::Copied,
            }),
            (None, None) => break,
        }
        here = below;
        parts.next();
    }
    if !missing.is_empty() {
        to = graft(&to, stage, &missing)?;
    }
    for part in parts {
        to = make_new(&to, stage, part)?;
    }
    Ok(to)
}

/// Copies a chain of directories up, each lying in the one before: made aside and moved into
/// place as one, so that nothing half dressed can be seen.
fn graft(parent: &Dir, stage: &Dir, chain: &[MissingDir]) -> Result<Dir> {
    let top = &chain[0].name;
    remove::remove(stage, top)?;
    let mut at = stage.again();
    let mut made = Vec::new();
    for MissingDir { name, from, looks } in chain {
        let lower = from;
        // Plain: what stands above it must not hand down what the original does not have.
        at = state_dir::make_plain(&at, name)?;
        let attributes = tree::xattrs_of(lower)?;
        let lost = match looks {
            OriginalDir::Copied => stand_in(&at, lower, attributes)?,
            OriginalDir::Remembered(looks) => resemble(&at, lower, attributes, looks.as_ref())?,
        };
        // A copy without them would count as a change that no process made.
        tree::refuse_lost(lower, b"", &lost)?;
        made.push((at.again(), lower.meta()?.mode));
    }
    for (dir, mode) in made.iter().rev() {
        set_mode(dir, *mode)?;
    }
    stage.rename(top, parent, top)?;
    let mut deepest = parent.again();
    for MissingDir { name, .. } in chain {
        deepest = deepest.subdir(name)?;
    }
    Ok(deepest)
}

/// Makes a directory of ours look like the lower one it stands for, and remembers how; but leaves
/// it open to its owner. Returns the attributes that cannot be kept.
pub(super) fn stand_in(dir: &Dir, lower: &Dir, attributes: Xattrs) -> Result<Vec<Vec<u8>>> {
    let lost = apply_metadata(dir, lower, stored(attributes))?;
    let remembered = LayerDirMetadata {
        mode: lower.meta()?.mode,
        ..LayerDirMetadata::of(dir)?
    };
    remembered.remember(dir)?;
    Ok(lost)
}

/// The same for a directory of a layer below, which may know how the original's looked.
pub(super) fn resemble(
    dir: &Dir,
    below: &Dir,
    attributes: Xattrs,
    looks: Option<&LayerDirMetadata>,
) -> Result<Vec<Vec<u8>>> {
    let own = |name: &[u8]| name.starts_with(OWN) && !name.starts_with(ESCAPED);
    let theirs = attributes.into_iter().filter(|(name, _)| !own(name));
    let lost = apply_metadata(dir, below, theirs.collect())?;
    if let Some(looks) = looks {
        looks.remember(dir)?;
    }
    Ok(lost)
}

fn apply_metadata(dir: &Dir, model: &Dir, attributes: Xattrs) -> Result<Vec<Vec<u8>>> {
    let looks = model.meta()?;
    let open = Meta {
        mode: looks.mode | 0o700,
        ..looks
    };
    EntryHandle::of(dir)
        .apply_metadata(&open, &attributes)
        .map_err(|errno| {
            dir.error("set the metadata of", b"", Cause::Os(errno))
                .into()
        })
}

/// Sets the mode of a directory, if it has another one.
pub(super) fn set_mode(dir: &Dir, mode: u16) -> Result<()> {
    if dir.meta()?.mode == mode {
        return Ok(());
    }
    EntryHandle::of(dir)
        .set_mode(mode)
        .map_err(|errno| dir.error("set the mode of", b"", Cause::Os(errno)).into())
}

/// A directory that the lower layer does not have, or that was deleted and comes back empty.
fn make_new(parent: &Dir, stage: &Dir, name: &[u8]) -> Result<Dir> {
    parent.check_open()?;
    match parent.stat(name)? {
        None => parent.make_dir(name, 0o777)?,
        // A whiteout stands there: what it hides must stay hidden.
        Some(_) => {
            remove::remove(stage, name)?;
            stage.make_dir(name, 0o777)?;
            let dir = stage.subdir(name)?;
            xattr::set(&EntryHandle::of(&dir), OPAQUE.as_bytes(), b"y")
                .map_err(|errno| dir.error("mark as opaque", b"", Cause::Os(errno)))?;
            stage.exchange(name, parent, name)?;
            stage.unlink(name)?;
        }
    }
    Ok(parent.subdir(name)?)
}
