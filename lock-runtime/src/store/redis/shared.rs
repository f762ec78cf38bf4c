//! The locks that several may hold: readers or a writer, a semaphore's permits, an owner's many hands. Who may hold one beside whom, each
//! mode's Lua says.

use redis::Value;

use super::RedisStore;
use super::scripts::{SHARED_ACQUIRE, SHARED_FENCE, SHARED_RENEW, eval};
use super::values::{granted_or_busy, millis, released, unexpected};
use crate::store::{AcquireRequest, Attempt, Fence, Mode, ReleaseRequest, RenewRequest, StoreError, Verdict};

impl RedisStore {
    pub(super) async fn acquire_shared(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        request.receipt.sent_on(live.number);
        let queue = self.names.queue_for(request.key, request.value);
        let keys: [&str; 3] = [request.key, &queue, &self.names.counter];
        let answer = eval(&commands, &live, &SHARED_ACQUIRE, &keys, |command| {
            command
                .arg(&**request.value)
                .arg(millis(request.lease))
                .arg(u8::from(request.fence))
                .arg(&self.names.channels);
        });
        match answer.await? {
            Value::Array(parts) => granted_or_busy(&parts),
            other => Err(unexpected(&other)),
        }
    }

    /// Renews locks of all modes: one script's run for those that several may hold, and one for the others.
    pub(super) async fn renew_mixed(&self, requests: &[RenewRequest]) -> Result<Vec<Verdict>, StoreError> {
        let is_shared = |request: &RenewRequest| Mode::is_shared(&request.value);
        let (shared, exclusive): (Vec<_>, Vec<_>) = requests.iter().cloned().partition(is_shared);
        let (shared, exclusive) =
            tokio::try_join!(self.renew_by(&SHARED_RENEW, &shared), self.renew_exclusive(&exclusive))?;
        let (mut shared, mut exclusive) = (shared.into_iter(), exclusive.into_iter());
        let verdicts = requests.iter().filter_map(|request| {
            if is_shared(request) {
                shared.next()
            } else {
                exclusive.next()
            }
        });
        Ok(verdicts.collect())
    }

    pub(super) async fn release_shared(&self, request: &ReleaseRequest<'_>) -> Result<Verdict, StoreError> {
        released(&self.give_back(request).await?)
    }

    pub(super) async fn fence_shared(&self, key: &str, value: &str) -> Result<Fence, StoreError> {
        self.fence_by(&SHARED_FENCE, key, value).await
    }
}
