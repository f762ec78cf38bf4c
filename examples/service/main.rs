//! A service struct that brings its own manager: `manager = self.locks`.
//!
//! `cargo run --bin service` runs on the embedded store; `REDIS_URL` names a real one.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lock_examples::Failure;
use lock_runtime::{LockError, LockManager, distributed_lock};

struct Accounts {
    locks: LockManager,
    tenant: String,
    balances: Mutex<HashMap<u64, i64>>,
}

#[derive(Debug)]
enum AccountError {
    Lock(LockError),
    Overdrawn { account: u64, missing: i64 },
}

impl From<LockError> for AccountError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl std::fmt::Display for AccountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Overdrawn { account, missing } => write!(f, "account {account} lacks {missing}"),
        }
    }
}

impl Error for AccountError {}

impl Accounts {
    /// The key takes the tenant from `self`, the account from the arguments.
    #[distributed_lock(key = "account:<self.tenant>:<account>", lease = 10, wait = 10, manager = self.locks)]
    async fn withdraw(&self, account: u64, amount: i64) -> Result<i64, AccountError> {
        let balance = self.balance(account);
        // The bank takes its time; nobody else gets at the account meanwhile.
        tokio::time::sleep(Duration::from_millis(5)).await;
        if balance < amount {
            return Err(AccountError::Overdrawn {
                account,
                missing: amount - balance,
            });
        }
        self.balances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(account, balance - amount);
        Ok(balance - amount)
    }

    fn balance(&self, account: u64) -> i64 {
        self.balances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&account)
            .copied()
            .unwrap_or_default()
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned());
    let accounts = Accounts {
        locks: LockManager::builder(&url).prefix("bank:").build()?,
        tenant: "acme".to_owned(),
        balances: Mutex::new(HashMap::from([(1, 100)])),
    };
    let results = tokio::join!(
        accounts.withdraw(1, 40),
        accounts.withdraw(1, 40),
        accounts.withdraw(1, 40)
    );
    for result in [results.0, results.1, results.2] {
        match result {
            Ok(left) => println!("took 40, {left} left"),
            Err(error) => println!("refused: {error}"),
        }
    }
    println!("the account has {}, and was never below zero", accounts.balance(1));
    accounts.locks.shutdown().await;
    Ok(())
}
