//! `lockctl` on several servers.

use lock_tests::{ClusterGroup, Server, eventually};

use crate::stage::{
    Heart, STORED, code, end_of_renewed_lease, errors, is_alive, lockctl_at, pids, quorum_of, run_at, said,
};

fn three_masters() -> [Server; 3] {
    std::array::from_fn(|_| Server::start())
}

#[tokio::test]
async fn a_command_outlives_one_master_of_a_quorum_and_not_a_majority() {
    let masters = three_masters();
    let opened = lockctl_at(&quorum_of(&masters), &["open-quorum", "--force"]);
    assert_eq!(code(&opened), 0, "{}", errors(&opened));
    let heart = Heart::new();
    let options = ["--lease", "6s", "--kill-after", "1h"];
    let mut child = run_at(&quorum_of(&masters), &options, &heart.script());
    let command = pids(&mut child).await[0];
    heart.beats().await;
    // A majority is enough to begin.
    eventually("the votes of all masters", || async {
        masters.iter().all(|master| master.exists(STORED))
    })
    .await;
    masters[0].kill();
    let ends = end_of_renewed_lease(&masters[2]).await;
    assert!(is_alive(command), "{}", child.errors());
    masters[1].kill();
    assert_eq!(child.exit().await.code(), Some(76));
    assert!(!is_alive(command));
    assert!(heart.last().unwrap() < ends, "{:?} {ends:?}", heart.last());
}

#[test]
fn a_quorum_is_opened_by_force_only_and_by_the_settings_of_its_services() {
    let masters = three_masters();
    let url = quorum_of(&masters);
    let unasked = lockctl_at(&url, &["open-quorum"]);
    assert_eq!(code(&unasked), 64);
    assert!(errors(&unasked).contains("give `--force`"), "{}", errors(&unasked));
    let closed = lockctl_at(&url, &["run", "--key", "job", "--wait", "0", "true"]);
    assert_eq!(code(&closed), 69, "{}", errors(&closed));
    let opened = lockctl_at(&url, &["open-quorum", "--force"]);
    assert_eq!(code(&opened), 0, "{}", errors(&opened));
    let again = lockctl_at(&url, &["open-quorum", "--force"]);
    assert_eq!(code(&again), 1, "{}", errors(&again));
    let other = lockctl_at(
        &url,
        &["run", "--longest-lease", "1m30s", "--key", "job", "--wait", "0", "true"],
    );
    assert_eq!(code(&other), 69);
    assert!(errors(&other).contains("longest"), "{}", errors(&other));

    let no_quorum = lockctl_at(&masters[0].url(), &["open-quorum", "--force"]);
    assert_eq!(code(&no_quorum), 64);
    assert!(errors(&no_quorum).contains("no quorum"), "{}", errors(&no_quorum));
}

#[test]
fn a_quorum_with_a_short_longest_lease_needs_no_other_option() {
    let masters = three_masters();
    let at = |arguments: &[&str]| {
        let longest = ["--longest-lease", "9s500ms"];
        lockctl_at(&quorum_of(&masters), &[&longest, arguments].concat())
    };
    let opened = at(&["open-quorum", "--force"]);
    assert_eq!(code(&opened), 0, "{}", errors(&opened));
    let ran = at(&["run", "--key", "job", "--lease", "9s", "true"]);
    assert_eq!(code(&ran), 0, "{}", errors(&ran));
    let too_long = at(&["run", "--key", "job", "--lease", "30s", "true"]);
    assert_eq!(code(&too_long), 64, "{}", errors(&too_long));
    assert!(errors(&too_long).contains("longest"), "{}", errors(&too_long));
}

#[test]
fn a_quorum_that_cannot_be_opened_is_told_without_a_lock() {
    let masters = three_masters();
    let url = quorum_of(&masters);
    masters[0].kill();
    masters[1].kill();
    let opened = lockctl_at(&url, &["open-quorum", "--force"]);
    assert_eq!(code(&opened), 69, "{}", said(&opened));
    let told = errors(&opened);
    assert!(told.starts_with("lockctl: the quorum cannot be opened: "), "{told}");
}

#[tokio::test]
async fn a_command_goes_on_while_its_slot_moves_and_its_master_is_replaced() {
    let cluster = ClusterGroup::start_steady().await;
    for master in cluster.masters() {
        let user = [
            "on",
            ">pw",
            "~dist_lock:*",
            "resetchannels",
            "&dist_lock:*",
            "+@all",
            "-asking",
        ];
        master.cmd(&[&["ACL", "SETUSER", "shop"], &user[..]].concat());
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://shop:pw@");
    let examined = lockctl_at(&url, &["doctor"]);
    if cluster.masters()[0].version().is_7() {
        assert!(said(&examined).contains("may not run ASKING"), "{}", said(&examined));
    }
    let slot = cluster.slot_of(STORED);
    let mut child = run_at(&cluster.url(), &["--lease", "6s"], "echo ready; read _; exit 4");
    child.line("ready").await;
    let former = cluster.owner(slot).await;
    let owner = cluster.other_master(former);
    cluster.move_slot(slot, owner).await;
    let replica = cluster.replica_of(owner).unwrap();
    cluster.failover(replica).await;
    end_of_renewed_lease(cluster.server(replica)).await;
    child.say("");
    assert_eq!(child.exit().await.code(), Some(4), "{}", child.errors());
    assert!(!cluster.server(replica).exists(STORED));
}
