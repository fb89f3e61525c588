//! `escrow gc`: deletes leftovers of finished plans.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use escrow::error::Kind;
use escrow::manager::{GarbageReport, GarbageRequest, Leftover, LeftoverKind, Manager, Orphan};
use escrow::model::units;
use serde_json::{Value, json};

use super::{hook, show};
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Ui, count, size};

/// Delete leftovers of finished plans, and orphans
///
/// Workspaces of plans that were committed or rolled back go, and so does undo data older than
/// `undo.keep` (7 days); then such a plan can no longer be undone. What the state knows to be over, as a crash may
/// leave it, goes too. Open plans are named and left alone: `escrow cleanup PLAN` removes one with what
/// was done in it.
///
/// Orphans, areas without a record, are never deleted automatically: `--orphans` lists them, and `--remove`
/// deletes one once you looked into it.
///
/// One thing that cannot be removed does not stop the others. Can be run at any time, and again.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow gc --dry-run\n  escrow gc --older-than 30d\n  escrow gc --max-size 10G\n  escrow gc --orphans\n  escrow gc --orphans --remove PATH"
)]
pub(crate) struct GcArgs {
    /// Only what ended at least so long ago, such as 12h or 7d
    #[arg(long, value_name = "D", value_parser = units::duration)]
    older_than: Option<Duration>,
    /// Of what is finished, the oldest first, until the rest takes at most this, such as 10G; also what
    /// could still be undone
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_size: Option<u64>,
    /// Show what would go; remove nothing
    #[arg(long)]
    dry_run: bool,
    /// List orphans: areas without a record; delete nothing but what `--remove` names
    #[arg(long, conflicts_with_all = ["older_than", "max_size"])]
    orphans: bool,
    /// Delete this one of the areas that `--orphans` lists, with its contents
    #[arg(long, value_name = "PATH", requires = "orphans", num_args = 1..)]
    remove: Vec<PathBuf>,
}

impl GcArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        if self.orphans && self.remove.is_empty() {
            let orphans = context.manager.unrecorded()?;
            match ui.is_json() {
                true => ui.document(json!({"orphans": orphan_documents(&orphans)})),
                false => show_orphans(&orphans, ui),
            }
            return Ok(());
        }
        if !self.orphans {
            self.collect_sessions(context, ui)?;
        }
        let request = GarbageRequest {
            older_than: self.older_than,
            max_size: self.max_size,
            dry_run: self.dry_run,
        };
        let collected = match self.orphans {
            true => context
                .manager
                .remove_unrecorded(&self.remove, self.dry_run)?,
            false => context.manager.collect_garbage(&request)?,
        };
        match ui.is_json() {
            true => ui.document(document(&collected, self.dry_run)),
            false => show_report(&collected, self.dry_run, ui),
        }
        match collected.failed.is_empty() {
            true => Ok(()),
            false => Err(Failure::reported(Kind::Failed)),
        }
    }
}

impl GcArgs {
    /// Removes the plans of agents' sessions and worktrees that hold nothing and that nothing uses any more.
    fn collect_sessions(&self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        for name in hook::collect_abandoned(context, self.older_than, self.dry_run)? {
            let word = if self.dry_run {
                "would remove"
            } else {
                "removed"
            };
            ui.notice(&format!(
                "{word} the unused plan {name} of an agent's session"
            ));
        }
        Ok(())
    }

    /// Names the areas of a home whose state cannot be used; the failure stays one.
    pub(crate) fn without_state(&self, failure: Failure) -> Failure {
        let Some(home) = failure.lost_home().filter(|_| self.orphans) else {
            return failure;
        };
        match Manager::areas_without_state(home) {
            Ok(orphans) => {
                let lines = orphans.iter().map(orphan_line).collect();
                failure.with(json!({"orphans": orphan_documents(&orphans)}), lines)
            }
            Err(error) => {
                let why = escrow::error::chain(&error);
                failure.hint(format!("the areas could not be listed: {why}"))
            }
        }
    }
}

fn orphan_documents(orphans: &[Orphan]) -> Vec<Value> {
    let time = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
    let entry = |one: &Orphan| {
        json!({
            "path": show::location(&one.path),
            "what": one.what,
            "made": time(one.made),
            "changed": time(one.changed),
            "bytes": one.bytes,
            "why": one.why,
        })
    };
    orphans.iter().map(entry).collect()
}

fn orphan_line(one: &Orphan) -> String {
    let when = |word: &str, at: Option<jiff::Timestamp>| {
        let at = at.map(|at| format!("  {word} {}", at.strftime("%Y-%m-%d %H:%M:%S UTC")));
        at.unwrap_or_default()
    };
    let (made, changed) = (when("made", one.made), when("changed", one.changed));
    format!(
        "{}  {}{made}{changed}  {}",
        one.what,
        size(one.bytes),
        one.path
    )
}

fn show_orphans(orphans: &[Orphan], ui: &Ui) {
    for one in orphans {
        ui.line(&orphan_line(one));
        ui.say(&format!("  {}", one.why));
    }
    match orphans.is_empty() {
        true => ui.say("no orphans: every area has a record"),
        false => ui.say("look into them first; `escrow gc --orphans --remove PATH` deletes one with its contents"),
    }
}

fn document(collected: &GarbageReport, dry_run: bool) -> Value {
    let entry = |one: &Leftover| {
        json!({
            "kind": one.kind.as_str(),
            "plan": one.plan,
            "path": show::location(&one.path),
            "bytes": one.bytes,
        })
    };
    let with_why = |(one, why): &(Leftover, String)| {
        let mut entry = entry(one);
        entry["why"] = json!(why);
        entry
    };
    json!({
        "dry_run": dry_run,
        "removed": collected.removed.iter().map(entry).collect::<Vec<_>>(),
        "kept": collected.kept.iter().map(with_why).collect::<Vec<_>>(),
        "failed": collected.failed.iter().map(with_why).collect::<Vec<_>>(),
        "freed": collected.freed(),
    })
}

fn show_report(collected: &GarbageReport, dry_run: bool, ui: &Ui) {
    let line = |one: &Leftover| {
        let of = one.plan.as_ref().map(|plan| format!(" of {plan}"));
        let (kind, of) = (one.kind.as_str(), of.unwrap_or_default());
        format!("{kind}{of}  {}  {}", size(one.bytes), one.path)
    };
    for one in &collected.removed {
        let word = if dry_run { "would remove" } else { "removed" };
        ui.news(&format!("{word} {}", line(one)));
    }
    let mut open: BTreeMap<&str, u64> = BTreeMap::new();
    let mut undo: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (one, why) in &collected.kept {
        let text = format!("kept {}: {why}", line(one));
        match (one.kind, one.plan.as_deref()) {
            (LeftoverKind::Undo, Some(plan)) => {
                *undo.entry((plan, why)).or_default() += one.bytes;
                ui.verbose(&text);
            }
            (LeftoverKind::Open, Some(plan)) => *open.entry(plan).or_default() += one.bytes,
            (LeftoverKind::Cache, _) => ui.verbose(&text),
            _ => ui.say(&text),
        }
    }
    for ((plan, why), bytes) in &undo {
        let bytes = size(*bytes);
        ui.say(&format!("kept undo data of {plan}  {bytes}: {why}"));
    }
    if !undo.is_empty() {
        ui.say("  until then `escrow undo PLAN` can undo such a commit; `escrow gc --older-than 0s` removes it at once");
    }
    for (plan, bytes) in &open {
        ui.say(&format!(
            "kept plan {plan}, which is open  {}",
            size(*bytes)
        ));
    }
    if !open.is_empty() {
        ui.say("  `escrow cleanup PLAN` removes an open plan with what was done in it");
    }
    for (one, why) in &collected.failed {
        ui.warn(&format!("not removed: {}: {why}", line(one)));
    }
    let number = count(collected.removed.len() as u64, "thing", "things");
    let freed = size(collected.freed());
    match dry_run {
        true => ui.say(&format!("{number} would go, {freed}; nothing was removed")),
        false => ui.news(&format!("{number} removed, {freed} freed")),
    }
}
