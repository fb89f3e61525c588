//! Checkpoints in the store, with the snapshot of each sandbox.

use rusqlite::{ToSql, params};

use super::rows::{Checkpoint, RenewedSnapshot};
use super::sqlite::{Result, Store, time};
use crate::model::{CheckpointId, PlanId, SandboxId};

impl Store {
    /// Notes a checkpoint with all its members, at once.
    pub(crate) fn add_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        let Checkpoint {
            id,
            plan_id,
            label,
            reason,
            created_at,
            snapshots,
        } = checkpoint;
        self.transact(|connection| {
            connection.execute(
                "INSERT INTO checkpoint (id, plan_id, label, reason, created_at, base)
                 VALUES (?1, ?2, ?3, ?4, ?5,
                         (SELECT id FROM journal
                          WHERE plan_id = ?2 AND phase = 'committed' AND part
                          ORDER BY seq DESC LIMIT 1))",
                params![id, plan_id, label, reason, created_at.to_string()],
            )?;
            for (sandbox, snapshot) in snapshots {
                connection.execute(
                    "INSERT INTO checkpoint_member (checkpoint_id, sandbox_id, moment)
                     VALUES (?1, ?2, ?3)",
                    params![id, sandbox, self.stored_text(snapshot)],
                )?;
            }
            Ok(())
        })
    }

    /// The checkpoints of a plan, oldest first.
    pub(crate) fn checkpoints(&self, plan: PlanId) -> Result<Vec<Checkpoint>> {
        self.checkpoints_where(plan, "plan_id = ?1", &[])
    }

    /// One of them.
    pub(crate) fn checkpoint(&self, plan: PlanId, id: CheckpointId) -> Result<Option<Checkpoint>> {
        Ok(self
            .checkpoints_where(plan, "plan_id = ?1 AND id = ?2", &[&id])?
            .pop())
    }

    /// Those with this label, and those whose id, with or without what all ids begin with, begins so, oldest first.
    pub(crate) fn checkpoints_called(&self, plan: PlanId, typed: &str) -> Result<Vec<Checkpoint>> {
        let bare = format!("{}{typed}", CheckpointId::PREFIX);
        // Behind every id that begins so.
        let [end, bare_end] = [typed, &bare].map(|text| match typed {
            "" => String::new(),
            _ => format!("{text}\u{7f}"),
        });
        // By the indexes of these: otherwise all of the plan would be read.
        let which =
            "+plan_id = ?1 AND (label = ?2 OR id BETWEEN ?2 AND ?3 OR id BETWEEN ?4 AND ?5)";
        self.checkpoints_where(plan, which, &[&typed, &end, &bare, &bare_end])
    }

    /// Those that were taken for this reason, or, without one, for any that is none of the user's, oldest first.
    pub(crate) fn checkpoints_for(
        &self,
        plan: PlanId,
        reason: Option<&str>,
    ) -> Result<Vec<Checkpoint>> {
        match reason {
            Some(reason) => {
                self.checkpoints_where(plan, "plan_id = ?1 AND reason = ?2", &[&reason])
            }
            None => self.checkpoints_where(plan, "plan_id = ?1 AND reason > ''", &[]),
        }
    }

    /// The newest checkpoint of a plan.
    pub(crate) fn last_checkpoint(&self, plan: PlanId) -> Result<Option<Checkpoint>> {
        let newest = "plan_id = ?1 AND seq = (SELECT max(seq) FROM checkpoint WHERE plan_id = ?1)";
        Ok(self.checkpoints_where(plan, newest, &[])?.pop())
    }

    fn checkpoints_where(
        &self,
        plan: PlanId,
        which: &str,
        more: &[&dyn ToSql],
    ) -> Result<Vec<Checkpoint>> {
        let query = format!(
            "SELECT id, plan_id, label, reason, created_at, sandbox_id, moment
             FROM checkpoint LEFT JOIN checkpoint_member ON checkpoint_id = id
             WHERE {which} ORDER BY seq, sandbox_id"
        );
        let params: Vec<&dyn ToSql> = [&plan as &dyn ToSql]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        let rows = self.all(&query, &params, |row| {
            let checkpoint = Checkpoint {
                id: row.get(0)?,
                plan_id: row.get(1)?,
                label: row.get(2)?,
                reason: row.get(3)?,
                created_at: time(row, 4)?,
                snapshots: Vec::new(),
            };
            let sandbox: Option<SandboxId> = row.get(5)?;
            let member = match sandbox {
                Some(sandbox) => Some((sandbox, self.found_text(row.get(6)?))),
                None => None,
            };
            Ok((checkpoint, member))
        })?;
        let mut found: Vec<Checkpoint> = Vec::new();
        for (checkpoint, member) in rows {
            if found.last().is_none_or(|last| last.id != checkpoint.id) {
                found.push(checkpoint);
            }
            if let Some(last) = found.last_mut() {
                last.snapshots.extend(member);
            }
        }
        Ok(found)
    }

    /// Puts rewritten snapshots in the place of those that are noted, all at once.
    pub(crate) fn renew_snapshots(&self, renewed: &[RenewedSnapshot]) -> Result<()> {
        self.transact(|connection| {
            for RenewedSnapshot {
                checkpoint,
                sandbox,
                snapshot,
            } in renewed
            {
                connection.execute(
                    "UPDATE checkpoint_member SET moment = ?3
                     WHERE checkpoint_id = ?1 AND sandbox_id = ?2",
                    params![checkpoint, sandbox, self.stored_text(snapshot)],
                )?;
            }
            Ok(())
        })
    }

    /// Whether a part of the plan was committed, or such a commit was taken back, since a checkpoint.
    pub(crate) fn is_stale(&self, id: CheckpointId) -> Result<bool> {
        self.one(
            "SELECT base IS NOT (SELECT id FROM journal
                                 WHERE plan_id = checkpoint.plan_id
                                   AND phase = 'committed' AND part
                                 ORDER BY seq DESC LIMIT 1)
             FROM checkpoint WHERE id = ?1",
            params![id],
        )
    }

    /// Forgets a checkpoint.
    pub(crate) fn forget_checkpoint(&self, id: CheckpointId) -> Result<()> {
        self.execute("DELETE FROM checkpoint WHERE id = ?1", params![id])
    }

    /// Forgets every checkpoint of a plan.
    pub(crate) fn forget_checkpoints(&self, plan: PlanId) -> Result<()> {
        self.execute("DELETE FROM checkpoint WHERE plan_id = ?1", params![plan])
    }
}
