//! Beside other attributes, on either side.

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use lock_runtime::{LockError, distributed_lock};
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
