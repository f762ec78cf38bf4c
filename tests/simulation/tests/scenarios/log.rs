//! What the library logs, collected on the thread of a scenario.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::LockManager;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// An event of the library, with its fields by name. The text is the field `message`.
#[derive(Clone, Debug)]
pub struct Line {
    pub level: Level,
    pub fields: BTreeMap<&'static str, String>,
}

impl Line {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Collects the events from its creation on, and uses a manager at each of them, as a subscriber may.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Mutex<Vec<Line>>>,
    /// `None` to keep nothing.
    locks: Option<LockManager>,
}

impl Log {
    pub fn collect(locks: &LockManager) -> (Self, DefaultGuard) {
        let log = Self {
            lines: Arc::default(),
            locks: Some(locks.clone()),
        };
        (log.clone(), tracing::subscriber::set_default(log))
    }

    /// Wants all events, and keeps none. Where a thread without a subscriber is the first to come to a line, tracing may take it for
    /// wanted by nobody, and other threads do not collect it either.
    pub fn discard() -> DefaultGuard {
        tracing::subscriber::set_default(Self {
            lines: Arc::default(),
            locks: None,
        })
    }

    /// Returns the lines of a level, in order.
    pub fn lines(&self, level: Level) -> Vec<Line> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.level == level).cloned().collect()
    }

    pub fn warnings(&self) -> Vec<Line> {
        self.lines(Level::WARN)
    }

    pub fn clear(&self) {
        self.lines.lock().unwrap().clear();
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("lock_runtime")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(locks) = &self.locks else { return };
        let mut line = Line {
            level: *event.metadata().level(),
            fields: BTreeMap::new(),
        };
        event.record(&mut line);
        self.lines.lock().unwrap().push(line);
        let _ = (locks.health(), locks.stats());
        let call = pin!(locks.lock("logged").wait(Duration::ZERO).acquire());
        let _ = call.poll(&mut Context::from_waker(Waker::noop()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
