//! Moves every argument as a whole into the body, so that all arguments, also unused ones, are
//! dropped before the lock is released. An argument's destructor is part of the work, for example
//! the end of a transaction.
//!
//! An `async` block captures only the variables that it mentions, and a pattern moves only what it
//! binds; the rest would live on in the outer function until after the release. Each argument
//! therefore arrives under one name, is mentioned as a whole, and is destructured inside, with the
//! drop order of a plain `async fn`.
//!
//! A parameter that the body uses and that has a plain name is only mentioned, so that the block
//! captures it in place: moved into a variable of the block, it would be stored twice. The block
//! drops captured values after its variables, in the order in which it first mentions them. The
//! parameters before the first one that needs a variable (a pattern, or an unused name) are
//! therefore mentioned in reverse order, and all parameters from that one on have variables.

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

use crate::format::Format;

/// A function's parameters: the emitted signature, the statements that move them into the body, and
/// the names that the key can use.
pub(crate) struct Parameters {
    /// The parameters of the emitted signature.
    pub(crate) inputs: Punctuated<FnArg, Token![,]>,
    /// The first statements of the body.
    pub(crate) takes: TokenStream,
    /// The route of each parameter into the body, until `take` knows which ones are used.
    arriving: Vec<Arriving>,
    /// `self`, with its own span.
    pub(crate) receiver: Option<Token![self]>,
    /// The names that parameters and their patterns bind.
    pub(crate) names: Vec<Name>,
}

pub(crate) struct Name {
    pub(crate) ident: Ident,
    origin: Origin,
}

/// The use that macros below `#[distributed_lock]` make of the parameters.
#[derive(Clone, Copy)]
struct Others {
    /// `true` if they may read the parameters.
    read: bool,
    /// `true` if they record the parameters that have a plain name (`#[instrument]`); others, such
    /// as `#[rstest]`, require a plain name.
    record: bool,
}

/// The route by which a parameter reaches the body.
enum Arriving {
    /// `self`, which has no other name.
    Receiver(Token![self]),
    /// A parameter with one name.
    Plain(Plain),
    /// A parameter that the contained statements destructure.
    Apart(TokenStream),
}

struct Plain {
    /// The index in the signature.
    index: usize,
    /// The attributes that the variable in the body needs.
    attrs: Vec<Attribute>,
    mutability: Option<Token![mut]>,
    ident: Ident,
}

#[derive(Clone)]
enum Origin {
    /// The name of a parameter, which is in scope.
    Parameter,
    /// A name that is bound when the pattern destructures the argument.
    Pattern {
        /// The `cfg`s of the parameter.
        conditions: Vec<Attribute>,
        argument: Ident,
        pattern: Box<Pat>,
    },
}

/// A name that a pattern binds.
struct Binding {
    mutability: Option<Token![mut]>,
    ident: Ident,
}

impl Parameters {
    /// Reads the parameters of an `async fn`. `attrs` are the attributes by which other macros may
    /// still read them.
    pub(crate) fn of_async(sig: &Signature, attrs: &[Attribute]) -> Self {
        let others = Others {
            read: attrs.iter().any(is_foreign),
            record: attrs.iter().any(|attr| {
                let last = attr.path().segments.last();
                last.is_some_and(|last| last.ident == "instrument")
            }),
        };
        let mut parameters = Self {
            inputs: Punctuated::new(),
            takes: TokenStream::new(),
            arriving: Vec::new(),
            receiver: None,
            names: Vec::new(),
        };
        for (index, input) in sig.inputs.pairs().enumerate() {
            let (input, comma) = input.into_tuple();
            let input = match input {
                FnArg::Receiver(receiver) => FnArg::Receiver(parameters.receiver(receiver)),
                FnArg::Typed(typed) => FnArg::Typed(parameters.typed(index, typed.clone(), others)),
            };
            parameters.inputs.push_value(input);
            if let Some(comma) = comma {
                parameters.inputs.push_punct(*comma);
            }
        }
        parameters
    }

    /// Reads the parameters of a function whose `async` block already moves them, statement by
    /// statement.
    pub(crate) fn of_boxed(sig: &Signature, block: &Block) -> Self {
        let mut parameters = Self {
            inputs: sig.inputs.clone(),
            takes: TokenStream::new(),
            arriving: Vec::new(),
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
            self.arriving.push(Arriving::Receiver(self_token));
        }
        receiver.clone()
    }

    fn typed(&mut self, index: usize, mut typed: PatType, others: Others) -> PatType {
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
            typed.pat = Box::new(plain(ident.clone()));
            self.arriving.push(Arriving::Plain(Plain {
                index,
                attrs,
                mutability: *mutability,
                ident: ident.clone(),
            }));
            return typed;
        }
        let (bindings, whole) = bindings(&pattern);
        if others.read && whole {
            // A macro below ours, such as `#[instrument(skip(state))]`, looks for the names in the
            // signature, so the pattern stays there. It names every part, so no part of the
            // argument stays behind in the outer function.
            Immutable.visit_pat_mut(&mut typed.pat);
            for Binding { mutability, ident } in bindings {
                let variable = variable(&attrs, mutability, &ident);
                self.arriving.push(Arriving::Apart(variable));
                // The attribute's expressions see this name as a reference, like every name that
                // a pattern binds.
                let origin = Origin::Pattern {
                    conditions: conditions(&attrs),
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
            // rustdoc shows this name for the parameter.
            [only] if !others.read && !only.ident.to_string().starts_with('_') => only.ident.clone(),
            _ => inside.clone(),
        };
        let apart = (!matches!(pattern, Pat::Wild(_)))
            .then(|| quote! { #[allow(clippy::shadow_unrelated)] #(#attrs)* let #pattern = #inside; });
        let mutability = borrows_mutably(&pattern).then(<Token![mut]>::default);
        self.arriving.push(Arriving::Apart(
            quote! { #(#attrs)* let #mutability #inside = #argument; #apart },
        ));
        typed.pat = Box::new(plain(argument.clone()));
        if others.record {
            // `#[instrument]` records every parameter with a plain name, and then requires its
            // `Debug`.
            typed.pat = Box::new(Pat::Paren(PatParen {
                attrs: Vec::new(),
                paren_token: syn::token::Paren(inside.span()),
                pat: typed.pat,
            }));
        }
        let origin = Origin::Pattern {
            conditions: conditions(&attrs),
            argument,
            pattern: Box::new(pattern),
        };
        self.names.extend(bindings.into_iter().map(|binding| Name {
            ident: binding.ident,
            origin: origin.clone(),
        }));
        typed
    }

    /// Returns the parameter that a statement of `#[async_trait]` moves: `let amount = amount;`, or
    /// `let PATTERN = { let __arg1 = __arg1; __arg1 };`.
    fn taken_by(&self, local: &Local) -> Option<&Name> {
        let source = last_ident(&local.init.as_ref()?.expr)?;
        let argument = self
            .names
            .iter()
            .find(|name| matches!(name.origin, Origin::Parameter) && name.ident == *source)?;
        // A parameter that the user has named is taken apart by the user, in the body.
        (is_whole(&local.pat) || !argument.is_users()).then_some(argument)
    }

    pub(crate) fn find(&self, ident: &Ident) -> Option<&Name> {
        // The last one: a name that a pattern binds hides the parameter of the same name.
        self.names.iter().rev().find(|name| name.ident.unraw() == ident.unraw())
    }

    /// Returns the names that occur in `tokens`.
    pub(crate) fn mentioned(&self, tokens: impl ToTokens) -> Vec<String> {
        let tokens = tokens.to_token_stream();
        let names = self.names.iter().map(|name| &name.ident);
        names
            .filter(|ident| mentions(&tokens, ident) || formats(&tokens, ident))
            .map(ToString::to_string)
            .collect()
    }

    /// Writes the statements that move the parameters, once it is known which names the attribute
    /// uses. A name that only the attribute uses is marked as used, so that rustc does not warn
    /// about it. A name without any use gets a variable, so that rustc does warn.
    pub(crate) fn take(&mut self, used: &BTreeSet<String>, body: &TokenStream) {
        let (mut captured, mut variables) = (Vec::new(), TokenStream::new());
        for arriving in std::mem::take(&mut self.arriving) {
            match arriving {
                Arriving::Receiver(self_token) => captured.push(quote! { let _ = &#self_token; }),
                Arriving::Plain(plain) if variables.is_empty() && plain.is_used(used, body) => {
                    captured.push(plain.captured());
                    self.keep(plain);
                }
                Arriving::Plain(plain) => variables.extend(variable(&plain.attrs, plain.mutability, &plain.ident)),
                Arriving::Apart(statements) => variables.extend(statements),
            }
        }
        let marks = self.names.iter().filter_map(|Name { ident, origin }| {
            let only_there = used.contains(&ident.to_string()) && !mentions(body, ident);
            // Mentioning a captured parameter already counts as a use.
            (only_there && !(matches!(origin, Origin::Parameter) && variables.is_empty()))
                .then(|| quote! { let _ = &#ident; })
        });
        let marks: TokenStream = marks.collect();
        captured.reverse();
        self.takes = quote! { #(#captured)* #variables #marks };
    }

    /// Gives a parameter without a variable in the body the attributes and the `mut` that the
    /// variable would have.
    fn keep(&mut self, plain: Plain) {
        if let Some(FnArg::Typed(typed)) = self.inputs.iter_mut().nth(plain.index) {
            typed.attrs.extend(plain.attrs.into_iter().filter(is_level));
            if let Pat::Ident(pattern) = &mut *typed.pat {
                pattern.mutability = plain.mutability;
            }
        }
    }

    /// Marks the names that only the attribute uses in a block that already moves its parameters,
    /// each where it is moved.
    pub(crate) fn mark_used_in(&self, used: &BTreeSet<String>, block: &mut Block) {
        Marks { parameters: self, used }.visit_block_mut(block);
    }

    /// Dereferences `expr` where it is only a name that a pattern binds, which is a reference.
    pub(crate) fn by_value(&self, expr: &mut Expr) {
        let Expr::Path(path) = &*expr else { return };
        let name = path.path.get_ident().and_then(|ident| self.find(ident));
        if name.is_some_and(|name| matches!(name.origin, Origin::Pattern { .. })) {
            *expr = syn::parse_quote! { *#path };
        }
    }

    /// Returns statements that bind the names in `used` that come from patterns, by reference.
    pub(crate) fn borrow(&self, used: &BTreeSet<String>) -> TokenStream {
        let mut done = BTreeSet::new();
        let mut statements = TokenStream::new();
        for name in self.names.iter().filter(|name| used.contains(&name.ident.to_string())) {
            if let Origin::Pattern {
                conditions,
                argument,
                pattern,
            } = &name.origin
            {
                let mut pattern = (**pattern).clone();
                ByReference { used }.visit_pat_mut(&mut pattern);
                // Parameters of which a build has only one may have the same name.
                let taken = quote! { #(#conditions)* let #pattern = &#argument; };
                if !done.insert(taken.to_string()) {
                    continue;
                }
                // A closure in the attribute may have a parameter of the same name, and not use this one.
                statements.extend(quote! {
                    #[allow(
                        unused_variables,
                        clippy::pattern_type_mismatch,
                        clippy::shadow_same,
                        clippy::shadow_reuse,
                        clippy::shadow_unrelated
                    )]
                    #taken
                });
            }
        }
        statements
    }
}

impl Plain {
    fn is_used(&self, used: &BTreeSet<String>, body: &TokenStream) -> bool {
        is_underscored(&self.ident)
            || used.contains(&self.ident.to_string())
            || mentions(body, &self.ident)
            || formats(body, &self.ident)
    }

    /// Returns a statement that mentions the parameter as a whole.
    fn captured(&self) -> TokenStream {
        let (ident, lints) = (&self.ident, lints(&self.ident));
        let conditions = conditions(&self.attrs);
        quote! { #lints #(#conditions)* let _ = &#ident; }
    }
}

/// Returns a statement that moves the whole of `ident` into the body. Its span is the user's, so
/// that an unused parameter is reported there.
fn variable(attrs: &[Attribute], mutability: Option<Token![mut]>, ident: &Ident) -> TokenStream {
    let lints = lints(ident);
    quote! { #lints #[allow(clippy::shadow_same)] #(#attrs)* let #mutability #ident = #ident; }
}

/// Allows the lints about names such as `_name`, which are only passed on here.
fn lints(ident: &Ident) -> Option<TokenStream> {
    is_underscored(ident)
        .then(|| quote! { #[allow(clippy::no_effect_underscore_binding, clippy::used_underscore_binding)] })
}

fn is_underscored(ident: &Ident) -> bool {
    ident.to_string().starts_with('_')
}

impl Name {
    fn parameter(ident: Ident) -> Self {
        Self {
            ident,
            origin: Origin::Parameter,
        }
    }

    /// Returns `true` if the user wrote the name, and not a macro.
    pub(crate) fn is_users(&self) -> bool {
        !self.ident.to_string().starts_with("__")
    }
}

/// Returns `true` for a pattern that is only a name.
fn is_whole(pattern: &Pat) -> bool {
    matches!(pattern, Pat::Ident(pattern) if pattern.subpat.is_none())
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

/// Returns the attributes of a parameter that its variable in the body needs; lint levels are moved
/// there.
fn attrs_inside(attrs: &mut Vec<Attribute>) -> Vec<Attribute> {
    let inside = attrs
        .iter()
        .filter(|attr| is_level(attr) || attr.path().is_ident("cfg"))
        .cloned()
        .collect();
    attrs.retain(|attr| !is_level(attr));
    inside
}

/// Returns the `cfg`s among the attributes of a variable.
fn conditions(attrs: &[Attribute]) -> Vec<Attribute> {
    let conditions = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    conditions.cloned().collect()
}

/// Returns `true` if an attribute sets a lint's level.
fn is_level(attr: &Attribute) -> bool {
    const LEVELS: [&str; 5] = ["allow", "warn", "deny", "forbid", "expect"];
    LEVELS.iter().any(|level| attr.path().is_ident(level))
}

/// Returns `true` if an attribute may be a macro that reads the parameters.
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

/// Returns the names that `pattern` binds, and `true` if they take the whole value by move.
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

        // Expressions in patterns bind no names outside themselves.
        fn visit_expr(&mut self, _: &'ast Expr) {}
    }

    let mut bindings = Bindings {
        found: Vec::new(),
        whole: true,
    };
    bindings.visit_pat(pattern);
    (bindings.found, bindings.whole)
}

/// Returns `true` if `pattern` contains a `ref mut`, which requires a mutable place.
fn borrows_mutably(pattern: &Pat) -> bool {
    struct Borrows(bool);

    impl<'ast> Visit<'ast> for Borrows {
        fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
            self.0 |= pattern.by_ref.is_some() && pattern.mutability.is_some();
            visit::visit_pat_ident(self, pattern);
        }
    }

    let mut borrows = Borrows(false);
    borrows.visit_pat(pattern);
    borrows.0
}

/// Removes `mut` from a pattern.
struct Immutable;

impl VisitMut for Immutable {
    fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
        pattern.mutability = None;
        visit_mut::visit_pat_ident_mut(self, pattern);
    }
}

/// Makes a pattern match a reference to the value, and bind only the names that are used.
struct ByReference<'a> {
    used: &'a BTreeSet<String>,
}

impl VisitMut for ByReference<'_> {
    fn visit_pat_mut(&mut self, pattern: &mut Pat) {
        if let Pat::Reference(reference) = pattern {
            // Default binding modes make the `&` unnecessary.
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

/// Finds `let PATTERN = { let __arg1 = __arg1; __arg1 };`, the form in which `#[async_trait]`
/// destructures a parameter.
struct Patterns<'a> {
    parameters: &'a Parameters,
    found: Vec<Name>,
}

impl<'ast> Visit<'ast> for Patterns<'_> {
    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(argument) = self.parameters.taken_by(local)
            && !is_whole(&local.pat)
        {
            let origin = Origin::Pattern {
                conditions: conditions(&local.attrs),
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

/// Returns `true` if `tokens` contain the word `ident`, other than as a part of a path
/// (`u64::from`) or a field (`order.from`).
fn mentions(tokens: &TokenStream, ident: &Ident) -> bool {
    // The characters before the token, the nearest one last.
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

/// Returns `true` if a string among the tokens mentions `ident`, as `format!("{ident}")` and
/// `format!("{:ident$}", …)` do. There, `r#type` is written `type`.
fn formats(tokens: &TokenStream, ident: &Ident) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Group(group) => formats(&group.stream(), ident),
        TokenTree::Literal(literal) => Format::of(&literal.to_string()).mentions(&ident.unraw().to_string()),
        _ => false,
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

    #[test]
    fn a_string_inserts_a_raw_name_without_its_prefix() {
        let kind = Ident::new_raw("type", Span::call_site());
        let found = "f(\"x:{type}\")"
            .parse::<TokenStream>()
            .map(|tokens| formats(&tokens, &kind));
        assert_eq!(found.ok(), Some(true));
    }
}
