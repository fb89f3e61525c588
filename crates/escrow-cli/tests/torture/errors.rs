//! Calls that fail: every one of them once, or every one from there on; and syncs.

use crate::*;

const EINTR: i32 = 4;
pub(crate) const EIO: i32 = 5;
const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

/// What a call of a commit can fail with. `EINTR` only once: what is interrupted is tried again, by SQLite too, and no
/// kernel interrupts for ever.
pub(crate) const ALL: [Fault; 15] = [
    Fault::Once(ENOSPC),
    Fault::Once(EIO),
    Fault::Once(EROFS),
    Fault::Once(EACCES),
    Fault::Once(EMFILE),
    Fault::Once(ENOMEM),
    Fault::Once(EDQUOT),
    Fault::Once(EINTR),
    Fault::Forever(ENOSPC),
    Fault::Forever(EIO),
    Fault::Forever(EROFS),
    Fault::Forever(EACCES),
    Fault::Forever(EMFILE),
    Fault::Forever(ENOMEM),
    Fault::Forever(EDQUOT),
];

/// The same points with an error each, one after the other.
pub(crate) fn at(points: &[Point]) -> Vec<Point> {
    let errors = ALL.iter().cycle();
    let with = |(point, fault): (&Point, &Fault)| Point {
        fault: *fault,
        ..*point
    };
    points.iter().zip(errors).map(with).collect()
}

/// The same for undo and recover.
pub(crate) const SOME: [Fault; 4] = [
    Fault::Once(EIO),
    Fault::Once(ENOSPC),
    Fault::Forever(EIO),
    Fault::Forever(ENOSPC),
];

fn scenario(form: Form) -> Scenario {
    match form.is_long() {
        true => Scenario::full(&[Copy, Overlay]),
        false => Scenario::tiny(&[Copy, Overlay]),
    }
}

/// What is run, and what was done before, on one scenario.
fn runs(scenario: Scenario) -> Vec<(Before, Verb)> {
    let commit = Point::kill(scenario, Before::Nothing, Verb::Commit, 1);
    let mut runs = vec![
        (Before::Nothing, Verb::Commit),
        (Before::Committed, Verb::Undo),
    ];
    let telling = telling(&commit.calls());
    let recovered = telling.into_iter().map(Before::CommitKilled);
    runs.extend(recovered.map(|before| (before, Verb::Recover)));
    runs
}

/// Every call fails, with everything that it can fail with.
pub(crate) fn errors(form: Form) -> Figures {
    let scenario = scenario(form);
    let mut points = Vec::new();
    for (number, (before, verb)) in runs(scenario).into_iter().enumerate() {
        let plain = Point::kill(scenario, before, verb, 1);
        let faults: &[Fault] = match verb {
            Verb::Commit => &ALL,
            _ => &SOME,
        };
        // In the bounded form every call of the commit, every second of the undo, and every fourth of the recovery of two
        // states, each with one of the errors.
        if !form.is_long() && number > 3 {
            continue;
        }
        let stride = match verb {
            _ if form.is_long() => 1,
            Verb::Commit => 1,
            Verb::Undo => 2,
            Verb::Recover => 4,
        };
        for n in (1 + number % stride..=plain.calls().len()).step_by(stride) {
            let chosen = match form.is_long() {
                true => faults,
                false => &faults[n * 7 % faults.len()..][..1],
            };
            points.extend(chosen.iter().map(|fault| Point {
                n: n as u64,
                fault: *fault,
                undo: n % 10 == 3,
                ..plain
            }));
        }
    }
    form.run(points, usize::MAX)
}

/// Every sync fails, once, and from there on. None is ever tried again on the same file.
pub(crate) fn syncs(form: Form) -> Figures {
    let scenario = scenario(form);
    let mut points = Vec::new();
    let mut runs = runs(scenario);
    if !form.is_long() {
        runs.truncate(5);
    }
    for (before, verb) in runs {
        let plain = Point {
            only: Some(SYNCS),
            ..Point::kill(scenario, before, verb, 1)
        };
        for n in 1..=plain.calls().len() as u64 {
            let faults = [Fault::Once(EIO), Fault::Forever(EIO)];
            // In the bounded form each sync fails in one of both ways; those of an undo, which are few, in both.
            let both = form.is_long() || matches!(verb, Verb::Undo);
            let chosen = |number: u64| both || n % 2 == number;
            let faults = (0..).zip(faults).filter(|(number, _)| chosen(*number));
            points.extend(faults.map(|(_, fault)| Point { n, fault, ..plain }));
        }
    }
    form.run(points, usize::MAX)
}

#[test]
fn every_call_fails() {
    need!(require_stepper());
    errors(Form::Bounded).settle("errors at every call", 300);
}

#[test]
fn every_sync_fails_and_none_is_tried_again() {
    need!(require_stepper());
    syncs(Form::Bounded).settle("failing syncs", 60);
}
