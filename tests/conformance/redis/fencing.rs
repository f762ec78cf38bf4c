//! Fencing tokens through managers: they keep growing whatever happens to a server whose clock goes
//! on, and a former holder gets none.

use std::time::Duration;

use lock_runtime::clock::{Clock, Moment};
use lock_runtime::{FencingToken, LockError, LockManager, LostReason};
use lock_tests::server::Persistence;
use lock_tests::{Server, eventually_some, patient};

const LEASE: Duration = Duration::from_secs(60);

async fn connect(server: &Server) -> LockManager {
    patient(LockManager::builder(&server.url())).await
}

/// A token taken with the lock and one taken later, each on a hold of its own.
async fn two_tokens(manager: &LockManager, key: &str) -> [u64; 2] {
    let fencing = manager.lock(key).lease(LEASE).fencing(true).acquire().await.unwrap();
    let first = fencing.handle().fencing_token().await.unwrap().get();
    fencing.release().await.unwrap();
    let plain = manager.lock(key).lease(LEASE).acquire().await.unwrap();
    let second = plain.handle().fencing_token().await.unwrap().get();
    plain.release().await.unwrap();
    [first, second]
}

/// Takes tokens, lets something happen to the server, and takes tokens again, several times over.
async fn tokens_grow_across(server: &Server, event: impl Fn(&Server)) {
    let mut tokens = Vec::new();
    for _ in 0..4 {
        // A manager that outlives the event, and later a new one.
        let manager = connect(server).await;
        tokens.extend(two_tokens(&manager, "k").await);
        event(server);
        tokens.extend(
            eventually_some("the manager to reconnect", || async {
                manager
                    .lock("k")
                    .lease(LEASE)
                    .fencing(true)
                    .wait(Duration::ZERO)
                    .acquire()
                    .await
                    .ok()
            })
            .await
            .handle()
            .fencing_token()
            .await
            .map(FencingToken::get),
        );
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    assert_eq!(tokens.len(), 12);
}

#[tokio::test]
async fn tokens_grow_across_flushall() {
    tokens_grow_across(&Server::start(), |server| {
        server.cmd(&["FLUSHALL"]);
    })
    .await;
}

#[tokio::test]
async fn tokens_grow_across_a_restart_without_persistence() {
    tokens_grow_across(&Server::start(), Server::restart_empty).await;
}

#[tokio::test]
async fn tokens_grow_across_a_restart_from_an_old_snapshot() {
    let server = Server::start();
    two_tokens(&connect(&server).await, "k").await;
    // Every restart goes back to this counter.
    server.cmd(&["SAVE"]);
    let counter: u64 = server.ask(&["GET", "dist_lock:%lock-fence"]);
    tokens_grow_across(&server, |server| {
        server.restart();
        assert_eq!(
            server.ask::<u64>(&["GET", "dist_lock:%lock-fence"]),
            counter,
            "the snapshot was not used"
        );
    })
    .await;
}

#[tokio::test]
async fn tokens_grow_across_a_restart_from_the_append_only_file() {
    tokens_grow_across(
        &Server::builder().persistence(Persistence::AofAlways).start(),
        Server::restart,
    )
    .await;
}

/// The time floor alone would not do where the clock stands or goes back: there the counter itself must count.
#[tokio::test]
async fn tokens_grow_where_the_counter_is_ahead_of_the_clock() {
    let server = Server::start();
    let ahead: u64 = 9_000_000_000_000_000_000;
    server.cmd(&["SET", "dist_lock:%lock-fence", &ahead.to_string()]);
    let manager = connect(&server).await;
    // All digits of it, though Lua's numbers are exact only up to 2^53.
    assert_eq!(two_tokens(&manager, "k").await, [ahead + 1, ahead + 2]);
    assert_eq!(two_tokens(&manager, "another").await, [ahead + 3, ahead + 4]);
}

#[tokio::test]
async fn one_hold_has_one_token() {
    let server = Server::start();
    let manager = connect(&server).await;
    let guard = manager.lock("k").lease(LEASE).acquire().await.unwrap();
    let (first, second) = tokio::join!(guard.handle().fencing_token(), guard.handle().fencing_token());
    let token = first.unwrap();
    assert_eq!(second.unwrap(), token);
    assert_eq!(guard.handle().fencing_token().await.unwrap(), token);
    let inside = manager.lock("other").fencing(true).run(async {
        let lock = lock_runtime::current().unwrap();
        (lock.fencing_token().await.unwrap(), lock.fencing_token().await.unwrap())
    });
    let (first, second) = inside.await.unwrap();
    assert!(first == second && first > token);
}

/// The clock of a process that does not know that it was stopped.
#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Moment {
        Moment::from_nanos(1_000_000_000)
    }
}

#[tokio::test]
async fn a_paused_former_holder_gets_an_error_and_no_number() {
    let server = Server::start();
    let asleep = patient(LockManager::builder(&server.url()).clock(Stopped)).await;
    let awake = connect(&server).await;
    for taken_over in [false, true] {
        let former = asleep.lock("k").lease(LEASE).renew(false).acquire().await.unwrap();
        // The lease ends at the server, where time goes on.
        server.cmd(&["PEXPIRE", "dist_lock:k", "0"]);
        let successor = if taken_over {
            Some(awake.lock("k").lease(LEASE).fencing(true).acquire().await.unwrap())
        } else {
            None
        };
        let expected = if taken_over {
            LostReason::Taken
        } else {
            LostReason::Deleted
        };
        for _ in 0..2 {
            match former.handle().fencing_token().await {
                Err(LockError::Lost {
                    reason,
                    completed: false,
                    ..
                }) => assert_eq!(reason, expected),
                other => panic!("{other:?} for a former holder"),
            }
        }
        if let Some(successor) = successor {
            let before: u64 = server.ask(&["GET", "dist_lock:%lock-fence"]);
            assert_eq!(
                successor.handle().fencing_token().await.unwrap().get(),
                before,
                "the former holder has taken a number"
            );
            successor.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_former_holder_whose_lease_is_over_by_its_own_clock_is_refused_without_asking() {
    let server = Server::start();
    let manager = connect(&server).await;
    let guard = manager
        .lock("k")
        .lease(Duration::from_millis(300))
        .renew(false)
        .acquire()
        .await
        .unwrap();
    guard.handle().lost().await;
    // Even if the key still holds its value: somebody else may have had the lock in between.
    server.cmd(&["SET", "dist_lock:k", "somebody"]);
    assert!(matches!(
        guard.handle().fencing_token().await,
        Err(LockError::Lost { .. })
    ));
    assert!(!server.exists("dist_lock:%lock-fence"));
}

#[tokio::test]
async fn all_keys_share_one_counter_and_nothing_else_stays() {
    let server = Server::start();
    for prefix in ["dist_lock:", "", "shop:"] {
        let manager = patient(LockManager::builder(&server.url()).prefix(prefix)).await;
        for nth in 0..50 {
            two_tokens(&manager, &format!("item:{nth}")).await;
        }
    }
    assert_eq!(
        server.keys(),
        ["%lock-fence", "dist_lock:%lock-fence", "shop:%lock-fence"]
    );
}
