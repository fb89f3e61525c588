//! Two plans compared, such as a plan and its fork: what one has that the other has not.
//!
//! Both differ from the same originals, so only what either changed is looked at; what both changed in the same way is no
//! difference. What is no file and no row, such as a history of git, is named and not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::Value;

use super::content::{PlanDiff, ResourceDiff};
use super::{Manager, SandboxView};
use crate::diff::VersionContents;
use crate::error::{Error, Result};
use crate::model::digest::VersionDigest;
use crate::model::{
    Change, ChangeKind, ChangedField, Detail, DiffView, EntryKind, ResourcePath, RowDetail,
};
use crate::store::{Plan, Resource};
use crate::strategy::{BothSides, Session};

/// What two plans differ in.
#[must_use]
#[derive(Debug)]
pub struct PlanComparison {
    /// The differences, from the other plan to the first; of each resource that both have.
    found: PlanDiff,
    /// Resources that were not compared, or not as a whole, and why.
    pub left_out: Vec<(String, String)>,
    ours: PlanDiff,
    theirs: PlanDiff,
}

type Digests = BTreeMap<ResourcePath, VersionDigest>;

impl PlanComparison {
    /// The differences, which are left empty here.
    pub fn take(&mut self) -> PlanDiff {
        let plan = self.found.plan().clone();
        std::mem::replace(&mut self.found, PlanDiff::new(Vec::new(), &plan))
    }
}

impl Manager {
    /// Compares a plan with another one: what would change if the other became the first.
    pub fn against(
        &self,
        plan: &Plan,
        other: &Plan,
        only: Option<&Resource>,
    ) -> Result<PlanComparison> {
        let (ours, theirs) = (self.diff(plan, only)?, self.diff(other, only)?);
        let (mut found, mut left_out) = (Vec::new(), Vec::new());
        for one in &ours.resources {
            let name = &one.view.resource.name;
            let Some(two) = counterpart(&theirs, &one.view) else {
                left_out.push((name.clone(), format!("the plan {} has none", other.name)));
                continue;
            };
            let (diff, opaque) = self.differences(&ours, one, &theirs, two)?;
            if opaque > 0 {
                let why = "its history and definitions are not compared, only files and rows";
                left_out.push((name.clone(), why.to_owned()));
            }
            let view = one.view.clone();
            found.push(ResourceDiff {
                view,
                diff,
                ignored: DiffView::default(),
                both_sides: BothSides::new(),
            });
        }
        for two in &theirs.resources {
            if counterpart(&ours, &two.view).is_none() {
                let name = two.view.resource.name.clone();
                left_out.push((name, format!("the plan {} has none", plan.name)));
            }
        }
        Ok(PlanComparison {
            found: PlanDiff::new(found, plan),
            left_out,
            ours,
            theirs,
        })
    }

    /// Where the bytes of both plans come from, of one resource: the version of the other one counts as the original.
    pub fn contents_against<'a>(
        &'a self,
        compared: &'a PlanComparison,
        view: &'a SandboxView,
    ) -> Result<Box<dyn VersionContents + 'a>> {
        let sides = [&compared.ours, &compared.theirs];
        let [one, two] = sides.map(|side| counterpart(side, view));
        let Some((one, two)) = one.zip(two) else {
            return Ok(Box::new(self.contents(&compared.ours, view)?));
        };
        Ok(Box::new(BothPlans {
            ours: self.contents(&compared.ours, &one.view)?,
            theirs: self.contents(&compared.theirs, &two.view)?,
            ours_changed: paths(&one.diff),
            theirs_changed: paths(&two.diff),
        }))
    }

    fn differences(
        &self,
        ours: &PlanDiff,
        one: &ResourceDiff,
        theirs: &PlanDiff,
        two: &ResourceDiff,
    ) -> Result<(DiffView, usize)> {
        let is_opaque = |change: &&Change| matches!(change.detail, Detail::Opaque { .. });
        let of = |diff: &DiffView| -> BTreeMap<ResourcePath, Change> {
            let changes = diff.changes.iter().filter(|change| !is_opaque(change));
            changes
                .map(|change| (change.path.clone(), change.clone()))
                .collect()
        };
        let opaque = |diff: &DiffView| diff.changes.iter().filter(is_opaque).count();
        let (mine, mut others) = (of(&one.diff), of(&two.diff));
        let (a, b) = (self.versions(one)?, self.versions(two)?);
        let contents = (
            self.contents(ours, &one.view)?,
            self.contents(theirs, &two.view)?,
        );
        let mut changes = Vec::new();
        for (path, change) in mine {
            let Some(other) = others.remove(&path) else {
                changes.push(change);
                continue;
            };
            let same = a.contains_key(&path) && a.get(&path) == b.get(&path);
            let gone = [&change, &other]
                .iter()
                .all(|one| one.kind == ChangeKind::Deleted);
            if !same && !gone {
                changes.extend(between(change, other, &contents.0, &contents.1)?);
            }
        }
        changes.extend(others.into_values().map(reversed));
        Ok((
            DiffView::new(changes),
            opaque(&one.diff) + opaque(&two.diff),
        ))
    }

    fn versions(&self, of: &ResourceDiff) -> Result<Digests> {
        let sandbox = self.open_sandbox(&of.view, Session::Shared)?;
        Ok(sandbox.digests(&of.diff.changes)?.into_iter().collect())
    }
}

fn counterpart<'a>(side: &'a PlanDiff, view: &SandboxView) -> Option<&'a ResourceDiff> {
    let is_same = |one: &&ResourceDiff| one.view.resource.id == view.resource.id;
    side.resources.iter().find(is_same)
}

fn paths(diff: &DiffView) -> BTreeSet<ResourcePath> {
    diff.changes
        .iter()
        .map(|change| change.path.clone())
        .collect()
}

/// What only the other plan changed, seen from the first.
fn reversed(change: Change) -> Change {
    let Change { path, kind, detail } = change;
    let row = matches!(detail, Detail::Row(_));
    let kind = match kind {
        ChangeKind::Added | ChangeKind::Inserted => ChangeKind::Deleted,
        ChangeKind::Deleted if row => ChangeKind::Inserted,
        ChangeKind::Deleted => ChangeKind::Added,
        same => same,
    };
    let detail = match detail {
        Detail::File(mut file) => {
            std::mem::swap(&mut file.old, &mut file.new);
            Detail::File(file)
        }
        Detail::Row(mut row) => {
            std::mem::swap(&mut row.before, &mut row.after);
            Detail::Row(row)
        }
        opaque => opaque,
    };
    Change { path, kind, detail }
}

/// What both plans changed, in different ways.
fn between(
    mine: Change,
    other: Change,
    ours: &dyn VersionContents,
    theirs: &dyn VersionContents,
) -> Result<Option<Change>> {
    let path = mine.path.clone();
    if let (Detail::Row(mine), Detail::Row(other)) = (&mine.detail, &other.detail) {
        return Ok(rows(path, mine, other));
    }
    Ok(match (other.new.clone(), mine.new.clone()) {
        (None, None) => None,
        (None, Some(new)) => Some(Change::added(path, new)),
        (Some(old), None) => Some(Change::deleted(path, old)),
        (Some(old), Some(new)) => {
            let mut fields = Vec::new();
            if old.target != new.target {
                fields.push(ChangedField::Target);
            }
            if old.mode != new.mode {
                fields.push(ChangedField::Mode);
            }
            let files = old.kind == EntryKind::File && new.kind == EntryKind::File;
            if files
                && (old.size != new.size || differ(theirs.sandbox(&path)?, ours.sandbox(&path)?)?)
            {
                fields.push(ChangedField::Content);
            }
            // Their digests differ.
            if fields.is_empty() {
                fields.extend([ChangedField::Owner, ChangedField::Xattrs]);
            }
            Change::between(path, old, new, fields)
        }
    })
}

/// A row that both changed; each says the values of those columns that it changed.
fn rows(path: ResourcePath, mine: &RowDetail, other: &RowDetail) -> Option<Change> {
    let values =
        |row: &RowDetail, beside: &RowDetail| match (row.after.value(), beside.before.value()) {
            (Value::Object(mut all), Value::Object(more)) => {
                for (column, value) in more {
                    all.entry(column).or_insert(value);
                }
                Value::Object(all)
            }
            (after, _) => after,
        };
    let (mut before, mut after) = (values(other, mine), values(mine, other));
    let kind = match (&mut before, &mut after) {
        (Value::Object(before), Value::Object(after)) => {
            after.retain(|column, value| {
                before.get(column) != Some(value) || before.remove(column).is_none()
            });
            before.retain(|column, _| after.contains_key(column));
            if after.is_empty() {
                return None;
            }
            ChangeKind::Updated
        }
        (Value::Object(_), _) => ChangeKind::Deleted,
        _ => ChangeKind::Inserted,
    };
    let detail = Detail::Row(Box::new(RowDetail {
        before: before.into(),
        after: after.into(),
        ..mine.clone()
    }));
    Some(Change { path, kind, detail })
}

/// Whether two files have different bytes.
fn differ(mut one: Box<dyn Read + Send>, mut two: Box<dyn Read + Send>) -> Result<bool> {
    const STEP: u64 = 64 * 1024;
    loop {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let read = [(&mut one, &mut a), (&mut two, &mut b)];
        for (from, to) in read {
            let read = from.by_ref().take(STEP).read_to_end(to);
            read.map_err(Error::Output)?;
        }
        if a != b {
            return Ok(true);
        }
        if a.is_empty() {
            return Ok(false);
        }
    }
}

/// The bytes of two sandboxes of one resource.
struct BothPlans<A, B> {
    ours: A,
    theirs: B,
    ours_changed: BTreeSet<ResourcePath>,
    theirs_changed: BTreeSet<ResourcePath>,
}

impl<A: VersionContents, B: VersionContents> VersionContents for BothPlans<A, B> {
    fn original(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        match self.theirs_changed.contains(path) {
            true => self.theirs.sandbox(path),
            false => self.theirs.original(path),
        }
    }

    fn sandbox(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        match self.ours_changed.contains(path) {
            true => self.ours.sandbox(path),
            false => self.ours.original(path),
        }
    }
}
