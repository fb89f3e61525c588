//! Prepares a commit: everything that can fail, before the decision. A failure leaves every original as it was
//! and every sandbox as it is.

use super::execute::{Decided, Prepared};
use super::preview::{CommitTerms, Looked, Previewed, check_expected};
use super::shared_layers;
use super::{CommitEngine, Execution, Member, written};
use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::failpoints;
use crate::fs::{state_dir, workspace};
use crate::model::text::Location;
use crate::model::{
    CheckpointId, CommitId, Expected, JournaledWork, Phase, PlanDigest, ResourcePath, SandboxRef,
};
use crate::store::{JournalEntry, JournalMember, Plan};
use crate::strategy::{
    Intent, PrepareRequest, Preview, RestoreRequest, Sandbox, Session, Snapshot, StagedCommit,
};

impl<'a> Previewed<'a> {
    /// Stages every member, children first, checks that it is what was expected, and stores what each needs.
    pub(crate) fn prepare(
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
        let mut looked = Vec::new();
        let split = |(member, session, preview): Looked| {
            looked.push((session, preview));
            member
        };
        let members: Vec<Member> = members.into_iter().map(split).collect();
        let mut this = Execution::draft(engine, plan, JournaledWork::Commit, members);
        this.journal.message = message.map(str::to_owned);
        this.journal.part = part;
        let own = part.then_some(this.journal.id);
        for (position, (_, preview)) in looked.iter().enumerate() {
            let area = area_of(&this.members[position], preview, own)?;
            this.journal.members[position].area = area;
        }
        let mut found = expected.map(|_| PlanDigest::default());
        let promised = this.members.iter().zip(&looked);
        let promised = promised.filter(|(member, (_, preview))| {
            member.capabilities().promises && !preview.diff.is_empty()
        });
        let promised = promised.map(|(member, _)| member.sandbox.reference.clone());
        let promised: Vec<SandboxRef> = promised.collect();
        let staged = this.stage(|this, position| {
            let (session, preview) = &looked[position];
            let looked = (&**session, preview);
            let wanted = (found.is_some(), &promised[..]);
            let staged = this.stage_commit(position, looked, terms, wanted)?;
            if let Some(found) = &mut found {
                let changes = &preview.released(terms.on_conflict).changes;
                found.add(
                    &this.members[position].resource.name,
                    changes,
                    staged.digests,
                );
            }
            Ok(staged.intent)
        })?;
        match (expected, &found) {
            (Some(expected), Some(found)) => match check_expected(&staged.plan, expected, found) {
                Ok(()) => staged.seal(),
                Err(cause) => Err(staged.drop_all(cause)),
            },
            _ => staged.seal(),
        }
    }
}

/// A return of a member to a snapshot.
pub(crate) struct Return {
    /// Where it is, kept just now.
    pub(crate) from: Snapshot,
    /// Where it goes.
    pub(crate) to: Snapshot,
    /// Only these paths change, to what the original has, if that is where it is.
    pub(crate) back: Option<BTreeSet<ResourcePath>>,
    pub(crate) session: Session,
}

/// Stages the return of every member to a checkpoint, each on its way.
pub(crate) fn prepare_restore<'a>(
    engine: CommitEngine<'a>,
    plan: &Plan,
    checkpoint: CheckpointId,
    ways: Vec<(Member, Return)>,
) -> Result<Prepared<'a>> {
    let (members, ways): (Vec<Member>, Vec<Return>) = ways.into_iter().unzip();
    let mut this = Execution::draft(engine, plan.clone(), JournaledWork::Restore, members);
    this.journal.checkpoint = Some(checkpoint);
    let name = format!("{}{}", workspace::RESTORE, this.journal.id);
    for (position, member) in this.members.iter().enumerate() {
        let area = member.sandbox.area.as_path().join(&name);
        this.journal.members[position].area = Location::from(area);
    }
    let staged = this.stage(|this, position| {
        let (member, way) = (&this.members[position], &ways[position]);
        let area = &this.journal.members[position].area;
        engine.areas.make(area.as_path(), true)?;
        let request = RestoreRequest {
            from: &way.from,
            to: &way.to,
            area: Some(area.as_path()),
            observer: engine.observer,
        };
        let session = member.open(engine.store, way.session.clone())?;
        member.session(&*session, |session| match &way.back {
            Some(paths) => session.prepare_discard(&request, paths),
            None => session.prepare_restore(&request),
        })
    })?;
    staged.seal()
}

/// Decides that the changes of every member are discarded, which needs nothing staged and cannot be taken back. The
/// caller found out that nothing keeps any of them from it, and may have kept them as a checkpoint.
pub(crate) fn prepare_discard<'a>(
    engine: CommitEngine<'a>,
    plan: &Plan,
    members: Vec<Member>,
    kept: Option<CheckpointId>,
) -> Result<Decided<'a>> {
    let mut this = Execution::draft(engine, plan.clone(), JournaledWork::Rollback, members);
    this.journal.phase = Phase::Forward;
    this.journal.checkpoint = kept;
    if failpoints::bug("rollback-one-by-one") {
        return Ok(Decided(this));
    }
    let Err(cause) = engine.store.begin_commit(&this.journal) else {
        return Ok(Decided(this));
    };
    // It may be on disk all the same: the opposite is said, durably, and nothing is discarded.
    match engine.store.forget_commit(this.journal.id) {
        Ok(()) => Err(cause.into()),
        Err(error) => Err(this.undecided(cause.into(), &error.into())),
    }
}

impl<'a> Execution<'a> {
    /// Something that is not recorded yet.
    fn draft(
        engine: CommitEngine<'a>,
        plan: Plan,
        work: JournaledWork,
        members: Vec<Member>,
    ) -> Self {
        let member = |member: &Member| JournalMember {
            sandbox_id: member.sandbox.id,
            area: Location::from_bytes(b""),
            intent: None,
            carried: false,
        };
        let journal = JournalEntry {
            id: CommitId::new(engine.origin),
            plan_id: plan.id,
            work,
            phase: Phase::Preparing,
            message: None,
            checkpoint: None,
            part: false,
            stands: false,
            created_at: engine.origin.now(),
            members: members.iter().map(member).collect(),
            damaged: None,
        };
        Self {
            engine,
            plan,
            journal,
            members,
        }
    }

    /// Stages every member and stores what each needs. It is recorded before anything is made, so that another process
    /// knows where to sweep; a failure drops all of it.
    fn stage(mut self, mut one: impl FnMut(&Self, usize) -> Result<Intent>) -> Result<Self> {
        self.engine.store.begin_commit(&self.journal)?;
        for position in 0..self.members.len() {
            match one(&self, position) {
                Ok(intent) => {
                    self.journal.members[position].intent = Some(written(&intent));
                }
                Err(cause) => {
                    let cause = self.failed(position, cause);
                    return Err(self.drop_all(cause));
                }
            }
        }
        Ok(self)
    }

    /// Stages the changes of one member.
    fn stage_commit(
        &self,
        position: usize,
        (session, preview): (&dyn Sandbox, &Preview),
        terms: CommitTerms,
        (digests, promised): (bool, &[SandboxRef]),
    ) -> Result<StagedCommit> {
        let (engine, member) = (&self.engine, &self.members[position]);
        let (sandbox, area) = (&member.sandbox, &self.journal.members[position].area);
        let prepares = member.capabilities().prepares;
        if preview.diff.is_empty() && prepares {
            return Ok(StagedCommit::default());
        }
        let has_area = !area.as_bytes().is_empty();
        if has_area {
            engine.areas.make(area.as_path(), false)?;
        }
        // Layers that others live on, and those of others, are not to become the original's.
        let keeps = engine.keeps
            || self.journal.part
            || !sandbox.reference.depends_on().is_empty()
            || shared_layers::is_needed(engine, &sandbox.area, sandbox.id)?;
        let request = PrepareRequest {
            preview,
            on_conflict: terms.on_conflict,
            message: self.journal.message.as_deref(),
            area: has_area.then(|| area.as_path()),
            keeps,
            digests,
            promised,
            observer: engine.observer,
        };
        let mut staged = member.session(session, |session| session.prepare(&request))?;
        if digests && !prepares {
            let changes = &preview.released(terms.on_conflict).changes;
            staged.digests = member.session(session, |session| session.digests(changes))?;
        }
        Ok(staged)
    }

    /// Makes what was staged durable, and records it.
    fn seal(self) -> Result<Prepared<'a>> {
        match self.store_intents() {
            Ok(()) => Ok(Prepared(self)),
            Err(cause) => Err(self.drop_all(cause)),
        }
    }

    /// Makes what was staged durable, and stores what each member needs: one sync for each file system, one
    /// transaction for all. The sync is made once, since a failed one is final. What a restore stages is durable.
    fn store_intents(&self) -> Result<()> {
        let areas = self.journal.members.iter().map(|member| &member.area);
        let staged = areas.filter(|area| !area.as_bytes().is_empty());
        if self.journal.work == JournaledWork::Commit && !failpoints::bug("no-stage-sync") {
            workspace::sync_file_systems(staged.map(Location::as_path))?;
        }
        Ok(self.engine.store.put_intents(&self.journal)?)
    }

    /// Gives up what was not decided: nothing of it stays.
    pub(super) fn drop_all(mut self, cause: Error) -> Error {
        let dropped = match self.drop_prepared() {
            Ok(dropped) => dropped,
            Err(error) => return self.undecided(cause, &error),
        };
        let cause = match dropped.lost.is_empty() {
            true => cause,
            false => Error::WorkLost {
                first: Box::new(cause),
                lost: dropped.lost,
            },
        };
        match dropped.left.is_empty() {
            true => cause,
            false => Error::LeftBehind {
                first: Box::new(cause),
                left: dropped.left.join("; "),
            },
        }
    }
}

/// Where a member is staged; nowhere if there is nothing to stage (rule C13).
fn area_of(member: &Member, preview: &Preview, part: Option<CommitId>) -> Result<Location> {
    let capabilities = member.capabilities();
    if !capabilities.prepares || !capabilities.area || preview.diff.is_empty() {
        return Ok(Location::from_bytes(b""));
    }
    let (sandbox, root) = (&member.sandbox, member.resource.root());
    // Of a resource without a path everything lies beside its sandbox.
    let near = root.unwrap_or(sandbox.area.as_path());
    let area = state_dir::commit_area(sandbox.area.as_path(), near, sandbox.id, part)?;
    Ok(Location::from(area))
}
