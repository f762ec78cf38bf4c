//! The shared modes, which are all but exclusive: readers or a writer, a semaphore's permits, an
//! owner's holders. `sharing.lua` defines which holders can share a lock.

use std::sync::atomic::Ordering;

use crate::store::redis::RedisStore;
use crate::store::redis::connection::{AcquireMode, Terms};
use crate::store::redis::reply::released;
use crate::store::redis::scripts::{SHARED_FENCE, SHARED_RENEW};
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
        // The first one finds a command that the server does not allow, before it takes a lock.
        let is_first = !live.allows_shared.load(Ordering::Relaxed);
        let terms = Terms {
            fence: request.fence,
            mode: AcquireMode::Shared { all_commands: is_first },
        };
        let attempt = self.acquire_by_script(&commands, &live, request, terms).await?;
        if is_first && matches!(attempt, Attempt::Granted { .. }) {
            live.allows_shared.store(true, Ordering::Relaxed);
        }
        Ok(attempt)
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
