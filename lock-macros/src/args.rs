//! The words between the parentheses: which arguments are given, each at most once, with a value of any kind.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, Lit, Token};

use crate::errors::Errors;
use crate::suggest;

/// The arguments of this version, and how each is written.
const ARGUMENTS: [(&str, &str); 13] = [
    ("key", "key = \"inventory:<item_id>\""),
    ("lease", "lease = 30"),
    ("wait", "wait = 10"),
    ("renew", "renew = false"),
    ("max_renewals", "max_renewals = 30"),
    ("on_busy", "on_busy = skip"),
    ("on_lost", "on_lost = signal"),
    ("at_least", "at_least = 60"),
    ("fencing", "fencing"),
    ("fair", "fair"),
    ("release", "release = \"pipelined\""),
    ("manager", "manager = self.locks"),
    ("crate", "crate = lock_runtime"),
];

/// Arguments that later versions have. Moving a line up to [`ARGUMENTS`] opens it.
const LATER: [&str; 5] = ["mode", "reentrant", "owner", "keys", "lock_delay"];

/// What the arguments are called elsewhere, folded.
const ELSEWHERE: [(&str, &[&str]); 12] = [
    (
        "key",
        &[
            "name",
            "resourcekey",
            "resource",
            "lockkey",
            "lockname",
            "keyexpression",
            "path",
            "value",
        ],
    ),
    (
        "lease",
        &[
            "ttl",
            "expire",
            "expires",
            "expiry",
            "expiration",
            "leasetime",
            "leaseseconds",
            "leasesecs",
            "leasems",
            "lockatmostfor",
            "duration",
        ],
    ),
    (
        "wait",
        &[
            "timeout",
            "waittime",
            "waittimeout",
            "acquiretimeout",
            "maxwait",
            "blockingtimeout",
            "waitseconds",
            "waitms",
        ],
    ),
    ("renew", &["autorenew", "autoextend", "extend", "watchdog", "keepalive"]),
    (
        "max_renewals",
        &["maxrenew", "maxextensions", "renewals", "renewallimit"],
    ),
    (
        "on_busy",
        &[
            "busy",
            "onfail",
            "onfailure",
            "onconflict",
            "fallback",
            "onlocked",
            "onerror",
        ],
    ),
    ("on_lost", &["lost", "onlocklost", "onloss"]),
    ("at_least", &["lockatleastfor", "minhold", "minimumhold", "hold"]),
    ("fencing", &["fence", "fenced", "fencingtoken", "token"]),
    (
        "fair",
        &[
            "fairness",
            "isfair",
            "fairlock",
            "fairqueue",
            "fifo",
            "ordered",
            "queued",
        ],
    ),
    (
        "release",
        &[
            "pipeline",
            "pipelined",
            "pipelining",
            "onrelease",
            "releasemode",
            "unlock",
        ],
    ),
    (
        "manager",
        &[
            "client",
            "lockmanager",
            "locks",
            "redis",
            "store",
            "registry",
            "connection",
        ],
    ),
];

/// Words that ask for something which is not said in the attribute.
const NOT_HERE: [(&[&str], &str); 3] = [
    (
        &["prefix", "keyprefix"],
        "the prefix belongs to the manager: give it to `LockManager::builder(url).prefix(…)`",
    ),
    (
        &[
            "retry",
            "retries",
            "retrydelay",
            "retryinterval",
            "retrycount",
            "backoff",
            "interval",
            "sleep",
        ],
        "`wait` says how long to try; the pauses between the tries belong to the manager: `LockManager::builder(url).backoff(…)`",
    ),
    (
        &["unit", "timeunit"],
        "say the unit in the value: `lease = \"1500ms\"`; a number alone is in seconds",
    ),
];

/// One argument as it was written.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    /// Nothing for a bare word.
    pub(crate) value: Option<Expr>,
}

/// All arguments, by name.
#[derive(Default)]
pub(crate) struct Args(Vec<Argument>);

impl Args {
    /// Reads the arguments; whatever is wrong goes into `errors`, and the rest is still read.
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
        // The closure above takes all errors itself.
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
            errors.on(&argument.name, unknown(&word, argument.value.as_ref()));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Argument> {
        self.0.iter().find(|argument| argument.name == name)
    }

    /// The value of `name`, which cannot stand alone.
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

/// How `name` is written.
pub(crate) fn usage(name: &str) -> &'static str {
    ARGUMENTS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or("", |(_, usage)| usage)
}

fn argument(input: ParseStream<'_>) -> syn::Result<Argument> {
    if input.peek(syn::Lit) {
        let literal: Lit = input.parse()?;
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
            value: Some(ungrouped(input.parse()?)),
        });
    }
    if input.peek(syn::token::Paren) || input.peek(Token![:]) || input.peek(Token![==]) {
        let word = name.to_string();
        let example = if usage(&word).is_empty() {
            usage("lease")
        } else {
            usage(&word)
        };
        return Err(input.error(format!("arguments are written with `=`, such as `{example}`")));
    }
    Ok(Argument { name, value: None })
}

/// A value that a `macro_rules!` has passed on comes in a group without brackets.
fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped(*group.expr),
        value => value,
    }
}

/// Goes behind the next comma, to read on after an error.
fn skip_to_comma(input: ParseStream<'_>) {
    while let Ok(token) = input.parse::<TokenTree>() {
        if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',') {
            return;
        }
    }
}

fn unknown(word: &str, value: Option<&Expr>) -> String {
    if LATER.contains(&word) {
        return format!("`{word}` is not available in this version: every lock is exclusive and has one key");
    }
    let folded = suggest::fold(word);
    if let Some((_, advice)) = NOT_HERE.iter().find(|(words, _)| words.contains(&folded.as_str())) {
        return format!("unknown argument `{word}`: {advice}");
    }
    if let Some((name, _)) = ELSEWHERE.iter().find(|(_, words)| words.contains(&folded.as_str())) {
        // The value is repeated where it can be: `ttl = 15` becomes `lease = 15`.
        let value = value
            .map(|value| value.to_token_stream().to_string())
            .filter(|value| value.len() <= 40)
            // Whoever writes `pipelined = true` means its word, not its value.
            .filter(|value| *name != "release" || value.starts_with('"'));
        let written = value.map_or_else(|| usage(name).to_owned(), |value| format!("{name} = {value}"));
        return format!("unknown argument `{word}`: it is called `{name}` here, write `{written}`");
    }
    let names = ARGUMENTS.iter().map(|(name, _)| *name);
    let all = suggest::list(names.clone());
    match suggest::nearest(word, names.chain(LATER)) {
        Some(name) => format!("unknown argument `{word}`: did you mean `{name}`? The arguments are {all}"),
        None => format!("unknown argument `{word}`: the arguments are {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(source: &str) -> Vec<String> {
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
            errors("key = \"a\", lease = f::<A, B>(1, 2), fencing,"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn words_from_elsewhere_are_answered_with_the_name_here() {
        for (word, answer) in [
            ("ttl = 15", "write `lease = 15`"),
            ("timeout = 5", "write `wait = 5`"),
            ("expire = \"2s\"", "write `lease = \"2s\"`"),
            ("leaseTime = 15", "write `lease = 15`"),
            ("lease_time = 15", "write `lease = 15`"),
            ("waitTime = 15", "write `wait = 15`"),
            ("resourceKey = \"a\"", "write `key = \"a\"`"),
            ("name = \"a\"", "write `key = \"a\"`"),
            ("prefix = \"a\"", "belongs to the manager"),
            ("timeUnit = SECONDS", "say the unit in the value"),
            ("lockAtLeastFor = 15", "write `at_least = 15`"),
            ("client = redis", "write `manager = redis`"),
            ("fenced = false", "write `fencing = false`"),
            ("fifo", "write `fair`"),
            ("fairLock = true", "write `fair = true`"),
            ("pipelined", "write `release = \"pipelined\"`"),
            ("pipelined = true", "write `release = \"pipelined\"`"),
            ("on_release = \"confirmed\"", "write `release = \"confirmed\"`"),
        ] {
            let errors = errors(word);
            assert_eq!(errors.len(), 1, "{word}");
            assert!(errors[0].contains(answer), "{word}: {errors:?}");
        }
    }

    #[test]
    fn every_argument_of_a_later_version_says_so() {
        for word in LATER {
            assert!(errors(word)[0].contains("is not available in this version"));
        }
        assert_eq!(errors("mode = semaphore(3), reentrant, keys = [\"a\", \"b\"]").len(), 3);
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
