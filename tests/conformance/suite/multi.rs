//! The promises of taking many locks at once, each tried from outside through several clients.

use std::sync::Arc;

use lock_runtime::store::{AcquireAllRequest, AttemptAll, Ownership, Receipt};

use crate::place::{Ask, Client, GRANTED, LONG, Place, STEP, is_about, token};

const KEYS: [&str; 4] = ["account:1", "account:2", "account:3", "account:4"];
const ALL: AttemptAll = AttemptAll::Granted { fence: None };

/// A value in the usual form.
fn client(place: &dyn Place, name: &str) -> Client {
    place.client(&format!("{}:host:1:{name}", token(name)))
}

async fn holds(client: &Client, keys: &[&str]) {
    for key in KEYS {
        let verdict = client.renew(key, None).await;
        assert_eq!(
            verdict == Ownership::Owned,
            keys.contains(&key),
            "{} and {key}: {verdict:?}",
            client.value
        );
    }
}

async fn all_are_free(place: &dyn Place) {
    for key in KEYS {
        assert!(!place.client("nobody").finds_busy(key).await, "{key}");
    }
}

async fn gives_back(client: &Client, keys: &[&str]) {
    for key in keys {
        assert_eq!(
            client.release(key).await,
            Ownership::Owned,
            "{} and {key}",
            client.value
        );
    }
}

async fn is_busy(client: &Client, keys: &[&str], former: Option<&str>, keep: bool) -> usize {
    match client.acquire_all(keys, former, keep, LONG).await {
        AttemptAll::Busy { at, .. } => at,
        granted @ AttemptAll::Granted { .. } => panic!("{} got {granted:?}", client.value),
    }
}

pub(crate) async fn all_free_keys_are_taken_at_once(place: &dyn Place) {
    let (a, b) = (client(place, "a"), client(place, "b"));
    assert_eq!(a.acquire_all(&KEYS[..3], None, false, LONG).await, ALL);
    holds(&a, &KEYS[..3]).await;
    for key in &KEYS[..3] {
        assert!(is_about(b.rest(key).await, LONG));
    }
    assert_eq!(b.acquire(KEYS[3], LONG).await, GRANTED);
    gives_back(&b, &KEYS[3..]).await;
    gives_back(&a, &KEYS[..3]).await;
    all_are_free(place).await;
    // One alone, too.
    assert_eq!(a.acquire_all(&KEYS[1..2], None, false, LONG).await, ALL);
    holds(&a, &KEYS[1..2]).await;
    gives_back(&a, &KEYS[1..2]).await;
}

pub(crate) async fn nothing_is_taken_when_one_key_is_busy(place: &dyn Place) {
    let (a, b) = (client(place, "a"), client(place, "b"));
    for (at, key) in KEYS.into_iter().enumerate() {
        assert_eq!(b.acquire(key, 2 * STEP).await, GRANTED);
        let AttemptAll::Busy {
            at: first,
            holder,
            remaining,
        } = a.acquire_all(&KEYS, None, false, LONG).await
        else {
            panic!("it was granted");
        };
        assert_eq!(first, at);
        assert_eq!(holder.unwrap().value(), b.value);
        assert!(is_about(remaining, 2 * STEP), "{remaining:?}");
        holds(&a, &[]).await;
        holds(&b, &[key]).await;
        gives_back(&b, &[key]).await;
    }
    // The first of several that are busy.
    gives_back_after(&b, &[KEYS[1], KEYS[3]], async |_| {
        assert_eq!(is_busy(&a, &KEYS, None, false).await, 1);
    })
    .await;
    all_are_free(place).await;
}

/// Takes some keys one by one, and gives them back after something else.
async fn gives_back_after(client: &Client, keys: &[&str], then: impl AsyncFnOnce(&Client)) {
    for key in keys {
        assert_eq!(client.acquire(key, LONG).await, GRANTED);
    }
    then(client).await;
    gives_back(client, keys).await;
}

pub(crate) async fn ones_own_value_is_granted_all_again(place: &dyn Place) {
    let a = client(place, "a");
    assert_eq!(a.acquire_all(&KEYS, None, false, 2 * STEP).await, ALL);
    place.age(STEP).await;
    // Twice delivered, with the lease that was asked for, and also where only some are left.
    assert_eq!(a.acquire_all(&KEYS, None, false, LONG).await, ALL);
    assert!(is_about(client(place, "b").rest(KEYS[2]).await, LONG));
    gives_back(&a, &KEYS[1..2]).await;
    assert_eq!(a.acquire_all(&KEYS, None, false, LONG).await, ALL);
    holds(&a, &KEYS).await;
    gives_back(&a, &KEYS).await;
    all_are_free(place).await;
}

pub(crate) async fn whoever_holds_some_and_finds_others_busy_gives_them_back(place: &dyn Place) {
    let (a, b) = (client(place, "a"), client(place, "b"));
    for former in [false, true] {
        let later = client(place, "later");
        // What it holds by its value, or held by its former one.
        let (asks, before) = if former {
            (&later, Some(a.value.as_str()))
        } else {
            (&a, None)
        };
        assert_eq!(a.acquire(KEYS[0], LONG).await, GRANTED);
        assert_eq!(a.acquire(KEYS[3], LONG).await, GRANTED);
        assert_eq!(b.acquire(KEYS[2], LONG).await, GRANTED);
        assert_eq!(is_busy(asks, &KEYS, before, false).await, 2);
        holds(&a, &[]).await;
        holds(&later, &[]).await;
        holds(&b, &[KEYS[2]]).await;
        gives_back(&b, &[KEYS[2]]).await;
        all_are_free(place).await;
    }
}

pub(crate) async fn a_former_value_gives_way_to_the_new_one(place: &dyn Place) {
    let (former, new) = (client(place, "former"), client(place, "new"));
    assert_eq!(former.acquire(KEYS[1], STEP).await, GRANTED);
    assert_eq!(former.acquire(KEYS[2], STEP).await, GRANTED);
    assert_eq!(new.acquire_all(&KEYS, Some(&former.value), false, LONG).await, ALL);
    holds(&former, &[]).await;
    holds(&new, &KEYS).await;
    for key in KEYS {
        assert!(is_about(former.rest(key).await, LONG), "{key}");
    }
    assert_eq!(former.release(KEYS[1]).await, Ownership::Foreign);
    gives_back(&new, &KEYS).await;
    all_are_free(place).await;
}

pub(crate) async fn smaller_keys_may_be_kept_while_waiting_for_a_busy_one(place: &dyn Place) {
    let (b, former, new) = (client(place, "b"), client(place, "former"), client(place, "new"));
    assert_eq!(b.acquire(KEYS[2], LONG).await, GRANTED);
    assert_eq!(former.acquire(KEYS[0], LONG).await, GRANTED);
    assert_eq!(former.acquire(KEYS[3], LONG).await, GRANTED);
    assert_eq!(is_busy(&new, &KEYS, Some(&former.value), true).await, 2);
    // Those before the busy one are its own now, also what was free; those behind it are nobody's.
    holds(&former, &[]).await;
    holds(&new, &KEYS[..2]).await;
    for key in &KEYS[..2] {
        assert!(is_about(b.rest(key).await, LONG / 2), "{key}");
    }
    assert!(!client(place, "c").finds_busy(KEYS[3]).await);
    // The same once more, because the answer was lost.
    assert_eq!(is_busy(&new, &KEYS, Some(&former.value), true).await, 2);
    holds(&new, &KEYS[..2]).await;
    gives_back(&b, &KEYS[2..3]).await;
    let last = client(place, "last");
    assert_eq!(last.acquire_all(&KEYS, Some(&new.value), true, LONG).await, ALL);
    holds(&last, &KEYS).await;
    for key in KEYS {
        assert!(is_about(b.rest(key).await, LONG), "{key}");
    }
    gives_back(&last, &KEYS).await;
    all_are_free(place).await;
}

pub(crate) async fn what_is_given_back_goes_to_whoever_waits(place: &dyn Place) {
    let (a, b) = (client(place, "a"), client(place, "b"));
    assert_eq!(a.acquire(KEYS[0], LONG).await, GRANTED);
    assert_eq!(a.acquire(KEYS[3], LONG).await, GRANTED);
    assert_eq!(b.acquire(KEYS[2], LONG).await, GRANTED);
    let [first, last] = [(KEYS[0], "first"), (KEYS[3], "last")].map(|(key, name)| (key, client(place, name)));
    let first = first.1.stand(first.0, Ask::default()).await;
    let last = last.1.stand(last.0, Ask::default()).await;
    // With the smaller ones kept, the larger one is given back.
    assert_eq!(is_busy(&a, &KEYS, None, true).await, 2);
    let client_of_last = last.client.clone();
    holds(&client_of_last, &KEYS[3..]).await;
    last.claim().await;
    assert!(first.waits());
    assert_eq!(is_busy(&a, &KEYS, None, false).await, 2);
    let client_of_first = first.client.clone();
    holds(&client_of_first, &KEYS[..1]).await;
    first.claim().await;
    holds(&client_of_last, &KEYS[3..]).await;
    holds(&a, &[]).await;
    for (client, key) in [(&client_of_first, KEYS[0]), (&client_of_last, KEYS[3]), (&b, KEYS[2])] {
        gives_back(client, &[key]).await;
    }
    all_are_free(place).await;
}

/// Handed one key of many, the waiter asks for all with the value that it was handed it by.
pub(crate) async fn whoever_was_handed_one_goes_on_to_all(place: &dyn Place) {
    let (b, former) = (client(place, "b"), client(place, "former"));
    assert_eq!(b.acquire(KEYS[1], LONG).await, GRANTED);
    assert_eq!(is_busy(&former, &KEYS, None, true).await, 1);
    let waiter = client(place, "waiter");
    let standing = waiter.stand(KEYS[1], Ask::default()).await;
    assert!(standing.waits());
    gives_back(&b, &KEYS[1..2]).await;
    standing.claim().await;
    assert_eq!(waiter.acquire_all(&KEYS, Some(&former.value), true, LONG).await, ALL);
    holds(&waiter, &KEYS).await;
    holds(&former, &[]).await;
    gives_back(&waiter, &KEYS).await;
    all_are_free(place).await;
}

pub(crate) async fn one_token_is_above_those_of_all_keys(place: &dyn Place) {
    let a = client(place, "a");
    let keys: Vec<Arc<str>> = KEYS.iter().map(|&key| key.into()).collect();
    let mut last = 0;
    for _ in 0..10 {
        for key in KEYS {
            last = last.max(a.acquire_fenced(key).await);
            gives_back(&a, &[key]).await;
        }
        let receipt = Receipt::default();
        let request = AcquireAllRequest {
            keys: &keys,
            value: &a.holder_value(),
            former: None,
            keep: None,
            ttl: LONG,
            fence: true,
            receipt: &receipt,
        };
        let AttemptAll::Granted { fence: Some(token) } = a.store.acquire_all(&request).await.unwrap() else {
            panic!("not granted, or without a token");
        };
        assert!(receipt.connection().is_some());
        assert!(token.get() > last, "{token} after {last}");
        gives_back(&a, &KEYS).await;
        last = token.get();
    }
}

pub(crate) async fn all_run_out_by_themselves(place: &dyn Place) {
    let (a, b) = (client(place, "a"), client(place, "b"));
    assert_eq!(a.acquire_all(&KEYS, None, false, 2 * STEP).await, ALL);
    assert_eq!(a.renew(KEYS[0], Some(LONG)).await, Ownership::Owned);
    place.age(2 * STEP).await;
    // Each for itself.
    assert_eq!(is_busy(&b, &KEYS, None, false).await, 0);
    assert_eq!(b.acquire_all(&KEYS[1..], None, false, LONG).await, ALL);
    holds(&a, &KEYS[..1]).await;
    gives_back(&a, &KEYS[..1]).await;
    gives_back(&b, &KEYS[1..]).await;
}

/// Whoever comes in between takes all or nothing as well.
pub(crate) async fn many_who_want_some_of_all_never_have_one_together(place: &dyn Place) {
    let tasks: Vec<_> = (0..12)
        .map(|number| {
            let clients: Vec<_> = (0..30)
                .map(|round| client(place, &format!("{number}-{round}")))
                .collect();
            tokio::spawn(async move {
                let mut granted = 0;
                for (round, client) in clients.into_iter().enumerate() {
                    let mut keys = [KEYS[(number + round) % 4], KEYS[(number * 2 + round + 1) % 4]].to_vec();
                    keys.sort_unstable();
                    keys.dedup();
                    if client.acquire_all(&keys, None, false, LONG).await == ALL {
                        granted += 1;
                        tokio::task::yield_now().await;
                        gives_back(&client, &keys).await;
                    }
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.unwrap();
    }
    assert!(granted > 12, "only {granted}");
    all_are_free(place).await;
}
