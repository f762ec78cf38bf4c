//! Beside the lock of before Redis 2.6.12, which other services still use.

mod contest;
mod rules;
