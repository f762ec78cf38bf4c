//! No command lives longer than its lock, or than lockctl.

use lock_tests::{Server, eventually_some};
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{
    Heart, KEY, STORED, code, end_of_renewed_lease, errors, gone, is_alive, lockctl, pids, run, stages,
};

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// A command that never ends by itself, under a lease of 6 s.
async fn beating(server: &Server, heart: &Heart) -> (lock_tests::Child, u32) {
    let mut child = run(server, &["--lease", "6s", "--kill-after", "1h"], &heart.script());
    let command = pids(&mut child).await[0];
    heart.beats().await;
    (child, command)
}

#[tokio::test]
async fn a_lost_lock_ends_the_command_at_once() {
    let server = Server::start();
    for by_force in [true, false] {
        let script = "trap 'echo got TERM; exit 3' TERM; echo ready; while :; do read -t 0.01 _; done";
        let mut child = run(&server, &["--lease", "1h"], script);
        child.line("ready").await;
        if by_force {
            let output = lockctl(&server, &["release", "--force", KEY]);
            assert_eq!(code(&output), 0, "{}", errors(&output));
        } else {
            server.cmd(&["DEL", STORED]);
        }
        child.line("got TERM").await;
        assert_eq!(child.exit().await.code(), Some(76));
        assert!(child.errors().contains("was lost"), "{}", child.errors());
    }
}

#[tokio::test]
async fn a_command_that_ignores_the_end_of_its_lock_is_killed() {
    let server = Server::start();
    let heart = Heart::new();
    let mut child = run(&server, &["--lease", "1h", "--kill-after", "50ms"], &heart.script());
    let command = pids(&mut child).await[0];
    heart.beats().await;
    server.cmd(&["SET", STORED, "another"]);
    assert_eq!(child.exit().await.code(), Some(76));
    assert!(!is_alive(command));
    assert_eq!(server.value(STORED).as_deref(), Some("another"));
}

#[tokio::test]
async fn a_command_is_dead_before_its_lease_ends_on_a_server_that_stalls() {
    let server = Server::start();
    let heart = Heart::new();
    let (mut child, command) = beating(&server, &heart).await;
    let ends = end_of_renewed_lease(&server).await;
    server.pause();
    assert_eq!(child.exit().await.code(), Some(76));
    assert!(!is_alive(command));
    assert!(heart.last().unwrap() < ends, "{:?} {ends:?}", heart.last());
    assert!(child.errors().contains("could not be renewed"), "{}", child.errors());
}

#[tokio::test]
async fn a_command_is_dead_before_its_lease_ends_on_a_server_that_dies() {
    let server = Server::start();
    let heart = Heart::new();
    let (mut child, command) = beating(&server, &heart).await;
    let ends = end_of_renewed_lease(&server).await;
    server.kill();
    assert_eq!(child.exit().await.code(), Some(76));
    assert!(!is_alive(command));
    assert!(heart.last().unwrap() < ends, "{:?} {ends:?}", heart.last());
}

/// A stopped lockctl renews nothing, and its watcher ends the command.
#[tokio::test]
async fn a_command_is_dead_before_its_lease_ends_under_a_lockctl_that_stands_still() {
    let server = Server::start();
    let heart = Heart::new();
    let (mut child, command) = beating(&server, &heart).await;
    let ends = end_of_renewed_lease(&server).await;
    child.stop();
    gone(&[command]).await;
    assert!(heart.last().unwrap() < ends, "{:?} {ends:?}", heart.last());
    child.cont();
    assert_eq!(child.exit().await.code(), Some(76));
}

#[tokio::test]
async fn nothing_is_left_of_a_command_whose_lockctl_was_killed() {
    let server = Server::start();
    let script = "sleep 1000 & (sleep 1000; true) & (trap '' TERM HUP; sleep 1000) & echo pids $$ $(jobs -p); wait";
    let mut child = run(&server, &["--lease", "1h"], script);
    let mut pids = pids(&mut child).await;
    assert_eq!(pids.len(), 4);
    pids.extend(stages(child.pid(), "__watch"));
    assert_eq!(pids.len(), 5);
    child.kill();
    gone(&pids).await;
}

#[tokio::test]
async fn a_command_without_its_watcher_is_ended() {
    let server = Server::start();
    let script = "trap 'echo got TERM; exit 3' TERM; echo pids $$; while :; do read -t 0.01 _; done";
    let mut child = run(&server, &["--lease", "1h"], script);
    let pids = pids(&mut child).await;
    let lockctl = child.pid();
    let watcher = eventually_some("the watcher", || async { stages(lockctl, "__watch").pop() }).await;
    kill(watcher, Signal::KILL);
    child.line("got TERM").await;
    assert_eq!(child.exit().await.code(), Some(76));
    gone(&pids).await;
    assert!(!server.exists(STORED), "the lock was still held, and is released");
}

/// The whole group of a command that stops itself: no shell would let it go on, and another process may.
#[tokio::test]
async fn a_stopped_command_keeps_its_lock_and_does_not_go_on_without_it() {
    let server = Server::start();
    let script = "echo pids $$; kill -STOP $$; echo went on; kill -STOP $$; echo never";
    let mut child = run(&server, &["--lease", "6s"], script);
    let command = pids(&mut child).await[0];
    end_of_renewed_lease(&server).await;
    end_of_renewed_lease(&server).await;
    kill(child.pid(), Signal::CONT);
    child.line("went on").await;
    server.cmd(&["DEL", STORED]);
    assert_eq!(child.exit().await.code(), Some(76));
    assert!(!is_alive(command));
    assert!(!child.lines().iter().any(|line| line.text == "never"));
}

#[tokio::test]
async fn a_release_that_the_store_does_not_confirm_leaves_the_commands_code() {
    let server = Server::start();
    let mut child = run(&server, &["--lease", "1h"], "echo ready; read _; exit 4");
    child.line("ready").await;
    server.pause();
    child.say("");
    assert_eq!(child.exit().await.code(), Some(4));
    assert!(
        child.errors().contains("may stay until its lease ends"),
        "{}",
        child.errors()
    );
}
