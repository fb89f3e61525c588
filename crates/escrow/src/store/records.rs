//! Resources, plans and sandboxes as they are recorded: what is asked for is found by an index, and nothing else is read.

use rusqlite::{Row, ToSql, params};

use super::identity;
use super::rows::{Plan, Resource, SandboxRecord};
use super::sqlite::{Result, Store, json, list, time};
use crate::model::{PlanId, PlanState, ResourceId, SandboxId, SandboxRef};

/// The columns of a resource, and of a sandbox.
const RESOURCE: &str =
    "resource.id, resource.name, resource.type, resource.location, resource.parent,
    resource.strategy, resource.created_at, resource.named, resource.shape";
const SANDBOX: &str = "sandbox.id, sandbox.plan_id, sandbox.resource_id, sandbox.requested,
    sandbox.strategy, sandbox.state, sandbox.area, sandbox.metadata, sandbox.message,
    sandbox.warnings, sandbox.created_at, sandbox.reasons";

/// The resource that the columns from `at` on say.
fn found_resource(row: &Row<'_>, at: usize) -> rusqlite::Result<Resource> {
    Ok(Resource {
        id: row.get(at)?,
        name: row.get(at + 1)?,
        kind: row.get(at + 2)?,
        at: row.get(at + 3)?,
        parent: row.get(at + 4)?,
        strategy: row.get(at + 5)?,
        created_at: time(row, at + 6)?,
        named: row.get(at + 7)?,
        shape: row.get(at + 8)?,
    })
}

impl Store {
    /// Every resource, oldest first.
    pub(crate) fn resources(&self) -> Result<Vec<Resource>> {
        self.resources_where("removed = 0", &[])
    }

    /// Every resource, oldest first, also those that were removed since.
    pub(crate) fn resources_ever(&self) -> Result<Vec<Resource>> {
        self.resources_where("true", &[])
    }

    /// One resource, also one that was removed since.
    pub(crate) fn resource(&self, id: ResourceId) -> Result<Option<Resource>> {
        Ok(self.resources_where("id = ?1", params![id])?.pop())
    }

    fn resources_where(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<Resource>> {
        let query = format!("SELECT {RESOURCE} FROM resource WHERE {which} ORDER BY seq");
        self.all(&query, params, |row| found_resource(row, 0))
    }

    /// Every plan, newest first.
    pub(crate) fn plans(&self) -> Result<Vec<Plan>> {
        self.plans_where("true", &[])
    }

    /// The plans in one of these states, newest first.
    pub(crate) fn plans_in(&self, states: &[PlanState]) -> Result<Vec<Plan>> {
        self.plans_where(
            "state IN (SELECT value FROM json_each(?1))",
            params![list(states)],
        )
    }

    /// These plans, newest first.
    pub(crate) fn plans_among(&self, ids: &[PlanId]) -> Result<Vec<Plan>> {
        self.plans_where(
            "id IN (SELECT value FROM json_each(?1))",
            params![list(ids)],
        )
    }

    /// The plans of this name, or with this id, newest first.
    pub(crate) fn plans_called(&self, name: &str) -> Result<Vec<Plan>> {
        self.plans_where("name = ?1 OR id = ?1", params![name])
    }

    /// One plan.
    pub(crate) fn plan(&self, id: PlanId) -> Result<Option<Plan>> {
        Ok(self.plans_where("id = ?1", params![id])?.pop())
    }

    fn plans_where(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<Plan>> {
        let query = format!(
            "SELECT id, name, state, directory, created_at, implicit FROM plan WHERE {which} ORDER BY seq DESC"
        );
        self.all(&query, params, |row| {
            Ok(Plan {
                id: row.get(0)?,
                name: row.get(1)?,
                state: row.get(2)?,
                directory: row.get(3)?,
                created_at: time(row, 4)?,
                implicit: row.get(5)?,
            })
        })
    }

    /// Adds sandboxes, or replaces the records of the same ids: all, or none.
    pub fn put_sandboxes(&self, sandboxes: &[SandboxRecord]) -> Result<()> {
        self.transact(|transaction| {
            sandboxes
                .iter()
                .try_for_each(|one| self.insert_sandbox(transaction, one))
        })
    }

    /// Removes the record of a sandbox that came to nothing.
    pub(crate) fn forget_sandbox(&self, id: SandboxId) -> Result<()> {
        self.transact(|transaction| {
            identity::end(transaction, &id.to_string())?;
            let query = "DELETE FROM sandbox WHERE id = ?1";
            transaction.execute(query, [id]).map(drop)
        })
    }

    /// The sandboxes of all plans, or of one, oldest first.
    pub(crate) fn sandboxes(&self, plan: Option<PlanId>) -> Result<Vec<SandboxRecord>> {
        match plan {
            Some(plan) => self.sandboxes_where("plan_id = ?1", params![plan]),
            None => self.sandboxes_where("true", &[]),
        }
    }

    /// The sandboxes of all plans that are still there.
    pub(crate) fn live_sandboxes(&self) -> Result<Vec<SandboxRecord>> {
        // By the index of these: otherwise all would be read, for their order.
        let live =
            "seq IN (SELECT seq FROM sandbox INDEXED BY sandbox_live WHERE state <> 'cleaned_up')";
        self.sandboxes_where(live, &[])
    }

    /// These sandboxes.
    pub(crate) fn sandboxes_among(&self, ids: &[SandboxId]) -> Result<Vec<SandboxRecord>> {
        let which = "id IN (SELECT value FROM json_each(?1))";
        self.sandboxes_where(which, params![list(ids)])
    }

    /// The sandboxes of these plans, oldest first, each with its resource.
    pub(crate) fn members_of(&self, plans: &[PlanId]) -> Result<Vec<(SandboxRecord, Resource)>> {
        let which = "sandbox.plan_id IN (SELECT value FROM json_each(?1))";
        self.members_where(which, params![list(plans)])
    }

    /// The sandboxes of a plan, oldest first, each with its resource.
    pub(crate) fn plan_members(&self, plan: PlanId) -> Result<Vec<(SandboxRecord, Resource)>> {
        self.members_where("sandbox.plan_id = ?1", params![plan])
    }

    fn members_where(
        &self,
        which: &str,
        params: &[&dyn ToSql],
    ) -> Result<Vec<(SandboxRecord, Resource)>> {
        let query = format!(
            "SELECT {SANDBOX}, {RESOURCE} FROM sandbox
             LEFT JOIN resource ON resource.id = sandbox.resource_id
             WHERE {which} ORDER BY sandbox.seq"
        );
        self.all(&query, params, |row| {
            Ok((self.found_sandbox(row)?, found_resource(row, 12)?))
        })
    }

    /// One sandbox.
    pub(crate) fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRecord>> {
        Ok(self.sandboxes_where("id = ?1", params![id])?.pop())
    }

    fn sandboxes_where(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<SandboxRecord>> {
        let query = format!("SELECT {SANDBOX} FROM sandbox WHERE {which} ORDER BY seq");
        self.all(&query, params, |row| self.found_sandbox(row))
    }

    /// The sandbox that the first twelve columns say.
    fn found_sandbox(&self, row: &Row<'_>) -> rusqlite::Result<SandboxRecord> {
        Ok(SandboxRecord {
            id: row.get(0)?,
            reference: SandboxRef {
                plan_id: row.get(1)?,
                resource_id: row.get(2)?,
                strategy_name: row.get(4)?,
                metadata: self.found_json(json(row, 7)?),
            },
            requested: row.get(3)?,
            state: row.get(5)?,
            area: self.found_location(row.get(6)?),
            message: row.get(8)?,
            warnings: json(row, 9)?,
            created_at: time(row, 10)?,
            reasons: json(row, 11)?,
        })
    }
}
