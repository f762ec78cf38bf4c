# Faults that two builds notice only beside each other. Read by ../planted.

plant another-prefix lock-runtime/src/manager/builder.rs \
    'const DEFAULT_PREFIX: &str = "dist_lock:";' \
    'const DEFAULT_PREFIX: &str = "dist_locks:";' \
    previous turns::calls_of_both_builds_that_never_stop_meet_nobody_and_get_their_turns \
    'entered while inside'
