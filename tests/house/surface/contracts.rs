//! The contracts of every public type and every public async function: types can be sent and
//! shared, futures can be sent, and the documentation of each async function has a section on
//! cancel safety.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lock_runtime::{
    Backoff, Config, ConfigError, Credentials, FencingToken, HandoverLimits, Health, HealthChanges, HeldLock, Holder,
    HolderInfo, KeyProblem, LockError, LockGuard, LockInfo, LockManager, LockManagerBuilder, LockMode, LockPages,
    LockRequest, LostReason, MasterInfo, OnLost, QuorumMaster, RequestProblem, ServerHealth, ServerRole, ServerState,
    Stats, StoreError, clock, error, store, testing,
};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lines of `docs/public-names.txt` on the runtime, without what stands in front of the keyword.
fn listed() -> Vec<String> {
    let list = fs::read_to_string(top().join("docs/public-names.txt")).unwrap();
    let (_, runtime) = list.split_once("## lock-runtime\n").unwrap();
    let (runtime, _) = runtime.split_once("\n## ").unwrap();
    let keyword = |line: &str| {
        let mut rest = line;
        while let Some((_, after)) = rest.strip_prefix("#[").and_then(|rest| rest.split_once("] ")) {
            rest = after;
        }
        rest.to_owned()
    };
    runtime.lines().map(keyword).collect()
}

/// The name that a line starts with, without generics and arguments.
fn name(rest: &str) -> &str {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    &rest[..end.unwrap_or(rest.len())]
}

fn names(of: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    listed().iter().filter_map(|line| of(line)).collect()
}

const fn send_sync_unpin<T: Send + Sync + Unpin>() {}

macro_rules! types {
    ($($ty:ty),* $(,)?) => {
        const _: () = { $(send_sync_unpin::<$ty>();)* };
        /// The types that are checked when this file is compiled.
        const CHECKED: &[&str] = &[$(stringify!($ty)),*];
    };
}

types! {
    Backoff, clock::BootClock, Config, ConfigError, Credentials, HandoverLimits, HeldLock, Holder, HolderInfo, KeyProblem, LockError, LockGuard, LockInfo, LockManager,
    LockManagerBuilder, LockPages, MasterInfo, QuorumMaster, store::Abandoned, store::quorum::QuorumStore, LockRequest, LostReason, RequestProblem, LockMode, FencingToken, clock::Moment, OnLost, Stats, clock::TokioClock,
    store::AcquireAllRequest<'_>, store::AcquireRequest<'_>, store::Attempt, store::AttemptAll, store::Fence, store::HolderValue, store::Lane, store::LeaveFree,
    store::Limited, store::LockPage, store::LossHint, error::Effect, store::QueueRequest<'_>, store::Queued, store::Receipt,
    store::ReleaseRequest<'_>, store::RenewRequest, store::Replicated, store::Responder<store::Ownership>, Health, HealthChanges, ServerHealth, ServerRole, ServerState, store::ContentionSlot, StoreError, store::QueueOutcome, store::Ownership,
    store::memory::MemoryStore, store::redis::LegacySetnxStore, store::redis::RedisStore, store::redis::ClusterStore, store::redis::TimeOuts,
    testing::Locked, testing::RemoteHolder, testing::TestLocks,
}

/// The types that stay on one thread, each for a reason.
const BOUND_TO_THREAD: &[&str] = &[
    // Ends the global manager's replacement on the thread that it was set up for.
    "testing::AsGlobal",
];

/// The types that can be sent and not be shared, each for a reason.
const SENT_ONLY: &[&str] = &[
    // Has a future of a store, which is polled by one task.
    "store::Dispatch",
];

#[test]
fn every_public_type_is_send_sync_and_unpin() {
    const fn send_unpin<T: Send + Unpin>() {}
    send_unpin::<store::Dispatch<store::Ownership>>();
    let all = names(|line| {
        let rest = line.strip_prefix("struct ").or_else(|| line.strip_prefix("enum "))?;
        Some(name(rest).to_owned())
    });
    let checked = CHECKED.iter().map(|ty| name(&ty.replace(' ', "")).to_owned());
    let bound = BOUND_TO_THREAD.iter().chain(SENT_ONLY).map(ToString::to_string);
    let known: BTreeSet<_> = checked.chain(bound).collect();
    assert_eq!(all, known, "the list in this test is that of the public types");
}

/// Enters a future of a public function, which is never polled.
fn future(name: &str, names: &mut BTreeSet<String>, _: impl Future + Send) {
    names.insert(name.to_owned());
}

fn is_async(line: &str) -> Option<String> {
    let rest = line.strip_prefix("async fn ");
    let rest = rest.or_else(|| line.strip_prefix("fn ").filter(|rest| rest.contains("-> impl Future")));
    rest.map(|rest| name(rest).to_owned())
}

#[tokio::test]
async fn the_future_of_every_public_async_function_is_send() {
    let locks = LockManager::builder("memory://").build().unwrap();
    let request = || locks.lock("k");
    let guard = request().acquire().await.unwrap();
    let held = guard.handle().clone();
    let mut known = BTreeSet::new();
    let all = &mut known;
    future("init", all, lock_runtime::init("memory://"));
    future("LockManager::connect", all, LockManager::connect("memory://"));
    future(
        "LockManagerBuilder::connect",
        all,
        LockManager::builder("memory://").connect(),
    );
    future("LockManager::check_connection", all, locks.check_connection());
    future("LockManager::check_setup", all, locks.check_setup());
    future("LockManager::inspect", all, locks.inspect("k"));
    future("LockManager::list", all, locks.list("*"));
    future("LockPages::next", all, locks.list_pages("*").next());
    future("LockManager::force_release", all, locks.force_release("k"));
    future("LockManager::open_quorum", all, locks.open_quorum());
    future("LockManager::shutdown", all, locks.shutdown());
    future("LockRequest::acquire", all, request().acquire());
    future("LockRequest::try_acquire", all, request().try_acquire());
    future("LockRequest::run", all, request().run(async {}));
    future("HealthChanges::next", all, locks.health_changes().next());
    future("HeldLock::verify", all, held.verify());
    future("HeldLock::fencing_token", all, held.fencing_token());
    future("HeldLock::lost", all, held.lost());
    future("HeldLock::shielded", all, held.shielded(async {}));
    future("LockGuard::release", all, guard.release());
    assert_eq!(
        names(is_async),
        known,
        "the list in this test is that of the public async functions"
    );
}

/// The documentation in front of a line.
fn documentation<'a>(lines: &[&'a str], at: usize) -> Vec<&'a str> {
    let before = lines[..at].iter().rev().map(|line| line.trim_start());
    let before = before.take_while(|line| line.starts_with("//") || line.starts_with("#["));
    before.filter_map(|line| line.strip_prefix("///")).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_public_async_function_says_what_happens_if_its_future_is_dropped() {
    let public: BTreeSet<String> = names(is_async)
        .iter()
        .map(|path| path.rsplit("::").next().unwrap().to_owned())
        .collect();
    let mut files = Vec::new();
    sources(&top().join("lock-runtime/src"), &mut files);
    let mut told = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.trim_start().strip_prefix("pub ") else {
                continue;
            };
            let Some(function) = is_async(rest).filter(|function| public.contains(function)) else {
                continue;
            };
            assert!(
                documentation(&lines, at).contains(&" # Cancel safety"),
                "{}:{}: `{function}` has no section \"Cancel safety\"",
                file.display(),
                at + 1
            );
            told.insert(function);
        }
    }
    assert_eq!(told, public, "each was found in the sources");
}
