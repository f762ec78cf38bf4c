//! A waiter in another process is woken at once. A wake-up that goes wrong costs it a limited
//! delay, but never the lock, and never the exclusion of other holders.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;

use lock_runtime::{HandoverLimits, LockError, LockManager};
use lock_tests::clock::kept_for;
use lock_tests::proxy::Close;
use lock_tests::{Action, Command, Flow, Judge, PATIENCE, Proxy, Server, Stamp, eventually, eventually_some};

use crate::queue::{
    Call, DELAY, LONG, Other, joins, let_in_by_word_alone, nothing_is_left, patient, queue, settled, soon, stand,
    stored, subscribers, subscribes, waiting, words_alone,
};

// --- At once -----------------------------------------------------------------------------------------------------------

/// No look of the waiter gets through from before the release on: only a message can have told it.
#[tokio::test]
async fn a_release_in_another_process_wakes_the_waiter_without_a_look_of_its_own() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut other = Other::on(&server.url());
    other.hold("holder", "woken").await;
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("woken"));
    stand(&server, "woken", 1).await;
    words_alone(&proxy, "woken").await;
    other.free("holder");
    call.entered().await;
    proxy.heal();
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

/// Such a lock is given back in the background.
#[tokio::test]
async fn a_call_that_is_dropped_and_a_body_that_panics_wake_the_waiter_as_well() {
    let server = Server::start();
    let holding = waiting(&server.url()).await;
    for panics in [false, true] {
        let proxy = Proxy::to(&server);
        let request = holding.lock("dropped");
        let go = std::sync::Arc::new(tokio::sync::Notify::new());
        let went = std::sync::Arc::clone(&go);
        let holder = tokio::spawn(request.run(async move {
            went.notified().await;
            panic!("as the test wants it");
        }));
        eventually("the lock to be taken", || async { server.exists(&stored("dropped")) }).await;
        let locks = waiting(&proxy.url()).await;
        let mut call = Call::begin(locks.lock("dropped"));
        stand(&server, "dropped", 1).await;
        words_alone(&proxy, "dropped").await;
        if panics {
            go.notify_one();
        } else {
            holder.abort();
        }
        call.entered().await;
        proxy.heal();
        call.end().await.unwrap();
        assert_eq!(holder.await.unwrap_err().is_panic(), panics);
    }
    nothing_is_left(&server).await;
}

/// A process that uses the hand-over inside as much as it can, beside one that waits in the store.
#[tokio::test]
async fn a_process_that_passes_the_lock_on_inside_lets_others_in_within_its_bound() {
    let server = Server::start();
    let bound = HandoverLimits::new(u32::MAX, Duration::from_millis(100));
    let busy = patient(&server.url()).handover(bound).build().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut raging = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (busy, stop) = (busy.clone(), std::sync::Arc::clone(&stop));
        raging.spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let pause = async { tokio::time::sleep(Duration::from_millis(1)).await };
                busy.lock("passed").run(pause).await?;
            }
            Ok::<_, LockError>(())
        });
    }
    eventually("the lock to be passed on", || async { busy.stats().passed > 10 }).await;
    let locks = waiting(&server.url()).await;
    for _ in 0..5 {
        let asked = Stamp::now();
        let mut call = Call::begin(locks.lock("passed"));
        // Without a bound it would pass inside for ever.
        soon(&mut call, asked).await;
        call.end().await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for ended in raging.join_all().await {
        ended.unwrap();
    }
    nothing_is_left(&server).await;
}

// --- Messages that get lost --------------------------------------------------------------------------------------------

// docs/faults.md, row 20.
#[tokio::test]
async fn a_lost_message_costs_a_bounded_delay() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("lost").acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("lost"));
    stand(&server, "lost", 1).await;
    proxy.pushes(false);
    holder.release().await.unwrap();
    soon(&mut call, Stamp::now()).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

// docs/faults.md, row 37.
#[tokio::test]
async fn a_waiter_that_lost_its_connection_listens_again_and_is_woken_as_before() {
    let server = Server::start();
    for close in [Close::Reset, Close::Fin] {
        let proxy = Proxy::to(&server);
        let holder = waiting(&server.url()).await.lock("cut").acquire().await.unwrap();
        let locks = waiting(&proxy.url()).await;
        let mut call = Call::begin(locks.lock("cut"));
        stand(&server, "cut", 1).await;
        settled(&proxy, "cut").await;
        let mark = proxy.mark();
        proxy.cut(close);
        let subscribed = |command: &Command| subscribes(command) && command.reply.is_none();
        proxy.wait_after(mark, "a subscription anew", subscribed).await;
        let alive = |command: &Command| command.mentions(&queue("cut")) && command.reply.is_some();
        proxy.wait_after(mark, "a sign of life", alive).await;
        stand(&server, "cut", 1).await;
        let_in_by_word_alone(&proxy, holder, &mut call).await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_release_while_the_waiter_has_no_connection_costs_a_bounded_delay() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("away").acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("away"));
    stand(&server, "away", 1).await;
    settled(&proxy, "away").await;
    proxy.refuse(true);
    proxy.cut(Close::Reset);
    eventually("the server to notice", || async { subscribers(&server).is_empty() }).await;
    holder.release().await.unwrap();
    proxy.refuse(false);
    soon(&mut call, Stamp::now()).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

// docs/faults.md, row 37.
#[tokio::test]
async fn a_killed_subscription_is_made_anew_and_costs_a_bounded_delay() {
    let server = Server::start();
    let holding = waiting(&server.url()).await;
    let locks = waiting(&server.url()).await;
    for round in 0..4 {
        let holder = holding.lock("killed").acquire().await.unwrap();
        let mut call = Call::begin(locks.lock("killed"));
        stand(&server, "killed", 1).await;
        // It may stand in the queue before it listens.
        let before = eventually_some("one subscription of the process", || {
            let now = subscribers(&server);
            async move { (now.len() == 1).then_some(now) }
        })
        .await;
        server.cmd(&["CLIENT", "KILL", "ID", &before[0]]);
        if round % 2 == 0 {
            eventually("another subscription", || {
                let now = subscribers(&server);
                let another = now.len() == 1 && now != before;
                async move { another }
            })
            .await;
        }
        holder.release().await.unwrap();
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// What is told twice, late, or in another order is about values that are never used again.
#[tokio::test]
async fn repeated_and_reordered_messages_let_nobody_in() {
    let server = Server::start();
    let (heard, messages) = mpsc::channel();
    let url = server.url();
    let (ready, listens) = mpsc::channel();
    std::thread::spawn(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut channels = connection.as_pubsub();
        channels.psubscribe("*").unwrap();
        ready.send(()).unwrap();
        // Ends with the server.
        while let Ok(message) = channels.get_message() {
            let told = (
                message.get_channel_name().to_owned(),
                message.get_payload_bytes().to_vec(),
            );
            if heard.send(told).is_err() {
                return;
            }
        }
    });
    listens.recv().unwrap();

    let judge = Judge::new();
    let mut raging = tokio::task::JoinSet::new();
    for process in 0..4 {
        let locks = waiting(&server.url()).await;
        let judge = judge.clone();
        raging.spawn(async move {
            for round in 0..25 {
                let asked = Stamp::now();
                let request = locks.lock("repeated").fencing(true).fair(round % 3 == 0);
                let body = async {
                    let token = lock_runtime::current().unwrap().fencing_token().await.unwrap().get();
                    let _inside = judge.enter(process.to_string(), asked, Some(token));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                };
                request.run(body).await.unwrap();
            }
        });
    }
    let mut told: Vec<(String, Vec<u8>)> = Vec::new();
    let mut known = HashSet::new();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    while !raging.is_empty() {
        while let Ok(message) = messages.try_recv() {
            if known.insert(message.clone()) {
                told.push(message);
            }
        }
        for _ in 0..told.len().min(20) {
            let (channel, text) = &told[fastrand::usize(..told.len())];
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(channel).arg(text);
            publish.query::<()>(&mut connection).unwrap();
            publish = redis::cmd("PUBLISH");
            publish.arg(channel).arg("nothing that anybody understands");
            publish.query::<()>(&mut connection).unwrap();
        }
        if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(3), raging.join_next()).await {
            ended.unwrap();
        }
    }
    assert!(known.len() > 20, "{} messages only", known.len());
    judge.assert_clean(100);
}

/// The place that a late message is about was lost long ago, and another has the lock.
#[tokio::test]
async fn a_message_that_comes_after_the_claim_is_over_starts_no_body() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut other = Other::on(&server.url());
    let holder = waiting(&server.url()).await.lock("late").acquire().await.unwrap();
    // So slow to give up that the message comes on the connection that it was sent on.
    let locks = patient(&proxy.url()).response_timeout(PATIENCE).build().unwrap();
    let mut call = Call::begin(locks.lock("late"));
    stand(&server, "late", 1).await;
    settled(&proxy, "late").await;
    other.ask("next", "late");
    stand(&server, "late", 2).await;
    proxy.replies(Flow::Hold);
    holder.release().await.unwrap();
    let next = other.got("next").await;
    proxy.release();
    // It has heard of its loss when it stands in the queue once more.
    stand(&server, "late", 1).await;
    assert!(!call.has_entered(), "{next:?} has the lock");
    other.free("next");
    let (_, left) = other.ended("next").await;
    assert!(call.entered().await.at > left);
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

// --- Locks that nobody gives back ----------------------------------------------------------------------------------------

// docs/faults.md, row 1.
#[tokio::test]
async fn a_waiter_gets_the_lock_of_a_killed_holder_as_soon_as_its_lease_is_over() {
    let server = Server::start();
    let mut other = Other::on(&server.url());
    other.ask_with("holder", "killed", Duration::from_secs(6), "-");
    other.got("holder").await;
    let locks = waiting(&server.url()).await;
    let mut call = Call::begin(locks.lock("killed"));
    stand(&server, "killed", 1).await;
    other.0.kill();
    let before = Stamp::now();
    let left = server.time_left(&stored("killed")).unwrap();
    let now = Stamp::now();
    let entered = call.entered().await.at;
    let waited = entered.since(before);
    assert!(waited >= kept_for(left), "{waited:?} of {left:?}");
    let late = entered.calm_since(now).saturating_sub(left);
    assert!(late < DELAY, "{late:?} after the lease");
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_foreign_holder_that_tells_nobody_costs_a_bounded_delay() {
    let server = Server::start();
    let locks = waiting(&server.url()).await;
    for lifetime in [None, Some("3600000")] {
        let key = stored("foreign");
        let mut set = vec!["SET", &key, "another program"];
        set.extend(lifetime.iter().flat_map(|lifetime| ["PX", *lifetime]));
        server.cmd(&set);
        let mut call = Call::begin(locks.lock("foreign"));
        stand(&server, "foreign", 1).await;
        server.cmd(&["DEL", &key]);
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_foreign_holder_whose_key_expires_costs_a_bounded_delay() {
    let server = Server::start();
    let locks = waiting(&server.url()).await;
    let key = stored("expires");
    server.cmd(&["SET", &key, "another program", "PX", "8000"]);
    let mut call = Call::begin(locks.lock("expires"));
    stand(&server, "expires", 1).await;
    let left = server.time_left(&key).expect("it outlives the way into the queue");
    let now = Stamp::now();
    let late = call.entered().await.at.calm_since(now).saturating_sub(left);
    assert!(late < DELAY, "{late:?} after the key's end");
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_minimum_hold_is_waited_for_and_no_longer() {
    let server = Server::start();
    let hold = Duration::from_secs(8);
    let holder = waiting(&server.url())
        .await
        .lock("minimum")
        .at_least(hold)
        .acquire()
        .await
        .unwrap();
    let locks = waiting(&server.url()).await;
    let mut call = Call::begin(locks.lock("minimum"));
    stand(&server, "minimum", 1).await;
    holder.release().await.unwrap();
    let before = Stamp::now();
    let left = server
        .time_left(&stored("minimum"))
        .expect("the minimum hold outlives the way into the queue");
    let now = Stamp::now();
    let entered = call.entered().await.at;
    let waited = entered.since(before);
    assert!(waited >= kept_for(left), "{waited:?} of {left:?}");
    let late = entered.calm_since(now).saturating_sub(left);
    assert!(late < DELAY, "{late:?} after its end");
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

/// As older versions of this library do, and other libraries.
#[tokio::test]
async fn a_release_by_plain_compare_and_delete_still_lets_waiters_in() {
    const RELEASE: &str =
        "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    let server = Server::start();
    let locks = waiting(&server.url()).await;
    let key = stored("classic");
    server.cmd(&["SET", &key, "token", "NX", "PX", "600000"]);
    let mut call = Call::begin(locks.lock("classic"));
    stand(&server, "classic", 1).await;
    assert!(server.ask::<bool>(&["EVAL", RELEASE, "1", &key, "token"]));
    soon(&mut call, Stamp::now()).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

// docs/faults.md, row 40.
#[tokio::test]
async fn waiters_survive_a_flush() {
    let server = Server::start();
    for flush in ["FLUSHALL", "FLUSHDB"] {
        all_get_in(&server, || drop(server.cmd(&[flush]))).await;
    }
    nothing_is_left(&server).await;
}

// docs/faults.md, row 40.
#[tokio::test]
async fn waiters_survive_a_server_that_comes_back_empty() {
    let server = Server::start();
    all_get_in(&server, || server.restart_empty()).await;
    nothing_is_left(&server).await;
}

/// Three processes wait, and lose their queue.
async fn all_get_in(server: &Server, event: impl FnOnce()) {
    let mut other = Other::on(&server.url());
    let holder = Call::begin(waiting(&server.url()).await.lock("all"));
    eventually("the lock to be taken", || async { server.exists(&stored("all")) }).await;
    let (second, third) = (waiting(&server.url()).await, waiting(&server.url()).await);
    other.ask("first", "all");
    stand(server, "all", 1).await;
    let calls = [Call::begin(second.lock("all")), Call::begin(third.lock("all"))];
    stand(server, "all", 3).await;
    event();
    let since = Stamp::now();
    assert!(holder.over().await.unwrap_err().is_lost());
    let (mut waits, mut in_turn) = (calls.into_iter().collect::<Vec<_>>(), vec![since]);
    let mut is_in = false;
    while !is_in || !waits.is_empty() {
        let at = eventually_some("the next to get in", || {
            let here = waits.iter().position(Call::has_entered);
            let there = !is_in && other.has("first");
            async move { here.map(Some).or(there.then_some(None)) }
        })
        .await;
        in_turn.push(Stamp::now());
        if let Some(index) = at {
            waits.remove(index).end().await.unwrap();
        } else {
            is_in = true;
            other.free("first");
            assert_eq!(other.ended("first").await.0, "ok");
        }
    }
    for pair in in_turn.windows(2) {
        let delay = pair[1].calm_since(pair[0]);
        assert!(delay < DELAY, "one came only after {delay:?}");
    }
}

// --- Servers in trouble --------------------------------------------------------------------------------------------------

// docs/faults.md, row 57.
#[tokio::test]
async fn a_server_that_has_forgotten_the_scripts_wakes_waiters_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("forgot").acquire().await.unwrap();
    let locks = waiting(&proxy.url()).await;
    let mut call = Call::begin(locks.lock("forgot"));
    stand(&server, "forgot", 1).await;
    let queue = queue("forgot");
    let is_carried_out = |command: &Command| command.reply_text().is_some_and(|text| !text.starts_with('-'));
    let known = |command: &Command| command.is("EVALSHA") && command.mentions(&queue) && is_carried_out(command);
    let told = |command: &Command| command.is("EVAL") && command.mentions(&queue) && is_carried_out(command);
    let mut mark = 0;
    for _ in 0..3 {
        // A flush that overtakes the source on its way would be undone by it.
        proxy
            .wait_after(mark, "a sign of life by the script's hash", known)
            .await;
        mark = proxy.mark();
        server.cmd(&["SCRIPT", "FLUSH"]);
        proxy.wait_after(mark, "a sign of life by the source", told).await;
    }
    server.cmd(&["SCRIPT", "FLUSH"]);
    let_in_by_word_alone(&proxy, holder, &mut call).await;
    call.end().await.unwrap();
    nothing_is_left(&server).await;
}

// docs/faults.md, row 54.
#[tokio::test]
async fn a_lock_that_is_given_back_on_a_server_without_memory_is_lost_to_nobody() {
    let server = Server::start();
    let holding = waiting(&server.url()).await;
    for fenced in [false, true] {
        // Tries again, as long as the server can take no lock.
        let manager = || {
            LockManager::builder(&server.url())
                .default_lease(LONG)
                .default_wait(PATIENCE)
                .response_timeout(PATIENCE)
                .build()
                .unwrap()
        };
        let (first, second) = (manager(), manager());
        let holder = holding.lock("full").acquire().await.unwrap();
        let begin = |locks: &LockManager| {
            let request = locks.lock("full");
            if fenced {
                Call::begin_fenced(request)
            } else {
                Call::begin(request)
            }
        };
        let before = begin(&first);
        stand(&server, "full", 1).await;
        server.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        let during = begin(&second);
        // For so long a sign of life counts.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!before.has_entered() && !during.has_entered());
        holder.release().await.unwrap();
        server.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        let freed = Stamp::now();
        let next = eventually_some("one to get in", || {
            let next = [&before, &during].into_iter().position(Call::has_entered);
            async move { next }
        })
        .await;
        assert!(Stamp::now().calm_since(freed) < DELAY);
        let (mut now, mut then) = if next == 0 { (before, during) } else { (during, before) };
        now.entered().await;
        now.end().await.unwrap();
        soon(&mut then, Stamp::now()).await;
        then.end().await.unwrap();
        nothing_is_left(&server).await;
    }
}

/// The rest of `wait` was too short for an answer, which says nothing about the server: who has the lock is known.
#[tokio::test]
async fn a_call_whose_time_is_over_while_it_joins_the_queue_is_busy() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holder = waiting(&server.url()).await.lock("joins").acquire().await.unwrap();
    let locks = patient(&proxy.url()).response_timeout(PATIENCE).build().unwrap();
    locks.check_connection().await.unwrap();
    proxy.on_each(joins("joins"), Action::Hold);
    // Long enough for the first answer, and shorter than the response time-out.
    let wait = Duration::from_secs(8);
    let busy = locks.lock("joins").wait(wait).acquire().await.unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    proxy.heal();
    eventually("its place to be gone", || async { !server.exists(&queue("joins")) }).await;
    holder.release().await.unwrap();
    nothing_is_left(&server).await;
}

// --- Servers that do not allow it ----------------------------------------------------------------------------------------

/// Users that lack something, and what it is.
const RESTRICTED: [(&str, &[&str]); 4] = [
    ("unheard", &["resetchannels"]),
    ("deaf", &["allchannels", "-subscribe", "-ssubscribe"]),
    ("mute", &["allchannels", "-publish", "-spublish"]),
    ("lone", &["resetchannels", "-@pubsub"]),
];

fn with_restricted_users() -> Server {
    let server = Server::start();
    for (user, rules) in RESTRICTED {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">secret", "~*", "+@all"];
        let sharded = server.version().is_7();
        command.extend(
            rules
                .iter()
                .filter(|rule| sharded || !rule.starts_with("-ss") && !rule.starts_with("-sp")),
        );
        server.cmd(&command);
    }
    server
}

fn url_of(server: &Server, user: &str) -> String {
    server.url().replace("redis://", &format!("redis://{user}:secret@"))
}

#[tokio::test]
async fn a_waiter_that_may_not_listen_gets_the_lock_by_asking() {
    let server = with_restricted_users();
    let holding = waiting(&server.url()).await;
    let managers = RESTRICTED.map(|(user, _)| {
        let locks = LockManager::builder(&url_of(&server, user))
            .default_lease(LONG)
            .default_wait(PATIENCE)
            .response_timeout(PATIENCE)
            .build();
        (user, locks.unwrap())
    });
    for fair in [false, true] {
        let mut begun = Vec::new();
        for (user, locks) in &managers {
            let holder = holding.lock(*user).acquire().await.unwrap();
            // Long enough for the first answer.
            let impatient = tokio::spawn(locks.lock(*user).wait(Duration::from_secs(8)).acquire());
            let request = locks.lock(*user);
            let call = Call::begin(request.fair(fair));
            begun.push((user, holder, impatient, call));
        }
        for (user, holder, impatient, mut call) in begun {
            let busy = impatient.await.unwrap().unwrap_err();
            assert!(busy.is_busy(), "{user}: {busy}");
            assert!(!call.has_entered());
            holder.release().await.unwrap();
            soon(&mut call, Stamp::now()).await;
            call.end().await.unwrap();
        }
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_holder_that_may_not_tell_gives_the_lock_back_all_the_same() {
    let server = with_restricted_users();
    let locks = waiting(&server.url()).await;
    for (user, _) in RESTRICTED {
        let holding = LockManager::builder(&url_of(&server, user))
            .default_lease(LONG)
            .response_timeout(PATIENCE)
            .build()
            .unwrap();
        let holder = holding.lock(user).acquire().await.unwrap();
        let mut call = Call::begin(locks.lock(user));
        stand(&server, user, 1).await;
        holder.release().await.unwrap();
        soon(&mut call, Stamp::now()).await;
        call.end().await.unwrap();
    }
    nothing_is_left(&server).await;
}
