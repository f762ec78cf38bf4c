//! The URL of a master that sentinels watch.

use std::fmt;

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::super::connection::failure;

/// The form of the URL, for messages.
pub(super) const FORM: &str =
    "redis+sentinel://[user:password@]host[:26379][,host…]/master[?db=0][&sentinel_user=…][&sentinel_password=…]";
const DEFAULT_PORT: u16 = 26379;

/// The parts of a URL.
pub(in crate::store::redis) struct SentinelUrl {
    /// The sentinels.
    pub(super) sentinels: Vec<ConnectionInfo>,
    /// The servers' settings, with a place that is none.
    pub(super) server: ConnectionInfo,
    /// The master's name.
    pub(super) master: String,
}

impl SentinelUrl {
    /// Returns `true` if the URL has the scheme of sentinels.
    pub(in crate::store::redis) fn is_one(url: &str) -> bool {
        url.split_once("://")
            .is_some_and(|(scheme, _)| scheme.ends_with("+sentinel"))
    }

    /// Returns the servers' settings, with a place that is none.
    pub(in crate::store::redis) fn server(&self) -> &ConnectionInfo {
        &self.server
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// Fails with the problem, and the accepted form.
    pub(in crate::store::redis) fn parse(url: &str) -> Result<Self, String> {
        Self::read(url).map_err(|problem| format!("{problem}; give `{FORM}`, or `rediss+sentinel://…` for TLS"))
    }

    fn read(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("+sentinel://").ok_or("it has no scheme")?;
        if !matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys") {
            return Err(format!("the scheme `{scheme}+sentinel` is not known"));
        }
        let (rest, fragment) = match rest.rsplit_once('#') {
            Some((rest, fragment)) => (rest, format!("#{fragment}")),
            None => (rest, String::new()),
        };
        // An address has none of `@`, `/` and `?`, so those of a user and password come before.
        let (user_info, rest) = match rest.rsplit_once('@') {
            Some((user_info, rest)) => (format!("{user_info}@"), rest),
            None => (String::new(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, master) = rest.split_once('/').unwrap_or((rest, ""));
        if master.is_empty() || master.contains('/') {
            return Err("it does not name one master after the addresses of the sentinels".to_owned());
        }
        let (mut db, mut user, mut password) = ("0", "", "");
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("db", given)) => db = given,
                Some(("sentinel_user", given)) => user = given,
                Some(("sentinel_password", given)) => password = given,
                // The value may be a password.
                _ => {
                    let name = part.split('=').next().unwrap_or_default();
                    return Err(format!("the parameter `{name}` is not known"));
                }
            }
        }
        let sentinel_user_info = if user.is_empty() && password.is_empty() {
            String::new()
        } else {
            format!("{user}:{password}@")
        };
        let info = |user_info: &str, host: &str, db: &str| {
            let info = format!("{scheme}://{user_info}{host}/{db}{fragment}").into_connection_info();
            let info = info.map_err(|error| failure::readable(&error))?;
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            Ok::<_, String>(info.set_redis_settings(redis))
        };
        let mut sentinels = Vec::new();
        for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
            let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
            let host = if has_port {
                host.to_owned()
            } else {
                format!("{host}:{DEFAULT_PORT}")
            };
            sentinels.push(info(&sentinel_user_info, &host, "0").map_err(|problem| format!("`{host}`: {problem}"))?);
        }
        if sentinels.is_empty() {
            return Err("it does not have the address of a sentinel".to_owned());
        }
        Ok(Self {
            sentinels,
            server: info(&user_info, "localhost", db)?,
            master: master.to_owned(),
        })
    }
}

/// Shows the master and the sentinels, without users and passwords.
impl fmt::Display for SentinelUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels = self.sentinels.iter().map(|info| info.addr().to_string());
        let sentinels = sentinels.collect::<Vec<_>>().join(",");
        write!(f, "{}, which {sentinels} watch", self.master)
    }
}

#[cfg(test)]
mod tests {
    use super::SentinelUrl;

    type Result = std::result::Result<(), String>;

    fn problem(url: &str) -> String {
        SentinelUrl::parse(url).err().unwrap_or_default()
    }

    #[test]
    fn a_url_names_sentinels_a_master_and_both_users() -> Result {
        let url = "redis+sentinel://app:p%40ss@one,two:5000,[::1]:26380/orders?db=3&sentinel_user=watch&sentinel_password=se%2Fcret";
        let read = SentinelUrl::parse(url)?;
        let places: Vec<String> = read.sentinels.iter().map(|info| info.addr().to_string()).collect();
        assert_eq!(places, ["one:26379", "two:5000", "::1:26380"]);
        assert_eq!(read.master, "orders");
        let server = read.server.redis_settings();
        assert_eq!(
            (server.username(), server.password(), server.db()),
            (Some("app"), Some("p@ss"), 3)
        );
        for sentinel in &read.sentinels {
            let settings = sentinel.redis_settings();
            assert_eq!(
                (settings.username(), settings.password(), settings.db()),
                (Some("watch"), Some("se/cret"), 0)
            );
        }
        Ok(())
    }

    #[test]
    fn without_a_user_neither_kind_of_server_is_given_one() -> Result {
        let read = SentinelUrl::parse("redis+sentinel://one/orders")?;
        for info in read.sentinels.iter().chain([&read.server]) {
            assert_eq!(
                (info.redis_settings().username(), info.redis_settings().password()),
                (None, None)
            );
        }
        Ok(())
    }

    #[test]
    fn a_url_that_is_not_understood_says_what_is_missing() {
        for (url, said) in [
            ("redis+sentinel://one,two", "it does not name one master"),
            ("redis+sentinel://one/", "it does not name one master"),
            ("redis+sentinel:///orders", "it does not have the address of a sentinel"),
            ("http+sentinel://one/orders", "the scheme `http+sentinel` is not known"),
            (
                "redis+sentinel://one/orders?master=x",
                "the parameter `master` is not known",
            ),
            ("redis+sentinel://one:port/orders", "`one:port`: "),
            ("redis+sentinel://one/orders?db=first", "database number"),
        ] {
            let problem = problem(url);
            assert!(problem.contains(said), "{url}: {problem}");
            assert!(
                problem.contains("redis+sentinel://[user:password@]host"),
                "{url}: {problem}"
            );
        }
    }

    #[test]
    fn a_password_is_in_no_message() {
        for url in [
            "redis+sentinel://app:s3cret@one",
            "redis+sentinel://app:s3cret@one/a?s=s3cret",
            "redis+sentinel://app:s3cret@one/a?sentinel_password=s3cret&db=x",
        ] {
            assert!(!problem(url).contains("s3cret"), "{}", problem(url));
        }
    }
}
