# Faults in what belongs to a call tree, and in what counts as told. Read by ../planted.

plant told-by-looking lock-runtime/src/hold/call_tree.rs \
    '!self.held.is_over()' \
    'self.still_held().is_ok()' \
    promises call_tree::looking_at_a_lost_lock_is_not_asking_for_the_loss \
    'a body that did not ask for a loss ended with Ok(()) after is_held'

plant driven-tasks-inside lock-runtime/src/hold/call_tree.rs \
    'filter(|polled| polled.task == task)' \
    'filter(|polled| polled.task == task || task.is_some())' \
    promises call_tree::a_task_that_a_body_drives_is_not_inside_its_locks \
    'a task that a body drives'
