//! Locks of each mode, in memory and on a server: renewals, early losses, nested calls, and the
//! release however the body ends.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::memory::MemoryStore;
use lock_runtime::{LockError, LockGuard, LockManager, LockManagerBuilder, LockMode, LockRequest, LostReason, current};
use lock_tests::{Action, Command, PATIENCE, Proxy, Server, eventually, on_each};
use tokio::sync::oneshot;

const KEY: &str = "report";
const STORED: &str = "dist_lock:report";
const LONG: Duration = Duration::from_secs(120);

/// Managers that share one store, as processes do.
enum Place {
    Memory(Arc<MemoryStore>),
    Server(Box<Server>),
}

impl Place {
    fn builder(&self) -> LockManagerBuilder {
        let builder = match self {
            Self::Memory(store) => LockManager::builder("memory://").store(Arc::clone(store) as _),
            Self::Server(server) => LockManager::builder(&server.url()),
        };
        let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
        builder.default_lease(LONG).default_wait(PATIENCE)
    }

    fn manager(&self) -> LockManager {
        self.builder().build().unwrap()
    }

    /// Nobody has the lock, and nobody waits for it.
    async fn is_free(&self) {
        let writer = self.manager().lock(KEY).write().wait(Duration::ZERO).acquire().await;
        writer.unwrap().release().await.unwrap();
        if let Self::Server(server) = self {
            eventually("the queue to be gone", || async {
                server.keys().iter().all(|key| key.ends_with("%lock-fence"))
            })
            .await;
        }
    }
}

on_each! {
    in_memory: Place::Memory(Arc::default()), on_a_server: Place::Server(Box::new(Server::start()));
    [
        readers_are_in_together_and_a_writer_alone,
        as_many_are_in_as_there_are_permits,
        holders_for_one_owner_are_in_together_in_any_process,
        an_owner_may_have_any_name,
        several_keys_are_held_together,
        every_way_out_gives_the_lock_back,
        a_call_that_is_dropped_in_the_queue_leaves_nothing_behind,
        a_writer_reads_in_a_nested_call,
        a_reader_that_would_write_is_refused_at_once,
        nested_calls_pass_through_where_they_may,
        one_of_several_keys_in_a_nested_call_is_refused_at_once,
        a_minimum_hold_keeps_its_place,
        a_holder_says_how_it_holds,
        tokens_tell_writers_and_owners_apart,
        a_waiting_call_gets_busy_when_its_time_is_up,
    ]
}

fn modes(locks: &LockManager) -> Vec<LockRequest> {
    vec![
        locks.lock(KEY).read(),
        locks.lock(KEY).write(),
        locks.lock(KEY).semaphore(1),
        locks.lock(KEY).semaphore(3),
        locks.lock(KEY).owner("order 7"),
    ]
}

async fn take(request: LockRequest) -> LockGuard {
    request.acquire().await.unwrap()
}

async fn is_busy(request: LockRequest) {
    let answer = request.wait(Duration::ZERO).acquire().await;
    assert!(answer.as_ref().is_err_and(LockError::is_busy), "{answer:?}");
}

/// A call in the background; it says when it has the lock.
fn begin(request: LockRequest) -> (tokio::task::JoinHandle<Result<(), LockError>>, oneshot::Receiver<()>) {
    let (tell, told) = oneshot::channel();
    let call = tokio::spawn(async move {
        let guard = request.acquire().await?;
        let _ = tell.send(());
        guard.release().await
    });
    (call, told)
}

async fn readers_are_in_together_and_a_writer_alone(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    let (first, second) = (take(one.lock(KEY).read()).await, take(one.lock(KEY).read()).await);
    let third = take(other.lock(KEY).read()).await;
    is_busy(other.lock(KEY).write()).await;
    first.release().await.unwrap();
    let (writer, mut entered) = begin(other.lock(KEY).write());
    second.release().await.unwrap();
    is_busy(one.lock(KEY).write()).await;
    assert!(entered.try_recv().is_err(), "somebody reads still");
    third.release().await.unwrap();
    writer.await.unwrap().unwrap();
    let writer = take(one.lock(KEY).write()).await;
    is_busy(one.lock(KEY).read()).await;
    is_busy(other.lock(KEY).write()).await;
    writer.release().await.unwrap();
    place.is_free().await;
}

async fn as_many_are_in_as_there_are_permits(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    let first = take(one.lock(KEY).semaphore(2)).await;
    let second = take(other.lock(KEY).semaphore(2)).await;
    is_busy(one.lock(KEY).semaphore(2)).await;
    let (third, entered) = begin(one.lock(KEY).semaphore(2));
    first.release().await.unwrap();
    entered.await.unwrap();
    third.await.unwrap().unwrap();
    second.release().await.unwrap();
    place.is_free().await;
}

async fn holders_for_one_owner_are_in_together_in_any_process(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    // Of names that differ by what has a meaning in values and keys.
    let first = take(one.lock(KEY).owner("a:b%")).await;
    for stranger in ["a", "a:b", "a%3Ab%25", "b"] {
        is_busy(other.lock(KEY).owner(stranger)).await;
    }
    let second = take(other.lock(KEY).owner("a:b%")).await;
    let (stranger, mut entered) = begin(other.lock(KEY).owner("a"));
    first.release().await.unwrap();
    // It does not wait behind the stranger.
    let third = take(one.lock(KEY).owner("a:b%")).await;
    second.release().await.unwrap();
    assert!(entered.try_recv().is_err());
    third.release().await.unwrap();
    stranger.await.unwrap().unwrap();
    place.is_free().await;
}

/// A name that has a colon, or goes on like a value, is that of one owner, and of no other.
async fn an_owner_may_have_any_name(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    let names = ["x", "x:0123456789abcdef0123456789abcdef", "a:b", "a%3Ab", "line\nbreak"];
    for name in names {
        let by_hand = |locks: &LockManager| locks.lock(KEY).mode(LockMode::Owner(name.into()));
        let first = take(by_hand(&one)).await;
        let second = take(by_hand(&other)).await;
        let third = take(other.lock(KEY).owner(name)).await;
        assert_eq!(first.handle().mode(), &LockMode::owner(name));
        for another in names.iter().filter(|another| **another != name) {
            is_busy(other.lock(KEY).mode(LockMode::Owner((*another).into()))).await;
        }
        is_busy(one.lock(KEY).write()).await;
        for guard in [first, second, third] {
            guard.release().await.unwrap();
        }
    }
}

async fn several_keys_are_held_together(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    let both = take(one.lock_all(["b", "a", "b"])).await;
    assert_eq!(both.handle().keys().collect::<Vec<_>>(), ["a", "b"]);
    for key in ["a", "b"] {
        is_busy(other.lock(key)).await;
    }
    is_busy(other.lock_all(["b", "c"])).await;
    // Nothing is kept of what was free.
    take(other.lock("c")).await.release().await.unwrap();
    let (waiting, entered) = begin(other.lock_all(["c", "b"]));
    both.release().await.unwrap();
    entered.await.unwrap();
    waiting.await.unwrap().unwrap();
    for key in ["a", "b", "c"] {
        take(one.lock(key).wait(Duration::ZERO)).await.release().await.unwrap();
    }
}

async fn every_way_out_gives_the_lock_back(place: &Place) {
    let locks = place.manager();
    for way in 0..5 {
        for request in modes(&locks) {
            match way {
                0 => request.run(async {}).await.unwrap(),
                1 => take(request).await.release().await.unwrap(),
                2 => drop(take(request).await),
                3 => {
                    let panics = tokio::spawn(request.run(async { panic!("as planned") }));
                    assert!(panics.await.unwrap_err().is_panic());
                }
                _ => {
                    let (inside, entered) = oneshot::channel::<()>();
                    let call = tokio::spawn(request.run(async move {
                        let _ = inside.send(());
                        std::future::pending::<()>().await;
                    }));
                    entered.await.unwrap();
                    call.abort();
                    assert!(call.await.unwrap_err().is_cancelled());
                }
            }
            // In the background, or by now.
            let next = take(locks.lock(KEY).write()).await;
            next.release().await.unwrap();
        }
        for way_of_several in [0, 1] {
            let guard = take(locks.lock_all(["x", "y"])).await;
            if way_of_several == 0 {
                guard.release().await.unwrap();
            } else {
                drop(guard);
            }
            take(locks.lock_all(["y", "x"])).await.release().await.unwrap();
        }
    }
    locks.shutdown().await;
    place.is_free().await;
}

async fn a_call_that_is_dropped_in_the_queue_leaves_nothing_behind(place: &Place) {
    let locks = place.manager();
    let reader = take(locks.lock(KEY).read()).await;
    let (writer, _told) = begin(locks.lock(KEY).write());
    // Others are kept out by it, until it is dropped.
    eventually("the writer to stand in the queue", || async {
        let read = locks.lock(KEY).read().wait(Duration::ZERO).acquire().await;
        read.is_err_and(|error| error.is_busy())
    })
    .await;
    let (next, entered) = begin(locks.lock(KEY).read());
    writer.abort();
    entered.await.unwrap();
    next.await.unwrap().unwrap();
    reader.release().await.unwrap();
    locks.shutdown().await;
    place.is_free().await;
}

async fn a_writer_reads_in_a_nested_call(place: &Place) {
    let locks = place.manager();
    let inner = locks.lock(KEY).read().run(async { current().unwrap().mode().clone() });
    let body = async {
        let mode = inner.await.unwrap();
        // The inner one has ended, and the lock is held all the same: against all who are not of this call tree.
        tokio::spawn(is_busy(place.manager().lock(KEY).read())).await.unwrap();
        mode
    };
    assert_eq!(locks.lock(KEY).write().run(body).await.unwrap(), LockMode::Write);
    place.is_free().await;
}

async fn a_reader_that_would_write_is_refused_at_once(place: &Place) {
    let locks = place.manager();
    let nested = async |outer: LockRequest, inner: LockRequest| outer.run(inner.run(async {})).await.unwrap();
    let refused = |answer: Result<(), LockError>| {
        assert!(matches!(answer, Err(LockError::WouldDeadlock { .. })), "{answer:?}");
    };
    let lock = || locks.lock(KEY);
    refused(nested(lock().read(), lock().write()).await);
    // Also where it would pass through in its own mode.
    refused(nested(lock().read(), lock().write().reentrant(true)).await);
    refused(nested(lock().write(), lock().write()).await);
    refused(nested(lock().semaphore(3), lock().semaphore(3)).await);
    refused(nested(lock().owner("a"), lock().owner("b")).await);
    refused(nested(lock(), lock().read()).await);
    place.is_free().await;
}

async fn nested_calls_pass_through_where_they_may(place: &Place) {
    let locks = place.manager();
    let lock = || locks.lock(KEY);
    let pairs = [
        (lock(), lock().reentrant(true)),
        (lock().read(), lock().read()),
        (lock().write(), lock().write().reentrant(true)),
        (lock().semaphore(1), lock().semaphore(1).reentrant(true)),
        (lock().owner("a"), lock().owner("a")),
        (
            locks.lock_all([KEY, "other"]),
            locks.lock_all(["other", KEY]).reentrant(true),
        ),
        (locks.lock_all([KEY, "other"]), lock().reentrant(true)),
    ];
    for (outer, inner) in pairs {
        let body = async {
            let outside = current().unwrap();
            assert_eq!(outside.hold_count(), 1);
            inner
                .run(async { assert_eq!(current().unwrap().hold_count(), 2) })
                .await
                .unwrap();
            assert_eq!((outside.hold_count(), outside.is_held()), (1, true));
            outside.verify().await.unwrap();
        };
        outer.run(body).await.unwrap();
        place.is_free().await;
    }
}

async fn one_of_several_keys_in_a_nested_call_is_refused_at_once(place: &Place) {
    let locks = place.manager();
    let body = async {
        let answer = locks.lock_all(["free", KEY]).reentrant(true).acquire().await;
        assert!(matches!(answer, Err(LockError::WouldDeadlock { .. })), "{answer:?}");
        take(locks.lock("free").wait(Duration::ZERO))
            .await
            .release()
            .await
            .unwrap();
    };
    locks.lock(KEY).run(body).await.unwrap();
    place.is_free().await;
}

async fn a_minimum_hold_keeps_its_place(place: &Place) {
    let locks = place.manager();
    for request in modes(&locks).into_iter().chain([locks.lock_all([KEY])]) {
        let held = std::time::Instant::now();
        request
            .at_least(Duration::from_millis(300))
            .run(async {})
            .await
            .unwrap();
        let next = take(locks.lock("other")).await;
        next.release().await.unwrap();
        // By whoever may not be in beside any of them.
        loop {
            match locks.lock(KEY).owner("zzz").wait(Duration::ZERO).acquire().await {
                Ok(next) => {
                    next.release().await.unwrap();
                    break;
                }
                // One key of several is held exclusively, which is of another kind.
                Err(LockError::Busy { .. } | LockError::Store { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
            assert!(held.elapsed() < PATIENCE, "the minimum hold did not end");
        }
        assert!(
            held.elapsed() >= Duration::from_millis(290),
            "after {:?}",
            held.elapsed()
        );
    }
}

async fn a_holder_says_how_it_holds(place: &Place) {
    let locks = place.manager();
    let expected = [
        LockMode::Read,
        LockMode::Write,
        LockMode::Semaphore(NonZeroU32::MIN),
        LockMode::Semaphore(NonZeroU32::new(3).unwrap()),
        LockMode::owner("order 7"),
    ];
    for (request, mode) in modes(&locks).into_iter().zip(expected) {
        let guard = take(request.label("shop::sell")).await;
        assert_eq!((guard.handle().mode(), guard.handle().key()), (&mode, KEY));
        let other = match &mode {
            LockMode::Owner(_) => locks.lock(KEY).owner("other"),
            _ => locks.lock(KEY).owner("order 7"),
        };
        let Err(LockError::Busy {
            holder: Some(holder),
            retry_after,
            ..
        }) = other.wait(Duration::ZERO).acquire().await
        else {
            panic!("not busy, or nobody knows by whom");
        };
        assert_eq!((holder.mode(), holder.function()), (mode, Some("shop::sell")));
        assert!(retry_after.is_some_and(|rest| rest <= LONG));
        guard.release().await.unwrap();
    }
}

async fn tokens_tell_writers_and_owners_apart(place: &Place) {
    let (one, other) = (place.manager(), place.manager());
    let mut last = 0;
    for nth in 0..8 {
        let (first, second) = match nth % 4 {
            0 => (one.lock(KEY).write().fencing(true), None),
            1 => (one.lock(KEY).write(), None),
            2 => (one.lock(KEY).owner("a").fencing(true), Some(other.lock(KEY).owner("a"))),
            _ => (one.lock(KEY).owner("a"), Some(other.lock(KEY).owner("a").fencing(true))),
        };
        let first = take(first).await;
        let second = match second {
            Some(second) => Some(take(second).await),
            None => None,
        };
        let token = first.handle().fencing_token().await.unwrap().get();
        assert!(token > last, "{token} after {last}");
        last = token;
        if let Some(second) = second {
            assert_eq!(second.handle().fencing_token().await.unwrap().get(), token);
            second.release().await.unwrap();
        }
        first.release().await.unwrap();
        let all = take(one.lock_all(["x", "y"]).fencing(true)).await;
        assert!(all.handle().fencing_token().await.unwrap().get() > last);
        last = all.handle().fencing_token().await.unwrap().get();
        all.release().await.unwrap();
    }
}

async fn a_waiting_call_gets_busy_when_its_time_is_up(place: &Place) {
    let locks = place.manager();
    let writer = take(locks.lock(KEY).write()).await;
    let requests = modes(&locks).into_iter();
    // Long enough for an answer of the store.
    let calls: Vec<_> = requests
        .map(|request| tokio::spawn(request.wait(Duration::from_secs(8)).acquire()))
        .collect();
    for call in calls {
        let answer = call.await.unwrap();
        assert!(
            matches!(&answer, Err(LockError::Busy { holder: Some(holder), .. }) if holder.mode() == LockMode::Write),
            "{answer:?}"
        );
    }
    writer.release().await.unwrap();
    locks.shutdown().await;
    place.is_free().await;
}

/// How each mode takes its lock, and what is stored for it.
fn stored(locks: &LockManager) -> Vec<(LockRequest, &'static str)> {
    let mut all: Vec<_> = modes(locks).into_iter().map(|request| (request, STORED)).collect();
    all.push((locks.lock_all([KEY, "other"]), STORED));
    all.push((locks.lock_all([KEY, "other"]), "dist_lock:other"));
    all
}

/// Long before the next renewal would find it.
#[tokio::test]
async fn a_body_whose_key_is_deleted_is_cancelled() {
    let server = Server::start();
    let place = Place::Server(Box::new(server));
    let Place::Server(server) = &place else { unreachable!() };
    let locks = place.manager();
    for (request, key) in stored(&locks) {
        let (inside, entered) = oneshot::channel::<()>();
        let call = tokio::spawn(request.run(async move {
            let _ = inside.send(());
            std::future::pending::<()>().await;
        }));
        entered.await.unwrap();
        server.cmd(&["DEL", key]);
        let ended = tokio::time::timeout(PATIENCE, call).await;
        let ended = ended.unwrap_or_else(|_| panic!("it goes on without {key}")).unwrap();
        assert!(
            matches!(
                ended,
                Err(LockError::Lost {
                    reason: LostReason::Deleted,
                    completed: false,
                    ..
                })
            ),
            "{key}: {ended:?}"
        );
    }
}

/// The answer to a check that found all well, and the word that the key has gone since, arrive together.
#[tokio::test]
async fn a_loss_is_noticed_that_happens_while_a_check_is_under_way() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = LockManager::builder(&proxy.url()).default_lease(LONG);
    let locks = locks.default_wait(PATIENCE).response_timeout(PATIENCE).build().unwrap();
    // Neither what takes a lock nor what renews it.
    let is_check = |command: &Command| {
        let lease = LONG.as_millis().to_string();
        command.is_script()
            && command.mentions(STORED)
            && command.arguments.last().is_some_and(|last| last == b"0")
            && !command.arguments.iter().any(|argument| argument == lease.as_bytes())
    };
    for (nth, (request, key)) in std::iter::once((locks.lock(KEY), STORED))
        .chain(stored(&locks))
        .enumerate()
    {
        if nth < 2 {
            // So that the server knows the script: one that it does not know is not carried out.
            let mark = proxy.mark();
            let warm = take(request.clone()).await;
            proxy.wait_after(mark, "a check", is_check).await;
            warm.release().await.unwrap();
        }
        let checked = proxy.on_next(is_check, Action::HoldReply);
        let call = tokio::spawn(request.run(std::future::pending::<()>()));
        checked.done().await;
        server.cmd(&["DEL", key]);
        // For the word to come as far as the answer. If it does not, they come one after the other, which is as well.
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.release();
        let ended = tokio::time::timeout(PATIENCE, call).await;
        let ended = ended
            .unwrap_or_else(|_| panic!("number {nth} goes on without {key}"))
            .unwrap();
        assert!(ended.as_ref().is_err_and(LockError::is_lost), "{ended:?}");
    }
}

/// One holder of several, as an operator would put it out.
#[tokio::test]
async fn a_holder_that_is_taken_out_is_cancelled_and_the_others_go_on() {
    let place = Place::Server(Box::new(Server::start()));
    let Place::Server(server) = &place else { unreachable!() };
    let (one, other) = (place.manager(), place.manager());
    let stays = take(other.lock(KEY).read().label("stays")).await;
    let (inside, entered) = oneshot::channel::<()>();
    let call = tokio::spawn(one.lock(KEY).read().label("goes").run(async move {
        let _ = inside.send(());
        std::future::pending::<()>().await;
    }));
    entered.await.unwrap();
    let members: Vec<String> = server.ask(&["ZRANGE", STORED, "0", "-1"]);
    let goes = members.iter().find(|member| member.ends_with(":goes")).unwrap();
    server.cmd(&["ZREM", STORED, goes]);
    server.cmd(&["ZINCRBY", STORED, "-1", "#r"]);
    let ended = tokio::time::timeout(PATIENCE, call).await.expect("it goes on").unwrap();
    assert!(ended.as_ref().is_err_and(LockError::is_lost), "{ended:?}");
    stays.handle().verify().await.unwrap();
    stays.release().await.unwrap();
    place.is_free().await;
}

/// All at once, far beyond the first lease.
#[tokio::test]
async fn all_modes_are_renewed_while_their_bodies_run() {
    let place = Place::Server(Box::new(Server::start()));
    let locks = place.manager();
    let requests = [
        locks.lock("exclusive"),
        locks.lock(KEY).read(),
        locks.lock(KEY).read(),
        locks.lock("write").write(),
        locks.lock("semaphore").semaphore(2),
        locks.lock("owner").owner("a"),
        locks.lock_all(["several", "keys"]),
    ];
    let mut guards = Vec::new();
    for request in requests {
        // Five of them to spare at each renewal.
        guards.push(take(request.lease(Duration::from_secs(15))).await);
    }
    for guard in guards {
        eventually("two renewals", || async {
            guard.handle().ensure(Duration::ZERO).unwrap();
            guard.handle().renewals() >= 2
        })
        .await;
        guard.handle().verify().await.unwrap();
        guard.release().await.unwrap();
    }
    place.is_free().await;
}

/// A reader that is not renewed ends alone, and a body that is cancelled for it does not end the other's lock.
#[tokio::test]
async fn a_reader_whose_lease_ends_ends_alone() {
    for place in [Place::Memory(Arc::default()), Place::Server(Box::new(Server::start()))] {
        let (one, other) = (place.manager(), place.manager());
        let stays = take(one.lock(KEY).read()).await;
        let short = one.lock(KEY).read().lease(Duration::from_secs(1)).renew(false);
        let ended = short.run(std::future::pending::<()>()).await;
        assert!(
            matches!(
                ended,
                Err(LockError::Lost {
                    reason: LostReason::Expired,
                    ..
                })
            ),
            "{ended:?}"
        );
        stays.handle().verify().await.unwrap();
        take(other.lock(KEY).read()).await.release().await.unwrap();
        is_busy(other.lock(KEY).write()).await;
        stays.release().await.unwrap();
        place.is_free().await;
    }
}
