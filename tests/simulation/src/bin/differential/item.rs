//! Answers and pushes, as they are on the wire.

use std::fmt;

/// One answer or push, or a part of it.
#[derive(Clone, PartialEq)]
pub struct Item {
    kind: u8,
    pub text: Vec<u8>,
    pub children: Vec<Item>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.text);
        match self.kind {
            b'$' => write!(f, "{text:?}"),
            b'*' | b'%' | b'>' | b'~' => {
                write!(f, "{}", self.kind as char)?;
                f.debug_list().entries(&self.children).finish()
            }
            kind => write!(f, "{}{text}", kind as char),
        }
    }
}

impl Item {
    /// Reads one; `None` if it is not complete.
    pub fn read(bytes: &[u8], at: &mut usize) -> Option<Self> {
        let rest = bytes.get(*at..)?;
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let (kind, line) = (*rest.first()?, rest.get(1..end)?);
        *at += end + 2;
        let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
        let mut item = Self {
            kind,
            text: line.to_vec(),
            children: Vec::new(),
        };
        match kind {
            b'$' => {
                if let Ok(length) = usize::try_from(number()?) {
                    item.text = bytes.get(*at..*at + length)?.to_vec();
                    bytes.get(*at + length..*at + length + 2)?;
                    *at += length + 2;
                } else {
                    item.kind = b'_';
                }
            }
            b'*' | b'%' | b'>' | b'~' => {
                let count = number()? * if kind == b'%' { 2 } else { 1 };
                for _ in 0..count {
                    item.children.push(Self::read(bytes, at)?);
                }
            }
            _ => {}
        }
        Some(item)
    }

    /// Puts the parts of an answer in order that have none.
    pub fn sort_keys(&mut self) {
        if let Some(keys) = self.children.get_mut(1) {
            keys.children.sort_by(|one, other| one.text.cmp(&other.text));
        }
    }

    /// Writes fractions with the fewest digits: Redis 8 sometimes writes more.
    pub fn shorten_fractions(&mut self) {
        if self.text.contains(&b'.') {
            let number = std::str::from_utf8(&self.text)
                .ok()
                .and_then(|text| text.parse::<f64>().ok());
            self.text = number.map_or_else(
                || std::mem::take(&mut self.text),
                |number| format!("{number:e}").into_bytes(),
            );
        }
        self.children.iter_mut().for_each(Self::shorten_fractions);
    }
}
