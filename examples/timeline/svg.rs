//! Pictures of what happened when, as SVG: legible at the width of a phone, by day and by night.

use std::fmt::Write;
use std::time::Duration;

/// In pixels, of which a phone shows most.
const WIDTH: f64 = 400.0;
const RIGHT: f64 = 12.0;
const ROW: f64 = 24.0;
const TOP: f64 = 34.0;
/// The height of a graph.
const GRAPH: f64 = 130.0;

/// What somebody does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Waits for the lock, where a picture tells more of it behind the calls of its own process.
    Waits,
    /// Waits in the queue of the store.
    Queues,
    /// Is inside.
    Inside,
}

impl Doing {
    fn class(self) -> &'static str {
        match self {
            Self::Waits => "w",
            Self::Queues => "q",
            Self::Inside => "i",
        }
    }
}

#[derive(Debug)]
struct Row {
    name: String,
    spans: Vec<(Duration, Duration, Doing)>,
}

/// A picture of a stretch of time: rows of who did what when, and above them a graph of the rest of a lease.
#[derive(Debug, Default)]
pub struct Picture {
    title: String,
    end: Duration,
    rows: Vec<Row>,
    /// The rest of the lease at some moments, `None` while the lock is free.
    lease: Vec<(Duration, Option<Duration>)>,
    marks: Vec<(Duration, String)>,
    legend: Vec<(Doing, String)>,
}

impl Picture {
    /// Begins a picture of the time from zero to `end`.
    #[must_use]
    pub fn new(title: &str, end: Duration) -> Self {
        Self {
            title: title.to_owned(),
            end,
            ..Self::default()
        }
    }

    /// Adds a row below the others.
    pub fn row(&mut self, name: &str, spans: Vec<(Duration, Duration, Doing)>) {
        let name = name.to_owned();
        self.rows.push(Row { name, spans });
    }

    /// Adds the graph of a lease.
    pub fn lease(&mut self, samples: Vec<(Duration, Option<Duration>)>) {
        self.lease = samples;
    }

    /// Adds an event.
    pub fn mark(&mut self, at: Duration, what: &str) {
        self.marks.push((at, what.to_owned()));
    }

    /// Says below the picture what a colour means.
    pub fn legend(&mut self, doing: Doing, means: &str) {
        self.legend.push((doing, means.to_owned()));
    }

    /// Returns where the time begins: behind the longest name.
    fn left(&self) -> f64 {
        let longest = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        (20.0 + 6.8 * to_f64(longest)).max(82.0)
    }

    fn x(&self, at: Duration) -> f64 {
        let left = self.left();
        left + (WIDTH - left - RIGHT) * (at.as_secs_f64() / self.end.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0)
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut shapes = String::new();
        // Each mark has a line of its own, so that neighbours do not cover each other.
        let mut y = TOP + 16.0 * to_f64(self.marks.len());
        if !self.lease.is_empty() {
            y = self.graph(&mut shapes, y);
        }
        for Row { name, spans } in &self.rows {
            add(
                &mut shapes,
                format_args!("<text x=\"10\" y=\"{:.0}\">{}</text>", y + 16.0, escaped(name)),
            );
            for (from, to, doing) in spans {
                let (from, to) = (self.x(*from), self.x(*to));
                add(
                    &mut shapes,
                    format_args!(
                        "<rect class=\"{}\" x=\"{from:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"16\" rx=\"3\"/>",
                        doing.class(),
                        y + 4.0,
                        (to - from).max(1.5)
                    ),
                );
            }
            y += ROW;
        }
        for (nth, (at, what)) in self.marks.iter().enumerate() {
            let (x, text) = (self.x(*at), TOP + 16.0 * to_f64(nth) + 8.0);
            let (anchor, beside) = if x > f64::midpoint(self.left(), WIDTH) {
                ("end", x - 5.0)
            } else {
                ("start", x + 5.0)
            };
            add(
                &mut shapes,
                format_args!(
                    "<path class=\"m\" d=\"M{x:.1} {:.0}V{y:.0}\"/><text class=\"n\" x=\"{beside:.1}\" y=\"{text:.0}\" text-anchor=\"{anchor}\">{}</text>",
                    text - 9.0,
                    escaped(what)
                ),
            );
        }
        y = self.axis(&mut shapes, y);
        for (doing, means) in &self.legend {
            y += 20.0;
            add(
                &mut shapes,
                format_args!(
                    "<rect class=\"{}\" x=\"10\" y=\"{:.0}\" width=\"22\" height=\"12\" rx=\"3\"/><text x=\"40\" y=\"{y:.0}\">{}</text>",
                    doing.class(),
                    y - 11.0,
                    escaped(means)
                ),
            );
        }
        let height = y + 14.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"card\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\"/>\n\
             <text class=\"t\" x=\"10\" y=\"20\">{title}</text>\n{shapes}</svg>\n",
            title = escaped(&self.title)
        )
    }

    fn graph(&self, shapes: &mut String, top: f64) -> f64 {
        let most = self
            .lease
            .iter()
            .filter_map(|(_, rest)| *rest)
            .max()
            .unwrap_or_default();
        let (left, bottom) = (self.left(), top + GRAPH - 14.0);
        let y =
            |rest: Duration| bottom - (GRAPH - 30.0) * (rest.as_secs_f64() / most.as_secs_f64().max(f64::MIN_POSITIVE));
        let middle = f64::midpoint(top, bottom);
        add(
            shapes,
            format_args!("<text x=\"10\" y=\"{middle:.0}\">lease left</text>"),
        );
        for rest in [most, Duration::ZERO] {
            let label = format!("{:.0} s", rest.as_secs_f64());
            add(
                shapes,
                format_args!(
                    "<path class=\"g\" d=\"M{left:.0} {0:.1}H{1:.0}\"/><text class=\"n\" x=\"{2:.0}\" y=\"{3:.1}\" text-anchor=\"end\">{label}</text>",
                    y(rest),
                    WIDTH - RIGHT,
                    left - 5.0,
                    y(rest) + 4.0
                ),
            );
        }
        let mut path = String::new();
        let mut is_down = false;
        for (at, rest) in &self.lease {
            let Some(rest) = rest else {
                is_down = false;
                continue;
            };
            let command = if is_down { 'L' } else { 'M' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(*at), y(*rest));
            is_down = true;
        }
        add(shapes, format_args!("<path class=\"l\" d=\"{path}\"/>"));
        bottom + 10.0
    }

    fn axis(&self, shapes: &mut String, top: f64) -> f64 {
        let (y, left, right) = (top + 6.0, self.left(), WIDTH - RIGHT);
        add(
            shapes,
            format_args!("<path class=\"g\" d=\"M{left:.0} {y:.0}H{right:.0}\"/>"),
        );
        let end = if self.end < Duration::from_secs(1) {
            format!("{} ms", self.end.as_millis())
        } else {
            format!("{:.0} s", self.end.as_secs_f64())
        };
        for (x, anchor, text) in [(left, "start", "0"), (right, "end", end.as_str())] {
            add(
                shapes,
                format_args!(
                    "<text class=\"n\" x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{text}</text>",
                    y + 14.0
                ),
            );
        }
        y + 18.0
    }
}

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2937}.t{font-weight:600}.n{font-size:12px;fill:#4b5563}.card{fill:#fff;stroke:#d1d5db}\
    .w{fill:#bfdbfe}.q{fill:#fbbf77}.i{fill:#2563eb}.g{stroke:#d1d5db;fill:none}.l{stroke:#2563eb;stroke-width:2;fill:none}\
    .m{stroke:#dc2626;stroke-dasharray:3 3;fill:none}\
    @media (prefers-color-scheme:dark){text{fill:#e5e7eb}.n{fill:#b6bdc9}.card{fill:#1f2430;stroke:#374151}.w{fill:#3b5b8c}.q{fill:#b7791f}\
    .i{fill:#7aa2ff}.g{stroke:#4b5563}.l{stroke:#7aa2ff}.m{stroke:#f87171}}";

fn add(shapes: &mut String, shape: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(shapes, "{shape}");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
