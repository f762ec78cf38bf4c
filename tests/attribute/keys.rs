//! The values that a key template can insert, and the keys that result.

use lock_runtime::{LockError, distributed_lock};

use crate::witness::{Shop, ShopError, locked_key, start};

const REGION: &str = "eu";

mod zones {
    pub(crate) const ZONE: u32 = 3;
    pub(crate) static NAME: &str = "static";
}

#[derive(Debug)]
struct Tenant {
    id: u64,
    tags: Vec<String>,
    pair: (u32, u32),
}

impl Tenant {
    const KIND: &'static str = "tenant";

    fn slot(&self, base: u64) -> u64 {
        self.id + base
    }

    #[distributed_lock(key = "<Self::KIND>:<self.id>:<self.pair.1>:<self.tags[0]>:<self.slot(shift)>")]
    async fn method(&self, shift: u64) -> Shop<String> {
        Ok(locked_key().await)
    }
}

#[distributed_lock(key = "const:<REGION>:<zones::ZONE>:<crate::keys::zones::NAME>")]
async fn constants() -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "field:<tenant.id>:<tenant.slot(2)>:<tenant.tags.first().map_or(\"none\", String::as_str)>")]
async fn fields(tenant: &Tenant) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "{<tenant>}:<<<item>>>:{literal}")]
async fn literal_brackets(tenant: &str, item: &str) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "raw:<path:raw>")]
async fn raw(path: String) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = r"<id>")]
async fn value_only(id: &str) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "moved:<id>")]
async fn moved(id: String) -> Shop<(String, String)> {
    let taken = id;
    Ok((locked_key().await, taken))
}

#[tokio::test]
async fn parameters_fields_methods_and_constants_are_inserted() {
    start().await;
    let tenant = Tenant {
        id: 4,
        tags: vec!["gold".to_owned()],
        pair: (1, 2),
    };
    assert_eq!(tenant.method(10).await.unwrap(), "tenant:4:2:gold:14");
    assert_eq!(fields(&tenant).await.unwrap(), "field:4:6:gold");
    assert_eq!(constants().await.unwrap(), "const:eu:3:static");
    assert_eq!(
        moved("x".to_owned()).await.unwrap(),
        ("moved:x".to_owned(), "x".to_owned())
    );
}

#[tokio::test]
async fn brackets_and_braces_of_the_template_stay_and_those_of_values_are_encoded() {
    start().await;
    assert_eq!(
        literal_brackets("a{b}", "c:d").await.unwrap(),
        "{a%7Bb%7D}:<c%3Ad>:{literal}"
    );
    assert_eq!(raw("{a}:b c".to_owned()).await.unwrap(), "raw:{a}:b c");
}

#[tokio::test]
async fn an_empty_or_long_key_is_an_error() {
    start().await;
    assert_eq!(value_only("x").await.unwrap(), "x");
    for id in [String::new(), "x".repeat(1025)] {
        let refused = value_only(&id).await;
        assert!(
            matches!(refused, Err(ShopError::Lock(LockError::InvalidKey { .. }))),
            "{refused:?}"
        );
    }
}

/// A trait of the user's, which gives every type methods with the names of the generated code's.
mod under_a_trait_for_every_type {
    use super::*;

    #[allow(dead_code)]
    trait Everything {
        fn text(&self) {}
        fn value(&self) {}
        fn raw(&self) {}
        fn insert(&self) {}
        fn run(&self) {}
        fn lease(&self) {}
    }

    impl<T: ?Sized> Everything for T {}

    #[distributed_lock(key = "trait:<id>", lease = 15, coalesce)]
    pub(super) async fn text_first(id: u32) -> Result<String, LockError> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "<id>:trait")]
    pub(super) async fn insert_first(id: u32) -> Result<String, LockError> {
        Ok(locked_key().await)
    }

    #[distributed_lock(key = "<id.0>:<id.1:raw>")]
    pub(super) async fn value_first(id: (u32, u32)) -> Result<String, LockError> {
        Ok(locked_key().await)
    }
}

#[tokio::test]
async fn methods_that_a_trait_gives_every_type_do_not_build_the_key() {
    use under_a_trait_for_every_type::{insert_first, text_first, value_first};

    start().await;
    assert_eq!(text_first(1).await.unwrap(), "trait:1");
    assert_eq!(insert_first(2).await.unwrap(), "2:trait");
    assert_eq!(value_first((3, 4)).await.unwrap(), "3:4");
}
