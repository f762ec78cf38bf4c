//! One function per form.

use std::fmt::{self, Display};
use std::future::ready;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distributed_locks::{current, distributed_lock, LockError, LockManager};
use tracing::instrument;

/// An application's error.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShopError {
    /// The lock failed.
    Lock(LockError),
    /// There is nothing left.
    SoldOut,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl Display for ShopError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Lock(ref error) => write!(out, "{error}"),
            Self::SoldOut => out.write_str("sold out"),
        }
    }
}

/// What the functions return.
pub type Shop<T> = Result<T, ShopError>;

/// Something with a name.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Named {
    /// The name.
    pub name: String,
    /// The number.
    pub number: u32,
}

impl Named {
    /// Borrows, for the last expression of a body.
    async fn name_of(&self) -> &str {
        ready(()).await;
        &self.name
    }
}

/// A wrapper, as extractors are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wrapped<T>(pub T);

/// The region.
pub const REGION: &str = "eu";

/// No arguments.
///
/// # Errors
/// The lock's.
#[distributed_lock]
pub async fn bare() -> Shop<()> {
    Ok(())
}

/// One line.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "one:<id>", lease = 15, wait = "1500ms")]
#[rustfmt::skip]
pub async fn one_line(id: u64) -> Shop<u64> { ready(Ok(id)).await }

/// All arguments.
///
/// # Errors
/// The lock's.
#[distributed_lock(
    key = "all:<id>:<REGION>",
    lease = Duration::from_secs(5),
    wait = 0,
    max_renewals = 3,
    at_least = "1m",
    on_lost = signal,
    on_busy = error,
    fencing,
    fair,
    release = pipelined,
    crate = ::distributed_locks
)]
pub async fn all_arguments(id: u64) -> Shop<u64> {
    let Some(held) = current() else {
        return Err(ShopError::SoldOut);
    };
    let fence = held.fencing_token().await?.get();
    Ok(id + fence)
}

/// The key's parameter is not used in the body.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "only key:<id>:<left>", renew = false)]
pub async fn only_in_the_key(id: &str, (left, _): (u32, u32)) -> Shop<()> {
    ready(()).await;
    Ok(())
}

/// Patterns.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "patterns:<name>:<first>")]
pub async fn patterns(
    Named { name, .. }: Named,
    (first, mut second): (u32, u32),
    Wrapped(wrapped): Wrapped<String>,
    _: Vec<u8>,
    _unused: String,
    &(left, right): &(u32, u32),
    mut count: u32,
) -> Shop<String> {
    second += first + left + right;
    count += second;
    ready(()).await;
    Ok(format!("{name}{wrapped}{count}"))
}

/// A tail that borrows from an argument, which the 2021 edition keeps to the end of the body.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "tail:<named.name>")]
pub async fn borrowing_tail(named: Named) -> Shop<usize> {
    ready(Ok(named.name_of().await.len())).await
}

/// Unit arguments and a unit that is written.
#[distributed_lock(key = "unit", on_busy = skip)]
pub async fn units(_nothing: (), nothing: ()) {
    ready(nothing).await;
}

/// An option.
#[distributed_lock(key = "option:<id>", on_busy = skip, wait = 0)]
pub async fn option(id: u32) -> Option<u32> {
    let less = ready(id.checked_sub(1)).await?;
    Some(less)
}

/// What a busy lock becomes.
#[must_use]
pub fn none_left(error: LockError) -> usize {
    drop(error);
    0
}

/// A function answers.
#[distributed_lock(key = "answer", on_busy = none_left)]
pub async fn answered() -> usize {
    ready(1).await
}

/// Diverges.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "forever")]
pub async fn forever(id: u32) -> Shop<()> {
    loop {
        let _ = ready(id).await;
    }
}

/// Returns only by `return`.
///
/// # Errors
/// Always.
#[distributed_lock(key = "returns")]
pub async fn returns(sold: bool) -> Shop<u32> {
    ready(()).await;
    if sold {
        return Err(ShopError::SoldOut);
    }
    Err(ShopError::SoldOut)
}

/// Items and statements in the body.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "items:<id>")]
pub async fn items(id: u32) -> Shop<u32> {
    const STEP: u32 = 2;

    const fn double(id: u32) -> u32 {
        id * STEP
    }

    ready(()).await;
    Ok(double(id))
}

/// Generic.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "generic:<id>:<N>")]
pub async fn generic<T, const N: usize>(id: T, values: [u8; N]) -> Shop<usize>
where
    T: Display + Send + Sync,
{
    ready(()).await;
    Ok(values.len() + id.to_string().len())
}

/// Lifetimes.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "lifetime:<id>")]
pub async fn lifetimes<'a>(id: &'a str, other: &str) -> Shop<&'a str> {
    ready(()).await;
    if other.is_empty() {
        return Err(ShopError::SoldOut);
    }
    Ok(id)
}

/// `impl Trait` on both sides.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "impl:<id>")]
pub async fn impl_trait(id: impl Display + Send + Sync) -> Result<impl Display, ShopError> {
    ready(()).await;
    Ok(format!("{id}"))
}

/// A future that is not `Send`.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "local:<id>")]
#[expect(clippy::future_not_send, reason = "that is the form")]
pub async fn local(id: Rc<u32>) -> Shop<u32> {
    ready(()).await;
    Ok(*id)
}

/// Unsafe.
///
/// # Errors
/// The lock's.
///
/// # Safety
/// None is needed.
#[distributed_lock(key = "unsafe")]
pub async unsafe fn unsafe_function(id: u32) -> Shop<u32> {
    ready(Ok(id)).await
}

/// Beside another attribute.
///
/// # Errors
/// The lock's.
#[instrument(skip(named))]
#[distributed_lock(key = "outside:<id>")]
pub async fn instrument_outside(named: Named, id: u32) -> Shop<u32> {
    Ok(id + ready(named.number).await)
}

/// Beside another attribute.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "inside:<id>:<number>")]
#[instrument(skip(named, number))]
pub async fn instrument_inside(named: Named, id: u32, Wrapped(number): Wrapped<u32>, _: Vec<u8>) -> Shop<u32> {
    Ok(id + number + ready(named.number).await)
}

/// A service with its own manager.
#[derive(Clone, Debug)]
pub struct Service {
    locks: LockManager,
    named: Named,
}

impl Service {
    /// By reference.
    ///
    /// # Errors
    /// The lock's.
    #[distributed_lock(key = "ref:<self.named.name>", manager = self.locks)]
    pub async fn by_ref(&self, id: u32) -> Shop<u32> {
        Ok(self.named.number + ready(id).await)
    }

    /// By mutable reference.
    ///
    /// # Errors
    /// The lock's.
    #[distributed_lock(key = "mut:<id>", manager = &self.locks)]
    pub async fn by_mut(&mut self, id: u32) -> Shop<u32> {
        self.named.number += ready(id).await;
        Ok(id)
    }

    /// By value.
    ///
    /// # Errors
    /// The lock's.
    #[distributed_lock(key = "value", manager = self.locks)]
    pub async fn by_value(mut self) -> Shop<Named> {
        self.named.number = ready(3).await;
        Ok(self.named)
    }

    /// In a smart pointer.
    ///
    /// # Errors
    /// The lock's.
    #[distributed_lock(key = "arc:<self.named.number>", manager = self.locks)]
    pub async fn by_arc(self: Arc<Self>) -> Shop<usize> {
        Ok(ready(self.named.name.len()).await)
    }

    /// Pinned.
    ///
    /// # Errors
    /// The lock's.
    #[distributed_lock(key = "pin", manager = self.locks)]
    pub async fn by_pin(self: Pin<&mut Self>) -> Shop<usize> {
        Ok(ready(self.named.name.len()).await)
    }
}

/// A trait of native async methods.
pub(crate) trait Native {
    async fn call(&self, id: u32) -> Shop<u32>;
}

impl Native for Service {
    #[distributed_lock(key = "native:<id>", manager = self.locks)]
    async fn call(&self, id: u32) -> Shop<u32> {
        Ok(self.named.number + ready(id).await)
    }
}

/// Calls a trait's method.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "calls")]
pub async fn calls(service: &Service) -> Shop<u32> {
    Native::call(service, 1).await
}

/// A trait of boxed async methods.
#[async_trait]
pub trait Boxed {
    /// Required.
    async fn required(&self, id: u32, pair: (String, u32), unused: Vec<u8>) -> Shop<u32>;

    /// Provided.
    #[distributed_lock(key = "provided:<id>")]
    async fn provided(&self, id: u32) -> Shop<u32>
    where
        Self: Sync,
    {
        Ok(ready(id).await)
    }
}

#[async_trait]
impl Boxed for Service {
    #[distributed_lock(key = "required:<id>:<name>", manager = self.locks)]
    async fn required(&self, id: u32, (name, _): (String, u32), _unused: Vec<u8>) -> Shop<u32> {
        if self.named.number == 0 {
            return Err(ShopError::SoldOut);
        }
        Ok(ready(self.named.number).await)
    }
}

/// How many at once.
pub const PERMITS: u32 = 3;

/// A reader.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "mode:<id>", mode = read, lock_delay = "5s")]
pub async fn reader(id: u32) -> Shop<u32> {
    Ok(ready(id).await)
}

/// A writer.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "mode:<id>", mode = write, reentrant, fencing)]
pub async fn writer(id: u32) -> Shop<u32> {
    Ok(ready(id).await)
}

/// A permit of a fixed number.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "permits", mode = semaphore(5))]
pub async fn permit() -> Shop<()> {
    ready(Ok(())).await
}

/// A permit of a number that is computed.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "permits:<id>", mode = semaphore(PERMITS * factor))]
pub async fn permit_of_many(id: u32, factor: u32) -> Shop<u32> {
    Ok(ready(id).await)
}

/// A step for an owner, and a name that only the owner uses.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "order:<order>", owner = "workflow:<workflow.name>", reentrant = false)]
pub async fn step(order: u32, workflow: &Named) -> Shop<u32> {
    Ok(ready(order).await)
}

/// Several keys.
///
/// # Errors
/// The lock's.
#[distributed_lock(keys = ["account:<from>", "account:<to>", "fees"], lease = 15, lock_delay = Duration::from_secs(5))]
pub async fn transfer(from: u32, Wrapped(to): Wrapped<u32>, cents: u64) -> Shop<u64> {
    Ok(ready(cents).await + u64::from(to))
}

/// Keys of a list, whose closure has a parameter with the name of another argument.
///
/// # Errors
/// The lock's.
#[distributed_lock(keys = ids.iter().map(|id| format!("account:{id}")))]
#[expect(clippy::shadow_unrelated, reason = "that of the closure")]
pub async fn of_a_list(Wrapped(id): Wrapped<u64>, ids: Vec<u64>) -> Shop<u64> {
    Ok(ready(id).await)
}

/// A report, of which every caller gets a copy.
///
/// # Errors
/// The lock's.
#[distributed_lock(key = "report:<month>", coalesce)]
pub async fn report(month: u32, Wrapped(name): Wrapped<&str>) -> Result<Arc<str>, LockError> {
    ready(Ok(Arc::from(name))).await
}

/// The same for a generic type, and several keys.
///
/// # Errors
/// The lock's.
#[distributed_lock(keys = ["report:<month>", "totals"], coalesce)]
pub async fn generic_report<T>(month: T) -> Result<T, Arc<LockError>>
where
    T: Display + Clone + Send + Sync + 'static,
{
    Ok(ready(month).await)
}

/// A trait of a method that coalesces.
#[async_trait]
pub trait Copied {
    /// Required.
    async fn copied(&self, id: u32) -> Result<u32, LockError>;
}

#[async_trait]
impl Copied for Named {
    #[distributed_lock(key = "provided:<id>", coalesce, wait = 0)]
    async fn copied(&self, id: u32) -> Result<u32, LockError> {
        Ok(ready(id).await)
    }
}
