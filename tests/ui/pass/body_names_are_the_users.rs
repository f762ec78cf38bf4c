//! The body neither sees nor hides a name of the generated code.

#![deny(warnings)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a:<held>:<call>")]
async fn same_names(held: u32, call: u32, ended: u32, body: u32) -> Result<u32, LockError> {
    let __lock_held = 1;
    let error = 2;
    let value = 3;
    let key = || 4;
    Ok(held + call + ended + body + __lock_held + error + value + key())
}

fn main() {
    drop(same_names(1, 2, 3, 4));
}
