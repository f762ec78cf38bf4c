//! Decides which server the sentinels name, from the answer of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::host::Moment;
use crate::store::StoreError;

/// The time after which a sentinel is asked again that names another server than the present one,
/// though no failover shows that it took over. Longer than the other sentinels need to hear of a
/// failover.
pub(super) const AGAIN: Duration = Duration::from_secs(3);

/// The time for which fewer than half of the sentinels of the URL must have answered before the store
/// reports it: the locks do not need them as long as the master stays.
const SILENT: Duration = Duration::from_secs(30);

/// One sentinel's answer about the master.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct View {
    /// Grows with every failover. Epochs of different groups of sentinels cannot be compared.
    pub(super) epoch: u64,
    pub(super) host: String,
    pub(super) port: u16,
}

impl View {
    fn server(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The reason why a sentinel does not tell where the master is.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) text: String,
    pub(super) advice: Option<Box<str>>,
    /// `true` if asking again is of no use until something is changed.
    pub(super) is_permanent: bool,
}

/// Another sentinel, as one names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    /// Its run id, which it keeps as long as its configuration file.
    pub(super) id: String,
    pub(super) address: String,
}

/// The run id of a sentinel, and the others of its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Its own run id. Its user may not be allowed to ask for that.
    pub(super) id: Option<String>,
    pub(super) others: Vec<Other>,
}

/// The consequence of an answer.
#[derive(Debug)]
pub(super) enum Decision {
    /// Nothing yet, since others have not answered.
    Wait,
    /// All is as before.
    Stay,
    /// This is the server from now on.
    Move {
        view: View,
        former: Option<View>,
        /// The sentinels that decided.
        named_by: Vec<String>,
    },
    /// No server is known. With the number of the oldest question that a sentinel's answer is for.
    Missing(StoreError, u64),
}

/// One sentinel, as this process knows it.
#[derive(Default)]
struct Sentinel {
    answer: Option<Result<View, Trouble>>,
    group: Group,
    /// The number of the latest question that it has answered.
    question: u64,
    /// The times of the first and the latest question in a row that it answered with the same server.
    named: Option<(Moment, Moment)>,
}

/// The answer of a sentinel that names a server.
#[derive(Clone, Copy)]
struct Vote<'a> {
    sentinel: &'a str,
    is_given: bool,
    view: &'a View,
    group: &'a Group,
    /// For how long it has named this server.
    steady: Duration,
}

impl<'a> Vote<'a> {
    fn others(self) -> impl Iterator<Item = &'a str> {
        self.group.others.iter().map(|other| other.id.as_str())
    }

    /// Returns the run ids of the group.
    fn ids(self) -> BTreeSet<&'a str> {
        self.others().chain(self.group.id.as_deref()).collect()
    }

    /// Returns the names that tell this sentinel from others. It may be known by a host name and by an address,
    /// and counts once: by its run id, or else because no other one names the same others.
    fn identity(self) -> BTreeSet<&'a str> {
        match &self.group.id {
            Some(id) => BTreeSet::from([id.as_str()]),
            None if self.group.others.is_empty() => BTreeSet::from([self.sentinel]),
            None => self.others().collect(),
        }
    }

    /// Returns `true` if both watch the same servers: they name the same one, or the same sentinels.
    fn is_kin(self, other: Self) -> bool {
        let (ids, others) = (self.ids(), other.ids());
        let (shared, least) = (ids.intersection(&others).count(), ids.len().min(others.len()));
        self.view.server() == other.view.server() || shared > 0 && shared * 2 >= least
    }
}

/// Returns how many sentinels have these votes.
fn count<'a>(votes: impl Iterator<Item = Vote<'a>>) -> usize {
    votes.map(Vote::identity).collect::<BTreeSet<_>>().len()
}

/// Returns the size of the largest group that one of these belongs to, as far as it knows.
fn size(votes: &[Vote<'_>]) -> usize {
    let sizes = votes.iter().map(|vote| vote.group.others.len() + 1);
    sizes.max().unwrap_or_default()
}

/// The views of all sentinels.
///
/// An epoch counts failovers, each of which most sentinels of a group have agreed to. So one sentinel
/// with a higher epoch is enough to move, if it shows that it belongs to the group of before: by the run
/// ids of the sentinels that it names. An address of the URL may be another group's by now, and sentinels
/// may have been set up anew. So else most sentinels of the URL are needed, and where their epoch is no
/// higher, twice.
pub(super) struct Agreement {
    master: String,
    /// The sentinels of the URL.
    given: Vec<String>,
    sentinels: BTreeMap<String, Sentinel>,
    present: Option<View>,
    /// The run ids of the group that the present server belongs to.
    members: BTreeSet<String>,
    /// The time since which fewer than half of the sentinels of the URL have answered, and `true` once
    /// [`attendance`](Self::attendance) has reported that.
    silent: Option<(Moment, bool)>,
}

/// A report on the sentinels of the URL as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attendance {
    /// Fewer than half of them have answered for [`SILENT`].
    Low {
        answering: usize,
        sentinels: usize,
        /// The answer of each of them.
        said: String,
    },
    /// At least half of them answer again, after this time.
    Restored { lasted: Duration },
}

impl Agreement {
    /// Creates one without a view of these sentinels.
    pub(super) fn new(master: &str, sentinels: impl Iterator<Item = String>) -> Self {
        let given: Vec<String> = sentinels.collect();
        Self {
            master: master.to_owned(),
            sentinels: given.iter().map(|name| (name.clone(), Sentinel::default())).collect(),
            given,
            present: None,
            members: BTreeSet::new(),
            silent: None,
        }
    }

    /// Adds a sentinel. Returns `false` if it is known.
    pub(super) fn add(&mut self, sentinel: &str) -> bool {
        let is_new = !self.sentinels.contains_key(sentinel);
        if is_new {
            self.sentinels.insert(sentinel.to_owned(), Sentinel::default());
        }
        is_new
    }

    /// Records the group that a sentinel has named as its own.
    pub(super) fn is_of(&mut self, sentinel: &str, group: Group) {
        if let Some(known) = self.sentinels.get_mut(sentinel) {
            known.group = group;
        }
    }

    /// Removes the sentinels that no sentinel of the URL names, directly or through others. Keeps those of
    /// the URL. Returns the names of the removed ones.
    pub(super) fn forget_unnamed(&mut self) -> Vec<String> {
        let mut named: BTreeSet<&str> = self.given.iter().map(String::as_str).collect();
        let mut unread: Vec<&str> = named.iter().copied().collect();
        while let Some(sentinel) = unread.pop() {
            let others = self
                .sentinels
                .get(sentinel)
                .into_iter()
                .flat_map(|known| &known.group.others);
            unread.extend(
                others
                    .map(|other| other.address.as_str())
                    .filter(|other| named.insert(other)),
            );
        }
        let unnamed = self
            .sentinels
            .keys()
            .filter(|sentinel| !named.contains(sentinel.as_str()));
        let unnamed: Vec<String> = unnamed.cloned().collect();
        for sentinel in &unnamed {
            self.sentinels.remove(sentinel);
        }
        unnamed
    }

    /// Returns `true` if a server was found.
    pub(super) fn has_found(&self) -> bool {
        self.present.is_some()
    }

    /// Returns `true` if a sentinel names another server than the present one, or in a lower epoch.
    pub(super) fn is_at_odds(&self, sentinel: &str) -> bool {
        let answer = self.sentinels.get(sentinel).and_then(|known| known.answer.as_ref());
        answer
            .and_then(|answer| answer.as_ref().ok())
            .is_some_and(|view| self.present.as_ref() != Some(view))
    }

    pub(super) fn len(&self) -> usize {
        self.sentinels.len()
    }

    /// Records a sentinel's answer to a question, which was asked at this time.
    pub(super) fn learn(&mut self, sentinel: &str, view: Result<View, Trouble>, question: u64, asked: Moment) {
        let Some(known) = self.sentinels.get_mut(sentinel) else {
            return;
        };
        let is_same = match (&known.answer, &view) {
            (Some(Ok(before)), Ok(view)) => before.server() == view.server(),
            _ => false,
        };
        let first = known.named.filter(|_| is_same).map_or(asked, |(first, _)| first);
        known.named = view.is_ok().then_some((first, asked));
        known.question = question;
        known.answer = Some(view);
    }

    /// Returns the report on the sentinels of the URL that is due at `now`, if there is one: once for each
    /// time in which few of them answer, and once for its end.
    pub(super) fn attendance(&mut self, now: Moment) -> Option<Attendance> {
        let answers = || self.given.iter().map(|name| (name, self.sentinels.get(name)));
        let answering = answers().filter(|(_, known)| known.is_some_and(|known| matches!(known.answer, Some(Ok(_)))));
        let (answering, sentinels) = (answering.count(), self.given.len());
        if answering * 2 >= sentinels {
            let (since, is_told) = self.silent.take()?;
            let lasted = now.since(since);
            return is_told.then_some(Attendance::Restored { lasted });
        }
        let (since, is_told) = *self.silent.get_or_insert((now, false));
        if is_told || now.since(since) < SILENT {
            return None;
        }
        self.silent = Some((since, true));
        let said = answers().map(|(name, known)| match known.and_then(|known| known.answer.as_ref()) {
            Some(Ok(view)) => format!("{name}: {view}"),
            Some(Err(trouble)) => format!("{name}: {}", trouble.text),
            None => format!("{name}: no answer"),
        });
        Some(Attendance::Low {
            answering,
            sentinels,
            said: said.collect::<Vec<_>>().join("; "),
        })
    }

    /// Decides which server to use.
    pub(super) fn decide(&mut self) -> Decision {
        let votes = self.votes();
        let chosen = match &self.present {
            None => match self.first(&votes) {
                Ok(chosen) => Some(chosen),
                Err(decision) => return decision,
            },
            Some(present) => {
                let chosen = self.succeeding(present, &votes);
                let chosen = chosen.or_else(|| self.named_by_most_of_the_url(present, &votes));
                chosen.or_else(|| self.insisted_on(present, &votes))
            }
        };
        let deciding = chosen.iter().flat_map(|(_, deciding)| deciding);
        let named_by = deciding.map(|vote| vote.sentinel.to_owned()).collect();
        let Some(view) = chosen.map(|(view, _)| view).or(self.present.as_ref()).cloned() else {
            return Decision::Stay;
        };
        // The sentinels that name the server are its group.
        let group: Vec<Vote<'_>> = votes
            .into_iter()
            .filter(|vote| vote.view.server() == view.server())
            .collect();
        let ids: BTreeSet<String> = group
            .iter()
            .flat_map(|vote| vote.ids())
            .map(ToOwned::to_owned)
            .collect();
        if self.is_most_of_the_url(&group) {
            self.members = ids;
        } else {
            self.members.extend(ids);
        }
        let former = self.present.replace(view.clone());
        match &former {
            // Sentinels that were set up anew and name the same server: their epochs count from now on.
            Some(former) if former.server() == view.server() && former.epoch >= view.epoch => Decision::Stay,
            _ => Decision::Move { view, former, named_by },
        }
    }

    fn votes(&self) -> Vec<Vote<'_>> {
        let votes = self.sentinels.iter().filter_map(|(sentinel, known)| {
            let (first, latest) = known.named?;
            Some(Vote {
                sentinel,
                is_given: self.given.contains(sentinel),
                view: known.answer.as_ref()?.as_ref().ok()?,
                group: &known.group,
                steady: latest.since(first),
            })
        });
        votes.collect()
    }

    /// Returns `true` for more than half of the sentinels of the URL.
    fn is_most_of_the_url(&self, votes: &[Vote<'_>]) -> bool {
        count(votes.iter().copied().filter(|vote| vote.is_given)) * 2 > self.given.len()
    }

    /// Returns `true` if most of the sentinels that one names were met before.
    fn belongs(&self, vote: Vote<'_>) -> bool {
        vote.others().filter(|id| self.members.contains(*id)).count() * 2 > vote.group.others.len()
    }

    /// Chooses the first server: that of the highest epoch in a group which has most sentinels of the
    /// URL. If that many do not answer, most sentinels of the group will do, unless one of the URL speaks
    /// for another group.
    fn first<'a>(&self, votes: &[Vote<'a>]) -> Result<Choice<'a>, Decision> {
        let is_complete = self.sentinels.values().all(|known| known.answer.is_some());
        for vote in votes {
            let mut kin = vec![*vote];
            while let Some(more) = votes.iter().find(|one| {
                kin.iter().all(|known| known.sentinel != one.sentinel) && kin.iter().any(|known| known.is_kin(**one))
            }) {
                kin.push(*more);
            }
            let speaks_for_all = || {
                let all = size(&kin).max(self.given.len());
                let given = |votes: &[Vote<'_>]| votes.iter().filter(|vote| vote.is_given).count();
                count(kin.iter().copied()) * 2 > all && given(&kin) == given(votes)
            };
            if (self.is_most_of_the_url(&kin) || is_complete && speaks_for_all())
                && let Some(choice) = latest(&kin)
            {
                return Ok(choice);
            }
        }
        // Waits for the others as long as their own time-outs last.
        if !is_complete {
            return Err(Decision::Wait);
        }
        let questions = self.sentinels.values().map(|known| known.question);
        let reason = match votes {
            [] => self.failure(),
            [one, others @ ..] if others.iter().any(|other| other.view.server() != one.view.server()) => {
                self.disagreement()
            }
            _ => self.too_few(votes),
        };
        Err(Decision::Missing(reason, questions.min().unwrap_or_default()))
    }

    /// Returns the server that sentinels of the group name after a failover.
    fn succeeding<'a>(&self, present: &View, votes: &[Vote<'a>]) -> Option<Choice<'a>> {
        let later = votes
            .iter()
            .filter(|vote| vote.view.epoch > present.epoch && self.belongs(**vote));
        latest(&later.copied().collect::<Vec<_>>())
    }

    /// Returns the server that most sentinels of the URL name in a higher epoch.
    fn named_by_most_of_the_url<'a>(&self, present: &View, votes: &[Vote<'a>]) -> Option<Choice<'a>> {
        let later = votes.iter().filter(|vote| vote.view.epoch > present.epoch).copied();
        self.agreed(&later.collect::<Vec<_>>())
    }

    /// Returns the server that most sentinels have named twice, in whichever epoch.
    fn insisted_on<'a>(&self, present: &View, votes: &[Vote<'a>]) -> Option<Choice<'a>> {
        let insist = votes.iter().filter(|vote| vote.view != present && vote.steady >= AGAIN);
        let (view, deciding) = self.agreed(&insist.copied().collect::<Vec<_>>())?;
        // The others of its group have not heard of the latest failover.
        let is_later = |vote: &Vote<'_>| {
            vote.view == present && view.epoch < present.epoch && deciding.iter().any(|other| vote.is_kin(*other))
        };
        let all = size(&deciding).max(self.given.len());
        let is_most = count(deciding.iter().copied()) * 2 > all;
        (is_most && !votes.iter().any(is_later)).then_some((view, deciding))
    }

    /// Returns the server that most sentinels of the URL name.
    fn agreed<'a>(&self, votes: &[Vote<'a>]) -> Option<Choice<'a>> {
        votes.iter().find_map(|one| {
            let same = votes.iter().filter(|vote| vote.view.server() == one.view.server());
            let same: Vec<Vote<'a>> = same.copied().collect();
            let view = same.iter().map(|vote| vote.view).max()?;
            self.is_most_of_the_url(&same).then_some((view, same))
        })
    }

    /// Returns each sentinel's address and what `tell` says of its answer, separated by semicolons.
    fn each(&self, tell: impl Fn(&Result<View, Trouble>) -> Option<String>) -> String {
        let told = self.sentinels.iter().filter_map(|(sentinel, known)| {
            let said = tell(known.answer.as_ref()?)?;
            Some(format!("{sentinel}: {said}"))
        });
        told.collect::<Vec<_>>().join("; ")
    }

    fn disagreement(&self) -> StoreError {
        let said = self.each(|view| Some(view.as_ref().ok()?.to_string()));
        StoreError::transient(format!(
            "the sentinels disagree about the master `{}` ({said})",
            self.master
        ))
        .advise(
            "give sentinels that watch the same servers, and let `SENTINEL RESET` or a failover settle what they say",
        )
    }

    /// Returns the reason why the answers of a few sentinels do not decide.
    fn too_few(&self, votes: &[Vote<'_>]) -> StoreError {
        let given = votes.iter().filter(|vote| vote.is_given).count();
        let said = self.each(|view| {
            Some(match view {
                Ok(view) => view.to_string(),
                Err(trouble) => trouble.text.clone(),
            })
        });
        StoreError::transient(format!(
            "{given} of the {} sentinels of the URL name the master `{}`, and they may not have heard of a failover ({said})",
            self.given.len(),
            self.master
        ))
        .advise("see that most of the sentinels run and can be reached, and remove from the URL those that are gone")
    }

    /// Returns the reason why no sentinel names a server.
    fn failure(&self) -> StoreError {
        let said = self.each(|view| Some(view.as_ref().err()?.text.clone()));
        let answers = self.sentinels.values().filter_map(|known| known.answer.as_ref());
        let troubles: Vec<&Trouble> = answers.filter_map(|answer| answer.as_ref().err()).collect();
        let text = format!("no sentinel names the master `{}` ({said})", self.master);
        let error = if troubles.iter().all(|trouble| trouble.is_permanent) && !troubles.is_empty() {
            StoreError::permanent(text)
        } else {
            StoreError::transient(text)
        };
        let advice = troubles.iter().find_map(|trouble| trouble.advice.as_deref());
        error.advise(
            advice
                .unwrap_or("see that the sentinels run, and that the addresses are theirs: their usual port is 26379"),
        )
    }
}

/// A server, and the sentinels that name it.
type Choice<'a> = (&'a View, Vec<Vote<'a>>);

/// Returns the server that more than half of the sentinels with the highest epoch name.
fn latest<'a>(votes: &[Vote<'a>]) -> Option<Choice<'a>> {
    let highest = votes.iter().map(|vote| vote.view.epoch).max()?;
    let latest = || votes.iter().filter(|vote| vote.view.epoch == highest).copied();
    let name = |view: &View| latest().filter(|vote| vote.view == view).count();
    let view = latest()
        .map(|vote| vote.view)
        .find(|view| name(view) * 2 > latest().count())?;
    Some((view, votes.iter().filter(|vote| vote.view == view).copied().collect()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AGAIN, Agreement, Attendance, Decision, Group, Other, Trouble, View};
    use crate::host::Moment;

    const SENTINELS: [&str; 3] = ["s1", "s2", "s3"];

    #[allow(clippy::unnecessary_wraps, reason = "as `silent` returns it")]
    fn view(epoch: u64, port: u16) -> Result<View, Trouble> {
        let host = "db".to_owned();
        Ok(View { epoch, host, port })
    }

    fn silent() -> Result<View, Trouble> {
        Err(Trouble {
            text: "no answer".to_owned(),
            advice: None,
            is_permanent: false,
        })
    }

    #[test]
    fn few_answers_are_told_once_after_half_a_minute_and_when_they_are_over() {
        let mut agreement = Agreement::new("orders", SENTINELS.map(str::to_owned).into_iter());
        let mut at = |second: u64, sentinel: &str, view| {
            let now = Moment::from_nanos(second * 1_000_000_000);
            agreement.learn(sentinel, view, 1, now);
            agreement.attendance(now)
        };
        assert_eq!(at(1, "s1", view(1, 1)), None, "the others have not been asked");
        assert_eq!(at(2, "s2", view(1, 1)), None);
        assert_eq!(at(3, "s3", silent()), None, "two of three answer");
        assert_eq!(at(40, "s3", silent()), None);
        assert_eq!(at(41, "s2", silent()), None);
        assert_eq!(at(60, "s2", view(1, 1)), None);
        assert_eq!(at(61, "s2", silent()), None);
        assert_eq!(at(90, "s2", silent()), None, "for less than half a minute");
        let low = Attendance::Low {
            answering: 1,
            sentinels: 3,
            said: "s1: db:1; s2: no answer; s3: no answer".to_owned(),
        };
        assert_eq!(at(91, "s3", silent()), Some(low));
        assert_eq!(at(200, "s2", silent()), None);
        // One that the URL does not name.
        assert_eq!(at(201, "s4", view(1, 1)), None);
        let lasted = Duration::from_secs(141);
        assert_eq!(at(202, "s2", view(1, 1)), Some(Attendance::Restored { lasted }));
        assert_eq!(at(203, "s2", view(1, 1)), None);
    }

    /// A process, and a clock.
    struct Process {
        agreement: Agreement,
        now: Moment,
    }

    impl Process {
        /// With the URL of these sentinels.
        fn of(url: &[&str]) -> Self {
            Self {
                agreement: Agreement::new("orders", url.iter().map(|&name| name.to_owned())),
                now: Moment::from_nanos(0),
            }
        }

        /// With these views of the first of three sentinels, which are one group.
        fn with(views: impl IntoIterator<Item = Result<View, Trouble>>) -> Self {
            let mut process = Self::of(&SENTINELS);
            for (sentinel, view) in SENTINELS.iter().zip(views) {
                process.learn(sentinel, &SENTINELS, view);
            }
            process
        }

        /// A process that uses the first server, in this epoch.
        fn that_uses_the_first(epoch: u64) -> Self {
            let mut process = Self::with([view(epoch, 1), view(epoch, 1), view(epoch, 1)]);
            assert_eq!(process.decided(), Ok(1));
            process
        }

        /// A sentinel of a group answers. The run ids of sentinels are their names, unless the group's are others.
        fn learn(&mut self, sentinel: &str, group: &[&str], view: Result<View, Trouble>) {
            self.agreement.add(sentinel);
            if view.is_ok() {
                let at = SENTINELS.iter().position(|given| *given == sentinel);
                let own = at.filter(|_| !group.contains(&sentinel)).and_then(|at| group.get(at));
                // One that is known by its host name as well.
                let own = own.unwrap_or(&sentinel).replace("host", "ip");
                let others = group.iter().filter(|other| **other != own.as_str());
                let others = others.map(|other| Other {
                    id: (*other).to_owned(),
                    address: (*other).to_owned(),
                });
                let group = Group {
                    id: Some(own.clone()),
                    others: others.collect(),
                };
                self.agreement.is_of(sentinel, group);
            }
            self.agreement.learn(sentinel, view, 1, self.now);
        }

        /// These sentinels answer, and again after a while.
        fn insist(&mut self, sentinels: &[&str], group: &[&str], view: &Result<View, Trouble>) {
            for pause in [AGAIN, Duration::ZERO] {
                for sentinel in sentinels {
                    self.learn(sentinel, group, view.clone());
                }
                if !pause.is_zero() {
                    assert_eq!(self.decided(), stays(), "asked once");
                }
                self.now = self.now.after(pause);
            }
        }

        /// Returns the decision: the port to move to, or a text.
        fn decided(&mut self) -> Result<u16, String> {
            match self.agreement.decide() {
                Decision::Move { view, .. } => Ok(view.port),
                Decision::Wait => waits(),
                Decision::Stay => stays(),
                Decision::Missing(error, _) => Err(error.to_string()),
            }
        }
    }

    fn stays() -> Result<u16, String> {
        Err("stay".to_owned())
    }

    fn waits() -> Result<u16, String> {
        Err("wait".to_owned())
    }

    #[test]
    fn the_first_server_is_that_of_the_highest_epoch_once_most_have_answered() {
        let mut process = Process::with([view(4, 1)]);
        assert_eq!(process.decided(), waits());
        process.learn("s2", &SENTINELS, view(5, 2));
        assert_eq!(process.decided(), Ok(2));
        assert_eq!(process.decided(), stays());
    }

    #[test]
    fn one_of_three_that_answers_is_not_believed() {
        let mut process = Process::with([view(4, 1), silent()]);
        assert_eq!(process.decided(), waits());
        process.learn("s3", &SENTINELS, silent());
        let said = process.decided().err().unwrap_or_default();
        assert!(said.contains("1 of the 3 sentinels"), "{said}");
        assert!(said.contains("(s1: db:1; s2: no answer; s3: no answer)"), "{said}");
    }

    /// The others of the URL have been replaced.
    #[test]
    fn sentinels_that_the_url_does_not_name_count_where_most_of_its_own_are_gone() {
        let group = ["s1", "s4", "s5"];
        let mut process = Process::of(&SENTINELS);
        process.learn("s1", &group, view(4, 1));
        for learnt in ["s4", "s5"] {
            assert!(process.agreement.add(learnt));
        }
        for (sentinel, view) in [("s2", silent()), ("s3", silent()), ("s4", view(4, 1)), ("s5", silent())] {
            assert_eq!(process.decided(), waits());
            process.learn(sentinel, &group, view);
        }
        assert_eq!(process.decided(), Ok(1));
    }

    #[test]
    fn one_that_refuses_for_good_does_not_speak_for_those_that_are_slow() {
        let refuses = Err(Trouble {
            text: "it knows no such master".to_owned(),
            advice: None,
            is_permanent: true,
        });
        let mut process = Process::with([refuses, view(1, 1)]);
        assert_eq!(process.decided(), waits());
        process.learn("s3", &SENTINELS, view(1, 1));
        assert_eq!(process.decided(), Ok(1));
    }

    #[test]
    fn one_sentinel_of_the_group_with_a_higher_epoch_is_followed() {
        let mut process = Process::that_uses_the_first(4);
        process.learn("s2", &SENTINELS, view(5, 2));
        assert_eq!(process.decided(), Ok(2));
        // The others have not heard of it, and are asked again.
        for sentinel in ["s1", "s3"] {
            assert!(process.agreement.is_at_odds(sentinel));
        }
        process.insist(&["s1", "s3"], &SENTINELS, &view(4, 1));
        assert_eq!(process.decided(), stays());
        // A later failover, led by a sentinel that has not named the server before.
        process.learn("s3", &SENTINELS, view(6, 3));
        assert_eq!(process.decided(), Ok(3));
    }

    /// They have lost it, as from a backup of their files.
    #[test]
    fn most_sentinels_that_insist_on_the_former_server_are_followed_if_none_names_another() {
        let mut process = Process::that_uses_the_first(4);
        process.learn("s2", &SENTINELS, view(5, 2));
        assert_eq!(process.decided(), Ok(2));
        process.learn("s2", &SENTINELS, silent());
        process.insist(&["s1", "s3"], &SENTINELS, &view(4, 1));
        assert_eq!(process.decided(), Ok(1));
    }

    #[test]
    fn the_same_server_with_a_higher_epoch_is_another_one() {
        let mut process = Process::that_uses_the_first(4);
        process.learn("s1", &SENTINELS, view(6, 1));
        assert_eq!(process.decided(), Ok(1), "it was a replica meanwhile");
    }

    #[test]
    fn an_address_that_is_another_group_s_by_now_moves_nothing() {
        let mut process = Process::that_uses_the_first(0);
        let others = ["t1", "t2", "t3"];
        process.insist(&["s3", "t1", "t2"], &others, &view(2, 9));
        assert_eq!(process.decided(), stays());
        // A failover of its own group is followed as before.
        process.learn("s2", &SENTINELS, view(1, 2));
        assert_eq!(process.decided(), Ok(2));
        // The address is the group's again: those that only the other group named are forgotten.
        process.learn("s3", &SENTINELS, view(1, 2));
        assert_eq!(process.agreement.forget_unnamed(), ["t1", "t2"]);
    }

    #[test]
    fn a_process_among_strangers_returns_to_what_most_sentinels_of_the_url_name() {
        let strangers = ["t1", "t2", "t3"];
        let mut process = Process::of(&SENTINELS);
        for stranger in ["s2", "s3"] {
            process.learn(stranger, &strangers, view(7, 9));
        }
        assert_eq!(process.decided(), Ok(9));
        process.learn("s3", &strangers, view(7, 9));
        process.insist(&["s1", "s2"], &SENTINELS, &view(1, 1));
        assert_eq!(process.decided(), Ok(1));
    }

    /// Their run ids are new as well.
    #[test]
    fn sentinels_that_were_set_up_anew_are_followed_though_the_server_still_answers() {
        let mut process = Process::that_uses_the_first(1);
        // The run ids of sentinels with these names.
        let anew = ["n1", "n2", "n3"];
        process.insist(&SENTINELS, &anew, &view(1, 2));
        assert_eq!(process.decided(), Ok(2));
    }

    #[test]
    fn sentinels_that_were_set_up_anew_count_from_the_beginning() {
        let anew = ["n1", "n2", "n3"];
        let mut process = Process::that_uses_the_first(9);
        process.insist(&SENTINELS, &anew, &view(0, 1));
        assert_eq!(process.decided(), stays(), "the same server");
        // Named by those of before.
        process.learn("s2", &anew, view(1, 2));
        assert_eq!(process.decided(), Ok(2));
    }

    #[test]
    fn most_sentinels_of_the_url_are_followed_at_once_in_a_higher_epoch() {
        // A user that may not ask for other sentinels.
        let mut process = Process::of(&SENTINELS);
        for sentinel in SENTINELS {
            process.learn(sentinel, &[], view(1, 1));
        }
        assert_eq!(process.decided(), Ok(1));
        process.learn("s1", &[], view(2, 2));
        assert_eq!(process.decided(), stays());
        process.learn("s2", &[], view(2, 2));
        assert_eq!(process.decided(), Ok(2));
    }

    /// The one of the URL has not heard of the failover.
    #[test]
    fn a_sentinel_that_the_url_does_not_name_is_followed_if_one_of_the_url_names_it() {
        let mut process = Process::of(&["s1"]);
        process.learn("s1", &SENTINELS, view(4, 1));
        assert_eq!(process.decided(), Ok(1));
        process.learn("s2", &SENTINELS, view(5, 2));
        assert_eq!(process.decided(), Ok(2));
    }

    /// The URL has one sentinel, which the other two no longer reach, nor does this process reach them.
    #[test]
    fn one_sentinel_of_several_does_not_speak_for_all() {
        let group = ["ip1", "ip2", "ip3"];
        let mut process = Process::of(&["host2"]);
        // Under its host name, and under the address by which the others know it.
        let others = [
            ("host2", ["ip1", "ip3"]),
            ("ip2", ["ip1", "ip3"]),
            ("ip1", ["ip2", "ip3"]),
        ];
        for (name, others) in others {
            process.learn(name, &others, view(9, 1));
        }
        assert_eq!(process.decided(), Ok(1));
        process.learn("ip1", &group, silent());
        process.insist(&["host2", "ip2"], &["ip1", "ip3"], &view(8, 2));
        assert_eq!(process.decided(), stays());
        process.learn("ip1", &["ip2", "ip3"], view(8, 2));
        process.now = process.now.after(AGAIN);
        process.learn("ip1", &["ip2", "ip3"], view(8, 2));
        assert_eq!(process.decided(), Ok(2), "two of three");
    }

    #[test]
    fn sentinels_that_disagree_in_one_epoch_are_told_apart() {
        let mut process = Process::with([view(1, 1), view(1, 2), silent()]);
        let said = process.decided().err().unwrap_or_default();
        assert!(
            said.contains("disagree about the master `orders` (s1: db:1; s2: db:2)"),
            "{said}"
        );
        process.learn("s3", &SENTINELS, view(1, 2));
        assert_eq!(process.decided(), Ok(2), "two of three");
    }

    #[test]
    fn without_a_view_each_sentinel_s_reason_is_told() {
        let said = Process::with([silent(), silent(), silent()]).decided();
        let said = said.err().unwrap_or_default();
        assert!(said.contains("(s1: no answer; s2: no answer; s3: no answer)"), "{said}");
    }
}
