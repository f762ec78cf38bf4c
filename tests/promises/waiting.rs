//! Waiting for a lock while connections fail, fall silent or deliver forged messages.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_runtime::{Backoff, LockError, LockGuard, LockManager, LockRequest, current};
use lock_tests::proxy::{Close, Hit};
use lock_tests::{Action, Command, Flow, PATIENCE, Proxy, Server, Stamp, eventually, eventually_some};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::giving_back::leave_only_this_runtime;

/// A lease that cannot end during a test.
const LONG: Duration = Duration::from_secs(120);

/// For how long a connection is silent before it is replaced, in tests about that: longer than a busy machine is.
const SILENCE: Duration = Duration::from_secs(3);

/// How soon what is promised at once, or within a second, is there on a busy machine. In vain a call waits for [`PATIENCE`].
const SOON: Duration = Duration::from_secs(25);

/// A manager that never gets a lock by trying again.
fn waiting(url: &str) -> LockManager {
    replacing(url, PATIENCE)
}

/// The same, which replaces a connection after so long a silence.
fn replacing(url: &str, silence: Duration) -> LockManager {
    let never = Duration::from_secs(1000);
    LockManager::builder(url)
        .response_timeout(silence)
        .backoff(Backoff::new(never, never))
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .build()
        .unwrap()
}

fn queue(key: &str) -> String {
    format!("dist_lock:%lock-queue:{{dist_lock:{key}}}")
}

/// Those who stand in the queue, in order.
pub(super) fn members(server: &Server, key: &str) -> Vec<String> {
    server.ask(&["ZRANGEBYSCORE", &queue(key), "1", "+inf"])
}

pub(super) async fn stand(server: &Server, key: &str, count: usize) -> Vec<String> {
    eventually_some(&format!("{count} in the queue for `{key}`"), || {
        let members = members(server, key);
        async move { (members.len() == count).then_some(members) }
    })
    .await
}

/// Whether a command asks if a lock was handed over.
fn takes(key: &'static str) -> impl Fn(&Command) -> bool {
    let others = "%lock-wake:";
    move |command| {
        command.is_script()
            && command.mentions(key)
            && !command.mentions(others)
            && matches!(
                (command.argument(2), command.arguments.len()),
                (Some("1"), 7) | (Some("2"), 8)
            )
    }
}

/// A call whose body goes on until it is told to end.
struct Call {
    entered: watch::Receiver<Option<u64>>,
    enough: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), LockError>>,
}

impl Call {
    /// With a fencing token.
    fn begin(request: LockRequest) -> Self {
        let (tell, entered) = watch::channel(None);
        let (enough, told) = oneshot::channel();
        let body = async move {
            let token = current().unwrap().fencing_token().await.unwrap().get();
            tell.send_replace(Some(token));
            told.await.unwrap();
        };
        Self {
            entered,
            enough: Some(enough),
            task: tokio::spawn(request.fencing(true).run(body)),
        }
    }

    fn has_entered(&self) -> bool {
        self.entered.borrow().is_some()
    }

    /// Waits for the body, and returns its token.
    async fn entered(&mut self) -> u64 {
        // Its `wait` may end at the same time.
        let entered = tokio::time::timeout(PATIENCE, self.entered.wait_for(Option::is_some)).await;
        let token = entered.ok().and_then(|entered| *entered.ok()?);
        token.expect("it never got the lock")
    }

    async fn end(mut self) -> Result<(), LockError> {
        self.enough.take().unwrap().send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// Whoever may read the queue and publish can send a waiter the very message that a release sends, with any token.
#[tokio::test]
async fn a_forged_message_starts_no_body_gives_no_token_and_costs_no_place() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    server.cmd(&[
        "ACL",
        "SETUSER",
        "liar",
        "on",
        "nopass",
        "~*",
        "&*",
        "+@read",
        "+publish",
        "+@connection",
    ]);
    let mut liar = server.connection().await;
    redis::cmd("AUTH")
        .arg("liar")
        .arg("")
        .query_async::<()>(&mut liar)
        .await
        .unwrap();

    let holder = waiting(&server.url()).lock("k").fencing(true).acquire().await.unwrap();
    let honest = holder.handle().fencing_token().await.unwrap().get();
    let mut first = Call::begin(waiting(&proxy.url()).lock("k").fair(true));
    let place = stand(&server, "k", 1).await;
    let mut second = Call::begin(waiting(&server.url()).lock("k").fair(true));
    let places = stand(&server, "k", 2).await;

    let [_, _, process, value] = place[0].splitn(4, ':').collect::<Vec<_>>()[..] else {
        panic!("{place:?}")
    };
    let channel = format!("dist_lock:%lock-wake:{process}");
    let forged = [format!("{}:{value}", u64::MAX), format!(":{value}")];
    eventually("the waiter to listen", || {
        let listens = server.channels().contains(&channel);
        async move { listens }
    })
    .await;
    let before = tokio::time::Instant::now();
    let mut told = 0_u32;
    while before.elapsed() < Duration::from_millis(700) {
        for message in &forged {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(&channel).arg(message);
            told += publish.query_async::<u32>(&mut liar).await.unwrap();
        }
        assert!(!first.has_entered(), "a forged message has let it in beside {holder:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    eventually("the waiter to ask", || async { proxy.count(takes("k")) > 0 }).await;
    assert!(!first.has_entered(), "a forged message has let it in beside {holder:?}");
    let asked = proxy.count(takes("k"));
    // Pauses of 20 to 250 ms between them, after the first few.
    let most = 40 + before.elapsed().as_millis() as usize / 250;
    assert!(asked <= most, "{told} forged messages cost {asked} scripts");
    assert_eq!(members(&server, "k"), places, "a forged message has cost it its place");

    holder.release().await.unwrap();
    let token = first.entered().await;
    assert!(token > honest && token < u64::MAX, "{token} after {honest}");
    assert!(!second.has_entered());
    first.end().await.unwrap();
    let next = second.entered().await;
    assert!(next > token && next < u64::MAX, "{next} after {token}");
    second.end().await.unwrap();
}

/// Whether a command begins to listen to a channel.
fn subscribes(command: &Command) -> bool {
    command.is("SUBSCRIBE")
}

/// Bounds a wait by what was promised, less the pauses of the machine.
async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let began = Stamp::now();
    // What the future itself waits for comes first.
    let ended = tokio::time::timeout(PATIENCE.max(bound) + Duration::from_secs(1), future).await;
    let took = Stamp::now().calm_since(began);
    match ended {
        Ok(ended) if took <= bound => ended,
        _ => panic!("{what}: not within {bound:?} but {took:?}"),
    }
}

/// Polls an acquisition so often and then no more, and returns whether that was before its end. With its runtime: it drives nothing else then.
async fn freeze(
    locks: LockManager,
    polls: usize,
    blocks: bool,
    mut go_on: oneshot::Receiver<()>,
) -> (bool, JoinHandle<()>) {
    let (tell, frozen) = oneshot::channel();
    let call = move || async move {
        let mut call = Box::pin(locks.lock("frozen").acquire());
        let mut left = polls;
        let got = std::future::poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            call.as_mut().poll(cx).map(Some)
        })
        .await;
        tell.send(got.is_none()).unwrap();
        if blocks {
            // No `spawn_blocking`: the runtime itself stands still.
            while go_on.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            let _ = go_on.await;
        }
        drop((call, got));
    };
    let task = if blocks {
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(call());
        })
    } else {
        tokio::spawn(call())
    };
    let frozen = within(PATIENCE, "the end of an acquisition", frozen).await.unwrap();
    (frozen, task)
}

/// At each await of an acquisition that has to wait in turn, its caller is never polled again: in a `select!` loop, or with its whole runtime.
#[tokio::test]
async fn a_caller_that_is_polled_no_more_holds_up_no_other_key_and_no_other_runtime() {
    let server = Server::start();
    let holding = waiting(&server.url());
    for blocks in [false, true] {
        for polls in 1.. {
            let locks = waiting(&server.url());
            let (other, key) = (format!("other:{blocks}:{polls}"), "frozen");
            let victims = holding.lock(key).acquire().await.unwrap();
            let others = holding.lock(&other).acquire().await.unwrap();
            let (go_on, told) = oneshot::channel();
            // It is handed the lock as soon as it waits for it, unless it is frozen before.
            let free = async {
                stand(&server, key, 1).await;
                victims.release().await.unwrap();
                std::future::pending::<()>().await;
            };
            let (frozen, victim) = tokio::select! {
                frozen = freeze(locks.clone(), polls, blocks, told) => frozen,
                () = free => unreachable!(),
            };
            let what =
                format!("a call for another key beside one that is frozen after poll {polls} (blocked: {blocks})");
            let mut call = Call::begin(locks.lock(&other));
            within(SOON, &what, async {
                stand(&server, &other, 1).await;
                others.release().await.unwrap();
                call.entered().await;
            })
            .await;
            call.end().await.unwrap();
            drop(go_on);
            victim.await.unwrap();
            server.cmd(&["DEL", &format!("dist_lock:{key}"), &queue(key)]);
            if !frozen {
                assert!(polls > 3, "it waits {polls} times only");
                break;
            }
        }
    }
}

/// Has each connection cut that listens, as soon as it is used for something else.
fn cut_listeners(proxy: &Proxy) -> Hit {
    let listening = Mutex::new(HashSet::new());
    let follows = move |command: &Command| {
        let mut listening = listening.lock().unwrap();
        if subscribes(command) {
            listening.insert(command.connection);
        }
        !subscribes(command) && listening.contains(&command.connection)
    };
    proxy.on_each(follows, Action::CloseBefore(Close::Reset))
}

/// The server allows subscribers no output buffer, and cuts each connection that listens as soon as it sends something.
#[tokio::test]
async fn connections_that_are_cut_as_soon_as_they_listen_are_made_anew_with_pauses() {
    let server = Server::start();
    let holder = waiting(&server.url()).lock("k").acquire().await.unwrap();
    server.cmd(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1 1 1"]);
    let connections = || {
        let stats: String = server.ask(&["INFO", "stats"]);
        let made = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        made.unwrap().parse::<u64>().unwrap()
    };
    let mut call = Call::begin(waiting(&server.url()).lock("k"));
    stand(&server, "k", 1).await;
    let (since, before) = (std::time::Instant::now(), connections());
    tokio::time::sleep(Duration::from_secs(2)).await;
    eventually("a few connections", || async { connections() - before >= 3 }).await;
    let made = connections() - before;
    // Pauses of 20 to 250 ms.
    let most = 60 + u64::try_from(since.elapsed().as_millis()).unwrap() / 100;
    assert!(made <= most, "{made} connections in {:?}", since.elapsed());
    server.cmd(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]);
    holder.release().await.unwrap();
    call.entered().await;
    call.end().await.unwrap();
}

/// The command connection works throughout, and the connection that would tell never does.
#[tokio::test]
async fn a_waiter_that_hears_nothing_looks_by_its_own_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let holding = waiting(&server.url());
    let cut = cut_listeners(&proxy);
    let locks = waiting(&proxy.url());
    for round in 0..2 {
        let holder = holding.lock("k").acquire().await.unwrap();
        let mut call = Call::begin(locks.lock("k"));
        stand(&server, "k", 1).await;
        cut.done_times(3 * (round + 1)).await;
        // Deleted, or handed over unheard.
        if round == 0 {
            drop(server.cmd(&["DEL", "dist_lock:k"]));
        } else {
            holder.release().await.unwrap();
        }
        within(SOON, "a free lock beside connections that are cut", call.entered()).await;
        call.end().await.unwrap();
    }
}

/// Who may not subscribe stands in the queue like the others, and is not passed over though no message reaches it.
#[tokio::test]
async fn a_process_that_may_not_subscribe_gets_its_turn() {
    let server = Server::start();
    server.cmd(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "&*", "+@all", "-subscribe"]);
    let deaf = waiting(&server.url().replace("redis://", "redis://deaf:pw@"));
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let locks = waiting(&server.url());
        busy.spawn(async move {
            loop {
                locks
                    .lock("k")
                    .run(async { tokio::time::sleep(Duration::from_millis(5)).await })
                    .await
                    .unwrap();
            }
        });
    }
    for turn in 0..5 {
        let mut call = Call::begin(deaf.lock("k"));
        within(SOON, &format!("turn {turn} without +subscribe"), call.entered()).await;
        call.end().await.unwrap();
    }
}

/// A lock is handed over for longer than a short lease, since looks are 100 to 250 ms apart.
#[tokio::test]
async fn a_short_lease_leaves_time_to_find_a_handover_that_no_message_tells() {
    let server = Server::start();
    let holder = waiting(&server.url()).lock("k").acquire().await.unwrap();
    let call = Call::begin(waiting(&server.url()).lock("k").lease(Duration::from_millis(100)));
    let members = stand(&server, "k", 1).await;
    let claim: u64 = members[0].split(':').next().unwrap().parse().unwrap();
    assert!(claim >= 500, "{claim} ms");
    call.task.abort();
    stand(&server, "k", 0).await;
    holder.release().await.unwrap();
}

/// The answer to the question that takes a lock is lost, and asked again the server refuses.
#[tokio::test]
async fn a_lock_that_was_handed_over_is_given_back_when_it_cannot_be_taken() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (ours, theirs) = (waiting(&proxy.url()), waiting(&server.url()));
    // From here on the server knows the scripts.
    let holder = theirs.lock("k").acquire().await.unwrap();
    let next = tokio::spawn(ours.lock("k").acquire());
    stand(&server, "k", 1).await;
    holder.release().await.unwrap();
    let holder = next.await.unwrap().unwrap();
    holder.release().await.unwrap();

    let holder = theirs.lock("k").acquire().await.unwrap();
    let next = tokio::spawn(ours.lock("k").acquire());
    stand(&server, "k", 1).await;
    let other = tokio::spawn(waiting(&server.url()).lock("k").acquire());
    stand(&server, "k", 2).await;
    let lost = proxy.on_next(takes("k"), Action::CloseAfter(Close::Reset));
    let refused = proxy.on_each(
        takes("k"),
        Action::error("LOADING Redis is loading the dataset in memory"),
    );
    holder.release().await.unwrap();
    lost.done().await;
    refused.done().await;
    let other = within(SOON, "a lock that its waiter could not take", other).await;
    other.unwrap().unwrap().release().await.unwrap();
    next.abort();
}

/// A client of another kind releases, tells no waiter, and takes the lock again after a moment.
#[tokio::test]
async fn a_holder_of_another_kind_that_comes_back_at_once_does_not_starve_waiters() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut foreign = server.connection().await;
    let (count, mut counted) = watch::channel(0_u32);
    let stranger = tokio::spawn(async move {
        loop {
            let mut set = redis::cmd("SET");
            set.arg("dist_lock:k")
                .arg("another program")
                .arg("NX")
                .arg("PX")
                .arg(30_000);
            if set.query_async::<Option<String>>(&mut foreign).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
            count.send_modify(|count| *count += 1);
            tokio::time::sleep(Duration::from_millis(50)).await;
            redis::cmd("DEL")
                .arg("dist_lock:k")
                .query_async::<()>(&mut foreign)
                .await
                .unwrap();
            // As long as an interpreter takes between two statements.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let locks = waiting(&proxy.url());
    let began = std::time::Instant::now();
    let turns = async {
        for _ in 0..10 {
            // Each call finds it at work.
            counted.mark_unchanged();
            counted.changed().await.unwrap();
            let mut call = Call::begin(locks.lock("k"));
            call.entered().await;
            call.end().await.unwrap();
        }
    };
    // One that looks every 250 ms finds the lock free once in six seconds or so.
    within(SOON, "10 turns beside another kind of client", turns).await;
    let questions = proxy.count(|command| command.is_script() && command.mentions("%lock-queue:"));
    let questions = f64::from(u32::try_from(questions).unwrap()) / began.elapsed().as_secs_f64();
    assert!(questions < 500.0, "{questions} looks a second");
    stranger.abort();
}

/// A manager that replaces no connection while a call of these tests waits.
fn patient_with_connections(url: &str) -> LockManager {
    LockManager::builder(url).response_timeout(PATIENCE).build().unwrap()
}

/// Returns a call that a first poll sends, however many others this task has polled.
fn begun(locks: &LockManager, number: u32) -> Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>> {
    Box::pin(tokio::task::unconstrained(locks.lock(format!("{number}")).acquire()))
}

/// Hundreds of calls for free keys are begun and then never polled again, as by a consumer of `buffer_unordered` that waits for a lock in its
/// loop: first so many that all of them are sent, then more that wait to be sent. A call for another free key gets it.
#[tokio::test]
async fn calls_that_are_polled_no_more_take_no_other_calls_place_on_the_connection() {
    const FROZEN: u32 = 600;
    let server = Server::start();
    let locks = patient_with_connections(&server.url());
    locks.check_connection().await.unwrap();
    locks.lock("first").run(async {}).await.unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut frozen = Vec::new();
    for number in 0..FROZEN {
        let mut call = begun(&locks, number);
        assert!(call.as_mut().poll(&mut context).is_pending());
        frozen.push(call);
    }
    for wait in [SOON, Duration::ZERO] {
        let got = locks.lock("free").wait(wait).acquire().await;
        let guard = got.unwrap_or_else(|error| panic!("beside {FROZEN} calls that are polled no more: {error}"));
        guard.release().await.unwrap();
    }
    // So many have left, and their locks are given back.
    drop(frozen);
    eventually("their releases", || async {
        server.ask::<Vec<String>>(&["KEYS", "dist_lock:[0-9]*"]).is_empty()
    })
    .await;
}

/// Calls that wait to be sent are told of room one after the other. Those that do not use it keep no other call from it.
#[tokio::test]
async fn calls_that_wait_to_be_sent_and_are_polled_no_more_are_passed_over() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let locks = patient_with_connections(&proxy.url());
    locks.lock("first").run(async {}).await.unwrap();
    proxy.replies(Flow::Delay(Duration::from_millis(100)));
    let mut context = Context::from_waker(Waker::noop());
    let frozen: Vec<_> = (0..2_000)
        .map(|number| {
            let mut call = begun(&locks, number);
            assert!(call.as_mut().poll(&mut context).is_pending());
            call
        })
        .collect();
    let got = locks.lock("free").wait(SOON).acquire().await;
    let guard = got.unwrap_or_else(|error| panic!("behind 2,000 calls that are polled no more: {error}"));
    proxy.replies(Flow::Pass);
    guard.release().await.unwrap();
    drop(frozen);
}

/// Calls give up while only the connection of their runtime works, be it the one on which they have asked or the next one.
#[tokio::test]
async fn a_call_that_gives_up_leaves_no_place_though_the_lock_thread_reaches_nothing() {
    for is_replaced in [false, true] {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let holder = waiting(&server.url()).lock("k").acquire().await.unwrap();
        let locks = replacing(&proxy.url(), SILENCE);
        let call = tokio::spawn(locks.lock("k").wait(Duration::from_secs(6)).run(async {}));
        stand(&server, "k", 1).await;
        // Keeps the queue from expiring.
        let mut other = Call::begin(waiting(&server.url()).lock("k").wait(LONG));
        let places = stand(&server, "k", 2).await;
        if is_replaced {
            proxy.cut(Close::Reset);
        }
        leave_only_this_runtime(&proxy, &locks).await;
        let refused = call.await.unwrap();
        assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
        assert_eq!(stand(&server, "k", 1).await, places[1..]);
        holder.release().await.unwrap();
        other.entered().await;
        other.end().await.unwrap();
    }
}
