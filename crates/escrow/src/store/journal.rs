//! The journal of commits, restores and rollbacks: a table, not a second format.
//!
//! Whatever is durable here decides on which side a commit comes out. Each step is one
//! transaction; what a member needs is stored with a checksum, and what does not match it is never
//! acted on.

use rusqlite::{Connection, ToSql, params};

use super::identity;
use super::lifecycle::{is_taken, set_plan, set_states};
use super::rows::{CommitArea, JournalEntry, JournalMember};
use super::sqlite::{Result, Store, StoreError, list, time};
use crate::model::text::Location;
use crate::model::{CommitId, JournaledWork, Phase, PlanId, PlanState, SandboxId, SandboxState};

impl Store {
    /// Notes that a commit begins, and where each member will stage it, before anything is there.
    pub(crate) fn begin_commit(&self, journal: &JournalEntry) -> Result<()> {
        let id = journal.id;
        let record = |connection: &Connection| {
            insert(connection, journal)?;
            for (position, member) in journal.members.iter().enumerate() {
                let area = self.stored_location(&member.area);
                connection.execute(
                    "INSERT INTO journal_member (journal_id, position, sandbox_id, area)
                     VALUES (?1, ?2, ?3, ?4)",
                    params![id, position as i64, member.sandbox_id, area],
                )?;
            }
            // A rollback needs no area.
            let is_area = |member: &JournalMember| !member.area.as_bytes().is_empty();
            Ok(journal.members.iter().any(is_area))
        };
        self.record_areas(record, |connection| delete(connection, id))
    }

    /// Notes that the undo of a commit leaves a part of it, which can be undone later.
    pub(crate) fn note_standing(&self, id: CommitId) -> Result<()> {
        self.execute("UPDATE journal SET stands = 1 WHERE id = ?1", params![id])
    }

    /// Stores what each member needs that has been prepared, at once.
    pub fn put_intents(&self, journal: &JournalEntry) -> Result<()> {
        let intents = journal.members.iter().map(|member| member.intent.as_ref());
        self.transact(|connection| self.set_intents(connection, journal.id, intents.clone()))
    }

    fn set_intents<'i>(
        &self,
        connection: &Connection,
        id: CommitId,
        intents: impl Iterator<Item = Option<&'i String>>,
    ) -> rusqlite::Result<()> {
        for (position, intent) in intents.enumerate() {
            let Some(intent) = intent.map(|intent| self.stored_text(intent)) else {
                continue;
            };
            connection.execute(
                "UPDATE journal_member SET intent = ?3, checksum = ?4
                 WHERE journal_id = ?1 AND position = ?2",
                params![id, position as i64, intent, checksum(&intent)],
            )?;
        }
        Ok(())
    }

    /// Notes that a member which cannot be undone was carried out.
    pub(crate) fn set_carried(&self, id: CommitId, position: usize) -> Result<()> {
        let query = "UPDATE journal_member SET carried = 1 WHERE journal_id = ?1 AND position = ?2";
        self.execute(query, params![id, position as i64])
    }

    /// Moves a commit from one phase to the next, durably, or not at all.
    pub(crate) fn set_phase(&self, id: CommitId, from: Phase, to: Phase) -> Result<()> {
        self.move_phase(id, from, to, |_| Ok(()))
    }

    /// The same, together with `more`.
    fn move_phase(
        &self,
        id: CommitId,
        from: Phase,
        to: Phase,
        more: impl Fn(&Connection) -> rusqlite::Result<()>,
    ) -> Result<()> {
        debug_assert!(from == to || from.successors().contains(&to));
        let moved = self.transact(|connection| {
            more(connection)?;
            connection.execute(
                // Nothing is taken back once a step was carried out that cannot be.
                "UPDATE journal SET phase = ?3 WHERE id = ?1 AND phase = ?2
                 AND (?3 <> 'aborting' OR NOT EXISTS
                     (SELECT 1 FROM journal_member WHERE journal_id = ?1 AND carried))",
                params![id, from, to],
            )
        })?;
        match moved {
            1 => Ok(()),
            _ => Err(StoreError::Damaged {
                path: Location::from(self.path()),
                what: format!("the commit {id} is not {from}"),
            }),
        }
    }

    /// Ends a commit: what it leaves for undo, its plan and its sandboxes, in one transaction. The plan of
    /// which only a part was committed stays open.
    pub(crate) fn finish_commit(
        &self,
        journal: &JournalEntry,
        intents: &[Option<String>],
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<()> {
        self.move_phase(journal.id, Phase::Applied, Phase::Committed, |connection| {
            self.set_intents(connection, journal.id, intents.iter().map(Option::as_ref))?;
            set_states(connection, sandboxes)?;
            match journal.part {
                true => Ok(()),
                false => set_plan(connection, journal.plan_id, PlanState::Committed),
            }
        })
    }

    /// Notes that a commit is taken back. Where its plan is still to be opened `again` with what was released, what was kept
    /// for the undo stays until then, and the plan is rolled back unless it is open.
    pub(crate) fn finish_undo(&self, journal: &JournalEntry, again: bool) -> Result<()> {
        let plan = journal.plan_id;
        let to = if again {
            Phase::TakenBack
        } else {
            Phase::Undone
        };
        self.move_phase(journal.id, Phase::Undoing, to, |connection| {
            if journal.part {
                return Ok(());
            }
            set_plan(connection, plan, PlanState::RolledBack)?;
            // Those that stayed when it was committed.
            let (from, to) = (SandboxState::Committed, SandboxState::RolledBack);
            let query = "UPDATE sandbox SET state = ?2 WHERE plan_id = ?1 AND state = ?3";
            connection.execute(query, params![plan, to, from]).map(drop)
        })
    }

    /// Opens a plan again, under this name, with the sandboxes that hold what a commit had released, or what a rollback had
    /// set aside; `false` where another open plan has the name. Of a commit that `stands` in part, the rest can be undone.
    pub(crate) fn reopen(
        &self,
        journal: &JournalEntry,
        name: &str,
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<bool> {
        let stands = journal.stands;
        let to = if stands {
            Phase::Committed
        } else {
            Phase::Undone
        };
        self.transact(|connection| {
            let query = "UPDATE plan SET state = ?2, name = ?3 WHERE id = ?1";
            let renamed =
                connection.execute(query, params![journal.plan_id, PlanState::Open, name]);
            if is_taken(renamed.map(drop))? {
                return Ok(false);
            }
            set_states(connection, sandboxes)?;
            let query =
                "UPDATE journal SET phase = ?2, part = part OR ?3, stands = 0 WHERE id = ?1";
            connection.execute(query, params![journal.id, to, stands])?;
            Ok(true)
        })
    }

    /// Ends a rollback, and every sandbox is rolled back, in one transaction. Its record stays where a checkpoint keeps what
    /// was discarded: then it can be undone.
    pub(crate) fn finish_rollback(
        &self,
        journal: &JournalEntry,
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<()> {
        self.transact(|connection| {
            set_states(connection, sandboxes)?;
            if journal.checkpoint.is_none() {
                return delete(connection, journal.id).map(drop);
            }
            let query = "UPDATE journal SET phase = ?2 WHERE id = ?1";
            let ended = params![journal.id, Phase::Committed];
            connection.execute(query, ended).map(drop)
        })
    }

    /// Ends a plan whose sandboxes stay as they are, set aside, until the rollback is undone or they are removed.
    pub(crate) fn set_aside(
        &self,
        journal: &JournalEntry,
        sandboxes: &[(SandboxId, SandboxState)],
    ) -> Result<()> {
        self.transact(|connection| {
            insert(connection, journal)?;
            set_states(connection, sandboxes)?;
            set_plan(connection, journal.plan_id, PlanState::RolledBack)
        })
    }

    /// Forgets every commit of a plan.
    pub(crate) fn forget_commits(&self, plan: PlanId) -> Result<()> {
        self.execute("DELETE FROM journal WHERE plan_id = ?1", params![plan])
    }

    /// Forgets the rollbacks of a plan.
    pub(crate) fn forget_rollbacks(&self, plan: PlanId) -> Result<()> {
        let query = "DELETE FROM journal WHERE plan_id = ?1 AND kind = ?2";
        self.execute(query, params![plan, JournaledWork::Rollback])
    }

    /// Forgets a commit that came to nothing, or that can no longer be undone.
    pub(crate) fn forget_commit(&self, id: CommitId) -> Result<()> {
        self.transact(|connection| {
            identity::end_commit(connection, id)?;
            delete(connection, id).map(drop)
        })
    }

    /// Ends a restore; `linear`: with the checkpoints after the one that was returned to, to which a sandbox cannot return any more.
    pub(crate) fn finish_restore(&self, journal: &JournalEntry, linear: bool) -> Result<()> {
        self.transact(|connection| {
            identity::end_commit(connection, journal.id)?;
            if linear {
                let later = "DELETE FROM checkpoint WHERE plan_id = ?1 AND seq > (SELECT seq FROM checkpoint WHERE id = ?2)";
                connection.execute(later, params![journal.plan_id, journal.checkpoint])?;
            }
            delete(connection, journal.id).map(drop)
        })
    }

    /// Forgets a commit unless it was decided; says whether it did.
    pub(crate) fn forget_undecided(&self, id: CommitId) -> Result<bool> {
        self.transact(|connection| {
            let query = "SELECT 1 FROM journal WHERE id = ?1 AND phase = ?2";
            let undecided = params![id, Phase::Preparing];
            if !connection.prepare_cached(query)?.exists(undecided)? {
                return Ok(false);
            }
            identity::end_commit(connection, id)?;
            delete(connection, id).map(|_| true)
        })
    }

    /// The commits that another process must bring to an end, oldest first.
    pub(crate) fn unfinished(&self) -> Result<Vec<JournalEntry>> {
        self.journals("phase NOT IN ('committed', 'taken_back', 'undone')", &[])
    }

    /// All commits of a plan, oldest first.
    pub(crate) fn journals_of(&self, plan: PlanId) -> Result<Vec<JournalEntry>> {
        self.journals("plan_id = ?1", params![plan])
    }

    /// The newest commit of a plan that was not undone; if all were, the newest.
    pub fn journal_of(&self, plan: PlanId) -> Result<Option<JournalEntry>> {
        let mut all = self.journals_of(plan)?;
        let stands = |journal: &JournalEntry| journal.phase != Phase::Undone;
        let newest = all.iter().rposition(stands).or(all.len().checked_sub(1));
        Ok(newest.map(|newest| all.swap_remove(newest)))
    }

    /// The plans of the commits and rollbacks that can be undone, by the age of these.
    pub(crate) fn standing(&self) -> Result<Vec<PlanId>> {
        let query =
            "SELECT plan_id FROM journal WHERE phase IN ('committed', 'taken_back') ORDER BY seq";
        self.all(query, &[], |row| row.get(0))
    }

    /// What each partial commit left of a sandbox, of those that can be undone, oldest first.
    pub(crate) fn standing_parts(&self, sandbox: SandboxId) -> Result<Vec<String>> {
        let parts: Vec<(String, Option<Vec<u8>>)> = self.all(
            "SELECT intent, checksum FROM journal JOIN journal_member ON journal_id = id
             WHERE sandbox_id = ?1 AND part AND phase = 'committed' AND intent IS NOT NULL
             ORDER BY seq",
            params![sandbox],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let read = |(text, stored): (String, Option<Vec<u8>>)| match Some(checksum(&text)) == stored
        {
            true => Ok(self.found_text(text)),
            false => Err(StoreError::Damaged {
                path: Location::from(self.path()),
                what: "the intent of a partial commit is damaged".to_owned(),
            }),
        };
        parts.into_iter().map(read).collect()
    }

    fn journals(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<JournalEntry>> {
        let query = format!(
            "SELECT id, plan_id, phase, message, created_at, checkpoint, part, kind, stands
             FROM journal WHERE {which} ORDER BY seq"
        );
        let mut journals = self.all(&query, params, |row| {
            Ok(JournalEntry {
                id: row.get(0)?,
                plan_id: row.get(1)?,
                phase: row.get(2)?,
                message: row.get(3)?,
                created_at: time(row, 4)?,
                checkpoint: row.get(5)?,
                part: row.get(6)?,
                work: row.get(7)?,
                stands: row.get(8)?,
                members: Vec::new(),
                damaged: None,
            })
        })?;
        for journal in &mut journals {
            let members = self.members(journal.id)?;
            let damaged = members.iter().any(|(_, right)| !right);
            journal.damaged = damaged.then(|| "its intent is damaged".to_owned());
            journal.members = members.into_iter().map(|(member, _)| member).collect();
        }
        Ok(journals)
    }

    /// The members of a commit, each with whether its intent is what was written.
    fn members(&self, id: CommitId) -> Result<Vec<(JournalMember, bool)>> {
        self.all(
            "SELECT sandbox_id, area, intent, checksum, carried FROM journal_member
             WHERE journal_id = ?1 ORDER BY position",
            params![id],
            |row| {
                let intent: Option<String> = row.get(2)?;
                let stored: Option<Vec<u8>> = row.get(3)?;
                let right = intent.as_deref().map(checksum) == stored;
                let member = JournalMember {
                    sandbox_id: row.get(0)?,
                    area: self.found_location(row.get(1)?),
                    intent: intent.map(|text| self.found_text(text)),
                    carried: row.get(4)?,
                };
                Ok((member, right))
            },
        )
    }

    /// Where all commits keep what they staged or replaced, without what they need, which may be much.
    pub(crate) fn commit_areas(&self) -> Result<Vec<CommitArea>> {
        self.commit_areas_where("true", &[])
    }

    /// The same of the commits of one plan.
    pub(crate) fn commit_areas_of(&self, plan: PlanId) -> Result<Vec<CommitArea>> {
        self.commit_areas_where("plan_id = ?1", params![plan])
    }

    /// The same of the commits that had a share in one of these sandboxes.
    pub(crate) fn commit_areas_among(&self, ids: &[SandboxId]) -> Result<Vec<CommitArea>> {
        let which = "id IN (SELECT journal_id FROM journal_member
                            WHERE sandbox_id IN (SELECT value FROM json_each(?1)))";
        self.commit_areas_where(which, params![list(ids)])
    }

    fn commit_areas_where(&self, which: &str, params: &[&dyn ToSql]) -> Result<Vec<CommitArea>> {
        let query = format!(
            "SELECT plan_id, phase, created_at, sandbox_id, area, kind FROM journal
             LEFT JOIN journal_member ON journal_id = id AND length(area) > 0
             WHERE {which} ORDER BY seq, position"
        );
        self.all(&query, params, |row| {
            let (sandbox, area): (Option<SandboxId>, Option<Location>) = (row.get(3)?, row.get(4)?);
            Ok(CommitArea {
                plan_id: row.get(0)?,
                phase: row.get(1)?,
                created_at: time(row, 2)?,
                area: sandbox.zip(area.map(|area| self.found_location(area))),
                work: row.get(5)?,
            })
        })
    }

    /// Whether there is no sandbox, and no commit that can be undone.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        let query = "SELECT NOT EXISTS (SELECT 1 FROM sandbox WHERE state <> 'cleaned_up')
               AND NOT EXISTS (SELECT 1 FROM plan JOIN sandbox ON sandbox.plan_id = plan.id
                               WHERE plan.state = 'committed')
               AND NOT EXISTS (SELECT 1 FROM journal WHERE phase IN ('committed', 'taken_back'))";
        self.one(query, &[])
    }
}

fn insert(connection: &Connection, journal: &JournalEntry) -> rusqlite::Result<()> {
    let JournalEntry {
        id,
        plan_id,
        phase,
        message,
        checkpoint,
        part,
        work,
        ..
    } = journal;
    let at = journal.created_at.to_string();
    connection
        .execute(
            "INSERT INTO journal (id, plan_id, phase, message, created_at, checkpoint, part, kind)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![id, plan_id, phase, message, at, checkpoint, part, work],
        )
        .map(drop)
}

fn checksum(text: &str) -> Vec<u8> {
    blake3::hash(text.as_bytes()).as_bytes().to_vec()
}

fn delete(connection: &Connection, id: CommitId) -> rusqlite::Result<usize> {
    connection.execute("DELETE FROM journal WHERE id = ?1", [id])
}
