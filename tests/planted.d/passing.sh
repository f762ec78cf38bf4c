# Faults in locks that pass from call to call inside a process. Read by ../planted.

plant chain-without-look lock-runtime/src/hold/upkeep/watchdog.rs \
    'plan.check_at = Some(at);' \
    'plan.check_at = None.filter(|_: &Moment| at == now);' \
    promises passing::few_bodies_begin_under_a_lock_that_was_lost_while_it_passed_from_call_to_call \
    'bodies begun beside another holder'

plant passes-while-checked-in-vain lock-runtime/src/hold/plan.rs \
    'self.check_at.map_or(Duration::ZERO, |at| now.since(at))' \
    'Duration::ZERO.max(self.check_at.map_or(Duration::ZERO, |at| now.since(at)) / 1_000_000)' \
    promises passing::a_lock_that_is_being_checked_in_vain_passes_on_no_more \
    'bodies began while the check had no answer'

plant asleep-once-asked lock-runtime/src/host/sign_of_life.rs \
    'Self::GIVEN => Some(Self::ASKED_FOR)' \
    'Self::GIVEN => Some(Self::MISSING)' \
    lib acquire::local_queue::tests::a_call_that_was_just_asked_for_a_sign_of_life_gets_its_turn \
    'it counts as asleep'

plant turn-not-taken-back lock-runtime/src/acquire/line.rs \
    'take_back_if(|_| waiter.sign.ask(now))' \
    'take_back_if(|_| waiter.sign.ask(now) && number == u64::MAX)' \
    promises passing::a_call_that_is_not_polled_holds_up_neither_its_line_nor_other_processes \
    'it hangs'

plant passed-under-old-name lock-runtime/src/hold/mod.rs \
    'Holder::passed_to(&self.tenure.value, self.options.site.function)' \
    'Holder::new(self.tenure.value.as_str())' \
    waiting local_queue::in_memory::a_call_that_waited_behind_its_own_process_names_the_holder \
    'shop::buy'

plant accepted-before-its-token lock-runtime/src/acquire/mod.rs \
    'let answer = if self.options.fencing {
            let answer = self.manager.store().fence(&held.tenure.key, &held.tenure.value);' \
    'if self.options.fencing {
            let passed = waiting.accept(held)?;
            let answer = self.manager.store().fence(&held.tenure.key, &held.tenure.value).await;
            let fence = match answer {
                Ok(Fence::Token(fence)) => Some(fence),
                _ => return Some(Err(passed.give_back())),
            };
            let (since, (tenure, place)) = (self.manager.now(), passed.accept());
            return Some(Ok(Grant::passed(tenure, &self.options, since, fence, place)));
        }
        let answer = if self.options.fencing {
            let answer = self.manager.store().fence(&held.tenure.key, &held.tenure.value);' \
    promises passing::a_passed_lock_whose_call_is_not_polled_while_it_asks_for_a_token_goes_to_another_process \
    'it hangs'

plant asleep-at-the-fence lock-runtime/src/acquire/local_queue.rs \
    'if is_offered {' \
    'if false {' \
    promises passing::a_passed_lock_stays_with_a_call_whose_token_is_slow_to_come \
    'it was taken back from a call that was polled'

plant turn-for-a-call-that-left lock-runtime/src/acquire/offer.rs \
    'if matches!(*state, State::Over) {' \
    'if false {' \
    lib acquire::local_queue::tests::a_call_that_leaves_while_its_turn_is_on_its_way_leaves_no_line_behind \
    'a call that has left keeps the place in front'

