# Faults that show that each rule of the judge finds what it is for, see rules.list, and those that tests/planted.d does not have. Read by ./planted.

plant valid-for-twice-the-lease lock-runtime/src/hold/margins.rs \
    'lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)' \
    'lease.saturating_mul(2).saturating_sub(Self::drift(lease)).saturating_sub(self.skew)'

plant valid-for-half-the-lease lock-runtime/src/hold/margins.rs \
    'lease.saturating_sub(Self::drift(lease)).saturating_sub(self.skew)' \
    '(lease / 2).saturating_sub(Self::drift(lease)).saturating_sub(self.skew)'

plant tokens-of-the-same-second lock-runtime/src/store/redis/ops/next_fence.lua \
    "return token or redis.call('GET', counter)" \
    "return string.format('%.0f', micros - micros % 1000000)"

plant lost-but-not-ended lock-runtime/src/hold/upkeep/watchdog.rs \
    'contained(|| held.end_with(EndCause::Lost(reason)));
                return None;' \
    'let _ = reason;
                return None;'

plant polled-after-the-deadline lock-runtime/src/hold/tenure.rs \
    '} else if now >= self.deadline() {' \
    '} else if now >= self.deadline().after(Duration::from_secs(3)) {'

plant attempts-beyond-the-wait lock-runtime/src/acquire/attempt.rs \
    'limit.min(self.left(now))' \
    'limit'

plant last-come-first-served lock-runtime/src/store/redis/queue/queue_first.lua \
    "redis.pcall('ZRANGEBYSCORE', queue, 1, '+inf', 'LIMIT', 0, 1)" \
    "redis.pcall('ZREVRANGEBYSCORE', queue, '+inf', 1, 'LIMIT', 0, 1)"

plant scripts-never-sent lock-runtime/src/store/redis/connection/slot.rs \
    'Err(error) if failure::is_missing_script(&error) =>' \
    'Err(error) if failure::is_missing_script(&error) && lock == "none" =>'

plant released-once lock-runtime/src/store/abandon.rs \
    'let was_answered =' \
    'if error.effect() != Effect::None || !error.is_permanent() {
                    return ReleaseAttempt::Done;
                }
                let was_answered ='

plant waits-for-ever lock-runtime/src/acquire/attempt.rs \
    '() = self.sleep(left) => None,' \
    '() = std::future::pending() => None,'

plant rests-for-its-whole-wait lock-runtime/src/acquire/attempt.rs \
    'Some(pause.min(left))' \
    'Some(pause.max(left))'

plant tries-without-a-pause lock-runtime/src/acquire/attempt.rs \
    'Some(pause.min(left))' \
    'Some(pause.min(left).min(Duration::from_millis(1)))'

# For each of these, either part alone is made up for by the other.
plant looks-without-a-pause lock-runtime/src/store/redis/queue/heartbeat.rs \
    'let pause = FAILED + FAILED_MORE.pause(queue.host(), self.failures);' \
    'let pause = Duration::from_millis(1).min(FAILED + FAILED_MORE.pause(queue.host(), self.failures));'
also looks-without-a-pause lock-runtime/src/store/redis/connection/slot.rs \
    'self.pause = if is_steady {' \
    'self.pause = if is_steady || true {'

plant renewed-late lock-runtime/src/hold/upkeep/watchdog.rs \
    'plan.hurry(self.watchdog.clock.now());' \
    ''
also renewed-late lock-runtime/src/hold/upkeep/watchdog.rs \
    'let longest = (held.lease / 10).min(held.deadline().since(now) / 4);' \
    'let longest = held.lease / 10;'

# Faults in following a master that only many servers show.
plant former-connections-kept lock-runtime/src/store/redis/connection/slot.rs \
    'generation == self.inner.server.endpoint.generation()' \
    'generation <= self.inner.server.endpoint.generation()'
also former-connections-kept lock-runtime/src/store/redis/connection/slot.rs \
    '() = self.inner.server.endpoint.changed(live.generation) => {' \
    '() = std::future::pending::<()>() => {'

plant address-of-the-former-believed lock-runtime/src/store/redis/sentinel/mod.rs \
    'let address: Option<(String, u16)> = self.query(&mut connection, address).await?;' \
    'let _: Option<(String, u16)> = self.query(&mut connection, address).await?;
        let address = about.get("ip").cloned();
        let address = address.zip(about.get("port").and_then(|port| port.parse::<u16>().ok()));'

plant repeated-at-one-server-only lock-runtime/src/store/redis/connection/runtime_connections.rs \
    'connections.released.note(host.now(), release.clone());' \
    'let _ = (&connections, release);'

plant places-kept-at-the-next-master lock-runtime/src/store/redis/mod.rs \
    'self.commands.note_released(|| self.leave_of(request));' \
    ''

plant failovers-not-heard lock-runtime/src/store/redis/sentinel/mod.rs \
    'matches!(push.kind, PushKind::Message | PushKind::Disconnection)' \
    'matches!(push.kind, PushKind::Disconnection)'

plant failed-connections-not-told lock-runtime/src/store/redis/connection/endpoint.rs \
    'drop(current_master.ask_again()),' \
    'drop(current_master),'

# A test on a real server cannot tell it from a machine that stands still; a scenario shows it as well.
plant check-beyond-the-wait lock-runtime/src/acquire/mod.rs \
    'held.tenure.check_answered(self.timer, budget)' \
    'held.tenure.check_answered(self.timer, || budget().max(self.manager.response_timeout))'
