//! The promises of a store, each tried from outside through several clients. A list of them is a macro, which makes a test
//! of each against one [`Place`](crate::place::Place).

pub(crate) mod exclusive;
pub(crate) mod inspect;
pub(crate) mod multi;
pub(crate) mod queue;
pub(crate) mod shared;

/// Random histories are a part of the suite.
pub(crate) use crate::model;

macro_rules! keeps {
    ($place:expr; $file:ident: $($promise:ident),* $(,)?) => {
        mod $file {
            $(
                #[test]
                fn $promise() {
                    crate::place::run(&$place, crate::suite::$file::$promise);
                }
            )*
        }
    };
}

/// What every store promises, also one whose services wait without a queue.
macro_rules! keeps_exclusive_locks {
    ($place:expr) => {
        keeps_exclusive_locks!($place, of_many_contenders_one_is_granted);
    };
    ($place:expr, $of_many_contenders:ident) => {
        keeps! { $place; exclusive:
            $of_many_contenders,
            a_free_key_is_granted,
            a_held_key_is_busy_for_every_other_value,
            a_busy_answer_tells_the_holder_and_the_rest_of_its_lease,
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
        }
    };
}

/// What every other store promises as well.
macro_rules! keeps_all {
    ($place:expr) => {
        keeps_exclusive_locks!($place);

        keeps! { $place; queue:
            a_free_key_is_granted_at_once,
            a_release_hands_over_in_the_order_of_joining,
            keys_have_queues_of_their_own,
            the_grant_is_dated_before_the_expiry_was_set,
            one_who_leaves_is_passed_over,
            one_who_leaves_with_the_lock_hands_it_over,
            one_who_never_came_leaves_without_an_effect,
            one_who_has_died_blocks_no_longer_than_its_lease,
            an_expired_lock_goes_to_the_first_in_line,
            a_renewal_holds_the_queue_back_and_a_shorter_one_lets_it_in_sooner,
            a_minimum_hold_holds_the_queue_back_until_it_is_over,
            a_fair_acquire_waits_behind_the_queue_and_a_plain_one_does_not,
            tokens_grow_from_hand_to_hand,
            a_former_holder_gets_no_token_of_its_successor,
            whoever_waits_sees_the_holder,
            a_release_by_another_value_hands_over_nothing,
            the_same_release_twice_hands_over_once,
            many_come_and_go_and_each_gets_the_lock_once,
        }

        keeps! { $place; shared:
            whoever_may_hold_it_together_does_and_nobody_else,
            every_holder_has_a_lease_of_its_own,
            a_release_ends_no_other_hold,
            a_request_that_comes_twice_is_one_hold,
            a_renewal_never_creates_a_hold,
            an_expired_holder_finds_who_came_after_it,
            a_batch_of_all_modes_gets_one_verdict_each_in_order,
            a_busy_answer_tells_a_holder_and_the_rest_of_its_lease,
            a_waiting_writer_holds_new_readers_back,
            a_writer_that_leaves_the_queue_lets_readers_in,
            readers_who_wait_one_after_the_other_are_let_in_together,
            the_last_reader_that_expires_lets_the_writer_in,
            whoever_has_died_in_the_queue_blocks_no_longer_than_its_lease,
            a_semaphore_has_no_more_holders_than_permits,
            the_permits_of_dead_holders_come_back_after_their_leases,
            the_smaller_number_of_permits_counts_until_its_holders_are_gone,
            an_owner_that_has_the_lock_enters_past_the_queue,
            an_owner_that_gets_the_lock_enters_from_the_back_of_the_queue,
            every_writer_has_a_larger_token,
            holders_for_one_owner_share_a_token_until_the_lock_is_free,
            a_minimum_hold_counts_as_a_holder,
            whoever_leaves_with_the_lock_hands_it_over,
            keys_have_holders_and_queues_of_their_own,
            an_exclusive_holder_and_others_keep_each_other_out,
        }

        keeps! { $place; multi:
            all_free_keys_are_taken_at_once,
            nothing_is_taken_when_one_key_is_busy,
            ones_own_value_is_granted_all_again,
            whoever_holds_some_and_finds_others_busy_gives_them_back,
            a_former_value_gives_way_to_the_new_one,
            smaller_keys_may_be_kept_while_waiting_for_a_busy_one,
            what_is_given_back_goes_to_whoever_waits,
            whoever_was_handed_one_goes_on_to_all,
            one_token_is_above_those_of_all_keys,
            all_run_out_by_themselves,
            many_who_want_some_of_all_never_have_one_together,
        }

        keeps! { $place; inspect:
            a_free_lock_is_nothing_to_tell,
            a_held_lock_tells_holder_lease_token_and_who_waits,
            a_lease_that_is_over_is_not_told,
            force_hands_the_lock_to_the_next,
            a_list_has_what_is_held_and_matches,
        }

        keeps! { $place; model:
            histories_of_exclusive_locks_follow_the_model,
            histories_of_several_keys_follow_the_model,
            histories_of_readers_and_writers_follow_the_model,
            histories_of_semaphores_follow_the_model,
            histories_of_owners_follow_the_model,
            histories_of_all_modes_follow_the_model,
        }
    };
}

/// What a quorum offers: exclusive locks, in the order of the calls that wait.
macro_rules! keeps_what_a_quorum_offers {
    ($place:expr) => {
        keeps_what_a_quorum_grants_at_once!($place);

        keeps! { $place; queue:
            a_free_key_is_granted_at_once,
            a_release_hands_over_in_the_order_of_joining,
            keys_have_queues_of_their_own,
            the_grant_is_dated_before_the_expiry_was_set,
            one_who_leaves_is_passed_over,
            one_who_leaves_with_the_lock_hands_it_over,
            one_who_never_came_leaves_without_an_effect,
            one_who_has_died_blocks_no_longer_than_its_lease,
            an_expired_lock_goes_to_the_first_in_line,
            a_renewal_holds_the_queue_back_and_a_shorter_one_lets_it_in_sooner,
            a_minimum_hold_holds_the_queue_back_until_it_is_over,
            tokens_grow_from_hand_to_hand,
            a_former_holder_gets_no_token_of_its_successor,
            whoever_waits_sees_the_holder,
            a_release_by_another_value_hands_over_nothing,
            the_same_release_twice_hands_over_once,
            many_come_and_go_and_each_gets_the_lock_once,
        }

        mod handed_over {
            keeps! { $place; multi: whoever_was_handed_one_goes_on_to_all }

            keeps! { $place; inspect:
                a_held_lock_tells_holder_lease_token_and_who_waits,
                force_hands_the_lock_to_the_next,
            }
        }
    };
}

/// What a quorum promises while nobody waits. It is also tried on servers; the rest is not: whoever has not heard from most of them for a
/// second leaves the queue, and a busy machine may stand still for as long.
macro_rules! keeps_what_a_quorum_grants_at_once {
    ($place:expr) => {
        keeps_exclusive_locks!($place, of_many_contenders_no_two_are_granted);

        // It keeps none of several keys while it waits for another one.
        keeps! { $place; multi:
            all_free_keys_are_taken_at_once,
            nothing_is_taken_when_one_key_is_busy,
            ones_own_value_is_granted_all_again,
            whoever_holds_some_and_finds_others_busy_gives_them_back,
            one_token_is_above_those_of_all_keys,
            all_run_out_by_themselves,
            many_who_want_some_of_all_never_have_one_together,
        }

        keeps! { $place; inspect:
            a_free_lock_is_nothing_to_tell,
            a_lease_that_is_over_is_not_told,
            a_list_has_what_is_held_and_matches,
        }
    };
}
