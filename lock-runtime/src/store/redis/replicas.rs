//! Waits until replicas have the locks that were granted.
//!
//! `WAIT` counts the replicas that have all that *its own connection* has written, holds up all that
//! is sent on that connection after it, and answers with the number of connected replicas at once if
//! the connection has written nothing. So all calls of a process that want as many replicas share
//! one connection that carries nothing else, on which their locks are renewed: that write follows
//! the grants, on whatever connection they were made, and its answer tells if this server, which may
//! be another one by now, has them at all. Calls that want another number have another connection,
//! since they may wait for a replica that these do not need.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use redis::{Value, from_redis_value};
use tokio::sync::oneshot;

use super::connection::{Connection, ConnectionSlot, failure};
use super::ops::renew_on;
use super::scripts::{LockScript, RENEW, SHARED_RENEW};
use crate::host::{Moment, Mutex, Timer};
use crate::store::{Limited, Ownership, RenewRequest, Replicated, StoreError, within};

/// The part of the response time-out that replicas have. The rest is for the way of the answer.
const PATIENCE: f64 = 0.75;
/// The maximum number of locks in one script.
const AT_A_TIME: usize = 100;
/// The maximum number of scripts under way. One after another, those of a crowd would take longer on
/// a slow line than its calls may wait.
const UNDER_WAY: usize = 8;
/// The number of connections. Calls that want this many replicas or more share the last one.
const LINES: usize = 4;

type Answer = Result<Replicated, StoreError>;

/// Waits for replicas on behalf of the calls of a store: for those that want one, two, and so on.
#[derive(Clone)]
pub(super) struct Replicas([Arc<Line>; LINES]);

/// The calls that share one connection.
struct Line {
    slot: ConnectionSlot,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    calls: Vec<Call>,
    /// `true` while a task on the lock thread serves them.
    is_served: bool,
}

struct Call {
    requests: Vec<RenewRequest>,
    wanted: u32,
    answer: oneshot::Sender<Answer>,
}

impl Replicas {
    pub(super) fn new(mut slot: impl FnMut() -> ConnectionSlot) -> Self {
        Self(std::array::from_fn(|_| {
            let (slot, waiting) = (slot(), Mutex::default());
            Arc::new(Line { slot, waiting })
        }))
    }

    fn line(&self, wanted: u32) -> &Arc<Line> {
        let [.., last] = &self.0;
        let others = usize::try_from(wanted.saturating_sub(1)).unwrap_or(usize::MAX);
        self.0.get(others).unwrap_or(last)
    }

    /// Waits until `wanted` replicas have these locks, which are renewed. Returns how many have them
    /// after a part of the response time-out.
    ///
    /// Cancel safe.
    pub(super) async fn wait_for(&self, requests: Vec<RenewRequest>, wanted: u32) -> Answer {
        let (answer, answered) = oneshot::channel();
        let call = Call {
            requests,
            wanted,
            answer,
        };
        let line = self.line(wanted);
        let is_served = {
            let mut waiting = line.waiting.lock();
            waiting.calls.push(call);
            std::mem::replace(&mut waiting.is_served, true)
        };
        if !is_served {
            let serving = Serving {
                line: Arc::clone(line),
                is_done: false,
            };
            line.slot.host().spawn(serving.run()).map_err(StoreError::permanent)?;
        }
        let gone = |_| Err(StoreError::unknown("the task that waits for replicas has ended"));
        answered.await.unwrap_or_else(gone)
    }
}

/// The task that serves the calls of a line. If it is dropped before it is done, the calls that wait fail, and
/// the next one starts another task.
struct Serving {
    line: Arc<Line>,
    is_done: bool,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut waiting = self.line.waiting.lock();
        waiting.is_served = false;
        let unserved = std::mem::take(&mut waiting.calls);
        drop(waiting);
        drop(unserved);
    }
}

impl Serving {
    async fn run(mut self) {
        while let Some(calls) = self.next() {
            self.serve(calls).await;
        }
    }

    /// Takes all calls that wait. Ends the task if there are none.
    fn next(&mut self) -> Option<Vec<Call>> {
        let mut waiting = self.line.waiting.lock();
        let calls = std::mem::take(&mut waiting.calls);
        self.is_done = calls.is_empty();
        waiting.is_served = !self.is_done;
        (!self.is_done).then_some(calls)
    }

    async fn serve(&self, mut calls: Vec<Call>) {
        calls.retain(|call| !call.answer.is_closed());
        let slot = &self.line.slot;
        let response = slot.response_timeout();
        let host = slot.host();
        let live = host.timeout(Timer::LockThread, response, slot.live());
        let late = || StoreError::transient(format!("no connection within {response:?}"));
        let live = match live.await.unwrap_or_else(|| Err(late())) {
            Ok(live) => live,
            Err(error) => return refuse(calls, &error),
        };
        let renewed = self.renew(&live, &calls);
        let owned = match within(host, Timer::LockThread, response, renewed).await {
            Ok(owned) => owned,
            Err(error) => return refuse(calls, &error),
        };
        let mut held = Vec::with_capacity(calls.len());
        for (call, owned) in calls.into_iter().zip(owned) {
            match owned {
                Ownership::Owned => held.push(call),
                other => drop(call.answer.send(Ok(Replicated::NotOwned(other)))),
            }
        }
        self.count(&live, held).await;
    }

    /// Renews the locks of all calls, and returns what the server says of each call's.
    async fn renew(&self, live: &Connection, calls: &[Call]) -> Result<Vec<Ownership>, StoreError> {
        let mut owned = vec![Ownership::Owned; calls.len()];
        let mut asked: Vec<Asked<'_>> = Vec::new();
        let kinds: [(&LockScript, bool); 2] = [(&RENEW, false), (&SHARED_RENEW, true)];
        for (script, is_shared) in kinds {
            let of_calls = calls.iter().enumerate();
            let requests = of_calls.flat_map(|(call, asked)| asked.requests.iter().map(move |request| (call, request)));
            let requests = requests.filter(|(_, request)| request.value.is_shared() == is_shared);
            // What one command can renew.
            let mut groups: BTreeMap<u16, (Vec<usize>, Vec<RenewRequest>)> = BTreeMap::new();
            for (call, request) in requests {
                let (of, group) = groups.entry(self.line.slot.group(&request.key)).or_default();
                of.push(call);
                group.push(request.clone());
            }
            for (of, requests) in groups.into_values() {
                for (of, requests) in of.chunks(AT_A_TIME).zip(requests.chunks(AT_A_TIME)) {
                    let (of, requests) = (of.to_vec(), requests.to_vec());
                    asked.push(Box::pin(async move {
                        let keys: Vec<&str> = requests.iter().map(|request| &*request.key).collect();
                        let verdicts = renew_on(&self.line.slot, live, script, &keys, &requests).await?;
                        Ok(of.into_iter().zip(verdicts).collect())
                    }));
                }
            }
        }
        let mut answers = stream::iter(asked).buffer_unordered(UNDER_WAY);
        while let Some(answer) = answers.next().await {
            for (call, verdict) in answer? {
                if let Some(owned) = owned.get_mut(call) {
                    *owned = owned.clone().or(verdict);
                }
            }
        }
        Ok(owned)
    }

    /// Waits for the replicas of calls whose locks have been renewed: for those that want the fewest
    /// first, so that nobody waits for more than it wants.
    async fn count(&self, live: &Connection, mut calls: Vec<Call>) {
        let began = self.line.slot.host().now();
        calls.sort_by_key(|call| call.wanted);
        let mut calls = calls.into_iter().peekable();
        while let Some(wanted) = calls.peek().map(|call| call.wanted) {
            let answer = self.wait(live, wanted, began).await;
            while let Some(call) = calls.next_if(|call| call.wanted == wanted) {
                drop(call.answer.send(answer.clone().map(Replicated::To)));
            }
            if let Err(error) = answer {
                return refuse(calls.collect(), &error);
            }
        }
    }

    /// Waits for so many replicas, and returns how many have all that was written.
    async fn wait(&self, live: &Connection, wanted: u32, began: Moment) -> Result<u32, StoreError> {
        let slot = &self.line.slot;
        let response = slot.response_timeout();
        let left = response
            .mul_f64(PATIENCE)
            .saturating_sub(slot.host().now().since(began));
        let mut wait = redis::cmd("WAIT");
        // Zero would wait for ever.
        wait.arg(wanted)
            .arg(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
        let answer = async {
            let answer: Result<Value, _> = slot.call(live, Limited::Releases, "", wait).await;
            let answer = answer.map_err(|error| forbidden(failure::sort(&error, true)))?;
            from_redis_value(answer).map_err(|error| StoreError::unknown(error.to_string()))
        };
        within(slot.host(), Timer::LockThread, response, answer).await
    }
}

/// The renewal of some locks, which ends with the call of each and what the server says of it.
type Asked<'a> = Pin<Box<dyn Future<Output = Result<Vec<(usize, Ownership)>, StoreError>> + Send + 'a>>;

fn refuse(calls: Vec<Call>, error: &StoreError) {
    for call in calls {
        drop(call.answer.send(Err(error.clone())));
    }
}

fn forbidden(error: StoreError) -> StoreError {
    if error.is_permanent() {
        return error.advise("allow the server's user `+wait`, or leave `min_replicas` out");
    }
    error
}
