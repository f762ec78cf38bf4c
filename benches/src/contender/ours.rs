//! This library, as its users meet it and with its switches.

use std::fmt;
use std::time::Duration;

use lock_runtime::{HandoverLimits, LockManager};

use super::{Inside, LEASE, WAIT, inside};
use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    Default,
    /// Every grant comes from the store.
    HandoverOff,
    Fair,
    Pipelined,
    /// A lock that calls wait for is never left free for clients that poll.
    NeverLeftFree,
    /// With a fencing token for each grant.
    Fencing,
    Read,
    /// A semaphore of one permit.
    Semaphore,
}

impl Variant {
    /// Those that exclude nobody, or do more than a lock has to: measured without contention only.
    pub(crate) const OF_OTHER_KINDS: [Self; 3] = [Self::Fencing, Self::Read, Self::Semaphore];
    pub(crate) const ALL: [Self; 5] = [
        Self::Default,
        Self::NeverLeftFree,
        Self::HandoverOff,
        Self::Fair,
        Self::Pipelined,
    ];
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "ours",
            Self::HandoverOff => "ours, hand-over off",
            Self::Fair => "ours, fair",
            Self::Pipelined => "ours, pipelined",
            Self::NeverLeftFree => "ours, never left free",
            Self::Fencing => "ours, fencing",
            Self::Read => "ours, read",
            Self::Semaphore => "ours, semaphore",
        })
    }
}

#[derive(Clone)]
pub(super) struct Client {
    locks: LockManager,
    variant: Variant,
}

pub(super) async fn connect(urls: &[String], variant: Variant) -> Result<Client> {
    let url = match urls {
        [one] => one.clone(),
        several => {
            let masters: Vec<_> = several.iter().map(|url| url.trim_start_matches("redis://")).collect();
            format!("redlock://{}", masters.join(","))
        }
    };
    let builder = LockManager::builder(&url)
        .default_lease(LEASE)
        .default_wait(WAIT)
        // A tool that counts instructions slows the process down by far.
        .response_timeout(Duration::from_secs(20));
    let builder = match variant {
        Variant::HandoverOff => builder.handover(HandoverLimits::OFF),
        Variant::NeverLeftFree => builder.leave_free(Duration::ZERO, Duration::ZERO),
        _ => builder,
    };
    let locks = builder.build()?;
    locks.check_connection().await?;
    if urls.len() > 1 {
        // The masters are new and have forgotten nothing.
        locks.open_quorum().await?;
    }
    Ok(Client { locks, variant })
}

impl Client {
    pub(super) fn passed(&self) -> u64 {
        self.locks.stats().passed
    }

    pub(super) async fn section(&self, name: &str, hold: Duration) -> Result<Inside> {
        let request = self.locks.lock(name);
        let request = match self.variant {
            Variant::Fair => request.fair(true),
            Variant::Pipelined => request.pipelined(true),
            Variant::Fencing => request.fencing(true),
            Variant::Read => request.read(),
            Variant::Semaphore => request.semaphore(1),
            Variant::Default | Variant::HandoverOff | Variant::NeverLeftFree => request,
        };
        let guard = request.acquire().await?;
        let inside = inside(hold).await;
        guard.release().await?;
        Ok(inside)
    }
}
