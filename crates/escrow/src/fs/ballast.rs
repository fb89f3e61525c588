//! Room that is reserved for the day when the disk is full: a few files of a few blocks. Giving them up makes room for the bytes,
//! and the files, that are needed to clean up.
//!
//! The ballast of a home is for its own records and for what frees space. It is given up for as long as that takes, and put by
//! again at once: nothing that is staged meanwhile, or afterwards, gets hold of it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs;

use super::dir::Dir;
use super::state_dir::{close, is_area_beside, make_plain};
use super::{Cause, Meta, Result, btrfs, remove};

/// What is reserved in a home.
const BALLAST: &[u8] = b"ballast";
const FILES: u8 = 4;
const SIZE: u64 = 128 * 1024;

/// All of it.
const TOTAL: u64 = FILES as u64 * SIZE;

/// So many times as much on btrfs: where its data and its metadata lie in the same block groups, each step of metadata wants
/// far more room than it takes.
const ON_BTRFS: u64 = 8;

/// A smaller file is of no use.
const SMALLEST: u64 = 4096;

/// The same in an area beside its original, on whose file system the ballast of the home is of no use.
const RESERVE: &[u8] = b"reserve";

/// How many times the room that is reserved in an area must be free.
const AMPLE: u64 = 16;

/// Puts the ballast by, if there is ample room and it is not there. Where it cannot be had, one does
/// without.
pub fn keep_ballast(home: &Dir) {
    let put_by = || -> Result<()> {
        // The last bytes are for what is being done now.
        let total = u64::from(FILES) * size_of(home, BALLAST);
        match is_whole(home, BALLAST)? || home.free_space()? < 4 * total {
            true => Ok(()),
            false => lay(home, BALLAST),
        }
    };
    match put_by() {
        Ok(()) | Err(_) => {}
    }
}

/// Puts room by in an area that lies beside its original, for what takes back or discards its work on a full disk.
/// Where it cannot be had, one does without.
pub fn keep_reserve(area: &Dir) {
    let name = area.path().file_name().unwrap_or_default();
    // The last bytes are for what is being done now.
    let ample = area.free_space().is_ok_and(|free| free >= AMPLE * TOTAL);
    if is_area_beside(name.as_encoded_bytes()) && ample && lay(area, RESERVE).is_err() {
        match remove::remove(area, RESERVE) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Does `work`, which may be done twice: where there was no room for it, the ballast is given up for as long as it takes.
pub fn with_ballast<T, E>(
    home: &Dir,
    is_full: impl Fn(&E) -> bool,
    work: impl Fn() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let first = match work() {
        Err(error) if is_full(&error) => error,
        done => return done,
    };
    if release(home, BALLAST).is_err() {
        return Err(first);
    }
    let again = work();
    // As far as it goes: what was done took some of it.
    match lay(home, BALLAST) {
        Ok(()) | Err(_) => {}
    }
    match again {
        Err(error) if is_full(&error) => Err(first),
        done => done,
    }
}

/// What was given up for what frees space, and is put by again when that is over.
#[derive(Default)]
pub struct GivenUp(Mutex<Vec<(PathBuf, &'static [u8])>>);

impl GivenUp {
    /// Gives the ballast of a home up where its file system is nearly full.
    pub fn ballast(&self, home: &Dir) -> Result<()> {
        self.release(home, BALLAST)
    }

    /// The same of an area beside its original; done already where there is no such area.
    pub fn reserve(&self, area: &Path) -> Result<()> {
        let name = area.file_name().unwrap_or_default();
        if !is_area_beside(name.as_encoded_bytes()) {
            return Ok(());
        }
        match Dir::open(area) {
            Err(error) if error.is_absent() => Ok(()),
            dir => self.release(&dir?, RESERVE),
        }
    }

    fn release(&self, dir: &Dir, name: &'static [u8]) -> Result<()> {
        if is_tight(dir)? {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            places.push((dir.path().to_owned(), name));
            release(dir, name)?;
        }
        Ok(())
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        let places = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (at, name) in places {
            // An area may have gone meanwhile, and as far as there is no room one does without.
            match Dir::open(at).and_then(|dir| lay(&dir, name)) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Whether there is less room than the ballast gives back, of bytes or of files.
pub fn is_tight(dir: &Dir) -> Result<bool> {
    // What btrfs reserves for itself counts as free there.
    let little = match btrfs::is_btrfs(dir) {
        true => 2 * ON_BTRFS * TOTAL,
        false => 2 * TOTAL,
    };
    Ok(dir.free_space()? < little || dir.free_files()?.is_some_and(|files| files < 64))
}

/// Whether all of it is there: the last file is laid last.
fn is_whole(dir: &Dir, name: &[u8]) -> Result<bool> {
    if !stands(dir, name)? {
        return Ok(false);
    }
    let last = dir.subdir(name)?.stat(&[b'0' + FILES - 1])?;
    Ok(last.is_some_and(|last| last.size == size_of(dir, name)))
}

/// How large each file is.
fn size_of(dir: &Dir, name: &[u8]) -> u64 {
    match name == BALLAST && btrfs::is_btrfs(dir) {
        true => ON_BTRFS * SIZE,
        false => SIZE,
    }
}

/// Whether a directory is there in which room can lie. On btrfs it is a subvolume: a snapshot of what it lies in would hold
/// the room too.
fn stands(dir: &Dir, name: &[u8]) -> Result<bool> {
    let meta = dir.stat(name)?.filter(|meta| meta.is_dir());
    Ok(meta.is_some_and(|meta| btrfs::is_subvolume(dir, &meta) || !btrfs::is_btrfs(dir)))
}

/// Puts room by under a name, as far as there is any; what was put by before stays.
fn lay(dir: &Dir, name: &[u8]) -> Result<()> {
    let room = match stands(dir, name)? {
        true => dir.subdir(name)?,
        false => {
            release(dir, name)?;
            match btrfs::is_btrfs(dir) {
                true => btrfs::create(dir, name).and_then(|()| close(dir.subdir(name)?))?,
                false => make_plain(dir, name)?,
            }
        }
    };
    for number in 0..FILES {
        let file_name = [b'0' + number];
        let file = room.write_over(&file_name, 0o600)?;
        let length = room.meta_of(&file_name, &file)?.size;
        let mut size = size_of(dir, name);
        while size > length {
            match fs::fallocate(&file, fs::FallocateFlags::empty(), 0, size) {
                Ok(()) => break,
                Err(errno) => {
                    let error = room.error("fill", &file_name, Cause::Os(errno));
                    size /= 2;
                    match error.wants_room() {
                        true if size > length.max(SMALLEST) => {}
                        true if length == 0 => return remove::remove(&room, &file_name),
                        _ => return Err(error),
                    }
                }
            }
        }
    }
    Ok(())
}

/// Removes such a directory, file by file: the room of a subvolume that is deleted as a whole would come back later.
fn release(dir: &Dir, name: &[u8]) -> Result<()> {
    let there = dir.stat(name)?;
    let on_btrfs = there.is_some() && btrfs::is_btrfs(dir);
    if there.as_ref().is_some_and(Meta::is_dir) {
        let room = dir.subdir(name)?;
        for file in room.names()? {
            remove::remove(&room, &file)?;
        }
        if on_btrfs {
            // There the room can be used only after that, also to remove the subvolume.
            dir.sync_file_system()?;
        }
    }
    match remove::remove(dir, name) {
        // Empty, it takes no room, and stands for the next time.
        Err(error) if on_btrfs && error.wants_room() => Ok(()),
        Ok(()) if on_btrfs => dir.sync_file_system(),
        done => done,
    }
}
