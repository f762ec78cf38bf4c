//! The snapshots for operators as objects of serde. Their names and units stay as they are: fields may be added.

use std::time::{Duration, SystemTime};

use serde_core::ser::{Serialize, SerializeStruct, Serializer};

use crate::store::health::{Health, ServerHealth, ServerRole, ServerState};
use crate::store::holder::Holder;
use crate::store::info::{HolderInfo, LockInfo, MasterInfo};
use crate::store::{FencingToken, LockMode};

fn seconds(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_secs_f64())
}

/// With the feature `serde`: `key`, `mode` (`null` if it is free), `holders`, `waiters`, `fence`, `last_fence` and
/// `masters`.
impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("LockInfo", 7)?;
        object.serialize_field("key", &self.key)?;
        object.serialize_field("mode", &self.mode())?;
        object.serialize_field("holders", &self.holders)?;
        object.serialize_field("waiters", &self.waiters)?;
        object.serialize_field("fence", &self.fence)?;
        object.serialize_field("last_fence", &self.last_fence)?;
        object.serialize_field("masters", &self.masters)?;
        object.end()
    }
}

/// With the feature `serde`: `name`, `holders` and `error`.
impl Serialize for MasterInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("MasterInfo", 3)?;
        object.serialize_field("name", &self.name)?;
        object.serialize_field("holders", &self.holders)?;
        object.serialize_field("error", &self.error)?;
        object.end()
    }
}

/// With the feature `serde`: `holder`, and `remaining_seconds`, a fraction or `null`.
impl Serialize for HolderInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("HolderInfo", 2)?;
        object.serialize_field("holder", &self.holder)?;
        object.serialize_field("remaining_seconds", &seconds(self.remaining))?;
        object.end()
    }
}

/// With the feature `serde`: `host`, `pid`, `function` and `mode`, and `value`, which is `null` unless another kind
/// of client wrote it. Omits the token: any client that knows it can release the lock.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_foreign = self.host().is_none();
        let mut object = serializer.serialize_struct("Holder", 5)?;
        object.serialize_field("host", &self.host())?;
        object.serialize_field("pid", &self.pid())?;
        object.serialize_field("function", &self.function())?;
        object.serialize_field("mode", &self.mode())?;
        object.serialize_field("value", &is_foreign.then(|| self.text()))?;
        object.end()
    }
}

/// With the feature `serde`: the text of `Display`, such as `exclusive`, `semaphore(5)` or `owner order%3A7`.
impl Serialize for LockMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// With the feature `serde`: the number.
impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// With the feature `serde`: `ready`, which is [`is_ready`](Self::is_ready), and `servers`.
impl Serialize for Health {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Health", 2)?;
        object.serialize_field("ready", &self.is_ready())?;
        object.serialize_field("servers", &self.servers)?;
        object.end()
    }
}

/// With the feature `serde`: `address`, `role`, `state`, `since_unix_seconds` (since 1970, zero if it was not asked
/// yet), `last_error` as a text, and `round_trip_seconds`.
impl Serialize for ServerHealth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let since = self.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let last_error = self.last_error.as_ref().map(ToString::to_string);
        let mut object = serializer.serialize_struct("ServerHealth", 6)?;
        object.serialize_field("address", &self.address)?;
        object.serialize_field("role", &self.role)?;
        object.serialize_field("state", &self.state)?;
        object.serialize_field("since_unix_seconds", &since.as_secs_f64())?;
        object.serialize_field("last_error", &last_error)?;
        object.serialize_field("round_trip_seconds", &seconds(self.round_trip))?;
        object.end()
    }
}

/// With the feature `serde`: the text of `Display`.
impl Serialize for ServerRole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// With the feature `serde`: the text of `Display`.
impl Serialize for ServerState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;
    use crate::store::StoreError;

    /// Services store and read these.
    #[test]
    fn the_shape_of_a_lock_is_the_documented_one_and_has_no_token() {
        let token = "0123456789abcdef0123456789abcdef";
        let mut info = LockInfo::free("stock:7");
        assert_eq!(
            to_value(&info).unwrap(),
            json!({"key": "stock:7", "mode": null, "holders": [], "waiters": 0, "fence": null, "last_fence": null, "masters": []})
        );
        info.add(
            Holder::of(format!("s5:{token}:web-1:17:shop::f")),
            Some(Duration::from_millis(12_345)),
        );
        info.add(Holder::of("b1946ac9"), None);
        info.waiters = 2;
        info.fence = Some(FencingToken::new(7));
        let mut master = MasterInfo::of("one:6379");
        master.error = Some("no answer".into());
        info.masters.push(master);
        let shown = to_value(&info).unwrap();
        let expected = json!({
            "key": "stock:7",
            "mode": "exclusive",
            "holders": [
                {
                    "holder": {"host": "web-1", "pid": 17, "function": "shop::f", "mode": "semaphore(5)", "value": null},
                    "remaining_seconds": 12.345,
                },
                {
                    "holder": {"host": null, "pid": null, "function": null, "mode": "exclusive", "value": "b1946ac9"},
                    "remaining_seconds": null,
                },
            ],
            "waiters": 2,
            "fence": 7,
            "last_fence": null,
            "masters": [{"name": "one:6379", "holders": [], "error": "no answer"}],
        });
        assert_eq!(shown["holders"], expected["holders"]);
        for field in ["key", "waiters", "fence", "last_fence", "masters"] {
            assert_eq!(shown[field], expected[field], "{field}");
        }
        assert!(!shown.to_string().contains(token), "{shown}");
    }

    #[test]
    fn the_shape_of_a_manager_s_health_is_the_documented_one() {
        let server = ServerHealth {
            state: ServerState::Degraded,
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
            last_error: Some(StoreError::transient("the reason")),
            round_trip: Some(Duration::from_micros(250)),
            ..ServerHealth::new("one:6379", ServerRole::Master)
        };
        let health = Health {
            servers: vec![server],
            may_miss: 0,
            is_closed: false,
        };
        let server = json!({
            "address": "one:6379",
            "role": "master",
            "state": "degraded",
            "since_unix_seconds": 1.5,
            "last_error": health.servers[0].last_error.as_ref().unwrap().to_string(),
            "round_trip_seconds": 0.00025,
        });
        assert_eq!(to_value(&health).unwrap(), json!({"ready": true, "servers": [server]}));
    }
}
