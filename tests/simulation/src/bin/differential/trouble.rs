//! What operators do, what connections lack, and how a queue becomes long.

use super::draw::{CHANNELS, Draw, PROCESSES};

/// What the client needs, as README lists it, and what the sequences use besides.
const PERMISSIONS: [&str; 21] = [
    "+get",
    "+mget",
    "+set",
    "+pttl",
    "+pexpire",
    "+del",
    "+eval",
    "+evalsha",
    "+time",
    "+incr",
    "+client|tracking",
    "+zadd",
    "+zrem",
    "+zscore",
    "+zrange",
    "+zrangebyscore",
    "+subscribe",
    "+publish",
    "+ping",
    "+hello",
    "+exists",
];

impl Draw<'_> {
    /// What operators do, and what a server refuses then.
    pub(super) fn trouble(&mut self) {
        match self.rng.u8(0..22) {
            14 => self.anywhere(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]),
            15 => self.anywhere(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]),
            16 => self.anywhere(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
            17 => self.anywhere(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            18 => self.anywhere(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 100000 0 0"]),
            19 => self.anywhere(&[
                "CONFIG",
                "SET",
                "client-output-buffer-limit",
                "pubsub 33554432 8388608 60",
            ]),
            20 => {
                let name = self.pick(&[
                    "maxmemory",
                    "client-output-buffer-limit",
                    "min-replicas-to-write",
                    "none",
                    "replica-serve-stale-data",
                ]);
                self.anywhere(&["CONFIG", "GET", name]);
            }
            21 => self.anywhere(&["CONFIG", "SET", "none", "1"]),
            12 => {
                let channel = format!("{CHANNELS}{}", self.pick(&PROCESSES));
                self.subscribe(1, &channel);
                let rule = self.pick(&["&*", "resetchannels", "&l:*", "&nothing", "off"]);
                self.anywhere(&["ACL", "SETUSER", "app", rule]);
            }
            13 => {
                let rule = self.pick(&["&*", "&l:*", "&nothing", "on", "nopass", ">x", "~*", "+@all"]);
                self.anywhere(&["ACL", "SETUSER", "app", "resetchannels", rule]);
            }
            0..2 => self.anywhere(&["CONFIG", "SET", "maxmemory", "1"]),
            2 => self.anywhere(&["CONFIG", "SET", "maxmemory", "0"]),
            3 => self.anywhere(&["REPLICAOF", "127.0.0.1", "1"]),
            4 => self.anywhere(&["REPLICAOF", "NO", "ONE"]),
            5 => self.anywhere(&["CONFIG", "SET", "replica-serve-stale-data", "no"]),
            6 => self.anywhere(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]),
            7 => self.anywhere(&["SCRIPT", "FLUSH", "SYNC"]),
            8 => self.anywhere(&["FLUSHALL"]),
            9 => self.anywhere(&["ACL", "DELUSER", "app"]),
            _ => {
                let mut words = vec![
                    "ACL",
                    "SETUSER",
                    "app",
                    "on",
                    "nopass",
                    "resetchannels",
                    "nocommands",
                    "resetkeys",
                ];
                words.push(self.pick(&["~l:*", "~l:a", "~*"]));
                words.push(self.pick(&["&l:*", "&nothing", "&*"]));
                words.extend(
                    PERMISSIONS
                        .into_iter()
                        .filter(|name| !self.one_in(8) || self.needs(name)),
                );
                self.send(0, &words);
                self.send(1, &["AUTH", "app", "x"]);
            }
        }
    }

    /// A script for a lock in a shared mode that stops halfway leaves what its loops over tables have not yet reached,
    /// which shows their order.
    fn needs(&self, name: &str) -> bool {
        self.has_other_order && self.is_shared && matches!(name, "+del" | "+zadd" | "+zrem")
    }

    /// Two connections may do all but one thing.
    pub(super) fn lack(&mut self) {
        let lacks = self.rng.usize(..PERMISSIONS.len());
        let mut words = vec![
            "ACL",
            "SETUSER",
            "app",
            "on",
            "nopass",
            "~*",
            "resetchannels",
            "&*",
            "nocommands",
        ];
        words.extend(
            PERMISSIONS
                .into_iter()
                .enumerate()
                .filter(|(at, name)| *at != lacks || self.needs(name))
                .map(|(_, name)| name),
        );
        self.send(0, &words);
        for connection in [1, 2] {
            self.send(connection, &["AUTH", "app", "x"]);
        }
    }

    /// Many who wait, or have held a lock, and are dead.
    pub(super) fn crowd(&mut self) {
        let lock = self.lock();
        let (queue, count) = (self.queue(&lock), self.rng.usize(50..140));
        let (now, living) = (self.now, self.pick(&PROCESSES));
        let of_lock = self.is_shared && self.rng.bool();
        let class = self.pick(&["r", "s2", "oQ"]);
        let mut words = vec!["ZADD".to_owned(), if of_lock { lock } else { queue }];
        for at in 0..count {
            if of_lock {
                let ends = now + self.rng.i64(-5_000..200);
                words.extend([ends.to_string(), format!("{class}:{at:032x}:host:3:crowd")]);
            } else {
                let process = if self.one_in(4) { living } else { "dead" };
                let shared = if self.is_shared {
                    format!("{class}:")
                } else {
                    String::new()
                };
                words.extend([
                    (at + 1).to_string(),
                    format!("1000:0:{process}:{shared}{at:032x}:host:3:crowd"),
                ]);
            }
        }
        if of_lock {
            words.extend([count.to_string(), format!("#{class}")]);
            if self.one_in(4) {
                for at in 0..110 {
                    words.extend(["1".to_owned(), format!("#o{at}")]);
                }
            }
        } else if self.rng.bool() {
            words.extend([(-now).to_string(), living.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.anywhere(&words);
    }

    /// What happens to one lock, by connections of which some may lack a permission.
    pub(super) fn story(&mut self) {
        const EXCLUSIVE: [&str; 12] = [
            "acquire",
            "acquire",
            "join",
            "release",
            "release",
            "release",
            "fence",
            "force_release",
            "inspect",
            "take",
            "refresh",
            "acquire_all",
        ];
        const SHARED: [&str; 11] = [
            "shared_acquire",
            "shared_acquire",
            "shared_join",
            "shared_join",
            "shared_release",
            "shared_release",
            "shared_fence",
            "force_release",
            "inspect",
            "shared_take",
            "shared_refresh",
        ];
        const LEGACY: [&str; 7] = [
            "legacy_acquire",
            "legacy_acquire",
            "legacy_release",
            "legacy_release",
            "legacy_fence",
            "legacy_inspect",
            "legacy_force_release",
        ];
        let (lock, value) = (self.lock(), self.value());
        let queue = self.queue(&lock);
        self.focus = Some((lock.clone(), value));
        let names: &[&str] = match (self.is_old, self.is_shared) {
            (true, _) => &LEGACY,
            (_, true) => &SHARED,
            _ => &EXCLUSIVE,
        };
        for _ in 0..self.rng.usize(3..12) {
            match self.rng.u8(0..16) {
                0 => self.lack(),
                1 => self.anywhere(&["ZADD", &lock, "1", "x"]),
                2 => {
                    // In the unit of the queue's places, somewhere around now.
                    let until = format!("{:?}", (self.now + self.rng.i64(-1500..1500)) as f64 / 1e13);
                    self.anywhere(&["ZADD", &queue, &until, "free"]);
                }
                3 => self.wait(),
                _ => {
                    let name = self.pick(names);
                    self.script_named(name);
                }
            }
        }
        self.focus = None;
    }
}
