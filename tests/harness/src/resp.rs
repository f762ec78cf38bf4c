//! The part of the RESP protocol that a proxy needs: the end of a message, and the content of a
//! request.

/// A message that no RESP peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The length of the first whole message in `bytes`; `None` when more bytes are needed.
///
/// # Errors
/// [`Malformed`] when `bytes` do not begin with a RESP2 or RESP3 message.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    // Counts what is still to come instead of recursing: a reply may nest as deep as its sender likes.
    let mut at = 0;
    let mut missing = 1_usize;
    while missing > 0 {
        let Some(line) = line(&bytes[at..]) else {
            return Ok(None);
        };
        let Some((&kind, rest)) = line.split_first() else {
            return Err(Malformed);
        };
        at += line.len() + 2;
        missing -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'!' | b'=' => {
                if let Some(length) = count(rest)? {
                    at += length + 2;
                    if at > bytes.len() {
                        return Ok(None);
                    }
                }
            }
            b'*' | b'~' | b'>' => missing += count(rest)?.unwrap_or(0),
            b'%' => missing += 2 * count(rest)?.unwrap_or(0),
            // An attribute stands before the message it belongs to.
            b'|' => missing += 2 * count(rest)?.unwrap_or(0) + 1,
            _ => return Err(Malformed),
        }
    }
    Ok(Some(at))
}

/// The arguments of a request, which is an array of bulk strings; `None` for any other whole message.
#[must_use]
pub fn arguments(message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let header = line(message)?;
    let count = count(header.strip_prefix(b"*")?).ok()??;
    let mut rest = &message[header.len() + 2..];
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let header = line(rest)?;
        let length = self::count(header.strip_prefix(b"$")?).ok()??;
        rest = &rest[header.len() + 2..];
        arguments.push(rest.get(..length)?.to_vec());
        rest = rest.get(length + 2..)?;
    }
    Some(arguments)
}

/// Whether a message of the server is a push, which answers no request.
#[must_use]
pub fn is_push(message: &[u8]) -> bool {
    message.first() == Some(&b'>')
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&bytes[..end])
}

/// `-1` is RESP2's null, which has no body.
fn count(digits: &[u8]) -> Result<Option<usize>, Malformed> {
    if digits == b"-1" {
        return Ok(None);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .map(Some)
        .ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_kind_ends_where_it_ends() {
        let messages: [&[u8]; 14] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"$5\r\nhe\r\no\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"_\r\n",
            b"#t\r\n",
            b",1.5\r\n",
            b"%1\r\n+a\r\n*0\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
            b"|1\r\n+ttl\r\n:3\r\n+value\r\n",
            b"=7\r\ntxt:abc\r\n",
        ];
        for message in messages {
            let mut followed = message.to_vec();
            followed.extend_from_slice(b"+next\r\n");
            assert_eq!(
                message_length(&followed),
                Ok(Some(message.len())),
                "{}",
                message.escape_ascii()
            );
            for end in 0..message.len() {
                assert_eq!(
                    message_length(&message[..end]),
                    Ok(None),
                    "{} cut at {end}",
                    message.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for garbage in [&b"GET / HTTP/1.1\r\n"[..], b"\r\n", b"$x\r\n"] {
            assert_eq!(message_length(garbage), Err(Malformed), "{}", garbage.escape_ascii());
        }
    }

    #[test]
    fn request_gives_its_arguments() {
        let request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n";
        assert_eq!(
            arguments(request),
            Some(vec![b"SET".to_vec(), b"k".to_vec(), b"\r\n\0x".to_vec()])
        );
        assert_eq!(arguments(b"+OK\r\n"), None);
    }
}
