//! Every scenario still runs, with as little of it as possible and without the peers; the bench takes its servers from `lock_tests`.

#![allow(clippy::expect_used)]

use std::process::Command;

/// Runs a scenario and looks for its table.
fn runs(scenario: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--smoke", scenario])
        .output()
        .expect("the bench starts");
    let (said, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{scenario}: {said}{failed}");
    assert!(said.contains(&format!("## `{scenario}`")), "{scenario}: {said}{failed}");
    assert!(said.contains("|---"), "{scenario}: {said}{failed}");
    assert!(!failed.contains("a section ended with"), "{scenario}: {failed}");
}

macro_rules! scenarios {
    ($($name:ident: $scenario:literal),* $(,)?) => {
        $(#[test] fn $name() { runs($scenario) })*
    };
}

scenarios! {
    uncontended_runs: "uncontended",
    instructions_runs: "instructions",
    hot_runs: "hot",
    handover_runs: "handover",
    inside_runs: "inside",
    zipf_runs: "zipf",
    crowd_runs: "crowd",
    watchdog_runs: "watchdog",
    attribute_runs: "attribute",
    compile_runs: "compile",
    loss_runs: "loss",
    silent_runs: "silent",
    failover_runs: "failover",
    cluster_runs: "cluster",
    slots_runs: "slots",
    promotion_runs: "promotion",
    node_runs: "node",
    quorum_runs: "quorum",
    readers_runs: "readers",
    replicas_runs: "replicas",
    transfers_runs: "transfers",
    memory_runs: "memory",
}

/// Two builds, here twice the same, are measured in turn.
#[test]
fn a_build_is_compared_with_another() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["against", "--smoke", env!("CARGO_BIN_EXE_bench"), "attribute", "inside"])
        .output()
        .expect("the bench starts");
    let (said, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}{failed}");
    for scenario in ["attribute", "inside"] {
        let row = said.lines().find(|line| line.contains(scenario));
        assert!(
            row.is_some_and(|row| row.contains(" to ")),
            "{scenario}: {said}{failed}"
        );
    }
}

/// A peer that never comes back costs a scenario seconds, and its row says why there are no figures.
fn goes_on_without(hanging: &str, scenario: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--smoke", scenario])
        .env("LOCK_BENCH_HANGING", hanging)
        .output()
        .expect("the bench starts");
    let (said, failed) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{scenario}: {said}{failed}");
    for peer in hanging.split(',') {
        let row = format!("hanging while {peer}, defaults (hangs: no answer within 5 s)");
        assert!(said.contains(&row), "{scenario}: no row {row:?} in {said}{failed}");
    }
    assert!(said.contains("| ours"), "{scenario}: {said}{failed}");
}

#[test]
fn a_peer_whose_constructor_hangs_is_a_row_that_says_so() {
    goes_on_without("connecting,blocking", "uncontended");
}

#[test]
fn a_peer_that_hangs_at_work_is_a_row_that_says_so() {
    goes_on_without("taking", "uncontended");
}

#[test]
fn a_peer_whose_process_hangs_is_a_row_that_says_so() {
    goes_on_without("blocking", "inside");
}

#[test]
fn an_unknown_scenario_is_answered_with_those_that_exist() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("hto")
        .output()
        .expect("the bench starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("uncontended"));
}
