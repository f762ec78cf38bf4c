//! The locked future contains its body once, and little more.

use std::future::ready;

use lock_runtime::distributed_lock;

use crate::witness::Shop;

/// The same functions with and without the attribute.
macro_rules! functions {
    ($(#[$attr:meta])* $module:ident) => {
        mod $module {
            use super::*;

            $(#[$attr])*
            pub(super) async fn small(id: u64, name: String) -> Shop<usize> {
                ready(()).await;
                Ok(name.len() + usize::from(id > 0))
            }

            $(#[$attr])*
            pub(super) async fn large(id: u64, name: &str) -> Shop<usize> {
                let kept = [id; 2048];
                ready(()).await;
                Ok(kept.iter().filter(|kept| **kept > 0).count() + name.len())
            }

            $(#[$attr])*
            pub(super) async fn large_argument(id: u64, payload: [u8; 1024]) -> Shop<usize> {
                ready(()).await;
                Ok(payload.len() + usize::from(id > 0))
            }
        }
    };
}

functions!(plain);
functions!(
    #[distributed_lock(key = "size:<id>", lease = 15, wait = 5)]
    locked
);

fn sizes(plain: &impl Sized, locked: &impl Sized) -> (usize, usize) {
    let (plain, locked) = (size_of_val(plain), size_of_val(locked));
    println!("plain {plain}, locked {locked}");
    (plain, locked)
}

#[test]
fn a_small_future_grows_by_well_under_a_kibibyte() {
    let (plain, locked) = sizes(&plain::small(1, String::new()), &locked::small(1, String::new()));
    assert!(locked <= plain + 512, "plain {plain}, locked {locked}");
}

#[test]
fn a_large_body_is_contained_once() {
    let (plain, locked) = sizes(&plain::large(1, ""), &locked::large(1, ""));
    assert!(locked <= plain * 105 / 100, "plain {plain}, locked {locked}");
}

#[test]
fn a_large_argument_is_stored_only_once_more() {
    let (plain, locked) = sizes(
        &plain::large_argument(1, [0; 1024]),
        &locked::large_argument(1, [0; 1024]),
    );
    assert!(locked <= plain + 1024 + 512, "plain {plain}, locked {locked}");
}
