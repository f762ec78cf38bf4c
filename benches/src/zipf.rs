//! Many locks, of which few are popular.

use std::time::Duration;

use crate::contender::Contender;
use crate::contest::Contest;
use crate::plot::Panel;
use crate::report::{Report, progress, rate, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size};

const PROCESSES: usize = 4;
const TASKS: usize = 16;

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (locks, window) = match size {
        Size::Full => (10_000, Duration::from_secs(3)),
        Size::Smoke => (100, Duration::from_millis(50)),
    };
    let mut report = Report::new(
        "zipf",
        "10,000 locks drawn by Zipf's law (s = 1), 4 processes with 16 tasks each, held for a sleep of 1 ms. The ideal is a local mutex per lock with 64 tasks \
         in one process.",
        &[
            "contender",
            "sections/s",
            "of ideal",
            "wait p50",
            "p99",
            "longest",
            "commands",
            "calls",
            "CPU per section",
            "overlaps",
        ],
    );
    let bar = progress("zipf", Contender::all(size).len());
    let mut ideal = 0.0;
    let mut panel = Panel::linear("sections per second, 10,000 locks drawn by Zipf's law, 1 ms hold");
    // The ideal comes first.
    let (local, others): (Vec<_>, Vec<_>) = Contender::all(size)
        .into_iter()
        .partition(|who| *who == Contender::Local);
    for contender in local.into_iter().chain(others) {
        bar.set_message(format!("zipf: {contender}"));
        let alone = contender == Contender::Local;
        let outcome = Contest {
            contender,
            processes: if alone { 1 } else { PROCESSES },
            tasks: if alone { PROCESSES * TASKS } else { TASKS },
            locks,
            servers: 1,
            killed: 0,
            rest: Duration::ZERO,
            hold: Duration::from_millis(1),
            warm: Duration::from_millis(500).min(window),
            window,
            watched: Duration::from_millis(300).min(window),
        }
        .run()
        .await?;
        if alone {
            ideal = outcome.rate();
        }
        bar.inc(1);
        if let Some(why) = &outcome.absent {
            report.absent(Vec::new(), contender, why);
            continue;
        }
        let waits = outcome.waits();
        panel.contender(contender, outcome.rate());
        report.row(vec![
            contender.to_string(),
            rate(outcome.rate()),
            format!("{:.3}", ratio(outcome.rate(), ideal)),
            time(percentile(&waits, 0.50)),
            time(percentile(&waits, 0.99)),
            time(outcome.longest_wait()),
            format!("{:.2}", outcome.commands_per_section()),
            format!("{:.2}", outcome.calls_per_section()),
            format!("{:.0} µs", outcome.cpu_per_section()),
            outcome.overlaps().to_string(),
        ]);
        if let Some(note) = contender.note() {
            report.note(note);
        }
    }
    bar.finish_and_clear();
    report.panels.push(panel);
    Ok(report)
}
