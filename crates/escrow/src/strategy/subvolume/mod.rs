//! `snapshot` for directories: btrfs snapshots of the subvolume that the directory lies in.
//!
//! Making a sandbox, keeping a checkpoint, returning to one and forking cost the same for ten files and ten million. The
//! base is a read-only snapshot of the original, so it stays whatever becomes of that; the diff is one walk over both, in
//! which only what was touched is opened. [`volumes`] has what lies where, [`compare`] the diff.
//!
//! A directory inside a larger subvolume has that as a whole in its area, which is closed to other users; only the directory is
//! ever shown.

mod base;
mod compare;
mod volumes;

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::{self, Original};
use super::tree_commit::{PlainTree, Released, Releases, StageRequest, TreePreview};
use super::tree_strategy::{TreeKind, TreeSession};
use super::{
    Access, BothSides, Capabilities, Checkpoints, CreateRequest, Created, Intent, PrepareRequest,
    Preview, PreviewOptions, Probe, Remember, RestoreRequest, Sandbox, Session, Snapshot,
    StagedCommit, Target, unsupported,
};
use super::{tree_commit, tree_digest};
use crate::event::Observer;
use crate::fs::{Dir, btrfs};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::{Change, DiffView, ResourcePath, SandboxRef};
use base::FrozenBase;
use compare::compare;
use volumes::VolumeSwitch;

const NAME: &str = "snapshot";

/// How many subvolumes a warning names.
const NAMED: usize = 3;

/// The strategy.
#[derive(Default)]
pub(super) struct Subvolume;

#[derive(Serialize, Deserialize)]
struct SubvolumeMetadata {
    original: Original,
    area: Location,
    /// Where the original lies in its subvolume.
    inside: ResourcePath,
    #[serde(default)]
    carved: Vec<ResourcePath>,
}

/// A sandbox, opened. The original is opened only where it is needed: the sandbox may be all that is left of it.
struct OpenVolumes {
    original: Original,
    area: Dir,
    inside: ResourcePath,
    base: Dir,
    tree: Dir,
    carved: Vec<ResourcePath>,
}

fn area_of(sandbox: &SandboxRef) -> Result<Dir> {
    let metadata: SubvolumeMetadata = tree::metadata(sandbox)?;
    Ok(Dir::open(metadata.area.as_path())?)
}

fn open(sandbox: &SandboxRef) -> Result<OpenVolumes> {
    let metadata: SubvolumeMetadata = tree::metadata(sandbox)?;
    let area = Dir::open(metadata.area.as_path())?;
    Ok(OpenVolumes {
        base: volumes::base_tree(&area, &metadata.inside)?,
        tree: volumes::work_tree(&area, &metadata.inside)?,
        original: metadata.original,
        area,
        inside: metadata.inside,
        carved: metadata.carved,
    })
}

impl Subvolume {
    /// Makes a sandbox that begins at a checkpoint of another one.
    fn fork(
        sandbox: &SandboxRef,
        snapshot: &Snapshot,
        place: &Path,
        request: &CreateRequest<'_>,
    ) -> Result<Created> {
        let other = area_of(sandbox)?;
        let area = Dir::open(place)?;
        volumes::clear(&area)?;
        let work = volumes::checkpoint_volume(&other, snapshot)?;
        volumes::make(&area, &volumes::base(&other)?, Some(&work))?;
        volumes::settle_in(&area)?;
        let metadata = SubvolumeMetadata {
            area: Location::from(place),
            ..tree::metadata(sandbox)?
        };
        let message = "snapshots of the sandbox of another plan; nothing was copied";
        Ok(tree::created(NAME, request, &metadata, message, Vec::new()))
    }
}

/// Whether a snapshot of this original can be taken into this area, and what would not work in it.
fn look(original: &Path, area: &Path) -> Result<Probe> {
    if !Dir::look(original)?.is_dir() {
        return Ok(Probe::no("the resource is no directory"));
    }
    let (dir, area) = (Dir::open(original)?, Dir::open(area)?);
    if !btrfs::is_btrfs(&dir) {
        return Ok(Probe::no(
            "it does not lie on btrfs, and no other file system takes snapshots of directories",
        ));
    }
    if !btrfs::is_shared(&dir, &area) {
        return Ok(Probe::no(
            "the sandbox's area is on another file system than the original, and a snapshot stays on its own",
        ));
    }
    let Some((holder, inside)) = btrfs::holder(original)? else {
        return Ok(Probe::no(
            "the subvolume it lies in cannot be reached: only a part of that is mounted here",
        ));
    };
    let root = Dir::open(&holder)?;
    let user = rustix::process::geteuid();
    if !user.is_root() && root.meta()?.uid != user.as_raw() {
        return Ok(Probe::no(format!(
            "it lies in the subvolume '{}', which belongs to another user, and only its owner may take snapshots of it",
            Location::from(holder)
        )));
    }
    let mut limits = Vec::new();
    let nested = btrfs::nested(&root, &inside)?;
    limits.extend(nested_warning(&nested));
    if !volumes::may_delete(&area)? {
        limits.push(
            "this user may not delete subvolumes (the mount option user_subvol_rm_allowed), so making and removing \
             the sandbox takes as long as looking at, and removing, every file in the subvolume"
                .to_owned(),
        );
    }
    let mut probe = Probe::yes("btrfs takes snapshots of its subvolume");
    probe.limit = (!limits.is_empty()).then(|| limits.join("; "));
    Ok(probe)
}

/// What of the original is not in a sandbox of it.
fn nested_warning(nested: &[ResourcePath]) -> Option<String> {
    let more = nested.len().saturating_sub(NAMED);
    let named = nested.iter().take(NAMED).map(|path| format!("'{path}'"));
    let more = (more > 0).then(|| format!("{more} more"));
    let named: Vec<String> = named.chain(more).collect();
    match nested {
        [] => None,
        [_] => Some(format!(
            "{} is a subvolume of its own, and an empty directory in the sandbox",
            named.concat()
        )),
        _ => Some(format!(
            "{} are subvolumes of their own, and empty directories in the sandbox",
            named.join(", ")
        )),
    }
}

impl TreeKind for Subvolume {
    type Switch = VolumeSwitch;

    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            checkpoints: Checkpoints::Constant,
            partial: true,
            strength: 6,
            ..Capabilities::PRIVATE
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let mut probe = match (target.path(), area) {
            (Some(original), Some(area)) if area.starts_with(original) => {
                Probe::no("the sandbox's own area would lie in the original")
            }
            (Some(original), Some(area)) => match look(original, area) {
                Ok(probe) => probe,
                Err(StrategyError::Fs(error)) => Probe::no(format!("{error}: {}", error.cause)),
                Err(error) => Probe::no(error.to_string()),
            },
            (Some(_), None) => Probe::yes("a sandbox exists"),
            (None, _) => Probe::no("the resource has no path"),
        };
        // A subvolume may be made, given away or mounted at any time, and asking costs little.
        probe.remember = Remember::Never;
        probe
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (at, place) = tree::places(NAME, request)?;
        if let Some((sandbox, snapshot)) = request.from {
            return Self::fork(sandbox, snapshot, place, request);
        }
        let (original, from) = Original::take(at)?;
        let Some((holder, inside)) = btrfs::holder(at)?.filter(|_| btrfs::is_btrfs(&from)) else {
            let why = "it does not lie in a subvolume of btrfs that can be reached here";
            return Err(unsupported(NAME, "take a snapshot", why));
        };
        if place.starts_with(at) {
            let why = "the sandbox's own area lies in it; keep the state elsewhere (`--home`), or use overlay";
            return Err(unsupported(NAME, "take a snapshot", why));
        }
        let (root, area) = (Dir::open(&holder)?, Dir::open(place)?);
        if !volumes::may_delete(&area)? {
            volumes::check_removable(&root)?;
        }
        volumes::clear(&area)?;
        volumes::make(&area, &root, None)?;
        volumes::settle_in(&area)?;
        let (was, is) = (from.meta()?, volumes::base_tree(&area, &inside)?.meta()?);
        if (was.ino, was.born) != (is.ino, is.born) {
            return Err(StrategyError::Moved {
                path: ResourcePath::root(),
                what: "another directory was put in its place while the snapshot was taken"
                    .to_owned(),
            });
        }
        let warnings = nested_warning(&btrfs::nested(&root, &inside)?);
        let message = match inside.is_root() {
            true => "a snapshot of the subvolume; nothing was copied".to_owned(),
            false => format!(
                "a snapshot of the subvolume '{}', in which it lies; nothing was copied",
                Location::from(holder)
            ),
        };
        let metadata = SubvolumeMetadata {
            original,
            area: Location::from(place),
            inside,
            carved: request.target.carved.clone(),
        };
        let warnings = warnings.into_iter().collect();
        Ok(tree::created(NAME, request, &metadata, message, warnings))
    }

    fn check(sandbox: &SandboxRef, session: &Session) -> Result<()> {
        let metadata: SubvolumeMetadata = tree::metadata(sandbox)?;
        let area = area_of(sandbox)?;
        area.subdir(volumes::VOLUMES)?;
        match session {
            Session::Shared => Ok(()),
            Session::Exclusive => metadata.original.open().map(drop),
            // A command inside may have put something else in its place.
            Session::Live(view) => {
                tree::check_view_of(view, &volumes::work_tree(&area, &metadata.inside)?)
            }
        }
    }
}

impl TreeSession<Subvolume> {
    /// What was released of it while the rest stayed.
    fn released(&self, open: &OpenVolumes) -> Result<Released> {
        Released::read(&self.parts, &volumes::identity(&open.area)?.to_string())
    }

    fn look_at(&self, options: &PreviewOptions) -> Result<TreePreview> {
        let open = open(&self.reference)?;
        let original = open.original.open()?;
        let (moved, released) = (self.moves(&original)?, self.released(&open)?);
        let mut found = compare(&open.base, &open.tree)?;
        let same = released.compare(&open.tree, &original, &mut found.changes)?;
        let kept = found.kept().chain(same).collect();
        tree::check_stray(&found.changes, &open.carved)?;
        tree::only_own(&mut found.changes, &open.carved);
        let base = FrozenBase {
            base: &open.base,
            releases: Releases {
                released: &released,
                original: &original,
                moved: &moved,
            },
        };
        let sandbox = || open.tree.again().keeping();
        let diff = DiffView::new(found.changes);
        let carved = &open.carved;
        tree_commit::look(&original, sandbox, diff, kept, &base, carved, options)
    }
}

impl Sandbox for TreeSession<Subvolume> {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let open = open(&self.reference)?;
        tree::check_carved(path, &open.carved)?;
        tree::read(&open.tree, path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let open = open(&self.reference)?;
        tree::check_carved(path, &open.carved)?;
        // No name leaves its subvolume: what is written waits beside its place.
        match &self.session {
            Session::Live(view) => tree::write(&tree::view(view)?, None, path, content),
            _ => tree::write(&open.tree, None, path, content),
        }
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let open = open(&self.reference)?;
        let original = open.original.open()?;
        let at = |snapshot: &Snapshot| -> Result<Dir> {
            let volume = volumes::checkpoint_volume(&open.area, snapshot)?;
            Ok(volume.dir(&open.inside)?)
        };
        let (from, to) = (from.map(at).transpose()?, to.map(at).transpose()?);
        let (old, new) = (
            from.as_ref().unwrap_or(&open.base),
            to.as_ref().unwrap_or(&open.tree),
        );
        let mut changes = compare(old, new)?.changes;
        // Between two snapshots what was released plays no part.
        if from.is_none() && to.is_none() && !self.parts.is_empty() {
            let released = self.released(&open)?;
            released.compare(&open.tree, &original, &mut changes)?;
        }
        tree::only_own(&mut changes, &open.carved);
        Ok(DiffView::new(changes))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let tree = &open(&self.reference)?.tree;
        tree_digest::sandbox(tree, changes, &self.found.texts())
    }

    fn rollback(&self, _observer: &dyn Observer) -> Result<String> {
        // The work itself is not opened: it may have been closed to us.
        let metadata: SubvolumeMetadata = tree::metadata(&self.reference)?;
        let (original, area) = (metadata.original.open()?, area_of(&self.reference)?);
        let base = volumes::base_tree(&area, &metadata.inside)?;
        // Where something was released the original is not what it was.
        let still = self.parts.is_empty() && compare(&base, &original)?.is_empty();
        if still {
            volumes::reset(&area)?;
            return Ok("its changes were discarded".to_owned());
        }
        let Some((holder, _)) = btrfs::holder(original.path())? else {
            let why = "the subvolume that the original lies in cannot be reached any more";
            return Err(unsupported(NAME, "take a snapshot", why));
        };
        volumes::replace(&area, &Dir::open(&holder)?)?;
        let said = "its changes were discarded; it is a snapshot of the original as it is now";
        Ok(said.to_owned())
    }

    fn checkpoint(&self, _parent: Option<&Snapshot>, _observer: &dyn Observer) -> Result<Snapshot> {
        volumes::checkpoint(&open(&self.reference)?)
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        volumes::retain(&area_of(&self.reference)?, keep)?;
        Ok(keep.to_vec())
    }

    fn both_sides(&self, changes: &[Change]) -> Result<BothSides> {
        let open = open(&self.reference)?;
        let original = open.original.open()?;
        let base = FrozenBase {
            base: &open.base,
            releases: Releases {
                released: &self.released(&open)?,
                original: &original,
                moved: &self.moves(&original)?,
            },
        };
        tree_commit::both_sides(&original, changes, &base)
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
        let original = open.original.open()?;
        let (moved, released) = (self.moves(&original)?, self.released(&open)?);
        let source = tree_commit::StageSource {
            area: &open.area,
            root: &open.tree.again().keeping(),
            whole: false,
            base: &FrozenBase {
                base: &open.base,
                releases: Releases {
                    released: &released,
                    original: &original,
                    moved: &moved,
                },
            },
        };
        let of = volumes::identity(&open.area)?.to_string();
        let staged = StageRequest::new(request, &found, area, of);
        tree_commit::prepare(&open.original, &source, &staged)
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let open = open(&self.reference)?;
        VolumeSwitch::prepare(&open, &self.reference, request, self.live())
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
        tree::access(&open.original, &open.tree, Some(&open.area), self.live())
    }
}
