//! Repeats releases that a node has answered shortly before another one took over, which may not know
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::nodes::Nodes;
use super::route::Route;
use super::slot::slot_of;
use crate::host::{Moment, Timer};
use crate::store::StoreError;
use crate::store::redis::connection::{REPEAT_PAUSE, REPEATED_FOR, Release, SHARED_TOGETHER, Unacknowledged};

/// The maximum number of commands at once.
const AT_ONCE: usize = 16;

/// Begins to repeat releases, if there are any.
pub(super) fn begin(nodes: &Arc<Nodes>, unacknowledged: Unacknowledged) {
    if !unacknowledged.places.is_empty() || !unacknowledged.releases.is_empty() {
        drop(nodes.common.host.spawn(repeat(Arc::clone(nodes), unacknowledged)));
    }
}

/// Repeats releases until the present nodes have answered each of them. Those that they know already
/// have no effect.
async fn repeat(nodes: Arc<Nodes>, Unacknowledged { places, releases }: Unacknowledged) {
    let until = nodes.common.host.now().after(REPEATED_FOR);
    tracing::debug!(
        releases = releases.len(),
        places = places.len(),
        "releases that the next node may not know are repeated"
    );
    for releases in [places, releases] {
        let mut kinds: BTreeMap<(u16, bool), Vec<Release>> = BTreeMap::new();
        for release in releases {
            let kind = (slot_of(&release.lock), release.is_shared);
            kinds.entry(kind).or_default().push(release);
        }
        let some = kinds.values().flat_map(|same| same.chunks(SHARED_TOGETHER));
        stream::iter(some)
            .for_each_concurrent(AT_ONCE, |some| send(&nodes, some, until))
            .await;
    }
}

async fn send(nodes: &Arc<Nodes>, releases: &[Release], until: Moment) {
    let host = &nodes.common.host;
    loop {
        match send_once(nodes, releases).await {
            Ok(()) => return,
            // The key may have a lock of another kind by now. The node has released the others, and
            // does not say so.
            Err(error) if error.is_permanent() => {
                if releases.len() > 1 {
                    for one in releases {
                        Box::pin(send(nodes, std::slice::from_ref(one), until)).await;
                    }
                }
                return;
            }
            Err(_) if host.now() >= until => return,
            Err(_) => host.sleep(Timer::LockThread, REPEAT_PAUSE).await,
        }
    }
}

async fn send_once(nodes: &Arc<Nodes>, releases: &[Release]) -> Result<(), StoreError> {
    let Some(first) = releases.first() else { return Ok(()) };
    let mut route = Route::new(nodes, slot_of(&first.lock));
    loop {
        let way = route.way().await?;
        match way.node.unless_retired(way.store().release_again(releases)).await {
            Ok(()) => return Ok(()),
            Err(error) => route.turn(&way, error).await?,
        }
    }
}
