//! Removes a tree, whatever its modes and depth.

use rustix::io::Errno;

use super::dir::Dir;
use super::walk::{Shared, descend, look_at_all};
use super::{Cause, FsError, Meta, Result, btrfs};
use crate::model::ResourcePath;

/// Removes what an error left half made: it only takes room, which may be what there was too little of. Should it stay, the
/// next attempt sweeps it.
pub fn half_made<E>(parent: &Dir, name: &[u8], error: E) -> E {
    match remove(parent, name) {
        Ok(()) | Err(_) => error,
    }
}

/// Removes `name` and everything in it; done already if it is not there.
///
/// Directories that their owner locked (mode 000) are unlocked first. Mount points inside are
/// never emptied: the removal fails and names them. A subvolume of btrfs is deleted as a whole where this user may; else it
/// goes like any directory, as the kernel permits once it is empty.
pub fn remove(parent: &Dir, name: &[u8]) -> Result<()> {
    let Some(meta) = parent.stat(name)? else {
        return Ok(());
    };
    if !meta.is_dir() {
        return parent.unlink(name);
    }
    if parent.is_mount_point(&meta) {
        return Err(parent.error("remove", name, Cause::Mount));
    }
    if prepare(parent, name, &meta)? {
        return Ok(());
    }
    let root = parent.subdir(name)?;
    // Parents come before their children, so that backwards every directory is empty in turn.
    let directories = Shared::new(Vec::<ResourcePath>::new());
    descend((), |path, ()| {
        let dir = match root.dir(path) {
            Err(error) if error.is_absent() && !path.is_root() => return Ok(Vec::new()),
            dir => dir?,
        };
        let mut next = Vec::new();
        // A wide directory is emptied by several threads: most of the work is what the names stood for.
        let empty = |dir: &mut Dir, name: Box<[u8]>| Ok(remove_in(dir, &name)?.then_some(name));
        look_at_all(
            || dir.again(),
            dir.names()?,
            empty,
            |name| {
                if let Some(name) = name {
                    directories.lock().push(path.join(&name));
                    next.push((name, ()));
                }
                Ok::<_, FsError>(())
            },
        )?;
        Ok::<_, FsError>(next)
    })?;
    for path in directories.into_inner().iter().rev() {
        let (dir, name) = root.parent(path)?;
        dir.remove_dir(name)?;
    }
    match parent.remove_dir(name) {
        Err(error) if error.is(Errno::NOENT) => Ok(()),
        answer => answer,
    }
}

/// Removes `name`, unless it is a directory that is to be emptied first: then `true`.
fn remove_in(dir: &Dir, name: &[u8]) -> Result<bool> {
    // Most entries are no directories: that one need not be asked what it is saves a call each.
    match dir.unlink(name) {
        Err(error) if error.is(Errno::ISDIR) || error.is(Errno::PERM) => {}
        Err(error) if error.is_absent() => return Ok(false),
        gone => return gone.map(|()| false),
    }
    let meta = match dir.stat(name)? {
        None => return Ok(false),
        Some(meta) if !meta.is_dir() => return dir.unlink(name).map(|()| false),
        Some(meta) => meta,
    };
    if dir.is_mount_point(&meta) {
        return Err(dir.error("remove", name, Cause::Mount));
    }
    Ok(!prepare(dir, name, &meta)?)
}

/// Makes sure that a directory can be emptied; `true` where it is gone already.
fn prepare(parent: &Dir, name: &[u8], meta: &Meta) -> Result<bool> {
    if btrfs::is_subvolume(parent, meta) {
        if btrfs::delete(parent, name)? {
            return Ok(true);
        }
        btrfs::make_writable(&parent.subdir(name)?)?;
        if btrfs::delete(parent, name)? {
            return Ok(true);
        }
    }
    if meta.mode & 0o700 != 0o700 {
        parent.make_readable(name)?;
    }
    Ok(false)
}
