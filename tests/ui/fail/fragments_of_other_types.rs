//! A compile error about a fragment of a `macro_rules!` points at what was passed for it.

use lock_runtime::{LockError, distributed_lock};

macro_rules! locked {
    ($permits:expr, $lease:expr, $block:block, $error:ty) => {
        #[distributed_lock(key = "a", mode = semaphore($permits), lease = $lease)]
        async fn one() -> Result<u64, LockError> $block

        #[distributed_lock(key = "a")]
        async fn of_another_error() -> Result<u64, $error> {
            Ok(1)
        }
    };
}

locked!("5" + 1, "5".len(), { Ok("text") }, std::num::ParseIntError);

fn main() {}
