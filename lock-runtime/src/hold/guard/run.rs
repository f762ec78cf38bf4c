//! Runs a body under its lock and checks the clock before every poll. No poll begins after the
//! deadline, even if no report of a loss has arrived: a partition or a stopped process delivers
//! none in time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::error::{EndCause, LockError, LostReason};
use crate::hold::Hold;
use crate::hold::call_tree::{self as context, Entered};
use crate::hold::guard::Guard;
use crate::hold::options::OnLost;
use crate::stats::Event;

/// The end of a body in relation to the end of its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ended {
    /// The lock was still held when the body ended, or the body was cancelled.
    #[default]
    InTime,
    /// The lock had ended before the body.
    Late(EndCause),
    /// The body learned of the loss, continued, and chose what to return.
    Notified,
}

/// The observations made while a body was polled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// `true` once the body learned of the loss.
    notified: bool,
    /// `true` if the lock had ended before the last poll.
    lost_before: bool,
}

/// A body running under its lock. Its output is the body's, or the error that cancelled the body;
/// [`Guard::leave`] then returns an error if the body did not end in time.
///
/// The body is borrowed: it stays in place in the caller's future, and the caller drops it once
/// this future is ready.
#[must_use = "futures do nothing unless awaited"]
pub struct Run<'a, F> {
    /// The guard. `Err` if the call has no lock, so that the body is not polled; it contains the
    /// error until the future has returned that.
    guard: Result<&'a mut Guard, Option<Box<LockError>>>,
    body: Pin<&'a mut F>,
}

impl<'a, F: Future> Run<'a, F> {
    pub(crate) fn new(guard: &'a mut Guard, body: Pin<&'a mut F>) -> Self {
        Self { guard: Ok(guard), body }
    }

    pub(crate) fn refused(error: Box<LockError>, body: Pin<&'a mut F>) -> Self {
        Self {
            guard: Err(Some(error)),
            body,
        }
    }
}

impl<F: Future> Future for Run<'_, F> {
    type Output = Result<F::Output, Box<LockError>>;

    // Each nested call has this function on the stack once more, so all other work is done in
    // functions that have returned when the body is polled.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { guard, body } = &mut *self;
        let inside = match before(guard, cx.waker()) {
            Ok(inside) => inside,
            Err(error) => return cancelled(error),
        };
        let polled = body.as_mut().poll(cx);
        let notified = inside.leave();
        match after(guard, notified, polled.is_ready()) {
            Ok(()) => polled.map(Ok),
            Err(error) => cancelled(Some(error)),
        }
    }
}

/// Returns the result for a body that is no longer polled.
fn cancelled<R>(error: Option<Box<LockError>>) -> Poll<Result<R, Box<LockError>>> {
    // `None`: the error was returned before, and a future that is ready is not polled again.
    error.map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
}

/// The body's place in the call tree and in the log, for one poll.
struct Inside<'a> {
    current: Entered,
    _span: tracing::span::Entered<'a>,
}

impl Inside<'_> {
    /// Ends the poll. Returns `true` if the body learned of the loss during it.
    fn leave(self) -> bool {
        self.current.was_notified()
    }
}

/// Returns `true` if `cause` cancels the body now.
fn cancels(guard: &Guard, cause: EndCause) -> bool {
    cause.cancels(guard.on_lost) && !guard.held().is_shielded()
}

/// Returns the error of a body that `cause` cancels. Logs a shutdown here and not where that ends
/// the locks, one after the other, since a subscriber may take its time.
fn cancel(held: &Hold, cause: EndCause) -> LockError {
    if cause == EndCause::Closed {
        let (key, function) = (held.tenure.name(), held.options.site.function);
        tracing::warn!(parent: &held.span, key = &*key, function, "a body was cancelled by the shutdown of its manager");
    }
    held.error(cause, false)
}

/// Checks the lock before the body is polled. Returns `Err` if the body must not be polled any
/// more.
fn before<'a>(
    guard: &'a mut Result<&mut Guard, Option<Box<LockError>>>,
    waker: &Waker,
) -> Result<Inside<'a>, Option<Box<LockError>>> {
    let guard = match guard {
        Ok(guard) => guard,
        Err(error) => return Err(error.take()),
    };
    // Registers before looking, so that no loss falls between the two.
    guard.register(waker);
    let cause = guard.held().check_deadline();
    guard.seen.lost_before = cause.is_some();
    let held = guard.held();
    match cause {
        Some(cause) if cancels(guard, cause) => Err(Some(Box::new(cancel(held, cause)))),
        _ => Ok(Inside {
            current: context::enter(held),
            _span: held.span.enter(),
        }),
    }
}

/// Records the end of the lock, if any, after the body was polled. Returns `Err` if the body must
/// not be polled any more.
fn after(
    guard: &mut Result<&mut Guard, Option<Box<LockError>>>,
    notified: bool,
    ready: bool,
) -> Result<(), Box<LockError>> {
    let Ok(guard) = guard else { return Ok(()) };
    guard.seen.notified |= notified;
    let held = guard.held();
    let Some(cause) = held.check_deadline() else {
        return Ok(());
    };
    // A forked child's lock is its parent's.
    if !guard.seen.lost_before && cause != EndCause::Lost(LostReason::Forked) {
        count_overrun(held);
    }
    if ready {
        // A body that asked and learned of the loss decides itself what to return.
        let notified = guard.on_lost == OnLost::Signal && matches!(cause, EndCause::Lost(_)) && guard.seen.notified;
        guard.ended = if notified { Ended::Notified } else { Ended::Late(cause) };
        return Ok(());
    }
    if cancels(guard, cause) {
        return Err(Box::new(cancel(held, cause)));
    }
    Ok(())
}

/// Counts a poll that began before the deadline and ended after it. Such a poll cannot be stopped.
fn count_overrun(held: &Hold) {
    let over = held.tenure.now().since(held.tenure.deadline());
    if !over.is_zero() {
        held.tenure.manager.stats.count(Event::Overrun, held.options.site);
        tracing::warn!(
            parent: &held.span,
            key = &*held.tenure.name(),
            ?over,
            "the body kept its thread beyond the lock's deadline; await more often, or move blocking work to spawn_blocking"
        );
    }
}
