//! Extended attributes of one entry, access control lists included: reads, sets and digests them.

use rustix::fs as sys;
use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};

use super::Dir;
use super::as_owner::as_owner;
use super::handle::EntryHandle;

/// Attributes and their values, sorted by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The digest of a set of attributes; all zero for none.
pub type Digest = [u8; 16];

/// All attributes of an entry.
pub fn read(of: &EntryHandle<'_>) -> Result<Xattrs> {
    let mut attributes = Vec::new();
    for name in names(of)? {
        // None: removed since it was listed.
        if let Some(value) = get(of, &name)? {
            attributes.push((name, value));
        }
    }
    attributes.sort_unstable();
    Ok(attributes)
}

/// The names of the attributes of an entry.
pub fn names(of: &EntryHandle<'_>) -> Result<Vec<Vec<u8>>> {
    listed(grow(|buffer| match of {
        EntryHandle::Open(fd) => sys::flistxattr(fd, buffer),
        EntryHandle::Unopened(_) => sys::listxattr(of.proc_path(), buffer),
    }))
}

/// One attribute; `None` where the entry has none of that name.
pub fn get(of: &EntryHandle<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match grow(|buffer| match of {
        EntryHandle::Open(fd) => sys::fgetxattr(fd, name, buffer),
        EntryHandle::Unopened(_) => sys::getxattr(of.proc_path(), name, buffer),
    }) {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The names of the attributes of the entry `name` of a directory. Asked by name, which takes one call; who needs the
/// values too holds the entry while it reads them.
pub fn names_at(dir: &Dir, name: &[u8]) -> Result<Vec<Vec<u8>>> {
    let path = dir.proc_path(name);
    listed(grow(|buffer| sys::llistxattr(&*path, buffer)))
}

fn listed(names: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let names = match names {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        names => names?,
    };
    let names = names.split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Attributes of which only the names matter.
pub fn without_values(names: Vec<Vec<u8>>) -> Xattrs {
    let pairs = names.into_iter().map(|name| (name, Vec::new()));
    pairs.collect()
}

/// One attribute of the entry `name` of a directory; `None` where it has none of that name.
pub fn get_at(dir: &Dir, name: &[u8], attribute: &[u8]) -> Result<Option<Vec<u8>>> {
    let path = dir.proc_path(name);
    match grow(|buffer| sys::lgetxattr(&*path, attribute, buffer)) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        value => value.map(Some),
    }
}

/// Calls with a larger buffer until the answer fits. Most answers fit into the first.
fn grow(call: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut small = [0u8; 256];
    match as_owner(|| call(&mut small)) {
        Ok(length) => return Ok(small[..length].to_owned()),
        Err(Errno::RANGE) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = vec![0; 4096];
    loop {
        match as_owner(|| call(&mut buffer)) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // The kernel's limit is 64 KiB for a value and for a list.
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// Sets one attribute.
pub fn set(of: &EntryHandle<'_>, name: &[u8], value: &[u8]) -> Result<()> {
    as_owner(|| match of {
        EntryHandle::Open(fd) => sys::fsetxattr(fd, name, value, XattrFlags::empty()),
        EntryHandle::Unopened(_) => sys::setxattr(of.proc_path(), name, value, XattrFlags::empty()),
    })
}

/// Whether an attribute is a mark of an overlay file system, of either kind: it can hide files where it lies in a layer.
pub fn is_overlay_mark(name: &[u8]) -> bool {
    name.starts_with(b"user.overlay.") || name.starts_with(b"trusted.overlay.")
}

/// Whether a failed [`set`] says that this user or this file system cannot keep the attribute.
pub fn cannot_be_kept(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS)
}

/// Removes one attribute.
pub fn remove(of: &EntryHandle<'_>, name: &[u8]) -> Result<()> {
    as_owner(|| match of {
        EntryHandle::Open(fd) => sys::fremovexattr(fd, name),
        EntryHandle::Unopened(_) => sys::removexattr(of.proc_path(), name),
    })
}

/// Removes one attribute of the entry `name` of a directory; done already if it has none of that name.
pub fn remove_at(dir: &Dir, name: &[u8], attribute: &[u8]) -> Result<()> {
    match as_owner(|| sys::lremovexattr(dir.proc_path(name), attribute)) {
        Err(Errno::NODATA) => Ok(()),
        answer => answer,
    }
}

/// A short stand-in for a set of attributes: equal digests, equal attributes.
pub fn digest(attributes: &Xattrs) -> Digest {
    if attributes.is_empty() {
        return [0; 16];
    }
    let mut hasher = blake3::Hasher::new();
    for (name, value) in attributes {
        for part in [name, value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}
