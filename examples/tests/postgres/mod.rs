//! A real Postgres refuses the transaction of a former holder.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use lock_tests::children::{Builder, Child};
use lock_tests::patience::eventually_blocking;
use lock_tests::server::free_port;
use tempfile::TempDir;

use crate::example;

/// Postgres refuses to run as root.
const NOBODY: u32 = 65_534;

/// A server with an empty database.
struct Postgres {
    _process: Child,
    url: String,
    _folder: TempDir,
}

impl Postgres {
    /// Returns `None` where `tests/install-servers` could not get it.
    fn start() -> Option<Self> {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/.servers/postgres/bin");
        if !programs.exists() {
            assert!(
                std::env::var_os("CI").is_none(),
                "./tests/install-servers has not got PostgreSQL"
            );
            println!("there is no PostgreSQL here: nothing is shown");
            return None;
        }
        let folder = TempDir::new().unwrap();
        let is_root = folder.path().metadata().unwrap().uid() == 0;
        if is_root {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let command = |program: &str, arguments: &str| command(&programs.join(program), arguments, is_root);
        let (here, port) = (folder.path().display(), free_port());

        let initdb = command(
            "initdb",
            &format!("-D {here}/data --auth=trust --username=postgres --encoding=UTF8 --locale=C --no-sync"),
        );
        let made = Command::new(&initdb[0]).args(&initdb[1..]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let server = command(
            "postgres",
            &format!("-D {here}/data -k {here} -h 127.0.0.1 -p {port} -F"),
        );
        let process = server[1..].iter().fold(Builder::new(&server[0]), Builder::arg).spawn();
        eventually_blocking("PostgreSQL to be ready", || {
            process.errors().contains("ready to accept connections")
        });
        Some(Self {
            _process: process,
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            _folder: folder,
        })
    }
}

/// Returns the words of a command; root runs it as somebody else.
fn command(program: &Path, arguments: &str, is_root: bool) -> Vec<String> {
    let mut words = Vec::new();
    if is_root {
        let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --");
        words.extend(nobody.split(' ').map(str::to_owned));
    }
    words.push(program.display().to_string());
    words.extend(arguments.split(' ').map(str::to_owned));
    words
}

#[test]
fn a_transaction_of_a_former_holder_is_refused() {
    let Some(database) = Postgres::start() else { return };
    let run = Command::new(example("postgres"))
        .env("DATABASE_URL", &database.url)
        .env("REDIS_URL", "memory://")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    for line in [
        "the next one has set the price to 20",
        "the paused one is told: lock `price:7` was lost",
        "the transaction of the paused one is refused: a later holder of the lock has changed the price",
        "the price is 20, after 1 change",
    ] {
        assert!(said.contains(line), "no {line:?} in:\n{said}");
    }
}

#[test]
fn without_a_database_the_example_says_what_to_give() {
    let run = Command::new(example("postgres"))
        .env_remove("DATABASE_URL")
        .output()
        .unwrap();
    assert!(!run.status.success());
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        said.starts_with("Error: DATABASE_URL is not set; give the URL"),
        "{said}"
    );
}
