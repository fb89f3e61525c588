//! The digests of new versions of a directory tree, in a sandbox and where they were staged.

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;

use super::error::Result;
use super::tree;
use super::tree_commit::{CAPABILITY, VersionSource, introduced, without};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Dir, Meta, content};
use crate::model::digest::{VersionDigest, VersionDigests};
use crate::model::{Change, EntryKind, ResourcePath};

/// What each changed path of a sandbox would become, with these `texts` in the place of its own: without the privileges that a commit drops, and without sockets.
pub(super) fn sandbox(
    root: &dyn VersionSource,
    changes: &[Change],
    texts: &BTreeMap<ResourcePath, Vec<u8>>,
) -> Result<VersionDigests> {
    let mut all = Vec::new();
    // Files of several names are read once.
    let mut same: HashMap<u64, VersionDigest> = HashMap::new();
    let is_released = |change: &&Change| {
        let new = change.new.as_ref();
        new.is_some_and(|new| new.kind != EntryKind::Socket)
    };
    for change in changes.iter().filter(is_released) {
        // What vanished meanwhile has no version, also where it went while it was looked at.
        let found = tree::steady(|| new_version(root, change, texts.get(&change.path), &same))?;
        if let Some((file, digest)) = found {
            same.extend(file.map(|file| (file, digest)));
            all.push((change.path.clone(), digest));
        }
    }
    Ok(all)
}

/// What one changed path would become, and the file that it is; nothing where it is gone.
fn new_version(
    root: &dyn VersionSource,
    change: &Change,
    text: Option<&Vec<u8>>,
    same: &HashMap<u64, VersionDigest>,
) -> Result<Option<(Option<u64>, VersionDigest)>> {
    let path = &change.path;
    let Some(mut meta) = root.meta(path)? else {
        return Ok(None);
    };
    let file = root.file(path, &meta).filter(|_| !meta.is_dir());
    if meta.is_dir() {
        let attributes = tree::xattrs_of(&root.dir(path)?)?;
        return Ok(Some((file, directory(&meta, &root.released(attributes)))));
    }
    if let Some(known) = file.and_then(|file| same.get(&file)) {
        return Ok(Some((file, *known)));
    }
    let (dir, name) = root.parent(path)?;
    let mut attributes = tree::xattrs_if_open(&dir, name)?.unwrap_or_default();
    if meta.is_file() {
        let dropped = introduced(change, meta.mode, &attributes);
        meta.mode = without(&dropped, meta.mode);
        let goes = dropped.contains(&"capabilities");
        attributes.retain(|(name, _)| !goes || name != CAPABILITY);
    }
    let digest = match text {
        Some(text) => {
            let content = content::digest_of(text).to_vec();
            version(&meta, &root.released(attributes), Some(content))
        }
        None => leaf((&dir, name), &meta, &root.released(attributes))?,
    };
    Ok(Some((file, digest)))
}

/// The digest of a directory with this metadata.
pub(super) fn directory(meta: &Meta, attributes: &Xattrs) -> VersionDigest {
    version(meta, attributes, Some(Vec::new()))
}

/// The digest of what is no directory, its content or its target included.
pub(super) fn leaf(
    (dir, name): (&Dir, &[u8]),
    meta: &Meta,
    attributes: &Xattrs,
) -> Result<VersionDigest> {
    let content = match meta.kind {
        EntryKind::Symlink => Some(dir.read_link(name)?),
        EntryKind::File => file_content(dir, name)?,
        _ => Some(Vec::new()),
    };
    Ok(version(meta, attributes, content))
}

fn version(meta: &Meta, attributes: &Xattrs, content: Option<Vec<u8>>) -> VersionDigest {
    let mut attributes = attributes.clone();
    attributes.sort_unstable();
    let parts: [&[u8]; 6] = [
        meta.kind.word().as_bytes(),
        &meta.mode.to_le_bytes(),
        &meta.uid.to_le_bytes(),
        &meta.gid.to_le_bytes(),
        &xattr::digest(&attributes),
        content.as_deref().unwrap_or_default(),
    ];
    VersionDigest::new(&parts, content.is_some())
}

/// The digest of the bytes of a file; `None` where this user may not read it.
fn file_content(dir: &Dir, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let (file, _) = match dir.file(name) {
        Err(error) if error.is(Errno::ACCESS) => return Ok(None),
        file => file?,
    };
    let digest = content::digest(&file).map_err(|error| dir.io_error("read", name, &error))?;
    Ok(Some(digest.to_vec()))
}
