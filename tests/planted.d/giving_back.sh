# Faults in giving back what a call has left behind. Read by ../planted.

plant held-locks-given-back-by-the-lock-thread lock-runtime/src/store/abandon.rs \
    'elsewhere: turn == if self.unanswered_on.is_some() { 2 } else { 1 },' \
    'elsewhere: self.stake.queued.is_some() && turn == 1,' \
    promises giving_back::keys_that_a_call_for_several_keeps_are_given_back_though_the_lock_thread_reaches_nothing \
    'the kept keys to be free'

plant dropped-locks-given-back-by-the-lock-thread lock-runtime/src/store/abandon.rs \
    'elsewhere: turn == if self.unanswered_on.is_some() { 2 } else { 1 },' \
    'elsewhere: self.stake.queued.is_some() && self.unanswered_on.is_none() && turn == 1,' \
    promises giving_back::a_dropped_lock_is_released_though_the_server_takes_no_more_connections \
    'the lock to be free'

plant unanswered-given-back-by-the-lock-thread lock-runtime/src/store/abandon.rs \
    'elsewhere: turn == if self.unanswered_on.is_some() { 2 } else { 1 },' \
    'elsewhere: self.unanswered_on.is_none() && turn == 1,' \
    promises giving_back::a_lock_whose_grant_was_not_answered_is_released_by_the_next_connection_of_the_runtime \
    'the lock to be free'

plant dropped-locks-without-hurry lock-runtime/src/store/abandon.rs \
    'if tries == 0 && self.unanswered_on.is_none() {' \
    'if tries == 0 && self.unanswered_on.is_none() && self.stake.queued.is_some() {' \
    scenarios giving_back::a_dropped_lock_does_not_wait_behind_thousands_of_places_on_a_silent_connection \
    'the lock '

plant refused-places-left lock-runtime/src/store/abandon.rs \
    '(false, PLACE_REFUSED, PLACE_KEPT)' \
    '(false, self.ttl.max(UNDER_WAY), PLACE_KEPT)' \
    promises giving_back::a_place_is_given_back_soon_after_its_user_is_allowed_it_again \
    "the proxy's rule to be used"

plant places-kept-for-a-lease lock-runtime/src/store/abandon.rs \
    '(false, PLACE_REFUSED, PLACE_KEPT)' \
    '(false, PLACE_REFUSED, self.ttl.max(PLACE_KEPT))' \
    promises giving_back::a_place_is_given_up_after_ten_minutes_however_long_its_lease \
    'the connections to be closed'

plant refusals-like-silence lock-runtime/src/store/abandon.rs \
    '() = back, if attempt == ReleaseAttempt::NoAnswer => {}' \
    '() = back, if attempt != ReleaseAttempt::MayLandLater => {}' \
    promises giving_back::a_server_that_takes_no_writes_is_asked_to_take_a_place_back_a_few_times_a_second \
    'tries in'

plant unused-batcher-stays lock-runtime/src/store/redis/connection/batcher.rs \
    '() = unused => {}' \
    '() = unused, if false => {}' \
    cancellation batches::calls_that_are_dropped_with_their_manager_leave_no_lock_and_no_connection \
    'the connections to be closed'

plant batch-refused-for-good lock-runtime/src/store/access.rs \
    'let is_undone = matches!(&answer, Err(error) if error.effect() == Effect::None);' \
    'let is_undone = false && matches!(&answer, Err(error) if error.effect() == Effect::None);' \
    cancellation batches::scripts_that_the_server_has_forgotten_are_sent_again_for_each_of_many \
    'NOSCRIPT'
