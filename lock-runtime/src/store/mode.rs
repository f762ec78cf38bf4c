//! The modes in which a lock can be held.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::key;

/// The rule that decides which holders can share a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockMode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of readers, while there is no writer.
    Read,
    /// One writer, while there is no reader.
    Write,
    /// At most this many holders. If their numbers differ, the smallest counts.
    Semaphore(u32),
    /// Any number of holders that act for the same owner, given by its percent-encoded name.
    Owner(Arc<str>),
}

impl LockMode {
    /// Creates the mode that holders acting for one owner share.
    #[must_use]
    pub fn owner(name: &str) -> Self {
        Self::Owner(key::encoded(name).into())
    }

    /// Returns the class that precedes a colon in the values of this mode's holders, or `None` for
    /// an exclusive lock.
    pub(super) fn class(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Exclusive => None,
            Self::Read => Some(Cow::Borrowed("r")),
            Self::Write => Some(Cow::Borrowed("w")),
            Self::Semaphore(permits) => Some(Cow::Owned(format!("s{permits}"))),
            Self::Owner(owner) => Some(Cow::Owned(format!("o{owner}"))),
        }
    }

    /// Returns the mode that a holder's value encodes. The value `<class>:<token>…` has the mode of
    /// its class; a value in any other form is that of an exclusive lock.
    pub(super) fn of(value: &str) -> Self {
        let (class, _) = split(value);
        match class.split_at_checked(1) {
            Some(("r", "")) => Self::Read,
            Some(("w", "")) => Self::Write,
            Some(("s", permits)) => permits.parse().map_or(Self::Exclusive, Self::Semaphore),
            Some(("o", owner)) => Self::Owner(owner.into()),
            _ => Self::Exclusive,
        }
    }

    /// Returns `true` if a holder's value belongs to any mode but exclusive.
    pub(super) fn is_shared(value: &str) -> bool {
        !split(value).0.is_empty()
    }

    /// Returns `true` if the lock has at most one holder or owner at a time, so that a fencing
    /// token distinguishes that holder from earlier ones.
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self, Self::Read | Self::Semaphore(_))
    }
}

impl fmt::Display for LockMode {
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

/// Returns `true` if a holder's value has the form that this library writes, and was not written by
/// another kind of client.
pub(super) fn is_ours(value: &str) -> bool {
    !split(value).0.is_empty() || is_token(value)
}

/// The number of digits of a token: 128 bits in hexadecimal.
pub(super) const TOKEN_LENGTH: usize = 32;

/// Splits a value into its class, empty for an exclusive lock, and the rest.
pub(super) fn split(value: &str) -> (&str, &str) {
    match value.split_once(':') {
        Some((class, rest)) if class.starts_with(['r', 'w', 's', 'o']) && is_token(rest) => (class, rest),
        _ => ("", value),
    }
}

fn is_token(text: &str) -> bool {
    text.as_bytes()
        .get(..TOKEN_LENGTH)
        .is_some_and(|token| token.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_mode() {
        let token = "0123456789abcdef0123456789abcdef:host:1:f";
        let modes = [
            LockMode::Exclusive,
            LockMode::Read,
            LockMode::Write,
            LockMode::Semaphore(5),
            LockMode::owner("order:7 é%"),
            LockMode::owner(""),
        ];
        for mode in modes {
            let value = mode
                .class()
                .map_or_else(|| token.to_owned(), |class| format!("{class}:{token}"));
            assert_eq!(LockMode::of(&value), mode);
            assert_eq!(LockMode::is_shared(&value), mode != LockMode::Exclusive);
            assert!(is_ours(&value));
            assert_eq!(split(&value).1, token);
        }
        for foreign in ["", "r", "r:", "r:x", "some:value", ":r"] {
            assert_eq!(LockMode::of(foreign), LockMode::Exclusive);
            assert!(!is_ours(foreign), "{foreign}");
        }
    }
}
