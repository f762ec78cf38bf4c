//! The order in which many callers get a lock: clients that poll, crowds, queues with foreign
//! members.

use std::time::Duration;

use lock_runtime::{Backoff, LockManager};
use lock_tests::{PATIENCE, Server, eventually};

/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);
/// For how long a lock that was handed over is kept for a waiter that says no word.
const CLAIM: Duration = Duration::from_millis(1500);
/// What all values in these tests have after the class: a token and who it is.
const REST: &str = "0123456789abcdef0123456789abcdef:host:1:forged";

/// A manager whose calls wait for as long as the test does, and get a lock by the store's queue only.
async fn patient(url: &str) -> LockManager {
    let never = Duration::from_secs(1000);
    let builder = LockManager::builder(url).backoff(Backoff::new(never, never));
    lock_tests::patient(builder.default_lease(LONG).default_wait(PATIENCE)).await
}

fn stored(key: &str) -> String {
    format!("dist_lock:{key}")
}

/// The keys of a lock's queues: of the exclusive lock, and of the modes that several may hold.
fn queues(key: &str) -> [String; 2] {
    ["queue", "shared"].map(|kind| format!("dist_lock:%lock-{kind}:{{{}}}", stored(key)))
}

/// The server's time in ms, as a sign of life has it.
fn now(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
    seconds * 1000 + micros / 1000
}

async fn stand(server: &Server, queue: &str, count: usize) {
    eventually(&format!("{count} in {queue}"), || async {
        server.ask::<usize>(&["ZCOUNT", queue, "1", "+inf"]) == count
    })
    .await;
}

/// A process that listens to its channel, and is then never heard again.
async fn listener(server: &Server, process: &str) -> impl Sized + use<> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut channel = client.get_async_pubsub().await.unwrap();
    channel
        .subscribe(format!("dist_lock:%lock-wake:{process}"))
        .await
        .unwrap();
    channel
}

/// Whoever can write the queue's key alone, and not the lock's, keeps others out for a claim and no longer; of what no waiter would write nothing
/// comes at all. A process that listens is all that it takes besides.
#[tokio::test]
async fn a_member_of_the_queue_that_somebody_has_forged_has_the_lock_for_a_claim_at_most() {
    let server = Server::start();
    let _listening = listener(&server, "abc").await;
    let locks = patient(&server.url()).await;
    for [claim, fence, process] in [
        ["1000000000000", "0", "abc"],
        ["99999999999999999999", "0", "abc"],
        ["0", "0", "abc"],
        ["0001500", "0", "abc"],
        ["1500", "7", "abc"],
        ["1500", "0", ""],
    ] {
        let queue = &queues("forged")[0];
        let guard = locks.lock("forged").acquire().await.unwrap();
        let heard = (-now(&server)).to_string();
        let member = format!("{claim}:{fence}:{process}:{REST}");
        server.cmd(&["ZADD", queue, "1", &member, &heard, "abc"]);
        guard
            .release()
            .await
            .unwrap_or_else(|error| panic!("{member}: {error}"));
        let left = server.time_left(&stored("forged"));
        assert!(left.is_none_or(|left| left <= CLAIM), "{left:?} by {member}");
        assert_eq!(left.is_some(), claim.starts_with("1000"), "{member}");
        server.cmd(&["DEL", &stored("forged"), queue]);
    }
}

/// The same in the modes that several may hold. One that no mode would ever let in does not keep those behind it waiting.
#[tokio::test]
async fn a_forged_member_of_a_shared_queue_keeps_the_others_waiting_for_a_claim_at_most() {
    let server = Server::start();
    let locks = patient(&server.url()).await;
    let queue = &queues("forged")[1];
    for (claim, class) in [
        ("1000000000000", "w"),
        ("99999999999999999999", "w"),
        ("1500", "x"),
        ("1500", "r2"),
        ("1500", "snan"),
        ("1500", "#w"),
        ("1500", ""),
    ] {
        let writer = locks.lock("forged").write().acquire().await.unwrap();
        let (behind, request) = (locks.clone(), locks.lock("forged").read());
        let behind = tokio::spawn(async move {
            let _locks = behind;
            request.acquire().await
        });
        stand(&server, queue, 1).await;
        // In front of it, and in the name of its process, which goes on to say that it is alive.
        let member: Vec<String> = server.ask(&["ZRANGEBYSCORE", queue, "1", "1"]);
        let process = member[0].split(':').nth(2).unwrap();
        let forged = format!("{claim}:0:{process}:{class}:{REST}");
        server.cmd(&["ZADD", queue, "2", &member[0], "1", &forged]);
        writer.release().await.unwrap();
        let value = format!("{class}:{REST}");
        let until: Option<i64> = server.ask(&["ZSCORE", &stored("forged"), &value]);
        let left = until.map_or(0, |until| until - now(&server));
        assert!(left <= 1500, "{left} ms for {value} by {claim}");
        let kept_out = tokio::time::timeout(10 * CLAIM, behind).await;
        kept_out
            .unwrap_or_else(|_| panic!("{class} for {claim} ms kept a reader out"))
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// A value that holds the lock is not counted once more: with a holder too many no writer would ever come in.
#[tokio::test]
async fn a_holder_that_somebody_puts_into_the_queue_again_counts_once() {
    let server = Server::start();
    let _listening = listener(&server, "abc").await;
    let locks = patient(&server.url()).await;
    let [first, second] = [(); 2].map(|()| locks.lock("twice").read().acquire());
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let holders: Vec<String> = server.ask(&["ZRANGEBYSCORE", &stored("twice"), "1000000", "+inf"]);
    let queue = &queues("twice")[1];
    let heard = (-now(&server)).to_string();
    for holder in &holders {
        server.cmd(&["ZADD", queue, "1", &format!("1500:0:abc:{holder}"), &heard, "abc"]);
    }
    second.release().await.unwrap();
    let tally: Option<usize> = server.ask(&["ZSCORE", &stored("twice"), "#r"]);
    let there: usize = server.ask(&["ZCOUNT", &stored("twice"), "1000000", "+inf"]);
    assert_eq!(tally, Some(there), "the tally is not the number of holders");
    first.release().await.unwrap();
}

/// The processes that have given a sign of life in a queue.
fn signs(server: &Server, queue: &str) -> Vec<String> {
    server.ask(&["ZRANGEBYSCORE", queue, "-inf", "(0"])
}

/// Whether each process that has somebody in the queue has been heard of just now, or in the future. One of which nothing was heard for
/// longer than of another one counts as dead.
fn is_heard_of(server: &Server, queue: &str) -> bool {
    let members: Vec<String> = server.ask(&["ZRANGEBYSCORE", queue, "1", "+inf"]);
    members.iter().all(|member| {
        let process = member.split(':').nth(2).unwrap();
        let heard: Option<String> = server.ask(&["ZSCORE", queue, process]);
        // A part of a millisecond says how messages reach it.
        let heard = heard.map(|heard| heard.split('.').next().unwrap().parse::<i64>().unwrap());
        heard.is_some_and(|heard| now(server) + heard <= 500)
    })
}

/// The values of those who wait in an exclusive lock's queue, in order.
fn waiters(server: &Server, queue: &str) -> Vec<String> {
    let members: Vec<String> = server.ask(&["ZRANGEBYSCORE", queue, "1", "+inf"]);
    let value = |member: &String| member.splitn(4, ':').nth(3).unwrap().to_owned();
    members.iter().map(value).collect()
}

/// The server's clock is set back by an hour: all have been heard of in the future, and one of them is no more.
#[tokio::test]
async fn the_order_is_kept_when_the_servers_clock_is_set_back() {
    const WAITERS: usize = 6;
    let server = Server::start();
    let queue = &queues("back")[0];
    for all in [false, true] {
        let processes = [patient(&server.url()).await, patient(&server.url()).await];
        let mut holder = processes[0].lock("back").acquire().await.unwrap();
        let mut calls = Vec::new();
        for number in 0..WAITERS {
            calls.push(tokio::spawn(processes[number % 2].lock("back").fair(true).acquire()));
            stand(&server, queue, number + 1).await;
        }
        // The signs that are written below say that the processes hear their messages.
        eventually("both to listen", || {
            let listen = server.channels();
            let listens = |process: &String| listen.contains(&format!("dist_lock:%lock-wake:{process}"));
            let all = signs(&server, queue).iter().all(listens);
            async move { all }
        })
        .await;
        let before = (now(&server) + 3_600_000).to_string();
        let mut heard = vec!["0123456789abcdef".to_owned()];
        if all {
            heard.extend(signs(&server, queue));
        }
        for process in &heard {
            server.cmd(&["ZADD", queue, &format!("-{before}"), process]);
        }
        let mut expected = waiters(&server, queue);
        eventually("all the living to count as such", || async {
            let seen = processes[0].inspect("back").await.unwrap().unwrap();
            seen.waiters == u64::try_from(WAITERS).unwrap()
        })
        .await;
        for call in calls {
            eventually("a sign of each process", || {
                let all = is_heard_of(&server, queue);
                async move { all }
            })
            .await;
            holder.release().await.unwrap();
            let next = expected.remove(0);
            // After a second of hand-overs, the lock is left free for a moment for other kinds of clients.
            let (mut holds, name) = (None, stored("back"));
            eventually("the lock to go on", || {
                holds = server.value(&name);
                let goes_on = holds.is_some();
                async move { goes_on }
            })
            .await;
            assert_eq!(holds, Some(next), "somebody was passed over");
            holder = call.await.unwrap().unwrap();
            assert_eq!(waiters(&server, queue), expected);
        }
        holder.release().await.unwrap();
        assert!(!server.exists(queue));
    }
}

/// However the last one of a process leaves the queue.
#[tokio::test]
async fn the_last_of_a_process_to_leave_the_queue_takes_its_sign_of_life_along() {
    let server = Server::start();
    for (shared, queue) in [false, true].into_iter().zip(queues("last")) {
        let [leaving, staying] = [patient(&server.url()).await, patient(&server.url()).await];
        let ask = |locks: &LockManager| {
            let request = locks.lock("last");
            tokio::spawn(if shared { request.write() } else { request.fair(true) }.acquire())
        };
        let holder = ask(&staying).await.unwrap().unwrap();
        let mut calls = Vec::new();
        for (number, process) in [&leaving, &staying, &leaving, &leaving].into_iter().enumerate() {
            calls.push(ask(process));
            stand(&server, &queue, number + 1).await;
        }
        assert_eq!(signs(&server, &queue).len(), 2);
        // Two are cancelled, and the last is handed the lock.
        for left in [3, 2] {
            calls.pop().unwrap().abort();
            stand(&server, &queue, left).await;
            assert_eq!(signs(&server, &queue).len(), 2, "it waits still");
        }
        let staying = {
            let member: Vec<String> = server.ask(&["ZRANGEBYSCORE", &queue, "2", "+inf"]);
            member[0].split(':').nth(2).unwrap().to_owned()
        };
        holder.release().await.unwrap();
        assert_eq!(signs(&server, &queue), [staying], "a sign of life was left behind");
        let holder = calls.remove(0).await.unwrap().unwrap();
        // The others are cancelled now.
        let last = calls.remove(0);
        last.abort();
        eventually("the end of the queue", || async { !server.exists(&queue) }).await;
        holder.release().await.unwrap();
    }
}

/// However many may come in, one run of a script lets in so many that the server's other clients hardly wait. The rest follow by later ones.
#[tokio::test]
async fn a_script_lets_in_a_bounded_part_of_a_crowd() {
    let server = Server::start();
    let _listening = listener(&server, "abc").await;
    let locks = patient(&server.url()).await;
    let writer = locks.lock("part").write().acquire().await.unwrap();
    let queue = &queues("part")[1];
    let heard = (-now(&server)).to_string();
    let stand = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], i, '1500:0:abc:r:' .. string.format('%032x', i) .. ':host:1:f') end
        redis.call('ZADD', KEYS[1], ARGV[1], 'abc')";
    server.cmd(&["EVAL", stand, "1", queue, &heard]);
    writer.release().await.unwrap();
    let inside: usize = server.ask(&["ZSCORE", &stored("part"), "#r"]);
    assert!((30..=200).contains(&inside), "{inside} were let in at once");
    // Another one goes on, whoever asks.
    let seen = locks.lock("part").read().wait(Duration::ZERO).acquire().await;
    assert!(seen.is_err_and(|error| error.is_busy()));
    let more: usize = server.ask(&["ZSCORE", &stored("part"), "#r"]);
    assert!(more > inside && more <= 2 * inside, "{more} after {inside}");
}
