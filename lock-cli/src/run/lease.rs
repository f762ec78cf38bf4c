//! The lock thread: takes the lock, notices its loss, and releases it.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::time::Duration;

use lock_runtime::{FencingToken, HeldLock, LockError, LockGuard, LockManager, LockRequest};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::args::Run;
use crate::connect;
use crate::exit::Failure;
use crate::run::Event;

/// How long a release, or the clean-up of an attempt that was given up, may take.
const CLEAN_UP: Duration = Duration::from_secs(3);

/// A held lock.
pub(super) struct Held {
    /// Tells how long the lock is held without asking the store.
    pub(super) lock: HeldLock,
    pub(super) fence: Option<FencingToken>,
}

/// What the lock thread is asked for.
enum Order {
    Cancel(SyncSender<()>),
    Verify(SyncSender<Result<Duration, LockError>>),
    Release(SyncSender<Result<(), LockError>>),
}

/// The main thread's line to the lock thread.
pub(super) struct Lease {
    orders: UnboundedSender<Order>,
}

impl Lease {
    /// Gives up waiting for the lock, and returns when the store has been told.
    pub(super) fn cancel(&self) {
        self.ask(Order::Cancel, CLEAN_UP);
    }

    /// Asks the store if the lock is still held. Returns `None` if it does not answer in time.
    pub(super) fn verify(&self, limit: Duration) -> Option<Result<Duration, LockError>> {
        self.ask(Order::Verify, limit)
    }

    /// Releases the lock. Returns `None` if the store does not answer in time.
    pub(super) fn release(&self) -> Option<Result<(), LockError>> {
        self.ask(Order::Release, CLEAN_UP)
    }

    fn ask<T>(&self, order: fn(SyncSender<T>) -> Order, limit: Duration) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        self.orders.send(order(answer)).ok()?;
        answered.recv_timeout(limit).ok()
    }
}

/// Starts the lock thread, which tells when the lock is taken.
pub(super) fn start(locks: LockManager, options: &Run, events: Sender<Event>) -> Result<Lease, Failure> {
    let mut request = locks
        .lock(&options.key)
        .mode(options.mode.clone())
        .lease(options.lease)
        .wait(options.wait)
        .at_least(options.at_least)
        .fair(options.fair)
        .fencing(options.fencing)
        // Not as a service sets it for its calls: a command may run for as long as it likes, under a lock of its own.
        .renew(true)
        .pipelined(false)
        .reentrant(false)
        .max_renewals(u32::MAX);
    if let Some(command) = options.command.first() {
        request = request.label(Box::leak(label(command).into_boxed_str()));
    }
    let fencing = options.fencing;
    let runtime = connect::runtime()?;
    let (orders, requests) = unbounded_channel();
    let thread = std::thread::Builder::new().name("lock".into()).spawn(move || {
        let _ended = Ended(&events);
        runtime.block_on(hold(&locks, request, fencing, &events, requests));
    });
    thread.map_err(|error| Failure::system("no thread can be started", error))?;
    Ok(Lease { orders })
}

/// Tells the main thread that the lock thread has ended, also by a panic.
struct Ended<'a>(&'a Sender<Event>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(Event::LockThreadEnded);
    }
}

/// Returns the name by which operators see the holder. Arguments may be secrets.
fn label(command: &OsStr) -> String {
    let name = Path::new(command).file_name().unwrap_or(command);
    format!("lockctl run {}", name.to_string_lossy())
}

async fn hold(
    locks: &LockManager,
    request: LockRequest,
    fencing: bool,
    events: &Sender<Event>,
    mut orders: UnboundedReceiver<Order>,
) {
    let taken = tokio::select! {
        taken = take(request, fencing) => Some(taken),
        // No other order comes before the answer.
        order = orders.recv() => {
            // The attempt has been dropped, so its clean-up is under way.
            locks.shutdown().await;
            if let Some(Order::Cancel(done)) = order {
                let _ = done.send(());
            }
            None
        }
    };
    let mut guard = match taken {
        None => return,
        Some(Err(error)) => {
            // The store may still grant an attempt whose answer did not come.
            let _ = tokio::time::timeout(CLEAN_UP, locks.shutdown()).await;
            let _ = events.send(Event::Answered(Box::new(Err(error))));
            return;
        }
        Some(Ok((guard, fence))) => {
            let lock = guard.handle().clone();
            let _ = events.send(Event::Answered(Box::new(Ok(Held { lock, fence }))));
            Some(guard)
        }
    };
    let Some(lock) = guard.as_ref().map(|guard| guard.handle().clone()) else {
        return;
    };
    let mut is_told = false;
    loop {
        tokio::select! {
            error = lock.lost(), if !is_told => {
                is_told = true;
                let _ = events.send(Event::Lost(error));
            }
            order = orders.recv() => match order {
                Some(Order::Verify(answer)) => {
                    let _ = answer.send(lock.verify().await);
                }
                Some(Order::Release(answer)) => {
                    if let Some(guard) = guard.take() {
                        let _ = answer.send(guard.release().await);
                    }
                    return;
                }
                // A signal came while the answer was on its way.
                Some(Order::Cancel(done)) => {
                    if let Some(guard) = guard.take() {
                        let _ = guard.release().await;
                    }
                    let _ = done.send(());
                    return;
                }
                None => return,
            },
        }
    }
}

async fn take(request: LockRequest, fencing: bool) -> Result<(LockGuard, Option<FencingToken>), LockError> {
    let guard = request.acquire().await?;
    let fence = if fencing {
        // It was taken together with the lock.
        Some(guard.handle().fencing_token().await?)
    } else {
        None
    };
    Ok((guard, fence))
}
