//! A sandbox that is a copy of a directory, or of one file, whichever way its bytes are copied.
//!
//! ```text
//! <area>/
//!   copy/            swapped in and out as one
//!     tree/          the sandbox itself: native tools work here
//!     manifest       what the original was, and which inode each copy got
//!   copy.new/        a copy in the making, or an old one on its way out
//!   moments/         checkpoints
//!   stage/           files being written
//! ```

use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::closed_dirs;
use super::error::{Result, StrategyError};
use super::released::{self, Released};
use super::tree::{self, Original, STAGE};
use super::tree_diff::{Copied, CopyBase};
use super::{
    Access, Base, Capabilities, Checkpoints, CreateRequest, Created, Finished, Intent, Moment,
    Opened, PrepareRequest, Preview, PreviewRequest, Probe, RolledBack, StagedCommit, Strategy,
    Way,
};
use super::{tree_commit, tree_digest, tree_fork, tree_moments, tree_restore};
use crate::event::Observer;
use crate::fs::content::Reflinks;
use crate::fs::copy::{CopyReport, copy_one, copy_tree};
use crate::fs::durable::Draft;
use crate::fs::manifest::Manifest;
use crate::fs::{Cause, Dir, Moves, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, ChangeKind, Conflict, DiffView, ResourcePath, SandboxRef};

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
pub(super) struct TreeCopy<K>(PhantomData<K>);

impl<K> TreeCopy<K> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

#[derive(Serialize, Deserialize)]
struct Metadata {
    original: Original,
    area: Location,
    shared: u64,
    copied: u64,
    #[serde(default)]
    carved: Vec<ResourcePath>,
}

/// An open sandbox. The original is opened only where it is needed: the copy may be all that is
/// left of it.
struct Sandbox {
    original: Original,
    area: Dir,
    tree: Dir,
    carved: Vec<ResourcePath>,
}

impl<K: CopyKind> TreeCopy<K> {
    fn open(&self, sandbox: &SandboxRef) -> Result<Sandbox> {
        let area = area_of(sandbox)?;
        let opened = self.open_in(sandbox, closed_dirs::enter(area.again())?);
        opened.map_err(|error| closed_dirs::in_the_sandbox(&area, &[root()], error))
    }

    fn open_in(&self, sandbox: &SandboxRef, area: Dir) -> Result<Sandbox> {
        let metadata: Metadata = tree::metadata(sandbox)?;
        Ok(Sandbox {
            original: metadata.original,
            tree: area.subdir(COPY)?.subdir(TREE)?,
            area,
            carved: metadata.carved,
        })
    }

    /// Does something with the copy, its original and its record.
    fn with<T>(
        &self,
        sandbox: &SandboxRef,
        work: impl FnOnce(&Copied<'_>, &Sandbox) -> Result<T>,
    ) -> Result<T> {
        let done = self.with_it(self.open(sandbox)?, work);
        let area = area_of(sandbox)?;
        done.map_err(|error| closed_dirs::in_the_sandbox(&area, &[root()], error))
    }

    /// The same while nobody else works in it: directories that are closed are opened for the moment it takes.
    fn alone<T>(
        &self,
        sandbox: &SandboxRef,
        work: impl Fn(&Copied<'_>, &Sandbox, bool) -> Result<T>,
    ) -> Result<T> {
        let area = area_of(sandbox)?;
        let all = || Ok(vec![Opened::all(&area, &[root()])?]);
        closed_dirs::with_open(&area, &[root()], all, |area, again| {
            let open = self.open_in(sandbox, area.again())?;
            self.with_it(open, |copied, open| work(copied, open, again))
        })
    }

    fn with_it<T>(
        &self,
        open: Sandbox,
        work: impl FnOnce(&Copied<'_>, &Sandbox) -> Result<T>,
    ) -> Result<T> {
        let manifest = present_manifest(&open.area, &open.tree)?;
        let copied = Copied {
            original: &open.original.open()?,
            tree: &open.tree,
            manifest: &manifest,
            only: open.original.only(),
        };
        work(&copied, &open)
    }
}

fn area_of(sandbox: &SandboxRef) -> Result<Dir> {
    let metadata: Metadata = tree::metadata(sandbox)?;
    Ok(Dir::open(metadata.area.as_path())?)
}

/// The sandbox itself, from its area.
fn root() -> ResourcePath {
    ResourcePath::root().join(COPY).join(TREE)
}

/// Goes back, or forth, in a sandbox's own tree.
fn go<T>(sandbox: &SandboxRef, work: impl Fn() -> Result<T>) -> Result<T> {
    let area = area_of(sandbox)?;
    let all = || Ok(vec![Opened::all(&area, &[root()])?]);
    closed_dirs::with_open(&area, &[root()], all, |_, _| work())
}

impl<K: CopyKind> TreeCopy<K> {
    fn created(
        request: &CreateRequest<'_>,
        metadata: &Metadata,
        message: String,
        report: &CopyReport,
    ) -> Created {
        Created {
            sandbox: SandboxRef {
                plan_id: request.plan_id,
                resource_id: request.resource_id,
                strategy: K::NAME.to_owned(),
                metadata: tree::stored(metadata),
            },
            message,
            warnings: report.warnings(),
        }
    }
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
    let draft = Draft {
        stage: &new,
        to: &new,
        name: MANIFEST,
        fresh: true,
        synced: false,
    };
    draft.write(|file| manifest.write(file), |_| Ok(()))?;
    Ok(report)
}

fn read_manifest(area: &Dir) -> Result<Manifest> {
    let copy = area.subdir(COPY)?;
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

/// The record of the copy, as if it had been made after what was released of it since.
fn present_manifest(area: &Dir, tree: &Dir) -> Result<Manifest> {
    Released::read(area, &identity(tree)?)?.apply(read_manifest(area)?)
}

/// Takes the changes back one by one; `false` where that is not possible.
fn discard((original, from): (&Original, &Dir), area: &Dir) -> Result<bool> {
    let tree = area.subdir(COPY)?.subdir(TREE)?;
    // What was released would be a change again once the release is taken back.
    if !Released::read(area, &identity(&tree)?)?.is_empty() {
        return Ok(false);
    }
    let manifest = read_manifest(area)?;
    let copied = Copied {
        original: from,
        tree: &tree,
        manifest: &manifest,
        only: original.only(),
    };
    let found = copied.look()?;
    if found.changes.is_empty() && found.touched.is_empty() {
        return Ok(true);
    }
    tree_restore::restore(&copied, found, &area.subdir(STAGE)?)
}

impl<K: CopyKind> Strategy for TreeCopy<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: true,
            base: Base::Frozen,
            prepares: true,
            undoes: true,
            checkpoints: Checkpoints::Copy,
            gives_path: true,
            strength: K::STRENGTH,
        }
    }

    fn probe(&self, original: &Path, area: &Path) -> Probe {
        if area.starts_with(original) {
            return Probe::no("the sandbox's own area would lie in the original");
        }
        K::probe(original, area)
    }

    fn limit(&self, _original: &Path, _most: usize) -> Option<String> {
        // A copy belongs to who made it.
        None
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        if request.area.starts_with(request.original) {
            return Err(StrategyError::Unsupported {
                strategy: K::NAME,
                what: "copy a directory into itself",
                why: "the sandbox's own area lies in it; keep the state elsewhere (`--home`), or use overlay".to_owned(),
            });
        }
        let (original, from) = Original::take_any(request.original)?;
        let area = Dir::open(request.area)?;
        for remains in [COPY, STAGE] {
            remove::remove(&area, remains)?;
        }
        area.make_dir(STAGE, 0o700)?;
        let (reflinks, carved) = (K::reflinks(), request.carved);
        let source = (&original, &from);
        let report = copy_anew(source, &area, reflinks, carved, request.observer)?;
        area.rename(NEW, &area, COPY)?;
        let metadata = Metadata {
            original,
            area: Location::from(request.area),
            shared: report.shared,
            copied: report.copied,
            carved: request.carved.to_vec(),
        };
        Ok(Self::created(
            request,
            &metadata,
            K::message(&report),
            &report,
        ))
    }

    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let open = self.open(sandbox)?;
        open.original.check(path)?;
        tree::check_carved(path, &open.carved)?;
        // A file that is closed is told as any other that cannot be opened.
        let hidden = |error| match &error {
            StrategyError::Fs(cause) if cause.action == "open the directory" => {
                closed_dirs::in_the_sandbox(&open.area, &[root()], error)
            }
            _ => error,
        };
        tree::read(&open.tree, path).map_err(hidden)
    }

    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind> {
        let open = self.open(sandbox)?;
        open.original.check(path)?;
        tree::check_carved(path, &open.carved)?;
        let Sandbox { tree, area, .. } = open;
        tree::write(&tree, Some(&area.subdir(STAGE)?), path, content)
    }

    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView> {
        self.with(sandbox, |copied, open| {
            let mut found = tree::steady(|| copied.look())?.changes;
            open.original.retain(&mut found);
            tree::only_own(&mut found, &open.carved);
            Ok(DiffView::new(found))
        })
    }

    fn digests(&self, sandbox: &SandboxRef, changes: &[Change]) -> Result<VersionDigests> {
        let Sandbox { area, tree, .. } = self.open(sandbox)?;
        tree_digest::sandbox(&tree, |attributes| attributes, changes)
            .map_err(|error| closed_dirs::in_the_sandbox(&area, &[root()], error))
    }

    fn unlock(&self, sandbox: &SandboxRef) -> Result<Vec<Opened>> {
        Ok(vec![Opened::all(&area_of(sandbox)?, &[root()])?])
    }

    fn preview(&self, sandbox: &SandboxRef, request: &PreviewRequest<'_>) -> Result<Preview> {
        self.with(sandbox, |copied, open| {
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
            let mut kept: Vec<ResourcePath> = touched
                .filter(|(path, index)| file(*index) && !changed(path))
                .map(|(path, _)| path)
                .collect();
            // Another name may have been left for later.
            let released = Released::read(&open.area, &identity(&open.tree)?)?;
            for path in released.files().filter(|path| !changed(path)) {
                let there = copied.original_of(path)?;
                let same = there.filter(|(_, meta)| released.knows(meta, request.moved));
                kept.extend(same.map(|_| path.clone()));
            }
            let base = CopyBase {
                copied,
                moved: request.moved,
            };
            let (original, carved) = (copied.original, &open.carved);
            let tree = copied.tree.again().keeping();
            let mut preview = tree_commit::look(original, &tree, diff, kept, &base, carved)?;
            if request.strict {
                preview.conflicts.extend(base.everything_moved(carved)?);
            }
            tree_commit::sort(&mut preview.conflicts);
            Ok(preview)
        })
    }

    fn prepare(&self, sandbox: &SandboxRef, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        self.alone(sandbox, |copied, open, again| {
            tree_commit::begin(request.area, again)?;
            let source = tree_commit::Source {
                area: &open.area,
                root: &copied.tree.again().keeping(),
                visible: |attributes| attributes,
                whole: false,
                base: &CopyBase {
                    copied,
                    moved: &request.preview.moved,
                },
            };
            tree_commit::prepare(&open.original, &source, request)
        })
    }

    fn verify(&self, _sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        tree_commit::verify(intent)
    }

    fn commit(
        &self,
        _sandbox: &SandboxRef,
        intent: &Intent,
        observer: &dyn Observer,
    ) -> Result<()> {
        tree_commit::apply(intent, observer)
    }

    fn shares(&self, _sandbox: &SandboxRef, intent: &Intent) -> Result<bool> {
        tree_commit::shares(intent)
    }

    fn finish(&self, _sandbox: &SandboxRef, intent: Intent) -> Result<Finished> {
        tree_commit::finish(intent)
    }

    fn parts(&self) -> bool {
        true
    }

    fn advance(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        let open = self.open(sandbox)?;
        let of = identity(&open.tree)?;
        released::add(&open.area, &of, tree_commit::released(intent)?)
    }

    fn retreat(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        let open = self.open(sandbox)?;
        released::forget(&open.area, &tree_commit::area_of(intent)?)
    }

    fn check_undo(
        &self,
        _sandbox: &SandboxRef,
        intent: &Intent,
        moved: &Moves,
    ) -> Result<Vec<Conflict>> {
        tree_commit::check(intent, moved)
    }

    fn check_discard(&self, sandbox: &SandboxRef) -> Result<()> {
        area_of(sandbox)?;
        tree::metadata::<Metadata>(sandbox)?.original.open()?;
        Ok(())
    }

    fn rollback(
        &self,
        sandbox: &SandboxRef,
        intent: Option<&Intent>,
        observer: &dyn Observer,
    ) -> Result<RolledBack> {
        if let Some(intent) = intent {
            return tree_commit::undo(intent);
        }
        let said = |message: &str| RolledBack {
            message: message.to_owned(),
            ..RolledBack::default()
        };
        let metadata: Metadata = tree::metadata(sandbox)?;
        let area = Dir::open(metadata.area.as_path())?;
        let from = metadata.original.open()?;
        let source = (&metadata.original, &from);
        match discard(source, &area) {
            Ok(true) => return Ok(said("its changes were discarded")),
            Ok(false) => {}
            // What cannot even be looked at is replaced as a whole.
            Err(StrategyError::Damaged { .. }) => {}
            Err(StrategyError::Fs(error)) if error.is(Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
        let carved = &metadata.carved;
        // One sync for the whole copy: after a power cut it is complete, or not in its place.
        let anew = copy_anew(source, &area, K::reflinks(), carved, observer)
            .and_then(|_| Ok(area.sync_file_system()?));
        if let Err(error) = anew {
            // Half a copy only takes room. Should it stay, the next attempt sweeps it.
            return match remove::remove(&area, NEW) {
                Ok(()) | Err(_) => Err(error),
            };
        }
        area.exchange(NEW, &area, COPY)?;
        area.sync()?;
        remove::remove(&area, NEW)?;
        Ok(said(
            "its changes were discarded; it was copied anew from the original as it is now",
        ))
    }

    fn checkpoint(
        &self,
        sandbox: &SandboxRef,
        last: Option<&Moment>,
        observer: &dyn Observer,
    ) -> Result<Moment> {
        self.alone(sandbox, |copied, open, _| {
            tree_moments::checkpoint(copied, &open.area, last, observer)
        })
    }

    fn prepare_restore(
        &self,
        sandbox: &SandboxRef,
        way: &Way,
        area: &Path,
        observer: &dyn Observer,
    ) -> Result<Intent> {
        self.alone(sandbox, |copied, open, again| {
            tree_commit::begin(area, again)?;
            tree_moments::prepare_restore(copied, &open.area, way, area, observer)
        })
    }

    fn restore_checkpoint(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        observer: &dyn Observer,
    ) -> Result<()> {
        go(sandbox, || tree_commit::apply(intent, observer))
    }

    fn undo_restore(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<RolledBack> {
        go(sandbox, || tree_commit::undo(intent))
    }

    fn drop_checkpoint(&self, sandbox: &SandboxRef, kept: &[Moment]) -> Result<()> {
        let metadata: Metadata = tree::metadata(sandbox)?;
        tree_moments::keep_only(&Dir::open(metadata.area.as_path())?, kept)
    }

    fn since(
        &self,
        sandbox: &SandboxRef,
        moment: &Moment,
        until: Option<&Moment>,
    ) -> Result<DiffView> {
        self.with(sandbox, |copied, open| {
            let mut changes = tree_moments::since(copied, &open.area, moment, until)?;
            open.original.retain(&mut changes);
            tree::only_own(&mut changes, &open.carved);
            Ok(DiffView::new(changes))
        })
    }

    fn fork(
        &self,
        sandbox: &SandboxRef,
        moment: &Moment,
        request: &CreateRequest<'_>,
    ) -> Result<Created> {
        let area = Dir::open(request.area)?;
        for remains in [COPY, STAGE] {
            remove::remove(&area, remains)?;
        }
        area.make_dir(STAGE, 0o700)?;
        let report = self.alone(sandbox, |copied, open, _| {
            // What was released would not be the fork's, also once the release is taken back.
            if !Released::read(&open.area, &identity(&open.tree)?)?.is_empty() {
                return Err(StrategyError::Unsupported {
                    strategy: K::NAME,
                    what: "be forked",
                    why: "a part of its plan is committed: commit the rest, or take the part back by \
                        `escrow undo`"
                        .to_owned(),
                });
            }
            let moment = tree_moments::open(copied, &open.area, moment)?;
            make_new(&area, |tree| {
                tree_fork::fork(copied, &open.area, &moment, tree, request.observer)
            })
        })?;
        area.rename(NEW, &area, COPY)?;
        let metadata = Metadata {
            area: Location::from(request.area),
            shared: report.shared,
            copied: report.copied,
            ..tree::metadata(sandbox)?
        };
        let message = tree_fork::message(&report);
        Ok(Self::created(request, &metadata, message, &report))
    }

    fn access(&self, sandbox: &SandboxRef) -> Result<Access> {
        let open = self.open(sandbox)?;
        Ok(Access::Directory(open.tree.path().to_owned()))
    }

    fn view(&self, sandbox: &SandboxRef) -> Result<View> {
        let open = self.open(sandbox)?;
        tree::view_of(K::NAME, &open.original, &open.tree)
    }

    fn cleanup(&self, _sandbox: &SandboxRef) -> Result<()> {
        // Everything lies in the area.
        Ok(())
    }
}
