//! Which server the sentinels name, from what each of them says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::store::StoreError;

/// What one sentinel says about the master.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct View {
    /// Grows with every failover.
    pub(super) epoch: u64,
    pub(super) host: String,
    pub(super) port: u16,
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
    pub(super) advice: Option<&'static str>,
    /// `true` if asking again is of no use until something is changed.
    pub(super) is_permanent: bool,
}

/// What follows from an answer.
#[derive(Debug)]
pub(super) enum Decision {
    /// Nothing yet, since others have not answered.
    Wait,
    /// All is as before.
    Stay,
    /// This is the server from now on.
    Move(View),
    /// No server is known. With the number of the oldest question that a sentinel's answer is for.
    Missing(StoreError, u64),
}

/// The views of all sentinels.
pub(super) struct Agreement {
    master: String,
    /// The sentinels of the URL.
    given: Vec<String>,
    views: BTreeMap<String, Option<Result<View, Trouble>>>,
    /// The other sentinels that each of them named last.
    others: BTreeMap<String, BTreeSet<String>>,
    /// The number of the latest question that each of them has answered.
    answered: BTreeMap<String, u64>,
    present: Option<View>,
}

impl Agreement {
    /// Creates one without a view of these sentinels.
    pub(super) fn new(master: &str, sentinels: impl Iterator<Item = String>) -> Self {
        let given: Vec<String> = sentinels.collect();
        Self {
            master: master.to_owned(),
            views: given.iter().map(|sentinel| (sentinel.clone(), None)).collect(),
            given,
            others: BTreeMap::new(),
            answered: BTreeMap::new(),
            present: None,
        }
    }

    /// Adds a sentinel. Returns `false` if it is known.
    pub(super) fn add(&mut self, sentinel: &str) -> bool {
        let is_new = !self.views.contains_key(sentinel);
        if is_new {
            self.views.insert(sentinel.to_owned(), None);
        }
        is_new
    }

    /// Records which other sentinels one has named.
    pub(super) fn name_others(&mut self, sentinel: &str, others: BTreeSet<String>) {
        self.others.insert(sentinel.to_owned(), others);
    }

    /// Returns `true` if a server was found.
    pub(super) fn has_found(&self) -> bool {
        self.present.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.views.len()
    }

    /// Records a sentinel's answer to a question.
    pub(super) fn learn(&mut self, sentinel: &str, view: Result<View, Trouble>, question: u64) {
        self.answered.insert(sentinel.to_owned(), question);
        self.views.insert(sentinel.to_owned(), Some(view));
    }

    /// Decides which server to use. `is_late` is `true` if those that have not answered are not
    /// waited for, and `is_in_doubt` if the present server does not answer as it should.
    ///
    /// The highest epoch counts, and there is no way back to a lower one, unless the present server
    /// is in doubt, no sentinel names it in the present epoch any more, and most sentinels agree on
    /// another: they were set up anew, and count from the beginning.
    pub(super) fn decide(&mut self, is_late: bool, is_in_doubt: bool) -> Decision {
        let is_complete = self.views.values().all(Option::is_some);
        if self.present.is_none() && !is_late && !is_complete {
            return Decision::Wait;
        }
        let named: Vec<&View> = self
            .views
            .values()
            .flatten()
            .filter_map(|view| view.as_ref().ok())
            .collect();
        let Some(highest) = named.iter().map(|view| view.epoch).max() else {
            return match &self.present {
                Some(_) => Decision::Stay,
                // The others are waited for as long as their own time-outs last.
                None if !is_complete => Decision::Wait,
                None => self.missing(self.failure()),
            };
        };
        let latest: Vec<&View> = named.iter().copied().filter(|view| view.epoch == highest).collect();
        let chosen = match &self.present {
            Some(present) if highest > present.epoch => Self::most_named(&latest, latest.len()),
            Some(present) if is_in_doubt && !named.contains(&present) => self.named_by_most_of_all(),
            Some(_) => None,
            None => match Self::most_named(&latest, latest.len()) {
                Some(view) => Some(view),
                None => return self.missing(self.disagreement()),
            },
        };
        match chosen.cloned() {
            Some(view) => {
                self.present = Some(view.clone());
                Decision::Move(view)
            }
            None => Decision::Stay,
        }
    }

    fn missing(&self, reason: StoreError) -> Decision {
        Decision::Missing(reason, self.answered.values().min().copied().unwrap_or_default())
    }

    /// Returns the view that most of all sentinels have, those included that do not answer: as many
    /// as the URL has, or as a sentinel that answers knows of.
    ///
    /// A sentinel may be known by a host name and by an address. It counts once, since no other one
    /// names the same others.
    fn named_by_most_of_all(&self) -> Option<&View> {
        let mut all = self.given.len();
        let mut votes: BTreeMap<&View, BTreeSet<BTreeSet<&str>>> = BTreeMap::new();
        for (sentinel, view) in &self.views {
            let Some(Ok(view)) = view else { continue };
            let others = self.others.get(sentinel).filter(|others| !others.is_empty());
            all = all.max(others.map_or(0, |others| others.len() + 1));
            let identity = match others {
                Some(others) => others.iter().map(String::as_str).collect(),
                None => BTreeSet::from([sentinel.as_str()]),
            };
            votes.entry(view).or_default().insert(identity);
        }
        let most = votes.into_iter().find(|(_, sentinels)| sentinels.len() * 2 > all);
        most.map(|(view, _)| view)
    }

    /// Returns the view that more than half of `all` have.
    fn most_named<'a>(views: &[&'a View], all: usize) -> Option<&'a View> {
        let votes = |one: &View| views.iter().filter(|view| **view == one).count();
        views.iter().copied().find(|view| votes(view) * 2 > all)
    }

    /// Returns each sentinel's address and what `tell` says of its answer, separated by semicolons.
    fn each(&self, tell: impl Fn(&Result<View, Trouble>) -> Option<String>) -> String {
        let told = self.views.iter().filter_map(|(sentinel, view)| {
            let said = tell(view.as_ref()?)?;
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

    /// Returns the reason why no sentinel names a server.
    fn failure(&self) -> StoreError {
        let said = self.each(|view| Some(view.as_ref().err()?.text.clone()));
        let troubles: Vec<&Trouble> = self
            .views
            .values()
            .flatten()
            .filter_map(|view| view.as_ref().err())
            .collect();
        let text = format!("no sentinel names the master `{}` ({said})", self.master);
        let error = if troubles.iter().all(|trouble| trouble.is_permanent) && !troubles.is_empty() {
            StoreError::permanent(text)
        } else {
            StoreError::transient(text)
        };
        let advice = troubles.iter().find_map(|trouble| trouble.advice);
        error.advise(
            advice
                .unwrap_or("see that the sentinels run, and that the addresses are theirs: their usual port is 26379"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Agreement, Decision, Trouble, View};

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

    /// Returns three sentinels' agreement, with these views of the first ones.
    fn agreement(views: impl IntoIterator<Item = Result<View, Trouble>>) -> Agreement {
        let mut agreement = Agreement::new("orders", SENTINELS.map(ToOwned::to_owned).into_iter());
        for (sentinel, view) in SENTINELS.iter().zip(views) {
            agreement.learn(sentinel, view, 1);
        }
        agreement
    }

    /// Returns the decision: the port to move to, or a text.
    fn decided(decision: Decision) -> Result<u16, String> {
        match decision {
            Decision::Move(view) => Ok(view.port),
            Decision::Wait => Err("wait".to_owned()),
            Decision::Stay => Err("stay".to_owned()),
            Decision::Missing(error, _) => Err(error.to_string()),
        }
    }

    fn stays() -> Result<u16, String> {
        Err("stay".to_owned())
    }

    #[test]
    fn the_first_server_is_that_of_the_highest_epoch_once_all_have_answered() {
        let mut agreement = agreement([view(4, 1), view(5, 2)]);
        assert_eq!(decided(agreement.decide(false, false)), Err("wait".to_owned()));
        agreement.learn("s3", silent(), 1);
        assert_eq!(decided(agreement.decide(false, false)), Ok(2));
        assert_eq!(decided(agreement.decide(false, false)), stays());
    }

    #[test]
    fn those_who_do_not_answer_are_not_waited_for_after_a_while() {
        assert_eq!(decided(agreement([view(4, 1)]).decide(true, false)), Ok(1));
    }

    #[test]
    fn one_that_refuses_for_good_does_not_speak_for_those_that_are_slow() {
        let refuses = || {
            Err(Trouble {
                text: "it knows no such master".to_owned(),
                advice: None,
                is_permanent: true,
            })
        };
        let mut agreement = agreement([refuses(), silent()]);
        assert_eq!(decided(agreement.decide(true, false)), Err("wait".to_owned()));
        agreement.learn("s3", view(1, 1), 1);
        assert_eq!(decided(agreement.decide(true, false)), Ok(1));
    }

    #[test]
    fn one_sentinel_with_a_higher_epoch_is_followed_and_there_is_no_way_back() {
        let mut agreement = agreement([view(4, 1), view(4, 1), view(4, 1)]);
        assert_eq!(decided(agreement.decide(false, false)), Ok(1));
        agreement.learn("s2", view(5, 2), 1);
        assert_eq!(decided(agreement.decide(false, false)), Ok(2));
        // Two sentinels have not heard of it yet, and the server is not reachable yet.
        for is_in_doubt in [false, true] {
            assert_eq!(decided(agreement.decide(true, is_in_doubt)), stays());
        }
        // The one that has heard of it is gone: the others are more than half, of a lower epoch.
        agreement.learn("s2", silent(), 1);
        assert_eq!(decided(agreement.decide(true, false)), stays());
    }

    #[test]
    fn the_same_server_with_a_higher_epoch_is_another_one() {
        let mut agreement = agreement([view(4, 1), view(4, 1), view(4, 1)]);
        assert_eq!(decided(agreement.decide(false, false)), Ok(1));
        agreement.learn("s1", view(6, 1), 1);
        assert_eq!(
            decided(agreement.decide(false, false)),
            Ok(1),
            "it was a replica meanwhile"
        );
    }

    #[test]
    fn sentinels_that_were_set_up_anew_are_followed_once_the_server_is_in_doubt() {
        let mut agreement = agreement([view(9, 1), view(9, 1), view(9, 1)]);
        assert_eq!(decided(agreement.decide(false, false)), Ok(1));
        for sentinel in SENTINELS {
            agreement.learn(sentinel, view(0, 2), 1);
        }
        assert_eq!(
            decided(agreement.decide(true, false)),
            stays(),
            "the server still answers"
        );
        assert_eq!(decided(agreement.decide(true, true)), Ok(2));
    }

    #[test]
    fn learnt_sentinels_that_are_gone_have_no_vote() {
        let mut agreement = agreement([view(9, 1), view(9, 1), view(9, 1)]);
        for learnt in ["s4", "s5", "s6", "s7"] {
            agreement.add(learnt);
            agreement.learn(learnt, silent(), 1);
        }
        assert_eq!(decided(agreement.decide(false, false)), Ok(1));
        for sentinel in SENTINELS {
            agreement.learn(sentinel, view(0, 2), 1);
        }
        assert_eq!(decided(agreement.decide(true, true)), Ok(2));
    }

    /// The URL has one sentinel, which the other two no longer reach, nor does this process reach
    /// them.
    #[test]
    fn one_sentinel_of_several_does_not_speak_for_all() {
        let mut agreement = Agreement::new("orders", std::iter::once("s2".to_owned()));
        // Under its host name, and under the address by which the others know it.
        for (name, others) in [
            ("s2", ["ip1", "ip3"]),
            ("ip2", ["ip1", "ip3"]),
            ("ip1", ["ip2", "ip3"]),
            ("ip3", ["ip1", "ip2"]),
        ] {
            agreement.add(name);
            agreement.learn(name, view(9, 1), 1);
            agreement.name_others(name, others.map(ToOwned::to_owned).into());
        }
        assert_eq!(decided(agreement.decide(false, false)), Ok(1));
        for (name, view) in [
            ("ip1", silent()),
            ("ip3", silent()),
            ("s2", view(8, 2)),
            ("ip2", view(8, 2)),
        ] {
            agreement.learn(name, view, 1);
        }
        assert_eq!(decided(agreement.decide(true, true)), stays());
        agreement.learn("ip1", view(8, 2), 1);
        assert_eq!(decided(agreement.decide(true, true)), Ok(2), "two of three");
    }

    #[test]
    fn sentinels_that_disagree_in_one_epoch_are_told_apart() {
        let mut agreement = agreement([view(1, 1), view(1, 2), silent()]);
        let said = decided(agreement.decide(false, false)).err().unwrap_or_default();
        assert!(
            said.contains("disagree about the master `orders` (s1: db:1; s2: db:2)"),
            "{said}"
        );
        agreement.learn("s3", view(1, 2), 1);
        assert_eq!(decided(agreement.decide(false, false)), Ok(2), "two of three");
    }

    #[test]
    fn without_a_view_each_sentinel_s_reason_is_told() {
        let said = decided(agreement([silent(), silent(), silent()]).decide(false, false))
            .err()
            .unwrap_or_default();
        assert!(said.contains("(s1: no answer; s2: no answer; s3: no answer)"), "{said}");
    }
}
