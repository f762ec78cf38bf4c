//! The state that all calls of one manager share.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::callers::Callers;
use crate::acquire::coalesce::Flights;
use crate::acquire::local_queue::Lines;
use crate::hold::upkeep::{Pace, Watchdog};
use crate::hold::{Backend, Hold, LockOptions};
use crate::host::{Backoff, Host, Moment, Timer};
use crate::store::LockStore;

/// Receives each lock that a call gets, from the store or from another call.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    fn granted(&self, held: &Arc<Hold>);
}

/// The inner state of a manager: what its locks share, and what its calls share on their way to
/// them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    /// The options of a call that sets none.
    pub(crate) defaults: LockOptions,
    pub(super) backoff: Backoff,
    pace: Arc<Pace>,
    /// The time for which a shutdown lets bodies run on.
    shutdown_grace: Duration,
    pub(super) flights: Flights,
    pub(super) lines: Arc<Lines>,
    pub(super) callers: Arc<Callers>,
    pub(super) observer: Option<Arc<dyn Observer>>,
}

impl Shared {
    pub(crate) fn new(
        backend: Arc<Backend>,
        defaults: LockOptions,
        backoff: Backoff,
        pace: Arc<Pace>,
        shutdown_grace: Duration,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let lines = Lines::new(&backend);
        Self {
            callers: Callers::new(&backend, Arc::clone(&lines) as _),
            lines,
            backend,
            defaults,
            backoff,
            pace,
            shutdown_grace,
            flights: Flights::default(),
            observer,
        }
    }

    pub(crate) fn host(&self) -> &Host {
        self.backend.host()
    }

    pub(crate) fn store(&self) -> &dyn LockStore {
        self.backend.store()
    }

    pub(crate) fn now(&self) -> Moment {
        self.backend.now()
    }

    /// Returns the watchdog for a lock taken now, and the timer for waits.
    pub(crate) fn pace(&self) -> (Arc<Watchdog>, Timer) {
        self.pace.now(self.host())
    }

    /// Ends all calls and locks of the manager.
    pub(crate) async fn shut_down(&self) {
        self.pace.shut_down(&self.backend, self.shutdown_grace).await;
    }
}
