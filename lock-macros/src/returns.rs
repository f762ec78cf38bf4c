//! Whether a function's return type has room for a lock error, as far as its words tell; the rest is left to rustc.

use quote::ToTokens;
use syn::{GenericArgument, Ident, PathArguments, ReturnType, Type};

use crate::model::OnBusy;

/// What the words of a type tell.
enum Kind<'a> {
    Unit,
    Option,
    /// The types of success and failure, as far as they are written.
    Result(Option<&'a Type>, Option<&'a Type>),
    /// Surely none of the above.
    Plain,
    Unknown,
}

/// Checks that `output` can carry what `on_busy` makes of a lock error.
pub(crate) fn check(function: &Ident, output: Option<&Type>, on_busy: &OnBusy) -> syn::Result<()> {
    let (shown, kind) = match output {
        Some(output) => (format!("`{}`", show(output)), kind(output)),
        None => ("nothing".to_owned(), Kind::Unit),
    };
    let refuse = |message: String| match output {
        Some(output) => Err(syn::Error::new_spanned(output, message)),
        None => Err(syn::Error::new_spanned(function, message)),
    };
    match (on_busy, kind) {
        (OnBusy::Error, Kind::Unit | Kind::Option) => refuse(format!(
            "`{function}` returns {shown}, which cannot carry a lock error: return `Result<T, E>` where `E: From<LockError>`, \
             or give `on_busy = skip` to return without an error when another holder has the lock"
        )),
        (OnBusy::Error, Kind::Plain) => refuse(format!(
            "`{function}` returns {shown}, which cannot carry a lock error: return `Result<{}, E>` where `E: From<LockError>`, \
             or give `on_busy = path::to::fn`, a function from `LockError` to {shown}",
            output.map_or_else(|| "()".to_owned(), show)
        )),
        (OnBusy::Error | OnBusy::Skip, Kind::Result(_, Some(error))) if !matches!(self::kind(error), Kind::Unknown) => {
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
        Type::Group(group) => kind(&group.elem),
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

/// The type of `-> T`.
pub(crate) fn output(output: &ReturnType) -> Option<&Type> {
    match output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(ty),
    }
}

/// The type as a person would write it.
fn show(ty: &Type) -> String {
    let spaced = ty.to_token_stream().to_string();
    let mut shown = spaced;
    for (from, to) in [
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :: ", "::"),
        ("& ", "&"),
        (":: ", "::"),
    ] {
        shown = shown.replace(from, to);
    }
    shown
}
