//! Plans, sandboxes and resources as JSON and as lines, the same in every command.

use std::collections::BTreeMap;

use escrow::config::ConfigResource;
use escrow::diff::ChangeSummary;
use escrow::manager::{PlanView, ResourceDiff, SandboxView};
use escrow::model::lookalike::{Lookalike, lookalikes};
use escrow::model::resource::FS_DIRECTORY;
use escrow::model::text::{Location, escape_text};
use escrow::model::{
    AutorunChange, AutorunGroup, Carried, Change, Conflict, CountedChanges, Detail, DiffView,
    EntryInfo, EntryKind, ResourcePath, WholeDirs,
};
use escrow::strategy::registry::AUTO;
use escrow::{Plan, Resource};
use serde::Serializer;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, count, paint, size};

/// A path as JSON: as it is where it is UTF-8, else escaped, and marked so.
pub(crate) fn path_fields(path: &ResourcePath) -> Value {
    match std::str::from_utf8(path.as_bytes()) {
        Ok("") => json!({"path": "."}),
        Ok(text) => json!({"path": text}),
        Err(_) => json!({"path": path.to_string(), "path_escaped": true}),
    }
}

/// The same with more fields.
pub(crate) fn with_path(path: &ResourcePath, more: Value) -> Value {
    let mut document = path_fields(path);
    if let (Some(all), Value::Object(more)) = (document.as_object_mut(), more) {
        all.extend(more);
    }
    document
}

/// A path of the machine as JSON: as it is where it is UTF-8, else escaped.
pub(crate) fn location(at: &Location) -> Value {
    match std::str::from_utf8(at.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(at),
    }
}

/// A change as JSON.
pub(crate) fn change(change: &Change) -> Value {
    let (old, new) = (
        change.old.as_ref().map(facts),
        change.new.as_ref().map(facts),
    );
    let mut more = json!({"kind": change.kind, "fields": change.fields, "old": old, "new": new});
    match &change.detail {
        Detail::Opaque { detail, carried } => {
            more["detail"] = detail.clone();
            if !carried.is_empty() {
                more["carried"] = carried.iter().map(version).collect();
            }
        }
        // A row is no entry of a directory.
        Detail::Row(row) => {
            more = json!({
                "kind": change.kind,
                "table": row.table,
                "key": row.key,
                "before": row.before,
                "after": row.after,
            })
        }
        Detail::File(_) => {}
    }
    with_path(&change.path, more)
}

/// What an item that is no file brings along at a path, as JSON.
fn version(one: &Carried) -> Value {
    let side = |facts: &Option<EntryInfo>, id: &Option<String>| {
        facts.as_ref().map(|facts| {
            let mut side = json!({"type": facts.kind, "mode": facts.mode, "id": id});
            if let Some(target) = &facts.target {
                side["target"] = location(target);
            }
            side
        })
    };
    let (old, new) = (
        side(&one.change.old, &one.ids.0),
        side(&one.change.new, &one.ids.1),
    );
    let more = json!({"within": one.within, "kind": one.change.kind, "files": one.files,
        "old": old, "new": new});
    with_path(&one.change.path, more)
}

/// Changes as JSON, one after the other.
pub(crate) fn changes<S: Serializer>(diff: &DiffView, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(diff.changes.iter().map(change))
}

/// A conflict as JSON: both versions named.
pub(crate) fn conflict(resource: &str, conflict: &Conflict) -> Value {
    let mut more = json!({
        "resource": resource,
        "what": conflict.what,
        "ours": conflict.ours.as_ref().map(facts),
        "theirs": conflict.theirs.as_ref().map(facts),
    });
    if !conflict.choice.is_free() {
        more["choice"] = json!(conflict.choice);
    }
    with_path(&conflict.path, more)
}

/// What another process wrote meanwhile, and where it is kept, as JSON.
pub(crate) fn kept(kept: &[(String, ResourcePath, Location)]) -> Vec<Value> {
    let one = |(resource, path, at): &(String, ResourcePath, Location)| {
        with_path(path, json!({"resource": resource, "kept": location(at)}))
    };
    kept.iter().map(one).collect()
}

/// The same for people, with what could not be removed.
pub(crate) fn kept_lines(kept: &[(String, ResourcePath, Location)], left: &[String], ui: &Ui) {
    for (resource, path, at) in kept {
        ui.warn(&format!(
            "another program's version of {resource}:{path} is kept in '{at}'"
        ));
    }
    for why in left {
        ui.warn(&format!("cleanup incomplete: {why}"));
    }
}

/// What will run later, for people: what weighs most first, and the files of a new directory, or those that git ignores, as one
/// line unless all are asked for.
pub(crate) fn later_lines(
    resource: &str,
    later: &[AutorunChange],
    (dirs, by_git): (&WholeDirs, &CountedChanges),
    ui: &Ui,
) -> Vec<String> {
    /// As many ignored files are named one by one.
    const SINGLE: usize = 3;
    let word = paint(Tone::Careful, "runs later");
    let (mut ignored, listed): (Vec<_>, Vec<_>) = later
        .iter()
        .cloned()
        .partition(|one| !ui.is_verbose() && by_git.covers(&one.path));
    let later = match ignored.len() > SINGLE {
        true => &listed[..],
        false => {
            ignored.clear();
            later
        }
    };
    let folded = match ui.is_verbose() {
        true => WholeDirs::default().group(later),
        false => dirs.group(later),
    };
    let line = |one: AutorunGroup| match one.files {
        1 => {
            let within = one.within.map(|within| format!(", in {within} only"));
            let within = within.unwrap_or_default();
            format!("{word}  {resource}:{}  {}{within}", one.path, one.why)
        }
        files => {
            let more = format!("{files} files in a new directory, the first: {}", one.why);
            format!("{word}  {resource}:{}/  {more}", one.path)
        }
    };
    let mut lines: Vec<String> = folded.into_iter().map(line).collect();
    if let Some(first) = ignored.iter().min_by_key(|one| one.weight) {
        let (files, path, why) = (ignored.len(), &first.path, first.why);
        lines.push(format!(
            "{word}  {resource}: {files} files that git ignores, the first: {path}  {why}"
        ));
    }
    lines
}

fn facts(facts: &EntryInfo) -> Value {
    let mut document = json!({"type": facts.kind, "size": facts.size, "mode": facts.mode});
    if let Some(target) = &facts.target {
        document["target"] = location(target);
    }
    document
}

/// How many changes of which kind, in words.
pub(crate) fn sum(view: &DiffView) -> String {
    sum_without(view, &CountedChanges::default())
}

/// The same without what is counted apart.
pub(crate) fn sum_without(view: &DiffView, counted: &CountedChanges) -> String {
    let summary = ChangeSummary::without(view, counted);
    let directories = match summary.directories {
        1 => "directory",
        _ => "directories",
    };
    let parts = [
        (summary.added, "added"),
        (summary.modified, "modified"),
        (summary.deleted, "deleted"),
        (summary.type_changed, "changed type"),
        (summary.mode_changed, "changed mode"),
        (summary.directories, directories),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    parts.join(", ")
}

/// What a sandbox changed: the sum of what is listed, and what is only counted.
pub(crate) fn heads(sum: String, by_git: &CountedChanges, ignored: &DiffView) -> Vec<String> {
    let mut lines = Vec::from_iter((!sum.is_empty()).then_some(sum));
    if !by_git.is_empty() {
        lines.push(by_git.line("ignored by git"));
    }
    if !ignored.is_empty() {
        lines.push(CountedChanges::all(ignored).line("left out by `diff.ignore`"));
    }
    if lines.is_empty() {
        lines.push("no changes".to_owned());
    }
    lines
}

/// What everybody is to read of the changes before they are released.
pub(crate) fn warning_lines(resource: &str, diff: &DiffView) -> Vec<String> {
    let word = paint(Tone::Careful, "attention");
    let line = |text: &str| format!("{word}  {resource}: {}", escape_text(text.as_bytes()));
    let mut lines = Vec::new();
    for change in &diff.changes {
        let all: Vec<&str> = change.warnings().collect();
        lines.extend(all.iter().take(WARNINGS).map(|text| line(text)));
        if let Some(more) = all.len().checked_sub(WARNINGS + 1) {
            let more = more + 1;
            lines.push(line(&format!("and {more} more; `--json` has all")));
        }
    }
    lines
}

/// So many of them are shown of one change.
const WARNINGS: usize = 10;

/// Says what of the changes of a resource keeps them from being committed, which names look like others, and which paths both sides
/// changed.
pub(crate) fn obstacles(of: &ResourceDiff, plan: &str, ui: &Ui) {
    for change in &of.diff.changes {
        let Some(submodule) = submodule(change) else {
            continue;
        };
        let name = &of.view.resource.name;
        let word = paint(Tone::Careful, "cannot be committed");
        ui.say(&format!(
            "{word}  {name}: commits were made in the submodule '{submodule}', which stay inside; {}",
            go_on(of, change, submodule, plan)
        ));
    }
    for Lookalike { path, like } in lookalikes(&of.diff) {
        let (name, word) = (&of.view.resource.name, paint(Tone::Careful, "look-alike"));
        ui.say(&format!(
            "{word}  {name}:{path}  letters of another script; it looks like '{like}'"
        ));
    }
    both_sides(of, plan, ui);
}

/// The submodule in which a change says that something was committed.
pub(crate) fn submodule(change: &Change) -> Option<&str> {
    match &change.detail {
        Detail::Opaque { detail, .. } => detail["submodule"].as_str(),
        _ => None,
    }
}

/// How the rest is released all the same.
fn go_on(of: &ResourceDiff, change: &Change, submodule: &str, plan: &str) -> String {
    let Detail::Opaque { detail, .. } = &change.detail else {
        return String::new();
    };
    // A name that holds anything else is no part of a command to type.
    let plain = |text: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
        !text.starts_with('-') && text.chars().all(fits)
    };
    let at = of.view.resource.at.as_path().join(submodule);
    let at = at.to_str().filter(|at| plain(at));
    match (
        detail["was"].as_str(),
        at,
        detail["recorded"] == json!(true),
    ) {
        (Some(was), Some(at), false) => format!(
            "`escrow run --plan {plan} -- git -C {at} reset --soft {was}` makes its files uncommitted changes, which are released"
        ),
        (_, Some(_), _) if plain(submodule) => format!(
            "`escrow commit {plan} --exclude '.git/**' --exclude '{submodule}/**'` leaves it, and the history of the checkout, in the plan"
        ),
        _ => "leave it out with `--exclude`, and the history with `--exclude '.git/**'`".to_owned(),
    }
}

/// Says which paths both sides changed.
fn both_sides(of: &ResourceDiff, plan: &str, ui: &Ui) {
    let paths: Vec<&ResourcePath> = of.both_sides.keys().collect();
    if let Some(line) = both_sides_line(&of.view.resource.name, &paths, plan) {
        ui.say(&line);
    }
}

/// How many paths are named that both sides changed.
const BOTH: usize = 5;

/// The same as a line; none where there are no such paths.
pub(crate) fn both_sides_line(
    resource: &str,
    paths: &[&ResourcePath],
    plan: &str,
) -> Option<String> {
    let named = paths.iter().take(BOTH).map(|path| path.to_string());
    let more = match paths.len() {
        0 => return None,
        all if all > BOTH => format!(" and {} more", all - BOTH),
        _ => String::new(),
    };
    let word = paint(Tone::Careful, "changed on both sides");
    let named = named.collect::<Vec<_>>().join(", ");
    Some(format!(
        "{word}  {resource}: {named}{more}; `escrow diff {plan} --base` shows what the original changed"
    ))
}

/// A sandbox as JSON.
pub(crate) fn sandbox(context: &Context, view: &SandboxView) -> Result<Value, Failure> {
    let sandbox = &view.sandbox;
    let path = context.manager.path_of(view)?;
    let mut document = json!({
        "sandbox_id": sandbox.id,
        "resource": view.resource.name,
        "type": view.resource.kind,
        "original": location(&view.resource.at),
        "sandbox_path": path.map(|path| location(&Location::from(path))),
        "strategy": sandbox.reference.strategy_name,
        "requested": sandbox.requested,
        "state": sandbox.state.as_str(),
        "message": sandbox.message,
        "warnings": sandbox.warnings,
        "reasons": sandbox.reasons,
        "created_at": sandbox.created_at.to_string(),
    });
    let remarks = context.manager.remarks(view);
    if !remarks.is_empty() {
        document["remarks"] = json!(remarks);
    }
    Ok(document)
}

/// A plan as JSON.
pub(crate) fn plan(context: &Context, view: &PlanView) -> Result<Value, Failure> {
    let sandboxes: Result<Vec<Value>, Failure> = view
        .sandboxes
        .iter()
        .map(|one| sandbox(context, one))
        .collect();
    Ok(json!({
        "id": view.plan.id,
        "name": view.plan.name,
        "state": view.plan.state.as_str(),
        "directory": location(&view.plan.directory),
        "created_at": view.plan.created_at.to_string(),
        "sandboxes": sandboxes?,
    }))
}

/// Where a plan stands, for people.
pub(crate) fn state(plan: &Plan, undoable: bool) -> String {
    let state = plan.state.as_str().replace('_', " ");
    match undoable {
        true => format!("{state}, can be undone"),
        false => state,
    }
}

/// A resource as JSON.
pub(crate) fn resource(resource: &Resource) -> Value {
    json!({
        "id": resource.id,
        "name": resource.name,
        "type": resource.kind,
        "at": location(&resource.at),
        "parent": resource.parent,
        "strategy": resource.strategy,
        "created_at": resource.created_at.to_string(),
    })
}

/// A resource of the configuration that was never used, as JSON.
pub(crate) fn declared(resource: &ConfigResource, kind: Option<&str>) -> Value {
    json!({
        "id": null,
        "name": resource.name,
        "type": kind,
        "at": location(&Location::from(resource.at.as_path())),
        "parent": resource.parent,
        "strategy": resource.strategy.as_deref().unwrap_or(AUTO),
        "created_at": null,
    })
}

/// The sandboxes of a plan, a few lines each.
pub(crate) fn sandbox_lines(context: &Context, view: &PlanView, ui: &Ui) -> Result<(), Failure> {
    for one in &view.sandboxes {
        // What most are need not be said.
        let kind = match one.resource.kind == FS_DIRECTORY {
            true => String::new(),
            false => format!("{}, ", one.resource.kind),
        };
        ui.news(&format!(
            "  {}  {kind}{}, {}  {}",
            paint(Tone::Strong, &one.resource.name),
            one.sandbox.reference.strategy_name,
            one.sandbox.state,
            paint(Tone::Faint, &one.resource.at.to_string()),
        ));
        if !one.sandbox.message.is_empty() {
            ui.news(&format!("    {}", one.sandbox.message));
        }
        for remark in context.manager.remarks(one) {
            ui.news(&format!("    {remark}"));
        }
        for reason in &one.sandbox.reasons {
            ui.verbose(&format!("    {reason}"));
        }
        let sandbox = Location::from(one.sandbox.area.as_path());
        ui.verbose(&format!("    its area is {sandbox}"));
        if ui.is_verbose()
            && let Some(path) = context.manager.path_of(one)?
        {
            ui.verbose(&format!(
                "    native tools work on {}",
                Location::from(path)
            ));
        }
    }
    Ok(())
}

/// What a new sandbox does not hold.
pub(crate) fn warnings(view: &SandboxView, ui: &Ui) {
    /// More than this is a list to be asked for, not read.
    const MOST: usize = 10;
    for warning in view.sandbox.warnings.iter().take(MOST) {
        ui.warn(&format!("{}: {warning}", view.resource.name));
    }
    if view.sandbox.warnings.len() > MOST {
        let more = view.sandbox.warnings.len() - MOST;
        ui.warn(&format!(
            "{}: {more} more; `escrow --json plan show` lists all",
            view.resource.name
        ));
    }
}

/// A time for people, to the minute.
pub(crate) fn timestamp(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// How many places in the home directory are named.
const NAMED: usize = 8;

/// What was written into the home directory, the largest first.
pub(crate) fn largest(written: &DiffView) -> Vec<String> {
    let mut places: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for change in &written.changes {
        let file = |new: &&EntryInfo| new.kind == EntryKind::File;
        let Some(new) = change.new.as_ref().filter(file) else {
            continue;
        };
        let path = change.path.to_string();
        // Directories that hold something of every program say little.
        let shared = [".cache/", ".config/", ".local/share/", ".local/state/"];
        let skipped = shared
            .iter()
            .find(|one| path.starts_with(*one))
            .map_or(0, |one| one.len());
        let end = path[skipped..]
            .find('/')
            .map_or(path.len(), |at| skipped + at);
        let place = places.entry(path[..end].to_owned()).or_default();
        *place = (place.0 + new.size, place.1 + 1);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, (size, _))| std::cmp::Reverse(*size));
    let more = places.len().saturating_sub(NAMED);
    let line = |(path, (bytes, files)): &(String, (u64, u64))| {
        format!(
            "  ~/{path}  {}, {}",
            size(*bytes),
            count(*files, "file", "files")
        )
    };
    let mut lines: Vec<String> = places.iter().take(NAMED).map(line).collect();
    if more > 0 {
        lines.push(format!("  {} more", count(more as u64, "place", "places")));
    }
    if !lines.is_empty() {
        lines.push("  `--keep PATH` makes such a path part of the plan".to_owned());
    }
    lines
}
