//! The promises of the operator's view.

use std::time::Duration;

use lock_runtime::FencingToken;
use lock_runtime::store::{LockMode, Ownership, QueueOutcome};
use lock_tests::PATIENCE;

use crate::place::{Ask, Client, GRANTED, LONG, Place, is_about};

const KEY: &str = "inventory:7";
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef:host-1:17:stock::reduce";

pub(crate) async fn a_free_lock_is_nothing_to_tell(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.store.inspect(KEY).await.unwrap(), None);
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    assert!(a.store.inspect(KEY).await.unwrap().is_some());
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert_eq!(a.store.inspect(KEY).await.unwrap(), None);
}

/// Looks until so many are seen to wait, without letting the time of a paused clock pass. A process that has stood still counts as gone
/// until it is heard of again.
async fn sees_waiting(client: &Client, waiters: u64) {
    let began = std::time::Instant::now();
    loop {
        let seen = client.store.inspect(KEY).await.unwrap().unwrap().waiters;
        if seen == waiters {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{seen} are seen to wait, not {waiters}");
        std::thread::sleep(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn a_held_lock_tells_holder_lease_token_and_who_waits(place: &dyn Place) {
    let (a, b) = (place.client(TOKEN), place.client("b"));
    let token = a.acquire_fenced(KEY).await;
    let info = b.store.inspect(KEY).await.unwrap().unwrap();
    assert_eq!((&*info.key, info.waiters), (KEY, 0));
    assert_eq!(info.mode(), Some(LockMode::Exclusive));
    let [holding] = info.holders.as_slice() else {
        panic!("{info:?}")
    };
    let holder = &holding.holder;
    assert_eq!(
        (holder.host(), holder.pid(), holder.function()),
        (Some("host-1"), Some(17), Some("stock::reduce"))
    );
    assert!(is_about(holding.remaining, LONG), "{info:?}");
    assert_eq!((info.fence, info.last_fence), (None, Some(FencingToken::new(token))));
    let mut waiting = Vec::new();
    for nth in 1..=3 {
        waiting.push(place.client(&format!("w{nth}")).stand(KEY, Ask::default()).await);
        sees_waiting(&b, nth).await;
    }
    for left in (0..3).rev() {
        waiting.remove(0).leave().await;
        sees_waiting(&b, left).await;
    }
}

pub(crate) async fn a_lease_that_is_over_is_not_told(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, crate::place::STEP).await, GRANTED);
    place.age(crate::place::STEP).await;
    assert_eq!(a.store.inspect(KEY).await.unwrap(), None);
    assert!(keys(&a, "*").await.is_empty());
    assert!(!a.store.force_release(KEY).await.unwrap());
}

pub(crate) async fn force_hands_the_lock_to_the_next(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert!(!b.store.force_release(KEY).await.unwrap());
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let mut first = b.stand(KEY, Ask::default()).await;
    let second = place.client("c").stand(KEY, Ask::default()).await;
    assert!(b.store.force_release(KEY).await.unwrap());
    assert!(matches!(first.turn().await, QueueOutcome::Granted { .. }));
    assert!(second.waits());
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(a.release(KEY).await, Ownership::Foreign);
    assert_eq!(b.release(KEY).await, Ownership::Owned);
    let c = second.client.clone();
    second.claim().await;
    assert!(b.store.force_release(KEY).await.unwrap());
    assert_eq!(c.renew(KEY, Some(LONG)).await, Ownership::Gone);
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
}

pub(crate) async fn a_list_has_what_is_held_and_matches(place: &dyn Place) {
    let a = place.client("a");
    for key in ["inventory:7", "inventory:8", "account:7"] {
        assert_eq!(a.acquire(key, LONG).await, GRANTED);
    }
    assert_eq!(keys(&a, "*").await, ["account:7", "inventory:7", "inventory:8"]);
    assert_eq!(keys(&a, "inventory:*").await, ["inventory:7", "inventory:8"]);
    assert_eq!(keys(&a, "*:7").await, ["account:7", "inventory:7"]);
    assert_eq!(keys(&a, "nothing").await, Vec::<String>::new());
    assert_eq!(a.release("inventory:8").await, Ownership::Owned);
    assert_eq!(keys(&a, "inventory:?").await, ["inventory:7"]);
}

/// Every page of a list, sorted, each key once.
pub(crate) async fn keys(client: &Client, pattern: &str) -> Vec<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut from = 0;
    loop {
        let page = client.store.list(pattern, from).await.unwrap();
        found.extend(page.locks.iter().map(|info| info.key.to_string()));
        from = page.next;
        if from == 0 {
            return found.into_iter().collect();
        }
    }
}
