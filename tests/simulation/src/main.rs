//! Whole managers in virtual time: real `redis` connections over streams in memory, the real scripts, a simulated server,
//! and a network with faults. A seed decides everything, so a run can be repeated exactly. See `docs/simulation.md`.
//!
//! Three things together make it so: tokio's seeded runtime, a fresh thread for each seed, and random keys of the standard
//! library's maps that come from the seed as well.

mod arguments;
mod campaign;
mod chance;
mod coverage;
mod drive;
mod failovers;
mod faults;
mod judge;
mod plan;
mod shards;
mod shrink;

use std::process::ExitCode;

use arguments::{Arguments, Task};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    let is_good = match &arguments.task {
        Task::Help => {
            println!("{}", arguments::USAGE);
            true
        }
        Task::One {
            seed,
            shape,
            without,
            trace,
        } => campaign::one(*seed, *shape, without, *trace),
        Task::Twice(seeds, shape) => campaign::twice(seeds.clone(), *shape, arguments.jobs),
        Task::Kept(file) => campaign::kept(file, arguments.jobs),
        Task::Many(limits) => campaign::many(limits, arguments.jobs),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
