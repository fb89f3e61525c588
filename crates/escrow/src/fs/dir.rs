//! A directory handle from which only what lies beneath it can be reached (`openat2`).
//!
//! Paths are resolved by the kernel in one call (`openat2` with BENEATH, NO_SYMLINKS,
//! NO_MAGICLINKS and NO_XDEV), so that nothing can be swapped between a check and its use
//! (rules S1, S2). Where the kernel or a seccomp filter has no `openat2`, [`Resolver::Checked`]
//! takes one component at a time, each without following, and compares the mount it came to.
//!
//! A path may be longer than the kernel takes at once: it is resolved in pieces (rule F5).

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rayon::prelude::*;
use rustix::fs::{
    self, AtFlags, FileType, Mode, OFlags, RawDir, RawDirEntry, RenameFlags, ResolveFlags,
};
use rustix::io::Errno;

use super::as_owner::as_owner;
use super::handle::EntryHandle;
use super::stat::{is_overlay_type, stat_at, stat_fd};
use super::{Cause, FsError, Meta, Result};
use crate::model::text::Location;
use crate::model::{EntryInfo, EntryKind, ResourcePath};

/// The kernel takes 4095 bytes at once.
const PIECE: usize = 4000;

/// `openat2` answers EAGAIN while something is renamed beside it; then one asks again.
const RACES: usize = 128;

/// A directory of this size or more is asked for its metadata by several threads.
const WIDE: usize = 1024;

/// How paths are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver {
    /// By `openat2`.
    Kernel,
    /// One component at a time, each checked.
    Checked,
}

impl Resolver {
    /// The better one that works here.
    pub fn here() -> Self {
        static HERE: OnceLock<Resolver> = OnceLock::new();
        *HERE.get_or_init(|| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match fs::openat2(fs::CWD, c"/", flags, Mode::empty(), ResolveFlags::empty()) {
                Ok(_) => Self::Kernel,
                Err(_) => Self::Checked,
            }
        })
    }
}

/// One name in a directory and what stands there.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// The name, as bytes.
    pub name: Box<[u8]>,
    /// What the kernel says of it.
    pub meta: Meta,
}

/// Names, and what each names as far as the listing says.
pub type EntryKinds = Vec<(Box<[u8]>, Option<EntryKind>)>;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: Arc<OwnedFd>,
    path: Arc<Path>,
    resolver: Resolver,
    mount: u64,
    last: Option<Arc<Last>>,
}

/// The directory beneath a root that was opened last as the parent of a path, and where it is.
type Last = Mutex<Option<(Arc<Path>, Arc<OwnedFd>)>>;

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens a directory of the machine by its path; its last name must not be a link.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, Resolver::here())
    }

    /// The same with a resolver of the caller's choice.
    pub fn open_with(path: &Path, resolver: Resolver) -> Result<Self> {
        let fail = |errno| failed("open the directory", path.to_owned(), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = as_owner(|| fs::open(path, flags, Mode::empty())).map_err(fail)?;
        let mount = stat_fd(&fd).map_err(fail)?.mount;
        Ok(Self {
            fd: Arc::new(fd),
            path: path.into(),
            resolver,
            mount,
            last: None,
        })
    }

    /// Opens a directory of another root, by its path there: links on the way, which processes in
    /// that root may have laid, are refused, not followed into ours.
    pub fn open_in(root: &Path, path: &Path) -> Result<Self> {
        let located = root.join(path.strip_prefix("/").unwrap_or(path));
        let fail = |errno| failed("open the directory", located.clone(), errno);
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(root, through, Mode::empty()).map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = as_owner(|| fs::openat2(&root, path, flags, Mode::empty(), resolve));
        let fd = fd.map_err(fail)?;
        let mount = stat_fd(&fd).map_err(fail)?.mount;
        Ok(Self {
            fd: Arc::new(fd),
            path: located.into(),
            resolver: Resolver::here(),
            mount,
            last: None,
        })
    }

    /// What stands at a path of the machine, whatever it is; its last name is not followed.
    pub fn look(path: &Path) -> Result<Meta> {
        stat_at(fs::CWD, path.as_os_str().as_bytes())
            .map_err(|errno| failed("look at", path.to_owned(), errno))
    }

    /// Another handle to the same directory: the same open file.
    pub fn again(&self) -> Self {
        self.child_dir(self.fd.clone(), self.path.clone())
    }

    /// The same directory, which keeps the parent of the last path open: a walk over paths in the order of the tree
    /// opens each directory once, not once for each name in it. A directory that this process moves is opened anew.
    /// One that another process moves meanwhile is not: who changes names compares it at the end.
    pub fn keeping(mut self) -> Self {
        self.last = Some(Arc::default());
        self
    }

    /// Where it was opened; for messages, never for access.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where `path` lies; for messages.
    pub fn locate(&self, path: &ResourcePath) -> PathBuf {
        if path.is_root() {
            return self.path.to_path_buf();
        }
        self.path.join(OsStr::from_bytes(path.as_bytes()))
    }

    /// An error about `name` in this directory.
    pub fn error(&self, action: &'static str, name: &[u8], cause: Cause) -> FsError {
        FsError {
            action,
            path: Location::from(self.path.join(OsStr::from_bytes(name))),
            cause: match cause {
                Cause::Os(errno) => Cause::from(errno),
                cause => cause,
            },
        }
    }

    fn fail<'a>(
        &'a self,
        action: &'static str,
        name: &'a [u8],
    ) -> impl Fn(Errno) -> FsError + use<'a> {
        move |errno| failed(action, self.path.join(OsStr::from_bytes(name)), errno)
    }

    fn child_dir(&self, fd: Arc<OwnedFd>, path: Arc<Path>) -> Self {
        Self {
            fd,
            path,
            resolver: self.resolver,
            mount: self.mount,
            last: self.last.clone(),
        }
    }

    /// The directory at `path` beneath this one.
    pub fn dir(&self, path: &ResourcePath) -> Result<Self> {
        let located = self.locate(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = if path.is_root() {
            self.open_quietly(self.fd.as_fd(), b".", flags)
        } else {
            self.resolve(path, flags)
        };
        let fd = fd.map_err(|errno| failed("open the directory", located.clone(), errno))?;
        Ok(self.child_dir(Arc::new(fd), located.into()))
    }

    /// The directory `name` in this one.
    pub fn subdir(&self, name: &[u8]) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = self
            .open_quietly(self.fd.as_fd(), name, flags)
            .map_err(self.fail("open the directory", name))?;
        let path = self.path.join(OsStr::from_bytes(name));
        Ok(self.child_dir(Arc::new(fd), path.into()))
    }

    /// The directory that `path` lies in, and the last name of `path`.
    pub fn parent<'p>(&self, path: &'p ResourcePath) -> Result<(Self, &'p [u8])> {
        let (parent, name) = path
            .split_names()
            .ok_or_else(|| self.error("use", b"", Cause::Kind("directory, the resource itself")))?;
        let open = || match path.split() {
            Some((parent, _)) => self.dir(&parent),
            None => Ok(self.again()),
        };
        let Some(last) = &self.last else {
            return Ok((open()?, name));
        };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((path, fd)) = last.as_ref().filter(|(path, _)| self.locates(parent, path)) {
            return Ok((self.child_dir(fd.clone(), path.clone()), name));
        }
        let dir = open()?;
        *last = Some((dir.path.clone(), dir.fd.clone()));
        Ok((dir, name))
    }

    /// Whether `below`, which is empty for this directory itself, lies at a path of the machine.
    fn locates(&self, below: &[u8], path: &Path) -> bool {
        let (here, there) = (self.path.as_os_str(), path.as_os_str());
        let rest = there.as_bytes().strip_prefix(here.as_bytes());
        match (below.is_empty(), here.as_bytes().ends_with(b"/")) {
            (false, false) => rest.and_then(|rest| rest.strip_prefix(b"/")) == Some(below),
            _ => rest == Some(below),
        }
    }

    /// Forgets the directory that is kept open if it is `name`, or lies in it: something else is there from now on.
    fn forget(&self, name: &[u8]) {
        let Some(last) = &self.last else { return };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = self.path.join(OsStr::from_bytes(name));
        last.take_if(|(path, _)| path.starts_with(&moved));
    }

    fn resolve(&self, path: &ResourcePath, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let mut here: Option<OwnedFd> = None;
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut rest = path.as_bytes();
        let piece = match self.resolver {
            Resolver::Kernel => PIECE,
            Resolver::Checked => 0,
        };
        while rest.len() > piece {
            // The last slash within the piece, else the first one: a name is at most 255 bytes.
            let cut = rest[..piece.min(rest.len())]
                .iter()
                .rposition(|byte| *byte == b'/');
            let Some(cut) = cut.or_else(|| rest.iter().position(|byte| *byte == b'/')) else {
                break;
            };
            let from = here.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            here = Some(self.open_from(from, &rest[..cut], through)?);
            rest = &rest[cut + 1..];
        }
        let from = here.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
        self.open_quietly(from, rest, flags)
    }

    /// Opens for reading. NOATIME: looking is not touching; only the owner may ask for it.
    fn open_quietly(
        &self,
        from: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> std::result::Result<OwnedFd, Errno> {
        match self.open_from(from, path, flags | OFlags::NOATIME) {
            Err(Errno::PERM) => self.open_from(from, path, flags),
            answer => answer,
        }
    }

    /// With [`Resolver::Checked`] `path` is a single name.
    fn open_from(
        &self,
        from: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> std::result::Result<OwnedFd, Errno> {
        match self.resolver {
            Resolver::Kernel => {
                let resolve = ResolveFlags::BENEATH
                    | ResolveFlags::NO_SYMLINKS
                    | ResolveFlags::NO_MAGICLINKS
                    | ResolveFlags::NO_XDEV;
                for _ in 0..RACES {
                    match as_owner(|| fs::openat2(from, path, flags, Mode::empty(), resolve)) {
                        Err(Errno::AGAIN | Errno::INTR) => continue,
                        answer => return answer,
                    }
                }
                Err(Errno::AGAIN)
            }
            Resolver::Checked => {
                let flags = flags | OFlags::NOFOLLOW;
                let opened = as_owner(|| fs::openat(from, path, flags, Mode::empty()));
                let fd = opened.map_err(|errno| match stat_at(from, path) {
                    // A link answers ENOTDIR where a directory was asked for.
                    Ok(meta) if meta.kind == EntryKind::Symlink => Errno::LOOP,
                    _ => errno,
                })?;
                match stat_fd(&fd)?.mount == self.mount {
                    true => Ok(fd),
                    false => Err(Errno::XDEV),
                }
            }
        }
    }

    /// Opens the regular file `name` for reading. Never follows, never waits for a pipe.
    pub fn file(&self, name: &[u8]) -> Result<(File, Meta)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.open_quietly(self.fd.as_fd(), name, flags);
        let fd = fd.map_err(self.fail("open", name))?;
        let meta = stat_fd(&fd).map_err(self.fail("look at", name))?;
        if !meta.is_file() {
            return Err(self.error("read", name, Cause::Kind(meta.kind.word())));
        }
        Ok((File::from(fd), meta))
    }

    /// Opens the regular file at `path` beneath.
    pub fn file_path(&self, path: &ResourcePath) -> Result<(File, Meta)> {
        let (dir, name) = self.parent(path)?;
        dir.file(name)
    }

    /// The path by which calls that take no directory reach `name` in this one, and nothing else. They must not follow.
    pub(super) fn proc_path(&self, name: &[u8]) -> Vec<u8> {
        [EntryHandle::of(self).proc_path().as_bytes(), b"/", name].concat()
    }

    /// Holds whatever stands at `name` without opening it.
    pub fn handle(&self, name: &[u8]) -> Result<EntryHandle<'static>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // NO_SYMLINKS would refuse to hold a link itself; a single name cannot lead anywhere.
        as_owner(|| fs::openat(&self.fd, name, flags, Mode::empty()))
            .map(EntryHandle::Unopened)
            .map_err(self.fail("look at", name))
    }

    /// What stands at `name`; `None` where nothing does.
    pub fn stat(&self, name: &[u8]) -> Result<Option<Meta>> {
        match stat_at(self.fd.as_fd(), name) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.fail("look at", name)(errno)),
        }
    }

    /// What stands at `path` beneath; `None` where nothing does.
    pub fn stat_path(&self, path: &ResourcePath) -> Result<Option<Meta>> {
        if path.is_root() {
            return self.meta().map(Some);
        }
        match self.parent(path) {
            Ok((dir, name)) => dir.stat(name),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The metadata of this directory.
    pub fn meta(&self) -> Result<Meta> {
        stat_fd(&self.fd).map_err(self.fail("look at", b""))
    }

    /// The metadata of an open file of this directory.
    pub fn meta_of(&self, name: &[u8], file: &File) -> Result<Meta> {
        stat_fd(file).map_err(self.fail("look at", name))
    }

    /// Whether another file system or a bind mount begins at an entry of this tree.
    pub fn is_mount_point(&self, meta: &Meta) -> bool {
        meta.mount != self.mount
    }

    /// Whether `path` lies on the mount of this directory. One that cannot be looked at does not.
    pub fn shares_mount(&self, path: &Path) -> bool {
        let found = stat_at(fs::CWD, path.as_os_str().as_encoded_bytes());
        let mount = |meta: Meta| (meta.mount, meta.dev);
        found.is_ok_and(|meta| self.meta().is_ok_and(|own| mount(own) == mount(meta)))
    }

    /// Everything in this directory, sorted by name. One listing at a time: the handle has one position.
    pub fn entries(&self) -> Result<Vec<DirEntry>> {
        let mut names = self.names()?;
        names.sort_unstable();
        let look = |name: Box<[u8]>| match self.stat(&name) {
            // Gone since it was listed: another process removed it, so it is not there.
            Ok(meta) => Ok(meta.map(|meta| DirEntry { name, meta })),
            Err(error) => Err(error),
        };
        if names.len() < WIDE {
            names
                .into_iter()
                .filter_map(|name| look(name).transpose())
                .collect()
        } else {
            names
                .into_par_iter()
                .filter_map(|name| look(name).transpose())
                .collect()
        }
    }

    /// At most so many entries of this directory, in the order of the file system.
    pub fn first_entries(&self, most: usize) -> Result<Vec<DirEntry>> {
        let look = |name: Box<[u8]>| Ok(self.stat(&name)?.map(|meta| DirEntry { name, meta }));
        let names = self.first_names(most)?.into_iter();
        names.filter_map(|name| look(name).transpose()).collect()
    }

    /// The names of everything in this directory, in the order of the file system.
    pub fn names(&self) -> Result<Vec<Box<[u8]>>> {
        self.first_names(usize::MAX)
    }

    /// Every name, and what it names as far as the listing says.
    pub fn kinds(&self) -> Result<EntryKinds> {
        self.listed(usize::MAX, |entry| match entry.file_type() {
            FileType::Directory => Some(EntryKind::Directory),
            FileType::Symlink => Some(EntryKind::Symlink),
            FileType::RegularFile => Some(EntryKind::File),
            _ => None,
        })
    }

    fn first_names(&self, most: usize) -> Result<Vec<Box<[u8]>>> {
        let all = self.listed(most, |_| ())?.into_iter();
        Ok(all.map(|(name, ())| name).collect())
    }

    /// Every name, and the number of what it names.
    pub(super) fn numbered_names(&self) -> Result<Vec<(Box<[u8]>, u64)>> {
        self.listed(usize::MAX, |entry| entry.ino())
    }

    fn listed<T>(
        &self,
        most: usize,
        fact: impl Fn(&RawDirEntry<'_>) -> T,
    ) -> Result<Vec<(Box<[u8]>, T)>> {
        let fail = self.fail("list the directory", b"");
        fs::seek(&self.fd, fs::SeekFrom::Start(0)).map_err(&fail)?;
        let mut names = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut listing = RawDir::new(&self.fd, &mut buffer);
        while names.len() < most
            && let Some(entry) = listing.next()
        {
            let entry = entry.map_err(&fail)?;
            let name = entry.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push((name.into_boxed_slice(), fact(&entry)));
            }
        }
        Ok(names)
    }

    /// Where the symbolic link `name` points.
    pub fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        as_owner(|| fs::readlinkat(&self.fd, name, Vec::new()))
            .map(CString::into_bytes)
            .map_err(self.fail("read the link", name))
    }

    /// What a diff says of `name`.
    pub fn facts(&self, name: &[u8], meta: &Meta) -> Result<EntryInfo> {
        let mut facts = meta.facts();
        if meta.kind == EntryKind::Symlink {
            let target = Location::from_bytes(&self.read_link(name)?);
            facts.target = Some(Box::new(target));
        }
        Ok(facts)
    }

    /// A new file for writing; fails where `name` exists. The umask applies to `mode`.
    pub fn create(&self, name: &[u8], mode: u16) -> Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        as_owner(|| fs::openat(&self.fd, name, flags, raw_mode(mode)))
            .map(File::from)
            .map_err(self.fail("create", name))
    }

    /// The file `name` for writing over what it holds, or a new one. Its length stays until it is set.
    pub fn write_over(&self, name: &[u8], mode: u16) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        as_owner(|| fs::openat(&self.fd, name, flags, raw_mode(mode)))
            .map(File::from)
            .map_err(self.fail("create", name))
    }

    /// A new file without a name, with the group and access control list of any new file here.
    pub fn create_unnamed(&self, mode: u16) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        as_owner(|| fs::openat(&self.fd, c".", flags, raw_mode(mode)))
            .map(File::from)
            .map_err(self.fail("create a file in", b""))
    }

    /// Gives a file without a name its name; fails where `name` exists.
    pub fn name_it(&self, file: &File, name: &[u8]) -> Result<()> {
        let path = EntryHandle::of(file).proc_path();
        as_owner(|| fs::linkat(fs::CWD, &*path, &self.fd, name, AtFlags::SYMLINK_FOLLOW))
            .map_err(self.fail("create", name))
    }

    /// A new directory; fails where `name` exists. The umask applies to `mode`.
    pub fn make_dir(&self, name: &[u8], mode: u16) -> Result<()> {
        as_owner(|| fs::mkdirat(&self.fd, name, raw_mode(mode)))
            .map_err(self.fail("create the directory", name))
    }

    /// A new symbolic link.
    pub fn make_link(&self, name: &[u8], target: &[u8]) -> Result<()> {
        as_owner(|| fs::symlinkat(target, &self.fd, name))
            .map_err(self.fail("create the link", name))
    }

    /// A new named pipe.
    pub fn make_fifo(&self, name: &[u8], mode: u16) -> Result<()> {
        as_owner(|| fs::mknodat(&self.fd, name, FileType::Fifo, raw_mode(mode), 0))
            .map_err(self.fail("create the named pipe", name))
    }

    /// What hides a name in a layer: a character device 0:0, which every user may make.
    pub fn make_whiteout(&self, name: &[u8]) -> Result<()> {
        as_owner(|| fs::mknodat(&self.fd, name, FileType::CharacterDevice, raw_mode(0), 0))
            .map_err(self.fail("hide", name))
    }

    /// Another name for the entry at `path` beneath `root`.
    pub fn hard_link(&self, name: &[u8], root: &Self, path: &ResourcePath) -> Result<()> {
        let (dir, first) = root.parent(path)?;
        self.link_to(name, &dir, first)
    }

    /// Another name for the entry `first` of `dir`.
    pub fn link_to(&self, name: &[u8], dir: &Self, first: &[u8]) -> Result<()> {
        as_owner(|| fs::linkat(&dir.fd, first, &self.fd, name, AtFlags::empty()))
            .map_err(self.fail("create the hard link", name))
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        as_owner(|| fs::unlinkat(&self.fd, name, AtFlags::empty()))
            .map_err(self.fail("remove", name))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.forget(name);
        as_owner(|| fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
            .map_err(self.fail("remove the directory", name))
    }

    /// Moves `name` to `to_name` in `to`, replacing what is there.
    pub fn rename(&self, name: &[u8], to: &Self, to_name: &[u8]) -> Result<()> {
        self.rename_with(name, (to, to_name), RenameFlags::empty(), "move")
    }

    /// Moves `name` to `to_name` in `to`, where nothing may stand.
    pub fn rename_new(&self, name: &[u8], to: &Self, to_name: &[u8]) -> Result<()> {
        self.rename_with(name, (to, to_name), RenameFlags::NOREPLACE, "move")
    }

    /// Swaps two entries in one step.
    pub fn exchange(&self, name: &[u8], to: &Self, to_name: &[u8]) -> Result<()> {
        self.rename_with(name, (to, to_name), RenameFlags::EXCHANGE, "exchange")
    }

    fn rename_with(
        &self,
        name: &[u8],
        (to, to_name): (&Self, &[u8]),
        flags: RenameFlags,
        action: &'static str,
    ) -> Result<()> {
        self.forget(name);
        to.forget(to_name);
        let step = || match flags.is_empty() {
            true => fs::renameat(&self.fd, name, &to.fd, to_name),
            false => fs::renameat_with(&self.fd, name, &to.fd, to_name, flags),
        };
        as_owner(step).map_err(self.fail(action, name))
    }

    /// Refuses if this directory is closed to writing, to its owner too.
    pub fn check_open(&self) -> Result<()> {
        self.writable(b".").map_err(self.fail("write in", b""))
    }

    /// Refuses a directory in which this user cannot change names, not as its owner either: this one (`.`), or `name`.
    pub fn check_writable(&self, name: &[u8]) -> Result<()> {
        as_owner(|| self.writable(name)).map_err(self.fail("write in", name))
    }

    fn writable(&self, name: &[u8]) -> std::result::Result<(), Errno> {
        let access = fs::Access::WRITE_OK | fs::Access::EXEC_OK;
        fs::accessat(&self.fd, name, access, AtFlags::EACCESS)
    }

    /// Opens the directory `name` to its owner, who may have closed it. By handle: whatever is
    /// swapped in under the name is not hit.
    pub fn make_readable(&self, name: &[u8]) -> Result<()> {
        let fail = self.fail("set the mode of", name);
        let handle = self.handle(name)?;
        let meta = handle.meta().map_err(&fail)?;
        if !meta.is_dir() || meta.mode & 0o700 == 0o700 {
            return Ok(());
        }
        handle.set_mode(meta.mode | 0o700).map_err(fail)
    }

    /// A number that tells the file system of this directory from others, also after a reboot;
    /// zero where the kernel has only one that changes.
    pub fn file_system(&self) -> Result<u64> {
        /// What the kernel calls xfs. Its number is made from the device, which may be renamed.
        const XFS: i64 = 0x5846_5342;
        let fail = self.fail("look at the file system of", b"");
        let kind = fs::fstatfs(&self.fd).map_err(&fail)?.f_type as i64;
        if kind == XFS {
            return Ok(0);
        }
        Ok(fs::fstatvfs(&self.fd).map_err(fail)?.f_fsid)
    }

    /// Whether this directory lies on an overlay file system.
    pub fn is_overlay(&self) -> Result<bool> {
        let fail = self.fail("look at the file system of", b"");
        Ok(is_overlay_type(&fs::fstatfs(&self.fd).map_err(fail)?))
    }

    /// How many bytes this user may still write to the file system of this directory.
    pub fn free_space(&self) -> Result<u64> {
        let room = fs::fstatvfs(&self.fd).map_err(self.fail("look at the file system of", b""))?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    /// How many files this user may still make there; `None` where the file system does not count them.
    pub fn free_files(&self) -> Result<Option<u64>> {
        let room = fs::fstatvfs(&self.fd).map_err(self.fail("look at the file system of", b""))?;
        Ok((room.f_files > 0).then_some(room.f_favail))
    }

    /// Makes the names in this directory durable. Called once: a failed sync is final.
    pub fn sync(&self) -> Result<()> {
        fs::fsync(&self.fd).map_err(self.fail("sync", b""))
    }

    /// Makes everything written to the file system of this directory durable.
    pub fn sync_file_system(&self) -> Result<()> {
        fs::syncfs(&self.fd).map_err(self.fail("sync the file system of", b""))
    }
}

/// The mode bits as the system calls take them.
pub(super) fn raw_mode(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode))
}

fn failed(action: &'static str, path: PathBuf, errno: Errno) -> FsError {
    let cause = match errno {
        Errno::LOOP => Cause::Link,
        Errno::XDEV if action.starts_with("open") => Cause::Mount,
        errno => Cause::from(errno),
    };
    FsError {
        action,
        path: Location::from(path),
        cause,
    }
}
