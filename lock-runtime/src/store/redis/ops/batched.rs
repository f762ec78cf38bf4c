//! Requests in any mode that go into the batcher of this runtime's connection, and whose answers no future of the
//! store waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;

use crate::store::redis::RedisStore;
use crate::store::redis::connection::failure::sort;
use crate::store::redis::connection::{Acquire, AcquireMode, Release, Reply, Report, Request, Take, Terms, What};
use crate::store::redis::reply::{LEFT_FREE, given_back, millis, released};
use crate::store::{AcquireRequest, Attempt, Limited, Ownership, ReleaseReport, ReleaseRequest, Responder, StoreError};

impl RedisStore {
    /// Puts an attempt into the batcher of the connection, if that is about to send many commands.
    pub(in crate::store::redis) fn put_acquire(
        &self,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Option<()> {
        if self.background.keeps_mark() {
            return None;
        }
        let live = self.commands.batching(Limited::Acquires)?;
        let batcher = live.batcher.as_ref()?;
        let (lock, value, ttl) = (request.key, request.value, millis(request.ttl));
        let mode = if !value.is_shared() {
            AcquireMode::Exclusive { fair: request.fair }
        } else if live.allows_shared.load(Ordering::Relaxed) {
            AcquireMode::Shared { all_commands: false }
        } else {
            return None;
        };
        let is_plain = live.server.is_7 && !(request.fence || request.fair || value.is_shared());
        let (what, reply) = if !is_plain {
            let acquire = Acquire {
                lock: Arc::clone(lock),
                value: Arc::clone(value.text()),
                ttl,
                terms: Terms {
                    fence: request.fence,
                    mode,
                },
            };
            (What::Script(Request::Acquire(acquire)), Reply::Attempt(responder()))
        } else if request.tell_remaining {
            return None;
        } else {
            let taken = Reply::Taken(responder(), Arc::clone(value.text()));
            (What::Take(Take::new(lock, value, ttl)), taken)
        };
        request.receipt.sent_on(live.number);
        batcher.put(Limited::Acquires, what, reply);
        Some(())
    }

    /// Puts a release whose answer is awaited into the batcher of the connection, likewise.
    pub(in crate::store::redis) fn put_release(
        &self,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Option<()> {
        // One that may leave the lock free looks at the answer, and one for an unanswered acquire chooses its
        // connection.
        if request.leave_free.is_some() || request.unanswered_on.is_some() || request.elsewhere {
            return None;
        }
        let live = self.commands.batching(Limited::Releases)?;
        let batcher = live.batcher.as_ref()?;
        request.receipt.sent_on(live.number);
        let (release, responder) = (self.release_of(request), responder());
        let verdict = verdict_of(&release);
        let reply = match self.commands.noting(&release) {
            None => Reply::Ownership(responder, verdict),
            Some(note) => Reply::Report(Report::new(move |answer| {
                let Some(answer) = answer else { return };
                let owned = answer.map_err(|error| sort(&error, true));
                let owned = owned.and_then(|answer| verdict(&answer));
                if owned.is_ok() {
                    note();
                }
                responder.respond(owned);
            })),
        };
        batcher.put(Limited::Releases, What::Script(Request::Release(release)), reply);
        Some(())
    }

    /// Puts a release into the batcher of the connection. Returns the report if there is no
    /// connection.
    pub(in crate::store::redis) fn send_release(
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
