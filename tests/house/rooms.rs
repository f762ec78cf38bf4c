//! The order of the rooms in `lock-runtime/src`: each imports only from those below it, so that a change in one is felt only in
//! those above it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From top to bottom. `lib` is the table of contents and may name all of them. A room inside another one is named by its path: the
/// rooms around a held lock share a folder, since they alone see its insides.
const ROOMS: [&str; 14] = [
    "axum",
    "testing",
    "attribute",
    "manager",
    "acquire",
    "hold::guard",
    "diagnostics",
    "hold::upkeep",
    "hold",
    "stats",
    "error",
    "store",
    "key",
    "host",
];

/// How many files may stand beside the rooms' folders.
const FLAT: usize = 14;

/// How many files may import each other in a circle.
const CIRCLE: usize = 3;

/// Where a larger circle is meant: the tables of the memory store, and their modes.
const TABLES: &str = "store::memory";

/// The modules of a source folder, by path, and what each names of the crate.
struct House {
    modules: BTreeMap<String, Module>,
    /// What the root exports, and from which module.
    exports: BTreeMap<String, String>,
}

struct Module {
    file: PathBuf,
    code: String,
}

/// A mention of another module.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    place: String,
}

impl House {
    fn read(folder: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    // Unit tests that do not fit into one file.
                    if path.file_name().is_none_or(|name| name != "tests") {
                        folders.push(path);
                    }
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let file = path.strip_prefix(folder).unwrap().to_owned();
                    let code = code_of(&std::fs::read_to_string(&path).unwrap());
                    modules.insert(name_of(&file), Module { file, code });
                }
            }
        }
        Self::of(modules)
    }

    fn of(modules: BTreeMap<String, Module>) -> Self {
        let mut exports = BTreeMap::new();
        for line in modules.get("lib").map_or("", |root| root.code.as_str()).split(';') {
            let Some((_, path)) = line.split_once("pub use ") else {
                continue;
            };
            let (module, names) = path.rsplit_once("::").unwrap_or(("", path));
            for name in names.trim_matches(['{', '}']).split(',') {
                exports.insert(name.trim().to_owned(), module.trim().to_owned());
            }
        }
        Self { modules, exports }
    }

    /// All arrows between modules.
    fn arrows(&self) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, module) in self.modules.iter().filter(|(name, _)| *name != "lib") {
            for (number, line) in module.code.lines().enumerate() {
                for path in paths(line, from) {
                    if let Some(to) = self.resolve(&path).filter(|to| to != from) {
                        arrows.insert(Arrow {
                            from: from.clone(),
                            to,
                            place: format!("{}:{}: {}", module.file.display(), number + 1, line.trim()),
                        });
                    }
                }
            }
        }
        arrows
    }

    /// The module that a path leads to.
    fn resolve(&self, path: &[&str]) -> Option<String> {
        let known = (1..=path.len())
            .rev()
            .map(|length| path[..length].join("::"))
            .find(|name| self.modules.contains_key(name));
        known.or_else(|| self.exports.get(*path.first()?).cloned())
    }

    /// The groups of modules that import each other.
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let mut reached: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let arrows = self.arrows();
        for name in self.modules.keys() {
            let mut seen = BTreeSet::new();
            let mut next = vec![name.clone()];
            while let Some(at) = next.pop() {
                for arrow in arrows.iter().filter(|arrow| arrow.from == at) {
                    if seen.insert(arrow.to.clone()) {
                        next.push(arrow.to.clone());
                    }
                }
            }
            reached.insert(name, seen);
        }
        let mut circles: Vec<BTreeSet<String>> = Vec::new();
        for (name, seen) in &reached {
            if seen.contains(*name) && !circles.iter().any(|circle| circle.contains(*name)) {
                let both = seen.iter().filter(|other| reached[other.as_str()].contains(*name));
                circles.push(both.cloned().collect());
            }
        }
        circles
    }
}

/// A file's code without comments and unit tests.
fn code_of(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..end].lines();
    let lines = lines.map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    let mut code = String::new();
    // A `use` of several lines stands on its first one.
    let mut owed = None;
    for line in lines {
        code.push_str(line);
        let starts = line
            .trim_start()
            .trim_start_matches("pub(crate)")
            .trim_start_matches("pub(super)")
            .trim_start_matches("pub")
            .trim_start()
            .starts_with("use ");
        owed = match owed {
            None if starts && !line.contains(';') => Some(1),
            None => None,
            Some(owed) if line.contains(';') => {
                code.push_str(&"\n".repeat(owed));
                None
            }
            Some(owed) => Some(owed + 1),
        };
        if owed.is_none() {
            code.push('\n');
        }
    }
    code
}

/// The module that a file is.
fn name_of(file: &Path) -> String {
    let path = file.with_extension("");
    let mut parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    if parts.len() > 1 && parts.last() == Some(&"mod") {
        parts.pop();
    }
    parts.join("::")
}

/// The paths into the crate that a line names, from the root on.
fn paths<'a>(line: &'a str, from: &'a str) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    for (root, up) in [("crate::", None), ("self::", Some(0)), ("super::", Some(1))] {
        for (at, _) in line.match_indices(root) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':') {
                continue;
            }
            let rest = &line[at + root.len()..];
            let mut base: Vec<&str> = Vec::new();
            if let Some(up) = up {
                base.extend(from.split("::"));
                base.truncate(base.len() - up);
            }
            follow(rest, &base, &mut found);
        }
    }
    found
}

/// Adds the path that a text begins with, or those of a list in braces, which may contain lists. Returns what comes after.
fn follow<'a>(text: &'a str, base: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        while let after = follow(rest, base, found)
            && let Some(end) = after.find([',', '}'])
        {
            rest = &after[end + 1..];
            if after[end..].starts_with('}') {
                return rest;
            }
        }
        return "";
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let mut path = base.to_vec();
    path.extend(name.split("::").filter(|part| !part.is_empty()));
    if rest.starts_with('{') {
        return follow(rest, &path, found);
    }
    if !name.is_empty() || text.starts_with('*') {
        found.push(path);
    }
    rest
}

/// Where a module's room stands, from the top. Of a room and one inside it, the inner one counts.
fn rank(module: &str) -> usize {
    let inside = |room: &str| {
        module
            .strip_prefix(room)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let rooms = ROOMS.iter().enumerate().filter(|(_, room)| inside(room));
    let rank = rooms.max_by_key(|(_, room)| room.len()).map(|(rank, _)| rank);
    rank.unwrap_or_else(|| panic!("`{module}` is in no room: add it to ROOMS, below whatever uses it"))
}

fn house() -> House {
    House::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-runtime/src"))
}

#[test]
fn each_room_imports_only_from_those_below_it() {
    let arrows = house().arrows();
    assert!(arrows.len() > 200, "only {} imports are found", arrows.len());
    let up: Vec<_> = arrows
        .iter()
        .filter(|arrow| rank(&arrow.to) < rank(&arrow.from))
        .collect();
    let list: Vec<_> = up
        .iter()
        .map(|arrow| format!("{} -> {}   {}", arrow.from, arrow.to, arrow.place))
        .collect();
    assert!(up.is_empty(), "imports of a room above:\n{}", list.join("\n"));
}

#[test]
fn circles_inside_a_room_are_small() {
    let large: Vec<_> = house()
        .circles()
        .into_iter()
        .filter(|circle| circle.len() > CIRCLE && !circle.iter().all(|module| module.starts_with(TABLES)))
        .collect();
    assert!(large.is_empty(), "files that import each other: {large:#?}");
}

#[test]
fn few_files_stand_beside_the_rooms() {
    let house = house();
    let flat = house
        .modules
        .values()
        .filter(|module| module.file.iter().count() == 1)
        .count();
    assert!(flat <= FLAT, "{flat} files lie flat in src");
}

/// The reader itself.
#[test]
fn an_arrow_up_is_found_also_through_the_root() {
    let module = |file: &str, text: &str| {
        let file = PathBuf::from(file);
        let code = code_of(text);
        (name_of(&file), Module { file, code })
    };
    let house = House::of(BTreeMap::from([
        module(
            "lib.rs",
            "mod hold;\npub use manager::builder::{Builder, Other};\npub use hold::Hold;",
        ),
        module(
            "manager/builder.rs",
            "use crate::hold::{Hold, OnLost};\n// use crate::axum;\n",
        ),
        module(
            "hold/mod.rs",
            "pub(crate) use self::{\n    tasks::{self, Tasks},\n    later::Later as Other,\n};\nfn a(_: &crate::Builder) {}\n#[cfg(test)]\nmod tests { use crate::axum; }",
        ),
        module("hold/later.rs", ""),
        module(
            "hold/tasks.rs",
            "use super::Hold;\nuse crate::manager::builder::Builder;",
        ),
    ]));
    let arrows: Vec<_> = house.arrows().into_iter().map(|arrow| (arrow.from, arrow.to)).collect();
    let wanted = [
        ("hold", "hold::later"),
        ("hold", "hold::tasks"),
        ("hold", "manager::builder"),
        ("hold::tasks", "hold"),
        ("hold::tasks", "manager::builder"),
        ("manager::builder", "hold"),
    ];
    assert_eq!(arrows, wanted.map(|(from, to)| (from.to_owned(), to.to_owned())));
    assert_eq!(house.circles().len(), 1);
    assert_eq!(house.circles()[0].len(), 3);
}
