//! From template values to the key in the store, so that different values never make the same key.

use std::fmt::{self, Display, Write};

use crate::error::LockError;

/// The longest key, in bytes, without the manager's prefix.
pub const MAX_KEY: usize = 1024;

/// Keys that start so are the library's own (the fencing counter and the start-up probe). An inserted value
/// cannot start so, since `%` is encoded in values.
pub(crate) const RESERVED: &str = "%lock-";

/// Whether `c` is percent-encoded in an inserted value.
///
/// The characters that separate and group the parts of a key must come from the template alone: then nobody can
/// forge a separator or a Redis Cluster hash tag through an argument, and the key can be read back into its
/// values.
pub(crate) fn is_encoded(c: char) -> bool {
    matches!(c, '%' | ':' | '{' | '}' | '<' | '>') || c.is_whitespace() || c.is_control()
}

/// Writes text through percent-encoding into a string.
struct Encoder<'a>(&'a mut String);

impl Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_encoded(*c)) {
            let (plain, tail) = rest.split_at(at);
            self.0.push_str(plain);
            let (encoded, tail) = tail.split_at(c.len_utf8());
            for byte in encoded.bytes() {
                write!(self.0, "%{byte:02X}")?;
            }
            rest = tail;
        }
        self.0.push_str(rest);
        Ok(())
    }
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyProblem {
    /// It has no characters.
    Empty,
    /// It has more than 1,024 bytes; the number it has.
    TooLong(usize),
    /// It starts with `%lock-`, which the library keeps for itself.
    Reserved,
    /// A value's `Display` returned an error.
    Display,
}

impl Display for KeyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty; name what is to be locked"),
            Self::TooLong(length) => {
                write!(
                    f,
                    "it has {length} bytes and at most {MAX_KEY} are allowed; insert an id or a hash instead of the whole value"
                )
            }
            Self::Reserved => write!(
                f,
                "keys that start with `{RESERVED}` are kept for the library; choose another name"
            ),
            Self::Display => f.write_str("a value's `Display` failed; insert a value that can be written as text"),
        }
    }
}

/// Builds one key from the parts of a template.
#[derive(Debug, Default)]
pub struct KeyBuilder {
    text: String,
    failed: bool,
}

impl KeyBuilder {
    /// Appends text of the template as it is.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Appends a value, percent-encoded.
    #[must_use]
    pub fn value<T: Display + ?Sized>(mut self, value: &T) -> Self {
        self.failed |= write!(Encoder(&mut self.text), "{value}").is_err();
        self
    }

    /// Appends a value as it is.
    #[must_use]
    pub fn raw<T: Display + ?Sized>(mut self, value: &T) -> Self {
        self.failed |= write!(self.text, "{value}").is_err();
        self
    }

    pub(crate) fn finish(self) -> Result<String, LockError> {
        if self.failed {
            return Err(invalid(&self.text, KeyProblem::Display));
        }
        check(self.text)
    }
}

/// Checks a key that was given whole.
pub(crate) fn check(key: String) -> Result<String, LockError> {
    let problem = match key.len() {
        0 => KeyProblem::Empty,
        length if length > MAX_KEY => KeyProblem::TooLong(length),
        _ if key.starts_with(RESERVED) => KeyProblem::Reserved,
        _ => return Ok(key),
    };
    Err(invalid(&key, problem))
}

fn invalid(key: &str, problem: KeyProblem) -> LockError {
    // An error message is no place for a megabyte.
    let shown: String = key.chars().take(64).collect();
    let key = if shown.len() < key.len() {
        format!("{shown}…")
    } else {
        shown
    };
    LockError::InvalidKey {
        key: key.into(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &str) -> String {
        KeyBuilder::default()
            .text("a:")
            .value(value)
            .finish()
            .unwrap_or_default()
    }

    #[test]
    fn values_cannot_forge_separators_or_hash_tags() {
        assert_eq!(key("b:c"), "a:b%3Ac");
        assert_eq!(key("{x}"), "a:%7Bx%7D");
        assert_eq!(key("50%"), "a:50%25");
        assert_eq!(key("a b\r\n\0"), "a:a%20b%0D%0A%00");
        assert_eq!(key("<x>"), "a:%3Cx%3E");
        assert_eq!(key("\u{3000}\u{85}"), "a:%E3%80%80%C2%85");
    }

    #[test]
    fn other_text_stays_readable() {
        assert_eq!(key("Zürich-🦀/7_x.y"), "a:Zürich-🦀/7_x.y");
    }

    #[test]
    fn raw_values_are_inserted_as_they_are() {
        let key = KeyBuilder::default().raw("{tenant}").text(":").value(&7).finish();
        assert_eq!(key.unwrap_or_default(), "{tenant}:7");
    }

    #[test]
    fn empty_long_and_reserved_keys_are_refused() {
        let problem = |key: String| match check(key) {
            Err(LockError::InvalidKey { problem, .. }) => Some(problem),
            _ => None,
        };
        assert_eq!(problem(String::new()), Some(KeyProblem::Empty));
        assert_eq!(problem("x".repeat(1025)), Some(KeyProblem::TooLong(1025)));
        assert_eq!(problem("x".repeat(1024)), None);
        assert_eq!(problem("%lock-fence".to_owned()), Some(KeyProblem::Reserved));
    }

    #[test]
    fn a_failing_display_is_an_error_and_not_a_panic() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                Err(fmt::Error)
            }
        }
        let key = KeyBuilder::default().text("a").value(&Broken).finish();
        assert!(matches!(
            key,
            Err(LockError::InvalidKey {
                problem: KeyProblem::Display,
                ..
            })
        ));
    }
}
