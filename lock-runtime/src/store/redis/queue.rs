//! Waiting for a lock in the server's queue, where a release hands it to the first.
//!
//! A waiter joins the queue by one script and is told by a message on its process's one channel. All waiting of the process is
//! kept up by one task on the lock thread: it tells the server now and then that the process is alive, and finds what messages
//! that were lost would have told.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::link::{Link, Live, Push};
use super::names::{CLAIM, Names};
use super::scripts::{JOIN, REFRESH, SHARED_JOIN, SHARED_REFRESH, eval};
use super::values::{as_remaining, fence_of, granted_or_busy, holder_of, millis};
use crate::clock::{BootClock, Clock, Moment};
use crate::engine::{Engine, Timer, is_forked};
use crate::holder::Holder;
use crate::store::{Attempt, Mode, QueueRequest, Queued, StoreError, Turn};

/// How often the process says that it waits, and looks whether a message was lost.
const REFRESH_EVERY: Duration = Duration::from_millis(250);
/// How many locks one refreshing round trip is about at most.
const BATCH: usize = 100;
/// How many such round trips are under way at once.
const AT_ONCE: usize = 4;
/// How many of this process's waiters for one lock it asks about: those in front are the ones that may have got it.
const ASKED: usize = 8;
/// And where many may get it at once: so many of those in front, and of the others, who take turns.
const ASKED_SHARED: usize = 50;
/// How many waiters such a round trip is about, beyond which no further lock joins it.
const ENOUGH: usize = 400;
/// How long the channel is listened to after the last waiter.
const LINGER: Duration = Duration::from_secs(1);

/// All waiting of one store in this process.
#[derive(Clone)]
pub(super) struct Queue(Arc<Inner>);

struct Inner {
    /// The connection that listens and refreshes.
    background: Link,
    names: Arc<Names>,
    response_timeout: Duration,
    /// The connection that was last asked to listen, and whether it does.
    listening: tokio::sync::Mutex<Option<(u64, bool)>>,
    waiting: Mutex<Waiting>,
    /// There is something to look at.
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    /// By the key of the queue.
    rooms: HashMap<Arc<str>, Room>,
    /// By value, for the messages.
    tickets: HashMap<Box<str>, Arc<Ticket>>,
    next: u64,
    /// Whether the task is there.
    kept_up: bool,
}

/// Those of this process who wait in one queue.
struct Room {
    key: Arc<str>,
    /// Whether many of them may get the lock at once.
    is_shared: bool,
    /// By when they came.
    tickets: BTreeMap<u64, Arc<Ticket>>,
    /// Up to whom those who take turns were asked about.
    turn: u64,
    /// When to refresh.
    due: Moment,
}

/// One waiter.
struct Ticket {
    number: u64,
    queue: Arc<str>,
    value: Box<str>,
    member: String,
    claim: Duration,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    task: AtomicWaker,
}

#[derive(Default)]
struct State {
    /// Whether the server has answered that it stands in the queue.
    joined: bool,
    /// When it surely had not been granted the lock: before the send of what the server last confirmed the place by.
    proof: Option<Moment>,
    turn: Option<Result<Turn, StoreError>>,
    seen: Option<(Holder, Option<Duration>)>,
}

impl Room {
    /// Those to ask about: who has joined, and has not heard how it has ended.
    fn asked_about(&mut self) -> Vec<Arc<Ticket>> {
        let is_waiting = |ticket: &&Arc<Ticket>| {
            let state = ticket.state();
            state.joined && state.turn.is_none()
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
            // Everyone had a turn.
            asked.extend(others(0).filter(is_waiting).take(ASKED_SHARED).cloned());
        }
        self.turn = asked.last().map_or(0, |ticket| ticket.number);
        asked
    }
}

impl Ticket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_time(self: Arc<Self>) -> (Arc<Self>, Moment) {
        let now = self.clock.now();
        (self, now)
    }

    /// Says how the place has ended. The first to know stays.
    fn end(&self, turn: impl FnOnce(&State) -> Result<Turn, StoreError>) {
        let mut state = self.state();
        if state.turn.is_none() {
            state.turn = Some(turn(&state));
        }
        drop(state);
        self.task.wake();
    }

    fn grant(&self, fence: Result<Option<u64>, StoreError>) {
        self.end(|state| {
            Ok(Turn::Granted {
                fence: fence?,
                since: state.proof.unwrap_or(Moment::from_nanos(0)),
                lease: self.claim,
            })
        });
    }
}

/// A ticket in use. Dropped, nobody asks about it any more.
struct Stand<'a> {
    queue: &'a Queue,
    ticket: Arc<Ticket>,
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        // In a forked child they may have been locked by a thread that is not there.
        if is_forked() {
            return;
        }
        let mut waiting = self.queue.waiting();
        waiting.tickets.remove(&self.ticket.value);
        if let Some(room) = waiting.rooms.get_mut(&self.ticket.queue) {
            room.tickets.remove(&self.ticket.number);
            if room.tickets.is_empty() {
                waiting.rooms.remove(&self.ticket.queue);
            }
        }
    }
}

impl Queue {
    pub(super) fn new(background: Link, names: Arc<Names>, response_timeout: Duration) -> Self {
        let queue = Self(Arc::new(Inner {
            background,
            names,
            response_timeout,
            listening: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
            changed: Notify::new(),
        }));
        let inner = Arc::downgrade(&queue.0);
        queue.0.background.push_to(Arc::new(move |push| {
            if let Some(inner) = inner.upgrade() {
                Self(inner).hear(&push);
            }
        }));
        queue
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in the queue by way of `commands`, on which the release follows if it is dropped without an answer.
    pub(super) async fn stand(&self, commands: Link, request: &QueueRequest<'_>) -> Result<Turn, StoreError> {
        // The ticket comes first: while there is one, the channel is listened to.
        let stand = self.ticket(request)?;
        if !self.listen().await? {
            return Ok(Turn::Unavailable);
        }
        match self.join(&commands, request, &stand.ticket).await? {
            Some(turn) => return Ok(turn),
            None => request.receipt.answered(),
        }
        let turn = poll_fn(|cx| {
            stand.ticket.task.register(cx.waker());
            let mut state = stand.ticket.state();
            if let Some((holder, remaining)) = state.seen.take() {
                request.sighting.see(holder, remaining);
            }
            state.turn.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        drop(stand);
        turn
    }

    fn ticket(&self, request: &QueueRequest<'_>) -> Result<Stand<'_>, StoreError> {
        let names = &self.0.names;
        let queued = Queued {
            lease: request.lease,
            fence: request.fence,
        };
        let queue = names.queue_for(request.key, request.value);
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        // One name for all who wait in the same queue.
        let known = waiting.rooms.get_key_value(queue.as_str());
        let queue = known.map_or_else(|| queue.into(), |(queue, _)| Arc::clone(queue));
        let ticket = Arc::new(Ticket {
            number,
            queue: Arc::clone(&queue),
            value: request.value.into(),
            member: names.member(request.value, queued),
            claim: request.lease.min(CLAIM),
            clock: Arc::clone(request.clock),
            state: Mutex::default(),
            task: AtomicWaker::new(),
        });
        waiting.tickets.insert(request.value.into(), Arc::clone(&ticket));
        let room = waiting.rooms.entry(queue).or_insert_with(|| {
            self.0.changed.notify_one();
            Room {
                key: request.key.into(),
                is_shared: Mode::is_shared(request.value),
                tickets: BTreeMap::new(),
                turn: 0,
                due: BootClock.now().after(REFRESH_EVERY),
            }
        });
        room.tickets.insert(number, Arc::clone(&ticket));
        let start = !std::mem::replace(&mut waiting.kept_up, true);
        drop(waiting);
        let stand = Stand { queue: self, ticket };
        if start {
            let task = KeepUp(self.clone());
            let engine = Engine::get().map_err(StoreError::permanent)?;
            drop(engine.handle().spawn(task.run()));
        }
        Ok(stand)
    }

    /// Sends the request. `None`: it stands in the queue.
    async fn join(
        &self,
        commands: &Link,
        request: &QueueRequest<'_>,
        ticket: &Arc<Ticket>,
    ) -> Result<Option<Turn>, StoreError> {
        let names = &self.0.names;
        let live = commands.live().await?;
        let script = if Mode::is_shared(request.value) {
            &SHARED_JOIN
        } else {
            &JOIN
        };
        request.receipt.sent_on(live.number);
        let sent = request.clock.now();
        ticket.state().proof = Some(sent);
        let keys = [request.key, &ticket.queue, &names.counter];
        let answer = eval(commands, &live, script, &keys, |command| {
            command
                .arg(request.value)
                .arg(millis(request.lease))
                .arg(&names.channels)
                .arg(&names.process)
                .arg(&ticket.member);
        });
        let answer = match Timer::Engine.answer(self.0.response_timeout, answer).await {
            // Who may not use the queue can use the lock all the same.
            Err(error) if error.is_permanent() => return Ok(Some(Turn::Unavailable)),
            answer => answer?,
        };
        let Value::Array(parts) = answer else {
            return Err(StoreError::unknown(
                "the server gave an unexpected answer to the join script",
            ));
        };
        match granted_or_busy(&parts)? {
            Attempt::Granted { fence } => Ok(Some(Turn::Granted {
                fence,
                since: sent,
                lease: request.lease,
            })),
            Attempt::Busy { holder, remaining } => {
                let mut state = ticket.state();
                state.joined = true;
                state.seen = holder.map(|holder| (holder, remaining));
                drop(state);
                self.look_at(&ticket.queue, remaining);
                Ok(None)
            }
        }
    }

    /// Has a lock looked at when its holder's lease is over, if that is soon.
    fn look_at(&self, queue: &str, remaining: Option<Duration>) {
        let mut waiting = self.waiting();
        let Some(room) = waiting.rooms.get_mut(queue) else {
            return;
        };
        let due = BootClock.now().after(next_look(remaining));
        let sooner = due < room.due;
        room.due = room.due.min(due);
        drop(waiting);
        if sooner {
            self.0.changed.notify_one();
        }
    }

    /// Listens to this process's channel. `false`: the server does not allow that.
    async fn listen(&self) -> Result<bool, StoreError> {
        let live = self.0.background.live().await?;
        let mut listening = self.0.listening.lock().await;
        if let Some((number, heard)) = *listening
            && number == live.number
        {
            return Ok(heard);
        }
        let channel = self.0.names.channel();
        let answer = self.0.background.subscribe(&live, &channel);
        let heard = match Timer::Engine.timeout(self.0.response_timeout, answer).await {
            Some(Ok(())) => true,
            Some(Err(error)) if error.is_permanent() => {
                tracing::debug!(%error, "the server does not allow wake-ups; waiters try again after pauses");
                false
            }
            Some(Err(error)) => return Err(error),
            None => return Err(StoreError::transient("no answer within the response time-out")),
        };
        *listening = Some((live.number, heard));
        drop(listening);
        // What was said before nobody has heard.
        self.look_at_all();
        Ok(heard)
    }

    fn look_at_all(&self) {
        let now = BootClock.now();
        for room in self.waiting().rooms.values_mut() {
            room.due = now;
        }
        self.0.changed.notify_one();
    }

    /// Stops listening if nobody waits. `true`: the task may end.
    async fn be_quiet(&self) -> bool {
        let mut listening = self.0.listening.lock().await;
        if !self.waiting().rooms.is_empty() {
            return false;
        }
        // Also where it is not known to listen: a call may have been dropped before it knew.
        if let Some(live) = self.0.background.up() {
            let channel = self.0.names.channel();
            let answer = self.0.background.unsubscribe(&live, &channel);
            drop(Timer::Engine.timeout(self.0.response_timeout, answer).await);
        }
        *listening = None;
        let mut waiting = self.waiting();
        waiting.kept_up = !waiting.rooms.is_empty();
        !waiting.kept_up
    }

    /// What the connection that listens has to say. Must not block.
    fn hear(&self, push: &Push) {
        match push {
            Push::Message(message) => {
                let Ok(message) = std::str::from_utf8(message) else {
                    return;
                };
                let Some((fence, value)) = message.split_once(':') else {
                    return;
                };
                let ticket = self.waiting().tickets.get(value).cloned();
                // Nobody's: whoever had it has left, and releases it.
                let Some(ticket) = ticket else { return };
                ticket.grant(if fence.is_empty() {
                    Ok(None)
                } else {
                    fence_of(&Value::BulkString(fence.into())).map(Some)
                });
            }
            Push::Disconnected => self.look_at_all(),
        }
    }

    /// The locks that are due to be looked at, the longest overdue first, and when the next one is.
    fn due(&self, now: Moment) -> (Vec<Asked>, Option<Moment>) {
        let mut waiting = self.waiting();
        // Who is due soon comes along, so that all beat together.
        let anybody = waiting.rooms.values().any(|room| room.due <= now);
        let limit = if anybody { now.after(REFRESH_EVERY / 2) } else { now };
        let mut rooms: Vec<_> = waiting.rooms.iter_mut().filter(|(_, room)| room.due <= limit).collect();
        rooms.sort_unstable_by_key(|(_, room)| room.due);
        let mut asked = Vec::new();
        for (queue, room) in rooms.into_iter().take(BATCH * AT_ONCE) {
            room.due = now.after(REFRESH_EVERY);
            let tickets = room.asked_about();
            if !tickets.is_empty() {
                asked.push(Asked {
                    key: Arc::clone(&room.key),
                    queue: Arc::clone(queue),
                    is_shared: room.is_shared,
                    tickets: tickets.into_iter().map(Ticket::with_time).collect(),
                });
            }
        }
        (asked, waiting.rooms.values().map(|room| room.due).min())
    }

    /// Looks at many locks, in a few round trips at once.
    async fn refresh_all(&self, asked: Vec<Asked>) {
        let mut batches = JoinSet::new();
        for batch in batches_of(asked) {
            let queue = self.clone();
            batches.spawn(async move { queue.refresh(&batch).await });
        }
        while let Some(refreshed) = batches.join_next().await {
            match refreshed {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "waiting locks could not be looked at, trying again"),
                Err(error) => tracing::error!(%error, "looking at waiting locks panicked"),
            }
        }
    }

    async fn refresh(&self, asked: &[Asked]) -> Result<(), StoreError> {
        self.listen().await?;
        let live = self.0.background.live().await?;
        let answer = self.ask(&live, asked);
        let answers = match Timer::Engine.answer(self.0.response_timeout, answer).await? {
            Value::Array(answers) if answers.len() == asked.len() => answers,
            _ => {
                return Err(StoreError::unknown(
                    "the server gave an unexpected answer to the refresh script",
                ));
            }
        };
        for (asked, answer) in asked.iter().zip(answers) {
            let Value::Array(parts) = answer else { continue };
            let [Value::BulkString(holder), remaining, stands @ ..] = parts.as_slice() else {
                continue;
            };
            let remaining = as_remaining(remaining);
            let ended = asked.settle(holder, remaining, stands);
            // Where one place was lost, or had got the lock unheard, those behind it may have as well.
            self.look_at(&asked.queue, if ended { Some(Duration::ZERO) } else { remaining });
        }
        Ok(())
    }

    async fn ask(&self, live: &Live, asked: &[Asked]) -> Result<Value, StoreError> {
        let names = &self.0.names;
        let mut keys: Vec<&str> = vec![&names.counter];
        for asked in asked {
            keys.extend([&*asked.key, &*asked.queue]);
        }
        let is_shared = asked.first().is_some_and(|asked| asked.is_shared);
        let script = if is_shared { &SHARED_REFRESH } else { &REFRESH };
        eval(&self.0.background, live, script, &keys, |command| {
            command.arg(&names.channels).arg(&names.process);
            for asked in asked {
                command.arg(asked.tickets.len());
                for (ticket, _) in &asked.tickets {
                    command.arg(&ticket.member);
                }
            }
        })
        .await
    }
}

/// When to look at a lock again whose holder has so much of its lease left.
fn next_look(remaining: Option<Duration>) -> Duration {
    // Just after the end of the lease is a good moment.
    let end = remaining.map(|remaining| remaining.saturating_add(Duration::from_millis(1)));
    end.map_or(REFRESH_EVERY, |end| end.min(REFRESH_EVERY))
}

/// A lock that is looked at.
struct Asked {
    key: Arc<str>,
    queue: Arc<str>,
    is_shared: bool,
    /// With the moment, on its clock, before which the question is surely not answered.
    tickets: Vec<(Arc<Ticket>, Moment)>,
}

impl Asked {
    /// Enters an answer. Returns whether a place was lost, or one of many has got the lock.
    fn settle(&self, holder: &[u8], remaining: Option<Duration>, stands: &[Value]) -> bool {
        let mut ended = false;
        for ((ticket, sent), stands) in self.tickets.iter().zip(stands) {
            let holds = *stands == Value::Int(2) || holder == ticket.value.as_bytes();
            if holds {
                // The message is lost, and with it the fencing token; the caller takes another one.
                ticket.grant(Ok(None));
                ended |= self.is_shared;
            } else if *stands == Value::Int(1) {
                let mut state = ticket.state();
                state.proof = Some(*sent);
                if !holder.is_empty() {
                    state.seen = Some((holder_of(holder), remaining));
                }
            } else {
                ticket.end(|_| Ok(Turn::Lapsed));
                ended = true;
            }
        }
        ended
    }
}

/// Puts together what one round trip asks: about locks of one kind, and not too many waiters.
fn batches_of(asked: Vec<Asked>) -> Vec<Vec<Asked>> {
    let mut batches = Vec::new();
    let (shared, exclusive): (Vec<_>, Vec<_>) = asked.into_iter().partition(|asked| asked.is_shared);
    for kind in [exclusive, shared] {
        let mut batch = Vec::new();
        let mut waiters = 0;
        for asked in kind {
            if asked.is_shared {
                waiters += asked.tickets.len();
            }
            batch.push(asked);
            if batch.len() == BATCH || waiters >= ENOUGH {
                batches.push(std::mem::take(&mut batch));
                waiters = 0;
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
    }
    batches
}

/// The task that keeps the places in the queues.
struct KeepUp(Queue);

impl KeepUp {
    async fn run(self) {
        let queue = &self.0;
        let changed = &queue.0.changed;
        loop {
            let (asked, next) = queue.due(BootClock.now());
            if asked.is_empty() {
                let pause = next.map_or(LINGER, |next| next.since(BootClock.now()));
                tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep(pause) => {
                        if next.is_none() && queue.be_quiet().await {
                            return;
                        }
                    }
                }
                continue;
            }
            queue.refresh_all(asked).await;
        }
    }
}

impl Drop for KeepUp {
    fn drop(&mut self) {
        // Who waits must not be left alone after a panic.
        if std::thread::panicking()
            && let Ok(engine) = Engine::get()
        {
            tracing::error!("the task that keeps up the waiting for locks panicked and was restarted");
            drop(engine.handle().spawn(Self(self.0.clone()).run()));
        }
    }
}
