//! Measurements against a real server that the bench starts itself: `cargo run --release --bin bench -- <scenario>`.
//!
//! | scenario | measures |
//! |---|---|
//! | `watchdog [locks …]` | CPU, memory and timeliness of renewing so many held locks; 1000, 10000 and 100000 unless given |
//! | `loss [rounds]` | time from the loss of a lock to the end of its body, per cause; 200 rounds unless given |

mod loss;
mod process;
mod report;
mod watchdog;

use std::error::Error;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().unwrap_or_default();
    let numbers = arguments
        .map(|argument| argument.parse())
        .collect::<std::result::Result<Vec<usize>, _>>()?;
    match scenario.as_str() {
        "watchdog" => watchdog::run(&numbers).await,
        "loss" => loss::run(numbers.first().copied().unwrap_or(200)).await,
        other => Err(format!("there is no scenario {other:?}; give `watchdog` or `loss`").into()),
    }
}
