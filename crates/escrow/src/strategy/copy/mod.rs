//! Copy sandboxes: a directory or a file is copied, by reflink or in full.
//!
//! ```text
//! <area>/
//!   copy/            swapped in and out as one
//!     tree/          the sandbox itself: native tools work here
//!     manifest       what the original was, and which inode each copy got
//!   copy.new/        a copy in the making, or an old one on its way out
//!   before/0, 1, …   copies that a rollback replaced, each like `copy`
//!   moments/         checkpoints
//!   stage/           files being written
//! ```

pub(super) mod checkpoints;
pub(super) mod diff;
pub(super) mod fork;
mod set_aside;

use std::collections::BTreeSet;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original, STAGE};
use super::tree_commit::onto::{self, TreeBase};
use super::tree_commit::{OriginalBase, PlainTree, Released, Releases, StageRequest, TreePreview};
use super::tree_strategy::{TreeKind, TreeSession, TreeStrategy};
use super::{
    Access, BothSides, Capabilities, CreateRequest, Created, Intent, PrepareRequest, Preview,
    PreviewOptions, Probe, RestoreRequest, Sandbox, Session, Snapshot, StagedCommit, Target,
    unsupported,
};
use super::{tree_commit, tree_digest};
use crate::event::Observer;
use crate::fs::atomic_file::AtomicFile;
use crate::fs::content::Reflinks;
use crate::fs::copy::{copy_one, copy_tree};
use crate::fs::manifest::Manifest;
use crate::fs::place::CopyReport;
use crate::fs::{Cause, Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::{Change, DiffView, ResourcePath, SandboxRef};
use diff::{CopiedTree, CopyBase};
use set_aside::CopySwitch;

const COPY: &[u8] = b"copy";
const NEW: &[u8] = b"copy.new";
const TREE: &[u8] = b"tree";
const MANIFEST: &[u8] = b"manifest";

/// In what two copying strategies differ.
pub(super) trait CopyKind: Send + Sync + 'static {
    /// The strategy's name.
    const NAME: &'static str;
    /// How strong its isolation is.
    const STRENGTH: u8;
    /// How contents come across.
    fn reflinks() -> Reflinks;
    /// Whether it works here.
    fn probe(original: &Path, area: &Path) -> Probe;
    /// How it went, in a few words.
    fn message(report: &CopyReport) -> String;
}

/// A strategy that copies.
pub(super) type TreeCopy<K> = TreeStrategy<Copying<K>>;

/// What copies in a way of its own.
pub(super) struct Copying<K>(PhantomData<K>);

impl<K> Default for Copying<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

#[derive(Serialize, Deserialize)]
struct CopyMetadata {
    original: Original,
    area: Location,
    shared: u64,
    copied: u64,
    #[serde(default)]
    carved: Vec<ResourcePath>,
    /// Where its changes are shown and released, if not in what was copied ([`onto`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    onto: Option<Original>,
}

/// A copy, opened. The original is opened only where it is needed: the copy may be all that is
/// left of it.
struct OpenCopy {
    original: Original,
    area: Dir,
    tree: Dir,
    carved: Vec<ResourcePath>,
    onto: Option<Original>,
}

impl OpenCopy {
    fn released_at(&self) -> &Original {
        self.onto.as_ref().unwrap_or(&self.original)
    }
}

fn open(sandbox: &SandboxRef) -> Result<OpenCopy> {
    let metadata: CopyMetadata = tree::metadata(sandbox)?;
    let area = Dir::open(metadata.area.as_path())?;
    Ok(OpenCopy {
        original: metadata.original,
        tree: area.subdir(COPY)?.subdir(TREE)?,
        area,
        carved: metadata.carved,
        onto: metadata.onto,
    })
}

/// Does something with the copy, its original and its record, and what was released of it by these partial commits.
fn with<T>(
    sandbox: &SandboxRef,
    parts: &[Intent],
    work: impl FnOnce(&CopiedTree<'_>, &OpenCopy) -> Result<T>,
) -> Result<T> {
    let open = open(sandbox)?;
    let manifest = read_manifest(&open.area.subdir(COPY)?)?;
    let (original, onto) = (open.original.open()?, onto::open(open.onto.as_ref())?);
    let copied = CopiedTree {
        original: &original,
        to: onto.as_ref().unwrap_or(&original),
        tree: &open.tree,
        manifest: &manifest,
        released: &Released::read(parts, &identity(&open.tree)?)?,
        only: open.original.only(),
    };
    work(&copied, &open)
}

fn area_of(sandbox: &SandboxRef) -> Result<Dir> {
    let metadata: CopyMetadata = tree::metadata(sandbox)?;
    Ok(Dir::open(metadata.area.as_path())?)
}

/// Makes a fresh copy in `copy.new`. The caller syncs it before anything relies on it.
fn copy_anew(
    (original, from): (&Original, &Dir),
    area: &Dir,
    reflinks: Reflinks,
    carved: &[ResourcePath],
    observer: &dyn Observer,
) -> Result<CopyReport> {
    make_new(area, |tree| {
        Ok(match original.only() {
            Some(only) => copy_one(from, tree, only.as_bytes(), reflinks, observer)?,
            None => copy_tree(from, tree, reflinks, carved, observer)?,
        })
    })
}

/// Makes `copy.new`, whose tree is what `fill` puts there. The caller syncs it before anything relies on it.
fn make_new(
    area: &Dir,
    fill: impl FnOnce(&Dir) -> Result<(Manifest, CopyReport)>,
) -> Result<CopyReport> {
    remove::remove(area, NEW)?;
    area.make_dir(NEW, 0o700)?;
    let new = area.subdir(NEW)?;
    new.make_dir(TREE, 0o700)?;
    let (manifest, report) = fill(&new.subdir(TREE)?)?;
    let draft = AtomicFile {
        stage: &new,
        to: &new,
        name: MANIFEST,
        fresh: true,
        synced: false,
    };
    draft.write(|file| manifest.write(file), |_| Ok(()))?;
    Ok(report)
}

fn read_manifest(copy: &Dir) -> Result<Manifest> {
    let (file, _) = copy.file(MANIFEST)?;
    Manifest::read(&file).map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => copy.error("read", MANIFEST, Cause::Os(errno)).into(),
        None => StrategyError::Damaged {
            what: error.to_string(),
        },
    })
}

/// What tells a copy from one that was made anew in its place.
fn identity(tree: &Dir) -> Result<String> {
    let meta = tree.meta()?;
    let born = meta.born;
    Ok(format!("{} {}.{}", meta.ino, born.sec, born.nsec))
}

/// Takes the changes back one by one; `false` where that is not possible.
fn discard(
    (original, from): (&Original, &Dir),
    area: &Dir,
    observer: &dyn Observer,
) -> Result<bool> {
    let copy = area.subdir(COPY)?;
    let (tree, manifest) = (copy.subdir(TREE)?, read_manifest(&copy)?);
    let copied = CopiedTree {
        original: from,
        to: from,
        tree: &tree,
        manifest: &manifest,
        released: &Released::default(),
        only: original.only(),
    };
    checkpoints::discard(&copied, area, observer).map_err(|error| swept(area, STAGE, error))
}

/// Removes what was half made in a directory of the area.
fn swept(area: &Dir, room: &[u8], error: StrategyError) -> StrategyError {
    match area.subdir(room) {
        Ok(room) => remove::half_made(&room, checkpoints::NEW, error),
        Err(_) => error,
    }
}

impl<K: CopyKind> Copying<K> {
    /// Makes a sandbox that begins at a snapshot of another one.
    fn fork(
        sandbox: &SandboxRef,
        snapshot: &Snapshot,
        place: &Path,
        request: &CreateRequest<'_>,
    ) -> Result<Created> {
        let area = empty_area(place)?;
        let report = with(sandbox, &[], |copied, open| {
            let snapshot = checkpoints::open(copied, &open.area, snapshot)?;
            // What a copy began from never changes.
            tree_commit::hand_on_bases(&open.area, &area, || Ok(None))?;
            make_new(&area, |tree| {
                fork::fork(copied, &snapshot, tree, request.observer)
            })
        })?;
        let metadata = tree::metadata(sandbox)?;
        Self::created(request, &area, metadata, &report, fork::message(&report))
    }

    /// Puts the copy that was made in its place.
    fn created(
        request: &CreateRequest<'_>,
        area: &Dir,
        metadata: CopyMetadata,
        report: &CopyReport,
        message: String,
    ) -> Result<Created> {
        area.rename(NEW, area, COPY)?;
        let metadata = CopyMetadata {
            area: Location::from(area.path()),
            shared: report.shared,
            copied: report.copied,
            ..metadata
        };
        let warnings = report.warnings();
        let created = tree::created(K::NAME, request, &metadata, message, warnings);
        Ok(created)
    }
}

/// An area in which nothing is left of an earlier sandbox.
fn empty_area(place: &Path) -> Result<Dir> {
    let area = Dir::open(place)?;
    for remains in [COPY, set_aside::BEFORE, STAGE] {
        remove::remove(&area, remains)?;
    }
    area.make_dir(STAGE, 0o700)?;
    Ok(area)
}

impl<K: CopyKind> TreeKind for Copying<K> {
    type Switch = CopySwitch;

    fn name(&self) -> &str {
        K::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            partial: true,
            strength: K::STRENGTH,
            ..Capabilities::PRIVATE
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        match (target.path(), area) {
            (Some(original), Some(area)) if area.starts_with(original) => {
                Probe::no("the sandbox's own area would lie in the original")
            }
            (Some(original), Some(area)) => K::probe(original, area),
            (Some(_), None) => Probe::yes("a sandbox exists"),
            (None, _) => Probe::no("the resource has no path"),
        }
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (at, place) = tree::places(K::NAME, request)?;
        if let Some((sandbox, snapshot)) = request.from {
            return Self::fork(sandbox, snapshot, place, request);
        }
        if place.starts_with(at) {
            let why = "the sandbox's own area lies in it; keep the state elsewhere (`--home`), or use overlay";
            return Err(unsupported(K::NAME, "copy a directory into itself", why));
        }
        let (original, from) = Original::take_any(at)?;
        let area = empty_area(place)?;
        let (reflinks, carved) = (K::reflinks(), &request.target.carved);
        let source = (&original, &from);
        let report = copy_anew(source, &area, reflinks, carved, request.observer)?;
        let metadata = CopyMetadata {
            original,
            area: Location::from(place),
            shared: 0,
            copied: 0,
            carved: carved.clone(),
            onto: None,
        };
        Self::created(request, &area, metadata, &report, K::message(&report))
    }

    fn check(sandbox: &SandboxRef, session: &Session) -> Result<()> {
        let metadata: CopyMetadata = tree::metadata(sandbox)?;
        let area = area_of(sandbox)?;
        match session {
            Session::Shared => Ok(()),
            Session::Exclusive => {
                onto::open(metadata.onto.as_ref())?;
                metadata.original.open().map(drop)
            }
            // A command inside may have put something else in its place.
            Session::Live(view) => tree::check_view_of(view, &area.subdir(COPY)?.subdir(TREE)?),
        }
    }
}

impl<K: CopyKind> TreeSession<Copying<K>> {
    fn check(&self, open: &OpenCopy, path: &ResourcePath) -> Result<()> {
        open.original.check(path)?;
        tree::check_carved(path, &open.carved)
    }

    /// Gives the directory that changes are released into, and what the sandbox knows of it.
    fn with_base<T>(
        &self,
        copied: &CopiedTree<'_>,
        open: &OpenCopy,
        work: impl FnOnce(&Dir, &dyn OriginalBase) -> Result<T>,
    ) -> Result<T> {
        let Some(to) = onto::open(open.onto.as_ref())? else {
            let base = CopyBase {
                area: &open.area,
                copied,
                moved: &self.moves(copied.original)?,
            };
            return work(copied.original, &base);
        };
        let releases = Releases {
            released: copied.released,
            original: &to,
            moved: &self.moves(&to)?,
        };
        let tree = copied.original;
        work(&to, &TreeBase { tree, releases })
    }

    fn look_at(&self, options: &PreviewOptions) -> Result<TreePreview> {
        with(&self.reference, &self.parts, |copied, open| {
            let mut found = tree::steady(|| copied.look())?;
            open.original.check_changes(&found.changes)?;
            tree::check_stray(&found.changes, &open.carved)?;
            tree::only_own(&mut found.changes, &open.carved);
            let diff = DiffView::new(found.changes);
            let changed = |path: &ResourcePath| {
                let by_path = |change: &crate::model::Change| change.path.cmp(path);
                diff.changes.binary_search_by(by_path).is_ok()
            };
            let file = |index| !copied.manifest.record(index).is_dir();
            let touched = found.touched.into_iter();
            let touched = touched.filter(|(path, index)| file(*index) && !changed(path));
            let touched = touched.map(|(path, _)| path);
            let kept = touched.chain(found.same).collect();
            let tree = || copied.tree.again().keeping();
            self.with_base(copied, open, |to, base| {
                tree_commit::look(to, tree, diff, kept, base, &open.carved, options)
            })
        })
    }
}

impl<K: CopyKind> Sandbox for TreeSession<Copying<K>> {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let open = open(&self.reference)?;
        self.check(&open, path)?;
        tree::read(&open.tree, path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let open = open(&self.reference)?;
        self.check(&open, path)?;
        if let Session::Live(view) = &self.session {
            return tree::write(&tree::view(view)?, None, path, content);
        }
        tree::write(&open.tree, Some(&open.area.subdir(STAGE)?), path, content)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let compare = |copied: &CopiedTree<'_>, open: &OpenCopy| {
            let mut found = match (from, to) {
                (None, None) => tree::steady(|| copied.look())?.changes,
                (None, Some(to)) => set_aside::find_snapshot(copied, &open.area, to)?.0.changes,
                (Some(from), to) => checkpoints::since(copied, &open.area, from, to)?,
            };
            open.original.retain(&mut found);
            tree::only_own(&mut found, &open.carved);
            Ok(DiffView::new(found))
        };
        // Between two snapshots what was released plays no part.
        let parts = match from.or(to) {
            Some(_) => &[],
            None => &self.parts[..],
        };
        with(&self.reference, parts, compare)
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let tree = &open(&self.reference)?.tree;
        tree_digest::sandbox(tree, changes, &self.found.texts())
    }

    fn keep_bases(&self, changes: &[Change]) -> Result<()> {
        with(&self.reference, &self.parts, |copied, open| {
            self.with_base(copied, open, |to, base| {
                tree_commit::keep_bases(to, changes, base)
            })
        })
    }

    fn both_sides(&self, changes: &[Change]) -> Result<BothSides> {
        with(&self.reference, &self.parts, |copied, open| {
            self.with_base(copied, open, |to, base| {
                tree_commit::both_sides(to, changes, base)
            })
        })
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        let metadata: CopyMetadata = tree::metadata(&self.reference)?;
        let area = Dir::open(metadata.area.as_path())?;
        let from = metadata.original.open()?;
        let source = (&metadata.original, &from);
        // Where something was released the original is not what was copied.
        let discarded = match self.parts.is_empty() {
            true => discard(source, &area, observer),
            false => Ok(false),
        };
        match discarded {
            Ok(true) => return Ok("its changes were discarded".to_owned()),
            Ok(false) => {}
            // What cannot even be looked at, or staged, is replaced as a whole.
            Err(StrategyError::Damaged { .. }) => {}
            Err(StrategyError::Fs(error))
                if error.is(Errno::ACCESS) || error.is_absent() || error.wants_room() => {}
            Err(error) => return Err(error),
        }
        let carved = &metadata.carved;
        // One sync for the whole copy: after a power cut it is complete, or not in its place.
        let anew = || {
            set_aside::make_room(&area)
                .and_then(|()| copy_anew(source, &area, K::reflinks(), carved, observer))
                .and_then(|_| Ok(area.sync_file_system()?))
                .map_err(|error| remove::half_made(&area, NEW, error))
        };
        match anew() {
            // What is discarded makes room for what takes its place. It was decided, and can be gone on with from here.
            Err(StrategyError::Fs(error)) if error.wants_room() => {
                remove::remove(&area, COPY)?;
                anew()?;
            }
            done => done?,
        }
        if !set_aside::replace(&area)? {
            match area.exchange(NEW, &area, COPY) {
                Err(error) if error.is(Errno::NOENT) => area.rename(NEW, &area, COPY)?,
                done => done?,
            }
            area.sync()?;
            remove::remove(&area, NEW)?;
        }
        let said = "its changes were discarded; it was copied anew from the original as it is now";
        Ok(said.to_owned())
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        with(&self.reference, &[], |copied, open| {
            checkpoints::checkpoint(copied, &open.area, parent, observer)
                .map_err(|error| swept(&open.area, checkpoints::SNAPSHOTS, error))
        })
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let area = area_of(&self.reference)?;
        checkpoints::keep_only(&area, keep)?;
        set_aside::keep_needed(&area)?;
        Ok(keep.to_vec())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let found = self.look_at(options)?;
        Ok(self.found.keep(found))
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let area = tree::commit_area(K::NAME, request.area)?;
        let look = || self.look_at(&PreviewOptions::default());
        let found = self.found.take(request, look)?;
        with(&self.reference, &self.parts, |copied, open| {
            let of = identity(&open.tree)?;
            let staged = StageRequest::new(request, &found, area, of);
            self.with_base(copied, open, |_, base| {
                let source = tree_commit::StageSource {
                    area: &open.area,
                    root: &copied.tree.again().keeping(),
                    whole: false,
                    base,
                };
                tree_commit::prepare(open.released_at(), &source, &staged)
            })
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let area = tree::commit_area(K::NAME, request.area)?;
        with(&self.reference, &[], |copied, open| {
            let (_, copy) = set_aside::find_snapshot(copied, &open.area, request.to)?;
            let Some(copy) = copy else {
                return checkpoints::prepare_restore(copied, &open.area, request, area);
            };
            if self.live().is_some() {
                let why = "the sandbox was copied anew since that checkpoint";
                return Err(unsupported(
                    K::NAME,
                    "return while a command is inside",
                    why,
                ));
            }
            let (from, of) = ((copied, &open.area), &self.reference);
            set_aside::prepare_restore(of, from, &copy, request, area)
        })
    }

    fn prepare_discard(
        &self,
        request: &RestoreRequest<'_>,
        paths: &BTreeSet<ResourcePath>,
    ) -> Result<Intent> {
        let area = tree::commit_area(K::NAME, request.area)?;
        with(&self.reference, &[], |copied, open| {
            checkpoints::prepare_discard(copied, &open.area, (request, paths), area)
        })
    }

    fn take_in(&self, intent: &Intent) -> Result<()> {
        let changed = self.diff(None, None)?.changes;
        let changed = changed.into_iter().map(|change| change.path).collect();
        let open = open(&self.reference)?;
        tree_commit::take_in(intent, &changed, &PlainTree(&open.tree))?;
        Ok(open.area.sync_file_system()?)
    }

    fn access(&self) -> Result<Access> {
        let open = open(&self.reference)?;
        tree::access(
            open.released_at(),
            &open.tree,
            Some(&open.area),
            self.live(),
        )
    }
}
