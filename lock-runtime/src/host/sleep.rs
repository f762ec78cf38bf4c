//! Sleeps by the timer of the lock thread, which any task may await, and the wakers of such tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;

/// Calls code of the user's, such as a waker or a subscriber, for which its caller must not end. Returns `None` if it
/// panics, which the hook for panics has told by then.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// Completes after a time. See [`Host::sleep`](super::Host::sleep).
///
/// The timer wakes a relay instead of the task: a waker that panics would end the timer, and the lock thread with it.
pub(crate) struct Sleep {
    timer: Pin<Box<tokio::time::Sleep>>,
    relay: Option<Arc<Relay>>,
}

impl Sleep {
    pub(super) fn new(timer: tokio::time::Sleep) -> Self {
        Self {
            timer: Box::pin(timer),
            relay: None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { timer, relay } = &mut *self;
        let relay = relay.get_or_insert_default();
        relay.0.register(cx.waker());
        timer
            .as_mut()
            .poll(&mut Context::from_waker(&Waker::from(Arc::clone(relay))))
    }
}

/// Wakes the task that awaits a sleep.
#[derive(Default)]
struct Relay(AtomicWaker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        contained(|| self.0.wake());
    }
}
