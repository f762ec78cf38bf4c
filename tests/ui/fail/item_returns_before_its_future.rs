//! A function that makes its boxed future by hand, and returns before it does.

use std::future::ready;
use std::pin::Pin;

use lock_runtime::{LockError, distributed_lock};

type Answer = Result<u64, LockError>;

#[distributed_lock(key = "stock:<id>")]
fn reduce(id: u64, stock: Vec<u64>) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
    if id == 0 {
        return Box::pin(ready(Ok(0)));
    }
    let Some(first) = stock.iter().copied().find(|left| return *left > 0) else {
        return Box::pin(async { Ok(0) });
    };
    // None of these leaves the function.
    let double = |left: u64| {
        return left * 2;
    };
    let later = async move {
        return double(first);
    };
    fn half(left: u64) -> u64 {
        return left / 2;
    }
    Box::pin(async move {
        if id == 1 {
            return Ok(half(first));
        }
        Ok(later.await)
    })
}

fn main() {}
