//! The three versions of a file that both sides changed: that from which the sandbox began, the sandbox's, and the original's.

use std::time::Duration;

use super::content::{check_readable, facts};
use super::{Manager, PlanDiff, ResourceDiff};
use crate::error::Result;
use crate::model::resource::Shape;
use crate::model::{
    Action, Change, ChangedField, Detail, DiffView, EntryInfo, EntryKind, ResourcePath,
};
use crate::store::Plan;
use crate::strategy::{Base, Session};

/// Which two versions are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ComparedSides {
    /// What the sandbox changed.
    #[default]
    BaseToSandbox,
    /// What a release of the sandbox's versions would make of the original as it is now.
    OriginalToSandbox,
    /// What the original changed, at paths that both sides changed and of which the base is known.
    BaseToOriginal,
}

impl PlanDiff {
    /// The same changes between other versions.
    pub fn comparing(mut self, sides: ComparedSides) -> Result<Self> {
        self.sides = sides;
        for one in &mut self.resources {
            match sides {
                ComparedSides::BaseToSandbox => {}
                ComparedSides::OriginalToSandbox => {
                    for path in one.both_sides.keys() {
                        set_old(&mut one.diff, path, facts(&one.view.resource, path)?);
                    }
                }
                ComparedSides::BaseToOriginal => one.diff = moved(one)?,
            }
        }
        Ok(self)
    }
}

impl ResourceDiff {
    /// Takes the text that both sides began from for the old version of a file, where that is known.
    pub(super) fn with_bases(mut self) -> Self {
        for (path, base) in &self.both_sides {
            let by_path = |change: &Change| change.path.cmp(path);
            let at = self.diff.changes.binary_search_by(by_path).ok();
            let change = at.and_then(|at| self.diff.changes.get(at));
            if let (Some(base), Some(change)) = (base, change) {
                let old = change.old.as_ref().or(change.new.as_ref());
                let old = old.map(|old| file(old, base));
                set_old(&mut self.diff, path, old);
            }
        }
        self
    }
}

/// A file with this text.
fn file(like: &EntryInfo, text: &[u8]) -> EntryInfo {
    EntryInfo {
        kind: EntryKind::File,
        size: text.len() as u64,
        target: None,
        ..like.clone()
    }
}

/// Gives a changed file this old version.
fn set_old(diff: &mut DiffView, path: &ResourcePath, now: Option<EntryInfo>) {
    let by_path = |change: &Change| change.path.cmp(path);
    let at = diff.changes.binary_search_by(by_path).ok();
    let Some(change) = at.and_then(|at| diff.changes.get_mut(at)) else {
        return;
    };
    let is_file = |facts: &EntryInfo| facts.kind == EntryKind::File;
    if now.as_ref().is_some_and(|now| !is_file(now)) {
        return;
    }
    match (&mut change.detail, now) {
        (Detail::File(file), Some(now)) if file.old.as_ref().is_some_and(is_file) => {
            file.old = Some(now);
        }
        (Detail::File(file), now) => match (file.new.clone().filter(is_file), now) {
            (Some(new), Some(now)) if file.old.is_none() => {
                *change = Change::replaced(path.clone(), now, new);
            }
            (Some(new), None) => *change = Change::added(path.clone(), new),
            _ => {}
        },
        _ => {}
    }
}

/// What the original changed of the paths that both sides changed.
fn moved(of: &ResourceDiff) -> Result<DiffView> {
    let mut changes = Vec::new();
    for change in &of.diff.changes {
        let Some(Some(base)) = of.both_sides.get(&change.path) else {
            continue;
        };
        let (path, now) = (change.path.clone(), facts(&of.view.resource, &change.path)?);
        let template = now.as_ref().or(change.old.as_ref()).or(change.new.as_ref());
        let Some(template) = template.cloned() else {
            continue;
        };
        let old = file(&template, base);
        match now {
            None => changes.push(Change::deleted(path, old)),
            Some(now) => {
                changes.extend(Change::between(path, old, now, vec![ChangedField::Content]));
            }
        }
    }
    Ok(DiffView::new(changes))
}

impl Manager {
    /// The files of a plan that both sides changed, with the names of their resources. For a status: nothing is waited for,
    /// an error says only that they cannot be looked at now, and sandboxes are left out that are compared at the cost of all
    /// their files.
    pub fn both_sides(&self, plan: &Plan) -> Result<Vec<(String, Vec<ResourcePath>)>> {
        self.authorize_plan(Action::Diff, plan)?;
        let _lock = self.begin_call(plan, true)?;
        let mut views = self.live_sandboxes(plan)?;
        views.retain(|view| matches!(view.resource.shape, Shape::Tree | Shape::File));
        let resources: Vec<_> = views.iter().map(|view| &view.resource).collect();
        let _originals = self.lock_originals_for(&resources, true, Duration::ZERO)?;
        check_readable(plan, &views)?;
        let mut found = Vec::new();
        for view in &views {
            let reference = &view.sandbox.reference;
            let strategy = self.registry_of(reference.plan_id)?.of(reference)?;
            if strategy.capabilities_of(reference).base != Base::Live {
                continue;
            }
            let sandbox = self.open_sandbox(view, Session::Shared)?;
            let diff = sandbox.diff(None, None)?;
            self.authorize_changes(Action::Diff, view, &diff)?;
            let paths: Vec<_> = sandbox.both_sides(&diff.changes)?.into_keys().collect();
            if !paths.is_empty() {
                found.push((view.resource.name.clone(), paths));
            }
        }
        Ok(found)
    }
}
