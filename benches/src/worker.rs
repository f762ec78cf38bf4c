//! The other processes of a scenario: the bench itself, run again with `child`, and controlled by
//! lines on its standard input.

use std::process::Stdio;
use std::time::Duration;

use lock_tests::Stamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{Error, Result, error};

/// How long a child may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one may take that is a peer. Not all of them come back, and the run is to go on without those.
pub(crate) const PEER_PATIENCE: Duration = Duration::from_secs(5);

/// A child process; killed when dropped, and it ends by itself when its standard input does.
pub(crate) struct Worker {
    _process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    patience: Duration,
}

impl Worker {
    /// Starts a child with this job, and waits until it is ready.
    pub(crate) async fn start(job: &str, arguments: &[String]) -> Result<Self> {
        Self::start_within(PATIENCE, job, arguments).await
    }

    /// Starts a child that is killed, with an error, if an answer takes longer.
    pub(crate) async fn start_within(patience: Duration, job: &str, arguments: &[String]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["child", job])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().ok_or("a child without standard input")?;
        let output = process.stdout.take().ok_or("a child without standard output")?;
        let mut worker = Self {
            _process: process,
            input,
            output: BufReader::new(output),
            patience,
        };
        worker.hear("ready").await?;
        Ok(worker)
    }

    pub(crate) async fn say(&mut self, line: &str) -> Result {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// The rest of the next line, which must begin with that word.
    pub(crate) async fn hear(&mut self, word: &str) -> Result<String> {
        let mut line = String::new();
        tokio::time::timeout(self.patience, self.output.read_line(&mut line))
            .await
            .map_err(|_| no_answer(self.patience))??;
        match line.trim_end().strip_prefix(word) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => Err(error(format!("a child said {line:?} where {word:?} was due"))),
        }
    }

    /// A number after that word.
    pub(crate) async fn hear_number(&mut self, word: &str) -> Result<u64> {
        Ok(self.hear(word).await?.parse()?)
    }

    /// What the child wrote by [`write()`].
    pub(crate) async fn records(&mut self) -> Result<Vec<Record>> {
        let number = usize::try_from(self.hear_number("records").await?)?;
        let mut bytes = vec![0; number * Record::SIZE];
        tokio::time::timeout(self.patience, self.output.read_exact(&mut bytes))
            .await
            .map_err(|_| no_answer(self.patience))??;
        bytes.chunks_exact(Record::SIZE).map(Record::decode).collect()
    }
}

/// What stands in the table of one that hangs.
pub(crate) fn no_answer(within: Duration) -> Error {
    error(format!("hangs: no answer within {} s", within.as_secs()))
}

/// One section of a task, or one that it was still waiting for at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Unique in its process; among processes once [`contest`](crate::contest) has numbered them.
    pub(crate) task: u32,
    pub(crate) lock: u32,
    pub(crate) asked: Stamp,
    /// Zero if it was not.
    pub(crate) granted: Stamp,
    pub(crate) left: Stamp,
}

impl Record {
    const SIZE: usize = 32;

    pub(crate) fn was_granted(&self) -> bool {
        self.granted != Stamp::default()
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.task.to_le_bytes());
        to.extend(self.lock.to_le_bytes());
        for stamp in [self.asked, self.granted, self.left] {
            to.extend(stamp.as_nanos().to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (numbers, stamps) = bytes.split_at(8);
        let (task, lock) = numbers.split_at(4);
        let stamp = |at: usize| -> Result<Stamp> {
            let bytes = stamps.chunks_exact(8).nth(at).ok_or("a record too short")?;
            Ok(Stamp::from_nanos(u64::from_le_bytes(bytes.try_into()?)))
        };
        Ok(Self {
            task: u32::from_le_bytes(task.try_into()?),
            lock: u32::from_le_bytes(lock.try_into()?),
            asked: stamp(0)?,
            granted: stamp(1)?,
            left: stamp(2)?,
        })
    }
}

/// In a child: a line for the parent.
pub(crate) fn says(line: impl std::fmt::Display) {
    println!("{line}");
}

/// In a child: the next line of the parent; `None` when it has gone.
pub(crate) fn hears() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// In a child: hands all records over.
pub(crate) fn write(records: &[Record]) -> Result {
    use std::io::Write;

    let mut bytes = Vec::with_capacity(records.len() * Record::SIZE);
    for record in records {
        record.encode(&mut bytes);
    }
    says(format_args!("records {}", records.len()));
    let mut output = std::io::stdout().lock();
    output.write_all(&bytes)?;
    output.flush()?;
    Ok(())
}

/// In a child: the argument at that place.
pub(crate) fn argument<T: std::str::FromStr>(arguments: &[String], at: usize) -> Result<T>
where
    Error: From<T::Err>,
{
    Ok(arguments.get(at).ok_or("an argument is missing")?.parse()?)
}
