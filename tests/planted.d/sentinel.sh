# Faults in following a master. Read by ../planted.

plant former-master-still-awaited lock-runtime/src/store/redis/connection/slot.rs \
    '() = self.inner.server.endpoint.changed(live.generation) => {' \
    '() = std::future::pending::<()>() => {' \
    sentinel failover::calls_that_a_silent_master_owes_an_answer_go_on_at_the_next_one \
    'Elapsed'

plant replica-taken-for-master lock-runtime/src/store/redis/connection/slot.rs \
    'if server.is_replica && self.inner.server.endpoint.is_followed() {' \
    'if server.is_replica && !self.inner.server.endpoint.is_followed() {' \
    sentinel finding::a_replica_that_sentinels_name_is_not_used \
    'READONLY'

plant lower-epoch-followed lock-runtime/src/store/redis/sentinel/agreement.rs \
    'vote.view.epoch > present.epoch && self.belongs(**vote));' \
    'vote.view != present && self.belongs(**vote));' \
    lib store::redis::sentinel::agreement::tests::one_sentinel_of_the_group_with_a_higher_epoch_is_followed \
    'asked once'

plant strangers-followed lock-runtime/src/store/redis/sentinel/agreement.rs \
    'vote.view.epoch > present.epoch && self.belongs(**vote));' \
    'vote.view.epoch > present.epoch);' \
    lib store::redis::sentinel::agreement::tests::an_address_that_is_another_group_s_by_now_moves_nothing \
    'asked once'

plant first-answer-believed lock-runtime/src/store/redis/sentinel/agreement.rs \
    'if (self.is_most_of_the_url(&kin) || is_complete && speaks_for_all())' \
    'if true' \
    lib store::redis::sentinel::agreement::tests::the_first_server_is_that_of_the_highest_epoch_once_most_have_answered \
    'wait'

plant hosts-of-the-url-only lock-runtime/src/store/redis/sentinel/mod.rs \
    'agreement.len() < MOST &&' \
    'agreement.len() > MOST &&' \
    sentinel finding::one_address_is_enough_since_sentinels_know_each_other \
    'a lock on the new master'

plant releases-of-the-former-forgotten lock-runtime/src/store/redis/connection/released.rs \
    'last.since(*at) <= UNACKNOWLEDGED_FOR);' \
    'last.since(*at) > UNACKNOWLEDGED_FOR);' \
    sentinel failover::a_lock_that_the_former_master_released_after_the_promotion_is_released_at_the_new_one \
    'the release on the new master'

plant failures-of-before-told-again lock-runtime/src/store/redis/connection/endpoint.rs \
    'State::Missing(error, asked) if question.is_some_and(|question| *asked >= question) => {' \
    'State::Missing(error, asked) if *asked > 0 => {' \
    sentinel finding::a_failure_of_before_is_not_told_again \
    'Connection refused'

plant permanent-for-those-who-have-not-answered lock-runtime/src/store/redis/sentinel/agreement.rs \
    'if !is_complete {' \
    'if !is_complete && votes.is_empty() == self.sentinels.is_empty() {' \
    lib store::redis::sentinel::agreement::tests::one_that_refuses_for_good_does_not_speak_for_those_that_are_slow \
    'wait'

plant expiry-not-restored-after-a-move lock-runtime/src/store/redis/connection/runtime_connections.rs \
    'connections.background.has_moved();' \
    '' \
    sentinel failover::a_lock_whose_last_renewal_the_new_master_does_not_know_lasts_as_long_as_promised \
    'the expiry that the lock was given'

plant places-kept-at-the-next-master lock-runtime/src/store/redis/mod.rs \
    'self.commands.note_released(|| self.leave_of(request));' \
    '' \
    sentinel failover::the_new_master_does_not_offer_the_lock_to_calls_that_have_had_it \
    'Busy'

plant batches-of-the-former-awaited lock-runtime/src/store/redis/connection/slot.rs \
    'async move { followed.endpoint.over(generation).await },' \
    'async move { drop(followed); std::future::pending().await },' \
    sentinel failover::calls_that_a_silent_master_owes_an_answer_go_on_at_the_next_one \
    'Elapsed'
