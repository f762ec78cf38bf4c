//! Every example runs, on the embedded store and on a real server, and shows what it promises.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod monitoring;
mod postgres;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::children::{self, Child};
use lock_tests::clock::kept_for;
use lock_tests::{ClusterGroup, SentinelGroup, Server, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Runs an example to its end and returns what it said.
fn run(program: &str, server: Option<&Server>) -> String {
    run_at(program, server.map(Server::url))
}

fn run_at(program: &str, url: Option<String>) -> String {
    let mut command = Command::new(program);
    command.env_remove("REDIS_URL");
    if let Some(url) = url {
        command.env("REDIS_URL", url);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{said}\n{}", String::from_utf8_lossy(&stderr));
    said
}

#[test]
fn an_example_that_fails_says_why_in_words() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scheduled"));
    let failed = command
        .env("REDIS_URL", "redis://app:s3cret@127.0.0.1:1")
        .output()
        .unwrap();
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success());
    assert!(
        said.starts_with("Error: the store at `redis://app:***@127.0.0.1:1` cannot be used: "),
        "{said}"
    );
    assert!(said.contains("; check that the store is up"), "{said}");
}

/// The table's row that starts so, without its name.
fn row(said: &str, name: &str) -> Vec<String> {
    let row = said
        .lines()
        .find(|line| line.contains(name))
        .unwrap_or_else(|| panic!("no {name:?} in:\n{said}"));
    row.split('|')
        .map(|cell| cell.trim().to_owned())
        .filter(|cell| !cell.is_empty())
        .skip(1)
        .collect()
}

fn inventory(url: Option<String>) {
    let said = run_at(env!("CARGO_BIN_EXE_inventory"), url);
    let oversold: u32 = row(&said, "without a lock")[2].parse().unwrap();
    assert!(oversold > 0, "nothing was oversold without the lock:\n{said}");
    assert_eq!(row(&said, "with the lock")[..3], ["300", "300", "0"], "{said}");
}

#[test]
fn the_inventory_is_exact_with_the_lock_and_oversold_without() {
    inventory(None);
}

#[test]
fn the_inventory_is_exact_in_four_processes_on_a_server() {
    let server = Server::start();
    inventory(Some(server.url()));
}

#[tokio::test]
async fn the_inventory_is_exact_behind_sentinels() {
    inventory(Some(SentinelGroup::start_steady().await.url()));
}

#[tokio::test]
async fn the_inventory_is_exact_in_a_cluster() {
    inventory(Some(ClusterGroup::start_steady().await.url()));
}

/// Runs an example that starts servers of its own.
fn run_example(name: &str) -> String {
    run(example(name).to_str().unwrap(), None)
}

fn example(name: &str) -> PathBuf {
    // Cargo names the path of programs only.
    let example = Path::new(env!("CARGO_BIN_EXE_inventory")).with_file_name(format!("examples/{name}"));
    assert!(
        example.exists(),
        "run `cargo build --package lock-examples --examples` first"
    );
    example
}

#[test]
fn nothing_is_oversold_when_the_master_is_killed_in_the_middle() {
    let said = run_example("failover");
    assert!(said.contains("and the master at port"), "{said}");
    assert!(said.contains("sold: 300 of 300, oversold: 0"), "{said}");
}

#[test]
fn nothing_is_oversold_while_slots_move_and_a_master_is_killed() {
    let said = run_example("cluster");
    assert!(
        said.contains("has moved from port") && said.contains("the master at port"),
        "{said}"
    );
    let exact = said
        .lines()
        .filter(|line| line.contains(": sold 150 of 150, oversold 0,"));
    assert_eq!(exact.count(), 3, "{said}");
}

/// Checks what the example `quorum` said: the sale is exact, and nobody was inside beside another customer.
fn assert_exact(said: &str) {
    assert!(said.contains("sold: 9 of 9, oversold: 0"), "{said}");
    let visits: Vec<_> = (1..=12)
        .map(|number| inside(said, &format!("customer {number} ")))
        .collect();
    for (nth, one) in visits.iter().enumerate() {
        assert!(visits[nth + 1..].iter().all(|other| apart(*one, *other)), "{said}");
    }
}

#[test]
fn nothing_is_oversold_when_the_first_of_five_masters_dies_in_the_middle() {
    let said = run(env!("CARGO_BIN_EXE_quorum"), None);
    assert_exact(&said);
    let (_, died) = inside(&said, "master 1 lives");
    let after = (1..=12).filter(|number| inside(&said, &format!("customer {number} ")).0 > died);
    assert!(after.count() >= 5, "the sale did not go on:\n{said}");
}

#[tokio::test]
async fn nothing_is_oversold_when_the_first_of_three_servers_is_killed_in_the_middle() {
    let servers: [_; 3] = std::array::from_fn(|_| Server::start());
    let addresses = servers.each_ref().map(|server| server.addr().to_string());
    let url = format!("redlock://{}", addresses.join(","));
    // The servers are new, so none can have forgotten a lock.
    let locks = LockManager::connect(&url).await.unwrap();
    locks.open_quorum().await.unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorum"));
        let Output { status, stdout, stderr } = command.env("REDLOCK_URL", url).output().unwrap();
        let said = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{said}\n{}", String::from_utf8_lossy(&stderr));
        said
    });
    eventually("the sale to begin", || async {
        servers[0].exists("dist_lock:example:quorum:stock")
    })
    .await;
    servers[0].kill();
    assert_exact(&said.await.unwrap());
}

/// Runs an example on both stores at once and hands over what it said.
fn on_both(program: &str, check: impl Fn(&str) + Sync) {
    let server = Server::start();
    std::thread::scope(|scope| {
        scope.spawn(|| check(&run(program, None)));
        check(&run(program, Some(&server)));
    });
}

#[test]
fn one_instance_runs_a_scheduled_job_and_the_others_skip_it() {
    on_both(env!("CARGO_BIN_EXE_scheduled"), |said| {
        for tick in 1..=3 {
            let of_tick: Vec<_> = said
                .lines()
                .filter(|line| line.contains(&format!("tick {tick},")))
                .collect();
            assert_eq!(of_tick.len(), 3, "{said}");
            let written = of_tick.iter().filter(|line| line.ends_with("report written")).count();
            assert_eq!(written, 1, "{said}");
        }
    });
}

#[test]
fn a_service_with_its_own_manager_never_overdraws_an_account() {
    let server = Server::start();
    for server in [None, Some(&server)] {
        let said = run(env!("CARGO_BIN_EXE_service"), server);
        assert_eq!(said.matches("took 40").count(), 2, "{said}");
        assert!(said.contains("account 1 lacks 20"), "{said}");
    }
}

#[test]
fn the_store_of_record_refuses_a_former_holder() {
    on_both(env!("CARGO_BIN_EXE_fenced"), |said| {
        assert!(said.contains("the paused one is refused: its token"), "{said}");
        assert!(
            said.contains("the paused one is told: lock `prices` was lost"),
            "{said}"
        );
        assert!(said.trim_end().ends_with("the price is 20"), "{said}");
    });
}

/// When a visit of a timeline began and ended, in ms.
fn inside(said: &str, who: &str) -> (u64, u64) {
    let line = said
        .lines()
        .find(|line| line.trim_start().starts_with(who) && line.contains("inside from"))
        .unwrap_or_else(|| panic!("{who} was not inside:\n{said}"));
    let (_, times) = line.split_once("inside from ").unwrap();
    let mut times = times.split_whitespace().filter_map(|word| word.parse().ok());
    (times.next().unwrap(), times.next().unwrap())
}

/// Whether two visits did not overlap.
fn apart(one: (u64, u64), other: (u64, u64)) -> bool {
    one.1 <= other.0 || other.1 <= one.0
}

#[test]
fn readers_are_together_and_a_writer_is_alone() {
    on_both(env!("CARGO_BIN_EXE_read_write"), |said| {
        let [one, two, writer, three, four] =
            ["reader 1", "reader 2", "writer", "reader 3", "reader 4"].map(|who| inside(said, who));
        assert!(
            one.0 < two.1 && two.0 < one.1 && three.0 < four.1 && four.0 < three.1,
            "{said}"
        );
        assert!(
            writer.0 >= one.1.max(two.1) && three.0.min(four.0) >= writer.1,
            "{said}"
        );
    });
}

#[test]
fn a_semaphore_lets_in_two_at_a_time() {
    on_both(env!("CARGO_BIN_EXE_semaphore"), |said| {
        let calls = ["call 1", "call 2", "call 3", "call 4", "call 5"].map(|who| inside(said, who));
        for (from, _) in calls {
            let others = calls.iter().filter(|(start, end)| *start <= from && from < *end);
            assert!(others.count() <= 2, "{said}");
        }
    });
}

#[test]
fn a_nested_call_is_inside_while_the_outer_one_is() {
    on_both(env!("CARGO_BIN_EXE_reentrant"), |said| {
        let (one, two) = (inside(said, "call 1 "), inside(said, "call 2 "));
        assert!(apart(one, two), "{said}");
        for (outer, inner) in [(one, "call 1, inner"), (two, "call 2, inner")] {
            let inner = inside(said, inner);
            assert!(outer.0 <= inner.0 && inner.1 <= outer.1, "{said}");
        }
    });
}

#[test]
fn steps_of_a_workflow_share_its_lock_and_another_one_waits() {
    on_both(env!("CARGO_BIN_EXE_owner"), |said| {
        let visits = [
            "workflow 1, pick",
            "workflow 1, pack",
            "workflow 2, pick",
            "workflow 2, pack",
        ];
        let [pick, wrap, third, fourth] = visits.map(|who| inside(said, who));
        for (one, other) in [(pick, third), (pick, fourth), (wrap, third), (wrap, fourth)] {
            assert!(apart(one, other), "{said}");
        }
    });
}

#[test]
fn transfers_of_one_account_are_one_after_the_other() {
    on_both(env!("CARGO_BIN_EXE_transfers"), |said| {
        let [one, back, three, two] = ["1 to 2", "2 to 1", "3 to 4", "2 to 3"].map(|who| inside(said, who));
        assert!(
            apart(one, back) && apart(back, two) && apart(two, three) && apart(one, two),
            "{said}"
        );
    });
}

#[test]
fn calls_that_come_while_a_report_is_made_get_it() {
    on_both(env!("CARGO_BIN_EXE_coalesce"), |said| {
        assert_eq!(said.matches("made by call 1").count(), 3, "{said}");
        assert_eq!(said.matches("made by call 4").count(), 1, "{said}");
        assert_eq!(said.matches("never inside").count(), 2, "{said}");
    });
}

#[test]
fn after_a_lost_holder_nobody_enters_for_the_delay() {
    on_both(env!("CARGO_BIN_EXE_lock_delay"), |said| {
        let (lost, next) = (inside(said, "hangs"), inside(said, "next"));
        // Its time to live is lease and delay.
        let kept = kept_for(Duration::from_secs(8));
        assert!(Duration::from_millis(next.0) >= kept && lost.1 <= next.0, "{said}");
        assert!(said.contains("its lease ran out"), "{said}");
    });
}

#[test]
fn an_order_is_picked_under_all_its_locks_and_put_back_if_they_are_lost() {
    on_both(env!("CARGO_BIN_EXE_order"), |said| {
        assert!(said.contains("picked 3 and 2"), "{said}");
        assert!(
            said.contains("what was picked is put back: lock `example:item:3` was held for "),
            "{said}"
        );
        assert!(
            said.ends_with("item 3 is not picked\n") && said.matches("item 3 is picked").count() == 1,
            "{said}"
        );
    });
}

/// A process of the web example, and its address.
async fn web(server: &Server, work: &str) -> (Child, String) {
    serve(
        children::Builder::new(example("web"))
            .env("REDIS_URL", server.url())
            .env("WORK_MS", work),
    )
    .await
}

/// A process of an example that serves, and its address.
async fn serve(example: children::Builder) -> (Child, String) {
    let mut child = example.env("BIND", "127.0.0.1:0").spawn();
    let line = child.line("listening on").await;
    let address = line.words().last().copied().unwrap_or_default().to_owned();
    (child, address)
}

/// Sends a request and returns the whole response.
async fn post(address: String, path: &'static str, body: &'static str) -> String {
    ask("POST", address, path, body).await
}

async fn ask(method: &str, address: String, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn two_web_servers_exclude_each_other_and_the_busy_one_says_when_to_retry() {
    let server = Server::start();
    let (_one, first) = web(&server, "4000").await;
    let (_two, second) = web(&server, "4000").await;

    // Both at once: one of them works on it, in whichever process, and the other is told to come back.
    let answers = tokio::join!(
        post(first.clone(), "/orders/42/pay", ""),
        post(second.clone(), "/orders/42/pay", "")
    );
    let (paid, busy): (Vec<_>, Vec<_>) = [answers.0, answers.1]
        .into_iter()
        .partition(|answer| answer.starts_with("HTTP/1.1 200"));
    assert_eq!((paid.len(), busy.len()), (1, 1), "{paid:?} {busy:?}");
    assert!(busy[0].starts_with("HTTP/1.1 423"), "{busy:?}");
    let retry_after = busy[0]
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "))
        .expect("no Retry-After");
    assert!(
        (1..=10).contains(&retry_after.trim().parse::<u64>().unwrap()),
        "{retry_after}"
    );

    // Another order is nobody's business, and the same one can be asked for again.
    let answers = tokio::join!(
        post(first.clone(), "/orders/1/pay", ""),
        post(second.clone(), "/orders/2/pay", "")
    );
    assert!(
        answers.0.starts_with("HTTP/1.1 200") && answers.1.starts_with("HTTP/1.1 200"),
        "{answers:?}"
    );
}

/// The web example shuts its manager down after axum: the lock of a handler whose client has left as the service ends is released.
#[tokio::test]
async fn a_service_that_ends_leaves_no_lock_of_a_client_that_has_left() {
    let server = Server::start();
    for _ in 0..5 {
        let (mut service, address) = web(&server, "60000").await;
        let mut client = TcpStream::connect(&address).await.unwrap();
        let request = format!("POST /orders/7/pay HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        eventually("the handler to have its lock", || async {
            server.exists("dist_lock:order:7")
        })
        .await;
        // The signal of Ctrl-C.
        let pid = service.pid().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        drop(client);
        assert!(service.exit().await.success(), "{}", service.errors());
        assert!(!server.exists("dist_lock:order:7"), "a lock was left behind");
    }
}

/// What a service manager and a load balancer do.
#[tokio::test]
async fn a_service_is_ready_while_its_server_is_there_and_ends_by_a_signal_without_a_request() {
    let server = Server::start();
    let (mut service, address) = web(&server, "60000").await;
    let ready = |status: &'static str| {
        let address = address.clone();
        async move {
            let mut client = TcpStream::connect(&address).await.unwrap();
            let request = format!("GET /ready HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer.starts_with(&format!("HTTP/1.1 {status}"))
        }
    };
    eventually("the service to be ready", || ready("200")).await;
    server.kill();
    eventually("the service not to be ready", || ready("503")).await;
    server.start_again();
    eventually("the service to be ready again", || ready("200")).await;
    let pid = service.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(service.exit().await.success(), "{}", service.errors());
}

#[tokio::test]
async fn prometheus_sees_the_locks_of_a_service_at_metrics() {
    let (_service, address) = serve(children::Builder::new(example("metrics")).env("REDIS_URL", "memory://")).await;
    for path in ["/items/7/reserve", "/items/8/reserve"] {
        let answer = post(address.clone(), path, "").await;
        assert!(answer.contains("is reserved"), "{answer}");
    }
    let metrics = ask("GET", address, "/metrics", "").await;
    for line in [
        "# TYPE lock_acquire_seconds histogram",
        "lock_acquire_seconds_count{key=\"item:<item>\"} 2",
        "lock_held{key=\"item:<item>\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}, in:\n{metrics}");
    }
}

#[tokio::test]
async fn extractors_reach_the_handler_under_the_lock() {
    let server = Server::start();
    let (_one, address) = web(&server, "0").await;
    let answers = tokio::join!(
        post(address.clone(), "/items/7/reserve", r#"{"quantity": 2}"#),
        post(address.clone(), "/items/7/reserve", r#"{"quantity": 3}"#)
    );
    let both = [answers.0, answers.1].concat();
    assert!(both.contains(r#""total":5"#), "{both}");
    let bad = post(address, "/items/seven/reserve", r#"{"quantity": 2}"#).await;
    assert!(bad.starts_with("HTTP/1.1 400"), "{bad}");
}
