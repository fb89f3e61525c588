//! Snapshots: worlds on a btrfs in memory, every verb killed at its calls and met by errors.

use std::sync::{Mutex, PoisonError};

use crate::checkpoints::{Act, Turn, every};
use crate::errors::EIO;
use crate::kills::{commits, recovers, undos};
use crate::sweep::some;
use crate::*;

static GROUND: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The file system on which worlds with snapshots are made, for as long as this is held.
pub(crate) struct Ground(LoopFs);

impl Ground {
    /// None, after recording the skip, for an ordinary user.
    pub(crate) fn new() -> Option<Self> {
        let fs = LoopFs::new(Fs::Btrfs, 512)?;
        let mut place = GROUND.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(fs.path().to_owned());
        drop(place);
        Some(Self(fs))
    }

    /// Every subvolume that is left.
    fn left(&self) -> String {
        escrow_testkit::prelude::sh(
            self.0.path(),
            "list=$(btrfs subvolume list .); printf %s \"$list\" | sed /ballast/d",
        )
    }
}

/// Where a world with a snapshot is made.
pub(crate) fn ground() -> PathBuf {
    let place = GROUND.lock().unwrap_or_else(PoisonError::into_inner);
    place
        .clone()
        .expect("snapshots are met on their own ground")
}

const SCENARIO: Scenario = Scenario::full(&[Snapshot]);
const MIXED: Scenario = Scenario::tiny(&[Snapshot, Overlay]);

/// Commit, undo, recover, checkpoint, restore, fork and gc.
pub(crate) fn faults(form: Form) -> Option<Figures> {
    let ground = Ground::new()?;
    let scenarios: &[Scenario] = match form.is_long() {
        true => &[SCENARIO, MIXED],
        false => &[SCENARIO],
    };
    let mut points = [commits(scenarios), undos(scenarios)].concat();
    if form.is_long() {
        points.extend(recovers(form, scenarios));
    }
    let errors = errors::at(&points);
    let mut turns = Vec::new();
    for scenario in scenarios {
        for act in Act::EVERY {
            let kills: Vec<Turn> = every(Turn::kill(*scenario, act)).collect();
            let kills = match form.is_long() {
                true => kills,
                false => some(kills, 6),
            };
            let fails = kills.iter().map(|turn| turn.with(Fault::Once(EIO)));
            let fails: Vec<Turn> = fails.collect();
            turns.extend(kills);
            turns.extend(fails);
        }
    }
    let form = form.part(3);
    let mut figures = form.run(points, 14);
    figures.add(form.run(errors, 8));
    figures.add(form.run(turns, 24));
    let left = ground.left();
    if !left.is_empty() {
        figures.wrong.push(format!("subvolumes are left: {left}"));
    }
    Some(figures)
}

#[test]
fn snapshots_killed_and_met_by_errors() {
    need!(require_stepper());
    if let Some(figures) = faults(Form::Bounded) {
        figures.settle("snapshots on btrfs, killed and met by errors", 36);
    }
}
