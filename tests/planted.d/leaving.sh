# Faults in releases and clean-ups that are not waited for. Read by ../planted.

plant pipelined-unattended lock-runtime/src/hold/upkeep/pipelined.rs \
    'watchdog.pipelined.look_after(watchdog, sent);' \
    'drop(sent);' \
    promises leaving::a_pipelined_release_is_sent_though_its_runtime_is_not_driven_any_more \
    'in vain: the release'
