//! A soak: commits, each killed at a snapshot that there was no choice, for as long as there is time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::door::Door;
use crate::sweep;
use crate::*;

const SCENARIOS: [Scenario; 4] = [
    Scenario::full(&[Copy, Overlay]),
    Scenario::full(&[Copy, Cow, Overlay]),
    Scenario::full(&[Overlay, Nothing]),
    Scenario::tiny(&[Cow]),
];

/// A commit of the world, killed after so long.
fn killed(point: &Point, after: Duration) -> Result<Option<i32>, String> {
    let subject = point.subject()?;
    let mut child = subject
        .cli
        .command(point.verb.words())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    thread::sleep(after);
    child.kill().map_err(|error| error.to_string())?;
    let ended = child.wait().map_err(|error| error.to_string())?;
    let status = ended
        .code()
        .unwrap_or_else(|| -ended.signal().unwrap_or_default());
    let run = Run {
        outcome: Outcome {
            status,
            stdout: Vec::new(),
            stderr: Vec::new(),
        },
        calls: 0,
        steps: Vec::new(),
        hit: None,
    };
    point.judge(&subject, &run)?;
    Ok((status == -9).then_some(status))
}

/// Goes on for `time`. The snapshots come from a number that counts on, so that a run can be repeated.
pub(crate) fn soak(time: Duration) -> Figures {
    let until = Instant::now() + time;
    let rounds: Vec<u64> = (0..1_000_000).collect();
    sweep::each(&rounds, Some(until), |round| {
        let noise = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let point = Point {
            door: match round % 8 {
                3 => Door::Command,
                _ => Door::Inside,
            },
            undo: round % 4 == 1,
            ..match round % 5 {
                2 => Point::kill(scenario(*round), Before::Committed, Verb::Undo, 1),
                _ => Point::kill(scenario(*round), Before::Nothing, Verb::Commit, 1),
            }
        };
        let after = Duration::from_micros(3000 + noise % 40_000);
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| killed(&point, after)));
        let done = done.unwrap_or_else(|panic| Err(words(&*panic)));
        let name = point.scenario.name();
        match done {
            Ok(status) => {
                verdict.hit = status.map(|_| Step::named("SIGKILL"));
            }
            Err(wrong) => verdict.wrong.push(format!(
                "{name}: round {round}: {} killed after {after:?}: {wrong}",
                point.verb.name()
            )),
        }
        (name, verdict)
    })
}

fn scenario(round: u64) -> Scenario {
    let number = usize::try_from(round).unwrap_or(0) % SCENARIOS.len();
    SCENARIOS[number]
}
