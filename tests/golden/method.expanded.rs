async fn run<const N: usize>(mut self, batch: [Job; N]) {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "job:<self.name>",
        function: ::core::concat!(::core::module_path!(), "::run"),
    };
    let __lock_call = ::lock_runtime::__private::call_on(
            &self.locks,
            &__LOCK_SITE,
            ::lock_runtime::__private::key().text("job:").value(&self.name),
        )
        .wait(::core::time::Duration::new(0, 0))
        .at_least(::core::time::Duration::new(90, 0));
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                (),
            > {
                return __lock_value;
            }
            let _ = &self;
            let batch = batch;
            let __lock_value: () = '__lock_body: {
                self.runs += 1;
                for job in batch {
                    job.run().await;
                }
            };
            #[allow(unreachable_code)] __lock_value
        });
        match __lock_call.enter().await {
            ::core::result::Result::Ok(__lock_granted) => {
                __lock_held.insert(__lock_granted).run(__lock_body).await
            }
            ::core::result::Result::Err(__lock_error) => {
                ::lock_runtime::__private::Ended::Cancelled(__lock_error)
            }
        }
    };
    let __lock_ended = ::lock_runtime::__private::leave(__lock_held, __lock_ended).await;
    ::lock_runtime::__private::returned(__lock_ended, ::lock_runtime::__private::OrSkip)
}
