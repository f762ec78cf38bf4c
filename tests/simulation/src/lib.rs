//! What a simulation consists of: a server, a group of them with their sentinels, or a cluster, the network that leads there, and the processes
//! that use it.

pub mod cluster;
pub mod followers;
pub mod group;
pub mod network;
pub mod process;
pub mod sentinel;
pub mod server;
pub mod servers;
pub mod trace;
