//! A message about a fragment of a `macro_rules!` points at what was passed for it.

use lock_runtime::distributed_lock;

macro_rules! locked {
    ($key:literal, $($keys:literal),*; $permits:expr, $lease:expr; $ty:ty, $output:ty) => {
        #[distributed_lock(key = $key, mode = semaphore($permits), lease = $lease)]
        async fn one(item: $ty) -> $output {
            todo!("{item:?}")
        }

        #[distributed_lock(keys = [$($keys),*], wait = $lease)]
        async fn several(item: $ty) -> $output {
            todo!("{item:?}")
        }
    };
}

locked!("order:<itme>", "order:<item>"; 0, -1; Option<u64>, u64);

fn main() {}
