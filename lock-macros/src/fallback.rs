//! What is emitted when something is wrong: the errors, and the function as it was, so that nobody else sees an error.

use proc_macro2::TokenStream;

pub(crate) fn emit(error: &syn::Error, item: TokenStream) -> TokenStream {
    let mut tokens = error.to_compile_error();
    tokens.extend(item);
    tokens
}
