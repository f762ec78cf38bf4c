//! The nodes of a cluster, and which of them has which slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::clocks::{Clocks, Difference, Reading};
use super::node::{Common, Node};
use super::slot::{SLOTS, slot_of};
use super::topology::View;
use crate::host::{Moment, Mutex};
use crate::store::health::{ServerHealth, ServerRole, ServerState};
use crate::store::redis::connection::Unacknowledged;
use crate::store::redis::connection::failure::{Address, Redirect, redirect};
use crate::store::{Lane, LockStore, LossHint, LossReceiver, StoreError};

/// The place of a slot that no node has.
const NOBODY: u32 = u32::MAX;
/// The lane of the locks in slots that no node has.
pub(super) const NO_LANE: Lane = Lane(NOBODY);
/// The time after which answers count that are older than the present one by their epoch: the cluster has
/// been made anew. A node that is cut off from the others says that it cannot be used before that, after
/// `cluster-node-timeout` (15 s by default).
const OLDER: Duration = Duration::from_secs(30);

/// The nodes that keep locks. Shared between the store, and the task that asks where the slots are.
pub(super) struct Nodes {
    pub(super) common: Common,
    table: RwLock<Table>,
    losses: Mutex<Vec<LossReceiver>>,
    state: watch::Sender<State>,
    /// The number of the latest question where the slots are.
    asked: watch::Sender<u64>,
    /// Repeats the releases of a former node that the next one may not know.
    repeat: OnceLock<Repeat>,
    /// The nodes that have lost slots and were not reported to the receivers yet.
    former: Mutex<Former>,
    has_former: Arc<Notify>,
    clocks: Mutex<Clocks>,
}

/// Nodes that have lost slots, by their lanes.
type Former = BTreeMap<u32, Arc<Node>>;

/// A function that must not block.
type Repeat = Box<dyn Fn(&Arc<Nodes>, Unacknowledged) + Send + Sync>;

struct Table {
    slots: Box<[Owner]>,
    nodes: BTreeMap<u32, Arc<Node>>,
    /// The epoch of the cluster when it told where the slots are.
    epoch: u64,
    /// The time of the first of the older answers that have come since.
    older: Option<Moment>,
}

/// The node that has a slot.
#[derive(Clone, Copy)]
struct Owner {
    lane: u32,
    /// The epoch of its configuration, as a node has told it. The next node that gets the slot, by a move or
    /// as the successor of a master, has one that is not lower.
    epoch: u64,
}

impl Owner {
    const NOBODY: Self = Self { lane: NOBODY, epoch: 0 };
}

/// The state of the search for the slots as a whole.
enum State {
    Unasked,
    /// With the number of the question that was answered with this reason.
    Missing(StoreError, u64),
    Known,
}

/// The consequences of a change of the table, which follow once it is unlocked.
#[derive(Default)]
struct Changes {
    entered: Vec<Arc<Node>>,
    /// The nodes that have lost slots.
    former: Former,
    /// `true` if slots that no node had have one now.
    are_found: bool,
    retired: Vec<Arc<Node>>,
}

impl Table {
    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(&self.slots.get(usize::from(slot))?.lane)
    }

    fn at(&self, address: &Address) -> Option<&Arc<Node>> {
        self.nodes.values().find(|node| node.address == *address)
    }

    /// Gives a slot to the node in this lane.
    fn give(&mut self, slot: u16, lane: u32, changes: &mut Changes) {
        let Some(owner) = self.slots.get_mut(usize::from(slot)) else {
            return;
        };
        let former = std::mem::replace(&mut owner.lane, lane);
        if former == lane {
            return;
        }
        if let Some(node) = self.nodes.get(&former) {
            changes.former.insert(former, Arc::clone(node));
        }
        changes.are_found |= former == NOBODY;
        if let Some(node) = self.nodes.get(&lane) {
            node.owns();
        }
    }
}

impl Nodes {
    pub(super) fn new(common: Common) -> Arc<Self> {
        Arc::new(Self {
            common,
            table: RwLock::new(Table {
                slots: vec![Owner::NOBODY; usize::from(SLOTS)].into(),
                nodes: BTreeMap::new(),
                epoch: 0,
                older: None,
            }),
            losses: Mutex::default(),
            state: watch::Sender::new(State::Unasked),
            asked: watch::Sender::new(0),
            repeat: OnceLock::new(),
            former: Mutex::default(),
            has_former: Arc::default(),
            clocks: Mutex::default(),
        })
    }

    /// Sets the function that repeats the releases of a former node that the next one may not know.
    pub(super) fn repeat_by(&self, repeat: impl Fn(&Arc<Self>, Unacknowledged) + Send + Sync + 'static) {
        let _ = self.repeat.set(Box::new(repeat));
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node that has a slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.table().owner(slot).cloned()
    }

    pub(super) fn in_lane(&self, lane: Lane) -> Option<Arc<Node>> {
        self.table().nodes.get(&lane.0).cloned()
    }

    /// Returns all nodes, in the order of their lanes.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.table().nodes.values().cloned().collect()
    }

    /// Returns the lane of a slot.
    pub(super) fn lane(&self, slot: u16) -> Lane {
        self.table().owner(slot).map_or(NO_LANE, |node| node.lane)
    }

    /// Returns the slots that no node has, as ranges.
    pub(super) fn unowned(&self) -> Vec<(u16, u16)> {
        let table = self.table();
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| table.owner(*slot).is_none()) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// Returns the node that has a slot, after asking where the slots are if that is not known yet.
    ///
    /// Cancel safe.
    pub(super) async fn owner_at_last(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        if let Some(owner) = self.owner(slot) {
            return Ok(owner);
        }
        self.known().await?;
        self.owner(slot).ok_or_else(|| {
            self.ask_again();
            StoreError::transient(format!("no node of the cluster has slot {slot}, in which the key lies"))
                .advise("see what `CLUSTER INFO` tells, and give the slot to a node")
        })
    }

    /// Waits until it is known where the slots are.
    ///
    /// Cancel safe.
    pub(super) async fn known(&self) -> Result<(), StoreError> {
        let mut state = self.state.subscribe();
        let mut question = None;
        loop {
            match &*state.borrow_and_update() {
                State::Known => return Ok(()),
                // A reason from before the question may be long past.
                State::Missing(error, asked) if question.is_some_and(|question| *asked >= question) => {
                    return Err(error.clone());
                }
                State::Missing(..) | State::Unasked => {}
            }
            question = question.or_else(|| Some(self.ask_again()));
            if state.changed().await.is_err() {
                return Err(StoreError::transient("the store has ended"));
            }
        }
    }

    pub(super) fn is_known(&self) -> bool {
        matches!(&*self.state.borrow(), State::Known)
    }

    /// Has the cluster asked where the slots are. Returns the number of the question.
    pub(super) fn ask_again(&self) -> u64 {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        number
    }

    /// Returns a receiver that changes with each question.
    pub(super) fn questions(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }

    /// Adds a receiver for hints about lost locks.
    pub(super) fn report_to(&self, receiver: &LossReceiver) {
        self.losses.lock().push(Arc::clone(receiver));
        for node in self.all() {
            report(&node, receiver);
        }
    }

    /// Returns the node at an address, which is new if no slot was known to be there.
    pub(super) fn at(self: &Arc<Self>, address: &Address) -> Arc<Node> {
        let mut changes = Changes::default();
        let node = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            self.node_in(&mut table, address, &mut changes)
        };
        self.follow(changes);
        node
    }

    /// Records where a slot is, if `node` has said so in this error.
    pub(super) fn mend_after(self: &Arc<Self>, node: &Node, error: &StoreError) {
        if let Some(Redirect::Moved(slot, address)) = redirect(error) {
            self.mend(*slot, node, &node.named(address));
        }
    }

    /// Records that a slot is on the node at this address, as `by` says. Believes only the node that has the
    /// slot, as far as is known: another one may not have heard yet which node has taken over. Leaves the locks
    /// and the places in queues to [`relocate`](Self::relocate), since many slots may move one by one.
    pub(super) fn mend(self: &Arc<Self>, slot: u16, by: &Node, address: &Address) {
        let mut changes = Changes::default();
        {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            if table.owner(slot).is_some_and(|owner| owner.lane == by.lane) {
                let node = self.node_in(&mut table, address, &mut changes);
                table.give(slot, node.lane.0, &mut changes);
                node.store.settle_in(slot);
            }
        }
        let former = std::mem::take(&mut changes.former);
        self.follow(changes);
        if !former.is_empty() {
            self.former.lock().extend(former);
            self.has_former.notify_one();
        }
        self.ask_again();
    }

    /// Returns a handle that is notified when there is something to [relocate](Self::relocate).
    pub(super) fn has_former(&self) -> Arc<Notify> {
        Arc::clone(&self.has_former)
    }

    /// Has the receivers look at the locks, and the queues at the places, of all nodes that have lost slots
    /// since the last time.
    pub(super) fn relocate(&self) {
        let former = std::mem::take(&mut *self.former.lock());
        self.report_relocated(former);
    }

    fn node_in(self: &Arc<Self>, table: &mut Table, address: &Address, changes: &mut Changes) -> Arc<Node> {
        if let Some(node) = table.at(address) {
            return Arc::clone(node);
        }
        let taken: BTreeSet<u32> = table.nodes.keys().copied().collect();
        let lane = (0..NOBODY).find(|lane| !taken.contains(lane)).unwrap_or(NOBODY);
        let nodes = Arc::downgrade(self);
        let ask_again = Box::new(move || {
            if let Some(nodes) = Weak::upgrade(&nodes) {
                nodes.ask_again();
            }
        });
        let node = self.common.node(address, Lane(lane), ask_again);
        table.nodes.insert(lane, Arc::clone(&node));
        changes.entered.push(Arc::clone(&node));
        node
    }

    /// Takes in a node's view of the cluster, unless the node knows less than this process does already.
    pub(super) fn learn(self: &Arc<Self>, view: &View) {
        let mut changes = Changes::default();
        let now = self.common.host.now();
        {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            // A node that is cut off from most of the others, or has just been started, says that it cannot be
            // used.
            if !view.is_well && self.is_known() {
                return;
            }
            let is_older = view.epoch < table.epoch;
            if is_older && now.since(*table.older.get_or_insert(now)) < OLDER {
                return;
            }
            (table.epoch, table.older) = (view.epoch, None);
            let mut claimed = vec![Owner::NOBODY; usize::from(SLOTS)];
            // There may be hundreds of nodes, and a range for each slot.
            let mut owners: BTreeMap<&Address, Owner> = BTreeMap::new();
            for range in &view.ranges {
                let places = usize::from(range.first)..=usize::from(range.last);
                let (Some(claimed), Some(present)) = (claimed.get_mut(places.clone()), table.slots.get(places)) else {
                    continue;
                };
                let epoch = view.epoch_of(&range.id);
                if !is_older && present.iter().all(|present| epoch < present.epoch) {
                    claimed.copy_from_slice(present);
                    continue;
                }
                let owner = *owners.entry(&range.owner).or_insert_with(|| {
                    let node = self.node_in(&mut table, &range.owner, &mut changes);
                    node.store.settle_in(range.first);
                    let _ = node.id.set(range.id.clone());
                    let lane = node.lane.0;
                    Owner { lane, epoch }
                });
                claimed.fill(owner);
            }
            // The epoch in which the view knows each node.
            let known = |node: &Arc<Node>| node.id.get().map_or(0, |id| view.epoch_of(id));
            let known: BTreeMap<u32, u64> = table.nodes.iter().map(|(lane, node)| (*lane, known(node))).collect();
            for (slot, claimed) in (0..SLOTS).zip(claimed) {
                let present = table.slots.get(usize::from(slot)).copied().unwrap_or(Owner::NOBODY);
                // A view in which no node has the slot must know the node that had it.
                let epoch = match claimed.lane {
                    NOBODY => known.get(&present.lane).copied().unwrap_or_default(),
                    _ => claimed.epoch,
                };
                if epoch < present.epoch && !is_older {
                    continue;
                }
                table.give(slot, claimed.lane, &mut changes);
                if let Some(owner) = table.slots.get_mut(usize::from(slot)) {
                    *owner = claimed;
                }
            }
            let owners: BTreeSet<u32> = table.slots.iter().map(|owner| owner.lane).collect();
            // Before a node is given up, since another one may get its lane.
            changes.former.append(&mut self.former.lock());
            table.nodes.retain(|lane, node| {
                let stays = owners.contains(lane) || !node.may_retire(now);
                if !stays {
                    changes.retired.push(Arc::clone(node));
                }
                stays
            });
        }
        self.follow(changes);
        let is_first = !self.is_known();
        if is_first {
            let is_placeholder = |server: &ServerHealth| server.role == ServerRole::Cluster;
            let health = &self.common.health;
            health.send_modify(|servers| servers.retain(|server| !is_placeholder(server)));
            self.state.send_replace(State::Known);
        }
    }

    /// Compares clocks that nodes have told at about the same time, and logs those that differ by too much.
    pub(super) fn compare(&self, readings: &[Reading]) {
        let skew = self.common.skew;
        let mut clocks = self.clocks.lock();
        let found = clocks.compare(readings, skew);
        drop(clocks);
        for Difference { ahead, behind, by } in found {
            tracing::warn!(
                %ahead, %behind, difference = ?by, ?skew,
                "the clocks of two nodes of a cluster differ by more than the manager's skew, so locks may end early after a failover or a move; set \
                 the clocks, or a larger skew"
            );
        }
    }

    /// Returns advice about the clocks that differ by too much.
    pub(super) fn clocks_that_differ(&self) -> Vec<String> {
        let clocks = self.clocks.lock();
        let advice = |Difference { ahead, behind, by }: &Difference| {
            format!(
                "the clock of {ahead} is {by:?} ahead of that of {behind}, which is more than the manager's `skew` of {:?}: after a failover or a \
                 move locks may end early; set the clocks, or a larger `skew`",
                self.common.skew
            )
        };
        clocks.found().iter().map(advice).collect()
    }

    /// Records why it is not known where the slots are, and the number of the question that was answered
    /// with it. Slots that were known before stay known.
    pub(super) fn is_missing(&self, reason: &StoreError, question: u64) {
        let is_news = self.state.send_if_modified(|state| {
            let is_missing = !matches!(state, State::Known);
            if is_missing {
                *state = State::Missing(reason.clone(), question);
            }
            is_missing
        });
        if is_news {
            let now = std::time::SystemTime::UNIX_EPOCH + self.common.host.unix_time();
            self.common.health.send_if_modified(|servers| {
                let Some(row) = servers.iter_mut().find(|server| server.role == ServerRole::Cluster) else {
                    return false;
                };
                row.last_error = Some(reason.clone());
                let is_change = row.state != ServerState::Down;
                if is_change {
                    (row.state, row.since) = (ServerState::Down, now);
                }
                is_change
            });
        }
    }

    /// Returns the cluster's addresses as in its URL, until it is known which nodes it has.
    pub(super) fn shown(&self) -> Box<str> {
        let servers = self.common.health.borrow();
        servers.first().map(|server| server.address.clone()).unwrap_or_default()
    }

    /// Tells all receivers of a hint. Must not be called while a lock is held.
    pub(super) fn report(&self, hint: &LossHint) {
        let receivers = self.losses.lock().clone();
        for receiver in receivers {
            receiver(hint.clone());
        }
    }

    /// Carries out the consequences of a change of the table, which wakes tasks.
    fn follow(self: &Arc<Self>, changes: Changes) {
        let receivers = self.losses.lock().clone();
        for node in changes.entered {
            for receiver in &receivers {
                report(&node, receiver);
            }
            node.enter(&self.common.host);
        }
        if changes.are_found {
            for receiver in &receivers {
                receiver(LossHint::Relocated(NO_LANE));
            }
        }
        self.report_relocated(changes.former);
        for node in changes.retired {
            tracing::info!(address = %node.address, "a node of the cluster has no slots any more");
            node.retire();
            let unacknowledged = node.store.commands.unacknowledged();
            if let Some(repeat) = self.repeat.get() {
                repeat(self, unacknowledged);
            }
        }
    }

    fn report_relocated(&self, former: Former) {
        let receivers = self.losses.lock().clone();
        for (_, former) in former {
            tracing::debug!(address = %former.address, "slots of a node of the cluster have moved");
            for receiver in &receivers {
                receiver(LossHint::Relocated(former.lane));
            }
            former.store.lapse(|key| self.lane(slot_of(key)) != former.lane);
        }
    }
}

/// Has a node's hints go to a receiver, with the node's lane.
fn report(node: &Node, receiver: &LossReceiver) {
    let (lane, receiver) = (node.lane, Arc::clone(receiver));
    node.store
        .report_losses(Arc::new(move |hint| receiver(hint.in_lane(lane))));
}
