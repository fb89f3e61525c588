//! A line that is killed, or meets an error, at some of its calls, and what must hold after each of them.
//!
//! The sweeps of `torture` meet every call, as root and on a world made within the process. Here it is the command line
//! alone, mostly as an ordinary user, and what only it has: files as resources, deletions, what is said.

use crate::*;

pub(crate) const EIO: i32 = 5;
pub(crate) const NOSPC: i32 = 28;

/// For each fault about so many calls, spread over all, and others for each fault.
const POINTS: u64 = 6;

/// Lets a line go wrong in a new scene each time; `then` is reported how.
#[track_caller]
pub(crate) fn sweep(
    scene: impl Fn() -> (World, Cli),
    line: &str,
    faults: &[Fault],
    then: impl Fn(&World, &Cli, &str),
) {
    sweep_by(scene, line, |cli| cli.stepper(line), faults, then);
}

/// The same for a line that is started in a way of its own.
#[track_caller]
pub(crate) fn sweep_by(
    scene: impl Fn() -> (World, Cli),
    line: &str,
    stepper: impl Fn(&Cli) -> Stepper,
    faults: &[Fault],
    then: impl Fn(&World, &Cli, &str),
) {
    need!(require_stepper());
    let (_template, cli) = scene();
    let counted = stepper(&cli).run();
    let told = counted.outcome.stderr_text();
    assert_eq!(counted.outcome.status, 0, "{told}");
    let stride = (counted.calls / POINTS).max(1);
    for (number, fault) in (0..).zip(faults) {
        let first = 1 + stride * number / faults.len() as u64;
        for n in (first..=counted.calls).step_by(stride as usize) {
            let (world, cli) = scene();
            let run = stepper(&cli).fault(n, *fault);
            let Some(hit) = run.hit else { break };
            let (status, said) = (run.outcome.status, run.outcome.stderr_text());
            then(
                &world,
                &cli,
                &format!("{line}: {fault:?} at call {n}, {hit} ({status} {said})"),
            );
        }
    }
}
