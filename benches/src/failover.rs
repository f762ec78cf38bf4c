//! What a failover behind sentinels costs: how soon calls have their locks at the new master, how soon a body ends whose lock that one does not
//! know, how long two holders overlap meanwhile, and whether fencing tokens keep the former one out.

use lock_runtime::LockManager;
use lock_tests::sentinel::SentinelGroup;

use crate::report::{Report, progress};
use crate::takeover::{Calls, Seen, connected, panel, report, summarize, until};
use crate::{Result, Size};

/// Where the library counts its fencing tokens.
const COUNTER: &str = "%lock-fence";

/// How another server becomes the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// SIGKILL of the master.
    Killed,
    /// `SENTINEL FAILOVER`: the former master goes on.
    Asked,
}

pub(crate) async fn run(size: Size, rounds: Option<usize>) -> Result<Report> {
    let rounds = rounds.unwrap_or(match size {
        Size::Full => 50,
        Size::Smoke => 1,
    });
    let mut report = report(
        "failover",
        "A master, two replicas and three sentinels. Every round has a lock that all servers know, and one that the new master does not \
         know: after SIGKILL because it was granted while no replica listened, after `SENTINEL FAILOVER` because it was deleted at the \
         replicas, with the count of fencing tokens.",
    );
    let mut panel = panel();
    let group = SentinelGroup::start().await;
    let (holder, other) = (connected(&group.url()).await?, connected(&group.url()).await?);
    for (cause, name) in [
        (Cause::Killed, "SIGKILL of the master"),
        (Cause::Asked, "`SENTINEL FAILOVER`"),
    ] {
        let bar = progress(format!("failover: {name}"), rounds);
        let mut seen = Vec::with_capacity(rounds);
        for number in 0..rounds {
            let round = Round {
                group: &group,
                holder: &holder,
                other: &other,
                cause,
                number,
            };
            seen.push(round.play().await?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        summarize(&mut report, &mut panel, 3, name, &seen);
    }
    report.panels.push(panel);
    Ok(report)
}

struct Round<'a> {
    group: &'a SentinelGroup,
    holder: &'a LockManager,
    other: &'a LockManager,
    cause: Cause,
    number: usize,
}

impl Round<'_> {
    async fn play(&self) -> Result<Seen> {
        let Self {
            group, holder, other, ..
        } = *self;
        let former = group.master().await;
        let replicas: Vec<u16> = group.node_ports().into_iter().filter(|port| *port != former).collect();
        let key = |what| format!("bench:failover:{what}:{:?}:{}", self.cause, self.number);
        let stored = |key: &str| format!("{}{key}", holder.prefix());
        let (kept, gone, free) = (key("kept"), key("gone"), key("free"));

        // A lock that all servers know, and its body.
        let mut calls = Calls::keeping(kept.clone(), holder, other);
        for port in group.node_ports() {
            until("a lock on every server", || group.server(port).exists(&stored(&kept))).await?;
        }
        // One that only the master knows, and a call that waits for it.
        if self.cause == Cause::Killed {
            for replica in &replicas {
                group.pause(*replica);
            }
            group.server(former).cmd(&["CLIENT", "KILL", "TYPE", "replica"]);
        }
        calls.hold(&gone).await?;
        let queue = format!("{}%lock-queue:{{{}}}", holder.prefix(), stored(&gone));
        until("a call in the queue", || group.server(former).exists(&queue)).await?;

        if self.cause == Cause::Killed {
            group.server(former).kill();
            for replica in &replicas {
                group.resume(*replica);
            }
            calls.ask(free);
        } else {
            let counter = stored(COUNTER);
            for replica in replicas.iter().map(|port| group.server(*port)) {
                until("the lost lock on a replica", || replica.exists(&stored(&gone))).await?;
                replica.cmd(&["CONFIG", "SET", "replica-read-only", "no"]);
                replica.cmd(&["DEL", &stored(&gone), &counter]);
                replica.cmd(&["CONFIG", "SET", "replica-read-only", "yes"]);
            }
            group.failover().await;
        }

        let (present, writable) = group.wait_for_master_other_than(former).await;
        let named = group.wait_until_named(present).await;
        let is_known = || group.server(present).exists(&stored(&kept));
        let seen = calls.end(writable, Some(named), is_known).await?;
        if self.cause == Cause::Killed {
            group.restart(former).await;
        } else {
            group.demote(former, present);
        }
        group.settled().await;
        Ok(seen)
    }
}
