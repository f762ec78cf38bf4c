//! Reads the sources of a crate and lists its public names, each by the path that a user writes.
//!
//! The reader follows `mod` and `use` from `lib.rs` on. A line depends on the public path of an item and on its declaration, and not on
//! the private module that declares it, nor on how that module imports the types of the declaration.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use quote::{ToTokens, format_ident};
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Fields, FnArg, Generics, ImplItem, Item, ItemImpl, ItemTrait, Pat, Signature, Token, TraitItem, Type,
    Visibility,
};

use super::source::{
    Conditions, Found, ItemId, ModuleId, Source, attributes, collect, conditions_of, for_tests, ident, is_hidden,
    is_type, visibility,
};

/// Names that need no import, beside their full paths.
const PRELUDE: &[&str] = &[
    "std::borrow::ToOwned",
    "std::boxed::Box",
    "std::clone::Clone",
    "std::cmp::Eq",
    "std::cmp::Ord",
    "std::cmp::PartialEq",
    "std::cmp::PartialOrd",
    "std::convert::AsMut",
    "std::convert::AsRef",
    "std::convert::From",
    "std::convert::Into",
    "std::convert::TryFrom",
    "std::convert::TryInto",
    "std::default::Default",
    "std::future::Future",
    "std::future::IntoFuture",
    "std::iter::Extend",
    "std::iter::FromIterator",
    "std::iter::IntoIterator",
    "std::iter::Iterator",
    "std::marker::Copy",
    "std::marker::Send",
    "std::marker::Sized",
    "std::marker::Sync",
    "std::marker::Unpin",
    "std::ops::AsyncFn",
    "std::ops::AsyncFnMut",
    "std::ops::AsyncFnOnce",
    "std::ops::Drop",
    "std::ops::Fn",
    "std::ops::FnMut",
    "std::ops::FnOnce",
    "std::option::Option",
    "std::result::Result",
    "std::string::String",
    "std::string::ToString",
    "std::vec::Vec",
];

/// The traits that a derive implements, where its name does not say so.
const DERIVES: &[(&str, &[&str])] = &[
    ("Debug", &["std::fmt::Debug"]),
    ("Hash", &["std::hash::Hash"]),
    ("thiserror::Error", &["std::error::Error", "std::fmt::Display"]),
];

/// Returns the public names of the crate whose root is `root`, sorted by their paths: one line a name.
pub(crate) fn public_names(root: &Path) -> Vec<String> {
    let mut source = Source { modules: Vec::new() };
    source.load(root, 0, Conditions::new());
    let mut surface = Surface {
        source,
        paths: BTreeMap::new(),
        seen: HashSet::new(),
        others: Vec::new(),
    };
    surface.walk(0, "", &Conditions::new());
    surface.macros();
    surface.lines()
}

struct Surface {
    source: Source,
    /// The public paths of each public item, and what each of them depends on.
    paths: BTreeMap<ItemId, Vec<(String, Conditions)>>,
    seen: HashSet<(ModuleId, String)>,
    /// What has a line and no declaration in this crate.
    others: Vec<(String, String)>,
}

impl Surface {
    /// Enters all public items of a module under a path.
    fn walk(&mut self, module: ModuleId, path: &str, conditions: &Conditions) {
        if !self.seen.insert((module, path.to_owned())) {
            return;
        }
        let mut imports = Vec::new();
        let mut inner = Vec::new();
        for (index, item) in self.source.modules[module].items.iter().enumerate() {
            let attributes = attributes(item);
            if !is_public(item) || for_tests(attributes) || is_hidden(attributes) {
                continue;
            }
            let mut conditions = conditions.clone();
            conditions.extend(conditions_of(attributes));
            match item {
                Item::Use(item) => {
                    let mut leaves = Vec::new();
                    collect(&item.tree, Vec::new(), &mut leaves);
                    imports.extend(leaves.into_iter().map(|leaf| (leaf, conditions.clone())));
                }
                Item::Mod(module) => inner.push((module.ident.to_string(), conditions)),
                _ => {
                    if let Some(name) = ident(item) {
                        let public = join(path, &name);
                        self.paths
                            .entry((module, index))
                            .or_default()
                            .push((public, conditions));
                    }
                }
            }
        }
        for (name, conditions) in inner {
            let Some(Found::Module(child)) =
                (self.source.lookup(module, &name, 0).into_iter()).find(|found| matches!(found, Found::Module(_)))
            else {
                panic!("no module {name}");
            };
            let public = join(path, &name);
            self.others
                .push((public.clone(), format!("mod {public}{}", shown(&conditions))));
            self.walk(child, &public, &conditions);
        }
        for ((target, name), conditions) in imports {
            for found in self.source.resolve(module, &target, 0) {
                self.import(found, name.as_deref(), path, &conditions);
            }
        }
    }

    fn import(&mut self, found: Found, name: Option<&str>, path: &str, conditions: &Conditions) {
        match (found, name) {
            (Found::Item(id), Some(name)) => {
                let item = self.source.item(id);
                if matches!(visibility(item), Some(Visibility::Inherited)) || is_hidden(attributes(item)) {
                    return;
                }
                let mut conditions = conditions.clone();
                conditions.extend(self.source.modules[id.0].conditions.iter().cloned());
                conditions.extend(conditions_of(attributes(item)));
                self.paths.entry(id).or_default().push((join(path, name), conditions));
            }
            (Found::Module(module), Some(name)) => {
                // A module of the same name as a public item is imported along with it only where it is public as well.
                let mut conditions = conditions.clone();
                conditions.extend(self.source.modules[module].conditions.iter().cloned());
                if self.source.is_public_module(module) {
                    let public = join(path, name);
                    self.others
                        .push((public.clone(), format!("mod {public}{}", shown(&conditions))));
                    self.walk(module, &public, &conditions);
                }
            }
            (Found::Module(module), None) => self.walk(module, path, conditions),
            (Found::Elsewhere(target), Some(name)) => {
                let public = join(path, name);
                let line = format!("use {} as {public}{}", target.join("::"), shown(conditions));
                self.others.push((public, line));
            }
            (Found::Elsewhere(target), None) => {
                let line = format!("use {}::* in {path}{}", target.join("::"), shown(conditions));
                self.others.push((path.to_owned(), line));
            }
            (Found::Item(id), None) => panic!("use {}::*", ident(self.source.item(id)).unwrap()),
        }
    }

    /// Enters the macros that `#[macro_export]` puts into the root.
    fn macros(&mut self) {
        for (id, module) in self.source.modules.iter().enumerate() {
            for (index, item) in module.items.iter().enumerate() {
                if let Item::Macro(declared) = item
                    && declared.attrs.iter().any(|attr| attr.path().is_ident("macro_export"))
                    && !is_hidden(&declared.attrs)
                    && let Some(name) = &declared.ident
                {
                    let mut conditions = module.conditions.clone();
                    conditions.extend(conditions_of(&declared.attrs));
                    self.paths.insert((id, index), vec![(name.to_string(), conditions)]);
                }
            }
        }
    }

    /// Returns the shortest public path of an item.
    fn public_path(&self, id: ItemId) -> Option<&(String, Conditions)> {
        (self.paths.get(&id)?.iter()).min_by_key(|(path, _)| (path.matches("::").count(), path.clone()))
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = self.others.clone();
        for (id, paths) in &self.paths {
            let (path, conditions) = self.public_path(*id).unwrap();
            for (other, conditions) in paths {
                if other != path {
                    lines.push((other.clone(), format!("use {path} as {other}{}", shown(conditions))));
                }
            }
            self.declared(*id, path, conditions, &mut lines);
        }
        for (module, content) in self.source.modules.iter().enumerate() {
            for item in &content.items {
                if let Item::Impl(item) = item
                    && !for_tests(&item.attrs)
                {
                    self.implemented(module, item, &mut lines);
                }
            }
        }
        lines.sort();
        lines.dedup();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn declared(&self, id: ItemId, path: &str, conditions: &Conditions, lines: &mut Vec<(String, String)>) {
        let module = id.0;
        let mut add = |at: &str, line: String, inner: &[Attribute]| {
            let mut conditions = conditions.clone();
            conditions.extend(conditions_of(inner));
            lines.push((at.to_owned(), format!("{line}{}", shown(&conditions))));
        };
        let item = self.source.item(id);
        let marks = marks(attributes(item));
        match item {
            Item::Fn(item) => add(path, self.signature(module, &item.sig, path, &marks), &[]),
            Item::Struct(item) => {
                let open = item
                    .fields
                    .iter()
                    .all(|field| matches!(field.vis, Visibility::Public(_)));
                let rest = if open { "" } else { " with private fields" };
                let form = form(&item.fields);
                let generics = self.generics(module, &item.generics);
                add(path, format!("{marks}struct {path}{generics}{form}{rest}"), &[]);
                self.derived(id, path, &item.attrs, &item.generics, &mut add);
                for (number, field) in item.fields.iter().enumerate() {
                    if matches!(field.vis, Visibility::Public(_)) && !is_hidden(&field.attrs) {
                        let name = field
                            .ident
                            .as_ref()
                            .map_or_else(|| number.to_string(), ToString::to_string);
                        let name = join(path, &name);
                        add(
                            &name,
                            format!("field {name}: {}", self.ty(module, &field.ty)),
                            &field.attrs,
                        );
                    }
                }
            }
            Item::Enum(item) => {
                add(
                    path,
                    format!("{marks}enum {path}{}", self.generics(module, &item.generics)),
                    &[],
                );
                self.derived(id, path, &item.attrs, &item.generics, &mut add);
                for variant in &item.variants {
                    let name = join(path, &variant.ident.to_string());
                    let marks = self::marks(&variant.attrs);
                    add(
                        &name,
                        format!("{marks}variant {name}{}", form(&variant.fields)),
                        &variant.attrs,
                    );
                    for (number, field) in variant.fields.iter().enumerate() {
                        let field_name = field
                            .ident
                            .as_ref()
                            .map_or_else(|| number.to_string(), ToString::to_string);
                        let name = join(&name, &field_name);
                        add(
                            &name,
                            format!("field {name}: {}", self.ty(module, &field.ty)),
                            &field.attrs,
                        );
                    }
                }
            }
            Item::Trait(item) => self.declared_trait(module, item, path, &marks, &mut add),
            Item::Type(item) => {
                let generics = self.generics(module, &item.generics);
                add(
                    path,
                    format!("type {path}{generics} = {}", self.ty(module, &item.ty)),
                    &[],
                );
            }
            Item::Const(item) => add(path, format!("const {path}: {}", self.ty(module, &item.ty)), &[]),
            Item::Static(item) => add(path, format!("static {path}: {}", self.ty(module, &item.ty)), &[]),
            Item::Macro(_) => add(path, format!("macro {path}!"), &[]),
            other => panic!("the list of public names has no form for {}", other.to_token_stream()),
        }
    }

    fn declared_trait(
        &self,
        module: ModuleId,
        item: &ItemTrait,
        path: &str,
        marks: &str,
        add: &mut impl FnMut(&str, String, &[Attribute]),
    ) {
        let mut head = item.clone();
        head.items.clear();
        head.attrs.clear();
        head.ident = format_ident!("Name");
        let head = self.text(module, Item::Trait(head));
        let head = head
            .trim_end_matches(" {}")
            .replacen("trait Name", &format!("trait {path}"), 1);
        add(path, format!("{marks}{}", head.trim_start_matches("pub ")), &[]);
        for item in &item.items {
            match item {
                TraitItem::Fn(method) if !is_hidden(&method.attrs) => {
                    let name = join(path, &method.sig.ident.to_string());
                    let provided = if method.default.is_some() {
                        "provided "
                    } else {
                        "required "
                    };
                    let marks = format!("{}{provided}", self::marks(&method.attrs));
                    add(&name, self.signature(module, &method.sig, &name, &marks), &method.attrs);
                }
                TraitItem::Type(kind) => {
                    let name = join(path, &kind.ident.to_string());
                    let bounds = &kind.bounds;
                    let bounds = self.ty(module, &syn::parse_quote!(dyn Mark + #bounds));
                    add(
                        &name,
                        format!("type {name}: {}", bounds.trim_start_matches("dyn Mark + ")),
                        &kind.attrs,
                    );
                }
                TraitItem::Const(item) => {
                    let name = join(path, &item.ident.to_string());
                    add(
                        &name,
                        format!("const {name}: {}", self.ty(module, &item.ty)),
                        &item.attrs,
                    );
                }
                _ => {}
            }
        }
    }

    fn derived(
        &self,
        id: ItemId,
        path: &str,
        attributes: &[Attribute],
        generics: &Generics,
        add: &mut impl FnMut(&str, String, &[Attribute]),
    ) {
        for attribute in attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("derive"))
        {
            let list = attribute
                .parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated)
                .unwrap();
            for derive in list {
                let name = self.ty(id.0, &syn::parse_quote!(#derive));
                let known = DERIVES.iter().find(|(derive, _)| *derive == name);
                for implemented in known.map_or(&[name.as_str()][..], |(_, traits)| traits) {
                    let implemented: syn::Path = syn::parse_str(implemented).unwrap();
                    let mut generics = generics.clone();
                    for parameter in generics.type_params_mut() {
                        parameter.bounds.push(syn::parse_quote!(#implemented));
                    }
                    let (before, after, clause) = generics.split_for_impl();
                    let ident = format_ident!("Name");
                    let item: ItemImpl = syn::parse_quote!(impl #before #implemented for #ident #after #clause {});
                    let line = self
                        .text(id.0, Item::Impl(item))
                        .replacen("for Name", &format!("for {path}"), 1);
                    add(&format!("{path} impl"), line.trim_end_matches(" {}").to_owned(), &[]);
                }
            }
        }
    }

    fn implemented(&self, module: ModuleId, item: &ItemImpl, lines: &mut Vec<(String, String)>) {
        let owner = match &*item.self_ty {
            Type::Path(ty) if ty.qself.is_none() => self.find(module, &ty.path),
            _ => None,
        };
        let owner = match owner {
            Some(id) => match self.public_path(id) {
                Some(public) => Some(public),
                None => return,
            },
            None => None,
        };
        let mut conditions = self.source.modules[module].conditions.clone();
        conditions.extend(conditions_of(&item.attrs));
        conditions.extend(owner.into_iter().flat_map(|(_, conditions)| conditions.iter().cloned()));
        if let Some((implemented, _)) = &item.trait_ {
            let local = self.find(module, implemented);
            if local.is_some_and(|id| self.public_path(id).is_none()) {
                return;
            }
            let mut head = item.clone();
            head.attrs.clear();
            head.items.retain(|item| matches!(item, ImplItem::Type(_)));
            for item in &mut head.items {
                if let ImplItem::Type(item) = item {
                    item.attrs.clear();
                }
            }
            let line = self.text(module, Item::Impl(head));
            let line = line.trim_end_matches(" {}");
            // Such as a conversion from a type of this crate's own: rustdoc leaves it out as well.
            if line.contains("private::") {
                return;
            }
            let at = owner.map_or("~", |(path, _)| path);
            lines.push((format!("{at} impl"), format!("{line}{}", shown(&conditions))));
            return;
        }
        let Some((path, _)) = owner else { return };
        let parameters = self.generics(module, &item.generics);
        for inner in &item.items {
            let (vis, attrs) = match inner {
                ImplItem::Fn(inner) => (&inner.vis, &inner.attrs),
                ImplItem::Const(inner) => (&inner.vis, &inner.attrs),
                _ => continue,
            };
            if !matches!(vis, Visibility::Public(_)) || is_hidden(attrs) || for_tests(attrs) {
                continue;
            }
            let mut conditions = conditions.clone();
            conditions.extend(conditions_of(attrs));
            let (name, line) = match inner {
                ImplItem::Fn(inner) => {
                    let name = join(path, &inner.sig.ident.to_string());
                    let owner = if parameters.contains(|c: char| c == ':' || c.is_uppercase()) {
                        format!("{}for{parameters} ", marks(attrs))
                    } else {
                        marks(attrs)
                    };
                    let line = self.signature(module, &inner.sig, &name, &owner);
                    (name, line)
                }
                ImplItem::Const(inner) => {
                    let name = join(path, &inner.ident.to_string());
                    let line = format!("const {name}: {}", self.ty(module, &inner.ty));
                    (name, line)
                }
                _ => continue,
            };
            lines.push((name, format!("{line}{}", shown(&conditions))));
        }
    }

    /// Returns the item of this crate that a path means, if it is one.
    fn find(&self, module: ModuleId, path: &syn::Path) -> Option<ItemId> {
        let found = self.source.resolve(module, &segments(path), 0);
        found.into_iter().find_map(|found| match found {
            Found::Item(id) if is_type(self.source.item(id)) => Some(id),
            _ => None,
        })
    }

    fn signature(&self, module: ModuleId, signature: &Signature, path: &str, marks: &str) -> String {
        let mut signature = signature.clone();
        signature.ident = format_ident!("name");
        for (number, input) in signature.inputs.iter_mut().enumerate() {
            match input {
                FnArg::Typed(input) => {
                    input.attrs.clear();
                    if let Pat::Ident(name) = &mut *input.pat {
                        name.mutability = None;
                        name.by_ref = None;
                    } else {
                        let name = format_ident!("_{number}");
                        *input.pat = syn::parse_quote!(#name);
                    }
                }
                FnArg::Receiver(input) => input.mutability = None,
            }
        }
        let text = self.text(module, syn::parse_quote!(#signature {}));
        format!(
            "{marks}{}",
            text.trim_end_matches(" {}")
                .replacen("fn name", &format!("fn {path}"), 1)
        )
    }

    fn generics(&self, module: ModuleId, generics: &Generics) -> String {
        let clause = &generics.where_clause;
        let text = self.text(module, syn::parse_quote!(fn name #generics () #clause {}));
        text.trim_start_matches("fn name")
            .replacen("()", "", 1)
            .trim_end_matches("{}")
            .trim_end()
            .to_owned()
    }

    fn ty(&self, module: ModuleId, ty: &Type) -> String {
        let text = self.text(module, syn::parse_quote!(type Name = #ty;));
        text.trim_start_matches("type Name = ").trim_end_matches(';').to_owned()
    }

    /// Prints a declaration in one line, with every path in it as a user of the crate would write it from the root.
    fn text(&self, module: ModuleId, mut item: Item) -> String {
        Qualified { surface: self, module }.visit_item_mut(&mut item);
        let text = prettyplease::unparse(&syn::File {
            shebang: None,
            frontmatter: None,
            attrs: Vec::new(),
            items: vec![item],
        });
        let mut line = String::new();
        for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
            let tight = line.is_empty() || line.ends_with(['(', '<', '[']) || part.starts_with([')', '>', ']', '.']);
            if tight {
                if part.starts_with([')', '>', ']']) {
                    line.truncate(line.trim_end_matches(',').len());
                }
            } else {
                line.push(' ');
            }
            line.push_str(part);
        }
        line.replace(", where", " where")
            .replace(", {}", " {}")
            .replace(",) ->", ") ->")
    }
}

/// Rewrites the paths of a declaration.
struct Qualified<'a> {
    surface: &'a Surface,
    module: ModuleId,
}

impl VisitMut for Qualified<'_> {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        attributes.clear();
    }

    fn visit_visibility_mut(&mut self, _: &mut Visibility) {}

    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        visit_mut::visit_path_mut(self, path);
        let before = segments(path);
        if before[0] == "Self" {
            return;
        }
        let found = self.surface.source.resolve(self.module, &before, 0);
        let written = found.iter().find_map(|found| match found {
            Found::Item(id) if is_type(self.surface.source.item(*id)) => Some(match self.surface.public_path(*id) {
                Some((path, _)) => path.clone(),
                None => format!("private::{}", ident(self.surface.source.item(*id)).unwrap()),
            }),
            Found::Elsewhere(path) => Some(standard(path)),
            _ => None,
        });
        let Some(written) = written else { return };
        let mut after: syn::Path = syn::parse_str(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
        let (old, new) = (path.segments.last().unwrap(), after.segments.last_mut().unwrap());
        new.arguments = old.arguments.clone();
        *path = after;
    }
}

/// Returns a path of another crate as users write it.
fn standard(path: &[String]) -> String {
    let mut path = path.to_vec();
    if path.len() > 1 && (path[0] == "core" || path[0] == "alloc") {
        "std".clone_into(&mut path[0]);
    }
    let whole = path.join("::");
    if PRELUDE.contains(&whole.as_str()) {
        return path.pop().unwrap();
    }
    whole
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}::{name}")
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn form(fields: &Fields) -> &'static str {
    match fields {
        Fields::Named(_) => " { … }",
        Fields::Unnamed(_) => "(…)",
        Fields::Unit => "",
    }
}

fn shown(conditions: &Conditions) -> String {
    conditions.iter().flat_map(|condition| [" [", condition, "]"]).collect()
}

/// Returns the attributes that are a part of the surface.
fn marks(attributes: &[Attribute]) -> String {
    let mut marks = String::new();
    for name in [
        "deprecated",
        "must_use",
        "non_exhaustive",
        "proc_macro_attribute",
        "track_caller",
    ] {
        if attributes.iter().any(|attribute| attribute.path().is_ident(name)) {
            marks.push_str("#[");
            marks.push_str(name);
            marks.push_str("] ");
        }
    }
    marks
}

fn is_public(item: &Item) -> bool {
    matches!(visibility(item), Some(Visibility::Public(_)))
}
