//! `escrow review`: walks through a plan on a full screen, and commits exactly what was marked there.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use escrow::Plan;
use escrow::commit::{CommitTerms, check_expected};
use escrow::diff::{self, FileHunks, PatchOptions, VersionContents};
use escrow::error::Error;
use escrow::manager::{CommitRequest, ComparedSides, PlanDiff};
use escrow::model::text::harmless;
use escrow::model::{Change, DiffView, EntryKind, Expected, PlanDigest};
use escrow::policy::select::{ReleasePattern, ReleaseSelection};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, List, ListItem, ListState, Paragraph};

use super::commit::{OnConflictArg, show_next, show_report, warn_left};
use super::diff::DiffArgs;
use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Walk through a plan on the whole screen, mark files and hunks, and commit what was marked
///
/// The changes are on the left, the one that is chosen on the right; of a conflict, both versions side by side. What is
/// committed is what was shown, or nothing; what was not marked stays in the sandboxes, and the plan open. Without a
/// terminal it is the same as `escrow diff`.
///
/// Of a text file of which only the content changed single hunks can be marked. Where something is to be validated, and of
/// every other change, it is the whole file: no validation would have seen what some hunks leave of it.
///
/// Keys: up and down (or j and k) choose, space marks, a marks all or none, tab goes to the hunks of a file and back, left and
/// right scroll, c commits, q leaves.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow review try -m 'the parser only'")]
pub(crate) struct ReviewArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// Why, in your words; kept in the log
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Which version counts where both sides changed a path
    #[arg(long, value_enum, value_name = "WHICH", default_value = "abort")]
    on_conflict: OnConflictArg,
}

impl ReviewArgs {
    /// Of a plan, without a message.
    pub(super) fn of(plan: &str) -> Self {
        Self {
            plan: Some(plan.to_owned()),
            message: None,
            on_conflict: OnConflictArg::Abort,
        }
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        if ui.is_json() || !ui.is_terminal() || !ui.asks() {
            return DiffArgs::of(&plan.name).run(context, ui);
        }
        let terms = self.on_conflict.terms();
        let mut screen = Screen::open(context, plan, terms)?;
        let refused =
            |error: std::io::Error| Failure::failed(format!("cannot use the terminal: {error}"));
        let mut terminal = ratatui::try_init().map_err(refused)?;
        let ended = screen.walk(&mut terminal);
        ratatui::restore();
        match ended? {
            false => Err(Failure::failed("nothing was committed").about("committed")),
            true => screen.release(self.message.as_deref(), ui),
        }
    }
}

/// A change that is no directory with others in it: those come and go with what lies in them.
struct Row {
    /// The number of the resource, and of its change.
    at: (usize, usize),
    mark: Mark,
    conflict: Option<String>,
    /// Its hunks as they were shown, where they can be marked.
    hunks: Option<FileHunks>,
    /// One row stands for all that git ignores: for these changes of the resource, in a line.
    folded: Option<(Vec<usize>, String)>,
}

/// What of a change is to be committed.
#[derive(PartialEq)]
enum Mark {
    Nothing,
    Whole,
    /// The hunks with these numbers, not all of them.
    Hunks(BTreeSet<usize>),
}

impl Row {
    fn is_marked(&self) -> bool {
        self.mark != Mark::Nothing
    }

    fn takes(&self, hunk: usize) -> bool {
        match &self.mark {
            Mark::Nothing => false,
            Mark::Whole => true,
            Mark::Hunks(numbers) => numbers.contains(&hunk),
        }
    }

    fn mark_whole(&mut self, marked: bool) {
        self.mark = if marked { Mark::Whole } else { Mark::Nothing };
    }

    /// Marks a hunk, or takes its mark away.
    fn toggle(&mut self, hunk: usize) {
        let all = self.hunks.as_ref().map_or(0, |hunks| hunks.texts.len());
        let wanted = |one: &usize| self.takes(*one) != (*one == hunk);
        let numbers: BTreeSet<usize> = (0..all).filter(wanted).collect();
        self.mark = match numbers.len() {
            0 => Mark::Nothing,
            count if count == all => Mark::Whole,
            _ => Mark::Hunks(numbers),
        };
    }
}

/// What is shown of a row.
struct ShownRow {
    row: usize,
    /// For a pane of this width.
    width: u16,
    /// One, or of a conflict the original's version and the sandbox's.
    columns: Vec<Vec<Line<'static>>>,
    /// The lines with which the hunks begin that can be marked.
    hunks: Vec<usize>,
}

struct Screen<'a> {
    context: &'a Context,
    plan: Plan,
    terms: CommitTerms,
    found: PlanDiff,
    /// Of everything that is shown.
    digest: PlanDigest,
    rows: Vec<Row>,
    list: ListState,
    /// The first line that is shown of the change.
    scroll: usize,
    asks: bool,
    shown: Option<ShownRow>,
    /// The hunk that is chosen, while it is hunks that are walked through.
    hunk: Option<usize>,
    /// Something is to be validated, so files are committed as a whole.
    validated: bool,
}

/// The longest version that is shown side by side.
const LONGEST: u64 = 1 << 20;

impl<'a> Screen<'a> {
    fn open(context: &'a Context, plan: Plan, terms: CommitTerms) -> Result<Self, Failure> {
        let manager = &context.manager;
        let everything = ReleaseSelection::default();
        let preview = manager.preview_part(&plan, terms, &everything, false)?;
        let found = manager.diff(&plan, None)?;
        // What is marked is released into the original as it is now.
        let mut found = found.comparing(ComparedSides::OriginalToSandbox)?;
        for one in &mut found.resources {
            one.diff
                .changes
                .retain(|change| show::submodule(change).is_none());
        }
        let mut rows = Vec::new();
        for (number, one) in found.resources.iter().enumerate() {
            let name = &one.view.resource.name;
            let member = preview
                .members
                .iter()
                .find(|member| member.resource == *name);
            let changes = &one.diff.changes;
            let by_git = manager.ignored_by_git(&one.view.resource.at, &one.diff);
            let mut folded = Vec::new();
            for (at, change) in changes.iter().enumerate() {
                let holds = |next: &Change| next.path.lies_in(&change.path);
                if is_dir(change) && changes.get(at + 1).is_some_and(holds) {
                    continue;
                }
                let conflicts = member.into_iter().flat_map(|member| &member.conflicts);
                let mut conflicts = conflicts.filter(|one| one.path.lies_in(&change.path));
                let conflict = conflicts.next().map(|one| one.what.clone());
                if conflict.is_none() && by_git.covers(&change.path) {
                    folded.push(at);
                    continue;
                }
                rows.push(Row {
                    at: (number, at),
                    mark: Mark::Nothing,
                    conflict,
                    hunks: None,
                    folded: None,
                });
            }
            if let Some(first) = folded.first() {
                rows.push(Row {
                    at: (number, *first),
                    mark: Mark::Nothing,
                    conflict: None,
                    hunks: None,
                    folded: Some((folded, by_git.line("ignored by git"))),
                });
            }
        }
        let mut list = ListState::default();
        list.select((!rows.is_empty()).then_some(0));
        Ok(Self {
            digest: manager.digest(&found)?,
            validated: !manager.validations(&plan)?.is_empty(),
            context,
            plan,
            terms,
            found,
            rows,
            list,
            scroll: 0,
            asks: false,
            shown: None,
            hunk: None,
        })
    }

    fn change(&self, (resource, change): (usize, usize)) -> &Change {
        &self.found.resources[resource].diff.changes[change]
    }

    /// Until the user leaves; `true` to commit what is marked.
    fn walk(&mut self, terminal: &mut ratatui::DefaultTerminal) -> Result<bool, Failure> {
        let refused =
            |error: std::io::Error| Failure::failed(format!("cannot use the terminal: {error}"));
        let interrupted = context::on_interrupt();
        loop {
            let size = terminal.size().map_err(refused)?;
            let [_, right, _] = panes(Rect::new(0, 0, size.width, size.height));
            self.look(right.width)?;
            terminal.draw(|frame| self.draw(frame)).map_err(refused)?;
            while !event::poll(Duration::from_millis(200)).map_err(refused)? {
                if interrupted.load(Ordering::SeqCst) {
                    return Ok(false);
                }
            }
            if let Event::Key(key) = event::read().map_err(refused)?
                && key.kind == KeyEventKind::Press
                && let Some(releases) = self.key(key)
            {
                return Ok(releases);
            }
        }
    }

    /// What a key does; the answer ends the walk.
    fn key(&mut self, key: KeyEvent) -> Option<bool> {
        if std::mem::take(&mut self.asks) {
            return (key.code == KeyCode::Char('y')).then_some(true);
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(false);
            }
            KeyCode::Esc if self.hunk.is_some() => self.hunk = None,
            KeyCode::Char('q') | KeyCode::Esc => return Some(false),
            KeyCode::Tab | KeyCode::Enter => match self.hunk {
                Some(_) => self.hunk = None,
                None => self.choose_hunk(0),
            },
            KeyCode::Char('j') | KeyCode::Down => self.choose(1),
            KeyCode::Char('k') | KeyCode::Up => self.choose(-1),
            KeyCode::PageDown => self.choose(10),
            KeyCode::PageUp => self.choose(-10),
            KeyCode::Char('l') | KeyCode::Right => {
                let columns = self.shown.iter().flat_map(|shown| &shown.columns);
                let last = columns.map(|lines| lines.len().saturating_sub(1)).max();
                self.scroll = (self.scroll + 5).min(last.unwrap_or(0));
            }
            KeyCode::Char('h') | KeyCode::Left => self.scroll = self.scroll.saturating_sub(5),
            KeyCode::Char('a') => {
                let all = self.rows.iter().all(|row| row.mark == Mark::Whole);
                self.rows.iter_mut().for_each(|row| row.mark_whole(!all));
            }
            KeyCode::Char(' ') => {
                let chosen = self.list.selected();
                if let Some(row) = chosen.and_then(|chosen| self.rows.get_mut(chosen)) {
                    match self.hunk {
                        Some(hunk) => row.toggle(hunk),
                        None => row.mark_whole(row.mark != Mark::Whole),
                    }
                    self.choose(1);
                }
            }
            KeyCode::Char('c' | 'r') => self.asks = self.rows.iter().any(Row::is_marked),
            _ => {}
        }
        None
    }

    fn choose(&mut self, by: isize) {
        if let Some(hunk) = self.hunk {
            return self.choose_hunk(hunk.saturating_add_signed(by));
        }
        let last = self.rows.len().saturating_sub(1);
        let next = self.list.selected().unwrap_or(0).saturating_add_signed(by);
        self.list
            .select((!self.rows.is_empty()).then_some(next.min(last)));
        self.scroll = 0;
    }

    /// Goes to a hunk of the row that is chosen, or to its last, if it has any that can be marked.
    fn choose_hunk(&mut self, hunk: usize) {
        let all = self.shown.as_ref().map_or(&[][..], |shown| &shown.hunks);
        if let Some(last) = all.len().checked_sub(1) {
            let hunk = hunk.min(last);
            self.scroll = all[hunk];
            self.hunk = Some(hunk);
        }
    }

    /// Reads what is shown of the row that is chosen, for a pane of this width.
    fn look(&mut self, width: u16) -> Result<(), Failure> {
        let Some(chosen) = self.list.selected() else {
            return Ok(());
        };
        let is_it = |shown: &ShownRow| (shown.row, shown.width) == (chosen, width);
        if self.shown.as_ref().is_some_and(is_it) {
            return Ok(());
        }
        let at = self.rows[chosen].at;
        let (change, view) = (self.change(at), &self.found.resources[at.0].view);
        let contents = self.context.manager.contents(&self.found, view)?;
        let row = &self.rows[chosen];
        let listed = row.folded.as_ref().map(|(folded, _)| {
            let all = folded.iter().map(|one| self.change((at.0, *one)));
            all.map(|one| Line::raw(format!("{} {}", one.kind.letter(), one.path)))
        });
        let hunks = match listed.is_some()
            || row.conflict.is_some()
            || self.validated
            || row.hunks.is_some()
        {
            true => None,
            // What cannot be read is said by the patch.
            false => FileHunks::of(change, &contents).ok().flatten(),
        };
        let file = |side: &Option<escrow::model::EntryInfo>| {
            side.as_ref()
                .is_some_and(|side| side.kind == EntryKind::File)
        };
        let mut starts = Vec::new();
        let columns = match (&row.conflict, row.hunks.as_ref().or(hunks.as_ref())) {
            _ if listed.is_some() => vec![folded(listed.into_iter().flatten(), width)],
            (Some(what), _) if file(&change.old) && file(&change.new) => {
                let theirs = version("the original", what, contents.original(&change.path));
                let ours = version("the sandbox", what, contents.sandbox(&change.path));
                vec![folded(theirs, width / 2), folded(ours, width / 2)]
            }
            (_, Some(hunks)) => {
                let mut lines = Vec::new();
                for text in &hunks.texts {
                    starts.push(lines.len());
                    lines.extend(folded(harmless(text).lines().map(painted), width));
                }
                vec![lines]
            }
            _ => {
                let one = DiffView::new(vec![change.clone()]);
                let mut patch = Vec::new();
                diff::patch(&one, &contents, &PatchOptions::default(), &mut patch)?;
                vec![folded(harmless(&patch).lines().map(painted), width)]
            }
        };
        drop(contents);
        let row = &mut self.rows[chosen];
        row.hunks = row.hunks.take().or(hunks);
        self.shown = Some(ShownRow {
            row: chosen,
            width,
            columns,
            hunks: starts,
        });
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [left, right, bottom] = panes(frame.area());
        let items: Vec<ListItem<'_>> = self.rows.iter().map(|row| self.item(row)).collect();
        let title = format!(" plan {} ", self.plan.name);
        let list = List::new(items)
            .block(Block::bordered().title(title))
            .highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(list, left, &mut self.list);
        self.draw_change(frame, right);
        frame.render_widget(Paragraph::new(self.told()), bottom);
    }

    /// The last line: what is marked, and what the keys do.
    fn told(&self) -> String {
        let marked = self.rows.iter().filter(|row| row.is_marked()).count();
        let all = self.rows.len();
        if self.asks {
            let in_part = |row: &&Row| matches!(row.mark, Mark::Hunks(_));
            let in_part = match self.rows.iter().filter(in_part).count() {
                0 => String::new(),
                count => format!(", {count} of them in part"),
            };
            return format!(
                "Commit {marked} of {all} changes{in_part}? y commits, any other key goes back"
            );
        }
        let hunks = self.shown.as_ref().map_or(0, |shown| shown.hunks.len());
        let hunks = match self.hunk {
            Some(hunk) => format!("hunk {} of {hunks}  tab: back  ", hunk + 1),
            None if hunks > 0 => "tab: hunks  ".to_owned(),
            None => String::new(),
        };
        format!(
            "{marked} of {all} marked  {hunks}space: mark  a: all  c: commit  q: leave  arrows: move, scroll"
        )
    }

    fn item(&self, row: &Row) -> ListItem<'static> {
        let (resource, change) = (row.at.0, self.change(row.at));
        let mark = match row.mark {
            Mark::Nothing => "[ ]",
            Mark::Whole => "[x]",
            Mark::Hunks(_) => "[~]",
        };
        let (kind, mut path) = match &row.folded {
            None => (
                format!("{} ", change.kind.letter()),
                change.path.to_string(),
            ),
            Some((_, line)) => (String::new(), line.clone()),
        };
        if self.found.resources.len() > 1 {
            path = format!(
                "{}:{path}",
                self.found.resources[resource].view.resource.name
            );
        }
        let mut words = vec![Span::raw(format!("{mark} {kind}{path}"))];
        let both = &self.found.resources[resource].both_sides;
        let both = both.contains_key(&change.path);
        let red = |word| Span::styled(word, Style::new().fg(Color::Red));
        words.extend(row.conflict.is_some().then(|| red("  conflict")));
        words.extend(both.then(|| red(", changed on both sides")));
        ListItem::new(Line::from(words))
    }

    fn draw_change(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(shown) = &self.shown else { return };
        let widths = shown.columns.iter().map(|_| Constraint::Fill(1));
        let areas = Layout::horizontal(widths).split(area);
        for (lines, area) in shown.columns.iter().zip(areas.iter()) {
            let first = self.scroll;
            let lines = lines.iter().skip(first).take(area.height.into());
            let mut lines: Vec<_> = lines.cloned().collect();
            for (hunk, start) in shown.hunks.iter().enumerate() {
                let at = start.checked_sub(first).and_then(|at| lines.get_mut(at));
                let Some(line) = at else { continue };
                let marked = self.rows[shown.row].takes(hunk);
                line.spans
                    .insert(0, Span::raw(if marked { "[x] " } else { "[ ] " }));
                if self.hunk == Some(hunk) {
                    line.style = line.style.add_modifier(Modifier::REVERSED);
                }
            }
            let path = &self.change(self.rows[shown.row].at).path;
            let block = Block::bordered().title(format!(" {path} "));
            frame.render_widget(Paragraph::new(lines).block(block), *area);
        }
    }

    /// What is marked: each path, and each directory in which everything is; of some files only some hunks.
    fn selection(&self) -> ReleaseSelection {
        let marks = self.rows.iter().flat_map(|row| {
            let folded = row.folded.iter().flat_map(|(folded, _)| folded);
            let all = folded.map(|one| (row.at.0, *one)).chain([row.at]);
            all.map(|at| (at, row.is_marked()))
        });
        let marks: HashMap<(usize, usize), bool> = marks.collect();
        let mut selection = ReleaseSelection::default();
        for (number, one) in self.found.resources.iter().enumerate() {
            let changes = &one.diff.changes;
            for (at, change) in changes.iter().enumerate() {
                // What lies in a directory follows it.
                let below = (at..changes.len())
                    .take_while(|next| changes[*next].path.lies_in(&change.path));
                let mut below = below.filter_map(|next| marks.get(&(number, next)));
                if below.all(|marked| *marked) {
                    let name = &one.view.resource.name;
                    let pattern = ReleasePattern::exact(name, &change.path);
                    selection.only.push(pattern);
                }
            }
        }
        for row in &self.rows {
            if let (Mark::Hunks(numbers), Some(hunks)) = (&row.mark, &row.hunks) {
                let name = self.found.resources[row.at.0].view.resource.name.clone();
                let files = selection.hunks.entry(name).or_default();
                files.insert(self.change(row.at).path.clone(), hunks.choose(numbers));
            }
        }
        selection
    }

    /// Commits what is marked, if everything still is as it was shown.
    fn release(&self, message: Option<&str>, ui: &Ui) -> Result<(), Failure> {
        let (manager, plan) = (&self.context.manager, &self.plan);
        let failed = |error: Error| Failure::from(error).about("committed");
        let selection = self.selection();
        let part = manager.preview_part(plan, self.terms, &selection, true);
        let expected = part.map_err(failed)?.digest.map(Expected::Shown);
        let now = manager.digest(&manager.diff(plan, None)?)?;
        let shown = Expected::Shown(self.digest.clone());
        check_expected(plan, &shown, &now).map_err(failed)?;
        let request = CommitRequest {
            message,
            terms: self.terms,
            expected: expected.as_ref(),
            live: false,
        };
        let progress = ui.progress("committing");
        let released = manager.commit_part(plan, &request, &selection, &progress);
        drop(progress);
        let released = released.map_err(failed)?;
        self.context.tell_notices(ui);
        warn_left(&released, ui);
        show_report(self.context, &released.preview, self.terms, ui, true);
        show_next(&plan.name, &released, false, &manager.log_head()?, ui);
        Ok(())
    }
}

/// The changes, the one that is chosen, and the last line.
fn panes(area: Rect) -> [Rect; 3] {
    let [main, bottom] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let halves = [Constraint::Percentage(40), Constraint::Percentage(60)];
    let [left, right] = Layout::horizontal(halves).areas(main);
    [left, right, bottom]
}

/// Lines that fit into a pane of this width: what does not fit is not seen, and would be committed all the same.
fn folded(lines: impl IntoIterator<Item = Line<'static>>, width: u16) -> Vec<Line<'static>> {
    // Between the two lines of the frame.
    let width = usize::from(width.saturating_sub(2)).max(1);
    let mut all = Vec::new();
    for line in lines {
        let (mut piece, mut used) = (String::new(), 0);
        for c in line.spans.iter().flat_map(|span| span.content.chars()) {
            let text = match c {
                // A terminal would move on; a widget leaves them out.
                '\t' => " ".repeat(8 - used % 8),
                c => c.to_string(),
            };
            let cells = Span::raw(text.as_str()).width();
            if used > 0 && used + cells > width {
                all.push(Line::styled(std::mem::take(&mut piece), line.style));
                used = 0;
            }
            piece.push_str(&text);
            used += cells;
        }
        all.push(Line::styled(piece, line.style));
    }
    all
}

fn is_dir(change: &Change) -> bool {
    let side = change.new.as_ref().or(change.old.as_ref());
    side.is_some_and(|side| side.kind == EntryKind::Directory)
}

/// One version of a file, below what it is and what happened to it.
fn version(
    whose: &str,
    what: &str,
    opened: escrow::Result<Box<dyn Read + Send>>,
) -> Vec<Line<'static>> {
    let head = Line::styled(format!("{whose}: {what}"), Style::new().fg(Color::Red));
    let mut bytes = Vec::new();
    let read = opened.map(|from| from.take(LONGEST).read_to_end(&mut bytes));
    match read {
        Ok(Ok(_)) => {
            let text = harmless(&bytes);
            let lines = text.lines().map(|line| Line::raw(line.to_owned()));
            let cut = bytes.len() as u64 == LONGEST;
            let cut = cut.then(|| Line::raw("… the rest is not shown"));
            [head].into_iter().chain(lines).chain(cut).collect()
        }
        Ok(Err(_)) | Err(_) => vec![head, Line::raw("it cannot be read")],
    }
}

/// A line of a patch in its colour.
fn painted(line: &str) -> Line<'static> {
    let style = match line.as_bytes() {
        [b'+', b'+', ..] | [b'-', b'-', ..] | [b'd', ..] => {
            Style::new().add_modifier(Modifier::BOLD)
        }
        [b'+', ..] | [b'#', b' ', b'+', b' ', ..] => Style::new().fg(Color::Green),
        [b'-', ..] | [b'#', b' ', b'-', b' ', ..] => Style::new().fg(Color::Red),
        [b'@', ..] => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    Line::styled(line.to_owned(), style)
}
