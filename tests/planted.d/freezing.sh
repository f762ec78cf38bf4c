# Faults in what becomes of calls that are polled no more on their way to a lock. Read by ../planted.

plant grant-not-taken-back lock-runtime/src/acquire/callers.rs \
    'stake.give_back(backend, &self.receipt, true);' \
    'let _ = (&stake, backend);' \
    promises freezing::a_call_for_a_free_lock_that_is_polled_no_more_holds_up_no_other \
    'not within'

plant claimed-after-it-was-taken-back lock-runtime/src/acquire/callers.rs \
    'mine.as_mut().filter(|mine| mine.taken_back.is_none())' \
    'mine.as_mut()' \
    lib acquire::callers::tests::a_call_has_twice_the_time_after_each_grant_it_has_lost \
    'the call has what it has lost'

plant taken-by-script-and-kept lock-runtime/src/store/redis/queue/mod.rs \
    'request.receipt.taking(true);' \
    'request.receipt.taking(false);' \
    promises freezing::a_call_for_a_busy_lock_that_is_polled_no_more_holds_up_no_other \
    'not within'

plant front-not-taken-away lock-runtime/src/acquire/callers.rs \
    'front.revoke(&*self.places);' \
    'let _ = front;' \
    promises freezing::the_line_moves_on_while_the_call_in_front_waits_frozen \
    "the next in line in the store's queue"

plant lead-not-taken-away lock-runtime/src/acquire/coalesce.rs \
    'inner.led_by(&self.flight, self.lead).map(|party| party.calls.revoke())' \
    'inner.led_by(&self.flight, 0).map(|party| party.calls.revoke())' \
    promises freezing::a_leader_that_is_polled_no_more_before_it_has_the_lock_loses_the_lead \
    'no call leads'

plant keys-kept-by-a-frozen-call lock-runtime/src/acquire/multi.rs \
    'pending.receipt().taking(true);' \
    'pending.receipt().taking(false);' \
    promises freezing::keys_that_are_kept_by_a_call_that_is_polled_no_more_go_to_others \
    'a key that is kept'

plant judged-after-standing-still lock-runtime/src/acquire/callers.rs \
    'if stood_still && asleep.is_some() {' \
    'if false && stood_still && asleep.is_some() {' \
    lib acquire::callers::tests::a_call_has_its_time_anew_after_the_whole_process_stood_still \
    'judged after'

plant same-time-after-each-loss lock-runtime/src/acquire/callers.rs \
    'CLAIMS_WITHIN.saturating_mul(1 << losses).min(CLAIMS_WITHIN_AT_LAST)' \
    'CLAIMS_WITHIN.saturating_mul(1 << (losses & 0)).min(CLAIMS_WITHIN_AT_LAST)' \
    lib acquire::callers::tests::a_call_has_twice_the_time_after_each_grant_it_has_lost \
    'after 1 losses'

plant merged-and-not-woken lock-runtime/src/acquire/line.rs \
    'let woken = if self.vacant {' \
    'let woken = if self.vacant && self.waiting.is_empty() {' \
    lib acquire::coalesce::tests::those_of_a_closed_flight_that_fails_are_woken_to_lead_where_no_call_leads \
    'the follower is not woken'

plant unread-is-news lock-runtime/src/store/redis/queue/look.rs \
    'ended |= ticket.notify(Notice::Lapsed);' \
    'ticket.notify(Notice::Lapsed);
                ended = true;' \
    promises freezing::a_notice_that_a_frozen_call_does_not_read_causes_no_storm_of_looks \
    'commands in a second in which nothing happened'

plant given-up-after-standing-still lock-runtime/src/store/redis/connection/slot.rs \
    'None if host.now().since(began) > limit + LATE =>' \
    'None if host.now().since(began) > limit + LATE * 1_000 =>' \
    promises freezing::a_connection_that_is_made_while_the_runtime_stands_still_is_not_given_up \
    'a call failed for the time before it'

plant hangs-after-standing-still lock-runtime/src/store/redis/connection/slot.rs \
    'second = Some(Box::pin(self.slot.connect())),' \
    'drop(second.take()),' \
    promises freezing::a_connection_that_hangs_while_the_runtime_stands_still_is_made_anew_soon_after \
    'a call waited for a connection from before'

plant reads-first-in-the-call lock-runtime/src/store/redis/connection/runtime_connections.rs \
    'let way = if is_busy || slot.may_have_ended(&live) {' \
    'if slot.may_have_ended(&live) {
                return None;
            }
            let way = if is_busy {' \
    promises freezing::a_release_on_a_quiet_connection_is_sent_though_its_call_is_polled_no_more \
    'the release is not sent'
