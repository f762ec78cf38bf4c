//! Defects of `redis` that the design works around. A test fails once its defect is mended, and says what to do then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_tests::{ClusterGroup, PATIENCE, eventually};
use redis::PushKind;
use tokio::task::JoinHandle;

use crate::listener;

/// The number of commands that are under way at any time.
const UNDER_WAY: usize = 16;

/// See docs/upstream.md. A server that gives a slot away sends `sunsubscribe` to those who listen to a channel in it, unasked. `redis`
/// takes that for the answer to the oldest command under way, so from then on each gets the answer of the one before it.
// On several threads, since the harness's own commands stop the one that they are sent on.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn answers_go_to_other_commands_after_an_unasked_end_of_a_sharded_subscription() {
    let cluster = ClusterGroup::start_steady().await;
    let [first, second, ..] = cluster.ports();
    if cluster.server(first).name() == "redis-6.2" {
        println!("redis-6.2 has no sharded subscriptions");
        return;
    }
    let (mut listening, mut pushed) = listener(first).await;
    // In slots of this node, in which there are no keys.
    let mut slots = Vec::new();
    for channel in 0..200 {
        let slot = cluster.slot_of(&channel.to_string());
        if cluster.owner(slot).await == first {
            let mut subscribe = redis::cmd("SSUBSCRIBE");
            subscribe.arg(channel).exec_async(&mut listening).await.unwrap();
            slots.push(slot);
        }
    }

    let answered: Arc<[AtomicUsize; UNDER_WAY]> = Arc::default();
    let asking: Vec<_> = (0..UNDER_WAY)
        .map(|asker| {
            let (mut listening, answered) = (listening.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                // Each is asked once.
                for number in (asker..).step_by(UNDER_WAY) {
                    let mut echo = redis::cmd("ECHO");
                    let echo = echo.arg(number).query_async::<String>(&mut listening);
                    // The last one of all gets no answer.
                    match tokio::time::timeout(Duration::from_secs(5), echo).await {
                        Ok(Ok(answer)) if answer == number.to_string() => {
                            answered[asker].fetch_add(1, Ordering::Relaxed);
                        }
                        _ => return,
                    }
                }
            })
        })
        .collect();
    let all_are_answered = || async { answered.iter().all(|answers| answers.load(Ordering::Relaxed) > 10) };
    eventually("answers before the slot moves", all_are_answered).await;

    // Now and then nothing is under way as a slot moves.
    for slot in slots {
        cluster.move_slot(slot, second).await;
        if asking.iter().all(JoinHandle::is_finished) {
            break;
        }
    }
    let ended = async { while pushed.recv().await.unwrap().kind != PushKind::SUnsubscribe {} };
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    ended.expect("the end of a subscription");
    for asker in asking {
        let stopped = tokio::time::timeout(PATIENCE, asker).await;
        assert!(
            stopped.is_ok(),
            "commands get their own answers after the push: has `redis` mended it? Then say so in docs/upstream.md"
        );
    }
}
