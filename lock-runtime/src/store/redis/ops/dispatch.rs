//! Requests in any mode that are sent at once: into the batcher of this runtime's connection, where no future of the
//! store waits for their answers, or each by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisError, Value};

use crate::store::redis::RedisStore;
use crate::store::redis::connection::failure::sort;
use crate::store::redis::connection::{
    Acquire, AcquireMode, Connection, ConnectionSlot, Noting, Reply, Report, Request, Take, Terms, Way, What,
};
use crate::store::redis::ops::exclusive::{Marked, remaining};
use crate::store::redis::queue::Queue;
use crate::store::redis::reply::{LEFT_FREE, attempt, given_back, millis, released, taken, taken_once};
use crate::store::{
    AcquireRequest, Attempt, Dispatch, LeaveFree, Limited, Ownership, ReleaseReport, ReleaseRequest, Responder,
    StoreError, StoreFuture,
};

/// The request of an attempt, at a server that keeps no mark.
enum Ask {
    /// By a plain command.
    Plain(Acquire, TellRemaining),
    Script(Acquire, IsFirst),
}

/// `true` to ask as well for the rest of the holder's lease.
struct TellRemaining(bool);

/// `true` for the first lock in a shared mode on a connection. It finds a command that the server does not allow,
/// before it takes the lock.
struct IsFirst(bool);

impl Ask {
    fn new(request: &AcquireRequest<'_>, live: &Connection) -> Self {
        let is_shared = request.value.is_shared();
        let is_first = is_shared && !live.allows_shared.load(Ordering::Relaxed);
        let acquire = Acquire {
            lock: Arc::clone(request.key),
            value: Arc::clone(request.value.text()),
            ttl: millis(request.ttl),
            terms: Terms {
                fence: request.fence,
                mode: if is_shared {
                    AcquireMode::Shared { all_commands: is_first }
                } else {
                    AcquireMode::Exclusive { fair: request.fair }
                },
            },
        };
        if live.server.is_7 && !(request.fence || request.fair || is_shared) {
            Self::Plain(acquire, TellRemaining(request.tell_remaining))
        } else {
            Self::Script(acquire, IsFirst(is_first))
        }
    }

    /// Makes the attempt without a batch, if none is about to be sent.
    fn by_itself(self, commands: ConnectionSlot, live: Arc<Connection>) -> StoreFuture<'static, Attempt> {
        match self {
            Self::Plain(acquire, tell_remaining) => Box::pin(Self::plain(commands, live, acquire, tell_remaining)),
            Self::Script(acquire, is_first) => Box::pin(Self::script(commands, live, acquire, is_first)),
        }
    }

    async fn plain(
        commands: ConnectionSlot,
        live: Arc<Connection>,
        acquire: Acquire,
        TellRemaining(tell_remaining): TellRemaining,
    ) -> Result<Attempt, StoreError> {
        let take = commands.take(&live, Take::new(&acquire.lock, &acquire.value, acquire.ttl));
        let (answer, remaining) = if tell_remaining {
            // Both are sent before the first answer is back. Boxed, since it is rare.
            Box::pin(async { tokio::join!(take, remaining(&commands, &live, &acquire.lock)) }).await
        } else {
            (take.await, None)
        };
        let answer = answer.map_err(|error| sort(&error, true))?;
        if let Some(attempt) = taken(&answer, &acquire.value, remaining)? {
            return Ok(attempt);
        }
        // The key held the caller's own value already, and its lease is still the earlier one. A failure does not
        // mean that nothing was taken. Boxed, since it is rare.
        let acquire = Request::Acquire(acquire);
        let again = Box::pin(commands.run(&live, &acquire));
        attempt(&again.await.map_err(|error| sort(&error, true).into_unknown())?)
    }

    async fn script(
        commands: ConnectionSlot,
        live: Arc<Connection>,
        acquire: Acquire,
        IsFirst(is_first): IsFirst,
    ) -> Result<Attempt, StoreError> {
        let answer = commands.run(&live, &Request::Acquire(acquire)).await;
        let attempt = attempt(&answer.map_err(|error| sort(&error, true))?)?;
        if is_first && matches!(attempt, Attempt::Granted { .. }) {
            live.allows_shared.store(true, Ordering::Relaxed);
        }
        Ok(attempt)
    }
}

impl RedisStore {
    /// Sends the request of an attempt.
    pub(in crate::store::redis) fn send_attempt(
        &self,
        way: Way,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        if self.background.keeps_mark() {
            return self.send_marked(way, request, responder);
        }
        let (what, reply, live) = match way {
            Way::ByItself(commands, live) => {
                request.receipt.sent_on(live.number);
                return Dispatch::ByItself(Ask::new(request, &live).by_itself(commands, live));
            }
            Way::InBatch(live) => match Ask::new(request, &live) {
                Ask::Plain(_, TellRemaining(true)) | Ask::Script(_, IsFirst(true)) => return Dispatch::Declined,
                Ask::Plain(acquire, _) => {
                    let take = What::Take(Take::new(&acquire.lock, &acquire.value, acquire.ttl));
                    (take, Reply::Taken(responder(), acquire.value), live)
                }
                Ask::Script(acquire, _) => {
                    let script = What::Script(Request::Acquire(acquire));
                    (script, Reply::Attempt(responder()), live)
                }
            },
        };
        request.receipt.sent_on(live.number);
        put(&live, Limited::Acquires, what, reply)
    }

    /// Sends the request of an attempt to a server that keeps a mark: in a batch only, and if the server was open
    /// when it was asked last.
    fn send_marked(
        &self,
        way: Way,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        let Way::InBatch(live) = way else {
            return Dispatch::Declined;
        };
        let (Ask::Plain(acquire, TellRemaining(false)), Some(mark)) =
            (Ask::new(request, &live), self.background.open_mark())
        else {
            return Dispatch::Declined;
        };
        request.receipt.sent_on(live.number);
        let take = Take::new(&acquire.lock, &acquire.value, acquire.ttl);
        let (responder, background) = (responder(), self.background.clone());
        let host = background.host().clone();
        let reply = Reply::Report(Report::new(move |both| {
            let Some(both) = both else { return };
            let attempt = match Marked::read(both, &acquire.value, &mark) {
                Ok(Marked::Found(answer)) => taken_once(&answer, &acquire.value),
                Err(error) => Err(error),
                Ok(Marked::NotFound(unmarked)) => {
                    let asks = async move {
                        let error = match background.live().await {
                            Ok(live) => background.unmarked(&live).await,
                            Err(error) => error,
                        };
                        responder.respond(Err(unmarked.error(error)));
                    };
                    // Without a task, the outcome is unknown, as the dropped responder says.
                    drop(host.spawn(asks));
                    return;
                }
            };
            responder.respond(attempt);
        }));
        put(&live, Limited::Acquires, What::Marked(take), reply)
    }

    /// Takes a lock, as soon as there is a connection.
    pub(in crate::store::redis) async fn attempt(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        // Boxed, so that usual requests have no room for it.
        let mark = if commands.keeps_mark() {
            Box::pin(commands.mark(&live, request.value)).await?
        } else {
            None
        };
        request.receipt.sent_at(live.number, commands.host().now());
        if let Some(mark) = mark {
            return Box::pin(self.acquire_marked(&commands, &live, request, &mark)).await;
        }
        Ask::new(request, &live).by_itself(commands, live).await
    }

    /// Sends a release whose answer is awaited.
    pub(in crate::store::redis) fn send_back(
        &self,
        way: Way,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Dispatch<Ownership> {
        // One for an unanswered acquire chooses its connection.
        if request.unanswered_on.is_some() || request.elsewhere {
            return Dispatch::Declined;
        }
        request.receipt.sent_on(way.connection().number);
        let (release, answered) = self.release_and_answer(request);
        match way {
            Way::ByItself(commands, live) => {
                Dispatch::ByItself(Box::pin(release_by_itself(commands, live, release, answered)))
            }
            Way::InBatch(live) => {
                let responder = responder();
                let reply = if answered.is_plain() {
                    Reply::Ownership(responder, answered.verdict)
                } else {
                    let release = release.clone();
                    Reply::Report(Report::new(move |answer| {
                        if let Some(answer) = answer {
                            responder.respond(answered.read(answer, &release));
                        }
                    }))
                };
                put(&live, Limited::Releases, What::Script(release), reply)
            }
        }
    }

    /// Releases a lock, as soon as there is a connection.
    pub(in crate::store::redis) async fn give_back(
        &self,
        request: &ReleaseRequest<'_>,
    ) -> Result<Ownership, StoreError> {
        let (commands, live) = self.commands.for_release(request).await?;
        request.receipt.sent_on(live.number);
        let (release, answered) = self.release_and_answer(request);
        release_by_itself(commands, live, release, answered).await
    }

    /// Puts a release into the batcher of the connection. Returns the report if there is no
    /// connection.
    pub(in crate::store::redis) fn give_back_in_order(
        &self,
        request: &ReleaseRequest<'_>,
        report: ReleaseReport,
    ) -> Result<(), ReleaseReport> {
        let live = self.commands.here().up();
        let Some((live, batcher)) = live.as_ref().and_then(|live| Some((live, live.batcher.as_ref()?))) else {
            return Err(report);
        };
        request.receipt.sent_on(live.number);
        let (release, mut answered) = self.release_and_answer(request);
        // Without waiting for the answer, as the call does not.
        if let Some(noting) = answered.noting.take() {
            noting.note(&release);
        }
        let what = What::Script(release.clone());
        let reply = Reply::Report(Report::new(move |answer| {
            report(match answer {
                Some(answer) => answered.read(answer, &release),
                None => Err(StoreError::unknown("the connection was given up")),
            });
        }));
        batcher.put(Limited::Releases, what, reply);
        Ok(())
    }

    /// Returns the request for a release, and what is done about its answer.
    fn release_and_answer(&self, request: &ReleaseRequest<'_>) -> (Request, Answered) {
        let left_free = |free: LeaveFree| (self.queue.clone(), Arc::clone(request.key), free.pause);
        let answered = Answered {
            verdict: if request.value.is_shared() {
                released
            } else {
                given_back
            },
            noting: self.commands.noting(),
            left_free: request.leave_free.map(left_free),
        };
        (Request::Release(self.release_of(request)), answered)
    }
}

// Not an `async fn`, whose future would hold the arguments twice.
#[allow(clippy::manual_async_fn)]
fn release_by_itself(
    commands: ConnectionSlot,
    live: Arc<Connection>,
    release: Request,
    answered: Answered,
) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
    async move {
        let answer = commands.run(&live, &release).await;
        answered.read(answer, &release)
    }
}

/// What is done about the answer to a release.
struct Answered {
    verdict: fn(&Value) -> Result<Ownership, StoreError>,
    noting: Option<Noting>,
    /// The queue that looks at the lock after the pause, if the release leaves it free.
    left_free: Option<(Queue, Arc<str>, Duration)>,
}

impl Answered {
    /// Returns `true` if only the verdict is of interest.
    fn is_plain(&self) -> bool {
        self.noting.is_none() && self.left_free.is_none()
    }

    fn read(self, answer: Result<Value, RedisError>, release: &Request) -> Result<Ownership, StoreError> {
        let answer = answer.map_err(|error| sort(&error, true))?;
        // Not before: a call that learns from a repeated release that its lock is gone takes it for lost.
        if let Some(noting) = self.noting {
            noting.note(release);
        }
        if answer == LEFT_FREE
            && let Some((queue, lock, pause)) = self.left_free
        {
            queue.look_later(&lock, pause);
        }
        (self.verdict)(&answer)
    }
}

/// Puts a request into the batcher of a connection.
fn put<T>(live: &Connection, kind: Limited, what: What, reply: Reply) -> Dispatch<T> {
    match &live.batcher {
        Some(batcher) => {
            batcher.put(kind, what, reply);
            Dispatch::InBatch
        }
        // Never happens: only a connection with a batcher is a way into a batch.
        None => Dispatch::Declined,
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, release_by_itself};

    /// The largest piece that a thread keeps for its next allocation of that size, with glibc. Larger ones
    /// are behind a lock that threads share.
    const KEPT: usize = 1032;

    fn size_of_future<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_futures_of_usual_requests_fit_the_threads_cache_of_the_allocator() {
        let sizes = [
            size_of_future(Ask::plain),
            size_of_future(Ask::script),
            size_of_future(release_by_itself),
        ];
        assert!(sizes.iter().all(|size| *size <= KEPT), "{sizes:?} bytes");
    }
}
