//! The template of a key, or of an owner: literal text with `<expr>` where a value is inserted.
//!
//! `<<` and `>>` are literal brackets, and braces have no meaning. The macro refuses a template
//! that could produce one key from two different argument lists.

use std::str::FromStr;

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Expr, Ident, LitStr};

use crate::errors::Errors;

/// The maximum length of a key in bytes. The runtime checks it again.
const MAX_KEY_LEN: usize = 1024;
/// The start of the keys that are reserved for the runtime, which checks it again.
const RESERVED: &str = "%lock-";

/// The kind of name that a template produces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Makes {
    Key,
    Owner,
}

impl Makes {
    /// Returns the noun for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Owner => "owner",
        }
    }
}

pub(crate) struct Template {
    pub(crate) makes: Makes,
    /// The template as it was written.
    pub(crate) text: String,
    pub(crate) span: Span,
    pub(crate) parts: Vec<Part>,
}

pub(crate) enum Part {
    Text(String),
    Insert(Insert),
}

/// One `<expr>` or `<expr:raw>`.
pub(crate) struct Insert {
    /// The text between the brackets, without `:raw`.
    pub(crate) source: String,
    /// The expression. Every token has the literal's span.
    pub(crate) expr: Expr,
    pub(crate) raw: bool,
    /// `true` for a parameter whose type the signature names, and which is no type parameter.
    pub(crate) is_named: bool,
}

impl Template {
    /// Returns the key of a function whose attribute names none.
    pub(crate) fn global() -> Self {
        let text = "global_lock".to_owned();
        Self {
            makes: Makes::Key,
            parts: vec![Part::Text(text.clone())],
            text,
            span: Span::call_site(),
        }
    }

    /// Reads the template. Errors are added to `errors`.
    pub(crate) fn parse(makes: Makes, literal: &LitStr, errors: &mut Errors) -> Self {
        let mut template = Self {
            makes,
            text: literal.value(),
            span: literal.span(),
            parts: Vec::new(),
        };
        template.parts = template.split(errors);
        template.check(errors);
        template
    }

    fn check(&self, errors: &mut Errors) {
        let noun = self.makes.noun();
        if self.text.is_empty() {
            errors.at(
                self.span,
                match self.makes {
                    Makes::Key => {
                        "the key is empty: name what is to be locked, such as `key = \"inventory:<item_id>\"`"
                    }
                    Makes::Owner => {
                        "the owner is empty: name whose holders share the lock, such as `owner = \"<workflow_id>\"`"
                    }
                },
            );
        }
        let length: usize = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.len(),
                Part::Insert(_) => 0,
            })
            .sum();
        if length > MAX_KEY_LEN {
            errors.at(
                self.span,
                format!("the {noun} has {length} bytes and at most {MAX_KEY_LEN} are allowed"),
            );
        }
        if self.makes == Makes::Key
            && matches!(self.parts.first(), Some(Part::Text(text)) if text.starts_with(RESERVED))
        {
            errors.at(
                self.span,
                format!("keys that start with `{RESERVED}` are kept for the library: choose another name"),
            );
        }
        if self.makes == Makes::Key {
            self.check_tag(errors);
        }
        self.check_injective(errors);
    }

    /// Reports a `}` that ends no tag: in a cluster, the name of such a key's queue has another slot.
    fn check_tag(&self, errors: &mut Errors) {
        let mut shape = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => shape += text,
                // What it inserts is known at run time only.
                Part::Insert(insert) if insert.raw => return,
                // An encoded value has no braces.
                Part::Insert(_) => shape.push('v'),
            }
        }
        let tag = shape.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        if shape.contains('}') && tag.is_none_or(|(tag, _)| tag.is_empty()) {
            errors.at(
                self.span,
                "the key has a `}` that ends no tag, so that in a Redis Cluster it and its queue would lie on different nodes: leave the brace out, \
                 or put a part of the key in braces, such as `{order:<id>}`",
            );
        }
    }

    /// Reports two values without a [separator](separates) between them. Encoded values never
    /// contain a separator, so one between two values keeps their tuples apart. Without one,
    /// `"1"-"2-3"` and `"1-2"-"3"` would produce the same key.
    fn check_injective(&self, errors: &mut Errors) {
        let noun = self.makes.noun();
        let mut before: Option<&Insert> = None;
        let mut between = "";
        for part in &self.parts {
            match part {
                Part::Text(text) => between = text,
                // The text around a `:raw` value is the user's responsibility.
                Part::Insert(insert) if insert.raw => before = None,
                Part::Insert(insert) => {
                    if let Some(before) = before
                        && before.source != insert.source
                        && !between.chars().any(separates)
                    {
                        let (left, right) = (&before.source, &insert.source);
                        errors.at(
                            self.span,
                            format!(
                                "`<{left}>{between}<{right}>`: two different calls could make the same {noun}. Put a `:` between them, \
                                 `<{left}>:<{right}>`, or write `<{left}:raw>` if its values can never be mistaken"
                            ),
                        );
                    }
                    before = Some(insert);
                    between = "";
                }
            }
        }
    }

    fn split(&self, errors: &mut Errors) -> Vec<Part> {
        let (noun, span) = (self.makes.noun(), self.span);
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = self.text.as_str();
        while let Some(at) = rest.find(['<', '>']) {
            let (plain, tail) = rest.split_at(at);
            text.push_str(plain);
            if let Some(tail) = tail.strip_prefix("<<") {
                text.push('<');
                rest = tail;
            } else if let Some(tail) = tail.strip_prefix(">>") {
                text.push('>');
                rest = tail;
            } else if let Some(tail) = tail.strip_prefix('>') {
                errors.at(
                    span,
                    format!("a `>` in the {noun} closes nothing: write `>>` for a `>` as text"),
                );
                rest = tail;
            } else {
                let Some(end) = closing(tail) else {
                    errors.at(
                        span,
                        format!(
                            "`{tail}` in the {noun} is not closed: write `<name>` to insert a value, `<<` for a `<` as text"
                        ),
                    );
                    rest = "";
                    break;
                };
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.extend(errors.take(self.insert(&tail[1..end])).map(Part::Insert));
                rest = &tail[end + 1..];
            }
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        parts
    }

    fn insert(&self, inside: &str) -> syn::Result<Insert> {
        let (noun, span) = (self.makes.noun(), self.span);
        let refuse = |message: String| Err(syn::Error::new(span, message));
        let whole = inside.trim();
        let (source, raw) = match whole.rsplit_once(':') {
            Some((source, "raw")) if !source.ends_with(':') => (source.trim_end(), true),
            Some((source, suffix)) if !source.ends_with(':') && !suffix.contains([')', ']', '>']) => {
                return refuse(format!(
                    "`<{whole}>` in the {noun}: `:{suffix}` is unknown; write `<{source}>`, or `<{source}:raw>` to insert the value without encoding"
                ));
            }
            _ => (whole, false),
        };
        if source.is_empty() {
            return refuse(format!(
                "`<{inside}>` in the {noun} inserts nothing: write a parameter's name between the brackets, or `<<` and `>>` for brackets as text"
            ));
        }
        if let Some(complete) = source.strip_suffix('.') {
            return refuse(format!(
                "`<{source}>` in the {noun} ends with a dot: write a field or a method behind it, or `<{complete}>`"
            ));
        }
        // With the macro's own span, since rustc would otherwise offer to replace the whole
        // template by a field with a similar name.
        let place = Span::call_site().located_at(span);
        let expr = TokenStream::from_str(source)
            .ok()
            .and_then(|tokens| syn::parse2::<Expr>(respan(tokens, place)).ok());
        match expr {
            Some(expr) if base(&expr).is_some() => Ok(Insert {
                source: source.to_owned(),
                expr,
                raw,
                is_named: false,
            }),
            None if is_keyword(source) => refuse(format!(
                "`<{source}>` in the {noun}: `{source}` is a keyword, and a parameter can only be called `r#{source}`: write `<r#{source}>`"
            )),
            _ => refuse(format!(
                "`<{source}>` is not what the {noun} can insert: write a parameter, a field of it, a method call on it, `self.…`, or a constant"
            )),
        }
    }
}

/// Returns `true` if `c` never occurs in an inserted value: one of the characters that the
/// runtime's `KeyBuilder::value` encodes, without `%`, which the encoding itself writes.
fn separates(c: char) -> bool {
    matches!(c, ':' | '{' | '}' | '<' | '>') || c.is_whitespace() || c.is_control()
}

/// Returns the position at which the bracket that opens `tail` is closed. Brackets of a type
/// argument (`id.get::<u8>()`) nest.
fn closing(tail: &str) -> Option<usize> {
    let mut depth = 0_usize;
    tail.char_indices().find_map(|(at, c)| {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Returns `true` if `word` is a Rust keyword, such as `type`.
fn is_keyword(word: &str) -> bool {
    Ident::parse_any.parse_str(word).is_ok() && syn::parse_str::<Ident>(word).is_err()
}

/// Returns the path that an insertable expression starts with.
pub(crate) fn base(expr: &Expr) -> Option<&syn::ExprPath> {
    match expr {
        Expr::Path(path) => Some(path),
        Expr::Field(field) => base(&field.base),
        Expr::MethodCall(call) => base(&call.receiver),
        Expr::Index(index) => base(&index.expr),
        Expr::Paren(paren) => base(&paren.expr),
        _ => None,
    }
}

/// Sets the span of all tokens, so that errors in the expression point at the template.
fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            if let TokenTree::Group(group) = &token {
                token = Group::new(group.delimiter(), respan(group.stream(), span)).into();
            }
            token.set_span(span);
            token
        })
        .collect()
}

impl ToTokens for Insert {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.expr.to_tokens(tokens);
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, Vec<String>> {
        let mut errors = Errors::default();
        let template = Template::parse(Makes::Key, &LitStr::new(text, Span::call_site()), &mut errors);
        match errors.into_result() {
            Ok(()) => Ok(template
                .parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => format!("text {text}"),
                    Part::Insert(Insert { source, raw: false, .. }) => format!("value {source}"),
                    Part::Insert(Insert { source, .. }) => format!("raw {source}"),
                })
                .collect()),
            Err(error) => Err(error.into_iter().map(|error| error.to_string()).collect()),
        }
    }

    #[test]
    fn a_template_is_text_and_values() {
        for (template, expected) in [
            ("global", vec!["text global"]),
            ("inventory:<item_id>", vec!["text inventory:", "value item_id"]),
            ("<a>:<b>", vec!["value a", "text :", "value b"]),
            (
                "{<tenant>}<order.id>",
                vec!["text {", "value tenant", "text }", "value order.id"],
            ),
            (
                "{literal}:<self.shop.name()>",
                vec!["text {literal}:", "value self.shop.name()"],
            ),
            ("a<<b>>c", vec!["text a<b>c"]),
            ("<<<id>>>", vec!["text <", "value id", "text >"]),
            ("< id >", vec!["value id"]),
            ("<id:raw>-<b>", vec!["raw id", "text -", "value b"]),
            (
                "<a>-<b:raw>-<c>",
                vec!["value a", "text -", "raw b", "text -", "value c"],
            ),
            ("<a>-<a>", vec!["value a", "text -", "value a"]),
            ("<ids[0].get::<Vec<u8>>()>", vec!["value ids[0].get::<Vec<u8>>()"]),
            ("<crate::REGION>", vec!["value crate::REGION"]),
            ("<Self::NAME:raw>", vec!["raw Self::NAME"]),
            ("<pair.0>", vec!["value pair.0"]),
        ] {
            assert_eq!(
                parse(template).as_deref(),
                Ok(expected.as_slice())
                    .map(|e| e.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
                    .as_deref(),
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_no_template_is_refused_with_the_remedy() {
        let long = "x".repeat(1025);
        for (template, expected) in [
            ("", "the key is empty"),
            ("a:<id", "`<id` in the key is not closed"),
            ("a:id>", "write `>>`"),
            ("a:<>", "inserts nothing"),
            ("a:< >", "inserts nothing"),
            ("a:<:raw>", "inserts nothing"),
            ("a:<id:08>", "`:08` is unknown; write `<id>`"),
            ("a:<id + 1>", "is not what the key can insert"),
            ("a:<hash(id)>", "is not what the key can insert"),
            ("a:<\"id\">", "is not what the key can insert"),
            ("a:<id?>", "is not what the key can insert"),
            ("a:<id.>", "ends with a dot"),
            ("a:<type>", "write `<r#type>`"),
            ("a:<item id>", "is not what the key can insert"),
            ("<a><b>", "two different calls"),
            ("<a>-<b>", "Put a `:` between them, `<a>:<b>`"),
            ("<a>%<b>", "two different calls"),
            ("%lock-x", "kept for the library"),
            (&long, "1025 bytes"),
        ] {
            match parse(template) {
                Err(errors) => assert!(
                    errors.iter().any(|error| error.contains(expected)),
                    "{template}: {errors:?}"
                ),
                Ok(parts) => panic!("{template} was accepted: {parts:?}"),
            }
        }
    }

    #[test]
    fn every_mistake_in_a_template_is_found() {
        assert_eq!(parse("<a>-<b>:<>:c>:<d").err().map(|errors| errors.len()), Some(4));
    }
}
