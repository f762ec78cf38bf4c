//! Debug builds warn once about locks that are taken inside each other in different orders. All
//! tests of the process share the orders seen, so each test has templates of its own.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, distributed_lock};
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}");
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= tracing::Level::WARN {
            let mut text = String::new();
            event.record(&mut Message(&mut text));
            self.0.lock().unwrap().push(text);
        }
    }
}

impl Warnings {
    fn watch() -> (Self, tracing::subscriber::DefaultGuard) {
        let warnings = Self::default();
        let subscriber = tracing_subscriber::registry().with(warnings.clone());
        (warnings, tracing::subscriber::set_default(subscriber))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The only warning there is, or what there is instead of it in a release build.
    fn only(&self) -> String {
        let all = self.take();
        if !cfg!(debug_assertions) {
            assert!(all.is_empty(), "a release build looks for nothing: {all:?}");
            return String::new();
        }
        let [warning] = &all[..] else {
            panic!("one warning was to be told: {all:?}")
        };
        warning.clone()
    }
}

fn contains_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            !cfg!(debug_assertions) || text.contains(part),
            "{part:?} is missing: {text}"
        );
    }
}

fn memory() -> LockManager {
    LockManager::builder("memory://").build().unwrap()
}

type Done = Result<(), LockError>;

/// Functions with locks of their own that call another one inside.
macro_rules! locked {
    ($($name:ident $key:literal;)*) => {$(
        #[distributed_lock(key = $key, manager = locks)]
        async fn $name(locks: &LockManager, id: u64, inside: impl Future<Output = Done>) -> Done {
            let _ = id;
            inside.await
        }
    )*};
}

locked! {
    orders_a "orders:a:<id>";
    orders_a_elsewhere "orders:a:<id>";
    orders_b "orders:b:<id>";
    orders_b_elsewhere "orders:b:<id>";
    same_a "same:a:<id>";
    same_b "same:b:<id>";
    ring_a "ring:a:<id>";
    ring_b "ring:b:<id>";
    ring_c "ring:c:<id>";
    deep_a "deep:a:<id>";
    deep_b "deep:b:<id>";
    own "own:<id>";
    task_a "task:a:<id>";
    task_b "task:b:<id>";
    around_a "around:a:<id>";
    around_b "around:b:<id>";
    bare "bare:<id>";
}

fn nothing() -> std::future::Ready<Done> {
    std::future::ready(Ok(()))
}

#[tokio::test]
async fn both_orders_are_told_once_with_the_functions_of_both() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    // One after the other, with different items: nobody has to wait.
    orders_a(l, 1, orders_b(l, 1, nothing())).await.unwrap();
    assert!(warnings.take().is_empty());
    orders_b_elsewhere(l, 2, orders_a_elsewhere(l, 3, nothing()))
        .await
        .unwrap();
    let told = warnings.only();
    contains_all(&told, &["`orders:a:<id>`", "`orders:b:<id>`", "keys = [...]"]);
    contains_all(
        &told,
        &[
            "::orders_a)",
            "::orders_b)",
            "::orders_a_elsewhere)",
            "::orders_b_elsewhere)",
        ],
    );

    // And not again, in whichever order, by whomever.
    orders_b_elsewhere(l, 2, orders_a_elsewhere(l, 3, nothing()))
        .await
        .unwrap();
    orders_b(l, 2, orders_a(l, 3, nothing())).await.unwrap();
    orders_a(l, 1, orders_b(l, 1, nothing())).await.unwrap();
    assert_eq!(warnings.take(), [""; 0]);
}

#[tokio::test]
async fn one_order_in_all_places_is_not_told() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    for id in 0..3 {
        same_a(l, id, same_b(l, id + 1, nothing())).await.unwrap();
    }
    // Beside each other is no order.
    same_b(l, 1, nothing()).await.unwrap();
    same_a(l, 1, nothing()).await.unwrap();
    assert_eq!(warnings.take(), [""; 0]);
}

#[tokio::test]
async fn a_circle_of_three_is_told_as_it_closes() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    ring_a(l, 1, ring_b(l, 1, nothing())).await.unwrap();
    ring_b(l, 1, ring_c(l, 1, nothing())).await.unwrap();
    assert!(warnings.take().is_empty());
    ring_c(l, 1, ring_a(l, 1, nothing())).await.unwrap();
    contains_all(&warnings.only(), &["::ring_a)", "::ring_b)", "::ring_c)"]);
}

#[tokio::test]
async fn all_locks_around_a_call_count() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    // The innermost one, taken by hand, has no template.
    let between = async { l.lock("between").run(deep_b(l, 1, nothing())).await? };
    deep_a(l, 1, between).await.unwrap();
    assert!(warnings.take().is_empty());
    deep_b(l, 1, deep_a(l, 1, nothing())).await.unwrap();
    contains_all(&warnings.only(), &["`deep:b:<id>` (by", "inside `deep:a:<id>` (by"]);
}

#[tokio::test]
async fn locks_of_one_template_and_those_taken_by_hand_are_left_out() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    own(l, 1, own(l, 2, nothing())).await.unwrap();
    own(l, 2, own(l, 1, nothing())).await.unwrap();
    let by_hand = async { l.lock("bare:1").run(own(l, 1, nothing())).await? };
    by_hand.await.unwrap();
    own(l, 1, async { l.lock("bare:1").run(nothing()).await? })
        .await
        .unwrap();
    bare(l, 1, nothing()).await.unwrap();
    assert_eq!(warnings.take(), [""; 0]);
}

#[tokio::test]
async fn a_spawned_task_is_not_inside() {
    let (warnings, _watch) = Warnings::watch();
    let locks = memory();
    let l = &locks;
    task_a(l, 1, task_b(l, 1, nothing())).await.unwrap();
    let theirs = locks.clone();
    let spawning = async move {
        let task = async move { task_a(&theirs, 1, nothing()).await };
        tokio::spawn(task).await.unwrap()
    };
    task_b(l, 1, spawning).await.unwrap();
    assert_eq!(warnings.take(), [""; 0]);
}

/// The very thing that is warned of, in virtual time: both wait until one gives up.
#[tokio::test(start_paused = true)]
async fn two_calls_that_meet_are_told_before_one_of_them_gives_up() {
    let (warnings, _watch) = Warnings::watch();
    let l = &memory();
    let pause = || tokio::time::sleep(Duration::from_secs(1));
    let one = around_a(l, 1, async {
        pause().await;
        around_b(l, 1, nothing()).await
    });
    let other = around_b(l, 1, async {
        pause().await;
        around_a(l, 1, nothing()).await
    });
    let told = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        warnings.only()
    };
    let (one, other, told) = tokio::join!(one, other, told);
    assert!(one.is_err() || other.is_err());
    contains_all(&told, &["::around_a)", "::around_b)"]);
}

#[distributed_lock(key = "commas:a, commas:b", manager = locks)]
async fn under_commas(locks: &LockManager) -> Result<(), LockError> {
    locked_c(locks).await
}

#[distributed_lock(key = "commas:c", manager = locks)]
async fn locked_c(locks: &LockManager) -> Result<(), LockError> {
    let _ = locks;
    Ok(())
}

#[distributed_lock(key = "commas:a", manager = locks)]
async fn locked_a(locks: &LockManager) -> Result<(), LockError> {
    let _ = locks;
    Ok(())
}

#[distributed_lock(key = "commas:c", manager = locks)]
async fn a_under_c(locks: &LockManager) -> Result<(), LockError> {
    locked_a(locks).await
}

#[tokio::test]
async fn a_key_with_a_comma_in_it_is_one_lock() {
    let (warnings, _watching) = Warnings::watch();
    let locks = LockManager::connect("memory://").await.unwrap();
    under_commas(&locks).await.unwrap();
    a_under_c(&locks).await.unwrap();
    assert_eq!(warnings.take(), Vec::<String>::new(), "one key was read as two");
}
