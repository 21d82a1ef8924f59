//! Header fields at a hop: what ends here, what is added (RFC 9110, 7.6).

use std::net::SocketAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE, VIA,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Removes the fields that concern one connection only, and those `Connection` names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// Appends this proxy to the list of hops.
pub(super) fn add_via(headers: &mut HeaderMap, version: Version, own: SocketAddr) {
    let protocol = if version == Version::HTTP_10 {
        "1.0"
    } else {
        "1.1"
    };
    let value = HeaderValue::from_str(&format!("{protocol} {own}"))
        .expect("a socket address is of visible ASCII characters");
    headers.append(VIA, value);
}

/// Whether the message has passed this proxy before.
pub(super) fn passed_before(headers: &HeaderMap, own: SocketAddr) -> bool {
    let own = own.to_string();
    headers
        .get_all(VIA)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|hop| hop.split_whitespace().nth(1) == Some(own.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn fields_of_one_hop_end_at_the_proxy() {
        let mut given = headers(&[
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("authorization", "Basic eA=="),
            ("x-kept", "2"),
        ]);
        strip_hop_by_hop(&mut given);
        assert_eq!(
            given,
            headers(&[("authorization", "Basic eA=="), ("x-kept", "2")])
        );
    }

    #[test]
    fn a_proxy_recognizes_itself_among_the_hops() {
        let own: SocketAddr = "127.64.0.1:3128".parse().unwrap();
        let mut given = headers(&[("via", "1.1 127.64.0.2:3128, 1.0 other")]);
        assert!(!passed_before(&given, own));
        add_via(&mut given, Version::HTTP_11, own);
        assert!(passed_before(&given, own));
    }
}
