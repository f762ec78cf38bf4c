//! The URL of a master that sentinels watch.

use std::fmt;

use redis::ConnectionInfo;

use crate::store::redis::url::{self, Parts};

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
        let parts = Parts::of(url)?;
        parts.check_transport()?;
        let [db, user, password] = parts.parameters(["db", "sentinel_user", "sentinel_password"])?;
        parts.check_one_user()?;
        let master = parts.path;
        if master.is_empty() {
            return Err("it does not name one master after the addresses of the sentinels".to_owned());
        }
        if master.contains('/') {
            return Err(
                "it does not name one master after the addresses of the sentinels: write a database as `?db=3`"
                    .to_owned(),
            );
        }
        let db = db.map_or(Ok(0), url::number)?;
        // These would end the user, or the user and password, of the URL that `redis` reads.
        let encoded = |given: Option<&str>| {
            let given = given.unwrap_or_default();
            given.replace(':', "%3A").replace('/', "%2F").replace('?', "%3F")
        };
        let sentinel_user_info = match (encoded(user), encoded(password)) {
            (user, password) if user.is_empty() && password.is_empty() => String::new(),
            (user, password) => format!("{user}:{password}@"),
        };
        Ok(Self {
            sentinels: parts.servers(&sentinel_user_info, DEFAULT_PORT, "a sentinel")?,
            server: parts.server(parts.user_info, "localhost", db)?,
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
    fn a_user_of_the_sentinels_may_have_any_password_and_none() -> Result {
        for (given, user, password) in [
            ("sentinel_user=watch", Some("watch"), Some("")),
            ("sentinel_password=12/s?3=", None, Some("12/s?3=")),
            ("sentinel_user=&sentinel_password=", None, None),
        ] {
            let read = SentinelUrl::parse(&format!("redis+sentinel://app@one/orders?{given}"))?;
            assert_eq!(read.server.redis_settings().password(), Some(""));
            for sentinel in &read.sentinels {
                assert_eq!(sentinel.addr().to_string(), "one:26379");
                let settings = sentinel.redis_settings();
                assert_eq!((settings.username(), settings.password()), (user, password), "{given}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_a_url_says_and_nobody_reads_is_refused_by_name_and_no_password_is_shown() {
        for (url, said) in [
            ("redis+sentinel://one/orders?db=", "`db` is not a database number"),
            (
                "redis+sentinel://one/orders?db=3&db=4",
                "the parameter `db` is given twice",
            ),
            ("redis+sentinel://one/orders/3", "write a database as `?db=3`"),
            ("redis+sentinel://one/orders?protocol=2", "locks need RESP3"),
            (
                "redis+sentinel://one/orders?password=s3cret",
                "the parameter `password` is not known",
            ),
            (
                "redis+sentinel://one/orders?sentinel_password=12&s3cret=1",
                "a parameter behind the password is not known",
            ),
            (
                "redis+sentinel://one/orders?sentinel_password=12&s3cret",
                "a parameter has no `=`",
            ),
            ("redis+sentinel://one/orders#insecure", "a fragment has no meaning"),
            ("rediss+sentinel://one/orders#s3cret", "a fragment has no meaning"),
            (
                "redis+sentinel://app:s3cret/orders",
                "`app`: what stands behind the `:` of an address is not a port",
            ),
            (
                "redis+sentinel://one/orders?sentinel_password=a@s3cret",
                "before its last `@`",
            ),
            ("redis+sentinel://app:12?s3cret@one/orders", "before its last `@`"),
            (
                "redis+sentinel://app:s3cret@one,app:s3cret@two/orders",
                "one user and password before all addresses",
            ),
            ("redis+sentinel://one/or\nders", "a tab or a line break"),
        ] {
            let problem = problem(url);
            assert!(problem.contains(said), "{url}: {problem}");
            assert!(!problem.contains("s3cret"), "{url}: {problem}");
        }
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
            (
                "redis+sentinel://one:port/orders",
                "`one`: what stands behind the `:` of an address is not a port",
            ),
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
