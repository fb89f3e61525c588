//! Plans by name, id or prefix, or the newest one of a directory.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::resources::check_name;
use super::{Manager, SandboxView};
use crate::error::{Error, Result};
use crate::fs::state_dir;
use crate::model::text::{Location, escape};
use crate::model::{Action, PlanId, PlanState, SandboxState};
use crate::store::Plan;

/// A plan with its sandboxes.
#[derive(Debug)]
pub struct PlanView {
    /// The plan.
    pub plan: Plan,
    /// Its sandboxes, oldest first; those that were cleaned up only where the plan was.
    pub sandboxes: Vec<SandboxView>,
}

impl Manager {
    /// Every plan, newest first, each with its sandboxes.
    pub fn plans(&self) -> Result<Vec<PlanView>> {
        self.views(self.store.plans()?)
    }

    /// These plans with their sandboxes; the store is asked as often for a hundred as for one.
    pub(super) fn views(&self, plans: Vec<Plan>) -> Result<Vec<PlanView>> {
        let ids: Vec<PlanId> = plans.iter().map(|plan| plan.id).collect();
        let mut sandboxes: HashMap<PlanId, Vec<SandboxView>> = HashMap::new();
        for (sandbox, resource) in self.store.members_of(&ids)? {
            let of = sandboxes.entry(sandbox.reference.plan_id).or_default();
            of.push(SandboxView { sandbox, resource });
        }
        let view = |plan: Plan| {
            let mut sandboxes = sandboxes.remove(&plan.id).unwrap_or_default();
            match plan.state {
                PlanState::Open => {
                    sandboxes.retain(|view| view.sandbox.state != SandboxState::CleanedUp);
                }
                // A plan that was opened again had several of one resource.
                _ => {
                    let mut known = HashSet::new();
                    sandboxes.reverse();
                    sandboxes.retain(|view| known.insert(view.resource.id));
                    sandboxes.reverse();
                }
            }
            PlanView { plan, sandboxes }
        };
        Ok(plans.into_iter().map(view).collect())
    }

    /// The names that a new plan cannot have: those of plans that are open, just being made, or can be undone.
    pub(super) fn taken_names(&self) -> Result<Vec<String>> {
        let standing = self.store.standing()?;
        let mut plans = self.store.plans_in(&[
            PlanState::Creating,
            PlanState::Open,
            PlanState::Committed,
            PlanState::RolledBack,
        ])?;
        plans.retain(|plan| {
            let is_open = matches!(plan.state, PlanState::Creating | PlanState::Open);
            is_open || standing.contains(&plan.id)
        });
        Ok(plans.into_iter().map(|plan| plan.name).collect())
    }

    /// The plans that are not over, newest first.
    pub(super) fn open_plans(&self) -> Result<Vec<Plan>> {
        Ok(self.store.plans_in(&[PlanState::Open])?)
    }

    /// A plan with its sandboxes.
    pub fn view(&self, plan: Plan) -> Result<PlanView> {
        let sandboxes = match plan.state {
            PlanState::Open => self.live_sandboxes(&plan)?,
            _ => self.all_sandboxes(&plan)?,
        };
        Ok(PlanView { plan, sandboxes })
    }

    /// The plan that `typed` means: its name, its id, or an unambiguous beginning of one. Open
    /// plans come first; without `typed` it is the open plan of `directory`, and several are an error.
    pub fn resolve_plan(&self, typed: Option<&str>, directory: &Path) -> Result<Plan> {
        match typed {
            Some(typed) => self.plan_named(typed),
            None => self.open_plan_of(directory),
        }
    }

    /// The same for a plan whose commit or rollback is to be undone: one that has such comes first. The beginning of a name
    /// means none: it may be the whole name of a plan that is gone.
    pub fn resolve_committed(&self, typed: Option<&str>, directory: &Path) -> Result<Plan> {
        match typed {
            Some(typed) => {
                let exact = |plan: &Plan| plan.name == typed || plan.id.to_string() == typed;
                if let Some(plan) = self.committed_plans()?.into_iter().find(exact) {
                    return Ok(plan);
                }
                let plan = self.plan_named(typed)?;
                match plan.name != typed && plan.name.starts_with(typed) {
                    true => Err(Error::UnknownPlan {
                        name: escape(typed.as_bytes()),
                    }),
                    false => Ok(plan),
                }
            }
            None => self.committed_of(directory),
        }
    }

    /// The plan of `directory` that was committed or rolled back last.
    fn committed_of(&self, directory: &Path) -> Result<Plan> {
        let near = self.plans_near(directory, self.committed_plans()?)?;
        let first = near.into_iter().next().map(|(_, plan)| plan);
        first.ok_or_else(|| Error::NoCommitHere {
            directory: shown(directory),
        })
    }

    /// The plans that were committed, in part or as a whole, or rolled back; the last of these comes first. Those of which
    /// nothing can be undone any more come after all others.
    fn committed_plans(&self) -> Result<Vec<Plan>> {
        let standing = self.store.standing()?;
        let age = |plan: &Plan| standing.iter().rposition(|id| *id == plan.id);
        let mut plans = self.store.plans_among(&standing)?;
        plans.retain(|plan| plan.state != PlanState::Committed && !plan.state.is_half());
        plans.extend(self.store.plans_in(&[PlanState::Committed])?);
        plans.sort_by_key(|plan| std::cmp::Reverse(age(plan)));
        Ok(plans)
    }

    /// Gives an open plan another name.
    pub fn rename_plan(&self, plan: &Plan, name: &str) -> Result<()> {
        self.permit_plan(Action::Create, plan)?;
        check_name(name)?;
        let _lock = self.begin_call(plan, false)?;
        let target = format!("{} -> {name}", plan.name);
        self.record("rename", Some(plan.id), &target, || {
            match self.store.rename_plan(plan.id, name)? {
                true => Ok(()),
                false => Err(Error::PlanExists {
                    name: name.to_owned(),
                }),
            }
        })
    }

    /// The open plans that `directory` belongs to.
    pub fn open_plans_near(&self, directory: &Path) -> Result<Vec<PlanId>> {
        let near = self.plans_near(directory, self.open_plans()?)?;
        Ok(near.into_iter().map(|(_, plan)| plan.id).collect())
    }

    /// The plans that are over, and whose commit or rollback can be undone; the last of these comes first.
    pub fn undoable_plans(&self) -> Result<Vec<Plan>> {
        let standing = self.store.standing()?;
        let mut plans = self.committed_plans()?;
        plans.retain(|plan| plan.state != PlanState::Open && standing.contains(&plan.id));
        Ok(plans)
    }

    /// Those of them that `directory` belongs to.
    pub fn undoable_plans_near(&self, directory: &Path) -> Result<Vec<Plan>> {
        let near = self.plans_near(directory, self.undoable_plans()?)?;
        Ok(near.into_iter().map(|(_, plan)| plan).collect())
    }

    fn plan_named(&self, typed: &str) -> Result<Plan> {
        let unknown = || Error::UnknownPlan {
            name: escape(typed.as_bytes()),
        };
        if typed.is_empty() {
            return Err(unknown());
        }
        let open = |plan: &&Plan| plan.state == PlanState::Open;
        let exact = self.store.plans_called(typed)?;
        if let Some(plan) = exact.iter().find(open).or(exact.first()) {
            return Ok(plan.clone());
        }
        let plans = self.store.plans()?;
        // Of an id, the part behind the common prefix may be typed alone.
        let begins = |plan: &&Plan| {
            let id = plan.id.to_string();
            let bare = &id[PlanId::PREFIX.len()..];
            [plan.name.as_str(), &id, bare]
                .iter()
                .any(|text| text.starts_with(typed))
        };
        let mut matches: Vec<&Plan> = plans.iter().filter(begins).filter(open).collect();
        if matches.is_empty() {
            matches = plans.iter().filter(begins).collect();
        }
        match matches.as_slice() {
            [] => Err(unknown()),
            [plan] => Ok((*plan).clone()),
            several => Err(Error::AmbiguousPlan {
                name: escape(typed.as_bytes()),
                matches: several
                    .iter()
                    .map(|plan| format!("{} ({})", plan.name, plan.id))
                    .collect(),
            }),
        }
    }

    /// The open plan of `directory`.
    fn open_plan_of(&self, directory: &Path) -> Result<Plan> {
        let nearest = self.nearest_open_plans(directory)?;
        only(directory, nearest)?.ok_or_else(|| Error::NoPlanHere {
            directory: shown(directory),
        })
    }

    /// The open plans that are nearest to `directory`, newest first.
    pub(super) fn nearest_open_plans(&self, directory: &Path) -> Result<Vec<Plan>> {
        let mut near = self.plans_near(directory, self.open_plans()?)?;
        let nearest = near.iter().map(|(near, _)| *near).max();
        near.retain(|(near, _)| Some(*near) == nearest);
        Ok(near.into_iter().map(|(_, plan)| plan).collect())
    }

    /// Those of `plans`, in their order, that were made right in `directory`, or have a sandbox of a resource that
    /// `directory` lies in; with the length of the path they have in common.
    fn plans_near(&self, directory: &Path, plans: Vec<Plan>) -> Result<Vec<(usize, Plan)>> {
        let directory = state_dir::canonical(directory)?;
        let mut found = Vec::new();
        for view in self.views(plans)? {
            let (plan, views) = (view.plan, view.sandboxes);
            let mut places = vec![plan.directory.clone()];
            places.retain(|place| place.as_path() == directory);
            // Who works in a sandbox stands in its area.
            let both = |view: SandboxView| [view.resource.at, view.sandbox.area];
            places.extend(views.into_iter().flat_map(both));
            let near = places
                .iter()
                .filter(|place| directory.starts_with(place.as_path()))
                .map(|place| place.as_bytes().len())
                .max();
            found.extend(near.map(|near| (near, plan)));
        }
        Ok(found)
    }
}

/// The only one of these plans, which are all that are open in `directory`; several are an error.
pub(super) fn only(directory: &Path, mut plans: Vec<Plan>) -> Result<Option<Plan>> {
    match plans.len() {
        0 | 1 => Ok(plans.pop()),
        _ => Err(Error::SeveralPlans {
            directory: shown(directory),
            plans,
        }),
    }
}

/// The path of a directory as messages show it.
fn shown(directory: &Path) -> Location {
    let known = state_dir::canonical(directory);
    Location::from(known.unwrap_or_else(|_| directory.to_owned()))
}
