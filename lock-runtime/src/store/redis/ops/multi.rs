//! Takes many exclusive locks under one value, in one script.

use redis::Value;

use crate::store::redis::RedisStore;
use crate::store::redis::connection::{Release, eval_for_lock};
use crate::store::redis::reply::{self, millis, unexpected};
use crate::store::redis::scripts::{ACQUIRE_ALL, LockScript, MARKED_ACQUIRE_ALL};
use crate::store::{AcquireAllRequest, Attempt, AttemptAll, HolderValue, StoreError};

impl RedisStore {
    pub(in crate::store::redis) async fn acquire_together(
        &self,
        request: &AcquireAllRequest<'_>,
    ) -> Result<AttemptAll, StoreError> {
        let commands = self.commands.here();
        let live = commands.live().await?;
        let mark = commands.mark(&live, request.value).await?;
        request.receipt.sent_at(live.number, commands.host().now());
        let queues: Vec<_> = request.keys.iter().map(|key| self.names.queue(key)).collect();
        let counter = self.names.counter(request.keys.first().map_or("", |key| &**key));
        let mut keys: Vec<&str> = vec![&counter];
        for (key, queue) in request.keys.iter().zip(&queues) {
            keys.extend([&**key, queue]);
        }
        let scripts: [&LockScript; 2] = [&ACQUIRE_ALL, &MARKED_ACQUIRE_ALL];
        let answer = eval_for_lock(&commands, &live, scripts, mark.as_deref(), "", &keys, |command| {
            command
                .arg(&self.names.channels)
                .arg(request.value.as_str())
                .arg(request.former.map_or("", HolderValue::as_str))
                .arg(millis(request.ttl))
                .arg(u8::from(request.fence))
                .arg(request.keep.map_or(0, millis));
        });
        let answer = answer.await?;
        // The script has ended what the former value held, which a server that takes over may not
        // know.
        for (key, former) in request.keys.iter().filter_map(|key| Some((key, request.former?))) {
            self.commands.note_released(|| Release::of(key, former));
        }
        match reply::attempt(&answer)? {
            Attempt::Granted { fence } => Ok(AttemptAll::Granted { fence }),
            Attempt::Busy { holder, remaining } => {
                let at = match answer.as_sequence().and_then(|parts| parts.get(3)) {
                    Some(Value::Int(at)) => usize::try_from(*at).ok(),
                    _ => None,
                };
                let at = at.ok_or_else(|| unexpected(&answer))?;
                Ok(AttemptAll::Busy { at, holder, remaining })
            }
        }
    }
}
