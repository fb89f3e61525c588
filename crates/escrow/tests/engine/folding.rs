//! Hundreds of checkpoints of an overlay, of which the newest are kept: its layers stay few, and what is kept is exact.

use std::collections::VecDeque;
use std::io::Read;

use escrow::event::Unobserved;
use escrow::model::SandboxRef;
use escrow::strategy::{
    Purpose, Registry, RestoreRequest, Result, Sandbox, Session, Snapshot, Strategy,
};
use escrow_testkit::World;

use crate::support::{Sandboxed, at};

const KEEP: usize = 20;
const ROUNDS: usize = 250;

fn open(overlay: &dyn Strategy, reference: &SandboxRef) -> Box<dyn Sandbox> {
    let session = overlay.open(reference, Session::Exclusive);
    session.expect("it can be opened")
}

/// Goes from one snapshot to another.
fn go(overlay: &dyn Strategy, reference: &SandboxRef, from: &Snapshot, to: &Snapshot) {
    let request = RestoreRequest {
        from,
        to,
        area: None,
        observer: &Unobserved,
    };
    let way = open(overlay, reference).prepare_restore(&request);
    let way = way.expect("it can be gone back to");
    overlay.commit(&way, &Unobserved).expect("it is staged");
}

// rule R1, R5
#[test]
fn hundreds_of_checkpoints_leave_few_layers() {
    let world = World::new();
    let original = world.dir("original");
    std::fs::write(original.join("last"), "original").expect("there is room");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = &**registry.get("overlay").expect("it is built in");
    let session = || open(overlay, &reference);
    let read = |path: &str| {
        let mut text = String::new();
        let file = session().read(&at(path));
        file.unwrap_or_else(|error| panic!("{path}: {error}"))
            .read_to_string(&mut text)
            .expect("it is text");
        text
    };
    let layers = || {
        let layers = std::fs::read_dir(area.join("layers"));
        layers.expect("an overlay has layers").count()
    };
    let (mut kept, mut most): (VecDeque<(usize, Snapshot)>, usize) = (VecDeque::new(), 0);
    for round in 1..=ROUNDS {
        for (path, text) in [
            (format!("by-ten/{}/file", round % 10), round.to_string()),
            (format!("d{}/only-{round}", round % 7), round.to_string()),
            ("last".to_owned(), round.to_string()),
        ] {
            session()
                .write(&at(&path), &mut text.as_bytes())
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let last = kept.back().map(|(_, snapshot)| snapshot.clone());
        let snapshot = session().checkpoint(last.as_ref(), Purpose::Return, &Unobserved);
        kept.push_back((round, snapshot.expect("there is always room for another")));
        if kept.len() > KEEP {
            kept.pop_front();
        }
        let moments: Vec<Snapshot> = kept.iter().map(|(_, snapshot)| snapshot.clone()).collect();
        session().retain(&moments).expect("the others can go");
        most = most.max(layers());
    }
    assert!((KEEP..KEEP + 24).contains(&most), "{most} layers at most");
    let now = std::fs::read(area.join("now")).expect("it is there");
    assert!(now.len() < 10_000, "{} bytes say which layers", now.len());
    for round in [1, 144, ROUNDS - 1, ROUNDS] {
        let path = format!("d{}/only-{round}", round % 7);
        assert_eq!(read(&path), round.to_string());
    }
    let diff = session().diff(None, None).expect("it can be compared");
    assert_eq!(diff.changes.len(), ROUNDS + 7 + 10 + 10 + 1 + 1);
    let (round, oldest) = kept.front().expect("some are kept");
    let since = session().diff(Some(oldest), None);
    let since = since.expect("it can be compared").changes.len();
    assert_eq!(
        since,
        (ROUNDS - round) + 10 + 1,
        "since the oldest that is kept"
    );
    let newest = kept.back().expect("some are kept").1.clone();
    go(overlay, &reference, &newest, oldest);
    assert_eq!(read("last"), round.to_string());
    assert_eq!(
        session().diff(None, None).expect("compared").changes.len(),
        round + 7 + 10 + 10 + 1 + 1
    );
}

// One that is taken where nothing was done since another one, which goes, is as much a snapshot as that was.
#[test]
fn a_checkpoint_taken_twice_is_not_folded_into_what_came_after() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let reference = sandbox.sandbox().reference;
    let registry = Registry::builtin();
    let overlay = &**registry.get("overlay").expect("it is built in");
    let session = || open(overlay, &reference);
    let take = |text: &str| {
        if !text.is_empty() {
            session()
                .write(&at("file"), &mut text.as_bytes())
                .expect("it can be written");
        }
        let snapshot = session().checkpoint(None, Purpose::Return, &Unobserved);
        snapshot.expect("it can be kept")
    };
    let keep = |kept: &[Snapshot]| session().retain(kept).expect("they go");
    let mut kept: Vec<Snapshot> = (0..31).map(|round| take(&format!("{round}"))).collect();
    take("then");
    keep(&kept);
    let then = take("");
    kept.push(then.clone());
    kept.push(take("later"));
    kept.push(take("last"));
    let from = kept.last().expect("some are kept").clone();
    go(overlay, &reference, &from, &then);
    let mut text = String::new();
    session()
        .read(&at("file"))
        .expect("it is there")
        .read_to_string(&mut text)
        .expect("it is text");
    assert_eq!(text, "then");
}

/// A process that takes checkpoints, for whatever, leaves room for those with which a restore begins.
// rule R2, R5
#[test]
fn checkpoints_leave_room_for_a_restore() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = &**registry.get("overlay").expect("it is built in");
    let session = || open(overlay, &reference);
    let write = |text: &str| {
        let written = session().write(&at("file"), &mut text.as_bytes());
        written.expect("it can be written");
    };
    let take = |purpose: Purpose| -> Result<Snapshot> {
        write("something new");
        session().checkpoint(None, purpose, &Unobserved)
    };
    let layers = || {
        let now = std::fs::read(area.join("now")).expect("it is there");
        let now: serde_json::Value = serde_json::from_slice(&now).expect("it is JSON");
        now["layers"].as_array().expect("a list").len()
    };
    let mut kept = Vec::new();
    let mut limits = Vec::new();
    for purpose in [Purpose::Keep, Purpose::Begin, Purpose::Return] {
        let refused = loop {
            match take(purpose) {
                Ok(snapshot) => kept.push(snapshot),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("delete checkpoints"), "{refused}");
        limits.push(layers());
    }
    // Each purpose leaves some to the next.
    assert_eq!(limits, [400, 430, 460]);
    // What was released makes room again.
    kept.truncate(100);
    session().retain(&kept).expect("the others can go");
    take(Purpose::Keep).expect("there is room");
    assert!(layers() < 200, "{}", layers());
}
