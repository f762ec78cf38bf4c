//! The process's one lock thread: its runtime drives connections, renewals and releases.
//!
//! It is apart from the user's runtimes so that a runtime whose workers are blocked, or one that has ended,
//! stops none of them.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::runtime::Handle;

use crate::store::StoreError;

/// The lock thread of this process.
#[derive(Debug)]
pub(crate) struct Engine {
    handle: Handle,
    /// Tells a forked child, which inherits this value but not the thread, from the process that started it.
    guard: forkguard::Guard,
}

static ENGINE: OnceCell<Engine> = OnceCell::new();

impl Engine {
    /// The engine, started on first use.
    ///
    /// # Errors
    /// When the operating system gives no thread, or this process was forked from the one that started it.
    pub(crate) fn get() -> io::Result<&'static Self> {
        let engine = ENGINE.get_or_try_init(Self::start)?;
        if engine.is_inherited() {
            return Err(io::Error::other(
                "this process was forked from one that already used locks; start it by exec, or use locks only after the fork",
            ));
        }
        Ok(engine)
    }

    fn is_inherited(&self) -> bool {
        self.guard.clone().detected_fork()
    }

    fn start() -> io::Result<Self> {
        // Before the thread: what it guards must not be there earlier.
        let guard = forkguard::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("lock-watchdog".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(Self { handle, guard })
    }

    /// The lock thread's runtime.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Whether this process was forked from one that had already used locks: then nothing here is its own, and what its parent's
/// threads had locked stays locked.
pub(crate) fn is_forked() -> bool {
    ENGINE.get().is_some_and(Engine::is_inherited)
}

/// Whose timer a wait runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The lock thread's, which needs nothing of the caller's runtime.
    Engine,
    /// The caller's runtime's, whose clock a test has paused.
    Caller,
}

impl Timer {
    /// Completes after `span`. May be awaited on any runtime. Cancel safe.
    pub(crate) fn sleep(self, span: Duration) -> tokio::time::Sleep {
        // A `Sleep` stays with the runtime it was made in, wherever it is polled. Managers start the lock
        // thread, so it is there; in a forked child it is not any more, and nothing sleeps there (see
        // `Engine::get`).
        let _context = match self {
            Self::Engine => ENGINE.get().map(|engine| engine.handle.enter()),
            // A lock taken under a paused clock may be given back outside of any runtime.
            Self::Caller if Handle::try_current().is_err() => ENGINE.get().map(|engine| engine.handle.enter()),
            Self::Caller => None,
        };
        tokio::time::sleep(span)
    }

    /// The output of `future`, or `None` once `span` has passed.
    pub(crate) async fn timeout<F: Future>(self, span: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        tokio::select! {
            biased;
            output = future.as_mut() => return Some(output),
            () = self.sleep(span) => {}
        }
        // Where the caller's runtime was blocked, the answer may be there, and only has to be read.
        for _ in 0..3 {
            tokio::task::yield_now().await;
            if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
                return Some(output);
            }
        }
        None
    }

    /// A store's answer. One that does not come within `limit` is an error whose outcome is unknown.
    pub(crate) async fn answer<T>(
        self,
        limit: Duration,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = self.timeout(limit, question).await;
        answer.unwrap_or_else(|| Err(StoreError::unknown("no answer within the response time-out")))
    }
}
