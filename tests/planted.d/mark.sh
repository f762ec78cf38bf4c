# Faults in the mark of a server that is one of several masters. Read by ../planted.

plant mark-not-compared-behind-set lock-runtime/src/store/redis/ops/exclusive.rs \
    'if matches!(&found, Value::BulkString(found) if found == mark.as_bytes()) {' \
    'if true || mark.is_empty() {' \
    conformance redis::mark::a_connection_that_is_up_notices_each_loss_of_the_mark_in_each_way_to_get_a_lock \
    'a closed server has given a lock'

plant mark-not-compared-in-front-of-scripts lock-runtime/src/store/redis/ops/marked.lua \
    '~= table.remove(ARGV) then' \
    '== #table.remove(ARGV) then' \
    conformance redis::mark::a_connection_that_is_up_notices_each_loss_of_the_mark_in_each_way_to_get_a_lock \
    'a closed server has given a lock'

plant lock-taken-from-a-forgotten-queue lock-runtime/src/store/redis/queue/mod.rs \
    '([&TAKE, &MARKED_TAKE], &exclusive)' \
    '([&TAKE, &TAKE], &exclusive)' \
    conformance redis::mark::a_waiter_is_not_handed_a_lock_that_the_server_has_forgotten_in_between \
    'a closed server has given a lock'

plant mark-of-another-run-counts lock-runtime/src/store/redis/connection/mark.lua \
    'if run ~= ARGV[1] then' \
    'if not run then' \
    conformance redis::mark::a_restart_closes_the_server_with_its_data_and_without \
    'a closed server has given a lock'

plant earlier-runs-longest-lease-forgotten lock-runtime/src/store/redis/connection/mark.lua \
    'math.max(now + math.max(ARGV[2], longest or 0), opens)' \
    'now + ARGV[2]' \
    conformance redis::mark::a_restart_waits_for_the_longest_lease_of_the_runs_before \
    'assertion failed: closes('

plant mark-counted-twice lock-runtime/src/store/redis/connection/batcher.rs \
    'let count = pipeline.cmd_iter().count();' \
    'let count = pipeline.cmd_iter().count() + usize::from(reads_mark);' \
    conformance redis::mark::a_crowd_reads_the_mark_once_for_many_and_gets_nothing_after_a_flush \
    'the server gave an unexpected answer'
