//! The time from the loss of a lock to the end of its body.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::server::Server;
use tokio::sync::oneshot;

use crate::plot::Panel;
use crate::report::{Report, progress};
use crate::sample::percentile;
use crate::{Result, Size};

const KEY: &str = "bench:loss";
/// Long enough that no renewal can be what notices.
const LEASE: Duration = Duration::from_secs(30);
/// Short for the causes that only the local deadline notices.
const SHORT_LEASE: Duration = Duration::from_millis(500);
/// The watchdog has the server report changes of a key once its lock has been held for 20 ms.
const SETTLED: Duration = Duration::from_millis(40);

pub(crate) async fn run(size: Size, rounds: Option<usize>) -> Result<Report> {
    let rounds = rounds.unwrap_or(match size {
        Size::Full => 200,
        Size::Smoke => 2,
    });
    let mut report = Report::new(
        "loss",
        "Time from the loss of a lock to the end of its body. The command that takes the lock away, on a connection of its own, is part of it.",
        &["cause", "rounds", "p50", "p99", "max"],
    );
    let mut panel = Panel::logarithmic_cost("from the loss to the end of the body, median, microseconds");
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).await?;
    let mut times = round_trips(&server, rounds).await?;
    row(&mut report, &mut panel, "for comparison: one round trip", &mut times);
    let name = format!("{}{KEY}", locks.prefix());
    let causes: [(&str, Vec<&str>); 3] = [
        ("DEL of the key", vec!["DEL", &name]),
        ("another value in the key", vec!["SET", &name, "somebody else"]),
        ("FLUSHALL", vec!["FLUSHALL"]),
    ];
    for (cause, command) in causes {
        let bar = progress(cause, rounds);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let (began, ended, error) = lose(&locks, LEASE, || {
                let began = Instant::now();
                server.cmd(&command);
                began
            })
            .await?;
            times.push(ended.saturating_duration_since(began));
            expect_lost(&error)?;
            server.cmd(&["DEL", &name]);
            bar.inc(1);
        }
        bar.finish_and_clear();
        row(&mut report, &mut panel, cause, &mut times);
    }

    // A server that is gone says nothing: the local deadline is what ends the body.
    let rounds = rounds.div_ceil(10);
    let causes: [(&str, Act, Act); 2] = [
        (
            "server stopped (SIGSTOP), after the deadline",
            Server::pause,
            Server::resume,
        ),
        (
            "server killed (SIGKILL), after the deadline",
            Server::kill,
            Server::start_again,
        ),
    ];
    for (cause, gone, back) in causes {
        let bar = progress(cause, rounds);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let deadline = Mutex::new(Instant::now());
            let (_, ended, error) = lose(&locks, SHORT_LEASE, || {
                gone(&server);
                let left = lock_runtime::current().map(|lock| lock.remaining()).unwrap_or_default();
                *deadline.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + left;
                Instant::now()
            })
            .await?;
            let deadline = deadline.into_inner().unwrap_or_else(PoisonError::into_inner);
            times.push(ended.saturating_duration_since(deadline));
            expect_lost(&error)?;
            back(&server);
            locks.check_connection().await?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        row(&mut report, &mut panel, cause, &mut times);
    }
    report.panels.push(panel);
    Ok(report)
}

/// Something that is done to a server.
type Act = fn(&Server);

/// Stamps the moment at which it is dropped: the end of the body that owns it.
struct Ends(Arc<Mutex<Option<Instant>>>);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// Runs a body that never ends by itself under the lock, has `cause` take the lock away, and returns when that began and when the body ended.
async fn lose(
    locks: &LockManager,
    lease: Duration,
    cause: impl FnOnce() -> Instant,
) -> Result<(Instant, Instant, LockError)> {
    let ended = Arc::new(Mutex::new(None));
    let ends = Ends(Arc::clone(&ended));
    let (tell, told) = oneshot::channel();
    let body = async move {
        let _ends = ends;
        tokio::time::sleep(SETTLED).await;
        let _ = tell.send(cause());
        std::future::pending::<()>().await;
    };
    let outcome = locks.lock(KEY).lease(lease).run(body).await;
    let error = outcome.err().ok_or("the body went on")?;
    let ended = ended
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .ok_or("the body was not dropped")?;
    Ok((told.await?, ended, error))
}

fn expect_lost(error: &LockError) -> Result {
    if error.is_lost() {
        Ok(())
    } else {
        Err(error.to_string().into())
    }
}

/// The limit: one command and its answer on a connection of its own.
async fn round_trips(server: &Server, rounds: usize) -> Result<Vec<Duration>> {
    let mut connection = server.connection().await;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = Instant::now();
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn row(report: &mut Report, panel: &mut Panel, cause: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share| format!("{:.2?}", percentile(times, share));
    panel.bar(cause, percentile(times, 0.50).as_secs_f64() * 1e6);
    report.row(vec![
        cause.to_owned(),
        times.len().to_string(),
        at(0.50),
        at(0.99),
        at(1.0),
    ]);
}
