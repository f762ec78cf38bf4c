//! The second process of the tests: does what its first argument says, see `children.rs` for the protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use lock_tests::children::{child_hears, child_says};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo"] => echo(),
        ["fail", why] => panic!("{why}"),
        ["serve"] => serve(),
        ["visit", url, holder, token] => visit(url, holder, token),
        ref unknown => panic!("lock-child does not know {unknown:?}"),
    }
}

/// Says everything twice.
fn echo() {
    child_says("ready");
    loop {
        let line = child_hears();
        child_says(format_args!("echo {line}"));
    }
}

/// Starts a server, and waits to be killed together with it.
fn serve() {
    let server = lock_tests::Server::start();
    child_says(format_args!("serving {} {}", server.pid(), server.folder().display()));
    child_hears();
}

/// Stays inside the judge's critical section until told to leave.
fn visit(url: &str, holder: &str, token: &str) {
    let judge = lock_tests::StoreJudge::connect(url);
    let visit = judge.enter(holder, token.parse().ok());
    child_says("inside");
    child_hears();
    drop(visit);
    child_says("outside");
    child_hears();
}
