//! A store that spreads its locks over the nodes of a Redis Cluster: a store on each node, and a table
//! of the slots.
//!
//! A lock, its queue and the fencing counter of its slot are on one node, so each request about a lock
//! is carried out there in one step, as on a single server.

mod clocks;
mod node;
mod nodes;
mod repeat;
mod route;
pub(super) mod slot;
mod topology;
mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use self::node::Common;
use self::nodes::{NO_LANE, Nodes};
use self::route::Route;
use self::slot::slot_of;
use self::topology::Topology;
pub(crate) use self::url::ClusterUrl;
#[cfg(feature = "custom-store")]
use super::TimeOuts;
use super::connection::Way;
use super::connection::failure::{Address, Redirect, redirect};
use super::keyspace::Keyspace;
use super::ops::apart::{known, renew_apart};
use super::{RedisSettings, RedisStore, SKEW};
use crate::host::Host;
use crate::key::KeyProblem;
use crate::store::health::{ServerHealth, ServerRole};
use crate::store::info::LockInfo;
use crate::store::{
    AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Dispatch, Effect, Fence, FencingToken, HolderValue, Lane,
    Limited, LockPage, LockStore, LossReceiver, Ownership, QueueOutcome, QueueRequest, Receipt, ReleaseReport,
    ReleaseRequest, RenewRequest, Replicated, Responder, StoreError, StoreFuture,
};

/// The number of low bits of a position in a list that are the node's own.
const POSITION_BITS: u32 = 52;

/// A store that spreads its locks over the nodes of a Redis or Valkey cluster.
///
/// [`LockManager::connect`](crate::LockManager::connect) creates one from a `redis+cluster://` URL.
/// This type is only needed to use a store without a manager.
pub struct ClusterStore {
    nodes: Arc<Nodes>,
    /// For the check of keys.
    names: Keyspace,
    _topology: Topology,
    /// For `Debug`, without the password.
    address: String,
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterStore").field(&self.address).finish()
    }
}

/// Sends a request to the node that has `$key`, and on to others that nodes name. `$receipt` says why.
macro_rules! at_owner {
    ($store:expr, $key:expr, |$node:ident| $request:expr $(, telling $receipt:expr)?) => {{
        let mut route = Route::new(&$store.nodes, slot_of($key))$(.telling($receipt))?;
        loop {
            let way = route.way().await?;
            let $node = way.store();
            match way.node.unless_retired($request).await {
                Ok(answer) => break Ok(answer),
                Err(error) => {
                    if let Err(error) = route.turn(&way, error).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}

impl ClusterStore {
    /// Creates a store on the cluster that `url` names. `prefix` is that of its keys: the store keeps a
    /// fencing counter for each slot under `<prefix>%lock-fence:{…}`. It connects on first use.
    ///
    /// # Errors
    /// Fails if the URL is not understood.
    #[cfg(feature = "custom-store")]
    pub fn open(url: &str, prefix: &str, time_outs: TimeOuts) -> Result<Self, StoreError> {
        Self::new(&Host::process(), url, prefix, &RedisSettings::within(time_outs))
    }

    pub(crate) fn new(host: &Host, url: &str, prefix: &str, settings: &RedisSettings) -> Result<Self, StoreError> {
        let url = ClusterUrl::parse(url).map_err(StoreError::permanent)?;
        let address = url.to_string();
        let Some(like) = url.nodes.first() else {
            return Err(StoreError::permanent("it does not have the address of a node"));
        };
        let dial = super::dial(host, like, settings).map_err(StoreError::permanent)?;
        let health = Arc::new(watch::Sender::new(vec![ServerHealth::new(
            &*address,
            ServerRole::Cluster,
        )]));
        let names = Keyspace::new(host, prefix);
        let names = Keyspace::of_node(host, prefix, &names.process);
        let nodes = Nodes::new(Common {
            host: host.clone(),
            dial: dial.with(settings.credentials.clone(), ServerRole::Master),
            like: like.clone(),
            prefix: prefix.to_owned(),
            process: names.process.clone(),
            time_outs: settings.time_outs,
            skew: settings.skew.unwrap_or(SKEW),
            waited_for: Arc::default(),
            health,
        });
        nodes.repeat_by(repeat::begin);
        let seeds = url.nodes.iter().filter_map(|info| Address::of(info.addr())).collect();
        Ok(Self {
            _topology: Topology::follow(&nodes, seeds).map_err(StoreError::permanent)?,
            nodes,
            names,
            address,
        })
    }

    /// Returns requests by the slot of what they are about, each with its place.
    fn by_slot<'a, T>(all: &'a [T], key: impl Fn(&'a T) -> &'a str) -> Vec<(Vec<usize>, Vec<T>)>
    where
        T: Clone,
    {
        Self::grouped(all, |one| slot_of(key(one)))
    }

    /// Returns requests by the group that they belong to, each with its place.
    fn grouped<'a, T, G>(all: &'a [T], group: impl Fn(&'a T) -> G) -> Vec<(Vec<usize>, Vec<T>)>
    where
        T: Clone,
        G: Ord,
    {
        let mut groups: BTreeMap<G, (Vec<usize>, Vec<T>)> = BTreeMap::new();
        for (place, one) in all.iter().enumerate() {
            let (places, same) = groups.entry(group(one)).or_default();
            places.push(place);
            same.push(one.clone());
        }
        groups.into_values().collect()
    }

    /// Renews locks of one slot, all of them shared or all exclusive. If its node is replaced, asks the next one: the order of renewals does
    /// not matter.
    async fn renew_in_slot(&self, requests: &[RenewRequest]) -> Result<Vec<Ownership>, StoreError> {
        let Some(first) = requests.first() else {
            return Ok(Vec::new());
        };
        let mut route = Route::new(&self.nodes, slot_of(&first.key)).impatient();
        loop {
            let way = route.way().await?;
            match way.node.unless_retired(way.store().renew(requests)).await {
                Ok(verdicts) => return Ok(verdicts),
                Err(_) if way.node.is_retired() => {}
                // The slot is on its way to another node, and so are some of the keys.
                Err(error) if requests.len() > 1 && redirect(&error) == Some(&Redirect::TryAgain) => {
                    let mut verdicts = Vec::with_capacity(requests.len());
                    for one in requests {
                        let one = std::slice::from_ref(one);
                        verdicts.append(&mut Box::pin(self.renew_in_slot(one)).await?);
                    }
                    return Ok(verdicts);
                }
                Err(error) => route.turn(&way, error).await?,
            }
        }
    }

    /// Takes locks that lie in several slots, one slot after the other in the order of the keys.
    async fn acquire_spread(&self, request: &AcquireAllRequest<'_>) -> Result<AttemptAll, StoreError> {
        let mut taken: Vec<(&str, Option<FencingToken>)> = Vec::new();
        let mut rest = request.keys;
        while let Some(first) = rest.first() {
            let slot = slot_of(first);
            let count = rest.iter().take_while(|key| slot_of(key) == slot).count();
            let (keys, others) = rest.split_at(count);
            let before = request.keys.len() - rest.len();
            let part = AcquireAllRequest {
                keys,
                value: request.value,
                former: request.former,
                keep: request.keep,
                ttl: request.ttl,
                fence: request.fence,
                receipt: request.receipt,
            };
            let unknown_after = |error: StoreError| if before > 0 { error.into_unknown() } else { error };
            // In a block of its own, which is what an error of the route leaves.
            let answer = async { at_owner!(self, first, |node| node.acquire_all(&part), telling request.receipt) };
            match answer.await.map_err(unknown_after)? {
                AttemptAll::Granted { fence } => taken.push((first, fence)),
                AttemptAll::Busy { at, holder, remaining } => {
                    let earlier = request.keys.get(..before).unwrap_or_default();
                    let given_back = async {
                        match request.keep {
                            None => self.give_back(earlier, request.value).await?,
                            Some(keep) if keep < request.ttl => self.keep_for(keep, earlier, request.value).await,
                            Some(_) => {}
                        }
                        // One of them may have been handed to this value earlier.
                        self.give_back(others, request.value).await?;
                        match request.former {
                            Some(former) => self.give_back(others, former).await,
                            None => Ok(()),
                        }
                    };
                    given_back.await.map_err(StoreError::into_unknown)?;
                    let at = before + at;
                    return Ok(AttemptAll::Busy { at, holder, remaining });
                }
            }
            rest = others;
        }
        let fence = self.greatest(&taken).await.map_err(StoreError::into_unknown)?;
        Ok(AttemptAll::Granted { fence })
    }

    /// Returns the greatest of the tokens that the slots of these keys have given, if they have. The
    /// next token of each slot is greater.
    async fn greatest(&self, taken: &[(&str, Option<FencingToken>)]) -> Result<Option<FencingToken>, StoreError> {
        let fence = taken.iter().filter_map(|(_, fence)| *fence).max();
        if let Some(fence) = fence {
            for (key, _) in taken.iter().filter(|(_, own)| *own != Some(fence)) {
                at_owner!(self, key, |node| node.raise_fence(key, fence))?;
            }
        }
        Ok(fence)
    }

    async fn fence_slots(&self, keys: &[Arc<str>], value: &HolderValue) -> Result<Fence, StoreError> {
        let mut taken: BTreeMap<u16, (&str, Option<FencingToken>)> = BTreeMap::new();
        for key in keys {
            let slot = slot_of(key);
            if taken.contains_key(&slot) {
                continue;
            }
            match self.fence(key, value).await? {
                Fence::Token(fence) => taken.insert(slot, (key, Some(fence))),
                not_owned @ Fence::NotOwned(_) => return Ok(not_owned),
            };
        }
        let taken: Vec<_> = taken.into_values().collect();
        let fence = self.greatest(&taken).await?;
        fence
            .map(Fence::Token)
            .ok_or_else(|| StoreError::permanent("no key was given"))
    }

    /// Sets the rest of the leases of keys that wait for others. Where that fails, they end later.
    async fn keep_for(&self, keep: Duration, keys: &[Arc<str>], value: &HolderValue) {
        let keep = |key: &Arc<str>| RenewRequest {
            key: Arc::clone(key),
            value: value.clone(),
            extend: Some(keep),
        };
        let keys: Vec<_> = keys.iter().map(keep).collect();
        if let Err(error) = self.renew(&keys).await {
            tracing::debug!(%error, "keys that wait for others keep their whole lease");
        }
    }

    async fn give_back(&self, keys: &[Arc<str>], value: &HolderValue) -> Result<(), StoreError> {
        for key in keys.iter().rev() {
            let receipt = Receipt::default();
            let release = ReleaseRequest::plain(key, value, &receipt);
            self.release(&release).await?;
        }
        Ok(())
    }

    /// Waits in the queue at the node that has the key. When the slot moves, the place moves with it, so
    /// the same request goes on at the next node.
    async fn stand(&self, request: &QueueRequest<'_>) -> Result<QueueOutcome, StoreError> {
        let mut has_joined = false;
        let outcome = self.stand_where_the_slot_is(request, &mut has_joined).await;
        // What the next node refuses, it has a place for all the same.
        outcome.map_err(|error| {
            if has_joined {
                error.with_effect(Effect::Unknown)
            } else {
                error
            }
        })
    }

    async fn stand_where_the_slot_is(
        &self,
        request: &QueueRequest<'_>,
        has_joined: &mut bool,
    ) -> Result<QueueOutcome, StoreError> {
        let slot = slot_of(request.key);
        let mut route = Route::new(&self.nodes, slot).telling(request.receipt);
        loop {
            let way = route.way().await?;
            let outcome = way.node.unless_retired(way.store().queue(request)).await;
            *has_joined |= request.receipt.connection().is_some() && request.receipt.unanswered_on().is_none();
            match outcome {
                Ok(QueueOutcome::Lapsed) if self.nodes.lane(slot) != way.node.lane => {}
                Err(_) if *has_joined && way.node.is_retired() => {}
                // The queue may be in two parts while its slot moves.
                Err(error) if redirect(&error).is_some_and(|redirect| *redirect != Redirect::Down) => {
                    let moves = !matches!(redirect(&error), Some(Redirect::Moved(..)));
                    if moves && !*has_joined {
                        return Ok(QueueOutcome::Unavailable);
                    }
                    if *has_joined {
                        route.restart();
                    }
                    route.turn(&way, error).await?;
                }
                other => return other,
            }
            if *has_joined {
                request.receipt.reopen();
            }
        }
    }

    /// Connects to all nodes, and verifies the permissions at each.
    async fn reach_all(&self) -> Result<(), StoreError> {
        self.nodes.known().await?;
        let nodes = self.nodes.all();
        let reached = join_all(nodes.iter().map(|node| node.unless_retired(node.store.connect()))).await;
        let mut failure = None;
        let mut is_reached = false;
        for (node, reached) in nodes.iter().zip(reached) {
            match reached {
                Ok(()) => is_reached = true,
                Err(error) if error.is_permanent() => return Err(error),
                Err(error) => {
                    // The health of the node tells if that lasts.
                    tracing::debug!(address = %node.address, %error, "a node of the cluster is not reached, and its locks cannot be taken yet");
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if !is_reached => Err(error),
            _ => Ok(()),
        }
    }

    async fn look_at_setup(&self, min_replicas: u32) -> Result<Vec<String>, StoreError> {
        self.nodes.known().await?;
        let mut advice = Vec::new();
        let unowned = self.nodes.unowned();
        if !unowned.is_empty() {
            let ranges = unowned.iter().map(|(first, last)| {
                if first == last {
                    first.to_string()
                } else {
                    format!("{first}-{last}")
                }
            });
            let ranges: Vec<String> = ranges.take(8).collect();
            advice.push(format!(
                "calls whose keys lie in these slots of the cluster fail, since no node has them: {}; give them to a node, as `redis-cli --cluster \
                 fix` does",
                ranges.join(", ")
            ));
        }
        advice.extend(self.nodes.clocks_that_differ());
        let nodes = self.nodes.all();
        let told = join_all(nodes.iter().map(|node| node.store.check_setup(min_replicas))).await;
        for (node, told) in nodes.iter().zip(told) {
            match told {
                Ok(told) => advice.extend(told.into_iter().map(|told| format!("{}: {told}", node.address))),
                Err(error) if error.is_permanent() => return Err(error),
                Err(error) => advice.push(format!("{}: {error}", node.address)),
            }
        }
        Ok(advice)
    }

    /// Returns a page of one node's locks. The high bits of a position are the node's lane.
    async fn list_page(&self, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        self.nodes.known().await?;
        let nodes = self.nodes.all();
        let lane = from >> POSITION_BITS;
        let Some(node) = nodes.iter().find(|node| u64::from(node.lane.0) >= lane) else {
            return Ok(LockPage::default());
        };
        let is_same = u64::from(node.lane.0) == lane;
        let position = if is_same { from & ((1 << POSITION_BITS) - 1) } else { 0 };
        let (next, keys) = node.store.scan_keys(pattern, position).await?;
        let mut locks = Vec::new();
        for (_, keys) in Self::by_slot(&keys, |key| key) {
            let Some(first) = keys.first() else { continue };
            locks.append(&mut at_owner!(self, first, |node| node.look_at(&keys))?);
        }
        let after = u64::from(node.lane.0);
        let next = if next != 0 {
            if next >> POSITION_BITS != 0 {
                return Err(StoreError::permanent(
                    "the server's position in its keys is too large to go on from",
                ));
            }
            after << POSITION_BITS | next
        } else {
            let mut later = nodes.iter().map(|node| u64::from(node.lane.0));
            later.find(|lane| *lane > after).map_or(0, |lane| lane << POSITION_BITS)
        };
        Ok(LockPage { locks, next })
    }

    /// Waits for replicas of every node that has some of the locks.
    async fn replicated(&self, requests: &[RenewRequest], replicas: u32) -> Result<Replicated, StoreError> {
        let slots = Self::by_slot(requests, |request| &request.key);
        let asked = slots.iter().map(|(_, requests)| async move {
            let first = requests.first().map_or("", |request| &*request.key);
            at_owner!(self, first, |node| node.wait_for_replicas(requests, replicas))
        });
        let mut least = None;
        for answer in join_all(asked).await {
            match answer? {
                Replicated::To(count) => least = Some(least.map_or(count, |least: u32| least.min(count))),
                other @ Replicated::NotOwned(_) => return Ok(other),
            }
        }
        Ok(Replicated::To(least.unwrap_or_default()))
    }

    async fn renew_all(&self, requests: &[RenewRequest]) -> Vec<Result<Ownership, StoreError>> {
        // The shared modes apart: one script renews them, another one the exclusive locks, and while the
        // slot moves, the answer to one of the two says nothing of where the keys of the other are.
        let group = |request: &RenewRequest| (slot_of(&request.key), request.value.is_shared());
        let groups = Self::grouped(requests, group);
        let ask = |requests| -> StoreFuture<'_, _> { Box::pin(self.renew_in_slot(requests)) };
        let answers = join_all(groups.iter().map(|(_, requests)| renew_apart(requests, &ask))).await;
        let unexpected = || Err(StoreError::unknown("the store gave a wrong number of verdicts"));
        let mut verdicts: Vec<_> = requests.iter().map(|_| unexpected()).collect();
        for ((places, _), answers) in groups.iter().zip(answers) {
            for (place, answer) in places.iter().zip(answers) {
                if let Some(verdict) = verdicts.get_mut(*place) {
                    *verdict = answer;
                }
            }
        }
        verdicts
    }

    /// Releases a lock. While its slot is on its way to another node, and the lock and its queue are on
    /// different ones, takes the call out of the queue first and then releases the lock, each alone:
    /// looks then let the waiting calls in.
    async fn give_back_one(&self, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        let mut route = Route::new(&self.nodes, slot_of(request.key));
        let mut is_split = false;
        loop {
            let way = route.way().await?;
            let store = way.store();
            let released = async {
                if is_split {
                    store.release_alone(request).await
                } else {
                    store.release(request).await
                }
            };
            match way.node.unless_retired(released).await {
                Ok(ownership) => return Ok(ownership),
                Err(error) => {
                    if !is_split && redirect(&error) == Some(&Redirect::TryAgain) {
                        is_split = true;
                        if request.queued.is_some() {
                            at_owner!(self, request.key, |node| node.leave_alone(request))?;
                        }
                    }
                    route.turn(&way, error).await?;
                }
            }
        }
    }

    /// Sends a request at once to the node that has its key, as far as is known. What another node answers changes
    /// nothing there, so the same request is then made by `acquire` or `release`, which find their way.
    fn try_at_owner<T: 'static>(
        &self,
        key: &str,
        what: Limited,
        send: impl FnOnce(&RedisStore, Way) -> Dispatch<T>,
    ) -> Dispatch<T> {
        let owner = self.nodes.owner(slot_of(key));
        let Some((node, way)) = owner.and_then(|node| node.store.commands.way(what).map(|way| (node, way))) else {
            return Dispatch::Declined;
        };
        match send(&node.store, way) {
            Dispatch::ByItself(answer) => {
                let nodes = Arc::clone(&self.nodes);
                Dispatch::Tried(Box::pin(async move {
                    let answer = node.unless_retired(answer).await;
                    answer.inspect_err(|error| nodes.mend_after(&node, error))
                }))
            }
            other => other,
        }
    }

    /// Takes a lock. While its slot is on its way to another node, and the lock and its queue are on
    /// different ones, takes the lock alone if the call needs nothing else.
    async fn take_one(&self, request: &AcquireRequest<'_>) -> Result<Attempt, StoreError> {
        let mut route = Route::new(&self.nodes, slot_of(request.key)).telling(request.receipt);
        let mut is_split = false;
        loop {
            let way = route.way().await?;
            let store = way.store();
            let taken = async {
                if is_split {
                    store.acquire_alone(request).await
                } else {
                    store.acquire(request).await
                }
            };
            match way.node.unless_retired(taken).await {
                Ok(attempt) => return Ok(attempt),
                Err(error) => {
                    let is_plain = !request.fence && !request.fair && !request.value.is_shared();
                    is_split |= is_plain && redirect(&error) == Some(&Redirect::TryAgain);
                    route.turn(&way, error).await?;
                }
            }
        }
    }
}

impl LockStore for ClusterStore {
    fn acquire<'a>(&'a self, request: &'a AcquireRequest<'a>) -> StoreFuture<'a, Attempt> {
        Box::pin(self.take_one(request))
    }

    fn acquire_all<'a>(&'a self, request: &'a AcquireAllRequest<'a>) -> StoreFuture<'a, AttemptAll> {
        Box::pin(self.acquire_spread(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Ownership>> {
        Box::pin(async move { self.renew_all(requests).await.into_iter().collect() })
    }

    fn renew_each<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Option<Ownership>>> {
        Box::pin(async move { known(&self.nodes.common.host, self.renew_all(requests).await) })
    }

    fn wait_for_replicas<'a>(&'a self, requests: &'a [RenewRequest], replicas: u32) -> StoreFuture<'a, Replicated> {
        Box::pin(self.replicated(requests, replicas))
    }

    fn health(&self) -> Option<watch::Receiver<Vec<ServerHealth>>> {
        Some(self.nodes.common.health.subscribe())
    }

    fn place(&self) -> Option<&str> {
        Some(&self.address)
    }

    fn skew(&self) -> Duration {
        SKEW
    }

    fn lane(&self, key: &str) -> Lane {
        self.nodes.lane(slot_of(key))
    }

    fn refuses(&self, key: &str) -> Option<KeyProblem> {
        self.names.refuses(key)
    }

    fn renewal_is_late(&self, lane: Lane) {
        match self.nodes.in_lane(lane) {
            Some(node) => node.store.renewal_is_late(Lane::default()),
            None if lane == NO_LANE => drop(self.nodes.ask_again()),
            None => {}
        }
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest<'a>) -> StoreFuture<'a, Ownership> {
        Box::pin(self.give_back_one(request))
    }

    fn send_acquire(
        &self,
        request: &AcquireRequest<'_>,
        responder: &dyn Fn() -> Responder<Attempt>,
    ) -> Dispatch<Attempt> {
        self.try_at_owner(request.key, Limited::Acquires, |node, way| {
            node.send_attempt(way, request, responder)
        })
    }

    fn send_release(
        &self,
        request: &ReleaseRequest<'_>,
        responder: &dyn Fn() -> Responder<Ownership>,
    ) -> Dispatch<Ownership> {
        self.try_at_owner(request.key, Limited::Releases, |node, way| {
            node.send_back(way, request, responder)
        })
    }

    fn gave_up(&self, receipt: &Receipt, waited: Duration) {
        for node in self.nodes.all() {
            node.store.gave_up(receipt, waited);
        }
    }

    fn release_in_order(&self, request: &ReleaseRequest<'_>, report: ReleaseReport) -> Result<(), ReleaseReport> {
        match self.nodes.owner(slot_of(request.key)) {
            Some(node) => node.store.release_in_order(request, report),
            None => Err(report),
        }
    }

    fn fence<'a>(&'a self, key: &'a str, value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(async move { at_owner!(self, key, |node| node.fence(key, value)) })
    }

    fn fence_all<'a>(&'a self, keys: &'a [Arc<str>], value: &'a HolderValue) -> StoreFuture<'a, Fence> {
        Box::pin(self.fence_slots(keys, value))
    }

    fn ready(&self, what: Limited, key: &str, most: Duration) -> Option<StoreFuture<'_, ()>> {
        self.nodes.owner(slot_of(key))?.store.commands.ready(what, most)
    }

    fn connect(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.reach_all())
    }

    fn check_setup(&self, min_replicas: u32) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.look_at_setup(min_replicas))
    }

    fn queue<'a>(&'a self, request: &'a QueueRequest<'a>) -> StoreFuture<'a, QueueOutcome> {
        Box::pin(self.stand(request))
    }

    fn report_losses(&self, receiver: LossReceiver) -> bool {
        self.nodes.report_to(&receiver);
        true
    }

    fn inspect<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<LockInfo>> {
        Box::pin(async move { at_owner!(self, key, |node| node.inspect(key)) })
    }

    fn list<'a>(&'a self, pattern: &'a str, from: u64) -> StoreFuture<'a, LockPage> {
        Box::pin(self.list_page(pattern, from))
    }

    fn force_release<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move { at_owner!(self, key, |node| node.force_release(key)) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::topology::{Range, View};
    use super::*;
    use crate::store::LossHint;

    fn store() -> ClusterStore {
        let url = "redis+cluster://127.0.0.1:1";
        ClusterStore::new(&Host::process(), url, "", &RedisSettings::default()).unwrap()
    }

    fn at(port: u16) -> Address {
        let host = "127.0.0.1".to_owned();
        Address { host, port }
    }

    /// A node's view: the slots from 0 to `last` are at a port, and each port's configuration has this epoch.
    fn view(epoch: u64, owner: u16, last: u16, epochs: &[(u16, u64)]) -> View {
        let id = |port: u16| port.to_string().into_boxed_str();
        View {
            epoch,
            is_well: true,
            ranges: vec![Range {
                first: 0,
                last,
                owner: at(owner),
                id: id(owner),
            }],
            epochs: epochs.iter().map(|(port, epoch)| (id(*port), *epoch)).collect(),
            replicas: Vec::new(),
        }
    }

    fn port_of(store: &ClusterStore, slot: u16) -> Option<u16> {
        store.nodes.owner(slot).map(|node| node.address.port)
    }

    /// A node hears of the cluster's epoch from one node, and of a master's successor from another one, later.
    #[test]
    fn a_node_that_has_not_heard_of_a_successor_gives_it_no_slot_back() {
        let store = store();
        let learn = |view: &View| {
            store.nodes.learn(view);
            port_of(&store, 3)
        };
        assert_eq!(learn(&view(1, 1, 9, &[(1, 1)])), Some(1));
        assert_eq!(learn(&view(2, 2, 9, &[(1, 1), (2, 2)])), Some(2));
        assert_eq!(learn(&view(2, 1, 9, &[(1, 1)])), Some(2));
        let epochs = [(1, 1), (2, 2)];
        let not_well = View {
            is_well: false,
            ..view(3, 1, 9, &[(1, 3)])
        };
        assert_eq!(learn(&not_well), Some(2));
        // A node that has just been started may not know which node has slot 3.
        assert_eq!(learn(&view(2, 1, 2, &[(1, 1)])), Some(2));
        assert_eq!(learn(&view(2, 2, 2, &epochs)), None);
        assert_eq!(learn(&view(3, 1, 9, &[(1, 3), (2, 2)])), Some(1));
    }

    #[test]
    fn only_the_node_that_has_a_slot_is_believed_when_it_says_who_has_it() {
        let store = store();
        store.nodes.learn(&view(1, 1, 9, &[(1, 1)]));
        let first = store.nodes.owner(3).unwrap();
        store.nodes.mend(3, &first, &at(2));
        assert_eq!(port_of(&store, 3), Some(2));
        store.nodes.mend(3, &first, &at(1));
        assert_eq!(port_of(&store, 3), Some(2));
    }

    /// Locks in slots that no node has are looked at together, and must not stay so.
    #[test]
    fn slots_that_lose_their_node_or_get_one_are_told() {
        let store = store();
        let told: Arc<Mutex<Vec<Lane>>> = Arc::default();
        store.report_losses({
            let told = Arc::clone(&told);
            Arc::new(move |hint| {
                if let LossHint::Relocated(lane) = hint {
                    told.lock().unwrap().push(lane);
                }
            })
        });
        let first = Lane(0);
        for (epoch, last, expected) in [(1, 9, NO_LANE), (2, 5, first), (3, 9, NO_LANE)] {
            store.nodes.learn(&view(epoch, 1, last, &[(1, 1)]));
            assert_eq!(std::mem::take(&mut *told.lock().unwrap()), [expected], "epoch {epoch}");
        }
        let node = store.nodes.owner(3).unwrap();
        store.nodes.mend(3, &node, &at(2));
        let began = Instant::now();
        while told.lock().unwrap().is_empty() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "waited in vain to be told of a slot that has moved"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*told.lock().unwrap(), [first]);
    }
}
