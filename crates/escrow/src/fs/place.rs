//! Writes a set of entries below a directory: contents by reflink, link or copy as told, hard-link groups kept,
//! directory metadata last, deepest first.
//!
//! Files get their owner, mode, attributes and times as they are made; directories get theirs when everything in them is
//! there, so that a restrictive mode or a time is not undone by what follows (rules F1 to F5). Several threads may place
//! entries at once.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;

use super::content::{self, Reflinks, Transfer};
use super::copy::clock;
use super::dir::Dir;
use super::handle::EntryHandle;
use super::walk::Shared;
use super::xattr::{self, Xattrs};
use super::{Cause, Flags, FsError, Meta, Result};
use crate::event::Observer;
use crate::model::text::escape;
use crate::model::{EntryKind, ResourcePath};

/// How often a file that changes under our eyes is read again before we give up.
const TRIES: usize = 4;

/// Something that the copy does not have, or not as it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyLoss {
    /// Where.
    pub path: ResourcePath,
    /// What is missing and why.
    pub what: String,
}

/// What was placed.
#[derive(Debug, Default)]
pub struct CopyReport {
    /// Entries below the root.
    pub entries: u64,
    /// Files whose content is shared with the original.
    pub shared: u64,
    /// Files whose content was copied.
    pub copied: u64,
    /// Entries whose copies belong to another owner than the originals.
    pub disowned: u64,
    /// Everything that was left out or could not be kept, sorted.
    pub losses: Vec<CopyLoss>,
}

impl CopyReport {
    /// Everything that is not in the copy, or not as in the original, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .losses
            .iter()
            .map(|loss| format!("'{}': {}", loss.path, loss.what))
            .collect();
        if self.disowned > 0 {
            warnings.push(format!(
                "the copies of {} entries belong to you, not to the owners of the originals",
                self.disowned
            ));
        }
        warnings
    }
}

/// What tells which names are of one file: its file system and its number there, or another number for it.
pub type FileKey = (u64, u64);

/// The first name of a file of several, and what is known of it, once it is there.
type FirstName<T> = Arc<Shared<Option<(ResourcePath, T)>>>;

/// How an entry came to its place.
#[derive(Debug)]
pub enum Placed<T> {
    /// It was made.
    Made(T),
    /// It is another name for what was made before.
    Linked(T),
}

/// How a directory is to look.
#[derive(Debug)]
pub struct DirLook {
    /// Its owner, mode and times.
    pub meta: Meta,
    /// Its attributes.
    pub attributes: Xattrs,
    /// Its flags, if they are to be set.
    pub flags: Option<Flags>,
    /// It may have attributes already, which go.
    pub stood: bool,
}

impl DirLook {
    /// A new directory that looks like another, but for its flags.
    pub fn of(model: &Dir) -> Result<Self> {
        Ok(Self::new(model.meta()?, model.xattrs()?))
    }

    /// A new directory that is to look like this.
    pub fn new(meta: Meta, attributes: Xattrs) -> Self {
        Self {
            meta,
            attributes,
            flags: None,
            stood: false,
        }
    }

    /// Makes a directory look like this. Returns the attributes that cannot be kept.
    pub fn apply(&self, dir: &Dir) -> Result<Vec<Vec<u8>>> {
        let handle = EntryHandle::of(dir);
        if let Some(flags) = self.flags {
            let set = flags.set(dir);
            set.map_err(|errno| dir.error("set the flags of", b"", Cause::Os(errno)))?;
        }
        let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
        if self.stood {
            let wanted = |name: &[u8]| self.attributes.iter().any(|(kept, _)| kept == name);
            let have = dir.xattrs()?.into_iter();
            for (name, _) in have.filter(|(name, _)| !wanted(name)) {
                xattr::remove(&handle, &name).map_err(fail)?;
            }
        }
        let lost = handle.apply_metadata(&self.meta, &self.attributes);
        lost.map_err(fail)
    }
}

/// Places entries below a directory. `T` is what the caller knows of a file of several names.
pub struct Placer<'a, T = ()> {
    root: &'a Dir,
    reflinks: Reflinks,
    /// An attribute of a directory that cannot be kept is an error; otherwise it is reported.
    whole: bool,
    observer: &'a dyn Observer,
    groups: Shared<HashMap<FileKey, FirstName<T>>>,
    /// Every name of a file of several.
    names: Shared<Vec<ResourcePath>>,
    dirs: Shared<Vec<(ResourcePath, DirLook)>>,
    report: Shared<CopyReport>,
}

impl<'a, T: Clone> Placer<'a, T> {
    /// Nothing yet, below `root`; an attribute of a directory that cannot be kept is an error.
    pub fn new(root: &'a Dir, observer: &'a dyn Observer) -> Self {
        Self {
            root,
            reflinks: Reflinks::wanted(),
            whole: true,
            observer,
            groups: Shared::default(),
            names: Shared::default(),
            dirs: Shared::default(),
            report: Shared::default(),
        }
    }

    /// The same; such an attribute is reported.
    pub fn reporting(root: &'a Dir, reflinks: Reflinks, observer: &'a dyn Observer) -> Self {
        Self {
            reflinks,
            whole: false,
            ..Self::new(root, observer)
        }
    }

    /// Fails when the work should be given up.
    pub fn check(&self, (to, name): DirAndName<'_>) -> Result<()> {
        match self.observer.is_cancelled() {
            true => Err(to.error("copy", name, Cause::Cancelled)),
            false => Ok(()),
        }
    }

    /// Places what is no directory at `path`, which is the name `to`: by `make`, which also says whether it is the file
    /// of the key, or as another name for what was made under the same key before.
    pub fn entry<E: From<FsError>>(
        &self,
        key: Option<FileKey>,
        path: &ResourcePath,
        to: DirAndName<'_>,
        make: impl FnOnce() -> std::result::Result<(T, bool), E>,
    ) -> std::result::Result<Placed<T>, E> {
        self.check(to)?;
        let Some(key) = key else {
            let (made, _) = make()?;
            self.report.lock().entries += 1;
            return Ok(Placed::Made(made));
        };
        let first = Arc::clone(self.groups.lock().entry(key).or_default());
        // Held while it is made: further names wait for it.
        let mut first = first.lock();
        let placed = match &*first {
            Some((first, known)) => {
                to.0.hard_link(to.1, self.root, first)?;
                self.observer.copied(1, 0);
                Placed::Linked(known.clone())
            }
            None => {
                let (made, is_it) = make()?;
                if is_it {
                    *first = Some((path.clone(), made.clone()));
                }
                Placed::Made(made)
            }
        };
        self.names.lock().push(path.clone());
        self.report.lock().entries += 1;
        Ok(placed)
    }

    /// Copies what is no directory.
    pub fn copy(
        &self,
        from: DirAndName<'_>,
        to: DirAndName<'_>,
        kind: EntryKind,
        options: CopyOptions<'_>,
    ) -> Result<CopiedLeaf> {
        let leaf = copy_leaf(from, to, kind, &self.reflinks, options)?;
        match leaf.transfer {
            Transfer::Shared => self.report.lock().shared += 1,
            Transfer::Copied => self.report.lock().copied += 1,
            Transfer::Nothing => {}
        }
        self.observer.copied(1, leaf.original.size);
        Ok(leaf)
    }

    /// Notes that something is missing.
    pub fn lost(&self, path: ResourcePath, what: String) {
        self.report.lock().losses.push(CopyLoss { path, what });
    }

    /// Notes an attribute that is missing.
    pub fn lost_attribute(&self, path: ResourcePath, attribute: &[u8]) {
        let what = format!("the attribute {} cannot be kept here", escape(attribute));
        self.lost(path, what);
    }

    /// How the directory at `path` is to look in the end.
    pub fn dir(&self, path: ResourcePath, look: DirLook) {
        self.dirs.lock().push((path, look));
    }

    /// Gives directories their looks, deepest first.
    pub fn finish(self) -> Result<CopyReport> {
        self.names.lock().clear();
        self.finish_with(|_, _, _| {})
    }

    /// The same. `each` is called with what every directory, and every name of a file of several, is in the end; of a
    /// directory with the attributes that it has.
    pub fn finish_with(
        self,
        mut each: impl FnMut(&ResourcePath, &Meta, Option<&Xattrs>),
    ) -> Result<CopyReport> {
        // A further name moves the ctime of an inode, so they are looked at when all are made.
        for path in std::mem::take(&mut *self.names.lock()) {
            // One that turned out to be gone on the other side was taken away again.
            if let Some(found) = self.root.stat_path(&path)? {
                each(&path, &found, None);
            }
        }
        let mut dirs = std::mem::take(&mut *self.dirs.lock());
        // What lies in a directory comes after it in the order of paths.
        dirs.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        for (path, mut look) in dirs {
            let dir = self.root.dir(&path)?;
            let lost = look.apply(&dir)?;
            if self.whole {
                refuse_lost((&dir, b""), &lost)?;
            }
            for attribute in lost {
                look.attributes.retain(|(name, _)| *name != attribute);
                self.lost_attribute(path.clone(), &attribute);
            }
            each(&path, &dir.meta()?, Some(&look.attributes));
            self.report.lock().entries += u64::from(!path.is_root());
        }
        let mut report = self.report.into_inner();
        report.losses.sort_unstable();
        Ok(report)
    }
}

/// Refuses a copy that could not keep every attribute.
pub fn refuse_lost((dir, name): DirAndName<'_>, lost: &[Vec<u8>]) -> Result<()> {
    match lost.is_empty() {
        true => Ok(()),
        false => Err(dir.error("keep the attributes of", name, Cause::Os(Errno::OPNOTSUPP))),
    }
}

/// Whether others may be writing to what is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedWriters {
    /// They may: what changed just now is read a second time, to be sure.
    Live,
    /// They do not, and if one does all the same, its times tell.
    Quiet,
}

/// A name in a directory.
pub type DirAndName<'a> = (&'a Dir, &'a [u8]);

/// How one entry is copied.
#[derive(Clone, Copy)]
pub struct CopyOptions<'a> {
    /// Whether others may be writing to it.
    pub writers: ExpectedWriters,
    /// An attribute that cannot be kept is reported; otherwise it is an error.
    pub lossy: bool,
    /// Makes the metadata and attributes that the copy is to have of those that the original has.
    pub look: &'a dyn Fn(&mut Meta, &mut Xattrs),
}

impl CopyOptions<'static> {
    /// Of something that others may be writing to, with everything it has.
    pub const LIVE: Self = Self {
        writers: ExpectedWriters::Live,
        lossy: false,
        look: &|_, _| {},
    };
    /// Of something that no process writes to, with everything it has.
    pub const QUIET: Self = Self {
        writers: ExpectedWriters::Quiet,
        ..Self::LIVE
    };
}

/// One entry that is no directory, copied.
#[derive(Debug, Clone)]
pub struct CopiedLeaf {
    /// The original's metadata as copied.
    pub original: Meta,
    /// The copy's.
    pub copy: Meta,
    /// The attributes that the copy has.
    pub attributes: Xattrs,
    /// Those that it could not keep.
    pub lost: Vec<Vec<u8>>,
    /// Where it points, if it is a symbolic link.
    pub target: Vec<u8>,
    /// How its bytes came across.
    pub transfer: Transfer,
}

/// Copies one entry that is no directory with all its metadata; nothing may stand at `to`.
pub fn copy_leaf(
    from: DirAndName<'_>,
    to: DirAndName<'_>,
    kind: EntryKind,
    reflinks: &Reflinks,
    options: CopyOptions<'_>,
) -> Result<CopiedLeaf> {
    let leaf = match kind {
        EntryKind::File => copy_file(from, to, reflinks, options)?,
        EntryKind::Symlink | EntryKind::Fifo => copy_special(from, to, kind, options)?,
        kind => return Err(from.0.error("copy", from.1, Cause::Kind(kind.word()))),
    };
    if !options.lossy {
        refuse_lost(from, &leaf.lost)?;
    }
    Ok(leaf)
}

/// Copies one regular file. One that changes meanwhile is copied again.
fn copy_file(
    (from, name): DirAndName<'_>,
    (to, to_name): DirAndName<'_>,
    reflinks: &Reflinks,
    options: CopyOptions<'_>,
) -> Result<CopiedLeaf> {
    for _ in 0..TRIES {
        let (source, before) = from.file(name)?;
        let target = to.create(to_name, 0o600)?;
        let io = |error: std::io::Error| from.io_error("copy", name, &error);
        let set_flags = |errno| to.error("set the flags of", to_name, Cause::Os(errno));
        let flags = Flags::read(&source)
            .map_err(|errno| from.error("read the flags of", name, Cause::Os(errno)))?;
        flags.begin(&target).map_err(set_flags)?;
        let transfer = content::transfer(&source, &target, &before, reflinks).map_err(io)?;
        let mut attributes = xattr::read(&EntryHandle::of(&source))
            .map_err(|errno| from.error("read the attributes of", name, Cause::Os(errno)))?;
        // A write that was under way when the file was opened had moved its ctime already, so for
        // one that changed just now the bytes themselves must agree.
        let unsure = options.writers == ExpectedWriters::Live
            && transfer == Transfer::Copied
            && is_recent(&before);
        let steady = (!unsure || content::same(&source, &target).map_err(io)?)
            && from.meta_of(name, &source)?.same_state(&before);
        if !steady {
            to.unlink(to_name)?;
            continue;
        }
        let lost = apply(
            &EntryHandle::of(&target),
            (to, to_name),
            before,
            &mut attributes,
            options,
        )?;
        // A sandbox does without those that cannot be had: a commit takes them from the original.
        flags.set(&target).map_err(set_flags)?;
        return Ok(CopiedLeaf {
            original: before,
            copy: to.meta_of(to_name, &target)?,
            attributes,
            lost,
            target: Vec::new(),
            transfer,
        });
    }
    Err(from.error("copy", name, Cause::Unsteady))
}

/// Copies a symbolic link or a named pipe.
fn copy_special(
    (from, name): DirAndName<'_>,
    (to, to_name): DirAndName<'_>,
    kind: EntryKind,
    options: CopyOptions<'_>,
) -> Result<CopiedLeaf> {
    let source = from.handle(name)?;
    let fail = |errno| from.error("read the attributes of", name, Cause::Os(errno));
    let original = source.meta().map_err(fail)?;
    if original.kind != kind {
        return Err(from.error("copy", name, Cause::Vanished));
    }
    let mut attributes = xattr::read(&source).map_err(fail)?;
    let mut target = Vec::new();
    match kind {
        EntryKind::Symlink => {
            target = source.read_link().map_err(fail)?;
            to.make_link(to_name, &target)?;
        }
        _ => to.make_fifo(to_name, 0o600)?,
    }
    let handle = to.handle(to_name)?;
    let at = (to, to_name);
    let lost = apply(&handle, at, original, &mut attributes, options)?;
    let copy = to.stat(to_name)?;
    Ok(CopiedLeaf {
        original,
        copy: copy.ok_or_else(|| to.absent("copy", to_name))?,
        attributes,
        lost,
        target,
        transfer: Transfer::Nothing,
    })
}

/// Gives a copy its metadata, and takes from the attributes what it could not keep, which is returned.
fn apply(
    copy: &EntryHandle<'_>,
    (to, name): DirAndName<'_>,
    mut meta: Meta,
    attributes: &mut Xattrs,
    options: CopyOptions<'_>,
) -> Result<Vec<Vec<u8>>> {
    (options.look)(&mut meta, attributes);
    let lost = copy.apply_metadata(&meta, attributes);
    let lost = lost.map_err(|errno| to.error("set the metadata of", name, Cause::Os(errno)))?;
    attributes.retain(|(attribute, _)| !lost.contains(attribute));
    Ok(lost)
}

/// Makes a file anew that lies at `name` with no other name: with flags that only an empty file can be given.
pub fn recast(dir: &Dir, name: &[u8], flags: Flags) -> Result<()> {
    let fresh = [name, b".new"].concat();
    let fail = |errno| dir.error("set the flags of", name, Cause::Os(errno));
    let (source, meta) = dir.file(name)?;
    let target = dir.create(&fresh, 0o600)?;
    flags.begin(&target).map_err(fail)?;
    content::transfer(&source, &target, &meta, &Reflinks::never())
        .map_err(|error| dir.io_error("copy", name, &error))?;
    let attributes = xattr::read(&EntryHandle::of(&source)).map_err(fail)?;
    EntryHandle::of(&target)
        .apply_metadata(&meta, &attributes)
        .map_err(fail)?;
    dir.rename(&fresh, dir, name)
}

/// Whether a change is so fresh that the write behind it may still be going on.
fn is_recent(meta: &Meta) -> bool {
    (meta.ctime.sec - clock().sec).abs() <= 2
}
