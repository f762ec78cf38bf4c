//! `lockctl release`: takes a lock away from its holders.

use lock_runtime::HolderInfo;

use crate::args::{Release, Store};
use crate::connect;
use crate::exit::Failure;
use crate::report::{Output, rest, shown};

/// The exit code for a lock that was free.
const FREE: u8 = 1;

pub(crate) fn release(store: &Store, options: &Release) -> Result<u8, Failure> {
    connect::runtime()?.block_on(async {
        let locks = connect::for_operators(store)?;
        connect::to_answer(&locks).await?;
        let info = locks.inspect(&options.key).await?;
        let key = shown(&options.key);
        let holders: Vec<_> = info.iter().flat_map(|info| &info.holders).collect();
        let named = |holder: &HolderInfo, word: &str| {
            let name = shown(&holder.holder.to_string());
            match holder.remaining {
                None => format!("{name} (without expiry)"),
                remaining => format!("{name} ({} of its lease {word})", rest(remaining)),
            }
        };
        if !options.force {
            let would = if holders.is_empty() {
                "which is free now".to_owned()
            } else {
                let named: Vec<_> = holders.iter().map(|holder| named(holder, "left")).collect();
                format!("held by {}", named.join("; "))
            };
            return Err(Failure::usage(format!(
                "`release` would take away lock `{key}`, {would}; a holder goes on until it notices, beside the next one, so see that it is \
                 dead or stuck, and give `--force`"
            )));
        }
        let mut output = Output::new();
        let is_released = locks.force_release(&options.key).await?;
        if !is_released {
            output.line(&format!("{key}  was free"))?;
        } else if holders.is_empty() {
            output.line(&format!("{key}  released; it was taken after its holders were asked for"))?;
        }
        if is_released {
            for holder in &holders {
                output.line(&format!("{key}  taken from {}", named(holder, "were left")))?;
            }
        }
        output.flush()?;
        Ok(if is_released { 0 } else { FREE })
    })
}
