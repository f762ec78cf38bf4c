//! The servers of a world: one, a group of them, or a cluster.

use std::time::Duration;

use crate::cluster::{Cluster, NODES, node_address};
use crate::group::{Group, SENTINELS, sentinel_address};
use crate::sentinel::{Address, NAME};
use crate::server::Server;

/// The host of the only server.
const ALONE: &str = "simulated";

/// The servers that keep locks. Clones are the same ones.
#[derive(Clone)]
pub enum Servers {
    One(Server),
    Group(Group),
    Cluster(Cluster),
}

impl Servers {
    /// Returns all that can be connected to, with their addresses.
    pub fn places(&self) -> Vec<(Address, Server)> {
        match self {
            Self::One(server) => {
                let address = Address {
                    host: ALONE.to_owned(),
                    port: 6379,
                };
                vec![(address, server.clone())]
            }
            Self::Group(group) => group.places(),
            Self::Cluster(cluster) => cluster.places(),
        }
    }

    /// Returns the server that has a key: the only one, the one that was made the master last, or the node that has its slot.
    pub fn server_of(&self, key: &[u8]) -> Server {
        match self {
            Self::One(server) => server.clone(),
            Self::Group(group) => group.server(group.master()).clone(),
            Self::Cluster(cluster) => cluster.server_of(key).clone(),
        }
    }

    /// Returns those that have keys of their own.
    pub fn masters(&self) -> Vec<Server> {
        match self {
            Self::One(server) => vec![server.clone()],
            Self::Group(group) => vec![group.server(group.master()).clone()],
            Self::Cluster(cluster) => {
                let masters = cluster.masters().into_iter();
                masters.map(|number| cluster.node(number).clone()).collect()
            }
        }
    }

    /// Returns masters and replicas.
    pub fn all(&self) -> Vec<Server> {
        match self {
            Self::One(server) => vec![server.clone()],
            Self::Group(group) => group.servers().to_vec(),
            Self::Cluster(cluster) => cluster.nodes().to_vec(),
        }
    }

    /// Sets how old the data of all replicas are.
    pub fn lag(&self, lag: Duration) {
        match self {
            Self::One(_) => {}
            Self::Group(group) => group.lags(lag),
            Self::Cluster(cluster) => cluster.lags(lag),
        }
    }

    /// Returns the URL for a process that is told of so many addresses.
    pub fn url(&self, process: usize, named: usize) -> String {
        let hosts = |of: usize, address: fn(usize) -> Address| {
            let hosts = (process..process + named).map(|at| address(at % of).host);
            hosts.collect::<Vec<_>>().join(",")
        };
        match self {
            Self::One(_) => format!("redis://{ALONE}"),
            Self::Group(_) => format!("redis+sentinel://{}/{NAME}", hosts(SENTINELS, sentinel_address)),
            Self::Cluster(_) => format!("redis+cluster://{}", hosts(NODES, node_address)),
        }
    }

    /// Tells somebody of each step of the replicas.
    pub fn are_looked_at(&self, looks_on: impl Fn() + Send + Sync + 'static) {
        match self {
            Self::One(_) => {}
            Self::Group(group) => group.is_looked_at(looks_on),
            Self::Cluster(cluster) => cluster.is_looked_at(looks_on),
        }
    }

    /// Returns how many replicas each master has at least that lack nothing that it wrote longer ago than this.
    pub fn fresh_replicas(&self, lately: Duration) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Group(group) => group.fresh_replicas(lately),
            Self::Cluster(cluster) => cluster.fresh_replicas(lately),
        }
    }
}
