//! The connections on which locks are taken and released, one for each runtime that does so. A
//! command then does not change threads on its way, and no runtime delays another one.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::batcher::{RELEASED_TOGETHER, Release, Request, SHARED_TOGETHER};
use super::failure;
use super::released::{REPEAT_PAUSE, REPEATED_FOR, Released, Unacknowledged};
use super::slot::{Connection, ConnectionSlot, Purpose, Server};
use crate::host::{Host, Moment, Runtime, RuntimeId, Timer};
use crate::store::redis::keyspace::Keyspace;
use crate::store::{Limited, Receipt, ReleaseRequest, StoreError, StoreFuture};

/// The way of a command to the server.
pub(in crate::store::redis) enum Way {
    /// Through the batcher of the connection, which is about to send many commands, or reads first.
    InBatch(Arc<Connection>),
    ByItself(ConnectionSlot, Arc<Connection>),
}

impl Way {
    pub(in crate::store::redis) fn connection(&self) -> &Connection {
        match self {
            Self::InBatch(live) | Self::ByItself(_, live) => live,
        }
    }
}

/// Records a release once it is answered.
pub(in crate::store::redis) struct Noting(Weak<Inner>);

impl Noting {
    pub(in crate::store::redis) fn note(self, request: &Request) {
        if let Some(inner) = self.0.upgrade()
            && let Request::Release(release) = request
        {
            inner.released.note(inner.host.now(), release.clone());
        }
    }
}

/// The slots for acquires and releases, one for each runtime that drives them.
pub(in crate::store::redis) struct RuntimeConnections {
    inner: Arc<Inner>,
    /// `true` if commands are sent behind `ASKING`: see [`ConnectionSlot`].
    is_asking: bool,
}

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
            checked: Arc::clone(&checked),
            background: background.clone(),
        };
        let inner = Arc::new(Inner {
            host: host.clone(),
            lock_thread: ConnectionSlot::new(host, Arc::clone(&server), Arc::clone(&names), purpose, None),
            server,
            names,
            checked,
            background,
            slots: RwLock::default(),
            released: Released::default(),
            ended: CancellationToken::new(),
        });
        Self {
            inner,
            is_asking: false,
        }
    }

    /// Returns the same connections, for commands that are sent behind `ASKING`.
    pub(in crate::store::redis) fn asking(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            is_asking: true,
        }
    }

    /// Returns the slot of the current runtime.
    pub(in crate::store::redis) fn here(&self) -> ConnectionSlot {
        self.of_this_runtime().asking(self.is_asking)
    }

    fn of_this_runtime(&self) -> ConnectionSlot {
        self.look_at_this_runtimes(ConnectionSlot::clone)
    }

    /// Does the same as [`ConnectionSlot::ready`] for the slot of the current runtime.
    pub(in crate::store::redis) fn ready(&self, what: Limited, most: Duration) -> Option<StoreFuture<'static, ()>> {
        self.look_at_this_runtimes(|slot| slot.ready(what, most))
    }

    /// Calls `look` with the slot of the current runtime, perhaps while the slots are locked.
    fn look_at_this_runtimes<T>(&self, look: impl Fn(&ConnectionSlot) -> T) -> T {
        let Some(runtime) = self.inner.host.runtime() else {
            return look(&self.inner.lock_thread);
        };
        let id = runtime.id();
        let slots = self.inner.slots.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = known(&slots, id) {
            return look(slot);
        }
        drop(slots);
        look(&self.open(id, &runtime))
    }

    fn open(&self, id: RuntimeId, runtime: &Runtime) -> ConnectionSlot {
        let mut slots = self.inner.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = known(&slots, id) {
            return slot.clone();
        }
        let purpose = Purpose::Commands {
            checked: Arc::clone(&self.inner.checked),
            background: self.inner.background.clone(),
        };
        let (server, names) = (Arc::clone(&self.inner.server), Arc::clone(&self.inner.names));
        let slot = ConnectionSlot::new(&self.inner.host, server, names, purpose, Some(runtime.clone()));
        slots.push((id, slot.clone()));
        drop(slots);
        let resident = Resident {
            connections: Arc::downgrade(&self.inner),
            id,
        };
        let ended = self.inner.ended.clone();
        self.inner.host.spawn_on(runtime, async move {
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
        if let Some(other) = request.elsewhere.then(|| self.answered_last()).flatten() {
            return Ok(other);
        }
        let slot = self.here();
        let live = slot.live().await?;
        Ok((slot, live))
    }

    /// Returns a function that ends the connections to servers that another one has replaced.
    pub(in crate::store::redis) fn end_former(&self) -> impl Fn() + Send + Sync + 'static {
        let connections = Arc::downgrade(&self.inner);
        move || {
            let Some(connections) = connections.upgrade() else {
                return;
            };
            connections.background.end_former();
            // At once, not when the connection is back: that may have happened before.
            connections.background.has_moved();
            connections.lock_thread.end_former();
            let slots = connections.slots.read().unwrap_or_else(PoisonError::into_inner).clone();
            for (_, slot) in slots {
                slot.end_former();
            }
            let moved = connections.host.now();
            let Unacknowledged { places, releases } = connections.released.unacknowledged(moved);
            if places.is_empty() && releases.is_empty() {
                return;
            }
            tracing::debug!(
                releases = releases.len(),
                places = places.len(),
                "releases that the new server may not know are repeated"
            );
            let repeated = Repeated {
                slot: connections.lock_thread.clone(),
                response: connections.server.time_outs.response,
                until: connections.host.now().after(REPEATED_FOR),
                connections: Arc::downgrade(&connections),
            };
            drop(connections.host.spawn(async move {
                if repeated.send(places).await && repeated.send(repeated.since(moved)).await {
                    repeated.send(releases).await;
                }
            }));
        }
    }

    /// Records a release that has been sent, in case that another server takes over which does not
    /// know it.
    pub(in crate::store::redis) fn note_released(&self, release: impl FnOnce() -> Release) {
        if self.inner.server.endpoint.may_be_succeeded() {
            self.inner.released.note(self.inner.host.now(), release());
        }
    }

    /// Returns the releases that a server which takes over may not know. They are forgotten here.
    pub(in crate::store::redis) fn unacknowledged(&self) -> Unacknowledged {
        self.inner.released.unacknowledged(self.inner.host.now())
    }

    /// Returns the runtimes' connection that has answered last.
    fn answered_last(&self) -> Option<(ConnectionSlot, Arc<Connection>)> {
        let slots = self.inner.slots.read().unwrap_or_else(PoisonError::into_inner);
        let up = slots.iter().filter_map(|(_, slot)| Some((slot.clone(), slot.up()?)));
        let last = up.max_by_key(|(_, live)| live.last_answer());
        last.map(|(slot, live)| (slot.asking(self.is_asking), live))
    }

    /// Notes that nobody waits any more for the answer to a request that was put into a batch so long ago.
    pub(in crate::store::redis) fn has_given_up(&self, receipt: &Receipt, waited: Duration) {
        if let Some((slot, live)) = receipt.connection().and_then(|number| self.numbered(number)) {
            let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
            slot.has_given_up(&live, self.inner.host.now().as_nanos().saturating_sub(waited));
        }
    }

    /// Returns the way of a command of this kind from the current runtime, or `None` if it cannot be sent at
    /// once.
    pub(in crate::store::redis) fn way(&self, what: Limited) -> Option<Way> {
        self.look_at_this_runtimes(|slot| {
            let live = slot.up().filter(|_| !self.is_asking)?;
            let batcher = live.batcher.as_ref()?;
            let (is_busy, is_ready) = (batcher.is_busy(), batcher.is_ready(what));
            // The batcher first lets the runtime read, and sends the command though its call is polled no more.
            let way = if is_busy || slot.may_have_ended(&live) {
                Way::InBatch(live)
            } else {
                Way::ByItself(slot.clone(), live)
            };
            is_ready.then_some(way)
        })
    }

    /// Returns what does the same as [`note_released`](Self::note_released) later, and does not keep the
    /// connections. `None` if no other server can take over.
    pub(in crate::store::redis) fn noting(&self) -> Option<Noting> {
        let may_be_succeeded = self.inner.server.endpoint.may_be_succeeded();
        may_be_succeeded.then(|| Noting(Arc::downgrade(&self.inner)))
    }

    /// Returns the connection with this number, if it is still there.
    fn numbered(&self, number: u64) -> Option<(ConnectionSlot, Arc<Connection>)> {
        let slots = self.inner.slots.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::iter::once(&self.inner.lock_thread).chain(slots.iter().map(|(_, slot)| slot));
        all.find_map(|slot| Some((slot.clone().asking(self.is_asking), slot.numbered(number)?)))
    }
}

fn known(slots: &[(RuntimeId, ConnectionSlot)], id: RuntimeId) -> Option<&ConnectionSlot> {
    slots.iter().find(|(home, _)| *home == id).map(|(_, slot)| slot)
}

/// Releases that are repeated until the server has answered each of them. Those that it knows
/// already have no effect.
struct Repeated {
    slot: ConnectionSlot,
    response: Duration,
    until: Moment,
    connections: Weak<Inner>,
}

impl Repeated {
    /// Returns the releases that this server has answered since the store moved to it. A call that
    /// released before its place was left may have handed the lock to that place.
    fn since(&self, moved: Moment) -> Vec<Release> {
        let connections = self.connections.upgrade();
        let since = connections.map(|connections| connections.released.since(moved, self.slot.host().now()));
        since.unwrap_or_default()
    }

    /// Returns `false` if the server has not answered in time.
    async fn send(&self, releases: Vec<Release>) -> bool {
        let (shared, exclusive): (Vec<_>, Vec<_>) = releases.into_iter().partition(|release| release.is_shared);
        for (releases, together) in [(exclusive, RELEASED_TOGETHER), (shared, SHARED_TOGETHER)] {
            for releases in releases.chunks(together) {
                if !self.send_some(releases).await {
                    return false;
                }
            }
        }
        true
    }

    /// Sends releases by a command each, if that is not what has just been refused.
    async fn send_each(&self, releases: &[Release]) -> bool {
        if releases.len() > 1 {
            for release in releases {
                if !Box::pin(self.send_some(std::slice::from_ref(release))).await {
                    return false;
                }
            }
        }
        true
    }

    async fn send_some(&self, releases: &[Release]) -> bool {
        let host = self.slot.host();
        loop {
            let answer = async {
                let live = self.slot.live().await?;
                let answer = self.slot.release_all(&live, releases).await;
                answer.map_err(|error| failure::sort(&error, true))
            };
            match host.timeout(Timer::LockThread, self.response, answer).await {
                Some(Ok(())) => break,
                // The key may have a lock of another kind by now. The server has released the
                // others of the same command, and does not say so.
                Some(Err(error)) if error.is_permanent() => return self.send_each(releases).await,
                _ if host.now() >= self.until => return false,
                _ => host.sleep(Timer::LockThread, REPEAT_PAUSE).await,
            }
        }
        // The server that takes over next may not know them either.
        if let Some(connections) = self.connections.upgrade() {
            for release in releases {
                connections.released.note(host.now(), release.clone());
            }
        }
        true
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
            let ended: Vec<_> = slots.extract_if(.., |(home, _)| *home == self.id).collect();
            drop(slots);
            // The end of a connection wakes the tasks that watch the health of its server, and a waker may
            // ask for a connection at once.
            drop(ended);
        }
    }
}
