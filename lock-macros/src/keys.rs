//! The values of `key` and `keys`.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, ExprPath, Ident, Lit, LitStr, Macro, Token};

use crate::args::{self, Args};
use crate::errors::Errors;
use crate::format::Format;
use crate::fragments;
use crate::model::is_constant;
use crate::suggest;
use crate::template::{Makes, Part, Template};

/// The keys that a call locks.
pub(crate) struct Keys {
    /// The template of `key`, or those of `keys`.
    pub(crate) templates: Vec<Template>,
    /// `true` if `keys` was given, instead of `key`.
    pub(crate) several: bool,
    /// The expression that makes the keys, if their number is known only at run time.
    pub(crate) list: Option<Expr>,
}

impl Keys {
    pub(crate) fn new(args: &Args, errors: &mut Errors) -> Self {
        if args.get("keys").is_some() {
            let list = args.value("keys", errors).filter(|value| may_make_keys(value)).cloned();
            if let Some(list) = &list {
                not_templates(list.to_token_stream(), errors);
            }
            return Self {
                templates: if list.is_some() {
                    Vec::new()
                } else {
                    several(args, errors)
                },
                several: true,
                list,
            };
        }
        Self {
            templates: vec![one(args, errors)],
            several: false,
            list: None,
        }
    }
}

/// Returns `true` if `value` can make keys at run time.
fn may_make_keys(value: &Expr) -> bool {
    !matches!(
        value,
        Expr::Array(_) | Expr::Lit(_) | Expr::Tuple(_) | Expr::Closure(_) | Expr::Range(_)
    )
}

/// Refuses `<…>` in the strings of an expression, where it would not be replaced: all calls would
/// have the same key.
fn not_templates(tokens: TokenStream, errors: &mut Errors) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => not_templates(group.stream(), errors),
            TokenTree::Literal(literal) => {
                if let Ok(Lit::Str(text)) = syn::parse_str(&literal.to_string())
                    && inserts_nothing(&text.value())
                {
                    errors.at(
                        literal.span(),
                        format!(
                            "`<…>` inserts nothing in an expression: write templates as a list, `{}`, or make the text by `format!(\"account:{{id}}\")`",
                            args::usage("keys")
                        ),
                    );
                }
            }
            _ => {}
        }
    }
}

/// Returns `true` if `text` has a `<…>` that looks like a template's and would insert nothing. The
/// `<` and `>` by which `format!` aligns do not count.
fn inserts_nothing(text: &str) -> bool {
    let has_brackets = |plain: &&str| plain.split_once('<').is_some_and(|(_, rest)| rest.contains('>'));
    Format::of(text).plain.iter().any(has_brackets)
}

fn one(args: &Args, errors: &mut Errors) -> Template {
    match args.value("key", errors) {
        None => Template::global(),
        Some(Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        })) => Template::parse(Makes::Key, text, errors),
        Some(value) if is_list(value) => {
            let written = match value {
                Expr::Array(_) => short(value).map(|list| format!("keys = {list}")),
                _ => None,
            };
            let written = written.unwrap_or_else(|| args::usage("keys").to_owned());
            errors.on(
                value,
                format!("`key` is one template: write `{written}` to lock several keys"),
            );
            Template::global()
        }
        Some(value) => {
            errors.on(value, unquoted("key", value));
            Template::global()
        }
    }
}

fn is_list(value: &Expr) -> bool {
    match value {
        Expr::Array(_) | Expr::Tuple(_) => true,
        Expr::Reference(reference) => is_list(&reference.expr),
        Expr::Macro(made) => made.mac.path.is_ident("vec"),
        _ => false,
    }
}

fn several(args: &Args, errors: &mut Errors) -> Vec<Template> {
    let usage = args::usage("keys");
    let elements = match args.value("keys", errors) {
        None => return Vec::new(),
        Some(Expr::Array(list)) => &list.elems,
        Some(
            value @ Expr::Lit(ExprLit {
                lit: Lit::Str(text), ..
            }),
        ) => {
            let text = text.token();
            errors.on(
                value,
                format!("`keys` takes a list: write `key = {text}` for one key, `{usage}` for several"),
            );
            return Vec::new();
        }
        Some(value) => {
            errors.on(
                value,
                format!(
                    "`keys` takes a list of templates: write `{usage}`. Where only the running program knows how many keys there are, it \
                     takes an expression that makes them, such as `keys = ids.iter().map(|id| format!(\"account:{{id}}\"))`"
                ),
            );
            return Vec::new();
        }
    };
    // If there is a `key` as well, another message says that they cannot be combined.
    if let (Some(only), 1, None) = (elements.first(), elements.len(), args.get("key")) {
        let written = match only {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text), ..
            }) => format!("key = {}", text.token()),
            _ => args::usage("key").to_owned(),
        };
        errors.on(elements, format!("one key needs no list: write `{written}`"));
    }
    if elements.is_empty()
        && let Some(list) = args.value("keys", errors)
    {
        errors.on(
            list,
            format!("`keys` is empty: name what is to be locked, such as `{usage}`"),
        );
    }
    let mut templates: Vec<Template> = Vec::new();
    for element in elements {
        let Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) = element
        else {
            if let Expr::Path(path) = element
                && names_a_constant(path)
            {
                errors.on(element, in_a_constant("keys"));
                continue;
            }
            errors.on(
                element,
                format!(
                    "`keys` takes templates in quotes: write `{}`",
                    example(element).unwrap_or_else(|| usage.to_owned())
                ),
            );
            continue;
        };
        let template = Template::parse(Makes::Key, text, errors);
        if templates.iter().any(|other| other.text == template.text) {
            errors.on(
                text,
                format!("`keys` names {} twice: leave one of them out", text.token()),
            );
        } else {
            templates.push(template);
        }
    }
    templates
}

/// Returns the code that makes the key of one `item` of the list that the template would insert.
pub(crate) fn for_each(template: &Template) -> Option<String> {
    let text = match &*template.parts {
        [Part::Insert(_)] => "",
        [Part::Text(text), Part::Insert(_)] if text.len() <= 40 => text,
        _ => "…:",
    };
    let text = text.replace('{', "{{").replace('}', "}}") + "{item}";
    (template.makes == Makes::Key).then(|| format!("format!({text:?})"))
}

/// Returns the message for a template that is not a string.
pub(crate) fn unquoted(name: &str, value: &Expr) -> String {
    match value {
        Expr::Reference(reference) => return unquoted(name, &reference.expr),
        Expr::Macro(made) if !is_formatting(&made.mac) => {
            return format!(
                "`{name}` takes a template in quotes, which is read before any macro in it is: give the macro's value a name, \
                 `const PLACE: &str = {};`, and write `{name} = \"<PLACE>\"`",
                short(value).unwrap_or_else(|| "…".to_owned())
            );
        }
        Expr::Macro(_) => {
            return match example(value) {
                Some(text) => format!("`{name}` is a template, which inserts values itself: write `{name} = {text}`"),
                None => format!(
                    "`{name}` is a template, which inserts values itself: names, their fields and methods, such as in `{}`",
                    args::usage(name)
                ),
            };
        }
        Expr::Path(path) if names_a_constant(path) => return in_a_constant(name),
        _ => {}
    }
    let example = match value {
        Expr::Path(_) => example(value).map(|text| format!("{name} = {text}")),
        _ => None,
    };
    let example = example.unwrap_or_else(|| args::usage(name).to_owned());
    format!("`{name}` takes a template in quotes: write `{example}`")
}

fn names_a_constant(path: &ExprPath) -> bool {
    let last = path.path.segments.last();
    last.is_some_and(|last| is_constant(&last.ident))
}

/// Returns the message for a constant, which may contain a template.
fn in_a_constant(name: &str) -> String {
    format!(
        "a template is read from the attribute itself, not from a constant: write it here in quotes, such as `{}`",
        args::usage(name)
    )
}

/// Returns a template that inserts `value`, if `value` is a name, a field, or a string that a macro
/// makes of those.
fn example(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => path.path.get_ident().map(|name| format!("\"<{name}>\"")),
        Expr::Field(_) => short(value).map(|field| format!("\"<{field}>\"")),
        Expr::Macro(made) if made.mac.path.is_ident("concat") => concatenated(&made.mac),
        Expr::Macro(made) if made.mac.path.is_ident("format") => formatted(&made.mac),
        _ => None,
    }
    .filter(|text| text.len() <= 60)
}

/// Returns `true` if a template can express the output of `mac`.
fn is_formatting(mac: &Macro) -> bool {
    ["format", "format_args", "concat"]
        .iter()
        .any(|name| mac.path.is_ident(name))
}

/// Returns the text of `concat!("…", "…")`.
fn concatenated(mac: &Macro) -> Option<String> {
    let parts = mac
        .parse_body_with(Punctuated::<LitStr, Token![,]>::parse_terminated)
        .ok()?;
    let text: String = parts.iter().map(LitStr::value).collect();
    Some(format!("{text:?}"))
}

/// Returns the template with the same output as `format!("…{}…{name}…", …)`, if that inserts only
/// names and fields.
fn formatted(mac: &Macro) -> Option<String> {
    let arguments = mac
        .parse_body_with(|input: ParseStream<'_>| {
            Punctuated::<_, Token![,]>::parse_terminated_with(input, fragments::expr)
        })
        .ok()?;
    let mut arguments = arguments.iter();
    let Expr::Lit(ExprLit {
        lit: Lit::Str(text), ..
    }) = arguments.next()?
    else {
        return None;
    };
    let text = text.value();
    let (mut template, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find(['{', '}', '<', '>']) {
        let (plain, tail) = rest.split_at(at);
        template.push_str(plain);
        let doubled = ["{{", "}}"].into_iter().find(|twice| tail.starts_with(twice));
        rest = if let Some(twice) = doubled {
            template.push_str(&twice[1..]);
            &tail[2..]
        } else if let Some(tail) = tail.strip_prefix('{') {
            let (inside, tail) = tail.split_once('}')?;
            match inside.split(':').next()? {
                "" => template.push_str(example(arguments.next()?)?.trim_matches('"')),
                name => template.extend(["<", &syn::parse_str::<Ident>(name).ok()?.to_string(), ">"]),
            }
            tail
        } else {
            template.push_str(&tail[..1].repeat(2));
            &tail[1..]
        };
    }
    template.push_str(rest);
    arguments.next().is_none().then(|| format!("{template:?}"))
}

fn short(value: &Expr) -> Option<String> {
    let written = suggest::written(value);
    (written.len() <= 60).then_some(written)
}
