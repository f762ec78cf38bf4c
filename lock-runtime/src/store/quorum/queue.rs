//! Waits for a lock in the queue of one master, and collects the other votes when the lock comes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Quorum;
use super::attempt::{Wanted, Whom};
use super::count::{Count, Vote};
use crate::store::limits::claim;
use crate::store::{QueueOutcome, QueueRequest, StoreError};

/// The interval at which the masters are asked whether they answer, while calls wait at one of them.
const ROLL_CALL: Duration = Duration::from_millis(500);
/// The longest pauses between the first rounds, and from then on, in ms.
const PAUSES: [u64; 5] = [1, 2, 4, 8, 16];
const LONGEST_PAUSE: u64 = 16;

/// Counts a waiting call.
struct Waiting<'a>(&'a Quorum);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Quorum {
    /// Returns the pause before a round. The full jitter lets one of several calls that ask at the same time
    /// be alone.
    pub(super) fn pause(&self, round: u32) -> Duration {
        let longest = PAUSES.get(usize::try_from(round).unwrap_or(usize::MAX)).copied();
        Duration::from_millis(longest.unwrap_or(LONGEST_PAUSE)).mul_f64(self.host.fraction())
    }

    /// Returns `true` if a majority of the masters is open.
    pub(super) fn sees_majority(&self) -> bool {
        self.masters.iter().filter(|master| master.is_open()).count() >= self.majority()
    }

    /// Returns the master in whose queue a call waits: the first in order that was busy, or the first.
    fn queue_of(&self, key: &str) -> Option<usize> {
        let is_open = |at: &usize| self.masters.get(*at).is_some_and(|master| master.is_open());
        let busy = self.busy_at(key).filter(is_open);
        busy.or_else(|| (0..self.masters.len()).find(is_open))
    }

    /// Waits until the master at `at` is not open any more, or there is no majority.
    async fn left_alone(&self, at: usize) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let is_open = self.masters.get(at).is_some_and(|master| master.is_open());
            if !is_open || !self.sees_majority() {
                return;
            }
            changed.await;
        }
    }

    pub(super) async fn stand(self: &Arc<Self>, request: &QueueRequest<'_>) -> Result<QueueOutcome, StoreError> {
        // Where half of the processes see one master only, they would hand the lock to each other there for
        // ever.
        let at = self.queue_of(request.key).filter(|_| self.sees_majority());
        let Some(at) = at else {
            return Err(self.too_few(None));
        };
        let Some(master) = self.masters.get(at) else {
            return Err(self.too_few(None));
        };
        let key = Arc::clone(request.key);
        let now = self.now();
        let ballot = self
            .ballots
            .enter(&[key], request.value, self.masters.len(), now, request.ttl);
        ballot.stand_at(at);
        self.call_the_roll();
        let _waiting = Waiting(self);
        let outcome = tokio::select! {
            biased;
            outcome = master.access.store.queue(request) => outcome,
            () = self.left_alone(at) => {
                if self.sees_majority() {
                    // The place is given up by the runtime, and the next one is at another master.
                    return Ok(QueueOutcome::Lapsed);
                }
                return Err(self.too_few(None).into_unknown());
            }
        };
        let (fence, since) = match outcome {
            Ok(QueueOutcome::Granted { fence, since }) => (fence, since),
            Err(error) => {
                self.has_failed(at, &error);
                return Err(error);
            }
            other => return other,
        };
        ballot.remember(self.now(), request.ttl);
        // From here on the lock thread may take the lock back, if the call is not polled.
        request.receipt.taking(true);
        let timer = self.timer();
        let until = request.clock.now().after(claim(request.ttl).min(request.ttl / 2));
        for round in 0.. {
            if round > 0 {
                ballot.begin_round(round);
            }
            let asked = request.clock.now();
            let wanted = Wanted {
                ttl: request.ttl,
                fence: request.fence,
                tell_remaining: false,
                receipt: request.receipt,
            };
            let (counted, mut tally, late) = self.ask_masters(&ballot, wanted, Whom::AllBut(at)).await;
            if counted == Count::Won {
                ballot.keep(late);
                self.send_late(&ballot, request.ttl);
                let others = tally.votes.iter().enumerate();
                let others = others
                    .filter(|(other, vote)| *other != at && **vote == Vote::Granted)
                    .count();
                // The deadline is that of the majority-th latest vote.
                let since = if others >= self.majority() { asked } else { since };
                let fence = if request.fence {
                    tally.add_fence(at, fence);
                    Some(self.settle_fence(&ballot, &tally).await?)
                } else {
                    None
                };
                return Ok(QueueOutcome::Granted { fence, since });
            }
            self.give_back(&ballot, &tally, late, Some(at), request.ttl).await;
            if let Count::Busy(earlier) = counted
                && earlier < at
            {
                // The call with the vote of the earlier master keeps asking for that of this one: if both kept
                // what they have, neither would get the lock.
                self.note_busy(request.key, earlier);
                break;
            }
            if ballot.is_over() || request.clock.now() >= until {
                break;
            }
            if !self.sees_majority() {
                return Err(self.too_few(Some(&mut tally)).into_unknown());
            }
            self.host.sleep(timer, self.pause(round)).await;
        }
        // The runtime gives the vote of the first master back.
        Ok(QueueOutcome::Lapsed)
    }

    /// Has the masters asked whether they answer, as long as calls wait: where no request is sent, nothing
    /// else tells that a master does not answer any more.
    fn call_the_roll(self: &Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if self.is_immediate || self.is_calling.swap(true, Ordering::AcqRel) {
            return;
        }
        let (quorum, host, timer) = (Arc::downgrade(self), self.host.clone(), self.timer());
        let calls = async move {
            loop {
                host.sleep(timer, ROLL_CALL).await;
                let Some(quorum) = quorum.upgrade() else { return };
                if quorum.waiting.load(Ordering::Acquire) == 0 {
                    quorum.is_calling.store(false, Ordering::Release);
                    // A call may have come in between.
                    if quorum.waiting.load(Ordering::Acquire) == 0 || quorum.is_calling.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                for at in 0..quorum.masters.len() {
                    quorum.suspect(at);
                }
            }
        };
        if !self.host.spawn_by(timer, calls) {
            self.is_calling.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::QuorumStore;
    use super::*;
    use crate::host::{Clock, Host, TokioClock};
    use crate::store::limits::SHORTEST_CLAIM;
    use crate::store::memory::MemoryStore;
    use crate::store::{AcquireRequest, ContentionSlot, HolderValue, LockStore, Receipt, ReleaseRequest};

    /// Two calls that have been handed different masters each have a vote that the other one needs.
    #[tokio::test(start_paused = true)]
    async fn a_call_gives_its_claim_up_where_an_earlier_master_is_busy() -> Result<(), StoreError> {
        let host = Host::process();
        let stores: [Arc<dyn LockStore>; 3] = std::array::from_fn(|_| Arc::new(MemoryStore::on(&host)) as _);
        let masters = stores.iter().enumerate();
        let masters = masters.map(|(at, store)| (format!("master {at}"), Arc::clone(store)));
        let quorum = QuorumStore::new(&host, masters.collect(), Duration::from_secs(1))?;
        let (key, ttl) = (Arc::<str>::from("k"), Duration::from_secs(30));
        let (value, other) = (HolderValue::of("value"), HolderValue::of("other"));
        for store in &stores {
            let request = AcquireRequest {
                key: &key,
                value: &other,
                ttl,
                fence: false,
                tell_remaining: false,
                fair: false,
                receipt: &Receipt::default(),
            };
            store.acquire(&request).await?;
        }
        quorum.0.note_busy(&key, 1);

        let began = tokio::time::Instant::now();
        let (receipt, contention) = (Receipt::default(), ContentionSlot::default());
        let request = QueueRequest {
            key: &key,
            value: &value,
            ttl,
            fence: false,
            clock: &(Arc::new(TokioClock) as Arc<dyn Clock>),
            receipt: &receipt,
            contention: &contention,
        };
        let receipt = Receipt::default();
        let release = ReleaseRequest::plain(&key, &other, &receipt);
        let (outcome, released) = tokio::join!(quorum.queue(&request), stores[1].release(&release));
        released?;
        assert!(matches!(outcome?, QueueOutcome::Lapsed));
        assert!(began.elapsed() < SHORTEST_CLAIM, "{:?}", began.elapsed());
        // The next place is at the first master.
        assert_eq!(quorum.0.queue_of(&key), Some(0));
        Ok(())
    }
}
