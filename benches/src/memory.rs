//! The memory of a held lock in the server.

use lock_runtime::{LockGuard, LockManager, LockRequest};
use lock_tests::server::Server;

use crate::plot::Panel;
use crate::report::{Number, Report, progress, ratio};
use crate::{Result, Size, error};

const KEY: &str = "bench:memory:7";

/// How a lock is asked for.
type Ask = fn(&LockManager) -> LockRequest;

pub(crate) async fn run(size: Size) -> Result<Report> {
    let holders = match size {
        Size::Full => 100,
        Size::Smoke => 4,
    };
    let modes: [(&str, Ask, bool); 6] = [
        ("exclusive", |locks| locks.lock(KEY), false),
        (
            "several keys, each",
            |locks| locks.lock_all([KEY, "bench:memory:8"]),
            false,
        ),
        ("write", |locks| locks.lock(KEY).write(), false),
        ("read", |locks| locks.lock(KEY).read(), true),
        ("semaphore", |locks| locks.lock(KEY).semaphore(1_000), true),
        ("owner", |locks| locks.lock(KEY).owner("workflow:7"), true),
    ];
    let mut report = Report::new(
        "memory",
        "`MEMORY USAGE` of the key of a held lock, in bytes: with one holder, with two, and with many; and of its queue with one waiter. \
         The stored value names host, process and function.",
        &["mode", "one holder", "two", "each of many", "queue, one waiter"],
    );
    let mut panel = Panel::cost("bytes in the server of a lock with one holder");
    let bar = progress("memory", modes.len());
    for (mode, ask, many) in modes {
        bar.set_message(format!("memory: {mode}"));
        let server = Server::start();
        let locks = LockManager::connect(&server.url()).await?;
        let key = format!("{}{KEY}", locks.prefix());
        let mut guards: Vec<LockGuard> = vec![ask(&locks).acquire().await?];
        let one = usage(&server, &key)?;
        let waiter = if mode.starts_with("several") {
            // It waits as an exclusive one does, for one of its keys.
            "–".to_owned()
        } else {
            waiter(&server, ask, many).await?.to_string()
        };
        let (mut two, mut each) = ("–".to_owned(), "–".to_owned());
        if many {
            guards.push(ask(&locks).acquire().await?);
            two = usage(&server, &key)?.to_string();
            while guards.len() < holders {
                guards.push(ask(&locks).acquire().await?);
            }
            each = format!("{:.0}", ratio(usage(&server, &key)?, holders));
        }
        panel.bar(mode, one.float());
        report.row(vec![mode.to_owned(), one.to_string(), two, each, waiter]);
        drop(guards);
        locks.shutdown().await;
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.panels.push(panel);
    Ok(report)
}

/// The queue's bytes while one waits in it. A lock that many may hold makes a writer wait.
async fn waiter(server: &Server, ask: Ask, many: bool) -> Result<u64> {
    // Of another process, as far as the server can tell: calls of one process for one exclusive lock stand in line there.
    let other = LockManager::connect(&server.url()).await?;
    let request = if many { other.lock(KEY).write() } else { ask(&other) };
    let waiting = tokio::spawn(request.acquire());
    let queue = loop {
        let queue = server
            .keys()
            .into_iter()
            .find(|key| key.contains("%lock-") && key.contains(KEY));
        if let Some(queue) = queue {
            break queue;
        }
        if waiting.is_finished() {
            return Err(error("a call that was to wait did not"));
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    };
    let bytes = usage(server, &queue)?;
    waiting.abort();
    drop(waiting.await);
    other.shutdown().await;
    Ok(bytes)
}

fn usage(server: &Server, key: &str) -> Result<u64> {
    let bytes: Option<u64> = server.ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
    bytes.ok_or_else(|| error(format!("{key} is not there")))
}
