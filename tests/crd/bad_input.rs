//! B01 to B07: what a user who writes a wrong manifest is answered, field and text, by an API server.
//!
//! The manifests and texts are those of the tables in `cases`, which both servers are held to.

use crate::cases::{self, Refused};
use crate::servers::{Server, dynamic_proxies, install, is_refused};

/// Sends the manifests of these descriptions to the embedded server.
async fn are_refused(whats: &[&str]) {
    let server = Server::embedded().await;
    install(&server.client).await;
    let proxies = dynamic_proxies(&server.client);
    let all: Vec<Refused> = cases::refused_by_rules()
        .into_iter()
        .chain(cases::refused_by_limits())
        .collect();
    for what in whats {
        let case = all.iter().find(|case| case.what == *what);
        let case = case.unwrap_or_else(|| panic!("there is no case {what:?}"));
        if let Err(fault) = is_refused(&proxies, case).await {
            panic!("{what}: {fault}");
        }
    }
}

macro_rules! refused {
    ($($name:ident: $($what:literal),+;)+) => {$(
        #[tokio::test]
        async fn $name() {
            are_refused(&[$($what),+]).await;
        }
    )+};
}

refused! {
    b01_a_managed_proxy_without_a_provider_is_told_to_name_one:
        "Managed without a provider";
    b02_an_external_proxy_with_what_is_manageds_has_the_field_named:
        "External with a provider", "External with user data";
    b03_user_data_has_exactly_one_source:
        "user data from two sources", "user data from no source";
    b04_a_host_with_a_scheme_is_told_to_be_a_host_only:
        "a host with a scheme";
    b05_a_port_out_of_range_has_the_range_named:
        "no port 0", "no port 70000";
    b06_a_timeout_above_the_interval_has_both_values_named:
        "a timeout above the interval";
    b07_a_tag_in_capitals_or_of_the_operators_own_is_refused:
        "a tag key with capitals", "a tag of the operator";
}
