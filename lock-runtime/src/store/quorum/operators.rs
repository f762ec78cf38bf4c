//! The views and actions of operators: at all masters, with the answer of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::requests::Requests;
use crate::store::holder::{Holder, without_variant};
use crate::store::info::{LockInfo, MasterInfo};
use crate::store::{LockPage, StoreError};

/// The number of low bits of a position in a list that are the master's own.
const POSITION_BITS: u32 = 52;

impl Quorum {
    /// Asks every master in reach. Returns the answer of each master, or the reason why it has given none.
    async fn ask_each<T: Send + 'static>(
        self: &Arc<Self>,
        mut ask: impl FnMut(Arc<super::Master>) -> super::requests::Request<Result<T, StoreError>>,
    ) -> Vec<Result<T, StoreError>> {
        let mut under_way = Requests::with_capacity(self.masters.len());
        for (at, master) in self.masters.iter().enumerate() {
            if master.is_up() {
                under_way.add(at, ask(Arc::clone(master)));
            }
        }
        let mut said: Vec<Option<T>> = self.masters.iter().map(|_| None).collect();
        self.collect(&mut under_way, |at, answer| {
            if let Some(place) = said.get_mut(at) {
                *place = Some(answer);
            }
            false
        })
        .await;
        let said = self.masters.iter().zip(said).map(|(master, said)| {
            said.ok_or_else(|| {
                let reason = master.reason();
                reason.unwrap_or_else(|| StoreError::unknown("no answer in time"))
            })
        });
        said.collect()
    }

    pub(super) async fn look_at(self: &Arc<Self>, key: &str) -> Result<Option<LockInfo>, StoreError> {
        let whole: Arc<str> = key.into();
        let said = self
            .ask_each(|master| {
                let key = Arc::clone(&whole);
                Box::pin(async move { master.access.store.inspect(&key).await })
            })
            .await;
        if said.iter().filter(|said| said.is_ok()).count() < self.majority() {
            return Err(self.too_few(None));
        }
        Ok(self.merged(key, said))
    }

    /// Returns one view of a lock from those of the masters. Its holder is the one with a majority of the votes.
    fn merged(&self, key: &str, said: Vec<Result<Option<LockInfo>, StoreError>>) -> Option<LockInfo> {
        let mut info = LockInfo::free(key);
        let mut fences = Vec::new();
        let mut votes: BTreeMap<String, Vec<Option<Duration>>> = BTreeMap::new();
        for (master, said) in self.masters.iter().zip(said) {
            let mut of_master = MasterInfo::of(&*master.name);
            match said {
                Ok(None) => {}
                Ok(Some(said)) => {
                    info.waiters += said.waiters;
                    fences.extend(said.last_fence);
                    for holding in said.holders {
                        let value = without_variant(holding.holder.text()).to_owned();
                        of_master.holders.push(crate::store::info::HolderInfo {
                            holder: Holder::of(&*value),
                            remaining: holding.remaining,
                        });
                        votes.entry(value).or_default().push(holding.remaining);
                    }
                }
                Err(error) => of_master.error = Some(error.cause().to_string().into()),
            }
            info.masters.push(of_master);
        }
        // A token is given out once a majority knows it.
        fences.sort_unstable();
        info.last_fence = fences.iter().rev().nth(self.majority() - 1).copied();
        for (value, mut leases) in votes {
            // The lock is held until the majority-th latest vote ends. A vote without an expiry is the
            // latest.
            leases.sort_by_key(|lease| std::cmp::Reverse(lease.unwrap_or(Duration::MAX)));
            if let Some(remaining) = leases.get(self.majority() - 1) {
                info.add(Holder::of(value), *remaining);
            }
        }
        let is_anywhere = info.masters.iter().any(|master| !master.holders.is_empty());
        (is_anywhere || info.waiters > 0).then_some(info)
    }

    /// Returns a page of one master's locks, each as all masters see it. Lists so many masters that the others
    /// are too few for a majority: so each lock that a majority has is at one of them.
    pub(super) async fn list_page(self: &Arc<Self>, pattern: &str, from: u64) -> Result<LockPage, StoreError> {
        let asked = self.masters.len() - self.majority() + 1;
        let up = self.masters.iter().enumerate().filter(|(_, master)| master.is_up());
        let up: Vec<_> = up.take(asked).collect();
        if up.len() < asked {
            return Err(self.too_few(None));
        }
        let start = from >> POSITION_BITS;
        let mut up = up.into_iter().skip_while(|(at, _)| (*at as u64) < start);
        let Some((at, master)) = up.next() else {
            return Ok(LockPage::default());
        };
        let is_same = at as u64 == start;
        let position = if is_same { from & ((1 << POSITION_BITS) - 1) } else { 0 };
        let page = master.access.store.list(pattern, position).await?;
        let mut locks = Vec::with_capacity(page.locks.len());
        for found in page.locks {
            locks.extend(self.look_at(&found.key).await?);
        }
        let next = if page.next == 0 {
            up.next().map_or(0, |(at, _)| (at as u64) << POSITION_BITS)
        } else if page.next >> POSITION_BITS == 0 {
            (at as u64) << POSITION_BITS | page.next
        } else {
            return Err(StoreError::permanent(
                "the server's position in its keys is too large to go on from",
            ));
        };
        Ok(LockPage { locks, next })
    }

    pub(super) async fn take_away(self: &Arc<Self>, key: &str) -> Result<bool, StoreError> {
        let whole: Arc<str> = key.into();
        let said = self
            .ask_each(|master| {
                let key = Arc::clone(&whole);
                Box::pin(async move { master.access.store.force_release(&key).await })
            })
            .await;
        let was_held = said.iter().any(|said| matches!(said, Ok(true)));
        if said.iter().filter(|said| said.is_ok()).count() < self.majority() {
            return Err(self.too_few(None).into_unknown());
        }
        Ok(was_held)
    }

    /// Lets all masters vote at once.
    pub(super) async fn open_all(self: &Arc<Self>) -> Result<bool, StoreError> {
        let said = self
            .ask_each(|master| Box::pin(async move { master.access.store.open_now().await }))
            .await;
        for (master, said) in self.masters.iter().zip(&said) {
            if said.is_ok() {
                master.open();
            }
        }
        self.changed.notify_waiters();
        if said.iter().filter(|said| said.is_ok()).count() < self.majority() {
            return Err(self.too_few(None).into_unknown());
        }
        Ok(said.into_iter().any(Result::unwrap_or_default))
    }

    pub(super) async fn look_at_setup(self: &Arc<Self>, min_replicas: u32) -> Result<Vec<String>, StoreError> {
        let said = self
            .ask_each(|master| Box::pin(async move { master.access.store.check_setup(min_replicas).await }))
            .await;
        let mut advice = Vec::new();
        for (master, said) in self.masters.iter().zip(said) {
            match said {
                Ok(said) => advice.extend(said.into_iter().map(|said| format!("{}: {said}", master.name))),
                Err(error) => advice.push(format!("{}: {error}", master.name)),
            }
        }
        Ok(advice)
    }
}
