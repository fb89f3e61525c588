//! A world with checkpoints and forks, and what its sandboxes show.
//!
//! Promise: what a sandbox shows is what a program sees that is run inside, or, of a copy, what lies in its directory. The
//! engine's own words about it do not count.

use escrow::error::{Error, chain};
use escrow::event::Unobserved;
use escrow::internals::store::{Checkpoint, Plan};
use escrow::manager::{GarbageRequest, Manager};
use escrow::model::{CleanupPolicy, PlanState, SandboxState};

use crate::door::REQUEST;
use crate::later;
use crate::later::States;
use crate::*;

/// The checkpoint after the first round of changes.
pub(crate) const FIRST: &str = "first";
/// The plans beside the one that is worked on: one that began at the first round, one that lives on what is left of
/// another, and one that is over.
pub(crate) const CHILD: &str = "child";
pub(crate) const TENANT: &str = "tenant";
const LENDER: &str = "lender";
const SPENT: &str = "spent";
/// What belongs to nothing.
const ORPHAN: &str = "probe-torture-0";

/// Which of the two states every sandbox of a plan shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    First,
    Second,
}

/// The engine in this process, on the home of a world.
pub(crate) struct Inside<'a> {
    pub(crate) subject: &'a Subject,
    scenario: Scenario,
    manager: Manager,
}

type Answer<T> = Result<T, String>;

fn told<T>(what: &str, answer: Result<T, Error>) -> Answer<T> {
    answer.map_err(|error| format!("{what}: {}", chain(&error)))
}

impl<'a> Inside<'a> {
    pub(crate) fn new(subject: &'a Subject, scenario: Scenario) -> Self {
        Self {
            subject,
            scenario,
            manager: manager(&subject.home),
        }
    }

    fn plan(&self, name: &str) -> Answer<Plan> {
        let found = self.manager.resolve_plan(Some(name), &self.subject.place);
        told(name, found)
    }

    /// The open plan of this name.
    pub(crate) fn open(&self, name: &str) -> Option<Plan> {
        let plan = self.plan(name).ok()?;
        (plan.name == name && plan.state == PlanState::Open).then_some(plan)
    }

    /// Keeps the first round of changes, then makes the second.
    pub(crate) fn lead_up(&self) -> Answer<()> {
        let quiet = "sandbox: { checkpoint: { auto: [] } }\n";
        let world = self
            .subject
            .place
            .parent()
            .expect("originals lie in a world");
        let file = world.join("escrow.yaml");
        fs::write(&file, quiet).map_err(|error| error.to_string())?;
        let examined = told("the file", self.manager.examine_config(Some(&file)))?;
        told("trust", self.manager.trust_config(&examined))?;
        let plan = self.plan(PLAN)?;
        let kept = self
            .manager
            .create_checkpoint(&plan, Some(FIRST), &Unobserved);
        told("the first checkpoint", kept)?;
        let size = self.scenario.size;
        for (member, label) in self.subject.members.iter().zip(LABELS) {
            match member.kind {
                Kind::Overlay => later::layer(size, label).write(&second_layer(&member.inside)),
                _ => later::edit(&member.inside, size, label).map_err(|error| error.to_string())?,
            }
        }
        Ok(())
    }

    /// Plans that garbage collection must spare, and some that it must not.
    pub(crate) fn litter(&self) -> Answer<()> {
        self.fork(PLAN, CHILD, Some(FIRST))?;
        self.fork(PLAN, LENDER, None)?;
        self.work_in(LENDER)?;
        self.fork(LENDER, TENANT, None)?;
        self.cleanup(LENDER)?;
        self.spend()?;
        let orphan = self.orphan();
        fs::create_dir_all(orphan.join("copy/tree/deep"))
            .and_then(|()| fs::write(orphan.join("copy/tree/deep/f"), "nobody's\n"))
            .map_err(|error| error.to_string())
    }

    /// Makes one file anew in the layers of a fork, so that the process that forks it lives on them.
    fn work_in(&self, name: &str) -> Answer<()> {
        let view = told(name, self.manager.view(self.plan(name)?))?;
        let sandboxes = view.sandboxes.iter().zip(&self.subject.members).zip(LABELS);
        for ((one, member), label) in sandboxes {
            if member.kind == Kind::Overlay {
                let layer = one.sandbox.area.as_path().join("layers/0");
                later::add_again(&layer, label).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// A plan that is over, whose workspaces are still there.
    fn spend(&self) -> Answer<()> {
        let mut options = options(&self.subject.home);
        options.keep.cleanup = CleanupPolicy::Manual;
        let manager = told("the home", Manager::open(options))?;
        let place = &self.subject.place;
        let made = manager.create_plan(Some(SPENT), place, &[], None, &Unobserved);
        let plan = told(SPENT, made)?.plan;
        for member in &self.subject.members {
            let resource = told(
                SPENT,
                manager.take_resource(member.original.as_os_str(), place),
            )?;
            let strategy = Some(member.kind.strategy());
            let made = manager.create_sandbox(&plan, &resource, strategy, &Unobserved);
            told(SPENT, made)?;
        }
        told(SPENT, manager.commit(&plan, &REQUEST, &Unobserved)).map(drop)
    }

    /// What is left of the plan that is over, and what belongs to nothing.
    pub(crate) fn garbage(&self) -> Answer<Vec<PathBuf>> {
        let spent = told(SPENT, self.manager.view(self.plan(SPENT)?))?;
        let areas = spent
            .sandboxes
            .iter()
            .map(|one| one.sandbox.area.as_path().to_owned());
        let all = areas.chain([self.orphan()]);
        Ok(all.filter(|path| path.exists()).collect())
    }

    fn orphan(&self) -> PathBuf {
        self.subject.home.join("sandboxes").join(ORPHAN)
    }

    /// Makes one file of the second round anew.
    pub(crate) fn add_again(&self) -> Answer<()> {
        for (member, label) in self.subject.members.iter().zip(LABELS) {
            let inside = match member.kind {
                Kind::Overlay => second_layer(&member.inside),
                _ => member.inside.clone(),
            };
            later::add_again(&inside, label)
                .map_err(|error| format!("{}: {error}", inside.display()))?;
        }
        Ok(())
    }

    fn checkpoint(
        &self,
        plan: &Plan,
        wanted: impl Fn(&Checkpoint) -> bool,
    ) -> Answer<Option<Checkpoint>> {
        let all = told("the checkpoints", self.manager.checkpoints(plan))?;
        Ok(all.into_iter().rev().find(wanted))
    }

    pub(crate) fn labelled(&self, label: &str) -> Answer<Option<Checkpoint>> {
        self.checkpoint(&self.plan(PLAN)?, |one| one.label.as_deref() == Some(label))
    }

    pub(crate) fn before_restore(&self) -> Answer<Option<Checkpoint>> {
        let plan = self.plan(PLAN)?;
        self.checkpoint(&plan, |one| one.reason.as_deref() == Some("before_restore"))
    }

    pub(crate) fn restore(&self, to: &Checkpoint) -> Answer<()> {
        let restored = self.manager.restore(&self.plan(PLAN)?, to, &Unobserved);
        told("a restore afterwards", restored).map(drop)
    }

    pub(crate) fn fork(&self, from: &str, name: &str, at: Option<&str>) -> Answer<()> {
        let plan = self.plan(from)?;
        let at = match at {
            Some(label) => self.checkpoint(&plan, |one| one.label.as_deref() == Some(label))?,
            None => None,
        };
        let place = &self.subject.place;
        let forked = self
            .manager
            .fork(&plan, at.as_ref(), Some(name), place, &Unobserved);
        told("a fork", forked).map(drop)
    }

    pub(crate) fn gc(&self) -> Answer<()> {
        let collected = self.manager.collect_garbage(&GarbageRequest::default());
        let failed = told("gc", collected)?.failed;
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("gc could not remove {failed:?}")),
        }
    }

    pub(crate) fn recover(&self) -> Answer<usize> {
        let answers = told("recover", self.manager.recover())?;
        let count = answers.len();
        for (_, answer) in answers {
            told("recover", answer)?;
        }
        Ok(count)
    }

    pub(crate) fn cleanup(&self, name: &str) -> Answer<()> {
        let cleaned = self.manager.cleanup(&self.plan(name)?, false);
        told(&format!("the cleanup of {name}"), cleaned).map(drop)
    }

    /// Removes every plan that is left.
    pub(crate) fn clean_all(&self) -> Answer<()> {
        for view in told("the plans", self.manager.plans())? {
            if view.plan.state != PlanState::CleanedUp {
                let cleaned = self.manager.cleanup(&view.plan, false);
                told(&format!("the cleanup of {}", view.plan.name), cleaned)?;
            }
        }
        Ok(())
    }

    /// Whether a plan is there and whole. One that is there must not be whole in part.
    pub(crate) fn is_whole(&self, name: &str) -> Answer<bool> {
        let Some(plan) = self.open(name) else {
            return Ok(false);
        };
        let view = told(name, self.manager.view(plan))?;
        let whole =
            |state: SandboxState| matches!(state, SandboxState::Created | SandboxState::Active);
        let count = view
            .sandboxes
            .iter()
            .filter(|one| whole(one.sandbox.state))
            .count();
        match count {
            0 => Ok(false),
            all if all == self.scenario.members.len() => Ok(true),
            some => Err(format!(
                "{some} sandboxes of {name} are whole, and others are not"
            )),
        }
    }

    /// Which state a plan shows; all of its sandboxes must show the same.
    pub(crate) fn shows(&self, name: &str) -> Answer<Shows> {
        let size = self.scenario.size;
        let mut shown = Vec::new();
        let seen = self.look(name)?;
        for ((member, label), seen) in self.subject.members.iter().zip(LABELS).zip(seen) {
            let states = later::states(size, label, member.kind);
            let States { first, second } = &*states;
            if seen == *first {
                shown.push(Shows::First);
            } else if seen == *second {
                shown.push(Shows::Second);
            } else {
                let kind = member.kind.short();
                return Err(format!(
                    "TORN: {name}, {kind}: against the first state: {}; against the second: {}",
                    differ(first, &seen),
                    differ(second, &seen)
                ));
            }
        }
        match shown.iter().all(|one| *one == shown[0]) {
            true => Ok(shown[0]),
            false => Err(format!("TORN: {name} shows {shown:?}")),
        }
    }

    /// What is seen in each sandbox of a plan.
    fn look(&self, name: &str) -> Answer<Vec<String>> {
        let plan = self.plan(name)?;
        let members = &self.subject.members;
        let layered = |kind| kind == Kind::Overlay;
        let mut inside = Vec::new().into_iter();
        if members.iter().any(|member| layered(member.kind)) {
            inside = self.look_inside(name)?.into_iter();
        }
        let mut seen = Vec::new();
        for member in members {
            let shown = inside.next();
            seen.push(match shown.filter(|_| layered(member.kind)) {
                Some(shown) => shown,
                None => {
                    let found = self
                        .manager
                        .find_resource(member.original.as_os_str(), &self.subject.place);
                    let resource = told(name, found)?;
                    let access = told(name, self.manager.access(&plan, &resource, None))?;
                    let path = access.cwd.expect("a copy has a path");
                    later::text(&signature(path.as_path()))
                }
            });
        }
        Ok(seen)
    }

    /// What a program sees that is run inside, at the paths of the originals.
    fn look_inside(&self, name: &str) -> Answer<Vec<String>> {
        let members = &self.subject.members;
        let script = format!(
            "for root; do cd \"$root\"; {}\nprintf '{MARK}'; done",
            later::LOOK
        );
        let mut line = format!("-q run --no-scratch --plan {name} -- sh -ec").words();
        line.extend([script.into(), "-".into()]);
        line.extend(
            members
                .iter()
                .map(|member| member.original.clone().into_os_string()),
        );
        let cli = self.subject.cli.clone().env("ESCROW_SEEDED_BUG", "");
        let outcome = cli.run(line);
        let text = outcome.stdout_text();
        if outcome.status != 0 {
            let said = outcome.stderr_text();
            return Err(format!("nobody can look into {name}: {text}{said}"));
        }
        let seen = text.split(MARK).take(members.len());
        Ok(seen.map(str::to_owned).collect())
    }
}

fn second_layer(first: &Path) -> PathBuf {
    first.with_file_name("1")
}

fn differ(wanted: &str, seen: &str) -> String {
    let lines = |text: &str| -> std::collections::BTreeSet<String> {
        text.lines().map(str::to_owned).collect()
    };
    let (wanted, seen) = (lines(wanted), lines(seen));
    let missing = wanted.difference(&seen).map(|line| format!("-{line}"));
    let more = seen.difference(&wanted).map(|line| format!("+{line}"));
    let all: Vec<String> = missing.chain(more).take(6).collect();
    all.join(" | ")
}

/// After the look at each sandbox.
const MARK: &str = "====";
