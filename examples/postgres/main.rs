//! A fencing token inside of a transaction: Postgres refuses a holder that has lost its lock while its transaction was on the way.
//!
//! A lost lock cancels the body of the function. What the body has handed to somebody else goes on: a task, a thread, a statement that the
//! database has received already. The token that travels with it says whose it is, and the first statement of the transaction compares it with
//! that of the row.
//!
//! `DATABASE_URL=postgres://postgres@localhost/postgres cargo run --example postgres` creates two tables in the schema
//! `lock_example`, anew. The lock is kept in the embedded store; `REDIS_URL` names a real one.

use std::env;

use lock_examples::Failure;
use lock_runtime::{LockError, distributed_lock};
use tokio::sync::oneshot;
use tokio_postgres::{Client, Config, NoTls};

const TABLES: &str = "
    DROP SCHEMA IF EXISTS lock_example CASCADE;
    CREATE SCHEMA lock_example;
    CREATE TABLE lock_example.price (id bigint PRIMARY KEY, amount bigint NOT NULL, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE lock_example.change (price_id bigint NOT NULL, amount bigint NOT NULL, who text NOT NULL);
    INSERT INTO lock_example.price (id, amount) VALUES (7, 10);";

#[derive(Debug, thiserror::Error)]
enum PriceError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
    #[error("the task of the transaction has ended without a result: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("a later holder of the lock has changed the price")]
    Fenced,
}

/// Opens a connection, which a service would take from its pool.
async fn connect(database: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = database.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// One change of a price.
struct Change {
    who: &'static str,
    amount: i64,
    /// Stands for a stopped machine or a slow network: the transaction begins when it says so, and says how it has ended.
    pause: Option<Pause>,
}

struct Pause {
    begun: oneshot::Sender<()>,
    over: oneshot::Receiver<()>,
    outcome: oneshot::Sender<Result<(), PriceError>>,
}

/// Both statements, or none of them.
async fn write(database: &Config, id: i64, amount: i64, who: &str, fence: i64) -> Result<(), PriceError> {
    let mut client = connect(database).await?;
    let transaction = client.transaction().await?;
    // First: it locks the row. The transaction of a later holder waits behind it, and that of a former one changes nothing.
    let changed = transaction
        .execute(
            "UPDATE lock_example.price SET amount = $1, fence = $2 WHERE id = $3 AND fence <= $2",
            &[&amount, &fence, &id],
        )
        .await?;
    if changed == 0 {
        // It is rolled back when it is dropped.
        return Err(PriceError::Fenced);
    }
    transaction
        .execute(
            "INSERT INTO lock_example.change (price_id, amount, who) VALUES ($1, $2, $3)",
            &[&id, &amount, &who],
        )
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// `fencing` takes the token together with the lock.
#[distributed_lock(key = "price:<id>", lease = "2s", renew = false, fencing)]
async fn set_price(database: &Config, id: i64, change: Change) -> Result<(), PriceError> {
    let fence = lock_runtime::current()
        .ok_or(PriceError::Fenced)?
        .fencing_token()
        .await?
        .as_i64();
    let Change { who, amount, pause } = change;
    println!("{who} has the lock, token {fence}");
    let database = database.clone();
    // In a task of its own, which a lost lock does not cancel: whoever drops a `COMMIT` does not know whether it has happened.
    let writer = tokio::spawn(async move {
        let Some(pause) = pause else {
            return write(&database, id, amount, who, fence).await;
        };
        let _ = pause.begun.send(());
        let _ = pause.over.await;
        let _ = pause.outcome.send(write(&database, id, amount, who, fence).await);
        Ok(())
    });
    writer.await??;
    println!("{who} has set the price to {amount}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let database = env::var("DATABASE_URL").map_err(|_| {
        "DATABASE_URL is not set; give the URL of a PostgreSQL in which this example may create a schema, for instance \
         postgres://postgres@localhost/postgres"
    })?;
    let database: Config = database.parse()?;
    let client = connect(&database).await?;
    client.batch_execute(TABLES).await?;
    lock_runtime::init(&env::var("REDIS_URL").unwrap_or_else(|_| "memory://".to_owned())).await?;

    let (begun, has_begun) = oneshot::channel();
    let (resume, over) = oneshot::channel();
    let (outcome, ended) = oneshot::channel();
    let pause = Some(Pause { begun, over, outcome });
    let paused = tokio::spawn({
        let database = database.clone();
        async move {
            set_price(
                &database,
                7,
                Change {
                    who: "the paused one",
                    amount: 11,
                    pause,
                },
            )
            .await
        }
    });
    has_begun.await?;
    // It waits until the lease of the paused one is over.
    set_price(
        &database,
        7,
        Change {
            who: "the next one",
            amount: 20,
            pause: None,
        },
    )
    .await?;
    if let Err(error) = paused.await? {
        println!("the paused one is told: {error}");
    }
    let _ = resume.send(());
    match ended.await? {
        Ok(()) => println!("the transaction of the paused one has been accepted"),
        Err(error) => println!("the transaction of the paused one is refused: {error}"),
    }

    let row = client
        .query_one(
            "SELECT amount, (SELECT count(*) FROM lock_example.change) FROM lock_example.price WHERE id = 7",
            &[],
        )
        .await?;
    let (amount, changes): (i64, i64) = (row.get(0), row.get(1));
    println!("the price is {amount}, after {changes} change");
    lock_runtime::global()?.shutdown().await;
    Ok(())
}
