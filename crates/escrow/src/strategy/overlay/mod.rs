//! `overlay`: a layer over the original takes every change.
//!
//! Making one costs the same for ten files and ten million. Nothing is ever mounted outside a
//! private namespace: reading, writing and comparing understand the layers themselves, exactly as
//! the kernel does, whether the kernel made them or we did.
//!
//! ```text
//! <area>/
//!   layers/0, 1, …   what the sandbox changed: files, whiteouts, opaque directories
//!   now              which of them are in use; the topmost takes the changes
//!   seen             how the topmost was when it was last kept while a command ran in it
//!   work/            the kernel's own, for a mount
//!   stage/           files being written
//! ```

mod base;
mod checkpoints;
mod diff;
mod layers;
mod live_checkpoint;
mod probe;
mod squash;
mod stack;
mod take_in;
mod unusable;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original, STAGE};
use super::tree_commit::onto::{self, TreeBase};
use super::tree_commit::{OriginalBase, Released, Releases, StageRequest, TreePreview};
use super::tree_strategy::{TreeKind, TreeSession};
use super::{
    Access, Base, BothSides, Capabilities, Checkpoints, CreateRequest, Created, Exposes, Intent,
    Mount, PrepareRequest, Preview, PreviewOptions, Probe, Remember, RestoreRequest, Sandbox,
    Session, Snapshot, StagedCommit, Target,
};
use super::{tree_commit, tree_digest};
use crate::event::Observer;
use crate::fs::content::DataReader;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::{Location, escape};
use crate::model::view::{Layers, View};
use crate::model::{Change, DiffView, EntryInfo, EntryKind, ResourcePath, SandboxRef};
use checkpoints::StackSwitch;
use layers::LayerEntry;
use stack::{LayerRef, LayerStack, LayerState};

const NAME: &str = "overlay";
const WORK: &[u8] = b"work";

/// How many entries of an original are looked at for what would not work in its sandbox. Few enough that a sandbox of
/// any size costs the same to make.
const LOOKED_AT: usize = 256;

/// The same for what a command that failed could not have done.
const LOOKED_AT_AFTERWARDS: usize = 10_000;

/// The strategy, and what it found out about mounting here: by the file systems of original and area, and by whether the
/// original is a directory.
#[derive(Default)]
pub(super) struct Overlay {
    tried: Mutex<HashMap<(u64, u64), Probe>>,
}

impl Overlay {
    /// Whether the kernel mounts a layer of this area over this original. That depends on their file systems only, so it
    /// is tried once for each pair.
    fn tried(&self, original: &Path, area: &Path) -> Probe {
        let key = match (Dir::look(original), Dir::look(area)) {
            (Ok(original), Ok(_)) if !original.is_dir() => {
                return Probe::no("the resource is no directory");
            }
            (Ok(original), Ok(area)) => (original.dev, area.dev),
            (Err(error), _) | (_, Err(error)) => {
                return Probe::no(format!("{error}: {}", error.cause));
            }
        };
        let tried = || self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tried().get(&key) {
            return known.clone();
        }
        let answer = probe::probe(original, area);
        tried().insert(key, answer.clone());
        answer
    }
}

#[derive(Serialize, Deserialize)]
struct OverlayMetadata {
    original: Original,
    area: Location,
    #[serde(default)]
    carved: Vec<ResourcePath>,
    /// The areas of the sandboxes whose layers it began on ([`SandboxRef::depends_on`]).
    #[serde(default)]
    depends_on: Vec<Location>,
    /// Where its changes are shown and released, if not in what lies below ([`onto`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    onto: Option<Original>,
}

/// A sandbox, opened.
struct OpenLayers {
    lower: Dir,
    now: LayerState,
    upper: LayerStack,
    area: Dir,
    original: Original,
    onto: Option<Original>,
    carved: Vec<ResourcePath>,
}

fn area_of(sandbox: &SandboxRef) -> Result<Dir> {
    let metadata: OverlayMetadata = tree::metadata(sandbox)?;
    Ok(Dir::open(metadata.area.as_path())?)
}

fn open(sandbox: &SandboxRef) -> Result<OpenLayers> {
    let metadata: OverlayMetadata = tree::metadata(sandbox)?;
    let area = Dir::open(metadata.area.as_path())?;
    let now = LayerState::read(&area)?;
    Ok(OpenLayers {
        lower: metadata.original.open()?,
        upper: now.open(&area)?,
        now,
        area,
        original: metadata.original,
        onto: metadata.onto,
        carved: metadata.carved,
    })
}

/// In what a layer differs from the directory below it.
pub fn compare(upper: &Path, lower: &Path) -> Result<DiffView> {
    let (upper, lower) = (LayerStack::of(&Dir::open(upper)?)?, Dir::open(lower)?);
    let found = tree::steady(|| diff::look(&upper, &lower, &Released::default()))?;
    Ok(DiffView::new(found.changes))
}

/// An empty layer whose root looks like the original's. The caller syncs it before anything relies on it.
fn new_layer(area: &Dir, lower: &Dir, number: u32) -> Result<Vec<Vec<u8>>> {
    let room = LayerState::room(area)?;
    let name = number.to_string().into_bytes();
    remove::remove(&room, &name)?;
    room.make_dir(&name, 0o700)?;
    let upper = room.subdir(&name)?;
    let lost = layers::stand_in(&upper, lower, tree::xattrs_of(lower)?)?;
    base::stamp(&upper)?;
    layers::set_mode(&upper, lower.meta()?.mode)?;
    Ok(lost)
}

/// Makes these directories of an area anew, empty.
fn clear(area: &Dir, names: &[&[u8]]) -> Result<()> {
    for name in names {
        remove::remove(area, name)?;
        area.make_dir(name, 0o700)?;
    }
    Ok(())
}

impl TreeKind for Overlay {
    type Switch = StackSwitch;

    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            base: Base::Live,
            checkpoints: Checkpoints::Constant,
            partial: true,
            exposes: Exposes::Nothing,
            strength: 3,
            ..Capabilities::PRIVATE
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let Some(original) = target.path() else {
            return Probe::no("the resource has no path");
        };
        let (mut answer, most) = match area {
            Some(area) => (self.tried(original, area), LOOKED_AT),
            None => (Probe::yes("a sandbox exists"), LOOKED_AT_AFTERWARDS),
        };
        if let Some(point) = area.and_then(|_| probe::mounted_in(original)) {
            let what = "is mounted in it, and an ordinary user can lay no layer over that";
            return Probe {
                remember: Remember::Never,
                ..Probe::no(format!("'{}' {what}", point.display()))
            };
        }
        // Root can change whatever it sees; what is hidden is looked for when a command has failed.
        if answer.works && (area.is_none() || !geteuid().is_root()) {
            answer.limit = unusable::limit(original, most);
        }
        answer.remember = Remember::Never;
        answer
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (at, place) = tree::places(NAME, request)?;
        if let Some((sandbox, snapshot)) = request.from {
            return checkpoints::fork(&open(sandbox)?, snapshot, place, request);
        }
        let (original, lower) = Original::take(at)?;
        let area = Dir::open(place)?;
        clear(&area, &[WORK, STAGE])?;
        let lost = new_layer(&area, &lower, 0)?;
        LayerState::new(Vec::new()).write_first(&area)?;
        let metadata = OverlayMetadata {
            original,
            area: Location::from(place),
            carved: request.target.carved.clone(),
            depends_on: Vec::new(),
            onto: None,
        };
        let lost = lost.iter();
        let lost =
            lost.map(|name| format!("'.': the attribute {} cannot be kept here", escape(name)));
        let message = "an empty layer over the original; nothing was copied";
        Ok(tree::created(
            NAME,
            request,
            &metadata,
            message,
            lost.collect(),
        ))
    }

    fn check(sandbox: &SandboxRef, session: &Session) -> Result<()> {
        let OverlayMetadata {
            original,
            area,
            onto,
            ..
        } = tree::metadata(sandbox)?;
        original.open()?;
        onto::open(onto.as_ref())?;
        LayerState::read(&Dir::open(area.as_path())?)?;
        match session {
            // A command inside may have put something else in its place.
            Session::Live(view) => tree::check_view(view, |seen| Ok(seen.is_overlay()?)),
            _ => Ok(()),
        }
    }
}

impl TreeSession<Overlay> {
    /// What was released of it while the rest stayed.
    fn released(&self, open: &OpenLayers) -> Result<Released> {
        Released::read(&self.parts, &base::identity(open.upper.top())?)
    }

    /// In what it differs from what lies below; at paths that were released elsewhere, from what is there.
    fn scan(
        open: &OpenLayers,
        onto: Option<&Dir>,
        released: &Released,
    ) -> Result<diff::OverlayScan> {
        let (upper, lower) = (&open.upper, &open.lower);
        let mut found = tree::steady(|| diff::look(upper, lower, released))?;
        if let Some(to) = onto {
            let find = |path: &ResourcePath| match layers::find(upper, lower, path)? {
                LayerEntry::Nothing => Ok(None),
                LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta) => {
                    Ok(Some((dir, meta)))
                }
            };
            released.compare_with(&find, layers::visible, to, &mut found.changes)?;
        }
        Ok(found)
    }

    /// Gives what changes are released into, and what is known of it.
    fn with_base<T>(&self, work: impl FnOnce(&Dir, &dyn OriginalBase) -> Result<T>) -> Result<T> {
        let open = open(&self.reference)?;
        let (upper, lower) = (&open.upper, &open.lower);
        let onto = onto::open(open.onto.as_ref())?;
        let to = onto.as_ref().unwrap_or(lower);
        let (moves, released, gone) = (self.moves(to)?, self.released(&open)?, HashSet::new());
        let releases = Releases {
            released: &released,
            original: to,
            moved: &moves,
        };
        if onto.is_some() {
            let tree = lower;
            return work(to, &TreeBase { tree, releases });
        }
        let base = base::LayerBase::open((&open.area, upper), lower, &gone, releases)?;
        work(to, &base)
    }

    fn look_at(&self, options: &PreviewOptions) -> Result<TreePreview> {
        let open = open(&self.reference)?;
        let (upper, lower) = (&open.upper, &open.lower);
        let onto = onto::open(open.onto.as_ref())?;
        let to = onto.as_ref().unwrap_or(lower);
        let (moves, released) = (self.moves(to)?, self.released(&open)?);
        let mut found = Self::scan(&open, onto.as_ref(), &released)?;
        tree::check_stray(&found.changes, &open.carved)?;
        tree::only_own(&mut found.changes, &open.carved);
        let releases = Releases {
            released: &released,
            original: to,
            moved: &moves,
        };
        let base = base::LayerBase::open((&open.area, upper), lower, &found.gone, releases)?;
        let contents = TreeBase {
            tree: lower,
            releases,
        };
        let known: &dyn OriginalBase = if onto.is_some() { &contents } else { &base };
        let diff = DiffView::new(found.changes);
        let new = || upper.keeping();
        tree_commit::look(to, new, diff, found.kept, known, &open.carved, options)
    }
}

impl Sandbox for TreeSession<Overlay> {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let open = open(&self.reference)?;
        tree::check_carved(path, &open.carved)?;
        let (dir, meta) = match layers::find(&open.upper, &open.lower, path)? {
            LayerEntry::Nothing => return Err(StrategyError::NotThere { path: path.clone() }),
            LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta) => (dir, meta),
        };
        tree::replaceable(Some(meta), path)?;
        let (_, name) = path
            .split()
            .expect("the root is a directory, refused above");
        let (file, _) = dir.file(name).map_err(|error| tree::explain(path, error))?;
        Ok(Box::new(DataReader::new(file)))
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let open = open(&self.reference)?;
        tree::check_carved(path, &open.carved)?;
        // While a command is inside, only its namespace may write into the layers.
        if let Session::Live(view) = &self.session {
            return tree::write(&tree::view(view)?, None, path, content);
        }
        let OpenLayers {
            lower, upper, area, ..
        } = open;
        let found = match layers::find(&upper, &lower, path)? {
            LayerEntry::Nothing => None,
            LayerEntry::Upper(dir, meta) => Some((dir, meta, false)),
            LayerEntry::Lower(dir, meta) => Some((dir, meta, true)),
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

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let compare = |open: &OpenLayers| {
            if from.or(to).is_some() {
                return checkpoints::since(open, from, to);
            }
            let (released, onto) = (self.released(open)?, onto::open(open.onto.as_ref())?);
            let mut found = Self::scan(open, onto.as_ref(), &released)?.changes;
            tree::only_own(&mut found, &open.carved);
            Ok(DiffView::new(found))
        };
        compare(&open(&self.reference)?)
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let upper = &open(&self.reference)?.upper;
        tree_digest::sandbox(upper, changes, &self.found.texts())
    }

    fn keep_bases(&self, changes: &[Change]) -> Result<()> {
        self.with_base(|to, base| tree_commit::keep_bases(to, changes, base))
    }

    fn both_sides(&self, changes: &[Change]) -> Result<BothSides> {
        self.with_base(|to, base| tree_commit::both_sides(to, changes, base))
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        // The upper layer itself is not opened: its root may have been closed to us.
        let OverlayMetadata { original, area, .. } = tree::metadata(&self.reference)?;
        let (lower, area) = (original.open()?, Dir::open(area.as_path())?);
        let before = LayerState::read(&area)?;
        new_layer(&area, &lower, before.next)?;
        let now = LayerState {
            layers: vec![LayerRef::own(before.next)],
            ..before.reserve(1)
        };
        now.write(&area)?;
        // What the kernel left from an earlier mount belongs to the old layer.
        clear(&area, &[WORK])?;
        Ok("its changes were discarded".to_owned())
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        let open = open(&self.reference)?;
        match self.session {
            Session::Live(_) => checkpoints::checkpoint_live(&open, parent, observer),
            _ => checkpoints::checkpoint(&open),
        }
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        checkpoints::retain(&self.reference, keep, self.session == Session::Exclusive)
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let found = self.look_at(options)?;
        Ok(self.found.keep(found))
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let area = tree::commit_area(NAME, request.area)?;
        let look = || self.look_at(&PreviewOptions::default());
        let found = self.found.take(request, look)?;
        let open = open(&self.reference)?;
        let (upper, lower, released) = (&open.upper, &open.lower, self.released(&open)?);
        let onto = onto::open(open.onto.as_ref())?;
        let original = onto.as_ref().unwrap_or(lower);
        let (gone, moves) = (HashSet::new(), self.moves(original)?);
        let releases = Releases {
            released: &released,
            original,
            moved: &moves,
        };
        let base = base::LayerBase::open((&open.area, upper), lower, &gone, releases)?;
        let contents = TreeBase {
            tree: lower,
            releases,
        };
        let source = tree_commit::StageSource {
            area: &open.area,
            root: &upper.keeping(),
            whole: false,
            base: if onto.is_some() { &contents } else { &base },
        };
        if request.preview.part {
            let changes = &found.preview.diff.changes;
            let is_dir = |one: &EntryInfo| one.kind == EntryKind::Directory;
            let added = |one: &&Change| one.old.is_none() && one.new.as_ref().is_some_and(is_dir);
            let added = || changes.iter().filter(added);
            if request.preview.live {
                base::hide_below(&open, added())?;
            }
            base::mark_made(upper, added())?;
        }
        let of = base::identity(upper.top())?;
        let staged = StageRequest::new(request, &found, area, of);
        let to = open.onto.as_ref().unwrap_or(&open.original);
        tree_commit::prepare(to, &source, &staged)
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let open = open(&self.reference)?;
        checkpoints::prepare_restore(&open, &self.reference, request, self.live())
    }

    fn prepare_discard(
        &self,
        _request: &RestoreRequest<'_>,
        paths: &BTreeSet<ResourcePath>,
    ) -> Result<Intent> {
        let open = open(&self.reference)?;
        let released = self.released(&open)?;
        checkpoints::prepare_discard(&open, &self.reference, paths, &released)
    }

    fn take_in(&self, intent: &Intent) -> Result<()> {
        let changed = self.diff(None, None)?.changes;
        let changed = changed.into_iter().map(|change| change.path).collect();
        let open = open(&self.reference)?;
        tree_commit::take_in(intent, &changed, &take_in::TopLayer(&open))?;
        Ok(open.area.sync_file_system()?)
    }

    /// Its layers become one directory only inside a private mount: outside there is no path.
    fn access(&self) -> Result<Access> {
        let open = open(&self.reference)?;
        // A process that was killed while it was cleared left none.
        if open.area.stat(WORK)?.is_none() {
            open.area.make_dir(WORK, 0o700)?;
        }
        let mut paths = open.now.layers.iter().map(|layer| layer.path(&open.area));
        let upper = paths
            .next()
            .unwrap_or_else(|| Location::from(open.area.path()));
        let paths = paths.chain([Location::from(open.lower.path())]);
        let view = View::Layers(Layers {
            below: paths.collect(),
            upper,
            work: Location::from(open.area.path().join(OsStr::from_bytes(WORK))),
        });
        let cwd = self.live().map(tree::view).transpose()?;
        let onto = onto::open(open.onto.as_ref())?;
        let at = Location::from(onto.as_ref().unwrap_or(&open.lower).path());
        Ok(Access {
            mounts: vec![Mount {
                at,
                view,
                area: Some(Location::from(open.area.path())),
            }],
            cwd: cwd.map(|dir| Location::from(dir.path())),
            ..Access::default()
        })
    }
}
