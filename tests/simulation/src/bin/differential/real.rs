//! A real server whose clock the test sets.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_simulation::server::version::Version;

use crate::item::Item;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Real {
    version: Version,
    process: Child,
    folder: PathBuf,
    clock: File,
    /// What the clock shows that only goes forward, in microseconds.
    steady: i64,
    /// The test's own connection.
    admin: Wire,
}

/// A connection.
pub struct Wire {
    stream: UnixStream,
    unread: Vec<u8>,
    at: usize,
}

impl Real {
    /// Starts the server of this version in `servers`.
    ///
    /// # Errors
    /// Fails if there is none, or it does not obey the clock.
    pub fn start(version: Version, servers: &Path) -> io::Result<Self> {
        let name = format!("lock-differential-{}-{:x}", version.name(), fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder)?;
        let clock_path = folder.join("clock");
        fs::write(&clock_path, [0; 16])?;
        let clock = File::options().write(true).open(&clock_path)?;
        let socket = folder.join("socket");
        let mut command = Command::new(servers.join(version.name()).join("server"));
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket);
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        command.arg("--dir").arg(&data);
        if version != Version::Redis62 {
            command.args(["--enable-debug-command", "yes"]);
        }
        command
            .env("LD_PRELOAD", env!("LOCK_CLOCK_LIBRARY"))
            .env("LOCK_CLOCK", &clock_path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let mut tries = 0;
        let admin = loop {
            match Wire::open(&socket) {
                Ok(admin) => break admin,
                Err(error) if tries == 3000 => {
                    process.kill()?;
                    return Err(error);
                }
                Err(_) => tries += 1,
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut real = Self {
            version,
            process,
            folder,
            clock,
            steady: 1 << 50,
            admin,
        };
        real.set_clock(1_234_567_000_000)?;
        let mut tries = 0;
        loop {
            let told = real.ask(&["TIME"])?;
            if told.children.first().is_some_and(|seconds| seconds.text == b"1234567") {
                break;
            }
            tries += 1;
            if tries == 10 {
                return Err(io::Error::other(format!("the server has a clock of its own: {told:?}")));
            }
        }
        real.ask(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])?;
        fs::remove_dir(data)?;
        real.fail_to_save()?;
        real.ask(&["CONFIG", "SET", "hz", "1"])?;
        Ok(real)
    }

    /// Makes a try to save the data fail, so that the server takes no writes when it is told to mind that.
    fn fail_to_save(&mut self) -> io::Result<()> {
        self.ask_all(&[
            &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"],
            // It never tries by itself.
            &["CONFIG", "SET", "save", "9000000000000 2147483647"],
            &["BGSAVE"],
        ])?;
        for _ in 0..6000 {
            let told = self.ask(&["INFO", "persistence"])?;
            if String::from_utf8_lossy(&told.text).contains("rdb_last_bgsave_status:err") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
            // Its timers may go by this clock.
            self.set_clock(1_234_567_000_000)?;
        }
        Err(io::Error::other("the server saves its data"))
    }

    /// Sets the clock, in microseconds since 1970.
    pub fn set_clock(&mut self, now: i64) -> io::Result<()> {
        // Valkey looks at its clock again when the other one has gone on by a millisecond.
        self.steady += 2_000;
        let steady = if self.version == Version::Valkey9 {
            self.steady
        } else {
            0
        };
        let times = [now.to_ne_bytes(), steady.to_ne_bytes()];
        self.clock.write_all_at(&times.concat(), 0)
    }

    pub fn open(&self) -> io::Result<Wire> {
        Wire::open(&self.folder.join("socket"))
    }

    /// Carries out commands on the test's own connection.
    pub fn ask_all(&mut self, all: &[&[&str]]) -> io::Result<()> {
        for words in all {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            self.admin.send(&words)?;
        }
        for _ in all {
            self.admin.item()?;
        }
        Ok(())
    }

    /// Carries out a command on the test's own connection.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Item> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.admin.send(&words)?;
        self.admin.item()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Wire {
    fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            unread: Vec::new(),
            at: 0,
        })
    }

    pub fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend(format!("${}\r\n", word.len()).bytes());
            text.extend(*word);
            text.extend(b"\r\n");
        }
        self.stream.write_all(&text)
    }

    /// Reads one answer or push. `None` at the end of the stream.
    pub fn item(&mut self) -> io::Result<Option<Item>> {
        loop {
            let mut at = self.at;
            if let Some(item) = Item::read(&self.unread, &mut at) {
                self.at = at;
                if self.at == self.unread.len() {
                    self.unread.clear();
                    self.at = 0;
                }
                return Ok(Some(item));
            }
            let mut more = [0; 1 << 14];
            match self.stream.read(&mut more) {
                Ok(0) => return Ok(None),
                Ok(count) => self.unread.extend(&more[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
