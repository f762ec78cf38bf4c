//! Annotated functions of every form in a crate that forbids every warning: `cargo clippy` on it
//! tests that the generated code triggers no lint, and hides none in the user's own code.

#![deny(warnings, clippy::all, clippy::pedantic, clippy::nursery)]
#![deny(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    unused_lifetimes,
    unused_results,
    trivial_casts,
    single_use_lifetimes,
    let_underscore_drop,
    elided_lifetimes_in_paths,
    keyword_idents,
    non_ascii_idents,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::str_to_string,
    clippy::let_underscore_must_use,
    clippy::semicolon_inside_block,
    clippy::semicolon_outside_block,
    clippy::as_conversions,
    clippy::large_stack_frames,
    clippy::redundant_type_annotations,
    clippy::pattern_type_mismatch,
    clippy::shadow_same,
    clippy::shadow_reuse,
    clippy::shadow_unrelated,
    clippy::unused_trait_names,
    clippy::multiple_inherent_impl,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::blanket_clippy_restriction_lints
)]

pub mod functions;
