//! `escrow doctor`: what works here, and why the rest does not.

use std::path::PathBuf;

use clap::Args;
use escrow::manager::Resolver;
use escrow::model::resource::is_url;
use escrow::run::{Wall, runs_in_copy};
use serde_json::{Value, json};

use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Explain which strategies work for a directory or a database on this machine, and why the others do not
///
/// Of a PostgreSQL database it also says what the server lacks, and which prepared transactions wait there.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow doctor ./app\n  escrow doctor data/app.db\n  escrow doctor postgres:///shop"
)]
pub(crate) struct DoctorArgs {
    /// A directory, a file, or the URL of a database; the current directory if left out
    #[arg(value_name = "LOCATION")]
    location: Option<PathBuf>,
    /// Print how to permit user namespaces, for a shell; nothing is changed
    #[arg(long, conflicts_with = "location")]
    fix: bool,
}

impl DoctorArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        if self.fix {
            return fix(context, ui);
        }
        let location = match self.location {
            Some(url) if is_url(url.as_os_str()) => url,
            Some(path) => context.directory.join(path),
            None => context.directory.clone(),
        };
        let doctor = context.manager.doctor(&location)?;
        let confined = match doctor.resolver {
            Resolver::Kernel => "by the kernel (openat2)",
            Resolver::Checked => "name by name: this kernel has no openat2, or a filter forbids it",
        };
        let no_run = context.manager.why_no_run();
        let copy = no_run.as_deref().and_then(runs_in_copy);
        if let Some(risk) = context.manager.state_risk() {
            ui.notice(&risk);
        }
        let walls = escrow::run::walls(no_run.as_deref());
        let mut scope = walls.iter().filter(|wall| wall.name == "socket scope");
        let scopes = scope.all(|wall| wall.missing.is_none());
        if ui.is_json() {
            let strategies: Vec<Value> = doctor
                .verdicts
                .iter()
                .map(|one| {
                    json!({
                        "name": one.name,
                        "works": one.probe.works,
                        "reason": one.probe.reason,
                        "limit": one.probe.limit,
                        "capabilities": one.capabilities,
                    })
                })
                .collect();
            ui.document(json!({
                "at": show::location(&doctor.at),
                "area": show::location(&doctor.area),
                "area_reason": doctor.area_reason,
                "paths_confined": confined,
                "auto": doctor.auto,
                "strategies": strategies,
                "run": {
                    "works": no_run.is_none() || copy.is_some(),
                    "mode": match (&no_run, copy) {
                        (None, _) => "namespaces",
                        (Some(_), Some(_)) => "copy",
                        (Some(_), None) => "none",
                    },
                    "reason": no_run,
                    "scopes_abstract_sockets": scopes,
                    "walls": walls.iter().map(document).collect::<Vec<_>>(),
                },
            }));
            return Ok(());
        }
        ui.line(&paint(Tone::Strong, &doctor.at.to_string()));
        ui.line(&format!(
            "  auto takes {}",
            paint(Tone::Strong, &doctor.auto)
        ));
        for one in &doctor.verdicts {
            let verdict = match (one.probe.works, &one.probe.limit) {
                (true, None) => paint(Tone::Good, "works"),
                (true, Some(_)) => paint(Tone::Careful, "works"),
                (false, _) => paint(Tone::Careful, "no   "),
            };
            ui.line(&format!(
                "  {verdict}  {:<16} {}",
                one.name, one.probe.reason
            ));
            if let Some(limit) = &one.probe.limit {
                ui.line(&format!("         {:<16} but {limit}", ""));
            }
        }
        ui.line(&format!("  sandboxes are made in {}", doctor.area));
        ui.line(&format!("    {}", doctor.area_reason));
        ui.line(&format!("  paths are confined {confined}"));
        match no_run.as_deref() {
            None => ui.line("  escrow run works: namespaces and mounts of its own, without root"),
            Some(why) if copy.is_some() => {
                ui.line("  escrow run works in a copy, confined by Landlock and a system call filter alone");
                ui.line(&format!("    {why}"));
                ui.line("    `escrow doctor --fix` says how to get all walls");
            }
            Some(why) => ui.line(&format!("  escrow run does not work here: {why}")),
        }
        for wall in &walls {
            show_wall(wall, ui);
        }
        Ok(())
    }
}

/// Says how to permit namespaces.
fn fix(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let no_run = context.manager.why_no_run();
    let program = context::program();
    let commands = no_run.as_ref().map(|_| escrow::run::fix(program.as_path()));
    if ui.is_json() {
        ui.document(json!({ "needed": no_run.is_some(), "reason": no_run, "commands": commands }));
        return Ok(());
    }
    match commands {
        None => ui.say("nothing to fix: user namespaces are available"),
        Some(commands) => commands.lines().for_each(|line| ui.line(line)),
    }
    Ok(())
}

fn document(wall: &Wall) -> Value {
    json!({
        "name": wall.name,
        "there": wall.missing.is_none(),
        "protects": wall.protects,
        "reason": wall.missing,
        "hint": wall.hint,
    })
}

fn show_wall(wall: &Wall, ui: &Ui) {
    let there = match wall.missing {
        None => paint(Tone::Good, "there"),
        Some(_) => paint(Tone::Careful, "not  "),
    };
    ui.line(&format!("    {there}  {:<18} {}", wall.name, wall.protects));
    for more in wall.missing.iter().chain(&wall.hint) {
        ui.line(&format!("           {:<18} {more}", ""));
    }
}
