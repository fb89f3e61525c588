//! Members that cannot take a commit back, failed and killed at every step.
//!
//! Every commit and every recovery is a process of its own, so that a kill is one, and a bug can be switched on. After
//! each fault:
//!
//! - nothing is undone where something that cannot be taken back is done;
//! - recovery brings all to one side, and asks a person only where the strategy cannot know;
//! - nothing irreversible is done twice.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use Kind::{Blind, Final, FinalBlind, Irreversible, Undoable};
use escrow::commit::Settled;
use escrow::error::{Error, Kind as Failure, chain};
use escrow::event::Unobserved;
use escrow::manager::Manager;
use escrow::strategy::Outcome;

use crate::commit_faulty::{Batch, How, Kind, Script, Verb, held, open, outcome_of, sent};
use crate::door::REQUEST;
use crate::sweep;
use crate::*;

const PLAN: &str = "plan";
const HOME: &str = "ESCROW_FORWARD_HOME";
const DO: &str = "ESCROW_FORWARD_DO";

/// One fault of one member.
#[derive(Clone, Copy)]
struct Point {
    kinds: [Kind; 3],
    member: usize,
    verb: Verb,
    how: How,
    kills: bool,
    bug: Option<&'static str>,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kinds, kind) = (self.kinds, self.kinds[self.member]);
        let fault = if self.kills { "killed" } else { "fails" };
        write!(
            f,
            "{kinds:?}: {kind:?} {fault}, {:?} {:?}",
            self.verb, self.how
        )
    }
}

/// What a process that was started said: its status, and whose outcome it asks for.
struct Said {
    status: Option<i32>,
    asks: Vec<String>,
    text: String,
}

impl Point {
    fn start(&self, home: &Path, what: &str) -> Said {
        let exe = std::env::current_exe().expect("a test knows itself");
        let output = Command::new(exe)
            .args(["--exact", "forward::does_as_told", "--nocapture"])
            .env(HOME, home)
            .env(DO, what)
            .env("ESCROW_SEEDED_BUG", self.bug.unwrap_or_default())
            .output()
            .expect("the test starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let asks = text.lines().filter_map(|line| line.strip_prefix("asks "));
        Said {
            status: output.status.code(),
            asks: asks.map(str::to_owned).collect(),
            text,
        }
    }

    fn check(&self) -> Result<(), String> {
        let world = World::new();
        let batch = Batch::new(&world, PLAN, &self.kinds, &[]);
        let home = batch.manager.home().to_owned();
        let originals: Vec<PathBuf> = batch
            .parts
            .iter()
            .map(|part| part.original.clone())
            .collect();
        let name = |number: usize| format!("{PLAN}-m{number}");
        drop(batch);
        let truth = |number: usize| outcome_of(&originals[number]);
        let sides = || [0, 1, 2].map(truth);
        let never_mixed = |when: &str| {
            let of =
                |undoable: bool| (0..3).filter(move |one| self.kinds[*one].undoes() == undoable);
            let done = of(false).any(|one| truth(one) != Outcome::NotDone);
            for (one, original) in originals.iter().enumerate() {
                let lines = fs::read(sent(original)).map_or(0, |text| text.len());
                if lines > 1 {
                    return Err(format!(
                        "{when}: member {one} was carried out {lines} times"
                    ));
                }
            }
            match done && of(true).any(|one| truth(one) != Outcome::Done) {
                true => Err(format!("{when}: mixed: {:?}", sides())),
                false => Ok(()),
            }
        };
        let end = if self.kills { "kill" } else { "fail" };
        let fault = format!(
            "commit {} {:?} {:?} {end}",
            name(self.member),
            self.verb,
            self.how
        );
        let mut said = self.start(&home, &fault);
        never_mixed(&format!("after the fault [{}]", said.text))?;
        // Whatever happened, `recover` goes on, and a person is asked at most once for each.
        let mut settled = String::new();
        for _ in 0..4 {
            said = self.start(&home, &format!("recover{settled}"));
            never_mixed(&format!("after `recover{settled}` [{}]", said.text))?;
            if said.status == Some(0) {
                break;
            }
            settled.clear();
            for number in (0..3).filter(|one| said.asks.contains(&name(*one))) {
                if !matches!(self.kinds[number], Blind | FinalBlind)
                    && truth(number) != Outcome::Unknown
                {
                    return Err(format!(
                        "a person is asked what the strategy knows: {number}"
                    ));
                }
                // Half of a step that was not prepared: the person finishes it, and says so.
                if self.kinds[number] == Blind && truth(number) == Outcome::Unknown {
                    let changed = originals[number].join("changed");
                    fs::write(changed, "new text").expect("it can be written");
                }
                let word = match truth(number) {
                    Outcome::Done => "done",
                    _ => "not_done",
                };
                settled.push_str(&format!(" {}={word}", name(number)));
            }
        }
        if said.status != Some(0) {
            return Err(format!("it is never recovered: {}", said.text));
        }
        if sides() == [Outcome::NotDone; 3] {
            said = self.start(&home, "commit");
            if said.status != Some(0) {
                return Err(format!("the commit cannot be tried again: {}", said.text));
            }
        }
        match sides() == [Outcome::Done; 3] {
            true => never_mixed("in the end"),
            false => Err(format!("neither old nor new: {:?}", sides())),
        }
    }
}

impl Trial for Point {
    fn plan(&self) -> String {
        format!("{:?}", self.kinds)
    }

    fn run(&self) -> Verdict {
        let wrong = self.check().err();
        Verdict {
            hit: Some(Step::named("step")),
            wrong: wrong
                .into_iter()
                .map(|what| format!("{self}: {what}"))
                .collect(),
        }
    }
}

/// Every order of three members, every step of each, failed and killed before, in the middle of and after it.
fn every(mixes: &[[Kind; 3]], bug: Option<&'static str>) -> Vec<Point> {
    let mut all = Vec::new();
    for [a, b, c] in mixes.iter().copied() {
        for kinds in [
            [a, b, c],
            [c, a, b],
            [b, c, a],
            [a, c, b],
            [c, b, a],
            [b, a, c],
        ] {
            for member in 0..3 {
                let steps = |verb, hows: &[How]| {
                    hows.iter().map(move |how| (verb, *how)).collect::<Vec<_>>()
                };
                let mut faults = steps(Verb::Commit, &[How::Before, How::Half, How::After]);
                if kinds[member].prepares() {
                    faults.extend(steps(Verb::Prepare, &[How::Half, How::After]));
                    faults.extend(steps(Verb::Finish, &[How::Before, How::After]));
                }
                for (verb, how) in faults {
                    all.extend([true, false].map(|kills| Point {
                        kinds,
                        member,
                        verb,
                        how,
                        kills,
                        bug,
                    }));
                }
            }
        }
    }
    all
}

const MIXES: [[Kind; 3]; 4] = [
    [Undoable, Irreversible, Final],
    [Undoable, Blind, FinalBlind],
    [Undoable, Blind, Final],
    [Undoable, Final, FinalBlind],
];

/// The sweep.
pub(crate) fn steps(form: Form) -> Figures {
    form.run(every(&MIXES, None), 30)
}

/// Whether a seeded bug shows.
pub(crate) fn finds(bug: &'static str) -> Option<(String, usize)> {
    sweep::first_wrong(&sweep::spread(every(&MIXES[..2], Some(bug))))
}

// rule C1, C3, C8, C18, C19
#[test]
fn members_that_cannot_take_a_commit_back_are_never_mixed() {
    steps(Form::Bounded).settle("steps that cannot be taken back", 30);
}

fn parsed(words: &[&str]) -> Option<(String, Verb, How, bool)> {
    let [name, verb, how, end] = words else {
        return None;
    };
    let verb = match *verb {
        "Prepare" => Verb::Prepare,
        "Finish" => Verb::Finish,
        _ => Verb::Commit,
    };
    let how = match *how {
        "Before" => How::Before,
        "Half" => How::Half,
        _ => How::After,
    };
    Some(((*name).to_owned(), verb, how, *end == "kill"))
}

fn tells(manager: &Manager, words: &[&str]) -> Result<(), Error> {
    if words[0] == "commit" {
        let place = manager.plans()?.remove(0).plan;
        return manager.commit(&place, &REQUEST, &Unobserved).map(drop);
    }
    let mut settled = Settled::new();
    for (name, word) in words[1..].iter().filter_map(|word| word.split_once('=')) {
        let outcome = match word {
            "done" => Outcome::Done,
            _ => Outcome::NotDone,
        };
        settled.insert(name.to_owned(), outcome);
    }
    for (_, answer) in manager.recover_settled(&settled)? {
        answer?;
    }
    Ok(())
}

/// Started as a process of its own: `commit [RESOURCE VERB HOW kill|fail]`, or `recover [RESOURCE=OUTCOME]…`.
#[test]
#[expect(clippy::exit, reason = "its status is what it says")]
fn does_as_told() {
    let (Ok(home), Ok(told)) = (std::env::var(HOME), std::env::var(DO)) else {
        return;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let script = Arc::new(Script::default());
    let manager = open(Path::new(&home), &script);
    let fault = parsed(&words[1..]);
    for resource in manager.resources().expect("they can be listed") {
        if let Some((_, verb, how, kills)) = fault.as_ref().filter(|one| one.0 == resource.name) {
            held(&script.faults).push((resource.id, *verb, *how));
            script.kills.store(*kills, Ordering::SeqCst);
        }
        let at = resource.at.as_path().to_owned();
        held(&script.originals).insert(resource.id, at);
    }
    let status = match tells(&manager, &words) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}", chain(&error));
            if let Error::Forward { unknown, .. } = &error {
                for (name, ..) in unknown {
                    eprintln!("asks {name}");
                }
            }
            if error.kind() == Failure::RecoveryNeeded {
                5
            } else {
                1
            }
        }
    };
    std::process::exit(status);
}
