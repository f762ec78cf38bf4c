//! The `#[distributed_lock]` attribute.
//!
//! Depend on `lock-runtime`, which re-exports it beside what the generated code calls.

mod args;
mod capture;
mod duration;
mod elsewhere;
mod errors;
mod expand;
mod fallback;
mod function;
#[cfg(test)]
mod golden;
mod keys;
mod mode;
mod model;
mod returns;
mod suggest;
mod template;

use proc_macro::TokenStream;

/// Runs an async function under a distributed lock.
///
/// The call takes the lock, keeps it renewed while the body runs, and gives it back when the body has ended in
/// whatever way. If the lock is lost, the body is cancelled before another holder can be granted it.
///
/// ```
/// use lock_runtime::{LockError, distributed_lock};
///
/// # struct Db;
/// # impl Db { async fn take(&self, _: u64, left: u32) -> Result<u32, StockError> { Ok(left) } }
/// #[derive(Debug)]
/// enum StockError {
///     Lock(LockError),
///     SoldOut,
/// }
///
/// impl From<LockError> for StockError {
///     fn from(error: LockError) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// #[distributed_lock(key = "inventory:<item_id>", lease = 15, wait = 5)]
/// async fn reduce_stock(db: &Db, item_id: u64, quantity: u32) -> Result<u32, StockError> {
///     let left = 10_u32.checked_sub(quantity).ok_or(StockError::SoldOut)?;
///     db.take(item_id, left).await
/// }
///
/// # async fn example() -> Result<(), StockError> {
/// lock_runtime::init("memory://").await?;
/// assert_eq!(reduce_stock(&Db, 7, 3).await?, 7);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// # Arguments
///
/// All are optional. What is not given comes from the manager's defaults, which are those below unless its builder
/// says otherwise.
///
/// | argument | form | default | meaning |
/// |---|---|---|---|
/// | `key` | [template](#the-key) | `"global_lock"` | what is locked |
/// | `keys` | `["…", "…"]`, templates | – | [several keys](#several-keys), all or none, instead of `key` |
/// | `mode` | `exclusive`, `read`, `write`, `semaphore(N)` | `exclusive` | [who may hold the lock at the same time](#modes) |
/// | `owner` | template | – | [a mode](#modes): all holders for one owner share the lock |
/// | `reentrant` | alone, or `true`, `false` | off | [nested calls](#nested-calls) pass through the lock that their call tree holds, and are counted |
/// | `lease` | [duration](#durations) | `30` | time to live in the store. It is renewed: it bounds for how long a crash blocks others, not how long the body may run |
/// | `wait` | duration | `10` | bounds the whole acquisition; `0` tries once |
/// | `renew` | `true`, `false` | `true` | `false`: the body is cancelled at the end of the lease |
/// | `max_renewals` | number, or an expression of type `u32` | `30` | after so many renewals the call counts as hung: the body is cancelled with `LockError::Hung` |
/// | `at_least` | duration | `0` | the lock stays taken for so long, even if the body ends sooner |
/// | `lock_delay` | duration | `0` | if the lease runs out without a release, nobody gets the lock for so much longer: requests of the lost holder that are still on their way arrive before the next holder enters |
/// | `on_busy` | `error`, `skip`, `coalesce`, `path::to::fn` | `error` | [what a lock error becomes](#the-return-type), or whether [callers share one result](#coalescing) |
/// | `on_lost` | `cancel`, `signal` | `cancel` | `signal`: the body goes on, and `HeldLock::lost` tells it |
/// | `fencing` | alone, or `true`, `false` | off | takes the fencing token in the same step as the lock |
/// | `fair` | alone, or `true`, `false` | off | first come, first served across processes: the call overtakes nobody in the store's queue, not even with `wait = 0` |
/// | `release` | `"confirmed"`, `"pipelined"` | `"confirmed"` | `"pipelined"`: the call returns once the release is queued, in order, on the connection; if it fails, that is logged and counted instead of returned |
/// | `manager` | expression | the global one | the `LockManager`, or what derefs to it: `self.locks`, `state.locks` |
/// | `crate` | path | `::lock_runtime` | where the runtime is, for crates that re-export it |
///
/// Expressions can use the parameters, by the names that their patterns bind; names that a pattern binds are
/// references there. They are evaluated once, before the body takes the arguments.
///
/// # Durations
///
/// An integer is in seconds: `15`. Text has units, `ms`, `s`, `m` and `h`: `"1500ms"`, `"2s"`, `"1m30s"`. Anything else
/// is an expression of type `Duration`: `Duration::from_millis(20)`, `self.lease`. A lease is at least 10 ms long and at
/// most 366 days.
///
/// # The key
///
/// `<…>` inserts a value by its `Display`:
///
/// | in the template | inserts |
/// |---|---|
/// | `<item_id>` | a parameter, or a name that a parameter's pattern binds, as in `Path(item_id): Path<u64>` |
/// | `<order.id>`, `<order.shop.name()>`, `<ids[0]>` | a field, a method's result, an element |
/// | `<self.name>` | the same of the receiver |
/// | `<REGION>`, `<config::ZONE>`, `<Self::KIND>`, `<N>` | a constant, or a constant parameter |
/// | `<path:raw>` | the value without encoding |
/// | `<<` and `>>` | one `<`, one `>` |
///
/// All else is text. Braces too: they are hash tags of Redis Cluster.
///
/// Two different calls never make the same key: `%`, `:`, `{`, `}`, `<`, `>`, white space and control characters are
/// percent-encoded in values, and a template must have one of these characters (other than `%`) between two values.
/// `"<a>-<b>"` is refused, since `1` and `2-3` would lock what `1-2` and `3` lock. The key must not be empty and not
/// longer than 1,024 bytes.
///
/// # Modes
///
/// | mode | who holds the lock together | use it when |
/// |---|---|---|
/// | `mode = exclusive` | nobody | one at a time: stock, a job, a file. The fastest, and the default |
/// | `mode = read` | readers | many look and few change. A waiting writer holds new readers back, so that it gets its turn |
/// | `mode = write` | nobody, readers neither | it changes what functions under `mode = read` look at |
/// | `mode = semaphore(N)` | at most `N`, across all processes | a partner's rate, a licence, a pool. `N` is a number, or an expression of type `u32`; where deployed versions disagree, the smaller one counts |
/// | `owner = "<workflow_id>"` | all who act for the same owner | the lock belongs to a workflow and not to a call: its steps run in several tasks or processes at once. It is free when the last one has ended |
///
/// Every holder has a lease of its own, is renewed and is cancelled on its own. Different modes of one key exclude each other,
/// but for an exclusive lock the store has the key in another form: a call in another mode gets an error as long as it is there.
/// `fencing` tells one holder from the next, so that it goes with neither `read` nor `semaphore`.
///
/// The owner's template is written as a [key](#the-key)'s is.
///
/// # Several keys
///
/// `keys = ["account:<from>", "account:<to>"]` locks all of them or none, exclusively. They are sorted first, and keys that turn
/// out equal count once: calls that name them in any order never wait for each other for ever. Keys whose number only the running
/// program knows are locked by `LockManager::lock_all`.
///
/// # Nested calls
///
/// A call inside a body that holds the same key fails at once with `LockError::WouldDeadlock`, unless it passes through the lock
/// that is held:
///
/// - under `reentrant`, in the same mode. Of several keys, the outer call must hold all that the inner one wants;
/// - a call under `mode = read`, inside one under `read` or `write`;
/// - a call for the same `owner`.
///
/// The lock is given back when the outermost call has ended, and keeps what that one has asked for: `lease`, `renew`,
/// `max_renewals`, `at_least`, `lock_delay`. `on_lost` and `on_busy` are each call's own. Tasks that a body spawns are not inside it.
///
/// # Coalescing
///
/// With `on_busy = coalesce`, calls that come while another one of the same function for the same key waits or runs in this
/// process do not run: they get a clone of what it returns. That needs a return type `Result<T, E>` whose two types are
/// `Clone + Send + Sync + 'static`, and a key that names everything that the result depends on.
///
/// ```
/// use std::sync::Arc;
///
/// use lock_runtime::{LockError, distributed_lock};
///
/// #[distributed_lock(key = "report:<month>", on_busy = coalesce)]
/// async fn report(month: u32) -> Result<Arc<str>, LockError> {
///     Ok(format!("report of month {month}").into()) // made once, for all who ask meanwhile
/// }
///
/// # async fn example() -> Result<(), LockError> {
/// # lock_runtime::init("memory://").await?;
/// let (first, second) = tokio::join!(report(7), report(7));
/// assert_eq!(first?, second?);
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
///
/// - Only the result of a body that held its lock to the end is shared. If the first call is dropped, panics or gets a lock error,
///   one of those who wait takes its place with the rest of its own `wait`, and the others wait for that one.
/// - Who waits does so within its own `wait`, and then gets `LockError::Busy`. Its arguments are kept until then, since it
///   may have to run after all; they end before it returns.
/// - Calls with other types for the function's generic parameters, with another manager, mode or owner run for themselves.
/// - In other processes, calls wait for the lock and run.
///
/// As with every lock that is given on in order: await the call, or drop it, before awaiting anything else for long.
///
/// # The return type
///
/// | `on_busy` | return type | a busy lock | any other lock error |
/// |---|---|---|---|
/// | `error` | `Result<T, E>` where `E: From<LockError>` | `Err` | `Err` |
/// | `coalesce` | the same, and [`Clone`](#coalescing) | `Err` | `Err` |
/// | `skip` | `()`, `Option<T>`, or a `Result` of one of these | `()`, `None`, `Ok` of it | `Err`; logged and skipped where there is none |
/// | `path::to::fn` | any | what the function makes of the `LockError` | the same |
///
/// # What it accepts
///
/// Every `async fn` with a body: free functions, methods with any receiver, trait methods, generics, `impl Trait`, every
/// parameter pattern, `unsafe`. Methods under `#[async_trait]` too. Other attributes can stand on either side; one above
/// sees the call, waiting included, and one below sees the body. Attributes that make the function sync, such as
/// `#[tokio::test]`, must stand below.
///
/// # What becomes of the arguments
///
/// The body owns all of them, those named `_` and the unbound parts of patterns included, and they end with it, before
/// the release: a transaction passed by value ends inside the lock.
///
/// In the documentation a parameter with a pattern is shown by the name that it binds, or as `__lock_arg0` if there are
/// several.
#[proc_macro_attribute]
pub fn distributed_lock(attr: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attr.into(), item.into()).into()
}
