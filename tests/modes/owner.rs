//! Several locks at once: transfers neither create nor lose money, and every call ends its wait.

use lock_tests::{Server, cases, lock_child};

const OPENING: i64 = 1000;

/// Each process moves money in so many tasks, so many times in each. All balances are read and written without any care but the lock's.
async fn the_sum_stays(accounts: usize, processes: usize, tasks: usize, rounds: usize) {
    let (server, bank) = (Server::start(), Server::start());
    let names: Vec<_> = (0..accounts).map(|account| format!("account:{account}")).collect();
    for name in &names {
        bank.cmd(&["SET", name, &OPENING.to_string()]);
    }
    let mut children: Vec<_> = (0..processes)
        .map(|_| lock_child!("modes", server.url()).spawn())
        .collect();
    for child in &mut children {
        child.say(&format!("transfer {tasks} {rounds} {accounts} {}", bank.url()));
    }
    let mut transferred = 0;
    for child in &mut children {
        let line = child.line("transferred").await;
        let [done, failed] = line.words()[..] else {
            panic!("{line:?}")
        };
        assert_eq!(failed, "0", "{}", child.errors());
        transferred += done.parse::<usize>().unwrap();
    }
    assert_eq!(transferred, processes * tasks * rounds);
    let balances: Vec<i64> = names.iter().map(|name| bank.ask(&["GET", name])).collect();
    assert_eq!(
        balances.iter().sum::<i64>(),
        OPENING * i64::try_from(accounts).unwrap(),
        "{balances:?}"
    );
    // The balances may be what they were in the beginning.
    let moved: usize = bank.ask(&["GET", "moved"]);
    assert!(moved >= transferred, "{moved} in {transferred} transfers");
}

cases! {
    a_thousand_transfers_among_ten_accounts_keep_the_sum: the_sum_stays(10, 4, 4, 63);
    transfers_in_opposite_directions_do_not_wait_for_each_other_for_ever: the_sum_stays(2, 4, 4, 30);
    /// Rings of three, where each waits for the next.
    transfers_around_a_ring_do_not_wait_for_each_other_for_ever: the_sum_stays(3, 4, 4, 30);
}
