//! Selects the leftovers to delete: by age, by undo retention, or by total size.

use std::time::Duration;

use jiff::Timestamp;

use super::find::GarbageCandidate;
use super::{GarbageRequest, LeftoverKind};
use crate::agents::home;
use crate::manager::caches;

/// How long ago something ended. What seems to end in the future did so just now.
pub(super) fn age(ended: Timestamp, now: Timestamp) -> Duration {
    let seconds = now.as_second().saturating_sub(ended.as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Says of each whether it goes. What belongs to nothing always does; all else only before its time
/// where a size is to be kept to, and then the oldest first. `undo` says how long a commit can be undone.
pub(super) fn choose(
    things: &[GarbageCandidate],
    undo: impl Fn(&GarbageCandidate) -> Duration,
    request: &GarbageRequest,
    now: Timestamp,
) -> Vec<bool> {
    // Nothing ended there: sessions of an agent stay while it is used, whatever room is wanted.
    let abandoned = |one: &GarbageCandidate| {
        one.kind == LeftoverKind::AgentHome && age(one.ended, now) >= home::KEPT
    };
    let is_home = |one: &GarbageCandidate| one.kind == LeftoverKind::AgentHome;
    let limit = request.older_than.unwrap_or_default();
    let old = |one: &GarbageCandidate| age(one.ended, now) >= limit;
    let is_undo = |one: &GarbageCandidate| one.kind == LeftoverKind::Undo;
    let loose =
        |one: &GarbageCandidate| matches!(one.kind, LeftoverKind::Orphan | LeftoverKind::Lock);
    let Some(most) = request.max_size else {
        // Who asks for everything that ended gives up what could be undone, too.
        let all = request.older_than == Some(Duration::ZERO);
        let expired = |one: &GarbageCandidate| {
            let keep = match one.kind {
                LeftoverKind::Undo => undo(one),
                LeftoverKind::Cache => caches::KEPT,
                _ => Duration::ZERO,
            };
            all || age(one.ended, now) >= keep
        };
        let goes = |one: &GarbageCandidate| match is_home(one) {
            true => old(one) && abandoned(one),
            false => old(one) && (loose(one) || expired(one)),
        };
        return things.iter().map(goes).collect();
    };
    let goes = |one: &GarbageCandidate| old(one) && (loose(one) || abandoned(one));
    let mut goes: Vec<bool> = things.iter().map(goes).collect();
    let ended = |one: &GarbageCandidate| !loose(one) && !is_home(one);
    let mut order: Vec<usize> = (0..things.len()).filter(|n| ended(&things[*n])).collect();
    order.sort_by_key(|n| (things[*n].ended, is_undo(&things[*n])));
    let mut total: u64 = order.iter().map(|n| things[*n].bytes()).sum();
    for n in order {
        // Nothing is to stay: that holds for what is empty already, too.
        if (total > most || most == 0) && old(&things[n]) {
            goes[n] = true;
            total -= things[n].bytes();
        }
    }
    goes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::Location;

    const HOUR: i64 = 3600;

    fn thing(kind: LeftoverKind, hours_ago: i64, bytes: u64) -> GarbageCandidate {
        let now = now().as_second();
        GarbageCandidate {
            kind,
            plan: None,
            ended: Timestamp::from_second(now - hours_ago * HOUR).expect("a time"),
            parts: vec![(Location::from("x"), bytes)],
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("a time")
    }

    fn goes(
        things: &[GarbageCandidate],
        older_than: Option<u64>,
        max_size: Option<u64>,
    ) -> Vec<bool> {
        let request = GarbageRequest {
            older_than: older_than.map(|hours| Duration::from_secs(hours * 3600)),
            max_size,
            dry_run: true,
        };
        choose(things, |_| Duration::from_secs(48 * 3600), &request, now())
    }

    #[test]
    fn undo_data_goes_when_its_time_is_over_and_the_rest_at_once() {
        use LeftoverKind::*;
        let things = [
            thing(Workspace, 1, 5),
            thing(Undo, 47, 5),
            thing(Undo, 48, 5),
            thing(Scratch, 0, 5),
            thing(Orphan, 0, 5),
            thing(Lock, 0, 0),
            thing(Undo, -5, 5),
        ];
        let all = [true, false, true, true, true, true, false];
        assert_eq!(goes(&things, None, None), all);
        let old = [false, false, true, false, false, false, false];
        assert_eq!(goes(&things, Some(24), None), old);
        let older = [false; 7];
        assert_eq!(goes(&things, Some(49), None), older);
        assert_eq!(goes(&things, Some(0), None), [true; 7]);
    }

    #[test]
    fn sessions_of_an_agent_go_when_it_was_not_used_for_long() {
        use LeftoverKind::*;
        let days = |days: i64| thing(AgentHome, days * 24, 50);
        let things = [days(89), days(91), thing(Cache, 1, 5)];
        assert_eq!(goes(&things, None, None), [false, true, false]);
        assert_eq!(goes(&things, Some(0), None), [false, true, true]);
        assert_eq!(goes(&things, None, Some(0)), [false, true, true]);
    }

    #[test]
    fn a_size_is_kept_to_by_the_oldest_first() {
        use LeftoverKind::*;
        let things = [
            thing(Undo, 3, 10),
            thing(Workspace, 3, 20),
            thing(Undo, 9, 40),
            thing(Orphan, 1, 500),
        ];
        assert_eq!(goes(&things, None, Some(70)), [false, false, false, true]);
        assert_eq!(goes(&things, None, Some(69)), [false, false, true, true]);
        assert_eq!(goes(&things, None, Some(29)), [false, true, true, true]);
        assert_eq!(goes(&things, None, Some(0)), [true, true, true, true]);
        assert_eq!(goes(&things, Some(5), Some(0)), [false, false, true, false]);
    }
}
