//! The time until connections that have fallen silent are replaced: nothing closes them, and nothing that is sent on them arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::clock::Stamp;
use lock_tests::proxy::{Action, Command, Proxy};
use lock_tests::server::Server;
use tokio::time::{sleep, timeout};

use crate::plot::Panel;
use crate::report::{Report, Verdict, progress, time};
use crate::sample::percentile;
use crate::{Result, Size, error};

/// The library's default.
const RESPONSE: Duration = Duration::from_secs(1);
/// Longer than any replacement.
const WAIT: Duration = Duration::from_secs(60);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(60);

/// What the process does when its connections fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// No lock is held, and none is wanted.
    Idle,
    /// A lock is held, whose renewal is due much later.
    Holds,
    /// A call asks for a lock at that moment.
    Asks,
}

pub(crate) async fn run(size: Size, rounds: Option<usize>) -> Result<Report> {
    let rounds = rounds.unwrap_or(match size {
        Size::Full => 50,
        Size::Smoke => 1,
    });
    let mut report = Report::new(
        "silent",
        "All connections of a process lose what is sent on them from a drawn moment on, and none is closed; new ones work. Times end \
         with the first answer on the last of the connections that replace them, or with the lock of a call that asks at that moment. \
         The response time-out is the default of a second.",
        &["process", "rounds", "connections", "p50", "p99", "longest"],
    );
    let mut panel = Panel::cost("until silent connections are replaced, longest, milliseconds");
    let server = Server::start();
    for (activity, name) in [
        (Activity::Idle, "neither holds nor wants a lock"),
        (Activity::Holds, "holds a lock"),
        (Activity::Asks, "asks for a lock at that moment"),
    ] {
        let bar = progress(format!("silent: {name}"), rounds);
        let (mut times, mut connections) = (Vec::with_capacity(rounds), 0);
        for number in 0..rounds {
            let (took, silent) = round(&server, activity, number).await?;
            times.push(took);
            connections += silent;
            bar.inc(1);
        }
        bar.finish_and_clear();
        times.sort_unstable();
        let at = |share| time(percentile(&times, share));
        report.row(vec![
            name.to_owned(),
            rounds.to_string(),
            connections.to_string(),
            at(0.50),
            at(0.99),
            at(1.0),
        ]);
        let longest = percentile(&times, 1.0).as_secs_f64() * 1e3;
        panel.bar(name, longest);
        let limit = RESPONSE.as_secs_f64() * 2e3;
        report.verdicts.push(Verdict::at_most(
            4,
            format!("a process that {name}: until its silent connections are replaced, longest"),
            limit,
            longest,
            "ms",
        ));
    }
    report.panels.push(panel);
    Ok(report)
}

/// Returns the time, and the number of connections that fell silent.
async fn round(server: &Server, activity: Activity, number: usize) -> Result<(Duration, usize)> {
    let proxy = Proxy::to(server);
    let locks = LockManager::builder(&proxy.url())
        .response_timeout(RESPONSE)
        .default_lease(LEASE)
        .default_wait(WAIT)
        .build()?;
    locks.check_connection().await?;
    let key = |what| format!("bench:silent:{what}:{activity:?}:{number}");
    locks.lock(key("first")).acquire().await?.release().await?;
    let held = match activity {
        Activity::Holds => Some(locks.lock(key("held")).acquire().await?),
        Activity::Idle | Activity::Asks => None,
    };
    // Any moment between two questions of an idle connection.
    sleep(RESPONSE.mul_f64(fastrand::f64())).await;
    let (last, silent) = (proxy.accepted(), proxy.connections());
    let on_an_old_one = move |command: &Command| command.connection <= last;
    let _lost = proxy.on_each(on_an_old_one, Action::LoseRequest);
    let began = Stamp::now();
    let took = if activity == Activity::Asks {
        let guard = locks.lock(key("asked")).acquire().await?;
        let took = Stamp::now().since(began);
        guard.release().await?;
        took
    } else {
        let all_answer = async {
            loop {
                if let Some(last) = answered(&proxy, last, silent) {
                    return last.since(began);
                }
                sleep(PAUSE).await;
            }
        };
        timeout(WAIT, all_answer)
            .await
            .map_err(|_| error(format!("waited {WAIT:?} in vain for new connections")))?
    };
    if let Some(held) = held {
        held.release().await?;
    }
    locks.shutdown().await;
    Ok((took, silent))
}

/// Returns the moment of the first answer on the last of so many connections after the one with the number `last`.
fn answered(proxy: &Proxy, last: u64, wanted: usize) -> Option<Stamp> {
    let mut first = BTreeMap::new();
    for command in proxy.commands() {
        if let Some((at, _)) = command.reply.filter(|_| command.connection > last) {
            first.entry(command.connection).or_insert(at);
        }
    }
    let mut moments: Vec<Stamp> = first.into_values().collect();
    moments.sort_unstable();
    moments.get(wanted.checked_sub(1)?).copied()
}
