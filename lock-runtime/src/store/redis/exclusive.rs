//! The exclusive lock: `SET key value NX PX`, and scripts that compare before they act.

use std::time::Duration;

use redis::{Cmd, Value};

use super::RedisStore;
use super::failure::{is_missing_script, sort};
use super::link::{Link, Live};
use super::scripts::{ACQUIRE, FENCE, LockScript, RENEW, eval, release_of};
use super::values::{
    as_remaining, granted_or_busy, holder_of, millis, released, token_or_verdict, unexpected, verdict, verdicts,
};
use super::wire::{Release, Reply, Report, What, the_one};
use crate::store::{
    AcquireRequest, Attempt, Fence, Mode, ReleaseReport, ReleaseRequest, RenewRequest, StoreError, Verdict,
};

impl RedisStore {
    pub(super) async fn acquire_exclusive(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        request.receipt.sent_on(live.number);
        let may_hold = live.server.is_7 && !request.fence && !request.fair;
        if may_hold && let Some(answer) = acquire_by_set(&commands, &live, request).await? {
            return Ok(answer);
        }
        let queue = self.names.queue(request.key);
        let keys: [&str; 3] = [request.key, &queue, &self.names.counter];
        let answer = eval(&commands, &live, &ACQUIRE, &keys, |command| {
            command
                .arg(&**request.value)
                .arg(millis(request.lease))
                .arg(u8::from(request.fence))
                .arg(u8::from(request.fair));
        });
        // After the cheap path has found the caller's own value, a failure does not mean that nothing was taken.
        let answer = answer
            .await
            .map_err(|error| if may_hold { StoreError::unknown(error) } else { error });
        match answer? {
            Value::Array(parts) => granted_or_busy(&parts),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn renew_exclusive(&self, requests: &[RenewRequest]) -> Result<Vec<Verdict>, StoreError> {
        self.renew_by(&RENEW, requests).await
    }

    pub(super) async fn renew_by(
        &self,
        script: &LockScript,
        requests: &[RenewRequest],
    ) -> Result<Vec<Verdict>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let live = self.background.live().await?;
        let keys: Vec<&str> = requests.iter().map(|request| &*request.key).collect();
        let answer = eval(&self.background, &live, script, &keys, |command| {
            for request in requests {
                command.arg(&*request.value).arg(request.extend.map_or(0, millis));
            }
        });
        verdicts(&answer.await?, requests.len())
    }

    pub(super) async fn release_exclusive(&self, request: &ReleaseRequest<'_>) -> Result<Verdict, StoreError> {
        verdict(&self.give_back(request).await?)
    }

    /// Sends the release of a lock in whatever mode, and waits for the script's answer.
    pub(super) async fn give_back(&self, request: &ReleaseRequest<'_>) -> Result<Value, StoreError> {
        let (commands, live) = self.commands.for_release(request).await?;
        request.receipt.sent_on(live.number);
        let answer = match commands.release(&live, self.release_of(request), &self.names).await {
            // Not by SCRIPT LOAD: in a cluster that would have to succeed on every node.
            Err(error) if is_missing_script(&error) => {
                let release = self.release_of(request);
                let script = release_of(release.is_shared).form(live.server.is_7);
                let command = release.command("EVAL", &script.source, &self.names);
                the_one(commands.call(&live, request.key, command).await)
            }
            answer => answer,
        };
        answer.map_err(|error| sort(error, true))
    }

    /// Puts a release on the wire, if there is one.
    pub(super) fn send_release(
        &self,
        request: &ReleaseRequest<'_>,
        report: ReleaseReport,
    ) -> Result<(), ReleaseReport> {
        let live = self.commands.here().up();
        let Some((live, wire)) = live.as_ref().and_then(|live| Some((live, live.wire.as_ref()?))) else {
            return Err(report);
        };
        request.receipt.sent_on(live.number);
        let release = self.release_of(request);
        let verdict = if release.is_shared { released } else { verdict };
        let reply = Reply::Report(Report::new(move |answer| {
            report(match answer {
                Some(Ok(answer)) => verdict(&answer),
                Some(Err(error)) => Err(sort(error, true)),
                None => Err(StoreError::unknown("the connection was given up")),
            });
        }));
        wire.put(What::Release(release), reply);
        Ok(())
    }

    fn release_of(&self, request: &ReleaseRequest<'_>) -> Release {
        let member = request.queued.map(|queued| self.names.member(request.value, queued));
        Release {
            lock: request.key.to_owned(),
            queue: self.names.queue_for(request.key, request.value),
            value: request.value.to_owned(),
            is_shared: Mode::is_shared(request.value),
            keep: request.keep.map_or(0, millis),
            member: member.unwrap_or_default(),
        }
    }

    pub(super) async fn fence_exclusive(&self, key: &str, value: &str) -> Result<Fence, StoreError> {
        self.fence_by(&FENCE, key, value).await
    }

    pub(super) async fn fence_by(&self, script: &LockScript, key: &str, value: &str) -> Result<Fence, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        let keys: [&str; 2] = [key, &self.names.counter];
        let answer = eval(&commands, &live, script, &keys, |command| {
            command.arg(value);
        });
        token_or_verdict(&answer.await?)
    }
}

/// The cheap path: one plain command. `GET` tells the holder, and refuses a key of another type. `None`: the key
/// held the caller's own value already, and its lease is still the earlier one.
async fn acquire_by_set(
    commands: &Link,
    live: &Live,
    request: &AcquireRequest<'_>,
) -> Result<Option<Attempt>, StoreError> {
    let mut set = Cmd::with_capacity(7, request.key.len() + request.value.len() + 32);
    set.arg("SET")
        .arg(&**request.key)
        .arg(&**request.value)
        .arg("NX")
        .arg("GET")
        .arg("PX")
        .arg(millis(request.lease));
    let taken = async {
        commands
            .call(live, request.key, set)
            .await
            .map_err(|error| sort(error, true))
    };
    // Both are on their way before the first answer is back.
    let (answer, remaining) = tokio::join!(taken, remaining(commands, live, request));
    match answer? {
        Value::Nil => Ok(Some(Attempt::Granted { fence: None })),
        Value::BulkString(holder) if holder == request.value.as_bytes() => Ok(None),
        Value::BulkString(holder) => Ok(Some(Attempt::Busy {
            holder: Some(holder_of(&holder)),
            remaining,
        })),
        other => Err(unexpected(&other)),
    }
}

async fn remaining(commands: &Link, live: &Live, request: &AcquireRequest<'_>) -> Option<Duration> {
    if !request.tell_remaining {
        return None;
    }
    let mut pttl = redis::cmd("PTTL");
    pttl.arg(&**request.key);
    let answer = commands.call(live, request.key, pttl).await;
    answer.ok().as_ref().and_then(as_remaining)
}
