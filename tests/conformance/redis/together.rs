//! Requests that are ready together, and share runs of scripts.

use std::collections::HashSet;
use std::sync::Arc;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::store::{Attempt, LockStore, Ownership};
use lock_tests::PATIENT;
use tokio::task::JoinHandle;

use crate::place::{Ask, Client, OnServer, Place};
use crate::redis::store::is_wrong_type;
use crate::suite::shared::value;

/// The number of locks, which is more than one run takes.
const LOCKS: usize = 40;

fn begin<T: Send + 'static>(
    requests: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<JoinHandle<T>> {
    requests.map(tokio::spawn).collect()
}

async fn all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// Two calls ask for each lock, and one each for two keys that are no locks. Then those who have a lock release it, while others ask for it.
async fn each_gets_its_own(place: &OnServer, class: &str, ask: Ask) {
    let store: Arc<dyn LockStore> = Arc::new(RedisStore::open(&place.0.url(), "", PATIENT).unwrap());
    let client = |name: &str| Client {
        store: store.clone(),
        value: if class.is_empty() {
            name.to_owned()
        } else {
            value(class, name)
        },
        clock: place.clock(),
    };
    let fits_two = !["", "w"].contains(&class);
    place.0.cmd(&["FLUSHALL"]);
    place.0.cmd(&["RPUSH", "wrong", "x"]);
    // A holder whose lease never ends makes a script fail midway.
    place.0.cmd(&["ZADD", "endless", "inf", "x"]);
    let first = client("first");
    first.acquire("first", ask.lease).await;
    assert_eq!(first.release("first").await, Ownership::Owned);

    let mut askers: Vec<_> = (0..2 * LOCKS)
        .map(|nth| (client(&nth.to_string()), format!("k{}", nth / 2)))
        .collect();
    // Not among the first ones, which are sent one by one.
    for key in ["wrong", "endless"] {
        askers.insert(LOCKS * 3 / 2, (client(key), key.to_owned()));
    }
    let asked = begin(
        askers
            .iter()
            .cloned()
            .map(|(client, key)| async move { client.try_acquire(&key, ask).await }),
    );
    let (mut holders, mut tokens) = (Vec::new(), Vec::new());
    for ((client, key), answer) in askers.into_iter().zip(all(asked).await) {
        match answer {
            Ok(Attempt::Granted { fence }) => {
                tokens.extend(fence.map(|fence| (key.clone(), fence.get())));
                holders.push((client, key));
            }
            Ok(_) if key == "endless" => {}
            Ok(_) => assert!(!fits_two, "{class}: {key} was busy"),
            Err(error) if key == "endless" => assert!(error.is_permanent(), "{class}: {key}: {error}"),
            Err(error) => assert!(key == "wrong" && is_wrong_type(&error), "{class}: {key}: {error}"),
        }
    }
    let per_lock = if fits_two { 2 } else { 1 };
    assert_eq!(holders.len(), per_lock * LOCKS, "{class}");
    let held: HashSet<_> = holders.iter().map(|(_, key)| key.clone()).collect();
    assert_eq!(held.len(), LOCKS, "{class}");
    // Holders of an owner share a token.
    let different: HashSet<_> = tokens.iter().map(|(_, token)| token).collect();
    let shared = if class == "oa" { 2 } else { 1 };
    assert_eq!(different.len() * shared, tokens.len(), "{class}");

    let others: Vec<_> = held.iter().map(|key| (client("other"), key.clone())).collect();
    let asked = begin(
        others
            .iter()
            .cloned()
            .map(|(client, key)| async move { client.try_acquire(&key, ask).await }),
    );
    let released = begin(
        holders
            .into_iter()
            .map(|(client, key)| async move { client.try_release(&key, None).await }),
    );
    let (asked, released) = tokio::join!(all(asked), all(released));
    for answer in released {
        assert_eq!(answer.unwrap(), Ownership::Owned, "{class}");
    }
    for ((client, key), answer) in others.into_iter().zip(asked) {
        if let Attempt::Granted { fence } = answer.unwrap() {
            let before = tokens.iter().filter(|(lock, _)| *lock == key).map(|(_, token)| *token);
            assert!(
                fence.is_none_or(|fence| class == "oa" || before.max() < Some(fence.get())),
                "{class}: {key}"
            );
            assert_eq!(client.release(&key).await, Ownership::Owned, "{class}: {key}");
        }
    }
    let left: Vec<_> = place.0.keys().into_iter().filter(|key| key.starts_with('k')).collect();
    assert!(left.is_empty(), "{class}: {left:?}");
}

#[tokio::test]
async fn requests_that_share_a_run_get_their_own_answers() {
    let place = OnServer::start();
    let fair = Ask {
        fair: true,
        ..Ask::default()
    };
    each_gets_its_own(&place, "", fair).await;
    for class in ["", "r", "w", "s2", "oa"] {
        for fence in [false, true] {
            each_gets_its_own(
                &place,
                class,
                Ask {
                    fence,
                    ..Ask::default()
                },
            )
            .await;
        }
    }
}
