//! Locks that are held: renewals and checks by a majority, the return of lost votes, release and fencing.

use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::attempt::GIVEN_BACK_WITHIN;
use super::ballot::{Answer, Ballot};
use super::requests::{Requests, answers_within};
use crate::store::{
    Abandoned, AcquireRequest, Attempt, Fence, FencingToken, HolderValue, Ownership, Queued, Receipt, ReleaseRequest,
    RenewRequest, StoreError,
};

type Verdicts = Result<Vec<Option<Ownership>>, StoreError>;

/// The verdicts of the masters on one lock.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    owned: usize,
    gone: usize,
    foreign: usize,
}

impl Verdict {
    fn add(&mut self, ownership: &Ownership) {
        match ownership {
            Ownership::Owned => self.owned += 1,
            Ownership::Gone => self.gone += 1,
            Ownership::Foreign => self.foreign += 1,
        }
    }

    /// Returns the way in which the lock was lost, as far as the verdicts show.
    fn lost(self) -> Ownership {
        if self.foreign > 0 {
            Ownership::Foreign
        } else {
            Ownership::Gone
        }
    }

    /// Returns the verdict of a majority: that the lock is held, or that no majority can have it any more.
    /// `None` if more answers are needed.
    fn decided(self, masters: usize, majority: usize) -> Option<Ownership> {
        if self.owned >= majority {
            return Some(Ownership::Owned);
        }
        if self.gone + self.foreign <= masters - majority {
            return None;
        }
        Some(self.lost())
    }
}

/// The renewal or check of several locks at all masters.
struct Round {
    quorum: Arc<Quorum>,
    requests: Vec<RenewRequest>,
    ballots: Vec<Option<Arc<Ballot>>>,
    verdicts: Vec<Verdict>,
    /// The votes that were lost: the master, and the index of the request.
    gone: Vec<(usize, usize)>,
    under_way: Requests<Verdicts>,
    limit: Duration,
}

impl Round {
    fn begin(quorum: &Arc<Quorum>, requests: &[RenewRequest]) -> Self {
        let now = quorum.now();
        let ballots: Vec<_> = requests
            .iter()
            .map(|request| quorum.ballots.get(&request.key, request.value.as_str()))
            .collect();
        let mut shortest = Duration::MAX;
        for (request, ballot) in requests.iter().zip(&ballots) {
            let Some(ttl) = request.extend else { continue };
            shortest = shortest.min(ttl);
            if let Some(ballot) = ballot {
                ballot.remember(now, ttl);
            }
        }
        let mut under_way = Requests::with_capacity(quorum.masters.len());
        for (at, master) in quorum.masters.iter().enumerate() {
            if !master.is_up() {
                continue;
            }
            let of_master = requests.iter().zip(&ballots).map(|(request, ballot)| RenewRequest {
                key: Arc::clone(&request.key),
                value: match ballot {
                    Some(ballot) => ballot.value_at(at),
                    None => request.value.clone(),
                },
                extend: request.extend,
            });
            let of_master: Vec<_> = of_master.collect();
            let master = Arc::clone(master);
            under_way.add(at, async move { master.access.store.renew_each(&of_master).await });
        }
        Self {
            quorum: Arc::clone(quorum),
            verdicts: vec![Verdict::default(); requests.len()],
            requests: requests.to_vec(),
            ballots,
            gone: Vec::new(),
            under_way,
            limit: quorum.patience(shortest),
        }
    }

    fn decided(&self) -> Vec<Option<Ownership>> {
        let (masters, majority) = (self.quorum.masters.len(), self.quorum.majority());
        let verdicts = self.verdicts.iter();
        verdicts.map(|verdict| verdict.decided(masters, majority)).collect()
    }

    fn is_decided(&self) -> bool {
        let (masters, majority) = (self.quorum.masters.len(), self.quorum.majority());
        let mut verdicts = self.verdicts.iter();
        verdicts.all(|verdict| verdict.decided(masters, majority).is_some())
    }

    /// Notes an answer.
    fn receive(&mut self, at: usize, answer: Verdicts) {
        let verdicts = match answer {
            Ok(verdicts) if verdicts.len() == self.requests.len() => verdicts,
            Ok(_) => return,
            Err(error) => return self.quorum.has_failed(at, &error),
        };
        for (nth, (verdict, ownership)) in self.verdicts.iter_mut().zip(&verdicts).enumerate() {
            let Some(ownership) = ownership else { continue };
            verdict.add(ownership);
            if *ownership == Ownership::Gone {
                self.gone.push((at, nth));
            }
        }
    }

    /// Waits for the answers that decide. Returns `false` if the time for them is over.
    async fn run(&mut self, until: impl Fn(&Self) -> bool) -> bool {
        let began = self.quorum.now();
        let host = self.quorum.host.clone();
        let timer = self.quorum.timer();
        while !until(self) && !self.under_way.is_empty() {
            let left = self.limit.saturating_sub(self.quorum.now().since(began));
            let Some(answers) = answers_within(&host, timer, left, &mut self.under_way).await else {
                let owing: Vec<_> = self.under_way.owing().collect();
                for at in owing {
                    let error = StoreError::unknown(format!("no answer within {:?}", self.limit));
                    self.quorum.has_failed(at, &error);
                }
                return false;
            };
            for (at, answer) in answers {
                self.receive(at, answer);
            }
        }
        true
    }

    /// Wins votes back that were lost while a majority has the lock.
    fn return_votes(&mut self) {
        let decided = self.decided();
        for (at, nth) in std::mem::take(&mut self.gone) {
            let (Some(request), Some(Some(ballot))) = (self.requests.get(nth), self.ballots.get(nth)) else {
                continue;
            };
            let is_held = decided.get(nth) == Some(&Some(Ownership::Owned));
            if let Some(ttl) = request.extend.filter(|_| is_held) {
                self.quorum.win_back(at, ballot, &request.key, ttl);
            }
        }
    }

    /// Waits for the masters that have not answered yet, after the decision.
    async fn finish(mut self) {
        self.run(|_| false).await;
        self.return_votes();
    }
}

/// The release of a lock at all masters.
struct Releases {
    quorum: Arc<Quorum>,
    /// The ballot that ends with it, and the key.
    ballot: Option<(Arc<Ballot>, Arc<str>)>,
    stood_at: Option<usize>,
    /// Set if the value may be in the queue there.
    queued: Option<Queued>,
    /// The answer of the master in whose queue the value has stood.
    at_its_place: Option<Ownership>,
    verdict: Verdict,
    /// The masters that may still have it in the end.
    open: Vec<usize>,
    /// The answers, and whether a vote may yet come.
    under_way: Requests<Result<(Ownership, bool), StoreError>>,
}

impl Releases {
    fn decided(&self) -> Option<Ownership> {
        self.verdict.decided(self.quorum.masters.len(), self.quorum.majority())
    }

    /// Waits for answers until they are enough, or `limit` has passed.
    async fn run(&mut self, limit: Duration, until: impl Fn(&Self) -> bool) {
        let quorum = Arc::clone(&self.quorum);
        let (timer, began) = (quorum.timer(), quorum.now());
        while !until(self) && !self.under_way.is_empty() {
            let left = limit.saturating_sub(quorum.now().since(began));
            let Some(answers) = answers_within(&quorum.host, timer, left, &mut self.under_way).await else {
                return;
            };
            for (at, answer) in answers {
                match answer {
                    Ok((released, is_settled)) => {
                        if self.stood_at == Some(at) {
                            self.at_its_place = Some(released.clone());
                        }
                        self.verdict.add(&released);
                        if is_settled {
                            self.open.retain(|open| *open != at);
                        }
                    }
                    Err(error) => quorum.has_failed(at, &error),
                }
            }
        }
    }

    /// Skips the masters that have not answered in time from now on, so that they delay no other call.
    fn has_waited(&self) {
        for at in self.under_way.owing() {
            self.quorum
                .has_failed(at, &StoreError::unknown("no answer to a release in time"));
        }
    }

    /// Leaves the votes that are not released yet to the lock thread.
    fn give_up(self) {
        let Some((ballot, key)) = self.ballot else { return };
        for at in self.open {
            let receipt = ballot.asked(at);
            let mut given_up = self.quorum.given_up(&ballot, at, receipt.as_deref(), ballot.ttl());
            given_up.keys = std::iter::once(Arc::clone(&key)).collect();
            given_up.queued = self.queued.filter(|_| self.stood_at == Some(at));
            self.quorum.abandon_at(at, &given_up);
        }
    }
}

impl Quorum {
    /// Renews or checks locks. An answer of the minority decides nothing.
    pub(super) async fn renew_votes(self: &Arc<Self>, requests: &[RenewRequest]) -> Vec<Option<Ownership>> {
        let mut round = Round::begin(self, requests);
        let is_in_time = round.run(Round::is_decided).await;
        let decided = round.decided();
        if is_in_time && !round.under_way.is_empty() {
            // Hears the other masters as well, which renew the lock too, and finds out which ones are silent.
            self.host.spawn_by(self.timer(), round.finish());
        } else {
            round.return_votes();
        }
        decided
    }

    /// Sends the requests that waited for a connection when the lock was granted, as the first ones of a process
    /// do: without their votes, the lock would be lost with the next master that fails.
    pub(super) fn send_late(self: &Arc<Self>, ballot: &Arc<Ballot>, ttl: Duration) {
        for at in ballot.unsent() {
            if !ballot.may_return(at) {
                continue;
            }
            let (quorum, ballot) = (Arc::clone(self), Arc::clone(ballot));
            let sends = async move {
                let _ = quorum.receive_late(at, &ballot, ttl).await;
                ballot.has_returned(at);
            };
            self.host.spawn_by(self.timer(), sends);
        }
    }

    /// Waits for the answer of a master that had not answered when the lock was granted. Returns `false` if it
    /// still owes it.
    async fn receive_late(self: &Arc<Self>, at: usize, ballot: &Arc<Ballot>, ttl: Duration) -> bool {
        let (Some(late), Some(receipt)) = (ballot.late(at), ballot.asked(at)) else {
            return true;
        };
        let answer = self.host.timeout(self.timer(), self.response_timeout, late).await;
        let is_busy = matches!(answer, Some(Answer::Busy { .. }));
        let has_answered = answer.is_some();
        match answer {
            Some(Answer::Failed(error)) => self.has_failed(at, &error),
            Some(_) => {}
            None => self.suspect(at),
        }
        self.give_up_late(at, ballot, &receipt, is_busy, ttl);
        has_answered
    }

    /// Gives up the vote that a request gets after the lock was released.
    fn give_up_late(&self, at: usize, ballot: &Ballot, receipt: &Receipt, is_busy: bool, ttl: Duration) {
        if ballot.is_over() && !is_busy && receipt.connection().is_some() {
            self.abandon_at(at, &self.given_up(ballot, at, Some(receipt), ttl));
        }
    }

    /// Asks a master again for a vote that it has lost, or that it could not give at first.
    fn win_back(self: &Arc<Self>, at: usize, ballot: &Arc<Ballot>, key: &Arc<str>, ttl: Duration) {
        let Some(master) = self.masters.get(at).cloned() else {
            return;
        };
        if !master.is_open() || !ballot.may_return(at) {
            return;
        }
        let (quorum, ballot, key) = (Arc::clone(self), Arc::clone(ballot), Arc::clone(key));
        let timer = self.timer();
        let returns = async move {
            if quorum.receive_late(at, &ballot, ttl).await
                && let Some(receipt) = ballot.ask(at)
            {
                let value = ballot.value_at(at);
                let request = AcquireRequest {
                    key: &key,
                    value: &value,
                    ttl,
                    fence: false,
                    tell_remaining: false,
                    fair: false,
                    receipt: &receipt,
                };
                let asked = master.access.store.acquire(&request);
                let answer = quorum.host.timeout(timer, quorum.response_timeout, asked).await;
                let is_busy = matches!(answer, Some(Ok(Attempt::Busy { .. })));
                match answer {
                    Some(Ok(_)) => receipt.answered(),
                    Some(Err(error)) => quorum.has_failed(at, &error),
                    None => quorum.suspect(at),
                }
                quorum.give_up_late(at, &ballot, &receipt, is_busy, ttl);
            }
            ballot.has_returned(at);
        };
        self.host.spawn_by(timer, returns);
    }

    pub(super) fn given_up(&self, ballot: &Ballot, at: usize, receipt: Option<&Receipt>, ttl: Duration) -> Abandoned {
        Abandoned {
            keys: ballot.keys.iter().cloned().collect(),
            value: ballot.value_at(at),
            ttl,
            queued: None,
            unanswered_on: receipt.and_then(Receipt::unanswered_on),
            may_grant: true,
            elsewhere: false,
            tracked: self.cleaning.clone(),
        }
    }

    /// Releases a lock at all masters that may have it: the first one last, so that the next holder, which
    /// gets it there, finds the others free.
    pub(super) async fn release_votes(self: &Arc<Self>, request: &ReleaseRequest<'_>) -> Result<Ownership, StoreError> {
        request.receipt.sent_on(1);
        let ballot = self.ballots.get(request.key, request.value.as_str());
        let stood_at = ballot.as_ref().and_then(|ballot| ballot.stood_at());
        // One that waits does not leave the queue without saying so.
        let ended = ballot
            .as_ref()
            .filter(|ballot| request.queued.is_some() || !ballot.waits());
        if let Some(ballot) = ended {
            ballot.end();
        }
        let masters = self.masters.iter();
        let first = stood_at.or_else(|| masters.clone().position(|master| master.is_open()));
        let mut order: Vec<_> = (0..self.masters.len()).filter(|at| Some(*at) != first).collect();
        order.extend(first);
        let mut under_way = Requests::with_capacity(order.len());
        let mut verdict = Verdict::default();
        // The masters that may still have it in the end.
        let mut open = Vec::new();
        for at in order {
            let Some(master) = self.masters.get(at).cloned() else {
                continue;
            };
            let receipt = ballot.as_ref().and_then(|ballot| ballot.asked(at));
            let was_asked = ballot.is_none() || receipt.is_some() || stood_at == Some(at);
            if !was_asked {
                verdict.gone += 1;
                continue;
            }
            open.push(at);
            if !master.is_up() {
                continue;
            }
            let late = ballot.as_ref().and_then(|ballot| ballot.late(at));
            let key = Arc::clone(request.key);
            let value = match &ballot {
                Some(ballot) => ballot.value_at(at),
                None => request.value.clone(),
            };
            let (keep, elsewhere) = (request.keep, request.elsewhere);
            let queued = request.queued.filter(|_| stood_at.is_none_or(|stood| stood == at));
            under_way.add(at, async move {
                if let Some(late) = late
                    && let Answer::Busy { .. } = late.await
                {
                    return Ok((Ownership::Foreign, true));
                }
                let unanswered_on = receipt.as_ref().and_then(|receipt| receipt.unanswered_on());
                let release = ReleaseRequest {
                    key: &key,
                    value: &value,
                    keep,
                    unanswered_on,
                    elsewhere,
                    queued,
                    leave_free: None,
                    receipt: &Receipt::default(),
                };
                let released = master.access.give_back(&release).await?;
                let is_settled = released == Ownership::Owned || unanswered_on.is_none();
                Ok::<_, StoreError>((released, is_settled))
            });
        }
        let mut releases = Releases {
            quorum: Arc::clone(self),
            ballot: ended.map(|ballot| (Arc::clone(ballot), Arc::clone(request.key))),
            stood_at,
            queued: request.queued,
            at_its_place: None,
            verdict,
            open,
            under_way,
        };
        // One that leaves the queue has not asked the others.
        let is_decided = |releases: &Releases| {
            let is_known = request.queued.is_none() || releases.at_its_place.is_some();
            is_known && releases.decided().is_some()
        };
        // The lease is not known here.
        let limit = self.patience(Duration::MAX);
        releases.run(limit, is_decided).await;
        // So the next holder also finds the masters free that answer soon. A silent one delays no call further.
        releases.run(GIVEN_BACK_WITHIN, |_| false).await;
        let Some(ownership) = releases.decided() else {
            releases.has_waited();
            // The runtime repeats the release.
            return Err(self.too_few(None).into_unknown());
        };
        if let Some(ballot) = ended
            && ballot.has_released()
        {
            self.ballots.remove(request.value.as_str(), ballot);
        }
        let at_its_place = releases.at_its_place.clone().filter(|_| request.queued.is_some());
        if releases.under_way.is_empty() {
            releases.give_up();
        } else {
            let late = async move {
                releases.run(limit, |_| false).await;
                releases.has_waited();
                releases.give_up();
            };
            // Without a task, the votes end with their leases.
            self.host.spawn_by(self.timer(), late);
        }
        Ok(at_its_place.unwrap_or(ownership))
    }

    /// Gives up whatever a value may have, or get, at any master.
    pub(super) fn abandon_votes(&self, abandoned: &Abandoned) {
        let first = abandoned.keys.first().map_or("", |key| &**key);
        let ballot = self.ballots.get(first, abandoned.value.as_str());
        let stood_at = ballot.as_ref().and_then(|ballot| ballot.stood_at());
        if let Some(ballot) = &ballot {
            ballot.end();
        }
        for at in 0..self.masters.len() {
            let mut at_master = abandoned.clone();
            match ballot.as_ref().map(|ballot| (ballot, ballot.asked(at))) {
                Some((ballot, Some(receipt))) => {
                    at_master.value = ballot.value_at(at);
                    at_master.queued = None;
                    at_master.may_grant = true;
                    at_master.unanswered_on = receipt.unanswered_on();
                }
                // The runtime's receipt is that of the place in the queue.
                Some(_) if stood_at == Some(at) => {}
                Some(_) => continue,
                None => at_master.unanswered_on = None,
            }
            self.abandon_at(at, &at_master);
        }
    }

    /// Takes a fencing token, in two phases: each master gives one that is greater than those it knows, and
    /// then the quorum tells a majority the greatest. So a later holder, whose majority has a master in common
    /// with this one, gets a greater one.
    pub(super) async fn fence_votes(
        self: &Arc<Self>,
        key: &Arc<str>,
        value: &HolderValue,
    ) -> Result<Fence, StoreError> {
        let ballot = self.ballots.get(key, value.as_str());
        let ballot = ballot.unwrap_or_else(|| Ballot::new(std::slice::from_ref(key), value, self.masters.len()));
        let mut under_way = Requests::with_capacity(self.masters.len());
        for (at, master) in self.masters.iter().enumerate().filter(|(_, master)| master.is_up()) {
            let (master, key, value) = (Arc::clone(master), Arc::clone(key), ballot.value_at(at));
            under_way.add(at, async move { master.access.store.fence(&key, &value).await });
        }
        let mut verdict = Verdict::default();
        let mut fences = Vec::new();
        let (masters, majority) = (self.masters.len(), self.majority());
        self.collect(&mut under_way, |at, answer| {
            match answer {
                Fence::Token(fence) => {
                    verdict.owned += 1;
                    fences.push((at, fence));
                }
                Fence::NotOwned(ownership) => verdict.add(&ownership),
            }
            verdict.decided(masters, majority).is_some()
        })
        .await;
        match verdict.decided(self.masters.len(), self.majority()) {
            Some(Ownership::Owned) => {}
            Some(lost) => return Ok(Fence::NotOwned(lost)),
            None => return Err(self.too_few(None).into_unknown()),
        }
        Ok(match self.raise_fences_of(&ballot, key, &fences).await? {
            Ok(fence) => Fence::Token(fence),
            Err(lost) => Fence::NotOwned(lost),
        })
    }

    pub(super) async fn raise_fences(
        self: &Arc<Self>,
        ballot: &Arc<Ballot>,
        fences: &[(usize, FencingToken)],
    ) -> Result<Result<FencingToken, Ownership>, StoreError> {
        match ballot.keys.first() {
            Some(key) => self.raise_fences_of(ballot, key, fences).await,
            None => Err(StoreError::permanent("no key was given")),
        }
    }

    /// Tells the masters that have given tokens the greatest of them. Returns it, once a majority knows it
    /// and still has the lock.
    async fn raise_fences_of(
        self: &Arc<Self>,
        ballot: &Arc<Ballot>,
        key: &Arc<str>,
        fences: &[(usize, FencingToken)],
    ) -> Result<Result<FencingToken, Ownership>, StoreError> {
        let Some(greatest) = fences.iter().map(|(_, fence)| *fence).max() else {
            return Err(StoreError::unknown("no master gave a fencing token"));
        };
        let mut under_way = Requests::with_capacity(fences.len());
        for (at, _) in fences {
            let Some(master) = self.masters.get(*at).cloned() else {
                continue;
            };
            let (key, value) = (Arc::clone(key), ballot.value_at(*at));
            under_way.add(*at, async move {
                master.access.store.raise_fence(&key, &value, greatest).await
            });
        }
        let (masters, majority) = (self.masters.len(), self.majority());
        let mut verdict = Verdict {
            // The masters that were not asked count as if they did not have the lock.
            gone: masters - fences.len(),
            ..Verdict::default()
        };
        self.collect(&mut under_way, |_, ownership| {
            verdict.add(&ownership);
            verdict.decided(masters, majority).is_some()
        })
        .await;
        match verdict.decided(self.masters.len(), self.majority()) {
            Some(Ownership::Owned) => Ok(Ok(greatest)),
            Some(lost) => Ok(Err(lost)),
            None => Err(self.too_few(None).into_unknown()),
        }
    }

    /// Waits for the answers of all masters that were asked, or the end of their time. Once `hear` has
    /// returned `true`, the answers are enough, and the others are not waited for long.
    pub(super) async fn collect<T>(
        self: &Arc<Self>,
        under_way: &mut Requests<Result<T, StoreError>>,
        mut receive: impl FnMut(usize, T) -> bool,
    ) {
        let (timer, mut began) = (self.timer(), self.now());
        let mut limit = self.patience(Duration::MAX);
        while !under_way.is_empty() {
            let left = limit.saturating_sub(self.now().since(began));
            let Some(answers) = answers_within(&self.host, timer, left, under_way).await else {
                for at in under_way.owing() {
                    self.suspect(at);
                }
                return;
            };
            for (at, answer) in answers {
                match answer {
                    Ok(answer) => {
                        if receive(at, answer) && limit > GIVEN_BACK_WITHIN {
                            (began, limit) = (self.now(), GIVEN_BACK_WITHIN);
                        }
                    }
                    Err(error) => self.has_failed(at, &error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_majority_says_that_a_lock_is_held_or_lost() {
        for (owned, gone, foreign, expected) in [
            (3, 0, 0, Some(Ownership::Owned)),
            (3, 1, 1, Some(Ownership::Owned)),
            (2, 0, 0, None),
            (2, 2, 0, None),
            (0, 2, 0, None),
            (2, 3, 0, Some(Ownership::Gone)),
            (2, 1, 2, Some(Ownership::Foreign)),
            (0, 3, 2, Some(Ownership::Foreign)),
            (0, 3, 0, Some(Ownership::Gone)),
            (0, 0, 0, None),
        ] {
            let verdict = Verdict { owned, gone, foreign };
            assert_eq!(verdict.decided(5, 3), expected, "{verdict:?}");
        }
    }
}
