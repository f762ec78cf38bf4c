//! Whether the engine's table of commands is that of the real server.

use std::collections::BTreeSet;
use std::io;

use lock_simulation::server::engine::{BUSY, Command, LOADING, MEMORY, NO_AUTH, NO_SCRIPT, READ, STALE, WRITE};
use lock_simulation::server::version::Version;

use crate::real::Real;

const FLAGS: [(u16, &str); 8] = [
    (WRITE, "write"),
    (READ, "readonly"),
    (MEMORY, "denyoom"),
    (NO_SCRIPT, "noscript"),
    (STALE, "stale"),
    (LOADING, "loading"),
    (NO_AUTH, "no_auth"),
    (BUSY, "allow_busy"),
];

/// Prints the commands that the server describes in another way. Returns how many there are.
///
/// # Errors
/// Fails if the server does not answer.
pub fn differences(version: Version, real: &mut Real) -> io::Result<u64> {
    let mut count = 0;
    for command in Command::all(version) {
        let is_inner = command.name.contains('|');
        // Before 7.0, the outer command has the flags, and the server knows some names by heart.
        if !version.is_7() && (is_inner || command.name == "quit") || version.is_7() && command.is_container() {
            continue;
        }
        let told = real.ask(&["COMMAND", "INFO", command.name])?;
        let described = told.children.first().filter(|described| described.children.len() > 2);
        let Some(described) = described else {
            println!("{}: the server has no command {}", version.name(), command.name);
            count += 1;
            continue;
        };
        let arity = String::from_utf8_lossy(&described.children[1].text).into_owned();
        let theirs: BTreeSet<String> = described.children[2]
            .children
            .iter()
            .map(|flag| String::from_utf8_lossy(&flag.text).into_owned())
            .collect();
        for (flag, name) in FLAGS {
            // Before 7.0, there is no such flag.
            let is_known = flag != BUSY || version.is_7();
            if is_known && command.is(flag, version) != theirs.contains(name) {
                println!("{}: the flag {name} of {} differs", version.name(), command.name);
                count += 1;
            }
        }
        if version.is_7() && arity != command.arity.to_string() {
            println!("{}: {} takes {arity} words", version.name(), command.name);
            count += 1;
        }
    }
    Ok(count)
}
