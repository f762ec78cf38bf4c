# Faults in the turns of clients of other kinds. Read by ../planted.

plant never-left-free lock-runtime/src/store/redis/ops/exclusive_release_waiting.lua \
    'if leave_free(queue, how) then' \
    'if false then' \
    scenarios releasing::a_poller_gets_a_turn_about_once_a_second_beside_calls_in_the_queue_of_the_store \
    'turns of the poller'

plant left-free-for-the-next-in-line lock-runtime/src/acquire/attempt.rs \
    'seen.queues |= left_free.is_some_and(has_time) && first.is_none();' \
    'let _ = left_free.is_some_and(has_time);' \
    promises strangers::what_a_release_leaves_free_is_not_taken_by_the_next_in_line \
    'releases: Command'

plant left-free-until-somebody-looks lock-runtime/src/store/redis/queue/look.rs \
    'queue.host().sleep(Timer::LockThread, pause).await;
            if let' \
    'std::future::pending::<()>().await;
            if let' \
    promises strangers::fair_calls_keep_their_order_and_lose_only_the_moment_in_which_the_lock_is_left_free \
    'calls'

plant left-free-by-permission lock-runtime/src/store/redis/ops/exclusive_release_waiting.lua \
    "local time = redis.pcall('TIME')" \
    "local time = redis.call('TIME')" \
    promises strangers::a_user_with_the_fewest_permissions_gives_back_what_others_wait_for \
    'a lock was not given back'

plant left-free-for-too-long lock-runtime/src/acquire/attempt.rs \
    'let has_time = |pause| pause < self.left(self.manager.now());' \
    'let has_time = |_| self.left(self.manager.now()) < Duration::MAX;' \
    scenarios releasing::a_call_takes_what_was_left_free_if_it_cannot_wait_until_that_is_over \
    'it waits for what is free'

plant left-free-for-those-who-did-not-wait lock-runtime/src/acquire/local_queue.rs \
    'std::mem::take(&mut line.left_free) || self.openings.is_open(key, backend)' \
    'std::mem::take(&mut line.left_free) && self.openings.is_open(key, backend) && backend.leave_free.is_none()' \
    scenarios releasing::a_poller_gets_a_turn_about_once_a_second_beside_one_call_of_each_process \
    'turns of the poller'

plant untold-of-the-queue lock-runtime/src/acquire/attempt.rs \
    'if let Some(place) = place {
                        self.manager.lines.report(place, &seen.contention);
                    }
                }
                turn' \
    '}
                turn' \
    promises strangers::calls_behind_one_that_went_straight_to_the_queue_are_told_who_has_the_lock \
    'it is not told who has the lock'

plant untold-without-a-holder lock-runtime/src/acquire/attempt.rs \
    'if found.is_some() || is_answered && !reported {' \
    'if found.is_some() || is_answered && !reported && seen.contention.holder.is_some() {' \
    promises strangers::calls_behind_one_that_found_the_lock_left_free_are_told_that_it_is_busy \
    'it says that the store has not answered'
