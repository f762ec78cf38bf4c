//! The literal forms of a duration: `15`, `"1500ms"`, `"1m30s"`.

use std::time::Duration;

use syn::{Expr, ExprLit, ExprUnary, Lit, UnOp};

use crate::suggest;

/// A duration argument after validation.
pub(crate) enum DurationArg {
    /// A duration that the macro has read.
    Literal(Duration),
    /// An expression of type `Duration`, which the compiler checks.
    Expr(Box<Expr>),
}

/// The bounds of a literal.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

/// The longest lease that the runtime permits, which limits all other durations too.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

impl Range {
    /// The bounds of a lease. The runtime has the same bounds, and checks them again for
    /// expressions.
    pub(crate) const LEASE: Self = Self {
        min: Duration::from_millis(10),
        max: LONGEST,
    };
    /// The bounds of durations that can be zero, such as `wait` and `at_least`.
    pub(crate) const FROM_ZERO: Self = Self {
        min: Duration::ZERO,
        max: LONGEST,
    };
}

/// Reads the value of the argument `name`.
pub(crate) fn parse(name: &str, value: &Expr, range: Range) -> syn::Result<DurationArg> {
    let refuse = |message: String| Err(syn::Error::new_spanned(value, message));
    match literal(value) {
        Literal::Int(digits, "") => match digits.parse::<u64>() {
            Ok(seconds) => in_range(name, Duration::from_secs(seconds), range)
                .and_then(|duration| may_be_milliseconds(name, seconds).map_or(Ok(duration), Err))
                .map_or_else(refuse, |duration| Ok(DurationArg::Literal(duration))),
            Err(_) => refuse(too_long(name)),
        },
        Literal::Int(digits, suffix) => refuse(if UNITS.iter().any(|(unit, _)| *unit == suffix) {
            format!("write `{name} = \"{digits}{suffix}\"`")
        } else {
            format!("write `{name} = {digits}`; a number without a suffix is in seconds")
        }),
        Literal::Float(number) => refuse(match number.parse::<f64>() {
            Ok(seconds) => format!(
                "`{name}` takes whole seconds: write `{name} = \"{}ms\"`",
                (seconds * 1000.0).round()
            ),
            Err(_) => format!("`{name}` takes whole seconds, or text such as `\"1500ms\"`"),
        }),
        Literal::Text(text) => text_duration(&text)
            .map_err(|problem| format!("`\"{text}\"` is not a duration: {problem}"))
            .and_then(|duration| in_range(name, duration, range))
            .map_or_else(refuse, |duration| Ok(DurationArg::Literal(duration))),
        Literal::Negative => refuse(format!("`{name}` cannot be negative")),
        Literal::Other => refuse(format!(
            "`{name}` takes seconds (`15`), text (`\"1500ms\"`, `\"2s\"`, `\"1m30s\"`, `\"1h\"`), or an expression of type `Duration`"
        )),
        Literal::No if is_number(value) => refuse(format!(
            "`{name}` takes the result of an expression as a `Duration`: write `{name} = Duration::from_secs({})`",
            suggest::written(value)
        )),
        Literal::No => Ok(DurationArg::Expr(Box::new(value.clone()))),
    }
}

enum Literal<'a> {
    Int(&'a str, &'a str),
    Float(&'a str),
    Text(String),
    Negative,
    /// A literal that is not a duration.
    Other,
    /// Not a literal.
    No,
}

fn literal(value: &Expr) -> Literal<'_> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Int(int), .. }) => Literal::Int(int.base10_digits(), int.suffix()),
        Expr::Lit(ExprLit {
            lit: Lit::Float(float), ..
        }) => Literal::Float(float.base10_digits()),
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) => Literal::Text(text.value()),
        Expr::Lit(_) => Literal::Other,
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_), expr, ..
        }) if matches!(**expr, Expr::Lit(_)) => Literal::Negative,
        Expr::Paren(paren) => literal(&paren.expr),
        _ => Literal::No,
    }
}

/// Returns `true` if only numbers occur in an expression, as in `5 * 60`.
fn is_number(value: &Expr) -> bool {
    match value {
        Expr::Binary(both) => is_number(&both.left) && is_number(&both.right),
        Expr::Paren(paren) => is_number(&paren.expr),
        value => matches!(literal(value), Literal::Int(_, "")),
    }
}

fn in_range(name: &str, duration: Duration, range: Range) -> Result<Duration, String> {
    if duration.is_zero() && !range.min.is_zero() {
        Err(format!(
            "`{name}` cannot be zero: a lock that ends at once protects nothing"
        ))
    } else if duration < range.min {
        Err(format!("`{name}` is too short: give at least {:?}", range.min))
    } else if duration > range.max {
        Err(too_long(name))
    } else {
        Ok(duration)
    }
}

/// Returns the message for a number of seconds that may be one of milliseconds: 1000 or more, a multiple of 500, and not of whole hours.
fn may_be_milliseconds(name: &str, number: u64) -> Option<String> {
    if number < 1000 || !number.is_multiple_of(500) || number.is_multiple_of(3600) {
        return None;
    }
    let meant = if number.is_multiple_of(1000) {
        format!("{}s", number / 1000)
    } else {
        format!("{number}ms")
    };
    let (hours, minutes, seconds) = (number / 3600, number / 60 % 60, number % 60);
    let mut written = String::new();
    for (count, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s")] {
        if count > 0 {
            written.extend([count.to_string().as_str(), unit]);
        }
    }
    Some(format!(
        "`{name} = {number}` is in seconds: write `{name} = \"{meant}\"` if milliseconds were meant, `{name} = \"{written}\"` if not"
    ))
}

fn too_long(name: &str) -> String {
    format!("`{name}` is too long: give at most {} days", LONGEST.as_secs() / 86_400)
}

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Reads `1500ms`, `2s`, `1m30s`, `1h`. The problem is worded to follow "is not a duration:".
fn text_duration(text: &str) -> Result<Duration, String> {
    let known = "use numbers with `ms`, `s`, `m` or `h`, such as `\"1500ms\"` or `\"1m30s\"`";
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(known.to_owned());
    }
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if number.is_empty() || (unit.is_empty() && !tail.is_empty()) {
            return Err(known.to_owned());
        }
        if unit.is_empty() {
            return Err(format!(
                "`{number}` has no unit; write `\"{number}s\"`, or `{number}` without quotes for seconds"
            ));
        }
        let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("`{unit}` is no unit; {known}"));
        };
        millis = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
            .and_then(|part| millis.checked_add(part))
            .ok_or_else(|| "it is too long".to_owned())?;
        rest = tail.trim_start();
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(source: &str, range: Range) -> String {
        match syn::parse_str(source).and_then(|value| parse("lease", &value, range)) {
            Ok(DurationArg::Literal(duration)) => format!("{duration:?}"),
            Ok(DurationArg::Expr(_)) => "expression".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn lease(source: &str) -> String {
        message(source, Range::LEASE)
    }

    #[test]
    fn every_form_of_a_duration_is_read() {
        for (source, expected) in [
            ("15", "15s"),
            ("(15)", "15s"),
            ("1_200", "1200s"),
            ("7200", "7200s"),
            ("\"1500ms\"", "1.5s"),
            ("\"2s\"", "2s"),
            ("\"1m\"", "60s"),
            ("\"1m30s\"", "90s"),
            ("\" 1h 1m \"", "3660s"),
            ("Duration::from_secs(3)", "expression"),
            ("LEASE", "expression"),
            ("self.lease", "expression"),
            ("5 * MINUTE", "expression"),
        ] {
            assert_eq!(lease(source), expected, "{source}");
        }
        assert_eq!(message("0", Range::FROM_ZERO), "0ns");
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_remedy() {
        for (source, expected) in [
            ("0", "cannot be zero"),
            ("\"0ms\"", "cannot be zero"),
            ("\"9ms\"", "give at least 10ms"),
            ("\"\"", "use numbers with"),
            ("\"15\"", "write `\"15s\"`"),
            ("\"2 weeks\"", "use numbers with"),
            ("\"2w\"", "`w` is no unit"),
            ("\"1.5s\"", "use numbers with"),
            ("\"99999999999999999999h\"", "it is too long"),
            ("\"9999999h\"", "at most 366 days"),
            ("99999999999999999999999", "at most 366 days"),
            ("31622401", "at most 366 days"),
            (
                "15000",
                "write `lease = \"15s\"` if milliseconds were meant, `lease = \"4h10m\"` if not",
            ),
            (
                "1500",
                "write `lease = \"1500ms\"` if milliseconds were meant, `lease = \"25m\"` if not",
            ),
            ("1.5", "lease = \"1500ms\""),
            ("15u64", "write `lease = 15`"),
            ("5 * 60", "write `lease = Duration::from_secs(5 * 60)`"),
            ("(1 + 2) * 60", "write `lease = Duration::from_secs((1 + 2) * 60)`"),
            ("15s", "write `lease = \"15s\"`"),
            ("-1", "cannot be negative"),
            ("true", "takes seconds"),
            ("'a'", "takes seconds"),
        ] {
            let message = lease(source);
            assert!(message.contains(expected), "{source}: {message}");
        }
    }
}
