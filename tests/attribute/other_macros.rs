//! The attribute together with other attributes, on either side, and in what a `macro_rules!` writes.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use lock_runtime::{LockError, current, distributed_lock};
use rstest::{fixture, rstest};
use tracing::instrument;

use crate::witness::{Shop, locked_key, start};

/// Has no `Debug`, which `#[instrument]` would need to record it.
#[derive(Clone)]
struct Db;

#[derive(Debug)]
struct Pair(u32, #[expect(dead_code, reason = "shows an unbound part")] u32);

#[instrument(skip(db))]
#[distributed_lock(key = "instrument outside:<id>")]
async fn instrument_outside(db: &Db, id: u32, mut count: u32, Pair(left, _): Pair) -> Shop<String> {
    let _ = db;
    count += left;
    Ok(format!("{} {count}", locked_key().await))
}

#[distributed_lock(key = "instrument inside:<id>:<left>")]
#[instrument(skip(db, state), fields(left), err, ret)]
async fn instrument_inside(
    db: &Db,
    id: u32,
    mut count: u32,
    (left, mut right): (u32, u32),
    State(state): State<Db>,
    _: Db,
) -> Result<String, LockError> {
    let _ = (db, state);
    right += left;
    count += right;
    Ok(format!("{} {count}", locked_key().await))
}

struct Service;

#[async_trait]
trait Instrumented {
    async fn outside(&self, id: u32, pair: Pair) -> Shop<String>;
    async fn inside(&self, id: u32, pair: Pair) -> Shop<String>;
}

#[async_trait]
impl Instrumented for Service {
    #[instrument(skip(self))]
    #[distributed_lock(key = "trait outside:<id>:<left>")]
    async fn outside(&self, id: u32, Pair(left, _): Pair) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "trait inside:<id>:<left>")]
    #[instrument(skip_all)]
    async fn inside(&self, id: u32, Pair(left, _): Pair) -> Shop<String> {
        Ok(locked_key().await)
    }
}

#[tokio::test]
async fn instrument_works_in_both_orders() {
    start().await;
    assert_eq!(
        instrument_outside(&Db, 1, 2, Pair(3, 4)).await.unwrap(),
        "instrument outside:1 5"
    );
    let inside = instrument_inside(&Db, 1, 2, (3, 4), State(Db), Db).await;
    assert_eq!(inside.unwrap(), "instrument inside:1:3 9");
    assert_eq!(Service.outside(1, Pair(2, 3)).await.unwrap(), "trait outside:1:2");
    assert_eq!(Service.inside(1, Pair(2, 3)).await.unwrap(), "trait inside:1:2");
}

#[axum::debug_handler]
#[distributed_lock(key = "handler outside:<item_id>")]
async fn debug_handler_outside(State(_db): State<Db>, Path(item_id): Path<u64>) -> Result<String, LockError> {
    Ok(format!("{} {item_id}", locked_key().await))
}

#[distributed_lock(key = "handler inside:<shop>:<item_id>")]
#[axum::debug_handler(state = Db)]
async fn debug_handler_inside(
    State(_db): State<Db>,
    Path((shop, item_id)): Path<(String, u64)>,
    body: String,
) -> Result<String, LockError> {
    Ok(locked_key().await + &shop + &body)
}

#[tokio::test]
async fn axum_handlers_keep_their_signature() {
    start().await;
    let _: Router = Router::new()
        .route("/outside/{item_id}", post(debug_handler_outside))
        .route("/inside/{shop}/{item_id}", post(debug_handler_inside))
        .with_state(Db);
    assert_eq!(
        debug_handler_outside(State(Db), Path(7)).await.unwrap(),
        "handler outside:7 7"
    );
    let inside = debug_handler_inside(State(Db), Path(("a".to_owned(), 7)), "!".to_owned()).await;
    assert_eq!(inside.unwrap(), "handler inside:a:7a!");
}

#[distributed_lock(key = "a test", manager = start().await)]
#[tokio::test]
async fn a_test_can_be_locked_itself() -> Result<(), LockError> {
    assert_eq!(locked_key().await, "a test");
    Ok(())
}

#[fixture]
async fn place() -> String {
    "shelf".to_owned()
}

#[distributed_lock(key = "case:<item>:<count>:<place>", manager = start().await)]
#[rstest]
#[case::first(Pair(7, 0), 1, "case:7:1:shelf")]
#[case::second(Pair(8, 0), 2, "case:8:2:shelf")]
#[tokio::test]
async fn a_test_is_locked_by_the_values_of_its_case(
    #[case] Pair(item, _): Pair,
    #[case] mut count: u32,
    #[case] key: &str,
    #[future(awt)] place: String,
) -> Result<(), LockError> {
    assert_eq!(locked_key().await, key);
    count += item;
    assert_eq!(count % 2, 0, "at {place}");
    Ok(())
}

/// Whether spans of the two orders began under the lock: above, below.
static UNDER_LOCK: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

fn note(order: usize) -> bool {
    let locked = lock_runtime::current().is_some();
    UNDER_LOCK[order].store(locked, Ordering::Relaxed);
    locked
}

#[instrument(fields(locked = note(0)))]
#[distributed_lock(key = "attribute above")]
async fn attribute_above() -> Shop<()> {
    Ok(())
}

#[distributed_lock(key = "attribute below")]
#[instrument(fields(locked = note(1)))]
async fn attribute_below() -> Shop<()> {
    Ok(())
}

#[tokio::test]
async fn an_attribute_above_runs_inside_the_lock_and_one_below_outside() {
    start().await;
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry());
    attribute_above().await.unwrap();
    attribute_below().await.unwrap();
    let [above, below] = [0, 1].map(|order: usize| UNDER_LOCK[order].load(Ordering::Relaxed));
    assert_eq!((above, below), (true, false));
}

fn numbered(number: u32) -> [String; 1] {
    [format!("number:{number}")]
}

/// Writes functions of fragments.
macro_rules! functions {
    ($($key:literal),*; $pat:pat, $ty:ty, $block:block; $sum:expr) => {
        #[distributed_lock(keys = [$($key),*])]
        async fn made_of_fragments($pat: $ty) -> Shop<Vec<String>> $block

        #[distributed_lock(keys = numbered($sum * 2))]
        async fn doubled() -> Shop<(String, u32)> {
            let doubled = $sum * 2;
            Ok((locked_key().await, doubled))
        }

        #[distributed_lock(key = "inner attribute")]
        async fn doubled_under_an_inner_attribute() -> Shop<u32> {
            #![allow(clippy::let_and_return)]
            let doubled = $sum * 2;
            Ok(doubled)
        }
    };
}

functions!("shelf:<a>", "shelf:<b>"; (a, b), (u32, u32), { Ok(current().unwrap().keys().map(str::to_owned).collect()) }; 1 + 2);

#[tokio::test]
async fn what_macro_rules_writes_keeps_its_meaning() {
    start().await;
    assert_eq!(made_of_fragments((7, 8)).await.unwrap(), ["shelf:7", "shelf:8"]);
    assert_eq!(doubled().await.unwrap(), ("number:6".to_owned(), 6));
    assert_eq!(doubled_under_an_inner_attribute().await.unwrap(), 6);
}
