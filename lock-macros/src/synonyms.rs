//! The words that other libraries use for the arguments, and the message for each.

use proc_macro2::TokenStream;
use syn::parse::ParseStream;
use syn::{Expr, ExprLit, Lit, Path};

use crate::args::{self, ARGUMENTS};
use crate::mode;
use crate::suggest;

/// The words of other libraries for each argument, folded.
const ELSEWHERE: [(&str, &str); 19] = [
    (
        "key",
        "name resourcekey resource lockkey lockname keyexpression path value",
    ),
    (
        "keys",
        "resources names lockkeys keylist allkeys multikey multikeys multilock",
    ),
    (
        "owner",
        "ownerid ownerkey lockowner owners workflow workflowid onbehalfof",
    ),
    (
        "reentrant",
        "reentrance reentrancy isreentrant reentrantlock recursive nested nesting",
    ),
    (
        "lease",
        "ttl expire expires expiry expiration leasetime leaseseconds leasesecs leasems lockatmostfor duration",
    ),
    (
        "wait",
        "timeout waittime waittimeout acquiretimeout maxwait blockingtimeout waitseconds waitms",
    ),
    ("renew", "autorenew autoextend extend watchdog keepalive"),
    ("max_renewals", "maxrenew maxextensions renewals renewallimit"),
    ("max_hold", "maxhold maxholdtime maxduration maxtime maxruntime"),
    ("on_busy", "busy onfail onfailure onconflict fallback onlocked onerror"),
    ("on_lost", "lost onlocklost onloss"),
    (
        "coalesce",
        "coalescing coalesced singleflight dedupe dedup deduplicate shareresult",
    ),
    ("lock_delay", "lockdelay delay graceperiod cooldown quarantine"),
    ("at_least", "lockatleastfor minhold minimumhold hold"),
    (
        "min_replicas",
        "replicas waitreplicas numreplicas minslaves slaves acks acknowledgements",
    ),
    ("fencing", "fence fenced fencingtoken token"),
    ("fair", "fairness isfair fairlock fairqueue fifo ordered queued"),
    ("release", "pipeline pipelined pipelining onrelease releasemode unlock"),
    ("manager", "client lockmanager locks redis store registry connection"),
];

/// Words that mean the mode. The message then names the mode for the given value.
const MODES: &str = "lockmode locktype type kind lockkind modes";

/// Words that mean the number of a semaphore's permits.
const PERMITS: &str = "semaphore permits permit maxpermits limit concurrency maxconcurrency maxconcurrent maxparallel parallelism maxholders slots";

/// The values of `release`.
const RELEASES: [&str; 2] = ["confirmed", "pipelined"];

/// The words of `on_busy` and `on_lost`, each with others that mean it and that hardly name a function.
const OUTCOMES: [(&str, &str, &str); 4] = [
    ("on_busy", "error", "err exception"),
    (
        "on_busy",
        "skip",
        "ignore ignored none None nothing noop skipped Skip SKIP",
    ),
    ("on_lost", "cancel", "canceled error"),
    (
        "on_lost",
        "signal",
        "ignore ignored none None nothing signaled signalled",
    ),
];

/// Words that are values of arguments here.
const VALUES: [(&str, &str); 4] = [
    ("read reader readlock shared sharedlock readonly", "mode = read"),
    ("write writer writelock", "mode = write"),
    ("exclusive exclusivelock mutex", "mode = exclusive"),
    ("skip skipiflocked skipifbusy", "on_busy = skip"),
];

/// Words for features that are not set in the attribute.
const NOT_HERE: [(&str, &str); 4] = [
    (
        "prefix keyprefix",
        "the prefix belongs to the manager: give it to `LockManager::builder(url).prefix(…)`",
    ),
    (
        "retry retries retrydelay retryinterval retrycount backoff interval sleep",
        "`wait` says how long to try; the pauses between the tries belong to the manager: `LockManager::builder(url).backoff(…)`",
    ),
    (
        "readwrite rw rwlock readwritelock",
        "write `mode = read` on the functions that read, and `mode = write` on those that write",
    ),
    (
        "unit timeunit",
        "say the unit in the value: `lease = \"1500ms\"`; a number alone is in seconds",
    ),
];

/// Returns `true` if the folded word is in the table.
fn is_among(table: &str, folded: &str) -> bool {
    table.split(' ').any(|word| word == folded)
}

/// Returns the message for `word`, which is not an argument.
pub(crate) fn answer(word: &str, value: Option<&Expr>) -> String {
    let folded = suggest::fold(word);
    if is_among(MODES, &folded) {
        let meant = value.and_then(word_in).and_then(|word| mode::meant(&word));
        let written = meant.map_or_else(|| args::usage("mode").to_owned(), |mode| format!("mode = {mode}"));
        return format!("unknown argument `{word}`: it is called `mode` here, write `{written}`");
    }
    if is_among(PERMITS, &folded) {
        let permits = value
            .map(suggest::written)
            .filter(|permits| permits.len() <= 40 && permits != "true");
        return format!("unknown argument `{word}`: {}", semaphore(permits));
    }
    // `exclusive = false` asks for the default, so the argument is left out.
    if let Some((_, written)) = VALUES.iter().find(|(words, _)| is_among(words, &folded)) {
        return match value {
            Some(Expr::Lit(ExprLit {
                lit: Lit::Bool(value), ..
            })) if !value.value => {
                format!("unknown argument `{word}`: leave it out; where it is wanted, write `{written}`")
            }
            _ => format!("unknown argument `{word}`: write `{written}`"),
        };
    }
    if let Some((_, advice)) = NOT_HERE.iter().find(|(words, _)| is_among(words, &folded)) {
        return format!("unknown argument `{word}`: {advice}");
    }
    if let Some((name, _)) = ELSEWHERE.iter().find(|(_, words)| is_among(words, &folded)) {
        // The message repeats the value if possible: `ttl = 15` becomes `lease = 15`, and
        // `unlock = "confirmed"` becomes `release = confirmed`.
        let value = match *name {
            "release" => value
                .and_then(word_in)
                .map(|word| suggest::fold(&word))
                .filter(|word| RELEASES.contains(&word.as_str())),
            _ => value.map(suggest::written).filter(|value| value.len() <= 40),
        };
        let written = value.map_or_else(|| args::usage(name).to_owned(), |value| format!("{name} = {value}"));
        return format!("unknown argument `{word}`: it is called `{name}` here, write `{written}`");
    }
    let names = ARGUMENTS.iter().map(|(name, _)| *name);
    let all = suggest::list(names.clone());
    match suggest::nearest(word, names) {
        Some(name) => format!("unknown argument `{word}`: did you mean `{name}`? The arguments are {all}"),
        None => format!("unknown argument `{word}`: the arguments are {all}"),
    }
}

/// Returns the message for a path that was given to `on_busy` or `on_lost`, if it is a misspelt word of the argument. All other paths are
/// functions.
pub(crate) fn misspelt(argument: &str, path: &Path) -> Option<String> {
    let given = path.get_ident()?.to_string();
    let meant = |words: &str, word: &str| is_among(words, &given) || suggest::is_misspelt(&given, word);
    let (.., word, _) = OUTCOMES
        .iter()
        .find(|(name, word, words)| *name == argument && meant(words, word))?;
    let way_out = if given.starts_with(char::is_lowercase) {
        format!(" A function of that name is written `self::{given}`")
    } else {
        String::new()
    };
    Some(format!("did you mean `{argument} = {word}`?{way_out}"))
}

/// Returns the message for `word(…)`, if `word` is known.
pub(crate) fn in_parentheses(word: &str, input: ParseStream<'_>) -> Option<String> {
    let folded = suggest::fold(word);
    if !is_among(PERMITS, &folded) {
        return None;
    }
    let content = || -> syn::Result<TokenStream> {
        let inside;
        syn::parenthesized!(inside in input);
        inside.parse()
    };
    let permits = content().ok().map(suggest::written);
    Some(semaphore(
        permits.filter(|permits| !permits.is_empty() && permits.len() <= 40),
    ))
}

fn semaphore(permits: Option<String>) -> String {
    format!(
        "write `mode = semaphore({})`",
        permits.unwrap_or_else(|| "5".to_owned())
    )
}

/// Returns the word in a value, with or without quotes.
fn word_in(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::args::tests::errors;

    #[test]
    fn a_misspelt_word_is_no_function_and_any_other_name_is() {
        for (argument, path, expected) in [
            ("on_busy", "skp", Some("skip")),
            ("on_busy", "eror", Some("error")),
            ("on_busy", "ignore", Some("skip")),
            ("on_busy", "None", Some("skip")),
            ("on_busy", "Skip", Some("skip")),
            ("on_lost", "signl", Some("signal")),
            ("on_lost", "cancle", Some("cancel")),
            ("on_lost", "none", Some("signal")),
            ("on_busy", "self::skp", None),
            ("on_busy", "orders::ignore", None),
            ("on_busy", "stop", None),
            ("on_busy", "Error", None),
            ("on_busy", "skip_it", None),
            ("on_busy", "signl", None),
            ("on_lost", "cancelled", None),
            ("on_lost", "cancel_order", None),
            ("on_lost", "sync", None),
        ] {
            let message = misspelt(argument, &syn::parse_str(path).unwrap());
            let expected = expected.map(|word| format!("did you mean `{argument} = {word}`?"));
            match (&message, expected) {
                (Some(message), Some(expected)) => assert!(message.starts_with(&expected), "{path}: {message}"),
                (message, expected) => assert_eq!(*message, expected, "{path}"),
            }
        }
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
            ("pipelined", "write `release = pipelined`"),
            ("pipelined = true", "write `release = pipelined`"),
            ("lockType = \"READ\"", "write `mode = read`"),
            ("lock_type = LockType::Write", "write `mode = write`"),
            ("kind = 5", "write `mode = read`"),
            ("readWrite", "`mode = read` on the functions that read"),
            ("read", "write `mode = read`"),
            ("write = true", "write `mode = write`"),
            (
                "exclusive = false",
                "leave it out; where it is wanted, write `mode = exclusive`",
            ),
            ("semaphore = 5", "write `mode = semaphore(5)`"),
            ("semaphore(7)", "write `mode = semaphore(7)`"),
            ("semaphore", "write `mode = semaphore(5)`"),
            ("permits = limit * 2", "write `mode = semaphore(limit * 2)`"),
            ("maxConcurrent = 3", "write `mode = semaphore(3)`"),
            ("singleFlight", "write `coalesce`"),
            ("singleFlight = true", "write `coalesce = true`"),
            ("lockDelay = \"5s\"", "write `lock_delay = \"5s\"`"),
            ("recursive = true", "write `reentrant = true`"),
            ("workflow_id = \"<id>\"", "write `owner = \"<id>\"`"),
            ("resources = [\"a\", \"b\"]", "write `keys = [\"a\", \"b\"]`"),
            ("on_release = \"confirmed\"", "write `release = confirmed`"),
        ] {
            let errors = errors(word);
            assert_eq!(errors.len(), 1, "{word}");
            assert!(errors[0].contains(answer), "{word}: {errors:?}");
        }
    }
}
