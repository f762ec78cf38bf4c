//! The waiters of this process, by queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::asleep::Handed;
use super::look::REFRESH_EVERY;
use crate::host::{Moment, Mutex, SignOfLife};
use crate::store::holder::Holder;
use crate::store::{ContentionSlot, HolderValue};

/// The maximum number of this process's waiters for one lock in one look. Only those in front may
/// have got it.
pub(super) const ASKED: usize = 8;
/// The same for a lock that several may get at once: this many of those in front, and this many of
/// the others, which take turns.
const ASKED_SHARED: usize = 50;

#[derive(Default)]
pub(super) struct Waiting {
    /// The waiters, by the key of their queue.
    pub(super) waiters_by_queue: BTreeMap<Arc<str>, LocalWaiters>,
    /// The waiters by value, for the messages.
    pub(super) tickets: HashMap<Arc<str>, Arc<Ticket>>,
    /// The queues whose sharded channels the process listens to.
    pub(super) subscribed: HashSet<Arc<str>>,
    /// The queues to whose channels it is to listen.
    pub(super) wanted: BTreeSet<Arc<str>>,
    /// The number of subscriptions to such channels that the server has ended.
    pub(super) unsubscribed: u64,
    pub(super) next: u64,
    /// The waiters that have not received a hint yet.
    pub(super) handed: Vec<Handed>,
    /// The number of locks held by other kinds of clients.
    pub(super) foreign: u32,
    /// `true` while the task that serves the waiters exists.
    pub(super) kept_up: bool,
}

/// The waiters of this process in one queue.
pub(super) struct LocalWaiters {
    pub(super) key: Arc<str>,
    /// `true` if several of them may get the lock at once.
    pub(super) is_shared: bool,
    /// In order of arrival.
    pub(super) tickets: BTreeMap<u64, Arc<Ticket>>,
    /// The number of the last ticket asked about among those that take turns.
    turn: u64,
    /// `true` while another kind of client holds the lock.
    pub(super) is_foreign: bool,
    /// The time of the next look.
    pub(super) due: Moment,
    /// The start of the last look.
    pub(super) looked: Moment,
    /// The time of the last successful look.
    pub(super) seen: Moment,
    /// The earliest time at which the task may ask some of them to look for themselves.
    pub(super) nudge_at: Moment,
    /// The earliest time at which the process asks to listen to the sharded channel.
    pub(super) listen_at: Moment,
    /// The time at which they were asked for a sign of life.
    pub(super) asked: Option<Moment>,
}

/// One waiter.
pub(super) struct Ticket {
    pub(super) number: u64,
    pub(super) queue: Arc<str>,
    pub(super) value: HolderValue,
    pub(super) member: String,
    pub(super) state: Mutex<State>,
    sign: SignOfLife,
}

#[derive(Default)]
pub(super) struct State {
    /// `true` once the server has answered that the waiter is in the queue.
    pub(super) joined: bool,
    /// The most urgent notice that the waiter has not received yet.
    notice: Option<Notice>,
    /// `true` while the waiter waits for a notice.
    listens: bool,
    pub(super) seen: Option<(Holder, Option<Duration>)>,
}

impl LocalWaiters {
    /// Creates the waiters, none so far, for the lock `key`.
    pub(super) fn new(key: &Arc<str>, is_shared: bool, now: Moment) -> Self {
        Self {
            key: Arc::clone(key),
            is_shared,
            tickets: BTreeMap::new(),
            turn: 0,
            is_foreign: false,
            due: now.after(REFRESH_EVERY),
            looked: now,
            seen: now,
            nudge_at: now,
            listen_at: now,
            asked: None,
        }
    }

    /// Returns the tickets to ask the server about: those that have joined, and that have no notice
    /// that their place is lost.
    pub(super) fn asked_about(&mut self) -> Vec<Arc<Ticket>> {
        let is_waiting = |ticket: &&Arc<Ticket>| {
            let state = ticket.state.lock();
            state.joined && !matches!(state.notice, Some(Notice::Lapsed | Notice::PassedOver))
        };
        if !self.is_shared {
            return self.tickets.values().filter(is_waiting).take(ASKED).cloned().collect();
        }
        let mut asked: Vec<_> = self
            .tickets
            .values()
            .filter(is_waiting)
            .take(ASKED_SHARED)
            .cloned()
            .collect();
        let Some(last) = asked.last().map(|ticket| ticket.number) else {
            return asked;
        };
        let others = |after: u64| self.tickets.range(after.max(last) + 1..).map(|(_, ticket)| ticket);
        let before = asked.len();
        asked.extend(others(self.turn).filter(is_waiting).take(ASKED_SHARED).cloned());
        if asked.len() == before {
            // All the others had their turn, so the first ones are next.
            asked.extend(others(0).filter(is_waiting).take(ASKED_SHARED).cloned());
        }
        self.turn = asked.last().map_or(0, |ticket| ticket.number);
        asked
    }
}

impl Ticket {
    pub(super) fn new(number: u64, queue: Arc<str>, value: &HolderValue, member: String) -> Self {
        Self {
            number,
            queue,
            value: value.clone(),
            member,
            state: Mutex::default(),
            sign: SignOfLife::default(),
        }
    }

    /// Gives the waiter a notice. Returns `false` if it has one of this kind, or a more urgent one,
    /// that it has not received yet.
    pub(super) fn notify(&self, notice: Notice) -> bool {
        let mut state = self.state.lock();
        let is_new = state.notice < Some(notice);
        state.notice = state.notice.max(Some(notice));
        drop(state);
        self.wake();
        is_new
    }

    pub(super) fn wake(&self) {
        self.sign.wake();
    }

    pub(super) fn has_a_hint(&self) -> bool {
        self.state.lock().notice == Some(Notice::Hint)
    }

    /// Asks the waiter for a sign of life, which its next poll gives; the caller then wakes it. Returns `false`
    /// if it does not wait for a notice, or owes the sign already, whose time then begins anew.
    pub(super) fn ask(&self, now: Moment) -> bool {
        let state = self.state.lock();
        if !state.listens {
            return false;
        }
        let is_owed = self.sign.ask(now);
        if is_owed {
            self.sign.restart(now);
        }
        !is_owed
    }

    /// Ends the place of a waiter that has owed a sign of life for so long. Returns `false` if it has not, or
    /// has been handed the lock.
    pub(super) fn pass_over(&self, now: Moment, owed_for: Duration) -> bool {
        let mut state = self.state.lock();
        let is_asleep = self.sign.owed_for(now).is_some_and(|owed| owed >= owed_for);
        let ends = is_asleep && state.notice < Some(Notice::Hint);
        if ends {
            state.notice = Some(Notice::PassedOver);
        }
        ends
    }

    /// Waits for the next notice about the place. Cancel safe.
    pub(super) async fn notified(&self, contention: &ContentionSlot) -> Notice {
        poll_fn(|cx| {
            self.sign.register(cx);
            let mut state = self.state.lock();
            if let Some((holder, remaining)) = state.seen.take() {
                contention.see(holder, remaining);
            }
            let notice = state.notice.take();
            state.listens = notice.is_none();
            self.sign.give();
            notice.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A notice to a waiter about its place. The most urgent one is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Notice {
    /// The waiter is to look for itself.
    Nudge,
    /// The place was lost.
    Lapsed,
    /// The server may have handed the lock over. Replaces `Lapsed`: if the place is lost after all,
    /// the next look notices that again.
    Hint,
    /// The place was taken, since the waiter was not polled.
    PassedOver,
}
