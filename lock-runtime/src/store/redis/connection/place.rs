//! The place of a store's server: fixed, or found anew whenever another server takes over.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use redis::ConnectionInfo;
use tokio::sync::watch;

use crate::store::StoreError;

/// The place of a store's server. Clones are cheap, and follow the same server.
#[derive(Clone)]
pub(in crate::store::redis) enum Place {
    /// Always the same one.
    Fixed(Box<ConnectionInfo>),
    /// The one that [`Whereabouts`] tells.
    Followed(Arc<Whereabouts>),
}

/// One server, and how many other ones the store had before it, which is zero if the place is
/// fixed. Nothing that a connection of an earlier generation answers counts any more.
pub(in crate::store::redis) type Found = (u64, ConnectionInfo);

impl Place {
    /// Returns the present server, after asking for it if necessary. If it is not known, returns
    /// the reason that was found last.
    ///
    /// Cancel safe.
    pub(super) async fn present(&self) -> Result<Found, StoreError> {
        let whereabouts = match self {
            Self::Fixed(info) => return Ok((0, (**info).clone())),
            Self::Followed(whereabouts) => whereabouts,
        };
        let mut news = whereabouts.news.subscribe();
        let mut question = None;
        loop {
            match &*news.borrow_and_update() {
                News::Found(found) => return Ok((**found).clone()),
                // A reason from before the question may be long past.
                News::Missing(error, asked) if question.is_some_and(|question| *asked >= question) => {
                    return Err(error.clone());
                }
                News::Missing(..) | News::Unasked => {}
            }
            question = question.or_else(|| Some(whereabouts.ask_again()));
            if news.changed().await.is_err() {
                return Err(StoreError::transient("the store has ended"));
            }
        }
    }

    /// Returns the reason that was found last why the server is not known.
    pub(super) fn failure(&self) -> Option<StoreError> {
        match self {
            Self::Followed(whereabouts) => match &*whereabouts.news.borrow() {
                News::Missing(error, _) => Some(error.clone()),
                News::Found(_) | News::Unasked => None,
            },
            Self::Fixed(_) => None,
        }
    }

    /// Returns the generation of the present server.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Fixed(_) => 0,
            Self::Followed(whereabouts) => whereabouts.generation.load(Ordering::Acquire),
        }
    }

    /// Completes once a server of another generation has taken over.
    ///
    /// Cancel safe.
    pub(super) async fn moved_on(&self, generation: u64) {
        let Self::Followed(whereabouts) = self else {
            return pending().await;
        };
        let mut news = whereabouts.news.subscribe();
        let another = |news: &News| matches!(news, News::Found(found) if found.0 != generation);
        if news.wait_for(another).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Returns `true` if another server may take over.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self, Self::Followed(_))
    }

    /// Reports that the present server does not answer as it should, so that another one may have
    /// taken over.
    pub(super) fn ask_again(&self) {
        if let Self::Followed(whereabouts) = self {
            let _ = whereabouts.ask_again();
        }
    }
}

/// What is known about the present server.
enum News {
    Unasked,
    /// With the number of the question that was answered with this reason.
    Missing(StoreError, u64),
    Found(Box<Found>),
}

/// The server that a store uses at present. Shared between its connections and those who find the
/// server.
pub(in crate::store::redis) struct Whereabouts {
    news: watch::Sender<News>,
    /// The generation of the server in `news`, for checks before each use of a connection.
    generation: AtomicU64,
    /// The number of the latest question.
    asked: watch::Sender<u64>,
    /// Ends the connections to the server before. Must not block.
    when_moved: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Whereabouts {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            news: watch::Sender::new(News::Unasked),
            generation: AtomicU64::new(0),
            asked: watch::Sender::new(0),
            when_moved: OnceLock::new(),
        }
    }

    /// Sets the function that ends the connections to the server before. It must not block.
    pub(in crate::store::redis) fn when_moved(&self, end: impl Fn() + Send + Sync + 'static) {
        let _ = self.when_moved.set(Box::new(end));
    }

    /// Publishes the server to use from now on.
    pub(in crate::store::redis) fn moved_to(&self, info: ConnectionInfo) {
        let generation = self.generation.load(Ordering::Acquire) + 1;
        // Before anything else: from here on, no connection to the server before is used, and no
        // answer of it counts.
        self.generation.store(generation, Ordering::Release);
        self.news.send_replace(News::Found(Box::new((generation, info))));
        if let Some(end) = self.when_moved.get() {
            end();
        }
    }

    /// Publishes the reason why there is no server to use, and the number of the question that was
    /// answered with it. A server that was found before stays.
    pub(in crate::store::redis) fn missing(&self, reason: StoreError, question: u64) {
        self.news.send_if_modified(|news| {
            let is_missing = !matches!(news, News::Found(_));
            if is_missing {
                *news = News::Missing(reason, question);
            }
            is_missing
        });
    }

    /// Asks again. Returns the number of the question.
    fn ask_again(&self) -> u64 {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        number
    }

    /// Returns a receiver that changes with each request to ask again.
    pub(in crate::store::redis) fn requests(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }
}
