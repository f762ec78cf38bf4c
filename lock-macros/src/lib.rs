#![doc = include_str!("../README.md")]

mod args;
mod capture;
mod duration;
mod errors;
mod expand;
mod fallback;
mod format;
mod fragments;
mod function;
#[cfg(test)]
mod golden;
mod keys;
mod manifest;
mod mode;
mod model;
mod returns;
mod suggest;
mod synonyms;
mod template;

use proc_macro::TokenStream;

/// Runs an async function under a distributed lock.
///
/// A call takes the lock, renews it while the body runs, and releases it however the body ends. If
/// the lock is lost, the body is cancelled before another holder can be granted the lock.
///
/// ```
/// use lock_runtime::{LockError, distributed_lock};
///
/// # struct Db;
/// # impl Db { async fn take(&self, _: u64, left: u32) -> Result<u32, StockError> { Ok(left) } }
/// #[derive(Debug, thiserror::Error)]
/// enum StockError {
///     #[error(transparent)]
///     Lock(#[from] LockError),
///     #[error("sold out")]
///     SoldOut,
/// }
///
/// #[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
/// async fn reduce_stock(db: &Db, item_id: u64, quantity: u32) -> Result<u32, StockError> {
///     let left = 10_u32.checked_sub(quantity).ok_or(StockError::SoldOut)?;
///     db.take(item_id, left).await
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// lock_runtime::init("memory://").await?;
/// assert_eq!(reduce_stock(&Db, 7, 3).await?, 7);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Arguments
///
/// All arguments are optional. An argument that is not given comes from the manager's defaults,
/// which are those below unless its builder sets others, by `LockManagerBuilder::defaults`. A flag that
/// is a default there is switched off for one function by `false`: `fair = false`.
///
/// | argument | form | default | meaning |
/// |---|---|---|---|
/// | `key` | [template](#the-key) | `"global_lock"` | the name of the lock |
/// | `keys` | `["…", "…"]`, templates, or an expression | – | [several keys](#several-keys), all or none, instead of `key` |
/// | `mode` | `exclusive`, `read`, `write`, `semaphore(N)` | `exclusive` | [which holders can share the lock](#modes) |
/// | `owner` | template | – | [a mode](#modes): all holders for the same owner share the lock |
/// | `reentrant` | alone, or `true`, `false` | off | if the call tree already holds this lock in the same mode, the call [re-enters it](#nested-calls) |
/// | `lease` | [duration](#durations) | `30` | time to live in the store, renewed while the body runs. It limits how long a crashed holder blocks others, not how long your function may take |
/// | `wait` | duration | `10` | limits the whole acquisition; with `0` the call tries once |
/// | `renew` | `true`, `false` | `true` | `false`: the lease is not renewed, and the body is cancelled at its end |
/// | `max_renewals` | number, or an expression of type `u32` | `30` | cancels the body with `LockError::Hung` when one more renewal than this would be due. That is after 2/3 of the lease × (`max_renewals` + 1): by default after 620 s, with a lease of 30 s |
/// | `max_hold` | duration | – | the same limit as a time, instead of `max_renewals` |
/// | `at_least` | duration | `0` | the lock stays taken for at least this long after the grant, even if the body ends sooner |
/// | `lock_delay` | duration | `0` | after the lease expires without a release, keeps the lock closed this long so that the lost holder's requests in flight can land before the next holder enters |
/// | `on_busy` | `error`, `skip`, `path::to::fn` | `error` | [the result of a lock error](#the-return-type) |
/// | `coalesce` | alone, or `true`, `false` | off | [concurrent callers share one result](#coalescing) |
/// | `on_lost` | `cancel`, `signal`, `path::to::fn` | `cancel` | `signal`: the body continues, and `HeldLock::lost` reports the loss. A function: it is [called after the body was cancelled](#compensation) |
/// | `min_replicas` | number, or an expression of type `u32` | `0` | waits before the body until this many replicas of the server have the lock, so that a failover keeps it; too few fail the call with `LockError::TooFewReplicas` |
/// | `fencing` | alone, or `true`, `false` | off | takes a fencing token in the same step as the lock |
/// | `fair` | alone, or `true`, `false` | off | first come, first served across processes: the call overtakes no waiter in the store's queue, not even with `wait = 0` |
/// | `release` | `confirmed`, `pipelined` | `confirmed` | `pipelined`: the call returns once the release is queued, in order, on the connection; a failed release is logged and counted instead of returned |
/// | `manager` | expression | the global one | a `LockManager`, or a value that dereferences to it: `self.locks`, `state.locks` |
/// | `crate` | path | `::lock_runtime`, or the name that Cargo.toml gives it | the path of the runtime, for crates that re-export it |
///
/// Expressions can use the parameters, by the names that their patterns bind. Such a name stands
/// for its value where it is the whole expression, and for a reference in a larger one. Expressions
/// are evaluated once, before the body takes the arguments.
///
/// # Durations
///
/// An integer is in seconds: `15`. A string has units, `ms`, `s`, `m` and `h`: `"1500ms"`, `"2s"`,
/// `"1m30s"`. Anything else is an expression of type `Duration`: `Duration::from_millis(20)`,
/// `self.lease`. A lease is at least 10 ms and at most 366 days long.
///
/// # The key
///
/// A key is a template, in which `<…>` inserts a value by its `Display`:
///
/// | in the template | inserts |
/// |---|---|
/// | `<item_id>` | a parameter, or a name that a parameter's pattern binds, as in `Path(item_id): Path<u64>` |
/// | `<order.id>`, `<order.shop.name()>`, `<ids[0]>` | a field, a method's result, an element |
/// | `<self.name>` | the same for the receiver |
/// | `<REGION>`, `<config::ZONE>`, `<Self::KIND>`, `<N>` | a constant, or a constant parameter |
/// | `<path:raw>` | the value without percent-encoding |
/// | `<<` and `>>` | one `<`, one `>` |
///
/// Everything else is text. This includes braces, which are hash tags of Redis Cluster; but the
/// macro refuses the name of a parameter in braces, since it would be text.
///
/// Two different argument lists never produce the same key: `%`, `:`, `{`, `}`, `<`, `>`, white
/// space and control characters are percent-encoded in values, and a template must have one of
/// these characters (other than `%`) between two values. The macro refuses `"<a>-<b>"`, since the
/// values `1` and `2-3` would produce the same key as `1-2` and `3`. A key must not be empty, and
/// not longer than 1,024 bytes.
///
/// # Modes
///
/// | mode | holders at the same time | use it for |
/// |---|---|---|
/// | `mode = exclusive` | one | one call at a time: stock, a job, a file. The fastest, and the default |
/// | `mode = read` | any number of readers | many readers, few writers. A waiting writer holds new readers back, so that it gets its turn |
/// | `mode = write` | one writer, no readers | changes to data that functions under `mode = read` use |
/// | `mode = semaphore(N)` | at most `N`, across all processes | a partner's rate limit, a licence, a pool. `N` is a number, or an expression of type `u32`; if deployed versions disagree, the smaller number applies |
/// | `owner = "<workflow_id>"` | all that act for the same owner | a lock that belongs to a workflow instead of a call: its steps run in several tasks or processes at once. The lock is free when the last of them has ended |
///
/// Every holder has its own lease, which is renewed, and lost, independently of the others.
/// Different modes of one key exclude each other. An exclusive lock is stored in another form than
/// the other modes: while a key is held in one of the two forms, a call for the other form fails
/// with an error instead of waiting. `fencing` distinguishes one holder from the next, so it cannot
/// be combined with `read` or `semaphore`.
///
/// The template of `owner` has the same syntax as a [key](#the-key).
///
/// # Several keys
///
/// `keys = ["account:<from>", "account:<to>"]` locks all of them or none, exclusively. Duplicate
/// keys count once. Deadlock-free: concurrent calls may request overlapping keys in any order.
///
/// If the number of keys is known only at run time, `keys` takes an expression that makes them: any
/// `IntoIterator` whose items are text. These keys are used as they are, like those of
/// `LockManager::lock_all`: percent-encode values that callers choose freely. An empty list is
/// `LockError::InvalidKey`, and the body does not run.
///
/// ```
/// use lock_runtime::{LockError, distributed_lock};
///
/// #[distributed_lock(keys = items.iter().map(|item| format!("item:{item}")))]
/// async fn reserve(items: Vec<u64>) -> Result<usize, LockError> {
///     Ok(items.len())
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # lock_runtime::init("memory://").await?;
/// assert_eq!(reserve(vec![7, 3, 5]).await?, 3);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Nested calls
///
/// A call inside a body that holds the same key fails at once with `LockError::WouldDeadlock`,
/// unless it re-enters the lock that is held. These calls re-enter it:
///
/// - a call under `reentrant`, in the same mode. With several keys, the outer call must hold all
///   keys of the inner one;
/// - a call under `mode = read`, inside one under `read` or `write`;
/// - a call for the same `owner`.
///
/// The lock is released when the outermost call has ended, and keeps that call's `lease`, `renew`,
/// `max_renewals`, `max_hold`, `at_least` and `lock_delay`. `on_lost` and `on_busy` apply to each
/// call separately. Tasks that a body spawns by `HeldLock::spawn` run inside its lock; those
/// spawned by `tokio::spawn` do not.
///
/// # Compensation
///
/// `on_lost = path::to::fn` names an async function from `LockError` to `()`. It is called after
/// the body was cancelled because its lock was lost, its call was hung, or its manager was shut
/// down; the error says which. By then the body, the arguments and the tasks spawned by
/// `HeldLock::spawn` have been dropped and the lock has been released, so the function runs without
/// the lock: make its work idempotent, or let it take the lock again. The call returns the error
/// once the function has ended.
///
/// The function is not called for a body that ran to its end (`Lost` with `completed`), that
/// panicked, or whose call was dropped, nor for a call that did not get its lock. Dropping the call
/// drops the function's future as well. A nested call that re-enters a lock is cancelled together
/// with the body around it, and its function may be cancelled too: name a function at the outermost
/// call.
///
/// ```
/// use lock_runtime::{LockError, distributed_lock};
///
/// #[distributed_lock(key = "order:<id>", max_hold = "10m", on_lost = payments::void)]
/// async fn pay(id: u64) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// mod payments {
///     use lock_runtime::LockError;
///
///     pub async fn void(lost: LockError) {
///         println!("voiding what was begun under {}: {lost}", lost.key());
///     }
/// }
/// ```
///
/// # Coalescing
///
/// With `coalesce`, a call that arrives while another call of the same function for the same key
/// waits or runs in this process does not run its body: late callers receive a clone of the result
/// in flight (single-flight). This requires a return type that is `Clone + Send + Sync + 'static`,
/// and a key that names everything that the result depends on.
///
/// ```
/// use std::sync::Arc;
///
/// use lock_runtime::{LockError, distributed_lock};
///
/// #[distributed_lock(key = "report:<month>", coalesce)]
/// async fn report(month: u32) -> Result<Arc<str>, LockError> {
///     Ok(format!("report of month {month}").into()) // made once, for all calls in the meantime
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # lock_runtime::init("memory://").await?;
/// let (first, second) = tokio::join!(report(7), report(7));
/// assert_eq!(first?, second?);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// - Only the result of a body that held its lock to the end is shared. If the first call is
///   dropped, panics or gets a lock error, one of the waiting calls takes its place with the rest
///   of its own `wait`, and the others wait for that one.
/// - A waiting call waits for at most its own `wait`, and then ends with `LockError::Busy`, or what
///   `on_busy` makes of it. Its arguments are kept until then, since its body may still have to
///   run; they are dropped before it returns.
/// - Calls with other types for the function's generic parameters, or with another manager, mode or
///   owner, do not share a result.
/// - Calls in other processes wait for the lock and run.
///
/// Await the call, or drop it, before awaiting anything else for long: other calls may wait behind
/// it.
///
/// # The return type
///
/// | `on_busy` | return type | a busy lock | any other lock error |
/// |---|---|---|---|
/// | `error` | `Result<T, E>` where `E: From<LockError>` | `Err` | `Err` |
/// | `skip` | `()`, `Option<T>`, or a `Result` of one of these | `()`, `None`, `Ok` of it | `Err`; without a `Result`, the error is logged, and the call returns `()` or `None`, also if its body has run in part |
/// | `path::to::fn` | any | the function's result for the `LockError` | the same |
///
/// `LockError::is_retryable` tells the errors after which the body has not run at all. A lost lock is
/// not one of them: its body may have been carried out in part.
///
/// The call keeps the body's result while it releases the lock. A return type that is not `Send`
/// therefore makes the call's future not `Send`, even if the body's future is: such a call cannot
/// be spawned on a multi-threaded runtime.
///
/// # Supported functions
///
/// The attribute supports every `async fn` with a body: free functions, methods with any receiver,
/// trait methods, generics, `impl Trait`, every parameter pattern, `unsafe`, and methods under
/// `#[async_trait]`. In a `macro_rules!`, fragments such as `$key:literal` and `$body:block` can stand
/// wherever their tokens can, in the arguments and in the function.
///
/// Other attributes can stand on either side. An attribute **above** is applied first and becomes a
/// part of the body: it runs inside the lock, and `#[instrument]` there measures the body alone. An
/// attribute **below** is applied to the locked function: it runs outside, including the wait and
/// the release, and a cache there answers without the lock. So put `#[instrument]` below, where its span
/// contains the wait. Attributes that make the function sync,
/// such as `#[tokio::test]`, must stand below. With mockall's `#[automock]` annotate the methods of the
/// implementation: a mock copies the attributes of the trait's methods, and would take the lock.
///
/// # Ownership of the arguments
///
/// The body owns all arguments, including those named `_` and the unbound parts of patterns. They
/// are dropped with it, before the release: a transaction passed by value ends inside the lock.
///
/// The generated documentation shows a parameter with a pattern by the name that it binds, or as
/// `__lock_arg0` if it binds several.
#[proc_macro_attribute]
pub fn distributed_lock(attr: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attr.into(), item.into()).into()
}
