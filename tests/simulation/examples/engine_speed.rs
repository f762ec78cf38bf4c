//! Measures how many scripts a second one engine runs, on one core and without streams.
//!
//! `cargo run --release --example engine_speed`

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lock_simulation::server::engine::Engine;
use lock_simulation::server::resp::Reply;
use lock_simulation::server::script::{Scripts, hash};
use lock_simulation::server::version::Version;

/// Each measurement lasts so long.
const SPAN: Duration = Duration::from_secs(2);

struct Bench {
    engine: Engine,
    client: u64,
    hashes: Vec<(&'static str, String)>,
    now: Duration,
}

impl Bench {
    fn new(version: Version) -> mlua::Result<Self> {
        let mut scripts = Scripts::new(version, None)?;
        let mut hashes = Vec::new();
        for (name, [flagged, plain]) in lock_runtime::script_texts() {
            let text = if version.is_7() { flagged } else { plain };
            if scripts.load(text.as_bytes(), version).is_ok() {
                hashes.push((name, hash(text.as_bytes())));
            }
        }
        let mut engine = Engine::new(version, scripts);
        let client = engine.open();
        let mut new = Self {
            engine,
            client,
            hashes,
            now: Duration::from_secs(1_700_000_000),
        };
        new.ask(&["HELLO", "3"]);
        Ok(new)
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.now += Duration::from_micros(10);
        let reply = self.engine.execute(self.client, &words, self.now);
        drop(self.engine.take_out(self.client, usize::MAX));
        reply
    }

    fn run(&mut self, name: &str, keys: &[&str], arguments: &[&str]) -> Reply {
        let hash = self.hashes.iter().find(|(one, _)| *one == name);
        let hash = hash.map_or_else(String::new, |(_, hash)| hash.clone());
        let count = keys.len().to_string();
        let words: Vec<&str> = ["EVALSHA", hash.as_str(), count.as_str()]
            .into_iter()
            .chain(keys.iter().copied())
            .chain(arguments.iter().copied())
            .collect();
        self.ask(&words)
    }

    /// Does something again and again, and prints how many commands a second that is.
    fn measure(&mut self, what: &str, commands: u32, mut once: impl FnMut(&mut Self) -> bool) {
        let (began, mut rounds) = (on_core(), 0_u32);
        while on_core() - began < SPAN {
            for _ in 0..100 {
                assert!(once(self), "{what}: the engine gives another answer");
            }
            rounds += 100;
        }
        let rate = f64::from(rounds * commands) / (on_core() - began).as_secs_f64();
        println!("  {what:<40} {rate:>9.0} commands/s");
    }
}

/// Returns how long this process has run on a core, however busy the machine is.
fn on_core() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let times = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| BEGAN.elapsed(), Duration::from_nanos)
}

fn main() -> mlua::Result<()> {
    const VALUE: &str = "0123456789abcdef0123456789abcde0:host:1:one";
    const OTHER: &str = "0123456789abcdef0123456789abcde1:host:1:two";
    const MEMBER: &str = "1000:0:fedcba9876543210:0123456789abcdef0123456789abcde1:host:1:two";
    const QUEUE: &str = "l:%lock-queue:{l:a}";
    const FENCE: &str = "l:%lock-fence";
    const READER: &str = "r:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0:host:1:one";
    for version in [Version::Redis62, Version::Redis8] {
        println!("{}", version.name());
        let mut bench = Bench::new(version)?;
        let is_done = |reply: Reply| !matches!(reply, Reply::Error(_));
        bench.measure("SET NX PX and DEL", 2, |bench| {
            is_done(bench.ask(&["SET", "l:a", VALUE, "NX", "PX", "30000"])) && is_done(bench.ask(&["DEL", "l:a"]))
        });
        bench.measure("acquire and release, with a token", 2, |bench| {
            is_done(bench.run("acquire", &["l:a", QUEUE, FENCE], &["1", "0", VALUE, "30000"]))
                && is_done(bench.run("release", &["l:a", QUEUE], &["l:%lock-wake:", VALUE, "0", "", ""]))
        });
        bench.measure("acquire, join, release to it, take, release", 5, |bench| {
            let lock = ["l:a", QUEUE, FENCE];
            let join = [OTHER, "30000", "l:%lock-wake:", "fedcba9876543210", "1", MEMBER];
            is_done(bench.run("acquire", &lock, &["0", "0", VALUE, "30000"]))
                && is_done(bench.run("join", &lock, &join))
                && is_done(bench.run("release", &["l:a", QUEUE], &["l:%lock-wake:", VALUE, "0", "", ""]))
                && is_done(bench.run("take", &["l:a", FENCE], &[OTHER, "30000", "0"]))
                && is_done(bench.run("release", &["l:a", QUEUE], &["l:%lock-wake:", OTHER, "0", MEMBER, ""]))
        });
        bench.measure("renew", 1, |bench| {
            is_done(bench.run("renew", &["l:a"], &[VALUE, "30000"]))
        });
        bench.measure("a reader enters and leaves", 2, |bench| {
            let queue = "l:%lock-shared:{l:b}";
            is_done(bench.run(
                "shared_acquire",
                &["l:b", queue, FENCE],
                &["l:%lock-wake:", "0", "0", READER, "30000"],
            )) && is_done(bench.run(
                "shared_release",
                &["l:b", queue],
                &["l:%lock-wake:", READER, "0", "", ""],
            ))
        });
    }
    Ok(())
}
