//! What connections have read, and are told of when it changes; and keys whose time is over.

use super::{Caller, Engine};
use crate::server::command::Command;
use crate::server::data::Value;
use crate::server::log::Log;
use crate::server::resp::Reply;
use crate::server::version::Version;

impl Engine {
    /// Returns what a key holds, unless its time is over.
    pub fn value(&mut self, key: &[u8]) -> Option<&mut Value> {
        if !self.is_applying && self.data.is_over(key, self.ms()) {
            // Only the master takes it out. Before 7.0, scripts on a replica find it until then.
            if self.state.follows.is_none() {
                self.expire(key);
            } else if !self.version.is_7() && self.script.is_some() {
                return self.data.get_mut(key);
            }
            return None;
        }
        self.data.get_mut(key)
    }

    fn expire(&mut self, key: &[u8]) {
        self.data.remove(key);
        self.record(&[b"DEL", key]);
        let origin = self.current.filter(|_| self.version.is_7());
        self.changed_by(key, origin);
    }

    /// Takes keys out whose time is over.
    pub(super) fn expire_all(&mut self) {
        if self.state.follows.is_some() {
            return;
        }
        while let Some(key) = self.data.next_over(self.ms()) {
            self.expire(&key);
        }
    }

    /// Tells those who have read a key that it has changed.
    pub fn changed(&mut self, key: &[u8]) {
        // A script's own changes are others' ones before 7.0.
        let is_own = self.version.is_7() || self.script.is_none();
        self.changed_by(key, self.current.filter(|_| is_own));
    }

    /// Does the same after the answer, where the server says so even before 7.0.
    pub fn changed_late(&mut self, key: &[u8]) {
        self.hold_back();
        self.changed(key);
        let pushes = self.held_back();
        self.after.extend(pushes);
    }

    fn changed_by(&mut self, key: &[u8], origin: Option<u64>) {
        for id in self.readers.remove(key).unwrap_or_default() {
            let Some(session) = self.sessions.get(&id) else {
                continue;
            };
            match session.tracking {
                Some(no_loop) if session.is_3 && !(no_loop && origin == Some(id)) => {
                    let keys = Reply::Array(vec![Reply::Bulk(key.to_vec())]);
                    let push = Reply::Push(vec![Reply::text("invalidate"), keys]);
                    self.push(id, push, self.version.is_7());
                }
                _ => {}
            }
        }
    }

    /// Tells all who have read anything that all keys are gone.
    pub fn flushed(&mut self) {
        self.readers.clear();
        let told: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, one)| one.tracking.is_some() && one.is_3)
            .map(|(id, _)| *id)
            .collect();
        for id in told {
            let push = Reply::Push(vec![Reply::text("invalidate"), Reply::Nil]);
            self.push(id, push, matches!(self.version, Version::Redis70 | Version::Valkey9));
        }
    }

    /// Another server takes over without a word, which has no data and was never asked.
    pub fn is_replaced_by_an_empty_one(&mut self) {
        self.readers.clear();
        self.data.clear();
        self.log = Log::new(self.data.clone(), self.offset());
    }

    pub(super) fn remember(&mut self, caller: &Caller, command: &Command, words: &[&[u8]]) {
        if self
            .sessions
            .get(&caller.id)
            .is_none_or(|session| session.tracking.is_none())
        {
            return;
        }
        // Before 7.2 it is the keys that the script was given.
        if let Some(script) = self.script.as_ref().filter(|_| !self.version.is_recent()) {
            for key in script.keys.clone() {
                self.readers.entry(key).or_default().insert(caller.id);
            }
            return;
        }
        for key in command.keys(words) {
            self.readers.entry(key.to_vec()).or_default().insert(caller.id);
        }
    }

    /// Forgets what was read where that is too much, and says so as if it had changed.
    pub(super) fn forget_some(&mut self) {
        while self.most_tracked > 0 && self.readers.len() > self.most_tracked {
            let Some((key, _)) = self.readers.first_key_value() else {
                return;
            };
            let key = key.clone();
            self.changed_by(&key, None);
        }
    }
}
