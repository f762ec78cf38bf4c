//! Single commands, as clients of all kinds send them.

use super::draw::{CHANNELS, CONNECTIONS, Draw, PROCESSES};

impl Draw<'_> {
    /// One command on data, as clients of other kinds send it.
    pub(super) fn data(&mut self) {
        let (key, value, other) = (self.key(), self.value(), self.key());
        let member = match self.rng.u8(0..4) {
            0 => self.member(&value),
            1 => self.process(),
            2 => self
                .pick(&["#r", "#w", "#s2", "#oQ", "fence:1700000000000000", "free"])
                .to_owned(),
            _ => value.clone(),
        };
        let (lease, score, end) = (self.lease(), self.score(), self.score());
        let soon = (self.now + self.rng.i64(-1_000..3_000)).to_string();
        let date = (self.now + 2_000).to_string();
        let words: Vec<&str> = match self.rng.u8(0..40) {
            0..3 => vec!["GET", &key],
            3 => vec!["MGET", &key, &other],
            4 => vec!["SET", &key, &value],
            5..8 => vec!["SET", &key, &value, "PX", &lease],
            8 => vec!["SET", &key, &value, "NX", "PX", &lease],
            9 => vec!["SET", &key, &value, "NX", "GET", "PX", &lease],
            10 => vec!["SET", &key, &value, "XX", "GET"],
            11 => vec!["SET", &key, &value, "PXAT", &soon],
            12 => vec!["SET", &key, "41", "KEEPTTL"],
            13 => vec!["SET", &key, &soon],
            14 => vec!["INCR", &key],
            15..18 => vec!["DEL", &key],
            18 => vec!["DEL", &key, &other, &key],
            19 => vec!["UNLINK", &key],
            20 => vec!["EXISTS", &key, &other, &key],
            21 => vec!["TYPE", &key],
            22 => vec!["PTTL", &key],
            23 => vec!["TTL", &key],
            24 => vec!["PEXPIRE", &key, &lease],
            25 => vec!["PEXPIREAT", &key, &soon],
            26 => vec!["PERSIST", &key],
            27 => vec!["SETNX", &key, &date],
            28 => vec!["GETSET", &key, &date],
            29 | 30 => vec!["ZADD", &key, &score, &member],
            31 => vec!["ZADD", &key, "NX", &score, &member, "1", &value],
            32 => vec!["ZREM", &key, &member, &value],
            33 => vec!["ZSCORE", &key, &member],
            34 => vec!["ZCARD", &key],
            35 => vec!["ZRANGE", &key, "0", "-1", "WITHSCORES"],
            36 => vec!["ZRANGE", &key, "-2", "1"],
            37 => vec!["ZRANGEBYSCORE", &key, &score, &end, "WITHSCORES"],
            38 => vec!["ZRANGEBYSCORE", &key, &score, &end, "LIMIT", "0", "2"],
            _ => vec!["SCAN", "0", "MATCH", "l:*", "COUNT", "1000"],
        };
        self.anywhere(&words);
    }

    /// What connections say about themselves and to each other.
    pub(super) fn talk(&mut self) {
        let connection = self.rng.usize(..CONNECTIONS);
        let process = self.pick(&PROCESSES);
        let channel = format!("{CHANNELS}{process}");
        match self.rng.u8(0..36) {
            0..4 => self.send(connection, &["PUBLISH", &channel, "hello"]),
            4..6 => self.subscribe(connection, &channel),
            6 => {
                self.heard[connection].retain(|heard| *heard != channel);
                self.send(connection, &["UNSUBSCRIBE", &channel]);
            }
            // In which order a server goes through several is not told.
            7 if self.heard[connection].len() < 2 => {
                self.heard[connection].clear();
                self.send(connection, &["UNSUBSCRIBE"]);
            }
            7 | 8 => self.send(connection, &["CLIENT", "TRACKING", "ON", "NOLOOP"]),
            9 => self.send(connection, &["CLIENT", "TRACKING", "OFF"]),
            10 => self.send(connection, &["CLIENT", "ID"]),
            11 => self.send(connection, &["CLIENT", "SETNAME", "somebody"]),
            12 => self.send(connection, &["CLIENT", "GETNAME"]),
            13 => self.send(connection, &["CLIENT", "SETINFO", "LIB-NAME", "redis-rs"]),
            14 => self.send(connection, &["CLIENT", "NO-TOUCH", "ON"]),
            15 if self.one_in(3) => self.send(connection, &["CLIENT", "KILL", "ID", "$0"]),
            15 => self.send(connection, &["CLIENT", "KILL", "ID", "$1", "SKIPME", "no"]),
            16 => self.send(connection, &["CLIENT", "TRACKINGINFO"]),
            17 => self.send(connection, &["TIME"]),
            18 => self.send(connection, &["HELLO", "3"]),
            19 => self.send(connection, &["ECHO", "hello"]),
            20 => self.send(connection, &["SELECT", "0"]),
            22 => self.send(connection, &["SSUBSCRIBE", &channel]),
            23 => self.send(connection, &["SPUBLISH", &channel, "hello"]),
            24 => self.send(connection, &["SUNSUBSCRIBE", &channel]),
            25 => {
                // More than the limit of those who hear it, or less. Valkey does not count what is long.
                let many = (self.rng.usize(1..4) * 70).to_string();
                let body = "for _ = 1, ARGV[1] do redis.call('PUBLISH', KEYS[1], string.rep('x', 1000)) end";
                self.send(connection, &["EVAL", body, "1", &channel, &many]);
            }
            26 => self.send(connection, &["CLIENT", "KILL", "TYPE", "pubsub"]),
            27 => self.send(connection, &["CLIENT", "KILL", "USER", "app"]),
            28 => self.send(connection, &["RESET"]),
            29 => self.send(connection, &["HELLO"]),
            30 => self.send(connection, &["HELLO", "3", "AUTH", "app", "x", "SETNAME", "me"]),
            31 => self.send(connection, &["HELLO", "2"]),
            32 => self.send(connection, &["ACL", "WHOAMI"]),
            33 => self.send(connection, &["WAIT", "0", "0"]),
            _ => {
                let at = self.rng.usize(..self.scripts.len());
                let hash = lock_simulation::server::script::hash(self.scripts[at].1.as_bytes());
                let other = "ffffffffffffffffffffffffffffffffffffffff";
                self.send(connection, &["SCRIPT", "EXISTS", &hash, other]);
            }
        }
    }

    /// What no client that is in its right mind sends.
    pub(super) fn nonsense(&mut self) {
        let key = self.key();
        let bodies = [
            "return redis.call('GET', KEYS[1])",
            "return redis.pcall('ZADD', KEYS[1], 1, 'x')",
            "return redis.call('INCR', KEYS[1])",
            "return redis.call('NONE', KEYS[1])",
            "return redis.pcall('NONE', KEYS[1])",
            "return redis.call('SET', KEYS[1])",
            "return redis.call('SUBSCRIBE', 'x')",
            "return redis.call()",
            "return redis.call('WAIT', 1, 100)",
            "return redis.call('SET', KEYS[1], {})",
            "new = 1",
            "return old",
            "\n\nerror('wrong')",
            "error({err = 'MINE is wrong'})",
            "return nil + 1",
            "return {1, 2.9, -2.9, 'a', true, false, {ok = 'FINE'}, {err = 'MINE bad'}, {{}}, nil, 1}",
            "return redis.error_reply('MINE is wrong')",
            "return redis.error_reply('wrong')",
            "return redis.status_reply('FINE')",
            "return redis.sha1hex('')",
            "return {redis.call('TIME')[1] * 1000, 1e15, 2^53, -0.5}",
            "return tostring(2^53) .. ' ' .. 0.1 .. ' ' .. 1e100",
            "redis.call('SET', KEYS[1], 2^53 + 0.0) return redis.call('GET', KEYS[1])",
            "redis.call('SET', KEYS[1], 0.1 + 0.2) return redis.call('GET', KEYS[1])",
            "redis.call('SET', KEYS[1], 1e-7) return redis.call('GET', KEYS[1])",
            "redis.set_repl(redis.REPL_NONE) return redis.call('DEL', KEYS[1])",
            "return (",
            "#!lua flags=no-writes\nreturn redis.call('SET', KEYS[1], 'x')",
            "#!lua flags=no-writes\nreturn redis.pcall('SET', KEYS[1], 'x')",
            "#!lua flags=none\nreturn 1",
            "#!lua",
            "#!perl\nreturn 1",
            "#!lua flags=allow-stale,no-writes\nreturn redis.call('GET', KEYS[1])",
        ];
        let body = self.pick(&bodies);
        let words: &[&str] = match self.rng.u8(0..28) {
            0..12 => &["EVAL", body, "1", &key, "argument"],
            12 => &["EVAL", "return 1", "-1"],
            13 => &["EVAL", "return 1", "2", "x"],
            14 => &["EVAL", "return 1", "x"],
            15 => &["EVALSHA", "abc", "0"],
            16 => &["EVALSHA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "0"],
            17 => &["GET"],
            18 => &["NONE", "such", "thing"],
            19 => &["CLIENT", "NONE"],
            20 => &["CLIENT", "KILL", "ID", "x"],
            21 => &["SET", &key, "x", "PX", "0"],
            22 => &["SET", &key, "x", "NX", "XX"],
            23 => &["SET", &key, "x", "PX", "9223372036854775807"],
            24 => &["PEXPIRE", &key, "9223372036854775807"],
            25 => &["ZADD", &key, "XX", "NX", "1", "x"],
            26 => &["SCRIPT", "LOAD", body],
            _ => &["SCRIPT", "KILL"],
        };
        self.anywhere(words);
    }
}
