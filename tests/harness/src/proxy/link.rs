//! One connection through the proxy: two readers that cut the byte streams into messages, and two writers that wait at
//! the gates.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::script::{Command, decide};
use super::{Action, Close, Flow, Shared};
use crate::clock::Stamp;
use crate::resp;

/// What is read at once: many small messages, as a pipelining client sends them.
const CHUNK: usize = 16 * 1024;

/// How far a connection was ended by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// The client's side is closed; what is on its way to the server still gets there.
    Client(Close),
    Both(Close),
}

pub(super) struct Link {
    id: u64,
    shared: Arc<Shared>,
    ending: watch::Sender<Ending>,
    to_server: mpsc::UnboundedSender<Item>,
    to_client: mpsc::UnboundedSender<Item>,
    awaited: Mutex<Awaited>,
}

/// What the server still has to answer.
#[derive(Default)]
struct Awaited {
    replies: VecDeque<Awaits>,
    resp3: bool,
    /// Replies can no longer be told apart; they pass as bytes.
    opaque: bool,
}

/// What becomes of the next reply.
enum Awaits {
    /// The reply to the request at this place of the log.
    Reply {
        log: usize,
        rule: Option<usize>,
        fate: Fate,
    },
    /// An answer of the proxy's own, in its turn.
    Ours(Vec<u8>),
    /// Pushes that confirm a subscription, or one error in their place.
    Confirmations(usize),
}

#[derive(Clone)]
enum Fate {
    Pass,
    Delay(Duration),
    Hold,
    Lose,
    Close(Close),
    Skip,
    Replace(Vec<u8>),
}

struct Item {
    arrived: Instant,
    gate: Gate,
    load: Load,
}

#[derive(Clone, Copy)]
enum Gate {
    Open,
    Delay(Duration),
    /// Until there were more releases than these.
    Held(u64),
    Lost,
}

enum Load {
    Bytes(Vec<u8>),
    Request(Vec<u8>, Vec<Awaits>),
    Answer(Vec<u8>),
    End(Close),
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToClient,
}

pub(super) async fn run(client: TcpStream, shared: Arc<Shared>) {
    let upstream = shared.state().upstream;
    let Ok(server) = TcpStream::connect(upstream).await else {
        let _ = client.set_zero_linger();
        return;
    };
    // Errors only cost speed.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));

    let (to_server, for_server) = mpsc::unbounded_channel();
    let (to_client, for_client) = mpsc::unbounded_channel();
    let link = {
        let mut state = shared.state();
        state.accepted += 1;
        let id = state.accepted;
        let link = Arc::new(Link {
            id,
            shared: Arc::clone(&shared),
            ending: watch::Sender::new(Ending::No),
            to_server,
            to_client,
            awaited: Mutex::default(),
        });
        state.links.insert(id, Arc::clone(&link));
        link
    };
    let (from_client, client) = client.into_split();
    let (from_server, server) = server.into_split();
    tokio::spawn(Arc::clone(&link).write_server(server, for_server));
    tokio::spawn(Arc::clone(&link).write_client(client, for_client));
    tokio::spawn(Arc::clone(&link).read_server(from_server));
    link.read_client(from_client).await;
}

impl Link {
    /// A first ending stands, unless a later one goes further.
    pub(super) fn end(&self, ending: Ending) {
        self.ending.send_if_modified(|now| {
            let further = matches!((*now, ending), (Ending::No, _) | (Ending::Client(_), Ending::Both(_)));
            if further {
                *now = ending;
            }
            further
        });
    }

    /// Returns once the client's side is to be closed, with how.
    async fn client_ended(&self) -> Close {
        match self
            .ending
            .subscribe()
            .wait_for(|ending| *ending != Ending::No)
            .await
            .as_deref()
        {
            Ok(Ending::Client(close) | Ending::Both(close)) => *close,
            _ => Close::Fin,
        }
    }

    /// Returns once the server's side is to be closed as well.
    async fn both_ended(&self) {
        // The sender lives in `self`.
        let _ = self
            .ending
            .subscribe()
            .wait_for(|ending| matches!(ending, Ending::Both(_)))
            .await;
    }

    // --- Requests -----------------------------------------------------------------------------------------------------

    async fn read_client(self: Arc<Self>, mut half: OwnedReadHalf) {
        let mut bytes = Vec::new();
        loop {
            bytes.reserve(CHUNK);
            tokio::select! {
                biased;
                _ = self.client_ended() => break,
                read = half.read_buf(&mut bytes) => match read {
                    Ok(1..) => self.take_requests(&mut bytes),
                    Ok(0) | Err(_) => break,
                },
            }
        }
        self.shared.state().links.remove(&self.id);
        send(&self.to_server, Gate::Open, Load::End(Close::Fin));
    }

    fn take_requests(&self, bytes: &mut Vec<u8>) {
        // An action may have closed the connection: what was pipelined behind it is lost.
        while *self.ending.borrow() == Ending::No {
            let Some(message) = self.next_message(bytes) else {
                return;
            };
            self.take_request(message);
        }
    }

    fn take_request(&self, message: Vec<u8>) {
        let Some(arguments) = (!self.awaited().opaque).then(|| resp::arguments(&message)).flatten() else {
            send(&self.to_server, Gate::Open, Load::Bytes(message));
            return;
        };
        let command = Command {
            connection: self.id,
            at: Stamp::now(),
            arguments,
            reply: None,
        };
        let (rule, action, log, releases) = {
            let mut state = self.shared.state();
            let (rule, action) = decide(&mut state.rules, &command).unzip();
            state.log.push(command.clone());
            (
                rule,
                action.unwrap_or(Action::Pass),
                state.log.len() - 1,
                state.releases,
            )
        };

        let mut awaits = self.awaits(&command, log, rule, &action);
        let mut gate = Gate::Open;
        match action {
            Action::Delay(delay) => gate = Gate::Delay(delay),
            Action::Hold | Action::HoldThenClose(_) => gate = Gate::Held(releases),
            Action::LoseRequest => gate = Gate::Lost,
            Action::CloseBefore(close) => {
                self.end(Ending::Client(close));
                self.used(rule);
                return;
            }
            Action::Answer(answer) => {
                send(&self.to_server, Gate::Open, Load::Answer(answer));
                self.used(rule);
                return;
            }
            Action::Duplicate => {
                send(&self.to_server, Gate::Open, Load::Request(message.clone(), awaits));
                awaits = vec![Awaits::Reply {
                    log,
                    rule: None,
                    fate: Fate::Skip,
                }];
            }
            Action::Pass
            | Action::DelayReply(_)
            | Action::HoldReply
            | Action::LoseReply
            | Action::CloseAfter(_)
            | Action::SkipReply
            | Action::AnswerInstead(_) => {}
        }
        send(&self.to_server, gate, Load::Request(message, awaits));
        match action {
            Action::HoldThenClose(close) => {
                self.end(Ending::Client(close));
                self.used(rule);
            }
            Action::Pass | Action::Delay(_) | Action::Hold | Action::LoseRequest | Action::Duplicate => self.used(rule),
            // The others are done when the reply comes.
            _ => {}
        }
    }

    /// What the server will send for this request.
    fn awaits(&self, command: &Command, log: usize, rule: Option<usize>, action: &Action) -> Vec<Awaits> {
        let mut awaited = self.awaited();
        if command.is("HELLO 3") {
            awaited.resp3 = true;
        }
        let subscribes = [
            "SUBSCRIBE",
            "PSUBSCRIBE",
            "SSUBSCRIBE",
            "UNSUBSCRIBE",
            "PUNSUBSCRIBE",
            "SUNSUBSCRIBE",
        ];
        if subscribes.iter().any(|name| command.is(name)) && awaited.resp3 {
            return vec![Awaits::Confirmations(command.arguments.len().saturating_sub(1).max(1))];
        }
        if subscribes[..3].iter().any(|name| command.is(name)) || command.is("MONITOR") {
            awaited.opaque = true;
            return Vec::new();
        }
        let fate = match action {
            Action::DelayReply(delay) => Fate::Delay(*delay),
            Action::HoldReply => Fate::Hold,
            Action::LoseReply => Fate::Lose,
            Action::CloseAfter(close) => Fate::Close(*close),
            Action::SkipReply => Fate::Skip,
            Action::AnswerInstead(answer) => Fate::Replace(answer.clone()),
            _ => Fate::Pass,
        };
        let rule = if matches!(fate, Fate::Pass) { None } else { rule };
        vec![Awaits::Reply { log, rule, fate }]
    }

    async fn write_server(self: Arc<Self>, mut half: OwnedWriteHalf, mut items: mpsc::UnboundedReceiver<Item>) {
        let mut lost = false;
        loop {
            tokio::select! {
                biased;
                () = self.both_ended() => return,
                item = next(&mut items) => {
                    lost = lost || self.lost_at_gate(Direction::ToServer, &item).await;
                    if lost {
                        // Not even the end of the connection gets through.
                        continue;
                    }
                    if matches!(*self.ending.borrow(), Ending::Both(_)) {
                        return;
                    }
                    let written = match item.load {
                        Load::Bytes(bytes) => half.write_all(&bytes).await,
                        Load::Request(bytes, awaits) => {
                            // Before the write: the reply may be there right after it.
                            self.awaited().replies.extend(awaits);
                            half.write_all(&bytes).await
                        }
                        Load::Answer(answer) => {
                            self.awaited().replies.push_back(Awaits::Ours(answer));
                            self.give_own_answers();
                            Ok(())
                        }
                        Load::End(_) => return,
                    };
                    if written.is_err() {
                        return;
                    }
                }
            }
        }
    }

    // --- Replies ------------------------------------------------------------------------------------------------------

    async fn read_server(self: Arc<Self>, mut half: OwnedReadHalf) {
        let mut bytes = Vec::new();
        let close = loop {
            bytes.reserve(CHUNK);
            tokio::select! {
                biased;
                () = self.both_ended() => return,
                read = half.read_buf(&mut bytes) => match read {
                    Ok(1..) => self.take_replies(&mut bytes),
                    Ok(0) => break Close::Fin,
                    Err(_) => break Close::Reset,
                },
            }
        };
        send(&self.to_client, Gate::Open, Load::End(close));
    }

    fn take_replies(&self, bytes: &mut Vec<u8>) {
        while let Some(message) = self.next_message(bytes) {
            self.take_reply(message);
        }
    }

    /// Takes the first whole message from the front. Once the bytes are no RESP, all of them are one.
    fn next_message(&self, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
        if bytes.is_empty() {
            return None;
        }
        if !self.awaited().opaque {
            match resp::message_length(bytes) {
                Ok(length) => {
                    let rest = bytes.split_off(length?);
                    return Some(std::mem::replace(bytes, rest));
                }
                Err(resp::Malformed) => self.awaited().opaque = true,
            }
        }
        Some(std::mem::take(bytes))
    }

    fn take_reply(&self, message: Vec<u8>) {
        if resp::is_push(&message) {
            self.confirm(&message);
            if self.shared.state().pushes {
                send(&self.to_client, Gate::Open, Load::Bytes(message));
            }
            self.give_own_answers();
            return;
        }
        let awaits = if self.awaited().opaque {
            None
        } else {
            self.awaited().replies.pop_front()
        };
        match awaits {
            Some(Awaits::Reply { log, rule, fate }) => {
                let releases = {
                    let mut state = self.shared.state();
                    let recorded = &mut state.log[log].reply;
                    // A duplicate's second reply does not replace the first.
                    if recorded.is_none() {
                        *recorded = Some((Stamp::now(), message.clone()));
                    }
                    state.releases
                };
                let (gate, load) = match fate {
                    Fate::Pass => (Gate::Open, Some(Load::Bytes(message))),
                    Fate::Delay(delay) => (Gate::Delay(delay), Some(Load::Bytes(message))),
                    Fate::Hold => (Gate::Held(releases), Some(Load::Bytes(message))),
                    Fate::Lose => (Gate::Lost, Some(Load::Bytes(message))),
                    Fate::Close(close) => (Gate::Open, Some(Load::End(close))),
                    Fate::Replace(answer) => (Gate::Open, Some(Load::Bytes(answer))),
                    Fate::Skip => (Gate::Open, None),
                };
                if let Some(load) = load {
                    send(&self.to_client, gate, load);
                }
                self.used(rule);
            }
            // An error in place of a confirmation, or something nobody asked for.
            Some(Awaits::Confirmations(_)) | None => send(&self.to_client, Gate::Open, Load::Bytes(message)),
            Some(Awaits::Ours(_)) => unreachable!("given to the client as soon as it is first in the queue"),
        }
        self.give_own_answers();
    }

    fn confirm(&self, push: &[u8]) {
        let confirms = push.windows(9).take(32).any(|window| window == b"subscribe");
        let mut awaited = self.awaited();
        if let (true, Some(Awaits::Confirmations(left))) = (confirms, awaited.replies.front_mut()) {
            *left -= 1;
            if *left == 0 {
                awaited.replies.pop_front();
            }
        }
    }

    fn give_own_answers(&self) {
        let mut awaited = self.awaited();
        while let Some(Awaits::Ours(answer)) = awaited.replies.front_mut() {
            let answer = std::mem::take(answer);
            send(&self.to_client, Gate::Open, Load::Bytes(answer));
            awaited.replies.pop_front();
        }
    }

    async fn write_client(self: Arc<Self>, mut half: OwnedWriteHalf, mut items: mpsc::UnboundedReceiver<Item>) {
        let mut lost = false;
        let close = loop {
            tokio::select! {
                biased;
                close = self.client_ended() => break close,
                item = next(&mut items) => {
                    lost = lost || self.lost_at_gate(Direction::ToClient, &item).await;
                    if lost || *self.ending.borrow() != Ending::No {
                        continue;
                    }
                    let written = match item.load {
                        Load::Bytes(bytes) | Load::Request(bytes, _) | Load::Answer(bytes) => half.write_all(&bytes).await,
                        Load::End(close) => {
                            self.end(Ending::Client(close));
                            continue;
                        }
                    };
                    if written.is_err() {
                        self.end(Ending::Client(Close::Fin));
                    }
                }
            }
        };
        if close == Close::Reset {
            // The reset goes out when the reader drops its half too, provided that no FIN went first.
            let _ = half.as_ref().set_zero_linger();
            half.forget();
        }
    }

    // --- Gates --------------------------------------------------------------------------------------------------------

    /// Waits until the item may pass; true when it never will.
    async fn lost_at_gate(&self, direction: Direction, item: &Item) -> bool {
        let mut changed = self.shared.changed.subscribe();
        loop {
            // Read anew each time: the test may have changed its mind.
            let (flow, releases) = {
                let state = self.shared.state();
                let flow = match direction {
                    Direction::ToServer => state.requests,
                    Direction::ToClient => state.replies,
                };
                (flow, state.releases)
            };
            let due = match (item.gate, flow) {
                (Gate::Lost, _) | (_, Flow::Lose) => return true,
                (Gate::Held(before), _) if releases == before => None,
                (_, Flow::Hold) => None,
                (Gate::Delay(one), Flow::Delay(all)) => Some(item.arrived + one.max(all)),
                (Gate::Delay(delay), _) | (_, Flow::Delay(delay)) => Some(item.arrived + delay),
                _ => return false,
            };
            let gone = async {
                match direction {
                    Direction::ToServer => self.both_ended().await,
                    Direction::ToClient => _ = self.client_ended().await,
                }
            };
            tokio::select! {
                biased;
                () = gone => return false,
                _ = changed.changed() => {}
                () = until(due) => return false,
            }
        }
    }

    fn used(&self, rule: Option<usize>) {
        if let Some(rule) = rule {
            *self.shared.state().hits.entry(rule).or_default() += 1;
        }
    }

    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send(queue: &mpsc::UnboundedSender<Item>, gate: Gate, load: Load) {
    // The writer is gone when its side has ended; then nobody misses the item.
    let _ = queue.send(Item {
        arrived: Instant::now(),
        gate,
        load,
    });
}

async fn next(items: &mut mpsc::UnboundedReceiver<Item>) -> Item {
    match items.recv().await {
        Some(item) => item,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
