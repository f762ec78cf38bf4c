//! Requests in any mode that are sent at once: into the batcher of this runtime's connection, where no future of the
//! store waits for their answers, or each by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{RedisError, Value};

use crate::store::redis::RedisStore;
use crate::store::redis::connection::failure::sort;
use crate::store::redis::connection::{
    Acquire, AcquireMode, Connection, Release, Reply, Report, Request, Take, Terms, Way, What, taken_first,
};
use crate::store::redis::reply::{LEFT_FREE, attempt, given_back, millis, released};
use crate::store::{
    AcquireRequest, Attempt, Dispatch, Limited, Ownership, ReleaseReport, ReleaseRequest, Responder, StoreError,
};

impl RedisStore {
    /// Sends the first request of an attempt.
    pub(in crate::store::redis) fn send_attempt(
        &self,
        way: Way,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        let (lock, value, ttl, live) = (request.key, request.value, millis(request.ttl), way.connection());
        let mode = if !value.is_shared() {
            AcquireMode::Exclusive { fair: request.fair }
        } else if live.allows_shared.load(Ordering::Relaxed) {
            AcquireMode::Shared { all_commands: false }
        } else {
            return Dispatch::Declined;
        };
        let is_plain = live.server.is_7 && !(request.fence || request.fair || value.is_shared());
        if self.background.keeps_mark() || is_plain && request.tell_remaining {
            return Dispatch::Declined;
        }
        request.receipt.sent_on(live.number);
        if is_plain {
            let take = Take::new(lock, value, ttl);
            let value = Arc::clone(value.text());
            return match way {
                Way::InBatch(live) => {
                    let taken = Reply::Taken(responder(), value);
                    put(&live, Limited::Acquires, What::Take(take), taken)
                }
                Way::ByItself(commands, live) => Dispatch::ByItself(Box::pin(async move {
                    taken_first(commands.take(&live, take).await, &value)
                })),
            };
        }
        let acquire = Acquire {
            lock: Arc::clone(lock),
            value: Arc::clone(value.text()),
            ttl,
            terms: Terms {
                fence: request.fence,
                mode,
            },
        };
        match way {
            Way::InBatch(live) => {
                let attempt = Reply::Attempt(responder());
                put(
                    &live,
                    Limited::Acquires,
                    What::Script(Request::Acquire(acquire)),
                    attempt,
                )
            }
            Way::ByItself(commands, live) => Dispatch::ByItself(Box::pin(async move {
                let answer = commands.run(&live, Request::Acquire(acquire)).await;
                attempt(&answer.map_err(|error| sort(&error, true))?)
            })),
        }
    }

    /// Sends a release whose answer is awaited.
    pub(in crate::store::redis) fn send_back(
        &self,
        way: Way,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Dispatch<Ownership> {
        // One that may leave the lock free looks at the answer, and one for an unanswered acquire chooses its
        // connection.
        if request.leave_free.is_some() || request.unanswered_on.is_some() || request.elsewhere {
            return Dispatch::Declined;
        }
        request.receipt.sent_on(way.connection().number);
        let release = self.release_of(request);
        let verdict = verdict_of(&release);
        let note = self.commands.noting(&release);
        let is_noted = note.is_some();
        let read = move |answer: Result<Value, RedisError>| {
            let owned = verdict(&answer.map_err(|error| sort(&error, true))?)?;
            // Not before: a call that learns from a repeated release that its lock is gone takes it for lost.
            if let Some(note) = note {
                note();
            }
            Ok(owned)
        };
        match way {
            Way::InBatch(live) => {
                let responder = responder();
                let reply = if is_noted {
                    Reply::Report(Report::new(move |answer| {
                        if let Some(answer) = answer {
                            responder.respond(read(answer));
                        }
                    }))
                } else {
                    Reply::Ownership(responder, verdict)
                };
                put(&live, Limited::Releases, What::Script(Request::Release(release)), reply)
            }
            Way::ByItself(commands, live) => Dispatch::ByItself(Box::pin(async move {
                read(commands.run(&live, Request::Release(release)).await)
            })),
        }
    }

    /// Puts a release into the batcher of the connection. Returns the report if there is no
    /// connection.
    pub(in crate::store::redis) fn release_through_the_batcher(
        &self,
        request: &ReleaseRequest<'_>,
        report: ReleaseReport,
    ) -> Result<(), ReleaseReport> {
        let live = self.commands.here().up();
        let Some((live, batcher)) = live.as_ref().and_then(|live| Some((live, live.batcher.as_ref()?))) else {
            return Err(report);
        };
        request.receipt.sent_on(live.number);
        let release = self.release_of(request);
        let verdict = verdict_of(&release);
        self.commands.note_released(|| release.clone());
        let queue = self.queue.clone();
        let (key, leave_free) = (Arc::clone(request.key), request.leave_free);
        let reply = Reply::Report(Report::new(move |answer| {
            report(match answer {
                Some(Ok(answer)) => {
                    if answer == LEFT_FREE
                        && let Some(free) = leave_free
                    {
                        queue.look_later(&key, free.pause);
                    }
                    verdict(&answer)
                }
                Some(Err(error)) => Err(sort(&error, true)),
                None => Err(StoreError::unknown("the connection was given up")),
            });
        }));
        batcher.put(Limited::Releases, What::Script(Request::Release(release)), reply);
        Ok(())
    }
}

/// Returns the function that reads the answer to a release.
fn verdict_of(release: &Release) -> fn(&Value) -> Result<Ownership, StoreError> {
    if release.is_shared { released } else { given_back }
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
