//! The settings of a manager in a file, by serde.

use std::fmt;

use serde_core::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::Config;
use super::reader::{Names, Reader};

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not as a struct, so that the text of a URL in its place comes to the visitor, and is not shown.
        deserializer.deserialize_any(Settings)
    }
}

struct Settings;

impl<'de> Visitor<'de> for Settings {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings of a lock manager, with its `url`")
    }

    /// Its text, which would be shown, may be a URL.
    fn visit_str<E: Error>(self, _: &str) -> Result<Config, E> {
        Err(E::custom(
            "the settings of a lock manager are no single text: give a table with its `url`",
        ))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Config, A::Error> {
        let mut reader = Reader::new(Names::Fields);
        // Not an error of the format: that shows the line, or the first line of the table, which may be a URL.
        let mut problem = None;
        while let Some(name) = map.next_key::<String>()? {
            if let Scalar(Some(value)) = map.next_value()? {
                problem = problem.or(reader.read_field(&name, &value).err());
            }
        }
        Ok(match problem {
            None => reader.finish().unwrap_or_else(Config::with_problem),
            Some(problem) => Config::with_problem(problem),
        })
    }
}

/// The text of a value, or `None` if it says that there is none.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyScalar)
    }
}

struct AnyScalar;

impl AnyScalar {
    fn text(value: &impl ToString) -> Scalar {
        Scalar(Some(value.to_string()))
    }
}

impl<'de> Visitor<'de> for AnyScalar {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, `true` or `false`")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Self::text(&value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Self::text(&value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Self::text(&value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Self::text(&value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
        Ok(Self::text(&value))
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }

    fn visit_none<E: Error>(self) -> Result<Scalar, E> {
        Ok(Scalar(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Scalar, D::Error> {
        Deserialize::deserialize(deserializer)
    }
}
