//! Native async trait methods, and those of `#[async_trait]`.

use std::sync::Arc;

use async_trait::async_trait;
use lock_runtime::{LockError, LockManager, distributed_lock};

use crate::witness::{Shop, ShopError, locked_key, released, start};

struct Store {
    name: String,
}

fn store() -> Store {
    Store { name: "s".to_owned() }
}

trait Native {
    async fn required(&self, id: u32) -> Shop<String>;

    #[distributed_lock(key = "native default:<id>")]
    async fn provided(&self, id: u32) -> Shop<String> {
        Ok(locked_key().await)
    }

    async fn associated(text: &str) -> Shop<String>;
}

impl Native for Store {
    #[distributed_lock(key = "native:<self.name>:<id>")]
    async fn required(&self, id: u32) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "native associated:<text>")]
    async fn associated(text: &str) -> Shop<String> {
        Ok(locked_key().await)
    }
}

#[tokio::test]
async fn native_trait_methods_are_locked() {
    start().await;
    assert_eq!(store().required(1).await.unwrap(), "native:s:1");
    assert_eq!(store().provided(2).await.unwrap(), "native default:2");
    assert_eq!(Store::associated("x").await.unwrap(), "native associated:x");
}

#[derive(Debug)]
struct Wrapped(u32, #[expect(dead_code, reason = "shows an unbound part")] String);

#[async_trait]
trait Boxed: Send + Sync {
    async fn checked(&self, id: u32, name: &str) -> Shop<String>;

    async fn mutable(&mut self, count: u32) -> Shop<u32>;

    async fn pattern(&self, (left, right): (u32, String), wrapped: Wrapped, plain: Vec<u8>) -> Shop<String>;

    async fn owned(self: Arc<Self>) -> Shop<String>;

    async fn generic<T: Send + Sync + ToString + 'static>(&self, value: T) -> Shop<String>
    where
        Self: Sized;

    async fn skipped(&self, fails: bool) -> Option<u32>;

    #[distributed_lock(key = "boxed default:<id>")]
    async fn defaulted(&self, id: u32) -> Shop<String> {
        Ok(locked_key().await)
    }
}

#[async_trait]
impl Boxed for Store {
    #[distributed_lock(key = "boxed:<self.name>:<id>:<name>", lease = 5)]
    async fn checked(&self, id: u32, name: &str) -> Shop<String> {
        if name.is_empty() {
            return Err(ShopError::SoldOut);
        }
        let number: u32 = name.parse()?;
        Ok(format!("{} {number} {}", locked_key().await, self.name))
    }

    #[distributed_lock(key = "boxed mut:<count>")]
    async fn mutable(&mut self, mut count: u32) -> Shop<u32> {
        locked_key().await;
        self.name.push('!');
        count += 1;
        Ok(count)
    }

    #[distributed_lock(key = "boxed pattern:<left>:<right>:<id>:<_plain.len()>")]
    async fn pattern(&self, (left, right): (u32, String), Wrapped(id, _): Wrapped, _plain: Vec<u8>) -> Shop<String> {
        Ok(format!("{} {}", locked_key().await, right.len()))
    }

    #[distributed_lock(key = "boxed arc:<self.name>")]
    async fn owned(self: Arc<Self>) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "boxed generic:<value.to_string()>")]
    async fn generic<T: Send + Sync + ToString + 'static>(&self, value: T) -> Shop<String> {
        drop(value);
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "boxed skip", on_busy = skip, wait = 0)]
    async fn skipped(&self, fails: bool) -> Option<u32> {
        if fails {
            return None;
        }
        Some(u32::from(locked_key().await.is_empty()))
    }
}

#[tokio::test]
async fn async_trait_methods_are_locked() {
    start().await;
    let mut store = store();
    assert_eq!(
        released("boxed:s:1:7", Boxed::checked(&store, 1, "7")).await.unwrap(),
        "boxed:s:1:7 7 s"
    );
    assert!(matches!(
        Boxed::checked(&store, 1, "x").await,
        Err(ShopError::Number(_))
    ));
    assert!(matches!(Boxed::checked(&store, 1, "").await, Err(ShopError::SoldOut)));
    assert_eq!(store.mutable(1).await.unwrap(), 2);
    assert_eq!(store.name, "s!");
    let pattern = store.pattern((1, "two".to_owned()), Wrapped(3, "four".to_owned()), vec![5]);
    assert_eq!(pattern.await.unwrap(), "boxed pattern:1:two:3:1 3");
    assert_eq!(store.generic("g").await.unwrap(), "boxed generic:g");
    assert_eq!(store.skipped(false).await, Some(0));
    assert_eq!(store.skipped(true).await, None);
    assert_eq!(store.defaulted(4).await.unwrap(), "boxed default:4");
    assert_eq!(Arc::new(store).owned().await.unwrap(), "boxed arc:s!");
}

#[async_trait]
trait Object: Send + Sync {
    async fn call(&self) -> Result<String, LockError>;
}

struct Service(LockManager);

#[async_trait]
impl Object for Service {
    #[distributed_lock(key = "object", manager = self.0)]
    async fn call(&self) -> Result<String, LockError> {
        Ok(locked_key().await)
    }
}

#[tokio::test]
async fn an_async_trait_object_is_locked() {
    let object: Arc<dyn Object> = Arc::new(Service(start().await.clone()));
    let task = tokio::spawn(async move { object.call().await });
    assert_eq!(task.await.unwrap().unwrap(), "object");
}

#[async_trait(?Send)]
trait Local {
    async fn call(&self, id: std::rc::Rc<u32>) -> Shop<String>;
}

#[async_trait(?Send)]
impl Local for Store {
    #[distributed_lock(key = "local trait:<id>")]
    async fn call(&self, id: std::rc::Rc<u32>) -> Shop<String> {
        Ok(locked_key().await)
    }
}

#[tokio::test]
async fn a_local_async_trait_method_is_locked() {
    start().await;
    assert_eq!(store().call(std::rc::Rc::new(6)).await.unwrap(), "local trait:6");
}

struct Order {
    id: u64,
    total: u64,
}

#[async_trait]
trait Shadowing {
    async fn pay(&self, id: u64, order: Order) -> Shop<String>;

    async fn find(&self, item: u64, hint: Option<u64>) -> Shop<String>;
}

#[async_trait]
impl Shadowing for Store {
    #[distributed_lock(key = "account:<id>")]
    async fn pay(&self, id: u64, order: Order) -> Shop<String> {
        let Order { id, total } = order;
        Ok(format!("{} {id} {total}", locked_key().await))
    }

    #[distributed_lock(key = "found:<item>")]
    async fn find(&self, item: u64, hint: Option<u64>) -> Shop<String> {
        let Some(item) = hint else {
            return Err(ShopError::SoldOut);
        };
        Ok(format!("{} {item}", locked_key().await))
    }
}

#[tokio::test]
async fn what_the_body_takes_apart_is_no_parameter() {
    start().await;
    let order = Order { id: 8, total: 9 };
    assert_eq!(store().pay(7, order).await.unwrap(), "account:7 8 9");
    assert_eq!(store().find(7, Some(8)).await.unwrap(), "found:7 8");
    assert!(matches!(store().find(7, None).await, Err(ShopError::SoldOut)));
}
