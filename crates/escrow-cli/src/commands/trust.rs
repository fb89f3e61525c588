//! `escrow trust`: shows a configuration and lets all of it count.

use std::path::PathBuf;

use clap::Args;
use escrow::TrustedConfig;
use escrow::manager::ExaminedConfig;
use escrow::model::text::escape;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Let an escrow.yaml that lies in a tree count as a whole
///
/// A configuration that is found in a tree may only tighten: the author of the tree must not loosen its
/// sandbox. What loosens (paths that are written for real, variables, the network, programs, sandboxes that do
/// not isolate) counts after this, for this file with this very content. Where it was trusted before with
/// another content, the difference is shown, otherwise the whole file.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow trust\n  escrow trust ../other/escrow.yaml --yes\n  \
        escrow trust --list\n  escrow trust --remove"
)]
pub(crate) struct TrustArgs {
    /// The file; the one that is found here or above if left out
    file: Option<PathBuf>,
    /// List the files that are trusted
    #[arg(long, conflicts_with_all = ["file", "remove"])]
    list: bool,
    /// Trust the file no more, whatever its content
    #[arg(long)]
    remove: bool,
}

impl TrustArgs {
    pub(crate) fn run(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match (self.list, self.remove) {
            (true, _) => list(context, ui),
            (_, true) => self.remove(context, ui),
            _ => self.trust(context, ui),
        }
    }

    fn trust(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let examined = context.manager.examine_config(self.file.as_deref())?;
        let was = examined.is_trusted();
        let diff = difference(&examined);
        if !ui.is_json() {
            show_report(&examined, diff.as_deref(), ui);
        }
        if !was && !ui.says_yes() && (ui.is_json() || !ui.asks()) {
            let what = format!(
                "not trusted: '{}' needs an answer, and there is no terminal to ask on",
                examined.file
            );
            let hint = "read the file, then `escrow trust --yes`";
            return Err(Failure::usage(what).hint(hint));
        }
        let question = format!("Trust '{}' with this content?", examined.file);
        if !was && !ui.confirm(&question) {
            return Err(Failure::failed("nothing was trusted"));
        }
        if !was {
            context.manager.trust_config(&examined)?;
        }
        if ui.is_json() {
            ui.document(json!({
                "file": show::location(&examined.file),
                "digest": examined.digest,
                "trusted": true,
                "changed": diff.is_some(),
                "diff": diff,
                "loosens": examined.loosens.iter().map(|one| json!({"key": one.key, "what": one.what, "all": one.all})).collect::<Vec<_>>(),
                "content": content(&examined),
            }));
            return Ok(());
        }
        let word = if was {
            "is trusted already"
        } else {
            "is trusted"
        };
        ui.news(&format!("'{}' {word}", examined.file));
        Ok(())
    }

    fn remove(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (file, removed) = context.manager.distrust_config(self.file.as_deref())?;
        if ui.is_json() {
            let file = show::location(&file);
            ui.document(json!({"file": file, "trusted": false, "removed": removed}));
            return Ok(());
        }
        let word = match removed {
            true => "is not trusted any more",
            false => "was not trusted",
        };
        ui.news(&format!("'{file}' {word}"));
        Ok(())
    }
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let all = context.manager.trusted_configs()?;
    if ui.is_json() {
        let one = |one: &TrustedConfig| {
            json!({
                "file": show::location(&one.path),
                "digest": one.digest,
                "trusted_at": one.trusted_at.to_string(),
            })
        };
        let files: Vec<Value> = all.iter().map(one).collect();
        ui.document(json!({"files": files}));
        return Ok(());
    }
    let rows = all.iter().map(|one| {
        [
            one.trusted_at.strftime("%Y-%m-%d %H:%M").to_string(),
            one.digest[..12].to_owned(),
            one.path.to_string(),
        ]
    });
    ui.table(["TRUSTED", "DIGEST", "FILE"], rows);
    Ok(())
}

/// What changed since the file was trusted last, line by line.
fn difference(examined: &ExaminedConfig) -> Option<String> {
    let before = examined.before.as_ref();
    let before = before.filter(|before| before.digest != examined.digest)?;
    let text = escrow::diff::text(&before.content, &examined.content, "trusted", "now");
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The whole file, where nothing of it was trusted before: there is no difference to show.
fn content(examined: &ExaminedConfig) -> Option<Vec<String>> {
    let text = examined.content.as_slice();
    let lines = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = lines.split(|byte| *byte == b'\n');
    let lines = lines.map(escape).collect();
    examined.before.is_none().then_some(lines)
}

fn show_report(examined: &ExaminedConfig, diff: Option<&str>, ui: &Ui) {
    // It belongs to the question, not to the answer.
    let aside = ui.aside();
    aside.line(&format!("'{}'", examined.file));
    for one in &examined.loosens {
        aside.line(&format!(
            "  {}  {}",
            paint(Tone::Strong, &one.key),
            one.what
        ));
        for named in &one.all {
            aside.line(&format!("    {named}"));
        }
    }
    if examined.loosens.is_empty() {
        aside.line("  it loosens nothing, so it needs no trust");
    }
    if let Some(diff) = diff {
        aside.line("since it was trusted, this changed:");
        for line in diff.lines() {
            aside.line(&escape(line.as_bytes()));
        }
    }
    if let Some(lines) = content(examined) {
        aside.line("all of it:");
        for line in lines {
            aside.line(&format!("  | {line}"));
        }
    }
}
