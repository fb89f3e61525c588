//! Plans, sandboxes and resources as JSON and as lines, the same wherever they appear.

use escrow::manager::{PlanView, SandboxView};
use escrow::model::ResourcePath;
use escrow::model::text::Location;
use escrow::store::Resource;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// A path as JSON: as it is where it is UTF-8, else escaped, and marked so.
pub(crate) fn path_fields(path: &ResourcePath) -> Value {
    match std::str::from_utf8(path.as_bytes()) {
        Ok("") => json!({"path": "."}),
        Ok(text) => json!({"path": text}),
        Err(_) => json!({"path": path.to_string(), "path_escaped": true}),
    }
}

/// A path of the machine as JSON: as it is where it is UTF-8, else escaped.
pub(crate) fn location(at: &Location) -> Value {
    match std::str::from_utf8(at.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(at),
    }
}

/// A sandbox as JSON.
pub(crate) fn sandbox(context: &Context, view: &SandboxView) -> Result<Value, Failure> {
    let sandbox = &view.sandbox;
    let path = context.manager.path_of(view)?;
    Ok(json!({
        "sandbox_id": sandbox.id,
        "resource": view.resource.name,
        "original": location(&view.resource.at),
        "sandbox_path": path.map(|path| location(&Location::from(path))),
        "strategy": sandbox.reference.strategy,
        "requested": sandbox.requested,
        "state": sandbox.state.as_str(),
        "message": sandbox.message,
        "warnings": sandbox.warnings,
        "reasons": sandbox.reasons,
        "created_at": sandbox.created_at.to_string(),
    }))
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

/// The sandboxes of a plan, a few lines each.
pub(crate) fn sandbox_lines(context: &Context, view: &PlanView, ui: &Ui) -> Result<(), Failure> {
    for one in &view.sandboxes {
        ui.news(&format!(
            "  {}  {}, {}  {}",
            paint(Tone::Strong, &one.resource.name),
            one.sandbox.reference.strategy,
            one.sandbox.state,
            paint(Tone::Faint, &one.resource.at.to_string()),
        ));
        if !one.sandbox.message.is_empty() {
            ui.news(&format!("    {}", one.sandbox.message));
        }
        for reason in &one.sandbox.reasons {
            ui.whisper(&format!("    {reason}"));
        }
        let sandbox = Location::from(one.sandbox.area.as_path());
        ui.whisper(&format!("    its area is {sandbox}"));
        if let Some(path) = context.manager.path_of(one)? {
            ui.whisper(&format!(
                "    native tools work in {}",
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

/// A moment for people, to the minute.
pub(crate) fn moment(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}
