//! Settings of a server that endanger locks.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::RedisStore;
use crate::store::StoreError;

/// The difference between the server's clock and this process's from which on the advice names it. Far
/// above what NTP leaves.
const FAR_OFF: Duration = Duration::from_secs(5);

impl RedisStore {
    /// Returns advice on settings that endanger locks: none from a server that does not tell its
    /// settings to this user.
    pub(super) async fn look_at_setup(&self, min_replicas: u32) -> Result<Vec<String>, StoreError> {
        let (host, commands) = (self.background.host(), self.commands.here());
        // A server that refuses the connection is no server that only keeps its settings to itself.
        commands.live().await?;
        let asked = host.unix_time();
        let info = match commands.ask(redis::cmd("INFO")).await {
            Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
            Err(error) if error.is_permanent() => {
                tracing::debug!(%error, "the server does not tell this user its settings");
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let mut advice = advice(&info, min_replicas, asked..=host.unix_time());
        if self.names.is_of_cluster() {
            advice.extend(writes_alone(&info));
        }
        Ok(advice)
    }
}

impl RedisStore {
    /// Returns an error if a server that is one of several masters may drop locks, which its mark would not
    /// show.
    pub(super) async fn refuse_eviction(&self) -> Result<(), StoreError> {
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let info = self.commands.here().ask(info).await?;
        let info = redis::from_redis_value::<String>(info).unwrap_or_default();
        match evicts(&info) {
            Some(policy) => Err(StoreError::permanent(format!(
                "the server may drop locks when its memory is full, since its maxmemory-policy is {policy}"
            ))
            .advise("set `maxmemory-policy noeviction` at each master")),
            None => Ok(()),
        }
    }
}

/// Returns the policy by which a server may drop keys, as `INFO` tells it.
fn evicts(info: &str) -> Option<&str> {
    let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    let most = field(info, "maxmemory").and_then(|most| most.parse::<u64>().ok());
    most.is_none_or(|most| most > 0).then_some(policy)
}

/// Returns advice on a master of a cluster that goes on writing while it is cut off from the others. `INFO`
/// tells how many replicas are near enough only if some must be.
fn writes_alone(info: &str) -> Option<String> {
    let has_replicas = field(info, "connected_slaves").is_some_and(|replicas| replicas != "0");
    let needs_none = field(info, "min_slaves_good_slaves").is_none();
    (has_replicas && needs_none).then(|| {
        "a master that is cut off from the other nodes grants locks for as long as `cluster-node-timeout`, which its replica does not know; set \
         `min-replicas-to-write 1`, and `min-replicas-max-lag` to less than a lease"
            .to_owned()
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
}

/// Returns advice on what `INFO` has answered in the time `asked`.
fn advice(info: &str, min_replicas: u32, asked: RangeInclusive<Duration>) -> Vec<String> {
    let number = |name| field(info, name).and_then(|value| value.parse::<u64>().ok());
    let mut advice = Vec::new();
    if let Some(policy) = evicts(info) {
        advice.push(format!(
            "the server may drop locks when its memory is full, since its maxmemory-policy is {policy}; set `maxmemory-policy noeviction`, or give \
             the locks a server of their own"
        ));
    }
    if let Some(replicas) = number("connected_slaves").filter(|replicas| *replicas < u64::from(min_replicas)) {
        advice.push(format!(
            "each call fails with `TooFewReplicas`, since {min_replicas} replicas must have a lock and the server has {replicas}; connect replicas \
             to it, or ask for fewer by `min_replicas`"
        ));
    }
    if let Some(time) = number("server_time_usec").map(Duration::from_micros) {
        let ahead = time.saturating_sub(*asked.end());
        let behind = asked.start().saturating_sub(time);
        let (off, how) = if behind > ahead {
            (behind, "behind")
        } else {
            (ahead, "ahead of")
        };
        if off > FAR_OFF {
            advice.push(format!(
                "the server's clock is {} s {how} this process's; fencing tokens count from it, and go back if a server with another clock takes \
                 over; let NTP set both clocks",
                off.as_secs()
            ));
        }
    }
    advice
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{advice, writes_alone};

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn of(info: &str, min_replicas: u32) -> Vec<String> {
        let info = info.replace(' ', "\r\n");
        advice(&info, min_replicas, NOW..=NOW + Duration::from_secs(1))
    }

    #[test]
    fn a_server_that_keeps_locks_gets_no_advice() {
        for info in [
            "",
            "maxmemory:0 maxmemory_policy:allkeys-lru",
            "maxmemory:1000000 maxmemory_policy:noeviction connected_slaves:2 server_time_usec:1800000000500000",
            "# Server server_time_usec:1799999996000000",
            "server_time_usec:1800000005000000 connected_slaves:x",
        ] {
            assert_eq!(of(info, 2), Vec::<String>::new(), "{info}");
        }
    }

    #[test]
    fn a_policy_that_may_drop_locks_is_told() {
        for policy in [
            "allkeys-lru",
            "allkeys-lrm",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lrm",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
        ] {
            let said = of(&format!("maxmemory:1000000 maxmemory_policy:{policy}"), 0);
            assert!(said.len() == 1 && said[0].contains(policy), "{said:?}");
        }
    }

    #[test]
    fn a_master_of_a_cluster_that_needs_no_replica_to_write_is_told() {
        for (info, is_told) in [
            ("connected_slaves:1\r\n", true),
            ("connected_slaves:0\r\n", false),
            ("connected_slaves:1\r\nmin_slaves_good_slaves:0\r\n", false),
            ("", false),
        ] {
            assert_eq!(writes_alone(info).is_some(), is_told, "{info}");
        }
    }

    #[test]
    fn too_few_replicas_and_a_wrong_clock_are_told() {
        let said = of("connected_slaves:1", 2);
        assert!(
            said.len() == 1 && said[0].contains("2 replicas must have a lock and the server has 1"),
            "{said:?}"
        );
        let said = of("server_time_usec:1799999990000000", 0);
        assert!(
            said.len() == 1 && said[0].contains("is 10 s behind this process's"),
            "{said:?}"
        );
        let said = of("server_time_usec:1800000011000000", 0);
        assert!(
            said.len() == 1 && said[0].contains("is 10 s ahead of this process's"),
            "{said:?}"
        );
    }
}
