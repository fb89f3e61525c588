//! Shared by all directory strategies: opens original and area, writes a file, compares two entries.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::{Access, CreateRequest, Created, LiveView, Mount, unsupported};
use crate::fs::areas;
use crate::fs::atomic_file::AtomicFile;
use crate::fs::content::DataReader;
use crate::fs::state_dir;
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Flags, FsError, Meta, content, lease, place};
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, ChangedField, EntryKind, ResourcePath, SandboxRef};

/// Where staged files wait inside an area.
pub(super) const STAGE: &[u8] = b"stage";

/// How often a tree that changes under our eyes is looked at again.
const TRIES: usize = 8;

/// The directory that was sandboxed: its path, and what tells it from another directory that was
/// moved or mounted there since. Of a file it is the directory that holds it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Original {
    at: Location,
    identity: Identity,
    /// The file, if not everything in the directory is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    only: Option<ResourcePath>,
}

/// What makes a directory itself. Not its device: that number may be another after a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    inode: u64,
    born: (i64, u32),
    file_system: u64,
}

impl Identity {
    fn of(dir: &Dir) -> Result<Self> {
        let meta = dir.meta()?;
        Ok(Self {
            inode: meta.ino,
            born: (meta.born.sec, meta.born.nsec),
            file_system: dir.file_system()?,
        })
    }
}

impl Original {
    /// Opens a directory for the first time.
    pub(super) fn take(at: &Path) -> Result<(Self, Dir)> {
        let dir = Dir::open(at)?;
        let original = Self {
            at: Location::from(at),
            identity: Identity::of(&dir)?,
            only: None,
        };
        Ok((original, dir))
    }

    /// The same for a directory or one file, which is a tree of one entry.
    pub(super) fn take_any(at: &Path) -> Result<(Self, Dir)> {
        let holder = at.parent().zip(at.file_name());
        match (Dir::look(at)?.is_dir(), holder) {
            (false, Some((parent, name))) => {
                let (mut original, dir) = Self::take(parent)?;
                original.only = Some(ResourcePath::root().join(name.as_bytes()));
                Ok((original, dir))
            }
            _ => Self::take(at),
        }
    }

    /// The file, if not everything in the directory is meant.
    pub(super) fn only(&self) -> Option<&ResourcePath> {
        self.only.as_ref()
    }

    /// Refuses a path that is not part of it.
    pub(super) fn check(&self, path: &ResourcePath) -> Result<()> {
        match &self.only {
            Some(only) if only != path => Err(StrategyError::Outside {
                path: path.clone(),
                only: only.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Leaves out what is not part of it.
    pub(super) fn retain(&self, changes: &mut Vec<Change>) {
        if let Some(only) = &self.only {
            changes.retain(|change| change.path == *only);
        }
    }

    /// Refuses to commit what is beside the file, which no process would ever see again, and anything but
    /// a file in its place.
    pub(super) fn check_changes(&self, changes: &[Change]) -> Result<()> {
        let Some(only) = &self.only else {
            return Ok(());
        };
        let forbidden = |path: &ResourcePath, why: &str| {
            Err(StrategyError::Forbidden {
                path: path.clone(),
                why: why.to_owned(),
            })
        };
        for change in changes {
            let new = change.new.as_ref().map(|new| new.kind);
            if change.path == *only && new.is_some_and(|kind| kind != EntryKind::File) {
                let why =
                    "the resource is one file, and can only become another file, or be deleted";
                return forbidden(only, why);
            }
            if !change.path.lies_in(only) {
                let why = "the resource is one file, and this lies beside it; move it elsewhere, or remove it";
                return forbidden(&change.path, why);
            }
        }
        Ok(())
    }

    /// Opens it again, if it is still the same directory.
    pub(super) fn open(&self) -> Result<Dir> {
        let dir = match Dir::open(self.at.as_path()) {
            Err(error) if error.is_absent() => {
                return Err(StrategyError::Gone {
                    original: self.at.clone(),
                });
            }
            answer => answer?,
        };
        if Identity::of(&dir)? != self.identity {
            return Err(StrategyError::Replaced {
                original: self.at.clone(),
            });
        }
        Ok(dir)
    }
}

/// Leaves out what belongs to others: the paths of other resources with everything below, the
/// removal of directories that they lie in, and areas of ours. Work that was done in what belongs to
/// another resource is refused, since no process would commit it.
pub(super) fn only_own(changes: &mut Vec<Change>, carved: &[ResourcePath]) {
    changes.retain(|change| {
        let ours = change.path.parts().any(state_dir::is_area_beside);
        let apart = carved.iter().all(|one| !change.path.lies_in(one));
        let holds = |one: &ResourcePath| one.lies_in(&change.path);
        !ours && apart && !(change.new.is_none() && carved.iter().any(holds))
    });
}

/// Refuses to commit while there is work in what belongs to another resource: no process would ever see
/// it again. So it does while a directory is half moved.
pub(super) fn check_stray(changes: &[Change], carved: &[ResourcePath]) -> Result<()> {
    let stray = changes.iter().find(|change| {
        let in_it = |one: &ResourcePath| change.path.lies_in(one) && change.path != *one;
        change.new.is_some() && carved.iter().any(in_it)
    });
    // Every process was killed while a directory was moved for a command.
    let torn = changes.iter().find(|change| {
        let parts = change.path.as_bytes().split(|byte| *byte == b'/');
        let mut names = parts.filter(|name| name.starts_with(areas::HALF_MOVED));
        change.new.is_some() && names.next().is_some()
    });
    if let Some(change) = torn {
        return Err(StrategyError::Forbidden {
            path: change.path.clone(),
            why: "it is a part of a directory whose rename was cut off: move what is in it back, or restore a checkpoint"
                .to_owned(),
        });
    }
    match stray {
        Some(change) => Err(StrategyError::Forbidden {
            path: change.path.clone(),
            why: "it belongs to another resource; move it into that one's sandbox, or remove it"
                .to_owned(),
        }),
        None => Ok(()),
    }
}

/// Refuses a path that belongs to another resource.
pub(super) fn check_carved(path: &ResourcePath, carved: &[ResourcePath]) -> Result<()> {
    match carved.iter().any(|one| path.lies_in(one)) {
        true => Err(StrategyError::Carved { path: path.clone() }),
        false => Ok(()),
    }
}

/// How a plain tree is reached: at the path of the original appears the tree, or the one file in it if it is there.
pub(super) fn access(
    original: &Original,
    tree: &Dir,
    area: Option<&Dir>,
    live: Option<&LiveView>,
) -> Result<Access> {
    let at = original.at.as_path();
    let (at, shown) = match original.only() {
        None => (at.to_owned(), Some(tree.path().to_owned())),
        Some(only) => {
            let file = tree.stat_path(only)?.filter(Meta::is_file);
            let at = at.join(OsStr::from_bytes(only.as_bytes()));
            (at, file.map(|_| tree.locate(only)))
        }
    };
    let mount = |shown| Mount {
        at: Location::from(at),
        view: View::Directory(Location::from(shown)),
        area: area.map(|area| Location::from(area.path())),
    };
    let cwd = match live {
        Some(live) => Location::from(view(live)?.path()),
        None => Location::from(tree.path()),
    };
    Ok(Access {
        mounts: shown.map(mount).into_iter().collect(),
        cwd: Some(cwd),
        ..Access::default()
    })
}

/// The path of the resource, and the area, that a directory strategy is given.
pub(super) fn places<'r>(
    strategy: &str,
    request: &CreateRequest<'r>,
) -> Result<(&'r Path, &'r Path)> {
    let missing = |what: &str, why: &str| unsupported(strategy, what, why);
    let path = request.target.path();
    let path = path.ok_or_else(|| missing("sandbox the resource", "it has no path"))?;
    let area = request.area;
    let area = area.ok_or_else(|| missing("make a sandbox", "it was given no area"))?;
    Ok((path, area))
}

/// A sandbox that was made.
pub(super) fn created(
    strategy: &str,
    request: &CreateRequest<'_>,
    metadata: &impl Serialize,
    message: impl Into<String>,
    warnings: Vec<String>,
) -> Created {
    Created {
        sandbox: SandboxRef {
            plan_id: request.plan_id,
            resource_id: request.target.resource_id,
            strategy_name: strategy.to_owned(),
            metadata: stored(metadata),
        },
        message: message.into(),
        warnings,
    }
}

/// The area of a commit, or of a restore.
pub(super) fn commit_area<'r>(strategy: &str, area: Option<&'r Path>) -> Result<&'r Path> {
    area.ok_or_else(|| unsupported(strategy, "stage anything", "it was given no area"))
}

/// The sandbox as a running command sees it.
pub(super) fn view(live: &LiveView) -> Result<Dir> {
    Ok(Dir::open_in(live.root.as_path(), live.path.as_path())?)
}

/// Refuses a view at whose path something else stands than the sandbox.
pub(super) fn check_view(live: &LiveView, right: impl FnOnce(&Dir) -> Result<bool>) -> Result<()> {
    match right(&view(live)?)? {
        true => Ok(()),
        false => Err(StrategyError::Displaced {
            at: live.path.clone(),
        }),
    }
}

/// Refuses a view at whose path something else stands than this directory.
pub(super) fn check_view_of(live: &LiveView, dir: &Dir) -> Result<()> {
    let own = dir.meta()?;
    check_view(live, |seen| {
        let seen = seen.meta()?;
        Ok((seen.dev, seen.ino) == (own.dev, own.ino))
    })
}

/// What a strategy wrote into [`SandboxRef::metadata`].
pub(super) fn metadata<T: DeserializeOwned>(sandbox: &SandboxRef) -> Result<T> {
    parse(&sandbox.metadata, "its metadata")
}

/// What a strategy wrote into a value of the store.
pub(super) fn parse<T: DeserializeOwned>(value: &serde_json::Value, what: &str) -> Result<T> {
    T::deserialize(value).map_err(|error| StrategyError::Damaged {
        what: format!("{what} cannot be read ({error})"),
    })
}

/// The same as a value to store.
pub(super) fn stored(metadata: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(metadata).expect("plain structs of text and numbers are JSON")
}

/// Says of a failed access to `path` what the caller can do about it.
pub(super) fn explain(path: &ResourcePath, error: FsError) -> StrategyError {
    let path = path.clone();
    match error.cause {
        _ if error.is_absent() => StrategyError::NotThere { path },
        Cause::Kind(kind) => StrategyError::NotAFile {
            path,
            kind: kind.to_owned(),
        },
        _ if error.leaves() => StrategyError::Leaves {
            path,
            source: error,
        },
        _ => StrategyError::Fs(error),
    }
}

/// Opens a file of a plain tree for reading.
pub(super) fn read(root: &Dir, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
    if path.is_root() {
        return Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: "directory".to_owned(),
        });
    }
    let look = || {
        let (dir, name) = root.parent(path)?;
        Ok((dir.stat(name)?, dir, name))
    };
    let (meta, dir, name) = look().map_err(|error| explain(path, error))?;
    if replaceable(meta, path)?.is_none() {
        return Err(StrategyError::NotThere { path: path.clone() });
    }
    let (file, _) = dir.file(name).map_err(|error| explain(path, error))?;
    Ok(Box::new(DataReader::new(file)))
}

/// The directory at `path` in a plain tree, made with all above it where it is missing.
pub(super) fn make_directories(root: &Dir, path: &ResourcePath) -> Result<Dir> {
    let mut dir = root.again();
    let mut walked = ResourcePath::root();
    for name in path.parts() {
        walked = walked.join(name);
        dir = match dir.subdir(name) {
            Err(error) if error.is(Errno::NOENT) => {
                dir.check_open()?;
                dir.make_dir(name, 0o777)?;
                dir.subdir(name)?
            }
            Err(error) if error.is(Errno::NOTDIR) => {
                return Err(StrategyError::InTheWay {
                    path: walked,
                    kind: dir
                        .stat(name)?
                        .map_or("file", |meta| meta.kind.word())
                        .to_owned(),
                });
            }
            answer => answer.map_err(|error| explain(path, error))?,
        };
    }
    Ok(dir)
}

/// The file that `content` is about to replace, if one is there.
///
/// Anything but a file is refused: a link would be followed, a directory lost.
pub(super) fn replaceable(meta: Option<Meta>, path: &ResourcePath) -> Result<Option<Meta>> {
    match meta {
        Some(meta) if !meta.is_file() => Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: meta.kind.word().to_owned(),
        }),
        meta => Ok(meta),
    }
}

/// Puts a file with this content at `name` in `to`, wholly or not at all, by way of `stage`.
///
/// `before` is what it replaces, whose metadata it keeps.
pub(super) fn put(
    stage: &Dir,
    to: &Dir,
    path: &ResourcePath,
    name: &[u8],
    before: Option<(Meta, Xattrs)>,
    content: &mut dyn Read,
) -> Result<Change> {
    // Who writes a file is held by modes, as with any other program.
    to.check_open()?;
    let old = before.as_ref().map(|(meta, _)| meta.facts());
    let draft = AtomicFile {
        stage,
        to,
        name,
        fresh: before.is_none(),
        synced: true,
    };
    let mut unreadable = None;
    let written = draft.write(
        |file| pour(content, file, &mut unreadable),
        |file| match before {
            Some((meta, attributes)) => keep(to, name, file, meta, attributes),
            None => Ok(()),
        },
    );
    match (written, unreadable) {
        (Err(_), Some(source)) => Err(StrategyError::Input {
            path: path.clone(),
            source,
        }),
        (Err(error), None) => Err(error.into()),
        (Ok(()), _) => {
            let absent = || StrategyError::NotThere { path: path.clone() };
            let new = to.stat(name)?.ok_or_else(absent)?.facts();
            let path = path.clone();
            Ok(match old {
                None => Change::added(path, new),
                // The same bytes again are a write all the same.
                Some(old) => Change::replaced(path, old, new),
            })
        }
    }
}

/// Copies `content` into `file`, telling an error of the one from an error of the other.
fn pour(
    content: &mut dyn Read,
    file: &mut BufWriter<&File>,
    unreadable: &mut Option<std::io::Error>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => file.write_all(&buffer[..length])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                *unreadable = Some(error);
                return Err(std::io::ErrorKind::Other.into());
            }
        }
    }
}

/// The attributes of a directory.
pub(super) fn xattrs_of(dir: &Dir) -> Result<Xattrs> {
    Ok(dir.xattrs()?)
}

/// Refuses a copy that could not keep every attribute.
pub(super) fn refuse_lost(dir: &Dir, name: &[u8], lost: &[Vec<u8>]) -> Result<()> {
    Ok(place::refuse_lost((dir, name), lost)?)
}

/// Writes a file of a plain tree; by way of `stage`, or else of a private name beside it.
pub(super) fn write(
    root: &Dir,
    stage: Option<&Dir>,
    path: &ResourcePath,
    content: &mut dyn Read,
) -> Result<Change> {
    let Some((parent, name)) = path.split() else {
        return Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: "directory".to_owned(),
        });
    };
    let dir = make_directories(root, &parent)?;
    let before = match replaceable(dir.stat(name)?, path)? {
        Some(meta) => Some((meta, xattrs(&dir, name)?)),
        None => None,
    };
    put(stage.unwrap_or(&dir), &dir, path, name, before, content)
}

/// Gives a rewritten file the metadata of the old one, less what any write takes away.
fn keep(
    dir: &Dir,
    name: &[u8],
    file: &File,
    mut meta: Meta,
    mut attributes: Xattrs,
) -> crate::fs::Result<()> {
    meta.mode &= !0o6000;
    attributes.retain(|(attribute, _)| attribute != b"security.capability");
    let lost = EntryHandle::of(file)
        .apply_metadata_without_times(&meta, &attributes)
        .map_err(|errno| dir.error("set the metadata of", name, Cause::Os(errno)))?;
    // Where what it replaces is not here, or may not be read, its flags come when it is released.
    if let Ok((old, _)) = dir.file(name) {
        let set = Flags::read(&old).and_then(|flags| flags.set(file));
        set.map_err(|errno| dir.error("set the flags of", name, Cause::Os(errno)))?;
    }
    match lost.is_empty() {
        true => Ok(()),
        false => Err(dir.error("keep the attributes of", name, Cause::Os(Errno::PERM))),
    }
}

/// The attributes of `name` in `dir`.
pub(super) fn xattrs(dir: &Dir, name: &[u8]) -> Result<Xattrs> {
    let fail = |errno| dir.error("read the attributes of", name, Cause::Os(errno));
    // Most entries have none, which takes one call to know.
    if xattr::names_at(dir, name).map_err(fail)?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(xattr::read(&dir.handle(name)?).map_err(fail)?)
}

/// The same; `None` where this user may not read them.
pub(super) fn xattrs_if_open(dir: &Dir, name: &[u8]) -> Result<Option<Xattrs>> {
    match xattrs(dir, name) {
        Err(StrategyError::Fs(error)) if error.is(Errno::ACCESS) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Those of them that are `visible`. The kernel marks every file that it copies up, so most have a mark and nothing else,
/// which takes one call to know.
fn visible_xattrs(dir: &Dir, name: &[u8], visible: fn(Xattrs) -> Xattrs) -> Result<Option<Xattrs>> {
    let names = match xattr::names_at(dir, name) {
        Err(Errno::ACCESS) => return Ok(None),
        Err(errno) => {
            let error = dir.error("read the attributes of", name, Cause::Os(errno));
            return Err(error.into());
        }
        Ok(names) => names,
    };
    match visible(xattr::without_values(names)).is_empty() {
        true => Ok(Some(Vec::new())),
        false => Ok(xattrs_if_open(dir, name)?.map(visible)),
    }
}

/// The fields without the owner, where this user could not have made an entry with that of `old`.
pub(super) fn ownable(mut fields: Vec<ChangedField>, old: &Meta) -> Vec<ChangedField> {
    fields.retain(|field| *field != ChangedField::Owner || can_own(old));
    fields
}

/// Whether this user could have made an entry with this owner. One who cannot gets copies of
/// their own, which is no change that any process made.
fn can_own(meta: &Meta) -> bool {
    let user = rustix::process::geteuid();
    if user.is_root() || meta.uid != user.as_raw() {
        return user.is_root();
    }
    let groups = rustix::process::getgroups().unwrap_or_default();
    let own = rustix::process::getegid();
    groups
        .iter()
        .chain([&own])
        .any(|group| group.as_raw() == meta.gid)
}

/// Whether no process has a file open for writing.
pub(super) fn is_quiet(dir: &Dir, name: &[u8]) -> Result<bool> {
    let (file, _) = dir.file(name)?;
    Ok(lease::is_quiet(&file))
}

/// Looks again where something vanished between being listed and being looked at: others may be
/// at work in the tree.
pub(super) fn steady<T>(look: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..TRIES {
        match look() {
            Err(StrategyError::Fs(error)) if error.is_absent() => {}
            answer => return answer,
        }
    }
    look()
}

/// In what two versions of a path, of the same kind, differ, attributes as they are `visible`; `same` says whether files
/// of the same size hold the same. Attributes that this user may not read are not compared.
pub(super) fn differences(
    name: &[u8],
    (old_dir, old): (&Dir, &Meta),
    (new_dir, new): (&Dir, &Meta),
    visible: fn(Xattrs) -> Xattrs,
    same: impl FnOnce() -> Result<bool>,
) -> Result<Vec<ChangedField>> {
    let mut fields = Vec::new();
    if old.mode != new.mode && new.kind != EntryKind::Symlink {
        fields.push(ChangedField::Mode);
    }
    if (old.uid, old.gid) != (new.uid, new.gid) {
        fields.push(ChangedField::Owner);
    }
    let seen = |dir: &Dir| visible_xattrs(dir, name, visible);
    if let (Some(theirs), Some(ours)) = (seen(old_dir)?, seen(new_dir)?)
        && theirs != ours
    {
        fields.push(ChangedField::Xattrs);
    }
    match new.kind {
        EntryKind::Symlink if old_dir.read_link(name)? != new_dir.read_link(name)? => {
            fields.push(ChangedField::Target);
        }
        EntryKind::File if old.size != new.size || !same()? => fields.push(ChangedField::Content),
        _ => {}
    }
    Ok(fields)
}

/// The entry at `path`, with the directory it lies in; the root itself for the root.
pub(super) fn entry_at(root: &Dir, path: &ResourcePath) -> Result<Option<(Dir, Meta)>> {
    if path.is_root() {
        return Ok(Some((root.again(), root.meta()?)));
    }
    let (dir, name) = match root.parent(path) {
        Ok(found) => found,
        // Another process removed the directory, or put a link in its place.
        Err(error) if error.is_absent() || error.leaves() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(dir.stat(name)?.map(|meta| (dir, meta)))
}

/// The change from one version of a path to another, each with the directory it lies in, or itself for the root; `visible`
/// leaves out attributes, and `narrow` fields, that tell nothing.
pub(super) fn change(
    path: &ResourcePath,
    (old_dir, old): (&Dir, &Meta),
    (new_dir, new): (&Dir, &Meta),
    visible: fn(Xattrs) -> Xattrs,
    narrow: impl FnOnce(Vec<ChangedField>) -> Vec<ChangedField>,
) -> Result<Option<Change>> {
    let name = path.split().map_or(&b"."[..], |(_, name)| name);
    let fields = match new.kind == old.kind {
        true => {
            let same = || same_content((new_dir, name), (old_dir, name));
            let fields = differences(name, (old_dir, old), (new_dir, new), visible, same)?;
            narrow(fields)
        }
        false => Vec::new(),
    };
    let facts = (old_dir.facts(name, old)?, new_dir.facts(name, new)?);
    Ok(Change::between(path.clone(), facts.0, facts.1, fields))
}

/// Whether two regular files hold the same bytes; sizes are equal already. What this user may not
/// read cannot be known to be the same.
pub(super) fn same_content(a: (&Dir, &[u8]), b: (&Dir, &[u8])) -> Result<bool> {
    let open = |at: (&Dir, &[u8])| match at.0.file(at.1) {
        Err(error) if error.is(Errno::ACCESS) => Ok(None),
        answer => answer.map(|(file, _)| Some(file)),
    };
    let (Some(left), Some(right)) = (open(a)?, open(b)?) else {
        return Ok(false);
    };
    let same = content::same(&left, &right);
    Ok(same.map_err(|error| a.0.io_error("compare", a.1, &error))?)
}
