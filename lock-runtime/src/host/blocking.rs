//! Waits for futures on threads that have no runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::Handle;

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread. Returns `None` on a thread of a runtime, whose other tasks would have
/// to wait as well, and perhaps for one another.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    if Handle::try_current().is_ok() {
        return None;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Some(output),
            // Something else may have unparked the thread: then the future is polled once too often.
            Poll::Pending => thread::park(),
        }
    }
}
