//! Hundreds of checkpoints of an overlay: its layers stay few, and what is kept is exact.

use std::collections::VecDeque;
use std::io::Read;

use escrow::event::Unobserved;
use escrow::model::SandboxRef;
use escrow::strategy::{Registry, RestoreRequest, Sandbox, Session, Snapshot, Strategy};
use escrow_testkit::World;

use crate::support::{Sandboxed, at};

const KEEP: usize = 20;
const ROUNDS: usize = 250;

fn open(overlay: &dyn Strategy, reference: &SandboxRef) -> Box<dyn Sandbox> {
    let session = overlay.open(reference, Session::Exclusive, &[]);
    session.expect("it can be opened")
}

fn text(session: &dyn Sandbox, path: &str) -> String {
    let mut text = String::new();
    let file = session.read(&at(path));
    file.unwrap_or_else(|error| panic!("{path}: {error}"))
        .read_to_string(&mut text)
        .expect("it is text");
    text
}

/// Releases every other snapshot; these as they are from then on.
fn retain(overlay: &dyn Strategy, reference: &SandboxRef, kept: &[Snapshot]) -> Vec<Snapshot> {
    let retain = |kept: &[Snapshot]| {
        open(overlay, reference)
            .retain(kept)
            .expect("the others go")
    };
    let renewed = retain(kept);
    match renewed == kept {
        true => renewed,
        // A caller that is killed before it has stored them calls with the old ones again.
        false => {
            assert_eq!(retain(kept), renewed);
            retain(&renewed)
        }
    }
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
    let read = |path: &str| text(&*session(), path);
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
        let snapshot = session().checkpoint(last.as_ref(), &Unobserved);
        kept.push_back((round, snapshot.expect("there is always room for another")));
        if kept.len() > KEEP {
            kept.pop_front();
        }
        let snapshots: Vec<Snapshot> = kept.iter().map(|(_, one)| one.clone()).collect();
        let renewed = retain(overlay, &reference, &snapshots);
        for ((_, old), new) in kept.iter_mut().zip(renewed) {
            *old = new;
        }
        most = most.max(layers());
    }
    assert!((KEEP..KEEP + 20).contains(&most), "{most} layers at most");
    let now = std::fs::read(area.join("now")).expect("it is there");
    assert!(now.len() < 2_000, "{} bytes say which layers", now.len());
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
fn a_checkpoint_taken_twice_is_not_squashed_into_what_came_after() {
    let world = World::new();
    let original = world.dir("original");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = &**registry.get("overlay").expect("it is built in");
    let session = || open(overlay, &reference);
    let take = |text: &str| {
        if !text.is_empty() {
            session()
                .write(&at("file"), &mut text.as_bytes())
                .expect("it can be written");
        }
        let snapshot = session().checkpoint(None, &Unobserved);
        snapshot.expect("it can be kept")
    };
    let first = take("first");
    for round in 0..20 {
        take(&format!("{round}"));
    }
    take("then");
    let then = take("");
    for round in 0..20 {
        take(&format!("{round}"));
    }
    let last = take("last");
    let kept = retain(overlay, &reference, &[first, then, last]);
    let layers = std::fs::read_dir(area.join("layers")).expect("it has some");
    assert_eq!(layers.count(), 4, "one for each, and the one in use");
    go(overlay, &reference, &kept[2], &kept[1]);
    assert_eq!(text(&*session(), "file"), "then");
    go(overlay, &reference, &kept[2], &kept[0]);
    assert_eq!(text(&*session(), "file"), "first");
}

/// More checkpoints are kept than a kernel mounts layers.
// rule R2, R5
#[test]
fn any_number_of_checkpoints_can_be_kept() {
    const MANY: usize = 410;
    let world = World::new();
    let original = world.dir("original");
    std::fs::write(original.join("gone"), "").expect("there is room");
    let sandbox = Sandboxed::new(&world.home(), &original, "overlay");
    let (reference, area) = (sandbox.sandbox().reference, sandbox.area());
    let registry = Registry::builtin();
    let overlay = &**registry.get("overlay").expect("it is built in");
    let session = || open(overlay, &reference);
    let top = || {
        let now = std::fs::read(area.join("now")).expect("it is there");
        let now: serde_json::Value = serde_json::from_slice(&now).expect("it is JSON");
        let layers = now["layers"].as_array().expect("a list").clone();
        (
            layers.len(),
            area.join("layers").join(layers[0]["number"].to_string()),
        )
    };
    let mut kept = Vec::new();
    for round in 0..MANY {
        let written = session().write(&at("file"), &mut round.to_string().as_bytes());
        written.expect("it can be written");
        match round {
            3 => {
                let (one, two) = (top().1.join("file"), top().1.join("another-name"));
                std::fs::hard_link(one, two).expect("one file, two names");
            }
            5 => {
                let status = std::process::Command::new("mknod")
                    .arg(top().1.join("gone"))
                    .args(["c", "0", "0"])
                    .status();
                assert!(status.expect("it is there").success(), "a whiteout");
            }
            _ => {}
        }
        let snapshot = session().checkpoint(None, &Unobserved);
        kept.push(snapshot.expect("there is always room for another"));
        assert!(top().0 <= 401, "{} layers", top().0);
    }
    assert!(top().0 < 20, "{} layers", top().0);
    let kept = retain(overlay, &reference, &kept);
    for to in [3, 398, 399, 400, MANY - 1] {
        go(overlay, &reference, &kept[MANY - 1], &kept[to]);
        assert_eq!(text(&*session(), "file"), to.to_string());
        assert_eq!(text(&*session(), "another-name"), "3");
        let diff = session().diff(None, None).expect("compared");
        let gone = diff.changes.iter().any(|change| change.path == at("gone"));
        assert_eq!(gone, to >= 5, "what was deleted stays so");
        let links = diff.changes.iter().filter(|one| one.path != at("gone"));
        assert_eq!(links.count(), 2, "at {to}");
    }
}
