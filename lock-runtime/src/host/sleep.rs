//! Sleeps by the timer of the lock thread, which any task may await, and the wakers of such tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;
use pin_project_lite::pin_project;

/// Calls code of the user's, such as a waker or a subscriber, for which its caller must not end. Returns `None` if it
/// panics, which the hook for panics has told by then.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

pin_project! {
    /// Completes after a time. See [`Host::sleep`](super::Host::sleep).
    // An enum, so that the usual kind is as small as the timer: thousands of calls may wait.
    #[project = Kind]
    pub(crate) enum Sleep {
        /// Of a task of tokio, whose own waker does not panic.
        Plain {
            #[pin]
            timer: tokio::time::Sleep,
        },
        /// Of what else polls it, such as a task of another executor.
        Relayed { relayed: Box<Relayed> },
    }
}

/// A timer that wakes a relay instead of the task: a waker that panics would end the timer, and the lock thread with it.
pub(crate) struct Relayed {
    timer: Pin<Box<tokio::time::Sleep>>,
    relay: Arc<Relay>,
}

impl Sleep {
    pub(super) fn new(timer: tokio::time::Sleep) -> Self {
        if tokio::task::try_id().is_some() {
            return Self::Plain { timer };
        }
        let relayed = Relayed {
            timer: Box::pin(timer),
            relay: Arc::default(),
        };
        Self::Relayed {
            relayed: Box::new(relayed),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            Kind::Plain { timer } => timer.poll(cx),
            Kind::Relayed { relayed } => {
                let Relayed { timer, relay } = &mut **relayed;
                relay.0.register(cx.waker());
                timer
                    .as_mut()
                    .poll(&mut Context::from_waker(&Waker::from(Arc::clone(relay))))
            }
        }
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
