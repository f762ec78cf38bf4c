//! Writes the locked function. What can live in the runtime does; what is here needs the user's own tokens.

use std::time::Duration;

use proc_macro2::{Group, Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Lifetime, Type, TypeInfer};

use crate::duration::DurationArg;
use crate::fallback;
use crate::function::Form;
use crate::mode::Mode;
use crate::model::{Model, OnBusy, OnLost, Release, Terms};
use crate::template::{Part, Template};

/// The whole macro.
pub(crate) fn expand(attr: TokenStream, item: TokenStream) -> TokenStream {
    match Model::new(attr, item.clone()) {
        Ok(model) => model.expand(),
        Err(error) => fallback::emit(&error, item),
    }
}

/// A name that neither sees nor is seen by the user's.
fn local(name: &str) -> Ident {
    Ident::new(&format!("__lock_{name}"), Span::mixed_site())
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

    /// The statements of an `async` block that runs `body` under the lock.
    ///
    /// The body takes the arguments before the lock is waited for, so that the outer future does not store them a
    /// second time. It is awaited where it is pinned, so that the outer future contains it once. It is dropped at
    /// the end of the inner block, and every argument with it: before the release.
    fn locked(&self, body: &TokenStream) -> TokenStream {
        let private = self.private();
        let [call, held, granted, pinned, ended, error, flight] =
            ["call", "held", "granted", "body", "ended", "error", "flight"].map(local);
        let (site, request, policy, body) = (self.site(), self.call(), self.policy(), self.body(body));
        let (enter, refused, parted, returned) = match &self.on_busy {
            OnBusy::Coalesce => {
                // rustc's complaint about a result that cannot be copied belongs to the return type.
                let place = Span::call_site().located_at(self.returned());
                (
                    quote_spanned! { place=> #call.coalesce(&#pinned) },
                    quote! { (#ended) => #ended },
                    quote! { let (#held, #flight) = #private::part(#held); },
                    quote! { #private::land(#flight, #ended) },
                )
            }
            _ => (
                quote! { #call.enter() },
                quote! { (#error) => #private::Ended::Cancelled(#error) },
                TokenStream::new(),
                quote! { #ended },
            ),
        };
        quote! {
            #site
            let #call = #request;
            // Outside of the block: in every end the body is dropped first, and the lock is released after it.
            let mut #held = ::core::option::Option::None;
            let #ended = {
                let #pinned = ::core::pin::pin!(async move { #body });
                match #enter.await {
                    ::core::result::Result::Ok(#granted) => #held.insert(#granted).run(#pinned).await,
                    ::core::result::Result::Err #refused,
                }
            };
            #parted
            let #ended = #private::leave(#held, #ended).await;
            #private::returned(#returned, #policy)
        }
    }

    /// What the generated code calls.
    fn private(&self) -> TokenStream {
        let krate = &self.krate;
        quote! { #krate::__private }
    }

    fn site(&self) -> TokenStream {
        let private = self.private();
        let template = self.keys.text();
        let function = format!("::{}", self.function.sig.ident.unraw());
        quote! {
            static __LOCK_SITE: #private::Site = #private::Site {
                template: #template,
                function: ::core::concat!(::core::module_path!(), #function),
            };
        }
    }

    /// The key and everything else that the attribute says, computed before the body takes the arguments.
    fn call(&self) -> TokenStream {
        let private = self.private();
        let keys: Vec<_> = self.keys.templates.iter().map(|key| key.builder(&private)).collect();
        let (call, call_on, keys) = if self.keys.several {
            (quote! { call_all }, quote! { call_all_on }, quote! { [#(#keys),*] })
        } else {
            (quote! { call }, quote! { call_on }, quote! { #(#keys)* })
        };
        let settings = self.terms.settings(&private);
        let owner = self.owner.as_ref().map(|owner| {
            let owner = owner.builder(&private);
            quote! { .owner(#owner) }
        });
        let on = |manager: TokenStream| quote! { #private::#call_on(#manager, &__LOCK_SITE, #keys) #owner #settings };
        let call = match &self.manager {
            None => quote! { #private::#call(&__LOCK_SITE, #keys) #owner #settings },
            Some(Expr::Reference(manager)) => on(manager.to_token_stream()),
            // What has a place must stay there, and a call's value may be the manager or lead to it.
            Some(
                manager @ (Expr::Path(_)
                | Expr::Field(_)
                | Expr::Index(_)
                | Expr::Call(_)
                | Expr::MethodCall(_)
                | Expr::Macro(_)),
            ) => on(quote! { &#manager }),
            Some(manager) => {
                let found = local("manager");
                let call = on(quote! { &#found });
                quote! { match #manager { #found => #call } }
            }
        };
        let borrowed = self.parameters.borrow(&self.used);
        if borrowed.is_empty() {
            call
        } else {
            quote! { { #borrowed #call } }
        }
    }

    /// What becomes of a lock error. rustc's complaint about it belongs to the return type, or to the function that
    /// answers.
    fn policy(&self) -> TokenStream {
        let place = match &self.on_busy {
            OnBusy::Function(path) => path.span(),
            _ => self.returned(),
        };
        let policy = match &self.on_busy {
            OnBusy::Error | OnBusy::Coalesce => quote! { OrError },
            OnBusy::Skip => quote! { OrSkip },
            OnBusy::Function(_) => quote! { OrElse },
        };
        let private = self.private();
        let policy = quote! { #private::#policy }.into_iter().map(|mut token| {
            token.set_span(token.span().located_at(place));
            token
        });
        match &self.on_busy {
            OnBusy::Function(path) => {
                let place = Span::call_site().located_at(place);
                quote_spanned! { place=> #(#policy)*(#path) }
            }
            _ => policy.collect(),
        }
    }

    /// The place of the return type; of a function that names none, its own name.
    fn returned(&self) -> Span {
        self.output()
            .map_or_else(|| self.function.sig.ident.span(), Spanned::span)
    }

    /// The content of the body's `async` block.
    fn body(&self, user: &TokenStream) -> TokenStream {
        let output = self
            .output()
            .map_or_else(|| quote! { () }, |output| without_impl_trait(output).to_token_stream());
        let takes = &self.parameters.takes;
        let value = local("value");
        // A block with a label is never called an unnecessary one.
        let label = Lifetime::new("'__lock_body", Span::mixed_site());
        quote! {
            // Never runs: it tells `return` and `?` in the body their type, as a function's signature does.
            if let ::core::option::Option::Some(#value) = ::core::option::Option::None::<#output> {
                return #value;
            }
            #(#takes)*
            // In a `let`, so that what the last expression borrows ends before the arguments do, in every edition.
            let #value: #output = #label: #user;
            #[allow(unreachable_code)]
            #value
        }
    }
}

impl Template {
    /// `key().text(…).value(…)`
    fn builder(&self, private: &TokenStream) -> TokenStream {
        let place = Span::call_site().located_at(self.span);
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => quote! { .text(#text) },
            // rustc's complaint about a value belongs to the template.
            Part::Insert(insert) if insert.raw => quote_spanned! { place=> .raw(&#insert) },
            Part::Insert(insert) => quote_spanned! { place=> .value(&#insert) },
        });
        quote! { #private::key() #(#parts)* }
    }
}

impl Terms {
    /// `.lease(…).wait(…)`
    fn settings(&self, private: &TokenStream) -> TokenStream {
        let mut settings = match &self.mode {
            None | Some(Mode::Exclusive) => TokenStream::new(),
            Some(Mode::Read) => quote! { .read() },
            Some(Mode::Write) => quote! { .write() },
            Some(Mode::Semaphore(permits)) => quote! { .semaphore(#permits) },
        };
        if let Some(reentrant) = self.reentrant {
            settings.extend(quote! { .reentrant(#reentrant) });
        }
        for (name, duration) in [
            ("lease", &self.lease),
            ("wait", &self.wait),
            ("at_least", &self.at_least),
            ("lock_delay", &self.lock_delay),
        ] {
            if let Some(duration) = duration {
                let name = Ident::new(name, Span::call_site());
                settings.extend(quote! { .#name(#duration) });
            }
        }
        if let Some(renew) = self.renew {
            settings.extend(quote! { .renew(#renew) });
        }
        if let Some(max_renewals) = &self.max_renewals {
            settings.extend(quote! { .max_renewals(#max_renewals) });
        }
        if let Some(fencing) = self.fencing {
            settings.extend(quote! { .fencing(#fencing) });
        }
        if let Some(fair) = self.fair {
            settings.extend(quote! { .fair(#fair) });
        }
        if let Some(release) = self.release {
            let pipelined = matches!(release, Release::Pipelined);
            settings.extend(quote! { .pipelined(#pipelined) });
        }
        if let Some(on_lost) = self.on_lost {
            let on_lost = match on_lost {
                OnLost::Cancel => quote! { Cancel },
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
    quote! { ::core::time::Duration::new(#seconds, #nanos) }
}

/// `impl Trait` cannot be written in a `let`; the compiler finds the type itself.
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
