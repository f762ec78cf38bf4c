//! Keeps the expansion of nine functions in the repository, so that a review shows changes of the
//! generated code.
//!
//! `UPDATE_GOLDEN=1 cargo test -p lock-macros` rewrites them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, File, Item};

use crate::expand::expand;

fn expansion(source: &str) -> String {
    let mut file: File = syn::parse_str(source).unwrap();
    let Item::Fn(function) = &mut file.items[0] else {
        panic!("not a function")
    };
    let position = function
        .attrs
        .iter()
        .position(|attr| attr.path().is_ident("distributed_lock"));
    let attr = function.attrs.remove(position.unwrap());
    let expanded = expand(
        attr.meta.require_list().unwrap().tokens.clone(),
        function.to_token_stream(),
    );
    let mut expanded: File = syn::parse2(expanded).unwrap();
    PinAsCall.visit_file_mut(&mut expanded);
    prettyplease::unparse(&expanded).replace("::core::pin::pin(", "::core::pin::pin!(")
}

/// Turns `pin!(…)` into a call, so that the body inside is formatted: prettyplease does not format
/// macro calls.
struct PinAsCall;

impl VisitMut for PinAsCall {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Expr::Macro(call) = expr
            && call
                .mac
                .path
                .segments
                .last()
                .is_some_and(|segment| segment.ident == "pin")
        {
            let (path, tokens) = (&call.mac.path, &call.mac.tokens);
            *expr = syn::parse_quote!(#path(#tokens));
        }
        visit_mut::visit_expr_mut(self, expr);
    }
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let golden = folder.join(format!("{name}.expanded.rs"));
    let source = fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap();
    let expansion = expansion(&source);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &expansion).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert!(
        expected == expansion,
        "the expansion of `{name}` has changed; if that is right, run the test with UPDATE_GOLDEN=1. It is now:\n{expansion}"
    );
}

#[test]
fn a_free_function_expands_as_kept() {
    check("free_function");
}

#[test]
fn a_handler_expands_as_kept() {
    check("handler");
}

#[test]
fn a_method_expands_as_kept() {
    check("method");
}

#[test]
fn a_function_with_an_answer_expands_as_kept() {
    check("answered");
}

#[test]
fn an_async_trait_method_expands_as_kept() {
    check("async_trait");
}

#[test]
fn a_function_with_several_keys_expands_as_kept() {
    check("transfer");
}

#[test]
fn a_function_with_an_owner_expands_as_kept() {
    check("step");
}

#[test]
fn a_coalescing_function_expands_as_kept() {
    check("coalesced");
}

#[test]
fn a_function_with_a_list_of_keys_that_is_undone_expands_as_kept() {
    check("undone");
}
