//! `lockctl open-quorum`: lets masters vote that may have forgotten votes.

use lock_runtime::LockError;

use crate::args::{OpenQuorum, Store};
use crate::connect;
use crate::exit::{Failure, UNAVAILABLE};
use crate::report::Output;

/// The exit code if every master that answers votes already.
const WAS_OPEN: u8 = 1;

pub(crate) fn open_quorum(store: &Store, options: &OpenQuorum) -> Result<u8, Failure> {
    connect::runtime()?.block_on(async {
        let url = connect::url(store)?;
        let scheme = connect::scheme(url);
        if !scheme.starts_with("redlock") {
            return Err(Failure::usage(format!(
                "`{scheme}://` names no quorum: only the masters of a `redlock://` or `redlocks://` URL are opened"
            )));
        }
        if !options.force {
            return Err(Failure::usage(
                "`open-quorum` would let masters vote that may have forgotten whom they have voted for; see that no process holds a lock, or two \
                 will, and give `--force`. Without it they vote by themselves, once the longest lease is over",
            ));
        }
        let opened = connect::for_operators(store)?.open_quorum().await.map_err(unopened)?;
        let mut output = Output::new();
        output.line(if opened {
            "masters that gave no votes vote from now on"
        } else {
            "every master that answers votes already"
        })?;
        output.flush()?;
        Ok(if opened { 0 } else { WAS_OPEN })
    })
}

/// Returns the failure of an opening, whose error names no lock.
fn unopened(error: LockError) -> Failure {
    let LockError::Store { source, .. } = error else {
        return error.into();
    };
    Failure::new(UNAVAILABLE, format!("the quorum cannot be opened: {source}"))
}
