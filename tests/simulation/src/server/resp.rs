//! The RESP2 and RESP3 protocols.

use std::fmt;

use super::number;
use super::version::Version;

#[derive(Clone, PartialEq)]
pub enum Reply {
    /// What is to be said has been said by pushes.
    None,
    Nil,
    Status(String),
    Error(String),
    Int(i64),
    Double(f64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
    /// Pushes that come right before it, even inside another answer.
    Led(Vec<Reply>, Box<Reply>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Nil => f.write_str("nil"),
            Self::Status(text) => f.write_str(text),
            Self::Error(text) => write!(f, "({text})"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Double(number) => write!(f, "{number}"),
            Self::Bulk(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::Array(all) | Self::Set(all) | Self::Push(all) => f.debug_list().entries(all).finish(),
            Self::Led(_, reply) => reply.fmt(f),
            Self::Map(all) => f.debug_list().entries(all).finish(),
        }
    }
}

/// What a command answers, or why it is refused.
pub type Answer = Result<Reply, Reply>;

impl Reply {
    pub fn text(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Returns `true` for what another client has published.
    pub fn is_message(&self) -> bool {
        matches!(self, Self::Push(parts) if parts.first() == Some(&Self::text("message")))
    }

    pub fn or_nil(text: Option<Vec<u8>>) -> Self {
        text.map_or(Self::Nil, Self::Bulk)
    }

    /// Writes it as a server of this version does, in the third version of the protocol or in the second.
    pub fn write(&self, out: &mut Vec<u8>, version: Version, is_3: bool) {
        let bulk = |bytes: &[u8], out: &mut Vec<u8>| {
            out.extend(format!("${}\r\n", bytes.len()).bytes());
            out.extend(bytes);
            out.extend(b"\r\n");
        };
        match self {
            Self::None => {}
            Self::Nil => out.extend(if is_3 { b"_\r\n".as_slice() } else { b"$-1\r\n" }),
            Self::Status(text) => out.extend(format!("+{text}\r\n").bytes()),
            Self::Error(text) => {
                let text: String = text
                    .chars()
                    .map(|c| if matches!(c, '\r' | '\n') { ' ' } else { c })
                    .collect();
                out.extend(format!("-{text}\r\n").bytes());
            }
            Self::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
            Self::Double(number) => {
                let text = number::text(*number, version);
                if is_3 {
                    out.extend(format!(",{text}\r\n").bytes());
                } else {
                    bulk(text.as_bytes(), out);
                }
            }
            Self::Bulk(bytes) => bulk(bytes, out),
            Self::Array(all) | Self::Set(all) | Self::Push(all) => {
                let kind = match self {
                    Self::Push(_) if is_3 => '>',
                    Self::Set(_) if is_3 => '~',
                    _ => '*',
                };
                out.extend(format!("{kind}{}\r\n", all.len()).bytes());
                all.iter().for_each(|one| one.write(out, version, is_3));
            }
            Self::Led(pushes, reply) => {
                pushes.iter().for_each(|push| push.write(out, version, is_3));
                reply.write(out, version, is_3);
            }
            Self::Map(all) => {
                let (kind, count) = if is_3 { ('%', all.len()) } else { ('*', 2 * all.len()) };
                out.extend(format!("{kind}{count}\r\n").bytes());
                for (key, value) in all {
                    key.write(out, version, is_3);
                    value.write(out, version, is_3);
                }
            }
        }
    }
}

/// Takes one command, an array of texts, from the front of what has been read.
pub fn take_command(unread: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = length(unread, &mut at)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = length(unread, &mut at)?;
        words.push(unread.get(at..at + length)?.to_vec());
        unread.get(at + length..at + length + 2)?;
        at += length + 2;
    }
    unread.drain(..at);
    Some(words)
}

/// Reads a line that is a sign and a number.
fn length(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let line = bytes.get(*at..)?;
    let end = line.windows(2).position(|two| two == b"\r\n")?;
    *at += end + 2;
    std::str::from_utf8(line.get(1..end)?).ok()?.parse().ok()
}
