//! How a lock is shared.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::key;

/// Who may hold a lock at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of readers, while nobody writes.
    Read,
    /// One writer, while nobody reads.
    Write,
    /// At most so many holders. Where they do not agree, the smallest number counts.
    Semaphore(u32),
    /// Any number of holders that act for the same owner: its name, percent-encoded.
    Owner(Arc<str>),
}

impl Mode {
    /// The mode of several holders that act for one owner.
    #[must_use]
    pub fn owner(name: &str) -> Self {
        Self::Owner(key::encoded(name).into())
    }

    /// What the values of this mode's holders start with, before a colon. Holders of an exclusive lock have none.
    #[must_use]
    pub fn class(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Exclusive => None,
            Self::Read => Some(Cow::Borrowed("r")),
            Self::Write => Some(Cow::Borrowed("w")),
            Self::Semaphore(permits) => Some(Cow::Owned(format!("s{permits}"))),
            Self::Owner(owner) => Some(Cow::Owned(format!("o{owner}"))),
        }
    }

    /// The mode that a holder's value tells: it is `<class>:<token>…`, or in any other form an exclusive lock's.
    #[must_use]
    pub fn of(value: &str) -> Self {
        let (class, _) = split(value);
        match class.split_at_checked(1) {
            Some(("r", "")) => Self::Read,
            Some(("w", "")) => Self::Write,
            Some(("s", permits)) => permits.parse().map_or(Self::Exclusive, Self::Semaphore),
            Some(("o", owner)) => Self::Owner(owner.into()),
            _ => Self::Exclusive,
        }
    }

    /// Whether a holder's value belongs to a mode in which several can hold the lock, or could: any but exclusive.
    #[must_use]
    pub fn is_shared(value: &str) -> bool {
        !split(value).0.is_empty()
    }

    /// Whether there is at most one holder, so that a fencing token tells it from the earlier ones.
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self, Self::Read | Self::Semaphore(_))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Semaphore(permits) => write!(f, "semaphore({permits})"),
            Self::Owner(owner) => write!(f, "owner {owner}"),
        }
    }
}

/// The digits of a token: 128 bits in hexadecimal.
pub(crate) const TOKEN_LENGTH: usize = 32;

/// A value's class, empty for an exclusive lock's, and what comes after it.
pub(crate) fn split(value: &str) -> (&str, &str) {
    let is_token = |text: &str| {
        text.as_bytes()
            .get(..TOKEN_LENGTH)
            .is_some_and(|token| token.iter().all(u8::is_ascii_hexdigit))
    };
    match value.split_once(':') {
        Some((class, rest)) if class.starts_with(['r', 'w', 's', 'o']) && is_token(rest) => (class, rest),
        _ => ("", value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_mode() {
        let token = "0123456789abcdef0123456789abcdef:host:1:f";
        let modes = [
            Mode::Exclusive,
            Mode::Read,
            Mode::Write,
            Mode::Semaphore(5),
            Mode::owner("order:7 é%"),
            Mode::owner(""),
        ];
        for mode in modes {
            let value = mode
                .class()
                .map_or_else(|| token.to_owned(), |class| format!("{class}:{token}"));
            assert_eq!(Mode::of(&value), mode);
            assert_eq!(Mode::is_shared(&value), mode != Mode::Exclusive);
            assert_eq!(split(&value).1, token);
        }
        for foreign in ["", "r", "r:", "r:x", "some:value", ":r"] {
            assert_eq!(Mode::of(foreign), Mode::Exclusive);
        }
    }
}
