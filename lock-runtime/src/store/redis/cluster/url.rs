//! The URL of a cluster.

use std::fmt;

use redis::ConnectionInfo;

use crate::store::redis::url::Parts;

/// The form of the URL, for messages.
const FORM: &str = "redis+cluster://[user:password@]host[:6379][,host…]";
const DEFAULT_PORT: u16 = 6379;

/// The parts of a URL.
pub(crate) struct ClusterUrl {
    /// The nodes that it names, of which one is enough.
    pub(super) nodes: Vec<ConnectionInfo>,
}

impl ClusterUrl {
    /// Returns `true` if the URL has the scheme of a cluster.
    pub(crate) fn is_one(url: &str) -> bool {
        url.split_once("://")
            .is_some_and(|(scheme, _)| scheme.ends_with("+cluster"))
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// Fails with the problem, and the accepted form.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        Self::read(url).map_err(|problem| format!("{problem}; give `{FORM}`, or `rediss+cluster://…` for TLS"))
    }

    fn read(url: &str) -> Result<Self, String> {
        let parts = Parts::of(url)?;
        parts.check_transport()?;
        let [db] = parts.parameters(["db"])?;
        parts.check_one_user()?;
        if parts.database(db)? != 0 {
            return Err("a cluster has database 0 only".to_owned());
        }
        let nodes = parts.servers(parts.user_info, DEFAULT_PORT, "a node")?;
        Ok(Self { nodes })
    }
}

/// Shows the nodes, without user and password.
impl fmt::Display for ClusterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, node) in self.nodes.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            write!(f, "{comma}{}", node.addr())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::ClusterUrl;

    #[test]
    fn a_url_names_nodes_and_one_user() {
        let read = ClusterUrl::parse("redis+cluster://app:p%40ss@one,two:7001,[::1]:7002/0");
        let read = read.map(|read| {
            let first = read.nodes.first().map(|info| info.redis_settings().clone());
            let user = first.map(|first| (first.username().map(str::to_owned), first.password().map(str::to_owned)));
            (read.to_string(), user)
        });
        let user = (Some("app".to_owned()), Some("p@ss".to_owned()));
        assert_eq!(read, Ok(("one:6379,two:7001,::1:7002".to_owned(), Some(user))));
    }

    #[test]
    fn database_0_may_be_named() {
        for url in [
            "redis+cluster://one/0",
            "redis+cluster://one?db=0",
            "redis+cluster://one/?protocol=resp3",
        ] {
            let read = ClusterUrl::parse(url).map(|read| read.to_string());
            assert_eq!(read, Ok("one:6379".to_owned()), "{url}");
        }
    }

    #[test]
    fn a_url_that_is_not_understood_says_what_is_wrong_and_no_password() {
        for (url, said) in [
            ("redis+cluster://app:s3cret@one?db=3", "a cluster has database 0 only"),
            ("redis+cluster://app:s3cret@one/0?db=0", "names a database twice"),
            ("redis+cluster://app:s3cret@one/0/x", "more behind the database"),
            ("redis+cluster://app:s3cret@one/0#insecure", "a fragment has no meaning"),
            ("rediss+cluster://app:s3cret@one#s3cret", "a fragment has no meaning"),
            (
                "redis+cluster://app:s3cret",
                "`app`: what stands behind the `:` of an address is not a port",
            ),
            ("redis+cluster://app:12?s3cret@one", "before its last `@`"),
            (
                "redis+cluster://app:s3cret@one,app:s3cret@two",
                "one user and password before all addresses",
            ),
            ("redis+cluster://", "it does not have the address of a node"),
            ("redis+cluster:///0", "it does not have the address of a node"),
            ("http+cluster://one", "the scheme `http+cluster` is not known"),
            ("redis+cluster://app:s3cret@one/3", "a cluster has database 0 only"),
            (
                "redis+cluster://app:s3cret@one?pass=s3cret",
                "the parameter `pass` is not known",
            ),
            (
                "redis+cluster://app:s3cret@one:port",
                "`one`: what stands behind the `:` of an address is not a port",
            ),
        ] {
            let problem = ClusterUrl::parse(url).err().unwrap_or_default();
            assert!(problem.contains(said), "{url}: {problem}");
            assert!(
                problem.contains("redis+cluster://[user:password@]host"),
                "{url}: {problem}"
            );
            assert!(!problem.contains("s3cret"), "{url}: {problem}");
        }
    }
}
