//! A real Prometheus that reads the example `metrics` accepts the alert rules, and answers every query of the board.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lock_tests::children::{Builder, Child};
use lock_tests::server::free_port;
use lock_tests::{eventually, eventually_some};
use serde_json::Value;
use tempfile::TempDir;

use crate::{ask, example, post, serve};

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/alerts.yml");
const BOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/locks.json");
const ALERTS: &str = include_str!("alerts.test.yml");

/// Returns the path of a program of Prometheus, or `None` where `tests/install-servers` could not get it.
fn tool(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/.servers/prometheus")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "./tests/install-servers has not got Prometheus"
    );
    println!("there is no Prometheus here: nothing is shown");
    None
}

/// Runs `promtool`, which must succeed.
fn promtool(arguments: &[&str]) {
    let Some(promtool) = tool("promtool") else { return };
    let output = Command::new(promtool).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn each_alert_fires_on_what_it_is_for_and_on_nothing_else() {
    let tests = tempfile::NamedTempFile::new().unwrap();
    fs::write(tests.path(), ALERTS.replace("RULES", RULES)).unwrap();
    promtool(&["test", "rules", tests.path().to_str().unwrap()]);
    // A rule without a case would be shown by nothing.
    let rules = fs::read_to_string(RULES).unwrap();
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(ALERTS.contains(name), "no case names {name}");
    }
}

/// A Prometheus that reads one service.
struct Prometheus {
    _process: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    async fn reading(program: &Path, service: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let settings = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 200ms, evaluation_interval: 200ms, scrape_timeout: 200ms }}\n\
             rule_files: ['{RULES}']\n\
             scrape_configs:\n  - job_name: shop\n    static_configs: [{{ targets: ['{service}'] }}]\n"
        );
        fs::write(&settings, text).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let process = Builder::new(program)
            .arg(format!("--config.file={}", settings.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .spawn();
        eventually("Prometheus to listen", || async {
            tokio::net::TcpStream::connect(&address).await.is_ok()
        })
        .await;
        Self {
            _process: process,
            address,
            _folder: folder,
        }
    }

    /// Asks its interface, and returns the `data` of the answer, or `None` while it has none.
    async fn data(&self, path: &str) -> Option<Value> {
        let answer = ask("GET", self.address.clone(), path, "").await;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        if head.starts_with("HTTP/1.1 503") {
            return None;
        }
        // It comes in chunks, each behind a line with its size.
        let body: String = body.lines().filter(|line| line.starts_with('{')).collect();
        let mut answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}, in:\n{answer}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        Some(answer["data"].take())
    }

    /// Returns whether a query finds a number.
    async fn answers(&self, query: &str) -> bool {
        let encoded = query
            .bytes()
            .fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
        let Some(data) = self.data(&format!("/api/v1/query?query={encoded}")).await else {
            return false;
        };
        let found = data["result"].as_array().unwrap_or_else(|| panic!("{data}"));
        // A quantile of nothing is no number.
        let number = |series: &Value| series["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
        found.iter().filter_map(number).any(f64::is_finite)
    }
}

/// Returns each query of the board with the title of its panel, as Grafana asks them for all instances and keys.
fn queries() -> BTreeMap<String, String> {
    let board: Value = serde_json::from_str(&fs::read_to_string(BOARD).unwrap()).unwrap();
    let in_panels = board["panels"].as_array().unwrap().iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| {
            let query = target["expr"].as_str().unwrap();
            assert!(
                query.contains("$key") && query.contains("$instance"),
                "{query} chooses no key or instance"
            );
            let query = query.replace("$__rate_interval", "5s").replace("$__range", "1h");
            let query = query.replace("$key", ".*").replace("$instance", ".*");
            assert!(!query.contains('$'), "{query}");
            (format!("{}, {}", panel["title"], target["refId"]), query)
        })
    });
    in_panels.collect()
}

#[tokio::test]
async fn prometheus_accepts_the_rules_and_answers_the_queries_of_the_board() {
    let Some(program) = tool("prometheus") else { return };
    let (_service, address) = serve(Builder::new(example("metrics")).env("REDIS_URL", "memory://")).await;
    let prometheus = Prometheus::reading(&program, &address).await;
    let queries = queries();
    assert!(queries.len() > 10, "{queries:?}");
    // While the service is asked for something, since a rate is of the last seconds.
    let load = async {
        loop {
            post(address.clone(), "/items/7/reserve", "").await;
            post(address.clone(), "/count", "").await;
        }
    };
    let answers = async {
        for (panel, query) in &queries {
            eventually(panel, || prometheus.answers(query)).await;
        }
        let rules = eventually_some("the rules", || async {
            let data = prometheus.data("/api/v1/rules").await?;
            let rules = data["groups"][0]["rules"].as_array()?.clone();
            rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
        });
        let rules = rules.await;
        assert_eq!(
            rules.len(),
            fs::read_to_string(RULES).unwrap().matches("- alert: ").count()
        );
        for rule in rules {
            assert_eq!(
                (&rule["health"], &rule["state"]),
                (&"ok".into(), &"inactive".into()),
                "{rule}"
            );
        }
    };
    tokio::select! {
        () = load => {}
        () = answers => {}
    }
}
