//! Looks after held locks in the background: renewals, checks and releases.

mod checked;
mod pace;
mod pipelined;
mod releaser;
mod watchdog;

pub(crate) use self::{pace::Pace, releaser::Stake, watchdog::Watchdog};
