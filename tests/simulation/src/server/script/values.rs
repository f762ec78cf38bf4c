//! Values of Lua, and what the server makes of them.

use mlua::{Lua, Table, Value};

use super::{Version, failure};
use crate::server::number;
use crate::server::resp::Reply;

/// An argument of `redis.call` as the server reads it.
pub(super) enum Word {
    Lua(mlua::BorrowedBytes),
    Written(String),
}

impl Word {
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn read(value: &Value, version: Version) -> Option<Self> {
        Some(match value {
            Value::String(text) => Self::Lua(text.as_bytes()),
            Value::Integer(integer) => Self::Written(number::text(*integer as f64, version)),
            Value::Number(double) => Self::Written(number::text(*double, version)),
            _ => return None,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Lua(text) => text,
            Self::Written(text) => text.as_bytes(),
        }
    }
}

/// Returns an answer as a script sees it, which is in RESP2.
pub(super) fn to_lua(lua: &Lua, reply: &Reply, version: Version) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Nil | Reply::None => Value::Boolean(false),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set("ok", text.as_str())?;
            Value::Table(table)
        }
        Reply::Error(text) => failure(lua, text)?,
        // Lua's numbers are exact up to 2^53 only.
        #[allow(clippy::cast_precision_loss)]
        Reply::Int(number) => Value::Number(*number as f64),
        Reply::Double(number) => Value::String(lua.create_string(number::text(*number, version))?),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Array(all) | Reply::Push(all) | Reply::Set(all) => {
            let parts: Vec<_> = all
                .iter()
                .map(|one| to_lua(lua, one, version))
                .collect::<mlua::Result<_>>()?;
            Value::Table(lua.create_sequence_from(parts)?)
        }
        Reply::Led(_, reply) => to_lua(lua, reply, version)?,
        Reply::Map(_) => Value::Nil,
    })
}

/// Returns what a script has returned as an answer.
pub(super) fn to_reply(value: &Value) -> Reply {
    match value {
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(truncated(*number)),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => from_table(table),
        _ => Reply::Nil,
    }
}

/// Returns what C makes of a number: the least one where there is no such integer.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn truncated(number: f64) -> i64 {
    if (i64::MIN as f64..i64::MAX as f64).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

fn from_table(table: &Table) -> Reply {
    let text = |name: &str| {
        let text = table.raw_get::<Option<mlua::LuaString>>(name).ok().flatten();
        text.map(|text| text.to_string_lossy())
    };
    if let Some(error) = text("err") {
        return Reply::Error(error);
    }
    if let Some(status) = text("ok") {
        return Reply::Status(status);
    }
    let mut all = Vec::new();
    for at in 1.. {
        match table.raw_get::<Value>(at) {
            Ok(Value::Nil) | Err(_) => break,
            Ok(value) => all.push(to_reply(&value)),
        }
    }
    Reply::Array(all)
}
