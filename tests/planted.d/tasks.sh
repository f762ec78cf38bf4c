# Faults in the tasks that belong to a lock. Read by ../planted.

plant call-leaves-tasks lock-runtime/src/hold/guard/mod.rs \
    'return Released::AfterTasks(self, tasks);' \
    'drop(tasks);' \
    promises tasks::a_call_ends_after_its_tasks_and_releases_after_them \
    'the task'"'"'s lock was gone before the task, after the end of its body'

plant tasks-without-share lock-runtime/src/hold/guard/branch.rs \
    '        let guard = Guard::nested(Arc::clone(held), held.options.on_lost)?;' \
    '        let guard = Guard::nested(Arc::clone(held), held.options.on_lost)?;
        held.drop_guard();' \
    lib hold::guard::branch::tests::a_lock_is_released_after_the_share_of_its_task \
    'the lock is released before its task is over'

plant tasks-forgotten lock-runtime/src/hold/guard/mod.rs \
    '            self.held.stop_tasks();' \
    '' \
    promises tasks::a_call_that_is_dropped_or_panics_releases_after_its_tasks \
    'the release'

plant task-without-look lock-runtime/src/hold/guard/branch.rs \
    'held.check_deadline().is_some_and' \
    'held.end_cause().is_some_and' \
    promises tasks::a_task_is_looked_after_by_the_clock_before_each_of_its_polls \
    'a task was polled after its lock'

plant task-cut-in-half lock-runtime/src/hold/guard/branch.rs \
    'ended && !held.is_shielded()' \
    'ended' \
    promises tasks::a_shielded_step_in_a_task_is_not_cut_in_half \
    'assertion'

plant undone-without-cause lock-runtime/src/attribute/mod.rs \
    'Err(error) if began => Some' \
    'Err(error) => Some' \
    attribute compensation::the_function_is_not_called_for_a_body_that_was_not_cancelled_by_its_lock \
    '"busy"'

plant task-spawned-behind-the-end lock-runtime/src/hold/mod.rs \
    '        if tasks.1 {
            return None;
        }
        share(' \
    '        share(' \
    lib hold::guard::branch::tests::a_task_has_no_share_of_a_lock_whose_body_has_ended \
    'the task would hold the lock after the call that released it'

plant tasks-woken-by-each-step lock-runtime/src/hold/mod.rs \
    '.filter(|tasks| is_over || tasks.is_stopped())' \
    '' \
    promises tasks::the_last_shielded_step_only_wakes_tasks_that_have_to_end \
    'a task was woken for nothing'

plant tasks-woken-too-early lock-runtime/src/hold/mod.rs \
    'if held.shields.fetch_sub(1, Ordering::AcqRel) > 1 {' \
    'if held.shields.fetch_sub(1, Ordering::AcqRel) > 9 {' \
    promises tasks::the_last_shielded_step_only_wakes_tasks_that_have_to_end \
    'a task was woken before the last step was done'
