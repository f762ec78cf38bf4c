//! Waiters that are not polled. The server hands a lock to each of them in turn, and keeps it for as long as
//! a claim lasts: many in one blocked runtime would let it pass one after the other. So once a waiter does
//! not take what it was handed, the others in its queue are asked for a sign of life, and those that give
//! none lose their places together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Queue;
use super::ticket::{Notice, Ticket, Waiting};
use crate::host::{Moment, Timer};
use crate::store::{Limited, StoreError, within};

/// The time after which a waiter that has not taken what it was handed has the others asked. A look that comes
/// so late blames nobody: the whole process may have stood still.
pub(super) const SUSPECTS: Duration = Duration::from_millis(300);
/// The time that the others have to give the sign. It ends before the longest claim does.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The maximum number of waiters that one command takes out of a queue.
const TOGETHER: usize = 500;

/// A waiter that has a notice that it may have been handed the lock, and the time of the notice.
pub(super) struct Handed(Arc<Ticket>, Moment);

/// The waiters that a look has found.
#[derive(Default)]
struct Found {
    /// Those to wake, for their sign of life.
    asked: Vec<Arc<Ticket>>,
    /// For each queue its lock, its key, and the members that have lost their places.
    passed: Vec<(Arc<str>, Arc<str>, Vec<String>)>,
}

impl Waiting {
    /// Asks waiters for a sign of life, and ends the places of those that owe it. Walks each queue once at most,
    /// since thousands may wait in it, on the thread that renews locks.
    fn pass_over(&mut self, now: Moment, is_late: bool) -> Found {
        let mut found = Found::default();
        let (queues, mut suspects) = (&mut self.waiters_by_queue, BTreeSet::new());
        self.handed.retain(|Handed(ticket, since)| {
            let waiters = queues.get(&ticket.queue);
            let waits =
                waiters.is_some_and(|waiters| waiters.tickets.contains_key(&ticket.number)) && ticket.has_a_hint();
            if waits && now.since(*since) >= SUSPECTS {
                suspects.insert(Arc::clone(&ticket.queue));
            }
            waits
        });
        suspects.retain(|queue| {
            let Some(waiters) = queues.get_mut(queue) else {
                return false;
            };
            let tickets = waiters.tickets.values();
            match waiters.asked {
                Some(at) if !is_late && now.since(at) < ANSWERS_WITHIN => false,
                Some(_) if !is_late => {
                    let asleep = tickets.filter(|ticket| ticket.pass_over(now, ANSWERS_WITHIN));
                    let asleep = asleep.map(|ticket| ticket.member.clone()).collect();
                    found.passed.push((Arc::clone(&waiters.key), Arc::clone(queue), asleep));
                    waiters.asked = None;
                    true
                }
                _ => {
                    found.asked.extend(tickets.filter(|ticket| ticket.ask(now)).cloned());
                    waiters.asked = Some(now);
                    false
                }
            }
        });
        self.handed
            .retain(|Handed(ticket, _)| !suspects.contains(&ticket.queue));
        found
    }
}

impl Queue {
    /// Notifies a waiter that the server may have handed the lock to it. Returns `false` if it has such a
    /// notice that it has not received yet.
    pub(super) fn hint(&self, ticket: &Arc<Ticket>) -> bool {
        let is_new = ticket.notify(Notice::Hint);
        if is_new {
            let handed = Handed(Arc::clone(ticket), self.host().now());
            self.waiting().handed.push(handed);
        }
        is_new
    }

    /// Asks waiters for a sign of life, and takes those that owe it out of their queues. `is_late` is `true` if
    /// the last look was long ago.
    pub(super) fn pass_over(&self, now: Moment, is_late: bool) {
        let found = self.waiting().pass_over(now, is_late);
        // Woken while nothing is locked: a waker may act at once.
        for ticket in found.asked {
            ticket.wake();
        }
        for (key, queue, members) in found.passed {
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::super::ticket::LocalWaiters;
    use super::*;
    use crate::store::{ContentionSlot, HolderValue};

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000_000).after(Duration::from_millis(millis))
    }

    fn poll(ticket: &Ticket) -> bool {
        let contention = ContentionSlot::default();
        let notice = pin!(ticket.notified(&contention));
        notice.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Ten waiters, which were polled once; three of them may have been handed the lock since.
    fn ten(waiting: &mut Waiting) -> Vec<Arc<Ticket>> {
        let (key, queue): (Arc<str>, Arc<str>) = ("k".into(), "q".into());
        let waiter = |number: u64| {
            let value = HolderValue::of(format!("value-{number}").as_str());
            Arc::new(Ticket::new(
                number,
                Arc::clone(&queue),
                &value,
                format!("member-{number}"),
            ))
        };
        let tickets: Vec<_> = (0..10).map(waiter).collect();
        let mut waiters = LocalWaiters::new(&key, false, at(0));
        for (number, ticket) in (0..).zip(&tickets) {
            assert!(!poll(ticket));
            waiters.tickets.insert(number, Arc::clone(ticket));
        }
        waiting.waiters_by_queue.insert(queue, waiters);
        for ticket in &tickets[..3] {
            assert!(ticket.notify(Notice::Hint));
            waiting.handed.push(Handed(Arc::clone(ticket), at(0)));
        }
        tickets
    }

    #[test]
    fn a_queue_is_walked_once_however_many_were_handed_the_lock() {
        let mut waiting = Waiting::default();
        let tickets = ten(&mut waiting);
        assert!(waiting.pass_over(at(299), false).asked.is_empty());
        assert_eq!(waiting.pass_over(at(300), false).asked.len(), 10);
        assert!(waiting.pass_over(at(350), false).asked.is_empty());
        assert!(!poll(&tickets[8]) && !poll(&tickets[9]));
        assert!(waiting.pass_over(at(1299), false).passed.is_empty());
        let passed = waiting.pass_over(at(1300), false).passed;
        let members: Vec<_> = passed.iter().map(|(.., members)| members.join(" ")).collect();
        assert_eq!(members, ["member-3 member-4 member-5 member-6 member-7"]);
        assert!(waiting.handed.is_empty());
    }

    #[test]
    fn a_look_that_comes_late_blames_nobody() {
        let mut waiting = Waiting::default();
        let _tickets = ten(&mut waiting);
        assert_eq!(waiting.pass_over(at(300), false).asked.len(), 10);
        assert!(waiting.pass_over(at(2000), true).passed.is_empty());
        assert!(waiting.pass_over(at(2999), false).passed.is_empty());
        let passed = waiting.pass_over(at(3000), false).passed;
        assert_eq!(passed.first().map(|(.., members)| members.len()), Some(7));
    }
}
