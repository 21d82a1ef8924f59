//! Basic credentials of a proxy and their comparison.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::PROXY_AUTHORIZATION};
use sha2::{Digest as _, Sha256};

/// User name and password of a proxy, as raw bytes.
///
/// `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: Vec<u8>,
    password: Vec<u8>,
}

impl Credentials {
    /// Takes both parts as bytes; a user name with a colon can never be sent by a client.
    pub fn new(username: impl Into<Vec<u8>>, password: impl Into<Vec<u8>>) -> Self {
        Self {
            username: username.into(),
            password: password.into(),
        }
    }

    /// The value of a `Proxy-Authorization` field that carries these credentials.
    #[must_use]
    pub fn header_value(&self) -> String {
        format!("Basic {}", STANDARD.encode(self.joined()))
    }

    /// Whether the request carries exactly these credentials.
    ///
    /// Digests are compared, so the time taken tells nothing about the position of a difference.
    pub(super) fn admit(&self, headers: &HeaderMap) -> bool {
        let sent = headers
            .get(PROXY_AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
            .and_then(|(_, token)| STANDARD.decode(token.trim()).ok());
        sent.is_some_and(|sent| Sha256::digest(sent) == Sha256::digest(self.joined()))
    }

    fn joined(&self) -> Vec<u8> {
        [self.username.as_slice(), b":", self.password.as_slice()].concat()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_exact_basic_credentials_are_admitted() {
        let ours = Credentials::new("user", "pä:ss");
        let cases = [
            (Some(ours.header_value()), true),
            (Some(ours.header_value().replace("Basic", "bAsIc")), true),
            (Some(Credentials::new("user", "pä:s").header_value()), false),
            (
                Some(Credentials::new("use", "r:pä:ss").header_value()),
                false,
            ),
            (Some(Credentials::new("user:pä", "ss").header_value()), true),
            (Some(ours.header_value().replace("Basic", "Bearer")), false),
            (Some("Basic ???".to_owned()), false),
            (Some("Basic".to_owned()), false),
            (None, false),
        ];
        for (sent, admitted) in cases {
            let mut headers = HeaderMap::new();
            if let Some(value) = &sent {
                headers.insert(PROXY_AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(ours.admit(&headers), admitted, "{sent:?}");
        }
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let shown = format!("{:?}", Credentials::new("alice", "hunter2"));
        assert!(
            !shown.contains("alice") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
