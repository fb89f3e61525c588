//! Stages every new version, complete, in the commit area. The original is not touched.
//!
//! A version is staged as another name for the sandbox's own file, so that no content is copied
//! and the sandbox stays whole. A file that another process still has open for writing, or that is to
//! lose something on the way, is copied instead, and so is everything where the sandbox stays: the
//! original must not change with it later. Where something outside may still write the sandbox's
//! files, everything is copied. So nothing changes what is staged, and digests are made of that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;

use rustix::io::Errno;

use super::conflicts::{OriginalBase, introduced};
use super::flags::OriginalFlags;
use super::intent::{self, FINISHED, INTENT, IntentEntry, IntentReference, RecordFileWriter};
use super::steps::{PlannedStep, StagedContent, plan};
use super::undo_choices::TextKeeper;
use super::{
    CAPABILITY, KeptLink, StageRequest, VersionSource, check_loose, overlaid, stat, without,
};
use crate::event::Observer;
use crate::failpoints;
use crate::fs::lease::is_quiet;
use crate::fs::place::{CopyOptions, DirAndName, DirLook, Placed, Placer, refuse_lost};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Fingerprint, Meta, exposure};
use crate::model::digest::{VersionDigest, VersionDigests};
use crate::model::text::Location;
use crate::model::{Change, EntryKind, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree::{self, Original, STAGE};
use crate::strategy::{Intent, StagedCommit, tree_digest};

/// Where the new versions come from.
pub(in crate::strategy) struct StageSource<'a> {
    /// The area of the sandbox.
    pub(in crate::strategy) area: &'a Dir,
    /// What holds them, under the paths they have in the resource.
    pub(in crate::strategy) root: &'a dyn VersionSource,
    /// They stay where they are: what is staged is a copy, with everything it has.
    pub(in crate::strategy) whole: bool,
    /// What the sandbox knows of the original.
    pub(in crate::strategy) base: &'a dyn OriginalBase,
}

/// Stages everything and returns what is needed to put it in place.
pub(in crate::strategy) fn prepare(
    original: &Original,
    source: &StageSource<'_>,
    request: &StageRequest<'_>,
) -> Result<StagedCommit> {
    let root = original.open()?.keeping();
    let area = Dir::open(request.area)?;
    area.make_dir(STAGE, 0o700)?;
    let stage = area.subdir(STAGE)?.keeping();
    let mut records = intent::create(&area, INTENT)?;
    let unwritten = |error: std::io::Error| intent::failed(&area, INTENT, "write", &error);
    let overlaid = root.is_overlay()?;
    if overlaid {
        overlaid::check(&area, &stage)?;
    }
    let mut staging = StageJob {
        original: &root,
        source,
        observer: request.observer,
        apart: request.keeps,
        exposed: !failpoints::bug("exposed-files-linked") && exposure::is_exposed(source.area)?,
        digests: request.digests.then(Vec::new),
        part: request.part.is_some(),
        texts: &request.preview.texts,
        fixed: &request.preview.fixed,
        overlaid,
        device: stage.meta()?.dev,
        stage: &stage,
        checked: None,
        placer: Placer::new(&stage, request.observer),
        kept: None,
        names: &request.preview.kept,
        links: Vec::new(),
        flags: OriginalFlags::of(&root),
        records: &mut records,
        unwritten: &unwritten,
    };
    let (mut slot, mut steps) = (0_u32, 0_usize);
    let mut texts = TextKeeper::new(&area, &stage);
    let is_stuck = |path: &ResourcePath| match overlaid {
        true => overlaid::is_stuck(&root, path, &area),
        false => Ok(false),
    };
    let around = plan(&root, request, &is_stuck, &mut |mut planned| {
        if let Some(old) = planned.old.filter(|_| overlaid) {
            planned.old = Some(overlaid::lasting(&root, &planned.path, old)?);
        }
        steps += usize::from(staging.step(slot, &planned)?);
        if !source.whole {
            texts.keep(slot, planned.old)?;
        }
        slot = slot.checked_add(1).ok_or_else(|| StrategyError::Damaged {
            what: "there are too many changes for one commit".to_owned(),
        })?;
        Ok(())
    })?;
    staging.directories(&around)?;
    let digests = staging.digests.take().unwrap_or_default();
    let written = intent::close(&area, INTENT, records)?;
    intent::reserve(&area, FINISHED, written.length)?;
    let reference = IntentReference {
        original: original.clone(),
        area: Location::from(request.area),
        own: source.whole.then(|| Location::from(source.area.path())),
        part: request.part.clone(),
        finished: false,
        kept_until: None,
        file: INTENT.to_owned(),
        digest: written.digest,
        linked: written.linked,
    };
    Ok(StagedCommit {
        intent: Intent(tree::stored(&reference)),
        digests,
    })
}

pub(super) struct StageJob<'a> {
    pub(super) original: &'a Dir,
    pub(super) source: &'a StageSource<'a>,
    observer: &'a dyn Observer,
    /// The sandbox stays: nothing of it is linked.
    apart: bool,
    /// Something outside may still write files of the sandbox: nothing of it is linked.
    exposed: bool,
    /// What was staged, if that is asked for.
    digests: Option<VersionDigests>,
    /// Only a part is released.
    pub(super) part: bool,
    /// What is staged instead of the sandbox's versions.
    texts: &'a BTreeMap<ResourcePath, Vec<u8>>,
    /// Paths at which the original has what cannot be moved.
    pub(super) fixed: &'a BTreeSet<ResourcePath>,
    pub(super) stage: &'a Dir,
    /// The original lies on an overlay file system.
    overlaid: bool,
    /// The file system of the stage.
    pub(super) device: u64,
    /// The last directory in which a step was found to be possible.
    pub(super) checked: Option<(ResourcePath, Meta)>,
    /// Of a sandbox file of several names its digest is known.
    placer: Placer<'a, Option<VersionDigest>>,
    /// Sandbox files that are no change, in the same way.
    kept: Option<HashMap<u64, ResourcePath>>,
    pub(super) names: &'a [ResourcePath],
    pub(super) links: Vec<KeptLink>,
    pub(super) flags: OriginalFlags<'a>,
    /// Where everything is noted that is to be done.
    pub(super) records: &'a mut RecordFileWriter,
    pub(super) unwritten: &'a dyn Fn(std::io::Error) -> StrategyError,
}

/// A directory that is staged, and gets its looks when everything in it is.
struct StagedDir<'a> {
    path: &'a ResourcePath,
    to: ResourcePath,
    old: Option<Fingerprint>,
}

/// How a file is staged.
#[derive(Default)]
struct StagedFile {
    /// It is the sandbox's own, under another name.
    linked: bool,
    /// Marks of a layer on it.
    marks: Vec<Vec<u8>>,
    /// The file, if it was opened.
    opened: Option<(File, Meta)>,
}

/// Where in the stage the slot of a step is, or what lies `below` it.
pub(super) fn staged_path(slot: u32, below: &[u8]) -> ResourcePath {
    let slot = ResourcePath::root().join(slot.to_string().as_bytes());
    below
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .fold(slot, |path, part| path.join(part))
}

fn entry(path: &ResourcePath, old: Option<Fingerprint>) -> IntentEntry {
    IntentEntry {
        path: path.clone(),
        old,
        new: None,
        linked: false,
        marks: Vec::new(),
    }
}

impl StageJob<'_> {
    /// Stages a step and notes it; `false` where nothing is to be done: it became another name for a file of the original.
    fn step(&mut self, slot: u32, planned: &PlannedStep<'_>) -> Result<bool> {
        let top = planned.path.as_bytes().len();
        let mut open: Vec<StagedDir<'_>> = Vec::new();
        let mut own = entry(&planned.path, planned.old);
        for item in &planned.items {
            let path = &*item.path;
            self.placer.check((self.stage, path.as_bytes()))?;
            while let Some(done) = open.pop_if(|last| !path.lies_in(last.path)) {
                self.close(&done, &mut own)?;
            }
            let old = item.old;
            if old.is_some() {
                check_loose(path, self.fixed.contains(path))?;
            }
            let change = match item.new {
                StagedContent::Nothing => {
                    self.note(&entry(path, old))?;
                    continue;
                }
                StagedContent::Holder => None,
                StagedContent::Changed(change) => Some(change),
            };
            let to = staged_path(slot, &path.as_bytes()[top..]);
            let (dir, name) = self.stage.parent(&to)?;
            let file = change.filter(|change| {
                let new = change.new.as_ref();
                new.is_none_or(|new| new.kind != EntryKind::Directory)
            });
            let Some(change) = file else {
                dir.make_dir(name, 0o700)?;
                self.observer.copied(1, 0);
                open.push(StagedDir { path, to, old });
                continue;
            };
            let mut staged = entry(path, old);
            let seen = match *path == planned.path {
                true => planned.old,
                false => old,
            };
            if let Some(leaf) = self.leaf(change, seen, &to, (&dir, name))? {
                let meta = dir.stat(name)?;
                let meta = meta.ok_or_else(|| dir.absent("find what was staged as", name))?;
                staged.new = Some(Fingerprint::from(&meta));
                (staged.linked, staged.marks) = (leaf.linked, leaf.marks);
            }
            match *path == planned.path {
                true => {
                    own = IntentEntry {
                        old: own.old,
                        ..staged
                    }
                }
                false if staged.old.is_some() || staged.new.is_some() => self.note(&staged)?,
                false => {}
            }
        }
        while let Some(done) = open.pop() {
            self.close(&done, &mut own)?;
        }
        self.check_writable(&planned.path, planned.old.as_ref())?;
        if own.old.is_none() && own.new.is_none() {
            return Ok(false);
        }
        let copy = match planned.stuck {
            true => Some(self.copy_dir(slot, planned)?),
            false => None,
        };
        let written = self.records.step(slot, &own, copy.as_ref());
        written.map_err(self.unwritten)?;
        Ok(true)
    }

    /// Notes what lies in the directory of a step.
    fn note(&mut self, entry: &IntentEntry) -> Result<()> {
        self.records.entry(entry).map_err(self.unwritten)
    }

    /// Gives a staged directory its looks, when everything is in it: its times and mode move with that.
    fn close(&mut self, done: &StagedDir<'_>, own: &mut IntentEntry) -> Result<()> {
        let seen = Fingerprint::from(&self.apply_metadata(done.path, &done.to)?);
        if *done.path == own.path {
            own.new = Some(seen);
            return Ok(());
        }
        let staged = IntentEntry {
            new: Some(seen),
            ..entry(done.path, done.old)
        };
        self.note(&staged)
    }

    /// How a directory of the sandbox is to look.
    pub(super) fn looks(&self, path: &ResourcePath, dir: &Dir) -> Result<Meta> {
        match self.source.root.meta(path)? {
            Some(meta) => Ok(meta),
            None => Ok(dir.meta()?),
        }
    }

    /// Makes a staged directory look like the sandbox's.
    fn apply_metadata(&mut self, path: &ResourcePath, to: &ResourcePath) -> Result<Meta> {
        let model = self.source.root.dir(path)?;
        let staged = self.stage.dir(to)?;
        let attributes = self.source.root.released(model.xattrs()?);
        let look = DirLook::new(self.looks(path, &model)?, attributes);
        self.digest(path, || {
            Ok(tree_digest::directory(&look.meta, &look.attributes))
        })?;
        refuse_lost((&model, b""), &look.apply(&staged)?)?;
        if !self.source.whole {
            self.flags.give_dir(path, &staged)?;
        }
        Ok(staged.meta()?)
    }

    /// Stages what is no directory, in the place of what was seen there; `None` where it will be another name for a file
    /// of the original instead.
    fn leaf(
        &mut self,
        change: &Change,
        old: Option<Fingerprint>,
        to: &ResourcePath,
        at: (&Dir, &[u8]),
    ) -> Result<Option<StagedFile>> {
        let (from, name) = self.source.root.parent(&change.path)?;
        let meta = from.stat(name)?.ok_or_else(|| StrategyError::Moved {
            path: change.path.clone(),
            what: "it is gone from the sandbox".to_owned(),
        })?;
        if change.new.as_ref().is_some_and(|new| new.kind != meta.kind) {
            return Err(StrategyError::Moved {
                path: change.path.clone(),
                what: "its type changed in the sandbox".to_owned(),
            });
        }
        let file = self.source.root.file(&change.path, &meta);
        if let Some(file) = file
            && self.is_kept(change, &meta, file)?
        {
            return Ok(None);
        }
        let (key, mut staged) = (file.map(|file| (0, file)), StagedFile::default());
        let placed = self.placer.entry(key, to, at, || -> Result<_> {
            let digest = self.version(change, old, (&from, name), at, &meta, &mut staged)?;
            Ok((digest, true))
        })?;
        let (Placed::Made(digest) | Placed::Linked(digest)) = placed;
        if let (Some(all), Some(digest)) = (&mut self.digests, digest) {
            all.push((change.path.clone(), digest));
        }
        Ok(Some(staged))
    }

    /// Stages one version, as another name for the sandbox's own where that can be; returns its digest if that is asked
    /// for.
    fn version(
        &self,
        change: &Change,
        old: Option<Fingerprint>,
        (from, name): DirAndName<'_>,
        at: DirAndName<'_>,
        meta: &Meta,
        staged: &mut StagedFile,
    ) -> Result<Option<VersionDigest>> {
        let linked = match self.texts.get(&change.path) {
            Some(_) => None,
            None => self.link(change, (from, name), at, meta)?,
        };
        let of = match (linked, self.texts.get(&change.path)) {
            (Some(linked), _) => {
                self.observer.copied(1, 0);
                *staged = linked;
                *meta
            }
            (None, None) => self.copy(change, (from, name), at, meta)?,
            (None, Some(text)) => {
                let attributes = self.source.root.released(tree::xattrs(from, name)?);
                let looks = Some((*meta, attributes));
                let (to, to_name) = at;
                tree::put(to, to, &change.path, to_name, looks, &mut &text[..])?;
                *meta
            }
        };
        if meta.is_file() && !self.source.whole {
            let was_file = old.is_some_and(|old| old.kind == EntryKind::File);
            let opened = staged.opened.take();
            self.flags.give(&change.path, was_file, at, opened)?;
        }
        match self.digests.is_some() {
            true => version(at, &of, &staged.marks).map(Some),
            false => Ok(None),
        }
    }

    /// Notes the digest of a version, if that is asked for.
    pub(super) fn digest(
        &mut self,
        path: &ResourcePath,
        make: impl FnOnce() -> Result<VersionDigest>,
    ) -> Result<()> {
        if let Some(all) = &mut self.digests {
            all.push((path.clone(), make()?));
        }
        Ok(())
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
        let to = to.clone();
        let (dir, name) = self.original.parent(&to)?;
        self.digest(&change.path, || version((&dir, name), meta, &[]))?;
        let mut file = Fingerprint::from(&file);
        if self.overlaid {
            file = overlaid::lasting(self.original, &to, file)?;
        }
        self.links.push(KeptLink {
            path: change.path.clone(),
            to,
            file,
        });
        Ok(true)
    }

    /// Stages a file as another name for the sandbox's own; `None` where that cannot be.
    fn link(
        &self,
        change: &Change,
        (from, name): (&Dir, &[u8]),
        (to, to_name): (&Dir, &[u8]),
        meta: &Meta,
    ) -> Result<Option<StagedFile>> {
        if self.apart || self.exposed || self.source.whole || meta.kind == EntryKind::Fifo {
            return Ok(None);
        }
        let opened = match meta.is_file() {
            true => Some(from.file(name)?),
            false => None,
        };
        let names = match &opened {
            Some((file, _)) => xattr::names(&EntryHandle::of(file)),
            None => xattr::names_at(from, name),
        };
        let fail = |errno| from.error("read the attributes of", name, Cause::Os(errno));
        let attributes = xattr::without_values(names.map_err(fail)?);
        let seen = self.source.root.released(attributes.clone());
        // What is linked has no privilege, so that one which appears later is known for what it is.
        let privileged = attributes.iter().any(|(name, _)| name == CAPABILITY)
            || (meta.is_file() && !introduced(change, meta.mode, &attributes).is_empty());
        if privileged {
            return Ok(None);
        }
        if opened.as_ref().is_some_and(|(file, _)| !is_quiet(file)) {
            return Ok(None);
        }
        match to.link_to(to_name, from, name) {
            Ok(()) => {}
            Err(error) if cannot_link(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The sandbox needs its own marks until it is gone.
        let is_mark = |name: &&Vec<u8>| !seen.iter().any(|(kept, _)| kept == *name);
        let names = attributes.iter().map(|(name, _)| name);
        let marks: Vec<Vec<u8>> = names.filter(is_mark).cloned().collect();
        Ok(Some(StagedFile {
            linked: true,
            marks,
            opened,
        }))
    }

    /// Stages a copy, as it is to be seen, less what the sandbox's version may not bring; returns what was copied.
    fn copy(
        &self,
        change: &Change,
        from: DirAndName<'_>,
        at: DirAndName<'_>,
        meta: &Meta,
    ) -> Result<Meta> {
        let look = |look: &mut Meta, attributes: &mut Xattrs| {
            if look.is_file() && !self.source.whole {
                let dropped = introduced(change, look.mode, attributes);
                look.mode = without(&dropped, look.mode);
                let goes = dropped.contains(&"capabilities");
                attributes.retain(|(name, _)| !goes || name != CAPABILITY);
            }
            *attributes = self.source.root.released(std::mem::take(attributes));
        };
        let options = CopyOptions {
            lossy: true,
            look: &look,
            ..CopyOptions::QUIET
        };
        let mut leaf = self.placer.copy(from, at, meta.kind, options)?;
        leaf.lost.retain(|name| name != CAPABILITY);
        refuse_lost(from, &leaf.lost)?;
        Ok(leaf.original)
    }
}

/// The digest of what was staged; it belongs to whom the sandbox's version does, as far as this user may give it away.
fn version((dir, name): (&Dir, &[u8]), of: &Meta, marks: &[Vec<u8>]) -> Result<VersionDigest> {
    let mut meta = dir.stat(name)?.unwrap_or(*of);
    (meta.uid, meta.gid) = (of.uid, of.gid);
    let mut attributes = tree::xattrs_if_open(dir, name)?.unwrap_or_default();
    attributes.retain(|(name, _)| !marks.contains(name));
    tree_digest::leaf((dir, name), &meta, &attributes)
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
