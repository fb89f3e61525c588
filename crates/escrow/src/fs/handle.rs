//! A handle to one entry, to read and set its owner, mode, attributes and times.
//!
//! By handle, so that nothing swapped in under the name is hit instead (rule S2).

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{self as sys, AtFlags, Gid, Timespec, Timestamps, Uid};
use rustix::io::{Errno, Result};

use super::dir::{Dir, raw_mode};
use super::meta::{Meta, Stamp};
use super::stat::stat_fd;
use super::xattr::{self, Xattrs};
use super::{Cause, FsError};
use crate::model::EntryKind;

/// An entry that can be given its metadata.
#[derive(Debug)]
pub enum EntryHandle<'a> {
    /// A file or directory that is open.
    Open(BorrowedFd<'a>),
    /// Anything else, a link or a named pipe among them, held without being opened.
    Unopened(OwnedFd),
}

impl<'a> EntryHandle<'a> {
    /// The handle of something open.
    pub fn of(open: &'a impl AsFd) -> Self {
        Self::Open(open.as_fd())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Open(fd) => *fd,
            Self::Unopened(fd) => fd.as_fd(),
        }
    }

    /// The name by which calls that need a path reach exactly this entry.
    pub(super) fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd().as_raw_fd())
    }

    /// What the kernel says of it.
    pub fn meta(&self) -> Result<Meta> {
        stat_fd(self.fd())
    }

    /// Where it points, if it is a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        Ok(sys::readlinkat(self.fd(), c"", Vec::new())?.into_bytes())
    }

    /// Gives it to the owner of another entry, as far as this user may.
    pub fn give_to(&self, model: &Meta) -> Result<()> {
        self.set_owner(model.uid, model.gid)
    }

    /// Sets the owner as far as this user may. Who cannot give files away keeps them.
    fn set_owner(&self, uid: u32, gid: u32) -> Result<()> {
        let me = rustix::process::geteuid().as_raw();
        // A chown that changes nothing would still take setuid bits and capabilities away.
        let have = self.meta()?;
        if (have.uid, have.gid) == (uid, gid) {
            return Ok(());
        }
        let uid = (me == 0 || me == uid).then(|| Uid::from_raw(uid));
        let gid = Some(Gid::from_raw(gid));
        match sys::chownat(self.fd(), c"", uid, gid, AtFlags::EMPTY_PATH) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sets the permission bits; a link has none.
    pub fn set_mode(&self, mode: u16) -> Result<()> {
        match self {
            Self::Open(fd) => sys::fchmod(fd, raw_mode(mode)),
            Self::Unopened(_) => {
                sys::chmodat(sys::CWD, self.proc_path(), raw_mode(mode), AtFlags::empty())
            }
        }
    }

    fn set_times(&self, atime: Stamp, mtime: Stamp) -> Result<()> {
        let spec = |stamp: Stamp| Timespec {
            tv_sec: stamp.sec,
            tv_nsec: stamp.nsec.into(),
        };
        let times = Timestamps {
            last_access: spec(atime),
            last_modification: spec(mtime),
        };
        match self {
            Self::Open(fd) => sys::futimens(fd, &times),
            Self::Unopened(fd) => sys::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH),
        }
    }

    /// Makes this entry look like `model`. Returns the attributes that this user or this file
    /// system could not keep.
    ///
    /// The order matters: a new owner clears setuid and capabilities, a user's attributes need
    /// write permission, and a new mode rewrites the access control list.
    pub fn apply_metadata(&self, model: &Meta, attributes: &Xattrs) -> Result<Vec<Vec<u8>>> {
        let lost = self.apply_metadata_without_times(model, attributes)?;
        self.set_times(model.atime, model.mtime)?;
        Ok(lost)
    }

    /// Gives an entry owner, mode and times, each only where it differs; its attributes stay.
    pub fn reapply_metadata(&self, model: &Meta) -> Result<()> {
        self.set_owner(model.uid, model.gid)?;
        let now = self.meta()?;
        // A new owner may have taken bits away.
        if now.mode != model.mode && model.kind != EntryKind::Symlink {
            self.set_mode(model.mode)?;
        }
        if now.mtime == model.mtime {
            return Ok(());
        }
        match self.set_times(now.atime, model.mtime) {
            // Who may write in a directory of another user changes its time by that, and can set no other one.
            Err(Errno::PERM) if now.uid != rustix::process::geteuid().as_raw() => Ok(()),
            answer => answer,
        }
    }

    /// The same but for the times: the content is new.
    pub fn apply_metadata_without_times(
        &self,
        model: &Meta,
        attributes: &Xattrs,
    ) -> Result<Vec<Vec<u8>>> {
        self.set_owner(model.uid, model.gid)?;
        let mut lost = Vec::new();
        let mut set = |wanted: &dyn Fn(&[u8]) -> bool| {
            for (name, value) in attributes.iter().filter(|(name, _)| wanted(name)) {
                match xattr::set(self, name, value) {
                    Ok(()) => {}
                    Err(errno) if xattr::cannot_be_kept(errno) => lost.push(name.clone()),
                    Err(errno) => return Err(errno),
                }
            }
            Ok(())
        };
        let is_acl = |name: &[u8]| name.starts_with(b"system.posix_acl_");
        set(&|name| !is_acl(name))?;
        if model.kind != EntryKind::Symlink {
            self.set_mode(model.mode)?;
        }
        set(&is_acl)?;
        Ok(lost)
    }
}

impl Dir {
    /// The attributes of this directory.
    pub fn xattrs(&self) -> super::Result<Xattrs> {
        xattr::read(&EntryHandle::of(self))
            .map_err(|errno| self.error("read the attributes of", b"", Cause::Os(errno)))
    }

    /// Everything in the file `name`.
    pub fn read(&self, name: &[u8]) -> super::Result<Vec<u8>> {
        let (mut file, _) = self.file(name)?;
        let mut bytes = Vec::new();
        match file.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(self.io_error("read", name, &error)),
        }
    }

    /// An error of reading or writing `name` in this directory.
    pub fn io_error(&self, action: &'static str, name: &[u8], error: &std::io::Error) -> FsError {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        self.error(action, name, Cause::Os(errno))
    }

    /// The error that there is no `name` in this directory.
    pub fn absent(&self, action: &'static str, name: &[u8]) -> FsError {
        self.error(action, name, Cause::Os(Errno::NOENT))
    }
}
