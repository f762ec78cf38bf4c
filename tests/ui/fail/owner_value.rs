//! An `owner` that is not a template.

#![allow(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", owner = workflow_id)]
async fn not_in_quotes(workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", owner = "<workflow>")]
async fn unknown(workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", owner = "")]
async fn empty(workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", owner = "<tenant>-<workflow_id>")]
async fn ambiguous(tenant: &str, workflow_id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
