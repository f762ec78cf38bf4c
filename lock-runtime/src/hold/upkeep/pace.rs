//! Chooses the watchdog for a lock, and shuts a manager down.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::EndCause;
use crate::hold::backend::Backend;
use crate::hold::tenure::Tenure;
use crate::hold::upkeep::watchdog::Watchdog;
use crate::host::{Clock, Host, Mutex, RuntimeId, Timer, TokioClock, contained};
use crate::store::{LossHint, LossReceiver};

/// The time for which a shutdown waits for the clean-up of acquires that the store did not answer.
const UNANSWERED: Duration = Duration::from_millis(900);

/// The interval at which a shutdown that has ended the locks looks whether it still has to wait.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The clock by which a manager's watchdog and waits run.
#[derive(Debug)]
pub(crate) enum Pace {
    /// They run on the lock thread.
    LockThread(Arc<Watchdog>),
    /// They run on the lock thread, or in the caller's runtime while that runtime's clock is
    /// paused.
    Virtual {
        running: Arc<Watchdog>,
        paused: Mutex<Vec<(RuntimeId, Arc<Watchdog>)>>,
    },
}

impl Pace {
    /// Returns the pace of a manager with this clock, if it was given one, and with a store in
    /// memory or a real one.
    pub(crate) fn of(host: &Host, clock: Option<&Arc<dyn Clock>>, in_memory: bool) -> Arc<Self> {
        Arc::new(match clock {
            Some(clock) => Self::LockThread(Watchdog::new(Arc::clone(clock), Timer::LockThread)),
            None if in_memory => Self::Virtual {
                running: Watchdog::for_tokio(host),
                paused: Mutex::default(),
            },
            None => Self::LockThread(Watchdog::of(host)),
        })
    }

    /// Returns the watchdog for a lock taken now, and the timer for waits.
    pub(crate) fn now(&self, host: &Host) -> (Arc<Watchdog>, Timer) {
        let (Self::LockThread(running) | Self::Virtual { running, .. }) = self;
        if let Self::Virtual { paused, .. } = self
            && Timer::of_tokio() == Timer::Caller
            && let Some(runtime) = host.runtime()
        {
            // Each runtime has a paused clock of its own, and therefore a watchdog of its own.
            let runtime = runtime.id();
            let mut paused = paused.lock();
            let known = paused.iter().position(|(id, _)| *id == runtime);
            let at = known.unwrap_or_else(|| {
                paused.retain(|(_, watchdog)| !watchdog.is_idle());
                paused.push((runtime, Watchdog::new(Arc::new(TokioClock), Timer::Caller)));
                paused.len() - 1
            });
            return (Arc::clone(&paused[at].1), Timer::Caller);
        }
        (Arc::clone(running), Timer::LockThread)
    }

    /// Lets the store of `backend` report losses to the watchdogs, if it can.
    pub(crate) fn receive_hints(self: &Arc<Self>, backend: Backend) -> Arc<Backend> {
        Arc::new_cyclic(|shared| backend.reporting_to(self.hint_receiver(shared)))
    }

    /// Returns a receiver for a store's hints that does not keep the store alive. It serves held
    /// locks, even after the manager is gone.
    fn hint_receiver(self: &Arc<Self>, backend: &Weak<Backend>) -> LossReceiver {
        let (pace, backend) = (Arc::clone(self), Weak::clone(backend));
        Arc::new(move |hint| {
            let Some(backend) = backend.upgrade() else { return };
            match &hint {
                // In a forked child, the schedule may have been locked by a thread that does not exist here.
                LossHint::Down { .. } | LossHint::Up { .. } if backend.host().is_forked() => return,
                LossHint::Down { lane, address, error } => {
                    let watchdogs = pace.watchdogs();
                    let held = watchdogs.iter().map(|watchdog| watchdog.count_held(&backend, *lane));
                    let locks: usize = held.sum();
                    tracing::warn!(%address, %error, locks, "connections to the store fail");
                }
                LossHint::Up { address, lasted, .. } => {
                    tracing::info!(%address, ?lasted, "connections to the store work again");
                }
                _ => {}
            }
            for watchdog in pace.watchdogs() {
                watchdog.hint(&backend, &hint);
            }
            if matches!(hint, LossHint::Back(_)) {
                contained(|| backend.access.back.notify_waiters());
            }
        })
    }

    /// Shuts a manager down: lets its bodies run for `grace`, then ends its locks, and waits until
    /// all are released or their leases are over.
    pub(crate) async fn shut_down(&self, manager: &Backend, grace: Duration) {
        manager.closed.close();
        // In a forked child, nothing ends that its parent has begun.
        if manager.host().is_forked() {
            return;
        }
        manager.held.close();
        let (_, timer) = self.now(manager.host());
        self.end_held(manager, timer, grace).await;
        // The acquires that were under way have ended by now. The clean-up of those without an
        // answer may still be running.
        manager.unanswered.close();
        manager
            .host()
            .timeout(timer, UNANSWERED, manager.unanswered.wait())
            .await;
    }

    async fn end_held(&self, manager: &Backend, timer: Timer, grace: Duration) {
        let released = async |limit| {
            manager
                .host()
                .timeout(timer, limit, manager.held.wait())
                .await
                .is_some()
        };
        // Calls that ask for locks count as well. One that is not polled, as beside another branch of a `select!` whose
        // turn came, does not end before it is dropped.
        let are_asking = || manager.held.len() <= manager.stats.asking();
        let response = manager.access.response_timeout;
        let mut left = if are_asking() { response } else { grace };
        let mut waited = Duration::ZERO;
        loop {
            let step = left.min(response);
            if released(step).await {
                return;
            }
            left = left.saturating_sub(step);
            waited = waited.saturating_add(step);
            if left.is_zero() || are_asking() {
                break;
            }
        }
        let now = manager.now();
        let watchdogs = self.watchdogs();
        let ended = watchdogs
            .iter()
            .flat_map(|watchdog| watchdog.end_all(manager, EndCause::Closed));
        // Counted by the timer: the time of a manager's own clock may stand still.
        let ends_at = |lock: Arc<Tenure>| (waited.saturating_add(lock.deadline().since(now)), lock);
        let ended: Vec<_> = ended.map(ends_at).collect();
        // Bodies end at once. A guard that the user's code still keeps ends with its lease, which is
        // no longer renewed. The releases after that have one response time-out.
        left = response;
        loop {
            let is_kept = ended
                .iter()
                .any(|(ends, lock)| waited < *ends && !lock.is_being_released());
            // Calls that ask have that time as well, counted from the beginning.
            if !is_kept && (left.is_zero() || waited >= response && are_asking()) {
                return;
            }
            let step = if is_kept { LOOK_EVERY } else { left.min(LOOK_EVERY) };
            if released(step).await {
                return;
            }
            waited = waited.saturating_add(step);
            left = if is_kept { response } else { left.saturating_sub(step) };
        }
    }

    fn watchdogs(&self) -> Vec<Arc<Watchdog>> {
        match self {
            Self::LockThread(watchdog) => vec![Arc::clone(watchdog)],
            Self::Virtual { running, paused } => {
                let paused = paused.lock();
                let paused = paused.iter().map(|(_, watchdog)| Arc::clone(watchdog));
                std::iter::once(Arc::clone(running)).chain(paused).collect()
            }
        }
    }
}
