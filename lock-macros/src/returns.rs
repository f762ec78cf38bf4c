//! Checks that a function's return type can carry a lock error, as far as its tokens show. rustc
//! reports the rest.

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{
    GenericArgument, Ident, Lifetime, ParenthesizedGenericArguments, PathArguments, ReturnType, Type, TypeFnPtr,
    TypeReference,
};

use crate::model::OnBusy;
use crate::suggest::written as show;

/// The kind of a type, as far as its tokens show.
enum Kind<'a> {
    Unit,
    Option,
    /// A `Result`, with its types as far as they are written.
    Result(Option<&'a Type>, Option<&'a Type>),
    /// Certainly none of the above.
    Plain,
    Unknown,
}

/// Checks that `output` can carry the value that `on_busy` makes of a lock error and, under
/// `coalesce`, that other callers can receive copies of it.
pub(crate) fn check(function: &Ident, output: Option<&Type>, on_busy: &OnBusy, coalesce: bool) -> syn::Result<()> {
    let (shown, kind) = match output {
        Some(output) => (format!("`{}`", show(output)), kind(output)),
        None => ("nothing".to_owned(), Kind::Unit),
    };
    let refuse = |message: String| match output {
        Some(output) => Err(syn::Error::new_spanned(output, message)),
        None => Err(syn::Error::new_spanned(function, message)),
    };
    if let (true, Some(output)) = (coalesce, output) {
        owned(output)?;
    }
    match (on_busy, kind) {
        (OnBusy::Error, Kind::Unit | Kind::Option) => refuse(format!(
            "`{function}` returns {shown}, which cannot carry a lock error: return `Result<T, E>` where `E: From<LockError>`, \
             or give `on_busy = skip` to return without an error when another holder has the lock"
        )),
        (OnBusy::Error, Kind::Plain) => refuse(format!(
            "`{function}` returns {shown}, which cannot carry a lock error: return `Result<{}, E>` where `E: From<LockError>`, \
             or give `on_busy = path::to::fn`, a function from `LockError` to {shown}",
            match output {
                Some(Type::Never(_)) => "std::convert::Infallible".to_owned(),
                output => output.map_or_else(|| "()".to_owned(), show),
            }
        )),
        (OnBusy::Error | OnBusy::Skip, Kind::Result(_, Some(error)))
            if !matches!(self::kind(error), Kind::Unknown) && !is_pointer(error) =>
        {
            Err(syn::Error::new_spanned(
                error,
                format!(
                    "`{}` cannot be made from a lock error: use an error type that implements `From<LockError>`, or give \
                     `on_busy = path::to::fn`, a function from `LockError` to the return type",
                    show(error)
                ),
            ))
        }
        (OnBusy::Skip, kind) if !can_skip(&kind) => refuse(format!(
            "`on_busy = skip` cannot return {shown} when the body is skipped: return `()`, `Option<T>`, `Result<(), E>` or \
             `Result<Option<T>, E>`"
        )),
        _ => Ok(()),
    }
}

/// Refuses types that borrow: other callers, of any lifetime, receive clones of the result.
fn owned(output: &Type) -> syn::Result<()> {
    struct Borrows(Option<Span>);

    impl<'ast> Visit<'ast> for Borrows {
        fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
            if reference.lifetime.is_none() {
                self.0.get_or_insert(reference.and_token.span);
            }
            visit::visit_type_reference(self, reference);
        }

        // `fn(&str)` and `dyn Fn(&str)` borrow only when they are called.
        fn visit_type_fn_ptr(&mut self, _: &'ast TypeFnPtr) {}

        fn visit_parenthesized_generic_arguments(&mut self, _: &'ast ParenthesizedGenericArguments) {}

        fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
            if lifetime.ident != "static" {
                self.0.get_or_insert(lifetime.span());
            }
        }
    }

    let mut borrows = Borrows(None);
    borrows.visit_type(output);
    borrows.0.map_or(Ok(()), |span| {
        Err(syn::Error::new(
            span,
            "`coalesce` gives copies of the result to callers that may outlive what it borrows: return an owned value, \
             such as `String` or `Arc<T>`",
        ))
    })
}

fn can_skip(kind: &Kind<'_>) -> bool {
    match kind {
        Kind::Unit | Kind::Option | Kind::Unknown | Kind::Result(None, _) => true,
        Kind::Result(Some(success), _) => can_skip(&self::kind(success)),
        Kind::Plain => false,
    }
}

fn kind(ty: &Type) -> Kind<'_> {
    const PLAIN: [&str; 27] = [
        "bool", "char", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
        "f32", "f64", "String", "Vec", "Rc", "Arc", "Duration", "Instant", "HashMap", "BTreeMap", "HashSet",
        "BTreeSet",
    ];
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => Kind::Unit,
        Type::Tuple(_)
        | Type::Reference(_)
        | Type::Array(_)
        | Type::Slice(_)
        | Type::Ptr(_)
        | Type::FnPtr(_)
        | Type::Never(_) => Kind::Plain,
        Type::Paren(paren) => kind(&paren.elem),
        Type::Path(path) if path.qself.is_none() => {
            let segments = &path.path.segments;
            let from_std = ["std", "core", "alloc"].iter().any(|name| segments[0].ident == name);
            let (Some(last), true) = (segments.last(), segments.len() == 1 || from_std) else {
                return Kind::Unknown;
            };
            if last.ident == "Option" {
                return Kind::Option;
            }
            if last.ident == "Result" {
                let mut types = types(&last.arguments);
                return Kind::Result(types.next(), types.next());
            }
            if PLAIN.iter().any(|name| last.ident == name) {
                Kind::Plain
            } else {
                Kind::Unknown
            }
        }
        _ => Kind::Unknown,
    }
}

/// Returns `true` for `Arc` and `Rc`: `Arc<LockError>` can be made from a lock error, as any such
/// pointer can.
fn is_pointer(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path
        .segments
        .last()
        .is_some_and(|last| last.ident == "Arc" || last.ident == "Rc")
}

fn types(arguments: &PathArguments) -> impl Iterator<Item = &Type> {
    let arguments = match arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments.into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// Returns the type `T` of `-> T`.
pub(crate) fn output(output: &ReturnType) -> Option<&Type> {
    match output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(ty),
    }
}
