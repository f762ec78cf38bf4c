//! What has happened in a run: always its hash, and its text if somebody reads it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What has happened to all servers of a run. Clones are one trace.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

struct Inner {
    began: Instant,
    hash: DefaultHasher,
    lines: Option<Vec<String>>,
    commands: u64,
    questions: u64,
}

impl Trace {
    /// Begins a trace. It has lines only if they are read.
    pub fn new(is_read: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            began: Instant::now(),
            hash: DefaultHasher::new(),
            lines: is_read.then(Vec::new),
            commands: 0,
            questions: 0,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let mut inner = self.inner();
        let at = inner.began.elapsed().as_secs_f64();
        if let Some(lines) = &mut inner.lines {
            lines.push(format!("{at:>10.6} {}", what()));
        }
    }

    /// Adds a command of a connection.
    pub fn add(&self, client: u64, words: &[&[u8]], is_question: bool) {
        let mut inner = self.inner();
        if is_question {
            inner.questions += 1;
        } else {
            inner.commands += 1;
        }
        let at = inner.began.elapsed();
        (at, client, words).hash(&mut inner.hash);
    }

    /// Returns the number of commands that servers have carried out.
    pub fn commands(&self) -> u64 {
        self.inner().commands
    }

    /// Returns the number of commands that sentinels have carried out.
    pub fn questions(&self) -> u64 {
        self.inner().questions
    }

    /// Takes the lines out, and returns their hash with that of all commands.
    pub fn take(&self) -> (u64, Vec<String>) {
        let mut inner = self.inner();
        let lines = inner.lines.as_mut().map(std::mem::take).unwrap_or_default();
        (inner.hash.finish(), lines)
    }
}
