//! The promises of a store's queue, each tried from outside through several clients.

use std::time::Duration;

use lock_runtime::store::{Attempt, Fence, Ownership, QueueOutcome};

use crate::place::{Ask, GRANTED, LONG, Place, STEP, Standing, is_about};

const KEY: &str = "orders:7";

const FENCED: Ask = Ask {
    lease: LONG,
    fence: true,
    tell_remaining: true,
    fair: false,
};

const FAIR: Ask = Ask {
    lease: LONG,
    fence: false,
    tell_remaining: true,
    fair: true,
};

/// A value in the usual form: a store may mark a kept key by changing its token.
fn value(name: &str) -> String {
    format!("{:0>32}:host:1:{name}", format!("1{}", name.len()))
}

/// New clients that join the queue one after the other.
async fn stand<const N: usize>(place: &dyn Place, names: [&str; N]) -> [Standing; N] {
    let mut all = Vec::new();
    for name in names {
        all.push(place.client(&value(name)).stand(KEY, Ask::default()).await);
    }
    all.try_into().ok().unwrap()
}

/// Who has the key.
async fn holder(place: &dyn Place) -> Option<String> {
    match place.client("nobody").acquire(KEY, LONG).await {
        Attempt::Busy { holder, .. } => Some(holder.unwrap().value().to_owned()),
        Attempt::Granted { .. } => {
            assert_eq!(place.client("nobody").release(KEY).await, Ownership::Owned);
            None
        }
    }
}

/// Claims the lock and gives it back.
async fn served(standing: Standing) {
    let client = standing.client.clone();
    standing.claim().await;
    assert_eq!(client.release(KEY).await, Ownership::Owned);
}

pub(crate) async fn a_free_key_is_granted_at_once(place: &dyn Place) {
    for round in 0..3 {
        let mut standing = place
            .client(&format!("waiter {round}"))
            .stand(KEY, Ask::default())
            .await;
        let QueueOutcome::Granted { fence, .. } = standing.turn().await else {
            panic!("not granted");
        };
        assert_eq!(fence, None);
        assert!(is_about(place.client("b").rest(KEY).await, LONG));
        assert_eq!(standing.client.release(KEY).await, Ownership::Owned);
        assert_eq!(holder(place).await, None);
    }
}

pub(crate) async fn a_release_hands_over_in_the_order_of_joining(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    // More than the digits of one number, and names in no order.
    let mut line = Vec::new();
    for nth in 0..25 {
        let client = place.client(&value(&format!("{}", (nth * 7) % 25)));
        line.push(client.stand(KEY, Ask::default()).await);
    }
    let mut last = a;
    for (nth, standing) in line.into_iter().enumerate() {
        assert!(standing.waits(), "number {nth} had the lock too early");
        assert_eq!(last.release(KEY).await, Ownership::Owned);
        let next = standing.client.clone();
        standing.claim().await;
        assert_eq!(holder(place).await, Some(next.value.clone()));
        assert_eq!(last.renew(KEY, None).await, Ownership::Foreign);
        last = next;
    }
    assert_eq!(last.release(KEY).await, Ownership::Owned);
    assert_eq!(holder(place).await, None);
}

pub(crate) async fn keys_have_queues_of_their_own(place: &dyn Place) {
    let keys = ["a", "{a}", "{a}:b", "a}", "{", "a:{b}:c", "%lock", " ", "ä", "a\r\n"];
    let holder = place.client("holder");
    let mut line = Vec::new();
    for key in keys.into_iter().filter(|key| place.keeps(key)) {
        assert_eq!(holder.acquire(key, LONG).await, GRANTED, "{key:?}");
        let standing = place.client(&value(key)).stand(key, Ask::default()).await;
        line.push((key, standing));
    }
    // From the last to the first.
    while let Some((key, standing)) = line.pop() {
        assert_eq!(holder.release(key).await, Ownership::Owned, "{key:?}");
        standing.claim().await;
        assert!(
            line.iter().all(|(_, standing)| standing.waits()),
            "{key:?} let others in"
        );
    }
}

pub(crate) async fn the_grant_is_dated_before_the_expiry_was_set(place: &dyn Place) {
    let a = place.client("a");
    for (nth, lease) in [STEP, LONG, 2 * LONG].into_iter().enumerate() {
        assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
        let ask = Ask {
            lease,
            ..Ask::default()
        };
        let mut standing = place.client(&value(&format!("b{nth}"))).stand(KEY, ask).await;
        let joined = a.clock.now();
        assert_eq!(a.release(KEY).await, Ownership::Owned);
        let QueueOutcome::Granted { since, .. } = standing.turn().await else {
            panic!("not granted");
        };
        assert!(since <= a.clock.now());
        // What is said of it must be of use, too: it had been waiting until just now.
        assert!(joined.since(since) < STEP / 2, "the grant is dated far too early");
        // Of several masters, one may drop its vote sooner than those that the lock is held by.
        let info = a.store.inspect(KEY).await.unwrap().unwrap();
        let rest = info.holders[0].remaining.unwrap();
        let expires = a.clock.now().after(rest + Duration::from_millis(1));
        assert!(since.after(lease) <= expires, "the store drops it sooner than it said");
        assert_eq!(standing.client.release(KEY).await, Ownership::Owned);
    }
}

pub(crate) async fn one_who_leaves_is_passed_over(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let [first, second, third, fourth, last] = stand(place, ["first", "second", "third", "fourth", "last"]).await;
    assert_eq!(first.leave().await, Ownership::Foreign);
    let left = third.client.clone();
    assert_eq!(third.leave().await, Ownership::Foreign);
    // Again, because the answer was lost.
    assert_eq!(left.leave(KEY, Ask::default()).await, Ownership::Foreign);
    let end = last.client.clone();
    assert_eq!(last.leave().await, Ownership::Foreign);
    assert_eq!(holder(place).await.as_deref(), Some("a"));

    assert_eq!(a.release(KEY).await, Ownership::Owned);
    served(second).await;
    served(fourth).await;
    assert_eq!(holder(place).await, None, "somebody who has left got the lock");
    assert_eq!(end.leave(KEY, Ask::default()).await, Ownership::Gone);
}

pub(crate) async fn one_who_leaves_with_the_lock_hands_it_over(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let [first, second, third] = stand(place, ["first", "second", "third"]).await;
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    // Handed over by now, but it may not have heard of it.
    assert_eq!(first.leave().await, Ownership::Owned);
    let mut second = second;
    assert!(matches!(second.turn().await, QueueOutcome::Granted { .. }));
    // It has heard of it, and does not say that it once stood in the queue.
    assert_eq!(second.client.release(KEY).await, Ownership::Owned);
    served(third).await;
    assert_eq!(holder(place).await, None);
}

pub(crate) async fn one_who_never_came_leaves_without_an_effect(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client(&value("b")));
    assert_eq!(b.leave(KEY, Ask::default()).await, Ownership::Gone);
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(b.leave(KEY, Ask::default()).await, Ownership::Foreign);
    let [c] = stand(place, ["c"]).await;
    assert_eq!(b.leave(KEY, FENCED).await, Ownership::Foreign);
    assert!(c.waits());
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    served(c).await;
}

pub(crate) async fn one_who_has_died_blocks_no_longer_than_its_lease(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let ask = Ask {
        lease: 2 * STEP,
        ..Ask::default()
    };
    let dead = place.client(&value("dead")).stand(KEY, ask).await;
    let [next] = stand(place, ["next"]).await;
    let dead = dead.abandon().await;
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    place.age(2 * STEP).await;
    let client = next.client.clone();
    next.claim().await;
    // Late signs of life change nothing.
    assert_eq!(dead.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(dead.leave(KEY, ask).await, Ownership::Foreign);
    assert_eq!(client.release(KEY).await, Ownership::Owned);
    assert_eq!(holder(place).await, None);
}

pub(crate) async fn an_expired_lock_goes_to_the_first_in_line(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
    let [first, second] = stand(place, ["first", "second"]).await;
    place.age(STEP).await;
    assert_eq!(holder(place).await.as_deref(), Some("a"));
    place.age(STEP).await;
    let client = first.client.clone();
    first.claim().await;
    assert_eq!(a.release(KEY).await, Ownership::Foreign);
    assert!(second.waits(), "the lock was handed over twice");
    assert!(is_about(a.rest(KEY).await, LONG));
    assert_eq!(client.release(KEY).await, Ownership::Owned);
    served(second).await;
}

pub(crate) async fn a_renewal_holds_the_queue_back_and_a_shorter_one_lets_it_in_sooner(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
    let [first, second] = stand(place, ["first", "second"]).await;
    place.age(STEP).await;
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Owned);
    place.age(2 * STEP).await;
    assert_eq!(holder(place).await.as_deref(), Some("a"));
    assert!(first.waits());
    assert_eq!(a.renew(KEY, Some(STEP)).await, Ownership::Owned);
    // The next in line must know as well as the first.
    assert_eq!(first.leave().await, Ownership::Foreign);
    place.age(STEP).await;
    served(second).await;
}

pub(crate) async fn a_minimum_hold_holds_the_queue_back_until_it_is_over(place: &dyn Place) {
    let a = place.client(&value("a"));
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let [first, second, third] = stand(place, ["first", "second", "third"]).await;
    assert_eq!(a.try_release(KEY, Some(3 * STEP)).await.unwrap(), Ownership::Owned);
    place.age(2 * STEP).await;
    assert!(holder(place).await.is_some());
    assert!(first.waits(), "the minimum hold is not over");
    assert_eq!(first.leave().await, Ownership::Foreign);
    place.age(STEP).await;
    let client = second.client.clone();
    second.claim().await;
    assert!(third.waits());
    // One who got the lock from another may keep it as well, and longer than its lease.
    assert_eq!(client.try_release(KEY, Some(2 * LONG)).await.unwrap(), Ownership::Owned);
    place.age(LONG).await;
    assert!(third.waits(), "the minimum hold is not over");
    assert!(is_about(a.rest(KEY).await, LONG));
    place.age(LONG).await;
    served(third).await;
}

pub(crate) async fn a_fair_acquire_waits_behind_the_queue_and_a_plain_one_does_not(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    // Alone it is as any other.
    assert_eq!(a.try_acquire(KEY, FAIR).await.unwrap(), GRANTED);
    assert_eq!(
        a.try_acquire(KEY, FAIR).await.unwrap(),
        GRANTED,
        "its own value is there"
    );
    assert!(matches!(
        b.try_acquire(KEY, FAIR).await.unwrap(),
        Attempt::Busy { holder: Some(_), .. }
    ));
    // Nobody looks after the one in the queue, so that the key is free and stays free.
    let standing = loop {
        let [standing] = stand(place, ["standing"]).await;
        let standing = standing.abandon().await;
        place.age(LONG).await;
        match b.try_acquire(KEY, FAIR).await.unwrap() {
            Attempt::Busy { holder: None, .. } => break standing,
            // A look that was still under way has handed it the lock.
            Attempt::Busy { .. } => assert_eq!(standing.leave(KEY, Ask::default()).await, Ownership::Owned),
            answer @ Attempt::Granted { .. } => panic!("{answer:?} before the one who waits"),
        }
        assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    };
    let fenced = Ask { fence: true, ..FAIR };
    let answer = b.try_acquire(KEY, fenced).await.unwrap();
    assert!(
        matches!(answer, Attempt::Busy { .. }),
        "{answer:?} before the one who waits"
    );
    assert_eq!(b.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(standing.leave(KEY, Ask::default()).await, Ownership::Foreign);
    assert_eq!(b.release(KEY).await, Ownership::Owned);
    assert_eq!(b.try_acquire(KEY, FAIR).await.unwrap(), GRANTED);
}

pub(crate) async fn tokens_grow_from_hand_to_hand(place: &dyn Place) {
    let a = place.client("a");
    let mut last = a.acquire_fenced(KEY).await;
    let mut holder = a;
    for nth in 0..30 {
        // With a token in the same step, with one later, and with none.
        let ask = Ask {
            fence: nth % 3 == 0,
            ..Ask::default()
        };
        let standing = place.client(&value(&format!("waiter {nth}"))).stand(KEY, ask).await;
        assert_eq!(holder.release(KEY).await, Ownership::Owned);
        holder = standing.client.clone();
        let token = match standing.claim().await {
            Some(token) => token,
            None if nth % 3 == 1 => holder.token(KEY).await,
            None => continue,
        };
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

pub(crate) async fn a_former_holder_gets_no_token_of_its_successor(place: &dyn Place) {
    let a = place.client("a");
    let before = a.acquire_fenced(KEY).await;
    let standing = place.client(&value("b")).stand(KEY, FENCED).await;
    assert_eq!(standing.client.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert_eq!(a.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
    assert!(standing.claim().await.unwrap() > before);
}

pub(crate) async fn whoever_waits_sees_the_holder(place: &dyn Place) {
    let a = place.client("0123456789abcdef0123456789abcdef:here:7:shop::sell");
    assert_eq!(a.acquire(KEY, 3 * STEP).await, GRANTED);
    let [first] = stand(place, ["first"]).await;
    let (holder, remaining) = first.contention.take().unwrap();
    assert_eq!((holder.value(), holder.function()), (&*a.value, Some("shop::sell")));
    assert!(is_about(remaining, 3 * STEP), "{remaining:?}");
    // Later also a later one.
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    let successor = first.client.clone();
    first.claim().await;
    let [second] = stand(place, ["second"]).await;
    let (holder, _) = second.contention.take().unwrap();
    assert_eq!(holder.value(), successor.value);
}

pub(crate) async fn a_release_by_another_value_hands_over_nothing(place: &dyn Place) {
    let (a, stranger) = (place.client("a"), place.client(&value("stranger")));
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let [first, second] = stand(place, ["first", "second"]).await;
    assert_eq!(stranger.release(KEY).await, Ownership::Foreign);
    assert_eq!(stranger.try_release(KEY, Some(STEP)).await.unwrap(), Ownership::Foreign);
    assert_eq!(stranger.leave(KEY, Ask::default()).await, Ownership::Foreign);
    // Nor does one by those who wait, which does not say that they leave the queue.
    assert_eq!(second.client.release(KEY).await, Ownership::Foreign);
    assert_eq!(
        first.client.try_release(KEY, Some(STEP)).await.unwrap(),
        Ownership::Foreign
    );
    assert_eq!(a.renew(KEY, None).await, Ownership::Owned);
    assert!(first.waits() && second.waits());
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    served(first).await;
    served(second).await;
}

pub(crate) async fn the_same_release_twice_hands_over_once(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let [first, second] = stand(place, ["first", "second"]).await;
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert_eq!(a.release(KEY).await, Ownership::Foreign);
    let client = first.client.clone();
    first.claim().await;
    assert_eq!(a.leave(KEY, Ask::default()).await, Ownership::Foreign);
    assert_eq!(client.renew(KEY, None).await, Ownership::Owned);
    assert!(second.waits(), "the second release handed the lock over once more");
    // The same for one who says that it stood in the queue.
    assert_eq!(client.leave(KEY, Ask::default()).await, Ownership::Owned);
    assert_eq!(client.leave(KEY, Ask::default()).await, Ownership::Foreign);
    served(second).await;
    assert_eq!(holder(place).await, None);
}

pub(crate) async fn many_come_and_go_and_each_gets_the_lock_once(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let mut line = Vec::new();
    let mut served = 0;
    let mut last = a;
    for nth in 0..200 {
        let standing = place
            .client(&value(&format!("waiter {nth}")))
            .stand(KEY, Ask::default())
            .await;
        line.push(standing);
        match nth % 5 {
            0 => assert_eq!(line.remove(line.len() / 2).leave().await, Ownership::Foreign),
            1 | 2 if !line.is_empty() => {
                assert_eq!(last.release(KEY).await, Ownership::Owned);
                let first = line.remove(0);
                last = first.client.clone();
                first.claim().await;
                served += 1;
            }
            _ => {}
        }
    }
    assert_eq!(served, 80);
    assert_eq!(line.len(), 80);
    while !line.is_empty() {
        assert_eq!(last.release(KEY).await, Ownership::Owned);
        let first = line.remove(0);
        last = first.client.clone();
        first.claim().await;
        assert!(line.iter().all(Standing::waits));
    }
    assert_eq!(last.release(KEY).await, Ownership::Owned);
    assert_eq!(holder(place).await, None);
}
