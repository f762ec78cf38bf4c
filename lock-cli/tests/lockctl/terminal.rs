//! A command on a terminal, under a shell with job control.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use lock_tests::{Server, eventually};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::stage::{STORED, gone};

/// Says `begun` and waits, in one process: a shell may lose a SIGINT while it starts another. The quotes keep what is typed apart from
/// what is printed.
const BEGUN_AND_WAITING: &str = "exec 3<> <(:); echo be\"\"gun; read <&3";

/// An interactive shell on a pseudo-terminal of its own.
struct Shell {
    process: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// What has been read of the screen.
    read: usize,
}

impl Shell {
    fn start(server: &Server) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockctl"));
        let path = format!(
            "{}:{}",
            program.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let process = Command::new("setsid")
            .args(["--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"])
            .env("LOCK_URL", server.url())
            .env("PATH", path)
            .env("PS1", "$ ")
            .stdin(Stdio::from(terminal.try_clone().unwrap()))
            .stdout(Stdio::from(terminal.try_clone().unwrap()))
            .stderr(Stdio::from(terminal))
            .arg0("setsid")
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let mut output = File::from(master.try_clone().unwrap());
        thread::spawn({
            let screen = Arc::clone(&screen);
            move || {
                let mut part = [0; 4096];
                while let Ok(length @ 1..) = output.read(&mut part) {
                    screen
                        .lock()
                        .unwrap()
                        .push_str(&String::from_utf8_lossy(&part[..length]));
                }
            }
        });
        Self {
            process,
            keyboard: File::from(master),
            screen,
            read: 0,
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text behind what has been read, and returns what stands between.
    async fn shows(&mut self, text: &str) -> String {
        let (screen, read) = (Arc::clone(&self.screen), self.read);
        let at = || screen.lock().unwrap()[read..].find(text);
        eventually(&format!("`{text}` on the terminal"), || {
            let is_there = at().is_some();
            if !is_there && std::env::var_os("LOCKCTL_SHOW_TERMINAL").is_some() {
                eprintln!("{:?}", &screen.lock().unwrap()[read..]);
            }
            async move { is_there }
        })
        .await;
        let at = at().unwrap();
        self.read += at + text.len();
        screen.lock().unwrap()[read..read + at].to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The end of the terminal is a SIGHUP for all that is left on it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the terminal showed {}", self.screen.lock().unwrap());
        }
    }
}

#[tokio::test]
async fn a_command_has_the_terminal_and_the_shell_gets_it_back() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("lockctl run --key job -- bash -c 'echo be\"\"gun; read line; echo got \"$line\"; exit 5'\n");
    shell.shows("begun").await;
    shell.types("words\n");
    shell.shows("got words").await;
    shell.types("echo code $?\n");
    shell.shows("code 5").await;

    shell.types(&format!("lockctl run --key job -- bash -c '{BEGUN_AND_WAITING}'\n"));
    shell.shows("begun").await;
    shell.types("\u{3}");
    shell.types("echo code $?\n");
    shell.shows("code 130").await;
    assert!(!server.exists(STORED));

    // Ctrl-C ends the script around it as well, as without lockctl.
    let script = BEGUN_AND_WAITING.replace('"', "\\\"");
    shell.types(&format!(
        "bash -c 'lockctl run --key job -- bash -c \"{script}\"; echo went o\"\"n'\n"
    ));
    shell.shows("begun").await;
    shell.types("\u{3}");
    shell.types("echo code $?\n");
    assert!(!shell.shows("code 130").await.contains("went on"));
}

#[tokio::test]
async fn a_command_can_be_stopped_and_goes_on_with_its_lock_only() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    let script = "echo pi\"\"ds $$ e\"\"nd; while read line; do echo got \"$line\"; done; exit 6";
    let command = format!("lockctl run --key job --lease 1h -- bash -c '{script}'\n");
    shell.types(&command);
    shell.shows("pids ").await;
    shell.shows(" end").await;
    for round in ["one", "two"] {
        shell.types("\u{1a}");
        shell.shows("Stopped").await;
        // The shell has the terminal, and the lock is held.
        shell.types("lockctl show j\"\"ob\n");
        shell.shows("held, exclusive").await;
        shell.types("fg\n");
        shell.types(&format!("{round}\n"));
        shell.shows(&format!("got {round}")).await;
    }
    shell.types("\u{4}");
    shell.types("echo code $?\n");
    shell.shows("code 6").await;

    shell.types(&command);
    shell.shows("pids ").await;
    let pid = shell.shows(" end").await.parse().unwrap();
    shell.types("\u{1a}");
    shell.shows("Stopped").await;
    server.cmd(&["DEL", STORED]);
    shell.types("fg\n");
    shell.shows("was lost").await;
    gone(&[pid]).await;
    shell.types("echo code $?\n");
    shell.shows("code 76").await;
}

/// The command is in the background until it asks for the terminal, which other programs of the job may need.
#[tokio::test]
async fn a_command_in_a_pipeline_leaves_the_terminal_to_the_others_until_it_reads_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types(&format!(
        "lockctl run --key job -- bash -c '{BEGUN_AND_WAITING}' | cat\n"
    ));
    shell.shows("begun").await;
    shell.types("\u{3}");
    shell.types("echo code ${PIPESTATUS[0]}\n");
    shell.shows("code 130").await;

    shell.types("lockctl run --key job -- bash -c 'echo be\"\"gun; read line; echo got \"$line\"' | cat\n");
    shell.shows("begun").await;
    shell.types("words\n");
    shell.shows("got words").await;
    shell.types("echo code ${PIPESTATUS[0]}\n");
    shell.shows("code 0").await;
}
