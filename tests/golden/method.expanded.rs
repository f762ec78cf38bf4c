async fn run<const N: usize>(mut self, batch: [Job; N]) {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["job:<self.name>"],
        function: ::core::concat!(::core::module_path!(), "::run"),
    };
    let __lock_call = __lock_private::call_on(
            &self.locks,
            &__LOCK_SITE,
            (&mut __lock_private::key()).text("job:").value(&self.name),
        )
        .wait(const { ::core::time::Duration::new(0, 0) })
        .at_least(const { ::core::time::Duration::new(90, 0) });
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<()>,
            > {
                return *__lock_value;
            }
            let _ = &batch;
            let _ = &self;
            let __lock_value: () = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<()>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: {
                    self.runs += 1;
                    for job in batch {
                        job.run().await;
                    }
                }
            };
            __lock_value
        });
        __lock_private::run(
                __lock_private::enter(__lock_call).await,
                &mut __lock_held,
                __lock_body,
            )
            .await
    };
    let __lock_left = __lock_private::leave(__lock_held).await;
    __lock_private::returned(__lock_value, __lock_left, __lock_private::OrSkip)
}
