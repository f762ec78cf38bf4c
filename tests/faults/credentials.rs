//! Passwords that change while the process runs, and servers that are given without a URL.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{Credentials, LockManager, LockManagerBuilder, ServerRole};
use lock_tests::{PATIENCE, Server, chain, eventually};
use redis::IntoConnectionInfo;

fn without_password(server: &Server) -> LockManagerBuilder {
    patient(LockManager::builder(&format!("redis://{}", server.addr()))).default_wait(PATIENCE)
}

fn patient(locks: LockManagerBuilder) -> LockManagerBuilder {
    locks.connect_timeout(PATIENCE).response_timeout(PATIENCE)
}

async fn takes_a_lock(locks: &LockManager) -> bool {
    match locks.lock("login").acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    }
}

/// Changes the server's password, and ends all connections that know the one before.
fn rotate(server: &Server, password: &str) {
    server.cmd(&["CONFIG", "SET", "requirepass", password]);
    server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
}

#[tokio::test]
async fn each_connection_is_made_with_the_credentials_that_the_function_provides_then() {
    let server = Server::builder().password("first").start();
    let valid = Arc::new(Mutex::new(Ok("first")));
    let asked_for = Arc::new(Mutex::new(Vec::new()));
    let locks = without_password(&server).credentials({
        let (valid, asked_for) = (Arc::clone(&valid), Arc::clone(&asked_for));
        move |role| {
            asked_for.lock().unwrap().push(role);
            let valid: Result<&str, &str> = *valid.lock().unwrap();
            async move { valid.map(Credentials::password).map_err(io::Error::other) }
        }
    });
    let locks = locks.build().unwrap();
    locks.check_connection().await.unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    *valid.lock().unwrap() = Ok("second");
    rotate(&server, "second");
    eventually("the manager to log in with the new password", || takes_a_lock(&locks)).await;
    eventually("the renewals' connection to log in", || async {
        guard.handle().verify().await.is_ok()
    })
    .await;
    guard.release().await.unwrap();
    assert!(asked_for.lock().unwrap().iter().all(|role| *role == ServerRole::Master));

    // A vault that cannot be asked for a while.
    *valid.lock().unwrap() = Err("the vault is sealed");
    rotate(&server, "third");
    eventually("the function's error", || async {
        let failed = locks.check_connection().await;
        failed.is_err_and(|error| {
            let said = chain(&error);
            assert!(!said.contains("second") && !said.contains("third"), "{said}");
            said.contains("the function for credentials failed: the vault is sealed")
        })
    })
    .await;
    *valid.lock().unwrap() = Ok("third");
    eventually("the manager to log in once the vault is open", || takes_a_lock(&locks)).await;
}

#[tokio::test]
async fn a_function_that_panics_is_asked_again() {
    let server = Server::builder().password("first").start();
    let calls = Arc::new(AtomicU32::new(0));
    let locks = without_password(&server).credentials({
        let calls = Arc::clone(&calls);
        move |_| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            assert_ne!(call, 0, "at once");
            async move {
                assert_ne!(call, 1, "when it is polled");
                Ok::<_, io::Error>(Credentials::password("first"))
            }
        }
    });
    let locks = locks.build().unwrap();
    let said = chain(&locks.check_connection().await.unwrap_err());
    assert!(
        said.contains("the function for credentials failed: it panicked"),
        "{said}"
    );
    eventually("the manager to log in", || async {
        locks.check_connection().await.is_ok()
    })
    .await;
    assert!(takes_a_lock(&locks).await);
}

#[tokio::test]
async fn the_function_may_name_another_user_than_the_url() {
    let server = Server::start();
    server.cmd(&["ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all"]);
    let locks = patient(LockManager::builder(&format!("redis://nobody:wr0ng@{}", server.addr())))
        .credentials(|_| async { Ok::<_, io::Error>(Credentials::new("app", "s3cret")) })
        .build()
        .unwrap();
    locks.check_connection().await.unwrap();
    assert!(takes_a_lock(&locks).await);
    let shown = format!("{:?}", Credentials::new("app", "s3cret"));
    assert!(!shown.contains("app") && !shown.contains("s3cret"), "{shown}");
}

#[tokio::test]
async fn each_connection_is_made_with_the_password_that_is_in_the_file_then() {
    let server = Server::builder().password("first").start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let locks = without_password(&server).password_file(&file).build().unwrap();
    let error = locks.check_connection().await.unwrap_err();
    let said = chain(&error);
    let expected = format!("the password file `{}` cannot be read", file.display());
    assert!(said.contains(&expected) && error.is_retryable(), "{said}");
    std::fs::write(&file, "first\r\n").unwrap();
    eventually("the manager to log in", || async {
        locks.check_connection().await.is_ok()
    })
    .await;
    assert!(takes_a_lock(&locks).await);
    std::fs::write(&file, "second").unwrap();
    rotate(&server, "second");
    eventually("the manager to log in with the new password", || takes_a_lock(&locks)).await;
}

#[tokio::test]
async fn a_server_can_be_given_as_connection_info() {
    let server = Server::builder().password("first").start();
    let info = format!("redis://:first@{}/1", server.addr())
        .into_connection_info()
        .unwrap();
    let locks = patient(LockManager::builder_for(info)).build().unwrap();
    let guard = locks.lock("stock:7").acquire().await.unwrap();
    let keys: i64 = server.ask(&["DBSIZE"]);
    assert_eq!(keys, 0, "the lock is in the database 1");
    assert!(!server.exists("dist_lock:stock:7"));
    guard.release().await.unwrap();

    let wrong = format!("redis://:wr0ng@{}", server.addr())
        .into_connection_info()
        .unwrap();
    let error = patient(LockManager::builder_for(wrong))
        .build()
        .unwrap()
        .check_connection()
        .await
        .unwrap_err();
    let said = format!("{} {error:?}", chain(&error));
    assert!(
        said.contains(&server.addr().to_string()) && !said.contains("wr0ng"),
        "{said}"
    );
}

/// A file system that does not answer, for which a pipe without a writer stands.
#[tokio::test]
async fn a_password_file_that_does_not_answer_takes_one_thread_however_often_it_is_read() {
    let server = Server::builder().password("first").start();
    let folder = tempfile::tempdir().unwrap();
    let (file, writer) = (folder.path().join("password"), folder.path().join("writer"));
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    std::fs::hard_link(&file, &writer).unwrap();
    let locks = without_password(&server)
        .password_file(&file)
        // The log-in in the end must be done within it, too.
        .connect_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    for _ in 0..5 {
        let failed = locks.check_connection().await;
        assert!(failed.is_err_and(|error| error.is_retryable()));
    }
    // Other tests read files too, for a moment.
    eventually("no more than one thread to wait for the file", || async {
        threads("lock-file") <= 1
    })
    .await;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "first").unwrap();
    // The thread that waits has what it reads here.
    std::fs::write(&writer, "an earlier one").unwrap();
    eventually("the manager to log in", || takes_a_lock(&locks)).await;
}

/// The number of threads of this process with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|it| it.trim() == name).count()
}
