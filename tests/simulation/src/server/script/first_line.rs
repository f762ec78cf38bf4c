//! What a script's first line says.

use super::Version;
use crate::server::resp::Reply;

/// What a script's first line declares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits {
    pub no_writes: bool,
    pub allow_oom: bool,
    pub allow_stale: bool,
}

/// A script's first line.
pub(super) struct Declared<'a> {
    /// The language, as `lua`.
    pub(super) language: String,
    pub(super) traits: Option<Traits>,
    pub(super) body: &'a [u8],
}

/// Reads a script's first line.
pub(super) fn declared(source: &[u8], version: Version) -> Result<Declared<'_>, Reply> {
    if !source.starts_with(b"#!") {
        return Ok(Declared {
            language: "lua".to_owned(),
            traits: None,
            body: source,
        });
    }
    let end = source.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| Reply::error("ERR Invalid script shebang"))?;
    let line = String::from_utf8_lossy(&source[2..end]).into_owned();
    let mut parts = line.split(' ').filter(|part| !part.is_empty());
    let language = parts.next().unwrap_or_default().to_owned();
    // Valkey looks for the language only when it compiles the script.
    if language != "lua" && version != Version::Valkey9 {
        return Err(Reply::error(format!(
            "ERR Unexpected engine in script shebang: #!{language}"
        )));
    }
    let mut traits = Traits::default();
    for part in parts {
        let Some(flags) = part.strip_prefix("flags=") else {
            return Err(Reply::error(format!("ERR Unknown lua shebang option: {part}")));
        };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            match flag {
                "no-writes" => traits.no_writes = true,
                "allow-oom" => traits.allow_oom = true,
                "allow-stale" => traits.allow_stale = true,
                "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(Reply::error(format!("ERR Unexpected flag in script shebang: {flag}"))),
            }
        }
    }
    Ok(Declared {
        language,
        traits: Some(traits),
        body: &source[end..],
    })
}
