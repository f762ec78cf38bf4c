//! A faulty network: a TCP proxy between client and server that understands RESP.
//!
//! It runs on a thread of its own, so a test may block its runtime and the proxy still works. A fault is set either on everything
//! that passes in one direction ([`Flow`]) or on single commands ([`Action`], by [`Proxy::on_next`] and its siblings), and is in
//! force when the call returns. Every request that reaches the proxy is recorded, with its reply, see [`Proxy::commands`].
//!
//! TCP keeps order, and so does the proxy: what is delayed or held delays all that follows on that connection, and a connection
//! that lost something stays silent in that direction, for good. What it cannot do: the proxy's own kernel acknowledges what clients
//! send, so keepalive probes and `TCP_USER_TIMEOUT` never fire; and while the server is down, the proxy accepts and then closes,
//! unless told to [`Proxy::refuse`].
//!
//! Traffic that is not RESP, such as TLS, passes as plain bytes: flows work on it, actions do not. So do replies on a connection that
//! subscribed under RESP2.

mod link;
mod script;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc as channel, watch};

pub use script::{Action, Command, Hit};

use crate::patience::{GLANCE, PATIENCE, eventually_some};
use crate::server::{Server, free_port};
use link::Link;
use script::Rule;

/// What happens to everything that passes in one direction, on all connections, present and future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// It passes.
    #[default]
    Pass,
    /// It arrives this much later.
    Delay(Duration),
    /// It waits in the proxy until [`Proxy::release`], or another flow is set.
    Hold,
    /// It vanishes: a black hole. A connection that lost something stays silent in that direction.
    Lose,
}

/// How a connection ends for the one who looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// In order: the other side reads an end of file.
    Fin,
    /// Aborted: the other side reads "connection reset by peer".
    Reset,
}

/// The proxy. Dropping it closes every connection through it.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    orders: channel::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy before this server.
    #[must_use]
    pub fn to(server: &Server) -> Self {
        Self::to_addr(server.addr())
    }

    /// A proxy before this address.
    #[must_use]
    pub fn to_addr(upstream: SocketAddr) -> Self {
        let listener = loop {
            // Another process may take the port between the look and the bind.
            if let Ok(listener) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())) {
                break listener;
            }
        };
        listener
            .set_nonblocking(true)
            .expect("a socket can be made non-blocking");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::new(upstream));
        let (orders, received) = channel::unbounded_channel();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fault-proxy".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(serve(listener, theirs, received));
                runtime.shutdown_background();
            })
            .expect("a thread");
        Self {
            addr,
            shared,
            orders,
            thread: Some(thread),
        }
    }

    /// What a client connects to: `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Where the proxy listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    // --- Faults on everything -------------------------------------------------------------------------------------

    /// What happens to requests, from client to server.
    pub fn requests(&self, flow: Flow) {
        self.shared.change(|state| state.requests = flow);
    }

    /// What happens to replies and pushes, from server to client.
    pub fn replies(&self, flow: Flow) {
        self.shared.change(|state| state.replies = flow);
    }

    /// The same flow in both directions; `both(Flow::Lose)` is a full partition.
    pub fn both(&self, flow: Flow) {
        self.shared
            .change(|state| (state.requests, state.replies) = (flow, flow));
    }

    /// Whether RESP3 pushes (invalidations, pub/sub messages) reach the client; `false` loses them alone.
    pub fn pushes(&self, pass: bool) {
        self.shared.change(|state| state.pushes = pass);
    }

    /// Lets go everything that was held so far, by a flow or by an action, in order. A `Hold` flow becomes `Pass`.
    pub fn release(&self) {
        self.shared.change(|state| {
            state.releases += 1;
            for flow in [&mut state.requests, &mut state.replies] {
                if *flow == Flow::Hold {
                    *flow = Flow::Pass;
                }
            }
        });
    }

    /// Takes every fault and rule back: all flows pass, what is held is released, connections are accepted.
    /// A connection that lost something stays as it is.
    pub fn heal(&self) {
        self.shared.change(|state| state.rules.clear());
        self.both(Flow::Pass);
        self.pushes(true);
        self.release();
        self.refuse(false);
    }

    /// Ends every present connection on both sides. What was on its way is lost.
    pub fn cut(&self, close: Close) {
        for link in self.shared.links() {
            link.end(link::Ending::Both(close));
        }
    }

    /// Ends every present connection on the client's side only. Requests that are delayed or held are still delivered in their time:
    /// the client gave up, its command did not.
    pub fn hang_up(&self, close: Close) {
        for link in self.shared.links() {
            link.end(link::Ending::Client(close));
        }
    }

    /// Whether new connections are refused, as by a machine where nobody listens. Present ones go on.
    pub fn refuse(&self, refuse: bool) {
        let (done, is_done) = mpsc::channel();
        let order = if refuse {
            Order::Refuse(done)
        } else {
            Order::Listen(done)
        };
        self.orders.send(order).expect("the proxy's thread runs");
        is_done.recv().expect("the proxy's thread runs");
    }

    /// Where new connections lead to from now on.
    pub fn redirect(&self, upstream: SocketAddr) {
        self.shared.change(|state| state.upstream = upstream);
    }

    // --- Faults on single commands ----------------------------------------------------------------------------------

    /// Does `action` to the next command that `wanted` accepts, on any connection, once.
    ///
    /// Rules are asked in the order they were made; the first that accepts a command decides. `wanted` must not call the proxy.
    pub fn on_next(&self, wanted: impl Fn(&Command) -> bool + Send + 'static, action: Action) -> Hit {
        self.rule(0, Some(1), Box::new(wanted), action)
    }

    /// Does `action` to the `n`-th command (from 1) that `wanted` accepts, once.
    pub fn on_nth(&self, n: usize, wanted: impl Fn(&Command) -> bool + Send + 'static, action: Action) -> Hit {
        self.rule(
            n.checked_sub(1).expect("commands are counted from 1"),
            Some(1),
            Box::new(wanted),
            action,
        )
    }

    /// Does `action` to every command that `wanted` accepts.
    pub fn on_each(&self, wanted: impl Fn(&Command) -> bool + Send + 'static, action: Action) -> Hit {
        self.rule(0, None, Box::new(wanted), action)
    }

    fn rule(&self, skip: usize, left: Option<usize>, wanted: script::Wanted, action: Action) -> Hit {
        let mut id = 0;
        self.shared.change(|state| {
            id = state.next_rule;
            state.next_rule += 1;
            state.hits.insert(id, 0);
            state.rules.push(Rule {
                id,
                skip,
                left,
                wanted,
                action,
            });
        });
        Hit {
            id,
            shared: Arc::clone(&self.shared),
        }
    }

    // --- What passed ------------------------------------------------------------------------------------------------

    /// Every request so far, in the order of arrival, whatever became of it.
    #[must_use]
    pub fn commands(&self) -> Vec<Command> {
        self.shared.state().log.clone()
    }

    /// How many requests there were so far; `&commands()[mark..]` are those after it.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.shared.state().log.len()
    }

    /// How many requests so far `wanted` accepts.
    #[must_use]
    pub fn count(&self, wanted: impl Fn(&Command) -> bool) -> usize {
        self.shared.state().log.iter().filter(|command| wanted(command)).count()
    }

    /// The first request that `wanted` accepts, past ones included; waits for it if need be.
    pub async fn wait_for(&self, what: &str, wanted: impl Fn(&Command) -> bool) -> Command {
        self.wait_after(0, what, wanted).await
    }

    /// The first request after a [`mark`](Self::mark) that `wanted` accepts; waits for it if need be.
    pub async fn wait_after(&self, mark: usize, what: &str, wanted: impl Fn(&Command) -> bool) -> Command {
        let found = || {
            let found = self
                .shared
                .state()
                .log
                .iter()
                .skip(mark)
                .find(|command| wanted(command))
                .cloned();
            async move { found }
        };
        eventually_some(what, found).await
    }

    /// How many clients are connected now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().links.len()
    }

    /// How many connections there have been.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Hit {
    /// Waits until the action has been done at least once. An action on a reply is done when the server's reply has arrived,
    /// so by then the server has executed or refused the command.
    pub async fn done(&self) {
        self.done_times(1).await;
    }

    /// Waits until the action has been done at least `times` times.
    pub async fn done_times(&self, times: usize) {
        let started = Instant::now();
        while self.times() < times {
            if started.elapsed() >= PATIENCE {
                let log = self.shared.state().log.clone();
                let latest = log.iter().skip(log.len().saturating_sub(20));
                // No more of each, since some are scripts.
                let latest: Vec<String> = latest
                    .map(|command| command.to_string().chars().take(300).collect())
                    .collect();
                panic!(
                    "waited {PATIENCE:?} in vain: the proxy's rule to be used; the latest commands:\n{}",
                    latest.join("\n")
                );
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// How many times the action has been done.
    #[must_use]
    pub fn times(&self) -> usize {
        self.shared.state().hits[&self.id]
    }
}

// --- Inside ------------------------------------------------------------------------------------------------------------

enum Order {
    Refuse(mpsc::Sender<()>),
    Listen(mpsc::Sender<()>),
    Stop,
}

/// What the test sets and the connections obey.
struct Shared {
    state: Mutex<State>,
    /// Wakes everything that waits at a gate.
    changed: watch::Sender<()>,
}

struct State {
    upstream: SocketAddr,
    requests: Flow,
    replies: Flow,
    pushes: bool,
    releases: u64,
    rules: Vec<Rule>,
    next_rule: usize,
    hits: HashMap<usize, usize>,
    log: Vec<Command>,
    links: HashMap<u64, Arc<Link>>,
    accepted: u64,
}

impl Shared {
    fn new(upstream: SocketAddr) -> Self {
        Self {
            state: Mutex::new(State {
                upstream,
                requests: Flow::Pass,
                replies: Flow::Pass,
                pushes: true,
                releases: 0,
                rules: Vec::new(),
                next_rule: 0,
                hits: HashMap::new(),
                log: Vec::new(),
                links: HashMap::new(),
                accepted: 0,
            }),
            changed: watch::Sender::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.send_replace(());
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.state().links.values().cloned().collect()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>, mut orders: channel::UnboundedReceiver<Order>) {
    let addr = listener.local_addr().expect("a bound socket has an address");
    let mut listener = Some(TcpListener::from_std(listener).expect("a non-blocking socket"));
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::Refuse(done)) => {
                    if let Some(listener) = listener.take() {
                        // Closing is not enough: where a parallel test is just starting a process, that one holds the socket
                        // until its exec, and the kernel would go on accepting.
                        rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).expect("a listening socket can be shut down");
                    }
                    let _ = done.send(());
                }
                Some(Order::Listen(done)) => {
                    if listener.is_none() {
                        listener = Some(TcpListener::bind(addr).await.expect("the proxy's port is still free"));
                    }
                    let _ = done.send(());
                }
                Some(Order::Stop) | None => return,
            },
            client = accept(listener.as_ref()) => {
                tokio::spawn(link::run(client, Arc::clone(&shared)));
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    match listener {
        Some(listener) => loop {
            if let Ok((client, _)) = listener.accept().await {
                return client;
            }
        },
        None => std::future::pending().await,
    }
}
