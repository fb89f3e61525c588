//! The journal of commits, restores and rollbacks: a table, not a second format.
//!
//! Whatever is durable here decides on which side a commit comes out. Each step is one
//! transaction; what a member needs is stored with a checksum, and what does not match it is never
//! acted on.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::identity;
use super::lifecycle::{set_plan, set_states};
use super::rows::{CommitArea, JournalEntry};
use super::sqlite::{Result, Store, StoreError, conversion, parsed};
use crate::model::text::Location;
use crate::model::{CommitId, JournaledWork, Phase, PlanId, PlanState, SandboxId, SandboxState};
use crate::store::rows::JournalMember;

impl Store {
    /// Does `work` in one transaction that writes.
    pub(super) fn transact<T>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.run(|connection| {
            let transaction =
                rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        })
    }

    /// Notes that a commit begins, and where each member will stage it, before anything is there.
    pub fn begin_commit(&self, journal: &JournalEntry) -> Result<()> {
        let record = |connection: &Connection| {
            connection.execute(
                "INSERT INTO journal (id, plan_id, phase, message, created_at, checkpoint, part,
                                      kind)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    journal.id.to_string(),
                    journal.plan_id.to_string(),
                    journal.phase.as_str(),
                    journal.message,
                    journal.created_at.to_string(),
                    journal.checkpoint.map(|id| id.to_string()),
                    journal.part,
                    journal.work.as_str(),
                ],
            )?;
            for (position, member) in journal.members.iter().enumerate() {
                connection.execute(
                    "INSERT INTO journal_member (journal_id, position, sandbox_id, area)
                     VALUES (?1, ?2, ?3, ?4)",
                    params![
                        journal.id.to_string(),
                        position as i64,
                        member.sandbox_id.to_string(),
                        self.stored_location(&member.area),
                    ],
                )?;
            }
            // A rollback needs no area.
            let is_area = |member: &JournalMember| !member.area.as_bytes().is_empty();
            Ok(journal.members.iter().any(is_area))
        };
        self.record_areas(record, |connection| {
            connection.execute(
                "DELETE FROM journal WHERE id = ?1",
                [journal.id.to_string()],
            )
        })
    }

    /// Stores what each member needs that has been prepared, at once.
    pub fn put_intents(&self, journal: &JournalEntry) -> Result<()> {
        self.transact(|connection| {
            for (position, member) in journal.members.iter().enumerate() {
                if let Some(intent) = &member.intent {
                    set_intent(connection, journal.id, position, &self.stored_text(intent))?;
                }
            }
            Ok(())
        })
    }

    /// Notes that a member which cannot be undone was carried out.
    pub fn set_carried(&self, id: CommitId, position: usize) -> Result<()> {
        self.run(|connection| {
            connection.execute(
                "UPDATE journal_member SET carried = 1 WHERE journal_id = ?1 AND position = ?2",
                params![id.to_string(), position as i64],
            )?;
            Ok(())
        })
    }

    /// Moves a commit from one phase to the next, durably, or not at all.
    pub fn set_phase(&self, id: CommitId, from: Phase, to: Phase) -> Result<()> {
        debug_assert!(from == to || from.successors().contains(&to));
        let moved = self.run(|connection| move_phase(connection, id, from, to))?;
        match moved {
            true => Ok(()),
            false => Err(self.not_in(id, from)),
        }
    }

    fn not_in(&self, id: CommitId, phase: Phase) -> StoreError {
        StoreError::Damaged {
            path: Location::from(self.path()),
            what: format!("the commit {id} is not {phase}"),
        }
    }

    /// Ends a commit: what it leaves for undo, its plan and its sandboxes, in one transaction. The plan of
    /// which only a part was committed stays open.
    pub fn finish_commit(
        &self,
        journal: &JournalEntry,
        intents: &[Option<String>],
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<()> {
        let done = self.transact(|connection| {
            let (from, to) = (Phase::Applied, Phase::Committed);
            for (position, intent) in intents.iter().enumerate() {
                if let Some(intent) = intent {
                    set_intent(connection, journal.id, position, &self.stored_text(intent))?;
                }
            }
            set_states(connection, sandboxes)?;
            if !journal.part {
                set_plan(connection, journal.plan_id, PlanState::Committed)?;
            }
            move_phase(connection, journal.id, from, to)
        })?;
        match done {
            true => Ok(()),
            false => Err(self.not_in(journal.id, Phase::Applied)),
        }
    }

    /// Ends an undo: its plan is rolled back. After that of a part, the plan is what it was.
    pub fn finish_undo(&self, journal: &JournalEntry) -> Result<()> {
        let done = self.transact(|connection| {
            let (from, to) = (Phase::Undoing, Phase::Undone);
            if journal.part {
                return move_phase(connection, journal.id, from, to);
            }
            set_plan(connection, journal.plan_id, PlanState::RolledBack)?;
            // Those that stayed when it was committed.
            connection.execute(
                "UPDATE sandbox SET state = ?2 WHERE plan_id = ?1 AND state = ?3",
                params![
                    journal.plan_id.to_string(),
                    SandboxState::RolledBack.as_str(),
                    SandboxState::Committed.as_str(),
                ],
            )?;
            move_phase(connection, journal.id, from, to)
        })?;
        match done {
            true => Ok(()),
            false => Err(self.not_in(journal.id, Phase::Undoing)),
        }
    }

    /// Ends a rollback: its record goes, and every sandbox is rolled back, in one transaction.
    pub fn finish_rollback(
        &self,
        id: CommitId,
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<()> {
        self.transact(|connection| {
            set_states(connection, sandboxes)?;
            connection.execute("DELETE FROM journal WHERE id = ?1", [id.to_string()])?;
            Ok(())
        })
    }

    /// Forgets every commit of a plan.
    pub fn forget_commits(&self, plan: PlanId) -> Result<()> {
        self.run(|connection| {
            connection.execute("DELETE FROM journal WHERE plan_id = ?1", [plan.to_string()])?;
            Ok(())
        })
    }

    /// Forgets a commit that came to nothing, or that can no longer be undone.
    pub fn forget_commit(&self, id: CommitId) -> Result<()> {
        self.transact(|connection| {
            identity::end_commit(connection, id)?;
            connection.execute("DELETE FROM journal WHERE id = ?1", [id.to_string()])?;
            Ok(())
        })
    }

    /// Forgets a commit unless it was decided; says whether it did.
    pub fn forget_undecided(&self, id: CommitId) -> Result<bool> {
        self.transact(|connection| {
            let query = "SELECT 1 FROM journal WHERE id = ?1 AND phase = ?2";
            let undecided = params![id.to_string(), Phase::Preparing.as_str()];
            if !connection.prepare_cached(query)?.exists(undecided)? {
                return Ok(false);
            }
            identity::end_commit(connection, id)?;
            connection.execute("DELETE FROM journal WHERE id = ?1", [id.to_string()])?;
            Ok(true)
        })
    }

    /// The commits that another process must bring to an end, oldest first.
    pub fn unfinished(&self) -> Result<Vec<JournalEntry>> {
        let mut found = self.journals(None)?;
        found.retain(|journal| journal.phase.is_unfinished());
        Ok(found)
    }

    /// The newest commit of a plan that was not undone; if all were, the newest.
    pub fn journal_of(&self, plan: PlanId) -> Result<Option<JournalEntry>> {
        let all = self.journals(Some(plan))?;
        let stands = |journal: &&JournalEntry| journal.phase != Phase::Undone;
        let newest = all.iter().rev().find(stands).or(all.last());
        Ok(newest.cloned())
    }

    /// All commits of a plan, oldest first.
    pub fn journals_of(&self, plan: PlanId) -> Result<Vec<JournalEntry>> {
        self.journals(Some(plan))
    }

    /// The plans of the commits that can be undone, by the age of their commits.
    pub fn standing(&self) -> Result<Vec<PlanId>> {
        self.run(|connection| {
            let query = "SELECT plan_id FROM journal WHERE phase = 'committed' ORDER BY seq";
            let mut query = connection.prepare_cached(query)?;
            query.query_map([], |row| parsed(row, 0))?.collect()
        })
    }

    fn journals(&self, plan: Option<PlanId>) -> Result<Vec<JournalEntry>> {
        let mut journals: Vec<JournalEntry> = self.run(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, plan_id, phase, message, created_at, checkpoint, part, kind
                 FROM journal WHERE CASE WHEN ?1 IS NULL THEN phase NOT IN ('committed', 'undone')
                            ELSE plan_id = ?1 END
                 ORDER BY seq",
            )?;
            query
                .query_map([plan.map(|id| id.to_string())], journal_row)?
                .collect()
        })?;
        for journal in &mut journals {
            let (members, damaged) = self.members(journal.id)?;
            journal.members = members;
            journal.damaged = damaged;
        }
        Ok(journals)
    }

    /// Where all commits keep what they staged or replaced, without what they need, which may be much.
    pub fn commit_areas(&self) -> Result<Vec<CommitArea>> {
        self.run(|connection| {
            let mut query = connection.prepare(
                "SELECT plan_id, phase, created_at, sandbox_id, area FROM journal
                 LEFT JOIN journal_member ON journal_id = id AND length(area) > 0
                 ORDER BY seq, position",
            )?;
            query
                .query_map([], |row| {
                    let area: Option<Vec<u8>> = row.get(4)?;
                    let area = area.map(|bytes| {
                        Ok::<_, rusqlite::Error>((parsed(row, 3)?, self.found_location(&bytes)))
                    });
                    Ok(CommitArea {
                        plan_id: parsed(row, 0)?,
                        phase: parsed::<Phase>(row, 1)?,
                        created_at: parsed::<Timestamp>(row, 2)?,
                        area: area.transpose()?,
                    })
                })?
                .collect()
        })
    }

    fn members(&self, id: CommitId) -> Result<(Vec<JournalMember>, Option<String>)> {
        let rows: Vec<(JournalMember, bool)> = self.run(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT sandbox_id, area, intent, checksum, carried FROM journal_member
                 WHERE journal_id = ?1 ORDER BY position",
            )?;
            query
                .query_map([id.to_string()], |row| {
                    let intent: Option<String> = row.get(2)?;
                    let stored: Option<Vec<u8>> = row.get(3)?;
                    let right = intent.as_deref().map(checksum) == stored;
                    let member = JournalMember {
                        sandbox_id: parsed(row, 0)?,
                        area: self.found_location(row.get_ref(1)?.as_blob()?),
                        intent: intent.map(|text| self.found_text(text)),
                        carried: row.get(4)?,
                    };
                    Ok((member, right))
                })?
                .collect()
        })?;
        let damaged = rows.iter().any(|(_, right)| !right);
        let what = "its intent is damaged".to_owned();
        let members = rows.into_iter().map(|(member, _)| member).collect();
        Ok((members, damaged.then_some(what)))
    }

    /// Whether there is no sandbox, and no commit that can be undone.
    pub fn is_idle(&self) -> Result<bool> {
        self.run(|connection| {
            let query = "SELECT NOT EXISTS (
                     SELECT 1 FROM sandbox JOIN plan ON plan.id = sandbox.plan_id
                     WHERE sandbox.state <> 'cleaned_up' OR plan.state = 'committed')
                   AND NOT EXISTS (SELECT 1 FROM journal WHERE phase = 'committed')";
            connection.query_row(query, [], |row| row.get(0))
        })
    }

    /// One plan.
    pub fn plan(&self, id: PlanId) -> Result<Option<super::Plan>> {
        Ok(self.plans()?.into_iter().find(|plan| plan.id == id))
    }

    /// One sandbox.
    pub fn sandbox(&self, id: SandboxId) -> Result<Option<super::SandboxRecord>> {
        self.run(|connection| {
            let query = "SELECT plan_id FROM sandbox WHERE id = ?1";
            connection
                .query_row(query, [id.to_string()], |row| parsed::<PlanId>(row, 0))
                .optional()
        })?
        .map_or(Ok(None), |plan| {
            let sandboxes = self.sandboxes(Some(plan))?;
            Ok(sandboxes.into_iter().find(|sandbox| sandbox.id == id))
        })
    }
}

fn checksum(text: &str) -> Vec<u8> {
    blake3::hash(text.as_bytes()).as_bytes().to_vec()
}

fn set_intent(
    connection: &Connection,
    id: CommitId,
    position: usize,
    intent: &str,
) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE journal_member SET intent = ?3, checksum = ?4
         WHERE journal_id = ?1 AND position = ?2",
        params![id.to_string(), position as i64, intent, checksum(intent)],
    )?;
    Ok(())
}

fn move_phase(
    connection: &Connection,
    id: CommitId,
    from: Phase,
    to: Phase,
) -> rusqlite::Result<bool> {
    let moved = connection.execute(
        // Nothing is taken back once a step was carried out that cannot be.
        "UPDATE journal SET phase = ?3 WHERE id = ?1 AND phase = ?2
         AND (?3 <> 'aborting' OR NOT EXISTS
             (SELECT 1 FROM journal_member WHERE journal_id = ?1 AND carried))",
        params![id.to_string(), from.as_str(), to.as_str()],
    )?;
    Ok(moved == 1)
}

fn journal_row(row: &Row<'_>) -> rusqlite::Result<JournalEntry> {
    Ok(JournalEntry {
        id: parsed(row, 0)?,
        plan_id: parsed(row, 1)?,
        phase: parsed::<Phase>(row, 2).map_err(|error| conversion(2, error))?,
        message: row.get(3)?,
        created_at: parsed::<Timestamp>(row, 4)?,
        checkpoint: match row.get::<_, Option<String>>(5)? {
            Some(_) => Some(parsed(row, 5)?),
            None => None,
        },
        part: row.get(6)?,
        work: parsed::<JournaledWork>(row, 7)?,
        members: Vec::new(),
        damaged: None,
    })
}
