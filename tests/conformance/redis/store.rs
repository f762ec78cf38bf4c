//! Promises of the Redis store beyond those of every store: wire format, keys of other clients,
//! scripts that the server forgot, reports of losses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{Attempt, Effect, HolderValue, Lane, LockStore, LossHint, Ownership, StoreError};
use lock_tests::proxy::Close;
use lock_tests::{Action, PATIENT, Proxy, eventually};

use crate::place::{Ask, Client, GRANTED, LONG, OnServer, Place, is_about};

pub(crate) const FENCED: Ask = Ask {
    lease: LONG,
    fence: true,
    tell_remaining: true,
    fair: false,
};

#[tokio::test]
async fn a_lock_is_a_string_with_an_expiry_and_nothing_else() {
    let place = OnServer::start();
    let a = place.client("0123:host:1:f");
    assert_eq!(a.acquire("dist_lock:k", LONG).await, GRANTED);
    assert_eq!(place.0.keys(), ["dist_lock:k"]);
    assert_eq!(place.0.value("dist_lock:k").as_deref(), Some("0123:host:1:f"));
    assert!(is_about(place.0.time_left("dist_lock:k"), LONG));
    assert_eq!(a.release("dist_lock:k").await, Ownership::Owned);
    assert!(place.0.keys().is_empty());
}

#[tokio::test]
async fn the_counter_of_tokens_is_the_only_key_left_behind_and_bears_the_prefix() {
    let place = OnServer::start();
    let store = Arc::new(RedisStore::open(&place.0.url(), "shop:", PATIENT).unwrap());
    let a = Client {
        store,
        value: "a".to_owned(),
        clock: place.clock(),
    };
    for nth in 0..100 {
        let key = format!("shop:{nth}");
        a.acquire_fenced(&key).await;
        a.token(&key).await;
        assert_eq!(a.release(&key).await, Ownership::Owned);
    }
    assert_eq!(place.0.keys(), ["shop:%lock-fence"]);
}

pub(crate) fn is_wrong_type(error: &StoreError) -> bool {
    error.is_permanent() && error.effect() == Effect::None && error.to_string().contains("another program's data")
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_never_touched() {
    let place = OnServer::start();
    place.0.cmd(&["HSET", "k", "field", "value"]);
    let a = place.client("a");
    for ask in [Ask::default(), FENCED] {
        let error = a.try_acquire("k", ask).await.unwrap_err();
        assert!(is_wrong_type(&error), "{error}");
    }
    let error = a.try_release("k", None).await.unwrap_err();
    assert!(is_wrong_type(&error), "{error}");
    let error = a.try_release("k", Some(LONG)).await.unwrap_err();
    assert!(is_wrong_type(&error), "{error}");
    let error = a.store.fence("k", &HolderValue::of("a")).await.unwrap_err();
    assert!(is_wrong_type(&error), "{error}");
    // In a batch it must not keep the others from being renewed.
    assert_eq!(a.acquire("other", LONG).await, GRANTED);
    let batch = [a.request("k", Some(LONG)), a.request("other", Some(LONG))];
    assert_eq!(
        a.store.renew(&batch).await.unwrap(),
        [Ownership::Foreign, Ownership::Owned]
    );
    assert_eq!(place.0.ask::<String>(&["HGET", "k", "field"]), "value");
    assert_eq!(place.0.time_left("k"), None);
}

#[tokio::test]
async fn a_foreign_key_without_expiry_is_busy_and_stays_as_it_is() {
    let place = OnServer::start();
    place.0.cmd(&["SET", "k", "somebody"]);
    let a = place.client("a");
    for ask in [Ask::default(), FENCED] {
        let answer = a.try_acquire("k", ask).await.unwrap();
        let Attempt::Busy {
            holder: Some(holder),
            remaining: None,
        } = answer
        else {
            panic!("{answer:?}")
        };
        assert_eq!(holder.value(), "somebody");
    }
    assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Foreign);
    assert_eq!(a.release("k").await, Ownership::Foreign);
    assert_eq!(place.0.value("k").as_deref(), Some("somebody"));
    assert_eq!(place.0.ask::<i64>(&["PTTL", "k"]), -1);
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_gets_them_again() {
    let place = OnServer::start();
    let a = place.client("a");
    let flush = || place.0.cmd(&["SCRIPT", "FLUSH"]);
    for _ in 0..3 {
        flush();
        a.acquire_fenced("k").await;
        flush();
        assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
        flush();
        a.token("k").await;
        flush();
        assert_eq!(a.release("k").await, Ownership::Owned);
    }
}

#[tokio::test]
async fn a_command_is_sent_once_where_the_server_knows_the_script() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    let store = Arc::new(RedisStore::open(&proxy.url(), "", PATIENT).unwrap());
    let a = Client {
        store,
        value: "a".to_owned(),
        clock: place.clock(),
    };
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
    assert_eq!(a.release("k").await, Ownership::Owned);
    let mark = proxy.mark();
    let ask = Ask {
        tell_remaining: false,
        ..Ask::default()
    };
    assert_eq!(a.try_acquire("k", ask).await.unwrap(), GRANTED);
    assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
    assert_eq!(a.release("k").await, Ownership::Owned);
    let sent = &proxy.commands()[mark..];
    assert_eq!(
        sent.len(),
        3,
        "{}",
        sent.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    );
}

/// Keeps what a store reports.
#[derive(Clone, Default)]
pub(crate) struct Reports(Arc<Mutex<Vec<LossHint>>>);

impl Reports {
    pub(crate) fn listen(store: &dyn LockStore) -> Self {
        let reports = Self::default();
        let kept = Arc::clone(&reports.0);
        assert!(store.report_losses(Arc::new(move |hint| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(hint);
        })));
        reports
    }

    pub(crate) async fn wait_for(&self, wanted: &LossHint) {
        eventually(&format!("the report {wanted:?}"), || async {
            self.0.lock().unwrap().contains(wanted)
        })
        .await;
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn a_changed_key_is_reported_after_its_first_check() {
    let place = OnServer::start();
    let a = place.client("a");
    let reports = Reports::listen(&*a.store);
    let changes: [&[&str]; 4] = [
        &["DEL", "k"],
        &["SET", "k", "another"],
        &["PEXPIRE", "k", "500000"],
        &["RENAME", "k", "elsewhere"],
    ];
    for change in changes {
        for extend in [None, Some(LONG)] {
            assert_eq!(a.acquire("k", LONG).await, GRANTED);
            assert_eq!(a.renew("k", extend).await, Ownership::Owned);
            reports.clear();
            place.0.cmd(change);
            reports.wait_for(&LossHint::Key("k".into())).await;
            place.0.cmd(&["DEL", "k", "elsewhere"]);
        }
    }
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    assert_eq!(a.renew("k", Some(LONG)).await, Ownership::Owned);
    reports.clear();
    place.0.cmd(&["FLUSHALL"]);
    reports.wait_for(&LossHint::All(Lane::default())).await;
}

#[tokio::test]
async fn the_end_of_the_reporting_connection_is_reported_as_any_key() {
    let place = OnServer::start();
    let proxy = Proxy::to(&place.0);
    let a = Client {
        store: Arc::new(RedisStore::open(&proxy.url(), "", PATIENT).unwrap()),
        value: "a".to_owned(),
        clock: place.clock(),
    };
    let reports = Reports::listen(&*a.store);
    assert_eq!(a.acquire("k", LONG).await, GRANTED);
    assert_eq!(a.renew("k", None).await, Ownership::Owned);
    reports.clear();
    proxy.cut(Close::Reset);
    reports.wait_for(&LossHint::All(Lane::default())).await;
    // And the next connection reports again.
    eventually("the next check", || async {
        a.store.renew(&[a.request("k", None)]).await.is_ok()
    })
    .await;
    reports.clear();
    place.0.cmd(&["DEL", "k"]);
    reports.wait_for(&LossHint::Key("k".into())).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_passing_error_and_nothing_is_applied() {
    let place = OnServer::start();
    let a = place.client("a");
    place.0.kill();
    let error = a.try_acquire("k", Ask::default()).await.unwrap_err();
    assert!(!error.is_permanent() && error.effect() == Effect::None, "{error:?}");
    place.0.start_again();
    assert_eq!(a.acquire("k", Duration::from_secs(20)).await, GRANTED);
}

#[tokio::test]
async fn a_connection_that_ends_while_it_is_checked_has_taken_nothing() {
    let place = OnServer::start();
    for checked in ["%lock-probe", "%lock-mark"] {
        let proxy = Proxy::to(&place.0);
        proxy.on_each(
            move |command| command.mentions(checked),
            Action::CloseBefore(Close::Reset),
        );
        let a = Client {
            store: Arc::new(RedisStore::open_as_master(&proxy.url(), "", LONG, PATIENT).unwrap()),
            value: "a".to_owned(),
            clock: place.clock(),
        };
        let error = a.try_acquire("k", Ask::default()).await.unwrap_err();
        assert!(!error.is_permanent() && error.effect() == Effect::None, "{error:?}");
    }
}

/// Such as a user who may use some of the keys only, from a moment on.
#[tokio::test]
async fn a_lock_that_cannot_be_renewed_leaves_the_others_of_its_batch_alone() {
    let place = OnServer::start();
    let limit = |rules: &[&str]| {
        place
            .0
            .cmd(&[&["ACL", "SETUSER", "limited", "on", ">secret", "&*", "+@all"], rules].concat());
    };
    limit(&["~*"]);
    let url = place.0.url().replace("redis://", "redis://limited:secret@");
    let store: Arc<dyn LockStore> = Arc::new(RedisStore::open(&url, "", PATIENT).unwrap());
    let of = |value: &str| Client {
        store: Arc::clone(&store),
        value: value.to_owned(),
        clock: place.clock(),
    };
    let (exclusive, reader) = (of("a"), of(&crate::suite::shared::value("r", "a")));
    let keys: Vec<String> = (0..20).map(|nth| format!("k{nth}")).collect();
    let mut batch = Vec::new();
    for (nth, key) in keys.iter().enumerate() {
        let client = if nth % 3 == 0 { &reader } else { &exclusive };
        assert_eq!(client.acquire(key, LONG).await, GRANTED);
        batch.push(client.request(key, Some(2 * LONG)));
    }
    // A reader's, and one of the others.
    let denied = ["k7", "k12"];
    let allowed = keys.iter().filter(|key| !denied.contains(&key.as_str()));
    let allowed: Vec<String> = allowed.map(|key| format!("~{key}")).collect();
    let rules: Vec<&str> = ["resetkeys"]
        .into_iter()
        .chain(allowed.iter().map(String::as_str))
        .collect();
    limit(&rules);
    let verdicts = store.renew_each(&batch).await.unwrap();
    for (key, verdict) in keys.iter().zip(verdicts) {
        let is_denied = denied.contains(&key.as_str());
        assert_eq!(verdict, (!is_denied).then_some(Ownership::Owned), "{key}");
        let lease = if is_denied { LONG } else { 2 * LONG };
        assert!(is_about(place.0.time_left(key), lease), "{key}");
    }
    // With no verdict at all, the reason.
    limit(&["resetkeys"]);
    let error = store.renew_each(&batch).await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
}

/// Somebody who may write the queues may write any score.
#[tokio::test]
async fn an_endless_score_in_a_queue_keeps_nobody_waiting() {
    let place = OnServer::start();
    let shared = |name| crate::suite::shared::value("w", name);
    for (queue, a, b) in [
        ("%lock-queue:{k}", "a".to_owned(), "b".to_owned()),
        ("%lock-shared:{k}", shared("a"), shared("b")),
    ] {
        let (a, b) = (place.client(&a), place.client(&b));
        for score in ["-inf", "inf"] {
            assert_eq!(a.acquire("k", LONG).await, GRANTED);
            let waiting = b.stand("k", Ask::default()).await;
            place.0.cmd(&["ZADD", queue, score, "forged"]);
            assert_eq!(a.release("k").await, Ownership::Owned);
            waiting.claim().await;
            assert_eq!(b.release("k").await, Ownership::Owned);
            place.0.cmd(&["DEL", queue]);
        }
    }
}

#[tokio::test]
async fn a_counter_of_another_type_is_named_and_no_lock_is_left() {
    let place = OnServer::start();
    place.0.cmd(&["RPUSH", "%lock-fence", "somebody"]);
    for value in ["a".to_owned(), crate::suite::shared::value("w", "a")] {
        let a = place.client(&value);
        let error = a.try_acquire("k", FENCED).await.unwrap_err();
        assert!(
            error.is_permanent() && error.to_string().contains("%lock-fence"),
            "{error}"
        );
        assert_eq!(place.0.keys(), ["%lock-fence"]);
    }
}
