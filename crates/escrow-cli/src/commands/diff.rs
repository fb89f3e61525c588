//! `escrow diff`: everything a plan changed, in several forms.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use escrow::diff::{self, ChangeSummary, PatchOptions, Rename, VersionContents};
use escrow::error::Error;
use escrow::manager::{ComparedSides, PlanComparison, PlanDiff, ResourceDiff, SandboxView};
use escrow::model::text::{escape, escape_text};
use escrow::model::{
    Change, ChangeKind, ChangedField, CountedChanges, Detail, DiffView, EntryInfo, ResourcePath,
    WholeDirs,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::Asker;
use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{Tone, Ui, count, paint, size};

/// Show everything that a plan's sandboxes changed
///
/// Lists what differs from the originals and nothing else: a file that was only read, touched or
/// written with the same bytes is not a change. Files are compared with what the sandbox began from: where the original
/// moved on too, the path says *changed on both sides*, `--base` shows what the original changed there, and `--original`
/// compares with the original as it is now.
///
/// The digest covers everything that would be committed: paths, contents, modes, owners, attributes and link
/// targets. It is the same for every caller, until something of that changes, and `escrow commit --expect DIGEST`
/// commits exactly that or nothing. `--name-status`, `--name-only`, `--since`, `--scratch` and paths make none.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "escrow diff [OPTIONS] [PLAN] [PATH]...",
    after_help = "Examples:\n  escrow diff try --patch | less\n  escrow diff try src\n  escrow diff try --against second\n  \
        escrow commit try --expect \"$(escrow diff try --json | jq -r .digest)\""
)]
pub(crate) struct DiffArgs {
    /// The plan (the open one of this directory if left out), and paths: only changes at or below one of them
    #[arg(value_name = "[PLAN] PATH")]
    words: Vec<OsString>,
    /// Only this resource
    #[arg(long, short, value_name = "RESOURCE")]
    resource: Option<OsString>,
    /// One line for each change, with sizes, and a sum (the default). A directory that is new or gone as a whole, with
    /// much in it, is one line, and what git ignores is counted
    #[arg(long, group = "form")]
    stat: bool,
    /// Name everything in such directories, and what git ignores
    #[arg(long, conflicts_with_all = ["name_status", "name_only", "patch", "binary", "word_diff"])]
    all: bool,
    /// One letter and one path for each change: A added, M modified, D deleted, T other type,
    /// P permissions, owner or attributes
    #[arg(long, group = "form")]
    name_status: bool,
    /// One path for each change
    #[arg(long, group = "form")]
    name_only: bool,
    /// Line by line, in a form that `git apply` and `patch -p1` take; of several resources take
    /// one at a time with --resource. Binary and very large files are named, not shown
    #[arg(long, short, group = "form")]
    patch: bool,
    /// With --patch, so many unchanged lines around each change
    #[arg(long, short = 'U', value_name = "LINES", default_value_t = diff::CONTEXT)]
    unified: usize,
    /// A patch with binary and large files in it, which `git apply` takes
    #[arg(long, group = "form")]
    binary: bool,
    /// Line by line, with the words marked that changed in a line
    #[arg(long, group = "form")]
    word_diff: bool,
    /// Name files that were moved or copied as such, also in the other forms: those with the same bytes, and those of
    /// which at least half of the lines are the same
    #[arg(long, short = 'M', conflicts_with = "name_only")]
    find_renames: bool,
    /// What the original changed since the sandbox was made, at paths that both sides changed
    #[arg(long, conflicts_with_all = ["original", "against", "since", "scratch"])]
    base: bool,
    /// Compare with the original as it is now, also where both sides changed a path
    #[arg(long, conflicts_with_all = ["against", "since", "scratch"])]
    original: bool,
    /// What changed since this checkpoint, instead of what would be committed
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["resource", "patch", "binary", "word_diff", "find_renames", "scratch"])]
    since: Option<String>,
    /// Until this checkpoint instead of now
    #[arg(long, value_name = "CHECKPOINT", requires = "since")]
    until: Option<String>,
    /// What commands wrote into the home directory; it is thrown away, never committed
    #[arg(long, conflicts_with_all = ["resource", "patch", "binary", "word_diff", "find_renames"])]
    scratch: bool,
    /// Compare with another plan, such as a fork, instead of the originals: what would change if that plan became this one
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["since", "scratch"])]
    against: Option<String>,
}

impl DiffArgs {
    /// The form for people, of a plan.
    pub(super) fn of(plan: &str) -> Self {
        Self {
            words: vec![plan.into()],
            unified: diff::CONTEXT,
            ..Self::default()
        }
    }

    /// The same from inside.
    pub(super) fn asked(self, asker: &Asker<'_>) -> Result<Self, String> {
        let Self {
            words,
            resource,
            stat: _,
            all: _,
            name_status: _,
            name_only: _,
            patch: _,
            unified: _,
            binary: _,
            word_diff: _,
            find_renames: _,
            base: _,
            original: _,
            since: _,
            until: _,
            scratch: _,
            against,
        } = &self;
        if against.is_some() {
            return Err("other plans cannot be looked at inside a run".to_owned());
        }
        // What a path names outside is not told inside.
        let (typed, paths) = words.split_at(words.len().min(1));
        if !paths.is_empty() {
            return Err("paths cannot be chosen inside a run".to_owned());
        }
        let typed = typed.first().map(|word| word.to_string_lossy());
        let words = vec![asker.own_plan(typed.as_deref())?.into()];
        let resource = resource.clone().map(|typed| asker.own_resource(typed));
        let resource = resource.transpose()?;
        Ok(Self {
            words,
            resource,
            ..self
        })
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, paths) = context.plan_and_paths(&self.words, ui)?;
        if self.scratch {
            return scratch(context, &plan, ui);
        }
        let only = match &self.resource {
            Some(resource) => Some(context.resource(&plan, resource)?),
            None => None,
        };
        let checkpoint = |typed: &String| context.manager.resolve_checkpoint(&plan, typed);
        let since = self.since.as_ref().map(checkpoint).transpose()?;
        let until = self.until.as_ref().map(checkpoint).transpose()?;
        let other = self.against.as_deref();
        let other = other.map(|other| {
            context
                .manager
                .resolve_plan(Some(other), &context.directory)
        });
        let mut compared = match other.transpose()? {
            Some(other) => Some(context.manager.against(&plan, &other, only.as_ref())?),
            None => None,
        };
        let mut found = match (&mut compared, &since) {
            (Some(compared), _) => {
                for (resource, why) in &compared.left_out {
                    ui.notice(&format!("{resource}: {why}"));
                }
                compared.take()
            }
            (None, Some(since)) => context.manager.since(&plan, since, until.as_ref())?,
            (None, None) => context.manager.diff(&plan, only.as_ref())?,
        };
        found = found.comparing(match (self.base, self.original) {
            (true, _) => ComparedSides::BaseToOriginal,
            (_, true) => ComparedSides::OriginalToSandbox,
            _ => ComparedSides::BaseToSandbox,
        })?;
        if !paths.is_empty() {
            keep_below(&mut found, paths)?;
        }
        // A list of names reads no content.
        let whole = since.is_none() && compared.is_none() && paths.is_empty() && !self.base;
        let digest = match whole && !self.name_status && !self.name_only {
            true => context.manager.digest(&found)?.text(),
            false => None,
        };
        let diffs = &found.resources;
        let sides = (&found, compared.as_ref());
        // The form for people has them unless nothing tells them.
        let lists = !self.name_status && !self.name_only && !ui.is_json();
        let found_renames = |one: &ResourceDiff| match since.is_none()
            && one.view.resource.root().is_some()
            && (self.find_renames || lists)
        {
            true => diff::renames(&one.diff, &*contents(context, sides, &one.view)?),
            false => Ok(BTreeMap::new()),
        };
        if ui.is_json() {
            let mut renames = Vec::new();
            for one in diffs {
                renames.push(match self.find_renames {
                    true => Some(found_renames(one)?.iter().map(renamed).collect()),
                    false => None,
                });
            }
            let resources = std::mem::take(&mut found.resources)
                .into_iter()
                .zip(renames);
            ui.long_document(DiffDocument {
                digest,
                plan: plan.name.to_string(),
                resources: resources.map(ResourceDocument::new).collect(),
            });
            return Ok(());
        }
        ui.page();
        let changed = diffs.iter().any(|one| !one.diff.is_empty());
        let digest = digest.filter(|_| changed);
        if diffs.is_empty() {
            ui.say(&format!("the plan {} has no sandboxes", plan.name));
        }
        let patch = self.patch || self.binary || self.word_diff;
        if !self.name_status && !self.name_only && !patch {
            for one in diffs {
                // Lines are counted of files as they are now.
                let files = since.is_none() && one.view.resource.root().is_some();
                let contents = match files && !one.diff.is_empty() {
                    true => Some(contents(context, sides, &one.view)?),
                    false => None,
                };
                // Of what the sandbox began from nothing is known there.
                let unknown = |change: &Change| {
                    !self.original && one.both_sides.get(&change.path) == Some(&None)
                };
                let lines = |change: &Change| match &contents {
                    Some(contents) if !unknown(change) => diff::line_counts(change, &**contents),
                    _ => Ok(None),
                };
                let by_git = match self.all {
                    true => CountedChanges::default(),
                    false => (context.manager).ignored_by_git(&one.view.resource.at, &one.diff),
                };
                stat(one, &found_renames(one)?, (&lines, &by_git), self.all, ui)?;
                show::obstacles(one, &plan.name, ui);
            }
            show_report(digest, ui);
            return Ok(());
        }
        let options = PatchOptions {
            context: self.unified,
            renames: self.find_renames,
            binary: self.binary,
            words: self.word_diff,
        };
        let mut out = match patch && !self.word_diff {
            true => ui.patch(),
            false => ui.content(),
        };
        for one in diffs {
            if diffs.len() > 1 {
                writeln!(out, "# {}", one.view.resource.name).map_err(Error::Output)?;
            }
            match (patch, self.name_only) {
                (true, _) => {
                    for change in &one.diff.changes {
                        let remark = match one.both_sides.get(&change.path) {
                            None => continue,
                            Some(None) if !self.original => {
                                "changed on both sides, compared with the original as it is now"
                            }
                            Some(_) => "changed on both sides",
                        };
                        writeln!(out, "# {remark}: {}", change.path).map_err(Error::Output)?;
                    }
                    diff::patch(
                        &one.diff,
                        &*contents(context, sides, &one.view)?,
                        &options,
                        &mut out,
                    )?;
                }
                (_, true) => diff::name_only(&one.diff, &mut out)?,
                _ => diff::name_status(&one.diff, &found_renames(one)?, &mut out)?,
            }
        }
        out.flush().map_err(Error::Output)?;
        diffs
            .iter()
            .for_each(|one| show::obstacles(one, &plan.name, ui));
        show_report(digest, ui);
        Ok(())
    }
}

/// Where the bytes of both sides come from: sandbox and original, or the sandboxes of two plans.
fn contents<'a>(
    context: &'a Context,
    (found, compared): (&'a PlanDiff, Option<&'a PlanComparison>),
    view: &'a SandboxView,
) -> Result<Box<dyn VersionContents + 'a>, Error> {
    let manager = &context.manager;
    match compared {
        Some(compared) => manager.contents_against(compared, view),
        None => manager.contents_of(found, view),
    }
}

/// Keeps the changes at or below one of `paths`: as seen from the current directory, or from the top of a resource. A
/// path that is neither a change nor there is an error: it may be the name of a plan, mistyped.
fn keep_below(found: &mut PlanDiff, paths: &[OsString]) -> Result<(), Failure> {
    let mut unknown: Vec<&OsString> = paths.iter().collect();
    unknown.retain(|path| !context::exists(path));
    for one in &mut found.resources {
        let top = one.view.resource.at.as_path();
        one.diff.changes.retain(|change| {
            let inner = Path::new(OsStr::from_bytes(change.path.as_bytes()));
            let at = top.join(inner);
            let fits = |path: &OsString| {
                let typed: PathBuf = Path::new(path).components().collect();
                inner.starts_with(typed) || at.starts_with(context::absolute(path))
            };
            unknown.retain(|path| !fits(path));
            paths.iter().any(fits)
        });
    }
    unknown.first().map_or(Ok(()), |path| {
        let path = escape(path.as_bytes());
        let what = format!("there is no plan '{path}', and nothing changed at such a path");
        Err(Failure::not_found(what).hint("`escrow plan list` shows the plans"))
    })
}

/// The digest, beside the data.
fn show_report(digest: Option<String>, ui: &Ui) {
    if let Some(digest) = digest {
        ui.say(&format!("digest: {}", ui.short(&digest)));
    }
}

/// What commands wrote beside the sandboxes.
fn scratch(context: &Context, plan: &escrow::Plan, ui: &Ui) -> Result<(), Failure> {
    let diff = match context::user_home() {
        Some(home) => context.manager.scratch_diff(plan, &home)?,
        None => DiffView::default(),
    };
    if ui.is_json() {
        let changes: Vec<Value> = diff.changes.iter().map(show::change).collect();
        ui.document(json!({"plan": plan.name, "scratch": changes}));
        return Ok(());
    }
    if diff.is_empty() {
        ui.say("nothing was written into the home directory");
    }
    let mut out = ui.content();
    diff::name_status(&diff, &BTreeMap::new(), &mut out)?;
    out.flush().map_err(Error::Output)?;
    Ok(())
}

/// The changes of a plan, as JSON.
#[derive(Serialize)]
struct DiffDocument {
    digest: Option<String>,
    plan: String,
    resources: Vec<ResourceDocument>,
}

/// Those of a resource. Each becomes JSON when it is written: there may be many.
#[derive(Serialize)]
struct ResourceDocument {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    both_sides: Vec<Value>,
    #[serde(serialize_with = "show::changes")]
    changes: DiffView,
    /// What `diff.ignore` leaves out.
    #[serde(
        skip_serializing_if = "DiffView::is_empty",
        serialize_with = "show::changes"
    )]
    ignored: DiffView,
    #[serde(skip_serializing_if = "Option::is_none")]
    renames: Option<Vec<Value>>,
    resource: String,
    strategy: String,
    summary: ChangeSummary,
}

impl ResourceDocument {
    fn new((of, renames): (ResourceDiff, Option<Vec<Value>>)) -> Self {
        let both_sides = of
            .both_sides
            .iter()
            .map(|(path, base)| show::with_path(path, json!({"base_known": base.is_some()})));
        Self {
            both_sides: both_sides.collect(),
            renames,
            resource: of.view.resource.name.to_string(),
            strategy: of.view.sandbox.reference.strategy_name.to_string(),
            summary: ChangeSummary::of(&of.diff),
            changes: of.diff,
            ignored: of.ignored,
        }
    }
}

/// A file that was moved or copied, as JSON.
fn renamed((to, rename): (&ResourcePath, &Rename)) -> Value {
    let more = json!({"similarity": rename.similarity, "copied": rename.copied});
    json!({"from": show::with_path(&rename.from, json!({})), "to": show::with_path(to, more)})
}

/// How many lines come and go, of what is shown line by line.
type LineCounts = Option<(usize, usize)>;

type CountLines<'a> = &'a dyn Fn(&Change) -> escrow::Result<LineCounts>;

/// The default form: for people.
fn stat(
    one: &ResourceDiff,
    renames: &BTreeMap<ResourcePath, Rename>,
    (line_counts, by_git): (CountLines<'_>, &CountedChanges),
    all: bool,
    ui: &Ui,
) -> Result<(), Failure> {
    let name = paint(Tone::Strong, &one.view.resource.name);
    let sum = show::sum_without(&one.diff, by_git);
    let mut heads = show::heads(sum, by_git, &one.ignored).into_iter();
    ui.line(&format!("{name}: {}", heads.next().unwrap_or_default()));
    heads.for_each(|line| ui.line(&format!("  {line}")));
    let mut rows = Rows::default();
    let dirs = match all {
        true => WholeDirs::default(),
        false => WholeDirs::of(&one.diff),
    };
    let (mut counted, moved) = (0, diff::moved_from(renames));
    for change in &one.diff.changes {
        let goes = change.kind == ChangeKind::Deleted && moved.contains(&change.path);
        let hidden = dirs.hides(&change.path) || by_git.covers(&change.path);
        if goes || hidden || !rows.show(change, ui) {
            continue;
        }
        if let Some(rename) = renames.get(&change.path) {
            let word = if rename.copied { "copied" } else { "renamed" };
            let word = paint(Tone::Careful, &format!("{word:<8}"));
            let same = paint(Tone::Faint, &format!("{}% the same", rename.similarity));
            let (from, to) = (shown_path(&rename.from), shown_path(&change.path));
            ui.line(&format!("  {word}  {from} → {to}  {same}"));
            continue;
        }
        let (word, tone) = match change.kind {
            ChangeKind::Added => ("added", Tone::Good),
            ChangeKind::Inserted => ("inserted", Tone::Good),
            ChangeKind::Updated => ("updated", Tone::Careful),
            ChangeKind::Modified => ("modified", Tone::Careful),
            ChangeKind::Deleted => ("deleted", Tone::Bad),
            ChangeKind::TypeChanged => ("type", Tone::Careful),
            ChangeKind::ModeChanged => ("mode", Tone::Careful),
        };
        let word = paint(tone, &format!("{word:<8}"));
        let slash = match change.new.as_ref().or(change.old.as_ref()) {
            Some(facts) if facts.kind == escrow::model::EntryKind::Directory => "/",
            _ => "",
        };
        let folded = dirs.folded(&change.path).map(|dir| {
            let files = count(dir.files as u64, "file", "files");
            format!("{files}, {}", size(dir.bytes))
        });
        let mut detail = folded.unwrap_or_else(|| detail(change));
        if counted < COUNTED
            && let Some((plus, minus)) = line_counts(change)?
        {
            counted += 1;
            detail = format!("+{plus} -{minus}, {detail}");
        }
        if one.both_sides.contains_key(&change.path) {
            let more = if detail.is_empty() { "" } else { ", " };
            detail = format!("{detail}{more}changed on both sides");
        }
        let path = format!("{}{slash}", shown_path(&change.path));
        match detail.is_empty() {
            true => ui.line(&format!("  {word}  {path}")),
            false => ui.line(&format!(
                "  {word}  {path}  {}",
                paint(Tone::Faint, &detail)
            )),
        }
        for line in diff::described(change, diff::CONTEXT) {
            ui.line(&format!("            {}", paint(Tone::Faint, &line)));
        }
    }
    rows.end(ui);
    Ok(())
}

/// Of how many files lines are counted: for that both versions are read.
const COUNTED: usize = 200;

/// How many rows of one table are shown.
const ROWS: usize = 20;

/// The rows of the table that is being listed: the first are shown, and the others are counted.
#[derive(Default)]
struct Rows {
    table: String,
    count: usize,
}

impl Rows {
    /// Whether a change is shown.
    fn show(&mut self, change: &Change, ui: &Ui) -> bool {
        let Detail::Row(row) = &change.detail else {
            return true;
        };
        if row.table != self.table {
            self.end(ui);
            *self = Self {
                table: row.table.clone(),
                count: 0,
            };
        }
        self.count += 1;
        self.count <= ROWS
    }

    /// Says how many are not shown.
    fn end(&self, ui: &Ui) {
        let more = self.count.saturating_sub(ROWS);
        if more > 0 {
            let rows = if more == 1 { "row" } else { "rows" };
            let line = format!(
                "  … and {more} more {rows} of {}; --json has all",
                self.table
            );
            ui.line(&paint(Tone::Faint, &line));
        }
    }
}

/// A path that ends where it seems to: what follows it on a line follows two spaces.
fn shown_path(path: &ResourcePath) -> String {
    let text = path.to_string().replace("  ", " \\x20");
    match text.strip_suffix(' ') {
        Some(text) => format!("{text}\\x20"),
        None => text,
    }
}

/// How much of a value is shown.
const VALUE: usize = 60;

/// A value as SQL writes it; after one that is not shown to its end follows `…`.
fn value(value: &Value) -> String {
    let cut = |text: &str| match text.char_indices().nth(VALUE) {
        Some((end, _)) => (text[..end].to_owned(), "…"),
        None => (text.to_owned(), ""),
    };
    let quoted = |open: &str, text: &str| {
        let (text, more) = cut(text);
        format!("{open}{}'{more}", text.replace('\'', "''"))
    };
    let special = |key: &str| value.as_object().and_then(|object| object.get(key));
    match (value, special("$bytes"), special("$blob")) {
        (Value::String(text), ..) => quoted("'", text),
        (Value::Null, ..) => "NULL".to_owned(),
        (_, Some(count), _) => format!("({count} bytes)"),
        (_, _, Some(Value::String(hex))) => quoted("x'", hex),
        _ => {
            let (text, more) = cut(&value.to_string());
            format!("{text}{more}")
        }
    }
}

/// The name of a column: as SQL takes it, unless it is a plain word.
fn column(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == '_';
    match !name.is_empty() && name.chars().all(plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// What a row becomes, column by column.
fn columns(row: &escrow::model::RowDetail) -> String {
    let (before, after) = (row.before.value(), row.after.value());
    let one = |name: &String| {
        let (before, after) = (before.get(name), after.get(name));
        let name = column(name);
        match (before, after) {
            (Some(before), Some(after)) => format!("{name} {} → {}", value(before), value(after)),
            (Some(one), None) | (None, Some(one)) => format!("{name} {}", value(one)),
            (None, None) => name,
        }
    };
    let named = after.as_object().or(before.as_object());
    let parts = named.into_iter().flat_map(|values| values.keys().map(one));
    parts.collect::<Vec<_>>().join(", ")
}

/// What is worth knowing of a change beside its path.
fn detail(change: &Change) -> String {
    let plain = |facts: &EntryInfo| match &facts.target {
        Some(target) => format!("-> {target}"),
        None if facts.kind == escrow::model::EntryKind::File => size(facts.size),
        None => String::new(),
    };
    if let Detail::Row(row) = &change.detail {
        return escape_text(columns(row).as_bytes());
    }
    let mut parts = Vec::new();
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if change.kind == ChangeKind::TypeChanged => {
            parts.push(format!("{} → {}", old.kind.word(), new.kind.word()));
        }
        (Some(old), Some(new)) if change.kind == ChangeKind::Modified => {
            parts.push(format!("{} → {}", plain(old), plain(new)));
        }
        (Some(_), Some(_)) => {}
        (Some(one), None) | (None, Some(one)) => parts.push(plain(one)),
        (None, None) => {}
    }
    if let (Some(old), Some(new), true) = (
        &change.old,
        &change.new,
        change.fields.contains(&ChangedField::Mode),
    ) {
        parts.push(format!("{:04o} → {:04o}", old.mode, new.mode));
    }
    for (field, word) in [
        (ChangedField::Owner, "owner"),
        (ChangedField::Xattrs, "attributes"),
    ] {
        if change.fields.contains(&field) {
            parts.push(word.to_owned());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}
