# Faults in what errors, holders and reports say. Read by ../planted.

plant debug-tells-tokens lock-runtime/src/store/holder.rs \
    'write!(f, "Holder({self})")' \
    'write!(f, "Holder({})", self.value)' \
    promises words::no_text_tells_the_token_that_releases_a_lock \
    'the token is told: Busy'

plant open-flight lock-runtime/src/attribute/mod.rs \
    'flight.leader.close();' \
    'let _ = &flight.leader;' \
    promises words::a_coalescing_call_that_begins_after_another_holders_write_gets_no_older_result \
    'a call got a result from before the write'

plant cluster-as-permission lock-runtime/src/store/redis/connection/failure.rs \
    'let text = format!("the server is a node of a cluster: {text}");' \
    '' \
    promises words::a_key_that_is_on_another_node_is_told_as_that \
    '"node of a cluster" is missing'

plant commas-split-keys lock-runtime/src/diagnostics/lock_order.rs \
    'templates.iter().map(move |&template| Self { template, function })' \
    'templates.iter().flat_map(|keys| keys.split(", ")).map(move |template| Self { template, function })' \
    testing_kit lock_order::a_key_with_a_comma_in_it_is_one_lock \
    'one key was read as two'

plant tokens-of-the-parent lock-runtime/src/host/tokens.rs \
    'if self.fork.detected_fork() || !was_lately {' \
    'if !was_lately {' \
    lib host::tokens::tests::a_forked_process_uses_no_token_of_its_parent \
    'a token is used on both sides of the fork'

plant said-twice lock-runtime/src/error.rs \
    'Self::Store { source, .. } => source.source(),' \
    'Self::Store { source, .. } => Some(source),' \
    promises words::what_a_server_refuses_is_said_once_with_what_to_do \
    'is said twice'

plant password-shown lock-runtime/src/manager/url.rs \
    'shown.push_str(":***");' \
    'shown.push_str(&user_info[user_info.find('"'"':'"'"').unwrap_or_default()..]);' \
    promises words::what_is_wrong_at_start_up_names_the_server_without_its_password_and_no_lock \
    'cannot be used'

plant whole-lease-to-wait lock-runtime/src/axum.rs \
    '|rest| waited.min(rest)' \
    '|rest| rest' \
    testing_kit others::a_busy_call_is_told_a_sensible_time_to_come_back \
    'left: "30"'

plant place-of-the-library lock-runtime/src/attribute/mod.rs \
    '#[track_caller]
pub fn returned' \
    'pub fn returned' \
    attribute return_types::an_error_that_remembers_its_place_points_at_the_annotated_function \
    'attribute/mod.rs'

plant results-of-another-function lock-runtime/src/acquire/coalesce.rs \
    'item: TypeId::of::<I>(),' \
    'item: TypeId::of::<()>(),' \
    attribute coalesce::functions_that_one_macro_writes_share_no_result \
    'each returns its own result'

plant lost-is-repeated-by-proxies lock-runtime/src/axum.rs \
    'const PARTLY_DONE: u16 = 424;' \
    'const PARTLY_DONE: u16 = 409;' \
    lib axum::tests::a_request_that_may_have_been_carried_out_in_part_is_repeated_by_nobody \
    '409 Conflict: lock `inventory:7`'

plant begun-is-retryable lock-runtime/src/error.rs \
    '!began && !source.is_permanent()' \
    '!source.is_permanent()' \
    lib hold::guard::tests::a_store_that_fails_after_the_grant_asks_nobody_to_repeat_the_work \
    'the store failed while the lock was held'
