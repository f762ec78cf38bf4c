//! What a cluster does with messages of scripts, and with scripts while a slot moves.

use lock_tests::{ClusterGroup, PATIENCE};
use redis::{PushKind, Value};

use crate::listener;

/// A script that takes 0 for "nobody listens" takes a lock back that a listener at another node has been told it holds.
#[tokio::test]
async fn publish_in_a_script_counts_the_listeners_at_its_own_node_and_reaches_all() {
    let cluster = ClusterGroup::start_steady().await;
    let [first, second, ..] = cluster.ports();
    let (mut listening, mut pushed) = listener(second).await;
    listening.subscribe("turn").await.unwrap();

    let publish = "return redis.call('PUBLISH', 'turn', 'yours')";
    let told = cluster.server(first).cmd(&["EVAL", publish, "0"]);
    assert_eq!(told, Value::Int(0), "of the node of the script");
    let message = async {
        loop {
            let push = pushed.recv().await.unwrap();
            if push.kind == PushKind::Message {
                return push.data;
            }
        }
    };
    let message = tokio::time::timeout(PATIENCE, message).await.unwrap();
    assert!(message.contains(&Value::BulkString(b"yours".to_vec())), "{message:?}");

    // The question comes before the message, and is allowed in a script.
    let listeners = "return redis.call('PUBSUB', 'NUMSUB', 'turn')[2]";
    for (node, number) in [(first, 0), (second, 1)] {
        let counted = cluster.server(node).cmd(&["EVAL", listeners, "0"]);
        assert_eq!(counted, Value::Int(number));
    }
}

/// A lock's script names its queue, which is absent while nobody waits.
#[tokio::test]
async fn a_script_is_told_to_try_again_while_a_slot_moves_and_one_of_its_keys_is_absent() {
    let cluster = ClusterGroup::start_steady().await;
    let [first, second, ..] = cluster.ports();
    let (source, target) = (cluster.server(first), cluster.server(second));
    source.cmd(&["SET", "{b}:lock", "holder"]);
    // The slot of `{b}`.
    cluster.open_move(3300, first, second);

    let script = "return redis.call('GET', KEYS[1])";
    let error = |of: redis::RedisResult<Value>| of.unwrap_err().code().map(str::to_owned);
    let both = ["EVAL", script, "2", "{b}:lock", "{b}:queue"];
    // Redis 6.2 sends it to the target, which then tells it so.
    let at_the_source = error(source.try_cmd(&both));
    let expected = if source.name() == "redis-6.2" {
        "ASK"
    } else {
        "TRYAGAIN"
    };
    assert_eq!(at_the_source.as_deref(), Some(expected));
    // With one key the source answers as long as the key is there, and points to the target otherwise.
    let one = |key| ["EVAL", script, "1", key];
    assert_eq!(source.cmd(&one("{b}:lock")), Value::BulkString(b"holder".to_vec()));
    assert_eq!(error(source.try_cmd(&one("{b}:queue"))).as_deref(), Some("ASK"));
    // The target takes it only right after `ASKING`.
    assert_eq!(error(target.try_cmd(&one("{b}:queue"))).as_deref(), Some("MOVED"));
    let mut connection = target.connection().await;
    let mut asking = async |command: &[&str]| {
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore();
        both.cmd(command[0]).arg(&command[1..]);
        both.query_async::<(Value,)>(&mut connection)
            .await
            .map(|(answer,)| answer)
    };
    assert_eq!(asking(&one("{b}:queue")).await.unwrap(), Value::Nil);
    assert_eq!(error(asking(&both).await).as_deref(), Some("TRYAGAIN"));

    cluster.move_slot(3300, second).await;
    assert_eq!(target.cmd(&both), Value::BulkString(b"holder".to_vec()));
}
