//! The log of what was written, replicas, and restarts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::session::{OPERATOR, Session};
use super::{Caller, Engine};
use crate::server::command::Command;
use crate::server::data::Data;
use crate::server::log::{Kept, Log, Transaction};
use crate::server::resp::Reply;

/// How much of its master's log a replica has.
#[derive(Debug, Default)]
pub(super) struct Acknowledged(AtomicUsize);

impl Engine {
    /// Notes a command that does again what has been done, at whatever time.
    pub fn record(&mut self, words: &[&[u8]]) {
        let is_wanted = self.script.as_ref().is_none_or(|script| script.replicates);
        if is_wanted && !self.is_applying {
            self.transaction.add(words);
        }
    }

    pub(super) fn commit(&mut self) {
        if !self.transaction.is_empty() {
            let transaction = std::mem::take(&mut self.transaction);
            self.log.add(transaction, &self.data);
        }
    }

    /// Does what another server has done.
    fn apply(&mut self, transaction: Transaction) {
        self.is_applying = true;
        let caller = Caller {
            id: OPERATOR,
            is_3: false,
        };
        for words in transaction.commands() {
            if let Ok(command) = Command::find(&words, self.version) {
                drop((command.run)(self, &caller, &words));
            }
        }
        self.is_applying = false;
        self.log.add(transaction, &self.data);
    }

    /// Returns how much has been written.
    pub fn offset(&self) -> usize {
        self.log.offset()
    }

    /// Makes this server a replica that has all of the master's data.
    pub fn follow(&mut self, master: &Self) {
        self.state.follows = Some(true);
        self.data = master.data.clone();
        self.log = Log::new(self.data.clone(), master.offset());
        self.flushed();
        self.acknowledge(master);
    }

    /// Does at most so many of the steps that the master is ahead, or copies all of its data if the master has forgotten
    /// the first of these steps. Returns how many are left.
    pub fn catch_up(&mut self, master: &Self, most: usize) -> usize {
        let steps: Option<Vec<Transaction>> = master
            .log
            .since(self.offset())
            .map(|steps| steps.take(most).cloned().collect());
        match steps {
            Some(steps) => steps.into_iter().for_each(|step| self.apply(step)),
            None => self.follow(master),
        }
        self.acknowledge(master);
        master.offset().saturating_sub(self.offset())
    }

    /// Tells the master how much of its log this replica has.
    fn acknowledge(&mut self, master: &Self) {
        let mut replicas = master.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        replicas.retain(|replica| replica.strong_count() > 0);
        let mine = self
            .acknowledged
            .take()
            .filter(|mine| replicas.iter().any(|replica| replica.as_ptr() == Arc::as_ptr(mine)));
        let mine = mine.unwrap_or_else(|| {
            let mine = Arc::default();
            replicas.push(Arc::downgrade(&mine));
            mine
        });
        mine.0.store(self.offset(), Ordering::Relaxed);
        self.acknowledged = Some(mine);
    }

    /// Returns how many replicas follow this server.
    pub fn replicas(&self) -> usize {
        self.replicas_with(0)
    }

    /// Returns how many of them have told that they have the log up to an offset.
    pub fn replicas_with(&self, offset: usize) -> usize {
        let replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |replica: &&std::sync::Weak<Acknowledged>| {
            replica
                .upgrade()
                .is_some_and(|acknowledged| acknowledged.0.load(Ordering::Relaxed) >= offset)
        };
        replicas.iter().filter(has).count()
    }

    /// Makes a connection wait until so many replicas have what it has written, and returns `false` if they have it.
    pub fn wait_for_replicas(&mut self, id: u64, waits_for: super::Waiting) -> bool {
        let Some(written) = self.sessions.get(&id).map(|session| session.written) else {
            return false;
        };
        let is_there = self.replicas_with(written) >= waits_for.replicas;
        let is_over = waits_for.until.is_some_and(|until| until <= self.now);
        // A script does not wait.
        if is_there || is_over || self.script.is_some() {
            return false;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.waits_for = Some(waits_for);
            self.waiting += 1;
        }
        true
    }

    /// Answers the connections that have waited long enough, and carries out what they have sent since.
    pub(super) fn answer_waiting(&mut self) {
        let mut due: Vec<u64> = Vec::new();
        for (id, session) in &self.sessions {
            let is_due = session.waits_for.is_some_and(|waits_for| {
                waits_for.until.is_some_and(|until| until <= self.now)
                    || self.replicas_with(session.written) >= waits_for.replicas
            });
            due.extend(is_due.then_some(*id));
        }
        for id in due {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            session.waits_for = None;
            self.waiting -= 1;
            let written = session.written;
            let replicas = self.replicas_with(written);
            self.counted.push((id, replicas));
            self.send(id, &Reply::count(replicas));
            self.carry_out_queued(id);
        }
    }

    fn carry_out_queued(&mut self, id: u64) {
        while let Some(session) = self.sessions.get_mut(&id) {
            if session.waits_for.is_some() {
                return;
            }
            let Some(words) = session.queued.pop_front() else {
                return;
            };
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.carry_out(id, &words);
        }
    }

    /// Returns when the first connection has waited long enough, which a call of `tick` then tells it.
    pub fn next_deadline(&self) -> Option<std::time::Duration> {
        let sessions = self.sessions.values();
        sessions
            .filter_map(|session| session.waits_for.and_then(|waits_for| waits_for.until))
            .min()
    }

    /// Makes a replica a master.
    pub fn promote(&mut self) {
        self.state.follows = None;
        self.state.master.clear();
        self.acknowledged = None;
    }

    /// Begins anew with some of the data, without scripts and connections.
    pub fn restart(&mut self, kept: Kept) {
        let data = match kept {
            Kept::All => self.data.clone(),
            Kept::Nothing => Data::default(),
            Kept::Until(offset) => {
                let mut old = Self::new(self.version, self.scripts.clone());
                let (base, steps) = self.log.until(offset);
                old.data = base;
                steps.for_each(|step| old.apply(step.clone()));
                old.data
            }
        };
        self.sessions.retain(|id, _| *id == OPERATOR);
        self.sessions.entry(OPERATOR).or_insert_with(|| Session::new(true));
        self.waiting = 0;
        self.readers.clear();
        self.scripts.forget();
        self.next = 1;
        self.log = Log::new(data.clone(), self.offset());
        self.data = data;
        self.acknowledged = None;
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
