//! The URL of a quorum.

use redis::ConnectionInfo;

use crate::store::redis::url::{self, Parts};

/// The form of the URL, for messages.
const FORM: &str = "redlock://[user:password@]host[:6379],host[:6379],host[:6379][/database]";
/// The forms of the URL of one master, for messages.
const ONE: &str = "`redis://[user:password@]host[:6379][/database]`, or `rediss://…` for TLS";
const DEFAULT_PORT: u16 = 6379;

/// Returns `true` if a URL has the scheme of a quorum.
pub(crate) fn is_one(url: &str) -> bool {
    matches!(&*scheme(url), "redlock" | "redlocks")
}

/// Returns the scheme in lower case.
fn scheme(url: &str) -> String {
    let (scheme, _) = url.trim().split_once("://").unwrap_or_default();
    scheme.to_ascii_lowercase()
}

/// Returns the masters that a URL names.
///
/// # Errors
/// Fails with the problem, and the accepted form.
pub(crate) fn masters(url: &str) -> Result<Vec<ConnectionInfo>, String> {
    read(url).map_err(|problem| format!("{problem}; give `{FORM}`, or `redlocks://…` for TLS"))
}

fn read(url: &str) -> Result<Vec<ConnectionInfo>, String> {
    let parts = Parts::of(url)?;
    let [db] = parts.parameters(["db"])?;
    parts.check_one_user()?;
    let db = parts.database(db)?;
    let masters = parts.servers(parts.user_info, DEFAULT_PORT, "a master")?;
    let in_database = |info: ConnectionInfo| {
        let settings = info.redis_settings().clone().set_db(db);
        info.set_redis_settings(settings)
    };
    Ok(masters.into_iter().map(in_database).collect())
}

/// Returns the master that a URL of its own names.
///
/// # Errors
/// Fails with the problem, and the accepted forms.
pub(crate) fn master(url: &str) -> Result<ConnectionInfo, String> {
    let scheme = scheme(url);
    let problem = match scheme.rsplit('+').next().unwrap_or_default() {
        "cluster" => "a cluster cannot be a master of a quorum, since its masters depend on each other",
        "sentinel" => "a master behind sentinels cannot be one of a quorum, since a failover forgets votes",
        "redlock" | "redlocks" => "a quorum cannot be a master of another one",
        _ => "",
    };
    let read = if problem.is_empty() {
        url::read(url)
    } else {
        Err(problem.to_owned())
    };
    read.map_err(|problem| format!("{problem}; give {ONE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_masters_one_user_and_one_database() {
        let read = masters("redlock://app:p%40ss@one,two:7001,[::1]:7002/3").map(|masters| {
            let one = masters.iter().map(|info| {
                let settings = info.redis_settings();
                let user = (
                    settings.username().map(str::to_owned),
                    settings.password().map(str::to_owned),
                );
                (info.addr().to_string(), settings.db(), user)
            });
            one.collect::<Vec<_>>()
        });
        let user = || (Some("app".to_owned()), Some("p@ss".to_owned()));
        let expected = ["one:6379", "two:7001", "::1:7002"].map(|address| (address.to_owned(), 3, user()));
        assert_eq!(read, Ok(expected.to_vec()));
    }

    #[test]
    fn a_url_that_is_not_understood_says_what_is_wrong_and_no_password() {
        for (url, said) in [
            ("redlock://app:s3cret@one,two,three/x", "not a database number"),
            ("redlock://app:s3cret@one,two,three/1?db=2", "names a database twice"),
            (
                "redlock://app:s3cret@one,app:s3cret@two,three",
                "one user and password before all addresses",
            ),
            ("redlock://app:s3cret@one,two,three#x", "a fragment has no meaning"),
            (
                "redlock://app:s3cret@one,two,three?pass=s3cret",
                "the parameter `pass` is not known",
            ),
            ("redlock://", "it does not have the address of a master"),
            ("redlock://app:s3cret@one:port,two,three", "is not a port"),
        ] {
            let problem = masters(url).err().unwrap_or_default();
            assert!(problem.contains(said), "{url}: {problem}");
            assert!(problem.contains("redlock://[user:password@]host"), "{url}: {problem}");
            assert!(!problem.contains("s3cret"), "{url}: {problem}");
        }
    }

    #[test]
    fn only_the_two_schemes_are_those_of_a_quorum() {
        for url in ["redlock://a,b,c", "REDLOCKS://a,b,c", " redlock://a,b,c\n"] {
            assert!(is_one(url), "{url}");
        }
        for url in ["redis://a", "redlock", "redlock+tls://a", "redis+redlock://a"] {
            assert!(!is_one(url), "{url}");
        }
    }
}
