//! The annotated item: an `async fn` whose body stays tokens, or the boxed future that `#[async_trait]` makes of one.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Block, Expr, ExprAsync, GenericArgument, Item, PathArguments, PathSegment, ReturnType, Signature, Stmt,
    Token, Type, TypeParamBound, Visibility,
};

/// A function, with its body unread: a body that does not parse yet keeps its completion in editors.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    /// The body in its own braces.
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(syn::Error::new_spanned(
                &sig.ident,
                format!(
                    "`{}` has no body that could be locked: put `#[distributed_lock]` on the method in each `impl`",
                    sig.ident
                ),
            ));
        }
        let content;
        let braces = syn::braced!(content in input);
        let inner_attrs = content.call(Attribute::parse_inner)?;
        let mut body = Group::new(Delimiter::Brace, content.parse()?);
        body.set_span(braces.span.join());
        Ok(Self {
            attrs,
            inner_attrs,
            vis,
            sig,
            body,
        })
    }
}

/// Where the body runs.
pub(crate) enum Form {
    /// `async fn f() -> T { … }`
    Async,
    /// `fn f() -> Pin<Box<dyn Future<Output = T>>> { Box::pin(async move { … }) }`
    Boxed(Box<Boxed>),
}

/// The parts of a function that returns a boxed future.
pub(crate) struct Boxed {
    /// What stands before the last expression.
    pub(crate) before: Vec<Stmt>,
    /// `Box::pin`
    pub(crate) pin: Expr,
    pub(crate) future: ExprAsync,
    pub(crate) output: Type,
}

/// Reads `item`, or says why it cannot be locked.
pub(crate) fn parse(item: TokenStream) -> syn::Result<Function> {
    syn::parse2(item.clone()).map_err(|error| not_a_function(item).unwrap_or(error))
}

impl Function {
    /// Which form the function has, or what makes it unfit.
    pub(crate) fn form(&self) -> syn::Result<Form> {
        if self.sig.asyncness.is_some() {
            return Ok(Form::Async);
        }
        self.boxed().map(|boxed| Form::Boxed(Box::new(boxed))).ok_or_else(|| {
            let name = &self.sig.ident;
            syn::Error::new_spanned(
                self.sig.fn_token,
                format!(
                    "`#[distributed_lock]` needs an async function: write `async fn {name}`. If another attribute makes `{name}` \
                     sync, such as `#[tokio::test]` or `#[tokio::main]`, put `#[distributed_lock]` above it"
                ),
            )
        })
    }

    fn boxed(&self) -> Option<Boxed> {
        let ReturnType::Type(_, output) = &self.sig.output else {
            return None;
        };
        let output = future_output(output)?;
        let block: Block = syn::parse2(TokenTree::Group(self.body.clone()).into()).ok()?;
        let mut before = block.stmts;
        let Some(Stmt::Expr(Expr::Call(call), None)) = before.pop() else {
            return None;
        };
        let Expr::Path(path) = &*call.func else { return None };
        let mut names = path.path.segments.iter().rev().map(|segment| segment.ident.to_string());
        if (names.next()?, names.next()?) != ("pin".to_owned(), "Box".to_owned()) || call.args.len() != 1 {
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

/// `T` of `Pin<Box<dyn Future<Output = T> + …>>`.
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

/// `T` of `name<T>`.
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

/// A message for an item of another kind, at its keyword.
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
