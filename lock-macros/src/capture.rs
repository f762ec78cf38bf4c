//! Moves every argument whole into the body, so that all of them end before the lock does.
//!
//! An `async` block takes only what it mentions, and of a pattern only what it binds; the rest would live on in the
//! outer function until after the release. So each argument arrives under one name and is taken apart inside, in
//! the order and with the drop order of a plain `async fn`.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, FieldPat, FnArg, Ident, Local, Member, Pat, PatIdent, PatParen, PatType, PatWild, Receiver,
    ReceiverKind, Signature, Stmt, Token,
};

/// A function's parameters: how they arrive, how the body takes them, and which names the key can use.
pub(crate) struct Parameters {
    /// The parameters of the emitted signature.
    pub(crate) inputs: Punctuated<FnArg, Token![,]>,
    /// The first statements of the body.
    pub(crate) takes: Vec<TokenStream>,
    /// `self`, with its own span.
    pub(crate) receiver: Option<Token![self]>,
    /// The names that parameters and their patterns bind.
    pub(crate) names: Vec<Name>,
}

pub(crate) struct Name {
    pub(crate) ident: Ident,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
    /// It is in scope as it is.
    Parameter,
    /// It is bound when the pattern takes the argument apart.
    Pattern { argument: Ident, pattern: Box<Pat> },
}

/// A name that a pattern binds.
struct Binding {
    mutability: Option<Token![mut]>,
    ident: Ident,
}

impl Parameters {
    /// The parameters of an `async fn`. `attrs` are the attributes that other macros may still read them by.
    pub(crate) fn of_async(sig: &Signature, attrs: &[Attribute]) -> Self {
        let read_by_others = attrs.iter().any(is_foreign);
        let mut parameters = Self {
            inputs: Punctuated::new(),
            takes: Vec::new(),
            receiver: None,
            names: Vec::new(),
        };
        for (index, input) in sig.inputs.pairs().enumerate() {
            let (input, comma) = input.into_tuple();
            let input = match input {
                FnArg::Receiver(receiver) => FnArg::Receiver(parameters.receiver(receiver)),
                FnArg::Typed(typed) => FnArg::Typed(parameters.typed(index, typed.clone(), read_by_others)),
            };
            parameters.inputs.push_value(input);
            if let Some(comma) = comma {
                parameters.inputs.push_punct(*comma);
            }
        }
        parameters
    }

    /// The parameters of a function whose `async` block already takes them, statement by statement.
    pub(crate) fn of_boxed(sig: &Signature, block: &Block) -> Self {
        let mut parameters = Self {
            inputs: sig.inputs.clone(),
            takes: Vec::new(),
            receiver: None,
            names: Vec::new(),
        };
        for input in &sig.inputs {
            match input {
                FnArg::Receiver(receiver) => parameters.receiver = Some(receiver.self_token),
                FnArg::Typed(typed) => {
                    let (bindings, _) = bindings(&typed.pat);
                    parameters
                        .names
                        .extend(bindings.into_iter().map(|binding| Name::parameter(binding.ident)));
                }
            }
        }
        let mut patterns = Patterns {
            parameters: &parameters,
            found: Vec::new(),
        };
        patterns.visit_block(block);
        let found = patterns.found;
        parameters.names.extend(found);
        parameters
    }

    fn receiver(&mut self, receiver: &Receiver) -> Receiver {
        let self_token = receiver.self_token;
        self.receiver = Some(self_token);
        if !matches!(receiver.kind, ReceiverKind::Reference(..)) {
            // `self` has no other name; mentioning it takes it whole.
            self.takes.push(quote! { let _ = &#self_token; });
        }
        receiver.clone()
    }

    /// A statement that moves the whole of `ident` inside. Its span is the user's, so that an unused parameter is
    /// reported there.
    fn take(&mut self, attrs: &[Attribute], mutability: Option<Token![mut]>, ident: &Ident) {
        // `_name` is only passed on here.
        let lints = ident
            .to_string()
            .starts_with('_')
            .then(|| quote! { #[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)] });
        self.takes
            .push(quote! { #lints #(#attrs)* let #mutability #ident = #ident; });
    }

    fn typed(&mut self, index: usize, mut typed: PatType, read_by_others: bool) -> PatType {
        let attrs = attrs_inside(&mut typed.attrs);
        let pattern = (*typed.pat).clone();
        if let Pat::Ident(PatIdent {
            by_ref: None,
            mutability,
            ident,
            subpat: None,
            ..
        }) = &pattern
        {
            self.names.push(Name::parameter(ident.clone()));
            self.take(&attrs, *mutability, ident);
            typed.pat = Box::new(plain(ident.clone()));
            return typed;
        }
        let (bindings, whole) = bindings(&pattern);
        if read_by_others && whole {
            // `#[instrument(skip(state))]` below ours looks for the names in the signature. Nothing is left behind
            // outside: all parts have a name.
            Immutable.visit_pat_mut(&mut typed.pat);
            for Binding { mutability, ident } in bindings {
                self.take(&attrs, mutability, &ident);
                // A reference in the attribute's expressions, as every name that a pattern binds.
                let origin = Origin::Pattern {
                    argument: ident.clone(),
                    pattern: Box::new(plain(ident.clone())),
                };
                self.names.push(Name { ident, origin });
            }
            return typed;
        }
        let inside = Ident::new(
            &format!("__lock_arg{index}"),
            Span::mixed_site().located_at(pattern.span()),
        );
        let argument = match &*bindings {
            // The documentation shows this name.
            [only] if !read_by_others && !only.ident.to_string().starts_with('_') => only.ident.clone(),
            _ => inside.clone(),
        };
        self.takes.push(quote! { #(#attrs)* let #inside = #argument; });
        if !matches!(pattern, Pat::Wild(_)) {
            self.takes.push(quote! { #(#attrs)* let #pattern = #inside; });
        }
        typed.pat = Box::new(plain(argument.clone()));
        if read_by_others {
            // `#[instrument]` records what has a plain name, and then asks for its `Debug`.
            typed.pat = Box::new(Pat::Paren(PatParen {
                attrs: Vec::new(),
                paren_token: syn::token::Paren(inside.span()),
                pat: typed.pat,
            }));
        }
        let origin = Origin::Pattern {
            argument,
            pattern: Box::new(pattern),
        };
        self.names.extend(bindings.into_iter().map(|binding| Name {
            ident: binding.ident,
            origin: origin.clone(),
        }));
        typed
    }

    /// The parameter that a statement such as `let PATTERN = { let __arg1 = __arg1; __arg1 };` takes.
    fn taken_by(&self, local: &Local) -> Option<&Name> {
        let source = last_ident(&local.init.as_ref()?.expr)?;
        self.names
            .iter()
            .find(|name| matches!(name.origin, Origin::Parameter) && name.ident == *source)
    }

    pub(crate) fn find(&self, ident: &Ident) -> Option<&Name> {
        // The last one: what a pattern binds hides the parameter of the same name.
        self.names.iter().rev().find(|name| name.ident.unraw() == ident.unraw())
    }

    /// The names that stand in `tokens`.
    pub(crate) fn mentioned(&self, tokens: impl ToTokens) -> Vec<String> {
        let tokens = tokens.to_token_stream();
        let names = self.names.iter().map(|name| &name.ident);
        names
            .filter(|ident| mentions(&tokens, ident))
            .map(ToString::to_string)
            .collect()
    }

    /// Marks names that only the attribute uses, so that nobody is told that they are unused.
    pub(crate) fn mark_used(&mut self, used: &BTreeSet<String>, body: &TokenStream) {
        for name in &self.names {
            let ident = &name.ident;
            if used.contains(&ident.to_string()) && !mentions(body, ident) {
                self.takes.push(quote! { let _ = &#ident; });
            }
        }
    }

    /// The same for a block that already takes its parameters: each is marked where it is taken.
    pub(crate) fn mark_used_in(&self, used: &BTreeSet<String>, block: &mut Block) {
        Marks { parameters: self, used }.visit_block_mut(block);
    }

    /// Statements that make the names in `used` which patterns bind available, by reference.
    pub(crate) fn borrow(&self, used: &BTreeSet<String>) -> TokenStream {
        let mut done = BTreeSet::new();
        let mut statements = TokenStream::new();
        for name in self.names.iter().filter(|name| used.contains(&name.ident.to_string())) {
            if let Origin::Pattern { argument, pattern } = &name.origin
                && done.insert(argument.to_string())
            {
                let mut pattern = (**pattern).clone();
                ByReference { used }.visit_pat_mut(&mut pattern);
                statements.extend(quote! { let #pattern = &#argument; });
            }
        }
        statements
    }
}

impl Name {
    fn parameter(ident: Ident) -> Self {
        Self {
            ident,
            origin: Origin::Parameter,
        }
    }

    /// Whether the user wrote it, and not a macro.
    pub(crate) fn is_users(&self) -> bool {
        !self.ident.to_string().starts_with("__")
    }
}

fn plain(ident: Ident) -> Pat {
    Pat::Ident(PatIdent {
        attrs: Vec::new(),
        by_ref: None,
        mutability: None,
        ident,
        subpat: None,
    })
}

/// The attributes of a parameter that its binding inside needs; lint levels move there.
fn attrs_inside(attrs: &mut Vec<Attribute>) -> Vec<Attribute> {
    const LEVELS: [&str; 5] = ["allow", "warn", "deny", "forbid", "expect"];
    let is_level = |attr: &Attribute| LEVELS.iter().any(|level| attr.path().is_ident(level));
    let inside = attrs
        .iter()
        .filter(|attr| is_level(attr) || attr.path().is_ident("cfg"))
        .cloned()
        .collect();
    attrs.retain(|attr| !is_level(attr));
    inside
}

/// Whether an attribute may be a macro that reads the parameters.
fn is_foreign(attr: &Attribute) -> bool {
    const BUILT_IN: [&str; 13] = [
        "allow",
        "warn",
        "deny",
        "forbid",
        "expect",
        "doc",
        "cfg",
        "cold",
        "deprecated",
        "inline",
        "must_use",
        "track_caller",
        "target_feature",
    ];
    const TOOLS: [&str; 4] = ["clippy", "diagnostic", "rustfmt", "rust_analyzer"];
    let tool = attr
        .path()
        .segments
        .first()
        .is_some_and(|first| TOOLS.iter().any(|name| first.ident == name));
    !tool && !BUILT_IN.iter().any(|name| attr.path().is_ident(name))
}

/// The names that `pattern` binds, and whether they take the whole value by move.
fn bindings(pattern: &Pat) -> (Vec<Binding>, bool) {
    struct Bindings {
        found: Vec<Binding>,
        whole: bool,
    }

    impl<'ast> Visit<'ast> for Bindings {
        fn visit_pat(&mut self, pattern: &'ast Pat) {
            match pattern {
                Pat::Ident(ident) => {
                    self.whole &= ident.by_ref.is_none() && ident.subpat.is_none();
                    self.found.push(Binding {
                        mutability: ident.mutability,
                        ident: ident.ident.clone(),
                    });
                }
                Pat::Struct(pattern) => self.whole &= pattern.rest.is_none(),
                Pat::Tuple(_) | Pat::TupleStruct(_) | Pat::Slice(_) | Pat::Reference(_) | Pat::Paren(_) => {}
                Pat::Or(pattern) => {
                    // Every case binds the same names.
                    self.whole = false;
                    if let Some(case) = pattern.cases.first() {
                        self.visit_pat(case);
                    }
                    return;
                }
                _ => self.whole = false,
            }
            visit::visit_pat(self, pattern);
        }

        // Expressions in patterns bind nothing outside themselves.
        fn visit_expr(&mut self, _: &'ast Expr) {}
    }

    let mut bindings = Bindings {
        found: Vec::new(),
        whole: true,
    };
    bindings.visit_pat(pattern);
    (bindings.found, bindings.whole)
}

/// Takes `mut` out of a pattern.
struct Immutable;

impl VisitMut for Immutable {
    fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
        pattern.mutability = None;
        visit_mut::visit_pat_ident_mut(self, pattern);
    }
}

/// Makes a pattern match a reference to what it matched, and bind only the names that are used.
struct ByReference<'a> {
    used: &'a BTreeSet<String>,
}

impl VisitMut for ByReference<'_> {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        if let Pat::Reference(reference) = pattern {
            // Default binding modes look through it.
            *pattern = (*reference.pat).clone();
            return self.visit_pat_mut(pattern);
        }
        if let Pat::Ident(ident) = pattern {
            ident.by_ref = None;
            ident.mutability = None;
            if !self.used.contains(&ident.ident.to_string()) && ident.subpat.is_none() {
                *pattern = Pat::Wild(PatWild {
                    attrs: Vec::new(),
                    underscore_token: Token![_](ident.ident.span()),
                });
            }
        }
        visit_mut::visit_pat_mut(self, pattern);
    }

    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        visit_mut::visit_field_pat_mut(self, field);
        if field.colon_token.is_none()
            && let Member::Named(name) = &field.member
            && matches!(*field.pat, Pat::Wild(_))
        {
            field.colon_token = Some(Token![:](name.span()));
        }
    }
}

/// Finds `let PATTERN = { let __arg1 = __arg1; __arg1 };`, as `#[async_trait]` takes a parameter's pattern inside.
struct Patterns<'a> {
    parameters: &'a Parameters,
    found: Vec<Name>,
}

impl<'ast> Visit<'ast> for Patterns<'_> {
    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(argument) = self.parameters.taken_by(local)
            && !matches!(&local.pat, Pat::Ident(pattern) if pattern.subpat.is_none())
        {
            let origin = Origin::Pattern {
                argument: argument.ident.clone(),
                pattern: Box::new(local.pat.clone()),
            };
            self.found
                .extend(bindings(&local.pat).0.into_iter().map(|binding| Name {
                    ident: binding.ident,
                    origin: origin.clone(),
                }));
        }
        visit::visit_local(self, local);
    }
}

/// Adds a use of each name that only the attribute uses.
struct Marks<'a> {
    parameters: &'a Parameters,
    used: &'a BTreeSet<String>,
}

impl VisitMut for Marks<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        visit_mut::visit_block_mut(self, block);
        for statement in std::mem::take(&mut block.stmts) {
            let names = match &statement {
                Stmt::Local(local) if self.parameters.taken_by(local).is_some() => bindings(&local.pat).0,
                _ => Vec::new(),
            };
            block.stmts.push(statement);
            for Binding { ident, .. } in names {
                if self.used.contains(&ident.to_string()) {
                    block.stmts.push(syn::parse_quote! { let _ = &#ident; });
                }
            }
        }
    }
}

fn last_ident(expr: &Expr) -> Option<&Ident> {
    match expr {
        Expr::Path(path) => path.path.get_ident(),
        Expr::Block(block) => match block.block.stmts.last()? {
            Stmt::Expr(expr, None) => last_ident(expr),
            _ => None,
        },
        _ => None,
    }
}

/// Whether `tokens` contain the word `ident`, other than as a part of a path (`u64::from`) or a field (`order.from`).
fn mentions(tokens: &TokenStream, ident: &Ident) -> bool {
    // What stands before the token, nearest last.
    let mut before = [' '; 2];
    tokens.clone().into_iter().any(|token| {
        let part = matches!(before, [':', ':']) || before[1] == '.' && before[0] != '.';
        let next = match &token {
            TokenTree::Punct(punct) => punct.as_char(),
            _ => ' ',
        };
        before = [before[1], next];
        match token {
            TokenTree::Ident(word) => word == *ident && !part,
            TokenTree::Group(group) => mentions(&group.stream(), ident),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_mentioned_where_it_can_be_the_parameter() {
        let from = Ident::new("from", Span::call_site());
        for (tokens, expected) in [
            ("f(from)", true),
            ("{ [a, { from.b }] }", true),
            ("Transfer { a: from }", true),
            ("a..from", true),
            ("a..=from", true),
            ("u64::from(to)", false),
            ("order.from", false),
            ("order.from(from)", true),
            ("into", false),
        ] {
            let found = tokens.parse::<TokenStream>().map(|tokens| mentions(&tokens, &from));
            assert_eq!(found.ok(), Some(expected), "{tokens}");
        }
    }
}
