//! Running a body under its lock: the look at the clock before every poll.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::context;
use crate::error::LockError;
use crate::guard::Guard;
use crate::held::{Fate, OnLost};

/// How a body has ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// It ran to its end; with what ended the lock before, if anything did.
    Done(T, Option<LockError>),
    /// It was told of the loss, went on, and returned what it chose to.
    Told(T),
    /// It was cancelled.
    Cancelled(LockError),
}

/// A body being run under its lock.
///
/// The body is borrowed: it stays where it is, in the caller's future, and is dropped by the caller once this
/// future is ready.
#[must_use = "futures do nothing unless awaited"]
pub struct Run<'a, F> {
    guard: &'a Guard,
    body: Pin<&'a mut F>,
}

impl<'a, F: Future> Run<'a, F> {
    pub(crate) fn new(guard: &'a Guard, body: Pin<&'a mut F>) -> Self {
        Self { guard, body }
    }
}

impl<F: Future> Future for Run<'_, F> {
    type Output = Ended<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let held = Arc::clone(self.guard.held());
        // A call that hangs, or runs beyond a shutdown, is cancelled whatever was asked for in case of a loss.
        let on_lost = self.guard.on_lost;
        let cancels = |fate| on_lost == OnLost::Cancel || !matches!(fate, Fate::Lost(_));
        // Listen before looking, so that no loss falls between the two.
        held.runner().register(cx.waker());
        let lost_before = held.look();
        if let Some(fate) = lost_before
            && cancels(fate)
            && !held.is_shielded()
        {
            return Poll::Ready(Ended::Cancelled(held.error(fate, false)));
        }
        let polled = {
            let _current = context::enter(&held);
            let _span = held.span.enter();
            self.body.as_mut().poll(cx)
        };
        // A call that passes through this lock may have been polled by another waker, and have put that in the place of this one.
        held.runner().register(cx.waker());
        let fate = held.look();
        if fate.is_some() && lost_before.is_none() {
            count_overrun(&held, fate);
        }
        match (polled, fate) {
            (Poll::Ready(output), None) => Poll::Ready(Ended::Done(output, None)),
            // A body that has asked and was told of the loss has decided itself what to return.
            (Poll::Ready(output), Some(fate)) if !cancels(fate) && held.was_told() => Poll::Ready(Ended::Told(output)),
            (Poll::Ready(output), Some(fate)) => Poll::Ready(Ended::Done(output, Some(held.error(fate, true)))),
            (Poll::Pending, Some(fate)) if cancels(fate) && !held.is_shielded() => {
                Poll::Ready(Ended::Cancelled(held.error(fate, false)))
            }
            (Poll::Pending, _) => Poll::Pending,
        }
    }
}

/// A poll that began inside the lease and ended after it: nobody could have stopped it.
fn count_overrun(held: &crate::held::Held, fate: Option<Fate>) {
    let over = held.now().since(held.deadline());
    if fate.is_some() && !over.is_zero() {
        held.manager.stats.count_overrun();
        tracing::warn!(
            parent: &held.span,
            key = &*held.name(),
            ?over,
            "the body kept its thread beyond the lock's deadline; await more often, or move blocking work to spawn_blocking"
        );
    }
}
