//! A program that is killed in the middle of a call: calling again finishes, and nothing is half done.

use std::io::Cursor;
use std::time::Duration;

use super::super::registry::Registration;
use super::super::{Outcome, RestoreRequest, Strategy};
use super::checks::{CheckOutcome, Subject, equal, expected, must, sorted, unchanged};
use super::{Case, ConformanceCheck, ConformanceReport, Fixture};
use crate::event::Unobserved;

/// When a program is killed, in milliseconds after it was called.
pub const MOMENTS: [u64; 2] = [1, 8];

type KilledFn = fn(&dyn Strategy, &dyn Case, &dyn Fn()) -> CheckOutcome;

/// Each method, and what is asked of it. The last argument kills the program in the next call of the method.
const ALL: &[(&str, &str, KilledFn)] = &[
    (
        "create",
        "killed in `create`: the next one begins anew",
        create,
    ),
    ("read", "killed in `read`: nothing changed", read),
    (
        "write",
        "killed in `write`: the old or the new content, never a mixture",
        write,
    ),
    ("diff", "killed in `diff`: nothing changed", diff),
    (
        "commit",
        "killed in `commit`: the next one finishes it, or its outcome is known",
        commit,
    ),
    (
        "rollback",
        "killed in `rollback`: the next one finishes it",
        rollback,
    ),
    (
        "checkpoint",
        "killed in `checkpoint`: the sandbox is as it was",
        checkpoint,
    ),
    (
        "restore_checkpoint",
        "killed in `restore_checkpoint`: the next one finishes it",
        restore,
    ),
    (
        "cleanup",
        "killed in `cleanup`: the next one finishes it",
        cleanup,
    ),
    (
        "prepare",
        "killed in `prepare`: nothing is promised, and nothing is touched",
        prepare,
    ),
    ("undo", "killed in `undo`: the next one finishes it", undo),
];

/// Kills a program in the middle of each of its methods, after each of these times.
pub fn run_killed(one: &Registration, fixture: &dyn Fixture, after: &[u64]) -> ConformanceReport {
    let strategy = &**one.strategy();
    let promises = strategy.capabilities();
    let asked = ALL.iter().filter(|(method, ..)| match *method {
        "prepare" => promises.prepares,
        "undo" => promises.undoes,
        _ => true,
    });
    let check = |(method, name, check): &(&str, &'static str, KilledFn)| {
        let mut problem = None;
        for after in after {
            let kill = || one.kill_in(method, Duration::from_millis(*after));
            let case = fixture.fresh();
            let answer = case.and_then(|case| check(strategy, &*case, &kill));
            problem = problem.or(answer.err().map(|why| format!("after {after} ms: {why}")));
        }
        ConformanceCheck { name, problem }
    };
    ConformanceReport {
        strategy: one.name().to_owned(),
        checks: asked.map(check).collect(),
    }
}

/// What is answered by a program that is killed does not matter: it may have been quicker.
fn ignore<T, E>(answer: Result<T, E>) {
    match answer {
        Ok(_) | Err(_) => {}
    }
}

fn create(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let before = case.fingerprint()?;
    kill();
    ignore(Subject::made(strategy, case));
    unchanged(case, &before)?;
    let it = Subject::made(strategy, case)?;
    it.no_changes()?;
    it.holds(&case.known().0, &case.known().1)
}

fn read(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    kill();
    ignore(it.content(&case.known().0));
    it.holds(&case.known().0, &case.known().1)
}

fn write(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let it = Subject::made(strategy, case)?;
    let (path, old) = case.known();
    let new = vec![b'n'; 100_000];
    kill();
    ignore(it.open()?.write(&path, &mut Cursor::new(&new)));
    let found = it.content(&path)?;
    if found != old && found != new {
        return Err(format!("{} bytes of it are there", found.len()));
    }
    it.put(&path, &new)?;
    it.holds(&path, &new)
}

fn diff(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let it = Subject::worked_in(strategy, case)?;
    let before = it.changes()?;
    kill();
    ignore(it.changes());
    equal("changes", &it.changes()?, &before)
}

fn prepare(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let before = case.fingerprint()?;
    let wanted = expected(case)?;
    let it = Subject::worked_in(strategy, case)?;
    kill();
    ignore(it.staged(false));
    unchanged(case, &before)?;
    case.clear_commit_areas()?;
    let intent = it.staged(false)?;
    must("commit", strategy.commit(&intent, &Unobserved))?;
    equal("the original", &sorted(case)?, &wanted)
}

fn commit(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let (before, wanted) = (sorted(case)?, expected(case)?);
    let promises = strategy.capabilities();
    let it = Subject::worked_in(strategy, case)?;
    let intent = it.staged(false)?;
    kill();
    ignore(strategy.commit(&intent, &Unobserved));
    if !promises.prepares && !promises.undoes {
        return match must("outcome", strategy.outcome(&intent))? {
            Outcome::Done => equal("what is said to be done", &sorted(case)?, &wanted),
            Outcome::NotDone => equal("what is said not to be done", &sorted(case)?, &before),
            // A person finds out.
            Outcome::Unknown => Ok(()),
        };
    }
    must("commit again", strategy.commit(&intent, &Unobserved))?;
    equal("the original", &sorted(case)?, &wanted)?;
    if promises.undoes {
        must("undo", strategy.undo(&intent, &Unobserved))?;
        equal("the original", &sorted(case)?, &before)?;
    }
    Ok(())
}

fn undo(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let before = sorted(case)?;
    let it = Subject::worked_in(strategy, case)?;
    let intent = it.staged(false)?;
    must("commit", strategy.commit(&intent, &Unobserved))?;
    kill();
    ignore(strategy.undo(&intent, &Unobserved));
    must("undo again", strategy.undo(&intent, &Unobserved))?;
    equal("the original", &sorted(case)?, &before)
}

fn rollback(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    if !strategy.capabilities().isolates {
        return Ok(());
    }
    let before = case.fingerprint()?;
    let it = Subject::worked_in(strategy, case)?;
    kill();
    ignore(it.rollback());
    unchanged(case, &before)?;
    must("rollback again", it.rollback())?;
    it.no_changes()
}

fn checkpoint(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let it = Subject::worked_in(strategy, case)?;
    let before = it.changes()?;
    kill();
    ignore(it.open()?.checkpoint(None, &Unobserved));
    equal("changes", &it.changes()?, &before)
}

fn restore(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    if strategy.capabilities().checkpoints == super::super::Checkpoints::None {
        return Ok(());
    }
    let it = Subject::made(strategy, case)?;
    let known = case.known().0;
    let keep = || must("checkpoint", it.open()?.checkpoint(None, &Unobserved));
    it.put(&known, b"first")?;
    let first = keep()?;
    it.put(&known, b"second")?;
    let second = keep()?;
    let area = case.commit_area()?;
    let request = RestoreRequest {
        from: &second,
        to: &first,
        area: area.as_deref(),
        observer: &Unobserved,
    };
    let intent = must("prepare a restore", it.open()?.prepare_restore(&request))?;
    kill();
    ignore(strategy.commit(&intent, &Unobserved));
    must("restore again", strategy.commit(&intent, &Unobserved))?;
    it.holds(&known, b"first")
}

fn cleanup(strategy: &dyn Strategy, case: &dyn Case, kill: &dyn Fn()) -> CheckOutcome {
    let it = Subject::worked_in(strategy, case)?;
    let before = case.fingerprint()?;
    kill();
    ignore(strategy.cleanup(&it.sandbox, &case.target(), None));
    must(
        "cleanup again",
        strategy.cleanup(&it.sandbox, &case.target(), None),
    )?;
    unchanged(case, &before)
}
