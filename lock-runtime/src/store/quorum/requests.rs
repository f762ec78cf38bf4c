//! Requests to several masters at once.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;

use crate::host::{Host, Timer};

/// A request to one master that is under way.
pub(super) type Request<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests that are under way, each to another master. They are sent in the order in which they were
/// added.
pub(super) struct Requests<T>(Vec<(usize, Request<T>)>);

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Requests<T> {
    pub(super) fn with_capacity(masters: usize) -> Self {
        Self(Vec::with_capacity(masters))
    }

    pub(super) fn add(&mut self, at: usize, request: impl Future<Output = T> + Send + 'static) {
        self.0.push((at, Box::pin(request)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the masters that owe an answer.
    pub(super) fn owing(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(at, _)| *at)
    }

    /// Takes the request to a master out.
    pub(super) fn take(&mut self, at: usize) -> Option<Request<T>> {
        let place = self.0.iter().position(|(its, _)| *its == at)?;
        Some(self.0.remove(place).1)
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<Vec<(usize, T)>> {
        let mut answers = Vec::new();
        self.0.retain_mut(|(at, request)| match request.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                answers.push((*at, answer));
                false
            }
            Poll::Pending => true,
        });
        if answers.is_empty() && !self.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(answers)
    }
}

/// Sends what has not been sent, and waits for the next answers, by master, or until `limit` has passed.
/// Cancel safe. The answers are none if no request is under way.
pub(super) async fn answers_within<T>(
    host: &Host,
    timer: Timer,
    limit: Duration,
    requests: &mut Requests<T>,
) -> Option<Vec<(usize, T)>> {
    // Without a timer at first: masters in memory answer at once, also where there is no runtime.
    let at_once = poll_fn(|cx| requests.poll_answers(cx)).now_or_never();
    if at_once.is_some() {
        return at_once;
    }
    let answers = poll_fn(|cx| requests.poll_answers(cx));
    host.timeout(timer, limit, answers).await
}

impl<T> fmt::Debug for Requests<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.owing()).finish()
    }
}
