//! Removes the groups without brackets in which a `macro_rules!` passes on its fragments, such as
//! `$key:literal`.
//!
//! They are removed wherever the macro looks at an expression or a type. In its output they would
//! have no effect: the compiler does not regard such groups from a procedural macro, and reads
//! `$count * 2` with `1 + 2` for `$count` as `1 + 2 * 2`. Without the groups, `syn` writes
//! parentheses around expressions that need them.

use std::mem;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Stmt, Type, TypeParen, TypePtr, TypeReference};

/// Reads an expression.
pub(crate) fn expr(input: ParseStream<'_>) -> syn::Result<Expr> {
    let mut expr = input.parse()?;
    Ungroup.visit_expr_mut(&mut expr);
    Ok(expr)
}

/// Reads a block without parsing its content.
pub(crate) fn block(input: ParseStream<'_>) -> syn::Result<Group> {
    match input.parse()? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => block.parse2(group.stream()),
        token => Err(syn::Error::new(token.span(), "expected curly braces")),
    }
}

/// Reads the statements of a body.
pub(crate) fn statements(body: TokenStream) -> syn::Result<Vec<Stmt>> {
    let mut statements = Block::parse_within.parse2(body)?;
    for statement in &mut statements {
        Ungroup.visit_stmt_mut(statement);
    }
    Ok(statements)
}

/// Restores the meaning of a body that was taken apart: a group that stands in it by itself has lost
/// its effect, unlike one inside other brackets.
pub(crate) fn regrouped(body: TokenStream) -> TokenStream {
    let is_fragment = |token| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::None);
    if !body.clone().into_iter().any(is_fragment) {
        return body;
    }
    match statements(body.clone()) {
        Ok(statements) => quote! { #(#statements)* },
        Err(_) => body,
    }
}

/// Removes the groups from what it visits.
pub(crate) struct Ungroup;

impl VisitMut for Ungroup {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        while let Expr::Group(group) = expr
            && group.attrs.is_empty()
        {
            *expr = mem::replace(&mut *group.expr, Expr::PLACEHOLDER);
        }
        visit_mut::visit_expr_mut(self, expr);
    }

    fn visit_type_mut(&mut self, ty: &mut Type) {
        while let Type::Group(group) = ty {
            *ty = mem::replace(&mut *group.elem, Type::Verbatim(TokenStream::new()));
        }
        visit_mut::visit_type_mut(self, ty);
        if let Type::Reference(TypeReference { elem, .. }) | Type::Ptr(TypePtr { elem, .. }) = ty
            && has_plus(elem)
        {
            // `&dyn A + B` is no type.
            let object = mem::replace(&mut **elem, Type::Verbatim(TokenStream::new()));
            **elem = Type::Paren(TypeParen {
                attrs: Vec::new(),
                paren_token: syn::token::Paren::default(),
                elem: Box::new(object),
            });
        }
    }
}

fn has_plus(ty: &Type) -> bool {
    match ty {
        Type::TraitObject(object) => object.bounds.len() > 1,
        Type::ImplTrait(object) => object.bounds.len() > 1,
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::expand::expand;

    /// Replaces each `$name` in `source` by its fragment, which `group` may change.
    fn filled(source: TokenStream, fragments: &[(&str, &str)], group: fn(TokenStream) -> TokenStream) -> TokenStream {
        let mut tokens = source.into_iter();
        let mut filled = TokenStream::new();
        while let Some(token) = tokens.next() {
            filled.extend(match token {
                TokenTree::Punct(punct) if punct.as_char() == '$' => {
                    let name = tokens.next().unwrap().to_string();
                    let (_, fragment) = fragments.iter().find(|(known, _)| *known == name).unwrap();
                    group(fragment.parse().unwrap())
                }
                TokenTree::Group(outer) => {
                    let inside = filled_inside(&outer, fragments, group);
                    TokenTree::Group(Group::new(outer.delimiter(), inside)).into()
                }
                token => token.into(),
            });
        }
        filled
    }

    fn filled_inside(outer: &Group, fragments: &[(&str, &str)], group: fn(TokenStream) -> TokenStream) -> TokenStream {
        filled(outer.stream(), fragments, group)
    }

    /// Passes a fragment on as a `macro_rules!` does that has received it from another one.
    fn passed_on(fragment: TokenStream) -> TokenStream {
        let inner = TokenTree::Group(Group::new(Delimiter::None, fragment));
        TokenTree::Group(Group::new(Delimiter::None, inner.into())).into()
    }

    fn check(attr: &str, item: &str, fragments: &[(&str, &str)]) {
        let expanded = |group| {
            let [attr, item] = [attr, item].map(|source| filled(source.parse().unwrap(), fragments, group));
            expand(attr, item).to_string()
        };
        assert_eq!(expanded(passed_on), expanded(|fragment| fragment), "{attr} {item}");
    }

    const FUNCTION: &str = "async fn f(&self, a: u64, (b, c): (u64, u64)) -> Result<u64, E> { Ok(a) }";

    /// Returns the attribute with a key, which a function with parameters needs.
    fn keyed(attr: &str) -> String {
        format!("key = \"k\", {attr}")
    }

    #[test]
    fn an_argument_may_be_a_fragment() {
        for (attr, fragment) in [
            ("key = $x", "\"order:<a>\""),
            ("key = $x", "\"order:<d>\""),
            ("key = $x", "a"),
            ("key = format!(\"order:{}\", $x)", "a"),
            ("key = $x", "[\"order:<a>\", \"order:<b>\"]"),
            ("keys = [\"order:<a>\", $x]", "\"order:<b>\""),
            ("keys = [$x]", "\"order:<b>\""),
            ("keys = [\"order:<a>\", $x]", "b"),
            ("keys = $x", "[\"order:<a>\", \"order:<b>\"]"),
            ("keys = $x", "self.keys"),
            ("keys = $x.iter().map(name)", "self.keys"),
            ("mode = $x", "read"),
            ("mode = $x", "\"read\""),
            ("mode = $x", "semaphore(0)"),
            ("mode = $x(5)", "semaphore"),
            ("mode = $x(5)", "Semaphore"),
            ("mode = semaphore($x)", "0"),
            ("mode = semaphore($x)", "-1"),
            ("mode = semaphore($x)", "b"),
            ("owner = $x", "\"<a>\""),
            (
                "reentrant = $x, renew = $x, coalesce = $x, fencing = $x, fair = $x",
                "false",
            ),
            (
                "lease = $x, wait = $x, at_least = $x, lock_delay = $x, max_hold = $x",
                "15",
            ),
            ("lease = $x, wait = $x", "\"1m30s\""),
            ("lease = $x, wait = $x", "b"),
            ("lease = $x", "0"),
            ("lease = ($x)", "0"),
            ("lease = -$x", "1"),
            ("lease = $x", "{ self.lease() }"),
            ("max_renewals = $x, min_replicas = $x", "3"),
            ("max_renewals = $x, min_replicas = $x", "-3"),
            ("on_busy = $x", "skip"),
            ("on_busy = $x", "orders::busy"),
            ("on_busy = $x", "|_| ()"),
            ("on_lost = $x", "signal"),
            ("on_lost = $x", "orders::cancel"),
            ("release = $x", "pipelined"),
            ("manager = $x", "&self.locks"),
            ("manager = $x", "self.locks"),
            ("crate = $x", "crate::locks"),
            ("ttl = $x", "5"),
            ("lockType = $x", "Mode::Read"),
            ("permits($x)", "5"),
            ("$x", "key = \"order:<a>\""),
            ("$x, wait = 5", "lease = 15"),
            ("wait = 5, $x", "fencing"),
            ("$x", "\"order\""),
            ("$x = 5", "lease"),
        ] {
            check(attr, FUNCTION, &[("x", fragment)]);
            check(&keyed(attr), FUNCTION, &[("x", fragment)]);
        }
    }

    #[test]
    fn an_expression_keeps_its_meaning_behind_a_fragment() {
        for (attr, meaning, fragment) in [
            ("max_renewals = $x * 2", "max_renewals = (1 + a) * 2", "1 + a"),
            ("lease = $x.get()", "lease = (&self.lease).get()", "&self.lease"),
            ("manager = *$x", "manager = *(&a as &Locks)", "&a as &Locks"),
        ] {
            let function: TokenStream = FUNCTION.parse().unwrap();
            let attr = filled(keyed(attr).parse().unwrap(), &[("x", fragment)], passed_on);
            let expanded = expand(attr, function.clone()).to_string();
            assert!(!expanded.contains("compile_error"), "{expanded}");
            assert_eq!(
                expanded,
                expand(keyed(meaning).parse().unwrap(), function).to_string(),
                "{meaning}"
            );
        }
    }

    #[test]
    fn a_function_may_be_made_of_fragments() {
        let fragments = [
            ("meta", "doc = \"locked\""),
            ("vis", "pub(crate)"),
            ("none", ""),
            ("name", "f"),
            ("lifetime", "'a"),
            ("path", "std::fmt::Debug"),
            ("pat", "(b, _)"),
            ("plain", "mut b"),
            ("ty", "(u64, u64)"),
            ("option", "Option<u64>"),
            ("object", "dyn Any + Send"),
            ("error", "Arc<LockError>"),
            ("result", "Result<u64, LockError>"),
            ("number", "u64"),
            ("never", "!"),
            ("borrowed", "&'static str"),
            ("stmt", "let x = 1 + 2"),
            ("block", "{ Ok(b) }"),
            ("future", "Pin<Box<dyn Future<Output = Result<(), E>> + Send>>"),
            ("boxed", "Box::pin(async move { Ok(()) })"),
            ("async", "async move { Ok(()) }"),
        ];
        for (attr, item) in [
            (
                "key = \"<b>\"",
                "#[$meta] $vis async fn $name($pat: $ty) -> $result $block",
            ),
            (
                "key = \"<b>\", lease = b",
                "async fn f($pat: $ty) -> Result<$number, $error> $block",
            ),
            (
                "key = \"<b>\"",
                "#[instrument] $none async fn f($plain: $number) -> $result { $stmt; Ok(b) }",
            ),
            ("key = \"<b>\"", "async fn f(b: $option) -> $result $block"),
            ("key = \"<b>\"", "async fn f(b: &$number) -> $number $block"),
            ("on_busy = skip", "async fn f() -> $option $block"),
            ("on_busy = skip", "async fn f() -> Result<$number, E> $block"),
            ("on_busy = never", "async fn f() -> $never $block"),
            ("coalesce", "async fn f() -> Result<$borrowed, E> $block"),
            (
                "key = \"<b>\"",
                "async fn f<$lifetime, T: $path>(b: &$lifetime T, c: [u8; $number]) -> $result where T: $lifetime, $ty: Copy $block",
            ),
            ("", "fn f() -> $future { $boxed }"),
            (
                "",
                "fn f() -> Pin<Box<dyn Future<Output = $result> + Send>> { Box::pin($async) }",
            ),
            ("", "fn f() -> $future $block"),
            ("", "fn f() -> $number $block"),
            ("", "async fn f() -> $result $ty"),
        ] {
            check(attr, item, &fragments);
        }
        let [object, parenthesised] = [passed_on, |object| {
            TokenTree::Group(Group::new(Delimiter::Parenthesis, object)).into()
        }]
        .map(|group| filled("async fn f(a: &$object) -> R {}".parse().unwrap(), &fragments, group))
        .map(|item| expand(keyed("").parse().unwrap(), item).to_string());
        assert_eq!(object, parenthesised);
    }
}
