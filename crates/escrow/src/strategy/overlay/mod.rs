//! `overlay`: the original below, an almost empty layer above that takes every change.
//!
//! Making one costs the same for ten files and ten million. Nothing is ever mounted outside a
//! private namespace: reading, writing and comparing understand the layers themselves, exactly as
//! the kernel does, whether the kernel made them or we did.
//!
//! ```text
//! <area>/
//!   layers/0, 1, …   what the sandbox changed: files, whiteouts, opaque directories
//!   now              which of them are in use; the topmost takes the changes
//!   seen             how the topmost was when it was last kept while somebody worked in it
//!   work/            the kernel's own, for a mount
//!   stage/           files being written
//! ```

mod base;
mod diff;
mod fold;
mod foreign;
mod in_use;
mod layers;
mod moments;
mod probe;
mod stack;
mod through;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::closed_dirs;
use super::error::{Result, StrategyError};
use super::released::{self, Released};
use super::tree::{self, Original, STAGE};
use super::{
    Access, Base, Capabilities, Checkpoints, CreateRequest, Created, Finished, Intent, Moment,
    Occasion, Opened, PrepareRequest, Preview, PreviewRequest, Probe, RolledBack, StagedCommit,
    Strategy, Way,
};
use super::{tree_commit, tree_digest};
use crate::event::Observer;
use crate::fs::{Dir, Moves, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::{Location, escape};
use crate::model::view::{Layers, View};
use crate::model::{Change, ChangeKind, Conflict, DiffView, ResourcePath, SandboxRef};
use layers::Found;
use stack::{Now, Number, Stack};

const NAME: &str = "overlay";
const WORK: &[u8] = b"work";

pub(super) struct Overlay;

#[derive(Serialize, Deserialize)]
struct Metadata {
    original: Original,
    area: Location,
    #[serde(default)]
    carved: Vec<ResourcePath>,
    /// The areas of the sandboxes whose layers it began on.
    #[serde(default)]
    lenders: Vec<Location>,
}

/// An open sandbox.
struct Sandbox {
    lower: Dir,
    now: Now,
    upper: Stack,
    area: Dir,
    original: Original,
    carved: Vec<ResourcePath>,
}

impl Sandbox {
    /// What of it was released while the rest stayed.
    fn released(&self) -> Result<Released> {
        Released::read(&self.area, &base::identity(self.upper.top())?)
    }
}

fn area_of(sandbox: &SandboxRef) -> Result<Dir> {
    let metadata: Metadata = tree::metadata(sandbox)?;
    Ok(Dir::open(metadata.area.as_path())?)
}

fn open(sandbox: &SandboxRef) -> Result<Sandbox> {
    let area = area_of(sandbox)?;
    let opened = open_in(sandbox, closed_dirs::enter(area.again())?);
    opened.map_err(|error| in_the_sandbox(sandbox, error))
}

fn open_in(sandbox: &SandboxRef, area: Dir) -> Result<Sandbox> {
    let metadata: Metadata = tree::metadata(sandbox)?;
    let now = Now::read(&area)?;
    Ok(Sandbox {
        lower: metadata.original.open()?,
        upper: now.open(&area)?,
        now,
        area,
        original: metadata.original,
        carved: metadata.carved,
    })
}

/// Does something that only looks.
fn look<T>(sandbox: &SandboxRef, work: impl FnOnce(&Sandbox) -> Result<T>) -> Result<T> {
    let open = open(sandbox)?;
    work(&open).map_err(|error| in_the_sandbox(sandbox, error))
}

/// Does something while nobody else works in the sandbox: directories of its layers that are closed are opened for the
/// moment it takes, those of other sandboxes among them.
fn alone<T>(sandbox: &SandboxRef, work: impl Fn(&Sandbox, bool) -> Result<T>) -> Result<T> {
    let area = area_of(sandbox)?;
    let roots = roots(&area)?;
    let all = || unlock(sandbox, &area);
    closed_dirs::with_open(&area, &roots, all, |area, again| {
        work(&open_in(sandbox, area.again())?, again)
    })
}

/// The layers of an area.
fn roots(area: &Dir) -> Result<Vec<ResourcePath>> {
    let layers = Now::room(area)?.entries()?;
    let names = layers.iter().map(|entry| &*entry.name);
    Ok(names.map(stack::layer).collect())
}

/// Opens what is closed in the layers of an area, and in those of other sandboxes that this one is made of.
fn unlock(sandbox: &SandboxRef, area: &Dir) -> Result<Vec<Opened>> {
    let metadata: Metadata = tree::metadata(sandbox)?;
    let layers = Now::read(area)?.layers;
    let mut opened = vec![Opened::all(area, &roots(area)?)?];
    for lender in &metadata.lenders {
        let theirs = layers
            .iter()
            .filter(|one| one.area.as_ref() == Some(lender));
        let roots: Vec<ResourcePath> = theirs.map(|one| stack::layer(&one.name())).collect();
        opened.push(Opened::all(&Dir::open(lender.as_path())?, &roots)?);
    }
    Ok(opened)
}

/// A refusal in terms of the sandbox, not of its layers.
fn in_the_sandbox(sandbox: &SandboxRef, error: StrategyError) -> StrategyError {
    let Ok(Metadata { area, lenders, .. }) = tree::metadata(sandbox) else {
        return error;
    };
    [area]
        .into_iter()
        .chain(lenders)
        .fold(error, |error, area| {
            let area = Dir::open(area.as_path());
            let area = area.map(|area| (roots(&area), area));
            match area {
                Ok((Ok(roots), area)) => closed_dirs::in_the_sandbox(&area, &roots, error),
                _ => error,
            }
        })
}

/// In what a layer differs from the directory below it.
pub fn compare(upper: &Dir, lower: &Dir) -> Result<DiffView> {
    Ok(DiffView::new(
        tree::steady(|| diff::look(&Stack::of(upper)?, lower))?.changes,
    ))
}

/// An empty layer whose root looks like the original's. The caller syncs it before anything relies on it.
fn new_layer(area: &Dir, lower: &Dir, number: u32) -> Result<Vec<Vec<u8>>> {
    let room = Now::room(area)?;
    let name = number.to_string().into_bytes();
    remove::remove(&room, &name)?;
    room.make_dir(&name, 0o700)?;
    let upper = room.subdir(&name)?;
    let lost = layers::stand_in(&upper, lower, tree::xattrs_of(lower)?)?;
    base::stamp(&upper)?;
    layers::set_mode(&upper, lower.meta()?.mode)?;
    Ok(lost)
}

impl Strategy for Overlay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolates: true,
            base: Base::Live,
            prepares: true,
            undoes: true,
            checkpoints: Checkpoints::Constant,
            gives_path: false,
            strength: 3,
        }
    }

    fn probe(&self, original: &Path, area: &Path) -> Probe {
        probe::probe(original, area)
    }

    fn limit(&self, original: &Path, most: usize) -> Option<String> {
        foreign::limit(original, most)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (original, lower) = Original::take(request.original)?;
        let area = Dir::open(request.area)?;
        for remains in [WORK, STAGE] {
            remove::remove(&area, remains)?;
            area.make_dir(remains, 0o700)?;
        }
        let lost = new_layer(&area, &lower, 0)?;
        let now = Now::new(vec![Number::own(0)], 1);
        now.write_first(&area, &area.subdir(STAGE)?)?;
        let metadata = Metadata {
            original,
            area: Location::from(request.area),
            carved: request.carved.to_vec(),
            lenders: Vec::new(),
        };
        Ok(Created {
            sandbox: SandboxRef {
                plan_id: request.plan_id,
                resource_id: request.resource_id,
                strategy: NAME.to_owned(),
                metadata: tree::stored(&metadata),
            },
            message: "an empty layer over the original; nothing was copied".to_owned(),
            warnings: lost
                .iter()
                .map(|name| format!("'.': the attribute {} cannot be kept here", escape(name)))
                .collect(),
        })
    }

    fn read(&self, sandbox: &SandboxRef, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let open = open(sandbox)?;
        tree::check_carved(path, &open.carved)?;
        let found = layers::find(&open.upper, &open.lower, path);
        let found = found.map_err(|error| in_the_sandbox(sandbox, error))?;
        let (dir, meta) = match found {
            Found::Nothing => return Err(StrategyError::NotThere { path: path.clone() }),
            Found::Upper(dir, meta) | Found::Lower(dir, meta) => (dir, meta),
        };
        tree::replaceable(Some(meta), path)?;
        let (_, name) = path
            .split()
            .expect("the root is a directory, refused above");
        let (file, _) = dir.file(name).map_err(|error| tree::explain(path, error))?;
        Ok(Box::new(file))
    }

    fn write(
        &self,
        sandbox: &SandboxRef,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<ChangeKind> {
        let open = open(sandbox)?;
        tree::check_carved(path, &open.carved)?;
        let Sandbox {
            lower, upper, area, ..
        } = open;
        let found = match layers::find(&upper, &lower, path)? {
            Found::Nothing => None,
            Found::Upper(dir, meta) => Some((dir, meta, false)),
            Found::Lower(dir, meta) => Some((dir, meta, true)),
        };
        tree::replaceable(found.as_ref().map(|(_, meta, _)| *meta), path)?;
        let (parent, name) = path
            .split()
            .expect("the root is a directory, refused above");
        let before = match found {
            Some((dir, meta, from_below)) => {
                let attributes = tree::xattrs(&dir, name)?;
                let derived = from_below || base::is_derived(&attributes);
                let mut attributes = layers::stored(attributes);
                attributes.extend(derived.then(base::derived));
                Some((meta, attributes))
            }
            None => None,
        };
        let stage = area.subdir(STAGE)?;
        let to = layers::make_upper(&upper, &lower, &stage, &parent)?;
        tree::put(&stage, &to, path, name, before, content)
    }

    fn diff(&self, sandbox: &SandboxRef) -> Result<DiffView> {
        look(sandbox, |open| {
            let released = open.released()?;
            let look = || diff::look_beside(&open.upper, &open.lower, &released);
            let mut found = tree::steady(look)?.changes;
            tree::only_own(&mut found, &open.carved);
            Ok(DiffView::new(found))
        })
    }

    fn digests(&self, sandbox: &SandboxRef, changes: &[Change]) -> Result<VersionDigests> {
        look(sandbox, |open| {
            tree_digest::sandbox(&open.upper, layers::visible, changes)
        })
    }

    fn unlock(&self, sandbox: &SandboxRef) -> Result<Vec<Opened>> {
        unlock(sandbox, &area_of(sandbox)?)
    }

    fn preview(&self, sandbox: &SandboxRef, request: &PreviewRequest<'_>) -> Result<Preview> {
        look(sandbox, |open| {
            let (upper, lower) = (&open.upper, &open.lower);
            let released = open.released()?;
            let mut found = tree::steady(|| diff::look_beside(upper, lower, &released))?;
            tree::check_stray(&found.changes, &open.carved)?;
            tree::only_own(&mut found.changes, &open.carved);
            let base = base::LayerBase::open(upper, lower, &found.gone, request.moved, &released)?;
            let diff = DiffView::new(found.changes);
            let mut preview = tree_commit::look(
                lower,
                &upper.keeping(),
                diff,
                found.kept,
                &base,
                &open.carved,
            )?;
            if request.strict {
                preview
                    .conflicts
                    .extend(base.everything_moved(&open.carved)?);
            }
            tree_commit::sort(&mut preview.conflicts);
            Ok(preview)
        })
    }

    fn prepare(&self, sandbox: &SandboxRef, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        alone(sandbox, |open, again| {
            tree_commit::begin(request.area, again)?;
            let (gone, moves) = (HashSet::new(), &request.preview.moved);
            let (upper, lower, released) = (&open.upper, &open.lower, open.released()?);
            let source = tree_commit::Source {
                area: &open.area,
                root: &upper.keeping(),
                visible: layers::visible,
                whole: false,
                base: &base::LayerBase::open(upper, lower, &gone, moves, &released)?,
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
        let open = open(sandbox)?;
        let of = base::identity(open.upper.top())?;
        released::add(&open.area, &of, tree_commit::released(intent)?)
    }

    fn retreat(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<()> {
        let open = open(sandbox)?;
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
        let Metadata { original, area, .. } = tree::metadata(sandbox)?;
        original.open()?;
        Now::read(&Dir::open(area.as_path())?)?;
        Ok(())
    }

    fn rollback(
        &self,
        sandbox: &SandboxRef,
        intent: Option<&Intent>,
        _observer: &dyn Observer,
    ) -> Result<RolledBack> {
        if let Some(intent) = intent {
            return tree_commit::undo(intent);
        }
        // The upper layer itself is not opened: its root may have been closed to us.
        let Metadata { original, area, .. } = tree::metadata(sandbox)?;
        let (lower, area) = (original.open()?, Dir::open(area.as_path())?);
        let before = Now::read(&area)?;
        let next = before.next;
        new_layer(&area, &lower, next)?;
        let now = Now {
            layers: vec![Number::own(next)],
            next: next + 1,
            ..before
        };
        now.write(&area, &area.subdir(STAGE)?)?;
        now.sweep(&area)?;
        // What the kernel left from an earlier mount belongs to the old layer.
        remove::remove(&area, WORK)?;
        area.make_dir(WORK, 0o700)?;
        Ok(RolledBack {
            message: "its changes were discarded".to_owned(),
            ..RolledBack::default()
        })
    }

    fn has_room(&self, sandbox: &SandboxRef, occasion: Occasion) -> Result<()> {
        moments::has_room(sandbox, occasion)
    }

    fn checkpoint(
        &self,
        sandbox: &SandboxRef,
        _last: Option<&Moment>,
        _observer: &dyn Observer,
    ) -> Result<Moment> {
        moments::checkpoint(sandbox)
    }

    fn prepare_restore(
        &self,
        sandbox: &SandboxRef,
        way: &Way,
        _area: &Path,
        _observer: &dyn Observer,
    ) -> Result<Intent> {
        moments::prepare_restore(sandbox, &way.to)
    }

    fn restore_checkpoint(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        _observer: &dyn Observer,
    ) -> Result<()> {
        moments::switch(sandbox, intent, false)
    }

    fn undo_restore(&self, sandbox: &SandboxRef, intent: &Intent) -> Result<RolledBack> {
        moments::switch(sandbox, intent, true)?;
        Ok(RolledBack::default())
    }

    fn checkpoint_in_use(
        &self,
        sandbox: &SandboxRef,
        last: Option<&Moment>,
        observer: &dyn Observer,
    ) -> Result<Moment> {
        moments::checkpoint_in_use(sandbox, last, observer)
    }

    fn prepare_restore_in_use(
        &self,
        sandbox: &SandboxRef,
        way: &Way,
        _area: &Path,
        _observer: &dyn Observer,
    ) -> Result<Intent> {
        moments::prepare_restore_in_use(sandbox, way)
    }

    fn restore_in_use(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        through: &Dir,
        _observer: &dyn Observer,
    ) -> Result<()> {
        moments::switch_in_use(sandbox, intent, through, false)
    }

    fn undo_restore_in_use(
        &self,
        sandbox: &SandboxRef,
        intent: &Intent,
        through: &Dir,
    ) -> Result<RolledBack> {
        moments::switch_in_use(sandbox, intent, through, true)?;
        Ok(RolledBack::default())
    }

    fn drop_checkpoint(&self, sandbox: &SandboxRef, kept: &[Moment]) -> Result<()> {
        moments::keep_only(sandbox, kept)
    }

    fn since(
        &self,
        sandbox: &SandboxRef,
        moment: &Moment,
        until: Option<&Moment>,
    ) -> Result<DiffView> {
        moments::since(sandbox, moment, until)
    }

    fn fork(
        &self,
        sandbox: &SandboxRef,
        moment: &Moment,
        request: &CreateRequest<'_>,
    ) -> Result<Created> {
        moments::fork(sandbox, moment, request)
    }

    fn needs(&self, sandbox: &SandboxRef) -> Result<Vec<Location>> {
        Ok(tree::metadata::<Metadata>(sandbox)?.lenders)
    }

    fn access(&self, sandbox: &SandboxRef) -> Result<Access> {
        open(sandbox)?;
        Err(StrategyError::Unsupported {
            strategy: NAME,
            what: "give native tools a path",
            why: "its layers become one directory only inside a private mount".to_owned(),
        })
    }

    fn view(&self, sandbox: &SandboxRef) -> Result<View> {
        let open = open(sandbox)?;
        // Whoever was killed while it was cleared left none.
        if open.area.stat(WORK)?.is_none() {
            open.area.make_dir(WORK, 0o700)?;
        }
        let mut paths = open.now.layers.iter().map(|layer| layer.path(&open.area));
        let upper = paths
            .next()
            .unwrap_or_else(|| Location::from(open.area.path()));
        let paths = paths.chain([Location::from(open.lower.path())]);
        Ok(View::Layers(Layers {
            below: paths.collect(),
            upper,
            work: Location::from(open.area.path().join(OsStr::from_bytes(WORK))),
        }))
    }

    fn cleanup(&self, _sandbox: &SandboxRef) -> Result<()> {
        // Everything lies in the area, and nothing was ever mounted.
        Ok(())
    }
}
