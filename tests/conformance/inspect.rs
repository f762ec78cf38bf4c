//! The operators' methods: snapshots of holders and waiters, and forced releases.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockMode, LockStore, Ownership, ReleaseRequest, RenewRequest,
    StoreFuture,
};
use lock_runtime::{FencingToken, LockError, LockManager, LostReason};
use lock_tests::{PATIENT, Proxy, Server, eventually, patient};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::place::{GRANTED, InMemory, LONG, OnServer, Place, is_about};
use crate::suite::inspect::{self as promises, TOKEN};

const KEY: &str = "inventory:7";

/// Characters that mean something in a pattern, and some that do not.
const ALPHABET: [char; 10] = ['a', 'b', 'c', '-', '^', ']', '[', '\\', '*', '?'];

/// The memory store's patterns against the server's own.
#[test]
fn patterns_mean_the_same_in_memory_as_on_a_server() {
    let (server, memory) = (OnServer::start(), InMemory::new());
    let runtime = server.runtime();
    let clients = [server.client("a"), memory.client("a")];
    let mut keys: Vec<String> = vec![
        "é".to_owned(),
        "aé-".to_owned(),
        "cc*éb".to_owned(),
        "abcabcabc".to_owned(),
    ];
    for one in ALPHABET {
        keys.push(one.to_string());
        for two in ALPHABET {
            keys.push(format!("{one}{two}"));
            keys.extend(ALPHABET.iter().map(|three| format!("{one}{two}{three}")));
        }
    }
    runtime.block_on(async {
        for client in &clients {
            for key in &keys {
                assert_eq!(client.acquire(key, LONG).await, GRANTED);
            }
        }
    });
    let pattern = prop_oneof![
        4 => prop::collection::vec(prop::sample::select(ALPHABET.to_vec()), 0..8),
        // A set's ranges are of bytes that may have a sign: only one-byte characters there.
        1 => prop::collection::vec(prop::sample::select(vec!['a', 'c', '*', '?', 'é', '\\']), 0..6),
    ]
    .prop_map(|characters| characters.into_iter().collect::<String>());
    let matched = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new(Config::with_cases(300));
    let check = |pattern: &str| {
        let [on_server, in_memory] = clients
            .each_ref()
            .map(|client| runtime.block_on(promises::keys(client, pattern)));
        matched.borrow_mut().insert(on_server.len());
        (on_server, in_memory)
    };
    for pattern in [
        "*", "?", "[a-c]?", "[^a-c]", "[c-a]b", r"\**", "[]a", "[a", "[^", r"[\]]", "a*b*c*",
    ] {
        let (on_server, in_memory) = check(pattern);
        assert_eq!(on_server, in_memory, "{pattern}");
    }
    runner
        .run(&pattern, |pattern| {
            let (on_server, in_memory) = check(&pattern);
            prop_assert_eq!(on_server, in_memory, "{}", pattern);
            Ok(())
        })
        .unwrap();
    // Of nothing but patterns that match nothing, or all, both would say the same by themselves.
    assert!(matched.borrow().len() > 10, "{matched:?}");
}

async fn connected(server: &Server) -> LockManager {
    patient(LockManager::builder(&server.url())).await
}

#[tokio::test]
async fn a_manager_knows_keys_without_their_prefix_and_reads_the_prefix_as_it_is() {
    let server = Server::start();
    let of = async |prefix: &str| patient(LockManager::builder(&server.url()).prefix(prefix)).await;
    let (odd, other) = (of("a*[b]?\\:").await, of("axb?:").await);
    let _guards = [
        odd.lock("1").acquire().await.unwrap(),
        odd.lock("2").acquire().await.unwrap(),
        other.lock("3").acquire().await.unwrap(),
        of("aXb?\\:").await.lock("4").acquire().await.unwrap(),
    ];
    let keys = async |locks: &LockManager, pattern: &str| {
        let found = locks.list(pattern).await.unwrap();
        found.iter().map(|info| info.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&odd, "*").await, ["1", "2"]);
    assert_eq!(keys(&odd, "2").await, ["2"]);
    assert_eq!(keys(&other, "*").await, ["3"]);
    let info = odd.inspect("1").await.unwrap().unwrap();
    assert_eq!(&*info.key, "1");
    assert_eq!(info.holders[0].holder.pid(), Some(std::process::id()));
    assert!(info.holders[0].holder.function().is_some());
}

#[tokio::test]
async fn keys_are_checked_and_a_manager_that_was_shut_down_answers_no_more() {
    let locks = LockManager::connect("memory://").await.unwrap();
    for key in ["", "%lock-fence"] {
        assert!(matches!(locks.inspect(key).await, Err(LockError::InvalidKey { .. })));
        assert!(matches!(
            locks.force_release(key).await,
            Err(LockError::InvalidKey { .. })
        ));
    }
    locks.shutdown().await;
    assert!(matches!(locks.inspect("k").await, Err(LockError::Closed { .. })));
    assert!(matches!(locks.list("*").await, Err(LockError::Closed { .. })));
    assert!(matches!(
        locks.list_pages("*").next().await,
        Err(LockError::Closed { .. })
    ));
    assert!(matches!(locks.force_release("k").await, Err(LockError::Closed { .. })));
}

#[tokio::test]
async fn pages_have_together_what_a_list_has() {
    let server = Server::start();
    let locks = connected(&server).await;
    let script = "for i = 1, 5000 do redis.call('SET', 'dist_lock:many:' .. i, ARGV[1], 'PX', 600000) end";
    server.cmd(&["EVAL", script, "0", TOKEN]);
    let mut pages = locks.list_pages("many:*");
    let (mut count, mut keys) = (0, BTreeSet::new());
    while let Some(page) = pages.next().await.unwrap() {
        count += 1;
        keys.extend(page.into_iter().map(|info| info.key));
    }
    assert!(count > 1, "the locks came in {count} page");
    assert!(
        pages.next().await.unwrap().is_none(),
        "the last page stays the last one"
    );
    let list = locks.list("many:*").await.unwrap();
    assert!(keys.iter().eq(list.iter().map(|info| &info.key)));
    assert_eq!(keys.len(), 5000);
    // A page that failed is asked for again.
    let mut pages = locks.list_pages("many:1");
    server.kill();
    assert!(matches!(pages.next().await, Err(LockError::Store { .. })));
    server.start_again();
    server.cmd(&["SET", "dist_lock:many:1", TOKEN, "PX", "600000"]);
    let mut found = 0;
    while let Some(page) = pages.next().await.unwrap() {
        found += page.len();
    }
    assert_eq!(found, 1);
}

/// The server's clock, in ms.
fn server_now(server: &Server) -> u64 {
    let time: Vec<u64> = server.ask(&["TIME"]);
    time[0] * 1000 + time[1] / 1000
}

/// Writes a lock in a shared mode: holders, each with the rest of its lease in ms.
fn write_shared(server: &Server, key: &str, holders: &[(&str, i64)]) {
    let now = i64::try_from(server_now(server)).unwrap();
    for (value, rest) in holders {
        server.cmd(&["ZADD", key, &(now + rest).to_string(), value]);
        let class = value.split(':').next().unwrap();
        server.cmd(&["ZINCRBY", key, "1", &format!("#{class}")]);
    }
}

#[tokio::test]
async fn the_shared_modes_tell_each_holder_that_is_there() {
    let server = Server::start();
    let locks = connected(&server).await;
    let (one, two) = (format!("r:{TOKEN}"), format!("r:f{}", &TOKEN[1..]));
    let late = format!("r:e{}", &TOKEN[1..]);
    write_shared(
        &server,
        "dist_lock:readers",
        &[(&one, 60_000), (&two, 30_000), (&late, -5)],
    );
    let info = locks.inspect("readers").await.unwrap().unwrap();
    assert_eq!(info.mode(), Some(LockMode::Read));
    // By the end of the lease.
    let held: Vec<_> = info.holders.iter().map(|holding| holding.holder.value()).collect();
    assert_eq!(held, [&two, &one]);
    assert_eq!(info.holders[0].holder.host(), Some("host-1"));
    assert!(info.holders[0].remaining.unwrap() <= Duration::from_secs(30));
    assert!(is_about(info.holders[1].remaining, LONG));
    assert_eq!(info.fence, None);

    let (five, three) = (format!("s5:{TOKEN}"), format!("s3:f{}", &TOKEN[1..]));
    write_shared(&server, "dist_lock:permits", &[(&five, 60_000), (&three, 60_000)]);
    let info = locks.inspect("permits").await.unwrap().unwrap();
    assert_eq!(
        (info.mode(), info.holders.len()),
        (NonZeroU32::new(3).map(LockMode::Semaphore), 2)
    );

    write_shared(&server, "dist_lock:owned", &[(&format!("oorder%3A7:{TOKEN}"), 60_000)]);
    server.cmd(&["ZADD", "dist_lock:owned", "0", "fence:1763728500123456"]);
    let info = locks.inspect("owned").await.unwrap().unwrap();
    assert_eq!(info.mode(), Some(LockMode::owner("order:7")));
    assert_eq!(info.fence, Some(FencingToken::new(1_763_728_500_123_456)));

    write_shared(&server, "dist_lock:left", &[(&late, -5)]);
    assert_eq!(locks.inspect("left").await.unwrap(), None);
    let found = locks.list("*").await.unwrap();
    let keys: Vec<_> = found.iter().map(|info| &*info.key).collect();
    assert_eq!(keys, ["owned", "permits", "readers"]);
}

#[tokio::test]
async fn those_who_wait_for_a_shared_mode_are_counted_and_the_dead_are_not() {
    let server = Server::start();
    let locks = connected(&server).await;
    let queue = "%lock-shared:{dist_lock:readers}";
    let now = i64::try_from(server_now(&server)).unwrap();
    write_shared(&server, "dist_lock:readers", &[(&format!("r:{TOKEN}"), 60_000)]);
    let queue = format!("dist_lock:{queue}");
    for (number, process, value) in [(1, "aaaa", "w:1"), (2, "bbbb", "r:2"), (3, "aaaa", "r:3")] {
        server.cmd(&[
            "ZADD",
            &queue,
            &number.to_string(),
            &format!("1500:0:{process}:{value}"),
        ]);
    }
    server.cmd(&["ZADD", &queue, &(-now).to_string(), "aaaa"]);
    server.cmd(&["ZADD", &queue, &(100 - now).to_string(), "bbbb"]);
    assert_eq!(locks.inspect("readers").await.unwrap().unwrap().waiters, 3);
    server.cmd(&["ZADD", &queue, &(2000 - now).to_string(), "bbbb"]);
    assert_eq!(locks.inspect("readers").await.unwrap().unwrap().waiters, 2);
    server.cmd(&["ZREM", &queue, "aaaa"]);
    assert_eq!(locks.inspect("readers").await.unwrap().unwrap().waiters, 1);
    // A free lock that somebody waits for has something to tell, too.
    server.cmd(&["DEL", "dist_lock:readers"]);
    let info = locks.inspect("readers").await.unwrap().unwrap();
    assert_eq!((info.mode(), info.waiters), (None, 1));
}

#[tokio::test]
async fn force_takes_a_shared_lock_from_all_its_holders() {
    let server = Server::start();
    let locks = connected(&server).await;
    let (one, two) = (format!("r:{TOKEN}"), format!("r:f{}", &TOKEN[1..]));
    write_shared(&server, "dist_lock:readers", &[(&one, 60_000), (&two, 30_000)]);
    assert!(locks.force_release("readers").await.unwrap());
    assert!(!server.exists("dist_lock:readers"));
    assert!(!locks.force_release("readers").await.unwrap());
}

#[tokio::test]
async fn what_is_no_lock_is_an_error_is_not_listed_and_is_never_touched() {
    let server = Server::start();
    let locks = connected(&server).await;
    let guard = locks.lock("held").fencing(true).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locks = connected(&server).await;
        async move { locks.lock("held").wait(LONG).acquire().await }
    });
    eventually("a waiter", || async {
        locks.inspect("held").await.unwrap().unwrap().waiters == 1
    })
    .await;
    server.cmd(&["HSET", "dist_lock:hash", "field", "value"]);
    server.cmd(&["RPUSH", "dist_lock:list", "item"]);
    let later = (server_now(&server) + 60_000).to_string();
    server.cmd(&["ZADD", "dist_lock:scores", "5", "ann", &later, "r:bob"]);
    let found = locks.list("*").await.unwrap();
    let keys: Vec<_> = found.iter().map(|info| &*info.key).collect();
    assert_eq!(keys, ["held"], "of {:?}", server.keys());
    let before = server.keys().len();
    for key in ["hash", "list"] {
        let error = locks.inspect(key).await.unwrap_err();
        assert!(
            matches!(&error, LockError::Store { source, .. } if source.is_permanent()),
            "{error}"
        );
    }
    // A sorted set without a count of holders holds none.
    assert_eq!(locks.inspect("scores").await.unwrap(), None);
    for key in ["hash", "list", "scores"] {
        let error = locks.force_release(key).await.unwrap_err();
        assert!(lock_tests::chain(&error).contains("another program's data"), "{error}");
    }
    assert_eq!(server.keys().len(), before);
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_looked_at_in_one_step_and_many_in_few() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&server).await;
    for nth in 0..450 {
        server.cmd(&["SET", &format!("dist_lock:{nth}"), TOKEN, "PX", "60000"]);
    }
    let watched = patient(LockManager::builder(&proxy.url())).await;
    // The server knows the script from here on.
    assert!(locks.inspect("7").await.unwrap().is_some());
    let mark = proxy.mark();
    assert!(watched.inspect("7").await.unwrap().is_some());
    assert_eq!(proxy.commands()[mark..].len(), 1);
    let mark = proxy.mark();
    let found = watched.list("*").await.unwrap();
    assert_eq!(found.len(), 450);
    assert!(found.iter().all(|info| is_about(info.holders[0].remaining, LONG)));
    let sent = proxy.commands()[mark..].to_vec();
    let scans = sent.iter().filter(|command| command.is("SCAN")).count();
    assert!(scans >= 1 && sent.len() <= scans + 5, "{} commands", sent.len());
    assert!(sent.iter().all(|command| command.is("SCAN") || command.is_script()));
}

#[tokio::test]
async fn a_server_that_is_out_of_memory_can_be_looked_at_and_locks_taken_away() {
    let server = Server::start();
    let locks = connected(&server).await;
    let guard = locks.lock(KEY).lease(LONG).acquire().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(locks.inspect(KEY).await.unwrap().is_some());
    assert_eq!(locks.list("*").await.unwrap().len(), 1);
    assert!(locks.force_release(KEY).await.unwrap());
    assert!(guard.release().await.is_err());
}

/// A body that holds the lock until it is cancelled.
fn holds(locks: &LockManager, lease: Duration) -> tokio::task::JoinHandle<Result<(), LockError>> {
    let request = locks.lock(KEY).lease(lease);
    tokio::spawn(request.run(std::future::pending::<()>()))
}

#[tokio::test]
async fn the_body_whose_lock_is_taken_away_is_cancelled_at_once_and_the_next_one_enters() {
    let server = Server::start();
    let (holder, waiter, operator) = (
        connected(&server).await,
        connected(&server).await,
        connected(&server).await,
    );
    let body = holds(&holder, LONG);
    eventually("a holder", || async { operator.inspect(KEY).await.unwrap().is_some() }).await;
    eventually("the lock to be watched", || async {
        server.info("tracking_total_keys") != "0"
    })
    .await;
    let waiting = tokio::spawn(async move { waiter.lock(KEY).wait(LONG).acquire().await });
    eventually("a waiter", || async {
        operator
            .inspect(KEY)
            .await
            .unwrap()
            .is_some_and(|info| info.waiters == 1)
    })
    .await;
    assert!(operator.force_release(KEY).await.unwrap());
    let guard = waiting.await.unwrap().unwrap();
    let cancelled = tokio::time::timeout(LONG / 3, body).await.expect("it is told at once");
    let error = cancelled.unwrap().unwrap_err();
    // Between two holders the key is gone for a moment where the next one was so late that it lost what it was handed.
    assert!(
        matches!(
            error,
            LockError::Lost {
                reason: LostReason::Taken | LostReason::Deleted,
                completed: false,
                ..
            }
        ),
        "{error:?}"
    );
    let info = operator.inspect(KEY).await.unwrap().unwrap();
    assert_eq!((info.holders.len(), info.waiters), (1, 0));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn in_memory_the_body_is_cancelled_by_the_next_renewal() {
    let locks = LockManager::connect("memory://").await.unwrap();
    let body = holds(&locks, LONG);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let info = locks.inspect(KEY).await.unwrap().unwrap();
    assert_eq!(
        info.holders[0].remaining,
        Some(LONG.saturating_sub(Duration::from_secs(1)))
    );
    assert!(locks.force_release(KEY).await.unwrap());
    assert_eq!(locks.inspect(KEY).await.unwrap(), None);
    let error = body.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Lost {
                reason: LostReason::Deleted,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn no_answer_is_an_error_within_the_response_time_out() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = LockManager::builder(&proxy.url())
        .response_timeout(Duration::from_millis(100))
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    proxy.requests(lock_tests::Flow::Lose);
    for error in [
        locks.inspect(KEY).await.unwrap_err(),
        locks.list("*").await.unwrap_err(),
        locks.force_release(KEY).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, LockError::Store { source, .. } if !source.is_permanent()),
            "{error}"
        );
    }
}

/// A store of somebody else's, with no more than it must have.
#[derive(Debug)]
struct Plain(RedisStore);

impl LockStore for Plain {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        self.0.acquire(request)
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        self.0.renew(requests)
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        self.0.release(request)
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        self.0.fence(key, value)
    }
}

#[tokio::test]
async fn a_store_without_an_operators_view_says_so() {
    let server = Server::start();
    let store = Arc::new(Plain(RedisStore::open(&server.url(), "", PATIENT).unwrap()));
    let locks = LockManager::builder("memory://").store(store).build().unwrap();
    for error in [
        locks.inspect(KEY).await.unwrap_err(),
        locks.list("*").await.unwrap_err(),
        locks.force_release(KEY).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, LockError::Store { source, .. } if source.is_permanent()),
            "{error}"
        );
        assert!(lock_tests::chain(&error).contains("no operator's view"), "{error}");
    }
}
