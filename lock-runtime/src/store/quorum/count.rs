//! The rule that decides an attempt from the answers of the masters.

/// One master's answer to an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Vote {
    /// It has not been asked, since it is out of reach or closed, or it has not answered in time or not
    /// properly. It is not the first master, either.
    #[default]
    None,
    /// It owes an answer.
    Asked,
    Granted,
    /// Another holder has the lock there.
    Busy,
}

/// The standing of an attempt, after the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// More answers are needed: for a majority, or to know where to wait.
    Open,
    /// A majority has granted the lock, with the first master in it.
    Won,
    /// The lock is busy at this master, so the call has to wait there.
    Busy(usize),
    /// No majority can be reached, and no other holder was seen.
    TooFew,
}

/// Returns the number of masters that are a majority of `all`.
pub(super) const fn majority(all: usize) -> usize {
    all / 2 + 1
}

/// Counts the votes, which stand in the order of the masters.
///
/// The first master that is in reach decides between calls that ask at the same time: without its vote
/// there is no lock, so two calls cannot each keep a part of the votes and wait for the rest. It also
/// keeps a newcomer from passing the calls that wait there.
pub(super) fn count(votes: &[Vote]) -> Count {
    let needed = majority(votes.len());
    let having = |wanted: &[Vote]| votes.iter().filter(|vote| wanted.contains(vote)).count();
    let first = votes.iter().position(|vote| *vote != Vote::None);
    match first.and_then(|first| votes.get(first)) {
        Some(Vote::Granted) if having(&[Vote::Granted]) >= needed => return Count::Won,
        Some(Vote::Busy) => return first.map_or(Count::TooFew, Count::Busy),
        _ => {}
    }
    if having(&[Vote::Granted, Vote::Asked]) >= needed {
        return Count::Open;
    }
    let Some(busy) = votes.iter().position(|vote| *vote == Vote::Busy) else {
        return Count::TooFew;
    };
    // A call waits where the others do: at the first busy master in order, and not at the one that answers first.
    // Of calls that wait at two masters, each would be handed a vote that the other one needs.
    if votes.iter().take(busy).any(|vote| *vote == Vote::Asked) {
        return Count::Open;
    }
    Count::Busy(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads votes: `g`ranted, `b`usy, asked (`?`), none (`-`).
    fn counted(votes: &str) -> Count {
        let votes: Vec<_> = votes
            .chars()
            .map(|vote| match vote {
                'g' => Vote::Granted,
                'b' => Vote::Busy,
                '?' => Vote::Asked,
                _ => Vote::None,
            })
            .collect();
        count(&votes)
    }

    #[test]
    fn a_majority_counts_only_with_the_first_master_in_reach() {
        for (votes, expected) in [
            ("ggg??", Count::Won),
            ("g?g?g", Count::Won),
            // A newcomer would pass the calls that wait at the first.
            ("?gggg", Count::Open),
            ("bgggg", Count::Busy(0)),
            // Out of reach, it is not the first.
            ("-ggg?", Count::Won),
            ("--ggg", Count::Won),
            ("-?ggg", Count::Open),
            ("-bggg", Count::Busy(1)),
            ("gg???", Count::Open),
            ("ggb??", Count::Open),
            // Of two calls that ask at the same time, the one with the first master's vote goes on.
            ("gg?bb", Count::Open),
            ("gbb??", Count::Open),
            ("gbbb?", Count::Busy(1)),
            // All wait in the queue of the same master, whichever answers first.
            ("?bbbb", Count::Open),
            ("??bbb", Count::Open),
            ("-?bbb", Count::Open),
            ("g?bbb", Count::Open),
            ("gb?bb", Count::Busy(1)),
            // Calls wait at the first busy master in order, whichever answers first.
            ("?bbb?", Count::Open),
            ("-?b", Count::Open),
            ("-bb", Count::Busy(1)),
            ("-gb", Count::Busy(2)),
            ("--b", Count::Busy(2)),
            ("ggbbb", Count::Busy(2)),
            ("gg---", Count::TooFew),
            ("gg-b-", Count::Busy(3)),
            ("-----", Count::TooFew),
            ("?????", Count::Open),
            ("??---", Count::TooFew),
            ("gg?", Count::Won),
            ("g-?", Count::Open),
            ("g--", Count::TooFew),
        ] {
            assert_eq!(counted(votes), expected, "{votes}");
        }
    }

    /// If two calls both had a lock, one master would have granted its vote to both, which no master does.
    #[test]
    fn two_calls_never_both_win() {
        let kinds = [Vote::None, Vote::Asked, Vote::Granted, Vote::Busy];
        let all: Vec<[Vote; 3]> = (0..64_usize)
            .map(|number| [0, 1, 2].map(|at| kinds[number / 4_usize.pow(at) % 4]))
            .collect();
        for one in &all {
            for other in &all {
                let both = one.iter().zip(other);
                let twice = both.filter(|votes| *votes == (&Vote::Granted, &Vote::Granted)).count();
                let won = count(one) == Count::Won && count(other) == Count::Won;
                assert!(!won || twice > 0, "{one:?} {other:?}");
            }
        }
    }
}
