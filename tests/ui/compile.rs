//! The compiler's messages about a wrong use of `#[distributed_lock]`. Uses that must compile without one are in `pass/`: examples of this
//! package, since a case that `trybuild` lets pass would have it build all dependencies anew.
//!
//! `TRYBUILD=overwrite cargo test -p lock-ui` rewrites the messages.

#[test]
fn a_wrong_use_is_answered_with_what_to_write_instead() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
}
