//! The resources that this process has used so far, and the cores that it runs on, as Linux reports
//! them.

use std::fs;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// CPU time of all threads.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Resident memory in bytes, without files: the pages of the program are read once, however many calls wait.
pub(crate) fn memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .ok_or("no RssAnon in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// The number of threads.
pub(crate) fn threads() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Pins servers to one core and this process to the others, until it is dropped. Otherwise a
/// single task becomes three times faster or slower from one moment to the next: a round trip is
/// mostly the wake-up of an idle core, which does not happen while both run on the same core.
pub(crate) struct Apart {
    before: CpuSet,
}

impl Apart {
    /// Returns `None` if there is only one core.
    pub(crate) fn from(servers: &[u32]) -> Result<Option<Self>> {
        let before = sched_getaffinity(None)?;
        let (mut first, mut others) = (CpuSet::new(), before);
        let Some(core) = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)) else {
            return Ok(None);
        };
        first.set(core);
        others.unset(core);
        if others.count() == 0 {
            return Ok(None);
        }
        for server in servers {
            sched_setaffinity(Pid::from_raw(i32::try_from(*server)?), &first)?;
        }
        move_threads(&others)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = move_threads(&self.before);
    }
}

/// All threads of this process; those to come are where their parent is.
fn move_threads(to: &CpuSet) -> Result {
    for thread in fs::read_dir("/proc/self/task")? {
        let id: i32 = thread?.file_name().to_string_lossy().parse()?;
        // It may have ended meanwhile.
        let _ = sched_setaffinity(Pid::from_raw(id), to);
    }
    Ok(())
}
