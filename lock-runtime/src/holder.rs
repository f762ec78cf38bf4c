//! Who holds a lock: the value stored under its key.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::store::mode::{self, Mode, TOKEN_LENGTH};

/// The longest stored value, in bytes, without the class of its mode.
const MAX_VALUE: usize = 200;

const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// How many tokens are asked of the operating system at once.
const TOKENS: usize = 16;

thread_local! {
    /// Random tokens to be used, once each. A forked child cannot use its parent's: it takes no locks.
    static POOL: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
}

/// Makes the value of a new acquisition, `<token>:<host>:<pid>:<function>`, after the mode's class and a colon if it has one.
/// The token is 128 random bits in lower-case hexadecimal.
///
/// # Errors
/// When the operating system gives no random bytes.
pub(crate) fn new_value(function: &str, mode: &Mode) -> Result<Arc<str>, getrandom::Error> {
    let token = new_token()?;
    let mut value = Value {
        text: [0; MAX_VALUE],
        length: 0,
    };
    let digits = token.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (place, digit) in value.text.iter_mut().zip(digits) {
        *place = DIGITS[usize::from(digit)];
    }
    value.length = TOKEN_LENGTH;
    value.push(place());
    value.push(function);
    Ok(match mode.class() {
        None => Arc::from(value.as_str()),
        Some(class) => format!("{class}:{}", value.as_str()).into(),
    })
}

/// A value while it is put together.
struct Value {
    text: [u8; MAX_VALUE],
    length: usize,
}

impl Value {
    fn as_str(&self) -> &str {
        let text = self.text.get(..self.length).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }
}

impl Value {
    /// Appends what there is room for.
    fn push(&mut self, text: &str) {
        let mut end = text.len().min(MAX_VALUE - self.length);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text.get(..end).unwrap_or_default();
        if let Some(to) = self.text.get_mut(self.length..self.length + text.len()) {
            to.copy_from_slice(text.as_bytes());
            self.length += text.len();
        }
    }
}

fn new_token() -> Result<u128, getrandom::Error> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
    if let Some(token) = pooled {
        return Ok(token);
    }
    let mut bytes = [0_u8; 16 * TOKENS];
    getrandom::fill(&mut bytes)?;
    let mut tokens = bytes
        .as_chunks::<16>()
        .0
        .iter()
        .map(|token| u128::from_ne_bytes(*token));
    let token = tokens.next().unwrap_or_default();
    // A thread that is ending has no pool any more.
    let _ = POOL.try_with(|pool| pool.borrow_mut().extend(tokens));
    Ok(token)
}

/// The part of a value between token and function, the same for the whole process: `:<host>:<pid>:`.
fn place() -> &'static str {
    static PLACE: OnceLock<String> = OnceLock::new();
    PLACE.get_or_init(|| format!(":{}:{}:", host(), std::process::id()))
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
fn host() -> String {
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
}

/// Who holds a lock, as read from the store.
///
/// The stored value is `<token>:<host>:<pid>:<function>`, with the class of its [`Mode`] and a colon before it for every mode
/// but exclusive. A value in another form was written by another kind of client; then only [`value`](Self::value) tells
/// anything.
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

    /// How it holds the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::of(&self.value)
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
        let holder = Holder::new(&*new_value("stock::reduce", &Mode::Semaphore(3)).unwrap_or_else(|_| "".into()));
        assert_eq!(holder.pid(), Some(std::process::id()));
        assert_eq!(holder.function(), Some("stock::reduce"));
        assert_eq!(holder.host(), Some(&*host()));
        assert_eq!(holder.mode(), Mode::Semaphore(3));
        let (_, token) = mode::split(holder.value());
        assert!(!holder.to_string().contains(&token[..TOKEN_LENGTH]));
    }

    #[test]
    fn the_value_is_at_most_200_bytes() {
        let value = new_value(&"ö".repeat(500), &Mode::Exclusive).unwrap_or_else(|_| "".into());
        assert!(!value.is_empty() && value.len() <= MAX_VALUE);
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let values: std::collections::HashSet<_> = (0..10_000)
            .map(|_| new_value("f", &Mode::Exclusive).unwrap_or_else(|_| "".into()))
            .collect();
        assert_eq!(values.len(), 10_000);
    }

    #[test]
    fn a_foreign_value_is_shown_as_it_is() {
        let holder = Holder::new("b1946ac9");
        assert_eq!((holder.host(), holder.pid()), (None, None));
        assert_eq!(holder.to_string(), "b1946ac9");
    }
}
