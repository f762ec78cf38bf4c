//! Takes several locks at once. Deadlock-free: a call waits holding nothing, or only keys that come
//! before the one it waits for.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use crate::acquire::Acquisition;
use crate::acquire::attempt::{Progress, Queuing, Step};
use crate::acquire::callers::Asking;
use crate::acquire::local_queue::Contention;
use crate::acquire::unconfirmed::UnconfirmedAcquire;
use crate::error::LockError;
use crate::hold::Grant;
use crate::hold::upkeep::Stake;
use crate::store::limits::claim;
use crate::store::{AcquireAllRequest, AttemptAll, StoreError};

/// The number of times that a call releases everything and waits for the busy key alone. After that
/// it keeps the keys before that one, so that it gets ahead however many other calls want some of
/// the keys.
const ALL_OR_NOTHING: u32 = 1;

/// The locks that a call for several keys has so far.
#[derive(Default)]
struct Part<'a> {
    /// The keys before the one that it waits for.
    kept: Option<Kept<'a>>,
    /// The key that it waits for, once the store has handed it over.
    handed: Option<Kept<'a>>,
}

/// Keys that are kept until the next attempt; the lock thread releases them if the call is no
/// longer polled.
struct Kept<'a> {
    pending: UnconfirmedAcquire<'a>,
    asking: Asking,
}

impl Part<'_> {
    /// Disarms the clean-up: everything was taken over by another attempt's value, or released.
    fn disarm(self) {
        if let Some(kept) = self.kept {
            kept.pending.disarm();
        }
        // Nothing has taken over a grant that the lock thread had taken back before it came.
        if let Some(handed) = self.handed
            && handed.asking.caller.has_claimed()
        {
            handed.pending.disarm();
        }
    }

    /// Polls a future as part of the call that owns these keys.
    async fn attend<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            for kept in self.kept.iter().chain(&self.handed) {
                kept.asking.caller.is_polled(cx);
            }
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// The result of an attempt.
enum Asked<'a> {
    Won(Grant),
    /// The call has to wait for the key at this index, holding the given keys.
    WaitFor(usize, Option<Kept<'a>>),
    /// The call tries again after a pause.
    Pause,
}

impl Acquisition {
    /// Asks the store until it grants all keys or the time is up.
    pub(super) async fn take_all(&self, seen: &mut Progress) -> Result<Grant, LockError> {
        let failed = |source| LockError::Store {
            key: self.name(),
            began: false,
            source,
        };
        let keys: Vec<_> = self.keys().iter().cloned().collect();
        let mut part = Part::default();
        for tries in 1.. {
            if self.is_over(seen) {
                break;
            }
            // A return of the store during the attempt counts.
            let back = self.manager.backend.access.back.notified();
            let asked = part
                .attend(self.ask_for_all(&keys, &part, tries > ALL_OR_NOTHING, seen))
                .await;
            match asked.map_err(failed)? {
                Asked::Won(grant) => {
                    part.disarm();
                    return Ok(grant);
                }
                Asked::WaitFor(at, kept) => {
                    part.disarm();
                    part = Part { kept, handed: None };
                    let Some(key) = keys.get(at).filter(|_| !self.is_over(seen)) else {
                        break;
                    };
                    let asking = self.asking(None);
                    let queuing = self.queue_for(key, false, None, &asking.caller, seen);
                    let queuing = part.attend(asking.caller.attend(pin!(queuing))).await;
                    match queuing.map_err(failed)? {
                        Queuing::Granted { pending, .. } => {
                            part.handed = Some(Kept { pending, asking });
                            continue;
                        }
                        Queuing::Over(Step::Queue) => continue,
                        Queuing::Over(_) => {}
                    }
                }
                Asked::Pause => part = Part::default(),
            }
            let Some(pause) = self.pause(seen) else { break };
            part.attend(self.rest(pause, back)).await;
        }
        Err(self.give_up(seen))
    }

    /// Makes one attempt. The keys that the call has so far pass to the attempt's value, or are
    /// released with it.
    async fn ask_for_all<'a>(
        &'a self,
        keys: &[Arc<str>],
        part: &Part<'_>,
        keeps: bool,
        seen: &mut Progress,
    ) -> Result<Asked<'a>, StoreError> {
        if !self.is_ready(seen).await? {
            return Ok(Asked::Pause);
        }
        seen.attempts += 1;
        // Uses the value of the key that the store handed over for all keys, unless the lock thread
        // has taken that grant back, or will.
        let handed = part.handed.as_ref().filter(|handed| handed.asking.caller.claim());
        let value = match handed {
            Some(handed) => handed.pending.value().clone(),
            None => self.value()?,
        };
        let ttl = self.options.time_to_live();
        // No longer than the call may wait, since nobody gives them back if its process dies.
        let keep = keeps.then(|| ttl.min(self.left(self.manager.now()).saturating_add(claim(ttl))));
        let asking = self.asking(None);
        let stake = Stake::new(self.keys(), value, ttl, None);
        let pending = UnconfirmedAcquire::arm(&self.manager.backend, &asking.caller, stake);
        if let Some(connection) = handed.and_then(|handed| handed.pending.receipt().connection()) {
            // The store already has the value, under the key that was handed over, so the receipt
            // names a connection before the attempt is sent.
            pending.receipt().sent_on(connection);
        }
        let sent = self.manager.now();
        let answer = {
            let request = AcquireAllRequest {
                keys,
                value: pending.value(),
                former: part.kept.as_ref().map(|kept| kept.pending.value()),
                keep,
                ttl,
                fence: self.options.fencing,
                receipt: pending.receipt(),
            };
            let asked = self.manager.store().acquire_all(&request);
            let answer = self
                .manager
                .backend
                .access
                .timeout(self.timer, self.budget(sent), asked);
            asking.caller.attend(pin!(answer)).await
        };
        let step = match answer {
            Some(Ok(AttemptAll::Granted { fence })) => {
                let now = self.note_round_trip(&pending, sent);
                self.granted(seen, pending, (sent, now), fence)
            }
            Some(Ok(AttemptAll::Busy { at, holder, remaining })) => {
                self.note_round_trip(&pending, sent);
                seen.contention = Contention {
                    holder,
                    remaining,
                    error: None,
                };
                let kept = if keeps {
                    pending.receipt().answered();
                    // The lock thread treats the kept keys like a grant that may still arrive: it
                    // releases them if the call is no longer polled.
                    pending.receipt().taking(true);
                    Some(Kept { pending, asking })
                } else {
                    pending.disarm();
                    None
                };
                return Ok(Asked::WaitFor(at, kept));
            }
            Some(Err(error)) => Self::failed(seen, pending, error)?,
            None => {
                self.unanswered(seen, &pending, sent);
                Step::Pause
            }
        };
        Ok(match step {
            Step::Won(grant) => Asked::Won(grant),
            Step::Queue | Step::Pause => Asked::Pause,
        })
    }
}
