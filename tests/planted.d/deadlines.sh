# Faults in the deadlines of held locks, the look at them, and the comparison of a renewal. Read by ../planted.

plant from-reply lock-runtime/src/hold/tenure.rs \
    'let deadline = manager.deadline(sent, options.lease);' \
    'let deadline = manager.deadline(granted, options.lease);' \
    faults loss::the_first_body_has_stopped_before_the_second_is_let_in \
    'after the grant'

plant from-answer lock-runtime/src/hold/tenure.rs \
    'let deadline = self.manager.deadline(sent, self.lease);' \
    'let deadline = self.manager.deadline(self.now(), self.lease);' \
    faults loss::the_first_body_has_stopped_before_the_second_is_let_in \
    'after the grant'

plant no-look lock-runtime/src/hold/guard/run.rs \
    'let cause = guard.held().check_deadline();' \
    'let cause = guard.held().end_cause();' \
    faults client::a_suspended_host_finds_its_body_cancelled_when_it_wakes \
    'the body was polled after its lease'

plant not-owned lock-runtime/src/store/redis/ops/exclusive_renew.lua \
    'if holder == ARGV[2 * i - 1] then' \
    'if holder then' \
    faults client::a_renewal_under_way_has_no_effect_after_the_release \
    'the late renewal set the expiry'

plant max-hold-doubled lock-runtime/src/hold/options.rs \
    'since.after(span))' \
    'since.after(span.saturating_mul(2)))' \
    attribute arguments::a_body_that_runs_beyond_its_limit_counts_as_hung_at_that_time \
    'right: 600'

plant max-hold-at-a-renewal lock-runtime/src/hold/upkeep/watchdog.rs \
    'let due = plan.next(held.ends_at());' \
    'let due = plan.next(held.deadline());' \
    attribute arguments::a_body_that_runs_beyond_its_limit_counts_as_hung_at_that_time \
    'right: 5'
