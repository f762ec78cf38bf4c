//! Every parameter pattern, generics, and the bodies that use them.

use std::fmt::Display;
use std::marker::PhantomPinned;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use lock_runtime::distributed_lock;
use tokio::task::LocalSet;

use crate::witness::{Shop, ShopError, locked_key, released, start};

#[derive(Clone, Debug)]
struct Order {
    id: u32,
    shop: Named,
    lines: [u8; 2],
}

#[derive(Clone, Debug)]
struct Named(String);

fn order() -> Order {
    Order {
        id: 5,
        shop: Named("north".to_owned()),
        lines: [1, 2],
    }
}

#[distributed_lock(key = "pair:<left>:<right>")]
async fn tuple((left, right): (u32, String)) -> Shop<String> {
    Ok(locked_key().await + &right)
}

#[distributed_lock(key = "struct:<id>:<name>")]
async fn nested(
    Order {
        id, shop: Named(name), ..
    }: Order,
) -> Shop<String> {
    Ok(locked_key().await + &name)
}

#[distributed_lock(key = "one:<name>")]
async fn single(Named(name): Named) -> Shop<String> {
    Ok(locked_key().await + &name)
}

#[distributed_lock(key = "ref pattern:<a>:<b>")]
async fn references(&(a, b): &(u32, u32), Named(c): &Named) -> Shop<(String, u32, String)> {
    Ok((locked_key().await, a + b, c.clone()))
}

#[distributed_lock(key = "inner ref:<b>")]
async fn inner_reference((_, &b): (u32, &u32)) -> Shop<(String, u32)> {
    Ok((locked_key().await, b))
}

#[distributed_lock(key = "array:<first>")]
async fn array([first, .., last]: [u8; 4]) -> Shop<(String, u8)> {
    Ok((locked_key().await, last + first))
}

#[distributed_lock(key = "at:<whole.id>:<id>")]
#[allow(clippy::used_underscore_binding)]
async fn binding_after_at(
    ref whole @ Order {
        id, lines: [_, last], ..
    }: Order,
) -> Shop<(String, u32, u8)> {
    Ok((locked_key().await, whole.id + id, last))
}

#[distributed_lock(key = "wild")]
async fn wild(_: String, _: &str, _unused: Vec<u8>) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "mut:<count>")]
async fn mutable(mut count: u32, (mut left, right): (String, u32)) -> Shop<(String, u32, String)> {
    count += right;
    left.push('!');
    Ok((locked_key().await, count, left))
}

#[distributed_lock(key = "ref mut:<name>")]
async fn mutable_reference(Named(ref mut name): Named) -> Shop<String> {
    name.push('!');
    Ok(format!("{} {name}", locked_key().await))
}

#[distributed_lock(key = "permits:<permits>", mode = semaphore(permits))]
async fn permits_of_a_pattern((permits, _): (u32, u32)) -> Shop<u32> {
    Ok(permits)
}

#[distributed_lock(
    key = "spans",
    lease = lease,
    wait = wait,
    at_least = at_least,
    lock_delay = lock_delay,
    max_hold = max_hold
)]
async fn spans_of_a_pattern([lease, wait, at_least, lock_delay, max_hold]: [Duration; 5]) -> Shop<Duration> {
    Ok(lease + wait + at_least + lock_delay + max_hold)
}

#[distributed_lock(key = "{braces}:<id>")]
async fn hash_tag(id: u32) -> Shop<String> {
    let _ = id;
    Ok(locked_key().await)
}

#[distributed_lock(key = "raw identifier:<r#type>:<r#match>")]
async fn raw_identifiers(r#type: u32, r#match: u32) -> Shop<String> {
    let _ = r#type + r#match;
    Ok(locked_key().await)
}

#[distributed_lock(key = "cfg:<kept>")]
async fn conditional(#[cfg(unix)] kept: u32, #[cfg(not(unix))] kept: u64) -> Shop<String> {
    let _ = kept;
    Ok(locked_key().await)
}

#[distributed_lock(key = "cfg:<kept>:<other>")]
async fn conditional_patterns(
    #[cfg(not(unix))] (kept, _): (u64, u64),
    #[cfg(unix)] Named(kept): Named,
    #[cfg(unix)] [other]: [u32; 1],
    #[cfg(not(unix))] [other]: [u64; 1],
) -> Shop<String> {
    let _ = (kept, other);
    Ok(locked_key().await)
}

#[tokio::test]
async fn destructured_parameters_are_bound_and_can_be_in_the_key() {
    start().await;
    assert_eq!(
        released("pair:1:x", tuple((1, "x".to_owned()))).await.unwrap(),
        "pair:1:xx"
    );
    assert_eq!(nested(order()).await.unwrap(), "struct:5:northnorth");
    assert_eq!(single(Named("solo".to_owned())).await.unwrap(), "one:solosolo");
    let named = Named("c".to_owned());
    assert_eq!(
        references(&(1, 2), &named).await.unwrap(),
        ("ref pattern:1:2".to_owned(), 3, "c".to_owned())
    );
    assert_eq!(inner_reference((1, &9)).await.unwrap(), ("inner ref:9".to_owned(), 9));
    assert_eq!(array([1, 2, 3, 4]).await.unwrap(), ("array:1".to_owned(), 5));
    assert_eq!(binding_after_at(order()).await.unwrap(), ("at:5:5".to_owned(), 10, 2));
}

#[tokio::test]
async fn unused_and_unnamed_parameters_are_accepted() {
    start().await;
    assert_eq!(wild("a".to_owned(), "b", vec![1]).await.unwrap(), "wild");
}

#[tokio::test]
async fn mutable_parameters_can_be_changed() {
    start().await;
    let returned = mutable(1, ("a".to_owned(), 2)).await.unwrap();
    assert_eq!(returned, ("mut:1".to_owned(), 3, "a!".to_owned()));
    let returned = mutable_reference(Named("a".to_owned())).await.unwrap();
    assert_eq!(returned, "ref mut:a a!");
}

#[tokio::test]
async fn a_name_that_a_pattern_binds_is_a_number_of_permits() {
    start().await;
    assert_eq!(permits_of_a_pattern((3, 4)).await.unwrap(), 3);
}

#[tokio::test]
async fn names_that_a_pattern_binds_are_spans() {
    start().await;
    let spans = [30, 10, 0, 0, 60].map(Duration::from_secs);
    assert_eq!(spans_of_a_pattern(spans).await.unwrap(), Duration::from_secs(100));
}

#[tokio::test]
async fn braces_around_another_word_are_a_hash_tag() {
    start().await;
    assert_eq!(hash_tag(7).await.unwrap(), "{braces}:7");
}

#[tokio::test]
async fn raw_identifiers_and_conditional_parameters_are_accepted() {
    start().await;
    assert_eq!(raw_identifiers(1, 2).await.unwrap(), "raw identifier:1:2");
    assert_eq!(conditional(4).await.unwrap(), "cfg:4");
    assert_eq!(
        conditional_patterns(Named("a".to_owned()), [5]).await.unwrap(),
        "cfg:a:5"
    );
}

#[distributed_lock(key = "generic:<id>:<N>")]
async fn generic<T, const N: usize>(id: T, values: [T; N]) -> Shop<(String, usize)>
where
    T: Display + Clone,
{
    Ok((locked_key().await, values.len()))
}

#[distributed_lock(key = "lifetime:<id>")]
async fn lifetimes<'a, 'b: 'a>(id: &'a str, other: &'b str) -> Shop<&'a str> {
    locked_key().await;
    Ok(if other.is_empty() { id } else { other })
}

#[distributed_lock(key = "impl:<id>")]
async fn impl_argument(id: impl Display, words: &mut impl Iterator<Item = u32>) -> Shop<(String, Option<u32>)> {
    Ok((locked_key().await, words.next()))
}

#[distributed_lock(key = "dyn:<id>")]
async fn dyn_argument(id: &(dyn Display + Sync), run: Box<dyn FnOnce() -> u32 + Send>) -> Shop<(String, u32)> {
    Ok((locked_key().await, run()))
}

#[tokio::test]
async fn generics_lifetimes_and_impl_arguments_are_accepted() {
    start().await;
    assert_eq!(generic("x", ["y", "z"]).await.unwrap(), ("generic:x:2".to_owned(), 2));
    let id = String::from("id");
    assert_eq!(lifetimes(&id, "").await.unwrap(), "id");
    assert_eq!(
        impl_argument(7, &mut (1..3)).await.unwrap(),
        ("impl:7".to_owned(), Some(1))
    );
    assert_eq!(dyn_argument(&8, Box::new(|| 3)).await.unwrap(), ("dyn:8".to_owned(), 3));
}

#[distributed_lock(key = "early:<text>")]
async fn early(text: &str) -> Shop<u32> {
    locked_key().await;
    if text.is_empty() {
        return Err(ShopError::SoldOut);
    }
    // `?` turns another error into the function's.
    let number: u32 = text.parse()?;
    if number == 0 {
        return Ok(u32::MAX);
    }
    Ok(number)
}

#[tokio::test]
async fn return_and_question_mark_leave_the_body_and_release() {
    start().await;
    assert!(matches!(released("early:", early("")).await, Err(ShopError::SoldOut)));
    assert!(matches!(
        released("early:x", early("x")).await,
        Err(ShopError::Number(_))
    ));
    assert_eq!(released("early:0", early("0")).await.unwrap(), u32::MAX);
    assert_eq!(released("early:3", early("3")).await.unwrap(), 3);
}

/// Needs the return type to know what `into` and `collect` make.
#[distributed_lock(key = "inferred")]
async fn inferred(words: &[&str]) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    if words.is_empty() {
        return Err("no words".into());
    }
    Ok(words.iter().copied().map(Into::into).collect())
}

#[tokio::test]
async fn the_return_type_is_known_inside_the_body() {
    start().await;
    assert_eq!(inferred(&["a"]).await.unwrap(), ["a"]);
    assert!(inferred(&[]).await.is_err());
}

#[distributed_lock(key = "outer:<id>")]
async fn outer(id: u32) -> Shop<(String, String)> {
    let before = locked_key().await;
    let inner = inner(id + 1).await?;
    assert_eq!(locked_key().await, before);
    Ok((before, inner))
}

#[distributed_lock(key = "inner:<id>")]
async fn inner(id: u32) -> Shop<String> {
    Ok(locked_key().await)
}

#[distributed_lock(key = "depth:<depth>")]
async fn recursive(depth: u32) -> Shop<u32> {
    locked_key().await;
    if depth == 0 {
        return Ok(0);
    }
    Ok(Box::pin(recursive(depth - 1)).await? + 1)
}

#[tokio::test]
async fn a_locked_function_calls_another() {
    start().await;
    assert_eq!(outer(1).await.unwrap(), ("outer:1".to_owned(), "inner:2".to_owned()));
    assert_eq!(recursive(3).await.unwrap(), 3);
}

#[distributed_lock(key = "unpin")]
async fn not_unpin(value: PhantomPinned) -> Shop<String> {
    let pinned = pin!(value);
    let key = locked_key().await;
    let _: &PhantomPinned = &pinned;
    Ok(key)
}

#[distributed_lock(key = "local:<id>")]
async fn not_send(id: Rc<u32>) -> Shop<String> {
    let kept = Rc::clone(&id);
    let key = locked_key().await;
    tokio::task::yield_now().await;
    Ok(format!("{key} {kept}"))
}

#[distributed_lock(key = "send:<id>")]
async fn send(id: u32, text: String) -> Shop<String> {
    tokio::task::yield_now().await;
    Ok(locked_key().await + &text)
}

#[tokio::test]
async fn a_body_that_is_not_unpin_is_accepted() {
    start().await;
    assert_eq!(not_unpin(PhantomPinned).await.unwrap(), "unpin");
}

#[tokio::test]
async fn a_body_that_is_not_send_runs_on_a_local_runtime() {
    start().await;
    let task = LocalSet::new()
        .run_until(async { tokio::task::spawn_local(not_send(Rc::new(4))).await })
        .await;
    assert_eq!(task.unwrap().unwrap(), "local:4 4");
}

#[tokio::test]
async fn a_body_that_is_send_is_spawned() {
    start().await;
    let task = tokio::spawn(send(2, "!".to_owned()));
    assert_eq!(task.await.unwrap().unwrap(), "send:2!");
}

macro_rules! locked_function {
    ($name:ident, $parameter:ident: $ty:ty, $key:literal, $seconds:literal) => {
        #[distributed_lock(key = $key, lease = $seconds)]
        async fn $name($parameter: $ty, other: u32) -> Shop<(String, u32)> {
            Ok((locked_key().await, other))
        }
    };
}

locked_function!(from_macro, id: u32, "macro:<id>:<other>", 5);

#[tokio::test]
async fn a_function_made_by_a_macro_is_locked() {
    start().await;
    assert_eq!(from_macro(1, 2).await.unwrap(), ("macro:1:2".to_owned(), 2));
}
