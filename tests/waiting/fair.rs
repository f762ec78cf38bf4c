//! `fair`: first come, first served across processes, past waiters that have died, left, or stand
//! still.

use std::time::Duration;

use lock_runtime::LockError;
use lock_tests::{Command, Flow, Proxy, Server, Stamp, cases, eventually, eventually_some};

use crate::queue::{
    CLAIM, Call, DELAY, Entry, LONG, Other, let_in_by_word_alone, nothing_is_left, queue, stand, stored, waiting,
};

fn is_busy<T>(ended: Result<T, LockError>) -> bool {
    ended.err().is_some_and(|error| error.is_busy())
}

/// In the order of their names, by when they began and by the tokens that the server gave them.
#[track_caller]
fn in_order(entries: &[(String, Entry)]) {
    for pair in entries.windows(2) {
        let [(first, before), (second, after)] = pair else {
            unreachable!()
        };
        assert!(before.at < after.at, "`{second}` came before `{first}`");
        assert!(
            before.token < after.token,
            "the token of `{second}` is not above that of `{first}`"
        );
    }
}

/// Lets calls of several processes end as they get in, and returns when they did, in that order. It is to be that of their arrivals.
async fn let_in(others: &mut [Other], arrivals: &[(usize, String)]) -> Vec<(String, Entry)> {
    let mut left = arrivals.to_vec();
    let mut entries = Vec::new();
    while !left.is_empty() {
        let next = eventually_some("the next to get in", || {
            let next = left.iter().position(|(process, name)| others[*process].has(name));
            async move { next }
        })
        .await;
        let (process, name) = left.remove(next);
        entries.push((name.clone(), others[process].got(&name).await));
        others[process].free(&name);
    }
    let came = entries.iter().map(|(name, _)| name);
    let arrived = arrivals.iter().map(|(_, name)| name);
    assert_eq!(came.collect::<Vec<_>>(), arrived.collect::<Vec<_>>());
    entries
}

#[tokio::test]
async fn grants_come_in_the_order_of_arrivals_across_processes() {
    let server = Server::start();
    let mut others: Vec<_> = (0..3).map(|_| Other::on(&server.url())).collect();
    let holder = waiting(&server.url()).await.lock("order").acquire().await.unwrap();
    // Not in turn, so that each process has several in a row.
    let arrivals: Vec<(usize, String)> = [0, 1, 2, 2, 0, 0, 1, 2, 1, 1, 0, 2]
        .into_iter()
        .enumerate()
        .map(|(number, process)| (process, format!("call{number}")))
        .collect();
    for (number, (process, name)) in arrivals.iter().enumerate() {
        others[*process].ask_with(name, "order", LONG, "tf");
        stand(&server, "order", number + 1).await;
    }
    holder.release().await.unwrap();
    let entries = let_in(&mut others, &arrivals).await;
    in_order(&entries);
    for index in 0..entries.len() - 1 {
        let gap = entries[index + 1].1.at.calm_since(entries[index].1.at);
        assert!(gap < DELAY, "{gap:?} between two");
    }
    nothing_is_left(&server).await;
}

/// Many calls of one process at once have their places in the store, and none passes the lock on inside.
#[tokio::test]
async fn fair_calls_of_one_process_stand_in_the_store_each_for_itself() {
    let server = Server::start();
    let locks = waiting(&server.url()).await;
    let holder = locks.lock("each").acquire().await.unwrap();
    let mut calls = Vec::new();
    for number in 0..5 {
        calls.push(Call::begin_fenced(locks.lock("each").fair(true)));
        stand(&server, "each", number + 1).await;
    }
    holder.release().await.unwrap();
    let mut entries = Vec::new();
    for (number, mut call) in calls.into_iter().enumerate() {
        entries.push((number.to_string(), call.entered().await));
        call.end().await.unwrap();
    }
    in_order(&entries);
    assert_eq!(locks.stats().passed, 0);
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn killed_waiters_are_passed_over_at_once() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("dead").acquire().await.unwrap();
    let (mut first, mut second) = (Other::on(&server.url()), Other::on(&server.url()));
    for number in 0..6 {
        let dead = if number % 2 == 0 { &mut first } else { &mut second };
        dead.ask_with(&format!("call{number}"), "dead", LONG, "f");
        stand(&server, "dead", number + 1).await;
    }
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("dead").fair(true));
    stand(&server, "dead", 7).await;
    first.0.kill();
    second.0.kill();
    eventually("the server to notice", || async {
        crate::queue::subscribers(&server).len() == 1
    })
    .await;
    // No request gets through: the release itself passes over all six.
    let_in_by_word_alone(&proxy, holder, &mut call).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

cases! {
    a_stopped_waiter_is_passed_over_within_two_seconds: stopped_waiters_cost_at_most(1, DELAY);
    /// The process is passed over, not its calls one after the other, which would take eight claims: 12 s.
    eight_stopped_waiters_of_a_process_cost_no_more_than_one: stopped_waiters_cost_at_most(8, Duration::from_secs(10));
}

async fn stopped_waiters_cost_at_most(count: usize, delay: Duration) {
    let server = Server::start();
    let mut stopped = Other::on(&server.url());
    let holder = waiting(&server.url()).await.lock("still").acquire().await.unwrap();
    for number in 0..count {
        stopped.ask_with(&format!("call{number}"), "still", LONG, "tf");
        stand(&server, "still", number + 1).await;
    }
    let locks = waiting(&server.url()).await;
    let mut call = Call::begin_fenced(locks.lock("still").fair(true));
    stand(&server, "still", count + 1).await;
    stopped.0.stop();
    holder.release().await.unwrap();
    let freed = Stamp::now();
    let entry = call.entered().await;
    let waited = entry.at.calm_since(freed);
    assert!(waited < delay, "{waited:?}");
    stopped.0.cont();
    // They come anew, and none begins meanwhile.
    stand(&server, "still", count).await;
    assert!((0..count).all(|number| !stopped.has(&format!("call{number}"))));
    call.end().await.unwrap();
    for number in 0..count {
        stopped.free(&format!("call{number}"));
    }
    for number in 0..count {
        let name = format!("call{number}");
        assert!(stopped.got(&name).await.token > entry.token);
        assert_eq!(stopped.ended(&name).await.0, "ok");
    }
    nothing_is_left(&server).await;
}

/// The lock is free for a moment, since somebody has deleted it, and those in the queue have not looked yet.
#[tokio::test]
async fn a_fair_call_that_tries_once_overtakes_nobody() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let trying = waiting(&server.url()).await;
    let locks = waiting(&proxy.url()).await;
    server.cmd(&["SET", &stored("once"), "another program"]);
    let mut call = Call::begin(locks.lock("once").fair(true));
    stand(&server, "once", 1).await;
    proxy.requests(Flow::Hold);
    server.cmd(&["DEL", &stored("once")]);
    let once = |fair: bool| {
        let request = trying.lock("once").wait(Duration::ZERO);
        request.fair(fair).acquire()
    };
    assert!(is_busy(once(true).await), "it overtook one that waits");
    assert!(!server.exists(&stored("once")), "trying once has an effect");
    // Others may: it is free.
    once(false).await.unwrap().release().await.unwrap();
    proxy.release();
    call.entered().await;
    assert!(is_busy(once(true).await));
    call.end().await.unwrap();
    once(true).await.unwrap().release().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn those_who_leave_from_the_middle_change_nothing_for_the_rest() {
    let server = Server::start();
    let mut others: Vec<_> = (0..2).map(|_| Other::on(&server.url())).collect();
    let locks = waiting(&server.url()).await;
    let holder = locks.lock("middle").acquire().await.unwrap();
    let mut stay = Vec::new();
    for number in 0..9 {
        let name = format!("call{number}");
        let other = &mut others[number % 2];
        match number % 3 {
            // Its time is over soon, but not before all the others have come.
            1 if number == 4 => other.0.say(&format!("ask {name} middle 120000 8000 tf")),
            _ => other.ask_with(&name, "middle", LONG, "tf"),
        }
        if number % 3 == 0 {
            stay.push((number % 2, name));
        }
        stand(&server, "middle", number + 1).await;
    }
    for number in [1, 2, 5, 7, 8] {
        others[number % 2].cancel(&format!("call{number}")).await;
    }
    assert_eq!(others[0].ended("call4").await.0, "busy");
    stand(&server, "middle", stay.len()).await;
    holder.release().await.unwrap();
    let entries = let_in(&mut others, &stay).await;
    in_order(&entries);
    nothing_is_left(&server).await;
}

/// A plain call's process stands in the same queue, at the place where it came.
#[tokio::test]
async fn calls_that_are_not_fair_wait_in_the_same_queue() {
    let server = Server::start();
    let mut others: Vec<_> = (0..3).map(|_| Other::on(&server.url())).collect();
    let holder = waiting(&server.url()).await.lock("mixed").acquire().await.unwrap();
    let mut arrivals = Vec::new();
    for (number, (process, flags)) in [(0, "tf"), (1, "t"), (0, "tf"), (2, "tf"), (1, "tf"), (2, "t")]
        .into_iter()
        .enumerate()
    {
        let name = format!("call{number}");
        others[process].ask_with(&name, "mixed", LONG, flags);
        stand(&server, "mixed", number + 1).await;
        arrivals.push((process, name));
    }
    holder.release().await.unwrap();
    let entries = let_in(&mut others, &arrivals).await;
    in_order(&entries);
    nothing_is_left(&server).await;
}

/// Nobody in line, no queue: the lock is taken as any other.
#[tokio::test]
async fn a_fair_lock_that_nobody_waits_for_costs_two_commands_and_no_key() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = waiting(&proxy.url()).await;
    locks
        .lock("alone")
        .fair(true)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let mark = proxy.mark();
    for _ in 0..20 {
        let guard = locks.lock("alone").fair(true).acquire().await.unwrap();
        assert_eq!(server.keys(), [stored("alone")]);
        assert!(!server.exists(&queue("alone")));
        guard.release().await.unwrap();
    }
    let commands = proxy.commands().split_off(mark);
    let is_acquire = |command: &Command| command.mentions(&stored("alone"));
    let calls_ask_on = proxy.wait_for("the first acquire", is_acquire).await.connection;
    let on_its_connection = commands.iter().filter(|command| command.connection == calls_ask_on);
    assert_eq!(on_its_connection.count(), 40, "of {}", commands.len());
    nothing_is_left(&server).await;
}

/// Nobody is heard of while the server does not listen, so that the order may change: whoever comes back last counts as dead.
#[tokio::test]
async fn a_server_that_stands_still_for_a_while_keeps_nobody_from_the_lock() {
    let server = Server::start();
    let mut others: Vec<_> = (0..3).map(|_| Other::trying(&server.url())).collect();
    let mut holder = Other::trying(&server.url());
    holder.hold("holder", "stall").await;
    let mut left = Vec::new();
    for number in 0..6 {
        let (process, name) = (number % 3, format!("call{number}"));
        others[process].ask_with(&name, "stall", LONG, "tf");
        stand(&server, "stall", number + 1).await;
        left.push((process, name));
    }
    server.pause();
    holder.free("holder");
    // For so long nobody is heard of.
    tokio::time::sleep(CLAIM + Duration::from_millis(800)).await;
    server.resume();
    let mut entries: Vec<(String, Entry)> = Vec::new();
    let mut since = Stamp::now();
    while !left.is_empty() {
        let next = eventually_some("the next to get in", || {
            let next = left.iter().position(|(process, name)| others[*process].has(name));
            async move { next }
        })
        .await;
        let delay = Stamp::now().calm_since(since);
        assert!(delay < DELAY, "one came only after {delay:?}");
        let (process, name) = left.remove(next);
        entries.push((name.clone(), others[process].got(&name).await));
        others[process].free(&name);
        assert_eq!(others[process].ended(&name).await.0, "ok");
        since = Stamp::now();
    }
    in_order(&entries);
    nothing_is_left(&server).await;
}
