//! The output after an error: the messages, and the function as it was, so that code which calls it
//! causes no further errors.

use proc_macro2::TokenStream;
use quote::quote;

pub(crate) fn emit(error: Option<&syn::Error>, item: TokenStream) -> TokenStream {
    let mut tokens = error.map(syn::Error::to_compile_error).unwrap_or_default();
    // A parameter that only the key uses is not unused.
    tokens.extend(quote! { #[allow(unused)] });
    tokens.extend(item);
    tokens
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proc_macro2::TokenStream;

    use crate::expand::expand;

    fn tokens(source: &str) -> TokenStream {
        source.parse().unwrap()
    }

    #[test]
    fn the_function_is_emitted_as_it_was_behind_all_its_errors() {
        let function = "#[doc = \"a\"] pub async fn f(&self, (a, _): (u8, u8)) -> u8 { a. }";
        let expanded = expand(tokens("ttl = 5, key = \"<b>\""), tokens(function)).to_string();
        assert!(expanded.ends_with(&tokens(function).to_string()), "{expanded}");
        assert_eq!(expanded.matches("compile_error").count(), 3, "{expanded}");
    }

    #[test]
    fn a_body_that_does_not_parse_yet_stays_as_it_is() {
        let expanded = expand(TokenStream::new(), tokens("async fn f() -> R { let a = db. ; if }")).to_string();
        assert!(
            expanded.contains(&tokens("{ let a = db. ; if }").to_string()),
            "{expanded}"
        );
        assert!(!expanded.contains("compile_error"), "{expanded}");
    }

    #[test]
    fn what_is_not_even_a_function_is_emitted_as_it_was() {
        let item = "struct S { a: u8 }";
        let expanded = expand(TokenStream::new(), tokens(item)).to_string();
        assert!(expanded.ends_with(&tokens(item).to_string()), "{expanded}");
        assert_eq!(expanded.matches("compile_error").count(), 1, "{expanded}");
    }
}
