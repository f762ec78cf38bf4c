//! Code that the examples share: a timeline of the callers that waited for a lock and held it, and
//! the error of `main`.

pub mod svg;

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::svg::{Doing, Picture};

/// What ends an example's `main`. It is shown as text: what `main` returns is printed by `Debug`, which for most errors is not made to
/// be read.
pub struct Failure(String);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        Self(text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How many characters stand for the whole time.
const WIDTH: usize = 56;

/// Who asked, entered and left when.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    visits: Mutex<Vec<Visit>>,
    changed: Notify,
}

#[derive(Debug)]
struct Visit {
    who: String,
    asked: Duration,
    entered: Option<Duration>,
    left: Option<Duration>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            visits: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl Timeline {
    fn visits(&self) -> MutexGuard<'_, Vec<Visit>> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self, who: &str, note: impl FnOnce(&mut Visit, Duration)) {
        let now = self.start.elapsed();
        if let Some(visit) = self.visits().iter_mut().rfind(|visit| visit.who == who) {
            note(visit, now);
        }
        self.changed.notify_waiters();
    }

    /// Prints the timeline, and writes it into the SVG file that `TIMELINE_SVG` names, under the title `TIMELINE_TITLE`.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn show(&self) -> Result<(), Failure> {
        println!("{self}");
        if let Ok(path) = std::env::var("TIMELINE_SVG") {
            std::fs::write(path, self.picture(&std::env::var("TIMELINE_TITLE")?).svg())?;
        }
        Ok(())
    }

    fn picture(&self, title: &str) -> Picture {
        let end = self.start.elapsed();
        let mut picture = Picture::new(title, end);
        for visit in self.visits().iter() {
            let left = visit.left.unwrap_or(end);
            let entered = visit.entered.unwrap_or(left);
            let mut spans = vec![(visit.asked, entered, Doing::Waits)];
            if visit.entered.is_some() {
                spans.push((entered, left, Doing::Inside));
            }
            picture.row(&visit.who, spans);
        }
        picture.legend(Doing::Waits, "waits");
        picture.legend(Doing::Inside, "is inside");
        picture
    }

    /// Somebody asks for the lock.
    pub fn asks(&self, who: &str) {
        let asked = self.start.elapsed();
        self.visits().push(Visit {
            who: who.to_owned(),
            asked,
            entered: None,
            left: None,
        });
        self.changed.notify_waiters();
    }

    /// Who has asked gets an answer without having been inside.
    pub fn is_answered(&self, who: &str) {
        self.last(who, |visit, now| visit.left = visit.left.or(Some(now)));
    }

    /// Who has asked is inside until the returned value is dropped.
    pub fn enters(&self, who: &str) -> Inside<'_> {
        self.last(who, |visit, now| visit.entered = Some(now));
        Inside {
            timeline: self,
            who: who.to_owned(),
        }
    }

    /// Completes once this one has asked.
    pub async fn has_asked(&self, who: &str) {
        self.sees(who, |_| true).await;
    }

    /// Completes once this one is inside, or has been, or has an answer.
    pub async fn has_entered(&self, who: &str) {
        self.sees(who, |visit| visit.entered.or(visit.left).is_some()).await;
    }

    async fn sees(&self, who: &str, is_so: impl Fn(&Visit) -> bool) {
        loop {
            let changed = self.changed.notified();
            if self.visits().iter().any(|visit| visit.who == who && is_so(visit)) {
                return;
            }
            changed.await;
        }
    }
}

/// Somebody inside.
#[derive(Debug)]
#[must_use = "dropping it is leaving"]
pub struct Inside<'a> {
    timeline: &'a Timeline,
    who: String,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.timeline.last(&self.who, |visit, now| visit.left = Some(now));
    }
}

/// One line for each visit: `·` while it waits, `█` while it is inside.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.start.elapsed();
        let visits = self.visits();
        let column = |at: Duration| {
            let part = at.as_secs_f64() / end.as_secs_f64().max(f64::MIN_POSITIVE);
            // From 0 to the width.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss
            )]
            let column = (part * WIDTH as f64) as usize;
            column.min(WIDTH)
        };
        let name = visits.iter().map(|visit| visit.who.chars().count()).max().unwrap_or(0);
        for visit in visits.iter() {
            let asked = column(visit.asked);
            let left = visit.left.map_or(WIDTH, column);
            let entered = visit.entered.map_or(left, column);
            let inside = left.saturating_sub(entered).max(usize::from(visit.entered.is_some()));
            let line = format!(
                "{}{}{}",
                " ".repeat(asked),
                "·".repeat(entered.saturating_sub(asked)),
                "█".repeat(inside)
            );
            let told = match (visit.entered, visit.left) {
                (None, None) => "never entered".to_owned(),
                (None, Some(answered)) => format!("answered at {} ms, never inside", answered.as_millis()),
                (Some(entered), None) => format!("entered at {} ms", entered.as_millis()),
                (Some(entered), Some(left)) => {
                    format!("inside from {} to {} ms", entered.as_millis(), left.as_millis())
                }
            };
            writeln!(f, "{:name$}  {line:WIDTH$}  {told}", visit.who)?;
        }
        write!(f, "{:name$}  (· waits, █ is inside)", "")
    }
}

/// The examples in the README of the repository compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// So do those of the book.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../docs/start.md")]
    struct Start;
    #[doc = include_str!("../../docs/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../docs/jobs.md")]
    struct Jobs;
    #[doc = include_str!("../../docs/web.md")]
    struct Web;
}
