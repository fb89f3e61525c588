//! Hundreds of checkpoints of an overlay, of which the newest are kept: its layers stay few, and what is kept is exact.

use std::collections::VecDeque;
use std::io::Read;

use escrow::event::Unobserved;
use escrow::strategy::{Moment, Occasion, Registry, Way};
use escrow_testkit::World;

use crate::support::{Sandboxed, at};

const KEEP: usize = 20;
const ROUNDS: usize = 250;

// rule R1, R5
#[test]
fn hundreds_of_checkpoints_leave_few_layers() {
    let world = World::new();
    let original = world.dir("original");
    std::fs::write(original.join("last"), "original").expect("there is room");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = registry.get("overlay").expect("it is built in");
    let read = |path: &str| {
        let mut text = String::new();
        let file = overlay.read(&reference, &at(path));
        file.unwrap_or_else(|error| panic!("{path}: {error}"))
            .read_to_string(&mut text)
            .expect("it is text");
        text
    };
    let layers = || {
        let layers = std::fs::read_dir(area.join("layers"));
        layers.expect("an overlay has layers").count()
    };
    let (mut kept, mut most): (VecDeque<(usize, Moment)>, usize) = (VecDeque::new(), 0);
    for round in 1..=ROUNDS {
        for (path, text) in [
            (format!("by-ten/{}/file", round % 10), round.to_string()),
            (format!("d{}/only-{round}", round % 7), round.to_string()),
            ("last".to_owned(), round.to_string()),
        ] {
            overlay
                .write(&reference, &at(&path), &mut text.as_bytes())
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let last = kept.back().map(|(_, moment)| moment.clone());
        let moment = overlay.checkpoint(&reference, last.as_ref(), &Unobserved);
        kept.push_back((round, moment.expect("there is always room for another")));
        if kept.len() > KEEP {
            kept.pop_front();
        }
        let moments: Vec<Moment> = kept.iter().map(|(_, moment)| moment.clone()).collect();
        overlay
            .drop_checkpoint(&reference, &moments)
            .expect("the others can go");
        most = most.max(layers());
    }
    assert!((KEEP..KEEP + 24).contains(&most), "{most} layers at most");
    let now = std::fs::read(area.join("now")).expect("it is there");
    assert!(now.len() < 10_000, "{} bytes say which layers", now.len());
    for round in [1, 144, ROUNDS - 1, ROUNDS] {
        let path = format!("d{}/only-{round}", round % 7);
        assert_eq!(read(&path), round.to_string());
    }
    let diff = overlay.diff(&reference).expect("it can be compared");
    assert_eq!(diff.changes.len(), ROUNDS + 7 + 10 + 10 + 1 + 1);
    let (round, oldest) = kept.front().expect("some are kept");
    let since = overlay.since(&reference, oldest, None);
    let since = since.expect("it can be compared").changes.len();
    assert_eq!(
        since,
        (ROUNDS - round) + 10 + 1,
        "since the oldest that is kept"
    );
    let staged = world.dir("staged");
    let (from, to) = (
        kept.back().expect("some are kept").1.clone(),
        oldest.clone(),
    );
    let way = overlay.prepare_restore(&reference, &Way { from, to }, &staged, &Unobserved);
    let way = way.expect("it can be gone back to");
    overlay
        .restore_checkpoint(&reference, &way, &Unobserved)
        .expect("it is staged");
    assert_eq!(read("last"), round.to_string());
    assert_eq!(
        overlay.diff(&reference).expect("compared").changes.len(),
        round + 7 + 10 + 10 + 1 + 1
    );
}

// One that is taken where nothing was done since another one, which goes, is as much a moment as that was.
#[test]
fn a_checkpoint_taken_twice_is_not_folded_into_what_came_after() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let reference = sandbox.sandbox().reference;
    let registry = Registry::builtin();
    let overlay = registry.get("overlay").expect("it is built in");
    let take = |text: &str| {
        if !text.is_empty() {
            overlay
                .write(&reference, &at("file"), &mut text.as_bytes())
                .expect("it can be written");
        }
        let moment = overlay.checkpoint(&reference, None, &Unobserved);
        moment.expect("it can be kept")
    };
    let keep = |kept: &[Moment]| overlay.drop_checkpoint(&reference, kept).expect("they go");
    let mut kept: Vec<Moment> = (0..31).map(|round| take(&format!("{round}"))).collect();
    take("then");
    keep(&kept);
    let then = take("");
    kept.push(then.clone());
    kept.push(take("later"));
    kept.push(take("last"));
    let area = world.dir("staged");
    let from = kept.last().expect("some are kept").clone();
    let way = Way { from, to: then };
    let way = overlay.prepare_restore(&reference, &way, &area, &Unobserved);
    overlay
        .restore_checkpoint(&reference, &way.expect("it is kept"), &Unobserved)
        .expect("it is staged");
    let mut text = String::new();
    overlay
        .read(&reference, &at("file"))
        .expect("it is there")
        .read_to_string(&mut text)
        .expect("it is text");
    assert_eq!(text, "then");
}

/// Whoever takes checkpoints, for whatever, leaves room for those with which a restore begins.
// rule R2, R5
#[test]
fn checkpoints_leave_room_for_a_restore() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = registry.get("overlay").expect("it is built in");
    let write = |text: &str| {
        let written = overlay.write(&reference, &at("file"), &mut text.as_bytes());
        written.expect("it can be written");
    };
    let take = |round: usize| {
        write(&round.to_string());
        overlay.checkpoint(&reference, None, &Unobserved)
    };
    let has_room = |occasion| overlay.has_room(&reference, occasion).is_ok();
    let layers = || {
        let now = std::fs::read(area.join("now")).expect("it is there");
        let now: serde_json::Value = serde_json::from_slice(&now).expect("it is JSON");
        now["layers"].as_array().expect("a list").len()
    };
    let mut kept = Vec::new();
    let mut limits = Vec::new();
    for round in 0..500 {
        write("something new");
        let room = [Occasion::Kept, Occasion::Begun].map(has_room);
        let taken = take(round);
        let state = (room, taken.is_ok());
        // Of each state the last is looked at.
        limits.retain(|(last, _)| *last != state);
        limits.push((state, layers() - usize::from(taken.is_ok())));
        match taken {
            Ok(moment) => kept.push(moment),
            Err(error) => {
                assert!(
                    error.to_string().contains("let go of checkpoints"),
                    "{error}"
                );
                break;
            }
        }
    }
    // The last with room for all, for a fork, for a restore only, and for none.
    let expected = [
        (([true, true], true), 399),
        (([false, true], true), 429),
        (([false, false], true), 459),
        (([false, false], false), 460),
    ];
    assert_eq!(limits, expected);
    // What was let go of makes room again.
    kept.truncate(100);
    overlay
        .drop_checkpoint(&reference, &kept)
        .expect("the others can go");
    assert!(has_room(Occasion::Kept) && layers() < 200, "{}", layers());
    take(500).expect("there is room");
}
