//! A session with a git sandbox: files and history as one.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::super::error::Result;
use super::super::tree;
use super::super::{
    Access, Intent, Mount, PrepareRequest, Preview, PreviewNote, PreviewOptions, RestoreRequest,
    Sandbox, Snapshot, StagedCommit,
};
use super::command::Git;
use super::history::{History, is_released};
use super::release::{self, Found, GitIntent, Release};
use super::{Both, CommitIntent, FILES, GIT, GitMetadata, NAME, both, git_dir, seed};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::digest::{VersionDigest, VersionDigests};
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, Detail, DiffView, ResourcePath};

/// A session with both.
pub(super) struct GitSession {
    pub(super) sandbox: GitMetadata,
    pub(super) files: Box<dyn Sandbox>,
    pub(super) private: Box<dyn Sandbox>,
    pub(super) program: Git,
    /// What the last preview found.
    pub(super) found: RefCell<Option<Found>>,
}

impl GitSession {
    fn history(&self) -> Result<History> {
        let seed = Dir::open(&self.sandbox.seed())?;
        History::read(&*self.private, &seed, self.sandbox.repository.objects())
    }

    /// The sandbox a path is in, and the path in it.
    fn route<'a>(&'a self, path: &'a ResourcePath) -> (&'a dyn Sandbox, ResourcePath) {
        match path.lies_in(&git_dir()) {
            true => {
                let inner = path.parts().skip(1);
                let inner = inner.fold(ResourcePath::root(), |path, part| path.join(part));
                (&*self.private, inner)
            }
            false => (&*self.files, path.clone()),
        }
    }

    /// Looks at what a release would do. Several may look at once, so each has a directory of its own for objects and an
    /// index that are only looked at.
    fn look(&self) -> Result<(History, Found)> {
        let history = self.history()?;
        let area = Dir::open(self.sandbox.area.as_path())?;
        let thread = std::thread::current().id();
        let name = format!("scratch-{}-{thread:?}", std::process::id()).into_bytes();
        remove::remove(&area, &name)?;
        area.make_dir(&name, 0o700)?;
        let (program, sandbox) = (&self.program, &self.sandbox);
        let scratch = area.subdir(&name)?;
        let found = release::look(program, sandbox, &history, &*self.private, &scratch);
        remove::remove(&area, &name)?;
        Ok((history, found?))
    }
}

/// Changes of files, then those of the history.
fn joined(files: &DiffView, history: Vec<Change>) -> DiffView {
    let files = files.changes.iter().cloned();
    DiffView::new(files.chain(history).collect())
}

fn is_history(change: &Change) -> bool {
    matches!(change.detail, Detail::Opaque { .. }) && change.path.lies_in(&git_dir())
}

impl Sandbox for GitSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let (sandbox, path) = self.route(path);
        sandbox.read(&path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let (sandbox, inner) = self.route(path);
        let mut change = sandbox.write(&inner, content)?;
        change.path = path.clone();
        Ok(change)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let read = |one: Option<&Snapshot>| one.map(|one| both::<Snapshot>(&one.0)).transpose();
        let (from, to) = (read(from)?, read(to)?);
        let files = self.files.diff(
            from.as_ref().map(|one| &one.files),
            to.as_ref().map(|one| &one.files),
        )?;
        if from.is_some() || to.is_some() {
            return Ok(files);
        }
        let history = self.history()?;
        let changes = history.changes(&self.program, &self.sandbox.seed(), &self.sandbox.head)?;
        Ok(joined(&files, changes))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let (history, files): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|change| is_history(change));
        let files: Vec<Change> = files.into_iter().cloned().collect();
        let mut digests = self.files.digests(&files)?;
        digests.extend(history.into_iter().filter_map(digest));
        Ok(digests)
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        self.private.rollback(observer)?;
        self.files.rollback(observer)
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        let parent = parent.map(|one| both::<Snapshot>(&one.0)).transpose()?;
        let parent = parent.as_ref();
        let kept = Both {
            files: self
                .files
                .checkpoint(parent.map(|one| &one.files), observer)?,
            git: self
                .private
                .checkpoint(parent.map(|one| &one.git), observer)?,
        };
        Ok(Snapshot(tree::stored(&kept)))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let all: Result<Vec<Both<Snapshot>>> = keep.iter().map(|one| both(&one.0)).collect();
        let (files, git): (Vec<Snapshot>, Vec<Snapshot>) =
            all?.into_iter().map(|one| (one.files, one.git)).unzip();
        let (files, git) = (self.files.retain(&files)?, self.private.retain(&git)?);
        let one = |(files, git)| Snapshot(tree::stored(&Both { files, git }));
        Ok(files.into_iter().zip(git).map(one).collect())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let mut preview = self.files.preview(options)?;
        let (history, found) = self.look()?;
        let changes = history.changes(&self.program, &self.sandbox.seed(), &self.sandbox.head)?;
        // A path in which the files contradict each other is named once.
        let files: HashSet<ResourcePath> = preview
            .conflicts
            .iter()
            .map(|one| one.path.clone())
            .collect();
        let both = found.diverged.iter().chain(&found.staged);
        preview
            .conflicts
            .extend(both.filter(|one| !files.contains(&one.path)).cloned());
        let (released, left): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(is_released);
        for change in left {
            preview.notes.push(PreviewNote {
                path: change.path,
                what: "it stays in the sandbox: only the branch that was checked out is released"
                    .to_owned(),
            });
        }
        preview.diff = Arc::new(joined(&preview.diff, released));
        self.found.replace(Some(found));
        Ok(preview)
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let place = tree::commit_area(NAME, request.area)?;
        let area = Dir::open(place)?;
        for name in [FILES, GIT] {
            remove::remove(&area, name.as_bytes())?;
            area.make_dir(name.as_bytes(), 0o700)?;
        }
        let found = match self.found.take() {
            Some(found) => found,
            None => self.look()?.1,
        };
        let mut files = request.preview.clone();
        let (history, own): (Vec<Change>, Vec<Change>) =
            files.diff.changes.iter().cloned().partition(is_history);
        files.diff = Arc::new(DiffView::new(own));
        files.notes.retain(|note| !note.path.lies_in(&git_dir()));
        let inner = PrepareRequest {
            preview: &files,
            area: Some(&place.join(FILES)),
            ..*request
        };
        let mut staged = self.files.prepare(&inner)?;
        // A part without its history leaves the history where it is.
        let whole = !request.preview.part || !history.is_empty();
        let repository = match whole {
            true => self.prepare_release(found.settled(request.on_conflict)?, request, &area)?,
            false => None,
        };
        if request.digests {
            staged.digests.extend(history.iter().filter_map(digest));
        }
        let intent = CommitIntent {
            files: staged.intent,
            repository,
        };
        Ok(StagedCommit {
            intent: Intent(tree::stored(&intent)),
            digests: staged.digests,
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let place = tree::commit_area(NAME, request.area)?;
        let area = Dir::open(place)?;
        let (from, to) = (
            both::<Snapshot>(&request.from.0)?,
            both::<Snapshot>(&request.to.0)?,
        );
        let prepared = |sandbox: &dyn Sandbox, name: &str, from: &Snapshot, to: &Snapshot| {
            remove::remove(&area, name.as_bytes())?;
            area.make_dir(name.as_bytes(), 0o700)?;
            sandbox.prepare_restore(&RestoreRequest {
                from,
                to,
                area: Some(&place.join(name)),
                observer: request.observer,
            })
        };
        let restore = Both {
            files: prepared(&*self.files, FILES, &from.files, &to.files)?,
            git: prepared(&*self.private, GIT, &from.git, &to.git)?,
        };
        Ok(Intent(tree::stored(&restore)))
    }

    fn access(&self) -> Result<Access> {
        let mut access = self.files.access()?;
        // The one in the checkout, or where its file says.
        let at = self.sandbox.repository.git_dir.as_path();
        let moved = |mount: Mount, at: &Path| Mount {
            at: Location::from(at),
            ..mount
        };
        let private = self.private.access()?.mounts;
        access
            .mounts
            .extend(private.into_iter().map(|mount| moved(mount, at)));
        access.mounts.push(Mount {
            at: Location::from(at.join(seed::BORROWED)),
            view: View::ReadOnly(Location::from(self.sandbox.repository.objects())),
            area: None,
        });
        Ok(access)
    }
}

impl GitSession {
    fn prepare_release(
        &self,
        release: Release,
        request: &PrepareRequest<'_>,
        area: &Dir,
    ) -> Result<Option<GitIntent>> {
        if release.moves.is_empty() && release.index.is_empty() {
            return Ok(None);
        }
        let (area, history) = (area.subdir(GIT.as_bytes())?, self.history()?);
        let (program, sandbox) = (&self.program, &self.sandbox);
        let release =
            release::prepare(program, sandbox, &history, release, request.message, &area)?;
        Ok(Some(GitIntent {
            repository: sandbox.repository.clone(),
            checkout: sandbox.checkout.clone(),
            area: Location::from(area.path()),
            settings: Location::from(area.path().join(release::SETTINGS)),
            packs: release::packs(&area)?,
            release,
        }))
    }
}

/// What a reference becomes, in short.
fn digest(change: &Change) -> Option<(ResourcePath, VersionDigest)> {
    let Detail::Opaque { detail } = &change.detail else {
        return None;
    };
    if !is_released(change) {
        return None;
    }
    let new = detail.get("new")?.as_str()?;
    let version = VersionDigest::new(&[b"ref", new.as_bytes()], true);
    Some((change.path.clone(), version))
}
