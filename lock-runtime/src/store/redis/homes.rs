//! The connections on which locks are taken and given back: one for each runtime that does so. A command then does not change
//! threads on its way, and what one runtime does holds up no other.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use redis::Client;
use tokio::runtime::{Handle, Id};
use tokio_util::sync::CancellationToken;

use super::link::{Link, Live, Purpose, TimeOuts};
use super::names::Names;
use crate::store::{ReleaseRequest, StoreError};

/// The links for acquires and releases, by the runtime that drives them.
pub(super) struct Homes(Arc<Inner>);

struct Inner {
    client: Client,
    time_outs: TimeOuts,
    names: Arc<Names>,
    /// Whether the permissions have been checked.
    checked: Arc<OnceLock<()>>,
    /// For callers outside of any runtime, and for those on the lock thread.
    engine: Link,
    links: RwLock<Vec<(Id, Link)>>,
    /// Ends with the store, and then the tasks that wait for the runtimes' ends.
    ended: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Homes {
    pub(super) fn new(client: Client, names: Arc<Names>, time_outs: TimeOuts) -> Self {
        let checked = Arc::<OnceLock<()>>::default();
        let purpose = Purpose::Commands {
            names: Arc::clone(&names),
            checked: Arc::clone(&checked),
        };
        Self(Arc::new(Inner {
            engine: Link::new(client.clone(), purpose, None, time_outs),
            client,
            time_outs,
            names,
            checked,
            links: RwLock::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// The link of the runtime that this is called in.
    pub(super) fn here(&self) -> Link {
        let Ok(handle) = Handle::try_current() else {
            return self.0.engine.clone();
        };
        let id = handle.id();
        let known = known(&self.0.links.read().unwrap_or_else(PoisonError::into_inner), id);
        known.unwrap_or_else(|| self.open(id, &handle))
    }

    fn open(&self, id: Id, handle: &Handle) -> Link {
        if crate::engine::Engine::get().is_ok_and(|engine| engine.handle().id() == id) {
            return self.0.engine.clone();
        }
        let mut links = self.0.links.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = known(&links, id) {
            return link;
        }
        let purpose = Purpose::Commands {
            names: Arc::clone(&self.0.names),
            checked: Arc::clone(&self.0.checked),
        };
        let link = Link::new(self.0.client.clone(), purpose, Some(handle.clone()), self.0.time_outs);
        links.push((id, link.clone()));
        drop(links);
        let resident = Resident {
            homes: Arc::downgrade(&self.0),
            id,
        };
        let ended = self.0.ended.clone();
        drop(handle.spawn(async move {
            let _resident = resident;
            ended.cancelled_owned().await;
        }));
        link
    }

    /// The connection for a release: that of an acquire which was not answered, while it lives.
    pub(super) async fn for_release(&self, request: &ReleaseRequest<'_>) -> Result<(Link, Arc<Live>), StoreError> {
        if let Some(known) = request.unanswered_on.and_then(|number| self.numbered(number)) {
            return Ok(known);
        }
        let link = self.here();
        let live = link.live().await?;
        Ok((link, live))
    }

    /// The connection with this number, if it is still there.
    fn numbered(&self, number: u64) -> Option<(Link, Arc<Live>)> {
        let links = self.0.links.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = std::iter::once(&self.0.engine).chain(links.iter().map(|(_, link)| link));
        all.find_map(|link| Some((link.clone(), link.numbered(number)?)))
    }
}

fn known(links: &[(Id, Link)], id: Id) -> Option<Link> {
    let found = links.iter().find(|(home, _)| *home == id);
    found.map(|(_, link)| link.clone())
}

/// Stays in a runtime until that ends, and takes its link along.
struct Resident {
    homes: Weak<Inner>,
    id: Id,
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some(homes) = self.homes.upgrade() {
            let mut links = homes.links.write().unwrap_or_else(PoisonError::into_inner);
            links.retain(|(home, _)| *home != self.id);
        }
    }
}
