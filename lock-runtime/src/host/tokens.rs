//! Random tokens, drawn a few at once, since each draw is a system call.

use std::cell::RefCell;
use std::time::Duration;

use crate::host::Moment;

/// The time for which a drawn token may be used: two restores of one machine snapshot use the same
/// tokens only if the snapshot was taken within that time after the draw, as if it had been taken
/// while the locks were held.
const FRESH: Duration = Duration::from_millis(1);
const TOKENS: usize = 16;
const BYTES: usize = size_of::<u128>();

/// The tokens that a thread has drawn and not used yet.
struct Drawn {
    bytes: [u8; TOKENS * BYTES],
    /// The number of bytes not used yet, at the beginning of `bytes`.
    left: usize,
    at: Moment,
    /// A forked child has the same tokens as its parent, and uses none of them.
    fork: forkguard::Guard,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = RefCell::new(Drawn {
        bytes: [0; TOKENS * BYTES],
        left: 0,
        at: Moment::from_nanos(0),
        fork: forkguard::new(),
    });
}

/// Returns a random token that nobody else has. `fill` draws random bytes.
///
/// # Errors
/// Fails as `fill` does.
pub(super) fn next<E>(now: Moment, fill: impl Fn(&mut [u8]) -> Result<(), E>) -> Result<u128, E> {
    let drawn = DRAWN.try_with(|drawn| drawn.try_borrow_mut().ok()?.next(now, &fill));
    if let Ok(Some(token)) = drawn {
        return token;
    }
    // The thread is about to end.
    let mut bytes = [0; BYTES];
    fill(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

impl Drawn {
    fn next<E>(&mut self, now: Moment, fill: impl Fn(&mut [u8]) -> Result<(), E>) -> Option<Result<u128, E>> {
        let was_lately = now.since(self.at) < FRESH && now >= self.at;
        if self.fork.detected_fork() || !was_lately {
            self.left = 0;
        }
        if self.left == 0 {
            // A thread that needs one now and then draws no more than that.
            let many = if was_lately { TOKENS * BYTES } else { BYTES };
            if let Err(error) = fill(self.bytes.get_mut(..many)?) {
                return Some(Err(error));
            }
            self.left = many;
            self.at = now;
        }
        self.left -= BYTES;
        let token = self.bytes.get(self.left..)?.first_chunk()?;
        Some(Ok(u128::from_ne_bytes(*token)))
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_busy_thread_draws_several_tokens_at_once_and_uses_each_once_and_fresh() {
        let (draws, number) = (Cell::new(0), Cell::new(0_u8));
        let fill = |bytes: &mut [u8]| {
            draws.set(draws.get() + 1);
            for token in bytes.chunks_mut(BYTES) {
                number.set(number.get() + 1);
                token.fill(number.get());
            }
            Ok::<_, Infallible>(())
        };
        let start = Moment::from_nanos(1_000_000_000);
        let mut seen = BTreeSet::new();
        for _ in 0..=TOKENS {
            seen.insert(next(start, fill).unwrap());
        }
        assert_eq!((seen.len(), draws.get()), (TOKENS + 1, 2), "one, then many");
        next(start, fill).unwrap();
        let (before, later) = (number.get(), start.after(FRESH));
        let token = next(later, fill).unwrap();
        assert_eq!(token, u128::from_ne_bytes([before + 1; BYTES]), "an old token was used");
        assert_eq!(draws.get(), 4);
    }

    #[test]
    fn a_forked_process_uses_no_token_of_its_parent() {
        let now = Moment::from_nanos(1_000_000_000);
        let draw = || next(now, getrandom::fill).unwrap();
        // The second draw leaves tokens for later.
        let mut drawn = vec![draw(), draw()];
        let (reader, writer) = std::io::pipe().unwrap();
        let copy = fork::fork().unwrap();
        if copy == fork::Fork::Child {
            let _ = std::io::Write::write_all(&mut &writer, &draw().to_ne_bytes());
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        drop(writer);
        let mut copied = Vec::new();
        std::io::Read::read_to_end(&mut &reader, &mut copied).unwrap();
        let copied = u128::from_ne_bytes(copied.try_into().unwrap());
        drawn.extend((0..TOKENS).map(|_| draw()));
        assert!(!drawn.contains(&copied), "a token is used on both sides of the fork");
    }

    #[test]
    fn a_failed_draw_is_no_token() {
        let now = Moment::from_nanos(1_000_000_000);
        assert_eq!(next(now, |_: &mut [u8]| Err("no random bytes")), Err("no random bytes"));
        assert_eq!(next(now.after(FRESH), |_: &mut [u8]| Err("none")), Err("none"));
    }
}
