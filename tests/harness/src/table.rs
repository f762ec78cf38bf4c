//! Tests that differ in values only, as a table.

/// Makes a test of each case, `name: future;`, with its documentation and attributes.
#[macro_export]
macro_rules! cases {
    ($($(#[$attribute:meta])* $name:ident: $test:expr;)*) => {
        $(
            $(#[$attribute])*
            #[tokio::test]
            async fn $name() {
                $test.await;
            }
        )*
    };
}

/// Makes a module of tests for each stage, in which each promise is called with that stage:
/// `in_memory: Stage::memory(), on_a_server: Stage::server(); [a_promise, another_promise]`.
#[macro_export]
macro_rules! on_each {
    ($($stage:ident: $make:expr),*; $promises:tt) => {
        $(
            mod $stage {
                use super::*;

                $crate::on_each! { @ $make, $promises }
            }
        )*
    };
    (@ $make:expr, [$($promise:ident),* $(,)?]) => {
        $(
            #[tokio::test]
            async fn $promise() {
                super::$promise(&$make).await;
            }
        )*
    };
}
