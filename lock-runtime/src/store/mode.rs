//! The modes in which a lock can be held. A holder's value shows its mode by the text before its
//! token, so a store needs nothing else to know what to do with it.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::key;

/// The rule that decides which holders can share a lock.
///
/// ```
/// # use lock_runtime::LockMode;
/// # use std::num::NonZeroU32;
/// assert_eq!(LockMode::owner("order:7"), LockMode::Owner("order:7".into()));
/// let five = NonZeroU32::new(5).map(LockMode::Semaphore);
/// assert_eq!(five.unwrap().to_string(), "semaphore(5)");
/// ```
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
    Semaphore(NonZeroU32),
    /// Any number of holders that act for the same owner, given by its name. It may be any text: it is
    /// percent-encoded where it is stored and shown.
    Owner(Arc<str>),
}

impl LockMode {
    /// Creates the mode that holders acting for one owner share.
    #[must_use]
    pub fn owner(name: &str) -> Self {
        Self::Owner(name.into())
    }

    /// Creates the mode of a semaphore with this many permits, or returns `None` for a number that lets
    /// nobody in.
    pub(crate) fn of_permits(permits: u32) -> Option<Self> {
        NonZeroU32::new(permits).map(Self::Semaphore)
    }

    /// Returns the class that precedes a colon in the values of this mode's holders, or `None` for
    /// an exclusive lock.
    pub(super) fn class(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Exclusive => None,
            Self::Read => Some(Cow::Borrowed("r")),
            Self::Write => Some(Cow::Borrowed("w")),
            Self::Semaphore(permits) => Some(Cow::Owned(format!("s{permits}"))),
            // A colon would end the class, or make the value one of another owner.
            Self::Owner(owner) => Some(Cow::Owned(format!("o{}", key::encode_value(owner)))),
        }
    }

    /// Returns the mode that a holder's value encodes. The value `<class>:<token>…` has the mode of
    /// its class; a value in any other form is that of an exclusive lock.
    pub(super) fn of(value: &str) -> Self {
        let (class, _) = split(value);
        match class.split_at_checked(1) {
            Some(("r", "")) => Some(Self::Read),
            Some(("w", "")) => Some(Self::Write),
            // The scripts count a number that lets nobody in as one.
            Some(("s", permits)) => permits
                .parse::<u32>()
                .ok()
                .and_then(|permits| Self::of_permits(permits.max(1))),
            Some(("o", owner)) => key::decoded(owner).map(|owner| Self::Owner(owner.into())),
            _ => None,
        }
        .unwrap_or_default()
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
            // The name may have a line break.
            Self::Owner(owner) => write!(f, "owner {}", key::encode_value(owner)),
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
    use std::time::Duration;

    use super::*;
    use crate::error::LockError;
    use crate::manager::LockManager;

    #[tokio::test(start_paused = true)]
    async fn owners_whose_names_look_like_values_exclude_each_other() -> Result<(), Box<dyn std::error::Error>> {
        let locks = LockManager::builder("memory://").build()?;
        let token = "0123456789abcdef0123456789abcdef";
        let names = ["x", &format!("x:{token}"), "a:b", "a%3Ab", ":", "x:", "ö\n"];
        for (at, name) in names.iter().enumerate() {
            let owner = |name: &str| {
                let owner = locks.lock("k").mode(LockMode::Owner(name.into())).wait(Duration::ZERO);
                owner.acquire()
            };
            let guard = owner(name).await?;
            let same = owner(name)
                .await
                .map_err(|error| format!("{name:?} shut itself out: {error}"))?;
            for other in names.iter().take(at) {
                let other = owner(other).await.map(|guard| guard.handle().mode().clone());
                assert!(
                    matches!(&other, Err(LockError::Busy { .. })),
                    "{other:?} beside {name:?}"
                );
            }
            same.release().await?;
            guard.release().await?;
        }
        Ok(())
    }

    #[test]
    fn a_value_tells_its_mode() {
        let token = "0123456789abcdef0123456789abcdef:host:1:f";
        let modes = [
            LockMode::Exclusive,
            LockMode::Read,
            LockMode::Write,
            LockMode::of_permits(5).unwrap_or_default(),
            LockMode::owner("order:7 é%"),
            LockMode::Owner("order:7 é%".into()),
            LockMode::Owner("x:0123456789abcdef0123456789abcdef".into()),
            LockMode::Owner("a%3Ab".into()),
            LockMode::owner(""),
        ];
        for mode in modes {
            let value = mode
                .class()
                .map_or_else(|| token.to_owned(), |class| format!("{class}:{token}"));
            assert_eq!(LockMode::of(&value), mode);
            assert!(is_ours(&value));
            assert_eq!(split(&value).1, token);
        }
        for (class, mode) in [
            ("s0", LockMode::of_permits(1).unwrap_or_default()),
            ("oorder%2F7", LockMode::owner("order/7")),
            // No name becomes one of these.
            ("o7%", LockMode::Exclusive),
            ("o%zz", LockMode::Exclusive),
            ("o%+1", LockMode::Exclusive),
            ("o%FF", LockMode::Exclusive),
        ] {
            assert_eq!(LockMode::of(&format!("{class}:{token}")), mode, "{class}");
        }
        assert_eq!(LockMode::owner("a:b\n").to_string(), "owner a%3Ab%0A");
        for foreign in ["", "r", "r:", "r:x", "some:value", ":r"] {
            assert_eq!(LockMode::of(foreign), LockMode::Exclusive);
            assert!(!is_ours(foreign), "{foreign}");
        }
    }
}
