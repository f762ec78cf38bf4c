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
mod queue;
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

            conformance! {@ $place;
                queue::a_free_key_is_granted_at_once,
                queue::a_release_hands_over_in_the_order_of_joining,
                queue::keys_have_queues_of_their_own,
                queue::the_grant_is_dated_before_the_expiry_was_set,
                queue::one_who_leaves_is_passed_over,
                queue::one_who_leaves_with_the_lock_hands_it_over,
                queue::one_who_never_came_leaves_without_an_effect,
                queue::one_who_has_died_blocks_no_longer_than_its_lease,
                queue::an_expired_lock_goes_to_the_first_in_line,
                queue::a_renewal_holds_the_queue_back_and_a_shorter_one_lets_it_in_sooner,
                queue::a_minimum_hold_holds_the_queue_back_until_it_is_over,
                queue::a_fair_acquire_waits_behind_the_queue_and_a_plain_one_does_not,
                queue::tokens_grow_from_hand_to_hand,
                queue::a_former_holder_gets_no_token_of_its_successor,
                queue::whoever_waits_sees_the_holder,
                queue::a_release_by_another_value_hands_over_nothing,
                queue::the_same_release_twice_hands_over_once,
                queue::many_come_and_go_and_each_gets_the_lock_once,
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
    (@ $place:expr; $(queue::$promise:ident),* $(,)?) => {
        /// Of the stores that have a queue.
        mod queue {
            $(
                #[test]
                fn $promise() {
                    crate::place::run(&$place, async |place| crate::queue::$promise(place).await);
                }
            )*
        }
    };
}

conformance!(in_memory, crate::place::InMemory::new());
conformance!(on_a_server, crate::place::OnServer::start());
