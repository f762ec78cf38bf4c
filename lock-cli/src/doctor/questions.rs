//! What one server is asked over a connection of lockctl's own.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_runtime::{LockManager, ServerHealth, ServerRole, ServerState};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, TlsCertificates, cmd};

use crate::args::Store;
use crate::connect;
use crate::doctor::{Findings, Verdict, permissions};
use crate::exit::Failure;

/// How long the server may take to connect, and for each answer.
const LIMIT: Duration = Duration::from_secs(2);
/// The difference of clocks that is told.
const CLOCKS: Duration = Duration::from_secs(1);

pub(super) async fn ask(
    findings: &mut Findings,
    store: &Store,
    locks: &LockManager,
    server: &ServerHealth,
) -> Result<(), Failure> {
    let address = Some(&*server.address);
    if server.state == ServerState::Down || server.role == ServerRole::Cluster {
        return Ok(());
    }
    if server.role == ServerRole::Sentinel {
        let message = "the settings of sentinels are not checked; see `SENTINEL CKQUORUM`";
        return findings.add(address, "settings", Verdict::Skipped, message);
    }
    let mut connection = match connect(store, &server.address).await {
        Ok(connection) => connection,
        Err(why) => {
            let message = format!(
                "not checked, since lockctl's own connection failed: {why}; mend that, and run `lockctl doctor` again"
            );
            return findings.add(address, "settings", Verdict::Failed, &message);
        }
    };
    match cmd("INFO").query_async::<String>(&mut connection).await {
        Ok(info) => {
            version(findings, address, &info)?;
            role(findings, address, &info)?;
            policy(findings, address, &info, &mut connection).await?;
            persistence(findings, address, &info)?;
        }
        Err(error) => {
            let what = "version, role, memory and persistence are ";
            let or = "allow `+info`, or check them by hand";
            findings.unasked(address, "settings", what, &error, or)?;
        }
    }
    clock(findings, address, &mut connection).await?;
    let scheme = connect::scheme(connect::url(store)?);
    if scheme.starts_with("redlock") {
        votes(findings, address, locks.prefix(), &mut connection).await?;
    }
    let is_of_cluster = scheme.ends_with("+cluster");
    permissions::check(findings, address, locks.prefix(), is_of_cluster, &mut connection).await
}

/// Connects to one server of the store, with the store's user, password and database.
async fn connect(store: &Store, address: &str) -> Result<MultiplexedConnection, String> {
    let url = connect::url(store).map_err(|failure| failure.message)?;
    let url = url_of(url, address).ok_or("its URL is not understood")?;
    // Errors of the crate do not name the URL.
    let mut server = url.into_connection_info().map_err(|error| error.to_string())?;
    // The user needs no permission for it otherwise.
    let settings = server.redis_settings().clone().set_skip_set_lib_name();
    server = server.set_redis_settings(settings);
    if let Some(file) = connect::named(store.password_file.as_deref()) {
        let password = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let settings = server
            .redis_settings()
            .clone()
            .set_password(password.trim_end_matches(['\r', '\n']));
        server = server.set_redis_settings(settings);
    }
    let root_cert = connect::root_certificate(store).map_err(|failure| failure.message)?;
    let client = if matches!(server.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        // An error means that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = TlsCertificates {
            client_tls: connect::client_certificate().map_err(|failure| failure.message)?,
            root_cert,
        };
        Client::build_with_tls(server, certificates)
    } else {
        Client::open(server)
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT));
    let connection = client.map_err(|error| error.to_string())?;
    let connection = connection.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| error.to_string())
}

/// Returns the URL of one server of a store: `redis://`, `rediss://` or `unix://`, with the store's user and database.
fn url_of(store: &str, address: &str) -> Option<String> {
    let (scheme, rest) = store.split_once("://")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .into_iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    };
    if scheme.ends_with("unix") {
        let known = ["db", "user", "pass"].map(|name| parameter(name).map(|value| format!("{name}={value}")));
        let known: Vec<_> = known.into_iter().flatten().collect();
        return Some(format!("unix://{rest}?{}", known.join("&")));
    }
    // In a valid URL, `@` and `/` of a password are encoded.
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    let database = if scheme.contains("sentinel") || scheme.contains("cluster") {
        ""
    } else {
        path
    };
    let database = parameter("db").unwrap_or(database);
    let kind = match scheme {
        "rediss" | "valkeys" | "rediss+sentinel" | "rediss+cluster" | "redlocks" => "rediss",
        _ => "redis",
    };
    let at = if user.is_empty() { "" } else { "@" };
    Some(format!("{kind}://{user}{at}{address}/{database}"))
}

/// Returns a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

fn version(findings: &mut Findings, address: Option<&str>, info: &str) -> Result<(), Failure> {
    let (name, version) = match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => ("Valkey", version),
        (None, Some(version)) => ("Redis", version),
        (None, None) => {
            return findings.add(
                address,
                "version",
                Verdict::Skipped,
                "the server does not tell its version",
            );
        }
    };
    let mut numbers = version
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let numbers = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    if numbers < (6, 2) {
        let message =
            format!("{name} {version} lacks commands that locks need; update it to Redis 6.2 or later, or Valkey");
        return findings.add(address, "version", Verdict::Failed, &message);
    }
    findings.add(address, "version", Verdict::Ok, &format!("{name} {version}"))
}

fn role(findings: &mut Findings, address: Option<&str>, info: &str) -> Result<(), Failure> {
    match field(info, "role") {
        Some("master") => findings.add(address, "role", Verdict::Ok, "master"),
        Some(role) => {
            let message =
                format!("the server calls itself a {role}, which takes no locks; give the address of its master");
            findings.add(address, "role", Verdict::Failed, &message)
        }
        None => findings.add(address, "role", Verdict::Skipped, "the server does not tell its role"),
    }
}

/// Tells whether the server may drop locks when its memory is full.
async fn policy(
    findings: &mut Findings,
    address: Option<&str>,
    info: &str,
    connection: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let mut policy = field(info, "maxmemory_policy").map(str::to_owned);
    if policy.is_none() {
        let asked = cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory-policy")
            .query_async::<Vec<String>>(connection)
            .await;
        policy = asked.ok().and_then(|pair| pair.into_iter().nth(1));
    }
    let limit = field(info, "maxmemory").and_then(|limit| limit.parse::<u64>().ok());
    match (policy.as_deref(), limit) {
        (None, _) => {
            let message = "not checked, since the server does not tell it; see that `maxmemory-policy` is `noeviction`";
            findings.add(address, "maxmemory-policy", Verdict::Skipped, message)
        }
        (Some("noeviction"), _) => findings.add(address, "maxmemory-policy", Verdict::Ok, "noeviction"),
        // As for a service.
        (Some(policy), Some(0)) => {
            let message = format!("{policy}, which drops no locks as long as the server has no `maxmemory`");
            findings.add(address, "maxmemory-policy", Verdict::Info, &message)
        }
        (Some(policy), _) => {
            // Every lock has an expiry, so the `volatile-` policies take locks first of all.
            let message = format!(
                "{policy} may drop locks when the memory is full, and a dropped lock is a lost lock; set `maxmemory-policy noeviction`, \
                 or give the locks a server of their own"
            );
            findings.add(address, "maxmemory-policy", Verdict::Warning, &message)
        }
    }
}

fn persistence(findings: &mut Findings, address: Option<&str>, info: &str) -> Result<(), Failure> {
    match field(info, "aof_enabled") {
        None => findings.add(address, "persistence", Verdict::Skipped, "the server does not tell it"),
        Some("1") => findings.add(address, "persistence", Verdict::Ok, "append-only file"),
        Some(_) => findings.add(
            address,
            "persistence",
            Verdict::Info,
            "no append-only file: a restart loses locks, and others may take them while their holders still run; let it start again only \
             after the longest lease, set `appendonly yes`, or use fencing tokens",
        ),
    }
}

/// Compares the server's clock with this machine's.
async fn clock(
    findings: &mut Findings,
    address: Option<&str>,
    connection: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = now();
    let time = cmd("TIME").query_async::<(u64, u64)>(connection).await;
    let after = now();
    let (seconds, microseconds) = match time {
        Ok(time) => time,
        Err(error) => {
            let or = "allow `+time`, which fencing tokens need";
            return findings.unasked(address, "clock", "", &error, or);
        }
    };
    let server = Duration::from_secs(seconds) + Duration::from_micros(microseconds);
    let (off, how) = match before.checked_sub(server) {
        Some(behind) => (behind, "behind"),
        None => (server.saturating_sub(after), "ahead of"),
    };
    if off < CLOCKS {
        return findings.add(
            address,
            "clock",
            Verdict::Ok,
            &format!("within {CLOCKS:?} of this machine's"),
        );
    }
    let message = format!(
        "the server's clock is {:.1} s {how} this machine's; leases do not depend on it, but `legacy_setnx` does, fencing tokens count from it, \
         and times in logs do not match; let NTP set both clocks",
        off.as_secs_f64()
    );
    findings.add(address, "clock", Verdict::Warning, &message)
}

/// Tells whether one of several masters votes: docs/layout.md, "The mark". The connection of `locks` has read the mark.
async fn votes(
    findings: &mut Findings,
    address: Option<&str>,
    prefix: &str,
    connection: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let mut question = redis::pipe();
    question.cmd("TIME").cmd("GET").arg(format!("{prefix}%lock-mark"));
    let answer = question.query_async::<((u64, u64), Option<String>)>(connection).await;
    let opens = |mark: &str| mark.split(':').nth(1)?.parse().ok();
    let opens_in = match answer {
        Ok(((seconds, microseconds), mark)) => mark
            .as_deref()
            .and_then(opens)
            .map(|opens: u64| opens.saturating_sub(seconds * 1000 + microseconds / 1000)),
        Err(error) => {
            let or = "allow `+time` and `+get`, which a quorum needs";
            return findings.unasked(address, "votes", "", &error, or);
        }
    };
    let message = match opens_in {
        Some(0) => return findings.add(address, "votes", Verdict::Ok, "it votes"),
        Some(opens_in) => format!("it gives no votes for another {} s", opens_in.div_ceil(1000)),
        None => "it gives no votes, since no service has used it yet".to_owned(),
    };
    let message = format!(
        "{message}, as after its first use, a restart or a flush; wait, or if no process holds a lock, `lockctl open-quorum --force`"
    );
    findings.add(address, "votes", Verdict::Warning, &message)
}

#[cfg(test)]
mod tests {
    use super::url_of;

    #[test]
    fn a_server_of_a_store_is_asked_as_the_stores_user() {
        for (store, address, url) in [
            ("redis://localhost", "localhost:6379", "redis://localhost:6379/"),
            (
                "valkeys://app:p%2Fw@a:1/3?prefix=shop:",
                "a:1",
                "rediss://app:p%2Fw@a:1/3",
            ),
            ("redlock://:pw@a,b,c/2", "b:6379", "redis://:pw@b:6379/2"),
            ("redlock://a,b,c?db=4", "b:6379", "redis://b:6379/4"),
            (
                "rediss+sentinel://app:pw@s1,s2/orders?db=1&sentinel_password=x",
                "m:6379",
                "rediss://app:pw@m:6379/1",
            ),
            ("redis+cluster://n1,n2", "n3:6379", "redis://n3:6379/"),
            (
                "redis+unix:///run/r.sock?prefix=a:&db=2&pass=pw",
                "/run/r.sock",
                "unix:///run/r.sock?db=2&pass=pw",
            ),
        ] {
            assert_eq!(url_of(store, address).as_deref(), Some(url), "{store}");
        }
    }
}
