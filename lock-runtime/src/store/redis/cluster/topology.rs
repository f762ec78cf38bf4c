//! Asks the nodes of a cluster which of them has which slot.
//!
//! One task on the lock thread asks a few nodes at once: when the store is used for the first time, when
//! a node has answered that a slot is elsewhere, when a connection has ended, and every ten seconds. The
//! answer with the highest epoch of the cluster counts, since a node that is cut off from the others
//! knows nothing of what has changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value, from_redis_value};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::clocks::Reading;
use super::node::Common;
use super::nodes::{NO_LANE, Nodes};
use super::slot::SLOTS;
use crate::host::{Host, Moment, Timer};
use crate::store::redis::connection::failure::{self, Address};
use crate::store::{LossHint, StoreError};

/// The pause between two questions while nothing happens.
const STEADY: Duration = Duration::from_secs(10);
/// The minimum pause between two questions, and its part that is drawn by chance, so that not all
/// processes ask at once.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after a question that no node has answered.
const UNANSWERED: Duration = Duration::from_millis(250);
/// The number of nodes that are asked at once.
const AT_ONCE: usize = 3;
/// The time for which the other answers are waited for after the first one.
const SETTLE: Duration = Duration::from_millis(100);
/// The pause between two looks at the locks and places of nodes that have lost slots. A look takes
/// milliseconds when ten thousand locks are held.
const RELOCATED: Duration = Duration::from_millis(100);

/// A node's view of the cluster.
pub(super) struct View {
    /// The epoch of the cluster, which grows when a slot changes hands.
    pub(super) epoch: u64,
    /// `true` if the node says that the cluster can be used.
    pub(super) is_well: bool,
    pub(super) ranges: Vec<Range>,
    /// The epoch of each node's configuration, by the node's identifier.
    pub(super) epochs: BTreeMap<Box<str>, u64>,
    /// The replicas.
    pub(super) replicas: Vec<Address>,
}

/// Slots that one node has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) owner: Address,
    /// The owner's identifier.
    pub(super) id: Box<str>,
}

/// Follows the slots. Dropping it ends the task that does so.
pub(super) struct Topology {
    _ended: DropGuard,
}

impl Topology {
    /// Begins to ask, once the store is used, and tells `nodes` the answers. `seeds` are asked first.
    ///
    /// # Errors
    /// Fails if the lock thread cannot be started.
    pub(super) fn follow(nodes: &Arc<Nodes>, seeds: Vec<Address>) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let watch = Watch {
            nodes: Arc::downgrade(nodes),
            host: nodes.common.host.clone(),
            known: seeds.iter().cloned().collect(),
            seeds,
            connections: BTreeMap::new(),
            asks_time: true,
            outage: None,
        };
        let host = &nodes.common.host;
        let relocations = relocate(Arc::downgrade(nodes), nodes.has_former(), host.clone());
        spawn_until(host, &ended, watch.run(nodes.questions()))?;
        spawn_until(host, &ended, relocations)?;
        Ok(Self {
            _ended: ended.drop_guard(),
        })
    }
}

/// Starts a task that ends with the token.
fn spawn_until(
    host: &Host,
    ended: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let ended = ended.clone();
    host.spawn(async move {
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            () = task => {}
        }
    })
}

/// Has `nodes` look at locks and places whose slots have moved: at once, and then at all that have moved
/// during a pause.
async fn relocate(nodes: Weak<Nodes>, has_former: Arc<Notify>, host: Host) {
    loop {
        has_former.notified().await;
        let Some(nodes) = nodes.upgrade() else { return };
        nodes.relocate();
        drop(nodes);
        host.sleep(Timer::LockThread, RELOCATED).await;
    }
}

struct Watch {
    nodes: Weak<Nodes>,
    host: Host,
    seeds: Vec<Address>,
    /// The nodes of the last answer, and their replicas.
    known: BTreeSet<Address>,
    connections: BTreeMap<Address, MultiplexedConnection>,
    /// `false` once a node has refused to tell the time.
    asks_time: bool,
    outage: Option<Unanswered>,
}

/// Questions in a row that no node has answered.
struct Unanswered {
    /// The time of the first one.
    since: Moment,
    questions: u32,
    /// The address in the report that the cluster is away, once there was one.
    reported: Option<Box<str>>,
}

/// An answer, and the connection for the next question.
type Answer = (Address, Result<(NodeReport, MultiplexedConnection), StoreError>);

/// One node's answers about the slots and the time.
struct NodeReport {
    view: View,
    clock: Option<Reading>,
    /// `true` if the user may not ask for the time.
    refuses_time: bool,
}

impl Watch {
    async fn run(mut self, mut questions: tokio::sync::watch::Receiver<u64>) {
        // Asks nothing before the store is used.
        if *questions.borrow_and_update() == 0 && questions.changed().await.is_err() {
            return;
        }
        loop {
            let Some(nodes) = self.nodes.upgrade() else { return };
            let question = *questions.borrow_and_update();
            let pause = match self.ask(&nodes.common).await {
                Ok((view, clocks)) => {
                    nodes.compare(&clocks);
                    if let Some(Unanswered {
                        since,
                        reported: Some(address),
                        ..
                    }) = self.outage.take()
                    {
                        let (lane, lasted) = (NO_LANE, self.host.now().since(since));
                        nodes.report(&LossHint::Up { lane, address, lasted });
                    }
                    let masters = view.ranges.iter().map(|range| &range.owner);
                    self.known = masters.chain(&view.replicas).cloned().collect();
                    nodes.learn(&view);
                    PAUSE
                }
                Err(error) => {
                    let now = self.host.now();
                    let outage = self.outage.get_or_insert_with(|| {
                        tracing::debug!(%error, "no node of the cluster tells where the slots are");
                        Unanswered {
                            since: now,
                            questions: 0,
                            reported: None,
                        }
                    });
                    outage.questions += 1;
                    nodes.is_missing(&error, question);
                    // Each of the nodes that are known reports its own outage.
                    if outage.questions > 1 && outage.reported.is_none() && !nodes.is_known() {
                        let (lane, address) = (NO_LANE, nodes.shown());
                        outage.reported = Some(address.clone());
                        let error = error.to_string().into();
                        nodes.report(&LossHint::Down { lane, address, error });
                    }
                    UNANSWERED
                }
            };
            drop(nodes);
            let pause = pause.mul_f64(0.5 + self.host.fraction() / 2.0);
            self.host.sleep(Timer::LockThread, pause).await;
            tokio::select! {
                biased;
                changed = questions.changed() => if changed.is_err() { return },
                () = self.host.sleep(Timer::LockThread, STEADY) => {}
            }
        }
    }

    /// Asks nodes, a few at once, until one has answered. Fails with the first failure.
    async fn ask(&mut self, common: &Common) -> Result<(View, Vec<Reading>), StoreError> {
        let mut others: Vec<Address> = self.known.iter().cloned().collect();
        for nth in (1..others.len()).rev() {
            let with = self.host.between(0..nth as u64 + 1);
            others.swap(nth, usize::try_from(with).unwrap_or_default());
        }
        // Those with a connection first, but with one among the first few that has none: the others may
        // all be cut off from the rest.
        others.sort_by_key(|address| !self.connections.contains_key(address));
        let new = others.partition_point(|address| self.connections.contains_key(address));
        if new >= AT_ONCE && new < others.len() {
            others.swap(AT_ONCE - 1, new);
        }
        // The addresses of the URL may be a name behind which there is always a node that works.
        let seeds = self.seeds.iter().filter(|seed| !self.known.contains(seed));
        others.extend(seeds.cloned());
        let mut failure = None;
        for some in others.chunks(AT_ONCE) {
            match self.ask_some(common, some).await {
                Ok(report) => {
                    // A cluster may have hundreds of nodes, and one that has left it may go on for long.
                    self.connections.retain(|address, _| some.contains(address));
                    return Ok(report);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| StoreError::transient("no node of the cluster is known")))
    }

    async fn ask_some(&mut self, common: &Common, some: &[Address]) -> Result<(View, Vec<Reading>), StoreError> {
        let mut asked: FuturesUnordered<_> = some
            .iter()
            .map(|address| {
                question(
                    common,
                    address.clone(),
                    self.connections.remove(address),
                    self.asks_time,
                )
            })
            .collect();
        let mut best: Option<View> = None;
        let mut clocks = Vec::new();
        let mut failure = None;
        let mut settled = None;
        loop {
            let answered = async {
                match &mut settled {
                    None => asked.next().await,
                    Some(settled) => tokio::select! {
                        biased;
                        answer = asked.next() => answer,
                        () = settled => None,
                    },
                }
            };
            let Some((address, answer)) = answered.await else {
                break;
            };
            match answer {
                Ok((report, connection)) => {
                    let NodeReport {
                        view,
                        clock,
                        refuses_time,
                    } = report;
                    self.asks_time &= !refuses_time;
                    clocks.extend(clock);
                    self.connections.insert(address, connection);
                    let is_better = best
                        .as_ref()
                        .is_none_or(|best| (view.is_well, view.epoch) > (best.is_well, best.epoch));
                    if is_better {
                        best = Some(view);
                    }
                    settled = settled.or_else(|| Some(Box::pin(self.host.sleep(Timer::LockThread, SETTLE))));
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (best, failure) {
            (Some(view), _) => Ok((view, clocks)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(StoreError::transient("no node of the cluster is known")),
        }
    }
}

/// Asks one node, on its connection, or else on a new one.
async fn question(common: &Common, address: Address, former: Option<MultiplexedConnection>, asks_time: bool) -> Answer {
    if let Some(connection) = former
        && let Ok(answer) = ask_on(common, &address, connection, asks_time, None).await
    {
        return (address, Ok(answer));
    }
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let info = common.info(&address);
    // Below that of the calls that wait for this, which then tell the reason.
    let limit = common.time_outs.connect.mul_f64(0.75);
    let made = common.dial.dial(&info, config);
    let answer = match common.host.timeout(Timer::LockThread, limit, made).await {
        Some(Ok(connection)) => ask_on(common, &address, connection, asks_time, common.dial.naming()).await,
        Some(Err(error)) => Err(failed(&address, &error)),
        None => Err(StoreError::transient(format!(
            "{address}: no connection within {limit:?}"
        ))),
    };
    (address, answer)
}

async fn ask_on(
    common: &Common,
    address: &Address,
    mut connection: MultiplexedConnection,
    asks_time: bool,
    naming: Option<Cmd>,
) -> Result<(NodeReport, MultiplexedConnection), StoreError> {
    let mut all = redis::pipe();
    all.cmd("CLUSTER").arg("INFO");
    all.cmd("CLUSTER").arg("NODES");
    all.cmd("CLUSTER").arg("SLOTS");
    if asks_time {
        all.cmd("TIME");
    }
    // The last one, whose answer is left unread.
    if let Some(naming) = naming {
        all.add_command(naming);
    }
    let limit = common.time_outs.response;
    let sent = common.host.now();
    let unexpected = || StoreError::transient(format!("{address}: an unexpected answer to CLUSTER SLOTS"));
    let answers = common
        .host
        .timeout(
            Timer::LockThread,
            limit,
            connection.req_packed_commands(&all, 0, all.len()),
        )
        .await;
    let answers = answers.ok_or_else(|| StoreError::transient(format!("{address}: no answer within {limit:?}")))?;
    let answered = common.host.now();
    let mut answers = answers.map_err(|error| failed(address, &error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(unexpected)?;
        answer.extract_error().map_err(|error| failed(address, &error))
    };
    let (info, nodes, slots) = (next()?, next()?, next()?);
    // Fencing needs the permission, and locks do not.
    let time = asks_time.then(next);
    let refuses_time = matches!(&time, Some(Err(error)) if error.is_permanent());
    let text = |answer| from_redis_value::<String>(answer).map_err(|_| unexpected());
    let view = View::read(&text(info)?, &text(nodes)?, slots, address).ok_or_else(unexpected)?;
    if view.ranges.is_empty() {
        // It may have been reset, and still be in the URL. The epoch is that of the cluster it was in.
        return Err(
            StoreError::transient(format!("{address}: no node that it knows has any slots")).advise(
                "give the slots of the cluster to its nodes, or leave a node that is in no cluster out of the URL",
            ),
        );
    }
    let time = time.and_then(|time| from_redis_value(time.ok()?).ok());
    let report = NodeReport {
        view,
        clock: time.map(|time| Reading::new(address.clone(), time, sent, answered)),
        refuses_time,
    };
    Ok((report, connection))
}

/// Returns the error for a node that does not tell where the slots are.
fn failed(address: &Address, error: &RedisError) -> StoreError {
    let sorted = failure::sort(error, false);
    let text = format!("{address}: {}", sorted.cause());
    if !sorted.is_permanent() {
        let passing = StoreError::transient(text);
        return match sorted.own_advice() {
            Some(advice) => passing.advise(advice),
            None => passing,
        };
    }
    let permanent = StoreError::permanent(text);
    if sorted.cause().to_string().contains("cluster support disabled") {
        return permanent.advise("give the URL of a single server, `redis://host:port`");
    }
    match error.code() {
        Some("NOPERM") => permanent.advise(
            "allow the server's user `+cluster|slots +cluster|nodes +cluster|info +asking`, in addition to what a single server needs",
        ),
        _ => permanent.advise(sorted.advice()),
    }
}

impl View {
    /// Returns the epoch of a node's configuration, or 0 if the one that tells does not know the node.
    pub(super) fn epoch_of(&self, id: &str) -> u64 {
        self.epochs.get(id).copied().unwrap_or_default()
    }

    /// Reads the answers of the node at `address` to `CLUSTER INFO`, `CLUSTER NODES` and `CLUSTER SLOTS`.
    fn read(info: &str, nodes: &str, slots: Value, address: &Address) -> Option<Self> {
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
        };
        let Value::Array(rows) = slots else { return None };
        let mut view = Self {
            epoch: field("cluster_current_epoch")?.parse().ok()?,
            is_well: field("cluster_state") == Some("ok"),
            ranges: Vec::new(),
            epochs: nodes
                .lines()
                .filter_map(|line| {
                    let mut fields = line.split(' ');
                    Some((fields.next()?.into(), fields.nth(5)?.parse().ok()?))
                })
                .collect(),
            replicas: Vec::new(),
        };
        for row in rows {
            let Value::Array(row) = row else { return None };
            let mut row = row.into_iter();
            let first: u16 = from_redis_value(row.next()?).ok()?;
            let last: u16 = from_redis_value(row.next()?).ok()?;
            if first > last || last >= SLOTS {
                return None;
            }
            let mut nodes = row.filter_map(|node| {
                let Value::Array(node) = node else { return None };
                let mut node = node.into_iter();
                // Null or empty from a node that does not know its own address.
                let host: Option<String> = from_redis_value(node.next()?).ok()?;
                let host = host.filter(|host| !host.is_empty() && host != "?");
                let node_address = Address {
                    host: host.unwrap_or_else(|| address.host.clone()),
                    port: from_redis_value(node.next()?).ok().filter(|port| *port != 0)?,
                };
                let id: String = from_redis_value(node.next()?).ok()?;
                Some((node_address, id.into_boxed_str()))
            });
            let (owner, id) = nodes.next()?;
            view.replicas.extend(nodes.map(|(address, _)| address));
            view.ranges.push(Range { first, last, owner, id });
        }
        Some(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "id a:6379@16379,host myself,master - 0 0 7 connected 0-5 [6->-other]\nother b:6380@16380 slave id 0 1 7 connected\n";

    fn read(info: &str, slots: &str) -> Option<View> {
        let asked = Address {
            host: "asked".to_owned(),
            port: 1,
        };
        View::read(info, NODES, redis::parse_redis_value(slots.as_bytes()).ok()?, &asked)
    }

    #[test]
    fn an_answer_tells_ranges_masters_and_replicas() {
        let info = "cluster_state:ok\r\ncluster_current_epoch:7\r\n";
        let slots = "*2\r\n*4\r\n:0\r\n:5\r\n*3\r\n$1\r\na\r\n:6379\r\n$2\r\nid\r\n*3\r\n$1\r\nb\r\n:6380\r\n$2\r\nid\r\n\
                     *3\r\n:6\r\n:6\r\n*4\r\n$-1\r\n:6381\r\n$2\r\nid\r\n*0\r\n";
        let view = read(info, slots);
        let at = |host: &str, port| Address {
            host: host.to_owned(),
            port,
        };
        let report = view.map(|view| {
            (
                view.epoch,
                view.is_well,
                view.epoch_of("id"),
                view.ranges,
                view.replicas,
            )
        });
        let range = |first, last, owner| Range {
            first,
            last,
            owner,
            id: "id".into(),
        };
        let ranges = vec![range(0, 5, at("a", 6379)), range(6, 6, at("asked", 6381))];
        assert_eq!(report, Some((7, true, 7, ranges, vec![at("b", 6380)])));
    }

    #[test]
    fn an_answer_of_another_shape_is_none() {
        let info = "cluster_state:fail\r\ncluster_current_epoch:7\r\n";
        assert!(read(info, "*0\r\n").is_some_and(|view| !view.is_well));
        for slots in [
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*2\r\n:0\r\n:5\r\n",
            "*1\r\n*3\r\n:6\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        ] {
            assert!(read(info, slots).is_none(), "{slots}");
        }
        assert!(read("cluster_state:ok", "*0\r\n").is_none());
    }
}
