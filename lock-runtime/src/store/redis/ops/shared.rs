//! The shared modes, which are all but exclusive: readers or a writer, a semaphore's permits, an
//! owner's holders. `sharing.lua` defines which holders can share a lock.

use crate::store::redis::RedisStore;
use crate::store::redis::scripts::{RENEW, SHARED_RENEW};
use crate::store::{Ownership, RenewRequest, StoreError};

impl RedisStore {
    /// Renews locks of all modes, with one script run for the shared modes and one for the
    /// exclusive locks.
    pub(in crate::store::redis) async fn renew_mixed(
        &self,
        requests: &[RenewRequest],
    ) -> Result<Vec<Ownership>, StoreError> {
        let is_shared = |request: &RenewRequest| request.value.is_shared();
        let (shared, exclusive): (Vec<_>, Vec<_>) = requests.iter().cloned().partition(is_shared);
        let (shared, exclusive) =
            tokio::try_join!(self.renew_by(&SHARED_RENEW, &shared), self.renew_by(&RENEW, &exclusive))?;
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
}
