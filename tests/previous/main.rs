//! Two builds at once, as during a deployment: the present one and that of an earlier commit contend for the same locks.
//!
//! The earlier build is the same child program, see `./tests/build-previous`. Orders to it are those that it knew at that commit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod modes;
mod turns;

#[allow(dead_code, reason = "not all of it is needed here")]
#[path = "../waiting/queue.rs"]
mod queue;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use lock_tests::children::Builder;

/// A build of the child program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    Previous,
    Present,
}

impl Build {
    const BOTH: [Self; 2] = [Self::Previous, Self::Present];

    const fn other(self) -> Self {
        match self {
            Self::Previous => Self::Present,
            Self::Present => Self::Previous,
        }
    }

    /// A process of it.
    fn child(self) -> Builder {
        match self {
            Self::Previous => Builder::new(previous()),
            Self::Present => Builder::new(env!("CARGO_BIN_EXE_lock-child")),
        }
    }
}

/// The earlier build. It is made if `./tests/all` has not done so, which takes half a minute. A clone without that commit fails the tests
/// instead of skipping them: a check of compatibility that silently checks nothing is worse than a red one that says what it lacks.
fn previous() -> &'static str {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("build-previous"))
            // The target folder that this test was built into.
            .env("CARGO_TARGET_DIR", target_folder())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    });
    match program {
        Ok(program) => program,
        Err(why) => panic!("{why}"),
    }
}

/// `<target>/debug/lock-child` tells it.
fn target_folder() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_lock-child"));
    program.parent().and_then(Path::parent).expect("cargo's layout")
}
