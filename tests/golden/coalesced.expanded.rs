async fn report(limits: &Limits, month: u32) -> Result<Arc<Report>, ReportError> {
    use ::lock_runtime::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["report:<month>"],
        function: ::core::concat!(::core::module_path!(), "::report"),
    };
    let __lock_call = __lock_private::call(
            &__LOCK_SITE,
            (&mut __lock_private::key()).text("report:").insert(&month),
        )
        .semaphore(limits.reports);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Result<Arc<Report>, ReportError>>,
            > {
                return *__lock_value;
            }
            let _ = &month;
            let _ = &limits;
            let __lock_value: Result<Arc<Report>, ReportError> = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Result<Arc<Report>, ReportError>>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: { Report::of(month).await }
            };
            __lock_value
        });
        fn __lock_item() {}
        match __lock_private::coalesce(__lock_call, &__lock_body, __lock_item).await {
            ::core::result::Result::Ok(__lock_granted) => {
                (&mut __lock_held).insert(__lock_granted).run(__lock_body).await
            }
            ::core::result::Result::Err(__lock_value) => __lock_value,
        }
    };
    let (__lock_held, __lock_flight) = __lock_private::part(__lock_held);
    let __lock_left = __lock_held.await;
    __lock_private::land(__lock_flight, &__lock_value, &__lock_left);
    __lock_private::returned(__lock_value, __lock_left, __lock_private::OrError)
}
