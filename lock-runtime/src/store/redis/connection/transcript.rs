//! Keeps what a server says while a connection is being made. `redis` drops an answer when the
//! connection ends behind it, and a server that turns a client away ends it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use redis::{ErrorKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::failure::Reason;
use crate::host::Mutex;

/// The number of bytes that are kept. The longest refusal of a server has about a thousand.
const KEPT: usize = 4096;
/// The number of characters that an error shows of a text that is no answer of a server.
const SHOWN: usize = 60;
/// The first bytes of the answers of RESP, versions 2 and 3.
const TYPES: &[u8] = b"-+:$*_#,(!=%~>|";

/// Tells the reason for an error of a stream, if it is known.
pub(super) type ReasonOf = fn(&io::Error) -> Option<Reason>;

/// The first bytes that the server has sent, and the reason for an error of the stream, if it is known.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    reason: Option<Reason>,
}

/// The words of a server on a [`Recorded`] stream. Once this is dropped, the stream keeps nothing any more.
pub(super) struct Transcript(Arc<Mutex<Record>>);

/// Returns the stream, and the transcript of what the server says on it.
pub(super) fn record<S>(stream: S, reason_of: ReasonOf) -> (Recorded<S>, Transcript) {
    let said = Arc::default();
    let recorded = Recorded {
        stream,
        reason_of,
        said: Arc::downgrade(&said),
    };
    (recorded, Transcript(said))
}

impl Transcript {
    /// Returns the error of a connection that could not be made: in the server's words, if it has
    /// said something.
    pub(super) fn explain(self, error: RedisError) -> RedisError {
        if !matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) {
            return error;
        }
        let mut said = self.0.lock();
        if let Some(reason) = said.reason.take() {
            return reason.into();
        }
        match &*said.bytes {
            [] if error.is_connection_dropped() => Reason::hung_up(&error).into(),
            // An alert.
            [0x15, 0x03, ..] => Reason::lasting(
                "the server speaks TLS at this port",
                "give `rediss://` in the URL, with the feature `tls` in Cargo.toml",
            )
            .into(),
            [b'-', ..] => refusal(&said.bytes).unwrap_or(error),
            [first, ..] if !TYPES.contains(first) => something_else(&said.bytes).into(),
            _ => error,
        }
    }
}

/// Returns the error that a server has answered, if its line is complete.
fn refusal(said: &[u8]) -> Option<RedisError> {
    let end = said.windows(2).position(|end| end == b"\r\n")?;
    let line = said.get(..end + 2)?;
    redis::parse_redis_value(line).ok()?.extract_error().err()
}

fn something_else(said: &[u8]) -> Reason {
    let line = said.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let shown: String = String::from_utf8_lossy(line).trim_end().chars().take(SHOWN).collect();
    Reason::lasting(
        format!(
            "what answers at this address is no Redis or Valkey server: it said `{}`",
            shown.escape_debug()
        ),
        "give the address of a Redis or Valkey server",
    )
}

/// A stream that writes a [`Transcript`].
pub(super) struct Recorded<S> {
    stream: S,
    reason_of: ReasonOf,
    said: Weak<Mutex<Record>>,
}

impl<S: AsyncRead + Unpin> Recorded<S> {
    fn keep(&mut self, read: Result<&[u8], &io::Error>) {
        if self.said.strong_count() == 0 {
            return;
        }
        let Some(said) = self.said.upgrade() else { return };
        let mut said = said.lock();
        match read {
            Ok(bytes) => {
                let rest = KEPT.saturating_sub(said.bytes.len());
                said.bytes.extend(bytes.iter().take(rest));
            }
            Err(error) => said.reason = said.reason.take().or_else(|| (self.reason_of)(error)),
        }
    }

    /// Passes on the outcome of a write. If the write failed, first reads what the server had said before
    /// it closed the connection.
    fn written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Poll::Ready(Err(error)) = &written else {
            return written;
        };
        self.keep(Err(error));
        let mut bytes = [0; KEPT];
        while self.said.strong_count() > 0 {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.keep(Ok(buffer.filled())),
                Poll::Ready(Err(error)) => {
                    self.keep(Err(&error));
                    break;
                }
                _ => break,
            }
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Recorded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match &read {
            Poll::Ready(Ok(())) => self.keep(Ok(buffer.filled().get(before..).unwrap_or_default())),
            Poll::Ready(Err(error)) => self.keep(Err(error)),
            Poll::Pending => {}
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Recorded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
