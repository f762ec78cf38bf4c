//! What the compiler says about a wrong use of `#[distributed_lock]`, and what it says nothing about.
//!
//! `TRYBUILD=overwrite cargo test -p lock-ui` rewrites the messages.

#[test]
fn a_wrong_use_is_answered_with_what_to_write_instead() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
    cases.pass("pass/*.rs");
}
