//! The public names of both crates, so that a change of the surface is seen in review.
//!
//! `UPDATE_PUBLIC_NAMES=1 cargo test -p lock-tests --test house` rewrites `docs/public-names.txt`.

mod contracts;
mod reader;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HEADER: &str = "\
# The public names of both crates, with all features, each by its shortest path from the crate's root.
# Names that the documentation hides are for generated code, and are left out; so are the traits that the compiler implements by itself.
# A condition in brackets marks what a feature adds.
#
# The test `house` compares this list with the sources. To rewrite it:
#
#     UPDATE_PUBLIC_NAMES=1 cargo test -p lock-tests --test house
";

#[test]
fn the_list_of_public_names_is_that_of_the_sources() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut list = HEADER.to_owned();
    for package in ["lock-runtime", "lock-macros"] {
        let names = reader::public_names(&top.join(package).join("src/lib.rs"));
        assert!(!names.is_empty(), "{package} has public names");
        list += &["\n## ", package, "\n\n", &names.join("\n"), "\n"].concat();
    }
    let file = top.join("docs/public-names.txt");
    if std::env::var_os("UPDATE_PUBLIC_NAMES").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, &list).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let (now, before): (BTreeSet<_>, BTreeSet<_>) = (list.lines().collect(), kept.lines().collect());
    let removed = before.difference(&now).map(|line| format!("- {line}"));
    let changes: Vec<_> = removed
        .chain(now.difference(&before).map(|line| format!("+ {line}")))
        .collect();
    assert!(
        list == kept,
        "the public names have changed:\n{}\nif that is intended: UPDATE_PUBLIC_NAMES=1 cargo test -p lock-tests --test house",
        changes.join("\n")
    );
}

#[test]
fn a_module_that_a_feature_makes_public_is_there_without_it() {
    let names = names_of(&[
        (
            "lib.rs",
            "#[cfg(feature = \"more\")] pub mod inner; #[cfg(not(feature = \"more\"))] mod inner; pub use inner::Always;",
        ),
        ("inner.rs", "pub struct Always; pub struct Sometimes;"),
    ]);
    let expected = [
        "struct Always",
        "mod inner [feature = \"more\"]",
        "use Always as inner::Always [feature = \"more\"]",
        "struct inner::Sometimes [feature = \"more\"]",
    ];
    assert_eq!(names, expected);
}

/// What is compiled only without a feature: such code could change what a dependency does as soon as another crate of the build
/// enables the feature. Each has its reason.
const WITHOUT: [(&str, &str); 6] = [
    // The same module, private.
    ("lib.rs", r#"#[cfg(not(feature = "custom-store"))]"#),
    // An example that needs the feature.
    (
        "manager/config/mod.rs",
        r#"#[cfg_attr(not(feature = "serde"), doc = "```ignore")]"#,
    ),
    // The same functions, empty.
    (
        "stats/mod.rs",
        r#"#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]"#,
    ),
    // A lint.
    (
        "store/mod.rs",
        r#"#![cfg_attr(not(feature = "custom-store"), allow(unreachable_pub))]"#,
    ),
    // The text of an error that the feature removes.
    ("store/redis/connection/dial.rs", r#"#[cfg(not(feature = "tls"))]"#),
    // The text of an error that the feature removes.
    (
        "store/redis/url.rs",
        r#"if cfg!(not(feature = "tls")) && self.is_tls() {"#,
    ),
];

#[test]
fn features_only_add() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-runtime/src");
    let mut found = Vec::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let file = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
            let without = text
                .lines()
                .filter(|line| line.contains("not(feature") || line.contains("cfg!(feature"));
            found.extend(without.map(|line| (file.clone(), line.trim().to_owned())));
        }
    }
    found.sort();
    let allowed = WITHOUT.map(|(file, line)| (file.to_owned(), line.to_owned()));
    assert_eq!(found, allowed);
}

/// Writes the files of a crate and reads its public names.
fn names_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    reader::public_names(&folder.path().join("lib.rs"))
}

#[test]
fn a_move_between_private_modules_changes_no_line() {
    let flat = names_of(&[
        ("lib.rs", "mod lock; mod wait; pub use lock::Lock; pub use wait::wait;"),
        (
            "lock.rs",
            "use std::time::Duration;
            #[derive(Debug)] pub struct Lock { pub lease: Duration, key: String }
            impl Lock { pub fn lease(&self) -> Duration { self.lease } pub(crate) fn key(&self) -> &str { &self.key } }",
        ),
        ("wait.rs", "use crate::Lock; pub fn wait(mut lock: &Lock) -> Option<crate::lock::Lock> { None } pub fn unused() {}"),
    ]);
    let moved = names_of(&[
        ("lib.rs", "mod rooms; pub use self::rooms::{hold::Lock, wait};"),
        (
            "rooms/mod.rs",
            "pub(crate) mod hold; #[path = \"elsewhere.rs\"] mod waiting; pub use waiting::*;",
        ),
        (
            "rooms/hold.rs",
            "use std::time;
            mod methods;
            #[derive(Debug)] pub struct Lock { key: String, pub lease: time::Duration }",
        ),
        (
            "rooms/hold/methods.rs",
            "impl super::Lock { pub fn lease(&self) -> core::time::Duration { self.lease } }",
        ),
        (
            "rooms/elsewhere.rs",
            "use super::hold as h; pub fn wait(lock: &h::Lock) -> std::option::Option<h::Lock> { None }",
        ),
    ]);
    let expected = [
        "struct Lock { … } with private fields",
        "impl std::fmt::Debug for Lock",
        "field Lock::lease: std::time::Duration",
        "fn Lock::lease(&self) -> std::time::Duration",
        "fn wait(lock: &Lock) -> Option<Lock>",
    ];
    assert_eq!(flat, expected);
    assert_eq!(moved, expected);
}

#[test]
fn each_public_name_has_a_line() {
    let names = names_of(&[
        (
            "lib.rs",
            "mod inner; pub mod open; #[doc(hidden)] pub mod hidden { pub fn generated() {} }
            pub use inner::{Kind as Sort, inner}; pub use open::Open; pub use other::Thing;
            #[cfg(test)] mod tests { pub fn test() {} }
            #[macro_export] macro_rules! assert { () => {} }",
        ),
        (
            "inner.rs",
            "#[non_exhaustive] pub enum Kind<T> { One, Two(T), Three { of: Option<T> } }
            impl<T: Clone> Kind<T> { pub const ALL: usize = 3; #[cfg(feature = \"more\")] pub async fn more(self) -> T { todo!() } }
            impl<T> From<T> for Kind<T> { fn from(of: T) -> Self { Self::Two(of) } }
            impl<T> Iterator for Kind<T> { type Item = T; fn next(&mut self) -> Option<T> { None } }
            pub fn inner() {}",
        ),
        (
            "open.rs",
            "pub trait Open: Send { type Door: Clone; fn open(&self); fn close(&self) {} }
            struct Private; impl Open for Private { type Door = (); fn open(&self) {} }
            pub type Doors<'a> = Vec<&'a dyn Open<Door = ()>>; pub static LAST: u8 = 1;",
        ),
    ]);
    let expected = [
        "trait Open: Send",
        "type Open::Door: Clone",
        "provided fn Open::close(&self)",
        "required fn Open::open(&self)",
        "#[non_exhaustive] enum Sort<T>",
        "impl<T> From<T> for Sort<T>",
        "impl<T> Iterator for Sort<T> { type Item = T; }",
        "const Sort::ALL: usize",
        "variant Sort::One",
        "variant Sort::Three { … }",
        "field Sort::Three::of: Option<T>",
        "variant Sort::Two(…)",
        "field Sort::Two::0: T",
        "for<T: Clone> async fn Sort::more(self) -> T [feature = \"more\"]",
        "use other::Thing as Thing",
        "macro assert!",
        "fn inner()",
        "mod open",
        "type open::Doors<'a> = Vec<&'a dyn Open<Door = ()>>",
        "static open::LAST: u8",
        "use Open as open::Open",
    ];
    assert_eq!(names, expected);
}
