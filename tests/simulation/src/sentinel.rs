//! A simulated sentinel: a server that keeps no data, and tells what it knows about a master.

use crate::server::Server;
use crate::server::resp::{Answer, Reply};

/// The name of the master.
pub const NAME: &str = "mymaster";
/// The channels on which a sentinel tells of a failover: when it knows the new master, and at the end.
pub const KNOWN: &str = "+failover-state-reconf-slaves";
pub const SWITCHED: &str = "+switch-master";

/// The place of a server or sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Returns the words for it.
    fn words(&self) -> [Reply; 2] {
        [Reply::text(&self.host), Reply::text(&self.port.to_string())]
    }
}

/// What a sentinel knows.
#[derive(Clone, Debug)]
pub struct Knowledge {
    /// What `GET-MASTER-ADDR-BY-NAME` answers.
    pub master: Address,
    /// What `MASTER` answers. A sentinel that carries a failover out has the former master here until its end.
    pub shown: Address,
    pub epoch: u64,
    /// Its own host.
    pub host: String,
    pub others: Vec<Address>,
    /// How often the sentinels were set up anew, which gives each another run id.
    pub set_up: u64,
}

/// The commands of a sentinel that are those of a server.
const USUAL: [&[u8]; 7] = [
    b"HELLO",
    b"AUTH",
    b"CLIENT",
    b"PING",
    b"SUBSCRIBE",
    b"UNSUBSCRIBE",
    b"PUBLISH",
];

impl Knowledge {
    /// Returns the answer to a command, or `None` to one that a server answers as well.
    pub fn answer(&self, words: &[&[u8]]) -> Option<Answer> {
        let is = |at: usize, word: &[u8]| words.get(at).is_some_and(|given| given.eq_ignore_ascii_case(word));
        if USUAL.iter().any(|usual| is(0, usual)) {
            return None;
        }
        if !is(0, b"SENTINEL") {
            let name = words.first().map(|word| String::from_utf8_lossy(word));
            let text = format!("ERR unknown command '{}'", name.unwrap_or_default());
            return Some(Err(Reply::error(text)));
        }
        if is(1, b"MYID") {
            return Some(Ok(Reply::text(&self.id_of(&self.host))));
        }
        let is_known = words.get(2).is_some_and(|name| *name == NAME.as_bytes());
        let unknown = || Err(Reply::error("ERR No such master with that name"));
        Some(if is(1, b"GET-MASTER-ADDR-BY-NAME") {
            Ok(if is_known {
                Reply::Array(self.master.words().to_vec())
            } else {
                Reply::Nil
            })
        } else if is(1, b"MASTER") {
            if is_known { Ok(self.about()) } else { unknown() }
        } else if is(1, b"SENTINELS") {
            let others = self.others.iter().map(|other| {
                let mut about = place(other);
                about.push((Reply::text("runid"), Reply::text(&self.id_of(&other.host))));
                Reply::Map(about)
            });
            if is_known {
                Ok(Reply::Array(others.collect()))
            } else {
                unknown()
            }
        } else {
            Err(Reply::error("ERR Unknown sentinel subcommand"))
        })
    }

    fn id_of(&self, host: &str) -> String {
        format!("{host}-{}", self.set_up)
    }

    fn about(&self) -> Reply {
        let mut about = place(&self.shown);
        about.insert(0, (Reply::text("name"), Reply::text(NAME)));
        about.push((Reply::text("flags"), Reply::text("master")));
        about.push((Reply::text("config-epoch"), Reply::text(&self.epoch.to_string())));
        Reply::Map(about)
    }
}

fn place(address: &Address) -> Vec<(Reply, Reply)> {
    let [host, port] = address.words();
    vec![(Reply::text("ip"), host), (Reply::text("port"), port)]
}

impl Server {
    /// Makes this server a sentinel.
    pub fn watches(&self, knowledge: Knowledge) {
        self.change(|engine| engine.watches = Some(knowledge));
    }

    /// Changes what a sentinel knows.
    pub fn learns(&self, learns: impl FnOnce(&mut Knowledge)) {
        self.change(|engine| engine.watches.as_mut().map(learns));
    }

    /// Returns `true` if it is a sentinel.
    pub fn is_sentinel(&self) -> bool {
        self.read(|engine| engine.watches.is_some())
    }

    /// Tells those who listen to a sentinel.
    pub fn tells(&self, channel: &str, message: &str) {
        self.change(|engine| engine.publish(channel.as_bytes(), message.as_bytes(), false));
    }
}
