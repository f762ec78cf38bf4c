//! The ways in which a manager reaches its server: TLS and its errors, Unix sockets, databases,
//! users and passwords.

use std::fs;
use std::time::Duration;

use lock_runtime::{ConfigError, LockError, LockManager, LockManagerBuilder};
use lock_tests::certificates::Certificate;
use lock_tests::server::Builder;
use lock_tests::{PATIENCE, Server, chain, eventually, patient};

const LEASE: Duration = Duration::from_secs(60);

/// A whole life of a lock: taken, checked, with a token, and given back.
async fn a_lock_works(manager: &LockManager) {
    let guard = manager.lock("k").lease(LEASE).acquire().await.unwrap();
    assert!(guard.handle().verify().await.unwrap() > LEASE / 2);
    guard.handle().fencing_token().await.unwrap();
    let other = manager.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(other.is_busy(), "{other}");
    guard.release().await.unwrap();
}

/// Waits until a manager whose connections were closed has new ones. A call for a lock is tried again on a new connection. A question about
/// one is not: it fails if it goes out before the process has noticed the end of the connection on which it asks.
async fn is_connected_again(manager: &LockManager) {
    let guard = manager.lock("k").lease(LEASE).acquire().await.unwrap();
    eventually("a new connection for questions", || async {
        guard.handle().verify().await.is_ok()
    })
    .await;
    guard.release().await.unwrap();
}

/// A typed error that says what is wrong, and no lock.
async fn is_refused(manager: LockManagerBuilder, server: &Server, why: &[&str]) {
    let manager = manager.build().unwrap();
    let check = manager.check_connection().await.unwrap_err();
    let text = chain(&check);
    assert!(matches!(check, ConfigError::Server { .. }), "{check:?}");
    assert!(
        why.iter().any(|why| text.contains(why)),
        "{text:?} says none of {why:?}"
    );
    let request = manager.lock("k").lease(LEASE).wait(Duration::from_millis(200));
    let acquire = request.acquire().await.unwrap_err();
    assert!(matches!(acquire, LockError::Store { .. }), "{acquire:?}");
    assert!(server.keys().is_empty());
    manager.shutdown().await;
}

/// A manager's builder with time for a busy machine.
fn unhurried(url: &str) -> LockManagerBuilder {
    LockManager::builder(url)
        .connect_timeout(PATIENCE)
        .response_timeout(PATIENCE)
}

fn trusting(server: &Server) -> LockManagerBuilder {
    unhurried(&server.url()).root_certificate(fs::read(server.tls_files().authority).unwrap())
}

// --- TLS ---------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_lock_works_over_tls() {
    let server = Server::builder().tls(Certificate::Valid).start();
    assert!(server.url().starts_with("rediss://"));
    a_lock_works(&trusting(&server).build().unwrap()).await;
}

/// An application chooses the cryptography of its process, and may enable two kinds without choosing one: see `tests/Cargo.toml`.
#[tokio::test]
async fn a_lock_over_tls_needs_no_cryptography_of_the_process_and_sets_none() {
    let server = Server::builder().tls(Certificate::Valid).start();
    a_lock_works(&trusting(&server).build().unwrap()).await;
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[tokio::test]
async fn a_certificate_that_proves_nothing_is_told_at_once_with_what_to_do() {
    let trusted = "`LockManagerBuilder::root_certificate`";
    for (certificate, says) in [
        (Certificate::Expired, ["has expired", "renew the server's certificate"]),
        (Certificate::Early, ["is not valid yet", "clock"]),
        (Certificate::WrongName, ["for another name", "elsewhere.test"]),
        (Certificate::Stranger, ["an authority that is not trusted", trusted]),
        (Certificate::ItsOwnAuthority, ["that of an authority", "CA:FALSE"]),
    ] {
        let server = Server::builder().tls(certificate).start();
        is_told_at_once(trusting(&server), &says).await;
    }
    let server = Server::builder().tls(Certificate::Valid).start();
    is_told_at_once(
        unhurried(&server.url()),
        &["an authority that is not trusted", "trust store"],
    )
    .await;
}

/// The error says this, and a call does not wait for it to pass.
async fn is_told_at_once(manager: LockManagerBuilder, says: &[&str]) {
    let manager = manager.build().unwrap();
    let check = chain(&manager.check_connection().await.unwrap_err());
    let request = manager.lock("k").lease(LEASE).wait(PATIENCE * 2);
    let error = request.acquire().await.unwrap_err();
    for text in [check, chain(&error)] {
        for says in says {
            assert!(text.contains(says), "{text} does not say: {says}");
        }
        assert!(!text.contains("check that the store is up"), "{text}");
    }
    assert!(
        matches!(error, LockError::Store { ref source, .. } if source.is_permanent()),
        "{error:?}"
    );
    assert!(!error.is_retryable());
    manager.shutdown().await;
}

#[tokio::test]
async fn a_server_that_cannot_prove_who_it_is_gets_no_command() {
    let bad = [
        (Certificate::Expired, ["Expired", "expired"]),
        (Certificate::WrongName, ["NotValidForName", "not valid for name"]),
        (Certificate::Stranger, ["UnknownIssuer", "BadSignature"]),
    ];
    for (certificate, why) in bad {
        let server = Server::builder().tls(certificate).start();
        is_refused(trusting(&server), &server, &why).await;
    }
}

#[tokio::test]
async fn an_authority_is_trusted_only_when_it_was_given() {
    let server = Server::builder().tls(Certificate::Valid).start();
    is_refused(unhurried(&server.url()), &server, &["UnknownIssuer", "ertificate"]).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_client_certificate_gets_the_one_given() {
    let server = Server::builder()
        .tls(Certificate::Valid)
        .arg("tls-auth-clients", "yes")
        .start();
    let files = server.tls_files();
    let with = trusting(&server).client_certificate(fs::read(files.certificate).unwrap(), fs::read(files.key).unwrap());
    a_lock_works(&with.build().unwrap()).await;
    server.cmd(&["FLUSHALL"]);
    is_refused(
        trusting(&server),
        &server,
        &["ertificate", "broken pipe", "reset", "terminated", "closed"],
    )
    .await;
}

/// Such a server ends each handshake in which a client goes on with a session from before.
#[tokio::test]
async fn a_server_that_keeps_no_sessions_of_tls_is_reached_again_and_again() {
    for protocols in ["TLSv1.2", "TLSv1.3"] {
        let server = Server::builder()
            .tls(Certificate::Valid)
            .arg("tls-auth-clients", "yes")
            .arg("tls-session-caching", "no")
            .arg("tls-protocols", protocols)
            .start();
        let files = server.tls_files();
        let (certificate, key) = (fs::read(files.certificate).unwrap(), fs::read(files.key).unwrap());
        let manager = trusting(&server).client_certificate(certificate, key).build().unwrap();
        for _ in 0..3 {
            a_lock_works(&manager).await;
            server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
            is_connected_again(&manager).await;
        }
        a_lock_works(&manager).await;
        // `session id context uninitialized`. A client that has gone away, as on a busy machine, is another error.
        let log = server.log();
        let refused = log
            .lines()
            .find(|line| line.contains("Error accepting") && line.contains("session"));
        assert_eq!(refused, None, "{protocols}");
    }
}

#[tokio::test]
async fn plain_text_to_a_tls_server_and_tls_to_a_plain_one_are_errors() {
    let server = Server::builder().tls(Certificate::Valid).start();
    let plain = server.url().replace("rediss://", "redis://");
    let why = [
        "reset",
        "terminated",
        "closed",
        "no connection within",
        "invalid",
        "Parse",
        "EOF",
        "end of file",
        "broken pipe",
        "nexpected",
    ];
    is_refused(LockManager::builder(&plain), &server, &why).await;

    let server = Server::start();
    let tls = server.url().replace("redis://", "rediss://");
    let authority = fs::read(Certificate::Valid.files().authority).unwrap();
    let builder = LockManager::builder(&tls)
        .root_certificate(authority)
        .connect_timeout(Duration::from_millis(300));
    is_refused(
        builder,
        &server,
        &[
            "no connection within",
            "invalid",
            "corrupt",
            "Invalid",
            "reset",
            "EOF",
            "eof",
        ],
    )
    .await;
}

// --- Addresses ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_lock_works_over_a_unix_socket() {
    let server = Server::start();
    let manager = patient(LockManager::builder(&server.unix_url())).await;
    a_lock_works(&manager).await;
    let guard = manager.lock("k").acquire().await.unwrap();
    assert!(server.exists("dist_lock:k"));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_database_number_is_kept_over_a_reconnect() {
    let server = Server::start();
    let manager = patient(LockManager::builder(&format!("{}/3", server.url()))).await;
    server.cmd(&["SELECT", "3"]);
    for _ in 0..3 {
        a_lock_works(&manager).await;
        let guard = manager.lock("k").acquire().await.unwrap();
        assert!(server.exists("dist_lock:k"));
        assert_eq!(
            server.info("db3").split(',').next(),
            Some("keys=2"),
            "the lock and the counter"
        );
        guard.release().await.unwrap();
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        is_connected_again(&manager).await;
    }
    server.cmd(&["SELECT", "0"]);
    assert!(server.keys().is_empty());
}

/// As other clients write it.
#[tokio::test]
async fn a_database_may_be_a_parameter() {
    let server = Server::start();
    let by_path = patient(LockManager::builder(&format!("{}/3", server.url()))).await;
    let urls = [format!("{}?db=3", server.url()), format!("{}?db=3", server.unix_url())];
    for url in urls {
        let by_parameter = patient(LockManager::builder(&url)).await;
        let guard = by_path.lock("k").acquire().await.unwrap();
        let answer = by_parameter.lock("k").wait(Duration::ZERO).acquire().await;
        assert!(answer.as_ref().is_err_and(LockError::is_busy), "{url}: {answer:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_url_that_is_not_understood_is_refused_before_anything_is_sent() {
    for url in [
        "",
        "localhost",
        "http://localhost",
        "redis://",
        "redis:/x",
        "postgres://localhost/db",
    ] {
        let error = LockManager::builder(url).build().map(drop).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ConfigError::Url { .. }), "{url:?}: {error:?}");
        assert!(text.contains("redis://host:port"), "{url:?}: {text}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_as_such() {
    let server = Server::start();
    server.kill();
    let manager = unhurried(&server.url()).build().unwrap();
    let error = manager
        .lock("k")
        .wait(Duration::from_secs(2))
        .acquire()
        .await
        .unwrap_err();
    let text = chain(&error);
    assert!(
        matches!(error, LockError::Store { ref source, .. } if !source.is_permanent()),
        "{error:?}"
    );
    assert!(
        text.contains("refused") && text.contains("check that the store is up"),
        "{text}"
    );
    server.start_again();
    a_lock_works(&manager).await;
}

// --- Users and passwords -----------------------------------------------------------------------------------------------

fn secret() -> Builder {
    Server::builder().password("s3cret")
}

#[tokio::test]
async fn a_lock_works_with_a_password() {
    let server = secret().start();
    a_lock_works(&patient(LockManager::builder(&server.url())).await).await;
    a_lock_works(&patient(LockManager::builder(&server.unix_url())).await).await;
}

/// It is not the default user, which here may do everything.
#[tokio::test]
async fn a_user_without_a_password_is_that_user() {
    let server = Server::start();
    server.cmd(&["ACL", "SETUSER", "app", "on", "nopass", "~dist_lock:*", "+@all"]);
    server.cmd(&["ACL", "SETUSER", "other", "on", ">s3cret", "~*", "+@all"]);
    let unix = server.unix_url();
    let url = |user: &str| format!("redis://{user}@{}", server.addr());
    is_refused(unhurried(&url("other")), &server, &["WRONGPASS"]).await;
    for url in [url("app"), format!("{unix}?user=app")] {
        let locks = patient(LockManager::builder(&url)).await;
        a_lock_works(&locks).await;
        let clients = format!("{:?}", server.cmd(&["CLIENT", "LIST"]));
        assert!(clients.contains("user=app"), "{url}: {clients}");
        locks.shutdown().await;
    }
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_an_error_that_waiting_does_not_cure() {
    let server = secret().start();
    let urls = [
        server.url().replace("s3cret", "wrong"),
        format!("redis://{}", server.addr()),
    ];
    for url in urls {
        is_refused(
            unhurried(&url),
            &server,
            &["WRONGPASS", "NOAUTH", "uthentication", "assword"],
        )
        .await;
        let manager = unhurried(&url).build().unwrap();
        let error = manager
            .lock("k")
            .wait(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(error, LockError::Store { ref source, .. } if source.is_permanent()),
            "{error:?}"
        );
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
}

#[tokio::test]
async fn no_error_and_no_debug_output_shows_the_password() {
    let server = secret().start();
    let manager = unhurried(&server.url()).build().unwrap();
    a_lock_works(&manager).await;
    let shown = format!("{manager:?} {:?}", LockManager::builder(&server.url()));
    assert!(!shown.contains("s3cret"), "{shown}");
    let not_understood = LockManager::builder("redis://:s3cret@localhost:port")
        .build()
        .map(drop)
        .unwrap_err();
    assert!(
        !format!("{not_understood} {not_understood:?}").contains("s3cret"),
        "{not_understood:?}"
    );
    server.kill();
    let error = manager
        .lock("k")
        .wait(Duration::from_millis(50))
        .acquire()
        .await
        .unwrap_err();
    assert!(!format!("{} {error:?}", chain(&error)).contains("s3cret"), "{error:?}");
}

/// Takes what a refusal says to allow, and allows that and nothing else.
#[tokio::test]
async fn what_a_refusal_says_to_allow_is_enough() {
    let server = Server::start();
    let set_user = |rules: &str| {
        let mut command = vec!["ACL", "SETUSER", "app", "reset", "on", ">pw"];
        command.extend(rules.split_whitespace());
        server.cmd(&command);
    };
    set_user("~dist_lock:* +hello +client +set");
    let url = format!("redis://app:pw@{}", server.addr());
    let text = chain(&unhurried(&url).build().unwrap().check_connection().await.unwrap_err());
    let rules = text
        .split('`')
        .find(|quoted| quoted.starts_with('~'))
        .unwrap_or_else(|| panic!("{text}"));
    set_user(rules);
    let manager = patient(LockManager::builder(&url)).await;
    a_lock_works(&manager).await;
    // Renewals too.
    let renewed = manager.lock("k").lease(Duration::from_secs(6)).acquire().await.unwrap();
    eventually("a renewal", || async { renewed.handle().renewals() > 0 }).await;
    renewed.release().await.unwrap();
}
