//! `escrow agent setup`: enters Escrow's hooks into the configuration of a coding agent, and takes them out again.

use std::path::PathBuf;

use clap::Args;
use escrow::config::{read_user_file, replace_user_file};
use escrow::error::Error;
use escrow::model::text::Location;
use serde_json::{Value, json};

use super::super::hook::Client;
use super::super::show;
use super::json_edit;
use crate::context;
use crate::error::Failure;
use crate::ui::Ui;

/// Enter Escrow's hooks into an agent's configuration
///
/// Shows what would change in ~/.claude/settings.json or ~/.codex/hooks.json (CLAUDE_CONFIG_DIR and CODEX_HOME count). With
/// `--write` it is changed: everything else in the file stays byte for byte, and the file is replaced as a whole. `--remove` takes
/// the hooks out, and shows that. A file that is no JSON object is refused.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow agent setup claude\n  escrow agent setup claude --write\n  escrow agent setup claude --remove"
)]
pub(crate) struct AgentSetupArgs {
    /// The agent
    #[arg(value_enum, value_name = "NAME")]
    name: Client,
    /// Change the file; without it the change is only shown
    #[arg(long)]
    write: bool,
    /// Take the hooks out instead
    #[arg(long)]
    remove: bool,
}

/// The events of an agent, each with the agent's time limit in seconds. A tool call is answered within 30 s, or denied; the other
/// events may copy a large project.
fn events(client: Client) -> &'static [(&'static str, u32)] {
    const CLAUDE: [(&str, u32); 7] = [
        ("PreToolUse", 60),
        ("SessionStart", 600),
        ("UserPromptSubmit", 600),
        ("Stop", 600),
        ("SessionEnd", 600),
        ("WorktreeCreate", 600),
        ("WorktreeRemove", 600),
    ];
    const CODEX: [(&str, u32); 5] = [
        ("PreToolUse", 60),
        ("SessionStart", 600),
        ("UserPromptSubmit", 600),
        ("Stop", 600),
        // Codex gives no more, and warns of more.
        ("SessionEnd", 3),
    ];
    match client {
        Client::Claude => &CLAUDE,
        Client::Codex => &CODEX,
    }
}

/// The command of a hook. For a tool call a missing or crashed escrow must deny, which is status 2; for every other event that
/// status would stop the user's work.
fn command(client: Client, event: &str) -> String {
    let name = client.name();
    match event {
        "PreToolUse" => format!("escrow hook {name} || exit 2"),
        _ => format!("escrow hook {name}"),
    }
}

/// The entry of an event in the agent's configuration.
fn entry(client: Client, event: &str, timeout: u32) -> Value {
    json!({"hooks": [{
        "type": "command",
        "command": command(client, event),
        "timeout": timeout,
    }]})
}

/// Returns whether an entry holds Escrow's command and no other; its time limit and matcher may differ.
fn is_own(client: Client, event: &str, entry: &Value) -> bool {
    let hooks = entry["hooks"].as_array().map_or(&[][..], Vec::as_slice);
    let own = command(client, event);
    !hooks.is_empty() && hooks.iter().all(|hook| hook["command"] == own.as_str())
}

/// The file that holds an agent's hooks.
fn file(client: Client) -> Result<PathBuf, Failure> {
    let (home, name) = match client {
        Client::Claude => (
            context::agent_home("CLAUDE_CONFIG_DIR", ".claude"),
            "settings.json",
        ),
        Client::Codex => (context::agent_home("CODEX_HOME", ".codex"), "hooks.json"),
    };
    let unknown = || Failure::failed("HOME is not set, so the agent's configuration is not known");
    Ok(home.ok_or_else(unknown)?.join(name))
}

/// A file and what would become of it.
struct Edit {
    file: PathBuf,
    old: Option<String>,
    /// `None` where nothing of it would be left.
    new: Option<String>,
}

impl Edit {
    fn new(client: Client, remove: bool) -> Result<Self, Failure> {
        let file = file(client)?;
        let at = Location::from(file.as_path());
        let old = read_user_file(&file)
            .map_err(Error::from)?
            .map(String::from_utf8);
        let unusable = |why: String| {
            Failure::failed(format!("'{at}' was not changed: {why}"))
                .hint("correct the file, or enter the hooks by hand (`docs/guides/hooks.md`)")
        };
        let old = old
            .transpose()
            .map_err(|_| unusable("it is no UTF-8".to_owned()))?;
        let mut text = match &old {
            Some(old) if !old.trim().is_empty() => old.clone(),
            _ => "{}\n".to_owned(),
        };
        json_edit::check(&text).map_err(unusable)?;
        for (event, timeout) in events(client) {
            let wanted = entry(client, event, *timeout);
            let own = |one: &Value| is_own(client, event, one);
            text = match remove {
                true => json_edit::remove(&text, event, own),
                false => json_edit::insert(&text, event, &wanted, own),
            }
            .map_err(unusable)?;
        }
        // A file that setup created is deleted.
        let made = remove && old.is_some() && text == "{}\n";
        let new = match (&old, remove) {
            (None, true) => None,
            _ => Some(text).filter(|_| !made),
        };
        Ok(Self { file, old, new })
    }

    /// Returns whether tool calls have hooks of others too.
    fn has_others(&self, client: Client) -> bool {
        let text = self.new.as_deref().unwrap_or_default();
        let all: Value = serde_json::from_str(text).unwrap_or_default();
        let entries = all["hooks"]["PreToolUse"].as_array();
        let mut entries = entries.into_iter().flatten();
        entries.any(|one| !is_own(client, "PreToolUse", one))
    }

    fn is_needed(&self) -> bool {
        self.old != self.new
    }

    fn write(&self) -> Result<(), Failure> {
        let new = self.new.as_ref().map(String::as_bytes);
        Ok(replace_user_file(&self.file, new).map_err(Error::from)?)
    }
}

impl AgentSetupArgs {
    pub(crate) fn run(&self, ui: &Ui) -> Result<(), Failure> {
        let edit = Edit::new(self.name, self.remove)?;
        let at = Location::from(edit.file.as_path());
        if !self.remove && edit.has_others(self.name) {
            ui.notice(&format!(
                "'{at}' has other hooks for tool calls: the agent runs all of them, and one that changes a call can replace Escrow's answer"
            ));
        }
        let writes = self.write || self.remove;
        if writes && edit.is_needed() {
            edit.write()?;
        }
        if ui.is_json() {
            ui.document(json!({
                "agent": self.name.name(),
                "file": show::location(&at),
                "changes": edit.is_needed(),
                "written": writes && edit.is_needed(),
            }));
            return Ok(());
        }
        if !edit.is_needed() {
            ui.say(&match self.remove {
                true => format!("'{at}' has no hooks of Escrow"),
                false => format!("'{at}' has the hooks already"),
            });
            return Ok(());
        }
        let text = |side: &Option<String>| side.clone().unwrap_or_default().into_bytes();
        let name = at.to_string();
        let shown = escrow::diff::text(&text(&edit.old), &text(&edit.new), &name, &name);
        ui.bytes(&shown);
        match writes {
            true if edit.new.is_none() => {
                ui.news(&format!("removed '{at}', which had nothing else"))
            }
            true => ui.news(&format!("wrote '{at}'")),
            false => ui.say("nothing was written: `--write` does"),
        }
        Ok(())
    }
}

/// The files of agents that hold hooks of Escrow. A file that cannot be read is named by its error.
pub(crate) fn installed() -> Vec<(Client, Result<PathBuf, Failure>)> {
    let edits = [Client::Claude, Client::Codex].map(|client| (client, Edit::new(client, true)));
    let needed = edits.into_iter().filter_map(|(client, edit)| match edit {
        Ok(edit) => edit.is_needed().then_some((client, Ok(edit.file))),
        Err(failure) => Some((client, Err(failure))),
    });
    needed.collect()
}

/// Takes the hooks out of the configuration of an agent.
pub(crate) fn take_out(client: Client) -> Result<(), Failure> {
    Edit::new(client, true)?.write()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_have_the_hooks_that_setup_enters() {
        let files = [
            (
                Client::Claude,
                include_str!("../../../../../integrations/claude-plugin/hooks/hooks.json"),
            ),
            (
                Client::Codex,
                include_str!("../../../../../integrations/codex-plugin/hooks/hooks.json"),
            ),
        ];
        for (client, text) in files {
            let plugin: Value = serde_json::from_str(text).expect("JSON");
            let hooks = plugin["hooks"].as_object().expect("hooks");
            assert_eq!(hooks.len(), events(client).len());
            for (event, timeout) in events(client) {
                assert_eq!(
                    hooks[*event],
                    json!([entry(client, event, *timeout)]),
                    "{event}"
                );
            }
        }
    }
}
