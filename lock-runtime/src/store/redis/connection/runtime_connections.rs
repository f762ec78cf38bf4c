//! The connections on which locks are taken and released, one for each runtime that does so. A
//! command then does not change threads on its way, and no runtime delays another one.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::batcher::Release;
use super::failure;
use super::released::Released;
use super::slot::{Connection, ConnectionSlot, Purpose, Server};
use crate::host::{Host, Runtime, RuntimeId, Timer};
use crate::store::redis::keyspace::Keyspace;
use crate::store::{ReleaseRequest, StoreError};

/// The time for which releases are repeated at a new server, and the pause after one without an
/// answer.
const REPEATED_FOR: Duration = Duration::from_secs(60);
const REPEAT_PAUSE: Duration = Duration::from_millis(100);

/// The slots for acquires and releases, one for each runtime that drives them.
pub(in crate::store::redis) struct RuntimeConnections(Arc<Inner>);

struct Inner {
    host: Host,
    server: Arc<Server>,
    names: Arc<Keyspace>,
    /// Set once the permissions have been checked.
    checked: Arc<OnceLock<()>>,
    /// The slot that reports to the watchdog when a connection works again.
    background: ConnectionSlot,
    /// The slot for callers outside of any runtime, and for those on the lock thread.
    lock_thread: ConnectionSlot,
    slots: RwLock<Vec<(RuntimeId, ConnectionSlot)>>,
    /// The latest releases, if another server may take over.
    released: Released,
    /// Cancelled when the store is dropped, which ends the tasks that hold a [`Resident`].
    ended: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl RuntimeConnections {
    pub(in crate::store::redis) fn new(
        host: &Host,
        server: Arc<Server>,
        names: Arc<Keyspace>,
        background: ConnectionSlot,
    ) -> Self {
        let checked = Arc::<OnceLock<()>>::default();
        let purpose = Purpose::Commands {
            names: Arc::clone(&names),
            checked: Arc::clone(&checked),
            background: background.clone(),
        };
        Self(Arc::new(Inner {
            host: host.clone(),
            lock_thread: ConnectionSlot::new(host, Arc::clone(&server), purpose, None),
            server,
            names,
            checked,
            background,
            slots: RwLock::default(),
            released: Released::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// Returns the slot of the current runtime.
    pub(in crate::store::redis) fn here(&self) -> ConnectionSlot {
        let Some(runtime) = self.0.host.runtime() else {
            return self.0.lock_thread.clone();
        };
        let id = runtime.id();
        let known = known(&self.0.slots.read().unwrap_or_else(PoisonError::into_inner), id);
        known.unwrap_or_else(|| self.open(id, &runtime))
    }

    fn open(&self, id: RuntimeId, runtime: &Runtime) -> ConnectionSlot {
        let mut slots = self.0.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = known(&slots, id) {
            return slot;
        }
        let purpose = Purpose::Commands {
            names: Arc::clone(&self.0.names),
            checked: Arc::clone(&self.0.checked),
            background: self.0.background.clone(),
        };
        let slot = ConnectionSlot::new(&self.0.host, Arc::clone(&self.0.server), purpose, Some(runtime.clone()));
        slots.push((id, slot.clone()));
        drop(slots);
        let resident = Resident {
            connections: Arc::downgrade(&self.0),
            id,
        };
        let ended = self.0.ended.clone();
        self.0.host.spawn_on(runtime, async move {
            let _resident = resident;
            ended.cancelled_owned().await;
        });
        slot
    }

    /// Returns the connection for a release: that of an acquire which was not answered, while it
    /// lives, or another runtime's, if the request prefers that, or else this runtime's.
    pub(in crate::store::redis) async fn for_release(
        &self,
        request: &ReleaseRequest<'_>,
    ) -> Result<(ConnectionSlot, Arc<Connection>), StoreError> {
        if let Some(known) = request.unanswered_on.and_then(|number| self.numbered(number)) {
            return Ok(known);
        }
        if let Some(other) = request.elsewhere.then(|| self.heard_last()).flatten() {
            return Ok(other);
        }
        let slot = self.here();
        let live = slot.live().await?;
        Ok((slot, live))
    }

    /// Returns a function that ends the connections to servers that another one has replaced.
    pub(in crate::store::redis) fn end_former(&self) -> impl Fn() + Send + Sync + 'static {
        let connections = Arc::downgrade(&self.0);
        move || {
            let Some(connections) = connections.upgrade() else {
                return;
            };
            // Before all others: it makes the held locks be checked.
            connections.background.end_former();
            connections.lock_thread.end_former();
            let slots = connections.slots.read().unwrap_or_else(PoisonError::into_inner).clone();
            for (_, slot) in slots {
                slot.end_former();
            }
            let unheard = connections.released.unheard(connections.host.now());
            if unheard.is_empty() {
                return;
            }
            tracing::debug!(
                releases = unheard.len(),
                "releases that the new server may not know are repeated"
            );
            let (slot, names) = (connections.lock_thread.clone(), Arc::clone(&connections.names));
            let response = connections.server.time_outs.response;
            drop(connections.host.spawn(repeat(slot, names, unheard, response)));
        }
    }

    /// Records a release that has been sent, in case that another server takes over which does not
    /// know it.
    pub(in crate::store::redis) fn note_released(&self, release: impl FnOnce() -> Release) {
        if self.0.server.place.is_followed() {
            self.0.released.note(self.0.host.now(), release());
        }
    }

    /// Returns the runtimes' connection that has answered last.
    fn heard_last(&self) -> Option<(ConnectionSlot, Arc<Connection>)> {
        let slots = self.0.slots.read().unwrap_or_else(PoisonError::into_inner);
        let up = slots.iter().filter_map(|(_, slot)| Some((slot.clone(), slot.up()?)));
        up.max_by_key(|(_, live)| live.heard())
    }

    /// Returns the connection with this number, if it is still there.
    fn numbered(&self, number: u64) -> Option<(ConnectionSlot, Arc<Connection>)> {
        let slots = self.0.slots.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::iter::once(&self.0.lock_thread).chain(slots.iter().map(|(_, slot)| slot));
        all.find_map(|slot| Some((slot.clone(), slot.numbered(number)?)))
    }
}

fn known(slots: &[(RuntimeId, ConnectionSlot)], id: RuntimeId) -> Option<ConnectionSlot> {
    let found = slots.iter().find(|(home, _)| *home == id);
    found.map(|(_, slot)| slot.clone())
}

/// Repeats releases until the server has answered each of them. A release that it knows already has
/// no effect.
async fn repeat(slot: ConnectionSlot, names: Arc<Keyspace>, releases: Vec<Release>, response: Duration) {
    let host = slot.host().clone();
    let until = host.now().after(REPEATED_FOR);
    for release in releases {
        loop {
            let answer = async {
                let live = slot.live().await?;
                let answer = slot.release(&live, || release.clone(), &names).await;
                answer.map_err(|error| failure::sort(&error, true))
            };
            match host.timeout(Timer::LockThread, response, answer).await {
                Some(Ok(_)) => break,
                _ if host.now() >= until => return,
                _ => host.sleep(Timer::LockThread, REPEAT_PAUSE).await,
            }
        }
    }
}

/// Stays in a runtime until the runtime ends, and then removes its slot.
struct Resident {
    connections: Weak<Inner>,
    id: RuntimeId,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.upgrade() {
            let mut slots = connections.slots.write().unwrap_or_else(PoisonError::into_inner);
            slots.retain(|(home, _)| *home != self.id);
        }
    }
}
