//! The locked future contains its body once, and little more.

use std::future::ready;
use std::sync::Mutex;

use lock_runtime::{LockError, distributed_lock};

use crate::witness::{Shop, start};

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
            pub(super) async fn large_argument(id: u64, payload: [u8; 16_384]) -> Shop<usize> {
                ready(()).await;
                Ok(payload.len() + usize::from(id > 0))
            }

            $(#[$attr])*
            pub(super) async fn printed_argument(id: u64, payload: [u8; 16_384]) -> Shop<usize> {
                ready(()).await;
                Ok(format!("{id}: {payload:?}").len())
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
fn a_large_argument_is_stored_as_often_as_by_a_plain_function() {
    let (plain, locked) = sizes(
        &plain::large_argument(1, [0; 16_384]),
        &locked::large_argument(1, [0; 16_384]),
    );
    assert!(locked <= plain + 512, "plain {plain}, locked {locked}");
}

#[test]
fn a_large_argument_that_is_only_printed_is_stored_as_often_as_by_a_plain_function() {
    let (plain, locked) = sizes(
        &plain::printed_argument(1, [0; 16_384]),
        &locked::printed_argument(1, [0; 16_384]),
    );
    assert!(locked <= plain + 512, "plain {plain}, locked {locked}");
}

/// How much of the stack lies between one call's body and that of the call inside it.
static DEPTHS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn mark() {
    let here = 0_u8;
    DEPTHS.lock().unwrap().push(std::ptr::from_ref(&here).addr());
}

#[distributed_lock(key = "depth:<depth>", lease = 15, wait = 5)]
async fn nested(depth: u32) -> Result<u32, LockError> {
    mark();
    if depth == 0 {
        return Ok(0);
    }
    Ok(Box::pin(nested(depth - 1)).await? + 1)
}

#[tokio::test]
async fn a_nested_call_takes_little_of_the_stack() {
    start().await;
    assert_eq!(nested(4).await.unwrap(), 4);
    let depths = DEPTHS.lock().unwrap().clone();
    let each: Vec<_> = depths.windows(2).map(|pair| pair[0].abs_diff(pair[1])).collect();
    // Of this, 0.7 kB are the plain function's, which returns 56 bytes.
    assert!(each.iter().all(|bytes| *bytes <= 2_048), "{each:?}");
}
