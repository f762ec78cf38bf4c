//! The executable specification: what one lock answers in any mode, in as few words as possible.

use lock_runtime::store::Ownership;

/// A value that was used, and is never used for another acquisition.
pub(super) type Id = usize;

/// The head of a value, which names its mode: `r`, `w`, `s` with the number of permits, `o` with the owner, or nothing for
/// an exclusive lock.
pub(super) type Class = &'static str;

pub(super) const EXCLUSIVE: Class = "";

#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) id: Id,
    class: Class,
    pub(super) until: u32,
    /// Released, and there for the rest of its minimum hold.
    kept: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: Id,
    pub(super) class: Class,
    /// The client whose latest value this becomes with the lock.
    pub(super) client: usize,
    pub(super) lease: u32,
}

#[derive(Debug, Default)]
pub(super) struct Lock {
    pub(super) holds: Vec<Hold>,
    line: Vec<Waiter>,
    /// The token of the owner that has the lock.
    token: Option<u64>,
}

/// Returns whether a holder of this class can share a lock with holders of the other classes.
fn may_join(class: Class, others: &[Class]) -> bool {
    match class.chars().next() {
        None | Some('w') => others.is_empty(),
        Some('r' | 'o') => others.iter().all(|other| *other == class),
        Some('s') => {
            let permits = |class: &Class| class.strip_prefix('s').map(|permits| permits.parse::<usize>().unwrap());
            let all: Option<Vec<usize>> = others.iter().chain([&class]).map(permits).collect();
            all.is_some_and(|all| all.iter().all(|permits| all.len() <= *permits))
        }
        Some(unknown) => panic!("{unknown:?}"),
    }
}

/// Returns whether holders of this class take fencing tokens.
pub(super) fn is_fenced(class: Class) -> bool {
    class == EXCLUSIVE || class.starts_with(['w', 'o'])
}

impl Lock {
    fn may_join(&self, class: Class) -> bool {
        let others: Vec<Class> = self.holds.iter().map(|hold| hold.class).collect();
        may_join(class, &others)
    }

    /// Returns whether an owner already has the lock, whose holders enter past the line.
    fn may_pass(&self, class: Class) -> bool {
        class.starts_with('o') && !self.holds.is_empty() && self.may_join(class)
    }

    pub(super) fn may_enter(&self, class: Class) -> bool {
        self.may_pass(class) || (self.line.is_empty() && self.may_join(class))
    }

    pub(super) fn holds(&self, id: Id) -> bool {
        self.holds.iter().any(|hold| hold.id == id && !hold.kept)
    }

    pub(super) fn is_kept(&self, id: Id) -> bool {
        self.holds.iter().any(|hold| hold.id == id && hold.kept)
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns the answer to a renewal, a check, or a request for a token.
    pub(super) fn ownership(&self, id: Id, class: Class) -> Ownership {
        if self.holds(id) {
            Ownership::Owned
        } else if self.may_join(class) {
            Ownership::Gone
        } else {
            Ownership::Foreign
        }
    }

    /// Returns the answer to a release. Only that of an exclusive lock tells about other holders.
    pub(super) fn release_answer(&self, id: Id, class: Class) -> Ownership {
        match self.ownership(id, class) {
            Ownership::Foreign if class != EXCLUSIVE => Ownership::Gone,
            answer => answer,
        }
    }

    pub(super) fn remove(&mut self, mut which: impl FnMut(&Hold) -> bool) {
        self.holds.retain(|hold| !which(hold));
        if self.holds.is_empty() {
            self.token = None;
        }
    }

    /// Grants the lock, or sets the lease of a holder anew.
    pub(super) fn put(&mut self, id: Id, class: Class, until: u32) {
        self.holds.retain(|hold| hold.id != id || hold.kept);
        self.holds.push(Hold {
            id,
            class,
            until,
            kept: false,
        });
    }

    /// Releases the lock. With `keep`, the hold stays until then.
    pub(super) fn release(&mut self, id: Id, keep: Option<u32>) {
        match (keep, self.holds.iter_mut().find(|hold| hold.id == id && !hold.kept)) {
            (Some(keep), Some(hold)) => (hold.until, hold.kept) = (keep, true),
            (None, Some(_)) => self.remove(|hold| hold.id == id && !hold.kept),
            (_, None) => {}
        }
    }

    pub(super) fn join(&mut self, waiter: Waiter) {
        self.line.push(waiter);
    }

    /// Takes the `nth` waiter out of the line.
    pub(super) fn leave(&mut self, nth: usize) -> Option<Waiter> {
        let nth = nth.checked_rem(self.line.len())?;
        Some(self.line.remove(nth))
    }

    /// Grants the lock to the waiters that may have it: from the front of the line as many as can share it, and all of
    /// an owner that then has it.
    pub(super) fn serve(&mut self, now: u32) -> Vec<Waiter> {
        let mut entered = Vec::new();
        let mut blocked = false;
        for waiter in std::mem::take(&mut self.line) {
            blocked |= !self.may_join(waiter.class);
            if !blocked || self.may_pass(waiter.class) {
                self.put(waiter.id, waiter.class, now + waiter.lease);
                entered.push(waiter);
            } else {
                self.line.push(waiter);
            }
        }
        entered
    }

    /// Checks the token that a holder of this class was given against the last one of all locks: each is larger, except
    /// that holders for one owner have the same.
    pub(super) fn take_token(&mut self, class: Class, token: u64, last: &mut u64) {
        let is_owner = class.starts_with('o');
        if let Some(shared) = self.token.filter(|_| is_owner) {
            assert_eq!(token, shared, "holders for one owner have different tokens");
            return;
        }
        assert!(token > *last, "token {token} after {last}");
        *last = token;
        if is_owner {
            self.token = Some(token);
        }
    }
}
