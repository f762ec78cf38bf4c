//! What a simulation consists of: a server, the network that leads to it, and the processes that use it.

pub mod network;
pub mod process;
pub mod server;
