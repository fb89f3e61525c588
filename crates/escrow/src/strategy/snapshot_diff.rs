//! The diff between two snapshots of one sandbox, each known by how it differs from the original.

use super::error::Result;
use super::tree;
use super::tree_commit::VersionSource;
use crate::fs::xattr::Xattrs;
use crate::model::{Change, ChangedField, EntryInfo, EntryKind, ResourcePath};

/// One snapshot: in what it differs from the original, in the order of the paths, and where its versions
/// are.
pub(super) type SnapshotSide<'a> = (&'a [Change], &'a dyn VersionSource);

/// The changes from one snapshot to another.
pub(super) fn between(
    (then, old): SnapshotSide<'_>,
    (now, new): SnapshotSide<'_>,
    visible: fn(Xattrs) -> Xattrs,
) -> Result<Vec<Change>> {
    let mut found = Vec::new();
    let (mut then, mut now) = (then.iter().peekable(), now.iter().peekable());
    loop {
        let order = match (then.peek(), now.peek()) {
            (None, None) => return Ok(found),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.path.cmp(&b.path),
        };
        let (before, after) = (
            order.is_le().then(|| then.next()).flatten(),
            order.is_ge().then(|| now.next()).flatten(),
        );
        found.extend(match (before, after) {
            // It is as the original again.
            (Some(before), None) => turned(&before.path, &before.new, &before.old, || {
                Ok(before.fields.into())
            })?,
            (None, Some(after)) => Some(after.clone()),
            (Some(before), Some(after)) => turned(&before.path, &before.new, &after.new, || {
                differences((old, new), &before.path, visible)
            })?,
            (None, None) => None,
        });
    }
}

fn turned(
    path: &ResourcePath,
    old: &Option<EntryInfo>,
    new: &Option<EntryInfo>,
    fields: impl FnOnce() -> Result<Vec<ChangedField>>,
) -> Result<Option<Change>> {
    Ok(match (old, new) {
        (None, None) => None,
        (None, Some(new)) => Some(Change::added(path.clone(), new.clone())),
        (Some(old), None) => Some(Change::deleted(path.clone(), old.clone())),
        (Some(old), Some(new)) => {
            let mut fields = match old.kind == new.kind {
                true => fields()?,
                false => Vec::new(),
            };
            // What is kept may be opened, so that it can be got at; the facts tell how it was.
            fields.retain(|field| *field != ChangedField::Mode);
            if old.kind == new.kind && old.mode != new.mode && new.kind != EntryKind::Symlink {
                fields.insert(0, ChangedField::Mode);
            }
            Change::between(path.clone(), old.clone(), new.clone(), fields)
        }
    })
}

/// In what two versions of the same kind differ.
fn differences(
    (old, new): (&dyn VersionSource, &dyn VersionSource),
    path: &ResourcePath,
    visible: fn(Xattrs) -> Xattrs,
) -> Result<Vec<ChangedField>> {
    let look = |versions: &dyn VersionSource| -> Result<_> {
        let Some((_, name)) = path.split() else {
            let dir = versions.dir(path)?;
            let meta = dir.meta()?;
            return Ok((dir, b".".to_vec(), meta));
        };
        let (dir, name) = (versions.parent(path)?.0, name.to_vec());
        let meta = dir.stat(&name)?;
        let meta = meta.ok_or_else(|| dir.absent("look at", &name))?;
        Ok((dir, name, meta))
    };
    let ((old_dir, name, old), (new_dir, _, new)) = (look(old)?, look(new)?);
    if (old.dev, old.ino) == (new.dev, new.ino) {
        return Ok(Vec::new());
    }
    let (old, new) = ((&old_dir, &old), (&new_dir, &new));
    tree::differences(&name, old, new, visible, || {
        tree::same_content((&old_dir, &name), (&new_dir, &name))
    })
}
