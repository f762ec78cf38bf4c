pub(crate) async fn report(r#type: Kind, path: &str) -> Report {
    #![allow(clippy::pedantic)]
    use platform::locks::__private as __lock_private;
    static __LOCK_SITE: __lock_private::CallSite = __lock_private::CallSite {
        templates: &["report:<r#type>:<path:raw>"],
        function: ::core::concat!(::core::module_path!(), "::report"),
    };
    let __lock_call = __lock_private::call(
            &__LOCK_SITE,
            (&mut __lock_private::key())
                .text("report:")
                .insert(&r#type)
                .text(":")
                .raw(&path),
        )
        .exclusive()
        .renew(false)
        .fair(true)
        .pipelined(true)
        .on_lost(__lock_private::OnLost::Signal);
    let mut __lock_held = ::core::option::Option::None;
    let __lock_value = {
        let __lock_body = ::core::pin::pin!(async move {
            if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                __lock_private::Box<Report>,
            > {
                return *__lock_value;
            }
            let _ = &path;
            let _ = &r#type;
            let __lock_value: Report = '__lock_end: {
                if let ::core::option::Option::Some(__lock_value) = ::core::option::Option::None::<
                    __lock_private::Box<Report>,
                > {
                    break '__lock_end *__lock_value;
                }
                '__lock_body: { Report::new(path).await }
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
    __lock_private::returned(
        __lock_value,
        __lock_left,
        __lock_private::OrElse(answers::cached),
    )
}
