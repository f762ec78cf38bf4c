//! The result of a round.

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use lock_examples::Failure;
use lock_runtime::LockError;

/// What became of the buyers of one round.
#[derive(Default)]
pub(crate) struct Round {
    sold: i64,
    lost: u64,
    failures: Vec<String>,
    /// How long each buyer waited for the lock.
    waits: Vec<Duration>,
}

impl Round {
    pub(crate) fn served(&mut self, sold: bool, waited: Duration) {
        self.sold += i64::from(sold);
        self.waits.push(waited);
    }

    pub(crate) fn refused(&mut self, error: &LockError) {
        self.lost += u64::from(error.is_lost());
        self.failed(error);
    }

    pub(crate) fn failed(&mut self, error: &impl ToString) {
        self.failures.push(error.to_string());
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.sold += other.sold;
        self.lost += other.lost;
        self.failures.extend_from_slice(&other.failures);
        self.waits.extend_from_slice(&other.waits);
    }

    pub(crate) fn sold(&self) -> i64 {
        self.sold
    }

    pub(crate) fn is_exact(&self, pieces: i64) -> bool {
        self.sold == pieces && self.failures.is_empty()
    }

    pub(crate) fn failures(&self) -> String {
        format!(
            "{} failures {}",
            self.failures.len(),
            self.failures.first().map_or("", |first| first)
        )
    }

    fn wait(&self, share: f64) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let at = (waits.len().saturating_sub(1) as f64 * share).round() as usize;
        waits.get(at).copied().unwrap_or_default()
    }

    /// Reads what another process has written by `Display`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut round = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("sold", count)) => round.sold = count.parse()?,
                Some(("lost", count)) => round.lost = count.parse()?,
                Some(("wait", micros)) => round.waits.push(Duration::from_micros(micros.parse()?)),
                Some(("failure", text)) => round.failures.push(text.to_owned()),
                _ => return Err(format!("a process of this example said {line:?}").into()),
            }
        }
        Ok(round)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sold {}\nlost {}", self.sold, self.lost)?;
        for wait in &self.waits {
            write!(f, "\nwait {}", wait.as_micros())?;
        }
        for failure in &self.failures {
            write!(f, "\nfailure {}", failure.replace('\n', " "))?;
        }
        Ok(())
    }
}

/// The two rounds side by side.
pub(crate) fn table([unlocked, locked]: &[Round; 2], pieces: i64) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "in stock", "sold", "oversold", "wait p50", "wait p99", "lost locks"]);
    let row = |name: &str, round: &Round, waits: [String; 2], lost: String| {
        let [p50, p99] = waits;
        let oversold = (round.sold - pieces).max(0);
        [
            name.to_owned(),
            pieces.to_string(),
            round.sold.to_string(),
            oversold.to_string(),
            p50,
            p99,
            lost,
        ]
    };
    let none = || "-".to_owned();
    table.add_row(row("without a lock", unlocked, [none(), none()], none()));
    let waits = [0.50, 0.99].map(|share| format!("{:.1?}", locked.wait(share)));
    table.add_row(row("with the lock", locked, waits, locked.lost.to_string()));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
