//! `escrow checkpoint`: creates, lists, shows and deletes checkpoints of a plan.

use clap::{Args, Subcommand};
use escrow::{Checkpoint, Plan};
use serde_json::{Value, json};

use super::answer::{Asker, ONLY};
use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Save and manage checkpoints
///
/// A checkpoint spans every sandbox of the plan. `escrow restore` returns to one, `escrow diff --since`
/// shows what changed since.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Example:\n  escrow checkpoint create try -m 'before the migration'\n  \
        escrow restore try 'before the migration'"
)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    verb: CheckpointVerb,
}

#[derive(Debug, Subcommand)]
enum CheckpointVerb {
    Create(CheckpointCreateArgs),
    List(CheckpointListArgs),
    /// Show what a checkpoint holds
    Show(CheckpointNameArgs),
    /// Delete a checkpoint
    Delete(CheckpointNameArgs),
}

/// Save the current state of every sandbox
#[derive(Debug, Args)]
struct CheckpointCreateArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// What to call it
    #[arg(long, short = 'm', value_name = "LABEL")]
    message: Option<String>,
}

/// List the checkpoints of a plan, oldest first
#[derive(Debug, Args)]
struct CheckpointListArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
}

#[derive(Debug, Args)]
struct CheckpointNameArgs {
    /// The plan, which may be left out, and the checkpoint: its label, its id or the beginning of it
    #[arg(required = true, num_args = 1..=2, value_name = "[PLAN] CHECKPOINT")]
    words: Vec<String>,
}

/// The plan and the checkpoint that were typed.
pub(super) fn typed(
    context: &Context,
    words: &[String],
    ui: &Ui,
) -> Result<(Plan, Checkpoint), Failure> {
    let (plan, checkpoint) = match words {
        [plan, checkpoint] => (Some(plan.as_str()), checkpoint),
        [checkpoint] => (None, checkpoint),
        _ => return Err(Failure::usage("a checkpoint is missing")),
    };
    let plan = context.plan(plan, ui)?;
    let checkpoint = context.manager.resolve_checkpoint(&plan, checkpoint)?;
    Ok((plan, checkpoint))
}

/// What to type for a checkpoint: its label where that means it alone and can be typed as it is shown, else its id.
pub(super) fn typable(context: &Context, plan: &Plan, checkpoint: &Checkpoint) -> String {
    let id = checkpoint.id.to_string();
    let plain = |c: char| c.is_alphanumeric() || " ._-".contains(c);
    let typed = |label: &&str| !label.starts_with(['-', ' ']) && label.chars().all(plain);
    let label = checkpoint.label.as_deref().filter(typed);
    let meant = |label: &&str| {
        let found = context.manager.resolve_checkpoint(plan, label);
        found.is_ok_and(|found| found.id == checkpoint.id)
    };
    match label.filter(meant) {
        Some(label) if label.contains(' ') => format!("'{label}'"),
        Some(label) => label.to_owned(),
        None => id,
    }
}

/// How a checkpoint is called on the screen.
pub(super) fn name(checkpoint: &Checkpoint) -> String {
    let id = checkpoint.id.to_string();
    match (&checkpoint.label, &checkpoint.reason) {
        (Some(label), _) => format!("{id}  {}", escrow::model::text::one_line(label)),
        (None, Some(reason)) => format!("{id}  {}", paint(Tone::Faint, reason)),
        (None, None) => id,
    }
}

fn document(context: &Context, checkpoint: &Checkpoint) -> Result<Value, Failure> {
    Ok(json!(context.manager.checkpoint_answer(checkpoint)?))
}

impl CheckpointArgs {
    /// The same from inside. A command inside may go back, but not take ways back away from others: no checkpoint
    /// says whose it is.
    pub(super) fn asked(self, asker: &Asker<'_>) -> Result<Self, String> {
        let own = |plan: Option<String>| asker.own_plan(plan.as_deref()).map(Some);
        let verb = match self.verb {
            CheckpointVerb::Create(CheckpointCreateArgs { plan, message }) => {
                let plan = own(plan)?;
                CheckpointVerb::Create(CheckpointCreateArgs { plan, message })
            }
            CheckpointVerb::List(CheckpointListArgs { plan }) => {
                CheckpointVerb::List(CheckpointListArgs { plan: own(plan)? })
            }
            CheckpointVerb::Show(CheckpointNameArgs { words }) => {
                let words = asker.own_words(&words)?;
                CheckpointVerb::Show(CheckpointNameArgs { words })
            }
            CheckpointVerb::Delete(_) => return Err(ONLY.to_owned()),
        };
        Ok(Self { verb })
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            CheckpointVerb::Create(args) => args.run(context, ui),
            CheckpointVerb::List(args) => args.run(context, ui),
            CheckpointVerb::Show(args) => args.show(context, ui),
            CheckpointVerb::Delete(args) => args.delete(context, ui),
        }
    }
}

impl CheckpointCreateArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let progress = ui.progress("keeping");
        let label = self.message.as_deref();
        let taken = context.manager.create_checkpoint(&plan, label, &progress)?;
        drop(progress);
        if ui.is_json() {
            ui.document(document(context, &taken)?);
            return Ok(());
        }
        ui.news(&format!("kept {}", name(&taken)));
        ui.say(&format!(
            "next: `escrow restore {} {}` returns to it",
            plan.name,
            typable(context, &plan, &taken)
        ));
        Ok(())
    }
}

impl CheckpointListArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        list(context, &plan, ui).map(drop)
    }
}

/// Lists the checkpoints of a plan; returns the last.
pub(super) fn list(context: &Context, plan: &Plan, ui: &Ui) -> Result<Option<Checkpoint>, Failure> {
    let mut all = context.manager.checkpoints(plan)?;
    if ui.is_json() {
        let all = all.iter().map(|one| document(context, one));
        let all: Vec<Value> = all.collect::<Result<_, _>>()?;
        ui.document(json!({"plan": plan.name, "checkpoints": all}));
        return Ok(None);
    }
    if all.is_empty() {
        ui.say(&format!("the plan {} has no checkpoints", plan.name));
    }
    for one in &all {
        let made = show::timestamp(one.created_at);
        ui.line(&format!("{made}  {}", name(one)));
    }
    Ok(all.pop())
}

impl CheckpointNameArgs {
    fn show(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, checkpoint) = typed(context, &self.words, ui)?;
        let since = context.manager.since(&plan, &checkpoint, None)?;
        if ui.is_json() {
            let mut shown = document(context, &checkpoint)?;
            shown["resources"] = since
                .resources
                .iter()
                .map(|one| {
                    let changes: Vec<Value> = one.diff.changes.iter().map(show::change).collect();
                    json!({"resource": one.view.resource.name, "changes": changes})
                })
                .collect();
            ui.document(shown);
            return Ok(());
        }
        ui.line(&format!(
            "{}  {}",
            show::timestamp(checkpoint.created_at),
            name(&checkpoint)
        ));
        for one in &since.resources {
            let resource = paint(Tone::Strong, &one.view.resource.name);
            match one.diff.is_empty() {
                true => ui.line(&format!("  {resource}: as it is now")),
                false => ui.line(&format!(
                    "  {resource}: since then {}",
                    show::sum(&one.diff)
                )),
            }
        }
        Ok(())
    }

    fn delete(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, checkpoint) = typed(context, &self.words, ui)?;
        context.manager.delete_checkpoint(&plan, &checkpoint)?;
        match ui.is_json() {
            true => ui.document(json!({"success": true, "checkpoint_id": checkpoint.id})),
            false => ui.news(&format!("deleted {}", name(&checkpoint))),
        }
        Ok(())
    }
}
