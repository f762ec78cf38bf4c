//! A store's URL, as shown in messages.

/// The parameters whose values are no secrets.
const SHOWN: &[&str] = &["db", "prefix", "protocol", "user", "sentinel_user"];

/// Returns `url` without a password that it may contain. The URL need not be valid, so that a
/// message never shows the password of a malformed one.
pub(super) fn without_password(url: &str) -> Box<str> {
    let url = url.trim();
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    // A password that was not percent-encoded may contain any of these.
    let (user_info, rest) = rest
        .rsplit_once('@')
        .map_or((None, rest), |(user_info, rest)| (Some(user_info), rest));
    let mut shown = scheme.to_owned();
    if let Some(user_info) = user_info {
        let user = user_info.split(':').next().unwrap_or_default();
        let has_parameters = user_info.split_once('?').is_some_and(|(_, query)| query.contains('='));
        // What stands behind the `@` may be the end of a parameter's value.
        if user.contains(['/', '?', '#']) || has_parameters {
            return (shown + "***").into();
        }
        shown.push_str(user);
        if user_info.contains(':') {
            shown.push_str(":***");
        }
        shown.push('@');
    }
    let (rest, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
    let (place, query) = rest
        .split_once('?')
        .map_or((rest, None), |(place, query)| (place, Some(query)));
    let (hosts, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    for (at, host) in hosts.split(',').enumerate() {
        shown.push_str(if at == 0 { "" } else { "," });
        let (host, port) = host.split_at(host.rfind(':').unwrap_or(host.len()));
        let is_port = !host.is_empty() && port.chars().all(|c| c == ':' || c.is_ascii_digit());
        // Where the host was left out, it may be a password. An address with `[…]` goes on, and without a
        // scheme this is the name of a store that was given.
        let is_shown = port.is_empty() || is_port || port.ends_with(']') || scheme.is_empty();
        shown.extend([host, if is_shown { port } else { ":***" }]);
    }
    shown.push_str(path);
    let mut is_behind_password = false;
    for (at, part) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if at == 0 { '?' } else { '&' });
        let name = part.split_once('=').map(|(name, _)| name);
        match name {
            Some(name) if SHOWN.contains(&name) => shown.push_str(part),
            Some(name) if !is_behind_password => shown.extend([name, "=***"]),
            // It may be the rest of a password.
            _ => shown.push_str("***"),
        }
        is_behind_password |= name.is_some_and(|name| name.contains("pass"));
    }
    shown.push_str(match fragment {
        "" | "#" | "#insecure" => fragment,
        _ => "#***",
    });
    shown.into()
}

/// Returns an error text if the URL of a store in memory says more than its scheme.
pub(super) fn check_memory(url: &str) -> Result<(), &'static str> {
    let said = url.trim().strip_prefix("memory:").unwrap_or(url);
    if said.chars().all(|c| c == '/') {
        return Ok(());
    }
    Err(
        "a store in memory has no name, address, database, user or parameters but `prefix`, and is its manager's own; give `memory://`, and clone the \
         manager to share it",
    )
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
            ("unix:///run/x?pass=s3@cret", "unix://***"),
            (
                "redis+sentinel://one:26379/orders?sentinel_password=s3@cret",
                "redis+sentinel://***",
            ),
            ("redis://one:6379/0?auth=s3@cret", "redis://***"),
            (
                "redis://one/0?prefix=shop:&auth=s3cret",
                "redis://one/0?prefix=shop:&auth=***",
            ),
            ("redis://one/0?auth=s3cret&db=1", "redis://one/0?auth=***&db=1"),
            ("unix:///run/x?p%61ss=s3cret", "unix:///run/x?p%61ss=***"),
            ("unix:///run/x?pass=s3&cret", "unix:///run/x?pass=***&***"),
            ("unix:///run/x?pass=s3&cret=1&db=1", "unix:///run/x?pass=***&***&db=1"),
            ("unix:///run/x?db=1#s3cret", "unix:///run/x?db=1#***"),
            ("rediss://one/0?db=1#insecure", "rediss://one/0?db=1#insecure"),
            (" redis://one\n", "redis://one"),
            ("redis://:12345", "redis://:***"),
            ("redis://app:s3cret/3", "redis://app:***/3"),
            (
                "redis+cluster://app:s3cret,two:7001,[::1]:7002,[::f]",
                "redis+cluster://app:***,two:7001,[::1]:7002,[::f]",
            ),
            ("memory://", "memory://"),
            ("localhost:6379", "localhost:6379"),
            ("shop:primary", "shop:primary"),
            ("", ""),
        ] {
            assert_eq!(&*without_password(url), shown);
        }
    }
}
