//! Which plan `escrow run` works in: the one that was typed, the open one of the directory, or a new one.

use std::ffi::OsStr;

use escrow::Plan;
use escrow::error::Error;
use escrow::model::text::Location;

use super::run::RunOptions;
use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

impl RunOptions {
    /// The plan to run in, and whether it was made for this command.
    pub(super) fn choose_plan(&self, context: &Context, ui: &Ui) -> Result<(Plan, bool), Failure> {
        if let Some(typed) = &self.plan {
            let plan = context.plan(Some(typed), ui)?;
            context.check_sandboxes(&plan)?;
            return Ok((plan, false));
        }
        let begins = self.new || self.all || self.strategy.is_some();
        let begins = begins || !self.resource.is_empty() || !self.keep.is_empty();
        let open = match begins {
            true => None,
            false => match context.manager.open_plan_here(&context.directory) {
                Err(error @ Error::SeveralPlans { .. }) => {
                    let hint = "`escrow run --plan NAME` goes on in one, `--new` begins another";
                    Some(
                        context::choose(error, ui)
                            .map_err(|failure| failure.hint(hint).status(2))?,
                    )
                }
                found => found?,
            },
        };
        let Some(plan) = open else {
            return Ok((self.make_plan(context, ui)?, true));
        };
        context.check_sandboxes(&plan)?;
        // What cannot be seen may be there.
        if self.rollback && holds_changes(context, &plan)? != Some(false) {
            let name = &plan.name;
            return Err(Failure::usage(format!(
                "the open plan {name} holds changes from before, which `--rollback` would discard too"
            ))
            .hint(format!(
                "`--new` runs the command in a plan of its own; `--plan {name}` discards all of it"
            ))
            .status(2));
        }
        if self.commit && holds_changes(context, &plan)? != Some(false) {
            check_older(&plan, ui)?;
        }
        ui.say(&format!(
            "in the open plan {} (`--new` begins another)",
            plan.name
        ));
        Ok((plan, false))
    }

    fn make_plan(&self, context: &Context, ui: &Ui) -> Result<Plan, Failure> {
        let manager = &context.manager;
        let (directory, mut resources) = match self.resource.is_empty() {
            true => {
                let project = manager.project(&context.directory, self.all)?;
                (project.root, project.resources)
            }
            false => (context.directory.clone(), self.resource.clone()),
        };
        let keep = self.keep.iter();
        resources.extend(keep.map(|path| context::absolute(path.as_os_str()).into()));
        let progress = ui.progress("copying");
        let strategy = self.strategy.as_deref();
        let view = manager.create_implicit_plan(&directory, &resources, strategy, &progress);
        drop(progress);
        let view = view.map_err(|error| match error {
            Error::Forbidden { at, why } if self.resource.is_empty() => {
                Failure::failed(format!("'{at}' is no project: {why}"))
                    .hint("go into a project, or name it: `escrow run -C PROJECT -- COMMAND`")
            }
            error => error.into(),
        })?;
        for one in &view.sandboxes {
            show::warnings(one, ui);
        }
        // What was taken is said where it is not what the user sees around.
        let taken: Vec<&Location> = view.sandboxes.iter().map(|one| &one.resource.at).collect();
        let here = context::absolute(OsStr::new("."));
        if self.resource.is_empty() && taken.iter().any(|at| at.as_path() != here) {
            let taken: Vec<String> = taken.iter().map(ToString::to_string).collect();
            let (name, taken) = (&view.plan.name, taken.join(", "));
            ui.say(&format!("in the new plan {name} of {taken}"));
        }
        Ok(view.plan)
    }
}

/// Asks whether a commit may take along what a plan holds from before, and refuses it where there is no terminal.
fn check_older(plan: &Plan, ui: &Ui) -> Result<(), Failure> {
    let name = &plan.name;
    let question = format!(
        "The plan {name} holds changes from before; commit them too when the command has ended?"
    );
    if ui.says_yes() || (ui.asks() && ui.confirm(&question)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the open plan {name} holds changes from before, which `--commit` would commit too"
    ))
    .hint(format!("`escrow diff {name}` shows them"))
    .hint(format!(
        "`--new` runs the command in a plan of its own; `--plan {name}` commits all of it"
    ))
    .status(2))
}

/// Whether a plan holds changes; `None` where the caller may not know.
pub(super) fn holds_changes(context: &Context, plan: &Plan) -> Result<Option<bool>, Failure> {
    match context.manager.quick_diff(plan) {
        Ok(found) => Ok(Some(found.resources.iter().any(|one| !one.diff.is_empty()))),
        Err(Error::Denied { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
