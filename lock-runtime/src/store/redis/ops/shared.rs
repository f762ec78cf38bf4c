//! The shared modes, which are all but exclusive: readers or a writer, a semaphore's permits, an
//! owner's holders. Each mode's Lua file defines which holders can share the lock.

use crate::store::redis::RedisStore;
use crate::store::redis::connection::eval;
use crate::store::redis::keyspace::drawing;
use crate::store::redis::reply::{attempt, millis, released};
use crate::store::redis::scripts::{SHARED_ACQUIRE, SHARED_FENCE, SHARED_RENEW};
use crate::store::{AcquireRequest, Attempt, Fence, HolderValue, Ownership, ReleaseRequest, RenewRequest, StoreError};

impl RedisStore {
    pub(in crate::store::redis) async fn acquire_shared(
        &self,
        request: &AcquireRequest<'_>,
    ) -> Result<Attempt, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        commands.mark(&live, request.value).await?;
        request.receipt.sent_on(live.number);
        let queue = self.names.queue_for(request.key, request.value);
        let counter = self.names.counter(request.key);
        let keys: [&str; 3] = [request.key, &queue, &counter];
        let keys = drawing(request.fence, &keys);
        let answer = eval(&commands, &live, &SHARED_ACQUIRE, keys, |command| {
            command
                .arg(request.value.as_str())
                .arg(millis(request.ttl))
                .arg(u8::from(request.fence))
                .arg(&self.names.channels);
        });
        attempt(&answer.await?)
    }

    /// Renews locks of all modes, with one script run for the shared modes and one for the
    /// exclusive locks.
    pub(in crate::store::redis) async fn renew_mixed(
        &self,
        requests: &[RenewRequest],
    ) -> Result<Vec<Ownership>, StoreError> {
        let is_shared = |request: &RenewRequest| request.value.is_shared();
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

    pub(in crate::store::redis) async fn release_shared(
        &self,
        request: &ReleaseRequest<'_>,
    ) -> Result<Ownership, StoreError> {
        released(&self.give_back(request).await?)
    }

    pub(in crate::store::redis) async fn fence_shared(
        &self,
        key: &str,
        value: &HolderValue,
    ) -> Result<Fence, StoreError> {
        self.fence_by(&SHARED_FENCE, key, value).await
    }
}
