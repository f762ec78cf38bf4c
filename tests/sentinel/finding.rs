//! The way from a URL to the master, and what is said if there is none.

use std::time::Duration;

use lock_runtime::{Credentials, LockError, LockManager, LockManagerBuilder, ServerRole};
use lock_tests::report::chain;
use lock_tests::sentinel::{MASTER_NAME, SentinelGroup};
use lock_tests::{Server, eventually};

fn manager(url: &str) -> LockManager {
    let builder = builder(url).response_timeout(Duration::from_secs(5));
    builder.default_wait(Duration::ZERO).build().unwrap()
}

fn builder(url: &str) -> LockManagerBuilder {
    LockManager::builder(url).connect_timeout(Duration::from_secs(5))
}

/// Returns the text of the error that a call on this URL ends with.
async fn refused(url: &str) -> String {
    match manager(url).lock("x").acquire().await {
        Err(error @ LockError::Store { .. }) => chain(&error),
        other => panic!("{other:?} instead of an error of the store"),
    }
}

/// Starts one sentinel, which watches a server under a name.
fn watching(server: &Server, name: &str) -> Server {
    let watched = format!("sentinel monitor {name}");
    let server = format!("127.0.0.1 {} 1", server.port());
    Server::builder().sentinel().arg(&watched, &server).start()
}

fn url_of(sentinels: &[&Server], name: &str) -> String {
    let hosts: Vec<String> = sentinels
        .iter()
        .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
        .collect();
    format!("redis+sentinel://{}/{name}", hosts.join(","))
}

#[tokio::test]
async fn a_lock_is_taken_on_the_master_and_released_there() {
    let group = SentinelGroup::start_steady().await;
    let master = group.server(group.master().await);
    let locks = manager(&group.url());
    let guard = locks.lock("stock:7").acquire().await.unwrap();
    assert!(master.value("dist_lock:stock:7").is_some());
    guard.release().await.unwrap();
    assert!(!master.exists("dist_lock:stock:7"));
}

#[tokio::test]
async fn the_others_are_asked_if_some_sentinels_do_not_answer() {
    let server = Server::start();
    let sentinels = [(); 5].map(|()| watching(&server, MASTER_NAME));
    let [gone, silent, ..] = &sentinels;
    gone.kill();
    silent.pause();
    let locks = manager(&url_of(&sentinels.each_ref(), MASTER_NAME));
    locks.check_connection().await.unwrap();
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    silent.resume();
}

#[tokio::test]
async fn one_sentinel_of_three_is_not_believed() {
    let server = Server::start();
    let sentinels = [(); 3].map(|()| watching(&server, MASTER_NAME));
    let [first, second, _] = &sentinels;
    first.kill();
    second.kill();
    let said = refused(&url_of(&sentinels.each_ref(), MASTER_NAME)).await;
    assert!(
        said.contains("1 of the 3 sentinels of the URL name the master"),
        "{said}"
    );
    assert!(said.contains("see that most of the sentinels run"), "{said}");
}

#[tokio::test]
async fn one_address_is_enough_since_sentinels_know_each_other() {
    let group = SentinelGroup::start().await;
    let [first, ..] = group.sentinel_ports();
    // Its master changes.
    let locks = builder(&format!("redis+sentinel://127.0.0.1:{first}/{MASTER_NAME}"));
    let locks = locks.default_wait(Duration::ZERO).build().unwrap();
    locks.check_connection().await.unwrap();
    // The others are known now, and follow the master without the first one.
    group.server(first).kill();
    let former = group.kill_master().await;
    let (present, _) = group.wait_for_master_other_than(former).await;
    eventually("a lock on the new master", || async {
        locks.lock("x").acquire().await.is_ok_and(|guard| {
            let is_there = group.server(present).exists("dist_lock:x");
            drop(guard);
            is_there
        })
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_told() {
    let server = Server::start();
    let sentinel = watching(&server, MASTER_NAME);
    let said = refused(&url_of(&[&sentinel], "orders")).await;
    assert!(said.contains("no sentinel names the master `orders`"), "{said}");
    assert!(
        said.contains(&format!("127.0.0.1:{}: it knows no such master", sentinel.port())),
        "{said}"
    );
    assert!(
        said.contains("give the name from the sentinels' configuration"),
        "{said}"
    );
}

#[tokio::test]
async fn a_server_in_the_place_of_a_sentinel_is_told() {
    let server = Server::start();
    let said = refused(&url_of(&[&server], MASTER_NAME)).await;
    assert!(said.contains("it is a server and no sentinel"), "{said}");
    assert!(said.contains("give the addresses of the sentinels"), "{said}");
}

#[tokio::test]
async fn a_sentinel_in_the_place_of_a_server_is_told() {
    let server = Server::start();
    let sentinel = watching(&server, MASTER_NAME);
    let said = refused(&sentinel.url()).await;
    assert!(said.contains("redis+sentinel://"), "{said}");
}

#[tokio::test]
async fn sentinels_that_do_not_run_are_told() {
    let server = Server::start();
    let sentinel = watching(&server, MASTER_NAME);
    sentinel.kill();
    let said = refused(&url_of(&[&sentinel], MASTER_NAME)).await;
    assert!(said.contains("no sentinel names the master `mymaster`"), "{said}");
    assert!(said.contains("see that the sentinels run"), "{said}");
}

#[tokio::test]
async fn sentinels_of_different_servers_are_told() {
    let (one, other) = (Server::start(), Server::start());
    let sentinels = [watching(&one, MASTER_NAME), watching(&other, MASTER_NAME)];
    let said = refused(&url_of(&[&sentinels[0], &sentinels[1]], MASTER_NAME)).await;
    assert!(
        said.contains("the sentinels disagree about the master `mymaster`"),
        "{said}"
    );
    for server in [&one, &other] {
        assert!(said.contains(&format!(": 127.0.0.1:{}", server.port())), "{said}");
    }
    assert!(said.contains("give sentinels that watch the same servers"), "{said}");
}

#[tokio::test]
async fn a_wrong_password_says_of_which_kind_of_server_it_is() {
    let server = Server::builder().password("of-the-server").start();
    let watched = format!("sentinel monitor {MASTER_NAME}");
    let sentinel = Server::builder()
        .sentinel()
        .arg(&watched, &format!("127.0.0.1 {} 1", server.port()))
        .password("of-the-sentinel")
        .start();
    let at = format!("127.0.0.1:{}/{MASTER_NAME}", sentinel.port());
    let both = format!("redis+sentinel://:of-the-server@{at}?sentinel_password=of-the-sentinel");
    manager(&both).check_connection().await.unwrap();

    for no_sentinel in [
        format!("redis+sentinel://:of-the-server@{at}"),
        format!("redis+sentinel://:of-the-server@{at}?sentinel_password=wr0ng"),
    ] {
        let said = refused(&no_sentinel).await;
        assert!(said.contains("give the sentinels' user and password"), "{said}");
        assert!(!said.contains("wr0ng") && !said.contains("of-the-server"), "{said}");
    }
    for no_server in [
        format!("redis+sentinel://{at}?sentinel_password=of-the-sentinel"),
        format!("redis+sentinel://:wr0ng@{at}?sentinel_password=of-the-sentinel"),
    ] {
        let said = refused(&no_server).await;
        assert!(said.contains("give a valid user and password in the URL"), "{said}");
        assert!(!said.contains("wr0ng") && !said.contains("of-the-sentinel"), "{said}");
    }

    let folder = tempfile::tempdir().unwrap();
    let (of_servers, of_sentinels) = (folder.path().join("servers"), folder.path().join("sentinels"));
    std::fs::write(&of_servers, "of-the-server\n").unwrap();
    std::fs::write(&of_sentinels, "of-the-sentinel\n").unwrap();
    let by_files = builder(&format!("redis+sentinel://:wr0ng@{at}?sentinel_password=wr0ng"))
        .password_file(of_servers)
        .sentinel_password_file(of_sentinels);
    by_files.build().unwrap().check_connection().await.unwrap();
    let by_function = builder(&format!("redis+sentinel://{at}")).credentials(|role| async move {
        Ok::<_, std::io::Error>(Credentials::password(match role {
            ServerRole::Sentinel => "of-the-sentinel",
            _ => "of-the-server",
        }))
    });
    by_function.build().unwrap().check_connection().await.unwrap();
}

#[tokio::test]
async fn a_replica_that_sentinels_name_is_not_used() {
    let server = Server::start();
    let replica = Server::builder()
        .arg("replicaof", &format!("127.0.0.1 {}", server.port()))
        .start();
    let sentinel = watching(&replica, MASTER_NAME);
    let said = refused(&url_of(&[&sentinel], MASTER_NAME)).await;
    let told = format!(
        "127.0.0.1:{} is a replica, though the sentinels name it as the master",
        replica.port()
    );
    assert!(said.contains(&told), "{said}");
}

#[tokio::test]
async fn a_failure_of_before_is_not_told_again() {
    let server = Server::start();
    let sentinel = watching(&server, MASTER_NAME);
    sentinel.kill();
    let locks = manager(&url_of(&[&sentinel], MASTER_NAME));
    locks.lock("x").acquire().await.unwrap_err();
    sentinel.start_again();
    eventually("an answer of the sentinel", || async {
        sentinel.try_cmd(&["PING"]).is_ok()
    })
    .await;
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_sentinels_password_is_shown_nowhere() {
    let url = "redis+sentinel://127.0.0.1:1/orders?sentinel_user=watch&sentinel_password=s3cret";
    let builder = LockManager::builder(url);
    let mut shown = vec![format!("{builder:?}")];
    let locks = builder.build().unwrap();
    let error = locks.check_connection().await.unwrap_err();
    shown.push(format!("{locks:?} {error:?} {}", chain(&error)));
    let error = locks.lock("x").wait(Duration::ZERO).acquire().await.unwrap_err();
    shown.push(format!("{error:?} {}", chain(&error)));
    for wrong in [
        "one/orders?sentinel_password=s3cret&db=x",
        "one?sentinel_password=s3cret",
        "one/a?sentinel_password=a@s3cret",
    ] {
        let error = LockManager::builder(&format!("redis+sentinel://{wrong}"))
            .build()
            .unwrap_err();
        shown.push(format!("{error:?} {}", chain(&error)));
    }
    let shown = shown.join("\n");
    assert!(shown.contains("sentinel_password=***"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}
