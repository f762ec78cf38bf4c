async fn report(limits: &Limits, month: u32) -> Result<Arc<Report>, ReportError> {
    static __LOCK_SITE: ::lock_runtime::__private::Site = ::lock_runtime::__private::Site {
        template: "report:<month>",
        function: ::core::concat!(::core::module_path!(), "::report"),
    };
    let __lock_call = ::lock_runtime::__private::call(
            &__LOCK_SITE,
            ::lock_runtime::__private::key().text("report:").value(&month),
        )
        .semaphore(limits.reports);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Result<Arc<Report>, ReportError>,
            > {
                return __lock_value;
            }
            let limits = limits;
            let month = month;
            let _ = &limits;
            let __lock_value: Result<Arc<Report>, ReportError> = '__lock_body: {
                Report::of(month).await
            };
            #[allow(unreachable_code)] __lock_value
        });
        match __lock_call.coalesce(&__lock_body).await {
            ::core::result::Result::Ok(__lock_granted) => {
                __lock_held.insert(__lock_granted).run(__lock_body).await
            }
            ::core::result::Result::Err(__lock_ended) => __lock_ended,
        }
    };
    let (__lock_held, __lock_flight) = ::lock_runtime::__private::part(__lock_held);
    let __lock_ended = ::lock_runtime::__private::leave(__lock_held, __lock_ended).await;
    ::lock_runtime::__private::returned(
        ::lock_runtime::__private::land(__lock_flight, __lock_ended),
        ::lock_runtime::__private::OrError,
    )
}
