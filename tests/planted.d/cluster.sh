# Faults in a cluster. Read by ../planted.

plant slot-on-its-way-not-asked-for lock-runtime/src/store/redis/connection/slot.rs \
    'if self.is_asking {' \
    'if false {' \
    cluster half_moved::an_exclusive_lock_is_taken_kept_and_released_on_either_side \
    'Store { key: "exclusive", source: StoreError'

plant releases-not-repeated-at-the-next-node lock-runtime/src/store/redis/cluster/repeat.rs \
    'if !unacknowledged.places.is_empty() || !unacknowledged.releases.is_empty() {' \
    'if unacknowledged.places.len() > unacknowledged.releases.len() {' \
    cluster losing::a_release_that_the_next_master_does_not_know_is_repeated_there \
    'the release at the next master'

plant token-of-another-slot-given-again lock-runtime/src/store/redis/cluster/mod.rs \
    'own != Some(fence)' \
    'own == Some(fence)' \
    cluster tokens::a_token_for_several_slots_is_between_those_before_and_after_it_in_each \
    'tokens.rs'

plant place-left-in-a-split-slot lock-runtime/src/store/redis/cluster/mod.rs \
    'if request.queued.is_some() {' \
    'if false {' \
    cluster half_moved::a_call_that_gives_up_while_its_lock_and_its_queue_are_apart_leaves_no_place \
    'in vain'

plant connected-to-nodes-that-have-left lock-runtime/src/store/redis/cluster/topology.rs \
    'self.connections.retain(|address, _| some.contains(address));' \
    '' \
    cluster leaving::a_node_whose_slots_are_all_given_away_is_left_and_used_again_when_it_has_some \
    'in vain: the node to be left'

plant silent-about-the-slots-of-several lock-runtime/src/store/redis/cluster/mod.rs \
    '(&part), telling request.receipt)' \
    '(&part))' \
    cluster half_moved::a_call_for_several_keys_tells_which_slot_it_has_waited_for \
    'no answer within'

plant moved-slots-not-looked-at lock-runtime/src/store/redis/cluster/topology.rs \
    'nodes.relocate();' \
    '' \
    lib store::redis::cluster::tests::slots_that_lose_their_node_or_get_one_are_told \
    'waited in vain to be told of a slot that has moved'

plant reset-node-believed lock-runtime/src/store/redis/cluster/topology.rs \
    'if view.ranges.is_empty() {' \
    'if false {' \
    cluster leaving::a_node_that_was_reset_does_not_speak_for_the_cluster_while_no_other_one_answers \
    'Health { servers: [] }'

plant importing-node-kept lock-runtime/src/store/redis/cluster/node.rs \
    'self.has_owned.load(Ordering::Relaxed) || ' \
    '' \
    cluster losing::a_release_that_the_next_master_does_not_know_is_repeated_there \
    'in vain: the release at the next master'

plant answers-awaited-from-a-node-that-has-left lock-runtime/src/store/redis/connection/endpoint.rs \
    'Self::Node { retired, .. } => retired.cancelled().await,' \
    'Self::Node { .. } => pending().await,' \
    cluster crowds::those_that_a_silent_node_owes_an_answer_go_on_at_the_one_that_replaces_it \
    'Elapsed'
