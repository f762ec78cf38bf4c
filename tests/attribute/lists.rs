//! `keys` from a list that only the running program knows.

use std::collections::BTreeSet;
use std::sync::Arc;

use lock_runtime::{KeyProblem, LockError, LockManager, current, distributed_lock};
use lock_tests::assert_free;

use crate::witness::{Shop, ShopError, start};

struct Line {
    item: u64,
}

struct Order {
    lines: Vec<Line>,
}

fn held() -> Vec<String> {
    current().expect("locked").keys().map(str::to_owned).collect()
}

fn order(items: &[u64]) -> Order {
    Order {
        lines: items.iter().map(|item| Line { item: *item }).collect(),
    }
}

#[distributed_lock(keys = order.lines.iter().map(|line| format!("list:item:{}", line.item)), wait = 0)]
async fn reserve(order: Order) -> Shop<Vec<String>> {
    // The list is made before the body takes the order.
    drop(order);
    Ok(held())
}

#[distributed_lock(keys = ids.iter().map(|id| format!("list:{kind}:{id}")), wait = 0)]
async fn of_a_pattern((ids, kind): (Vec<u64>, &str)) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = ids.iter().map(|id| format!("list:{kind:<width$}{id:>4}:<{id:.precision$}>")))]
async fn aligned((ids, kind): (Vec<f64>, &str), (width, precision): (usize, usize)) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = names)]
async fn named(names: Vec<String>) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = names, wait = "50ms", on_busy = skip)]
async fn of_borrowed(names: &[&'static str]) -> Option<usize> {
    Some(held().len())
}

/// The guard of the mutex lives as long as the list is read.
#[distributed_lock(keys = shared.lock().unwrap().names)]
async fn behind_a_mutex(shared: &std::sync::Mutex<Shared>) -> Shop<Vec<String>> {
    Ok(held())
}

struct Shared {
    names: Vec<String>,
}

struct Names(Vec<String>);

impl<'a> IntoIterator for &'a Names {
    type Item = &'a String;
    type IntoIter = std::slice::Iter<'a, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[distributed_lock(keys = names, wait = 0)]
async fn of_a_type(names: &Names) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = names, wait = 0)]
async fn of_an_owned_type(names: Names) -> Shop<Vec<String>> {
    drop(names);
    Ok(held())
}

#[distributed_lock(keys = names, wait = 0)]
async fn of_a_pointer(names: &Arc<[String; 2]>) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = names, wait = 0)]
async fn of_a_bound<L>(names: L) -> Shop<Vec<String>>
where
    for<'a> &'a L: IntoIterator<Item = &'a String>,
{
    Ok(held())
}

#[distributed_lock(keys = names, wait = 0)]
async fn of_part_of_a_pattern((names, _): (&BTreeSet<String>, u8)) -> Shop<Vec<String>> {
    Ok(held())
}

#[distributed_lock(keys = all.0, wait = 0)]
async fn of_a_field(all: &Names) -> Shop<Vec<String>> {
    Ok(held())
}

#[tokio::test]
async fn a_list_is_whatever_can_be_iterated_by_reference() {
    start().await;
    let [a, b] = ["list:of:a", "list:of:b"].map(str::to_owned);
    let all = [a.clone(), b.clone()];
    let names = || Names(all.to_vec());
    assert_eq!(of_a_type(&names()).await.unwrap(), all);
    assert_eq!(of_an_owned_type(names()).await.unwrap(), all);
    assert_eq!(of_a_pointer(&Arc::new(all.clone())).await.unwrap(), all);
    assert_eq!(of_a_bound(names()).await.unwrap(), all);
    assert_eq!(of_a_field(&names()).await.unwrap(), all);
    let set = BTreeSet::from([b, a]);
    assert_eq!(of_part_of_a_pattern((&set, 1)).await.unwrap(), all);
}

struct Shelf {
    locks: LockManager,
    ids: Vec<u32>,
}

impl Shelf {
    fn keys(&self) -> impl Iterator<Item = String> {
        self.ids.iter().map(|id| format!("shelf:{id}"))
    }

    #[distributed_lock(keys = self.keys().chain([format!("room:{room}")]), manager = self.locks, lease = 20)]
    async fn count(&self, room: u8) -> Shop<Vec<String>> {
        Ok(held())
    }
}

#[tokio::test]
async fn as_many_keys_are_locked_as_the_list_has() {
    start().await;
    let all = ["list:item:3", "list:item:5", "list:item:7"];
    assert_eq!(reserve(order(&[7, 3, 5, 3])).await.unwrap(), all);
    assert_eq!(reserve(order(&[9])).await.unwrap(), ["list:item:9"]);
    assert_eq!(
        of_a_pattern((vec![2, 1], "id")).await.unwrap(),
        ["list:id:1", "list:id:2"]
    );
    assert_eq!(
        aligned((vec![2.5], "id"), (3, 2)).await.unwrap(),
        ["list:id  2.5:<2.50>"]
    );
    assert_eq!(of_borrowed(&["list:b", "list:a"]).await, Some(2));
    let shelf = Shelf {
        locks: LockManager::connect("memory://").await.unwrap(),
        ids: vec![1, 2],
    };
    assert_eq!(shelf.count(4).await.unwrap(), ["room:4", "shelf:1", "shelf:2"]);
    let many: Vec<_> = (0..1_000).map(|id| format!("list:many:{id}")).collect();
    assert_eq!(named(many).await.unwrap().len(), 1_000);
    let shared = std::sync::Mutex::new(Shared {
        names: vec!["list:shared".to_owned()],
    });
    assert_eq!(behind_a_mutex(&shared).await.unwrap(), ["list:shared"]);
}

#[tokio::test]
async fn all_keys_of_a_list_are_locked_or_none() {
    start().await;
    let locks = lock_runtime::global().unwrap();
    let taken = locks.lock("list:item:22").acquire().await.unwrap();
    let busy = reserve(order(&[21, 22, 23])).await.unwrap_err();
    assert!(matches!(busy, ShopError::Lock(LockError::Busy { .. })), "{busy:?}");
    assert_free(locks, ["list:item:21", "list:item:23"]).await;
    taken.release().await.unwrap();
}

#[tokio::test]
async fn a_list_without_keys_or_with_one_that_cannot_be_is_refused() {
    start().await;
    for (names, problem) in [
        (vec![], KeyProblem::NoKeys),
        (vec!["list:good".to_owned(), String::new()], KeyProblem::Empty),
        (
            vec!["list:good".to_owned(), "%lock-fence".to_owned()],
            KeyProblem::Reserved,
        ),
        (vec!["x".repeat(1025)], KeyProblem::TooLong(1025)),
    ] {
        let refused = named(names).await.unwrap_err();
        let ShopError::Lock(LockError::InvalidKey { problem: found, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(found, problem);
    }
}
