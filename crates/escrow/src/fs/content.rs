//! File contents: copies them with their holes, and compares them.

use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs as sys;
use rustix::io::Errno;

use super::{Dir, Meta};

/// A file up to this size is read and written in one go, which is quicker than asking the
/// kernel to copy it.
const SMALL: usize = 64 * 1024;

/// A file of one block has no hole beside its data.
const BLOCK: u64 = 4096;

/// What is to be written is kept in memory up to this size.
const SPOOLED_IN_MEMORY: u64 = 1 << 20;

/// Whether contents may be shared with the copy, and whether that still works.
#[derive(Debug)]
pub struct Reflinks {
    working: AtomicBool,
}

impl Reflinks {
    /// Contents are shared where the file system can.
    pub fn wanted() -> Self {
        Self {
            working: AtomicBool::new(true),
        }
    }

    /// Contents are copied.
    pub fn never() -> Self {
        Self {
            working: AtomicBool::new(false),
        }
    }
}

/// How the bytes came across.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// Both files share them until one of the two is changed.
    Shared,
    /// They were copied.
    Copied,
    /// There are none.
    Nothing,
}

/// Brings the bytes of `from` into the empty file `to`; holes stay holes.
pub fn transfer(
    from: &File,
    to: &File,
    meta: &Meta,
    reflinks: &Reflinks,
) -> std::io::Result<Transfer> {
    if meta.size == 0 {
        return Ok(Transfer::Nothing);
    }
    if reflinks.working.load(Ordering::Relaxed) {
        match sys::ioctl_ficlone(to, from) {
            Ok(()) => return Ok(Transfer::Shared),
            // This file system, or this pair of them, shares nothing: do not ask again.
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {
                reflinks.working.store(false, Ordering::Relaxed);
            }
            // This one file cannot be shared, by its own settings.
            Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if has_holes(from, meta)? {
        copy_extents(from, to, meta.size)?;
    } else if meta.size <= SMALL as u64 {
        copy_small(from, to, meta.size as usize)?;
    } else {
        copy_range(from, to, 0, u64::MAX)?;
    }
    Ok(Transfer::Copied)
}

/// Whether part of a file is not on disk. Its blocks alone do not tell: attributes and
/// preallocated space count among them.
fn has_holes(file: &File, meta: &Meta) -> std::io::Result<bool> {
    if meta.blocks * 512 < meta.size {
        return Ok(true);
    }
    if meta.size <= BLOCK {
        return Ok(false);
    }
    match sys::seek(file, sys::SeekFrom::Hole(0)) {
        Ok(hole) => Ok(hole < meta.size),
        // Another process is just cutting it short; that is noticed by its times.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A file that grows meanwhile is noticed by the caller, by its times.
fn copy_small(from: &File, mut to: &File, size: usize) -> std::io::Result<()> {
    let mut buffer = vec![0u8; size];
    let length = fill(from, &mut buffer, 0)?;
    to.write_all(&buffer[..length])
}

/// Copies only where there is data, then sets the length.
fn copy_extents(from: &File, to: &File, size: u64) -> std::io::Result<()> {
    let mut at = 0;
    while at < size {
        let start = match sys::seek(from, sys::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = match sys::seek(from, sys::SeekFrom::Hole(start)) {
            Ok(end) => end,
            // It was cut short between the two.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        copy_range(from, to, start, end - start)?;
        at = end;
    }
    to.set_len(size)
}

/// Copies `length` bytes from `start` on, or up to the end, inside the kernel where it can.
fn copy_range(from: &File, to: &File, start: u64, length: u64) -> std::io::Result<()> {
    let (mut read_at, mut write_at, mut left) = (start, start, length);
    while left > 0 {
        let step = left.min(1 << 30) as usize;
        match sys::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), step) {
            Ok(0) => return Ok(()),
            Ok(copied) => left -= copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => {
                return copy_by_hand(from, to, read_at, left);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(mut from: &File, mut to: &File, start: u64, mut left: u64) -> std::io::Result<()> {
    from.seek(SeekFrom::Start(start))?;
    to.seek(SeekFrom::Start(start))?;
    let mut buffer = vec![0u8; 4 * SMALL];
    while left > 0 {
        let step = left.min(buffer.len() as u64) as usize;
        match read(&mut from, &mut buffer[..step])? {
            0 => return Ok(()),
            length => {
                to.write_all(&buffer[..length])?;
                left -= length as u64;
            }
        }
    }
    Ok(())
}

/// Whether two open files hold the same bytes. Stops at the first difference; where both have
/// holes nothing is read.
pub fn same(a: &File, b: &File) -> std::io::Result<bool> {
    let size = a.metadata()?.len();
    if size != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0u8; SMALL], vec![0u8; SMALL]);
    let mut at = 0;
    while at < size {
        let (first, second) = (extent(a, at, size)?, extent(b, at, size)?);
        let next = if first.0 <= second.0 { first } else { second };
        at = next.0;
        while at < next.1 {
            let step = (next.1 - at).min(SMALL as u64) as usize;
            let length = fill(a, &mut left[..step], at)?;
            if length != fill(b, &mut right[..step], at)? || left[..length] != right[..length] {
                return Ok(false);
            }
            if length < step {
                // Both were cut short meanwhile, at the same place.
                return Ok(true);
            }
            at += length as u64;
        }
    }
    Ok(true)
}

/// The next stretch of data at or behind `at`: where it begins and ends.
fn extent(file: &File, at: u64, size: u64) -> std::io::Result<(u64, u64)> {
    let start = match sys::seek(file, sys::SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok((size, size)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((at, size)),
        Err(errno) => return Err(errno.into()),
    };
    match sys::seek(file, sys::SeekFrom::Hole(start)) {
        Ok(end) => Ok((start, end.min(size))),
        // It was cut short between the two.
        Err(Errno::NXIO) => Ok((size, size)),
        Err(errno) => Err(errno.into()),
    }
}

fn fill(from: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read_at(from, &mut buffer[filled..], at + filled as u64)? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

fn read_at(from: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    loop {
        match from.read_at(buffer, at) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            answer => return answer,
        }
    }
}

fn read(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            answer => return answer,
        }
    }
}

/// Takes in everything that can be read from `from`: a little into memory, more into a file
/// without a name in `dir`, of which nothing stays. The inner error is that of the source.
pub fn spool(from: &mut dyn Read, dir: &Dir) -> super::Result<std::io::Result<Box<dyn Read>>> {
    let mut head = Vec::new();
    if let Err(error) = from.take(SPOOLED_IN_MEMORY).read_to_end(&mut head) {
        return Ok(Err(error));
    }
    if (head.len() as u64) < SPOOLED_IN_MEMORY {
        return Ok(Ok(Box::new(Cursor::new(head))));
    }
    let mut rest = match dir.create_unnamed(0o600) {
        // Not every file system knows files without a name; then one loses its name at once.
        Err(error) if error.is(Errno::OPNOTSUPP) || error.is(Errno::ISDIR) => {
            let name = format!(".escrow-{}", uuid::Uuid::now_v7().simple());
            let file = dir.create(name.as_bytes(), 0o600)?;
            dir.unlink(name.as_bytes())?;
            file
        }
        answer => answer?,
    };
    let mut buffer = vec![0u8; SMALL];
    let kept = |error: std::io::Error| dir.io_error("keep what is to be written in", b"", &error);
    loop {
        match read(&mut &mut *from, &mut buffer) {
            Ok(0) => break,
            Ok(length) => rest.write_all(&buffer[..length]).map_err(kept)?,
            Err(error) => return Ok(Err(error)),
        }
    }
    rest.seek(SeekFrom::Start(0)).map_err(kept)?;
    Ok(Ok(Box::new(Cursor::new(head).chain(rest))))
}

/// Whether files on the file system of `dir` can share their contents; tried on two files
/// without a name, of which nothing stays.
pub fn can_share(dir: &Dir) -> super::Result<()> {
    let fail = |errno| dir.error("share contents in", b"", super::Cause::Os(errno));
    let (from, to) = (dir.create_unnamed(0o600)?, dir.create_unnamed(0o600)?);
    rustix::io::write(&from, &[b'e'; 4096]).map_err(fail)?;
    sys::ioctl_ficlone(&to, &from).map_err(fail)
}
