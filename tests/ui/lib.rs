//! Nothing: this package is its compile tests.
