//! The name of the runtime in the user's Cargo.toml.

use std::path::Path;
use std::{env, fs};

const PACKAGE: &str = "lock-runtime";

/// Returns the name of the runtime in the crate that is being compiled, if its Cargo.toml renames
/// it: `locks = { package = "lock-runtime", … }`.
// Read without a TOML parser: a name that is not found is assumed to be the usual one, and the
// argument `crate` covers all other cases.
pub(crate) fn renamed() -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    let manifest = fs::read_to_string(Path::new(&folder).join("Cargo.toml")).ok()?;
    renamed_in(&manifest)
}

fn renamed_in(manifest: &str) -> Option<String> {
    let (mut section, mut renamed) = ("", None);
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.split(']').next().unwrap_or_default().trim();
        }
        let (table, dependency) = section.rsplit_once('.').unwrap_or_default();
        // `[dependencies]` with a line for each, or `[dependencies.locks]`.
        let (name, value) = match line.split_once('=') {
            Some((name, value)) if section.ends_with("dependencies") => (name, value),
            Some((key, value)) if table.ends_with("dependencies") && key.trim() == "package" => (dependency, value),
            None if table.ends_with("dependencies") => (dependency, ""),
            _ => continue,
        };
        let (name, key) = name.split_once('.').unwrap_or((name, ""));
        let name = name.trim().trim_matches('"');
        if name == PACKAGE {
            return None;
        }
        let value: String = value.chars().filter(|c| !c.is_whitespace()).collect();
        let names_it = |value: &str| value.starts_with(&format!("\"{PACKAGE}\""));
        let package = if key.trim() == "package" || name == dependency {
            names_it(&value)
        } else {
            value.split("package=").nth(1).is_some_and(names_it)
        };
        if package && renamed.is_none() {
            renamed = Some(name.replace('-', "_"));
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_dependency_is_found() {
        for (manifest, expected) in [
            (
                "[dependencies]\nlocks = { package = \"lock-runtime\", version = \"1\" }",
                Some("locks"),
            ),
            (
                "[dependencies]\nmy-locks = { version = \"1\", package=\"lock-runtime\" } # ours",
                Some("my_locks"),
            ),
            (
                "[dependencies.locks]\nversion = \"1\"\npackage = \"lock-runtime\"",
                Some("locks"),
            ),
            (
                "[dependencies]\nlocks.version = \"1\"\nlocks.package = \"lock-runtime\"",
                Some("locks"),
            ),
            (
                "[target.'cfg(unix)'.dependencies]\nlocks = { package = \"lock-runtime\" }",
                Some("locks"),
            ),
            (
                "[dev-dependencies]\nlocks = { package = \"lock-runtime\" }",
                Some("locks"),
            ),
            ("[dependencies]\nlock-runtime = \"1\"", None),
            ("[dependencies]\nlock-runtime.workspace = true", None),
            ("[dependencies.lock-runtime]\nversion = \"1\"", None),
            (
                "[dependencies]\nold = { package = \"lock-runtime\", version = \"1\" }\nlock-runtime = \"2\"",
                None,
            ),
            ("[dependencies]\nlocks = { package = \"lock-runtime-extra\" }", None),
            ("[package]\nname = \"lock-runtime\"", None),
            ("# locks = { package = \"lock-runtime\" }", None),
            ("[features]\nlocks = [\"lock-runtime\"]", None),
        ] {
            assert_eq!(renamed_in(manifest).as_deref(), expected, "{manifest}");
        }
    }
}
