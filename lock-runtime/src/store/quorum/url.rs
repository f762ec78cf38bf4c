//! The URL of a quorum.

use redis::ConnectionInfo;

use crate::store::redis::url::Parts;

/// The form of the URL, for messages.
const FORM: &str = "redlock://[user:password@]host[:6379],host[:6379],host[:6379][/database]";
const DEFAULT_PORT: u16 = 6379;

/// Returns `true` if a URL has the scheme of a quorum.
pub(crate) fn is_one(url: &str) -> bool {
    let scheme = url
        .trim()
        .split_once("://")
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("redlock" | "redlocks"))
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
    let mut known = Vec::new();
    for master in &masters {
        let address = master.addr().to_string();
        if known.contains(&address) {
            return Err(format!(
                "it names `{address}` twice, which would vote twice: give each master once"
            ));
        }
        known.push(address);
    }
    let in_database = |info: ConnectionInfo| {
        let settings = info.redis_settings().clone().set_db(db);
        info.set_redis_settings(settings)
    };
    Ok(masters.into_iter().map(in_database).collect())
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
            ("redlock://app:s3cret@one,two,one", "it names `one:6379` twice"),
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
