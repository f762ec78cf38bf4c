//! A test reads from child processes, stops and kills them.

use std::time::Duration;

use lock_tests::lock_child;

#[tokio::test]
async fn child_is_heard_and_hears() {
    let mut child = lock_child!("echo").spawn();
    child.line("ready").await;
    child.say("hello world");
    let line = child.line("echo").await;
    assert_eq!(line.words(), ["hello", "world"]);
    child.close_stdin();
    assert!(child.exit().await.success());
}

#[test]
fn child_is_heard_without_a_runtime() {
    let mut child = lock_child!("echo").spawn();
    child.line_blocking("ready");
    child.kill();
}

#[tokio::test]
async fn stopped_child_stands_still_until_it_goes_on() {
    let mut child = lock_child!("echo").spawn();
    child.line("ready").await;
    child.stop();
    child.say("x");
    // The only proof of silence is to listen for a while.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(child.lines().len(), 1);
    child.cont();
    child.line("echo x").await;
}

#[tokio::test]
async fn stopped_child_can_be_killed() {
    let mut child = lock_child!("echo").spawn();
    child.line("ready").await;
    child.stop();
    child.kill();
    assert!(!child.exit().await.success());
}

#[tokio::test]
#[should_panic(expected = "the reason")]
async fn child_that_fails_says_why() {
    let mut child = lock_child!("fail", "the reason").spawn();
    child.line("never").await;
}
