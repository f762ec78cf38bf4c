//! Every scenario still runs, with as little of it as possible; the bench takes its servers from `lock_tests`.

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
    hot_runs: "hot",
    handover_runs: "handover",
    inside_runs: "inside",
    zipf_runs: "zipf",
    crowd_runs: "crowd",
    watchdog_runs: "watchdog",
    attribute_runs: "attribute",
    compile_runs: "compile",
    loss_runs: "loss",
    readers_runs: "readers",
    transfers_runs: "transfers",
    memory_runs: "memory",
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
