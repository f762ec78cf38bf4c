//! One attempt to get the votes of a majority.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Quorum;
use super::ballot::{Answer, Ballot};
use super::count::{Count, Vote, count, majority};
use super::requests::{Request, Requests, answers_within};
use crate::host::Moment;
use crate::store::holder::Holder;
use crate::store::{
    Abandoned, AcquireAllRequest, AcquireRequest, Attempt, AttemptAll, Effect, FencingToken, Limited, Ownership,
    Receipt, ReleaseRequest, StoreError,
};

/// The time after which a call that is given up tells which masters owe it an answer.
const OWING_FOR: Duration = Duration::from_millis(100);

/// The time for which a call waits until its votes are given back.
pub(super) const GIVEN_BACK_WITHIN: Duration = Duration::from_millis(20);

/// The shortest time limit for one master's answer.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(100);

/// The terms on which an attempt asks for votes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) ttl: Duration,
    pub(super) fence: bool,
    pub(super) tell_remaining: bool,
    /// The receipt of the runtime's request.
    pub(super) receipt: &'a Receipt,
}

/// The masters to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    All,
    /// The first one that is open. The others count as if they owed an answer.
    First,
    /// All but this one, whose vote is there already.
    AllBut(usize),
}

/// A master's answer about a busy key and its holder.
#[derive(Debug)]
pub(super) struct Seen {
    /// The index of the busy key.
    pub(super) key: usize,
    pub(super) holder: Option<Holder>,
    pub(super) remaining: Option<Duration>,
}

/// The answers to an attempt.
pub(super) struct Tally {
    pub(super) votes: Vec<Vote>,
    /// The tokens that masters have given along with their votes.
    fences: Vec<(usize, FencingToken)>,
    seen: Vec<Option<Seen>>,
    failures: Vec<Option<StoreError>>,
}

impl Tally {
    fn of(masters: usize) -> Self {
        Self {
            votes: vec![Vote::None; masters],
            fences: Vec::new(),
            seen: (0..masters).map(|_| None).collect(),
            failures: (0..masters).map(|_| None).collect(),
        }
    }

    pub(super) fn set(&mut self, at: usize, vote: Vote) {
        if let Some(place) = self.votes.get_mut(at) {
            *place = vote;
        }
    }

    fn vote(&self, at: usize) -> Vote {
        self.votes.get(at).copied().unwrap_or_default()
    }

    /// Adds the token of a vote that was there before the attempt.
    pub(super) fn add_fence(&mut self, at: usize, fence: Option<FencingToken>) {
        self.fences.extend(fence.map(|fence| (at, fence)));
    }

    /// Returns the first master in reach, if it has granted its vote.
    pub(super) fn first_granted(&self) -> Option<usize> {
        let first = self.votes.iter().position(|vote| *vote != Vote::None)?;
        (self.vote(first) == Vote::Granted).then_some(first)
    }

    /// Returns the token that came with a vote.
    pub(super) fn fence_of(&self, at: usize) -> Option<FencingToken> {
        self.fences.iter().find(|(its, _)| *its == at).map(|(_, fence)| *fence)
    }

    /// Takes out the answer of a master where a key is busy, or an empty one.
    pub(super) fn seen_at(&mut self, at: usize) -> Seen {
        let seen = self.seen.get_mut(at).and_then(Option::take);
        seen.unwrap_or(Seen {
            key: 0,
            holder: None,
            remaining: None,
        })
    }
}

/// The requests of an attempt. If dropped while masters owe an answer, has them asked whether they
/// answer at all: a call with little time left must not find the same silent master again and again.
///
/// The runtime gives up a call whose time is over, and tells the reason that it finds in the receipt.
struct Asking<'a> {
    quorum: &'a Arc<Quorum>,
    receipt: &'a Receipt,
    requests: Requests<Answer>,
    began: Moment,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.requests.is_empty() || self.quorum.host.is_forked() {
            return;
        }
        let mut owing: Vec<_> = self.requests.owing().collect();
        owing.sort_unstable();
        let names = owing.iter().filter_map(|at| self.quorum.masters.get(*at));
        let names: Vec<_> = names.map(|master| &*master.name).collect();
        let text = format!("no answer in time from masters of the quorum: {}", names.join(", "));
        self.receipt.refused(Some(StoreError::unknown(text)));
        if self.quorum.now().since(self.began) >= OWING_FOR {
            for at in owing {
                self.quorum.suspect(at);
            }
        }
    }
}

/// The advice for masters that may have forgotten votes.
const WAIT_OR_OPEN: &str = "wait until those open that may have forgotten locks, or, if no process holds a lock, run `lockctl open-quorum --force`";

impl Quorum {
    /// Returns the time limit for one master's answer, which is small against the lease, unless the lease is
    /// shorter than what a connection or a busy machine may take.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        (self.response_timeout / 2).min((ttl / 4).max(SHORTEST_PATIENCE))
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.masters.len())
    }

    /// Asks masters that are open for their votes, and returns as soon as the answers decide. The requests
    /// that are not answered by then are returned as well.
    pub(super) async fn ask_masters(
        self: &Arc<Self>,
        ballot: &Arc<Ballot>,
        wanted: Wanted<'_>,
        whom: Whom,
    ) -> (Count, Tally, Requests<Answer>) {
        let mut tally = Tally::of(self.masters.len());
        let mut asking = Asking {
            quorum: self,
            receipt: wanted.receipt,
            requests: Requests::with_capacity(self.masters.len()),
            began: self.now(),
        };
        for (at, master) in self.masters.iter().enumerate() {
            if whom == Whom::AllBut(at) {
                tally.set(at, Vote::Granted);
            } else if whom == Whom::First && !asking.requests.is_empty() {
                // Asked next, if the first one gives its vote.
                tally.set(at, Vote::Asked);
            } else if !master.is_open() {
                if let Some(place) = tally.failures.get_mut(at) {
                    *place = master.reason();
                }
            } else if let Some(receipt) = ballot.ask(at) {
                tally.set(at, Vote::Asked);
                asking.requests.add(at, self.request(at, ballot, receipt, wanted));
            }
        }
        let timer = self.timer();
        let mut limit = self.patience(wanted.ttl);
        let mut is_late = false;
        let asked = asking.requests.owing().count();
        loop {
            let counted = count(&tally.votes);
            if counted != Count::Open || asking.requests.is_empty() || is_late {
                let requests = std::mem::take(&mut asking.requests);
                return (counted, tally, requests);
            }
            let left = limit.saturating_sub(self.now().since(asking.began));
            let answers = answers_within(&self.host, timer, left, &mut asking.requests).await;
            let Some(answers) = answers else {
                // One that is silent while others answer is skipped. If none answers, that is due to this process or
                // its network rather than to the masters.
                if asking.requests.owing().count() == asked && limit < self.response_timeout {
                    limit = self.response_timeout;
                    continue;
                }
                // They are skipped from now on, so a silent master delays one call.
                is_late = true;
                for at in asking.requests.owing() {
                    let error = StoreError::unknown(format!("no answer within {limit:?}"));
                    self.has_failed(at, &error);
                    tally.set(at, Vote::None);
                    if let Some(place) = tally.failures.get_mut(at) {
                        *place = Some(error);
                    }
                }
                continue;
            };
            for (at, answer) in answers {
                match answer {
                    Answer::Granted(fence) => {
                        tally.set(at, Vote::Granted);
                        tally.add_fence(at, fence);
                    }
                    Answer::Busy { key, holder, remaining } => {
                        tally.set(at, Vote::Busy);
                        if let Some(place) = tally.seen.get_mut(at) {
                            *place = Some(Seen { key, holder, remaining });
                        }
                    }
                    Answer::Failed(error) => {
                        self.has_failed(at, &error);
                        tally.set(at, Vote::None);
                        if let Some(place) = tally.failures.get_mut(at) {
                            *place = Some(error);
                        }
                    }
                }
            }
        }
    }

    /// Returns the request to one master. Its receipt tells whether it was sent and answered.
    fn request(&self, at: usize, ballot: &Ballot, receipt: Arc<Receipt>, wanted: Wanted<'_>) -> Request<Answer> {
        let Some(master) = self.masters.get(at).cloned() else {
            return Box::pin(std::future::pending());
        };
        let value = ballot.value_at(at);
        // Not the ballot, which keeps the request if it is late.
        let keys = Arc::clone(&ballot.keys);
        let Wanted {
            ttl,
            fence,
            tell_remaining,
            receipt: _,
        } = wanted;
        Box::pin(async move {
            let answer = if let [key] = &*keys {
                let request = AcquireRequest {
                    key,
                    value: &value,
                    ttl,
                    fence,
                    tell_remaining,
                    fair: false,
                    receipt: &receipt,
                };
                master.access.acquire(&request).await.map(|attempt| match attempt {
                    Attempt::Granted { fence } => Answer::Granted(fence),
                    Attempt::Busy { holder, remaining } => Answer::Busy {
                        key: 0,
                        holder,
                        remaining,
                    },
                })
            } else {
                let store = &master.access.store;
                let first = keys.first().map_or("", |key| &**key);
                if let Some(ready) = store.ready(Limited::Acquires, first, Duration::MAX)
                    && let Err(error) = ready.await
                {
                    return Answer::Failed(error);
                }
                let request = AcquireAllRequest {
                    keys: &keys,
                    value: &value,
                    former: None,
                    keep: None,
                    ttl,
                    fence,
                    receipt: &receipt,
                };
                store.acquire_all(&request).await.map(|attempt| match attempt {
                    AttemptAll::Granted { fence } => Answer::Granted(fence),
                    AttemptAll::Busy {
                        at: key,
                        holder,
                        remaining,
                    } => Answer::Busy { key, holder, remaining },
                })
            };
            match answer {
                Ok(answer) => {
                    receipt.answered();
                    answer
                }
                Err(error) => {
                    if error.effect() == Effect::None {
                        receipt.answered();
                    }
                    Answer::Failed(error)
                }
            }
        })
    }

    /// Gives the votes of an attempt back, but for that of `kept`. Masters that do not answer soon are left to
    /// the lock thread.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        ballot: &Arc<Ballot>,
        tally: &Tally,
        mut requests: Requests<Answer>,
        kept: Option<usize>,
        ttl: Duration,
    ) {
        let mut releases = Vec::new();
        for at in (0..self.masters.len()).filter(|at| kept != Some(*at)) {
            let had = ballot.had(at);
            let receipt = ballot.asked(at).or_else(|| had.then(Arc::default));
            let Some(receipt) = receipt else { continue };
            let request = requests.take(at);
            // One that is busy has released what the value had there.
            let may_hold = match tally.vote(at) {
                Vote::Granted => true,
                Vote::Busy => false,
                Vote::None | Vote::Asked => had || receipt.unanswered_on().is_some(),
            };
            if request.is_some() || may_hold {
                let given_up = self.given_up(ballot, at, Some(&receipt), ttl);
                releases.push(Arc::clone(self).take_vote_back(at, request, receipt, given_up, had));
            }
        }
        if releases.is_empty() {
            return;
        }
        let mut all = Box::pin(join_all(releases));
        let timer = self.timer();
        if self.is_immediate {
            let _ = all.await;
        } else if self
            .host
            .timeout(timer, GIVEN_BACK_WITHIN, all.as_mut())
            .await
            .is_none()
        {
            // Without a task, the votes end with their leases.
            self.host.spawn_by(timer, all);
        }
    }

    /// Takes one vote back, once the request for it is answered.
    async fn take_vote_back(
        self: Arc<Self>,
        at: usize,
        request: Option<Request<Answer>>,
        receipt: Arc<Receipt>,
        mut given_up: Abandoned,
        had: bool,
    ) {
        let Some(master) = self.masters.get(at) else { return };
        let timer = self.timer();
        if let Some(request) = request {
            match self.host.timeout(timer, self.response_timeout, request).await {
                Some(Answer::Busy { .. }) => return,
                Some(Answer::Failed(error)) => {
                    self.has_failed(at, &error);
                    let has_taken = receipt.connection().is_some() && error.effect() != Effect::None;
                    if !has_taken && !had {
                        return;
                    }
                }
                Some(Answer::Granted(_)) | None => {}
            }
        }
        given_up.unanswered_on = receipt.unanswered_on();
        if given_up.unanswered_on.is_none() {
            let mut is_done = true;
            for key in &given_up.keys {
                let receipt = Receipt::default();
                let release = ReleaseRequest::plain(key, &given_up.value, &receipt);
                is_done &= master.access.release(timer, &release).await.is_ok();
            }
            if is_done {
                return;
            }
        }
        self.abandon_at(at, &given_up);
    }

    pub(super) fn abandon_at(&self, at: usize, abandoned: &Abandoned) {
        if let Some(master) = self.masters.get(at) {
            master.access.abandon(abandoned);
        }
    }

    /// Returns the token to which a majority has raised its counters, by the second phase of fencing: see
    /// [`fence`](super::held).
    pub(super) async fn settle_fence(
        self: &Arc<Self>,
        ballot: &Arc<Ballot>,
        tally: &Tally,
    ) -> Result<FencingToken, StoreError> {
        match self.raise_fences(ballot, &tally.fences).await? {
            Ok(fence) => Ok(fence),
            Err(Ownership::Gone | Ownership::Foreign | Ownership::Owned) => Err(StoreError::unknown(
                "the lock was lost before a majority of the masters knew its fencing token",
            )),
        }
    }

    /// Returns the error of a call that finds no majority, with the reason of each master that cannot vote.
    pub(super) fn too_few(&self, tally: Option<&mut Tally>) -> StoreError {
        let mut failures: Vec<Option<StoreError>> = match tally {
            Some(tally) => std::mem::take(&mut tally.failures),
            None => Vec::new(),
        };
        failures.resize(self.masters.len(), None);
        for (failure, master) in failures.iter_mut().zip(&self.masters) {
            if failure.is_none() {
                *failure = master.reason();
            }
        }
        let permanent = failures.iter().flatten().filter(|error| error.is_permanent());
        if permanent.clone().count() > self.masters.len() - self.majority()
            && let Some(error) = permanent.clone().next()
        {
            return error.clone();
        }
        let said = self.masters.iter().zip(&failures).filter_map(|(master, failure)| {
            let failure = failure.as_ref()?;
            Some(format!("{}: {}", master.name, failure.cause()))
        });
        let said: Vec<_> = said.collect();
        let all = self.masters.len();
        let error = StoreError::transient(format!(
            "{} of {all} masters can vote, and {} are needed; {}",
            all - said.len(),
            self.majority(),
            said.join("; ")
        ));
        let is_closed = |error: &&StoreError| error.opens_in().is_some_and(|left| !left.is_zero());
        let closed = failures.iter().flatten().filter(is_closed).count();
        let error = error.advise(match closed {
            0 => "check that the masters are up and reachable, then try again".to_owned(),
            _ if closed == said.len() => format!("{WAIT_OR_OPEN}, then try again"),
            _ => format!("check that the other masters are up and reachable; {WAIT_OR_OPEN}, then try again"),
        });
        if failures.iter().flatten().any(StoreError::is_answer) {
            error.answered()
        } else {
            error
        }
    }
}
