//! Servers start, stop, forget and remember as told, and none is left behind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lock_tests::certificates::Certificate;
use lock_tests::server::{Persistence, SLOWNESS, Server, slow_down};
use lock_tests::{eventually, lock_child};

#[tokio::test]
async fn server_of_the_wanted_version_answers() {
    let server = Server::start();
    if let Ok(name) = std::env::var("LOCK_TEST_SERVER") {
        assert_eq!(server.name(), name);
    }
    let kind = format!("{:?}", server.version().kind).to_lowercase();
    assert!(
        server.name().starts_with(&kind),
        "{} is {:?}",
        server.name(),
        server.version()
    );
    assert_eq!(server.info("process_id"), server.pid().to_string());
    assert_eq!(server.info("tcp_port"), server.port().to_string());

    let mut connection = server.connection().await;
    let () = redis::cmd("SET")
        .arg("k")
        .arg("v")
        .arg("PX")
        .arg(60_000)
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(server.value("k").as_deref(), Some("v"));
    assert!(server.exists("k") && server.time_left("k") > Some(Duration::from_secs(30)));
    assert_eq!(server.keys(), ["k"]);
    assert_eq!(server.time_left("missing"), None);
    assert!(server.try_cmd(&["LPUSH", "k", "x"]).is_err());
}

#[test]
fn two_servers_share_nothing() {
    let (a, b) = (Server::start(), Server::start());
    assert_ne!(a.port(), b.port());
    a.cmd(&["SET", "k", "a"]);
    assert!(!b.exists("k"));
}

#[test]
fn unix_socket_serves_too() {
    let server = Server::builder().password("secret").start();
    let mut connection = redis::Client::open(server.unix_url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("PING").query::<()>(&mut connection).unwrap();
}

#[test]
fn directives_reach_the_server() {
    let server = Server::builder().arg("maxmemory", "1mb").arg("save", "\"\"").start();
    let maxmemory: Vec<String> = server.ask(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(maxmemory, ["maxmemory", "1048576"]);
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn refused_directive_is_shown() {
    let _ = Server::builder().arg("no-such-directive", "1").start();
}

#[tokio::test]
async fn password_is_asked_for_and_carried_by_the_url() {
    let server = Server::builder().password("secret").start();
    let () = redis::cmd("PING")
        .query_async(&mut server.connection().await)
        .await
        .unwrap();
    let naked = redis::Client::open(format!("redis://{}", server.addr())).unwrap();
    let refused = naked
        .get_connection()
        .and_then(|mut connection| redis::cmd("PING").query::<()>(&mut connection));
    assert!(refused.unwrap_err().to_string().contains("NOAUTH"));
    // The harness still gets in when the password changes.
    server.cmd(&["CONFIG", "SET", "requirepass", "other"]);
    server.cmd(&["PING"]);
}

#[test]
fn a_slowed_down_server_counts_less_time_and_its_clock_goes_on() {
    let servers = [(); 2].map(|()| Server::builder().slow_clock().start());
    slow_down(&servers);
    let began = Instant::now();
    let times = || {
        servers.each_ref().map(|server| {
            let [seconds, micros] = server.ask::<[u64; 2]>(&["TIME"]);
            Duration::from_secs(seconds) + Duration::from_micros(micros)
        })
    };
    let before = times();
    std::thread::sleep(Duration::from_millis(50));
    let after = times();
    let most = began.elapsed() / SLOWNESS + Duration::from_micros(1);
    for (before, after) in before.into_iter().zip(after) {
        let passed = after.checked_sub(before).expect("it never goes back");
        assert!(
            Duration::from_millis(50) / SLOWNESS <= passed + Duration::from_micros(1) && passed <= most,
            "{passed:?}"
        );
    }
    let [first, second] = before;
    let apart = second.checked_sub(first);
    assert!(
        apart.is_some_and(|apart| apart <= most),
        "the clocks differ: {before:?}"
    );
}

#[test]
fn paused_server_is_silent_until_resumed() {
    let server = Server::start();
    let mut client = TcpStream::connect(server.addr()).unwrap();
    server.pause();
    client.write_all(b"PING\r\n").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    client.read_exact(&mut [0; 7]).unwrap_err();
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.cmd(&["PING"])));
    assert!(asked.is_err(), "a question to a paused server must not hang");
    server.resume();
    client.set_read_timeout(None).unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn server_can_be_paused_again_and_killed_while_paused() {
    let server = Server::start();
    for _ in 0..3 {
        server.pause();
        server.pause();
        server.resume();
        server.cmd(&["PING"]);
    }
    server.pause();
    server.kill();
    assert!(!server.is_running());
}

#[test]
fn restart_without_persistence_forgets_and_keeps_the_port() {
    let server = Server::start();
    let (pid, port) = (server.pid(), server.port());
    server.cmd(&["SET", "k", "v"]);
    server.restart();
    assert_ne!(server.pid(), pid);
    assert_eq!(server.info("tcp_port"), port.to_string());
    assert!(!server.exists("k"));
}

#[test]
fn restart_brings_back_what_was_saved_and_no_more() {
    let server = Server::start();
    server.cmd(&["SET", "before", "v"]);
    server.cmd(&["SAVE"]);
    server.cmd(&["SET", "after", "v"]);
    server.restart();
    assert_eq!(server.keys(), ["before"]);
    server.restart_empty();
    assert!(server.keys().is_empty());
}

#[test]
fn append_only_file_keeps_every_write() {
    let server = Server::builder().persistence(Persistence::AofAlways).start();
    server.cmd(&["SET", "k", "v"]);
    server.restart();
    assert!(server.exists("k"));
    server.terminate();
    server.start_again();
    assert!(server.exists("k"));
}

#[test]
fn killed_server_refuses_connections_until_started_again() {
    let server = Server::start();
    server.kill();
    assert!(!server.is_running());
    TcpStream::connect(server.addr()).unwrap_err();
    server.start_again();
    TcpStream::connect(server.addr()).unwrap();
}

#[test]
fn dropped_server_leaves_no_process_and_no_folder() {
    let server = Server::start();
    let (pid, folder) = (server.pid(), server.folder().to_owned());
    drop(server);
    assert!(!runs(pid) && !folder.exists());
}

/// The child starts a server and is killed before it could clean up.
#[tokio::test]
async fn aborted_test_process_leaves_no_server_behind() {
    let mut child = lock_child!("serve").spawn();
    let line = child.line("serving").await;
    let (pid, folder) = (line.words()[0].parse().unwrap(), line.words()[1].to_owned());
    assert!(runs(pid));
    child.kill();
    eventually("the orphaned server to be killed", || async { !runs(pid) }).await;
    eventually("the orphaned server's folder to be removed", || async {
        !std::fs::exists(&folder).unwrap()
    })
    .await;
}

fn runs(pid: u32) -> bool {
    // `<pid> (<name>) <state> …`. A zombie is gone: it waits only for its new parent to look.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Chooses the cryptography of this process, which `redis`'s own client needs.
fn choose_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[tokio::test]
async fn valid_certificate_is_accepted() {
    choose_cryptography();
    let server = Server::builder().tls(Certificate::Valid).start();
    let () = redis::cmd("PING")
        .query_async(&mut server.connection().await)
        .await
        .unwrap();
}

#[test]
fn each_bad_certificate_is_refused_for_its_reason() {
    choose_cryptography();
    for (certificate, reason) in [
        (Certificate::Expired, "expired"),
        (Certificate::Early, "not valid yet"),
        (Certificate::WrongName, "name"),
        (Certificate::Stranger, "unknownissuer"),
        (Certificate::ItsOwnAuthority, "causedasendentity"),
    ] {
        let server = Server::builder().tls(certificate).start();
        let root_cert = Some(std::fs::read(server.tls_files().authority).unwrap());
        let client = redis::Client::build_with_tls(
            server.url(),
            redis::TlsCertificates {
                client_tls: None,
                root_cert,
            },
        )
        .unwrap();
        let Err(error) = client.get_connection() else {
            panic!("{certificate:?} was accepted")
        };
        assert!(
            error.to_string().to_lowercase().contains(reason),
            "{certificate:?}: {error}"
        );
    }
}

#[test]
fn cut_control_connection_is_opened_again() {
    let server = Server::start();
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"]);
    server.cmd(&["PING"]);
}
