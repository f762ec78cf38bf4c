//! The events and spans that a lock logs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use lock_runtime::store::{
    AcquireRequest, Attempt, Fence, HolderValue, LockStore, Ownership, ReleaseRequest, RenewRequest, StoreError,
    StoreFuture,
};
use lock_runtime::{LockError, LockManager, current};
use lock_tests::{PATIENCE, Server, eventually, lock_child};
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::stage::{JumpingClock, LEASE, LONG, connected, hurried, stored};

type Fields = BTreeMap<&'static str, String>;

/// The fields of every lock's span, in the order of their making.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(Id, Fields)>>>);

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "distributed_lock" {
            let mut fields = Fields::new();
            attributes.record(&mut Into(&mut fields));
            self.0.lock().unwrap().push((id.clone(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        // The last one: numbers of closed spans are used again.
        if let Some((_, fields)) = self.0.lock().unwrap().iter_mut().rev().find(|(other, _)| other == id) {
            values.record(&mut Into(fields));
        }
    }
}

impl Spans {
    fn last(&self) -> Fields {
        self.0.lock().unwrap().last().expect("a span").1.clone()
    }
}

#[tokio::test]
async fn the_span_of_a_call_tells_key_wait_attempts_holder_fence_and_outcome() {
    let server = Server::start();
    let locks = connected(&server.url()).await;
    let spans = Spans::default();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));

    let fence = locks
        .lock("told")
        .lease(LONG)
        .fencing(true)
        .run(async { current().unwrap().fencing_token().await.unwrap().get() })
        .await
        .unwrap();
    let told = spans.last();
    assert_eq!(told["key"], "told");
    // More than one where the lock was taken back from a thread that stood still.
    assert!(told["attempts"].parse::<u32>().unwrap() >= 1, "{told:?}");
    assert_eq!(told["outcome"], "ok");
    assert_eq!(told["fence"], fence.to_string());
    assert!(
        told.contains_key("template") && told.contains_key("wait") && !told.contains_key("holder"),
        "{told:?}"
    );

    // A fence that is taken later is told as well.
    let fence = locks
        .lock("later")
        .lease(LONG)
        .run(async { current().unwrap().fencing_token().await.unwrap().get() })
        .await
        .unwrap();
    assert_eq!(spans.last()["fence"], fence.to_string());

    // A busy lock: who holds it, and how often it was asked for.
    let guard = locks
        .lock("held")
        .lease(LONG)
        .label("the-owner")
        .acquire()
        .await
        .unwrap();
    let other = connected(&server.url()).await;
    let busy = other.lock("held").wait(Duration::from_secs(4)).acquire().await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    let told = spans.last();
    assert_eq!(told["outcome"], "busy");
    assert!(
        told["holder"].contains("the-owner") && told["holder"].contains(&std::process::id().to_string()),
        "{told:?}"
    );
    assert!(told["attempts"].parse::<u32>().unwrap() > 1, "{told:?}");
    let value = server.value(&stored("held")).unwrap();
    assert!(
        told.values().all(|text| !text.contains(&value[..32])),
        "the log gives the token away: {told:?}"
    );
    guard.release().await.unwrap();
    let held = spans
        .0
        .lock()
        .unwrap()
        .iter()
        .rev()
        .find(|(_, fields)| fields["key"] == "held" && !fields.contains_key("holder"))
        .unwrap()
        .1
        .clone();
    assert_eq!(held["outcome"], "ok");

    // Any other end, by its name.
    let lost = locks.lock("lost").lease(LONG).run(async {
        server.cmd(&["DEL", &stored("lost")]);
        std::future::pending::<()>().await;
    });
    assert!(
        tokio::time::timeout(PATIENCE, lost)
            .await
            .unwrap()
            .is_err_and(|error| error.is_lost())
    );
    assert_eq!(spans.last()["outcome"], "lost");
    server.cmd(&["HSET", &stored("typed"), "field", "value"]);
    assert!(matches!(
        locks.lock("typed").acquire().await,
        Err(LockError::Store { .. })
    ));
    assert_eq!(spans.last()["outcome"], "store");
}

#[tokio::test]
async fn a_normal_call_logs_nothing_above_debug() {
    let server = Server::start();
    let mut child = lock_child!("log", server.url()).spawn();
    let logged = child.line("logged").await;
    let [quiet, loud] = logged.words()[..] else {
        panic!("{logged:?}")
    };
    assert_eq!(loud, "0", "{}", child.errors());
    // Something was there to be counted.
    assert!(quiet.parse::<u32>().unwrap() > 0);
}

/// The events of this process at INFO and above, on whichever thread.
static LOG: Mutex<Vec<(Level, Fields)>> = Mutex::new(Vec::new());

struct Log;

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Into(&mut fields));
        LOG.lock().unwrap().push((*event.metadata().level(), fields));
    }
}

/// Collects what is logged from now on.
fn collect() {
    static COLLECTS: Once = Once::new();
    COLLECTS.call_once(|| {
        let log = tracing_subscriber::registry().with(Log.with_filter(LevelFilter::INFO));
        tracing::subscriber::set_global_default(log).unwrap();
    });
}

/// Returns the events with this value of a field.
fn logged(field: &str, value: &str) -> Vec<(Level, Fields)> {
    let log = LOG.lock().unwrap();
    let with = log
        .iter()
        .filter(|(_, fields)| fields.get(field).is_some_and(|text| text == value));
    with.cloned().collect()
}

#[tokio::test]
async fn a_server_that_refuses_the_password_is_told_once_and_when_it_is_over() {
    collect();
    let server = Server::builder().password("first").start();
    let address = server.addr().to_string();
    let locks = connected(&server.url()).await;
    let guard = locks.lock("login").lease(LONG).acquire().await.unwrap();
    server.cmd(&["CONFIG", "SET", "requirepass", "second"]);
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    let refusals = || {
        let refused =
            |(level, fields): &(Level, Fields)| *level == Level::WARN && fields["error"].contains("WRONGPASS");
        logged("address", &address)
            .into_iter()
            .filter(refused)
            .collect::<Vec<_>>()
    };
    eventually("the refusal to be told", || async { !refusals().is_empty() }).await;
    for _ in 0..3 {
        let refused = locks.lock("another").acquire().await;
        assert!(matches!(refused, Err(LockError::Store { .. })), "{refused:?}");
    }
    let told = refusals();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1["locks"], "1", "{told:?}");
    assert!(
        !told[0].1["error"].contains("first"),
        "the log gives the password away: {told:?}"
    );

    server.cmd(&["CONFIG", "SET", "requirepass", "first"]);
    let over = || {
        logged("address", &address)
            .into_iter()
            .filter(|(level, _)| *level == Level::INFO)
            .count()
    };
    eventually("the end to be told", || async { over() > 0 }).await;
    guard.release().await.unwrap();
    assert_eq!((over(), refusals().len()), (1, 1));
}

/// A store that may refuse to renew locks, and not answer a release.
#[derive(Debug, Default)]
struct NoRenewals {
    refuses: AtomicBool,
    /// Refuses for another reason.
    refuses_otherwise: AtomicBool,
    releases_in_vain: AtomicBool,
}

impl LockStore for NoRenewals {
    fn acquire<'a>(&'a self, _: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(ready(Ok(Attempt::Granted { fence: None })))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(ready(if self.refuses_otherwise.load(Ordering::SeqCst) {
            Err(StoreError::permanent("one of two: NOREPLICAS Not enough replicas"))
        } else if self.refuses.load(Ordering::SeqCst) {
            Err(StoreError::permanent("NOPERM"))
        } else {
            Ok(vec![Ownership::Owned; requests.len()])
        }))
    }

    fn release<'a>(&'a self, _: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(ready(if self.releases_in_vain.load(Ordering::SeqCst) {
            Err(StoreError::unknown("no answer"))
        } else {
            Ok(Ownership::Owned)
        }))
    }

    fn fence<'a>(&'a self, _: &'a str, _: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(ready(Err(StoreError::permanent("no tokens"))))
    }
}

#[tokio::test]
async fn renewals_that_the_store_refuses_are_told_once_and_when_they_are_allowed() {
    collect();
    let store = Arc::new(NoRenewals::default());
    let locks = LockManager::builder("no-renewals")
        .store(Arc::<NoRenewals>::clone(&store))
        .build()
        .unwrap();
    let levels = || -> Vec<Level> { logged("store", "no-renewals").iter().map(|(level, _)| *level).collect() };
    store.refuses.store(true, Ordering::SeqCst);
    let keys = ["first-refused", "second-refused"];
    let [first, second] = keys.map(|key| locks.lock(key).lease(LEASE).run(std::future::pending::<()>()));
    let (first, second) = tokio::join!(first, second);
    assert!(
        [first, second]
            .into_iter()
            .all(|lost| lost.is_err_and(|error| error.is_lost()))
    );
    // A call ends before its loss is logged.
    eventually("both losses to be told", || async {
        keys.iter().all(|key| !logged("key", key).is_empty())
    })
    .await;
    for key in keys {
        let told = logged("key", key);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].1["reason"], "unreachable");
    }
    assert_eq!(levels(), [Level::WARN]);
    store.refuses.store(false, Ordering::SeqCst);
    let held = locks.lock("renewed").lease(LEASE * 3 / 2).acquire().await.unwrap();
    eventually("a renewal", || async { held.handle().renewals() > 0 }).await;
    assert_eq!(levels(), [Level::WARN, Level::INFO]);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_the_moment_is_told_before_locks_are_lost() {
    collect();
    let server = Server::start();
    if !server.version().is_7() {
        return; // 6.2 carries scripts out all the same.
    }
    let url = format!("{}?prefix=refuses:", server.url());
    let locks = connected(&url).await;
    let refusals = || {
        let is_refusal =
            |(level, fields): &(Level, Fields)| *level == Level::WARN && fields["error"].contains("NOREPLICAS");
        let all = logged("store", &url).into_iter();
        all.filter(is_refusal).collect::<Vec<_>>()
    };
    let lost = locks.lock("no-replicas").lease(LEASE).run(async {
        server.cmd(&["CONFIG", "SET", "min-replicas-to-write", "5"]);
        eventually("the refusal to be told", || async { !refusals().is_empty() }).await;
        assert!(logged("key", "no-replicas").is_empty(), "it is lost already");
        std::future::pending::<()>().await;
    });
    let lost = lost.await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    let told = refusals();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1["locks"], "1");
    server.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let held = locks.lock("renewed-again").lease(LEASE).acquire().await.unwrap();
    eventually("a renewal", || async { held.handle().renewals() > 0 }).await;
    let levels = logged("store", &url).into_iter().map(|(level, _)| level);
    assert_eq!(levels.collect::<Vec<_>>(), [Level::WARN, Level::INFO]);
}

#[tokio::test]
async fn a_refusal_after_an_outage_that_no_renewal_has_ended_is_told_again() {
    collect();
    let store = Arc::new(NoRenewals::default());
    store.refuses.store(true, Ordering::SeqCst);
    let clock = JumpingClock::default();
    let builder = LockManager::builder("refuses-twice").clock(clock.clone());
    let locks = builder.store(store).build().unwrap();
    for outage in 1..=2 {
        let held = locks.lock("short").lease(LONG).acquire().await.unwrap();
        clock.until_renewal();
        let told = || logged("store", "refuses-twice").len();
        eventually("the refusal to be told", || async { told() == outage }).await;
        held.release().await.unwrap();
        clock.jump(LONG);
    }
}

#[tokio::test]
async fn each_cause_for_which_renewals_are_refused_in_one_outage_is_told_once() {
    collect();
    let store = Arc::new(NoRenewals::default());
    let clock = JumpingClock::default();
    let builder = LockManager::builder("refuses-otherwise").clock(clock.clone());
    let locks = builder.store(Arc::<NoRenewals>::clone(&store)).build().unwrap();
    let held = locks.lock("refused").lease(LONG).acquire().await.unwrap();
    store.refuses.store(true, Ordering::SeqCst);
    clock.until_renewal();
    for (is_otherwise, told) in [(false, 1), (true, 2), (false, 2)] {
        store.refuses_otherwise.store(is_otherwise, Ordering::SeqCst);
        let failed = locks.stats().renewal_failures;
        eventually("two refusals", || async { locks.stats().renewal_failures > failed + 1 }).await;
        let all = logged("store", "refuses-otherwise");
        assert_eq!(all.len(), told, "{all:?}");
    }
    assert!(logged("store", "refuses-otherwise")[1].1["error"].contains("NOREPLICAS"));
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_is_not_confirmed_is_told_without_doubt_of_the_calls_work() {
    collect();
    let store = Arc::new(NoRenewals::default());
    store.releases_in_vain.store(true, Ordering::SeqCst);
    let builder = LockManager::builder("releases-in-vain").store(Arc::<NoRenewals>::clone(&store));
    let locks = builder.build().unwrap();
    let done = locks.lock("unconfirmed").lease(LONG).run(async { 7 }).await;
    assert_eq!(done.unwrap(), 7);
    store.releases_in_vain.store(false, Ordering::SeqCst);
    let told = logged("key", "unconfirmed");
    assert_eq!((told.len(), told[0].0), (1, Level::WARN), "{told:?}");
    assert_eq!(told[0].1["error"], "no answer; check the store and the network");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_told_with_its_address() {
    collect();
    let server = Server::start();
    let address = server.addr().to_string();
    let _locks = hurried(&server.url()).await;
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    let is_told = |(level, fields): &(Level, Fields)| {
        *level == Level::INFO && fields.get("role").is_some_and(|role| role == "replica")
    };
    eventually("the role to be told", || async {
        logged("address", &address).iter().any(is_told)
    })
    .await;
}
