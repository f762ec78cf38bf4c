//! The actions that a test gives the proxy for single commands, and the proxy's reports about them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Close, Shared};
use crate::clock::Stamp;

/// What becomes of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing special; for a [`Hit`] that tells when the command came by.
    Pass,
    /// The request reaches the server this much later.
    Delay(Duration),
    /// The request waits in the proxy until [`Proxy::release`](super::Proxy::release).
    Hold,
    /// As [`Action::Hold`], and the client's connection is closed at once: the request is delivered after its sender gave up.
    HoldThenClose(Close),
    /// The request never arrives, nor does any later one on its connection.
    LoseRequest,
    /// The connection is closed instead of delivering the request.
    CloseBefore(Close),
    /// The server gets the request twice; the client gets the first reply only.
    Duplicate,
    /// The server executes the command; its reply reaches the client this much later.
    DelayReply(Duration),
    /// The server executes the command; its reply waits in the proxy until [`Proxy::release`](super::Proxy::release).
    HoldReply,
    /// The server executes the command; its reply never arrives, nor does any later one on its connection.
    LoseReply,
    /// The server executes the command; the connection is closed instead of delivering its reply.
    CloseAfter(Close),
    /// The server executes the command; its reply alone is missing, so later replies answer the wrong requests.
    SkipReply,
    /// The server never sees the command; the client gets these bytes, such as `-LOADING …\r\n`, for a reply.
    Answer(Vec<u8>),
    /// The server executes the command; the client gets these bytes for a reply.
    AnswerInstead(Vec<u8>),
}

impl Action {
    /// [`Action::Answer`] with a RESP error, such as `"BUSY Redis is busy running a script."`.
    #[must_use]
    pub fn error(message: &str) -> Self {
        Self::Answer(format!("-{message}\r\n").into_bytes())
    }
}

/// A request as it reached the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The connection it came on, counted from 1.
    pub connection: u64,
    /// When it reached the proxy.
    pub at: Stamp,
    /// The command's name and arguments.
    pub arguments: Vec<Vec<u8>>,
    /// The server's reply and when it reached the proxy, whether or not the client got it.
    pub reply: Option<(Stamp, Vec<u8>)>,
}

impl Command {
    /// Whether it begins with these words, in any case: `is("SET")`, `is("CLIENT TRACKING")`.
    #[must_use]
    pub fn is(&self, words: &str) -> bool {
        let mut words = words.split_ascii_whitespace().enumerate();
        words.all(|(index, word)| {
            self.arguments
                .get(index)
                .is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
        })
    }

    /// Whether it runs a script: `EVAL`, `EVALSHA`, or one of their read-only forms.
    #[must_use]
    pub fn is_script(&self) -> bool {
        ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"]
            .iter()
            .any(|name| self.is(name))
    }

    /// Whether `text` occurs in one of its arguments: a key, a token, a piece of a script.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        let text = text.as_bytes();
        !text.is_empty()
            && self
                .arguments
                .iter()
                .any(|argument| argument.windows(text.len()).any(|window| window == text))
    }

    /// One argument as text; 0 is the command's name.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<&str> {
        std::str::from_utf8(self.arguments.get(index)?).ok()
    }

    /// The server's reply as text, with escapes for what is not printable.
    #[must_use]
    pub fn reply_text(&self) -> Option<String> {
        self.reply.as_ref().map(|(_, reply)| reply.escape_ascii().to_string())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.connection)?;
        for argument in &self.arguments {
            write!(f, " {}", argument.escape_ascii())?;
        }
        Ok(())
    }
}

/// Tells whether a rule was used.
#[derive(Clone, Debug)]
pub struct Hit {
    pub(super) id: usize,
    pub(super) shared: Arc<Shared>,
}

pub(super) type Wanted = Box<dyn Fn(&Command) -> bool + Send>;

pub(super) struct Rule {
    pub(super) id: usize,
    /// Matches to let pass before the first use.
    pub(super) skip: usize,
    /// Uses left; `None` for ever.
    pub(super) left: Option<usize>,
    pub(super) wanted: Wanted,
    pub(super) action: Action,
}

/// The action for a command, and the rule it comes from.
pub(super) fn decide(rules: &mut Vec<Rule>, command: &Command) -> Option<(usize, Action)> {
    for (index, rule) in rules.iter_mut().enumerate() {
        if !(rule.wanted)(command) {
            continue;
        }
        if rule.skip > 0 {
            rule.skip -= 1;
            continue;
        }
        let decided = (rule.id, rule.action.clone());
        if let Some(left) = &mut rule.left {
            *left -= 1;
            if *left == 0 {
                rules.remove(index);
            }
        }
        return Some(decided);
    }
    None
}
