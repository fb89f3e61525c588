//! Events of a session other than tool calls: begin, prompt, end of a turn, end.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use escrow::Checkpoint;
use escrow::model::text::one_line;
use serde_json::{Value, json};

use super::super::{run_plan, show};
use super::session::{Session, drop_unused};
use super::{Call, print, worktree};
use crate::context::Context;
use crate::error::Failure;

/// Events that are answered, beside tool calls.
pub(super) const KNOWN: [&str; 6] = [
    "SessionStart",
    "UserPromptSubmit",
    "Stop",
    "SessionEnd",
    "WorktreeCreate",
    "WorktreeRemove",
];

/// How much of a prompt stands in a label.
const PROMPT: usize = 60;

pub(super) fn answer(call: &Call<'_>) -> Result<(), Failure> {
    match call.input.event() {
        "SessionStart" => start(call),
        "UserPromptSubmit" => prompt(call),
        "Stop" => stop(call),
        "SessionEnd" => end(call),
        "WorktreeCreate" => worktree::create(call),
        "WorktreeRemove" => worktree::remove(call),
        _ => Ok(()),
    }
}

/// Begins or finds the plan, and tells the agent about it.
fn start(call: &Call<'_>) -> Result<(), Failure> {
    let session = Session::begin(call)?;
    let plan = &session.plan.name;
    let shown = session.roots.iter().filter_map(|root| {
        let sandbox = root.sandbox.as_ref()?;
        Some(format!(
            "{} (file tools show it at {})",
            root.original.display(),
            sandbox.display()
        ))
    });
    let shown: Vec<String> = shown.collect();
    let text = format!(
        "Escrow sandboxes this session in the plan {plan}: {}. Commands and file tools work on private copies; use the usual paths. \
        Nothing real changes before the user runs `escrow commit {plan}`, which you cannot do. Files elsewhere are read-only. Each command \
        starts in the working directory, so write `cd DIR && COMMAND`. In Bash, `escrow checkpoint create -m LABEL`, `escrow checkpoint list`, \
        `escrow restore LABEL` and `escrow diff` work on this plan.",
        shown.join(", ")
    );
    print(
        &json!({"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}),
        call.ui,
    )
}

/// Takes a checkpoint before a prompt, where something changed since the last one.
fn prompt(call: &Call<'_>) -> Result<(), Failure> {
    let Some(session) = Session::found(call)? else {
        return Ok(());
    };
    let (context, plan) = (call.context, &session.plan);
    let mut earlier = context.manager.checkpoints(plan)?;
    earlier.retain(is_prompt);
    let changed = match earlier.last() {
        // A checkpoint that cannot be compared with does not prevent the next one.
        Some(last) => context
            .manager
            .since(plan, last, None)
            .map_or(true, |since| {
                since.resources.iter().any(|one| !one.diff.is_empty())
            }),
        None => run_plan::holds_changes(context, plan)? != Some(false),
    };
    if !changed {
        return Ok(());
    }
    let text = one_line(call.input.text("prompt").unwrap_or_default());
    let text: String = text.chars().take(PROMPT).collect();
    let turn = match call.input.text("turn_id") {
        Some(turn) => turn.to_owned(),
        None => turn(call).map_or_else(|| "unknown".to_owned(), |turn| turn.to_string()),
    };
    let id = call.input.session()?;
    let label = format!("before_prompt: {text} (session {id}, turn {turn})");
    let progress = call.ui.progress("saving");
    context
        .manager
        .checkpoint_before_prompt(plan, &label, &progress)?;
    Ok(())
}

/// The number of this prompt: the transcript holds the earlier ones, each with an id.
fn turn(call: &Call<'_>) -> Option<usize> {
    let transcript = std::fs::File::open(Path::new(call.input.text("transcript_path")?)).ok()?;
    let mut prompts = HashSet::new();
    for line in BufReader::new(transcript).lines() {
        let line = line.ok()?;
        if line.contains("\"promptId\"") {
            let entry: Value = serde_json::from_str(&line).ok()?;
            prompts.extend(entry["promptId"].as_str().map(str::to_owned));
        }
    }
    prompts.remove(call.input.text("prompt_id").unwrap_or_default());
    Some(prompts.len() + 1)
}

/// Shows the user what the plan holds.
fn stop(call: &Call<'_>) -> Result<(), Failure> {
    let Some(session) = Session::found(call)? else {
        return Ok(());
    };
    match summary(call.context, &session)? {
        Some(text) => print(&json!({"systemMessage": text}), call.ui),
        None => Ok(()),
    }
}

fn summary(context: &Context, session: &Session) -> Result<Option<String>, Failure> {
    let plan = &session.plan;
    let found = context.manager.diff_after_run(plan)?;
    let changed = found.resources.iter().filter(|one| !one.diff.is_empty());
    let changed: Vec<String> = changed
        .map(|one| format!("{}: {}", one.view.resource.name, show::sum(&one.diff)))
        .collect();
    let name = &plan.name;
    Ok((!changed.is_empty()).then(|| {
        let changed = changed.join("; ");
        format!("escrow: {changed}. Next: `escrow diff {name}`, then `escrow commit {name}` or `escrow rollback {name}`")
    }))
}

/// Leaves the plan for review; one in which nothing was done is removed.
fn end(call: &Call<'_>) -> Result<(), Failure> {
    match Session::found(call)? {
        Some(session) if !session.plan.name.contains(super::session::WORKTREE) => {
            drop_unused(call.context, &session.plan).map(drop)
        }
        _ => Ok(()),
    }
}

fn is_prompt(one: &Checkpoint) -> bool {
    one.reason.as_deref() == Some("before_prompt")
}

/// The session and the turn of a checkpoint before a prompt. Only the hook takes checkpoints for that reason, so the label is as it wrote it.
pub(crate) fn conversation(one: &Checkpoint) -> Option<(&str, &str)> {
    let label = one.label.as_deref().filter(|_| is_prompt(one))?;
    let (_, rest) = label.strip_suffix(')')?.rsplit_once(" (session ")?;
    rest.split_once(", turn ")
}
