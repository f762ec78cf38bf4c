//! The judge on a server reports every overlap. (The tests of the judge of records stand beside its
//! code.)

use lock_tests::{Server, StoreJudge, lock_child};

#[test]
fn one_after_the_other_is_clean() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    drop(judge.enter("a", Some(1)));
    drop(judge.enter("b", Some(2)));
    drop(judge.enter("c", None));
    judge.assert_clean(3);
    let events = judge.events();
    assert_eq!(
        events
            .iter()
            .map(|event| (event.enters, event.holder.as_str()))
            .collect::<Vec<_>>(),
        [
            (true, "a"),
            (false, "a"),
            (true, "b"),
            (false, "b"),
            (true, "c"),
            (false, "c")
        ]
    );
    assert!(events.is_sorted_by_key(|event| event.micros));
}

#[test]
fn overlap_is_seen_by_the_store() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    let a = judge.enter("a", None);
    let b = judge.enter("b", None);
    drop((a, b));
    let violations = judge.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(violations[0].ends_with("b entered while inside: a"));
}

#[tokio::test]
async fn overlap_of_processes_is_seen_by_the_store() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    let mut child = lock_child!("visit", server.url(), "child", "7").spawn();
    child.line("inside").await;
    drop(judge.enter("parent", Some(8)));
    assert_eq!(judge.violations().len(), 1);
    child.say("leave");
    child.line("outside").await;
    drop(judge.enter("parent", Some(9)));
    assert_eq!(judge.violations().len(), 1);
}

#[test]
fn killed_holder_can_be_written_off() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    std::mem::forget(judge.enter("killed", None));
    judge.abandon("killed");
    drop(judge.enter("next", None));
    judge.assert_clean(2);
}

#[test]
fn token_that_does_not_grow_is_seen_by_the_store() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    // Beyond 2^53 as well, where Lua's own numbers would be equal.
    let big = (1 << 53) + 1;
    for token in [9, 10, big, big - 1, big] {
        drop(judge.enter("a", Some(token)));
    }
    let violations = judge.violations();
    assert_eq!(violations.len(), 2, "{violations:?}");
}

#[test]
fn stale_write_is_refused_by_the_store() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    assert!(judge.write("a", 5));
    assert!(judge.write("a", 5));
    assert!(!judge.write("b", 5));
    assert!(!judge.write("b", 4));
    // Entering claims the token, before the first write.
    drop(judge.enter("c", Some(6)));
    assert!(!judge.write("a", 5));
    assert!(judge.write("c", 6));
    assert_eq!((judge.writes(), judge.refused()), (3, 3));
}

#[test]
#[should_panic(expected = "1 violations")]
fn assertion_fails_on_a_violation() {
    let server = Server::start();
    let judge = StoreJudge::on(&server);
    let a = judge.enter("a", None);
    let b = judge.enter("b", None);
    drop((a, b));
    judge.assert_clean(0);
}
