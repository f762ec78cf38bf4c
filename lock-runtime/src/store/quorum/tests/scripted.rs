//! Masters under the test's control, by a paused clock: when a request arrives, whether it is carried out, and when
//! and whether it is answered.
//!
//! A request that was sent is carried out also if its future is dropped, and those of one connection in their order.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::{FutureExt, poll};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::host::Mutex;
use crate::store::memory::MemoryStore;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, ContentionSlot, Fence, FencingToken, HolderValue,
    LockStore, Ownership, QueueOutcome, QueueRequest, Receipt, ReleaseRequest, RenewRequest, StoreError, StoreFuture,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Acquire,
    AcquireAll,
    Renew,
    Check,
    Release,
    Fence,
    Raise,
    Queue,
    Connect,
}

/// A request, as the script and the log see it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) op: Op,
    pub(super) client: usize,
    /// For the message of a test that fails.
    #[allow(dead_code)]
    pub(super) value: String,
}

/// The fate of a request.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// It travels for so long in both directions.
    Trip(Duration, Duration),
    /// It is not carried out until it is let go.
    Held(Arc<Notify>),
    Lost,
    AnswerLost,
    Refused,
    /// It gives no votes for so long.
    Closed(Duration),
}

pub(super) const MS: Duration = Duration::from_millis(1);

/// The usual fate.
pub(super) const PROMPT: Fate = Fate::Trip(MS, MS);

type Script = Box<dyn FnMut(&Asked) -> Fate + Send>;

/// A request that a master has carried out, with its time in ms since the test began.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: u128,
    pub(super) master: usize,
    pub(super) asked: Asked,
    pub(super) answer: String,
}

#[derive(Debug)]
pub(super) struct Log {
    began: Instant,
    events: Mutex<Vec<Event>>,
}

impl Log {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            events: Mutex::default(),
        })
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

/// One master.
pub(super) struct Server {
    pub(super) number: usize,
    log: Arc<Log>,
    state: Mutex<State>,
    /// Counts the ends of its connections.
    epoch: watch::Sender<u64>,
    /// Counts its flushes.
    flushes: watch::Sender<u64>,
    is_silent: watch::Sender<bool>,
}

struct State {
    store: Arc<MemoryStore>,
    is_up: bool,
    script: Script,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.number).finish()
    }
}

impl Server {
    pub(super) fn new(number: usize, log: &Arc<Log>) -> Arc<Self> {
        Arc::new(Self {
            number,
            log: Arc::clone(log),
            state: Mutex::new(State {
                store: Arc::default(),
                is_up: true,
                script: Box::new(|_| PROMPT),
            }),
            epoch: watch::Sender::default(),
            flushes: watch::Sender::default(),
            is_silent: watch::Sender::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.state().store)
    }

    pub(super) fn script(&self, script: impl FnMut(&Asked) -> Fate + Send + 'static) {
        self.state().script = Box::new(script);
    }

    /// Ends all connections, and refuses new ones.
    pub(super) fn kill(&self) {
        self.state().is_up = false;
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Starts it again with its data.
    pub(super) fn start(&self) {
        self.state().is_up = true;
    }

    /// Forgets everything, its queues too. The connections stay.
    pub(super) fn flush(&self) {
        self.state().store = Arc::default();
        self.flushes.send_modify(|flushes| *flushes += 1);
    }

    /// Carries nothing out and answers nothing while `silent`. Connections can be made.
    pub(super) fn set_silent(&self, silent: bool) {
        self.is_silent.send_replace(silent);
    }

    /// Kills it once the request in hand has been sent.
    pub(super) fn kill_soon(self: &Arc<Self>) {
        let server = Arc::clone(self);
        drop(tokio::spawn(async move { server.kill() }));
    }

    /// Gives the key to a holder.
    pub(super) fn put(&self, key: &str, value: &str, ttl: Duration) {
        let request = AcquireRequest {
            key: &key.into(),
            value: &HolderValue::of(value),
            ttl,
            fence: false,
            tell_remaining: false,
            fair: false,
            receipt: &Receipt::default(),
        };
        let attempt = self.store().acquire(&request).now_or_never().unwrap();
        assert!(matches!(attempt, Ok(Attempt::Granted { .. })), "{attempt:?}");
    }

    /// Releases the key for that holder.
    pub(super) fn remove(&self, key: &str, value: &str) {
        let request = ReleaseRequest {
            key: &key.into(),
            value: &HolderValue::of(value),
            keep: None,
            unanswered_on: None,
            elsewhere: false,
            queued: None,
            leave_free: None,
            receipt: &Receipt::default(),
        };
        let released = self.store().release(&request).now_or_never().unwrap();
        assert_eq!(released.unwrap(), Ownership::Owned);
    }

    fn note(&self, asked: &Asked, answer: impl fmt::Debug) {
        let at = self.log.began.elapsed().as_millis();
        self.log.events.lock().push(Event {
            at,
            master: self.number,
            asked: asked.clone(),
            answer: format!("{answer:?}"),
        });
    }

    /// Returns who has the key, and the number of those who wait.
    pub(super) fn held(&self, key: &str) -> (Vec<String>, u64) {
        let store = self.store();
        let info = store.inspect(key).now_or_never().unwrap().unwrap();
        info.map_or((Vec::new(), 0), |info| {
            let holders = info.holders.iter().map(|holding| holding.holder.text().to_owned());
            (holders.collect(), info.waiters)
        })
    }
}

/// A client's connections to one master.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    client: usize,
    /// Cut off by the test.
    is_cut: watch::Sender<bool>,
    connection: AtomicU64,
    /// When the connection for acquires is open.
    opens: Mutex<Option<Instant>>,
    /// The end of the request before, and the time at which it arrives.
    before: Mutex<(Option<oneshot::Receiver<()>>, Option<Instant>)>,
}

impl Link {
    pub(super) fn new(server: &Arc<Server>, client: usize) -> Self {
        Self(Arc::new(Inner {
            server: Arc::clone(server),
            client,
            is_cut: watch::Sender::default(),
            connection: AtomicU64::new(1),
            opens: Mutex::default(),
            before: Mutex::default(),
        }))
    }

    /// Cuts the client off: its requests are refused at once.
    pub(super) fn cut(&self) {
        self.0.is_cut.send_replace(true);
    }

    /// Makes the next requests on another connection, which those under way on this one may pass.
    pub(super) fn reconnect(&self) {
        self.0.connection.fetch_add(1, Ordering::Relaxed);
        *self.0.before.lock() = (None, None);
    }

    /// Lets acquires wait for their connection, which is opened after so long. Other requests overtake them.
    pub(super) fn opens_after(&self, delay: Duration) {
        let opens = Instant::now() + delay;
        *self.0.opens.lock() = Some(opens);
    }

    fn begin(&self, asked: &Asked, receipt: Option<&Receipt>) -> Result<(Fate, Travel), StoreError> {
        let server = &self.0.server;
        if *self.0.is_cut.borrow() || !server.state().is_up {
            return Err(StoreError::transient("connection refused"));
        }
        let fate = (server.state().script)(asked);
        match fate {
            Fate::Refused => return Err(StoreError::transient("refused")),
            Fate::Closed(left) => return Err(StoreError::closed(left)),
            _ => {}
        }
        if let Some(receipt) = receipt {
            receipt.sent_on(self.0.connection.load(Ordering::Relaxed));
        }
        let there = match fate {
            Fate::Trip(there, _) => there,
            _ => MS,
        };
        let mut before = self.0.before.lock();
        let arrives = before.1.max(Some(Instant::now() + there)).unwrap();
        let (done, is_done) = oneshot::channel();
        let is_held = matches!(fate, Fate::Held(_) | Fate::Lost);
        // What is held or lost holds up nothing behind it, so the next requests are on another connection.
        let (before, done) = if is_held {
            self.0.connection.fetch_add(1, Ordering::Relaxed);
            (None, None)
        } else {
            before.1 = Some(arrives);
            (before.0.replace(is_done), Some(done))
        };
        let travel = Travel {
            arrives,
            before,
            done,
            epoch: server.epoch.subscribe(),
            is_silent: server.is_silent.subscribe(),
        };
        Ok((fate, travel))
    }

    /// Sends a request. `work` is done at the master.
    async fn ask<T: fmt::Debug + Send + 'static>(
        &self,
        op: Op,
        value: &str,
        receipt: Option<&Receipt>,
        work: impl FnOnce(&MemoryStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let asked = Asked {
            op,
            client: self.0.client,
            value: value.to_owned(),
        };
        let opens = *self.0.opens.lock();
        if let Some(opens) = opens.filter(|_| op == Op::Acquire) {
            sleep_until(opens).await;
        }
        let (fate, mut travel) = self.begin(&asked, receipt)?;
        let (answer, answered) = oneshot::channel();
        let server = Arc::clone(&self.0.server);
        drop(tokio::spawn(async move {
            if matches!(fate, Fate::Lost) {
                return travel.broken().await;
            }
            if !travel.arrive(&fate).await {
                return;
            }
            let said = work(&server.store());
            server.note(&asked, &said);
            travel.done = None;
            let sent_back = async {
                match &fate {
                    Fate::Trip(_, back) => sleep(*back).await,
                    Fate::AnswerLost => std::future::pending().await,
                    _ => sleep(MS).await,
                }
            };
            tokio::select! {
                () = sent_back => drop(answer.send(said)),
                _ = travel.epoch.changed() => {}
            }
        }));
        answered
            .await
            .unwrap_or_else(|_| Err(StoreError::unknown("the connection has ended")))
    }
}

/// A request under way.
struct Travel {
    arrives: Instant,
    before: Option<oneshot::Receiver<()>>,
    done: Option<oneshot::Sender<()>>,
    epoch: watch::Receiver<u64>,
    is_silent: watch::Receiver<bool>,
}

impl Travel {
    /// Returns `false` if the connection has ended before it arrived.
    async fn arrive(&mut self, fate: &Fate) -> bool {
        let Self {
            arrives,
            before,
            epoch,
            is_silent,
            ..
        } = self;
        let arrives = async {
            sleep_until(*arrives).await;
            if let Fate::Held(go) = fate {
                go.notified().await;
            }
            if let Some(before) = before.take() {
                drop(before.await);
            }
            drop(is_silent.wait_for(|silent| !silent).await);
        };
        tokio::select! {
            biased;
            _ = epoch.changed() => false,
            () = arrives => true,
        }
    }

    /// Waits for the end of the connection.
    async fn broken(&mut self) {
        drop(self.epoch.changed().await);
    }
}

impl LockStore for Link {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        let (key, value) = (Arc::clone(request.key), request.value.clone());
        let (ttl, fence, tell_remaining) = (request.ttl, request.fence, request.tell_remaining);
        Box::pin(self.ask(
            Op::Acquire,
            request.value.as_str(),
            Some(request.receipt),
            move |store| {
                let request = AcquireRequest {
                    key: &key,
                    value: &value,
                    ttl,
                    fence,
                    tell_remaining,
                    fair: false,
                    receipt: &Receipt::default(),
                };
                store.acquire(&request).now_or_never().unwrap()
            },
        ))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        let (keys, value) = (request.keys.to_vec(), request.value.clone());
        let (ttl, fence) = (request.ttl, request.fence);
        Box::pin(self.ask(
            Op::AcquireAll,
            request.value.as_str(),
            Some(request.receipt),
            move |store| {
                let request = AcquireAllRequest {
                    keys: &keys,
                    value: &value,
                    former: None,
                    keep: None,
                    ttl,
                    fence,
                    receipt: &Receipt::default(),
                };
                store.acquire_all(&request).now_or_never().unwrap()
            },
        ))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        let is_check = requests.iter().all(|request| request.extend.is_none());
        let op = if is_check { Op::Check } else { Op::Renew };
        let value = requests.first().map_or("", |request| request.value.as_str());
        let requests = requests.to_vec();
        Box::pin(self.ask(op, value, None, move |store| {
            store.renew(&requests).now_or_never().unwrap()
        }))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        let (key, value) = (Arc::clone(request.key), request.value.clone());
        let (keep, queued) = (request.keep, request.queued);
        Box::pin(self.ask(
            Op::Release,
            request.value.as_str(),
            Some(request.receipt),
            move |store| {
                let request = ReleaseRequest {
                    key: &key,
                    value: &value,
                    keep,
                    unanswered_on: None,
                    elsewhere: false,
                    queued,
                    leave_free: None,
                    receipt: &Receipt::default(),
                };
                store.release(&request).now_or_never().unwrap()
            },
        ))
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        let (key, of) = (key.to_owned(), value.clone());
        Box::pin(self.ask(Op::Fence, value.as_str(), None, move |store| {
            store.fence(&key, &of).now_or_never().unwrap()
        }))
    }

    fn raise_fence<'a>(
        &'a self,
        key: &'a str,
        value: &'a HolderValue,
        fence: FencingToken,
    ) -> StoreFuture<'a, Ownership> {
        let (key, of) = (key.to_owned(), value.clone());
        Box::pin(self.ask(Op::Raise, value.as_str(), None, move |store| {
            store.raise_fence(&key, &of, fence).now_or_never().unwrap()
        }))
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.ask(Op::Connect, "", None, |_| Ok(())))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        Box::pin(async move {
            let asked = Asked {
                op: Op::Queue,
                client: self.0.client,
                value: request.value.as_str().to_owned(),
            };
            let (fate, mut travel) = self.begin(&asked, Some(request.receipt))?;
            let (joined, has_joined) = oneshot::channel();
            let (answer, answered) = oneshot::channel();
            let server = Arc::clone(&self.0.server);
            let (key, value, ttl, fence) = (
                Arc::clone(request.key),
                request.value.clone(),
                request.ttl,
                request.fence,
            );
            let clock = Arc::clone(request.clock);
            drop(tokio::spawn(async move {
                if matches!(fate, Fate::Lost) {
                    return travel.broken().await;
                }
                if !travel.arrive(&fate).await {
                    return;
                }
                let mut flushes = server.flushes.subscribe();
                let store = server.store();
                let request = QueueRequest {
                    key: &key,
                    value: &value,
                    ttl,
                    fence,
                    clock: &clock,
                    receipt: &Receipt::default(),
                    contention: &ContentionSlot::default(),
                };
                let mut waits = store.queue(&request);
                let at_once = poll!(&mut waits);
                server.note(&asked, "joined");
                travel.done = None;
                let back = match fate {
                    Fate::Trip(_, back) => back,
                    _ => MS,
                };
                drop(tokio::spawn(async move {
                    sleep(back).await;
                    let _ = joined.send(());
                }));
                let outcome = async {
                    match at_once {
                        std::task::Poll::Ready(outcome) => outcome,
                        std::task::Poll::Pending => waits.await,
                    }
                };
                let outcome = tokio::select! {
                    biased;
                    _ = travel.epoch.changed() => return,
                    _ = flushes.changed() => Ok(QueueOutcome::Lapsed),
                    outcome = outcome => outcome,
                };
                server.note(&asked, &outcome);
                match fate {
                    Fate::AnswerLost => return travel.broken().await,
                    _ => sleep(back).await,
                }
                drop(answer.send(outcome));
            }));
            if has_joined.await.is_ok() {
                request.receipt.answered();
            }
            answered
                .await
                .unwrap_or_else(|_| Err(StoreError::unknown("the connection has ended")))
        })
    }

    /// Lets all waits follow the paused clock. None of its requests is answered at once.
    fn release_is_immediate(&self) -> bool {
        true
    }
}
