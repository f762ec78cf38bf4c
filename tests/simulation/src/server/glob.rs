//! Patterns of keys, channels and `SCAN`.

/// Returns `true` if the text is of the pattern: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a literal character.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|at| matches(rest, &text[at..])),
        ([b'?', rest @ ..], [_, others @ ..]) => matches(rest, others),
        ([b'[', rest @ ..], [one, others @ ..]) => {
            let (is_negative, mut rest) = match rest {
                [b'^', rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            let mut is_in = false;
            loop {
                match rest {
                    [] => break,
                    [b']', after @ ..] => {
                        rest = after;
                        break;
                    }
                    [b'\\', literal, after @ ..] => {
                        is_in |= literal == one;
                        rest = after;
                    }
                    [first, b'-', last, after @ ..] => {
                        let (first, last) = (first.min(last), first.max(last));
                        is_in |= (first..=last).contains(&one);
                        rest = after;
                    }
                    [literal, after @ ..] => {
                        is_in |= literal == one;
                        rest = after;
                    }
                }
            }
            is_in != is_negative && matches(rest, others)
        }
        ([b'\\', literal, rest @ ..] | [literal, rest @ ..], [one, others @ ..]) => {
            literal == one && matches(rest, others)
        }
        _ => false,
    }
}
