//! One lock that 16 tasks of one process want all the time.

use std::time::Duration;

use crate::contender::Contender;
use crate::contest::Contest;
use crate::plot::Panel;
use crate::report::{Report, Verdict, count, progress, ratio, time};
use crate::sample::{median, percentile};
use crate::{Result, Size};

const TASKS: usize = 16;

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, window) = match size {
        Size::Full => (3, Duration::from_millis(500)),
        Size::Smoke => (1, Duration::from_millis(30)),
    };
    let report = Report::new(
        "inside",
        "One lock, one process with 16 tasks that release it at once; medians of short alternating rounds.",
        &[
            "contender",
            "sections/s",
            "wait p50",
            "p99",
            "longest",
            "Jain",
            "commands",
            "CPU per section",
            "overlaps",
        ],
    );
    let contenders = Contender::all(size);
    let bar = progress("inside", rounds * contenders.len());
    let mut outcomes = vec![(Vec::new(), None); contenders.len()];
    for _ in 0..rounds {
        for (contender, outcomes) in contenders.iter().copied().zip(&mut outcomes) {
            bar.set_message(format!("inside: {contender}"));
            let outcome = Contest {
                contender,
                processes: 1,
                tasks: TASKS,
                locks: 1,
                servers: 1,
                killed: 0,
                rest: Duration::ZERO,
                hold: Duration::ZERO,
                warm: Duration::from_millis(200).min(window),
                window,
                watched: Duration::ZERO,
            }
            .run()
            .await?;
            bar.inc(1);
            let (figures, absent) = outcomes;
            if let Some(why) = outcome.absent {
                *absent = Some(why);
                continue;
            }
            let waits = outcome.waits();
            figures.push(Figures {
                rate: outcome.rate(),
                middle: percentile(&waits, 0.5),
                late: percentile(&waits, 0.99),
                longest: outcome.longest_wait(),
                jain: outcome.jain(),
                commands: outcome.commands_per_section(),
                cpu: outcome.cpu_per_section(),
                overlaps: outcome.overlaps(),
            });
        }
    }
    bar.finish_and_clear();
    Ok(tell(report, contenders, &outcomes))
}

fn tell(mut report: Report, contenders: Vec<Contender>, outcomes: &[(Vec<Figures>, Option<String>)]) -> Report {
    let mut panel = Panel::logarithmic("sections per second, one lock, 16 tasks of one process");
    let mut rates = Vec::new();
    for (contender, (rounds, absent)) in contenders.into_iter().zip(outcomes) {
        match absent {
            Some(why) if rounds.is_empty() => {
                report.absent(Vec::new(), contender, why);
                continue;
            }
            Some(why) => report.note(format!("{contender}, in some rounds: {why}")),
            None => {}
        }
        let middle = |figure: fn(&Figures) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let duration = |figure: fn(&Figures) -> Duration| rounds.iter().map(figure).max().unwrap_or_default();
        let rate = middle(|figures| figures.rate);
        panel.contender(contender, rate);
        rates.push((contender, rate));
        report.row(vec![
            contender.to_string(),
            count(rate),
            time(duration(|figures| figures.middle)),
            time(duration(|figures| figures.late)),
            time(duration(|figures| figures.longest)),
            format!("{:.3}", middle(|figures| figures.jain)),
            format!("{:.2}", middle(|figures| figures.commands)),
            format!("{:.1} µs", middle(|figures| figures.cpu)),
            rounds.iter().map(|figures| figures.overlaps).sum::<usize>().to_string(),
        ]);
        if let Some(note) = contender.note() {
            report.note(note);
        }
    }
    report.panels.push(panel);
    let rate_of = |wanted| {
        rates
            .iter()
            .find(|(who, _)| *who == wanted)
            .map_or(0.0, |(_, rate)| *rate)
    };
    let best = rates
        .iter()
        .filter(|(who, _)| who.is_peer())
        .max_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((best, rate)) = best {
        report.verdicts.extend([
            Verdict::at_least(
                3,
                format!("inside one process, 16 tasks, 0 hold: rate / best peer ({best})"),
                20.0,
                ratio(rate_of(Contender::OURS), *rate),
            ),
            Verdict::at_least(
                3,
                format!("the same, hand-over off / best peer ({best})"),
                1.0,
                ratio(rate_of(Contender::HANDOVER_OFF), *rate),
            ),
        ]);
    }
    report
}

#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    middle: Duration,
    late: Duration,
    longest: Duration,
    jain: f64,
    commands: f64,
    cpu: f64,
    overlaps: usize,
}
