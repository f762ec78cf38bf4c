//! The judge of locks that several may hold at once. It stands at the door, on a server of its own,
//! and knows which holders can share a lock.
//!
//! A holder that enters states until when its lock is certainly valid, and states it again after
//! each renewal. A process that was killed inside therefore counts until then, and no longer: until
//! that moment, the lock must keep out every holder that cannot share it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use redis::FromRedisValue;

use crate::judge;
use crate::server::Server;

const SCRIPT: &str = include_str!("door.lua");

/// The judge, for holders in any process of this host. Each call blocks for one round trip.
#[derive(Clone)]
pub struct Door(Arc<Mutex<redis::Connection>>);

/// Who enters, and as what.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// Who: a name that is used once.
    pub name: String,
    /// As what: `x` for an exclusive lock, and else the class of its [`LockMode`](lock_runtime::LockMode).
    pub class: String,
    /// The fencing token, where there is one.
    pub token: Option<u64>,
    /// The locks that it holds.
    pub locks: Vec<String>,
}

/// Being inside. Dropping it is leaving.
#[must_use = "dropping it is leaving"]
pub struct Visit {
    door: Door,
    visitor: Visitor,
}

/// A moment on the wall clock, which all servers and processes of this host share, in microseconds.
///
/// The moment is taken first, so that it is never later than what `left` was true of.
#[must_use]
pub fn valid_until(left: impl FnOnce() -> Duration) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let until = now.unwrap_or_default() + left();
    u64::try_from(until.as_micros()).expect("the wall clock fits for a while")
}

impl Door {
    /// A judge on this server, which should serve nothing else.
    #[must_use]
    pub fn on(server: &Server) -> Self {
        Self::connect(&server.url())
    }

    /// The same judge, from another process.
    #[must_use]
    pub fn connect(url: &str) -> Self {
        Self(Arc::new(Mutex::new(judge::connection(url))))
    }

    /// Notes that somebody is inside from now on, whose lock is valid [until](valid_until) then.
    pub fn enter(&self, visitor: Visitor, until: u64) -> Visit {
        self.call("enter", &visitor, until);
        Visit {
            door: self.clone(),
            visitor,
        }
    }

    /// Every violation seen so far, in words.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.ask(&["LRANGE", "door:violations", "0", "-1"])
    }

    /// How many have entered.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.count("door:entries")
    }

    /// How many of them while somebody else was inside.
    #[must_use]
    pub fn shared(&self) -> usize {
        self.count("door:shared")
    }

    /// How many came, or said that they stay, when their lock was not valid any more: that is not judged.
    #[must_use]
    pub fn late(&self) -> usize {
        self.count("door:late")
    }

    /// Panics on any violation, or when fewer than `at_least` entries were seen.
    pub fn assert_clean(&self, at_least: usize) {
        judge::assert_clean(&self.violations(), self.entries(), at_least);
    }

    fn count(&self, key: &str) -> usize {
        self.ask::<Option<usize>>(&["GET", key]).unwrap_or(0)
    }

    fn call(&self, verb: &str, visitor: &Visitor, until: u64) {
        let token = visitor.token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        let until = until.to_string();
        let mut command = vec!["EVAL", SCRIPT, "0", verb, &visitor.name, &visitor.class, &token, &until];
        command.extend(visitor.locks.iter().map(String::as_str));
        self.ask::<()>(&command);
    }

    fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut *connection)
            .unwrap_or_else(|error| panic!("the judge's server failed: {error}"))
    }
}

impl Visit {
    /// Notes that the lock is now valid until a later moment.
    pub fn stay(&self, until: u64) {
        self.door.call("stay", &self.visitor, until);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A second panic would end the test process before it can say what the first was about.
        if !std::thread::panicking() {
            self.door.call("leave", &self.visitor, 0);
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit")
            .field("visitor", &self.visitor)
            .finish_non_exhaustive()
    }
}
