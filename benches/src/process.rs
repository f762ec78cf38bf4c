//! What this process has used so far, as Linux tells.

use std::fs;
use std::time::Duration;

use crate::Result;

/// CPU time of all threads, in steps of 10 ms.
pub(crate) fn cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The program's name may hold spaces; the fields after it do not.
    let (_, fields) = stat.rsplit_once(')').ok_or("unexpected /proc/self/stat")?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    // The kernel reports in units of USER_HZ, which is 100 on every architecture Rust runs on.
    Ok(Duration::from_millis(ticks * 10))
}

/// Resident memory in bytes.
pub(crate) fn memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// The number of threads.
pub(crate) fn threads() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}
