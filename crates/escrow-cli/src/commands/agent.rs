//! `escrow agent`: the coding agents that are known, what each keeps, and what it wanted to change of its configuration.

pub(super) mod json_edit;
pub(super) mod setup;

use std::sync::Arc;

use clap::{Args, Subcommand};
use escrow::agents::{AgentPreset, WantedChange};
use escrow::model::text::{Location, escape};
use serde_json::{Value, json};

use super::show;
use crate::amount::size;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Show the coding agents that are known and what they keep, and connect them with Escrow
///
/// An agent that `escrow run` starts finds its login and its sessions, and does not ask for permission: nothing that it does is final.
/// What it keeps lives in an agent home of Escrow's own. What it, or a later start of it, would execute (settings, hooks, plugins,
/// skills, MCP servers) is never written through: the end of a run names it, and here it can be looked at and taken over.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    verb: AgentVerb,
}

#[derive(Debug, Subcommand)]
enum AgentVerb {
    List(ListArgs),
    Show(ShowArgs),
    Diff(DiffArgs),
    Accept(AcceptArgs),
    Setup(setup::AgentSetupArgs),
}

/// List the known agents: which are installed, and what their homes take
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow agent list")]
struct ListArgs {}

/// Show the preset of an agent: what it keeps, what is kept out, and where its home is
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow agent show claude")]
struct ShowArgs {
    /// The agent
    name: String,
}

/// Show what an agent wanted to change of its configuration
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow agent diff claude")]
struct DiffArgs {
    /// The agent
    name: String,
}

/// Take over what an agent wanted to change of its configuration, or forget it
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow agent accept claude ~/.claude/skills/review\n  \
        escrow agent accept claude ~/.claude/settings.json --drop"
)]
struct AcceptArgs {
    /// The agent
    name: String,
    /// A file, or a directory and everything in it
    path: String,
    /// Forget the change instead
    #[arg(long)]
    drop: bool,
}

impl AgentArgs {
    /// Does what needs no state, if that was typed.
    pub(super) fn without_state(&self, ui: &Ui) -> Option<Result<(), Failure>> {
        match &self.verb {
            AgentVerb::Setup(args) => Some(args.run(ui)),
            _ => None,
        }
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            AgentVerb::Setup(args) => args.run(ui),
            AgentVerb::List(_) => list(context, ui),
            AgentVerb::Show(args) => args.run(context, ui),
            AgentVerb::Diff(args) => args.run(context, ui),
            AgentVerb::Accept(args) => args.run(context, ui),
        }
    }
}

/// The preset of a name that was typed.
fn preset(context: &Context, name: &str) -> Result<Arc<AgentPreset>, Failure> {
    let agents = context.manager.agents();
    let known: Vec<String> = agents.all().map(|one| one.name.clone()).collect();
    agents.named(name).cloned().ok_or_else(|| {
        Failure::not_found(format!("there is no preset for an agent '{name}'"))
            .hint(format!("the known agents are {}", known.join(", ")))
    })
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let manager = &context.manager;
    let homes = manager.agent_homes()?;
    let installed = manager.installed_agents();
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for preset in manager.agents().all() {
        let found = installed.iter().find(|one| one.name == preset.name);
        let home = homes.iter().find(|(one, _)| one.name == preset.name);
        let path = found.map(|one| &one.path);
        let version = found.and_then(|one| one.version.clone());
        let bytes = home.map(|(_, bytes)| *bytes);
        documents.push(json!({
            "name": preset.name,
            "title": preset.title,
            "installed": found.is_some(),
            "path": path.map(show::location),
            "version": version,
            "home": home.map(|(one, _)| show::location(&Location::from(one.path.as_path()))),
            "home_bytes": bytes,
            "wanted": manager.agent_changes(preset)?.len(),
        }));
        rows.push([
            preset.name.clone(),
            preset.title.clone(),
            match (path, version) {
                (None, _) => "not installed".to_owned(),
                (Some(_), Some(version)) => version,
                (Some(_), None) => "installed".to_owned(),
            },
            path.map_or_else(String::new, ToString::to_string),
            bytes.map_or_else(String::new, size),
        ]);
    }
    if ui.is_json() {
        ui.document(json!({"agents": documents}));
        return Ok(());
    }
    ui.table(["AGENT", "NAME", "VERSION", "PROGRAM", "HOME"], rows);
    Ok(())
}

impl ShowArgs {
    fn run(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let manager = &context.manager;
        let preset = preset(context, &self.name)?;
        let homes = manager.agent_homes()?;
        let home = homes.iter().find(|(one, _)| one.name == preset.name);
        let changes = manager.agent_changes(&preset)?;
        let at = home.map(|(one, _)| Location::from(one.path.as_path()));
        if ui.is_json() {
            ui.document(json!({
                "name": preset.name,
                "preset": *preset,
                "home": at.as_ref().map(show::location),
                "home_bytes": home.map(|(_, bytes)| bytes),
                "wanted": changes.iter().map(document).collect::<Vec<_>>(),
            }));
            return Ok(());
        }
        ui.line(&paint(Tone::Strong, &preset.title));
        match (&at, home) {
            (Some(at), Some((_, bytes))) => ui.line(&format!("home: '{at}', {}", size(*bytes))),
            _ => ui.line("home: made by the first run"),
        }
        let own = |paths: &[String]| -> Vec<String> {
            paths.iter().map(|path| format!("~/{path}")).collect()
        };
        let merged: Vec<String> = preset.merged.iter().map(|one| one.file.clone()).collect();
        let flags = preset.flags.iter().flatten();
        let flags: Vec<String> = flags.flat_map(|flag| flag.words.clone()).collect();
        let set = preset.set.iter();
        let set: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
        for (what, all) in [
            ("kept in its home", own(&preset.state)),
            (
                "its login, kept in step with the real files",
                own(&preset.credentials),
            ),
            ("by key: state merged, configuration kept out", own(&merged)),
            ("secrets of yours that it reads", own(&preset.secrets)),
            (
                "executed or obeyed: never written through",
                own(&preset.executes),
            ),
            ("variables that it gets", preset.variables.clone()),
            ("variables that are set", set),
            ("words that make it stop asking", flags),
            ("hosts of `--network preset`", preset.hosts.clone()),
        ] {
            if !all.is_empty() {
                ui.line(&format!("{what}:"));
                all.iter().for_each(|one| ui.line(&format!("  {one}")));
            }
        }
        let name = &preset.name;
        for one in &changes {
            ui.line(&format!(
                "{} ~/{}: {}",
                paint(Tone::Careful, "wanted to change"),
                escape(one.path.as_bytes()),
                escape(one.summary.as_bytes())
            ));
        }
        if !changes.is_empty() {
            ui.say(&format!("`escrow agent diff {name}` shows it"));
        }
        Ok(())
    }
}

impl DiffArgs {
    fn run(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let manager = &context.manager;
        let preset = preset(context, &self.name)?;
        let name = &preset.name;
        let mut documents = Vec::new();
        for change in manager.agent_changes(&preset)? {
            let (real, wanted) = manager.agent_versions(&preset, &change)?;
            let (old, new) = (real.unwrap_or_default(), wanted.unwrap_or_default());
            let path = format!("~/{}", escape(change.path.as_bytes()));
            let text = escrow::diff::text(&old, &new, &path, &path);
            match ui.is_json() {
                true => {
                    let mut one = document(&change);
                    one["diff"] = json!(String::from_utf8_lossy(&text));
                    documents.push(one);
                }
                false => {
                    let text = String::from_utf8_lossy(&text);
                    text.lines().for_each(|line| ui.line(line));
                }
            }
        }
        if ui.is_json() {
            ui.document(json!({"name": name, "changes": documents}));
        } else if manager.agent_changes(&preset)?.is_empty() {
            ui.say(&format!(
                "{name} wanted to change nothing of its configuration"
            ));
        } else {
            ui.say(&format!(
                "`escrow agent accept {name} PATH` takes one over, with `--drop` it is forgotten"
            ));
        }
        Ok(())
    }
}

impl AcceptArgs {
    fn run(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let manager = &context.manager;
        let preset = preset(context, &self.name)?;
        let name = &preset.name;
        let typed = manager.below_home(&self.path);
        let all = manager.agent_changes(&preset)?;
        let below = |one: &&WantedChange| {
            let rest = one.path.strip_prefix(typed.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let meant: Vec<&WantedChange> = all.iter().filter(below).collect();
        if meant.is_empty() {
            let what = format!("{name} wanted to change nothing at '{}'", self.path);
            return Err(Failure::not_found(what)
                .hint(format!("`escrow agent show {name}` lists what it wanted")));
        }
        for one in &meant {
            match self.drop {
                true => manager.drop_agent_change(&preset, one)?,
                false => manager.accept_agent_change(&preset, one)?,
            }
            let path = escape(one.path.as_bytes());
            ui.say(&match self.drop {
                true => format!("forgot the change of ~/{path}"),
                false => format!("took over ~/{path}: {}", escape(one.summary.as_bytes())),
            });
        }
        if ui.is_json() {
            let paths = meant.iter().map(|one| format!("~/{}", one.path));
            ui.document(
                json!({"name": name, "accepted": !self.drop, "paths": paths.collect::<Vec<_>>()}),
            );
        }
        Ok(())
    }
}

fn document(change: &WantedChange) -> Value {
    json!({
        "path": format!("~/{}", change.path),
        "summary": change.summary,
        "plan": change.plan,
    })
}
