//! What the engine does on demand, and what only several servers together show: no real server is needed.

use std::time::Duration;

use lock_simulation::server::engine::Engine;
use lock_simulation::server::resp::Reply;
use lock_simulation::server::script::Scripts;
use lock_simulation::server::version::Version;

fn at(ms: u64) -> Duration {
    Duration::from_millis(1_700_000_000_000 + ms)
}

fn engine(version: Version) -> Engine {
    let scripts = Scripts::new(version, None).expect("there is memory for Lua");
    Engine::new(version, scripts)
}

fn ask(engine: &mut Engine, client: u64, words: &[&str], now: Duration) -> Reply {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    engine.execute(client, &words, now)
}

fn taken(engine: &mut Engine, client: u64) -> String {
    let out = engine.take_out(client, usize::MAX).unwrap_or_default();
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn wait_counts_the_replicas_that_have_caught_up() {
    let mut master = engine(Version::Redis8);
    let [mut one, mut other] = [engine(Version::Redis8), engine(Version::Redis8)];
    one.follow(&master);
    other.follow(&master);
    let client = master.open();
    ask(&mut master, client, &["SET", "a", "1"], at(0));
    assert_eq!(ask(&mut master, client, &["WAIT", "0", "0"], at(0)), Reply::Int(0));
    one.catch_up(&master, usize::MAX);
    assert_eq!(ask(&mut master, client, &["WAIT", "1", "0"], at(0)), Reply::Int(1));
    other.catch_up(&master, usize::MAX);
    assert_eq!(ask(&mut master, client, &["WAIT", "1", "0"], at(0)), Reply::Int(2));
}

#[test]
fn a_connection_that_waits_is_answered_when_a_replica_has_caught_up_or_its_time_is_over() {
    let mut master = engine(Version::Redis8);
    let mut replica = engine(Version::Redis8);
    replica.follow(&master);
    let client = master.open();
    ask(&mut master, client, &["SET", "a", "1"], at(0));
    assert_eq!(taken(&mut master, client), "+OK\r\n");
    for (caught_up, answer) in [(false, ":0\r\n$1\r\n1\r\n"), (true, ":1\r\n$1\r\n1\r\n")] {
        assert_eq!(ask(&mut master, client, &["WAIT", "1", "100"], at(1)), Reply::None);
        // What it sends meanwhile is carried out afterwards.
        ask(&mut master, client, &["GET", "a"], at(2));
        assert_eq!(taken(&mut master, client), "");
        assert_eq!(master.next_deadline(), Some(at(101)));
        if caught_up {
            replica.catch_up(&master, usize::MAX);
        }
        master.tick(at(if caught_up { 3 } else { 101 }));
        assert_eq!(taken(&mut master, client), answer);
        master.tick(at(0));
    }
}

#[test]
fn a_replica_that_is_too_far_behind_copies_all() {
    let mut master = engine(Version::Redis70);
    let mut replica = engine(Version::Redis70);
    replica.follow(&master);
    let client = master.open();
    for number in 0..20_000 {
        ask(&mut master, client, &["SET", "a", &number.to_string()], at(number));
    }
    assert_eq!(replica.catch_up(&master, usize::MAX), 0);
    let reader = replica.open();
    assert_eq!(ask(&mut replica, reader, &["GET", "a"], at(0)), Reply::text("19999"));
}

#[test]
fn a_refusal_on_demand_strikes_so_often() {
    let mut engine = engine(Version::Valkey9);
    let client = engine.open();
    let text = "TRYAGAIN Multiple keys request during rehashing of slot";
    engine.refuse("set", text, 2);
    for _ in 0..2 {
        assert_eq!(ask(&mut engine, client, &["SET", "a", "1"], at(0)), Reply::error(text));
    }
    assert_eq!(ask(&mut engine, client, &["SET", "a", "1"], at(0)), Reply::ok());
    engine.refuse_in_scripts("get", "OOM wanted", 1);
    let script = ["EVAL", "return redis.pcall('GET', 'a')", "0"];
    assert_eq!(ask(&mut engine, client, &["GET", "a"], at(0)), Reply::text("1"));
    assert_eq!(ask(&mut engine, client, &script, at(0)), Reply::error("OOM wanted"));
    assert_eq!(ask(&mut engine, client, &script, at(0)), Reply::text("1"));
}

#[test]
fn a_connection_that_does_not_read_is_ended() {
    let mut engine = engine(Version::Redis62);
    let [listener, client] = [engine.open(), engine.open()];
    ask(&mut engine, listener, &["SUBSCRIBE", "c"], at(0));
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 1000 2"];
    ask(&mut engine, client, &limit, at(0));
    let message = "x".repeat(2000);
    for (ms, is_there) in [(0, true), (2000, true), (2001, false)] {
        ask(&mut engine, client, &["PUBLISH", "c", &message], at(ms));
        assert_eq!(engine.sessions.contains_key(&listener), is_there, "after {ms} ms");
    }
}
