//! Promises of the Redis store about the shared modes, beyond those of every store: layout, round
//! trips, permissions, servers that fail midway, and crowds that enter together.

use std::sync::Arc;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{
    AcquireAllRequest, Attempt, AttemptAll, ContentionSlot, Fence, HolderValue, LossHint, Ownership, QueueOutcome,
    Receipt,
};
use lock_tests::{Flow, PATIENT, Proxy, Server, eventually};

use crate::place::{Ask, Client, GRANTED, LONG, OnServer, Place, STEP, Standing, is_about};
use crate::redis::store::{FENCED, Reports, is_wrong_type};
use crate::suite::shared::value;

/// One of each mode.
const CLASSES: [&str; 4] = ["r", "w", "s2", "oa"];

fn client(place: &dyn Place, class: &str, name: &str) -> Client {
    place.client(&value(class, name))
}

/// A client with a store of its own at this address.
fn client_at(place: &OnServer, url: &str, class: &str, name: &str) -> Client {
    Client {
        store: Arc::new(RedisStore::open(url, "", PATIENT).unwrap()),
        value: value(class, name),
        clock: place.clock(),
    }
}

fn score(server: &Server, member: &str) -> Option<f64> {
    server.ask(&["ZSCORE", "k", member])
}

#[tokio::test]
async fn a_lock_is_a_sorted_set_of_holders_and_tallies_and_nothing_else() {
    let place = OnServer::start();
    let server = &place.0;
    let (a, b) = (client(&place, "r", "a"), client(&place, "r", "b"));
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    assert_eq!(b.acquire("k", 2 * STEP).await, GRANTED);
    assert_eq!(server.keys(), ["k"]);
    assert_eq!(server.ask::<usize>(&["ZCARD", "k"]), 3);
    assert_eq!(score(server, "#r"), Some(2.0));
    let [first, last] = [&b, &a].map(|client| score(server, &client.value).unwrap());
    assert!((last - first - 40_000.0).abs() < 9_000.0, "{first} and {last}");
    assert!(is_about(server.time_left("k"), LONG));
    // With the last lease goes the key.
    assert_eq!(a.release("k").await, Ownership::Owned);
    assert_eq!(score(server, "#r"), Some(1.0));
    assert!(is_about(server.time_left("k"), 2 * STEP));
    assert_eq!(b.release("k").await, Ownership::Owned);
    assert!(server.keys().is_empty());

    // The token of an owner goes with its last holder.
    let (a, b) = (client(&place, "oa", "a"), client(&place, "oa", "b"));
    let token = a.acquire_fenced("k").await;
    assert_eq!(score(server, &format!("fence:{token}")), Some(0.0));
    assert_eq!(b.acquire("k", LONG).await, GRANTED);
    assert_eq!(b.token("k").await, token);
    assert_eq!(a.release("k").await, Ownership::Owned);
    assert_eq!(server.ask::<usize>(&["ZCARD", "k"]), 3);
    assert_eq!(b.release("k").await, Ownership::Owned);
    assert_eq!(server.keys(), ["%lock-fence"]);
}

#[tokio::test]
async fn a_lock_that_is_free_is_taken_renewed_and_released_in_a_trip_each() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    for class in CLASSES {
        let a = client_at(&place, &proxy.url(), class, "a");
        for round in 0..2 {
            let mark = proxy.mark();
            assert_eq!(a.acquire("k", LONG).await, GRANTED);
            assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
            assert_eq!(a.release("k").await, Ownership::Owned);
            let sent = proxy.commands()[mark..]
                .iter()
                .filter(|sent| sent.mentions("k"))
                .count();
            assert!(round == 0 || sent == 3, "{class}: {sent}");
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_never_touched() {
    let place = OnServer::start();
    place.0.cmd(&["SET", "k", "somebody"]);
    for class in CLASSES {
        let a = client(&place, class, "a");
        for ask in [Ask::default(), FENCED] {
            assert!(is_wrong_type(&a.try_acquire("k", ask).await.unwrap_err()));
        }
        for keep in [None, Some(LONG)] {
            assert!(is_wrong_type(&a.try_release("k", keep).await.unwrap_err()));
        }
        assert!(is_wrong_type(&a.store.fence("k", &a.holder_value()).await.unwrap_err()));
        // In a batch it must not keep the others from being renewed.
        assert_eq!(a.acquire("other", LONG).await, GRANTED);
        let batch = [a.request("k", Some(LONG)), a.request("other", Some(LONG))];
        assert_eq!(
            a.store.renew(&batch).await.unwrap(),
            [Ownership::Foreign, Ownership::Owned]
        );
        assert_eq!(a.release("other").await, Ownership::Owned);
        assert_eq!(place.0.value("k").as_deref(), Some("somebody"));
        assert_eq!(place.0.time_left("k"), None);
        assert_eq!(place.0.keys().iter().filter(|key| *key != "%lock-fence").count(), 1);
    }
    // All or nothing: what comes before it is not taken.
    place.0.cmd(&["HSET", "z", "field", "value"]);
    let request = AcquireAllRequest {
        keys: &["a".into(), "b".into(), "z".into()],
        value: &HolderValue::of("a"),
        former: None,
        keep: Some(LONG),
        ttl: LONG,
        fence: true,
        receipt: &Receipt::default(),
    };
    let error = place.store().acquire_all(&request).await.unwrap_err();
    assert!(is_wrong_type(&error), "{error}");
    assert!(!place.0.exists("a") && !place.0.exists("b"));
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_gets_them_again() {
    let place = OnServer::start();
    let flush = || place.0.cmd(&["SCRIPT", "FLUSH"]);
    for class in CLASSES {
        let a = client(&place, class, "a");
        flush();
        a.acquire_fenced("k").await;
        flush();
        assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
        flush();
        a.token("k").await;
        flush();
        let waiting = client(&place, "ob", "b").stand("k", Ask::default()).await;
        flush();
        assert_eq!(a.release("k").await, Ownership::Owned);
        let b = waiting.client.clone();
        waiting.claim().await;
        flush();
        assert_eq!(b.release("k").await, Ownership::Owned);
    }
    flush();
    let a = place.client("a");
    let all = a.acquire_all(&["x", "y"], None, false, LONG).await;
    assert!(matches!(all, AttemptAll::Granted { .. }));
}

#[tokio::test]
async fn a_holder_that_somebody_takes_out_is_reported() {
    let place = OnServer::start();
    for class in CLASSES {
        let a = client(&place, class, "a");
        let reports = Reports::listen(&*a.store);
        let taken_out = ["ZREM", "k", &a.value];
        for change in [&["DEL", "k"][..], &taken_out, &["SET", "k", "another"]] {
            for extend in [None, Some(LONG)] {
                assert_eq!(a.acquire("k", LONG).await, GRANTED);
                assert_eq!(a.renew("k", extend).await, Ownership::Owned);
                reports.clear();
                place.0.cmd(change);
                reports.wait_for(&LossHint::Key("k".into())).await;
                assert_ne!(a.renew("k", None).await, Ownership::Owned);
                place.0.cmd(&["DEL", "k"]);
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_memory_lets_nobody_in_and_goes_on_with_those_who_are() {
    let place = OnServer::start();
    for class in CLASSES {
        let [held, kept] = ["held", "kept"].map(|key| (key, client(&place, class, key)));
        let reader = client(&place, class, "reader");
        for (key, client) in [&held, &kept] {
            client.acquire_fenced(key).await;
        }
        let waiting = client(&place, "ow", "waiting").stand("held", Ask::default()).await;
        place.0.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        match reader.try_acquire("new", Ask::default()).await {
            Err(error) => assert!(!error.is_permanent(), "{class}: {error}"),
            // The script of the first lock on a connection begins by a removal, after which such a server permits the rest.
            Ok(granted) if !place.0.version().is_7() => {
                assert_eq!(granted, GRANTED);
                assert_eq!(reader.release("new").await, Ownership::Owned, "{class}");
            }
            Ok(granted) => panic!("{class}: {granted:?}"),
        }
        let (key, client) = &held;
        assert_eq!(client.renew(key, Some(LONG)).await, Ownership::Owned, "{class}");
        assert!(matches!(client.fence(key).await, Fence::Token(_)));
        assert_eq!(client.release(key).await, Ownership::Owned, "{class}");
        waiting.claim().await;
        let (key, client) = &kept;
        assert_eq!(
            client.try_release(key, Some(LONG)).await.unwrap(),
            Ownership::Owned,
            "{class}"
        );
        assert_ne!(client.renew(key, Some(STEP)).await, Ownership::Owned);
        assert!(place.0.time_left(key).unwrap() > LONG / 2);
        assert!(!place.0.exists("new"));
        place.0.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        place.0.cmd(&["DEL", "held", "kept"]);
    }
}

#[tokio::test]
async fn a_demoted_server_without_the_key_does_not_tell_that_the_lock_is_gone() {
    for class in CLASSES {
        let place = OnServer::start();
        let a = client(&place, class, "a");
        assert_eq!(a.acquire("k", LONG).await, GRANTED);
        assert_eq!(a.renew("k", None).await, Ownership::Owned);
        // At once, so that nothing is asked in between.
        place.0.cmd(&["MULTI"]);
        place.0.cmd(&["DEL", "k"]);
        place.0.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
        place.0.cmd(&["EXEC"]);
        let renewed = a.store.renew(&[a.request("k", None)]).await;
        let released = a.try_release("k", None).await.map(drop);
        for answer in [renewed.map(drop), released] {
            let error = answer.expect_err("it told that the lock was gone");
            assert!(!error.is_permanent(), "{class}: {error}");
        }
    }
}

/// Whatever command is forbidden: nothing is taken, or it is given back as well. Exclusive locks need none of them.
#[tokio::test]
async fn a_forbidden_command_is_found_before_the_lock_is_taken() {
    let place = OnServer::start();
    let url = place.0.url().replace("redis://", "redis://limited:secret@");
    let mut found = Vec::new();
    for forbidden in [
        "zadd",
        "zrem",
        "zscore",
        "zrange",
        "zrangebyscore",
        "exists",
        "@sortedset",
    ] {
        let rule = format!("-{forbidden}");
        let rules = [
            "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", &rule,
        ];
        place.0.cmd(&rules);
        for class in CLASSES {
            let a = client_at(&place, &url, class, "a");
            match a.try_acquire("k", Ask::default()).await {
                Ok(answer) => {
                    assert_eq!(answer, GRANTED);
                    assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned, "without {forbidden}");
                    assert_eq!(a.release("k").await, Ownership::Owned, "without {forbidden}");
                }
                Err(error) => {
                    assert!(error.is_permanent(), "without {forbidden}: {error}");
                    found.push(forbidden);
                }
            }
            assert!(!place.0.exists("k"), "without {forbidden} a lock was left");
        }
        let exclusive = client_at(&place, &url, "r", "a");
        let exclusive = Client {
            value: "a".to_owned(),
            ..exclusive
        };
        assert_eq!(exclusive.acquire("k", LONG).await, GRANTED);
        assert_eq!(exclusive.release("k").await, Ownership::Owned);
    }
    for needed in ["zadd", "zrem", "zscore", "zrange", "zrangebyscore"] {
        assert!(found.contains(&needed), "all went well without {needed}");
    }
    assert!(!found.contains(&"exists"));
}

/// How many are let in at once.
const CROWD: usize = 300;

async fn a_crowd_waits_for_a_writer(place: &OnServer, url: &str) -> (Client, Vec<Standing>) {
    let writer = client(place, "w", "writer");
    assert_eq!(writer.acquire("k", LONG).await, GRANTED);
    let reader = client_at(place, url, "r", "reader");
    let mut crowd = Vec::new();
    for nth in 0..CROWD {
        let reader = Client {
            value: value("r", &format!("{nth}")),
            ..reader.clone()
        };
        crowd.push(reader.stand("k", Ask::default()).await);
    }
    (writer, crowd)
}

/// One release lets the first of them in, and all the others follow by what they and their process ask. Each finds out that it has the lock.
async fn all_are_let_in(writer: &Client, crowd: Vec<Standing>) {
    assert_eq!(writer.release("k").await, Ownership::Owned);
    for mut reader in crowd {
        let QueueOutcome::Granted { .. } = reader.turn().await else {
            panic!("{} has lost its place", reader.client.value);
        };
        assert_eq!(reader.client.renew("k", Some(LONG)).await, Ownership::Owned);
    }
}

#[tokio::test]
async fn a_crowd_of_readers_is_let_in_after_one_release() {
    let place = OnServer::start();
    let (writer, crowd) = a_crowd_waits_for_a_writer(&place, &place.0.url()).await;
    all_are_let_in(&writer, crowd).await;
    assert!(!place.0.exists("%lock-shared:{k}"));
}

#[tokio::test]
async fn a_crowd_of_readers_that_hears_nothing_is_let_in_all_the_same() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    let (writer, crowd) = a_crowd_waits_for_a_writer(&place, &proxy.url()).await;
    // As long as somebody waits, the process listens on: the answer to the end of that would be lost as well.
    let last = Client {
        value: value("w", "last"),
        ..crowd[0].client.clone()
    };
    let last = last.stand("k", Ask::default()).await;
    proxy.pushes(false);
    all_are_let_in(&writer, crowd).await;
    assert!(last.waits());
}

/// Its messages lost, one far back in a process's crowd finds out too.
#[tokio::test]
async fn an_owner_at_the_back_that_hears_nothing_gets_another_place() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    let (other, owner) = (client(&place, "w", "other"), client(&place, "oa", "owner"));
    assert_eq!(other.acquire("k", LONG).await, GRANTED);
    let first = owner.stand("k", Ask::default()).await;
    let behind = client_at(&place, &proxy.url(), "w", "behind");
    let mut crowd = Vec::new();
    for nth in 0..300 {
        let behind = Client {
            value: value("w", &format!("{nth}")),
            ..behind.clone()
        };
        crowd.push(behind.stand("k", Ask::default()).await);
    }
    let last = Client {
        value: value("oa", "last"),
        ..behind.clone()
    };
    let mut last = last.stand("k", Ask::default()).await;
    proxy.pushes(false);
    assert_eq!(other.release("k").await, Ownership::Owned);
    first.claim().await;
    // It was let in beyond the crowd, and is told that it is, or was.
    assert!(matches!(
        last.turn().await,
        QueueOutcome::Granted { .. } | QueueOutcome::Lapsed
    ));
    assert!(crowd.iter().all(Standing::waits));
}

#[tokio::test]
async fn a_silent_process_in_front_is_passed_over() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    let reader = client(&place, "r", "reader");
    assert_eq!(reader.acquire("k", LONG).await, GRANTED);
    let silent = client_at(&place, &proxy.url(), "w", "silent")
        .stand("k", Ask::default())
        .await;
    // Somebody else who waits is heard.
    let behind = client(&place, "r", "behind").stand("k", Ask::default()).await;
    assert!(behind.waits());
    proxy.requests(Flow::Hold);
    // Beside a reader who stays, so the writer in front would have to wait on.
    behind.claim().await;
    assert_eq!(score(&place.0, "#r"), Some(2.0));
    let again = client(&place, "r", "again");
    assert!(matches!(again.acquire("k", LONG).await, Attempt::Granted { .. }));
    drop(silent);
}

/// Who has died since its last sign of life takes no lock with it: nobody hears that it has been let in.
#[tokio::test]
async fn a_process_that_is_gone_is_passed_over_at_once() {
    let place = OnServer::start();
    let server = &place.0;
    let queue = "%lock-shared:{k}";
    let before = client(&place, "oa", "before");
    let token = before.acquire_fenced("k").await;
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]);
    let heard = format!("-{}", seconds * 1000 + micros / 1000 + 60_000);
    server.cmd(&[
        "ZADD",
        queue,
        &heard,
        "abc",
        "1",
        &format!("1500:1:abc:{}", value("ob", "gone")),
    ]);
    let next = client(&place, "oc", "next").stand("k", FENCED).await;
    assert!(next.waits());
    // It is told of what it is handed only once it listens, and what is written below says that it does.
    eventually("the waiter to listen", || async { !server.channels().is_empty() }).await;
    // Both have been heard of just now.
    server.cmd(&["ZADD", queue, &heard, "abc"]);
    let processes: Vec<String> = server.ask(&["ZRANGEBYSCORE", queue, "-inf", "0"]);
    for process in &processes {
        server.cmd(&["ZADD", queue, &heard, process]);
    }
    assert_eq!(processes.len(), 2);
    assert_eq!(before.release("k").await, Ownership::Owned);
    // In the same step.
    assert_eq!((score(server, "#oc"), score(server, "#ob")), (Some(1.0), None));
    let client = next.client.clone();
    let after = next.claim().await.unwrap();
    assert!(after > token, "{after} after {token}");
    assert_eq!(client.token("k").await, after);
    assert_eq!(server.ask::<usize>(&["ZCARD", "k"]), 3, "a holder, a tally, a token");
    assert!(!server.exists(queue));
}

/// Such as a list of scores, or the permits of another library: times in seconds, in ms, and some that are over.
#[tokio::test]
async fn a_sorted_set_of_another_program_is_an_error_and_never_touched() {
    let place = OnServer::start();
    let server = &place.0;
    let content = || server.ask::<Vec<String>>(&["ZRANGE", "k", "0", "-1", "WITHSCORES"]);
    for foreign in [
        &["5", "ann", "7", "bob"][..],
        &["1700000000", "ann"],
        &["1700000000000", "r:ann"],
        &["5", "#rust", "9", "ann"],
        &["99999999999999", "r:ann"],
    ] {
        server.cmd(&[&["ZADD", "k"], foreign].concat());
        let before = content();
        for class in CLASSES {
            let a = client(&place, class, "a");
            for ask in [Ask::default(), FENCED] {
                let error = a.try_acquire("k", ask).await.unwrap_err();
                assert!(is_wrong_type(&error), "{class}: {error}");
            }
            for keep in [None, Some(LONG)] {
                assert!(is_wrong_type(&a.try_release("k", keep).await.unwrap_err()));
            }
            assert!(is_wrong_type(&a.store.fence("k", &a.holder_value()).await.unwrap_err()));
            let (receipt, contention) = (Receipt::default(), ContentionSlot::default());
            let queued = a.queue("k", FENCED, &receipt, &contention).await;
            assert!(matches!(queued, Ok(QueueOutcome::Unavailable)), "{class}: {queued:?}");
            assert_eq!(a.acquire("other", LONG).await, GRANTED);
            let batch = [a.request("k", Some(LONG)), a.request("other", Some(LONG))];
            assert_eq!(
                a.store.renew(&batch).await.unwrap(),
                [Ownership::Foreign, Ownership::Owned]
            );
            assert_eq!(a.release("other").await, Ownership::Owned);
            assert_eq!(content(), before, "{class}");
        }
        assert_eq!(server.time_left("k"), None);
        server.cmd(&["DEL", "k"]);

        // In the place of a lock that somebody waits for.
        let (a, b) = (client(&place, "w", "a"), client(&place, "w", "b"));
        assert_eq!(a.acquire("k", LONG).await, GRANTED);
        let waiting = b.stand("k", Ask::default()).await;
        assert!(waiting.waits());
        server.cmd(&["MULTI"]);
        server.cmd(&["DEL", "k"]);
        server.cmd(&[&["ZADD", "k"], foreign].concat());
        server.cmd(&["EXEC"]);
        eventually("the waiter to be told", || async { !waiting.waits() }).await;
        assert_eq!(content(), before);
        server.cmd(&["DEL", "k", "%lock-shared:{k}"]);
    }
}

/// One that somebody has added to a lock with a score that no holder has.
#[tokio::test]
async fn a_strange_score_in_one_lock_harms_no_lock() {
    let place = OnServer::start();
    let server = &place.0;
    for strange in ["inf", "1e30", "99999999999999.5"] {
        let (a, b) = (client(&place, "r", "a"), client(&place, "r", "b"));
        for key in ["k", "other"] {
            assert_eq!(a.acquire(key, LONG).await, GRANTED);
        }
        server.cmd(&["ZADD", "k", strange, "strange"]);
        server.cmd(&["PERSIST", "k"]);
        let batch = [a.request("k", Some(2 * LONG)), a.request("other", Some(2 * LONG))];
        assert_eq!(
            a.store.renew(&batch).await.unwrap(),
            [Ownership::Owned, Ownership::Owned],
            "{strange}"
        );
        assert!(is_about(server.time_left("other"), 2 * LONG));
        assert!(server.time_left("k").is_some());
        server.cmd(&["PERSIST", "k"]);
        assert_eq!(b.acquire("k", LONG).await, GRANTED, "{strange}");
        assert!(server.time_left("k").is_some());
        server.cmd(&["PERSIST", "k"]);
        // Not by the short way.
        assert_eq!(b.acquire("k", LONG).await, GRANTED, "{strange}");
        assert!(server.time_left("k").is_some());
        for client in [&a, &b] {
            assert_eq!(client.release("k").await, Ownership::Owned, "{strange}");
        }
        assert_eq!(a.release("other").await, Ownership::Owned);
        assert!(server.keys().is_empty());
    }
}
