//! The `#[distributed_lock]` attribute.
//!
//! Depend on `lock-runtime`, which re-exports it beside what the generated code calls.

mod args;
mod capture;
mod duration;
mod errors;
mod expand;
mod fallback;
mod function;
mod model;
mod returns;
mod suggest;
mod template;

use proc_macro::TokenStream;

/// Docs.
#[proc_macro_attribute]
pub fn distributed_lock(attr: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attr.into(), item.into()).into()
}
