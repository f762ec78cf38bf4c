# Faults in who gets the lock when many want it: queues with strange members, crowds, pollers. Read by ../planted.

plant claim-believed lock-runtime/src/store/redis/queue/queue.lua \
    'return math.min(tonumber(claim), LONGEST_CLAIM),' \
    'return tonumber(claim),' \
    promises sharing::a_member_of_the_queue_that_somebody_has_forged_has_the_lock_for_a_claim_at_most \
    'by 1000000000000:0:abc'

plant class-believed lock-runtime/src/store/redis/ops/shared.lua \
    'return most_of(class_of(value)) and' \
    'return' \
    promises sharing::a_forged_member_of_a_shared_queue_keeps_the_others_waiting_for_a_claim_at_most \
    'kept a reader out'

plant counted-twice lock-runtime/src/store/redis/ops/shared.lua \
    "return most_of(class_of(value)) and not redis.call('ZSCORE', held.lock, value)" \
    'return most_of(class_of(value))' \
    promises sharing::a_holder_that_somebody_puts_into_the_queue_again_counts_once \
    'the tally is not the number of holders'

plant signs-of-the-future lock-runtime/src/store/redis/queue/queue.lua \
    'if newest >= present then' \
    'if newest then' \
    promises sharing::the_order_is_kept_when_the_servers_clock_is_set_back \
    'somebody was passed over'

plant sign-left-behind lock-runtime/src/store/redis/queue/queue.lua \
    'served[process or '"''"'] = true' \
    '' \
    promises sharing::the_last_of_a_process_to_leave_the_queue_takes_its_sign_of_life_along \
    'a sign of life was left behind'

plant crowd-in-one-script lock-runtime/src/store/redis/queue/queue.lua \
    'local TURNS = 60' \
    'local TURNS = 60000' \
    promises sharing::a_script_lets_in_a_bounded_part_of_a_crowd \
    'were let in at once'

plant crowd-sent-at-once lock-runtime/src/store/redis/connection/batcher.rs \
    'const ACQUIRES: usize = 256;' \
    'const ACQUIRES: usize = 1 << 20;' \
    crowds asking::a_crowd_waits_before_it_is_sent_and_holds_up_no_release \
    'were sent before the release'
