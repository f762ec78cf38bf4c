# Faults in what the server's user needs. Read by ../planted.

plant absence-by-exists lock-runtime/src/store/redis/ops/exclusive_release.lua \
    "redis.call('PTTL', KEYS[2 * i + 1]) == -2" \
    "redis.pcall('EXISTS', KEYS[2 * i + 1]) == 0" \
    promises permissions::the_server_denies_nothing_to_a_user_with_the_lines_for_what_it_does \
    '"exists"'

plant library-tells-its-name lock-runtime/src/store/redis/url.rs \
    'redis = redis.set_skip_set_lib_name();' \
    '' \
    promises permissions::the_server_denies_nothing_to_a_user_with_the_lines_for_what_it_does \
    '"client'
