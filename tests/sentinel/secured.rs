//! Groups that serve TLS only, passwords that must appear nowhere, and the permissions of the sentinels' user.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::store::redis::RedisStore;
use lock_runtime::{LockError, LockManager, LockManagerBuilder};
use lock_tests::certificates::Certificate;
use lock_tests::sentinel::{MASTER_NAME, SentinelGroup};
use lock_tests::{PATIENCE, PATIENT, Server, chain, eventually};

fn builder(url: &str) -> LockManagerBuilder {
    LockManager::builder(url)
        .default_lease(PATIENCE * 2)
        .default_wait(PATIENCE)
        .connect_timeout(Duration::from_secs(5))
}

#[tokio::test]
async fn a_group_that_serves_tls_only_is_followed_with_a_client_certificate() {
    let group = SentinelGroup::builder().tls().start().await;
    assert!(group.url().starts_with("rediss+sentinel://"));
    let read = |file| fs::read(file).unwrap();
    let files = Certificate::Valid.files();
    let trusting = || builder(&group.url()).root_certificate(read(&files.authority));
    let locks = trusting().client_certificate(read(&files.certificate), read(&files.key));
    let locks = locks.build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();

    let former = group.master().await;
    assert!(group.server(former).exists("dist_lock:k"));
    for port in group.node_ports() {
        eventually("the lock on every server", || async {
            group.server(port).exists("dist_lock:k")
        })
        .await;
    }
    group.kill_master().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    eventually("the holder at the new master", || async {
        guard.handle().verify().await.is_ok()
    })
    .await;
    guard.release().await.unwrap();
    eventually("the release at the new master", || async {
        !group.server(present).exists("dist_lock:k")
    })
    .await;

    let expected = "no sentinel names the master `mymaster`";
    let (no_certificate, no_authority) = (trusting(), builder(&group.url()));
    for refused in [
        no_certificate,
        no_authority,
        builder(&group.url().replace("rediss", "redis")),
    ] {
        let error = refused.build().unwrap().check_connection().await.unwrap_err();
        let said = chain(&error);
        assert!(said.contains(expected), "{said}");
    }
}

/// Everything that is logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Everything that a program can print of the library's values.
#[derive(Default)]
struct Shown(String);

impl Shown {
    fn add(&mut self, what: &dyn Debug) {
        self.0 += &[format!("{what:?}"), format!("{what:#?}")].join("\n");
    }

    fn error(&mut self, error: &(impl std::error::Error + 'static)) {
        self.add(error);
        self.0 += &chain(error);
    }

    fn outcome(&mut self, outcome: &Result<(), LockError>) {
        if let Err(error) = outcome {
            self.error(error);
        }
    }
}

#[tokio::test]
async fn no_password_is_printed_or_logged_even_in_a_failover() {
    // As they stand in a URL. They end up in errors of several layers, or would.
    const SERVER: &str = "kestrel-of-the-server";
    const SENTINEL: &str = "magpie-of-the-sentinels";
    const WRONG: [&str; 2] = ["kestrel%20wrong", "magpie%20wrong"];
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .init();

    let group = SentinelGroup::builder().passwords(SERVER, SENTINEL).start().await;
    let mut shown = Shown::default();
    let right = builder(&group.url());
    shown.add(&right);
    let locks = right.build().unwrap();
    locks.check_connection().await.unwrap();
    shown.add(&locks);
    shown.add(&locks.stats());
    shown.add(&locks.lock("k"));
    let store = RedisStore::open(&group.url(), "", PATIENT).unwrap();
    shown.add(&store);
    let guard = locks.lock("k").acquire().await.unwrap();
    shown.add(&guard);
    shown.add(&guard.handle());

    let wrong = [
        group.url_with(WRONG[0], SENTINEL),
        group.url_with(SERVER, WRONG[1]),
        group.url_with(WRONG[0], WRONG[1]),
        group.url_with("", SENTINEL),
        group.url_with(SERVER, ""),
    ];
    let mut strangers = Vec::new();
    for url in &wrong {
        let stranger = builder(url).build().unwrap();
        shown.add(&stranger);
        shown.error(&stranger.check_connection().await.unwrap_err());
        let refused = stranger.lock("k").run(async {}).await;
        assert!(refused.is_err());
        shown.outcome(&refused);
        strangers.push(stranger);
    }
    for unreadable in [
        group.url() + "&db=x",
        group.url().replace("/mymaster", ""),
        group.url().replace("127.0.0.1", "%"),
        group.url().replace("+sentinel", ""),
        group.url().replace("+sentinel", "+sentinels"),
    ] {
        shown.add(&LockManager::builder(&unreadable));
        match LockManager::connect(&unreadable).await {
            Ok(locks) => panic!("{unreadable}: {locks:?}"),
            Err(error) => shown.error(&error),
        }
        if let Err(error) = RedisStore::open(&unreadable, "", PATIENT) {
            shown.error(&error);
        }
    }

    let former = group.kill_master().await;
    let meanwhile = Duration::from_millis(200);
    for stranger in strangers.iter().chain([&locks]) {
        shown.outcome(&stranger.lock("other").wait(meanwhile).run(async {}).await);
    }
    let (present, _) = group.wait_for_master_other_than(former).await;
    group.wait_for_master_at(present).await;
    locks.lock("after").run(async {}).await.unwrap();
    for stranger in &strangers {
        shown.outcome(&stranger.lock("after").wait(meanwhile).run(async {}).await);
    }
    shown.add(&guard.handle());
    // It may have been replicated or not.
    let released = guard.release().await;
    shown.add(&released);
    shown.add(&locks);
    locks.shutdown().await;
    shown.outcome(&locks.lock("closed").run(async {}).await);

    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(logged.contains("the sentinels name the master"), "nothing was logged");
    assert!(shown.0.contains("sentinel_password=***"), "{}", shown.0);
    for (from, text) in [("printed", &shown.0), ("logged", &logged)] {
        for secret in ["kestrel", "magpie"] {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "a password is {from}: {}", line.unwrap_or_default());
        }
    }
}

/// `docs/operations.md` lists them.
#[tokio::test]
async fn the_permissions_of_the_sentinels_user_that_the_documents_list_are_enough_and_each_is_needed() {
    let page = include_str!("../../docs/operations.md");
    let (_, rules) = page.split_once("The user for a sentinel needs `").unwrap();
    let (rules, _) = rules.split_once('`').unwrap();
    let rules: Vec<&str> = rules.split_whitespace().collect();
    assert!(rules.len() > 3, "{rules:?}");

    let server = Server::start();
    let sentinel = Server::builder()
        .sentinel()
        .arg(
            &format!("sentinel monitor {MASTER_NAME}"),
            &format!("127.0.0.1 {} 1", server.port()),
        )
        .start();
    let at = format!("127.0.0.1:{}/{MASTER_NAME}", sentinel.port());
    let url = format!("redis+sentinel://{at}?sentinel_user=app&sentinel_password=secret");
    let allow = |rules: &[&str]| {
        sentinel.cmd(&[&["ACL", "SETUSER", "app", "reset", "on", ">secret"], rules].concat());
    };
    let listens = || {
        let all: String = sentinel.ask(&["CLIENT", "LIST"]);
        all.lines().any(|client| {
            let is_named = client.contains("name=lock-runtime:");
            is_named && client.contains("user=app") && client.contains(" sub=2 ")
        })
    };
    allow(&rules);
    let locks = builder(&url).build().unwrap();
    locks.check_connection().await.unwrap();
    eventually("the subscriptions", || async { listens() }).await;
    drop(locks);
    assert_eq!(denied(&sentinel), [""; 0]);
    // A manager that may not subscribe, or not ask for further sentinels, works all the same.
    // Redis 6.2 allows every channel to a new user.
    for rule in rules.iter().filter(|rule| sentinel.version().is_7() || **rule != "&*") {
        let rest: Vec<&str> = rules.iter().copied().filter(|other| other != rule).collect();
        allow(&rest);
        sentinel.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        sentinel.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let locks = builder(&url).build().unwrap();
        if let Err(error) = locks.check_connection().await {
            let said = chain(&error);
            assert!(said.contains(rule), "without {rule}: {said}");
        } else {
            eventually("a denied command", || async { !denied(&sentinel).is_empty() }).await;
        }
        sentinel.cmd(&["ACL", "LOG", "RESET"]);
    }
}

/// The commands and channels that a server has denied to the user `app`.
fn denied(server: &Server) -> Vec<String> {
    let log: Vec<HashMap<String, String>> = server.ask(&["ACL", "LOG"]);
    let objects = log.into_iter().filter_map(|mut entry| entry.remove("object"));
    objects.collect()
}
