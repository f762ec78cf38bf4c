//! What the server's user needs: the commands that `docs/operations.md` lists under "Permissions", and the keys that `docs/layout.md` lists.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::LockStore;
use lock_runtime::store::redis::RedisStore;
use lock_runtime::{ConfigError, LockError, LockManager, LockManagerBuilder, LockRequest};
use lock_tests::permissions::{all, dispensable, lines, rules};
use lock_tests::{PATIENCE, PATIENT, Server, chain, eventually, eventually_some, patient};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// So long that nothing ends it but what the test does.
const LONG: Duration = Duration::from_secs(60);
/// A lease that is soon renewed, after four seconds, and has two to spare then.
const SHORT: Duration = Duration::from_secs(6);

const FIRST: &str = "take, renew and release";
const WAIT: &str = "wait for locks";

/// Lets a user do what these rules say and nothing else. Returns the URL for it.
fn allow(server: &Server, user: &str, rules: &[&str]) -> String {
    let who = ["ACL", "SETUSER", user, "reset", "resetchannels", "on", ">secret"];
    server.cmd(&[&who, rules].concat());
    format!("redis://{user}:secret@{}", server.addr())
}

/// What the server has denied, each with the user.
fn denied(server: &Server) -> Vec<(String, String)> {
    let log: Vec<HashMap<String, String>> = server.ask(&["ACL", "LOG", "1000"]);
    let text = |entry: &HashMap<String, String>, field: &str| entry[field].clone();
    let entries = log.iter().map(|entry| (text(entry, "username"), text(entry, "object")));
    entries.collect()
}

async fn connected(url: &str) -> LockManager {
    patient(LockManager::builder(url)).await
}

/// What a manager is told at its start, however long a busy machine takes for that.
async fn refused(url: &str) -> String {
    let builder = LockManager::builder(url).connect_timeout(PATIENCE);
    let locks = builder.response_timeout(PATIENCE).build().unwrap();
    let error: ConfigError = locks.check_connection().await.unwrap_err();
    chain(&error)
}

/// `HELLO` names it, which every user may send.
#[tokio::test]
async fn every_connection_has_its_name_at_the_server_and_needs_no_permission_for_it() {
    let server = Server::start();
    let url = allow(&server, "app", &all());
    let names = || {
        let clients: String = server.ask(&["CLIENT", "LIST"]);
        let clients = clients.lines().filter(|client| client.contains(" user=app "));
        let name = |client: &str| {
            client
                .split(' ')
                .find_map(|field| field.strip_prefix("name="))
                .map(str::to_owned)
        };
        clients.map(|client| name(client).unwrap()).collect::<Vec<_>>()
    };
    for (given, expected) in [
        (None, None),
        (Some("shop:web-1"), Some("shop:web-1")),
        (Some(""), Some("")),
    ] {
        let mut builder = LockManager::builder(&url);
        if let Some(given) = given {
            builder = builder.client_name(given);
        }
        let locks = patient(builder).await;
        let held = locks.lock("k").acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock("k").wait(PATIENCE).acquire());
        let holder = locks.inspect("k").await.unwrap().unwrap().holders[0].holder.clone();
        let of_process = format!("lock-runtime:{}:{}", holder.host().unwrap(), holder.pid().unwrap());
        let expected = expected.unwrap_or(&of_process);
        // Commands, and renewals with messages.
        eventually("all connections to have the name", || async {
            let names = names();
            names.len() >= 2 && names.iter().all(|name| name == expected)
        })
        .await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        locks.shutdown().await;
        drop(locks);
        server.cmd(&["CLIENT", "KILL", "USER", "app"]);
    }
    assert_eq!(denied(&server), []);
}

#[tokio::test]
async fn the_permissions_that_the_documents_list_are_enough_and_each_of_the_first_line_is_needed() {
    let server = Server::start();
    let least: Vec<&str> = rules(FIRST)
        .into_iter()
        .filter(|rule| !dispensable().contains(rule))
        .collect();
    let url = allow(&server, "app", &least);
    let locks = connected(&url).await;
    let held = locks.lock("k").lease(SHORT * 3 / 2).acquire().await.unwrap();
    // This is over before the lock is renewed.
    let waiting = locks.lock("k").wait(SHORT * 3 / 4);
    let busy = waiting.acquire().await.unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    eventually("a renewal", || async { held.handle().renewals() > 0 }).await;
    held.release().await.unwrap();
    let listed = all().into_iter().filter(|rule| rule.starts_with(['+', '~', '&']));
    let listed: Vec<&str> = listed.collect();
    for needed in &least {
        let rest: Vec<_> = least.iter().copied().filter(|rule| rule != needed).collect();
        let said = refused(&allow(&server, "app", &rest)).await;
        let unsaid: Vec<_> = listed.iter().filter(|rule| !said.contains(**rule)).collect();
        assert!(unsaid.is_empty(), "without {needed}, {unsaid:?} are not told: {said}");
    }

    let url = allow(&server, "app", &[rules(FIRST), rules(WAIT)].concat());
    let locks = connected(&url).await;
    let held = locks.lock("k").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("k").fair(true).acquire());
    eventually("the call to wait", || async { waits_for(&server, "k") }).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let published = server.cmd(&["INFO", "commandstats"]);
    assert!(format!("{published:?}").contains("cmdstat_publish"), "{published:?}");

    let locks = connected(&allow(&server, "app", &rules(FIRST))).await;
    let held = locks.lock("k").lease(LONG).acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.cmd(&["DEL", "dist_lock:k"]);
    let lost = tokio::time::timeout(LONG / 3, held.handle().lost())
        .await
        .expect("before any renewal");
    assert!(lost.is_lost(), "{lost}");
}

/// Whether a call stands in the server's queue for a lock.
fn waits_for(server: &Server, key: &str) -> bool {
    ["queue", "shared"]
        .iter()
        .any(|what| server.exists(&format!("dist_lock:%lock-{what}:{{dist_lock:{key}}}")))
}

/// Each line is used by a user that has this line and those that it needs.
#[tokio::test]
async fn the_server_denies_nothing_to_a_user_with_the_lines_for_what_it_does() {
    let server = Arc::new(Server::builder().arg("acllog-max-len", "1000").start());
    let mut unused: Vec<&str> = lines().into_iter().map(|line| line.row).collect();
    let mut allowed = |user: &str, of: &[&str]| {
        unused.retain(|row| !of.iter().any(|what| row.starts_with(what)));
        let rules: Vec<&str> = of.iter().flat_map(|what| rules(what)).collect();
        allow(&server, user, &rules)
    };

    let url = allowed("without-waiting", &[FIRST]);
    let hasty = [0, 1].map(|_| {
        let builder = LockManager::builder(&url).default_wait(Duration::ZERO);
        builder.shutdown_grace(Duration::from_millis(100))
    });

    let url = allowed("waiting", &[FIRST, WAIT]);
    let managers = [connected(&url).await, connected(&url).await];

    let url = allowed("replicas", &[FIRST, "wait for replicas"]);
    let builder = LockManager::builder(&url).min_replicas(1).connect_timeout(PATIENCE);
    let lonely = builder.response_timeout(Duration::from_secs(8)).build().unwrap();
    lonely.check_setup().await.unwrap();
    let lonely = lonely.lock("replicated").wait(PATIENCE);

    let url = allowed("old", &[FIRST, "share locks with old clients"]);
    let builder = || LockManager::builder(&url).legacy_setnx();
    let old = [patient(builder()).await, patient(builder()).await];

    // Each of these takes some seconds, for a renewal or for a replica that there is not.
    let ((), (), (), lonely) = tokio::join!(
        without_waiting(hasty),
        waiting(&server, &managers),
        as_old_clients(old),
        lonely.run(async {}),
    );
    let lonely = lonely.unwrap_err();
    assert!(matches!(lonely, LockError::TooFewReplicas { .. }), "{lonely}");
    for locks in &managers {
        locks.shutdown().await;
    }

    let locks = connected(&allowed("listing", &[FIRST, WAIT, "list locks"])).await;
    let held = locks.lock("listed").read().acquire().await.unwrap();
    assert_eq!(locks.list("listed*").await.unwrap().len(), 1);
    held.release().await.unwrap();

    let locks = connected(&allowed("fencing", &[FIRST, "take fencing tokens"])).await;
    locks.lock("fenced").fencing(true).run(async {}).await.unwrap();
    let held = locks.lock("fenced").acquire().await.unwrap();
    held.handle().fencing_token().await.unwrap();
    held.release().await.unwrap();
    let held = locks
        .lock_all(["some", "others"])
        .fencing(true)
        .acquire()
        .await
        .unwrap();
    held.release().await.unwrap();

    let url = allowed("database", &[FIRST, "use another database"]);
    connected(&format!("{url}/1"))
        .await
        .lock("k")
        .run(async {})
        .await
        .unwrap();

    let url = allowed("master", &[FIRST, "use a server as one of several masters"]);
    let master = Arc::new(RedisStore::open_as_master(&url, "dist_lock:", LONG, PATIENT).unwrap());
    eventually("the server to open", || async { master.open_now().await.is_ok() }).await;
    let locks = LockManager::builder("master").store(master).build().unwrap();
    locks.lock("k").wait(PATIENCE).run(async {}).await.unwrap();

    assert_eq!(unused, [""; 0], "lines that this test does not use");
    assert_eq!(denied(&server), []);
}

/// Returns what a call that does not wait comes to. Where its lock was taken back from a thread that stood still, another one is made.
async fn in_the_end<T, F>(call: impl Fn() -> F) -> Result<T, LockError>
where
    F: Future<Output = Result<T, LockError>>,
{
    eventually_some("a lock for a call that does not wait", || async {
        let ended = call().await;
        (!ended.as_ref().is_err_and(LockError::is_retryable)).then_some(ended)
    })
    .await
}

/// Uses exclusive locks by calls that do not wait.
async fn without_waiting(managers: [LockManagerBuilder; 2]) {
    let [locks, other] = managers;
    let (locks, other) = (patient(locks).await, patient(other).await);
    locks.check_setup().await.unwrap();
    let is_busy = async |request: LockRequest| request.run(async {}).await.is_err_and(|error| error.is_busy());
    let held = in_the_end(|| locks.lock("k").lease(SHORT).acquire()).await.unwrap();
    let several = in_the_end(|| locks.lock_all(["a", "b"]).lease(SHORT).acquire());
    let several = several.await.unwrap();
    for locks in [&locks, &other] {
        assert!(is_busy(locks.lock("k")).await);
        assert!(is_busy(locks.lock_all(["b", "c"])).await);
        assert!(is_busy(locks.lock_all(["0", "a"])).await);
    }
    eventually("renewals", || async {
        held.handle().renewals() > 0 && several.handle().renewals() > 0
    })
    .await;
    held.handle().verify().await.unwrap();
    held.release().await.unwrap();
    several.release().await.unwrap();
    let kept = other.lock("k").lease(SHORT).at_least(Duration::from_millis(300));
    in_the_end(|| kept.clone().run(async {})).await.unwrap();
    // After the minimum hold.
    in_the_end(|| locks.lock("k").run(async {})).await.unwrap();
    for (locks, who) in [(&locks, "ours"), (&other, "theirs")] {
        let lock = |what: &str| locks.lock(format!("{what}:{who}"));
        let requests = [
            lock("reentrant").reentrant(true),
            lock("pipelined").pipelined(true),
            lock("delayed").lock_delay(Duration::from_millis(300)),
            locks.lock_all(["a", "b", "c"]),
        ];
        for request in requests {
            in_the_end(|| request.clone().run(async {})).await.unwrap();
        }
        drop(in_the_end(|| lock("dropped").acquire()).await.unwrap());
    }
    let begun = Arc::new(Notify::new());
    let cancelled = tokio::spawn({
        let (locks, begun) = (locks.clone(), Arc::clone(&begun));
        async move {
            let body = || {
                let begun = Arc::clone(&begun);
                async move {
                    begun.notify_one();
                    std::future::pending::<()>().await;
                }
            };
            in_the_end(|| locks.lock("k").run(body())).await
        }
    });
    begun.notified().await;
    locks.shutdown().await;
    other.shutdown().await;
    let ended = cancelled.await.unwrap();
    assert!(matches!(ended, Err(LockError::Closed { .. })), "{ended:?}");
}

/// Uses locks in each mode, by calls that wait for those of another manager.
async fn waiting(server: &Arc<Server>, managers: &[LockManager; 2]) {
    let [locks, other] = managers;
    let requests = |locks: &LockManager| {
        [
            ("exclusive", locks.lock("exclusive")),
            ("fair", locks.lock("fair").fair(true)),
            ("written", locks.lock("written").write()),
            ("semaphore", locks.lock("semaphore").semaphore(1)),
            ("owner", locks.lock("owner").owner(&format!("{locks:p}"))),
            ("kept", locks.lock("kept").at_least(Duration::from_millis(300))),
            ("one", locks.lock_all(["one", "another"])),
        ]
    };
    let (ours, theirs) = (requests(locks).into_iter(), requests(other).into_iter());
    let mut uses = JoinSet::new();
    for ((key, request), (_, another)) in ours.zip(theirs) {
        let (server, other) = (Arc::clone(server), other.clone());
        uses.spawn(async move {
            let held = request.lease(SHORT).wait(PATIENCE).acquire().await.unwrap();
            let first = tokio::spawn(another.wait(PATIENCE).run(async {}));
            if key != "one" {
                eventually("a call to wait", || async { waits_for(&server, key) }).await;
            }
            let hasty = match key {
                "written" => other.lock(key).read(),
                "semaphore" => other.lock(key).semaphore(1),
                "owner" => other.lock(key).owner("a third one"),
                _ => other.lock(key),
            };
            let busy = hasty.wait(SHORT / 2).run(async {}).await;
            assert!(busy.as_ref().is_err_and(LockError::is_busy), "{key}: {busy:?}");
            eventually("a renewal", || async { held.handle().renewals() > 0 }).await;
            held.handle().verify().await.unwrap();
            assert!(other.inspect(key).await.unwrap().is_some(), "{key}");
            held.release().await.unwrap();
            first.await.unwrap().unwrap();
        });
    }
    uses.join_all().await;
    let held = locks.lock("forced").acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("forced").run(async {}));
    eventually("a call to wait", || async { waits_for(server, "forced") }).await;
    assert!(other.force_release("forced").await.unwrap());
    waiting.await.unwrap().unwrap();
    drop(held);
    let readers = managers.iter().map(|locks| locks.lock("read").read().acquire());
    let mut held = Vec::new();
    for reader in readers {
        held.push(reader.await.unwrap());
    }
    for reader in held {
        reader.release().await.unwrap();
    }
}

/// Uses locks of old clients.
async fn as_old_clients([locks, other]: [LockManager; 2]) {
    let held = locks.lock("old").lease(SHORT).acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("old").wait(PATIENCE).run(async {}));
    eventually("a renewal", || async { held.handle().renewals() > 0 }).await;
    held.handle().verify().await.unwrap();
    assert!(other.inspect("old").await.unwrap().is_some());
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();
    let held = locks.lock("old").acquire().await.unwrap();
    assert!(other.force_release("old").await.unwrap());
    drop(held);
    locks.shutdown().await;
    other.shutdown().await;
}

/// Users who lack one of the permissions do what needs it, and the server notes what it has denied.
#[tokio::test]
async fn no_permission_that_the_documents_list_is_needless() {
    let server = Arc::new(Server::builder().arg("acllog-max-len", "1000").start());
    let least = rules(FIRST);
    let (mut others, least): (Vec<&str>, Vec<&str>) = least.into_iter().partition(|rule| dispensable().contains(rule));
    others.extend(all().into_iter().filter(|rule| !least.contains(rule)));
    others.sort_unstable();
    others.dedup();
    // This one takes permissions away.
    others.retain(|rule| *rule != "resetchannels");

    // The last user lacks nothing.
    let mut users = JoinSet::new();
    for number in 0..=others.len() {
        let name = format!("user-{number}");
        let rest = others.iter().enumerate().filter(|(other, _)| *other != number);
        let rest = rest.map(|(_, rule)| *rule);
        let url = allow(&server, &name, &least.iter().copied().chain(rest).collect::<Vec<_>>());
        let (server, lacks) = (Arc::clone(&server), others.get(number).copied());
        users.spawn(async move {
            let _managers = do_everything(&url, &name).await;
            // Some of it is done only after a while.
            if let Some(rule) = lacks {
                let is_denied = || async { denied(&server).iter().any(|(user, _)| *user == name) };
                eventually(&format!("`{rule}` to be missed"), is_denied).await;
            }
        });
    }
    users.join_all().await;
    let all = format!("user-{}", others.len());
    let denied: Vec<_> = denied(&server).into_iter().filter(|(user, _)| *user == all).collect();
    assert_eq!(denied, []);
}

/// The user has no pattern but the keys of its locks and those that the document names.
#[tokio::test]
async fn a_user_of_the_keys_that_the_layout_lists_needs_no_other() {
    let page = include_str!("../../docs/layout.md");
    let (_, table) = page.split_once("| key | type | content | expiry |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let cells = table.lines().filter_map(|row| row.split('|').nth(1));
    // Every second piece stands in backticks. Keys with the number of a slot are those of a cluster.
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let names: Vec<&str> = names.filter(|name| !name.contains("<n>")).collect();
    assert!(names.len() >= 8, "{names:?}");
    let server = Arc::new(Server::builder().arg("acllog-max-len", "1000").start());
    let keys = [
        "exclusive",
        "fair",
        "written",
        "semaphore",
        "owner",
        "kept",
        "one",
        "another",
        "forced",
        "read",
        "old",
    ];
    let patterns = keys.iter().flat_map(|key| {
        let of_key = |name: &&str| format!("~{}", name.replace("<prefix>", "dist_lock:").replace("<key>", key));
        names.iter().map(of_key).collect::<Vec<_>>()
    });
    let patterns: Vec<String> = patterns.collect();
    let commands = all().into_iter().filter(|rule| !rule.starts_with('~'));
    let rules: Vec<&str> = patterns.iter().map(String::as_str).chain(commands).collect();
    let url = allow(&server, "exact", &rules);
    let managers = [connected(&url).await, connected(&url).await];
    let builder = || LockManager::builder(&url).legacy_setnx();
    let old = [patient(builder()).await, patient(builder()).await];
    // Each of these takes some seconds, for a renewal.
    tokio::join!(waiting(&server, &managers), as_old_clients(old));
    let [locks, other] = &managers;
    locks.lock("fair").fencing(true).run(async {}).await.unwrap();
    other.lock("written").write().fencing(true).run(async {}).await.unwrap();
    let held = locks.lock("exclusive").acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("exclusive").run(async {}));
    eventually("a call to wait", || async { waits_for(&server, "exclusive") }).await;
    let listed = other.list("*").await.unwrap();
    assert!(
        listed.iter().any(|lock| &*lock.key == "exclusive" && lock.waiters == 1),
        "{listed:?}"
    );
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap();
    for locks in &managers {
        locks.shutdown().await;
    }
    assert_eq!(denied(&server), []);

    // Without the keys of the check at start-up, the refusal names them.
    let rules: Vec<&str> = rules.into_iter().filter(|rule| !rule.contains("%lock-probe")).collect();
    let said = refused(&allow(&server, "exact", &rules)).await;
    for key in [
        "dist_lock:%lock-probe",
        "dist_lock:%lock-queue:{dist_lock:%lock-probe}",
        "dist_lock:%lock-fence",
    ] {
        assert!(said.contains(&format!("`~{key}`")), "{said}");
    }
}

/// That a message cannot be sent does not tell that nobody would have heard it.
#[tokio::test]
async fn a_user_who_may_not_publish_hands_a_lock_to_the_first_in_the_queue_as_well() {
    let server = Server::start();
    let whole = allow(&server, "whole", &all());
    let others: Vec<&str> = all().into_iter().filter(|rule| *rule != "+publish").collect();
    let silent = allow(&server, "silent", &others);
    let held = connected(&silent).await.lock("k").lease(LONG).acquire().await.unwrap();
    let waiting = connected(&whole).await.lock("k").lease(LONG).wait(PATIENCE).fair(true);
    let waiting = tokio::spawn(waiting.acquire());
    let queue = ["ZCOUNT", "dist_lock:%lock-queue:{dist_lock:k}", "1", "+inf"];
    eventually("a place in the queue", || async { server.ask::<u32>(&queue) == 1 }).await;
    // Messages reach the process, as it has told the server.
    let listens = [
        "ZRANGEBYSCORE",
        "dist_lock:%lock-queue:{dist_lock:k}",
        "-inf",
        "0",
        "WITHSCORES",
    ];
    eventually("a sign of a process that listens", || async {
        let signs: Vec<String> = server.ask(&listens);
        signs.len() == 2 && !signs[1].ends_with(".5")
    })
    .await;
    held.release().await.unwrap();
    assert!(server.value("dist_lock:k").is_some(), "the lock was left free");
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Uses all that the table of permissions names, whatever comes of it. Returns the managers, which go on in the background.
async fn do_everything(url: &str, user: &str) -> [LockManager; 2] {
    // The calls for a replica that there is not wait for twice that time.
    let silence = Duration::from_secs(3);
    let managers = [0, 1].map(|_| {
        let builder = LockManager::builder(url).connect_timeout(PATIENCE);
        builder.response_timeout(silence).build().unwrap()
    });
    let requests = |locks: &LockManager| {
        let lock = |what: &str| locks.lock(format!("{user}:{what}")).wait(Duration::from_secs(5));
        [
            lock("exclusive"),
            lock("tokens").fencing(true),
            lock("fair").fair(true),
            lock("written").write(),
            lock("semaphore").semaphore(1),
            lock("owner").owner(&format!("{locks:p}")),
            lock("replicated").min_replicas(1),
        ]
    };
    managers[0].check_setup().await.unwrap();
    let mut calls = JoinSet::new();
    for locks in &managers {
        for request in requests(locks) {
            calls.spawn(request.run(tokio::time::sleep(Duration::from_millis(300))));
        }
        calls.spawn(locks.lock(format!("{user}:written")).read().run(async {}));
    }
    let everything = calls.join_all();
    let [locks, _] = &managers;
    let elsewhere = LockManager::builder(&format!("{url}/1")).build().unwrap();
    let _ = tokio::join!(
        everything,
        locks.inspect("exclusive"),
        locks.list("*"),
        locks.force_release("nothing"),
        elsewhere.check_connection()
    );
    managers
}
