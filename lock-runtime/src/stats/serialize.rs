//! A snapshot of the counters as an object of serde.

use serde_core::ser::{Serialize, SerializeStruct, Serializer};

use crate::stats::Stats;

/// With the feature `serde`: a field of its name for each, with `waited_seconds`, a fraction, for
/// [`waited`](Self::waited).
impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = self.numbers();
        let mut object = serializer.serialize_struct("Stats", numbers.len() + 1)?;
        object.serialize_field("waited_seconds", &self.waited.as_secs_f64())?;
        for (name, number) in numbers {
            object.serialize_field(name, &number)?;
        }
        object.end()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use serde_json::{json, to_value};

    use super::*;

    /// Services store and read these.
    #[test]
    fn the_shape_of_the_counters_is_the_documented_one() {
        let stats = Stats {
            held: 1,
            waited: Duration::from_millis(1500),
            lost_unreachable: 2,
            ..Stats::default()
        };
        let expected = json!({
            "held": 1, "waiting": 0, "waited_seconds": 1.5, "acquired": 0, "passed": 0, "coalesced": 0, "busy": 0, "store_failures": 0, "renewals": 0,
            "renewal_failures": 0,
            "lost_expired": 0, "lost_taken": 0, "lost_deleted": 0, "lost_unreachable": 2, "unconfirmed": 0, "hung": 0,
            "overruns": 0,
        });
        assert_eq!(to_value(stats).unwrap(), expected);
        // The line for a log has the same names.
        let line = stats.to_string();
        assert_eq!(line.split(' ').count(), expected.as_object().unwrap().len(), "{line}");
    }
}
