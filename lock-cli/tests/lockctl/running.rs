//! Exit codes, signals, and what a command is given.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use lock_runtime::LockManager;
use lock_tests::children::Builder;
use lock_tests::{Server, eventually, patient};
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{KEY, STORED, code, errors, is_alive, lockctl, pids, run, said};

#[test]
fn the_exit_code_is_the_commands_or_says_why_it_was_not_run() {
    let server = Server::start();
    for (expected, script) in [
        (0, "true"),
        (7, "exit 7"),
        (255, "exit 255"),
        (128 + 15, "kill -TERM $$"),
        (128 + 9, "kill -KILL $$"),
    ] {
        let output = lockctl(&server, &["run", "--key", KEY, "--", "sh", "-c", script]);
        assert_eq!(code(&output), expected, "{script}: {}", errors(&output));
        assert_eq!(errors(&output), "", "{script}");
        assert!(!server.exists(STORED), "{script}");
    }
    for (expected, command) in [(127, "/nowhere/at-all"), (127, "no-such-command"), (126, "/etc/passwd")] {
        let output = lockctl(&server, &["run", "--key", KEY, command]);
        assert_eq!(code(&output), expected, "{command}");
        assert!(errors(&output).contains(command), "{}", errors(&output));
        assert!(!server.exists(STORED), "{command}");
    }
    for (arguments, says) in [
        (&["run", "--key", KEY][..], "<COMMAND>"),
        (&["run", "true"], "--key"),
        (&["run", "--key", KEY, "--lease", "999ms", "true"], "--lease 1s"),
        (&["run", "--key", KEY, "--lease", "10w", "true"], "`500ms`"),
        (&["run", "--key", KEY, "--mode", "shared", "true"], "`semaphore:N`"),
        (&["run", "--key", "", "true"], "key"),
        (&["--url", "http://x", "run", "--key", KEY, "true"], "http"),
        (&["--url", "memory://", "run", "--key", KEY, "true"], "memory"),
        (&["--url", "", "run", "--key", KEY, "true"], "LOCK_URL"),
    ] {
        let output = lockctl(&server, arguments);
        assert_eq!(code(&output), 64, "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).contains(says), "{arguments:?}: {}", errors(&output));
    }
}

#[tokio::test]
async fn a_busy_lock_and_a_store_that_is_out_of_reach_have_their_codes() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url())).await;
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let busy = lockctl(&server, &["run", "--key", KEY, "--wait", "0", "touch", "/nowhere"]);
    assert_eq!(code(&busy), 75);
    assert!(
        errors(&busy).contains(&format!("pid {}", std::process::id())),
        "{}",
        errors(&busy)
    );
    let quiet = lockctl(&server, &["run", "--quiet", "--key", KEY, "--wait", "0", "true"]);
    assert_eq!((code(&quiet), &*errors(&quiet)), (75, ""));
    guard.release().await.unwrap();
    assert_eq!(
        code(&lockctl(&server, &["run", "--key", KEY, "--wait", "0", "true"])),
        0
    );

    server.kill();
    let down = lockctl(&server, &["run", "--key", KEY, "--wait", "0", "true"]);
    assert_eq!(code(&down), 69, "{}", errors(&down));
    assert_eq!(errors(&down).lines().count(), 1, "{}", errors(&down));
}

#[test]
fn a_password_is_never_shown() {
    let server = Server::builder().password("open-sesame").start();
    let wrong = server.url().replace("open-sesame", "s3cret-word");
    for arguments in [
        &["run", "--key", KEY, "--wait", "1s", "true"][..],
        &["ls"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "--help"],
        &["run", "--key", KEY],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_lockctl"))
            .args(arguments)
            .env("LOCK_URL", &wrong)
            .output()
            .unwrap();
        let all = said(&output) + &errors(&output);
        assert!(!all.contains("s3cret-word"), "{arguments:?}: {all}");
        assert!(!all.is_empty(), "{arguments:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "open-sesame\n").unwrap();
    let bare = server.url().replace(":open-sesame@", "");
    let options = ["--url", &bare, "--password-file", file.path().to_str().unwrap()];
    let output = lockctl(&server, &[&options[..], &["run", "--key", KEY, "true"]].concat());
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let output = lockctl(&server, &[&options[..], &["doctor"]].concat());
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn a_command_knows_its_lock() {
    let server = Server::start();
    let script = "echo \"$LOCK_KEY ${LOCK_FENCE-none}\"";
    let plain = lockctl(&server, &["run", "--key", KEY, "sh", "-c", script]);
    assert_eq!(said(&plain), "job none\n");
    let mut last = 0;
    for _ in 0..2 {
        let fenced = lockctl(&server, &["run", "--key", KEY, "--fencing", "sh", "-c", script]);
        let token: u64 = said(&fenced).trim_end().strip_prefix("job ").unwrap().parse().unwrap();
        assert!(token > last);
        last = token;
    }
    let inner = [
        env!("CARGO_BIN_EXE_lockctl"),
        "run",
        "--key",
        "other",
        "sh",
        "-c",
        script,
    ];
    let nested = lockctl(&server, &[&["run", "--key", KEY, "--fencing"], &inner[..]].concat());
    assert_eq!(said(&nested), "other none\n", "the token is that of another lock");
    // As a shell would find them: no signal is blocked, and the group is the command's own.
    let blocked = lockctl(&server, &["run", "--key", KEY, "grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(said(&blocked), "SigBlk:\t0000000000000000\n");
}

#[tokio::test]
async fn locks_are_shared_as_their_mode_says() {
    let server = Server::start();
    let mut readers = [
        run(&server, &["--mode", "read"], "echo in; read _"),
        run(&server, &["--mode", "read"], "echo in; read _"),
    ];
    for reader in &mut readers {
        reader.line("in").await;
    }
    let writer = lockctl(
        &server,
        &["run", "--key", KEY, "--mode", "write", "--wait", "0", "true"],
    );
    assert_eq!(code(&writer), 75);
    for reader in &mut readers {
        reader.say("end");
        assert_eq!(reader.exit().await.code(), Some(0));
    }
    let writer = lockctl(
        &server,
        &["run", "--key", KEY, "--mode", "write", "--wait", "10s", "true"],
    );
    assert_eq!(code(&writer), 0, "{}", errors(&writer));
}

#[tokio::test]
async fn signals_are_passed_on_to_the_commands_group() {
    let server = Server::start();
    let script =
        "for s in HUP INT QUIT USR1 USR2 WINCH; do trap \"echo got $s\" $s; done; trap 'echo got TERM; exit 9' TERM
        echo ready; while :; do read -t 0.01 _; done";
    let mut child = run(&server, &[], script);
    child.line("ready").await;
    let lockctl = Pid::from_raw(child.pid().try_into().unwrap()).unwrap();
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TERM, "TERM"),
    ] {
        kill_process(lockctl, signal).unwrap();
        child.line(&format!("got {name}")).await;
    }
    assert_eq!(child.exit().await.code(), Some(9));
    assert!(!server.exists(STORED));
}

#[tokio::test]
async fn a_signal_that_was_ignored_stays_ignored() {
    let server = Server::start();
    let script = format!(
        "trap '' HUP; exec {} run --key {KEY} bash -c 'echo ready; read _; echo end'",
        env!("CARGO_BIN_EXE_lockctl")
    );
    let mut child = Builder::new("bash")
        .arg("-c")
        .arg(script)
        .env("LOCK_URL", server.url())
        .spawn();
    child.line("ready").await;
    let lockctl = Pid::from_raw(child.pid().try_into().unwrap()).unwrap();
    kill_process(lockctl, Signal::HUP).unwrap();
    child.say("");
    child.line("end").await;
    assert_eq!(child.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_nothing_behind() {
    let server = Server::start();
    let locks = patient(LockManager::builder(&server.url())).await;
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let mut child = run(&server, &["--wait", "1h"], "echo never");
    eventually("lockctl to wait", || async {
        locks.inspect(KEY).await.unwrap().is_some_and(|info| info.waiters > 0)
    })
    .await;
    child.terminate();
    assert_eq!(child.exit().await.code(), Some(128 + 15));
    assert_eq!(child.lines(), []);
    guard.release().await.unwrap();
    eventually("nothing to be left", || async { server.keys().is_empty() }).await;
}

#[tokio::test]
async fn background_processes_end_with_their_command_and_before_the_release() {
    let server = Server::start();
    let script = "(trap '' TERM; read -t 1000 <&3) 3< <(sleep 1000) & echo pids $$ $!; exit 5";
    let mut child = run(&server, &["--kill-after", "100ms"], script);
    let pids = pids(&mut child).await;
    assert_eq!(child.exit().await.code(), Some(5));
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
    assert!(!server.exists(STORED));
    // One that ends by itself is left the time.
    let mut child = run(
        &server,
        &["--kill-after", "1h"],
        "(trap '' TERM; sleep 0.05; echo last words) & exit 6",
    );
    child.line("last words").await;
    assert_eq!(child.exit().await.code(), Some(6));
}

#[tokio::test]
async fn a_lock_that_lasts_at_least_so_long_is_kept_after_the_command() {
    let server = Server::start();
    let output = lockctl(
        &server,
        &["run", "--key", KEY, "--at-least", "1h", "--lease", "2h", "true"],
    );
    assert_eq!(code(&output), 0, "{}", errors(&output));
    let left = server.time_left(STORED).unwrap();
    assert!(
        left > Duration::from_secs(3000) && left <= Duration::from_secs(3600),
        "{left:?}"
    );
}

#[test]
fn completions_are_made_for_shells_and_a_reader_may_leave() {
    let server = Server::start();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            said(&lockctl(&server, &["completions", shell])).contains("lockctl"),
            "{shell}"
        );
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockctl"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), errors(&output).as_str()), (None, ""));
}
