//! Words that the arguments go by elsewhere, and the answer to each.

use proc_macro2::TokenStream;
use syn::parse::ParseStream;
use syn::{Expr, ExprLit, Lit};

use crate::args::{self, ARGUMENTS};
use crate::mode;
use crate::suggest;

/// What the arguments are called elsewhere, folded.
const ELSEWHERE: [(&str, &[&str]); 16] = [
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
        "keys",
        &[
            "resources",
            "names",
            "lockkeys",
            "keylist",
            "allkeys",
            "multikey",
            "multikeys",
            "multilock",
        ],
    ),
    (
        "owner",
        &[
            "ownerid",
            "ownerkey",
            "lockowner",
            "owners",
            "workflow",
            "workflowid",
            "onbehalfof",
        ],
    ),
    (
        "reentrant",
        &[
            "reentrance",
            "reentrancy",
            "isreentrant",
            "reentrantlock",
            "recursive",
            "nested",
            "nesting",
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
    (
        "lock_delay",
        &["lockdelay", "delay", "graceperiod", "cooldown", "quarantine"],
    ),
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

/// Words that mean the mode, whose value is then told.
const MODES: [&str; 6] = ["lockmode", "locktype", "type", "kind", "lockkind", "modes"];

/// Words that mean the number of a semaphore's permits.
const PERMITS: [&str; 12] = [
    "semaphore",
    "permits",
    "permit",
    "maxpermits",
    "limit",
    "concurrency",
    "maxconcurrency",
    "maxconcurrent",
    "maxparallel",
    "parallelism",
    "maxholders",
    "slots",
];

/// Words that are values here.
const VALUES: [(&[&str], &str); 5] = [
    (
        &["read", "reader", "readlock", "shared", "sharedlock", "readonly"],
        "mode = read",
    ),
    (&["write", "writer", "writelock"], "mode = write"),
    (&["exclusive", "exclusivelock", "mutex"], "mode = exclusive"),
    (
        &[
            "coalesce",
            "coalescing",
            "coalesced",
            "singleflight",
            "dedupe",
            "dedup",
            "deduplicate",
            "shareresult",
        ],
        "on_busy = coalesce",
    ),
    (&["skip", "skipiflocked", "skipifbusy"], "on_busy = skip"),
];

/// Words that ask for something which is not said in the attribute.
const NOT_HERE: [(&[&str], &str); 4] = [
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
        &["readwrite", "rw", "rwlock", "readwritelock"],
        "write `mode = read` on the functions that read, and `mode = write` on those that write",
    ),
    (
        &["unit", "timeunit"],
        "say the unit in the value: `lease = \"1500ms\"`; a number alone is in seconds",
    ),
];

/// What to say about `word`, which is no argument.
pub(crate) fn answer(word: &str, value: Option<&Expr>) -> String {
    let folded = suggest::fold(word);
    if MODES.contains(&folded.as_str()) {
        let meant = value.and_then(word_in).and_then(|word| mode::meant(&word));
        let written = meant.map_or_else(|| args::usage("mode").to_owned(), |mode| format!("mode = {mode}"));
        return format!("unknown argument `{word}`: it is called `mode` here, write `{written}`");
    }
    if PERMITS.contains(&folded.as_str()) {
        let permits = value
            .map(suggest::written)
            .filter(|permits| permits.len() <= 40 && permits != "true");
        return format!("unknown argument `{word}`: {}", semaphore(permits));
    }
    // Whoever writes `coalesce = false` wants none of it.
    if let Some((_, written)) = VALUES.iter().find(|(words, _)| words.contains(&folded.as_str())) {
        return match value {
            Some(Expr::Lit(ExprLit {
                lit: Lit::Bool(value), ..
            })) if !value.value => {
                format!("unknown argument `{word}`: leave it out; where it is wanted, write `{written}`")
            }
            _ => format!("unknown argument `{word}`: write `{written}`"),
        };
    }
    if let Some((_, advice)) = NOT_HERE.iter().find(|(words, _)| words.contains(&folded.as_str())) {
        return format!("unknown argument `{word}`: {advice}");
    }
    if let Some((name, _)) = ELSEWHERE.iter().find(|(_, words)| words.contains(&folded.as_str())) {
        // The value is repeated where it can be: `ttl = 15` becomes `lease = 15`.
        let value = value
            .map(suggest::written)
            .filter(|value| value.len() <= 40)
            // Whoever writes `pipelined = true` means its word, not its value.
            .filter(|value| *name != "release" || value.starts_with('"'));
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

/// What to say about `word(…)`, where it means something.
pub(crate) fn in_parentheses(word: &str, input: ParseStream<'_>) -> Option<String> {
    let folded = suggest::fold(word);
    if !PERMITS.contains(&folded.as_str()) {
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

/// The word that a value is, in quotes or without.
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
mod tests {
    use crate::args::tests::errors;

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
            ("coalesce", "write `on_busy = coalesce`"),
            ("singleFlight = true", "write `on_busy = coalesce`"),
            ("lockDelay = \"5s\"", "write `lock_delay = \"5s\"`"),
            ("recursive = true", "write `reentrant = true`"),
            ("workflow_id = \"<id>\"", "write `owner = \"<id>\"`"),
            ("resources = [\"a\", \"b\"]", "write `keys = [\"a\", \"b\"]`"),
            ("on_release = \"confirmed\"", "write `release = \"confirmed\"`"),
        ] {
            let errors = errors(word);
            assert_eq!(errors.len(), 1, "{word}");
            assert!(errors[0].contains(answer), "{word}: {errors:?}");
        }
    }
}
