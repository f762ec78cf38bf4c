//! The arguments between the parentheses: which are given, each at most once, with values of any
//! kind.

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, Lit, Token};

use crate::errors::Errors;
use crate::fragments;
use crate::suggest;
use crate::synonyms;

/// The arguments of this version, each with an example.
pub(crate) const ARGUMENTS: [(&str, &str); 21] = [
    ("key", "key = \"inventory:<item_id>\""),
    ("keys", "keys = [\"account:<from>\", \"account:<to>\"]"),
    ("mode", "mode = read"),
    ("owner", "owner = \"<workflow_id>\""),
    ("reentrant", "reentrant"),
    ("lease", "lease = 30"),
    ("wait", "wait = 10"),
    ("renew", "renew = false"),
    ("max_renewals", "max_renewals = 30"),
    ("max_hold", "max_hold = \"10m\""),
    ("on_busy", "on_busy = skip"),
    ("on_lost", "on_lost = signal"),
    ("coalesce", "coalesce"),
    ("at_least", "at_least = 60"),
    ("lock_delay", "lock_delay = 5"),
    ("min_replicas", "min_replicas = 1"),
    ("fencing", "fencing"),
    ("fair", "fair"),
    ("release", "release = pipelined"),
    ("manager", "manager = self.locks"),
    ("crate", "crate = lock_runtime"),
];

/// One argument as it was written.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    /// The value; `None` for a bare word.
    pub(crate) value: Option<Expr>,
}

/// All arguments, by name.
#[derive(Default)]
pub(crate) struct Args(Vec<Argument>);

impl Args {
    /// Reads the arguments. Errors are added to `errors`, and the other arguments are still read.
    pub(crate) fn parse(attr: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self::default();
        let parse = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Some(argument) = errors.take(argument(input)) {
                    args.admit(argument, errors);
                    if input.is_empty() || input.peek(Token![,]) {
                        errors.take(input.parse::<Option<Token![,]>>());
                        continue;
                    }
                    errors.at(input.span(), "put a comma between the arguments");
                }
                skip_to_comma(input);
            }
            Ok(())
        };
        // The closure above handles all errors itself.
        drop(parse.parse2(attr));
        args
    }

    fn admit(&mut self, argument: Argument, errors: &mut Errors) {
        let word = argument.name.unraw().to_string();
        if ARGUMENTS.iter().any(|(name, _)| *name == word) {
            if self.get(&word).is_some() {
                errors.on(&argument.name, format!("`{word}` specified more than once"));
            } else {
                self.0.push(argument);
            }
        } else {
            errors.on(&argument.name, synonyms::answer(&word, argument.value.as_ref()));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Argument> {
        self.0.iter().find(|argument| argument.name == name)
    }

    /// Returns the value of the argument `name`, and reports an error if it stands alone.
    pub(crate) fn value(&self, name: &str, errors: &mut Errors) -> Option<&Expr> {
        let argument = self.get(name)?;
        if argument.value.is_none() {
            errors.on(
                &argument.name,
                format!("`{name}` needs a value: write `{}`", usage(name)),
            );
        }
        argument.value.as_ref()
    }
}

/// Returns an example of the argument `name`.
pub(crate) fn usage(name: &str) -> &'static str {
    ARGUMENTS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or("", |(_, usage)| usage)
}

fn argument(input: ParseStream<'_>) -> syn::Result<Argument> {
    if input.peek(syn::Lit) {
        let literal: Lit = input.parse()?;
        if let Some(message) = quoted_name(&literal, input) {
            return Err(syn::Error::new_spanned(literal, message));
        }
        let message = match &literal {
            Lit::Str(text) => format!("write `key = {}`", text.token()),
            _ => format!("give the argument a name, such as `{}`", usage("lease")),
        };
        return Err(syn::Error::new_spanned(literal, message));
    }
    if !input.peek(Ident::peek_any) {
        return Err(input.error(format!(
            "an argument starts with its name, such as `{}`",
            usage("lease")
        )));
    }
    let name = Ident::parse_any(input)?;
    if input.peek(Token![=]) && !input.peek(Token![==]) {
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            let word = name.to_string();
            let example = if usage(&word).is_empty() {
                usage("lease")
            } else {
                usage(&word)
            };
            return Err(syn::Error::new_spanned(
                &name,
                format!("`{word} =` needs a value, such as in `{example}`"),
            ));
        }
        return Ok(Argument {
            name,
            value: Some(fragments::expr(input)?),
        });
    }
    if input.peek(syn::token::Paren) || input.peek(Token![:]) || input.peek(Token![==]) {
        let word = name.to_string();
        if input.peek(syn::token::Paren)
            && let Some(message) = synonyms::in_parentheses(&word, input)
        {
            return Err(syn::Error::new_spanned(&name, message));
        }
        let example = if usage(&word).is_empty() {
            usage("lease")
        } else {
            usage(&word)
        };
        return Err(input.error(format!("arguments are written with `=`, such as `{example}`")));
    }
    Ok(Argument { name, value: None })
}

/// Returns the message for a name in quotes before a `=`.
fn quoted_name(literal: &Lit, input: ParseStream<'_>) -> Option<String> {
    let Lit::Str(text) = literal else { return None };
    let name = text.value();
    if !input.peek(Token![=]) || Ident::parse_any.parse_str(&name).is_err() {
        return None;
    }
    input.parse::<Token![=]>().ok()?;
    let value = fragments::expr(input).ok();
    if usage(&name).is_empty() {
        return Some(synonyms::answer(&name, value.as_ref()));
    }
    let value = value.map(suggest::written).filter(|value| value.len() <= 40);
    let written = value.map_or_else(|| usage(&name).to_owned(), |value| format!("{name} = {value}"));
    Some(format!("the name of an argument has no quotes: write `{written}`"))
}

/// Skips the tokens up to the next comma and the comma itself, to go on after an error.
fn skip_to_comma(input: ParseStream<'_>) {
    while let Ok(token) = input.parse::<TokenTree>() {
        if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',') {
            return;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the messages for these arguments.
    pub(crate) fn errors(source: &str) -> Vec<String> {
        let mut errors = Errors::default();
        match source.parse() {
            Ok(tokens) => drop(Args::parse(tokens, &mut errors)),
            Err(error) => return vec![error.to_string()],
        }
        match errors.into_result() {
            Ok(()) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn every_argument_is_known() {
        for (_, usage) in ARGUMENTS {
            assert_eq!(errors(usage), Vec::<String>::new(), "{usage}");
        }
        assert_eq!(
            errors("key = \"a\", lease = f::<A, B>(1, 2), fencing, mode = semaphore(a, b),"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_name_in_quotes_is_written_without() {
        for (source, expected) in [
            ("\"wait\" = 5", "write `wait = 5`"),
            ("\"key\" = \"a:<id>\"", "write `key = \"a:<id>\"`"),
            ("\"wait\" =", "write `wait = 10`"),
            ("\"ttl\" = 5", "write `lease = 5`"),
            ("\"order:<id>\" = 5", "write `key = \"order:<id>\"`"),
        ] {
            let errors = errors(source);
            assert!(
                errors.len() == 1 && errors[0].contains(expected),
                "{source}: {errors:?}"
            );
        }
    }

    #[test]
    fn all_mistakes_are_found_in_one_go() {
        let errors =
            errors("leese = 5, ttl = 3, key = \"a\", key = \"b\", \"loose\", wait(5), lease = , lease = 1 2, = 3");
        let expected = [
            "did you mean `lease`?",
            "called `lease` here",
            "`key` specified more than once",
            "write `key = \"loose\"`",
            "written with `=`, such as `wait = 10`",
            "`lease =` needs a value",
            "put a comma",
            "an argument starts with its name",
        ];
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.contains(expected), "{error} / {expected}");
        }
    }
}
