//! Progress while a scenario runs, and its table at the end.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar for `steps` steps. Nothing is drawn where the output is no terminal.
pub(crate) fn progress(what: String, steps: usize) -> ProgressBar {
    let progress = ProgressBar::new(steps as u64).with_message(what);
    match ProgressStyle::with_template("{msg:32} {wide_bar} {pos}/{len} {elapsed}") {
        Ok(style) => progress.with_style(style),
        Err(_) => progress,
    }
}

/// A table in Markdown; all columns but the first are numbers.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The value below which `share` of all are.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let at = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}
