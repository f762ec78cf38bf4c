# Faults in what is done while a server is out of reach, and when it is back. Read by ../planted.

plant slow-to-reconnect lock-runtime/src/store/redis/connection/slot.rs \
    '(self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)' \
    'Duration::from_secs(30)' \
    promises outages::an_old_body_ends_within_a_second_of_the_return_of_a_server_without_its_data \
    'the old body ran on for'

plant silence-is-fine lock-runtime/src/hold/upkeep/checked.rs \
    'const ASK_EVERY: Duration = Duration::from_millis(400);' \
    'const ASK_EVERY: Duration = Duration::from_secs(400);' \
    promises outages::an_old_body_ends_within_a_second_of_an_outage_that_closed_no_connection \
    'the old body ran on for'

plant one-loss-is-one-loss lock-runtime/src/hold/upkeep/watchdog.rs \
    'checked.suspect();' \
    '' \
    promises outages::a_loss_of_all_data_that_nothing_reports_ends_every_body_within_a_second \
    'the old body ran on for'

plant released-is-lost lock-runtime/src/hold/upkeep/watchdog.rs \
    'plan.due?;' \
    'if verdict != Some(Ownership::Gone) {
            plan.due?;
        }' \
    promises outages::a_check_that_a_release_overtakes_puts_no_other_lock_in_doubt \
    'it was checked, and no lock was lost'

plant asks-about-the-youngest lock-runtime/src/hold/upkeep/checked.rs \
    'self.locks.first_key_value()?' \
    'self.locks.last_key_value()?' \
    promises outages::a_loss_of_all_data_that_nothing_reports_ends_every_body_within_a_second \
    'the old body ran on for'

plant return-unheard lock-runtime/src/store/redis/connection/slot.rs \
    'if is_up && was_down {' \
    'if is_up && was_down && inner.home.is_none() {' \
    promises outages::every_lock_is_checked_when_any_connection_is_back \
    'the old body ran on for'

plant small-checks lock-runtime/src/hold/upkeep/watchdog.rs \
    'if is_a_read { 1 } else { LONGER };' \
    'LONGER;' \
    promises outages::many_lost_locks_are_found_in_few_round_trips \
    'round trips for'

plant long-pauses lock-runtime/src/hold/upkeep/watchdog.rs \
    'let longest = (held.lease / 10).min(held.deadline().since(now) / 4);' \
    'let longest = held.lease / 10;' \
    promises outages::a_renewal_is_tried_again_in_what_is_left_of_the_lease_however_long_it_has_failed \
    'lost though the store took renewals'

plant answers-unheard lock-runtime/src/hold/upkeep/watchdog.rs \
    'plan.hurry(self.watchdog.clock.now());' \
    '' \
    promises outages::an_overdue_renewal_is_made_as_soon_as_a_check_is_answered \
    'in vain: the renewal, while the clock stands'

plant forgiven-renewals lock-runtime/src/hold/upkeep/watchdog.rs \
    'plan.check_retry = None;
                plan.check_at = plan.check_at.filter' \
    'plan.check_retry = None;
                plan.renewal_retry = None;
                plan.check_at = plan.check_at.filter' \
    promises outages::a_lock_that_could_not_be_renewed_is_lost_as_unreachable_though_checks_were_answered \
    'reason: Expired'

plant patient-with-silence lock-runtime/src/hold/upkeep/watchdog.rs \
    'sleep(timer, LATE.min(left / 4))' \
    'sleep(timer, Duration::from_secs(1))' \
    promises outages::a_lease_of_half_a_second_or_more_survives_a_connection_that_falls_silent \
    'the leases that were renewed'

plant sleepy-releases lock-runtime/src/store/abandon.rs \
    '() = back, if attempt == ReleaseAttempt::NoAnswer => {}
            }
            let is_seldom = attempt == ReleaseAttempt::Refused { for_good: true }
                || access.clock.now().since(began) >= SELDOM_AFTER;
            pause = (pause * 2).min(if is_seldom { SELDOM } else { LONGEST_RETRY });' \
    '}
            pause = SELDOM * 4;' \
    promises outages::locks_that_were_dropped_during_an_outage_are_free_soon_after_it \
    'locks that nobody holds stayed for'

plant long-goodbye lock-runtime/src/hold/upkeep/pace.rs \
    '.timeout(timer, UNANSWERED, manager.unanswered.wait())' \
    '.timeout(timer, grace, manager.unanswered.wait())' \
    promises outages::a_shutdown_with_nothing_held_takes_a_second_at_most_after_an_acquire_without_an_answer \
    'the shutdown took'

plant endless-clean-up lock-runtime/src/store/abandon.rs \
    'Ok(_) if asked >= self.arrived_by => ReleaseAttempt::Done,' \
    'Ok(_) if asked >= self.until => ReleaseAttempt::Done,' \
    promises outages::what_cleans_up_after_an_acquire_without_an_answer_ends_when_that_cannot_arrive_any_more \
    'the connections to be closed'

plant impatient-with-slow-lines lock-runtime/src/store/redis/connection/slot.rs \
    'let patience = (live.usual() * 2)' \
    'let patience = (live.usual() / 100)' \
    scenarios renewing::a_line_that_is_slow_gets_no_connections_that_cannot_win \
    'more connections over a slow line'

plant redials-at-once lock-runtime/src/store/redis/connection/slot.rs \
    'self.pause = if is_steady {' \
    'self.pause = if is_steady || true {' \
    promises outages::a_thousand_calls_do_not_dial_a_server_that_refuses_them_more_often_than_one_does \
    'dials, of at most'

plant one-lane-for-all-servers lock-runtime/src/hold/tenure.rs \
    'keys.iter().map(|key| manager.store().lane(key))' \
    'keys.iter().map(|_| Lane::default())' \
    faults watchdog::a_server_that_does_not_answer_holds_up_no_other_servers_locks \
    'a lock of the other server was not renewed'

plant locks-of-several-servers-in-one-lane lock-runtime/src/hold/tenure.rs \
    'lanes.filter(|lane| *lane != first)' \
    'lanes.filter(|lane| *lane != first && lane.0 > 9)' \
    faults watchdog::a_server_that_does_not_answer_holds_up_no_locks_of_several_other_servers \
    'a lock of two other servers was not renewed'

plant pauses-counted-from-the-call lock-runtime/src/store/redis/connection/slot.rs \
    'now.max(began.after(pause))' \
    'now.max(began).after(pause)' \
    lib store::redis::connection::slot::tests::the_pause_before_a_redial_counts_from_the_attempt_before \
    'after 60 ms'

plant rests-through-a-return lock-runtime/src/acquire/attempt.rs \
    '() = back => {}' \
    '() = back, if pause.is_zero() => {}' \
    promises outages::all_calls_go_on_as_soon_as_one_has_found_the_server_back \
    'no call pauses after another has found the server back'

plant renewals-after-the-skew lock-runtime/src/hold/margins.rs \
    'lease.saturating_sub(self.skew) / 3 * 2' \
    'lease / 3 * 2' \
    faults watchdog::a_lock_is_renewed_before_a_skew_that_takes_most_of_its_lease_ends_it \
    'lost with a skew of'

plant clean-up-at-every-return lock-runtime/src/store/abandon.rs \
    '() = back, if attempt == ReleaseAttempt::NoAnswer => {}' \
    '() = back => {}' \
    lib store::abandon::tests::a_release_that_was_answered_is_not_repeated_at_each_return_of_a_connection \
    'releases of what was not there'

plant pauses-by-an-old-answer lock-runtime/src/acquire/attempt.rs \
    'seen.contention.remaining.filter(|_| seen.contention.error.is_none())' \
    'seen.contention.remaining' \
    lib acquire::tests::a_store_that_fails_is_not_asked_as_if_the_lock_were_about_to_be_free \
    'attempts in a second'

plant places-left-after-a-lease lock-runtime/src/store/abandon.rs \
    '(false, PLACE_REFUSED, PLACE_KEPT)' \
    '(false, PLACE_REFUSED, PLACE_KEPT / 120)' \
    promises outages::a_place_that_was_left_during_an_outage_is_given_back_after_it_however_long_it_was \
    'a place of the call that waits, and no other'

plant counted-as-held-for-ever lock-runtime/src/store/abandon.rs \
    'if now >= self.held_until {' \
    'if now >= self.until {' \
    promises outages::a_shutdown_waits_for_a_lock_that_was_handed_over_no_longer_than_its_lease \
    'the shutdown took'

plant sent-on-an-ended-connection lock-runtime/src/store/redis/connection/batcher.rs \
    'self.has_ended = !(self.link.is_in_use)();' \
    'self.has_ended = false;' \
    faults network::a_runtime_that_is_driven_per_job_sees_that_the_server_has_ended_its_idle_connection \
    'broken pipe'
