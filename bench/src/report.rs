//! The one printer: what was measured, as a table that a person can read, goals that were missed among it.
#![allow(
    clippy::print_stdout,
    reason = "the harness has one printer, and this is it"
)]

use std::time::Duration;

use crate::machine::load;
use crate::measure::Times;

/// One line of a table.
pub(crate) struct Row {
    figure: String,
    ours: String,
    beside: String,
    ratio: String,
    goal: String,
    met: Option<bool>,
}

/// A goal for a ratio: at most so much.
pub(crate) type Goal = Option<f64>;

impl Row {
    /// Our time beside another's.
    pub(crate) fn times(
        figure: impl Into<String>,
        ours: &Times,
        other: &Times,
        goal: Goal,
    ) -> Self {
        let (median, min) = ours.ratio(other);
        Self {
            figure: figure.into(),
            ours: format!("{}: {}", ours.name, spell(ours)),
            beside: format!("{}: {}", other.name, spell(other)),
            ratio: format!("{median:.2} ({min:.2})"),
            goal: goal.map_or_else(String::new, |goal| format!("≤ {goal:?}")),
            met: goal.map(|goal| median <= goal),
        }
    }

    /// Something counted, beside something else that was counted.
    pub(crate) fn counted(
        figure: impl Into<String>,
        ours: impl Into<String>,
        beside: impl Into<String>,
        ratio: Option<f64>,
        goal: &str,
        met: Option<bool>,
    ) -> Self {
        Self {
            figure: figure.into(),
            ours: ours.into(),
            beside: beside.into(),
            ratio: ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            goal: goal.to_owned(),
            met,
        }
    }

    fn line(&self) -> String {
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let cells = [
            &self.figure,
            &self.ours,
            &self.beside,
            &self.ratio,
            &self.goal,
            met,
        ];
        format!("| {} |", cells.join(" | "))
    }
}

fn spell(times: &Times) -> String {
    format!(
        "{} ms ({})",
        milliseconds(times.median()),
        milliseconds(times.min())
    )
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    match ms {
        100.0.. => format!("{ms:.0}"),
        10.0.. => format!("{ms:.1}"),
        _ => format!("{ms:.2}"),
    }
}

/// Some figures of one kind.
pub(crate) struct Section {
    /// What they are about.
    pub(crate) title: &'static str,
    /// What one must know to read them.
    pub(crate) note: String,
    /// The figures.
    pub(crate) rows: Vec<Row>,
}

/// The page.
pub(crate) struct Report {
    text: String,
    missed: usize,
    load: String,
}

const HEAD: &str = "\
# Benchmarks

Written by `make bench`; do not edit by hand.

Each time is taken beside another one: in turns, in one run, each round beginning with another of them, after one round
that does not count. Times are *median (shortest)* in milliseconds; a ratio is *the median of the ratios of each round
(the ratio of the shortest times)*, and below 1 Escrow is faster. Caches are warm, and before each time is taken everything
is on disk. Read ratios, not times: other work may run beside.
";

impl Report {
    /// A page about this machine.
    pub(crate) fn new(machine: String, quick: bool) -> Self {
        let mut report = Self {
            text: String::new(),
            missed: 0,
            load: load(),
        };
        report.say(HEAD);
        report.say(&machine);
        if quick {
            report.say("Quick form: smaller trees, three rounds. Not for quoting.\n");
        }
        report
    }

    fn say(&mut self, text: &str) {
        print(text);
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Adds a section and prints it.
    pub(crate) fn add(&mut self, section: Section) {
        let mut lines = vec![
            format!("## {}\n", section.title),
            wrap(&section.note),
            "| figure | ours | beside | ratio | goal | met |".to_owned(),
            "|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(section.rows.iter().map(Row::line));
        lines.push(String::new());
        self.missed += section
            .rows
            .iter()
            .filter(|row| row.met == Some(false))
            .count();
        self.say(&lines.join("\n"));
    }

    /// The whole page.
    pub(crate) fn finish(mut self) -> String {
        let verdict = match self.missed {
            0 => "Every goal was met.".to_owned(),
            missed => format!("Goals missed: {missed}."),
        };
        let load = format!(
            "Load of the machine before and after: {}, {}.",
            self.load,
            load()
        );
        self.say(&format!("## Sum\n\n{verdict} {load}"));
        self.text
    }
}

/// A paragraph in lines of at most 118 characters.
fn wrap(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 118 {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out.push('\n');
    out
}

/// Prints a line of text.
pub(crate) fn print(text: &str) {
    println!("{text}");
}
