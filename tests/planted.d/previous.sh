# Faults that two builds notice only beside each other. Read by ../planted.

plant another-prefix lock-runtime/src/manager/builder.rs \
    'prefix: "dist_lock:".to_owned(),' \
    'prefix: "dist_locks:".to_owned(),' \
    previous turns::calls_of_both_builds_that_never_stop_meet_nobody_and_get_their_turns \
    'entered while inside'
