//! What the caller hears of a server, or of something else at its address, that turns a connection away.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_tests::certificates::Certificate;
use lock_tests::proxy::Close;
use lock_tests::{Action, Command, PATIENCE, Proxy, Server, chain, eventually, patient};

fn unhurried(url: &str) -> LockManagerBuilder {
    LockManager::builder(url)
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
}

/// The start-up check and a call say this. If it `lasts`, the call does not wait for it to pass.
async fn says(manager: LockManagerBuilder, lasts: bool, says: &[&str]) {
    let manager = manager.build().unwrap();
    let check = chain(&manager.check_connection().await.unwrap_err());
    let wait = if lasts {
        PATIENCE * 2
    } else {
        Duration::from_millis(200)
    };
    let error = manager.lock("k").wait(wait).acquire().await.unwrap_err();
    let LockError::Store { source, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(source.is_permanent(), lasts, "{error:?}");
    assert_eq!(error.is_retryable(), !lasts, "{error:?}");
    for says in says {
        assert!(check.contains(says), "{check} does not say: {says}");
        // A call may give up before it has been answered.
        let text = chain(&error);
        assert!(!lasts || text.contains(says), "{text} does not say: {says}");
    }
    manager.shutdown().await;
}

fn at(address: SocketAddr) -> LockManagerBuilder {
    unhurried(&format!("redis://{address}"))
}

/// Something at an address that serves each connection by a function, and closes it then.
fn listener(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// The next bytes, or nothing at the end.
fn read(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let read = stream.read(&mut bytes).unwrap_or_default();
    bytes.truncate(read);
    bytes
}

const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default \
                         user. In this mode connections are only accepted from the loopback interface.\r\n";

#[tokio::test]
async fn what_is_said_before_the_connection_is_closed_reaches_the_caller() {
    for (answer, words, lasts) in [
        (
            PROTECTED,
            ["DENIED Redis is running in protected mode", "requirepass"],
            true,
        ),
        (
            "-ERR max number of clients reached\r\n",
            ["max number of clients reached", "raise the server's maxclients"],
            false,
        ),
        (
            "-NOAUTH HELLO must be called with the client already authenticated\r\n",
            ["NOAUTH", "give a valid user and password"],
            true,
        ),
        (
            "-MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.\r\n",
            ["MISCONF", "let the server save its data again"],
            false,
        ),
        (
            "-LOADING Redis is loading the dataset in memory\r\n",
            ["LOADING", "wait until the server is ready"],
            false,
        ),
    ] {
        // A server that refuses does not read, so the client's own bytes may find the connection reset.
        let at_once = listener(move |mut stream| drop(stream.write_all(answer.as_bytes())));
        let when_asked = listener(move |mut stream| {
            read(&mut stream);
            drop(stream.write_all(answer.as_bytes()));
        });
        for address in [at_once, when_asked] {
            says(at(address), lasts, &words).await;
        }
    }
}

/// An address of this machine that is not the loopback's. Nothing is sent to find it.
fn other_address() -> Option<SocketAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?;
    (!address.ip().is_loopback()).then_some(address)
}

#[tokio::test]
async fn protected_mode_is_told_with_what_to_do() {
    let Some(mut address) = other_address() else {
        eprintln!("this machine has the loopback's address only, from which protected mode keeps nobody");
        return;
    };
    let server = Server::builder()
        .arg("bind", "* -::*")
        .arg("protected-mode", "yes")
        .start();
    // Before 7.0, an address to listen at turns the mode off.
    if !server.version().is_7() {
        return;
    }
    address.set_port(server.port());
    says(at(address), true, &["DENIED", "protected mode", "requirepass"]).await;
}

#[tokio::test]
async fn a_server_with_all_the_clients_it_takes_is_told_and_waited_for() {
    let server = Server::start();
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]);
    says(
        unhurried(&server.url()),
        false,
        &["max number of clients reached", "raise the server's maxclients"],
    )
    .await;

    let manager = unhurried(&server.url()).build().unwrap();
    let waiting = manager.lock("k").wait(PATIENCE * 2).acquire();
    let raise = async {
        eventually("a connection to be refused", || async {
            server.info("rejected_connections") != "0"
        })
        .await;
        server.cmd(&["CONFIG", "SET", "maxclients", "100"]);
    };
    let (guard, ()) = tokio::join!(waiting, raise);
    guard.unwrap().release().await.unwrap();
}

/// As a proxy does that knows the commands of older clients only.
#[tokio::test]
async fn a_proxy_that_hangs_up_at_hello_is_named_as_such() {
    for pong in ["+PONG\r\n", "-NOAUTH Authentication required.\r\n"] {
        let address = listener(move |mut stream| {
            while read(&mut stream).windows(4).any(|word| word == b"PING") {
                stream.write_all(pong.as_bytes()).unwrap();
            }
        });
        says(
            at(address),
            true,
            &[
                "closes the connection at `HELLO 3`",
                "proxy",
                "give the URL of the server itself",
            ],
        )
        .await;
    }
}

/// As a proxy does that answers `PING` itself while its server is down.
#[tokio::test]
async fn what_has_answered_hello_before_is_waited_for_when_it_hangs_up_there() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let manager = patient(unhurried(&proxy.url())).await;
    let is_down = Arc::new(AtomicBool::new(true));
    let hangs_up = Arc::clone(&is_down);
    let is_refused = move |command: &Command| command.is("HELLO") && hangs_up.load(Ordering::Relaxed);
    let refused = proxy.on_each(is_refused, Action::CloseBefore(Close::Fin));
    proxy.cut(Close::Fin);
    let waiting = manager.lock("k").wait(PATIENCE * 2).acquire();
    let outage = async {
        refused.done_times(8).await;
        is_down.store(false, Ordering::Relaxed);
    };
    let (guard, ()) = tokio::join!(waiting, outage);
    guard.unwrap().release().await.unwrap();
}

/// As a balancer does whose servers are down, or a server that is about to end.
#[tokio::test]
async fn a_connection_that_is_closed_without_a_word_is_told_and_tried_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let address = listener(move |mut stream| {
        read(&mut stream);
        counted.fetch_add(1, Ordering::Relaxed);
    });
    says(
        at(address),
        false,
        &["closed the connection without an answer", "rediss://"],
    )
    .await;
    let manager = unhurried(&format!("redis://{address}")).build().unwrap();
    let before = asked.load(Ordering::Relaxed);
    let waiting = manager.lock("k").wait(PATIENCE * 2).acquire();
    let counting = eventually("more tries", || async { asked.load(Ordering::Relaxed) > before + 6 });
    tokio::select! {
        waited = waiting => panic!("{waited:?}"),
        () = counting => {}
    }
}

#[tokio::test]
async fn something_else_than_a_server_is_named_as_such() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"J\0\0\0\n8.0.36\0\x0b\0\0\0",
    ] {
        let address = listener(move |mut stream| {
            read(&mut stream);
            drop(stream.write_all(answer));
        });
        let shown = String::from_utf8_lossy(&answer[..3]).escape_debug().to_string();
        says(at(address), true, &["is no Redis or Valkey server", &shown]).await;
    }
}

#[tokio::test]
async fn plain_text_to_tls_and_tls_to_plain_text_are_named_as_such() {
    let server = Server::builder().tls(Certificate::Valid).start();
    let plain = server.url().replace("rediss://", "redis://");
    says(
        unhurried(&plain),
        false,
        &["closed the connection without an answer", "rediss://"],
    )
    .await;
    // What a server of TLS answers depends on its library: an alert, or nothing.
    let address = listener(|mut stream| {
        read(&mut stream);
        drop(stream.write_all(b"\x15\x03\x01\0\x02\x02\x46"));
    });
    says(at(address), true, &["the server speaks TLS", "rediss://"]).await;

    let address = listener(|mut stream| {
        read(&mut stream);
        drop(stream.write_all(b"-ERR unknown command\r\n"));
    });
    says(
        unhurried(&format!("rediss://{address}")),
        true,
        &["does not speak TLS", "redis://"],
    )
    .await;
}

/// It may appear, as the names of containers do.
#[tokio::test]
async fn a_name_that_does_not_exist_is_told_and_tried_again() {
    says(
        unhurried("redis://nobody.invalid:6379"),
        false,
        &["`nobody.invalid`", "check the host in the URL"],
    )
    .await;
}

/// Each sentinel and each node is asked on a connection of its own.
#[tokio::test]
async fn what_a_sentinel_or_a_node_says_reaches_the_caller_too() {
    for (answer, is_permanent, words) in [
        (
            PROTECTED,
            true,
            ["DENIED Redis is running in protected mode", "requirepass"],
        ),
        (
            "-ERR max number of clients reached\r\n",
            false,
            ["max number of clients reached", "raise the server's maxclients"],
        ),
    ] {
        let refusing = || listener(move |mut stream| drop(stream.write_all(answer.as_bytes())));
        for url in [
            format!("redis+sentinel://{},{}/orders", refusing(), refusing()),
            format!("redis+cluster://{},{}", refusing(), refusing()),
        ] {
            says(unhurried(&url), is_permanent, &words).await;
        }
    }
}

// docs/upstream.md. Fails once `redis` tells it.
#[tokio::test]
async fn redis_loses_what_a_server_says_before_it_closes_a_connection() {
    let address = listener(|mut stream| {
        read(&mut stream);
        drop(stream.write_all(PROTECTED.as_bytes()));
    });
    let client = redis::Client::open(format!("redis://{address}/?protocol=resp3")).unwrap();
    let error = client.get_multiplexed_async_connection().await.unwrap_err();
    assert!(!error.to_string().contains("DENIED"), "{error}");
}
