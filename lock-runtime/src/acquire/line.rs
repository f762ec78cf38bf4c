//! Calls that wait behind one that is in front. The place in front is a number: it may be taken from a
//! call that is no longer polled, and what that call does with its number later has no effect. The next
//! call is offered a turn, and the watchdog takes back an offer that is not accepted because the call is
//! not polled either. With nobody awake, the place is vacant until one of the calls is polled.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::acquire::offer::{Offer, TakenBack};
use crate::host::{Moment, SignOfLife};

/// The numbers of the places and calls of some lines, none of which occurs twice: a line may end, and another one
/// begin for the same thing, while a call still has a place in the former.
#[derive(Debug, Default)]
pub(super) struct Numbers(u64);

impl Numbers {
    /// Returns a number that is larger than all earlier ones, and never zero.
    pub(super) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// The calls behind one that is in front. It exists while a call is in front or waits.
#[derive(Debug)]
pub(super) struct Line<T, W> {
    /// The number of the current place in front; 0 if no call has it.
    pub(super) place: u64,
    /// `true` while no call is in front because all waiting calls are asleep. The first to wake up
    /// or arrive takes the place.
    pub(super) vacant: bool,
    /// The calls behind, in order of arrival.
    pub(super) waiting: BTreeMap<u64, Arc<Waiter<T, W>>>,
    /// The last call that was offered a turn, and its number.
    offered: Option<(u64, Arc<Waiter<T, W>>)>,
    /// The number under which the watchdog watches the line's offers, if it does.
    pub(super) watch: Option<u64>,
}

/// One call in line. `T` is a turn, and `W` what else is to be known about the call.
#[derive(Debug)]
pub(super) struct Waiter<T, W> {
    pub(super) turn: Offer<T>,
    pub(super) sign: SignOfLife,
    pub(super) about: W,
}

/// A call that receives a turn once the line is unlocked.
pub(super) struct Offered<T, W> {
    waiter: Arc<Waiter<T, W>>,
    /// The one that was offered a turn before: dropping a waker may drop a task.
    _former: Option<(u64, Arc<Waiter<T, W>>)>,
    /// The number under which the watchdog has to watch the line from now on, if it does not yet.
    watch: Option<u64>,
}

/// The calls to wake once the line is unlocked.
pub(super) type Woken<T, W> = Vec<Arc<Waiter<T, W>>>;

impl<T, W> Waiter<T, W> {
    fn new(about: W) -> Self {
        Self {
            turn: Offer::default(),
            sign: SignOfLife::default(),
            about,
        }
    }

    /// Gives a turn to the call. If the call has left, the turn is dropped, and goes to the next call.
    pub(super) fn give(&self, turn: T) {
        self.turn.make(turn);
        self.sign.wake();
    }
}

impl<T, W> Offered<T, W> {
    /// Gives the call its turn. `watch` has the watchdog [sweep](Line::sweep) the line under a number.
    pub(super) fn give(self, turn: T, watch: impl FnOnce(&W, u64)) {
        self.waiter.give(turn);
        if let Some(number) = self.watch {
            watch(&self.waiter.about, number);
        }
    }
}

impl<T, W> Default for Line<T, W> {
    fn default() -> Self {
        Self {
            place: 0,
            vacant: true,
            waiting: BTreeMap::new(),
            offered: None,
            watch: None,
        }
    }
}

impl<T, W> Line<T, W> {
    /// Creates a new place in front.
    pub(super) fn new_place(&mut self, numbers: &mut Numbers) -> u64 {
        self.vacant = false;
        self.place = numbers.next();
        self.place
    }

    /// Returns `true` if nobody is in front or waits.
    pub(super) fn is_over(&self) -> bool {
        self.vacant && self.waiting.is_empty()
    }

    /// Adds a call behind. Returns its number.
    pub(super) fn join(&mut self, numbers: &mut Numbers, about: W) -> (u64, Arc<Waiter<T, W>>) {
        let (number, waiter) = (numbers.next(), Arc::new(Waiter::new(about)));
        self.waiting.insert(number, Arc::clone(&waiter));
        (number, waiter)
    }

    /// Takes out a call that waits. Returns `None` if it does not: it has been offered a turn, or is in another line.
    pub(super) fn take_out(&mut self, number: u64) -> Option<Arc<Waiter<T, W>>> {
        self.waiting.remove(&number)
    }

    /// Returns `true` if a call that waits is awake.
    pub(super) fn is_awake(&self) -> bool {
        self.waiting.values().any(|waiter| !waiter.sign.is_missing())
    }

    /// Leaves the place in front. Returns the first call that is awake, and the number of its place. If there is none, the
    /// place is vacant.
    pub(super) fn leave(&mut self, numbers: &mut Numbers) -> Option<(Offered<T, W>, u64)> {
        let next = self.offer(numbers, |_| true);
        self.place = 0;
        self.vacant = next.is_none();
        next.map(|next| (next, self.new_place(numbers)))
    }

    /// Takes the first call that is awake out of the line, in order to offer it a turn, if that fits what is known
    /// about the call.
    pub(super) fn offer(&mut self, numbers: &mut Numbers, fits: impl FnOnce(&W) -> bool) -> Option<Offered<T, W>> {
        let mut waiting = self.waiting.iter();
        let (&number, _) = waiting
            .find(|(_, waiter)| !waiter.sign.is_missing())
            .filter(|(_, waiter)| fits(&waiter.about))?;
        let waiter = self.waiting.remove(&number)?;
        let former = self.offered.replace((number, Arc::clone(&waiter)));
        let mut watch = None;
        if self.watch.is_none() {
            watch = Some(numbers.next());
            self.watch = watch;
        }
        Some(Offered {
            waiter,
            _former: former,
            watch,
        })
    }

    /// Takes the place from a call that is no longer polled, if others wait. The first of them to be polled gets it.
    pub(super) fn revoke(&mut self) -> Woken<T, W> {
        if self.waiting.is_empty() {
            return Woken::new();
        }
        self.place = 0;
        self.vacant = true;
        self.call()
    }

    /// Has each waiting call take the place in front, if that is vacant, when it is polled.
    fn call(&self) -> Woken<T, W> {
        let waiting = self.waiting.values();
        waiting.inspect(|waiter| waiter.sign.miss()).cloned().collect()
    }

    /// Adds the calls that wait in another line of which none is in front, in order of their arrival.
    pub(super) fn adopt(&mut self, mut other: Self) -> Woken<T, W> {
        // If the call in front was no longer polled, one of these may be the first to replace it.
        let woken = if self.vacant { other.call() } else { Woken::new() };
        self.waiting.append(&mut other.waiting);
        woken
    }

    /// Forgets the calls that have left without finding themselves in the line, and what the watchdog watches. Returns
    /// these calls, to be dropped once the line is unlocked.
    pub(super) fn close_up(&mut self) -> Woken<T, W> {
        let mut gone = Woken::new();
        self.waiting.retain(|_, waiter| {
            let is_over = waiter.turn.is_over();
            if is_over {
                gone.push(Arc::clone(waiter));
            }
            !is_over
        });
        self.watch = None;
        gone.extend(self.offered.take().map(|(_, waiter)| waiter));
        gone
    }

    /// Takes back a turn on offer if its call has not been polled since the last sweep.
    pub(super) fn sweep(&mut self, watch: u64, now: Moment) -> Swept<T, W> {
        let mut swept = Swept {
            woken: Woken::new(),
            taken_back: None,
            over: None,
            again: false,
        };
        // There may be another line by now.
        if self.watch != Some(watch) {
            return swept;
        }
        let Some((number, waiter)) = self.offered.take() else {
            self.watch = None;
            return swept;
        };
        swept.again = true;
        match waiter.turn.take_back_if(|_| waiter.sign.ask(now)) {
            TakenBack::Yes(turn) => swept.taken_back = Some(turn),
            TakenBack::No => swept.woken.push(Arc::clone(&waiter)),
            TakenBack::NotMade => {
                self.offered = Some((number, waiter));
                return swept;
            }
            TakenBack::Over => {
                swept.over = Some(waiter);
                return swept;
            }
        }
        // The calls behind it are asked too: they may be in the same runtime, and stand still with it.
        for waiter in self.waiting.values() {
            waiter.sign.ask(now);
            swept.woken.push(Arc::clone(waiter));
        }
        if swept.taken_back.is_some() {
            self.waiting.insert(number, waiter);
        } else {
            self.offered = Some((number, waiter));
        }
        swept
    }
}

/// The outcome of [`Line::sweep`].
#[must_use]
pub(super) struct Swept<T, W> {
    woken: Woken<T, W>,
    taken_back: Option<T>,
    /// The call whose offer is over.
    over: Option<Arc<Waiter<T, W>>>,
    /// `false` if the line needs no further sweep.
    again: bool,
}

impl<T, W> Swept<T, W> {
    /// Wakes the calls, and passes the turn on, once the line is unlocked. Returns `false` if it needs no further sweep.
    pub(super) fn end(self) -> bool {
        wake(self.woken);
        // Dropping the turn releases any lock in it, and gives the place to the next call awake.
        drop((self.taken_back, self.over));
        self.again
    }
}

pub(super) fn wake<T, W>(woken: Woken<T, W>) {
    for waiter in woken {
        waiter.sign.wake();
    }
}
