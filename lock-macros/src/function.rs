//! The annotated item: an `async fn` whose body stays tokens, or the function with a boxed future
//! that `#[async_trait]` makes of one.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::visit_mut::VisitMut;
use syn::{
    Attribute, Expr, ExprAsync, ExprClosure, ExprReturn, GenericArgument, Ident, Item, PathArguments, PathSegment,
    ReturnType, Signature, Stmt, Token, Type, TypeParamBound, Visibility,
};

use crate::errors::Errors;
use crate::fragments::{self, Ungroup};

/// A function with its body as unparsed tokens, so that completion in editors works in a body that
/// does not parse yet.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    /// The body with its braces.
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let mut sig: Signature = input.parse()?;
        Ungroup.visit_signature_mut(&mut sig);
        if input.peek(Token![;]) {
            return Err(syn::Error::new_spanned(
                &sig.ident,
                format!(
                    "`{}` has no body that could be locked: put `#[distributed_lock]` on the method in each `impl`",
                    sig.ident
                ),
            ));
        }
        // Not parsed here: rustc has parsed the body before, and reports each mistake in it itself.
        let mut body = input.call(fragments::block)?;
        let split = |input: ParseStream<'_>| Ok((input.call(Attribute::parse_inner)?, input.parse::<TokenStream>()?));
        let (inner_attrs, rest) = split.parse2(body.stream())?;
        if !inner_attrs.is_empty() {
            let span = body.span();
            let rest = fragments::regrouped(rest);
            body = Group::new(Delimiter::Brace, rest);
            body.set_span(span);
        }
        Ok(Self {
            attrs,
            inner_attrs,
            vis,
            sig,
            body,
        })
    }
}

/// The form of the function.
pub(crate) enum Form {
    /// `async fn f() -> T { … }`
    Async,
    /// `fn f() -> Pin<Box<dyn Future<Output = T>>> { Box::pin(async move { … }) }`
    Boxed(Box<Boxed>),
}

/// The parts of a function that returns a boxed future.
pub(crate) struct Boxed {
    /// The statements before the last expression.
    pub(crate) before: Vec<Stmt>,
    /// `Box::pin`
    pub(crate) pin: Expr,
    pub(crate) future: ExprAsync,
    pub(crate) output: Type,
}

/// Reads `item`, or returns the reason why it cannot be locked. Returns `Err(None)` for a problem
/// that rustc reports itself.
pub(crate) fn parse(item: TokenStream) -> Result<Function, Option<syn::Error>> {
    syn::parse2(item.clone()).map_err(|error| {
        if is_unfinished(item.clone()) {
            None
        } else {
            Some(not_a_function(item).unwrap_or(error))
        }
    })
}

/// Returns `true` if a signature is incomplete in a way that rustc certainly refuses: a parameter
/// without a type, or an arrow without one.
// rustc parses a function before it passes it to the macro, and again when it gets it back, but
// reports a problem only once.
fn is_unfinished(item: TokenStream) -> bool {
    let mut rest = item
        .into_iter()
        .skip_while(|token| !matches!(token, TokenTree::Ident(word) if word == "fn"));
    let mut angles = Angles::default();
    let parameters = rest.find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis && angles.depth == 0 => Some(group),
        token => {
            angles.pass(&token);
            None
        }
    });
    let Some(parameters) = parameters else { return false };
    let (mut angles, mut each) = (Angles::default(), vec![Vec::new()]);
    for token in parameters.stream() {
        angles.pass(&token);
        if is(&token, ',') && angles.depth == 0 {
            each.push(Vec::new());
        } else if let Some(last) = each.last_mut() {
            last.push(token);
        }
    }
    let mut behind = rest.peekable();
    let arrow = behind
        .next_if(|token| is(token, '-'))
        .and_then(|_| behind.next_if(|token| is(token, '>')));
    let ends = match behind.peek() {
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
        next => next.is_none(),
    };
    arrow.is_some() && ends || each.iter().any(|parameter| has_no_type(parameter))
}

fn has_no_type(parameter: &[TokenTree]) -> bool {
    let receiver = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "self");
    let colon = parameter.iter().position(|token| is(token, ':'));
    !parameter.is_empty() && !parameter.iter().any(receiver) && colon.is_none_or(|colon| colon + 1 == parameter.len())
}

fn is(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == char)
}

/// The number of open angle brackets while tokens are read.
#[derive(Default)]
struct Angles {
    depth: usize,
    /// `true` if the last token was the first half of an arrow.
    arrow: bool,
}

impl Angles {
    fn pass(&mut self, token: &TokenTree) {
        if is(token, '<') {
            self.depth += 1;
        } else if is(token, '>') && !self.arrow {
            self.depth = self.depth.saturating_sub(1);
        }
        self.arrow = is(token, '-');
    }
}

impl Function {
    /// Returns the form of the function, or an error if it cannot be locked.
    pub(crate) fn form(&self) -> syn::Result<Form> {
        if self.sig.asyncness.is_some() {
            return Ok(Form::Async);
        }
        self.boxed().map(|boxed| Form::Boxed(Box::new(boxed))).ok_or_else(|| {
            let name = &self.sig.ident;
            let message = if self.makes_a_future() {
                format!(
                    "`{name}` returns a future that its body makes: write `async fn {name}`, with the type that the future returns, \
                     or write both out: the type `Pin<Box<dyn Future<Output = T> + Send>>`, and `Box::pin(async move {{ … }})` at the end of the body"
                )
            } else {
                format!(
                    "`#[distributed_lock]` needs an async function: write `async fn {name}`. If another attribute makes `{name}` \
                     sync, such as `#[tokio::test]` or `#[tokio::main]`, put `#[distributed_lock]` above it. A function that stays sync can take \
                     its lock by `LockRequest::acquire_blocking`"
                )
            };
            syn::Error::new_spanned(self.sig.fn_token, message)
        })
    }

    /// Returns `true` if the function is not async but returns a future, as far as its tokens show.
    fn makes_a_future(&self) -> bool {
        let ReturnType::Type(_, output) = &self.sig.output else {
            return false;
        };
        let last = fragments::statements(self.body.stream())
            .ok()
            .and_then(|mut statements| statements.pop());
        match last {
            Some(Stmt::Expr(Expr::Async(_), None)) => true,
            Some(Stmt::Expr(Expr::MethodCall(call), None)) => call.method == "boxed" || call.method == "boxed_local",
            Some(Stmt::Expr(Expr::Call(call), None)) if is_box_pin(&call.func) => true,
            _ => matches!(&**output, Type::ImplTrait(output) if output.bounds.iter().any(is_future)),
        }
    }

    fn boxed(&self) -> Option<Boxed> {
        let ReturnType::Type(_, output) = &self.sig.output else {
            return None;
        };
        let output = future_output(output)?;
        let mut before = fragments::statements(self.body.stream()).ok()?;
        let Some(Stmt::Expr(Expr::Call(call), None)) = before.pop() else {
            return None;
        };
        if !is_box_pin(&call.func) || call.args.len() != 1 {
            return None;
        }
        match call.args.into_iter().next()? {
            Expr::Async(future) if future.capture.is_some() => Some(Boxed {
                before,
                pin: *call.func,
                future,
                output: output.clone(),
            }),
            _ => None,
        }
    }
}

impl Boxed {
    /// Reports each `return` with which the function ends before it makes the future that takes the
    /// lock.
    pub(crate) fn check_returns(&self, function: &Ident, errors: &mut Errors) {
        let mut returns = Returns { function, errors };
        for statement in &self.before {
            returns.visit_stmt(statement);
        }
    }
}

/// Reports the `return` expressions of a function.
struct Returns<'a> {
    function: &'a Ident,
    errors: &'a mut Errors,
}

impl<'ast> Visit<'ast> for Returns<'_> {
    fn visit_expr_return(&mut self, expr: &'ast ExprReturn) {
        let message = format!(
            "this `return` would leave `{}` without the lock: move it into the `async move` block",
            self.function
        );
        self.errors.on(expr.return_token, message);
        visit::visit_expr_return(self, expr);
    }

    // A `return` in one of these does not leave the function.
    fn visit_expr_closure(&mut self, _: &'ast ExprClosure) {}

    fn visit_expr_async(&mut self, _: &'ast ExprAsync) {}

    fn visit_item(&mut self, _: &'ast Item) {}
}

/// Returns `true` for `Box::pin`.
fn is_box_pin(function: &Expr) -> bool {
    let Expr::Path(path) = function else { return false };
    let mut names = path.path.segments.iter().rev().map(|segment| &segment.ident);
    names.next().is_some_and(|name| name == "pin") && names.next().is_some_and(|name| name == "Box")
}

/// Returns `true` for `Future<…>`.
fn is_future(bound: &TypeParamBound) -> bool {
    let TypeParamBound::Trait(bound) = bound else {
        return false;
    };
    bound.path.segments.last().is_some_and(|last| last.ident == "Future")
}

/// Returns the `T` of `Pin<Box<dyn Future<Output = T> + …>>`.
fn future_output(ty: &Type) -> Option<&Type> {
    let Type::TraitObject(object) = only_argument(only_argument(ty, "Pin")?, "Box")? else {
        return None;
    };
    object.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        generics(bound.path.segments.last()?, "Future")?
            .iter()
            .find_map(|argument| match argument {
                GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
                _ => None,
            })
    })
}

/// Returns the `T` of `name<T>`.
fn only_argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ty else { return None };
    match generics(path.path.segments.last()?, name)?.first()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}

fn generics<'a>(segment: &'a PathSegment, name: &str) -> Option<&'a Punctuated<GenericArgument, Token![,]>> {
    match &segment.arguments {
        PathArguments::AngleBracketed(arguments) if segment.ident == name => Some(&arguments.args),
        _ => None,
    }
}

/// Returns an error for an item of another kind, at its keyword.
fn not_a_function(item: TokenStream) -> Option<syn::Error> {
    let inside = "put it on the async functions inside";
    let (tokens, what, advice) = match syn::parse2(item).ok()? {
        Item::Impl(item) => (item.impl_token.to_token_stream(), "an `impl` block", inside),
        Item::Trait(item) => (
            item.trait_token.to_token_stream(),
            "a trait",
            "put it on the method in each `impl`",
        ),
        Item::Mod(item) => (item.mod_token.to_token_stream(), "a module", inside),
        Item::Struct(item) => (
            item.struct_token.to_token_stream(),
            "a struct",
            "put it on an async function",
        ),
        Item::Enum(item) => (
            item.enum_token.to_token_stream(),
            "an enum",
            "put it on an async function",
        ),
        item @ (Item::Const(_) | Item::Static(_) | Item::Type(_) | Item::Use(_) | Item::Macro(_) | Item::Union(_)) => {
            (item.to_token_stream(), "this item", "put it on an async function")
        }
        _ => return None,
    };
    Some(syn::Error::new_spanned(
        tokens,
        format!("`#[distributed_lock]` cannot lock {what}: {advice}"),
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_signature_is_left_to_rustc_and_nothing_else_is() {
        for (source, unfinished) in [
            ("async fn f(a: u8, b) -> u8 { a }", true),
            ("async fn f(a: ) -> u8 { 1 }", true),
            ("async fn f(mut a) {}", true),
            ("async fn f(&self, (a, b)) {}", true),
            ("async fn f(a: u8) -> { a }", true),
            ("async fn f(a: u8) ->", true),
            ("async fn f<F: Fn() -> u8, G: Fn(u8)>(f: F, g: G) -> u8 { 1 }", false),
            (
                "async fn f(&mut self, a: HashMap<u8, fn(u8) -> u8>, b: u8,) -> u8 { 1 }",
                false,
            ),
            ("async fn f(self) {}", false),
            ("async fn f() where u8: Copy {}", false),
            ("struct S(u8);", false),
        ] {
            assert_eq!(is_unfinished(source.parse().unwrap()), unfinished, "{source}");
        }
    }
}
