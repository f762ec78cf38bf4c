// The examples in the documentation are tested in tests/ui: here, cargo would build the runtime a second time for them.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]

mod args;
mod capture;
mod duration;
mod errors;
mod expand;
mod fallback;
mod format;
mod fragments;
mod function;
#[cfg(test)]
mod golden;
mod keys;
mod manifest;
mod mode;
mod model;
mod returns;
mod suggest;
mod synonyms;
mod template;

use proc_macro::TokenStream;

#[cfg_attr(not(doctest), doc = include_str!("distributed_lock.md"))]
#[proc_macro_attribute]
pub fn distributed_lock(attr: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attr.into(), item.into()).into()
}
