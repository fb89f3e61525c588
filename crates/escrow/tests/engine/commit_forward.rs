//! A commit past its point of no return goes forward, and nothing is undone any more.

use escrow::commit::{RecoveredTo, Settled};
use escrow::error::{Error, Kind as Failure, Result};
use escrow::manager::CommitReport;
use escrow::strategy::Outcome;
use escrow_testkit::World;

use crate::commit_failure::{failed, named, stays_refused};
use crate::commit_faulty::{Batch, How, Kind, Part, Verb, outcome_of};
use crate::commit_support::{PARTIAL, PLAIN, recovered, told, unfinished};

use Kind::{Blind, Final, FinalBlind, Irreversible, Undoable};

/// The error of a commit that only goes forward: what is still to be done.
#[track_caller]
fn still_to_do(answer: Result<CommitReport>, when: &str) -> Vec<String> {
    let error = answer.map(drop).expect_err("it was made to fail");
    let text = told(&error);
    assert_eq!(error.kind(), Failure::RecoveryNeeded, "{when}: {text}");
    assert!(text.contains("escrow recover"), "{when}: {text}");
    let Error::Forward {
        failed, unknown, ..
    } = error
    else {
        panic!("{when}: {text}");
    };
    let unknown = unknown.into_iter().map(|(name, ..)| name);
    failed
        .into_iter()
        .map(|(name, _)| name)
        .chain(unknown)
        .collect()
}

impl Batch {
    /// Everything is new but `waits`, and recovery finishes that.
    #[track_caller]
    fn assert_goes_forward(&self, waits: &[&Part], when: &str) {
        for part in &self.parts {
            let waits = waits.iter().any(|one| one.resource.id == part.resource.id);
            let wanted = [Outcome::Done, Outcome::NotDone][usize::from(waits)];
            let (outcome, name) = (outcome_of(&part.original), &part.resource.name);
            assert_eq!(outcome, wanted, "{name}: {when}");
        }
        stays_refused(self, when);
        self.assert_recovers(RecoveredTo::New, when);
        for part in &self.parts {
            let outcome = outcome_of(&part.original);
            assert_eq!(outcome, Outcome::Done, "recovered, {when}");
        }
        assert_eq!(unfinished(&self.manager), [""; 0], "{when}");
    }
}

/// With `--allow-partial` several irreversible members are committed. When the first of them fails, everything is as
/// before; when a later one does, everything else goes forward, and so does recovery.
// rule C4, C5, C9, C18
#[test]
fn a_later_irreversible_member_is_retried() {
    let kinds = [Undoable, Irreversible, Undoable, Irreversible, Final];
    let fails = |batch: &Batch, number: usize| {
        batch
            .script
            .set(&[(&batch.parts[number], Verb::Commit, How::Before)]);
        batch.commit(PARTIAL)
    };
    let world = World::new();
    let batch = Batch::new(&world, "plan", &kinds, &[]);
    let diffs = batch.diffs();
    assert_eq!(failed(fails(&batch, 1)).not_undone, []);
    batch.assert_old(&diffs, &[], "the first one failed");
    let waits = &batch.parts[3];
    let when = "a later one failed";
    assert_eq!(still_to_do(fails(&batch, 3), when), named(&[waits]));
    batch.assert_goes_forward(&[waits], when);
}

/// What was prepared and cannot be taken back is never given up: the others stay new, and recovery finishes it.
// rule C1, C5, C18
#[test]
fn forward_only_members_are_finished_by_recovery() {
    for (kinds, fails) in [
        (&[Undoable, Final][..], 1),
        (&[Final, Undoable, Final], 0),
        (&[Final, Irreversible, Undoable], 0),
    ] {
        for how in [How::Before, How::Panic] {
            let world = World::new();
            let batch = Batch::new(&world, "plan", kinds, &[]);
            let part = &batch.parts[fails];
            let when = format!("{kinds:?} {how:?}");
            batch.script.set(&[(part, Verb::Commit, how)]);
            assert_eq!(still_to_do(batch.commit(PLAIN), &when), named(&[part]));
            let asked = batch.script.order(Verb::Commit);
            let tried = asked.iter().filter(|id| **id == part.resource.id).count();
            assert_eq!(tried, 2, "it is tried again at once: {when}");
            batch.assert_goes_forward(&[part], &when);
        }
    }
}

/// One that fails when all is done, and can tell, has not failed.
// rule C19
#[test]
fn what_was_done_all_the_same_is_not_done_twice() {
    let world = World::new();
    let batch = Batch::new(&world, "plan", &[Irreversible, Undoable, Final], &[]);
    let (mail, last) = (&batch.parts[0], &batch.parts[2]);
    let faults = [mail, last].map(|part| (part, Verb::Commit, How::After));
    batch.script.set(&faults);
    let released = batch.commit(PLAIN);
    released.unwrap_or_else(|error| panic!("{}", told(&error)));
    let calls = batch.script.order(Verb::Commit).len();
    assert_eq!(calls, 3, "each once");
}

/// What no process but a person can tell waits for one: nothing is done and nothing is undone until then.
// rule C18, C19
#[test]
fn an_unknown_outcome_waits_for_a_person() {
    for (how, truth) in [(How::Before, Outcome::NotDone), (How::After, Outcome::Done)] {
        for kinds in [[Blind, Undoable, Final], [FinalBlind, Undoable, Final]] {
            let world = World::new();
            let batch = Batch::new(&world, "plan", &kinds, &[]);
            let part = &batch.parts[0];
            let (name, when) = (&part.resource.name, format!("{kinds:?} {how:?}"));
            batch.script.set(&[(part, Verb::Commit, how)]);
            assert_eq!(still_to_do(batch.commit(PLAIN), &when), named(&[part]));
            batch.script.set(&[]);
            let manager = batch.again();
            let answers = recovered(&manager);
            let [(_, Err(Error::Forward { unknown, .. }))] = &answers[..] else {
                panic!("{when}: {answers:?}");
            };
            assert_eq!(unknown[0].0, *name, "{when}");
            let asked = batch.script.order(Verb::Commit);
            assert!(!asked.contains(&part.resource.id), "it was guessed: {when}");
            assert_eq!(
                outcome_of(&batch.parts[1].original),
                Outcome::Done,
                "{when}"
            );
            let wrong = Settled::from([("nobody".to_owned(), Outcome::Done)]);
            let error = manager.recover_settled(&wrong).expect_err("nobody asked");
            assert_eq!(error.kind(), Failure::Usage);
            let settled = Settled::from([(name.clone(), truth)]);
            let answers = manager.recover_settled(&settled).expect("it can be asked");
            // What was prepared can be tried again; of what was not, everything is taken back.
            let old = kinds[0] == Blind && truth == Outcome::NotDone;
            let (side, wanted) = match old {
                true => (RecoveredTo::Old, Outcome::NotDone),
                false => (RecoveredTo::New, Outcome::Done),
            };
            assert!(
                matches!(&answers[..], [(_, Ok(one))] if one.side == side),
                "{when}: {answers:?}"
            );
            for part in &batch.parts {
                assert_eq!(outcome_of(&part.original), wanted, "{when}");
            }
        }
    }
}
