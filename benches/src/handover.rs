//! The time from a release in one process to the grant in another.

use std::time::{Duration, Instant};

use lock_tests::server::Server;

use crate::contender::Contender;
use crate::contest::Contest;
use crate::plot::Panel;
use crate::process::Apart;
use crate::report::{Number, Report, Verdict, progress, rate, ratio, time};
use crate::sample::percentile;
use crate::{Result, Size};

pub(crate) async fn run(size: Size) -> Result<Report> {
    let (rounds, window) = match size {
        Size::Full => (3, Duration::from_millis(500)),
        Size::Smoke => (1, Duration::from_millis(30)),
    };
    let mut report = Report::new(
        "handover",
        "Two processes with one task each take one lock in a loop and release it at once. The time is that from the call that \
         releases it in one process to the grant in the other. With the other libraries, the process that releases the lock \
         mostly takes it again itself; only the grants to the other process count as hand-overs.",
        &[
            "contender",
            "hand-overs/s",
            "p50",
            "p99",
            "round trips (p50)",
            "share of grants",
        ],
    );
    let contenders: Vec<_> = Contender::all(size)
        .into_iter()
        .filter(|contender| *contender != Contender::Local)
        .collect();
    let bar = progress("hand-over", rounds * (contenders.len() + 1));
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); contenders.len()];
    let mut sections = vec![0; contenders.len()];
    let mut absent = vec![None; contenders.len()];
    let mut round_trips = Vec::new();
    for _ in 0..rounds {
        bar.set_message("hand-over: PING");
        round_trips.extend(pings(window / 4).await?);
        bar.inc(1);
        for (at, contender) in contenders.iter().copied().enumerate() {
            bar.set_message(format!("hand-over: {contender}"));
            let outcome = Contest {
                contender,
                processes: 2,
                tasks: 1,
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
            if let (Some(times), Some(sections), Some(absent)) =
                (times.get_mut(at), sections.get_mut(at), absent.get_mut(at))
            {
                times.extend(outcome.handovers());
                *sections += outcome.sections();
                *absent = outcome.absent;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    round_trips.sort_unstable();
    let round_trip = percentile(&round_trips, 0.5);
    report.row(comparison(&round_trips));
    let mut panel = Panel::logarithmic_cost("hand-over between two processes, median, in round trips");
    for (((contender, mut times), sections), absent) in contenders.into_iter().zip(times).zip(sections).zip(absent) {
        if let Some(why) = absent.filter(|_| sections == 0) {
            report.absent(Vec::new(), contender, &why);
            continue;
        }
        times.sort_unstable();
        let median = ratio(percentile(&times, 0.5), round_trip);
        if median > 0.0 {
            panel.contender(contender, median);
        }
        report.row(vec![
            contender.to_string(),
            rate(ratio(times.len(), window.mul_f64(rounds.float()))),
            time(percentile(&times, 0.5)),
            time(percentile(&times, 0.99)),
            format!("{median:.2}"),
            format!("{:.2}", ratio(times.len(), sections)),
        ]);
        if contender == Contender::OURS {
            report.verdicts.push(Verdict::at_most(
                2,
                "hand-over between two processes, 0 hold: median in round trips",
                3.0,
                if times.is_empty() { f64::INFINITY } else { median },
                "",
            ));
        }
        if let Some(note) = contender.note() {
            report.note(note);
        }
    }
    report.panels.push(panel);
    Ok(report)
}

/// The row of one round trip.
fn comparison(round_trips: &[Duration]) -> Vec<String> {
    vec![
        "for comparison: one round trip (PING)".to_owned(),
        "–".to_owned(),
        time(percentile(round_trips, 0.5)),
        time(percentile(round_trips, 0.99)),
        "1.00".to_owned(),
        "–".to_owned(),
    ]
}

/// Round trips of one task by itself, in the kind of runtime that the contenders have.
async fn pings(window: Duration) -> Result<Vec<Duration>> {
    let server = Server::start();
    // On one core, a PING takes an eighth of the time: no idle core is woken, while one of two processes and a server has to be.
    let _apart = Apart::from(&[server.pid()])?;
    let mut connection = server.connection().await;
    tokio::spawn(async move {
        let end = Instant::now() + window;
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            redis::cmd("PING").query_async::<()>(&mut connection).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    })
    .await?
}
