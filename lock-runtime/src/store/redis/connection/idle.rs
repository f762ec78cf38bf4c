//! Keeps up a connection on which nothing else is sent, so that one that has fallen silent is
//! replaced before a call needs it, and so that a server that is gone is noticed.

use std::time::Duration;

use super::failure;
use super::handshake;
use super::slot::WeakSlot;
use crate::host::{Host, Timer};

/// The part of the response time-out for which nothing may have arrived before the server is asked.
/// With the time until the answer is given up, a silent connection is replaced within twice that
/// time-out.
const QUIET: f64 = 0.75;
/// The longest pause before the first new connection, as a part of that time.
const SOON: f64 = 0.1;

/// Asks the server whenever nothing has arrived for [`QUIET`]. A connection that does not answer
/// within `response`, which is the response time-out, is replaced, and one that has ended, or whose
/// server has another role by now, is made anew.
///
/// It runs on the slot's own runtime: while that stands still, an answer would not be seen, so
/// nothing is asked either.
pub(super) async fn keep_up(host: Host, mut slot: WeakSlot, response: Duration) {
    let quiet = response.mul_f64(QUIET);
    let mut pause = quiet;
    let mut has_answered = true;
    loop {
        tokio::select! {
            biased;
            () = slot.gone() => return,
            () = host.sleep(Timer::LockThread, pause) => {}
        }
        let Some(live) = slot.upgrade() else { return };
        let up = live.goes_on();
        let answered = up.as_ref().map(|up| up.last_answer());
        let silent = answered.map_or(quiet, |answered| {
            Duration::from_nanos(host.now().as_nanos().saturating_sub(answered))
        });
        pause = quiet.saturating_sub(silent);
        // A replica is asked for its role however much else it answers: nothing tells of its promotion.
        let is_replica = up.as_ref().is_some_and(|up| up.server.is_replica);
        if !pause.is_zero() && !is_replica {
            continue;
        }
        let is_first = has_answered;
        pause = quiet;
        has_answered = match live.ask(handshake::hello()).await {
            Ok(hello) => {
                let role = handshake::capabilities(hello).role();
                if let Some(up) = up.filter(|up| up.server.role() != role) {
                    let address = &*up.address;
                    tracing::info!(address, %role, "the server has another role than before, and is connected to anew");
                    live.end(up.number, true);
                    pause = Duration::ZERO;
                }
                true
            }
            // Another try would panic again. A call that asks gets that error.
            Err(error) if failure::has_panicked(&error) => {
                drop((live, up));
                slot.made().await;
                true
            }
            Err(error) => {
                if is_first {
                    tracing::debug!(%error, "the server does not answer on an idle connection");
                }
                // Many processes may have lost the same server. The first new connection is made
                // soon, since this one may be all that is wrong.
                pause = quiet.mul_f64(if is_first {
                    SOON * host.fraction()
                } else {
                    0.5 + host.fraction() / 2.0
                });
                false
            }
        };
    }
}
