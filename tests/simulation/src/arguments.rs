//! What the program is asked for.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::plan::{Shape, Without};

pub const USAGE: &str = "\
simulate                           seeds from a fresh one on, for a minute
simulate --hours H                 until H hours were simulated
simulate --minutes M               for M minutes
simulate --seeds A..B              these seeds
simulate --seed N [--without P,…]  one seed, without some parts of it; a failing one is told as a story
simulate --seed N --trace          everything that happens
simulate --kept FILE               the seeds of this file
simulate --twice A..B              each of these seeds twice; both must do the same

  --crowd           three processes with eight tasks each that want the same two locks
  --dense           many faults of few kinds, and few processes that want one or two locks all the time
  --sentinel        three servers that sentinels watch, and failovers
  --cluster         a cluster of three masters and three replicas, whose slots move, and failovers
  --jobs N          at once; as many as there are processors by default
  --append FILE     adds a line with the commit, the sources, the seeds and what came of them
  --cover           fails unless every feature met every fault
  --rule R          counts violations of this rule only, such as Alone
  --stop            stops at the first violation
  --no-story        does not shrink a failing seed";

pub struct Arguments {
    pub task: Task,
    pub jobs: usize,
}

pub enum Task {
    Help,
    One {
        seed: u64,
        shape: Shape,
        without: Without,
        trace: bool,
    },
    Twice(Range<u64>, Shape),
    Kept(PathBuf),
    Many(Limits),
}

/// How long a campaign is.
pub struct Limits {
    pub shape: Shape,
    /// The only rule that counts.
    pub rule: Option<String>,
    pub seeds: Range<u64>,
    /// The real time.
    pub time: Option<Duration>,
    /// The simulated time.
    pub simulated: Option<Duration>,
    pub append: Option<PathBuf>,
    pub must_cover: bool,
    pub stops: bool,
    pub tells: bool,
}

impl Arguments {
    /// Reads the arguments of the program.
    ///
    /// # Errors
    /// Fails if they are not understood.
    pub fn parse() -> Result<Self, lexopt::Error> {
        let mut parser = lexopt::Parser::from_env();
        let mut jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut seed, mut without, mut trace) = (None, Without::default(), false);
        let (mut twice, mut kept, mut seeds, mut help) = (None, None, None, false);
        let mut limits = Limits {
            shape: Shape::Drawn,
            rule: None,
            seeds: 0..0,
            time: None,
            simulated: None,
            append: None,
            must_cover: false,
            stops: false,
            tells: true,
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Long("seed") => seed = Some(parser.value()?.parse()?),
                Long("without") => without = Without::parse(&parser.value()?.string()?),
                Long("trace") => trace = true,
                Long("twice") => twice = Some(range(&parser.value()?.string()?)?),
                Long("kept") => kept = Some(PathBuf::from(parser.value()?)),
                Long("seeds") => seeds = Some(range(&parser.value()?.string()?)?),
                Long("hours") => limits.simulated = Some(span(&mut parser, 3_600.0)?),
                Long("minutes") => limits.time = Some(span(&mut parser, 60.0)?),
                Long("jobs") => jobs = parser.value()?.parse()?,
                Long("append") => limits.append = Some(parser.value()?.into()),
                Long("cover") => limits.must_cover = true,
                Long("no-story") => limits.tells = false,
                Long("crowd") => limits.shape = Shape::Crowd,
                Long("dense") => limits.shape = Shape::Dense,
                Long("sentinel") => limits.shape = Shape::Sentinel,
                Long("cluster") => limits.shape = Shape::Cluster,
                Long("rule") => limits.rule = Some(parser.value()?.string()?),
                Long("stop") => limits.stops = true,
                Short('h') | Long("help") => help = true,
                _ => return Err(argument.unexpected()),
            }
        }
        if let Some(file) = kept {
            let task = Task::Kept(file);
            return Ok(Self { task, jobs });
        }
        let task = match (seed, twice) {
            _ if help => Task::Help,
            (Some(seed), None) => Task::One {
                seed,
                shape: limits.shape,
                without,
                trace,
            },
            (None, Some(seeds)) => Task::Twice(seeds, limits.shape),
            (Some(_), Some(_)) => return Err("give --seed or --twice".into()),
            (None, None) => {
                let is_bounded = seeds.is_some() || limits.simulated.is_some();
                // A fresh one for each run, far from those of others.
                let first = fastrand::u64(..) >> 16;
                limits.seeds = seeds.unwrap_or(first..u64::MAX);
                if !is_bounded && limits.time.is_none() {
                    limits.time = Some(Duration::from_secs(60));
                }
                Task::Many(limits)
            }
        };
        Ok(Self { task, jobs })
    }
}

fn span(parser: &mut lexopt::Parser, unit: f64) -> Result<Duration, lexopt::Error> {
    let count: f64 = parser.value()?.parse()?;
    Duration::try_from_secs_f64(count * unit).map_err(|error| error.to_string().into())
}

fn range(text: &str) -> Result<Range<u64>, lexopt::Error> {
    let ends = text.split_once("..");
    let ends = ends.and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    let (first, end) =
        ends.ok_or_else(|| lexopt::Error::from(format!("`{text}` is no range of seeds such as `1..1000`")))?;
    Ok(first..end)
}
