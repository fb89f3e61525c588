//! `escrow answer`: a question from inside a run, which the engine hands to this program as principal `agent`.
//!
//! A few verbs about the own plan are answered, as the policy permits; nothing else of the outside can be reached. What is
//! asked is read by the same grammar as outside and then said again in words of ours.

use std::ffi::{OsStr, OsString};
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
const ONLY: &str = "inside a run only `escrow status`, `diff`, `checkpoint create|list|show` and `restore` of its own plan work";

/// Answer a question from inside a run; not for people
#[derive(Args)]
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
            let plan = context.plan(Some(&self.plan))?;
            Ok((question.words, context, plan))
        });
        let (words, mut context, plan) = match opened {
            Ok(opened) => opened,
            Err(failure) => return conclude(Err(failure), &plain),
        };
        let asker = Asker {
            plan: &plan,
            resolve: &|typed| Some(context.plan(Some(typed)).ok()?.id),
            resources: &|| context.manager.resource_names(&plan).unwrap_or_default(),
        };
        match asker.translate(&words) {
            Ok(line) => {
                let cli = Cli::parse_from(iter::once("escrow".to_owned()).chain(line));
                let ui = cli.global.ui();
                conclude(with_notices(cli.command, &mut context, &ui), &ui)
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

/// A command about a plan, put into words of ours: what came from inside stands where it can only be a value.
#[derive(Default)]
pub(super) struct Asked {
    /// The words that name it.
    pub(super) verb: &'static [&'static str],
    /// The plan that was typed.
    pub(super) plan: Option<String>,
    /// The resource that was typed.
    pub(super) resource: Option<OsString>,
    /// Options, those with a value in one word with it.
    pub(super) options: Vec<String>,
    /// Words beside the plan.
    pub(super) operands: Vec<String>,
}

impl Asked {
    /// The option, if it was typed.
    pub(super) fn flag(mut self, name: &str, typed: bool) -> Self {
        self.options.extend(typed.then(|| name.to_owned()));
        self
    }

    /// The option and its value, if it was typed.
    pub(super) fn value(mut self, name: &str, typed: Option<String>) -> Self {
        let option = typed.map(|value| format!("{name}={value}"));
        self.options.extend(option);
        self
    }

    /// Takes `PLAN WORD` or `WORD` for what they are.
    pub(super) fn words(mut self, mut words: Vec<String>) -> Self {
        self.operands = words.pop().into_iter().collect();
        self.plan = words.pop();
        self
    }
}

/// What a command may be asked for from inside; `None` is never answered. Every command and every option is checked
/// here or in the file of its verb: one that is new is not answered, or does not build.
fn asked(command: Command) -> Option<Asked> {
    match command {
        Command::Status(args) => Some(args.asked()),
        Command::Diff(args) => Some(args.asked()),
        Command::Checkpoint(args) => args.asked(),
        Command::Restore(args) => Some(args.asked()),
        _ => None,
    }
}

/// A command inside, and what it may ask about.
struct Asker<'a> {
    /// Its plan.
    plan: &'a Plan,
    /// The plan that a word means.
    resolve: &'a dyn Fn(&str) -> Option<PlanId>,
    /// The names of the resources of its plan.
    resources: &'a dyn Fn() -> Vec<String>,
}

impl Asker<'_> {
    /// What is asked, as a command about the own plan; or why it is not answered. The words are read as they would be
    /// outside, and none of them is passed on as it is.
    fn translate(&self, words: &[String]) -> Result<Vec<String>, String> {
        let typed = iter::once("escrow").chain(words.iter().map(String::as_str));
        let Ok(cli) = Cli::try_parse_from(typed) else {
            return Err(ONLY.to_owned());
        };
        let GlobalArgs {
            json,
            principal,
            home,
            config,
            verbose,
            quiet,
        } = cli.global;
        let mut asked = asked(cli.command).ok_or(ONLY)?;
        for (name, typed) in [
            ("--principal", principal.is_some()),
            ("--home", home.is_some()),
            ("--config", config.is_some()),
        ] {
            if typed {
                return Err(format!("{name} cannot be chosen inside a run"));
            }
        }
        if let Some(typed) = &asked.plan
            && !self.is_own(typed)
        {
            return Err(format!(
                "inside a run only its own plan can be used. {ONLY}"
            ));
        }
        let resource = asked.resource.take();
        let resource = resource.map(|typed| self.own_resource(&typed));
        let verbose = iter::repeat_n("-v".to_owned(), verbose.into());
        let asked = asked
            .flag("--json", json)
            .flag("-q", quiet)
            .value("--resource", resource.transpose()?);
        let verb = asked.verb.iter().map(|word| (*word).to_owned());
        let options = asked.options.into_iter().chain(verbose);
        // Behind this every word is a word.
        let plan = ["--".to_owned(), self.plan.id.to_string()];
        let words = verb.chain(options).chain(plan).chain(asked.operands);
        Ok(words.collect())
    }

    /// Whether a plan that was typed is the own one.
    fn is_own(&self, typed: &str) -> bool {
        let exact = typed == self.plan.name || typed == self.plan.id.to_string();
        exact || (self.resolve)(typed) == Some(self.plan.id)
    }

    /// The resource that was typed, if the plan has it. By its name only: paths are others inside.
    fn own_resource(&self, typed: &OsStr) -> Result<String, String> {
        let names = (self.resources)();
        match names.iter().find(|name| typed == name.as_str()) {
            Some(name) => Ok(name.clone()),
            None => Err(format!(
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

    fn line(plan: &Plan, typed: &str) -> Option<String> {
        let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
        // No other plan is known.
        let asker = Asker {
            plan,
            resolve: &|_| None,
            resources: &Vec::new,
        };
        let line = asker.translate(&words).ok()?.join(" ");
        Some(line.replace(&plan.id.to_string(), "PLAN"))
    }

    // rule S4
    #[test]
    fn what_is_passed_on_is_about_the_own_plan_in_words_of_ours() {
        let plan = Plan {
            id: PlanId::new(&SystemIdSource),
            name: "try".to_owned(),
            directory: Location::from("/"),
            state: PlanState::Open,
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        for (typed, passed) in [
            ("status", "plan show -- PLAN"),
            ("status --disk -v", "plan show --disk -v -- PLAN"),
            ("-q status", "plan show -q -- PLAN"),
            ("diff", "diff -- PLAN"),
            ("diff try -p", "diff --patch -- PLAN"),
            (
                "diff --since=a --until b",
                "diff --since=a --until=b -- PLAN",
            ),
            (
                "checkpoint create --message=--home",
                "checkpoint create --message=--home -- PLAN",
            ),
            (
                "checkpoint create -mone",
                "checkpoint create --message=one -- PLAN",
            ),
            (
                "checkpoint create --message=one",
                "checkpoint create --message=one -- PLAN",
            ),
            (
                "checkpoint list try --json",
                "checkpoint list --json -- PLAN",
            ),
            ("checkpoint show one", "checkpoint show -- PLAN one"),
            (
                "checkpoint show -- --home=x",
                "checkpoint show -- PLAN --home=x",
            ),
            ("restore try one", "restore -- PLAN one"),
            ("restore one -vv", "restore -v -v -- PLAN one"),
        ] {
            assert_eq!(line(&plan, typed).as_deref(), Some(passed), "{typed}");
        }
        for refused in [
            "commit",
            "commit try",
            "plan show try",
            "inside 1 2",
            "answer PLAN",
            "restore other one",
            "restore",
            "restore try one two",
            "restore --home=x one",
            "checkpoint create other",
            "trust",
            "trust --yes escrow.yaml",
            "checkpoint create -m",
            "checkpoint create -m --home",
            "diff --config=x",
            "diff --principal x",
            "diff --resource app",
            "diff --since",
            "status --home x",
            "status try",
            "--version",
            "diff --help",
            "",
        ] {
            assert_eq!(line(&plan, refused), None, "{refused}");
        }
    }
}
