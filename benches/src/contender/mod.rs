//! The contenders: one loop of "acquire, work, release" over this library, its peers, bare commands and a local mutex.

mod ours;
mod peers;
mod quorum;
mod raw;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lock_tests::Stamp;

use crate::{Result, Size, error};

/// Long enough that no lease ends in a measurement.
const LEASE: Duration = Duration::from_secs(30);
/// Longer than a measurement: who waits for so long is never served.
const WAIT: Duration = Duration::from_secs(600);
/// What a peer pauses between two attempts when it is set to its best: the shortest that its timer knows.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// A library and how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Contender {
    /// This library.
    Ours(Variant),
    /// A published crate.
    Peer(Crate, Tuning),
    /// The commands by themselves, each awaited: what any such lock can reach at most.
    Raw,
    /// A lock on several masters without a library.
    Quorum(Way),
    /// `tokio::sync::Mutex`: what is possible in one process.
    Local,
}

/// Such a peer is added to the others, to see what becomes of a scenario when one hangs: `connecting`, `blocking` or `taking`, several with
/// commas between them.
const HANGING: &str = "LOCK_BENCH_HANGING";

/// If set, this library with its defaults is measured alone, as two builds are compared.
pub(crate) const OURS_ALONE: &str = "LOCK_BENCH_OURS_ALONE";

/// The names of the contenders to measure, with semicolons between them, as they stand in the tables. Unless it is set, all.
const ONLY: &str = "LOCK_BENCH_CONTENDERS";

pub(crate) use ours::Variant;
use peers::{Crate, Hang, Tuning};
use quorum::Way;

impl Contender {
    pub(crate) const OURS: Self = Self::Ours(Variant::Default);
    pub(crate) const HANDOVER_OFF: Self = Self::Ours(Variant::HandoverOff);
    pub(crate) const NEVER_LEFT_FREE: Self = Self::Ours(Variant::NeverLeftFree);
    pub(crate) const FAIR: Self = Self::Ours(Variant::Fair);
    pub(crate) const PIPELINED: Self = Self::Ours(Variant::Pipelined);
    pub(crate) const FENCING: Self = Self::Ours(Variant::Fencing);
    pub(crate) const READ: Self = Self::Ours(Variant::Read);
    pub(crate) const SEMAPHORE: Self = Self::Ours(Variant::Semaphore);
    pub(crate) const RAW_TO_ALL: Self = Self::Quorum(Way::Raw);
    const REDSYNC: Self = Self::Quorum(Way::Redsync);

    /// All of a run, in the order of the tables. A smoke run needs no peer.
    pub(crate) fn all(size: Size) -> Vec<Self> {
        Self::of(&Variant::ALL, size)
    }

    /// All of a run without contention, in which the locks may be of any kind.
    pub(crate) fn uncontended(size: Size) -> Vec<Self> {
        Self::of(&[&Variant::ALL[..], &Variant::OF_OTHER_KINDS[..]].concat(), size)
    }

    fn of(variants: &[Variant], size: Size) -> Vec<Self> {
        if std::env::var_os(OURS_ALONE).is_some() {
            return vec![Self::OURS];
        }
        let mut all: Vec<_> = variants.iter().copied().map(Self::Ours).collect();
        if size == Size::Full {
            all.extend(Self::peers());
        }
        let hanging = std::env::var(HANGING).unwrap_or_default();
        all.extend(Self::hanging().filter(|peer| match peer {
            Self::Peer(Crate::Hanging(hang), _) => hanging.split(',').any(|asked| asked == hang.word()),
            _ => false,
        }));
        all.extend([Self::Raw, Self::Local]);
        if let Ok(names) = std::env::var(ONLY) {
            all.retain(|contender| names.split(';').any(|name| name.trim() == contender.to_string()));
        }
        all
    }

    /// Peers that hang on purpose.
    fn hanging() -> impl Iterator<Item = Self> {
        Hang::ALL
            .into_iter()
            .map(|hang| Self::Peer(Crate::Hanging(hang), Tuning::Defaults))
    }

    /// The published crates, each with its defaults and at its best.
    pub(crate) fn peers() -> impl Iterator<Item = Self> {
        Crate::ALL
            .into_iter()
            .flat_map(|peer| [Self::Peer(peer, Tuning::Defaults), Self::Peer(peer, Tuning::Best)])
    }

    /// Those that keep a lock on several masters and contend for it, in the order of the tables.
    pub(crate) fn on_a_quorum(size: Size) -> Vec<Self> {
        let mut all = vec![Self::OURS];
        if std::env::var_os(OURS_ALONE).is_none() {
            all.push(Self::REDSYNC);
            if size == Size::Full {
                all.extend([Tuning::Defaults, Tuning::Best].map(|tuning| Self::Peer(Crate::Rslock, tuning)));
            }
        }
        all
    }

    pub(crate) const fn is_peer(self) -> bool {
        matches!(self, Self::Peer(..))
    }

    /// What one has to know to read this contender's row.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Self::Peer(peer, tuning) => Some(format!("{self}: {}", peer.note(tuning))),
            Self::Raw => Some(format!("{self}: {}", raw::NOTE)),
            Self::Quorum(way) => Some(format!("{self}: {}", way.note())),
            Self::Ours(_) | Self::Local => None,
        }
    }

    /// Its client in this process, for the locks of these names on one server, or on several masters if it is one [of those](Self::on_a_quorum).
    pub(crate) async fn connect(self, urls: &[String], names: Arc<[String]>) -> Result<Client> {
        let url = urls.first().ok_or("no server")?;
        let inner = match self {
            Self::Ours(variant) => Inner::Ours(ours::connect(urls, variant).await?),
            Self::Peer(peer, tuning) => Inner::Peer(peers::connect(urls, peer, tuning).await?),
            Self::Quorum(way) => Inner::Quorum(quorum::connect(urls, way).await?),
            Self::Raw => Inner::Raw(raw::connect(url).await?),
            Self::Local => Inner::Local(names.iter().map(|_| tokio::sync::Mutex::default()).collect()),
        };
        Ok(Client { names, inner })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(variant) => variant.fmt(f),
            Self::Peer(peer, tuning) => write!(f, "{peer}, {tuning}"),
            Self::Raw => f.write_str("raw commands"),
            Self::Quorum(way) => way.fmt(f),
            Self::Local => f.write_str("local tokio Mutex"),
        }
    }
}

/// For a child process, which is told by the name whom to be.
impl FromStr for Contender {
    type Err = crate::Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::uncontended(Size::Full)
            .into_iter()
            .chain(Self::hanging())
            .chain([Self::Raw, Self::Local])
            .chain(Way::ALL.map(Self::Quorum))
            .find(|contender| contender.to_string() == name)
            .ok_or_else(|| error(format!("there is no contender {name:?}")))
    }
}

/// What a process holds of a contender; a clone is a task's own.
#[derive(Clone)]
pub(crate) struct Client {
    names: Arc<[String]>,
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Ours(ours::Client),
    Peer(peers::Client),
    Raw(raw::Client),
    Quorum(quorum::Client),
    Local(Arc<[tokio::sync::Mutex<()>]>),
}

impl Client {
    /// Takes the lock of that number, keeps it for `hold`, and gives it back.
    pub(crate) async fn section(&mut self, lock: usize, hold: Duration) -> Result<Section> {
        let name = self.names.get(lock).ok_or("there is no such lock")?.as_str();
        let asked = Stamp::now();
        let Inside { granted, left } = match &mut self.inner {
            Inner::Ours(client) => client.section(name, hold).await?,
            Inner::Peer(client) => client.section(name, hold).await?,
            Inner::Raw(client) => client.section(name, hold).await?,
            Inner::Quorum(client) => client.section(name, hold).await?,
            Inner::Local(locks) => {
                let _guard = locks.get(lock).ok_or("there is no such lock")?.lock().await;
                inside(hold).await
            }
        };
        Ok(Section { asked, granted, left })
    }

    /// The grants that came from this process and not from a server.
    pub(crate) fn passed(&self) -> u64 {
        match &self.inner {
            Inner::Ours(client) => client.passed(),
            Inner::Peer(_) | Inner::Raw(_) | Inner::Quorum(_) | Inner::Local(_) => 0,
        }
    }
}

/// One critical section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Before the call.
    pub(crate) asked: Stamp,
    /// First thing under the lock.
    pub(crate) granted: Stamp,
    /// Last thing under the lock.
    pub(crate) left: Stamp,
}

/// The part of a section that is under the lock.
struct Inside {
    granted: Stamp,
    left: Stamp,
}

async fn inside(hold: Duration) -> Inside {
    let granted = Stamp::now();
    if !hold.is_zero() {
        tokio::time::sleep(hold).await;
    }
    Inside {
        granted,
        left: Stamp::now(),
    }
}
