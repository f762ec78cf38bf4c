//! The value of `mode`: which holders can share the lock.

use syn::{Expr, ExprLit, Lit, LitInt};

use crate::suggest;

/// The way in which a lock is shared. Exclusive if not given.
pub(crate) enum Mode {
    Exclusive,
    Read,
    Write,
    /// A semaphore, with its number of permits.
    Semaphore(Box<Expr>),
}

/// Other names of each mode, folded; its own name is the first.
const WORDS: [(&str, &[&str]); 4] = [
    (
        "exclusive",
        &["exclusive", "mutex", "single", "one", "default", "none", "normal"],
    ),
    (
        "read",
        &[
            "read",
            "reader",
            "readers",
            "reading",
            "shared",
            "readlock",
            "sharedlock",
            "readonly",
        ],
    ),
    ("write", &["write", "writer", "writers", "writing", "writelock"]),
    (
        "semaphore(5)",
        &[
            "semaphore",
            "semaphores",
            "semaphor",
            "sem",
            "permits",
            "permit",
            "counting",
            "countingsemaphore",
            "limit",
        ],
    ),
];

/// Returns the name of the mode that `word` means, such as `read` for `Reader`.
pub(crate) fn meant(word: &str) -> Option<&'static str> {
    let word = suggest::fold(word);
    WORDS
        .iter()
        .find(|(_, words)| words.contains(&word.as_str()))
        .map(|(written, _)| *written)
}

/// Reads the value of `mode`.
pub(crate) fn parse(value: &Expr) -> syn::Result<Mode> {
    let refuse = |message: String| Err(syn::Error::new_spanned(value, message));
    match value {
        Expr::Path(path) if path.path.is_ident("exclusive") => Ok(Mode::Exclusive),
        Expr::Path(path) if path.path.is_ident("read") => Ok(Mode::Read),
        Expr::Path(path) if path.path.is_ident("write") => Ok(Mode::Write),
        Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("semaphore")) => {
            match call.args.first() {
                Some(permits) if call.args.len() == 1 => {
                    self::permits(permits).map(|permits| Mode::Semaphore(Box::new(permits)))
                }
                _ => refuse(
                    "`semaphore` takes one number, that of the holders that may share the lock: write `mode = semaphore(5)`"
                        .to_owned(),
                ),
            }
        }
        _ => refuse(remedy(value)),
    }
}

/// Returns the advice on what to write instead of `value`.
fn remedy(value: &Expr) -> String {
    let list = "`mode` takes `exclusive`, `read`, `write`, or `semaphore(5)` with the number of holders that may share the lock";
    let (word, permits) = match value {
        Expr::Path(path) => (last(path), None),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => (last(path), call.args.first()),
            _ => return list.to_owned(),
        },
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => {
            return match syn::parse_str::<Expr>(&text.value()) {
                Ok(inside) if parse(&inside).is_ok() => {
                    format!("a mode has no quotes: write `mode = {}`", text.value().trim())
                }
                Ok(inside @ (Expr::Path(_) | Expr::Call(_))) => remedy(&inside),
                _ => list.to_owned(),
            };
        }
        _ => return list.to_owned(),
    };
    match suggest::fold(&word).as_str() {
        "fair" | "fairlock" | "fifo" => return "`fair` is an argument of its own: write `fair`".to_owned(),
        "reentrant" | "recursive" => return "`reentrant` is an argument of its own: write `reentrant`".to_owned(),
        "owner" => return "`owner` is an argument of its own: write `owner = \"<workflow_id>\"`".to_owned(),
        "readwrite" | "rw" | "rwlock" | "readwritelock" => {
            return "write `mode = read` on the functions that read, and `mode = write` on those that write".to_owned();
        }
        "multi" | "multilock" | "multikey" | "multiple" | "all" => {
            return "several keys are an argument of their own: write `keys = [\"account:<from>\", \"account:<to>\"]`"
                .to_owned();
        }
        _ => {}
    }
    match (meant(&word), permits) {
        (Some(written), Some(permits)) if written.starts_with("semaphore") => {
            format!("write `mode = semaphore({})`", suggest::written(permits))
        }
        (Some(written), None) if written.starts_with("semaphore") => {
            format!("say how many may hold the lock at once: write `mode = {written}`")
        }
        (Some(written), _) => format!("write `mode = {written}`"),
        (None, _) => match suggest::nearest(&word, ["exclusive", "read", "write", "semaphore"]) {
            Some("semaphore") => "did you mean `mode = semaphore(5)`?".to_owned(),
            Some(near) => format!("did you mean `mode = {near}`?"),
            None => list.to_owned(),
        },
    }
}

fn last(path: &syn::ExprPath) -> String {
    path.path
        .segments
        .last()
        .map_or_else(String::new, |segment| segment.ident.to_string())
}

fn permits(value: &Expr) -> syn::Result<Expr> {
    count(value, &Counted::PERMITS)
}

/// The texts of messages about a number.
pub(crate) struct Counted {
    /// The message for a zero, if there must be at least one.
    pub(crate) zero: Option<&'static str>,
    /// The text before and after the number, as the user writes it.
    pub(crate) written: (&'static str, &'static str),
    /// The name of the argument.
    pub(crate) name: &'static str,
    /// The message for a value that is not a number.
    pub(crate) other: &'static str,
}

impl Counted {
    const PERMITS: Self = Self {
        zero: Some("a semaphore with no permits lets nobody in: write `mode = semaphore(1)`, or a larger number"),
        written: ("mode = semaphore(", ")"),
        name: "semaphore",
        other: "`semaphore` takes the number of holders that may share the lock, 1 or more, such as in `mode = semaphore(5)`",
    };
}

/// Reads a number, which may be zero if there is no message for that, or an expression of type `u32`.
pub(crate) fn count(value: &Expr, counted: &Counted) -> syn::Result<Expr> {
    let refuse = |message: &str| Err(syn::Error::new_spanned(value, message));
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(count), ..
        }) => match (count.base10_parse::<u32>(), counted.zero) {
            (Ok(0), Some(message)) => refuse(message),
            (Ok(number), _) if matches!(count.suffix(), "" | "u32") => {
                let literal = LitInt::new(&number.to_string(), count.span());
                Ok(Expr::Lit(ExprLit {
                    attrs: Vec::new(),
                    lit: Lit::Int(literal),
                }))
            }
            (Ok(number), _) => refuse(&format!("write `{}{number}{}`", counted.written.0, counted.written.1)),
            (Err(_), _) => refuse(&format!("`{}` is too large: give at most {}", counted.name, u32::MAX)),
        },
        Expr::Lit(_)
        | Expr::Unary(syn::ExprUnary {
            op: syn::UnOp::Neg(_), ..
        }) => refuse(counted.other),
        _ => Ok(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    fn mode(source: &str) -> String {
        match syn::parse_str(source).and_then(|value| parse(&value)) {
            Ok(Mode::Exclusive) => "exclusive".to_owned(),
            Ok(Mode::Read) => "read".to_owned(),
            Ok(Mode::Write) => "write".to_owned(),
            Ok(Mode::Semaphore(permits)) => format!("semaphore {}", permits.to_token_stream()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn every_mode_is_read() {
        for (source, expected) in [
            ("exclusive", "exclusive"),
            ("read", "read"),
            ("write", "write"),
            ("semaphore(5)", "semaphore 5"),
            ("semaphore(0x10)", "semaphore 16"),
            ("semaphore(5u32)", "semaphore 5"),
            ("semaphore(PERMITS)", "semaphore PERMITS"),
            ("semaphore(*permits)", "semaphore * permits"),
            ("semaphore(self.permits())", "semaphore self . permits ()"),
        ] {
            assert_eq!(mode(source), expected, "{source}");
        }
    }

    #[test]
    fn what_is_no_mode_is_answered_with_what_to_write() {
        for (source, expected) in [
            ("\"read\"", "a mode has no quotes: write `mode = read`"),
            ("\"semaphore(5)\"", "a mode has no quotes: write `mode = semaphore(5)`"),
            ("\"READ\"", "write `mode = read`"),
            ("Read", "write `mode = read`"),
            ("Mode::Write", "write `mode = write`"),
            ("reader", "write `mode = read`"),
            ("shared", "write `mode = read`"),
            ("mutex", "write `mode = exclusive`"),
            ("LockType::ReadWrite", "`mode = read` on the functions that read"),
            (
                "semaphore",
                "how many may hold the lock at once: write `mode = semaphore(5)`",
            ),
            ("Mode::Semaphore(7)", "write `mode = semaphore(7)`"),
            ("permits(7)", "write `mode = semaphore(7)`"),
            ("semaphore()", "takes one number"),
            ("semaphore(1, 2)", "takes one number"),
            ("semaphore(0)", "lets nobody in: write `mode = semaphore(1)`"),
            ("semaphore(-1)", "1 or more"),
            ("semaphore(\"5\")", "1 or more"),
            ("semaphore(5u8)", "write `mode = semaphore(5)`"),
            ("semaphore(4294967296)", "give at most 4294967295"),
            ("fair", "write `fair`"),
            ("reentrant", "write `reentrant`"),
            ("owner(\"a\")", "write `owner = "),
            ("multi", "write `keys = ["),
            ("reed", "did you mean `mode = read`?"),
            ("semafore(5)", "did you mean `mode = semaphore(5)`?"),
            ("colour", "takes `exclusive`, `read`, `write`, or `semaphore(5)`"),
            ("5", "takes `exclusive`, `read`, `write`, or `semaphore(5)`"),
            ("\"some text\"", "takes `exclusive`, `read`, `write`, or `semaphore(5)`"),
        ] {
            let message = mode(source);
            assert!(message.contains(expected), "{source}: {message}");
        }
    }
}
