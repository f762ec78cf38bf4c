//! The promises of the shared modes, each tried from outside through several clients.

use lock_runtime::FencingToken;
use lock_runtime::store::{Attempt, Fence, Ownership, QueueOutcome};

use crate::place::{Ask, Client, GRANTED, LONG, Place, STEP, Standing, is_about, token};

const KEY: &str = "reports:7";

const FENCED: Ask = Ask {
    lease: LONG,
    fence: true,
    tell_remaining: true,
    fair: false,
};

/// A value as the runtime makes them: it tells its mode by what it begins with.
pub(crate) fn value(class: &str, name: &str) -> String {
    format!("{class}:{}:host:1:{name}", token(name))
}

fn client(place: &dyn Place, class: &str, name: &str) -> Client {
    place.client(&value(class, name))
}

fn for_lease(steps: u32) -> Ask {
    Ask {
        lease: STEP * steps,
        ..Ask::default()
    }
}

async fn stand(place: &dyn Place, class: &str, name: &str) -> Standing {
    client(place, class, name).stand(KEY, Ask::default()).await
}

/// Takes the lock, and claims it if it was handed over.
async fn enters(place: &dyn Place, class: &str, name: &str) -> Client {
    let client = client(place, class, name);
    assert_eq!(client.acquire(KEY, LONG).await, GRANTED, "{}", client.value);
    client
}

async fn is_kept_out(place: &dyn Place, class: &str) {
    let probe = client(place, class, "probe");
    let answer = probe.acquire(KEY, LONG).await;
    assert!(matches!(answer, Attempt::Busy { .. }), "{class} got {answer:?}");
}

/// Nobody has the lock and nobody waits for it.
async fn is_free(place: &dyn Place) {
    let probe = client(place, "w", "probe");
    assert_eq!(probe.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(probe.release(KEY).await, Ownership::Owned);
    assert_eq!(probe.renew(KEY, None).await, Ownership::Gone);
}

async fn leaves(client: &Client) {
    assert_eq!(client.release(KEY).await, Ownership::Owned, "{}", client.value);
}

/// Those who waited have been let in by what has just been done, and not some time later.
async fn are_let_in<'a>(waiting: impl IntoIterator<Item = &'a Standing>) {
    for standing in waiting {
        let client = &standing.client;
        assert_eq!(client.renew(KEY, None).await, Ownership::Owned, "{}", client.value);
    }
}

async fn claims(standing: Standing) -> Client {
    let client = standing.client.clone();
    standing.claim().await;
    client
}

pub(crate) async fn whoever_may_hold_it_together_does_and_nobody_else(place: &dyn Place) {
    let classes = ["r", "w", "s1", "s2", "s3", "oa", "ob", "oa%3A"];
    for first in classes {
        for second in classes {
            let together = match (first, second) {
                ("r", "r") | ("s2" | "s3", "s2" | "s3") => true,
                (first, second) => first == second && first.starts_with('o'),
            };
            let a = enters(place, first, "a").await;
            let b = client(place, second, "b");
            let answer = b.acquire(KEY, LONG).await;
            assert_eq!(answer == GRANTED, together, "{first} and {second}: {answer:?}");
            // A place in the queue is granted at once, or not.
            if together {
                leaves(&b).await;
            }
            let mut standing = b.stand(KEY, Ask::default()).await;
            assert_eq!(!standing.waits(), together, "{first} and {second} in the queue");
            leaves(&a).await;
            are_let_in([&standing]).await;
            assert!(matches!(standing.turn().await, QueueOutcome::Granted { .. }));
            is_kept_out(place, "w").await;
            leaves(&b).await;
            is_free(place).await;
        }
    }
}

pub(crate) async fn every_holder_has_a_lease_of_its_own(place: &dyn Place) {
    for class in ["r", "s3", "oa"] {
        let [a, b, c] = ["a", "b", "c"].map(|name| client(place, class, name));
        assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
        assert_eq!(b.acquire(KEY, 4 * STEP).await, GRANTED);
        assert_eq!(c.acquire(KEY, 3 * STEP).await, GRANTED);
        place.age(STEP).await;
        // One that is renewed makes no other one live longer.
        assert_eq!(c.renew(KEY, Some(2 * STEP)).await, Ownership::Owned);
        place.age(STEP).await;
        assert_ne!(
            a.renew(KEY, Some(LONG)).await,
            Ownership::Owned,
            "{class}: its lease is over"
        );
        assert_eq!(a.release(KEY).await, Ownership::Gone);
        assert_eq!(
            b.renew(KEY, None).await,
            Ownership::Owned,
            "{class}: a lease of two steps is left"
        );
        assert_eq!(
            c.renew(KEY, None).await,
            Ownership::Owned,
            "{class}: a lease of one step is left"
        );
        place.age(STEP).await;
        assert_ne!(c.renew(KEY, None).await, Ownership::Owned);
        assert_eq!(b.renew(KEY, None).await, Ownership::Owned);
        is_kept_out(place, "w").await;
        // Nor does one that is shortened end another one sooner.
        assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
        assert_eq!(a.renew(KEY, Some(STEP)).await, Ownership::Owned);
        assert_eq!(b.renew(KEY, None).await, Ownership::Owned);
        leaves(&a).await;
        place.age(STEP).await;
        assert_eq!(b.renew(KEY, None).await, Ownership::Gone);
        is_free(place).await;
    }
}

pub(crate) async fn a_release_ends_no_other_hold(place: &dyn Place) {
    for class in ["r", "s3", "oa"] {
        let [a, b, c] = [
            enters(place, class, "a").await,
            enters(place, class, "b").await,
            enters(place, class, "c").await,
        ];
        let stranger = client(place, class, "stranger");
        assert_eq!(stranger.release(KEY).await, Ownership::Gone);
        assert_eq!(stranger.try_release(KEY, Some(STEP)).await.unwrap(), Ownership::Gone);
        leaves(&b).await;
        assert_eq!(
            b.release(KEY).await,
            Ownership::Gone,
            "{class}: it had released already"
        );
        assert_ne!(b.renew(KEY, Some(LONG)).await, Ownership::Owned);
        for client in [&a, &c] {
            assert_eq!(client.renew(KEY, None).await, Ownership::Owned, "{}", client.value);
        }
        leaves(&a).await;
        assert_eq!(c.renew(KEY, None).await, Ownership::Owned);
        is_kept_out(place, "w").await;
        leaves(&c).await;
        assert_eq!(c.release(KEY).await, Ownership::Gone);
        is_free(place).await;
    }
}

pub(crate) async fn a_request_that_comes_twice_is_one_hold(place: &dyn Place) {
    for class in ["r", "w", "s1", "s2", "oa"] {
        let a = enters(place, class, "a").await;
        assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
        // Also when it comes as a place in the queue, and behind others.
        let waiting = stand(place, if class == "w" { "r" } else { "w" }, "waiting").await;
        assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
        let mut again = a.stand(KEY, Ask::default()).await;
        assert!(matches!(again.turn().await, QueueOutcome::Granted { .. }), "{class}");
        assert_eq!(a.renew(KEY, None).await, Ownership::Owned);
        leaves(&a).await;
        assert_eq!(a.release(KEY).await, Ownership::Gone);
        leaves(&claims(waiting).await).await;
        is_free(place).await;
    }
    // It takes one permit.
    let a = enters(place, "s2", "a").await;
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let b = enters(place, "s2", "b").await;
    is_kept_out(place, "s2").await;
    leaves(&a).await;
    let c = enters(place, "s2", "c").await;
    is_kept_out(place, "s2").await;
    leaves(&b).await;
    leaves(&c).await;
    is_free(place).await;
}

pub(crate) async fn a_renewal_never_creates_a_hold(place: &dyn Place) {
    for class in ["r", "w", "s2", "oa"] {
        let a = client(place, class, "a");
        assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
        is_free(place).await;
        assert_eq!(a.acquire(KEY, STEP).await, GRANTED);
        place.age(STEP).await;
        assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
        is_free(place).await;
        leaves(&enters(place, class, "a").await).await;
        assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
        is_free(place).await;
    }
    // Nor beside others, whether or not it could be in with them.
    let reader = enters(place, "r", "reader").await;
    assert_eq!(client(place, "r", "a").renew(KEY, Some(LONG)).await, Ownership::Gone);
    assert_eq!(client(place, "w", "a").renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(client(place, "w", "a").renew(KEY, None).await, Ownership::Foreign);
    leaves(&reader).await;
    is_free(place).await;
}

pub(crate) async fn an_expired_holder_finds_who_came_after_it(place: &dyn Place) {
    let dead = client(place, "r", "dead");
    assert_eq!(dead.acquire(KEY, STEP).await, GRANTED);
    place.age(STEP).await;
    let writer = enters(place, "w", "writer").await;
    assert_eq!(dead.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(dead.release(KEY).await, Ownership::Gone);
    assert_eq!(writer.renew(KEY, None).await, Ownership::Owned);
    leaves(&writer).await;
    is_free(place).await;
}

pub(crate) async fn a_batch_of_all_modes_gets_one_verdict_each_in_order(place: &dyn Place) {
    let exclusive = place.client("0123456789abcdef0123456789abcdef:host:1:exclusive");
    let holders: Vec<Client> = ["r", "w", "s2", "oa"]
        .into_iter()
        .map(|class| client(place, class, "batch"))
        .chain([exclusive])
        .collect();
    // Three hundred locks take time on a machine that is busy.
    let lease = 60 * STEP;
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for nth in 0..300 {
        let key = format!("{KEY}:{nth}");
        let holder = &holders[nth % holders.len()];
        // Coprime to the number of modes, so that every pair comes up.
        match nth % 3 {
            0 => {
                assert_eq!(holder.acquire(&key, lease).await, GRANTED);
                expected.push(Ownership::Owned);
            }
            1 => {
                // Of the same kind of key, and nobody whom it could join.
                let is_shared = nth % holders.len() < 4;
                let other = if is_shared {
                    value("ozz", "other")
                } else {
                    "other".to_owned()
                };
                assert_eq!(place.client(&other).acquire(&key, lease).await, GRANTED);
                expected.push(Ownership::Foreign);
            }
            _ => expected.push(Ownership::Gone),
        }
        requests.push(holder.request(&key, (nth % 2 == 0).then_some(2 * lease)));
    }
    let store = &holders[0].store;
    assert_eq!(store.renew(&requests).await.unwrap(), expected);
    // Those that were not extended run out.
    place.age(lease).await;
    for (nth, verdict) in expected.iter_mut().enumerate() {
        if *verdict == Ownership::Foreign || nth % 2 == 1 {
            *verdict = Ownership::Gone;
        }
    }
    for request in &mut requests {
        request.extend = None;
    }
    assert_eq!(store.renew(&requests).await.unwrap(), expected);
}

pub(crate) async fn a_busy_answer_tells_a_holder_and_the_rest_of_its_lease(place: &dyn Place) {
    let reader = client(place, "r", "shop::read");
    assert_eq!(reader.acquire(KEY, 3 * STEP).await, GRANTED);
    let writer = client(place, "w", "writer");
    let Attempt::Busy {
        holder: Some(holder),
        remaining,
    } = writer.acquire(KEY, LONG).await
    else {
        panic!("not busy, or without its holder");
    };
    assert_eq!(
        (holder.value(), holder.function()),
        (&*reader.value, Some("shop::read"))
    );
    assert!(is_about(remaining, 3 * STEP), "{remaining:?}");
    // Whoever waits in the queue sees the same.
    let standing = stand(place, "w", "waiting").await;
    let (holder, remaining) = standing.contention.take().unwrap();
    assert_eq!(holder.value(), reader.value);
    assert!(is_about(remaining, 3 * STEP), "{remaining:?}");
    leaves(&reader).await;
    let waited = claims(standing).await;
    let Attempt::Busy {
        holder: Some(holder), ..
    } = writer.acquire(KEY, LONG).await
    else {
        panic!("not busy, or without its holder");
    };
    assert_eq!(holder.value(), waited.value);
    leaves(&waited).await;
}

pub(crate) async fn a_waiting_writer_holds_new_readers_back(place: &dyn Place) {
    let (a, b) = (enters(place, "r", "a").await, enters(place, "r", "b").await);
    let writer = stand(place, "w", "writer").await;
    for _ in 0..3 {
        is_kept_out(place, "r").await;
    }
    let late = stand(place, "r", "late").await;
    assert!(writer.waits() && late.waits());
    // Those who read go on as long as they like.
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Owned);
    leaves(&a).await;
    assert!(writer.waits() && late.waits(), "somebody reads still");
    leaves(&b).await;
    are_let_in([&writer]).await;
    let writer = claims(writer).await;
    assert!(late.waits(), "somebody writes");
    leaves(&writer).await;
    are_let_in([&late]).await;
    leaves(&claims(late).await).await;
    is_free(place).await;
}

pub(crate) async fn a_writer_that_leaves_the_queue_lets_readers_in(place: &dyn Place) {
    let a = enters(place, "r", "a").await;
    let writer = stand(place, "w", "writer").await;
    let (b, c) = (stand(place, "r", "b").await, stand(place, "r", "c").await);
    assert!(b.waits() && c.waits());
    let gone = writer.client.clone();
    assert_eq!(writer.leave().await, Ownership::Gone);
    are_let_in([&b, &c]).await;
    let (b, c) = (claims(b).await, claims(c).await);
    // Once more, because the answer was lost.
    assert_eq!(gone.leave(KEY, Ask::default()).await, Ownership::Gone);
    for reader in [a, b, c] {
        leaves(&reader).await;
    }
    is_free(place).await;
}

pub(crate) async fn readers_who_wait_one_after_the_other_are_let_in_together(place: &dyn Place) {
    let writer = enters(place, "w", "writer").await;
    let mut first = Vec::new();
    for nth in 0..12 {
        first.push(stand(place, "r", &format!("first-{nth}")).await);
    }
    let second_writer = stand(place, "w", "second-writer").await;
    let mut last = Vec::new();
    for nth in 0..3 {
        last.push(stand(place, "r", &format!("last-{nth}")).await);
    }
    assert!(first.iter().chain(&last).all(Standing::waits));
    leaves(&writer).await;
    are_let_in(&first).await;
    let mut readers = Vec::new();
    for reader in first {
        readers.push(claims(reader).await);
    }
    assert!(second_writer.waits() && last.iter().all(Standing::waits));
    for reader in &readers {
        assert!(second_writer.waits(), "somebody reads still");
        leaves(reader).await;
    }
    are_let_in([&second_writer]).await;
    let second_writer = claims(second_writer).await;
    assert!(last.iter().all(Standing::waits));
    leaves(&second_writer).await;
    are_let_in(&last).await;
    for reader in last {
        leaves(&claims(reader).await).await;
    }
    is_free(place).await;
}

pub(crate) async fn the_last_reader_that_expires_lets_the_writer_in(place: &dyn Place) {
    let (a, b) = (client(place, "r", "a"), client(place, "r", "b"));
    assert_eq!(a.acquire(KEY, STEP).await, GRANTED);
    assert_eq!(b.acquire(KEY, 3 * STEP).await, GRANTED);
    let writer = stand(place, "w", "writer").await;
    place.age(2 * STEP).await;
    is_kept_out(place, "r").await;
    assert!(writer.waits(), "somebody reads still");
    place.age(STEP).await;
    let writer = claims(writer).await;
    assert_eq!(b.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    leaves(&writer).await;
    is_free(place).await;
}

pub(crate) async fn whoever_has_died_in_the_queue_blocks_no_longer_than_its_lease(place: &dyn Place) {
    let reader = enters(place, "r", "reader").await;
    let dead = client(place, "w", "dead").stand(KEY, for_lease(2)).await;
    let next = stand(place, "r", "next").await;
    let dead = dead.abandon().await;
    leaves(&reader).await;
    place.age(2 * STEP).await;
    let next = claims(next).await;
    // Late signs of life change nothing.
    assert_ne!(dead.renew(KEY, Some(LONG)).await, Ownership::Owned);
    assert_eq!(dead.leave(KEY, for_lease(2)).await, Ownership::Gone);
    leaves(&next).await;
    is_free(place).await;
}

pub(crate) async fn a_semaphore_has_no_more_holders_than_permits(place: &dyn Place) {
    let mut inside = Vec::new();
    for nth in 0..5 {
        inside.push(enters(place, "s5", &format!("holder-{nth}")).await);
    }
    is_kept_out(place, "s5").await;
    let mut waiting = Vec::new();
    for nth in 0..3 {
        waiting.push(stand(place, "s5", &format!("waiting-{nth}")).await);
    }
    assert!(waiting.iter().all(Standing::waits));
    for standing in waiting {
        assert!(standing.waits());
        leaves(&inside.remove(0)).await;
        are_let_in([&standing]).await;
        inside.push(claims(standing).await);
        is_kept_out(place, "s5").await;
    }
    for holder in inside {
        leaves(&holder).await;
    }
    is_free(place).await;
}

pub(crate) async fn the_permits_of_dead_holders_come_back_after_their_leases(place: &dyn Place) {
    let mut holders = Vec::new();
    for lease in 1..=3 {
        let holder = client(place, "s3", &format!("dead-{lease}"));
        assert_eq!(holder.acquire(KEY, STEP * lease).await, GRANTED);
        holders.push(holder);
    }
    for nth in 0..3 {
        is_kept_out(place, "s3").await;
        place.age(STEP).await;
        let alive = client(place, "s3", &format!("alive-{nth}"));
        assert_eq!(alive.acquire(KEY, LONG).await, GRANTED, "one has died");
        holders.push(alive);
    }
    is_kept_out(place, "s3").await;
    for alive in &holders[3..] {
        leaves(alive).await;
    }
    is_free(place).await;
}

pub(crate) async fn the_smaller_number_of_permits_counts_until_its_holders_are_gone(place: &dyn Place) {
    let (old, new) = (enters(place, "s2", "old").await, enters(place, "s5", "new").await);
    for class in ["s2", "s5", "s3"] {
        is_kept_out(place, class).await;
    }
    leaves(&old).await;
    let mut inside = vec![new];
    for nth in 0..4 {
        inside.push(enters(place, "s5", &format!("new-{nth}")).await);
    }
    // Who asks for fewer waits until there are fewer, and nobody gets in by asking for more.
    for class in ["s2", "s5", "s6"] {
        is_kept_out(place, class).await;
    }
    let waiting = stand(place, "s2", "waiting").await;
    while inside.len() > 1 {
        assert!(waiting.waits(), "{} are in", inside.len());
        leaves(&inside.remove(0)).await;
    }
    let old = claims(waiting).await;
    is_kept_out(place, "s5").await;
    leaves(&old).await;
    let next = enters(place, "s5", "next").await;
    leaves(&next).await;
    leaves(&inside.remove(0)).await;
    is_free(place).await;
}

pub(crate) async fn an_owner_that_has_the_lock_enters_past_the_queue(place: &dyn Place) {
    let first = enters(place, "oa", "first").await;
    let others = [stand(place, "ob", "b").await, stand(place, "w", "writer").await];
    // At once, and by way of the queue.
    let second = enters(place, "oa", "second").await;
    let third = claims(stand(place, "oa", "third").await).await;
    is_kept_out(place, "ob").await;
    for holder in [first, third, second] {
        assert!(others.iter().all(Standing::waits));
        leaves(&holder).await;
    }
    let [b, writer] = others;
    let b = claims(b).await;
    is_kept_out(place, "oa").await;
    leaves(&b).await;
    leaves(&claims(writer).await).await;
    is_free(place).await;
}

/// Or a workflow would wait for itself.
pub(crate) async fn an_owner_that_gets_the_lock_enters_from_the_back_of_the_queue(place: &dyn Place) {
    let writer = enters(place, "w", "writer").await;
    let first = stand(place, "oa", "first").await;
    let other = stand(place, "ob", "other").await;
    let (second, third) = (stand(place, "oa", "second").await, stand(place, "oa", "third").await);
    leaves(&writer).await;
    are_let_in([&first, &second, &third]).await;
    let inside = [claims(third).await, claims(first).await, claims(second).await];
    assert!(other.waits());
    for holder in &inside {
        leaves(holder).await;
    }
    leaves(&claims(other).await).await;
    is_free(place).await;
}

pub(crate) async fn every_writer_has_a_larger_token(place: &dyn Place) {
    let mut last = 0;
    for nth in 0..20 {
        let writer = client(place, "w", &format!("writer-{nth}"));
        let token = match nth % 4 {
            0 => writer.acquire_fenced(KEY).await,
            1 => {
                assert_eq!(writer.acquire(KEY, LONG).await, GRANTED);
                writer.token(KEY).await
            }
            _ => {
                let reader = enters(place, "r", "reader").await;
                let standing = writer.stand(KEY, FENCED).await;
                leaves(&reader).await;
                standing.claim().await.unwrap()
            }
        };
        assert!(token > last, "{token} after {last}");
        last = token;
        if nth % 2 == 0 {
            leaves(&writer).await;
        } else {
            place.age(LONG).await;
        }
        assert_eq!(writer.fence(KEY).await, Fence::NotOwned(Ownership::Gone));
    }
    let former = client(place, "w", "writer-19");
    let reader = enters(place, "r", "reader").await;
    assert_eq!(former.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
    leaves(&reader).await;
}

pub(crate) async fn holders_for_one_owner_share_a_token_until_the_lock_is_free(place: &dyn Place) {
    let mut last = 0;
    for (nth, owner) in ["oa", "oa", "ob", "oa"].into_iter().enumerate() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| client(place, owner, &format!("{name}-{nth}")));
        // The first may do without.
        assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
        let token = b.acquire_fenced(KEY).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        assert_eq!(a.token(KEY).await, token);
        assert_eq!(c.acquire_fenced(KEY).await, token);
        leaves(&b).await;
        leaves(&a).await;
        // By way of the queue, which it passes, and from one that has run out.
        let other = stand(place, "w", "other").await;
        assert_eq!(d.stand(KEY, FENCED).await.claim().await, Some(token));
        assert_eq!(c.renew(KEY, Some(STEP)).await, Ownership::Owned);
        place.age(STEP).await;
        assert_ne!(c.fence(KEY).await, Fence::Token(FencingToken::new(token)));
        assert_eq!(d.token(KEY).await, token);
        leaves(&d).await;
        let other = claims(other).await;
        assert_eq!(d.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
        leaves(&other).await;
    }
    is_free(place).await;
}

pub(crate) async fn a_minimum_hold_counts_as_a_holder(place: &dyn Place) {
    for class in ["r", "w", "s2", "oa"] {
        let a = enters(place, class, "a").await;
        assert_eq!(a.try_release(KEY, Some(3 * STEP)).await.unwrap(), Ownership::Owned);
        // It is nobody's: a renewal that is still on its way has no effect.
        assert_ne!(a.renew(KEY, Some(LONG)).await, Ownership::Owned);
        assert_eq!(a.release(KEY).await, Ownership::Gone);
        assert!(!matches!(a.fence(KEY).await, Fence::Token(_)), "{class}");
        place.age(STEP).await;
        // The same release once more, because its answer was lost.
        assert_eq!(a.try_release(KEY, Some(3 * STEP)).await.unwrap(), Ownership::Owned);
        is_kept_out(place, if class == "w" { "r" } else { "w" }).await;
        if class == "w" {
            is_kept_out(place, "w").await;
        } else {
            let b = enters(place, class, "b").await;
            if class == "s2" {
                is_kept_out(place, "s2").await;
            }
            leaves(&b).await;
        }
        let waiting = stand(place, "oz", "waiting").await;
        place.age(STEP).await;
        is_kept_out(place, "oy").await;
        assert!(waiting.waits(), "{class}: the minimum hold is not over");
        place.age(STEP).await;
        leaves(&claims(waiting).await).await;
        assert_eq!(a.try_release(KEY, Some(LONG)).await.unwrap(), Ownership::Gone);
        is_free(place).await;
    }
}

pub(crate) async fn whoever_leaves_with_the_lock_hands_it_over(place: &dyn Place) {
    let writer = enters(place, "w", "writer").await;
    let (first, second) = (stand(place, "w", "first").await, stand(place, "r", "second").await);
    leaves(&writer).await;
    // Handed over by now, but it may not have heard of it.
    let left = first.client.clone();
    assert_eq!(first.leave().await, Ownership::Owned);
    assert_eq!(left.leave(KEY, Ask::default()).await, Ownership::Gone);
    leaves(&claims(second).await).await;
    let never = client(place, "r", "never");
    assert_eq!(never.leave(KEY, Ask::default()).await, Ownership::Gone);
    is_free(place).await;
}

pub(crate) async fn keys_have_holders_and_queues_of_their_own(place: &dyn Place) {
    let keys = ["a", "{a}", "{a}:b", "a}", "{", "a:{b}:c", "%lock", " ", "ä", "a\r\n"];
    let writer = client(place, "w", "writer");
    let mut line = Vec::new();
    for key in keys.into_iter().filter(|key| place.keeps(key)) {
        assert_eq!(writer.acquire(key, LONG).await, GRANTED, "{key:?}");
        line.push((key, client(place, "r", key).stand(key, Ask::default()).await));
    }
    // From the last to the first.
    while let Some((key, standing)) = line.pop() {
        assert_eq!(writer.release(key).await, Ownership::Owned, "{key:?}");
        standing.claim().await;
        assert!(
            line.iter().all(|(_, standing)| standing.waits()),
            "{key:?} let others in"
        );
    }
}

/// Whoever does not know the other modes must not take a lock for free.
pub(crate) async fn an_exclusive_holder_and_others_keep_each_other_out(place: &dyn Place) {
    let exclusive = place.client("0123456789abcdef0123456789abcdef:host:1:exclusive");
    for class in ["r", "w", "s2", "oa"] {
        assert_eq!(exclusive.acquire(KEY, LONG).await, GRANTED);
        let shared = client(place, class, "shared");
        assert!(!matches!(
            shared.try_acquire(KEY, Ask::default()).await,
            Ok(Attempt::Granted { .. })
        ));
        assert_eq!(exclusive.renew(KEY, None).await, Ownership::Owned);
        assert_eq!(exclusive.release(KEY).await, Ownership::Owned);

        let shared = enters(place, class, "shared").await;
        for fence in [false, true] {
            let ask = Ask {
                fence,
                ..Ask::default()
            };
            assert!(!matches!(
                exclusive.try_acquire(KEY, ask).await,
                Ok(Attempt::Granted { .. })
            ));
        }
        assert_eq!(shared.renew(KEY, None).await, Ownership::Owned);
        leaves(&shared).await;
        is_free(place).await;
    }
}
