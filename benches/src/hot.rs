//! One lock that 32 tasks in 4 processes want all the time.

use std::collections::HashMap;
use std::time::Duration;

use crate::contender::Contender;
use crate::contest::{Contest, Outcome};
use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, rate, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
/// What the project's promises are about.
const PROMISED: Duration = Duration::from_millis(5);

#[allow(clippy::too_many_lines, reason = "the table and its settings")]
pub(crate) async fn run(size: Size) -> Result<Report> {
    let mut report = Report::new(
        "hot",
        "One lock, 4 processes with 8 tasks each; the holder sleeps for the time in the first column. The ideal is the rate of a local mutex with the same sleep and 32 tasks. \
         Commands are the server's own count, including those inside scripts; calls are those that clients sent (their share \
         is sampled with MONITOR afterwards). An inversion is the longest time by which a task had asked earlier than another \
         one that was served before it. An overlap is a section that began before another one had ended.",
        &[
            "hold",
            "contender",
            "sections/s",
            "of ideal",
            "wait p50",
            "p99",
            "longest",
            "Jain",
            "commands",
            "calls",
            "CPU per section",
            "inversion",
            "overlaps",
        ],
    );
    let holds: &[u64] = match size {
        Size::Full => &[0, 1, 5, 50],
        Size::Smoke => &[1],
    };
    let contenders: Vec<_> = Contender::all(size)
        .into_iter()
        .filter(|contender| *contender != Contender::Local)
        .collect();
    let bar = progress("hot key", holds.len() * (contenders.len() + 1));
    for hold in holds.iter().copied().map(Duration::from_millis) {
        let window = match size {
            Size::Full if hold < PROMISED => Duration::from_secs(2),
            Size::Full => Duration::from_secs(6),
            Size::Smoke => Duration::from_millis(60),
        };
        let contest = Contest {
            contender: Contender::Local,
            processes: 1,
            tasks: PROCESSES * TASKS,
            locks: 1,
            servers: 1,
            killed: 0,
            rest: Duration::ZERO,
            hold,
            warm: Duration::from_millis(500).min(window),
            window: if hold.is_zero() { window / 10 } else { window },
            watched: Duration::from_millis(300).min(window),
        };
        let mut panel = Panel::linear(format!("share of the ideal rate, {} ms hold", hold.as_millis()));
        bar.set_message(format!("{} ms: {}", hold.as_millis(), contest.contender));
        let ideal = contest.run().await?;
        bar.inc(1);
        row(&mut report, hold, Contender::Local, &ideal, ideal.rate());
        let mut rates = HashMap::new();
        for contender in contenders.iter().copied() {
            bar.set_message(format!("{} ms: {contender}", hold.as_millis()));
            let outcome = Contest {
                contender,
                processes: PROCESSES,
                tasks: TASKS,
                window,
                ..contest
            }
            .run()
            .await?;
            bar.inc(1);
            if let Some(why) = &outcome.absent {
                report.absent(vec![format!("{} ms", hold.as_millis())], contender, why);
                continue;
            }
            row(&mut report, hold, contender, &outcome, ideal.rate());
            panel.contender(contender, ratio(outcome.rate(), ideal.rate()));
            rates.insert(contender, outcome.rate());
            if hold == PROMISED {
                judge(&mut report, contender, &outcome, ideal.rate());
            }
            if matches!(contender, Contender::Ours(_)) && (outcome.overlaps() > 0 || outcome.errors > 0) {
                let what = format!("hot key, {} ms: {contender}: no overlap, no error", hold.as_millis());
                let figure = format!("{} overlaps, {} errors", outcome.overlaps(), outcome.errors);
                report.verdicts.push(Verdict::holds(1, what, figure, false));
            }
            if outcome.errors > 0 {
                report.note(format!("{contender}: {} sections ended in an error", outcome.errors));
            }
        }
        if hold == PROMISED {
            report.verdicts.extend(cost_of_leaving_free(&rates));
        }
        report.panels.push(panel);
    }
    bar.finish_and_clear();
    let notes = contenders.into_iter().filter_map(Contender::note);
    notes.for_each(|note| report.note(note));
    Ok(report)
}

/// What the waiting calls pay for the turns of clients that poll.
fn cost_of_leaving_free(rates: &HashMap<Contender, f64>) -> Option<Verdict> {
    let share = ratio(*rates.get(&Contender::OURS)?, *rates.get(&Contender::NEVER_LEFT_FREE)?);
    let what = "hot key, 5 ms: ours: rate / rate where the lock is never left free for clients that poll";
    Some(Verdict::at_least(1, what, 0.98, share))
}

fn row(report: &mut Report, hold: Duration, contender: Contender, outcome: &Outcome, ideal: f64) {
    let waits = outcome.waits();
    let commands = |figure: f64| match contender {
        Contender::Local => "–".to_owned(),
        _ => format!("{figure:.2}"),
    };
    report.row(vec![
        format!("{} ms", hold.as_millis()),
        contender.to_string(),
        rate(outcome.rate()),
        format!("{:.3}", ratio(outcome.rate(), ideal)),
        time(percentile(&waits, 0.50)),
        time(percentile(&waits, 0.99)),
        time(outcome.longest_wait()),
        format!("{:.3}", outcome.jain()),
        commands(outcome.commands_per_section()),
        commands(outcome.calls_per_section()),
        format!("{:.0} µs", outcome.cpu_per_section()),
        time(outcome.largest_inversion()),
        outcome.overlaps().to_string(),
    ]);
}

fn judge(report: &mut Report, contender: Contender, outcome: &Outcome, ideal: f64) {
    let line = |what: &str| format!("hot key, 5 ms: {contender}: {what}");
    match contender {
        Contender::OURS => {
            let longest = PROMISED.as_secs_f64() * 1e3 * ratio(2 * PROCESSES * TASKS, 1);
            let waited = outcome.longest_wait().as_secs_f64() * 1e3;
            report.verdicts.extend([
                Verdict::at_least(1, line("rate / ideal"), 0.97, ratio(outcome.rate(), ideal)),
                Verdict::at_most(1, line("longest wait"), longest, waited, "ms"),
                Verdict::at_least(1, line("Jain"), 0.95, outcome.jain()),
                Verdict::at_most(1, line("commands per section"), 6.0, outcome.commands_per_section(), ""),
            ]);
        }
        Contender::FAIR => {
            let delay = outcome.round_trips.last().copied().unwrap_or_default().as_secs_f64() * 1e3;
            let inversion = outcome.largest_inversion().as_secs_f64() * 1e3;
            report.verdicts.extend([
                Verdict::at_least(1, line("Jain"), 0.99, outcome.jain()),
                Verdict::at_most(1, line("inversion / longest PING in this run"), delay, inversion, "ms"),
            ]);
        }
        _ => {}
    }
}
