//! The summary of a command that ran in a plan: what it changed, and what was denied to it.

use escrow::Plan;
use escrow::agents::{AgentReport, WantedChange};
use escrow::commit::CommitTerms;
use escrow::manager::{PlanDiff, ResourceDiff};
use escrow::model::text::{Location, escape};
use escrow::model::{CheckpointId, CountedChanges, DeniedConnection, WholeDirs};
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, count as counted, paint};

/// Names the hosts that were denied.
pub(super) fn show_denied(denied: &[DeniedConnection], ui: &Ui) {
    for DeniedConnection {
        host,
        port,
        reason,
        count,
    } in denied
    {
        let times = match count {
            1 => String::new(),
            count => format!(" ({count} times)"),
        };
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.clone(),
        };
        ui.say(&format!("denied: {host}:{port}{times}: {reason}"));
    }
}

/// How many hidden places are named one by one: a command that looked for more went through all of them.
const NAMED: usize = 3;

/// Names what the command looked for and did not find because it is hidden.
pub(super) fn show_hidden(hidden: &[Location], context: &Context, ui: &Ui) {
    for one in hidden.iter().take(NAMED) {
        let path = context.manager.under_home(one);
        ui.say(&format!(
            "hidden: {path} (the command looked for it): `--show {}`",
            shell_word(&path)
        ));
    }
    if let Some(more @ 1..) = hidden.len().checked_sub(NAMED) {
        ui.say(&format!("hidden: {more} more of the home directory (`--show PATH`, `run.show`; `--json` has all)"));
    }
}

/// How many changes of an agent's configuration are named one by one.
const WANTED: usize = 12;

/// The changes of an agent's configuration as they are named: what runs soonest first, and of a directory of skills or plugins its
/// name and how many files.
fn named(wanted: &[WantedChange]) -> Vec<(String, String)> {
    // A directory of the configuration, such as one skill.
    let directory = |one: &WantedChange| {
        let parts: Vec<&str> = one.path.split('/').collect();
        (parts.len() > 3).then(|| parts[..3].join("/"))
    };
    let directories: Vec<Option<String>> = wanted.iter().map(directory).collect();
    let mut named: Vec<(bool, String, String)> = Vec::new();
    for (one, directory) in wanted.iter().zip(&directories) {
        let count = directories
            .iter()
            .filter(|other| *other == directory)
            .count();
        let said = match directory {
            Some(directory) if count > 1 => {
                let files = counted(count as u64, "file", "files");
                (true, format!("{directory}/"), files)
            }
            directory => (directory.is_some(), one.path.clone(), one.summary.clone()),
        };
        if !named.contains(&said) {
            named.push(said);
        }
    }
    // A file of settings, with its hooks and servers, is obeyed at once; a skill when it is asked for.
    named.sort();
    let said = named.into_iter().map(|(_, path, summary)| (path, summary));
    said.collect()
}

/// Says what an agent wanted to change of its configuration, and which logins are refreshed.
pub(super) fn show_agent(report: &AgentReport, context: &Context, ui: &Ui) {
    let name = &report.preset.name;
    for at in &report.refreshed {
        let at = context.manager.under_home(at);
        ui.say(&format!("{name}: its login was refreshed in {at}"));
    }
    for at in &report.refused {
        let at = context.manager.under_home(at);
        ui.warn(&format!(
            "{name} left no login, or one that names another server: {at} stays as it was"
        ));
    }
    let wanted = named(&report.wanted);
    for (path, summary) in wanted.iter().take(WANTED) {
        let (path, summary) = (escape(path.as_bytes()), escape(summary.as_bytes()));
        ui.say(&format!(
            "{} {name} wanted to change ~/{path}: {summary}; kept out",
            paint(Tone::Careful, "attention")
        ));
    }
    if let Some(more @ 1..) = wanted.len().checked_sub(WANTED) {
        ui.say(&format!(
            "attention {name} wanted to change {more} more places of its configuration; kept out"
        ));
    }
    if !report.wanted.is_empty() {
        ui.say(&format!(
            "  `escrow agent diff {name}` shows it, `escrow agent accept {name} PATH` takes it over"
        ));
    }
}

/// What came of an agent in a run, as a document.
pub(super) fn agent(report: &AgentReport, context: &Context) -> Value {
    let paths = |all: &[Location]| -> Vec<String> {
        let all = all.iter();
        all.map(|at| context.manager.under_home(at)).collect()
    };
    json!({
        "name": report.preset.name,
        "wanted": report.wanted.iter().map(|one| json!({"path": format!("~/{}", one.path), "summary": one.summary})).collect::<Vec<_>>(),
        "refreshed": paths(&report.refreshed),
        "refused": paths(&report.refused),
    })
}

/// A path as one types it to a shell.
fn shell_word(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%,:=~".contains(c);
    match path.strip_prefix("~/") {
        _ if path.chars().all(plain) => path.to_owned(),
        Some(rest) => format!("~/'{}'", rest.replace('\'', "'\\''")),
        None => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// What was denied to those inside, or about the plan, since the command began, beside connections.
pub(super) fn denied_questions(
    context: &Context,
    plan: &Plan,
    since: jiff::Timestamp,
) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    context.manager.each_logged(Some(plan), |one| {
        let operation = &one.operation;
        let asked = operation.action != "connect" && operation.started_at >= since;
        if asked && one.outcome == "denied" {
            all.push(json!({
                "action": operation.action,
                "target": operation.target,
                "principal": operation.principal,
                "reason": one.reason,
            }));
        }
        Ok(())
    })?;
    Ok(all)
}

/// Where a commit would contradict the originals; none where the plan is over, or the caller may not commit it.
pub(super) fn conflicts(context: &Context, plan: &Plan) -> Value {
    let manager = &context.manager;
    let may = manager.check_access(manager.principal(), "commit", "*");
    let may = may.is_ok_and(|decision| decision.permitted);
    let preview = may.then(|| manager.preview(plan, CommitTerms::default()).ok());
    let preview = preview.flatten();
    let members = preview.into_iter().flat_map(|preview| preview.members);
    let all = members.flat_map(|member| {
        let one = |conflict| show::conflict(&member.resource, conflict);
        member.conflicts.iter().map(one).collect::<Vec<_>>()
    });
    all.collect()
}

/// What changed in a plan since a checkpoint; `None` where that cannot be said: the command did what it did all the same.
pub(super) fn since(context: &Context, plan: &Plan, before: CheckpointId) -> Option<PlanDiff> {
    let all = context.manager.checkpoints(plan).ok()?;
    let before = all.iter().find(|one| one.id == before)?;
    context.manager.since(plan, before, None).ok()
}

/// Says what was changed, in sums: by the command alone, where `since` has that, and in all.
pub(super) fn summarize(context: &Context, found: &PlanDiff, since: Option<&PlanDiff>, ui: &Ui) {
    for one in &found.resources {
        let resource = &one.view.resource;
        let name = paint(Tone::Strong, &resource.name);
        let by_git = context.manager.ignored_by_git(&resource.at, &one.diff);
        let is_own = |own: &&ResourceDiff| own.view.sandbox.id == one.view.sandbox.id;
        let own = since.and_then(|since| since.resources.iter().find(is_own));
        let sum = sum_of(one, own, &by_git);
        let mut heads = show::heads(sum, &by_git, &one.ignored).into_iter();
        ui.say(&format!("{name}: {}", heads.next().unwrap_or_default()));
        heads.for_each(|line| ui.say(&format!("  {line}")));
        show::obstacles(one, found.plan_name(), ui);
        for line in show::warning_lines(&resource.name, &one.diff) {
            ui.say(&line);
        }
        let later = resource.runs_later(&one.diff);
        let folds = (&WholeDirs::of(&one.diff), &by_git);
        for line in show::later_lines(&resource.name, &later, folds, ui) {
            ui.say(&line);
        }
    }
}

/// The sum of what a sandbox holds, after that of what one command did where it is not the same.
fn sum_of(all: &ResourceDiff, own: Option<&ResourceDiff>, by_git: &CountedChanges) -> String {
    let sum = show::sum_without(&all.diff, by_git);
    let Some(own) = own else {
        return sum;
    };
    let paths = |of: &ResourceDiff| {
        let listed = of.diff.changes.iter().map(|change| change.path.clone());
        let listed = listed.filter(|path| !by_git.covers(path));
        listed.collect::<Vec<_>>()
    };
    let own_sum = show::sum_without(&own.diff, by_git);
    if own_sum == sum && paths(own) == paths(all) {
        return sum;
    }
    let words = |sum: String| match sum.is_empty() {
        true => "no changes".to_owned(),
        false => sum,
    };
    format!("this run: {}; the plan: {}", words(own_sum), words(sum))
}

/// Every change of a plan as JSON, each with its resource.
pub(super) fn changes(found: &PlanDiff) -> Vec<Value> {
    let mut all = Vec::new();
    for one in &found.resources {
        for change in &one.diff.changes {
            let mut change = show::change(change);
            change["resource"] = json!(one.view.resource.name);
            all.push(change);
        }
    }
    all
}
