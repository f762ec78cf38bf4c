//! Calls through the fault proxy to a real server, dropped after each of their polls.
//!
//! The lease is far longer than the harness's patience, so that no expiry can hide a lock that was left behind.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use lock_runtime::{Backoff, LockError, LockManager, distributed_lock};
use lock_tests::proxy::{Close, Hit};
use lock_tests::{Action, Command, PATIENCE, Proxy, Server, Stamp, eventually, eventually_some};

use crate::dropping::{count_polls, drop_after};

const LEASE: Duration = Duration::from_secs(60);
const LEASE_MILLIS: &str = "60000";
const FOREIGN: &str = "another holder";
const FOREIGN_WRITER: &str = "w:0123456789abcdef0123456789abcdef:host:1:foreign";

/// The call that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The guard, if there is one, is dropped as well.
    Acquire,
    Fenced,
    /// With a body of a few polls, and the release.
    Run,
    /// An annotated function, with the same.
    Annotated,
    /// The same with a lock that others may hold as well.
    Read,
    /// The same with two locks, of which the second is the one that the fault is about.
    All,
}

impl Call {
    fn keys(self, key: &str) -> Vec<String> {
        match self {
            Self::All => vec![first_of_all(key), key.to_owned()],
            _ => vec![key.to_owned()],
        }
    }

    /// The key of the queue that it stands in.
    fn queue(self, key: &str) -> String {
        match self {
            Self::Read => format!("%lock-shared:{{{key}}}"),
            _ => format!("%lock-queue:{{{key}}}"),
        }
    }

    /// Gives the lock to somebody whom nobody may be in beside.
    fn make_busy(self, server: &Server, key: &str) {
        if self == Self::Read {
            // Far away.
            server.cmd(&["ZADD", key, "9e12", FOREIGN_WRITER, "1", "#w"]);
        } else {
            server.cmd(&["SET", key, FOREIGN, "PX", LEASE_MILLIS]);
        }
    }

    fn is_still_busy(self, server: &Server, key: &str) -> bool {
        if self == Self::Read {
            server.ask::<Vec<String>>(&["ZRANGE", key, "0", "-1"]) == ["#w", FOREIGN_WRITER]
        } else {
            server.value(key).as_deref() == Some(FOREIGN)
        }
    }
}

fn first_of_all(key: &str) -> String {
    format!("a-{key}")
}

/// What becomes of the command that is meant.
#[derive(Clone, Debug)]
enum Fault {
    None,
    /// The key is another holder's.
    Busy,
    /// It is another holder's, who gives it back as soon as the call stands in the queue.
    Handed,
    Does(Action),
}

/// Which commands the fault is done to: all of them until the call is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Acquires,
    /// The first only: the background's must get through.
    FirstRelease,
}

#[derive(Clone, Debug)]
struct Case {
    call: Call,
    fault: Fault,
    to: To,
    /// Whether the connection is there beforehand.
    warm: bool,
}

/// Whether a command takes `key`, or asks for a place in its queue. Renewals look the same but are not due for 40 s.
fn takes(command: &Command, key: &str) -> bool {
    command.mentions(key)
        && command
            .arguments
            .iter()
            .any(|argument| argument == LEASE_MILLIS.as_bytes())
}

/// Whether a command gives `key` back, by whoever has not stood in the queue.
fn gives_back(command: &Command, key: &str) -> bool {
    command.is_script()
        && command.mentions(key)
        && command.mentions("%lock-wake:")
        // With nothing but the value behind the channels, or with the time to keep the key and no member.
        && match command.arguments.as_slice() {
            [_, _, _, _, _, _, _value] => true,
            [.., keep, member, _] => keep == b"0" && member.is_empty(),
            _ => false,
        }
}

#[distributed_lock(key = "<key:raw>", manager = manager)]
async fn annotated(manager: &LockManager, key: &str) -> Result<(), LockError> {
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn call(manager: LockManager, call: Call, key: String) -> Result<(), LockError> {
    let request = manager.lock(&key).label("cancelled");
    match call {
        Call::Acquire => request.acquire().await.map(drop),
        Call::Fenced => request.fencing(true).acquire().await.map(drop),
        Call::Annotated => annotated(&manager, &key).await,
        Call::Run => request.run(two_polls()).await,
        Call::Read => request.read().run(two_polls()).await,
        Call::All => manager.lock_all(call.keys(&key)).run(two_polls()).await,
    }
}

async fn two_polls() {
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
}

/// One dropped call with a proxy and a manager of its own.
struct Scene<'a> {
    server: &'a Server,
    proxy: Proxy,
    manager: LockManager,
    key: String,
    hit: Option<Hit>,
}

impl<'a> Scene<'a> {
    async fn set(server: &'a Server, case: &Case, nth: usize) -> Self {
        let proxy = Proxy::to(server);
        // Healthy calls must not meet a time-out on a busy machine, and those that meet one must not take long.
        let hurried = !matches!(case.fault, Fault::None | Fault::Handed);
        let (wait, response) = if hurried { (2_000, 1_000) } else { (20_000, 10_000) };
        let manager = LockManager::builder(&proxy.url())
            .prefix("")
            .default_lease(LEASE)
            .default_wait(Duration::from_millis(wait))
            .response_timeout(Duration::from_millis(response))
            .backoff(Backoff::new(Duration::from_millis(5), Duration::from_millis(50)))
            .build()
            .unwrap();
        if case.warm {
            eventually("the manager to connect", || async {
                manager.check_connection().await.is_ok()
            })
            .await;
        }
        let key = format!("key-{nth}-{}", proxy.addr().port());
        let mut hit = None;
        match (&case.fault, case.to) {
            (Fault::None, _) => {}
            (Fault::Busy, _) => case.call.make_busy(server, &key),
            (Fault::Handed, _) => hand_over_later(server, case.call, &key).await,
            (Fault::Does(action), To::Acquires) => {
                let key = key.clone();
                hit = Some(proxy.on_each(move |command| takes(command, &key), action.clone()));
            }
            (Fault::Does(action), To::FirstRelease) => {
                let key = key.clone();
                hit = Some(proxy.on_next(move |command| gives_back(command, &key), action.clone()));
            }
        }
        Self {
            server,
            proxy,
            manager,
            key,
            hit,
        }
    }

    /// Returns the proxy, which the dropped manager still needs for what it owes to the store.
    async fn run(self, case: Case, polls: usize) -> Proxy {
        drop_after(polls, call(self.manager.clone(), case.call, self.key.clone())).await;
        let dropped = Stamp::now();
        // What is held now comes late; the silent connections stay silent.
        self.proxy.heal();
        if let Fault::Busy = case.fault {
            assert!(
                case.call.is_still_busy(self.server, &self.key),
                "{case:?} after poll {polls}"
            );
            self.server.cmd(&["DEL", &self.key]);
        }
        if let Fault::Does(Action::Hold | Action::HoldThenClose(_)) = case.fault {
            eventually("the held requests to be carried out", || async {
                let mut late = self
                    .proxy
                    .commands()
                    .into_iter()
                    .filter(|command| takes(command, &self.key));
                late.all(|command| command.reply.is_some())
            })
            .await;
        }
        // Another client can acquire, and what goes on in the background leaves its lock alone. It is tried again and again: a
        // request that was still in this process when the call was dropped may take the key for a moment.
        let keys = case.call.keys(&self.key);
        for key in &keys {
            eventually(
                &format!("another client to get the key, {case:?} dropped after poll {polls}"),
                || async {
                    let next: Option<String> = self.server.ask(&["SET", key, "next", "NX", "PX", LEASE_MILLIS]);
                    next.is_some()
                },
            )
            .await;
        }
        let lasted = Stamp::now().calm_since(dropped);
        assert!(
            lasted < PATIENCE / 2,
            "{case:?} after poll {polls}: the key lasted {lasted:?}"
        );
        eventually(
            &format!("the queue to be gone, {case:?} dropped after poll {polls}"),
            || async { keys.iter().all(|key| !self.server.exists(&case.call.queue(key))) },
        )
        .await;
        self.nothing_is_watched(&case, polls).await;
        for key in &keys {
            assert_eq!(
                self.server.value(key).as_deref(),
                Some("next"),
                "{case:?} after poll {polls}"
            );
            // A lock that is no lock would be asked for until the lease is over.
            self.server.cmd(&["DEL", key]);
        }
        self.proxy
    }

    /// A lock that the watchdog still watched would be checked before a new one is, since its key has changed and it is the older
    /// one, and would be lost to the other client. A check that was on its way when the call was dropped may arrive, but nobody
    /// looks at its answer.
    async fn nothing_is_watched(&self, case: &Case, polls: usize) {
        let probed = format!("{}-probe", self.key);
        // Its manager may be a hurried one, which a busy machine answers too late.
        let probe = eventually_some("a new lock", || async {
            self.manager.lock(&probed).wait(PATIENCE).acquire().await.ok()
        })
        .await;
        eventually("the new lock to be checked", || async {
            let commands = self.proxy.commands();
            let watches = |connection| {
                commands
                    .iter()
                    .any(|command| command.is("CLIENT TRACKING") && command.connection == connection)
            };
            commands.iter().any(|command| {
                command.reply.is_some()
                    && command.is_script()
                    && command.arguments.iter().any(|argument| argument == probed.as_bytes())
                    && watches(command.connection)
            })
        })
        .await;
        let stats = self.manager.stats();
        let lost = stats.lost_expired + stats.lost_taken + stats.lost_deleted + stats.lost_unreachable;
        assert_eq!(lost, 0, "{case:?} after poll {polls}: {stats:?}");
        // Dropped, it would be released in the background: tried again and again for its lease, since the proxy goes.
        drop(probe.release().await);
        eventually("its release", || async { !self.server.exists(&probed) }).await;
    }
}

/// Takes the lock, and gives it back as soon as somebody waits for it; or after a while, since nobody may come.
async fn hand_over_later(server: &Server, call: Call, key: &str) {
    let manager = LockManager::builder(&server.url())
        .prefix("")
        .default_lease(LEASE)
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    let request = manager.lock(key);
    let request = if call == Call::Read { request.write() } else { request };
    let guard = request.acquire().await.unwrap();
    let (key, mut connection) = (call.queue(key), server.connection().await);
    tokio::spawn(async move {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            let waiting: usize = redis::cmd("EXISTS")
                .arg(&key)
                .query_async(&mut connection)
                .await
                .unwrap();
            if waiting > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        guard.release().await.unwrap();
    });
}

/// Counts the polls of an undisturbed end, then drops the same call after each of them, eight at once. In the end the managers,
/// which are dropped as well, have nothing left to do, and so no connection.
async fn drop_at_every_await(server: &Server, case: Case) {
    let scene = Scene::set(server, &case, 0).await;
    let polls = count_polls(call(scene.manager.clone(), case.call, scene.key.clone())).await;
    // Without a connection beforehand there may be none in time to meet it on.
    let met = scene.hit.as_ref().is_none_or(|hit| hit.times() > 0);
    assert!(met || !case.warm, "{case:?} meets no fault");
    scene.proxy.heal();
    // Without its proxy, a manager that owes a release would connect in vain again and again, for the lease or longer.
    let proxies = RefCell::new(Vec::new());
    // The number is not the same each time: it depends on what is ready when.
    let most = (polls + 3).min(24);
    let scenes: Vec<_> = (0..=most).collect();
    for scenes in scenes.chunks(8) {
        let mut ended = Vec::new();
        for polls in scenes {
            // One after the other: if all connected at once, a busy machine could answer none of them in time.
            let scene = Scene::set(server, &case, *polls).await;
            let (case, proxies) = (case.clone(), &proxies);
            ended.push(async move {
                let proxy = scene.run(case, *polls).await;
                proxies.borrow_mut().push(proxy);
            });
        }
        join_all(ended).await;
    }
    eventually(
        &format!("the dropped managers to close their connections, {case:?}"),
        || async { proxies.borrow().iter().all(|proxy| proxy.connections() == 0) },
    )
    .await;
}

/// Runs futures that borrow side by side.
async fn join_all<F: Future>(futures: Vec<F>) {
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut running {
            if slot
                .as_mut()
                .is_some_and(|future| future.as_mut().poll(context).is_ready())
            {
                *slot = None;
            }
        }
        if running.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// A server that knows the scripts: one that it does not know is not carried out at once, and a fault would hit the question.
async fn warm_server() -> Server {
    let server = Server::start();
    let manager = LockManager::builder(&server.url())
        .response_timeout(PATIENCE)
        .build()
        .unwrap();
    let requests = [
        manager.lock("k"),
        manager.lock("k").fencing(true),
        manager.lock("k").read(),
        manager.lock_all(["k", "l"]),
    ];
    for request in requests {
        request.run(async {}).await.unwrap();
    }
    server
}

async fn acquiring(fault: Fault) {
    let server = warm_server().await;
    let case = |call, warm| Case {
        call,
        fault: fault.clone(),
        to: To::Acquires,
        warm,
    };
    let mut cases = vec![
        case(Call::Acquire, true),
        case(Call::Acquire, false),
        case(Call::Fenced, true),
        case(Call::All, true),
    ];
    // What they send goes the same way as one of those above, so that a fault on the way shows nothing new.
    if !matches!(fault, Fault::Does(_)) {
        cases.extend([
            case(Call::Run, true),
            case(Call::Annotated, true),
            case(Call::Read, true),
        ]);
    }
    join_all(
        cases
            .into_iter()
            .map(|case| drop_at_every_await(&server, case))
            .collect(),
    )
    .await;
}

async fn releasing(fault: Fault) {
    let server = warm_server().await;
    let case = |call| Case {
        call,
        fault: fault.clone(),
        to: To::FirstRelease,
        warm: true,
    };
    let cases = [case(Call::Annotated), case(Call::Read), case(Call::All)];
    join_all(
        cases
            .into_iter()
            .map(|case| drop_at_every_await(&server, case))
            .collect(),
    )
    .await;
}

macro_rules! dropped_at_every_await {
    ($when:ident: $($name:ident: $fault:expr),* $(,)?) => {
        mod $when {
            use super::*;

            $(
                #[tokio::test]
                async fn $name() {
                    super::$when($fault).await;
                }
            )*
        }
    };
}

dropped_at_every_await! { acquiring:
    when_it_is_granted: Fault::None,
    when_it_is_busy: Fault::Busy,
    when_it_is_handed_over: Fault::Handed,
    when_the_server_refuses_for_now: Fault::Does(Action::error("OOM command not allowed when used memory > 'maxmemory'.")),
    when_the_server_refuses_for_good: Fault::Does(Action::error("NOPERM this user has no permissions to run it")),
    when_the_request_never_arrives: Fault::Does(Action::LoseRequest),
    when_the_request_arrives_late: Fault::Does(Action::Hold),
    when_the_request_arrives_after_its_connection_was_closed: Fault::Does(Action::HoldThenClose(Close::Reset)),
    when_the_connection_is_cut_before_it_is_applied: Fault::Does(Action::CloseBefore(Close::Fin)),
    when_the_connection_is_cut_after_it_was_applied: Fault::Does(Action::CloseAfter(Close::Reset)),
    when_the_request_is_doubled: Fault::Does(Action::Duplicate),
    when_the_reply_never_arrives: Fault::Does(Action::LoseReply),
    when_the_reply_arrives_late: Fault::Does(Action::HoldReply),
    when_the_reply_is_slow: Fault::Does(Action::DelayReply(Duration::from_millis(30))),
    when_the_reply_is_an_error_after_it_was_applied: Fault::Does(Action::AnswerInstead(b"?\r\n".to_vec())),
}

dropped_at_every_await! { releasing:
    when_it_is_done: Fault::None,
    when_the_server_refuses_for_now: Fault::Does(Action::error("BUSY Redis is busy running a script.")),
    when_the_request_never_arrives: Fault::Does(Action::LoseRequest),
    when_the_request_arrives_late: Fault::Does(Action::Hold),
    when_the_request_arrives_after_its_connection_was_closed: Fault::Does(Action::HoldThenClose(Close::Reset)),
    when_the_connection_is_cut_before_it_is_applied: Fault::Does(Action::CloseBefore(Close::Reset)),
    when_the_connection_is_cut_after_it_was_applied: Fault::Does(Action::CloseAfter(Close::Reset)),
    when_the_reply_never_arrives: Fault::Does(Action::LoseReply),
    when_the_reply_arrives_late: Fault::Does(Action::HoldReply),
}
