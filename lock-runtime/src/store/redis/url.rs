//! The parts of a URL.
//!
//! `redis` passes over what it does not know. Of two services whose URLs are meant alike, each could then
//! take the lock in a database of its own. So every part of a URL is read, or is an error that names it.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::connection::failure;
use crate::key;

/// The forms of URLs, for messages.
const FORMS: &str = "`redis://host:port` or `valkey://…`, `rediss://…` or `valkeys://…` for TLS, `unix:///path`, \
                     `redis+sentinel://host,host/master`, `redis+cluster://host,host`, `redlock://host,host,host`, or `memory://`";

/// Returns the settings of the single server that a URL names.
///
/// # Errors
/// Fails with the problem, without a password, and the accepted forms.
pub(super) fn server(url: &str) -> Result<ConnectionInfo, String> {
    read(url).map_err(|problem| not_understood(&problem))
}

/// The advice for settings that leave certificates unchecked.
pub(super) const ALWAYS_CHECKED: &str = "certificates are always checked; leave it out, and give the authority's certificate by \
                                         `LockManagerBuilder::root_certificate`";

/// The problem with TLS in a build without it, and its remedy.
pub(super) const NEEDS_TLS: &str =
    "TLS needs the feature `tls`: `lock-runtime = { version = \"…\", features = [\"tls\"] }`";

/// Returns an error text that names the problem with a URL and the accepted forms.
fn not_understood(problem: &str) -> String {
    format!("{problem}; give {FORMS}")
}

/// Returns the settings of the single server that a URL names.
///
/// # Errors
/// Fails with the problem, without a password.
pub(in crate::store) fn read(url: &str) -> Result<ConnectionInfo, String> {
    let parts = Parts::of(url)?;
    match &*parts.scheme {
        "redis" | "rediss" | "valkey" | "valkeys" => {
            let [db] = parts.parameters(["db"])?;
            parts.server(parts.user_info, parts.hosts, parts.database(db)?)
        }
        _ if parts.is_socket() => {
            if !matches!(parts.hosts, "" | "localhost") {
                return Err(
                    "there is no place for a host or a user before the path of a socket: write three slashes, and \
                            `?user=…&pass=…` at the end"
                        .to_owned(),
                );
            }
            let [db, _, _] = parts.parameters(["db", "user", "pass"])?;
            db.map(number).transpose()?;
            let info = parts.whole.into_connection_info();
            Ok(for_locks(&info.map_err(|error| failure::readable(&error))?))
        }
        scheme if scheme.contains("sentinel") => {
            Err(format!("the scheme `{scheme}` is not known, but `redis+sentinel` is"))
        }
        scheme if scheme.ends_with("+cluster") => Err("this store is for a single server".to_owned()),
        scheme if scheme.contains("cluster") => {
            Err(format!("the scheme `{scheme}` is not known, but `redis+cluster` is"))
        }
        "redlock" | "redlocks" => Err("this store is for a single server".to_owned()),
        scheme if scheme.contains("redlock") => Err(format!("the scheme `{scheme}` is not known, but `redlock` is")),
        scheme => Err(format!("the scheme `{scheme}` is not known")),
    }
}

/// Returns the settings with the protocol that locks need. Sends no `CLIENT SETINFO`, which the server
/// would deny to most users, unless the caller has set the library's name.
pub(super) fn for_locks(info: &ConnectionInfo) -> ConnectionInfo {
    let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    // `redis` passes over a user without a password, and would be the default user instead.
    if redis.password().is_none() && redis.username().is_some_and(|user| !user.is_empty()) {
        redis = redis.set_password("");
    }
    if redis.lib_name().is_none() {
        redis = redis.set_skip_set_lib_name();
    }
    info.clone().set_redis_settings(redis)
}

/// Splits the prefix of all keys, `?prefix=…`, from a URL of any store. Returns the rest of the URL.
///
/// # Errors
/// Fails with the problem, without a password.
pub(crate) fn split_prefix(url: &str) -> Result<(String, Option<String>), String> {
    let is_prefix = |part: &str| part.starts_with("prefix=");
    // The store that is to read it refuses what cannot be split.
    let Ok(parts) = Parts::of(url) else {
        return Ok((url.to_owned(), None));
    };
    let mut prefixes = parts.query.split('&').filter_map(|part| part.strip_prefix("prefix="));
    let Some(prefix) = prefixes.next() else {
        return Ok((url.to_owned(), None));
    };
    if prefixes.next().is_some() {
        return Err("the parameter `prefix` is given twice: give it once".to_owned());
    }
    let prefix = key::decoded(prefix).ok_or("`prefix` is not percent-encoded UTF-8: write a `%` in it as `%25`")?;
    let others: Vec<&str> = parts.query.split('&').filter(|part| !is_prefix(part)).collect();
    let end = parts.whole.len() - parts.fragment.len();
    let before = parts.whole[..end - parts.query.len()].trim_end_matches('?');
    let others = others.join("&");
    let sign = if others.is_empty() { "" } else { "?" };
    Ok((format!("{before}{sign}{others}{}", parts.fragment), Some(prefix)))
}

/// The parts of a URL, as they are written.
pub(in crate::store) struct Parts<'a> {
    whole: &'a str,
    /// In lower case.
    pub(super) scheme: String,
    /// With the `@` behind it, or empty.
    pub(in crate::store) user_info: &'a str,
    pub(super) hosts: &'a str,
    /// Without the first slash.
    pub(super) path: &'a str,
    query: &'a str,
    /// With the `#` before it, or empty.
    fragment: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits a URL.
    ///
    /// # Errors
    /// Fails if it has no scheme.
    pub(in crate::store) fn of(url: &'a str) -> Result<Self, String> {
        // At its ends, such as that of a file's line, they say nothing.
        let whole = url.trim_matches(|c: char| c <= ' ');
        if whole.contains(['\t', '\r', '\n']) {
            return Err("it has a tab or a line break inside: leave it out, or percent-encode it".to_owned());
        }
        // A socket has no host, so one slash is enough.
        let socket = || {
            whole
                .split_once(':')
                .filter(|(scheme, path)| scheme.ends_with("unix") && path.starts_with('/'))
        };
        let (scheme, rest) = whole.split_once("://").or_else(socket).ok_or("it has no scheme")?;
        let scheme = scheme.to_ascii_lowercase();
        let (user_info, rest) = match rest.rfind('@') {
            // The path of a socket, and its parameters, may have one.
            Some(at) if !scheme.ends_with("unix") => rest.split_at(at + 1),
            _ => ("", rest),
        };
        let (rest, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            whole,
            scheme,
            user_info,
            hosts,
            path,
            query,
            fragment,
        })
    }

    /// Checks the parts that have one meaning in all URLs.
    fn check(&self) -> Result<(), String> {
        // Else the host would be taken from the password.
        if self.user_info.contains(['/', '?', '#']) {
            return Err("what stands before its last `@` has a `/`, `?` or `#`: percent-encode these in a user and a password as \
                        `%2F`, `%3F` and `%23`, and an `@` anywhere else as `%40`"
                .to_owned());
        }
        match self.fragment {
            "" | "#" => Ok(()),
            "#insecure" if self.is_tls() => Err(format!("`#insecure` has no effect: {ALWAYS_CHECKED}")),
            _ => Err("a fragment has no meaning: leave it out, and percent-encode a `#` as `%23`".to_owned()),
        }
    }

    /// Checks that the scheme is that of several servers, which are reached over TCP.
    pub(super) fn check_transport(&self) -> Result<(), String> {
        match self.transport() {
            "redis" | "rediss" | "valkey" | "valkeys" => Ok(()),
            _ => Err(format!("the scheme `{}` is not known", self.scheme)),
        }
    }

    /// Returns the settings of the servers at all addresses, for this user.
    ///
    /// # Errors
    /// Fails with the problem of an address, or if none of `kind` is there.
    pub(in crate::store) fn servers(
        &self,
        user_info: &str,
        default_port: u16,
        kind: &str,
    ) -> Result<Vec<ConnectionInfo>, String> {
        let mut servers = Vec::new();
        for host in self.hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
            let address = match port(host) {
                Some(_) => host.to_owned(),
                None => format!("{host}:{default_port}"),
            };
            let server = self.server(user_info, &address, 0);
            servers.push(server.map_err(|problem| format!("`{}`: {problem}", name_of(host)))?);
        }
        if servers.is_empty() {
            return Err(format!("it does not have the address of {kind}"));
        }
        Ok(servers)
    }

    /// Returns the scheme without what stands behind a `+`.
    pub(super) fn transport(&self) -> &str {
        self.scheme.split('+').next().unwrap_or_default()
    }

    fn is_tls(&self) -> bool {
        matches!(self.transport(), "rediss" | "valkeys" | "redlocks")
    }

    fn is_socket(&self) -> bool {
        matches!(&*self.scheme, "unix" | "redis+unix" | "valkey+unix")
    }

    /// Returns the values of the parameters `known`, in this order.
    ///
    /// # Errors
    /// Fails if there is another parameter, or one is given twice, or if a part that has one meaning in
    /// all URLs has none.
    pub(in crate::store) fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&'a str>; N], String> {
        self.check()?;
        let mut read = [None; N];
        let mut protocol = None;
        let mut is_behind_password = false;
        for part in self.query.split('&').filter(|part| !part.is_empty()) {
            // Such a part may be the rest of a password, and is not shown.
            let Some((name, value)) = part.split_once('=') else {
                return Err(
                    "a parameter has no `=`: give it a value, and percent-encode an `&` in a value as `%26`".to_owned(),
                );
            };
            let mut places = known.iter().zip(&mut read);
            let place = match places.find(|(known, _)| **known == name) {
                Some((_, place)) => place,
                None if name == "protocol" => &mut protocol,
                None if is_behind_password => {
                    return Err("a parameter behind the password is not known: leave it out, and percent-encode an `&` in a value as \
                                `%26`"
                        .to_owned());
                }
                None => return Err(format!("the parameter `{name}` is not known: {}", advice(name, &known))),
            };
            if place.replace(value).is_some() {
                return Err(format!("the parameter `{name}` is given twice: give it once"));
            }
            is_behind_password |= name.contains("pass");
        }
        if !matches!(protocol, None | Some("3" | "resp3")) {
            return Err("locks need RESP3: leave `protocol` out, or give `protocol=resp3`".to_owned());
        }
        Ok(read)
    }

    /// Returns the database that the path names, or the parameter `db`.
    ///
    /// # Errors
    /// Fails if both name one, or it is no number.
    pub(in crate::store) fn database(&self, parameter: Option<&str>) -> Result<i64, String> {
        let path = self.path.trim_matches('/');
        match parameter {
            Some(_) if !path.is_empty() => {
                Err("it names a database twice, in its path and as `db`: leave one of them out".to_owned())
            }
            Some(parameter) => number(parameter),
            None if path.is_empty() => Ok(0),
            None if path.contains('/') => {
                Err("its path has more behind the database: give the number alone, such as `/3`".to_owned())
            }
            None => {
                of_digits(path).ok_or_else(|| "its path is not a database number: give digits, such as `/3`".to_owned())
            }
        }
    }

    /// Returns the settings of the server at `host`. A `user_info` ends with its `@`.
    pub(super) fn server(&self, user_info: &str, host: &str, db: i64) -> Result<ConnectionInfo, String> {
        if port(host).is_some_and(|port| !port.is_empty() && port.parse::<u16>().is_err()) {
            return Err(
                "what stands behind the `:` of an address is not a port: give a number, and a password before an `@`"
                    .to_owned(),
            );
        }
        if cfg!(not(feature = "tls")) && self.is_tls() {
            return Err(NEEDS_TLS.to_owned());
        }
        let info = format!("redis://{user_info}{host}/{db}").into_connection_info();
        let info = for_locks(&info.map_err(|error| failure::readable(&error))?);
        let (true, ConnectionAddr::Tcp(host, port)) = (self.is_tls(), info.addr().clone()) else {
            return Ok(info);
        };
        Ok(info.set_addr(ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }))
    }

    /// Returns an error if a user stands before more than one of the addresses: the first ones would
    /// count as a part of the password.
    pub(in crate::store) fn check_one_user(&self) -> Result<(), String> {
        let before = self.user_info.strip_suffix('@').unwrap_or_default();
        if before.contains('@') && before.contains(',') {
            return Err("it has several `@`: give one user and password before all addresses, and percent-encode an `@` in them as \
                        `%40`"
                .to_owned());
        }
        Ok(())
    }
}

/// Returns what stands in place of an address's port.
fn port(address: &str) -> Option<&str> {
    let end = address.rsplit(']').next()?;
    end.split_once(':').map(|(_, port)| port)
}

/// Returns an address without its port, for messages: it may be a password, where the host was left
/// out.
fn name_of(address: &str) -> &str {
    let port = port(address).map_or(0, |port| port.len() + 1);
    address.split_at(address.len() - port).0
}

/// Reads the value of the parameter `db`.
pub(super) fn number(parameter: &str) -> Result<i64, String> {
    of_digits(parameter).ok_or_else(|| "`db` is not a database number: give digits, such as `db=3`".to_owned())
}

fn of_digits(text: &str) -> Option<i64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Returns what to write in place of a parameter, whose name may be that of another client.
fn advice(name: &str, known: &[&str]) -> &'static str {
    let is_known = |name| known.contains(&name);
    match name {
        "database" | "dbnum" | "db_number" | "dbindex" => "write `db`",
        "password" | "passwd" | "pwd" if is_known("pass") => "write `pass`",
        "username" if is_known("user") => "write `user`",
        "user" | "username" | "pass" | "password" | "passwd" | "pwd" => {
            "write it before the host, `user:password@host`"
        }
        "tls" | "ssl" => "write `rediss://` for TLS",
        // A manager reads it before its store does.
        "prefix" => "give it to the manager, by its URL or by `LockManagerBuilder::prefix`",
        "keyprefix" | "keyPrefix" | "key_prefix" | "namespace" => "write `prefix`",
        _ => "leave it out, and set time-outs, certificates and the like at the `LockManagerBuilder`",
    }
}

#[cfg(test)]
mod tests {
    use super::{server, split_prefix};

    /// Returns the address, the database, the user and the password that a URL names.
    fn read(url: &str) -> Result<(String, i64, Option<String>, Option<String>), String> {
        let info = server(url)?;
        let settings = info.redis_settings();
        Ok((
            info.addr().to_string(),
            settings.db(),
            settings.username().map(str::to_owned),
            settings.password().map(str::to_owned),
        ))
    }

    #[test]
    fn a_database_is_read_wherever_a_url_may_name_it() {
        for url in [
            "redis://one/3",
            "redis://one/3/",
            "redis://one?db=3",
            "redis://one/?db=3",
            "redis://one:6379/?db=3",
            "valkey://one?db=3",
            "REDIS://one?db=3",
            " redis://one?db=3\n",
            "redis://one?protocol=resp3&db=3",
            "redis://one/3?protocol=3",
            "redis://one/3#",
            "redis://one:/3",
            #[cfg(feature = "tls")]
            "rediss://one/3#",
            #[cfg(feature = "tls")]
            "valkeys://one?db=3",
        ] {
            assert_eq!(read(url), Ok(("one:6379".to_owned(), 3, None, None)), "{url}");
        }
        for url in [
            "unix:///run/a@b.sock?db=3",
            "unix:/run/a@b.sock?db=3",
            "unix://localhost/run/a@b.sock?db=3&protocol=resp3",
            "redis+unix:///run/a@b.sock?db=3",
            "valkey+unix:///run/a%40b.sock?db=3",
        ] {
            assert_eq!(read(url), Ok(("/run/a@b.sock".to_owned(), 3, None, None)), "{url}");
        }
        assert_eq!(read("redis://one"), Ok(("one:6379".to_owned(), 0, None, None)));
    }

    #[test]
    fn the_prefix_is_split_from_the_url_of_any_store() {
        for (url, rest, prefix) in [
            ("redis://one?prefix=shop:", "redis://one", "shop:"),
            (
                "redis://a:p@one/3?prefix=shop%3A%26&protocol=3",
                "redis://a:p@one/3?protocol=3",
                "shop:&",
            ),
            (
                "redis+sentinel://one/orders?db=3&prefix=",
                "redis+sentinel://one/orders?db=3",
                "",
            ),
            (
                "redis+cluster://one,two/?prefix={shop}:#",
                "redis+cluster://one,two/#",
                "{shop}:",
            ),
            (
                "unix:///run/a?db=1&prefix=shop:&pass=p@s",
                "unix:///run/a?db=1&pass=p@s",
                "shop:",
            ),
            ("memory://?prefix=shop:", "memory://", "shop:"),
        ] {
            assert_eq!(
                split_prefix(url),
                Ok((rest.to_owned(), Some(prefix.to_owned()))),
                "{url}"
            );
        }
        for url in [
            "redis://one",
            "redis://one?db=3",
            "redis://a:x?prefix=y@one",
            "one?prefix=shop:",
        ] {
            assert_eq!(split_prefix(url), Ok((url.to_owned(), None)), "{url}");
        }
        for url in [
            "redis://one?prefix=a&prefix=b",
            "redis://one?prefix=%",
            "redis://one?prefix=%ff",
        ] {
            assert!(split_prefix(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_user_is_read_with_and_without_a_password() {
        for (url, user, password) in [
            ("redis://app:p%40s%2Fs@one", Some("app"), Some("p@s/s")),
            ("redis://:p@ss@one", None, Some("p@ss")),
            ("redis://app@one", Some("app"), Some("")),
            ("redis://@one", None, None),
        ] {
            let said = (user.map(str::to_owned), password.map(str::to_owned));
            assert_eq!(read(url), Ok(("one:6379".to_owned(), 0, said.0, said.1)), "{url}");
        }
        for (url, user, password) in [
            ("unix:///a?user=app&pass=p@s%26s", Some("app"), Some("p@s&s")),
            ("unix:///a?user=app", Some("app"), Some("")),
            ("unix:///a?user=&pass=", Some(""), Some("")),
        ] {
            let said = (user.map(str::to_owned), password.map(str::to_owned));
            assert_eq!(read(url), Ok(("/a".to_owned(), 0, said.0, said.1)), "{url}");
        }
    }

    #[test]
    fn what_a_url_says_and_nobody_reads_is_refused_by_name_and_no_password_is_shown() {
        for (url, said) in [
            ("redis://:s3cret@one/3?db=4", "names a database twice"),
            ("redis://:s3cret@one?db=3&db=4", "the parameter `db` is given twice"),
            ("redis://:s3cret@one?db=", "`db` is not a database number"),
            ("redis://:s3cret@one?db=-1", "`db` is not a database number"),
            ("redis://:s3cret@one?db=%33", "`db` is not a database number"),
            (
                "redis://:s3cret@one?db=99999999999999999999",
                "`db` is not a database number",
            ),
            ("redis://:s3cret@one?db", "a parameter has no `=`"),
            ("redis://:s3cret@one/3/x", "more behind the database"),
            ("redis://:s3cret@one/3/../4", "more behind the database"),
            ("redis://:s3cret@one/orders", "path is not a database number"),
            ("redis://:s3cret@one/-1", "path is not a database number"),
            ("redis://:s3cret@one/3\t4", "a tab or a line break"),
            (
                "redis://:s3cret@one?database=3",
                "the parameter `database` is not known: write `db`",
            ),
            (
                "redis://:s3cret@one?socket_timeout=3",
                "the parameter `socket_timeout` is not known",
            ),
            (
                "redis://one?password=s3cret",
                "the parameter `password` is not known: write it before the host",
            ),
            (
                "redis://one?password=s3cret&s3cret=1",
                "the parameter `password` is not known",
            ),
            (
                "redis://one?user=app",
                "the parameter `user` is not known: write it before the host",
            ),
            (
                "redis://one?ssl=true",
                "the parameter `ssl` is not known: write `rediss://`",
            ),
            ("redis://:s3cret@one?protocol=resp2", "locks need RESP3"),
            ("redis://:s3cret@one?protocol=2", "locks need RESP3"),
            ("redis://:s3cret@one?protocol=4", "locks need RESP3"),
            ("redis://:s3cret@one/3#insecure", "a fragment has no meaning"),
            ("valkey://:s3cret@one/#x", "a fragment has no meaning"),
            ("rediss://:s3cret@one/#verify", "a fragment has no meaning"),
            ("rediss://:s3cret@one/#insecure", "certificates are always checked"),
            ("redis://:s3cret@one:port", "not a port"),
            ("redis://:s3cret", "not a port"),
            ("redis://app:s3cret/3", "not a port"),
            ("http://:s3cret/@one#x", "the scheme `http` is not known"),
            ("redis://app:12?s3cret@one", "before its last `@`"),
            ("redis://app:12#s3cret@one", "before its last `@`"),
            ("redis://app:12/s3cret@one", "before its last `@`"),
            (
                "unix:///run/a.sock?database=3",
                "the parameter `database` is not known: write `db`",
            ),
            (
                "unix:///run/a.sock?password=s3cret",
                "the parameter `password` is not known: write `pass`",
            ),
            (
                "unix:///run/a.sock?username=app",
                "the parameter `username` is not known: write `user`",
            ),
            (
                "unix:///run/a.sock?pass=12&s3cret=1",
                "a parameter behind the password is not known",
            ),
            ("unix:///run/a.sock?pass=12&s3cret", "a parameter has no `=`"),
            ("unix:///run/a.sock?db=3&db=4", "the parameter `db` is given twice"),
            ("unix:///run/a.sock?db=x", "`db` is not a database number"),
            ("unix:///run/a.sock?protocol=2", "locks need RESP3"),
            ("unix:///run/a.sock?pass=12#s3cret", "a fragment"),
            ("unix://app:s3cret@localhost/run/a.sock", "three slashes"),
            ("unix://localhost:6379/run/a.sock", "three slashes"),
            ("unix://run/a.sock", "three slashes"),
        ] {
            let problem = read(url).err().unwrap_or_default();
            assert!(problem.contains(said), "{url}: {problem}");
            assert!(problem.contains("; give `redis://host:port`"), "{url}: {problem}");
            assert!(!problem.contains("s3cret"), "{url}: {problem}");
        }
    }
}
