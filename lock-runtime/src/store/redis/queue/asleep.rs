//! Waiters that are not polled. The server hands a lock to each of them in turn, and keeps it for as long as
//! a claim lasts: many in one blocked runtime would let it pass one after the other. So once a waiter does
//! not take what it was handed, the others in its queue are asked for a sign of life, and those that give
//! none lose their places together.

use std::sync::Arc;
use std::time::Duration;

use super::Queue;
use super::ticket::{LocalWaiters, Ticket, Word};
use crate::host::{Moment, Timer};
use crate::store::{Limited, StoreError, within};

/// The time after which a waiter that has not taken what it was handed has the others asked.
const SUSPECTS: Duration = Duration::from_millis(300);
/// The time that the others have to give the sign. It ends before the longest claim does.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The maximum number of waiters that one command takes out of a queue.
const TOGETHER: usize = 500;

/// A waiter that has a notice that it may have been handed the lock.
pub(super) struct Handed {
    ticket: Arc<Ticket>,
    since: Moment,
    /// The time at which the other waiters were asked for a sign of life.
    asked: Option<Moment>,
}

impl Queue {
    /// Notifies a waiter that the server may have handed the lock to it. Returns `false` if it has such a
    /// notice that it has not received yet.
    pub(super) fn hint(&self, ticket: &Arc<Ticket>) -> bool {
        let is_news = ticket.tell(Word::Hint);
        if is_news {
            let handed = Handed {
                ticket: Arc::clone(ticket),
                since: self.host().now(),
                asked: None,
            };
            self.waiting().handed.push(handed);
        }
        is_news
    }

    /// Asks waiters for a sign of life, and takes those that owe it out of their queues.
    pub(super) fn pass_over(&self, now: Moment) {
        let (mut asked, mut passed) = (Vec::new(), Vec::new());
        let mut waiting = self.waiting();
        let mut handed = std::mem::take(&mut waiting.handed);
        handed.retain_mut(|handed| {
            let Handed { ticket, .. } = &*handed;
            let waiters = waiting.waiters_by_queue.get(&ticket.queue);
            let still_waits = |waiters: &&LocalWaiters| waiters.tickets.contains_key(&ticket.number);
            let Some(waiters) = waiters.filter(still_waits).filter(|_| ticket.has_a_hint()) else {
                return false;
            };
            let others = waiters.tickets.values();
            match handed.asked {
                None if now.since(handed.since) >= SUSPECTS => {
                    handed.asked = Some(now);
                    asked.extend(others.filter(|ticket| ticket.ask(now)).cloned());
                    true
                }
                Some(at) if now.since(at) >= ANSWERS_WITHIN => {
                    let asleep = |ticket: &&Arc<Ticket>| ticket.pass_over(now, ANSWERS_WITHIN);
                    let asleep: Vec<_> = others.filter(asleep).map(|ticket| ticket.member.clone()).collect();
                    passed.push((Arc::clone(&waiters.key), Arc::clone(&handed.ticket.queue), asleep));
                    false
                }
                _ => true,
            }
        });
        waiting.handed = handed;
        drop(waiting);
        // Woken while nothing is locked: a waker may act at once.
        for ticket in asked {
            ticket.wake();
        }
        for (key, queue, members) in passed {
            for members in members.chunks(TOGETHER) {
                self.take_out(&key, &queue, members);
            }
        }
    }

    /// Takes waiters out of a queue, by a command that does not touch the lock: what has been handed to one
    /// of them meanwhile stays so until its claim ends.
    fn take_out(&self, key: &Arc<str>, queue: &Arc<str>, members: &[String]) {
        let mut remove = redis::cmd("ZREM");
        remove.arg(&**queue).arg(members);
        let (key, count, this) = (Arc::clone(key), members.len(), self.clone());
        let removed = async move {
            let background = &this.0.background;
            let live = background.live().await?;
            let answer = background.call(&live, Limited::Releases, &key, remove);
            let answer = async { answer.await.map_err(|error| super::failure::sort(&error, true)) };
            within(this.host(), Timer::LockThread, this.0.response_timeout, answer).await
        };
        // If that fails, the claims of these waiters end one after the other.
        drop(self.host().spawn(async move {
            let removed: Result<_, StoreError> = removed.await;
            match removed {
                Ok(_) => tracing::debug!(count, "calls that are not polled have lost their places in a queue"),
                Err(error) => tracing::debug!(%error, count, "calls that are not polled keep their places in a queue"),
            }
        }));
    }
}
