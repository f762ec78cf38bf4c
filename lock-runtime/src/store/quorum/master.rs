//! One of the masters of a quorum, and whether it can vote at present.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{Moment, Mutex};
use crate::store::access::Access;
use crate::store::{StoreError, within};

use super::Quorum;

/// The pause before a master that does not answer is asked again. It doubles up to the second value.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One of the masters.
#[derive(Debug)]
pub(super) struct Master {
    /// Its address, for messages.
    pub(super) name: Box<str>,
    pub(super) access: Arc<Access>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The reason why it does not vote, as its last answer or the lack of one told.
    down: Option<StoreError>,
    /// Set while it gives no vote, since it may have forgotten some.
    closed: Option<Closed>,
    /// `true` while a task asks whether it answers.
    is_asked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    opens: Moment,
    /// The time at which it is asked again: another process may have opened it.
    asked_again: Moment,
}

impl Closed {
    fn of(left: Duration, now: Moment) -> Self {
        Self {
            opens: now.after(left),
            asked_again: now.after(left.min(LONGEST_PAUSE)),
        }
    }
}

impl State {
    fn is_open(&self, now: Moment) -> bool {
        self.down.is_none() && self.closed.is_none_or(|closed| closed.asked_again <= now)
    }
}

impl Master {
    pub(super) fn new(name: impl Into<Box<str>>, access: Access) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            access: Arc::new(access),
            state: Mutex::default(),
        })
    }

    /// Returns `true` if it is in reach and gives votes.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().is_open(self.access.now())
    }

    /// Returns `true` if it is in reach. It may be closed.
    pub(super) fn is_up(&self) -> bool {
        self.state.lock().down.is_none()
    }

    /// Lets it vote, after an operator has said that it may.
    pub(super) fn open(&self) {
        self.state.lock().closed = None;
    }

    /// Returns why it gives no vote at present.
    pub(super) fn reason(&self) -> Option<StoreError> {
        let state = self.state.lock();
        let left = state.closed.map(|closed| closed.opens.since(self.access.now()));
        match left.filter(|left| !left.is_zero()) {
            Some(left) => Some(StoreError::closed(left)),
            None => state.down.clone(),
        }
    }

    /// Notes what an error tells of it. Returns `true` if it gave votes until now.
    fn note(&self, error: &StoreError) -> bool {
        let now = self.access.now();
        let mut state = self.state.lock();
        let was_open = state.is_open(now);
        if let Some(left) = error.opens_in() {
            state.closed = Some(Closed::of(left, now));
        } else if error.is_permanent() {
            // A lasting refusal may concern one key, or one command.
            return false;
        } else {
            state.down = Some(error.clone());
        }
        was_open
    }
}

impl Quorum {
    /// Notes that a master has failed to answer, or has refused. Skips it from now on, where that is not
    /// only about one key, until it answers again.
    pub(super) fn has_failed(self: &Arc<Self>, at: usize, error: &StoreError) {
        let Some(master) = self.masters.get(at) else { return };
        if master.note(error) {
            self.changed.notify_waiters();
        }
        if !master.is_up() || error.is_permanent() {
            self.suspect(at);
        }
    }

    /// Asks a master whether it answers, on the lock thread, and if it does not, again and again until it
    /// does.
    pub(super) fn suspect(self: &Arc<Self>, at: usize) {
        let Some(master) = self.masters.get(at).cloned() else {
            return;
        };
        if std::mem::replace(&mut master.state.lock().is_asked, true) {
            return;
        }
        let (quorum, limit) = (Arc::downgrade(self), self.response_timeout);
        let host = self.host.clone();
        let timer = master.access.timer();
        let asks = {
            let (master, host) = (Arc::clone(&master), host.clone());
            async move {
                let mut pause = FIRST_PAUSE;
                loop {
                    let answer = within(&host, timer, limit, master.access.store.ping()).await;
                    let Some(quorum) = quorum.upgrade() else { return };
                    let (has_changed, is_down) = {
                        let now = master.access.now();
                        let mut state = master.state.lock();
                        let was_open = state.is_open(now);
                        state.down = match answer {
                            Err(error) if error.opens_in().is_none() => Some(error),
                            Err(error) => {
                                state.closed = error.opens_in().map(|left| Closed::of(left, now));
                                None
                            }
                            Ok(()) => None,
                        };
                        state.is_asked = state.down.is_some();
                        (was_open != state.is_open(now), state.is_asked)
                    };
                    if has_changed {
                        quorum.changed.notify_waiters();
                    }
                    if !is_down {
                        return;
                    }
                    drop(quorum);
                    tokio::select! {
                        () = host.sleep(timer, pause) => {}
                        () = master.access.back.notified() => {}
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        };
        if !host.spawn_by(timer, asks) {
            master.state.lock().is_asked = false;
        }
    }
}
