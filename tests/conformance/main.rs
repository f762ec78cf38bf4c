//! One suite for every store, and what a manager promises on a real server beyond it: tokens, connections, other clients.
//!
//! A new store is one `conformance!` line below: a name, and a [`Place`](place::Place) that makes clients of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connections;
mod fencing;
mod interop;
mod memory_store;
mod model;
mod place;
mod promises;
mod redis_store;

/// Runs every promise of [`LockStore`](lock_runtime::store::LockStore) against one place.
macro_rules! conformance {
    ($name:ident, $place:expr) => {
        mod $name {
            conformance! {@ $place;
                a_free_key_is_granted,
                a_held_key_is_busy_for_every_other_value,
                a_busy_answer_tells_the_holder_and_the_rest_of_its_lease,
                of_many_contenders_one_is_granted,
                keys_do_not_touch_each_other,
                keys_and_values_are_taken_byte_by_byte,
                ones_own_value_is_granted_again,
                a_lease_ends_by_itself_and_not_before,
                the_longest_and_the_shortest_lease_are_kept,
                a_renewal_sets_the_lease_anew,
                a_renewal_by_another_value_changes_nothing,
                a_renewal_never_creates_a_key,
                a_check_changes_nothing,
                a_batch_gets_one_verdict_each_in_order,
                a_release_frees_the_key,
                a_release_by_another_value_changes_nothing,
                a_minimum_hold_outlives_the_release,
                tokens_grow_whoever_takes_them,
                a_former_holder_gets_no_token,
                a_receipt_names_the_connection,
                a_dropped_operation_leaves_the_store_usable,
                operations_need_no_runtime,
                random_histories_follow_the_model,
            }
        }
    };
    (@ $place:expr; $($promise:ident),* $(,)?) => {
        $(
            #[test]
            fn $promise() {
                crate::place::run(&$place, async |place| crate::promises::$promise(place).await);
            }
        )*
    };
}

conformance!(in_memory, crate::place::InMemory::new());
conformance!(on_a_server, crate::place::OnServer::start());
