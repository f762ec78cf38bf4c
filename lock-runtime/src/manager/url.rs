//! A store's URL, as shown in messages.

/// Returns `url` without a password that it may contain. The URL need not be valid, so that a
/// message never shows the password of a malformed one.
pub(super) fn without_password(url: &str) -> Box<str> {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    // A password that was not percent-encoded may contain any of these.
    let (user_info, rest) = rest
        .rsplit_once('@')
        .map_or((None, rest), |(user_info, rest)| (Some(user_info), rest));
    let mut shown = scheme.to_owned();
    if let Some(user_info) = user_info {
        // What stands behind the `@` may be the end of a parameter's value.
        if user_info.contains("sentinel_password=") {
            return (shown + "***").into();
        }
        shown.push_str(user_info.split(':').next().unwrap_or_default());
        if user_info.contains(':') {
            shown.push_str(":***");
        }
        shown.push('@');
    }
    let (place, query) = rest
        .split_once('?')
        .map_or((rest, None), |(place, query)| (place, Some(query)));
    shown.push_str(place);
    for (at, part) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if at == 0 { '?' } else { '&' });
        match part.split_once('=') {
            Some((name, _)) if name.contains("pass") => shown.extend([name, "=***"]),
            _ => shown.push_str(part),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn a_password_is_not_shown_and_the_rest_is() {
        for (url, shown) in [
            ("redis://localhost:6379/2", "redis://localhost:6379/2"),
            ("redis://:s3cret@localhost", "redis://:***@localhost"),
            (
                "rediss://app:s3cret@cache.example:6380/1?protocol=resp3",
                "rediss://app:***@cache.example:6380/1?protocol=resp3",
            ),
            ("redis://app@localhost", "redis://app@localhost"),
            ("redis://app:s3/c@r?e:t@localhost", "redis://app:***@localhost"),
            (
                "unix:///run/redis.sock?db=1&pass=s3cret&user=app",
                "unix:///run/redis.sock?db=1&pass=***&user=app",
            ),
            (":s3cret@localhost", ":***@localhost"),
            (
                "redis+sentinel://app:s3cret@one,two:26380/orders?db=1&sentinel_user=watch&sentinel_password=s3cret",
                "redis+sentinel://app:***@one,two:26380/orders?db=1&sentinel_user=watch&sentinel_password=***",
            ),
            (
                "redis+sentinel://one/orders?sentinel_password=a@s3cret",
                "redis+sentinel://***",
            ),
            ("memory://", "memory://"),
            ("localhost:6379", "localhost:6379"),
            ("", ""),
        ] {
            assert_eq!(&*without_password(url), shown);
        }
    }
}
