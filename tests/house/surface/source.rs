//! The modules of a crate, read from its files, and what a path means in each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use quote::{ToTokens, quote};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// A module, by its index.
pub(crate) type ModuleId = usize;

/// The index of a module, and the index of an item in it.
pub(crate) type ItemId = (ModuleId, usize);

/// The conditions under which an item exists.
pub(crate) type Conditions = BTreeSet<String>;

pub(crate) struct Module {
    parent: ModuleId,
    pub(crate) items: Vec<Item>,
    pub(crate) conditions: Conditions,
    names: BTreeMap<String, Vec<Name>>,
    globs: Vec<Vec<String>>,
}

/// The declaration behind a name in a module.
#[derive(Clone)]
enum Name {
    Module(ModuleId),
    Item(usize),
    Use(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    Module(ModuleId),
    Item(ItemId),
    /// Outside of the crate, by its whole path.
    Elsewhere(Vec<String>),
}

pub(crate) struct Source {
    pub(crate) modules: Vec<Module>,
}

impl Source {
    pub(crate) fn load(&mut self, path: &Path, parent: ModuleId, conditions: Conditions) -> ModuleId {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let folder = path.parent().unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let children = match name {
            "lib" | "mod" => folder.to_owned(),
            _ => folder.join(name),
        };
        self.add(file.items, folder, &children, parent, conditions)
    }

    /// `folder` has the file, which `#[path]` starts from, and `children` the files of its modules.
    fn add(
        &mut self,
        items: Vec<Item>,
        folder: &Path,
        children: &Path,
        parent: ModuleId,
        conditions: Conditions,
    ) -> ModuleId {
        let items: Vec<Item> = items.into_iter().flat_map(pinned).collect();
        let id = self.modules.len();
        self.modules.push(Module {
            parent,
            items: Vec::new(),
            conditions,
            names: BTreeMap::new(),
            globs: Vec::new(),
        });
        for (index, item) in items.iter().enumerate() {
            if for_tests(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let mut conditions = self.modules[id].conditions.clone();
                    // Declared public with a feature and private without it, a module is always there.
                    let declared = |other: &&Item| matches!(other, Item::Mod(other) if other.ident == module.ident);
                    match items.iter().filter(declared).count() {
                        1 => conditions.extend(conditions_of(&module.attrs)),
                        _ if self.modules[id].names.contains_key(&name) => continue,
                        _ => {}
                    }
                    let child = if let Some((_, items)) = &module.content {
                        let inside = children.join(&name);
                        self.add(items.clone(), &inside, &inside, id, conditions)
                    } else {
                        let given = module.attrs.iter().find_map(path_attribute);
                        let places = [children.join(format!("{name}.rs")), children.join(&name).join("mod.rs")];
                        let path = match given {
                            Some(path) => folder.join(path),
                            None => places.iter().find(|place| place.exists()).unwrap_or(&places[0]).clone(),
                        };
                        self.load(&path, id, conditions)
                    };
                    self.name(id, name, Name::Module(child));
                }
                Item::Use(item) => self.imports(id, &item.tree, Vec::new()),
                Item::Macro(invocation) if invocation.ident.is_none() => {
                    let made = invocation.mac.tokens.to_string();
                    assert!(
                        !made.split(|c: char| !c.is_alphanumeric()).any(|word| word == "pub"),
                        "the list of public names cannot show what this macro declares: {}! {{ {made} }}",
                        invocation.mac.path.to_token_stream()
                    );
                }
                _ => {
                    if let Some(name) = ident(item) {
                        self.name(id, name, Name::Item(index));
                    }
                }
            }
        }
        self.modules[id].items = items;
        id
    }

    fn name(&mut self, module: ModuleId, name: String, declared: Name) {
        self.modules[module].names.entry(name).or_default().push(declared);
    }

    fn imports(&mut self, module: ModuleId, tree: &UseTree, mut prefix: Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.imports(module, &path.tree, prefix);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.imports(module, tree, prefix.clone());
                }
            }
            UseTree::Glob(_) => self.modules[module].globs.push(prefix),
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (path, name) = leaf(tree, prefix);
                self.name(module, name, Name::Use(path));
            }
        }
    }

    /// Returns all that a path means in a module: a name may stand for a module and for a function.
    pub(crate) fn resolve(&self, module: ModuleId, path: &[String], depth: usize) -> Vec<Found> {
        assert!(depth < 50, "a circle of imports: {path:?}");
        let first = path[0].as_str();
        let found = match first {
            "crate" => vec![Found::Module(0)],
            "self" => vec![Found::Module(module)],
            "super" => vec![Found::Module(self.modules[module].parent)],
            _ => self.lookup(module, first, depth),
        };
        self.follow(found, path, depth)
    }

    /// Follows a path of which the first segment has been found.
    fn follow(&self, mut found: Vec<Found>, path: &[String], depth: usize) -> Vec<Found> {
        if found.is_empty() {
            return vec![Found::Elsewhere(path.to_vec())];
        }
        for segment in &path[1..] {
            found = found
                .iter()
                .flat_map(|found| match found {
                    Found::Module(inner) if segment == "super" => vec![Found::Module(self.modules[*inner].parent)],
                    Found::Module(inner) => self.lookup(*inner, segment, depth),
                    Found::Item(_) => Vec::new(),
                    Found::Elsewhere(start) => {
                        let mut path = start.clone();
                        path.push(segment.clone());
                        vec![Found::Elsewhere(path)]
                    }
                })
                .collect();
        }
        found
    }

    pub(crate) fn lookup(&self, module: ModuleId, name: &str, depth: usize) -> Vec<Found> {
        let mut found = Vec::new();
        for declared in self.modules[module].names.get(name).into_iter().flatten() {
            match declared {
                Name::Module(id) => found.push(Found::Module(*id)),
                Name::Item(index) => found.push(Found::Item((module, *index))),
                // An import never means itself: in `use fork::fork`, the first `fork` is a module or another crate.
                Name::Use(path) if path[0] == name => {
                    let declared = self.modules[module].names[name].iter().filter_map(|other| match other {
                        Name::Module(id) => Some(Found::Module(*id)),
                        _ => None,
                    });
                    let start = declared.collect::<Vec<_>>();
                    found.extend(self.follow(start, path, depth + 1));
                }
                Name::Use(path) => found.extend(self.resolve(module, path, depth + 1)),
            }
        }
        if found.is_empty() {
            for path in &self.modules[module].globs {
                for target in self.resolve(module, path, depth + 1) {
                    if let Found::Module(target) = target
                        && target != module
                    {
                        found.extend(self.lookup(target, name, depth + 1));
                    }
                }
            }
        }
        found.dedup();
        found
    }

    /// Returns `true` if the declaration of a module says `pub`.
    pub(crate) fn is_public_module(&self, module: ModuleId) -> bool {
        let parent = &self.modules[self.modules[module].parent];
        parent.items.iter().any(|item| {
            matches!(item, Item::Mod(declared)
                if matches!(declared.vis, Visibility::Public(_))
                    && parent.names[&declared.ident.to_string()]
                        .iter()
                        .any(|name| matches!(name, Name::Module(id) if *id == module)))
        })
    }

    pub(crate) fn item(&self, (module, index): ItemId) -> &Item {
        &self.modules[module].items[index]
    }
}

pub(crate) fn leaf(tree: &UseTree, mut prefix: Vec<String>) -> (Vec<String>, String) {
    let (name, renamed) = match tree {
        UseTree::Name(name) => (name.ident.to_string(), None),
        UseTree::Rename(name) => (name.ident.to_string(), Some(name.rename.to_string())),
        _ => unreachable!("a leaf"),
    };
    // `use path::{self}` imports the path itself.
    if name != "self" || prefix.is_empty() {
        prefix.push(name);
    }
    let name = renamed.unwrap_or_else(|| prefix.last().unwrap().clone());
    (prefix, name)
}

pub(crate) fn collect(tree: &UseTree, mut prefix: Vec<String>, leaves: &mut Vec<(Vec<String>, Option<String>)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect(&path.tree, prefix, leaves);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                collect(tree, prefix.clone(), leaves);
            }
        }
        UseTree::Glob(_) => leaves.push((prefix, None)),
        tree => {
            let (path, name) = leaf(tree, prefix);
            leaves.push((path, Some(name)));
        }
    }
}

pub(crate) fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

pub(crate) fn conditions_of(attributes: &[Attribute]) -> Conditions {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions
        .map(|attribute| attribute.meta.require_list().unwrap().tokens.to_string())
        .collect()
}

pub(crate) fn for_tests(attributes: &[Attribute]) -> bool {
    conditions_of(attributes)
        .iter()
        .any(|condition| condition == "test" || condition == "doctest")
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let value = pair.value.to_token_stream().to_string();
    attribute
        .path()
        .is_ident("path")
        .then(|| value.trim_matches('"').to_owned())
}

pub(crate) fn is_type(item: &Item) -> bool {
    matches!(
        item,
        Item::Struct(_) | Item::Enum(_) | Item::Union(_) | Item::Trait(_) | Item::TraitAlias(_) | Item::Type(_)
    )
}

/// Returns the attributes, the visibility and the name of an item.
pub(crate) fn parts(item: &Item) -> (&[Attribute], Option<&Visibility>, Option<String>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Enum(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Fn(item) => (&item.attrs, Some(&item.vis), Some(item.sig.ident.to_string())),
        Item::Impl(item) => (&item.attrs, None, None),
        Item::Macro(item) => (&item.attrs, None, item.ident.as_ref().map(ToString::to_string)),
        Item::Mod(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Static(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Struct(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Trait(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Type(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Union(item) => (&item.attrs, Some(&item.vis), Some(item.ident.to_string())),
        Item::Use(item) => (&item.attrs, Some(&item.vis), None),
        other => panic!("the list of public names has no form for {}", quote!(#other)),
    }
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    parts(item).0
}

pub(crate) fn visibility(item: &Item) -> Option<&Visibility> {
    parts(item).1
}

pub(crate) fn ident(item: &Item) -> Option<String> {
    parts(item).2
}

/// Returns the items that `pin_project!` declares as they stand in it, or the item itself.
fn pinned(item: Item) -> Vec<Item> {
    match &item {
        Item::Macro(invocation) if invocation.mac.path.is_ident("pin_project") => {
            let made = invocation.mac.parse_body::<syn::File>();
            made.map_or_else(|_| vec![item.clone()], |made| made.items)
        }
        _ => vec![item],
    }
}
