//! `ls`, `show`, `watch`, `release` and `doctor`.

use std::collections::BTreeSet;
use std::process::Command;

use lock_runtime::LockManager;
use lock_tests::certificates::Certificate;
use lock_tests::children::{Builder, Child};
use lock_tests::{Server, patient};

use crate::stage::{KEY, STORED, code, errors, lockctl, lockctl_at, quorum_of, said};

/// Writes that many locks `many:1`, … of another host into a server.
fn write_locks(server: &Server, count: usize) {
    let script = "for i = 1, tonumber(ARGV[1]) do
        redis.call('SET', 'dist_lock:many:' .. i, string.format('%032x:host-1:7:f', i), 'PX', 600000)
    end";
    server.cmd(&["EVAL", script, "0", &count.to_string()]);
}

#[test]
fn locks_are_listed_as_the_server_finds_them() {
    let server = Server::start();
    assert_eq!(said(&lockctl(&server, &["ls"])), "");
    write_locks(&server, 5000);
    server.cmd(&[
        "SET",
        "dist_lock:odd\u{1b}[2J",
        "0123456789abcdef0123456789abcdef:host-1:7:f",
    ]);
    let output = lockctl(&server, &["ls", "many:*", "--json"]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let mut keys = BTreeSet::new();
    for line in said(&output).lines() {
        let lock: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(keys.insert(lock["key"].as_str().unwrap().to_owned()), "{line}");
        assert_eq!(
            (&lock["mode"], &lock["holders"][0]["holder"]["host"]),
            (&"exclusive".into(), &"host-1".into())
        );
        assert!(lock["holders"][0]["remaining_seconds"].as_f64().unwrap() <= 600.0);
        assert!(!line.contains("00000000"), "no token is shown: {line}");
    }
    assert_eq!(keys.len(), 5000);
    assert!(keys.contains("many:1") && keys.contains("many:5000"));

    let table = said(&lockctl(&server, &["ls", "odd*"]));
    let [heading, row] = table.lines().collect::<Vec<_>>()[..] else {
        panic!("{table}")
    };
    assert!(
        heading.contains("KEY") && row.contains("host-1, pid 7, f") && row.contains("no expiry"),
        "{table}"
    );
    assert!(!table.contains('\u{1b}'), "{table:?}");
}

#[tokio::test]
async fn one_lock_is_shown_with_its_holders() {
    let server = Server::start();
    let free = lockctl(&server, &["show", KEY]);
    assert_eq!(
        (code(&free), &*said(&free)),
        (1, "job  free (nothing under `dist_lock:job`)\n")
    );
    // As a service with these variables would see it.
    let mut other = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    other.args(["show", KEY]).env("LOCK_URL", server.url());
    let of_shop = other.env("LOCK_PREFIX", "shop:").output().unwrap();
    assert!(
        said(&of_shop).contains("nothing under `shop:job`"),
        "{}",
        said(&of_shop)
    );
    let of_both = other
        .env("LOCK_URL", format!("{}?prefix=", server.url()))
        .output()
        .unwrap();
    assert!(errors(&of_both).contains("`LOCK_PREFIX`"), "{}", errors(&of_both));
    let free = lockctl(&server, &["show", KEY, "--json"]);
    let lock: serde_json::Value = serde_json::from_str(&said(&free)).unwrap();
    assert_eq!((code(&free), &lock["mode"]), (1, &serde_json::Value::Null));
    for field in ["fence", "last_fence", "masters"] {
        assert!(lock.get(field).is_some(), "{lock}");
    }
    let of_old = Command::new(env!("CARGO_BIN_EXE_lockctl"))
        .args(["show", KEY])
        .env("LOCK_URL", server.url())
        .env("LOCK_LEGACY_SETNX", "true")
        .output()
        .unwrap();
    assert_eq!(code(&of_old), 1, "{}", errors(&of_old));

    let locks = patient(LockManager::builder(&server.url())).await;
    let _guard = locks.lock(KEY).read().label("reports").acquire().await.unwrap();
    let held = lockctl(&server, &["show", KEY]);
    assert_eq!(code(&held), 0);
    let holder = format!("pid {}, reports", std::process::id());
    assert!(
        said(&held).contains("held, read") && said(&held).contains(&holder),
        "{}",
        said(&held)
    );
    let held = lockctl(&server, &["show", KEY, "--json"]);
    let lock: serde_json::Value = serde_json::from_str(&said(&held)).unwrap();
    assert_eq!(lock["holders"][0]["holder"]["pid"], std::process::id());
}

#[tokio::test]
async fn a_lock_is_released_by_force_only() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url())).await;
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let asked = lockctl(&server, &["release", KEY]);
    assert_eq!(code(&asked), 64);
    let holder = format!("pid {}", std::process::id());
    assert!(
        errors(&asked).contains(&holder) && errors(&asked).contains("--force"),
        "{}",
        errors(&asked)
    );
    assert!(guard.handle().verify().await.is_ok());
    let forced = lockctl(&server, &["release", "--force", KEY]);
    assert_eq!(code(&forced), 0, "{}", errors(&forced));
    assert!(said(&forced).contains(&holder), "{}", said(&forced));
    assert!(!server.exists(STORED));
    guard.handle().lost().await;
    assert_eq!(code(&lockctl(&server, &["release", "--force", KEY])), 1);

    // A key of another client, which has no expiry.
    server.cmd(&["SET", STORED, "val"]);
    let asked = lockctl(&server, &["release", KEY]);
    assert!(
        errors(&asked).contains("held by val (without expiry)"),
        "{}",
        errors(&asked)
    );
    let forced = lockctl(&server, &["release", "--force", KEY]);
    assert_eq!(
        said(&forced).trim_end(),
        format!("{KEY}  taken from val (without expiry)")
    );
}

/// Just then operators need it.
#[test]
fn a_server_that_takes_no_writes_can_be_asked_and_without_memory_releases_locks() {
    let server = Server::start();
    let set = |setting: &str, value: &str| drop(server.cmd(&["CONFIG", "SET", setting, value]));
    write_locks(&server, 1);
    set("min-replicas-to-write", "1");
    for subcommand in [&["show", "many:1"][..], &["ls"]] {
        let shown = lockctl(&server, subcommand);
        assert_eq!(code(&shown), 0, "{}", errors(&shown));
        assert!(said(&shown).contains("host-1"), "{}", said(&shown));
        assert!(errors(&shown).contains("NOREPLICAS"), "{}", errors(&shown));
    }
    set("min-replicas-to-write", "0");

    set("maxmemory", "1");
    let examined = lockctl(&server, &["doctor"]);
    assert_eq!(code(&examined), 1, "{}", said(&examined));
    for says in ["FAILED    connection", "OOM", "maxmemory-policy: noeviction"] {
        assert!(said(&examined).contains(says), "{says}: {}", said(&examined));
    }
    let released = lockctl(&server, &["release", "--force", "many:1"]);
    assert_eq!(code(&released), 0, "{}", errors(&released));
    assert!(said(&released).contains("taken from host-1"), "{}", said(&released));
    assert_eq!(code(&lockctl(&server, &["show", "many:1"])), 1);
}

#[test]
fn a_user_who_may_not_list_locks_is_told_so() {
    let server = Server::start();
    let rights = ["~dist_lock:*", "resetchannels", "&dist_lock:*", "+@all", "-scan"];
    server.cmd(&[&["ACL", "SETUSER", "shop", "on", ">pw"], &rights[..]].concat());
    let url = server.url().replace("redis://", "redis://shop:pw@");
    for subcommand in ["ls", "watch"] {
        let listed = lockctl(&server, &["--url", &url, subcommand, "many:*"]);
        assert_eq!(code(&listed), 69, "{}", said(&listed));
        let says = "the locks that match `many:*` cannot be listed: ";
        assert!(errors(&listed).contains(says), "{}", errors(&listed));
        assert!(errors(&listed).contains("scan"), "{}", errors(&listed));
    }
}

fn watch(server: &Server, arguments: &[&str]) -> Child {
    let mut builder = Builder::new(env!("CARGO_BIN_EXE_lockctl")).env("LOCK_URL", server.url());
    for argument in ["watch", "--interval", "10ms"].iter().chain(arguments) {
        builder = builder.arg(argument);
    }
    builder.spawn()
}

/// The words of the next line, without the time.
async fn change(child: &mut Child) -> String {
    let line = child.line("20").await.text;
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn changes_are_watched_and_renewals_are_none() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url())).await;
    let holder = format!("pid {}", std::process::id());
    let guard = locks.lock("shop:1").acquire().await.unwrap();
    let (mut one, mut all) = (watch(&server, &["shop:1"]), watch(&server, &["shop:*"]));
    for child in [&mut one, &mut all] {
        let line = change(child).await;
        assert!(line.starts_with("held shop:1 by") && line.contains(&holder), "{line}");
    }
    let mut json = watch(&server, &["shop:*", "--json"]);
    json.line("{").await;
    guard.handle().verify().await.unwrap();
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("shop:1").fair(true).acquire().await.unwrap() }
    });
    for child in [&mut one, &mut all] {
        assert_eq!(change(child).await, "waiters shop:1 1");
    }
    let waiters: serde_json::Value = serde_json::from_str(&json.line("{").await.text).unwrap();
    assert_eq!((&waiters["event"], &waiters["waiters"]), (&"waiters".into(), &1.into()));
    guard.release().await.unwrap();
    let guard = next.await.unwrap();
    for child in [&mut one, &mut all] {
        assert!(change(child).await.starts_with("released shop:1 by"));
        assert!(change(child).await.starts_with("taken shop:1 by"));
        assert_eq!(change(child).await, "waiters shop:1 0");
    }
    guard.release().await.unwrap();
    for child in [&mut one, &mut all] {
        assert!(change(child).await.starts_with("released shop:1 by"));
    }
    let _other = locks.lock("shop:2").acquire().await.unwrap();
    assert!(change(&mut all).await.starts_with("taken shop:2 by"));
    assert_eq!(one.lines().len(), 6, "{:?}", one.lines());
    server.kill();
    server.start_again();
    assert!(change(&mut all).await.starts_with("released shop:2 by"));
}

#[test]
fn a_watch_whose_reader_is_gone_ends() {
    let server = Server::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command.args(["watch", "--interval", "10ms", "zz*"]);
    command
        .env("LOCK_URL", server.url())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let until = std::time::Instant::now() + lock_tests::PATIENCE;
    let mut ended = None;
    while ended.is_none() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(10));
        ended = child.try_wait().unwrap();
    }
    let _ = child.kill();
    child.wait().unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(141));
}

#[test]
fn the_doctor_finds_nothing_on_a_good_server() {
    let server = Server::start();
    for url in [server.url(), server.unix_url()] {
        let output = lockctl(&server, &["--url", &url, "doctor"]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(
            said(&output).contains("maxmemory-policy: noeviction"),
            "{}",
            said(&output)
        );
        assert!(!said(&output).contains("warning"), "{}", said(&output));
    }
    let output = lockctl(&server, &["doctor", "--json"]);
    for line in said(&output).lines() {
        let finding: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(finding["check"].is_string() && finding["verdict"].is_string(), "{line}");
    }
}

#[test]
fn the_doctor_asks_over_tls_and_each_master_of_a_quorum() {
    let server = Server::builder().tls(Certificate::Valid).start();
    let authority = server.tls_files().authority;
    let trusting = ["--root-certificate", authority.to_str().unwrap()];
    let output = lockctl(&server, &[&trusting[..], &["run", "--key", KEY, "true"]].concat());
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let output = lockctl(&server, &[&trusting[..], &["doctor"]].concat());
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("permissions") && !said(&output).contains("failed"),
        "{}",
        said(&output)
    );

    let strict = Server::builder()
        .tls(Certificate::Valid)
        .arg("tls-auth-clients", "yes")
        .start();
    let files = strict.tls_files();
    let ask = |with_certificate: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
        command
            .arg("doctor")
            .env("LOCK_URL", strict.url())
            .env("LOCK_ROOT_CERTIFICATE_FILE", &files.authority);
        if with_certificate {
            command
                .env("LOCK_CLIENT_CERTIFICATE_FILE", &files.certificate)
                .env("LOCK_CLIENT_KEY_FILE", &files.key)
                // Counts as not set.
                .env("LOCK_PASSWORD_FILE", "");
        }
        command.output().unwrap()
    };
    let known = ask(true);
    assert_eq!(code(&known), 0, "{}", said(&known));
    assert!(
        said(&known).contains("permissions") && !said(&known).contains("skipped"),
        "{}",
        said(&known)
    );
    assert_eq!(code(&ask(false)), 1);

    let masters = [Server::start(), Server::start(), Server::start()];
    let url = quorum_of(&masters);
    masters[2].cmd(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let output = lockctl_at(&url, &["doctor"]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    for master in &masters {
        let version = format!("{}: version", master.addr());
        assert!(said(&output).contains(&version), "{}", said(&output));
    }
    let policy = format!("{}: maxmemory-policy: volatile-ttl", masters[2].addr());
    assert!(said(&output).contains(&policy), "{}", said(&output));
    for master in &masters {
        let closed = format!("warning   {}: votes: it gives no votes for another ", master.addr());
        assert!(said(&output).contains(&closed), "{}", said(&output));
    }
    assert_eq!(code(&lockctl_at(&url, &["open-quorum", "--force"])), 0);
    let output = lockctl_at(&url, &["doctor"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn the_doctor_is_not_content_with_a_server_that_it_could_not_ask() {
    let is_asked_in_vain = (1..20).any(|clients| {
        let server = Server::start();
        server.cmd(&["CONFIG", "SET", "maxclients", &clients.to_string()]);
        let output = lockctl(&server, &["doctor"]);
        // The last connection is that for the questions.
        let is_asked_in_vain = said(&output).contains("ok        connection") && said(&output).contains("not checked");
        if is_asked_in_vain {
            assert_eq!(code(&output), 1, "{}", said(&output));
            assert!(!said(&output).contains("allow `+"), "{}", said(&output));
        }
        is_asked_in_vain
    });
    assert!(is_asked_in_vain);
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .arg("rename-command", "ZSCORE \"\"")
        .start();
    let output = lockctl(&server, &["doctor"]);
    assert_eq!(code(&output), 1);
    let text = said(&output);
    let policies: Vec<_> = text.lines().filter(|line| line.contains("allkeys-lru")).collect();
    assert_eq!(policies.len(), 1, "{text}");
    assert!(
        policies[0].starts_with("warning") && policies[0].contains("noeviction"),
        "{text}"
    );
    assert!(
        text.contains("FAILED") && text.contains("does not know ZSCORE"),
        "{text}"
    );

    server.cmd(&[
        "ACL",
        "SETUSER",
        "shop",
        "on",
        ">pw",
        "~dist_lock:*",
        "resetchannels",
        "&dist_lock:*",
        "+@all",
        "-wait",
        "-zadd",
    ]);
    let url = server.url().replace("redis://", "redis://shop:pw@");
    let text = said(&lockctl(&server, &["--url", &url, "doctor"]));
    if server.version().is_7() {
        assert!(
            text.contains("may not run ZADD under `dist_lock:`") && text.contains("may not run WAIT"),
            "{text}"
        );
        assert!(text.contains("`dist_lock:lockctl-doctor`, which patterns"), "{text}");
        server.cmd(&["ACL", "SETUSER", "shop", "-client|tracking"]);
        let text = said(&lockctl(&server, &["--url", &url, "doctor"]));
        assert!(text.contains("may not run client|tracking under"), "{text}");
    } else {
        assert!(text.contains("permissions: not checked"), "{text}");
    }

    server.kill();
    let output = lockctl(&server, &["doctor"]);
    assert_eq!(code(&output), 69);
    assert!(said(&output).contains("FAILED"), "{}", said(&output));
}
