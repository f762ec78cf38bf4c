//! Taking several locks at once.
//!
//! Nobody waits in a circle: a call either holds nothing while it waits, or only keys that come before the one it waits for.

use crate::acquire::Acquisition;
use crate::contend::{Queuing, Seen, Step};
use crate::error::LockError;
use crate::held::Grant;
use crate::line::News;
use crate::releaser::Pending;
use crate::store::{AcquireAllRequest, AttemptAll, StoreError};

/// How often a call gives everything back and waits for the busy key alone. After that it keeps what comes before that key, so
/// that it gets ahead however many others want one key or another.
const ALL_OR_NOTHING: u32 = 1;

/// What a call for several locks has of them.
#[derive(Default)]
struct Part {
    /// The keys before the one it waits for.
    kept: Option<Pending>,
    /// That key, once it is handed over.
    handed: Option<Pending>,
}

impl Part {
    /// All of it has gone into another attempt's value, or back.
    fn disarm(self) {
        for pending in self.kept.into_iter().chain(self.handed) {
            drop(pending.disarm());
        }
    }
}

/// What has come of an attempt.
enum Asked {
    Won(Grant),
    /// This key is to be waited for, holding this.
    WaitFor(usize, Part),
    /// Try again after a pause.
    Pause,
}

impl Acquisition {
    /// Asks the store until it grants all keys or the time is up.
    pub(crate) async fn take_all(&self, seen: &mut Seen) -> Result<Grant, LockError> {
        let failed = |source| LockError::Store {
            key: self.name(),
            source,
        };
        let keys: Vec<_> = self.keys().iter().cloned().collect();
        let mut part = Part::default();
        for tries in 1.. {
            if self.is_over(seen) {
                break;
            }
            let keep = tries > ALL_OR_NOTHING;
            match self.ask_for_all(&keys, part, keep, seen).await.map_err(failed)? {
                Asked::Won(grant) => return Ok(grant),
                Asked::WaitFor(at, kept) => {
                    part = kept;
                    let Some(key) = keys.get(at).filter(|_| !self.is_over(seen)) else {
                        break;
                    };
                    match self.queue_for(key, false, seen).await.map_err(failed)? {
                        Queuing::Handed(handed) => {
                            part.handed = Some(handed.pending);
                            continue;
                        }
                        Queuing::Over(Step::Queue) => continue,
                        Queuing::Over(_) => {}
                    }
                }
                Asked::Pause => part = Part::default(),
            }
            let Some(pause) = self.pause(seen) else { break };
            self.rest(pause).await;
        }
        Err(self.give_up(seen))
    }

    /// One attempt. What the call has so far gives way to the attempt's value, or is given back with it.
    async fn ask_for_all(
        &self,
        keys: &[std::sync::Arc<str>],
        part: Part,
        keep: bool,
        seen: &mut Seen,
    ) -> Result<Asked, StoreError> {
        seen.attempts += 1;
        // The value that stands under the key handed over goes under all.
        let value = match &part.handed {
            Some(handed) => handed.value().clone(),
            None => self.value()?,
        };
        let lease = self.wanted.terms.time_to_live();
        let pending = Pending::arm(&self.manager, &self.key, value, lease, None).and(&self.others);
        let sent = self.manager.clock.now();
        let answer = {
            let request = AcquireAllRequest {
                keys,
                value: pending.value(),
                former: part.kept.as_ref().map(|kept| &**kept.value()),
                keep,
                lease,
                fence: self.wanted.fencing,
                receipt: pending.receipt(),
            };
            let asked = self.manager.store.acquire_all(&request);
            self.timer.timeout(self.budget(sent), asked).await
        };
        let step = match answer {
            Some(Ok(AttemptAll::Granted { fence })) => {
                part.disarm();
                self.granted(seen, pending, sent, self.wanted.terms.lease, fence)
            }
            Some(Ok(AttemptAll::Busy { at, holder, remaining })) => {
                part.disarm();
                seen.news = News {
                    holder,
                    remaining,
                    error: None,
                };
                let mut part = Part::default();
                if keep {
                    pending.receipt().answered();
                    part.kept = Some(pending);
                } else {
                    drop(pending.disarm());
                }
                return Ok(Asked::WaitFor(at, part));
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
