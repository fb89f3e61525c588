//! Every new version, complete, in the commit's area; the original untouched.
//!
//! A version is staged as another name for the sandbox's own file, so that no content is copied
//! and the sandbox stays whole. A file that somebody still has open for writing, or that is to
//! lose something on the way, is copied instead, and so is everything where the sandbox stays: the
//! original must not change with it later. Where something outside may still write the sandbox's
//! files, everything is copied, and must be what the preview found.

use std::collections::{BTreeMap, HashMap, HashSet};

use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;

use super::conflicts::{Base, introduced};
use super::flags::Kept;
use super::steps::{Plan, Planned, deepest_first, plan};
use super::{CAPABILITY, Dressing, Link, Looks, Step, TreeIntent, Versions, part, stat};
use crate::event::Observer;
use crate::fs::content::Reflinks;
use crate::fs::copy::{Care, Leaf};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, Handle, Meta, Seen, remove};
use crate::model::text::Location;
use crate::model::{Change, EntryKind, Field, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::shown::{self, Looked, Print, Prints};
use crate::strategy::tree::{self, Original, STAGE};
use crate::strategy::{Intent, PrepareRequest, closed};

/// Where the new versions come from.
pub(in crate::strategy) struct Source<'a> {
    /// The area of the sandbox.
    pub(in crate::strategy) area: &'a Dir,
    /// What holds them, under the paths they have in the resource.
    pub(in crate::strategy) root: &'a dyn Versions,
    /// The attributes of an entry of it as its user sees them.
    pub(in crate::strategy) visible: fn(Xattrs) -> Xattrs,
    /// They stay where they are: what is staged is a copy, with everything it has.
    pub(in crate::strategy) whole: bool,
    /// What the sandbox knows of the original.
    pub(in crate::strategy) base: &'a dyn Base,
}

/// Makes an area empty in which something was staged before.
pub(in crate::strategy) fn begin(area: &std::path::Path, again: bool) -> Result<()> {
    match again {
        true => Ok(remove::remove(&Dir::open(area)?, STAGE)?),
        false => Ok(()),
    }
}

/// Stages everything and returns what is needed to put it in place.
pub(in crate::strategy) fn prepare(
    original: &Original,
    source: &Source<'_>,
    request: &PrepareRequest<'_>,
) -> Result<Intent> {
    let mut root = original.open()?;
    let mut area = Dir::open(request.area)?;
    if source.whole {
        (root, area) = (root.seeing_as(source.area), area.seeing_as(source.area));
    }
    area.make_dir(STAGE, 0o700)?;
    let stage = area.subdir(STAGE)?;
    // Looked at before anything is copied: what is written meanwhile is no part of it.
    let mut part = match request.preview.part {
        true => part::ours(source, request)?,
        false => Vec::new(),
    };
    let plan = plan(&root, request)?;
    let mut staging = Staging {
        original: &root,
        source,
        observer: request.observer,
        apart: request.keeps,
        part: request.preview.part,
        prints: request.preview.prints.as_ref(),
        stage,
        reflinks: Reflinks::wanted(),
        same: HashMap::new(),
        kept: None,
        names: &request.preview.kept,
        links: Vec::new(),
        linked: Vec::new(),
        marked: Vec::new(),
        flags: Kept::of(&root),
        finals: Vec::new(),
        closing: request
            .preview
            .diff
            .changes
            .iter()
            .filter_map(closes)
            .collect(),
    };
    let mut steps = Vec::new();
    for (number, planned) in plan.steps.iter().enumerate() {
        let slot = u32::try_from(number).map_err(|_| StrategyError::Damaged {
            what: "there are too many changes for one commit".to_owned(),
        })?;
        let step = staging.step(slot, planned)?;
        // What became another name for a file of the original needs no step.
        if step.old.is_some() || step.new.is_some() {
            steps.push(step);
        }
    }
    part::look_again(source, &mut part)?;
    let directories = staging.directories(&plan)?;
    let intent = TreeIntent {
        original: original.clone(),
        area: Location::from(request.area),
        steps,
        links: staging.links,
        linked: staging.linked,
        marked: staging.marked,
        directories,
        finished: false,
        own: source.whole.then(|| Location::from(source.area.path())),
        part,
    };
    Ok(intent.store())
}

struct Staging<'a> {
    original: &'a Dir,
    source: &'a Source<'a>,
    observer: &'a dyn Observer,
    /// The sandbox stays: nothing of it is linked.
    apart: bool,
    /// Only a part is released.
    part: bool,
    /// What is to be staged, where something outside may still change it.
    prints: Option<&'a Prints>,
    stage: Dir,
    reflinks: Reflinks,
    /// Sandbox files of several names, by what tells them apart, and where the first of them is staged.
    same: HashMap<u64, ResourcePath>,
    /// Sandbox files that are no change, in the same way.
    kept: Option<HashMap<u64, ResourcePath>>,
    names: &'a [ResourcePath],
    links: Vec<Link>,
    linked: Vec<ResourcePath>,
    marked: Vec<(ResourcePath, Vec<Vec<u8>>)>,
    flags: Kept<'a>,
    /// New directories that get their own mode last.
    finals: Vec<(ResourcePath, Looks)>,
    /// Directories that nobody can look into afterwards.
    closing: HashSet<ResourcePath>,
}

/// The directory that a change closes to its owner.
fn closes(change: &Change) -> Option<ResourcePath> {
    let new = change.new.as_ref();
    let closed =
        new.is_some_and(|new| new.kind == EntryKind::Directory && new.mode & 0o500 != 0o500);
    (closed && !rustix::process::geteuid().is_root()).then(|| change.path.clone())
}

/// Where in the stage the slot of a step is, or what lies `below` it.
pub(super) fn staged_path(slot: u32, below: &[u8]) -> ResourcePath {
    let slot = ResourcePath::root().join(slot.to_string().as_bytes());
    below
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .fold(slot, |path, part| path.join(part))
}

impl Staging<'_> {
    fn step(&mut self, slot: u32, planned: &Planned<'_>) -> Result<Step> {
        let mut below: Vec<(ResourcePath, Seen)> = Vec::new();
        let mut numbers: HashMap<ResourcePath, usize> = HashMap::new();
        let mut new = None;
        let mut made = Vec::new();
        let top = planned.path.as_bytes().len();
        for (path, change) in &planned.new {
            if self.observer.is_cancelled() {
                let cause = Cause::Cancelled;
                return Err(self.stage.error("stage", path.as_bytes(), cause).into());
            }
            let to = staged_path(slot, &path.as_bytes()[top..]);
            let (dir, name) = self.stage.parent(&to)?;
            let is_dir = change.is_none_or(|change| {
                let new = change.new.as_ref();
                new.is_some_and(|new| new.kind == EntryKind::Directory)
            });
            if is_dir {
                dir.make_dir(name, 0o700)?;
                made.push((path.clone(), to.clone()));
            } else if let Some(change) = change
                && !self.leaf(change, &to, (&dir, name))?
            {
                continue;
            }
            self.observer.copied(1, 0);
            let meta = dir.stat(name)?.ok_or_else(|| {
                dir.error("find what was staged as", name, Cause::Os(Errno::NOENT))
            })?;
            match *path == planned.path {
                true => new = Some(Seen::from(&meta)),
                false => {
                    if is_dir {
                        numbers.insert(path.clone(), below.len());
                    }
                    below.push((path.clone(), Seen::from(&meta)));
                }
            }
        }
        // Directories last, deepest first: their times and modes move with what is put in them.
        for (path, to) in made.iter().rev() {
            let seen = Seen::from(&self.dress(path, to, *path == planned.path)?);
            match numbers.get(path) {
                Some(number) => below[*number].1 = seen,
                None => new = Some(seen),
            }
        }
        self.check_writable(&planned.path, planned.old.as_ref())?;
        for (path, old) in &planned.old_below {
            check_loose(path, old)?;
        }
        Ok(Step {
            path: planned.path.clone(),
            slot,
            old: planned.old.as_ref().map(Seen::from),
            old_below: planned
                .old_below
                .iter()
                .map(|(path, meta)| (path.clone(), Seen::from(meta)))
                .collect(),
            new,
            below,
        })
    }

    /// How a directory of the sandbox is to look.
    fn looks(&self, path: &ResourcePath, dir: &Dir) -> Result<Meta> {
        match self.source.root.meta(path)? {
            Some(meta) => Ok(meta),
            None => Ok(dir.meta()?),
        }
    }

    /// Makes a staged directory look like the sandbox's. One that is yet to be moved stays open
    /// to its owner until it is in place.
    fn dress(&mut self, path: &ResourcePath, to: &ResourcePath, is_top: bool) -> Result<Meta> {
        let model = self.source.root.dir(path)?;
        let staged = self.stage.dir(to)?;
        let attributes = tree::xattrs_of(&model)?;
        let meta = self.looks(path, &model)?;
        self.check_looks(path, &meta, &attributes, &[])?;
        let mut looks = meta;
        if is_top && meta.mode & 0o700 != 0o700 {
            looks.mode |= 0o700;
            self.finals.push((path.clone(), Looks::of(&meta)));
        }
        let lost = Handle::of(&staged)
            .dress(&looks, &(self.source.visible)(attributes))
            .map_err(|errno| staged.error("set the metadata of", b"", Cause::Os(errno)))?;
        tree::refuse_lost(&model, b"", &lost)?;
        if !self.source.whole {
            self.flags.give_dir(path, &staged)?;
        }
        Ok(staged.meta()?)
    }

    /// Stages what is no directory; `false` where it will be another name for a file of the
    /// original instead.
    fn leaf(&mut self, change: &Change, to: &ResourcePath, at: (&Dir, &[u8])) -> Result<bool> {
        let (from, name) = self.source.root.parent(&change.path)?;
        let meta = from.stat(name)?.ok_or(StrategyError::Moved {
            path: change.path.clone(),
            what: "it is gone from the sandbox",
        })?;
        if change.new.as_ref().is_some_and(|new| new.kind != meta.kind) {
            return Err(StrategyError::Moved {
                path: change.path.clone(),
                what: "it became another kind of thing in the sandbox",
            });
        }
        if let Some(file) = self.source.root.file(&change.path, &meta) {
            if self.is_kept(change, &meta, file)? {
                return Ok(false);
            }
            if let Some(staged) = self.same.get(&file) {
                at.0.hard_link(at.1, &self.stage, staged)?;
                return Ok(true);
            }
            self.same.insert(file, to.clone());
        }
        let attributes = closed::xattrs(self.source.area, (&from, name), &meta)?;
        let dropped = match meta.kind {
            EntryKind::File if !self.source.whole => introduced(change, meta.mode, &attributes),
            _ => Vec::new(),
        };
        let source = (&from, name);
        // In a directory that is closed by then nobody could take off what shows the sandbox.
        let closing = !self.closing.is_empty()
            && change
                .path
                .ancestors()
                .any(|path| self.closing.contains(&path));
        let target = match (meta.kind, self.prints) {
            (EntryKind::Symlink, Some(_)) => from.read_link(name)?,
            _ => Vec::new(),
        };
        self.check_looks(&change.path, &meta, &attributes, &target)?;
        let exposed = self.prints.is_some();
        let linkable = dropped.is_empty() && !self.source.whole && !closing && !exposed;
        if !linkable || !self.link(&change.path, source, at, &meta, &attributes)? {
            let copied = self.copy((&from, name), at, &meta, &attributes, &dropped)?;
            self.check_copied(&change.path, at, (&meta, &attributes), &copied)?;
        }
        if meta.is_file() && !self.source.whole {
            self.flags.give(&change.path, at)?;
        }
        Ok(true)
    }

    /// What is to be staged at a path, where something outside may still change it and its own user may read it.
    fn print(&self, path: &ResourcePath, meta: &Meta) -> Option<&Print> {
        let print = self.prints.filter(|_| !closed::is_closed(meta))?;
        print.get(path)
    }

    /// Refuses what is not as the preview found it.
    fn check_looks(
        &self,
        path: &ResourcePath,
        meta: &Meta,
        attributes: &Xattrs,
        target: &[u8],
    ) -> Result<()> {
        let Some(print) = self.print(path, meta) else {
            return Ok(());
        };
        let looked = Looked {
            area: self.source.area,
            root: self.source.root,
            visible: self.source.visible,
        };
        match looked.of(meta, attributes.clone(), target, print.content.clone()) == *print {
            true => Ok(()),
            false => Err(changed(path)),
        }
    }

    /// Refuses a copy that is not of what the preview found.
    fn check_copied(
        &self,
        path: &ResourcePath,
        (to, name): (&Dir, &[u8]),
        (meta, attributes): (&Meta, &Xattrs),
        copied: &Leaf,
    ) -> Result<()> {
        let Some(print) = self.print(path, meta) else {
            return Ok(());
        };
        let is_kept = |one: &&(Vec<u8>, Vec<u8>)| !copied.lost.contains(&one.0);
        let same = copied.original.same_state(meta)
            && copied.original.mode == meta.mode
            && attributes.iter().filter(is_kept).eq(&copied.attributes);
        // The staged file, which nothing else can reach, is what is looked at.
        let same = same && (!meta.is_file() || shown::content(to, name)? == print.content);
        match same {
            true => Ok(()),
            false => Err(changed(path)),
        }
    }

    /// Whether a new name in the sandbox is one of a file that the original has, unchanged: then
    /// it becomes another name for that.
    fn is_kept(&mut self, change: &Change, meta: &Meta, file: u64) -> Result<bool> {
        if self.names.is_empty() {
            return Ok(false);
        }
        if self.kept.is_none() {
            let mut kept = HashMap::new();
            for path in self.names {
                let meta = self.source.root.meta(path)?;
                let file = meta.and_then(|meta| self.source.root.file(path, &meta));
                kept.extend(file.map(|file| (file, path.clone())));
            }
            self.kept = Some(kept);
        }
        let Some(to) = self.kept.as_ref().and_then(|kept| kept.get(&file)) else {
            return Ok(false);
        };
        let Some(file) = stat(self.original, to)? else {
            return Ok(false);
        };
        let same = (file.kind, file.size, file.mtime) == (meta.kind, meta.size, meta.mtime);
        if !same || file.fixed {
            return Ok(false);
        }
        self.links.push(Link {
            path: change.path.clone(),
            to: to.clone(),
            file: Seen::from(&file),
        });
        Ok(true)
    }

    /// Stages a file as another name for the sandbox's own; `false` where that cannot be.
    fn link(
        &mut self,
        path: &ResourcePath,
        (from, name): (&Dir, &[u8]),
        (to, to_name): (&Dir, &[u8]),
        meta: &Meta,
        attributes: &Xattrs,
    ) -> Result<bool> {
        let seen = (self.source.visible)(attributes.clone());
        let plain = |one: &(Vec<u8>, Vec<u8>)| attributes.contains(one);
        // An attribute that is stored under another name must be written anew, and what is linked has
        // no privilege, so that one which appears later is known for what it is.
        let privileged = attributes.iter().any(|(name, _)| name == CAPABILITY);
        if self.apart || privileged {
            return Ok(false);
        }
        if meta.kind == EntryKind::Fifo || !seen.iter().all(plain) {
            return Ok(false);
        }
        // What its own user may not read becomes the original's as a copy: nobody can tell later whether it
        // is still written to.
        if meta.is_file() && (closed::is_closed(meta) || !tree::is_quiet(from, name)?) {
            return Ok(false);
        }
        match to.link_to(to_name, from, name) {
            Ok(()) => {}
            Err(error) if cannot_link(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        // The sandbox needs its own marks until it is gone.
        let is_mark = |name: &&Vec<u8>| !seen.iter().any(|(kept, _)| kept == *name);
        let names = attributes.iter().map(|(name, _)| name);
        let marks: Vec<Vec<u8>> = names.filter(is_mark).cloned().collect();
        if !marks.is_empty() {
            self.marked.push((path.clone(), marks));
        }
        self.linked.push(path.clone());
        Ok(true)
    }

    fn copy(
        &self,
        from: (&Dir, &[u8]),
        (to, to_name): (&Dir, &[u8]),
        meta: &Meta,
        attributes: &Xattrs,
        dropped: &[&str],
    ) -> Result<Leaf> {
        let (area, staged) = (self.source.area, (to, to_name));
        let copied = closed::copy(area, from, staged, meta, &self.reflinks, Care::Quiet)?;
        let mut lost = copied.lost.clone();
        self.observer.copied(0, meta.size);
        let seen = (self.source.visible)(attributes.clone());
        let handle = to.handle(to_name)?;
        let fail = |errno| to.error("set the attributes of", to_name, Cause::Os(errno));
        let is_seen = |name: &Vec<u8>| seen.iter().any(|(kept, _)| kept == name);
        let names = attributes.iter().map(|(name, _)| name);
        let mut goes: Vec<&[u8]> = names
            .filter(|name| !is_seen(name))
            .map(|name| &**name)
            .collect();
        if dropped.contains(&"capabilities") {
            goes.push(CAPABILITY);
        }
        goes.retain(|name| !lost.iter().any(|lost| lost == name));
        let comes: Vec<_> = seen
            .iter()
            .filter(|one| !attributes.contains(one))
            .collect();
        let bits = [("setuid", 0o4000_u16), ("setgid", 0o2000)];
        let dropped_bits = bits.iter().filter(|(word, _)| dropped.contains(word));
        let mode = dropped_bits.fold(meta.mode, |mode, (_, bit)| mode & !bit);
        // Only who may write a file may change what it is marked with.
        let opens = meta.is_file() && meta.mode & 0o200 == 0 && goes.len() + comes.len() > 0;
        if opens {
            handle.set_mode(mode | 0o200).map_err(fail)?;
        }
        for name in goes {
            xattr::remove(&handle, name).map_err(fail)?;
        }
        for one in comes {
            xattr::set(&handle, &one.0, &one.1).map_err(fail)?;
        }
        if opens || mode != meta.mode {
            handle.set_mode(mode).map_err(fail)?;
        }
        lost.retain(|name| is_seen(name) && name != CAPABILITY);
        tree::refuse_lost(from.0, from.1, &lost)?;
        Ok(copied)
    }

    /// What can be known before: whether the step will be permitted.
    fn check_writable(&self, path: &ResourcePath, old: Option<&Meta>) -> Result<()> {
        let Ok((dir, _)) = self.original.parent(path) else {
            // Its directory is put there by another step.
            return Ok(());
        };
        let above = path
            .split()
            .map_or_else(ResourcePath::root, |(above, _)| above);
        check_loose(&above, &dir.meta()?)?;
        check_open(&dir)?;
        if let Some(old) = old {
            check_loose(path, old)?;
        }
        // Only within one file system, and one subvolume of it, can a version be put in its place.
        if dir.meta()?.dev != self.stage.meta()?.dev {
            return Err(StrategyError::Forbidden {
                path: path.clone(),
                why: "it lies on another file system or subvolume than the rest of the resource",
            });
        }
        let me = rustix::process::geteuid();
        let (meta, sticky) = (dir.meta()?, 0o1000);
        let theirs = |uid: u32| !me.is_root() && uid != me.as_raw();
        if let Some(old) = old
            && meta.mode & sticky != 0
            && theirs(old.uid)
            && theirs(meta.uid)
        {
            let cause = Cause::Os(Errno::PERM);
            return Err(self
                .original
                .error("replace", path.as_bytes(), cause)
                .into());
        }
        Ok(())
    }

    /// The directories that are dressed when everything else is done.
    fn directories(&mut self, plan: &Plan<'_>) -> Result<Vec<Dressing>> {
        let mut all: BTreeMap<ResourcePath, Dressing> = BTreeMap::new();
        for path in &plan.parents {
            let Some(now) = stat(self.original, path)? else {
                continue;
            };
            all.insert(path.clone(), self.parent(path, &now)?);
        }
        for link in &self.links {
            let Some((parent, _)) = link.path.split() else {
                continue;
            };
            if all.contains_key(&parent) {
                continue;
            }
            let dressing = match stat(self.original, &parent)? {
                Some(now) => self.parent(&parent, &now)?,
                // One that the commit makes: the link moves its time.
                None => {
                    let dir = self.source.root.dir(&parent)?;
                    let looks = Looks::of(&self.looks(&parent, &dir)?);
                    Dressing {
                        path: parent.clone(),
                        seen: None,
                        before: looks.clone(),
                        after: looks,
                        known: false,
                    }
                }
            };
            all.insert(parent, dressing);
        }
        for (change, now) in &plan.looks {
            let path = &change.path;
            let dir = self.original.dir(path)?;
            check_owner(&dir, now)?;
            check_loose(path, now)?;
            let new = self.source.root.dir(path)?;
            let mut dressing = match all.remove(path) {
                Some(known) => known,
                None => self.parent(path, now)?,
            };
            let meta = self.looks(path, &new)?;
            self.check_looks(path, &meta, &tree::xattrs_of(&new)?, &[])?;
            dressing.after.mode = meta.mode;
            dressing.after.owner = match change.fields.contains(&Field::Owner) {
                true => (meta.uid, meta.gid),
                false => (now.uid, now.gid),
            };
            if change.fields.contains(&Field::Xattrs) {
                let read = |dir: &Dir| {
                    xattr::read(&Handle::of(dir))
                        .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))
                };
                dressing.before.xattrs = Some(read(&dir)?);
                dressing.after.xattrs = Some((self.source.visible)(read(&new)?));
            }
            all.insert(path.clone(), dressing);
        }
        for (path, looks) in std::mem::take(&mut self.finals) {
            let (seen, before) = (None, looks.clone());
            let after = looks;
            let dressing = Dressing {
                path: path.clone(),
                seen,
                before,
                after,
                known: false,
            };
            all.insert(path, dressing);
        }
        let sorted = deepest_first(all);
        Ok(sorted.into_iter().map(|(_, dressing)| dressing).collect())
    }

    /// A directory in which something is done: its times become the sandbox's, if nobody else
    /// moved them, and if everything in it is released.
    fn parent(&self, path: &ResourcePath, now: &Meta) -> Result<Dressing> {
        let mut after = Looks::of(now);
        after.mtime = match !self.part && self.source.base.is_still(path, now) {
            true => self.source.root.meta(path)?.map(|meta| meta.mtime),
            false => None,
        };
        let known = self.part && {
            let parent = path.split().map(|(parent, name)| {
                let dir = self.original.dir(&parent);
                dir.map(|dir| (dir, name))
            });
            let parent = parent.transpose()?;
            let at = parent.as_ref().map(|(dir, name)| (dir, *name));
            self.source.base.is_current(path, at, now)?
        };
        Ok(Dressing {
            path: path.clone(),
            seen: Some(Seen::from(now)),
            before: Looks::of(now),
            after,
            known,
        })
    }
}

/// Refuses what nobody could replace, move or remove when it is time to.
fn check_loose(path: &ResourcePath, old: &Meta) -> Result<()> {
    match old.fixed {
        true => Err(StrategyError::Forbidden {
            path: path.clone(),
            why: "it is immutable or append-only in the original; `chattr -i -a` it there first",
        }),
        false => Ok(()),
    }
}

fn changed(path: &ResourcePath) -> StrategyError {
    StrategyError::Moved {
        path: path.clone(),
        what: "it changed in the sandbox while it was committed, though no command was inside",
    }
}

/// Whether names can be changed in a directory, now or once its owner opens it.
fn check_open(dir: &Dir) -> Result<()> {
    match accessat(
        dir,
        c".",
        Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    ) {
        Ok(()) => Ok(()),
        Err(Errno::ACCESS) => check_owner(dir, &dir.meta()?),
        Err(errno) => Err(dir.error("write in", b"", Cause::Os(errno)).into()),
    }
}

fn check_owner(dir: &Dir, meta: &Meta) -> Result<()> {
    let me = rustix::process::geteuid();
    match me.is_root() || meta.uid == me.as_raw() {
        true => Ok(()),
        false => Err(dir.error("write in", b"", Cause::Os(Errno::ACCESS)).into()),
    }
}

/// Whether a failed link says that this file cannot have another name there.
fn cannot_link(error: &crate::fs::FsError) -> bool {
    [
        Errno::XDEV,
        Errno::PERM,
        Errno::MLINK,
        Errno::OPNOTSUPP,
        Errno::ACCESS,
    ]
    .iter()
    .any(|errno| error.is(*errno))
}
