//! Builds keys from templates and values, so that two different argument lists never produce the
//! same key.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use arrayvec::ArrayString;

/// A key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyError {
    /// The key, shortened if it is long.
    key: Box<str>,
    problem: KeyProblem,
}

impl KeyError {
    pub(crate) fn into_parts(self) -> (Box<str>, KeyProblem) {
        (self.key, self.problem)
    }
}

/// The maximum length of a key in bytes, without the manager's prefix.
pub const MAX_KEY_LEN: usize = 1024;

/// The maximum number of keys of one call, so that no script for all of them holds up the server's
/// other clients for long. *Measured*: one that checks or renews a thousand keys takes 0.6 to 5 ms.
pub const MAX_KEYS: usize = 1000;

/// The number of keys that a message names before it counts the others.
const NAMED: usize = 3;

/// The start of the library's own keys, such as the fencing counter. An inserted value cannot start
/// with it, since `%` is encoded in values.
pub(crate) const RESERVED: &str = "%lock-";

/// Returns `true` if `c` is percent-encoded in an inserted value.
///
/// The characters that separate and group the parts of a key come from the template alone, so an
/// argument cannot forge a separator or a Redis Cluster hash tag, and the key can be read back into
/// its values.
fn is_encoded(c: char) -> bool {
    matches!(c, '%' | ':' | '{' | '}' | '<' | '>') || c.is_whitespace() || c.is_control()
}

/// Percent-encodes the text written to it, into a string.
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

/// Returns a value as the template of [`distributed_lock`](crate::distributed_lock) inserts it into a key:
/// percent-encoded, so that no value is taken for a part of the text around it.
///
/// For a key that is written by hand and is to be the one of a template: in [`LockManager::lock`](crate::LockManager::lock), in the
/// argument `keys`, in [`assert_locked!`](crate::assert_locked), or for
/// [`inspect`](crate::LockManager::inspect). Only white space, control characters and `%`, `:`, `{`, `}`, `<`
/// and `>` change.
///
/// ```
/// # use lock_runtime::{LockError, LockManager};
/// use lock_runtime::{assert_locked, distributed_lock, encode_value};
///
/// #[distributed_lock(key = "account:<owner>")]
/// async fn debit(owner: &str) -> Result<(), LockError> {
///     assert_locked!("account:{}", encode_value(owner));
///     Ok(())
/// }
///
/// #[distributed_lock(keys = owners.iter().map(|owner| format!("account:{}", encode_value(owner))))]
/// async fn close_all(owners: &[&str]) -> Result<(), LockError> {
///     Ok(())
/// }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # lock_runtime::init("memory://").await?;
///
/// assert_eq!(encode_value("Ann Lee"), "Ann%20Lee");
/// debit("Ann Lee").await?;
/// close_all(&["Ann Lee"]).await?;
/// # Ok(())
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
/// ```
#[must_use]
pub fn encode_value(value: impl fmt::Display) -> String {
    let mut encoded = String::new();
    // Writing into a string does not fail.
    let _ = write!(Encoder(&mut encoded), "{value}");
    encoded
}

/// Returns the text that was percent-encoded, by [`encode_value`] or by another encoder, or `None` if it was
/// not.
pub(crate) fn decoded(encoded: &str) -> Option<String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut text = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        text.push(match byte {
            b'%' => u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(text).ok()
}

/// The place in the source that a call comes from, as shown to other callers and in traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// The templates of the keys; empty without the attribute.
    pub templates: &'static [&'static str],
    /// The path of the function, or the name that the call gives for its holder; empty if unknown.
    pub function: &'static str,
}

/// The problem with a key that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyProblem {
    /// The key is empty.
    #[error("it is empty; name what is to be locked")]
    Empty,
    /// A lock of several keys was asked for, with an empty list.
    #[error("no key was given; give at least one, or do not lock")]
    NoKeys,
    /// A lock of more than 1,000 different keys was asked for. Contains their number.
    #[error(
        "the call names {0} keys and at most {MAX_KEYS} are allowed; lock what they belong to by one key, or take them by several calls, one after another"
    )]
    TooMany(usize),
    /// The key is longer than 1,024 bytes. Contains its length in bytes.
    #[error(
        "it has {0} bytes and at most {MAX_KEY_LEN} are allowed; insert an id or a hash instead of the whole value"
    )]
    TooLong(usize),
    /// The key starts with `%lock-`, which is reserved for the library.
    #[error("keys that start with `{RESERVED}` are kept for the library; choose another name")]
    Reserved,
    /// The store is a cluster, and the key has a `}` that ends no tag: the key and its queue would lie
    /// on different nodes.
    #[error(
        "in a cluster it and its queue would lie on different nodes, since it has a `}}` that ends no tag; leave that out, or put a part of the key in \
         braces, as its tag"
    )]
    NoTag,
    /// The `Display` of an inserted value returned an error.
    #[error("a value's `Display` failed; insert a value that can be written as text")]
    Display,
}

/// Extra capacity for the values that follow: most keys are then built without reallocation.
const ROOM: usize = 48;

/// A value that a template can insert into a key. A trait of its own, so that the compiler says what to do
/// about a type that has no `Display`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be inserted here, since it has no `Display`",
    label = "a value is inserted by its `Display`",
    note = "insert a field that has one, as in `<item.id>` or `<id.0>`, or implement `Display` for the type",
    note = "if it is a type parameter, give it the bound `std::fmt::Display`"
)]
pub trait KeyValue: Display {}

#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> KeyValue for T {}

/// Builds one key from the parts of a template.
///
/// Built in place: without optimisation, each step by value would take its own place on the stack
/// below the body.
#[derive(Debug, Default)]
pub struct KeyBuilder {
    text: String,
    failed: bool,
}

impl KeyBuilder {
    /// Appends text of the template as it is.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.text.reserve(text.len() + ROOM);
        self.text.push_str(text);
        self
    }

    /// Appends a value, percent-encoded.
    pub fn value<T: Display + ?Sized>(&mut self, value: &T) -> &mut Self {
        self.failed |= write!(Encoder(&mut self.text), "{value}").is_err();
        self
    }

    /// Does the same as [`value`](Self::value) for a type that is no type parameter.
    pub fn insert<T: KeyValue + ?Sized>(&mut self, value: &T) -> &mut Self {
        self.value(value)
    }

    /// Appends a value as it is.
    pub fn raw<T: Display + ?Sized>(&mut self, value: &T) -> &mut Self {
        self.failed |= write!(self.text, "{value}").is_err();
        self
    }

    /// Takes the text, with `true` if no value's `Display` has failed.
    pub(crate) fn take_text(&mut self) -> (String, bool) {
        (std::mem::take(&mut self.text), !self.failed)
    }

    pub(crate) fn finish(&mut self) -> Result<String, KeyError> {
        let (text, whole) = self.take_text();
        if !whole {
            return Err(invalid(&text, KeyProblem::Display));
        }
        check(text)
    }
}

fn check(key: String) -> Result<String, KeyError> {
    let problem = match key.len() {
        0 => KeyProblem::Empty,
        length if length > MAX_KEY_LEN => KeyProblem::TooLong(length),
        _ if key.starts_with(RESERVED) => KeyProblem::Reserved,
        _ => return Ok(key),
    };
    Err(invalid(&key, problem))
}

/// The keys of one call, without the manager's prefix: sorted, and without duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    pub(crate) first: String,
    pub(crate) others: Box<[String]>,
}

impl Names {
    /// Checks a key that was given as a whole.
    pub(crate) fn one(name: String) -> Result<Self, KeyError> {
        Ok(Self {
            first: check(name)?,
            others: Box::default(),
        })
    }

    /// Checks the keys of a list, which must not be empty.
    pub(crate) fn all(keys: impl Iterator<Item = String>) -> Result<Self, KeyError> {
        let mut names: Vec<_> = keys.collect();
        names.sort_unstable();
        names.dedup();
        if let Some(first) = names.first().filter(|_| names.len() > MAX_KEYS) {
            return Err(invalid(first, KeyProblem::TooMany(names.len())));
        }
        let mut names = names.into_iter().map(check);
        let Some(first) = names.next() else {
            return Err(invalid("", KeyProblem::NoKeys));
        };
        Ok(Self {
            first: first?,
            others: names.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the keys as messages show them: see [`listed`].
    pub(crate) fn name(&self) -> Box<str> {
        listed(&self.first, self.others.iter().map(String::as_str))
    }

    /// Returns the error for keys of which a part could not be written.
    pub(crate) fn unwritten(&self) -> KeyError {
        invalid(&self.first, KeyProblem::Display)
    }
}

/// The whole keys of one lock, prefix included: one key, or several that are held together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub(crate) first: &'a Arc<str>,
    pub(crate) others: &'a [Arc<str>],
}

impl<'a> From<&'a Arc<str>> for Keys<'a> {
    fn from(key: &'a Arc<str>) -> Self {
        Self {
            first: key,
            others: &[],
        }
    }
}

impl<'a> Keys<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a Arc<str>> {
        std::iter::once(self.first).chain(self.others)
    }

    /// Returns the keys as messages show them, without the prefix: see [`listed`].
    pub(crate) fn name(self, prefix: &str) -> Box<str> {
        let others = self.others.iter().map(|key| without(prefix, key));
        listed(without(prefix, self.first), others)
    }
}

/// Returns the first [`NAMED`] keys, separated by commas, and the number of the others.
fn listed<'a>(first: &str, others: impl ExactSizeIterator<Item = &'a str>) -> Box<str> {
    let more = others.len().saturating_sub(NAMED - 1);
    let mut text = first.to_owned();
    for key in others.take(NAMED - 1) {
        text.push_str(", ");
        text.push_str(key);
    }
    if more > 0 {
        // Writing into a string does not fail.
        let _ = write!(text, " and {more} more");
    }
    text.into()
}

/// Returns the key of this name, with the manager's prefix.
pub(crate) fn whole(prefix: &str, name: &str) -> Arc<str> {
    // Most keys are put together on the stack, so that there is one allocation.
    let mut key = ArrayString::<256>::new();
    match key.try_push_str(prefix).and_then(|()| key.try_push_str(name)) {
        Ok(()) => Arc::from(key.as_str()),
        Err(_) => Arc::from([prefix, name].concat()),
    }
}

/// Returns `key` without the manager's prefix.
pub(crate) fn without<'a>(prefix: &str, key: &'a str) -> &'a str {
    key.get(prefix.len()..).unwrap_or(key)
}

fn invalid(key: &str, problem: KeyProblem) -> KeyError {
    // Shortened: an error message must not contain a megabyte.
    let shown: String = key.chars().take(64).collect();
    let key = if shown.len() < key.len() {
        format!("{shown}…")
    } else {
        shown
    };
    KeyError {
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
            Err(KeyError { problem, .. }) => Some(problem),
            _ => None,
        };
        assert_eq!(problem(String::new()), Some(KeyProblem::Empty));
        assert_eq!(problem("x".repeat(1025)), Some(KeyProblem::TooLong(1025)));
        assert_eq!(problem("x".repeat(1024)), None);
        assert_eq!(problem("%lock-fence".to_owned()), Some(KeyProblem::Reserved));
    }

    #[test]
    fn too_many_keys_are_refused_and_a_message_names_a_few() {
        let keys = |count| (1..=count).map(|number| format!("item:{number}"));
        let refused = Names::all(keys(MAX_KEYS + 1)).map_err(|error| error.problem);
        assert_eq!(refused, Err(KeyProblem::TooMany(MAX_KEYS + 1)));
        // The same key again is no other one.
        let most = Names::all(keys(MAX_KEYS).chain(keys(MAX_KEYS)));
        assert_eq!(most.map(|names| names.others.len()), Ok(MAX_KEYS - 1));
        let name = |count| Names::all(keys(count)).map(|names| names.name());
        assert_eq!(name(3).as_deref(), Ok("item:1, item:2, item:3"));
        assert_eq!(name(5).as_deref(), Ok("item:1, item:2, item:3 and 2 more"));
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
            Err(KeyError {
                problem: KeyProblem::Display,
                ..
            })
        ));
    }
}

#[allow(clippy::panic)]
#[cfg(test)]
mod injective {
    //! No two tuples of values produce the same key, whatever they contain. The attribute ensures
    //! that the text between two values has a character that values cannot contain.

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The text around and between values: one piece more than values.
    #[derive(Clone, Debug)]
    struct Template(Vec<String>);

    impl Template {
        fn key(&self, values: &[String]) -> String {
            let mut builder = KeyBuilder::default();
            builder.text(&self.0[0]);
            for (value, text) in values.iter().zip(&self.0[1..]) {
                builder.value(value).text(text);
            }
            builder.text
        }

        /// Reads the values back. A key that can be read back belongs to one tuple of values only.
        fn read(&self, key: &str) -> Option<Vec<String>> {
            let (first, rest) = self.0.split_first()?;
            let (last, between) = rest.split_last()?;
            let mut key = key.strip_prefix(first.as_str())?.strip_suffix(last.as_str())?;
            let mut values = Vec::new();
            for text in between {
                let before_separator = text.find(separates)?;
                let end = key.find(separates)?.checked_sub(before_separator)?;
                values.push(decode(key.get(..end)?)?);
                key = key.get(end..)?.strip_prefix(text.as_str())?;
            }
            values.push(decode(key)?);
            Some(values)
        }
    }

    fn separates(c: char) -> bool {
        c != '%' && is_encoded(c)
    }

    fn decode(text: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            if *first == b'%' {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = tail.get(2..)?;
            } else {
                bytes.push(*first);
                rest = tail;
            }
        }
        String::from_utf8(bytes).ok()
    }

    /// Characters that have a meaning in keys, that look like those, or that are hard to handle.
    const PIECES: [&str; 34] = [
        "",
        ":",
        "%",
        "%%",
        "%3A",
        "%3a",
        "3A",
        "%25",
        "%253A",
        "{",
        "}",
        "{}",
        "<",
        ">",
        "<<",
        " ",
        "\t",
        "\r\n",
        "\0",
        "\u{7f}",
        "\u{85}",
        "\u{a0}",
        "\u{2028}",
        "\u{3000}",
        "\u{feff}",
        "a",
        "b",
        "ab",
        "A",
        "0",
        "ä",
        "🦀",
        "👩‍👩‍👧",
        "-",
    ];

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![3 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned), 1 => any::<String>()];
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    fn template(values: usize) -> impl Strategy<Value = Template> {
        let separator = any::<char>().prop_filter("it must separate", |c| separates(*c));
        let separator = prop_oneof![
            prop::sample::select(&[':', '{', '}', '<', '>', ' ', '\0'][..]),
            separator
        ];
        let between =
            (text(), separator, text()).prop_map(|(before, separator, after)| format!("{before}{separator}{after}"));
        (text(), prop::collection::vec(between, values - 1), text()).prop_map(|(first, between, last)| {
            let mut texts = vec![first];
            texts.extend(between);
            texts.push(last);
            Template(texts)
        })
    }

    /// A template with two tuples of values for it. The second is often the first one with its
    /// characters moved between values.
    fn tuples() -> impl Strategy<Value = (Template, Vec<String>, Vec<String>)> {
        (1..5_usize).prop_flat_map(|count| {
            let values = || prop::collection::vec(text(), count);
            (
                template(count),
                values(),
                values(),
                any::<prop::sample::Index>(),
                any::<bool>(),
            )
                .prop_map(|(template, one, other, at, moved)| {
                    let other = if moved { moved_along(&template, &one, at) } else { other };
                    (template, one, other)
                })
        })
    }

    /// Joins two neighbours with the text between them and splits them elsewhere, as an attempt to
    /// forge a key would.
    fn moved_along(template: &Template, values: &[String], at: prop::sample::Index) -> Vec<String> {
        let mut values = values.to_vec();
        if values.len() > 1 {
            let left = at.index(values.len() - 1);
            let joined = format!("{}{}{}", values[left], template.0[left + 1], values[left + 1]);
            let places: Vec<_> = joined
                .match_indices(template.0[left + 1].as_str())
                .map(|(place, _)| place)
                .collect();
            let place = places[at.index(places.len())];
            let after = place + template.0[left + 1].len();
            values[left] = joined[..place].to_owned();
            values[left + 1] = joined[after..].to_owned();
        }
        values
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_key_has_one_reading((template, values, _) in tuples()) {
            let key = template.key(&values);
            prop_assert_eq!(template.read(&key), Some(values), "{:?}", key);
        }

        #[test]
        fn two_tuples_have_two_keys((template, one, other) in tuples()) {
            prop_assert_eq!(template.key(&one) == template.key(&other), one == other);
        }

        #[test]
        fn a_value_is_encoded_alike_however_its_display_writes_it(text in text(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5)) {
            struct InPieces<'a>(&'a str, Vec<usize>);
            impl Display for InPieces<'_> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let mut from = 0;
                    for &cut in &self.1 {
                        f.write_str(&self.0[from..cut])?;
                        from = cut;
                    }
                    f.write_str(&self.0[from..])
                }
            }
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).collect();
            cuts.sort_unstable();
            let whole = KeyBuilder::default().value(&text).take_text();
            prop_assert_eq!(KeyBuilder::default().value(&InPieces(&text, cuts)).take_text(), whole);
        }

        #[test]
        fn a_value_brings_in_no_separator_and_no_hash_tag(value in text()) {
            let (key, _) = KeyBuilder::default().value(&value).take_text();
            prop_assert!(!key.contains(separates), "{:?}", key);
            prop_assert!(!key.starts_with(RESERVED));
        }
    }

    #[test]
    fn all_pairs_of_hostile_values_have_keys_of_their_own() {
        let mut hostile: Vec<String> = PIECES.map(str::to_owned).to_vec();
        hostile.extend(PIECES.iter().map(|piece| format!("a{piece}b")));
        for between in [":", "%:", ":%", "{", "}{", "::", " ", "%3A:3A"] {
            let template = Template(vec!["orders:".to_owned(), between.to_owned(), String::new()]);
            let mut keys = HashMap::new();
            for one in &hostile {
                for other in &hostile {
                    let tuple = [one.clone(), other.clone()];
                    let key = template.key(&tuple);
                    if let Some(earlier) = keys.insert(key.clone(), tuple.clone()) {
                        assert_eq!(earlier, tuple, "both are {key:?}");
                    }
                }
            }
        }
    }

    /// The encoder keeps these apart, and they are refused as keys.
    #[test]
    fn long_values_are_refused_and_not_shortened() {
        let template = Template(vec!["a:".to_owned(), ":".to_owned(), String::new()]);
        let long = |last: &str| format!("{}{last}", ":%🦀\0x".repeat(1_250));
        let tuples = [
            [long(""), long("a")],
            [long("a"), long("")],
            [long("b"), long("")],
            [format!("{}:", long("")), long("")],
        ];
        for (nth, tuple) in tuples.iter().enumerate() {
            assert!(tuple[0].len() >= 10_000);
            let key = template.key(tuple);
            assert_eq!(template.read(&key).as_deref(), Some(&tuple[..]));
            assert!(tuples[..nth].iter().all(|other| template.key(other) != key));
            let refused = KeyBuilder::default().text("a:").value(&tuple[0]).finish();
            let Err(KeyError {
                key,
                problem: KeyProblem::TooLong(length),
            }) = refused
            else {
                panic!("{refused:?}");
            };
            assert!(length > 10_000 && key.len() < 300, "{length} {key}");
        }
    }
}
