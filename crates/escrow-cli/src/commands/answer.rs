//! `escrow answer`: a question from inside a run, which the engine hands to this program as principal `agent`.
//!
//! A few verbs about the own plan are answered, as the policy permits; nothing else of the outside can be reached. What is
//! asked is read by the same grammar as outside; plan and resource are replaced by the own ones before it is done.

use std::ffi::OsString;
use std::iter;
use std::process::ExitCode;

use clap::{Args, Parser};
use escrow::Plan;
use escrow::model::PlanId;
use escrow::run::Question;

use super::{Cli, Command, GlobalArgs, with_notices};
use crate::context::{self, Context};
use crate::error::{Failure, conclude};
use crate::ui::Ui;

/// What is answered.
pub(super) const ONLY: &str = "inside a run only `escrow status`, `diff`, `checkpoint create|list|show` and `restore` of its own plan work";

/// Answer a question from inside a run; not for people
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The plan that can be asked about, by its id
    plan: String,
}

impl AnswerArgs {
    /// Answers in the form that was asked for.
    pub(crate) fn run(&self, global: &GlobalArgs) -> ExitCode {
        let plain = Ui::new(false, false, 0);
        let understood = || Failure::usage("the question was not understood");
        let question = serde_json::from_reader(std::io::stdin()).map_err(|_| understood());
        let opened = question.and_then(|question: Question| {
            let context = Context::open(global, false)?;
            let plan = context.plan(Some(&self.plan), &plain)?;
            Ok((question.words, context, plan))
        });
        let (words, context, plan) = match opened {
            Ok(opened) => opened,
            Err(failure) => return conclude(Err(failure), &plain),
        };
        let asker = Asker {
            plan: &plan,
            resolve: &|typed| Some(context.plan(Some(typed), &plain).ok()?.id),
            resources: &|| context.manager.resource_names(&plan).unwrap_or_default(),
        };
        match asker.understand(&words) {
            Ok(cli) => {
                let ui = cli.global.ui();
                conclude(with_notices(cli.command, &context, &ui), &ui)
            }
            Err(reason) => {
                let typed: Vec<OsString> = words.iter().map(OsString::from).collect();
                let noted = context
                    .manager
                    .note_refusal(&plan, &words.join(" "), &reason);
                let refused = Failure::denied(reason);
                let refused = match noted {
                    Ok(()) => refused,
                    Err(_) => refused.hint("the log could not be written"),
                };
                conclude(
                    Err(refused),
                    &Ui::new(context::wants_json(&typed), false, 0),
                )
            }
        }
    }
}

/// A command inside, and what it may ask about.
pub(super) struct Asker<'a> {
    /// Its plan.
    plan: &'a Plan,
    /// The plan that a word means.
    resolve: &'a dyn Fn(&str) -> Option<PlanId>,
    /// The names of the resources of its plan.
    resources: &'a dyn Fn() -> Vec<String>,
}

impl Asker<'_> {
    /// What is asked, as a command about the own plan; or why it is not answered. Every command and every option is
    /// checked here or in the file of its verb: one that is new is not answered, or does not build.
    fn understand(&self, words: &[String]) -> Result<Cli, String> {
        let typed = iter::once("escrow").chain(words.iter().map(String::as_str));
        let mut cli = Cli::try_parse_from(typed).map_err(|_| ONLY)?;
        let GlobalArgs {
            json: _,
            principal,
            home,
            config,
            verbose: _,
            quiet: _,
            yes: _,
            color: _,
        } = &cli.global;
        let chosen = [
            ("--principal", principal.is_some()),
            ("--home", home.is_some()),
            ("--config", config.is_some()),
        ];
        cli.command = match cli.command {
            Command::Status(args) => Command::Plan(args.asked(self)?),
            Command::Diff(args) => Command::Diff(args.asked(self)?),
            Command::Checkpoint(args) => Command::Checkpoint(args.asked(self)?),
            Command::Restore(args) => Command::Restore(args.asked(self)?),
            _ => return Err(ONLY.to_owned()),
        };
        match chosen.iter().find(|(_, typed)| *typed) {
            Some((name, _)) => Err(format!("{name} cannot be chosen inside a run")),
            None => Ok(cli),
        }
    }

    /// The own plan, whichever way it was typed, or not at all; no other is answered for.
    pub(super) fn own_plan(&self, typed: Option<&str>) -> Result<String, String> {
        match typed.is_none_or(|typed| self.is_own(typed)) {
            true => Ok(self.plan.id.to_string()),
            false => Err(format!(
                "inside a run only its own plan can be used. {ONLY}"
            )),
        }
    }

    /// `PLAN WORD` or `WORD`, with the own plan.
    pub(super) fn own_words(&self, words: &[String]) -> Result<Vec<String>, String> {
        let typed = words.len().checked_sub(2).map(|at| words[at].as_str());
        let plan = self.own_plan(typed)?;
        Ok(iter::once(plan).chain(words.last().cloned()).collect())
    }

    /// Whether a plan that was typed is the own one.
    fn is_own(&self, typed: &str) -> bool {
        let exact = typed == self.plan.name || typed == self.plan.id.to_string();
        exact || (self.resolve)(typed) == Some(self.plan.id)
    }

    /// The resource that was typed, if the plan has it. By its name only: paths are others inside.
    pub(super) fn own_resource(&self, typed: OsString) -> Result<OsString, String> {
        let names = (self.resources)();
        match names.iter().any(|name| typed == name.as_str()) {
            true => Ok(typed),
            false => Err(format!(
                "inside a run only resources of its own plan can be used, by name: {}",
                names.join(", ")
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use escrow::Plan;
    use escrow::model::text::Location;
    use escrow::model::{PlanId, PlanState, SystemIdSource};

    use super::Asker;

    fn understood(plan: &Plan, typed: &str) -> Option<String> {
        let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
        // No other plan is known.
        let asker = Asker {
            plan,
            resolve: &|_| None,
            resources: &|| vec!["app".to_owned()],
        };
        let cli = asker.understand(&words).ok()?;
        let command = format!("{:?}", cli.command);
        Some(command.replace(&plan.id.to_string(), "PLAN"))
    }

    // rule S4
    #[test]
    fn what_is_answered_is_about_the_own_plan() {
        let plan = Plan {
            id: PlanId::new(&SystemIdSource),
            name: "try".to_owned(),
            directory: Location::from("/"),
            state: PlanState::Open,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            implicit: false,
        };
        for (typed, word) in [
            ("status", ""),
            ("status --disk -v", "disk: true"),
            ("-q status", "Show"),
            ("diff", ""),
            ("diff try -p", "patch: true"),
            ("diff --resource app", "app"),
            ("diff --since=a --until b", "\"b\""),
            ("checkpoint create --message=--home", "\"--home\""),
            ("checkpoint create -mone", "\"one\""),
            ("checkpoint list try --json", "List"),
            ("checkpoint show one", "[\"PLAN\", \"one\"]"),
            ("checkpoint show -- --home=x", "[\"PLAN\", \"--home=x\"]"),
            ("restore try one", "[\"PLAN\", \"one\"]"),
            ("restore one -vv", "[\"PLAN\", \"one\"]"),
            // Its checkpoints are listed.
            ("restore", "[\"PLAN\"]"),
        ] {
            let command = understood(&plan, typed).expect(typed);
            assert!(command.contains("\"PLAN\""), "{typed}: {command}");
            assert!(command.contains(word), "{typed}: {command}");
        }
        for refused in [
            "commit",
            "commit try",
            "plan show try",
            "inside 1 2",
            "answer PLAN",
            "restore other one",
            "restore try one two",
            "restore --home=x one",
            "checkpoint create other",
            "trust",
            "trust --yes escrow.yaml",
            "checkpoint create -m",
            "checkpoint create -m --home",
            "diff --config=x",
            "diff --principal x",
            "diff --resource other",
            "diff --since",
            "status --home x",
            "status try",
            "--version",
            "diff --help",
            "",
        ] {
            assert_eq!(understood(&plan, refused), None, "{refused}");
        }
    }
}
