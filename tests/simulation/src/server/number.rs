//! Numbers as the servers read and write them.

use super::version::Version;

/// Reads an integer: no sign but `-`, no zero in front, no spaces.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Reads a floating-point number.
pub fn double(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Writes a floating-point number.
pub fn text(number: f64, version: Version) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if version.is_recent() {
        shortest(number)
    } else {
        seventeen_digits(number)
    }
}

/// `%.17g`.
fn seventeen_digits(number: f64) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    if let Some(integer) = whole(number).filter(|integer| integer.abs() < 10_i64.pow(16)) {
        return integer.to_string();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or_default();
        return trimmed(&format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

/// Returns the integer that this is.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn whole(number: f64) -> Option<i64> {
    let limit = (i64::MAX / 2) as f64;
    let is_minus_zero = number == 0.0 && number.is_sign_negative();
    (number.abs() <= limit && (number as i64) as f64 == number && !is_minus_zero).then_some(number as i64)
}

/// The fewest digits that are read back as the same number. Integers are written as such.
fn shortest(number: f64) -> String {
    if let Some(integer) = whole(number) {
        return integer.to_string();
    }
    let scientific = format!("{:e}", number.abs());
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits = digits.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let count = i32::try_from(digits.len()).unwrap_or_default();
    // The power of ten of the last digit.
    let last = exponent + 1 - count;
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    let written = if last >= 0 && exponent.abs() < count + 7 {
        format!("{digits}{}", zeros(last))
    } else if last < 0 && (last > -7 || exponent.abs() < 4) {
        match usize::try_from(count + last) {
            Ok(whole) if whole > 0 => format!("{}.{}", &digits[..whole], &digits[whole..]),
            _ => format!("0.{}{digits}", zeros(-(count + last))),
        }
    } else {
        let point = if digits.len() > 1 { "." } else { "" };
        let up = if exponent < 0 { '-' } else { '+' };
        format!("{}{point}{}e{up}{}", &digits[..1], &digits[1..], exponent.abs())
    };
    format!("{sign}{written}")
}
