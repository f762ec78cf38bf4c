//! The exclusive lock: `SET key value NX PX`, and scripts that compare before they act.

use std::time::Duration;

use redis::{RedisError, Value};

use crate::host::Timer;
use crate::store::redis::RedisStore;
use crate::store::redis::connection::failure::sort;
use crate::store::redis::connection::{Connection, ConnectionSlot};
use crate::store::redis::connection::{Release, Request, Take, the_one};
use crate::store::redis::connection::{eval, eval_about, eval_for_lock};
use crate::store::redis::keyspace::drawing;
use crate::store::redis::reply::{
    as_remaining, attempt, given_back, millis, released, taken, token_or_verdict, unexpected, verdict, verdicts,
};
use crate::store::redis::scripts::{
    ACQUIRE, FENCE, LockScript, MARKED_ACQUIRE, RAISE_FENCE, RAISE_OWN_FENCE, RELEASE, SHARED_FENCE,
    SHARED_RELEASE_ALONE,
};
use crate::store::{
    AcquireRequest, Attempt, Fence, FencingToken, HolderValue, Limited, Ownership, QueueRequest, ReleaseRequest,
    RenewRequest, StoreError, within,
};

impl RedisStore {
    /// Takes a lock of a server that keeps a mark.
    pub(super) async fn acquire_marked(
        &self,
        commands: &ConnectionSlot,
        live: &Connection,
        request: &AcquireRequest<'_>,
        mark: &str,
    ) -> Result<Attempt, StoreError> {
        let may_hold = live.server.is_7 && !request.fence && !request.fair;
        if may_hold && let Some(answer) = take_marked(commands, live, request, mark).await? {
            return Ok(answer);
        }
        let queue = self.names.queue(request.key);
        let counter = self.names.counter(request.key);
        let keys: [&str; 3] = [request.key, &queue, &counter];
        let keys = drawing(request.fence, &keys);
        let scripts: [&LockScript; 2] = [&ACQUIRE, &MARKED_ACQUIRE];
        let answer = eval_for_lock(commands, live, scripts, Some(mark), request.key, keys, |command| {
            command
                .arg(u8::from(request.fence))
                .arg(u8::from(request.fair))
                .arg(request.value.as_str())
                .arg(millis(request.ttl));
        });
        let answered = async { attempt(&alone(answer.await?)?) };
        // If the plain `SET` found the caller's own value, a failure here does not mean that nothing was taken.
        answered
            .await
            .map_err(|error| if may_hold { error.into_unknown() } else { error })
    }

    pub(in crate::store::redis) async fn renew_by(
        &self,
        script: &LockScript,
        requests: &[RenewRequest],
    ) -> Result<Vec<Ownership>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = requests.iter().map(|request| &*request.key).collect();
        self.renew_keys(script, &keys, requests).await
    }

    /// Renews the locks. If another connection replaces a silent one, sends them again there: the
    /// order of renewals does not matter.
    pub(in crate::store::redis) async fn renew_keys(
        &self,
        script: &LockScript,
        keys: &[&str],
        requests: &[RenewRequest],
    ) -> Result<Vec<Ownership>, StoreError> {
        loop {
            let live = self.background.live_at_last().await;
            let answer = renew_on(&self.background, &live, script, keys, requests);
            tokio::select! {
                biased;
                answer = answer => return answer,
                () = self.background.replaced(live.number) => {}
            }
        }
    }

    /// Takes a free lock by a command that names no other key.
    pub(in crate::store::redis) async fn acquire_alone(
        &self,
        request: &AcquireRequest<'_>,
    ) -> Result<Attempt, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        request.receipt.sent_at(live.number, commands.host().now());
        // In place of the queue, which an acquire that is not fair does not read.
        let keys: [&str; 2] = [request.key; 2];
        let answer = eval(&commands, &live, &ACQUIRE, &keys, |command| {
            command
                .arg(0)
                .arg(0)
                .arg(request.value.as_str())
                .arg(millis(request.ttl));
        });
        attempt(&alone(answer.await?)?)
    }

    /// Releases a lock in any mode by a command that names no other key, so that nobody is let in.
    pub(in crate::store::redis) async fn release_alone(
        &self,
        request: &ReleaseRequest<'_>,
    ) -> Result<Ownership, StoreError> {
        let (commands, live) = self.commands.for_release(request).await?;
        request.receipt.sent_on(live.number);
        let (value, keep) = (request.value.as_str(), request.keep.map_or(0, millis));
        if request.value.is_shared() {
            let keys: [&str; 1] = [request.key];
            let answer = eval(&commands, &live, &SHARED_RELEASE_ALONE, &keys, |command| {
                command.arg(value).arg(keep);
            });
            return released(&answer.await?);
        }
        // In place of the queue: no call waits in what is no sorted set.
        let keys: [&str; 2] = [request.key; 2];
        let answer = eval(&commands, &live, &RELEASE, &keys, |command| {
            command.arg(&self.names.channels).arg(value).arg(keep).arg("").arg("");
        });
        given_back(&alone(answer.await?)?)
    }

    /// Releases what nobody has. A server that takes no writes, or does not allow this user the scripts, refuses that as
    /// well, though it may still answer reads or give locks that are free.
    pub(in crate::store::redis) async fn release_nothing(&self) -> Result<(), StoreError> {
        let live = self.background.live().await?;
        let nothing = Release {
            lock: self.names.probe().into(),
            value: "".into(),
            is_shared: false,
            keep: 0,
            member: String::new(),
            leave_free: None,
        };
        let answer = self.background.run(&live, &Request::Release(nothing)).await;
        answer.map(drop).map_err(|error| sort(&error, true))
    }

    /// Takes a call out of its queue by a command that names no other key.
    pub(in crate::store::redis) async fn leave_alone(&self, request: &ReleaseRequest<'_>) -> Result<(), StoreError> {
        let release = self.release_of(request);
        let (commands, live) = self.commands.for_release(request).await?;
        let mut remove = redis::cmd("ZREM");
        remove.arg(release.queue(&self.names)).arg(release.member);
        let removed = commands.call(&live, Limited::Releases, request.key, remove).await;
        removed.map(drop).map_err(|error| sort(&error, true))
    }

    /// Repeats releases of one kind, by one command, at a server that may not know them.
    pub(in crate::store::redis) async fn release_again(&self, releases: &[Release]) -> Result<(), StoreError> {
        let commands = self.commands.here();
        let again = async {
            let live = commands.live().await?;
            let answer = commands.release_all(&live, releases).await;
            answer.map_err(|error| sort(&error, true))
        };
        within(commands.host(), Timer::LockThread, commands.response_timeout(), again).await?;
        // The server that takes over next may not know them either.
        for release in releases {
            self.commands.note_released(|| release.clone());
        }
        Ok(())
    }

    /// Returns what takes a call out of its queue and leaves the lock alone.
    pub(in crate::store::redis) fn leave_of(&self, request: &QueueRequest<'_>) -> Release {
        Release {
            value: "".into(),
            member: self.names.member(request.value, request.queued()),
            ..Release::of(request.key, request.value)
        }
    }

    pub(super) fn release_of(&self, request: &ReleaseRequest<'_>) -> Release {
        let member = request.queued.map(|queued| self.names.member(request.value, queued));
        Release {
            keep: request.keep.map_or(0, millis),
            member: member.unwrap_or_default(),
            leave_free: request.leave_free,
            ..Release::of(request.key, request.value)
        }
    }

    /// Raises the fencing counter of a key's slot to a token of another one.
    pub(in crate::store::redis) async fn raise_fence(&self, key: &str, fence: FencingToken) -> Result<(), StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        let counter = self.names.counter(key);
        let keys: [&str; 1] = [&counter];
        let raised = eval_about(&commands, &live, &RAISE_FENCE, key, &keys, |command| {
            command.arg(fence.get());
        });
        raised.await.map(drop)
    }

    /// Raises the fencing counter to a token of another master of a quorum, for a lock that is still held.
    pub(in crate::store::redis) async fn raise_own_fence(
        &self,
        key: &str,
        value: &HolderValue,
        fence: FencingToken,
    ) -> Result<Ownership, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        let counter = self.names.counter(key);
        let keys: [&str; 2] = [key, &counter];
        let answer = eval(&commands, &live, &RAISE_OWN_FENCE, &keys, |command| {
            command.arg(value.as_str()).arg(fence.get());
        });
        verdict(&answer.await?)
    }

    /// Takes the next fencing token for a lock that is held.
    pub(in crate::store::redis) async fn next_token(
        &self,
        key: &str,
        value: &HolderValue,
    ) -> Result<Fence, StoreError> {
        let script = if value.is_shared() { &SHARED_FENCE } else { &FENCE };
        let commands = self.commands.here();
        let live = commands.live().await?;
        let counter = self.names.counter(key);
        let keys: [&str; 2] = [key, &counter];
        let answer = eval(&commands, &live, script, &keys, |command| {
            command.arg(value.as_str());
        });
        token_or_verdict(&answer.await?)
    }
}

/// Renews locks of one kind on a connection.
pub(in crate::store::redis) async fn renew_on(
    slot: &ConnectionSlot,
    live: &Connection,
    script: &LockScript,
    keys: &[&str],
    requests: &[RenewRequest],
) -> Result<Vec<Ownership>, StoreError> {
    let answer = eval(slot, live, script, keys, |command| {
        for request in requests {
            command
                .arg(request.value.as_str())
                .arg(request.extend.map_or(0, millis));
        }
    });
    verdicts(&answer.await?, requests.len())
}

/// Takes the lock by one plain command, and reads the server's mark behind it. Returns `None` if the key held the
/// caller's own value already: its lease is then still the earlier one.
async fn take_marked(
    commands: &ConnectionSlot,
    live: &Connection,
    request: &AcquireRequest<'_>,
    mark: &str,
) -> Result<Option<Attempt>, StoreError> {
    let take = Take::new(request.key, request.value.text(), millis(request.ttl));
    let both = commands.take_and_read_mark(live, take);
    let (both, remaining) = if request.tell_remaining {
        // Both are sent before the first answer is back.
        tokio::join!(both, remaining(commands, live, request.key))
    } else {
        (both.await, None)
    };
    match Marked::read(both, request.value.as_str(), mark)? {
        Marked::Found(answer) => taken(&answer, request.value.as_str(), remaining),
        Marked::NotFound(unmarked) => Err(unmarked.error(Box::pin(commands.unmarked(live)).await)),
    }
}

/// The answer to a plain request for a lock, by the mark that was read behind it.
pub(super) enum Marked {
    Found(Value),
    NotFound(Unmarked),
}

/// The answer of a server that may have forgotten locks.
pub(super) struct Unmarked {
    /// `true` if somebody else has the lock, so that the request has not taken it.
    is_busy: bool,
}

impl Marked {
    pub(super) fn read(both: Result<Value, RedisError>, value: &str, mark: &str) -> Result<Self, StoreError> {
        let both = both.map_err(|error| sort(&error, true))?;
        let Value::Array(both) = both else {
            return Err(unexpected(&both));
        };
        let both = <[Value; 2]>::try_from(both).map_err(|both| unexpected(&Value::Array(both)))?;
        let [answer, found] = both;
        if matches!(&found, Value::BulkString(found) if found == mark.as_bytes()) {
            return Ok(Self::Found(answer));
        }
        let is_busy = matches!(&answer, Value::BulkString(holder) if holder != value.as_bytes());
        Ok(Self::NotFound(Unmarked { is_busy }))
    }
}

impl Unmarked {
    /// Returns the error of the request, given why the server takes no locks.
    pub(super) fn error(&self, error: StoreError) -> StoreError {
        if self.is_busy { error } else { error.into_unknown() }
    }
}

/// Returns the answer for the only lock of a script's run.
fn alone(answer: Value) -> Result<Value, StoreError> {
    the_one(Ok(answer)).map_err(|error| sort(&error, true))
}

/// Asks for the rest of the holder's lease.
pub(super) async fn remaining(commands: &ConnectionSlot, live: &Connection, lock: &str) -> Option<Duration> {
    let mut pttl = redis::cmd("PTTL");
    pttl.arg(lock);
    let answer = commands.call(live, Limited::Acquires, lock, pttl).await;
    answer.ok().as_ref().and_then(as_remaining)
}
