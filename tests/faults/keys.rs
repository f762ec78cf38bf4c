//! Invalid requests, and other clients that change a lock's key (`docs/faults.md`, rows 22 to 24,
//! 60 and 62).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{HolderValue, LockStore, Ownership, Receipt, ReleaseRequest, RenewRequest};
use lock_runtime::{
    Backoff, ConfigError, KeyProblem, LockError, LockManager, LockRequest, LostReason, MAX_KEY_LEN, MAX_LEASE,
    MIN_LEASE, RequestProblem, current,
};
use lock_tests::{PATIENCE, PATIENT, Proxy, Server, chain, eventually};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::stage::{LEASE, LONG, builder, cancelled, connected, gone, hurried, lost, stored};

fn is_invalid_lease<T>(ended: &Result<T, LockError>) -> bool {
    use RequestProblem::{AtLeast, Lease};
    matches!(
        ended,
        Err(LockError::InvalidRequest {
            problem: Lease(_) | AtLeast(_),
            ..
        })
    )
}

/// The key is gone, or will be.
fn assert_ends_within(server: &Server, key: &str, span: Duration) {
    const GONE: i64 = -2;
    let left: i64 = server.ask(&["PTTL", &stored(key)]);
    let most = i64::try_from(span.as_millis()).unwrap() + 1;
    assert!(
        left == GONE || (0..=most).contains(&left),
        "PTTL is {left} for {span:?}"
    );
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(MIN_LEASE),
        Just(MAX_LEASE),
        Just(MAX_LEASE + Duration::from_nanos(1)),
        // Redis takes this one for an expiry, and keeps the key for ever.
        Just(Duration::from_secs(9_223_370_000_000_000)),
        Just(Duration::from_millis(u64::MAX)),
        Just(Duration::MAX),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos)),
        (0..100_000_000_u64).prop_map(Duration::from_micros),
        (0..u64::MAX).prop_map(Duration::from_nanos),
    ]
}

// docs/faults.md, row 22.
#[test]
fn a_lease_out_of_bounds_never_reaches_the_server_and_one_within_is_what_the_server_gets() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = runtime.block_on(connected(&proxy.url()));
    let mut runner = TestRunner::new(Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    });
    let case = AtomicUsize::new(0);
    let checked = runner.run(
        &(any_duration(), any_duration(), any_duration()),
        |(lease, wait, at_least)| {
            // One of its own for each case: what is left of the one before may still be on its way.
            let key = format!("bounds:{}", case.fetch_add(1, Ordering::Relaxed));
            // A wait that leaves no time for an answer is an error of another kind.
            let wait = wait.max(PATIENCE);
            let request = locks.lock(&*key).lease(lease).wait(wait).at_least(at_least);
            let acquired = runtime.block_on(request.acquire());
            let within = |span| span <= MAX_LEASE;
            if lease >= MIN_LEASE && within(lease) && within(at_least) {
                let guard = acquired.map_err(|error| TestCaseError::fail(error.to_string()))?;
                assert_ends_within(&server, &key, lease);
                match runtime.block_on(guard.release()) {
                    // A short lease may be over by now.
                    Err(LockError::Lost { .. }) if lease < PATIENCE => {}
                    released => released.map_err(|error| TestCaseError::fail(error.to_string()))?,
                }
                // A release that keeps the key has an expiry as well.
                assert_ends_within(&server, &key, at_least.max(lease));
            } else {
                assert!(is_invalid_lease(&acquired), "{acquired:?}");
                let sent = proxy.count(|command: &lock_tests::Command| command.mentions(&stored(&key)));
                assert_eq!(sent, 0, "something was sent");
            }
            server.cmd(&["DEL", &stored(&key)]);
            Ok(())
        },
    );
    if let Err(error) = checked {
        panic!("{error}");
    }
}

// docs/faults.md, row 22.
#[test]
fn a_default_that_no_lock_can_have_is_refused_at_start_up() {
    let builder = || LockManager::builder("redis://localhost");
    let quorum = || LockManager::builder("redlock://a,b,localhost");
    let too_long = MAX_LEASE + Duration::from_nanos(1);
    for (builder, setting) in [
        (builder().default_lease(Duration::ZERO), "`lease` of 0ns; give 10ms"),
        (
            builder().default_lease(MIN_LEASE.saturating_sub(Duration::from_nanos(1))),
            "give 10ms to 366 days",
        ),
        (builder().default_lease(too_long), "give 10ms to 366 days"),
        (
            builder().default_lease(LEASE).skew(LEASE),
            "`lease` of 6s; give 10ms to 366 days, and more than the manager's `skew`",
        ),
        (builder().default_max_hold(Duration::ZERO), "`max_hold` of zero"),
        (
            builder().defaults(|call| call.max_hold(Duration::ZERO)),
            "`max_hold` of zero",
        ),
        (
            builder().defaults(|call| call.lease(Duration::ZERO)),
            "`lease` of 0ns; give 10ms",
        ),
        (builder().defaults(move |call| call.at_least(too_long)), "`at_least` of"),
        (
            builder().defaults(move |call| call.lock_delay(too_long)),
            "`lock_delay` of",
        ),
        (builder().defaults(|call| call.read().write()), "more than one is given"),
        (builder().defaults(|call| call.semaphore(0)), "give one or more"),
        (builder().defaults(|call| call.owner("")), "the owner's name is empty"),
        (
            builder().defaults(|call| call.owner(&"x".repeat(1025))),
            "longer than 1,024 bytes",
        ),
        (
            builder().defaults(|call| call.read().fencing(true)),
            "leave the token out",
        ),
        (
            builder().legacy_setnx().defaults(|call| call.fair(true)),
            "leave `fair` and the mode out",
        ),
        (
            builder().legacy_setnx().defaults(LockRequest::read),
            "leave `fair` and the mode out",
        ),
        (quorum().defaults(|call| call.fair(true)), "a quorum has several"),
        (quorum().defaults(LockRequest::read), "a quorum has several"),
        (quorum().min_replicas(1), "leave `min_replicas` out"),
        (
            quorum()
                .longest_lease(LEASE)
                .default_lease(LEASE)
                .defaults(|call| call.lock_delay(LEASE)),
            "the longest lease of this quorum",
        ),
    ] {
        let refused = builder.build().unwrap_err();
        assert!(matches!(refused, ConfigError::Settings { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains("localhost`") && text.contains(setting), "{text}");
        assert!(text.contains("with these defaults"), "{text}");
    }
    for lease in [MIN_LEASE, MAX_LEASE] {
        assert!(builder().default_lease(lease).build().is_ok());
        assert!(
            quorum()
                .defaults(move |call| call.lease(lease).lock_delay(MAX_LEASE).at_least(MAX_LEASE))
                .build()
                .is_ok()
        );
    }
}

// docs/faults.md, row 22.
#[tokio::test]
async fn no_setting_overflows() {
    let server = Server::start();
    for span in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(u64::MAX),
        Duration::MAX,
    ] {
        let builder = || {
            builder(&server.url())
                .backoff(Backoff::new(span, span))
                .default_wait(span.max(PATIENCE))
                .shutdown_grace(span)
        };
        let locks = builder().build().unwrap();
        let guard = locks
            .lock("settings")
            .lease(LONG)
            .max_renewals(u32::MAX)
            .acquire()
            .await
            .unwrap();
        guard.handle().ensure(Duration::ZERO).unwrap();
        assert!(guard.handle().ensure(Duration::MAX).is_err());
        guard.release().await.unwrap();
        locks.shutdown().await;
        // A skew that uses up the lease leaves none.
        let skewed = builder().default_lease(LONG).skew(span).build();
        assert_eq!(skewed.is_err(), span > LONG, "{skewed:?}");
        if let Ok(skewed) = skewed {
            skewed.lock("settings").run(async {}).await.unwrap();
        }
        gone(&server, "settings").await;
    }
    let skewed = builder(&server.url()).default_lease(LONG).skew(LEASE).build().unwrap();
    let skewed = skewed.lock("settings").lease(LEASE).acquire().await;
    assert!(is_invalid_lease(&skewed), "{skewed:?}");
}

// docs/faults.md, row 23.
#[tokio::test]
async fn a_hostile_key_is_stored_as_it_is_or_refused() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let longest = "x".repeat(MAX_KEY_LEN);
    let hostile = [
        "a\r\nFLUSHALL\r\n",
        "\0",
        "a\0b",
        " ",
        "\t",
        "{}",
        "{a}b",
        "}{",
        "a:b",
        "a::b",
        "*",
        "?",
        "[a-z]",
        "%s%n",
        "%",
        "$5\r\nabc",
        "ключ",
        "🦀",
        "\u{feff}",
        "\u{202e}",
        "'; return 1 --",
        "]]",
        "KEYS[1]",
        "-inf",
        longest.as_str(),
    ];
    let mut guards = Vec::new();
    for key in hostile {
        let guard = locks
            .lock(key)
            .lease(LONG)
            .acquire()
            .await
            .unwrap_or_else(|error| panic!("{key:?}: {error}"));
        assert_eq!(guard.handle().key(), key);
        guard.handle().verify().await.unwrap();
        guards.push(guard);
    }
    let mut keys: Vec<String> = hostile.iter().map(|key| stored(key)).collect();
    keys.sort();
    assert_eq!(server.keys(), keys, "one key each, byte for byte");
    for key in hostile {
        let busy = locks.lock(key).wait(Duration::ZERO).acquire().await;
        assert!(busy.is_err_and(|error| error.is_busy()));
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(server.keys(), [""; 0]);

    let mark = proxy.mark();
    let too_long = "x".repeat(MAX_KEY_LEN + 1);
    let huge = "x".repeat(1 << 20);
    for (key, wanted) in [
        ("", KeyProblem::Empty),
        (too_long.as_str(), KeyProblem::TooLong(MAX_KEY_LEN + 1)),
        (huge.as_str(), KeyProblem::TooLong(1 << 20)),
        ("%lock-fence", KeyProblem::Reserved),
    ] {
        let error = locks.lock(key).acquire().await.unwrap_err();
        assert!(
            matches!(error, LockError::InvalidKey { problem, .. } if problem == wanted),
            "{error:?}"
        );
        assert!(error.to_string().len() < 500, "a message is no place for a megabyte");
    }
    assert_eq!(proxy.mark(), mark, "something was sent");
}

// docs/faults.md, row 24.
#[tokio::test]
async fn a_release_or_renewal_with_another_value_never_touches_the_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let guard = locks.lock("forged").lease(LONG).acquire().await.unwrap();
    let value = server.value(&stored("forged")).unwrap();
    let token = &value[..32];
    assert!(token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{value}");

    let store = RedisStore::open(&server.url(), "dist_lock:", PATIENT).unwrap();
    let other_token = if token.starts_with('0') { "1" } else { "0" };
    let forgeries = [
        String::new(),
        token.to_owned(),
        value.to_uppercase() + " ",
        value.clone() + ":",
        value[1..].to_owned(),
        format!("{other_token}{}", &value[1..]),
        "*".to_owned(),
        // What a busy waiter is shown of the holder.
        value[33..].to_owned(),
    ];
    for forged in &forgeries {
        let forged = HolderValue::of(forged.as_str());
        let receipt = Receipt::default();
        for keep in [None, Some(Duration::from_millis(1))] {
            let request = ReleaseRequest {
                key: &stored("forged").into(),
                value: &forged,
                keep,
                unanswered_on: None,
                elsewhere: false,
                queued: None,
                leave_free: None,
                receipt: &receipt,
            };
            assert_eq!(store.release(&request).await.unwrap(), Ownership::Foreign, "{forged:?}");
        }
        let renewal = RenewRequest {
            key: stored("forged").into(),
            value: forged.clone(),
            extend: Some(MIN_LEASE),
        };
        assert_eq!(
            store.renew(&[renewal]).await.unwrap(),
            [Ownership::Foreign],
            "{forged:?}"
        );
    }
    assert_eq!(server.value(&stored("forged")), Some(value));
    assert!(server.time_left(&stored("forged")).unwrap() > LONG / 2);
    let busy = locks.lock("forged").wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(
        busy.is_busy() && !busy.to_string().contains(&guard_token(&server)),
        "the message gives the token away: {busy}"
    );
    guard.release().await.expect("the lock was held throughout");
}

fn guard_token(server: &Server) -> String {
    server.value(&stored("forged")).unwrap()[..32].to_owned()
}

// docs/faults.md, row 60.
#[tokio::test]
async fn a_key_of_another_type_is_a_typed_error_and_stays() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    server.cmd(&["HSET", &stored("hash"), "field", "value"]);
    for request in [
        locks.lock("hash"),
        locks.lock("hash").fencing(true),
        locks.lock("hash").wait(Duration::ZERO),
    ] {
        let error = request.wait(PATIENCE).acquire().await.unwrap_err();
        assert!(
            matches!(&error, LockError::Store { source, .. } if source.is_permanent()),
            "{error:?}"
        );
        assert!(chain(&error).contains("another program's data"), "{error:?}");
    }
    assert_eq!(server.ask::<String>(&["TYPE", &stored("hash")]), "hash");
    assert_eq!(server.time_left(&stored("hash")), None);
}

// docs/faults.md, row 60.
#[tokio::test]
async fn a_call_that_waits_for_a_key_that_becomes_one_of_another_type_is_told_so() {
    let server = Server::start();
    let (locks, others) = (connected(&server.url()).await, connected(&server.url()).await);
    let key = stored("k");
    let requests: [fn(&LockManager) -> LockRequest; 4] = [
        |locks| locks.lock("k"),
        |locks| locks.lock("k").fair(true),
        |locks| locks.lock("k").write(),
        |locks| locks.lock_all(["k", "l"]),
    ];
    for request in requests {
        server.cmd(&["DEL", &key]);
        let held = request(&others).lease(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn(request(&locks).wait(2 * PATIENCE).acquire());
        let places = |kind: &str| {
            let queue = format!("dist_lock:%lock-{kind}:{{{key}}}");
            server.ask::<usize>(&["ZCOUNT", &queue, "1", "+inf"])
        };
        eventually("a place in the queue", || async {
            places("queue") + places("shared") > 0
        })
        .await;
        // In one step: the call takes a lock that is free in between.
        let replace = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'field', 'value')";
        server.cmd(&["EVAL", replace, "1", &key]);
        let told = tokio::time::timeout(PATIENCE, waiter).await.expect("it waits on");
        let error = told.unwrap().unwrap_err();
        assert!(
            matches!(&error, LockError::Store { source, .. } if source.is_permanent()),
            "{error:?}"
        );
        drop(held);
    }
}

// docs/faults.md, row 60.
#[tokio::test]
async fn a_lock_replaced_by_a_key_of_another_type_is_lost_and_the_key_stays() {
    let server = Server::start();
    // The shutdown waits for an answer.
    let locks = hurried(&server.url()).await;
    let replace = || {
        server.cmd(&["DEL", &stored("replaced")]);
        server.cmd(&["HSET", &stored("replaced"), "field", "value"]);
    };
    // Noticed by the report of the change, or by the next look.
    let call = locks.lock("replaced").lease(LONG).run(async {
        replace();
        std::future::pending::<()>().await;
    });
    assert!(matches!(
        lost(tokio::time::timeout(PATIENCE, call).await.unwrap()),
        (LostReason::Taken | LostReason::Deleted, false)
    ));
    assert_eq!(server.ask::<String>(&["TYPE", &stored("replaced")]), "hash");

    // By the release, where that comes first.
    server.cmd(&["DEL", &stored("replaced")]);
    let guard = locks.lock("replaced").lease(LONG).acquire().await.unwrap();
    replace();
    let error = guard.release().await.unwrap_err();
    assert!(
        matches!(error, LockError::Lost { .. } | LockError::Store { .. }),
        "{error:?}"
    );

    // By a guard that is dropped.
    server.cmd(&["DEL", &stored("replaced")]);
    let guard = locks
        .lock("replaced")
        .lease(Duration::from_secs(1))
        .at_least(Duration::from_secs(1))
        .acquire()
        .await
        .unwrap();
    replace();
    drop(guard);
    locks.shutdown().await;
    assert_eq!(server.ask::<String>(&["TYPE", &stored("replaced")]), "hash");
    assert_eq!(
        server.time_left(&stored("replaced")),
        None,
        "its expiry is none of ours"
    );
}

// docs/faults.md, row 62.
#[tokio::test]
async fn a_foreign_key_without_expiry_is_busy_and_is_left_alone() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    server.cmd(&["SET", &stored("foreign"), "somebody"]);
    for request in [locks.lock("foreign"), locks.lock("foreign").fencing(true)] {
        let error = request.wait(Duration::from_secs(3)).acquire().await.unwrap_err();
        let LockError::Busy {
            holder: Some(holder),
            retry_after: None,
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(holder.value(), "somebody");
    }
    assert_eq!(server.value(&stored("foreign")).as_deref(), Some("somebody"));
    assert_eq!(server.time_left(&stored("foreign")), None);
}

// docs/faults.md, row 62.
#[tokio::test]
async fn a_lock_overwritten_without_expiry_is_lost_and_the_foreign_key_is_left_alone() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let call = locks.lock("overwritten").lease(LEASE).run(async {
        server.cmd(&["SET", &stored("overwritten"), "somebody"]);
        std::future::pending::<()>().await;
    });
    assert_eq!(lost(call.await), cancelled(LostReason::Taken));
    // Also by a body that did not look.
    let ended = locks
        .lock("unseen")
        .lease(LONG)
        .run(async {
            assert!(current().is_some());
            server.cmd(&["SET", &stored("unseen"), "somebody"]);
        })
        .await;
    assert_eq!(lost(ended), (LostReason::Taken, true));
    locks.shutdown().await;
    for key in ["overwritten", "unseen"] {
        assert_eq!(server.value(&stored(key)).as_deref(), Some("somebody"));
        assert_eq!(server.time_left(&stored(key)), None);
    }
}

// docs/faults.md, row 62. A lock whose expiry somebody took away is still ours, and gets one again with the next renewal.
#[tokio::test]
async fn a_lock_of_ours_without_expiry_is_repaired_by_its_renewal() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let guard = locks.lock("persisted").lease(LEASE * 3 / 2).acquire().await.unwrap();
    server.cmd(&["PERSIST", &stored("persisted")]);
    lock_tests::eventually("a renewal", || async { guard.handle().renewals() > 0 }).await;
    assert!(server.time_left(&stored("persisted")).is_some());
    guard.release().await.unwrap();
}

// docs/faults.md, row 22, for time-outs.
#[tokio::test]
async fn no_time_out_overflows() {
    let server = Server::start();
    for url in [server.url(), "memory://".to_owned()] {
        let locks = LockManager::builder(&url)
            .connect_timeout(Duration::MAX)
            .response_timeout(Duration::MAX)
            .shutdown_grace(Duration::from_millis(1))
            .build()
            .unwrap();
        locks.check_connection().await.unwrap();
        let guard = locks
            .lock("time-outs")
            .lease(LONG)
            .wait(Duration::MAX)
            .acquire()
            .await
            .unwrap();
        guard.handle().verify().await.unwrap();
        // It waits for the guard, for as long as the lease and the longest answer last.
        let down = tokio::spawn(async move { locks.shutdown().await });
        lock_tests::eventually("the lock to end with its manager", || async {
            !guard.handle().is_held()
        })
        .await;
        drop(guard);
        down.await.expect("no panic");
    }
    gone(&server, "time-outs").await;
}
