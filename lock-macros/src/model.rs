//! The validated attribute on its function. Building one reports every mistake that the macro can
//! find.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, ExprLit, ExprPath, FnArg, GenericParam, Ident, Lit, Pat, Path, Signature, Type, TypeParamBound};

use crate::args::Args;
use crate::capture::{Name, Parameters};
use crate::duration::{self, DurationArg, Range};
use crate::errors::Errors;
use crate::function::{self, Form, Function};
use crate::keys::{self, Keys};
use crate::manifest;
use crate::mode::{self, Counted, Mode};
use crate::returns;
use crate::suggest;
use crate::synonyms;
use crate::template::{self, Makes, Part, Template};

pub(crate) struct Model {
    pub(crate) function: Function,
    pub(crate) form: Form,
    pub(crate) parameters: Parameters,
    pub(crate) keys: Keys,
    pub(crate) owner: Option<Template>,
    /// The names of parameters that the keys and the other arguments use.
    pub(crate) used: BTreeSet<String>,
    pub(crate) terms: LockOptions,
    pub(crate) on_busy: OnBusy,
    /// `true` if concurrent calls of this process get a clone of the result.
    pub(crate) coalesce: bool,
    pub(crate) manager: Option<Expr>,
    /// The path of the runtime.
    pub(crate) krate: Path,
}

/// The options of the lock. An option that is not given is left to the manager.
pub(crate) struct LockOptions {
    pub(crate) mode: Option<Mode>,
    pub(crate) reentrant: Option<bool>,
    pub(crate) lock_delay: Option<DurationArg>,
    pub(crate) lease: Option<DurationArg>,
    pub(crate) wait: Option<DurationArg>,
    pub(crate) at_least: Option<DurationArg>,
    pub(crate) renew: Option<bool>,
    pub(crate) max_renewals: Option<Expr>,
    pub(crate) max_hold: Option<DurationArg>,
    pub(crate) min_replicas: Option<Expr>,
    pub(crate) fencing: Option<bool>,
    pub(crate) fair: Option<bool>,
    pub(crate) release: Option<Release>,
    pub(crate) on_lost: Option<OnLost>,
}

/// The handling of a lock error.
pub(crate) enum OnBusy {
    Error,
    Skip,
    /// A function makes the return value from the error.
    Function(ExprPath),
}

#[derive(Clone)]
pub(crate) enum OnLost {
    Cancel,
    Signal,
    /// The body is cancelled, and a function is called after it.
    Function(ExprPath),
}

/// The moment at which the call regards its lock as released.
#[derive(Clone, Copy)]
pub(crate) enum Release {
    /// The store has confirmed the release.
    Confirmed,
    /// The release is queued on the connection.
    Pipelined,
}

impl Model {
    /// Validates the attribute. Returns `Err(None)` for a problem that rustc reports itself.
    pub(crate) fn new(attr: TokenStream, item: TokenStream) -> Result<Self, Option<syn::Error>> {
        let mut errors = Errors::default();
        let args = Args::parse(attr, &mut errors);
        // What is wrong may be the key.
        let has_read_all = errors.is_empty();
        let mut keys = Keys::new(&args, &mut errors);
        let mut owner = owner(&args, &mut errors);
        let mut terms = LockOptions::new(&args, &mut errors);
        let on_busy = on_busy(&args, &mut errors);
        let coalesce = flag(&args, "coalesce", &mut errors) == Some(true);
        let manager = args.value("manager", &mut errors).cloned();
        let krate = krate(&args, &mut errors);
        conflicts(&args, &terms, &mut errors);

        let function = function::parse(item)
            .map_err(|error| error.map(|error| errors.push(error)))
            .ok();
        let form = function.as_ref().and_then(|function| errors.take(function.form()));
        let (Some(function), Some(mut form)) = (function, form) else {
            return Err(errors.into_result().err());
        };
        let sig = &function.sig;
        if let Form::Boxed(boxed) = &form {
            boxed.check_returns(&sig.ident, &mut errors);
        }
        let (mut parameters, output) = match &form {
            Form::Async => (Parameters::of_async(sig, &function.attrs), returns::output(&sig.output)),
            Form::Boxed(boxed) => (Parameters::of_boxed(sig, &boxed.future.block), Some(&boxed.output)),
        };
        if has_read_all {
            check_key_is_named(&args, &parameters, sig, &mut errors);
        }
        let templates = keys.templates.iter_mut().chain(&mut owner);
        let mut used: BTreeSet<_> = templates
            .flat_map(|template| resolve(template, &parameters, sig, &mut errors))
            .collect();
        for expr in terms.expressions() {
            parameters.by_value(expr);
            used.extend(parameters.mentioned(expr));
        }
        if let Some(list) = &keys.list
            && let Some(problem) = no_list(list, sig)
        {
            errors.on(list, problem);
        }
        let others = keys.list.iter().chain(&manager);
        used.extend(others.flat_map(|expr| parameters.mentioned(expr)));
        if let Some(on_busy) = &on_busy {
            errors.take(returns::check(&sig.ident, output, on_busy, coalesce));
        }
        match &mut form {
            Form::Async => parameters.take(&used, &function.body.stream()),
            Form::Boxed(boxed) => parameters.mark_used_in(&used, &mut boxed.future.block),
        }
        errors.into_result()?;
        Ok(Self {
            form,
            parameters,
            keys,
            owner,
            used,
            terms,
            on_busy: on_busy.unwrap_or(OnBusy::Error),
            coalesce,
            manager,
            krate,
            function,
        })
    }

    /// Returns the type that the body returns.
    pub(crate) fn output(&self) -> Option<&Type> {
        match &self.form {
            Form::Async => returns::output(&self.function.sig.output),
            Form::Boxed(boxed) => Some(&boxed.output),
        }
    }
}

impl LockOptions {
    fn new(args: &Args, errors: &mut Errors) -> Self {
        let terms = Self {
            mode: args
                .value("mode", errors)
                .and_then(|value| errors.take(mode::parse(value))),
            reentrant: flag(args, "reentrant", errors),
            lock_delay: duration(args, "lock_delay", Range::FROM_ZERO, errors),
            lease: duration(args, "lease", Range::LEASE, errors),
            wait: duration(args, "wait", Range::FROM_ZERO, errors),
            at_least: duration(args, "at_least", Range::FROM_ZERO, errors),
            renew: args
                .value("renew", errors)
                .and_then(|value| errors.take(boolean("renew", value))),
            max_renewals: args
                .value("max_renewals", errors)
                .and_then(|value| errors.take(mode::count(value, &MAX_RENEWALS))),
            max_hold: duration(args, "max_hold", Range::LEASE, errors),
            min_replicas: args
                .value("min_replicas", errors)
                .and_then(|value| errors.take(mode::count(value, &MIN_REPLICAS))),
            fencing: flag(args, "fencing", errors),
            fair: flag(args, "fair", errors),
            release: args
                .value("release", errors)
                .and_then(|value| errors.take(release(value))),
            on_lost: args
                .value("on_lost", errors)
                .and_then(|value| errors.take(on_lost(value))),
        };
        for name in ["max_renewals", "max_hold"] {
            if let (Some(false), Some(argument)) = (terms.renew, args.get(name)) {
                errors.on(
                    &argument.name,
                    format!("`{name}` has no meaning with `renew = false`: a lock that is not renewed ends with its lease; leave one of them out"),
                );
            }
        }
        if let (Some(argument), Some(_)) = (args.get("max_hold"), args.get("max_renewals")) {
            errors.on(
                &argument.name,
                "`max_hold` and `max_renewals` both limit how long the body may run: give one of them",
            );
        }
        terms
    }

    /// Returns all values that may be expressions of the user's.
    fn expressions(&mut self) -> impl Iterator<Item = &mut Expr> {
        let durations = [
            &mut self.lease,
            &mut self.wait,
            &mut self.at_least,
            &mut self.lock_delay,
            &mut self.max_hold,
        ]
        .into_iter()
        .filter_map(|duration| match duration {
            Some(DurationArg::Expr(expr)) => Some(&mut **expr),
            _ => None,
        });
        let permits = match &mut self.mode {
            Some(Mode::Semaphore(permits)) => Some(&mut **permits),
            _ => None,
        };
        let numbers = self.max_renewals.iter_mut().chain(&mut self.min_replicas);
        durations.chain(numbers).chain(permits)
    }
}

fn duration(args: &Args, name: &str, range: Range, errors: &mut Errors) -> Option<DurationArg> {
    let value = args.value(name, errors)?;
    errors.take(duration::parse(name, value, range))
}

/// Reads a flag: `name` alone, or `name = true` or `false`.
fn flag(args: &Args, name: &str, errors: &mut Errors) -> Option<bool> {
    match &args.get(name)?.value {
        Some(value) => errors.take(boolean(name, value)),
        None => Some(true),
    }
}

fn boolean(name: &str, value: &Expr) -> syn::Result<bool> {
    if let Expr::Lit(ExprLit {
        lit: Lit::Bool(value), ..
    }) = value
    {
        return Ok(value.value);
    }
    let message = match word(value).as_deref() {
        Some(word @ ("true" | "false")) => format!("write `{name} = {word}`"),
        _ => format!("`{name}` takes `true` or `false`"),
    };
    Err(syn::Error::new_spanned(value, message))
}

const MAX_RENEWALS: Counted = Counted {
    zero: Some("`max_renewals` cannot be zero: write `renew = false` for a lock that is never renewed"),
    written: ("max_renewals = ", ""),
    name: "max_renewals",
    other: "`max_renewals` takes a number of 1 or more, such as `max_renewals = 30`",
};

const MIN_REPLICAS: Counted = Counted {
    zero: None,
    written: ("min_replicas = ", ""),
    name: "min_replicas",
    other: "`min_replicas` takes a number, such as `min_replicas = 1`",
};

/// Reports arguments that cannot be combined, each at the argument to remove.
fn conflicts(args: &Args, terms: &LockOptions, errors: &mut Errors) {
    let given = |name: &str| args.get(name).map(|argument| &argument.name);
    let (keys, owner) = (given("keys"), given("owner"));
    if keys.is_some() {
        if let Some(key) = given("key") {
            errors.on(key, "`key` and `keys` exclude each other: write all keys into `keys`");
        }
        if let Some(owner) = owner {
            errors.on(
                owner,
                "several keys are locked exclusively: leave `owner` out, or lock one `key`",
            );
        }
        if let (Some(name), Some(Mode::Read | Mode::Write | Mode::Semaphore(_))) = (given("mode"), &terms.mode) {
            errors.on(
                name,
                "several keys are locked exclusively: leave `mode` out, or lock one `key`",
            );
        }
        if let (Some(name), Some(true)) = (given("fair"), terms.fair) {
            errors.on(
                name,
                "several keys have no common queue: leave `fair` out, or lock one `key`",
            );
        }
    }
    if let (Some(name), Some(_)) = (given("mode"), owner) {
        errors.on(
            name,
            "`owner` is a mode of its own, in which the holders of one owner share the lock: leave `mode` out",
        );
    }
    if let (Some(name), Some(true), Some(mode @ (Mode::Read | Mode::Semaphore(_)))) =
        (given("fencing"), terms.fencing, &terms.mode)
    {
        errors.on(
            name,
            match mode {
                Mode::Read => {
                    "a fencing token tells one holder from the next, and there are many readers at once: leave `fencing` out, \
                     and fence what is written under `mode = write`"
                }
                _ => {
                    "a fencing token tells one holder from the next, and a semaphore has several at once: leave `fencing` out, \
                     or lock exclusively"
                }
            },
        );
    }
}

/// Reads the template of `owner`.
fn owner(args: &Args, errors: &mut Errors) -> Option<Template> {
    match args.value("owner", errors)? {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => Some(Template::parse(Makes::Owner, text, errors)),
        value => {
            errors.on(value, keys::unquoted("owner", value));
            None
        }
    }
}

fn on_busy(args: &Args, errors: &mut Errors) -> Option<OnBusy> {
    if args.get("on_busy").is_none() {
        return Some(OnBusy::Error);
    }
    let value = args.value("on_busy", errors)?;
    if let Expr::Path(path) = value
        && let Some(message) = synonyms::misspelt("on_busy", &path.path)
    {
        errors.on(value, message);
        return None;
    }
    let is_coalesce = word(value).is_some_and(|word| word == "coalesce");
    match value {
        Expr::Path(path) if path.path.is_ident("error") => return Some(OnBusy::Error),
        Expr::Path(path) if path.path.is_ident("skip") => return Some(OnBusy::Skip),
        Expr::Path(path) if !is_coalesce || is_function(&path.path) => return Some(OnBusy::Function(path.clone())),
        _ if is_coalesce => {
            errors.on(
                value,
                "`coalesce` is an argument of its own: write `coalesce` instead of this argument",
            );
            return None;
        }
        _ => {}
    }
    let remedy = "`on_busy` takes `error`, `skip`, or the path of a function from `LockError` to the return type";
    let word = match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => syn::parse_str::<Path>(&text.value()).ok(),
        _ => None,
    };
    errors.on(
        value,
        match word {
            Some(path) => format!(
                "{remedy}: write `on_busy = {}`",
                path.to_token_stream().to_string().replace(' ', "")
            ),
            None if matches!(value, Expr::Closure(_)) => format!("{remedy}: make the closure a function and name it"),
            None => remedy.to_owned(),
        },
    );
    None
}

fn on_lost(value: &Expr) -> syn::Result<OnLost> {
    const WORDS: [(&str, OnLost); 2] = [("cancel", OnLost::Cancel), ("signal", OnLost::Signal)];
    let word = word(value);
    let known = WORDS.iter().find(|(name, _)| word.as_deref() == Some(name));
    match (known, value) {
        (Some((name, on_lost)), Expr::Path(path)) if path.path.is_ident(name) => Ok(on_lost.clone()),
        (None, Expr::Path(path)) => match synonyms::misspelt("on_lost", &path.path) {
            Some(message) => Err(syn::Error::new_spanned(value, message)),
            None => Ok(OnLost::Function(path.clone())),
        },
        (Some(_), Expr::Path(path)) if is_function(&path.path) => Ok(OnLost::Function(path.clone())),
        (Some((name, _)), _) => Err(syn::Error::new_spanned(value, format!("write `on_lost = {name}`"))),
        (None, _) => Err(syn::Error::new_spanned(
            value,
            "`on_lost` takes `cancel`, which ends the body when the lock is lost, `signal`, which lets it go on and tells it, or the path of \
             an async function from `LockError`, which is called after the body was cancelled",
        )),
    }
}

/// Returns `true` if a path whose last word is one of ours means a function of the user's:
/// `orders::cancel`, but not `OnLost::Cancel`.
fn is_function(path: &Path) -> bool {
    let mut segments = path.segments.iter().rev();
    let is_lower = segments
        .next()
        .is_some_and(|last| last.ident.to_string().starts_with(char::is_lowercase));
    let module = segments.next();
    is_lower && module.is_some_and(|module| module.ident != "OnLost")
}

fn release(value: &Expr) -> syn::Result<Release> {
    const WORDS: [(&str, Release); 2] = [("confirmed", Release::Confirmed), ("pipelined", Release::Pipelined)];
    let word = word(value);
    let message = match (WORDS.iter().find(|(name, _)| word.as_deref() == Some(name)), value) {
        (Some((name, release)), Expr::Path(path)) if path.path.is_ident(name) => return Ok(*release),
        (Some((name, _)), _) => format!("write `release = {name}`"),
        (None, _) => "`release` takes `confirmed`, which waits for the store's answer, or `pipelined`, which returns once the release is \
             queued on the connection and logs a failure"
            .to_owned(),
    };
    Err(syn::Error::new_spanned(value, message))
}

/// Returns the word that `value` means in any of its forms: `signal`, `OnLost::Signal`, `"Signal"`.
fn word(value: &Expr) -> Option<String> {
    match value {
        Expr::Path(path) => path
            .path
            .segments
            .last()
            .map(|segment| suggest::fold(&segment.ident.to_string())),
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => Some(suggest::fold(&text.value())),
        _ => None,
    }
}

fn krate(args: &Args, errors: &mut Errors) -> Path {
    match args.value("crate", errors) {
        None => manifest::renamed()
            .and_then(|name| syn::parse_str(&format!("::{name}")).ok())
            .unwrap_or_else(|| syn::parse_quote!(::lock_runtime)),
        Some(Expr::Path(path)) if path.qself.is_none() => path.path.clone(),
        Some(value) => {
            errors.on(
                value,
                "`crate` takes the path where `lock_runtime` can be found, such as `crate = my_app::lock_runtime`",
            );
            syn::parse_quote!(::lock_runtime)
        }
    }
}

/// Resolves the names in the template, and returns the names of parameters among them.
fn resolve(template: &mut Template, parameters: &Parameters, sig: &Signature, errors: &mut Errors) -> BTreeSet<String> {
    let mut used = Used {
        parameters,
        names: BTreeSet::new(),
    };
    let (span, noun) = (template.span, template.makes.noun());
    let for_each = keys::for_each(template);
    for part in &mut template.parts {
        let Part::Insert(insert) = part else { continue };
        used.visit_expr(&insert.expr);
        if let Some(name) = template::base(&insert.expr).and_then(|base| base.path.get_ident())
            && let Some(problem) = problem(noun, name, parameters, sig)
        {
            errors.at(span, problem);
        } else if let Expr::Path(path) = &insert.expr
            && let Some(name) = path.path.get_ident()
        {
            if let Some((ty, advice)) = without_text(noun, name, for_each.as_deref(), sig) {
                errors.at(
                    span,
                    format!(
                        "`<{name}>` in the {noun}: `{ty}` has no `Display`, by which values are inserted: {advice}"
                    ),
                );
            }
            insert.is_named = is_named(name, sig);
        }
        Hygiene { parameters }.visit_expr_mut(&mut insert.expr);
    }
    // Beside its value, as in `shop#order#<order>`, a parameter's name is meant as text.
    let is_mistaken = |value: &str| {
        let word = value.split(['.', '[']).next().unwrap_or_default();
        is_of_parameter(value, parameters) && !used.names.contains(word)
    };
    let texts = template.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text),
        Part::Insert(_) => None,
    });
    let found = texts.flat_map(|text| {
        let braced = braced(text, is_mistaken).map(|found| (found, true));
        braced
            .into_iter()
            .chain(marked(text, is_mistaken).map(|found| (found, false)))
    });
    for ((found, inserted), is_braced) in found {
        let name = syn::parse_str(inserted).ok();
        let advice = match name.and_then(|name| without_text(noun, &name, None, sig)) {
            Some((_, advice)) => {
                format!("{advice}. If the text is meant, write `<TAG:raw>` with `const TAG: &str = \"{found}\";`")
            }
            None if is_braced => {
                format!("write `<{inserted}>` to insert the parameter, `{{<{inserted}>}}` for a hash tag of it")
            }
            None => format!("write `<{inserted}>` to insert the parameter"),
        };
        errors.at(
            span,
            format!("`{found}` in the {noun} is text, and the same for every call: {advice}"),
        );
    }
    used.names
}

/// Returns the first mistaken parameter name in braces in `text`, as `format!`, Spring and shells
/// write it, with the value to insert.
// Any other word in braces is a hash tag.
fn braced(text: &str, is_mistaken: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    text.match_indices('{').find_map(|(open, _)| {
        let (inside, _) = text[open + 1..].split_once('}')?;
        let value = inside.split(':').next().unwrap_or_default().trim();
        let value = value.trim_start_matches('#');
        let start = text[..open].trim_end_matches(['#', '$']).len();
        is_mistaken(value).then(|| (&text[start..open + inside.len() + 2], value))
    })
}

/// Returns the first mistaken parameter name in `text` behind a sign by which other languages insert it: Spring's `#id`, a shell's `$id`, a route's
/// or a query's `:id`, a template's `%id`.
// Any other colon separates the parts of a key, as in `order:id`.
fn marked(text: &str, is_mistaken: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    text.match_indices(['#', '$', '%', ':']).find_map(|(at, sign)| {
        if sign == ":" && !text[..at].ends_with(['/', ':']) {
            return None;
        }
        let rest = &text[at + 1..];
        let is_value = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let value = rest[..rest.find(|c| !is_value(c)).unwrap_or(rest.len())].trim_end_matches('.');
        is_mistaken(value).then(|| (&text[at..=at + value.len()], value))
    })
}

/// Returns `true` if `value` is a parameter, or a part of one or of `self`.
fn is_of_parameter(value: &str, parameters: &Parameters) -> bool {
    let word = value.split(['.', '[']).next().unwrap_or_default();
    let name = syn::parse_str::<Ident>(word.strip_prefix("r#").unwrap_or(word)).ok();
    let name = name.is_some_and(|name| parameters.find(&name).is_some_and(Name::is_users));
    name || word == "self" && value != word && parameters.receiver.is_some()
}

/// Reports a function whose calls differ in their arguments and lock the same key, because the attribute names none.
fn check_key_is_named(args: &Args, parameters: &Parameters, sig: &Signature, errors: &mut Errors) {
    if args.get("key").is_some() || args.get("keys").is_some() {
        return;
    }
    // What only says where the lock is kept does not tell the calls apart.
    let manager = args.get("manager").and_then(|argument| argument.value.as_ref());
    let of_manager = manager.map(|manager| parameters.mentioned(manager)).unwrap_or_default();
    let names = parameters.names.iter().filter(|name| name.is_users());
    let names = names.map(|name| name.ident.to_string());
    let names: Vec<String> = names.filter(|name| !of_manager.contains(name)).collect();
    if !names.is_empty() {
        let function = sig.ident.unraw();
        let one_of = if names.len() > 1 { "one of " } else { "" };
        let names = suggest::list(names.iter().map(String::as_str));
        errors.at(
            sig.ident.span(),
            format!(
                "every call of `{function}` would lock the same key, `global_lock`: write `key = \"{function}:<…>\"`, where `<…>` inserts \
                 {one_of}{names}, or `key = \"global_lock\"` if one lock is meant"
            ),
        );
    }
}

/// Returns the type of a parameter that has no `Display`, as far as its tokens show, and what to
/// insert instead; rustc reports the rest. `for_each` makes the key of one element `item`.
fn without_text(noun: &str, name: &Ident, for_each: Option<&str>, sig: &Signature) -> Option<(String, String)> {
    let (ty, word) = declared(name, sig)?;
    let advice = match (ty, word.as_str()) {
        (Type::Tuple(tuple), _) if tuple.elems.is_empty() => "leave it out".to_owned(),
        (Type::Tuple(_), _) => format!("insert its fields, `<{name}.0>:<{name}.1>`"),
        (_, "Option") => {
            let text = suggest::written(ty).ends_with("<String>");
            let borrowed = if text { ".as_deref()" } else { "" };
            let value = format!("<{name}{borrowed}.unwrap_or_default()>");
            format!(
                "insert whether there is a value, too: `<{name}.is_some()>:{value}`; the second alone makes one {noun} of `None` and the default value"
            )
        }
        (Type::Slice(_) | Type::Array(_), _) | (_, "Vec") => {
            let one = format!("insert one element, `<{name}[0]>`");
            for_each.map_or_else(
                || one.clone(),
                |key| format!("{one}, or lock a key for each: write `keys = {name}.iter().map(|item| {key})`"),
            )
        }
        _ => return None,
    };
    Some((suggest::written(ty), advice))
}

/// Returns the message for a parameter that is given as the list of keys and is none, as far as its
/// tokens show; rustc reports the rest.
fn no_list(list: &Expr, sig: &Signature) -> Option<String> {
    let Expr::Path(path) = list else { return None };
    let name = path.path.get_ident()?;
    let (ty, word) = declared(name, sig)?;
    match ty {
        _ if matches!(word.as_str(), "String" | "str") => {
            Some(format!("`{name}` is no list: write `key = \"<{name}>\"` for one key"))
        }
        Type::ImplTrait(taken) if taken.bounds.iter().any(is_iterator) => Some(format!(
            "`{}` can be used up by its owner only, and `{name}` belongs to the body: take a `Vec<String>` or a `&[String]`",
            suggest::written(ty)
        )),
        _ => None,
    }
}

/// Returns `true` for `Iterator<…>` and `IntoIterator<…>`.
fn is_iterator(bound: &TypeParamBound) -> bool {
    let TypeParamBound::Trait(bound) = bound else {
        return false;
    };
    let last = bound.path.segments.last();
    last.is_some_and(|last| last.ident.to_string().ends_with("Iterator"))
}

/// Returns the type of the parameter `name` behind its references, with the last word of its path.
fn declared<'a>(name: &Ident, sig: &'a Signature) -> Option<(&'a Type, String)> {
    let mut ty = sig.inputs.iter().find_map(|input| match input {
        FnArg::Typed(typed) => {
            matches!(&*typed.pat, Pat::Ident(pattern) if pattern.ident == *name).then_some(&*typed.ty)
        }
        FnArg::Receiver(_) => None,
    })?;
    while let Type::Reference(reference) = ty {
        ty = &reference.elem;
    }
    let word = match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last()?.ident.to_string(),
        _ => String::new(),
    };
    Some((ty, word))
}

/// Returns `true` if the type of the parameter `name` is one that its path names, and no type parameter, as far as
/// the tokens show: those of an `impl` block are not among them.
fn is_named(name: &Ident, sig: &Signature) -> bool {
    let Some((Type::Path(path), word)) = declared(name, sig) else {
        return false;
    };
    // Of the others, rustc knows more.
    let is_plain = path.path.get_ident().is_some() && !["Self", "Path", "PathBuf"].contains(&&*word);
    is_plain && word.len() > 1 && !sig.generics.type_params().any(|param| param.ident == word)
}

/// Returns the reason why `name` has no meaning in the key, or owner, of this function.
fn problem(noun: &str, name: &Ident, parameters: &Parameters, sig: &Signature) -> Option<String> {
    let function = &sig.ident;
    if name == "self" {
        let problem = format!("`self` in the {noun}: `{function}` has no `self` parameter");
        return parameters.receiver.is_none().then_some(problem);
    }
    let constant = |param: &GenericParam| matches!(param, GenericParam::Const(param) if param.ident == *name);
    if parameters.find(name).is_some() || is_constant(name) || sig.generics.params.iter().any(constant) {
        return None;
    }
    let users = || parameters.names.iter().filter(|name| name.is_users());
    let names: Vec<String> = users().map(|name| name.ident.unraw().to_string()).collect();
    let names = || names.iter().map(String::as_str);
    let word = name.to_string();
    let known = if names().next().is_none() {
        format!("`{function}` has no parameters")
    } else {
        let (noun, verb) = if names().count() == 1 {
            ("parameter", "is")
        } else {
            ("parameters", "are")
        };
        format!("the {noun} of `{function}` {verb} {}", suggest::list(names()))
    };
    let of_self = || format!("; write `<self.{word}>` for a field of `self`");
    let field = parameters.receiver.map(|_| of_self()).unwrap_or_default();
    Some(match suggest::nearest(&word, names()) {
        Some(near) => format!(
            "unknown name `{word}` in the {noun}: did you mean `{near}`? {}",
            capitalised(&known)
        ),
        None => format!("unknown name `{word}` in the {noun}: {known}{field}"),
    })
}

fn capitalised(text: &str) -> String {
    text.strip_prefix("the ")
        .map_or_else(|| text.to_owned(), |rest| format!("The {rest}"))
}

/// Returns `true` for names such as `REGION`, which Rust's naming rules reserve for constants.
pub(crate) fn is_constant(name: &Ident) -> bool {
    let name = name.to_string();
    name.contains(|c: char| c.is_uppercase()) && !name.contains(|c: char| c.is_lowercase())
}

/// Collects the parameters that an expression uses.
struct Used<'a> {
    parameters: &'a Parameters,
    names: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Used<'_> {
    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        if let Some(name) = path.path.get_ident().and_then(|ident| self.parameters.find(ident)) {
            self.names.insert(name.ident.to_string());
        }
        visit::visit_expr_path(self, path);
    }
}

/// Makes names in the template refer to the parameters even if a `macro_rules!` has produced one of
/// the two.
struct Hygiene<'a> {
    parameters: &'a Parameters,
}

impl VisitMut for Hygiene<'_> {
    fn visit_expr_path_mut(&mut self, path: &mut ExprPath) {
        if let Some(ident) = path.path.get_ident() {
            let meant = match (self.parameters.find(ident), self.parameters.receiver) {
                (Some(name), _) => Some(name.ident.span()),
                (None, Some(receiver)) if ident == "self" => Some(receiver.span),
                _ => None,
            };
            if let (Some(meant), Some(segment)) = (meant, path.path.segments.first_mut()) {
                segment.ident.set_span(segment.ident.span().resolved_at(meant));
            }
        }
        visit_mut::visit_expr_path_mut(self, path);
    }
}
