# Faults in what replicas are asked, and in what is asked on idle connections. Read by ../planted.

plant one-replica-less lock-runtime/src/hold/guard/replicas.rs \
    'Ok(Replicated::To(replicas)) if replicas >= wanted => {' \
    'Ok(Replicated::To(replicas)) if replicas + 1 >= wanted => {' \
    faults replicas::too_few_replicas_give_the_lock_back_and_are_counted \
    'the body runs'

plant replicas-of-nothing lock-runtime/src/store/redis/replicas.rs \
    'Ownership::Owned => held.push(call),' \
    'Ownership::Owned | Ownership::Gone | Ownership::Foreign => held.push(call),
                #[allow(unreachable_patterns)]' \
    faults replicas::a_lock_that_is_lost_before_replicas_have_it_starts_no_body \
    'the body runs'

plant kept-though-too-few lock-runtime/src/hold/guard/replicas.rs \
    'drop(LockGuard::new(self).release().await);' \
    'std::mem::forget(self);' \
    faults replicas::too_few_replicas_give_the_lock_back_and_are_counted \
    'it has been released'

plant asked-by-the-caller lock-runtime/src/store/redis/replicas.rs \
    'line.slot.host().spawn(serving.run()).map_err(StoreError::permanent)?;' \
    'serving.run().await;' \
    faults replicas::a_call_that_is_polled_no_more_while_it_waits_for_replicas_holds_up_no_other \
    'nothing about the replicas within'

plant idle-is-fine lock-runtime/src/store/redis/connection/idle.rs \
    'let mut pause = quiet;' \
    'let mut pause = Duration::from_secs(3600);' \
    promises outages::an_idle_connection_that_falls_silent_is_replaced_before_a_call_needs_it \
    'each connection to be replaced'

plant kept-for-nothing lock-runtime/src/hold/mod.rs \
    'if self.tenure.replicas() < u32::from(self.options.min_replicas) {' \
    'if self.tenure.replicas() > u32::from(u8::MAX) {' \
    faults replicas::a_call_that_too_few_replicas_have_does_not_keep_its_minimum_hold \
    'it has been released'

plant one-connection-for-all lock-runtime/src/store/redis/replicas.rs \
    'let others = usize::try_from(wanted.saturating_sub(1)).unwrap_or(usize::MAX);' \
    'let others = usize::try_from(wanted.min(0)).unwrap_or(usize::MAX);' \
    faults replicas::a_call_that_waits_for_more_replicas_holds_up_none_that_wants_fewer \
    'the other one should have ended before'

plant expired-before-the-replicas lock-runtime/src/hold/guard/replicas.rs \
    '.map_or(Ok(()), |cause| Err(self.error(cause, false)))' \
    '.map_or(Ok(()), |_| Ok(()))' \
    faults replicas::a_lock_that_expires_before_replicas_have_it_is_lost_and_no_guard_is_returned \
    'called `Result::unwrap_err()`'
