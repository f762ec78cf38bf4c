//! Takes many locks in a store that takes them one at a time.

use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, LockStore, Receipt, ReleaseRequest, StoreError,
};

/// Takes the locks in order, and releases them at the first busy one. Ignores `keep`.
pub(super) async fn one_by_one<S: LockStore + ?Sized>(
    store: &S,
    request: &AcquireAllRequest<'_>,
) -> Result<AttemptAll, StoreError> {
    let mut last_fence = None;
    for (at, key) in request.keys.iter().enumerate() {
        let one = AcquireRequest {
            key,
            value: request.value,
            ttl: request.ttl,
            fence: request.fence,
            tell_remaining: true,
            fair: false,
            receipt: request.receipt,
        };
        match store.acquire(&one).await {
            // The last token is larger than those of the keys before it.
            Ok(Attempt::Granted { fence }) => last_fence = fence,
            Ok(Attempt::Busy { holder, remaining }) => {
                give_back(store, request).await?;
                return Ok(AttemptAll::Busy { at, holder, remaining });
            }
            // Earlier keys have been taken already.
            Err(error) if at > 0 => return Err(error.into_unknown()),
            Err(error) => return Err(error),
        }
    }
    Ok(AttemptAll::Granted { fence: last_fence })
}

/// Releases all the locks, also those behind the busy one: one of them may have been handed to this
/// value earlier.
async fn give_back<S: LockStore + ?Sized>(store: &S, request: &AcquireAllRequest<'_>) -> Result<(), StoreError> {
    for key in request.keys.iter().rev() {
        let receipt = Receipt::default();
        let release = ReleaseRequest::plain(key, request.value, &receipt);
        store.release(&release).await.map_err(StoreError::into_unknown)?;
    }
    Ok(())
}
