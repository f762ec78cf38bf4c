# Faults that show that each rule of the judge finds what it is for. Read by ./planted --rules, see rules.list.

plant valid-for-twice-the-lease lock-runtime/src/hold/margins.rs \
    'lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)' \
    'lease.saturating_mul(2).saturating_sub(Self::drift(lease)).saturating_sub(self.skew)'

plant valid-for-half-the-lease lock-runtime/src/hold/margins.rs \
    'lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)' \
    '(lease / 2).saturating_sub(Self::drift(lease)).saturating_sub(self.skew)'

plant tokens-of-the-same-second lock-runtime/src/store/redis/ops/next_fence.lua \
    "return redis.call('GET', counter)" \
    "return string.format('%.0f', micros - micros % 1000000)"

plant ok-for-a-lost-lock lock-runtime/src/hold/guard/mod.rs \
    'Some(cause @ EndCause::Lost(_)) => Some(self.held.error(cause, true)),' \
    'Some(cause @ EndCause::Lost(_)) if false => Some(self.held.error(cause, true)),'

plant polled-after-the-deadline lock-runtime/src/hold/tenure.rs \
    '} else if now >= self.deadline() {' \
    '} else if now >= self.deadline().after(Duration::from_secs(3)) {'

plant attempts-beyond-the-wait lock-runtime/src/acquire/attempt.rs \
    'limit.min(self.left(now))' \
    'limit'

plant last-come-first-served lock-runtime/src/acquire/local_queue.rs \
    'let mut waiting = self.waiting.iter();' \
    'let mut waiting = self.waiting.iter().rev();'

plant scripts-never-sent lock-runtime/src/store/redis/connection/eval.rs \
    'Err(error) if is_missing_script(&error) =>' \
    'Err(error) if is_missing_script(&error) && keys.is_empty() =>'

plant released-once lock-runtime/src/hold/upkeep/releaser.rs \
    'Err(error) => tracing::debug!(key = &*self.stake.key, %error, "release failed, trying again"),' \
    'Err(error) => return tracing::debug!(key = &*self.stake.key, %error, "release failed, trying again"),'

plant waits-for-ever lock-runtime/src/acquire/attempt.rs \
    '() = self.sleep(left) => None,' \
    '() = std::future::pending() => None,'

plant places-without-a-look lock-runtime/src/store/redis/queue/look.rs \
    'let mut pause = next_look(remaining);' \
    'let mut pause = next_look(remaining) * 1_000;'
