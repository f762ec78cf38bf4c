//! The lock pattern from before Redis 2.6.12: each of its rules, with a client that still uses it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_runtime::store::redis::LegacySetnxStore;
use lock_runtime::store::{Attempt, LockStore, Ownership, QueueOutcome};
use lock_runtime::{ConfigError, LockError, LockManager, LostReason, current, distributed_lock};
use lock_tests::{OldClient, PATIENCE, PATIENT, Server, eventually};

use crate::place::{Ask, Client, GRANTED, LONG, Place, STEP, assert_cancelled, is_about};

/// What a lock is called here, and the old clients' name for it.
const NAME: &str = "inventory:7";
const KEY: &str = "inventory:7_lock";
/// What tells the holder of ours.
const SIDE: &str = "%lock-old:{inventory:7_lock}";

/// A server with locks in the old form.
struct BesideOldNeighbours(Server);

impl BesideOldNeighbours {
    fn start() -> Self {
        Self(Server::start())
    }
}

/// As on a server, but what the locks say of their end grows older as well.
const AGE: &str = "
local step, span = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*_lock')) do
  local left = math.ceil((redis.call('GET', key) - now) / step) * step - span
  local ends = string.format('%.0f', now + left)
  local tag = string.find(key, '}', 1, true)
  local side = tag and '%lock-old@' .. key or '%lock-old:{' .. key .. '}'
  local told = redis.call('GET', side)
  if left <= 0 then
    redis.call('DEL', key, side)
  else
    redis.call('SET', side, ends .. string.sub(told, string.find(told, ':', 1, true), -1), 'PXAT', ends)
    redis.call('SET', key, ends, 'PXAT', ends)
  end
end
return 0";

#[async_trait(?Send)]
impl Place for BesideOldNeighbours {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(LegacySetnxStore::open(&self.0.url(), "", PATIENT).unwrap())
    }

    async fn age(&self, span: Duration) {
        let (step, span) = (STEP.as_millis().to_string(), span.as_millis().to_string());
        self.0.cmd(&["EVAL", AGE, "0", &step, &span]);
    }

    fn passed(&self, time: Duration) -> Duration {
        time
    }
}

/// The promises of every store but those of a queue.
mod as_any_store {
    keeps_exclusive_locks!(crate::legacy::BesideOldNeighbours::start());
}

fn manager(server: &Server) -> LockManager {
    LockManager::builder(&server.url())
        .prefix("")
        .legacy_setnx()
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap()
}

async fn both() -> (BesideOldNeighbours, Client, OldClient) {
    let place = BesideOldNeighbours::start();
    let ours = place.client("ours");
    let neighbour = OldClient::start(&place.0, NAME).await;
    (place, ours, neighbour)
}

/// In ms since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn an_old_client_reads_ours_as_a_time_in_ms() {
    let (place, ours, mut neighbour) = both().await;
    let before = now();
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
    let ends: u64 = place.0.value(KEY).unwrap().parse().unwrap();
    let lease = u64::try_from(LONG.as_millis()).unwrap();
    assert!((before + lease..=now() + lease).contains(&ends), "{ends}");
    assert_eq!(place.0.value(SIDE), Some(format!("{ends}:ours")));
    // Should we die, nothing is left behind.
    assert!(is_about(place.0.time_left(KEY), LONG));
    assert!(is_about(place.0.time_left(SIDE), LONG));
    assert_eq!(neighbour.does("try 60000").await, "busy");
    assert_eq!(ours.release(NAME).await, Ownership::Owned);
    assert!(place.0.keys().is_empty(), "{:?}", place.0.keys());
    assert_eq!(neighbour.does("try 60000").await, "taken");
}

#[tokio::test]
async fn we_read_the_time_of_an_old_client() {
    let (place, ours, mut neighbour) = both().await;
    neighbour.takes().await;
    let theirs = place.0.value(KEY).unwrap();
    let Attempt::Busy {
        holder: Some(holder),
        remaining,
    } = ours.acquire(NAME, LONG).await
    else {
        panic!("not busy")
    };
    assert_eq!(holder.value(), theirs);
    assert!(is_about(remaining, LONG), "{remaining:?}");
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(ours.release(NAME).await, Ownership::Foreign);
    assert_eq!(place.0.value(KEY), Some(theirs));
    assert_eq!(place.0.time_left(KEY), None);
    assert_eq!(neighbour.does("release").await, "released");
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
}

#[tokio::test]
async fn what_has_ended_is_taken_over_and_what_has_not_is_not() {
    let place = BesideOldNeighbours::start();
    let ours = place.client("ours");
    for (ends, granted) in [(now() - 1, true), (now() + 60_000, false), (1_000_000_000_000, true)] {
        place.0.cmd(&["SET", KEY, &ends.to_string()]);
        let answer = ours.acquire(NAME, LONG).await;
        assert_eq!(answer == GRANTED, granted, "{ends}: {answer:?}");
        assert_eq!(place.0.value(KEY) == Some(ends.to_string()), !granted);
        place.0.cmd(&["DEL", KEY, SIDE]);
    }
}

#[tokio::test]
async fn an_old_client_takes_over_from_ours_that_died() {
    let (_place, ours, mut neighbour) = both().await;
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
    assert_eq!(neighbour.does("try 60000").await, "busy");
    // It dies after this.
    let soon = Duration::from_millis(200);
    assert_eq!(ours.renew(NAME, Some(soon)).await, Ownership::Owned);
    let mut tries = 0;
    while neighbour.does("try 60000").await != "taken" {
        tries += 1;
        assert!(tries < 100_000, "it is never free");
    }
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(ours.release(NAME).await, Ownership::Foreign);
    assert_eq!(neighbour.does("release").await, "released");
}

#[tokio::test]
async fn a_lock_that_vanishes_between_two_steps_goes_back_to_setnx() {
    let (_place, ours, mut neighbour) = both().await;
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
    assert_eq!(neighbour.does("setnx 60000").await, "busy");
    assert_eq!(ours.release(NAME).await, Ownership::Owned);
    assert_eq!(neighbour.does("get").await, "vanished");
    assert_eq!(neighbour.does("setnx 60000").await, "taken");
    assert!(matches!(ours.acquire(NAME, LONG).await, Attempt::Busy { .. }));
}

#[tokio::test]
async fn getset_that_answers_nothing_means_that_it_was_free() {
    let (place, ours, mut neighbour) = both().await;
    place.0.cmd(&["SET", KEY, &(now() - 1).to_string()]);
    assert_eq!(neighbour.does("get").await, "expired");
    // Ours is faster, and is over before the old client goes on.
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
    assert_eq!(ours.release(NAME).await, Ownership::Owned);
    assert_eq!(neighbour.does("getset 60000").await, "taken");
    assert!(matches!(ours.acquire(NAME, LONG).await, Attempt::Busy { .. }));
    assert_eq!(neighbour.does("release").await, "released");
}

#[tokio::test]
async fn an_old_client_that_comes_late_overwrites_our_time_and_we_have_lost() {
    let (place, ours, mut neighbour) = both().await;
    place.0.cmd(&["SET", KEY, &(now() - 1).to_string()]);
    assert_eq!(neighbour.does("get").await, "expired");
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
    // Not for as long as ours, lest both end in the same millisecond: the same number is as good as no overwriting.
    assert_eq!(neighbour.does("getset 50000").await, "late");
    let theirs = place.0.value(KEY);
    assert_eq!(ours.renew(NAME, None).await, Ownership::Foreign);
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(ours.release(NAME).await, Ownership::Foreign);
    assert_eq!(place.0.value(KEY), theirs, "what we lost is not ours to delete");
}

#[tokio::test]
async fn only_what_is_ones_own_and_has_not_ended_is_released() {
    let (place, ours, mut neighbour) = both().await;
    // Theirs has ended, and ours came next.
    assert_eq!(neighbour.does("try 1").await, "taken");
    let mut tries = 0;
    while ours.acquire(NAME, LONG).await != GRANTED {
        tries += 1;
        assert!(tries < 100_000, "it never ends");
    }
    assert_eq!(neighbour.does("release").await, "not-own");
    assert_eq!(ours.renew(NAME, None).await, Ownership::Owned);
    // Ours has ended, though somebody has kept it from being deleted, and is still there with our value.
    let ended = now() - 1;
    place.0.cmd(&["SET", KEY, &ended.to_string()]);
    place.0.cmd(&["SET", SIDE, &format!("{ended}:ours")]);
    assert_eq!(ours.release(NAME).await, Ownership::Foreign);
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign);
    assert_eq!(place.0.value(KEY), Some(ended.to_string()));
    // Our value beside another time is not ours either.
    let theirs = now() + 60_000;
    place.0.cmd(&["SET", KEY, &theirs.to_string()]);
    assert_eq!(ours.release(NAME).await, Ownership::Foreign);
    assert_eq!(place.0.value(KEY), Some(theirs.to_string()));
}

#[tokio::test]
async fn a_renewal_writes_a_new_time_that_old_clients_read() {
    let (place, ours, mut neighbour) = both().await;
    assert_eq!(ours.acquire(NAME, STEP).await, GRANTED);
    let ends = || place.0.value(KEY).unwrap().parse::<u64>().unwrap();
    let first = ends();
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Owned);
    let second = ends();
    assert!(second > first);
    assert_eq!(place.0.value(SIDE), Some(format!("{second}:ours")));
    assert!(is_about(place.0.time_left(KEY), LONG));
    assert_eq!(neighbour.does("try 60000").await, "busy");
    assert_eq!(ours.release(NAME).await, Ownership::Owned);
}

#[tokio::test]
async fn a_key_that_holds_no_time_is_an_error_and_stays_as_it_is() {
    let place = BesideOldNeighbours::start();
    let ours = place.client("ours");
    let seconds = (now() / 1000).to_string();
    for garbage in [
        "",
        "hello",
        "-1763728500123",
        "1763728500123.5",
        "1e12",
        "17637285001233",
        &seconds,
        "0",
        "0000000000001",
    ] {
        place.0.cmd(&["SET", KEY, garbage]);
        let error = ours.try_acquire(NAME, Ask::default()).await.unwrap_err();
        assert!(
            error.is_permanent() && error.to_string().contains(&format!("`{KEY}` holds `{garbage}`")),
            "{error}"
        );
        assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign, "{garbage}");
        assert_eq!(ours.release(NAME).await, Ownership::Foreign, "{garbage}");
        assert!(ours.store.force_release(NAME).await.unwrap_err().is_permanent());
        assert_eq!(place.0.value(KEY).as_deref(), Some(garbage));
    }
    place.0.cmd(&["DEL", KEY]);
    place.0.cmd(&["HSET", KEY, "field", "value"]);
    let error = ours.try_acquire(NAME, Ask::default()).await.unwrap_err();
    assert!(
        error.is_permanent() && error.to_string().contains("another program's data"),
        "{error}"
    );
    assert_eq!(ours.renew(NAME, Some(LONG)).await, Ownership::Foreign);
    assert!(ours.try_release(NAME, None).await.unwrap_err().is_permanent());
    assert_eq!(place.0.ask::<String>(&["HGET", KEY, "field"]), "value");
}

#[tokio::test]
async fn a_key_that_holds_no_time_fails_the_call_at_once() {
    let server = Server::start();
    server.cmd(&["SET", KEY, "hello"]);
    let error = manager(&server).lock(NAME).wait(LONG).acquire().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Store { key, source, .. } if &**key == NAME && source.is_permanent()),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_the_old_pattern_cannot_do_is_refused() {
    let place = BesideOldNeighbours::start();
    for class in ["r", "w", "s3", "oorder"] {
        let shared = place.client(&format!("{class}:0123456789abcdef0123456789abcdef:host:1:f"));
        let error = shared.try_acquire(NAME, Ask::default()).await.unwrap_err();
        assert!(
            error.is_permanent() && error.to_string().contains("exclusive"),
            "{error}"
        );
    }
    let fair = Ask {
        fair: true,
        ..Ask::default()
    };
    let error = place.client("ours").try_acquire(NAME, fair).await.unwrap_err();
    assert!(error.is_permanent() && error.to_string().contains("fair"), "{error}");
    let mut standing = place.client("ours").stand(NAME, Ask::default()).await;
    assert_eq!(standing.turn().await, QueueOutcome::Unavailable);
    assert!(place.0.keys().is_empty());
    for url in ["memory://", "memory:"] {
        let error = LockManager::builder(url).legacy_setnx().build().unwrap_err();
        assert!(matches!(error, ConfigError::Url { .. }), "{error}");
    }
}

#[tokio::test]
async fn the_keys_of_one_lock_bear_the_prefix_and_share_a_slot() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .prefix("shop:")
        .legacy_setnx()
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    for (key, expected) in [
        ("7", ["shop:%lock-old:{shop:7_lock}", "shop:7_lock"]),
        ("{order}:7", ["shop:%lock-old@{order}:7_lock", "shop:{order}:7_lock"]),
    ] {
        let guard = locks.lock(key).acquire().await.unwrap();
        let mut keys = server.keys();
        keys.sort();
        assert_eq!(keys, expected);
        guard.release().await.unwrap();
    }
}

#[distributed_lock(key = "inventory:7", lease = "9s", wait = 20, fencing, manager = locks)]
async fn stay_until_told(
    locks: &LockManager,
    inside: tokio::sync::oneshot::Sender<u64>,
    told: tokio::sync::oneshot::Receiver<()>,
) -> Result<(), LockError> {
    let _ = inside.send(current().unwrap().fencing_token().await?.get());
    told.await.ok();
    Ok(())
}

#[tokio::test]
async fn an_annotated_function_is_renewed_and_waits_for_old_clients() {
    let (place, _, mut neighbour) = both().await;
    let locks = manager(&place.0);
    let call = || {
        let locks = locks.clone();
        let (inside, is_inside) = tokio::sync::oneshot::channel();
        let (tell, told) = tokio::sync::oneshot::channel();
        let body = tokio::spawn(async move { stay_until_told(&locks, inside, told).await });
        (body, is_inside, tell)
    };
    neighbour.takes().await;
    let (body, is_inside, tell) = call();
    // Not before the neighbour is done.
    let asked = || place.0.info("total_commands_processed").parse::<u64>().unwrap();
    let before = asked();
    eventually("the call to ask", || async { asked() > before + 10 }).await;
    assert!(!body.is_finished());
    assert_eq!(neighbour.does("release").await, "released");
    let first_token = is_inside.await.unwrap();
    let first = place.0.value(KEY);
    eventually("a renewal", || async { place.0.value(KEY) > first }).await;
    let second = place.0.value(KEY);
    eventually("another renewal", || async { place.0.value(KEY) > second }).await;
    assert_eq!(neighbour.does("try 60000").await, "busy");
    tell.send(()).unwrap();
    body.await.unwrap().unwrap();
    neighbour.takes().await;
    assert_eq!(neighbour.does("release").await, "released");
    let (body, is_inside, tell) = call();
    assert!(is_inside.await.unwrap() > first_token);
    tell.send(()).unwrap();
    body.await.unwrap().unwrap();
    assert_eq!(place.0.keys(), ["%lock-fence"]);
}

/// It is told at once, not when the lease is to be renewed.
#[tokio::test]
async fn a_neighbour_whose_clock_is_ahead_takes_our_lock_and_the_body_is_cancelled() {
    let (place, ..) = both().await;
    let locks = manager(&place.0);
    let mut neighbour = OldClient::with_clock_ahead(&place.0, NAME, 2 * LONG).await;
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let body = tokio::spawn({
        let request = locks.lock(NAME).lease(LONG);
        async move {
            request
                .run(async {
                    inside.send(()).unwrap();
                    std::future::pending::<()>().await;
                })
                .await
        }
    });
    is_inside.await.unwrap();
    // The server is asked to report changes a moment after the grant.
    eventually("the lock to be watched", || async {
        place.0.info("tracking_total_keys") != "0"
    })
    .await;
    assert_eq!(neighbour.does("try 60000").await, "taken");
    assert_cancelled(body, LostReason::Taken).await;
    assert_eq!(neighbour.does("release").await, "released");
}

#[tokio::test]
async fn an_operator_sees_ours_and_theirs_and_takes_either_away() {
    let (place, ours, mut neighbour) = both().await;
    let locks = manager(&place.0);
    assert_eq!(locks.inspect(NAME).await.unwrap(), None);
    let guard = locks.lock("inventory:8").lease(LONG).acquire().await.unwrap();
    neighbour.takes().await;
    for other in ["inventory:9", "other_lock", "inventory:10_lock"] {
        place.0.cmd(&["SET", other, "no lock"]);
    }
    let found = locks.list("inventory:*").await.unwrap();
    let keys: Vec<_> = found.iter().map(|info| &*info.key).collect();
    assert_eq!(keys, ["inventory:7", "inventory:8"]);
    assert_eq!(found[0].holders[0].holder.value(), place.0.value(KEY).unwrap());
    assert_eq!(found[1].holders[0].holder.pid(), Some(std::process::id()));
    for info in &found {
        assert!(is_about(info.holders[0].remaining, LONG), "{info:?}");
        assert_eq!(locks.inspect(&*info.key).await.unwrap().unwrap().key, info.key);
        assert!(locks.force_release(&*info.key).await.unwrap());
        assert!(!locks.force_release(&*info.key).await.unwrap());
    }
    assert!(guard.release().await.is_err());
    assert_eq!(ours.acquire(NAME, LONG).await, GRANTED);
}

/// The old pattern has one key a lock, so several are taken one after the other.
#[tokio::test]
async fn several_locks_are_taken_or_none() {
    use lock_runtime::store::{AcquireAllRequest, AttemptAll, HolderValue, Receipt};
    let (place, ours, mut neighbour) = both().await;
    let keys: [Arc<str>; 3] = ["a".into(), NAME.into(), "z".into()];
    let (value, receipt) = (HolderValue::of("ours"), Receipt::default());
    let request = AcquireAllRequest {
        keys: &keys,
        value: &value,
        former: None,
        keep: None,
        ttl: LONG,
        fence: false,
        receipt: &receipt,
    };
    neighbour.takes().await;
    let answer = ours.store.acquire_all(&request).await.unwrap();
    assert!(matches!(answer, AttemptAll::Busy { at: 1, .. }), "{answer:?}");
    assert_eq!(place.0.keys(), [KEY]);
    assert_eq!(neighbour.does("release").await, "released");
    assert_eq!(
        ours.store.acquire_all(&request).await.unwrap(),
        AttemptAll::Granted { fence: None }
    );
    assert_eq!(neighbour.does("try 60000").await, "busy");
}
