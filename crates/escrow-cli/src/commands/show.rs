//! Plans, sandboxes and resources as JSON and as lines, the same in every command.

use std::collections::BTreeMap;

use escrow::Resource;
use escrow::config::ConfigResource;
use escrow::diff::ChangeSummary;
use escrow::manager::{PlanView, SandboxView};
use escrow::model::resource::FS_DIRECTORY;
use escrow::model::text::Location;
use escrow::model::{
    AutorunChange, AutorunGroup, Change, Conflict, Detail, DiffView, EntryInfo, EntryKind,
    ResourcePath, WholeDirs,
};
use escrow::strategy::registry::AUTO;
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
        Detail::Opaque { detail } => more["detail"] = detail.clone(),
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

/// What will run later, for people: what weighs most first, and the files of a new directory as one line unless all are asked for.
pub(crate) fn later_lines(
    resource: &str,
    later: &[AutorunChange],
    dirs: &WholeDirs,
    ui: &Ui,
) -> Vec<String> {
    let word = paint(Tone::Careful, "runs later");
    let folded = match ui.is_verbose() {
        true => WholeDirs::default().group(later),
        false => dirs.group(later),
    };
    let line = |one: AutorunGroup| match one.files {
        1 => format!("{word}  {resource}:{}  {}", one.path, one.why),
        files => {
            let more = format!("{files} files in a new directory, the first: {}", one.why);
            format!("{word}  {resource}:{}/  {more}", one.path)
        }
    };
    folded.into_iter().map(line).collect()
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
    let summary = ChangeSummary::of(view);
    let parts = [
        (summary.added, "added"),
        (summary.modified, "modified"),
        (summary.deleted, "deleted"),
        (summary.type_changed, "changed type"),
        (summary.mode_changed, "changed mode"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    parts.join(", ")
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
