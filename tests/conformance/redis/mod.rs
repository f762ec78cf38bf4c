//! What the Redis store promises beyond the suite, and how managers reach its server.

mod connections;
mod fencing;
mod interop;
mod mark;
mod refusals;
mod shared;
mod store;
mod together;
