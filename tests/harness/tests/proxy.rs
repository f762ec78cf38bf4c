//! Each fault of the proxy happens where a test asks for it, and nowhere else.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lock_tests::proxy::Close;
use lock_tests::{Action, Flow, PATIENCE, Proxy, Server, eventually, resp};

/// A client that sees the bytes as they are.
struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    fn of(proxy: &Proxy) -> Self {
        Self {
            stream: TcpStream::connect(proxy.addr()).unwrap(),
            bytes: Vec::new(),
        }
    }

    fn send(&mut self, command: &[&str]) {
        let packed = redis::cmd(command[0]).arg(&command[1..]).get_packed_command();
        self.stream.write_all(&packed).unwrap();
    }

    /// The next message, or how the connection ended.
    fn receive(&mut self) -> Result<String, ErrorKind> {
        self.receive_within(PATIENCE)
    }

    fn receive_within(&mut self, limit: Duration) -> Result<String, ErrorKind> {
        self.stream.set_read_timeout(Some(limit)).unwrap();
        loop {
            if let Some(length) = resp::message_length(&self.bytes).unwrap() {
                let rest = self.bytes.split_off(length);
                let message = std::mem::replace(&mut self.bytes, rest);
                return Ok(message.escape_ascii().to_string());
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof),
                Ok(read) => self.bytes.extend_from_slice(&chunk[..read]),
                // A read with a time-out is not restarted after a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.kind()),
            }
        }
    }

    fn ask(&mut self, command: &[&str]) -> Result<String, ErrorKind> {
        self.send(command);
        self.receive()
    }

    /// Nothing comes. The only proof of silence is to listen for a while.
    fn hears_nothing(&mut self) {
        assert_eq!(
            self.receive_within(Duration::from_millis(100)),
            Err(ErrorKind::WouldBlock)
        );
    }
}

const OK: Result<&str, ErrorKind> = Ok("+OK\\r\\n");

fn both() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let client = Client::of(&proxy);
    (server, proxy, client)
}

fn text(reply: &Result<String, ErrorKind>) -> Result<&str, ErrorKind> {
    reply.as_deref().map_err(|kind| *kind)
}

// --- Without a fault ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn commands_pass_and_are_recorded_with_their_replies() {
    let (server, proxy, mut client) = both();
    client.send(&["SET", "k", "v"]);
    client.send(&["GET", "k"]);
    assert_eq!(text(&client.receive()), OK);
    assert_eq!(client.receive().unwrap(), "$1\\r\\nv\\r\\n");
    assert_eq!(server.value("k").as_deref(), Some("v"));

    let commands = proxy.commands();
    assert_eq!(commands.len(), 2);
    assert!(
        commands[0].is("set") && commands[0].mentions("k") && !commands[0].mentions("kk") && !commands[0].is_script()
    );
    assert_eq!(commands[1].argument(1), Some("k"));
    assert_eq!(commands[1].reply_text().as_deref(), Some("$1\\r\\nv\\r\\n"));
    assert!(commands[0].at <= commands[1].at && commands[1].at <= commands[1].reply.as_ref().unwrap().0);
    assert_eq!(commands[0].to_string(), "#1 SET k v");
}

#[tokio::test]
async fn redis_client_with_pushes_works_through_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (sender, mut pushes) = tokio::sync::mpsc::unbounded_channel();
    let client = redis::Client::open(format!("{}?protocol=resp3", proxy.url())).unwrap();
    let config = redis::AsyncConnectionConfig::new()
        .set_push_sender(sender)
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    let () = connection.subscribe("channel").await.unwrap();
    let () = redis::cmd("SET")
        .arg("k")
        .arg("v")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(pushes.recv().await.unwrap().kind, redis::PushKind::Subscribe);
    server.cmd(&["PUBLISH", "channel", "hello"]);
    assert_eq!(pushes.recv().await.unwrap().kind, redis::PushKind::Message);
    // Replies are still matched after the pushes.
    proxy.on_next(
        |command| command.is("GET"),
        Action::AnswerInstead(b"$4\r\nfake\r\n".to_vec()),
    );
    let value: String = redis::cmd("GET").arg("k").query_async(&mut connection).await.unwrap();
    assert_eq!(value, "fake");
    assert!(proxy.commands().iter().any(|command| command.is("HELLO 3")));
}

#[tokio::test]
async fn proxy_works_while_the_test_blocks_its_only_thread() {
    let (_server, _proxy, mut client) = both();
    // A blocking read on a current-thread runtime.
    assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG\\r\\n");
}

// --- Flows -------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn delay_delays_each_direction() {
    let (_server, proxy, mut client) = both();
    let delay = Duration::from_millis(80);
    proxy.requests(Flow::Delay(delay));
    let started = Instant::now();
    // Together, because a slow line is not a narrow one.
    client.send(&["PING"]);
    client.send(&["PING"]);
    client.receive().unwrap();
    client.receive().unwrap();
    assert!(started.elapsed() >= delay);
    proxy.both(Flow::Delay(delay));
    let started = Instant::now();
    client.ask(&["PING"]).unwrap();
    assert!(started.elapsed() >= 2 * delay);
    proxy.both(Flow::Pass);
    client.ask(&["PING"]).unwrap();
}

#[tokio::test]
async fn lost_requests_reach_nobody_and_the_connection_stays_silent() {
    let (server, proxy, mut client) = both();
    proxy.requests(Flow::Lose);
    client.send(&["SET", "lost", "v"]);
    proxy
        .wait_for("the lost command", |command| command.mentions("lost"))
        .await;
    client.hears_nothing();
    proxy.heal();
    client.send(&["SET", "late", "v"]);
    client.hears_nothing();
    assert_eq!(text(&Client::of(&proxy).ask(&["SET", "new", "v"])), OK);
    assert_eq!(server.keys(), ["new"]);
}

#[tokio::test]
async fn lost_replies_were_executed() {
    let (server, proxy, mut client) = both();
    proxy.replies(Flow::Lose);
    client.send(&["SET", "k", "v"]);
    eventually("the command to be executed", || async { server.exists("k") }).await;
    client.hears_nothing();
}

#[tokio::test]
async fn partitioned_client_does_not_learn_that_the_server_died() {
    let (server, proxy, mut client) = both();
    client.ask(&["PING"]).unwrap();
    proxy.both(Flow::Lose);
    server.kill();
    client.hears_nothing();
}

#[tokio::test]
async fn held_requests_are_executed_in_order_on_release() {
    let (server, proxy, mut client) = both();
    proxy.requests(Flow::Hold);
    client.send(&["APPEND", "k", "a"]);
    client.send(&["APPEND", "k", "b"]);
    client.hears_nothing();
    assert!(!server.exists("k"));
    proxy.release();
    client.receive().unwrap();
    client.receive().unwrap();
    assert_eq!(server.value("k").as_deref(), Some("ab"));
}

#[tokio::test]
async fn held_replies_arrive_on_release() {
    let (server, proxy, mut client) = both();
    proxy.replies(Flow::Hold);
    client.send(&["SET", "k", "v"]);
    eventually("the command to be executed", || async { server.exists("k") }).await;
    client.hears_nothing();
    proxy.release();
    assert_eq!(text(&client.receive()), OK);
}

#[tokio::test]
async fn pushes_alone_can_be_lost() {
    let (server, proxy, mut client) = both();
    client.ask(&["HELLO", "3"]).unwrap();
    assert!(client.ask(&["SUBSCRIBE", "channel"]).unwrap().starts_with(">3"));
    proxy.pushes(false);
    server.cmd(&["PUBLISH", "channel", "lost"]);
    client.hears_nothing();
    assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG\\r\\n");
    proxy.pushes(true);
    server.cmd(&["PUBLISH", "channel", "heard"]);
    assert!(client.receive().unwrap().contains("heard"));
}

#[tokio::test]
async fn refused_subscription_leaves_replies_in_step() {
    let (server, proxy, mut client) = both();
    server.cmd(&["ACL", "SETUSER", "default", "resetchannels"]);
    client.ask(&["HELLO", "3"]).unwrap();
    assert!(client.ask(&["SUBSCRIBE", "channel"]).unwrap().starts_with("-NOPERM"));
    client.ask(&["PING"]).unwrap();
    proxy
        .wait_for("PING with its reply", |command| {
            command.is("PING") && command.reply_text().is_some_and(|reply| reply.contains("PONG"))
        })
        .await;
}

// --- Connections -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn cut_ends_connections_in_the_wanted_way() {
    for (close, seen) in [
        (Close::Fin, ErrorKind::UnexpectedEof),
        (Close::Reset, ErrorKind::ConnectionReset),
    ] {
        let (_server, proxy, mut client) = both();
        client.ask(&["PING"]).unwrap();
        assert_eq!(proxy.connections(), 1);
        proxy.cut(close);
        assert_eq!(client.receive(), Err(seen));
        eventually("the connection to be gone", || async { proxy.connections() == 0 }).await;
        assert_eq!(Client::of(&proxy).ask(&["PING"]).unwrap(), "+PONG\\r\\n");
        assert_eq!(proxy.accepted(), 2);
    }
}

#[tokio::test]
async fn refused_clients_find_nobody_and_others_go_on() {
    let (_server, proxy, mut client) = both();
    client.ask(&["PING"]).unwrap();
    proxy.refuse(true);
    assert_eq!(
        TcpStream::connect(proxy.addr()).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    client.ask(&["PING"]).unwrap();
    proxy.refuse(false);
    Client::of(&proxy).ask(&["PING"]).unwrap();
}

#[tokio::test]
async fn hung_up_client_is_gone_and_its_held_request_is_not() {
    let (server, proxy, mut client) = both();
    proxy.requests(Flow::Hold);
    client.send(&["SET", "k", "v"]);
    proxy.wait_for("the held command", |command| command.is("SET")).await;
    proxy.hang_up(Close::Fin);
    assert_eq!(client.receive(), Err(ErrorKind::UnexpectedEof));
    assert!(!server.exists("k"));
    proxy.release();
    eventually("the orphaned command to be executed", || async { server.exists("k") }).await;
}

#[tokio::test]
async fn client_that_leaves_does_not_take_its_held_request_back() {
    let (server, proxy, mut client) = both();
    proxy.requests(Flow::Hold);
    client.send(&["SET", "k", "v"]);
    proxy.wait_for("the held command", |command| command.is("SET")).await;
    drop(client);
    eventually("the client to be gone", || async { proxy.connections() == 0 }).await;
    proxy.release();
    eventually("the orphaned command to be executed", || async { server.exists("k") }).await;
    let harness_only = || async { server.ask::<String>(&["CLIENT", "LIST"]).lines().count() == 1 };
    eventually("the server to see the end of the connection", harness_only).await;
}

#[tokio::test]
async fn end_of_the_server_reaches_the_client() {
    let (server, _proxy, mut client) = both();
    client.ask(&["PING"]).unwrap();
    server.kill();
    client.receive().unwrap_err();
    server.start_again();
}

#[tokio::test]
async fn redirected_clients_reach_the_other_server() {
    let (_server, proxy, mut client) = both();
    client.ask(&["SET", "k", "old"]).unwrap();
    let other = Server::start();
    proxy.redirect(other.addr());
    Client::of(&proxy).ask(&["SET", "k", "new"]).unwrap();
    assert_eq!(other.value("k").as_deref(), Some("new"));
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), "$3\\r\\nold\\r\\n");
}

#[tokio::test]
async fn what_is_not_resp_passes_as_it_is() {
    let (_server, _proxy, mut client) = both();
    client.stream.write_all(b"PING\r\n").unwrap();
    assert_eq!(client.receive().unwrap(), "+PONG\\r\\n");
}

// --- Actions -----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn action_strikes_the_wanted_command_once() {
    let (_server, proxy, mut client) = both();
    let fake = || Action::Answer(b"+FAKE\r\n".to_vec());
    let second = proxy.on_nth(2, |command| command.is("PING"), fake());
    let third = proxy.on_next(|command| command.is("ECHO"), fake());
    let asked = ["PING", "PING", "PING"].map(|name| client.ask(&[name]).unwrap());
    assert_eq!(asked, ["+PONG\\r\\n", "+FAKE\\r\\n", "+PONG\\r\\n"]);
    assert_eq!((second.times(), third.times()), (1, 0));
    client.ask(&["ECHO", "x"]).unwrap();
    third.done().await;
}

#[tokio::test]
async fn standing_rule_strikes_each_time_until_healed() {
    let (server, proxy, mut client) = both();
    let rule = proxy.on_each(|command| command.is("SET"), Action::error("OOM command not allowed"));
    for _ in 0..3 {
        assert_eq!(
            client.ask(&["SET", "k", "v"]).unwrap(),
            "-OOM command not allowed\\r\\n"
        );
    }
    rule.done_times(3).await;
    assert!(!server.exists("k"));
    proxy.heal();
    assert_eq!(text(&client.ask(&["SET", "k", "v"])), OK);
}

#[tokio::test]
async fn own_answer_keeps_its_place_among_pipelined_replies() {
    let (_server, proxy, mut client) = both();
    proxy.on_next(|command| command.mentions("two"), Action::Answer(b"+FAKE\r\n".to_vec()));
    for word in ["one", "two", "three"] {
        client.send(&["ECHO", word]);
    }
    let replies = [(); 3].map(|()| client.receive().unwrap());
    assert_eq!(replies, ["$3\\r\\none\\r\\n", "+FAKE\\r\\n", "$5\\r\\nthree\\r\\n"]);
}

#[tokio::test]
async fn answer_instead_replaces_the_reply_of_an_executed_command() {
    let (server, proxy, mut client) = both();
    proxy.on_next(
        |command| command.is("SET"),
        Action::AnswerInstead(b"-LOADING later\r\n".to_vec()),
    );
    assert_eq!(client.ask(&["SET", "k", "v"]).unwrap(), "-LOADING later\\r\\n");
    assert!(server.exists("k"));
    assert_eq!(proxy.commands()[0].reply_text().as_deref(), Some("+OK\\r\\n"));
}

#[tokio::test]
async fn delayed_command_and_delayed_reply_take_their_time() {
    let (_server, proxy, mut client) = both();
    let delay = Duration::from_millis(80);
    for action in [Action::Delay(delay), Action::DelayReply(delay)] {
        proxy.on_next(|command| command.is("PING"), action);
        let started = Instant::now();
        client.ask(&["PING"]).unwrap();
        assert!(started.elapsed() >= delay);
    }
}

#[tokio::test]
async fn held_command_waits_and_so_does_what_follows_on_its_connection() {
    let (server, proxy, mut client) = both();
    let held = proxy.on_next(|command| command.mentions("held"), Action::Hold);
    client.send(&["SET", "held", "v"]);
    client.send(&["SET", "next", "v"]);
    held.done().await;
    client.hears_nothing();
    assert_eq!(text(&Client::of(&proxy).ask(&["SET", "other", "v"])), OK);
    assert_eq!(server.keys(), ["other"]);
    proxy.release();
    assert_eq!((text(&client.receive()), text(&client.receive())), (OK, OK));
}

#[tokio::test]
async fn held_reply_waits_after_execution() {
    let (server, proxy, mut client) = both();
    let held = proxy.on_next(|command| command.is("SET"), Action::HoldReply);
    client.send(&["SET", "k", "v"]);
    held.done().await;
    assert!(server.exists("k"));
    client.hears_nothing();
    proxy.release();
    assert_eq!(text(&client.receive()), OK);
}

#[tokio::test]
async fn command_is_delivered_after_its_sender_was_cut_off() {
    let (server, proxy, mut client) = both();
    let held = proxy.on_next(|command| command.is("SET"), Action::HoldThenClose(Close::Reset));
    client.send(&["SET", "k", "v"]);
    assert_eq!(client.receive(), Err(ErrorKind::ConnectionReset));
    held.done().await;
    assert!(!server.exists("k"));
    // A later command overtakes it.
    assert_eq!(text(&Client::of(&proxy).ask(&["SET", "other", "v"])), OK);
    proxy.release();
    eventually("the late command to be executed", || async { server.exists("k") }).await;
}

#[tokio::test]
async fn lost_request_silences_its_connection_only() {
    let (server, proxy, mut client) = both();
    let lost = proxy.on_next(|command| command.mentions("lost"), Action::LoseRequest);
    client.send(&["SET", "lost", "v"]);
    client.send(&["SET", "behind", "v"]);
    lost.done().await;
    client.hears_nothing();
    assert_eq!(text(&Client::of(&proxy).ask(&["SET", "other", "v"])), OK);
    assert_eq!(server.keys(), ["other"]);
}

#[tokio::test]
async fn lost_reply_was_executed_and_silences_its_connection() {
    let (server, proxy, mut client) = both();
    let lost = proxy.on_next(|command| command.mentions("lost"), Action::LoseReply);
    client.send(&["SET", "lost", "v"]);
    lost.done().await;
    assert!(server.exists("lost"));
    client.send(&["SET", "behind", "v"]);
    client.hears_nothing();
    assert_eq!(text(&Client::of(&proxy).ask(&["PING"])), Ok("+PONG\\r\\n"));
}

#[tokio::test]
async fn connection_closes_before_or_after_execution() {
    for close in [Close::Fin, Close::Reset] {
        let (server, proxy, _) = both();
        let seen = if close == Close::Fin {
            ErrorKind::UnexpectedEof
        } else {
            ErrorKind::ConnectionReset
        };

        proxy.on_next(|command| command.mentions("before"), Action::CloseBefore(close));
        assert_eq!(Client::of(&proxy).ask(&["SET", "before", "v"]), Err(seen));
        let after = proxy.on_next(|command| command.mentions("after"), Action::CloseAfter(close));
        assert_eq!(Client::of(&proxy).ask(&["SET", "after", "v"]), Err(seen));
        after.done().await;
        assert_eq!(server.keys(), ["after"]);
    }
}

#[tokio::test]
async fn duplicate_is_executed_twice_and_answered_once() {
    let (server, proxy, mut client) = both();
    proxy.on_next(|command| command.is("INCR"), Action::Duplicate);
    assert_eq!(client.ask(&["INCR", "k"]).unwrap(), ":1\\r\\n");
    assert_eq!(client.ask(&["PING"]).unwrap(), "+PONG\\r\\n");
    assert_eq!(server.value("k").as_deref(), Some("2"));
}

#[tokio::test]
async fn skipped_reply_puts_later_replies_out_of_step() {
    let (_server, proxy, mut client) = both();
    proxy.on_next(|command| command.mentions("one"), Action::SkipReply);
    client.send(&["ECHO", "one"]);
    client.send(&["ECHO", "two"]);
    assert_eq!(client.receive().unwrap(), "$3\\r\\ntwo\\r\\n");
}

#[tokio::test]
async fn counting_starts_at_a_mark() {
    let (_server, proxy, mut client) = both();
    client.ask(&["PING"]).unwrap();
    let mark = proxy.mark();
    client.ask(&["ECHO", "x"]).unwrap();
    assert_eq!((proxy.count(|_| true), proxy.commands()[mark..].len()), (2, 1));
    assert!(proxy.wait_after(mark, "ECHO", |_| true).await.is("ECHO"));
}

#[tokio::test]
async fn nothing_pipelined_behind_a_closing_command_gets_through() {
    for action in [Action::CloseBefore(Close::Fin), Action::HoldThenClose(Close::Fin)] {
        let (server, proxy, mut client) = both();
        proxy.on_next(|command| command.mentions("struck"), action);
        // In one segment, so that the proxy reads all three at once.
        let packed: Vec<u8> = ["before", "struck", "behind"]
            .iter()
            .flat_map(|key| redis::cmd("SET").arg(key).arg("v").get_packed_command())
            .collect();
        client.stream.write_all(&packed).unwrap();
        while client.receive().is_ok() {}
        proxy.release();
        eventually("what came before to be done", || async { server.exists("before") }).await;
        let gone = || async { server.ask::<String>(&["CLIENT", "LIST"]).lines().count() == 1 };
        eventually("the server to see the end of the connection", gone).await;
        assert!(!server.exists("behind"));
    }
}
