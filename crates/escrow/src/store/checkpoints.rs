//! Checkpoints in the store, with the snapshot of each sandbox.

use rusqlite::params;

use super::rows::{Checkpoint, RenewedSnapshot};
use super::sqlite::{Result, Store, parsed};
use crate::model::{CheckpointId, PlanId};

impl Store {
    /// Notes a checkpoint with all its members, at once.
    pub fn add_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.transact(|connection| {
            connection.execute(
                "INSERT INTO checkpoint (id, plan_id, label, reason, created_at, base)
                 VALUES (?1, ?2, ?3, ?4, ?5,
                         (SELECT id FROM journal
                          WHERE plan_id = ?2 AND phase = 'committed' AND part
                          ORDER BY seq DESC LIMIT 1))",
                params![
                    checkpoint.id.to_string(),
                    checkpoint.plan_id.to_string(),
                    checkpoint.label,
                    checkpoint.reason,
                    checkpoint.created_at.to_string(),
                ],
            )?;
            for (sandbox, snapshot) in &checkpoint.snapshots {
                connection.execute(
                    "INSERT INTO checkpoint_member (checkpoint_id, sandbox_id, moment)
                     VALUES (?1, ?2, ?3)",
                    params![
                        checkpoint.id.to_string(),
                        sandbox.to_string(),
                        self.stored_text(snapshot)
                    ],
                )?;
            }
            Ok(())
        })
    }

    /// The checkpoints of a plan, oldest first.
    pub fn checkpoints(&self, plan: PlanId) -> Result<Vec<Checkpoint>> {
        self.run(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, plan_id, label, reason, created_at FROM checkpoint
                 WHERE plan_id = ?1 ORDER BY seq",
            )?;
            let found = query.query_map([plan.to_string()], |row| {
                Ok(Checkpoint {
                    id: parsed(row, 0)?,
                    plan_id: parsed(row, 1)?,
                    label: row.get(2)?,
                    reason: row.get(3)?,
                    created_at: parsed(row, 4)?,
                    snapshots: Vec::new(),
                })
            })?;
            let mut found: Vec<Checkpoint> = found.collect::<rusqlite::Result<_>>()?;
            let mut query = connection.prepare_cached(
                "SELECT sandbox_id, moment FROM checkpoint_member
                 WHERE checkpoint_id = ?1 ORDER BY sandbox_id",
            )?;
            for checkpoint in &mut found {
                let snapshots = query.query_map([checkpoint.id.to_string()], |row| {
                    Ok((parsed(row, 0)?, self.found_text(row.get(1)?)))
                })?;
                checkpoint.snapshots = snapshots.collect::<rusqlite::Result<_>>()?;
            }
            Ok(found)
        })
    }

    /// Puts rewritten snapshots in the place of those that are noted, all at once.
    pub fn renew_snapshots(&self, renewed: &[RenewedSnapshot]) -> Result<()> {
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
                    params![
                        checkpoint.to_string(),
                        sandbox.to_string(),
                        self.stored_text(snapshot)
                    ],
                )?;
            }
            Ok(())
        })
    }

    /// Whether a part of the plan was committed, or such a commit was taken back, since a checkpoint.
    pub fn is_stale(&self, id: CheckpointId) -> Result<bool> {
        self.run(|connection| {
            connection.query_row(
                "SELECT base IS NOT (SELECT id FROM journal
                                     WHERE plan_id = checkpoint.plan_id
                                       AND phase = 'committed' AND part
                                     ORDER BY seq DESC LIMIT 1)
                 FROM checkpoint WHERE id = ?1",
                [id.to_string()],
                |row| row.get(0),
            )
        })
    }

    /// Forgets a checkpoint.
    pub fn forget_checkpoint(&self, id: CheckpointId) -> Result<()> {
        self.run(|connection| {
            connection.execute("DELETE FROM checkpoint WHERE id = ?1", [id.to_string()])?;
            Ok(())
        })
    }

    /// Forgets every checkpoint of a plan.
    pub fn forget_checkpoints(&self, plan: PlanId) -> Result<()> {
        self.run(|connection| {
            connection.execute(
                "DELETE FROM checkpoint WHERE plan_id = ?1",
                [plan.to_string()],
            )?;
            Ok(())
        })
    }
}
