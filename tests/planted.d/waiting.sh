# Faults in waiting for a lock. Read by ../planted.

plant message-believed lock-runtime/src/store/redis/queue/queue_take.lua \
    'if holder ~= ARGV[1] then' \
    'if not holder then' \
    promises waiting::a_forged_message_starts_no_body_gives_no_token_and_costs_no_place \
    'a forged message has let it in'

plant no-own-look lock-runtime/src/store/redis/queue/look.rs \
    'waiters.nudge_at <= now && now.since(waiters.seen) >= UNSEEN' \
    'waiters.nudge_at <= now && now < waiters.seen' \
    promises waiting::a_waiter_that_hears_nothing_looks_by_its_own_connection \
    'it never got the lock'

plant deaf-passed-over lock-runtime/src/store/redis/queue/queue.lua \
    'if mark == DEAF or may_listen_soon or told ~= 0 then' \
    'if may_listen_soon or told ~= 0 then' \
    promises waiting::a_process_that_may_not_subscribe_gets_its_turn \
    'it never got the lock'

plant foreign-like-ours lock-runtime/src/store/redis/queue/look.rs \
    'map_or(true, |holder| !is_ours(holder))' \
    'map_or(false, |holder| holder.is_empty() && !is_ours(holder))' \
    promises waiting::a_holder_of_another_kind_that_comes_back_at_once_does_not_starve_waiters \
    'beside another kind of client'

plant join-after-listening lock-runtime/src/store/redis/queue/mod.rs \
    'if let Some(turn) = self.join(&commands, request, ticket).await? {' \
    'while !self.is_listening() { tokio::time::sleep(Duration::from_secs(20)).await } if let Some(turn) = self.join(&commands, request, ticket).await? {' \
    scenarios waiting::a_silent_connection_delays_those_who_wait_for_many_keys_once \
    'calls got their free keys'

plant refused-take-forgotten lock-runtime/src/acquire/attempt.rs \
    'Effect::None && !stands' \
    'Effect::None && (stands || !stands)' \
    promises waiting::a_lock_that_was_handed_over_is_given_back_when_it_cannot_be_taken \
    'a lock that its waiter could not take'

plant place-never-given-back lock-runtime/src/store/redis/connection/batcher.rs \
    'capacity.taken.fetch_sub(1, Ordering::SeqCst);' \
    '' \
    promises waiting::calls_that_are_polled_no_more_take_no_other_calls_place_on_the_connection \
    'calls that are polled no more'

plant room-told-once lock-runtime/src/store/redis/connection/batcher.rs \
    'const PASSED_OVER: Duration = Duration::from_millis(5);' \
    'const PASSED_OVER: Duration = Duration::from_secs(500);' \
    promises waiting::calls_that_wait_to_be_sent_and_are_polled_no_more_are_passed_over \
    'calls that are polled no more'

plant leads-without-time lock-runtime/src/acquire/coalesce.rs \
    'if left <= manager.backend.access.usual_round_trip() && !options.wait.is_zero() {' \
    'if false {' \
    lib acquire::coalesce::tests::a_call_without_time_for_a_round_trip_passes_the_lead_on \
    'it leads with less time than the store takes to answer'

plant places-given-back-by-the-lock-thread lock-runtime/src/store/abandon.rs \
    'elsewhere: turn == if self.unanswered_on.is_some() { 2 } else { 1 },' \
    'elsewhere: false,' \
    promises waiting::a_call_that_gives_up_leaves_no_place_though_the_lock_thread_reaches_nothing \
    '1 in the queue for `k`'

plant claims-as-short-as-leases lock-runtime/src/store/redis/keyspace.rs \
    'millis(claim(queued.ttl))' \
    'millis(claim(queued.ttl).min(queued.ttl))' \
    promises waiting::a_short_lease_leaves_time_to_find_a_handover_that_no_message_tells \
    '100 ms'
