//! Other processes: a helper program that a test talks to by lines, stops, resumes and kills.
//!
//! ```text
//! let mut child = lock_child!("hold", "the-key").env("REDIS_URL", server.url()).spawn();
//! child.line("holding").await;      // a line the child printed
//! child.say("release");             // a line on the child's standard input
//! child.kill();
//! ```
//!
//! The program is `src/bin/lock-child.rs`; it prints with [`child_says`] and listens with [`child_hears`]. It must end when its
//! standard input does, and is killed when the [`Child`] is dropped or the test process ends, in whatever way.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Signal;

use crate::clock::Stamp;
use crate::patience::{eventually_blocking, eventually_some};
use crate::reaper;

/// A [`Builder`]($crate::children::Builder) for the helper program, given its arguments. For test targets of this package only: there cargo
/// tells where the program is, and has built it.
#[macro_export]
macro_rules! lock_child {
    ($($argument:expr),* $(,)?) => {
        $crate::children::Builder::new(env!("CARGO_BIN_EXE_lock-child"))$(.arg($argument))*
    };
}

/// How a child is to be started.
#[derive(Debug)]
pub struct Builder(Command);

impl Builder {
    /// A child that runs this program.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self(Command::new(program))
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Starts it.
    #[must_use]
    pub fn spawn(mut self) -> Child {
        self.0
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut process = self
            .0
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} does not start: {error}", self.0));
        reaper::began(process.id(), None);
        let heard = Arc::new(Mutex::new(Heard::default()));
        listen(
            process.stdout.take().expect("stdout is piped"),
            &heard,
            |heard, line| heard.lines.push(line),
        );
        listen(
            process.stderr.take().expect("stderr is piped"),
            &heard,
            |heard, line| {
                // Also shown with the output of a failing test.
                heard.errors.push_str(&line.text);
                heard.errors.push('\n');
            },
        );
        let stdin = process.stdin.take();
        Child {
            process,
            stdin,
            heard,
            next: 0,
            ended: None,
        }
    }
}

/// A line that a child printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When the test process read it.
    pub at: Stamp,
    /// The line without its end.
    pub text: String,
}

impl Line {
    /// The words after the first: `line.words()[0]` of `token 17` is `17`.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        self.text.split_whitespace().skip(1).collect()
    }
}

/// A running child process.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
    /// The first line that no wait has consumed.
    next: usize,
    ended: Option<ExitStatus>,
}

#[derive(Debug, Default)]
struct Heard {
    lines: Vec<Line>,
    errors: String,
    /// Of the two streams.
    closed: u8,
}

impl Child {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line that starts with `start`, and skips those before it. Panics, showing what the child printed, when it
    /// ended without such a line or [`PATIENCE`](crate::PATIENCE) is over.
    pub async fn line(&mut self, start: &str) -> Line {
        let what = format!("a line `{start}…` from the child process");
        eventually_some(&what, || {
            let found = self.look(start);
            async move { found }
        })
        .await
    }

    /// [`Child::line`] for tests without a runtime.
    pub fn line_blocking(&mut self, start: &str) -> Line {
        let mut line = None;
        eventually_blocking(&format!("a line `{start}…` from the child process"), || {
            line = self.look(start);
            line.is_some()
        });
        line.expect("the wait ended")
    }

    fn look(&mut self, start: &str) -> Option<Line> {
        let heard = lock(&self.heard);
        let found = heard
            .lines
            .iter()
            .enumerate()
            .skip(self.next)
            .find(|(_, line)| line.text.starts_with(start));
        if let Some((index, line)) = found {
            self.next = index + 1;
            return Some(line.clone());
        }
        if heard.closed == 2 {
            let lines: Vec<_> = heard.lines.iter().map(|line| line.text.as_str()).collect();
            panic!(
                "the child process ended without a line `{start}…`; it printed {lines:?} and, as errors:\n{}",
                heard.errors
            );
        }
        None
    }

    /// Every line so far, consumed or not.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        lock(&self.heard).lines.clone()
    }

    /// What it wrote to its standard error so far.
    #[must_use]
    pub fn errors(&self) -> String {
        lock(&self.heard).errors.clone()
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the child's standard input was not closed");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .expect("the child process listens");
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Stops it where it is (SIGSTOP) and returns when it stands still.
    pub fn stop(&self) {
        reaper::pause(self.pid());
    }

    /// Lets it go on (SIGCONT).
    pub fn cont(&self) {
        reaper::signal(self.pid(), Signal::CONT);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        reaper::signal(self.pid(), Signal::TERM);
    }

    /// Ends it by SIGKILL and returns when it is gone.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.process.kill();
            self.ended = Some(self.process.wait().expect("a child can be waited for"));
            reaper::ended(self.process.id());
        }
    }

    /// Waits until it ends by itself, and until all it printed was read.
    pub async fn exit(&mut self) -> ExitStatus {
        eventually_some("the child process to end", || {
            let status = self.exited();
            async move { status }
        })
        .await
    }

    fn exited(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().expect("a child can be waited for");
            if self.ended.is_some() {
                reaper::ended(self.process.id());
            }
        }
        self.ended.filter(|_| lock(&self.heard).closed == 2)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let heard = lock(&self.heard);
            let lines: Vec<_> = heard.lines.iter().map(|line| line.text.as_str()).collect();
            eprintln!(
                "child process {} printed {lines:?}\n{}",
                self.process.id(),
                heard.errors
            );
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(stream: impl Read + Send + 'static, heard: &Arc<Mutex<Heard>>, keep: fn(&mut Heard, Line)) {
    let heard = Arc::clone(heard);
    std::thread::spawn(move || {
        for text in BufReader::new(stream).lines().map_while(Result::ok) {
            keep(&mut lock(&heard), Line { at: Stamp::now(), text });
        }
        lock(&heard).closed += 1;
    });
}

/// For the child's side: prints a line and sends it off at once.
///
/// It writes by hand because `println!` would panic when the test is gone; then the child ends instead.
pub fn child_says(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// For the child's side: blocks until the test says something; ends the process when the test closed the pipe.
#[allow(
    clippy::must_use_candidate,
    reason = "a child may wait for the word without caring what it is"
)]
pub fn child_hears() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line.trim_end().to_owned(),
        Ok(0) | Err(_) => std::process::exit(0),
    }
}
