//! Every fragment of a `macro_rules!` is read as the tokens that it stands for, in the arguments and in the function.

#![deny(warnings, unused_parens)]

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_runtime::{LockError, LockManager, distributed_lock};

type Out = Result<u64, LockError>;

/// A crate that re-exports the runtime.
mod platform {
    pub use ::lock_runtime as locks;
}

mod orders {
    use super::{LockError, Out};

    pub fn busy(error: LockError) -> Out {
        Err(error)
    }

    pub async fn undo(_: LockError) {}
}

macro_rules! arguments {
    (
        $name:ident, $key:literal, $lease:literal, $count:expr, $flag:literal, $busy:path, $undo:expr, $manager:expr, $block:block,
        $release:ident, $owner:tt, $parameter:ident
    ) => {
        #[distributed_lock(key = $key, owner = $owner, manager = $manager, crate = $crate::platform::locks)]
        async fn $name(count: u32, $parameter: &LockManager) -> Out {
            let _ = (count, $parameter);
            Ok(1)
        }

        #[distributed_lock(lease = $lease, wait = $block, max_renewals = $count * 2, at_least = $lease)]
        async fn within_limits() -> Out {
            Ok(1)
        }

        #[distributed_lock(reentrant = $flag, coalesce = $flag, fencing = $flag, fair = $flag)]
        async fn by_flags() -> Out {
            Ok(1)
        }

        #[distributed_lock(lock_delay = $lease, min_replicas = $count, on_busy = $busy, on_lost = $undo, release = $release)]
        async fn at_the_end() -> Out {
            Ok(1)
        }
    };
}

arguments!(
    all,
    "order:<count>",
    "20s",
    1 + 1,
    false,
    crate::orders::busy,
    orders::undo,
    locks,
    { Duration::from_secs(1) },
    pipelined,
    "<count>",
    locks
);

macro_rules! keys {
    ($name:ident, $($key:literal),*) => {
        #[distributed_lock(keys = [$($key),*])]
        async fn $name(from: u64, to: u64) -> Out {
            Ok(from + to)
        }
    };
}

keys!(transfer, "account:<from>", "account:<to>");

macro_rules! lists {
    ($ids:ident, $list:expr, $item:expr) => {
        #[distributed_lock(keys = $list)]
        async fn listed($ids: Vec<u64>) -> Out {
            Ok($ids.len() as u64)
        }

        #[distributed_lock(keys = [$item, "account:0"])]
        async fn listed_by_item(id: u64) -> Out {
            Ok(id)
        }
    };
}

lists!(ids, ids.iter().map(|id| format!("account:{id}")), "account:<id>");

macro_rules! modes {
    ($read:ident, $write:path, $semaphore:expr, $called:path, $permits:literal, $krate:path, $pat:pat) => {
        #[distributed_lock(key = "a", mode = $read, crate = $krate)]
        async fn reads() -> Out {
            Ok(1)
        }

        #[distributed_lock(key = "a", mode = $write)]
        async fn writes() -> Out {
            Ok(1)
        }

        #[distributed_lock(key = "a", mode = $semaphore)]
        async fn waits_for_a_permit($pat: (u32, u32)) -> Out {
            Ok(1)
        }

        #[distributed_lock(key = "a", mode = $called($permits))]
        async fn waits_for_one_of_five() -> Out {
            Ok(1)
        }
    };
}

modes!(
    read,
    write,
    semaphore(permits),
    semaphore,
    5,
    lock_runtime,
    (permits, _)
);

macro_rules! whole_arguments {
    ($attribute:meta, $assigned:expr, $($argument:meta),*) => {
        #[$attribute]
        async fn whole_attribute() -> Out {
            Ok(1)
        }

        #[distributed_lock($assigned)]
        async fn assigned() -> Out {
            Ok(1)
        }

        #[distributed_lock($($argument),*)]
        async fn whole_arguments(id: u64) -> Out {
            Ok(id)
        }
    };
}

whole_arguments!(
    distributed_lock(key = "a"),
    key = "a",
    key = "a:<id>",
    lease = 5,
    fencing
);

macro_rules! function {
    (
        $(#[$meta:meta])* $vis:vis $name:ident<$lifetime:lifetime, $generic:ident: $bound:path>($pat:pat, $ty:ty) -> $output:ty,
        $stmt:stmt, $expr:expr, $block:block, $($tokens:tt)*
    ) => {
        $(#[$meta])*
        #[distributed_lock(key = "order:<a>:<other>")]
        $(#[$meta])*
        $vis async fn $name<$lifetime, $generic>($pat: $ty, other: &$lifetime $generic, _: &$ty) -> $output
        where
            $generic: $lifetime + $bound + Sync,
            $ty: Copy,
        {
            $stmt
            let _ = (other, $expr * 2);
            $($tokens)*;
            $block
        }

        #[distributed_lock(key = "order:<a>")]
        $vis async fn with_a_block($pat: $ty) -> $output $block
    };
}

function!(
    #[doc = "Is locked."]
    #[allow(clippy::needless_lifetimes)]
    pub(crate) made<'a, T: Display>((a, _), (u64, u64)) -> Result<u64, LockError>,
    let b = 1,
    b + 1,
    { Ok(2) },
    let c = 3; let _ = c
);

macro_rules! types {
    ($option:ty, $never:ty, $object:ty, $error:ty, $length:literal, $expr:expr) => {
        #[distributed_lock(key = "a", on_busy = skip)]
        async fn skipped() -> $option {
            None
        }

        #[distributed_lock(key = "a", on_busy = stop)]
        async fn serve() -> $never {
            loop {
                tokio::task::yield_now().await;
            }
        }

        #[distributed_lock(key = "a")]
        async fn borrows(a: &$object, b: [u8; $length], c: [u8; $expr * 2]) -> Result<Box<$object>, $error> {
            let _ = (a, b, c);
            Ok(Box::new(1))
        }
    };
}

types!(Option<u64>, !, dyn Debug + Send + Sync, Arc<LockError>, 2, 1 + 1);

macro_rules! boxed {
    ($future:ty, $object:ty, $output:ty, $expr:expr, $async:expr, $block:block) => {
        #[distributed_lock(key = "a")]
        fn boxed_by_an_expression() -> $future {
            $expr
        }

        #[distributed_lock(key = "a")]
        fn boxed_object() -> Pin<Box<$object>> {
            Box::pin($async)
        }

        #[distributed_lock(key = "a")]
        fn boxed_in_a_block() -> Pin<Box<dyn Future<Output = $output> + Send>> $block
    };
}

boxed!(
    Pin<Box<dyn Future<Output = Out> + Send>>,
    dyn Future<Output = Out> + Send,
    Result<u64, LockError>,
    Box::pin(async move { Ok(1) }),
    async move { Ok(1) },
    { Box::pin(async move { Ok(1) }) }
);

fn stop(error: LockError) -> ! {
    panic!("{error}")
}

macro_rules! item {
    ($item:item, $stmt:stmt) => {
        #[distributed_lock(key = "a")]
        $item

        #[allow(dead_code)]
        fn inside() {
            #[distributed_lock(key = "a")]
            $stmt
        }
    };
}

item!(
    /// Is an item.
    async fn item() -> Out {
        Ok(1)
    },
    async fn statement() -> Out {
        Ok(1)
    }
);

struct Service {
    zone: String,
}

#[async_trait]
trait Orders {
    async fn order(&self, ids: (u64, u64)) -> Out;
}

macro_rules! methods {
    ($(#[$meta:meta])* $vis:vis $name:ident(&$receiver:ident, $pat:pat) $key:literal $permits:expr; $block:block) => {
        impl Service {
            $(#[$meta])*
            #[distributed_lock(key = $key)]
            $vis async fn $name(&$receiver, $pat: (u64, u64)) -> Out $block
        }

        #[async_trait]
        impl Orders for Service {
            $(#[$meta])*
            #[distributed_lock(key = $key, mode = semaphore($permits))]
            async fn order(&$receiver, $pat: (u64, u64)) -> Out $block
        }
    };
}

methods! {
    #[tracing::instrument(skip_all)]
    pub method(&self, (id, _)) "order:<self.zone>:<id>" (*id as u32); { Ok(id) }
}

fn main() {
    let service = Service { zone: String::new() };
    drop(service.method((1, 2)));
    drop(service.order((1, 2)));
    drop((within_limits(), by_flags(), at_the_end()));
    drop(made((1, 2), &3, &(4, 5)));
    drop(with_a_block((1, 2)));
    drop((transfer(1, 2), listed(vec![1]), listed_by_item(1)));
    drop((reads(), writes(), waits_for_a_permit((1, 2)), waits_for_one_of_five()));
    drop((whole_attribute(), assigned(), whole_arguments(1), item()));
    drop((skipped(), serve(), borrows(&1, [1; 2], [1; 4])));
    drop((boxed_by_an_expression(), boxed_object(), boxed_in_a_block()));
    let _ = |locks: &LockManager| drop(all(1, locks));
}
