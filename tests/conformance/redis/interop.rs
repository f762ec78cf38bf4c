//! Other clients of the same pattern: redis-py's `Lock` and this crate's exclude each other, and
//! neither deletes the other's key.

use std::path::Path;
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LostReason, distributed_lock};
use lock_tests::children::{Builder, Child};
use lock_tests::{Server, eventually, patient};
use redis::aio::MultiplexedConnection;

const LEASE: Duration = Duration::from_secs(60);
const KEY: &str = "dist_lock:inventory:7";

struct Python(Child);

impl Python {
    async fn start(server: &Server) -> Self {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Builder::new("python3")
            .arg(tests.join("conformance/redis/redis_py_lock.py"))
            .arg(server.url())
            .arg(KEY)
            .env("PYTHONPATH", tests.join(".servers/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .spawn();
        child.line("ready").await;
        Self(child)
    }

    async fn does(&mut self, order: &str) -> String {
        self.0.say(order);
        self.0.line("").await.text
    }
}

async fn both() -> (Server, LockManager, Python) {
    let server = Server::start();
    let manager = patient(LockManager::builder(&server.url())).await;
    let python = Python::start(&server).await;
    (server, manager, python)
}

#[tokio::test]
async fn redis_py_waits_for_our_lock() {
    let (server, manager, mut python) = both().await;
    let guard = manager.lock("inventory:7").lease(LEASE).acquire().await.unwrap();
    assert_eq!(python.does("try").await, "busy");
    assert_eq!(python.does("owned").await, "not-owned");
    assert_eq!(python.does("release").await, "not-held");
    let ours = server.value(KEY);
    python.0.say("wait");
    // It is waiting by now: it asks again and again.
    let asked = || server.info("total_commands_processed").parse::<u64>().unwrap();
    let before = asked();
    eventually("redis-py to ask", || async { asked() > before + 20 }).await;
    assert_eq!(server.value(KEY), ours);
    guard.release().await.unwrap();
    assert_eq!(python.0.line("").await.text, "taken");
    assert_eq!(python.does("owned").await, "owned");
}

#[tokio::test]
async fn we_wait_for_the_lock_of_redis_py() {
    let (server, manager, mut python) = both().await;
    assert_eq!(python.does("try").await, "taken");
    let theirs = server.value(KEY).unwrap();
    let error = manager
        .lock("inventory:7")
        .wait(Duration::from_secs(2))
        .acquire()
        .await
        .unwrap_err();
    match error {
        LockError::Busy {
            holder: Some(holder), ..
        } => assert_eq!(holder.value(), theirs),
        other => panic!("{other:?}"),
    }
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("inventory:7").lease(LEASE).wait(LEASE).acquire().await }
    });
    assert_eq!(python.does("extend").await, "extended");
    assert!(!waiting.is_finished());
    assert_eq!(server.value(KEY), Some(theirs));
    assert_eq!(python.does("release").await, "released");
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(python.does("try").await, "busy");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn redis_py_does_not_release_or_extend_our_lock() {
    let (server, manager, mut python) = both().await;
    assert_eq!(python.does("try").await, "taken");
    // Its lease ends, and it does not know.
    server.cmd(&["PEXPIRE", KEY, "0"]);
    let guard = manager.lock("inventory:7").lease(LEASE).acquire().await.unwrap();
    let ours = server.value(KEY);
    assert_eq!(python.does("release").await, "not-owned");
    assert_eq!(server.value(KEY), ours);
    guard.handle().verify().await.unwrap();
    guard.release().await.unwrap();
    assert!(!server.exists(KEY));
}

#[tokio::test]
async fn we_do_not_release_or_renew_the_lock_of_redis_py() {
    let (server, manager, mut python) = both().await;
    for by_drop in [false, true] {
        let guard = manager.lock("inventory:7").lease(LEASE).acquire().await.unwrap();
        server.cmd(&["PEXPIRE", KEY, "0"]);
        assert_eq!(python.does("try").await, "taken");
        let theirs = server.value(KEY);
        if by_drop {
            drop(guard);
            // Whatever goes on in the background is over after this.
            patient(LockManager::builder(&server.url()))
                .await
                .lock("another")
                .run(async {})
                .await
                .unwrap();
        } else {
            let error = guard.release().await.unwrap_err();
            assert!(
                matches!(
                    error,
                    LockError::Lost {
                        reason: LostReason::Taken | LostReason::Deleted,
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        assert_eq!(server.value(KEY), theirs);
        assert_eq!(python.does("owned").await, "owned");
        assert_eq!(python.does("release").await, "released");
    }
    manager.shutdown().await;
}

/// Reads and writes in two commands that only the lock makes one.
#[distributed_lock(key = "inventory:<item>", lease = 60, wait = 60, manager = manager)]
async fn add_one(manager: &LockManager, item: u32, server: &mut MultiplexedConnection) -> Result<u64, LockError> {
    let seen: Option<u64> = redis::cmd("GET").arg("counter").query_async(server).await.unwrap();
    let next = seen.unwrap_or(0) + 1;
    let () = redis::cmd("SET")
        .arg("counter")
        .arg(next)
        .query_async(server)
        .await
        .unwrap();
    Ok(next)
}

/// The proof of exclusion: a sum that comes out wrong as soon as two are inside at once.
#[tokio::test]
async fn a_counter_shared_by_redis_py_and_an_annotated_function_comes_out_exact() {
    const TIMES: u64 = 150;
    let (server, manager, mut python) = both().await;
    python.0.say(&format!("count {TIMES}"));
    let mut connection = server.connection().await;
    for _ in 0..TIMES {
        add_one(&manager, 7, &mut connection).await.unwrap();
    }
    assert_eq!(python.0.line("").await.text, "counted");
    assert_eq!(server.value("counter"), Some((2 * TIMES).to_string()));
    assert!(!server.exists(KEY));
}
