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

/// The digest of the bytes of a file. Blocks of zeros are not in it, only where they are: so it costs as much as there is data, and is the
/// same whether they are on disk or a hole.
pub fn digest(file: &File) -> std::io::Result<[u8; 32]> {
    let size = file.metadata()?.len();
    let mut digest = ContentDigest::default();
    let mut buffer = vec![0u8; SMALL];
    let mut at = 0;
    while at < size {
        let (start, end) = extent(file, at, size)?;
        at = start - start % BLOCK;
        while at < end {
            let length = fill(file, &mut buffer, at)?;
            digest.add(&buffer[..length], at);
            at += length as u64;
            if length < buffer.len() {
                // It ends here, or was cut short meanwhile.
                return Ok(digest.finish(at));
            }
        }
    }
    Ok(digest.finish(size))
}

/// The same of bytes.
pub fn digest_of(bytes: &[u8]) -> [u8; 32] {
    let mut digest = ContentDigest::default();
    digest.add(bytes, 0);
    digest.finish(bytes.len() as u64)
}

/// The blocks of a file that are not all zeros, and where each row of them begins and ends.
#[derive(Default)]
struct ContentDigest {
    data: blake3::Hasher,
    rows: blake3::Hasher,
    /// The last one of them.
    last: (u64, u64),
}

impl ContentDigest {
    /// Adds the bytes at a place that a block begins at, and that lies behind all others.
    fn add(&mut self, bytes: &[u8], at: u64) {
        let mut blocks = bytes.chunks(BLOCK as usize).enumerate().peekable();
        while let Some((first, block)) = blocks.next() {
            if is_zero(block) {
                continue;
            }
            // What lies side by side is hashed at once.
            let begin = first * BLOCK as usize;
            let mut end = begin + block.len();
            while let Some((_, next)) = blocks.next_if(|(_, next)| !is_zero(next)) {
                end += next.len();
            }
            self.data.update(&bytes[begin..end]);
            let (begin, end) = (at + begin as u64, at + end as u64);
            if self.last.1 != begin {
                self.end_row();
                self.last.0 = begin;
            }
            self.last.1 = end;
        }
    }

    fn end_row(&mut self) {
        let (begin, end) = self.last;
        if begin < end {
            self.rows.update(&begin.to_le_bytes());
            self.rows.update(&end.to_le_bytes());
        }
    }

    fn finish(mut self, size: u64) -> [u8; 32] {
        self.end_row();
        let mut all = blake3::Hasher::new();
        all.update(&size.to_le_bytes());
        all.update(self.data.finalize().as_bytes());
        all.update(self.rows.finalize().as_bytes());
        *all.finalize().as_bytes()
    }
}

fn is_zero(block: &[u8]) -> bool {
    static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    block == &ZEROS[..block.len()]
}

/// Reads a file in order, and does not ask the kernel for the bytes of a hole, which it would keep in memory.
pub struct DataReader {
    file: File,
    at: u64,
    /// Where the bytes at `at` end to be data, or to be zeros.
    until: u64,
    is_data: bool,
}

impl DataReader {
    /// From the beginning on.
    pub fn new(file: File) -> Self {
        Self {
            file,
            at: 0,
            until: 0,
            is_data: true,
        }
    }

    /// What there is at `at`.
    fn look(&mut self) -> std::io::Result<()> {
        let size = self.file.metadata()?.len();
        let (start, end) = extent(&self.file, self.at.min(size), size)?;
        self.is_data = start <= self.at;
        self.until = if self.is_data { end } else { start };
        Ok(())
    }
}

impl Read for DataReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at >= self.until {
            self.look()?;
        }
        // At the end the file says so itself, also one that grows.
        let left = self.until.saturating_sub(self.at);
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let length = match self.is_data || left == 0 {
            true => read_at(&self.file, buffer, self.at)?,
            false => {
                let length = most.min(buffer.len());
                buffer[..length].fill(0);
                length
            }
        };
        self.at += length as u64;
        Ok(length)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 GiB of hole took 100 s to compare, since every zero was read and hashed.
    // rule C11, F3
    #[test]
    fn a_hole_has_the_digest_of_its_zeros_and_is_not_read() {
        let world = escrow_testkit::World::new();
        let dir = Dir::open(world.path()).expect("it is there");
        let block = |byte: u8, count: usize| vec![byte; count * BLOCK as usize];
        let odd = [block(0, 3), b"x".to_vec(), vec![0; 700]].concat();
        let rows = [block(1, 20), block(0, 40), block(2, 1), block(0, 2)].concat();
        for (number, bytes) in [vec![], vec![0; 5], block(0, 2), odd, rows]
            .into_iter()
            .enumerate()
        {
            let file = |name: String| dir.create(name.as_bytes(), 0o600).expect("it is new");
            let (dense, sparse) = (file(format!("d{number}")), file(format!("s{number}")));
            dense.write_all_at(&bytes, 0).expect("there is room");
            sparse.set_len(bytes.len() as u64).expect("it grows");
            for (at, part) in bytes
                .chunks(512)
                .enumerate()
                .filter(|(_, part)| !is_zero(part))
            {
                let at = at as u64 * 512;
                sparse.write_all_at(part, at).expect("there is room");
            }
            let wanted = digest_of(&bytes);
            for one in [dense, sparse] {
                assert_eq!(digest(&one).expect("it can be read"), wanted, "{number}");
                let mut read = Vec::new();
                let mut reader = DataReader::new(one);
                reader.read_to_end(&mut read).expect("it can be read");
                assert!(read == bytes, "{number}");
            }
        }
        let large = dir.create(b"large", 0o600).expect("it is new");
        large.set_len(1 << 40).expect("it grows");
        large.write_all_at(b"end", (1 << 40) - 3).expect("it grows");
        let first = digest(&large).expect("it can be read");
        large.write_all_at(b"end", 0).expect("there is room");
        let second = digest(&large).expect("it can be read");
        large.set_len((1 << 40) + 1).expect("it grows");
        let third = digest(&large).expect("it can be read");
        assert!(first != second && second != third && first != third);
    }
}
