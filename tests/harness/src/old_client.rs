//! A service that still takes locks as before Redis 2.6.12.

use std::path::Path;
use std::time::Duration;

use crate::Server;
use crate::children::{Builder, Child};

/// A process with `old_client.py`, which says what it can be told.
pub struct OldClient(pub Child);

impl OldClient {
    /// A client of the lock `name` whose clock is right.
    pub async fn start(server: &Server, name: &str) -> Self {
        Self::with_clock_ahead(server, name, Duration::ZERO).await
    }

    /// One whose clock is wrong by `ahead`.
    pub async fn with_clock_ahead(server: &Server, name: &str, ahead: Duration) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("harness/src/old_client.py");
        let address = server.addr();
        let mut child = Builder::new("python3")
            .arg(script)
            .arg(address.ip().to_string())
            .arg(address.port().to_string())
            .arg(name)
            .arg(ahead.as_millis().to_string())
            .spawn();
        child.line("ready").await;
        Self(child)
    }

    /// Tells it what to do, and returns how that ended.
    pub async fn does(&mut self, order: &str) -> String {
        self.0.say(order);
        self.0.line("").await.text
    }

    /// Takes the lock for a minute.
    pub async fn takes(&mut self) {
        assert_eq!(self.does("try 60000").await, "taken");
    }
}
