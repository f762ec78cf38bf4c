//! The tests of a service's own locked functions: on the testing kit, in virtual time, each test
//! with locks of its own.
//!
//! In `Cargo.toml`:
//!
//! ```toml
//! [dev-dependencies]
//! lock-runtime = { version = "0.1", features = ["testing"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::time::Duration;

use lock_runtime::testing::TestLocks;
use lock_runtime::{LockError, LostReason, assert_locked, distributed_lock};

/// The service: a shop that takes orders.
#[derive(Default)]
struct Shop {
    stock: Mutex<u32>,
    paid: Mutex<u32>,
}

impl Shop {
    fn with_stock(stock: u32) -> Self {
        Self {
            stock: Mutex::new(stock),
            ..Self::default()
        }
    }

    /// Takes the lock, asks the payment provider for a minute, and only then takes the goods out.
    #[distributed_lock(key = "inventory:<item_id>", lease = 30, wait = 5)]
    async fn order(&self, item_id: u64) -> Result<u32, LockError> {
        tokio::time::sleep(Duration::from_secs(60)).await;
        *self.paid.lock().unwrap() += 1;
        Ok(self.take_out(item_id))
    }

    /// Must only run under the lock of the item, and says so.
    fn take_out(&self, item_id: u64) -> u32 {
        assert_locked!("inventory:{item_id}");
        let mut stock = self.stock.lock().unwrap();
        *stock -= 1;
        *stock
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_locks_its_item_and_nothing_else() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    assert_eq!(Shop::with_stock(3).order(7).await.unwrap(), 2);
    assert_locked!("inventory:7");
    assert_eq!(kit.locked(), ["inventory:7"]);
    assert!(!kit.is_locked("inventory:7"));
}

#[tokio::test(start_paused = true)]
async fn an_order_gives_up_when_another_instance_is_busy_with_the_item() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    let other = kit.hold("inventory:7");
    let shop = Shop::with_stock(3);
    assert!(shop.order(7).await.is_err_and(|error| error.is_busy()));
    // Another item is free.
    shop.order(8).await.unwrap();
    other.release();
    shop.order(7).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_pays_for_an_order_whose_lock_was_lost() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    let shop = Shop::with_stock(3);
    let lose = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        kit.expire("inventory:7");
    };
    let (ordered, ()) = tokio::join!(shop.order(7), lose);
    let LockError::Lost { reason, .. } = ordered.unwrap_err() else {
        panic!("it was lost")
    };
    assert_eq!(reason, LostReason::Expired);
    assert_eq!((*shop.stock.lock().unwrap(), *shop.paid.lock().unwrap()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn an_order_survives_a_short_gap_in_the_network_and_a_lost_reply() {
    let kit = TestLocks::new();
    let _global = kit.as_global();
    let shop = Shop::with_stock(3);
    kit.unreachable_for(Duration::from_secs(3));
    shop.order(7).await.unwrap();
    kit.drop_next_reply();
    shop.order(7).await.unwrap();
    assert_eq!(*shop.stock.lock().unwrap(), 1);
}

#[tokio::test]
#[should_panic(expected = "`inventory:7` must be locked here")]
async fn nothing_is_taken_out_without_the_lock() {
    Shop::with_stock(3).take_out(7);
}
