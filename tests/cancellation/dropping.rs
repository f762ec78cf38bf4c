//! Futures that are dropped midway.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Polls a future at its own pace and drops it right after its `polls`-th poll. `Some` if it was ready by then.
pub(crate) async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Some(Box::pin(future));
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            future = None;
        }
        let Some(running) = &mut future else {
            return Poll::Ready(None);
        };
        left -= 1;
        match running.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => {
                future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls a future along, and notes the longest time from the beginning of one of its polls to the end of the next.
pub(crate) async fn noting_gaps<F: Future>(longest: &mut Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut before = None;
    poll_fn(|context| {
        let begun = Instant::now();
        let polled = future.as_mut().poll(context);
        *longest = (*longest).max(before.replace(begun).unwrap_or(begun).elapsed());
        polled
    })
    .await
}

/// Runs a future to its end and counts its polls.
pub(crate) async fn count_polls<F: Future>(future: F) -> usize {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context).map(drop)
    })
    .await;
    polls
}

#[tokio::test]
async fn a_future_is_dropped_right_after_the_poll_that_was_asked_for() {
    let yields = || async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    };
    let full = count_polls(yields()).await;
    for polls in 0..full {
        assert_eq!(drop_after(polls, yields()).await, None);
    }
    assert_eq!(drop_after(full, yields()).await, Some(()));
}
