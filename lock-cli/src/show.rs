//! `lockctl show`: one lock.

use lock_runtime::{HolderInfo, LockInfo};

use crate::args::{Show, Store};
use crate::connect;
use crate::exit::Failure;
use crate::report::{Output, rest, shown};

/// The exit code for a free lock.
const FREE: u8 = 1;

pub(crate) fn show(store: &Store, options: &Show) -> Result<u8, Failure> {
    connect::runtime()?.block_on(async {
        let locks = connect::for_operators(store)?;
        connect::to_answer(&locks).await?;
        let info = locks.inspect(&options.key).await?;
        let mut output = Output::new();
        match (&info, options.json) {
            (Some(info), true) => output.json(info)?,
            (Some(info), false) => print(&mut output, info)?,
            (None, true) => output.json(&LockInfo::new(&*options.key))?,
            // With the prefix: the lock may be another one than was meant.
            (None, false) => {
                let whole = format!("{}{}", locks.prefix(), options.key);
                output.line(&format!(
                    "{}  free (nothing under `{}`)",
                    shown(&options.key),
                    shown(&whole)
                ))?;
            }
        }
        output.flush()?;
        let is_held = info.is_some_and(|info| !info.holders.is_empty());
        Ok(if is_held { 0 } else { FREE })
    })
}

fn print(output: &mut Output, info: &LockInfo) -> Result<(), Failure> {
    let mode = info
        .mode()
        .map_or_else(|| "free".to_owned(), |mode| format!("held, {mode}"));
    output.line(&format!("{}  {mode}", shown(&info.key)))?;
    for holder in &info.holders {
        output.line(&format!("  holder   {}", held(holder)))?;
    }
    output.line(&format!("  waiters  {}", info.waiters))?;
    if let Some(fence) = info.fence {
        output.line(&format!("  fence    {fence}"))?;
    }
    if let Some(fence) = info.last_fence {
        output.line(&format!("  fence    {fence} is the last one under this prefix"))?;
    }
    for master in &info.masters {
        let said = match &master.error {
            Some(error) => format!("no answer: {}", shown(error)),
            None if master.holders.is_empty() => "free".to_owned(),
            None => master.holders.iter().map(held).collect::<Vec<_>>().join("; "),
        };
        output.line(&format!("  master   {}: {said}", shown(&master.name)))?;
    }
    Ok(())
}

fn held(holder: &HolderInfo) -> String {
    format!("{}, {} left", shown(&holder.holder.to_string()), rest(holder.remaining))
}
