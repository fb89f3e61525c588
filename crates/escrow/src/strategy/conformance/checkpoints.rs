//! The promise about checkpoints: a sandbox returns to one exactly, and can be taken back from there.

use super::super::{Checkpoints, RestoreRequest, Snapshot, Strategy, StrategyError};
use super::Case;
use super::checks::{CheckOutcome, Subject, equal, must, unchanged};
use crate::event::Unobserved;

// rule R1
pub(super) fn restored(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.fingerprint()?;
    let it = Subject::made(strategy, case)?;
    let known = case.known().0;
    let keep = |parent: Option<&Snapshot>| {
        let opened = it.open()?;
        Ok::<_, String>(opened.checkpoint(parent, &Unobserved))
    };
    if strategy.capabilities().checkpoints == Checkpoints::None {
        return match keep(None)? {
            Err(StrategyError::Unsupported { .. }) => Ok(()),
            Err(other) => Err(format!("it keeps no checkpoints, but says: {other}")),
            Ok(_) => Err("it claims to have kept what it cannot".to_owned()),
        };
    }
    it.put(&known, b"first")?;
    let first = must("checkpoint", keep(None)?)?;
    let listing = it.changes()?;
    it.put(&known, b"second")?;
    it.put_new(b"later")?;
    let second = must("checkpoint", keep(Some(&first))?)?;
    let opened = it.open()?;
    let is_linear = strategy.capabilities().checkpoints == Checkpoints::Linear;
    match opened.diff(Some(&first), Some(&second)) {
        // What is held can have no earlier state to compare with, if it says so.
        Err(StrategyError::Unsupported { .. }) if is_linear => {}
        since => {
            let wanted = 1 + case.on_the_way().len() + usize::from(case.absent().is_some());
            let found = must("diff", since)?.changes.len();
            equal("changes between two checkpoints", &found, &wanted)?;
        }
    }
    let area = case.commit_area()?;
    let request = RestoreRequest {
        from: &second,
        to: &first,
        area: area.as_deref(),
        observer: &Unobserved,
    };
    let intent = must("prepare a restore", opened.prepare_restore(&request))?;
    drop(opened);
    it.holds(&known, b"second")?;
    for _ in 0..2 {
        must("restore", strategy.commit(&intent, &Unobserved))?;
        it.holds(&known, b"first")?;
        equal("changes", &it.changes()?, &listing)?;
    }
    if !is_linear {
        must("take it back", strategy.undo(&intent, &Unobserved))?;
        it.holds(&known, b"second")?;
    }
    let kept = must("retain", it.open()?.retain(&[second]))?;
    equal("snapshots that are kept", &kept.len(), &1)?;
    must("retain", it.open()?.retain(&[]))?;
    unchanged(case, &before)
}
