//! Faults of the server (`docs/faults.md`, rows 40, 48, 52 to 54, 57 to 59 and 61).

use std::time::Duration;

use lock_runtime::clock::Clock;
use lock_runtime::store::StoreError;
use lock_runtime::{LockError, LostReason, current};
use lock_tests::proxy::Close;
use lock_tests::{Action, PATIENCE, Proxy, Server, chain, eventually};

use crate::stage::{
    JumpingClock, LONG, builder, cancelled, connected, connected_by, gone, hurried, lost, renews, stored, try_connected,
};

/// The text of what the store said; panics on any other outcome.
fn refused<T>(ended: Result<T, LockError>) -> String {
    match ended {
        Err(LockError::Store { source, .. }) => source.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the call succeeded"),
    }
}

// docs/faults.md, row 40.
#[tokio::test]
async fn a_server_that_comes_back_empty_ends_the_lock_long_before_its_deadline() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let call = locks.lock("restart").lease(LONG).run(async {
        server.restart_empty();
        std::future::pending::<()>().await;
    });
    let ended = tokio::time::timeout(PATIENCE, call)
        .await
        .expect("noticed within seconds");
    assert_eq!(lost(ended), cancelled(LostReason::Deleted));
    assert_eq!(locks.stats().lost_deleted, 1);
}

// docs/faults.md, row 40.
#[tokio::test]
async fn a_flush_ends_the_lock_long_before_its_deadline() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    for flush in ["FLUSHALL", "FLUSHDB"] {
        let call = locks.lock("flushed").lease(LONG).run(async {
            server.cmd(&[flush]);
            std::future::pending::<()>().await;
        });
        let ended = tokio::time::timeout(PATIENCE, call)
            .await
            .expect("noticed within seconds");
        assert_eq!(lost(ended), cancelled(LostReason::Deleted), "{flush}");
    }
}

/// Keeps the server busy with a script that never ends, until [`Loop::kill`].
struct Loop {
    killer: redis::Connection,
    script: std::thread::JoinHandle<()>,
}

impl Loop {
    /// Returns when the server answers others with BUSY.
    fn start(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        let mut killer = client.get_connection().unwrap();
        let mut looping = client.get_connection().unwrap();
        let script = std::thread::spawn(move || {
            let ended = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .query::<()>(&mut looping);
            assert!(ended.is_err(), "the script does not end by itself");
        });
        lock_tests::patience::eventually_blocking("the script to keep the server busy", || {
            let answer = redis::cmd("PING").query::<()>(&mut killer);
            answer.is_err_and(|error| error.code() == Some("BUSY"))
        });
        Self { killer, script }
    }

    fn kill(mut self) {
        // Until the server has noticed that the script is slow, there is nothing to kill.
        lock_tests::patience::eventually_blocking("SCRIPT KILL to be obeyed", || {
            redis::cmd("SCRIPT").arg("KILL").query::<()>(&mut self.killer).is_ok()
        });
        self.script.join().unwrap();
    }
}

fn busy_soon() -> Server {
    Server::builder().arg("lua-time-limit", "20").start()
}

/// Waits until a renewal was answered by BUSY.
async fn told_busy(proxy: &Proxy) {
    eventually("a renewal that is told BUSY", || {
        let told = proxy
            .commands()
            .iter()
            .any(|command| command.is_script() && command.reply_text().is_some_and(|text| text.starts_with("-BUSY")));
        async move { told }
    })
    .await;
}

// docs/faults.md, row 48.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_busy_server_is_asked_again_and_takes_no_lock_away() {
    let server = busy_soon();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let call = locks.lock("busy").lease(LONG).run(async {
        let lock = current().unwrap();
        let slow = Loop::start(&server);
        clock.until_renewal();
        told_busy(&proxy).await;
        assert!(lock.is_held(), "BUSY is no verdict");
        assert_eq!(lock.renewals(), 0);
        slow.kill();
        eventually("the renewal", || async { lock.renewals() > 0 }).await;
    });
    call.await.expect("the lock was held throughout");
}

// docs/faults.md, row 48: only the deadline ends it, and as unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_stays_busy_loses_the_lock_at_its_deadline_only() {
    let server = busy_soon();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let mut slow = None;
    let mut deadline = None;
    let call = locks.lock("busy").lease(LONG).run(async {
        let lock = current().unwrap();
        deadline = Some(lock.deadline());
        slow = Some(Loop::start(&server));
        clock.until_renewal();
        told_busy(&proxy).await;
        clock.jump(lock.remaining().saturating_sub(Duration::from_millis(300)));
        std::future::pending::<()>().await;
    });
    let ended = call.await;
    let now = clock.now();
    slow.unwrap().kill();
    assert_eq!(lost(ended), cancelled(LostReason::Unreachable));
    assert!(now >= deadline.unwrap(), "lost before its deadline");
}

// docs/faults.md, row 54.
#[tokio::test]
async fn a_server_without_memory_takes_no_new_lock_and_goes_on_with_those_held() {
    let server = Server::start();
    let clock = JumpingClock::default();
    let locks = connected_by(&server.url(), &clock).await;
    let held = locks.lock("held").lease(LONG).acquire().await.unwrap();
    let least = LONG * 10;
    let kept = locks.lock("kept").lease(LONG).at_least(least).acquire().await.unwrap();
    let fenced = locks.lock("fenced").lease(LONG).fencing(true).acquire().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]);

    // Long enough for an answer.
    let request = |key: &str| locks.lock(key).wait(Duration::from_secs(3));
    let (plain, token) = tokio::join!(request("new").acquire(), request("new fenced").fencing(true).acquire());
    for said in [refused(plain), refused(token)] {
        assert!(said.contains("OOM") || said.contains("memory"), "{said}");
    }
    assert!(!server.exists(&stored("new")) && !server.exists(&stored("new fenced")));
    // A new connection brings no difficulty either.
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    for renewals in 1..=2 {
        clock.until_renewal();
        eventually("a renewal", || async { held.handle().renewals() >= renewals }).await;
    }
    held.handle().verify().await.unwrap();
    held.release().await.expect("a lock is given back");
    fenced.release().await.expect("a fenced lock is given back");
    kept.release().await.expect("a minimum hold is kept");
    assert!(!server.exists(&stored("held")) && !server.exists(&stored("fenced")));
    assert!(server.time_left(&stored("kept")).unwrap() > least / 2);
}

// docs/faults.md, row 57.
#[tokio::test]
async fn scripts_flushed_from_the_server_are_sent_again_in_the_same_attempt() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let flush = || drop(server.cmd(&["SCRIPT", "FLUSH"]));
    let guard = locks.lock("flushed").lease(LONG).acquire().await.unwrap();
    flush();
    // With one attempt only: a second one would hide that the first had failed.
    let other = locks
        .lock("fenced")
        .lease(LONG)
        .wait(Duration::ZERO)
        .fencing(true)
        .acquire()
        .await
        .unwrap();
    flush();
    guard.handle().verify().await.unwrap();
    flush();
    guard.handle().fencing_token().await.unwrap();
    flush();
    let renewals = guard.handle().renewals();
    clock.until_renewal();
    eventually("a renewal", || async { guard.handle().renewals() > renewals }).await;
    flush();
    guard.release().await.unwrap();
    flush();
    other.release().await.unwrap();
    let missing = proxy.count(|command| command.reply_text().is_some_and(|text| text.starts_with("-NOSCRIPT")));
    assert!(missing >= 6, "NOSCRIPT came {missing} times");
    assert!(!server.exists(&stored("flushed")) && !server.exists(&stored("fenced")));
}

// docs/faults.md, row 57.
#[tokio::test]
async fn a_renewal_killed_by_an_operator_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let call = locks.lock("killed").lease(LONG).run(async {
        let lock = current().unwrap();
        let killed = proxy.on_next(
            renews("killed", LONG),
            Action::error("ERR Error running script: @user_script: Script killed by user with SCRIPT KILL."),
        );
        clock.until_renewal();
        eventually("the renewal after the killed one", || async { lock.renewals() > 0 }).await;
        assert_eq!(killed.times(), 1);
    });
    call.await.expect("the lock was held throughout");
}

// docs/faults.md, row 58.
#[tokio::test]
async fn a_server_without_scripts_is_refused_at_start_up() {
    for renamed in ["EVAL", "EVALSHA"] {
        let server = Server::builder()
            .arg("rename-command", &format!("{renamed} \"\""))
            .start();
        let said = chain(&try_connected(&server.url()).await.unwrap_err());
        assert!(said.contains("unknown command") && said.contains("+eval"), "{said}");
        eventually("the check's own key to be gone", || async { server.keys().is_empty() }).await;
    }
}

// docs/faults.md, row 58. Whatever command is forbidden: the manager does not connect and says what to allow, or it does and works.
#[tokio::test]
async fn a_forbidden_command_is_found_at_start_up_and_not_at_the_release() {
    let server = Server::start();
    let url = format!("redis://limited:secret@{}", server.addr());
    let limit = |rules: &[&str]| {
        let command = [&["ACL", "SETUSER", "limited", "reset", "on", ">secret"], rules].concat();
        server.cmd(&command);
    };
    let mut found = Vec::new();
    for forbidden in [
        "get", "mget", "set", "del", "pexpire", "pttl", "incr", "time", "eval", "evalsha", "hello", "client", "echo",
    ] {
        limit(&["~*", "&*", "+@all", &format!("-{forbidden}")]);
        match try_connected(&url).await {
            Ok(locks) => {
                let guard = locks.lock("limited").lease(LONG).acquire().await;
                let guard = guard.unwrap_or_else(|error| panic!("without {forbidden}: {error}"));
                guard
                    .handle()
                    .verify()
                    .await
                    .unwrap_or_else(|error| panic!("without {forbidden}: {error}"));
                guard
                    .release()
                    .await
                    .unwrap_or_else(|error| panic!("without {forbidden}: {error}"));
            }
            Err(error) => {
                let said = chain(&error);
                assert!(
                    said.contains(&format!("+{forbidden} ")) || forbidden == "hello",
                    "without {forbidden}: {said}"
                );
                found.push(forbidden);
            }
        }
        assert!(
            !server.exists(&stored("limited")),
            "without {forbidden} a lock was left"
        );
    }
    for needed in ["get", "mget", "set", "del", "pexpire", "eval", "evalsha"] {
        assert!(found.contains(&needed), "start-up went well without {needed}");
    }

    // Keys may be forbidden as well.
    limit(&["~other:*", "&*", "+@all"]);
    let said = chain(&try_connected(&url).await.unwrap_err());
    assert!(said.contains("~dist_lock:*"), "{said}");

    // What the message tells to allow is enough.
    let allow = said.split('`').find(|quoted| quoted.starts_with('~')).unwrap();
    limit(&allow.split_whitespace().collect::<Vec<_>>());
    let locks = try_connected(&url)
        .await
        .unwrap_or_else(|error| panic!("with {allow}: {error}"));
    let guard = locks.lock("limited").lease(LONG).fencing(true).acquire().await.unwrap();
    let busy = locks
        .lock("limited")
        .wait(Duration::from_secs(3))
        .fencing(true)
        .acquire()
        .await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    guard.handle().verify().await.unwrap();
    guard.release().await.unwrap();
}

// docs/faults.md, row 59.
#[tokio::test]
async fn a_connection_that_was_killed_logs_in_again() {
    let server = Server::builder().password("first").start();
    let locks = connected(&server.url()).await;
    let guard = locks.lock("login").lease(LONG).acquire().await.unwrap();
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    // The first question may still meet the dead connection.
    eventually("the renewals' connection to log in again", || async {
        guard.handle().verify().await.is_ok()
    })
    .await;
    locks
        .lock("another")
        .lease(LONG)
        .acquire()
        .await
        .expect("the commands' connection logs in again")
        .release()
        .await
        .unwrap();
    guard.release().await.unwrap();
}

// docs/faults.md, row 59.
#[tokio::test]
async fn a_changed_password_is_a_typed_error_and_no_loss_before_the_deadline() {
    let server = Server::builder().password("first").start();
    let clock = JumpingClock::default();
    let locks = builder(&server.url()).clock(clock.clone()).build().unwrap();
    let deadline = std::sync::atomic::AtomicU64::new(0);
    let call = locks.lock("login").lease(LONG).run(async {
        deadline.store(
            current().unwrap().deadline().as_nanos(),
            std::sync::atomic::Ordering::SeqCst,
        );
        server.cmd(&["CONFIG", "SET", "requirepass", "second"]);
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        let said = refused(locks.lock("another").acquire().await);
        assert!(
            said.contains("WRONGPASS")
                || said.contains("invalid username-password")
                || said.to_lowercase().contains("auth"),
            "{said}"
        );
        clock.past_a_failed_renewal().await;
        std::future::pending::<()>().await;
    });
    assert_eq!(lost(call.await), cancelled(LostReason::Unreachable));
    assert!(
        clock.now().as_nanos() >= deadline.into_inner(),
        "lost before its deadline"
    );

    // A client that never had a password is told so too.
    let without = format!("redis://{}", server.addr());
    let error = try_connected(&without).await.unwrap_err();
    assert!(
        error.store_error().is_some_and(StoreError::is_permanent) && !error.is_retryable(),
        "{error:?}"
    );
    assert!(chain(&error).contains("NOAUTH"), "{error:?}");

    // Once the password is right again, so is the manager.
    server.cmd(&["CONFIG", "SET", "requirepass", "first"]);
    // A connection that was begun before may still be refused.
    eventually("the manager to log in again", || async {
        let guard = locks.lock("login").wait(PATIENCE).acquire().await;
        guard.is_ok()
    })
    .await;
}

// docs/faults.md, row 61.
#[tokio::test]
async fn a_fence_that_cannot_grow_leaves_no_lock() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    server.cmd(&["SET", &stored("%lock-fence"), &i64::MAX.to_string()]);
    let said = refused(locks.lock("overflow").lease(LONG).fencing(true).acquire().await);
    assert!(said.contains("overflow"), "{said}");
    assert!(!server.exists(&stored("overflow")), "a lock was left");

    // A counter of another type.
    server.cmd(&["DEL", &stored("%lock-fence")]);
    server.cmd(&["LPUSH", &stored("%lock-fence"), "1"]);
    let said = refused(locks.lock("overflow").lease(LONG).fencing(true).acquire().await);
    assert!(said.contains("%lock-fence` holds another program's data"), "{said}");
    assert!(!server.exists(&stored("overflow")), "a lock was left");
    server.cmd(&["DEL", &stored("%lock-fence")]);
    server.cmd(&["SET", &stored("%lock-fence"), &i64::MAX.to_string()]);

    // Taken later, it fails alone.
    let guard = locks.lock("overflow").lease(LONG).acquire().await.unwrap();
    assert!(refused(guard.handle().fencing_token().await).contains("overflow"));
    guard
        .handle()
        .verify()
        .await
        .expect("the lock is none the worse for it");
    guard.release().await.unwrap();
    gone(&server, "overflow").await;
}

// docs/faults.md, row 37, as far as it concerns a lock held: its connections are cut, and it goes on.
#[tokio::test]
async fn a_cut_connection_costs_no_lock() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let clock = JumpingClock::default();
    let locks = connected_by(&proxy.url(), &clock).await;
    let call = locks.lock("cut").lease(LONG).run(async {
        let lock = current().unwrap();
        for close in [Close::Fin, Close::Reset] {
            proxy.cut(close);
            let renewals = lock.renewals();
            clock.until_renewal();
            eventually("a renewal on a new connection", || async { lock.renewals() > renewals }).await;
        }
    });
    call.await.expect("the lock was held throughout");
}

/// What a server answers while it cannot write, what makes it do so, and what ends that.
type BadMoment = (&'static str, &'static [&'static str], &'static [&'static str]);
const BAD_MOMENTS: [BadMoment; 2] = [
    (
        "OOM",
        &["CONFIG", "SET", "maxmemory", "1"],
        &["CONFIG", "SET", "maxmemory", "0"],
    ),
    // There is no such primary.
    (
        "READONLY",
        &["REPLICAOF", "127.0.0.1", "1"],
        &["REPLICAOF", "NO", "ONE"],
    ),
];

// docs/faults.md, rows 52 and 54: an older server hides such an error of a script's command in the text of another one.
#[tokio::test]
async fn a_lock_is_waited_for_while_the_server_cannot_write() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = connected(&proxy.url()).await;
    for fencing in [false, true] {
        for (code, begin, end) in BAD_MOMENTS {
            let request = |wait| {
                let request = locks.lock("new").lease(LONG).wait(wait);
                request.fencing(fencing)
            };
            server.cmd(begin);
            let error = request(Duration::from_millis(200)).acquire().await.unwrap_err();
            let LockError::Store { source, .. } = &error else {
                panic!("{code}: {error:?}")
            };
            assert!(!source.is_permanent(), "{code}: {error:?}");

            let mark = proxy.mark();
            let waiting = tokio::spawn(request(PATIENCE).acquire());
            let refused = |command: &lock_tests::Command| {
                command.mentions(&stored("new")) && command.reply_text().is_some_and(|text| text.contains(code))
            };
            proxy.wait_after(mark, "a refused attempt", refused).await;
            server.cmd(end);
            let guard = waiting.await.unwrap();
            let guard = guard.unwrap_or_else(|error| panic!("{code}: {error:?}"));
            guard.release().await.unwrap();
        }
    }
}

// docs/faults.md, rows 52 and 54, for what is held.
#[tokio::test]
async fn a_lock_is_given_back_as_soon_as_the_server_can_write_again() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    for (code, begin, end) in BAD_MOMENTS {
        let take = async |key: &str| locks.lock(key).lease(LONG).acquire().await.unwrap();
        let (awaited, dropped) = (take("awaited").await, take("dropped").await);
        server.cmd(begin);
        match awaited.release().await {
            // That makes room.
            Ok(()) => assert_eq!(code, "OOM"),
            Err(LockError::Store { source, .. }) if code != "OOM" => {
                assert!(!source.is_permanent(), "{code}: {source:?}");
            }
            Err(error) => panic!("{code}: {error:?}"),
        }
        drop(dropped);
        server.cmd(end);
        gone(&server, "awaited").await;
        gone(&server, "dropped").await;
    }
}

// docs/faults.md, rows 52 and 53: what a former primary no longer has may well be held on the new one.
#[tokio::test]
async fn a_demoted_server_without_the_key_does_not_tell_that_the_lock_is_gone() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let (verified, released) = (
        locks.lock("verified").lease(LONG).acquire().await.unwrap(),
        locks.lock("released").lease(LONG).acquire().await.unwrap(),
    );
    // At once, so that nothing is asked in between.
    server.cmd(&["MULTI"]);
    server.cmd(&["DEL", &stored("verified"), &stored("released")]);
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    server.cmd(&["EXEC"]);
    let said = refused(verified.handle().verify().await);
    assert!(said.contains("READONLY") || said.contains("read only"), "{said}");
    let said = refused(released.release().await);
    assert!(said.contains("READONLY") || said.contains("read only"), "{said}");
    assert!(verified.handle().is_held());
    assert_eq!(locks.stats().lost_deleted, 0);
}

#[tokio::test]
async fn a_check_of_a_server_that_stands_still_fails() {
    let server = Server::start();
    let locks = hurried(&server.url()).await;
    server.pause();
    let check = tokio::time::timeout(PATIENCE, locks.check_connection()).await;
    server.resume();
    let failed = check.expect("within the response time-out").unwrap_err();
    assert!(failed.is_retryable(), "{failed:?}");
    eventually("the server to be found well again", || async {
        locks.check_connection().await.is_ok()
    })
    .await;
}
