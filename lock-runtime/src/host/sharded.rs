//! State of which each thread uses a part of its own, so that threads that have nothing to do with each other do
//! not wait for each other's cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of parts. More threads than that share some.
const PARTS: usize = 8;

/// A part of the state for each of a few threads. What belongs to no thread is the sum of the parts.
#[derive(Debug, Default)]
pub(crate) struct Sharded<T>([Part<T>; PARTS]);

// On cache lines of its own; two, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part<T>(T);

impl<T> Sharded<T> {
    /// Returns the number of this thread's part.
    pub(crate) fn here(&self) -> usize {
        thread_local!(static HERE: Cell<usize> = const { Cell::new(usize::MAX) });
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        HERE.with(|here| {
            if here.get() == usize::MAX {
                here.set(THREADS.fetch_add(1, Ordering::Relaxed) % PARTS);
            }
            here.get()
        })
    }

    /// Returns the part with this number, of those that [`here`](Self::here) returns.
    pub(crate) fn at(&self, number: usize) -> &T {
        &self.0[number % PARTS].0
    }

    /// Returns this thread's part.
    pub(crate) fn own(&self) -> &T {
        self.at(self.here())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|part| &part.0)
    }
}
