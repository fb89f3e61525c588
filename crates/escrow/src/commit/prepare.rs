//! Everything that can fail, done before the decision. A failure leaves every original as it was
//! and every sandbox as it is.

use super::abort;
use super::decide::Prepared;
use super::preview::{Previewed, check_expected};
use super::{Member, lent, make_area};
use crate::error::{Error, Result};
use crate::fs::{Dir, durable, private};
use crate::model::text::Location;
use crate::model::{CommitId, Expected, Phase, PlanDigest, Work};
use crate::seeded;
use crate::store::{Journal, JournalMember};
use crate::strategy::{PrepareRequest, Preview, StagedCommit};

impl<'a> Previewed<'a> {
    /// Stages every member, children first, checks that it is what was expected, and stores what each needs.
    pub fn prepare(
        self,
        message: Option<&str>,
        expected: Option<&Expected>,
    ) -> Result<Prepared<'a>> {
        self.check()?;
        let part = self.is_part();
        let Self {
            engine,
            plan,
            members,
            terms,
            ..
        } = self;
        let id = CommitId::new(engine.origin);
        let own = part.then_some(id);
        let areas = members
            .iter()
            .map(|(member, preview)| area_of(member, preview, own));
        let journal = Journal {
            id,
            plan_id: plan.id,
            work: Work::Commit,
            phase: Phase::Preparing,
            message: message.map(str::to_owned),
            checkpoint: None,
            part,
            created_at: engine.origin.now(),
            members: members
                .iter()
                .zip(areas.collect::<Result<Vec<_>>>()?)
                .map(|((member, _), area)| JournalMember {
                    sandbox_id: member.sandbox.id,
                    area,
                    intent: None,
                    carried: false,
                })
                .collect(),
            damaged: None,
        };
        // Recorded before anything is made: whoever dies from here on, someone knows where to
        // sweep.
        engine.store.begin_commit(&journal)?;
        let mut prepared = Prepared {
            engine,
            plan,
            journal,
            members: Vec::new(),
        };
        let total = members.len();
        let mut failure = None;
        let mut found = expected.map(|_| PlanDigest::default());
        for (position, (member, preview)) in members.into_iter().enumerate() {
            if failure.is_none() {
                let staged = (&member, &preview);
                let made = prepare_one(&mut prepared, position, staged, terms, found.as_mut());
                failure = made.err().map(|cause| match cause {
                    Error::Cancelled => cause,
                    cause => Error::Member {
                        resource: member.name(),
                        cause: Box::new(cause),
                    },
                });
            }
            prepared.members.push(member);
        }
        debug_assert_eq!(prepared.members.len(), total);
        if let (None, Some(expected), Some(found)) = (&failure, expected, &found) {
            failure = check_expected(&prepared.plan, expected, found).err();
        }
        if failure.is_none() {
            failure = prepared.store_intents().err();
        }
        match failure {
            None => Ok(prepared),
            Some(cause) => Err(prepared.drop_all(cause)),
        }
    }
}

impl Prepared<'_> {
    /// Makes what was staged durable, and stores what each member needs: one sync for each file system, one
    /// transaction for all. The sync is made once, since a failed one is final.
    fn store_intents(&self) -> Result<()> {
        let areas = self.journal.members.iter().map(|member| &member.area);
        let staged = areas.filter(|area| !area.as_bytes().is_empty());
        if !seeded::bug("no-stage-sync") {
            durable::sync_file_systems(staged.map(Location::as_path))?;
        }
        Ok(self.engine.store.put_intents(&self.journal)?)
    }

    /// Gives a commit up before it was decided: nothing of it stays.
    pub(super) fn drop_all(self, cause: Error) -> Error {
        let Self {
            engine,
            plan,
            journal,
            members,
        } = self;
        match abort::drop_prepared(&engine, &journal, &members) {
            Ok(left) if left.is_empty() => cause,
            Ok(left) => Error::LeftBehind {
                first: Box::new(cause),
                left: left.join("; "),
            },
            Err(error) => Error::Undecided {
                plan: plan.name.clone(),
                cause: Box::new(cause),
                why: crate::error::chain(&error),
            },
        }
    }
}

/// Where a member is staged; nowhere if there is nothing to stage (rule C13).
fn area_of(member: &Member, preview: &Preview, part: Option<CommitId>) -> Result<Location> {
    if !member.capabilities().prepares || preview.diff.is_empty() {
        return Ok(Location::from_bytes(b""));
    }
    let original = Dir::open(member.resource.root())?;
    let sandbox = &member.sandbox;
    let area = private::commit_area(sandbox.area.as_path(), &original, sandbox.id, part)?;
    Ok(Location::from(area))
}

fn prepare_one(
    prepared: &mut Prepared<'_>,
    position: usize,
    (member, preview): (&Member, &Preview),
    terms: super::Terms,
    found: Option<&mut PlanDigest>,
) -> Result<()> {
    let reference = &member.sandbox.reference;
    let changes = &preview.released(terms.on_conflict).changes;
    let area = prepared.journal.members[position].area.clone();
    let observer = prepared.engine.observer;
    let staged = if area.as_bytes().is_empty() {
        let mut nothing = StagedCommit::default();
        if found.is_some() {
            nothing.digests = member.call(|strategy| strategy.digests(reference, changes))?;
        }
        nothing
    } else {
        make_area(prepared.engine.home, &area)?;
        // Layers that others live on, and those of others, are not to become the original's.
        let (engine, sandbox) = (&prepared.engine, &member.sandbox);
        let keeps = engine.keeps
            || prepared.journal.part
            || !lent::needs(engine, sandbox)?.is_empty()
            || lent::is_needed(engine, &sandbox.area, sandbox.id)?;
        let request = PrepareRequest {
            preview,
            on_conflict: terms.on_conflict,
            area: area.as_path(),
            keeps,
            digests: found.is_some(),
            observer,
        };
        member.call(|strategy| strategy.prepare(reference, &request))?
    };
    if let Some(found) = found {
        found.add(&member.resource.name, changes, staged.digests);
    }
    let text = serde_json::to_string(&staged.intent).expect("an intent is JSON");
    prepared.journal.members[position].intent = Some(text);
    Ok(())
}
