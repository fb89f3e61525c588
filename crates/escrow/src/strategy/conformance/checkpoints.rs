//! The promise about checkpoints: a sandbox returns to one exactly, and can be taken back from there.

use super::super::{Checkpoints, Purpose, RestoreRequest, Snapshot, Strategy, StrategyError};
use super::Case;
use super::checks::{
    CheckOutcome, changes, content, equal, made, must, open, put, put_new, unchanged,
};
use crate::event::Unobserved;

// rule R1
pub(super) fn restored(strategy: &dyn Strategy, case: &dyn Case) -> CheckOutcome {
    let before = case.fingerprint()?;
    let sandbox = made(strategy, case)?;
    let known = case.known().0;
    let keep = |parent: Option<&Snapshot>| {
        let opened = open(strategy, &sandbox)?;
        Ok::<_, String>(opened.checkpoint(parent, Purpose::Keep, &Unobserved))
    };
    if strategy.capabilities().checkpoints == Checkpoints::None {
        return match keep(None)? {
            Err(StrategyError::Unsupported { .. }) => Ok(()),
            Err(other) => Err(format!("it keeps no checkpoints, but says: {other}")),
            Ok(_) => Err("it claims to have kept what it cannot".to_owned()),
        };
    }
    put(strategy, &sandbox, &known, b"first")?;
    let first = must("checkpoint", keep(None)?)?;
    let listing = changes(strategy, &sandbox)?;
    put(strategy, &sandbox, &known, b"second")?;
    put_new(strategy, case, &sandbox, b"later")?;
    let second = must("checkpoint", keep(Some(&first))?)?;
    let opened = open(strategy, &sandbox)?;
    let since = must("diff", opened.diff(Some(&first), Some(&second)))?;
    let wanted = 1 + case.on_the_way().len() + usize::from(case.absent().is_some());
    equal(
        "changes between two checkpoints",
        &since.changes.len(),
        &wanted,
    )?;
    let area = case.commit_area()?;
    let request = RestoreRequest {
        from: &second,
        to: &first,
        area: area.as_deref(),
        observer: &Unobserved,
    };
    let intent = must("prepare a restore", opened.prepare_restore(&request))?;
    drop(opened);
    equal(
        "content",
        &content(strategy, &sandbox, &known)?,
        &b"second".to_vec(),
    )?;
    for _ in 0..2 {
        must("restore", strategy.commit(&intent, &Unobserved))?;
        equal(
            "content",
            &content(strategy, &sandbox, &known)?,
            &b"first".to_vec(),
        )?;
        equal("changes", &changes(strategy, &sandbox)?, &listing)?;
    }
    if strategy.capabilities().checkpoints != Checkpoints::Linear {
        must("take it back", strategy.undo(&intent, &Unobserved))?;
        equal(
            "content",
            &content(strategy, &sandbox, &known)?,
            &b"second".to_vec(),
        )?;
    }
    must("retain", open(strategy, &sandbox)?.retain(&[]))?;
    unchanged(case, &before)
}
