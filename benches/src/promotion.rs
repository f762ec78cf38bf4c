//! What the death of a master of a cluster costs: how soon calls have their locks at the replica that takes over, how soon a body ends whose lock
//! that one does not know, and how long two holders overlap meanwhile.

use lock_runtime::LockManager;
use lock_tests::ClusterGroup;

use crate::report::{Report, progress};
use crate::takeover::{Calls, Seen, connected, panel, report, summarize, until};
use crate::{Result, Size, error};

/// What is in the braces of all keys, so that one node has them all.
const TAG: &str = "promotion";

pub(crate) async fn run(size: Size, rounds: Option<usize>) -> Result<Report> {
    let rounds = rounds.unwrap_or(match size {
        Size::Full => 25,
        Size::Smoke => 1,
    });
    let mut report = report(
        "promotion",
        "Three masters and a replica of each. Every round has a lock that the replica knows, and one that it does not, since it was granted while the \
         replica did not listen; then the master is killed.",
    );
    let mut panel = panel();
    let cluster = ClusterGroup::start().await;
    let (holder, other) = (connected(&cluster.url()).await?, connected(&cluster.url()).await?);
    let bar = progress("promotion", rounds);
    let mut seen = Vec::with_capacity(rounds);
    for number in 0..rounds {
        seen.push(round(&cluster, &holder, &other, number).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    summarize(&mut report, &mut panel, 2, "SIGKILL of a master", &seen);
    report.panels.push(panel);
    Ok(report)
}

async fn round(cluster: &ClusterGroup, holder: &LockManager, other: &LockManager, number: usize) -> Result<Seen> {
    let key = |what| format!("bench:{{{TAG}}}:{what}:{number}");
    let stored = |key: &str| format!("{}{key}", holder.prefix());
    let (kept, gone, free) = (key("kept"), key("gone"), key("free"));
    let slot = cluster.slot_of(&format!("{{{TAG}}}"));
    let former = cluster.owner(slot).await;
    let replica = cluster.replica_of(former).ok_or_else(|| error("no replica"))?;

    // A lock that the replica knows, and its body.
    let mut calls = Calls::keeping(kept.clone(), holder, other);
    until("a lock on the master", || cluster.server(former).exists(&stored(&kept))).await?;
    let offset = |port: u16, field: &str| cluster.server(port).info(field).parse::<u64>().unwrap_or_default();
    let written = offset(former, "master_repl_offset");
    until("the lock on the replica", || {
        offset(replica, "slave_repl_offset") >= written
    })
    .await?;
    // One that only the master knows, and a call that waits for it.
    cluster.server(replica).pause();
    cluster.server(former).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
    calls.hold(&gone).await?;
    let queue = format!("{}%lock-queue@{gone}", holder.prefix());
    until("a call in the queue", || cluster.server(former).exists(&queue)).await?;

    cluster.server(former).kill();
    cluster.server(replica).resume();
    calls.ask(free);

    let writable = cluster.wait_for_write(replica, TAG).await;
    let is_known = || cluster.server(replica).exists(&stored(&kept));
    let seen = calls.end(writable, None, is_known).await?;
    cluster.restart(former).await;
    Ok(seen)
}
