//! One suite for every store, and the further promises of a manager on a real server: tokens,
//! connections, other clients.
//!
//! - [`suite`]: the promises of every store, and lists of them. A new store is a module below with `keeps_all!` and a
//!   [`Place`](place::Place), which makes clients of it.
//! - [`model`]: random histories, which are a part of the suite.
//! - [`memory`], [`redis`], [`legacy`]: what one store promises beyond it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[macro_use]
mod suite;

mod inspect;
mod legacy;
mod memory;
mod model;
mod place;
mod redis;

mod in_memory {
    keeps_all!(crate::place::InMemory::new());
}

mod on_a_server {
    keeps_all!(crate::place::AsTheDocumentedUser::start());
}

mod on_a_quorum_in_memory {
    keeps_what_a_quorum_offers!(crate::place::QuorumInMemory::new());
}

mod on_a_quorum_of_servers {
    keeps_what_a_quorum_grants_at_once!(crate::place::QuorumOfServers::start());
}

mod behind_a_cluster {
    keeps_all!(crate::place::BehindCluster::start());
}

mod behind_sentinels {
    keeps_all!(crate::place::BehindSentinels::start());
}
