//! What the sources keep to: the order of the rooms, and the list of public names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rooms;
mod surface;
