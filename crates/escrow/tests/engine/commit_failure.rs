//! A commit that fails, wherever and however, leaves originals and sandboxes as they were, and says so once.

use std::sync::Arc;

use escrow::commit::{CommitTerms, RecoveredTo};
use escrow::error::{Error, Kind as Failure, Result};
use escrow::event::Unobserved;
use escrow::manager::CommitReport;
use escrow::model::{PlanState, ResourceId, SandboxState};
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_faulty::{Batch, How, Kind, Part, SAID, Script, Verb};
use crate::commit_support::{
    Must, PLAIN, areas, assert_shares_nothing, assert_tree, recovered, request, stamps, told,
    unfinished,
};
use crate::support::assert_swept;

use Kind::{Final, Irreversible, Undoable, Unprepared};

/// The parts of the one error of a failed commit.
pub(crate) struct Failed {
    cause: String,
    undone: Vec<String>,
    pub(crate) not_undone: Vec<(String, String)>,
    open: bool,
    text: String,
    kind: Failure,
}

#[track_caller]
pub(crate) fn failed<T>(answer: Result<T>) -> Failed {
    let error = answer.map(drop).expect_err("it was made to fail");
    let (text, kind) = (told(&error), error.kind());
    match error {
        Error::CommitFailed {
            cause,
            undone,
            not_undone,
            kept,
            open,
            ..
        } => {
            assert_eq!(kept, [], "no other process wrote anything: {text}");
            Failed {
                cause: told(&cause),
                undone,
                not_undone,
                open,
                text,
                kind,
            }
        }
        other => panic!("another error: {other:?}"),
    }
}

pub(crate) fn named(parts: &[&Part]) -> Vec<String> {
    let names = parts.iter().map(|part| part.resource.name.clone());
    names.collect()
}

impl Batch {
    pub(crate) fn commit(&self, terms: CommitTerms) -> Result<CommitReport> {
        self.manager
            .commit(&self.plan, &request(terms), &Unobserved)
    }

    pub(crate) fn diffs(&self) -> Vec<String> {
        self.parts.iter().map(|part| self.changes(part)).collect()
    }

    /// Nothing is as if a commit had been tried, but for these members.
    #[track_caller]
    pub(crate) fn assert_old(&self, diffs: &[String], but: &[&Part], when: &str) {
        let excused = |id: ResourceId| but.iter().any(|part| part.resource.id == id);
        for (part, diff) in self.parts.iter().zip(diffs) {
            if !excused(part.resource.id) {
                let name = &part.resource.name;
                assert_tree(&part.before, &part.original, &format!("{name}, {when}"));
                assert_eq!(self.changes(part), *diff, "{name}, {when}");
            }
            assert_shares_nothing(&self.tree(part));
        }
        let active = |state| state == SandboxState::Active;
        assert!(self.states().into_iter().all(active), "{when}");
        let areas = areas(self.manager.home()).len();
        assert_eq!(areas, self.parts.len(), "nothing of it stays: {when}");
        assert_eq!(unfinished(&self.manager), [""; 0], "{when}");
    }

    /// Without faults it succeeds, and the originals are what the sandboxes were.
    #[track_caller]
    fn assert_succeeds(&self, terms: CommitTerms, when: &str) {
        self.script.set(&[]);
        let released = self.assert_commits(terms, when);
        assert_eq!(released.left, [], "{when}");
        for part in &self.parts {
            assert_shares_nothing(&part.original);
        }
    }

    /// It succeeds, whatever is left, and the originals are what the sandboxes were.
    #[track_caller]
    fn assert_commits(&self, terms: CommitTerms, when: &str) -> CommitReport {
        let wanted = self.parts.iter().map(|part| signature(&self.tree(part)));
        let wanted: Vec<_> = wanted.collect();
        let released = self.commit(terms).must(when);
        for (part, wanted) in self.parts.iter().zip(&wanted) {
            assert_tree(wanted, &part.original, &format!("committed, {when}"));
        }
        released
    }

    /// Every original is what it was before anything.
    #[track_caller]
    fn assert_undone(&self, when: &str) {
        for part in &self.parts {
            assert_tree(&part.before, &part.original, &format!("undone, {when}"));
        }
    }

    /// Recovers what is to be recovered, without faults, to this side.
    #[track_caller]
    pub(crate) fn assert_recovers(&self, side: RecoveredTo, when: &str) {
        self.script.set(&[]);
        let recovered = recovered(&self.again());
        let right = matches!(&recovered[..], [(_, Ok(one))] if one.side == side);
        assert!(right, "{when}: {recovered:?}");
    }
}

/// Everything that can be undone and was begun is as before, and named so, last first; those that
/// were never begun may be named too.
#[track_caller]
fn assert_undone(ranked: &[&Part], position: usize, failed: &Failed, when: &str) {
    let undoable = |parts: &[&Part]| {
        let parts = parts.iter().rev().copied();
        named(&parts.filter(|part| part.kind.undoes()).collect::<Vec<_>>())
    };
    let (begun, all) = (undoable(&ranked[..=position]), undoable(ranked));
    let right = failed.undone == begun || failed.undone == all;
    assert!(right, "{when}: {:?}, not {begun:?}", failed.undone);
}

/// What a fault may do to a member so that nothing of it can be left; of many members, only what
/// differs most.
fn faults(kind: Kind, members: usize) -> Vec<(Verb, How)> {
    let all = [
        How::Before,
        How::Half,
        How::After,
        How::Panic,
        How::PanicHalf,
    ];
    let (preparing, committing) = match members {
        0..=2 => (&all[..], &all[..]),
        _ => (&all[1..2], &[How::Before, How::Half, How::PanicHalf][..]),
    };
    let mut faults = Vec::new();
    if kind.prepares() {
        faults.extend(preparing.iter().map(|how| (Verb::Prepare, *how)));
    }
    match (kind.undoes(), kind.prepares()) {
        (true, _) => faults.extend(committing.iter().map(|how| (Verb::Commit, *how))),
        (false, false) => faults.extend([How::Before, How::Panic].map(|how| (Verb::Commit, how))),
        // What was prepared is not given up any more: `forward_only_members_are_finished_by_recovery`.
        (false, true) => {}
    }
    faults
}

/// One member fails, in every way and for every place of it; then none does.
fn each_member_fails(kinds: &[Kind]) {
    let world = World::new();
    let batch = Batch::new(&world, "plan", kinds, &[]);
    let diffs = batch.diffs();
    let ranked = batch.ranked();
    for (position, part) in ranked.iter().enumerate() {
        for (verb, how) in faults(part.kind, kinds.len()) {
            let when = format!("{verb:?} {how:?} of {position} in {kinds:?}");
            batch.script.set(&[(part, verb, how)]);
            let (answer, name) = (batch.commit(PLAIN), &part.resource.name);
            if verb == Verb::Prepare {
                let error = answer.map(drop).expect_err("it was made to fail");
                let text = told(&error);
                let named = kinds.len() == 1 || text.contains(name);
                assert!(text.contains(SAID) && named, "{when}: {text}");
                assert_eq!(batch.script.order(Verb::Commit), [], "{when}");
            } else {
                let failed = failed(answer);
                let named = failed.cause.contains(name);
                assert!(
                    failed.cause.contains(SAID) && named,
                    "{when}: {}",
                    failed.cause
                );
                assert_undone(&ranked, position, &failed, &when);
                // One that cannot be undone and failed may have done something, or nothing.
                let others = failed.not_undone.iter().filter(|(one, _)| one != name);
                assert_eq!(others.count(), 0, "{when}: {:?}", failed.not_undone);
                assert!(!failed.open, "{when}");
                assert_eq!(failed.kind, Failure::Failed, "{when}: {}", failed.text);
            }
            batch.assert_old(&diffs, &[], &when);
        }
    }
    batch.assert_succeeds(PLAIN, &format!("{kinds:?}"));
    let order: Vec<_> = ranked.iter().map(|part| part.resource.id).collect();
    assert_eq!(batch.script.order(Verb::Commit), order, "{kinds:?}");
}

/// Every mix of `count` members, of which `irreversible` cannot be undone.
fn mixes(count: u32, irreversible: impl Fn(u32) -> bool) -> Vec<Vec<Kind>> {
    let mix = |mask: u32| {
        let kind = |bit| match mask >> bit & 1 {
            0 => Undoable,
            _ => Irreversible,
        };
        (0..count).map(kind).collect()
    };
    (0..1 << count)
        .filter(|mask: &u32| irreversible(mask.count_ones()))
        .map(mix)
        .collect()
}

// rule C1, C2, C4, C5, C6
#[test]
fn one_of_up_to_three_fails() {
    for count in 1..=3 {
        for kinds in mixes(count, |irreversible| irreversible <= 1) {
            each_member_fails(&kinds);
        }
    }
}

// rule C1, C2, C4, C5, C6
#[test]
fn one_of_four_fails() {
    for kinds in mixes(4, |irreversible| irreversible <= 1) {
        each_member_fails(&kinds);
    }
}

/// What was prepared and cannot be undone is only told as left where it was carried out; the same for what undoes, but
/// prepares nothing.
// rule C4, C5, C8
#[test]
fn one_beside_a_final_or_an_unprepared_one_fails() {
    for kinds in [
        &[Final, Undoable][..],
        &[Undoable, Final, Undoable],
        &[Unprepared, Undoable],
        &[Final, Unprepared, Undoable],
        &[Irreversible, Unprepared],
    ] {
        each_member_fails(kinds);
    }
}

/// Then the one that can be neither prepared nor undone, then what can only go forward; in each group children go before their parents.
// rule C8
#[test]
fn the_order_of_a_commit() {
    let world = World::new();
    let all = [Undoable, Final, Undoable, Unprepared, Undoable, Final];
    let kinds = [&[Irreversible][..], &all].concat();
    // 1 holds 3, which holds 4, which holds 5; 2 holds 6; 0 lies in 5.
    let parents = [None, None, None, Some(1), Some(3), Some(4), Some(2)];
    let batch = Batch::new(&world, "plan", &kinds, &parents);
    batch.assert_succeeds(PLAIN, "in order");
    let order = |verb| -> Vec<usize> {
        let place = |id: &ResourceId| batch.parts.iter().position(|part| part.resource.id == *id);
        let order = batch.script.order(verb);
        order
            .iter()
            .map(|id| place(id).expect("a member"))
            .collect()
    };
    assert_eq!(order(Verb::Commit), [5, 4, 3, 1, 0, 6, 2]);
    assert_eq!(order(Verb::Prepare), [5, 3, 1, 6, 2]);
}

/// Two that can neither be prepared nor undone are refused before anything is done.
// rule C2, C9
#[test]
fn two_irreversible_members_are_refused() {
    for count in 2..=4 {
        for kinds in mixes(count, |irreversible| irreversible >= 2) {
            let world = World::new();
            let batch = Batch::new(&world, "plan", &kinds, &[]);
            let diffs = batch.diffs();
            let stamped = || -> Vec<_> {
                let originals = batch.parts.iter().map(|part| stamps(&part.original));
                originals.collect()
            };
            let before = stamped();
            batch.script.set(&[]);
            let error = batch.commit(PLAIN).expect_err("it must not begin");
            let Error::Irreversible { members, .. } = &error else {
                panic!("{}", told(&error));
            };
            let mut wanted = batch.ranked();
            wanted.retain(|part| part.kind == Irreversible);
            assert_eq!(*members, named(&wanted));
            let text = told(&error);
            assert!(text.contains("--allow-partial"), "{text}");
            assert_eq!(error.kind(), Failure::Unsupported);
            assert_eq!(batch.script.order(Verb::Prepare), []);
            assert_eq!(batch.script.order(Verb::Commit), []);
            batch.assert_old(&diffs, &[], "refused");
            assert_eq!(stamped(), before, "{kinds:?}: not even a time moved");
        }
    }
}

/// What was prepared is let go when the commit does not happen: a prepared transaction would hold
/// its locks for ever.
// rule C2
#[test]
fn what_was_prepared_is_let_go() {
    let world = World::new();
    let batch = Batch::new(&world, "plan", &[Final, Final, Undoable], &[]);
    let parts = &batch.parts;
    for (part, verb, prepared) in [
        // What can be undone is staged in its area, and goes with it.
        (&parts[1], Verb::Prepare, &[0][..]),
        (&parts[2], Verb::Commit, &[2, 0, 1]),
    ] {
        batch.script.set(&[(part, verb, How::Before)]);
        batch.commit(PLAIN).expect_err("it was made to fail");
        let asked = batch.script.order(Verb::Undo);
        for part in prepared {
            let asked = asked.contains(&parts[*part].resource.id);
            assert!(asked, "{part} after {verb:?}");
        }
    }
}

/// One that cannot be undone now does not keep the others from it, and is undone later.
// rule C4, C5, C6, C17
#[test]
fn an_undo_that_fails_does_not_stop_the_others() {
    for stuck in 0..3 {
        for how in [How::Before, How::After, How::Panic] {
            let world = World::new();
            let batch = Batch::new(&world, "plan", &[Undoable; 3], &[]);
            let diffs = batch.diffs();
            let (last, stuck_part) = (&batch.parts[2], &batch.parts[stuck]);
            let when = format!("{stuck} {how:?}");
            batch.script.set(&[
                (last, Verb::Commit, How::Half),
                (stuck_part, Verb::Undo, how),
            ]);
            let failed = failed(batch.commit(PLAIN));
            let done = [2, 1, 0].into_iter().filter(|number| *number != stuck);
            let done: Vec<&Part> = done.map(|number| &batch.parts[number]).collect();
            assert_eq!(failed.undone, named(&done), "{when}");
            let [(name, why)] = &failed.not_undone[..] else {
                panic!("{when}: {:?}", failed.not_undone);
            };
            assert_eq!(*name, stuck_part.resource.name, "{when}");
            assert!(why.contains(SAID), "{when}: {why}");
            assert!(failed.open, "{when}");
            assert_eq!(failed.kind, Failure::RecoveryNeeded, "{when}");
            assert!(failed.text.contains("recover"), "{when}: {}", failed.text);
            for part in &done {
                assert_tree(&part.before, &part.original, &when);
            }
            stays_refused(&batch, &when);
            batch.assert_recovers(RecoveredTo::Old, &when);
            batch.assert_old(&diffs, &[], &when);
            batch.assert_succeeds(PLAIN, &when);
        }
    }
}

/// While a plan waits for its recovery nothing can be done with it but looking, and recovery says
/// why it cannot go on.
pub(crate) fn stays_refused(batch: &Batch, when: &str) {
    let manager = batch.again();
    let recovered = recovered(&manager);
    let [(_, Err(error))] = &recovered[..] else {
        panic!("{when}: {recovered:?}");
    };
    assert!(told(error).contains(SAID), "{when}: {}", told(error));
    let (plan, resource) = (&batch.plan, &batch.parts[0].resource);
    let path = crate::support::at("changed");
    let write = manager.write(plan, resource, &path, &mut &b"x"[..]);
    let refused = [
        write.map(drop),
        manager.read(plan, resource, &path).map(drop),
        manager.diff(plan, None).map(drop),
        manager.rollback(plan, &Unobserved).map(drop),
        manager.cleanup(plan, false).map(drop),
        manager.undo(plan, &Unobserved).map(drop),
        manager.commit(plan, &request(PLAIN), &Unobserved).map(drop),
    ];
    for answer in refused {
        let error = answer.expect_err("what it will be is not known");
        let text = told(&error);
        assert_eq!(error.kind(), Failure::RecoveryNeeded, "{when}: {text}");
    }
    assert!(manager.status().is_ok() && manager.log(None).is_ok());
}

/// Recovery goes on with every plan, also behind one that cannot be recovered.
// rule C17
#[test]
fn recovery_handles_every_plan() {
    let world = World::new();
    let script = Arc::new(Script::default());
    let make = |name| Batch::sharing(&world, name, &[Undoable; 2], &[], &script);
    let batches = ["one", "two", "three"].map(make);
    let diffs: Vec<_> = batches.iter().map(Batch::diffs).collect();
    let mut all = Vec::new();
    for batch in &batches {
        all.push((&batch.parts[1], Verb::Commit, How::Half));
        all.push((&batch.parts[0], Verb::Undo, How::Before));
        script.set(&all);
        assert!(failed(batch.commit(PLAIN)).open);
    }
    script.set(&all[1..2]);
    let answers = recovered(&batches[0].again());
    let sides = answers
        .iter()
        .map(|(plan, answer)| (&**plan, answer.is_ok()));
    let sides: Vec<(&str, bool)> = sides.collect();
    assert_eq!(sides, [("one", false), ("two", true), ("three", true)]);
    batches[0].assert_recovers(RecoveredTo::Old, "the one that is left");
    for (batch, diffs) in batches.iter().zip(&diffs) {
        batch.assert_undone("recovered");
        assert_eq!(batch.diffs(), *diffs);
    }
}

/// A sandbox that cannot be removed, or looked at again, takes nothing from a commit that is done.
// rule C7
#[test]
fn a_sandbox_that_stays_is_no_failure_of_the_commit() {
    for how in [How::Before, How::Panic] {
        let world = World::new();
        let batch = Batch::new(&world, "plan", &[Undoable; 3], &[]);
        batch.script.set(&[(&batch.parts[1], Verb::Cleanup, how)]);
        let released = batch.assert_commits(PLAIN, "its sandbox stays");
        let [(name, why)] = &released.left[..] else {
            panic!("{:?}", released.left);
        };
        assert_eq!(*name, batch.parts[1].resource.name);
        assert!(why.contains(SAID), "{why}");
        batch.script.set(&[]);
        let undone = batch.manager.undo(&batch.plan, &Unobserved);
        assert_eq!(undone.must("all of it").resources.len(), 3);
        batch.assert_undone("all of it");
        let cleaned = batch.manager.cleanup(&batch.plan, false);
        cleaned.must("it can be removed now");
        assert_swept(batch.manager.home());
    }
}

/// What fails when all is applied is not taken back, and recovery finishes it.
// rule C3
#[test]
fn a_finish_that_fails_is_finished_later() {
    for how in [How::Before, How::Panic] {
        let world = World::new();
        let batch = Batch::new(&world, "plan", &[Undoable; 2], &[]);
        batch.script.set(&[(&batch.parts[1], Verb::Finish, how)]);
        let error = batch.commit(PLAIN).expect_err("it was made to fail");
        assert!(matches!(error, Error::NotFinished { .. }), "{error:?}");
        assert_eq!(error.kind(), Failure::RecoveryNeeded);
        batch.assert_recovers(RecoveredTo::New, "finished");
        let undone = batch.again().undo(&batch.plan, &Unobserved);
        undone.must("it is over");
        batch.assert_undone("finished");
    }
}

/// An undo that fails goes on with the others, and is finished by recovery.
// rule C5, C17
#[test]
fn an_undo_of_a_plan_that_fails_half_way() {
    for how in [How::Before, How::After, How::Panic] {
        let world = World::new();
        let batch = Batch::new(&world, "plan", &[Undoable; 3], &[]);
        batch.assert_succeeds(PLAIN, "first");
        batch.script.set(&[(&batch.parts[1], Verb::Undo, how)]);
        let undone = batch.manager.undo(&batch.plan, &Unobserved);
        let failed = failed(undone);
        assert_eq!(failed.undone, named(&[&batch.parts[2], &batch.parts[0]]));
        assert!(
            failed.open && failed.not_undone.len() == 1,
            "{}",
            failed.text
        );
        batch.assert_recovers(RecoveredTo::Old, "an undo");
        batch.assert_undone("an undo");
        let plans = batch.manager.plans().expect("they can be listed");
        assert_eq!(plans[0].plan.state, PlanState::RolledBack);
        // What was released is kept until its plan is open again, or removed.
        assert_eq!(areas(batch.manager.home()).len(), 3);
        let cleaned = batch.manager.cleanup(&batch.plan, false);
        cleaned.must("it can be removed");
        assert_eq!(areas(batch.manager.home()), [""; 0]);
    }
}

/// Something that was done for good is called irreversible when it should be undone; the rest is.
// rule C10
#[test]
fn undoing_the_irreversible() {
    let world = World::new();
    let batch = Batch::new(&world, "plan", &[Undoable, Irreversible], &[]);
    batch.assert_succeeds(PLAIN, "first");
    let failed = failed(batch.manager.undo(&batch.plan, &Unobserved));
    assert_eq!(failed.undone, named(&[&batch.parts[0]]));
    let [(stays, _)] = &failed.not_undone[..] else {
        panic!("{}", failed.text);
    };
    assert_eq!(*stays, batch.parts[1].resource.name);
    let text = &failed.text;
    assert!(!failed.open && text.contains("irreversible"), "{text}");
    assert_tree(&batch.parts[0].before, &batch.parts[0].original, "undone");
}
