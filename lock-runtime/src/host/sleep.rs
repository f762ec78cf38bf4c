//! Sleeps by the timer of the lock thread, which any task may await, and the wakers of such tasks.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, RawWakerVTable, Wake, Waker};

use pin_project_lite::pin_project;

/// Calls code of the user's, such as a waker or a subscriber, for which its caller must not end. Returns `None` if it
/// panics, which the hook for panics has told by then.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// The functions of the wakers of tokio's tasks, once the lock thread has begun.
static OF_TOKIO: OnceLock<&RawWakerVTable> = OnceLock::new();

/// Notes what the wakers of tokio's tasks are like. To be run as such a task.
pub(super) async fn note_wakers_of_tokio() {
    poll_fn(|cx| {
        OF_TOKIO.get_or_init(|| cx.waker().vtable());
        Poll::Ready(())
    })
    .await;
}

/// Returns `true` if this is the waker of a task of tokio, which does not panic. A task of tokio may also poll by
/// another waker: that of a combinator which gives its parts wakers of its own.
fn is_of_tokio(waker: &Waker) -> bool {
    OF_TOKIO.get().is_some_and(|known| std::ptr::eq(*known, waker.vtable()))
}

pin_project! {
    /// Completes after a time. See [`Host::sleep`](super::Host::sleep).
    // As small as the timer: thousands of calls may wait.
    pub(crate) struct Sleep {
        #[pin]
        timer: tokio::time::Sleep,
    }
}

impl Sleep {
    pub(super) fn new(timer: tokio::time::Sleep) -> Self {
        Self { timer }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.project().timer;
        if is_of_tokio(cx.waker()) {
            return timer.poll(cx);
        }
        // A new one for each poll, since the timer keeps it: a call is polled a few times while it waits.
        let relay = Waker::from(Arc::new(Relay(cx.waker().clone())));
        timer.poll(&mut Context::from_waker(&relay))
    }
}

/// What a timer wakes instead of a waker that is not of a task of tokio: one that panics would end the lock thread, whose
/// runtime is of no more use then, and no lock would be renewed any more.
struct Relay(Waker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        contained(|| self.0.wake_by_ref());
    }

    fn wake_by_ref(self: &Arc<Self>) {
        contained(|| self.0.wake_by_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::panic::resume_unwind;
    use std::time::Duration;

    use super::*;
    use crate::host::{Host, Timer};

    /// That of an executor of the user's, which panics.
    struct Panicking;

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new("this executor takes no more tasks"));
        }
    }

    /// As by a combinator with wakers of its own, which a task of tokio polls.
    #[tokio::test]
    async fn a_panicking_waker_does_not_end_the_lock_thread_though_a_task_of_tokio_has_polled()
    -> Result<(), Box<dyn Error>> {
        let host = Host(Arc::default());
        host.start()?;
        let task = tokio::spawn(async move {
            let mut first = Box::pin(host.sleep(Timer::LockThread, Duration::from_millis(20)));
            let waker = Waker::from(Arc::new(Panicking));
            assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let next = host.sleep(Timer::LockThread, Duration::from_millis(100));
            tokio::time::timeout(Duration::from_secs(20), next).await.is_ok()
        });
        assert!(task.await?, "the lock thread has ended");
        Ok(())
    }
}
