//! The value stored under a lock's key, which identifies the holder.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayString;

use crate::host::Host;
use crate::store::mode::{self, LockMode, TOKEN_LENGTH};

/// The maximum length of a stored value, in bytes, without the class of its mode.
const MAX_VALUE: usize = 200;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Creates the value of a new acquisition: `<token>:<host>:<pid>:<function>`, with the mode's class
/// and a colon before it if the mode has one. The token is 128 random bits in lower-case
/// hexadecimal.
///
/// # Errors
/// Fails if the operating system provides no random bytes.
pub(crate) fn new_value(host: &Host, function: &str, mode: &LockMode) -> Result<HolderValue, getrandom::Error> {
    let token = host.token()?;
    let mut digits = [0; TOKEN_LENGTH];
    let (pairs, _) = digits.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(token.to_be_bytes()) {
        *pair = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    }
    let mut value = ArrayString::<MAX_VALUE>::new();
    for part in [std::str::from_utf8(&digits).unwrap_or_default(), host.place(), function] {
        push(&mut value, part);
    }
    let text = match mode.class() {
        None => Arc::from(value.as_str()),
        Some(class) => format!("{class}:{}", value.as_str()).into(),
    };
    let mode = mode.clone();
    Ok(HolderValue { text, mode })
}

/// Creates the value of a holder on another host.
///
/// # Errors
/// Fails if the operating system provides no random bytes.
#[cfg(feature = "testing")]
pub(crate) fn remote_value(function: &str, mode: &LockMode) -> Result<HolderValue, getrandom::Error> {
    let token = Host::process().token()?;
    let class = mode.class().map(|class| format!("{class}:")).unwrap_or_default();
    let text = format!("{class}{token:0TOKEN_LENGTH$x}:another-host:1:{function}").into();
    let mode = mode.clone();
    Ok(HolderValue { text, mode })
}

/// Appends as much of `text` as there is room for.
fn push(value: &mut ArrayString<MAX_VALUE>, text: &str) {
    let mut end = text.len().min(value.remaining_capacity());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // Never fails: so much is free.
    let _ = value.try_push_str(text.get(..end).unwrap_or_default());
}

/// The value that a holder stores under a key: its unique token, a description of the holder, and
/// the mode in which it is to hold the key.
///
/// A store keeps the text as it is, and reads it back as a [`Holder`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HolderValue {
    text: Arc<str>,
    mode: LockMode,
}

/// For authors of stores.
#[cfg(feature = "custom-store")]
impl HolderValue {
    /// Reads a value from its text. The mode is that of the text's class, or exclusive if it has
    /// none.
    #[must_use]
    pub fn of(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let mode = LockMode::of(&text);
        Self { text, mode }
    }
}

/// Stands before the number of a value's variant. No path of a function has it.
const VARIANT: char = '~';

/// Returns a value without the number of its variant: all values of one holder become the same.
pub(super) fn without_variant(value: &str) -> &str {
    match value.rsplit_once(VARIANT) {
        Some((before, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => before,
        _ => value,
    }
}

impl HolderValue {
    /// Returns the text to store. It contains the holder's token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Returns another value of the same holder.
    pub(super) fn variant(&self, number: u32) -> Self {
        Self {
            text: format!("{}{VARIANT}{number}", self.text).into(),
            mode: self.mode.clone(),
        }
    }

    /// Returns the mode in which the holder is to hold the key.
    #[must_use]
    pub fn mode(&self) -> &LockMode {
        &self.mode
    }

    /// Returns `true` for any mode but exclusive.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.mode != LockMode::Exclusive
    }
}

/// Formats as the [`Holder`] does, without the token.
impl fmt::Debug for HolderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HolderValue({})", Holder::of(&*self.text))
    }
}

/// The holder of a lock, as read from the store.
///
/// The stored value is `<token>:<host>:<pid>:<function>`, with the class of its [`LockMode`] and a
/// colon before it for every mode but exclusive. A value in another form was written by another
/// kind of client; then only the value is known, which `Display` shows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    value: Box<str>,
    passed: Option<Box<PassedTo>>,
}

/// The function that has the lock now, after it passed on inside its process. Boxed in [`Holder`],
/// which is part of each waiting call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PassedTo {
    function: Box<str>,
}

/// For authors of stores.
#[cfg(feature = "custom-store")]
impl Holder {
    /// Reads a stored value.
    #[must_use]
    pub fn new(value: impl Into<Box<str>>) -> Self {
        Self::of(value)
    }

    /// Returns the stored value unchanged. It contains the holder's token.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl Holder {
    /// Reads a stored value.
    pub(crate) fn of(value: impl Into<Box<str>>) -> Self {
        Self {
            value: value.into(),
            passed: None,
        }
    }

    /// Returns the stored value unchanged.
    pub(crate) fn text(&self) -> &str {
        &self.value
    }

    /// Creates the holder of a lock of this process that has passed to a call of `function` since
    /// the value was stored.
    pub(crate) fn passed_to(value: &HolderValue, function: &str) -> Self {
        Self {
            value: value.as_str().into(),
            passed: Some(Box::new(PassedTo {
                function: function.into(),
            })),
        }
    }

    /// Returns the name of the host that the holder runs on, or `None` if another kind of client
    /// wrote the value.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.parts().map(|(host, _, _)| host)
    }

    /// Returns the holder's process id, or `None` if another kind of client wrote the value.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.parts().map(|(_, pid, _)| pid)
    }

    /// Returns the path of the function that took the lock from the store, or `None` if another
    /// kind of client wrote the value. If the lock has since passed to another call of that
    /// process, the store still has this name; only calls of that process get the function that has
    /// the lock now.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        self.parts().map(|(_, _, function)| function)
    }

    /// Returns the mode in which the holder has the lock.
    #[must_use]
    pub fn mode(&self) -> LockMode {
        LockMode::of(&self.value)
    }

    fn parts(&self) -> Option<(&str, u32, &str)> {
        let (_, value) = mode::split(&self.value);
        let mut parts = value.splitn(4, ':');
        let token = parts.next()?;
        if token.len() != TOKEN_LENGTH || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let host = parts.next()?;
        let pid = parts.next()?.parse().ok()?;
        let stored = without_variant(parts.next().unwrap_or_default());
        let passed = self.passed.as_ref().map(|passed| &*passed.function);
        Some((host, pid, passed.unwrap_or(stored)))
    }
}

/// The number of characters that are shown of a value that another kind of client wrote: it may be of any length.
const SHOWN: usize = 64;

/// Formats as `host, pid 17, function`, or as the first 64 characters of the value if another kind of client wrote it.
/// Omits the token: any client that knows it can release the lock.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            Some((host, pid, "")) => write!(f, "{host}, pid {pid}"),
            Some((host, pid, function)) => write!(f, "{host}, pid {pid}, {function}"),
            None => match self.value.char_indices().nth(SHOWN) {
                Some((end, _)) => write!(f, "{}…", self.value.get(..end).unwrap_or_default()),
                None => f.write_str(&self.value),
            },
        }
    }
}

/// Formats as `Display` does, without the token.
impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({self})")
    }
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_tells_who_holds_the_lock() {
        let mode = LockMode::of_permits(3).unwrap();
        let value = new_value(&Host::process(), "stock::reduce", &mode).unwrap();
        let holder = Holder::of(value.as_str());
        assert_eq!(holder.pid(), Some(std::process::id()));
        assert_eq!(holder.function(), Some("stock::reduce"));
        let place = Host::process().place().to_owned();
        assert_eq!(place, format!(":{}:{}:", holder.host().unwrap(), std::process::id()));
        assert_eq!(holder.mode(), mode);
        let (_, token) = mode::split(&holder.value);
        for shown in [holder.to_string(), format!("{holder:?}"), format!("{value:?}")] {
            assert!(!shown.contains(&token[..TOKEN_LENGTH]), "{shown}");
            assert!(shown.contains("stock::reduce"), "{shown}");
        }
    }

    #[test]
    fn of_a_long_value_of_another_client_the_beginning_is_shown() {
        assert_eq!(Holder::of("worker-7").to_string(), "worker-7");
        let long = Holder::of("ä".repeat(5_000_000));
        assert_eq!(long.to_string(), format!("{}…", "ä".repeat(SHOWN)));
    }

    #[test]
    fn all_values_of_one_holder_are_known_as_the_same() {
        let value = "0123456789abcdef0123456789abcdef:host:1:stock::reduce";
        let other = HolderValue::of(value).variant(7);
        assert_ne!(other.as_str(), value);
        assert_eq!(without_variant(other.as_str()), value);
        assert_eq!(without_variant(value), value);
        assert_eq!(Holder::of(other.as_str()).function(), Some("stock::reduce"));
        for whole in ["a~", "a~b", "~", "a~1b"] {
            assert_eq!(without_variant(whole), whole);
        }
    }

    #[test]
    fn a_value_has_the_mode_that_its_text_tells() {
        let permits = LockMode::of_permits(3).unwrap();
        for mode in [
            LockMode::Exclusive,
            LockMode::Read,
            LockMode::Write,
            permits,
            LockMode::owner("a:b"),
        ] {
            let value = new_value(&Host::process(), "f", &mode).unwrap();
            assert_eq!(*value.mode(), mode);
            assert_eq!(value.is_shared(), mode != LockMode::Exclusive);
            assert_eq!(LockMode::of(value.as_str()), mode);
        }
    }

    #[test]
    fn the_value_is_at_most_200_bytes() {
        let value = new_value(&Host::process(), &"ö".repeat(500), &LockMode::Exclusive).unwrap();
        assert!(!value.as_str().is_empty() && value.as_str().len() <= MAX_VALUE);
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let values: std::collections::HashSet<_> = (0..10_000)
            .map(|_| new_value(&Host::process(), "f", &LockMode::Exclusive).unwrap())
            .collect();
        assert_eq!(values.len(), 10_000);
    }

    #[test]
    fn a_foreign_value_is_shown_as_it_is() {
        let holder = Holder::of("b1946ac9");
        assert_eq!((holder.host(), holder.pid()), (None, None));
        assert_eq!(holder.to_string(), "b1946ac9");
    }
}
