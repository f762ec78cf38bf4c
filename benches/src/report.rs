//! The report of a scenario: progress while it runs, a table and verdicts at its end.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

use crate::contender::Contender;
use crate::plot::Panel;

/// A bar for `steps` steps. Nothing is drawn where the output is no terminal.
pub(crate) fn progress(what: impl Into<String>, steps: usize) -> ProgressBar {
    let progress = ProgressBar::new(steps as u64).with_message(what.into());
    match ProgressStyle::with_template("{msg:48} {wide_bar} {pos}/{len} {elapsed}") {
        Ok(style) => progress.with_style(style),
        Err(_) => progress,
    }
}

/// A figure beside what the project asks of it.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Of the list in the issue.
    line: u8,
    what: String,
    limit: String,
    figure: String,
    met: bool,
}

impl Verdict {
    /// The figure must be at least the limit.
    pub(crate) fn at_least(line: u8, what: impl Into<String>, limit: f64, figure: f64) -> Self {
        Self {
            line,
            what: what.into(),
            limit: format!("≥ {limit}"),
            figure: format!("{figure:.3}"),
            met: figure >= limit,
        }
    }

    /// The figure must be at most the limit; `unit` comes behind both.
    pub(crate) fn at_most(line: u8, what: impl Into<String>, limit: f64, figure: f64, unit: &str) -> Self {
        let space = if unit.is_empty() { "" } else { " " };
        Self {
            line,
            what: what.into(),
            limit: format!("≤ {}{space}{unit}", short(limit)),
            figure: format!("{}{space}{unit}", short(figure)),
            met: figure <= limit,
        }
    }

    /// The figure must be less than the limit; `unit` comes behind both.
    pub(crate) fn below(line: u8, what: impl Into<String>, limit: f64, figure: f64, unit: &str) -> Self {
        let verdict = Self::at_most(line, what, limit, figure, unit);
        Self {
            limit: verdict.limit.replace('≤', "<"),
            met: figure < limit,
            ..verdict
        }
    }

    /// Something that must hold.
    pub(crate) fn holds(line: u8, what: impl Into<String>, figure: impl Into<String>, met: bool) -> Self {
        Self {
            line,
            what: what.into(),
            limit: "holds".to_owned(),
            figure: figure.into(),
            met,
        }
    }

    pub(crate) fn table(verdicts: &[Self]) -> String {
        let rows = verdicts.iter().map(|verdict| {
            let met = if verdict.met { "met" } else { "**not met**" };
            vec![
                verdict.line.to_string(),
                verdict.what.clone(),
                verdict.limit.clone(),
                verdict.figure.clone(),
                met.to_owned(),
            ]
        });
        table(&["line", "what", "limit", "figure", "verdict"], rows.collect()).to_string()
    }
}

/// Three digits of it, or all before the point.
fn short(figure: f64) -> String {
    match figure.abs() {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// The outcome of a scenario.
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    /// What was done, in a sentence or three.
    about: Cow<'static, str>,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Report {
    pub(crate) fn new(scenario: &'static str, about: impl Into<Cow<'static, str>>, header: &[&'static str]) -> Self {
        Self {
            scenario,
            about: about.into(),
            header: header.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
            panels: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The row of a contender that has no figures, behind the cells `before` it, and why.
    pub(crate) fn absent(&mut self, before: Vec<String>, contender: Contender, why: &str) {
        let mut row = before;
        row.push(format!("{contender} ({why})"));
        row.resize(self.header.len(), "–".to_owned());
        self.rows.push(row);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// All but the heading, in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}\n\n{}\n", self.about, table(&self.header, self.rows.clone()));
        for note in &self.notes {
            let _ = write!(text, "\n- {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        if !self.verdicts.is_empty() {
            let _ = write!(text, "\n{}\n", Verdict::table(&self.verdicts));
        }
        text
    }
}

/// A table in Markdown; columns that hold nothing but figures stand to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    let is_figure = |cell: &String| cell.starts_with(|first: char| first.is_ascii_digit() || first == '–');
    let figures: Vec<_> = (0..header.len())
        .map(|at| rows.iter().all(|row| row.get(at).is_some_and(is_figure)))
        .collect();
    table.add_rows(rows);
    for (column, figures) in table.column_iter_mut().zip(figures) {
        if figures {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A number of things in floating point.
pub(crate) trait Number {
    fn float(self) -> f64;
}

impl Number for f64 {
    fn float(self) -> f64 {
        self
    }
}

impl Number for i32 {
    fn float(self) -> f64 {
        f64::from(self)
    }
}

#[allow(clippy::cast_precision_loss)]
impl Number for usize {
    fn float(self) -> f64 {
        self as f64
    }
}

#[allow(clippy::cast_precision_loss)]
impl Number for u64 {
    fn float(self) -> f64 {
        self as f64
    }
}

impl Number for Duration {
    fn float(self) -> f64 {
        self.as_secs_f64()
    }
}

/// The quotient, and zero where there is none.
pub(crate) fn ratio(part: impl Number, whole: impl Number) -> f64 {
    let quotient = part.float() / whole.float();
    if quotient.is_finite() { quotient } else { 0.0 }
}

/// A number with its thousands apart; below 100 it has one more digit.
pub(crate) fn rate(number: f64) -> String {
    if number < 100.0 {
        format!("{number:.1}")
    } else {
        count(number)
    }
}

/// A whole number, its thousands apart.
pub(crate) fn count(number: impl Number) -> String {
    let digits = format!("{:.0}", number.float());
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time with the unit that suits it.
pub(crate) fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        10_000_000.0.. => format!("{:.1} s", micros / 1e6),
        10_000.0.. => format!("{:.0} ms", micros / 1e3),
        1_000.0.. => format!("{:.2} ms", micros / 1e3),
        _ => format!("{micros:.1} µs"),
    }
}
