//! Real servers: started for one test on a free port, stopped when the test lets go of them.
//!
//! The version comes from `LOCK_TEST_SERVER`, the name of a folder that `./tests/install-servers` made (`redis-7.0`,
//! `valkey-9`, …); without it, the first found of [`PREFERRED`] is taken.
//!
//! Each server has a folder of its own for its configuration, log, data and a Unix socket. The harness talks to it
//! over that socket as a user of its own, `harness`, on one connection that it opens at once and keeps: so it can still look
//! inside when the test changed passwords, fills `maxclients` or serves TLS only, and `CLIENT LIST` always has that one row more.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, Value, from_redis_value};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::certificates::{Certificate, Files};
use crate::patience::PATIENCE;
use crate::reaper;

/// The versions the project promises to work with, best known first.
pub const PREFERRED: [&str; 4] = ["redis-7.0", "redis-8", "valkey-9", "redis-6.2"];

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

/// What `server --version` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Redis or Valkey.
    pub kind: Kind,
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl Version {
    /// Returns `true` if this can do what came with Redis 7.0: for Valkey, which began there, and for that version or a later one.
    #[must_use]
    pub fn is_7(self) -> bool {
        self.kind == Kind::Valkey || self.major >= 7
    }
}

/// What a server keeps across a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing, unless the test sends `SAVE`.
    #[default]
    None,
    /// An append-only file, synced after every write.
    AofAlways,
    /// An append-only file, synced every second.
    AofEverySecond,
}

/// How a server is to be started. Made by [`Server::builder`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    named: Option<String>,
    directives: Vec<(String, String)>,
    persistence: Persistence,
    password: Option<String>,
    tls: Option<Certificate>,
    sentinel: bool,
    slow: bool,
}

/// How many times slower the clocks of servers go after [`slow_down`].
pub const SLOWNESS: u32 = 10;

impl Builder {
    /// Adds a line to the configuration file, such as `arg("maxmemory", "1mb")`; the value is written as is.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.directives.push((name.into(), value.into()));
        self
    }

    /// What survives a restart; nothing by default.
    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Asks clients for this password; [`Server::url`] then carries it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Serves TLS, and nothing else, on the TCP port. Where the version under test was built without TLS, an installed
    /// one that has it takes its place.
    #[must_use]
    pub fn tls(mut self, certificate: Certificate) -> Self {
        self.tls = Some(certificate);
        self
    }

    /// Uses this version (a folder name under `tests/.servers`) whatever version is under test.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.named = Some(name.into());
        self
    }

    /// Starts it as a sentinel. Its configuration is what the directives say until it writes into the file itself.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Lets the clock of the server be [slowed down](slow_down).
    #[must_use]
    pub fn slow_clock(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Starts the server and returns when it answers.
    #[must_use]
    pub fn start(self) -> Server {
        crate::clock::watch_pauses();
        let installed = self.choose();
        let folder = tempfile::Builder::new()
            .prefix("lock-test-")
            .tempdir()
            .expect("a temporary folder");
        for _ in 0..20 {
            let port = free_port();
            match self.launch(&installed, port, folder.path(), &Configuration::Written) {
                Ok(process) => {
                    let (process, control) = (Mutex::new(Some(process)), Mutex::new(None));
                    let server = Server {
                        process,
                        control,
                        paused: AtomicBool::new(false),
                        options: self,
                        installed,
                        port,
                        folder,
                    };
                    server.cmd(&["PING"]);
                    return server;
                }
                Err(Launch::PortTaken) => {}
                Err(Launch::Failed(why)) => panic!("{why}"),
            }
        }
        panic!("no free TCP port for a test server in 20 tries");
    }

    fn choose(&self) -> Installed {
        let chosen = match self
            .named
            .clone()
            .or_else(|| std::env::var("LOCK_TEST_SERVER").ok().filter(|name| !name.is_empty()))
        {
            Some(name) => Installed::named(&name).unwrap_or_else(|| {
                panic!("no server `{name}` to test against: run ./tests/install-servers, or unset LOCK_TEST_SERVER")
            }),
            None => all_installed()
                .into_iter()
                .next()
                .unwrap_or_else(|| panic!("no server to test against: run ./tests/install-servers")),
        };
        if self.tls.is_none() || chosen.has_tls() {
            return chosen;
        }
        all_installed().into_iter().find(Installed::has_tls).unwrap_or_else(|| {
            panic!("no installed server was built with TLS: install redis-server by the system's package manager, then run ./tests/install-servers")
        })
    }

    fn configuration(&self, port: u16, folder: &Path, version: Version) -> String {
        let at = folder.display();
        let mut lines = format!(
            "bind 127.0.0.1\nunixsocket {at}/socket\nunixsocketperm 700\ndir {at}/data\nsave \"\"\ndaemonize no\n\
             user {CONTROL_USER} on >{CONTROL_PASSWORD} ~* &* +@all\n"
        );
        let mut line = |name: &str, value: &str| lines.extend([name, " ", value, "\n"]);
        if version.is_7() {
            line("enable-debug-command", "yes");
        }
        match self.persistence {
            Persistence::None => line("appendonly", "no"),
            Persistence::AofAlways | Persistence::AofEverySecond => {
                line("appendonly", "yes");
                line(
                    "appendfsync",
                    if self.persistence == Persistence::AofAlways {
                        "always"
                    } else {
                        "everysec"
                    },
                );
            }
        }
        if let Some(certificate) = self.tls {
            let Files {
                certificate,
                key,
                authority,
            } = certificate.files();
            line("port", "0");
            line("tls-port", &port.to_string());
            line("tls-cert-file", &certificate.display().to_string());
            line("tls-key-file", &key.display().to_string());
            line("tls-ca-cert-file", &authority.display().to_string());
            line("tls-auth-clients", "no");
        } else {
            line("port", &port.to_string());
        }
        if let Some(password) = &self.password {
            line("requirepass", password);
        }
        for (name, value) in &self.directives {
            line(name, value);
        }
        lines
    }

    fn launch(
        &self,
        installed: &Installed,
        port: u16,
        folder: &Path,
        configuration: &Configuration,
    ) -> Result<std::process::Child, Launch> {
        let file = folder.join("server.conf");
        fs::create_dir_all(folder.join("data")).expect("the server's folder is writable");
        let text = match configuration {
            Configuration::Written => Some(self.configuration(port, folder, installed.version)),
            Configuration::WrittenWith(line) => Some(self.configuration(port, folder, installed.version) + line + "\n"),
            Configuration::Kept => None,
        };
        if let Some(text) = text {
            fs::write(&file, text).expect("the server's folder is writable");
        }
        let log = fs::File::create(folder.join("log")).expect("the server's folder is writable");
        let mut command = Command::new(&installed.binary);
        if self.slow {
            slow_from(folder, 0);
            command
                .env("LD_PRELOAD", env!("LOCK_SLOW_CLOCK_LIBRARY"))
                .env("LOCK_SLOW_CLOCK", slow_clock(folder))
                .env("LOCK_SLOWNESS", SLOWNESS.to_string());
        }
        let mut process = command
            .arg(&file)
            .args(self.sentinel.then_some("--sentinel"))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be cloned"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", installed.binary.display()));
        reaper::began(process.id(), Some(folder));

        let started = Instant::now();
        loop {
            if process.try_wait().expect("a child can be waited for").is_some() {
                reaper::ended(process.id());
                let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
                return Err(if log.contains("Address already in use") {
                    Launch::PortTaken
                } else {
                    Launch::Failed(format!("{} ended at once:\n{log}", installed.name))
                });
            }
            if answers(folder) {
                return Ok(process);
            }
            if started.elapsed() > PATIENCE {
                let _ = process.kill();
                let _ = process.wait();
                reaper::ended(process.id());
                return Err(Launch::Failed(format!(
                    "{} did not answer within {PATIENCE:?}",
                    installed.name
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The file by which a test slows down a server's clock.
fn slow_clock(folder: &Path) -> PathBuf {
    folder.join("slow-clock")
}

/// `since` is in microseconds since 1970, or 0 for a clock that keeps pace.
fn slow_from(folder: &Path, since: u64) {
    // Never empty, since a server may look at it.
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(slow_clock(folder));
    file.and_then(|mut file| file.write_all(&since.to_ne_bytes()))
        .expect("the server's folder is writable");
}

/// Lets the clocks of servers go [`SLOWNESS`] times slower than the machine's from now on, and agree with each other. They must have been built
/// with [slow clocks](Builder::slow_clock). What a test does takes next to no time then, as far as these servers know.
pub fn slow_down<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is later than 1970");
    let now = u64::try_from(now.as_micros()).expect("it is earlier than the year 586,000");
    for server in servers {
        assert!(server.options.slow, "the clock of this server cannot be slowed down");
        slow_from(server.folder.path(), now);
    }
}

/// What a server finds in its configuration file as it starts.
enum Configuration {
    /// What the [`Builder`] says.
    Written,
    /// The same, and this line after it.
    WrittenWith(String),
    /// What the server itself has written there.
    Kept,
}

enum Launch {
    PortTaken,
    Failed(String),
}

/// A running server. Everything in it blocks for the blink of an eye at most, but [`Server::connection`].
#[derive(Debug)]
pub struct Server {
    process: Mutex<Option<std::process::Child>>,
    control: Mutex<Option<Control>>,
    paused: AtomicBool,
    options: Builder,
    installed: Installed,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts a server of the version under test that keeps nothing on disk.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns whether a server can be started: whether one is installed.
    #[must_use]
    pub fn is_installed() -> bool {
        !all_installed().is_empty()
    }

    /// A server with options.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// What a client connects to: `redis://127.0.0.1:<port>`, with the password if there is one, or
    /// `rediss://localhost:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self
            .options
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        if self.options.tls.is_some() {
            format!("rediss://{password}localhost:{}", self.port)
        } else {
            format!("redis://{password}{}", self.addr())
        }
    }

    /// The same server over its Unix socket: `unix:///…`.
    #[must_use]
    pub fn unix_url(&self) -> String {
        let password = self
            .options
            .password
            .as_ref()
            .map(|password| format!("?pass={password}"))
            .unwrap_or_default();
        format!("unix://{}{password}", socket(self.folder.path()).display())
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port it listens on, the same after a restart.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The folder with its `server.conf`, `log` and `data/`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder name of its version, such as `redis-7.0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.installed.name
    }

    /// Its version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.installed.version
    }

    /// The authority a TLS client has to trust, and the server's own files.
    #[must_use]
    pub fn tls_files(&self) -> Files {
        self.options
            .tls
            .expect("a server that was started with .tls(…)")
            .files()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server runs").id()
    }

    /// Whether it was started and neither killed nor ended by itself.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process()
            .as_mut()
            .is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    /// Stops the process where it is (SIGSTOP) and returns when it stands still. Its sockets stay open and silent.
    pub fn pause(&self) {
        reaper::pause(self.pid());
        self.paused.store(true, Ordering::SeqCst);
    }

    /// Returns whether it stands still since [`Server::pause`].
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        reaper::signal(self.pid(), Signal::CONT);
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Ends it by SIGKILL and returns when it is gone.
    pub fn kill(&self) {
        *self.control() = None;
        self.paused.store(false, Ordering::SeqCst);
        if let Some(mut process) = self.process().take() {
            // An error means that it ended by itself.
            let _ = process.kill();
            let _ = process.wait();
            reaper::ended(process.id());
        }
    }

    /// Ends it by SIGTERM, as a service manager would, and returns when it is gone.
    pub fn terminate(&self) {
        reaper::signal(self.pid(), Signal::TERM);
        self.process()
            .as_mut()
            .expect("the server runs")
            .wait()
            .expect("a child can be waited for");
        self.kill();
    }

    /// Starts it again after [`Server::kill`], on the same port, with the data its persistence kept.
    pub fn start_again(&self) {
        self.start_again_from(&Configuration::Written);
    }

    /// Starts it again like [`Server::start_again`], with one line more at the end of its configuration.
    pub(crate) fn start_again_with(&self, line: String) {
        self.start_again_from(&Configuration::WrittenWith(line));
    }

    /// Starts it again like [`Server::start_again`], with the configuration that it has written itself.
    pub(crate) fn start_again_as_left(&self) {
        self.start_again_from(&Configuration::Kept);
    }

    fn start_again_from(&self, configuration: &Configuration) {
        assert!(!self.is_running(), "the server runs already");
        let mut tries = 0;
        let process = loop {
            let folder = self.folder.path();
            match self.options.launch(&self.installed, self.port, folder, configuration) {
                Ok(process) => break process,
                // Someone's outgoing connection may have borrowed the port for a moment.
                Err(Launch::PortTaken) if tries < 100 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(Launch::PortTaken) => panic!("port {} was taken while the server was down", self.port),
                Err(Launch::Failed(why)) => panic!("{why}"),
            }
        };
        *self.process() = Some(process);
        self.cmd(&["PING"]);
    }

    /// SIGKILL, then a start with the data its persistence kept.
    pub fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// SIGKILL, then a start without any data.
    pub fn restart_empty(&self) {
        self.kill();
        fs::remove_dir_all(self.folder.path().join("data")).expect("the server's folder is writable");
        self.start_again();
    }

    /// A connection of redis-rs over TCP, as a user would open it, for tests that await. Waits for replies as long as [`PATIENCE`].
    pub async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = if self.options.tls.is_some() {
            let authority = fs::read(self.tls_files().authority).expect("the authority's certificate");
            redis::Client::build_with_tls(
                self.url(),
                redis::TlsCertificates {
                    client_tls: None,
                    root_cert: Some(authority),
                },
            )
        } else {
            redis::Client::open(self.url())
        };
        let config = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(PATIENCE))
            .set_connection_timeout(Some(PATIENCE));
        client
            .expect("the server's URL is valid")
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.url()))
    }

    /// Sends one command on the harness's own connection and converts the reply; panics on an error reply.
    pub fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let reply = self
            .try_cmd(command)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        redis::from_redis_value(reply).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Sends one command on the harness's own connection; panics on an error reply.
    pub fn cmd(&self, command: &[&str]) -> Value {
        self.ask(command)
    }

    /// Sends one command on the harness's own connection; an error reply is an `Err`. Where the connection was cut, the command goes
    /// over another one, and may be done twice.
    ///
    /// # Errors
    /// What the server answered, or why it did not.
    pub fn try_cmd(&self, command: &[&str]) -> redis::RedisResult<Value> {
        let mut packed = redis::cmd(command[0]);
        packed.arg(&command[1..]);
        assert!(
            !self.is_paused(),
            "{command:?} was asked of a paused server, which would never answer"
        );
        let mut control = self.control();
        if let Some(control) = control.as_mut() {
            match packed.query(&mut control.0) {
                // By a restart, or by the CLIENT KILL that a sentinel sends to a server whose role it changes.
                Err(error) if error.is_connection_dropped() => {}
                replied => return replied,
            }
        }
        packed.query(&mut control.insert(Control::open(self.folder.path())?).0)
    }

    /// The string at a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    /// Whether a key exists. A [trace](Self::is_trace) does not count.
    #[must_use]
    pub fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key]) && !self.is_trace(key)
    }

    /// Whether a key is a queue in which only the time is left when its lock was left free.
    #[must_use]
    pub fn is_trace(&self, key: &str) -> bool {
        let members = || self.try_cmd(&["ZRANGE", key, "0", "-1"]);
        key.contains("%lock-queue")
            && members().is_ok_and(|found| from_redis_value(found).is_ok_and(|left: Vec<String>| left == ["free"]))
    }

    /// The time a key has left; `None` without the key or without an expiry.
    #[must_use]
    pub fn time_left(&self, key: &str) -> Option<Duration> {
        let milliseconds: i64 = self.ask(&["PTTL", key]);
        u64::try_from(milliseconds).ok().map(Duration::from_millis)
    }

    /// The channels that somebody listens to.
    #[must_use]
    pub fn channels(&self) -> Vec<String> {
        self.ask(&["PUBSUB", "CHANNELS"])
    }

    /// All keys but [traces](Self::is_trace), sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]);
        keys.retain(|key| !self.is_trace(key));
        keys.sort();
        keys
    }

    /// One line of `INFO`, such as `info("run_id")`.
    #[must_use]
    pub fn info(&self, field: &str) -> String {
        let all: String = self.ask(&["INFO"]);
        let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("INFO has no field {field}")).to_owned()
    }

    /// The slot of a key, which a node of a cluster tells.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        self.ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// Whether a node of a cluster has a key itself, also while its slot is on its way there.
    #[must_use]
    pub fn holds(&self, key: &str) -> bool {
        let slot = self.slot_of(key).to_string();
        let keys: Vec<String> = self.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
        keys.iter().any(|other| other == key)
    }

    /// What it has written to its log since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<std::process::Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

// --- The harness's own connection ------------------------------------------------------------------------------------

const CONTROL_USER: &str = "harness";
const CONTROL_PASSWORD: &str = "harness";

struct Control(redis::Connection);

impl Control {
    fn open(folder: &Path) -> redis::RedisResult<Self> {
        let url = format!(
            "unix://{}?user={CONTROL_USER}&pass={CONTROL_PASSWORD}",
            socket(folder).display()
        );
        // No read time-out: a read that has one is not restarted after a signal, but fails with EINTR.
        Ok(Self(redis::Client::open(url)?.get_connection()?))
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

/// The socket lies in a folder of our own, so who answers there is ours; LOADING is an error, hence not yet an answer.
fn answers(folder: &Path) -> bool {
    Control::open(folder)
        .and_then(|mut control| redis::cmd("PING").query::<()>(&mut control.0))
        .is_ok()
}

// --- Ports -----------------------------------------------------------------------------------------------------------

/// A port that nobody listens on, nor on that of a cluster's bus, which is 10,000 higher. Both are below the range that systems take outgoing
/// ports from, so that they are still ours after a restart, and no server has a port that is another one's bus. No other test process gets it
/// while this one runs: a client that still looks for a server that was killed here would find a server of another test there.
#[must_use]
pub fn free_port() -> u16 {
    const BUS: u16 = 10_000;
    static PORTS: Mutex<Ports> = Mutex::new(Ports::new());
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        let port = PORTS.lock().unwrap_or_else(PoisonError::into_inner).next();
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}

/// The ports of this process.
struct Ports {
    /// Each keeps a block of ports for this process: no other process can bind the UDP port of the same number as the block's first one.
    blocks: Vec<UdpSocket>,
    next: u16,
    left: u16,
}

impl Ports {
    const FIRST: u16 = 10_000;
    const BLOCKS: u16 = 100;
    const SIZE: u16 = 100;

    const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            next: 0,
            left: 0,
        }
    }

    fn next(&mut self) -> u16 {
        if self.left == 0 {
            let (block, first) = Self::block();
            self.blocks.push(block);
            (self.next, self.left) = (first, Self::SIZE);
        }
        let port = self.next;
        self.next += 1;
        self.left -= 1;
        port
    }

    /// A block that no process has, and its first port.
    fn block() -> (UdpSocket, u16) {
        // Elsewhere each time, so that the ports of a process that has just ended are not the next ones.
        let random = RandomState::new().hash_one(std::process::id()) % u64::from(Self::BLOCKS);
        let from = u16::try_from(random).expect("smaller than BLOCKS");
        (0..Self::BLOCKS)
            .find_map(|number| {
                let first = Self::FIRST + (from + number) % Self::BLOCKS * Self::SIZE;
                let block = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
                Some((block, first))
            })
            .expect("other test processes have all ports: wait until they have ended")
    }
}

// --- What is installed -----------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct Installed {
    name: String,
    binary: PathBuf,
    version: Version,
}

impl Installed {
    fn named(name: &str) -> Option<Self> {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(".servers")
            .join(name)
            .join("server");
        let output = Command::new(&binary).arg("--version").output().ok()?;
        let version = parse_version(&String::from_utf8_lossy(&output.stdout))?;
        Some(Self {
            name: name.to_owned(),
            binary,
            version,
        })
    }

    /// A build with TLS has OpenSSL linked in one way or the other; `--version` does not tell.
    fn has_tls(&self) -> bool {
        let binary = fs::read(&self.binary).expect("the server's binary can be read");
        let text = String::from_utf8_lossy(&binary);
        text.contains("libssl.") || text.contains("SSL_CTX_new")
    }
}

fn all_installed() -> Vec<Installed> {
    let mut names: Vec<String> = PREFERRED.iter().map(ToString::to_string).collect();
    if let Ok(entries) = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".servers")) {
        let mut others: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        others.retain(|name| !PREFERRED.contains(&name.as_str()));
        others.sort();
        names.extend(others);
    }
    names.iter().filter_map(|name| Installed::named(name)).collect()
}

/// Reads `Redis server v=7.0.15 sha=…` or `Valkey server v=9.1.2 …`.
fn parse_version(text: &str) -> Option<Version> {
    let (kind, rest) = match text.split_once(" server v=")? {
        ("Redis", rest) => (Kind::Redis, rest),
        ("Valkey", rest) => (Kind::Valkey, rest),
        _ => return None,
    };
    let mut numbers = rest.split(['.', ' ']).map_while(|number| number.parse().ok());
    Some(Version {
        kind,
        major: numbers.next()?,
        minor: numbers.next()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn version_is_read_from_either_banner() {
        let redis = Version {
            kind: Kind::Redis,
            major: 7,
            minor: 0,
        };
        assert_eq!(
            parse_version("Redis server v=7.0.15 sha=00000000:0 malloc=libc"),
            Some(redis)
        );
        let valkey = Version {
            kind: Kind::Valkey,
            major: 9,
            minor: 1,
        };
        assert_eq!(parse_version("Valkey server v=9.1.2 sha=00000000:1"), Some(valkey));
        assert_eq!(parse_version("something else"), None);
        let old = Version {
            major: 6,
            minor: 2,
            ..redis
        };
        assert!(redis.is_7() && valkey.is_7() && !old.is_7());
    }

    #[test]
    fn two_processes_have_no_port_in_common() {
        let (mut one, mut other) = (Ports::new(), Ports::new());
        let ports: BTreeSet<_> = (0..150).flat_map(|_| [one.next(), other.next()]).collect();
        assert_eq!(ports.len(), 300);
    }
}
