//! Sequences of commands, drawn from a seed.

use fastrand::Rng;
use lock_simulation::server::version::Version;

/// What happens next.
#[derive(Clone)]
pub enum Step {
    /// The clock goes on by so many ms, or back.
    Wait(i64),
    /// A connection sends a command.
    Send(usize, Vec<Vec<u8>>),
}

/// The number of connections.
pub const CONNECTIONS: usize = 3;

const LOCKS: [&str; 2] = ["l:a", "l:b"];
const COUNTER: &str = "l:%lock-fence";
const MARK: &str = "l:%lock-mark";
pub(super) const CHANNELS: &str = "l:%lock-wake:";
pub(super) const PROCESSES: [&str; 3] = ["0123456789abcdef", "fedcba9876543210", "00000000000000aa"];
const VALUES: [&str; 4] = [
    "0123456789abcdef0123456789abcde0:host:1:one",
    "0123456789abcdef0123456789abcde1:host:1:two",
    "0123456789abcdef0123456789abcde2:host:2:three",
    "something else",
];
const SHARED: [&str; 12] = [
    "r:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0:host:1:one",
    "r:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1:host:1:two",
    "r:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa2:host:2:three",
    "w:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa3:host:1:four",
    "w:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa4:host:2:five",
    "s2:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa5:host:1:six",
    "s2:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa6:host:1:seven",
    "s1:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa7:host:2:eight",
    "oQ:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa8:host:1:nine",
    "oQ:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa9:host:2:ten",
    "x:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab0:host:2:eleven",
    "no colon",
];

/// Draws one sequence.
pub struct Draw<'a> {
    pub(super) rng: Rng,
    /// The scripts, by their names.
    pub(super) scripts: &'a [(&'static str, &'a str)],
    steps: Vec<Step>,
    /// What each connection hears.
    pub(super) heard: [Vec<String>; CONNECTIONS],
    /// One kind of mode is seldom crossed with another.
    pub(super) is_shared: bool,
    /// Most scripts are those for locks of old clients.
    pub(super) is_old: bool,
    /// The values of which most are.
    favourites: [usize; 3],
    /// The server's Lua goes through tables in another order than the engine's.
    pub(super) has_other_order: bool,
    /// The lock and the value that a story is about.
    pub(super) focus: Option<(String, String)>,
    pub(super) now: i64,
}

/// Draws the steps of this seed. The clock begins at `now`, in ms.
pub fn draw(seed: u64, version: Version, scripts: &[(&'static str, &str)], now: i64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let is_shared = rng.bool();
    let is_old = rng.u8(0..8) == 0;
    let favourites = std::array::from_fn(|_| rng.usize(..SHARED.len()));
    let draw = Draw {
        rng,
        scripts,
        steps: Vec::new(),
        heard: [const { Vec::new() }; CONNECTIONS],
        is_shared,
        is_old,
        favourites,
        has_other_order: version == Version::Valkey9,
        focus: None,
        now,
    };
    draw.all()
}

impl Draw<'_> {
    fn all(mut self) -> Vec<Step> {
        for (connection, process) in PROCESSES.into_iter().enumerate() {
            if !self.one_in(8) {
                self.send(connection, &["HELLO", "3"]);
            }
            match self.rng.u8(0..4) {
                0 => self.send(connection, &["CLIENT", "TRACKING", "ON"]),
                1 | 2 => self.send(connection, &["CLIENT", "TRACKING", "ON", "NOLOOP"]),
                _ => {}
            }
            if self.rng.bool() {
                self.subscribe(connection, &format!("{CHANNELS}{process}"));
            }
        }
        if self.one_in(12) {
            self.send(0, &["SCRIPT", "FLUSH"]);
        }
        if self.one_in(8) {
            self.lack();
        }
        if self.one_in(6) {
            self.crowd();
        }
        if self.one_in(4) {
            self.story();
        }
        let is_unrestful = self.one_in(5);
        for _ in 0..self.rng.usize(4..28) {
            if self.rng.u8(0..10) < 3 {
                self.wait();
            }
            match self.rng.u8(0..100) {
                0..56 => self.script(),
                56..80 => self.data(),
                80..92 => self.talk(),
                92..97 => self.nonsense(),
                _ if is_unrestful => self.trouble(),
                _ => self.crowd(),
            }
        }
        for connection in 0..CONNECTIONS {
            self.send(connection, &["PING"]);
        }
        self.steps
    }

    pub(super) fn one_in(&mut self, of: u32) -> bool {
        self.rng.u32(..of) == 0
    }

    pub(super) fn pick<'b>(&mut self, of: &[&'b str]) -> &'b str {
        of[self.rng.usize(..of.len())]
    }

    pub(super) fn send(&mut self, connection: usize, words: &[&str]) {
        let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.steps.push(Step::Send(connection, words));
    }

    pub(super) fn anywhere(&mut self, words: &[&str]) {
        let connection = self.rng.usize(..CONNECTIONS);
        self.send(connection, words);
    }

    pub(super) fn wait(&mut self) {
        const SPANS: [i64; 16] = [
            1, 1, 2, 10, 99, 100, 101, 500, 999, 1_000, 1_499, 1_500, 1_501, 5_001, 31_000, -2_500,
        ];
        let span = SPANS[self.rng.usize(..SPANS.len())];
        self.now += span;
        self.steps.push(Step::Wait(span));
    }

    pub(super) fn subscribe(&mut self, connection: usize, channel: &str) {
        if !self.heard[connection].iter().any(|heard| heard == channel) {
            self.heard[connection].push(channel.to_owned());
        }
        self.send(connection, &["SUBSCRIBE", channel]);
    }

    pub(super) fn value(&mut self) -> String {
        if let Some((_, value)) = self.focus.clone().filter(|_| !self.one_in(4)) {
            return value;
        }
        let is_shared = self.is_shared != self.one_in(12);
        let all: &[&str] = if is_shared { &SHARED } else { &VALUES };
        if self.one_in(4) {
            return self.pick(all).to_owned();
        }
        let favourite = self.favourites[self.rng.usize(..self.favourites.len())];
        all[favourite % all.len()].to_owned()
    }

    pub(super) fn process(&mut self) -> String {
        if self.one_in(20) {
            return "no process".to_owned();
        }
        self.pick(&PROCESSES).to_owned()
    }

    pub(super) fn member(&mut self, value: &str) -> String {
        // Few, so that the same is asked for again.
        let at = VALUES
            .iter()
            .chain(&SHARED)
            .position(|one| *one == value)
            .unwrap_or_default();
        let process = if self.one_in(20) {
            self.process()
        } else {
            PROCESSES[at % 3].to_owned()
        };
        let claim = if self.one_in(20) {
            self.pick(&["0", "99999", "x"])
        } else {
            "1000"
        };
        let fence = if at % 2 == 0 { "1" } else { "0" };
        format!("{claim}:{fence}:{process}:{value}")
    }

    pub(super) fn lease(&mut self) -> String {
        self.pick(&["1000", "1000", "30000", "100", "1", "86400000"]).to_owned()
    }

    pub(super) fn flag(&mut self) -> String {
        self.pick(&["0", "1"]).to_owned()
    }

    pub(super) fn lock(&mut self) -> String {
        if let Some((lock, _)) = self.focus.clone().filter(|_| !self.one_in(8)) {
            return lock;
        }
        self.pick(&LOCKS).to_owned()
    }

    pub(super) fn queue(&mut self, lock: &str) -> String {
        let kind = if self.is_shared != self.one_in(20) {
            "shared"
        } else {
            "queue"
        };
        format!("l:%lock-{kind}:{{{lock}}}")
    }

    /// Returns some locks, each once.
    pub(super) fn locks(&mut self) -> Vec<String> {
        if let Some((lock, _)) = self.focus.clone().filter(|_| !self.one_in(4)) {
            return vec![lock];
        }
        let mut all: Vec<String> = LOCKS.iter().map(ToString::to_string).collect();
        self.rng.shuffle(&mut all);
        all.truncate(self.rng.usize(1..=2));
        all
    }

    pub(super) fn keep(&mut self) -> String {
        self.pick(&["0", "0", "0", "0", "500", "3000"]).to_owned()
    }

    pub(super) fn how(&mut self) -> String {
        self.pick(&["", "", "100:1000:0", "100:1000:1", "50:0:1", "5000:1:1", "x"])
            .to_owned()
    }

    pub(super) fn member_or_none(&mut self, value: &str) -> String {
        if self.rng.bool() {
            String::new()
        } else {
            self.member(value)
        }
    }

    /// Draws the keys and the arguments of a script, as the client gives them.
    pub(super) fn given(&mut self, name: &str) -> (Vec<String>, Vec<String>) {
        let (lock, value, channels) = (self.lock(), self.value(), CHANNELS.to_owned());
        // Now and then that of a slot of a cluster, which expires.
        let counter = if self.one_in(4) {
            format!("{COUNTER}:{{7}}")
        } else {
            COUNTER.to_owned()
        };
        let queue = self.queue(&lock);
        let old = |lock: &str| (format!("{lock}_lock"), format!("l:%lock-old:{{{lock}_lock}}"));
        let with_queues = |draw: &mut Self| {
            let locks = draw.locks();
            let keys = locks.iter().flat_map(|lock| [lock.clone(), draw.queue(lock)]);
            (locks.len(), keys.collect::<Vec<String>>())
        };
        match name {
            "acquire" | "shared_acquire" => {
                let (count, mut keys) = with_queues(self);
                keys.push(counter);
                let mut arguments = vec![self.flag(), self.flag()];
                if name == "shared_acquire" {
                    arguments.insert(0, channels);
                }
                for _ in 0..count {
                    arguments.extend([self.value(), self.lease()]);
                }
                (keys, arguments)
            }
            "renew" | "shared_renew" => {
                let locks = self.locks();
                let arguments = locks.iter().flat_map(|_| {
                    let lease = if self.one_in(3) { "0".to_owned() } else { self.lease() };
                    [self.value(), lease]
                });
                let arguments = arguments.collect();
                (locks, arguments)
            }
            "release" | "shared_release" => {
                let (count, keys) = with_queues(self);
                let mut arguments = vec![channels];
                let is_plain = self.one_in(2);
                for _ in 0..count {
                    let value = self.value();
                    if is_plain {
                        arguments.push(value);
                        continue;
                    }
                    let member = self.member_or_none(&value);
                    arguments.extend([value, self.keep(), member, self.how()]);
                }
                (keys, arguments)
            }
            "fence" | "shared_fence" => (vec![lock, counter], vec![value]),
            "raise_fence" | "raise_own_fence" => {
                // Below and above what the counter may have, of as many digits or of others.
                let digits = self.rng.usize(1..18);
                let token = self
                    .rng
                    .u64(10_u64.pow(u32::try_from(digits).unwrap_or(1) - 1)..10_u64.pow(18));
                if name == "raise_own_fence" {
                    (vec![lock, counter], vec![value, token.to_string()])
                } else {
                    (vec![counter], vec![token.to_string()])
                }
            }
            "shared_release_alone" => (vec![lock], vec![value, self.keep()]),
            "join" | "shared_join" => {
                let member = self.member(&value);
                let process = member.split(':').nth(2).unwrap_or_default().to_owned();
                (
                    vec![lock, queue, counter],
                    vec![value, self.lease(), channels, process, self.flag(), member],
                )
            }
            "refresh" | "shared_refresh" => {
                let (count, keys) = with_queues(self);
                let mut arguments = vec![channels, self.process(), self.flag()];
                for _ in 0..count {
                    let members = self.rng.usize(0..3);
                    arguments.push(members.to_string());
                    for _ in 0..members {
                        let value = self.value();
                        arguments.push(self.member(&value));
                    }
                }
                (keys, arguments)
            }
            "take" => (vec![lock, counter], vec![value, self.lease(), self.flag()]),
            "shared_take" => (vec![lock, queue, counter], vec![value, self.lease(), self.flag()]),
            "acquire_all" => {
                let (_, keys) = with_queues(self);
                let keys = std::iter::once(counter).chain(keys).collect();
                let former = if self.rng.bool() { self.value() } else { String::new() };
                (
                    keys,
                    vec![channels, value, former, self.lease(), self.flag(), self.flag()],
                )
            }
            "inspect" => {
                let keys = self.locks().into_iter().flat_map(|lock| {
                    let queues = ["queue", "shared"].map(|kind| format!("l:%lock-{kind}:{{{lock}}}"));
                    std::iter::once(lock).chain(queues)
                });
                (std::iter::once(counter).chain(keys).collect(), Vec::new())
            }
            "force_release" => (vec![lock, queue, counter], vec![channels]),
            "mark" => {
                // Of this run or another one, open or closed.
                if self.one_in(2) {
                    let (run, opens) = (self.pick(&["1a", "2b"]), self.now + self.rng.i64(-500..2_000));
                    let mark = format!("{run}:{opens}:{}", self.lease());
                    self.anywhere(&["SET", MARK, &mark]);
                }
                let run = self.pick(&["1a", "2b"]).to_owned();
                (vec![MARK.to_owned()], vec![run, self.lease(), self.flag()])
            }
            "marked_acquire" | "marked_acquire_all" | "marked_join" | "marked_take" => {
                let (mut keys, mut arguments) = self.given(&name["marked_".len()..]);
                if !self.one_in(4) {
                    self.anywhere(&["SET", MARK, "1a:0:1000"]);
                }
                keys.push(MARK.to_owned());
                arguments.push("1a:0:1000".to_owned());
                (keys, arguments)
            }
            "legacy_acquire" | "legacy_fence" => {
                let (lock, side) = old(&lock);
                (
                    vec![lock, side, counter],
                    vec![self.legacy_value(), self.lease(), self.flag()],
                )
            }
            "legacy_renew" => {
                let keys = self
                    .locks()
                    .iter()
                    .flat_map(|lock| <[String; 2]>::from(old(lock)))
                    .collect::<Vec<_>>();
                let arguments = (0..keys.len() / 2).flat_map(|_| {
                    let lease = if self.one_in(3) { "0".to_owned() } else { self.lease() };
                    [self.legacy_value(), lease]
                });
                let arguments = arguments.collect();
                (keys, arguments)
            }
            "legacy_release" => {
                let (lock, side) = old(&lock);
                (vec![lock, side], vec![self.legacy_value(), self.keep()])
            }
            "legacy_inspect" => {
                let keys = self.locks();
                let keys = keys.iter().flat_map(|lock| <[String; 2]>::from(old(lock)));
                (std::iter::once(counter).chain(keys).collect(), Vec::new())
            }
            "legacy_force_release" => {
                let (lock, side) = old(&lock);
                (vec![lock, side], Vec::new())
            }
            other => unreachable!("the script {other} is not known here"),
        }
    }

    pub(super) fn legacy_value(&mut self) -> String {
        if self.focus.is_some() && !self.one_in(4) {
            return VALUES[0].to_owned();
        }
        let other = usize::from(self.one_in(4));
        VALUES[other].to_owned()
    }

    pub(super) fn script(&mut self) {
        const USUAL: [[&str; 12]; 3] = [
            [
                "acquire",
                "acquire",
                "join",
                "join",
                "refresh",
                "release",
                "release",
                "take",
                "fence",
                "renew",
                "acquire_all",
                "inspect",
            ],
            [
                "shared_acquire",
                "shared_acquire",
                "shared_join",
                "shared_join",
                "shared_refresh",
                "shared_refresh",
                "shared_release",
                "shared_release",
                "shared_take",
                "shared_fence",
                "shared_renew",
                "inspect",
            ],
            [
                "legacy_acquire",
                "legacy_acquire",
                "legacy_acquire",
                "legacy_renew",
                "legacy_renew",
                "legacy_release",
                "legacy_release",
                "legacy_release",
                "legacy_fence",
                "legacy_fence",
                "legacy_inspect",
                "legacy_force_release",
            ],
        ];
        let name = if self.one_in(6) {
            self.scripts[self.rng.usize(..self.scripts.len())].0
        } else {
            let usual = USUAL[if self.is_old { 2 } else { usize::from(self.is_shared) }];
            self.pick(&usual)
        };
        self.script_named(name);
    }

    pub(super) fn script_named(&mut self, name: &str) {
        let (mut keys, mut arguments) = self.given(name);
        if self.one_in(15) {
            // What the client never says.
            let all = if self.rng.bool() || arguments.is_empty() {
                &mut keys
            } else {
                &mut arguments
            };
            let at = self.rng.usize(..all.len());
            match self.rng.u8(0..4) {
                0 => drop(all.remove(at)),
                1 => all[at] = String::new(),
                2 => all[at] = "-1".to_owned(),
                _ => all[at] = all[self.rng.usize(..all.len())].clone(),
            }
        }
        let source = self
            .scripts
            .iter()
            .find(|(one, _)| *one == name)
            .map_or("", |(_, source)| source);
        let count = keys.len().to_string();
        let hash = lock_simulation::server::script::hash(source.as_bytes());
        let mut words: Vec<&str> = if self.one_in(6) {
            vec!["EVAL", source]
        } else {
            vec!["EVALSHA", &hash]
        };
        words.push(&count);
        words.extend(keys.iter().chain(&arguments).map(String::as_str));
        self.anywhere(&words);
        if self.one_in(8) {
            // Delivered twice, perhaps later.
            if self.one_in(3) {
                self.wait();
            }
            self.anywhere(&words);
        }
    }

    pub(super) fn key(&mut self) -> String {
        let lock = self.lock();
        if self.is_old && self.rng.bool() {
            return format!("{lock}_lock");
        }
        match self.rng.u8(0..10) {
            0..4 => lock,
            4 => format!("{lock}_lock"),
            5 => format!("l:%lock-old:{{{lock}_lock}}"),
            6 => COUNTER.to_owned(),
            7 => "t".to_owned(),
            _ => self.queue(&lock),
        }
    }

    pub(super) fn score(&mut self) -> String {
        match self.rng.u8(0..10) {
            0 => "+inf".to_owned(),
            1 => "-inf".to_owned(),
            2 => format!("({}", self.now),
            3 => "x".to_owned(),
            4 => "0".to_owned(),
            5 => format!("{}.5", -self.now),
            6 => format!("{:?}", self.now as f64 / 1e13),
            7 => (self.now + 1_000).to_string(),
            8 => format!("{:?}", self.rng.f64() * 10_f64.powi(self.rng.i32(-8..24))),
            _ => self.rng.u8(0..9).to_string(),
        }
    }
}
