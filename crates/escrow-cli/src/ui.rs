//! The only printer. Data goes to stdout, talk to stderr; with `--json` stdout is one document.
//!
//! Everything can be read without colour, which a pipe and `NO_COLOR` do without. What is a line stays one:
//! text that others chose, names, labels, messages, command lines, is escaped here.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the one file that reaches for stdout, stderr and the file of a report"
)]

use std::cell::{Cell, OnceCell, RefCell};
use std::io::{BufWriter, ErrorKind, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use escrow::event::Observer;
use escrow::model::text::{Location, harmless, one_line};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

pub(crate) use crate::amount::{count, size};
use crate::context;
use crate::error::Failure;
use crate::shown::ShownDocument;

/// What a word means to the reader; the colour only underlines it.
#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Strong = 1,
    Faint,
    Good,
    Bad,
    Careful,
}

/// What the user at the terminal answered.
pub(crate) enum PromptAnswer {
    Word(String),
    /// The user wants to leave.
    Interrupted,
}

/// Asks on a terminal; `None` where it went away.
fn answer(question: &str) -> Option<PromptAnswer> {
    // Before the question is there, or an answer by an interrupt is not heard.
    let interrupted = context::on_interrupt();
    let stdin = std::io::stdin();
    // What was typed before the question was there is no answer to it.
    match rustix::termios::tcflush(&stdin, rustix::termios::QueueSelector::IFlush) {
        Ok(()) | Err(_) => talk(question),
    }
    let soon = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    loop {
        if interrupted.load(Ordering::SeqCst) {
            return Some(PromptAnswer::Interrupted);
        }
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        match rustix::event::poll(&mut input, Some(&soon)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    let mut answer = String::new();
    match stdin.read_line(&mut answer) {
        Ok(length) if length > 0 => Some(PromptAnswer::Word(answer.trim().to_owned())),
        _ => None,
    }
}

/// Writes a document with the notices that belong into it.
type Pending = Box<dyn FnOnce(&mut dyn Write, Vec<String>) -> serde_json::Result<()>>;

/// A document with its notices.
#[derive(Serialize)]
struct Noticed<'d, D> {
    #[serde(flatten)]
    document: &'d D,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notices: Vec<String>,
}

/// The screen, or what stands for it.
pub(crate) struct Ui {
    json: bool,
    pub(crate) quiet: bool,
    verbose: bool,
    /// Whether every question is answered with yes.
    yes: bool,
    /// Whether data is talk, because it belongs to a question.
    aside: bool,
    /// Why output could not be written.
    lost: RefCell<Option<String>>,
    /// Whether what was asked for is done: then a report of it that is lost is no failure.
    pub(crate) done: Cell<bool>,
    coloured: OnceCell<bool>,
    /// What shows stdout on the terminal.
    pager: RefCell<Option<std::process::Child>>,
    /// The document, until everything is known that belongs into it.
    pending: RefCell<Option<Pending>>,
    /// What a program should know beside the answer.
    notices: RefCell<Vec<String>>,
    /// The plan that the command is about.
    plan: RefCell<Option<String>>,
}

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool, verbose: u8) -> Self {
        Self {
            json,
            quiet,
            verbose: verbose > 0,
            yes: false,
            aside: false,
            lost: RefCell::default(),
            done: Cell::new(false),
            coloured: OnceCell::new(),
            plan: RefCell::default(),
            pager: RefCell::default(),
            pending: RefCell::default(),
            notices: RefCell::default(),
        }
    }

    /// Notes which plan the command is about, for hints.
    pub(crate) fn about_plan(&self, name: &str) {
        self.plan.replace(Some(name.to_owned()));
    }

    /// The name of that plan.
    pub(crate) fn plan(&self) -> Option<String> {
        self.plan.borrow().clone()
    }

    /// The same without questions.
    pub(crate) fn yes(self, yes: bool) -> Self {
        Self { yes, ..self }
    }

    /// The same for what belongs to a question: all of it is talk, and the user who is asked reads it, whatever form
    /// the answer on stdout has.
    pub(crate) fn aside(&self) -> Self {
        Self {
            aside: true,
            ..Self::new(false, false, u8::from(self.verbose))
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// One JSON document on stdout; it is written by [`Ui::close`].
    pub(crate) fn document(&self, mut value: serde_json::Value) {
        self.keep(Box::new(move |out, notices| {
            if let Some(document) = value.as_object_mut().filter(|_| !notices.is_empty()) {
                document.insert("notices".to_owned(), notices.into());
            }
            serde_json::to_writer_pretty(out, &value)
        }));
    }

    /// The same for a document, an object, that may be long: it is written piece by piece.
    pub(crate) fn long_document(&self, document: impl Serialize + 'static) {
        self.keep(Box::new(move |out, notices| {
            let document = &document;
            serde_json::to_writer_pretty(out, &Noticed { document, notices })
        }));
    }

    fn keep(&self, document: Pending) {
        if let Some(before) = self.pending.replace(Some(document)) {
            self.write_document(before, Vec::new());
        }
    }

    /// Whether data goes to a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        std::io::stdout().is_terminal()
    }

    fn write_document(&self, document: Pending, notices: Vec<String>) {
        let out = BufWriter::new(ClosablePipe(std::io::stdout()));
        let mut out = ShownDocument::new(out, self.is_terminal());
        let written = document(&mut out, notices).map_err(std::io::Error::from);
        self.finish(
            written
                .and_then(|()| out.write_all(b"\n"))
                .and_then(|()| out.flush()),
        );
    }

    /// Something that happened beside what was asked for: a warning, or `notices` of the document.
    pub(crate) fn notice(&self, text: &str) {
        match self.json {
            true => self.notices.borrow_mut().push(one_line(text)),
            false => self.warn(text),
        }
    }

    /// Shows what is written to stdout from now on through the user's pager, as git does, where that is a terminal.
    pub(crate) fn page(&self) {
        if self.json || self.aside || !self.is_terminal() {
            return;
        }
        self.has_colours();
        let Some(mut pager) = context::pager() else {
            return;
        };
        // Without a pager the output is there all the same.
        let Ok(mut child) = pager.stdin(std::process::Stdio::piped()).spawn() else {
            return;
        };
        let pipe = child.stdin.take();
        if pipe.is_some_and(|pipe| rustix::stdio::dup2_stdout(&pipe).is_ok()) {
            self.pager.replace(Some(child));
        }
    }

    /// Waits until the pager has shown everything and the user has read it.
    fn end_pager(&self) {
        let Some(mut pager) = self.pager.take() else {
            return;
        };
        // It reads until nothing else has its input open.
        match rustix::stdio::dup2_stdout(std::io::stderr()) {
            Ok(()) | Err(_) => {}
        }
        match pager.wait() {
            Ok(_) | Err(_) => {}
        }
    }

    /// Whether people read stdout: it is escaped for a terminal then.
    fn is_read(&self) -> bool {
        self.pager.borrow().is_some() || std::io::stdout().is_terminal()
    }

    /// Whether stdout has colours; what it is is looked at once.
    fn has_colours(&self) -> bool {
        let look = || takes_colours(&std::io::stdout());
        *self.coloured.get_or_init(look)
    }

    /// Writes the document, with the notices if there are any.
    pub(crate) fn close(&self) {
        self.end_pager();
        let notices = self.notices.take();
        let Some(document) = self.pending.take() else {
            for notice in &notices {
                talk(&format!("warning: {notice}"));
            }
            return;
        };
        self.write_document(document, notices);
    }

    /// Bytes on stdout as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        self.finish(ClosablePipe(std::io::stdout()).write_all(bytes));
    }

    /// Everything that can be read from `from`, on stdout as it is. The error is that of `from`.
    pub(crate) fn pour(&self, from: &mut dyn Read) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.bytes(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.lost.borrow().is_some() {
                return Ok(());
            }
        }
    }

    /// Notes output that could not be written.
    fn finish(&self, written: std::io::Result<()>) {
        let flushed = written.and_then(|()| ClosablePipe(std::io::stdout()).flush());
        if let Err(error) = flushed {
            self.lost.borrow_mut().get_or_insert(error.to_string());
        }
    }

    /// Says that output was lost; whether the command failed with it.
    pub(crate) fn lost_output(&self) -> bool {
        let (lost, done) = (self.lost.take(), self.done.get());
        let what = lost.map(|why| format!("cannot write the output: {why}"));
        match &what {
            Some(what) if done => talk(&format!("warning: {what}; what was asked for is done")),
            Some(what) => self.error(what, &[]),
            None => {}
        }
        what.is_some() && !done
    }

    /// A line of data on stdout.
    pub(crate) fn line(&self, text: &str) {
        if self.aside {
            return talk(text);
        }
        // One write for a line: lists can be long.
        let mut line = format!("{}\n", plain(text));
        if !self.has_colours() {
            line = anstream::adapter::strip_str(&line).to_string();
        }
        self.finish(ClosablePipe(std::io::stdout()).write_all(line.as_bytes()));
    }

    /// Where content can be poured: escaped on a terminal, untouched in a pipe.
    pub(crate) fn content(&self) -> Box<dyn Write> {
        if self.aside {
            return Box::new(EscapingWriter(std::io::stderr()));
        }
        let out = std::io::stdout();
        match self.is_read() {
            true => Box::new(EscapingWriter(ClosablePipe(out))),
            false => Box::new(std::io::BufWriter::new(ClosablePipe(out))),
        }
    }

    /// The same for a patch, with colours on a terminal.
    pub(crate) fn patch(&self) -> Box<dyn Write> {
        let (out, talk) = (std::io::stdout(), std::io::stderr());
        match self.aside {
            true if takes_colours(&talk) => Box::new(EscapingWriter(PatchPainter::new(talk))),
            false if self.has_colours() => {
                Box::new(EscapingWriter(PatchPainter::new(ClosablePipe(out))))
            }
            _ => self.content(),
        }
    }

    /// Rows under headings, in columns.
    pub(crate) fn table<const N: usize>(
        &self,
        headings: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) {
        let rows = rows.into_iter().map(Vec::from);
        self.columns(&headings.map(str::to_owned), rows);
    }

    /// The same with any number of columns.
    pub(crate) fn columns(&self, headings: &[String], rows: impl IntoIterator<Item = Vec<String>>) {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        // Escaped before it is measured.
        let plain =
            |cells: Vec<String>| cells.iter().map(|cell| one_line(cell)).collect::<Vec<_>>();
        table.set_header(plain(headings.to_vec()));
        table.add_rows(rows.into_iter().map(plain));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for (number, line) in table.lines().enumerate() {
            match number {
                0 => self.line(&paint(Tone::Faint, line.trim_end())),
                _ => self.line(line.trim_end()),
            }
        }
    }

    /// What was done, on stdout; nothing for those who want to hear of trouble only.
    pub(crate) fn news(&self, text: &str) {
        if !self.quiet {
            self.line(text);
        }
    }

    /// Talk: what happened and what comes next.
    pub(crate) fn say(&self, text: &str) {
        match self.quiet || self.json {
            true => {}
            // Beside the pager it would land on its screen.
            false if self.pager.borrow().is_some() => self.line(text),
            false => talk(text),
        }
    }

    /// Whether the user asked for more.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose && !self.json
    }

    /// A digest, or a text that ends in one: on a terminal its beginning, unless the user asked for more.
    pub(crate) fn short(&self, digest: &str) -> String {
        /// So many digits tell those apart that one user sees.
        const DIGITS: usize = 12;
        let from = digest.rfind(':').map_or(0, |at| at + 1);
        match digest.get(..from + DIGITS) {
            Some(short) if !self.verbose && std::io::stderr().is_terminal() => format!("{short}…"),
            _ => digest.to_owned(),
        }
    }

    /// Talk for those who asked for more.
    pub(crate) fn verbose(&self, text: &str) {
        if self.is_verbose() {
            talk(&paint(Tone::Faint, text));
        }
    }

    /// Something the user should know although all went well.
    pub(crate) fn warn(&self, text: &str) {
        if !self.json {
            talk(&format!("{} {text}", paint(Tone::Careful, "warning:")));
        }
    }

    /// A failure and what to do about it.
    pub(crate) fn error(&self, message: &str, hints: &[String]) {
        talk(&format!(
            "{} {}",
            paint(Tone::Bad, "error:"),
            one_line(message)
        ));
        for hint in hints {
            talk(&format!(
                "{} {}",
                paint(Tone::Strong, "hint:"),
                one_line(hint)
            ));
        }
    }

    /// What clap says of a line it could not understand.
    pub(crate) fn refusal(&self, refused: &clap::Error) {
        let text = refused.render().ansi().to_string();
        self.said(format!("{}\n", text.trim_end()).as_bytes());
    }

    /// Whether every question was answered beforehand.
    pub(crate) fn says_yes(&self) -> bool {
        self.yes
    }

    /// Whether there is a user who can, and wants to, answer a question.
    pub(crate) fn asks(&self) -> bool {
        !self.yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// What another one of us said, as it is.
    pub(crate) fn said(&self, bytes: &[u8]) {
        match anstream::stderr().write_all(bytes) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Asks for a word; `None` where there is no terminal.
    pub(crate) fn ask(&self, question: &str) -> Option<PromptAnswer> {
        match self.asks() && !self.json {
            true => answer(question),
            false => None,
        }
    }

    /// Asks before something is lost; only on a terminal, where a user can answer.
    pub(crate) fn confirm(&self, question: &str) -> bool {
        if !self.asks() {
            return true;
        }
        let answer = answer(&format!("{question} [y/N]"));
        matches!(answer, Some(PromptAnswer::Word(word)) if matches!(&*word, "y" | "Y" | "yes"))
    }

    /// A moving line on a terminal while something is done; nothing elsewhere.
    pub(crate) fn progress(&self, doing: &str) -> Progress {
        let shown = !self.quiet && !self.json && std::io::stderr().is_terminal();
        let target = match shown {
            true => ProgressDrawTarget::stderr_with_hz(10),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg} ({elapsed})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(doing.to_owned());
        Progress {
            bar,
            shown,
            silent: self.quiet || self.json,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            cancelled: context::on_interrupt(),
        }
    }
}

/// A file that gets a document beside the streams.
pub(crate) struct ReportFile {
    file: std::fs::File,
    at: Location,
}

impl ReportFile {
    /// Makes the file, before anything is done that it reports.
    pub(crate) fn create(path: &std::path::Path) -> Result<Self, Failure> {
        let at = Location::from(path);
        let file = std::fs::File::create(path);
        let file = file.map_err(|error| report_failed(&at, &error).status(2))?;
        Ok(Self { file, at })
    }

    pub(crate) fn write(&mut self, document: &serde_json::Value) -> Result<(), Failure> {
        let text = format!("{document:#}\n");
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| report_failed(&self.at, &error))
    }
}

fn report_failed(at: &Location, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write the report '{at}': {error}"))
}

/// Whether there are colours everywhere, nowhere, or on terminals.
pub(crate) fn choose_colours(everywhere: Option<bool>) {
    match everywhere {
        Some(true) => anstream::ColorChoice::Always.write_global(),
        Some(false) => anstream::ColorChoice::Never.write_global(),
        None => {}
    }
}

/// Whether colours are wanted there.
fn takes_colours(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

/// A line on stderr. One that cannot be written can be told of nowhere.
pub(crate) fn talk(line: &str) {
    match writeln!(anstream::stderr(), "{}", plain(line)) {
        Ok(()) | Err(_) => {}
    }
}

/// The end of every colour, and the code of each tone.
const CODES: [&str; 6] = [
    "\x1b[0m",
    "\x1b[1m",
    "\x1b[2m",
    "\x1b[32m",
    "\x1b[1;31m",
    "\x1b[33m",
];

/// Colours a word; a pipe and `NO_COLOR` take the colour off again.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    format!("{}{}{}", CODES[tone as usize], plain(text), CODES[0])
}

/// A line with nothing in it that moves the cursor, ends the line or hides a part of it; of terminal codes only
/// our colours stay.
fn plain(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\x1b') {
        let (before, from) = rest.split_at(at);
        shown.push_str(&one_line(before));
        let code = CODES.iter().find(|code| from.starts_with(**code));
        shown.push_str(code.unwrap_or(&"\\x1b"));
        rest = &from[code.map_or(1, |code| code.len())..];
    }
    shown.push_str(&one_line(rest));
    shown
}

/// Takes a closed pipe for an answer: the reader that closed it has read enough.
struct ClosablePipe<W>(W);

impl<W: Write> Write for ClosablePipe<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            answer => answer,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            answer => answer,
        }
    }
}

/// Escapes what passes through, for a terminal.
struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(harmless(bytes).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Colours the lines of a patch by how they begin.
struct PatchPainter<W> {
    to: W,
    line: Vec<u8>,
}

impl<W: Write> PatchPainter<W> {
    fn new(to: W) -> Self {
        let line = Vec::new();
        Self { to, line }
    }

    /// Writes what has come of a line.
    fn end_line(&mut self) -> std::io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let tone = match &line[..] {
            [b'+', b'+', b'+', b' ', ..] | [b'-', b'-', b'-', b' ', ..] | [b'd', ..] => {
                Some(Tone::Strong)
            }
            [b'+', ..] | [b'#', b' ', b'+', b' ', ..] => Some(Tone::Good),
            [b'-', ..] | [b'#', b' ', b'-', b' ', ..] => Some(Tone::Bad),
            [b'@', ..] => Some(Tone::Careful),
            [b'#', ..] => Some(Tone::Faint),
            _ => None,
        };
        let Some(tone) = tone else {
            return self.to.write_all(&line);
        };
        let (text, end) = match line.strip_suffix(b"\n") {
            Some(text) => (text, &b"\n"[..]),
            None => (&line[..], &b""[..]),
        };
        let code = CODES[tone as usize].as_bytes();
        self.to
            .write_all(&[code, text, CODES[0].as_bytes(), end].concat())
    }
}

impl<W: Write> Write for PatchPainter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.end_line()?;
        self.to.flush()
    }
}

/// Shows how far a copy is.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: bool,
    silent: bool,
    entries: AtomicU64,
    bytes: AtomicU64,
    cancelled: Arc<AtomicBool>,
}

impl Observer for Progress {
    fn copied(&self, entries: u64, bytes: u64) {
        let entries = self.entries.fetch_add(entries, Ordering::Relaxed) + entries;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.shown && entries == 1 {
            self.bar.enable_steady_tick(Duration::from_millis(120));
        }
        if self.shown && entries.is_multiple_of(64) {
            self.bar
                .set_message(format!("{entries} entries, {}", HumanBytes(bytes)));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn validating(&self, command: &str) {
        if !self.silent {
            self.bar.suspend(|| talk(&format!("validating: {command}")));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
