//! Finds everything that is left on disk, and which plan it belongs to. Changes nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{KeptLeftover, Leftover, LeftoverKind};
use crate::commit::shared_layers;
use crate::error::{Result, chain};
use crate::failpoints;
use crate::fs::Stamp;
use crate::fs::areas::{self, Area};
use crate::fs::caches;
use crate::fs::workspace::{is_absent, measured};
use crate::manager::Manager;
use crate::model::text::Location;
use crate::model::{JournaledWork, Phase, PlanId, PlanState, SandboxId, SandboxState};
use crate::store::{CommitArea, OperationOutcome, Plan, Resource, SandboxRecord};

/// Something that may go as a whole.
#[derive(Debug)]
pub(super) struct GarbageCandidate {
    pub(super) kind: LeftoverKind,
    pub(super) plan: Option<Plan>,
    pub(super) ended: Timestamp,
    /// Where it is, and the bytes that go with it.
    pub(super) parts: Vec<(Location, u64)>,
}

impl GarbageCandidate {
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn leftovers(&self) -> impl Iterator<Item = Leftover> + '_ {
        self.parts.iter().map(|(path, bytes)| Leftover {
            kind: self.kind,
            plan: self.plan.as_ref().map(|plan| plan.name.clone()),
            path: path.clone(),
            bytes: *bytes,
        })
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct GarbageScan {
    pub(super) candidates: Vec<GarbageCandidate>,
    pub(super) kept: Vec<KeptLeftover>,
    /// What stays because it has no record.
    pub(super) unrecorded: Vec<KeptLeftover>,
    /// Plans that are over and still have a record of something, and since when.
    pub(super) over: Vec<(Plan, Timestamp)>,
    /// Plans of which something stays until they are named.
    pub(super) held: HashSet<PlanId>,
}

/// An entry among areas.
struct ListedArea {
    path: PathBuf,
    own: bool,
    changed: Timestamp,
    area: Option<Area>,
}

/// What the store says.
pub(super) struct StoreRows {
    plans: Vec<Plan>,
    sandboxes: Vec<SandboxRecord>,
    commits: Vec<CommitArea>,
    ended: HashMap<PlanId, Timestamp>,
    /// Names of areas, and ids, whose record was removed.
    over: HashSet<String>,
    /// Areas that sandboxes live on which are not theirs; `None` where that is not known.
    depended_on: HashSet<Location>,
}

impl StoreRows {
    fn plan(&self, id: PlanId) -> Option<&Plan> {
        self.plans.iter().find(|plan| plan.id == id)
    }

    fn sandbox(&self, id: SandboxId) -> Option<&SandboxRecord> {
        self.sandboxes.iter().find(|sandbox| sandbox.id == id)
    }

    /// Where a record says that something is, by its id: wherever else it is seen, it is still the same,
    /// through another mount or in a home that was moved.
    pub(super) fn record(&self, area: Area) -> Option<&Location> {
        match area {
            Area::Sandbox(id) => {
                let sandbox = self.sandbox(id)?;
                let is_needed = self.depended_on.contains(&sandbox.area)
                    && !failpoints::bug("gc-takes-shared-layers");
                (sandbox.state != SandboxState::CleanedUp || is_needed).then_some(&sandbox.area)
            }
            Area::Commit(_) | Area::Part(..) => {
                let mut needed = self.commits.iter().filter(|one| one.phase != Phase::Undone);
                needed.find_map(|one| is_of(one, area))
            }
            Area::Aside(_) | Area::Scratch(_) | Area::Temporary => None,
        }
    }

    /// Whether the state itself says that something is over: its record was removed, or its plan is not open. What
    /// it knows nothing of is never taken for that.
    fn is_over(&self, one: &ListedArea, area: Area, plan: Option<&Plan>) -> bool {
        let name = one.path.file_name().unwrap_or_default();
        let removed = areas::plain_name(name.as_encoded_bytes());
        if removed.is_some_and(|name| self.over.contains(name)) {
            return true;
        }
        match (area, plan) {
            // The record of a commit goes before its area: while the plan is open, that was noted above.
            (Area::Commit(_) | Area::Part(..), Some(plan)) => {
                let mut undone = self.commits.iter();
                plan.state != PlanState::Open || undone.any(|one| is_of(one, area).is_some())
            }
            (Area::Sandbox(_), Some(_)) => true,
            (Area::Sandbox(id) | Area::Commit(id) | Area::Part(id, _), None) => {
                self.over.contains(&id.to_string())
            }
            (Area::Scratch(id), None) => self.over.contains(&id.to_string()),
            (Area::Scratch(_) | Area::Aside(_) | Area::Temporary, _) => false,
        }
    }

    fn ended(&self, plan: &Plan) -> Timestamp {
        // The newest: of a commit whose process died the log may know only the ones before it.
        let commits = self.commits.iter().filter(|one| one.plan_id == plan.id);
        let began = commits.map(|one| one.created_at).max();
        let ended = self.ended.get(&plan.id).copied();
        began.max(ended).unwrap_or(plan.created_at)
    }
}

impl Manager {
    /// Looks at everything and measures it, which walks every tree.
    pub(super) fn find_garbage(&self) -> Result<GarbageScan> {
        let mut found = GarbageScan::default();
        // Listed before the store is read: whatever is made meanwhile was recorded before.
        let listed = self.list_areas(true, &mut found)?;
        let locks = self.locks.entries()?;
        let rows = self.rows(true)?;
        let size = |path: &Path| measured(path).private;
        for plan in rows.plans.iter().rev() {
            self.look_at_plan(plan, &rows, &mut found, &size);
        }
        self.look_at_areas(&listed, &rows, &mut found, &size)?;
        for cache in self.stored_caches()? {
            let bytes = caches::measured(&cache.path);
            found.candidates.push(GarbageCandidate {
                kind: LeftoverKind::Cache,
                plan: None,
                ended: time(cache.used),
                parts: vec![(Location::from(cache.path), bytes)],
            });
        }
        for (agent, bytes) in self.agent_homes()? {
            found.candidates.push(GarbageCandidate {
                kind: LeftoverKind::AgentHome,
                plan: None,
                ended: time(agent.used),
                parts: vec![(Location::from(agent.path), bytes)],
            });
        }
        for entry in locks {
            let text = String::from_utf8_lossy(&entry.name).into_owned();
            let id = text.split('.').next().unwrap_or_default();
            let plan = id.parse().ok().map(|id| rows.plan(id));
            let over = |plan: &Plan| plan.state == PlanState::CleanedUp;
            if plan.is_some_and(|plan| plan.is_none_or(over)) {
                found.candidates.push(GarbageCandidate {
                    kind: LeftoverKind::Lock,
                    plan: None,
                    ended: time(entry.meta.ctime),
                    parts: vec![(Location::from(self.locks.path().join(text)), 0)],
                });
            }
        }
        Ok(found)
    }

    /// Looks only at where this home puts things as it is now, and measures nothing: that costs the same for many resources, and
    /// for many plans that are over, as for few.
    pub(super) fn find_loose(&self) -> Result<GarbageScan> {
        let mut found = GarbageScan::default();
        let listed = self.list_areas(false, &mut found)?;
        let rows = self.rows_of(&listed)?;
        self.look_at_areas(&listed, &rows, &mut found, &|_| 0)?;
        Ok(found)
    }

    fn look_at_areas(
        &self,
        listed: &[ListedArea],
        rows: &StoreRows,
        found: &mut GarbageScan,
        size: &dyn Fn(&Path) -> u64,
    ) -> Result<()> {
        for one in listed {
            let record = one.area.and_then(|area| rows.record(area));
            if record.is_none_or(|at| at.as_path() != one.path) {
                self.look_at_area(one, rows, found, size)?;
            }
        }
        Ok(())
    }

    /// A plan by its records: they know of workspaces and undo data also when these are out of reach.
    fn look_at_plan(
        &self,
        plan: &Plan,
        rows: &StoreRows,
        found: &mut GarbageScan,
        size: &dyn Fn(&Path) -> u64,
    ) {
        let (ended, is_open) = (rows.ended(plan), plan.state == PlanState::Open);
        let kept = |kind, path: &Location, why: &str| {
            let left = Leftover {
                kind,
                plan: Some(plan.name.clone()),
                path: path.clone(),
                bytes: size(path.as_path()),
            };
            (left, why.to_owned())
        };
        let candidate = |kind, parts| GarbageCandidate {
            kind,
            plan: Some(plan.clone()),
            ended,
            parts,
        };
        let rolled_back = |one: &&CommitArea| {
            let stands = one.phase == Phase::Committed && one.work == JournaledWork::Rollback;
            one.plan_id == plan.id && stands
        };
        // What a rollback set aside, or keeps beside what is worked in, is kept as a commit's old versions are.
        let discarded = rows.commits.iter().find(rolled_back);
        let mut has_sandboxes = false;
        for sandbox in &rows.sandboxes {
            if sandbox.reference.plan_id != plan.id || sandbox.state == SandboxState::CleanedUp {
                continue;
            }
            has_sandboxes = true;
            let kind = match discarded {
                Some(_) => LeftoverKind::Undo,
                None => LeftoverKind::Workspace,
            };
            let area = &sandbox.area;
            if is_open {
                let why = "its plan is open; `escrow cleanup` removes it with what was done in it";
                found.kept.push(kept(LeftoverKind::Open, area, why));
                continue;
            }
            let original = self.store.resource(sandbox.reference.resource_id);
            let original = original.ok().flatten();
            let away = |one: Resource| self.is_out_of_reach(area.as_path(), &one);
            if original.is_some_and(away) {
                found.kept.push(kept(kind, area, AWAY));
            } else {
                let part = (area.clone(), size(area.as_path()));
                found.candidates.push(candidate(kind, vec![part]));
            }
        }
        if is_open {
            let of = |one: &&SandboxRecord| one.reference.plan_id == plan.id;
            let area = rows
                .sandboxes
                .iter()
                .rev()
                .find(of)
                .map(|one| one.area.clone());
            if let (Some(discarded), Some(area)) = (discarded, area) {
                found.candidates.push(GarbageCandidate {
                    kind: LeftoverKind::Undo,
                    plan: Some(plan.clone()),
                    ended: discarded.created_at,
                    parts: vec![(area, 0)],
                });
            }
            return;
        }
        let commits = rows.commits.iter().filter(|one| one.plan_id == plan.id);
        let (mut undo, mut parts) = (false, Vec::new());
        // A rollback keeps nothing but the sandboxes.
        let kept_one = |one: &&CommitArea| {
            one.phase != Phase::Undone && (one.work == JournaledWork::Commit || has_sandboxes)
        };
        for commit in commits.filter(kept_one) {
            let area = commit.area.as_ref().map(|(_, area)| area);
            let away = area.filter(|area| {
                !area.as_path().starts_with(self.home()) && is_absent(area.as_path())
            });
            if commit.phase.is_unfinished() {
                let why = "its commit is half way; `escrow recover` finishes it or rolls it back";
                let half = area.map(|area| kept(LeftoverKind::Undo, area, why));
                found.kept.extend(half);
            } else if let Some(area) = away {
                found.kept.push(kept(LeftoverKind::Undo, area, AWAY));
                (undo, parts) = (false, Vec::new());
                break;
            } else {
                undo = true;
                parts.extend(area.map(|area| (area.clone(), size(area.as_path()))));
            }
        }
        if undo {
            found.candidates.push(candidate(LeftoverKind::Undo, parts));
        }
        if plan.state != PlanState::CleanedUp {
            found.over.push((plan.clone(), ended));
        }
    }

    /// What no record of a plan accounts for.
    fn look_at_area(
        &self,
        one: &ListedArea,
        rows: &StoreRows,
        found: &mut GarbageScan,
        size: &dyn Fn(&Path) -> u64,
    ) -> Result<()> {
        let owner = |id| rows.sandbox(id).map(|one| one.reference.plan_id);
        let plan = match one.area {
            Some(Area::Sandbox(id) | Area::Commit(id) | Area::Part(id, _) | Area::Aside(id)) => {
                owner(id)
            }
            Some(Area::Scratch(id)) => Some(id),
            Some(Area::Temporary) | None => None,
        };
        let plan = plan.and_then(|id| rows.plan(id));
        let path = Location::from(one.path.as_path());
        let left = |kind, why: &str| {
            let left = Leftover {
                kind,
                plan: plan.map(|plan| plan.name.clone()),
                path: path.clone(),
                bytes: size(&one.path),
            };
            (left, why.to_owned())
        };
        let kind = match (one.area, plan) {
            (Some(area), _) if rows.record(area).is_some() => {
                let why = "its record says that it lies elsewhere";
                found.kept.push(left(LeftoverKind::Unknown, why));
                return Ok(());
            }
            (Some(Area::Aside(_)), plan) => {
                found.kept.push(left(LeftoverKind::Aside, ASIDE));
                found.held.extend(plan.map(|plan| plan.id));
                return Ok(());
            }
            (Some(Area::Scratch(_)), Some(plan)) if plan.state == PlanState::Open => {
                let why = "its plan is open";
                found.kept.push(left(LeftoverKind::Open, why));
                return Ok(());
            }
            (Some(Area::Scratch(_)), Some(_)) => LeftoverKind::Scratch,
            (Some(Area::Temporary), _) => {
                if areas::is_held(&one.path)? {
                    return Ok(());
                }
                LeftoverKind::Orphan
            }
            (Some(area), plan) if rows.is_over(one, area, plan) => LeftoverKind::Orphan,
            (Some(_), None) if one.own && failpoints::bug("gc-takes-unknown") => {
                LeftoverKind::Orphan
            }
            (area, plan) => {
                let why = match (area, plan) {
                    (Some(_), None) if !one.own => "another home may know it",
                    (Some(_), _) => UNRECORDED,
                    (None, _) => "its name is not one of Escrow's",
                };
                found.unrecorded.push(left(LeftoverKind::Unknown, why));
                return Ok(());
            }
        };
        let ended = plan.map_or_else(|| one.changed, |plan| rows.ended(plan));
        found.candidates.push(GarbageCandidate {
            kind,
            plan: plan.cloned(),
            ended,
            parts: vec![(path.clone(), size(&one.path))],
        });
        Ok(())
    }

    /// Everything among the engine's own areas, and what is ours beside and in originals.
    fn list_areas(&self, everywhere: bool, found: &mut GarbageScan) -> Result<Vec<ListedArea>> {
        let (mut places, mut known) = (BTreeSet::new(), HashSet::new());
        let sandboxes = match everywhere {
            true => self.store.sandboxes(None)?,
            false => self.store.live_sandboxes()?,
        };
        for sandbox in sandboxes {
            known.extend(sandbox.area.as_path().parent().map(Path::to_owned));
        }
        for resource in self.store.resources_ever()? {
            let at = resource.path();
            places.extend(at.and_then(Path::parent).map(Path::to_owned));
            places.extend(at.map(Path::to_owned));
        }
        // On the mount of our own areas everything is put among them. What an earlier home put
        // elsewhere is found by who looks everywhere.
        places.retain(|place| everywhere || !self.areas.shares_mount(place));
        places.extend(known.iter().cloned());
        places.insert(self.areas.path().to_owned());
        let mut listed = Vec::new();
        for place in places {
            let own = place == self.areas.path();
            match areas::list(&place, !own) {
                Ok(entries) => listed.extend(entries.into_iter().map(|entry| ListedArea {
                    path: place.join(name(&entry.name)),
                    own,
                    changed: time(entry.meta.ctime),
                    area: entry.area,
                })),
                Err(error) if own => return Err(error.into()),
                // Nothing of ours is known to be there.
                Err(error) if error.is_absent() || !known.contains(&place) => {}
                Err(error) => {
                    let left = Leftover {
                        kind: LeftoverKind::Unknown,
                        plan: None,
                        path: Location::from(place.as_path()),
                        bytes: 0,
                    };
                    found.kept.push((left, chain(&error)));
                }
            }
        }
        Ok(listed)
    }

    /// What the store says of these areas.
    fn rows_of(&self, listed: &[ListedArea]) -> Result<StoreRows> {
        let (mut names, mut sandboxes, mut plans) = (Vec::new(), Vec::new(), Vec::new());
        for one in listed {
            let name = one.path.file_name().unwrap_or_default();
            names.extend(areas::plain_name(name.as_encoded_bytes()).map(str::to_owned));
            match one.area {
                Some(
                    Area::Sandbox(id) | Area::Commit(id) | Area::Part(id, _) | Area::Aside(id),
                ) => {
                    names.push(id.to_string());
                    sandboxes.push(id);
                }
                Some(Area::Scratch(id)) => {
                    names.push(id.to_string());
                    plans.push(id);
                }
                Some(Area::Temporary) | None => {}
            }
        }
        let commits = self.store.commit_areas_among(&sandboxes)?;
        let sandboxes = self.store.sandboxes_among(&sandboxes)?;
        plans.extend(sandboxes.iter().map(|one| one.reference.plan_id));
        // Of one that is still there it makes no difference.
        let gone = |one: &SandboxRecord| one.state == SandboxState::CleanedUp;
        let depended_on = match sandboxes.iter().any(gone) {
            true => shared_layers::all(&self.store.live_sandboxes()?, None),
            false => HashSet::new(),
        };
        Ok(StoreRows {
            plans: self.store.plans_among(&plans)?,
            over: self.store.over_among(&names)?,
            commits,
            sandboxes,
            ended: HashMap::new(),
            depended_on,
        })
    }

    pub(super) fn rows(&self, with_times: bool) -> Result<StoreRows> {
        let mut ended = HashMap::new();
        let log = match with_times {
            true => self.log(None)?,
            false => Vec::new(),
        };
        for one in log {
            let ends = matches!(&*one.operation.action, "commit" | "undo" | "recover");
            let plan = one.operation.plan_id.filter(|_| ends);
            if let (Some(plan), Some(at)) = (plan, one.finished_at)
                && one.outcome == OperationOutcome::Done.as_str()
            {
                ended.insert(plan, at);
            }
        }
        let sandboxes = self.store.sandboxes(None)?;
        let depended_on = shared_layers::all(&sandboxes, None);
        Ok(StoreRows {
            plans: self.store.plans()?,
            over: self.store.over()?,
            commits: self.store.commit_areas()?,
            sandboxes,
            ended,
            depended_on,
        })
    }
}

/// Where a commit keeps what it needs, if this is that area by its name.
fn is_of(commit: &CommitArea, area: Area) -> Option<&Location> {
    let (Area::Commit(id) | Area::Part(id, _)) = area else {
        return None;
    };
    let (_, at) = commit.area.as_ref().filter(|(of, _)| *of == id)?;
    (area_at(at.as_path()) == Some(area)).then_some(at)
}

/// What something is by its name, among the engine's own areas or beside an original.
pub(super) fn area_at(path: &Path) -> Option<Area> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    Area::named(name, false).or_else(|| Area::named(name, true))
}

const UNRECORDED: &str = "it has no record; `escrow gc --orphans` lists it, and only you can decide whether to delete it";
const AWAY: &str = "it cannot be reached; is its file system not mounted?";
const ASIDE: &str = "another program's work, set aside when a commit was rolled back; `escrow cleanup` of its plan deletes it";

pub(super) fn time(stamp: Stamp) -> Timestamp {
    Timestamp::new(stamp.sec, stamp.nsec.cast_signed()).unwrap_or_default()
}

fn name(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
