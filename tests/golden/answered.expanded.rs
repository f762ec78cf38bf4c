pub(crate) async fn report(r#type: Kind, path: &str) -> Report {
    #![allow(clippy::pedantic)]
    static __LOCK_SITE: platform::locks::__private::Site = platform::locks::__private::Site {
        template: "report:<r#type>:<path:raw>",
        function: ::core::concat!(::core::module_path!(), "::report"),
    };
    let __lock_call = platform::locks::__private::call(
            &__LOCK_SITE,
            platform::locks::__private::key()
                .text("report:")
                .value(&r#type)
                .text(":")
                .raw(&path),
        )
        .renew(false)
        .fair(true)
        .pipelined(true)
        .on_lost(platform::locks::__private::OnLost::Signal);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_ended = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                Report,
            > {
                return __lock_value;
            }
            let r#type = r#type;
            let path = path;
            let _ = &r#type;
            let __lock_value: Report = '__lock_body: { Report::new(path).await };
            #[allow(unreachable_code)] __lock_value
        });
        match __lock_call.enter().await {
            ::core::result::Result::Ok(__lock_granted) => {
                __lock_held.insert(__lock_granted).run(__lock_body).await
            }
            ::core::result::Result::Err(__lock_error) => {
                platform::locks::__private::Ended::Cancelled(__lock_error)
            }
        }
    };
    let __lock_ended = platform::locks::__private::leave(__lock_held, __lock_ended)
        .await;
    platform::locks::__private::returned(
        __lock_ended,
        platform::locks::__private::OrElse(answers::cached),
    )
}
