//! The receiver of an answer that no future waits for in the store: the answer goes to the caller from
//! whatever thread it arrives on, once.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use crate::host::contained;
use crate::store::StoreError;

/// Receives one answer of a store.
pub(crate) trait Receive<T>: Send + Sync {
    /// Takes the answer. Must not block.
    fn receive(&self, answer: Result<T, StoreError>);
}

/// The receiver of the answer to a request that a store sends in a batch. See
/// [`LockStore::send_acquire`](crate::store::LockStore::send_acquire).
///
/// Dropping it answers that the outcome is unknown.
#[must_use = "dropping it answers that the outcome is unknown"]
pub struct Responder<T>(Option<Arc<dyn Receive<T>>>);

impl<T> Responder<T> {
    pub(crate) fn to(receiver: Arc<dyn Receive<T>>) -> Self {
        Self(Some(receiver))
    }

    /// Gives the answer. Does not block.
    pub fn respond(mut self, answer: Result<T, StoreError>) {
        if let Some(receiver) = self.0.take() {
            receiver.receive(answer);
        }
    }
}

impl<T> Drop for Responder<T> {
    fn drop(&mut self) {
        if let Some(receiver) = self.0.take() {
            receiver.receive(Err(StoreError::unknown("the connection was given up")));
        }
    }
}

impl<T> fmt::Debug for Responder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Responder").finish_non_exhaustive()
    }
}

/// The place for one answer.
#[derive(Debug)]
pub(crate) struct Answer<T>(Mutex<Option<Result<T, StoreError>>>);

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Answer<T> {
    /// Stores the answer; the caller then wakes the task that waits for it.
    pub(crate) fn put(&self, answer: Result<T, StoreError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    /// Takes the answer out, once. A caller that waits for it registers its waker first.
    pub(crate) fn poll(&self) -> Poll<Result<T, StoreError>> {
        // Whoever has locked it wakes the task afterwards. In a forked child it may stay locked.
        let answer = self.0.try_lock().ok().and_then(|mut answer| answer.take());
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

/// One answer, and the task that waits for it.
#[derive(Debug)]
pub(crate) struct Awaited<T> {
    answer: Answer<T>,
    task: AtomicWaker,
}

impl<T> Default for Awaited<T> {
    fn default() -> Self {
        Self {
            answer: Answer::default(),
            task: AtomicWaker::new(),
        }
    }
}

impl<T: Send> Receive<T> for Awaited<T> {
    fn receive(&self, answer: Result<T, StoreError>) {
        self.answer.put(answer);
        contained(|| self.task.wake());
    }
}

/// Completes once, with the answer. Cancel safe.
impl<T> Future for &Awaited<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.register(cx.waker());
        self.answer.poll()
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::store::{Effect, Ownership};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_answer_wakes_the_task_and_is_taken_once() {
        let woken = Arc::<Woken>::default();
        let (waker, awaited) = (Arc::clone(&woken).into(), Arc::<Awaited<Ownership>>::default());
        let cx = &mut Context::from_waker(&waker);
        let responder = Responder::to(Arc::clone(&awaited) as _);
        assert!(Pin::new(&mut &*awaited).poll(cx).is_pending());
        responder.respond(Ok(Ownership::Gone));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let answer = Pin::new(&mut &*awaited).poll(cx);
        assert!(matches!(answer, Poll::Ready(Ok(Ownership::Gone))), "{answer:?}");
        assert!(Pin::new(&mut &*awaited).poll(cx).is_pending());
    }

    #[test]
    fn a_responder_that_is_dropped_says_that_the_outcome_is_unknown() {
        let awaited = Arc::<Awaited<Ownership>>::default();
        drop(Responder::to(Arc::clone(&awaited) as _));
        let Poll::Ready(Err(error)) = awaited.answer.poll() else {
            unreachable!("no answer");
        };
        assert_eq!(error.effect(), Effect::Unknown);
    }
}
