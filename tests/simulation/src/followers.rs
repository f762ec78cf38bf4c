//! What servers take in from the ones that they follow, step by step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::server::Server;

/// How often replicas take in what their masters have written, and nodes tell each other something.
const STEP: Duration = Duration::from_millis(3);

/// What several servers do all the time, until this is dropped.
#[derive(Default)]
pub struct Steps {
    task: Mutex<Option<AbortHandle>>,
    /// Is told after each step of the replicas, before masters answer those that wait for them.
    looks_on: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Drop for Steps {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        task.iter().for_each(AbortHandle::abort);
    }
}

impl Steps {
    /// Begins to call `step`, which belongs to `all`, as do these steps.
    pub fn begin<T: Send + Sync + 'static>(&self, all: &Arc<T>, step: impl Fn(Arc<T>) + Send + 'static) {
        let all = Arc::downgrade(all);
        let task = tokio::spawn(async move {
            loop {
                sleep(STEP).await;
                let Some(all) = all.upgrade() else { return };
                step(all);
            }
        });
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Tells somebody of each step of the replicas.
    pub fn are_looked_at(&self, looks_on: impl Fn() + Send + Sync + 'static) {
        *self.looks_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(looks_on));
    }

    /// Replicas have taken a step.
    pub fn look(&self) {
        let looks_on = self.looks_on.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(looks_on) = looks_on {
            looks_on();
        }
    }
}

/// What each of some servers follows, by their numbers.
pub struct Followers(Vec<Follower>);

#[derive(Default)]
struct Follower {
    /// The number of its master, unless it is one.
    of: Option<usize>,
    /// How old its data are.
    lag: Duration,
    /// How much its master had written, and when.
    seen: VecDeque<(Instant, usize)>,
}

impl Followers {
    /// Makes so many that follow nobody.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| Follower::default()).collect())
    }

    /// Returns the number of the server that one follows.
    pub fn of(&self, number: usize) -> Option<usize> {
        self.0[number].of
    }

    /// Sets how old the data of all are.
    pub fn lags(&mut self, lag: Duration) {
        for follower in &mut self.0 {
            follower.lag = lag;
        }
    }

    /// Makes a server a replica of another one, with all of that one's data.
    pub fn follows(&mut self, servers: &[Server], number: usize, master: usize) {
        servers[number].follow(&servers[master]);
        self.0[number].of = Some(master);
        self.0[number].seen.clear();
    }

    /// Makes a replica a master. What it has not taken in it never will.
    pub fn promote(&mut self, servers: &[Server], number: usize) {
        self.0[number].of = None;
        self.0[number].seen.clear();
        servers[number].change(|engine| engine.promote());
    }

    /// Takes in at once all that a server lacks.
    pub fn catch_up(&mut self, servers: &[Server], number: usize) {
        if let Some(of) = self.0[number].of {
            self.0[number].seen.clear();
            servers[number].catch_up(&servers[of], usize::MAX);
        }
    }

    /// Takes in what masters have written, but nothing from those that are cut off.
    pub fn take_in(&mut self, servers: &[Server], is_cut_off: impl Fn(usize) -> bool) {
        for (number, follower) in self.0.iter_mut().enumerate() {
            let Some(of) = follower.of.filter(|of| !is_cut_off(*of)) else {
                continue;
            };
            let (mine, master) = (&servers[number], &servers[of]);
            if !mine.is_there() || !master.is_there() {
                continue;
            }
            let written = master.read(|engine| engine.offset());
            if follower.seen.back().is_none_or(|(_, known)| *known < written) {
                follower.seen.push_back((Instant::now(), written));
            }
            let mut due = None;
            while let Some((at, offset)) = follower.seen.front().copied() {
                if at.elapsed() < follower.lag {
                    break;
                }
                follower.seen.pop_front();
                due = Some(offset);
            }
            if let Some(due) = due {
                let had = mine.read(|engine| engine.offset());
                mine.catch_up(master, due.saturating_sub(had));
            }
        }
    }

    /// Returns how many servers that are there follow this one, and lack nothing that it wrote longer ago than this.
    pub fn fresh(&self, servers: &[Server], of: usize, lately: Duration) -> usize {
        let is_old = |follower: &Follower| follower.seen.front().is_some_and(|(at, _)| at.elapsed() > lately);
        let all = self.0.iter().zip(servers);
        let fresh = all.filter(|(follower, server)| follower.of == Some(of) && server.is_there() && !is_old(follower));
        fresh.count()
    }
}
