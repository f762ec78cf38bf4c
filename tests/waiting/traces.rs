//! Waiting costs the server little, and leaves nothing behind; without waiters it costs nothing.

use std::time::{Duration, Instant};

use lock_runtime::LockManager;
use lock_tests::{Command, PATIENCE, Proxy, Server, Stamp, eventually};

use crate::queue::{
    Call, LONG, keep, nothing_is_left, patient, places, queue, settled, soon, stand, stored, subscribers, subscribes,
    waiting,
};

#[tokio::test]
async fn a_lock_that_nobody_waits_for_costs_two_commands_and_nothing_else() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = waiting(&proxy.url()).await;
    // The server learns the scripts, and the connections are made.
    locks.lock("cheap").acquire().await.unwrap().release().await.unwrap();
    let (mark, connections) = (proxy.mark(), proxy.accepted());
    for _ in 0..100 {
        let guard = locks.lock("cheap").acquire().await.unwrap();
        assert_eq!(server.keys(), [stored("cheap")]);
        guard.release().await.unwrap();
    }
    assert_eq!(server.keys(), [""; 0]);
    let commands = proxy.commands().split_off(mark);
    let is_acquire = |command: &Command| command.mentions(&stored("cheap"));
    let calls_ask_on = proxy.wait_for("the first acquire", is_acquire).await.connection;
    let on_its_connection = commands.iter().filter(|command| command.connection == calls_ask_on);
    assert_eq!(on_its_connection.count(), 200, "of {}", commands.len());
    // No section has a connection of its own. While the server stands still, another one is made in the background, by some commands.
    let made = usize::try_from(proxy.accepted() - connections).unwrap();
    assert!(made <= 10, "{made} connections");
    // A section that takes long is looked at once, on another connection.
    assert!(commands.len() <= 300 + 20 * made, "{}", commands.len());
    assert_eq!(proxy.count(subscribes), 0);
    assert_eq!(server.channels(), [""; 0]);
}

#[tokio::test]
async fn a_waiter_asks_no_more_often_than_its_heart_beats() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("quiet").acquire().await.unwrap();
    let other = LockManager::builder(&proxy.url())
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    let calls: Vec<_> = (0..50).map(|_| Call::begin(other.lock("quiet"))).collect();
    settled(&proxy, "quiet").await;
    let listens = proxy.wait_for("a subscription", subscribes).await.connection;
    let mark = proxy.mark();
    let watched = Instant::now();
    // Not to order anything: for so long the commands are counted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let commands = proxy.commands().split_off(mark);
    let beats = watched.elapsed().as_millis().div_ceil(250) + 1;
    // A beat for each of the calls would be 50 times as many.
    assert!(
        commands.len() as u128 <= 10 * beats,
        "{} commands: {}",
        commands.len(),
        commands[0]
    );
    // If the call in front is not polled for a while, the next one asks for the lock and for a place, on another connection.
    let by_the_listener = || {
        let mut commands = proxy.commands().split_off(mark);
        commands.retain(|command| command.connection == listens);
        commands
    };
    assert!(
        by_the_listener()
            .iter()
            .all(|command| command.is_script() && command.mentions(&queue("quiet")))
    );
    eventually("signs of life", || async { by_the_listener().len() >= 4 }).await;
    for call in calls {
        call.cancel().await;
    }
    holder.release().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn many_keys_and_waiters_share_one_subscription_and_one_heartbeat() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holding = waiting(&server.url()).await;
    let locks = waiting(&proxy.url()).await;
    let mut guards = Vec::new();
    let mut calls = Vec::new();
    for number in 0..40 {
        let key = format!("many:{number}");
        guards.push(holding.lock(&key).acquire().await.unwrap());
        calls.push(Call::begin(locks.lock(&key)));
        stand(&server, &key, 1).await;
    }
    eventually("the subscription", || async { subscribers(&server).len() == 1 }).await;
    assert_eq!(server.channels().len(), 1);
    assert_eq!(proxy.count(subscribes), 1);
    let (mark, watched) = (proxy.mark(), Instant::now());
    // Not to order anything: for so long the commands are counted.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let commands = proxy.mark() - mark;
    let beats = watched.elapsed().as_millis().div_ceil(250) + 4;
    // A beat for each of the keys would be 40 times as many, but for the four.
    assert!(
        commands as u128 <= 4 * beats,
        "{commands} commands in {:?}",
        watched.elapsed()
    );
    for guard in guards {
        guard.release().await.unwrap();
    }
    for mut call in calls {
        call.entered().await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_call_that_leaves_leaves_nothing_whether_it_is_dropped_or_its_time_is_over() {
    let server = Server::start();
    let (holding, locks) = (waiting(&server.url()).await, waiting(&server.url()).await);
    let holder = holding.lock("left").acquire().await.unwrap();
    // Not by itself, some seconds after the last sign of life.
    let gone = async || {
        eventually("the queue to be gone", || async {
            keep(&server, &queue("left"));
            !server.exists(&queue("left"))
        })
        .await;
    };
    for fair in [false, true] {
        let request = || {
            if fair {
                locks.lock("left").fair(true)
            } else {
                locks.lock("left")
            }
        };
        let dropped = Call::begin(request());
        stand(&server, "left", 1).await;
        dropped.cancel().await;
        gone().await;
        // Long enough for an answer.
        let busy = Call::begin(request().wait(Duration::from_secs(8)));
        stand(&server, "left", 1).await;
        let busy = busy.over().await.unwrap_err();
        assert!(busy.is_busy(), "{busy}");
        gone().await;
        let (first, second) = (Call::begin(request().fair(true)), Call::begin(request().fair(true)));
        stand(&server, "left", 2).await;
        first.cancel().await;
        stand(&server, "left", 1).await;
        second.cancel().await;
        gone().await;
    }
    assert_eq!(server.keys(), [stored("left")]);
    holder.release().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn queues_of_different_prefixes_know_nothing_of_each_other() {
    let server = Server::start();
    let manager = |prefix: &str| patient(&server.url()).prefix(prefix).build().unwrap();
    let queues = ["one:", "two:"].map(|prefix| format!("{prefix}%lock-queue:{{{prefix}same}}"));
    let mut guards = Vec::new();
    let mut calls = Vec::new();
    for (prefix, queue) in ["one:", "two:"].into_iter().zip(&queues) {
        guards.push(manager(prefix).lock("same").acquire().await.unwrap());
        calls.push(Call::begin(manager(prefix).lock("same")));
        eventually("a place", || async { places(&server, queue) == 1 }).await;
    }
    let mut second = calls.pop().unwrap();
    guards.pop().unwrap().release().await.unwrap();
    second.entered().await;
    second.end().await.unwrap();
    assert_eq!(places(&server, &queues[0]), 1);
    assert!(!server.exists(&queues[1]));
    assert!(!calls[0].has_entered());
    guards.pop().unwrap().release().await.unwrap();
    calls[0].entered().await;
    calls.pop().unwrap().end().await.unwrap();
    nothing_is_left(&server).await;
}

/// They have two queues for one lock.
#[tokio::test]
async fn prefixes_that_spell_the_same_key_exclude_each_other_and_delay_each_other_by_little() {
    let server = Server::start();
    let whole = patient(&server.url()).prefix("").build().unwrap();
    let parted = patient(&server.url()).prefix("a:").build().unwrap();
    let guard = whole.lock("a:b").acquire().await.unwrap();
    let mut call = Call::begin(parted.lock("b"));
    eventually("a place", || async { places(&server, "a:%lock-queue:{a:b}") == 1 }).await;
    guard.release().await.unwrap();
    soon(&mut call, Stamp::now()).await;
    let mut back = Call::begin(whole.lock("a:b"));
    eventually("a place", || async { places(&server, "%lock-queue:{a:b}") == 1 }).await;
    assert!(!back.has_entered());
    call.end().await.unwrap();
    soon(&mut back, Stamp::now()).await;
    back.end().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn keys_of_every_shape_have_queues() {
    let server = Server::start();
    let holding = waiting(&server.url()).await;
    let locks = waiting(&server.url()).await;
    for key in [
        "{tag}:7",
        "a{b}c",
        "a}b",
        "{",
        "}",
        "{}",
        "{}x",
        "ü",
        "a b",
        "lock-queue:{x}",
        "\u{1}",
    ] {
        let holder = holding.lock(key).acquire().await.unwrap();
        let waiter = locks.lock(key).wait(PATIENCE);
        let mut call = Call::begin(waiter);
        eventually(&format!("a place in the queue for `{key}`"), || {
            let queues = server
                .keys()
                .into_iter()
                .filter(|name| name.starts_with("dist_lock:%lock-queue"));
            let places = queues.map(|queue| places(&server, &queue)).sum::<usize>();
            async move { places == 1 }
        })
        .await;
        holder.release().await.unwrap();
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// Such as one that a version of another time has left.
#[tokio::test]
async fn a_place_that_nobody_understands_is_passed_over() {
    let server = Server::start();
    let (holding, locks) = (waiting(&server.url()).await, waiting(&server.url()).await);
    for member in ["", "who knows", "a:b:c:d", "1500:0:ff:", ":::"] {
        let holder = holding.lock("strange").acquire().await.unwrap();
        server.cmd(&["ZADD", &queue("strange"), "0.5", member]);
        let mut call = Call::begin(locks.lock("strange"));
        stand(&server, "strange", 1).await;
        server.cmd(&["ZADD", &queue("strange"), "1", member]);
        holder.release().await.unwrap();
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
        assert!(!server.exists(&stored("strange")));
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_queue_of_another_type_keeps_nobody_from_the_lock_for_long() {
    let server = Server::start();
    let manager = || {
        LockManager::builder(&server.url())
            .default_lease(LONG)
            .default_wait(PATIENCE)
            .response_timeout(PATIENCE)
            .build()
            .unwrap()
    };
    let (holding, locks) = (manager(), manager());
    server.cmd(&["SET", &queue("typed"), "text"]);
    for fair in [false, true] {
        let request = |locks: &LockManager| {
            if fair {
                locks.lock("typed").fair(true)
            } else {
                locks.lock("typed")
            }
        };
        let holder = request(&holding).acquire().await.unwrap();
        let mut call = Call::begin(request(&locks));
        // Long enough for an answer.
        let busy = request(&locks)
            .wait(Duration::from_secs(8))
            .acquire()
            .await
            .unwrap_err();
        assert!(busy.is_busy(), "{busy}");
        holder.release().await.unwrap();
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
    }
    assert_eq!(server.keys(), [queue("typed")]);
}
