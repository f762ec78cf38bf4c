//! What a quorum of five masters costs: one lock that 32 tasks in 4 processes want, with all masters and with two of them down, and locks that
//! nobody else wants.

use std::time::Duration;

use crate::contender::Contender;
use crate::contest::{Contest, Outcome};
use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, rate, ratio, time};
use crate::sample::{median, percentile};
use crate::uncontended::{Flavor, against, measure};
use crate::{Result, Size};

const MASTERS: usize = 5;
const PROCESSES: usize = 4;
const TASKS: usize = 8;
const HOLD: Duration = Duration::from_millis(5);
/// Short enough that the lock is always wanted: until its turn comes again, a task waits for 31 others.
const REST: Duration = Duration::from_millis(50);
/// How many masters are down, and the time between two sections of a task. With two down, what is left is just a majority.
const CROWDS: [(usize, Duration); 3] = [(0, Duration::ZERO), (2, Duration::ZERO), (2, REST)];
/// How many tasks in which of tokio's runtimes, each with a lock of its own.
const GROUPS: [(usize, Flavor); 4] = [
    (1, Flavor::MultiThread),
    (64, Flavor::MultiThread),
    (1, Flavor::CurrentThread),
    (64, Flavor::CurrentThread),
];

pub(crate) async fn run(size: Size) -> Result<Report> {
    let mut report = Report::new(
        "quorum",
        "Five masters. First, one lock, 4 processes with 8 tasks each; the holder sleeps for 5 ms. The ideal is the rate of a local mutex with the \
         same sleep and 32 tasks, and times are those from the call to the grant. \"2 masters down\": the first two are killed a second before \
         the figures are taken, while all tasks run. Where clients poll, a task that releases the lock and asks at once finds it free, and \
         the others get it rarely: their rate is high and their waits are long. Tasks that rest for 50 ms after each section show the rate of a \
         lock that goes from one to another. Then, tasks of one process, each with a lock of its own; medians of short alternating rounds. \
         Their ideal is the rate of raw commands to all masters at once, and times are those of a whole section. With one task, the servers are pinned \
         to one core and the process to the others. Commands are the servers' own count, all masters together, including those inside scripts; \
         calls are those that clients sent (their share is sampled with MONITOR afterwards). \"Given back\" are votes per section that a call got \
         and gave back because it had no majority: what the masters behind the first release beyond one vote each for a section. At the \
         first, a lock is also handed over without a release.",
        &[
            "who asks",
            "contender",
            "sections/s",
            "of ideal",
            "p50",
            "p99",
            "longest",
            "Jain",
            "commands",
            "calls",
            "given back",
            "overlaps",
        ],
    );
    contended(&mut report, size).await?;
    uncontended(&mut report, size).await?;
    for contender in Contender::on_a_quorum(size).into_iter().chain([Contender::RAW_TO_ALL]) {
        if let Some(note) = contender.note() {
            report.note(note);
        }
    }
    Ok(report)
}

async fn contended(report: &mut Report, size: Size) -> Result {
    let window = match size {
        Size::Full => Duration::from_secs(6),
        Size::Smoke => Duration::from_millis(100),
    };
    let contenders = Contender::on_a_quorum(size);
    let bar = progress("quorum", 1 + CROWDS.len() * contenders.len());
    let contest = Contest {
        contender: Contender::Local,
        processes: 1,
        tasks: PROCESSES * TASKS,
        locks: 1,
        servers: 1,
        killed: 0,
        rest: Duration::ZERO,
        hold: HOLD,
        warm: Duration::from_secs(1).min(window),
        window,
        watched: Duration::from_millis(500).min(window),
    };
    let ideal = contest.run().await?;
    bar.inc(1);
    row(report, "32 tasks", Contender::Local, &ideal, ideal.rate());
    for (killed, rest) in CROWDS {
        let tasks = if rest.is_zero() {
            "32 tasks"
        } else {
            "32 tasks that rest"
        };
        let who = match killed {
            0 => tasks.to_owned(),
            _ => format!("{tasks}, {killed} masters down"),
        };
        let mut panel = Panel::linear(format!("share of the ideal rate, {who}"));
        let mut rates = Vec::new();
        for contender in contenders.iter().copied() {
            bar.set_message(format!("{who}: {contender}"));
            let outcome = Contest {
                contender,
                processes: PROCESSES,
                tasks: TASKS,
                servers: MASTERS,
                killed,
                rest,
                ..contest
            }
            .run()
            .await?;
            bar.inc(1);
            if let Some(why) = &outcome.absent {
                report.absent(vec![who.clone()], contender, why);
                continue;
            }
            row(report, &who, contender, &outcome, ideal.rate());
            panel.contender(contender, ratio(outcome.rate(), ideal.rate()));
            rates.push((contender, outcome.rate()));
            if contender == Contender::OURS {
                judge(report, &who, &outcome, ideal.rate());
            } else if outcome.errors > 0 {
                report.note(format!(
                    "{contender}: {} sections of {who} ended in an error",
                    outcome.errors
                ));
            }
        }
        if killed > 0
            && let Some(((_, ours), others)) = rates.split_first()
        {
            for (other, theirs) in others {
                let what = format!("quorum, {who}: rate / {other}");
                report
                    .verdicts
                    .push(Verdict::at_least(5, what, 5.0, ratio(*ours, *theirs)));
            }
        }
        report.panels.push(panel);
    }
    bar.finish_and_clear();
    Ok(())
}

fn row(report: &mut Report, who: &str, contender: Contender, outcome: &Outcome, ideal: f64) {
    let waits = outcome.waits();
    let on_servers = |figure: f64| match contender {
        Contender::Local => "–".to_owned(),
        _ => format!("{figure:.2}"),
    };
    report.row(vec![
        who.to_owned(),
        contender.to_string(),
        rate(outcome.rate()),
        format!("{:.3}", ratio(outcome.rate(), ideal)),
        time(percentile(&waits, 0.50)),
        time(percentile(&waits, 0.99)),
        time(outcome.longest_wait()),
        format!("{:.3}", outcome.jain()),
        on_servers(outcome.commands_per_section()),
        on_servers(outcome.calls_per_section()),
        on_servers(outcome.votes_given_back()),
        outcome.overlaps().to_string(),
    ]);
}

fn judge(report: &mut Report, who: &str, outcome: &Outcome, ideal: f64) {
    let line = |what: &str| format!("quorum, {who}: ours: {what}");
    let longest = HOLD.as_secs_f64() * 1e3 * ratio(3 * PROCESSES * TASKS, 1);
    let waited = outcome.longest_wait().as_secs_f64() * 1e3;
    let (overlaps, errors) = (outcome.overlaps(), outcome.errors);
    report.verdicts.extend([
        Verdict::at_least(5, line("rate / ideal"), 0.9, ratio(outcome.rate(), ideal)),
        Verdict::at_most(5, line("longest wait"), longest, waited, "ms"),
        Verdict::holds(
            5,
            line("no overlap, no error"),
            format!("{overlaps} overlaps, {errors} errors"),
            overlaps == 0 && errors == 0,
        ),
    ]);
}

async fn uncontended(report: &mut Report, size: Size) -> Result {
    let contenders = [Contender::OURS, Contender::RAW_TO_ALL];
    let measured = move || measure("quorum, uncontended", &contenders, &GROUPS, MASTERS, size);
    // A runtime of its own for every group; this one is not to be blocked.
    let (rows, _) = tokio::task::spawn_blocking(measured).await??;
    for (group, (tasks, flavor)) in GROUPS.into_iter().enumerate() {
        let who = match tasks {
            1 => format!("1 task, {}", flavor.name()),
            _ => format!("{tasks} tasks, {}", flavor.name()),
        };
        let mut panel = Panel::linear(format!("sections per second, {who}"));
        for contender in contenders {
            let Some(row) = rows.get(&(group, contender)) else {
                continue;
            };
            let none = || "–".to_owned();
            if row.errors > 0 {
                report.note(format!(
                    "{contender}: {} sections of {who} ended in an error",
                    row.errors
                ));
            }
            panel.contender(contender, median(&row.rates));
            report.row(vec![
                who.clone(),
                contender.to_string(),
                rate(median(&row.rates)),
                format!("{:.3}", against(&rows, group, contender, Contender::RAW_TO_ALL)),
                time(percentile(&row.cycles, 0.50)),
                time(percentile(&row.cycles, 0.99)),
                time(row.cycles.last().copied().unwrap_or_default()),
                none(),
                format!("{:.2}", ratio(row.commands, row.cycles.len())),
                none(),
                none(),
                none(),
            ]);
        }
        report.panels.push(panel);
        let what = format!("quorum, {who}: rate / raw commands to all");
        let beside = against(&rows, group, Contender::OURS, Contender::RAW_TO_ALL);
        report.verdicts.push(Verdict::at_least(5, what, 0.9, beside));
    }
    Ok(())
}
