//! The judge of mutual exclusion. It relies on its own observations, and not on the lock's answers.
//!
//! - [`Judge`] looks at records afterwards: which holder had the lock from when to when, with which
//!   token, and which one wrote. Records of several processes compare because [`Stamp`] is one
//!   clock for the whole host.
//! - [`StoreJudge`] sits on a server of its own and looks at each entry as it happens, in one script, by that server's time. It is
//!   the resource a lock protects, and refuses writes with an old token as such a resource should.
//!
//! The fencing token is the witness of the order, so a check costs one sort.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::FromRedisValue;

use crate::clock::Stamp;
use crate::server::Server;

// --- From records ------------------------------------------------------------------------------------------------------

/// One time that someone held the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who; without white space.
    pub holder: String,
    /// When the acquisition began: before anything was sent.
    pub asked: Stamp,
    /// When the grant was known, at or before the first poll of the body.
    pub entered: Stamp,
    /// When the last poll of the body had ended.
    pub left: Stamp,
    /// The fencing token, if one was taken.
    pub token: Option<u64>,
}

/// One write that the protected resource accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Who wrote.
    pub holder: String,
    /// When the resource accepted it.
    pub at: Stamp,
    /// The token it was written with.
    pub token: u64,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two held at the same time.
    Overlap(Hold, Hold),
    /// Someone left before they entered: the records are wrong.
    Backwards(Hold),
    /// Two holds have one token.
    SameToken(Hold, Hold),
    /// The first hold was over before the second was asked for, and has no smaller token.
    TokenOrder(Hold, Hold),
    /// The second write came later and was accepted with a smaller token.
    WriteOrder(Write, Write),
}

/// What a clean record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many holds there were.
    pub holds: usize,
    /// How many of them had a token.
    pub tokens: usize,
    /// How many writes were accepted.
    pub writes: usize,
}

/// Collects records, from any thread, and checks them. Clones share their records.
#[derive(Clone, Debug, Default)]
pub struct Judge(Arc<Mutex<Records>>);

#[derive(Clone, Debug, Default)]
struct Records {
    holds: Vec<Hold>,
    writes: Vec<Write>,
}

/// Being inside, in this process. Dropping it is leaving: keep it in the body, as its first local.
#[derive(Debug)]
pub struct Inside {
    judge: Judge,
    hold: Hold,
}

impl Judge {
    /// A judge without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that `holder` enters now; `asked` is a stamp from before its acquisition.
    #[must_use = "dropping it is leaving"]
    pub fn enter(&self, holder: impl Into<String>, asked: Stamp, token: Option<u64>) -> Inside {
        let now = Stamp::now();
        Inside {
            judge: self.clone(),
            hold: Hold {
                holder: holder.into(),
                asked,
                entered: now,
                left: now,
                token,
            },
        }
    }

    /// Adds a hold, for instance one that a child process printed.
    pub fn hold(&self, hold: Hold) {
        self.records().holds.push(hold);
    }

    /// Adds a write that the resource accepted just now.
    pub fn wrote(&self, holder: impl Into<String>, token: u64) {
        // The lock comes first: records and stamps must have one order.
        let mut records = self.records();
        records.writes.push(Write {
            holder: holder.into(),
            at: Stamp::now(),
            token,
        });
    }

    /// Adds a write from elsewhere.
    pub fn write(&self, write: Write) {
        self.records().writes.push(write);
    }

    /// Checks everything so far. The promises:
    ///
    /// 1. no two holds overlap;
    /// 2. no two holds have one token;
    /// 3. a hold that was over before another was asked for has the smaller token;
    /// 4. accepted writes never go back in token.
    ///
    /// # Errors
    /// The violations, of each kind the first few at least.
    pub fn check(&self) -> Result<Summary, Vec<Violation>> {
        let Records { holds, writes } = self.records().clone();
        let mut violations = Vec::new();
        violations.extend(
            holds
                .iter()
                .filter(|hold| hold.entered > hold.left || hold.asked > hold.entered)
                .cloned()
                .map(Violation::Backwards),
        );
        overlaps(&holds, &mut violations);
        let fenced: Vec<_> = holds.iter().filter_map(|hold| Some((hold.token?, hold))).collect();
        same_tokens(fenced.clone(), &mut violations);
        token_order(&fenced, &mut violations);
        write_order(writes.clone(), &mut violations);
        if violations.is_empty() {
            Ok(Summary {
                holds: holds.len(),
                tokens: fenced.len(),
                writes: writes.len(),
            })
        } else {
            Err(violations)
        }
    }

    /// [`Judge::check`] as an assertion. `at_least` holds must have been seen: a judge that saw nothing proves nothing.
    pub fn assert_clean(&self, at_least: usize) {
        match self.check() {
            Ok(summary) => {
                assert!(
                    summary.holds >= at_least,
                    "the judge saw {} holds only, not {at_least}",
                    summary.holds
                );
            }
            Err(violations) => panic!(
                "{} violations, of which the first: {:#?}",
                violations.len(),
                violations[0]
            ),
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.hold.left = Stamp::now();
        self.judge.hold(self.hold.clone());
    }
}

fn overlaps(holds: &[Hold], violations: &mut Vec<Violation>) {
    let mut by_entry: Vec<_> = holds.iter().collect();
    by_entry.sort_by_key(|hold| hold.entered);
    // A long hold may reach over several short ones: compare with whoever leaves last so far.
    let mut last: Option<&Hold> = None;
    for hold in by_entry {
        if let Some(last) = last
            && hold.entered < last.left
        {
            violations.push(Violation::Overlap(last.clone(), hold.clone()));
        }
        if last.is_none_or(|last| last.left < hold.left) {
            last = Some(hold);
        }
    }
}

fn same_tokens(mut fenced: Vec<(u64, &Hold)>, violations: &mut Vec<Violation>) {
    fenced.sort_by_key(|(token, _)| *token);
    for pair in fenced.windows(2) {
        if pair[0].0 == pair[1].0 {
            violations.push(Violation::SameToken(pair[0].1.clone(), pair[1].1.clone()));
        }
    }
}

fn token_order(fenced: &[(u64, &Hold)], violations: &mut Vec<Violation>) {
    let mut by_end = fenced.to_vec();
    by_end.sort_by_key(|(_, hold)| hold.left);
    let mut by_question = fenced.to_vec();
    by_question.sort_by_key(|(_, hold)| hold.asked);
    let mut over = by_end.into_iter().peekable();
    let mut highest: Option<(u64, &Hold)> = None;
    for (token, hold) in by_question {
        while let Some(ended) = over.next_if(|(_, ended)| ended.left < hold.asked) {
            if highest.is_none_or(|highest| highest.0 < ended.0) {
                highest = Some(ended);
            }
        }
        if let Some((_, before)) = highest.filter(|highest| highest.0 >= token) {
            violations.push(Violation::TokenOrder(before.clone(), hold.clone()));
        }
    }
}

fn write_order(mut writes: Vec<Write>, violations: &mut Vec<Violation>) {
    // Stable: of two writes with one stamp, the one recorded first was first.
    writes.sort_by_key(|write| write.at);
    for pair in writes.windows(2) {
        if pair[1].token < pair[0].token {
            violations.push(Violation::WriteOrder(pair[0].clone(), pair[1].clone()));
        }
    }
}

/// One line: `hold <holder> <asked> <entered> <left> <token or ->`, for a child to print.
impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            holder,
            asked,
            entered,
            left,
            token,
        } = self;
        write!(f, "hold {holder} {asked} {entered} {left} ")?;
        match token {
            Some(token) => write!(f, "{token}"),
            None => write!(f, "-"),
        }
    }
}

/// The line was not one that [`Hold`] prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHold;

impl FromStr for Hold {
    type Err = NoHold;

    fn from_str(line: &str) -> Result<Self, NoHold> {
        let words: Vec<_> = line.split(' ').collect();
        let ["hold", holder, asked, entered, left, token] = words[..] else {
            return Err(NoHold);
        };
        let stamp = |word: &str| word.parse().map_err(|_| NoHold);
        Ok(Self {
            holder: holder.to_owned(),
            asked: stamp(asked)?,
            entered: stamp(entered)?,
            left: stamp(left)?,
            token: if token == "-" {
                None
            } else {
                Some(token.parse().map_err(|_| NoHold)?)
            },
        })
    }
}

// --- On a server -------------------------------------------------------------------------------------------------------

/// A judge that sits on a server of its own, for holders in any process. Each call blocks for one round trip.
pub struct StoreJudge(Arc<Mutex<redis::Connection>>);

/// Being inside, as the store saw it. Dropping it is leaving.
pub struct StoreInside {
    judge: StoreJudge,
    holder: String,
}

/// An entry or an exit, by the judging server's own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `true` for an entry.
    pub enters: bool,
    /// Who.
    pub holder: String,
    /// The judging server's time in microseconds.
    pub micros: u64,
}

/// Panics on any violation, or when there are fewer entries than `at_least`.
pub(crate) fn assert_clean(violations: &[String], entries: usize, at_least: usize) {
    assert!(
        violations.is_empty(),
        "{} violations, of which the first: {}",
        violations.len(),
        violations[0]
    );
    assert!(
        entries >= at_least,
        "the judge saw {entries} entries only, not {at_least}"
    );
}

const SCRIPT: &str = include_str!("judge.lua");

/// A connection to the server that a judge is on.
pub(crate) fn connection(url: &str) -> redis::Connection {
    // No read time-out: a read that has one is not restarted after a signal, but fails with EINTR.
    redis::Client::open(url)
        .and_then(|client| client.get_connection())
        .unwrap_or_else(|error| panic!("no connection to the judge at {url}: {error}"))
}

impl StoreJudge {
    /// A judge on this server, which should serve nothing else.
    #[must_use]
    pub fn on(server: &Server) -> Self {
        Self::connect(&server.url())
    }

    /// The same judge, from another process.
    #[must_use]
    pub fn connect(url: &str) -> Self {
        Self(Arc::new(Mutex::new(connection(url))))
    }

    /// Notes that `holder` is inside from now on. A holder's name is used once at a time.
    #[must_use = "dropping it is leaving"]
    pub fn enter(&self, holder: &str, token: Option<u64>) -> StoreInside {
        let token = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        self.call::<()>("enter", holder, &token);
        StoreInside {
            judge: Self(Arc::clone(&self.0)),
            holder: holder.to_owned(),
        }
    }

    /// Notes that `holder` is gone without leaving: its process was killed.
    pub fn abandon(&self, holder: &str) {
        self.call::<()>("abandon", holder, "-");
    }

    /// Writes to the fenced resource; `false` when it refused because it has seen a higher token, be it on entry or on a write, or the
    /// same one from another holder.
    #[must_use]
    pub fn write(&self, holder: &str, token: u64) -> bool {
        self.call("write", holder, &token.to_string())
    }

    /// Every violation seen so far, in words.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.ask(&["LRANGE", "judge:violations", "0", "-1"])
    }

    /// Every entry and exit so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let events: Vec<String> = self.ask(&["LRANGE", "judge:events", "0", "-1"]);
        let parse = |event: &String| {
            let mut words = event.splitn(3, ' ');
            let enters = words.next()? == "enter";
            Some(Event {
                enters,
                micros: words.next()?.parse().ok()?,
                holder: words.next()?.to_owned(),
            })
        };
        events
            .iter()
            .map(|event| parse(event).expect("the judge's own format"))
            .collect()
    }

    /// How many entries there were.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.ask::<Option<usize>>(&["GET", "judge:entries"]).unwrap_or(0)
    }

    /// How many writes were accepted.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.ask::<Option<usize>>(&["GET", "judge:writes"]).unwrap_or(0)
    }

    /// How many writes were refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.ask::<Option<usize>>(&["GET", "judge:refused"]).unwrap_or(0)
    }

    /// Panics on any violation, or when fewer than `at_least` entries were seen.
    pub fn assert_clean(&self, at_least: usize) {
        assert_clean(&self.violations(), self.entries(), at_least);
    }

    fn call<T: FromRedisValue>(&self, verb: &str, holder: &str, token: &str) -> T {
        self.ask(&["EVAL", SCRIPT, "0", verb, holder, token])
    }

    fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_ask(command)
            .unwrap_or_else(|error| panic!("the judge's server failed: {error}"))
    }

    fn try_ask<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut packed = redis::cmd(command[0]);
        packed.arg(&command[1..]);
        packed.query(&mut *connection)
    }
}

impl Drop for StoreInside {
    fn drop(&mut self) {
        let left = self
            .judge
            .try_ask::<()>(&["EVAL", SCRIPT, "0", "leave", &self.holder, "-"]);
        // A second panic would end the test process before it can say what the first was about.
        assert!(
            left.is_ok() || std::thread::panicking(),
            "the judge's server failed: {left:?}"
        );
    }
}

impl fmt::Debug for StoreJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreJudge")
    }
}

impl fmt::Debug for StoreInside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreInside")
            .field("holder", &self.holder)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(holder: &str, asked: u64, entered: u64, left: u64, token: u64) -> Hold {
        Hold {
            holder: holder.into(),
            asked: Stamp::from_nanos(asked),
            entered: Stamp::from_nanos(entered),
            left: Stamp::from_nanos(left),
            token: Some(token),
        }
    }

    fn verdict(holds: &[Hold], writes: &[(u64, u64)]) -> Result<Summary, Vec<Violation>> {
        let judge = Judge::new();
        holds.iter().cloned().for_each(|hold| judge.hold(hold));
        for &(at, token) in writes {
            judge.write(Write {
                holder: "w".into(),
                at: Stamp::from_nanos(at),
                token,
            });
        }
        judge.check()
    }

    #[test]
    fn clean_record_is_accepted() {
        let holds = [hold("a", 0, 1, 5, 10), hold("b", 2, 5, 7, 11), hold("c", 3, 8, 9, 12)];
        assert_eq!(
            verdict(&holds, &[(4, 10), (5, 10), (6, 11)]),
            Ok(Summary {
                holds: 3,
                tokens: 3,
                writes: 3
            })
        );
    }

    #[test]
    fn tokens_of_waiters_may_come_in_any_order_of_asking() {
        assert!(verdict(&[hold("late", 0, 6, 7, 2), hold("early", 1, 2, 3, 1)], &[]).is_ok());
    }

    #[test]
    fn overlap_is_found() {
        let (a, b) = (hold("a", 0, 1, 5, 1), hold("b", 0, 4, 6, 2));
        assert_eq!(
            verdict(&[b.clone(), a.clone()], &[]),
            Err(vec![Violation::Overlap(a, b)])
        );
    }

    #[test]
    fn overlap_with_a_long_hold_behind_a_short_one_is_found() {
        let (long, short, late) = (
            hold("long", 0, 1, 100, 1),
            hold("short", 0, 2, 3, 2),
            hold("late", 0, 50, 60, 3),
        );
        let found = verdict(&[long.clone(), short.clone(), late.clone()], &[]);
        assert_eq!(
            found,
            Err(vec![
                Violation::Overlap(long.clone(), short),
                Violation::Overlap(long, late)
            ])
        );
    }

    #[test]
    fn overlap_without_tokens_is_found() {
        let without = |hold: Hold| Hold { token: None, ..hold };
        assert!(verdict(&[without(hold("a", 0, 1, 5, 0)), without(hold("b", 0, 4, 6, 0))], &[]).is_err());
    }

    #[test]
    fn repeated_token_is_found() {
        let found = verdict(&[hold("a", 0, 1, 2, 7), hold("b", 1, 3, 4, 7)], &[]).unwrap_err();
        assert!(matches!(found[..], [Violation::SameToken(..)]), "{found:?}");
    }

    #[test]
    fn token_that_goes_back_is_found() {
        let (a, b, c) = (hold("a", 0, 1, 2, 9), hold("b", 3, 4, 5, 8), hold("c", 6, 7, 8, 10));
        assert_eq!(
            verdict(&[a.clone(), b.clone(), c], &[]),
            Err(vec![Violation::TokenOrder(a, b)])
        );
    }

    #[test]
    fn token_that_goes_back_after_others_is_found() {
        let (a, b, c) = (hold("a", 0, 1, 2, 9), hold("b", 3, 4, 5, 10), hold("c", 6, 7, 8, 3));
        assert_eq!(
            verdict(&[a, b.clone(), c.clone()], &[]),
            Err(vec![Violation::TokenOrder(b, c)])
        );
    }

    #[test]
    fn stale_write_is_found() {
        let found = verdict(&[], &[(1, 5), (3, 5), (2, 6)]).unwrap_err();
        assert!(
            matches!(&found[..], [Violation::WriteOrder(first, second)] if first.token == 6 && second.token == 5),
            "{found:?}"
        );
    }

    #[test]
    fn record_that_runs_backwards_is_found() {
        assert!(matches!(
            verdict(&[hold("a", 0, 5, 1, 1)], &[]).unwrap_err()[..],
            [Violation::Backwards(_)]
        ));
    }

    #[test]
    #[should_panic(expected = "saw 0 holds only")]
    fn judge_that_saw_nothing_proves_nothing() {
        Judge::new().assert_clean(1);
    }

    #[test]
    fn hold_survives_its_line() {
        let with = hold("node-1", 1, 2, 3, u64::MAX);
        assert_eq!(with.to_string().parse(), Ok(with.clone()));
        let without = Hold { token: None, ..with };
        assert_eq!(without.to_string().parse(), Ok(without));
        assert_eq!("hold a 1 2".parse::<Hold>(), Err(NoHold));
    }

    #[test]
    fn guard_records_entry_and_exit() {
        let judge = Judge::new();
        let asked = Stamp::now();
        drop(judge.enter("a", asked, Some(1)));
        drop(judge.enter("b", Stamp::now(), None));
        judge.assert_clean(2);
        assert_eq!(
            judge.check().unwrap(),
            Summary {
                holds: 2,
                tokens: 1,
                writes: 0
            }
        );
    }
}
