//! The result of a round.

use std::fmt;
use std::time::Duration;

use lock_examples::Failure;
use lock_runtime::LockError;

/// What one buyer had.
pub(crate) struct Visit {
    pub(crate) sold: bool,
    /// How long the buyer waited for the lock.
    pub(crate) waited: Duration,
    /// How long the buyer had it.
    pub(crate) inside: Duration,
}

impl Visit {
    pub(crate) fn without_waiting(sold: bool) -> Self {
        Self {
            sold,
            waited: Duration::ZERO,
            inside: Duration::ZERO,
        }
    }
}

/// What became of the buyers of one round.
#[derive(Default)]
pub(crate) struct Round {
    sold: i64,
    lost: u64,
    failures: Vec<String>,
    /// How long each buyer waited for the lock.
    waits: Vec<Duration>,
    /// How long they had it, all together.
    inside: Duration,
}

impl Round {
    pub(crate) fn served(&mut self, visit: &Visit) {
        self.sold += i64::from(visit.sold);
        self.waits.push(visit.waited);
        self.inside += visit.inside;
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
        self.inside += other.inside;
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

    /// Says what the waits consist of, where this many buyers wanted each item.
    pub(crate) fn waits_are_of(&self, each: u32) -> String {
        let turns = u32::try_from(self.waits.len().max(1)).unwrap_or(u32::MAX);
        let inside = self.inside / turns;
        let in_front = inside * each.saturating_sub(1);
        let lock = self.wait(1.0).saturating_sub(in_front) / each.max(1);
        format!(
            "A buyer waits for those in front, up to {} for the same item, {inside:.1?} each on average; handing the lock on took about {lock:.0?} more each time.",
            each.saturating_sub(1)
        )
    }

    /// Reads what another process has written by `Display`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut round = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("sold", count)) => round.sold = count.parse()?,
                Some(("lost", count)) => round.lost = count.parse()?,
                Some(("wait", micros)) => round.waits.push(Duration::from_micros(micros.parse()?)),
                Some(("inside", micros)) => round.inside = Duration::from_micros(micros.parse()?),
                Some(("failure", text)) => round.failures.push(text.to_owned()),
                _ => return Err(format!("a process of this example said {line:?}").into()),
            }
        }
        Ok(round)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sold {}\nlost {}\ninside {}",
            self.sold,
            self.lost,
            self.inside.as_micros()
        )?;
        for wait in &self.waits {
            write!(f, "\nwait {}", wait.as_micros())?;
        }
        for failure in &self.failures {
            write!(f, "\nfailure {}", failure.replace('\n', " "))?;
        }
        Ok(())
    }
}

/// Shows the two rounds side by side.
pub(crate) fn show([unlocked, locked]: &[Round; 2], pieces: i64) {
    let row = |cells: [&str; 7]| {
        let [name, stock, sold, oversold, p50, p99, lost] = cells;
        println!("| {name:14} | {stock:>8} | {sold:>4} | {oversold:>8} | {p50:>8} | {p99:>8} | {lost:>10} |");
    };
    row(["", "in stock", "sold", "oversold", "wait p50", "wait p99", "lost locks"]);
    println!("|{:-<16}|{0:-<10}|{0:-<6}|{0:-<10}|{0:-<10}|{0:-<10}|{0:-<12}|", "");
    let [stock, all, exact] = [pieces, unlocked.sold, locked.sold].map(|count| count.to_string());
    let oversold = |round: &Round| (round.sold - pieces).max(0).to_string();
    row(["without a lock", &stock, &all, &oversold(unlocked), "-", "-", "-"]);
    let [p50, p99] = [0.50, 0.99].map(|share| format!("{:.1?}", locked.wait(share)));
    row([
        "with the lock",
        &stock,
        &exact,
        &oversold(locked),
        &p50,
        &p99,
        &locked.lost.to_string(),
    ]);
    println!();
}
