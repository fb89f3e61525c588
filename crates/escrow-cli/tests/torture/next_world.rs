//! The world of the two-step sweeps: a plan with two rounds of changes and a checkpoint between them, the commands that
//! are run on it, and what its originals hold afterwards.
//!
//! Guarantees: what the originals hold is found out by the checker's own means. Every command is run as a user runs it.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use escrow_testkit::signature::Kind as Entry;

use crate::checkpoints_world::{FIRST, Inside};
use crate::life::{Content, PlanVerb};
use crate::*;
use crate::{later, scenario};

/// The plan that `plan create` and `plan fork` make when they are interrupted.
pub(crate) const OTHER: &str = "other";
/// The fork that is made as the next verb.
pub(crate) const FORKED: &str = "forked";
/// Files that are added beside the two rounds: by `write`, and by a command that is run.
pub(crate) const WRITTEN: &str = "written.txt";
pub(crate) const RAN: &str = "ran.txt";
const EXTRAS: [&str; 2] = [WRITTEN, RAN];
/// A resource beside the originals, for `sandbox create`.
pub(crate) const BESIDE: &str = "beside";

/// A world in which a verb is about to be run.
pub(crate) struct NextWorld<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) scenario: Scenario,
}

impl<'a> NextWorld<'a> {
    pub(crate) fn new(subject: &'a Subject, scenario: Scenario) -> Self {
        Self { subject, scenario }
    }

    fn top(&self) -> &Path {
        let place = self.subject.place.parent();
        place.expect("originals lie in a world")
    }

    /// The extra resource, which lies beside the originals' directory.
    pub(crate) fn beside(&self) -> PathBuf {
        self.top().join(BESIDE)
    }

    /// Makes both rounds of changes, and what the interrupted verb needs.
    pub(crate) fn lead_up(&self, first: PlanVerb) -> Result<(), String> {
        let inside = Inside::new(self.subject, self.scenario);
        inside.lead_up()?;
        match first {
            PlanVerb::Create => inside.cleanup(PLAN),
            PlanVerb::Gc => inside.litter(),
            PlanVerb::Sandbox => {
                let beside = self.beside();
                fs::create_dir(&beside)
                    .and_then(|()| fs::write(beside.join("base.txt"), "beside\n"))
                    .map_err(|error| error.to_string())
            }
            PlanVerb::Undo => self.must(&["commit", PLAN, "--yes"]),
            _ => Ok(()),
        }
    }

    /// The words of a verb about a plan. A fork is called `fork`.
    fn words(&self, verb: PlanVerb, plan: &str, fork: &str) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match verb {
            PlanVerb::Create => {
                let strategy = self.scenario.members[0].strategy();
                let mut line: Vec<String> =
                    words(&["plan", "create", OTHER, "--strategy", strategy]);
                for member in &self.subject.members {
                    line.extend(["-r".to_owned(), member.original.display().to_string()]);
                }
                line
            }
            PlanVerb::Sandbox => {
                let beside = self.beside();
                let strategy = self.scenario.members[0].strategy();
                let place = beside.display().to_string();
                words(&["sandbox", "create", plan, &place, "--strategy", strategy])
            }
            PlanVerb::Write => words(&["write", plan, LABELS[0], WRITTEN]),
            PlanVerb::Run => {
                let mut line: Vec<String> =
                    words(&["-q", "run", "--no-scratch", "--plan", plan, "--"]);
                line.extend(words(&["sh", "-ec", RUN, "-"]));
                let members = self.subject.members.iter();
                line.extend(members.map(|member| member.original.display().to_string()));
                line
            }
            PlanVerb::Checkpoint => words(&["checkpoint", "create", plan, "-m", "next"]),
            PlanVerb::Restore => words(&["restore", plan, FIRST]),
            PlanVerb::Fork => words(&["plan", "fork", plan, fork]),
            PlanVerb::Gc => words(&["gc"]),
            PlanVerb::Recover => words(&["recover"]),
            PlanVerb::Commit | PlanVerb::Undo | PlanVerb::Rollback | PlanVerb::Cleanup => {
                words(&[verb.name(), plan, "--yes"])
            }
        }
    }

    /// The verb that is interrupted.
    pub(crate) fn stepper(&self, verb: PlanVerb) -> Stepper {
        let cli = self.subject.cli.clone().stdin(written(LABELS[0]));
        cli.stepper(self.words(verb, PLAN, OTHER))
    }

    /// Runs a verb to its end.
    pub(crate) fn run(&self, verb: PlanVerb, plan: &str) -> Outcome {
        self.subject.cli.run(self.words(verb, plan, FORKED))
    }

    /// Runs what must succeed.
    pub(crate) fn must(&self, words: &[&str]) -> Result<(), String> {
        let outcome = self.subject.cli.run(words);
        match outcome.status {
            0 => Ok(()),
            _ => Err(format!("`{}` {}", words.join(" "), said(&outcome))),
        }
    }

    /// How many plans `recover` had to finish.
    pub(crate) fn recover(&self) -> Result<usize, String> {
        let outcome = self.subject.cli.run(["--json", "recover"]);
        if outcome.status != 0 {
            return Err(format!("recover {}", said(&outcome)));
        }
        let found = json(&outcome)?;
        let plans = found["recovered"].as_array();
        Ok(plans.ok_or("recover gave no list")?.len())
    }

    /// Writes one file into every sandbox of a plan: true when all of them could be written, false when none could.
    pub(crate) fn write_all(&self, plan: &str) -> Result<bool, String> {
        let mut outcomes = Vec::new();
        for label in LABELS.iter().take(self.subject.members.len()) {
            let cli = self.subject.cli.clone().stdin(written(label));
            outcomes.push(cli.run(["write", plan, *label, WRITTEN]));
        }
        let good = outcomes.iter().filter(|one| one.status == 0).count();
        match good {
            0 => Ok(false),
            all if all == outcomes.len() => Ok(true),
            _ => {
                let told: Vec<String> = outcomes.iter().map(said).collect();
                Err(format!("{plan} is usable in part: {}", told.join("; ")))
            }
        }
    }

    /// What the originals hold; all of them must hold the same.
    pub(crate) fn originals(&self) -> Result<Content, String> {
        let ignore = Ignore {
            hole_map: true,
            ..Ignore::default()
        };
        let mut found = Vec::new();
        for (member, label) in self.subject.members.iter().zip(LABELS) {
            let contents = contents(self.scenario.size, label, member.kind);
            let now = without_extras(signature(&member.original));
            let mut differing = Vec::new();
            let mut same = None;
            for (content, wanted) in contents.iter() {
                let differs = differences(wanted, &now, &ignore);
                match differs.is_empty() {
                    true => same = Some(*content),
                    false => differing.push(format!("not {content:?}: {}", differs.join(", "))),
                }
            }
            let kind = member.kind.short();
            let same =
                same.ok_or_else(|| format!("TORN: {label} ({kind}): {}", differing.join("; ")))?;
            found.push(same);
        }
        match found.iter().all(|one| *one == found[0]) {
            true => Ok(found[0]),
            false => Err(format!("TORN: the originals hold {found:?}")),
        }
    }

    /// The added files in the originals, each as `A/written.txt`. A file must hold all of what was written.
    pub(crate) fn extras(&self, whole: bool) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for (member, label) in self.subject.members.iter().zip(LABELS) {
            for name in EXTRAS {
                let path = member.original.join(name);
                let Ok(text) = fs::read_to_string(&path) else {
                    continue;
                };
                if whole && text != written(label) {
                    return Err(format!("{label}/{name} holds {text:?}"));
                }
                found.push(format!("{label}/{name}"));
            }
        }
        Ok(found)
    }

    /// Removes every plan and what is left of it; then nothing may be there.
    pub(crate) fn clean_all(&self) -> Result<(), String> {
        for name in self.plans()? {
            self.must(&["cleanup", &name, "--yes"])?;
        }
        self.must(&["gc"])?;
        nothing_left(self.subject)
    }

    /// The ids of the plans that are not cleaned up.
    fn plans(&self) -> Result<Vec<String>, String> {
        let outcome = self.subject.cli.run(["--json", "plan", "list"]);
        if outcome.status != 0 {
            return Err(format!("plan list {}", said(&outcome)));
        }
        let found = json(&outcome)?;
        let plans = found["plans"].as_array().ok_or("there is no list")?;
        let left = plans.iter().filter(|plan| plan["state"] != "cleaned_up");
        Ok(left
            .filter_map(|plan| plan["id"].as_str().map(str::to_owned))
            .collect())
    }

    /// What a command printed that was run in every sandbox: which round it saw.
    pub(crate) fn seen(&self, outcome: &Outcome) -> Result<Content, String> {
        let text = outcome.stdout_text();
        let members = self.subject.members.len();
        for content in [Content::Base, Content::First, Content::Second] {
            let labels = LABELS.iter().take(members);
            let wanted: String = labels.map(|label| modified(content, label)).collect();
            if text == wanted {
                return Ok(content);
            }
        }
        Err(format!("TORN: a command inside saw {text:?}"))
    }
}

/// Shows what every sandbox holds, and adds a file to each. The name of a member is the last part of its path.
const RUN: &str = r#"for root; do cat "$root/modify.txt"; done
for root; do echo "added to ${root##*/} by hand" > "$root/ran.txt"; done"#;

/// What is added.
fn written(label: &str) -> String {
    format!("added to {label} by hand\n")
}

/// What `modify.txt` holds.
fn modified(content: Content, label: &str) -> String {
    match content {
        Content::Base => format!("old content of {label}\n"),
        Content::First => format!("new and longer content of {label}\n"),
        Content::Second => format!("a third content of {label}\n"),
    }
}

/// How a command ended, for a message.
pub(crate) fn said(outcome: &Outcome) -> String {
    format!(
        "ended with {}: {}{}",
        outcome.status,
        outcome.stdout_text(),
        outcome.stderr_text()
    )
}

fn json(outcome: &Outcome) -> Result<Value, String> {
    let text = outcome.stdout_text();
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}

/// A tree without the added files, and without the times of directories: an added file moves them, and a directory in
/// which the second round took back what the first had done is not released for its time alone.
fn without_extras(mut sig: Sig) -> Sig {
    sig.retain(|path, _| !EXTRAS.iter().any(|name| path == name.as_bytes()));
    for entry in sig.values_mut().filter(|entry| entry.kind == Entry::Dir) {
        entry.mtime = Default::default();
    }
    sig
}

type Contents = Vec<(Content, Sig)>;

/// What one original may hold, made by the same edits in a plain directory.
fn contents(size: Size, label: &str, kind: Kind) -> Arc<Contents> {
    type Known = HashMap<(Size, String, bool), Arc<Contents>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (size, label.to_owned(), kind == Kind::Overlay);
    let contents = known.entry(key).or_insert_with(|| {
        let world = World::new();
        let root = world.dir("plain");
        let mut contents = Vec::new();
        scenario::build(&root, size, label);
        contents.push((Content::Base, without_extras(signature(&root))));
        scenario::edit(&root, size, label, Where::Outcome(kind)).expect("edits in a directory");
        contents.push((Content::First, without_extras(signature(&root))));
        later::edit(&root, size, label).expect("edits in a directory");
        contents.push((Content::Second, without_extras(signature(&root))));
        Arc::new(contents)
    });
    Arc::clone(contents)
}
