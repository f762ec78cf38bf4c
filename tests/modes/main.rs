//! What a call makes of its lock beyond taking it: passing through one that its call tree has, several keys at once, and a delay
//! after a holder that has expired.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod delay;
mod nested;
mod several;
