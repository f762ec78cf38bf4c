//! Free functions and methods with every kind of `self`.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use lock_runtime::distributed_lock;

use crate::witness::{Shop, locked_key, released, start};

#[distributed_lock]
async fn with_default_key() -> Shop<String> {
    Ok(locked_key().await)
}

#[tokio::test]
async fn a_function_without_arguments_locks_the_global_key() {
    start().await;
    assert_eq!(with_default_key().await.unwrap(), "global_lock");
}

#[derive(Clone, Debug)]
struct Counter {
    name: String,
    count: u32,
}

impl Counter {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            count: 0,
        }
    }

    #[distributed_lock(key = "associated:<id>")]
    async fn associated(id: u32) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "ref:<self.name>")]
    async fn by_ref(&self) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "mut:<self.name>:<self.count>")]
    async fn by_mut(&mut self) -> Shop<String> {
        self.count += 1;
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "value:<self.name>")]
    async fn by_value(self) -> Shop<String> {
        Ok(locked_key().await + &self.name)
    }

    #[distributed_lock(key = "mut value:<self.name>")]
    async fn by_mut_value(mut self) -> Shop<(String, u32)> {
        self.count += 7;
        Ok((locked_key().await, self.count))
    }

    #[distributed_lock(key = "unused:<self.name>")]
    async fn by_unused_value(self) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "arc:<self.name>")]
    async fn by_arc(self: Arc<Self>) -> Shop<String> {
        Ok(locked_key().await + &self.name)
    }

    #[distributed_lock(key = "box:<self.name>")]
    async fn by_box(mut self: Box<Self>) -> Shop<String> {
        self.count += 1;
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "pin:<self.name>")]
    async fn by_pin(self: Pin<&mut Self>) -> Shop<String> {
        self.get_mut().count += 1;
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "rc:<self.name>")]
    async fn by_rc(self: Rc<Self>) -> Shop<String> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "typed:<self.name>")]
    #[expect(clippy::needless_arbitrary_self_type, reason = "that is the form")]
    async fn by_typed_ref(self: &Self) -> Shop<String> {
        Ok(locked_key().await)
    }

    /// A borrow of the receiver goes through the lock.
    #[distributed_lock(key = "borrowed:<self.name>")]
    async fn borrowed(&self) -> Shop<&str> {
        locked_key().await;
        Ok(&self.name)
    }
}

#[tokio::test]
async fn an_associated_function_is_locked() {
    start().await;
    assert_eq!(Counter::associated(3).await.unwrap(), "associated:3");
}

#[tokio::test]
async fn a_shared_receiver_is_locked() {
    start().await;
    assert_eq!(released("ref:a", Counter::new("a").by_ref()).await.unwrap(), "ref:a");
}

#[tokio::test]
async fn a_mutable_receiver_is_locked_and_changed() {
    start().await;
    let mut counter = Counter::new("b");
    assert_eq!(counter.by_mut().await.unwrap(), "mut:b:0");
    assert_eq!(counter.by_mut().await.unwrap(), "mut:b:1");
    assert_eq!(counter.count, 2);
}

#[tokio::test]
async fn a_receiver_by_value_is_locked() {
    start().await;
    assert_eq!(Counter::new("c").by_value().await.unwrap(), "value:cc");
    assert_eq!(
        Counter::new("c").by_mut_value().await.unwrap(),
        ("mut%20value:c".replace("%20", " "), 7)
    );
    assert_eq!(Counter::new("c").by_unused_value().await.unwrap(), "unused:c");
}

#[tokio::test]
async fn a_receiver_in_a_smart_pointer_is_locked() {
    start().await;
    assert_eq!(Arc::new(Counter::new("d")).by_arc().await.unwrap(), "arc:dd");
    assert_eq!(Box::new(Counter::new("d")).by_box().await.unwrap(), "box:d");
    assert_eq!(Pin::new(&mut Counter::new("d")).by_pin().await.unwrap(), "pin:d");
    assert_eq!(Rc::new(Counter::new("d")).by_rc().await.unwrap(), "rc:d");
    assert_eq!(Counter::new("d").by_typed_ref().await.unwrap(), "typed:d");
}

#[tokio::test]
async fn a_borrow_of_the_receiver_is_returned() {
    start().await;
    let counter = Counter::new("e");
    assert_eq!(released("borrowed:e", counter.borrowed()).await.unwrap(), "e");
}

mod visible {
    use super::{Shop, distributed_lock, locked_key};

    /// Documented.
    #[distributed_lock(key = "crate")]
    #[must_use = "to see that it stays"]
    pub(crate) async fn in_crate() -> Shop<String> {
        Ok(locked_key().await)
    }

    #[inline]
    #[distributed_lock(key = "super")]
    /// Documented below.
    pub(super) async fn in_super() -> Shop<String> {
        #![allow(non_snake_case)]
        let Key = locked_key().await;
        Ok(Key)
    }
}

#[tokio::test]
async fn visibility_documentation_and_attributes_stay() {
    start().await;
    assert_eq!(visible::in_crate().await.unwrap(), "crate");
    assert_eq!(visible::in_super().await.unwrap(), "super");
}
