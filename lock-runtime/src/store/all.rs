//! Many locks in a store that takes them one at a time.

use super::{AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, LockStore, Receipt, ReleaseRequest, StoreError};

/// Takes the locks in their order, and gives them back at the first one that is busy: `keep` is not for such a store.
pub(super) async fn one_by_one<S: LockStore + ?Sized>(
    store: &S,
    request: &AcquireAllRequest<'_>,
) -> Result<AttemptAll, StoreError> {
    let mut last_fence = None;
    for (at, key) in request.keys.iter().enumerate() {
        let one = AcquireRequest {
            key,
            value: request.value,
            lease: request.lease,
            fence: request.fence,
            tell_remaining: true,
            fair: false,
            receipt: request.receipt,
        };
        match store.acquire(&one).await {
            // The last token is larger than those of the keys before.
            Ok(Attempt::Granted { fence }) => last_fence = fence,
            Ok(Attempt::Busy { holder, remaining }) => {
                give_back(store, request).await?;
                return Ok(AttemptAll::Busy { at, holder, remaining });
            }
            // Some may have been taken by now.
            Err(error) if at > 0 => return Err(StoreError::unknown(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(AttemptAll::Granted { fence: last_fence })
}

/// Gives back what was taken; a key behind the busy one may have been handed to the value before.
async fn give_back<S: LockStore + ?Sized>(store: &S, request: &AcquireAllRequest<'_>) -> Result<(), StoreError> {
    for key in request.keys.iter().rev() {
        let release = ReleaseRequest {
            key,
            value: request.value,
            keep: None,
            unanswered_on: None,
            queued: None,
            receipt: &Receipt::default(),
        };
        store.release(&release).await.map_err(StoreError::unknown)?;
    }
    Ok(())
}
