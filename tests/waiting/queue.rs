//! The queue on the server, and its waiters: calls of this process and of others.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{Backoff, LockError, LockGuard, LockManager, LockManagerBuilder, LockRequest, current};
use lock_tests::children::Line;
use lock_tests::{Action, Child, Command, PATIENCE, Proxy, Server, Stamp, eventually, eventually_some, lock_child};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// A lease that cannot end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// For how long one who was handed the lock has it before it has said a word.
pub(crate) const CLAIM: Duration = Duration::from_millis(1500);
/// The longest delay that a lost message or a dead waiter may cost here. It is two seconds at most on a machine that does nothing else, and
/// endless if nobody looks: the lock then stays where it is.
pub(crate) const DELAY: Duration = Duration::from_secs(15);
/// Within this time a server answers that is not meant to be silent.
const ANSWER: Duration = Duration::from_secs(10);

/// A manager that never gets a lock by trying again, and whose calls wait for as long as the test does.
pub(crate) fn patient(url: &str) -> LockManagerBuilder {
    let never = Duration::from_secs(1000);
    LockManager::builder(url)
        .backoff(Backoff::new(never, never))
        .default_lease(LONG)
        .default_wait(PATIENCE)
        .connect_timeout(ANSWER)
        .response_timeout(ANSWER)
}

/// [`patient`], connected.
pub(crate) async fn waiting(url: &str) -> LockManager {
    let locks = patient(url).build().unwrap();
    locks.check_connection().await.unwrap();
    locks
}

pub(crate) fn stored(key: &str) -> String {
    format!("dist_lock:{key}")
}

/// The key of a lock's queue.
pub(crate) fn queue(key: &str) -> String {
    format!("dist_lock:%lock-queue:{{{}}}", stored(key))
}

/// How many stand in a queue.
pub(crate) fn places(server: &Server, queue: &str) -> usize {
    server.ask(&["ZCOUNT", queue, "1", "+inf"])
}

/// Waits until so many stand in a lock's queue.
pub(crate) async fn stand(server: &Server, key: &str, count: usize) {
    let queue = queue(key);
    eventually(&format!("{count} in the queue for `{key}`"), || {
        let there = places(server, &queue) == count;
        async move { there }
    })
    .await;
}

/// The processes whose calls stand in a queue, where a place is `<claim>:<fence>:<process>:<value>`.
pub(crate) fn processes(server: &Server, queue: &str) -> HashSet<String> {
    let members: Vec<String> = server.ask(&["ZRANGEBYSCORE", queue, "1", "+inf"]);
    let process = |member: &String| member.split(':').nth(2).map(str::to_owned);
    members.iter().filter_map(process).collect()
}

/// Waits until calls of so many processes stand in a lock's queue. A process has several places there if its call in front is not polled
/// for a while: the next one then asks for one, too.
pub(crate) async fn all_stand(server: &Server, key: &str, count: usize) {
    let queue = queue(key);
    eventually(&format!("{count} processes in the queue for `{key}`"), || {
        let there = processes(server, &queue).len() == count;
        async move { there }
    })
    .await;
}

/// From here on none of a waiter's looks gets through, until the proxy heals: only the word that it has the lock can let it in. It asks then
/// whether that is true, and this gets through. Returns when the waiter listens, so that it hears the word.
pub(crate) async fn words_alone(proxy: &Proxy, key: &str) {
    settled(proxy, key).await;
    proxy.on_each(
        |command| command.is_script() && command.mentions("%lock-wake:"),
        Action::Hold,
    );
}

/// Releases while none of the waiter's looks gets through.
pub(crate) async fn let_in_by_word_alone(proxy: &Proxy, holder: LockGuard, call: &mut Call) {
    words_alone(proxy, holder.handle().key()).await;
    holder.release().await.unwrap();
    call.entered().await;
    proxy.heal();
}

/// Has the server learn the scripts of waiting, so that each is one request.
pub(crate) async fn learn(server: &Server) {
    let (holding, locks) = (waiting(&server.url()).await, waiting(&server.url()).await);
    let holder = holding.lock("known").acquire().await.unwrap();
    let mut known = Call::begin(locks.lock("known"));
    stand(server, "known", 1).await;
    holder.release().await.unwrap();
    known.entered().await;
    known.end().await.unwrap();
}

/// Whether a command takes a lock that was handed over, with or without a token: all other scripts of waiters name a channel, and a renewal has
/// fewer arguments.
pub(crate) fn takes(key: &str) -> impl Fn(&Command) -> bool + Send + use<> {
    let stored = stored(key);
    let others = "%lock-wake:";
    move |command| {
        command.is_script()
            && command.mentions(&stored)
            && !command.mentions(others)
            && matches!(
                (command.argument(2), command.arguments.len()),
                (Some("1"), 7) | (Some("2"), 8)
            )
    }
}

/// Whether anybody listens, to whatever channel.
pub(crate) fn subscribers(server: &Server) -> Vec<String> {
    let clients: String = server.ask(&["CLIENT", "LIST"]);
    let field = |client: &str, name: &str| {
        let value = client.split(' ').find_map(|field| field.strip_prefix(name));
        value.unwrap_or_default().to_owned()
    };
    let listens = |client: &&str| {
        ["sub=", "psub=", "ssub="]
            .iter()
            .any(|name| !["", "0"].contains(&field(client, name).as_str()))
    };
    clients
        .lines()
        .filter(listens)
        .map(|client| field(client, "id="))
        .collect()
}

/// Keeps a queue from going by itself, which it does five seconds after the last sign of life. What stands in it is to be given back, and
/// the last one takes it along. Only the time when its lock was left free goes by itself.
pub(crate) fn keep(server: &Server, queue: &str) {
    const KEEP: &str = "for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do \
        if member ~= 'free' then return redis.call('PERSIST', KEYS[1]) end end return 0";
    server.cmd(&["EVAL", KEEP, "1", queue]);
}

/// At last nothing is left of all the waiting: no key but the fencing counter, no channel, no subscription. No queue goes by itself.
pub(crate) async fn nothing_is_left(server: &Server) {
    let asked = Instant::now();
    loop {
        let mut left = server.keys();
        left.retain(|key| !key.ends_with("%lock-fence"));
        for queue in left.iter().filter(|key| key.contains("%lock-queue:")) {
            keep(server, queue);
        }
        left.extend(server.channels());
        left.extend(subscribers(server));
        if left.is_empty() {
            return;
        }
        assert!(asked.elapsed() < PATIENCE, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A call of this process. Its body goes on until it is told to end.
pub(crate) struct Call {
    entered: watch::Receiver<Option<Entry>>,
    last_poll: Arc<AtomicU64>,
    enough: Arc<Notify>,
    task: JoinHandle<Result<(), LockError>>,
}

/// The beginning of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Stamp,
    pub(crate) token: Option<u64>,
}

impl Call {
    pub(crate) fn begin(request: LockRequest) -> Self {
        Self::start(request, false)
    }

    /// With a fencing token.
    pub(crate) fn begin_fenced(request: LockRequest) -> Self {
        Self::start(request.fencing(true), true)
    }

    fn start(request: LockRequest, fenced: bool) -> Self {
        let (tell, entered) = watch::channel(None);
        let (enough, last_poll) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
        let work = {
            let (enough, last_poll) = (Arc::clone(&enough), Arc::clone(&last_poll));
            async move {
                let at = Stamp::now();
                let token = if fenced {
                    Some(current().unwrap().fencing_token().await.unwrap().get())
                } else {
                    None
                };
                tell.send_replace(Some(Entry { at, token }));
                let mut enough = std::pin::pin!(enough.notified());
                loop {
                    last_poll.store(Stamp::now().as_nanos(), Ordering::SeqCst);
                    if tokio::time::timeout(Duration::from_millis(1), &mut enough)
                        .await
                        .is_ok()
                    {
                        return;
                    }
                }
            }
        };
        Self {
            entered,
            last_poll,
            enough,
            task: tokio::spawn(async move {
                let ended = request.run(work).await;
                if let Err(error) = &ended {
                    // For whoever waits for something else in vain.
                    eprintln!("a call has ended: {error:?}");
                }
                ended
            }),
        }
    }

    /// Waits until the body begins.
    pub(crate) async fn entered(&mut self) -> Entry {
        let entered = tokio::time::timeout(PATIENCE, self.entered.wait_for(Option::is_some)).await;
        let entered = entered.expect("it never got the lock");
        entered.expect("it ended without the lock").unwrap()
    }

    pub(crate) fn has_entered(&self) -> bool {
        self.entered.borrow().is_some()
    }

    pub(crate) fn last_poll(&self) -> Stamp {
        Stamp::from_nanos(self.last_poll.load(Ordering::SeqCst))
    }

    /// Lets the body end, and waits until the call has.
    pub(crate) async fn end(self) -> Result<(), LockError> {
        self.enough.notify_one();
        self.over().await
    }

    /// Waits until the call has ended by itself.
    pub(crate) async fn over(self) -> Result<(), LockError> {
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("the call never ended").unwrap()
    }

    /// Drops the call.
    pub(crate) async fn cancel(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()), "it had ended");
    }
}

/// Waits until a call of this process has the lock, which must be within the longest delay after `since`.
pub(crate) async fn soon(call: &mut Call, since: Stamp) {
    let delay = call.entered().await.at.calm_since(since);
    assert!(delay < DELAY, "it came only after {delay:?}");
}

/// Whether a command begins to listen to a channel.
pub(crate) fn subscribes(command: &Command) -> bool {
    command.is("SUBSCRIBE") || command.is("SSUBSCRIBE")
}

/// Whether a command is a request to stand in a lock's queue, or a later one about that place.
pub(crate) fn joins(key: &str) -> impl Fn(&Command) -> bool + Send + use<> {
    let queue = queue(key);
    move |command| command.is_script() && command.mentions(&queue) && command.mentions("%lock-wake:")
}

/// Waits until a process behind a proxy stands in a lock's queue, as the first to use that proxy, and knows it: then it sends signs of life, by
/// the connection that listens. What breaks before that is an error, after which a call tries again.
pub(crate) async fn settled(proxy: &Proxy, key: &str) {
    let listens = proxy.wait_for("a subscription", subscribes).await.connection;
    let (joins, what) = (joins(key), format!("a sign of life about `{key}`"));
    proxy
        .wait_for(&what, |command| {
            joins(command) && command.connection == listens && command.reply.is_some()
        })
        .await;
}

/// Another process that takes and waits for locks.
pub(crate) struct Other(pub(crate) Child);

impl Other {
    pub(crate) fn on(url: &str) -> Self {
        Self(lock_child!("contend", url, "patiently").spawn())
    }

    /// One that tries again by itself after errors.
    pub(crate) fn trying(url: &str) -> Self {
        Self(lock_child!("contend", url, "trying").spawn())
    }

    /// Calls for a lock with a long lease.
    pub(crate) fn ask(&mut self, name: &str, key: &str) {
        self.ask_with(name, key, LONG, "-");
    }

    /// Flags: `t` takes a fencing token, `f` is fair.
    pub(crate) fn ask_with(&mut self, name: &str, key: &str, lease: Duration, flags: &str) {
        let (lease, wait) = (lease.as_millis(), PATIENCE.as_millis());
        self.0.say(&format!("ask {name} {key} {lease} {wait} {flags}"));
    }

    /// The first line that begins so, whatever has been read before.
    async fn said(&self, start: &str) -> Line {
        let what = format!("a line `{start}…` from the other process");
        eventually_some(&what, || {
            let said = self.0.lines().into_iter().find(|line| line.text.starts_with(start));
            async move { said }
        })
        .await
    }

    /// Waits until the body of a call begins.
    pub(crate) async fn got(&self, name: &str) -> Entry {
        let line = self.said(&format!("got {name} ")).await;
        let [_, token, at] = line.words()[..] else {
            panic!("{line:?}")
        };
        Entry {
            at: at.parse().unwrap(),
            token: token.parse().ok(),
        }
    }

    /// Whether the body of a call has begun so far.
    pub(crate) fn has(&self, name: &str) -> bool {
        let got = format!("got {name} ");
        self.0.lines().iter().any(|line| line.text.starts_with(&got))
    }

    /// Takes the lock.
    pub(crate) async fn hold(&mut self, name: &str, key: &str) -> Entry {
        self.ask(name, key);
        self.got(name).await
    }

    /// Lets a body end, without waiting for it.
    pub(crate) fn free(&mut self, name: &str) {
        self.0.say(&format!("free {name}"));
    }

    /// Drops a call.
    pub(crate) async fn cancel(&mut self, name: &str) {
        self.0.say(&format!("cancel {name}"));
        self.said(&format!("cancelled {name}")).await;
    }

    /// Waits until a call has ended, and tells how, in a word, and when its body was last polled.
    pub(crate) async fn ended(&self, name: &str) -> (String, Stamp) {
        let line = self.said(&format!("ended {name} ")).await;
        let [_, outcome, last_poll] = line.words()[..] else {
            panic!("{line:?}")
        };
        (outcome.to_owned(), last_poll.parse().unwrap())
    }
}
