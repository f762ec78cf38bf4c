//! Waiters that die or stand still cost the next one a limited delay at most, and a lock that was
//! handed over to one becomes free when its claim ends.

use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::{Action, Flow, PATIENCE, Proxy, Server, Stamp, eventually};

use crate::queue::{
    CLAIM, Call, LONG, Other, joins, learn, let_in_by_word_alone, nothing_is_left, patient, queue, settled, soon,
    stand, stored, subscribers, takes, waiting,
};

// --- Waiters that die or stand still ---------------------------------------------------------------------------------------

/// As in the first test, no request of the next one gets through.
#[tokio::test]
async fn a_killed_waiter_is_passed_over_at_once() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut dead = Other::on(&server.url());
    let holder = waiting(&server.url()).await.lock("dead").acquire().await.unwrap();
    dead.ask("first", "dead");
    stand(&server, "dead", 1).await;
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("dead"));
    stand(&server, "dead", 2).await;
    dead.0.kill();
    eventually("the server to notice", || async { subscribers(&server).len() == 1 }).await;
    let_in_by_word_alone(&proxy, holder, &mut call).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

/// A message then always has a receiver, so that the dead seem to be alive.
#[tokio::test]
async fn somebody_who_listens_to_every_channel_makes_a_killed_waiter_cost_a_bounded_delay() {
    let server = Server::start();
    let mut spectator = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut channels = spectator.as_pubsub();
    channels.psubscribe("*").unwrap();
    let mut dead = Other::on(&server.url());
    let holder = waiting(&server.url()).await.lock("seen").acquire().await.unwrap();
    dead.ask("first", "seen");
    stand(&server, "seen", 1).await;
    let locks = waiting(&server.url()).await;
    let mut call = Call::begin(locks.lock("seen"));
    stand(&server, "seen", 2).await;
    dead.0.kill();
    holder.release().await.unwrap();
    soon(&mut call, Stamp::now()).await;
    call.end().await.unwrap();
}

#[tokio::test]
async fn a_stopped_waiter_costs_the_next_one_a_bounded_delay_and_gets_its_turn_when_it_goes_on() {
    let server = Server::start();
    let mut stopped = Other::on(&server.url());
    let locks = waiting(&server.url()).await;
    let holder = locks.lock("stopped").acquire().await.unwrap();
    stopped.ask("first", "stopped");
    stand(&server, "stopped", 1).await;
    let next = waiting(&server.url()).await;
    let mut call = Call::begin(next.lock("stopped"));
    stand(&server, "stopped", 2).await;
    stopped.0.stop();
    holder.release().await.unwrap();
    soon(&mut call, Stamp::now()).await;
    // Everything it was told is waiting for it: that it was handed the lock, and that this is over.
    stopped.0.cont();
    stand(&server, "stopped", 1).await;
    assert!(!stopped.has("first"), "it has begun on a grant that was over");
    assert!(!stopped.0.lines().iter().any(|line| line.text.starts_with("ended")));
    let last_poll = {
        let entered = call.entered().await.at;
        eventually("a poll", || async { call.last_poll() > entered }).await;
        call.end().await.unwrap();
        entered
    };
    assert!(stopped.got("first").await.at > last_poll);
    stopped.free("first");
    assert_eq!(stopped.ended("first").await.0, "ok");
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_waiter_that_was_stopped_for_long_before_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut stopped = Other::on(&server.url());
    let holder = waiting(&server.url()).await.lock("stale").acquire().await.unwrap();
    stopped.ask("first", "stale");
    stand(&server, "stale", 1).await;
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("stale"));
    stand(&server, "stale", 2).await;
    stopped.0.stop();
    // For so long it is not heard of.
    tokio::time::sleep(CLAIM + Duration::from_millis(300)).await;
    let_in_by_word_alone(&proxy, holder, &mut call).await;
    stopped.0.cont();
    stand(&server, "stale", 1).await;
    call.end().await.unwrap();
    stopped.got("first").await;
    stopped.free("first");
    assert_eq!(stopped.ended("first").await.0, "ok");
    nothing_is_left(&server).await;
}

/// `docs/faults.md`, row 34: nobody is told that the connection is gone.
#[tokio::test]
async fn a_waiter_that_the_network_has_swallowed_costs_a_bounded_delay_and_comes_back_by_itself() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("lost").acquire().await.unwrap();
    // Soon done with a connection that is silent, but not so soon that a busy machine seems to be. After that it tries again.
    let locks = LockManager::builder(&proxy.url())
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .response_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    let mut lost = Call::begin(locks.lock("lost"));
    stand(&server, "lost", 1).await;
    let next = waiting(&server.url()).await;
    let mut call = Call::begin(next.lock("lost"));
    stand(&server, "lost", 2).await;
    settled(&proxy, "lost").await;
    proxy.both(Flow::Lose);
    holder.release().await.unwrap();
    soon(&mut call, Stamp::now()).await;
    assert!(!lost.has_entered());
    // The old connections stay silent.
    proxy.heal();
    stand(&server, "lost", 1).await;
    assert!(!lost.has_entered());
    call.end().await.unwrap();
    soon(&mut lost, Stamp::now()).await;
    lost.end().await.unwrap();
    // Nor does the server know by itself that they are gone.
    drop(proxy);
    nothing_is_left(&server).await;
}

// --- Locks that were handed over -----------------------------------------------------------------------------------------

/// What is handed over is short until the waiter has taken it, and no body begins before that.
#[tokio::test]
async fn a_lock_is_handed_over_for_a_short_time_and_taken_for_the_whole_lease_before_the_body() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    learn(&server).await;
    let holder = waiting(&server.url()).await.lock("claim").acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("claim"));
    stand(&server, "claim", 1).await;
    let taking = proxy.on_next(takes("claim"), Action::Hold);
    holder.release().await.unwrap();
    taking.done().await;
    let left = server.time_left(&stored("claim"));
    assert!(left <= Some(CLAIM), "{left:?}");
    assert!(!call.has_entered(), "it does not know that it has the lock");
    proxy.release();
    call.entered().await;
    let whole = server.time_left(&stored("claim")).unwrap();
    assert!(whole > LONG / 2, "{whole:?}");
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_body_whose_handed_lock_cannot_be_renewed_has_stopped_before_the_next_begins() {
    let server = Server::start();
    learn(&server).await;
    // At once, since each takes as long as its lease.
    let rounds = [0, 1, 2].map(|round| a_handed_lock_that_cannot_be_renewed(&server, round));
    let [first, second, third] = rounds;
    tokio::join!(first, second, third);
    nothing_is_left(&server).await;
}

async fn a_handed_lock_that_cannot_be_renewed(server: &Server, round: usize) {
    let mut other = Other::on(&server.url());
    let proxy = Proxy::to(server);
    let (key, next) = (format!("mute:{round}"), format!("next:{round}"));
    let holder = waiting(&server.url()).await.lock(&key).acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let lease = Duration::from_secs(6);
    let mut call = Call::begin(locks.lock(&key).lease(lease));
    stand(server, &key, 1).await;
    other.ask(&next, &key);
    stand(server, &key, 2).await;
    // It is told by the channel.
    settled(&proxy, &key).await;
    // The lease counts from before the request that took it was sent, and nothing follows that request.
    proxy.on_next(takes(&key), Action::DelayReply(lease / 3));
    proxy.on_each(|_| true, Action::Hold);
    holder.release().await.unwrap();
    call.entered().await;
    let begun = other.got(&next).await.at;
    let last_poll = call.last_poll();
    let overruns = usize::try_from(locks.stats().overruns).unwrap();
    assert!(
        last_poll < begun || overruns > 0,
        "polled {:?} too long",
        last_poll.since(begun)
    );
    proxy.heal();
    let ended = call.over().await.unwrap_err();
    assert!(ended.is_lost(), "{ended}");
    assert!(
        server.exists(&stored(&key)),
        "its late release took the next one's lock"
    );
    other.free(&next);
    assert_eq!(other.ended(&next).await.0, "ok");
}

/// A lease that is shorter than the claim stays as it is.
#[tokio::test]
async fn a_short_lease_is_never_lengthened_by_a_hand_over() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // Shorter than a claim.
    let lease = Duration::from_millis(1400);
    let holder = waiting(&server.url()).await.lock("short").acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("short").lease(lease).renew(false));
    stand(&server, "short", 1).await;
    holder.release().await.unwrap();
    call.entered().await;
    let left = server.time_left(&stored("short"));
    assert!(left <= Some(lease), "{left:?}");
    assert!(call.over().await.unwrap_err().is_lost(), "it was not to be renewed");
    nothing_is_left(&server).await;
}

/// Between its first try and its place in the queue the lock has become free, and the answer is long on its way.
#[tokio::test]
async fn a_lock_that_is_free_when_its_queue_is_joined_is_relied_on_from_the_request_on() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient(&proxy.url()).response_timeout(PATIENCE).build().unwrap();
    locks.check_connection().await.unwrap();
    learn(&server).await;
    let lease = Duration::from_secs(10);
    server.cmd(&["SET", &stored("free"), "another program"]);
    let held = proxy.on_next(joins("free"), Action::Hold);
    let mut call = Call::begin(locks.lock("free").lease(lease));
    held.done().await;
    server.cmd(&["DEL", &stored("free")]);
    proxy.replies(Flow::Delay(lease / 5));
    proxy.release();
    eventually("the lock to be taken", || async { server.exists(&stored("free")) }).await;
    assert!(!server.exists(&queue("free")));
    // From now on nothing is renewed.
    proxy.requests(Flow::Hold);
    let mut other = Other::on(&server.url());
    other.ask("next", "free");
    call.entered().await;
    let begun = other.got("next").await.at;
    let last_poll = call.last_poll();
    assert!(
        last_poll < begun || locks.stats().overruns > 0,
        "polled {:?} too long",
        last_poll.since(begun)
    );
    proxy.heal();
    assert!(call.over().await.unwrap_err().is_lost());
    other.free("next");
    assert_eq!(other.ended("next").await.0, "ok");
    nothing_is_left(&server).await;
}
