//! The texts of errors, holders and reports.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::store::{HolderValue, Receipt, ReleaseRequest, RenewRequest};
use lock_runtime::{ConfigError, LockError, LockManager, distributed_lock};
use lock_tests::{Action, PATIENCE, Proxy, Server, chain, eventually, patient};

/// So long that nothing ends it but what the test does.
const LONG: Duration = Duration::from_secs(60);

/// The token in a stored value, which is what a release is proved by.
fn token(value: &str) -> String {
    let token = value.split(':').find(|part| part.len() == 32);
    token.expect("a value of ours has a token").to_owned()
}

#[tokio::test]
async fn no_text_tells_the_token_that_releases_a_lock() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    let memory = LockManager::connect("memory://").await.unwrap();
    for locks in [locks, memory] {
        let guard = locks.lock("k").lease(LONG).label("holder").acquire().await.unwrap();
        let read = locks
            .lock("shared")
            .lease(LONG)
            .read()
            .label("holder")
            .acquire()
            .await
            .unwrap();
        for key in ["k", "shared"] {
            let info = locks.inspect(key).await.unwrap().unwrap();
            let value = info.holders[0].holder.value().to_owned();
            let request = locks.lock(key).wait(Duration::ZERO);
            let busy = if key == "k" { request } else { request.write() }
                .acquire()
                .await
                .unwrap_err();
            assert!(busy.is_busy(), "{busy:?}");
            let renew = RenewRequest {
                key: key.into(),
                value: HolderValue::of(value.as_str()),
                extend: None,
            };
            let release = ReleaseRequest {
                key: &key.into(),
                value: &HolderValue::of(value.as_str()),
                keep: None,
                unanswered_on: None,
                elsewhere: false,
                queued: None,
                leave_free: None,
                receipt: &Receipt::default(),
            };
            let texts = [
                format!("{busy:?} {busy}"),
                format!("{info:?}"),
                format!("{:?}", locks.list("*").await.unwrap()),
                format!("{guard:?} {read:?}"),
                format!("{locks:?}"),
                format!("{renew:?} {release:?}"),
            ];
            for text in texts {
                assert!(!text.contains(&token(&value)), "the token is told: {text}");
            }
            assert!(format!("{busy:?} {info:?}").contains("holder"), "{busy:?} {info:?}");
        }
        read.release().await.unwrap();
        if server.exists("dist_lock:k") {
            // An answer that belongs elsewhere, and has the token in it.
            let value = server.value("dist_lock:k").unwrap();
            let answer = format!("*1\r\n${}\r\n{value}\r\n", value.len());
            let releases = |command: &lock_tests::Command| command.mentions("%lock-wake");
            let _hit = proxy.on_next(releases, Action::AnswerInstead(answer.into_bytes()));
            let error = guard.release().await.unwrap_err();
            let text = format!("{error:?} {error}");
            assert!(!text.contains(&token(&value)), "the token is told: {text}");
        } else {
            guard.release().await.unwrap();
        }
    }
}

#[distributed_lock(key = "coalesced", lease = 60, coalesce, manager = locks)]
async fn read(locks: LockManager, stored: Arc<AtomicU32>) -> Result<u32, LockError> {
    Ok(stored.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_coalescing_call_that_begins_after_another_holders_write_gets_no_older_result() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let ours = connected(&proxy.url()).await;
    let theirs = connected(&server.url()).await;
    let stored = Arc::new(AtomicU32::new(1));
    // The server has released the lock, and the first call does not know it yet.
    let is_release =
        |command: &lock_tests::Command| command.mentions("dist_lock:coalesced") && command.mentions("%lock-wake");
    let released = proxy.on_next(is_release, Action::HoldReply);
    let first = tokio::spawn(read(ours.clone(), Arc::clone(&stored)));
    released.done().await;
    let write = theirs
        .lock("coalesced")
        .run(async { stored.store(2, Ordering::SeqCst) });
    write.await.unwrap();
    let second = tokio::spawn(read(ours, Arc::clone(&stored)));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    proxy.release();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(
        second.await.unwrap().unwrap(),
        2,
        "a call got a result from before the write that it came after"
    );
}

#[tokio::test]
async fn a_node_of_a_cluster_is_called_that() {
    let server = Server::builder()
        .arg("cluster-enabled", "yes")
        .arg("cluster-require-full-coverage", "no")
        .start();
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let mut add = vec!["CLUSTER", "ADDSLOTS"];
    add.extend(slots.iter().map(String::as_str));
    server.cmd(&add);
    eventually("the cluster to be up", || async {
        server.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    })
    .await;
    let error = not_connected(&server.url()).await;
    assert_names_cluster(&error, "give the cluster's URL, `redis+cluster://");
}

#[tokio::test]
async fn a_key_that_is_on_another_node_is_told_as_that() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    for answer in ["MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381"] {
        let _hit = proxy.on_next(|command| command.mentions("dist_lock:moved"), Action::error(answer));
        let error = locks.lock("moved").wait(Duration::ZERO).acquire().await.unwrap_err();
        assert_names_cluster(&error, "127.0.0.1:6381");
    }
    let _hit = proxy.on_next(|command| command.is("EVAL"), Action::error("MOVED 3999 127.0.0.1:6381"));
    let error = not_connected(&proxy.url()).await;
    assert_names_cluster(&error, "127.0.0.1:6381");
}

#[track_caller]
fn assert_names_cluster(error: &(dyn Error + 'static), server_says: &str) {
    let text = chain(error);
    for part in ["node of a cluster", server_says] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert!(!text.contains("does not allow"), "told as a missing permission: {text}");
}

async fn connected(url: &str) -> LockManager {
    patient(LockManager::builder(url)).await
}

/// What a manager is told at its start, however long a busy machine takes for that.
async fn not_connected(url: &str) -> ConfigError {
    let builder = LockManager::builder(url).connect_timeout(PATIENCE);
    let locks = builder.response_timeout(PATIENCE).build().unwrap();
    locks.check_connection().await.unwrap_err()
}

/// The error of a call for the lock `k` that does not wait.
async fn asked(locks: &LockManager) -> LockError {
    locks.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err()
}

#[tokio::test]
async fn what_a_server_refuses_is_said_once_with_what_to_do() {
    let server = Server::start();
    let locks = connected(&server.url()).await;

    // One key in two kinds of modes.
    let held = locks.lock("k").lease(LONG).acquire().await.unwrap();
    let mixed = locks.lock("k").read().wait(Duration::ZERO).acquire().await.unwrap_err();
    // The memory store has the same words.
    let in_memory = connected("memory://").await;
    let _held_there = in_memory.lock("k").acquire().await.unwrap();
    let in_memory = in_memory.lock("k").read().wait(Duration::ZERO).acquire().await;
    assert_eq!(chain(&mixed), chain(&in_memory.unwrap_err()));
    held.release().await.unwrap();
    let reading = locks.lock("k").read().acquire().await.unwrap();
    let mixed_too = asked(&locks).await;
    reading.release().await.unwrap();

    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = asked(&locks).await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]);

    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    let demoted = asked(&locks).await;
    server.cmd(&["REPLICAOF", "NO", "ONE"]);

    server.kill();
    let mut gone = asked(&locks).await;
    if !chain(&gone).contains("refused") {
        // The end of the connection came first.
        gone = asked(&locks).await;
    }
    for (error, cause, remedy) in [
        (
            mixed,
            "the key is held in another kind of mode",
            "take a key in one kind of mode",
        ),
        (
            mixed_too,
            "the key is held in another kind of mode",
            "take a key in one kind of mode",
        ),
        (full, "OOM", "give the server more memory"),
        (demoted, "READONLY", "give the URL of the primary"),
        (gone, "refused", "check that the store is up"),
    ] {
        let said = chain(&error);
        assert!(said.starts_with("lock `k`: the store failed: "), "{said}");
        assert!(said.contains(cause) && said.contains(remedy), "{said}");
        assert!(!said.contains("script"), "{said}");
        assert_eq!(said.matches(cause).count(), 1, "{said}");
    }
}

#[tokio::test]
async fn what_is_wrong_at_start_up_names_the_server_without_its_password_and_no_lock() {
    let server = Server::builder().password("s3cret").start();
    let at = server.addr();
    let wrong = not_connected(&format!("redis://:not-s3cret@{at}")).await;
    let without = not_connected(&format!("redis://{at}")).await;
    server.cmd(&["ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+@all", "-pexpire"]);
    let forbidden = not_connected(&format!("redis://app:s3cret@{at}")).await;
    server.kill();
    let gone = not_connected(&server.url()).await;
    for (error, shown, cause, remedy) in [
        (
            wrong,
            format!("redis://:***@{at}"),
            "",
            "give a valid user and password in the URL",
        ),
        (
            without,
            format!("redis://{at}"),
            "",
            "give a valid user and password in the URL",
        ),
        (
            forbidden,
            format!("redis://app:***@{at}"),
            "pexpire",
            "allow it `~dist_lock:* +",
        ),
        (
            gone,
            "redis://:***@".to_owned(),
            "refused",
            "check that the store is up",
        ),
    ] {
        let said = chain(&error);
        assert!(matches!(error, ConfigError::Server { .. }), "{error:?}");
        assert!(said.starts_with(&format!("the store at `{shown}")), "{said}");
        assert!(said.contains(cause) && said.contains(remedy), "{said}");
        assert!(!said.contains("s3cret") && !said.contains("lock `"), "{said}");
    }
    for (url, cause) in [
        ("", "it has no scheme"),
        ("localhost:6379", "it has no scheme"),
        ("http://localhost", "the scheme `http` is not known"),
        ("redis-sentinel://localhost/mymaster", "but `redis+sentinel` is"),
        ("redis-cluster://localhost", "but `redis+cluster` is"),
        ("redlock+tls://a,b,c", "`redlock` is"),
        ("redis://", "Missing hostname"),
    ] {
        let error = LockManager::builder(url).build().unwrap_err();
        let said = chain(&error);
        assert!(
            said.starts_with(&format!("the store's URL `{url}` cannot be used: ")),
            "{said}"
        );
        assert!(
            said.contains(cause) && said.contains("; give `redis://host:port`"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn the_schemes_of_valkey_are_those_of_redis() {
    let server = Server::start();
    for url in [
        server.url().replace("redis://", "valkey://"),
        server.unix_url().replace("unix://", "valkey+unix://"),
        server.unix_url().replace("unix://", "redis+unix://"),
    ] {
        let locks = connected(&url).await;
        locks.lock("k").run(async {}).await.unwrap();
    }
}
