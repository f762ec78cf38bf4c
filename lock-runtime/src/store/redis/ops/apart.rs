//! Renewals of several locks of which the server refuses some, such as one whose key its user may not use any more.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::join;

use crate::host::{Host, Moment, Mutex};
use crate::store::{Effect, Ownership, RenewRequest, StoreError, StoreFuture};

type Verdicts<'a> = Pin<Box<dyn Future<Output = Vec<Result<Ownership, StoreError>>> + Send + 'a>>;

/// Renews locks by one run of `ask`. If the server refuses that for good, renews either half of them by itself, and so on
/// down to single locks: the server refuses the request as a whole on account of one.
pub(in crate::store::redis) fn renew_apart<'a, A>(requests: &'a [RenewRequest], ask: &'a A) -> Verdicts<'a>
where
    A: Fn(&'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> + Sync,
{
    Box::pin(async move {
        match ask(requests).await {
            Ok(verdicts) => verdicts.into_iter().map(Ok).collect(),
            Err(error) if requests.len() > 1 && is_refused(&error) => {
                let (some, others) = requests.split_at(requests.len() / 2);
                let (mut some, others) = join(renew_apart(some, ask), renew_apart(others, ask)).await;
                some.extend(others);
                some
            }
            Err(error) => vec![Err(error); requests.len()],
        }
    })
}

fn is_refused(error: &StoreError) -> bool {
    error.is_answer() && error.is_permanent() && error.effect() == Effect::None
}

/// The codes of refusals, and when each came last.
#[derive(Default)]
struct Refusals(Mutex<BTreeMap<Box<str>, Moment>>);

/// The time without a refusal after which the next one is logged again.
const IS_OVER: Duration = Duration::from_secs(60);

/// Returns the verdict on each lock, if there is one. If there is none on any lock, fails with the reason.
pub(in crate::store::redis) fn known(
    host: &Host,
    verdicts: Vec<Result<Ownership, StoreError>>,
) -> Result<Vec<Option<Ownership>>, StoreError> {
    let refused = verdicts.iter().filter_map(|verdict| verdict.as_ref().err());
    if let Some(Err(error)) = verdicts.first()
        && verdicts.iter().all(Result::is_err)
    {
        return Err(error.clone());
    }
    let refused: Vec<_> = refused.filter(|error| is_refused(error)).collect();
    if let Some(error) = refused.first() {
        let now = host.now();
        let last = host.keep(Refusals::default).0.lock().insert(error.code(), now);
        // The locks are renewed again and again, until they are lost.
        if last.is_none_or(|last| now.since(last) >= IS_OVER) {
            tracing::warn!(%error, locks = refused.len(), "the server refuses to renew some locks of several");
        }
    }
    Ok(verdicts.into_iter().map(Result::ok).collect())
}
