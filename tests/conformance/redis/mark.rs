//! A server that is one of several masters: it gives no lock while it may have forgotten one.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::LockManager;
use lock_runtime::clock::BootClock;
use lock_runtime::store::memory::MemoryStore;
use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{AcquireAllRequest, ContentionSlot, Effect, LockStore, Ownership, Receipt, StoreError};
use lock_tests::{Action, PATIENCE, PATIENT, Proxy, Server, chain, eventually, eventually_some};
use tokio::task::JoinSet;

use super::store::FENCED;
use crate::place::{Ask, Client, GRANTED, LONG};

const MARK: &str = "%lock-mark";
/// After so long a server opens by itself while a test waits for it.
const SHORT: Duration = Duration::from_secs(1);
/// Takes no more than the lock.
const PLAIN: Ask = Ask {
    lease: LONG,
    fence: false,
    tell_remaining: false,
    fair: false,
};
/// Each way to get a lock.
const WAYS: [&str; 6] = ["plain", "busy", "fenced", "fair", "several", "queue"];

fn client(url: &str, value: &str, longest_lease: Duration) -> Client {
    Client {
        store: Arc::new(RedisStore::open_as_master(url, "", longest_lease, PATIENT).unwrap()),
        value: value.to_owned(),
        clock: Arc::new(BootClock),
    }
}

/// Opens a server that no test waits for, however long a busy machine takes for that.
async fn open(client: &Client) {
    eventually("the server to open", || async { client.store.open_now().await.is_ok() }).await;
}

/// Asks for a free lock.
async fn ask(client: &Client, way: &str, key: &str) -> Result<String, StoreError> {
    let receipt = Receipt::default();
    let how = match way {
        "fenced" => FENCED,
        "fair" => Ask { fair: true, ..PLAIN },
        "busy" => Ask::default(),
        _ => PLAIN,
    };
    match way {
        "several" => {
            let request = AcquireAllRequest {
                keys: &[key.into()],
                value: &client.holder_value(),
                former: None,
                keep: None,
                ttl: LONG,
                fence: false,
                receipt: &receipt,
            };
            shown(client.store.acquire_all(&request).await)
        }
        "queue" => shown(client.queue(key, PLAIN, &receipt, &ContentionSlot::default()).await),
        _ => shown(client.try_acquire(key, how).await),
    }
}

fn shown<T: Debug>(answer: Result<T, StoreError>) -> Result<String, StoreError> {
    answer.map(|answer| format!("{answer:?}"))
}

/// The time until the server opens, as a call is told that gets no lock.
fn opens_in(answer: Result<String, StoreError>) -> Duration {
    let error = answer.expect_err("a closed server has given a lock");
    assert!(!error.is_permanent(), "{error:?}");
    let opens_in = error.opens_in().unwrap_or_else(|| panic!("{error:?}"));
    let seconds = opens_in.as_millis().div_ceil(1000);
    let says = format!(
        "the server may have forgotten locks (first use, a restart or a flush), and takes none for another {seconds} s; wait, or"
    );
    assert!(error.to_string().starts_with(&says), "{error}");
    opens_in
}

/// Waits for an answer of a server that was restarted, and of no other one. It is that it is closed.
async fn closes(client: &Client, key: &str) -> Duration {
    let answer = eventually_some("an answer of the new run", || async {
        match ask(client, "plain", key).await {
            Err(error) if error.opens_in().is_none() => None,
            answer => Some(answer),
        }
    });
    opens_in(answer.await)
}

/// The parts of a mark: the run, the time at which the server opens, in ms, and the longest lease.
fn mark(server: &Server) -> (String, u64, u64) {
    let mark = server.value(MARK).unwrap();
    assert_eq!(server.time_left(MARK), None, "it stays");
    let [run, opens, longest] = <[&str; 3]>::try_from(mark.split(':').collect::<Vec<_>>()).unwrap();
    assert_eq!(run, server.info("run_id").trim());
    (run.to_owned(), opens.parse().unwrap(), longest.parse().unwrap())
}

fn server_time(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]);
    seconds * 1000 + micros / 1000
}

/// Whether the plain way is one command, which takes the lock before the mark is read.
fn takes_by_set(server: &Server) -> bool {
    server.version().is_7()
}

#[tokio::test]
async fn the_first_use_is_closed_for_one_longest_lease_and_says_so() {
    let server = Server::start();
    let a = client(&server.url(), "a", LONG);
    for way in WAYS {
        let rest = opens_in(ask(&a, way, "k").await);
        assert!(rest <= LONG && rest > LONG / 2, "{way}: {rest:?}");
    }
    assert_eq!(server.keys(), [MARK], "nothing else was sent");
    assert_eq!(mark(&server).2, 60_000);

    let server = Server::start();
    let a = client(&server.url(), "a", SHORT);
    let opens_at = eventually_some("the server to open", || async {
        match ask(&a, "plain", "k").await {
            Ok(answer) => {
                assert_eq!(answer, format!("{GRANTED:?}"));
                Some(mark(&server).1)
            }
            refused => {
                assert!(opens_in(refused) <= SHORT);
                None
            }
        }
    });
    assert!(opens_at.await <= server_time(&server), "it was given too early");
    assert_eq!(a.release("k").await, Ownership::Owned);
}

#[tokio::test]
async fn a_call_waits_until_the_server_opens() {
    let server = Server::start();
    let lease = SHORT * 5;
    let a = client(&server.url(), "a", lease);
    let builder = LockManager::builder("master").store(a.store);
    let locks = builder.response_timeout(PATIENCE).build().unwrap();
    let request = || locks.lock("k").lease(lease);
    let error = request().wait(Duration::ZERO).acquire().await.unwrap_err();
    let said = chain(&error);
    assert!(
        error.is_retryable() && said.contains("takes none for another"),
        "{said}"
    );
    let guard = request().wait(PATIENCE).acquire().await.unwrap();
    assert!(mark(&server).1 <= server_time(&server), "it was given too early");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn another_process_opens_the_server_at_the_same_time() {
    let server = Server::start();
    let a = client(&server.url(), "a", LONG);
    opens_in(ask(&a, "plain", "k").await);
    let first = mark(&server);
    let b = client(&server.url(), "b", LONG);
    let later = opens_in(ask(&b, "plain", "k").await);
    assert!(later <= opens_in(ask(&a, "plain", "k").await) + LONG / 2, "{later:?}");
    assert_eq!(mark(&server), first);
}

#[tokio::test]
async fn a_connection_that_is_up_notices_each_loss_of_the_mark_in_each_way_to_get_a_lock() {
    let server = Server::start();
    let a = client(&server.url(), "a", LONG);
    let losses: [&[&str]; 4] = [
        &["FLUSHALL"],
        &["DEL", MARK],
        &["SET", MARK, "another"],
        &[
            "EVAL",
            "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'a', 'b')",
            "1",
            MARK,
        ],
    ];
    for loss in losses {
        for way in WAYS {
            open(&a).await;
            ask(&a, way, "k").await.unwrap();
            let before = mark(&server);
            a.release("k").await;
            server.cmd(loss);
            let answer = ask(&a, way, "k").await;
            let effect = answer.as_ref().map_or_else(StoreError::effect, |_| Effect::None);
            assert!(opens_in(answer) > LONG / 2, "{way} after {loss:?}");
            let is_plain = takes_by_set(&server) && ["plain", "busy"].contains(&way);
            assert_eq!(
                (effect == Effect::Unknown, server.exists("k")),
                (is_plain, is_plain),
                "{way}"
            );
            // What a call gives back is given back.
            a.release("k").await;
            assert!(mark(&server).1 >= before.1, "{way} after {loss:?}");
            // It is known by now, and nothing is sent.
            opens_in(ask(&a, way, "k").await);
            assert!(!server.exists("k"));
        }
    }
}

/// The mark is read behind the command that takes the lock, so this flush is seen too.
#[tokio::test]
async fn a_flush_behind_a_command_is_seen_before_its_answer_counts() {
    let server = Server::start();
    if !takes_by_set(&server) {
        return;
    }
    let proxy = Proxy::to(&server);
    let a = client(&proxy.url(), "a", LONG);
    open(&a).await;
    assert_eq!(a.acquire("other", LONG).await, GRANTED);
    let held = proxy.on_next(|command| command.is("GET") && command.mentions(MARK), Action::Hold);
    let asked = ask(&a, "plain", "k");
    let flush = async {
        held.done().await;
        eventually("the lock", || async { server.exists("k") }).await;
        server.cmd(&["FLUSHALL"]);
        proxy.release();
    };
    let (answer, ()) = tokio::join!(asked, flush);
    let effect = answer.as_ref().map_or_else(StoreError::effect, |_| Effect::None);
    opens_in(answer);
    assert_eq!(effect, Effect::Unknown);
}

#[tokio::test]
async fn a_crowd_reads_the_mark_once_for_many_and_gets_nothing_after_a_flush() {
    const CROWD: usize = 200;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let a = client(&proxy.url(), "a", LONG);
    open(&a).await;
    for is_open in [true, false] {
        let before = proxy.mark();
        let mut crowd = JoinSet::new();
        for nth in 0..CROWD {
            let a = a.clone();
            crowd.spawn(async move {
                let key = format!("k{nth}");
                let answer = ask(&a, "plain", &key).await;
                a.release(&key).await;
                answer
            });
        }
        for answer in crowd.join_all().await {
            if is_open {
                assert_eq!(answer.unwrap(), format!("{GRANTED:?}"));
            } else {
                opens_in(answer);
            }
        }
        let sent = &proxy.commands()[before..];
        let count = |name| sent.iter().filter(|command| command.is(name)).count();
        if is_open && takes_by_set(&server) {
            assert_eq!(count("SET"), CROWD);
            assert!(count("GET") < CROWD / 2, "{} for {CROWD}", count("GET"));
        }
        server.cmd(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_waiter_is_not_handed_a_lock_that_the_server_has_forgotten_in_between() {
    let server = Server::start();
    let (a, b) = (client(&server.url(), "a", LONG), client(&server.url(), "b", LONG));
    open(&a).await;
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    let (receipt, contention) = (Receipt::default(), ContentionSlot::default());
    let waiting = b.queue("k", PLAIN, &receipt, &contention);
    let flush = async {
        eventually("a place in the queue", || async {
            receipt.connection().is_some() && receipt.unanswered_on().is_none()
        })
        .await;
        // The queue has handed it over by all that the waiter can see.
        let script = "redis.call('FLUSHALL') redis.call('SET', KEYS[1], 'b', 'PX', 60000)";
        server.cmd(&["EVAL", script, "1", "k"]);
    };
    let (turn, ()) = tokio::join!(waiting, flush);
    opens_in(shown(turn));
    assert_eq!(b.leave("k", PLAIN).await, Ownership::Owned);
}

#[tokio::test]
async fn a_restart_closes_the_server_with_its_data_and_without() {
    let server = Server::start();
    let a = client(&server.url(), "a", LONG);
    open(&a).await;
    assert_eq!(a.acquire("saved", LONG).await, GRANTED);
    server.cmd(&["SAVE"]);
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    let first = mark(&server);

    server.restart();
    assert!(server.exists("saved") && !server.exists("k"), "an old snapshot");
    assert!(closes(&a, "k").await > LONG / 2);
    let second = mark(&server);
    assert!(second.0 != first.0 && second.1 > first.1, "{first:?} {second:?}");

    open(&a).await;
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    server.restart_empty();
    assert!(closes(&a, "k").await > LONG / 2);
    assert_ne!(mark(&server).0, second.0);
}

#[tokio::test]
async fn a_restart_waits_for_the_longest_lease_of_the_runs_before() {
    let server = Server::start();
    opens_in(ask(&client(&server.url(), "a", LONG), "plain", "k").await);
    let first = mark(&server).1;
    for _ in 0..2 {
        server.cmd(&["SAVE"]);
        server.restart();
        // A new version, say.
        let b = client(&server.url(), "b", SHORT);
        assert!(closes(&b, "k").await > LONG / 2);
        let (_, opens, longest) = mark(&server);
        assert!(opens >= first && longest == 1000, "{opens} {longest}");
    }
}

#[tokio::test]
async fn another_longest_lease_than_that_of_the_other_processes_is_refused() {
    let server = Server::start();
    let a = client(&server.url(), "a", LONG);
    open(&a).await;
    let b = client(&server.url(), "b", LONG / 2);
    let error = eventually_some("an answer", || async {
        b.store.connect().await.err().filter(StoreError::is_permanent)
    })
    .await;
    let said = error.to_string();
    for part in [
        "longest lease is 30s",
        "is 60s",
        "give all processes the same longest lease",
    ] {
        assert!(said.contains(part), "{said}");
    }
    for way in WAYS {
        let error = ask(&b, way, "k").await.unwrap_err();
        assert_eq!(error.to_string(), said, "{way}");
    }
    assert!(b.store.open_now().await.is_err());
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
}

#[tokio::test]
async fn an_operator_opens_the_server_for_all_processes() {
    let server = Server::start();
    let (a, b) = (client(&server.url(), "a", LONG), client(&server.url(), "b", LONG));
    opens_in(ask(&a, "plain", "k").await);
    opens_in(ask(&b, "plain", "k").await);
    assert!(a.store.open_now().await.unwrap());
    assert!(!a.store.open_now().await.unwrap(), "it was open");
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    eventually("the other process to notice", || async {
        ask(&b, "plain", "other").await.is_ok()
    })
    .await;
    let c = client(&server.url(), "c", LONG);
    assert!(!c.store.open_now().await.unwrap());
    assert_eq!(c.acquire("another", LONG).await, GRANTED);
    // Only this once.
    server.restart();
    closes(&a, "k").await;
    assert!(!MemoryStore::new().open_now().await.unwrap());
}

#[tokio::test]
async fn two_stores_on_one_server_have_one_identity() {
    let (server, other) = (Server::start(), Server::start());
    let of = async |server: &Server, url: String| {
        let (plain, master) = (
            RedisStore::open(&url, "", PATIENT).unwrap(),
            client(&url, "a", LONG).store,
        );
        let identity = plain.identity().await.unwrap().unwrap();
        assert_eq!(master.identity().await.unwrap().as_deref(), Some(&*identity));
        assert_eq!(&*identity, server.info("run_id").trim());
        identity
    };
    let identity = of(&server, server.url()).await;
    assert_eq!(of(&server, server.unix_url()).await, identity);
    assert_ne!(of(&other, other.url()).await, identity);
    assert_eq!(MemoryStore::new().identity().await.unwrap(), None);
}

#[tokio::test]
async fn a_lock_that_several_may_hold_is_refused() {
    let server = Server::start();
    let locks = LockManager::builder("master").store(client(&server.url(), "a", LONG).store);
    let locks = locks.build().unwrap();
    locks.check_connection().await.unwrap();
    let error = locks.lock("k").read().acquire().await.unwrap_err();
    let said = chain(&error);
    assert!(
        said.contains("one of several masters keeps no locks that several may hold"),
        "{said}"
    );
    assert_eq!(server.keys(), [MARK]);
}

#[tokio::test]
async fn a_single_server_has_no_mark_and_is_not_asked_for_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let a = Client {
        store: Arc::new(RedisStore::open(&proxy.url(), "", PATIENT).unwrap()),
        value: "a".to_owned(),
        clock: Arc::new(BootClock),
    };
    assert!(!a.store.open_now().await.unwrap());
    for way in WAYS {
        ask(&a, way, "k").await.unwrap();
        server.cmd(&["FLUSHALL"]);
        ask(&a, way, "k").await.unwrap();
        a.release("k").await;
    }
    let about_it = |command: &lock_tests::Command| command.mentions("lock-mark") || command.is("INFO");
    assert_eq!(proxy.count(about_it), 0);
}
