# Faults in what the server's user needs. Read by ../planted.

plant absence-by-exists lock-runtime/src/store/redis/ops/exclusive_release.lua \
    "redis.call('PTTL', KEYS[2 * i]) == -2" \
    "redis.pcall('EXISTS', KEYS[2 * i]) == 0" \
    promises permissions::the_server_denies_nothing_to_a_user_with_the_lines_for_what_it_does \
    '"exists"'

plant library-tells-its-name lock-runtime/src/store/redis/url.rs \
    'redis = redis.set_skip_set_lib_name();' \
    '' \
    promises permissions::the_server_denies_nothing_to_a_user_with_the_lines_for_what_it_does \
    '"client'

plant list-looks-beside-locks lock-runtime/src/store/redis/ops/inspect.rs \
    'keys.filter(|key| !names.is_reserved(key))' \
    'keys.filter(|key| !names.is_reserved(key) || true)' \
    promises permissions::a_user_of_the_keys_that_the_layout_lists_needs_no_other \
    'NOPERM'
