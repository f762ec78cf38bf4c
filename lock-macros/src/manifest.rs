//! The name of the runtime in the user's Cargo.toml.

use std::path::Path;
use std::{env, fs};

const PACKAGE: &str = "lock-runtime";
/// The package that re-exports all of the runtime.
const FACADE: &str = "distributed-locks";

/// Returns the name of the runtime in the crate that is being compiled, if it is another one than
/// `lock_runtime`: that of the facade, or the one that Cargo.toml gives either of them,
/// `locks = { package = "lock-runtime", … }`, there or, if the crate inherits `locks`, in its
/// workspace's Cargo.toml.
// Read without a TOML parser: a name that is not found is assumed to be the usual one, and the
// argument `crate` covers all other cases.
pub(crate) fn renamed() -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    renamed_at(Path::new(&folder), |folder| {
        fs::read_to_string(folder.join("Cargo.toml")).ok()
    })
}

fn renamed_at(folder: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<String> {
    let text = read(folder)?;
    let manifest = Manifest::of(&text);
    let root = || workspace(folder, &manifest, &read);
    // The library sees only its own dependencies; its tests see them as well.
    let name = named_in(&manifest.dependencies, &text, root).or_else(|| named_in(&manifest.others, &text, root))?;
    (name != PACKAGE).then(|| name.replace('-', "_"))
}

/// Returns the name that `dependencies` give the runtime. `text` is the Cargo.toml that they stand
/// in, and `root` reads the one of its workspace.
fn named_in(dependencies: &[(&str, Says)], text: &str, root: impl Fn() -> Option<String>) -> Option<String> {
    let names = |says| {
        let said = dependencies.iter().filter(move |(_, said)| *said == says);
        said.map(|(name, _)| (*name).to_owned())
    };
    let has = |package| dependencies.iter().any(|(name, _)| *name == package);
    if has(PACKAGE) {
        return Some(PACKAGE.to_owned());
    }
    if let Some(name) = names(Says::Runtime).next() {
        return Some(name);
    }
    if has(FACADE) {
        return Some(FACADE.to_owned());
    }
    names(Says::Inherited).next()?;
    let root = root();
    let shared = Manifest::of(root.as_deref().unwrap_or(text)).shared;
    names(Says::Inherited).find(|name| shared.contains(&(name.as_str(), Says::Runtime)))
}

/// Reads the Cargo.toml of the workspace, if it is another one than the package's.
fn workspace(folder: &Path, manifest: &Manifest<'_>, read: impl Fn(&Path) -> Option<String>) -> Option<String> {
    if manifest.is_workspace {
        return None;
    }
    if let Some(root) = manifest.root {
        return read(&folder.join(root));
    }
    let outer = folder.ancestors().skip(1);
    outer.filter_map(read).find(|text| Manifest::of(text).is_workspace)
}

/// The parts of a Cargo.toml that say how the runtime is called.
#[derive(Default)]
struct Manifest<'a> {
    /// The statements of the package's tables `[dependencies]`, one for a line, by name.
    dependencies: Vec<(&'a str, Says)>,
    /// The same for `[dev-dependencies]` and `[build-dependencies]`.
    others: Vec<(&'a str, Says)>,
    /// The same for `[workspace.dependencies]`.
    shared: Vec<(&'a str, Says)>,
    is_workspace: bool,
    /// The value of `package.workspace`.
    root: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    /// The dependency is the runtime.
    Runtime,
    /// The workspace says what the dependency is.
    Inherited,
    Other,
}

impl<'a> Manifest<'a> {
    fn of(text: &'a str) -> Self {
        let mut manifest = Self::default();
        let mut section = "";
        // The dependency whose braces a line has opened and not closed.
        let mut open = None;
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let header = line.strip_prefix('[').filter(|_| open.is_none());
            if let Some(header) = header {
                section = header.split(']').next().unwrap_or_default().trim();
                manifest.is_workspace |= section == "workspace" || section.starts_with("workspace.");
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let (key, value) = (key.trim_start_matches([']', ',', ' ']).trim_end(), value.trim());
            if section == "package" && key == "workspace" {
                manifest.root = quoted(value);
            }
            // `[dependencies]` with a line for each, or `[dependencies.locks]`.
            let (table, last) = section.rsplit_once('.').unwrap_or(("", section));
            let (table, dependency) = if last.ends_with("dependencies") {
                (section, open)
            } else if table.ends_with("dependencies") {
                (table, Some(last))
            } else {
                continue;
            };
            let (name, key) = match dependency {
                Some(dependency) => (dependency, key),
                None if header.is_some() => continue,
                None => key.split_once('.').unwrap_or((key, "")),
            };
            let name = name.trim().trim_matches(['"', '\'']);
            let said = (name, Says::of(key.trim(), value));
            if table == "workspace.dependencies" {
                manifest.shared.push(said);
            } else if table.rsplit('.').next() == Some("dependencies") {
                manifest.dependencies.push(said);
            } else {
                manifest.others.push(said);
            }
            if line.contains('}') {
                open = None;
            } else if key.is_empty() && value.starts_with('{') {
                open = Some(name);
            }
        }
        manifest
    }
}

impl Says {
    /// Reads `key = value` of a dependency. Without a key, the value is that of the dependency.
    fn of(key: &str, value: &str) -> Self {
        let field = |name: &str| {
            if key == name {
                return Some(value);
            }
            let mut fields = value.split(['{', ',']).filter(|_| key.is_empty());
            fields.find_map(|field| field.trim().strip_prefix(name)?.trim_start().strip_prefix('='))
        };
        if field("package").is_some_and(|package| matches!(quoted(package), Some(PACKAGE | FACADE))) {
            Self::Runtime
        } else if field("workspace").is_some_and(|is| is.trim().starts_with("true")) {
            Self::Inherited
        } else {
            Self::Other
        }
    }
}

/// Returns the text of a string.
fn quoted(value: &str) -> Option<&str> {
    let value = value.trim();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    value.split(quote).nth(1)
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
                "[dependencies]\nlocks = { version = '1', package = 'lock-runtime' }",
                Some("locks"),
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
                "[dependencies]\nlocks = { version = \"1\", features = [\n    \"axum\",\n], package = \"lock-runtime\" }",
                Some("locks"),
            ),
            (
                "[dependencies]\nlocks = {\n    package = \"lock-runtime\",\n    version = \"1\",\n}\nother = \"1\"",
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
            ("[dependencies]\ndistributed-locks = \"1\"", Some("distributed_locks")),
            (
                "[dependencies]\ndistributed-locks.workspace = true",
                Some("distributed_locks"),
            ),
            (
                "[dependencies]\nlocks = { package = \"distributed-locks\", version = \"1\" }",
                Some("locks"),
            ),
            ("[dependencies]\ndistributed-locks = \"1\"\nlock-runtime = \"1\"", None),
            (
                "[dev-dependencies]\nlock-runtime = \"1\"\n[dependencies]\ndistributed-locks = \"1\"",
                Some("distributed_locks"),
            ),
            (
                "[dependencies]\nlocks = { package = \"distributed-locks\" }\n[build-dependencies.lock-runtime]\nversion = \"1\"",
                Some("locks"),
            ),
            (
                "[dependencies]\nlock-runtime = \"1\"\n[dev-dependencies]\ndistributed-locks = \"1\"",
                None,
            ),
            (
                "[target.'cfg(unix)'.dependencies]\nlock-runtime = \"1\"\n[dev-dependencies]\nlocks = { package = \"lock-runtime\" }",
                None,
            ),
            ("[dependencies]\nlock-runtime = \"1\"", None),
            ("[dependencies]\nlock-runtime.workspace = true", None),
            ("[dependencies.lock-runtime]\nversion = \"1\"", None),
            (
                "[dependencies]\nold = { package = \"lock-runtime\", version = \"1\" }\nlock-runtime = \"2\"",
                None,
            ),
            ("[dependencies]\nlocks = { package = \"lock-runtime-extra\" }", None),
            (
                "[dependencies]\nlocks = {\n    version = \"1\",\n}\npackage = \"lock-runtime\"",
                None,
            ),
            ("[package]\nname = \"lock-runtime\"", None),
            ("# locks = { package = \"lock-runtime\" }", None),
            ("[features]\nlocks = [\"lock-runtime\"]", None),
        ] {
            let found = renamed_at(Path::new("/work"), |folder| {
                (folder == Path::new("/work")).then(|| manifest.to_owned())
            });
            assert_eq!(found.as_deref(), expected, "{manifest}");
        }
    }

    #[test]
    fn a_dependency_that_the_workspace_renames_is_found() {
        let shared = "[workspace.dependencies]\nlocks = { package = \"lock-runtime\", version = \"1\" }";
        let inherits = "[dependencies]\nlocks = { workspace = true, features = [\"axum\"] }";
        for (member, root, expected) in [
            (inherits, shared, Some("locks")),
            ("[dependencies]\nlocks.workspace = true", shared, Some("locks")),
            ("[dependencies.locks]\nworkspace = true", shared, Some("locks")),
            (
                "[dependencies]\nlocks = {\n    workspace = true,\n}",
                shared,
                Some("locks"),
            ),
            ("[dev-dependencies]\nlocks.workspace = true", shared, Some("locks")),
            (
                inherits,
                "[workspace]\n[workspace.dependencies.locks]\nversion = \"1\"\npackage = \"lock-runtime\"",
                Some("locks"),
            ),
            (
                inherits,
                "[workspace.dependencies]\nother = { package = \"lock-runtime\" }\nlocks = { package = \"lock-runtime\" }",
                Some("locks"),
            ),
            (
                "[dependencies]\nserde.workspace = true\nmy-locks.workspace = true",
                "[workspace.dependencies]\nserde = \"1\"\nmy-locks = { package = \"lock-runtime\", version = \"1\" }",
                Some("my_locks"),
            ),
            // The package of the root is a member as well.
            (
                "[workspace.dependencies]\nlock-runtime = \"1\"\nlocks = { package = \"lock-runtime\" }\n[dependencies]\nlocks.workspace = true",
                "[workspace.dependencies]\nlocks = \"1\"",
                Some("locks"),
            ),
            (
                "[workspace.dependencies]\nlocks = { package = \"lock-runtime\" }\n[dependencies]\nlock-runtime = \"1\"",
                "",
                None,
            ),
            ("[dependencies]\nlocks.workspace = false", shared, None),
            ("[dependencies]\nother.workspace = true", shared, None),
            ("[dependencies]\nlocks = \"1\"", shared, None),
            (
                "[dependencies]\nlock-runtime.workspace = true\nlocks.workspace = true",
                shared,
                None,
            ),
            (inherits, "[dependencies]\nlocks = { package = \"lock-runtime\" }", None),
        ] {
            let found = renamed_at(Path::new("/work/crates/member"), |folder| match folder.to_str()? {
                "/work/crates/member" => Some(member.to_owned()),
                "/work/crates" => Some("[package]\nname = \"no-root\"".to_owned()),
                "/work" => Some(root.to_owned()),
                _ => Some("[workspace]".to_owned()),
            });
            assert_eq!(found.as_deref(), expected, "{member}\n\n{root}");
        }
    }

    #[test]
    fn a_workspace_that_the_package_names_is_found() {
        let found = renamed_at(Path::new("/work/member"), |folder| match folder.to_str()? {
            "/work/member" => {
                Some("[package]\nworkspace = \"../root\"\n[dependencies]\nlocks.workspace = true".to_owned())
            }
            "/work/member/../root" => {
                Some("[workspace.dependencies]\nlocks = { package = \"lock-runtime\" }".to_owned())
            }
            _ => None,
        });
        assert_eq!(found.as_deref(), Some("locks"));
    }
}
