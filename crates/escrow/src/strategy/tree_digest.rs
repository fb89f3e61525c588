//! The digests of new versions of a directory tree, in a sandbox and where they were staged.

use std::collections::HashMap;

use rustix::io::Errno;

use super::error::Result;
use super::tree;
use super::tree_commit::{CAPABILITY, Versions, introduced, without};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, Meta};
use crate::model::digest::{Version, VersionDigest, VersionDigests};
use crate::model::{Change, EntryKind};

/// What each changed path of a sandbox would become: without the privileges that a commit drops, and without sockets.
pub(super) fn sandbox(
    root: &dyn Versions,
    visible: fn(Xattrs) -> Xattrs,
    changes: &[Change],
) -> Result<VersionDigests> {
    let mut all = Vec::new();
    // Files of several names are read once.
    let mut same: HashMap<u64, VersionDigest> = HashMap::new();
    for change in changes {
        let new = change.new.as_ref();
        let Some(new) = new.filter(|new| new.kind != EntryKind::Socket) else {
            continue;
        };
        let path = &change.path;
        // What vanished meanwhile has no version.
        let Some(mut meta) = root.meta(path)? else {
            continue;
        };
        if meta.is_dir() {
            let attributes = visible(tree::xattrs_of(&root.dir(path)?)?);
            all.push((path.clone(), directory(&meta, attributes)));
            continue;
        }
        let file = root.file(path, &meta);
        let known = file.and_then(|file| same.get(&file));
        let digest = match known {
            Some(known) => *known,
            None => {
                let (dir, name) = root.parent(path)?;
                let mut attributes = tree::xattrs_if_open(&dir, name)?.unwrap_or_default();
                if new.kind == EntryKind::File {
                    let dropped = introduced(change, meta.mode, &attributes);
                    meta.mode = without(&dropped, meta.mode);
                    let goes = dropped.contains(&"capabilities");
                    attributes.retain(|(name, _)| !goes || name != CAPABILITY);
                }
                leaf((&dir, name), &meta, visible(attributes))?
            }
        };
        same.extend(file.map(|file| (file, digest)));
        all.push((path.clone(), digest));
    }
    Ok(all)
}

/// The digest of a directory with this metadata.
pub(super) fn directory(meta: &Meta, attributes: Xattrs) -> VersionDigest {
    version(meta, attributes, &[], None)
}

/// The digest of what is no directory; its content, or its target, is read.
pub(super) fn leaf(
    (dir, name): (&Dir, &[u8]),
    meta: &Meta,
    attributes: Xattrs,
) -> Result<VersionDigest> {
    let (mut target, mut bytes) = (Vec::new(), None);
    match meta.kind {
        EntryKind::Symlink => target = dir.read_link(name)?,
        EntryKind::File => bytes = content(dir, name)?,
        _ => {}
    }
    Ok(version(meta, attributes, &target, bytes))
}

fn version(
    meta: &Meta,
    mut attributes: Xattrs,
    target: &[u8],
    content: Option<[u8; 32]>,
) -> VersionDigest {
    attributes.sort_unstable();
    let version = Version {
        kind: meta.kind,
        mode: meta.mode,
        owner: (meta.uid, meta.gid),
        attributes: &xattr::digest(&attributes),
        target,
        content,
    };
    version.digest()
}

/// The digest of the bytes of a file; `None` where this user may not read it.
fn content(dir: &Dir, name: &[u8]) -> Result<Option<[u8; 32]>> {
    let (mut file, _) = match dir.file(name) {
        Err(error) if error.is(Errno::ACCESS) => return Ok(None),
        file => file?,
    };
    let mut hasher = blake3::Hasher::new();
    match std::io::copy(&mut file, &mut hasher) {
        Ok(_) => Ok(Some(*hasher.finalize().as_bytes())),
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Err(dir.error("read", name, Cause::Os(errno)).into())
        }
    }
}
