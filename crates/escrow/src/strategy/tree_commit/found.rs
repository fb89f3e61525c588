//! What the preview of a directory found, for the staging that follows in the same session.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::event::Observer;
use crate::fs::Fingerprint;
use crate::model::ResourcePath;
use crate::strategy::error::Result;
use crate::strategy::{OnConflict, PrepareRequest, Preview};

/// A preview with everything that staging needs to know of the original.
#[derive(Debug, Default)]
pub(in crate::strategy) struct TreePreview {
    pub(in crate::strategy) preview: Preview,
    /// What stood in the original at each path of the diff, in the same order.
    pub(in crate::strategy) seen: Vec<Option<Fingerprint>>,
    /// The paths among them at which the original is immutable or append-only.
    pub(in crate::strategy) fixed: BTreeSet<ResourcePath>,
    /// Paths that were touched, but are no change.
    pub(in crate::strategy) kept: Vec<ResourcePath>,
    /// What is released instead of the sandbox's versions: what both sides made of text files that both changed, and files of
    /// which only some hunks were chosen.
    pub(in crate::strategy) texts: BTreeMap<ResourcePath, Vec<u8>>,
}

impl TreePreview {
    /// The same for those of its changes that are to be released.
    pub(in crate::strategy) fn narrowed(mut self, to: &Preview) -> Self {
        let mut all = self.preview.diff.changes.iter().zip(&self.seen);
        let mut seen = Vec::with_capacity(to.diff.changes.len());
        for change in &to.diff.changes {
            let found = all.find(|(one, _)| one.path == change.path);
            seen.push(found.and_then(|(_, seen)| *seen));
        }
        self.seen = seen;
        self.preview = Preview {
            diff: Arc::clone(&to.diff),
            conflicts: to.conflicts.clone(),
            merged: Vec::new(),
            in_hunks: Vec::new(),
            notes: Vec::new(),
            ..*to
        };
        self
    }
}

/// What the last preview of a session found.
#[derive(Debug, Default)]
pub(in crate::strategy) struct LastPreview(RefCell<Option<TreePreview>>);

impl LastPreview {
    /// Remembers what was found, and returns what the caller is told of it.
    pub(in crate::strategy) fn keep(&self, found: TreePreview) -> Preview {
        let preview = found.preview.clone();
        self.0.replace(Some(found));
        preview
    }

    /// What is released instead of the sandbox's versions, by what was found.
    pub(in crate::strategy) fn texts(&self) -> BTreeMap<ResourcePath, Vec<u8>> {
        let found = self.0.borrow();
        found
            .as_ref()
            .map_or_else(BTreeMap::new, |found| found.texts.clone())
    }

    /// What was found, else what is found now, of the changes that are to be released.
    pub(in crate::strategy) fn take(
        &self,
        request: &PrepareRequest<'_>,
        look: impl FnOnce() -> Result<TreePreview>,
    ) -> Result<TreePreview> {
        let found = self.0.take().map_or_else(look, Ok)?;
        Ok(found.narrowed(request.preview))
    }
}

/// What is staged, and where.
pub(in crate::strategy) struct StageRequest<'a> {
    pub(in crate::strategy) preview: &'a TreePreview,
    pub(in crate::strategy) on_conflict: OnConflict,
    /// The area of the commit.
    pub(in crate::strategy) area: &'a Path,
    /// The sandbox stays: nothing of it becomes the original's.
    pub(in crate::strategy) keeps: bool,
    /// The digest of each version that is staged is wanted.
    pub(in crate::strategy) digests: bool,
    /// Only a part is released, of this sandbox, which stays.
    pub(in crate::strategy) part: Option<String>,
    pub(in crate::strategy) observer: &'a dyn Observer,
}

impl<'a> StageRequest<'a> {
    /// What a commit asks for, of this sandbox.
    pub(in crate::strategy) fn new(
        request: &PrepareRequest<'a>,
        preview: &'a TreePreview,
        area: &'a Path,
        of: String,
    ) -> Self {
        let part = request.preview.part;
        Self {
            preview,
            on_conflict: request.on_conflict,
            area,
            keeps: request.keeps,
            digests: request.digests,
            part: part.then_some(of),
            observer: request.observer,
        }
    }
}
