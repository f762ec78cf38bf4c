//! What a server has written, for its replicas and its disk.

use super::data::Data;

/// How many transactions are kept at least, and at most twice as many.
const KEPT: usize = 4096;

/// What one command, or one script, has written: commands that do the same at whatever time.
#[derive(Clone, Default)]
pub struct Transaction {
    /// For each command the number of its words, and for each of these its length and the word.
    bytes: Vec<u8>,
}

impl Transaction {
    pub fn add(&mut self, words: &[&[u8]]) {
        let mut number = |number: usize| {
            self.bytes
                .extend(u32::try_from(number).unwrap_or_default().to_le_bytes())
        };
        number(words.len());
        for word in words {
            let length = u32::try_from(word.len()).unwrap_or_default();
            self.bytes.extend(length.to_le_bytes());
            self.bytes.extend_from_slice(word);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the commands, each as its words.
    pub fn commands(&self) -> Vec<Vec<&[u8]>> {
        let mut rest = self.bytes.as_slice();
        let mut commands = Vec::new();
        while let Some(count) = number(&mut rest) {
            let words = (0..count).map_while(|_| {
                let length = number(&mut rest)?;
                let (word, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Some(word)
            });
            commands.push(words.collect());
        }
        commands
    }
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    usize::try_from(u32::from_le_bytes(*first)).ok()
}

/// How much of its data a server has after a restart.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    All,
    /// What it had when so much was written.
    Until(usize),
    Nothing,
}

/// What was written last, and the data before.
#[derive(Clone, Default)]
pub struct Log {
    older: Part,
    newer: Part,
}

/// Some data, and what was written after it.
#[derive(Clone, Default)]
struct Part {
    base: Data,
    /// How much was written before `base`.
    before: usize,
    since: Vec<Transaction>,
}

impl Part {
    fn end(&self) -> usize {
        self.before + self.since.len()
    }

    /// Returns what was written from an offset on.
    fn since(&self, offset: usize) -> &[Transaction] {
        self.since.get(offset.saturating_sub(self.before)..).unwrap_or_default()
    }
}

impl Log {
    pub fn new(base: Data, before: usize) -> Self {
        let part = |base| Part {
            base,
            before,
            since: Vec::new(),
        };
        Self {
            older: part(base.clone()),
            newer: part(base),
        }
    }

    /// Adds what was written. `data` is what there is then.
    pub fn add(&mut self, transaction: Transaction, data: &Data) {
        self.newer.since.push(transaction);
        if self.newer.since.len() >= KEPT {
            let next = Part {
                base: data.clone(),
                before: self.newer.end(),
                since: Vec::new(),
            };
            self.older = std::mem::replace(&mut self.newer, next);
        }
    }

    pub fn offset(&self) -> usize {
        self.newer.end()
    }

    /// Returns what was written from an offset on; `None` if that is forgotten, or not yet written.
    pub fn since(&self, offset: usize) -> Option<impl Iterator<Item = &Transaction>> {
        let is_known = (self.older.before..=self.offset()).contains(&offset);
        is_known.then(|| self.older.since(offset).iter().chain(self.newer.since(offset)))
    }

    /// Returns the data at an offset, or at the first that is known: what there was before, and what was written since.
    pub fn until(&self, offset: usize) -> (Data, impl Iterator<Item = &Transaction>) {
        let part = if offset >= self.newer.before {
            &self.newer
        } else {
            &self.older
        };
        let count = offset.saturating_sub(part.before);
        (part.base.clone(), part.since.iter().take(count))
    }
}
