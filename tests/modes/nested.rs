//! Calls inside the body of another call.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockRequest, OnLost, assert_locked, current};
use lock_tests::{PATIENCE, Server, patient};
use tokio::sync::oneshot;
use tokio::time::Instant;

fn manager() -> LockManager {
    LockManager::builder("memory://").build().unwrap()
}

fn once(request: LockRequest) -> LockRequest {
    request.wait(Duration::ZERO)
}

async fn is_free(locks: &LockManager) -> bool {
    match once(locks.lock("k")).acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(error) => {
            assert!(error.is_busy(), "{error}");
            false
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reentrant_calls_pass_through_and_are_counted_until_the_outermost_ends() {
    let locks = manager();
    let inner = locks.clone();
    locks
        .lock("k")
        .reentrant(true)
        .run(async move {
            assert_eq!(current().unwrap().hold_count(), 1);
            let deeper = inner.clone();
            let twice = inner.lock("k").reentrant(true).run(async move {
                assert_eq!(current().unwrap().hold_count(), 2);
                let deepest = deeper.lock("k").reentrant(true).acquire().await.unwrap();
                assert_eq!(deepest.handle().hold_count(), 3);
                deepest.release().await.unwrap();
                current().unwrap().hold_count()
            });
            assert_eq!(twice.await.unwrap(), 2);
            assert_eq!(current().unwrap().hold_count(), 1);
            let other = inner.clone();
            assert!(!tokio::spawn(async move { is_free(&other).await }).await.unwrap());
        })
        .await
        .unwrap();
    assert!(is_free(&locks).await);
    assert_eq!(locks.stats().acquired, 2, "passing through is no acquisition");
}

#[tokio::test(start_paused = true)]
async fn without_reentrant_a_nested_call_is_refused_at_once() {
    let locks = manager();
    let inner = locks.clone();
    let ended = locks
        .lock("k")
        .reentrant(true)
        .run(async move { inner.lock("k").acquire().await.map(drop) });
    assert!(matches!(ended.await.unwrap(), Err(LockError::WouldDeadlock { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_guard_taken_inside_keeps_the_lock_when_it_outlives_the_outer_call() {
    let locks = manager();
    let inner = locks.clone();
    let guard = locks
        .lock("k")
        .run(async move { inner.lock("k").reentrant(true).acquire().await.unwrap() })
        .await
        .unwrap();
    assert!(guard.handle().is_held() && guard.handle().hold_count() == 1);
    assert!(!is_free(&locks).await);
    guard.release().await.unwrap();
    assert!(is_free(&locks).await);
    // And one that is dropped gives it back as well.
    let inner = locks.clone();
    let guard = locks
        .lock("k")
        .run(async move { inner.lock("k").reentrant(true).acquire().await.unwrap() })
        .await
        .unwrap();
    drop(guard);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_does_not_inherit_the_lock() {
    let locks = manager();
    let inner = locks.clone();
    let ended = locks.lock("k").reentrant(true).run(async move {
        let request = once(inner.lock("k").reentrant(true));
        tokio::spawn(async move { request.acquire().await.map(drop) })
            .await
            .unwrap()
    });
    assert!(ended.await.unwrap().is_err_and(|error| error.is_busy()));
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_that_wants_a_token_gets_the_one_of_its_hold() {
    let locks = manager();
    let inner = locks.clone();
    let tokens = locks.lock("k").run(async move {
        let request = inner.lock("k").reentrant(true).fencing(true);
        let token = request
            .run(async { current().unwrap().fencing_token().await.unwrap().get() })
            .await
            .unwrap();
        (token, current().unwrap().fencing_token().await.unwrap().get())
    });
    let (inside, around) = tokens.await.unwrap();
    assert_eq!(inside, around);
}

#[tokio::test(start_paused = true)]
async fn a_loss_cancels_all_calls_that_share_the_lock() {
    let locks = manager();
    let inner = locks.clone();
    let (mut dropped_inside, dropped_around) = (None, oneshot::channel::<()>());
    let (inside, mut ended_inside) = oneshot::channel::<()>();
    let (around, mut ended_around) = dropped_around;
    let outer = locks
        .lock("k")
        .lease(Duration::from_secs(1))
        .renew(false)
        .run(async move {
            let _around = around;
            let nested = inner.lock("k").reentrant(true).run(async move {
                let _inside = inside;
                std::future::pending::<()>().await;
            });
            let _ = nested.await;
        });
    assert!(matches!(outer.await, Err(LockError::Lost { .. })));
    dropped_inside.replace(ended_inside.try_recv());
    assert!(dropped_inside.unwrap().is_err() && ended_around.try_recv().is_err());
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn two_nested_calls_at_once_are_two_more_holds() {
    let locks = manager();
    let inner = locks.clone();
    let held = locks.lock("k").run(async move {
        let hold = || inner.lock("k").reentrant(true).acquire();
        let (one, other) = tokio::join!(hold(), hold());
        let (one, other) = (one.unwrap(), other.unwrap());
        let holds = (current().unwrap().hold_count(), one.handle().hold_count());
        drop(one);
        let after = current().unwrap().hold_count();
        other.release().await.unwrap();
        (holds, after, current().unwrap().hold_count())
    });
    assert_eq!(held.await.unwrap(), ((3, 3), 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_a_nested_one_still_knows_all_locks_around_it() {
    let locks = manager();
    let [one, two, three] = [(); 3].map(|()| locks.clone());
    let innermost = async move {
        assert_locked!("a");
        assert_locked!("b");
        let again = three
            .lock("b")
            .reentrant(true)
            .run(async { current().unwrap().hold_count() })
            .await;
        let refused = three.lock("b").acquire().await.map(drop);
        (again.unwrap(), refused)
    };
    let a_again = async move { two.lock("a").reentrant(true).run(Box::pin(innermost)).await.unwrap() };
    let b = async move { one.lock("b").run(Box::pin(a_again)).await.unwrap() };
    let (again, refused) = locks.lock("a").run(Box::pin(b)).await.unwrap();
    assert_eq!(again, 2);
    assert!(matches!(refused, Err(LockError::WouldDeadlock { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_shielded_in_a_nested_call_is_shielded_in_all_around_it() {
    let locks = manager();
    let [one, two, three] = [(); 3].map(|()| locks.clone());
    let (stepped, step_ended) = oneshot::channel();
    let step = async move {
        let lock = current().unwrap();
        lock.shielded(async move {
            three.force_release("b").await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            stepped.send(()).unwrap();
        })
        .await
    };
    let a_again = async move { two.lock("a").reentrant(true).run(Box::pin(step)).await };
    let b = async move { one.lock("b").run(Box::pin(a_again)).await.map(drop) };
    let ended = locks.lock("a").run(Box::pin(b)).await.unwrap();
    assert!(ended.is_err_and(|error| error.is_lost()), "`b` was lost");
    step_ended.await.unwrap();
}

/// What `FuturesUnordered` and `join_all` do: the nested call is polled by a waker that is nobody's once it has ended.
#[tokio::test(start_paused = true)]
async fn a_loss_is_heard_also_after_a_nested_call_was_polled_by_another_waker() {
    let locks = manager();
    let inner = locks.clone();
    let start = Instant::now();
    let lost = locks.lock("k").lease(Duration::from_secs(3)).run(async move {
        let mut nested = Box::pin(inner.lock("k").reentrant(true).run(async {}));
        poll_fn(
            |_| match nested.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => Poll::Ready(ended),
                Poll::Pending => panic!("it passes through at once"),
            },
        )
        .await
        .unwrap();
        inner.force_release("k").await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
    });
    assert!(lost.await.is_err_and(|error| error.is_lost()));
    assert!(
        start.elapsed() <= Duration::from_secs(3),
        "heard after {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_is_cancelled_or_told_as_it_asks_for_itself() {
    let locks = manager();
    let inner = locks.clone();
    let (began, cancelled) = oneshot::channel::<()>();
    let outer = locks
        .lock("k")
        .lease(Duration::from_secs(3))
        .on_lost(OnLost::Signal)
        .run(async move {
            let nested = inner.lock("k").reentrant(true).run(async {
                let _began = began;
                inner.force_release("k").await.unwrap();
                std::future::pending::<()>().await;
            });
            let ended = tokio::time::timeout(Duration::from_secs(60), nested).await;
            let ended = ended.expect("the nested call is cancelled");
            assert!(
                ended.is_err_and(|error| error.is_lost()),
                "the nested call did not say otherwise"
            );
            current().unwrap().ensure(Duration::ZERO).is_ok()
        });
    assert!(!outer.await.unwrap(), "the outer one goes on, and knows");
    assert!(cancelled.await.is_err());
}

#[tokio::test]
async fn two_managers_of_one_server_have_the_same_locks() {
    let server = Server::start();
    let (outer, inner) = (
        patient(LockManager::builder(&server.url())).await,
        patient(LockManager::builder(&server.url())).await,
    );
    let other = patient(LockManager::builder(&format!("{}/1", server.url()))).await;
    let nested = outer.lock("k").run(async {
        let refused = inner.lock("k").wait(PATIENCE).acquire().await.map(drop);
        let other = once(other.lock("k")).acquire().await.map(drop);
        (refused, other)
    });
    let (refused, other) = nested.await.unwrap();
    assert!(matches!(refused, Err(LockError::WouldDeadlock { .. })), "{refused:?}");
    other.expect("another database has other locks");
    let nested = outer.lock("k").reentrant(true).run(async {
        let again = inner.lock("k").reentrant(true).acquire().await.unwrap();
        let count = current().unwrap().hold_count();
        again.release().await.unwrap();
        count
    });
    assert_eq!(nested.await.unwrap(), 2);
}

#[tokio::test]
async fn the_locks_of_old_clients_are_others_under_the_same_keys() {
    let server = Server::start();
    let old = patient(LockManager::builder(&server.url()).legacy_setnx()).await;
    let new = patient(LockManager::builder(&server.url())).await;
    let theirs = patient(LockManager::builder(&server.url())).await;
    let theirs = theirs.lock("k").acquire().await.unwrap();
    let nested = old.lock("k").reentrant(true).run(async {
        let busy = once(new.lock("k").reentrant(true)).acquire().await.map(drop);
        theirs.release().await.unwrap();
        let free = once(new.lock("k")).acquire().await.map(drop);
        (busy, free)
    });
    let (busy, free) = nested.await.unwrap();
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    free.expect("the old clients' lock is another one");
}

#[tokio::test]
async fn a_manager_that_is_shut_down_re_enters_no_lock_of_another_one() {
    let server = Server::start();
    let outer = patient(LockManager::builder(&server.url())).await;
    let inner = patient(LockManager::builder(&server.url())).await;
    inner.shutdown().await;
    let nested = outer
        .lock("k")
        .reentrant(true)
        .run(inner.lock("k").reentrant(true).run(async {}));
    let refused = nested.await.unwrap();
    assert!(
        matches!(refused, Err(LockError::Closed { began: false, .. })),
        "{refused:?}"
    );
}
