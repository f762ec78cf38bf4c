# Faults in releases and clean-ups that are not waited for. Read by ../planted.

plant pipelined-unattended lock-runtime/src/hold/upkeep/pipelined.rs \
    'watchdog.pipelined.look_after(watchdog, sent);' \
    'drop(sent);' \
    promises leaving::a_pipelined_release_is_sent_though_its_runtime_is_not_driven_any_more \
    'in vain: the release'

plant overtakes-in-a-batch lock-runtime/src/store/redis/connection/batcher.rs \
    'self.is_later(lock) || self.runs.iter().any(|run| run.locks.contains(&lock))' \
    'self.is_later(lock)' \
    cancellation batches::a_call_finds_the_lock_free_that_a_pipelined_release_in_the_same_batch_has_released \
    'Busy'
