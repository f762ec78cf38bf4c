//! Writes the locked function. Code that does not need the user's own tokens belongs in the
//! runtime.

use std::time::Duration;

use proc_macro2::{Group, Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Lifetime, Token, Type, TypeInfer};

use crate::duration::DurationArg;
use crate::fallback;
use crate::function::Form;
use crate::mode::Mode;
use crate::model::{LockOptions, Model, OnBusy, OnLost, Release};
use crate::template::{Part, Template};

/// Expands the attribute on its function.
pub(crate) fn expand(attr: TokenStream, item: TokenStream) -> TokenStream {
    match Model::new(attr, item.clone()) {
        Ok(model) => model.expand(),
        Err(error) => fallback::emit(error.as_ref(), item),
    }
}

/// Returns an identifier with mixed-site hygiene, which does not collide with the user's names.
fn local(name: &str) -> Ident {
    Ident::new(&format!("__lock_{name}"), Span::mixed_site())
}

/// Returns tokens that compile errors show at `place`.
fn located(tokens: TokenStream, place: Span) -> TokenStream {
    let located = tokens.into_iter().map(|mut token| {
        token.set_span(token.span().located_at(place));
        token
    });
    located.collect()
}

/// Returns the name under which the generated code calls the runtime's private module.
fn private() -> Ident {
    Ident::new("__lock_private", Span::call_site())
}

impl Model {
    fn expand(&self) -> TokenStream {
        let function = &self.function;
        let (attrs, inner_attrs, vis) = (&function.attrs, &function.inner_attrs, &function.vis);
        let mut sig = function.sig.clone();
        sig.inputs.clone_from(&self.parameters.inputs);
        let statements = match &self.form {
            Form::Async => self.locked(&function.body.to_token_stream()),
            Form::Boxed(boxed) => {
                let (before, pin, future) = (&boxed.before, &boxed.pin, &boxed.future);
                let (attrs, asyncness, capture) = (&future.attrs, &future.async_token, &future.capture);
                let locked = self.locked(&future.block.to_token_stream());
                quote! { #(#before)* #pin(#(#attrs)* #asyncness #capture { #locked }) }
            }
        };
        let mut block = Group::new(function.body.delimiter(), quote! { #(#inner_attrs)* #statements });
        block.set_span(function.body.span());
        quote! { #(#attrs)* #vis #sig #block }
    }

    /// Writes the statements of an `async` block that runs `body` under the lock.
    ///
    /// The body takes the arguments before the wait for the lock, so that the outer future does not
    /// store them a second time. It is awaited where it is pinned, so that the outer future
    /// contains it once. It is dropped at the end of the inner block, with every argument: before
    /// the release.
    fn locked(&self, body: &TokenStream) -> TokenStream {
        let private = private();
        let [call, held, granted, pinned, value, left, flight] =
            ["call", "held", "granted", "body", "value", "left", "flight"].map(local);
        // rustc points here if the future is not `Send` because it keeps a result that is not.
        let value = Ident::new(&value.to_string(), value.span().located_at(self.returned()));
        let (site, request, policy, body) = (self.site(), self.call(), self.policy(), self.future(body));
        let (ran, release, land) = if self.coalesce {
            // A compile error about a result that is not `Clone` belongs at the return type.
            let place = Span::call_site().located_at(self.returned());
            let body = Ident::new(&pinned.to_string(), pinned.span().located_at(place));
            let coalesce = located(quote! { #private::coalesce }, place);
            let item = local("item");
            let coalesce = quote_spanned! { place=> #coalesce(#call, &#body, #item) };
            (
                quote! {
                    fn #item() {}
                    match #coalesce.await {
                        ::core::result::Result::Ok(#granted) => (&mut #held).insert(#granted).run(#pinned).await,
                        ::core::result::Result::Err(#value) => #value,
                    }
                },
                quote! {
                    let (#held, #flight) = #private::part(#held);
                    let #left = #held.await;
                },
                quote! { #private::land(#flight, &#value, &#left); },
            )
        } else {
            (
                quote! { #private::run(#private::enter(#call).await, &mut #held, #pinned).await },
                quote! { let #left = #private::leave(#held).await; },
                TokenStream::new(),
            )
        };
        let returned = quote! { #private::returned(#value, #left, #policy) };
        let returned = if self.is_never() {
            quote! { match #returned {} }
        } else {
            returned
        };
        let (began, undo) = self.undo(&held, &value);
        let import = self.import();
        quote! {
            #import
            #site
            let #call = #request;
            // Declared outside of the inner block, so that the lock outlives the body: the body is
            // dropped with that block in every case, and the lock is released after it.
            let mut #held = ::core::option::Option::None;
            let #value = {
                let #pinned = ::core::pin::pin!(#body);
                #ran
            };
            #began
            #release
            #land
            #undo
            #returned
        }
    }

    /// Imports the runtime's private module, so that a wrong `crate` path causes one compile error.
    fn import(&self) -> TokenStream {
        let (krate, private) = (&self.krate, private());
        quote! { use #krate::__private as #private; }
    }

    /// Writes the statements before and after the release that call the `on_lost` function.
    fn undo(&self, held: &Ident, value: &Ident) -> (TokenStream, TokenStream) {
        let Some(OnLost::Function(function)) = &self.terms.on_lost else {
            return (TokenStream::new(), TokenStream::new());
        };
        let (private, began, error) = (private(), local("began"), local("error"));
        // A compile error about its signature belongs at the function's name.
        let place = Span::call_site().located_at(function.span());
        let given = Ident::new(&error.to_string(), error.span().located_at(place));
        let call = quote_spanned! { place=> let () = #function(#given).await; };
        (
            quote! { let #began = #held.is_some(); },
            quote! {
                let #error = #private::cancelled(#began, &#value);
                if let ::core::option::Option::Some(#error) = #error {
                    #call
                }
            },
        )
    }

    fn site(&self) -> TokenStream {
        let private = private();
        let templates = self.keys.templates.iter().map(|template| template.text.as_str());
        let function = format!("::{}", self.function.sig.ident.unraw());
        quote! {
            static __LOCK_SITE: #private::CallSite = #private::CallSite {
                templates: &[#(#templates),*],
                function: ::core::concat!(::core::module_path!(), #function),
            };
        }
    }

    /// Writes the call: the key and all other arguments, computed before the body takes the
    /// parameters.
    fn call(&self) -> TokenStream {
        let private = private();
        let keys: Vec<_> = self.keys.templates.iter().map(|key| key.builder(&private)).collect();
        let (call, call_on, keys) = if let Some(list) = &self.keys.list {
            (quote! { call_list }, quote! { call_list_on }, Self::texts(list))
        } else if self.keys.several {
            (quote! { call_all }, quote! { call_all_on }, quote! { [#(#keys),*] })
        } else {
            (quote! { call }, quote! { call_on }, quote! { #(#keys)* })
        };
        let settings = self.terms.settings(&private);
        let request = |call: TokenStream| match &self.owner {
            None => quote! { #call #settings },
            Some(owner) => {
                let owner = owner.builder(&private);
                quote! { #private::for_owner(#call, #owner) #settings }
            }
        };
        let call = match &self.manager {
            None => request(quote! { #private::#call(&__LOCK_SITE, #keys) }),
            Some(manager) => {
                let on = |manager: TokenStream| request(quote! { #private::#call_on(#manager, &__LOCK_SITE, #keys) });
                // A compile error about its type belongs at the manager.
                let place = Span::call_site().located_at(manager.span());
                match manager {
                    Expr::Reference(manager) => on(manager.to_token_stream()),
                    // A place expression must not be moved, and a call may return the manager or a
                    // value that dereferences to it.
                    Expr::Path(_)
                    | Expr::Field(_)
                    | Expr::Index(_)
                    | Expr::Call(_)
                    | Expr::MethodCall(_)
                    | Expr::Macro(_) => on(quote_spanned! { place=> &#manager }),
                    manager => {
                        let found = local("manager");
                        let found = Ident::new(&found.to_string(), found.span().located_at(place));
                        let call = on(quote_spanned! { place=> &#found });
                        quote! { match #manager { #found => #call } }
                    }
                }
            }
        };
        let borrowed = self.parameters.borrow(&self.used);
        if borrowed.is_empty() {
            call
        } else {
            quote! { { #borrowed #call } }
        }
    }

    /// Writes the expression for the keys that a list makes.
    fn texts(list: &Expr) -> TokenStream {
        let private = private();
        // A compile error about the items belongs at the list.
        let place = Span::call_site().located_at(list.span());
        let (import, items) = match list {
            // A place expression is only borrowed: its value belongs to the body.
            Expr::Path(_) | Expr::Field(_) | Expr::Index(_) => (
                quote! { use #private::Lists as _; },
                quote_spanned! { place=> #list.__lock_keys() },
            ),
            list => (TokenStream::new(), list.to_token_stream()),
        };
        let texts = located(quote! { #private::texts }, place);
        let texts = quote_spanned! { place=> #texts(#items) };
        // The import around the call, which ends before what the list borrows from, such as a mutex's guard.
        if import.is_empty() {
            texts
        } else {
            quote! { { #import #texts } }
        }
    }

    /// Writes the policy for a lock error. A compile error about it belongs at the return type, or
    /// at the `on_busy` function.
    fn policy(&self) -> TokenStream {
        let place = match &self.on_busy {
            OnBusy::Function(path) => path.span(),
            _ => self.returned(),
        };
        let policy = match &self.on_busy {
            OnBusy::Error => quote! { OrError },
            OnBusy::Skip => quote! { OrSkip },
            OnBusy::Function(_) => quote! { OrElse },
        };
        let private = private();
        let policy = located(quote! { #private::#policy }, place);
        match &self.on_busy {
            OnBusy::Function(path) => {
                let place = Span::call_site().located_at(place);
                let answer = if self.is_never() {
                    let error = local("error");
                    quote! { |#error| -> ::core::convert::Infallible { #path(#error) } }
                } else {
                    path.to_token_stream()
                };
                quote_spanned! { place=> #policy(#answer) }
            }
            _ => policy,
        }
    }

    /// Returns `true` if the function never returns.
    fn is_never(&self) -> bool {
        matches!(self.output(), Some(Type::Never(_)))
    }

    /// Returns the span of the return type or, without one, of the function's name.
    fn returned(&self) -> Span {
        self.output()
            .map_or_else(|| self.function.sig.ident.span(), Spanned::span)
    }

    /// Writes the body's `async` block. Its place is the body, for compile errors about it as a whole.
    fn future(&self, user: &TokenStream) -> TokenStream {
        // With the user's hygiene, not the macro's: in code of a macro, rustc names no variable in an
        // error about borrows and moves, and offers no help.
        let place = self.function.body.span();
        // A keyword in the edition of the function, which may not be that of a macro with the body.
        let keyword = match &self.form {
            Form::Async => self.function.sig.asyncness.map(|keyword| keyword.span),
            Form::Boxed(boxed) => Some(boxed.future.async_token.span),
        };
        let keyword = Token![async](keyword.unwrap_or_else(Span::call_site).located_at(place));
        let body = self.body(user);
        quote_spanned! { place=> #keyword move { #body } }
    }

    /// Writes the content of the body's `async` block.
    fn body(&self, user: &TokenStream) -> TokenStream {
        let output = self.output().map_or_else(
            || quote! { () },
            |output| match output {
                // `!` can only be written as a return type.
                Type::Never(_) => quote! { ::core::convert::Infallible },
                output => without_impl_trait(output).to_token_stream(),
            },
        );
        let (private, takes) = (private(), &self.parameters.takes);
        let value = local("value");
        // A compile error about a returned reference belongs at the body.
        let last = Ident::new(&value.to_string(), value.span().located_at(self.function.body.span()));
        let way_out = Lifetime::new("'__lock_end", Span::mixed_site());
        // The user's block gets a label, since rustc would otherwise report its braces as
        // unnecessary. The span is the block's own, as for all compile errors about it.
        let user_label = Lifetime::new("'__lock_body", self.function.body.span());
        quote! {
            // Never runs: it gives `return` and `?` in the body their type, as a function's
            // signature does.
            if let ::core::option::Option::Some(#value) = ::core::option::Option::None::<#private::Box<#output>> {
                return *#value;
            }
            #takes
            // In a `let`, so that the borrows of the last expression end before the arguments, in
            // every edition.
            let #value: #output = #way_out: {
                // Never runs either: it gives the block a second way out, so that the code after a
                // body that never ends counts as reachable.
                if let ::core::option::Option::Some(#value) = ::core::option::Option::None::<#private::Box<#output>> {
                    break #way_out *#value;
                }
                #user_label: #user
            };
            #last
        }
    }
}

impl Template {
    /// Writes `(&mut key()).text(…).value(…)`. A method of a trait of the user's, implemented for
    /// every type and called on a `&self`, would go before the builder's own if the builder were not
    /// borrowed already.
    fn builder(&self, private: &Ident) -> TokenStream {
        let place = Span::call_site().located_at(self.span);
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => quote! { .text(#text) },
            // A compile error about a value belongs at the template.
            Part::Insert(insert) if insert.raw => quote_spanned! { place=> .raw(&#insert) },
            Part::Insert(insert) if insert.is_named => quote_spanned! { place=> .insert(&#insert) },
            Part::Insert(insert) => quote_spanned! { place=> .value(&#insert) },
        });
        quote! { (&mut #private::key()) #(#parts)* }
    }
}

impl LockOptions {
    /// Writes `.lease(…).wait(…)`.
    fn settings(&self, private: &Ident) -> TokenStream {
        let mut settings = match &self.mode {
            None => TokenStream::new(),
            Some(Mode::Exclusive) => quote! { .exclusive() },
            Some(Mode::Read) => quote! { .read() },
            Some(Mode::Write) => quote! { .write() },
            Some(Mode::Semaphore(permits)) => quote! { .semaphore(#permits) },
        };
        for (name, duration) in [
            ("lease", &self.lease),
            ("wait", &self.wait),
            ("at_least", &self.at_least),
            ("lock_delay", &self.lock_delay),
            ("max_hold", &self.max_hold),
        ] {
            if let Some(duration) = duration {
                let name = Ident::new(name, Span::call_site());
                settings.extend(quote! { .#name(#duration) });
            }
        }
        if let Some(max_renewals) = &self.max_renewals {
            settings.extend(quote! { .max_renewals(#max_renewals) });
        }
        if let Some(min_replicas) = &self.min_replicas {
            settings.extend(quote! { .min_replicas(#min_replicas) });
        }
        let pipelined = self.release.map(|release| matches!(release, Release::Pipelined));
        for (name, value) in [
            ("renew", self.renew),
            ("reentrant", self.reentrant),
            ("fencing", self.fencing),
            ("fair", self.fair),
            ("pipelined", pipelined),
        ] {
            if let Some(value) = value {
                let name = Ident::new(name, Span::call_site());
                settings.extend(quote! { .#name(#value) });
            }
        }
        if let Some(on_lost) = &self.on_lost {
            let on_lost = match on_lost {
                OnLost::Cancel | OnLost::Function(_) => quote! { Cancel },
                OnLost::Signal => quote! { Signal },
            };
            settings.extend(quote! { .on_lost(#private::OnLost::#on_lost) });
        }
        settings
    }
}

impl ToTokens for DurationArg {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(match self {
            Self::Literal(duration) => literal(*duration),
            Self::Expr(expr) => expr.to_token_stream(),
        });
    }
}

fn literal(duration: Duration) -> TokenStream {
    let seconds = Literal::u64_unsuffixed(duration.as_secs());
    let nanos = Literal::u32_unsuffixed(duration.subsec_nanos());
    quote! { const { ::core::time::Duration::new(#seconds, #nanos) } }
}

/// Replaces `impl Trait`, which cannot be written in a `let`, so that the compiler infers the type.
fn without_impl_trait(ty: &Type) -> Type {
    struct Infer;

    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if let Type::ImplTrait(found) = ty {
                let underscore_token = syn::token::Underscore(found.impl_token.span);
                *ty = Type::Infer(TypeInfer {
                    attrs: Vec::new(),
                    underscore_token,
                });
            }
            visit_mut::visit_type_mut(self, ty);
        }
    }

    let mut ty = ty.clone();
    Infer.visit_type_mut(&mut ty);
    ty
}
