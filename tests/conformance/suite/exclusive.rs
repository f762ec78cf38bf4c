//! The promises of a store, each tried from outside through several clients.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use lock_runtime::store::{AcquireRequest, Attempt, Fence, Ownership, Receipt, ReleaseRequest};
use lock_runtime::{MAX_LEASE, MIN_LEASE};
use tokio::time::Instant;

use crate::place::{Ask, Client, GRANTED, LONG, Place, STEP, is_about};

const KEY: &str = "orders:7";

pub(crate) async fn a_free_key_is_granted(place: &dyn Place) {
    assert_eq!(place.client("a").acquire(KEY, LONG).await, GRANTED);
}

pub(crate) async fn a_held_key_is_busy_for_every_other_value(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    for other in ["b", "", "A", "a ", "aa", "a\0"] {
        let answer = place.client(other).acquire(KEY, LONG).await;
        assert!(matches!(answer, Attempt::Busy { .. }), "{other:?} got {answer:?}");
        let fenced = Ask {
            fence: true,
            ..Ask::default()
        };
        let answer = place.client(other).try_acquire(KEY, fenced).await.unwrap();
        assert!(
            matches!(answer, Attempt::Busy { .. }),
            "{other:?} got {answer:?} when asking for a token"
        );
    }
    assert_eq!(a.renew(KEY, None).await, Ownership::Owned);
}

pub(crate) async fn a_busy_answer_tells_the_holder_and_the_rest_of_its_lease(place: &dyn Place) {
    let value = "0123456789abcdef0123456789abcdef:host-1:17:stock::reduce";
    assert_eq!(place.client(value).acquire(KEY, LONG).await, GRANTED);
    for fence in [false, true] {
        let ask = Ask {
            fence,
            ..Ask::default()
        };
        let Attempt::Busy {
            holder: Some(holder),
            remaining,
        } = place.client("b").try_acquire(KEY, ask).await.unwrap()
        else {
            panic!("not busy, or without its holder");
        };
        assert_eq!(holder.value(), value);
        assert_eq!(
            (holder.host(), holder.pid(), holder.function()),
            (Some("host-1"), Some(17), Some("stock::reduce"))
        );
        assert!(is_about(remaining, LONG), "{remaining:?}");
    }
    place.age(STEP).await;
    let rest = place.client("b").rest(KEY).await;
    assert!(is_about(rest, LONG.saturating_sub(STEP)), "{rest:?}");
}

pub(crate) async fn of_many_contenders_one_is_granted(place: &dyn Place) {
    for round in 0..20 {
        assert_eq!(granted_of_many(place, round).await, 1);
    }
}

/// Of those who ask several masters at the same time, each may get some votes, and none enough.
pub(crate) async fn of_many_contenders_no_two_are_granted(place: &dyn Place) {
    for round in 0..20 {
        assert!(granted_of_many(place, round).await <= 1);
    }
}

async fn granted_of_many(place: &dyn Place, round: u32) -> u32 {
    let key = format!("{KEY}:{round}");
    let contenders: Vec<_> = (0..16)
        .map(|name| {
            let (client, key) = (place.client(&format!("c{name}")), key.clone());
            tokio::spawn(async move { client.acquire(&key, LONG).await })
        })
        .collect();
    let mut granted = 0;
    for contender in contenders {
        granted += u32::from(contender.await.unwrap() == GRANTED);
    }
    granted
}

pub(crate) async fn keys_do_not_touch_each_other(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.acquire("x", LONG).await, GRANTED);
    assert_eq!(b.acquire("y", LONG).await, GRANTED);
    assert_eq!(b.release("y").await, Ownership::Owned);
    assert_eq!(a.renew("y", Some(LONG)).await, Ownership::Gone);
    assert_eq!(a.renew("x", Some(LONG)).await, Ownership::Owned);
}

pub(crate) async fn keys_and_values_are_taken_byte_by_byte(place: &dyn Place) {
    let long = "k".repeat(1024);
    let keys = [
        "a", "A", "a ", "a\0", "a\r\n", "a\nb", "{a}", "{a}:b", "{}", "%61", "ä", "a\u{308}", "🦀", "*", "?", "[a]",
        &long,
    ];
    let keys = keys.into_iter().filter(|key| place.keeps(key)).collect::<Vec<_>>();
    for (nth, key) in keys.iter().enumerate() {
        assert_eq!(
            place.client(&format!("v\r\n\0{nth}")).acquire(key, LONG).await,
            GRANTED,
            "{key:?}"
        );
    }
    for (nth, key) in keys.iter().enumerate() {
        let client = place.client(&format!("v\r\n\0{nth}"));
        assert!(place.client("v\r\n").finds_busy(key).await, "{key:?}");
        assert!(matches!(client.fence(key).await, Fence::Token(_)), "{key:?}");
        assert_eq!(client.release(key).await, Ownership::Owned, "{key:?}");
        assert_eq!(client.release(key).await, Ownership::Gone, "{key:?}");
    }
}

pub(crate) async fn ones_own_value_is_granted_again(place: &dyn Place) {
    let a = place.client("a");
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    let first = a.acquire_fenced(KEY).await;
    assert!(a.acquire_fenced(KEY).await > first);
    // Each time with the lease that was asked for.
    assert_eq!(a.acquire(KEY, 3 * STEP).await, GRANTED);
    assert!(is_about(place.client("b").rest(KEY).await, 3 * STEP));
    place.age(2 * STEP).await;
    assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
    assert!(is_about(place.client("b").rest(KEY).await, 2 * STEP));
    // It is one lock, however often it was granted.
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert!(!place.client("b").finds_busy(KEY).await);
}

/// Takes a free lock for a lease so short that most masters of a quorum may be late with their votes. Such an attempt has got nothing, and
/// another one is made. It has a value of its own, since the votes of the one before may be given back later. Returns the holder, and when
/// it asked.
async fn takes_for(client: &Client, key: &str, lease: Duration) -> (Client, Instant) {
    let (begun, mut failed) = (Instant::now(), 0);
    loop {
        let client = Client {
            value: format!("{}{failed}", client.value),
            ..client.clone()
        };
        let (ask, sent) = (Ask::default(), Instant::now());
        match client.try_acquire(key, Ask { lease, ..ask }).await {
            Err(error) if !error.is_permanent() => failed += 1,
            // By the votes of an attempt before.
            Ok(Attempt::Busy { .. }) if failed > 0 => {}
            answer => {
                assert_eq!(answer.unwrap(), GRANTED);
                return (client, sent);
            }
        }
        assert!(begun.elapsed() < LONG, "too few votes for a lease of {lease:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) async fn a_lease_ends_by_itself_and_not_before(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    // Connected beforehand.
    assert!(!b.finds_busy(KEY).await);
    let lease = Duration::from_millis(60);
    let (a, sent) = takes_for(&a, KEY, lease).await;
    while b.acquire(KEY, LONG).await != GRANTED {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(sent.elapsed() < LONG, "the lease did not end");
    }
    // Whole milliseconds are how servers count.
    let passed = place.passed(sent.elapsed());
    assert!(passed + Duration::from_millis(1) >= lease, "over after {passed:?}");
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(a.release(KEY).await, Ownership::Foreign);
}

pub(crate) async fn the_longest_and_the_shortest_lease_are_kept(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.acquire("long", MAX_LEASE).await, GRANTED);
    let rest = b.rest("long").await;
    assert!(is_about(rest, MAX_LEASE), "{rest:?}");
    assert_eq!(a.renew("long", Some(MAX_LEASE)).await, Ownership::Owned);

    // A part of a millisecond counts as a whole one: the store must never keep a key for less than was asked for.
    for lease in [
        MIN_LEASE,
        MIN_LEASE + Duration::from_nanos(1),
        MIN_LEASE + Duration::from_micros(999),
    ] {
        let (_, sent) = takes_for(&a, "short", lease).await;
        while b.acquire("short", LONG).await != GRANTED {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(sent.elapsed() < LONG, "the lease did not end");
        }
        let passed = place.passed(sent.elapsed());
        assert!(
            passed + Duration::from_millis(1) >= lease,
            "{lease:?} was over after {passed:?}"
        );
        assert_eq!(b.release("short").await, Ownership::Owned);
    }
}

pub(crate) async fn a_renewal_sets_the_lease_anew(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.acquire(KEY, 3 * STEP).await, GRANTED);
    place.age(2 * STEP).await;
    assert_eq!(a.renew(KEY, Some(3 * STEP)).await, Ownership::Owned);
    let rest = b.rest(KEY).await;
    assert!(is_about(rest, 3 * STEP), "{rest:?}");
    place.age(2 * STEP).await;
    assert!(b.finds_busy(KEY).await);
    // It may also become shorter.
    assert_eq!(a.renew(KEY, Some(STEP)).await, Ownership::Owned);
    place.age(STEP).await;
    assert!(!b.finds_busy(KEY).await);
}

pub(crate) async fn a_renewal_by_another_value_changes_nothing(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
    assert_eq!(b.renew(KEY, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(b.renew(KEY, None).await, Ownership::Foreign);
    let rest = b.rest(KEY).await;
    assert!(is_about(rest, 2 * STEP), "{rest:?}");
    assert_eq!(a.renew(KEY, None).await, Ownership::Owned);
}

pub(crate) async fn a_renewal_never_creates_a_key(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
    assert!(!b.finds_busy(KEY).await);
    assert_eq!(a.acquire(KEY, STEP).await, GRANTED);
    place.age(STEP).await;
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
    assert!(!b.finds_busy(KEY).await);
    assert_eq!(a.acquire(KEY, STEP).await, GRANTED);
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Gone);
    assert!(!b.finds_busy(KEY).await);
}

pub(crate) async fn a_check_changes_nothing(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.renew(KEY, None).await, Ownership::Gone);
    assert_eq!(a.acquire(KEY, 3 * STEP).await, GRANTED);
    place.age(STEP).await;
    assert_eq!(a.renew(KEY, None).await, Ownership::Owned);
    let rest = b.rest(KEY).await;
    assert!(is_about(rest, 2 * STEP), "{rest:?}");
}

pub(crate) async fn a_batch_gets_one_verdict_each_in_order(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for nth in 0..1_000_usize {
        let key = format!("{KEY}:{nth}");
        let extend = (nth % 2 == 0).then_some(10 * LONG);
        requests.push(a.request(&key, extend));
        // Coprime to the kinds of `extend`, so that every pair of them comes up.
        match nth % 3 {
            0 => {
                assert_eq!(a.acquire(&key, LONG).await, GRANTED);
                expected.push(Ownership::Owned);
            }
            1 => {
                assert_eq!(b.acquire(&key, LONG).await, GRANTED);
                expected.push(Ownership::Foreign);
            }
            _ => expected.push(Ownership::Gone),
        }
    }
    assert_eq!(a.store.renew(&requests).await.unwrap(), expected);
    let outsider = place.client("c");
    for (nth, verdict) in expected.iter().enumerate() {
        let key = format!("{KEY}:{nth}");
        let renewed = *verdict == Ownership::Owned && nth % 2 == 0;
        if *verdict == Ownership::Gone {
            assert!(!outsider.finds_busy(&key).await, "{key}");
        } else {
            let rest = outsider.rest(&key).await.unwrap();
            assert_eq!(rest > LONG, renewed, "{key}: {rest:?}");
        }
    }
    assert_eq!(a.store.renew(&[]).await.unwrap(), Vec::new());
    // One key twice in a batch, and two values for one key.
    let pair = [
        a.request("orders:7:0", Some(LONG)),
        b.request("orders:7:0", Some(LONG)),
        a.request("orders:7:0", None),
    ];
    assert_eq!(
        a.store.renew(&pair).await.unwrap(),
        [Ownership::Owned, Ownership::Foreign, Ownership::Owned]
    );
}

pub(crate) async fn a_release_frees_the_key(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.release(KEY).await, Ownership::Gone);
    assert_eq!(a.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(a.release(KEY).await, Ownership::Owned);
    assert_eq!(a.release(KEY).await, Ownership::Gone);
    assert_eq!(b.acquire(KEY, LONG).await, GRANTED);
}

pub(crate) async fn a_release_by_another_value_changes_nothing(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.acquire(KEY, 2 * STEP).await, GRANTED);
    assert_eq!(b.release(KEY).await, Ownership::Foreign);
    assert_eq!(b.try_release(KEY, Some(LONG)).await.unwrap(), Ownership::Foreign);
    assert!(is_about(b.rest(KEY).await, 2 * STEP));
    // Nor does that of a former holder.
    place.age(2 * STEP).await;
    assert_eq!(b.acquire(KEY, LONG).await, GRANTED);
    assert_eq!(a.release(KEY).await, Ownership::Foreign);
    assert_eq!(b.renew(KEY, None).await, Ownership::Owned);
}

pub(crate) async fn a_minimum_hold_outlives_the_release(place: &dyn Place) {
    // A value in the usual form: a store may mark the kept key by changing its token.
    let (a, b) = (
        place.client("0123456789abcdef0123456789abcdef:host:1:f"),
        place.client("b"),
    );
    for lease in [LONG, 2 * STEP] {
        assert_eq!(a.acquire(KEY, lease).await, GRANTED);
        assert_eq!(a.try_release(KEY, Some(3 * STEP)).await.unwrap(), Ownership::Owned);
        assert!(is_about(b.rest(KEY).await, 3 * STEP));
        // The key is nobody's until then, so that a renewal still on its way has no effect.
        assert_eq!(a.renew(KEY, Some(LONG)).await, Ownership::Foreign);
        assert_eq!(a.release(KEY).await, Ownership::Foreign);
        assert_eq!(a.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
        assert!(matches!(a.acquire(KEY, LONG).await, Attempt::Busy { .. }));
        place.age(STEP).await;
        // The same release sent once more, because its answer was lost.
        assert_eq!(a.try_release(KEY, Some(3 * STEP)).await.unwrap(), Ownership::Owned);
        assert!(is_about(b.rest(KEY).await, 2 * STEP));
        place.age(STEP).await;
        assert!(b.finds_busy(KEY).await);
        place.age(STEP).await;
        assert!(!b.finds_busy(KEY).await);
    }
    assert_eq!(a.try_release(KEY, Some(LONG)).await.unwrap(), Ownership::Gone);
    assert!(!b.finds_busy(KEY).await);
}

pub(crate) async fn tokens_grow_whoever_takes_them(place: &dyn Place) {
    let mut last = 0;
    let mut grown = |token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for round in 0..50 {
        let (a, b) = (place.client("a"), place.client("b"));
        grown(a.acquire_fenced(KEY).await);
        grown(a.token(KEY).await);
        grown(b.acquire_fenced("another").await);
        grown(a.token(KEY).await);
        if round % 2 == 0 {
            assert_eq!(a.release(KEY).await, Ownership::Owned);
            grown(b.acquire_fenced(KEY).await);
            assert_eq!(b.release(KEY).await, Ownership::Owned);
        } else {
            place.age(LONG).await;
        }
    }
}

pub(crate) async fn a_former_holder_gets_no_token(place: &dyn Place) {
    let (a, b) = (place.client("a"), place.client("b"));
    assert_eq!(a.fence(KEY).await, Fence::NotOwned(Ownership::Gone));
    assert_eq!(a.acquire(KEY, STEP).await, GRANTED);
    let before = a.token(KEY).await;
    place.age(STEP).await;
    assert_eq!(a.fence(KEY).await, Fence::NotOwned(Ownership::Gone));
    let successor = b.acquire_fenced(KEY).await;
    assert!(successor > before);
    assert_eq!(a.fence(KEY).await, Fence::NotOwned(Ownership::Foreign));
    assert_eq!(b.release(KEY).await, Ownership::Owned);
    assert_eq!(b.fence(KEY).await, Fence::NotOwned(Ownership::Gone));
}

pub(crate) async fn a_receipt_names_the_connection(place: &dyn Place) {
    let a = place.client("a");
    let (taken, given) = (Receipt::default(), Receipt::default());
    assert_eq!(taken.connection(), None);
    let value = &a.holder_value();
    let request = AcquireRequest {
        key: &KEY.into(),
        value,
        ttl: LONG,
        fence: false,
        tell_remaining: false,
        fair: false,
        receipt: &taken,
    };
    assert_eq!(a.store.acquire(&request).await.unwrap(), GRANTED);
    assert!(taken.connection().is_some());
    let acquired_on = taken.connection();
    let request = ReleaseRequest {
        key: &KEY.into(),
        value,
        keep: None,
        unanswered_on: acquired_on,
        elsewhere: false,
        queued: None,
        leave_free: None,
        receipt: &given,
    };
    assert_eq!(a.store.release(&request).await.unwrap(), Ownership::Owned);
    // The connection lives, so the release went the same way.
    assert_eq!(given.connection(), taken.connection());
}

/// Polls a future so often, at its own pace, and drops it.
async fn drop_after<F: Future>(polls: usize, future: F) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 || future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        Poll::Pending
    })
    .await;
}

pub(crate) async fn a_dropped_operation_leaves_the_store_usable(place: &dyn Place) {
    for polls in 0..6 {
        let key = &format!("{KEY}:{polls}");
        let (a, b) = (place.client("a"), place.client("b"));
        drop_after(polls, a.acquire(key, LONG)).await;
        // Whether or not it was carried out, on one connection what follows comes after it.
        assert_eq!(a.acquire(key, LONG).await, GRANTED);
        drop_after(polls, b.acquire(key, LONG)).await;
        drop_after(polls, a.renew(key, Some(LONG))).await;
        drop_after(polls, a.fence(key)).await;
        assert_eq!(a.renew(key, None).await, Ownership::Owned);
        drop_after(polls, b.release(key)).await;
        assert_eq!(a.renew(key, None).await, Ownership::Owned);
        drop_after(polls, a.release(key)).await;
        assert!(matches!(a.release(key).await, Ownership::Owned | Ownership::Gone));
        assert!(!b.finds_busy(key).await);
    }
}

/// Wakes the thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread, without tokio.
fn block_on<T>(mut future: Pin<Box<dyn Future<Output = T> + '_>>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

pub(crate) async fn operations_need_no_runtime(place: &dyn Place) {
    let client = place.client("a");
    std::thread::spawn(move || {
        assert_eq!(block_on(Box::pin(client.acquire(KEY, LONG))), GRANTED);
        assert_eq!(block_on(Box::pin(client.renew(KEY, Some(LONG)))), Ownership::Owned);
        assert!(matches!(block_on(Box::pin(client.fence(KEY))), Fence::Token(_)));
        assert_eq!(block_on(Box::pin(client.release(KEY))), Ownership::Owned);
    })
    .join()
    .unwrap();
}
