//! What an operator sets while a server runs.

use crate::server::engine::{Caller, Engine, Limit};
use crate::server::number;
use crate::server::resp::{Answer, Reply};

/// The parameters that the engine knows.
const NAMES: [&str; 6] = [
    "maxmemory",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "replica-serve-stale-data",
    "tracking-table-max-keys",
    "client-output-buffer-limit",
];

fn amount(value: &[u8]) -> usize {
    number::integer(value)
        .and_then(|number| usize::try_from(number).ok())
        .unwrap_or_default()
}

/// Reads a limit of each class that is named, as `pubsub 1000 0 0`.
fn limits(engine: &mut Engine, value: &[u8]) {
    let words: Vec<&[u8]> = value.split(|byte| *byte == b' ').collect();
    for four in words.chunks_exact(4) {
        let limit = Limit {
            hard: amount(four[1]),
            soft: amount(four[2]),
            seconds: amount(four[3]) as u64,
        };
        match four[0].to_ascii_lowercase().as_slice() {
            b"normal" => engine.limits[0] = limit,
            b"pubsub" => engine.limits[1] = limit,
            _ => {}
        }
    }
}

pub fn config_set(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let is_7 = engine.version.is_7();
    let unknown = |name: &[u8]| {
        let name = String::from_utf8_lossy(name).into_owned();
        Reply::error(if is_7 {
            format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
        } else {
            format!("ERR Unsupported CONFIG parameter: {name}")
        })
    };
    let is_known = |name: &[u8]| NAMES.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()));
    if let Some(pair) = words[2..].chunks(2).find(|pair| !is_known(pair[0])) {
        return Err(unknown(pair[0]));
    }
    for pair in words[2..].chunks(2) {
        let (name, value) = (pair[0].to_ascii_lowercase(), pair.get(1).copied().unwrap_or_default());
        let is_yes = value.eq_ignore_ascii_case(b"yes");
        match name.as_slice() {
            // Whatever is there is more than one byte.
            b"maxmemory" => engine.state.is_full = amount(value) > 0,
            // As if its last try to save had failed.
            b"stop-writes-on-bgsave-error" => engine.state.cannot_save = is_yes,
            b"min-replicas-to-write" => engine.state.replicas_needed = amount(value),
            b"replica-serve-stale-data" => engine.state.refuses_stale = !is_yes,
            b"tracking-table-max-keys" => engine.most_tracked = amount(value),
            _ => limits(engine, value),
        }
    }
    Ok(Reply::ok())
}

pub fn config_get(engine: &mut Engine, _: &Caller, words: &[&[u8]]) -> Answer {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mut found = Vec::new();
    for name in NAMES {
        if !words[2..]
            .iter()
            .any(|word| super::super::glob::matches(&word.to_ascii_lowercase(), name.as_bytes()))
        {
            continue;
        }
        let state = &engine.state;
        let value = match name {
            "maxmemory" => u8::from(state.is_full).to_string(),
            "stop-writes-on-bgsave-error" => yes(state.cannot_save),
            "min-replicas-to-write" => state.replicas_needed.to_string(),
            "replica-serve-stale-data" => yes(!state.refuses_stale),
            "tracking-table-max-keys" => engine.most_tracked.to_string(),
            _ => {
                let [usual, subscribed] = engine
                    .limits
                    .map(|limit| format!("{} {} {}", limit.hard, limit.soft, limit.seconds));
                format!("normal {usual} slave 268435456 67108864 60 pubsub {subscribed}")
            }
        };
        found.push((Reply::text(name), Reply::text(&value)));
    }
    Ok(Reply::Map(found))
}
