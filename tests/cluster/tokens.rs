//! Fencing tokens, which each slot counts by itself.

use lock_tests::ClusterGroup;

use crate::moving::{patient, slot_of};

/// The key of the counter of a lock's slot.
fn counter(cluster: &ClusterGroup, key: &str) -> String {
    let slot = slot_of(cluster, key);
    let of = |tag: &u32| cluster.slot_of(&tag.to_string()) == slot;
    format!("dist_lock:%lock-fence:{{{}}}", (0..1_000_000).find(of).unwrap())
}

#[tokio::test]
async fn a_token_for_several_slots_is_between_those_before_and_after_it_in_each() {
    let cluster = ClusterGroup::start_steady().await;
    let locks = patient(&cluster).await;
    let take = async |keys: &[&str], is_with_lock: bool| {
        let request = locks.lock_all(keys.to_vec());
        let request = request.fencing(is_with_lock);
        let held = request.acquire().await.unwrap();
        let token = held.handle().fencing_token().await.unwrap().get();
        held.release().await.unwrap();
        token
    };
    let keys = ["one", "two", "three"];
    let slots = keys.map(|key| slot_of(&cluster, key));
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
    // The clock of one node is years ahead of the others.
    let owner = cluster.owner(slots[1]).await;
    cluster
        .server(owner)
        .cmd(&["SET", &counter(&cluster, "two"), "9000000000000000"]);
    assert!(take(&["one"], true).await < 9_000_000_000_000_000);
    for is_with_lock in [true, false] {
        let of_two = take(&["two"], is_with_lock).await;
        let of_all = take(&keys, is_with_lock).await;
        assert!(of_all > of_two);
        for key in keys {
            assert!(take(&[key], is_with_lock).await > of_all, "{key}");
        }
    }
    // There is one counter for each slot, for a week.
    let left = cluster.server(owner).time_left(&counter(&cluster, "two")).unwrap();
    assert!(left.as_secs() > 6 * 24 * 3600, "{left:?}");
}
