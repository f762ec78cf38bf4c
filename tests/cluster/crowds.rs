//! Calls for many locks at once, whose commands are sent together.

use lock_runtime::{LockError, LockGuard, LockManager, LockRequest};
use lock_tests::{ClusterGroup, PATIENCE, Server, eventually};
use tokio::task::JoinSet;

use crate::moving::{patient, slot_of};

/// More than a runtime sends by themselves.
const MANY: usize = 40;

/// All in one slot.
fn keys() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("{{many}}:{number}"))
}

type Calls<T> = JoinSet<Result<T, LockError>>;

fn take(locks: &LockManager) -> Calls<LockGuard> {
    keys().map(|key| locks.lock(key)).map(LockRequest::acquire).collect()
}

async fn all<T: 'static>(calls: Calls<T>) -> Vec<T> {
    calls.join_all().await.into_iter().collect::<Result<_, _>>().unwrap()
}

async fn release(guards: Vec<LockGuard>) {
    all(guards.into_iter().map(LockGuard::release).collect()).await;
}

/// Returns how many of the locks a node has.
fn held_at(node: &Server) -> usize {
    keys().filter(|key| node.holds(&format!("dist_lock:{key}"))).count()
}

#[tokio::test]
async fn they_follow_their_slot_to_another_node() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    let slot = slot_of(&cluster, "{many}");
    let from = cluster.owner(slot).await;
    let to = cluster.other_master(from);
    let [former, next] = [from, to].map(|port| cluster.server(port));

    let guards = all(take(&locks)).await;
    assert_eq!(held_at(former), MANY);
    cluster.move_slot(slot, to).await;
    release(guards).await;
    assert_eq!(held_at(next), 0);
    cluster.move_slot(slot, from).await;
    let guards = all(take(&locks)).await;
    assert_eq!(held_at(former), MANY);

    // From here on a lock that is free is at the next node, and one that is held has its queue there.
    cluster.open_move(slot, from, to);
    release(guards).await;
    assert_eq!(held_at(former), 0);
    let guards = all(take(&locks)).await;
    assert_eq!(held_at(next), MANY);
    cluster.close_move(slot, from, to).await;
    release(guards).await;
    assert_eq!(held_at(next), 0);
}

#[tokio::test]
async fn those_that_a_silent_node_owes_an_answer_go_on_at_the_one_that_replaces_it() {
    let cluster = ClusterGroup::start().await;
    let locks = LockManager::builder(&cluster.url())
        .default_wait(PATIENCE * 2)
        .response_timeout(PATIENCE * 2)
        .build()
        .unwrap();
    eventually("a connection", || async { locks.check_connection().await.is_ok() }).await;
    release(all(take(&locks)).await).await;
    let silent = cluster.owner(slot_of(&cluster, "{many}")).await;
    let replica = cluster.replica_of(silent).unwrap();
    cluster.server(silent).pause();
    let taking = take(&locks);
    let next = cluster.server(replica);
    eventually("the replica to be promoted", || async { next.info("role") == "master" }).await;
    let guards = tokio::time::timeout(PATIENCE, all(taking)).await.unwrap();
    // It carries the requests out after all.
    cluster.server(silent).resume();
    for guard in &guards {
        guard.handle().verify().await.unwrap();
    }
    assert_eq!(held_at(next), MANY);
    release(guards).await;
}
