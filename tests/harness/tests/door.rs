//! The judge at the door reports every forbidden overlap, and no other.

use std::time::Duration;

use lock_tests::door::{Door, Visit, Visitor, valid_until};
use lock_tests::{Server, eventually_some};

const LONG: Duration = Duration::from_secs(60);

struct Stage {
    door: Door,
    visits: usize,
    _server: Server,
}

impl Stage {
    fn set() -> Self {
        let server = Server::start();
        Self {
            door: Door::on(&server),
            visits: 0,
            _server: server,
        }
    }

    fn enter(&mut self, class: &str, token: Option<u64>) -> Visit {
        self.enter_for(class, token, &["lock"], LONG)
    }

    fn enter_for(&mut self, class: &str, token: Option<u64>, locks: &[&str], valid: Duration) -> Visit {
        self.visits += 1;
        let visitor = Visitor {
            name: format!("visitor-{}", self.visits),
            class: class.to_owned(),
            token,
            locks: locks.iter().map(|&lock| lock.to_owned()).collect(),
        };
        self.door.enter(visitor, valid_until(|| valid))
    }

    /// The judge has seen one violation, and it is about that.
    #[track_caller]
    fn complains(&self, about: &str) {
        let violations = self.door.violations();
        assert!(
            violations.len() == 1 && violations[0].contains(about),
            "{violations:?} instead of one about {about:?}"
        );
    }
}

#[test]
fn whoever_may_be_in_together_is_clean() {
    let mut stage = Stage::set();
    drop((stage.enter("r", None), stage.enter("r", None), stage.enter("r", None)));
    drop(stage.enter("w", Some(1)));
    drop(stage.enter("w", Some(2)));
    drop((stage.enter("oa", Some(3)), stage.enter("oa", Some(3))));
    drop((stage.enter("ob", None), stage.enter("ob", Some(4))));
    drop((stage.enter("s2", None), stage.enter("s3", None)));
    drop((
        stage.enter("s3", None),
        stage.enter("s3", None),
        stage.enter("s4", None),
    ));
    let apart = (
        stage.enter_for("x", Some(5), &["a", "b"], LONG),
        stage.enter_for("x", Some(6), &["c"], LONG),
    );
    drop(apart);
    stage.door.assert_clean(15);
    assert_eq!((stage.door.shared(), stage.door.late()), (7, 0));
}

#[test]
fn whoever_may_not_be_in_together_is_seen() {
    for (inside, enters) in [
        ("x", "x"),
        ("x", "r"),
        ("r", "w"),
        ("w", "r"),
        ("w", "w"),
        ("s5", "r"),
        ("oa", "ob"),
        ("oa", "w"),
        ("w", "s5"),
    ] {
        let mut stage = Stage::set();
        let first = stage.enter(inside, None);
        drop(stage.enter(enters, None));
        stage.complains(&format!("visitor-2 ({enters}) is in lock beside visitor-1 ({inside})"));
        drop(first);
        drop(stage.enter(enters, None));
        stage.complains("beside");
    }
}

#[test]
fn one_too_many_is_seen_whoever_has_the_smaller_number() {
    for numbers in [["s2", "s2", "s2"], ["s2", "s5", "s5"], ["s5", "s5", "s2"]] {
        let mut stage = Stage::set();
        let (_first, _second) = (stage.enter(numbers[0], None), stage.enter(numbers[1], None));
        stage.door.assert_clean(2);
        drop(stage.enter(numbers[2], None));
        stage.complains("visitor-3 is number 3 of 2");
    }
}

#[test]
fn one_account_in_two_bodies_is_seen() {
    let mut stage = Stage::set();
    let _first = stage.enter_for("x", Some(1), &["a", "b"], LONG);
    drop(stage.enter_for("x", Some(2), &["b", "c"], LONG));
    stage.complains("visitor-2 (x) is in b beside visitor-1 (x)");
}

#[test]
fn a_token_that_does_not_grow_is_seen() {
    for (first, second) in [(9, 8), (9, 9), ((1 << 53) + 1, 1 << 53)] {
        let mut stage = Stage::set();
        drop(stage.enter("w", Some(first)));
        drop(stage.enter("w", Some(second)));
        stage.complains(&format!("visitor-2 is in lock with token {second} after {first}"));
    }
}

#[test]
fn a_token_that_two_owners_or_not_all_of_one_have_is_seen() {
    let mut stage = Stage::set();
    drop(stage.enter("oa", Some(9)));
    drop(stage.enter("ob", Some(9)));
    stage.complains("after 9 of oa");

    let mut stage = Stage::set();
    let _first = stage.enter("oa", Some(9));
    drop(stage.enter("oa", Some(10)));
    stage.complains("visitor-2 has token 10 in lock beside visitor-1 with 9");
}

#[tokio::test]
async fn whoever_was_killed_counts_until_its_lock_has_ended() {
    let mut stage = Stage::set();
    let valid = Duration::from_secs(3);
    std::mem::forget(stage.enter_for("w", None, &["lock"], valid));
    drop(stage.enter("w", None));
    stage.complains("visitor-2 (w) is in lock beside visitor-1 (w)");
    // It gets in as soon as the other counts as gone, with as many violations as it was too early.
    eventually_some("the first to be gone", || {
        let before = stage.door.violations().len();
        drop(stage.enter("w", None));
        let after = stage.door.violations().len();
        async move { (before == after).then_some(()) }
    })
    .await;
}

#[test]
fn whoever_stays_is_counted_for_longer() {
    let mut stage = Stage::set();
    let visit = stage.enter_for("w", Some(1), &["lock"], Duration::from_micros(1));
    visit.stay(valid_until(|| LONG));
    drop(stage.enter("w", Some(2)));
    stage.complains("visitor-2 (w) is in lock beside visitor-1 (w)");
    // And itself when it stays although another has been let in.
    visit.stay(valid_until(|| LONG));
    assert!(stage.door.violations()[1].contains("visitor-1 is in lock with token 1 after 2"));
}

#[test]
fn whoever_comes_when_its_lock_has_ended_is_not_judged() {
    let mut stage = Stage::set();
    let _inside = stage.enter("w", Some(2));
    drop(stage.enter_for("w", Some(1), &["lock"], Duration::ZERO));
    stage.door.assert_clean(1);
    assert_eq!((stage.door.entries(), stage.door.late()), (1, 1));
}

#[test]
#[should_panic(expected = "1 violations")]
fn the_assertion_fails_on_a_violation() {
    let mut stage = Stage::set();
    let _inside = stage.enter("w", None);
    drop(stage.enter("w", None));
    stage.door.assert_clean(0);
}

#[test]
#[should_panic(expected = "saw 1 entries only")]
fn the_assertion_fails_on_too_few_entries() {
    let mut stage = Stage::set();
    drop(stage.enter("w", None));
    stage.door.assert_clean(2);
}
