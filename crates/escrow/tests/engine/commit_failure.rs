//! A commit that fails, wherever and however, leaves originals and sandboxes as they were, and says so once.

use std::sync::Arc;

use escrow::commit::{CommitTerms, RecoveredTo};
use escrow::error::{Error, Kind as Failure, Result};
use escrow::event::Unobserved;
use escrow::manager::CommitReport;
use escrow::model::{PlanState, ResourceId, SandboxState};
use escrow_testkit::World;

use crate::commit_faulty::{Batch, How, Kind, Part, SAID, Script, Verb};
use crate::commit_support::{
    PLAIN, areas, assert_shares_nothing, assert_tree, recovered, request, stamps, told, unfinished,
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
pub(crate) fn failed(answer: Result<CommitReport>) -> Failed {
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
            assert_eq!(kept, [], "nobody else wrote anything: {text}");
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
    parts
        .iter()
        .map(|part| part.resource.name.clone())
        .collect()
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
        assert_eq!(
            areas(self.manager.home()).len(),
            self.parts.len(),
            "nothing of it stays: {when}"
        );
        assert_eq!(unfinished(&self.manager), [""; 0], "{when}");
    }

    /// Without faults it succeeds, and the originals are what the sandboxes were.
    #[track_caller]
    fn assert_succeeds(&self, terms: CommitTerms, when: &str) {
        self.script.set(&[]);
        let wanted: Vec<_> = self
            .parts
            .iter()
            .map(|part| escrow_testkit::signature::signature(&self.tree(part)))
            .collect();
        let released = self.commit(terms);
        let released = released.unwrap_or_else(|error| panic!("{when}: {}", told(&error)));
        assert_eq!(released.left, [], "{when}");
        for (part, wanted) in self.parts.iter().zip(&wanted) {
            assert_tree(wanted, &part.original, &format!("committed, {when}"));
            assert_shares_nothing(&part.original);
        }
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
            let answer = batch.commit(PLAIN);
            if verb == Verb::Prepare {
                let error = answer.map(drop).expect_err("it was made to fail");
                let text = told(&error);
                assert!(text.contains(SAID), "{when}: {text}");
                assert_eq!(batch.script.order(Verb::Commit), [], "{when}");
            } else {
                let failed = failed(answer);
                assert!(failed.cause.contains(SAID), "{when}: {}", failed.cause);
                let name = &part.resource.name;
                assert!(failed.cause.contains(name), "{when}: {}", failed.cause);
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
    assert_eq!(
        batch.script.order(Verb::Commit),
        ranked
            .iter()
            .map(|part| part.resource.id)
            .collect::<Vec<_>>(),
        "{kinds:?}"
    );
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

/// What was prepared and cannot be undone is only told as left where it was carried out.
// rule C4, C5, C8
#[test]
fn one_beside_a_final_one_fails() {
    each_member_fails(&[Final, Undoable]);
    each_member_fails(&[Undoable, Final, Undoable]);
}

/// The same for what undoes, but prepares nothing.
// rule C4, C5, C8
#[test]
fn one_beside_an_unprepared_one_fails() {
    each_member_fails(&[Unprepared, Undoable]);
    each_member_fails(&[Final, Unprepared, Undoable]);
    each_member_fails(&[Irreversible, Unprepared]);
}

/// Then the one that can be neither prepared nor undone, then what can only go forward; in each group children go before their parents.
// rule C8
#[test]
fn the_order_of_a_commit() {
    let world = World::new();
    let kinds = [
        Irreversible,
        Undoable,
        Final,
        Undoable,
        Unprepared,
        Undoable,
        Final,
    ];
    // 1 holds 3, which holds 4, which holds 5; 2 holds 6; 0 lies in 5.
    let parents = [None, None, None, Some(1), Some(3), Some(4), Some(2)];
    let batch = Batch::new(&world, "plan", &kinds, &parents);
    batch.assert_succeeds(PLAIN, "in order");
    let order: Vec<usize> = batch
        .script
        .order(Verb::Commit)
        .iter()
        .map(|id| {
            let place = batch.parts.iter().position(|part| part.resource.id == *id);
            place.expect("it is a member")
        })
        .collect();
    assert_eq!(order, [5, 4, 3, 1, 0, 6, 2]);
    let order = batch.script.order(Verb::Prepare);
    let prepared: Vec<&str> = order
        .iter()
        .map(|id| {
            let found = batch.parts.iter().find(|part| part.resource.id == *id);
            found.expect("it is a member").resource.name.as_str()
        })
        .collect();
    assert_eq!(
        prepared,
        ["plan-m5", "plan-m3", "plan-m1", "plan-m6", "plan-m2"]
    );
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
            let before: Vec<_> = batch
                .parts
                .iter()
                .map(|part| stamps(&part.original))
                .collect();
            batch.script.set(&[]);
            let error = batch.commit(PLAIN).expect_err("it must not begin");
            let Error::Irreversible { members, .. } = &error else {
                panic!("{}", told(&error));
            };
            let wanted: Vec<&Part> = batch
                .ranked()
                .into_iter()
                .filter(|part| part.kind == Irreversible)
                .collect();
            assert_eq!(*members, named(&wanted));
            let text = told(&error);
            assert!(text.contains("--allow-partial"), "{text}");
            assert_eq!(error.kind(), Failure::Unsupported);
            assert_eq!(batch.script.order(Verb::Prepare), []);
            assert_eq!(batch.script.order(Verb::Commit), []);
            batch.assert_old(&diffs, &[], "refused");
            let now: Vec<_> = batch
                .parts
                .iter()
                .map(|part| stamps(&part.original))
                .collect();
            assert_eq!(now, before, "{kinds:?}: not even a time moved");
        }
    }
}

/// Of several members the error says which one could not be prepared.
// rule C5
#[test]
fn what_cannot_be_prepared_is_named() {
    let world = World::new();
    let batch = Batch::new(&world, "plan", &[Undoable; 3], &[]);
    for how in [How::Before, How::Half, How::Panic] {
        let part = &batch.parts[1];
        batch.script.set(&[(part, Verb::Prepare, how)]);
        let error = batch.commit(PLAIN).expect_err("it was made to fail");
        let text = told(&error);
        assert!(text.contains(&part.resource.name), "{how:?}: {text}");
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
    for (fault, prepared) in [
        (
            // What can be undone is staged in its area, and goes with it.
            (&parts[1], Verb::Prepare, How::Before),
            vec![&parts[0]],
        ),
        (
            (&parts[2], Verb::Commit, How::Before),
            vec![&parts[2], &parts[0], &parts[1]],
        ),
    ] {
        batch.script.set(&[fault]);
        batch.commit(PLAIN).expect_err("it was made to fail");
        let asked = batch.script.order(Verb::Undo);
        for part in prepared {
            assert!(
                asked.contains(&part.resource.id),
                "{} after {:?}",
                part.resource.name,
                fault.1
            );
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
            let done: Vec<&Part> = [2, 1, 0]
                .iter()
                .filter(|number| **number != stuck)
                .map(|number| &batch.parts[*number])
                .collect();
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
            batch.script.set(&[]);
            let recovered = recovered(&batch.again());
            let [(plan, Ok(recovered))] = &recovered[..] else {
                panic!("{when}: {recovered:?}");
            };
            assert_eq!((plan.as_str(), recovered.side), ("plan", RecoveredTo::Old));
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
    let refused = [
        manager.read(plan, resource, &path).map(drop),
        manager
            .write(plan, resource, &path, &mut &b"x"[..])
            .map(drop),
        manager.diff(plan, None).map(drop),
        manager.rollback(plan, &Unobserved).map(drop),
        manager.cleanup(plan, false).map(drop),
        manager.undo(plan, &Unobserved).map(drop),
        manager.commit(plan, &request(PLAIN), &Unobserved).map(drop),
    ];
    for answer in refused {
        let error = answer.expect_err("nobody knows what it will be");
        assert_eq!(
            error.kind(),
            Failure::RecoveryNeeded,
            "{when}: {}",
            told(&error)
        );
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
    let sides: Vec<(&str, bool)> = answers
        .iter()
        .map(|(plan, answer)| (plan.as_str(), answer.is_ok()))
        .collect();
    assert_eq!(sides, [("one", false), ("two", true), ("three", true)]);
    script.set(&[]);
    let recovered = recovered(&batches[0].again());
    assert!(
        recovered.len() == 1 && recovered[0].1.is_ok(),
        "{recovered:?}"
    );
    for (batch, diffs) in batches.iter().zip(&diffs) {
        for (part, diff) in batch.parts.iter().zip(diffs) {
            assert_tree(&part.before, &part.original, "recovered");
            assert_eq!(batch.changes(part), *diff);
        }
    }
}

/// A sandbox that cannot be removed, or looked at again, takes nothing from a commit that is done.
// rule C7
#[test]
fn a_sandbox_that_stays_is_no_failure_of_the_commit() {
    for how in [How::Before, How::Panic] {
        let world = World::new();
        let batch = Batch::new(&world, "plan", &[Undoable; 3], &[]);
        let wanted: Vec<_> = batch
            .parts
            .iter()
            .map(|part| escrow_testkit::signature::signature(&batch.tree(part)))
            .collect();
        batch.script.set(&[(&batch.parts[1], Verb::Cleanup, how)]);
        let released = batch
            .commit(PLAIN)
            .expect("the originals are as they should be");
        let [(name, why)] = &released.left[..] else {
            panic!("{:?}", released.left);
        };
        assert_eq!(*name, batch.parts[1].resource.name);
        assert!(why.contains(SAID), "{why}");
        for (part, wanted) in batch.parts.iter().zip(&wanted) {
            assert_tree(wanted, &part.original, "committed");
        }
        batch.script.set(&[]);
        let undone = batch.manager.undo(&batch.plan, &Unobserved);
        let undone = undone.unwrap_or_else(|error| panic!("{}", told(&error)));
        assert_eq!(undone.resources.len(), 3);
        for part in &batch.parts {
            assert_tree(&part.before, &part.original, "undone");
        }
        batch
            .manager
            .cleanup(&batch.plan, false)
            .expect("it can be removed now");
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
        assert!(
            matches!(error, Error::NotFinished { .. }),
            "{}",
            told(&error)
        );
        assert_eq!(error.kind(), Failure::RecoveryNeeded);
        batch.script.set(&[]);
        let recovered = recovered(&batch.again());
        let [(_, Ok(recovered))] = &recovered[..] else {
            panic!("{recovered:?}");
        };
        assert_eq!(recovered.side, RecoveredTo::New);
        let manager = batch.again();
        manager.undo(&batch.plan, &Unobserved).expect("it is over");
        for part in &batch.parts {
            assert_tree(&part.before, &part.original, "undone");
        }
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
        let Err(Error::CommitFailed {
            undone,
            not_undone,
            open: true,
            ..
        }) = undone
        else {
            panic!("{undone:?}");
        };
        assert_eq!(undone, named(&[&batch.parts[2], &batch.parts[0]]));
        assert_eq!(not_undone.len(), 1);
        batch.script.set(&[]);
        let recovered = recovered(&batch.again());
        assert!(matches!(&recovered[..], [(_, Ok(one))] if one.side == RecoveredTo::Old));
        for part in &batch.parts {
            assert_tree(&part.before, &part.original, "undone");
        }
        let plans = batch.manager.plans().expect("they can be listed");
        assert_eq!(plans[0].plan.state, PlanState::RolledBack);
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
    let error = batch
        .manager
        .undo(&batch.plan, &Unobserved)
        .expect_err("one of them stays");
    let text = told(&error);
    let Error::CommitFailed {
        undone,
        not_undone,
        open: false,
        ..
    } = error
    else {
        panic!("{text}");
    };
    assert_eq!(undone, named(&[&batch.parts[0]]));
    assert_eq!(not_undone.len(), 1);
    assert_eq!(not_undone[0].0, batch.parts[1].resource.name);
    assert!(text.contains("irreversible"), "{text}");
    assert_tree(&batch.parts[0].before, &batch.parts[0].original, "undone");
}
