//! Scripted scenarios in virtual time: what happens is written down here and not drawn, and how soon something happens is asserted, since
//! time is exact. Real managers and real `redis` connections, over streams in memory, against the simulated server.

mod cluster;
mod following;
mod giving_back;
mod log;
mod logging;
mod passing;
mod releasing;
mod renewing;
mod shards;
mod waiting;
mod world;
