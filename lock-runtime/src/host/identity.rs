//! The name under which a process stands in the values of its locks.

const LONGEST_NAME: usize = 64;

/// Returns the place of this process: `:<host>:<pid>:`.
pub(super) fn of_this_process() -> Box<str> {
    place(&gethostname::gethostname().to_string_lossy(), std::process::id())
}

/// Returns `:<host>:<pid>:`, with the host's name shortened and without the characters that have a
/// meaning in a value.
pub(super) fn place(host: &str, pid: u32) -> Box<str> {
    let mut name: String = host
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || matches!(c, '-' | '.' | '_') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let longest = name.char_indices().map(|(at, c)| at + c.len_utf8());
    let longest = longest.take_while(|end| *end <= LONGEST_NAME).last();
    name.truncate(longest.unwrap_or_default());
    format!(":{name}:{pid}:").into()
}
