//! Helpers: bodies that report their progress, and panics with their place in the source.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use lock_runtime::{LockError, LockRequest};
use tokio::task::JoinHandle;

/// A lease that is never about to end.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A body that never ends by itself, under its lock in a task of its own.
pub(crate) struct Endless {
    task: JoinHandle<Result<(), LockError>>,
    cancelled: Arc<AtomicBool>,
}

impl Endless {
    /// Returns once the body runs.
    pub(crate) async fn under(request: LockRequest) -> Self {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let dropped = Dropped(Arc::clone(&cancelled));
        let (began, running) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(request.run(async move {
            let _dropped = dropped;
            began.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        running.await.expect("the body has begun");
        Self { task, cancelled }
    }

    pub(crate) fn runs(&self) -> bool {
        !self.cancelled.load(Ordering::Acquire)
    }

    /// How it has ended, once it has.
    pub(crate) async fn end(self) -> LockError {
        self.task.await.unwrap().expect_err("the body never ends by itself")
    }
}

/// The message of the panic in `f`, and the file and line it points at.
pub(crate) fn panic_of<T>(f: impl FnOnce() -> T) -> (String, String, u32) {
    thread_local! {
        static WATCHED: Cell<bool> = const { Cell::new(false) };
        static PLACE: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match info.location() {
            Some(place) if WATCHED.get() => PLACE.set(Some((place.file().to_owned(), place.line()))),
            _ => before(info),
        }));
    });
    WATCHED.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    WATCHED.set(false);
    let Err(payload) = result else {
        panic!("it did not panic")
    };
    let message = payload.downcast::<String>().expect("a message with arguments");
    let (file, line) = PLACE.take().expect("the hook was called");
    (*message, file, line)
}
