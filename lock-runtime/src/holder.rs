//! Who holds a lock: the value stored under its key.

use std::fmt;
use std::sync::OnceLock;

/// The longest stored value, in bytes.
const MAX_VALUE: usize = 200;
/// A token is 128 random bits in lower-case hexadecimal.
const TOKEN_LENGTH: usize = 32;

/// Makes the value of a new acquisition, `<token>:<host>:<pid>:<function>`.
///
/// # Errors
/// When the operating system gives no random bytes.
pub(crate) fn new_value(function: &str) -> Result<Box<str>, getrandom::Error> {
    let mut token = [0_u8; 16];
    getrandom::fill(&mut token)?;
    let token = u128::from_ne_bytes(token);
    let mut value = format!("{token:032x}:{}:{}:{function}", host(), std::process::id());
    truncate(&mut value, MAX_VALUE);
    Ok(value.into_boxed_str())
}

fn truncate(text: &mut String, limit: usize) {
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

/// This host's name, shortened and without the characters that have a meaning in the value.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = gethostname::gethostname();
        let mut name: String = name
            .to_string_lossy()
            .chars()
            .map(|c| {
                if c.is_alphanumeric() || matches!(c, '-' | '.' | '_') {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        truncate(&mut name, 64);
        name
    })
}

/// Who holds a lock, as read from the store.
///
/// The stored value is `<token>:<host>:<pid>:<function>`. A value in another form was written by another kind
/// of client; then only
/// [`value`](Self::value) tells anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    value: Box<str>,
}

impl Holder {
    /// Reads a stored value.
    #[must_use]
    pub fn new(value: impl Into<Box<str>>) -> Self {
        Self { value: value.into() }
    }

    /// The stored value as it is.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The host the holder runs on.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.parts().map(|(host, _, _)| host)
    }

    /// The holder's process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.parts().map(|(_, pid, _)| pid)
    }

    /// The path of the function that took the lock.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        self.parts().map(|(_, _, function)| function)
    }

    fn parts(&self) -> Option<(&str, u32, &str)> {
        let mut parts = self.value.splitn(4, ':');
        let token = parts.next()?;
        if token.len() != TOKEN_LENGTH || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let host = parts.next()?;
        let pid = parts.next()?.parse().ok()?;
        Some((host, pid, parts.next().unwrap_or_default()))
    }
}

/// `host, pid 17, function`, or the value as it is where another kind of client wrote it. The token is left
/// out: whoever has it can release the lock.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            Some((host, pid, "")) => write!(f, "{host}, pid {pid}"),
            Some((host, pid, function)) => write!(f, "{host}, pid {pid}, {function}"),
            None => f.write_str(&self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_tells_who_holds_the_lock() {
        let holder = Holder::new(new_value("stock::reduce").unwrap_or_default());
        assert_eq!(holder.pid(), Some(std::process::id()));
        assert_eq!(holder.function(), Some("stock::reduce"));
        assert_eq!(holder.host(), Some(host()));
        assert!(!holder.to_string().contains(&holder.value()[..TOKEN_LENGTH]));
    }

    #[test]
    fn the_value_is_at_most_200_bytes() {
        let value = new_value(&"ö".repeat(500)).unwrap_or_default();
        assert!(!value.is_empty() && value.len() <= MAX_VALUE);
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let values: std::collections::HashSet<_> = (0..10_000).map(|_| new_value("f").unwrap_or_default()).collect();
        assert_eq!(values.len(), 10_000);
    }

    #[test]
    fn a_foreign_value_is_shown_as_it_is() {
        let holder = Holder::new("b1946ac9");
        assert_eq!((holder.host(), holder.pid()), (None, None));
        assert_eq!(holder.to_string(), "b1946ac9");
    }
}
