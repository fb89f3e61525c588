//! Creation and removal of plans and sandboxes, each in one transaction: a plan is whole in the store, or
//! marked as half created or half removed.

use std::cell::Cell;

use rusqlite::{Connection, ErrorCode, params};

use super::configs::{self, PlanConfig};
use super::identity;
use super::rows::{Plan, SandboxRecord};
use super::sqlite::{Result, Store, forget_resource};
use crate::model::{JournaledWork, PlanId, PlanState, ResourceId, SandboxId, SandboxState};

/// What became of the attempt to record sandboxes that are about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BeginOutcome {
    /// All of them are recorded.
    Recorded,
    /// Nothing is recorded: the name of the plan is taken.
    NameTaken,
    /// Nothing is recorded: the plan has a sandbox of this resource.
    Exists,
    /// Nothing is recorded: this resource was forgotten, and added again under another id.
    Forgotten(ResourceId),
}

impl Store {
    /// Records sandboxes that are about to be made, and their plan with the configuration it is bound to where it is
    /// new: all, or nothing.
    pub(crate) fn begin_sandboxes(
        &self,
        plan: Option<(&Plan, Option<&PlanConfig>)>,
        sandboxes: &[SandboxRecord],
    ) -> Result<BeginOutcome> {
        let begun = Cell::new(BeginOutcome::Recorded);
        let record = |connection: &Connection| {
            connection.execute_batch("SAVEPOINT begin")?;
            begun.set(self.insert_new(connection, plan, sandboxes)?);
            if begun.get() != BeginOutcome::Recorded {
                connection.execute_batch("ROLLBACK TO begin")?;
            }
            connection.execute_batch("RELEASE begin")?;
            Ok(begun.get() == BeginOutcome::Recorded && !sandboxes.is_empty())
        };
        self.record_areas(record, |connection| {
            for sandbox in sandboxes {
                connection.execute("DELETE FROM sandbox WHERE id = ?1", [sandbox.id])?;
            }
            plan.map_or(Ok(0), |(plan, _)| {
                connection.execute("DELETE FROM plan WHERE id = ?1", [plan.id])
            })
        })?;
        Ok(begun.get())
    }

    fn insert_new(
        &self,
        connection: &Connection,
        plan: Option<(&Plan, Option<&PlanConfig>)>,
        sandboxes: &[SandboxRecord],
    ) -> rusqlite::Result<BeginOutcome> {
        if let Some((plan, config)) = plan {
            let taken = is_kept_name(connection, plan.id, &plan.name)?;
            if taken || is_taken(add_plan(connection, plan))? {
                return Ok(BeginOutcome::NameTaken);
            }
            if let Some(config) = config {
                configs::bind(connection, plan.id, config)?;
            }
        }
        for sandbox in sandboxes {
            // A cleanup by another process may have forgotten the resource meanwhile.
            let id = sandbox.reference.resource_id;
            let query = "UPDATE OR IGNORE resource SET removed = 0 WHERE id = ?1";
            if connection.execute(query, [id])? == 0 {
                return Ok(BeginOutcome::Forgotten(id));
            }
            if is_taken(self.insert_sandbox(connection, sandbox))? {
                return Ok(BeginOutcome::Exists);
            }
        }
        Ok(BeginOutcome::Recorded)
    }

    /// Makes a plan usable with all its sandboxes.
    pub(crate) fn finish_creation(&self, plan: PlanId, sandboxes: &[SandboxRecord]) -> Result<()> {
        self.transact(|connection| {
            for sandbox in sandboxes {
                self.insert_sandbox(connection, sandbox)?;
            }
            set_plan(connection, plan, PlanState::Open)
        })
    }

    /// Marks a plan and all its sandboxes as being removed. A rollback that was not finished needs no end any more.
    pub(crate) fn begin_removal(&self, plan: PlanId) -> Result<()> {
        self.transact(|connection| {
            let query = "DELETE FROM journal WHERE plan_id = ?1 AND kind = ?2";
            connection.execute(query, params![plan, JournaledWork::Rollback])?;
            let (errored, gone) = (SandboxState::Errored, SandboxState::CleanedUp);
            let query = "UPDATE sandbox SET state = ?2 WHERE plan_id = ?1 AND state <> ?3";
            connection.execute(query, params![plan, errored, gone])?;
            set_plan(connection, plan, PlanState::Removing)
        })
    }

    /// Notes that nothing of a plan is left: its sandboxes are cleaned up, its checkpoints forgotten, and so are
    /// resources that have no name of their own and no other sandbox.
    pub(crate) fn end_removal(&self, plan: PlanId) -> Result<()> {
        self.transact(|connection| {
            end_sandboxes_of(connection, plan)?;
            connection.execute("DELETE FROM checkpoint WHERE plan_id = ?1", [plan])?;
            set_plan(connection, plan, PlanState::CleanedUp)
        })
    }

    /// Removes every trace of a plan that came to nothing.
    pub(crate) fn forget_plan(&self, plan: PlanId) -> Result<()> {
        self.transact(|connection| {
            end_sandboxes_of(connection, plan)?;
            identity::end_sandboxes(connection, plan)?;
            identity::end(connection, &plan.to_string())?;
            connection.execute("DELETE FROM sandbox WHERE plan_id = ?1", [plan])?;
            connection
                .execute("DELETE FROM plan WHERE id = ?1", [plan])
                .map(drop)
        })
    }

    /// The plans that are half made or half removed, or are just being made or removed.
    pub(crate) fn half_plans(&self) -> Result<Vec<PlanId>> {
        let query = "SELECT id FROM plan WHERE state IN ('creating', 'removing') ORDER BY seq";
        self.all(query, &[], |row| row.get(0))
    }

    /// Notes where a plan stands.
    pub(crate) fn set_plan_state(&self, id: PlanId, state: PlanState) -> Result<()> {
        self.run(|connection| set_plan(connection, id, state))
    }

    /// Gives a plan another name; `false` where another one has it.
    pub(crate) fn rename_plan(&self, id: PlanId, name: &str) -> Result<bool> {
        let query = "UPDATE plan SET name = ?2 WHERE id = ?1";
        let taken = self.run(|connection| {
            if is_kept_name(connection, id, name)? {
                return Ok(true);
            }
            let renamed = connection.execute(query, params![id, name]);
            is_taken(renamed.map(drop))
        })?;
        Ok(!taken)
    }

    /// Notes where sandboxes stand, at once.
    pub(crate) fn set_sandbox_states(&self, states: &[(SandboxId, SandboxState)]) -> Result<()> {
        match states.is_empty() {
            true => Ok(()),
            false => self.transact(|connection| set_states(connection, states)),
        }
    }

    /// Forgets those of these resources that have no name of their own and no sandbox.
    pub(crate) fn forget_unused(&self, resources: &[ResourceId]) -> Result<()> {
        self.transact(|connection| {
            for id in resources {
                forget_resource(connection, *id, true)?;
            }
            Ok(())
        })
    }
}

/// Whether a record was refused because there is one already.
pub(super) fn is_taken(done: rusqlite::Result<()>) -> rusqlite::Result<bool> {
    match done {
        Ok(()) => Ok(false),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether another plan, whose commit or rollback can be undone, has a name. Those of open plans are unique by an index.
fn is_kept_name(connection: &Connection, plan: PlanId, name: &str) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM journal JOIN plan ON plan.id = plan_id
                 WHERE phase IN ('committed', 'taken_back') AND name = ?1 AND plan.id <> ?2)";
    connection.query_row(query, params![name, plan], |row| row.get(0))
}

fn add_plan(connection: &Connection, plan: &Plan) -> rusqlite::Result<()> {
    let Plan {
        id,
        name,
        state,
        directory,
        created_at,
        implicit,
    } = plan;
    let at = created_at.to_string();
    connection
        .execute(
            "INSERT INTO plan (id, name, state, directory, created_at, implicit)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![id, name, state, directory, at, implicit],
        )
        .map(drop)
}

/// Notes that the sandboxes of a plan are gone, and forgets the resources that then have no name of their own and no
/// other sandbox.
fn end_sandboxes_of(connection: &Connection, plan: PlanId) -> rusqlite::Result<()> {
    let query = "UPDATE sandbox SET state = ?2 WHERE plan_id = ?1";
    connection.execute(query, params![plan, SandboxState::CleanedUp])?;
    let mut query = connection.prepare("SELECT resource_id FROM sandbox WHERE plan_id = ?1")?;
    let used = query.query_map([plan], |row| row.get(0))?;
    for id in used.collect::<rusqlite::Result<Vec<ResourceId>>>()? {
        forget_resource(connection, id, true)?;
    }
    Ok(())
}

pub(super) fn set_states(
    connection: &Connection,
    states: &[(SandboxId, SandboxState)],
) -> rusqlite::Result<()> {
    let query = "UPDATE sandbox SET state = ?2 WHERE id = ?1";
    for (sandbox, state) in states {
        connection.execute(query, params![sandbox, state])?;
    }
    Ok(())
}

pub(super) fn set_plan(
    connection: &Connection,
    id: PlanId,
    state: PlanState,
) -> rusqlite::Result<()> {
    let query = "UPDATE plan SET state = ?2 WHERE id = ?1";
    connection.execute(query, params![id, state]).map(drop)
}
