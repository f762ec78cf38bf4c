//! The code that belongs to a call tree, and the losses that a body has learned of.

use std::time::Duration;

use lock_runtime::{HeldLock, LockError, LockManager, OnLost, current};
use lock_tests::{PATIENCE, Server, eventually, patient};

/// So long that nothing ends it but what the test does.
const LONG: Duration = Duration::from_secs(60);

async fn connected(server: &Server) -> LockManager {
    patient(LockManager::builder(&server.url())).await
}

/// A body under `signal` whose lock is lost, and which then does this and nothing else with it.
async fn after_a_loss<F>(server: &Server, locks: &LockManager, act: impl FnOnce(HeldLock) -> F) -> Result<(), LockError>
where
    F: Future<Output = ()>,
{
    let losses = locks.stats().lost_deleted;
    let body = async {
        let lock = current().unwrap();
        server.cmd(&["DEL", &format!("dist_lock:{}", lock.key())]);
        eventually("the loss to be noticed", || async {
            locks.stats().lost_deleted > losses
        })
        .await;
        act(lock).await;
    };
    let request = locks.lock("signalled").lease(LONG).on_lost(OnLost::Signal);
    tokio::time::timeout(PATIENCE, request.run(body)).await.unwrap()
}

#[track_caller]
fn assert_lost(ended: &Result<(), LockError>, what: &str) {
    assert!(
        matches!(ended, Err(LockError::Lost { completed: true, .. })),
        "a body that did not ask for a loss ended with {ended:?} after {what}"
    );
}

#[tokio::test]
async fn looking_at_a_lost_lock_is_not_asking_for_the_loss() {
    type Look = fn(&HeldLock) -> String;
    let ways: [(&str, Look); 8] = [
        ("nothing", |_| String::new()),
        ("Debug", |lock| format!("{lock:?}")),
        ("remaining", |lock| format!("{:?}", lock.remaining())),
        ("is_held", |lock| lock.is_held().to_string()),
        ("keys", |lock| lock.keys().map(str::to_owned).collect()),
        ("mode", |lock| lock.mode().to_string()),
        ("deadline", |lock| format!("{:?}", lock.deadline())),
        ("holds and renewals", |lock| {
            format!("{} {}", lock.hold_count(), lock.renewals())
        }),
    ];
    let server = Server::start();
    let locks = connected(&server).await;
    for (what, look) in ways {
        let ended = after_a_loss(&server, &locks, |lock| async move { drop(look(&lock)) }).await;
        assert_lost(&ended, what);
    }
}

/// What a body does to learn of a loss.
async fn ask(lock: &HeldLock, way: &str) -> LockError {
    match way {
        "lost" => lock.lost().await,
        "ensure" => lock.ensure(Duration::ZERO).unwrap_err(),
        "verify" => lock.verify().await.unwrap_err(),
        "fence" => lock.fencing_token().await.unwrap_err(),
        "shielded" => lock.shielded(async {}).await.unwrap_err(),
        way => panic!("there is no way {way}"),
    }
}

const WAYS: [&str; 5] = ["lost", "ensure", "verify", "fence", "shielded"];

#[tokio::test]
async fn a_body_that_asks_decides_itself_and_is_not_told_by_what_another_task_asks() {
    let server = Server::start();
    let locks = connected(&server).await;
    for way in WAYS {
        let asks = |lock: HeldLock| async move { assert!(ask(&lock, way).await.is_lost()) };
        let ended = after_a_loss(&server, &locks, asks).await;
        assert!(ended.is_ok(), "asked by {way}: {ended:?}");
        let monitored = |lock: HeldLock| async move {
            let monitor = tokio::spawn(async move { ask(&lock, way).await.is_lost() });
            assert!(monitor.await.unwrap());
        };
        assert_lost(&after_a_loss(&server, &locks, monitored).await, way);
    }
}

#[tokio::test]
async fn what_a_nested_call_asks_its_own_body_and_those_around_it_have_asked() {
    let server = Server::start();
    let locks = connected(&server).await;
    let nested = |asks: bool| {
        let locks = &locks;
        after_a_loss_within(&server, locks, asks)
    };
    // The inner body asks: a part of the outer one did.
    let (inner, outer) = nested(true).await;
    assert!(inner.is_ok() && outer.is_ok(), "{inner:?}, {outer:?}");
    // The outer body asks beside the inner one: the inner one did not.
    let (inner, outer) = nested(false).await;
    assert_lost(&inner, "what the body around it asked");
    assert!(outer.is_ok(), "{outer:?}");
}

/// Loses a lock under a nested call, and has its body ask, or the one around it. How the two calls ended.
async fn after_a_loss_within(
    server: &Server,
    locks: &LockManager,
    inner_asks: bool,
) -> (Result<(), LockError>, Result<(), LockError>) {
    let (asked, known) = tokio::sync::oneshot::channel();
    let request = || locks.lock("nested").lease(LONG).reentrant(true).on_lost(OnLost::Signal);
    let inner = async {
        server.cmd(&["DEL", "dist_lock:nested"]);
        if inner_asks {
            let _ = current().unwrap().lost().await;
        } else {
            known.await.unwrap();
        }
    };
    let mut ended = Ok(());
    let outer = request().run(async {
        let lock = current().unwrap();
        let ask = async move {
            if !inner_asks {
                let _ = lock.lost().await;
                asked.send(()).unwrap();
            }
        };
        (ended, ()) = tokio::join!(request().run(inner), ask);
    });
    let outer = tokio::time::timeout(PATIENCE, outer).await.unwrap();
    (ended, outer)
}

/// Asks once for the lock in each way that passes through a lock of the call tree or meets it, and says how that went.
async fn ask_once(locks: &LockManager) -> Vec<String> {
    let key = current().map_or_else(|| "none".to_owned(), |lock| lock.key().to_owned());
    let mut said = vec![format!("current: {key}")];
    for (way, request) in [
        ("plain", locks.lock("plain").wait(Duration::ZERO)),
        (
            "reentrant",
            locks.lock("reentrant").reentrant(true).wait(Duration::ZERO),
        ),
        ("read", locks.lock("write").read().wait(Duration::ZERO)),
        // This one is granted, at last also where it was taken back from a thread that stood still.
        ("owner", locks.lock("owner").owner("me").wait(PATIENCE)),
    ] {
        let ended = request.run(async {}).await;
        said.push(format!(
            "{way}: {}",
            ended.map_or_else(|error| error.kind(), |()| "inside")
        ));
    }
    said
}

/// Runs a body under a lock of each of the modes that [`ask_once`] asks for.
async fn under_all<T>(locks: &LockManager, body: impl Future<Output = T>) -> T {
    let owner = locks.lock("owner").owner("me").run(body);
    let write = locks.lock("write").write().run(owner);
    let reentrant = locks.lock("reentrant").reentrant(true).run(write);
    let plain = locks.lock("plain").run(reentrant);
    Box::pin(plain).await.unwrap().unwrap().unwrap().unwrap()
}

/// What a stranger hears: the owner's lock is open to each holder for that owner, call tree or not.
const STRANGER: [&str; 5] = [
    "current: none",
    "plain: busy",
    "reentrant: busy",
    "read: busy",
    "owner: inside",
];
/// What a part of the call tree hears.
const PART: [&str; 5] = [
    "current: owner",
    "plain: would_deadlock",
    "reentrant: inside",
    "read: inside",
    "owner: inside",
];

#[track_caller]
fn assert_apart(stranger: &[String], part: &[String]) {
    assert_eq!(stranger, STRANGER, "a task that a body drives");
    assert_eq!(part, PART, "a part of the body");
}

/// Has a body drive a [`LocalSet`](tokio::task::LocalSet) with a task of its own. What that hears, and what the body does within.
async fn with_a_local_task(locks: &LockManager) -> (Vec<String>, Vec<String>) {
    let local = tokio::task::LocalSet::new();
    let stranger = local.spawn_local({
        let locks = locks.clone();
        async move { ask_once(&locks).await }
    });
    under_all(
        locks,
        local.run_until(async { (stranger.await.unwrap(), ask_once(locks).await) }),
    )
    .await
}

#[tokio::test]
async fn a_task_that_a_body_drives_is_not_inside_its_locks() {
    let server = Server::start();
    let locks = connected(&server).await;
    // A body outside of any task …
    let (stranger, part) = with_a_local_task(&locks).await;
    assert_apart(&stranger, &part);
    // … and one in a task.
    let local = tokio::task::LocalSet::new();
    let (stranger, part) = local
        .run_until(async move {
            tokio::task::spawn_local(async move { with_a_local_task(&locks).await })
                .await
                .unwrap()
        })
        .await;
    assert_apart(&stranger, &part);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_of_a_runtime_that_a_body_drives_are_not_inside_its_locks() {
    let server = Server::start();
    let locks = connected(&server).await;
    let other = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut strangers = tokio::task::JoinSet::new();
    let stranger = locks.clone();
    strangers.spawn_on(async move { ask_once(&stranger).await }, other.handle());
    let body = tokio::spawn(async move {
        let body = async {
            tokio::task::block_in_place(|| {
                let (stranger, part) = other.block_on(async {
                    let stranger = strangers.join_next().await.unwrap().unwrap();
                    (stranger, ask_once(&locks).await)
                });
                // Dropped here, where blocking is allowed.
                drop(other);
                (stranger, part)
            })
        };
        under_all(&locks, body).await
    });
    let (stranger, part) = body.await.unwrap();
    assert_apart(&stranger, &part);
}

#[tokio::test]
async fn a_future_that_a_body_polls_for_another_caller_is_a_part_of_it_unless_it_is_spawned() {
    let server = Server::start();
    let locks = connected(&server).await;
    for spawned in [true, false] {
        let (work, mut queue) = tokio::sync::mpsc::channel(1);
        let (done, result) = tokio::sync::oneshot::channel();
        let caller = locks.clone();
        let asked: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { done.send(ask_once(&caller).await).unwrap() });
        work.send(asked).await.unwrap();
        let body = async {
            let job = queue.recv().await.unwrap();
            if spawned {
                tokio::spawn(job).await.unwrap();
            } else {
                job.await;
            }
        };
        under_all(&locks, body).await;
        // Within one task nothing tells the futures of one caller from those of another.
        let expected = if spawned { STRANGER } else { PART };
        assert_eq!(result.await.unwrap(), expected);
    }
}
