//! The values of `key` and `keys`: what is locked.

use syn::{Expr, ExprLit, Lit};

use crate::args::{self, Args};
use crate::errors::Errors;
use crate::suggest;
use crate::template::{Makes, Template};

/// What a call locks.
pub(crate) struct Keys {
    /// The template of `key`, or those of `keys`.
    pub(crate) templates: Vec<Template>,
    /// Whether it was written as `keys`.
    pub(crate) several: bool,
}

impl Keys {
    pub(crate) fn new(args: &Args, errors: &mut Errors) -> Self {
        if args.get("keys").is_some() {
            return Self {
                templates: several(args, errors),
                several: true,
            };
        }
        Self {
            templates: vec![one(args, errors)],
            several: false,
        }
    }

    /// The templates as they were written.
    pub(crate) fn text(&self) -> String {
        let texts: Vec<_> = self.templates.iter().map(|template| template.text.as_str()).collect();
        texts.join(", ")
    }
}

fn one(args: &Args, errors: &mut Errors) -> Template {
    match args.value("key", errors) {
        None => Template::global(),
        Some(Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        })) => Template::parse(Makes::Key, text, errors),
        Some(value @ (Expr::Array(_) | Expr::Reference(_) | Expr::Tuple(_) | Expr::Macro(_))) => {
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
                    "`keys` takes a list of templates: write `{usage}`. Keys whose number only the running program knows \
                     are locked by `LockManager::lock_all`"
                ),
            );
            return Vec::new();
        }
    };
    if let (Some(only), 1) = (elements.first(), elements.len()) {
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

/// What to say about a template that is no text.
pub(crate) fn unquoted(name: &str, value: &Expr) -> String {
    let example = match value {
        Expr::Path(_) => example(value).map(|text| format!("{name} = {text}")),
        _ => None,
    };
    let example = example.unwrap_or_else(|| args::usage(name).to_owned());
    format!("`{name}` takes a template in quotes: write `{example}`")
}

/// A template that inserts `value`, where it is a name or a field.
fn example(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => path.path.get_ident().map(|name| format!("\"<{name}>\"")),
        Expr::Field(_) => short(value).map(|field| format!("\"<{field}>\"")),
        _ => None,
    }
}

fn short(value: &Expr) -> Option<String> {
    let written = suggest::written(value);
    (written.len() <= 60).then_some(written)
}
