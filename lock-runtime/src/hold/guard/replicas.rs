//! Waits until replicas have a lock, before its body begins.

use crate::error::LockError;
use crate::hold::Hold;
use crate::hold::guard::{Guard, LockGuard};
use crate::store::{Replicated, StoreError};

impl Guard {
    /// Returns the guard if replicas have [been reached](Hold::reach_replicas). Otherwise the lock is
    /// given back.
    ///
    /// Cancel safe: dropping it gives the lock back.
    pub(crate) async fn if_reached(self, reached: Result<(), LockError>) -> Result<Self, LockError> {
        match reached {
            Ok(()) => Ok(self),
            Err(error @ LockError::TooFewReplicas { .. }) => {
                // The store has just answered, so the caller finds the lock free.
                drop(LockGuard::new(self).release().await);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

impl Hold {
    /// Waits until `wanted` replicas have the lock. Fails if too few of them have it within the
    /// store's time limit, or if nothing is known of them within two response time-outs.
    ///
    /// Cancel safe.
    pub(crate) async fn reach_replicas(&self, wanted: u32) -> Result<(), LockError> {
        let tenure = &*self.tenure;
        if tenure.is_in_replicas(wanted) {
            return Ok(());
        }
        let (key, manager) = (|| tenure.name(), &tenure.manager);
        let requests: Vec<_> = tenure.renew_requests(Some(tenure.time_to_live())).collect();
        let answer = manager.store().wait_for_replicas(&requests, wanted);
        let (timer, most) = (manager.access.timer(), manager.replicas_within());
        let Some(answer) = manager.host().timeout(timer, most, answer).await else {
            return Err(self.replicas_are_late());
        };
        match answer {
            Ok(Replicated::To(replicas)) if replicas >= wanted => {
                tenure.has_reached(replicas);
                // It may have expired at the replicas before they answered.
                self.check_deadline()
                    .map_or(Ok(()), |cause| Err(self.error(cause, false)))
            }
            Ok(Replicated::To(acknowledged)) => Err(LockError::TooFewReplicas {
                key: key(),
                acknowledged,
                wanted,
            }),
            Ok(Replicated::NotOwned(ownership)) => {
                let cause = self.end_cause().unwrap_or_else(|| self.found(&ownership));
                tenure.end_with(cause);
                Err(self.error(cause, false))
            }
            Err(source) => Err(LockError::Store {
                key: key(),
                began: false,
                source,
            }),
        }
    }

    /// Returns the error of a call that has waited for replicas for as long as it may.
    pub(crate) fn replicas_are_late(&self) -> LockError {
        let most = self.tenure.manager.replicas_within();
        LockError::Store {
            key: self.tenure.name(),
            began: false,
            source: StoreError::unknown(format!("nothing about the replicas within {most:?}")),
        }
    }
}
