//! `escrow commit`: commits all changes of a plan, or the selected part, or nothing.

use clap::{Args, ValueEnum};
use escrow::commit::{CommitPreview, CommitTerms, MemberPreview, check_expected};
use escrow::diff::ChangeSummary;
use escrow::error::{Error, Kind};
use escrow::manager::{CommitReport, CommitRequest};
use escrow::model::text::escape;
use escrow::model::{CountedChanges, Expected, PlanDigest, WholeDirs};
use escrow::policy::select::{ReleasePattern, ReleaseSelection};
use escrow::strategy::OnConflict;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::{Failure, reasons};
use crate::ui::{Tone, Ui, paint};

/// Commit everything that a plan's sandboxes changed, or nothing
///
/// All resources of the plan change together: an error, a crash or a power cut in the middle leaves every one
/// of them wholly old or wholly new. Where an original changed meanwhile, on a path that the sandbox changed
/// too, nothing is committed, and both versions are named.
///
/// What will run later outside of every sandbox is listed apart, with the reason: git hooks, CI files,
/// settings of editors and shells, build scripts, files that can be started.
///
/// Afterwards the sandboxes are gone; `escrow undo` takes the commit back.
///
/// With `--only` and `--exclude` a part is committed, with the same care. The rest stays in the sandboxes
/// and the plan stays open; a later `escrow commit` commits it. A pattern is `PATH-GLOB` or
/// `RESOURCE:PATH-GLOB`, as in a policy; what it names it takes with everything below. A new file brings the
/// new directories it lies in, and a directory goes only together with everything in it. A pattern that covers
/// no change is an error.
///
/// With `--expect` what is committed has this digest, which `escrow diff` and `--dry-run` print, or nothing is
/// committed (exit 4), whatever `--on-conflict` says. What is compared is what was staged, which nothing changes
/// any more. Of a part, or with `--on-conflict original` or `merge`, take the digest of a `--dry-run` with the same options.
/// At a terminal the question is bound in the same way to what was shown.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow commit try -m 'new greeting'\n  escrow commit try --dry-run\n  \
        escrow commit try --on-conflict original\n  \
        escrow commit try --expect \"$(escrow diff try --json | jq -r .digest)\"\n  \
        escrow commit try --only 'src/**' --only 'app:docs/*.md' --exclude '**/*.log'"
)]
pub(crate) struct CommitArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// Why, in your words; kept in the log
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Commit only what this covers; can be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Leave in the sandboxes what this covers; can be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Show what would happen, and what contradicts it; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Commit exactly what has this digest, or nothing
    #[arg(long, value_name = "DIGEST")]
    expect: Option<String>,
    /// Which version counts where both sides changed a path
    #[arg(long, value_enum, value_name = "WHICH", default_value = "abort")]
    on_conflict: OnConflictArg,
    /// `strict` refuses when anything in an original moved, not only what the sandbox changed too
    #[arg(long, value_enum, value_name = "HOW", default_value = "changed")]
    base: BaseArg,
    /// Commit although more than one resource can be neither prepared nor undone
    #[arg(long)]
    allow_partial: bool,
    /// Wait for a command that runs inside the plan to end, instead of refusing
    #[arg(long)]
    wait: bool,
    /// Commit what the sandboxes hold now, while a command runs inside: it is paused until everything is staged, then
    /// goes on. The plan stays open
    #[arg(long, conflicts_with = "wait")]
    live: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum OnConflictArg {
    /// Neither: nothing is committed
    Abort,
    /// The sandbox's; the original's is kept for undo
    #[value(alias = "ours")]
    Sandbox,
    /// The original's; the sandbox's is left out
    #[value(alias = "theirs")]
    Original,
    /// Both, in text files of which they changed different lines; where that cannot be done nothing is committed
    Merge,
}

impl OnConflictArg {
    pub(super) fn terms(self) -> CommitTerms {
        CommitTerms {
            on_conflict: match self {
                Self::Abort | Self::Merge => OnConflict::Abort,
                Self::Sandbox => OnConflict::Ours,
                Self::Original => OnConflict::Theirs,
            },
            merge: matches!(self, Self::Merge),
            ..CommitTerms::default()
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BaseArg {
    /// Only paths that the sandbox changed are compared
    Changed,
    /// Everything is compared
    Strict,
}

impl CommitArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let terms = CommitTerms {
            strict: matches!(self.base, BaseArg::Strict),
            allow_partial: self.allow_partial,
            ..self.on_conflict.terms()
        };
        let selection = ReleaseSelection {
            only: patterns(&self.only)?,
            exclude: patterns(&self.exclude)?,
            ..ReleaseSelection::default()
        };
        if self.wait {
            let progress = ui.progress("waiting for the command inside");
            context.manager.wait_quiet(&plan, &progress)?;
        }
        let expected = self.expect.map(|typed| whole_digest(typed, &plan.name));
        let mut expected = expected.transpose()?.map(Expected::Digest);
        let (manager, select) = (&context.manager, &selection);
        let failed = |error: Error| Failure::from(error).about("committed");
        // What is not what was expected is said before anything is shown, asked or run.
        let look = || {
            let preview = manager.preview_part(&plan, terms, select, true);
            let preview = preview.map_err(failed)?;
            if let (Some(expected), Some(found)) = (&expected, &preview.digest) {
                check_expected(&plan, expected, found).map_err(failed)?;
            }
            Ok::<_, Failure>(preview)
        };
        if self.dry_run {
            return show_preview(context, &plan.name, &look()?, terms, ui);
        }
        manager.validations(&plan).map_err(failed)?;
        context.tell_notices(ui);
        if ui.asks() {
            let preview = look()?;
            show_report(context, &preview, terms, &ui.aside(), false);
            let question = format!("Commit the plan {} into the originals?", plan.name);
            if !ui.confirm(&question) {
                return Err(Failure::failed("nothing was committed").about("committed"));
            }
            expected = preview.digest.map(Expected::Shown);
        }
        let progress = ui.progress("committing");
        let request = CommitRequest {
            message: self.message.as_deref(),
            terms,
            expected: expected.as_ref(),
            live: self.live,
        };
        let released = manager.commit_part(&plan, &request, select, &progress);
        let released = released.map_err(failed)?;
        drop(progress);
        warn_left(&released, ui);
        let log_head = manager.log_head()?;
        if ui.is_json() {
            let mut document = document(&plan.name, &released.preview, true);
            document["message"] = json!(self.message);
            document["left"] = reasons(&released.left);
            document["log_head"] = json!(log_head);
            ui.document(document);
            return Ok(());
        }
        show_report(context, &released.preview, terms, ui, true);
        show_next(&plan.name, &released, self.live, &log_head, ui);
        Ok(())
    }
}

/// Refuses the beginning of a digest, which a terminal shows: another plan could be made to have the same.
fn whole_digest(typed: String, plan: &str) -> Result<String, Failure> {
    match typed.ends_with('…') {
        true => Err(
            Failure::usage(format!("'{typed}' is only the beginning of a digest"))
                .hint(format!("`escrow diff -v {plan}` shows the whole")),
        ),
        false => Ok(typed),
    }
}

/// Says which sandboxes could not be removed.
pub(super) fn warn_left(released: &CommitReport, ui: &Ui) {
    for (resource, why) in &released.left {
        ui.warn(&format!("{resource}: committed; cleanup incomplete: {why}"));
    }
}

/// Where the log ends after a commit, and what can be done next.
pub(super) fn show_next(plan: &str, released: &CommitReport, live: bool, log_head: &str, ui: &Ui) {
    let members = released.preview.members.iter();
    let changed: Vec<_> = members.filter(|member| !member.diff.is_empty()).collect();
    let changes = !changed.is_empty();
    let lasting: Vec<&str> = changed
        .iter()
        .filter(|member| !member.undoable)
        .map(|member| member.resource.as_str())
        .collect();
    if live {
        ui.say(&format!("the plan {plan} stays open"));
    } else if released.preview.left() > 0 {
        ui.say(&format!("`escrow commit {plan}` commits the rest"));
    }
    if changes {
        ui.say(&format!("log: {}", ui.short(log_head)));
    }
    match lasting.is_empty() {
        true if changes => ui.say(&format!("undo with `escrow undo {plan}`")),
        true => {}
        false => ui.say(&format!(
            "`escrow undo {plan}` cannot take back what was committed in {}",
            lasting.join(", ")
        )),
    }
}

pub(super) fn patterns(typed: &[String]) -> Result<Vec<ReleasePattern>, Failure> {
    let parse = |typed: &String| {
        ReleasePattern::parse(typed).map_err(|why| {
            Failure::from(Error::BadPattern {
                pattern: escape(typed.as_bytes()),
                why,
            })
        })
    };
    typed.iter().map(parse).collect()
}

fn show_preview(
    context: &Context,
    plan: &str,
    preview: &CommitPreview,
    terms: CommitTerms,
    ui: &Ui,
) -> Result<(), Failure> {
    if ui.is_json() {
        let mut document = document(plan, preview, false);
        document["dry_run"] = json!(true);
        ui.document(document);
    } else {
        show_report(context, preview, terms, ui, false);
        if let Some(digest) = preview.digest.as_ref().and_then(PlanDigest::text) {
            ui.say(&format!("digest: {}", ui.short(&digest)));
        }
        ui.say("nothing was changed");
    }
    match preview.has_conflicts(terms.on_conflict) {
        true => Err(Failure::reported(Kind::Conflict)),
        false => Ok(()),
    }
}

fn document(plan: &str, preview: &CommitPreview, committed: bool) -> Value {
    let conflicts = preview.members.iter().flat_map(|member| {
        let one = |conflict| show::conflict(&member.resource, conflict);
        member.conflicts.iter().map(one)
    });
    let conflicts: Vec<Value> = conflicts.collect();
    let resources: Vec<Value> = preview.members.iter().map(member).collect();
    let later = preview.members.iter().flat_map(|member| {
        member.runs_later.iter().map(|one| {
            let mut more = json!({"resource": member.resource, "why": one.why});
            if let Some(within) = &one.within {
                more["within"] = json!(within);
            }
            show::with_path(&one.path, more)
        })
    });
    let later: Vec<Value> = later.collect();
    json!({
        "committed": committed,
        "plan": plan,
        "digest": preview.digest.as_ref().and_then(PlanDigest::text),
        "resources": resources,
        "conflicts": conflicts,
        "left_changes": preview.left(),
        "runs_later": later,
    })
}

fn member(one: &MemberPreview) -> Value {
    let changes: Vec<Value> = one.diff.changes.iter().map(show::change).collect();
    let left: Vec<Value> = one.left.changes.iter().map(show::change).collect();
    let notes = one.notes.iter();
    let notes = notes.map(|note| show::with_path(&note.path, json!({"what": note.what})));
    let notes: Vec<Value> = notes.collect();
    json!({
        "resource": one.resource,
        "at": show::location(&one.at),
        "summary": ChangeSummary::of(&one.diff),
        "changes": changes,
        "left": left,
        "merged": one.merged.iter().map(|path| show::with_path(path, json!({}))).collect::<Vec<_>>(),
        "notes": notes,
        "undoable": one.undoable,
    })
}

/// What a person reads at a glance.
pub(super) fn show_report(
    context: &Context,
    preview: &CommitPreview,
    terms: CommitTerms,
    ui: &Ui,
    done: bool,
) {
    let by_git = |one: &MemberPreview| context.manager.ignored_by_git(&one.at, &one.diff);
    let by_git: Vec<CountedChanges> = preview.members.iter().map(by_git).collect();
    for (one, by_git) in preview.members.iter().zip(&by_git) {
        let name = paint(Tone::Strong, &one.resource);
        let sum = show::sum_without(&one.diff, by_git);
        let what = show::heads(sum, by_git, &one.ignored).join("; ");
        let what = match (one.diff.is_empty(), done) {
            (true, _) => what,
            (false, true) => format!("committed: {what}"),
            (false, false) => format!("would commit: {what}"),
        };
        ui.line(&format!("{name}: {what}"));
        if !one.left.is_empty() {
            let word = if done { "stays" } else { "would stay" };
            let sum = show::sum(&one.left);
            ui.line(&format!("{name}: {word} in the sandbox: {sum}"));
        }
        if !done && !one.undoable && !one.diff.is_empty() {
            ui.warn(&format!(
                "{}: its changes cannot be undone once they are committed",
                one.resource
            ));
        }
        for note in &one.notes {
            ui.warn(&format!("{}:{}: {}", one.resource, note.path, note.what));
        }
        for path in &one.merged {
            let word = paint(Tone::Careful, "merged");
            ui.line(&format!("  {word}  {path}  changed there and here"));
        }
        for conflict in &one.conflicts {
            let word = match terms.on_conflict {
                one if !conflict.is_settled_by(one) => paint(Tone::Bad, "conflict"),
                OnConflict::Abort => paint(Tone::Bad, "conflict"),
                OnConflict::Ours => paint(Tone::Careful, "sandbox"),
                OnConflict::Theirs => paint(Tone::Careful, "original"),
            };
            ui.line(&format!("  {word}  {}  {}", conflict.path, conflict.what));
        }
    }
    for (one, by_git) in preview.members.iter().zip(&by_git) {
        for line in show::warning_lines(&one.resource, &one.diff) {
            ui.line(&line);
        }
        let folds = (&WholeDirs::of(&one.diff), by_git);
        for line in show::later_lines(&one.resource, &one.runs_later, folds, ui) {
            ui.line(&line);
        }
    }
}
