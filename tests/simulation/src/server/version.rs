//! The servers that the engine can play.

/// Releases in the order of what they can do. Valkey comes last: it began as Redis 7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Redis62,
    Redis70,
    Redis8,
    Valkey9,
}

impl Version {
    pub const ALL: [Self; 4] = [Self::Redis62, Self::Redis70, Self::Redis8, Self::Valkey9];

    /// Returns the name of the server's folder in `tests/.servers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis62 => "redis-6.2",
            Self::Redis70 => "redis-7.0",
            Self::Redis8 => "redis-8",
            Self::Valkey9 => "valkey-9",
        }
    }

    /// Returns what the server says of itself: its product, its version and the modules in it.
    pub fn greeting(self) -> (&'static str, &'static str, Option<[&'static str; 2]>) {
        match self {
            Self::Redis62 => ("redis", "6.2.5", None),
            Self::Redis70 => ("redis", "7.0.15", None),
            Self::Redis8 => ("redis", "8.2.3", Some(["vectorset", ""])),
            Self::Valkey9 => ("valkey", "9.1.2", Some(["lua", "lua"])),
        }
    }

    /// Returns the product as its messages spell it.
    pub fn product(self) -> &'static str {
        if self == Self::Valkey9 { "Valkey" } else { "Redis" }
    }

    /// Returns `true` from 7.0.
    pub fn is_7(self) -> bool {
        self >= Self::Redis70
    }

    /// Returns `true` from 7.2.
    pub fn is_recent(self) -> bool {
        self >= Self::Redis8
    }
}
